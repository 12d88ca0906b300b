// SPDX-License-Identifier: Apache-2.0
//
// What the tests of a remote store begin with.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "base/check.h"
#include "quire/redis_store.h"

namespace quire::testing {

inline constexpr TimeNs kMs = 1'000'000;
/// A deadline is kept within a millisecond; a machine that is busy with other things may notice a single one later.
/// How well they are kept is asked of the median of many, in RedisStore.DeadlinesAreKeptWithinMilliseconds.
inline constexpr TimeNs kSlackNs = 1'000 * kMs;

inline std::unique_ptr<RemoteStore> open_store(const RedisConfig& config) {
  auto store = open_redis_store(config);
  // There is nothing to go on with, and a test that did would hide what the error says.
  QUIRE_CHECK(store.has_value(), store.error().message.c_str());
  return *std::move(store);
}

}  // namespace quire::testing
