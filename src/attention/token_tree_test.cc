// SPDX-License-Identifier: Apache-2.0
#include "attention/token_tree.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

std::vector<TreeNode> lay_out(const std::vector<std::int32_t>& parents, std::size_t chain_count = 0) {
  std::vector<TreeNode> nodes(chain_count + parents.size(), TreeNode{-7, -7, -7});
  lay_out_token_tree(parents, nodes);
  return nodes;
}

/// "(0,7)0 (1,4)1 …": interval and depth.
std::string to_text(const std::vector<TreeNode>& nodes) {
  std::string text;
  for (const TreeNode& node : nodes) {
    text += (text.empty() ? "(" : " (") + std::to_string(node.begin) + "," + std::to_string(node.end) + ")" +
            std::to_string(node.depth);
  }
  return text;
}

TEST(TokenTree, IntervalsOfABinaryTree) {
  EXPECT_EQ(to_text(lay_out({-1, 0, 0, 1, 1, 2, 2})), "(0,7)0 (1,4)1 (4,7)1 (2,3)2 (3,4)2 (5,6)2 (6,7)2");
}

TEST(TokenTree, AChainIsNestedIntervals) {
  EXPECT_EQ(to_text(lay_out({-1, 0, 1})), "(0,3)0 (1,3)1 (2,3)2");
}

TEST(TokenTree, SeveralRootsAreBrothers) {
  EXPECT_EQ(to_text(lay_out({-1, -1, 0, 1, 2})), "(0,3)0 (3,5)0 (1,3)1 (4,5)1 (2,3)2");
}

TEST(TokenTree, KnownTokensInFrontAreAncestorsOfAll) {
  EXPECT_EQ(to_text(lay_out({-1, 0, 0}, 2)), "(0,5)0 (1,5)1 (2,5)2 (3,4)3 (4,5)3");
  EXPECT_EQ(to_text(lay_out({-1, -1}, 1)), "(0,3)0 (1,2)1 (2,3)1");
}

TEST(TokenTree, NothingIsNoTree) {
  EXPECT_TRUE(lay_out({}).empty());
  EXPECT_EQ(to_text(lay_out({}, 2)), "(0,2)0 (1,2)1");
}

TEST(TokenTree, IntervalsNameTheAncestorsOfEveryToken) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    testing::Random random(seed);
    const std::size_t chain_count = random.below(4);
    std::vector<std::int32_t> parents(random.below(40));
    for (std::size_t i = 0; i < parents.size(); ++i) {
      parents[i] = static_cast<std::int32_t>(random.below(static_cast<std::uint32_t>(i) + 1)) - 1;
    }
    const std::vector<TreeNode> nodes = lay_out(parents, chain_count);
    // Of the region: a root follows the chain.
    const auto parent_of = [&](std::size_t node) {
      if (node < chain_count || parents[node - chain_count] < 0) {
        return static_cast<std::int64_t>(node < chain_count ? node : chain_count) - 1;
      }
      return static_cast<std::int64_t>(chain_count) + parents[node - chain_count];
    };
    for (std::size_t query = 0; query < nodes.size(); ++query) {
      std::vector<bool> is_ancestor(nodes.size());
      std::int32_t depth = -1;
      for (auto node = static_cast<std::int64_t>(query); node >= 0; node = parent_of(static_cast<std::size_t>(node))) {
        is_ancestor[static_cast<std::size_t>(node)] = true;
        ++depth;
      }
      EXPECT_EQ(nodes[query].depth, depth) << "seed " << seed << ", token " << query;
      for (std::size_t key = 0; key < nodes.size(); ++key) {
        const bool sees = nodes[key].begin <= nodes[query].begin && nodes[query].begin < nodes[key].end;
        EXPECT_EQ(sees, is_ancestor[key]) << "seed " << seed << ", query " << query << ", key " << key;
      }
    }
  }
}

TEST(TokenTreeDeathTest, AParentThatFollowsItsChildStopsTheProgram) {
  EXPECT_DEATH((void)lay_out({-1, 1}), "before its parent");
  EXPECT_DEATH((void)lay_out({-2}), "before its parent");
}

}  // namespace
}  // namespace quire
