// SPDX-License-Identifier: Apache-2.0
//
// FileTable: the open files of the real file system. Ids are never used twice, so that one that was closed is found out
// instead of meaning another file, as a descriptor would.
//
// thread-safe
#pragma once

#include <unistd.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "store/file_system.h"

namespace quire {

class FileTable {
 public:
  FileTable() = default;
  ~FileTable() {
    for (const auto& [id, file] : files_) (void)::close(file.descriptor);
  }
  FileTable(const FileTable&) = delete;
  FileTable& operator=(const FileTable&) = delete;

  [[nodiscard]] FileId add(int descriptor, std::string path) {
    const MutexLock lock(mutex_);
    const FileId id{next_++};
    files_.emplace(id.value, File{descriptor, std::move(path)});
    return id;
  }
  void close(FileId id) {
    int descriptor = -1;
    {
      const MutexLock lock(mutex_);
      descriptor = find(id).descriptor;
      files_.erase(id.value);
    }
    // Not under the lock: to close a file that was removed gives its blocks back, which takes a while, and each request
    // asks for a descriptor.
    (void)::close(descriptor);
  }
  [[nodiscard]] int descriptor(FileId id) const {
    const MutexLock lock(mutex_);
    return find(id).descriptor;
  }
  [[nodiscard]] std::string path(FileId id) const {
    const MutexLock lock(mutex_);
    return find(id).path;
  }

 private:
  struct File {
    int descriptor;
    std::string path;  // as it was opened
  };
  [[nodiscard]] const File& find(FileId id) const QUIRE_REQUIRES(mutex_) {
    const auto found = files_.find(id.value);
    QUIRE_CHECK(found != files_.end(), "the file is not open");
    return found->second;
  }

  mutable Mutex mutex_;  // guards what follows
  std::unordered_map<std::uint32_t, File> files_ QUIRE_GUARDED_BY(mutex_);
  std::uint32_t next_ QUIRE_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire
