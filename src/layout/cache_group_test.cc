// SPDX-License-Identifier: Apache-2.0
//
// The kinds of groups: what each keeps, what its pages and slots hold, and which numbers contradict each other.
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "quire/layout.h"
#include "quire/types.h"

namespace quire {
namespace {

constexpr std::uint32_t kUint32Max = std::numeric_limits<std::uint32_t>::max();

std::vector<Component> row_of(std::uint32_t bytes) {
  return {{.name = "row", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = bytes}};
}

CacheGroup full_group() {
  return {.name = "g", .layers = {0, 1}, .components = row_of(10)};
}

CacheGroup window_group(std::uint32_t window_tokens) {
  CacheGroup group = full_group();
  group.kind = GroupKind::Window;
  group.window_tokens = window_tokens;
  return group;
}

CacheGroup ring_group(std::uint32_t window_tokens, std::uint32_t slot_entries) {
  CacheGroup group = window_group(window_tokens);
  group.window_form = WindowForm::Ring;
  group.slot_entries = slot_entries;
  group.retention = {.rule = RetentionRule::Every, .interval_tokens = 64};
  return group;
}

CacheGroup compressed_group(std::uint32_t tokens_per_entry, std::uint32_t overlap_tokens = 0) {
  CacheGroup group = full_group();
  group.kind = GroupKind::Compressed;
  group.tokens_per_entry = tokens_per_entry;
  group.overlap_tokens = overlap_tokens;
  return group;
}

CacheGroup snapshot_group(std::uint32_t slot_entries) {
  CacheGroup group = full_group();
  group.kind = GroupKind::Snapshot;
  group.slot_entries = slot_entries;
  group.retention = {.rule = RetentionRule::Last};
  return group;
}

PageGeometry make_page(const CacheGroup& group, std::uint32_t page_tokens) {
  auto page = PageGeometry::create(group, {.page_tokens = page_tokens});
  EXPECT_TRUE(page.has_value()) << page.error().message;
  return *page;
}

PageGeometry make_slot(const CacheGroup& group) {
  auto slot = PageGeometry::create_slot(group, {});
  EXPECT_TRUE(slot.has_value()) << slot.error().message;
  return *slot;
}

std::string error_of(const Result<PageGeometry>& page) {
  if (page) return "no error";
  EXPECT_EQ(page.error().code, ErrorCode::InvalidArgument);
  return page.error().message;
}

std::string page_error(const CacheGroup& group, std::uint32_t page_tokens = 16) {
  return error_of(PageGeometry::create(group, {.page_tokens = page_tokens}));
}

// ── What is needed to resume ──

TEST(CacheGroup, AFullGroupLooksBackAtNothingMoreThanWhatItHolds) {
  EXPECT_EQ(lookback_tokens(full_group(), 1'000), 0U);
}

TEST(CacheGroup, AWindowLooksBackAtAllItsTokensButTheOneThatIsComputed) {
  EXPECT_EQ(lookback_tokens(window_group(128), 1'000), 127U);
  EXPECT_EQ(lookback_tokens(window_group(128), 100), 100U);
  EXPECT_EQ(lookback_tokens(window_group(1), 1'000), 0U);
}

TEST(CacheGroup, AnOverlappedCompressorLooksBackByMAtItsBoundariesAndUpToTwoMLessOneElsewhere) {
  const CacheGroup group = compressed_group(4, 4);
  EXPECT_EQ(lookback_tokens(group, 400), 4U);
  EXPECT_EQ(lookback_tokens(group, 401), 5U);
  EXPECT_EQ(lookback_tokens(group, 403), 7U);
  EXPECT_EQ(lookback_tokens(group, 0), 0U);
  EXPECT_EQ(lookback_tokens(group, 3), 3U);
}

TEST(CacheGroup, ACompressorWithoutOverlapLooksBackToItsLastBoundary) {
  EXPECT_EQ(lookback_tokens(compressed_group(128), 1'280), 0U);
  EXPECT_EQ(lookback_tokens(compressed_group(128), 1'283), 3U);
}

TEST(CacheGroup, AStateIsOneAndATailIsItsSnapshot) {
  EXPECT_EQ(lookback_tokens(snapshot_group(1), 1'000), 1U);
  CacheGroup tail = snapshot_group(8);
  tail.snapshot_entries = 4;
  tail.boundary_tokens = 4;
  EXPECT_EQ(lookback_tokens(tail, 1'000), 4U);
  EXPECT_EQ(boundary_multiple(tail), 4U);
}

TEST(CacheGroup, WhatIsNeverKeptIsReusableOnlyIfNothingIsNeededOrItIsReplayed) {
  EXPECT_TRUE(is_reusable(full_group()));
  EXPECT_TRUE(is_reusable(compressed_group(4)));
  EXPECT_TRUE(is_reusable(snapshot_group(1)));
  CacheGroup window = window_group(128);
  window.retention = {.rule = RetentionRule::None};
  EXPECT_FALSE(is_reusable(window));
  EXPECT_TRUE(has_pages(window));
  window.replay = {.tokens = 127};
  EXPECT_TRUE(is_reusable(window));

  CacheGroup tail = snapshot_group(128);
  tail.retention = {.rule = RetentionRule::None};
  tail.boundary_tokens = 128;
  EXPECT_FALSE(is_reusable(tail));
  EXPECT_FALSE(has_pages(tail));
  tail.snapshot_entries = 0;
  EXPECT_TRUE(is_reusable(tail));
  EXPECT_FALSE(has_pages(tail));
  EXPECT_TRUE(has_slot(tail));
}

// ── Pages and slots ──

TEST(CacheGroup, APageOfACompressedGroupHasOneEntryForEveryFewTokens) {
  const PageGeometry page = make_page(compressed_group(4), 128);
  EXPECT_EQ(page.entry_count(), 32U);
  EXPECT_EQ(page.layer_bytes(), 320U);
  EXPECT_EQ(page.page_bytes(), 640U);
  EXPECT_EQ(page.entry_bytes(), 20U);
  EXPECT_EQ(page.token_bytes(), 5U);
  const auto pool = PoolGeometry::create(page, {.page_count = 3, .byte_layout = ByteLayout::LayerFirst});
  EXPECT_EQ(pool->offset_of({.page = PageId{2}, .layer_index = 1, .token_index = 31}), 3U * 320 + 2 * 320 + 310);
}

TEST(CacheGroup, APageOfAPagedWindowHasAllItsTokens) {
  EXPECT_EQ(make_page(window_group(128), 16).entry_count(), 16U);
  EXPECT_EQ(make_page(window_group(3), 16).entry_count(), 16U);
}

TEST(CacheGroup, ASnapshotOfARingHasTheWindowAndTheSink) {
  CacheGroup ring = ring_group(12, 20);
  EXPECT_EQ(make_page(ring, 16).entry_count(), 12U);
  EXPECT_EQ(make_slot(ring).entry_count(), 20U);
  ring.sink_tokens = 4;
  ring.keys_rotated = false;
  EXPECT_EQ(make_page(ring, 16).entry_count(), 16U);
  EXPECT_EQ(make_slot(ring).page_bytes(), 20U * 10 * 2);
}

TEST(CacheGroup, ASlotKeepsItsStateAndEarlierVersionsOfIt) {
  CacheGroup state = snapshot_group(1);
  state.slot_history = 5;
  EXPECT_EQ(make_page(state, 16).page_bytes(), 20U);
  EXPECT_EQ(make_slot(state).page_bytes(), 6U * 20);
}

TEST(CacheGroup, PagesOfSnapshotsDoNotDependOnTheTokensOfAPage) {
  CacheGroup tail = snapshot_group(8);
  tail.snapshot_entries = 4;
  for (const std::uint32_t page_tokens : {1U, 16U, 100U}) EXPECT_EQ(make_page(tail, page_tokens).page_bytes(), 80U);
}

TEST(CacheGroupDeathTest, AnEntryOutsideThePageStopsTheProgram) {
  const auto pool = PoolGeometry::create(make_page(compressed_group(4), 16), {.page_count = 1});
  EXPECT_DEATH((void)pool->offset_of({.page = PageId{0}, .token_index = 4}), "no such token");
}

// ── What is refused ──

TEST(CacheGroup, PagesHoldWholeEntries) {
  EXPECT_EQ(page_error(compressed_group(128), 64),
            "group 'g': a page of 64 tokens holds no whole number of entries of 128 tokens: use a multiple of 128");
  EXPECT_EQ(page_error(compressed_group(4), 6),
            "group 'g': a page of 6 tokens holds no whole number of entries of 4 tokens: use a multiple of 4");
}

TEST(CacheGroup, WindowsThatCannotBeAreRefused) {
  EXPECT_EQ(page_error(window_group(0)),
            "group 'g': window_tokens is 0: give the number of tokens that a token sees, itself included");
  CacheGroup group = window_group(128);
  group.sink_tokens = 128;
  EXPECT_EQ(page_error(group),
            "group 'g': sink_tokens is 128, window_tokens 128: the sink must be smaller than the window");
  group.sink_tokens = 4;
  EXPECT_EQ(page_error(group),
            "group 'g': a sink of 4 tokens renumbers positions, which keys that are stored rotated do not allow: "
            "declare keys_rotated = false and rotate in the attention kernel");
  group.keys_rotated = false;
  EXPECT_EQ(page_error(group), "no error");
  EXPECT_EQ(page_error(ring_group(128, 100)),
            "group 'g': slot_entries is 100, less than the window of 128 and the sink of 0: use 128, and one more for "
            "each token that may be taken back");
  group.window_form = static_cast<WindowForm>(9);
  EXPECT_EQ(page_error(group), "group 'g' has an unknown window_form: use a WindowForm");
}

TEST(CacheGroup, CompressedEntriesStandForSeveralTokens) {
  EXPECT_EQ(page_error(compressed_group(1)),
            "group 'g': tokens_per_entry is 1: a compressed group has one entry for 2 tokens or more");
  EXPECT_NE(page_error(compressed_group(0)).find("tokens_per_entry is 0"), std::string::npos);
  EXPECT_EQ(page_error(compressed_group(4, 3)),
            "group 'g': overlap_tokens is 3, no multiple of the 4 tokens of an entry");
}

TEST(CacheGroup, SnapshotsThatCannotBeAreRefused) {
  EXPECT_EQ(page_error(snapshot_group(0)),
            "group 'g': slot_entries is 0: give the entries of a sequence's state, 1 for a recurrent state");
  CacheGroup group = snapshot_group(2);
  group.snapshot_entries = 3;
  EXPECT_EQ(page_error(group), "group 'g': snapshot_entries is 3, but a slot has 2 entries");
  group.snapshot_entries = 2;
  group.boundary_tokens = 0;
  EXPECT_EQ(page_error(group), "group 'g': boundary_tokens is 0: use 1 for any position");
}

TEST(CacheGroup, FieldsOfOtherKindsAreRefused) {
  CacheGroup group = snapshot_group(1);
  group.tokens_per_entry = 4;
  EXPECT_EQ(page_error(group),
            "group 'g': tokens_per_entry is 4, which a snapshot group does not have: leave it at 1 or change the kind");
  group = full_group();
  group.window_tokens = 128;
  EXPECT_EQ(page_error(group),
            "group 'g': window_tokens is 128, which a full group does not have: leave it at 0 or change the kind");
  group = window_group(128);
  group.slot_entries = 128;
  EXPECT_EQ(page_error(group),
            "group 'g': slot_entries is 128, which a paged window group does not have: leave it at 0 or change the "
            "kind");
  group = compressed_group(4);
  group.snapshot_entries = 0;
  EXPECT_NE(page_error(group).find("snapshot_entries is 0, which a compressed group"), std::string::npos);
  group = full_group();
  group.window_form = WindowForm::Ring;
  EXPECT_EQ(page_error(group), "group 'g': window_form is for window groups, and this one is full");
}

TEST(CacheGroup, RetentionFitsTheKind) {
  CacheGroup group = full_group();
  group.retention = {.rule = RetentionRule::Every, .interval_tokens = 64};
  EXPECT_EQ(page_error(group),
            "group 'g' is full and needs everything before a position to resume there: its retention is Dense");
  group = compressed_group(4);
  group.retention = {.rule = RetentionRule::None};
  EXPECT_NE(page_error(group).find("is compressed and needs everything"), std::string::npos);

  group = snapshot_group(1);
  group.retention = {};
  EXPECT_EQ(page_error(group),
            "group 'g': its retention is Dense, but a snapshot at every token would be taken: use Every with an "
            "interval, Last, or None");
  group.retention = {.rule = RetentionRule::Every};
  EXPECT_EQ(page_error(group), "group 'g': retention.interval_tokens is 0: use a multiple of 1");
  group.boundary_tokens = 128;
  group.retention.interval_tokens = 192;
  EXPECT_EQ(page_error(group), "group 'g': retention.interval_tokens is 192: use a multiple of 128");
  group.retention = {.rule = RetentionRule::Last, .interval_tokens = 128};
  EXPECT_EQ(page_error(group), "group 'g': retention.interval_tokens is 128, but the rule is not Every: leave it at 0");
  group.retention = {.rule = static_cast<RetentionRule>(9)};
  EXPECT_EQ(page_error(group), "group 'g' has an unknown retention rule: use a RetentionRule");
  group.retention = {.rule = RetentionRule::Last};
  group.snapshot_entries = 0;
  EXPECT_EQ(page_error(group), "group 'g': snapshot_entries is 0, so there is nothing to keep: its retention is None");
}

TEST(CacheGroup, AReplayGivesWhatIsNeeded) {
  CacheGroup group = window_group(128);
  group.replay = {.tokens = 64};
  EXPECT_EQ(page_error(group), "group 'g': replay.tokens is 64, fewer than the 127 that the group needs to resume");
  group.replay.tokens = 127;
  EXPECT_EQ(page_error(group), "no error");
  group.replay = {.is_exact = true};
  EXPECT_EQ(page_error(group), "group 'g': replay.tokens is 0, so there is nothing to be exact");
  group = full_group();
  group.replay = {.tokens = 64};
  EXPECT_EQ(page_error(group),
            "group 'g': replay.tokens is 64, but the group needs nothing that a replay of a few tokens could give");
}

TEST(CacheGroup, PagesAndSlotsThatDoNotExistAreRefused) {
  CacheGroup group = snapshot_group(4);
  group.retention = {.rule = RetentionRule::None};
  EXPECT_EQ(page_error(group), "group 'g' has no pages: it lives in state slots and is never kept");
  EXPECT_EQ(error_of(PageGeometry::create_slot(full_group(), {})),
            "group 'g' keeps nothing in state slots: only snapshot groups and rings do");
}

TEST(CacheGroup, UnknownKindsAreRefused) {
  CacheGroup group = full_group();
  group.kind = static_cast<GroupKind>(9);
  EXPECT_EQ(page_error(group), "group 'g' has an unknown kind: use a GroupKind");
}

TEST(CacheGroup, SlotsBeyondTheirNumbersAreRefused) {
  CacheGroup group = snapshot_group(kUint32Max);
  group.slot_history = 1;
  EXPECT_EQ(error_of(PageGeometry::create_slot(group, {})),
            "group 'g': a state slot would have 8,589,934,590 entries: use 2^32 - 1 at most");
  group.slot_history = 0;
  group.components = row_of(kUint32Max);
  EXPECT_EQ(error_of(PageGeometry::create_slot(group, {})),
            "group 'g': a state slot does not fit in 64 bits (2 layers x 18,446,744,065,119,617,025 bytes): make it "
            "smaller");
}

// ── Several groups ──

std::string layout_error(std::vector<CacheGroup> groups) {
  const auto layout = ModelLayout::create("m", std::move(groups));
  if (layout) return "no error";
  EXPECT_EQ(layout.error().code, ErrorCode::InvalidArgument);
  return layout.error().message;
}

CacheGroup named(CacheGroup group, std::string name) {
  group.name = std::move(name);
  return group;
}

TEST(CacheGroup, HitsEndWhereEveryGroupCanResume) {
  const auto multiple = [](std::vector<CacheGroup> groups) {
    const auto layout = ModelLayout::create("m", std::move(groups));
    EXPECT_TRUE(layout.has_value()) << layout.error().message;
    return std::pair(layout->hit_multiple_tokens(), layout->page_multiple_tokens());
  };
  EXPECT_EQ(multiple({full_group(), named(window_group(128), "w")}), (std::pair{1U, 1U}));
  EXPECT_EQ(multiple({compressed_group(4), named(compressed_group(6), "c")}), (std::pair{12U, 12U}));
  CacheGroup tail = named(snapshot_group(8), "t");
  tail.boundary_tokens = 8;
  EXPECT_EQ(multiple({compressed_group(4), tail}), (std::pair{8U, 4U}));
  tail.retention = {.rule = RetentionRule::None};
  EXPECT_EQ(multiple({compressed_group(4), tail}), (std::pair{0U, 4U}));
}

TEST(CacheGroup, MultiplesThatPositionsCannotCountAreRefused) {
  EXPECT_EQ(layout_error({compressed_group(1U << 20U), named(compressed_group((1U << 20U) - 1), "c")}),
            "layout 'm': group 'c' works in multiples of 1,048,575 tokens, the groups before it in multiples of "
            "1,048,576: together that is every 1,099,510,579,200 tokens, more than positions can count");
}

TEST(CacheGroup, OnlyGroupsThatKeepEverythingGrowWithTheContext) {
  const auto layout = ModelLayout::create("m", {full_group(), named(window_group(8), "w"), named(ring_group(8, 8), "r"),
                                                named(compressed_group(128), "c"), named(snapshot_group(1), "s")});
  ASSERT_TRUE(layout.has_value()) << layout.error().message;
  EXPECT_EQ(layout->token_bytes(), 20U + 1);
}

TEST(CacheGroup, OverlappingEntriesNeedSomebodyWhoKeepsTheRows) {
  CacheGroup tail = named(snapshot_group(8), "tail");
  tail.snapshot_entries = 4;
  tail.boundary_tokens = 4;
  const CacheGroup entries = compressed_group(4, 4);
  EXPECT_EQ(layout_error({entries, tail}), "no error");
  EXPECT_EQ(layout_error({entries}),
            "layout 'm', group 'g': its entries overlap by 4 tokens, and in layer 0 no group keeps the rows of these: "
            "declare a snapshot group with snapshot_entries 4, or a replay");
  tail.layers = {0};
  EXPECT_NE(layout_error({entries, tail}).find("and in layer 1 no group"), std::string::npos);
  CacheGroup replayed = entries;
  replayed.replay = {.tokens = 4};
  EXPECT_EQ(layout_error({replayed}), "no error");
}

}  // namespace
}  // namespace quire
