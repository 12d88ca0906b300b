// SPDX-License-Identifier: Apache-2.0
//
// Cache: transfers between tiers, as they are handed out and reported on. A transfer keeps its pages until every rank
// has reported, whatever has become of it meanwhile.
#include <unistd.h>

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

// The weight of a new measurement of a rate, for one that moved as much as this.
constexpr double kRateWeight = 0.25;
constexpr double kRateBytes = 1 << 20;

}  // namespace

namespace {

bool is_of_disk(TransferKind kind) {
  return kind != TransferKind::Load && kind != TransferKind::Store;
}

// The build of one test hands over what windows and snapshots write with everything else, to see that it is noticed.
#ifdef QUIRE_TEST_LATE_SIDE_NAMES
constexpr bool kNamesSidesAtOnce = false;
#else
constexpr bool kNamesSidesAtOnce = true;
#endif

}  // namespace

std::optional<std::uint32_t> Cache::Impl::add_transfer(TransferKind kind, TransferPriority priority) {
  if (is_paused || live_transfer_count == transfers.size()) return std::nullopt;
  const auto slot =
      std::ranges::find_if(transfers, [](const Transfer& each) { return each.state == Transfer::State::Free; });
  slot->state = Transfer::State::Queued;
  slot->kind = kind;
  slot->priority = priority;
  const auto index = static_cast<std::uint32_t>(slot - transfers.begin());
  transfer_order.push_back(index);
  transfer_end = std::max(transfer_end, index + 1);
  ++live_transfer_count;
  return index;
}

void Cache::Impl::remove_transfer(std::uint32_t index) {
  if (transfers[index].state == Transfer::State::Queued) std::erase(transfer_order, index);
  const std::uint32_t generation = transfers[index].generation + 1;
  transfers[index] = {};
  transfers[index].generation = generation;
  while (transfer_end > 0 && transfers[transfer_end - 1].state == Transfer::State::Free) --transfer_end;
  --live_transfer_count;
}

TransferPlan Cache::Impl::plan_of(std::uint32_t index) {
  const Transfer& transfer = transfers[index];
  const std::uint32_t layer_count = geometry.page().layer_count();
  const std::uint32_t bands = std::min<std::uint32_t>(config.host.layer_bands, layer_count);
  return {.id = {index, transfer.generation},
          .kind = transfer.kind,
          .priority = transfer.priority,
          .band_count = transfer.kind == TransferKind::Load ? static_cast<std::uint16_t>(bands) : std::uint16_t{1},
          .pages = pages_of(index)};
}

// To the cache's own movers, as far as they take them.
void Cache::Impl::hand_over_transfers() {
  if (has_disk() && !name_log.is_empty()) disk->submit(name_log);
  for (std::size_t i = 0; i < transfer_order.size();) {
    const std::uint32_t index = transfer_order[i];
    if (is_of_disk(transfers[index].kind)) {
      disk->submit(disk_plan_of(index));
      transfers[index].state = Transfer::State::Moving;
      transfer_order.erase(transfer_order.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    if (mover == nullptr) {
      ++i;
      continue;
    }
    const Result<bool> taken = mover->try_submit(plan_of(index));
    QUIRE_CHECK(taken.has_value(), taken.error().message.c_str());
    if (!*taken) {
      ++i;  // the queue of its direction is full; the other may not be
      continue;
    }
    transfers[index].state = Transfer::State::Moving;
    transfer_order.erase(transfer_order.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (std::size_t i = 0; i < side_order.size();) {
    if (is_of_disk(side_transfers[side_order[i]].kind)) {
      disk->submit(side_disk_plan_of(side_order[i]));
      side_transfers[side_order[i]].state = SideTransfer::State::Moving;
      side_order.erase(side_order.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    if (mover == nullptr) {
      ++i;
      continue;
    }
    const Result<bool> taken = mover->try_submit(side_plan_of(side_order[i]));
    QUIRE_CHECK(taken.has_value(), taken.error().message.c_str());
    if (!*taken) {
      ++i;
      continue;
    }
    side_transfers[side_order[i]].state = SideTransfer::State::Moving;
    side_order.erase(side_order.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

Result<std::span<TransferPlan>> Cache::take_transfers(std::span<TransferPlan> out) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (!impl.config.host.external_mover) {
    return fail(ErrorCode::Unsupported, "take_transfers: the cache moves pages itself; see host.external_mover");
  }
  impl.work_in_background();
  std::size_t count = 0;
  for (const TransferPriority priority : {TransferPriority::Waiting, TransferPriority::Background}) {
    for (std::size_t i = 0; i < impl.side_order.size() && count < out.size();) {
      const std::uint32_t index = impl.side_order[i];
      const TransferPlan plan = impl.side_plan_of(index);
      if (plan.priority != priority || is_of_disk(plan.kind)) {
        ++i;
        continue;
      }
      out[count++] = plan;
      impl.side_transfers[index].state = SideTransfer::State::Moving;
      impl.side_order.erase(impl.side_order.begin() + static_cast<std::ptrdiff_t>(i));
    }
    for (std::size_t i = 0; i < impl.transfer_order.size() && count < out.size();) {
      const std::uint32_t index = impl.transfer_order[i];
      if (impl.transfers[index].priority != priority || is_of_disk(impl.transfers[index].kind)) {
        ++i;
        continue;
      }
      out[count++] = impl.plan_of(index);
      impl.transfers[index].state = Impl::Transfer::State::Moving;
      impl.transfer_order.erase(impl.transfer_order.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  return out.first(count);
}

Result<std::span<TransferId>> Cache::take_cancellations(std::span<TransferId> out) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (!impl.config.host.external_mover) {
    return fail(ErrorCode::Unsupported, "take_cancellations: the cache moves pages itself; see host.external_mover");
  }
  std::size_t count = 0;
  for (std::uint32_t i = 0; i < impl.transfer_end && count < out.size(); ++i) {
    if (!std::exchange(impl.transfers[i].wants_cancelling, false)) continue;
    out[count++] = {i, impl.transfers[i].generation};
  }
  return out.first(count);
}

Result<std::span<const Completion>> Cache::poll() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (impl.mover == nullptr) {
    return fail(ErrorCode::Unsupported, impl.has_host() ? "poll: the engine moves pages itself; see take_transfers()"
                                                        : "poll: the cache has no host tier");
  }
  impl.work_in_background();
  if (!impl.has_disk()) return std::span<const Completion>(impl.mover->poll(impl.completions));
  // Both wake the same waiter, and together they never have more than fits: read first, so that nothing is missed.
  std::uint64_t count = 0;
  (void)!::read(impl.mover->event_fd(), &count, sizeof(count));
  const std::size_t moved = impl.mover->poll(impl.completions).size();
  const std::size_t on_disk = impl.disk->poll(std::span(impl.completions).subspan(moved)).size();
  return std::span<const Completion>(impl.completions).first(moved + on_disk);
}

int Cache::event_fd() const {
  return impl_->mover != nullptr ? impl_->mover->event_fd() : -1;
}

Result<HostRegionStatus> Cache::host_region() const {
  QUIRE_TRY(impl_->enter());
  if (impl_->mover == nullptr) {
    return fail(ErrorCode::Unsupported, impl_->has_host() ? "host_region: the engine moves pages itself"
                                                          : "host_region: the cache has no host tier");
  }
  return impl_->host_region;
}

Status Cache::set_ready_callback(std::function<void(SequenceId)> callback) {
  QUIRE_TRY(impl_->enter());
  impl_->on_ready = callback ? std::make_shared<std::function<void(SequenceId)>>(std::move(callback)) : nullptr;
  return {};
}

Status Cache::apply(std::span<const Completion> completions, TimeNs now) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  // They may come from another process.
  for (std::size_t i = 0; i < completions.size(); ++i) {
    const auto outcome = static_cast<std::size_t>(completions[i].outcome);
    const auto fault = static_cast<std::size_t>(completions[i].fault);
    if (outcome < kTransferOutcomeCount && fault < kTransferFaultCount) continue;
    return fail(ErrorCode::InvalidArgument, "apply: completion " + std::to_string(i) + " has outcome " +
                                                std::to_string(outcome) + " and fault " + std::to_string(fault) +
                                                "; there is no such outcome or fault");
  }
  QUIRE_TRY(impl.advance(now));
  if (!impl.has_host()) {
    impl.counters.unknown_completion_count += completions.size();
    return {};
  }
  for (const Completion& completion : completions) impl.apply_one(completion);
  impl.go_on();
  return {};
}

// What follows from completions and from the time, and telling those who wait.
void Cache::Impl::go_on() {
  expire_loads();
  finish_loads();
  wake_loading();
  work_in_background();
  while (!ready_sequences.empty()) {
    const SequenceId ready = ready_sequences.front();
    ready_sequences.erase(ready_sequences.begin());  // a callback may call apply() again
    const auto callback = on_ready;                  // or replace itself
    if (callback) (*callback)(ready);
  }
  while (!answers.empty()) {
    const Answer answer = std::move(answers.front());
    answers.erase(answers.begin());
    if (answer.callback) answer.callback(answer.answer);
  }
}

void Cache::Impl::apply_one(const Completion& completion) {
  const std::uint32_t index = completion.id.index;
  if (index >= transfers.size() && !side_transfers.empty()) {
    apply_side(completion);
    return;
  }
  const bool is_known = index < transfers.size() && transfers[index].generation == completion.id.generation &&
                        transfers[index].state == Transfer::State::Moving && completion.rank < config.host.rank_count &&
                        (transfers[index].reported_ranks & (1ULL << completion.rank)) == 0;
  if (!is_known) {
    ++counters.unknown_completion_count;
    return;
  }
  Transfer& transfer = transfers[index];
  const bool is_ok = completion.outcome == TransferOutcome::Ok;
  const bool has_path = transfer.kind == TransferKind::FindOnDisk || transfer.kind == TransferKind::PutOnDisk ||
                        transfer.kind == TransferKind::GetFromDisk;
  const std::uint32_t pages_max = has_path ? pages_looked_for(transfer) : transfer.page_count;
  const std::uint32_t good = is_ok && !has_path ? pages_max : std::min(completion.good_pages, pages_max);
  // Where ranks differ, the one that stopped first says why.
  const bool is_first = transfer.reported_ranks == 0;
  if (!is_ok && (is_first || transfer.outcome == TransferOutcome::Ok || good < transfer.good_pages)) {
    transfer.outcome = completion.outcome;
    transfer.fault = completion.fault;
  }
  transfer.good_pages = is_first ? good : std::min(transfer.good_pages, good);
  transfer.reported_ranks |= 1ULL << completion.rank;
  if (is_of_disk(transfer.kind)) {
    count_disk(transfer, completion);
    finish_disk(index);
    return;
  }
  const bool is_load = transfer.kind == TransferKind::Load;
  (is_load ? counters.loaded_bytes : counters.stored_bytes) += completion.moved_bytes;
  measure_rate(completion, is_load ? load_rate : store_rate);
  if (std::popcount(transfer.reported_ranks) < static_cast<int>(config.host.rank_count)) return;
  if (!is_load) {
    ++counters.store_outcomes[static_cast<std::size_t>(transfer.outcome)];
    if (transfer.sequence == SequenceId{}) {
      finish_store(index);
    } else {
      finish_save(index);
    }
    return;
  }
  if (!transfer.is_unwanted) ++counters.load_outcomes[static_cast<std::size_t>(transfer.outcome)];
  if (transfer.outcome == TransferOutcome::Failed) ++counters.load_faults[static_cast<std::size_t>(transfer.fault)];
  if (transfer.sequence == SequenceId{}) {
    transfer.state = Transfer::State::Arrived;
  } else {
    finish_restore(index);
  }
}

void Cache::Impl::count_disk(const Transfer& transfer, const Completion& completion) {
  const auto outcome = static_cast<std::size_t>(transfer.outcome);
  if (transfer.kind == TransferKind::LoadFromDisk) {
    ++counters.disk_load_outcomes[outcome];
    counters.disk_loaded_bytes += completion.moved_bytes;
    measure_rate(completion, disk_load_rate);
  } else if (transfer.kind == TransferKind::StoreToDisk) {
    ++counters.disk_store_outcomes[outcome];
    counters.disk_stored_bytes += completion.moved_bytes;
    // What was taken from the budget was a guess: some pages were there, and others needed room made for them.
    const std::uint64_t guessed = transfer.page_count * record_bytes(history_page_bytes());
    write_budget += static_cast<double>(guessed) - static_cast<double>(completion.moved_bytes);
  } else if (transfer.kind == TransferKind::PutOnDisk) {
    write_budget -= static_cast<double>(completion.moved_bytes);
  }
}

void Cache::Impl::measure_rate(const Completion& completion, double& rate) {
  if (completion.busy_ns <= 0 || completion.moved_bytes == 0) return;
  const auto bytes = static_cast<double>(completion.moved_bytes);
  const double measured = bytes / static_cast<double>(completion.busy_ns);
  const double weight = kRateWeight * std::min(1.0, bytes / kRateBytes);
  rate = rate == 0 ? measured : rate + (weight * (measured - rate));
}

// What goes on by itself: after every call that may have given it something to do.
void Cache::Impl::work_in_background() {
  if (!has_host()) return;
  release_freed_host();
  if (has_disk()) {
    start_drops();
    start_disk_stores();  // before others take the places of what is still to be written
    if (!sides.empty() && start_side_disk_stores() && kNamesSidesAtOnce) {
      hand_over_transfers();  // what they are called is that of pages that others may take from here on
    }
    start_waiting_finds();
  }
  start_stores();
  if (!sides.empty()) start_side_stores();
  if (writes_back()) start_leaving(clean_reserve_pages);
  hand_over_transfers();
}

// Nobody needs it any more.
void Cache::Impl::cancel_transfer(std::uint32_t index) {
  Transfer& transfer = transfers[index];
  if (transfer.is_cancelled) return;
  transfer.is_cancelled = true;
  if (transfer.state != Transfer::State::Moving) return;
  if (is_of_disk(transfer.kind)) {
    disk->cancel({index, transfer.generation});
  } else if (mover != nullptr) {
    mover->cancel({index, transfer.generation});
  } else {
    transfer.wants_cancelling = true;
  }
}

// What is cached is about to go; what sequences save is not. Those that are moving end by their completions.
void Cache::Impl::cancel_all_transfers() {
  if (!sides.empty()) cancel_side_transfers();
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    Transfer& transfer = transfers[i];
    if (transfer.state == Transfer::State::Free || transfer.sequence != SequenceId{}) continue;
    if (transfer.kind == TransferKind::Load) {
      const bool has_arrived = transfer.state == Transfer::State::Arrived;
      call_off(i, MissReason::LoadCancelled);
      if (has_arrived) end_load(i);
      continue;
    }
    if (transfer.kind == TransferKind::FindOnDisk) abandon_find(i, MissReason::LoadCancelled);
    if (transfer.kind != TransferKind::Store) continue;  // what goes to disk may go on
    cancel_transfer(i);
    if (transfer.state == Transfer::State::Moving) continue;
    transfer.good_pages = 0;
    finish_store(i);
  }
}

}  // namespace quire
