// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <vector>

#include "quire/cache.h"
#include "tests/cache/groups_fixture.h"

namespace quire {
namespace {

/// A model with a draft layer, whose row of a token depends on the one behind it.
class CacheLookaheadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CacheGroup draft = full_group("draft");
    draft.lookahead_tokens = 1;
    CacheConfig config{.layout = ModelLayout::create("drafting", {full_group(), draft}).value()};
    config.page.page_tokens = 4;
    config.device.page_count = 64;
    cache_ = std::move(Cache::open(std::move(config)).value());
    engine_ = std::make_unique<GroupsEngine>(*cache_);
    space_ = cache_->key_space({.model = "drafting"}).value();
  }
  void TearDown() override { EXPECT_TRUE(cache_->check_invariants()); }

  [[nodiscard]] static PrefixNumbers numbers_of(const std::vector<TokenId>& tokens) {
    PrefixNumbers numbers;
    for (const TokenId token : tokens) numbers.add(token);
    return numbers;
  }
  /// Computes all that is pending and adds `next`.
  void step(const Sequence& sequence, std::vector<TokenId>& tokens, std::vector<TokenId> next) {
    const StepEntry entry{&sequence};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    ASSERT_TRUE(outcome.step.has_value());
    ASSERT_EQ(engine_->start(*outcome.step), "");
    const AttentionPlan& plan = outcome.step->plan;
    ASSERT_EQ(engine_->run(plan, 0, numbers_of(tokens), cache_->view(sequence).value()), "");
    tokens.insert(tokens.end(), next.begin(), next.end());
    engine_->complete(plan, 0, numbers_of(tokens));
    const StepResult result{.tokens = next};
    ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
  }
  /// A whole request; gives what it did not have to compute.
  std::uint32_t run(std::vector<TokenId> tokens) {
    Sequence sequence = cache_->begin(space_, {.tokens = tokens}).value();
    const Admission admission = cache_->admit(sequence).value();
    step(sequence, tokens, {99});
    EXPECT_TRUE(cache_->end(sequence));
    return admission.matched_tokens;
  }

  std::unique_ptr<Cache> cache_;
  std::unique_ptr<GroupsEngine> engine_;
  KeySpaceId space_;
};

TEST_F(CacheLookaheadTest, APageIsGoodOnlyIfTheTokenBehindItAgrees) {
  EXPECT_EQ(run({1, 2, 3, 4, 5, 6, 7, 8, 50, 51}), 0U);
  EXPECT_EQ(run({1, 2, 3, 4, 5, 6, 7, 8, 50, 52}), 8U);
  // The last row of the second page was computed for another token behind it.
  EXPECT_EQ(run({1, 2, 3, 4, 5, 6, 7, 8, 60, 61}), 7U);
  EXPECT_EQ(run({1, 2, 3, 4, 5, 6, 7, 8, 60, 62}), 8U);
  EXPECT_EQ(run({1, 2, 3, 4, 5, 6, 7, 8, 50, 53}), 8U);
}

TEST_F(CacheLookaheadTest, ThePathsFirstTokensCountToo) {
  EXPECT_EQ(run({1, 2, 3, 4, 5, 6}), 0U);
  EXPECT_EQ(run({9, 2, 3, 4, 5, 6}), 0U);
  EXPECT_EQ(run({1, 2, 3, 4, 5, 7}), 4U);
}

TEST_F(CacheLookaheadTest, ExtraKeysOfTheFirstTokensAreComparedAsWell) {
  const std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  const auto matched = [&](std::vector<ExtraKey> keys) {
    return cache_->lookup(space_, {.tokens = tokens, .extra_keys = keys}).value().matched_tokens;
  };
  std::vector<TokenId> computed = tokens;
  const ExtraKey image{.begin = 0, .end = 1, .item = {7}};
  Sequence sequence = cache_->begin(space_, {.tokens = tokens, .extra_keys = {&image, 1}}).value();
  ASSERT_TRUE(cache_->admit(sequence));
  step(sequence, computed, {99});
  ASSERT_TRUE(cache_->end(sequence));
  EXPECT_EQ(matched({image}), 4U);
  EXPECT_EQ(matched({}), 0U);
  EXPECT_EQ(matched({{.begin = 0, .end = 2, .item = {7}}}), 0U);
  EXPECT_EQ(matched({{.begin = 0, .end = 1, .item = {8}}}), 0U);
}

TEST_F(CacheLookaheadTest, APageWaitsForTheTokenBehindIt) {
  std::vector<TokenId> tokens = {1, 2, 3, 4};
  Sequence sequence = cache_->begin(space_, {.tokens = tokens}).value();
  ASSERT_TRUE(cache_->admit(sequence));
  step(sequence, tokens, {});
  EXPECT_EQ(cache_->stats().value().sealed_pages, 0U);
  const TokenId next = 5;
  ASSERT_TRUE(cache_->append(sequence, {.tokens = {&next, 1}}));
  tokens.push_back(next);
  step(sequence, tokens, {6});
  EXPECT_EQ(cache_->stats().value().sealed_pages, 1U);
}

// A step writes the rows that look at appended tokens. A sequence that ends before that step publishes no page with
// them.
TEST_F(CacheLookaheadTest, APageWhoseLastRowNoStepHasWrittenIsNotPublished) {
  std::vector<TokenId> tokens = {1, 2, 3, 4};
  Sequence sequence = cache_->begin(space_, {.tokens = tokens}).value();
  ASSERT_TRUE(cache_->admit(sequence));
  step(sequence, tokens, {});
  const std::vector<TokenId> appended = {5, 6};
  ASSERT_TRUE(cache_->append(sequence, {.tokens = appended}));
  ASSERT_TRUE(cache_->end(sequence, Publish::All));
  EXPECT_EQ(cache_->stats().value().sealed_pages, 0U);
  EXPECT_EQ(run({1, 2, 3, 4, 5, 6}), 0U);
}

TEST_F(CacheLookaheadTest, TokensThatComeBehindARewindAreNotWrittenYet) {
  std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6};
  Sequence sequence = cache_->begin(space_, {.tokens = tokens}, {.publish = Publish::None}).value();
  ASSERT_TRUE(cache_->admit(sequence));
  step(sequence, tokens, {7});
  ASSERT_TRUE(cache_->rewind(sequence, 2));
  const std::vector<TokenId> appended = {8, 9};
  ASSERT_TRUE(cache_->append(sequence, {.tokens = appended}));
  ASSERT_TRUE(cache_->end(sequence, Publish::All));
  EXPECT_EQ(run({1, 2, 3, 4, 5, 8, 9}), 4U);
}

TEST_F(CacheLookaheadTest, ARewindLeavesWhatDependedOnTheTokensThatWent) {
  std::vector<TokenId> tokens = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  Sequence sequence = cache_->begin(space_, {.tokens = tokens}).value();
  ASSERT_TRUE(cache_->admit(sequence));
  step(sequence, tokens, {10});
  ASSERT_TRUE(cache_->rewind(sequence, 2));
  tokens.resize(8);
  EXPECT_EQ(cache_->view(sequence).value().computed_tokens, 7U);
  const TokenId other = 30;
  ASSERT_TRUE(cache_->append(sequence, {.tokens = {&other, 1}}));
  tokens.push_back(other);
  step(sequence, tokens, {31});
  ASSERT_TRUE(cache_->end(sequence));
  EXPECT_EQ(run({1, 2, 3, 4, 5, 6, 7, 8, 30, 40}), 8U);
  EXPECT_EQ(run({1, 2, 3, 4, 5, 6, 7, 8, 9, 40}), 8U);
}

// The last row of a page is written when the step that brought the token behind it is over.
TEST_F(CacheLookaheadTest, APageIsNotCopiedInTheCallThatMakesItsLastRowKnown) {
  for (const std::uint32_t lookahead_tokens : {0U, 1U}) {
    CacheGroup draft = full_group("draft");
    draft.lookahead_tokens = lookahead_tokens;
    CacheConfig config{.layout = ModelLayout::create("draft", {full_group(), draft}).value(),
                       .page = {.page_tokens = 4},
                       .device = {.page_count = 16}};
    config.host = {.page_count = 16, .write_policy = WritePolicy::WriteThrough, .external_mover = true};
    cache_ = std::move(Cache::open(std::move(config)).value());
    engine_ = std::make_unique<GroupsEngine>(*cache_);
    space_ = cache_->key_space({.model = "m"}).value();
    std::vector<TokenId> tokens = {1, 2, 3, 4};
    Sequence sequence = cache_->begin(space_, {.tokens = tokens}).value();
    ASSERT_TRUE(cache_->admit(sequence));
    step(sequence, tokens, {5});
    EXPECT_EQ(cache_->stats()->sealed_pages, 1U);
    EXPECT_EQ(cache_->stats()->transfers_in_flight, 1U - lookahead_tokens);
    TransferPlan plan;
    EXPECT_EQ(cache_->take_transfers({&plan, 1})->size(), 1U);
    ASSERT_TRUE(cache_->end(sequence));
  }
}

}  // namespace
}  // namespace quire
