// SPDX-License-Identifier: Apache-2.0
#include "transfer/transfer_table.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/hash.h"

namespace quire {
namespace {

constexpr std::uint32_t kPriorities = 2;
constexpr std::uint32_t kFinishedList = 4;
constexpr std::uint32_t kFreeList = 5;
constexpr std::uint32_t kListCount = 6;

}  // namespace

std::uint32_t TransferTable::queue_of(TransferKind kind, TransferPriority priority) {
  return (static_cast<std::uint32_t>(kind) * kPriorities) + static_cast<std::uint32_t>(priority);
}

Result<TransferTable> TransferTable::create(const TransferTableConfig& config) {
  const std::uint32_t slot_count = (2 * config.queue_depth_max) + config.worker_count;
  // Twice as many as can be on their way: a caller that polls now and then does not hold the queues up.
  const std::uint32_t completion_count = 2 * slot_count;
  const std::uint32_t remembered_count = std::max(completion_count, config.remembered_min);
  const std::uint32_t record_count = slot_count + remembered_count;

  TransferTable table;
  table.config_ = config;
  table.remembered_count_ = remembered_count;
  table.records_ = std::vector<Record>(record_count);
  table.completions_.resize(completion_count);
  table.free_slots_.reserve(slot_count);
  for (std::uint32_t slot = slot_count; slot > 0; --slot) table.free_slots_.push_back(slot - 1);
  QUIRE_TRY_ASSIGN(table.slot_pages_,
                   LazyArray<PageTransfer>::create(std::size_t{slot_count} * config.transfer_pages_max));
  QUIRE_TRY_ASSIGN(table.cells_, LazyArray<std::uint32_t>::create(std::bit_ceil(std::size_t{2} * record_count)));
  QUIRE_TRY(table.lists_.reserve(record_count, kListCount));
  for (std::uint32_t index = 0; index < record_count; ++index) table.lists_.push_back(index, kFreeList);
  return table;
}

bool TransferTable::has_room_for(TransferKind kind) const {
  const std::size_t on_their_way = std::size_t{queued_count()} + running_count_;
  return queued_counts_[static_cast<std::size_t>(kind)] < config_.queue_depth_max &&
         on_their_way + completion_count_ < completions_.size() &&
         (lists_.front(kFreeList) != IndexLists::kNone || oldest_forgettable() != IndexLists::kNone);
}

// Somebody may still wait for old ones, though hardly for many.
std::uint32_t TransferTable::oldest_forgettable() const {
  std::uint32_t index = lists_.front(kFinishedList);
  while (index != IndexLists::kNone && records_[index].waiter_count != 0) index = lists_.next(index);
  return index;
}

std::uint32_t TransferTable::make_record() {
  std::uint32_t index = lists_.front(kFreeList);
  if (index == IndexLists::kNone) {
    index = oldest_forgettable();
    QUIRE_CHECK(index != IndexLists::kNone, "a transfer without room for it");
    if (records_[index].is_known) unlearn(index);
  }
  lists_.remove(index);
  return index;
}

std::uint32_t TransferTable::add(const TransferPlan& plan) {
  QUIRE_CHECK(has_room_for(plan.kind), "a transfer without room for it");
  QUIRE_CHECK(plan.pages.size() <= config_.transfer_pages_max, "a transfer of too many pages");
  if (const auto old = find(plan.id)) {
    QUIRE_CHECK(records_[*old].state == State::Finished, "two transfers of one id");
    unlearn(*old);
  }
  const std::uint32_t index = make_record();
  Record& record = records_[index];
  record.id = plan.id;
  record.kind = plan.kind;
  record.priority = plan.priority;
  record.has_fault = false;
  record.band_count = plan.band_count;
  record.pool_index = plan.pool_index;
  record.bands_done = 0;
  record.band_events = {};
  record.page_count = static_cast<std::uint32_t>(plan.pages.size());
  record.waiter_count = 0;
  record.must_stop.store(false, std::memory_order_relaxed);
  learn(index);
  if (plan.pages.empty()) {
    end(index, {.id = plan.id, .outcome = TransferOutcome::Empty, .rank = config_.rank});
    return index;
  }
  QUIRE_CHECK(!free_slots_.empty(), "more transfers than slots");
  record.slot = free_slots_.back();
  free_slots_.pop_back();
  std::ranges::copy(plan.pages, slot_pages_.data() + (std::size_t{record.slot} * config_.transfer_pages_max));
  record.state = State::Queued;
  lists_.push_back(index, queue_of(plan.kind, plan.priority));
  ++queued_counts_[static_cast<std::size_t>(plan.kind)];
  return index;
}

std::optional<std::uint32_t> TransferTable::take(TransferKind kind) {
  for (const TransferPriority priority : {TransferPriority::Waiting, TransferPriority::Background}) {
    const std::uint32_t index = lists_.front(queue_of(kind, priority));
    if (index == IndexLists::kNone) continue;
    lists_.remove(index);
    records_[index].state = State::Running;
    --queued_counts_[static_cast<std::size_t>(kind)];
    ++running_count_;
    return index;
  }
  return std::nullopt;
}

void TransferTable::drop(std::uint32_t index) {
  Record& record = records_[index];
  QUIRE_CHECK(record.state == State::Queued, "dropping what is not queued");
  lists_.remove(index);
  --queued_counts_[static_cast<std::size_t>(record.kind)];
  free_slots_.push_back(record.slot);
  end(index, {.id = record.id, .outcome = TransferOutcome::Cancelled, .rank = config_.rank});
}

void TransferTable::finish(std::uint32_t index, const Completion& completion) {
  QUIRE_CHECK(records_[index].state == State::Running, "finishing what does not run");
  --running_count_;
  free_slots_.push_back(records_[index].slot);
  end(index, completion);
}

void TransferTable::end(std::uint32_t index, const Completion& completion) {
  Record& record = records_[index];
  record.state = State::Finished;
  record.outcome = completion.outcome;
  lists_.push_back(index, kFinishedList);
  QUIRE_CHECK(completion_count_ < completions_.size(), "a completion without room for it");
  completions_[(first_completion_ + completion_count_) % completions_.size()] = completion;
  ++completion_count_;
}

std::span<Completion> TransferTable::poll(std::span<Completion> out) {
  const std::size_t count = std::min(out.size(), completion_count_);
  for (std::size_t i = 0; i < count; ++i) {
    out[i] = completions_[first_completion_];
    first_completion_ = (first_completion_ + 1) % completions_.size();
  }
  completion_count_ -= count;
  return out.first(count);
}

std::span<const PageTransfer> TransferTable::pages(std::uint32_t index) const {
  const Record& record = records_[index];
  QUIRE_CHECK(record.state == State::Queued || record.state == State::Running, "the transfer has no pages any more");
  return {slot_pages_.data() + (std::size_t{record.slot} * config_.transfer_pages_max), record.page_count};
}

std::size_t TransferTable::home_of(TransferId id) const {
  return mix64((std::uint64_t{id.generation} << 32U) | id.index) & (cells_.size() - 1);
}

std::optional<std::uint32_t> TransferTable::find(TransferId id) const {
  const std::size_t mask = cells_.size() - 1;
  for (std::size_t at = home_of(id); cells_[at] != 0; at = (at + 1) & mask) {
    if (records_[cells_[at] - 1].id == id) return cells_[at] - 1;
  }
  return std::nullopt;
}

void TransferTable::learn(std::uint32_t index) {
  const std::size_t mask = cells_.size() - 1;
  std::size_t at = home_of(records_[index].id);
  while (cells_[at] != 0) at = (at + 1) & mask;
  cells_[at] = index + 1;
  records_[index].is_known = true;
}

// Those behind it that would not be found past an empty cell move up.
void TransferTable::unlearn(std::uint32_t index) {
  const std::size_t mask = cells_.size() - 1;
  std::size_t hole = home_of(records_[index].id);
  while (cells_[hole] != index + 1) hole = (hole + 1) & mask;
  for (std::size_t at = (hole + 1) & mask; cells_[at] != 0; at = (at + 1) & mask) {
    const std::size_t home = home_of(records_[cells_[at] - 1].id);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;  // its home lies behind the hole
    cells_[hole] = cells_[at];
    hole = at;
  }
  cells_[hole] = 0;
  records_[index].is_known = false;
}

}  // namespace quire
