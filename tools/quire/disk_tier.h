// SPDX-License-Identifier: Apache-2.0
//
// The disk tier of replays, as a command line says it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "host_tier.h"
#include "quire/cache.h"
#include "quire/config.h"
#include "quire/result.h"

namespace quire {

/// The disk tier behind the host tier of a replay. Off without directories.
struct DiskTierSettings {
  std::vector<std::string> directories;
  std::uint64_t capacity_bytes = 0;
  WritePolicy write_policy = WritePolicy::WriteThrough;
  std::uint64_t write_bytes_per_day = 0;  ///< 0: no limit

  [[nodiscard]] bool is_on() const { return !directories.empty(); }
};

/// The values of --disk, --disk-bytes, --disk-write-policy and --disk-write-bytes-per-day, where they were given.
struct DiskTierOptions {
  std::optional<std::string> disk;  ///< a list
  std::optional<std::string> disk_bytes;
  std::optional<std::string> write_policy;
  std::optional<std::string> write_bytes_per_day;
};

/// Off when none was given. Needs --disk and --disk-bytes, and a host tier.
[[nodiscard]] Result<DiskTierSettings> parse_disk_tier(const DiskTierOptions& options, const HostTierSettings& host);

/// "io_uring, O_DIRECT", and what the system refused.
[[nodiscard]] std::string disk_mode_text(const DiskStatus& status);

/// A new directory among the system's temporary files, removed with everything in it.
class TemporaryDirectory {
 public:
  [[nodiscard]] static Result<TemporaryDirectory> make();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace quire
