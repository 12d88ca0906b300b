// SPDX-License-Identifier: Apache-2.0
//
// LruPolicy: the run that has been idle for longest goes first. Runs become idle children first, so of one path
// the tail is older than the head, and the front of the list is always a run without children.
//
// single-threaded
#pragma once

#include "base/index_list.h"
#include "quire/policy.h"

namespace quire {

class LruPolicy final : public Policy {
 public:
  [[nodiscard]] Status reserve(std::uint32_t run_count_max) override;
  void on_seal(RunId run, std::uint32_t pages_added) override;
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override;
  void on_use(RunId run) override;
  void on_pin(RunId run) override;
  void on_idle(RunId run) override;
  void on_trim(RunId run, std::uint32_t pages_left) override;
  void on_remove(RunId run) override;
  [[nodiscard]] std::optional<RunId> next_victim() override;
  [[nodiscard]] std::uint32_t idle_run_count() const override;

 private:
  IndexList idle_;  // least recently idle first
};

}  // namespace quire
