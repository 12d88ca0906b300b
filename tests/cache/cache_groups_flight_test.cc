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

}  // namespace
}  // namespace quire
