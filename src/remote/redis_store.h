// SPDX-License-Identifier: Apache-2.0
//
// What quire/redis_store.h declares, with a login that was made of the same configuration before: tests change how it
// looks up names.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "quire/redis_store.h"
#include "quire/result.h"
#include "remote/redis_login.h"

namespace quire {

[[nodiscard]] Result<std::unique_ptr<RemoteStore>> open_redis_store(const RedisConfig& config, RedisLogin login);
[[nodiscard]] Result<RedisScanReport> scan_redis_store(const RedisConfig& config, const RedisLogin& login,
                                                       std::string_view key_prefix,
                                                       const std::function<bool(const RedisScanPage&)>& on_page);

}  // namespace quire
