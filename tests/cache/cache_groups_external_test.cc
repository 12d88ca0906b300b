// SPDX-License-Identifier: Apache-2.0
//
// Engines that hand out device pages of several groups themselves: what they offer of windows and snapshots, what a
// match gives them, and which pages come back.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"
#include "external_groups.h"

namespace quire {
namespace {

std::vector<PageId> ids(std::initializer_list<std::uint32_t> values) {
  std::vector<PageId> pages;
  for (const std::uint32_t value : values) pages.push_back(PageId{value});
  return pages;
}

// A window of 6 tokens behind a sink of 3, in pages of 4, and a state.
class CacheGroupsExternalTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kFull = 0;
  static constexpr std::uint32_t kWindow = 1;
  static constexpr std::uint32_t kState = 2;

  void SetUp() override {
    open(external_config({full_group(), with_sink(window_group(6), 3), state_group(0, kLast)}, {16, 12, 8}));
  }
  void open(CacheConfig config) {
    cache_ = open_cache(std::move(config));
    space_ = cache_->key_space({.model = "test"}).value();
  }
  void TearDown() override { expect_invariants(); }
  void expect_invariants() const {
    const Status status = cache_->check_invariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
  Result<OfferOutcome> offer(std::uint32_t token_count, std::uint32_t first_page, const std::vector<PageId>& pages,
                             const std::vector<GroupPages>& groups) {
    return offer(token_range(1, token_count), first_page, pages, groups);
  }
  Result<OfferOutcome> offer(const std::vector<TokenId>& tokens, std::uint32_t first_page,
                             const std::vector<PageId>& pages, const std::vector<GroupPages>& groups = {}) {
    Result<OfferOutcome> outcome = cache_->offer(
        space_, {.prompt = {.tokens = tokens}, .first_page = first_page, .page_ids = pages, .groups = groups});
    expect_invariants();
    return outcome;
  }
  [[nodiscard]] ExternalMatch match(std::uint32_t token_count) {
    Result<ExternalMatch> match = cache_->match(space_, {.tokens = token_range(1, token_count)});
    EXPECT_TRUE(match.has_value()) << match.error().message;
    expect_invariants();
    return std::move(*match);
  }
  [[nodiscard]] std::vector<PageId> released(std::optional<std::uint32_t> group = std::nullopt) {
    std::vector<PageId> buffer(16);
    const std::span<PageId> taken = cache_->take_released(buffer, group).value();
    return {taken.begin(), taken.end()};
  }
  /// 16 tokens: all pages of the history and of the window, and snapshots behind the second and the last.
  void offer_four_pages() {
    const std::vector<PageId> window = ids({0, 1, 2, 3});
    const std::vector<PageId> second = ids({7});
    const std::vector<PageId> last = ids({0});
    const OfferOutcome outcome =
        offer(16, 0, ids({4, 5, 6, 7}), {{kWindow, 0, window}, {kState, 1, second}, {kState, 3, last}}).value();
    EXPECT_EQ(outcome.adopted_pages, 4U);
    EXPECT_EQ(outcome.adopted_group_pages, 6U);
    EXPECT_TRUE(outcome.group_duplicates.empty());
  }

  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
};

// What a match gives

TEST_F(CacheGroupsExternalTest, AMatchHasWhatEachGroupNeedsToGoOn) {
  offer_four_pages();
  const ExternalMatch found = match(18);
  EXPECT_EQ(found.token_count, 16U);
  EXPECT_EQ(found.replay_tokens, 0U);
  EXPECT_TRUE(std::ranges::equal(found.pages, ids({4, 5, 6, 7})));
  // The sink's page, the pages of the 5 tokens before the 16th, and the snapshot behind it.
  ASSERT_EQ(found.groups.size(), 3U);
  EXPECT_EQ(found.groups[0].group_index, kWindow);
  EXPECT_EQ(found.groups[0].first_page, 0U);
  EXPECT_TRUE(std::ranges::equal(found.groups[0].page_ids, ids({0})));
  EXPECT_EQ(found.groups[1].group_index, kWindow);
  EXPECT_EQ(found.groups[1].first_page, 2U);
  EXPECT_TRUE(std::ranges::equal(found.groups[1].page_ids, ids({2, 3})));
  EXPECT_EQ(found.groups[2].group_index, kState);
  EXPECT_EQ(found.groups[2].first_page, 3U);
  EXPECT_TRUE(std::ranges::equal(found.groups[2].page_ids, ids({0})));
  EXPECT_EQ(cache_->lookup(space_, {.tokens = token_range(1, 18)})->matched_tokens, 16U);
}

TEST_F(CacheGroupsExternalTest, TheHitRuleDecidesHowLongItIs) {
  offer_four_pages();
  EXPECT_EQ(match(16).token_count, 8U) << "the last token runs again, and a state is there behind 8";
  EXPECT_EQ(match(13).token_count, 8U);
  const ExternalMatch second = match(9);
  EXPECT_EQ(second.token_count, 8U);
  ASSERT_EQ(second.groups.size(), 2U) << "sink and window are one piece";
  EXPECT_TRUE(std::ranges::equal(second.groups[0].page_ids, ids({0, 1})));
  EXPECT_TRUE(std::ranges::equal(second.groups[1].page_ids, ids({7})));
  const ExternalMatch none = match(7);
  EXPECT_EQ(none.token_count, 0U);
  EXPECT_TRUE(none.pages.empty());
  EXPECT_TRUE(none.groups.empty());
}

TEST_F(CacheGroupsExternalTest, AGroupThatCanBeRebuiltIsLeftOut) {
  const CacheGroup window = rebuilt(window_group(6), 8);
  open(external_config({full_group(), window}, {16, 12}));
  ASSERT_TRUE(offer(16, 0, ids({0, 1, 2, 3}), {}).has_value());
  const ExternalMatch found = match(18);
  EXPECT_EQ(found.token_count, 16U);
  EXPECT_EQ(found.replay_tokens, 8U);
  EXPECT_TRUE(found.groups.empty());
  EXPECT_EQ(cache_->stats()->hit_tokens, 8U);
}

TEST_F(CacheGroupsExternalTest, GroupsWithoutPagesNeedNone) {
  CacheGroup tail = tail_group(8, 0, 8, kNone);
  open(external_config({compressed_group(4), tail}, {16, 0}));
  ASSERT_TRUE(offer(16, 0, ids({0, 1, 2, 3}), {}).has_value());
  EXPECT_EQ(match(15).token_count, 8U) << "a multiple of 8";
  EXPECT_EQ(match(17).token_count, 16U);
  expect_error(cache_->take_released({}, 1), ErrorCode::InvalidArgument, "group 'tail' has no pages");
}

TEST_F(CacheGroupsExternalTest, PathsWithoutHistoryHaveIdsWithoutBytes) {
  open(external_config({window_group(6)}, {12}));
  const std::vector<PageId> window = ids({9, 8, 7});
  ASSERT_TRUE(offer(12, 0, ids({0, 1, 2}), {{0, 0, window}}).has_value());
  const ExternalMatch found = match(13);
  EXPECT_EQ(found.token_count, 12U);
  ASSERT_EQ(found.groups.size(), 1U);
  EXPECT_TRUE(std::ranges::equal(found.groups[0].page_ids, ids({8, 7})));
}

// The example of the documents.
TEST_F(CacheGroupsExternalTest, WhatWasOfferedIsRead) {
  open(external_config({full_group(), window_group(6), state_group(0, kLast)}, {16, 12, 8}));
  Cache* const cache = cache_.get();
  const KeySpaceId space = space_;
  const std::vector<TokenId> prompt = token_range(1, 16);
  const std::vector<TokenId> longer_prompt = token_range(1, 20);
  const std::vector<PageId> history_pages = ids({4, 5, 6, 7});
  const std::vector<PageId> last_window_pages = ids({2, 3});
  const std::vector<PageId> snapshot_at_the_end = ids({1});
  std::vector<PageId> read;
  std::vector<GroupPage> read_of_groups;
  const auto reuse = [](std::uint32_t, PageId) { FAIL(); };
  const auto read_history = [&](std::span<const PageId> pages) { read.assign(pages.begin(), pages.end()); };
  const auto read_pages = [&](std::uint32_t group_index, std::uint32_t, std::span<const PageId> pages) {
    for (const PageId page : pages) read_of_groups.push_back({group_index, page});
  };
  // [external]
  const std::vector<GroupPages> others = {
      {.group_index = 1, .first_page = 2, .page_ids = last_window_pages},     // of the path's last two pages
      {.group_index = 2, .first_page = 3, .page_ids = snapshot_at_the_end}};  // taken where the last of them ends
  const OfferOutcome outcome =
      cache->offer(space, {.prompt = {prompt}, .page_ids = history_pages, .groups = others}).value();
  for (const GroupPage& mine : outcome.group_duplicates) reuse(mine.group_index, mine.page);

  const ExternalMatch match = cache->match(space, {longer_prompt}).value();
  read_history(match.pages);  // up to match.token_count
  for (const GroupPages& pages : match.groups) read_pages(pages.group_index, pages.first_page, pages.page_ids);
  // [external]
  EXPECT_EQ(match.token_count, 16U);
  EXPECT_EQ(read, history_pages);
  const std::vector<GroupPage> wanted = {{1, PageId{2}}, {1, PageId{3}}, {2, PageId{1}}};
  EXPECT_EQ(read_of_groups, wanted);
}

// What is offered

TEST_F(CacheGroupsExternalTest, PagesOfGroupsMayComeLater) {
  const std::vector<PageId> window = ids({1, 2, 3, 4});
  const std::vector<PageId> snapshot = ids({5});
  ASSERT_TRUE(offer(16, 0, ids({0, 1, 2, 3}), {{kWindow, 0, window}}).has_value());
  EXPECT_EQ(match(17).token_count, 0U) << "no state";
  const OfferOutcome outcome = offer(16, 4, {}, {{kState, 3, snapshot}}).value();
  EXPECT_EQ(outcome.prefix_pages, 4U);
  EXPECT_EQ(outcome.adopted_pages, 0U);
  EXPECT_EQ(outcome.adopted_group_pages, 1U);
  EXPECT_EQ(match(17).token_count, 16U);
}

TEST_F(CacheGroupsExternalTest, DuplicatesOfAGroupStayTheEngines) {
  offer_four_pages();
  const std::vector<PageId> window = ids({8, 9});
  const std::vector<PageId> snapshots = ids({3, 4});
  const OfferOutcome outcome = offer(20, 3, ids({8, 9}), {{kWindow, 3, window}, {kState, 3, snapshots}}).value();
  EXPECT_EQ(outcome.duplicate_pages, 1U);
  EXPECT_EQ(outcome.adopted_pages, 1U);
  EXPECT_EQ(outcome.adopted_group_pages, 2U);
  const std::vector<GroupPage> stay = {{kWindow, PageId{8}}, {kState, PageId{3}}};
  EXPECT_EQ(outcome.group_duplicates, stay);
  EXPECT_EQ(cache_->group_stats(kWindow)->duplicate_page_total, 1U);
  const std::vector<PageId> again = ids({8});
  EXPECT_EQ(offer(24, 5, ids({0}), {{kWindow, 5, again}})->adopted_group_pages, 1U);
}

TEST_F(CacheGroupsExternalTest, WithoutThePagesBeforeThemNothingIsAdopted) {
  const std::vector<PageId> window = ids({0});
  const OfferOutcome outcome = offer(8, 1, ids({1}), {{kWindow, 1, window}}).value();
  EXPECT_EQ(outcome.prefix_pages, 0U);
  EXPECT_EQ(outcome.adopted_pages, 0U);
  EXPECT_EQ(outcome.adopted_group_pages, 0U);
  EXPECT_EQ(cache_->group_stats(kWindow)->sealed_pages, 0U);
  EXPECT_TRUE(offer(8, 0, ids({0, 1}), {{kWindow, 1, window}}).has_value());
}

TEST_F(CacheGroupsExternalTest, WrongOffersAreRefusedAndLeaveNothingHeld) {
  const std::vector<PageId> good = ids({1, 2});
  const auto refused = [&](const std::vector<GroupPages>& groups, const std::string& text) {
    expect_error(offer(8, 0, ids({0, 1}), groups), ErrorCode::InvalidArgument, text);
    for (std::uint32_t g = 0; g < 3; ++g) EXPECT_EQ(cache_->group_stats(g)->sealed_pages, 0U) << text;
  };
  const std::vector<PageId> unknown = ids({3, 12});
  const std::vector<PageId> twice = ids({5, 5});
  const std::vector<PageId> three = ids({1, 2, 3});
  refused({{kWindow, 0, good}, {kWindow, 0, unknown}},
          "group 'window': page 12 is not below device.group_page_counts[1] = 12");
  refused({{kWindow, 0, good}, {kState, 0, twice}}, "group 'state': page 5 is offered twice");
  refused({{kWindow, 0, good}, {kWindow, 0, good}}, "group 'window': page 1 is offered twice");
  refused({{kWindow, 0, three}}, "group 'window': pages [0, 3) were offered; the path has 2 that are full");
  refused({{kWindow, UINT32_MAX, good}}, "pages [4294967295, 4294967297) were offered");
  refused({{kFull, 0, good}}, "group 'full' keeps everything");
  refused({{3, 0, good}}, "group_index is 3; the layout has 3 groups");
  expect_error(offer(8, 2, {}, {}), ErrorCode::InvalidArgument, "offer at least one page");
  expect_error(offer(8, 0, ids({16}), {{kWindow, 0, good}}), ErrorCode::InvalidArgument, "pages [0, 1) were offered");
  const std::vector<PageId> first = ids({0, 1});
  ASSERT_TRUE(offer(8, 0, first, {{kWindow, 0, good}}).has_value());
  expect_error(offer(12, 2, ids({2}), {{kWindow, 2, std::span(good).first(1)}}), ErrorCode::InvalidArgument,
               "group 'window': page 1 is offered twice");
  EXPECT_EQ(cache_->stats()->sealed_pages, 2U);
  expect_error(cache_->take_released({}, 3), ErrorCode::InvalidArgument, "take_released: group_index is 3");
  expect_error(cache_->reclaim(1, 3), ErrorCode::InvalidArgument, "reclaim: group_index is 3");
}

TEST_F(CacheGroupsExternalTest, ASnapshotThatNobodyCanGoOnFromIsRefused) {
  open(external_config({full_group(), tail_group(8, 2, 16, kLast)}, {16, 8}));
  const std::vector<PageId> snapshot = ids({0});
  expect_error(offer(16, 0, ids({0, 1, 2, 3}), {{1, 2, snapshot}}), ErrorCode::InvalidArgument,
               "a snapshot behind 12 tokens is of no use: it goes on at multiples of 8");
  EXPECT_TRUE(offer(16, 0, ids({0, 1, 2, 3}), {{1, 3, snapshot}}).has_value());
}

TEST_F(CacheGroupsExternalTest, LayoutsThatDoNotGoWithExternalPoolsAreRefused) {
  CacheConfig config = external_config({full_group(), window_group(6)}, {16, 8});
  config.device.group_page_counts.clear();
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, "needs device.group_page_counts");
  const CacheGroup draft = draft_group(1);
  expect_error(Cache::open(external_config({full_group(), draft}, {16, 16})), ErrorCode::Unsupported,
               "which needs an owned device pool");
  config = external_config({full_group(), window_group(6)}, {16, 0});
  expect_error(Cache::open(std::move(config)), ErrorCode::InvalidArgument, "raise device.group_page_counts[1]");
}

TEST_F(CacheGroupsExternalTest, TheEngineHasTheMemory) {
  for (std::uint32_t g = 0; g < 3; ++g) {
    EXPECT_EQ(cache_->device_memory(g), nullptr);
    EXPECT_EQ(cache_->geometry(g).page_count(), cache_->group_stats(g)->page_count);
  }
  EXPECT_EQ(cache_->state_memory(), nullptr);
  EXPECT_EQ(cache_->group_stats(kState)->slot_count, 0U);
}

// What comes back

TEST_F(CacheGroupsExternalTest, HistoryTakesAlongWhatHangsOnIt) {
  offer_four_pages();
  EXPECT_EQ(cache_->reclaim(1).value(), 1U);
  expect_error(offer(16, 3, ids({7}), {}), ErrorCode::InvalidArgument,
               "page 7 was given up, but take_released() has not named it");
  EXPECT_EQ(released(), ids({7}));
  EXPECT_TRUE(released().empty());
  EXPECT_EQ(released(kWindow), ids({3}));
  EXPECT_EQ(released(kState), ids({0}));
  EXPECT_TRUE(released(kFull).empty()) << "the history's, and those were named";
  EXPECT_TRUE(offer(16, 3, ids({7}), {}).has_value());
}

TEST_F(CacheGroupsExternalTest, AGroupsPagesGoAloneThoseThatWerePassedFirst) {
  offer_four_pages();
  EXPECT_EQ(cache_->reclaim(1, kWindow).value(), 1U);
  EXPECT_EQ(released(kWindow), ids({1})) << "which nobody needs behind 16 tokens";
  EXPECT_TRUE(released().empty());
  EXPECT_EQ(match(17).token_count, 16U);
  EXPECT_EQ(match(9).token_count, 0U);
  EXPECT_EQ(cache_->reclaim(9, kState).value(), 2U);
  EXPECT_EQ(cache_->group_stats(kState)->evicted_page_total, 2U);
  EXPECT_EQ(match(17).token_count, 0U);
  const std::vector<PageId> snapshot = ids({0});
  expect_error(offer(16, 4, {}, {{kState, 3, snapshot}}), ErrorCode::InvalidArgument,
               "group 'state': page 0 was given up, but take_released() has not named it yet");
  std::vector<PageId> buffer(1);
  EXPECT_EQ(cache_->take_released(buffer, kState)->size(), 1U);
  EXPECT_EQ(released(kState).size(), 1U);
  EXPECT_TRUE(offer(16, 4, {}, {{kState, 3, snapshot}}).has_value());
  EXPECT_EQ(match(17).token_count, 16U);
}

TEST_F(CacheGroupsExternalTest, MatchedPagesOfGroupsStayWhileTheyAreHeld) {
  offer_four_pages();
  {
    const ExternalMatch held = match(17);
    const ExternalMatch other = match(17);
    EXPECT_EQ(cache_->reclaim(16).value(), 0U);
    EXPECT_EQ(cache_->reclaim(16, kWindow).value(), 1U) << "the one that neither needs";
    EXPECT_EQ(cache_->reclaim(16, kState).value(), 1U);
    EXPECT_EQ(cache_->group_stats(kWindow)->pinned_pages, 3U);
    expect_invariants();
  }
  EXPECT_EQ(cache_->reclaim(16, kWindow).value(), 3U);
  EXPECT_EQ(cache_->reclaim(16).value(), 4U);
  EXPECT_EQ(released(kState).size(), 2U);
}

TEST_F(CacheGroupsExternalTest, KeptDroppedAndResetPathsCoverAllGroups) {
  offer_four_pages();
  const Kept kept = cache_->keep(space_, {.tokens = token_range(1, 16)}).value();
  EXPECT_EQ(kept.token_count, 16U);
  EXPECT_EQ(cache_->reclaim(16, kWindow).value(), 1U);
  EXPECT_EQ(match(17).token_count, 16U);
  ASSERT_TRUE(cache_->unkeep(kept.id));
  ASSERT_TRUE(cache_->drop(space_));
  EXPECT_EQ(released().size(), 4U);
  EXPECT_EQ(released(kWindow).size(), 4U);
  EXPECT_EQ(released(kState).size(), 2U);
  space_ = cache_->key_space({.model = "test"}).value();
  offer_four_pages();
  ASSERT_TRUE(cache_->reset());
  EXPECT_EQ(released(kWindow).size(), 4U);
  EXPECT_EQ(released(kState).size(), 2U);
}

// One group

class CacheExternalTest : public CacheGroupsExternalTest {
 protected:
  void SetUp() override { open(external_config({full_group()}, {16})); }
};

TEST_F(CacheExternalTest, OfferingAPageTwiceIsRefusedAndNothingChanges) {
  ASSERT_TRUE(offer(token_range(1, 8), 0, ids({0, 1})));
  const std::string text = "is offered twice";
  expect_error(offer(token_range(1, 8), 0, ids({0, 1})), ErrorCode::InvalidArgument, "page 0 " + text);
  expect_error(offer(token_range(50, 8), 0, ids({4, 1})), ErrorCode::InvalidArgument, "page 1 " + text);
  expect_error(offer(token_range(50, 8), 0, ids({4, 4})), ErrorCode::InvalidArgument, "page 4 " + text);
  EXPECT_EQ(cache_->stats()->sealed_pages, 2U);
  EXPECT_TRUE(offer(token_range(50, 4), 0, ids({4})));  // it was not left marked
}

TEST_F(CacheExternalTest, OffersMustFitTheirTokensAndThePool) {
  expect_error(offer(token_range(1, 8), 0, ids({0})), ErrorCode::InvalidArgument, "fill 2 pages");
  expect_error(offer(token_range(1, 8), 0, {}), ErrorCode::InvalidArgument, "at least one page");
  expect_error(offer(token_range(1, 3), 0, ids({0})), ErrorCode::InvalidArgument, "fill 0 pages");
  expect_error(offer(token_range(1, 4), 0, ids({16})), ErrorCode::InvalidArgument,
               "page 16 is not below device.page_count = 16");
  std::vector<TokenId> negative = token_range(1, 4);
  negative[2] = -1;
  expect_error(offer(negative, 0, ids({0})), ErrorCode::InvalidArgument, "token 2 is -1");
  EXPECT_EQ(cache_->stats()->sealed_pages, 0U);
}

TEST_F(CacheExternalTest, ReleasedPagesAreTakenInPiecesOldestFirst) {
  for (std::uint32_t round = 0; round < 10; ++round) {  // the ring wraps around
    const std::uint32_t first = round * 3 % 16;
    const std::vector<PageId> pages = ids({first, (first + 1) % 16, (first + 2) % 16});
    ASSERT_TRUE(offer(token_range(1, 12), 0, pages));
    EXPECT_EQ(cache_->reclaim(3).value(), 3U);
    std::vector<PageId> buffer(2);
    EXPECT_TRUE(std::ranges::equal(cache_->take_released(buffer).value(), std::span(pages).first(2)));
    EXPECT_EQ(released(), std::vector<PageId>{pages[2]});
    expect_invariants();
  }
}

}  // namespace
}  // namespace quire
