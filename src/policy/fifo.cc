// SPDX-License-Identifier: Apache-2.0
#include "policy/fifo.h"

namespace quire {

Status FifoPolicy::reserve(const PolicyLimits& limits) {
  return queue_.reserve(limits.run_count_max);
}

void FifoPolicy::on_seal(RunId run, const PageChange& /*added*/) {
  if (queue_.contains(run)) {
    queue_.move(run);
  } else {
    queue_.add(run);
  }
}

void FifoPolicy::on_split(RunId suffix, RunId prefix, std::uint32_t /*prefix_pages*/) {
  queue_.split(suffix, prefix);
}

void FifoPolicy::on_pin(RunId run) {
  queue_.pin(run);
}

void FifoPolicy::on_idle(RunId run) {
  queue_.unpin(run);
}

void FifoPolicy::on_branch(RunId run) {
  queue_.set_has_children(run, true);
}

void FifoPolicy::on_leaf(RunId run) {
  queue_.set_has_children(run, false);
}

void FifoPolicy::on_remove(RunId run, const PageChange& /*lost*/) {
  queue_.remove(run);
}

std::optional<RunId> FifoPolicy::next_victim() {
  std::uint32_t run = queue_.front();
  for (; run != RunQueues::kNone && queue_.is_blocked(run); run = queue_.front()) queue_.pass_over(run);
  if (run == RunQueues::kNone) return std::nullopt;
  return RunId{run};
}

std::uint32_t FifoPolicy::idle_run_count() const {
  return queue_.idle_count();
}

}  // namespace quire
