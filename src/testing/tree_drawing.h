// SPDX-License-Identifier: Apache-2.0
//
// Trees as drawings in the form of the tutorial that the naive radix cache follows, for both trees: one line
// for each node with its number, tokens, pages ("slots"), locks ("ref"), and [L] for a leaf or [R] for the
// root. Children stand in the order of their tokens; long lists and what lies deeper than ten levels are cut
// off.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "prefix/prefix_tree.h"
#include "quire/types.h"

namespace quire::testing {

inline constexpr std::size_t kDrawingDepthMax = 10;

struct DrawnNode {
  std::uint64_t number = 0;
  std::vector<TokenId> tokens;
  std::vector<PageId> pages;
  std::uint64_t ref = 0;
  bool is_root = false;
  std::vector<DrawnNode> children;  ///< in any order
};

[[nodiscard]] std::string draw_tree(const DrawnNode& root);

/// The runs below `root`, numbered by their ids. The root's ref is 1, as in the tutorial, where it is never
/// given up.
[[nodiscard]] std::string draw_prefix_tree(const PrefixTree& tree, RunId root);

}  // namespace quire::testing
