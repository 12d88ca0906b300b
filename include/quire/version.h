// SPDX-License-Identifier: Apache-2.0
//
// The version of the library. This is the only place it is written: the build reads it from here.
#pragma once

#include <string_view>

namespace quire {

inline constexpr std::string_view kVersion = "0.1.0";

}  // namespace quire
