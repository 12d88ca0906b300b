// SPDX-License-Identifier: Apache-2.0
//
// Which entries the rows of a gather have. A warp has a run of consecutive places of a row, not more than it has lanes,
// and each lane finds the entry of one place: so all of them wait for memory together. A source has
//
//     find(row, first, count)  the entry of place `first` + lane, by all lanes of a warp together; from `count` on:
//     none count_part(row, thread)  how many places of a row get an entry, as far as one thread of a block counts them
#pragma once

#include <cstdint>

#include "kernels/launch.cuh"
#include "kernels/quantised_kernels_with.h"
#include "kernels/quantised_units.cuh"

namespace quire {

/// An entry, or none: then the place becomes zeros.
struct Found {
  std::int64_t page = 0;
  std::uint32_t entry = kNoEntry;

  [[nodiscard]] __device__ bool is_entry() const { return entry != kNoEntry; }
};

/// The pages of one sequence. Of a row that the table does not have there are no entries, and never more than its row
/// has pages for.
struct SequencePages {
  const std::int32_t* pages = nullptr;
  std::uint32_t entry_count = 0;  ///< below 2^31
};

struct TablePages {
  const std::int32_t* pages;
  const std::int32_t* entry_counts;
  const std::int32_t* table_rows;
  std::uint32_t rows;
  std::uint32_t row_columns;
  std::uint32_t page_entries;
  std::uint32_t page_count;  ///< of the pool

  [[nodiscard]] __device__ SequencePages sequence_of(std::uint64_t row) const {
    const auto table_row = static_cast<std::uint32_t>(table_rows[row]);  // a negative one becomes too large
    if (table_row >= rows) return {};
    const auto count = static_cast<std::uint64_t>(max(entry_counts[table_row], 0));
    return {.pages = pages + (std::uint64_t{table_row} * row_columns),
            .entry_count = static_cast<std::uint32_t>(min(count, std::uint64_t{row_columns} * page_entries))};
  }
  /// A negative page is none that the pool has.
  [[nodiscard]] __device__ bool has_page(std::int32_t page) const {
    return static_cast<std::uint32_t>(page) < page_count;
  }
};

struct SelectedSource {
  TablePages table;
  const std::int32_t* ids;
  std::uint32_t ids_per_row;

  [[nodiscard]] __device__ Found find(std::uint64_t row, std::uint32_t first, std::uint32_t count) const {
    const std::uint32_t lane = threadIdx.x % kWarpLanes;
    if (lane >= count) return {};
    return entry_of(table.sequence_of(row), ids[(row * ids_per_row) + first + lane]);
  }
  [[nodiscard]] __device__ std::uint32_t count_part(std::uint64_t row, std::uint32_t thread) const {
    const SequencePages sequence = table.sequence_of(row);
    std::uint32_t count = 0;
    for (std::uint32_t place = thread; place < ids_per_row; place += kBlockThreads) {
      count += entry_of(sequence, ids[(row * ids_per_row) + place]).is_entry() ? 1 : 0;
    }
    return count;
  }

 private:
  [[nodiscard]] __device__ Found entry_of(const SequencePages& sequence, std::int32_t id) const {
    const auto entry = static_cast<std::uint32_t>(id);  // a negative one becomes too large
    if (entry >= sequence.entry_count) return {};
    const std::int32_t page = sequence.pages[entry / table.page_entries];
    if (!table.has_page(page)) return {};
    return {.page = page, .entry = entry % table.page_entries};
  }
};

/// The last entries, without those of pages that there are not: so where one goes depends on all pages before it.
struct LastSource {
  TablePages table;
  std::uint32_t entries_max;

  [[nodiscard]] __device__ Found find(std::uint64_t row, std::uint32_t first, std::uint32_t count) const {
    const std::uint32_t lane = threadIdx.x % kWarpLanes;
    const SequencePages sequence = table.sequence_of(row);
    const std::uint32_t first_id = id_of(sequence, first);
    const std::uint32_t own_id = first_id + lane;
    const bool is_own = lane < count && own_id < sequence.entry_count;
    const std::int32_t page = is_own ? sequence.pages[own_id / table.page_entries] : 0;
    if (__ballot_sync(kFullWarp, is_own && !table.has_page(page)) == 0) {
      return is_own ? Found{.page = page, .entry = own_id % table.page_entries} : Found{};
    }
    // A page is missing among these. That is rare, since pages go from the front: one place after the other.
    Found own;
    std::uint64_t id = first_id;
    for (std::uint32_t i = 0; i < count; ++i) {
      const Found next = next_of(sequence, id);
      if (i == lane) own = next;
    }
    return own;
  }
  [[nodiscard]] __device__ std::uint32_t count_part(std::uint64_t row, std::uint32_t thread) const {
    const SequencePages sequence = table.sequence_of(row);
    if (first_of(sequence) == sequence.entry_count) return 0;
    const std::uint32_t last_column = (sequence.entry_count - 1) / table.page_entries;
    std::uint32_t count = 0;
    for (std::uint32_t column = (first_of(sequence) / table.page_entries) + thread; column <= last_column;
         column += kBlockThreads) {
      count += entries_in(sequence, column);
    }
    return count;
  }

 private:
  // Of the entry at a place, by all lanes together; entry_count if there are not so many.
  [[nodiscard]] __device__ std::uint32_t id_of(const SequencePages& sequence, std::uint32_t place) const {
    const std::uint32_t first_id = first_of(sequence);
    if (first_id == sequence.entry_count) return first_id;
    const std::uint32_t lane = threadIdx.x % kWarpLanes;
    const std::uint32_t last_column = (sequence.entry_count - 1) / table.page_entries;
    std::uint32_t passed = 0;  // entries in the columns before these
    for (std::uint32_t column = first_id / table.page_entries; column <= last_column; column += kWarpLanes) {
      const std::uint32_t own_column = column + lane;
      const std::uint32_t own = own_column <= last_column ? entries_in(sequence, own_column) : 0;
      std::uint32_t up_to = own;  // in the columns up to this lane's
      for (std::uint32_t distance = 1; distance < kWarpLanes; distance *= 2) {
        const std::uint32_t before = __shfl_up_sync(kFullWarp, up_to, distance);
        if (lane >= distance) up_to += before;
      }
      const std::uint32_t has_it = __ballot_sync(kFullWarp, passed + up_to > place);
      if (has_it != 0) {
        const int owner = __ffs(static_cast<int>(has_it)) - 1;
        const std::uint32_t in_column = place - passed - (up_to - own);
        return __shfl_sync(kFullWarp, max(own_column * table.page_entries, first_id) + in_column, owner);
      }
      passed += __shfl_sync(kFullWarp, up_to, kWarpLanes - 1);
    }
    return sequence.entry_count;
  }
  // The entry with the id, or the next one whose page is there; the id becomes that of the one behind it.
  [[nodiscard]] __device__ Found next_of(const SequencePages& sequence, std::uint64_t& id) const {
    while (id < sequence.entry_count) {
      const Division in_page = divide(id, table.page_entries);
      const std::int32_t page = sequence.pages[in_page.quotient];
      if (table.has_page(page)) {
        ++id;
        return {.page = page, .entry = in_page.remainder};
      }
      id = (in_page.quotient + 1) * table.page_entries;
    }
    return {};
  }
  [[nodiscard]] __device__ std::uint32_t first_of(const SequencePages& sequence) const {
    return sequence.entry_count - min(sequence.entry_count, entries_max);
  }
  // Those among the last.
  [[nodiscard]] __device__ std::uint32_t entries_in(const SequencePages& sequence, std::uint32_t column) const {
    if (!table.has_page(sequence.pages[column])) return 0;
    const std::uint32_t begin = column * table.page_entries;
    const std::uint32_t end = begin + min(table.page_entries, sequence.entry_count - begin);
    return end - max(begin, first_of(sequence));
  }
};

struct RingSource {
  const std::int32_t* state_slots;
  const std::int32_t* lengths;
  std::uint32_t slot_count;
  std::uint32_t ring_entries;
  std::uint32_t sink;
  std::uint32_t entries_max;

  [[nodiscard]] __device__ Found find(std::uint64_t row, std::uint32_t first, std::uint32_t count) const {
    const std::uint32_t lane = threadIdx.x % kWarpLanes;
    const std::uint32_t place = first + lane;
    const std::uint32_t length = length_of(row);
    const std::uint32_t valid_count = min(length, entries_max);
    if (lane >= count || place >= valid_count) return {};
    const std::uint32_t position = place < sink ? place : length - valid_count + place;
    return {.page = state_slots[row],
            .entry = static_cast<std::uint32_t>(ring_place(sink, ring_entries - sink, position))};
  }
  [[nodiscard]] __device__ std::uint32_t count_part(std::uint64_t row, std::uint32_t thread) const {
    return thread == 0 ? min(length_of(row), entries_max) : 0;
  }

 private:
  // Tokens of the sequence, where there is one.
  [[nodiscard]] __device__ std::uint32_t length_of(std::uint64_t row) const {
    const bool has_slot = static_cast<std::uint32_t>(state_slots[row]) < slot_count;  // a negative one is too large
    return has_slot ? static_cast<std::uint32_t>(max(lengths[row], 0)) : 0;
  }
};

}  // namespace quire
