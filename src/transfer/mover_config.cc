// SPDX-License-Identifier: Apache-2.0
//
// What a mover may be asked for.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "quire/mover.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {
namespace {

constexpr std::uint32_t kThreadsMax = 64;  // of one direction
constexpr std::uint32_t kQueueDepthMax = 1U << 16U;
constexpr std::uint32_t kTransferPagesMax = 1U << 20U;
constexpr std::size_t kPoolsMax = std::size_t{1} << 16U;  // as many as a plan can name

tl::unexpected<Error> invalid(std::string message) {
  return fail(ErrorCode::InvalidArgument, std::move(message));
}

Status check_within(std::string_view name, std::uint32_t value, std::uint32_t value_max) {
  if (value >= 1 && value <= value_max) return {};
  return invalid("MoverConfig::" + std::string(name) + " is " + std::to_string(value) + ": give 1 to " +
                 std::to_string(value_max));
}

// Ids begin at 1, and the highest one means "none".
Status check_host_page_count(std::string_view name, std::uint32_t count) {
  return check_within(name, count, PageId::kNoneValue - 1);
}

Status check_pool(const std::string& name, const MoverPool& pool) {
  if (pool.parts.empty()) return invalid("MoverConfig::" + name + ".parts is empty: say where device pages lie");
  for (std::size_t i = 0; i < pool.parts.size(); ++i) {
    const MoverPart& part = pool.parts[i];
    const std::string part_name = "MoverConfig::" + name + ".parts[" + std::to_string(i) + "]";
    if (part.geometry == nullptr) return invalid(part_name + ".geometry is missing: say where device pages lie");
    if (part.memory == nullptr && part.tensors.empty()) {
      return invalid(part_name + ".memory is missing: say where device pages lie");
    }
    if (part.memory != nullptr && !part.tensors.empty()) {
      return invalid(part_name + " has memory and tensors: give either");
    }
    if (part.geometry->page_count() != pool.parts[0].geometry->page_count()) {
      return invalid(part_name + " has " + std::to_string(part.geometry->page_count()) + " pages, and parts[0] has " +
                     std::to_string(pool.parts[0].geometry->page_count()) + ": an id names a page in each of them");
    }
  }
  return check_host_page_count(name + ".host_page_count", pool.host_page_count);
}

Status check_streams(std::string_view name, const TransferStreams& streams, bool has_accelerator) {
  constexpr std::uint32_t kMax = TransferStreams::kSetCountMax;
  if (streams.given.empty()) {
    if (streams.priority > StreamPriority::High) {
      return invalid("MoverConfig::" + std::string(name) + ".priority is " +
                     std::to_string(static_cast<int>(streams.priority)) + ": use Low or High");
    }
    return check_within(std::string(name) + ".set_count", streams.set_count, kMax);
  }
  if (!has_accelerator) {
    return invalid("MoverConfig::" + std::string(name) + ".given has streams: that needs MoverConfig::accelerator");
  }
  if (streams.given.size() > kMax) {
    return invalid("MoverConfig::" + std::string(name) + ".given has " + std::to_string(streams.given.size()) +
                   " sets of streams: give " + std::to_string(kMax) + " at most");
  }
  for (std::size_t i = 0; i < streams.given.size(); ++i) {
    if (streams.given[i].copies.handle != nullptr) continue;
    return invalid("MoverConfig::" + std::string(name) + ".given[" + std::to_string(i) +
                   "].copies is missing: work never goes on the default stream");
  }
  return {};
}

}  // namespace

Status MoverConfig::validate() const {
  if (pools.empty()) {
    if (device_geometry == nullptr) {
      return invalid("MoverConfig::device_geometry is missing: say where device pages lie");
    }
    if (device_memory == nullptr) return invalid("MoverConfig::device_memory is missing: say where device pages lie");
    QUIRE_TRY(check_host_page_count("host_page_count", host_page_count));
  } else if (device_geometry != nullptr || device_memory != nullptr || host_page_count != 0) {
    return invalid("MoverConfig has pools, and device_geometry, device_memory or host_page_count too: give either");
  }
  if (pools.size() > kPoolsMax) {
    return invalid("MoverConfig::pools has " + std::to_string(pools.size()) + ": give " + std::to_string(kPoolsMax) +
                   " at most");
  }
  for (std::size_t i = 0; i < pools.size(); ++i) {
    QUIRE_TRY(check_pool("pools[" + std::to_string(i) + "]", pools[i]));
  }
  for (const MoverPool& pool : pools) {
    const bool has_tensors =
        std::ranges::any_of(pool.parts, [](const MoverPart& part) { return !part.tensors.empty(); });
    if (has_tensors && accelerator == nullptr) {
      return invalid("MoverConfig::pools have tensors: that needs MoverConfig::accelerator");
    }
  }
  if (accelerator == nullptr) {
    QUIRE_TRY(check_within("load_thread_count", load_thread_count, kThreadsMax));
    QUIRE_TRY(check_within("store_thread_count", store_thread_count, kThreadsMax));
  }
  QUIRE_TRY(check_streams("load_streams", load_streams, accelerator != nullptr));
  QUIRE_TRY(check_streams("store_streams", store_streams, accelerator != nullptr));
  QUIRE_TRY(check_within("queue_depth_max", queue_depth_max, kQueueDepthMax));
  return check_within("transfer_pages_max", transfer_pages_max, kTransferPagesMax);
}

}  // namespace quire
