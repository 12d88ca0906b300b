// SPDX-License-Identifier: Apache-2.0
#include "policy/lru.h"

namespace quire {

Status LruPolicy::reserve(const PolicyLimits& limits) {
  return idle_.reserve(limits.run_count_max);
}

void LruPolicy::on_split(RunId suffix, RunId prefix, std::uint32_t /*prefix_pages*/) {
  if (idle_.contains(suffix.value)) idle_.insert_after(suffix.value, prefix.value);
}

void LruPolicy::on_pin(RunId run) {
  idle_.remove(run.value);
}

void LruPolicy::on_idle(RunId run) {
  idle_.push_back(run.value);
}

void LruPolicy::on_remove(RunId run, const PageChange& /*lost*/) {
  if (idle_.contains(run.value)) idle_.remove(run.value);
}

std::optional<RunId> LruPolicy::next_victim() {
  const std::uint32_t front = idle_.front();
  if (front == IndexLists::kNone) return std::nullopt;
  idle_.prefetch(front);
  return RunId{front};
}

std::uint32_t LruPolicy::idle_run_count() const {
  return idle_.size();
}

}  // namespace quire
