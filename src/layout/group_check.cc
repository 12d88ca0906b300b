// SPDX-License-Identifier: Apache-2.0
#include "layout/group_check.h"

#include <algorithm>
#include <functional>
#include <string>

#include "layout/text.h"

namespace quire {
namespace {

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
  return {};
}

}  // namespace quire
