// SPDX-License-Identifier: Apache-2.0
#include "policy/priority.h"

#include <algorithm>
#include <limits>

namespace quire {

namespace {

constexpr std::uint32_t kExpired = 0;
constexpr std::uint32_t kListCount = 1 + 256;
constexpr TimeNs kNever = std::numeric_limits<TimeNs>::max();

}  // namespace

Status PriorityPolicy::reserve(const PolicyLimits& limits) {
  QUIRE_TRY(states_.grow(limits.run_count_max));
  QUIRE_TRY(idle_.reserve(limits.run_count_max, kListCount));
  return expiries_.reserve(limits.run_count_max);
}

void PriorityPolicy::on_seal(RunId run, const PageChange& added) {
  want(run.value, added.retention);
}

void PriorityPolicy::on_use(RunId run, const Retention& retention) {
  want(run.value, retention);
}

bool PriorityPolicy::on_retain(RunId run, const Retention& retention) {
  return want(run.value, retention);
}

// Whether it changed anything.
bool PriorityPolicy::want(std::uint32_t run, const Retention& retention) {
  State& state = states_[run];
  const State before = state;
  const bool counts = state.is_known && state.expires_at > now_;
  state.priority = counts ? std::max(state.priority, retention.priority) : retention.priority;
  state.expires_at = counts ? std::max(state.expires_at, retention.expires_at) : retention.expires_at;
  state.is_known = true;
  return state.priority != before.priority || state.expires_at != before.expires_at;
}

void PriorityPolicy::on_split(RunId suffix, RunId prefix, std::uint32_t /*prefix_pages*/) {
  states_[prefix.value] = states_[suffix.value];
  if (!idle_.contains(suffix.value)) return;
  idle_.insert_after(suffix.value, prefix.value);
  // The same number: when both expire, the heap may have either on top, and the tree takes the leaf first.
  if (expiries_.contains(suffix.value)) {
    expiries_.insert(prefix.value, {states_[prefix.value].expires_at, states_[prefix.value].idle_number});
  }
}

void PriorityPolicy::on_pin(RunId run) {
  take_out(run.value);
}

void PriorityPolicy::on_idle(RunId run) {
  State& state = states_[run.value];
  state.idle_number = ++idle_total_;
  const std::uint32_t list = list_of(run.value);
  idle_.push_back(run.value, list);
  used_lists_.insert(list);
  if (list != kExpired && state.expires_at != kNever) expiries_.insert(run.value, {state.expires_at, idle_total_});
}

void PriorityPolicy::on_remove(RunId run, const PageChange& /*lost*/) {
  if (idle_.contains(run.value)) take_out(run.value);
  states_[run.value] = {};
}

void PriorityPolicy::on_advance(TimeNs now) {
  // One by one, so that a run is found in the list it was put into.
  while (expiries_.size() > 0 && expiries_.top_key().at <= now) {
    const std::uint32_t run = expiries_.top();
    take_out(run);
    idle_.push_back(run, kExpired);
    used_lists_.insert(kExpired);
  }
  now_ = now;
}

std::uint32_t PriorityPolicy::list_of(std::uint32_t run) const {
  if (states_[run].expires_at <= now_) return kExpired;
  return static_cast<std::uint32_t>(1 + (states_[run].priority - std::numeric_limits<std::int8_t>::min()));
}

void PriorityPolicy::take_out(std::uint32_t run) {
  idle_.remove(run);
  if (expiries_.contains(run)) expiries_.remove(run);
  const std::uint32_t list = list_of(run);
  if (idle_.front(list) == IndexLists::kNone) used_lists_.erase(list);
}

std::optional<RunId> PriorityPolicy::next_victim() {
  const std::optional<std::uint32_t> list = used_lists_.lowest();
  if (!list) return std::nullopt;
  const std::uint32_t run = idle_.front(*list);
  idle_.prefetch(run);
  return RunId{run};
}

std::uint32_t PriorityPolicy::idle_run_count() const {
  return idle_.size();
}

}  // namespace quire
