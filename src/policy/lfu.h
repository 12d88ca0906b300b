// SPDX-License-Identifier: Apache-2.0
//
// LfuPolicy: the run that was used least often since it was cached goes first, and of equals the one that has been idle
// for longest. Who uses a run uses everything before it, so a parent counts at least as much as its children and
// becomes idle after them: the victim has no children. Counts end at 65,535, where recency alone decides.
//
// single-threaded
#pragma once

#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "base/small_index_set.h"
#include "quire/policy.h"

namespace quire {

class LfuPolicy final : public Policy {
 public:
  [[nodiscard]] Status reserve(const PolicyLimits& limits) override;
  void on_seal(RunId run, const PageChange& added) override;
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override;
  void on_use(RunId run, const Retention& retention) override;
  void on_pin(RunId run) override;
  void on_idle(RunId run) override;
  void on_remove(RunId run, const PageChange& lost) override;
  [[nodiscard]] std::optional<RunId> next_victim() override;
  [[nodiscard]] std::uint32_t idle_run_count() const override;

 private:
  void take_out(std::uint32_t run);

  LazyArray<std::uint16_t> counts_;  // of uses; having been computed is the first
  IndexLists idle_;                  // a list for each count, least recently idle first
  SmallIndexSet used_counts_;        // whose lists are not empty
};

}  // namespace quire
