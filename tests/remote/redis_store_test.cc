// SPDX-License-Identifier: Apache-2.0
//
// One server, and all that is asked of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "quire/redis_store.h"
#include "tests/remote/comes_true.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/store_client.h"

namespace quire::testing {
namespace {

constexpr TimeNs kMs = 1'000'000;

std::unique_ptr<RemoteStore> open_store(const RedisConfig& config) {
  auto store = open_redis_store(config);
  EXPECT_TRUE(store.has_value()) << store.error().message;
  return store.has_value() ? *std::move(store) : nullptr;
}

TEST(RedisStore, WhatWasPutIsFoundAndComesBack) {
  RedisServer server;
  const auto store = open_store({.urls = {server.unix_url()}});
  StoreClient client(*store);
  const auto keys = numbered_keys("quire:a", 20);
  for (const std::size_t bytes : {1U, 100U, 70'000U, 2'000'000U}) {
    EXPECT_TRUE(client.put(keys, bytes).all(RemoteOutcome::Ok));
    EXPECT_TRUE(client.find(keys).all(RemoteOutcome::Ok));
    const BatchRun got = client.get(keys, bytes);
    EXPECT_TRUE(got.all(RemoteOutcome::Ok));
    EXPECT_EQ(got.answer.moved_bytes, keys.size() * bytes);
    EXPECT_GT(got.answer.first_byte_ns, 0);
    EXPECT_GE(got.answer.busy_ns, got.answer.first_byte_ns);
  }
  EXPECT_EQ(client.wrong_values(), 0U);
  EXPECT_TRUE(client.run({.operation = RemoteOperation::Drop, .keys = keys}).all(RemoteOutcome::Ok));
  EXPECT_TRUE(client.find(keys).all(RemoteOutcome::Absent));
  EXPECT_TRUE(client.get(keys, 100).all(RemoteOutcome::Absent));
  EXPECT_TRUE(client.run({.operation = RemoteOperation::Drop, .keys = keys}).all(RemoteOutcome::Ok));
}

}  // namespace
}  // namespace quire::testing
