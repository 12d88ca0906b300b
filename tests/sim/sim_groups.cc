// SPDX-License-Identifier: Apache-2.0
//
// What the simulation has besides where a layout has several groups: an engine that reads in every group what a model
// would, before it writes, and what requests must find, by trying every position on everything that is held.
#include <algorithm>
#include <array>
#include <string>

#include "base/hash.h"
#include "simulation.h"
#include "tests/cache/group_pools.h"

namespace quire::testing {

void Simulation::open_groups() {
  const auto pools = transfer_pools(cache_->config().layout);
  pool_of_group_.resize(setup_.groups.size());
  for (std::size_t pool = 0; pool < pools.size(); ++pool) {
    for (const std::uint32_t group : pools[pool]) pool_of_group_[group] = static_cast<std::uint16_t>(pool);
  }
  for (const CacheGroup& group : setup_.groups) {
    has_anchored_ = has_anchored_ || is_anchored(group);
    has_state_ = has_state_ || has_slot(group);
    has_replay_ = has_replay_ || group.replay.tokens > 0;
    lookahead_tokens_ = std::max(lookahead_tokens_, group.lookahead_tokens);
  }
}

void Simulation::count_groups() {
  if (cache_ == nullptr) return;
  for (std::uint32_t i = 0; i < pool_of_group_.size(); ++i) {
    if (pool_of_group_[i] == 0) continue;
    const GroupStats stats = cache_->group_stats(i).value();
    counts_.add(SimEvent::SnapshotsRestored, stats.restored_snapshot_total);
    counts_.add(SimEvent::AnchoredEvicted, stats.evicted_page_total);
    counts_.add(SimEvent::AnchoredOnDiskStored, stats.disk_stored_page_total);
    counts_.add(SimEvent::AnchoredOnDiskLoaded, stats.disk_loaded_page_total);
  }
}

void Simulation::check_group_accounts(const Stats& stats) {
  const auto wrong = [](const std::string& what) { throw SimFailure(what); };
  const auto has_saved = [](const auto& live) { return live->save_state != SaveState::None; };
  const bool has_saves = std::ranges::any_of(lives_, has_saved);  // host pages of their own, of any group
  for (std::uint32_t i = 0; i < setup_.groups.size(); ++i) {
    const GroupStats group = cache_->group_stats(i).value();
    const std::string of_group = " of group '" + setup_.groups[i].name + "'";
    const std::uint32_t device =
        group.free_pages + group.open_pages + group.sealed_pages + group.private_pages + group.fenced_pages;
    if (device != group.page_count) wrong("device pages" + of_group + ": " + std::to_string(device) + " in all");
    const std::uint32_t host = group.host_free_pages + group.host_sealed_pages;
    if (host > group.host_page_count) wrong("host pages" + of_group + ": " + std::to_string(host) + " in all");
    if (stats.transfers_in_flight == 0 && !has_saves && host != group.host_page_count) {
      wrong("no transfer is in flight, but host pages" + of_group + " are " + std::to_string(host) + " in all");
    }
  }
  // Some begin anew, and count again: for want of a page, or where a step that did not happen may have spoilt a state.
  for (std::size_t i = 0; i < kMissReasonCount; ++i) {
    if (stats.miss_requests[i] < miss_counts_[i]) wrong("miss_requests are not those that were told");
  }
  if (stats.prompt_tokens < prompt_tokens_) wrong("prompt_tokens are not those of the sequences admitted");
  for (const auto& live : lives_) {
    const SequenceView view = cache_->view(live->handle).value();
    if (view.token_count != live->tokens.size()) wrong("a sequence has another number of tokens");
    if (view.is_loading != live->is_loading) wrong("a sequence is loading, or is not");
    if (view.is_waiting == live->is_admitted) wrong("a sequence waits, or does not");
  }
}

// Hits and misses

// Of one that loads: with all that is on the host, and perhaps a part of a page on the device.
void Simulation::check_admission(const Live& live, const Admission& admission, const HeldGroups& held) {
  if (live.options.tier_max == Tier::Device) throw SimFailure("a sequence loads that asked for the device alone");
  if (!asks_for_all(live) || live.may_look) return;
  const HeldGroups::Found least = held.find(live.tokens, UINT32_MAX, Tier::Host);
  const HeldGroups::Found most = held.find(live.tokens, partial_min(), Tier::Host);
  const std::uint32_t found = live.matched + admission.loading_tokens;
  counts_.add(SimEvent::HostHitChecked);
  if (found < least.start || found > most.start) {
    throw SimFailure("admit would find " + std::to_string(found) + " tokens with those on the host; there are " +
                     std::to_string(least.start) + " to " + std::to_string(most.start));
  }
}

void Simulation::check_start(const Live& live, const HeldGroups& held) {
  const SequenceView view = cache_->view(live.handle).value();
  if (view.replay_tokens > 0) counts_.add(SimEvent::Replayed);
  if (!asks_for_all(live)) return;
  check_hit(live, held, view);
  check_held_miss(live, held, view);
}

// Which part of a page is found is best effort; whole pages all count.
void Simulation::check_hit(const Live& live, const HeldGroups& held, const SequenceView& view) {
  counts_.add(SimEvent::HitChecked);
  const HeldGroups::Found least = held.find(live.tokens, UINT32_MAX);
  const HeldGroups::Found most = held.find(live.tokens, partial_min());
  const HeldGroups::Found found{.start = view.computed_tokens, .end = view.computed_tokens + view.replay_tokens};
  const bool is_partial = found.end % setup_.page_tokens != 0;
  const bool is_least = found.start == least.start && found.end >= least.end;
  const bool is_more = found.start > least.start && found.start <= most.start && is_partial;
  if ((is_least || is_more) && (least != most || found == most)) return;
  throw SimFailure("sequence " + std::to_string(live.number) + " finds " + std::to_string(found.start) + " of " +
                   std::to_string(found.end) + " tokens; there are " + std::to_string(least.start) + " of " +
                   std::to_string(least.end) + ", or " + std::to_string(most.start) + " of " +
                   std::to_string(most.end) + ", in " + std::to_string(live.tokens.size()));
}

// A group is the reason where the history goes further, and some position of it would do but for that group.
void Simulation::check_held_miss(const Live& live, const HeldGroups& held, const SequenceView& view) {
  const std::uint32_t page_tokens = setup_.page_tokens;
  const std::uint32_t boundary = std::max(cache_->config().layout.hit_multiple_tokens(), 1U);
  const auto length = static_cast<std::uint32_t>(live.tokens.size());
  const std::uint32_t found = view.computed_tokens;
  const std::uint32_t history = held.history_tokens(live.tokens);
  const auto is_position = [&](std::uint32_t at) { return at % boundary == 0 && !(at == length && has_state_); };
  if (view.miss.reason == MissReason::NotHeld) {
    if (view.miss.group >= setup_.groups.size() || pool_of_group_[view.miss.group] == 0) {
      const bool has_slot_only = view.miss.group < setup_.groups.size() && has_slot(setup_.groups[view.miss.group]);
      if (!has_slot_only) throw SimFailure("a group that keeps everything is said to lack something");
    }
    // With a replay what is held may be of no use; and what a load brought may have been missing until then.
    bool is_lacking = has_replay_ || live.has_waited;
    const std::uint32_t on_host = held.history_tokens(live.tokens, Tier::Host);
    // The host's pages are tried apart from a part of one on the device, and may lead to less than that.
    const bool is_apart = on_host > history && found % page_tokens != 0;
    for (std::uint32_t at = is_apart ? 1 : found + 1; at < on_host + page_tokens; ++at) {
      is_lacking = is_lacking || (is_position(at) && !held.holds(view.miss.group, live.tokens, at, Tier::Host)) ||
                   (is_position(at) && !held.holds(view.miss.group, live.tokens, at, Tier::Device));
    }
    if (!is_lacking) throw SimFailure("group '" + setup_.groups[view.miss.group].name + "' is said to lack something");
    return;
  }
  if (has_replay_) return;
  // What came from below, or did not, is the first reason of one that has waited for it, or could have.
  const bool is_of_load = view.miss.reason == MissReason::LoadFailed || view.miss.reason == MissReason::LoadCancelled ||
                          view.miss.reason == MissReason::LoadTimedOut || view.miss.reason == MissReason::NotAsked ||
                          view.miss.reason == MissReason::RecomputeCheaper;
  if (is_of_load && (live.has_waited || held.find(live.tokens, partial_min(), Tier::Host).start > found)) return;
  // Nobody has tried to load anything: then there is something to load, or it was bad when others did.
  const bool has_faults = setup_.io_chance + setup_.flip_chance + setup_.lost_write_chance + setup_.misdirected_chance +
                              setup_.partial_chance + setup_.honour_chance >
                          0;
  if (view.miss.reason == MissReason::LoadFailed && !live.has_waited && !has_faults && !files_ && boundary == 1 &&
      has_anchored_ && found + 1 < length && held.find(live.tokens, partial_min(), Tier::Host).start <= found) {
    throw SimFailure("a load is said to have failed, and there is nothing to load");
  }
  for (std::uint32_t at = found + 1; at <= history; ++at) {
    const std::uint32_t rest = at % page_tokens;
    if (!is_position(at) || (rest != 0 && rest < partial_min())) continue;
    throw SimFailure("sequence " + std::to_string(live.number) + " finds " + std::to_string(found) + " of " +
                     std::to_string(history) +
                     " tokens because of a group, and it is said: " + std::string(to_string(view.miss.reason)));
  }
  const std::uint32_t anywhere = held.history_tokens(live.tokens, Tier::Host);
  // What came from disk to the host may have made room for others at once.
  const bool may_be_gone = files_ && live.has_waited;
  if (view.miss.reason == MissReason::None && anywhere / page_tokens < (length - lookahead_tokens_) / page_tokens &&
      !may_be_gone) {
    throw SimFailure("pages were not found, and there is no reason");
  }
}

void Simulation::check_lookup(KeySpaceId space, std::span<const TokenId> tokens, const Lookup& found) {
  const HeldGroups held(*cache_, space);
  const std::uint32_t start = found.matched_tokens - found.replay_tokens;
  for (const Tier tier : {Tier::Device, Tier::Host}) {
    // Where all groups keep everything, pages on the host follow those on the device, whatever was found in part.
    const std::uint32_t in_part = has_anchored_ ? 0 : found.partial_tokens;
    const std::uint32_t said =
        tier == Tier::Host && found.host_tokens > 0 ? start - in_part + found.host_tokens : start;
    const HeldGroups::Found least = held.find(tokens, UINT32_MAX, tier);
    const HeldGroups::Found most = held.find(tokens, partial_min(), tier);
    if (said >= least.start && said <= std::max(most.start, start)) continue;
    throw SimFailure("lookup finds " + std::to_string(said) + " tokens; there are " + std::to_string(least.start) +
                     " to " + std::to_string(most.start) + ", down to the " + std::string(to_string(tier)));
  }
}

// Steps

// No transfer may use a page, of any group, that the step writes.
void Simulation::expect_unused(const AttentionPlan& plan) const {
  for (std::uint32_t g = 0; g < setup_.groups.size(); ++g) {
    if (has_slot(setup_.groups[g])) continue;
    const std::uint32_t entries = cache_->geometry(g).page().entry_count();
    for (const std::int64_t slot : plan.groups[g].append_slots) {
      if (slot == kNoSlot) continue;
      const PageId page{static_cast<std::uint32_t>(slot / entries)};
      // An entry of several tokens is written with the last of them. Whoever has fewer tokens has no such entry yet.
      const std::uint32_t tokens_per_entry = std::max(1U, setup_.groups[g].tokens_per_entry);
      const auto entry = static_cast<std::uint32_t>(slot % entries);
      const std::uint32_t last_token = ((entry + 1) * tokens_per_entry) - 1;
      mover_->expect_unused(page, last_token, "a step", pool_of_group_[g]);
    }
  }
}

void Simulation::start_groups(const Flight& flight) {
  const AttentionPlan& plan = flight.step.plan;
  for (std::uint32_t g = 0; g < setup_.groups.size(); ++g) {
    for (const PageCopy& copy : plan.groups[g].copies) {
      mover_->expect_unused(copy.target, 0, "a copy", pool_of_group_[g]);
    }
  }
  for (const auto& states : {plan.state_copies, plan.state_saves}) {
    for (const StateCopy& copy : states) {
      if (copy.kind != StateCopyKind::Save) continue;
      mover_->expect_unused(PageId{static_cast<std::uint32_t>(copy.target)}, 0, "a snapshot",
                            pool_of_group_[static_cast<std::size_t>(copy.group)]);
    }
  }
  if (const std::string problem = engine_->start(flight.step); !problem.empty()) throw SimFailure(problem);
  called();
  counts_.add(SimEvent::Ran);
}

void Simulation::run_groups(Flight& flight) {
  const AttentionPlan& plan = flight.step.plan;
  expect_unused(plan);
  for (std::size_t place = 0; place < plan.entries.size(); ++place) {
    const AttentionPlanEntry& planned = plan.entries[place];
    FlightEntry& entry = flight.entries[planned.entry_index];
    if (entry.is_void) {
      engine_->spoil(plan, place);
      continue;
    }
    const PrefixNumbers numbers(mix64(entry.salt), entry.values);
    const std::string problem = engine_->run(plan, place, numbers, entry.view);
    if (!problem.empty()) {
      entry.wrong = "wrong bytes in the context of a step: sequence " + std::to_string(entry.number) + ", " +
                    std::to_string(planned.token_count) + " tokens at " + std::to_string(planned.position) + ": " +
                    problem;
      if (!entry.is_ahead) throw SimFailure(entry.wrong);
      engine_->spoil(plan, place);
    }
    if (entry.is_ahead) continue;
    for (std::uint32_t i = 0; i < planned.token_count; ++i) computed_.insert(entry.values[planned.position + i]);
  }
  if (const Status status = cache_->apply_saves(flight.step); !status) {
    throw SimFailure("apply_saves: " + status.error().message);
  }
  called();
}

// Rows that look ahead, as far as the step's own results tell what follows them.
void Simulation::complete_rows(const Flight& flight, std::span<const StepResult> results) {
  if (lookahead_tokens_ == 0) return;
  const AttentionPlan& plan = flight.step.plan;
  for (std::size_t place = 0; place < plan.entries.size(); ++place) {
    const AttentionPlanEntry& planned = plan.entries[place];
    const FlightEntry& entry = flight.entries[planned.entry_index];
    const StepResult& result = results[planned.entry_index];
    const Live* const live = find(entry.number);
    if (entry.is_void || live == nullptr || result.discard) continue;
    std::vector<std::uint64_t> values = live->values;
    values.resize(std::min(values.size(), live->tokens.size()));
    std::uint64_t value = values.empty() ? mix64(live->salt) : values.back();
    for (const TokenId token : result.tokens) values.push_back(value = next_value(value, token, {}, 0));
    engine_->complete(plan, place, PrefixNumbers(mix64(live->salt), values));
  }
}

void Simulation::append_one(Live& live) {
  const TokenId next = draw_token();
  if (const Status status = cache_->append(live.handle, {.tokens = {&next, 1}}); !status) {
    throw SimFailure("append of one token: " + status.error().message);
  }
  called();
  live.tokens.push_back(next);
  extend_values(live);
}

}  // namespace quire::testing
