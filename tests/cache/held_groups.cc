// SPDX-License-Identifier: Apache-2.0
#include "held_groups.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "cache/cache_for_tests.h"

namespace quire::testing {

HeldGroups::HeldGroups(const Cache& cache, KeySpaceId space)
    : cache_(cache), page_tokens_(cache.config().page.page_tokens) {
  const std::span<const CacheGroup> groups = cache.config().layout.groups();
  for (const CacheGroup& group : groups) lookahead_ = std::max(lookahead_, group.lookahead_tokens);
  std::map<std::uint32_t, Path> paths;  // by run
  const Status visited = cache.visit_runs([&](const RunView& run) {
    if (run.key_space != space) return;
    Path path = run.parent.is_none() ? Path{} : paths[run.parent.value];
    const std::vector<TokenId>& text = texts_.emplace_back(run.tokens.begin(), run.tokens.end());
    for (std::size_t i = 0; i < run.pages.size(); ++i) {
      path.push_back(
          {.tokens = std::span(text).subspan(i * page_tokens_, page_tokens_), .page = run.pages[i], .tier = run.tier});
    }
    paths[run.run.value] = path;
    if (!path.empty()) paths_.push_back(std::move(path));
  });
  QUIRE_CHECK(visited.has_value(), "the tree cannot be looked at");
  anchors_.resize(groups.size());
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    Anchors& anchors = anchors_[i];
    const Status seen =
        cache.visit_group_pages(i, [&](PageId page, PageId) { anchors.on_device.push_back(page.value); });
    QUIRE_CHECK(seen.has_value(), "a group cannot be looked at");
    CacheForTests::visit_host_pages(cache, i, [&](Tier tier, PageId page) {
      (tier == Tier::Device ? anchors.on_host_of_device : anchors.on_host_of_host).push_back(page.value);
    });
    for (std::vector<std::uint32_t>* const pages :
         {&anchors.on_device, &anchors.on_host_of_device, &anchors.on_host_of_host}) {
      std::ranges::sort(*pages);
    }
  }
}

// A page stands there under the tokens that its last row depends on.
std::uint32_t HeldGroups::matched(const Path& path, std::span<const TokenId> tokens, Tier tier) const {
  std::uint32_t count = 0;
  while (count < path.size() * page_tokens_ && count + lookahead_ < tokens.size()) {
    const Page& page = path[count / page_tokens_];
    if (page.tier > tier || page.tokens[count % page_tokens_] != tokens[count + lookahead_]) break;
    ++count;
  }
  const bool ends_on_host = count % page_tokens_ != 0 && path[count / page_tokens_].tier == Tier::Host;
  return ends_on_host ? count - (count % page_tokens_) : count;
}

HeldGroups::Found HeldGroups::find(std::span<const TokenId> tokens, std::uint32_t partial_min, Tier tier) const {
  const auto length = static_cast<std::uint32_t>(tokens.size());
  Found best;
  int best_rebuilt = 0;
  for (const Path& path : paths_) {
    const std::uint32_t end_max = matched(path, tokens, tier);
    bool is_found = false;
    for (std::uint32_t start = end_max; start >= std::max(best.start, 1U) && !is_found; --start) {
      for (std::uint32_t end = start; end <= end_max; ++end) {
        const std::uint32_t rest = end % page_tokens_;
        if (rest != 0 && rest < partial_min) continue;
        const std::optional<int> rebuilt = rebuilt_groups(path, {start, end}, length, tier);
        if (!rebuilt) continue;
        is_found = true;
        const bool is_better =
            start > best.start ||
            (start == best.start && (*rebuilt < best_rebuilt || (*rebuilt == best_rebuilt && end > best.end)));
        if (!is_better) continue;
        best = {start, end};
        best_rebuilt = *rebuilt;
      }
    }
  }
  return best;
}

std::uint32_t HeldGroups::history_tokens(std::span<const TokenId> tokens, Tier tier) const {
  std::uint32_t most = 0;
  for (const Path& path : paths_) most = std::max(most, matched(path, tokens, tier));
  return most - (most % page_tokens_);
}

bool HeldGroups::holds(std::uint32_t group, std::span<const TokenId> tokens, std::uint32_t start, Tier tier) const {
  const auto length = static_cast<std::uint32_t>(tokens.size());
  return std::ranges::all_of(paths_, [&](const Path& path) {
    return matched(path, tokens, tier) < start || holds(group, path, start, start, length, tier);
  });
}

bool HeldGroups::has(std::uint32_t group, const Page& page, Tier tier) const {
  const Anchors& anchors = anchors_[group];
  const auto is_in = [&](const std::vector<std::uint32_t>& pages) {
    return std::ranges::binary_search(pages, page.page.value);
  };
  if (page.tier == Tier::Host) return tier >= Tier::Host && is_in(anchors.on_host_of_host);
  return is_in(anchors.on_device) || (tier >= Tier::Host && is_in(anchors.on_host_of_device));
}

bool HeldGroups::holds(std::uint32_t g, const Path& path, std::uint32_t start, std::uint32_t until,
                       std::uint32_t length, Tier tier) const {
  const CacheGroup& group = cache_.config().layout.groups()[g];
  const auto has_token = [&](std::uint32_t token) { return has(g, path[token / page_tokens_], tier); };
  if (has_slot(group)) {
    if (start == length) return false;
    if (group.kind == GroupKind::Snapshot && group.snapshot_entries == 0) return start % group.boundary_tokens == 0;
    return start % page_tokens_ == 0 && has_token(start - 1);
  }
  if (group.kind != GroupKind::Window) return true;
  const std::uint32_t seen = group.window_tokens - (start == length ? 0 : 1);
  for (std::uint32_t token = 0; token < until; ++token) {
    if ((token < group.sink_tokens || token + seen >= start) && !has_token(token)) return false;
  }
  return true;
}

std::optional<int> HeldGroups::rebuilt_groups(const Path& path, Found at, std::uint32_t length, Tier tier) const {
  int rebuilt = 0;
  bool is_needed = false;
  const std::span<const CacheGroup> groups = cache_.config().layout.groups();
  for (std::uint32_t g = 0; g < groups.size(); ++g) {
    const CacheGroup& group = groups[g];
    if (at.start % boundary_multiple(group) != 0 || at.end % boundary_multiple(group) != 0) return std::nullopt;
    if (has_slot(group) && at.start == length) return std::nullopt;
    const bool starts_anew = group.kind == GroupKind::Snapshot && group.snapshot_entries == 0;
    const bool is_led_astray = at.end != at.start && has_slot(group) && !starts_anew;
    if (holds(g, path, at.start, at.end, length, tier) && !is_led_astray) continue;
    // Of a prompt that is found whole, one token behind those that rebuild is asked what follows.
    const std::uint32_t needed = group.replay.tokens + (at.end == length ? 1 : 0);
    if (group.replay.tokens == 0 || !group.replay.is_exact || needed > at.end - at.start) return std::nullopt;
    ++rebuilt;
    is_needed |= !holds(g, path, at.start, at.start, length, tier);
  }
  if (at.end != at.start && !is_needed) return std::nullopt;
  return rebuilt;
}

}  // namespace quire::testing
