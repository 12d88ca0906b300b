// SPDX-License-Identifier: Apache-2.0
#include "policy/s3fifo.h"

#include <algorithm>

namespace quire {

namespace {

constexpr std::uint32_t kSmall = 0;
constexpr std::uint32_t kMain = 1;
constexpr std::uint8_t kUsesToStay = 2;
constexpr std::uint8_t kUsesMax = 3;

}  // namespace

Status S3FifoPolicy::reserve(const PolicyLimits& limits) {
  small_pages_max_ = std::max(1U, limits.page_count_max / 10);
  QUIRE_TRY(queues_.reserve(limits.run_count_max, 2));
  QUIRE_TRY(states_.grow(limits.run_count_max));
  return ghosts_.reserve(limits.page_count_max - static_cast<std::uint32_t>(small_pages_max_));
}

void S3FifoPolicy::on_seal(RunId run, const PageChange& added) {
  ghosts_.prefetch(added.fingerprints);
  bool is_back = false;  // its first page, that is: what follows is mostly the same
  for (std::size_t i = 0; i < added.fingerprints.size(); ++i) {
    const bool was_ghost = ghosts_.remove(added.fingerprints[i]);
    if (i == 0) is_back = was_ghost;
  }
  if (!queues_.contains(run)) queues_.add(run, is_back ? kMain : kSmall);
  states_[run.value].page_count += added.page_count;
  if (queues_.queue_of(run) == kSmall) small_pages_ += added.page_count;
}

void S3FifoPolicy::on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) {
  queues_.split(suffix, prefix);
  states_[prefix.value] = {.page_count = prefix_pages, .use_count = states_[suffix.value].use_count};
  states_[suffix.value].page_count -= prefix_pages;
}

void S3FifoPolicy::on_use(RunId run, const Retention& /*retention*/) {
  std::uint8_t& uses = states_[run.value].use_count;
  uses = std::min<std::uint8_t>(uses + 1, kUsesMax);
}

void S3FifoPolicy::on_pin(RunId run) {
  queues_.pin(run);
}

void S3FifoPolicy::on_idle(RunId run) {
  queues_.unpin(run);
}

void S3FifoPolicy::on_branch(RunId run) {
  queues_.set_has_children(run, true);
}

void S3FifoPolicy::on_leaf(RunId run) {
  queues_.set_has_children(run, false);
}

void S3FifoPolicy::on_trim(RunId run, const PageChange& lost) {
  states_[run.value].page_count -= lost.page_count;
  if (queues_.queue_of(run) != kSmall) return;
  small_pages_ -= lost.page_count;
  ghosts_.add(lost.fingerprints);
}

void S3FifoPolicy::on_remove(RunId run, const PageChange& lost) {
  on_trim(run, lost);
  queues_.remove(run);
  states_[run.value] = {};
}

// Every turn of the loop moves a run, passes one over or ends it. Each move but the one to the main queue was paid for
// by a use.
std::optional<RunId> S3FifoPolicy::next_victim() {
  for (;;) {
    std::uint32_t run = queues_.front(kSmall);
    const bool is_small =
        run != RunQueues::kNone && (small_pages_ >= small_pages_max_ || queues_.front(kMain) == RunQueues::kNone);
    if (!is_small) run = queues_.front(kMain);
    if (run == RunQueues::kNone) return std::nullopt;

    State& state = states_[run];
    if (is_small && (state.use_count >= kUsesToStay || queues_.has_children(run))) {
      small_pages_ -= state.page_count;
      state.use_count = 0;
      queues_.move(RunId{run}, kMain);
    } else if (queues_.is_blocked(run)) {
      queues_.pass_over(run);
    } else if (!is_small && state.use_count > 0) {
      --state.use_count;
      queues_.move(RunId{run}, kMain);
    } else {
      return RunId{run};
    }
  }
}

std::uint32_t S3FifoPolicy::idle_run_count() const {
  return queues_.idle_count();
}

}  // namespace quire
