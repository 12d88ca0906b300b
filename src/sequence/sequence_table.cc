// SPDX-License-Identifier: Apache-2.0
#include "sequence/sequence_table.h"

#include <bit>

#include "base/check.h"

namespace quire {

Result<SequenceTable> SequenceTable::create(const SequenceTableConfig& config) {
  SequenceTable table;
  const std::size_t count = config.sequence_count_max;
  table.row_tokens_ = config.context_tokens_max;
  table.row_pages_ = (std::size_t{config.context_tokens_max} + config.page_tokens - 1) / config.page_tokens;
  table.row_extra_keys_ = config.extra_key_count_max;
  table.keys_ = LookaheadKeys(config.lookahead_tokens, config.extra_key_count_max);
  QUIRE_TRY_ASSIGN(table.tokens_, LazyArray<TokenId>::create(count * stride<TokenId>(table.row_tokens_)));
  QUIRE_TRY_ASSIGN(table.pages_, LazyArray<PageId>::create(count * stride<PageId>(table.row_pages_)));
  table.row_tree_tokens_ = config.tree_tokens_max;
  QUIRE_TRY_ASSIGN(table.tree_parents_,
                   LazyArray<std::int32_t>::create(count * stride<std::int32_t>(table.row_tree_tokens_)));
  QUIRE_TRY_ASSIGN(table.tree_tokens_, LazyArray<TokenId>::create(count * stride<TokenId>(table.row_tree_tokens_)));
  QUIRE_TRY_ASSIGN(table.receives_, LazyArray<SlotRun>::create(count * stride<SlotRun>(table.row_pages_)));
  QUIRE_TRY_ASSIGN(table.sends_, LazyArray<SlotRun>::create(count * stride<SlotRun>(table.row_tokens_)));
  table.window_count_ = config.window_count;
  if (config.window_count > 0) {
    const std::size_t receive_stride = stride<WindowRun>(table.row_pages_ * config.window_count);
    const std::size_t send_stride = stride<WindowRun>(table.row_tokens_ * config.window_count);
    QUIRE_TRY_ASSIGN(table.window_receives_, LazyArray<WindowRun>::create(count * receive_stride));
    QUIRE_TRY_ASSIGN(table.window_sends_, LazyArray<WindowRun>::create(count * send_stride));
  }
  QUIRE_TRY_ASSIGN(table.extra_keys_, LazyArray<ExtraKey>::create(count * stride<ExtraKey>(table.row_extra_keys_)));
  table.slots_ = std::vector<SequenceSlot>(count);
  table.loading_bits_.resize((count + 63) / 64);
  table.free_slots_.reserve(count);
  for (std::uint32_t i = config.sequence_count_max; i > 0; --i) table.free_slots_.push_back(i - 1);
  return table;
}

std::optional<std::uint32_t> SequenceTable::try_add() {
  if (free_slots_.empty()) return std::nullopt;
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  ++live_count_;
  return index;
}

void SequenceTable::remove(std::uint32_t index) {
  QUIRE_CHECK(slots_[index].state != SequenceSlot::State::Free, "a sequence ended twice");
  set_state(index, SequenceSlot::State::Free);
  const std::uint32_t generation = slots_[index].generation;
  slots_[index] = {};
  slots_[index].generation = generation + 1;
  free_slots_.push_back(index);
  --live_count_;
}

void SequenceTable::set_state(std::uint32_t index, SequenceSlot::State state) {
  const auto runs = [](SequenceSlot::State each) {
    return each == SequenceSlot::State::Running || each == SequenceSlot::State::RunningAhead;
  };
  if (runs(slots_[index].state)) --running_count_;
  if (runs(state)) ++running_count_;
  slots_[index].state = state;
  const std::uint64_t bit = std::uint64_t{1} << (index % 64);
  std::uint64_t& word = loading_bits_[index / 64];
  word = slots_[index].is_arriving() ? word | bit : word & ~bit;
}

std::uint32_t SequenceTable::next_arriving(std::uint32_t index) const {
  if (index >= capacity()) return capacity();
  std::size_t place = index / 64;
  std::uint64_t word = loading_bits_[place] >> (index % 64) << (index % 64);
  while (word == 0) {
    if (++place == loading_bits_.size()) return capacity();
    word = loading_bits_[place];
  }
  return static_cast<std::uint32_t>((place * 64) + static_cast<std::size_t>(std::countr_zero(word)));
}

}  // namespace quire
