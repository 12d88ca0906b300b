// SPDX-License-Identifier: Apache-2.0
#include "testing/naive_radix.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/sanitized.h"

namespace quire::testing {
namespace {

using Tokens = std::vector<TokenId>;

std::vector<PageId> pages_of(std::initializer_list<std::uint32_t> values) {
  std::vector<PageId> pages;
  for (const std::uint32_t value : values) pages.push_back(PageId{value});
  return pages;
}

/// The head every drawing starts with, and `lines` below the root's.
std::string drawing(const std::string& lines) {
  const std::string rule(80, '=');
  return "\n" + rule + "\nRADIX TREE STRUCTURE\n" + rule + "\nRoot Node:\n└── uuid=0, ref=1 [R]\n" + lines;
}

// The examples of the tutorial this tree follows: two requests that share four tokens, pages of one token.

const Tokens kRequest0 = {1, 3, 6, 7, 9, 77};
const Tokens kRequest1 = {1, 3, 6, 7, 87, 66};

const std::string kTwoLeaves = drawing(
    "    └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0\n"
    "        ├── uuid=1, tokens=[9, 77], slots=[4, 7], ref=0 [L]\n"
    "        └── uuid=3, tokens=[87, 66], slots=[5, 6], ref=0 [L]\n");

class NaiveRadixTutorial : public ::testing::Test {
 protected:
  void insert_both() {
    radix_.insert(kRequest0, pages_of({0, 1, 2, 3, 4, 7}));
    radix_.insert(kRequest1, pages_of({0, 1, 2, 3, 5, 6}));
  }

  NaiveRadix radix_{{.page_tokens = 1, .page_count = 50}};
};

TEST_F(NaiveRadixTutorial, AnEmptyTreeIsARootThatIsALeaf) {
  const std::string rule(80, '=');
  EXPECT_EQ(print_naive_tree(radix_),
            "\n" + rule + "\nRADIX TREE STRUCTURE\n" + rule + "\nRoot Node:\n└── uuid=0, ref=1 [L]\n");
}

TEST_F(NaiveRadixTutorial, TheFirstRequestIsOneNode) {
  EXPECT_EQ(radix_.insert(kRequest0, pages_of({0, 1, 2, 3, 4, 7})), 0U);
  EXPECT_EQ(print_naive_tree(radix_),
            drawing("    └── uuid=1, tokens=[1, 3, 6, 7, 9, 77], slots=[0, 1, 2, 3, 4, 7], ref=0 [L]\n"));
}

TEST_F(NaiveRadixTutorial, TheSecondRequestSplitsTheFirstWhereTheyPart) {
  radix_.insert(kRequest0, pages_of({0, 1, 2, 3, 4, 7}));
  EXPECT_EQ(radix_.insert(kRequest1, pages_of({0, 1, 2, 3, 5, 6})), 4U);
  EXPECT_EQ(print_naive_tree(radix_), kTwoLeaves);
}

TEST_F(NaiveRadixTutorial, LockingTheSharedPartShowsOnIt) {
  insert_both();
  const NaiveRadix::Match shared = radix_.match(Tokens(kRequest1.begin(), kRequest1.begin() + 4));
  radix_.lock(shared.node);
  EXPECT_EQ(print_naive_tree(radix_), drawing("    └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=1\n"
                                              "        ├── uuid=1, tokens=[9, 77], slots=[4, 7], ref=0 [L]\n"
                                              "        └── uuid=3, tokens=[87, 66], slots=[5, 6], ref=0 [L]\n"));
  radix_.unlock(shared.node);
  EXPECT_EQ(print_naive_tree(radix_), kTwoLeaves);
}

TEST_F(NaiveRadixTutorial, EvictingThreeTokensTakesBothLeavesOldestFirst) {
  insert_both();
  EXPECT_EQ(radix_.evict(1), pages_of({4, 7}));
  EXPECT_EQ(print_naive_tree(radix_), drawing("    └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0\n"
                                              "        └── uuid=3, tokens=[87, 66], slots=[5, 6], ref=0 [L]\n"));
  EXPECT_EQ(radix_.evict(1), pages_of({5, 6}));
  EXPECT_EQ(print_naive_tree(radix_), drawing("    └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0 [L]\n"));

  NaiveRadix in_one_call({.page_tokens = 1, .page_count = 50});
  in_one_call.insert(kRequest0, pages_of({0, 1, 2, 3, 4, 7}));
  in_one_call.insert(kRequest1, pages_of({0, 1, 2, 3, 5, 6}));
  EXPECT_EQ(in_one_call.evict(3), pages_of({4, 7, 5, 6}));
}

TEST(NaiveRadixManager, RunsTheTutorialsTwoRequestsFromAllocationToTree) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 250});
  const auto available = [&] { return radix.free_page_count() + radix.evictable_page_count(); };
  EXPECT_EQ(available(), 250U);

  const NaiveRadix::Match nothing = radix.match({});
  const std::vector<PageId> pages_0 = radix.allocate(kRequest0.size());
  EXPECT_EQ(available(), 244U);
  radix.finish(nothing, kRequest0, pages_0);
  EXPECT_EQ(available(), 250U);
  EXPECT_EQ(print_naive_tree(radix),
            drawing("    └── uuid=1, tokens=[1, 3, 6, 7, 9, 77], slots=[0, 1, 2, 3, 4, 5], ref=0 [L]\n"));

  NaiveRadix::Match match = radix.match(std::span(kRequest1).first(kRequest1.size() - 1));
  radix.lock(match.node);
  EXPECT_EQ(match.token_count, 4U);
  EXPECT_EQ(match.pages, pages_of({0, 1, 2, 3}));
  std::vector<PageId> pages_1 = match.pages;
  for (const PageId page : radix.allocate(2)) pages_1.push_back(page);
  EXPECT_EQ(print_naive_tree(radix), drawing("    └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=1\n"
                                             "        └── uuid=1, tokens=[9, 77], slots=[4, 5], ref=0 [L]\n"));

  radix.finish(match, kRequest1, pages_1);
  EXPECT_EQ(print_naive_tree(radix), drawing("    └── uuid=2, tokens=[1, 3, 6, 7], slots=[0, 1, 2, 3], ref=0\n"
                                             "        ├── uuid=1, tokens=[9, 77], slots=[4, 5], ref=0 [L]\n"
                                             "        └── uuid=3, tokens=[87, 66], slots=[6, 7], ref=0 [L]\n"));
  radix.check_invariants();
}

TEST(NaiveRadixPrint, CutsLongListsAtThirtyCharacters) {
  NaiveRadix radix({.page_tokens = 4, .page_count = 4});
  const Tokens tokens = {1000, 1001, 1002, 1003, 1004, 1005, 1006, 1007};
  radix.insert(tokens, radix.allocate(2));
  EXPECT_EQ(print_naive_tree(radix),
            drawing("    └── uuid=1, tokens=[1000, 1001, 1002, 1003, 1004,, slots=[0, 1], ref=0 [L]\n"));
}

TEST(NaiveRadix, TokensThatPartInsideAPageDoNotShareIt) {
  NaiveRadix radix({.page_tokens = 4, .page_count = 8});
  run_request_on_naive(radix, Tokens{1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(run_request_on_naive(radix, Tokens{1, 9, 3, 4, 5, 6, 7, 8}), 0U);
  EXPECT_EQ(run_request_on_naive(radix, Tokens{1, 2, 3, 4, 5, 6, 7, 9}), 4U);
  EXPECT_EQ(radix.evictable_page_count(), 5U);
  radix.check_invariants();
}

TEST(NaiveRadix, ARequestShorterThanAPageLeavesNothingBehind) {
  NaiveRadix radix({.page_tokens = 4, .page_count = 8});
  EXPECT_EQ(run_request_on_naive(radix, Tokens{1, 2, 3}), 0U);
  EXPECT_EQ(run_request_on_naive(radix, Tokens{1, 2, 3}), 0U);
  EXPECT_EQ(radix.node_count(), 1U);
  EXPECT_EQ(radix.free_page_count(), 8U);
}

TEST(NaiveRadix, TheUnalignedTailIsFreedAtTheEnd) {
  NaiveRadix radix({.page_tokens = 4, .page_count = 8});
  run_request_on_naive(radix, Tokens{1, 2, 3, 4, 5, 6});
  EXPECT_EQ(radix.evictable_page_count(), 1U);
  EXPECT_EQ(radix.free_page_count(), 7U);
}

TEST(NaiveRadix, PagesComputedTwiceAreFreedOnce) {
  NaiveRadix radix({.page_tokens = 2, .page_count = 8});
  const Tokens tokens = {1, 2, 3, 4, 5, 6};
  const NaiveRadix::Match first = radix.match(tokens);
  const NaiveRadix::Match second = radix.match(tokens);
  radix.lock(first.node);
  radix.lock(second.node);
  const std::vector<PageId> first_pages = radix.allocate(3);
  const std::vector<PageId> second_pages = radix.allocate(3);
  radix.finish(first, tokens, first_pages);
  radix.finish(second, tokens, second_pages);
  EXPECT_EQ(radix.match(tokens).pages, first_pages);
  EXPECT_EQ(radix.free_page_count(), 5U);
  radix.check_invariants();
}

TEST(NaiveRadix, SplittingALockedNodeKeepsBothHalvesLocked) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 8});
  run_request_on_naive(radix, kRequest0);
  const NaiveRadix::Match whole = radix.match(kRequest0);
  radix.lock(whole.node);
  EXPECT_EQ(radix.match(kRequest1).token_count, 4U);
  EXPECT_EQ(radix.locked_page_count(), 6U);
  radix.check_invariants(0);
  radix.unlock(whole.node);
  EXPECT_EQ(radix.locked_page_count(), 0U);
  radix.check_invariants(0);
}

TEST(NaiveRadix, EvictionPassesOverLockedNodes) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 10});
  run_request_on_naive(radix, kRequest0);
  run_request_on_naive(radix, kRequest1);
  const NaiveRadix::Match oldest = radix.match(kRequest0);
  radix.lock(oldest.node);
  static_cast<void>(radix.match(kRequest1));
  EXPECT_EQ(radix.evict(1), pages_of({6, 7}));
  EXPECT_EQ(radix.evictable_page_count(), 0U);
  EXPECT_EQ(radix.match(kRequest0).token_count, 6U);
}

TEST(NaiveRadix, AMatchMakesItsNodesTheLastToGo) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 4});
  run_request_on_naive(radix, Tokens{1, 2});
  run_request_on_naive(radix, Tokens{3, 4});
  static_cast<void>(radix.match(Tokens{1, 2}));
  EXPECT_EQ(radix.evict(2), pages_of({2, 3}));
}

TEST(NaiveRadix, WholeNodesGoEvenForOnePage) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 6});
  run_request_on_naive(radix, kRequest0);
  EXPECT_EQ(radix.evict(1).size(), 6U);
  EXPECT_EQ(radix.evicted_token_count(), 6U);
  EXPECT_EQ(radix.evict_call_count(), 1U);
}

TEST(NaiveRadix, AParentCanGoInTheSameCallAsItsLastChild) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 8});
  run_request_on_naive(radix, kRequest0);
  run_request_on_naive(radix, kRequest1);
  EXPECT_EQ(radix.evict(8).size(), 8U);
  EXPECT_EQ(radix.node_count(), 1U);
}

TEST(NaiveRadix, AllocationEvictsOnlyTheShortfall) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 6});
  run_request_on_naive(radix, Tokens{1, 2});
  run_request_on_naive(radix, Tokens{3, 4});
  EXPECT_EQ(radix.allocate(4), pages_of({4, 5, 0, 1}));
  EXPECT_EQ(radix.match(Tokens{3, 4}).token_count, 2U);
  radix.check_invariants(4);
}

TEST(NaiveRadix, EvictingNothingIsAlwaysSafe) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 0});
  EXPECT_TRUE(radix.evict(0).empty());
  EXPECT_EQ(radix.evict_call_count(), 0U);
}

TEST(NaiveRadixDeathTest, EvictingMoreThanIsEvictableIsABug) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 6});
  run_request_on_naive(radix, Tokens{1, 2});
  EXPECT_DEATH(static_cast<void>(radix.evict(3)), "more than is evictable");
}

TEST(NaiveRadixDeathTest, UnlockingMoreOftenThanLockingIsABug) {
  NaiveRadix radix({.page_tokens = 1, .page_count = 6});
  run_request_on_naive(radix, Tokens{1, 2});
  EXPECT_DEATH(radix.unlock(radix.match(Tokens{1, 2}).node), "more often than locked");
}

// Each page is tagged with the tokens up to its end when it is computed; a match must find its own tokens in
// the tags.
TEST(NaiveRadix, AMatchNamesThePagesThatHoldItsTokens) {
  constexpr std::uint32_t kPageTokens = 2;
  const ChatWorkload workload({.session_count = 40,
                               .turn_count = 4,
                               .prompt_count = 3,
                               .prompt_tokens = 11,
                               .turn_tokens_min = 1,
                               .turn_tokens_max = 9});
  NaiveRadix radix({.page_tokens = kPageTokens, .page_count = 120});
  std::map<PageId, Tokens> computed;
  for (const ChatWorkload::Request& request : workload.requests()) {
    const auto upto = [&](std::size_t page_index) {
      const auto part = request.tokens.first(std::min(request.tokens.size(), (page_index + 1) * kPageTokens));
      return Tokens(part.begin(), part.end());
    };
    NaiveRadix::Match match = radix.match(request.tokens);
    radix.lock(match.node);
    for (std::size_t i = 0; i < match.pages.size(); ++i) ASSERT_EQ(computed.at(match.pages[i]), upto(i));
    const std::size_t page_count = (request.tokens.size() + kPageTokens - 1) / kPageTokens;
    for (const PageId page : radix.allocate(page_count - match.pages.size())) {
      computed[page] = upto(match.pages.size());
      match.pages.push_back(page);
    }
    radix.finish(match, request.tokens, match.pages);
    radix.check_invariants();
  }
  EXPECT_GT(radix.evict_call_count(), 0U);
  EXPECT_EQ(radix.locked_page_count(), 0U);
}

TEST(NaiveRadix, WithoutEvictionItHoldsTheDistinctTokensOfTheEvictionWorkload) {
  const EvictionWorkload workload({.group_count = 20, .leaves_per_group = 30});
  NaiveRadix radix({.page_tokens = 16, .page_count = static_cast<std::uint32_t>(workload.distinct_token_count() / 16)});
  for (const std::uint32_t leaf : workload.leaf_order()) run_request_on_naive(radix, workload.tokens_of(leaf));
  EXPECT_EQ(radix.evictable_page_count() * 16, workload.distinct_token_count());
  EXPECT_EQ(radix.free_page_count(), 0U);
  EXPECT_EQ(radix.evict_call_count(), 0U);
  EXPECT_EQ(radix.node_count(), 1U + 20 + 20 * 30);
}

TEST(NaiveRadix, HoldsOneNodeForEachChunkOfALongSequence) {
  const LongContextWorkload workload({.sequence_count = 1, .sequence_tokens = 4096});
  NaiveRadix radix({.page_tokens = 1, .page_count = 4096});
  for (std::size_t end = 256; end <= 4096; end += 256) {
    EXPECT_EQ(run_request_on_naive(radix, workload.sequence(0).first(end)), end - 256);
  }
  EXPECT_EQ(radix.node_count(), 1U + 16);
  EXPECT_EQ(radix.match(workload.sequence(0)).token_count, 4096U);
}

struct RadixFigures {
  std::uint32_t session_count;
  std::uint32_t page_tokens;
  std::uint64_t hit_token_count;
  std::uint64_t evicted_token_count;
};

class NaiveRadixOnChat : public ::testing::TestWithParam<RadixFigures> {};

std::string radix_name(const ::testing::TestParamInfo<RadixFigures>& info) {
  return "P" + std::to_string(info.param.page_tokens);
}

TEST_P(NaiveRadixOnChat, GivesItsFiguresToTheToken) {
  const ChatWorkload workload({.session_count = GetParam().session_count});
  const ChatOutcome outcome = run_chat_on_naive(workload, GetParam().page_tokens);
  EXPECT_EQ(outcome.hit_token_count, GetParam().hit_token_count);
  EXPECT_EQ(outcome.evicted_token_count, GetParam().evicted_token_count);
}

// Recorded from this tree, so that the builds that skip the published size still notice a change.
INSTANTIATE_TEST_SUITE_P(OfATenthOfTheSize, NaiveRadixOnChat,
                         ::testing::Values(RadixFigures{200, 1, 2'556'729, 1'065'360},
                                           RadixFigures{200, 16, 2'545'808, 1'064'448},
                                           RadixFigures{200, 64, 2'501'056, 1'071'552}),
                         radix_name);
#ifndef QUIRE_TEST_IS_SANITIZED
// What four independent trees of this family agree on.
INSTANTIATE_TEST_SUITE_P(OfThePublishedSize, NaiveRadixOnChat,
                         ::testing::Values(RadixFigures{2000, 1, 26'615'822, 9'538'774},
                                           RadixFigures{2000, 16, 26'492'096, 9'543'744},
                                           RadixFigures{2000, 64, 26'010'496, 9'641'792}),
                         radix_name);
#endif

}  // namespace
}  // namespace quire::testing
