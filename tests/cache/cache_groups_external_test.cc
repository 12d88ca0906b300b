// SPDX-License-Identifier: Apache-2.0
//
// Engines that hand out device pages of several groups themselves: what they offer of windows and snapshots, what a
// match gives them, and which pages come back. An engine with memory of its own runs random requests, and a naive twin
// says what each must find.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "cache_groups_fixture.h"
#include "testing/sanitized.h"

namespace quire {
namespace {

std::vector<PageId> ids(std::initializer_list<std::uint32_t> values) {
  std::vector<PageId> pages;
  for (const std::uint32_t value : values) pages.push_back(PageId{value});
  return pages;
}

CacheConfig external_config(std::vector<CacheGroup> groups, std::vector<std::uint32_t> page_counts) {
  const std::uint32_t page_count = page_counts.front();
  CacheConfig config = groups_config(std::move(groups), 4, page_count, 64);
  config.device.pool = DevicePool::External;
  config.device.group_page_counts = std::move(page_counts);
  return config;
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

// Random requests

// An engine that owns the pages of all groups. What a token stores depends on all before it: it is computed from the
// state, which is taken from a snapshot where a match gives one. So wrong pages make wrong numbers.
class ExternalEngine {
 public:
  static constexpr std::uint32_t kPageTokens = 4;

  ExternalEngine(Cache& cache, KeySpaceId space)
      : cache_(cache), space_(space), groups_(cache.config().layout.groups()) {
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      Pool& pool = pools_.emplace_back();
      // Groups of the history have ids in common: those of the first.
      is_history_.push_back(groups_[g].kind == GroupKind::Full || groups_[g].kind == GroupKind::Compressed);
      const std::uint32_t page_count = cache.group_stats(g)->page_count;
      pool.rows.assign(std::size_t{page_count} * kPageTokens, 0);
      if (pool_of(g) != g) continue;
      own_pools_.push_back(g);
      for (std::uint32_t i = page_count; i > 0; --i) pool.free.push_back(PageId{i - 1});
      pool.owners.assign(page_count, Owner::Engine);
    }
  }

  /// Finds what is cached of a prompt, checks it, computes the rest, and offers it. Gives what is wrong.
  std::string serve(const std::vector<TokenId>& tokens, std::uint64_t draw, bool keeps_match) {
    Result<ExternalMatch> found = cache_.match(space_, {.tokens = tokens});
    if (!found) {
      held_.clear();
      found = cache_.match(space_, {.tokens = tokens});
    }
    const std::vector<std::uint64_t> numbers = numbers_of(tokens);
    if (const std::string wrong = check_match(tokens, numbers, *found); !wrong.empty()) return wrong;
    found_tokens_ += found->token_count;
    const std::string wrong = compute_and_offer(tokens, numbers, *found, draw);
    if (keeps_match) held_.push_back(std::move(*found));
    if (held_.size() > 3) held_.erase(held_.begin());
    return wrong;
  }

  /// Asks for pages of a group back, and hears which.
  std::string reclaim(std::uint32_t group, std::uint32_t count) {
    const std::uint32_t given = cache_.reclaim(count, group).value();
    std::uint32_t released = 0;
    const std::string wrong = take_released(group, released);
    if (!wrong.empty()) return wrong;
    return released >= given ? "" : "fewer pages are named than were given up";
  }
  std::string drop_all() {
    held_.clear();
    if (const Status status = cache_.reset(); !status) return status.error().message;
    std::uint32_t released = 0;
    if (std::string wrong = take_released(0, released); !wrong.empty()) return wrong;
    return twin_.empty() && by_page_.empty() ? "" : "something is left behind a reset";
  }

  /// Every page is in exactly one's hands, and both say the same.
  [[nodiscard]] std::string check() const {
    for (const std::uint32_t g : own_pools_) {
      const std::size_t held = static_cast<std::size_t>(std::ranges::count(pools_[g].owners, Owner::Cache));
      const GroupStats stats = cache_.group_stats(g).value();
      if (stats.sealed_pages != held) return "group " + std::to_string(g) + ": the cache holds other pages";
      if (pools_[g].free.size() + held != pools_[g].owners.size()) return "a page is nobody's, or has two owners";
      std::size_t in_twin = 0;
      for (const auto& [at, page] : twin_) in_twin += at.first == g ? 1 : 0;
      if (in_twin != held) return "group " + std::to_string(g) + ": the twin has other pages";
    }
    const Status status = cache_.check_invariants();
    return status ? "" : status.error().message;
  }
  [[nodiscard]] std::uint64_t found_tokens() const { return found_tokens_; }
  [[nodiscard]] std::uint64_t duplicates() const { return duplicates_; }
  [[nodiscard]] std::uint64_t released(std::uint32_t group) const { return pools_[group].released; }

 private:
  enum class Owner : std::uint8_t { Engine, Cache };
  struct Pool {
    std::vector<PageId> free;
    std::vector<Owner> owners;        // by page
    std::vector<std::uint64_t> rows;  // the memory
    std::uint64_t released = 0;
  };
  using Prefix = std::vector<TokenId>;  // names a page of a path: all tokens up to its end
  using Place = std::pair<std::uint32_t, Prefix>;

  // Numbers of all lengths, from scratch: what everything is compared with.
  [[nodiscard]] static std::vector<std::uint64_t> numbers_of(const std::vector<TokenId>& tokens) {
    std::vector<std::uint64_t> numbers = {0};
    for (const TokenId token : tokens) numbers.push_back(PrefixNumbers::next(numbers.back(), token));
    return numbers;
  }
  // A snapshot is the number itself, from which the engine goes on.
  [[nodiscard]] std::uint64_t row_of(std::uint32_t group, std::uint64_t number) const {
    return has_slot(groups_[group]) ? number : mix64(number + group);
  }
  [[nodiscard]] static Prefix prefix(const std::vector<TokenId>& tokens, std::uint32_t page) {
    return {tokens.begin(), tokens.begin() + ((page + 1) * kPageTokens)};
  }
  [[nodiscard]] bool has(std::uint32_t group, const std::vector<TokenId>& tokens, std::uint32_t page) const {
    return twin_.contains({group, prefix(tokens, page)});
  }

  // Groups of the history have their pages in common: the first's.
  [[nodiscard]] std::uint32_t pool_of(std::uint32_t group) const { return is_history_[group] ? 0 : group; }
  // Pages of a path that a group needs besides the history to go on behind b tokens, by looking at all tokens.
  [[nodiscard]] std::set<std::uint32_t> needed_pages(std::uint32_t g, std::uint32_t b, bool runs_again) const {
    const CacheGroup& group = groups_[g];
    std::set<std::uint32_t> pages;
    for (std::uint32_t t = 0; t < b && !is_history_[g]; ++t) {
      const bool is_in_window = t + group.window_tokens - (runs_again ? 0 : 1) >= b;
      const bool is_seen = has_slot(group) ? t + 1 == b : t < group.sink_tokens || is_in_window;
      if (is_seen) pages.insert(t / kPageTokens);
    }
    return pages;
  }
  // Whether a group can go on behind b tokens: what the cache must come to, by trying.
  [[nodiscard]] bool can_go_on(std::uint32_t g, const std::vector<TokenId>& tokens, std::uint32_t b) const {
    const CacheGroup& group = groups_[g];
    if (is_history_[g]) return b % group.tokens_per_entry == 0;
    if (has_slot(group) && b % boundary_multiple(group) != 0) return false;
    const std::set<std::uint32_t> needed = needed_pages(g, b, b == tokens.size());
    return std::ranges::all_of(needed, [&](std::uint32_t page) { return has(g, tokens, page); });
  }
  [[nodiscard]] std::uint32_t expected(const std::vector<TokenId>& tokens) const {
    const bool has_state = std::ranges::any_of(groups_, [](const CacheGroup& group) { return has_slot(group); });
    std::uint32_t history = 0;
    while ((history + 1) * kPageTokens <= tokens.size() && has(0, tokens, history)) ++history;
    for (std::uint32_t b = history * kPageTokens; b > 0; b -= kPageTokens) {
      bool is_held = !has_state || b < tokens.size();
      for (std::uint32_t g = 0; g < groups_.size(); ++g) is_held = is_held && can_go_on(g, tokens, b);
      if (is_held) return b;
    }
    return 0;
  }

  [[nodiscard]] std::string check_match(const std::vector<TokenId>& tokens, const std::vector<std::uint64_t>& numbers,
                                        const ExternalMatch& found) const {
    const std::uint32_t wanted = expected(tokens);
    if (found.token_count != wanted) {
      return std::to_string(found.token_count) + " tokens were found, not " + std::to_string(wanted);
    }
    if (found.pages.size() * kPageTokens != wanted) return "other pages of the history than tokens";
    // What is given is what was offered for these very tokens, and holds their numbers.
    const auto check_page = [&](std::uint32_t g, std::uint32_t page, PageId id) -> std::string {
      const auto at = twin_.find({pool_of(g), prefix(tokens, page)});
      if (at == twin_.end() || at->second != id) return "a page that was not offered there";
      if (pools_[pool_of(g)].owners[id.value] != Owner::Cache) return "a page that is not the cache's";
      const bool is_state = has_slot(groups_[g]);
      for (std::uint32_t i = 0; i < (is_state ? 1 : kPageTokens); ++i) {
        const std::uint32_t length = (page * kPageTokens) + (is_state ? kPageTokens : i + 1);
        if (pools_[g].rows[(id.value * kPageTokens) + i] != row_of(g, numbers[length])) return "wrong bytes";
      }
      return "";
    };
    std::vector<std::set<std::uint32_t>> given(groups_.size());
    const auto check_pages = [&](std::uint32_t g, std::uint32_t first, std::span<const PageId> page_ids) {
      std::string wrong;
      for (std::uint32_t i = 0; i < page_ids.size() && wrong.empty(); ++i) {
        wrong = check_page(g, first + i, page_ids[i]);
        given[g].insert(first + i);
      }
      return wrong.empty() ? "" : "group " + std::to_string(g) + ": " + wrong;
    };
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      if (!is_history_[g]) continue;
      if (std::string wrong = check_pages(g, 0, found.pages); !wrong.empty()) return wrong;
    }
    for (const GroupPages& piece : found.groups) {
      if (is_history_[piece.group_index]) return "history among the groups";
      std::string wrong = check_pages(piece.group_index, piece.first_page, piece.page_ids);
      if (!wrong.empty()) return wrong;
    }
    // And it is all that the group needs.
    for (std::uint32_t g = 0; g < groups_.size(); ++g) {
      const std::set<std::uint32_t> needed = needed_pages(g, wanted, wanted == tokens.size());
      if (!std::ranges::includes(given[g], needed)) return "a page that is needed is not given";
    }
    return "";
  }

  // A page of the engine's own, if need be one that the cache gives up for it.
  [[nodiscard]] std::optional<PageId> take(std::uint32_t g, std::string& wrong) {
    Pool& pool = pools_[g];
    if (pool.free.empty()) wrong = reclaim(g, 2);
    if (pool.free.empty() || !wrong.empty()) return std::nullopt;
    const PageId page = pool.free.back();
    pool.free.pop_back();
    return page;
  }

  std::string compute_and_offer(const std::vector<TokenId>& tokens, const std::vector<std::uint64_t>& numbers,
                                const ExternalMatch& found, std::uint64_t draw) {
    const auto page_count = static_cast<std::uint32_t>(tokens.size()) / kPageTokens;
    // Now and then what was found is computed once more, and stays the engine's.
    const std::uint32_t first = draw % 8 == 0 ? 0 : std::min(found.token_count / kPageTokens, page_count);
    // The state goes on from the snapshot, or from nothing.
    std::vector<std::uint64_t> computed(numbers.size());
    computed[first * kPageTokens] = numbers[first * kPageTokens];
    for (const GroupPages& piece : found.groups) {
      if (!has_slot(groups_[piece.group_index]) || first == 0) continue;
      computed[first * kPageTokens] = pools_[piece.group_index].rows[piece.page_ids[0].value * kPageTokens];
    }
    for (std::size_t i = std::size_t{first} * kPageTokens; i < tokens.size(); ++i) {
      computed[i + 1] = PrefixNumbers::next(computed[i], tokens[i]);
    }
    if (computed.back() != numbers.back()) return "the numbers are not those of all tokens";
    std::string wrong;
    const auto fill = [&](std::uint32_t g, std::uint32_t page) -> PageId {
      const std::optional<PageId> taken = take(pool_of(g), wrong);
      if (!taken) return PageId::none();
      for (std::uint32_t i = 0; i < kPageTokens; ++i) {
        const std::uint32_t length = (page * kPageTokens) + (has_slot(groups_[g]) ? kPageTokens : i + 1);
        for (std::uint32_t h = 0; h < groups_.size(); ++h) {
          if (pool_of(h) != pool_of(g)) continue;
          pools_[h].rows[(taken->value * kPageTokens) + i] = row_of(h, computed[length]);
        }
      }
      return *taken;
    };
    // Pages that are taken must not be asked back meanwhile: they are in no free list.
    std::vector<PageId> history;
    for (std::uint32_t page = first; page < page_count; ++page) {
      const PageId filled = fill(0, page);
      if (filled.is_none()) break;
      history.push_back(filled);
    }
    const auto end = static_cast<std::uint32_t>(first + history.size());
    std::vector<std::vector<PageId>> of_groups;
    std::vector<GroupPages> offered;
    of_groups.reserve(groups_.size() * page_count);
    for (std::uint32_t g = 0; g < groups_.size() && wrong.empty(); ++g) {
      if (is_history_[g]) continue;
      const std::uint32_t last = end > 0 ? end - 1 : 0;
      for (std::uint32_t page = first; page < end; ++page) {
        // All of a window or its last pages; a snapshot at the end, and now and then another.
        draw = mix64(draw + 1);
        const bool is_near = page + 3 > last || page == 0;
        const bool is_wanted = has_slot(groups_[g]) ? page == last || draw % 8 == 0 : is_near || draw % 3 != 0;
        if (!is_wanted || (page + 1) * kPageTokens % boundary_multiple(groups_[g]) != 0) continue;
        const PageId filled = fill(g, page);
        if (filled.is_none()) continue;
        of_groups.push_back({filled});
        offered.push_back({.group_index = g, .first_page = page, .page_ids = of_groups.back()});
      }
    }
    if (!wrong.empty() || (history.empty() && offered.empty())) return give_back(history, offered), wrong;
    const std::span<const TokenId> path(tokens.data(), std::size_t{end} * kPageTokens);
    const Result<OfferOutcome> outcome =
        cache_.offer(space_, {.prompt = {.tokens = path}, .first_page = first, .page_ids = history, .groups = offered});
    if (!outcome) return outcome.error().message;
    if (outcome->prefix_pages < first) return give_back(history, offered), "";
    return note_offer(tokens, first, history, offered, *outcome);
  }
  void give_back(const std::vector<PageId>& history, const std::vector<GroupPages>& offered) {
    pools_[0].free.insert(pools_[0].free.end(), history.begin(), history.end());
    for (const GroupPages& piece : offered) pools_[piece.group_index].free.push_back(piece.page_ids[0]);
  }
  // Who has which page from here on.
  std::string note_offer(const std::vector<TokenId>& tokens, std::uint32_t first, const std::vector<PageId>& history,
                         const std::vector<GroupPages>& offered, const OfferOutcome& outcome) {
    std::uint32_t adopted = 0;
    duplicates_ += outcome.duplicate_pages + outcome.group_duplicates.size();
    for (std::uint32_t i = 0; i < history.size(); ++i) {
      if (has(0, tokens, first + i) != (i < outcome.duplicate_pages)) return "other duplicates of the history";
      if (i < outcome.duplicate_pages) {
        pools_[0].free.push_back(history[i]);
      } else {
        adopt(0, prefix(tokens, first + i), history[i]);
      }
    }
    for (const GroupPages& piece : offered) {
      const GroupPage page{piece.group_index, piece.page_ids[0]};
      const bool is_duplicate = std::ranges::count(outcome.group_duplicates, page) > 0;
      if (has(page.group_index, tokens, piece.first_page) != is_duplicate) return "other duplicates of a group";
      if (is_duplicate) {
        pools_[page.group_index].free.push_back(page.page);
      } else {
        adopt(page.group_index, prefix(tokens, piece.first_page), page.page);
        ++adopted;
      }
    }
    return adopted == outcome.adopted_group_pages ? "" : "another number of adopted pages";
  }
  void adopt(std::uint32_t g, const Prefix& at, PageId page) {
    pools_[g].owners[page.value] = Owner::Cache;
    twin_[{g, at}] = page;
    by_page_[{g, page.value}] = at;
  }

  // All that the cache has given up, of all groups: with a page of the history goes what hangs on it.
  std::string take_released(std::uint32_t group, std::uint32_t& count) {
    for (const std::uint32_t g : own_pools_) {
      std::vector<PageId> buffer(5);
      for (;;) {
        const std::span<PageId> taken = cache_.take_released(buffer, g).value();
        if (taken.empty()) break;
        for (const PageId page : taken) {
          if (pools_[g].owners[page.value] != Owner::Cache) return "a page is released that was the engine's";
          for (const ExternalMatch& match : held_) {
            if (is_of(match, g, page)) return "a page is released that a match holds";
          }
          pools_[g].owners[page.value] = Owner::Engine;
          pools_[g].free.push_back(page);
          ++pools_[g].released;
          count += g == group ? 1 : 0;
          const auto at = by_page_.find({g, page.value});
          twin_.erase({g, at->second});
          by_page_.erase(at);
        }
      }
    }
    for (const auto& [at, page] : twin_) {
      if (at.first > 0 && !twin_.contains({0, at.second})) return "a page of a group hangs on nothing";
    }
    return "";
  }
  [[nodiscard]] bool is_of(const ExternalMatch& match, std::uint32_t g, PageId page) const {
    if (is_history_[g]) return std::ranges::count(match.pages, page) > 0;
    return std::ranges::any_of(match.groups, [&](const GroupPages& piece) {
      return piece.group_index == g && std::ranges::count(piece.page_ids, page) > 0;
    });
  }

  Cache& cache_;
  KeySpaceId space_;
  std::span<const CacheGroup> groups_;
  std::vector<bool> is_history_;
  std::vector<Pool> pools_;               // by group; the history's pages are the first group's
  std::vector<std::uint32_t> own_pools_;  // groups that have pages of their own
  std::map<Place, PageId> twin_;          // what the cache has been given and has not given up
  std::map<std::pair<std::uint32_t, std::uint32_t>, Prefix> by_page_;
  std::vector<ExternalMatch> held_;
  std::uint64_t found_tokens_ = 0;
  std::uint64_t duplicates_ = 0;
};

struct ExternalCase {
  std::string name;
  std::vector<CacheGroup> groups;
  std::vector<std::uint32_t> page_counts;
};

std::vector<ExternalCase> external_cases() {
  return {
      {"Plain", {full_group()}, {40}},
      {"Window", {full_group(), window_group(6)}, {40, 24}},
      {"Sink", {full_group(), with_sink(window_group(7), 5)}, {40, 30}},
      {"State", {full_group(), state_group(0, kLast)}, {40, 12}},
      {"Compressed", {full_group(), compressed_group(4), window_group(5)}, {40, 40, 30}},
      {"Everything",
       {full_group(), compressed_group(4), with_sink(window_group(9), 2), named(window_group(4), "short"),
        state_group(0, kLast), tail_group(8, 2, 16, kLast)},
       {48, 48, 40, 30, 20, 20}},
  };
}

class CacheGroupsExternalRandomTest : public ::testing::TestWithParam<ExternalCase> {};

TEST_P(CacheGroupsExternalRandomTest, PagesAreWhereTheTwinSays) {
  constexpr std::uint32_t kSeeds = testing::kIsSanitized ? 2 : 6;
  std::uint64_t found = 0;
  std::uint64_t duplicates = 0;
  std::vector<std::uint64_t> released(GetParam().groups.size());
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const std::unique_ptr<Cache> cache = open_cache(external_config(GetParam().groups, GetParam().page_counts));
    ExternalEngine engine(*cache, cache->key_space({.model = "test"}).value());
    std::uint64_t state = mix64(seed);
    const auto below = [&](std::uint32_t end) {
      state = mix64(state + 1);
      return static_cast<std::uint32_t>(state % end);
    };
    for (std::uint32_t call = 0; call < 250; ++call) {
      std::string wrong;
      const std::uint32_t kind = below(40);
      if (kind == 0) {
        wrong = engine.drop_all();
      } else if (kind < 8) {
        const std::uint32_t group = below(static_cast<std::uint32_t>(GetParam().groups.size()));
        const CacheGroup& of = GetParam().groups[group];
        const bool is_history = of.kind == GroupKind::Full || of.kind == GroupKind::Compressed;
        wrong = engine.reclaim(is_history ? 0 : group, 1 + below(6));
      } else {
        // Few beginnings, which part at a few places.
        std::vector<TokenId> tokens = with_tail({}, static_cast<TokenId>(below(3)), 4 + below(20));
        tokens = with_tail(tokens, static_cast<TokenId>(10 + below(3)), below(24));
        wrong = engine.serve(tokens, state, below(4) == 0);
      }
      if (wrong.empty()) wrong = engine.check();
      ASSERT_EQ(wrong, "") << GetParam().name << ", seed " << seed << ", call " << call;
    }
    found += engine.found_tokens();
    duplicates += engine.duplicates();
    for (std::uint32_t g = 0; g < released.size(); ++g) released[g] += engine.released(g);
  }
  EXPECT_GT(found, 0U);
  EXPECT_GT(duplicates, 0U);
  for (std::uint32_t g = 0; g < released.size(); ++g) {
    const GroupKind kind = GetParam().groups[g].kind;
    const bool has_pool = g == 0 || kind == GroupKind::Window || kind == GroupKind::Snapshot;
    EXPECT_EQ(released[g] > 0, has_pool) << g;
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, CacheGroupsExternalRandomTest, ::testing::ValuesIn(external_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace quire
