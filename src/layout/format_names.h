// SPDX-License-Identifier: Apache-2.0
//
// What use_format() calls the components that it adds to a group: for those who look them up again.
#pragma once

#include <string>
#include <string_view>

namespace quire {

/// The name with the prefix before it, unless it begins with it already.
[[nodiscard]] std::string prefixed_name(std::string_view prefix, std::string_view name);

}  // namespace quire
