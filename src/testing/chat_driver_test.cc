// SPDX-License-Identifier: Apache-2.0
#include "testing/chat_driver.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace quire::testing {
namespace {

using Tokens = std::vector<TokenId>;

TreeDriver small_driver(std::uint32_t page_tokens, std::uint32_t page_count) {
  return TreeDriver({.page_tokens = page_tokens, .page_count = page_count, .request_tokens_max = 64});
}

TEST(TreeDriver, ASecondRequestHitsTheWholePagesOfTheFirst) {
  TreeDriver driver = small_driver(4, 8);
  EXPECT_EQ(driver.run_request(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9}), 0U);
  EXPECT_EQ(driver.run_request(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 9}), 8U);
  EXPECT_EQ(driver.outcome().hit_token_count, 8U);
}

TEST(TreeDriver, ThePageOfTheUnalignedTailIsReleased) {
  TreeDriver driver = small_driver(4, 8);
  driver.run_request(Tokens{1, 2, 3, 4, 5, 6});
  EXPECT_EQ(driver.tree().page_count(), 1U);
  EXPECT_EQ(driver.pool().count(PageState::Sealed), 1U);
  EXPECT_EQ(driver.pool().free_count(), 7U);
}

TEST(TreeDriver, OnlyTheShortfallIsEvicted) {
  TreeDriver driver = small_driver(1, 6);
  driver.run_request(Tokens{1, 2, 3});
  driver.run_request(Tokens{4, 5});
  driver.run_request(Tokens{6, 7});
  EXPECT_EQ(driver.outcome().evicted_token_count, 1U);
  EXPECT_EQ(driver.outcome().evict_call_count, 1U);
  EXPECT_EQ(driver.tree().page_count(), 6U);
}

TEST(TreeDriver, NothingIsPinnedOrOpenBetweenRequests) {
  const ChatWorkload workload({.session_count = 40,
                               .turn_count = 4,
                               .prompt_count = 3,
                               .prompt_tokens = 11,
                               .turn_tokens_min = 1,
                               .turn_tokens_max = 9});
  TreeDriver driver({.page_tokens = 2, .page_count = 120, .request_tokens_max = 64});
  for (const ChatWorkload::Request& request : workload.requests()) {
    driver.run_request(request.tokens);
    ASSERT_EQ(driver.tree().pinned_pages(), 0U);
    ASSERT_EQ(driver.pool().count(PageState::Open), 0U);
    ASSERT_EQ(driver.pool().count(PageState::Sealed), driver.tree().page_count());
    ASSERT_TRUE(driver.tree().check_invariants().has_value());
    ASSERT_TRUE(driver.pool().check_invariants().has_value());
  }
  EXPECT_GT(driver.outcome().evict_call_count, 0U);
}

// With whole runs, the real tree is the naive one, to the token; by the page it must keep at least as much.
// (The real tree chains runs of at most 2,048 tokens, so they are the same only while no request is longer.)

std::string page_tokens_name(const ::testing::TestParamInfo<std::uint32_t>& info) {
  return "P" + std::to_string(info.param);
}

class TreeAndNaiveOnChat : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(TreeAndNaiveOnChat, GiveTheSameFiguresWithWholeRuns) {
  const ChatWorkload workload(
      {.session_count = 200, .prompt_tokens = 400, .turn_tokens_min = 100, .turn_tokens_max = 200});
  const ChatOutcome tree = run_chat_on_tree(workload, GetParam(), /*whole_runs=*/true);
  const ChatOutcome naive = run_chat_on_naive(workload, GetParam());
  EXPECT_GT(naive.evict_call_count, 0U);
  EXPECT_EQ(tree.hit_token_count, naive.hit_token_count);
  EXPECT_EQ(tree.evicted_token_count, naive.evicted_token_count);
  EXPECT_EQ(tree.evict_call_count, naive.evict_call_count);
}

INSTANTIATE_TEST_SUITE_P(WithPages, TreeAndNaiveOnChat, ::testing::Values(1, 3, 16, 64), page_tokens_name);

struct ChatFigures {
  std::uint32_t page_tokens;
  std::uint64_t hit_token_count;
  std::uint64_t evicted_token_count;
  double hit_rate;
};

std::string figures_name(const ::testing::TestParamInfo<ChatFigures>& info) {
  return "P" + std::to_string(info.param.page_tokens);
}

class TreeOnPublishedChat : public ::testing::TestWithParam<ChatFigures> {};

TEST_P(TreeOnPublishedChat, GivesThePublishedFiguresToTheTokenWithWholeRuns) {
  const ChatOutcome outcome = run_chat_on_tree(ChatWorkload{}, GetParam().page_tokens, /*whole_runs=*/true);
  EXPECT_EQ(outcome.hit_token_count, GetParam().hit_token_count);
  EXPECT_EQ(outcome.evicted_token_count, GetParam().evicted_token_count);
}

TEST_P(TreeOnPublishedChat, HitsNoLessThanThePublishedRateByThePage) {
  const ChatWorkload workload;
  const ChatOutcome outcome = run_chat_on_tree(workload, GetParam().page_tokens, /*whole_runs=*/false);
  const auto requested = static_cast<double>(workload.requested_token_count());
  EXPECT_GE(static_cast<double>(outcome.hit_token_count) / requested, GetParam().hit_rate);
  EXPECT_GE(outcome.hit_token_count, GetParam().hit_token_count);
}

INSTANTIATE_TEST_SUITE_P(WithPages, TreeOnPublishedChat,
                         ::testing::Values(ChatFigures{1, 26'615'822, 9'538'774, 0.7079},
                                           ChatFigures{16, 26'492'096, 9'543'744, 0.7046},
                                           ChatFigures{64, 26'010'496, 9'641'792, 0.6918}),
                         figures_name);

}  // namespace
}  // namespace quire::testing
