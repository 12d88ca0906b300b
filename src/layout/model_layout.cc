// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "layout/text.h"
#include "quire/layout.h"

namespace quire {
namespace {

// What the group stores for each token of a context, however long; checks the group.
Result<std::uint64_t> growth_bytes(const CacheGroup& group) {
  if (has_slot(group)) QUIRE_TRY(PageGeometry::create_slot(group, {.page_tokens = 1}));
  if (!has_pages(group)) return 0;
  // A group that is not in order may have 0 here; create() says so.
  const std::uint32_t entry_tokens = std::max(group.tokens_per_entry, 1U);
  QUIRE_TRY_ASSIGN(const PageGeometry page, PageGeometry::create(group, {.page_tokens = entry_tokens}));
  if (group.kind == GroupKind::Full) return page.entry_bytes();
  if (group.kind == GroupKind::Compressed) {
    return (page.entry_bytes() / entry_tokens) + (page.entry_bytes() % entry_tokens == 0 ? 0 : 1);
  }
  return 0;
}

Result<std::uint32_t> common_multiple(const std::string& where, std::uint32_t multiple, const std::string& group_name,
                                      std::uint32_t tokens) {
  const std::uint64_t common = std::uint64_t{multiple} / std::gcd(multiple, tokens) * tokens;
  if (common <= std::numeric_limits<std::uint32_t>::max()) return static_cast<std::uint32_t>(common);
  return fail(ErrorCode::InvalidArgument,
              where + ": group '" + group_name + "' works in multiples of " + with_separators(tokens) +
                  " tokens, the groups before it in multiples of " + with_separators(multiple) +
                  ": together that is every " + with_separators(common) + " tokens, more than positions can count");
}

// Entries that overlap with tokens before their own need the rows of these: some group of every layer keeps them, or
// they are computed again.
Status check_overlap(const std::string& where, const CacheGroup& group, std::span<const CacheGroup> groups) {
  if (group.overlap_tokens <= group.replay.tokens) return {};
  for (const std::uint32_t layer : group.layers) {
    const auto keeps_rows = [&](const CacheGroup& other) {
      const std::uint32_t kept = other.kind == GroupKind::Window ? other.window_tokens - 1 : other.snapshot_entries;
      return &other != &group && (other.kind == GroupKind::Window || other.kind == GroupKind::Snapshot) &&
             kept >= group.overlap_tokens && std::ranges::binary_search(other.layers, layer);
    };
    if (std::ranges::any_of(groups, keeps_rows)) continue;
    return fail(ErrorCode::InvalidArgument,
                where + ", group '" + group.name + "': its entries overlap by " +
                    count_of(group.overlap_tokens, "token") + ", and in layer " + with_separators(layer) +
                    " no group keeps the rows of these: declare a snapshot group with snapshot_entries " +
                    with_separators(group.overlap_tokens) + ", or a replay");
  }
  return {};
}

}  // namespace

Result<ModelLayout> ModelLayout::create(std::string name, std::vector<CacheGroup> groups) {
  const std::string where = "layout '" + name + "'";
  if (groups.empty()) {
    return fail(ErrorCode::InvalidArgument, where + " has no groups: a model needs one at least");
  }
  ModelLayout layout;
  std::vector<std::uint32_t> layers;
  for (auto group = groups.begin(); group != groups.end(); ++group) {
    if (group->name.empty()) {
      return fail(ErrorCode::InvalidArgument, where + " has a group without a name: name it, as 'full'");
    }
    if (std::ranges::find(groups.begin(), group, group->name, &CacheGroup::name) != group) {
      return fail(ErrorCode::InvalidArgument, where + " has two groups named '" + group->name + "': rename one");
    }
    const auto token_bytes = growth_bytes(*group);
    if (!token_bytes) return fail(token_bytes.error().code, where + ", " + token_bytes.error().message);
    const auto sum = checked_add(layout.token_bytes_, *token_bytes);
    if (!sum) {
      return fail(ErrorCode::InvalidArgument, where + ": a token of all groups does not fit in 64 bits (" +
                                                  with_separators(layout.token_bytes_) + " + " +
                                                  with_separators(*token_bytes) + " bytes): make it smaller");
    }
    layout.token_bytes_ = *sum;
    layers.insert(layers.end(), group->layers.begin(), group->layers.end());
  }
  for (const CacheGroup& group : groups) {
    QUIRE_TRY_ASSIGN(layout.page_multiple_tokens_,
                     common_multiple(where, layout.page_multiple_tokens_, group.name, group.tokens_per_entry));
    QUIRE_TRY_ASSIGN(layout.hit_multiple_tokens_,
                     common_multiple(where, layout.hit_multiple_tokens_, group.name, boundary_multiple(group)));
    QUIRE_TRY(check_overlap(where, group, groups));
  }
  if (!std::ranges::all_of(groups, is_reusable)) layout.hit_multiple_tokens_ = 0;
  std::ranges::sort(layers);
  const auto repeated = std::ranges::unique(layers);
  layout.layer_count_ = static_cast<std::uint32_t>(layers.size() - repeated.size());
  layout.name_ = std::move(name);
  layout.groups_ = std::move(groups);
  return layout;
}

Result<ModelLayout> ModelLayout::simple(const SimpleShape& shape) {
  const std::string where = "layout '" + shape.name + "': ";
  if (shape.layers == 0 || shape.layers > kLayersMax) {
    return fail(ErrorCode::InvalidArgument,
                where + "layers is " + with_separators(shape.layers) + ": use 1 to " + with_separators(kLayersMax));
  }
  if (shape.kv_heads == 0) {
    return fail(ErrorCode::InvalidArgument, where + "kv_heads is 0: use the model's number of K/V heads");
  }
  if (shape.head_dim == 0) {
    return fail(ErrorCode::InvalidArgument, where + "head_dim is 0: use the size of one head");
  }
  const auto component = [&shape](const char* name) {
    return Component{.name = name, .element = shape.element, .heads = shape.kv_heads, .dim = shape.head_dim};
  };
  return create(shape.name, {{.name = "full",
                              .layers = layer_range(0, shape.layers),
                              .components = {component("k"), component("v")},
                              .keys_rotated = shape.keys_rotated}});
}

Result<ModelLayout> ModelLayout::opaque(std::uint32_t token_bytes) {
  if (token_bytes == 0) {
    return fail(ErrorCode::InvalidArgument, "opaque layout: token_bytes is 0: use 1 or more");
  }
  return create(
      "opaque",
      {{.name = "full",
        .layers = layer_range(0, 1),
        .components =
            {{.name = "record", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = token_bytes}},
        .keys_rotated = false}});
}

Result<ModelLayout> ModelLayout::with_drafts(std::uint32_t draft_count) const {
  std::vector<CacheGroup> groups = groups_;
  for (CacheGroup& group : groups) {
    if (!has_slot(group)) continue;
    const bool is_ring = group.kind == GroupKind::Window;
    if (!is_ring && (group.slot_entries == 1 || group.slot_history > 0)) {
      group.slot_history = std::max(group.slot_history, draft_count);
      continue;
    }
    // What going on behind the first draft needs, wherever that is, must outlast the others.
    const std::uint64_t needed = is_ring ? std::uint64_t{group.sink_tokens} + group.window_tokens - 1
                                         : std::uint64_t{group.snapshot_entries} + group.boundary_tokens - 1;
    if (needed + draft_count > std::numeric_limits<std::uint32_t>::max()) {
      return fail(ErrorCode::InvalidArgument, "layout '" + name_ + "', group '" + group.name +
                                                  "': slots with room for " + count_of(draft_count, "draft") +
                                                  " would have " + with_separators(needed + draft_count) + " entries");
    }
    group.slot_entries = std::max(group.slot_entries, static_cast<std::uint32_t>(needed + draft_count));
  }
  return create(name_, std::move(groups));
}

}  // namespace quire
