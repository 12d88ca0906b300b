// SPDX-License-Identifier: Apache-2.0
#include "testing/workloads.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace quire::testing {
namespace {

ChatConfig small_chat() {
  return {.session_count = 30,
          .turn_count = 3,
          .prompt_count = 4,
          .prompt_tokens = 10,
          .turn_tokens_min = 2,
          .turn_tokens_max = 5};
}

TEST(WorkloadHash, HasThePublishedValue) {
  EXPECT_EQ(workload_hash(1, 2, 3), 11330486696377534970U);
}

TEST(WorkloadHash, TokensHaveThePublishedValues) {
  const std::array<TokenId, 8> expected = {59778, 119077, 105974, 105858, 14955, 76226, 98718, 82778};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(workload_token(1, 0, i), expected[i]);
}

TEST(ChatWorkload, HasThePublishedCounts) {
  const ChatWorkload workload;
  EXPECT_EQ(workload.requests().size(), 16'000U);
  EXPECT_EQ(workload.requested_token_count(), 37'598'979U);
  EXPECT_EQ(workload.distinct_token_count(), 4'818'014U);
  EXPECT_EQ(workload.pool_token_count(), 1'445'376U);
}

TEST(ChatWorkload, BeginsWithThePublishedEvents) {
  const ChatWorkload workload;
  const std::array<std::uint32_t, 4> sessions = {672, 432, 987, 722};
  for (std::size_t i = 0; i < sessions.size(); ++i) {
    EXPECT_EQ(workload.requests()[i].session, sessions[i]);
    EXPECT_EQ(workload.requests()[i].turn, 0U);
  }
}

TEST(ChatWorkload, RequestedTokensAreTheSumOverItsRequests) {
  const ChatWorkload workload(small_chat());
  std::uint64_t sum = 0;
  for (const ChatWorkload::Request& request : workload.requests()) sum += request.tokens.size();
  EXPECT_EQ(workload.requested_token_count(), sum);
}

TEST(ChatWorkload, EverySessionRunsAllItsTurnsInOrder) {
  const ChatConfig config = small_chat();
  const ChatWorkload workload(config);
  std::vector<std::uint32_t> next_turn(config.session_count, 0);
  for (const ChatWorkload::Request& request : workload.requests()) {
    EXPECT_EQ(request.turn, next_turn[request.session]++);
  }
  EXPECT_TRUE(std::ranges::all_of(next_turn, [&](std::uint32_t turns) { return turns == config.turn_count; }));
}

TEST(ChatWorkload, SessionsTakeTurnsWithOneAnother) {
  const ChatWorkload workload(small_chat());
  const auto second_turn = std::ranges::find(workload.requests(), 1U, &ChatWorkload::Request::turn);
  const auto last_first_turn =
      std::ranges::find(workload.requests().rbegin(), workload.requests().rend(), 0U, &ChatWorkload::Request::turn);
  EXPECT_LT(second_turn, last_first_turn.base());
}

TEST(ChatWorkload, EachTurnContinuesTheSessionByTheConfiguredLength) {
  const ChatConfig config = small_chat();
  const ChatWorkload workload(config);
  std::vector<std::size_t> end(config.session_count, config.prompt_tokens);
  for (const ChatWorkload::Request& request : workload.requests()) {
    const std::size_t added = request.tokens.size() - end[request.session];
    EXPECT_GE(added, config.turn_tokens_min);
    EXPECT_LE(added, config.turn_tokens_max);
    end[request.session] = request.tokens.size();
    const auto whole = workload.session_tokens(request.session);
    EXPECT_TRUE(std::ranges::equal(request.tokens, whole.first(request.tokens.size())));
  }
}

TEST(ChatWorkload, ASessionIsItsSystemPromptAndItsOwnText) {
  const ChatConfig config = small_chat();
  const ChatWorkload workload(config);
  for (std::uint32_t session = 0; session < config.session_count; ++session) {
    const std::uint64_t prompt = workload_hash(2, session, 0) % config.prompt_count;
    const auto tokens = workload.session_tokens(session);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const TokenId expected = i < config.prompt_tokens ? workload_token(1, prompt, i)
                                                        : workload_token(4, session, i - config.prompt_tokens);
      ASSERT_EQ(tokens[i], expected) << "session " << session << ", position " << i;
    }
  }
}

TEST(ChatWorkload, RequestsOutliveAMoveOfTheWorkload) {
  ChatWorkload source(small_chat());
  const ChatWorkload::Request before = source.requests().back();
  const ChatWorkload target = std::move(source);
  const ChatWorkload::Request after = target.requests().back();
  EXPECT_EQ(before.tokens.data(), after.tokens.data());
  EXPECT_EQ(target.session_tokens(after.session).data(), after.tokens.data());
}

TEST(LongContextWorkload, HasEightSequencesOf131072Tokens) {
  const LongContextWorkload workload;
  ASSERT_EQ(workload.sequence_count(), 8U);
  for (std::size_t i = 0; i < workload.sequence_count(); ++i) {
    ASSERT_EQ(workload.sequence(i).size(), 131'072U);
    EXPECT_EQ(workload.sequence(i).front(), workload_token(6, i, 0));
    EXPECT_EQ(workload.sequence(i).back(), workload_token(6, i, 131'071));
  }
}

TEST(LongContextWorkload, ChunksCutASequenceIn1And16And512) {
  const std::size_t sequence_tokens = LongContextWorkload({.sequence_count = 1}).sequence(0).size();
  const std::array<std::size_t, 3> chunk_counts = {1, 16, 512};
  for (std::size_t i = 0; i < chunk_counts.size(); ++i) {
    EXPECT_EQ(LongContextWorkload::kChunkTokens[i] * chunk_counts[i], sequence_tokens);
  }
}

TEST(EvictionWorkload, BeginsWithThePublishedLeaves) {
  const EvictionWorkload workload;
  ASSERT_EQ(workload.leaf_order().size(), 200'000U);
  const std::array<std::uint32_t, 5> expected = {2968, 179230, 45555, 170002, 132340};
  EXPECT_TRUE(std::ranges::equal(workload.leaf_order().first(5), expected));
}

TEST(EvictionWorkload, InsertsEveryLeafOnce) {
  const EvictionWorkload workload({.group_count = 10, .leaves_per_group = 100});
  std::vector<std::uint32_t> sorted(workload.leaf_order().begin(), workload.leaf_order().end());
  std::ranges::sort(sorted);
  std::vector<std::uint32_t> all(1000);
  std::iota(all.begin(), all.end(), 0U);
  EXPECT_EQ(sorted, all);
}

TEST(EvictionWorkload, LeavesOfAGroupShareThePrefixAndNothingElse) {
  const EvictionWorkload workload({.group_count = 2, .leaves_per_group = 3});
  const std::vector<TokenId> last_of_first = workload.tokens_of(2);
  const std::vector<TokenId> first_of_second = workload.tokens_of(3);
  const std::vector<TokenId> second_of_second = workload.tokens_of(4);
  ASSERT_EQ(first_of_second.size(), 128U);
  EXPECT_EQ(std::ranges::mismatch(first_of_second, second_of_second).in1 - first_of_second.begin(), 64);
  EXPECT_EQ(std::ranges::mismatch(first_of_second, last_of_first).in1 - first_of_second.begin(), 0);
  for (std::size_t i = 0; i < 64; ++i) {
    ASSERT_EQ(second_of_second[i], workload_token(7, 1, i));
    ASSERT_EQ(second_of_second[64 + i], workload_token(8, 4, i));
  }
}

TEST(EvictionWorkload, DistinctTokensCountEachPrefixOnce) {
  const EvictionWorkload workload({.group_count = 3, .leaves_per_group = 5, .prefix_tokens = 7, .own_tokens = 2});
  std::set<std::vector<TokenId>> prefixes;
  for (const std::uint32_t leaf : workload.leaf_order()) {
    const std::vector<TokenId> tokens = workload.tokens_of(leaf);
    for (std::size_t end = 1; end <= tokens.size(); ++end) {
      prefixes.emplace(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end));
    }
  }
  EXPECT_EQ(workload.distinct_token_count(), prefixes.size());
}

}  // namespace
}  // namespace quire::testing
