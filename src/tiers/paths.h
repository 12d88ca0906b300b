// SPDX-License-Identifier: Apache-2.0
//
// Paths: what memory has of a sequence's tokens, and where the sequence can go on from there. Where
// all groups keep everything, a sequence goes on behind whatever the tree has. Windows and states have a say besides
// (prefix/hit_rule.h).
//
// single-threaded
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "prefix/hit_rule.h"
#include "prefix/prefix_tree.h"
#include "quire/types.h"
#include "tiers/tier_parts.h"

namespace quire {

/// Which tiers count when a hit is looked for.
enum class HitScope : std::uint8_t { Device, DeviceAndHost };

class Paths {
 public:
  explicit Paths(TierParts& parts) : parts_(parts) {}
  /// Once all groups are open.
  void open(std::uint32_t boundary_tokens);
  /// The host's pages count from here on.
  void open_host();

  // Matches.

  /// What of a sequence's tokens is cached, as far as the sequence may use it.
  [[nodiscard]] PrefixTree::Match match_of(std::uint32_t sequence) const;
  /// Entries of several tokens are shared as a whole.
  [[nodiscard]] PrefixTree::Match with_whole_entries(PrefixTree::Match match) const {
    if (is_plain()) match.partial_tokens -= match.partial_tokens % limits_.boundary_tokens;
    return match;
  }
  [[nodiscard]] std::uint32_t tokens_in(const PrefixTree::Match& match) const {
    return match.page_count * parts_.page_tokens;
  }
  [[nodiscard]] std::uint32_t usable_partial(const PrefixTree::Match& match) const {
    return match.partial_tokens >= parts_.partial_reuse_min_tokens ? match.partial_tokens : 0;
  }
  /// How many whole pages of its tokens a sequence may find in the cache.
  [[nodiscard]] std::uint32_t pages_asked(const SequenceSlot& slot) const;
  /// The pages of a pinned path, in the tiers where they are. Good until the next call.
  [[nodiscard]] TierPath path_of(const PrefixTree::Pin& pin);
  [[nodiscard]] TierPath path_of(const PrefixTree::Match& match);

  // Hits.

  /// All groups keep everything.
  [[nodiscard]] bool is_plain() const { return on_device_.empty(); }
  struct HitQuery {
    std::uint32_t token_count = 0;
    bool allows_inexact = false;
    bool allows_partial = true;
  };
  /// Where a sequence can go on, of what the tree has: whole pages where all groups keep everything.
  [[nodiscard]] Hit find_hit(const PrefixTree::Match& match, const HitQuery& query, HitScope scope);
  [[nodiscard]] Hit hit_of(const SequenceSlot& slot, const PrefixTree::Match& match, HitScope scope) {
    return find_hit(match, {.token_count = slot.token_count, .allows_inexact = slot.allows_inexact}, scope);
  }
  struct LowerPages {
    std::uint32_t page_count = 0;             // of the history, behind what memory has
    std::span<const std::uint64_t> anchored;  // for each page of the path, a bit for each group
  };
  /// The same with what a lower tier has of a path.
  [[nodiscard]] Hit find_hit_below(const TierPath& path, const HitQuery& query, const LowerPages& lower) const;
  /// The part of a match up to a hit.
  [[nodiscard]] PrefixTree::Match cut(const PrefixTree::Match& match, const Hit& hit) const {
    return is_plain() ? match : parts_.tree.cut_pages(match, parts_.pages_for(hit.tokens));
  }
  /// Whether windows or states keep a sequence from all of the history that memory has of it.
  [[nodiscard]] bool lacks_anchored(const SequenceSlot& slot, const PrefixTree::Match& match);
  /// The columns of a path that a sequence needs of a group to go on behind a hit.
  [[nodiscard]] WindowColumns needed_columns(std::size_t group, const Hit& hit, std::uint32_t token_count) const;
  /// Calls visit(AnchoredGroup&, const WindowColumns&) for each anchored group that has a host tier and that a hit
  /// needs something of.
  template <typename Visitor>
  void for_each_anchored_need(const Hit& hit, std::uint32_t token_count, Visitor&& visit) const {
    for (std::size_t i = 0; i < parts_.groups.size(); ++i) {
      AnchoredGroup& group = *parts_.groups[i];
      if (group.has_host() && !hit.is_rebuilt(i)) visit(group, needed_columns(i, hit, token_count));
    }
  }
  [[nodiscard]] const HitLimits& limits() const { return limits_; }
  [[nodiscard]] const HitGroup& hit_group(std::size_t group) const { return on_device_[group]; }

 private:
  TierParts& parts_;
  std::vector<HitGroup> on_device_;  // one for each anchored group
  std::vector<HitGroup> in_memory_;  // the same with what is on the host, where there is one
  HitLimits limits_;
  bool has_state_ = false;
  std::vector<PageId> path_;  // scratch
};

}  // namespace quire
