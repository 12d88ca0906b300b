// SPDX-License-Identifier: Apache-2.0
//
// Windows, by example. What they leave in the pages is read back through plans.
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "sequence_changes_fixture.h"

namespace quire {
namespace {

class CacheWindow : public SequenceChangesTest {
 protected:
  [[nodiscard]] Live windowed(std::vector<TokenId> tokens, const Window& window) {
    Live live{.sequence = cache_->begin(space_, {.tokens = tokens}).value()};
    live.tokens = std::move(tokens);
    EXPECT_TRUE(cache_->set_window(live.sequence, window));
    EXPECT_TRUE(cache_->admit(live.sequence));
    return live;
  }
  [[nodiscard]] std::uint32_t held(const Live& live) const {
    std::uint32_t count = 0;
    for (const PageId page : view(live).pages()) count += page == kNullPage ? 0 : 1;
    return count;
  }
};

TEST_F(CacheWindow, HoldsItsSinkAndItsWindow) {
  Live live = windowed(token_range(0, 40), {.visible_tokens = 12, .sink_tokens = 2});
  while (view(live).pending_tokens > 0) run(live, {}, 1);
  // The last token saw 2 and [30, 40): pages 0, 7, 8 and 9.
  EXPECT_EQ(held(live), 4U);
  EXPECT_EQ(view(live).pages().size(), 10U);
  EXPECT_EQ(view(live).pages()[6], kNullPage);
  EXPECT_EQ(stats().sealed_pages, 3U);  // those that saw all before them
  EXPECT_EQ(stats().pinned_pages, 1U);
  EXPECT_EQ(stats().private_pages, 3U);
  end(live);
  EXPECT_EQ(run_request(token_range(0, 16)), 12U);
  expect_all_free();
}

TEST_F(CacheWindow, ALongChunkStoresOnlyItsSinkAndItsWindow) {
  Live live = windowed(token_range(0, 50), {.visible_tokens = 8, .sink_tokens = 2});
  const Step step = plan({{&live.sequence}});
  EXPECT_EQ(held(live), 3U);  // the sink, and tokens [44, 50)
  for (std::uint32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(step.plan.append_slots[i] == kNoSlot, i >= 4 && i < 44) << i;
  }
  compute(step, 0, live.tokens);
  finish(step, {{}});
  expect_good(live);
}

TEST_F(CacheWindow, SeveralChunksInFlightStoreWhatTheNextOneSees) {
  Live live = windowed(token_range(0, 60), {.visible_tokens = 8, .sink_tokens = 3});
  const Step first = plan({{&live.sequence, 21}});
  const Step second = plan({{&live.sequence, 21}});
  const Step third = plan({{&live.sequence}});
  compute(first, 0, live.tokens);
  compute(second, 0, live.tokens);
  finish(first, {{}});
  compute(third, 0, live.tokens);
  finish(second, {{}});
  finish(third, {{}});
  expect_good(live);
  EXPECT_EQ(stats().fenced_pages, 0U);
}

TEST_F(CacheWindow, AForkInsideTheSinkOfASlidSequenceLeavesItsWindow) {
  for (const std::uint32_t page_tokens : {1U, 4U, 16U}) {
    CacheConfig config = changes_config(160);
    config.page.page_tokens = page_tokens;
    open(std::move(config));
    Live live = windowed(token_range(0, 60), {.visible_tokens = 40, .sink_tokens = 25});
    for (int i = 0; i < 4; ++i) run(live, {}, 15);
    Live fork = forked(live, 18);
    EXPECT_EQ(view(fork).window.visible_tokens, 40U);
    for (int i = 0; i < 12; ++i) {
      expect_good(live);
      expect_good(fork);
    }
    end(live);
    for (int i = 0; i < 6; ++i) expect_good(fork);
    end(fork);
    expect_all_free();
  }
}

TEST_F(CacheWindow, AForkOfWhatTheWindowHoldsGoesOnSliding) {
  CacheConfig config = changes_config();
  config.window_rewind_tokens = 3;
  open(std::move(config));
  Live live = windowed(token_range(0, 45), {.visible_tokens = 20, .sink_tokens = 6});
  run(live, {}, 24);
  run(live);
  Live fork = forked(live, 43);
  for (int i = 0; i < 8; ++i) {
    expect_good(fork);
    expect_good(live);
  }
  end(live);
  expect_good(fork);
  end(fork);
  expect_all_free();
}

TEST_F(CacheWindow, ARewoundSlidSequenceHoldsThePagesItNeeds) {
  for (const std::uint32_t page_tokens : {1U, 4U, 16U}) {
    CacheConfig config = changes_config(80);
    config.page.page_tokens = page_tokens;
    config.window_rewind_tokens = 1;
    open(std::move(config));
    Live live = windowed(token_range(0, 39), {.visible_tokens = 20, .sink_tokens = 6});
    run(live, {}, 24);
    run(live, {}, 15);
    rewind(live, 1);
    const Step again = plan({{&live.sequence}});  // the last token that is left runs again
    compute(again, 0, live.tokens);
    EXPECT_EQ(again.plan.seq_lens[0], 20);
    finish(again, {{}});
    for (int i = 0; i < 9; ++i) expect_good(live);
    end(live);
    expect_all_free();
  }
}

TEST_F(CacheWindow, RewoundIntoItsSinkASlidSequenceGrowsAgain) {
  Live live = windowed(token_range(0, 40), {.visible_tokens = 12, .sink_tokens = 6});
  while (view(live).pending_tokens > 0) run(live, {}, 4);
  rewind(live, 35);
  append(live, token_range(100, 30));
  while (view(live).pending_tokens > 0) run(live, {}, 3);
  EXPECT_EQ(run_request(token_range(0, 4)), 4U);
  end(live);
  expect_all_free();
}

TEST_F(CacheWindow, SetOnALongSequenceFreesWhatItLeaves) {
  Live live = computed(token_range(0, 40), {.publish = Publish::None});
  EXPECT_EQ(in_use(), 10U);
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 12, .sink_tokens = 4}));
  EXPECT_EQ(in_use(), 3U);  // tokens [0, 4) and [32, 40)
  expect_good(live);
}

TEST_F(CacheWindow, OneThatSawAllPublishesWhatItHadBefore) {
  Live live = admitted(token_range(0, 22));
  run(live, {}, 18);
  ASSERT_TRUE(cache_->set_window(live.sequence, {.visible_tokens = 8, .sink_tokens = 2}));
  run(live);
  end(live);
  EXPECT_EQ(run_request(token_range(0, 24)), 16U);
}

}  // namespace
}  // namespace quire
