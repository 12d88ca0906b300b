// SPDX-License-Identifier: Apache-2.0
//
// For tests of the host tier of layouts of several groups: the test moves everything itself, or lets the cache do it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"
#include "hand_mover.h"

namespace quire {

class CacheGroupsTiersTest : public CacheGroupsTest {
 protected:
  using Taken = HandMover::Taken;

  static constexpr std::uint32_t kAnchored = 1;        // the group of two_groups() that is not the history
  static constexpr std::uint32_t kAnchoredPages = 14;  // that it has on the device

  /// Everything is copied to the host, by the test.
  [[nodiscard]] static CacheConfig host_config(std::vector<CacheGroup> groups, std::uint32_t page_count = 64) {
    CacheConfig config = groups_config(std::move(groups), 4, page_count, 128);
    config.host.page_count = 2 * page_count;
    config.host.write_policy = WritePolicy::WriteThrough;
    config.host.external_mover = true;
    return config;
  }
  /// The history and one group besides, which has few pages on the device and many on the host.
  [[nodiscard]] static CacheConfig two_groups(CacheGroup anchored) {
    CacheConfig config = host_config({full_group(), std::move(anchored)}, 256);
    config.device.group_page_counts = {256, kAnchoredPages};
    config.host.group_page_counts = {512, 512};
    return config;
  }
  void open_tiers(CacheConfig config) {
    now_ = 0;
    open(std::move(config));
    mover_ = std::make_unique<HandMover>(*cache_);
  }

  [[nodiscard]] bool is_external() const { return cache_->config().host.external_mover; }
  [[nodiscard]] std::vector<Taken> take(std::size_t count_max = 64) { return mover_->take_some(count_max); }
  /// The loads among what is to be moved now; nothing else is.
  [[nodiscard]] std::vector<Taken> take_loads() {
    std::vector<Taken> taken = take();
    EXPECT_TRUE(std::ranges::all_of(taken, [](const Taken& each) { return each.plan.kind == TransferKind::Load; }));
    EXPECT_FALSE(taken.empty()) << "nothing is loaded";
    return taken;
  }
  void report(const Taken& taken, Completion completion) {
    completion.id = taken.plan.id;
    const Status status = cache_->apply({&completion, 1}, now_);
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }
  void report_failed(const std::vector<Taken>& taken, TransferFault fault) {
    for (const Taken& each : taken) report(each, {.outcome = TransferOutcome::Failed, .fault = fault});
  }
  void move(const Taken& taken) { report(taken, mover_->move(taken)); }
  void move(const std::vector<Taken>& taken) {
    for (const Taken& each : taken) move(each);
  }
  /// Until nothing is left to move.
  void settle() {
    if (!is_external()) {
      drain(*cache_, now_);
      return;
    }
    for (std::vector<Taken> taken = take(); !taken.empty() && !HasFailure(); taken = take()) move(taken);
  }
  bool wait_for_pages() override {
    if (!is_external()) {
      const bool is_moving = cache_->stats()->transfers_in_flight > 0;
      settle();
      return is_moving;
    }
    const std::vector<Taken> taken = take();
    move(taken);
    return !taken.empty();
  }

  /// Others come until the device has nothing of a group that it had before. The host has it all.
  void push_out(std::uint32_t group = kAnchored) {
    const std::uint64_t before = group_stats(group).evicted_page_total;
    for (TokenId i = 0; group_stats(group).evicted_page_total < before + group_stats(group).page_count; ++i) {
      ASSERT_LT(i, 200);
      run_request(with_tail({}, other_++, 40));
      settle();
    }
  }
  /// Prompts of 40 tokens whose history is on the device, and what the other group has of them on the host alone.
  void put_on_host(const std::vector<std::vector<TokenId>>& prompts) {
    for (const std::vector<TokenId>& prompt : prompts) {
      run_request(prompt);
      settle();
    }
    push_out();
    for (const std::vector<TokenId>& prompt : prompts) {
      EXPECT_EQ(lookup(with_tail(prompt, 1, 4)).matched_tokens, 0U);
      EXPECT_EQ(lookup(with_tail(prompt, 1, 4)).host_tokens, 40U);
      EXPECT_EQ(lookup(with_tail(prompt, 1, 4), {.tier_max = Tier::Device}).host_tokens, 0U);
    }
  }
  void put_history_on_host() { ASSERT_TRUE(cache_->reclaim(UINT32_MAX)); }

  const std::vector<TokenId> prompt_ = token_range(0, 40);
  TimeNs now_ = 0;
  TokenId other_ = 100;
  std::unique_ptr<HandMover> mover_;
};

}  // namespace quire
