// SPDX-License-Identifier: Apache-2.0
#include "policy/lru.h"

namespace quire {

Status LruPolicy::reserve(std::uint32_t run_count_max) {
  return idle_.reserve(run_count_max);
}

void LruPolicy::on_seal(RunId /*run*/, std::uint32_t /*pages_added*/) {}

void LruPolicy::on_split(RunId suffix, RunId prefix, std::uint32_t /*prefix_pages*/) {
  if (idle_.contains(suffix.value)) idle_.insert_after(suffix.value, prefix.value);
}

void LruPolicy::on_use(RunId /*run*/) {}  // a used run is pinned: it becomes the newest when it is idle again

void LruPolicy::on_pin(RunId run) {
  idle_.remove(run.value);
}

void LruPolicy::on_idle(RunId run) {
  idle_.push_back(run.value);
}

void LruPolicy::on_trim(RunId /*run*/, std::uint32_t /*pages_left*/) {}

void LruPolicy::on_remove(RunId run) {
  if (idle_.contains(run.value)) idle_.remove(run.value);
}

std::optional<RunId> LruPolicy::next_victim() {
  if (idle_.size() == 0) return std::nullopt;
  return RunId{idle_.front()};
}

std::uint32_t LruPolicy::idle_run_count() const {
  return idle_.size();
}

}  // namespace quire
