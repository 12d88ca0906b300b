// SPDX-License-Identifier: Apache-2.0
//
// What a cache group must fulfil by itself, whatever the pages and ranks.
#pragma once

#include <string>

#include "quire/cache_group.h"
#include "quire/result.h"

namespace quire {

/// `where` begins each message: "group 'full'".
[[nodiscard]] Status check_group(const std::string& where, const CacheGroup& group);

}  // namespace quire
