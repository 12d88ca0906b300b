// SPDX-License-Identifier: Apache-2.0
//
// Where a sequence can go on. The tree says which pages of the history a path has. A sequence can go on at position b
// of the path only if every other group has the pages that it needs at b, or can be rebuilt by computing a few tokens
// before b again:
//
//     history    [0][1][2][3][4][5]      all whole pages, and perhaps a part of one more
//     window      .  1  2  3  4  5       of 2 pages: it could go on behind any page from the third on
//     snapshot    .  s  .  .  s  .       but a state there is only behind the second and the fifth: b = 5 pages
//
// find_hit() goes from the end of the path towards its beginning, and leaps over what a group rules out. The answer
// does not depend on the order of the groups: the fewest tokens are computed; then the fewest groups are rebuilt; then
// the most of the history is shared.
//
// Pure functions; nothing is changed or kept.
#pragma once

#include <cstdint>
#include <span>

#include "prefix/anchored_pages.h"
#include "quire/types.h"

namespace quire {

/// A group that does not keep everything, as far as hits are concerned.
struct HitGroup {
  const AnchoredPages* pages = nullptr;  ///< null: it never keeps anything
  // Its host pages, by the tree's device page or host page that they hang on. Null: host pages do not count.
  const AnchoredPages* host_of_device = nullptr;
  const AnchoredPages* host_of_host = nullptr;
  std::uint32_t window_tokens = 0;    ///< W of a window in pages; 0: a state, of which a snapshot at b is needed
  std::uint32_t sink_tokens = 0;      ///< of a window
  bool starts_anew = false;           ///< a state that needs nothing at multiples of boundary_tokens
  std::uint32_t boundary_tokens = 1;  ///< of a state
  std::uint32_t replay_tokens = 0;    ///< 0: it cannot be rebuilt
  bool replay_is_exact = false;
};

/// A path as the tree matched it.
struct HitPath {
  std::span<const PageId> pages;       ///< whole ones, from the root on
  std::span<const PageId> host_pages;  ///< whole ones that follow, on the host
  PageId partial_page;                 ///< one that begins with what follows
  std::uint32_t partial_tokens = 0;    ///< so many tokens of it
  /// Whole pages that follow on disk. Then there is no partial page.
  std::uint32_t disk_page_count = 0;
  /// For each page, from the root on, a bit for each group that has something of it on disk.
  std::span<const std::uint64_t> on_disk;
  std::uint32_t prompt_tokens = 0;  ///< of the prompt: a hit at its end leaves nothing to compute
};

struct HitLimits {
  std::uint32_t page_tokens = 0;
  std::uint32_t boundary_tokens = 1;     ///< hits are multiples of this
  std::uint32_t partial_tokens_min = 1;  ///< a part of a page is worth a copy from so many tokens on
  bool allows_inexact = false;           ///< rebuilt groups may differ a little from what they were
};

struct Hit {
  static constexpr std::uint32_t kNoGroup = UINT32_MAX;

  std::uint32_t tokens = 0;          ///< that the history has
  std::uint32_t replay_tokens = 0;   ///< the last of them, to be computed again for groups that lack them
  bool is_exact = true;              ///< no group is rebuilt inexactly
  std::uint64_t rebuilt_groups = 0;  ///< a bit for each
  /// The group that keeps the hit from being the whole path, or none.
  std::uint32_t limiting_group = kNoGroup;

  [[nodiscard]] std::uint32_t start() const { return tokens - replay_tokens; }
  [[nodiscard]] bool is_rebuilt(std::size_t group) const { return (rebuilt_groups >> group & 1U) != 0; }
};

inline constexpr std::size_t kHitGroupsMax = 64;

[[nodiscard]] Hit find_hit(std::span<const HitGroup> groups, const HitPath& path, const HitLimits& limits);

/// Tokens that a sequence needs of a window group: what the token at `start` sees of those before it, and all up to
/// `end`.
struct WindowNeed {
  std::uint32_t start = 0;
  std::uint32_t end = 0;
  bool runs_again = false;  ///< the token before `start` is computed once more, and sees one more
};
/// The pages that hold them: columns [0, sink_pages) and [first, last).
struct WindowColumns {
  std::uint32_t sink_pages = 0;
  std::uint32_t first = 0;
  std::uint32_t last = 0;
};
[[nodiscard]] WindowColumns window_columns(const HitGroup& group, const HitLimits& limits, const WindowNeed& need);
template <typename Visitor>
void for_each_column(const WindowColumns& columns, Visitor&& visit) {
  for (std::uint32_t column = 0; column < columns.sink_pages; ++column) visit(column);
  for (std::uint32_t column = columns.first; column < columns.last; ++column) visit(column);
}

}  // namespace quire
