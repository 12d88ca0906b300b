// SPDX-License-Identifier: Apache-2.0
//
// Token trees, by example. What they leave in the pages is read back through plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "sequence_changes_fixture.h"

namespace quire {
namespace {

class CacheTree : public SequenceChangesTest {
 protected:
  /// Known tokens {0 … 5}, then one step with this tree; node i has the token 100 + i.
  void grow(Live& live, std::vector<std::int32_t> parents) {
    const auto before = static_cast<std::uint32_t>(parents_.size());
    const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
    parents_.insert(parents_.end(), parents.begin(), parents.end());
    for (std::uint32_t i = before; i < parents_.size(); ++i) values_.push_back(static_cast<TokenId>(100 + i));
    compute_tree(step, 0, live, parents_, values_);
    const AttentionPlanEntry& entry = step.plan.entries[0];
    for (std::uint32_t i = 0; i < entry.draft_count; ++i) {
      slots_.push_back(entry.append_slots[entry.token_count - entry.draft_count + i]);
    }
    finish(step, {{.tokens = std::span(values_).subspan(before)}});
  }
  void commit(Live& live, std::int32_t leaf) {
    const Status status = cache_->commit_tree(live.sequence, leaf);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    std::vector<TokenId> path;
    for (std::int32_t node = leaf; node >= 0; node = parents_[node]) path.insert(path.begin(), values_[node]);
    live.tokens.insert(live.tokens.end(), path.begin(), path.end());
    EXPECT_EQ(view(live).token_count, live.tokens.size());
    EXPECT_EQ(view(live).computed_tokens, live.tokens.size());
    EXPECT_EQ(view(live).tree_tokens, 0U);
    expect_invariants();
  }
  /// The moves of the next plan as node → place in the path.
  [[nodiscard]] std::vector<std::pair<int, int>> next_moves(Live& live) {
    append(live, {90});
    const Step step = plan({{&live.sequence}});
    compute(step, 0, live.tokens);
    finish(step, {{}});
    std::vector<std::pair<int, int>> moves;
    const auto node_of = [&](std::int64_t slot) {
      return static_cast<int>(std::find(slots_.begin(), slots_.end(), slot) - slots_.begin());
    };
    for (const TokenMove& move : step.plan.groups[0].moves) {
      moves.emplace_back(node_of(move.source_slot), node_of(move.target_slot));
    }
    return moves;
  }

  std::vector<std::int32_t> parents_;
  std::vector<TokenId> values_;
  std::vector<std::int64_t> slots_;
};

using Moves = std::vector<std::pair<int, int>>;

TEST_F(CacheTree, ACommitMovesTheAcceptedPathIntoPlace) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, 0, 0, 1, 1, 2, 2});
  EXPECT_EQ(view(live).tree_tokens, 7U);
  EXPECT_EQ(view(live).computed_tokens, 6U);
  commit(live, 6);
  EXPECT_EQ(next_moves(live), (Moves{{2, 1}, {6, 2}}));
}

TEST_F(CacheTree, OfADeepTreeOnlyThePathIsLeft) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6});
  const std::uint32_t before = in_use();
  commit(live, 11);
  EXPECT_EQ(next_moves(live), (Moves{{2, 1}, {5, 2}, {11, 3}}));
  EXPECT_EQ(in_use(), before - 3);
}

TEST_F(CacheTree, AChainMovesNothing) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8});
  commit(live, 6);
  EXPECT_EQ(stats().fenced_pages, 0U);
  EXPECT_EQ(next_moves(live), Moves{});
}

TEST_F(CacheTree, OfTwoRootsTheSecondMovesToTheFront) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, 0, 0, 1, 1, 2, 2, -1, 7, 7, 8, 8, 9, 9});
  commit(live, 13);
  EXPECT_EQ(next_moves(live), (Moves{{7, 0}, {9, 1}, {13, 2}}));
}

TEST_F(CacheTree, KeepingNoneOfItGivesItsPagesBack) {
  Live live = computed(token_range(0, 6));
  const std::uint32_t before = in_use();
  grow(live, {-1, 0, 0, 1, 1, 2, 2});
  EXPECT_GT(in_use(), before);
  commit(live, -1);
  EXPECT_EQ(in_use(), before);
  EXPECT_EQ(view(live).pending_tokens, 0U);
  EXPECT_EQ(next_moves(live), Moves{});
}

TEST_F(CacheTree, SeveralRoundsCountOn) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  grow(live, {2, 3});
  EXPECT_EQ(view(live).tree_tokens, 5U);
  grow(live, {0, 4});
  commit(live, 6);  // 1, 2, 3, 4, 6
  EXPECT_EQ(live.tokens.size(), 11U);
  EXPECT_EQ(next_moves(live), (Moves{{1, 0}, {2, 1}, {3, 2}, {4, 3}, {6, 4}}));
}

TEST_F(CacheTree, AnEarlierRoundsLeafCanBeKept) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  grow(live, {2, 3});
  commit(live, 0);
  EXPECT_EQ(next_moves(live), Moves{});
}

TEST_F(CacheTree, ARoundThatIsAbortedLeavesTheRoundsBefore) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  const std::uint32_t before = in_use();
  const std::vector<std::int32_t> parents = {2, 3, 4, 5, 6};
  const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  EXPECT_EQ(view(live).tree_tokens, 8U);
  ASSERT_TRUE(cache_->abort_step(step));
  EXPECT_EQ(view(live).tree_tokens, 3U);
  EXPECT_EQ(in_use(), before);
  grow(live, {2});
  commit(live, 3);
  EXPECT_EQ(next_moves(live), (Moves{{1, 0}, {2, 1}, {3, 2}}));
}

TEST_F(CacheTree, SequencesAreCommittedInAnyOrderAndEachForItself) {
  const std::vector<std::int32_t> chain = {-1, 0, 1, 2};
  const std::vector<std::int32_t> fan = {-1, -1, -1, 2};
  const std::vector<TokenId> values = {100, 101, 102, 103};
  Live a = computed(token_range(0, 6));
  Live b = computed(token_range(20, 7));
  Live c = computed(token_range(40, 8));
  const Step step = plan({{.sequence = &a.sequence, .tree_parents = fan},
                          {.sequence = &b.sequence, .tree_parents = fan},
                          {.sequence = &c.sequence, .tree_parents = chain}});
  compute_tree(step, 0, a, fan, values);
  compute_tree(step, 1, b, fan, values);
  compute_tree(step, 2, c, chain, values);
  finish(step, {{.tokens = values}, {.tokens = values}, {.tokens = values}});
  ASSERT_TRUE(cache_->commit_tree(c.sequence, 1));
  c.tokens.insert(c.tokens.end(), {100, 101});
  ASSERT_TRUE(cache_->commit_tree(b.sequence, 3));
  b.tokens.insert(b.tokens.end(), {102, 103});
  // c goes on while a is undecided; b's moves come along, though b is not in the step.
  append(c, {90});
  const Step next = plan({{&c.sequence}});
  EXPECT_EQ(next.plan.groups[0].moves.size(), 2U);
  EXPECT_EQ(next.plan.groups[0].move_indptr.size(), 2U);
  compute(next, 0, c.tokens);
  finish(next, {{}});
  ASSERT_TRUE(cache_->commit_tree(a.sequence, 3));
  a.tokens.insert(a.tokens.end(), {102, 103});
  append(a, {90});
  append(b, {90});
  const Step last = plan({{&b.sequence}, {&a.sequence}});
  EXPECT_EQ(last.plan.groups[0].moves.size(), 2U);
  compute(last, 0, b.tokens);
  compute(last, 1, a.tokens);
  finish(last, {{}, {}});
}

TEST_F(CacheTree, PagesThatMovesReadComeBackWithThePlanThatMoves) {
  open(changes_config(5));
  Live live = computed(token_range(0, 4));
  grow(live, {-1, -1, -1, -1, -1, -1, -1, -1});
  EXPECT_EQ(stats().free_pages, 2U);
  commit(live, 7);
  EXPECT_EQ(stats().free_pages, 2U);
  EXPECT_EQ(stats().fenced_pages, 1U);
  append(live, token_range(50, 15));  // 20 tokens in 5 pages: the one that is read is written in the same step
  run(live);
  EXPECT_EQ(stats().free_pages, 0U);
}

TEST_F(CacheTree, KnownTokensStandBeforeTheTreeInItsFirstStep) {
  Live live = computed(token_range(0, 6));
  append(live, {80, 81, 82});
  grow(live, {-1, 0, -1});
  EXPECT_EQ(view(live).computed_tokens, 9U);
  commit(live, 2);
  EXPECT_EQ(next_moves(live), (Moves{{2, 0}}));
}

TEST_F(CacheTree, WhatIsCommittedIsCachedAndMovedBeforeAnybodyReadsIt) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  commit(live, 2);  // 8 tokens: two full pages
  EXPECT_EQ(stats().sealed_pages, 2U);
  Live other = admitted(live.tokens);
  EXPECT_EQ(view(other).computed_tokens, 8U);
  run(other);
}

TEST_F(CacheTree, ACommittedSequenceMayEndBeforeItsMoves) {
  Live live = computed(token_range(0, 5));
  grow(live, {-1, -1, 1, 2, 3, 4, 5, 6});
  commit(live, 7);
  end(live);
  EXPECT_GT(stats().fenced_pages, 0U);
  Live other = computed(token_range(60, 40));  // takes the pages that the moves touch
  expect_good(other);
  EXPECT_EQ(stats().fenced_pages, 0U);
  end(other);
  expect_all_free();
}

TEST_F(CacheTree, AForkOfAnUndecidedSequenceHasWhatWasDecided) {
  Live live = computed(token_range(0, 6));
  grow(live, {-1, -1, 1});
  Live fork = forked(live, 6);
  commit(live, 2);
  expect_good(fork);
  expect_good(live);
}

TEST_F(CacheTree, MovesOfAnAbortedStepThatNobodyAppliedHappen) {
  Live live = computed(token_range(0, 6));
  const std::vector<std::int32_t> parents = {-1, -1, 1};
  const std::vector<TokenId> values = {10, 11, 12};
  const Step step = plan({{.sequence = &live.sequence, .tree_parents = parents}});
  compute_tree(step, 0, live, parents, values);
  finish(step, {{.tokens = values}});
  ASSERT_TRUE(cache_->commit_tree(live.sequence, 2));
  live.tokens.insert(live.tokens.end(), {11, 12});
  append(live, {20});
  const StepEntry entry{&live.sequence};
  const Step aborted = *cache_->plan_step({&entry, 1})->step;  // its moves are not applied
  ASSERT_EQ(aborted.plan.groups[0].moves.size(), 2U);
  ASSERT_TRUE(cache_->abort_step(aborted));
  run(live);
}

}  // namespace
}  // namespace quire
