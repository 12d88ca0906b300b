// SPDX-License-Identifier: Apache-2.0
#include "policy/arc.h"

#include <algorithm>

namespace quire {

Status ArcPolicy::reserve(const PolicyLimits& limits) {
  page_count_max_ = limits.page_count_max;
  QUIRE_TRY(states_.grow(limits.run_count_max));
  QUIRE_TRY(idle_.reserve(limits.run_count_max, 2));
  for (Ghosts& ghosts : ghosts_) QUIRE_TRY(ghosts.reserve(limits.page_count_max));
  return {};
}

void ArcPolicy::on_seal(RunId run, const PageChange& added) {
  for (const Ghosts& ghosts : ghosts_) ghosts.prefetch(added.fingerprints);
  bool is_back = false;  // its first page, that is: what follows is mostly the same
  for (std::size_t i = 0; i < added.fingerprints.size(); ++i) {
    const std::uint64_t once = ghosts_[kOnce].size();
    const std::uint64_t again = ghosts_[kAgain].size();
    bool was_ghost = true;
    if (ghosts_[kOnce].remove(added.fingerprints[i])) {
      once_pages_target_ = std::min(page_count_max_, once_pages_target_ + std::max<std::uint64_t>(1, again / once));
    } else if (ghosts_[kAgain].remove(added.fingerprints[i])) {
      once_pages_target_ -= std::min(once_pages_target_, std::max<std::uint64_t>(1, once / again));
    } else {
      was_ghost = false;
    }
    if (i == 0) is_back = was_ghost;
  }
  State& state = states_[run.value];
  if (state.page_count == 0) state.list = is_back ? kAgain : kOnce;
  state.page_count += added.page_count;
  pages_[state.list] += added.page_count;
  forget_excess_ghosts();
}

void ArcPolicy::on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) {
  states_[prefix.value] = {.page_count = prefix_pages, .list = states_[suffix.value].list};
  states_[suffix.value].page_count -= prefix_pages;
  if (idle_.contains(suffix.value)) idle_.insert_after(suffix.value, prefix.value);
}

void ArcPolicy::on_use(RunId run, const Retention& /*retention*/) {
  State& state = states_[run.value];
  pages_[state.list] -= state.page_count;
  state.list = kAgain;
  pages_[state.list] += state.page_count;
}

void ArcPolicy::on_pin(RunId run) {
  idle_.remove(run.value);
}

void ArcPolicy::on_idle(RunId run) {
  idle_.push_back(run.value, states_[run.value].list);
}

void ArcPolicy::on_trim(RunId run, const PageChange& lost) {
  State& state = states_[run.value];
  state.page_count -= lost.page_count;
  pages_[state.list] -= lost.page_count;
  ghosts_[state.list].add(lost.fingerprints);
  forget_excess_ghosts();
}

void ArcPolicy::on_remove(RunId run, const PageChange& lost) {
  on_trim(run, lost);
  if (idle_.contains(run.value)) idle_.remove(run.value);
  states_[run.value] = {};
}

// Pages needed once and their ghosts are no more than the pool has pages; all pages and ghosts no more than twice that.
void ArcPolicy::forget_excess_ghosts() {
  while (ghosts_[kOnce].size() > 0 && pages_[kOnce] + ghosts_[kOnce].size() > page_count_max_) {
    ghosts_[kOnce].remove_oldest();
  }
  while (ghosts_[kAgain].size() > 0 &&
         pages_[kOnce] + pages_[kAgain] + ghosts_[kOnce].size() + ghosts_[kAgain].size() > 2 * page_count_max_) {
    ghosts_[kAgain].remove_oldest();
  }
}

std::optional<RunId> ArcPolicy::next_victim() {
  const List first = pages_[kOnce] > 0 && pages_[kOnce] >= once_pages_target_ ? kOnce : kAgain;
  std::uint32_t run = idle_.front(first);
  if (run == IndexLists::kNone) run = idle_.front(first == kOnce ? kAgain : kOnce);
  if (run == IndexLists::kNone) return std::nullopt;
  idle_.prefetch(run);
  return RunId{run};
}

std::uint32_t ArcPolicy::idle_run_count() const {
  return idle_.size();
}

}  // namespace quire
