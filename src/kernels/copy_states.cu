// SPDX-License-Identifier: Apache-2.0
//
// Copies are known to the host, so that those which do not touch each other's slots and pages run side by side, and the
// others one launch after the other. Copies of different groups never touch each other: each group has a part of the
// slots and a pool of its own.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/launch.cuh"
#include "kernels/pieces.h"
#include "kernels/vector_copy.cuh"
#include "kernels/vector_fill.cuh"
#include "layout/text.h"
#include "quire/device_kernels.h"

namespace quire {
namespace {

constexpr std::string_view kWhat = "launch_copy_states";
constexpr std::size_t kBatchCopiesMax = 64;  // they travel with the launch

// Copies of one kind and group that may run side by side.
struct Batch {
  std::uint32_t count = 0;
  std::array<StateCopy, kBatchCopiesMax> copies{};

  [[nodiscard]] bool can_take(const StateCopy& copy) const {
    if (count == 0) return true;
    if (count == copies.size() || copies[0].kind != copy.kind) return false;
    const bool has_slots_only = copy.kind == StateCopyKind::Fork;
    return std::none_of(copies.begin(), copies.begin() + count, [&](const StateCopy& other) {
      return other.target == copy.target ||
             (has_slots_only && (other.target == copy.source || other.source == copy.target));
    });
  }
};

// Which tokens the entries of a snapshot are of, and where they lie in a slot: SnapshotEntries and ring_entry() of the
// host's copy, as numbers.
struct SnapshotShape {
  std::uint32_t sink;  // of the snapshot
  std::uint32_t last;
  std::uint32_t ring_sink;  // of the slot
  std::uint32_t slot_entries;
  std::uint32_t version_count;

  static constexpr std::int64_t kNone = -1;

  [[nodiscard]] __host__ __device__ std::int64_t token_of(std::uint32_t entry, std::uint32_t position) const {
    if (entry < sink) return entry < position ? std::int64_t{entry} : kNone;
    const std::int64_t token = std::int64_t{position} - last + (entry - sink);
    return token < 0 ? kNone : token;
  }
  [[nodiscard]] bool is_complete(std::uint32_t position) const { return position >= last && position >= sink; }
  [[nodiscard]] __device__ std::uint64_t first_entry(std::uint32_t position) const {
    return std::uint64_t{position % version_count} * slot_entries;
  }
  [[nodiscard]] __device__ std::uint32_t ring_entry_of(std::uint32_t token) const {
    return token < ring_sink ? token : ring_sink + ((token - ring_sink) % (slot_entries - ring_sink));
  }
};

// One component of all layers, in a slot or in a page.
struct StatePlaces {
  std::uint64_t offset;
  std::uint64_t layer_stride;
  std::uint64_t piece_stride;
  std::uint64_t entry_stride;

  [[nodiscard]] __device__ std::uint64_t offset_of(std::uint64_t layer, std::uint64_t entry,
                                                   std::uint64_t piece) const {
    return offset + (layer * layer_stride) + (entry * entry_stride) + (piece * piece_stride);
  }
};

struct RowIndex {
  std::uint32_t copy;
  std::uint32_t layer;
  std::uint32_t entry;
  std::uint32_t piece;
};

struct RowCounts {
  std::uint32_t layers;
  std::uint32_t entries;
  std::uint32_t pieces;

  [[nodiscard]] __device__ RowIndex index_of(std::uint64_t row) const {
    const Division in_entry = divide(row, pieces);
    const Division in_layer = divide(in_entry.quotient, entries);
    const Division in_copy = divide(in_layer.quotient, layers);
    return {.copy = static_cast<std::uint32_t>(in_copy.quotient),
            .layer = in_copy.remainder,
            .entry = in_layer.remainder,
            .piece = in_entry.remainder};
  }
  [[nodiscard]] std::uint64_t rows_of(std::uint32_t copies) const {
    return std::uint64_t{copies} * layers * entries * pieces;
  }
};

// From slot to slot: a part in one piece.
struct ForkRows {
  std::byte* targets[kBatchCopiesMax];
  const std::byte* sources[kBatchCopiesMax];

  [[nodiscard]] __device__ RowPlace place(std::uint64_t row) const {
    return {.target = targets[row], .source = sources[row]};
  }
};

// One component, from slots to pages or back.
struct SnapshotRows {
  std::byte* slots[kBatchCopiesMax];
  std::byte* pages[kBatchCopiesMax];
  std::uint32_t positions[kBatchCopiesMax];
  SnapshotShape shape;
  RowCounts counts;
  StatePlaces in_slot;
  StatePlaces in_page;
  bool is_save;

  [[nodiscard]] __device__ RowPlace place(std::uint64_t row) const {
    const RowIndex index = counts.index_of(row);
    const std::uint32_t position = positions[index.copy];
    const std::int64_t token = shape.token_of(index.entry, position);
    if (token == SnapshotShape::kNone) return {};
    // A token of the sink that is one of the last as well comes twice: the second stays, as on the host.
    if (!is_save && index.entry < shape.sink && token + shape.last >= position) return {};
    const std::uint64_t slot_entry =
        shape.first_entry(position) + shape.ring_entry_of(static_cast<std::uint32_t>(token));
    std::byte* const slot_row = slots[index.copy] + in_slot.offset_of(index.layer, slot_entry, index.piece);
    std::byte* const page_row = pages[index.copy] + in_page.offset_of(index.layer, index.entry, index.piece);
    return {.target = is_save ? page_row : slot_row, .source = is_save ? slot_row : page_row};
  }
};

enum class Filled : std::uint8_t {
  Everything,    // all entries of a part
  NoToken,       // entries of a page that are of no token
  WholeVersion,  // all entries of a version, if some of the snapshot's are of no token
};

// One component, or a whole part as a single row.
struct StateFillRows {
  std::byte* bases[kBatchCopiesMax];
  std::uint32_t positions[kBatchCopiesMax];
  SnapshotShape shape;
  RowCounts counts;
  StatePlaces places;
  Filled filled;

  [[nodiscard]] __device__ std::byte* row(std::uint64_t row) const {
    const RowIndex index = counts.index_of(row);
    std::uint64_t entry = index.entry;
    if (filled != Filled::Everything) {
      const std::uint32_t position = positions[index.copy];
      if (filled == Filled::NoToken && shape.token_of(index.entry, position) != SnapshotShape::kNone) return nullptr;
      if (filled == Filled::WholeVersion) {
        if (position >= shape.last && position >= shape.sink) return nullptr;
        entry += shape.first_entry(position);
      }
    }
    return bases[index.copy] + places.offset_of(index.layer, entry, index.piece);
  }
};

// Launches the copies of one group.
class PartLauncher {
 public:
  PartLauncher(const CopyStatesParams& params, const StatePart& part, DeviceStream stream)
      : params_(params), part_(part), geometry_(part.geometry), stream_(stream) {
    const CacheGroup& group = geometry_.group();
    const bool is_window = group.kind == GroupKind::Window;
    shape_ = {.sink = is_window ? group.sink_tokens : 0,
              .last = is_window ? group.window_tokens : group.snapshot_entries,
              .ring_sink = group.sink_tokens,
              .slot_entries = group.slot_entries,
              .version_count = group.slot_history + 1};
  }

  // In order, where it matters.
  Status run() {
    for (const StateCopy& copy : params_.copies) {
      if (static_cast<std::uint32_t>(copy.group) != part_.group_index) continue;
      if (!batch_.can_take(copy)) QUIRE_TRY(flush());
      batch_.copies[batch_.count++] = copy;
    }
    return flush();
  }

  // What the host's copy stops the program for; empty: nothing.
  [[nodiscard]] std::string problem_with(const StateCopy& copy) const {
    switch (copy.kind) {
      case StateCopyKind::Reset:
        return problem_with_slot(copy.target);
      case StateCopyKind::Fork:
        return has_slot(copy.source) ? problem_with_slot(copy.target) : problem_with_slot(copy.source);
      case StateCopyKind::Restore:
        return has_slot(copy.target) ? problem_with_page(copy.source, copy.position) : problem_with_slot(copy.target);
      case StateCopyKind::Save:
        return has_slot(copy.source) ? problem_with_page(copy.target, copy.position) : problem_with_slot(copy.source);
    }
    return "there is no such kind of copy";
  }

 private:
  [[nodiscard]] bool has_slot(std::int32_t slot) const {
    return slot >= 0 && static_cast<std::uint32_t>(slot) < params_.slot_count;
  }
  [[nodiscard]] std::string problem_with_slot(std::int32_t slot) const {
    return has_slot(slot) ? "" : "there is no state slot " + std::to_string(slot);
  }

  [[nodiscard]] std::string problem_with_page(std::int32_t page, std::int32_t position) const {
    const std::uint32_t group = part_.group_index;
    if (group >= params_.geometries.size() || group >= params_.pools.size() || params_.geometries[group] == nullptr ||
        params_.pools[group] == nullptr) {
      return "group " + quoted(geometry_.group().name) + " has no pages";
    }
    const PoolGeometry& pool = *params_.geometries[group];
    if (page <= 0 || static_cast<std::uint32_t>(page) >= pool.page_count()) {
      return "there is no page " + std::to_string(page) + " for a snapshot";
    }
    if (position < 0) return "a snapshot before the first token";
    bool is_alike = pool.page().entry_count() == shape_.sink + shape_.last &&
                    pool.page().layer_count() == geometry_.layer_count() &&
                    pool.page().components().size() == geometry_.components().size();
    for (std::uint32_t index = 0; is_alike && index < geometry_.components().size(); ++index) {
      const Pieces in_slot = pieces_of(geometry_, index);
      const Pieces in_page = pieces_of(pool.page(), index);
      is_alike = in_slot.count == in_page.count && in_slot.token_bytes == in_page.token_bytes;
    }
    return is_alike ? "" : "the pages of group " + quoted(geometry_.group().name) + " are not its own";
  }

  [[nodiscard]] Status flush() {
    if (batch_.count == 0) return {};
    const Status done = launch_batch();
    batch_.count = 0;
    return done;
  }

  [[nodiscard]] Status launch_batch() const {
    switch (batch_.copies[0].kind) {
      case StateCopyKind::Reset:
        return launch_reset();
      case StateCopyKind::Fork:
        return launch_fork();
      default:
        return launch_snapshot();
    }
  }

  [[nodiscard]] std::byte* slot_at(std::int32_t slot) const {
    return params_.state + (static_cast<std::uint64_t>(slot) * params_.slots->slot_bytes()) + part_.offset;
  }
  [[nodiscard]] std::uint32_t component_count() const {
    return static_cast<std::uint32_t>(geometry_.components().size());
  }
  [[nodiscard]] StatePlaces places_in_slot(const Pieces& pieces) const {
    return {.offset = pieces.offset,
            .layer_stride = geometry_.layer_bytes(),
            .piece_stride = pieces.stride,
            .entry_stride = pieces.token_stride};
  }
  static void add_places(UnitWidth& width, const StatePlaces& places) {
    width.add(places.offset).add(places.layer_stride).add(places.piece_stride).add(places.entry_stride);
  }

  // Zeros in the whole part, padding too, then what components begin with instead.
  [[nodiscard]] Status launch_reset() const {
    StateFillRows rows{.shape = shape_, .counts = {1, 1, 1}, .places = {}, .filled = Filled::Everything};
    UnitWidth width;
    for (std::uint32_t i = 0; i < batch_.count; ++i) {
      rows.bases[i] = slot_at(batch_.copies[i].target);
      width.add(rows.bases[i]);
    }
    QUIRE_TRY(launch_fill_rows(rows, {.row_count = batch_.count,
                                      .row_bytes = geometry_.page_bytes(),
                                      .width = width,
                                      .stream = stream_,
                                      .what = kWhat}));
    for (std::uint32_t index = 0; index < component_count(); ++index) {
      if (geometry_.group().components[index].initial.empty()) continue;
      const Pieces pieces = pieces_of(geometry_, index);
      rows.counts.entries = geometry_.entry_count();
      rows.places = places_in_slot(pieces);
      QUIRE_TRY(launch_fill(rows, pieces, index, width));
    }
    return {};
  }

  // The component's initial bytes in all rows of a batch.
  [[nodiscard]] Status launch_fill(StateFillRows& rows, const Pieces& pieces, std::uint32_t index,
                                   UnitWidth width) const {
    rows.counts.layers = geometry_.layer_count();
    rows.counts.pieces = static_cast<std::uint32_t>(pieces.count);
    add_places(width, rows.places);
    return launch_fill_rows(rows, {.row_count = rows.counts.rows_of(batch_.count),
                                   .row_bytes = pieces.token_bytes,
                                   .pattern = geometry_.group().components[index].initial,
                                   .width = width,
                                   .stream = stream_,
                                   .what = kWhat});
  }

  [[nodiscard]] Status launch_fork() const {
    ForkRows rows{};
    UnitWidth width;
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < batch_.count; ++i) {
      const StateCopy& copy = batch_.copies[i];
      if (copy.source == copy.target) continue;
      rows.sources[count] = slot_at(copy.source);
      rows.targets[count] = slot_at(copy.target);
      width.add(rows.sources[count]).add(rows.targets[count]);
      ++count;
    }
    return launch_copy_rows(
        rows,
        {.row_count = count, .row_bytes = geometry_.page_bytes(), .width = width, .stream = stream_, .what = kWhat});
  }

  [[nodiscard]] Status launch_snapshot() const {
    const bool is_save = batch_.copies[0].kind == StateCopyKind::Save;
    const PoolGeometry& pool = *params_.geometries[part_.group_index];
    SnapshotRows rows{.shape = shape_, .counts = {}, .in_slot = {}, .in_page = {}, .is_save = is_save};
    StateFillRows fill{
        .shape = shape_, .counts = {}, .places = {}, .filled = is_save ? Filled::NoToken : Filled::WholeVersion};
    UnitWidth width;
    bool is_complete = true;
    for (std::uint32_t i = 0; i < batch_.count; ++i) {
      const StateCopy& copy = batch_.copies[i];
      const auto page = static_cast<std::uint64_t>(is_save ? copy.target : copy.source);
      rows.slots[i] = slot_at(is_save ? copy.source : copy.target);
      rows.pages[i] = params_.pools[part_.group_index] + (page * pool.strides().page);
      rows.positions[i] = fill.positions[i] = static_cast<std::uint32_t>(copy.position);
      fill.bases[i] = is_save ? rows.pages[i] : rows.slots[i];
      width.add(rows.slots[i]).add(rows.pages[i]);
      is_complete = is_complete && shape_.is_complete(rows.positions[i]);
    }
    const std::uint32_t snapshot_entries = shape_.sink + shape_.last;
    for (std::uint32_t index = 0; index < component_count(); ++index) {
      const Pieces pieces = pieces_of(geometry_, index);
      const Pieces page_pieces = pieces_of(pool.page(), index);
      rows.in_slot = places_in_slot(pieces);
      rows.in_page = {.offset = page_pieces.offset,
                      .layer_stride = pool.strides().layer,
                      .piece_stride = page_pieces.stride,
                      .entry_stride = page_pieces.token_stride};
      if (!is_complete) {
        fill.places = is_save ? rows.in_page : rows.in_slot;
        fill.counts.entries = is_save ? snapshot_entries : shape_.slot_entries;
        QUIRE_TRY(launch_fill(fill, pieces, index, width));
      }
      rows.counts = {.layers = geometry_.layer_count(),
                     .entries = snapshot_entries,
                     .pieces = static_cast<std::uint32_t>(pieces.count)};
      UnitWidth row_width = width;
      add_places(row_width, rows.in_slot);
      add_places(row_width, rows.in_page);
      QUIRE_TRY(launch_copy_rows(rows, {.row_count = rows.counts.rows_of(batch_.count),
                                        .row_bytes = pieces.token_bytes,
                                        .width = row_width,
                                        .stream = stream_,
                                        .what = kWhat}));
    }
    return {};
  }

  const CopyStatesParams& params_;
  const StatePart& part_;
  const PageGeometry& geometry_;
  DeviceStream stream_;
  SnapshotShape shape_{};
  Batch batch_;
};

}  // namespace

Status launch_copy_states(const CopyStatesParams& params, DeviceStream stream) {
  if (params.copies.empty()) return {};
  QUIRE_TRY(check_address(params.slots, kWhat, "slots"));
  QUIRE_TRY(check_address(params.state, kWhat, "state"));
  const std::span<const StatePart> parts = params.slots->parts();
  for (std::size_t i = 0; i < params.copies.size(); ++i) {
    const StateCopy& copy = params.copies[i];
    const auto part = std::ranges::find(parts, static_cast<std::uint32_t>(copy.group), &StatePart::group_index);
    const std::string problem = part == parts.end()
                                    ? "group " + std::to_string(copy.group) + " keeps nothing in state slots"
                                    : PartLauncher(params, *part, stream).problem_with(copy);
    if (!problem.empty()) {
      return fail(ErrorCode::InvalidArgument, std::string(kWhat) + ": copy " + with_separators(i) + ": " + problem);
    }
  }
  for (const StatePart& part : parts) QUIRE_TRY(PartLauncher(params, part, stream).run());
  return {};
}

}  // namespace quire
