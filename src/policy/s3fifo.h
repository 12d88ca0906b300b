// SPDX-License-Identifier: Apache-2.0
//
// S3FifoPolicy: three queues, first in, first out. New runs enter the small one, which has a tenth of the pool. At its
// end, a run that was used twice goes to the main queue, any other is the victim, and its pages are remembered as
// ghosts: if they come back, they go to the main queue at once. At the end of the main queue, a run that was used
// since it last passed there goes round again.
//
// Evicted are leaves only. A run with children whose turn comes in the small queue goes on to the main one, because
// what is behind it depends on it; otherwise such runs would fill the small queue.
//
// single-threaded
#pragma once

#include "base/lazy_array.h"
#include "policy/ghosts.h"
#include "policy/run_queues.h"
#include "quire/policy.h"

namespace quire {

class S3FifoPolicy final : public Policy {
 public:
  [[nodiscard]] Status reserve(const PolicyLimits& limits) override;
  [[nodiscard]] bool wants_fingerprints() const override { return true; }
  void on_seal(RunId run, const PageChange& added) override;
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override;
  void on_use(RunId run, const Retention& retention) override;
  void on_pin(RunId run) override;
  void on_idle(RunId run) override;
  void on_branch(RunId run) override;
  void on_leaf(RunId run) override;
  void on_trim(RunId run, const PageChange& lost) override;
  void on_remove(RunId run, const PageChange& lost) override;
  [[nodiscard]] std::optional<RunId> next_victim() override;
  [[nodiscard]] std::uint32_t idle_run_count() const override;

 private:
  struct State {
    std::uint32_t page_count;
    std::uint8_t use_count;  // since it entered its queue, or last went round in it
  };

  RunQueues queues_;
  LazyArray<State> states_;
  Ghosts ghosts_;
  std::uint64_t small_pages_ = 0;
  std::uint64_t small_pages_max_ = 0;
};

}  // namespace quire
