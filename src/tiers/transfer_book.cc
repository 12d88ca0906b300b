// SPDX-License-Identifier: Apache-2.0
#include "tiers/transfer_book.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/check.h"
#include "base/mutants.h"

namespace quire {

namespace {

// How much a new measurement of a rate counts, for a transfer of kRateBytes or more; smaller ones count less.
constexpr double kRateWeight = 0.25;
constexpr double kRateBytes = 1 << 20;

using Life = Transfer::State;

constexpr std::uint32_t bit(Life state) {
  return 1U << static_cast<std::uint32_t>(state);
}

// Which states may follow each state.
constexpr std::array<std::uint32_t, 6> kFollowers = {
    bit(Life::Queued),                                      // Free
    bit(Life::Moving) | bit(Life::Over) | bit(Life::Free),  // Queued
    bit(Life::CalledOff) | bit(Life::Arrived),              // Moving
    bit(Life::Over),                                        // CalledOff
    bit(Life::Over) | bit(Life::Free),                      // Arrived
    bit(Life::Free),                                        // Over
};

}  // namespace

void TransferRate::measure(const Completion& completion) {
  if (completion.busy_ns <= 0 || completion.moved_bytes == 0) return;
  const auto bytes = static_cast<double>(completion.moved_bytes);
  const double measured = bytes / static_cast<double>(completion.busy_ns);
  const double weight = kRateWeight * (std::exchange(was_late, false) ? 1.0 : std::min(1.0, bytes / kRateBytes));
  bytes_per_ns = bytes_per_ns == 0 ? measured : bytes_per_ns + (weight * (measured - bytes_per_ns));
}

void TransferRate::measure_late(const Completion& completion, std::uint64_t value_bytes) {
  if (completion.busy_ns <= 0) return;
  was_late = true;
  const double measured = static_cast<double>(value_bytes) / 2 / static_cast<double>(completion.busy_ns);
  if (bytes_per_ns > 0 && measured >= bytes_per_ns) return;
  bytes_per_ns = bytes_per_ns == 0 ? measured : bytes_per_ns + (kRateWeight * (measured - bytes_per_ns));
}

void AnswerTime::measure(TimeNs took_ns) {
  if (took_ns <= 0) return;
  const auto took = static_cast<double>(took_ns);
  const double weight = took < ns ? 2 * kRateWeight : kRateWeight;
  ns = ns == 0 ? took : ns + (weight * (took - ns));
}

Result<TransferBook> TransferBook::create(const Config& config) {
  TransferBook book;
  book.transfers_.resize(config.transfer_count_max);
  book.pages_max_ = config.transfer_pages_max;
  book.rank_count_ = config.rank_count;
  QUIRE_TRY_ASSIGN(book.rows_,
                   LazyArray<PageTransfer>::create(std::size_t{config.transfer_count_max} * config.transfer_pages_max));
  book.queue_.reserve(config.transfer_count_max);
  book.called_off_.reserve(config.transfer_count_max);
  return book;
}

void TransferBook::set_state(std::uint32_t index, Life state) {
  Life& now = transfers_[index].state;
  QUIRE_CHECK((kFollowers[static_cast<std::size_t>(now)] & bit(state)) != 0, "a transfer skips a part of its life");
  if (now == Life::Queued) std::erase(queue_, index);
  now = state;
}

std::optional<std::uint32_t> TransferBook::add(TransferKind kind, TransferPriority priority) {
  if (is_full()) return std::nullopt;
  const auto slot = std::ranges::find(transfers_, Life::Free, &Transfer::state);
  QUIRE_CHECK(slot != transfers_.end(), "the count of transfers that live is wrong");
  const auto index = static_cast<std::uint32_t>(slot - transfers_.begin());
  set_state(index, Life::Queued);
  slot->kind = kind;
  slot->priority = priority;
  queue_.push_back(index);
  end_ = std::max(end_, index + 1);
  ++live_count_;
  note((std::uint64_t{index} << 8U) + static_cast<std::uint64_t>(kind));
  return index;
}

void TransferBook::remove(std::uint32_t index) {
  set_state(index, Life::Free);
  std::erase(called_off_, id(index));
  const std::uint32_t generation = transfers_[index].generation + 1;
  transfers_[index] = {};
  transfers_[index].generation = generation;
  while (end_ > 0 && !transfers_[end_ - 1].is_live()) --end_;
  --live_count_;
  note(~std::uint64_t{index});
}

void TransferBook::take(std::uint32_t index) {
  set_state(index, Life::Moving);
}

bool TransferBook::call_off(std::uint32_t index) {
  if (!transfers_[index].is_wanted()) return false;
  const bool is_moving = transfers_[index].state == Life::Moving;
  set_state(index, is_moving ? Life::CalledOff : Life::Over);
  note(~(std::uint64_t{index} << 32U));
  return is_moving;
}

bool TransferBook::knows(const Completion& completion) const {
  if (completion.id.index >= transfers_.size() || completion.rank >= rank_count_) return false;
  const Transfer& transfer = transfers_[completion.id.index];
  const bool is_moving = transfer.state == Life::Moving || transfer.state == Life::CalledOff;
  const bool is_current = transfer.generation == completion.id.generation || is_mutated(Mutant::AnyGeneration);
  return is_moving && is_current && (transfer.reported_ranks & (1ULL << completion.rank)) == 0;
}

bool TransferBook::report(const Completion& completion, std::uint32_t pages_max, bool counts_pages) {
  QUIRE_CHECK(knows(completion), "a completion is of no transfer that somebody moves");
  const std::uint32_t index = completion.id.index;
  Transfer& transfer = transfers_[index];
  const bool is_ok = completion.outcome == TransferOutcome::Ok;
  const std::uint32_t good = is_ok && !counts_pages ? pages_max : std::min(completion.good_pages, pages_max);
  // Where ranks differ, the one that stopped first says why.
  const bool is_first = transfer.reported_ranks == 0;
  if (!is_ok && (is_first || transfer.outcome == TransferOutcome::Ok || good < transfer.good_pages)) {
    transfer.outcome = completion.outcome;
    transfer.fault = completion.fault;
  }
  transfer.good_pages = is_first ? good : std::min(transfer.good_pages, good);
  transfer.reported_ranks |= 1ULL << completion.rank;
  // A lower tier answers once, for all ranks.
  const std::uint32_t answer_count = is_of_lower_tier(transfer.kind) ? 1 : rank_count_;
  if (std::popcount(transfer.reported_ranks) < static_cast<int>(answer_count)) return false;
  set_state(index, transfer.state == Life::Moving ? Life::Arrived : Life::Over);
  return true;
}

std::span<TransferId> TransferBook::take_called_off(std::span<TransferId> out) {
  const std::size_t count = std::min(out.size(), called_off_.size());
  std::copy_n(called_off_.begin(), count, out.begin());
  called_off_.erase(called_off_.begin(), called_off_.begin() + static_cast<std::ptrdiff_t>(count));
  return out.first(count);
}

Status TransferBook::check_invariants() const {
  std::uint32_t live = 0;
  std::uint32_t queued = 0;
  for (std::uint32_t i = 0; i < transfers_.size(); ++i) {
    const Transfer& transfer = transfers_[i];
    if (!transfer.is_live()) continue;
    ++live;
    if (i >= end_) return fail(ErrorCode::Corrupt, "transfers: one lies behind the last one");
    if (transfer.state == Life::Queued && std::ranges::count(queue_, i) != 1) {
      return fail(ErrorCode::Corrupt, "transfers: one that nobody has taken is not in the queue");
    }
    queued += transfer.state == Life::Queued ? 1 : 0;
    const bool is_load = transfer.kind == TransferKind::Load && transfer.is_of_tree();
    if (is_load && transfer.is_wanted() != static_cast<bool>(transfer.pin)) {
      return fail(ErrorCode::Corrupt, "transfers: a load holds its path for nobody, or does not hold it");
    }
  }
  if (live != live_count_) return fail(ErrorCode::Corrupt, "transfers: the count of those that live is wrong");
  if (queued != queue_.size())
    return fail(ErrorCode::Corrupt, "transfers: the queue has others than those to be taken");
  return {};
}

}  // namespace quire
