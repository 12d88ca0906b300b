// SPDX-License-Identifier: Apache-2.0
//
// Windows of sequences where the layout has several groups. Tokens behind one store other numbers than those of the
// same text without it, so that whoever finds what should not have been cached reads something wrong.
#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"

namespace quire {
namespace {

std::vector<GroupMix> own_window_mixes() {
  const CacheGroup full = unrotated(full_group());
  const CacheGroup entries = unrotated(compressed_group(4));
  return {{"nothing else", {full}},
          {"a small window", {full, window_group(5)}},
          {"a large window", {full, window_group(30)}},
          {"a window with a sink", {full, with_sink(window_group(12), 11)}},
          {"entries", {full, entries}},
          {"entries alone", {entries}},
          {"a state", {full, state_group(2, every(8))}},
          {"a ring", {ring_group(10, 14, every(16)), full}},
          {"all",
           {window_group(30, every(16)), entries, full, named(window_group(7), "near"), ring_group(10, 14, every(8)),
            state_group(3, every(8)), tail_group(4, 0, 8, kNone)}}};
}

class CacheGroupsOwnWindows : public CacheGroupsTest {
 protected:
  void open_mix(GroupMix& mix, std::uint32_t rewind_tokens = 3) {
    CacheConfig config = groups_config(std::move(mix.groups), 4, 96, 128);
    config.window_rewind_tokens = rewind_tokens;
    config.partial_reuse_min_tokens = 1;
    open(std::move(config));
  }
  [[nodiscard]] GroupsRequest windowed(std::vector<TokenId> tokens, const Window& window) {
    GroupsRequest request{.tokens = std::move(tokens)};
    request.sequence = cache_->begin(space_, {.tokens = request.tokens}).value();
    set_window(request, window);
    const Result<Admission> admission = cache_->admit(request.sequence);
    EXPECT_TRUE(admission.has_value());
    request.admission = *admission;
    return request;
  }
  [[nodiscard]] std::uint32_t held_of_history(const GroupsRequest& request) const {
    std::uint32_t count = 0;
    for (const PageId page : view(request).pages()) count += page == kNullPage ? 0 : 1;
    return count;
  }
};

TEST_F(CacheGroupsOwnWindows, TheHistoryHoldsTheSinkAndTheWindowAndOtherGroupsWhatTheyDeclare) {
  for (const std::uint32_t chunk : {1U, 7U, UINT32_MAX}) {
    for (GroupMix& mix : own_window_mixes()) {
      SCOPED_TRACE(mix.name);
      open_mix(mix, 0);
      GroupsRequest request = windowed(token_range(0, 70), {.visible_tokens = 14, .sink_tokens = 4});
      run_all(request, {500}, chunk);
      decode(request, 9);
      expect_invariants();
      // The last of the 79 computed tokens saw [0, 4) and [69, 79).
      EXPECT_EQ(held_of_history(request), 1U + 3U);
      end(request);
      expect_empty_after_reset();
    }
  }
}

TEST_F(CacheGroupsOwnWindows, WhatDoesNotSeeEverythingIsCachedInNoGroup) {
  for (const std::uint32_t chunk : {1U, 5U, 16U}) {
    for (GroupMix& mix : own_window_mixes()) {
      SCOPED_TRACE(mix.name);
      open_mix(mix);
      GroupsRequest request = windowed(token_range(0, 60), {.visible_tokens = 18, .sink_tokens = 4});
      run_all(request, {}, chunk);
      end(request);
      for (std::uint32_t g = 0; g < group_count(); ++g) {
        if (!has_pages(cache_->config().layout.groups()[g])) continue;
        EXPECT_LE(group_stats(g).sealed_pages, 4U) << g;
      }
      EXPECT_LE(run_request(token_range(0, 60)), 18U);  // and reads what it has found
      EXPECT_GE(run_request(token_range(0, 60)), 56U);
      expect_invariants();
    }
  }
}

TEST_F(CacheGroupsOwnWindows, WhatAWaitingSequenceFindsIsCutToTheWindowInAllGroups) {
  for (GroupMix& mix : own_window_mixes()) {
    SCOPED_TRACE(mix.name);
    open_mix(mix);
    EXPECT_EQ(run_request(token_range(0, 60), {}, 4), 0U);
    GroupsRequest request = windowed(token_range(0, 60), {.visible_tokens = 22, .sink_tokens = 3});
    EXPECT_LE(request.admission.matched_tokens, 22U);
    EXPECT_GE(request.admission.matched_tokens, 16U);
    run_all(request, {500}, 9);
    decode(request, 5);
    end(request);
    EXPECT_GE(run_request(token_range(0, 60)), 56U);
  }
}

// A window group that looks further back than the sequence holds pages that hang on the tree's.
TEST_F(CacheGroupsOwnWindows, PagesOfTheTreeStayAsLongAsAWindowGroupHoldsWhatHangsOnThem) {
  open(groups_config({unrotated(full_group()), window_group(30)}, 4, 96, 128));
  GroupsRequest request = start(token_range(0, 41));
  run_all(request, {500});
  set_window(request, {.visible_tokens = 8, .sink_tokens = 2});
  EXPECT_EQ(held_of_history(request), 1U + 3U);  // [0, 2) and [35, 41)
  EXPECT_EQ(cache_->reclaim(96).value(), 0U);
  expect_invariants();
  decode(request, 20);
  EXPECT_EQ(cache_->reclaim(96).value(), 0U);
  decode(request, 20);
  EXPECT_GT(cache_->reclaim(96).value(), 7U);  // the window has left the tree
  decode(request, 3);
  EXPECT_EQ(run_request(token_range(0, 41)), 4U);  // the sink's
  end(request);
  expect_empty_after_reset();
}

TEST_F(CacheGroupsOwnWindows, ForksHaveTheWindowAndGoOnInAllGroups) {
  for (GroupMix& mix : own_window_mixes()) {
    SCOPED_TRACE(mix.name);
    open_mix(mix);
    GroupsRequest request = windowed(token_range(0, 45), {.visible_tokens = 20, .sink_tokens = 6});
    run_all(request, {500}, 6);
    GroupsRequest same = fork(request, 46);
    EXPECT_EQ(view(same).window.visible_tokens, 20U);
    const Result<Sequence> earlier = cache_->fork(request.sequence, 30);
    expect_error(earlier, ErrorCode::InvalidArgument, "group '");
    GroupsRequest begin = fork(request, 0);
    append(begin, token_range(0, 26));
    run_all(begin, {}, 5);
    for (int i = 0; i < 8; ++i) {
      decode(request, 1, 600 + i);
      decode(same, 2, 700 + i);
      expect_invariants();
    }
    end(request);
    decode(same, 12, 900);
    GroupsRequest last = fork(same, static_cast<std::uint32_t>(same.tokens.size()));
    end(same);
    decode(last, 5, 1'000);
    end(last);
    end(begin);
    EXPECT_LE(run_request(token_range(0, 45)), 20U);
    expect_empty_after_reset();
  }
}

// The fork's pages of the history are its own from then on, and those of the window group are not.
TEST_F(CacheGroupsOwnWindows, AForkIsRewoundIntoAPageOfWhichItsSourceHasLeftTheHistory) {
  open(groups_config({unrotated(full_group()), window_group(30)}, 4, 96, 128));
  GroupsRequest request = start(token_range(0, 30), {.publish = Publish::None});
  run_all(request);
  GroupsRequest child = fork(request, 30);
  set_window(request, {.visible_tokens = 4});
  rewind(child, 13);
  expect_invariants();
  append(child, token_range(800, 9));
  run_all(child);
  decode(request, 9, 600);
  decode(child, 9, 700);
  end(request);
  end(child);
  expect_empty_after_reset();
}

TEST_F(CacheGroupsOwnWindows, ARewoundSequenceGoesOnInAllGroups) {
  for (GroupMix& mix : own_window_mixes()) {
    SCOPED_TRACE(mix.name);
    open_mix(mix);
    GroupsRequest request = windowed(token_range(0, 50), {.visible_tokens = 17, .sink_tokens = 5});
    run_all(request, {500}, 8);
    for (int i = 0; i < 9; ++i) {
      decode(request, 2, 600 + (10 * i));
      const std::string before = dump({&request});
      if (!cache_->rewind(request.sequence, 2)) {
        EXPECT_EQ(dump({&request}), before);
        continue;
      }
      request.tokens.resize(request.tokens.size() - 2);
      append(request, {700, 701, 702});
      run_all(request);
      expect_invariants();
    }
    expect_error(cache_->rewind(request.sequence, 30), ErrorCode::InvalidArgument, "group '");
    end(request);
    expect_empty_after_reset();
  }
}

// A state that a step may have spoilt is computed again, under the window.
TEST_F(CacheGroupsOwnWindows, AnAbortedStepLeavesASequenceThatGoesOn) {
  for (GroupMix& mix : own_window_mixes()) {
    SCOPED_TRACE(mix.name);
    open_mix(mix);
    GroupsRequest request = windowed(token_range(0, 50), {.visible_tokens = 17, .sink_tokens = 5});
    run_all(request, {500}, 8);
    append(request, token_range(800, 12));
    const GroupsFlight flight = plan({{.request = &request, .token_count = 10}});
    spoil(flight);
    abort(flight);
    expect_invariants();
    run_all(request, {501}, 6);
    decode(request, 5, 600);
    end(request);
    EXPECT_LE(run_request(token_range(0, 50)), 17U);
  }
}

TEST_F(CacheGroupsOwnWindows, ADroppedSequenceIsComputedAgainUnderItsWindow) {
  for (GroupMix& mix : own_window_mixes()) {
    SCOPED_TRACE(mix.name);
    open_mix(mix);
    GroupsRequest request = windowed(token_range(0, 50), {.visible_tokens = 17, .sink_tokens = 5});
    run_all(request, {500}, 8);
    ASSERT_TRUE(cache_->preempt(request.sequence, Preempt::Drop).has_value());
    expect_invariants();
    const Result<Admission> admission = cache_->resume(request.sequence);
    ASSERT_TRUE(admission.has_value()) << admission.error().message;
    EXPECT_LE(admission->matched_tokens, 17U);
    run_all(request, {501}, 9);
    decode(request, 4);
    end(request);
    expect_empty_after_reset();
  }
}

TEST_F(CacheGroupsOwnWindows, ASavedSequenceComesBackWithItsWindow) {
  for (GroupMix& mix : own_window_mixes()) {
    SCOPED_TRACE(mix.name);
    CacheConfig config = groups_config(std::move(mix.groups), 4, 96, 128);
    config.host.page_count = 64;
    config.host.write_policy = WritePolicy::WriteThrough;
    open(std::move(config));
    const auto settle = [&] {
      while (cache_->stats().value().transfers_in_flight > 0) {
        ASSERT_TRUE(cache_->apply(cache_->poll().value(), 0).has_value());
        std::this_thread::yield();
      }
    };
    GroupsRequest request = windowed(token_range(0, 50), {.visible_tokens = 17, .sink_tokens = 5});
    run_all(request, {500}, 8);
    for (int i = 0; i < 3; ++i) {
      settle();
      const Status saved = cache_->preempt(request.sequence, Preempt::Save);
      ASSERT_TRUE(saved.has_value()) << saved.error().message;
      settle();
      expect_invariants();
      EXPECT_GE(cache_->reclaim(96).value(), 0U);
      settle();
      const Result<Admission> admission = cache_->resume(request.sequence);
      ASSERT_TRUE(admission.has_value()) << admission.error().message;
      settle();
      expect_invariants();
      decode(request, 6, 600 + (10 * i));
    }
    end(request);
    settle();
    const Lookup found = lookup(token_range(0, 50));
    EXPECT_LE(found.matched_tokens + found.host_tokens, 17U);
  }
}

// A snapshot that accepted drafts have passed hangs on a page that the window may have left by then.
TEST_F(CacheGroupsOwnWindows, ACheckpointThatDraftsHavePassedIsLeftOutWithItsPage) {
  open(groups_config({unrotated(full_group()), state_group(4, every(2))}, 1, 96, 90));
  GroupsRequest request = windowed(token_range(0, 7), {.visible_tokens = 8, .sink_tokens = 7});
  run_all(request, {500}, 1);
  step({{.request = &request, .drafts = {501, 502, 503}, .accepted = 3, .sampled = {504}}});
  expect_invariants();
  decode(request, 12, 600);
  expect_invariants();
  end(request);
  std::vector<TokenId> again = token_range(0, 7);
  again.insert(again.end(), {500, 501, 502, 503});
  EXPECT_LE(run_request(std::move(again)), 8U);
  expect_empty_after_reset();
}

// Lines of window groups have all columns, those of the history the listed ones only.
TEST_F(CacheGroupsOwnWindows, BlockTablesHaveRoomForTheColumnsOfWindowGroups) {
  CacheConfig config = groups_config({unrotated(full_group()), window_group(9)}, 4, 96, 128);
  config.plan.page_tables = PageTables::Block;
  config.device.memory = DeviceMemory::None;
  cache_ = open_cache(std::move(config));
  space_ = cache_->key_space({.model = "test"}).value();
  GroupsRequest request = windowed(token_range(0, 50), {.visible_tokens = 8, .sink_tokens = 2});
  for (const std::uint32_t count : {41U, 8U}) {
    const StepEntry entry{&request.sequence, count};
    const Step step = cache_->plan_step({&entry, 1})->step.value();
    ASSERT_TRUE(cache_->finish_step(step, std::vector<StepResult>(1)).has_value());
  }
  const StepEntry entry{&request.sequence, 1};
  expect_error(cache_->plan_step({&entry, 1}, {.entries = 1, .tokens = 1, .columns = 12}), ErrorCode::InvalidArgument,
               "shape.columns is 12: this step needs 13");
  const Step step = cache_->plan_step({&entry, 1})->step.value();
  EXPECT_EQ(step.plan.shape.columns, 13U);
  EXPECT_EQ(step.plan.seq_lens[0], 8);
  EXPECT_EQ(step.plan.context_lens[0], 50);
  EXPECT_EQ(step.plan.query_positions[0], 7);
  expect_error(block_table_view(step.plan, 0), ErrorCode::Unsupported, "has outgrown its window");
  const BlockTableView near = block_table_view(step.plan, 1).value();
  EXPECT_EQ(near.seq_lens[0], 50);
  EXPECT_EQ(near.block_table.size(), 13U);
  EXPECT_NE(near.block_table[12], 0);
  ASSERT_TRUE(cache_->finish_step(step, std::vector<StepResult>(1)).has_value());
}

}  // namespace
}  // namespace quire
