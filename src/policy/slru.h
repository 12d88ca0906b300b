// SPDX-License-Identifier: Apache-2.0
//
// SlruPolicy: segmented LRU. Runs start on probation; a run that is used again is protected. Protected runs may fill
// four fifths of the pool; beyond that, the least recently idle of them return to probation as its newest. Victims are
// the least recently idle runs on probation, and protected ones only when there are no others.
//
// Who uses a run uses everything before it, and children become idle before their parents, so both lists have children
// before their parents, and no parent is on probation while a child is protected.
//
// single-threaded
#pragma once

#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "quire/policy.h"

namespace quire {

class SlruPolicy final : public Policy {
 public:
  [[nodiscard]] Status reserve(const PolicyLimits& limits) override;
  void on_seal(RunId run, const PageChange& added) override;
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override;
  void on_use(RunId run, const Retention& retention) override;
  void on_pin(RunId run) override;
  void on_idle(RunId run) override;
  void on_trim(RunId run, const PageChange& lost) override;
  void on_remove(RunId run, const PageChange& lost) override;
  [[nodiscard]] std::optional<RunId> next_victim() override;
  [[nodiscard]] std::uint32_t idle_run_count() const override;

 private:
  struct State {
    std::uint32_t page_count;
    bool is_protected;
  };

  LazyArray<State> states_;
  IndexLists idle_;
  std::uint64_t protected_pages_ = 0;  // of pinned runs too
  std::uint64_t protected_pages_max_ = 0;
};

}  // namespace quire
