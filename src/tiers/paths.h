// SPDX-License-Identifier: Apache-2.0
//
// Paths: what memory has of a sequence's tokens, where the sequence can go on from there, and why not further. In a
// plain model (all groups keep every token), a sequence goes on behind the last whole page that the tree has. In a
// hybrid model, windows and states decide too (prefix/hit_rule.h).
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

/// What memory has of a sequence's tokens.
struct Found {
  PrefixTree::Match match;
  Hit on_device;  // what the sequence would run with now
  Hit in_memory;  // what it would run with once all pages on the host have come to the device
  /// Whole pages of the history, of device and host.
  [[nodiscard]] std::uint32_t page_count() const { return match.page_count + match.host_page_count; }
};

class Paths {
 public:
  explicit Paths(TierParts& parts) : parts_(parts) {}
  /// To be called once all groups are open.
  void open(std::uint32_t boundary_tokens);
  /// The host tier is open: host pages of anchored groups count from here on.
  void open_host();

  /// What memory has of a sequence's tokens, or of a match of them.
  [[nodiscard]] Found find(std::uint32_t sequence) { return find(parts_.sequences[sequence], match_of(sequence)); }
  [[nodiscard]] Found find(const SequenceSlot& slot, const PrefixTree::Match& match) {
    return {.match = match,
            .on_device = hit_of(slot, match, HitScope::Device),
            .in_memory = hit_of(slot, match, HitScope::DeviceAndHost)};
  }
  /// Why a sequence computes what follows a match.
  [[nodiscard]] Miss find_miss(std::uint32_t sequence, const PrefixTree::Match& match) const;

  // Matches.

  /// What memory has of a sequence's tokens, as far as the sequence may use it.
  [[nodiscard]] PrefixTree::Match match_of(std::uint32_t sequence) const;
  /// A compressed group stores one entry for several tokens, and shares it as a whole: cuts a partial page to a
  /// multiple of boundary_tokens. In a hybrid model the hit rule does that.
  [[nodiscard]] PrefixTree::Match with_whole_entries(PrefixTree::Match match) const {
    if (is_plain()) match.partial_tokens -= match.partial_tokens % limits_.boundary_tokens;
    return match;
  }
  /// Tokens in the whole device pages of a match.
  [[nodiscard]] std::uint32_t tokens_in(const PrefixTree::Match& match) const {
    return match.page_count * parts_.page_tokens;
  }
  [[nodiscard]] std::uint32_t usable_partial(const PrefixTree::Match& match) const {
    return match.partial_tokens >= parts_.partial_reuse_min_tokens ? match.partial_tokens : 0;
  }
  /// How many whole pages of its tokens a sequence may find in the cache.
  [[nodiscard]] std::uint32_t pages_asked(const SequenceSlot& slot) const;
  /// The pages of a pinned path, in the tiers where they are. Good until the next call of path_of(), find(),
  /// find_hit() or hit_of(), which use the same row.
  [[nodiscard]] TierPath path_of(const PrefixTree::Pin& pin);
  [[nodiscard]] TierPath path_of(const PrefixTree::Match& match);
  /// Empty when the hold has ended by itself.
  [[nodiscard]] TierPath path_of(const PrefixTree::HostHold& hold);

  // Hits.

  /// There are no anchored groups: all groups keep every token.
  [[nodiscard]] bool is_plain() const { return on_device_.empty(); }
  struct HitQuery {
    std::uint32_t token_count = 0;
    bool allows_inexact = false;
    bool allows_partial = true;
  };
  /// The longest prefix that a sequence can go on behind with the pages of a match. In a plain model: all whole pages.
  [[nodiscard]] Hit find_hit(const PrefixTree::Match& match, const HitQuery& query, HitScope scope);
  [[nodiscard]] Hit hit_of(const SequenceSlot& slot, const PrefixTree::Match& match, HitScope scope) {
    return find_hit(match, query_of(slot), scope);
  }
  /// Sequences go on behind a prefix that is brought to the host. So the query is that of a prompt one token longer:
  /// the prefix's last token need not run again.
  [[nodiscard]] static HitQuery query_of(const SequenceSlot& slot) {
    const bool is_for_host = slot.admit_options.is_for_host;
    return {.token_count = slot.token_count + (is_for_host ? 1 : 0),
            .allows_inexact = slot.options.allows_inexact,
            .allows_partial = !is_for_host};
  }
  struct LowerPages {
    std::uint32_t page_count = 0;             // of the history, behind what memory has
    std::span<const std::uint64_t> anchored;  // for each page of the path, a bit for each group
  };
  /// The same with the pages of a path in memory, and what a lower tier has of the path besides.
  [[nodiscard]] Hit find_hit_below(const TierPath& path, const HitQuery& query, const LowerPages& lower) const;
  /// Cuts a match at the end of a hit. In a plain model they end together.
  [[nodiscard]] PrefixTree::Match cut(const PrefixTree::Match& match, const Hit& hit) const {
    return is_plain() ? match : parts_.tree.cut_pages(match, parts_.pages_for(hit.tokens));
  }
  /// Whether a sequence cannot use all of the history that memory has of it because memory lacks windows or states.
  [[nodiscard]] bool lacks_anchored(const SequenceSlot& slot, const Found& found) const;
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
  /// Pins those pages in `tier` of anchored groups that a hit needs, so that loads of the other pages do not evict
  /// them; or, without `is_held`, unpins them.
  void hold(const TierPath& path, const Hit& hit, std::uint32_t token_count, Tier tier, bool is_held) const {
    for_each_anchored_need(hit, token_count, [&](AnchoredGroup& group, const WindowColumns& columns) {
      group.hold(path, columns, tier, is_held);
    });
  }
  [[nodiscard]] const HitLimits& limits() const { return limits_; }
  [[nodiscard]] const HitGroup& hit_group(std::size_t group) const { return on_device_[group]; }

 private:
  [[nodiscard]] TierPath path_to(RunId end);

  TierParts& parts_;
  std::vector<HitGroup> on_device_;  // one for each anchored group
  std::vector<HitGroup> in_memory_;  // the same with what is on the host, where there is one
  HitLimits limits_;
  bool has_state_ = false;
  std::vector<PageId> path_;  // scratch
};

}  // namespace quire
