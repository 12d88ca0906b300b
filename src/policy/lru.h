// SPDX-License-Identifier: Apache-2.0
//
// LruPolicy: the run that has been idle for longest goes first. Runs become idle children first, so of one path
// the tail is older than the head, and the front of the list is always a run without children.
//
// single-threaded
#pragma once

#include "base/index_lists.h"
#include "quire/policy.h"

namespace quire {

class LruPolicy final : public Policy {
 public:
  [[nodiscard]] Status reserve(const PolicyLimits& limits) override;
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override;
  void on_pin(RunId run) override;
  void on_idle(RunId run) override;
  void on_remove(RunId run, const PageChange& lost) override;
  [[nodiscard]] std::optional<RunId> next_victim() override;
  [[nodiscard]] std::uint32_t idle_run_count() const override;

 private:
  IndexLists idle_;  // least recently idle first
};

}  // namespace quire
