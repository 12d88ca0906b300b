// SPDX-License-Identifier: Apache-2.0
//
// HandMover: a mover that a test drives by hand, for layouts of any groups. It copies real bytes when it is told to, so
// that what is planned, what has moved and what the cache knows of it can be held apart.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "group_pools.h"
#include "quire/cache.h"

namespace quire {

/// Host pages as a mover keeps them, and transfers that have been taken.
class HandMover {
 public:
  struct Taken {
    TransferPlan plan;
    std::vector<PageTransfer> pages;
  };

  explicit HandMover(Cache& cache) : cache_(cache), pools_(testing::transfer_pools(cache.config().layout)) {}

  /// What the cache wants moved now, as far as `count_max` transfers go.
  [[nodiscard]] std::vector<Taken> take_some(std::size_t count_max) {
    std::vector<TransferPlan> room(count_max);
    std::vector<Taken> taken;
    const std::span<const TransferPlan> given = cache_.take_transfers(room).value();
    for (const TransferPlan& plan : given) {
      taken.push_back({plan, {plan.pages.begin(), plan.pages.end()}});
      order.push_back(plan.kind);
    }
    return taken;
  }
  /// Takes all of it, to `waiting`.
  void take() {
    constexpr std::size_t kAtOnce = 4;
    for (std::size_t count = kAtOnce; count == kAtOnce;) {
      std::vector<Taken> taken = take_some(kAtOnce);
      count = taken.size();
      for (Taken& each : taken) waiting.push_back(std::move(each));
    }
  }
  /// Moves the bytes of a transfer, and says what became of it.
  [[nodiscard]] Completion move(const Taken& taken) {
    Completion completion{.id = taken.plan.id};
    const std::vector<std::uint32_t>& groups = pools_.at(taken.plan.pool_index);
    const std::uint64_t page_bytes = testing::pool_page_bytes(cache_, groups);
    const bool is_store = taken.plan.kind == TransferKind::Store;
    for (const PageTransfer& page : taken.pages) {
      HostPage& host = host_pages[{taken.plan.pool_index, page.host_page.value}];
      if (is_store) {
        host = {page.host_generation, page.name_tag, std::vector<std::byte>(page_bytes)};
      } else {
        if (host.generation != page.host_generation) completion.fault = TransferFault::Generation;
        if (host.name_tag != page.name_tag) completion.fault = TransferFault::NameTag;
        if (host.is_bad) completion.fault = TransferFault::Checksum;
        if (completion.fault != TransferFault::None) {
          completion.outcome = TransferOutcome::Failed;
          return completion;
        }
      }
      const auto copy = [&](std::byte* device, std::uint64_t at, std::uint64_t count) {
        std::memcpy(is_store ? host.bytes.data() + at : device, is_store ? device : host.bytes.data() + at, count);
      };
      testing::visit_page_bytes(cache_, groups, page.device_page, 0, page_bytes, copy);
      ++completion.good_pages;
      completion.moved_bytes += page_bytes;
    }
    completion.busy_ns = static_cast<TimeNs>(completion.moved_bytes);  // one byte per nanosecond
    return completion;
  }
  /// The same with one that waits.
  [[nodiscard]] Completion move(std::size_t index) {
    const Taken taken = std::move(waiting[index]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(index));
    return move(taken);
  }
  /// Drops a transfer that waits without moving anything.
  [[nodiscard]] Completion fail_it(std::size_t index, TransferOutcome outcome, std::uint32_t good_pages = 0) {
    const Completion completion{.id = waiting[index].plan.id,
                                .outcome = outcome,
                                .fault = outcome == TransferOutcome::Failed ? TransferFault::Io : TransferFault::None,
                                .good_pages = good_pages};
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(index));
    return completion;
  }

  struct HostPage {
    std::uint32_t generation = 0;
    std::uint64_t name_tag = 0;
    std::vector<std::byte> bytes;
    bool is_bad = false;

    bool operator==(const HostPage&) const = default;
  };
  std::vector<Taken> waiting;
  std::vector<TransferKind> order;                                         ///< of all that were ever taken
  std::map<std::pair<std::uint32_t, std::uint32_t>, HostPage> host_pages;  ///< by pool and page

 private:
  Cache& cache_;
  std::vector<std::vector<std::uint32_t>> pools_;  // the groups of each
};

}  // namespace quire
