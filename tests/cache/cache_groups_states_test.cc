// SPDX-License-Identifier: Apache-2.0
//
// State slots: who has one and what is in it, snapshots and where they are taken, rewinds, forks, drafts, and steps
// that did not happen.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "cache_groups_fixture.h"

namespace quire {
namespace {

class CacheGroupsStateTest : public CacheGroupsTest {
 protected:
  [[nodiscard]] std::vector<StateCopy> copies_of(const GroupsFlight& flight) {
    return {flight.step.plan.state_copies.begin(), flight.step.plan.state_copies.end()};
  }
  [[nodiscard]] std::vector<StateCopy> saves_of(const GroupsFlight& flight) {
    return {flight.step.plan.state_saves.begin(), flight.step.plan.state_saves.end()};
  }
};

// Slots

TEST_F(CacheGroupsStateTest, WithoutAFreeSlotNobodyIsAdmittedAndNothingChanges) {
  CacheConfig config = groups_config({full_group(), state_group(0, every(32))}, 8, 64, 256);
  config.device.state_slot_count = 2;
  open(std::move(config));
  GroupsRequest a = start(token_range(0, 40));
  GroupsRequest b = start(token_range(1'000, 40));
  EXPECT_NE(view(a).state_slot, view(b).state_slot);
  EXPECT_EQ(group_stats(1).slot_count, 2U);
  EXPECT_EQ(group_stats(1).used_slots, 2U);
  run_all(a);
  run_all(b);
  GroupsRequest c{.tokens = token_range(0, 80)};
  c.sequence = cache_->begin(space_, {.tokens = c.tokens}).value();
  const std::string before = dump({&a, &b, &c});
  expect_error(cache_->admit(c.sequence), ErrorCode::Unavailable, "device.state_slot_count");
  expect_error(cache_->fork(a.sequence, 40), ErrorCode::Unavailable, "device.state_slot_count");
  EXPECT_EQ(dump({&a, &b, &c}), before);

  ASSERT_TRUE(cache_->preempt(a.sequence, Preempt::Drop).has_value());
  EXPECT_EQ(group_stats(1).used_slots, 1U);
  ASSERT_TRUE(cache_->admit(c.sequence).has_value());
  run_all(c);
  expect_error(cache_->resume(a.sequence), ErrorCode::Unavailable, "device.state_slot_count");
  end(b);
  EXPECT_EQ(cache_->resume(a.sequence)->matched_tokens, 32U);
  run_all(a);
  decode(a, 20);
  decode(c, 20);
}

TEST_F(CacheGroupsStateTest, ASlotIsGivenBackOnce) {
  open(groups_config({full_group(), state_group(0, every(16))}, 8, 64, 128));
  GroupsRequest request = start(token_range(0, 20));
  GroupsRequest other = start(token_range(100, 20));
  EXPECT_EQ(group_stats(1).used_slots, 2U);
  end(request);
  EXPECT_EQ(group_stats(1).used_slots, 1U);
  const std::string before = dump({&other});
  expect_error(cache_->end(request.sequence), ErrorCode::InvalidArgument, "ended");
  expect_error(cache_->preempt(request.sequence, Preempt::Drop), ErrorCode::InvalidArgument, "ended");
  EXPECT_EQ(dump({&other}), before);
  run_all(other);
}

TEST_F(CacheGroupsStateTest, ASlotStartsFromTheDeclaredBytesWhoeverHadItBefore) {
  CacheGroup state = state_group(1, every(64));
  state.components.push_back(
      {.name = "position", .element = ElementType::Int32, .sharding = Sharding::Replicated, .dim = 3});
  state.components.back().initial = int32_pattern(-1);
  CacheConfig config = groups_config({full_group(), state}, 8, 64, 256);
  config.device.state_slot_count = 1;
  open(std::move(config));
  const auto positions = [&](std::uint32_t version) {
    return cache_->state_memory() +
           cache_->state_slots().offset_of({.part_index = 0, .version_index = version, .component_index = 1});
  };
  const std::vector<std::int32_t> initial(3, -1);
  for (TokenId first : {0, 1'000}) {
    GroupsRequest request = start(token_range(first, 20));
    const GroupsFlight flight = compute({{&request}});
    EXPECT_EQ(copies_of(flight),
              (std::vector<StateCopy>{{.kind = StateCopyKind::Reset, .group = 1, .source = 0, .target = 0}}));
    for (const std::uint32_t version : {0U, 1U}) {
      EXPECT_EQ(std::memcmp(positions(version), initial.data(), 12), 0);
      std::memset(positions(version), 0x55, 12);  // what the model makes of it
    }
    finish(flight);
    end(request);
  }
}

// Rings

TEST_F(CacheGroupsStateTest, ARingHoldsTokensByPositionHoweverLongTheChunk) {
  open(groups_config({full_group(), ring_group(10, 13, every(32))}, 8, 64, 256));
  for (const std::uint32_t chunk : {1U, 5U, 13U, 29U, 60U}) {
    GroupsRequest request = start(token_range(static_cast<TokenId>(chunk) * 1'000, 60));
    while (view(request).pending_tokens > 0) {
      const GroupsFlight flight = compute({{&request, std::min(chunk, view(request).pending_tokens)}});
      const AttentionPlanEntry& entry = flight.step.plan.entries[0];
      for (std::uint32_t i = 0; i < entry.token_count; ++i) {
        const std::int64_t slot = (std::int64_t{entry.state_slot} * 13) + ((entry.position + i) % 13);
        EXPECT_EQ(flight.step.plan.groups[1].append_slots[i], i + 13 >= entry.token_count ? slot : kNoSlot);
      }
      finish(flight);
    }
    decode(request, 30);
    end(request);
  }
}

TEST_F(CacheGroupsStateTest, ARingIsFoundThroughASnapshotInOrderOfPosition) {
  open(groups_config({full_group(), ring_group(10, 13, every(32))}, 8, 64, 256));
  run_request(token_range(0, 100));
  GroupsRequest request = start(with_tail(token_range(0, 70), 1, 40));
  EXPECT_EQ(request.admission.matched_tokens, 64U);
  run_all(request, {}, 7);
  decode(request, 30);
}

TEST_F(CacheGroupsStateTest, ARingKeepsItsSinkHoweverLongTheChunk) {
  for (const std::uint32_t sink : {1U, 3U, 9U}) {
    const CacheGroup ring = with_sink(ring_group(10, 13 + sink, every(32)), sink);
    open(groups_config({full_group(), ring}, 8, 64, 256));
    for (const std::uint32_t chunk : {1U, 2U, 5U, 13U, 29U, 60U}) {
      GroupsRequest request = start(token_range(static_cast<TokenId>(chunk) * 1'000, 60));
      run_all(request, {}, chunk);
      decode(request, 30);
      end(request);
    }
  }
}

TEST_F(CacheGroupsStateTest, ARingsSinkComesWithItsSnapshot) {
  const CacheGroup ring = with_sink(ring_group(10, 17, every(32)), 4);
  open(groups_config({full_group(), ring}, 8, 64, 256));
  run_request(token_range(0, 100));
  GroupsRequest request = start(with_tail(token_range(0, 70), 1, 40));
  EXPECT_EQ(request.admission.matched_tokens, 64U);
  run_all(request, {}, 7);
  GroupsRequest child = fork(request, 108);  // three rows have gone
  expect_error(cache_->fork(request.sequence, 105), ErrorCode::InvalidArgument, "group 'ring' no longer has");
  append(child, {900});
  decode(child, 20);
  decode(request, 20);
  rewind(request, 3);
  append(request, {901});
  step({{.request = &request, .drafts = {1, 2, 3}, .accepted = 1, .sampled = {902}}});
  decode(request, 20);
}

TEST_F(CacheGroupsStateTest, ASequenceShorterThanTheSinkIsForkedAndRewound) {
  const CacheGroup ring = with_sink(ring_group(10, 17, every(32)), 4);
  open(groups_config({full_group(), ring}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 3));
  run_all(request);
  GroupsRequest child = fork(request, 2);
  append(child, {900});
  decode(child, 30);
  append(request, {901, 902});
  run_all(request);
  rewind(request, 3);
  append(request, {903});
  decode(request, 30);
}

TEST_F(CacheGroupsStateTest, ATailOfACompressorIsFoundAtItsBoundaries) {
  open(groups_config({compressed_group(4), tail_group(4, 4, 12, every(32))}, 8, 64, 256));
  run_request(token_range(0, 100));
  GroupsRequest request = start(with_tail(token_range(0, 70), 1, 41));
  EXPECT_EQ(request.admission.matched_tokens, 64U);
  run_all(request, {}, 7);
  decode(request, 30);
}

// A compressor without overlap starts anew wherever an entry ends.
TEST_F(CacheGroupsStateTest, AStateThatStartsAnewNeedsNoSnapshot) {
  CacheConfig config =
      groups_config({compressed_group(4), tail_group(4, 0, 8, {.rule = RetentionRule::None})}, 8, 64, 256);
  config.partial_reuse_min_tokens = 1;
  open(std::move(config));
  run_request(token_range(0, 100));
  EXPECT_EQ(group_stats(1).page_count, 0U);
  GroupsRequest request = start(with_tail(token_range(0, 70), 1, 41));
  EXPECT_EQ(request.admission.matched_tokens, 68U);
  run_all(request, {}, 7);
  decode(request, 30);
}

// Snapshots

TEST_F(CacheGroupsStateTest, PlansSayWhatIsRestoredAndWhatIsSaved) {
  open(groups_config({state_group(0, every(32)), full_group()}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 80));
  EXPECT_EQ(view(request).next_checkpoint, 32U);
  const GroupsFlight first = compute({{&request}});
  EXPECT_EQ(first.step.plan.entries[0].token_count, 32U);
  EXPECT_EQ(first.step.plan.entries[0].checkpoint, 32U);
  ASSERT_EQ(saves_of(first).size(), 1U);
  EXPECT_EQ(saves_of(first)[0].kind, StateCopyKind::Save);
  EXPECT_EQ(saves_of(first)[0].group, 0);
  EXPECT_EQ(saves_of(first)[0].source, static_cast<std::int32_t>(view(request).state_slot));
  EXPECT_EQ(saves_of(first)[0].position, 32);
  const std::int32_t page = saves_of(first)[0].target;
  finish(first);
  const GroupsFlight second = compute({{&request, 10}});
  EXPECT_TRUE(copies_of(second).empty());
  EXPECT_TRUE(saves_of(second).empty());
  EXPECT_EQ(second.step.plan.entries[0].checkpoint, 0U);
  finish(second);

  GroupsRequest other = start(with_tail(token_range(0, 32), 1, 8));
  EXPECT_EQ(other.admission.matched_tokens, 32U);
  EXPECT_EQ(group_stats(0).pinned_pages, 1U);
  const GroupsFlight restored = compute({{&other}});
  EXPECT_EQ(copies_of(restored), (std::vector<StateCopy>{{.kind = StateCopyKind::Restore,
                                                          .group = 0,
                                                          .source = page,
                                                          .target = static_cast<std::int32_t>(view(other).state_slot),
                                                          .position = 32}}));
  EXPECT_EQ(group_stats(0).pinned_pages, 1U) << "it is read until the step is over";
  finish(restored);
  EXPECT_EQ(group_stats(0).pinned_pages, 0U);
  EXPECT_EQ(group_stats(0).restored_snapshot_total, 1U);
}

TEST_F(CacheGroupsStateTest, WithoutAPageForItASnapshotIsLeftOut) {
  CacheConfig config = groups_config({full_group(), state_group(0, every(16))}, 8, 64, 256);
  config.device.group_page_counts = {0, 1};
  open(std::move(config));
  GroupsRequest a = start(token_range(0, 40));
  GroupsRequest b = start(token_range(1'000, 40));
  step({{&a}, {&b}});  // both want one
  EXPECT_EQ(group_stats(1).sealed_page_total, 1U);
  EXPECT_EQ(group_stats(1).skipped_snapshot_total, 1U);
  run_all(a);
  run_all(b);
}

// Snapshots of several groups are of use together only.
TEST_F(CacheGroupsStateTest, AllGroupsHaveASnapshotOrNone) {
  CacheConfig config =
      groups_config({full_group(), state_group(0, every(16)), ring_group(10, 10, every(16))}, 8, 64, 256);
  config.device.group_page_counts = {0, 8, 1};
  open(std::move(config));
  GroupsRequest a = start(token_range(0, 40));
  GroupsRequest b = start(token_range(1'000, 40));
  step({{&a}, {&b}});
  EXPECT_EQ(group_stats(1).sealed_page_total, 1U);
  EXPECT_EQ(group_stats(2).sealed_page_total, 1U);
  EXPECT_EQ(group_stats(1).free_pages, 7U);
  run_all(a);
  run_all(b);
}

TEST_F(CacheGroupsStateTest, FinishingAStepBeforeItsStatesAreSavedIsRefused) {
  open(groups_config({full_group(), state_group(0, every(16))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 40));
  const StepEntry entry{&request.sequence};
  const Step step = cache_->plan_step({&entry, 1})->step.value();
  expect_error(cache_->apply_saves(step), ErrorCode::InvalidArgument, "apply_copies comes before");
  ASSERT_EQ(engine_->start(step), "");
  const StepResult result;
  expect_error(cache_->finish_step(step, {&result, 1}), ErrorCode::InvalidArgument, "apply_saves");
  ASSERT_TRUE(cache_->abort_step(step).has_value());
  run_all(request);
}

// Rewind

TEST_F(CacheGroupsStateTest, ARewindGoesBackAsManyTokensAsThereAreVersions) {
  open(groups_config({full_group(), state_group(3, every(64))}, 8, 64, 256));
  for (std::uint32_t count = 0; count <= 3; ++count) {
    GroupsRequest request = start(token_range(static_cast<TokenId>(count) * 1'000, 30));
    run_all(request);
    rewind(request, count);
    append(request, {700, 701});
    run_all(request);
    decode(request, 10);
    end(request);
  }
}

TEST_F(CacheGroupsStateTest, ARewindBeyondTheVersionsIsRefusedAndSaysWhatToRaise) {
  open(groups_config({full_group(), state_group(3, every(64))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  const std::string before = dump({&request});
  expect_error(cache_->rewind(request.sequence, 4), ErrorCode::InvalidArgument, "group 'state'");
  expect_error(cache_->rewind(request.sequence, 4), ErrorCode::InvalidArgument, "declare a slot_history of 4 or more");
  EXPECT_EQ(dump({&request}), before);
  rewind(request, 3);  // these versions are written; those before are not
  expect_error(cache_->rewind(request.sequence, 1), ErrorCode::InvalidArgument,
               "begin() a sequence with these 26 tokens");
  append(request, {700});
  run_all(request);
}

TEST_F(CacheGroupsStateTest, ARewindBeyondARingIsRefusedAndSaysWhatToRaise) {
  open(groups_config({full_group(), ring_group(10, 14, every(64))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  expect_error(cache_->rewind(request.sequence, 6), ErrorCode::InvalidArgument, "declare slot_entries of 15 or more");
  rewind(request, 5);
  append(request, {700});
  run_all(request);
  decode(request, 20);
}

TEST_F(CacheGroupsStateTest, ARewindToTheBeginningStartsTheStateAnew) {
  open(groups_config({full_group(), state_group(0, every(64)), ring_group(10, 10, every(64))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  rewind(request, 30);
  append(request, {700, 701, 702});
  run_all(request);
  decode(request, 20);
}

TEST_F(CacheGroupsTest, ARewindBehindAWindowIsRefusedUnlessItKeepsMore) {
  CacheConfig config = groups_config({full_group(), window_group(16)}, 8, 64, 256);
  config.window_rewind_tokens = 8;
  open(std::move(config));
  GroupsRequest request = start(token_range(0, 100));
  run_all(request);
  expect_error(cache_->rewind(request.sequence, 40), ErrorCode::InvalidArgument, "group 'window'");
  expect_error(cache_->rewind(request.sequence, 40), ErrorCode::InvalidArgument, "window_rewind_tokens");
  rewind(request, 8);
  append(request, {700});
  decode(request, 40);
}

// The last token does not run again where there is state: what it saw is not asked for.
TEST_F(CacheGroupsTest, ARewindNeedsWhatTheNextTokenSees) {
  for (const bool has_state : {false, true}) {
    for (const std::uint32_t window_tokens : {1U, 8U}) {
      std::vector<CacheGroup> groups = {full_group(), window_group(window_tokens)};
      if (has_state) groups.push_back(state_group(8, kNone));
      CacheConfig config = groups_config(groups, 1, 128, 64);
      config.window_rewind_tokens = 2;
      open(std::move(config));
      GroupsRequest request = start(token_range(0, 30));
      run_all(request, {}, 1);
      const std::uint32_t least = has_state ? 27 : 28;  // the first 20, or 27, are gone
      const std::uint32_t first = least - window_tokens - (has_state ? 0 : 1);
      const std::string missing = "[" + std::to_string(first) + ", " + std::to_string(first + 1) + ")";
      if (window_tokens > 1 || !has_state) {
        expect_error(cache_->fork(request.sequence, least - 1), ErrorCode::InvalidArgument, missing);
        expect_error(cache_->rewind(request.sequence, 31 - least), ErrorCode::InvalidArgument, missing);
      }
      GroupsRequest child = fork(request, least);
      append(child, {900});
      rewind(request, 30 - least);
      append(request, {901});
      for (GroupsRequest* each : {&child, &request}) decode(*each, 20);
      end(request);
      end(child);
      expect_empty_after_reset();
    }
  }
}

TEST_F(CacheGroupsTest, ARewindIntoAPageThatAWindowOfOneHasLeftStartsAnotherOne) {
  open(groups_config({full_group(), window_group(1), state_group(8, kNone)}, 8, 64, 128));
  GroupsRequest request = start(token_range(0, 20));
  run_all(request, {}, 1);
  GroupsRequest child = fork(request, 14);
  append(child, {900});
  rewind(request, 7);
  append(request, {901});
  for (GroupsRequest* each : {&request, &child}) {
    decode(*each, 20);
    expect_invariants();
  }
  end(request);
  end(child);
  expect_empty_after_reset();
}

// Forks

TEST_F(CacheGroupsStateTest, AForkAndItsSourceGoOnIndependently) {
  open(groups_config({full_group(), window_group(12), state_group(2, every(64)), ring_group(10, 13, every(64))}, 8, 64,
                     256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  GroupsRequest child = fork(request, 30);
  GroupsRequest earlier = fork(request, 28);
  append(request, {500});
  append(child, {600});
  append(earlier, {700, 701});
  step({{&request}, {&child}, {&earlier}});
  for (TokenId i = 1; i < 30; ++i) {
    append(request, {500 + i});
    append(child, {600 + i});
    append(earlier, {701 + i});
    step({{&request}, {&child}, {&earlier}});
  }
}

TEST_F(CacheGroupsStateTest, AForkOfAForkBeforeAnyPlanHasTheSameState) {
  open(groups_config({full_group(), state_group(2, every(64))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  GroupsRequest child = fork(request, 30);
  GroupsRequest grandchild = fork(child, 29);
  end(child);
  end(request);
  append(grandchild, {600});
  run_all(grandchild);
  decode(grandchild, 20);
}

// The slot of a sequence that has ended is taken by a fork of another, while copies of it are still to be made.
TEST_F(CacheGroupsStateTest, AForkOfAForkIsRightWhenTheSlotOfTheFirstIsTakenMeanwhile) {
  open(groups_config({full_group(), state_group(0, every(64))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  GroupsRequest other = start(token_range(1'000, 30));
  step({{&request}, {&other}});
  GroupsRequest child = fork(request, 30);
  end(request);
  GroupsRequest of_other = fork(other, 30);  // has the slot of `request`
  GroupsRequest grandchild = fork(child, 30);
  append(child, {600});
  append(of_other, {601});
  append(grandchild, {602});
  step({{&child}, {&of_other}, {&grandchild}});
}

// Two sequences change places by way of a third slot, again and again.
TEST_F(CacheGroupsStateTest, SlotsMayChangeHandsInCirclesUntilTooManyCopiesWait) {
  CacheConfig config = groups_config({full_group(), state_group(0, every(64))}, 8, 64, 256);
  config.device.state_slot_count = 3;
  open(std::move(config));
  GroupsRequest a = start(token_range(0, 30));
  GroupsRequest b = start(token_range(1'000, 30));
  step({{&a}, {&b}});
  for (int round = 0; round < 3; ++round) {
    int moved = 0;
    for (bool is_refused = false; !is_refused; ++moved) {
      GroupsRequest& moving = moved % 2 == 0 ? a : b;
      Result<Sequence> taken = cache_->fork(moving.sequence, static_cast<std::uint32_t>(moving.tokens.size()));
      is_refused = !taken.has_value();
      if (is_refused) {
        expect_error(taken, ErrorCode::Unavailable, "wait for the next step");
      } else {
        moving.sequence = std::move(*taken);  // and the old one is dropped
      }
    }
    EXPECT_GT(moved, 8);
    append(a, {600});
    append(b, {601});
    step({{&a}, {&b}});
  }
}

// Of sequences that come and go without a step, one copy is left.
TEST_F(CacheGroupsStateTest, AnyNumberOfForksMayComeAndGoBetweenTwoPlans) {
  open(groups_config({full_group(), state_group(0, every(64))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request);
  for (int i = 0; i < 1'000; ++i) {
    GroupsRequest child = fork(request, 30);
    GroupsRequest sibling = fork(request, 30);
    GroupsRequest grandchild = fork(child, 30);
    end(i % 2 == 0 ? child : request);
    request = std::move(grandchild);
  }
  append(request, {600});
  run_all(request);
}

TEST_F(CacheGroupsStateTest, AForkOfWhatIsStillToBeRestoredIsRestoredAsWell) {
  open(groups_config({full_group(), state_group(0, every(16))}, 8, 64, 256));
  run_request(token_range(0, 40));
  GroupsRequest request = start(with_tail(token_range(0, 32), 1, 9));
  EXPECT_EQ(request.admission.matched_tokens, 32U);
  GroupsRequest child = fork(request, 32);
  append(child, {700});
  step({{&request}, {&child}});
  decode(request, 10);
  decode(child, 10);
}

// Drafts

TEST_F(CacheGroupsStateTest, DraftsThatAreRejectedAreTakenBackAndTheSequenceGoesOn) {
  for (std::uint32_t accepted = 0; accepted <= 3; ++accepted) {
    open(groups_config({full_group(), window_group(12), state_group(3, every(16)), ring_group(10, 13, every(16))}, 8,
                       64, 256));
    GroupsRequest request = start(token_range(0, 30));
    run_all(request, {30});
    for (TokenId i = 0; i < 12; ++i) {
      step({{.request = &request,
             .drafts = {500 + (i * 10), 501 + (i * 10), 502 + (i * 10)},
             .accepted = accepted,
             .sampled = {503 + (i * 10)}}});
      expect_invariants();
    }
    end(request);
    // What it left behind is right, too.
    GroupsRequest later = start(request.tokens);
    EXPECT_GE(later.admission.matched_tokens, 16U);
    run_all(later);
    end(later);
  }
}

TEST_F(CacheGroupsStateTest, AChainOfDraftsLongerThanTheVersionsIsRefused) {
  open(groups_config({full_group(), state_group(3, every(64))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request, {30});
  const std::string before = dump({&request});
  const StepEntry entry{.sequence = &request.sequence, .draft_count = 4};
  expect_error(cache_->plan_step({&entry, 1}), ErrorCode::InvalidArgument,
               "raise its slot_history, now 3, as config.layout = layout.with_drafts(4) does: a state slot then takes");
  EXPECT_EQ(dump({&request}), before);
  step({{.request = &request, .drafts = {500, 501, 502}, .accepted = 1, .sampled = {600}}});
  decode(request, 5);
}

TEST_F(CacheGroupsStateTest, LayoutsWithDraftsHaveRoomForThem) {
  const std::vector<std::vector<CacheGroup>> all = {
      {full_group(), state_group(0, every(64))},
      {full_group(), ring_group(10, 10, every(64))},
      {full_group(), state_group(0, every(64)), named(ring_group(12, 12, every(64)), "other")}};
  for (const std::vector<CacheGroup>& groups : all) {
    CacheConfig config = groups_config(groups, 8, 64, 256);
    config.layout = config.layout.with_drafts(4).value();
    open(std::move(config));
    GroupsRequest request = start(token_range(0, 30));
    run_all(request, {30});
    for (std::uint32_t accepted = 0; accepted <= 4; ++accepted) {
      step({{.request = &request, .drafts = {500, 501, 502, 503}, .accepted = accepted, .sampled = {600}}});
    }
    decode(request, 5);
    end(request);
  }
}

TEST_F(CacheGroupsStateTest, AChainOfDraftsLongerThanARingHasRoomForIsRefused) {
  open(groups_config({full_group(), ring_group(10, 12, every(64))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request, {30});
  const StepEntry entry{.sequence = &request.sequence, .draft_count = 4};
  expect_error(cache_->plan_step({&entry, 1}), ErrorCode::InvalidArgument, "raise its slot_entries, now 12");
  step({{.request = &request, .drafts = {500, 501, 502}, .accepted = 0, .sampled = {600}}});
  decode(request, 5);
}

TEST_F(CacheGroupsStateTest, ACheckpointInTheMiddleOfAcceptedDraftsIsSavedByTheNextStep) {
  open(groups_config({full_group(), state_group(4, every(16))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request, {30});
  step({{.request = &request, .drafts = {31, 32, 33}, .accepted = 3, .sampled = {34}}});
  const GroupsFlight flight = compute({{&request}});
  ASSERT_EQ(copies_of(flight).size(), 1U);
  EXPECT_EQ(copies_of(flight)[0].kind, StateCopyKind::Save);
  EXPECT_EQ(copies_of(flight)[0].position, 32);
  finish(flight);
  end(request);
  EXPECT_EQ(run_request(with_tail(token_range(0, 34), 1, 5)), 32U);
}

// Steps that did not happen

TEST_F(CacheGroupsStateTest, ASlotThatAnAbortedStepMayHaveWrittenIsFilledAgain) {
  open(groups_config({full_group(), window_group(12), state_group(0, every(16))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request, {30});
  decode(request, 8);  // 38 computed; a snapshot is behind 32
  const GroupsFlight flight = compute({{&request}});
  ASSERT_TRUE(cache_->abort_step(flight.step).has_value());
  EXPECT_EQ(view(request).computed_tokens, 32U);
  expect_invariants();
  const GroupsFlight again = compute({{&request}});
  ASSERT_EQ(copies_of(again).size(), 1U);
  EXPECT_EQ(copies_of(again)[0].kind, StateCopyKind::Restore);
  EXPECT_EQ(copies_of(again)[0].position, 32);
  finish(again);
  decode(request, 20);
}

TEST_F(CacheGroupsStateTest, WithoutASnapshotAnAbortedSequenceBeginsAnew) {
  open(groups_config({full_group(), window_group(12), state_group(0, kNone)}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request, {30});
  step({{.request = &request, .discard = true}});
  EXPECT_EQ(view(request).computed_tokens, 0U);
  EXPECT_EQ(view(request).pending_tokens, 31U);
  run_all(request, {31}, 9);
  decode(request, 20);
}

TEST_F(CacheGroupsStateTest, WithEarlierVersionsAnAbortedStepCostsNothing) {
  open(groups_config({full_group(), window_group(12), state_group(2, every(64)), ring_group(10, 12, every(64))}, 8, 64,
                     256));
  GroupsRequest request = start(token_range(0, 30));
  run_all(request, {30});
  const GroupsFlight flight = compute({{&request}});
  ASSERT_TRUE(cache_->abort_step(flight.step).has_value());
  EXPECT_EQ(view(request).computed_tokens, 30U);
  run_all(request, {31});
  decode(request, 20);
}

TEST_F(CacheGroupsStateTest, ASequenceWithStepsInFlightWaitsForThemAfterOneThatDidNotHappen) {
  open(groups_config({full_group(), state_group(0, every(16))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 60));
  const GroupsFlight first = compute({{&request, 10}});
  const GroupsFlight second = compute({{&request, 6}});
  ASSERT_TRUE(cache_->abort_step(second.step).has_value());
  const StepEntry entry{&request.sequence};
  expect_error(cache_->plan_step({&entry, 1}), ErrorCode::Unavailable, "one that did not happen");
  finish(first);
  run_all(request);
  decode(request, 10);
}

TEST_F(CacheGroupsStateTest, ASnapshotOfAStepThatDidNotHappenIsNobodys) {
  open(groups_config({full_group(), state_group(0, every(16))}, 8, 64, 256));
  GroupsRequest request = start(token_range(0, 30));
  const GroupsFlight flight = compute({{&request}});
  EXPECT_EQ(saves_of(flight).size(), 1U);
  ASSERT_TRUE(cache_->abort_step(flight.step).has_value());
  EXPECT_EQ(group_stats(1).free_pages, group_stats(1).page_count);
  EXPECT_EQ(lookup(token_range(0, 30)).matched_tokens, 0U);
  run_all(request);
}

}  // namespace
}  // namespace quire
