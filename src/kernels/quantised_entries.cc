// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "layout/format_names.h"
#include "layout/text.h"
#include "quire/quantised_kernels.h"

namespace quire {
namespace {

constexpr std::uint32_t kScalePaddingMax = 7;  // kernels read UE8M0 scales eight at a time

std::string where_of(const PoolGeometry& geometry) {
  return "quantised entries of group " + quoted(geometry.page().group().name);
}

// What a component of an entry must be.
struct Role {
  std::string_view name;
  std::uint32_t index;
  std::initializer_list<ElementType> elements;
};

Status check_role(const PageGeometry& page, const std::string& where, const Role& role) {
  if (role.index >= page.components().size()) {
    return fail(ErrorCode::InvalidArgument, where + ": the component of the " + std::string(role.name) + " is number " +
                                                with_separators(role.index) + ", but the group has " +
                                                count_of(page.components().size(), "component") + ", counted from 0");
  }
  const Component& component = page.group().components[role.index];
  if (std::ranges::find(role.elements, component.element) == role.elements.end()) {
    std::string elements;
    for (const ElementType element : role.elements) {
      elements += (elements.empty() ? "" : " or ") + std::string(to_string(element));
    }
    return fail(ErrorCode::InvalidArgument, where + ": component " + quoted(component.name) + " is " +
                                                std::string(to_string(component.element)) + ", but " +
                                                std::string(role.name) + " are " + elements);
  }
  return {};
}

// Heads that a component must have, and of which one it must be.
Status check_heads(const PageGeometry& page, const std::string& where, std::uint32_t index, std::uint32_t wanted,
                   std::string_view why) {
  const std::uint32_t head_count = page.heads_on_rank(index, 0).count;
  if (head_count == wanted) return {};
  return fail(ErrorCode::InvalidArgument, where + ": component " + quoted(page.group().components[index].name) +
                                              " has " + count_of(head_count, "head") +
                                              " on a rank: " + std::string(why));
}

Status check_scales(const Component& values, const Component& scales, const std::string& where,
                    std::uint32_t block_values) {
  const std::uint32_t block_count = ((values.dim - 1) / block_values) + 1;
  const std::uint32_t padding_max = scales.element == ElementType::Bytes ? kScalePaddingMax : 0;
  if (scales.dim >= block_count && scales.dim - block_count <= padding_max) return {};
  return fail(ErrorCode::InvalidArgument, where + ": component " + quoted(scales.name) + " has room for " +
                                              count_of(scales.dim, "scale") + ", but the " +
                                              count_of(values.dim, "value") + " of " + quoted(values.name) + " make " +
                                              count_of(block_count, "block") + " of " + with_separators(block_values) +
                                              ": set block_values to the values that share a scale, or name the "
                                              "component that has their scales");
}

}  // namespace

Result<QuantisedEntries> QuantisedEntries::create(PoolGeometry geometry, const QuantisedComponents& components) {
  const std::string where = where_of(geometry);
  const PageGeometry& page = geometry.page();
  QUIRE_TRY(check_role(page, where, {"values", components.values, {ElementType::Fp8}}));
  QUIRE_TRY(check_role(page, where, {"scales", components.scales, {ElementType::Fp32, ElementType::Bytes}}));
  const std::uint32_t head_count = page.heads_on_rank(components.values, 0).count;
  QUIRE_TRY(check_heads(page, where, components.scales, head_count,
                        "there is a row of scales for each of the " + count_of(head_count, "head") + " of the values"));
  if (components.rope != kNoComponent) {
    QUIRE_TRY(check_role(page, where, {"rope values", components.rope, {ElementType::Bf16}}));
    QUIRE_TRY(check_heads(page, where, components.values, 1, "only values of one head have rope values beside them"));
    QUIRE_TRY(check_heads(page, where, components.rope, 1, "an entry has one row of rope values"));
  }
  const std::vector<Component>& declared = page.group().components;
  if (components.positions != kNoComponent) {
    QUIRE_TRY(check_role(page, where, {"positions", components.positions, {ElementType::Int32}}));
    QUIRE_TRY(check_heads(page, where, components.positions, 1, "an entry has one position"));
    if (declared[components.positions].dim != 1) {
      return fail(ErrorCode::InvalidArgument, where + ": component " + quoted(declared[components.positions].name) +
                                                  " has " + with_separators(declared[components.positions].dim) +
                                                  " numbers in a row: an entry has one position");
    }
  }
  QuantisedEntries entries(std::move(geometry), components);
  const std::vector<Component>& kept = entries.geometry_.page().group().components;
  entries.head_count_ = head_count;
  entries.dim_ = kept[components.values].dim;
  entries.block_values_ = components.block_values == 0 ? entries.dim_ : components.block_values;
  entries.scale_form_ = kept[components.scales].element == ElementType::Bytes ? ScaleForm::Ue8m0 : ScaleForm::Fp32;
  entries.rope_dim_ = components.rope == kNoComponent ? 0 : kept[components.rope].dim;
  QUIRE_TRY(check_scales(kept[components.values], kept[components.scales], where, entries.block_values_));
  return entries;
}

Result<QuantisedEntries> QuantisedEntries::create(PoolGeometry geometry, const EntryFormat& format,
                                                  std::string_view prefix) {
  if (format.value_bits != 8) {
    return fail(ErrorCode::Unsupported,
                where_of(geometry) + ": values of format " + quoted(format.name) + " have " +
                    with_separators(format.value_bits) +
                    " bits, and these kernels read and write values of 8 (E4M3): use a format of 8 bits, such as "
                    "index_keys_fp8(), or a kernel of the engine's own; the cache itself takes any format");
  }
  const std::vector<Component>& declared = geometry.page().group().components;
  QuantisedComponents components{.block_values = format.block_values};
  // Element types tell the parts of such a format apart.
  for (const Component& part : format.components) {
    const std::string name = prefixed_name(prefix, part.name);
    const auto found = std::ranges::find(declared, name, &Component::name);
    if (found == declared.end()) {
      return fail(ErrorCode::InvalidArgument, where_of(geometry) + ": format " + quoted(format.name) +
                                                  " has a component " + quoted(name) + ", and the group has none");
    }
    const auto index = static_cast<std::uint32_t>(found - declared.begin());
    if (part.element == ElementType::Fp8) components.values = index;
    if (part.element == ElementType::Fp32 || part.element == ElementType::Bytes) components.scales = index;
    if (part.element == ElementType::Bf16) components.rope = index;
    if (part.element == ElementType::Int32) components.positions = index;
  }
  if (components.values == kNoComponent || components.scales == kNoComponent) {
    return fail(ErrorCode::InvalidArgument,
                where_of(geometry) + ": format " + quoted(format.name) + " has no E4M3 values with scales");
  }
  return create(std::move(geometry), components);
}

}  // namespace quire
