// SPDX-License-Identifier: Apache-2.0
//
// Requests of the simulation, from their texts until they run: what it begins and admits, and what it expects of hits,
// loads and misses.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/hash.h"
#include "simulation.h"

namespace quire::testing {

namespace {

constexpr TokenId kItemToken = 100;  // tokens from here on stand for items, where a token tells its extra key

bool is_same(const Miss& left, const Miss& right) {
  if (left.reason != right.reason) return false;
  return left.reason != MissReason::Evicted || (left.tier == right.tier && left.age_ns == right.age_ns);
}

}  // namespace

// Texts

TokenId Simulation::draw_token() {
  return static_cast<TokenId>(random_.below(setup_.vocabulary));
}

std::vector<TokenId> Simulation::draw_prompt(std::size_t tokens_max) {
  std::vector<TokenId> prompt;
  if (chance(setup_.document_chance)) {
    prompt = documents_[below(documents_.size())];
    if (chance(20)) prompt.resize(1 + below(prompt.size()));
  } else if (!texts_.empty() && chance(setup_.chat_chance)) {
    prompt = texts_[below(texts_.size())];
    if (chance(30)) prompt.resize(1 + below(prompt.size()));
  } else {
    const std::uint32_t count = 1 + random_.below(4);
    for (std::uint32_t i = 0; i < count; ++i) {
      // Those that come first are few.
      const std::vector<TokenId>& segment = segments_[random_.below(i == 0 ? 2 : 6)];
      prompt.insert(prompt.end(), segment.begin(), segment.end());
    }
  }
  const std::uint32_t more = random_.below(setup_.page_tokens + 2);
  for (std::uint32_t i = 0; i < more; ++i) prompt.push_back(draw_token());
  if (prompt.empty()) prompt.push_back(draw_token());
  if (prompt.size() > tokens_max) prompt.resize(tokens_max);
  // Of a path's first tokens, as many as rows look ahead, a visitor sees nothing: all texts have the same.
  if (lookahead_tokens_ > 0 && prompt.size() <= lookahead_tokens_) prompt.resize(lookahead_tokens_ + 1);
  std::fill_n(prompt.begin(), lookahead_tokens_, TokenId{1});
  return prompt;
}

// Extra keys of tokens [first, size). Where paths are followed, an item token has an extra key of its own, and that
// follows from the token.
void Simulation::add_extra_keys(std::vector<TokenId>& tokens, std::size_t first, std::vector<ExtraKey>& keys) {
  if (!setup_.extra_keys_vary) {
    for (std::size_t i = first; i < tokens.size(); ++i) {
      if (tokens[i] < kItemToken && chance(setup_.extra_key_chance / 4)) {
        tokens[i] = kItemToken + static_cast<TokenId>(random_.below(3));
      }
      if (tokens[i] < kItemToken) continue;
      const auto at = static_cast<std::uint32_t>(i);
      keys.push_back({.begin = at, .end = at + 1, .item = {static_cast<std::uint8_t>(tokens[i])}});
      counts_.add(SimEvent::ExtraKeys);
    }
    return;
  }
  for (std::size_t at = first; at < tokens.size() && chance(setup_.extra_key_chance);) {
    const auto begin = static_cast<std::uint32_t>(at + below(tokens.size() - at));
    const std::uint32_t end = begin + 1 + below(std::min<std::size_t>(6, tokens.size() - begin));
    keys.push_back({.begin = begin, .end = end, .item = {static_cast<std::uint8_t>(random_.below(3))}});
    counts_.add(SimEvent::ExtraKeys);
    at = end;
  }
}

std::uint64_t Simulation::next_value(std::uint64_t value, TokenId token, std::span<const ExtraKey> keys,
                                     std::size_t position) {
  value = mix64(value + static_cast<std::uint64_t>(token));
  for (const ExtraKey& key : keys) {
    if (key.begin <= position && position < key.end)
      value = mix64(value ^ (key.item[0] + 1ULL + ((position - key.begin) << 8U)));
  }
  return value;
}

std::uint64_t Simulation::next_value_of_path(std::uint64_t value, TokenId token) {
  const ExtraKey key{.begin = 0, .end = 1, .item = {static_cast<std::uint8_t>(token)}};
  return next_value(value, token, {&key, token < kItemToken ? 0U : 1U}, 0);
}

void Simulation::extend_values(Live& live) const {
  std::uint64_t value = live.values.empty() ? mix64(live.salt) : live.values.back();
  for (std::size_t i = live.values.size(); i < live.tokens.size() + live.promised.size(); ++i) {
    const TokenId token = i < live.tokens.size() ? live.tokens[i] : live.promised[i - live.tokens.size()];
    value = next_value(value, token, live.extra_keys, i);
    if (i >= live.full_tokens) value = mix64(value ^ live.window_salt);
    live.values.push_back(value);
  }
}

SequenceOptions Simulation::draw_options(std::size_t token_count) {
  SequenceOptions options;
  if (chance(setup_.options_chance)) {
    switch (random_.below(7)) {
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
        options.expected_tokens = static_cast<std::uint32_t>(
            std::min<std::size_t>(setup_.context_tokens_max, token_count + random_.below(10)));
        break;
      case 5:
        options.tier_max = Tier::Device;
        break;
      default:
        options.priority = static_cast<std::int8_t>(random_.below(5));
        break;
    }
  }
  if (files_ && chance(setup_.host_chance)) options.tier_max = std::min(options.tier_max, Tier::Host);
  if (chance(setup_.ttl_chance)) {
    counts_.add(SimEvent::Ttl);
    options.ttl_ns = 1 + (random_.below(300) * setup_.op_ns_max);
  }
  if (chance(setup_.prefetch_chance)) {
    options.prefetch = pick(random_, std::array{Prefetch::BestEffort, Prefetch::Wait, Prefetch::Timeout});
    if (setup_.beginning_count > 0 && chance(60)) options.prefetch = Prefetch::BestEffort;  // waits for no name
    counts_.add(options.prefetch == Prefetch::BestEffort ? SimEvent::PrefetchBestEffort
                : options.prefetch == Prefetch::Wait     ? SimEvent::PrefetchWait
                                                         : SimEvent::PrefetchTimeout);
    options.load_timeout_ns = random_.below(40) * setup_.op_ns_max;
  }
  options.plan_while_loading = setup_.ahead_chance > 0 && chance(setup_.ahead_chance);
  return options;
}

// From begin to running

void Simulation::begin() {
  if (lives_.size() >= setup_.sequence_count_max && chance(95)) {
    end();
    return;
  }
  const std::uint32_t name = random_.below(setup_.key_space_name_count);
  std::vector<TokenId> tokens = draw_prompt(setup_.context_tokens_max);
  std::vector<ExtraKey> keys;
  add_extra_keys(tokens, 0, keys);
  const SequenceOptions options = draw_options(tokens.size());
  (void)begin_with(name, std::move(tokens), std::move(keys), options);
}

// A request from its begin to its end, while the mover and those lanes that are not stuck do all they can. One that
// has to wait for others is left to them.
void Simulation::serve() {
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
      StepEntry entry{&live->handle};
      entry.token_count = std::min(pending, setup_.step_tokens_max);
      std::vector<StepEntry> entries = {entry};
      std::vector<Live*> lives = {live};
      plan_entries(entries, lives);
      while (!flights_.empty()) finish();
    } else {
      counts_.add(SimEvent::Served);
      end_one(*live);
      move_on();
      return;
    }
  }
}

bool Simulation::begin_with(std::uint32_t name, std::vector<TokenId> tokens, std::vector<ExtraKey> extra_keys,
                            const SequenceOptions& options) {
  if (!setup_.extra_keys_vary && extra_keys.empty()) add_extra_keys(tokens, 0, extra_keys);
  const Result<KeySpaceId> id = cache_->key_space(key_space_of(name));
  called();
  Space& space = spaces_[name];
  if (!id) {
    counts_.add(SimEvent::BeginRefused);
    return false;
  }
  if (!space.is_known || space.id != *id) {
    if (space.is_known) counts_.add(SimEvent::SpaceReplaced);
    space.id = *id;
    space.is_known = true;
    // What is on disk is found again by its name.
    if (!files_ || space.salt == 0) space.salt = ++salt_count_;
  }
  Result<Sequence> sequence = cache_->begin(*id, {.tokens = tokens, .extra_keys = extra_keys}, options);
  called();
  if (!sequence) {
    counts_.add(SimEvent::BeginRefused);
    if (sequence.error().code != ErrorCode::Unavailable) throw SimFailure("begin: " + sequence.error().message);
    if (cache_->stats().value().sequence_count < setup_.sequence_count_max) {
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
  live->extra_keys = std::move(extra_keys);
  extend_values(*live);
  lives_.push_back(std::move(live));
  return true;
}

void Simulation::admit() {
  std::array<Live*, 16> waiting{};
  std::size_t count = 0;
  for (const auto& live : lives_) {
    if (!live->is_admitted) waiting[count++] = live.get();
  }
  if (count > 0) {
    (void)admit_one(*waiting[below(count)]);
  } else {
    begin();
  }
}

bool Simulation::admit_one(Live& live) {
  if (live.save_state != SaveState::None) return resume_saved(live);
  // Handles that were dropped end at the next call: let that be another one.
  if (const Status status = cache_->advance(now_); !status) throw SimFailure("advance: " + status.error().message);
  told_ = now_;
  std::erase_if(keeps_, [&](const Keep& keep) { return keep.expires_at <= now_; });
  called();
  std::optional<HeldGroups> held;
  if (setup_.has_groups()) held.emplace(*cache_, live.space);
  SimPaths::Found found;
  std::vector<Miss> any;
  std::vector<Miss> any_behind;  // what is to be loaded
  if (paths_) {
    found = paths_->find(request_of(live));
    any = paths_->why(request_of(live), found.device_pages, now_);
    if (found.host_pages > 0) any_behind = paths_->why(request_of(live), found.device_pages + found.host_pages, now_);
  }
  const bool looks = may_look(live, found);
  const Stats before = cache_->stats().value();
  const std::uint64_t given_up_before = CacheForTests::given_up_page_total(*cache_);
  const Result<Admission> admission = live.is_preempted ? cache_->resume(live.handle) : cache_->admit(live.handle);
  if (!admission) {
    called();
    counts_.add(falls_asleep_ || is_asleep_ ? SimEvent::AdmitAsleep : SimEvent::AdmitShort);
    if (admission.error().code != ErrorCode::Unavailable) throw SimFailure("admit: " + admission.error().message);
    return false;
  }
  if (falls_asleep_ || is_asleep_) throw SimFailure("a sequence is admitted asleep");
  // What the call itself gave up may have taken the place of older losses, before the reason was looked for or after.
  const std::uint64_t losses = CacheForTests::given_up_page_total(*cache_) - given_up_before;
  if (paths_ && losses > 0) {
    const auto add_reasons = [&](std::vector<Miss>& reasons, std::uint32_t pages) {
      for (const Miss& each : paths_->why(request_of(live), pages, now_, losses)) {
        const auto is_known = [&](const Miss& known) { return is_same(known, each); };
        if (std::ranges::none_of(reasons, is_known)) reasons.push_back(each);
      }
    };
    add_reasons(any, found.device_pages);
    if (found.host_pages > 0) add_reasons(any_behind, found.device_pages + found.host_pages);
  }
  // A server that answers slowly is not asked for what is computed faster.
  const bool may_be_slow = server_ && setup_.compute_ns_per_token > 0;
  if (may_be_slow) any.push_back({.reason = MissReason::RecomputeCheaper});
  if (may_be_slow) any_behind.push_back({.reason = MissReason::RecomputeCheaper});
  counts_.add(live.is_preempted ? SimEvent::Resumed : SimEvent::Admitted);
  if (is_paused_) counts_.add(SimEvent::AdmittedPaused);
  live.is_admitted = true;
  live.is_preempted = false;
  const bool is_ahead = admission->is_ready && live.options.plan_while_loading && admission->loading_tokens > 0;
  live.is_loading = !admission->is_ready || is_ahead;
  live.has_waited = live.is_loading;
  live.may_look = looks;
  if (live.is_loading && admission->loading_tokens == 0 && !looks) {
    throw SimFailure("a sequence that has nothing to load is not ready");
  }
  live.admitted_at = now_;
  live.load_troubles.clear();
  const std::uint32_t page_tokens = setup_.page_tokens;
  if (paths_) {
    const std::uint32_t whole = (admission->matched_tokens - admission->partial_tokens) / page_tokens;
    if (whole != found.device_pages) {
      throw SimFailure("admit finds " + std::to_string(whole) + " pages on the device; there are " +
                       std::to_string(found.device_pages));
    }
    if (live.is_loading && admission->loading_tokens != found.host_pages * page_tokens) {
      throw SimFailure("admit loads " + std::to_string(admission->loading_tokens) + " tokens; the host has " +
                       std::to_string(found.host_pages) + " pages");
    }
    // What it looks for comes first, and then it is chosen.
    if (!looks || !live.is_loading) check_choice(live, *admission, found, before);
  }
  if (admission->matched_tokens > 0 && !computed_.contains(live.values[admission->matched_tokens - 1])) {
    throw SimFailure("a hit on tokens that nobody has computed");
  }
  if (held) {
    live.matched = admission->matched_tokens - admission->replay_tokens;
    if (live.is_loading) check_admission(live, *admission, *held);
  }
  if (live.is_loading) {
    if (is_paused_) throw SimFailure("a sequence loads while transfers are paused");
    counts_.add(looks ? SimEvent::DiskLooked : SimEvent::AdmittedLoading);
    if (looks) any_behind.push_back({.reason = MissReason::None});
    check_miss(live, admission->miss, any_behind);
    live.waits_from = (admission->matched_tokens - admission->partial_tokens) / page_tokens;
    live.loading_pages = admission->loading_tokens / page_tokens;
    called();
    if (is_ahead) {
      start_ahead(live, cache_->view(live.handle).value());
      expect_on_its_way(live);
    }
    return true;
  }
  if (paths_) {
    const bool has_all = found.device_pages >= live.tokens.size() / page_tokens;
    if (found.host_pages > 0 && !has_all) {
      any.clear();
      if (is_paused_) {
        any.push_back({.reason = MissReason::LoadCancelled});
      } else if (live.options.tier_max == Tier::Device) {
        any.push_back({.reason = MissReason::NotAsked});
      } else {
        if (setup_.compute_ns_per_token > 0 && before.load_bytes_per_ns > 0) {
          any.push_back({.reason = MissReason::RecomputeCheaper});
        }
        if (live.options.prefetch == Prefetch::BestEffort) any.push_back({.reason = MissReason::LoadTimedOut});
        if (has_moves_to_make()) any.push_back({.reason = MissReason::LoadFailed});
      }
    }
  }
  check_miss(live, admission->miss, any);
  start_running(live);
  if (held) check_start(live, *held);
  called();
  return true;
}

// Whether what was not on the device was to be loaded, as the simulated rates have it.
void Simulation::check_choice(const Live& live, const Admission& admission, SimPaths::Found found,
                              const Stats& before) {
  if (found.host_pages == 0 || live.options.tier_max == Tier::Device || is_paused_) return;
  if (live.options.prefetch == Prefetch::BestEffort) return;
  const bool loads = admission.loading_tokens > 0;
  if (setup_.compute_ns_per_token == 0) {
    // Where a move is still to be made, nothing is loaded: what has no other room is computed.
    if (!loads && !has_moves_to_make()) throw SimFailure("what is on the host is not loaded");
    return;
  }
  // Transfers that were not taken yet, or wait for others that come first in their path, are not known here.
  if (before.load_bytes_per_ns == 0 || before.transfers_in_flight != mover_->transfer_count()) return;
  std::uint64_t bytes = mover_->loading_bytes();
  const std::uint64_t page_bytes = cache_->geometry().page().page_bytes();
  const auto keys = paths_->keys_of(live.space, live.tokens);
  std::uint32_t fresh = 0;
  for (std::uint32_t i = 0; i < found.host_pages; ++i) {
    if (!mover_->is_being_loaded(paths_->page_of(keys[found.device_pages + i]))) ++fresh;
  }
  bytes += fresh * page_bytes;
  const double load_ns = static_cast<double>(bytes) / setup_.bytes_per_ns;
  const double compute_ns =
      static_cast<double>(found.host_pages) * setup_.page_tokens * static_cast<double>(setup_.compute_ns_per_token);
  counts_.add(load_ns < compute_ns ? SimEvent::LoadCheaper : SimEvent::ComputeCheaper);
  if (load_ns > 0.9 * compute_ns && load_ns < 1.1 * compute_ns) return;
  counts_.add(loads == (load_ns < compute_ns) ? SimEvent::RightChoice : SimEvent::WrongChoice);
}

void Simulation::start_running(Live& live) {
  const SequenceView view = cache_->view(live.handle).value();
  live.computed = view.computed_tokens;
  live.planned_end = view.computed_tokens;
  live.may_lose_copy = view.computed_tokens % setup_.page_tokens != 0;
  if (live.may_lose_copy) counts_.add(SimEvent::PartialHit);
  if (view.computed_tokens >= setup_.page_tokens) counts_.add(SimEvent::DeviceHit);
  if (view.computed_tokens > 0 && !computed_.contains(live.values[view.computed_tokens - 1])) {
    throw SimFailure("a hit on tokens that nobody has computed");
  }
  count_miss(view.miss);
  prompt_tokens_ += live.tokens.size();
  const std::uint32_t pages = view.computed_tokens / setup_.page_tokens;
  if (pages > live.waits_from) host_hit_tokens_ += std::uint64_t{pages - live.waits_from} * setup_.page_tokens;
  live.waits_from = UINT32_MAX;
}

void Simulation::stop_loading() {
  for (const auto& live : lives_) {
    if (!live->is_loading) continue;
    const Status status = cache_->stop_loading(live->handle);
    if (live->save_state == SaveState::Restoring) {  // its pages are nowhere else
      if (status) throw SimFailure("stop_loading of a sequence that is being restored");
      counts_.add(SimEvent::StoppedRestoring);
      continue;
    }
    if (!status) throw SimFailure("stop_loading: " + status.error().message);
    counts_.add(SimEvent::StoppedLoading);
    const SequenceView view = cache_->view(live->handle).value();
    if (view.is_loading && live->ahead != Ahead::No) {  // its steps are lost, and it waits for their end
      counts_.add(SimEvent::StoppedAhead);
      (void)follow_ahead(*live);
      if (live->ahead != Ahead::Lost) throw SimFailure("stop_loading, and its steps are not lost");
      called();
      return;
    }
    if (view.is_loading) throw SimFailure("stop_loading, and it still loads");
    live->is_loading = false;
    live->ahead = Ahead::No;
    std::vector<Miss> any;
    if (paths_) {
      any = paths_->why(request_of(*live), view.computed_tokens / setup_.page_tokens, now_);
      const std::size_t asked =
          std::min<std::size_t>(live->tokens.size(), live->options.match_tokens_max.value_or(UINT32_MAX));
      const bool has_all = view.computed_tokens / setup_.page_tokens >= asked / setup_.page_tokens;
      if (!has_all) any.assign({Miss{.reason = MissReason::LoadCancelled}});
    }
    check_miss(*live, view.miss, any);
    start_running(*live);
    if (setup_.has_groups()) check_start(*live, HeldGroups(*cache_, live->space));
    called();
    return;
  }
}

void Simulation::lookup() {
  const Space& space = spaces_[random_.below(setup_.key_space_name_count)];
  if (!space.is_known) return;
  std::vector<TokenId> tokens = draw_prompt(setup_.context_tokens_max);
  std::vector<ExtraKey> extra_keys;
  add_extra_keys(tokens, 0, extra_keys);
  const Result<Lookup> found = cache_->lookup(space.id, {.tokens = tokens, .extra_keys = extra_keys});
  called();
  if (!found) return;
  counts_.add(SimEvent::LookedUp);
  if (setup_.has_groups()) check_lookup(space.id, tokens, *found);
  if (!paths_) return;
  const SequenceOptions options;
  const SimPaths::Found there = paths_->find({.space = space.id, .tokens = tokens, .options = &options});
  if (found->matched_tokens - found->partial_tokens != there.device_pages * setup_.page_tokens) {
    throw SimFailure("lookup finds another number of tokens on the device");
  }
  if (found->host_tokens != there.host_pages * setup_.page_tokens) {
    throw SimFailure("lookup finds " + std::to_string(found->host_tokens) + " tokens on the host; there are " +
                     std::to_string(there.host_pages * setup_.page_tokens));
  }
}

// Hits and misses

void Simulation::count_miss(const Miss& miss) {
  ++miss_counts_[static_cast<std::size_t>(miss.reason)];
  if (miss.reason == MissReason::NotHeld && !setup_.has_groups())
    throw SimFailure("another group lacks something, and there is none");
  constexpr std::array kEvents = {SimEvent::MissNone,       SimEvent::MissNeverSeen,    SimEvent::MissEvictedDevice,
                                  SimEvent::MissLoadFailed, SimEvent::MissLoadTimedOut, SimEvent::MissLoadCancelled,
                                  SimEvent::MissRecompute,  SimEvent::MissKeySpace,     SimEvent::MissPartial,
                                  SimEvent::MissNotAsked,   SimEvent::MissNotHeld,      SimEvent::MissUnknown};
  static_assert(kEvents.size() == kMissReasonCount);
  const bool from_host = miss.reason == MissReason::Evicted && miss.tier == Tier::Host;
  counts_.add(from_host ? SimEvent::MissEvictedHost : kEvents[static_cast<std::size_t>(miss.reason)]);
}

void Simulation::check_miss(const Live& live, const Miss& miss, std::span<const Miss> any) {
  if (!paths_) return;
  const auto text = [](const Miss& each) {
    std::string name(to_string(each.reason));
    if (each.reason == MissReason::Evicted) {
      name += " from " + std::string(to_string(each.tier)) + " " + std::to_string(each.age_ns) + " ns ago";
    }
    return name;
  };
  if (std::ranges::none_of(any, [&](const Miss& each) { return is_same(each, miss); })) {
    std::string list;
    for (const Miss& each : any) list += (list.empty() ? "" : ", or ") + text(each);
    throw SimFailure("sequence " + std::to_string(live.number) + " missed because: " + text(miss) +
                     "; the simulation says: " + list);
  }
  // With a disk tier there is more that may have happened meanwhile.
  const bool is_exact = any.size() == 1 && !live.may_look;
  counts_.add(is_exact ? SimEvent::MissExact : files_ ? SimEvent::MissDisk : SimEvent::MissLoose);
}
}  // namespace quire::testing
