// SPDX-License-Identifier: Apache-2.0
//
// The one place where errno becomes an Error's code and text.
#pragma once

#include <string>

#include "quire/result.h"

namespace quire {

[[nodiscard]] ErrorCode errno_code(int error_number);
[[nodiscard]] std::string errno_text(int error_number);

}  // namespace quire
