// SPDX-License-Identifier: Apache-2.0
//
// Key spaces: roots that share nothing, come and go.
#include <cstdint>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::Pages;
using testing::Prompt;
using testing::TestTree;

constexpr PrefixTreeConfig kThreeRoots{.page_tokens = 1, .page_count_max = 100, .root_count_max = 3};

TEST(PrefixTreeKeySpaces, TheSameTokensInTwoKeySpacesShareNothing) {
  TestTree tree(kThreeRoots);
  const RunId other = tree->add_root();
  const Prompt prompt{.tokens = {1, 2, 3}, .extra_keys = {}};
  tree.add(tree.root(), prompt);
  EXPECT_EQ(tree.pages_of(other, prompt), Pages{});
  tree.add(other, prompt);
  EXPECT_EQ(tree.pages_of(tree.root(), prompt), (Pages{0, 1, 2}));
  EXPECT_EQ(tree.pages_of(other, prompt), (Pages{3, 4, 5}));
}

TEST(PrefixTreeKeySpaces, APartialMatchStaysInItsKeySpace) {
  TestTree tree({.page_tokens = 4, .page_count_max = 10, .root_count_max = 2});
  const RunId other = tree->add_root();
  tree.add({1, 2, 3, 4});
  EXPECT_EQ(tree.match(other, {.tokens = {1, 2}, .extra_keys = {}}).partial_tokens, 0U);
}

TEST(PrefixTreeKeySpaces, ManyChildrenOfTwoRootsAreToldApart) {
  TestTree tree(kThreeRoots);
  const RunId other = tree->add_root();
  for (TokenId token = 0; token < 40; ++token) {
    tree.add(token % 2 == 0 ? tree.root() : other, {.tokens = {token}, .extra_keys = {}});
  }
  for (TokenId token = 0; token < 40; ++token) {
    const Prompt prompt{.tokens = {token}, .extra_keys = {}};
    EXPECT_EQ(tree.pages_of(tree.root(), prompt).size(), token % 2 == 0 ? 1U : 0U);
    EXPECT_EQ(tree.pages_of(other, prompt).size(), token % 2 == 0 ? 0U : 1U);
  }
}

TEST(PrefixTreeKeySpaces, EvictionKnowsNoKeySpaces) {
  TestTree tree(kThreeRoots);
  const RunId other = tree->add_root();
  tree.add(other, {.tokens = {1}, .extra_keys = {}});
  tree.add({1});
  tree.add(other, {.tokens = {2}, .extra_keys = {}});
  EXPECT_EQ(tree.evict(3), (Pages{0, 1, 2}));
}

TEST(PrefixTreeKeySpaces, EvictingAllOfOneLeavesTheOther) {
  TestTree tree(kThreeRoots);
  const RunId other = tree->add_root();
  tree.add({1, 2});
  tree.add(other, {.tokens = {1, 2, 3}, .extra_keys = {}});
  EXPECT_EQ(tree.evict_all(other), (Pages{2, 3, 4}));
  EXPECT_EQ(tree.pages_of({1, 2}), (Pages{0, 1}));
}

TEST(PrefixTreeKeySpaces, AVisitStaysInItsKeySpace) {
  TestTree tree(kThreeRoots);
  const RunId other = tree->add_root();
  tree.add({1, 2});
  tree.add(other, {.tokens = {3}, .extra_keys = {}});
  std::uint32_t visited = 0;
  tree->for_each_run(other, [&](const RunView& /*run*/) { ++visited; });
  EXPECT_EQ(visited, 2U);
}

TEST(PrefixTreeKeySpaces, AnEmptyOneCanBeRemovedAndItsPlaceUsedAgain) {
  TestTree tree(kThreeRoots);
  const RunId second = tree->add_root();
  const RunId third = tree->add_root();
  tree.add(third, {.tokens = {1}, .extra_keys = {}});
  tree->remove_root(second);
  EXPECT_EQ(tree.broken_rule(), "");
  const RunId again = tree->add_root();
  tree.add(again, {.tokens = {1}, .extra_keys = {}});
  EXPECT_EQ(tree.pages_of(third, {.tokens = {1}, .extra_keys = {}}), (Pages{0}));
  EXPECT_EQ(tree.pages_of(again, {.tokens = {1}, .extra_keys = {}}), (Pages{1}));
}

TEST(PrefixTreeKeySpaces, RootsDoNotCountAgainstThePages) {
  TestTree tree({.page_tokens = 1, .page_count_max = 2, .root_count_max = 3});
  const RunId second = tree->add_root();
  const RunId third = tree->add_root();
  tree.add(second, {.tokens = {1}, .extra_keys = {}});
  tree.add(third, {.tokens = {1}, .extra_keys = {}});
  EXPECT_EQ(tree->page_count(), 2U);
}

TEST(PrefixTreeKeySpacesDeathTest, MoreKeySpacesThanTheTreeWasMadeForStopTheProgram) {
  TestTree tree({.page_tokens = 1, .page_count_max = 10});
  EXPECT_DEATH(static_cast<void>(tree->add_root()), "more key spaces than the tree was made for");
}

TEST(PrefixTreeKeySpacesDeathTest, RemovingOneThatHasRunsStopsTheProgram) {
  TestTree tree(kThreeRoots);
  tree.add({1});
  EXPECT_DEATH(tree->remove_root(tree.root()), "removing a key space that is in use");
}

TEST(PrefixTreeKeySpacesDeathTest, RemovingOneThatIsPinnedStopsTheProgram) {
  TestTree tree(kThreeRoots);
  const PrefixTree::Pin pin = tree.pin({1});
  EXPECT_DEATH(tree->remove_root(tree.root()), "removing a key space that is in use");
}

TEST(PrefixTreeKeySpacesDeathTest, RemovingARunThatIsNoRootStopsTheProgram) {
  TestTree tree(kThreeRoots);
  tree.add({1});
  EXPECT_DEATH(tree->remove_root(tree.match({1}).run), "removing a key space that is in use");
}

TEST(PrefixTreeKeySpacesDeathTest, RemovingOneTwiceStopsTheProgram) {
  TestTree tree(kThreeRoots);
  const RunId second = tree->add_root();
  tree->remove_root(second);
  EXPECT_DEATH(tree->remove_root(second), "removing a key space that is in use");
}

}  // namespace
}  // namespace quire
