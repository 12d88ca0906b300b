// SPDX-License-Identifier: Apache-2.0
#include "disk_tier.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "amounts.h"

namespace quire {

Result<DiskTierSettings> parse_disk_tier(const DiskTierOptions& options, const HostTierSettings& host) {
  DiskTierSettings settings;
  if (!options.disk) {
    const char* const given = options.disk_bytes            ? "--disk-bytes"
                              : options.write_policy        ? "--disk-write-policy"
                              : options.write_bytes_per_day ? "--disk-write-bytes-per-day"
                                                            : nullptr;
    if (given == nullptr) return settings;
    return fail(ErrorCode::InvalidArgument,
                fmt::format("{} needs --disk, the directory of the disk tier: without, there is none", given));
  }
  const Result<std::vector<std::string>> directories = parse_names(*options.disk);
  if (!directories) return fail(directories.error().code, "--disk: " + directories.error().message);
  for (auto each = directories->begin(); each != directories->end(); ++each) {
    if (std::find(directories->begin(), each, *each) == each) continue;
    return fail(ErrorCode::InvalidArgument, fmt::format("--disk names {} twice", *each));
  }
  if (!host.is_on()) {
    return fail(ErrorCode::InvalidArgument,
                "--disk needs --host-bytes: pages go to disk, and come back, through a host tier");
  }
  if (!options.disk_bytes) {
    return fail(ErrorCode::InvalidArgument, "--disk needs --disk-bytes: how much of it may be used, such as 64G");
  }
  const Result<std::uint64_t> bytes = parse_amount(*options.disk_bytes);
  if (!bytes) return fail(bytes.error().code, "--disk-bytes: " + bytes.error().message);
  settings.capacity_bytes = *bytes;
  if (options.write_policy) {
    QUIRE_TRY_ASSIGN(settings.write_policy, parse_write_policy("--disk-write-policy", *options.write_policy));
  }
  if (options.write_bytes_per_day) {
    const Result<std::uint64_t> per_day = parse_amount(*options.write_bytes_per_day);
    if (!per_day) return fail(per_day.error().code, "--disk-write-bytes-per-day: " + per_day.error().message);
    settings.write_bytes_per_day = *per_day;
  }
  settings.directories = *directories;
  return settings;
}

std::string disk_mode_text(const DiskStatus& status) {
  std::string text = status.uses_io_uring ? "io_uring" : "threads";
  if (status.has_registered_buffers) text += " with registered buffers";
  text += status.is_direct ? ", O_DIRECT" : ", through the system's cache";
  if (!status.refusals.empty()) text += " (" + status.refusals + ")";
  return text;
}

Result<TemporaryDirectory> TemporaryDirectory::make() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) return fail(ErrorCode::Io, "there is no place for temporary files: " + error.message());
  std::string path = (parent / "quire-demo.XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) {
    return fail(ErrorCode::Io,
                fmt::format("making a directory in {}: {}", parent.string(), std::generic_category().message(errno)));
  }
  return TemporaryDirectory(std::move(path));
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace quire
