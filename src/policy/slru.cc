// SPDX-License-Identifier: Apache-2.0
#include "policy/slru.h"

namespace quire {

namespace {

constexpr std::uint32_t kProbation = 0;
constexpr std::uint32_t kProtected = 1;

}  // namespace

Status SlruPolicy::reserve(const PolicyLimits& limits) {
  protected_pages_max_ = std::uint64_t{limits.page_count_max} * 4 / 5;
  QUIRE_TRY(states_.grow(limits.run_count_max));
  return idle_.reserve(limits.run_count_max, 2);
}

void SlruPolicy::on_seal(RunId run, const PageChange& added) {
  State& state = states_[run.value];
  state.page_count += added.page_count;
  if (state.is_protected) protected_pages_ += added.page_count;
}

void SlruPolicy::on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) {
  states_[prefix.value] = {.page_count = prefix_pages, .is_protected = states_[suffix.value].is_protected};
  states_[suffix.value].page_count -= prefix_pages;
  if (idle_.contains(suffix.value)) idle_.insert_after(suffix.value, prefix.value);
}

void SlruPolicy::on_use(RunId run, const Retention& /*retention*/) {
  State& state = states_[run.value];
  if (!state.is_protected) protected_pages_ += state.page_count;
  state.is_protected = true;
}

void SlruPolicy::on_pin(RunId run) {
  idle_.remove(run.value);
}

void SlruPolicy::on_idle(RunId run) {
  idle_.push_back(run.value, states_[run.value].is_protected ? kProtected : kProbation);
  // Each run that goes back was promoted by a use of its own, so this costs no more than the uses did.
  while (protected_pages_ > protected_pages_max_ && idle_.front(kProtected) != IndexLists::kNone) {
    const std::uint32_t oldest = idle_.front(kProtected);
    states_[oldest].is_protected = false;
    protected_pages_ -= states_[oldest].page_count;
    idle_.remove(oldest);
    idle_.push_back(oldest, kProbation);
  }
}

void SlruPolicy::on_trim(RunId run, const PageChange& lost) {
  State& state = states_[run.value];
  state.page_count -= lost.page_count;
  if (state.is_protected) protected_pages_ -= lost.page_count;
}

void SlruPolicy::on_remove(RunId run, const PageChange& lost) {
  on_trim(run, lost);
  if (idle_.contains(run.value)) idle_.remove(run.value);
  states_[run.value] = {};
}

std::optional<RunId> SlruPolicy::next_victim() {
  for (const std::uint32_t list : {kProbation, kProtected}) {
    const std::uint32_t run = idle_.front(list);
    if (run == IndexLists::kNone) continue;
    idle_.prefetch(run);
    return RunId{run};
  }
  return std::nullopt;
}

std::uint32_t SlruPolicy::idle_run_count() const {
  return idle_.size();
}

}  // namespace quire
