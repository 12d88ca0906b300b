// SPDX-License-Identifier: Apache-2.0
//
// Prefill in one cache, decode in another: what the first engine sends as its plans say is what the second one needs,
// and the tokens are the oracle's. The two caches have pages of different sizes and layouts.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quire/cache.h"
#include "seeded_text.h"
#include "tools/tiny_engine/engine.h"
#include "tools/tiny_engine/model.h"
#include "tools/tiny_engine/oracle.h"
#include "tools/tiny_engine/sampling.h"

namespace quire {
namespace {

using tiny_engine::AttentionKind;
using tiny_engine::DevicePlan;
using tiny_engine::Engine;
using tiny_engine::PoolMemory;
using tiny_engine::Weights;

constexpr std::int32_t kDecoder = 6;  // the receiver's number
constexpr std::uint32_t kContextTokens = 64;

/// A cache and the engine on it.
struct Node {
  std::unique_ptr<Cache> cache;
  std::unique_ptr<Engine> engine;
  KeySpaceId space;

  [[nodiscard]] PoolMemory pool() const { return {.geometry = cache->geometry(), .bytes = cache->device_memory()}; }
};

struct NodeShape {
  std::uint32_t page_tokens = 4;
  ByteLayout byte_layout = ByteLayout::PageFirst;
  PageTables page_tables = PageTables::Rows;
};

class EngineTransfer : public ::testing::TestWithParam<AttentionKind> {
 protected:
  [[nodiscard]] Node open(const NodeShape& shape) const {
    const CacheGroup group = tiny_engine::cache_group(weights_.shape, /*keys_rotated=*/true);
    Node node;
    node.cache = Cache::open({.layout = ModelLayout::create("tiny", {group}).value(),
                              .page = {.page_tokens = shape.page_tokens},
                              .device = {.page_count = 64, .byte_layout = shape.byte_layout},
                              .sequence_count_max = 4,
                              .context_tokens_max = kContextTokens,
                              .plan = {.page_tables = shape.page_tables}})
                     .value();
    node.engine = std::make_unique<Engine>(
        weights_, node.pool(),
        tiny_engine::EngineOptions{.sequence_count_max = 4,
                                   .row_columns = (kContextTokens + shape.page_tokens - 1) / shape.page_tokens,
                                   .applies_copies = false});
    node.space = node.cache->key_space({.model = "tiny"}).value();
    return node;
  }

  [[nodiscard]] static Sequence begin(Node& node, const std::vector<TokenId>& tokens) {
    Sequence sequence = node.cache->begin(node.space, {.tokens = tokens}).value();
    EXPECT_TRUE(node.cache->admit(sequence).has_value());
    return sequence;
  }

  /// One step of one sequence; gives the greedy token that follows, which the sequence gets if it `continues`.
  static TokenId step(Node& node, const Sequence& sequence, const std::vector<TokenId>& text, std::uint32_t token_count,
                      bool continues) {
    const StepEntry entry{.sequence = &sequence, .token_count = token_count};
    const PlanOutcome outcome = node.cache->plan_step({&entry, 1}).value();
    const AttentionPlanEntry planned = outcome.step->plan.entries[0];
    const DevicePlan plan = DevicePlan::upload(outcome.step->plan).value();
    EXPECT_TRUE(node.cache->apply_copies(*outcome.step).has_value());
    EXPECT_EQ(node.engine->prepare(plan), "");
    std::vector<double> logits;
    EXPECT_EQ(node.engine->forward(plan, std::span(text).subspan(planned.position, planned.token_count), logits), "");
    const TokenId next = tiny_engine::pick_best(std::span(logits).last(node.engine->weights().shape.vocabulary));
    StepResult result;
    if (continues) result.tokens = {&next, 1};
    EXPECT_TRUE(node.cache->finish_step(*outcome.step, {&result, 1}).has_value());
    EXPECT_TRUE(node.cache->check_invariants().has_value());
    return next;
  }

  void expect_greedy(const std::vector<TokenId>& text, std::size_t prompt_tokens) const {
    const auto logits = tiny_engine::oracle_logits(weights_, tiny_engine::OracleText{.tokens = text});
    for (std::size_t i = prompt_tokens; i < text.size(); ++i) {
      EXPECT_EQ(text[i], tiny_engine::pick_best(logits[i - 1])) << "token " << i;
    }
  }

  Weights weights_ = tiny_engine::make_weights({.attention = GetParam()}, 31);
};

TEST_P(EngineTransfer, WhatOneCacheComputesTheOtherDecodesOn) {
  Node prefill = open({.page_tokens = 5});
  Node decode = open({.page_tokens = 4, .byte_layout = ByteLayout::LayerFirst, .page_tables = PageTables::Csr});
  prefill.engine->set_receiver(kDecoder, decode.pool());
  std::vector<TokenId> text = testing::seeded_text(1, 27);

  // The decoder has seen the first tokens before: they need no transfer.
  std::vector<TokenId> earlier(text.begin(), text.begin() + 10);
  Sequence cached = begin(decode, earlier);
  step(decode, cached, earlier, 0, false);
  ASSERT_TRUE(decode.cache->end(cached).has_value());
  Sequence target = begin(decode, text);
  const std::uint32_t begin_tokens = decode.cache->view(target)->computed_tokens;
  ASSERT_GE(begin_tokens, 8U);

  Sequence source = begin(prefill, text);
  step(prefill, source, text, 12, false);  // before anybody asks for it
  const std::span<const SlotRun> slots =
      decode.cache->prepare_receive(target, static_cast<std::uint32_t>(text.size()) - begin_tokens - 1).value();
  ASSERT_TRUE(prefill.cache->mark_send(source, begin_tokens, slots, kDecoder).has_value());
  step(prefill, source, text, 9, false);
  step(prefill, source, text, 6, false);
  ASSERT_TRUE(decode.cache->finish_receive(target).has_value());
  ASSERT_TRUE(decode.cache->check_invariants().has_value());

  for (int i = 0; i < 12; ++i) text.push_back(step(decode, target, text, 0, true));
  expect_greedy(text, 27);
}

TEST_P(EngineTransfer, WhatWasReceivedIsCachedAndAbortedTransfersAreNot) {
  Node prefill = open({});
  Node decode = open({.page_tokens = 3});
  prefill.engine->set_receiver(kDecoder, decode.pool());
  std::vector<TokenId> text = testing::seeded_text(2, 20);
  Sequence source = begin(prefill, text);

  // Half of it arrives, and is given up.
  Sequence given_up = begin(decode, text);
  std::span<const SlotRun> slots = decode.cache->prepare_receive(given_up, 19).value();
  ASSERT_TRUE(prefill.cache->mark_send(source, 0, slots, kDecoder).has_value());
  step(prefill, source, text, 9, false);
  ASSERT_TRUE(prefill.cache->end(source).has_value());
  ASSERT_TRUE(decode.cache->abort_receive(given_up).has_value());
  ASSERT_TRUE(decode.cache->end(given_up).has_value());
  EXPECT_EQ(decode.cache->lookup(decode.space, {.tokens = text})->matched_tokens, 0U);

  source = begin(prefill, text);
  Sequence target = begin(decode, text);
  slots = decode.cache->prepare_receive(target, 19).value();
  ASSERT_TRUE(prefill.cache->mark_send(source, 0, slots, kDecoder).has_value());
  step(prefill, source, text, 0, false);
  ASSERT_TRUE(decode.cache->finish_receive(target).has_value());
  EXPECT_GE(decode.cache->lookup(decode.space, {.tokens = text})->matched_tokens, 18U);
  for (int i = 0; i < 5; ++i) text.push_back(step(decode, target, text, 0, true));
  expect_greedy(text, 20);
}

INSTANTIATE_TEST_SUITE_P(BothKinds, EngineTransfer, ::testing::Values(AttentionKind::Gqa, AttentionKind::Mla),
                         [](const ::testing::TestParamInfo<AttentionKind>& kind) {
                           return std::string(kind.param == AttentionKind::Gqa ? "Gqa" : "Mla");
                         });

}  // namespace
}  // namespace quire
