// SPDX-License-Identifier: Apache-2.0
#include "policy/lfu.h"

namespace quire {

Status LfuPolicy::reserve(const PolicyLimits& limits) {
  QUIRE_TRY(counts_.grow(limits.run_count_max));
  return idle_.reserve(limits.run_count_max, SmallIndexSet::kCapacity);
}

void LfuPolicy::on_seal(RunId run, const PageChange& /*added*/) {
  if (counts_[run.value] == 0) counts_[run.value] = 1;
}

void LfuPolicy::on_split(RunId suffix, RunId prefix, std::uint32_t /*prefix_pages*/) {
  counts_[prefix.value] = counts_[suffix.value];
  if (idle_.contains(suffix.value)) idle_.insert_after(suffix.value, prefix.value);
}

void LfuPolicy::on_use(RunId run, const Retention& /*retention*/) {
  if (counts_[run.value] < UINT16_MAX) ++counts_[run.value];
}

void LfuPolicy::on_pin(RunId run) {
  take_out(run.value);
}

void LfuPolicy::on_idle(RunId run) {
  const std::uint32_t count = counts_[run.value];
  idle_.push_back(run.value, count);
  used_counts_.insert(count);
}

void LfuPolicy::on_remove(RunId run, const PageChange& /*lost*/) {
  if (idle_.contains(run.value)) take_out(run.value);
  counts_[run.value] = 0;
}

// The count is the one it was put in with: only pinned runs are used.
void LfuPolicy::take_out(std::uint32_t run) {
  idle_.remove(run);
  if (idle_.front(counts_[run]) == IndexLists::kNone) used_counts_.erase(counts_[run]);
}

std::optional<RunId> LfuPolicy::next_victim() {
  const std::optional<std::uint32_t> count = used_counts_.lowest();
  if (!count) return std::nullopt;
  const std::uint32_t run = idle_.front(*count);
  idle_.prefetch(run);
  return RunId{run};
}

std::uint32_t LfuPolicy::idle_run_count() const {
  return idle_.size();
}

}  // namespace quire
