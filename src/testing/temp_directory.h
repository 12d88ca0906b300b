// SPDX-License-Identifier: Apache-2.0
//
// TempDirectory: a new directory for one test, removed with everything in it.
//
// single-threaded
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/check.h"

namespace quire::testing {

class TempDirectory {
 public:
  /// Below `parent`, or where the system has its temporary files.
  explicit TempDirectory(const std::string& parent = std::filesystem::temp_directory_path().string())
      : path_(parent + "/quire.XXXXXX") {
    QUIRE_CHECK(::mkdtemp(path_.data()) != nullptr, "there is no place for temporary files");
  }
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace quire::testing
