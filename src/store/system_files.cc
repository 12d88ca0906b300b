// SPDX-License-Identifier: Apache-2.0
#include "store/system_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/checked.h"
#include "store/host_region.h"
#include "store/system_directory.h"
#include "store/thread_queue.h"
#include "store/uring_queue.h"

namespace quire {
namespace {

constexpr std::uint64_t kHugePagesFromBytes = std::uint64_t{2} << 20U;
constexpr std::uint32_t kOpenFilesUsual = 1024;
// What the kernel allows where nobody has said otherwise; without a limit there is no need for more.
constexpr rlim_t kOpenFilesMax = rlim_t{1} << 20U;

}  // namespace

SystemFiles::SystemFiles(const FileCalls& calls)
    : calls_(calls), mode_{.engine = IoMode::Engine::Uring, .is_direct = true, .has_registered_buffers = true} {}

Result<std::unique_ptr<StoreDirectory>> SystemFiles::open_directory(const std::string& path) {
  return open_directory(path, /*is_read_only=*/false);
}

Result<std::unique_ptr<StoreDirectory>> SystemFiles::open_directory_to_read(const std::string& path) {
  return open_directory(path, /*is_read_only=*/true);
}

Result<std::unique_ptr<StoreDirectory>> SystemFiles::open_directory(const std::string& path, bool is_read_only) {
  QUIRE_TRY_ASSIGN(
      std::unique_ptr<SystemDirectory> directory,
      SystemDirectory::open(path, {.files = files_,
                                   .calls = calls_,
                                   .add_refusal = [this](const std::string& refusal) { add_refusal(refusal); },
                                   .is_read_only = is_read_only}));
  const MutexLock lock(mutex_);
  mode_.is_direct &= directory->is_direct();
  return directory;
}

Result<std::unique_ptr<IoQueue>> SystemFiles::make_queue(const IoQueueConfig& config) {
  QUIRE_CHECK(config.depth != 0 && config.buffer_bytes != 0 && config.buffer_bytes % kIoBlockBytes == 0,
              "a queue without buffers, or with buffers that are not made of blocks");
  const auto bytes = checked_multiply(config.depth, config.buffer_bytes);
  if (!bytes) return fail(ErrorCode::Unavailable, "the buffers of a file queue are larger than all memory");
  // Large buffers move twice as fast out of huge pages; small ones were written more slowly out of them on virtual
  // disks.
  QUIRE_TRY_ASSIGN(HostRegion memory,
                   HostRegion::map(*bytes, {.huge_pages = config.buffer_bytes >= kHugePagesFromBytes}));
  std::string refusal;
  std::unique_ptr<UringQueue> ring = UringQueue::try_make(config.depth, memory, files_, calls_, refusal);
  if (!refusal.empty()) add_refusal(refusal);
  if (ring != nullptr) {
    const MutexLock lock(mutex_);
    mode_.has_registered_buffers &= ring->has_registered_buffers();
    return ring;
  }
  QUIRE_TRY_ASSIGN(std::unique_ptr<ThreadQueue> threads,
                   ThreadQueue::make(config.depth, std::move(memory), files_, calls_));
  const MutexLock lock(mutex_);
  mode_.engine = IoMode::Engine::Threads;
  mode_.has_registered_buffers = false;
  return threads;
}

std::uint32_t SystemFiles::open_files_max() const {
  struct rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return kOpenFilesUsual;
  return static_cast<std::uint32_t>(std::min<rlim_t>(limit.rlim_cur, kOpenFilesMax));
}

IoMode SystemFiles::mode() const {
  const MutexLock lock(mutex_);
  return mode_;
}

void SystemFiles::add_refusal(const std::string& refusal) {
  const MutexLock lock(mutex_);
  if (mode_.refusals.find(refusal) != std::string::npos) return;
  if (!mode_.refusals.empty()) mode_.refusals += "; ";
  mode_.refusals += refusal;
}

}  // namespace quire
