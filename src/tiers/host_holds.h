// SPDX-License-Identifier: Apache-2.0
//
// HostHolds: what a prefix that is held on the host needs of windows and snapshots. The prefix tree holds the history
// (PrefixTree::hold_on_host). Behind its end a request goes on by a hit, and the pages of anchored groups that this hit
// asks for are held as well. A page that only the device has is copied first; until it has come, a hold waits for it,
// and update() takes it. Pages that leave memory before that are not held.
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "prefix/hit_rule.h"
#include "prefix/prefix_tree.h"
#include "tiers/anchored_group.h"
#include "tiers/paths.h"
#include "tiers/tier_parts.h"

namespace quire {

/// What one hold has of anchored groups.
struct AnchoredHold {
  struct Page {
    std::uint32_t group = 0;   // in TierParts::groups
    std::uint32_t column = 0;  // in the path
    AnchoredGroup::HostHold hold;
  };
  Hit hit;                   // where requests go on behind the held prefix
  std::vector<Page> pages;   // held on the host
  std::vector<Page> wanted;  // on their way there
};

class HostHolds {
 public:
  HostHolds(TierParts& parts, Paths& paths) : parts_(parts), paths_(paths) {}

  /// Holds what a hit at the end of a held path needs.
  void take(const PrefixTree::HostHold& path, const Hit& hit, AnchoredHold& hold);
  /// Takes pages that have come since.
  void update(const PrefixTree::HostHold& path, AnchoredHold& hold);
  void release(AnchoredHold& hold);

  /// Where a request could go on behind a held path by now, with what memory has.
  [[nodiscard]] Hit hit_of(const PrefixTree::HostHold& path);
  /// Pages that a hit needs of a group.
  [[nodiscard]] std::uint32_t pages_needed(std::size_t group, const Hit& hit) const;
  /// Every held host page is held as often as these holds say. O(pages).
  [[nodiscard]] Status check_invariants(std::span<const AnchoredHold* const> holds) const;

 private:
  TierParts& parts_;
  Paths& paths_;
};

}  // namespace quire
