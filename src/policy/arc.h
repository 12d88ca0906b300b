// SPDX-License-Identifier: Apache-2.0
//
// ArcPolicy: adaptive replacement. Runs that were needed once and runs that were needed again are two lists, each least
// recently idle first; pages that were evicted from either are remembered as ghosts. Each ghost that comes back says
// that its list was too short, and shifts the target that divides the pool between the two.
//
// Children become idle before their parents, so each list has children before their parents; but a child that was
// needed once may have a parent that was needed again. When that one's turn comes, the tree takes the child first.
//
// single-threaded
#pragma once

#include <array>

#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "policy/ghosts.h"
#include "quire/policy.h"

namespace quire {

class ArcPolicy final : public Policy {
 public:
  [[nodiscard]] Status reserve(const PolicyLimits& limits) override;
  [[nodiscard]] bool wants_fingerprints() const override { return true; }
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
  enum List : std::uint8_t { kOnce, kAgain };

  struct State {
    std::uint32_t page_count;
    List list;
  };

  void forget_excess_ghosts();

  LazyArray<State> states_;
  IndexLists idle_;
  std::array<std::uint64_t, 2> pages_{};  // of both lists' runs, pinned ones too
  std::array<Ghosts, 2> ghosts_;
  std::uint64_t page_count_max_ = 0;
  std::uint64_t once_pages_target_ = 0;
};

}  // namespace quire
