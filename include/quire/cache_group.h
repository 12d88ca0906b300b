// SPDX-License-Identifier: Apache-2.0
//
// What a model's layers store, as data. A CacheGroup is a set of layers whose pages move together. It declares which
// tokens it keeps, and what an entry has in one layer as a list of components (K and V, one latent row, a record of
// opaque bytes): new models and new formats need no code. layout.h and state_slots.h make bytes of it.
//
// Plain structs; whoever makes something of a group checks it first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// What a component is made of. Bytes is opaque: records whose inside only the kernels know.
enum class ElementType : std::uint8_t { Bf16, Fp16, Fp32, Fp8, Int8, Bytes, Int32 };

/// "bf16", "fp16", …
[[nodiscard]] constexpr std::string_view to_string(ElementType element) {
  switch (element) {
    case ElementType::Bf16:
      return "bf16";
    case ElementType::Fp16:
      return "fp16";
    case ElementType::Fp32:
      return "fp32";
    case ElementType::Fp8:
      return "fp8";
    case ElementType::Int8:
      return "int8";
    case ElementType::Bytes:
      return "bytes";
    case ElementType::Int32:
      return "int32";
  }
  return "unknown";
}

/// Size of one element; 0 for a value that is no ElementType.
[[nodiscard]] constexpr std::uint32_t element_bytes(ElementType element) {
  switch (element) {
    case ElementType::Fp32:
    case ElementType::Int32:
      return 4;
    case ElementType::Bf16:
    case ElementType::Fp16:
      return 2;
    case ElementType::Fp8:
    case ElementType::Int8:
    case ElementType::Bytes:
      return 1;
  }
  return 0;
}

/// What tensor-parallel ranks do with a component's heads.
enum class Sharding : std::uint8_t {
  Heads,       ///< each rank stores its share of the heads; with more ranks than heads, one head on several ranks
  Replicated,  ///< each rank stores all of it
};

/// How the entries of a component lie in a layer's part of a page.
///
///     Area          [k k k k][v v v v]      each component on its own, for all entries
///     Interleaved   [k v][k v][k v][k v]    with its interleaved neighbours, entry by entry: a record
enum class Placement : std::uint8_t { Area, Interleaved };

/// One part of what a token stores in one layer: `heads` rows of `dim` elements.
struct Component {
  std::string name = {};  ///< unique in its group: "k", "v", "latent"
  ElementType element = ElementType::Bf16;
  Sharding sharding = Sharding::Heads;
  std::uint32_t heads = 1;  ///< of the whole model, before any split over ranks
  std::uint32_t dim = 0;    ///< elements of one row
  Placement placement = Placement::Area;
  /// Of its first byte in every entry, a power of two up to kAlignmentMax. Entries and layers are padded for it.
  std::uint32_t alignment = 1;
  /// Interleaved: where in the record it begins, in bytes. Nothing: behind the one before it.
  std::optional<std::uint32_t> record_offset = std::nullopt;
  /// What its rows are made of before anything is written, repeated; a row is a multiple of it. Empty: zeros.
  std::vector<std::byte> initial = {};
  friend bool operator==(const Component&, const Component&) = default;
};

/// Component::initial of rows in which every element has this value: little-endian, bf16 rounded to nearest even.
[[nodiscard]] std::vector<std::byte> fp32_pattern(float value);
[[nodiscard]] std::vector<std::byte> bf16_pattern(float value);
[[nodiscard]] std::vector<std::byte> int32_pattern(std::int32_t value);

/// Which tokens a group keeps, and so what it must hold to go on at a position b, the resume rule:
///
///     Full         x x x x x x x x x x x x|     every token                      [0, b)
///     Window       s s . . . . . x x x x x|     the last W and the first `sink`  [b - W + 1, b) and the sink
///     Compressed    [ x ]   [ x ]   [ x ] |     an entry for every r tokens      entries of [0, b), b a multiple of r
///     Snapshot                            X     a state of fixed size            one that was taken at b
enum class GroupKind : std::uint8_t { Full, Window, Compressed, Snapshot };

[[nodiscard]] constexpr std::string_view to_string(GroupKind kind) {
  switch (kind) {
    case GroupKind::Full:
      return "full";
    case GroupKind::Window:
      return "window";
    case GroupKind::Compressed:
      return "compressed";
    case GroupKind::Snapshot:
      return "snapshot";
  }
  return "unknown";
}

/// Where the tokens of a window lie.
enum class WindowForm : std::uint8_t {
  Paged,  ///< in pages that other sequences can find, with holes behind the window
  Ring,   ///< in the sequence's state slot, position modulo its size; reused by snapshots of it, in order of position
};

/// At which positions a group keeps what the resume rule asks for, once a sequence has moved on.
enum class RetentionRule : std::uint8_t {
  Dense,  ///< at all of them: full and compressed groups always, paged windows while there is room
  Every,  ///< at multiples of interval_tokens, where prompts end, and where one parts from what is cached
  Last,   ///< where a sequence ended; of a window also where prompts end and part
  None,   ///< nowhere: each sequence's own, or rebuilt by a replay
};

struct GroupRetention {
  RetentionRule rule = RetentionRule::Dense;
  std::uint32_t interval_tokens = 0;  ///< of RetentionRule::Every
  friend bool operator==(GroupRetention, GroupRetention) = default;
};

/// A group that does not hold what the resume rule asks for is rebuilt by computing the tokens before b again.
struct GroupReplay {
  std::uint32_t tokens = 0;  ///< 0: it cannot be
  bool is_exact = false;     ///< gives the same bytes as having been there all along; states are rebuilt along with it
  friend bool operator==(GroupReplay, GroupReplay) = default;
};

inline constexpr std::uint32_t kLayersMax = 65'536;
inline constexpr std::uint32_t kComponentsMax = 8;
inline constexpr std::uint32_t kAlignmentMax = 4'096;

/// Layers whose pages move together under one retention rule. A layer may belong to several groups. Fields that a kind
/// does not mention stay as they are.
struct CacheGroup {
  std::string name = {};  ///< unique in its layout
  GroupKind kind = GroupKind::Full;
  std::vector<std::uint32_t> layers = {};  ///< the model's layer numbers, ascending
  std::vector<Component> components = {};  ///< 1 to kComponentsMax, in the order they lie in a page
  /// K is stored after RoPE, for the position it was computed at. Where positions are renumbered, which is what a sink
  /// and Cache::set_window do, it must be stored unrotated.
  bool keys_rotated = true;
  /// A layer's part of a page is padded to a multiple of so many bytes, a multiple of every component's alignment.
  std::uint32_t layer_multiple_bytes = 1;
  /// What a token stores depends on so many tokens behind it, as in draft layers: a page is good only if these agree
  /// too. Its row is written once they are known, in the step that computes it or before the next one; a page is cached
  /// when all its rows can have been. With a host tier, rows whose tokens a call has made known are written before the
  /// next call, which may begin to copy them. A fork or a rewind leaves the last so many tokens to be computed again.
  std::uint32_t lookahead_tokens = 0;
  GroupRetention retention = {};
  GroupReplay replay = {};

  // Window: W, and how many tokens at the beginning stay.
  std::uint32_t window_tokens = 0;
  std::uint32_t sink_tokens = 0;
  WindowForm window_form = WindowForm::Paged;

  // Compressed: r, and how many tokens before its own r an entry is made of as well.
  std::uint32_t tokens_per_entry = 1;
  std::uint32_t overlap_tokens = 0;

  // Snapshots and rings: entries of one layer in a state slot. A recurrent state is one entry; a ring has one for each
  // position; a compressor's tail one for each token that is not part of an entry yet.
  std::uint32_t slot_entries = 0;
  /// Snapshot: how many earlier versions of those entries a slot keeps, to rewind without computing. The version after
  /// n tokens is number n modulo slot_history + 1. A step writes those after each of its last slot_history + 1 tokens.
  std::uint32_t slot_history = 0;
  /// Snapshot: entries that one takes along, those of the last tokens. 0: none is needed, the slot starts from its
  /// initial bytes; then the group has no pages.
  std::uint32_t snapshot_entries = 1;
  /// Snapshot: positions at which one is of use are multiples of this.
  std::uint32_t boundary_tokens = 1;

  friend bool operator==(const CacheGroup&, const CacheGroup&) = default;
};

/// Sequences keep something of this group in their state slots.
[[nodiscard]] bool has_slot(const CacheGroup& group);
/// The group has pages: all but snapshots and rings that are never kept.
[[nodiscard]] bool has_pages(const CacheGroup& group);
/// Positions at which a sequence can resume are multiples of this, as far as the group is concerned.
[[nodiscard]] std::uint32_t boundary_multiple(const CacheGroup& group);
/// A sequence can begin with what another one left behind, as far as the group is concerned.
[[nodiscard]] bool is_reusable(const CacheGroup& group);
/// How many tokens before `position` it needs the rows or the state of, besides what full and compressed groups hold of
/// everything before: 0 for a full group, W - 1 for a window, 1 for a state. A compressor whose entries overlap by m
/// needs m at a multiple of m, and the tokens since the last multiple too elsewhere.
[[nodiscard]] std::uint64_t lookback_tokens(const CacheGroup& group, std::uint64_t position);

/// {first, first + 1, … first + count - 1}, for CacheGroup::layers.
[[nodiscard]] std::vector<std::uint32_t> layer_range(std::uint32_t first, std::uint32_t count);

}  // namespace quire
