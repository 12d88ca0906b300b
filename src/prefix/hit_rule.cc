// SPDX-License-Identifier: Apache-2.0
#include "prefix/hit_rule.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutants.h"

namespace quire {
namespace {

std::uint32_t floor_to(std::uint32_t value, std::uint32_t multiple) {
  return value - (value % multiple);
}

/// What a start asks for is not there: the greatest one that may do instead.
struct Refusal {
  std::uint32_t next = 0;
  std::uint32_t group = Hit::kNoGroup;
};

class Finder {
 public:
  Finder(std::span<const HitGroup> groups, const HitPath& path, const HitLimits& limits)
      : groups_(groups),
        path_(path),
        limits_(limits),
        end_((static_cast<std::uint32_t>(path.pages.size() + path.host_pages.size() + path.disk_page_count) *
              limits.page_tokens) +
             path.partial_tokens),
        has_state_(std::ranges::any_of(groups, [](const HitGroup& group) { return group.window_tokens == 0; })) {}

  [[nodiscard]] Hit find() const {
    std::uint32_t limiting_group = Hit::kNoGroup;
    for (std::uint32_t start = floor_to(end_, limits_.boundary_tokens); start > 0;) {
      Refusal refusal;
      Hit hit;
      if (try_start(start, hit, refusal)) {
        hit.limiting_group = limiting_group;
        return hit;
      }
      if (refusal.group != Hit::kNoGroup) limiting_group = refusal.group;
      // Where nothing is left to compute the last token runs again, and groups need more than before it.
      if (start == path_.prompt_tokens) refusal.next = start - 1;
      QUIRE_CHECK(refusal.next < start, "a search that does not end");
      start = floor_to(refusal.next, limits_.boundary_tokens);
    }
    return {.limiting_group = limiting_group};
  }

 private:
  // Where the history may be cut: at multiples of the boundary, and not in a page that is not worth a copy.
  [[nodiscard]] std::uint32_t cut_at_most(std::uint32_t end) const {
    for (;;) {
      end = floor_to(end, limits_.boundary_tokens);
      const std::uint32_t rest = end % limits_.page_tokens;
      if (rest == 0 || rest >= limits_.partial_tokens_min) return end;
      end -= rest;
    }
  }
  [[nodiscard]] bool holds(const HitGroup& group, std::uint32_t column) const {
    if (group.pages == nullptr) return false;
    if (column < path_.on_disk.size() && (path_.on_disk[column] >> (&group - groups_.data()) & 1U) != 0) return true;
    const std::size_t device_pages = path_.pages.size();
    if (column >= device_pages && column < device_pages + path_.host_pages.size()) {
      return group.host_of_host != nullptr && group.host_of_host->has(path_.host_pages[column - device_pages]);
    }
    if (column >= device_pages && path_.disk_page_count > 0) return false;
    const PageId page = column < device_pages ? path_.pages[column] : path_.partial_page;
    return group.pages->has(page) || (group.host_of_device != nullptr && group.host_of_device->has(page));
  }
  [[nodiscard]] bool may_replay(const HitGroup& group) const {
    return group.replay_tokens > 0 && group.sink_tokens == 0 && (group.replay_is_exact || limits_.allows_inexact);
  }

  // Whether a group can go on at `start`; if not, the greatest position before it where it may.
  [[nodiscard]] bool is_held(const HitGroup& group, std::uint32_t start, std::uint32_t& next) const {
    return group.window_tokens > 0 ? window_is_held(group, start, next) : state_is_held(group, start, next);
  }
  [[nodiscard]] bool window_is_held(const HitGroup& group, std::uint32_t start, std::uint32_t& next) const {
    const WindowColumns columns =
        window_columns(group, limits_, {.start = start, .end = start, .runs_again = start == path_.prompt_tokens});
    for (std::uint32_t column = 0; column < columns.sink_pages; ++column) {
      if (holds(group, column)) continue;
      next = column * limits_.page_tokens;
      return false;
    }
    for (std::uint32_t column = columns.last; column > columns.first; --column) {
      if (holds(group, column - 1)) continue;
      next = (column - 1) * limits_.page_tokens;
      return false;
    }
    return true;
  }
  [[nodiscard]] bool state_is_held(const HitGroup& group, std::uint32_t start, std::uint32_t& next) const {
    if (group.starts_anew) {
      next = floor_to(start, group.boundary_tokens);
      return next == start;
    }
    next = 0;
    if (group.pages == nullptr) return false;
    const bool is_page_end = start % limits_.page_tokens == 0;
    std::uint32_t column = start / limits_.page_tokens;
    if (is_page_end && holds(group, column - 1)) return true;
    while (column > 0 && !holds(group, column - 1)) --column;
    next = column * limits_.page_tokens;
    return false;
  }
  // Up to where a window has everything from `start` on, at most up to `end`.
  [[nodiscard]] std::uint32_t held_until(const HitGroup& group, std::uint32_t start, std::uint32_t end) const {
    std::uint32_t column = start / limits_.page_tokens;
    while (column * limits_.page_tokens < end && holds(group, column)) ++column;
    return std::min(end, std::max(start, column * limits_.page_tokens));
  }

  [[nodiscard]] bool try_start(std::uint32_t start, Hit& hit, Refusal& refusal) const {
    if (start == path_.prompt_tokens && has_state_) return false;  // a state would count the last token twice
    std::uint64_t rebuilt = 0;
    std::uint32_t next_held = 0;  // where one of those that have to be rebuilt need not be
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      std::uint32_t next = 0;
      if (is_held(groups_[i], start, next)) continue;
      if (!may_replay(groups_[i])) {
        refusal = {.next = next, .group = static_cast<std::uint32_t>(i)};
        return false;
      }
      rebuilt |= std::uint64_t{1} << i;
      next_held = std::max(next_held, next);
    }
    refusal.next = next_held;
    if (rebuilt == 0) {
      hit = {.tokens = start};
      refusal.next = start - 1;
      return cut_at_most(start) == start;
    }
    return try_replay(start, rebuilt, hit, refusal);
  }

  // These groups start with nothing at `start`, and are as they should be some tokens later, up to where the others
  // must have everything.
  [[nodiscard]] bool try_replay(std::uint32_t start, std::uint64_t rebuilt, Hit& hit, Refusal& refusal) const {
    // A state that was right would be led astray by what others compute until they are: it is rebuilt with them.
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const bool is_led_astray = groups_[i].window_tokens == 0 && !groups_[i].starts_anew;
      if (!is_led_astray || (rebuilt >> i & 1U) != 0) continue;
      if (!may_replay(groups_[i])) {
        refusal.group = static_cast<std::uint32_t>(i);
        return false;
      }
      rebuilt |= std::uint64_t{1} << i;
    }
    for (;;) {
      std::uint64_t tokens = 0;
      std::uint32_t end = end_;
      std::uint32_t ending_group = Hit::kNoGroup;
      for (std::size_t i = 0; i < groups_.size(); ++i) {
        const HitGroup& group = groups_[i];
        if ((rebuilt >> i & 1U) != 0) {
          tokens = std::max<std::uint64_t>(tokens, group.replay_tokens);
          if (refusal.group == Hit::kNoGroup) refusal.group = static_cast<std::uint32_t>(i);
        } else if (group.window_tokens > 0) {
          const std::uint32_t until = held_until(group, start, end);
          if (until < end) ending_group = static_cast<std::uint32_t>(i);
          end = until;
        }
      }
      const std::uint32_t cut = cut_at_most(end);
      // The last token of a prompt is asked what follows, so it must stand behind those that rebuild.
      if (cut == path_.prompt_tokens) ++tokens;
      if (cut >= start + tokens) {
        const auto is_exact = [&](const HitGroup& group, std::size_t i) {
          return (rebuilt >> i & 1U) == 0 || group.replay_is_exact;
        };
        hit = {.tokens = cut, .replay_tokens = cut - start, .rebuilt_groups = rebuilt};
        for (std::size_t i = 0; i < groups_.size(); ++i) hit.is_exact &= is_exact(groups_[i], i);
        return true;
      }
      // An earlier start leaves more to be computed before a window ends, or it is rebuilt as well.
      const std::uint32_t earlier = cut > tokens ? cut - static_cast<std::uint32_t>(tokens) : 0;
      refusal.next = std::max(refusal.next, std::min(earlier, start - 1));
      if (ending_group == Hit::kNoGroup || !may_replay(groups_[ending_group])) return false;
      rebuilt |= std::uint64_t{1} << ending_group;
    }
  }

  std::span<const HitGroup> groups_;
  const HitPath& path_;
  const HitLimits& limits_;
  std::uint32_t end_;
  bool has_state_;
};

}  // namespace

Hit find_hit(std::span<const HitGroup> groups, const HitPath& path, const HitLimits& limits) {
  QUIRE_CHECK(groups.size() <= kHitGroupsMax, "more groups than a hit counts");
  return Finder(groups, path, limits).find();
}

WindowColumns window_columns(const HitGroup& group, const HitLimits& limits, const WindowNeed& need) {
  const auto column_end = [&](std::uint32_t tokens) {
    return (tokens / limits.page_tokens) + (tokens % limits.page_tokens > 0 ? 1 : 0);
  };
  const std::uint32_t seen = group.window_tokens - (need.runs_again ? 0 : 1);
  WindowColumns columns;
  columns.last = column_end(need.end);
  columns.sink_pages = std::min(column_end(group.sink_tokens), columns.last);
  columns.first = need.start > seen ? (need.start - seen) / limits.page_tokens : 0;
  if (seen == 0 && need.start == need.end) columns.first = columns.last;
  if (is_mutated(Mutant::ShortWindows)) ++columns.first;
  columns.first = std::clamp(columns.first, columns.sink_pages, columns.last);
  return columns;
}

}  // namespace quire
