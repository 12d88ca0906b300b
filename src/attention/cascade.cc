// SPDX-License-Identifier: Apache-2.0
#include "attention/cascade.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

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
  // Each node but the root parts two entries that stand next to each other.
  const std::uint32_t node_count_max = entry_count_max + 1;
  QUIRE_TRY_ASSIGN(cascade.rows_, RowOrder::create(entry_count_max));
  QUIRE_TRY_ASSIGN(cascade.order_, LazyArray<std::uint32_t>::create(entry_count_max));
  QUIRE_TRY_ASSIGN(cascade.slices_, LazyArray<CascadeSlice>::create(*slice_count_max));
  QUIRE_TRY_ASSIGN(cascade.slice_counts_, LazyArray<std::uint32_t>::create(shared_levels));
  QUIRE_TRY_ASSIGN(cascade.entries_, LazyArray<Entry>::create(entry_count_max));
  QUIRE_TRY_ASSIGN(cascade.nodes_, LazyArray<Node>::create(node_count_max));
  QUIRE_TRY_ASSIGN(cascade.open_nodes_, LazyArray<std::uint32_t>::create(node_count_max));
  QUIRE_TRY_ASSIGN(cascade.closed_nodes_, LazyArray<std::uint32_t>::create(node_count_max));
  return cascade;
}

void Cascade::update(std::span<const CascadeEntry> entries) {
  QUIRE_CHECK(entries.size() <= entry_count_max_, "more entries than the cascade was made for");
  if (still_holds(entries)) return;
  entry_count_ = static_cast<std::uint32_t>(entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) entries_[i].sequence = entries[i].sequence;
  rows_.update(entries);
  find_nodes();
  cut_to_levels();
  place_entries();
  write_slices();
  has_result_ = true;
  ++found_count_;
}

bool Cascade::still_holds(std::span<const CascadeEntry> entries) const {
  if (!has_result_ || entries.size() != entry_count_) return false;
  // A rewind or a new window may leave an entry less to share, though its pages are the same.
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& last = entries_[i];
    if (entries[i].sequence != last.sequence || entries[i].shareable_pages < last.shared_pages) return false;
  }
  return true;
}

/// Reads the numbers of the rows as brackets: a node is open as long as they are no less than its own.
void Cascade::find_nodes() {
  constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  const std::span<const RowOrder::Place> rows = rows_.places();
  node_count_ = 0;
  closed_count_ = 0;
  std::size_t open_count = 0;
  std::uint32_t top = add_node({.parent = kRoot, .page_end = 0, .place_begin = 0});
  std::uint32_t top_end = 0;
  std::uint32_t place = 0;
  std::uint32_t last_entry = 0;
  std::uint32_t common = kNone;
  for (std::size_t i = 0; i <= rows.size(); ++i) {
    std::uint32_t entry = 0;
    if (i < rows.size()) {
      common = std::min(common, rows[i].common_pages);
      if (!rows_.is_present(rows[i].sequence_index)) continue;
      entry = rows_.entry_of(rows[i].sequence_index);
    } else {
      common = 0;
    }
    // `last_entry` stands before `place` and has so many pages in common with what stands there.
    if (place > 0) {
      if (common > top_end) {
        open_nodes_[open_count++] = top;
        top = add_node({.parent = top, .page_end = common, .place_begin = place - 1});
        top_end = common;
      }
      entries_[last_entry].node = top;
      while (common < top_end) {
        Node& closed = nodes_[top];
        closed.entry_count = place - closed.place_begin;
        closed_nodes_[closed_count_++] = top;
        if (nodes_[closed.parent].page_end < common) {
          // What was closed is the first part of a node that goes on.
          top = add_node({.parent = closed.parent, .page_end = common, .place_begin = closed.place_begin});
          closed.parent = top;
        } else {
          top = open_nodes_[--open_count];
        }
        top_end = nodes_[top].page_end;
      }
    }
    if (i == rows.size()) break;
    last_entry = entry;
    common = kNone;
    ++place;
  }
  QUIRE_CHECK(place == entry_count_, "a sequence is in a batch twice");
}

std::uint32_t Cascade::add_node(const Node& node) {
  nodes_[node_count_] = node;
  return node_count_++;
}

/// What lies deeper than the levels belongs to a node that does not.
void Cascade::cut_to_levels() {
  nodes_[kRoot].slice_node = kRoot;
  nodes_[kRoot].has_place = true;
  for (std::uint32_t i = closed_count_; i-- > 0;) {
    const std::uint32_t index = closed_nodes_[i];
    Node& node = nodes_[index];
    const Node& parent = nodes_[node.parent];
    node.level = node.parent == kRoot ? 0 : parent.level + 1;
    node.slice_node = node.level < shared_levels_ ? index : parent.slice_node;
  }
}

/// Each node has its place where the first of its entries has it.
void Cascade::place_entries() {
  Node* const nodes = nodes_.data();
  Entry* const entries = entries_.data();
  std::uint32_t* const order = order_.data();
  for (std::uint32_t i = 0; i < entry_count_; ++i) {
    const std::uint32_t index = nodes[entries[i].node].slice_node;
    Node& node = nodes[index];
    if (!node.has_place) place_node(index);
    order[node.next_entry++] = i;
    entries[i].shared_pages = node.page_end;
  }
}

void Cascade::place_node(std::uint32_t index) {
  while (!nodes_[index].has_place) {
    std::uint32_t outermost = index;
    while (!nodes_[nodes_[outermost].parent].has_place) outermost = nodes_[outermost].parent;
    Node& node = nodes_[outermost];
    Node& parent = nodes_[node.parent];
    node.has_place = true;
    node.entry_begin = node.next_entry = parent.next_entry;
    parent.next_entry += node.entry_count;
    (parent.first_child == kRoot ? parent.first_child : nodes_[parent.last_child].next_sibling) = outermost;
    parent.last_child = outermost;
  }
}

/// Of each level the nodes, and what lies between them. Entries next to each other that share nothing are one slice.
void Cascade::write_slices() {
  std::fill_n(slice_counts_.data(), shared_levels_, 0U);
  // The nodes of a level, in order; those of the next one are written over them once they are read.
  std::uint32_t* const outer_nodes = open_nodes_.data();
  std::uint32_t* const inner_nodes = closed_nodes_.data();
  std::uint32_t outer_count = 1;
  outer_nodes[0] = kRoot;
  for (std::uint32_t level = 0; level < shared_levels_; ++level) {
    std::uint32_t inner_count = 0;
    std::uint32_t entry_end = 0;
    for (std::uint32_t i = 0; i < outer_count; ++i) {
      const Node& outer = nodes_[outer_nodes[i]];
      for (std::uint32_t inner = outer.first_child; inner != kRoot; inner = nodes_[inner].next_sibling) {
        const Node& node = nodes_[inner];
        if (node.entry_begin > entry_end) push(level, {.entry_begin = entry_end, .entry_end = node.entry_begin});
        entry_end = node.entry_begin + node.entry_count;
        push(level, {.entry_begin = node.entry_begin,
                     .entry_end = entry_end,
                     .page_begin = outer.page_end,
                     .page_end = node.page_end});
        inner_nodes[inner_count++] = inner;
      }
    }
    if (entry_end < entry_count_) push(level, {.entry_begin = entry_end, .entry_end = entry_count_});
    std::copy_n(inner_nodes, inner_count, outer_nodes);
    outer_count = inner_count;
  }
}

void Cascade::push(std::uint32_t level, const CascadeSlice& slice) {
  slices_[(std::size_t{level} * entry_count_max_) + slice_counts_[level]++] = slice;
}

}  // namespace quire
