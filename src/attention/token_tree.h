// SPDX-License-Identifier: Apache-2.0
//
// Token trees as depth-first intervals: what a kernel needs to mask an undecided tree. A region is a chain of known
// tokens (often none) followed by the tree, whose roots are children of the chain's last token:
//
//     parents -1 0 0 1 1 2 2, no chain              with a chain of two in front
//
//           0 [0,7)                                 0 [0,9) ─ 1 [1,9) ─ 2 [2,9)
//           ├─ 1 [1,4)                                                  ├─ 3 [3,6)
//           │  ├─ 3 [2,3)                                               │  ├─ 5 [4,5)
//           │  └─ 4 [3,4)                                               │  └─ 6 [5,6)
//           └─ 2 [4,7)                                                  └─ 4 [6,9) …
//              ├─ 5 [5,6)
//              └─ 6 [6,7)
//
// A token is an ancestor of another, or the same, iff its interval holds the other's begin.
#pragma once

#include <cstdint>
#include <span>

#include "quire/plan.h"

namespace quire {

/// Writes the region's nodes: `nodes.size()` is the chain plus the tree. A parent stands before its children, or is -1
/// for a root; brothers come in the order of their indices. O(nodes).
void lay_out_token_tree(std::span<const std::int32_t> parents, std::span<TreeNode> nodes);

}  // namespace quire
