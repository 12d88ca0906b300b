// SPDX-License-Identifier: Apache-2.0
#include "tiers/host_holds.h"

#include <utility>

#include "base/check.h"
#include "layout/text.h"

namespace quire {

void HostHolds::take(const PrefixTree::HostHold& path, const Hit& hit, AnchoredHold& hold) {
  QUIRE_CHECK(hold.pages.empty() && hold.wanted.empty(), "a prefix is held twice by one hold");
  hold.hit = hit;
  for (std::uint32_t i = 0; hit.tokens > 0 && i < parts_.groups.size(); ++i) {
    if (!parts_.groups[i]->has_host() || hit.is_rebuilt(i)) continue;
    for_each_column(paths_.needed_columns(i, hit, UINT32_MAX),
                    [&](std::uint32_t column) { hold.wanted.push_back({.group = i, .column = column}); });
  }
  hold.pages.reserve(hold.wanted.size());  // so that update() allocates nothing
  update(path, hold);
}

void HostHolds::update(const PrefixTree::HostHold& path, AnchoredHold& hold) {
  if (hold.wanted.empty()) return;
  const TierPath pages = paths_.path_of(path);
  std::erase_if(hold.wanted, [&](AnchoredHold::Page& wanted) {
    if (wanted.column >= pages.size()) return true;  // the history has left memory
    wanted.hold = parts_.groups[wanted.group]->hold_on_host(pages.at(wanted.column), wanted.column, wanted.hold);
    if (!wanted.hold.page.is_none()) hold.pages.push_back(wanted);
    return !wanted.hold.is_wanted;
  });
}

void HostHolds::release(AnchoredHold& hold) {
  for (const AnchoredHold::Page& page : hold.pages) parts_.groups[page.group]->release_host_hold(page.hold);
  hold = {};
}

Hit HostHolds::hit_of(const PrefixTree::HostHold& path) {
  const TierPath pages = paths_.path_of(path);
  // Of a prompt that goes on behind the path.
  return paths_.find_hit_below(pages, {.token_count = (pages.size() * parts_.page_tokens) + 1, .allows_partial = false},
                               {});
}

std::uint32_t HostHolds::pages_needed(std::size_t group, const Hit& hit) const {
  if (hit.tokens == 0 || hit.is_rebuilt(group) || !parts_.groups[group]->has_host()) return 0;
  const WindowColumns columns = paths_.needed_columns(group, hit, UINT32_MAX);
  return columns.sink_pages + columns.last - columns.first;
}

Status HostHolds::check_invariants(std::span<const AnchoredHold* const> holds) const {
  for (std::uint32_t i = 0; i < parts_.groups.size(); ++i) {
    const AnchoredGroup& group = *parts_.groups[i];
    if (!group.has_host()) continue;
    std::vector<std::uint32_t> counts(std::size_t{group.pages.host.page_count()} + 1);
    for (const AnchoredHold* const hold : holds) {
      for (const AnchoredHold::Page& page : hold->pages) {
        if (page.group == i && group.is_there(page.hold)) ++counts[page.hold.page.value];
      }
    }
    for (std::uint32_t page = 1; page < counts.size(); ++page) {
      if (group.host_hold_count(PageId{page}) == counts[page]) continue;
      return fail(ErrorCode::Corrupt,
                  message_of("group '", group.group->name, "': host page ", plain(page), " is held ",
                             group.host_hold_count(PageId{page}), " times, not ", counts[page]));
    }
  }
  return {};
}

}  // namespace quire
