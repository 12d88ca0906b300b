// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/copy_rows.h"
#include "kernels/host_kernels_with.h"
#include "kernels/pieces.h"
#include "kernels/row_list.h"
#include "quire/host_kernels.h"

namespace quire {
namespace {

/// Entries of every layer that follow each other, in a page or in a part of a slot.
struct EntryRange {
  const PageGeometry* geometry = nullptr;
  std::byte* base = nullptr;
  std::uint64_t layer_stride = 0;
  std::uint64_t first = 0;
  std::uint64_t count = 0;
};

void fill_row(std::span<std::byte> row, const std::vector<std::byte>& pattern) {
  if (pattern.empty()) {
    std::memset(row.data(), 0, row.size());
    return;
  }
  for (std::uint64_t at = 0; at < row.size(); at += pattern.size()) {
    std::memcpy(row.data() + at, pattern.data(), pattern.size());
  }
}

/// Every row gets the initial bytes of its component; what lies between rows stays.
void fill_initial(const EntryRange& range) {
  const PageGeometry& geometry = *range.geometry;
  for (std::uint64_t layer = 0; layer < geometry.layer_count(); ++layer) {
    for (std::uint32_t index = 0; index < geometry.components().size(); ++index) {
      const ComponentStrides& component = geometry.components()[index];
      const std::uint64_t head_count = geometry.heads_on_rank(index, 0).count;
      for (std::uint64_t entry = range.first; entry < range.first + range.count; ++entry) {
        for (std::uint64_t head = 0; head < head_count; ++head) {
          std::byte* const row = range.base + (layer * range.layer_stride) + component.offset +
                                 (entry * component.token) + (head * component.head);
          fill_row({row, component.head_bytes}, geometry.group().components[index].initial);
        }
      }
    }
  }
}

/// Which tokens the entries of a group's snapshot are of.
class SnapshotEntries {
 public:
  SnapshotEntries(const CacheGroup& group, std::uint32_t position)
      : sink_(group.kind == GroupKind::Window ? group.sink_tokens : 0),
        last_(group.kind == GroupKind::Window ? group.window_tokens : group.snapshot_entries),
        position_(position) {}

  static constexpr std::int64_t kNone = -1;

  [[nodiscard]] std::uint32_t count() const { return sink_ + last_; }
  /// kNone: of no token, since there are not so many yet.
  [[nodiscard]] std::int64_t token_of(std::uint32_t entry) const {
    if (entry < sink_) return entry < position_ ? std::int64_t{entry} : kNone;
    return std::max(std::int64_t{position_} - last_ + (entry - sink_), kNone);
  }
  [[nodiscard]] bool is_complete() const { return position_ >= last_ && position_ >= sink_; }

 private:
  std::uint32_t sink_;
  std::uint32_t last_;
  std::uint32_t position_;
};

class StateCopier {
 public:
  StateCopier(CopyRows copy_rows, const CopyStatesParams& params) : copy_rows_(copy_rows), params_(params) {}

  void run(const StateCopy& copy) {
    part_ = &part_of(copy.group);
    switch (copy.kind) {
      case StateCopyKind::Reset:
        reset(slot_at(copy.target));
        return;
      case StateCopyKind::Fork:
        fork(slot_at(copy.source), slot_at(copy.target));
        return;
      case StateCopyKind::Restore:
      case StateCopyKind::Save: {
        const Snapshot snapshot = snapshot_of(copy);
        fill_missing(snapshot);
        const auto count = static_cast<std::uint32_t>(part_->geometry.components().size());
        for (std::uint32_t component = 0; component < count; ++component) copy_component(snapshot, component);
        return;
      }
    }
    QUIRE_CHECK(false, "a state copy of an unknown kind");
  }

 private:
  [[nodiscard]] const StatePart& part_of(std::int32_t group) const {
    const std::span<const StatePart> parts = params_.slots->parts();
    const auto found = std::ranges::find(parts, static_cast<std::uint32_t>(group), &StatePart::group_index);
    QUIRE_CHECK(found != parts.end(), "copying the state of a group that has none");
    return *found;
  }

  /// The part of a slot that belongs to the group.
  [[nodiscard]] std::byte* slot_at(std::int32_t slot) const {
    QUIRE_CHECK(slot >= 0 && static_cast<std::uint32_t>(slot) < params_.slot_count,
                "copying a state slot that there is not");
    return params_.state + (static_cast<std::uint64_t>(slot) * params_.slots->slot_bytes()) + part_->offset;
  }

  [[nodiscard]] const PoolGeometry& pool_geometry() const {
    const std::uint32_t group = part_->group_index;
    QUIRE_CHECK(group < params_.geometries.size() && group < params_.pools.size() &&
                    params_.geometries[group] != nullptr && params_.pools[group] != nullptr,
                "a snapshot of a group that has no pages");
    return *params_.geometries[group];
  }

  // Padding too: the part is as StateSlots::initial_bytes() has it.
  void reset(std::byte* slot) const {
    std::memset(slot, 0, part_->geometry.page_bytes());
    const std::vector<Component>& components = part_->geometry.group().components;
    if (std::ranges::all_of(components, [](const Component& component) { return component.initial.empty(); })) return;
    fill_initial({.geometry = &part_->geometry,
                  .base = slot,
                  .layer_stride = part_->geometry.layer_bytes(),
                  .first = 0,
                  .count = part_->geometry.entry_count()});
  }

  void fork(const std::byte* source, std::byte* target) const {
    if (source != target) std::memcpy(target, source, part_->geometry.page_bytes());
  }

  /// One way or the other between a slot and a page.
  struct Snapshot {
    const PoolGeometry* pool = nullptr;
    std::byte* slot = nullptr;
    std::byte* page = nullptr;
    std::uint64_t first_entry = 0;  // of the version, in the slot
    SnapshotEntries entries;
    bool is_save = false;
  };

  [[nodiscard]] Snapshot snapshot_of(const StateCopy& copy) const {
    const bool is_save = copy.kind == StateCopyKind::Save;
    const PoolGeometry& pool = pool_geometry();
    const std::int32_t page = is_save ? copy.target : copy.source;
    // The null page is nobody's.
    QUIRE_CHECK(page > 0 && static_cast<std::uint32_t>(page) < pool.page_count(),
                "a snapshot in a page that the pool does not have");
    QUIRE_CHECK(copy.position >= 0, "a snapshot before the first token");
    const auto position = static_cast<std::uint32_t>(copy.position);
    const CacheGroup& group = part_->geometry.group();
    const SnapshotEntries entries(group, position);
    QUIRE_CHECK(pool.page().entry_count() == entries.count() &&
                    pool.page().layer_count() == part_->geometry.layer_count() &&
                    pool.page().components().size() == part_->geometry.components().size(),
                "a snapshot in a page of another group");
    const std::uint64_t version = position % (std::uint64_t{group.slot_history} + 1);
    return {.pool = &pool,
            .slot = slot_at(is_save ? copy.source : copy.target),
            .page = params_.pools[part_->group_index] + (static_cast<std::uint64_t>(page) * pool.strides().page),
            .first_entry = version * group.slot_entries,
            .entries = entries,
            .is_save = is_save};
  }

  /// What the first tokens are too few for.
  void fill_missing(const Snapshot& snapshot) const {
    if (snapshot.entries.is_complete()) return;
    if (!snapshot.is_save) {
      // As if the tokens had been computed one by one: all else of the version is as it was in the beginning.
      fill_initial({.geometry = &part_->geometry,
                    .base = snapshot.slot,
                    .layer_stride = part_->geometry.layer_bytes(),
                    .first = snapshot.first_entry,
                    .count = part_->geometry.group().slot_entries});
      return;
    }
    for (std::uint32_t entry = 0; entry < snapshot.entries.count(); ++entry) {
      if (snapshot.entries.token_of(entry) != SnapshotEntries::kNone) continue;
      fill_initial({.geometry = &snapshot.pool->page(),
                    .base = snapshot.page,
                    .layer_stride = snapshot.pool->strides().layer,
                    .first = entry,
                    .count = 1});
    }
  }

  void copy_component(const Snapshot& snapshot, std::uint32_t component) const {
    const CacheGroup& group = part_->geometry.group();
    const Pieces in_slot = pieces_of(part_->geometry, component);
    const Pieces in_page = pieces_of(snapshot.pool->page(), component);
    QUIRE_CHECK(in_slot.count == in_page.count && in_slot.token_bytes == in_page.token_bytes,
                "a snapshot in a page of another group");
    RowList rows(copy_rows_, {.row_bytes = in_slot.token_bytes,
                              .bundle_rows = in_slot.count,
                              .target_stride = snapshot.is_save ? in_page.stride : in_slot.stride,
                              .source_stride = snapshot.is_save ? in_slot.stride : in_page.stride});
    for (std::uint64_t layer = 0; layer < part_->geometry.layer_count(); ++layer) {
      std::byte* const slot = snapshot.slot + (layer * part_->geometry.layer_bytes()) + in_slot.offset;
      std::byte* const page = snapshot.page + (layer * snapshot.pool->strides().layer) + in_page.offset;
      for (std::uint32_t entry = 0; entry < snapshot.entries.count(); ++entry) {
        const std::int64_t token = snapshot.entries.token_of(entry);
        if (token == SnapshotEntries::kNone) continue;
        const std::uint64_t slot_entry = snapshot.first_entry + ring_entry(group, static_cast<std::uint32_t>(token));
        std::byte* const slot_row = slot + (slot_entry * in_slot.token_stride);
        std::byte* const page_row = page + (entry * in_page.token_stride);
        rows.add({.target = snapshot.is_save ? page_row : slot_row, .source = snapshot.is_save ? slot_row : page_row});
      }
    }
    rows.flush();
  }

  CopyRows copy_rows_;
  const CopyStatesParams& params_;
  const StatePart* part_ = nullptr;  // of the copy being done
};

}  // namespace

void copy_states_with(CopyRows copy_rows, const CopyStatesParams& params) {
  StateCopier copier(copy_rows, params);
  for (const StateCopy& copy : params.copies) copier.run(copy);
}

// Around the caches where there is much of it, as in copy_pages_on_host().
void copy_states_on_host(const CopyStatesParams& params) {
  constexpr std::uint64_t kStreamedBytesMin = std::uint64_t{512} << 10U;
  const std::uint64_t bytes = params.copies.empty() ? 0 : params.copies.size() * params.slots->slot_bytes();
  copy_states_with(best_copy_rows(bytes >= kStreamedBytesMin ? Stores::Streaming : Stores::Cached), params);
}

}  // namespace quire
