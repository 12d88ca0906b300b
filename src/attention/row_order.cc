// SPDX-License-Identifier: Apache-2.0
#include "attention/row_order.h"

#include <algorithm>

#include "base/check.h"
#include "quire/plan.h"

namespace quire {
namespace {

/// Updates that a row may miss before its place goes, once more rows are missing than there are. Batches that take
/// turns find theirs.
constexpr std::uint64_t kMissedMax = 64;

}  // namespace

Result<RowOrder> RowOrder::create(std::uint32_t sequence_count_max) {
  RowOrder order;
  QUIRE_TRY_ASSIGN(order.rows_, LazyArray<Row>::create(sequence_count_max));
  QUIRE_TRY_ASSIGN(order.places_, LazyArray<Place>::create(sequence_count_max));
  QUIRE_TRY_ASSIGN(order.newcomers_, LazyArray<std::uint32_t>::create(sequence_count_max));
  return order;
}

void RowOrder::update(std::span<const CascadeEntry> entries) {
  ++update_count_;
  std::size_t newcomer_count = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const std::uint32_t index = entries[i].sequence.index;
    const std::uint32_t pages_end = entries[i].shareable_pages;
    Row& row = rows_[index];
    row.pages = entries[i].pages;
    row.last_update = update_count_;
    row.entry = static_cast<std::uint32_t>(i);
    // More or less to share changes nothing for a row that differs from all others before that.
    const bool differs_before = row.depth_max < std::min(row.pages_end, pages_end);
    if (!row.has_place || !differs_before) [[unlikely]] {
      if (row.pages_end != pages_end) forget(index);
      if (!row.has_place) newcomers_[newcomer_count++] = index;
    }
    row.pages_end = pages_end;
  }
  if (place_count_ > 2 * entries.size()) remove_missing();
  for (std::size_t i = 0; i < newcomer_count; ++i) insert(newcomers_[i]);
}

/// Without a look at any pages. What the rows on both sides have in common is the lesser number of the two; where that
/// is the number of the row that goes, the next page is its own too.
void RowOrder::remove(std::uint32_t sequence_index) {
  Place* const end = places_.data() + place_count_;
  Place* const place =
      std::find_if(places_.data(), end, [&](const Place& other) { return other.sequence_index == sequence_index; });
  Place* const next = place + 1;
  if (next != end && place->common_pages < next->common_pages) {
    next->common_pages = place->common_pages;
    next->next_page = place->next_page;
  }
  std::copy(next, end, place);
  --place_count_;
  rows_[sequence_index].has_place = false;
}

void RowOrder::remove_missing() {
  for (std::size_t i = place_count_; i-- > 0;) {
    const std::uint32_t index = places_[i].sequence_index;
    if (update_count_ - rows_[index].last_update > kMissedMax) remove(index);
  }
}

/// How many leading pages both have in common, the first `equal` among them. Equal pages in a column mean equal pages
/// before it.
std::uint32_t RowOrder::common_pages(const Row& row, const Row& other, std::uint32_t equal) {
  const std::uint32_t end = std::min(row.pages_end, other.pages_end);
  std::uint32_t different = end + 1;
  // Rows mostly branch off where others do.
  if (const std::uint32_t guess = other.depth_max; guess >= equal && guess < end) {
    const bool is_equal = row.pages[guess - 1] == other.pages[guess - 1];
    if (is_equal && row.pages[guess] != other.pages[guess]) return guess;
    (is_equal ? equal : different) = guess;
  }
  // Equal up to `equal`, different at `different`; halves what lies between.
  while (different - equal > 1) {
    const std::uint32_t middle = equal + ((different - equal) / 2);
    (row.pages[middle - 1] == other.pages[middle - 1] ? equal : different) = middle;
  }
  return equal;
}

/// Behind all rows that have as many pages in common with it as any has.
void RowOrder::insert(std::uint32_t sequence_index) {
  Row& row = rows_[sequence_index];
  QUIRE_CHECK(!row.has_place, "a sequence is in a batch twice");
  const PageId* const pages = row.pages;
  const std::uint32_t end = row.pages_end;
  std::uint32_t common = 0;  // with the place before `index`
  std::size_t index = 0;
  for (; index < place_count_; ++index) {
    const Place& place = places_[index];
    if (place.common_pages > common) continue;
    if (place.common_pages < common) break;
    if (common == end || place.next_page != pages[common].value) continue;
    const Row& other = rows_[place.sequence_index];
    QUIRE_DCHECK(common < other.pages_end, "a row has a next page behind its end");
    common = common_pages(row, other, common + 1);
  }
  std::copy_backward(places_.data() + index, places_.data() + place_count_, places_.data() + place_count_ + 1);
  ++place_count_;
  places_[index] = {.sequence_index = sequence_index,
                    .common_pages = common,
                    .next_page = common < end ? pages[common].value : kNullPage.value};
  row.depth_max = common;
  row.has_place = true;
  if (index == 0) return;
  Row& before = rows_[places_[index - 1].sequence_index];
  before.depth_max = std::max(before.depth_max, common);
}

}  // namespace quire
