// SPDX-License-Identifier: Apache-2.0
//
// What the simulation does to sequences that run or wait, and to the cache around them.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/hash.h"
#include "simulation.h"

namespace quire::testing {

void Simulation::engine_operation() {
  struct Weighted {
    std::uint32_t weight;
    void (Simulation::*run)();
  };
  const std::array<Weighted, 26> operations = {
      {{14, &Simulation::begin},
       {20, &Simulation::admit},
       {30, &Simulation::plan},
       {setup_.run_chance, &Simulation::run},
       {setup_.finish_chance, &Simulation::finish},
       {14, &Simulation::end},
       {6, &Simulation::append},
       {setup_.algebra_chance / 8, &Simulation::fork},
       {setup_.algebra_chance / 8, &Simulation::rewind},
       {setup_.preempt_chance / 8, &Simulation::preempt},
       {6, &Simulation::commit_tree},
       {setup_.abort_chance / 4, &Simulation::abort},
       {setup_.keep_chance / 8, &Simulation::keep},
       {setup_.keep_chance / 10, &Simulation::unkeep},
       {setup_.drop_chance, &Simulation::drop_space},
       {1, &Simulation::reclaim},
       {2, &Simulation::stop_loading},
       {2, &Simulation::lookup},
       {setup_.window_chance, &Simulation::set_window},
       {setup_.resize_chance, &Simulation::resize},
       {setup_.flush_chance, &Simulation::flush},
       {setup_.direct_chance, &Simulation::call_direct},
       {setup_.serve_chance, &Simulation::serve},
       {setup_.race_chance, &Simulation::race},
       {is_paused_ ? 10 : setup_.pause_chance, &Simulation::pause},
       {is_asleep_ || falls_asleep_ ? 20 : setup_.sleep_chance, &Simulation::sleep}}};
  std::uint32_t total = 0;
  for (const Weighted& each : operations) total += each.weight;
  std::uint32_t drawn = random_.below(total);
  for (const Weighted& each : operations) {
    if (drawn < each.weight) {
      (this->*each.run)();
      return;
    }
    drawn -= each.weight;
  }
}

Simulation::Live* Simulation::find(std::uint64_t number) {
  for (const auto& live : lives_) {
    if (live->number == number) return live.get();
  }
  return nullptr;
}

// Steps of its that did not happen may be in flight all the same, and groups with a state wait for their end.
bool Simulation::is_quiet(const Live& live) const {
  if (!live.is_admitted || live.is_loading || live.steps_in_flight > 0 || !live.tree.empty()) return false;
  return !setup_.has_groups() || cache_->view(live.handle).value().steps_in_flight == 0;
}

Simulation::Live* Simulation::draw_quiet() {
  std::array<Live*, 16> quiet{};
  std::size_t count = 0;
  for (const auto& live : lives_) {
    if (is_quiet(*live)) quiet[count++] = live.get();
  }
  return count == 0 ? nullptr : quiet[below(count)];
}

void Simulation::remove(const Live& live) {
  mover_->forget_owner(live.number);
  std::erase_if(lives_, [&](const auto& each) { return each.get() == &live; });
}

// What plan_step may have changed of a sequence that was in no step: a copy that was given up.
void Simulation::refresh(Live& live) {
  if (!live.is_admitted || live.is_loading || live.steps_in_flight > 0) return;
  const SequenceView view = cache_->view(live.handle).value();
  if (view.token_count != live.tokens.size()) throw SimFailure("a sequence has another number of tokens");
  const std::uint32_t missing = view.token_count - std::min(view.token_count, view.computed_tokens);
  if (missing > 0 && view.pending_tokens != missing && live.tree.empty()) {
    throw SimFailure("a sequence has " + std::to_string(view.pending_tokens) + " pending tokens, not " +
                     std::to_string(missing));
  }
  if (setup_.has_groups()) {
    // Where a step that did not happen may have spoilt a state, a sequence is found anew.
    live.computed = view.computed_tokens;
    live.planned_end = view.computed_tokens;
  } else if (view.computed_tokens != live.computed) {
    if (!live.may_lose_copy || view.computed_tokens > live.computed) {
      throw SimFailure("a sequence has computed " + std::to_string(view.computed_tokens) + " tokens, not " +
                       std::to_string(live.computed));
    }
    counts_.add(SimEvent::CopyGivenUp);
    live.computed = view.computed_tokens;
    live.planned_end = live.computed;
  }
}

// Changes

void Simulation::append() {
  Live* const live = draw_live();
  if (live == nullptr || live->steps_in_flight > 0 || !live->tree.empty()) return;
  if (setup_.has_groups() && cache_->view(live->handle).value().steps_in_flight > 0) return;
  if (live->ahead == Ahead::Lost) return;  // until its steps have ended
  const std::size_t room = setup_.context_tokens_max - live->tokens.size();
  if (room == 0) return;
  const std::size_t first = live->tokens.size();
  const std::size_t count = 1 + below(std::min<std::size_t>(room, 2 * std::size_t{setup_.page_tokens}));
  std::vector<TokenId> tokens = live->tokens;
  for (std::size_t i = 0; i < count; ++i) tokens.push_back(draw_token());
  std::vector<ExtraKey> keys;
  if (live->extra_keys.size() + count <= 512) add_extra_keys(tokens, first, keys);
  const Status status = cache_->append(live->handle, {.tokens = std::span(tokens).subspan(first), .extra_keys = keys});
  if (!status) throw SimFailure("append: " + status.error().message);
  counts_.add(live->save_state != SaveState::None ? SimEvent::AppendedSaved
              : live->is_loading                  ? SimEvent::AppendedLoading
                                                  : SimEvent::Appended);
  // What was added may be on the host too, and nobody waits for that.
  if (live->is_loading) live->load_troubles.insert(MissReason::LoadFailed);
  live->tokens = std::move(tokens);
  live->extra_keys.insert(live->extra_keys.end(), keys.begin(), keys.end());
  extend_values(*live);
  called();
}

void Simulation::fork() {
  Live* const source = draw_live();
  if (source == nullptr || !source->is_admitted || source->is_loading) return;
  const bool is_busy = source->steps_in_flight > 0 || !source->tree.empty();
  const std::uint32_t limit = is_busy ? source->computed : static_cast<std::uint32_t>(source->tokens.size());
  std::uint32_t at = random_.below(limit + 1);
  if (setup_.has_groups()) {
    if (chance(50)) at = std::min(limit, source->computed);
    if (at < lookahead_tokens_ || at == setup_.context_tokens_max) return;
  }
  Result<Sequence> forked = cache_->fork(source->handle, at);
  called();
  if (!forked) {
    const bool may_be_gone = source->window.visible_tokens > 0 && at < source->computed;
    if (may_be_gone && forked.error().code == ErrorCode::InvalidArgument) {
      counts_.add(SimEvent::WindowRefused);
    } else if (setup_.has_groups() && forked.error().code == ErrorCode::InvalidArgument) {
      counts_.add(SimEvent::RefusedByGroup);
    } else if (forked.error().code != ErrorCode::Unavailable) {
      throw SimFailure("fork: " + forked.error().message);
    }
    return;
  }
  counts_.add(SimEvent::Forked);
  auto live = std::make_unique<Live>();
  live->number = next_number_++;
  live->handle = std::move(*forked);
  live->space = source->space;
  live->is_retired = source->is_retired;
  live->salt = source->salt;
  live->options = source->options;
  live->options.prefetch = Prefetch::Off;
  live->options.load_timeout_ns = 0;
  live->options.tier_max = Tier::Disk;
  live->options.plan_while_loading = false;
  live->is_admitted = true;
  live->tokens.assign(source->tokens.begin(), source->tokens.begin() + at);
  live->values.assign(source->values.begin(), source->values.begin() + at);
  for (ExtraKey key : source->extra_keys) {
    if (key.begin >= at) break;
    key.end = std::min(key.end, at);
    live->extra_keys.push_back(key);
  }
  live->computed = std::min(at, source->computed);
  live->window = source->window;
  live->window_salt = source->window_salt;
  if (live->window.visible_tokens > 0) {
    live->full_tokens = std::max(live->window.visible_tokens, std::min(source->full_tokens, at));
  }
  live->planned_end = live->computed;
  live->may_lose_copy = true;
  source->may_lose_copy = true;
  lives_.push_back(std::move(live));
  if (setup_.has_groups()) append_one(*lives_.back());
}

void Simulation::rewind() {
  Live* const live = draw_quiet();
  if (live == nullptr || live->tokens.empty()) return;
  const std::uint32_t count = 1 + below(std::min<std::size_t>(live->tokens.size(), chance(20) ? 1000 : 6));
  const std::size_t left = live->tokens.size() - count;
  if (setup_.has_groups() ? left < lookahead_tokens_ : left == 0) return;  // nothing would be left to run
  const SequenceView before = cache_->view(live->handle).value();
  const Status status = cache_->rewind(live->handle, count);
  if (!status && setup_.has_groups()) {
    counts_.add(SimEvent::RefusedByGroup);
    const SequenceView after = cache_->view(live->handle).value();
    if (after.token_count != before.token_count || after.computed_tokens != before.computed_tokens) {
      throw SimFailure("a rewind that was refused has changed the sequence");
    }
    return;
  }
  if (!status && live->window.visible_tokens > 0 && status.error().code == ErrorCode::InvalidArgument) {
    counts_.add(SimEvent::WindowRefused);
    return;
  }
  if (!status) throw SimFailure("rewind: " + status.error().message);
  counts_.add(SimEvent::Rewound);
  live->tokens.resize(live->tokens.size() - count);
  live->values.resize(live->tokens.size());
  const auto end = static_cast<std::uint32_t>(live->tokens.size());
  while (!live->extra_keys.empty() && live->extra_keys.back().begin >= end) live->extra_keys.pop_back();
  if (!live->extra_keys.empty()) live->extra_keys.back().end = std::min(live->extra_keys.back().end, end);
  if (live->window.visible_tokens > 0 && end < live->computed) {
    live->full_tokens = std::max(live->window.visible_tokens, std::min(live->full_tokens, end));
  }
  live->computed = std::min(live->computed, end);
  live->planned_end = live->computed;
  live->may_lose_copy = true;
  if (setup_.has_groups()) append_one(*live);
  called();
}

void Simulation::preempt() {
  Live* const live = draw_quiet();
  if (live == nullptr || live->tokens.empty()) return;
  if (chance(setup_.save_chance)) {
    save(*live);
    return;
  }
  const Status status = cache_->preempt(live->handle, Preempt::Drop);
  if (status.has_value() != can_be_computed_again(*live)) {
    throw SimFailure(status ? "a slid sequence is dropped" : "preempt: " + status.error().message);
  }
  if (!status) {
    counts_.add(SimEvent::DropRefused);
    return;
  }
  counts_.add(SimEvent::Preempted);
  live->is_admitted = false;
  live->is_preempted = true;
  live->computed = 0;
  live->planned_end = 0;
  called();
}

void Simulation::set_window() {
  Live* const live = draw_live();
  if (live == nullptr || live->window.visible_tokens > 0) return;
  const bool is_waiting = !live->is_admitted && live->save_state == SaveState::None;
  if (!is_waiting && !is_quiet(*live)) return;
  refresh(*live);
  Window window{.visible_tokens = 1 + below(setup_.context_tokens_max)};
  if (chance(70)) window.visible_tokens = 1 + ((window.visible_tokens - 1) / 3);
  window.sink_tokens = random_.below(std::min(window.visible_tokens, 6U));
  const Status status = cache_->set_window(live->handle, window);
  // Without a history there is none, nor one that would cut what a state has been through, or a replay.
  if (!status && !setup_.groups.empty()) {
    const SequenceView view = cache_->view(live->handle).value();
    const bool has_history = !std::ranges::all_of(setup_.groups, is_anchored);
    const bool is_late = has_state_ && view.computed_tokens > window.visible_tokens;
    if (!has_history || is_late || view.replay_tokens > 0) {
      counts_.add(SimEvent::WindowNotSet);
      called();
      return;
    }
  }
  if (!status) throw SimFailure("set_window: " + status.error().message);
  counts_.add(is_waiting ? SimEvent::WindowSetWaiting : SimEvent::WindowSet);
  live->window = window;
  live->full_tokens = std::max(window.visible_tokens, live->computed);
  live->window_salt = mix64(live->number);
  // What it finds later is cut to the window.
  live->options.match_tokens_max = std::min(live->options.match_tokens_max.value_or(UINT32_MAX), window.visible_tokens);
  live->values.resize(std::min<std::size_t>(live->values.size(), live->full_tokens));
  extend_values(*live);
  called();
}

void Simulation::save(Live& live) {
  refresh(live);
  const SequenceView view = cache_->view(live.handle).value();
  auto page_count =
      static_cast<std::uint32_t>(std::ranges::count_if(view.pages(), [](PageId page) { return page != kNullPage; }));
  if (setup_.has_groups() && page_count == 0 && chance(90)) return;  // there would be little to save
  const bool has_hole = page_count < view.pages().size();
  if (view.computed_tokens > view.pages().size() * setup_.page_tokens) ++page_count;  // a page to be copied
  const Status status = cache_->preempt(live.handle, Preempt::Save);
  called();
  counts_.add(SimEvent::SaveAsked);
  if (!status) {
    counts_.add(SimEvent::SaveRefused);
    // Of several groups, each takes transfers of its own.
    const std::uint32_t row_pages = (setup_.context_tokens_max / setup_.page_tokens) + 2;
    const std::uint32_t transfers = (row_pages + setup_.transfer_pages_max - 1) / setup_.transfer_pages_max;
    const bool is_possible =
        setup_.has_groups()
            ? setup_.host_page_count > 0 && transfers * (setup_.groups.size() + 1) <= setup_.transfer_count_max
            : page_count <= setup_.transfer_count_max * setup_.transfer_pages_max;
    if (status.error().code != ErrorCode::Unavailable &&
        (is_possible || status.error().code != ErrorCode::Unsupported)) {
      throw SimFailure("preempt: " + status.error().message);
    }
    refresh(live);
    return;
  }
  if (setup_.has_groups()) {
    const std::uint32_t all_pages = CacheForTests::own_pages_moving(*cache_, live.handle.id());
    if (all_pages < page_count) throw SimFailure("some of a sequence's history is not saved");
    if (all_pages > page_count) counts_.add(SimEvent::SavedWindows);
    page_count = all_pages;
  }
  live.is_admitted = false;
  live.is_preempted = true;
  live.save_state = page_count > 0 ? SaveState::Saving : SaveState::Saved;
  live.page_count = page_count;
  live.pages_left = page_count;
  live.host_pages = 0;
  live.has_lost_pages = false;
  live.has_hole = has_hole;
  if (has_hole) counts_.add(SimEvent::SavedSlid);
  live.planned_end = live.computed;
  if (page_count > 0) {
    saves_.push_back(
        {.id = live.handle.id(), .number = live.number, .token_count = live.computed, .pages_left = page_count});
  } else {
    counts_.add(SimEvent::SavedNothing);
  }
}

bool Simulation::resume_saved(Live& live) {
  if (const Status status = cache_->advance(now_); !status) throw SimFailure("advance: " + status.error().message);
  told_ = now_;
  std::erase_if(keeps_, [&](const Keep& keep) { return keep.expires_at <= now_; });
  called();
  // What is in the tree is taken from there.
  std::uint32_t found = 0;
  if (paths_ && live.options.use_cache && !live.is_retired && !live.has_hole) {
    const std::uint32_t tokens_max = std::min(live.computed, live.full_tokens);
    const auto keys = paths_->keys_of(live.space, std::span(live.tokens).first(tokens_max));
    while (found < keys.size() && paths_->tier_of(keys[found]) == Tier::Device) ++found;
  }
  const Result<Admission> admission = cache_->resume(live.handle);
  if (live.save_state == SaveState::Lost) {
    const bool is_told =
        !admission && (admission.error().code == ErrorCode::Corrupt ||
                       ((falls_asleep_ || is_asleep_) && admission.error().code == ErrorCode::Unavailable));
    if (!is_told) throw SimFailure("resume of a sequence that has lost pages");
    counts_.add(SimEvent::ResumedCorrupt);
    end_one(live);
    return false;
  }
  if (!admission) {
    called();
    counts_.add(live.save_state == SaveState::Saving ? SimEvent::ResumedTooSoon : SimEvent::RestoreRefused);
    if (admission.error().code != ErrorCode::Unavailable) throw SimFailure("resume: " + admission.error().message);
    return false;
  }
  if (live.save_state != SaveState::Saved) throw SimFailure("a sequence that is being saved is resumed");
  if (falls_asleep_ || is_asleep_) throw SimFailure("a sequence is resumed asleep");
  counts_.add(SimEvent::RestoreStarted);
  const bool is_over = admission->is_ready;
  const SequenceView view = cache_->view(live.handle).value();
  if (view.is_loading == is_over) throw SimFailure("resume says something else than view");
  if (is_over && admission->matched_tokens != live.computed) throw SimFailure("a restored sequence lacks tokens");
  if (admission->matched_tokens + admission->loading_tokens != live.computed) {
    throw SimFailure("resume brings back " + std::to_string(admission->matched_tokens + admission->loading_tokens) +
                     " tokens, not " + std::to_string(live.computed));
  }
  std::uint32_t matched = is_over ? live.page_count : admission->matched_tokens / setup_.page_tokens;
  if (paths_ && found != matched) {
    throw SimFailure("resume finds " + std::to_string(matched) + " pages; there are " + std::to_string(found));
  }
  if (matched > 0) counts_.add(SimEvent::RestoreMatched);
  live.is_admitted = true;
  live.is_loading = !is_over;
  live.save_state = SaveState::Restoring;
  live.host_pages -= matched;
  live.pages_left = live.host_pages;
  live.has_lost_pages = false;
  if (is_over) {
    counts_.add(SimEvent::RestoredAtOnce);
    end_restoring(live, view);
  }
  called();
  return true;
}

// Everything is back; or something was lost, and what is cached has to do.
void Simulation::end_restoring(Live& live, const SequenceView& view) {
  live.save_state = SaveState::None;
  live.is_loading = false;
  live.is_preempted = false;
  live.load_troubles.clear();
  if (view.is_waiting != (live.has_lost_pages && !can_be_computed_again(live))) {
    throw SimFailure(view.is_waiting ? "a sequence that was restored waits" : "a slid sequence is computed again");
  }
  if (view.is_waiting) {
    counts_.add(SimEvent::RestoreCorrupt);
    live.save_state = SaveState::Lost;
    live.is_admitted = false;
    live.is_preempted = true;
    return;
  }
  if (live.has_lost_pages) {
    counts_.add(SimEvent::RestoreFailed);
    const bool has_all = view.computed_tokens / setup_.page_tokens >= live.tokens.size() / setup_.page_tokens;
    const MissReason reason = view.miss.reason;
    const bool is_told =
        has_all ? reason == MissReason::None || reason == MissReason::PartialPage : reason == MissReason::LoadFailed;
    if (!is_told && !setup_.has_groups())  // a group may be the reason that it cannot go on later
      throw SimFailure("a sequence that was not restored missed because: " + std::string(to_string(reason)));
    start_running(live);
    return;
  }
  if (live.pages_left > 0) throw SimFailure("a sequence runs before all of it is back");
  if (view.computed_tokens != live.computed) {
    throw SimFailure("a sequence has " + std::to_string(view.computed_tokens) + " tokens when it is restored, not " +
                     std::to_string(live.computed));
  }
  counts_.add(SimEvent::Restored);
  if (live.has_hole) counts_.add(SimEvent::RestoredSlid);
  live.planned_end = live.computed;
  live.may_lose_copy = false;
  live.waits_from = UINT32_MAX;
}

void Simulation::commit_tree() {
  for (const auto& live : lives_) {
    if (live->tree.empty() || live->steps_in_flight > 0) continue;
    const auto leaf = static_cast<std::int32_t>(below(live->tree.size() + 1)) - 1;
    const Status status = cache_->commit_tree(live->handle, leaf);
    if (!status) throw SimFailure("commit_tree: " + status.error().message);
    counts_.add(SimEvent::Committed);
    has_moves_ = true;
    std::vector<TokenId> path;
    for (std::int32_t node = leaf; node >= 0; node = live->tree[node].parent) path.push_back(live->tree[node].token);
    live->tokens.insert(live->tokens.end(), path.rbegin(), path.rend());
    live->tree.clear();
    extend_values(*live);
    live->computed = static_cast<std::uint32_t>(live->tokens.size());
    live->planned_end = live->computed;
    called();
    return;
  }
}

void Simulation::end() {
  Live* const live = draw_live();
  if (live == nullptr || ((!live->is_admitted || live->is_loading) && !chance(15))) return;
  end_one(*live);
}

void Simulation::end_one(Live& live) {
  if (live.steps_in_flight > 0) counts_.add(SimEvent::EndedInFlight);
  if (live.ahead == Ahead::Lost || (live.ahead == Ahead::Yes && live.steps_in_flight > 0)) {
    counts_.add(SimEvent::EndedAhead);
    has_ghosts_ = true;
  }
  if (live.save_state == SaveState::None && live.is_loading) counts_.add(SimEvent::EndedLoading);
  if (live.save_state == SaveState::Saving) counts_.add(SimEvent::EndedSaving);
  if (live.save_state == SaveState::Saved) counts_.add(SimEvent::EndedSaved);
  if (live.save_state == SaveState::Restoring) counts_.add(SimEvent::EndedRestoring);
  texts_.push_back(live.tokens);
  if (texts_.back().empty()) texts_.pop_back();
  if (texts_.size() > 8) texts_.erase(texts_.begin());
  if (chance(15)) {
    counts_.add(SimEvent::HandleDropped);
    remove(live);
    const Status status = cache_->advance(told_);
    if (!status) throw SimFailure("advance: " + status.error().message);
    called();
    return;
  }
  std::optional<Publish> publish;
  if (chance(10)) {
    publish = pick(random_, std::array{Publish::All, Publish::None, Publish::Prompt});
    counts_.add(SimEvent::EndedOtherPublish);
  }
  const Status status = cache_->end(live.handle, publish);
  if (!status) throw SimFailure("end: " + status.error().message);
  counts_.add(SimEvent::Ended);
  remove(live);
  called();
}

// Whole pages that it has computed are in the tree, for others to find.
void Simulation::expect_cached(const Live& live) const {
  if (!paths_ || !setup_.dedup || live.is_retired || live.window.visible_tokens > 0) return;
  for (const SimPaths::PathKey key : paths_->keys_of(live.space, std::span(live.tokens).first(live.computed))) {
    if (!paths_->is_cached(key)) throw SimFailure("a page that was computed is not cached");
  }
}

// What stays and what goes

void Simulation::keep() {
  const Space& space = spaces_[random_.below(setup_.key_space_name_count)];
  if (!space.is_known) return;
  std::vector<TokenId> tokens = draw_prompt(setup_.context_tokens_max);
  std::vector<ExtraKey> extra_keys;
  add_extra_keys(tokens, 0, extra_keys);
  std::optional<TimeNs> ttl;
  if (chance(50)) ttl = 1 + (random_.below(200) * setup_.op_ns_max);
  const Result<Kept> kept = cache_->keep(space.id, {.tokens = tokens, .extra_keys = extra_keys}, ttl);
  if (paths_ && (kept || kept.error().code == ErrorCode::Unavailable)) {
    const SequenceOptions options;
    const std::uint32_t found = paths_->find({.space = space.id, .tokens = tokens, .options = &options}).device_pages;
    std::uint32_t page_count = found;
    for (const Keep& keep : keeps_) page_count += keep.page_count;
    const CacheConfig& config = cache_->config();
    const bool fits = page_count <= setup_.device_page_count / 2 && keeps_.size() < config.keep_count_max;
    if (kept.has_value() != fits) throw SimFailure(fits ? "keep is refused" : "more is kept than may be");
    if (kept && kept->token_count != found * setup_.page_tokens) throw SimFailure("keep holds another prefix");
  }
  if (kept) {
    counts_.add(SimEvent::Kept);
    keeps_.push_back({.id = kept->id,
                      .space = space.id,
                      .page_count = kept->token_count / setup_.page_tokens,
                      .expires_at = ttl ? told_ + *ttl : INT64_MAX});
  }
  called();
}

void Simulation::unkeep() {
  if (keeps_.empty()) return;
  const std::uint32_t place = below(keeps_.size());
  const Status status = cache_->unkeep(keeps_[place].id);
  if (!status) throw SimFailure("unkeep: " + status.error().message);
  counts_.add(SimEvent::Unkept);
  keeps_.erase(keeps_.begin() + place);
  called();
}

void Simulation::drop_space() {
  Space& space = spaces_[random_.below(setup_.key_space_name_count)];
  if (!space.is_known) return;
  const Result<std::uint32_t> dropped = cache_->drop(space.id);
  space.is_known = false;
  if (!dropped) return;  // it made room for another one
  counts_.add(SimEvent::SpaceDropped);
  bool is_used = false;
  for (const auto& live : lives_) {
    if (live->space != space.id) continue;
    live->is_retired = true;
    is_used = true;
  }
  if (is_used) counts_.add(SimEvent::SpaceDroppedInUse);
  if (files_) note_drop(space);
  if (paths_) paths_->retire(space.id);
  std::erase_if(keeps_, [&](const Keep& keep) { return keep.space == space.id; });
  called();
}

void Simulation::reclaim() {
  const Result<std::uint32_t> reclaimed = cache_->reclaim(random_.below(setup_.device_page_count + 1));
  if (!reclaimed) throw SimFailure("reclaim: " + reclaimed.error().message);
  counts_.add(SimEvent::Reclaimed);
  called();
}

void Simulation::resize() {
  if (chance(80)) {
    while (!flights_.empty()) finish();
    if (!is_asleep_ && !falls_asleep_ && setup_.host_page_count > 0) {
      pause();
      pump();
    }
  }
  if (chance(50) && !cache_->reclaim(setup_.device_page_count)) throw SimFailure("reclaim before resize");
  called();
  const std::uint32_t least = std::max((setup_.context_tokens_max + setup_.page_tokens - 1) / setup_.page_tokens,
                                       setup_.clean_reserve_pages.value_or(0));
  const std::uint32_t count = least + random_.below(setup_.device_page_count_max - least + 1);
  const bool is_too_soon = !flights_.empty() || cache_->stats().value().transfers_in_flight > 0;
  const Status status = cache_->resize(count);
  called();
  if (!status) {
    if (status.error().code != ErrorCode::Unavailable) throw SimFailure("resize: " + status.error().message);
    if (!is_too_soon && count >= setup_.device_page_count) throw SimFailure("resize: " + status.error().message);
    counts_.add(is_too_soon ? SimEvent::ResizeTooSoon : SimEvent::ResizeInUse);
    return;
  }
  if (is_too_soon) throw SimFailure("resize with steps or transfers in flight");
  counts_.add(count < setup_.device_page_count ? SimEvent::Shrunk : SimEvent::Grown);
  setup_.device_page_count = count;
  mover_->set_device_page_count(count);
}

// Standing still

void Simulation::pause() {
  if (is_paused_ && chance(50)) {
    unpause();
    return;
  }
  transfers_paused_ = cache_->stats().value().transfers_in_flight;
  const Result<bool> paused = cache_->pause_transfers();
  if (!paused) throw SimFailure("pause_transfers: " + paused.error().message);
  is_paused_ = true;
  counts_.add(*paused ? SimEvent::Paused : SimEvent::PausedInFlight);
  if (*paused != (transfers_paused_ == 0)) throw SimFailure("pause_transfers says something else than stats");
  called();
}

void Simulation::unpause() {
  if (!std::exchange(is_paused_, false)) return;
  const Status status = cache_->resume_transfers();
  if (!status) throw SimFailure("resume_transfers: " + status.error().message);
  counts_.add(SimEvent::Unpaused);
  called();
}

// Goes to bed, or on with it, or gets up.
void Simulation::sleep() {
  if (is_asleep_ || (falls_asleep_ && chance(30))) {
    wake();
    return;
  }
  if (!falls_asleep_) {
    while (!flights_.empty()) finish();
    sleep_ = chance(60) ? Sleep::KeepHost : Sleep::DropAll;
    for (std::size_t i = lives_.size(); i > 0; --i) {
      Live& live = *lives_[i - 1];
      if (is_quiet(live) && !live.tokens.empty() && can_be_computed_again(live) && chance(50)) {
        if (!cache_->preempt(live.handle, Preempt::Drop)) throw SimFailure("preempt before sleep");
        live.is_admitted = false;
        live.is_preempted = true;
        live.computed = 0;
        live.planned_end = 0;
        live.may_lose_copy = false;
        called();
      } else if (live.is_admitted || live.save_state == SaveState::Saving ||
                 ((sleep_ == Sleep::DropAll || has_state_) && live.save_state != SaveState::None && chance(80))) {
        if (chance(3)) continue;  // sleep() refuses
        end_one(live);
      }
    }
  }
  (void)try_sleep();
}

bool Simulation::try_sleep() {
  bool is_refused = false;
  std::uint32_t saved = 0;
  for (const auto& live : lives_) {
    saved += live->save_state == SaveState::Saved || live->save_state == SaveState::Lost ? 1 : 0;
    is_refused = is_refused || live->is_admitted || live->save_state == SaveState::Saving;
  }
  is_refused = is_refused || !chunk_holds_.empty();
  is_refused = is_refused || ((sleep_ == Sleep::DropAll || has_state_) && saved > 0);  // a state stays on the device
  const Result<bool> slept = cache_->sleep(sleep_);
  if (slept.has_value() == is_refused) {
    throw SimFailure(slept ? "a cache sleeps while sequences have pages" : "sleep: " + slept.error().message);
  }
  called();
  if (!slept) {
    counts_.add(SimEvent::SleepRefused);
    if (slept.error().code != ErrorCode::Unavailable) throw SimFailure("sleep: " + slept.error().message);
    return false;
  }
  counts_.add(SimEvent::SleepAsked);
  falls_asleep_ = !*slept;
  keeps_.clear();
  if (!*slept) {
    counts_.add(SimEvent::SleepWaits);
    if (cache_->stats().value().transfers_in_flight == 0) throw SimFailure("sleep waits for nothing");
    return false;
  }
  is_asleep_ = true;
  counts_.add(SimEvent::Asleep);
  if (saved > 0) counts_.add(SimEvent::AsleepSaved);
  const bool drops_all = sleep_ == Sleep::DropAll;
  if (drops_all) counts_.add(SimEvent::AsleepDropped);
  if (cache_->stats()->transfers_in_flight > 0) throw SimFailure("a cache sleeps with transfers in flight");
  for (std::uint32_t i = 0; i < cache_->config().layout.groups().size(); ++i) {
    const GroupStats stats = cache_->group_stats(i).value();
    if (stats.free_pages != stats.page_count) throw SimFailure("device pages are used asleep");
    const bool has_host_pages = stats.host_free_pages != stats.host_page_count;
    if (drops_all && has_host_pages) throw SimFailure("host pages are used by a cache that dropped all");
  }
  return true;
}

void Simulation::wake() {
  if (!is_asleep_ && !falls_asleep_) return;
  const Status status = cache_->wake();
  if (!status) throw SimFailure("wake: " + status.error().message);
  counts_.add(is_asleep_ ? SimEvent::Awake : SimEvent::WokenEarly);
  if (is_asleep_ && !setup_.has_groups()) {
    const std::byte* const bytes = cache_->device_memory();
    const std::uint64_t count = cache_->geometry().pool_bytes();
    if (!std::all_of(bytes, bytes + count, [](std::byte each) { return each == std::byte{0}; })) {
      throw SimFailure("memory is not filled with zeros after sleep");
    }
  }
  is_asleep_ = false;
  falls_asleep_ = false;
  called();
}
}  // namespace quire::testing
