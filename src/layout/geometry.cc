// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "layout/component_places.h"
#include "layout/group_check.h"
#include "layout/text.h"
#include "quire/layout.h"

namespace quire {
namespace {

// The rank counts next to one that does not work, which do: divisors of the head count, then its multiples.
struct Neighbours {
  std::uint64_t below;
  std::uint64_t above;
};

Neighbours workable_rank_counts(std::uint64_t heads, std::uint64_t rank_count) {
  if (rank_count > heads) {
    const std::uint64_t below = rank_count / heads * heads;
    return {.below = below, .above = below + heads};
  }
  Neighbours found{.below = 1, .above = heads};
  for (std::uint64_t divisor = 1; divisor * divisor <= heads; ++divisor) {
    if (heads % divisor != 0) continue;
    for (const std::uint64_t candidate : {divisor, heads / divisor}) {
      if (candidate < rank_count) found.below = std::max(found.below, candidate);
      if (candidate > rank_count) found.above = std::min(found.above, candidate);
    }
  }
  return found;
}

bool can_split(const Component& component, std::uint32_t rank_count) {
  return component.sharding == Sharding::Replicated || component.heads % rank_count == 0 ||
         rank_count % component.heads == 0;
}

Status check_split(const std::string& where, const Component& component, std::uint32_t rank_count) {
  if (can_split(component, rank_count)) return {};
  const Neighbours nearest = workable_rank_counts(component.heads, rank_count);
  return fail(ErrorCode::InvalidArgument,
              where + ": the " + with_separators(component.heads) + " heads of component " + quoted(component.name) +
                  " cannot be split evenly over rank_count = " + with_separators(rank_count) +
                  ": the nearest that work are " + with_separators(nearest.below) + " and " +
                  with_separators(nearest.above) + " (a divisor or a multiple of the head count)");
}

// Needs can_split().
std::uint32_t heads_per_rank(const Component& component, std::uint32_t rank_count) {
  if (component.sharding == Sharding::Replicated) return component.heads;
  return std::max(component.heads / rank_count, std::uint32_t{1});
}

Status check_options(const std::string& where, const PageOptions& options) {
  if (options.page_tokens == 0) {
    return fail(ErrorCode::InvalidArgument, where + ": page_tokens is 0: use 1 or more, 16 is usual");
  }
  if (options.rank_count == 0) {
    return fail(ErrorCode::InvalidArgument, where + ": rank_count is 0: use 1 when there is a single rank");
  }
  return {};
}

}  // namespace

// How many entries a layer of a page or slot has, and what to call them.
struct PageGeometry::Entries {
  std::uint64_t count;
  std::string_view unit;
  std::string_view what;
};

Result<PageGeometry> PageGeometry::create(CacheGroup group, const PageOptions& options) {
  const std::string where = "group " + quoted(group.name);
  QUIRE_TRY(check_group(where, group));
  QUIRE_TRY(check_options(where, options));
  Entries entries{.count = options.page_tokens, .unit = "tokens", .what = "page"};
  if (group.kind == GroupKind::Compressed) {
    if (options.page_tokens % group.tokens_per_entry != 0) {
      return fail(ErrorCode::InvalidArgument,
                  where + ": a page of " + count_of(options.page_tokens, "token") +
                      " holds no whole number of entries of " + with_separators(group.tokens_per_entry) +
                      " tokens: use a multiple of " + with_separators(group.tokens_per_entry));
    }
    entries = {.count = options.page_tokens / group.tokens_per_entry, .unit = "entries", .what = "page"};
  } else if (has_slot(group)) {
    if (!has_pages(group)) {
      return fail(ErrorCode::InvalidArgument, where + " has no pages: it lives in state slots and is never kept");
    }
    const std::uint64_t count = group.kind == GroupKind::Snapshot
                                    ? std::uint64_t{group.snapshot_entries}
                                    : std::uint64_t{group.sink_tokens} + group.window_tokens;
    entries = {.count = count, .unit = "entries", .what = "page"};
  }
  return create(std::move(group), options, entries);
}

Result<PageGeometry> PageGeometry::create_slot(CacheGroup group, const PageOptions& options) {
  const std::string where = "group " + quoted(group.name);
  QUIRE_TRY(check_group(where, group));
  QUIRE_TRY(check_options(where, options));
  if (!has_slot(group)) {
    return fail(ErrorCode::InvalidArgument, where + " keeps nothing in state slots: only snapshot groups and rings do");
  }
  const std::uint64_t count = group.slot_entries * (std::uint64_t{group.slot_history} + 1);
  return create(std::move(group), options, {.count = count, .unit = "entries", .what = "state slot"});
}

Result<PageGeometry> PageGeometry::create(CacheGroup group, const PageOptions& options, const Entries& entries) {
  const std::string where = "group " + quoted(group.name);
  if (entries.count > std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::InvalidArgument, where + ": a " + std::string(entries.what) + " would have " +
                                                with_separators(entries.count) + " entries: use 2^32 - 1 at most");
  }
  PageGeometry page;
  std::vector<std::uint32_t> heads;
  for (const Component& component : group.components) {
    QUIRE_TRY(check_split(where, component, options.rank_count));
    heads.push_back(heads_per_rank(component, options.rank_count));
  }
  QUIRE_TRY_ASSIGN(LayerShape layer, place_components({.where = where,
                                                       .what = entries.what,
                                                       .unit = entries.unit,
                                                       .group = &group,
                                                       .heads = heads,
                                                       .entry_count = entries.count,
                                                       .head_order = options.head_order}));
  QUIRE_TRY(product(where + ": a " + std::string(entries.what),
                    {{group.layers.size(), "layers"}, {layer.layer_bytes, "bytes"}}));

  page.entry_count_ = static_cast<std::uint32_t>(entries.count);
  for (std::size_t index = 0; index < heads.size(); ++index) {
    page.entry_bytes_ += heads[index] * layer.components[index].head_bytes * group.layers.size();
  }
  page.alignment_ = layer.alignment;
  page.layer_bytes_ = layer.layer_bytes;
  page.components_ = std::move(layer.components);
  page.group_ = std::move(group);
  page.options_ = options;
  return page;
}

HeadRange PageGeometry::heads_on_rank(std::uint32_t component_index, std::uint32_t rank_index) const {
  QUIRE_CHECK(component_index < group_.components.size(), "the group has no such component");
  QUIRE_CHECK(rank_index < options_.rank_count, "there is no such rank");
  const Component& component = group_.components[component_index];
  const std::uint32_t count = heads_per_rank(component, options_.rank_count);
  if (component.sharding == Sharding::Replicated) return {.first = 0, .count = count};
  const std::uint32_t ranks_per_head = std::max(options_.rank_count / component.heads, std::uint32_t{1});
  return {.first = rank_index / ranks_per_head * count, .count = count};
}

std::vector<std::byte> PageGeometry::initial_bytes() const {
  std::vector<std::byte> bytes(page_bytes());
  for (std::uint32_t layer = 0; layer < layer_count(); ++layer) {
    for (std::uint32_t index = 0; index < components_.size(); ++index) {
      const std::vector<std::byte>& pattern = group_.components[index].initial;
      if (pattern.empty()) continue;
      const ComponentStrides& strides = components_[index];
      for (std::uint64_t token = 0; token < entry_count_; ++token) {
        for (std::uint64_t head = 0; head < heads_on_rank(index, 0).count; ++head) {
          std::byte* const row =
              bytes.data() + (layer * layer_bytes_) + strides.offset + (token * strides.token) + (head * strides.head);
          for (std::uint64_t at = 0; at < strides.head_bytes; at += pattern.size()) {
            std::ranges::copy(pattern, row + at);
          }
        }
      }
    }
  }
  return bytes;
}

Result<PoolGeometry> PoolGeometry::create(PageGeometry page, const PoolOptions& options) {
  const std::string where = "pool of group " + quoted(page.group().name);
  if (options.page_count == 0) {
    return fail(ErrorCode::InvalidArgument, where + ": page_count is 0: give room for one page at least, which is " +
                                                with_separators(page.page_bytes()) + " bytes");
  }
  // The highest value of a PageId means "none".
  if (options.page_count > PageId::kNoneValue) {
    return fail(ErrorCode::InvalidArgument, where + ": page_count is " + with_separators(options.page_count) +
                                                ", but a pool has at most " + with_separators(PageId::kNoneValue) +
                                                " pages: use larger pages or a smaller pool");
  }
  if (options.page_stride_bytes > 0 && options.byte_layout != ByteLayout::PageFirst) {
    return fail(ErrorCode::InvalidArgument, where + ": page_stride_bytes is for ByteLayout::PageFirst: set it to 0");
  }
  if (options.page_stride_bytes > 0 && options.page_stride_bytes < page.page_bytes()) {
    return fail(ErrorCode::InvalidArgument,
                where + ": page_stride_bytes is " + with_separators(options.page_stride_bytes) +
                    ", less than a page has, which is " + with_separators(page.page_bytes()) + " bytes");
  }
  const std::uint64_t page_stride = std::max(options.page_stride_bytes, page.page_bytes());
  QUIRE_TRY(product(where, {{options.page_count, "pages"}, {page_stride, "bytes"}}));

  PoolGeometry pool(std::move(page));
  pool.byte_layout_ = options.byte_layout;
  pool.page_count_ = static_cast<std::uint32_t>(options.page_count);
  const std::uint64_t layer_bytes = pool.page_.layer_bytes();
  const bool page_first = options.byte_layout == ByteLayout::PageFirst;
  pool.strides_.page = page_first ? page_stride : layer_bytes;
  pool.strides_.layer = page_first ? layer_bytes : options.page_count * layer_bytes;
  pool.strides_.component_count = static_cast<std::uint32_t>(pool.page_.components().size());
  std::ranges::copy(pool.page_.components(), pool.strides_.components.begin());
  return pool;
}

std::uint64_t PoolGeometry::offset_of(const RowLocation& row) const {
  QUIRE_CHECK(row.page.value < page_count_, "the pool has no such page");
  QUIRE_CHECK(row.layer_index < page_.layer_count(), "the group has no such layer");
  QUIRE_CHECK(row.component_index < strides_.component_count, "the group has no such component");
  QUIRE_CHECK(row.token_index < page_.entry_count(), "a page has no such token");
  QUIRE_CHECK(
      row.head_index < heads_per_rank(page_.group().components[row.component_index], page_.options().rank_count),
      "the rank has no such head");
  return strides_.offset_of(row);
}

}  // namespace quire
