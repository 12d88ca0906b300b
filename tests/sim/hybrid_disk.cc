// SPDX-License-Identifier: Apache-2.0
//
// The disk tier of the simulation of several groups: when each of its lanes runs and when the cache hears of it,
// flushes, and the end of the process, after which everything but the files is gone.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "hybrid_simulation.h"

namespace quire::testing {

// Lanes

void HybridSimulation::disk_operation() {
  const SimSetup& sim = setup_.sim;
  files_->draw_fault();
  if (chance(sim.disk_stuck_chance)) {
    // It catches up in between: a lane that always lags brings nothing that could be wrong.
    const std::size_t lane = chance(50) ? 0 : below(kDiskLanes.size());
    if (now_ >= lane_goes_until_[lane]) {
      counts_.add(SimEvent::DiskLaneStuck);
      const TimeNs lag_ns = sim.op_ns_max * (10 + random_.below(chance(4) ? 500 : 100));
      lane_stuck_until_[lane] = now_ + lag_ns;
      lane_goes_until_[lane] = now_ + lag_ns + (sim.op_ns_max * random_.below(50));
    }
  }
  // A day has to pass for a budget to come back.
  if (sim.disk_write_bytes_per_day > 0 && chance(1)) now_ += kHourNs * random_.below(4);
  const std::uint32_t count = 1 + random_.below(8);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::size_t lane = below(kDiskLanes.size());
    if (now_ >= lane_stuck_until_[lane]) (void)run_lane(kDiskLanes[lane]);
  }
}

bool HybridSimulation::run_lane(DiskMover::Lane lane) {
  if (!disk_mover().run(lane)) return false;
  ++counts_.mover_events;
  counts_.add(SimEvent::DiskLane);
  for (const std::uint32_t store : stores_) {
    if (!files_->disk().is_dead() && disk_mover().store_stats(store).failed_directories > 0) {
      has_failed_directories_ = true;
    }
    if (lane != DiskMover::Lane::Names) files_->look_after(disk_mover().store(store), store);
  }
  std::array<Completion, 64> room;
  for (Completion& completion : disk_mover().poll(room)) {
    // Time is the simulation's.
    completion.busy_ns = completion.moved_bytes > 0
                             ? std::max<TimeNs>(1, static_cast<TimeNs>(static_cast<double>(completion.moved_bytes) /
                                                                       setup_.sim.disk_bytes_per_ns))
                             : 0;
    counts_.tell([&] {
      return "    disk: " + std::to_string(completion.id.index) + "." + std::to_string(completion.id.generation) + " " +
             std::string(to_string(completion.outcome)) + ", " + std::to_string(completion.good_pages) + " pages";
    });
    const bool is_of_side = completion.id.index >= setup_.sim.transfer_count_max;
    if (is_of_side && completion.outcome == TransferOutcome::Failed) {
      counts_.add(completion.kind == TransferKind::LoadFromDisk ? SimEvent::SidesOnDiskLoadFailed
                                                                : SimEvent::SidesOnDiskStoreFailed);
    }
    const SimSetup& sim = setup_.sim;
    const bool is_of_page = completion.fault != TransferFault::None && completion.fault != TransferFault::Io;
    const std::uint32_t spoilt = sim.flip_chance + sim.lost_write_chance + sim.misdirected_chance;
    if (is_of_page && spoilt == 0 && !files_->is_damaged() && !files_->may_fail()) {
      throw SimFailure("a page that nothing has happened to is not what it should be: " +
                       std::string(to_string(completion.fault)));
    }
    disk_outbox_.push_back(completion);
  }
  return true;
}

void HybridSimulation::run_lanes() {
  lane_stuck_until_ = {};
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (const DiskMover::Lane lane : kDiskLanes) {
      while (run_lane(lane)) goes_on = true;
    }
  }
}

std::vector<Completion> HybridSimulation::collect_disk(bool all) {
  std::vector<Completion> collected;
  if (disk_outbox_.empty()) return collected;
  if (setup_.sim.reorders && disk_outbox_.size() > 1) {
    counts_.add(SimEvent::DiskReordered);
    for (std::size_t i = disk_outbox_.size(); i > 1; --i) std::swap(disk_outbox_[i - 1], disk_outbox_[below(i)]);
  }
  const std::size_t count = all ? disk_outbox_.size() : 1 + below(disk_outbox_.size());
  collected.assign(disk_outbox_.begin(), disk_outbox_.begin() + static_cast<std::ptrdiff_t>(count));
  disk_outbox_.erase(disk_outbox_.begin(), disk_outbox_.begin() + static_cast<std::ptrdiff_t>(count));
  counts_.add(SimEvent::DiskApplied, count);
  return collected;
}

// Whether a sequence that is admitted now may look for more of its tokens on disk.
bool HybridSimulation::may_look(const Live& live) const {
  return files_ && !is_paused_ && !live.is_retired && live.options.use_cache && live.options.tier_max >= Tier::Disk &&
         live.options.prefetch != Prefetch::BestEffort;
}

void HybridSimulation::check_disk_accounts(const Stats& stats) {
  if (stats.disk_hit_tokens > std::exchange(disk_hit_tokens_, stats.disk_hit_tokens)) {
    counts_.add(life_ > 0 ? SimEvent::HitAfterRestart : SimEvent::DiskHit);
  }
  if (stats.disk_has_failed && !std::exchange(has_disk_failed_, true)) counts_.add(SimEvent::DiskFailed);
  if (stats.disk_has_failed && !files_->may_fail()) throw SimFailure("a disk that works is said to have failed");
  const std::uint64_t per_day = setup_.sim.disk_write_bytes_per_day;
  if (per_day == 0) return;
  // What is written besides the pages, and for room, is paid back later. A store of a few pages may move all of them
  // when it makes room for one.
  const double slack = 2 * static_cast<double>(setup_.sim.disk_capacity_bytes);
  const double burst = static_cast<double>(per_day) / 24;
  const double rate = static_cast<double>(per_day) / (24 * static_cast<double>(kHourNs));
  if (static_cast<double>(stats.disk_stored_bytes) > burst + (rate * static_cast<double>(now_ - born_at_)) + slack) {
    throw SimFailure("more is written than the endurance budget allows: " + std::to_string(stats.disk_stored_bytes));
  }
}

// While the mover and those lanes that are not stuck do all they can.
void HybridSimulation::move_on() {
  take_transfers(8);
  while (mover_->work(now_)) {
  }
  if (const auto next = mover_->next_end()) now_ = std::max(now_, *next);
  while (mover_->work(now_)) {
  }
  for (std::size_t lane = 0; lane < kDiskLanes.size(); ++lane) {
    while (now_ >= lane_stuck_until_[lane] && run_lane(kDiskLanes[lane])) {
    }
  }
  apply(true);
}

// Key spaces

KeySpace HybridSimulation::key_space_of(std::uint32_t name) const {
  KeySpace key_space{.model = "hybrid " + std::to_string(name)};
  if (spaces_[name].name_index > 0) key_space.revision = std::to_string(spaces_[name].name_index);
  return key_space;
}

// From here on nothing with the old bytes may be found, on disk either.
void HybridSimulation::note_drop(Space& space) {
  space.salt = ++salt_count_;
  space.drop = Space::Drop::Asked;
  space.was_dropped = true;
}

// Flushing

// The names of pages that may well be on disk.
std::vector<PageName> HybridSimulation::known_names() const {
  const std::uint32_t page_tokens = setup_.sim.page_tokens;
  std::vector<PageName> names;
  const auto add = [&](std::uint32_t name, std::span<const TokenId> tokens) {
    const std::size_t page_count = tokens.size() / page_tokens;
    if (page_count == 0) return;
    names.resize(names.size() + page_count);
    name_pages({.parent = root_name(key_space_name(key_space_of(name)), page_tokens),
                .page_tokens = page_tokens,
                .first_position = 0,
                .tokens = tokens.first(page_count * page_tokens),
                .extra_keys = {}},
               std::span(names).last(page_count));
  };
  for (std::uint32_t name = 0; name < spaces_.size(); ++name) {
    for (const auto& document : documents_) add(name, document);
    for (const auto& text : texts_) add(name, text);
    for (const auto& live : lives_) add(name, live->tokens);
  }
  std::ranges::sort(names);
  const auto repeated = std::ranges::unique(names);
  names.erase(repeated.begin(), repeated.end());
  return names;
}

// Once, to go on some other time; or until it is done.
void HybridSimulation::flush() {
  const bool is_whole = chance(60) && !is_paused_;
  const bool is_new = !is_flushing_;
  std::vector<std::vector<PageName>> names(stores_.size());
  std::vector<FileStoreStats> before;
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    before.push_back(disk_mover().store_stats(stores_[i]));
    if (!is_whole || is_flushing_) continue;  // one that began earlier may have been over before they were written
    names[i] = known_names();
    FileStore& store = disk_mover().store(stores_[i]);
    std::erase_if(names[i], [&](const PageName& name) { return store.find({&name, 1}) == 0; });
  }
  counts_.add(SimEvent::FlushAsked);
  if (is_whole) mover_->get_unstuck();
  for (int round = 0;; ++round) {
    const auto failed_stores = [this] {
      return cache_->stats()->store_outcomes[static_cast<std::size_t>(TransferOutcome::Failed)];
    };
    if (!std::exchange(is_flushing_, true)) {
      failed_stores_ = failed_stores();
      for (Space& space : spaces_) {
        if (space.drop == Space::Drop::Asked) space.drop = Space::Drop::Flushing;
      }
    }
    const Result<bool> flushed = cache_->flush();
    called();
    if (!flushed || *flushed) {
      is_flushing_ = false;
      const bool is_good = flushed.has_value();
      counts_.add(is_good ? SimEvent::Flushed : SimEvent::FlushFailed);
      if (!is_good && flushed.error().code != ErrorCode::Io) throw SimFailure("flush: " + flushed.error().message);
      const bool may_fail = files_->may_fail() || failed_stores() > failed_stores_;
      if (!is_good && !may_fail) throw SimFailure("flush, on a good disk: " + flushed.error().message);
      for (Space& space : spaces_) {
        if (space.drop == Space::Drop::Flushing) space.drop = is_good ? Space::Drop::Flushed : Space::Drop::Asked;
      }
      // More than the endurance budget allows is written later, and so is what was used again meanwhile; everything
      // else is there.
      const bool is_all = setup_.sim.disk_write_bytes_per_day == 0 &&
                          setup_.sim.disk_write_policy != WritePolicy::Selective && is_whole && is_new && round > 0;
      if (is_good && is_all && !files_->may_fail() && CachePeer::unwritten_side_pages(*cache_) > 0) {
        throw SimFailure("flushed, and some pages of other groups are still to be written");
      }
      // After a sync that has failed, the next process reads what may not be there, and syncs it without complaint.
      const bool may_lie = setup_.sim.disk_sync_failures + setup_.sim.opening_chance > 0;
      for (std::size_t i = 0; i < stores_.size() && is_good && is_whole && round > 0 && !may_lie; ++i) {
        const FileStoreStats after = disk_mover().store_stats(stores_[i]);
        const bool is_steady =
            before[i].corrupt_records == after.corrupt_records && before[i].evicted_records == after.evicted_records &&
            before[i].failed_segments == after.failed_segments && before[i].last_error == after.last_error;
        if (is_steady) files_->note_durable(names[i], disk_mover().store(stores_[i]), stores_[i]);
      }
      break;
    }
    if (!is_whole) return;
    if (round == 2'000) throw SimFailure("a flush is never done");
    take_transfers(8);
    while (mover_->work(now_)) {
    }
    if (const auto next = mover_->next_end()) now_ = std::max(now_, *next);
    run_lanes();
    apply(true);
  }
  // The end often comes just when it would hurt.
  if (setup_.sim.crash_chance == 0) return;
  wants_restart_ = chance(20);
  if (chance(25)) files_->arm_crash(60);
}

// The end, and what comes after it

void HybridSimulation::restart() {
  for (const std::uint32_t store : stores_) {
    if (disk_mover().store_stats(store).reclaimed_segments == 0) continue;
    counts_.add(store == 0 ? SimEvent::DiskReclaimed : SimEvent::SidesDiskReclaimed);
  }
  files_->end_life();
  count_groups();
  flights_.clear();
  lives_.clear();
  engine_.reset();
  cache_.reset();
  mover_.reset();
  keeps_.clear();
  past_completions_.clear();
  ready_.clear();
  disk_outbox_.clear();
  odd_completion_count_ = 0;
  miss_counts_ = {};
  prompt_tokens_ = 0;
  disk_hit_tokens_ = 0;
  has_disk_failed_ = false;
  wants_restart_ = false;
  is_paused_ = false;
  falls_asleep_ = false;
  is_asleep_ = false;
  is_flushing_ = false;
  lane_stuck_until_ = {};
  // A drop that was not flushed may be undone; so may one that a directory did not hear of, or whose record somebody
  // has damaged. Nobody would use such a name again.
  for (Space& space : spaces_) {
    space.is_known = false;
    const bool is_lost = space.drop == Space::Drop::Asked || space.drop == Space::Drop::Flushing;
    const bool may_be_lost =
        (has_failed_directories_ && space.drop != Space::Drop::None) || (files_->is_damaged() && space.was_dropped);
    if (is_lost || may_be_lost) {
      counts_.add(SimEvent::SpaceRenamed);
      ++space.name_index;
      space.salt = ++salt_count_;
      space.was_dropped = false;
    }
    space.drop = Space::Drop::None;
  }
  files_->enter_next_life();
  reopen();
  ++life_;
  born_at_ = now_;
  told_ = now_;
  if (const Status status = cache_->advance(now_); !status) throw SimFailure("advance: " + status.error().message);
  called();
  const std::uint64_t found = counts_[SimEvent::DurableFound];
  files_->check_durable(disk_mover().store());
  const std::uint64_t found_of_history = counts_[SimEvent::DurableFound];
  for (const std::uint32_t store : stores_) {
    if (store > 0) files_->check_durable(disk_mover().store(store), store);
  }
  counts_.add(SimEvent::SidesDurableFound, counts_[SimEvent::DurableFound] - found_of_history);
  counts_.tell([&] { return "  flushed pages: " + std::to_string(counts_[SimEvent::DurableFound] - found); });
}

// An opening that fails leaves nothing that stands in the way of the next one, and loses nothing. It may do without a
// directory that it cannot read.
void HybridSimulation::reopen() {
  constexpr int kAttemptsMax = 50;
  for (int attempt = 1;; ++attempt) {
    if (attempt < kAttemptsMax) files_->draw_opening_fault();
    setup_.sim.hash_seed = random_.next();
    const Status opened = open_cache();
    if (opened) break;
    counts_.add(SimEvent::OpeningFailed);
    if (!files_->may_fail() || attempt > kAttemptsMax) throw SimFailure("open: " + opened.error().message);
    if (opened.error().code != ErrorCode::Io) throw SimFailure("open fails otherwise: " + opened.error().message);
    if (!files_->disk().is_dead()) continue;
    files_->end_life();
    files_->enter_next_life();
  }
  has_failed_directories_ = std::ranges::any_of(
      stores_, [this](std::uint32_t store) { return disk_mover().store_stats(store).failed_directories > 0; });
  if (has_failed_directories_) counts_.add(SimEvent::OpenedInPart);
  if (has_failed_directories_ && !files_->may_fail()) throw SimFailure("a directory that works is given up");
}

}  // namespace quire::testing
