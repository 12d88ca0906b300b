// SPDX-License-Identifier: Apache-2.0
#include "tiers/paths.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

void Paths::open(std::uint32_t boundary_tokens) {
  limits_ = {.page_tokens = parts_.page_tokens,
             .boundary_tokens = boundary_tokens,
             .partial_tokens_min = parts_.partial_reuse_min_tokens};
  path_.resize(parts_.sequences.row_pages());
  for (const auto& each : parts_.groups) {
    const CacheGroup& group = *each->group;
    has_state_ = has_state_ || !each->is_window;
    // A group that keeps nothing has no hits, whatever direct calls have put into a lower tier.
    const bool keeps_pages = each->has_pages && group.retention.rule != RetentionRule::None;
    on_device_.push_back({.pages = keeps_pages ? &each->on_device : nullptr,
                          .window_tokens = each->is_window ? group.window_tokens : 0,
                          .sink_tokens = each->is_window ? group.sink_tokens : 0,
                          .starts_anew = group.kind == GroupKind::Snapshot && group.snapshot_entries == 0,
                          .boundary_tokens = boundary_multiple(group),
                          .replay_tokens = group.replay.tokens,
                          .replay_is_exact = group.replay.is_exact});
  }
  in_memory_ = on_device_;
}

void Paths::open_host() {
  for (std::size_t i = 0; i < parts_.groups.size(); ++i) {
    if (!parts_.groups[i]->has_host()) continue;
    in_memory_[i].host_of_device = &parts_.groups[i]->host_of_device();
    in_memory_[i].host_of_host = &parts_.groups[i]->host_of_host();
  }
}

// Matches

PrefixTree::Match Paths::match_of(std::uint32_t sequence) const {
  const SequenceSlot& slot = parts_.sequences[sequence];
  // A key space that was dropped while the sequence waited has nothing to offer it.
  const KeySpaceTable::Entry& space = parts_.key_spaces[slot.key_space];
  const bool may_match = slot.options.may_use_cache && !space.is_retired;
  // Tokens behind the window were computed by others that saw more.
  const std::uint32_t tokens_max =
      may_match ? std::min({slot.token_count, slot.options.match_tokens_max, slot.window_tokens()}) : 0;
  return with_whole_entries(parts_.tree.match(space.root, parts_.sequences.key(sequence, tokens_max)));
}

std::uint32_t Paths::pages_asked(const SequenceSlot& slot) const {
  if (!slot.options.may_use_cache || parts_.key_spaces[slot.key_space].is_retired) return 0;
  const std::uint32_t known_rows = parts_.sequences.keys().known_rows(slot.token_count);
  return std::min({known_rows, slot.options.match_tokens_max, slot.window_tokens()}) / parts_.page_tokens;
}

TierPath Paths::path_of(const PrefixTree::Pin& pin) {
  return pin ? path_to(pin.run()) : TierPath{};
}

TierPath Paths::path_of(const PrefixTree::HostHold& hold) {
  return parts_.tree.held_pages(hold) > 0 ? path_to(hold.run()) : TierPath{};
}

TierPath Paths::path_to(RunId end) {
  const std::uint32_t page_count = parts_.tree.end_page(end);
  if (page_count == 0) return {};
  QUIRE_CHECK(page_count <= path_.size(), "a path is longer than any sequence");
  const std::span<PageId> row = std::span(path_).first(page_count);
  parts_.tree.copy_path(end, 0, row);
  const RunId host_run = parts_.tree.first_host_run(end);
  const std::uint32_t device_pages =
      host_run.is_none() ? page_count : parts_.tree.end_page(parts_.tree.parent(host_run));
  return {.pages = row.first(device_pages), .host_pages = row.subspan(device_pages)};
}

TierPath Paths::path_of(const PrefixTree::Match& match) {
  QUIRE_CHECK(match.page_count + match.host_page_count <= path_.size(), "a path is longer than any sequence");
  const std::span<PageId> pages = std::span(path_).first(match.page_count);
  parts_.tree.copy_pages(match, 0, pages);
  const std::span<PageId> host_pages = std::span(path_).subspan(match.page_count, match.host_page_count);
  if (!host_pages.empty()) parts_.tree.copy_host_pages(match, host_pages);
  return {.pages = pages, .host_pages = host_pages};
}

// Hits

Hit Paths::find_hit(const PrefixTree::Match& match, const HitQuery& query, HitScope scope) {
  const std::uint32_t host_page_count = scope == HitScope::DeviceAndHost ? match.host_page_count : 0;
  if (is_plain()) return {.tokens = (match.page_count + host_page_count) * parts_.page_tokens};
  TierPath path = path_of(match);
  path.host_pages = path.host_pages.first(host_page_count);
  const bool has_partial = query.allows_partial && match.partial_tokens > 0 && path.host_pages.empty();
  HitLimits limits = limits_;
  limits.allows_inexact = query.allows_inexact;
  if (!query.allows_partial) limits.partial_tokens_min = parts_.page_tokens;
  return quire::find_hit(scope == HitScope::Device ? on_device_ : in_memory_,
                         {.pages = path.pages,
                          .host_pages = path.host_pages,
                          .partial_page = has_partial ? parts_.tree.partial_page(match) : kNullPage,
                          .partial_tokens = has_partial ? match.partial_tokens : 0,
                          .prompt_tokens = query.token_count},
                         limits);
}

Hit Paths::find_hit_below(const TierPath& path, const HitQuery& query, const LowerPages& lower) const {
  if (is_plain()) return {.tokens = (path.size() + lower.page_count) * parts_.page_tokens};
  HitLimits limits = limits_;
  limits.allows_inexact = query.allows_inexact;
  if (!query.allows_partial) limits.partial_tokens_min = parts_.page_tokens;
  return quire::find_hit(in_memory_,
                         {.pages = path.pages,
                          .host_pages = path.host_pages,
                          .disk_page_count = lower.page_count,
                          .on_disk = lower.anchored,
                          .prompt_tokens = query.token_count},
                         limits);
}

bool Paths::lacks_anchored(const SequenceSlot& slot, const Found& found) const {
  if (is_plain()) return false;
  const std::uint32_t page_tokens = parts_.page_tokens;
  std::uint32_t best = std::min(found.page_count(), pages_asked(slot)) * page_tokens;
  if (has_state_ && best == query_of(slot).token_count) best = (best - 1) / page_tokens * page_tokens;
  return found.in_memory.start() < best / limits_.boundary_tokens * limits_.boundary_tokens;
}

WindowColumns Paths::needed_columns(std::size_t group, const Hit& hit, std::uint32_t token_count) const {
  QUIRE_CHECK(group < on_device_.size(), "a group without columns");
  if (!parts_.groups[group]->is_window) {
    const std::uint32_t end = hit.start() / parts_.page_tokens;
    return {.first = end - std::min(end, 1U), .last = end};
  }
  return window_columns(on_device_[group], limits_,
                        {.start = hit.start(), .end = hit.tokens, .runs_again = hit.start() == token_count});
}

// Misses

// The most certain reason comes first: what the request itself ruled out, why loads brought less, what is known to be
// lost, what another key space has. A load that failed is no reason where everything that was asked for is there all
// the same. "Never seen" is the answer only as long as the record of lost pages has forgotten nothing.
Miss Paths::find_miss(std::uint32_t sequence, const PrefixTree::Match& match) const {
  const SequenceSlot& slot = parts_.sequences[sequence];
  const Arrival& arrival = parts_.arrivals[sequence];
  const std::uint32_t page_tokens = parts_.page_tokens;
  const bool waits = slot.state == SequenceSlot::State::Loading;
  const std::uint32_t found = match.page_count + (waits ? match.host_page_count : 0);
  // A partial match directly behind the device pages. While host pages are loading, no partial match is known.
  const bool is_partial = !waits && match.partial_tokens > 0 && usable_partial(match) == 0;
  if (found >= parts_.sequences.keys().known_rows(slot.token_count) / page_tokens) {
    return {.reason = is_partial ? MissReason::PartialPage : MissReason::None};
  }
  const std::uint32_t tokens_max =
      slot.options.may_use_cache ? std::min(slot.options.match_tokens_max, slot.window_tokens()) : 0;
  if (found >= tokens_max / page_tokens && !arrival.has_lost_pages) return {.reason = MissReason::NotAsked};
  if (arrival.load_miss != MissReason::None) return {.reason = arrival.load_miss};
  if (arrival.lower_miss != MissReason::None) return {.reason = arrival.lower_miss};
  if (!waits && match.host_page_count > 0) return {.reason = MissReason::LoadFailed};
  const PrefixTree::Key key = parts_.sequences.key(sequence, slot.token_count);
  if (parts_.lost_pages.is_on()) {
    const PageFingerprint missing = parts_.tree.next_fingerprint(parts_.tree.fingerprint_before(match), key, found);
    if (const auto loss = parts_.lost_pages.find(missing)) {
      if (loss->was_bad) return {.reason = MissReason::LoadFailed};
      return {.reason = MissReason::Evicted, .tier = loss->tier, .age_ns = parts_.now - loss->time};
    }
  }
  if (is_partial) return {.reason = MissReason::PartialPage};
  if (found == 0) {
    for (std::uint32_t i = 0; i < parts_.key_spaces.end(); ++i) {
      const KeySpaceTable::Entry& space = parts_.key_spaces[i];
      if (i == slot.key_space || !space.is_live || space.is_retired) continue;
      if (parts_.tree.has_first_page(space.root, key)) return {.reason = MissReason::KeySpaceDiffers};
    }
  }
  const bool knows_all = parts_.lost_pages.is_on() && !parts_.lost_pages.has_forgotten();
  return {.reason = knows_all ? MissReason::NeverSeen : MissReason::Unknown};
}

}  // namespace quire
