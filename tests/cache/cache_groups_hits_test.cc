// SPDX-License-Identifier: Apache-2.0
//
// What requests find on layouts of several groups: shared prefixes, checkpoints, retention, replay, kept prefixes.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cache_groups_fixture.h"

namespace quire {
namespace {

// Shared prefixes

struct SharedPrefixCase {
  std::uint32_t page_tokens = 16;
  bool has_window = false;
  std::uint32_t more_tail_tokens = 0;
  std::uint32_t at_once = 1;
};

class CacheGroupsSharedPrefixTest : public CacheGroupsTest, public ::testing::WithParamInterface<SharedPrefixCase> {};

// Tails of 200 to 300 tokens, or 100 longer: where the checkpoints of the tails fall must not matter.
TEST_P(CacheGroupsSharedPrefixTest, SixtyFourRequestsHitTheSharedPrefixFromTheThirdOn) {
  const SharedPrefixCase& param = GetParam();
  constexpr std::uint32_t kShared = 4'096;
  std::vector<CacheGroup> groups = {full_group(), state_group(0, every(1'024))};
  if (param.has_window) groups.push_back(window_group(128));
  CacheConfig config = groups_config(std::move(groups), param.page_tokens, 3 * 12'288 / param.page_tokens, 4'608);
  config.step_tokens_max = 1'024;
  open(std::move(config));

  const std::vector<TokenId> shared = token_range(0, kShared);
  std::vector<GroupsRequest> running(param.at_once);
  for (std::uint32_t i = 0; i < 64 && !HasFailure(); i += param.at_once) {
    for (std::uint32_t k = 0; k < param.at_once; ++k) {
      const std::uint32_t tail = 200 + ((i + k) * 37 % 101) + param.more_tail_tokens;
      running[k] = start(with_tail(shared, static_cast<TokenId>(i + k), tail));
      if (i >= (param.at_once == 1 ? 2 : param.at_once)) {
        EXPECT_EQ(running[k].admission.matched_tokens, kShared) << "request " << i + k;
      }
    }
    // All at once, each with its share of the step.
    for (bool is_busy = true; is_busy && !HasFailure();) {
      std::vector<GroupsWork> works;
      for (GroupsRequest& request : running) {
        const std::uint32_t pending = view(request).pending_tokens;
        if (pending > 0) works.push_back({&request, std::min(pending, 1'024 / param.at_once)});
      }
      is_busy = !works.empty();
      if (is_busy) step(std::move(works));
    }
    for (GroupsRequest& request : running) end(request);
    expect_invariants();
  }
  expect_empty_after_reset();
}

INSTANTIATE_TEST_SUITE_P(AllLayouts, CacheGroupsSharedPrefixTest,
                         ::testing::Values(SharedPrefixCase{16, false, 0, 1}, SharedPrefixCase{16, false, 100, 1},
                                           SharedPrefixCase{16, true, 0, 1}, SharedPrefixCase{16, true, 100, 1},
                                           SharedPrefixCase{64, false, 0, 1}, SharedPrefixCase{64, true, 100, 1},
                                           SharedPrefixCase{16, true, 0, 8}, SharedPrefixCase{64, true, 100, 8}),
                         [](const ::testing::TestParamInfo<SharedPrefixCase>& each) {
                           const SharedPrefixCase& param = each.param;
                           return "P" + std::to_string(param.page_tokens) + (param.has_window ? "WithWindow" : "") +
                                  "TailsPlus" + std::to_string(param.more_tail_tokens) + "AtOnce" +
                                  std::to_string(param.at_once);
                         });

TEST_F(CacheGroupsTest, TheSecondRequestLeavesACheckpointWhereTheThirdNeedsIt) {
  open(groups_config({full_group(), state_group(0, every(1'024))}, 16, 64, 512));
  const std::vector<TokenId> shared = token_range(0, 100);
  EXPECT_EQ(run_request(with_tail(shared, 1, 60)), 0U);
  GroupsRequest second = start(with_tail(shared, 2, 70));
  EXPECT_EQ(second.admission.matched_tokens, 0U);
  EXPECT_EQ(second.admission.miss.reason, MissReason::NotHeld);
  EXPECT_EQ(second.admission.miss.group, 1U);
  EXPECT_EQ(view(second).next_checkpoint, 96U);
  run_all(second);
  end(second);
  EXPECT_EQ(run_request(with_tail(shared, 3, 80)), 96U);
}

TEST_F(CacheGroupsTest, TheSecondRequestLeavesItsWindowWhereTheThirdNeedsIt) {
  open(groups_config({full_group(), window_group(20, every(1'024))}, 16, 64, 512));
  const std::vector<TokenId> shared = token_range(0, 100);
  EXPECT_EQ(run_request(with_tail(shared, 1, 160)), 0U);
  EXPECT_EQ(run_request(with_tail(shared, 2, 170)), 0U);
  EXPECT_EQ(run_request(with_tail(shared, 3, 180)), 96U);
}

TEST_F(CacheGroupsTest, APromptEndIsFoundByWhoeverContinuesIt) {
  open(groups_config({full_group(), window_group(40), state_group(0, every(1'024))}, 16, 64, 512));
  EXPECT_EQ(run_request(token_range(0, 100)), 0U);
  EXPECT_EQ(run_request(token_range(0, 150)), 96U);
}

// A prompt that ends with a page has its snapshot one page earlier, and a window that is needed there.
TEST_F(CacheGroupsTest, AWindowIsKeptWhereTheSnapshotOfAPromptIs) {
  CacheConfig config = groups_config({full_group(), window_group(16), state_group(0, every(1'024))}, 8, 200, 1'024);
  config.device.group_page_counts = {0, 12, 8};
  open(std::move(config));
  GroupsRequest request = start(token_range(0, 64));
  run_all(request, {9'000}, 32);
  decode(request, 200);
  end(request);
  EXPECT_EQ(run_request(with_tail(token_range(0, 64), 1, 30), {}, 32), 56U);
}

TEST_F(CacheGroupsTest, AWholePromptOfFullAndWindowGroupsIsFoundWhole) {
  open(groups_config({full_group(), window_group(40)}, 16, 64, 512));
  EXPECT_EQ(run_request(token_range(0, 112)), 0U);
  EXPECT_EQ(run_request(token_range(0, 112)), 112U);
}

// A state would count the last token twice.
TEST_F(CacheGroupsTest, AStateLeavesAtLeastOneTokenToCompute) {
  open(groups_config({full_group(), state_group(0, every(16))}, 16, 64, 512));
  EXPECT_EQ(run_request(token_range(0, 96)), 0U);
  EXPECT_EQ(run_request(token_range(0, 96)), 80U);
  EXPECT_EQ(run_request(token_range(0, 97)), 96U);
}

TEST_F(CacheGroupsTest, LookupSaysWhatAdmitFinds) {
  open(groups_config({full_group(), window_group(40), state_group(0, every(32))}, 16, 64, 512));
  run_request(token_range(0, 100));
  for (std::size_t length = 1; length < 130; length += 7) {
    const std::vector<TokenId> prompt = token_range(0, length);
    const Lookup expected = lookup(prompt);
    GroupsRequest request = start(prompt);
    EXPECT_EQ(request.admission.matched_tokens, expected.matched_tokens) << length;
    end(request);
  }
}

// Retention

// Which pages of the history have something of a group, by their place in the path.
class CacheGroupsRetentionTest : public CacheGroupsTest {
 protected:
  [[nodiscard]] std::vector<std::uint32_t> held_columns(std::uint32_t group, const std::vector<TokenId>& tokens) {
    std::vector<PageId> with;
    EXPECT_TRUE(cache_->visit_group_pages(group, [&](PageId page, PageId) { with.push_back(page); }));
    std::vector<std::uint32_t> columns;
    std::uint32_t column = 0;
    EXPECT_TRUE(cache_->visit_runs([&](const RunView& run) {
      for (const PageId page : run.pages) {
        if (std::ranges::find(with, page) != with.end()) columns.push_back(column);
        ++column;
      }
    }));
    EXPECT_EQ(column, tokens.size() / cache_->config().page.page_tokens) << "more than one path is cached";
    return columns;
  }
  // A prompt of 100 tokens and an answer of 92, in pages of 8.
  std::vector<TokenId> run_chat() {
    GroupsRequest request = start(token_range(0, 100));
    run_all(request, {100});
    decode(request, 92, 100);
    EXPECT_EQ(request.tokens.size(), 193U);
    end(request);
    return token_range(0, 192);
  }
};

TEST_F(CacheGroupsRetentionTest, DenseWindowsStayWhileThereIsRoom) {
  open(groups_config({full_group(), window_group(20)}, 8, 64, 256));
  const std::vector<TokenId> tokens = run_chat();
  EXPECT_EQ(held_columns(1, tokens).size(), 24U);
  for (std::uint32_t length = 24; length <= 192; length += 8) {
    EXPECT_EQ(lookup(with_tail(token_range(0, length), 1, 5)).matched_tokens, length);
  }
}

// The window of 20 before a multiple of 64, before the prompt's end and before the sequence's.
TEST_F(CacheGroupsRetentionTest, WindowsOfAnIntervalStayAtItsMultiplesAndAtTheEnds) {
  open(groups_config({full_group(), window_group(20, every(64))}, 8, 64, 256));
  const std::vector<TokenId> tokens = run_chat();
  EXPECT_EQ(held_columns(1, tokens), (std::vector<std::uint32_t>{5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 21, 22, 23}));
  EXPECT_EQ(lookup(with_tail(token_range(0, 64), 1, 5)).matched_tokens, 64U);
  EXPECT_EQ(lookup(with_tail(token_range(0, 88), 1, 5)).matched_tokens, 64U);
  EXPECT_EQ(lookup(with_tail(token_range(0, 96), 1, 5)).matched_tokens, 96U);
  EXPECT_EQ(lookup(with_tail(token_range(0, 160), 1, 5)).matched_tokens, 128U);
  EXPECT_EQ(lookup(with_tail(tokens, 1, 5)).matched_tokens, 192U);
}

TEST_F(CacheGroupsRetentionTest, WindowsOfTheLastPlaceStayAtTheEnds) {
  open(groups_config({full_group(), window_group(20, kLast)}, 8, 64, 256));
  const std::vector<TokenId> tokens = run_chat();
  EXPECT_EQ(held_columns(1, tokens), (std::vector<std::uint32_t>{9, 10, 11, 12, 21, 22, 23}));
  EXPECT_EQ(lookup(with_tail(tokens, 1, 5)).matched_tokens, 192U);
  EXPECT_EQ(lookup(with_tail(token_range(0, 160), 1, 5)).matched_tokens, 104U);
}

TEST_F(CacheGroupsRetentionTest, WindowsThatAreNotRetainedAreNobodysLater) {
  const CacheGroup window = rebuilt(window_group(20, kNone), 19);
  open(groups_config({full_group(), window}, 8, 64, 256));
  const std::vector<TokenId> tokens = run_chat();
  EXPECT_TRUE(held_columns(1, tokens).empty());
  EXPECT_EQ(group_stats(1).free_pages, group_stats(1).page_count);
}

// At multiples of 64, and below the prompt's last token.
TEST_F(CacheGroupsRetentionTest, SnapshotsOfAnIntervalStayAtItsMultiplesAndAtThePromptsEnd) {
  open(groups_config({full_group(), state_group(0, every(64))}, 8, 64, 256));
  const std::vector<TokenId> tokens = run_chat();
  EXPECT_EQ(held_columns(1, tokens), (std::vector<std::uint32_t>{7, 11, 15, 23}));
  EXPECT_EQ(lookup(with_tail(token_range(0, 90), 1, 5)).matched_tokens, 64U);
  EXPECT_EQ(lookup(with_tail(token_range(0, 99), 1, 5)).matched_tokens, 96U);
  EXPECT_EQ(lookup(with_tail(token_range(0, 190), 1, 5)).matched_tokens, 128U);
  EXPECT_EQ(lookup(with_tail(tokens, 1, 5)).matched_tokens, 192U);
}

// And that where the prompt ends, which others may have too.
TEST_F(CacheGroupsRetentionTest, OfSnapshotsOfTheLastPlaceOneStays) {
  open(groups_config({full_group(), state_group(0, kLast)}, 8, 64, 256));
  const std::vector<TokenId> tokens = run_chat();
  EXPECT_EQ(held_columns(1, tokens), (std::vector<std::uint32_t>{11, 23}));
  EXPECT_EQ(lookup(with_tail(tokens, 1, 5)).matched_tokens, 192U);
  EXPECT_EQ(lookup(with_tail(token_range(0, 190), 1, 5)).matched_tokens, 96U);
}

TEST_F(CacheGroupsRetentionTest, AStateThatIsNeverKeptIsNeverFound) {
  open(groups_config({full_group(), state_group(0, kNone)}, 8, 64, 256));
  run_chat();
  EXPECT_EQ(run_request(token_range(0, 192)), 0U);
}

TEST_F(CacheGroupsRetentionTest, NothingIsKeptOfASequenceThatPublishesNothing) {
  open(groups_config({full_group(), window_group(20), state_group(0, every(16))}, 8, 64, 256));
  run_request(token_range(0, 100), {.publish = Publish::None});
  for (std::uint32_t g = 0; g < 3; ++g) EXPECT_EQ(group_stats(g).free_pages, group_stats(g).page_count) << g;
}

// Compressed entries

TEST_F(CacheGroupsTest, HitsInsideAPageEndAtWholeEntries) {
  CacheConfig config = groups_config({full_group(), compressed_group(4)}, 16, 64, 256);
  config.partial_reuse_min_tokens = 1;
  open(std::move(config));
  run_request(token_range(0, 64));
  for (std::uint32_t length = 17; length < 64; ++length) {
    EXPECT_EQ(lookup(with_tail(token_range(0, length), 1, 3)).matched_tokens, length / 4 * 4) << length;
  }
  EXPECT_EQ(run_request(with_tail(token_range(0, 39), 1, 30)), 36U);
}

// The page that a hit ends in stays until it is copied, and there is none for the copy. Nobody else holds pages that
// could be waited for: the hit ends earlier.
TEST_F(CacheGroupsTest, ALoneRequestIsServedThoughThereIsNoPageForACopy) {
  for (const bool has_window : {false, true}) {
    std::vector<CacheGroup> groups = {full_group(), compressed_group(2), tail_group(2, 0, 6, kNone)};
    if (has_window) groups.push_back(window_group(3));
    CacheConfig config = groups_config(std::move(groups), 4, 4, 16);
    config.partial_reuse_min_tokens = 1;
    open(std::move(config));
    run_request(token_range(0, 16));
    GroupsRequest request = start(with_tail(token_range(0, 14), 100, 2));
    EXPECT_EQ(request.admission.matched_tokens, 14U);
    EXPECT_EQ(request.admission.partial_tokens, 2U);
    step(request);
    EXPECT_EQ(view(request).computed_tokens, 16U);
    end(request);
  }
}

TEST_F(CacheGroupsTest, AHitInsideAPageStaysAsLongAsOthersMayMakeRoom) {
  CacheConfig config = groups_config({full_group(), compressed_group(2), tail_group(2, 0, 6, kNone)}, 4, 5, 16);
  config.partial_reuse_min_tokens = 1;
  open(std::move(config));
  run_request(token_range(0, 16));
  GroupsRequest other = start(token_range(500, 3));
  run_all(other);
  GroupsRequest request = start(with_tail(token_range(0, 14), 100, 2));
  const StepEntry entry{.sequence = &request.sequence};
  EXPECT_FALSE(cache_->plan_step({&entry, 1}).value().step.has_value());
  EXPECT_EQ(view(request).computed_tokens, 14U);
  end(other);
  step(request);
  EXPECT_EQ(view(request).computed_tokens, 16U);
}

// Replay

class CacheGroupsReplayTest : public CacheGroupsTest {
 protected:
  static CacheGroup rebuilt_window(bool is_exact) { return rebuilt(window_group(20, kNone), 40, is_exact); }
};

TEST_F(CacheGroupsReplayTest, AGroupThatIsNotHeldIsRebuiltWithoutWritingTheHistoryAgain) {
  open(groups_config({full_group(), rebuilt_window(true)}, 8, 64, 256));
  run_request(token_range(0, 96));
  GroupsRequest request = start(with_tail(token_range(0, 96), 1, 30));
  EXPECT_EQ(request.admission.matched_tokens, 96U);
  EXPECT_EQ(request.admission.replay_tokens, 40U);
  EXPECT_EQ(view(request).replay_tokens, 40U);
  EXPECT_EQ(view(request).pending_tokens, 70U);
  const std::uint32_t pages = held_pages(0);
  const GroupsFlight flight = compute({{&request, 24}});
  for (const std::int64_t slot : flight.step.plan.groups[0].append_slots) EXPECT_EQ(slot, kNoSlot);
  for (const std::int64_t slot : flight.step.plan.groups[1].append_slots) EXPECT_NE(slot, kNoSlot);
  EXPECT_EQ(held_pages(0), pages);
  finish(flight);
  EXPECT_EQ(view(request).replay_tokens, 16U);
  run_all(request);
  EXPECT_EQ(view(request).replay_tokens, 0U);
  decode(request, 20);
  end(request);
}

// Layers read every key that is listed: those before the replay hold what other requests left in the pages.
TEST_F(CacheGroupsReplayTest, KeysThatNobodyWroteAreNotListed) {
  open(groups_config({full_group(), rebuilt(window_group(13, kNone), 12)}, 8, 64, 256));
  run_request(token_range(0, 40));
  GroupsRequest request = start(with_tail(token_range(0, 40), 1, 30));
  EXPECT_EQ(request.admission.matched_tokens, 40U);
  EXPECT_EQ(request.admission.replay_tokens, 12U);
  const auto first_key = [&](std::uint32_t token_count) {
    const GroupsFlight flight = compute({{&request, token_count}});
    const std::int32_t key = flight.step.plan.groups[1].levels[0].first_keys[0];
    finish(flight);
    return key;
  };
  EXPECT_EQ(first_key(4), 28);  // queries 28 to 31, whose windows begin with 16
  EXPECT_EQ(first_key(9), 28);  // 32 to 40
  EXPECT_EQ(first_key(10),
            28);                // 41 to 50: token 29 is the first that is seen, and 28 lies in the same row of nobody's
  EXPECT_EQ(first_key(2), 32);  // 51, 52: from 39 on, whose page begins with 32
  end(request);
}

// All pages behind the place that it went on at, and whole ones of what was rebuilt before it: [77, 96) of 8 each.
TEST_F(CacheGroupsReplayTest, WhatAReplayRebuiltIsFoundByOthers) {
  const CacheGroup window = rebuilt(window_group(20), 40);
  CacheConfig config = groups_config({full_group(), window}, 8, 64, 256);
  config.device.group_page_counts = {0, 14};
  open(std::move(config));
  run_request(token_range(0, 96));
  run_request(token_range(5'000, 112));  // takes all of the window's pages
  const std::vector<TokenId> prompt = with_tail(token_range(0, 96), 1, 8);
  GroupsRequest request = start(prompt);
  EXPECT_EQ(request.admission.matched_tokens, 96U);
  EXPECT_EQ(request.admission.replay_tokens, 40U);
  run_all(request);
  end(request);
  GroupsRequest later = start(with_tail(prompt, 2, 8));
  EXPECT_EQ(later.admission.matched_tokens, 104U);
  EXPECT_EQ(later.admission.replay_tokens, 0U);
  run_all(later);
}

TEST_F(CacheGroupsReplayTest, AReplayThatIsNotExactHasToBeAllowed) {
  open(groups_config({full_group(), rebuilt_window(false)}, 8, 64, 256));
  run_request(token_range(0, 96));
  const std::vector<TokenId> prompt = with_tail(token_range(0, 96), 1, 30);
  EXPECT_EQ(lookup(prompt).matched_tokens, 0U);
  EXPECT_EQ(lookup(prompt, {.allow_inexact_replay = true}).matched_tokens, 96U);
  GroupsRequest refused = start(prompt);
  EXPECT_EQ(refused.admission.matched_tokens, 0U);
  EXPECT_EQ(refused.admission.miss.reason, MissReason::NotHeld);
  EXPECT_EQ(refused.admission.miss.group, 1U);
}

TEST_F(CacheGroupsReplayTest, NothingBehindAnInexactReplayIsPublished) {
  open(groups_config({full_group(), rebuilt_window(false)}, 8, 64, 256));
  run_request(token_range(0, 96));
  const std::uint64_t sealed = group_stats(0).sealed_page_total;
  const std::vector<TokenId> prompt = with_tail(token_range(0, 96), 1, 60);
  GroupsRequest request = start(prompt, {.allow_inexact_replay = true});
  EXPECT_EQ(request.admission.replay_tokens, 40U);
  run_all(request);
  end(request);
  EXPECT_EQ(group_stats(0).sealed_page_total, sealed);
  EXPECT_EQ(lookup(with_tail(prompt, 2, 5), {.allow_inexact_replay = true}).matched_tokens, 96U);
}

TEST_F(CacheGroupsReplayTest, WhatIsToBeReplayedCannotBeForkedOrRewoundYet) {
  open(groups_config({full_group(), rebuilt_window(true)}, 8, 64, 256));
  run_request(token_range(0, 96));
  GroupsRequest request = start(with_tail(token_range(0, 96), 1, 30));
  expect_error(cache_->rewind(request.sequence, 1), ErrorCode::InvalidArgument, "is being rebuilt");
  expect_error(cache_->fork(request.sequence, 50), ErrorCode::InvalidArgument, "is being rebuilt");
  run_all(request);
}

// The window of 20 has [13, 32) of what was rebuilt, in pages of 8.
TEST_F(CacheGroupsReplayTest, WhatWasRebuiltCanBeForkedAndRewoundWhereItHasEverything) {
  const CacheGroup window = rebuilt(window_group(20, kNone), 24);
  open(groups_config({full_group(), window}, 8, 64, 256));
  run_request(token_range(0, 32));
  GroupsRequest request = start(with_tail(token_range(0, 32), 1, 2));
  EXPECT_EQ(request.admission.replay_tokens, 24U);
  run_all(request);
  expect_error(cache_->fork(request.sequence, 32), ErrorCode::InvalidArgument, "never had its tokens [12, 13)");
  GroupsRequest child = fork(request, 34);
  GroupsRequest earlier = fork(request, 33);
  rewind(request, 1);
  for (GroupsRequest* each : {&request, &child, &earlier}) {
    append(*each, {700});
    decode(*each, 20);
  }
}

TEST_F(CacheGroupsReplayTest, SamplesOfAPromptThatWasRebuiltWholeAreForksOfIt) {
  const CacheGroup window = rebuilt(window_group(20, kNone), 24);
  open(groups_config({full_group(), window}, 8, 64, 256));
  run_request(token_range(0, 64));
  GroupsRequest request = start(token_range(0, 64));
  EXPECT_EQ(request.admission.matched_tokens, 64U);
  EXPECT_EQ(request.admission.replay_tokens, 25U);
  run_all(request);
  GroupsRequest child = fork(request, 64);
  EXPECT_EQ(view(child).pending_tokens, 1U);
  run_all(child);
  append(child, {700});
  decode(child, 30);
}

// Kept prefixes

TEST_F(CacheGroupsTest, WhatAKeptPrefixNeedsToGoOnIsNotEvicted) {
  CacheConfig config = groups_config({full_group(), window_group(20), state_group(0, every(32))}, 8, 100, 256);
  config.device.group_page_counts = {0, 20, 4};
  open(std::move(config));
  run_request(token_range(0, 97), {}, 32);
  const Kept kept = cache_->keep(space_, {.tokens = token_range(0, 97)}).value();
  EXPECT_EQ(kept.token_count, 96U);
  EXPECT_EQ(group_stats(1).pinned_pages, 3U);
  EXPECT_EQ(group_stats(2).pinned_pages, 1U);
  for (TokenId i = 1; i < 20; ++i) run_request(token_range(i * 1'000, 150), {}, 32);
  EXPECT_GT(group_stats(1).evicted_page_total, 0U);
  EXPECT_GT(group_stats(2).evicted_page_total, 0U);
  EXPECT_EQ(lookup(token_range(0, 120)).matched_tokens, 96U);
  ASSERT_TRUE(cache_->unkeep(kept.id).has_value());
  EXPECT_EQ(group_stats(1).pinned_pages, 0U);
  EXPECT_EQ(group_stats(2).pinned_pages, 0U);
  for (TokenId i = 20; i < 40; ++i) run_request(token_range(i * 1'000, 150), {}, 32);
  EXPECT_EQ(lookup(token_range(0, 120)).matched_tokens, 0U);
  expect_empty_after_reset();
}

TEST_F(CacheGroupsTest, AKeptPrefixEndsWhereAllGroupsCanGoOn) {
  open(groups_config({full_group(), state_group(0, every(32))}, 8, 100, 256));
  run_request(token_range(0, 90));
  const Kept kept = cache_->keep(space_, {.tokens = token_range(0, 85)}).value();
  EXPECT_EQ(kept.token_count, 64U);
  ASSERT_TRUE(cache_->drop(space_).has_value());
  expect_error(cache_->unkeep(kept.id), ErrorCode::InvalidArgument, "not kept");
  for (std::uint32_t g = 0; g < 2; ++g) EXPECT_EQ(group_stats(g).free_pages, group_stats(g).page_count) << g;
  space_ = cache_->key_space({.model = "other"}).value();
}

TEST_F(CacheGroupsTest, WhatTwoKeptPrefixesShareIsHeldUntilNeitherIsKept) {
  open(groups_config({full_group(), window_group(20), ring_group(10, 12, every(32)), state_group(0, every(32))}, 8, 100,
                     256));
  run_request(token_range(0, 97));
  run_request(with_tail(token_range(0, 64), 1, 40));
  const Kept one = cache_->keep(space_, {.tokens = token_range(0, 97)}).value();
  const Kept same = cache_->keep(space_, {.tokens = token_range(0, 100)}).value();
  const Kept shorter = cache_->keep(space_, {.tokens = token_range(0, 70)}).value();
  EXPECT_EQ(one.token_count, 96U);
  EXPECT_EQ(same.token_count, 96U);
  EXPECT_EQ(shorter.token_count, 64U);
  EXPECT_EQ(group_stats(1).pinned_pages, 6U);
  EXPECT_EQ(group_stats(2).pinned_pages, 2U);
  EXPECT_EQ(group_stats(3).pinned_pages, 2U);
  ASSERT_TRUE(cache_->unkeep(one.id).has_value());
  expect_error(cache_->unkeep(one.id), ErrorCode::InvalidArgument, "not kept");
  EXPECT_EQ(group_stats(1).pinned_pages, 6U);
  ASSERT_TRUE(cache_->unkeep(shorter.id).has_value());
  EXPECT_EQ(group_stats(1).pinned_pages, 3U);
  EXPECT_EQ(group_stats(3).pinned_pages, 1U);
  ASSERT_TRUE(cache_->reclaim(UINT32_MAX).has_value());
  expect_invariants();
  GroupsRequest request = start(with_tail(token_range(0, 97), 2, 30));
  EXPECT_EQ(request.admission.matched_tokens, 96U);
  ASSERT_TRUE(cache_->unkeep(same.id).has_value());
  run_all(request, {}, 7);
  end(request);
  expect_empty_after_reset();
}

TEST_F(CacheGroupsTest, APrefixIsKeptInAllGroupsUntilItsTimeIsOver) {
  CacheConfig config = groups_config({full_group(), window_group(20), state_group(0, every(32))}, 8, 100, 256);
  config.device.group_page_counts = {0, 20, 4};
  open(std::move(config));
  run_request(token_range(0, 97), {}, 32);
  const Kept kept = cache_->keep(space_, {.tokens = token_range(0, 97)}, 1'000).value();
  ASSERT_TRUE(cache_->advance(999).has_value());
  for (TokenId i = 1; i < 20; ++i) run_request(token_range(i * 1'000, 150), {}, 32);
  EXPECT_EQ(lookup(token_range(0, 120)).matched_tokens, 96U);
  ASSERT_TRUE(cache_->advance(1'000).has_value());
  expect_error(cache_->unkeep(kept.id), ErrorCode::InvalidArgument, "not kept");
  EXPECT_EQ(group_stats(1).pinned_pages, 0U);
  EXPECT_EQ(group_stats(2).pinned_pages, 0U);
  for (TokenId i = 20; i < 40; ++i) run_request(token_range(i * 1'000, 150), {}, 32);
  EXPECT_EQ(lookup(token_range(0, 120)).matched_tokens, 0U);
}

TEST_F(CacheGroupsTest, MoreThanHalfOfAGroupsPagesCannotBeKept) {
  CacheConfig config = groups_config({full_group(), window_group(20), state_group(0, every(32))}, 8, 100, 256);
  config.device.group_page_counts = {0, 20, 4};
  open(std::move(config));
  for (TokenId i = 0; i < 3; ++i) run_request(token_range(i * 1'000, 33), {}, 32);
  const Kept first = cache_->keep(space_, {.tokens = token_range(0, 33)}).value();
  ASSERT_TRUE(cache_->keep(space_, {.tokens = token_range(1'000, 33)}).has_value());
  const std::string before = dump({});
  expect_error(cache_->keep(space_, {.tokens = token_range(2'000, 33)}), ErrorCode::Unavailable,
               "keeping 1 page of group 'state' more than the 2 kept now exceeds half of its 4");
  EXPECT_EQ(dump({}), before);
  ASSERT_TRUE(cache_->unkeep(first.id).has_value());
  EXPECT_TRUE(cache_->keep(space_, {.tokens = token_range(2'000, 33)}).has_value());
}

TEST_F(CacheGroupsTest, AKeptPrefixOfGroupsThatAreRebuiltHoldsTheHistoryAlone) {
  const CacheGroup window = rebuilt(window_group(20, kNone), 24);
  open(groups_config({full_group(), window}, 8, 64, 256));
  run_request(token_range(0, 65));
  const Kept kept = cache_->keep(space_, {.tokens = token_range(0, 65)}).value();
  EXPECT_EQ(kept.token_count, 64U);
  EXPECT_EQ(group_stats(1).pinned_pages, 0U);
  ASSERT_TRUE(cache_->reclaim(UINT32_MAX).has_value());
  GroupsRequest request = start(with_tail(token_range(0, 65), 1, 5));
  EXPECT_EQ(request.admission.matched_tokens, 64U);
  EXPECT_EQ(request.admission.replay_tokens, 24U);
  run_all(request);
  ASSERT_TRUE(cache_->unkeep(kept.id).has_value());
  decode(request, 10);
}

}  // namespace
}  // namespace quire
