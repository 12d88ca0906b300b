// SPDX-License-Identifier: Apache-2.0
#include "layout/group_check.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <string>

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
  return check_padding(where, group);
}

}  // namespace quire
