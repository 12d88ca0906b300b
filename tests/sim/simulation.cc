// SPDX-License-Identifier: Apache-2.0
#include "simulation.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "tests/cache/group_pools.h"

namespace quire::testing {

namespace {

// The tags of pages that a sequence has saved are numbers of its own, and of the pool: the history, or another group.
bool is_page_of(const PageTransfer& page, SequenceId id, std::size_t group_count) {
  const std::uint64_t first = mix64((std::uint64_t{id.generation} << 32U) | id.index) + page.place;
  for (std::uint64_t pool = 0; pool <= group_count; ++pool) {
    if (page.name_tag == mix64(first + (pool << 32U))) return true;
  }
  return false;
}

}  // namespace

Simulation::Simulation(std::uint64_t seed, SimCounts& counts, const SimShape& shape)
    : counts_(counts),
      mutation_(shape.mutation),
      random_(seed),
      setup_(draw_sim_setup(seed, shape, random_)),
      has_chunks_(setup_.has_chunks),
      chunk_random_(~seed) {
  if (setup_.has_disk) {
    files_ = std::make_unique<SimFiles>(setup_, disk_paths(setup_), random_, counts_);
    stores_ = disk_stores(setup_);
    if (setup_.zstd_level > 0) counts_.add(SimEvent::Compressed);
    if (setup_.disk_write_bytes_per_day > 0) counts_.add(SimEvent::Endurance);
  }
  const std::size_t pool_count = transfer_pools(make_config(setup_).layout).size();
  for (std::uint32_t rank = 0; rank < (setup_.has_rank_pages ? setup_.rank_count : 1); ++rank) {
    for (std::size_t pool = 0; pool < pool_count; ++pool) {
      host_pages_.emplace_back(SimMover::Place{.rank = rank, .pool_index = static_cast<std::uint16_t>(pool)});
    }
  }
  if (const Status opened = open_cache(); !opened) {
    throw SimFailure("open: " + opened.error().message + "\n" + to_string(setup_));
  }
  spaces_.resize(setup_.key_space_name_count);
  if (setup_.has_groups()) open_groups();
  make_texts();
}

// What prompts are made of: a few beginnings that many share, pieces that follow them, and documents that are asked
// about again and again.
void Simulation::make_texts() {
  for (int i = 0; i < 6; ++i) {
    std::vector<TokenId>& segment = segments_.emplace_back();
    const std::uint32_t count = 1 + random_.below(setup_.segment_tokens_max);
    for (std::uint32_t k = 0; k < count; ++k) segment.push_back(draw_token());
  }
  for (std::uint32_t i = 0; i < setup_.document_count; ++i) {
    std::vector<TokenId> document = segments_[i % 2];
    const std::uint32_t count = 1 + random_.below(setup_.context_tokens_max);
    while (document.size() < count) document.push_back(draw_token());
    documents_.push_back(std::move(document));
  }
  if (setup_.beginning_count > 0) share_pages();
}

// Documents become one page of their own, and pages that all have; often these are alike, too.
void Simulation::share_pages() {
  constexpr std::uint32_t kSharedPages = 3;
  std::vector<TokenId> shared;
  const bool are_alike = chance(70);
  while (shared.size() < std::size_t{kSharedPages} * setup_.page_tokens) {
    const bool repeats = are_alike && shared.size() >= setup_.page_tokens;
    shared.push_back(repeats ? shared[shared.size() - setup_.page_tokens] : draw_token());
  }
  for (std::size_t i = 0; i < documents_.size(); ++i) {
    std::vector<TokenId>& document = documents_[i];
    if (i >= setup_.beginning_count) document = documents_[i % setup_.beginning_count];
    while (document.size() < setup_.page_tokens) document.push_back(draw_token());
    document.resize(setup_.page_tokens);
    const std::uint32_t page_count = 1 + random_.below(kSharedPages);
    document.insert(document.end(), shared.begin(), shared.begin() + (std::ptrdiff_t{page_count} * setup_.page_tokens));
  }
}

Simulation::~Simulation() {
  count_groups();
  flights_.clear();
  lives_.clear();
  close_cache();
}

Status Simulation::open_cache() {
  std::vector<HostPages*> hosts;
  for (SimHostPages& host : host_pages_) hosts.push_back(&host);
  CacheConfig config = make_config(setup_);
  if (setup_.has_remote) open_remote(config);
  QUIRE_TRY_ASSIGN(
      cache_, files_ ? CacheForTests::open(std::move(config), files_->disk(), hosts) : Cache::open(std::move(config)));
  if (setup_.has_remote && setup_.shard_count > 1) QUIRE_TRY(open_remote_shards());
  if (setup_.has_groups()) engine_ = std::make_unique<GroupsEngine>(*cache_);
  mover_ = std::make_unique<SimMover>(*cache_, setup_, mutation_, random_, counts_);
  for (SimHostPages& host : host_pages_) host.set_mover(mover_.get());
  if (setup_.has_path_model) paths_ = std::make_unique<SimPaths>(*cache_, setup_);
  (void)cache_->set_ready_callback([this](SequenceId id) {
    ready_.push_back(id);
    const bool goes_on = mix64(static_cast<std::uint64_t>(told_) + id.index) % 5 == 0;
    if (goes_on && !cache_->apply({}, told_)) throw SimFailure("apply in a callback is refused");
  });
  return {};
}

// What must hold after every call

void Simulation::called() {
  ++counts_.api_calls;
  if (paths_) paths_->observe(told_);
}

void Simulation::check_accounts() {
  const Stats stats = cache_->stats().value();
  const auto wrong = [](const std::string& what) { throw SimFailure(what); };
  if (setup_.has_groups()) {
    check_group_accounts(stats);
  } else {
    const std::uint32_t device =
        stats.free_pages + stats.open_pages + stats.sealed_pages + stats.private_pages + stats.fenced_pages;
    if (device != setup_.device_page_count) wrong("device pages: " + std::to_string(device) + " in all");
    const std::uint32_t host = stats.host_free_pages + stats.host_filling_pages + stats.host_only_pages +
                               stats.host_copy_pages + stats.saved_pages;
    if (host > setup_.host_page_count) wrong("host pages: " + std::to_string(host) + " in all");
    if (stats.transfers_in_flight == 0 && host != setup_.host_page_count) {
      wrong("no transfer is in flight, but host pages are " + std::to_string(host) + " in all");
    }
    check_requests(stats);
  }
  if (is_paused_ && stats.transfers_in_flight > transfers_paused_) wrong("a transfer starts while they are paused");
  transfers_paused_ = stats.transfers_in_flight;
  has_ghosts_ = has_ghosts_ && !flights_.empty();
  if (stats.transfers_in_flight < mover_->transfer_count()) wrong("the cache has forgotten a transfer");
  if (stats.unknown_completion_count != odd_completion_count_) wrong("completions of nothing are not counted");
  if (stats.store_outcomes != store_outcomes_) wrong("store_outcomes are not those that were reported");
  if (files_) check_disk_accounts(stats);
  if (server_) check_remote_accounts(stats);
  if (stats.sequence_count < lives_.size()) wrong("a sequence is gone");
  const auto loading = std::ranges::count_if(lives_, [](const auto& live) { return live->is_loading; });
  if (has_ghosts_ ? stats.loading_sequence_count < loading : stats.loading_sequence_count != loading)
    wrong("another number of sequences is loading");
  if (setup_.ahead_chance > 0) expect_ready();
  // Which of them the disk has is not known here.
  const bool is_wrong = files_ ? stats.lost_page_total > CacheForTests::given_up_page_total(*cache_)
                               : paths_ && stats.lost_page_total != paths_->lost_count();
  if (is_wrong) wrong("lost_page_total is " + std::to_string(stats.lost_page_total));
  const std::uint64_t given_up = CacheForTests::given_up_page_total(*cache_);
  if (paths_ && given_up != paths_->lost_count()) {
    wrong(std::to_string(paths_->lost_count()) + " pages were given up, and " + std::to_string(given_up) + " are told");
  }
}

// What was counted of requests and their transfers.
void Simulation::check_requests(const Stats& stats) {
  const auto wrong = [](const std::string& what) { throw SimFailure(what); };
  if (has_ghosts_) {
    miss_counts_ = stats.miss_requests;
    prompt_tokens_ = stats.prompt_tokens;
    host_hit_tokens_ = stats.host_hit_tokens + stats.disk_hit_tokens + stats.remote_hit_tokens;
  }
  if (stats.miss_requests != miss_counts_) wrong("miss_requests are not those that were told");
  if (stats.prompt_tokens != prompt_tokens_) wrong("prompt_tokens are not those of the sequences admitted");
  // Which of them came from the disk is not known here.
  if (stats.host_hit_tokens + stats.disk_hit_tokens + stats.remote_hit_tokens != host_hit_tokens_) {
    wrong("host_hit_tokens are " + std::to_string(stats.host_hit_tokens) + ", not " + std::to_string(host_hit_tokens_));
  }
  std::uint32_t saved = 0;
  for (const auto& live : lives_) saved += live->host_pages;
  if (stats.saved_pages != saved) {
    wrong("saved_pages are " + std::to_string(stats.saved_pages) + ", not " + std::to_string(saved));
  }
}

void Simulation::step() {
  ++step_count_;
  if (counts_.prints)
    std::printf("step %llu at %lld\n", static_cast<unsigned long long>(step_count_), static_cast<long long>(now_));
  now_ += random_.below(static_cast<std::uint32_t>(setup_.op_ns_max) + 1);
  if (chance(1)) now_ += setup_.op_ns_max * random_.below(200);
  if (step_count_ % setup_.wind_down_every == 0) {
    wind_down();
  } else if (chance(setup_.mover_chance)) {
    if (files_ && chance(setup_.disk_chance)) {
      disk_operation();
    } else {
      mover_operation();
    }
  } else {
    engine_operation();
  }
  if (files_ && (wants_restart_ || files_->disk().is_dead())) restart();
  chunk_operation();
  check_accounts();
  if (mutation_.checks_fences && chance(5)) poison();
  if (mutation_.checks_invariants && step_count_ % setup_.check_every == 0) {
    ++counts_.api_calls;
    const Status status = cache_->check_invariants();
    if (!status) throw SimFailure("check_invariants: " + status.error().message);
  }
}

// Pages that nobody uses are filled with nonsense. Counted before: so many must be free.
void Simulation::poison() {
  if (is_asleep_ || setup_.has_groups()) return;
  // What holds pages without a sign of it: copies and moves to come, transfers that nobody has taken.
  if (!flights_.empty() || has_moves_) return;
  const auto has_hidden_pages = [](const auto& live) {
    return live->may_lose_copy || live->save_state == SaveState::Saving || live->save_state == SaveState::Restoring;
  };
  if (std::ranges::any_of(lives_, has_hidden_pages)) return;
  const Stats stats = cache_->stats().value();
  if (stats.fenced_pages > 0 || stats.transfers_in_flight != mover_->transfer_count()) return;
  std::vector<bool> is_used(std::size_t{setup_.device_page_count} + 1);
  const Status visited = cache_->visit_runs([&](const RunView& run) {
    if (run.tier == Tier::Host) return;
    for (const PageId page : run.pages) is_used[page.value] = true;
  });
  if (!visited) throw SimFailure(visited.error().message);
  for (const auto& live : lives_) {
    const SequenceView view = cache_->view(live->handle).value();
    for (const PageId page : view.pages()) is_used[page.value] = true;
  }
  std::uint32_t free = 0;
  for (std::uint32_t page = 1; page <= setup_.device_page_count; ++page) {
    if (is_used[page] || mover_->uses(PageId{page})) continue;
    ++free;
    for (std::uint32_t i = 0; i < setup_.page_tokens; ++i) {
      write_value((std::int64_t{page} * setup_.page_tokens) + i, mix64(now_ + page));
    }
  }
  if (free != stats.free_pages) {
    throw SimFailure(std::to_string(free) + " pages are used by nobody; free_pages is " +
                     std::to_string(stats.free_pages));
  }
  counts_.add(SimEvent::Poisoned);
}

// The mover

void Simulation::mover_operation() {
  const std::uint32_t kind = random_.below(100);
  if (kind < 15) {
    take_transfers(1 + random_.below(4));
  } else if (kind < 22) {
    take_cancellations();
  } else if (kind < 80) {
    const std::uint32_t count = 1 + random_.below(12);
    for (std::uint32_t i = 0; i < count && mover_->work(now_); ++i) {
    }
  } else {
    apply(chance(40));
  }
  if (chance(setup_.flip_chance)) mover_->flip_a_bit();
  if (random_.below(1000) < setup_.stuck_chance) {
    counts_.add(SimEvent::Stuck);
    mover_->get_stuck(now_ + (setup_.op_ns_max * (20 + random_.below(400))));
  }
}

void Simulation::take_transfers(std::uint32_t count_max) {
  std::array<TransferPlan, 8> plans;
  const auto taken = cache_->take_transfers(std::span(plans).first(std::min<std::size_t>(count_max, plans.size())));
  if (!taken) throw SimFailure("take_transfers: " + taken.error().message);
  if (paths_) {
    for (const TransferPlan& plan : *taken) {
      const bool is_save = plan.kind == TransferKind::Store && plan.priority == TransferPriority::Waiting;
      if (mutation_.checks_fences && !is_save) paths_->check_transfer(plan);
      if (plan.kind != TransferKind::Load) continue;
      std::vector<SimPaths::PathKey>& path = load_paths_[plan.id.index];
      path.clear();
      for (const PageTransfer& page : plan.pages) path.push_back(paths_->key_of_host_page(page.host_page));
    }
  }
  mover_->take(*taken, now_);
  note_owners(*taken);
  called();
  for (const auto& live : lives_) {
    if (!follow_ahead(*live)) continue;
    ++live->owed_calls;
    expect_on_its_way(*live);
  }
}

// Whose pages they are, where a sequence saves its own or has them back.
void Simulation::note_owners(std::span<const TransferPlan> plans) {
  const auto is_of = [&](const TransferPlan& plan, SequenceId id) {
    const auto is_its = [&](const PageTransfer& page) { return is_page_of(page, id, setup_.groups.size()); };
    return std::ranges::all_of(plan.pages, is_its);
  };
  for (const TransferPlan& plan : plans) {
    if (plan.kind == TransferKind::Load) {
      restores_.erase(plan.id.index);
      for (const auto& live : lives_) {
        if (live->save_state != SaveState::Restoring || !is_of(plan, live->handle.id())) continue;
        restores_[plan.id.index] = live->number;
      }
    } else if (plan.priority == TransferPriority::Waiting) {
      const auto save = std::ranges::find_if(saves_, [&](const Save& each) { return is_of(plan, each.id); });
      if (save == saves_.end()) throw SimFailure("pages are saved, and nobody's");
      const bool is_wanted = find(save->number) != nullptr;
      mover_->set_owner(plan.id, {.number = save->number, .token_count = is_wanted ? save->token_count : 0});
    }
  }
}

// Transfers of saved pages that are over, before the sequences are looked at.
void Simulation::note_saves(std::span<const SimMover::Over> over) {
  for (const SimMover::Over& each : over) {
    const auto count = static_cast<std::uint32_t>(each.pages.size());
    if (each.kind == TransferKind::Store) {
      const auto is_its = [&](const Save& one) { return is_page_of(each.pages.front(), one.id, setup_.groups.size()); };
      const auto save = std::ranges::find_if(saves_, is_its);
      if (save == saves_.end()) continue;
      Live* const live = find(save->number);
      save->pages_left -= count;
      if (save->pages_left == 0) saves_.erase(save);
      if (live == nullptr) continue;
      live->pages_left -= count;
      live->host_pages += each.good_pages;
      live->has_lost_pages = live->has_lost_pages || each.good_pages < count;
    } else if (const auto restore = restores_.find(each.id.index); restore != restores_.end()) {
      Live* const live = find(restore->second);
      restores_.erase(restore);
      if (live == nullptr) continue;
      live->pages_left -= count;
      live->host_pages -= count;
      live->has_lost_pages = live->has_lost_pages || each.good_pages < count;
    }
  }
}

void Simulation::take_cancellations() {
  std::array<TransferId, 4> ids;
  const auto taken = cache_->take_cancellations(ids);
  if (!taken) throw SimFailure("take_cancellations: " + taken.error().message);
  mover_->cancel(*taken);
  called();
}

void Simulation::add_odd_completions(std::vector<Completion>& completions) {
  const auto insert = [&](const Completion& odd, SimEvent event) {
    counts_.add(event);
    ++odd_completion_count_;
    completions.insert(completions.begin() + below(completions.size() + 1), odd);
  };
  if (chance(setup_.odd_completion_chance) && !past_completions_.empty()) {
    insert(past_completions_[below(past_completions_.size())], SimEvent::Duplicate);
  }
  const std::uint32_t transfer_count = setup_.transfer_count_max;
  if (chance(setup_.odd_completion_chance)) {
    insert({.id = {transfer_count + random_.below(3), random_.below(5)}}, SimEvent::UnknownTransfer);
  }
  if (chance(setup_.odd_completion_chance)) {
    insert({.id = {random_.below(transfer_count), UINT32_MAX - random_.below(9)}, .good_pages = 1},
           SimEvent::StaleGeneration);
  }
  if (chance(setup_.odd_completion_chance) && !completions.empty()) {
    Completion odd = completions.front();
    odd.rank = static_cast<std::uint16_t>(setup_.rank_count + random_.below(70));
    insert(odd, SimEvent::WrongRank);
  }
}

void Simulation::apply(bool all) {
  std::vector<Completion> completions = mover_->collect(all);
  std::vector<Completion> real = completions;
  std::vector<PageTransfer> arrived;
  for (const Completion& completion : collect_disk(all)) {
    if (completion.kind == TransferKind::LoadFromBelow) {
      const std::vector<PageTransfer>& pages = arrived_[completion.id.index];
      arrived.insert(arrived.end(), pages.begin(), pages.end());
    }
    completions.insert(completions.begin() + below(completions.size() + 1), completion);
  }
  const std::optional<DiskChoice> choice = files_ ? disk_choice(completions) : std::nullopt;
  has_disk_rate_ = has_disk_rate_ || std::ranges::any_of(completions, [](const Completion& each) {
                     return each.kind == TransferKind::LoadFromBelow && each.moved_bytes > 0;
                   });
  add_odd_completions(completions);
  told_ = now_;
  ready_.clear();
  std::vector<Coming> on_their_way;
  if (paths_) {
    mover_->for_each_load([&](TransferId id, TimeNs taken_at) {
      for (const SimPaths::PathKey key : load_paths_[id.index]) on_their_way.push_back({key, taken_at});
    });
  }
  const std::vector<SimMover::Over> over = mover_->finish(real);
  const Status status = cache_->apply(completions, now_);
  if (!status) throw SimFailure("apply: " + status.error().message);
  for (const SimMover::Over& each : over) {
    const bool is_store = each.kind == TransferKind::Store;
    if (is_store) ++store_outcomes_[static_cast<std::size_t>(each.outcome)];
    if (each.pool_index == 0) continue;
    counts_.add(is_store ? SimEvent::AnchoredStored : SimEvent::AnchoredLoaded, each.good_pages);
    if (!is_store && each.outcome != TransferOutcome::Ok) counts_.add(SimEvent::AnchoredLoadFailed);
  }
  check_arrived(arrived);
  note_saves(over);
  past_completions_.insert(past_completions_.end(), real.begin(), real.end());
  if (past_completions_.size() > 16) {
    past_completions_.erase(past_completions_.begin(), past_completions_.end() - 16);
  }
  // What failed is known to those who waited for it before the tree is looked at anew.
  if (paths_) {
    for (const auto& live : lives_) {
      if (!live->is_loading) continue;
      const auto keys = paths_->keys_of(live->space, live->tokens);
      for (const SimMover::Over& each : over) {
        if (each.kind != TransferKind::Load || each.outcome == TransferOutcome::Ok) continue;
        const bool concerns = std::ranges::any_of(load_paths_[each.id.index], [&](SimPaths::PathKey key) {
          return std::ranges::find(keys, key) != keys.end();
        });
        if (!concerns) continue;
        live->load_troubles.insert(each.outcome == TransferOutcome::Cancelled ? MissReason::LoadCancelled
                                                                              : MissReason::LoadFailed);
      }
    }
  }
  std::erase_if(keeps_, [&](const Keep& keep) {
    if (keep.expires_at > now_) return false;
    counts_.add(SimEvent::KeepExpired);
    return true;
  });
  note_ready(on_their_way, completions.size());
  if (choice) check_disk_choice(*choice);
  called();
  if (paths_) note_brought(over);
}

// Sequences that load no longer. Called before the paths are looked at again.
void Simulation::note_ready(std::span<const Coming> on_their_way, std::size_t completion_count) {
  struct Woken {
    Live* live;
    SequenceView view;
    std::vector<Miss> any;
  };
  std::vector<Woken> woken;
  std::vector<SequenceId> ids;
  for (const auto& live : lives_) {
    for (; live->owed_calls > 0; --live->owed_calls) ids.push_back(live->handle.id());
    if (live->save_state == SaveState::Saving && live->pages_left == 0) {
      const SequenceView view = cache_->view(live->handle).value();
      if (view.is_waiting == live->has_lost_pages) {
        throw SimFailure(view.is_waiting ? "a sequence waits though its pages were not saved"
                                         : "a sequence runs on though its pages were saved");
      }
      if (view.computed_tokens != live->computed) throw SimFailure("a saved sequence has computed another number");
      live->save_state = view.is_waiting ? SaveState::Saved : SaveState::None;
      if (!view.is_waiting) {
        counts_.add(SimEvent::SaveFailed);
        live->is_admitted = true;
        live->is_preempted = false;
        live->host_pages = 0;
        ids.push_back(live->handle.id());
      } else {
        counts_.add(SimEvent::SavedWhole);
        live->may_lose_copy = false;
      }
      continue;
    }
    if (!live->is_loading) continue;
    const bool was_ahead = live->ahead != Ahead::No;
    if (live->options.plan_while_loading && live->save_state == SaveState::None) {
      if (follow_ahead(*live)) ids.push_back(live->handle.id());
      if (was_ahead || live->ahead != Ahead::No) continue;
    }
    const SequenceView view = cache_->view(live->handle).value();
    if (live->save_state == SaveState::Restoring) {
      if (view.is_loading != (live->pages_left > 0)) {
        throw SimFailure(view.is_loading ? "a sequence is restored for ever" : "a sequence is restored too soon");
      }
      if (view.is_loading) continue;
      ids.push_back(live->handle.id());
      end_restoring(*live, view);
      continue;
    }
    const bool is_late =
        live->options.prefetch == Prefetch::Timeout && now_ - live->admitted_at >= live->options.load_timeout_ns;
    if (is_late) live->load_troubles.insert(MissReason::LoadTimedOut);
    if (view.is_loading && is_late) throw SimFailure("a sequence waits longer than it asked for");
    if (view.is_loading) continue;
    live->is_loading = false;
    ids.push_back(live->handle.id());
    woken.push_back({.live = live.get(), .view = view});
  }
  std::ranges::sort(ids);
  std::vector<SequenceId> told = ready_;
  std::ranges::sort(told);
  if (told != ids) {
    std::string text = "the ready callback was not called for the sequences that are ready:";
    for (const SequenceId id : ids) text += " " + std::to_string(id.index) + "." + std::to_string(id.generation);
    text += "; but for:";
    for (const SequenceId id : told) text += " " + std::to_string(id.index) + "." + std::to_string(id.generation);
    throw SimFailure(text);
  }
  counts_.add(SimEvent::Ready, woken.size());
  if (paths_) {
    // It woke up between what was seen before and what is seen now: either may be what it saw.
    const auto add_reasons = [&](Woken& each) {
      const Live& live = *each.live;
      const std::uint32_t found = each.view.computed_tokens / setup_.page_tokens;
      const std::size_t asked =
          std::min<std::size_t>(live.tokens.size(), live.options.match_tokens_max.value_or(UINT32_MAX));
      const bool has_all = found >= asked / setup_.page_tokens;
      const auto keys = paths_->keys_of(live.space, live.tokens);
      // What is on the host does not count for one whose key space was dropped while it waited.
      if (has_all || live.is_retired || paths_->tier_of(keys[found]) != Tier::Host) {
        const std::vector<Miss> reasons = paths_->why(request_of(live), found, now_);
        each.any.insert(each.any.end(), reasons.begin(), reasons.end());
      }
      // With a disk tier, pages of others may have come from there, for which it does not wait, and gone again, before
      // it woke up.
      const bool lacks_pages = found < live.tokens.size() / setup_.page_tokens;
      if (files_) each.any.push_back({.reason = MissReason::PartialPage});
      if (files_ && lacks_pages) {
        for (const MissReason reason : {MissReason::NeverSeen, MissReason::Unknown, MissReason::LoadFailed}) {
          each.any.push_back({.reason = reason});
        }
        if (found == 0) each.any.push_back({.reason = MissReason::KeySpaceDiffers});
      }
      if (live.may_look && lacks_pages) {
        for (const MissReason reason : {MissReason::LoadCancelled, MissReason::LoadTimedOut}) {
          each.any.push_back({.reason = reason});
        }
      }
      if (has_all) return;
      // One that has let go of its path chooses anew when there is room.
      if (setup_.compute_ns_per_token > 0) each.any.push_back({.reason = MissReason::RecomputeCheaper});
      for (const MissReason trouble : live.load_troubles) each.any.push_back({.reason = trouble});
      if (setup_.load_timeout_ns > 0) each.any.push_back({.reason = MissReason::LoadTimedOut});
      // Nothing is on its way, and there is no room for more. A load that was taken earlier may have been called off
      // without the mover having heard of it.
      const bool is_coming = std::ranges::all_of(std::span(keys).subspan(found), [&](SimPaths::PathKey key) {
        return std::ranges::any_of(on_their_way, [&](const Coming& coming) {
          return coming.key == key && coming.taken_at >= live.admitted_at;
        });
      });
      if (!is_coming) each.any.push_back({.reason = MissReason::LoadFailed});
    };
    for (Woken& each : woken) add_reasons(each);
    paths_->observe(now_);
    for (Woken& each : woken) add_reasons(each);
  }
  for (const Woken& each : woken) {
    if (each.view.computed_tokens > each.live->matched) counts_.add(SimEvent::HostHit);
    check_miss(*each.live, each.view.miss, each.any);
    start_running(*each.live);
    if (!setup_.has_groups()) continue;
    if (each.view.computed_tokens < each.live->matched) counts_.add(SimEvent::LoadedShorter);
    // What it found is its own, and nothing has come since: trying every position now gives the same. One that has
    // looked on disk goes on as soon as the cache hears of that, before it hears of what follows.
    if (each.live->may_look && completion_count > 1) continue;
    if (each.live->may_look) counts_.add(SimEvent::LookedHitChecked);
    check_start(*each.live, HeldGroups(*cache_, each.live->space));
  }
}

void Simulation::move_on() {
  take_transfers(8);
  while (mover_->work(now_)) {
  }
  if (const auto next = mover_->next_end()) now_ = std::max(now_, *next);
  while (mover_->work(now_)) {
  }
  for (std::size_t lane = 0; files_ && lane < lane_stuck_until_.size(); ++lane) {
    for (std::uint32_t shard = 0; shard < setup_.shard_count; ++shard) {
      while (now_ >= lane_stuck_until_[lane] && run_lane(static_cast<DiskMover::Lane>(lane), shard)) {
      }
    }
  }
  apply(true);
}

void Simulation::pump() {
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
    if (server_ && is_flushing_) now_ += kDropPauseNs;
    apply(true);  // nothing to say but the time
    if (mover_->is_idle() && cache_->stats().value().transfers_in_flight == 0) {
      // Where the device has no room, a sequence waits for those that run.
      const bool has_running =
          std::ranges::any_of(lives_, [](const auto& live) { return live->is_admitted && !live->is_loading; });
      for (const auto& live : lives_) {
        if (live->is_loading && live->ahead != Ahead::Lost && !has_running)
          throw SimFailure("a sequence loads, and nothing is on its way");
        if (live->save_state == SaveState::Saving) throw SimFailure("a sequence is being saved for ever");
      }
      if (!directs_.empty()) throw SimFailure("a direct call is never answered");
      return;
    }
  }
  throw SimFailure("the mover is never done");
}

// Winding down

void Simulation::wind_down() {
  counts_.add(SimEvent::WindDown);
  const bool is_quick = chance(50);  // reset with transfers in flight
  while (!flights_.empty()) finish();
  if (!is_quick) pump();
  unpause();
  wake();
  while (!lives_.empty()) end_one(*lives_.front());
  while (!keeps_.empty()) unkeep();
  chunk_holds_.clear();

  // A lone request of any length that fits is served.
  const std::uint32_t name = random_.below(setup_.key_space_name_count);
  std::vector<TokenId> prompt = draw_prompt(setup_.context_tokens_max);
  if (chance(50)) {
    while (prompt.size() < setup_.context_tokens_max) prompt.push_back(draw_token());
  }
  SequenceOptions options;
  options.prefetch = pick(random_, std::array{Prefetch::Off, Prefetch::BestEffort, Prefetch::Wait});
  const bool is_begun = begin_with(name, std::move(prompt), {}, options);
  if (!is_begun && !is_quick && !files_) throw SimFailure("a lone request is refused");
  if (is_begun) {
    Live& lone = *lives_.back();
    std::uint32_t rounds = 0;
    const auto go_on = [&] {
      if (++rounds > 20 + (2 * setup_.context_tokens_max)) throw SimFailure("a lone request is never served");
      pump();
    };
    while (!lone.is_admitted) {
      if (!admit_one(lone)) go_on();
    }
    if (lone.is_loading) pump();
    if (lone.is_loading) throw SimFailure("a lone request loads for ever");
    while (cache_->view(lone.handle).value().pending_tokens > 0) {
      StepEntry entry{&lone.handle};
      entry.token_count = std::min(setup_.step_tokens_max, cache_->view(lone.handle).value().pending_tokens);
      const std::optional<PlanOutcome> outcome = ask_plan({&entry, 1});
      if (!outcome || !outcome->step) {
        refresh(lone);
        go_on();
        continue;
      }
      Live* const lives[] = {&lone};
      record_flight(*outcome->step, {&entry, 1}, lives);
      run_up_to(0);
      const StepResult result;
      complete_rows(flights_.front(), {&result, 1});
      const Status done = cache_->finish_step(flights_.front().step, {&result, 1});
      if (!done) throw SimFailure("finish_step: " + done.error().message);
      const FlightEntry& ran = flights_.front().entries.front();
      if (!ran.runs_again) lone.computed = ran.position + ran.known_count;
      lone.planned_end = lone.computed;
      --lone.steps_in_flight;
      flights_.pop_front();
      called();
      refresh(lone);
    }
    counts_.add(SimEvent::LoneServed);
    end_one(lone);
  }

  if (!is_quick) pump();
  if (chance(75)) return;  // what is cached stays for those who come next
  if (mover_->transfer_count() > 0) counts_.add(SimEvent::ResetInFlight);
  if (files_) {
    for (Space& space : spaces_) note_drop(space);  // also those that the cache does not know at the moment
  }
  const Status status = cache_->reset();
  if (!status) throw SimFailure("reset: " + status.error().message);
  called();
  pump();
  for (std::uint32_t i = 0; i < cache_->config().layout.groups().size(); ++i) {
    const GroupStats stats = cache_->group_stats(i).value();
    const std::string of_group = " of group '" + cache_->config().layout.groups()[i].name + "' is not given back";
    if (stats.free_pages != stats.page_count) throw SimFailure("a device page" + of_group);
    if (stats.host_free_pages != stats.host_page_count) throw SimFailure("a host page" + of_group);
    if (stats.used_slots > 0) throw SimFailure("a state slot" + of_group);
  }
  const Status rules = mutation_.checks_invariants ? cache_->check_invariants() : Status{};
  if (!rules) throw SimFailure("check_invariants: " + rules.error().message);
}

}  // namespace quire::testing
