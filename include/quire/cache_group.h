// SPDX-License-Identifier: Apache-2.0
//
// What a model's layers store, as data. A CacheGroup is a set of layers whose pages move together; it declares what one
// token stores in one layer as a list of components (K and V, one latent row, a record of opaque bytes), so that new
// kinds of entries need no code. layout.h makes bytes of it.
//
// Plain structs; whoever makes something of a group checks it first.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// What a component is made of. Bytes is opaque: records whose inside only the kernels know.
enum class ElementType : std::uint8_t { Bf16, Fp16, Fp32, Fp8, Int8, Bytes };

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
  }
  return "unknown";
}

/// Size of one element; 0 for a value that is no ElementType.
[[nodiscard]] constexpr std::uint32_t element_bytes(ElementType element) {
  switch (element) {
    case ElementType::Fp32:
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

/// One part of what a token stores in one layer: `heads` rows of `dim` elements.
struct Component {
  std::string name;  ///< unique in its group: "k", "v", "latent"
  ElementType element = ElementType::Bf16;
  Sharding sharding = Sharding::Heads;
  std::uint32_t heads = 1;  ///< of the whole model, before any split over ranks
  std::uint32_t dim = 0;    ///< elements of one row
  friend bool operator==(const Component&, const Component&) = default;
};

/// Which tokens a group keeps.
enum class GroupKind : std::uint8_t {
  Full,  ///< every token; to resume at position b it holds [0, b)
};

[[nodiscard]] constexpr std::string_view to_string(GroupKind kind) {
  return kind == GroupKind::Full ? "full" : "unknown";
}

inline constexpr std::uint32_t kLayersMax = 65'536;
inline constexpr std::uint32_t kComponentsMax = 8;

/// Layers whose pages move together under one retention rule. A layer may belong to several groups.
struct CacheGroup {
  std::string name;  ///< unique in its layout
  GroupKind kind = GroupKind::Full;
  std::vector<std::uint32_t> layers;  ///< the model's layer numbers, ascending
  std::vector<Component> components;  ///< 1 to kComponentsMax, in the order they lie in a page
  /// K is stored after RoPE, for the position it was computed at. Windows renumber positions: they need it unrotated.
  bool keys_rotated = true;
  friend bool operator==(const CacheGroup&, const CacheGroup&) = default;
};

/// {first, first + 1, … first + count - 1}, for CacheGroup::layers.
[[nodiscard]] std::vector<std::uint32_t> layer_range(std::uint32_t first, std::uint32_t count);

}  // namespace quire
