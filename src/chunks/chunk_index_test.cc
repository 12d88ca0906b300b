// SPDX-License-Identifier: Apache-2.0
#include "quire/chunk_index.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr KeySpaceId kSpace{.index = 0, .generation = 0};
constexpr KeySpaceId kOtherSpace{.index = 1, .generation = 0};
constexpr std::uint32_t kPageTokens = 4;

using enum ChunkStatus;

PageHandle handle(std::uint64_t value) {
  return {value};
}

/// One page for each letter: four tokens that no other letter has.
std::vector<TokenId> text(std::string_view letters) {
  std::vector<TokenId> tokens;
  for (const char letter : letters) {
    for (int i = 0; i < static_cast<int>(kPageTokens); ++i) tokens.push_back((letter * 10) + i);
  }
  return tokens;
}

class ChunkIndexTest : public ::testing::Test {
 protected:
  explicit ChunkIndexTest(std::uint32_t page_count_max = 64)
      : index_(*ChunkIndex::create({.page_tokens = kPageTokens, .page_count_max = page_count_max})) {}
  ~ChunkIndexTest() override {
    const Status status = index_->check_invariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }

  /// Pages get the handles first, first + 1, …
  ChunkInsertion insert(std::string_view letters, std::uint64_t first, KeySpaceId key_space = kSpace) {
    std::vector<PageHandle> handles;
    for (std::size_t i = 0; i < letters.size(); ++i) handles.push_back(handle(first + i));
    return *index_->insert(key_space, {.tokens = text(letters)}, handles);
  }

  ChunkMatch lookup(std::initializer_list<std::string_view> chunks, KeySpaceId key_space = kSpace) {
    std::vector<std::vector<TokenId>> texts;
    for (const std::string_view letters : chunks) texts.push_back(text(letters));
    return lookup_tokens(texts, key_space);
  }
  ChunkMatch lookup_tokens(const std::vector<std::vector<TokenId>>& texts, KeySpaceId key_space = kSpace) {
    std::vector<Chunk> spans;
    for (const std::vector<TokenId>& tokens : texts) spans.push_back({.tokens = tokens});
    return *index_->lookup(key_space, spans, out_);
  }

  static std::vector<ChunkStatus> statuses(const ChunkMatch& match) {
    std::vector<ChunkStatus> list;
    for (const ChunkPage& page : match.pages) list.push_back(page.status);
    return list;
  }
  static std::vector<std::uint64_t> handles(const ChunkMatch& match) {
    std::vector<std::uint64_t> list;
    for (const ChunkPage& page : match.pages) list.push_back(page.handle.value);
    return list;
  }

  std::unique_ptr<ChunkIndex> index_;
  std::array<ChunkPage, 64> out_{};
};

using Statuses = std::vector<ChunkStatus>;
using Handles = std::vector<std::uint64_t>;
constexpr std::uint64_t kNoHandle = PageHandle::none().value;

// ── statuses ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(ChunkIndexTest, EveryPageIsVisitedTheLeastRecentlyUsedOneFirst) {
  insert("ab", 1);
  insert("c", 9, kOtherSpace);
  EXPECT_TRUE(index_->touch(handle(1)));
  std::vector<std::pair<std::uint64_t, KeySpaceId>> visited;
  index_->visit_pages([&](PageHandle page, KeySpaceId space) { visited.emplace_back(page.value, space); });
  const std::vector<std::pair<std::uint64_t, KeySpaceId>> expected{{2, kSpace}, {9, kOtherSpace}, {1, kSpace}};
  EXPECT_EQ(visited, expected);
}

TEST_F(ChunkIndexTest, APrefixThatWasInsertedIsExact) {
  insert("abc", 10);
  const ChunkMatch match = lookup({"abc"});
  EXPECT_EQ(statuses(match), (Statuses{Exact, Exact, Exact}));
  EXPECT_EQ(handles(match), (Handles{10, 11, 12}));
  EXPECT_EQ(match.exact_pages, 3U);
  EXPECT_EQ(match.partial_pages, 0U);
  EXPECT_EQ(match.recompute_tokens, 0U);
  EXPECT_EQ(match.scratch_pages, 0U);
}

TEST_F(ChunkIndexTest, HowATextIsCutIntoChunksMakesNoDifference) {
  insert("abc", 10);
  EXPECT_EQ(statuses(lookup({"a", "bc"})), (Statuses{Exact, Exact, Exact}));
  EXPECT_EQ(statuses(lookup({"a", "b", "c"})), (Statuses{Exact, Exact, Exact}));
}

TEST_F(ChunkIndexTest, APageBehindOtherTokensIsPartial) {
  insert("abc", 10);
  const ChunkMatch match = lookup({"b", "a", "c"});
  EXPECT_EQ(statuses(match), (Statuses{Partial, Partial, Partial}));
  EXPECT_EQ(handles(match), (Handles{11, 10, 12}));
}

TEST_F(ChunkIndexTest, WhatIsNotFoundSaysWhetherAPartialPageStandsBeforeIt) {
  insert("abc", 10);
  const ChunkMatch match = lookup({"ax", "c", "y", "b"});
  EXPECT_EQ(statuses(match), (Statuses{Exact, NotMatchExact, Partial, NotMatchPartial, Partial}));
  EXPECT_EQ(handles(match), (Handles{10, kNoHandle, 12, kNoHandle, 11}));
  EXPECT_EQ(match.exact_pages, 1U);
  EXPECT_EQ(match.partial_pages, 2U);
}

TEST_F(ChunkIndexTest, NothingFoundIsExactToCompute) {
  EXPECT_EQ(statuses(lookup({"ab"})), (Statuses{NotMatchExact, NotMatchExact}));
}

TEST_F(ChunkIndexTest, AnExactPageMayFollowAPartialOne) {
  insert("ab", 10);
  insert("xa", 20);
  EXPECT_TRUE(index_->erase(handle(10)));  // what is left of "a" was computed behind "x"
  const ChunkMatch match = lookup({"ab"});
  EXPECT_EQ(statuses(match), (Statuses{Partial, Exact}));
  EXPECT_EQ(handles(match), (Handles{21, 11}));
}

TEST_F(ChunkIndexTest, PositionsBeyondTheChunksHaveAStatus) {
  insert("ab", 10);
  const ChunkMatch exact = lookup({"ab"});
  EXPECT_EQ(exact.status(1), Exact);
  EXPECT_EQ(exact.status(2), NotMatchExact);
  EXPECT_EQ(exact.status(1000), NotMatchExact);
  const ChunkMatch partial = lookup({"b"});
  EXPECT_EQ(partial.status(0), Partial);
  EXPECT_EQ(partial.status(1), NotMatchPartial);
}

TEST_F(ChunkIndexTest, TheSamePageTwiceInATextIsExactOnlyWhereItWasComputed) {
  insert("aa", 10);
  EXPECT_EQ(handles(lookup({"aa"})), (Handles{10, 11}));
  EXPECT_EQ(statuses(lookup({"aaa"})), (Statuses{Exact, Exact, Partial}));
}

TEST_F(ChunkIndexTest, APartialPageIsTheMostRecentlyUsedOfItsContent) {
  insert("xa", 10);
  insert("ya", 20);
  EXPECT_EQ(handles(lookup({"a"})), (Handles{21}));
  EXPECT_TRUE(index_->touch(handle(11)));
  EXPECT_EQ(handles(lookup({"a"})), (Handles{11}));
}

TEST_F(ChunkIndexTest, KeySpacesShareNothing) {
  insert("ab", 10);
  EXPECT_EQ(statuses(lookup({"ab"}, kOtherSpace)), (Statuses{NotMatchExact, NotMatchExact}));
  EXPECT_EQ(statuses(lookup({"ab"}, {.index = 0, .generation = 1})), (Statuses{NotMatchExact, NotMatchExact}));
  insert("ab", 20, kOtherSpace);
  EXPECT_EQ(handles(lookup({"ab"})), (Handles{10, 11}));
  EXPECT_EQ(handles(lookup({"ab"}, kOtherSpace)), (Handles{20, 21}));
}

// ── tails ────────────────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(ChunkIndexTest, ATailIsNotIndexed) {
  std::vector<TokenId> tokens = text("ab");
  tokens.pop_back();
  const std::array handles_of{handle(10)};
  ASSERT_TRUE(index_->insert(kSpace, {.tokens = tokens}, handles_of).has_value());
  EXPECT_EQ(index_->page_count(), 1U);
  EXPECT_EQ(statuses(lookup({"ab"})), (Statuses{Exact, NotMatchExact}));
}

TEST_F(ChunkIndexTest, NothingBehindATailIsExact) {
  insert("abc", 10);
  std::vector<TokenId> with_tail = text("a");
  with_tail.push_back(99);
  const ChunkMatch match = lookup_tokens({with_tail, text("bx"), text("c")});
  EXPECT_EQ(statuses(match), (Statuses{Exact, Partial, NotMatchPartial, Partial}));
  EXPECT_EQ(match.dropped_tokens, 1U);
  // What is not found there is exact all the same when it is computed.
  EXPECT_EQ(statuses(lookup_tokens({with_tail, text("x")})), (Statuses{Exact, NotMatchExact}));
}

TEST_F(ChunkIndexTest, TheLastChunksTailChangesNothing) {
  insert("ab", 10);
  std::vector<TokenId> with_tail = text("ab");
  with_tail.push_back(99);
  const ChunkMatch match = lookup_tokens({with_tail});
  EXPECT_EQ(statuses(match), (Statuses{Exact, Exact}));
  EXPECT_EQ(match.dropped_tokens, 1U);
}

// ── recomputing ──────────────────────────────────────────────────────────────────────────────────────────────────────

struct RecomputeCase {
  std::uint32_t page_tokens;
  double ratio;
  std::uint32_t partial_pages;
  std::uint64_t tokens;
  std::uint64_t scratch_pages;
};

TEST(ChunkRecompute, RoundsUpToTokensAndThenToPages) {
  for (const RecomputeCase& each : {
           RecomputeCase{256, 0.2, 1, 52, 1},   // 51.2
           RecomputeCase{256, 0.2, 5, 256, 1},  // exactly a page
           RecomputeCase{256, 0.2, 6, 308, 2},  // 307.2
           RecomputeCase{7, 0.2, 5, 7, 1},      // 35 * 0.2 is more than 7 in floating point
           RecomputeCase{16, 0.0, 9, 0, 0},
           RecomputeCase{16, 1.0, 9, 144, 9},
           RecomputeCase{16, 0.2, 0, 0, 0},
           RecomputeCase{1, 0.2, 6, 2, 2},
       }) {
    SCOPED_TRACE(::testing::Message() << each.partial_pages << " pages of " << each.page_tokens << " tokens");
    const auto index =
        *ChunkIndex::create({.page_tokens = each.page_tokens, .page_count_max = 16, .recompute_ratio = each.ratio});
    // A first page that is never found, and behind it the ones that are, in other places than they were.
    std::vector<TokenId> tokens((each.partial_pages + 1) * each.page_tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
    const std::span found = std::span(tokens).subspan(each.page_tokens);
    std::vector<PageHandle> handles;
    for (std::uint32_t i = 0; i < each.partial_pages; ++i) handles.push_back(handle(i));
    if (!handles.empty()) {
      ASSERT_TRUE(index->insert(kSpace, {.tokens = found}, handles).has_value());
    }
    const std::array chunks{Chunk{.tokens = tokens}};
    std::array<ChunkPage, 16> out{};
    const ChunkMatch match = *index->lookup(kSpace, chunks, out);
    EXPECT_EQ(match.partial_pages, each.partial_pages);
    EXPECT_EQ(match.recompute_tokens, each.tokens);
    EXPECT_EQ(match.scratch_pages, each.scratch_pages);
  }
}

// ── extra keys ───────────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(ChunkIndexTest, AnotherImageIsAnotherPage) {
  const std::vector<TokenId> tokens = text("ab");
  const std::array cat{ExtraKey{.begin = 2, .end = 6, .item = {1}}};
  const std::array dog{ExtraKey{.begin = 2, .end = 6, .item = {2}}};
  const std::array page_handles{handle(10), handle(11)};
  ASSERT_TRUE(index_->insert(kSpace, {.tokens = tokens, .extra_keys = cat}, page_handles).has_value());
  const auto found = [&](const Chunk& chunk) { return statuses(*index_->lookup(kSpace, {&chunk, 1}, out_)); };
  EXPECT_EQ(found({.tokens = tokens, .extra_keys = cat}), (Statuses{Exact, Exact}));
  EXPECT_EQ(found({.tokens = tokens, .extra_keys = dog}), (Statuses{NotMatchExact, NotMatchExact}));
  EXPECT_EQ(found({.tokens = tokens}), (Statuses{NotMatchExact, NotMatchExact}));
}

TEST_F(ChunkIndexTest, AnImageIsFoundAtAnotherPositionButNotAnotherPartOfIt) {
  const std::vector<TokenId> tokens = text("pp");  // placeholders
  const std::array over_both{ExtraKey{.begin = 0, .end = 8, .item = {1}}};
  const std::array page_handles{handle(10), handle(11)};
  ASSERT_TRUE(index_->insert(kSpace, {.tokens = tokens, .extra_keys = over_both}, page_handles).has_value());
  const std::vector<TokenId> before = text("x");
  const std::array moved{Chunk{.tokens = before}, Chunk{.tokens = tokens, .extra_keys = over_both}};
  const ChunkMatch match = *index_->lookup(kSpace, moved, out_);
  EXPECT_EQ(statuses(match), (Statuses{NotMatchExact, Partial, Partial}));
  EXPECT_EQ(handles(match), (Handles{kNoHandle, 10, 11}));
  // The same image, but its first page would have to be a page that begins four tokens into it.
  const std::vector<TokenId> longer = text("ppp");
  const std::array shifted{ExtraKey{.begin = 4, .end = 12, .item = {1}}};
  const Chunk chunk{.tokens = longer, .extra_keys = shifted};
  EXPECT_EQ(handles(*index_->lookup(kSpace, {&chunk, 1}, out_)), (Handles{kNoHandle, 10, 11}));
}

// ── what stays ───────────────────────────────────────────────────────────────────────────────────────────────────────

class SmallChunkIndexTest : public ChunkIndexTest {
 protected:
  SmallChunkIndexTest() : ChunkIndexTest(3) {}
};

TEST_F(SmallChunkIndexTest, TheLeastRecentlyUsedPageIsReplaced) {
  insert("abc", 10);
  EXPECT_TRUE(index_->touch(handle(10)));
  const ChunkInsertion done = insert("x", 20);
  EXPECT_EQ(done.inserted_pages, 1U);
  EXPECT_EQ(done.replaced_pages, 1U);
  EXPECT_EQ(handles(lookup({"abc"})), (Handles{10, kNoHandle, 12}));
  EXPECT_EQ(statuses(lookup({"abc"})), (Statuses{Exact, NotMatchExact, Exact}));
}

TEST_F(SmallChunkIndexTest, LookingChangesNoOrder) {
  insert("abc", 10);
  (void)lookup({"a"});
  insert("x", 20);
  EXPECT_EQ(statuses(lookup({"a"})), (Statuses{NotMatchExact}));
}

TEST_F(SmallChunkIndexTest, ATextLongerThanTheIndexLeavesItsLastPages) {
  const ChunkInsertion done = insert("abcde", 10);
  EXPECT_EQ(done.inserted_pages, 5U);
  EXPECT_EQ(done.replaced_pages, 2U);
  EXPECT_EQ(index_->page_count(), 3U);
  EXPECT_EQ(statuses(lookup({"abcde"})), (Statuses{NotMatchExact, NotMatchExact, Exact, Exact, Exact}));
}

TEST_F(ChunkIndexTest, InsertingAgainKeepsTheFirstHandles) {
  insert("ab", 10);
  const ChunkInsertion done = insert("abc", 20);
  EXPECT_EQ(done.known_pages, 2U);
  EXPECT_EQ(done.inserted_pages, 1U);
  EXPECT_EQ(handles(lookup({"abc"})), (Handles{10, 11, 22}));
  EXPECT_FALSE(index_->erase(handle(20)));
}

TEST_F(ChunkIndexTest, AHandleThatIsUsedAgainHasOnlyItsNewPage) {
  insert("ab", 10);
  insert("x", 11);
  EXPECT_EQ(statuses(lookup({"ab"})), (Statuses{Exact, NotMatchExact}));
  EXPECT_EQ(handles(lookup({"x"})), (Handles{11}));
  // Also when the page was known under another handle.
  insert("x", 10);
  EXPECT_EQ(statuses(lookup({"a"})), (Statuses{NotMatchExact}));
  EXPECT_EQ(handles(lookup({"x"})), (Handles{11}));
}

TEST_F(ChunkIndexTest, APageWithoutAHandleOnlyStandsBeforeOthers) {
  const std::vector<TokenId> tokens = text("ab");
  const std::array page_handles{PageHandle::none(), handle(11)};
  ASSERT_TRUE(index_->insert(kSpace, {.tokens = tokens}, page_handles).has_value());
  EXPECT_EQ(statuses(lookup({"ab"})), (Statuses{NotMatchExact, Exact}));
  EXPECT_FALSE(index_->erase(PageHandle::none()));
}

TEST_F(ChunkIndexTest, AnErasedPageIsNotFoundAndOthersOfItsContentAre) {
  insert("xa", 10);
  insert("ya", 20);
  insert("za", 30);
  EXPECT_TRUE(index_->erase(handle(21)));
  EXPECT_FALSE(index_->erase(handle(21)));
  EXPECT_FALSE(index_->touch(handle(21)));
  EXPECT_EQ(statuses(lookup({"ya"})), (Statuses{Exact, Partial}));
  EXPECT_EQ(handles(lookup({"a"})), (Handles{31}));
  EXPECT_TRUE(index_->erase(handle(31)));
  EXPECT_EQ(handles(lookup({"a"})), (Handles{11}));
  EXPECT_TRUE(index_->erase(handle(11)));
  EXPECT_EQ(handles(lookup({"a"})), (Handles{kNoHandle}));
}

TEST_F(ChunkIndexTest, DroppingAKeySpaceLeavesTheOthers) {
  insert("abc", 10);
  insert("abc", 20, kOtherSpace);
  EXPECT_EQ(index_->drop(kSpace), 3U);
  EXPECT_EQ(index_->drop(kSpace), 0U);
  EXPECT_EQ(statuses(lookup({"a"})), (Statuses{NotMatchExact}));
  EXPECT_EQ(statuses(lookup({"a"}, kOtherSpace)), (Statuses{Exact}));
  index_->clear();
  EXPECT_EQ(index_->page_count(), 0U);
  EXPECT_EQ(statuses(lookup({"a"}, kOtherSpace)), (Statuses{NotMatchExact}));
}

// ── refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────

std::string refusal(const ChunkIndexConfig& config) {
  const auto index = ChunkIndex::create(config);
  return index.has_value() ? "" : index.error().message;
}

TEST(ChunkIndexCreate, RefusesWhatCannotWork) {
  EXPECT_EQ(refusal({.page_count_max = 4}), "");
  EXPECT_EQ(refusal({.page_count_max = 4, .recompute_ratio = 0}), "");
  EXPECT_EQ(refusal({.page_count_max = 4, .recompute_ratio = 1}), "");
  EXPECT_EQ(refusal({.page_tokens = 0, .page_count_max = 4}), "page_tokens is 0: use that of the cache, 16 is usual");
  EXPECT_EQ(refusal({.page_count_max = 0}), "page_count_max is 0: use a number from 1 to 1073741824");
  EXPECT_EQ(refusal({.page_count_max = UINT32_MAX}), "page_count_max is 4294967295: use a number from 1 to 1073741824");
  for (const double ratio : {-0.01, 1.01, std::nan(""), HUGE_VAL}) {
    EXPECT_NE(refusal({.page_count_max = 4, .recompute_ratio = ratio}).find("use a number from 0 to 1"),
              std::string::npos)
        << ratio;
  }
}

TEST_F(ChunkIndexTest, RefusesBadPrefixes) {
  const std::vector<TokenId> tokens = text("ab");
  const std::array page_handles{handle(1), handle(2)};
  const auto refused = [&](KeySpaceId key_space, const Chunk& prefix, std::span<const PageHandle> given) {
    const auto done = index_->insert(key_space, prefix, given);
    return done.has_value() ? "" : done.error().message;
  };
  EXPECT_EQ(refused({}, {.tokens = tokens}, page_handles), "the key space is none: take one from Cache::key_space()");
  EXPECT_EQ(refused(kSpace, {}, {}), "the prefix has 0 tokens: a page has 4, and only whole pages are indexed");
  EXPECT_EQ(refused(kSpace, {.tokens = std::span(tokens).first(3)}, {}),
            "the prefix has 3 tokens: a page has 4, and only whole pages are indexed");
  EXPECT_EQ(refused(kSpace, {.tokens = tokens}, std::span(page_handles).first(1)),
            "1 handles for 2 whole pages: give one for each, none() where there is none");
  std::vector<TokenId> negative = tokens;
  negative[5] = -3;
  EXPECT_EQ(refused(kSpace, {.tokens = negative}, page_handles),
            "the prefix: token 5 is -3: tokens are never negative");
  for (const auto& [begin, end] : {std::pair(3U, 3U), std::pair(4U, 3U), std::pair(7U, 9U), std::pair(0U, 2U)}) {
    const std::array keys{ExtraKey{.begin = 1, .end = 2}, ExtraKey{.begin = begin, .end = end}};
    EXPECT_NE(refused(kSpace, {.tokens = tokens, .extra_keys = keys}, page_handles).find("extra key 1 is at ["),
              std::string::npos);
  }
  EXPECT_EQ(index_->page_count(), 0U);
}

TEST_F(ChunkIndexTest, RefusesBadChunks) {
  const std::vector<TokenId> tokens = text("ab");
  const std::array good{Chunk{.tokens = tokens}};
  const std::array short_one{Chunk{.tokens = tokens}, Chunk{.tokens = std::span(tokens).first(2)}};
  const auto refused = [&](KeySpaceId key_space, std::span<const Chunk> chunks, std::size_t room) {
    const auto match = index_->lookup(key_space, chunks, std::span(out_).first(room));
    return match.has_value() ? "" : match.error().message;
  };
  EXPECT_EQ(refused(kSpace, good, 2), "");
  EXPECT_EQ(refused({}, good, 2), "the key space is none: take one from Cache::key_space()");
  EXPECT_EQ(refused(kSpace, {}, 2), "there are no chunks to look for");
  EXPECT_EQ(refused(kSpace, short_one, 3), "chunk 1 has 2 tokens: a page has 4, and only whole pages are indexed");
  EXPECT_EQ(refused(kSpace, good, 1), "the chunks have 2 whole pages, and there is room for 1");
}

}  // namespace
}  // namespace quire
