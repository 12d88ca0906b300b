// SPDX-License-Identifier: Apache-2.0
//
// Steps of sequences whose pages are still on their way from the host, in layouts of several groups.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "groups_tiers_fixture.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

constexpr SequenceOptions kGroupsAhead{.plan_while_loading = true};

class CacheGroupsAheadTest : public CacheGroupsTiersTest, public ::testing::WithParamInterface<GroupMix> {
 protected:
  void SetUp() override { open_with_prompt_on_host(); }
  void open_with_prompt_on_host(std::uint32_t transfer_pages_max = HostConfig{}.transfer_pages_max) {
    CacheConfig config = host_config(GetParam().groups, 96);
    config.steps_in_flight_max = 3;
    config.host.transfer_pages_max = transfer_pages_max;
    open_tiers(std::move(config));
    run_request(prompt_);
    settle();
    put_history_on_host();  // takes along what hangs on it
    run_request(with_tail({}, 60, 7));  // the state slot that was used holds another state
    settle();
    ASSERT_EQ(lookup(with_tail(prompt_, 1, 4)).host_tokens, 40U);
  }
  [[nodiscard]] std::vector<Taken> take_ahead(const GroupsRequest& request) {
    std::vector<Taken> loads = take_loads();
    EXPECT_TRUE(view(request).is_ready);
    EXPECT_TRUE(view(request).is_loading);
    expect_invariants();
    return loads;
  }
};

TEST_P(CacheGroupsAheadTest, AStepIsPlannedWhileThePagesOfAllGroupsArrive) {
  GroupsRequest request = start(with_tail(prompt_, 1, 6), kGroupsAhead);
  const std::vector<Taken> loads = take_ahead(request);
  EXPECT_EQ(loads.back().plan.pool_index, 0) << "the history comes last";
  GroupsFlight flight = plan({{.request = &request, .sampled = {500}}});
  EXPECT_EQ(flight.step.loads.size(), loads.size());
  const std::vector<StepResult> results(1);
  const bool fills_state = !flight.step.plan.state_copies.empty();  // which needs the snapshot first
  expect_error(cache_->finish_step(flight.step, results),
               fills_state ? ErrorCode::InvalidArgument : ErrorCode::Unavailable,
               fills_state ? "not applied" : "still arriving");
  for (const Taken& load : loads) {
    EXPECT_TRUE(view(request).is_loading);
    move(load);
    expect_invariants();
  }
  EXPECT_FALSE(view(request).is_loading);
  run(flight);
  finish(flight);
  expect_invariants();
  decode(request, 9);
  end(request);
  settle();
  expect_empty_after_reset();
}

TEST_P(CacheGroupsAheadTest, PagesMayArriveInAnyOrder) {
  GroupsRequest request = start(with_tail(prompt_, 1, 6), kGroupsAhead);
  std::vector<Taken> loads = take_ahead(request);
  GroupsFlight flight = plan({{.request = &request}});
  std::ranges::reverse(loads);
  for (const Taken& load : loads) {
    move(load);
    expect_invariants();
  }
  run(flight);
  finish(flight);
  decode(request, 5);
  end(request);
}

TEST_P(CacheGroupsAheadTest, EachLoadThatFailsTakesTheEntryBack) {
  GroupsRequest probe = start(with_tail(prompt_, 9, 6), kGroupsAhead);
  const std::size_t load_count = take_ahead(probe).size();
  end(probe);
  for (std::size_t failing = 0; failing < load_count; ++failing) {
    SetUp();
    GroupsRequest request = start(with_tail(prompt_, 1, 6), kGroupsAhead);
    const std::vector<Taken> loads = take_ahead(request);
    GroupsFlight flight = plan({{.request = &request}});
    for (std::size_t i = 0; i < loads.size(); ++i) {
      if (i == failing) {
        report(loads[i], {.outcome = TransferOutcome::Failed, .fault = TransferFault::Checksum});
      } else {
        move(loads[i]);
      }
      expect_invariants();
    }
    EXPECT_EQ(cache_->lost_entries(flight.step)->size(), 1U);
    spoil(flight);
    finish(flight);
    expect_invariants();
    EXPECT_TRUE(view(request).is_ready);
    EXPECT_EQ(view(request).token_count, 46U);
    run_all(request);
    decode(request, 5);
    end(request);
    settle();
    expect_empty_after_reset();
  }
}

TEST_P(CacheGroupsAheadTest, ABadPageOfHistoryEndsTheWaitForOtherGroupsToo) {
  open_with_prompt_on_host(4);
  GroupsRequest request = start(with_tail(prompt_, 1, 6), kGroupsAhead);
  std::vector<Taken> loads = take(1);
  while (loads.back().plan.pool_index > 0) loads.push_back(take(1).at(0));
  ASSERT_EQ(loads.back().pages.size(), 4U) << "the first pages of the history";
  EXPECT_FALSE(view(request).is_ready) << "the rest of the history has not been taken";
  report(loads.back(), {.outcome = TransferOutcome::Failed, .fault = TransferFault::Checksum});
  loads.pop_back();
  expect_invariants();
  EXPECT_TRUE(view(request).is_ready);
  EXPECT_FALSE(view(request).is_loading);
  for (const Taken& load : loads) report(load, {.outcome = TransferOutcome::Cancelled});
  EXPECT_EQ(view(request).computed_tokens, 0U);
  run_all(request);
  decode(request, 5);
  end(request);
  settle();
  expect_empty_after_reset();
}

TEST_P(CacheGroupsAheadTest, AStepThatIsAbortedIsPlannedAgain) {
  GroupsRequest request = start(with_tail(prompt_, 1, 6), kGroupsAhead);
  const std::vector<Taken> loads = take_ahead(request);
  abort(plan({{.request = &request}}));
  expect_invariants();
  EXPECT_TRUE(view(request).is_ready);
  GroupsFlight flight = plan({{.request = &request}});
  move(loads);
  run(flight);
  finish(flight);
  decode(request, 5);
  end(request);
  settle();
  expect_empty_after_reset();
}

// To abort a step makes the copies of all steps before it, but fills no state from a snapshot that is not there.
TEST_P(CacheGroupsAheadTest, AStepThatIsAbortedBehindOneLeavesItsStateToBeFilled) {
  GroupsRequest request = start(with_tail(prompt_, 1, 6), kGroupsAhead);
  GroupsRequest other = start(with_tail({}, 2, 6));
  const std::vector<Taken> loads = take_ahead(request);
  GroupsFlight flight = plan({{.request = &request}});
  const GroupsFlight later = plan({{.request = &other}});
  ASSERT_TRUE(cache_->abort_step(later.step));
  move(loads);
  run(flight);
  finish(flight);
  run_all(other);
  decode(request, 5);
  end(request);
  end(other);
  settle();
  expect_empty_after_reset();
}

TEST_P(CacheGroupsAheadTest, SequencesThatEndMeanwhileLeaveNothingBehind) {
  GroupsRequest planned = start(with_tail(prompt_, 1, 6), kGroupsAhead);
  GroupsRequest other = start(with_tail(prompt_, 2, 6), kGroupsAhead);
  const std::vector<Taken> loads = take_ahead(planned);
  GroupsFlight flight = plan({{.request = &planned}, {.request = &other}});
  end(planned);
  expect_invariants();
  move(loads);
  expect_invariants();
  run(flight);
  finish(flight);
  expect_invariants();
  decode(other, 5);
  end(other);
  settle();
  expect_empty_after_reset();
}

// Requests of all kinds come and go, pages are computed twice, loads fail, and steps are aborted.
TEST_P(CacheGroupsAheadTest, AnyOrderOfEventsGivesTheRightBytes) {
  for (std::uint64_t seed = 0; seed < 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    SetUp();
    testing::Random random(seed);
    std::vector<GroupsRequest> requests;
    std::vector<Taken> moving;
    for (int event = 0; event < 120 && !HasFailure(); ++event) {
      for (Taken& taken : take()) moving.push_back(std::move(taken));
      const std::uint32_t kind = random.below(10);
      if (kind < 3 && requests.size() < 5) {
        SequenceOptions options = random.below(4) == 0 ? SequenceOptions{.tier_max = Tier::Device} : kGroupsAhead;
        std::vector<TokenId> head(prompt_.begin(), prompt_.begin() + 4 * (4 + random.below(7)));
        requests.push_back(start(with_tail(head, static_cast<TokenId>(random.below(3)), 1 + random.below(9)), options));
      } else if (kind < 6 && !moving.empty()) {
        const std::size_t place = random.below(static_cast<std::uint32_t>(moving.size()));
        if (random.below(6) == 0 && moving[place].plan.kind == TransferKind::Load) {
          report(moving[place], {.outcome = TransferOutcome::Failed, .fault = TransferFault::Io});
        } else {
          move(moving[place]);
        }
        moving.erase(moving.begin() + static_cast<std::ptrdiff_t>(place));
      } else if (kind == 6 && !requests.empty()) {
        const std::size_t place = random.below(static_cast<std::uint32_t>(requests.size()));
        end(requests[place]);
        requests.erase(requests.begin() + static_cast<std::ptrdiff_t>(place));
        if (random.below(2) == 0) put_history_on_host();
      } else {
        std::vector<GroupsWork> works;
        for (GroupsRequest& request : requests) {
          const SequenceView seen = view(request);
          if (seen.is_ready && seen.pending_tokens == 0) append(request, {static_cast<TokenId>(7'000 + event)});
          if (seen.is_ready) works.push_back({.request = &request});
        }
        if (works.empty()) continue;
        GroupsFlight flight = plan(works);
        if (random.below(5) == 0) {
          abort(flight);
          continue;
        }
        // Everything that the step waits for ends, one way or the other.
        while (std::ranges::any_of(works, [&](const GroupsWork& work) { return view(*work.request).is_loading; }) &&
               cache_->lost_entries(flight.step)->size() < works.size()) {
          if (moving.empty()) break;
          if (random.below(8) == 0 && moving.front().plan.kind == TransferKind::Load) {
            report(moving.front(), {.outcome = TransferOutcome::Failed, .fault = TransferFault::Io});
          } else {
            move(moving.front());
          }
          moving.erase(moving.begin());
          expect_invariants();
        }
        const auto lost = cache_->lost_entries(flight.step).value();
        const std::vector<std::uint32_t> lost_entries(lost.begin(), lost.end());
        GroupsFlight good = flight;
        EXPECT_EQ(engine_->start(flight.step), "");
        const AttentionPlan& plan = flight.step.plan;
        for (std::size_t place = 0; place < plan.entries.size(); ++place) {
          const std::uint32_t index = plan.entries[place].entry_index;
          if (std::ranges::count(lost_entries, index) > 0) {
            engine_->spoil(plan, place);
          } else {
            EXPECT_EQ(engine_->run(plan, place, works[index].request->numbers(), flight.views[index]), "");
          }
        }
        EXPECT_TRUE(testing::apply_saves(*cache_, flight.step));
        finish(flight);
      }
      expect_invariants();
    }
    while (!moving.empty()) {
      move(moving.back());
      moving.pop_back();
    }
    for (GroupsRequest& request : requests) end(request);
    settle();
    expect_empty_after_reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Mixes, CacheGroupsAheadTest,
                         ::testing::Values(GroupMix{"history", {full_group()}},
                                           GroupMix{"window", {full_group(), window_group(10)}},
                                           GroupMix{"sink", {unrotated(full_group()), with_sink(window_group(10), 5)}},
                                           GroupMix{"compressed", {full_group(), compressed_group(4)}},
                                           GroupMix{"state", {full_group(), state_group(0, every(8))}},
                                           GroupMix{"all", {full_group(), window_group(10), state_group(0, every(8))}}),
                         [](const auto& mix) { return mix.param.name; });

}  // namespace
}  // namespace quire
