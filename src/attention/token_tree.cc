// SPDX-License-Identifier: Apache-2.0
#include "attention/token_tree.h"

#include <cstddef>

#include "base/check.h"

namespace quire {

void lay_out_token_tree(std::span<const std::int32_t> parents, std::span<TreeNode> nodes) {
  QUIRE_CHECK(parents.size() <= nodes.size(), "more tree tokens than nodes to write");
  const std::size_t chain_count = nodes.size() - parents.size();
  for (std::size_t i = 0; i < chain_count; ++i) {
    const auto place = static_cast<std::int32_t>(i);
    nodes[i] = {.begin = place, .end = static_cast<std::int32_t>(nodes.size()), .depth = place};
  }

  // `end` is the size of the node's subtree at first, then the place of its next child: where its children are all
  // placed, that is one past its last descendant. So nothing is needed besides the nodes themselves.
  const std::span<TreeNode> tree = nodes.subspan(chain_count);
  for (TreeNode& node : tree) node.end = 1;
  for (std::size_t i = tree.size(); i-- > 0;) {
    const std::int32_t parent = parents[i];
    QUIRE_CHECK(parent >= -1 && parent < static_cast<std::int32_t>(i), "a tree token stands before its parent");
    if (parent >= 0) tree[static_cast<std::size_t>(parent)].end += tree[i].end;
  }
  auto next_root = static_cast<std::int32_t>(chain_count);
  for (std::size_t i = 0; i < tree.size(); ++i) {
    TreeNode& node = tree[i];
    const std::int32_t size = node.end;
    if (parents[i] < 0) {
      node.begin = next_root;
      node.depth = static_cast<std::int32_t>(chain_count);
      next_root += size;
    } else {
      TreeNode& parent = tree[static_cast<std::size_t>(parents[i])];
      node.begin = parent.end;
      node.depth = parent.depth + 1;
      parent.end += size;
    }
    node.end = node.begin + 1;
  }
}

}  // namespace quire
