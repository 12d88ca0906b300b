// SPDX-License-Identifier: Apache-2.0
//
// FifoPolicy: the leaf whose last pages were sealed first goes first, however often it was used. A run that grows is
// as new as its growth: its end goes first, and what is before that is older than what follows it in the queue.
//
// single-threaded
#pragma once

#include "policy/run_queues.h"
#include "quire/policy.h"

namespace quire {

class FifoPolicy final : public Policy {
 public:
  [[nodiscard]] Status reserve(const PolicyLimits& limits) override;
  void on_seal(RunId run, const PageChange& added) override;
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override;
  void on_pin(RunId run) override;
  void on_idle(RunId run) override;
  void on_branch(RunId run) override;
  void on_leaf(RunId run) override;
  void on_remove(RunId run, const PageChange& lost) override;
  [[nodiscard]] std::optional<RunId> next_victim() override;
  [[nodiscard]] std::uint32_t idle_run_count() const override;

 private:
  RunQueues queue_;
};

}  // namespace quire
