// SPDX-License-Identifier: Apache-2.0
//
// What a model's layers store, as data. A CacheGroup is a set of layers whose pages move together; it declares what one
// token stores in one layer as a list of components (K and V, one latent row, a record of opaque bytes), so that new
// kinds of entries need no code. layout.h makes bytes of it.
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
  std::string name;  ///< unique in its group: "k", "v", "latent"
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

/// Which tokens a group keeps.
enum class GroupKind : std::uint8_t {
  Full,  ///< every token; to resume at position b it holds [0, b)
};

[[nodiscard]] constexpr std::string_view to_string(GroupKind kind) {
  return kind == GroupKind::Full ? "full" : "unknown";
}

inline constexpr std::uint32_t kLayersMax = 65'536;
inline constexpr std::uint32_t kComponentsMax = 8;
inline constexpr std::uint32_t kAlignmentMax = 4'096;

/// Layers whose pages move together under one retention rule. A layer may belong to several groups.
struct CacheGroup {
  std::string name;  ///< unique in its layout
  GroupKind kind = GroupKind::Full;
  std::vector<std::uint32_t> layers;  ///< the model's layer numbers, ascending
  std::vector<Component> components;  ///< 1 to kComponentsMax, in the order they lie in a page
  /// K is stored after RoPE, for the position it was computed at. Windows renumber positions: they need it unrotated.
  bool keys_rotated = true;
  /// A layer's part of a page is padded to a multiple of so many bytes, a multiple of every component's alignment.
  std::uint32_t layer_multiple_bytes = 1;
  friend bool operator==(const CacheGroup&, const CacheGroup&) = default;
};

/// {first, first + 1, … first + count - 1}, for CacheGroup::layers.
[[nodiscard]] std::vector<std::uint32_t> layer_range(std::uint32_t first, std::uint32_t count);

}  // namespace quire
