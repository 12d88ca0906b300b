// SPDX-License-Identifier: Apache-2.0
#include "policy/run_queues.h"

#include "base/check.h"

namespace quire {

namespace {

std::uint32_t freed_list(std::uint32_t queue) {
  return 2 * queue;
}
std::uint32_t waiting_list(std::uint32_t queue) {
  return (2 * queue) + 1;
}

}  // namespace

Status RunQueues::reserve(std::uint32_t run_count_max, std::uint32_t queue_count) {
  QUIRE_TRY(states_.grow(run_count_max));
  return lists_.reserve(run_count_max, 2 * queue_count);
}

void RunQueues::add(RunId run, std::uint32_t queue) {
  QUIRE_CHECK(!contains(run), "a run appears twice");
  states_[run.value] = {.is_known = true, .is_pinned = true, .has_children = false, .queue = 0};
  move(run, queue);
}

void RunQueues::move(RunId run, std::uint32_t queue) {
  if (lists_.contains(run.value)) lists_.remove(run.value);
  states_[run.value].queue = static_cast<std::uint8_t>(queue);
  lists_.push_back(run.value, waiting_list(queue));
}

void RunQueues::split(RunId suffix, RunId prefix) {
  states_[prefix.value] = states_[suffix.value];
  states_[prefix.value].has_children = true;
  if (lists_.contains(suffix.value)) lists_.insert_after(suffix.value, prefix.value);
  if (!states_[prefix.value].is_pinned) ++idle_count_;
}

void RunQueues::remove(RunId run) {
  if (!states_[run.value].is_pinned) --idle_count_;
  if (lists_.contains(run.value)) lists_.remove(run.value);
  states_[run.value] = {};
}

void RunQueues::pin(RunId run) {
  states_[run.value].is_pinned = true;
  --idle_count_;
}

void RunQueues::unpin(RunId run) {
  states_[run.value].is_pinned = false;
  ++idle_count_;
  go_first_if_passed_over(run.value);
}

void RunQueues::set_has_children(RunId run, bool has_children) {
  states_[run.value].has_children = has_children;
  go_first_if_passed_over(run.value);
}

void RunQueues::go_first_if_passed_over(std::uint32_t run) {
  if (!is_blocked(run) && !lists_.contains(run)) lists_.push_back(run, freed_list(states_[run].queue));
}

std::uint32_t RunQueues::front(std::uint32_t queue) const {
  const std::uint32_t freed = lists_.front(freed_list(queue));
  return freed != kNone ? freed : lists_.front(waiting_list(queue));
}

void RunQueues::pass_over(std::uint32_t run) {
  QUIRE_DCHECK(is_blocked(run), "passing over a run that is free would lose it");
  lists_.remove(run);
}

}  // namespace quire
