// SPDX-License-Identifier: Apache-2.0
#include "layout/group_check.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "layout/text.h"

namespace quire {
namespace {

Status check_initial(const std::string& which, const Component& component) {
  const std::uint64_t row_bytes = std::uint64_t{component.dim} * element_bytes(component.element);
  const std::uint64_t bytes = component.initial.size();
  if (bytes > row_bytes) {
    return fail(ErrorCode::InvalidArgument, which + " has an initial pattern of " + count_of(bytes, "byte") +
                                                ", longer than its row of " + with_separators(row_bytes));
  }
  if (bytes > 0 && row_bytes % bytes != 0) {
    return fail(ErrorCode::InvalidArgument, which + " has an initial pattern of " + count_of(bytes, "byte") +
                                                ", which does not divide its row of " + with_separators(row_bytes));
  }
  return {};
}

Status check_component(const std::string& where, const Component& component) {
  if (component.name.empty()) {
    return fail(ErrorCode::InvalidArgument, where + " has a component without a name: name it, as 'k' or 'v'");
  }
  const std::string which = where + ": component " + quoted(component.name);
  if (element_bytes(component.element) == 0) {
    return fail(ErrorCode::InvalidArgument, which + " has an unknown element type: use an ElementType");
  }
  if (component.heads == 0) {
    return fail(ErrorCode::InvalidArgument, which + " has 0 heads: a row without heads counts as 1");
  }
  if (component.dim == 0) {
    return fail(ErrorCode::InvalidArgument, which + " has dim 0: give the number of elements of one row");
  }
  if (component.sharding > Sharding::Replicated) {
    return fail(ErrorCode::InvalidArgument, which + " has an unknown sharding: use a Sharding");
  }
  if (component.placement > Placement::Interleaved) {
    return fail(ErrorCode::InvalidArgument, which + " has an unknown placement: use a Placement");
  }
  if (!std::has_single_bit(component.alignment) || component.alignment > kAlignmentMax) {
    return fail(ErrorCode::InvalidArgument, which + " has alignment " + with_separators(component.alignment) +
                                                ": use a power of two, 1 to " + with_separators(kAlignmentMax));
  }
  if (component.record_offset && component.placement == Placement::Area) {
    return fail(ErrorCode::InvalidArgument, which + " has record_offset " + with_separators(*component.record_offset) +
                                                ", but an area of its own: make it Interleaved");
  }
  return check_initial(which, component);
}

Status check_padding(const std::string& where, const CacheGroup& group) {
  const std::uint32_t multiple = group.layer_multiple_bytes;
  if (multiple == 0) {
    return fail(ErrorCode::InvalidArgument, where + ": layer_multiple_bytes is 0: use 1 for no padding");
  }
  for (const Component& component : group.components) {
    if (multiple == 1 || multiple % component.alignment == 0) continue;
    return fail(ErrorCode::InvalidArgument,
                where + ": layer_multiple_bytes is " + with_separators(multiple) + ", no multiple of the alignment " +
                    with_separators(component.alignment) + " of component " + quoted(component.name));
  }
  return {};
}

tl::unexpected<Error> bad(const std::string& where, const std::string& what) {
  return fail(ErrorCode::InvalidArgument, where + what);
}

// A number that says something about another kind of group: most likely the kind is what is wrong.
struct ForeignField {
  std::string_view name;
  std::uint32_t value;
  std::uint32_t unset;
  bool is_own;  // the kind uses it
};

Status check_foreign_fields(const std::string& where, const CacheGroup& group) {
  const bool is_window = group.kind == GroupKind::Window;
  const bool is_compressed = group.kind == GroupKind::Compressed;
  const bool is_snapshot = group.kind == GroupKind::Snapshot;
  const ForeignField fields[] = {
      {"window_tokens", group.window_tokens, 0, is_window},
      {"sink_tokens", group.sink_tokens, 0, is_window},
      {"tokens_per_entry", group.tokens_per_entry, 1, is_compressed},
      {"overlap_tokens", group.overlap_tokens, 0, is_compressed},
      {"slot_entries", group.slot_entries, 0, has_slot(group)},
      {"slot_history", group.slot_history, 0, is_snapshot},
      {"snapshot_entries", group.snapshot_entries, 1, is_snapshot},
      {"boundary_tokens", group.boundary_tokens, 1, is_snapshot},
  };
  for (const ForeignField& field : fields) {
    if (field.is_own || field.value == field.unset) continue;
    return bad(where, ": " + std::string(field.name) + " is " + with_separators(field.value) + ", which a " +
                          (is_window ? "paged window" : std::string(to_string(group.kind))) +
                          " group does not have: leave it at " + with_separators(field.unset) + " or change the kind");
  }
  if (!is_window && group.window_form != WindowForm::Paged) {
    return bad(where, ": window_form is for window groups, and this one is " + std::string(to_string(group.kind)));
  }
  return {};
}

Status check_window(const std::string& where, const CacheGroup& group) {
  if (group.window_form > WindowForm::Ring) return bad(where, " has an unknown window_form: use a WindowForm");
  if (group.window_tokens == 0) {
    return bad(where, ": window_tokens is 0: give the number of tokens that a token sees, itself included");
  }
  if (group.sink_tokens >= group.window_tokens) {
    return bad(where, ": sink_tokens is " + with_separators(group.sink_tokens) + ", window_tokens " +
                          with_separators(group.window_tokens) + ": the sink must be smaller than the window");
  }
  if (group.sink_tokens > 0 && group.keys_rotated) {
    return bad(where, ": a sink of " + count_of(group.sink_tokens, "token") +
                          " renumbers positions, which keys that are stored rotated do not allow: declare "
                          "keys_rotated = false and rotate in the attention kernel");
  }
  const std::uint64_t ring_min = std::uint64_t{group.window_tokens} + group.sink_tokens;
  if (group.window_form == WindowForm::Ring && group.slot_entries < ring_min) {
    return bad(where, ": slot_entries is " + with_separators(group.slot_entries) + ", less than the window of " +
                          with_separators(group.window_tokens) + " and the sink of " +
                          with_separators(group.sink_tokens) + ": use " + with_separators(ring_min) +
                          ", and one more for each token that may be taken back");
  }
  return {};
}

Status check_compressed(const std::string& where, const CacheGroup& group) {
  if (group.tokens_per_entry < 2) {
    return bad(where, ": tokens_per_entry is " + with_separators(group.tokens_per_entry) +
                          ": a compressed group has one entry for 2 tokens or more");
  }
  if (group.overlap_tokens % group.tokens_per_entry != 0) {
    return bad(where, ": overlap_tokens is " + with_separators(group.overlap_tokens) + ", no multiple of the " +
                          with_separators(group.tokens_per_entry) + " tokens of an entry");
  }
  return {};
}

Status check_snapshot(const std::string& where, const CacheGroup& group) {
  if (group.slot_entries == 0) {
    return bad(where, ": slot_entries is 0: give the entries of a sequence's state, 1 for a recurrent state");
  }
  if (group.snapshot_entries > group.slot_entries) {
    return bad(where, ": snapshot_entries is " + with_separators(group.snapshot_entries) + ", but a slot has " +
                          with_separators(group.slot_entries) + " entries");
  }
  if (group.boundary_tokens == 0) return bad(where, ": boundary_tokens is 0: use 1 for any position");
  return {};
}

Status check_kind(const std::string& where, const CacheGroup& group) {
  QUIRE_TRY(check_foreign_fields(where, group));
  switch (group.kind) {
    case GroupKind::Full:
      return {};
    case GroupKind::Window:
      return check_window(where, group);
    case GroupKind::Compressed:
      return check_compressed(where, group);
    case GroupKind::Snapshot:
      return check_snapshot(where, group);
  }
  return bad(where, " has an unknown kind: use a GroupKind");
}

Status check_retention(const std::string& where, const CacheGroup& group) {
  const RetentionRule rule = group.retention.rule;
  const std::uint32_t interval = group.retention.interval_tokens;
  if (rule > RetentionRule::None) return bad(where, " has an unknown retention rule: use a RetentionRule");
  if (rule == RetentionRule::Every && (interval == 0 || interval % boundary_multiple(group) != 0)) {
    return bad(where, ": retention.interval_tokens is " + with_separators(interval) + ": use a multiple of " +
                          with_separators(boundary_multiple(group)));
  }
  if (rule != RetentionRule::Every && interval != 0) {
    return bad(where, ": retention.interval_tokens is " + with_separators(interval) +
                          ", but the rule is not Every: leave it at 0");
  }
  const bool keeps_all = group.kind == GroupKind::Full || group.kind == GroupKind::Compressed;
  if (keeps_all && rule != RetentionRule::Dense) {
    return bad(where, " is " + std::string(to_string(group.kind)) +
                          " and needs everything before a position to resume there: its retention is Dense");
  }
  if (has_slot(group) && rule == RetentionRule::Dense) {
    return bad(where,
               ": its retention is Dense, but a snapshot at every token would be taken: use Every with an "
               "interval, Last, or None");
  }
  if (group.kind == GroupKind::Snapshot && group.snapshot_entries == 0 && rule != RetentionRule::None) {
    return bad(where, ": snapshot_entries is 0, so there is nothing to keep: its retention is None");
  }
  return {};
}

Status check_replay(const std::string& where, const CacheGroup& group) {
  const std::uint32_t tokens = group.replay.tokens;
  if (tokens == 0) {
    if (group.replay.is_exact) return bad(where, ": replay.tokens is 0, so there is nothing to be exact");
    return {};
  }
  // At a multiple of its boundaries, far from the beginning.
  const std::uint64_t needed = lookback_tokens(group, std::uint64_t{boundary_multiple(group)} << 32U);
  if (needed == 0) {
    return bad(where, ": replay.tokens is " + with_separators(tokens) +
                          ", but the group needs nothing that a replay of a few tokens could give");
  }
  if (tokens < needed) {
    return bad(where, ": replay.tokens is " + with_separators(tokens) + ", fewer than the " + with_separators(needed) +
                          " that the group needs to resume");
  }
  return {};
}

}  // namespace

Status check_group(const std::string& where, const CacheGroup& group) {
  if (group.layers.empty()) {
    return fail(ErrorCode::InvalidArgument, where + " has 0 layers: list the layers that it stores");
  }
  if (group.layers.size() > kLayersMax) {
    return fail(ErrorCode::InvalidArgument, where + " has " + with_separators(group.layers.size()) +
                                                " layers: at most " + with_separators(kLayersMax) + " work");
  }
  if (std::ranges::adjacent_find(group.layers, std::greater_equal{}) != group.layers.end()) {
    return fail(ErrorCode::InvalidArgument, where + " lists its layers out of order or twice: give them ascending");
  }
  if (group.components.empty() || group.components.size() > kComponentsMax) {
    return fail(ErrorCode::InvalidArgument, where + " has " + with_separators(group.components.size()) +
                                                " components: give 1 to " + with_separators(kComponentsMax));
  }
  for (auto component = group.components.begin(); component != group.components.end(); ++component) {
    QUIRE_TRY(check_component(where, *component));
    if (std::ranges::find(group.components.begin(), component, component->name, &Component::name) != component) {
      return fail(ErrorCode::InvalidArgument,
                  where + " has two components named " + quoted(component->name) + ": rename one");
    }
  }
  QUIRE_TRY(check_padding(where, group));
  QUIRE_TRY(check_kind(where, group));
  QUIRE_TRY(check_retention(where, group));
  return check_replay(where, group);
}

}  // namespace quire
