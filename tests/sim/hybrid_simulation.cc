// SPDX-License-Identifier: Apache-2.0
#include "hybrid_simulation.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "base/hash.h"
#include "tests/cache/group_pools.h"

namespace quire::testing {

HybridSimulation::HybridSimulation(std::uint64_t seed, SimCounts& counts, const SimMutation& mutation,
                                   SimDiskTier disk_tier)
    : counts_(counts), mutation_(mutation), random_(seed) {
  Random disk_random(mix64(seed) + 1);
  const bool is_drawn = disk_random.below(3) == 0;
  const bool has_disk = disk_tier == SimDiskTier::Always || (disk_tier == SimDiskTier::Drawn && is_drawn);
  setup_ = draw_hybrid_sim_setup(random_, has_disk ? &disk_random : nullptr, mutation_);
  SimSetup& sim = setup_.sim;
  if (!mutation_.checks_names && mutation_.breaks_bytes) {  // a fault that is not noticed has to happen
    sim.lost_write_chance = 60;
    sim.misdirected_chance = 40;
  }
  if (!mutation_.breaks_bytes) {
    sim.flip_chance = 0;
    sim.lost_write_chance = 0;
    sim.misdirected_chance = 0;
  }
  const auto pools = transfer_pools(make_config(setup_).layout);
  if (has_disk) {
    files_ = std::make_unique<SimFiles>(sim, disk_paths(setup_), random_, counts_);
    stores_ = disk_stores(setup_);
    if (sim.zstd_level > 0) counts_.add(SimEvent::Compressed);
    if (sim.disk_write_bytes_per_day > 0) counts_.add(SimEvent::Endurance);
    for (std::size_t pool = 0; pool < pools.size(); ++pool) {
      host_pages_.emplace_back(static_cast<std::uint16_t>(pool));
    }
  }
  if (const Status opened = open_cache(); !opened) {
    throw SimFailure("open: " + opened.error().message + "\n" + to_string(setup_));
  }
  pool_of_group_.resize(setup_.groups.size());
  for (std::size_t pool = 0; pool < pools.size(); ++pool) {
    for (const std::uint32_t group : pools[pool]) pool_of_group_[group] = static_cast<std::uint16_t>(pool);
  }
  has_sides_ = std::ranges::any_of(setup_.groups, [](const CacheGroup& group) {
    return group.kind != GroupKind::Full && group.kind != GroupKind::Compressed;
  });
  has_state_ = std::ranges::any_of(setup_.groups, has_slot);
  has_replay_ = std::ranges::any_of(setup_.groups, [](const CacheGroup& group) { return group.replay.tokens > 0; });
  spaces_.resize(sim.key_space_name_count);
  // Documents that are asked about again and again, some of which begin like others.
  for (std::uint32_t i = 0; i < sim.document_count; ++i) {
    std::vector<TokenId> document;
    if (i > 0 && chance(60)) {
      document = documents_[below(i)];
      document.resize(1 + below(document.size()));
    }
    const std::uint32_t count = 1 + below(sim.context_tokens_max);
    while (document.size() < count) document.push_back(draw_token());
    documents_.push_back(std::move(document));
  }
  if (sim.beginning_count > 0) share_pages();
}

// Documents become one page of their own, and pages that all have; often these are alike, too.
void HybridSimulation::share_pages() {
  constexpr std::uint32_t kSharedPages = 3;
  const std::uint32_t page_tokens = setup_.sim.page_tokens;
  std::vector<TokenId> shared;
  const bool are_alike = chance(70);
  while (shared.size() < std::size_t{kSharedPages} * page_tokens) {
    const bool repeats = are_alike && shared.size() >= page_tokens;
    shared.push_back(repeats ? shared[shared.size() - page_tokens] : draw_token());
  }
  for (std::size_t i = 0; i < documents_.size(); ++i) {
    std::vector<TokenId>& document = documents_[i];
    if (i >= setup_.sim.beginning_count) document = documents_[i % setup_.sim.beginning_count];
    while (document.size() < page_tokens) document.push_back(draw_token());
    document.resize(page_tokens);
    const std::uint32_t page_count = 1 + below(kSharedPages);
    document.insert(document.end(), shared.begin(), shared.begin() + (std::ptrdiff_t{page_count} * page_tokens));
  }
}

HybridSimulation::~HybridSimulation() {
  count_groups();
  flights_.clear();
  lives_.clear();
  cache_.reset();  // before its files
}

Status HybridSimulation::open_cache() {
  std::vector<HostPages*> hosts;
  for (SimHostPages& host : host_pages_) hosts.push_back(&host);
  QUIRE_TRY_ASSIGN(
      cache_, files_ ? CachePeer::open(make_config(setup_), files_->disk(), hosts) : Cache::open(make_config(setup_)));
  engine_ = std::make_unique<GroupsEngine>(*cache_);
  mover_ = std::make_unique<SimMover>(*cache_, setup_.sim, mutation_, random_, counts_);
  for (SimHostPages& host : host_pages_) host.set_mover(mover_.get());
  (void)cache_->set_ready_callback([this](SequenceId id) { ready_.push_back(id); });
  return {};
}

void HybridSimulation::count_groups() {
  if (cache_ == nullptr) return;
  for (std::uint32_t i = 0; i < setup_.groups.size(); ++i) {
    if (pool_of_group_[i] == 0) continue;
    const GroupStats stats = cache_->group_stats(i).value();
    counts_.add(SimEvent::SnapshotsRestored, stats.restored_snapshot_total);
    counts_.add(SimEvent::SidesEvicted, stats.evicted_page_total);
    counts_.add(SimEvent::SidesOnDiskStored, stats.disk_stored_page_total);
    counts_.add(SimEvent::SidesOnDiskLoaded, stats.disk_loaded_page_total);
  }
}

// What must hold after every operation

void HybridSimulation::check_accounts() {
  const auto wrong = [](const std::string& what) { throw SimFailure(what); };
  const Stats stats = cache_->stats().value();
  for (std::uint32_t i = 0; i < setup_.groups.size(); ++i) {
    const GroupStats group = cache_->group_stats(i).value();
    const std::string of_group = " of group '" + setup_.groups[i].name + "'";
    const std::uint32_t device =
        group.free_pages + group.open_pages + group.sealed_pages + group.private_pages + group.fenced_pages;
    if (device != group.page_count) wrong("device pages" + of_group + ": " + std::to_string(device) + " in all");
    const std::uint32_t host = group.host_free_pages + group.host_sealed_pages;
    if (host > group.host_page_count) wrong("host pages" + of_group + ": " + std::to_string(host) + " in all");
    if (stats.transfers_in_flight == 0 && host != group.host_page_count) {
      wrong("no transfer is in flight, but host pages" + of_group + " are " + std::to_string(host) + " in all");
    }
  }
  if (stats.transfers_in_flight < mover_->transfer_count()) wrong("the cache has forgotten a transfer");
  if (stats.unknown_completion_count != odd_completion_count_) wrong("completions of nothing are not counted");
  // Some begin anew, and count again: for want of a page, or where a step that did not happen may have spoilt a state.
  for (std::size_t i = 0; i < kMissReasonCount; ++i) {
    if (stats.miss_requests[i] < miss_counts_[i]) wrong("miss_requests are not those that were told");
  }
  if (files_) check_disk_accounts(stats);
  if (stats.prompt_tokens < prompt_tokens_) wrong("prompt_tokens are not those of the sequences admitted");
  const auto loading = std::ranges::count_if(lives_, [](const auto& live) { return live->is_loading; });
  if (stats.loading_sequence_count != loading) wrong("another number of sequences is loading");
  for (const auto& live : lives_) {
    const SequenceView view = cache_->view(live->handle).value();
    if (view.token_count != live->tokens.size()) wrong("a sequence has another number of tokens");
    if (view.is_loading != live->is_loading) wrong("a sequence is loading, or is not");
    if (view.is_waiting == live->is_admitted) wrong("a sequence waits, or does not");
  }
}

void HybridSimulation::step() {
  ++step_count_;
  const SimSetup& sim = setup_.sim;
  counts_.tell([&] { return "step " + std::to_string(step_count_) + " at " + std::to_string(now_); });
  now_ += random_.below(static_cast<std::uint32_t>(sim.op_ns_max) + 1);
  if (chance(1)) now_ += sim.op_ns_max * random_.below(200);
  if (step_count_ % sim.wind_down_every == 0) {
    wind_down();
  } else if (chance(sim.mover_chance)) {
    if (files_ && chance(sim.disk_chance)) {
      disk_operation();
    } else {
      mover_operation();
    }
  } else {
    engine_operation();
  }
  if (files_ && (wants_restart_ || files_->disk().is_dead())) restart();
  check_accounts();
  if (mutation_.checks_invariants && step_count_ % sim.check_every == 0) {
    called();
    const Status status = cache_->check_invariants();
    if (!status) throw SimFailure("check_invariants: " + status.error().message);
  }
}

// The mover

void HybridSimulation::mover_operation() {
  const SimSetup& sim = setup_.sim;
  const std::uint32_t kind = random_.below(100);
  if (kind < 15) {
    take_transfers(1 + random_.below(6));
  } else if (kind < 22) {
    take_cancellations();
  } else if (kind < 80) {
    const std::uint32_t count = 1 + random_.below(16);
    for (std::uint32_t i = 0; i < count && mover_->work(now_); ++i) {
    }
  } else {
    apply(chance(40));
  }
  if (chance(sim.flip_chance)) mover_->flip_a_bit();
  if (random_.below(1000) < sim.stuck_chance) {
    counts_.add(SimEvent::Stuck);
    mover_->get_stuck(now_ + (sim.op_ns_max * (20 + random_.below(400))));
  }
}

void HybridSimulation::take_transfers(std::uint32_t count_max) {
  std::array<TransferPlan, 8> plans;
  const auto taken = cache_->take_transfers(std::span(plans).first(std::min<std::size_t>(count_max, plans.size())));
  if (!taken) throw SimFailure("take_transfers: " + taken.error().message);
  mover_->take(*taken, now_);
  called();
}

void HybridSimulation::take_cancellations() {
  std::array<TransferId, 4> ids;
  const auto taken = cache_->take_cancellations(ids);
  if (!taken) throw SimFailure("take_cancellations: " + taken.error().message);
  mover_->cancel(*taken);
  called();
}

void HybridSimulation::add_odd_completions(std::vector<Completion>& completions) {
  const SimSetup& sim = setup_.sim;
  const auto insert = [&](const Completion& odd, SimEvent event) {
    counts_.add(event);
    ++odd_completion_count_;
    completions.insert(completions.begin() + below(completions.size() + 1), odd);
  };
  // Those of the history, then those of all other groups.
  const std::uint32_t transfer_count = 2 * sim.transfer_count_max;
  if (chance(sim.odd_completion_chance) && !past_completions_.empty()) {
    insert(past_completions_[below(past_completions_.size())], SimEvent::Duplicate);
  }
  if (chance(sim.odd_completion_chance)) {
    insert({.id = {transfer_count + random_.below(3), random_.below(5)}}, SimEvent::UnknownTransfer);
  }
  if (chance(sim.odd_completion_chance)) {
    insert({.id = {random_.below(transfer_count), UINT32_MAX - random_.below(9)}, .good_pages = 1},
           SimEvent::StaleGeneration);
  }
  if (chance(sim.odd_completion_chance) && !completions.empty()) {
    Completion odd = completions.front();
    odd.rank = static_cast<std::uint16_t>(sim.rank_count + random_.below(70));
    insert(odd, SimEvent::WrongRank);
  }
}

void HybridSimulation::apply(bool all) {
  const std::vector<Completion> real = mover_->collect(all);
  std::vector<Completion> completions = real;
  if (files_) {
    for (const Completion& completion : collect_disk(all)) {
      completions.insert(completions.begin() + below(completions.size() + 1), completion);
    }
  }
  add_odd_completions(completions);
  told_ = now_;
  ready_.clear();
  const std::vector<SimMover::Over> over = mover_->finish(real);
  const Status status = cache_->apply(completions, now_);
  if (!status) throw SimFailure("apply: " + status.error().message);
  called();
  for (const SimMover::Over& each : over) {
    if (each.pool_index == 0) continue;
    const bool is_load = each.kind == TransferKind::Load;
    counts_.add(is_load ? SimEvent::SidesLoaded : SimEvent::SidesStored, each.good_pages);
    if (is_load && each.outcome != TransferOutcome::Ok) counts_.add(SimEvent::SidesLoadFailed);
  }
  past_completions_.insert(past_completions_.end(), real.begin(), real.end());
  if (past_completions_.size() > 16) {
    past_completions_.erase(past_completions_.begin(), past_completions_.end() - 16);
  }
  std::erase_if(keeps_, [&](const Keep& keep) {
    if (keep.expires_at > now_) return false;
    counts_.add(SimEvent::KeepExpired);
    return true;
  });
  note_ready(completions.size());
}

// Sequences that load no longer. What they found is theirs, and nothing has come since: trying every position now gives
// the same. One that has looked on disk goes on as soon as the cache hears of that, before it hears of what follows.
void HybridSimulation::note_ready(std::size_t completion_count) {
  std::vector<SequenceId> ids;
  for (const auto& live : lives_) {
    if (!live->is_loading) continue;
    const SequenceView view = cache_->view(live->handle).value();
    const bool is_late =
        live->options.prefetch == Prefetch::Timeout && now_ - live->admitted_at >= live->options.load_timeout_ns;
    if (view.is_loading && is_late) throw SimFailure("a sequence waits longer than it asked for");
    if (view.is_loading) continue;
    live->is_loading = false;
    ids.push_back(live->handle.id());
    counts_.add(SimEvent::Ready);
    if (view.computed_tokens > live->matched) counts_.add(SimEvent::HostHit);
    if (view.computed_tokens < live->matched) counts_.add(SimEvent::LoadedShorter);
    const HeldGroups held(*cache_, live->space);
    const bool is_last = !live->may_look || completion_count == 1;
    if (live->may_look && is_last) counts_.add(SimEvent::LookedHitChecked);
    start_running(*live, is_last ? &held : nullptr);
  }
  std::ranges::sort(ids);
  std::ranges::sort(ready_);
  if (ready_ != ids) throw SimFailure("the ready callback was not called for the sequences that are ready");
}

// Until nothing is on its way.
void HybridSimulation::pump() {
  mover_->get_unstuck();
  for (int round = 0; round < 10'000; ++round) {
    take_transfers(8);
    if (chance(20)) take_cancellations();
    while (mover_->work(now_)) {
    }
    if (files_) run_lanes();
    if (mover_->report_count() > 0 || !disk_outbox_.empty()) {
      apply(true);
      continue;
    }
    if (const auto next = mover_->next_end()) {
      now_ = std::max(now_ + 1, *next);
      continue;
    }
    apply(true);  // nothing to say but the time
    if (!mover_->is_idle() || cache_->stats().value().transfers_in_flight > 0) continue;
    const bool waits = std::ranges::any_of(lives_, [](const auto& live) { return live->is_loading; });
    if (waits) throw SimFailure("a sequence loads, and nothing is on its way");
    return;
  }
  throw SimFailure("the mover is never done");
}

// Winding down

void HybridSimulation::wind_down() {
  counts_.add(SimEvent::WindDown);
  const bool is_quick = chance(50);  // reset with transfers in flight
  while (!flights_.empty()) finish();
  if (!is_quick) pump();
  unpause();
  wake();
  while (!lives_.empty()) end_one(*lives_.front());
  while (!keeps_.empty()) unkeep();

  // A lone request of any length that fits is served.
  std::vector<TokenId> prompt = draw_prompt();
  if (chance(50)) {
    while (prompt.size() < setup_.sim.context_tokens_max) prompt.push_back(draw_token());
  }
  SequenceOptions options;
  options.prefetch = pick(random_, std::array{Prefetch::Off, Prefetch::BestEffort, Prefetch::Wait});
  if (begin_with(below(spaces_.size()), std::move(prompt), options)) {
    Live& lone = *lives_.back();
    std::uint32_t rounds = 0;
    const auto go_on = [&] {
      if (++rounds > 20 + (2 * setup_.sim.context_tokens_max)) throw SimFailure("a lone request is never served");
      pump();
    };
    while (!lone.is_admitted) {
      if (!admit_one(lone)) go_on();
    }
    if (lone.is_loading) pump();
    for (;;) {
      const std::uint32_t pending = cache_->view(lone.handle).value().pending_tokens;
      if (pending == 0) break;
      const StepEntry entry{.sequence = &lone.handle, .token_count = std::min(setup_.sim.step_tokens_max, pending)};
      Live* const alone = &lone;
      if (!plan_entries({&entry, 1}, {&alone, 1})) {
        go_on();
        continue;
      }
      run_up_to(0);
      const StepResult result;
      if (const Status done = cache_->finish_step(flights_.front().step, {&result, 1}); !done) {
        throw SimFailure("finish_step: " + done.error().message);
      }
      called();
      --lone.steps_in_flight;
      flights_.pop_front();
    }
    counts_.add(SimEvent::LoneServed);
    end_one(lone);
  }

  if (!is_quick) pump();
  if (chance(75)) return;  // what is cached stays for those who come next
  if (cache_->stats().value().transfers_in_flight > 0) counts_.add(SimEvent::ResetInFlight);
  if (files_) {
    // Those that the cache does not know at the moment stay on disk.
    constexpr std::array<TokenId, 1> kToken = {0};
    for (Space& space : spaces_) {
      if (space.is_known && cache_->lookup(space.id, {.tokens = kToken})) note_drop(space);
    }
  }
  if (const Status status = cache_->reset(); !status) throw SimFailure("reset: " + status.error().message);
  called();
  pump();
  for (std::uint32_t i = 0; i < setup_.groups.size(); ++i) {
    const GroupStats stats = cache_->group_stats(i).value();
    const std::string of_group = " of group '" + setup_.groups[i].name + "' is not given back";
    if (stats.free_pages != stats.page_count) throw SimFailure("a device page" + of_group);
    if (stats.host_free_pages != stats.host_page_count) throw SimFailure("a host page" + of_group);
    if (stats.used_slots > 0) throw SimFailure("a state slot" + of_group);
  }
}

}  // namespace quire::testing
