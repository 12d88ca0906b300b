// SPDX-License-Identifier: Apache-2.0
//
// The scheduler's ways of decoding, one by one: each gives the tokens that the oracle gives, and does what it is for.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quire/cache.h"
#include "seeded_text.h"
#include "tools/tiny_engine/check.h"
#include "tools/tiny_engine/engine.h"
#include "tools/tiny_engine/model.h"
#include "tools/tiny_engine/oracle.h"
#include "tools/tiny_engine/sampling.h"
#include "tools/tiny_engine/scheduler.h"

namespace quire {
namespace {

using testing::join;
using testing::seeded_text;
using tiny_engine::AttentionKind;
using tiny_engine::Engine;
using tiny_engine::Output;
using tiny_engine::Request;
using tiny_engine::Scheduler;
using tiny_engine::SchedulerOptions;
using tiny_engine::Speculation;
using tiny_engine::Weights;

constexpr double kLogitTolerance = 1e-9;  // all in double: only the order of sums differs

struct CacheShape {
  AttentionKind attention = AttentionKind::Gqa;
  bool keys_rotated = false;
  std::uint32_t page_tokens = 4;
  std::uint32_t page_count = 200;
  std::uint32_t host_page_count = 0;
  WritePolicy write_policy = WritePolicy::WriteBack;
  PageTables page_tables = PageTables::Rows;
  std::uint32_t cascade_levels_max = 1;
  std::uint32_t layer_window = 0;  // of every second layer; 0: none
};

class EngineSchedule : public ::testing::Test {
 protected:
  void open(const CacheShape& shape) {
    weights_ = tiny_engine::make_weights({.attention = shape.attention, .layer_window = shape.layer_window}, 5);
    CacheConfig config{
        .layout = ModelLayout::create("tiny", {tiny_engine::cache_group(weights_.shape, shape.keys_rotated)}).value(),
        .page = {.page_tokens = shape.page_tokens},
        .device = {.page_count = shape.page_count},
        .host = {.page_count = shape.host_page_count, .write_policy = shape.write_policy},
        .sequence_count_max = 24,
        .context_tokens_max = 120,
        .step_tokens_max = 256,
        .tree_tokens_max = 32,
        .plan = {.page_tables = shape.page_tables, .cascade_levels_max = shape.cascade_levels_max}};
    if (shape.layer_window > 0) config.plan.layer_windows = {shape.layer_window};
    cache_ = Cache::open(std::move(config)).value();
    engine_ = std::make_unique<Engine>(
        weights_, tiny_engine::PoolMemory{.geometry = cache_->geometry(), .bytes = cache_->device_memory()},
        tiny_engine::EngineOptions{.sequence_count_max = 24,
                                   .row_columns = (120 + shape.page_tokens - 1) / shape.page_tokens,
                                   .keys_rotated = shape.keys_rotated,
                                   .applies_copies = false});
    space_ = cache_->key_space({.model = "tiny"}).value();
  }

  /// Runs the requests and compares every output with the oracle.
  void run(std::vector<Request> requests, SchedulerOptions options = {}) {
    scheduler_ = std::make_unique<Scheduler>(*cache_, *engine_, space_, std::move(options));
    std::size_t output_count = 0;
    for (Request& request : requests) {
      output_count += request.beam_width > 0 ? request.beam_width : request.sample_count;
      scheduler_->add(std::move(request));
    }
    const Status status = scheduler_->run();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    ASSERT_EQ(scheduler_->outputs().size(), output_count);
    for (const Output& output : scheduler_->outputs()) {
      const Request& request = scheduler_->requests()[output.request_index];
      const std::size_t made = output.tokens.size() - output.prompt_tokens;
      EXPECT_LE(made, request.new_tokens_max);
      if (!request.end_token) {
        EXPECT_EQ(made, request.new_tokens_max);
      }
      const tiny_engine::Verdict verdict = tiny_engine::check_output(weights_, request, output);
      EXPECT_EQ(verdict.equal_count, verdict.token_count) << "request " << output.request_index;
      EXPECT_LE(verdict.difference, kLogitTolerance) << "request " << output.request_index;
    }
    const Status invariants = cache_->check_invariants();
    EXPECT_TRUE(invariants.has_value()) << invariants.error().message;
    EXPECT_EQ(cache_->stats()->sequence_count, 0U);
  }

  /// Guesses what the oracle says, but every fifth time something else.
  [[nodiscard]] tiny_engine::Guess half_right() const {
    return [this](std::span<const TokenId> so_far, std::uint32_t count) {
      const TokenId best = tiny_engine::pick_best(
          tiny_engine::oracle_logits(weights_, tiny_engine::OracleText{.tokens = so_far}).back());
      const bool is_wrong = so_far.size() % 5 == 0;
      std::vector<TokenId> guesses = {is_wrong ? (best + 1) % 48 : best, (best + 2) % 48};
      guesses.resize(count);
      return guesses;
    };
  }
  /// Four prompts, two of which share a beginning.
  [[nodiscard]] static std::vector<Request> four_requests() {
    const std::vector<TokenId> system = seeded_text(1, 30);
    std::vector<Request> requests(4);
    for (std::uint64_t i = 0; i < 4; ++i) {
      requests[i].prompt = join(i < 2 ? system : seeded_text(20 + i, 11), seeded_text(10 + i, 7 + (5 * i)));
    }
    return requests;
  }

  Weights weights_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Scheduler> scheduler_;
  KeySpaceId space_;
};

TEST_F(EngineSchedule, GreedyTokensAreTheOraclesForBothKindsOfAttention) {
  for (const AttentionKind attention : {AttentionKind::Gqa, AttentionKind::Mla}) {
    for (const bool keys_rotated : {true, false}) {
      open({.attention = attention, .keys_rotated = keys_rotated});
      run(four_requests());
    }
  }
}

TEST_F(EngineSchedule, GreedyTokensAreTheOraclesForEveryFormOfPageTables) {
  for (const PageTables page_tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    for (const std::uint32_t levels : {1U, 3U}) {
      if (page_tables == PageTables::Block && levels > 1) continue;
      open({.page_tables = page_tables, .cascade_levels_max = levels});
      run(four_requests());
    }
  }
}

TEST_F(EngineSchedule, PromptsInChunksGiveTheSameTokens) {
  open({});
  run(four_requests(), {.step_tokens_max = 9, .chunk_tokens_max = 5});
  EXPECT_GT(scheduler_->counts().step_count, 20U);
}

TEST_F(EngineSchedule, LayersWithWindowsOfTheirOwnGiveTheOraclesTokensHoweverPromptsAreCut) {
  for (const PageTables page_tables : {PageTables::Rows, PageTables::Csr}) {
    for (const std::uint32_t chunk_tokens : {1U, 5U, 100U}) {
      open({.page_tables = page_tables, .cascade_levels_max = 2, .layer_window = 6});
      std::vector<Request> requests = four_requests();
      requests[0].speculation = Speculation::Tree;
      requests[1].speculation = Speculation::Chain;
      run(std::move(requests), {.chunk_tokens_max = chunk_tokens, .guess = half_right()});
    }
  }
}

TEST_F(EngineSchedule, ASecondTurnComputesOnlyWhatIsNew) {
  open({.page_tokens = 4});
  run({{.prompt = seeded_text(1, 40)}});
  const std::vector<TokenId> first_turn = scheduler_->outputs().front().tokens;
  run({{.prompt = join(first_turn, seeded_text(2, 10))}});
  EXPECT_GE(scheduler_->counts().found_tokens, first_turn.size() - 4);
}

TEST_F(EngineSchedule, APromptThatIsCachedWholeRunsItsLastTokenAgain) {
  open({.page_tokens = 4});
  run({{.prompt = seeded_text(1, 40)}});
  run({{.prompt = seeded_text(1, 40)}});
  EXPECT_EQ(scheduler_->counts().found_tokens, 40U);
}

TEST_F(EngineSchedule, TwoStepsInFlightGiveTheSameTokens) {
  open({});
  run(four_requests(), {.steps_in_flight = 2});
}

TEST_F(EngineSchedule, AStepInFlightIsIgnoredWhenItsSequenceHasEnded) {
  open({});
  std::vector<Request> requests = four_requests();
  run(requests);
  // Each request ends with the fourth token it gives without an end token.
  for (const Output& output : scheduler_->outputs()) {
    requests[output.request_index].end_token = output.tokens[output.prompt_tokens + 3];
  }
  run(requests, {.steps_in_flight = 2});
  for (const Output& output : scheduler_->outputs()) {
    EXPECT_LE(output.tokens.size(), output.prompt_tokens + 4);
    EXPECT_EQ(output.tokens.back(), *requests[output.request_index].end_token);
  }
}

TEST_F(EngineSchedule, SampledTokensAreTheOraclesWhateverTheSteps) {
  for (const std::uint32_t steps_in_flight : {1U, 2U}) {
    open({});
    std::vector<Request> requests = four_requests();
    for (Request& request : requests) {
      request.temperature = 0.8;
      request.seed = 77 + request.prompt.size();
    }
    run(std::move(requests), {.chunk_tokens_max = 8, .steps_in_flight = steps_in_flight});
  }
}

TEST_F(EngineSchedule, SamplesShareTheirPromptAndDiffer) {
  open({.page_tokens = 8, .cascade_levels_max = 2});
  run({{.prompt = seeded_text(3, 21), .new_tokens_max = 12, .temperature = 1.2, .seed = 9, .sample_count = 5},
       {.prompt = join(seeded_text(3, 21), seeded_text(4, 5)),
        .new_tokens_max = 9,
        .temperature = 1.2,
        .seed = 8,
        .sample_count = 3}},
      {.steps_in_flight = 2});
  EXPECT_EQ(scheduler_->counts().fork_count, 6U);
  EXPECT_GT(scheduler_->counts().copied_pages, 0U);
  EXPECT_NE(scheduler_->outputs()[0].tokens, scheduler_->outputs()[1].tokens);
}

TEST_F(EngineSchedule, BeamsAreTheOracles) {
  for (const AttentionKind attention : {AttentionKind::Gqa, AttentionKind::Mla}) {
    open({.attention = attention, .cascade_levels_max = 3});
    const Request request{.prompt = seeded_text(6, 19), .new_tokens_max = 10, .beam_width = 4};
    run({request, {.prompt = seeded_text(7, 9)}});
    const std::vector<std::vector<TokenId>> expected = tiny_engine::oracle_beams(weights_, request);
    for (const Output& output : scheduler_->outputs()) {
      if (output.request_index == 0) {
        EXPECT_EQ(output.tokens, expected[output.sample_index]);
      }
    }
    EXPECT_GT(scheduler_->counts().fork_count, 3U);
  }
}

TEST_F(EngineSchedule, AChainOfDraftsGivesTheGreedyTokensInFewerSteps) {
  open({});
  std::vector<Request> requests = four_requests();
  for (Request& request : requests) request.speculation = Speculation::Chain;
  run(std::move(requests), {.guess = half_right()});
  EXPECT_GT(scheduler_->counts().accepted_tokens, 10U);
  EXPECT_LT(scheduler_->counts().accepted_tokens, scheduler_->counts().drafted_tokens);
  EXPECT_LT(scheduler_->counts().step_count, 14U);
}

TEST_F(EngineSchedule, TokenTreesGiveTheGreedyTokensOverSeveralRounds) {
  for (const bool keys_rotated : {true, false}) {
    open({.keys_rotated = keys_rotated, .cascade_levels_max = 2});
    std::vector<Request> requests = four_requests();
    for (Request& request : requests) request.speculation = Speculation::Tree;
    run(std::move(requests), {.steps_in_flight = 2, .guess = half_right()});
    EXPECT_GT(scheduler_->counts().accepted_tokens, 10U);
    EXPECT_GT(scheduler_->counts().moved_tokens, 10U);
  }
}

TEST_F(EngineSchedule, SpeculationAndPlainRequestsShareSteps) {
  open({.page_tables = PageTables::Csr, .cascade_levels_max = 2});
  std::vector<Request> requests = four_requests();
  requests[0].speculation = Speculation::Tree;
  requests[1].speculation = Speculation::Chain;
  requests[2].sample_count = 2;
  requests[2].temperature = 1.0;
  run(std::move(requests), {.steps_in_flight = 2});
}

TEST_F(EngineSchedule, PreemptedSequencesGoOnWithTheSameTokens) {
  for (const Preempt preempt : {Preempt::Drop, Preempt::Save}) {
    for (const std::uint32_t steps_in_flight : {1U, 2U}) {
      open({.page_tokens = 4, .page_count = 32, .host_page_count = 60});
      std::vector<Request> requests(6);
      for (std::uint64_t i = 0; i < 6; ++i) {
        requests[i] = {.prompt = seeded_text(i, 18), .new_tokens_max = 24, .temperature = 0.7, .seed = i};
      }
      run(std::move(requests), {.steps_in_flight = steps_in_flight, .preempt = preempt});
      EXPECT_GT(scheduler_->counts().preempt_count, 1U);
    }
  }
}

TEST_F(EngineSchedule, PagesThatWentToTheHostAndBackGiveTheOraclesTokens) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
    for (const std::uint32_t steps_in_flight : {1U, 2U}) {
      open({.page_tokens = 4, .page_count = 40, .host_page_count = 300, .write_policy = policy});
      const SchedulerOptions options{.running_max = 3, .steps_in_flight = steps_in_flight, .preempt = Preempt::Save};
      // Three times the same conversations: what came first has left the device by the time it is wanted again.
      for (int round = 0; round < 3; ++round) {
        std::vector<Request> requests(10);
        for (std::uint64_t i = 0; i < 10; ++i) {
          requests[i] = {.prompt = join(seeded_text(i % 3, 20), seeded_text(10 + i, 15)), .new_tokens_max = 6};
          if (i == 4) requests[i].speculation = tiny_engine::Speculation::Tree;
        }
        SchedulerOptions guessing = options;
        guessing.guess = half_right();
        run(std::move(requests), std::move(guessing));
      }
      // Selective keeps what is used again while it is on the device, which few of these pages are.
      const bool keeps_all = policy != WritePolicy::Selective;
      EXPECT_GT(cache_->stats()->stored_page_total, 5U);
      EXPECT_GE(cache_->stats()->host_hit_tokens, keeps_all ? 100U : 0U);
      EXPECT_GE(cache_->stats()->loaded_page_total, keeps_all ? 25U : 0U);
      EXPECT_EQ(cache_->stats()->load_outcomes[static_cast<std::size_t>(TransferOutcome::Failed)], 0U);
    }
  }
}

TEST_F(EngineSchedule, AWindowWithASinkGivesTheOraclesTokens) {
  for (const PageTables page_tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    open({.page_tables = page_tables});
    run({{.prompt = seeded_text(1, 26), .new_tokens_max = 40, .window = {.visible_tokens = 16, .sink_tokens = 3}},
         {.prompt = seeded_text(2, 9), .new_tokens_max = 40, .window = {.visible_tokens = 16}},
         {.prompt = join(seeded_text(1, 26), seeded_text(4, 3)), .new_tokens_max = 20}},
        {.chunk_tokens_max = 11, .steps_in_flight = 2});
    // What is cached without a window may begin a sequence that has one.
    run({{.prompt = join(seeded_text(1, 26), seeded_text(4, 3)), .window = {.visible_tokens = 20, .sink_tokens = 5}}});
    EXPECT_GT(scheduler_->counts().found_tokens, 0U);
  }
}

}  // namespace
}  // namespace quire
