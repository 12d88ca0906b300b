// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "kernels/ask_for.h"
#include "kernels/e4m3_rows.h"
#include "kernels/quantised_kernels_with.h"
#include "quire/quantised_kernels.h"

namespace quire {
namespace {

// Entries of one layer on their way to rows of bf16. An entry is asked for when it is added and read a few entries
// later: they lie scattered, and waiting for each would take longer than the work. First it is asked for in the
// second-level cache, since the first can wait for too few lines of memory at a time, and before its turn in the first:
// the loads would wait behind what memory has not answered yet. With one of the two only, entries from anywhere in a
// quarter GB take 15 to 40 % longer (Zen 4).
class EntryReader {
 public:
  EntryReader(const E4m3Codec& codec, const QuantisedEntries& entries, const std::byte* pool, std::uint32_t layer_index)
      : decode_(codec.decode),
        shape_(shape_of(entries)),
        values_(strides_of(entries, entries.components().values)),
        scales_(strides_of(entries, entries.components().scales)),
        rope_(strides_of(entries, entries.components().rope)),
        layer_(pool + (layer_index * entries.geometry().strides().layer)),
        page_stride_(entries.geometry().strides().page),
        page_count_(entries.geometry().page_count()),
        head_count_(entries.head_count()) {
    QUIRE_CHECK(layer_index < entries.geometry().page().layer_count(),
                "gathering from a layer that the group does not have");
  }

  void add(std::int32_t page_index, std::uint64_t entry, std::byte* target) {
    QUIRE_CHECK(static_cast<std::uint32_t>(page_index) < page_count_,
                "gathering from a page that the pool does not have");
    const std::byte* const page = layer_ + (static_cast<std::uint64_t>(page_index) * page_stride_);
    const Entry added{.row = {.target = target,
                              .codes = page + values_.offset + (entry * values_.token),
                              .scales = page + scales_.offset + (entry * scales_.token)},
                      .rope = page + rope_.offset + (entry * rope_.token)};
    ask_for_entry<CacheLevel::Second>(added);
    if (added_ - read_ == kAhead) {
      ask_for_entry<CacheLevel::First>(waiting_[(read_ + kSoon) % kAhead]);
      read_next();
    }
    waiting_[added_++ % kAhead] = added;
  }
  void finish() {
    while (read_ != added_) read_next();
  }

 private:
  struct Entry {
    DecodeRow row;
    const std::byte* rope;
  };
  static constexpr std::uint64_t kAhead = 16;
  static constexpr std::uint64_t kSoon = 3;

  template <CacheLevel kLevel>
  [[gnu::always_inline]] void ask_for_entry(const Entry& entry) const {
    for (std::uint64_t head = 0; head < head_count_; ++head) {
      ask_for<kLevel>(entry.row.codes + (head * values_.head), values_.head_bytes);
      ask_for<kLevel>(entry.row.scales + (head * scales_.head), scales_.head_bytes);
    }
    ask_for<kLevel>(entry.rope, rope_.head_bytes);
  }
  void read_next() {
    const Entry& entry = waiting_[read_++ % kAhead];
    for (std::uint64_t head = 0; head < head_count_; ++head) {
      decode_({.target = entry.row.target + (head * 2 * shape_.dim),
               .codes = entry.row.codes + (head * values_.head),
               .scales = entry.row.scales + (head * scales_.head)},
              shape_);
    }
    std::memcpy(entry.row.target + (2 * shape_.dim), entry.rope, rope_.head_bytes);  // of one head
  }

  void (*decode_)(const DecodeRow& row, const E4m3Shape& shape);
  E4m3Shape shape_;
  ComponentStrides values_;
  ComponentStrides scales_;
  ComponentStrides rope_;
  const std::byte* layer_;
  std::uint64_t page_stride_;
  std::uint64_t page_count_;
  std::uint64_t head_count_;
  std::array<Entry, kAhead> waiting_;
  std::uint64_t added_ = 0;
  std::uint64_t read_ = 0;
};

// The places that a gather writes.
class TargetRows {
 public:
  TargetRows(const GatherTarget& target, const QuantisedEntries& entries, std::size_t rows, std::uint64_t places)
      : target_(target), entry_bytes_(entries.row_bytes()), places_(places) {
    QUIRE_CHECK(target.first_entry <= target.row_entries && places <= target.row_entries - target.first_entry,
                "a row of the gather's target is too short");
    QUIRE_CHECK(target.valid_counts.empty() || target.valid_counts.size() == rows,
                "the gather's target has another number of valid counts than of rows");
  }
  [[nodiscard]] std::byte* at(std::size_t row, std::uint64_t place) const {
    return target_.data + (((row * target_.row_entries) + target_.first_entry + place) * entry_bytes_);
  }
  void clear(std::size_t row, std::uint64_t first_place, std::uint64_t count) const {
    if (count > 0) std::memset(at(row, first_place), 0, count * entry_bytes_);
  }
  void close(std::size_t row, std::uint64_t valid_count) const {
    if (!target_.valid_counts.empty()) target_.valid_counts[row] = static_cast<std::int32_t>(valid_count);
  }
  [[nodiscard]] std::uint64_t places() const { return places_; }

 private:
  GatherTarget target_;
  std::uint64_t entry_bytes_;
  std::uint64_t places_;
};

// One sequence's row of a table.
struct SequencePages {
  const std::int32_t* pages = nullptr;
  std::uint64_t entry_count = 0;
};

SequencePages pages_of(const EntryTable& table, std::uint32_t page_entries, std::int32_t row) {
  if (row < 0) return {};
  QUIRE_CHECK(static_cast<std::uint32_t>(row) < table.rows, "gathering from a row that the table does not have");
  const auto entry_count = static_cast<std::uint64_t>(std::max(table.entry_counts[row], 0));
  QUIRE_CHECK(entry_count <= std::uint64_t{table.row_columns} * page_entries,
              "a sequence has more entries than its row of the table has pages for");
  return {.pages = table.pages + (static_cast<std::uint64_t>(row) * table.row_columns), .entry_count = entry_count};
}

void check_table(const EntryTable& table) {
  QUIRE_CHECK(table.entry_counts.size() == table.rows, "the table has another number of entry counts than of rows");
}

}  // namespace

void gather_selected_with(const E4m3Codec& codec, const GatherSelectedParams& params) {
  const std::size_t rows = params.table_rows.size();
  QUIRE_CHECK(params.ids.size() == rows * params.ids_per_row, "gathering needs ids_per_row ids for every row");
  check_table(params.table);
  const std::uint32_t page_entries = params.entries->geometry().page().entry_count();
  const TargetRows target(params.target, *params.entries, rows, params.ids_per_row);
  EntryReader reader(codec, *params.entries, params.pool, params.layer_index);
  for (std::size_t row = 0; row < rows; ++row) {
    const SequencePages sequence = pages_of(params.table, page_entries, params.table_rows[row]);
    std::uint64_t valid_count = 0;
    for (std::uint64_t place = 0; place < target.places(); ++place) {
      const auto id = static_cast<std::uint32_t>(params.ids[(row * params.ids_per_row) + place]);  // -1: too large
      const std::int32_t page = id < sequence.entry_count ? sequence.pages[id / page_entries] : -1;
      if (page < 0) {
        target.clear(row, place, 1);
        continue;
      }
      reader.add(page, id % page_entries, target.at(row, place));
      ++valid_count;
    }
    target.close(row, valid_count);
  }
  reader.finish();
}

void gather_last_with(const E4m3Codec& codec, const GatherLastParams& params) {
  const std::size_t rows = params.table_rows.size();
  check_table(params.table);
  const std::uint32_t page_entries = params.entries->geometry().page().entry_count();
  const TargetRows target(params.target, *params.entries, rows, params.entries_max);
  EntryReader reader(codec, *params.entries, params.pool, params.layer_index);
  for (std::size_t row = 0; row < rows; ++row) {
    const SequencePages sequence = pages_of(params.table, page_entries, params.table_rows[row]);
    std::uint64_t valid_count = 0;
    for (std::uint64_t id = sequence.entry_count - std::min(sequence.entry_count, target.places());
         id < sequence.entry_count; ++id) {
      const std::int32_t page = sequence.pages[id / page_entries];
      if (page >= 0) reader.add(page, id % page_entries, target.at(row, valid_count++));
    }
    target.clear(row, valid_count, target.places() - valid_count);
    target.close(row, valid_count);
  }
  reader.finish();
}

void gather_ring_with(const E4m3Codec& codec, const GatherRingParams& params) {
  const std::size_t rows = params.state_slots.size();
  QUIRE_CHECK(params.lengths.size() == rows, "gathering from rings needs a length for every row");
  const std::uint64_t ring_entries = params.entries->geometry().page().entry_count();
  const std::uint64_t sink = params.entries->geometry().page().group().sink_tokens;
  QUIRE_CHECK(params.entries_max <= ring_entries, "gathering more entries than a ring has");
  QUIRE_CHECK(params.entries_max >= sink && ring_entries > sink, "gathering fewer entries than a ring's sink has");
  const TargetRows target(params.target, *params.entries, rows, params.entries_max);
  EntryReader reader(codec, *params.entries, params.pool, params.layer_index);
  for (std::size_t row = 0; row < rows; ++row) {
    const bool has_sequence = params.state_slots[row] >= 0 && params.lengths[row] > 0;
    const std::uint64_t length = has_sequence ? static_cast<std::uint64_t>(params.lengths[row]) : 0;
    const std::uint64_t valid_count = std::min(length, target.places());
    for (std::uint64_t place = 0; place < valid_count; ++place) {
      const std::uint64_t position = place < sink ? place : length - valid_count + place;
      reader.add(params.state_slots[row], ring_place(sink, ring_entries - sink, position), target.at(row, place));
    }
    target.clear(row, valid_count, target.places() - valid_count);
    target.close(row, valid_count);
  }
  reader.finish();
}

void gather_selected_on_host(const GatherSelectedParams& params) {
  gather_selected_with(best_e4m3_codec(), params);
}

void gather_last_on_host(const GatherLastParams& params) {
  gather_last_with(best_e4m3_codec(), params);
}

void gather_ring_on_host(const GatherRingParams& params) {
  gather_ring_with(best_e4m3_codec(), params);
}

}  // namespace quire
