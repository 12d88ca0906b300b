// SPDX-License-Identifier: Apache-2.0
//
// PriorityPolicy: what has expired goes first, then the lowest priority, and of equals the run that has been idle for
// longest. A run has the highest priority and the latest expiry that any of its uses asked for, and those of what was
// added behind it; once it has expired, only later ones count. So a parent is worth at least what its children are, and
// becomes idle after them.
//
// Without priorities and times this is LRU. single-threaded; O(log n) for runs that can expire, O(1) for others.
#pragma once

#include <compare>
#include <cstdint>

#include "base/index_heap.h"
#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "base/small_index_set.h"
#include "quire/policy.h"

namespace quire {

class PriorityPolicy final : public Policy {
 public:
  [[nodiscard]] Status reserve(const PolicyLimits& limits) override;
  void on_seal(RunId run, const PageChange& added) override;
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override;
  void on_use(RunId run, const Retention& retention) override;
  bool on_retain(RunId run, const Retention& retention) override;
  void on_pin(RunId run) override;
  void on_idle(RunId run) override;
  void on_remove(RunId run, const PageChange& lost) override;
  void on_advance(TimeNs now) override;
  [[nodiscard]] std::optional<RunId> next_victim() override;
  [[nodiscard]] std::uint32_t idle_run_count() const override;

 private:
  // When a run expires; of runs that expire together, the one that became idle first is the deeper one.
  struct Expiry {
    TimeNs at;
    std::uint64_t idle_number;
    friend constexpr auto operator<=>(const Expiry&, const Expiry&) = default;
  };
  struct State {
    TimeNs expires_at;
    std::uint64_t idle_number;
    std::int8_t priority;
    bool is_known;
  };

  bool want(std::uint32_t run, const Retention& retention);
  [[nodiscard]] std::uint32_t list_of(std::uint32_t run) const;
  void take_out(std::uint32_t run);

  LazyArray<State> states_;
  IndexLists idle_;           // the expired, then a list for each priority
  SmallIndexSet used_lists_;  // that are not empty
  IndexHeap<Expiry> expiries_;
  TimeNs now_ = 0;
  std::uint64_t idle_total_ = 0;
};

}  // namespace quire
