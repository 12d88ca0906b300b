// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "quire/policy.h"

namespace quire {
namespace {

TEST(Policies, EveryKnownNameMakesAPolicyThatWorks) {
  ASSERT_FALSE(policy_names().empty());
  for (const std::string_view name : policy_names()) {
    const Result<std::unique_ptr<Policy>> policy = make_policy(name);
    ASSERT_TRUE(policy.has_value()) << name;
    ASSERT_TRUE((*policy)->reserve({.run_count_max = 4, .page_count_max = 4}).has_value()) << name;
    (*policy)->on_seal(RunId{3}, {.page_count = 1, .pages_left = 1});
    EXPECT_EQ((*policy)->next_victim(), std::nullopt) << name;
    (*policy)->on_idle(RunId{3});
    EXPECT_EQ((*policy)->next_victim(), RunId{3}) << name;
    EXPECT_EQ((*policy)->idle_run_count(), 1U) << name;
  }
}

TEST(Policies, LruIsAmongThem) {
  const auto names = policy_names();
  EXPECT_NE(std::ranges::find(names, "lru"), names.end());
}

TEST(Policies, EveryNameIsThereOnce) {
  auto names = policy_names();
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(Policies, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  for (const std::string_view unknown : {"", "LRU", "mru", "lru "}) {
    const Result<std::unique_ptr<Policy>> policy = make_policy(unknown);
    ASSERT_FALSE(policy.has_value()) << unknown;
    EXPECT_EQ(policy.error().code, ErrorCode::InvalidArgument);
    std::string known;
    for (const std::string_view name : policy_names()) known += (known.empty() ? "" : ", ") + std::string(name);
    EXPECT_EQ(policy.error().message, "unknown policy '" + std::string(unknown) + "'; known: " + known);
  }
}

}  // namespace
}  // namespace quire
