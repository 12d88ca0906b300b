// SPDX-License-Identifier: Apache-2.0
//
// Prefill in one cache, decode in another: what one sends is what the other reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sequence_changes_fixture.h"

namespace quire {
namespace {

class CachePeers : public SequenceChangesTest {
 protected:
  void SetUp() override {
    SequenceChangesTest::SetUp();
    receiver_ = open_cache(test_config(4, 32));
    receiver_space_ = receiver_->key_space({.model = "test"}).value();
  }
  /// What a plan sends goes over: tokens computed by the step, and those it lists.
  void send(const Step& step) {
    const GroupPlan& group = step.plan.groups[0];
    for (const SendRun& run : group.sends) {
      for (std::int32_t i = 0; i < run.token_count; ++i) put(run.remote_slot + i, read(run.local_slot + i));
    }
    for (std::uint32_t i = 0; i < step.plan.token_count && !group.remote_slots.empty(); ++i) {
      if (group.remote_slots[i] == kNoSlot) continue;
      EXPECT_EQ(group.receivers[i], 5);
      put(group.remote_slots[i], read(step.plan.append_slots[i]));
    }
  }
  void put(std::int64_t slot, std::uint64_t bytes) {
    std::memcpy(receiver_->device_memory() + (slot * kTestTokenBytes), &bytes, sizeof(bytes));
    ++sent_;
  }
  [[nodiscard]] Sequence receiving(std::span<const TokenId> tokens) {
    Sequence sequence = receiver_->begin(receiver_space_, {.tokens = tokens}).value();
    EXPECT_TRUE(receiver_->admit(sequence));
    return sequence;
  }

  /// A step of a sequence of this cache and three more tokens, while a late peer writes to these slots of it.
  void run_beside(std::span<const SlotRun> late_slots, Live& live) {
    append(live, token_range(900, 3));
    const Step step = plan({{&live.sequence}});
    const auto write_late = [&] {
      for (const SlotRun& run : late_slots) {
        for (std::int64_t i = 0; i < run.token_count; ++i) write(run.first_slot + i, ++late_value_);
      }
    };
    write_late();
    compute(step, 0, live.tokens);
    write_late();
    finish(step, {{}});
    write_late();
  }

  /// Sequences that are handed every page that can be had.
  void run_others_beside(std::span<const SlotRun> late_slots) {
    for (TokenId text = 100; text < 800; text += 100) {
      Live other = admitted(token_range(text, 16));
      run_beside(late_slots, other);
      run_beside(late_slots, other);
      end(other);
    }
    EXPECT_GT(stats().evicted_page_total, 0U);
  }

  std::unique_ptr<Cache> receiver_;
  KeySpaceId receiver_space_;
  std::uint32_t sent_ = 0;
  std::uint64_t late_value_ = 0;
};

TEST_F(CachePeers, WhatIsCachedIsSentByTheNextStepAlone) {
  Live live = admitted(token_range(0, 20));
  run(live, {}, 6);
  const SlotRun slots{.first_slot = 40, .token_count = 20};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  Step first = plan({{&live.sequence, 6}});
  ASSERT_TRUE(cache_->abort_step(first));
  first = plan({{&live.sequence, 6}});
  const Step second = plan({{&live.sequence}});
  compute(first, 0, live.tokens);
  compute(second, 0, live.tokens);
  send(first);
  EXPECT_EQ(sent_, 12U);
  send(second);
  EXPECT_EQ(sent_, 20U);
  finish(first, {{}});
  finish(second, {{}});
}

TEST_F(CachePeers, WhatAMarkedSequenceReceivesIsSentOn) {
  Live live = admitted(token_range(0, 16));
  run(live, {}, 5);
  Sequence last = receiving(live.tokens);
  const std::span<const SlotRun> remote_slots = receiver_->prepare_receive(last, 16).value();
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, remote_slots, 5));
  const std::span<const SlotRun> slots = cache_->prepare_receive(live.sequence, 6).value();
  std::uint32_t position = 5;
  for (const SlotRun& run : slots) {
    for (std::int64_t i = 0; i < run.token_count; ++i) write(run.first_slot + i, value(live.tokens, position++));
  }
  ASSERT_TRUE(cache_->finish_receive(live.sequence));
  const Step step = plan({{&live.sequence}});
  compute(step, 0, live.tokens);
  send(step);
  EXPECT_EQ(sent_, 16U);  // five computed before the mark, six received, five of this step
  finish(step, {{}});
  ASSERT_TRUE(receiver_->finish_receive(last));
  const StepEntry entry{&last};
  const Step again = *receiver_->plan_step({&entry, 1})->step;
  ByteEngine(*receiver_).run(again.plan.entries[0], 0, live.tokens);
  ASSERT_TRUE(receiver_->finish_step(again, std::vector<StepResult>(1)));
}

TEST_F(CachePeers, WhatOneFindsWhenItComesBackIsSentToo) {
  Live live = admitted(token_range(0, 10));
  const SlotRun slots{.first_slot = 40, .token_count = 10};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Drop));
  EXPECT_EQ(run_request(token_range(0, 8)), 0U);
  EXPECT_EQ(resume(live.sequence)->matched_tokens, 8U);
  const Step step = plan({{&live.sequence}});
  compute(step, 0, live.tokens);
  send(step);
  EXPECT_EQ(sent_, 10U);
  finish(step, {{}});
}

TEST_F(CachePeers, ATailThatIsGivenUpIsSentWhenItIsComputed) {
  open(changes_config(4));
  EXPECT_EQ(run_request(token_range(0, 12)), 0U);
  std::vector<TokenId> tokens = token_range(0, 11);
  tokens.insert(tokens.end(), {70, 71, 72, 73, 74});
  Live live = admitted(tokens);
  EXPECT_EQ(view(live).computed_tokens, 11U);
  const SlotRun slots{.first_slot = 40, .token_count = 16};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  const Step step = plan({{&live.sequence}});  // too few pages for the copy beside its source
  compute(step, 0, live.tokens);
  ASSERT_EQ(step.plan.groups[0].sends.size(), 1U);
  EXPECT_EQ(step.plan.groups[0].sends[0].token_count, 8);
  send(step);
  EXPECT_EQ(sent_, 16U);
  finish(step, {{}});
}

TEST_F(CachePeers, OneThatHasNothingLeftToComputeSendsWhenItsLastTokenRunsAgain) {
  Live live = computed(token_range(0, 8));
  EXPECT_EQ(view(live).pending_tokens, 0U);
  const SlotRun slots{.first_slot = 40, .token_count = 8};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  EXPECT_EQ(view(live).pending_tokens, 1U);
  const Step step = plan({{&live.sequence}});
  send(step);
  EXPECT_EQ(sent_, 8U);
  finish(step, {{}});
}

TEST_F(CachePeers, NothingIsReceivedWhereADiscardedStepMayStillWrite) {
  Live live = admitted(token_range(0, 10));
  const Step first = plan({{&live.sequence, 2}});
  const Step second = plan({{&live.sequence, 3}});
  ASSERT_TRUE(cache_->abort_step(first));
  expect_error(cache_->prepare_receive(live.sequence, 4), ErrorCode::Unavailable,
               "sequence 0: step 2 is in flight and has discarded entries");
  finish(second, {{}});
  EXPECT_TRUE(cache_->prepare_receive(live.sequence, 4).has_value());
}

TEST_F(CachePeers, NothingIsReceivedWhereAStepInFlightMovesTokens) {
  std::vector<std::byte> memory(std::size_t{1} << 16U);
  CacheConfig config = changes_config(8);
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_memory = memory.data();
  config.host = {};
  open(std::move(config));
  const auto step_of = [&](const Sequence& sequence, std::span<const std::int32_t> parents = {}) {
    const StepEntry entry{.sequence = &sequence, .tree_parents = parents};
    return *cache_->plan_step({&entry, 1})->step;
  };
  const std::vector<std::int32_t> parents = {-1, -1, 1};
  const std::vector<TokenId> values = {10, 11, 12};
  Sequence tree = begin_admitted(token_range(0, 6));
  ASSERT_TRUE(cache_->finish_step(step_of(tree), std::vector<StepResult>(1)));
  ASSERT_TRUE(cache_->finish_step(step_of(tree, parents), std::vector<StepResult>{{.tokens = values}}));
  ASSERT_TRUE(cache_->commit_tree(tree, 2));
  const Sequence other = begin_admitted(token_range(100, 5));
  const Step carries_moves = step_of(other);
  ASSERT_TRUE(cache_->end(tree));  // what it moves may be evicted, and given to the receiver
  const Sequence receiver = begin_admitted(token_range(200, 20));
  expect_error(cache_->prepare_receive(receiver, 20), ErrorCode::Unavailable, "is in flight and moves tokens");
  ASSERT_TRUE(cache_->finish_step(carries_moves, std::vector<StepResult>(1)));
  EXPECT_TRUE(cache_->prepare_receive(receiver, 20).has_value());
}

// A late peer may write at any moment. Its pages stay the receiving sequence's while another one does its work.
TEST_F(CachePeers, WhatALatePeerMayStillWriteIsNobodyElses) {
  open(changes_config(24));
  Live first = computed(token_range(0, 8));
  end(first);
  Live late = admitted(token_range(0, 22));
  const Result<std::span<const SlotRun>> given = cache_->prepare_receive(late.sequence, 14);
  ASSERT_TRUE(given.has_value()) << given.error().message;
  const std::vector<SlotRun> slots(given->begin(), given->end());
  Live live = admitted(token_range(0, 22));
  EXPECT_EQ(view(live).computed_tokens, 8U);
  run_beside(slots, live);
  run_others_beside(slots);
  run_beside(slots, live);
  end(live);
  ASSERT_TRUE(cache_->abort_receive(late.sequence));  // it is gone
  end(late);
  expect_all_free();
}

TEST_F(CachePeers, AForkOfALateReceiverHasWhatWasComputedAndGoesOn) {
  open(changes_config(24));
  Live late = computed(token_range(0, 10));
  append(late, token_range(10, 12));
  const Result<std::span<const SlotRun>> given = cache_->prepare_receive(late.sequence, 12);
  ASSERT_TRUE(given.has_value()) << given.error().message;
  const std::vector<SlotRun> slots(given->begin(), given->end());
  EXPECT_EQ(slots.front().first_slot % page_tokens(), 2);  // the peer writes behind what was computed, in the same page
  Live live = forked(late, 10);
  append(live, token_range(10, 12));
  run_beside(slots, live);
  run_others_beside(slots);
  run_beside(slots, live);
  end(late);  // it is gone
  expect_good(live);
  end(live);
  expect_all_free();
}

TEST_F(CachePeers, AMarkEndsWhenAllOfItWasSent) {
  Live live = computed(token_range(0, 8));
  const SlotRun slots{.first_slot = 40, .token_count = 9};
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  append(live, {30});
  finish(plan({{&live.sequence}}), {{}});
  append(live, {31});
  const Step step = plan({{.sequence = &live.sequence, .draft_count = 2}});
  EXPECT_TRUE(step.plan.groups[0].remote_slots.empty());
  finish(step, {{}});
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {&slots, 1}, 5));
  ASSERT_TRUE(cache_->mark_send(live.sequence, 0, {}, 5));
  append(live, {32});
  EXPECT_TRUE(plan({{&live.sequence}}).plan.groups[0].remote_slots.empty());
}

}  // namespace
}  // namespace quire
