// SPDX-License-Identifier: Apache-2.0
//
// What a store of Redis servers says names fields of RedisConfig. Who opens a cache has CacheConfig::remote in place of
// that, where some are called something else: here is what they are called.
//
// immutable
#pragma once

#include <string>

namespace quire {

/// With "remote.password_file" for "RedisConfig::password_file", and so on.
[[nodiscard]] std::string in_remote_fields(std::string message);

}  // namespace quire
