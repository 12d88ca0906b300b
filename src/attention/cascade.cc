// SPDX-License-Identifier: Apache-2.0
#include "attention/cascade.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checked.h"

namespace quire {

Result<Cascade> Cascade::create(std::uint32_t entry_count_max, std::uint32_t shared_levels) {
  const std::optional<std::uint64_t> slice_count_max = checked_multiply(entry_count_max, shared_levels);
  if (!slice_count_max || entry_count_max > (std::uint32_t{1} << 30U)) {
    return fail(ErrorCode::InvalidArgument, std::to_string(shared_levels) + " cascade levels for " +
                                                std::to_string(entry_count_max) + " sequences are too many");
  }
  Cascade cascade;
  cascade.entry_count_max_ = entry_count_max;
  cascade.shared_levels_ = shared_levels;
  // At least twice as many slots as classes, so that probes stay short.
  const std::uint32_t slot_count = std::bit_ceil(std::max(entry_count_max, 1U) * 2);
  cascade.slot_shift_ = 32U - static_cast<std::uint32_t>(std::countr_zero(slot_count));
  QUIRE_TRY_ASSIGN(cascade.order_, LazyArray<std::uint32_t>::create(entry_count_max));
  QUIRE_TRY_ASSIGN(cascade.slices_, LazyArray<CascadeSlice>::create(*slice_count_max));
  QUIRE_TRY_ASSIGN(cascade.slice_counts_, LazyArray<std::uint32_t>::create(shared_levels));
  QUIRE_TRY_ASSIGN(cascade.shared_pages_, LazyArray<std::uint32_t>::create(entry_count_max));
  QUIRE_TRY_ASSIGN(cascade.sequences_, LazyArray<SequenceId>::create(entry_count_max));
  QUIRE_TRY_ASSIGN(cascade.slots_, LazyArray<Slot>::create(slot_count));
  QUIRE_TRY_ASSIGN(cascade.class_of_entry_, LazyArray<std::uint32_t>::create(entry_count_max));
  QUIRE_TRY_ASSIGN(cascade.class_ends_, LazyArray<std::uint32_t>::create(entry_count_max));
  QUIRE_TRY_ASSIGN(cascade.reordered_, LazyArray<std::uint32_t>::create(entry_count_max));
  return cascade;
}

void Cascade::update(std::span<const CascadeEntry> entries, std::uint64_t sharing_version) {
  QUIRE_CHECK(entries.size() <= entry_count_max_, "more entries than the cascade was made for");
  if (still_holds(entries, sharing_version)) return;
  find(entries);
  for (std::size_t i = 0; i < entries.size(); ++i) sequences_[i] = entries[i].sequence;
  sharing_version_ = sharing_version;
  has_result_ = true;
  ++found_count_;
}

bool Cascade::still_holds(std::span<const CascadeEntry> entries, std::uint64_t sharing_version) const {
  if (!has_result_ || sharing_version != sharing_version_ || entries.size() != entry_count_) return false;
  // A rewind or a new window may leave an entry less to share, though its pages are the same.
  bool holds = true;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    holds &= entries[i].sequence == sequences_[i] && entries[i].shareable_pages >= shared_pages_[i];
  }
  return holds;
}

void Cascade::find(std::span<const CascadeEntry> entries) {
  entry_count_ = static_cast<std::uint32_t>(entries.size());
  std::iota(order_.data(), order_.data() + entry_count_, 0U);
  std::fill_n(shared_pages_.data(), entry_count_, 0U);
  std::fill_n(slice_counts_.data(), shared_levels_, 0U);
  if (shared_levels_ == 0 || entries.empty()) return;

  split(entries, {.entry_begin = 0, .entry_end = entry_count_}, 0);
  for (std::uint32_t level = 1; level < shared_levels_; ++level) {
    for (const CascadeSlice& outer : slices(level - 1)) {
      if (outer.is_empty()) {
        push(level, {.entry_begin = outer.entry_begin, .entry_end = outer.entry_end});
      } else {
        split(entries, outer, level);
      }
    }
  }
}

/// Writes, for entries that share all pages up to outer.page_end, what some of them share from there on.
void Cascade::split(std::span<const CascadeEntry> entries, const CascadeSlice& outer, std::uint32_t level) {
  const std::uint32_t class_count = gather_classes(entries, outer);
  std::uint32_t begin = outer.entry_begin;
  for (std::uint32_t i = 0; i < class_count; ++i) {
    CascadeSlice slice{.entry_begin = begin, .entry_end = class_ends_[i]};
    begin = slice.entry_end;
    if (slice.entry_end - slice.entry_begin > 1) {
      slice.page_begin = outer.page_end;
      slice.page_end = common_end(entries, slice);
      for (std::uint32_t j = slice.entry_begin; j < slice.entry_end; ++j) shared_pages_[order_[j]] = slice.page_end;
    }
    push(level, slice);
  }
}

/// Puts the entries of `outer` in the order of their next pages. Class i ends before place class_ends_[i] of the order;
/// an entry that has no further page to share is a class of its own.
std::uint32_t Cascade::gather_classes(std::span<const CascadeEntry> entries, const CascadeSlice& outer) {
  ++stamp_;
  const std::uint32_t column = outer.page_end;
  std::uint32_t class_count = 0;
  for (std::uint32_t i = outer.entry_begin; i < outer.entry_end; ++i) {
    const CascadeEntry& entry = entries[order_[i]];
    const std::uint32_t class_index =
        entry.shareable_pages > column ? class_of(entry.pages[column], class_count) : class_count;
    if (class_index == class_count) class_ends_[class_count++] = 0;
    ++class_ends_[class_index];
    class_of_entry_[i] = class_index;
  }
  if (class_count == outer.entry_end - outer.entry_begin || class_count == 1) {
    std::uint32_t end = outer.entry_begin;
    for (std::uint32_t i = 0; i < class_count; ++i) class_ends_[i] = end += class_ends_[i];
    return class_count;
  }
  // From counts to begins; each begin then moves up to its class's end.
  std::uint32_t begin = outer.entry_begin;
  for (std::uint32_t i = 0; i < class_count; ++i) begin += std::exchange(class_ends_[i], begin);
  for (std::uint32_t i = outer.entry_begin; i < outer.entry_end; ++i) {
    reordered_[class_ends_[class_of_entry_[i]]++] = order_[i];
  }
  std::copy(reordered_.data() + outer.entry_begin, reordered_.data() + outer.entry_end,
            order_.data() + outer.entry_begin);
  return class_count;
}

/// The class of entries with this page next; class_count if it is the first.
std::uint32_t Cascade::class_of(PageId page, std::uint32_t class_count) {
  const std::size_t mask = slots_.size() - 1;
  // Fibonacci hashing: page ids are often consecutive, or equal in their low bits.
  std::size_t index = (page.value * std::uint32_t{0x9E3779B1}) >> slot_shift_;
  while (slots_[index].stamp == stamp_ && slots_[index].page != page.value) index = (index + 1) & mask;
  Slot& slot = slots_[index];
  if (slot.stamp != stamp_) slot = {.stamp = stamp_, .page = page.value, .class_index = class_count};
  return slot.class_index;
}

/// How many leading pages all entries of the slice have in common: more than page_begin, as the next one is equal.
std::uint32_t Cascade::common_end(std::span<const CascadeEntry> entries, const CascadeSlice& slice) const {
  const PageId* const first = entries[order_[slice.entry_begin]].pages;
  std::uint32_t end = entries[order_[slice.entry_begin]].shareable_pages;
  for (std::uint32_t i = slice.entry_begin + 1; i < slice.entry_end; ++i) {
    const CascadeEntry& entry = entries[order_[i]];
    end = std::min(end, entry.shareable_pages);
    if (entry.pages[end - 1] == first[end - 1]) continue;
    // Equal up to `equal`, different at `different`; halves what lies between.
    std::uint32_t equal = slice.page_begin + 1;
    std::uint32_t different = end;
    while (different - equal > 1) {
      const std::uint32_t middle = equal + ((different - equal) / 2);
      (entry.pages[middle - 1] == first[middle - 1] ? equal : different) = middle;
    }
    end = equal;
  }
  return end;
}

/// Entries next to each other that share nothing at a level are one slice.
void Cascade::push(std::uint32_t level, const CascadeSlice& slice) {
  CascadeSlice* const data = slices_.data() + (std::size_t{level} * entry_count_max_);
  std::uint32_t& count = slice_counts_[level];
  if (slice.is_empty() && count > 0 && data[count - 1].is_empty()) {
    data[count - 1].entry_end = slice.entry_end;
  } else {
    data[count++] = slice;
  }
}

}  // namespace quire
