// SPDX-License-Identifier: Apache-2.0
//
// Extra keys: the same tokens are different pages when different items stand over them.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::extra_key;
using testing::kFourTokens;
using testing::Pages;
using testing::Prompt;
using testing::TestTree;
using testing::token_range;
using testing::Tokens;

Prompt prompt_with(std::vector<ExtraKey> extra_keys, TokenId token_count = 16) {
  return {.tokens = token_range(0, token_count), .extra_keys = std::move(extra_keys)};
}

TEST(PrefixTreeExtraKeys, TheSameTokensUnderTheSameItemMatch) {
  TestTree tree(kFourTokens);
  const Prompt prompt = prompt_with({extra_key(5, 7, 1)});
  tree.add(tree.root(), prompt);
  EXPECT_EQ(tree.pages_of(tree.root(), prompt), (Pages{0, 1, 2, 3}));
}

TEST(PrefixTreeExtraKeys, TheSameTokensUnderAnotherItemMatchOnlyBeforeIt) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(5, 7, 1)}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(5, 7, 2)})), (Pages{0}));
}

TEST(PrefixTreeExtraKeys, TheSameTokensWithoutTheItemMatchOnlyBeforeIt) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(9, 10, 1)}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({})), (Pages{0, 1}));
}

TEST(PrefixTreeExtraKeys, AnItemTheTreeDoesNotHaveMatchesOnlyBeforeIt) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(9, 10, 1)})), (Pages{0, 1}));
}

TEST(PrefixTreeExtraKeys, OneByteOfAnItemIsEnoughToDiffer) {
  TestTree tree(kFourTokens);
  ExtraKey item = extra_key(0, 4, 1);
  tree.add(tree.root(), prompt_with({item}));
  item.item[31] ^= 1;
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({item})), Pages{});
}

// An item that ends where a page begins, or begins where it ends, is outside of it.
TEST(PrefixTreeExtraKeys, AnItemDoesNotBelongToThePageItEndsBefore) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(0, 4, 1)}, 4));
  // The second page is the same whichever item covers the first, but lies behind another first page.
  tree.add(tree.root(), prompt_with({extra_key(0, 4, 1)}, 8));
  EXPECT_EQ(tree->run_count(), 1U);
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(0, 4, 1), extra_key(8, 9, 5)})), (Pages{0, 1}));
}

TEST(PrefixTreeExtraKeys, AnItemThatReachesOneTokenIntoAPageBelongsToIt) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(2, 5, 1)}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(2, 4, 1)})), Pages{});
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(2, 5, 1)})), (Pages{0, 1, 2, 3}));
}

TEST(PrefixTreeExtraKeys, AnItemThatBeginsBehindAPageLeavesItShared) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(8, 12, 1)}));
  tree.add(tree.root(), prompt_with({extra_key(8, 12, 2)}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(8, 12, 1)})), (Pages{0, 1, 2, 3}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(8, 12, 2)})), (Pages{0, 1, 4, 5}));
}

TEST(PrefixTreeExtraKeys, AnItemOverSeveralPagesBelongsToEachOfThem) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(2, 14, 1)}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(2, 14, 1)})), (Pages{0, 1, 2, 3}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(4, 14, 1)})), Pages{});
}

TEST(PrefixTreeExtraKeys, SiblingsMayDifferInTheirItemsAlone) {
  TestTree tree(kFourTokens);
  for (std::uint8_t content = 1; content <= 20; ++content) {
    tree.add(tree.root(), prompt_with({extra_key(1, 3, content)}, 4));
  }
  EXPECT_EQ(tree->run_count(), 20U);
  for (std::uint8_t content = 1; content <= 20; ++content) {
    EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(1, 3, content)}, 4)), (Pages{content - 1U}));
  }
}

TEST(PrefixTreeExtraKeys, AnItemThatCrossesASplitBelongsToBothHalves) {
  TestTree tree(kFourTokens);
  const Prompt prompt = prompt_with({extra_key(6, 10, 1)});
  tree.add(tree.root(), prompt);
  const PrefixTree::Pin pin = tree.pin(tree.root(), prompt_with({extra_key(6, 10, 1)}, 8));
  EXPECT_EQ(tree->run_count(), 2U);
  EXPECT_EQ(tree.pages_of(tree.root(), prompt), (Pages{0, 1, 2, 3}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(6, 10, 2)})), (Pages{0}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(6, 8, 1)})), (Pages{0}));
}

TEST(PrefixTreeExtraKeys, AnItemThatCrossesIntoAChildIsComparedThereAgain) {
  TestTree tree({.page_tokens = 4, .page_count_max = 100, .whole_runs = true});
  const ExtraKey item = extra_key(2, 6, 1);
  tree.add(tree.root(), prompt_with({item}, 4));
  tree.add(tree.root(), prompt_with({item}, 8));
  EXPECT_EQ(tree->run_count(), 2U);
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({item}, 8)), (Pages{0, 1}));
}

TEST(PrefixTreeExtraKeys, AnItemThatCrossesFromGrowthToGrowthIsOneItem) {
  TestTree tree(kFourTokens);
  const ExtraKey item = extra_key(2, 14, 1);
  PrefixTree::Pin pin = tree.pin(Tokens{});
  for (TokenId end = 4; end <= 16; end += 4) {
    tree.extend(pin, prompt_with({item}, end), static_cast<std::uint32_t>(end));
  }
  EXPECT_EQ(tree->run_count(), 1U);
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({item})), (Pages{4, 8, 12, 16}));
}

TEST(PrefixTreeExtraKeys, AnEvictedTailTakesItsItemsAlong) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(1, 2, 1), extra_key(13, 14, 2)}));
  EXPECT_EQ(tree.evict(1), (Pages{3}));
  tree.add(tree.root(), prompt_with({extra_key(1, 2, 1), extra_key(13, 14, 3)}));
  EXPECT_EQ(tree.pages_of(tree.root(), prompt_with({extra_key(1, 2, 1), extra_key(13, 14, 3)})), (Pages{0, 1, 2, 4}));
  EXPECT_EQ(tree.evict(10).size(), 4U);
  EXPECT_EQ(tree.broken_rule(), "");
}

TEST(PrefixTreeExtraKeys, DuplicatesAreRecognisedWithTheirItems) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(5, 7, 1)}));
  PrefixTree::Pin same = tree.pin(Tokens{});
  EXPECT_EQ(tree.extend(same, prompt_with({extra_key(5, 7, 1)}), 20).duplicate_count, 4U);
  PrefixTree::Pin other = tree.pin(Tokens{});
  EXPECT_EQ(tree.extend(other, prompt_with({extra_key(5, 7, 2)}), 30).duplicates, (Pages{30}));
}

// Partial matches

TEST(PrefixTreeExtraKeys, APartialMatchEndsWhereAnotherItemBegins) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(2, 3, 1)}));
  EXPECT_EQ(tree.match(tree.root(), prompt_with({extra_key(2, 3, 2)})).partial_tokens, 2U);
  EXPECT_EQ(tree.match(tree.root(), prompt_with({})).partial_tokens, 2U);
  EXPECT_EQ(tree.match(tree.root(), prompt_with({extra_key(1, 3, 1)})).partial_tokens, 1U);
}

TEST(PrefixTreeExtraKeys, APartialMatchGoesThroughAnItemBothHave) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(0, 2, 1)}, 4));
  Prompt prompt = prompt_with({extra_key(0, 2, 1)}, 4);
  prompt.tokens[3] = 99;
  EXPECT_EQ(tree.match(tree.root(), prompt).partial_tokens, 3U);
}

TEST(PrefixTreeExtraKeys, APartialMatchInsideARunIsLimitedByTheItemsToo) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(6, 9, 1)}));
  const PrefixTree::Match match = tree.match(tree.root(), prompt_with({extra_key(6, 8, 1)}));
  EXPECT_EQ(match.page_count, 1U);
  EXPECT_EQ(match.partial_tokens, 2U);
}

TEST(PrefixTreeExtraKeys, NoPartialMatchBeginsInsideAnotherItem) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(2, 6, 1)}));
  // The prompts share no page, because the first one is under different items.
  const PrefixTree::Match match = tree.match(tree.root(), prompt_with({extra_key(0, 6, 1)}));
  EXPECT_EQ(match.page_count, 0U);
  EXPECT_EQ(match.partial_tokens, 0U);
}

TEST(PrefixTreeExtraKeys, OfTwoChildrenTheOneWithTheSameItemSharesMore) {
  TestTree tree(kFourTokens);
  tree.add(tree.root(), prompt_with({extra_key(0, 4, 1)}, 4));
  tree.add(tree.root(), prompt_with({extra_key(0, 4, 2)}, 4));
  const PrefixTree::Match match = tree.match(tree.root(), prompt_with({extra_key(0, 4, 1)}, 3));
  EXPECT_EQ(match.partial_tokens, 3U);
  EXPECT_EQ(tree->partial_page(match), PageId{0});
}

}  // namespace
}  // namespace quire
