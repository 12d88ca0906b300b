// SPDX-License-Identifier: Apache-2.0
//
// Requests of the simulation of several groups: what becomes of them besides steps, and what they must find.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "hybrid_simulation.h"

namespace quire::testing {

void HybridSimulation::engine_operation() {
  struct Weighted {
    std::uint32_t weight;
    void (HybridSimulation::*run)();
  };
  const SimSetup& sim = setup_.sim;
  const std::array<Weighted, 21> operations = {
      {{14, &HybridSimulation::begin},
       {20, &HybridSimulation::admit},
       {30, &HybridSimulation::plan},
       {20, &HybridSimulation::run},
       {30, &HybridSimulation::finish},
       {14, &HybridSimulation::end},
       {6, &HybridSimulation::append},
       {sim.algebra_chance / 8, &HybridSimulation::fork},
       {sim.algebra_chance / 8, &HybridSimulation::rewind},
       {sim.preempt_chance / 8, &HybridSimulation::preempt},
       {sim.abort_chance / 4, &HybridSimulation::abort},
       {sim.keep_chance / 8, &HybridSimulation::keep},
       {sim.keep_chance / 10, &HybridSimulation::unkeep},
       {sim.drop_chance, &HybridSimulation::drop_space},
       {1, &HybridSimulation::reclaim},
       {2, &HybridSimulation::stop_loading},
       {2, &HybridSimulation::lookup},
       {is_paused_ ? 10 : sim.pause_chance, &HybridSimulation::pause},
       {is_asleep_ || falls_asleep_ ? 20 : sim.sleep_chance, &HybridSimulation::sleep},
       {files_ ? sim.flush_chance : 0, &HybridSimulation::flush},
       {files_ ? sim.serve_chance : 0, &HybridSimulation::serve}}};
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

HybridSimulation::Live* HybridSimulation::find(std::uint64_t number) {
  for (const auto& live : lives_) {
    if (live->number == number) return live.get();
  }
  return nullptr;
}

HybridSimulation::Live* HybridSimulation::draw_quiet() {
  std::vector<Live*> quiet;
  for (const auto& live : lives_) {
    if (is_quiet(*live) && cache_->view(live->handle).value().steps_in_flight == 0) quiet.push_back(live.get());
  }
  return quiet.empty() ? nullptr : quiet[below(quiet.size())];
}

void HybridSimulation::remove(const Live& live) {
  std::erase_if(lives_, [&](const auto& each) { return each.get() == &live; });
}

PrefixNumbers HybridSimulation::numbers_of(const Live& live, std::span<const TokenId> drafts) {
  PrefixNumbers numbers(live.salt);
  for (const TokenId token : live.tokens) numbers.add(token);
  for (const TokenId token : drafts) numbers.add(token);
  return numbers;
}

// From begin to running

std::vector<TokenId> HybridSimulation::draw_prompt() {
  std::vector<TokenId> prompt;
  if (chance(setup_.sim.document_chance)) {
    prompt = documents_[below(documents_.size())];
  } else if (!texts_.empty() && chance(setup_.sim.chat_chance)) {
    prompt = texts_[below(texts_.size())];
  }
  if (!prompt.empty() && chance(20)) prompt.resize(1 + below(prompt.size()));
  const std::uint32_t more = random_.below(setup_.sim.page_tokens + 2) + (prompt.empty() ? 1 : 0);
  for (std::uint32_t i = 0; i < more; ++i) prompt.push_back(draw_token());
  if (prompt.size() > setup_.sim.context_tokens_max) prompt.resize(setup_.sim.context_tokens_max);
  return prompt;
}

SequenceOptions HybridSimulation::draw_options(std::size_t token_count) {
  SequenceOptions options;
  if (chance(setup_.sim.options_chance)) {
    switch (random_.below(6)) {
      case 0:
        options.match_tokens_max = below(token_count + 1);
        break;
      case 1:
        options.use_cache = false;
        break;
      case 2:
        options.publish = Publish::Prompt;
        break;
      case 3:
        options.publish = Publish::None;
        break;
      case 4:
        options.tier_max = Tier::Device;
        break;
      default:
        options.priority = static_cast<std::int8_t>(random_.below(5));
        break;
    }
  }
  if (files_ && chance(setup_.sim.host_chance)) options.tier_max = std::min(options.tier_max, Tier::Host);
  if (chance(setup_.sim.prefetch_chance)) {
    options.prefetch = pick(random_, std::array{Prefetch::BestEffort, Prefetch::Wait, Prefetch::Timeout});
    counts_.add(options.prefetch == Prefetch::BestEffort ? SimEvent::PrefetchBestEffort
                : options.prefetch == Prefetch::Wait     ? SimEvent::PrefetchWait
                                                         : SimEvent::PrefetchTimeout);
    options.load_timeout_ns = random_.below(40) * setup_.sim.op_ns_max;
  }
  return options;
}

void HybridSimulation::begin() {
  if (lives_.size() >= setup_.sim.sequence_count_max) {
    end();
    return;
  }
  std::vector<TokenId> tokens = draw_prompt();
  const SequenceOptions options = draw_options(tokens.size());
  (void)begin_with(below(spaces_.size()), std::move(tokens), options);
}

// A request from its begin to its end, with a disk tier. One that has to wait for others is left to them.
void HybridSimulation::serve() {
  const std::uint64_t number = next_number_;
  begin();
  for (int round = 0; round < 8; ++round) {
    Live* const live = find(number);
    if (live == nullptr) return;
    if (!live->is_admitted) {
      if (!admit_one(*live)) move_on();
    } else if (live->is_loading) {
      move_on();
    } else if (const std::uint32_t pending = cache_->view(live->handle).value().pending_tokens; pending > 1) {
      while (!flights_.empty()) finish();
      const StepEntry entry{.sequence = &live->handle, .token_count = std::min(pending, setup_.sim.step_tokens_max)};
      Live* const alone = live;
      if (live->steps_in_flight == 0) (void)plan_entries({&entry, 1}, {&alone, 1});
      while (!flights_.empty()) finish();
    } else {
      counts_.add(SimEvent::Served);
      end_one(*live);
      move_on();
      return;
    }
  }
}

bool HybridSimulation::begin_with(std::uint32_t name, std::vector<TokenId> tokens, const SequenceOptions& options) {
  const Result<KeySpaceId> id = cache_->key_space(key_space_of(name));
  called();
  Space& space = spaces_[name];
  if (!id) {
    counts_.add(SimEvent::BeginRefused);
    return false;
  }
  if (!space.is_known || space.id != *id) {
    space.id = *id;
    space.is_known = true;
    // What is on disk is found again by its name.
    if (!files_ || space.salt == 0) space.salt = ++salt_count_;
  }
  Result<Sequence> sequence = cache_->begin(*id, {.tokens = tokens}, options);
  called();
  if (!sequence) {
    counts_.add(SimEvent::BeginRefused);
    if (sequence.error().code != ErrorCode::Unavailable) throw SimFailure("begin: " + sequence.error().message);
    if (cache_->stats().value().sequence_count < setup_.sim.sequence_count_max) {
      throw SimFailure("begin, with room: " + sequence.error().message);
    }
    return false;
  }
  counts_.add(SimEvent::Begun);
  auto live = std::make_unique<Live>();
  live->number = next_number_++;
  live->handle = std::move(*sequence);
  live->space = *id;
  live->salt = space.salt;
  live->options = options;
  live->tokens = std::move(tokens);
  lives_.push_back(std::move(live));
  return true;
}

void HybridSimulation::admit() {
  std::vector<Live*> waiting;
  for (const auto& live : lives_) {
    if (!live->is_admitted) waiting.push_back(live.get());
  }
  if (waiting.empty()) {
    begin();
  } else {
    (void)admit_one(*waiting[below(waiting.size())]);
  }
}

bool HybridSimulation::admit_one(Live& live) {
  // Handles that were dropped end at the next call: let that be another one.
  if (const Status status = cache_->advance(now_); !status) throw SimFailure("advance: " + status.error().message);
  told_ = now_;
  std::erase_if(keeps_, [&](const Keep& keep) { return keep.expires_at <= now_; });
  called();
  const HeldGroups held(*cache_, live.space);
  const Result<Admission> admission = live.is_preempted ? cache_->resume(live.handle) : cache_->admit(live.handle);
  called();
  if (!admission) {
    counts_.add(falls_asleep_ || is_asleep_ ? SimEvent::AdmitAsleep : SimEvent::AdmitShort);
    if (admission.error().code != ErrorCode::Unavailable) throw SimFailure("admit: " + admission.error().message);
    return false;
  }
  if (falls_asleep_ || is_asleep_) throw SimFailure("a sequence is admitted asleep");
  counts_.add(live.is_preempted ? SimEvent::Resumed : SimEvent::Admitted);
  if (is_paused_) counts_.add(SimEvent::AdmittedPaused);
  live.is_admitted = true;
  live.is_preempted = false;
  live.is_loading = !admission->is_ready;
  live.has_waited = live.is_loading;
  live.may_look = may_look(live);
  live.admitted_at = now_;
  live.matched = admission->matched_tokens - admission->replay_tokens;
  if (!live.is_loading) {
    start_running(live, &held);
    return true;
  }
  const bool looks = live.may_look;
  counts_.add(looks ? SimEvent::DiskLooked : SimEvent::AdmittedLoading);
  if (is_paused_) throw SimFailure("a sequence loads while transfers are paused");
  if (live.options.tier_max == Tier::Device) throw SimFailure("a sequence loads that asked for the device alone");
  if (admission->loading_tokens == 0 && !looks) throw SimFailure("a sequence that has nothing to load is not ready");
  if (!asks_for_all(live) || looks) return true;
  // With all that is on the host, and perhaps a part of a page on the device.
  const HeldGroups::Found least = held.find(live.tokens, UINT32_MAX, Tier::Host);
  const HeldGroups::Found most = held.find(live.tokens, partial_min(), Tier::Host);
  const std::uint32_t found = live.matched + admission->loading_tokens;
  counts_.add(SimEvent::HostHitChecked);
  if (found < least.start || found > most.start) {
    throw SimFailure("admit would find " + std::to_string(found) + " tokens with those on the host; there are " +
                     std::to_string(least.start) + " to " + std::to_string(most.start));
  }
  return true;
}

void HybridSimulation::start_running(Live& live, const HeldGroups* held) {
  const SequenceView view = cache_->view(live.handle).value();
  if (view.computed_tokens > 0) counts_.add(SimEvent::DeviceHit);
  if (view.replay_tokens > 0) counts_.add(SimEvent::Replayed);
  ++miss_counts_[static_cast<std::size_t>(view.miss.reason)];
  prompt_tokens_ += live.tokens.size();
  if (held == nullptr || !asks_for_all(live)) return;
  check_hit(live, *held, view);
  check_miss(live, *held, view);
}

// Which part of a page is found is best effort; whole pages all count.
void HybridSimulation::check_hit(const Live& live, const HeldGroups& held, const SequenceView& view) {
  counts_.add(SimEvent::HitChecked);
  const HeldGroups::Found least = held.find(live.tokens, UINT32_MAX);
  const HeldGroups::Found most = held.find(live.tokens, partial_min());
  const HeldGroups::Found found{.start = view.computed_tokens, .end = view.computed_tokens + view.replay_tokens};
  const bool is_partial = found.end % setup_.sim.page_tokens != 0;
  if (is_partial) counts_.add(SimEvent::PartialHit);
  const bool is_least = found.start == least.start && found.end >= least.end;
  const bool is_more = found.start > least.start && found.start <= most.start && is_partial;
  if ((is_least || is_more) && (least != most || found == most)) return;
  throw SimFailure("sequence " + std::to_string(live.number) + " finds " + std::to_string(found.start) + " of " +
                   std::to_string(found.end) + " tokens; there are " + std::to_string(least.start) + " of " +
                   std::to_string(least.end) + ", or " + std::to_string(most.start) + " of " +
                   std::to_string(most.end) + ", in " + std::to_string(live.tokens.size()));
}

// A group is the reason where the history goes further, and some position of it would do but for that group.
void HybridSimulation::check_miss(const Live& live, const HeldGroups& held, const SequenceView& view) {
  const std::uint32_t page_tokens = setup_.sim.page_tokens;
  const std::uint32_t boundary = std::max(cache_->config().layout.hit_multiple_tokens(), 1U);
  const auto length = static_cast<std::uint32_t>(live.tokens.size());
  const std::uint32_t found = view.computed_tokens;
  const std::uint32_t history = held.history_tokens(live.tokens);
  const auto is_position = [&](std::uint32_t at) { return at % boundary == 0 && !(at == length && has_state_); };
  if (view.miss.reason == MissReason::NotHeld) {
    counts_.add(SimEvent::MissNotHeld);
    if (view.miss.group >= setup_.groups.size() || pool_of_group_[view.miss.group] == 0) {
      const bool has_slot_only = view.miss.group < setup_.groups.size() && has_slot(setup_.groups[view.miss.group]);
      if (!has_slot_only) throw SimFailure("a group that keeps everything is said to lack something");
    }
    // With a replay what is held may be of no use; and what a load brought may have been missing until then.
    bool is_lacking = has_replay_ || live.has_waited;
    const std::uint32_t on_host = held.history_tokens(live.tokens, Tier::Host);
    for (std::uint32_t at = found + 1; at < on_host + page_tokens; ++at) {
      is_lacking = is_lacking || (is_position(at) && !held.holds(view.miss.group, live.tokens, at, Tier::Host)) ||
                   (is_position(at) && !held.holds(view.miss.group, live.tokens, at, Tier::Device));
    }
    if (!is_lacking) throw SimFailure("group '" + setup_.groups[view.miss.group].name + "' is said to lack something");
    return;
  }
  if (has_replay_) return;
  // What came from disk, or did not, is the first reason of one that has waited for it.
  const bool is_of_disk = view.miss.reason == MissReason::LoadFailed || view.miss.reason == MissReason::LoadCancelled ||
                          view.miss.reason == MissReason::LoadTimedOut ||
                          view.miss.reason == MissReason::RecomputeCheaper;
  if (files_ && live.has_waited && is_of_disk) return;
  // Nobody has tried to load anything: then there is something to load, or it was bad when others did.
  const SimSetup& sim = setup_.sim;
  const bool has_faults = sim.io_chance + sim.flip_chance + sim.lost_write_chance + sim.misdirected_chance +
                              sim.partial_chance + sim.honour_chance >
                          0;
  if (view.miss.reason == MissReason::LoadFailed && !live.has_waited && !has_faults && !files_ && boundary == 1 &&
      has_sides_ && found + 1 < length && held.find(live.tokens, partial_min(), Tier::Host).start <= found) {
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
  if (view.miss.reason == MissReason::None && anywhere / page_tokens < length / page_tokens && !may_be_gone) {
    throw SimFailure("pages were not found, and there is no reason");
  }
}

void HybridSimulation::stop_loading() {
  for (const auto& live : lives_) {
    if (!live->is_loading) continue;
    const Status status = cache_->stop_loading(live->handle);
    if (!status) throw SimFailure("stop_loading: " + status.error().message);
    called();
    counts_.add(SimEvent::StoppedLoading);
    live->is_loading = false;
    const HeldGroups held(*cache_, live->space);
    start_running(*live, &held);
    return;
  }
}

void HybridSimulation::lookup() {
  const Space& space = spaces_[below(spaces_.size())];
  if (!space.is_known) return;
  const std::vector<TokenId> tokens = draw_prompt();
  const Result<Lookup> found = cache_->lookup(space.id, {.tokens = tokens});
  called();
  if (!found) return;  // the key space made room for another one
  counts_.add(SimEvent::LookedUp);
  const HeldGroups held(*cache_, space.id);
  const std::uint32_t start = found->matched_tokens - found->replay_tokens;
  for (const Tier tier : {Tier::Device, Tier::Host}) {
    // Where all groups keep everything, pages on the host follow those on the device, whatever was found in part.
    const std::uint32_t in_part = has_sides_ ? 0 : found->partial_tokens;
    const std::uint32_t said =
        tier == Tier::Host && found->host_tokens > 0 ? start - in_part + found->host_tokens : start;
    const HeldGroups::Found least = held.find(tokens, UINT32_MAX, tier);
    const HeldGroups::Found most = held.find(tokens, partial_min(), tier);
    if (said >= least.start && said <= std::max(most.start, start)) continue;
    throw SimFailure("lookup finds " + std::to_string(said) + " tokens; there are " + std::to_string(least.start) +
                     " to " + std::to_string(most.start) + ", down to the " + std::string(to_string(tier)));
  }
}

// Changes

void HybridSimulation::append() {
  Live* const live = draw_live();
  if (live == nullptr || cache_->view(live->handle).value().steps_in_flight > 0) return;
  const std::size_t room = setup_.sim.context_tokens_max - live->tokens.size();
  if (room == 0) return;
  std::vector<TokenId> tokens(1 + below(std::min<std::size_t>(room, 2 * std::size_t{setup_.sim.page_tokens})));
  for (TokenId& token : tokens) token = draw_token();
  const Status status = cache_->append(live->handle, {.tokens = tokens});
  if (!status) throw SimFailure("append: " + status.error().message);
  called();
  counts_.add(live->is_loading ? SimEvent::AppendedLoading : SimEvent::Appended);
  live->tokens.insert(live->tokens.end(), tokens.begin(), tokens.end());
}

void HybridSimulation::fork() {
  Live* const source = draw_live();
  if (source == nullptr || !source->is_admitted || source->is_loading) return;
  const SequenceView view = cache_->view(source->handle).value();
  const std::uint32_t limit = view.steps_in_flight > 0 ? view.computed_tokens : view.token_count;
  const std::uint32_t at = chance(50) ? std::min(limit, view.computed_tokens) : random_.below(limit + 1);
  if (at >= setup_.sim.context_tokens_max) return;
  Result<Sequence> forked = cache_->fork(source->handle, at);
  called();
  if (!forked) {
    const ErrorCode code = forked.error().code;
    const bool is_expected = code == ErrorCode::Unavailable || code == ErrorCode::InvalidArgument;
    if (!is_expected) throw SimFailure("fork: " + forked.error().message);
    counts_.add(SimEvent::RefusedByGroup);
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
  live->options.tier_max = Tier::Disk;
  live->is_admitted = true;
  live->tokens.assign(source->tokens.begin(), source->tokens.begin() + at);
  const TokenId next = draw_token();
  const Status status = cache_->append(live->handle, {.tokens = {&next, 1}});
  if (!status) throw SimFailure("append to a fork: " + status.error().message);
  called();
  live->tokens.push_back(next);
  lives_.push_back(std::move(live));
}

void HybridSimulation::rewind() {
  Live* const live = draw_quiet();
  if (live == nullptr) return;
  const SequenceView before = cache_->view(live->handle).value();
  const std::uint32_t count = 1 + below(std::min<std::size_t>(live->tokens.size(), chance(20) ? 30 : 5));
  const Status status = cache_->rewind(live->handle, count);
  called();
  if (!status) {
    counts_.add(SimEvent::RefusedByGroup);
    const SequenceView after = cache_->view(live->handle).value();
    if (after.token_count != before.token_count || after.computed_tokens != before.computed_tokens) {
      throw SimFailure("a rewind that was refused has changed the sequence");
    }
    return;
  }
  counts_.add(SimEvent::Rewound);
  live->tokens.resize(live->tokens.size() - count);
  const TokenId next = draw_token();
  if (const Status appended = cache_->append(live->handle, {.tokens = {&next, 1}}); !appended) {
    throw SimFailure("append after a rewind: " + appended.error().message);
  }
  called();
  live->tokens.push_back(next);
}

void HybridSimulation::preempt() {
  Live* const live = draw_quiet();
  if (live == nullptr) return;
  const Status status = cache_->preempt(live->handle, Preempt::Drop);
  if (!status) throw SimFailure("preempt: " + status.error().message);
  called();
  counts_.add(SimEvent::Preempted);
  live->is_admitted = false;
  live->is_preempted = true;
}

void HybridSimulation::end() {
  Live* const live = draw_live();
  if (live == nullptr || ((!live->is_admitted || live->is_loading) && !chance(15))) return;
  end_one(*live);
}

void HybridSimulation::end_one(Live& live) {
  if (live.steps_in_flight > 0) counts_.add(SimEvent::EndedInFlight);
  if (live.is_loading) counts_.add(SimEvent::EndedLoading);
  if (!live.tokens.empty()) texts_.push_back(live.tokens);
  if (texts_.size() > 8) texts_.erase(texts_.begin());
  if (chance(15)) {
    counts_.add(SimEvent::HandleDropped);
    remove(live);
    if (const Status status = cache_->advance(told_); !status) throw SimFailure("advance: " + status.error().message);
    called();
    return;
  }
  std::optional<Publish> publish;
  if (chance(10)) {
    publish = pick(random_, std::array{Publish::All, Publish::None, Publish::Prompt});
    counts_.add(SimEvent::EndedOtherPublish);
  }
  if (const Status status = cache_->end(live.handle, publish); !status) {
    throw SimFailure("end: " + status.error().message);
  }
  called();
  counts_.add(SimEvent::Ended);
  remove(live);
}

// What stays and what goes

void HybridSimulation::keep() {
  const Space& space = spaces_[below(spaces_.size())];
  if (!space.is_known) return;
  const std::vector<TokenId> tokens = draw_prompt();
  std::optional<TimeNs> ttl;
  if (chance(50)) ttl = 1 + (random_.below(200) * setup_.sim.op_ns_max);
  const Result<Kept> kept = cache_->keep(space.id, {.tokens = tokens}, ttl);
  called();
  if (!kept) return;
  counts_.add(SimEvent::Kept);
  keeps_.push_back({.id = kept->id, .space = space.id, .expires_at = ttl ? told_ + *ttl : INT64_MAX});
}

void HybridSimulation::unkeep() {
  if (keeps_.empty()) return;
  const std::uint32_t place = below(keeps_.size());
  if (const Status status = cache_->unkeep(keeps_[place].id); !status) {
    throw SimFailure("unkeep: " + status.error().message);
  }
  called();
  counts_.add(SimEvent::Unkept);
  keeps_.erase(keeps_.begin() + place);
}

void HybridSimulation::drop_space() {
  Space& space = spaces_[below(spaces_.size())];
  if (!space.is_known) return;
  const Result<std::uint32_t> dropped = cache_->drop(space.id);
  called();
  space.is_known = false;
  if (!dropped) return;  // it made room for another one
  counts_.add(SimEvent::SpaceDropped);
  if (files_) note_drop(space);
  for (const auto& live : lives_) live->is_retired = live->is_retired || live->space == space.id;
  std::erase_if(keeps_, [&](const Keep& keep) { return keep.space == space.id; });
}

void HybridSimulation::reclaim() {
  const Result<std::uint32_t> reclaimed = cache_->reclaim(below(setup_.sim.device_page_count + 1));
  if (!reclaimed) throw SimFailure("reclaim: " + reclaimed.error().message);
  called();
  counts_.add(SimEvent::Reclaimed);
}

// Standing still

void HybridSimulation::pause() {
  if (is_paused_ && chance(50)) {
    unpause();
    return;
  }
  const bool is_idle = cache_->stats().value().transfers_in_flight == 0;
  const Result<bool> paused = cache_->pause_transfers();
  if (!paused) throw SimFailure("pause_transfers: " + paused.error().message);
  called();
  is_paused_ = true;
  counts_.add(*paused ? SimEvent::Paused : SimEvent::PausedInFlight);
  if (*paused != is_idle) throw SimFailure("pause_transfers says something else than stats");
}

void HybridSimulation::unpause() {
  if (!std::exchange(is_paused_, false)) return;
  if (const Status status = cache_->resume_transfers(); !status) {
    throw SimFailure("resume_transfers: " + status.error().message);
  }
  called();
  counts_.add(SimEvent::Unpaused);
}

// Goes to bed, or on with it, or gets up.
void HybridSimulation::sleep() {
  if (is_asleep_ || (falls_asleep_ && chance(30))) {
    wake();
    return;
  }
  if (!falls_asleep_) {
    while (!flights_.empty()) finish();
    sleep_ = chance(60) ? Sleep::KeepHost : Sleep::DropAll;
    for (std::size_t i = lives_.size(); i > 0; --i) {
      if (lives_[i - 1]->is_admitted) end_one(*lives_[i - 1]);
    }
  }
  const Result<bool> slept = cache_->sleep(sleep_);
  if (!slept) throw SimFailure("sleep: " + slept.error().message);
  called();
  counts_.add(SimEvent::SleepAsked);
  falls_asleep_ = !*slept;
  keeps_.clear();
  const Stats stats = cache_->stats().value();
  if (!*slept) {
    counts_.add(SimEvent::SleepWaits);
    if (stats.transfers_in_flight == 0) throw SimFailure("sleep waits for nothing");
    return;
  }
  is_asleep_ = true;
  counts_.add(SimEvent::Asleep);
  if (stats.transfers_in_flight > 0) throw SimFailure("a cache sleeps with transfers in flight");
  for (std::uint32_t i = 0; i < setup_.groups.size(); ++i) {
    const GroupStats group = cache_->group_stats(i).value();
    if (group.free_pages != group.page_count) throw SimFailure("device pages are used asleep");
    if (sleep_ == Sleep::DropAll && group.host_free_pages != group.host_page_count) {
      throw SimFailure("host pages are used by a cache that dropped all");
    }
  }
}

void HybridSimulation::wake() {
  if (!is_asleep_ && !falls_asleep_) return;
  if (const Status status = cache_->wake(); !status) throw SimFailure("wake: " + status.error().message);
  called();
  counts_.add(is_asleep_ ? SimEvent::Awake : SimEvent::WokenEarly);
  is_asleep_ = false;
  falls_asleep_ = false;
}

}  // namespace quire::testing
