// SPDX-License-Identifier: Apache-2.0
//
// Several steps in flight on layouts of several groups: steps are computed behind later plans, and meanwhile others are
// aborted, discarded or finished, and sequences are forked and ended.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "cache_groups_fixture.h"

namespace quire {
namespace {

class CacheGroupsFlightTest : public CacheGroupsTest {
 protected:
  void open_with_steps(CacheConfig config, std::uint32_t steps_in_flight_max) {
    config.steps_in_flight_max = steps_in_flight_max;
    open(std::move(config));
  }
  /// Computes a step of which the entry of one request did not happen.
  void run_but(const GroupsFlight& flight, const GroupsRequest& request) {
    EXPECT_EQ(engine_->start(flight.step), "");
    const AttentionPlan& plan = flight.step.plan;
    for (std::size_t place = 0; place < plan.entries.size(); ++place) {
      const std::uint32_t index = plan.entries[place].entry_index;
      const GroupsWork& work = flight.works[index];
      if (work.request == &request) {
        engine_->spoil(plan, place);
        continue;
      }
      PrefixNumbers numbers;
      for (const TokenId token : work.request->tokens) numbers.add(token);
      EXPECT_EQ(engine_->run(plan, place, numbers, flight.views[index]), "");
    }
    EXPECT_TRUE(cache_->apply_saves(flight.step).has_value());
  }
  /// Everything that is on its way between device and host arrives; no bytes are moved.
  void end_transfers() {
    for (int i = 0; i < 8; ++i) {
      std::array<TransferPlan, 16> plans;
      std::vector<Completion> done;
      const std::span<const TransferPlan> taken = cache_->take_transfers(plans).value();
      for (const TransferPlan& plan : taken) {
        done.push_back({.id = plan.id, .kind = plan.kind, .good_pages = static_cast<std::uint32_t>(plan.pages.size())});
      }
      ASSERT_TRUE(cache_->apply(done, 0).has_value());
    }
  }
};

// Steps that did not happen

TEST_F(CacheGroupsFlightTest, AStateIsFilledBehindTheStepsThatMayStillWriteIt) {
  CacheConfig config = groups_config({full_group(), state_group(0, every(64))}, 8, 32, 256);
  config.host = {.page_count = 64,
                 .group_page_counts = {64, 8},
                 .write_policy = WritePolicy::WriteThrough,
                 .external_mover = true};
  open_with_steps(std::move(config), 4);
  run_request(token_range(5'000, 40));
  end_transfers();
  ASSERT_TRUE(cache_->reclaim(UINT32_MAX).has_value());

  GroupsRequest large = start(token_range(9'000, 208));
  run_all(large);
  GroupsRequest request = start(token_range(0, 33));
  run_all(request);
  append(request, {700, 701});
  const GroupsFlight first = plan({{&request, 1}});
  const GroupsFlight second = plan({{&request, 1}});
  abort(first);
  EXPECT_EQ(view(request).computed_tokens, 32U);  // what the snapshot has
  const GroupsFlight again = plan({{&request}});
  ASSERT_FALSE(again.step.plan.state_copies.empty());
  // There is no room for what is to be loaded. To make some, copies of pages that are planned are made at once.
  const std::vector<TokenId> tokens = token_range(5'000, 41);
  const Sequence waiting = cache_->begin(space_, {.tokens = tokens}).value();
  expect_error(cache_->admit(waiting), ErrorCode::Unavailable, "pages");
  spoil(second);
  finish({.step = second.step, .works = {{.request = &request, .discard = true}}});
  run(again);
  finish(again);
  decode(request, 10);
}

// The middle one of three did not happen: what was computed before it counts, and what comes behind does not.
TEST_F(CacheGroupsFlightTest, AStepThatIsAbortedBetweenOthersTakesTheLaterOnesOfItsSequences) {
  open_with_steps(
      groups_config({full_group(), window_group(12), ring_group(10, 30, every(16)), state_group(20, every(16))}, 8, 64,
                    256),
      4);
  GroupsRequest request = start(token_range(0, 60));
  GroupsRequest other = start(token_range(500, 60));
  const GroupsFlight first = plan({{&request, 5}, {&other, 3}});
  const GroupsFlight second = plan({{&request, 6}});
  const GroupsFlight third = plan({{&other, 4}, {&request, 2}});
  run(first);
  abort(second);
  EXPECT_EQ(view(request).steps_in_flight, 1U);
  EXPECT_EQ(view(other).steps_in_flight, 2U);
  finish(first);
  EXPECT_EQ(view(request).computed_tokens, 5U);
  // Its slot keeps earlier versions: it goes on at once, behind a step that still writes what did not happen.
  const GroupsFlight again = plan({{&request, 7}});
  EXPECT_EQ(again.step.plan.entries[0].position, 5U);
  run_but(third, request);
  finish({.step = third.step, .works = {{.request = &other}, {.request = &request, .discard = true}}});
  run(again);
  finish(again);
  run_all(request, {}, 9);
  run_all(other, {}, 9);
  decode(request, 20);
  decode(other, 20);
}

TEST_F(CacheGroupsFlightTest, AnEntryThatIsDiscardedTakesTheLaterOnesOfItsSequenceAlone) {
  open_with_steps(groups_config({full_group(), window_group(12), state_group(0, every(16))}, 8, 64, 256), 4);
  GroupsRequest request = start(token_range(0, 60));
  GroupsRequest other = start(token_range(500, 60));
  run_all(other, {560}, 16);
  step({{&request, 16}});
  step({{&request, 10}});
  const GroupsFlight first = plan({{&request, 2}, {.request = &other, .sampled = {561}}});
  const GroupsFlight second = plan({{&request, 2}});
  run(first);
  finish(
      {.step = first.step, .works = {{.request = &request, .discard = true}, {.request = &other, .sampled = {561}}}});
  EXPECT_EQ(view(request).computed_tokens, 16U);  // back to its snapshot
  EXPECT_EQ(view(other).computed_tokens, 61U);
  const GroupsFlight again = plan({{&request}, {.request = &other, .sampled = {562}}});
  spoil(second);
  finish({.step = second.step, .works = {{.request = &request, .discard = true}}});
  run(again);
  finish(again);
  run_all(request);
  decode(request, 20);
  decode(other, 20);
}

// Windows that steps in flight read are not used again before these are finished, whoever gives them back.
TEST_F(CacheGroupsFlightTest, ASequenceThatEndsLeavesItsPagesToTheStepsInFlight) {
  CacheConfig config = groups_config({full_group(), window_group(12), state_group(1, every(16))}, 8, 64, 256);
  config.device.group_page_counts = {0, 12, 8};
  open_with_steps(std::move(config), 3);
  GroupsRequest request = start(token_range(0, 40));
  run_all(request, {40}, 16);
  const GroupsFlight flight = plan({{&request}});
  GroupsRequest child = fork(request, 40);
  append(child, {41});
  ASSERT_TRUE(cache_->end(request.sequence).has_value());
  GroupsRequest other = start(token_range(500, 30));
  const GroupsFlight later = plan({{&other, 16}, {&child}});
  run(flight);
  run(later);
  finish(flight);
  finish(later);
  run_all(other, {}, 9);
  decode(child, 20);
  decode(other, 20);
  end(child);
  end(other);
  expect_empty_after_reset();
}

// Forks

TEST_F(CacheGroupsFlightTest, AForkOfARunningSequenceHasWhatWasComputedAndNoMore) {
  for (const std::uint32_t length : {37U, 39U, 40U, 41U}) {
    open_with_steps(
        groups_config({full_group(), window_group(12), ring_group(10, 14, every(16)), state_group(3, every(16))}, 8, 64,
                      256),
        4);
    GroupsRequest request = start(token_range(0, length));
    run_all(request);
    append(request, {700, 701});
    const GroupsFlight first = plan({{&request, 1}});
    const GroupsFlight second = plan({{&request, 1}});
    expect_error(cache_->fork(request.sequence, length + 1), ErrorCode::InvalidArgument, "more in flight");
    GroupsRequest child = fork(request, length);
    append(child, {800, 801, 802});
    GroupsRequest grandchild = fork(child, length);
    append(grandchild, {900});
    run(first);
    const GroupsFlight of_forks = plan({{&grandchild}, {&child, 2}});
    finish(first);
    GroupsRequest later = fork(request, length + 1);
    append(later, {950});
    run(second);
    run(of_forks);
    finish(second);
    finish(of_forks);
    expect_invariants();
    for (GroupsRequest* each : {&request, &child, &grandchild, &later}) {
      run_all(*each);
      decode(*each, 20);
    }
  }
}

TEST_F(CacheGroupsFlightTest, AForkOutlivesTheStepsOfItsSourceThatDidNotHappen) {
  for (const bool is_computed : {false, true}) {
    open_with_steps(
        groups_config({full_group(), window_group(12), ring_group(10, 14, every(16)), state_group(3, every(16))}, 8, 64,
                      256),
        4);
    GroupsRequest request = start(token_range(0, 37));
    run_all(request);
    append(request, {700, 701});
    const GroupsFlight first = plan({{&request, 1}});
    const GroupsFlight second = plan({{&request, 1}});
    GroupsRequest child = fork(request, 36);
    append(child, {800});
    const GroupsFlight of_fork = plan({{&child}});
    if (is_computed) run(first);
    abort(first);
    EXPECT_EQ(view(request).computed_tokens, 37U);
    spoil(second);
    run(of_fork);
    finish({.step = second.step, .works = {{.request = &request, .discard = true}}});
    finish(of_fork);
    expect_invariants();
    decode(child, 20);
    run_all(request);
    decode(request, 20);
  }
}

TEST_F(CacheGroupsFlightTest, AForkWhoseFirstStepIsAbortedIsComputedAgain) {
  open_with_steps(groups_config({full_group(), window_group(12), state_group(0, every(16))}, 8, 64, 256), 4);
  GroupsRequest request = start(token_range(0, 37));
  run_all(request);
  GroupsRequest child = fork(request, 37);
  append(child, {800, 801});
  append(request, {700});
  const GroupsFlight of_both = plan({{&child, 1}, {&request}});
  const GroupsFlight later = plan({{&child, 1}});
  abort(of_both);
  spoil(later);
  finish({.step = later.step, .works = {{.request = &child, .discard = true}}});
  EXPECT_EQ(view(child).computed_tokens, 32U);  // its snapshot
  expect_invariants();
  run_all(child);
  run_all(request);
  decode(child, 20);
  decode(request, 20);
}

}  // namespace
}  // namespace quire
