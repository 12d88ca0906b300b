// SPDX-License-Identifier: Apache-2.0
//
// The disk tier of the simulation: when each of its lanes runs and when the cache hears of it, flushes, calls past the
// other tiers, and the end of the process, after which everything but the files is gone.
#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/hash.h"
#include "simulation.h"

namespace quire::testing {

// Lanes

void Simulation::disk_operation() {
  files_->draw_fault();
  if (chance(setup_.disk_stuck_chance)) {
    // It catches up in between: a lane that always lags brings nothing that could be wrong.
    const std::size_t lane = chance(50) ? 0 : below(kDiskLanes.size());
    if (now_ >= lane_goes_until_[lane]) {
      counts_.add(SimEvent::DiskLaneStuck);
      const TimeNs lag_ns = setup_.op_ns_max * (10 + random_.below(chance(4) ? 500 : 100));
      lane_stuck_until_[lane] = now_ + lag_ns;
      lane_goes_until_[lane] = now_ + lag_ns + (setup_.op_ns_max * random_.below(50));
    }
  }
  // A day has to pass for a budget to come back.
  if (setup_.disk_write_bytes_per_day > 0 && chance(1)) now_ += kHourNs * random_.below(4);
  const std::uint32_t count = 1 + random_.below(setup_.has_groups() ? 8 : 5);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (server_ && (setup_.is_diskless || chance(setup_.remote_chance))) {
      remote_operation();
      continue;
    }
    const std::size_t lane = below(kDiskLanes.size());
    const std::uint32_t shard = setup_.shard_count > 1 ? random_.below(setup_.shard_count) : 0;
    if (now_ >= lane_stuck_until_[lane]) (void)run_lane(kDiskLanes[lane], shard);
  }
}

bool Simulation::run_lane(DiskMover::Lane lane, std::uint32_t shard) {
  if (setup_.is_diskless) return false;
  if (!CacheForTests::disk(*cache_, shard).run(lane)) return false;
  ++counts_.mover_events;
  counts_.add(SimEvent::DiskLane);
  if (!files_->disk().is_dead()) failed_directories_ = failed_directories();
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    if (lane != DiskMover::Lane::Names) files_->look_after(disk_store(stores_[i]), i);
  }
  take_lower_completions();
  return true;
}

// What the lower tiers have ended goes to the cache when the simulation says so.
void Simulation::take_lower_completions() {
  std::array<Completion, 64> room;
  for (const Lower& lower : CacheForTests::lowers(*cache_)) {
    const bool is_remote = lower.settings.tier == Tier::Remote;
    const double bytes_per_ns = is_remote ? setup_.remote_bytes_per_ns : setup_.disk_bytes_per_ns;
    for (Completion& completion : lower.tier->poll(room)) {
      // Time is the simulation's.
      const double busy_ns = static_cast<double>(completion.moved_bytes) / bytes_per_ns;
      completion.busy_ns = completion.moved_bytes > 0 ? std::max<TimeNs>(1, static_cast<TimeNs>(busy_ns)) : 0;
      counts_.tell([&] {
        return std::string(is_remote ? "    remote: " : "    disk: ") + std::to_string(completion.id.index) + "." +
               std::to_string(completion.id.generation) + " " + std::string(to_string(completion.outcome)) + ", " +
               std::to_string(completion.good_pages) + " pages";
      });
      const bool is_load = completion.kind == TransferKind::LoadFromBelow;
      if (is_load) arrived_[completion.id.index] = mover_->take_arrived();
      if (is_remote) {
        const bool is_store = completion.kind == TransferKind::StoreBelow;
        const bool has_failed = completion.outcome == TransferOutcome::Failed;
        counts_.add(SimEvent::RemoteStored, is_store && completion.moved_bytes > 0 ? completion.good_pages : 0);
        counts_.add(SimEvent::RemoteStoreFailed, is_store && has_failed ? 1 : 0);
        counts_.add(SimEvent::RemoteLoadFailed, is_load && has_failed ? 1 : 0);
        counts_.add(SimEvent::RemoteLate, is_load && completion.outcome == TransferOutcome::TimedOut ? 1 : 0);
      } else if (setup_.has_groups()) {
        check_fault(completion);
      }
      disk_outbox_.push_back(completion);
    }
  }
}

void Simulation::check_fault(const Completion& completion) const {
  const bool is_of_history = CacheForTests::pool_of(*cache_, completion.id) == 0;
  if (!is_of_history && completion.outcome == TransferOutcome::Failed) {
    counts_.add(completion.kind == TransferKind::LoadFromBelow ? SimEvent::AnchoredOnDiskLoadFailed
                                                               : SimEvent::AnchoredOnDiskStoreFailed);
  }
  const bool is_of_page = completion.fault != TransferFault::None && completion.fault != TransferFault::Io;
  const std::uint32_t spoilt = setup_.flip_chance + setup_.lost_write_chance + setup_.misdirected_chance;
  if (is_of_page && spoilt == 0 && !files_->is_damaged() && !files_->may_fail()) {
    throw SimFailure("a page that nothing has happened to is not what it should be: " +
                     std::string(to_string(completion.fault)));
  }
}

void Simulation::run_lanes() {
  lane_stuck_until_ = {};
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::uint32_t shard = 0; shard < setup_.shard_count; ++shard) {
      for (const DiskMover::Lane lane : kDiskLanes) {
        while (run_lane(lane, shard)) goes_on = true;
      }
    }
    if (server_) server_->set_node(SimRemoteServer::Node::Up);
    while (run_remote()) goes_on = true;
  }
}

std::vector<Completion> Simulation::collect_disk(bool all) {
  std::vector<Completion> collected;
  if (disk_outbox_.empty()) return collected;
  if (setup_.reorders && disk_outbox_.size() > 1) {
    counts_.add(SimEvent::DiskReordered);
    for (std::size_t i = disk_outbox_.size(); i > 1; --i) std::swap(disk_outbox_[i - 1], disk_outbox_[below(i)]);
  }
  const std::size_t count = all ? disk_outbox_.size() : 1 + below(disk_outbox_.size());
  collected.assign(disk_outbox_.begin(), disk_outbox_.begin() + static_cast<std::ptrdiff_t>(count));
  disk_outbox_.erase(disk_outbox_.begin(), disk_outbox_.begin() + static_cast<std::ptrdiff_t>(count));
  counts_.add(SimEvent::DiskApplied, count);
  return collected;
}

// What has come from disk is in the tree: whoever will read it, its bytes must be those of its path.
void Simulation::check_arrived(std::span<const PageTransfer> arrived) {
  if (setup_.has_groups()) return;                                                         // the engine will see
  if (arrived.empty() || (setup_.extra_keys_vary && setup_.extra_key_chance > 0)) return;  // a path by its tokens alone
  const std::uint64_t layer_bytes = cache_->geometry().page().layer_bytes();
  std::unordered_map<std::uint32_t, std::uint64_t> ends;  // by run; not those of key spaces that were dropped
  const Status visited = cache_->visit_runs([&](const RunView& run) {
    if (run.parent.is_none()) {
      const auto is_its = [&](const Space& space) { return space.is_known && space.id == run.key_space; };
      const auto space = std::ranges::find_if(spaces_, is_its);
      if (space != spaces_.end()) ends[run.run.value] = mix64(space->salt);
      return;
    }
    const auto before = ends.find(run.parent.value);
    if (before == ends.end()) return;
    std::uint64_t value = before->second;
    for (std::uint32_t i = 0; i < run.tokens.size(); ++i) {
      const std::uint32_t place = i % setup_.page_tokens;
      const PageId page = run.pages[i / setup_.page_tokens];
      value = next_value_of_path(value, run.tokens[i]);
      if (run.tier != Tier::Host) continue;
      const auto found = std::ranges::find(arrived, page, &PageTransfer::host_page);
      const std::span<const std::byte> bytes =
          found != arrived.end() ? mover_->good_bytes(*found) : std::span<const std::byte>();
      for (std::uint32_t layer = 0; layer < setup_.layer_count && !bytes.empty(); ++layer) {
        std::uint64_t read = 0;
        std::memcpy(&read, bytes.data() + (std::size_t{layer} * layer_bytes) + (std::size_t{place} * 8), sizeof(read));
        if (read == value + layer) continue;
        throw SimFailure("wrong bytes from disk: token " + std::to_string(place) + " of host page " +
                         std::to_string(page.value) + ", layer " + std::to_string(layer));
      }
      counts_.add(SimEvent::DiskArrived, place == 0 && !bytes.empty() ? 1 : 0);
    }
    ends[run.run.value] = value;
  });
  if (!visited) throw SimFailure(visited.error().message);
}

// One find has found something, and nothing else happens on disk: then it can be told what the cache makes of it.
std::optional<Simulation::DiskChoice> Simulation::disk_choice(std::span<const Completion> completions) const {
  if (setup_.compute_ns_per_token == 0 || !has_disk_rate_ || is_paused_ || !paths_ || server_) return std::nullopt;
  DiskChoice choice{.waiting_bytes = CacheForTests::disk_loading_bytes(*cache_)};
  for (const Completion& completion : completions) {
    if (completion.kind == TransferKind::LoadFromBelow) return std::nullopt;
    if (completion.kind != TransferKind::FindBelow || completion.good_pages == 0) continue;
    if (choice.found_pages > 0) return std::nullopt;
    choice.found_pages = completion.good_pages;
  }
  const Stats stats = cache_->stats().value();
  if (choice.found_pages == 0 || stats.load_bytes_per_ns == 0) return std::nullopt;
  for (const auto& live : lives_) {
    const bool waits = live->is_loading && live->may_look && live->save_state == SaveState::None;
    if (waits && paths_->find(request_of(*live)).host_pages == 0) choice.waiting.push_back(live->number);
  }
  return choice;
}

// What was found is read from now on, or somebody has heard that it is not worth that. Otherwise there was no room for
// it, or nobody wants it any more.
void Simulation::check_disk_choice(const DiskChoice& choice) {
  const bool reads = CacheForTests::disk_loading_bytes(*cache_) > choice.waiting_bytes;
  const bool computes = std::ranges::any_of(choice.waiting, [this](std::uint64_t number) {
    const Live* const live = find(number);
    return live != nullptr && !live->is_loading &&
           cache_->view(live->handle).value().miss.reason == MissReason::RecomputeCheaper;
  });
  if (!reads && !computes) return;
  const auto bytes = static_cast<double>(choice.found_pages * cache_->geometry().page().page_bytes());
  const double load_ns =
      ((bytes + static_cast<double>(choice.waiting_bytes)) / setup_.disk_bytes_per_ns) + (bytes / setup_.bytes_per_ns);
  const double compute_ns =
      static_cast<double>(choice.found_pages) * setup_.page_tokens * static_cast<double>(setup_.compute_ns_per_token);
  counts_.add(load_ns < compute_ns ? SimEvent::DiskLoadCheaper : SimEvent::DiskComputeCheaper);
  if (load_ns > 0.9 * compute_ns && load_ns < 1.1 * compute_ns) return;
  counts_.add(reads == (load_ns < compute_ns) ? SimEvent::RightDiskChoice : SimEvent::WrongDiskChoice);
}

// Whether a sequence that is admitted now may look for more of its tokens on disk, if there is room for that.
bool Simulation::may_look(const Live& live, SimPaths::Found found) const {
  if (!files_ || is_paused_ || live.is_retired || !live.options.use_cache) return false;
  if (live.options.tier_max < Tier::Disk || live.options.prefetch == Prefetch::BestEffort) return false;
  if (!paths_) return true;
  const std::size_t asked =
      std::min<std::size_t>(live.tokens.size(), live.options.match_tokens_max.value_or(UINT32_MAX));
  return found.device_pages + found.host_pages < asked / setup_.page_tokens;
}

void Simulation::check_disk_accounts(const Stats& stats) {
  if (setup_.is_diskless && stats.disk_hit_tokens > 0) throw SimFailure("tokens are counted as those of a disk tier");
  if (stats.disk_hit_tokens > std::exchange(disk_hit_tokens_, stats.disk_hit_tokens)) {
    counts_.add(SimEvent::DiskHit);
    if (life_ > 0) counts_.add(SimEvent::HitAfterRestart);
  }
  if (stats.disk_has_failed && !std::exchange(has_disk_failed_, true)) counts_.add(SimEvent::DiskFailed);
  if (stats.disk_has_failed && !files_->may_fail()) throw SimFailure("a disk that works is said to have failed");
  if (setup_.disk_write_bytes_per_day == 0) return;
  // What is written besides the pages, and for room, is paid back later. A store of a few pages may move all of them
  // when it makes room for one.
  const double slack = 2 * static_cast<double>(setup_.disk_capacity_bytes);
  const double burst = static_cast<double>(setup_.disk_write_bytes_per_day) / 24;
  const double rate = static_cast<double>(setup_.disk_write_bytes_per_day) / (24 * static_cast<double>(kHourNs));
  if (static_cast<double>(stats.disk_stored_bytes) > burst + (rate * static_cast<double>(now_ - born_at_)) + slack) {
    throw SimFailure("more is written than the endurance budget allows: " + std::to_string(stats.disk_stored_bytes));
  }
}

// Key spaces

KeySpace Simulation::key_space_of(std::uint32_t name) const {
  KeySpace key_space{.model = "model " + std::to_string(name)};
  if (spaces_[name].name_index > 0) key_space.revision = std::to_string(spaces_[name].name_index);
  return key_space;
}

// From here on nothing with the old bytes may be found, on disk either.
void Simulation::note_drop(Space& space) {
  space.salt = ++salt_count_;
  space.drop = Space::Drop::Asked;
  space.was_dropped = true;
}

// Flushing

// The names of pages that may well be on disk.
std::vector<PageName> Simulation::known_names() const {
  std::vector<PageName> names;
  const auto add = [&](std::uint32_t name, std::span<const TokenId> tokens, std::span<const ExtraKey> extra_keys) {
    const std::size_t page_count = tokens.size() / setup_.page_tokens;
    if (page_count == 0) return;
    names.resize(names.size() + page_count);
    name_pages({.parent = root_name(key_space_name(key_space_of(name)), setup_.page_tokens),
                .page_tokens = setup_.page_tokens,
                .first_position = 0,
                .tokens = tokens.first(page_count * setup_.page_tokens),
                .extra_keys = extra_keys},
               std::span(names).last(page_count));
  };
  for (std::uint32_t name = 0; name < spaces_.size(); ++name) {
    for (const auto& document : documents_) add(name, document, {});
    for (const auto& text : texts_) add(name, text, {});
    for (const auto& live : lives_) {
      if (live->space == spaces_[name].id) add(name, live->tokens, live->extra_keys);
    }
  }
  std::ranges::sort(names);
  const auto repeated = std::ranges::unique(names);
  names.erase(repeated.begin(), repeated.end());
  return names;
}

// Once, to go on some other time; or until it is done.
void Simulation::flush() {
  const bool is_whole = chance(60) && !is_paused_;
  const bool is_new = !is_flushing_;
  std::vector<std::vector<PageName>> names(stores_.size());
  std::vector<FileStoreStats> before;
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    before.push_back(disk_store_stats(stores_[i]));
    if (!is_whole || !is_new) continue;  // one that began earlier may have been over before they were written
    names[i] = known_names();
    FileStore& store = disk_store(stores_[i]);
    std::erase_if(names[i], [&](const PageName& name) { return store.find({&name, 1}) == 0; });
  }
  counts_.add(SimEvent::FlushAsked);
  if (is_whole) mover_->get_unstuck();
  for (int round = 0;; ++round) {
    if (!std::exchange(is_flushing_, true)) {
      failed_stores_ = failed_stores();
      for (Space& space : spaces_) {
        if (space.drop == Space::Drop::Asked) space.drop = Space::Drop::Flushing;
      }
    }
    const Result<bool> flushed = cache_->flush();
    called();
    if (!flushed || *flushed) {
      end_flush(flushed, is_whole && is_new && round > 0);
      for (std::size_t i = 0; i < stores_.size() && flushed && is_whole && round > 0; ++i) {
        const FileStoreStats after = disk_store_stats(stores_[i]);
        const bool is_steady =
            before[i].corrupt_records == after.corrupt_records && before[i].evicted_records == after.evicted_records &&
            before[i].failed_segments == after.failed_segments && before[i].last_error == after.last_error;
        // After a sync that has failed, the next process reads what may not be there, and syncs it without complaint.
        const bool may_lie = setup_.has_groups() && setup_.disk_sync_failures + setup_.opening_chance > 0;
        if (is_steady && !may_lie) files_->note_durable(names[i], disk_store(stores_[i]), i);
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
    const bool has_news = mover_->report_count() > 0 || !disk_outbox_.empty();
    if (server_ && !has_news) now_ += kDropPauseNs;
    apply(true);
  }
  // The end often comes just when it would hurt.
  if (setup_.crash_chance == 0) return;
  wants_restart_ = chance(20);
  if (chance(25)) files_->arm_crash(60);
}

std::uint64_t Simulation::failed_stores() const {
  return cache_->stats()->store_outcomes[static_cast<std::size_t>(TransferOutcome::Failed)];
}

void Simulation::end_flush(const Result<bool>& flushed, bool is_of_all) {
  is_flushing_ = false;
  const bool is_good = flushed.has_value();
  counts_.add(is_good ? SimEvent::Flushed : SimEvent::FlushFailed);
  if (!is_good && flushed.error().code != ErrorCode::Io) throw SimFailure("flush: " + flushed.error().message);
  // A server may refuse what it is to keep at any time.
  const bool may_fail = files_->may_fail() || failed_stores() > failed_stores_ || server_;
  if (!is_good && !may_fail) throw SimFailure("flush, on a good disk: " + flushed.error().message);
  for (Space& space : spaces_) {
    if (space.drop == Space::Drop::Flushing) space.drop = is_good ? Space::Drop::Flushed : Space::Drop::Asked;
  }
  // More than the endurance budget allows is written later, and so is what was used again meanwhile; everything else is
  // there.
  const bool is_all = setup_.disk_write_bytes_per_day == 0 && setup_.disk_write_policy != WritePolicy::Selective &&
                      !server_ && is_of_all;
  if (is_good && is_all && !files_->may_fail() && CacheForTests::unwritten_anchored_pages(*cache_) > 0) {
    throw SimFailure("flushed, and some pages of other groups are still to be written");
  }
}

// Past the other tiers

// Calls visit(offset, value) for the rows that a direct call moves where there is one group.
template <typename Visitor>
void Simulation::for_each_direct_row(const Direct& direct, std::uint32_t token_count, Visitor&& visit) {
  const PageGeometry& page = cache_->geometry().page();
  for (std::size_t i = 0; i < token_count; ++i) {
    for (std::uint32_t layer = 0; layer < setup_.layer_count; ++layer) {
      visit((i / setup_.page_tokens * page.page_bytes()) + (layer * page.layer_bytes()) + (i % setup_.page_tokens * 8),
            direct.values[i] + layer);
    }
  }
}

void Simulation::call_direct() {
  const Space& space = spaces_[random_.below(setup_.key_space_name_count)];
  if (!space.is_known || directs_.size() > 4) return;
  auto direct = std::make_unique<Direct>();
  direct->tokens = draw_prompt(setup_.context_tokens_max);
  add_extra_keys(direct->tokens, 0, direct->extra_keys);
  std::uint64_t value = mix64(space.salt);
  for (std::size_t i = 0; i < direct->tokens.size(); ++i) {
    value = next_value(value, direct->tokens[i], direct->extra_keys, i);
    direct->values.push_back(value);
  }
  const DirectBytes moved = cache_->direct_bytes(static_cast<std::uint32_t>(direct->tokens.size())).value();
  const Prompt prompt{.tokens = direct->tokens, .extra_keys = direct->extra_keys};
  const auto callback = [this, place = direct.get()](const DiskAnswer& given) { answer(*place, given); };
  direct->salt = space.salt;
  direct->bytes.resize(moved.byte_count);
  Status status;
  switch (random_.below(3)) {
    case 0:
      status = cache_->lookup_on_disk(space.id, prompt, callback);
      if (status) counts_.add(SimEvent::LookedOnDisk);
      break;
    case 1:
      direct->kind = TransferKind::GetFromBelow;
      status = cache_->get_from_disk(space.id, prompt, direct->bytes, callback);
      if (status) counts_.add(SimEvent::GotFromDisk);
      break;
    default:
      direct->kind = TransferKind::PutBelow;
      computed_.insert(direct->values.begin(), direct->values.begin() + moved.token_count);
      if (setup_.has_groups()) {
        engine_->write_direct(moved, PrefixNumbers(mix64(space.salt), direct->values), direct->bytes);
      } else {
        for_each_direct_row(*direct, moved.token_count, [&](std::size_t offset, std::uint64_t row) {
          std::memcpy(direct->bytes.data() + offset, &row, sizeof(row));
        });
      }
      for (std::size_t i = moved.byte_count / setup_.shard_count; i < moved.byte_count; ++i) {
        const std::size_t shard_bytes = moved.byte_count / setup_.shard_count;
        direct->bytes[i] =
            direct->bytes[i % shard_bytes] ^ rank_mask(setup_, static_cast<std::uint32_t>(i / shard_bytes));
      }
      status = cache_->put_on_disk(space.id, prompt, direct->bytes, callback);
      if (status) counts_.add(SimEvent::PutOnDisk);
      break;
  }
  called();
  if (status) {
    directs_.push_back(std::move(direct));
    return;
  }
  counts_.add(SimEvent::DirectRefused);
  const ErrorCode code = status.error().code;
  const bool is_told = code == ErrorCode::Unavailable || code == ErrorCode::InvalidArgument ||
                       (code == ErrorCode::Io && files_->may_fail());
  if (!is_told) throw SimFailure("a direct call: " + status.error().message);
}

void Simulation::answer(Direct& direct, const DiskAnswer& answer) {
  if (answer.outcome == TransferOutcome::Failed) counts_.add(SimEvent::DirectFailed);
  if (answer.token_count > direct.tokens.size()) throw SimFailure("a direct call finds more than was asked for");
  if (answer.token_count > 0) counts_.add(SimEvent::DirectFound);
  if (answer.token_count > 0 && !computed_.contains(direct.values[answer.token_count - 1])) {
    throw SimFailure("a direct call finds tokens that nobody has computed");
  }
  for (std::uint32_t shard = 0; shard < setup_.shard_count && direct.kind == TransferKind::GetFromBelow; ++shard) {
    const std::size_t shard_bytes = direct.bytes.size() / setup_.shard_count;
    std::vector<std::byte> bytes(shard_bytes);
    for (std::size_t i = 0; i < shard_bytes; ++i) {
      bytes[i] = direct.bytes[(shard * shard_bytes) + i] ^ rank_mask(setup_, shard);
    }
    check_direct(direct, answer, bytes);
  }
  std::erase_if(directs_, [&](const auto& each) { return each.get() == &direct; });
}

void Simulation::check_direct(const Direct& direct, const DiskAnswer& answer, std::span<const std::byte> bytes) {
  if (setup_.has_groups()) {
    const DirectBytes moved = cache_->direct_bytes(static_cast<std::uint32_t>(direct.tokens.size())).value();
    const std::string wrong =
        engine_->check_direct(moved, answer, PrefixNumbers(mix64(direct.salt), direct.values), bytes);
    if (!wrong.empty()) throw SimFailure("get_from_disk: " + wrong);
    return;
  }
  for_each_direct_row(direct, answer.token_count, [&](std::size_t offset, std::uint64_t row) {
    if (std::memcmp(bytes.data() + offset, &row, sizeof(row)) == 0) return;
    throw SimFailure("wrong bytes from get_from_disk: at " + std::to_string(offset));
  });
}

// The end, and what comes after it

void Simulation::restart() {
  for (const SimStore store : stores_) {
    if (disk_store_stats(store).reclaimed_segments == 0) continue;
    counts_.add(store.pool == 0 ? SimEvent::DiskReclaimed : SimEvent::AnchoredDiskReclaimed);
  }
  files_->end_life();
  count_groups();
  forget_life();
  // A drop that was not flushed may be undone; so may one that a directory did not hear of, or whose record somebody
  // has damaged. Nobody would use such a name again.
  for (Space& space : spaces_) {
    space.is_known = false;
    const bool is_lost = space.drop == Space::Drop::Asked || space.drop == Space::Drop::Flushing;
    const bool may_be_lost =
        (failed_directories_ > 0 && space.drop != Space::Drop::None) || (files_->is_damaged() && space.was_dropped);
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
  for (std::size_t i = 0; i < stores_.size(); ++i) {
    const std::uint64_t found = counts_[SimEvent::DurableFound];
    files_->check_durable(disk_store(stores_[i]), i);
    if (stores_[i].pool > 0) counts_.add(SimEvent::AnchoredDurableFound, counts_[SimEvent::DurableFound] - found);
  }
}

// What was in memory.
void Simulation::forget_life() {
  flights_.clear();
  lives_.clear();
  paths_.reset();
  engine_.reset();
  close_cache();
  mover_.reset();
  directs_.clear();
  keeps_.clear();
  chunk_holds_.clear();
  saves_.clear();
  restores_.clear();
  load_paths_.clear();
  brought_.clear();
  past_completions_.clear();
  ready_.clear();
  has_ghosts_ = false;
  disk_outbox_.clear();
  arrived_.clear();
  odd_completion_count_ = 0;
  miss_counts_ = {};
  store_outcomes_ = {};
  prompt_tokens_ = 0;
  host_hit_tokens_ = 0;
  disk_hit_tokens_ = 0;
  remote_hit_tokens_ = 0;
  has_disk_rate_ = false;
  has_disk_failed_ = false;
  wants_restart_ = false;
  is_paused_ = false;
  transfers_paused_ = 0;
  falls_asleep_ = false;
  is_asleep_ = false;
  has_moves_ = false;
  is_flushing_ = false;
  lane_stuck_until_ = {};
}

std::uint32_t Simulation::failed_directories() {
  std::uint32_t count = 0;
  for (const SimStore store : stores_) count += disk_store_stats(store).failed_directories;
  return count;
}

// An opening that fails leaves nothing that stands in the way of the next one, and loses nothing. It may do without a
// directory that it cannot read.
void Simulation::reopen() {
  constexpr int kAttemptsMax = 50;
  for (int attempt = 1;; ++attempt) {
    if (attempt < kAttemptsMax) files_->draw_opening_fault();
    setup_.hash_seed = random_.next();
    const Status opened = open_cache();
    if (opened) break;
    counts_.add(SimEvent::OpeningFailed);
    if (!files_->may_fail() || attempt > kAttemptsMax) throw SimFailure("open: " + opened.error().message);
    if (opened.error().code != ErrorCode::Io) throw SimFailure("open fails otherwise: " + opened.error().message);
    if (!files_->disk().is_dead()) continue;
    files_->end_life();
    files_->enter_next_life();
  }
  failed_directories_ = failed_directories();
  if (failed_directories_ > 0) counts_.add(SimEvent::OpenedInPart);
  if (failed_directories_ > 0 && !files_->may_fail()) throw SimFailure("a directory that works is given up");
}

}  // namespace quire::testing
