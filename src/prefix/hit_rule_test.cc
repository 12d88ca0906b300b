// SPDX-License-Identifier: Apache-2.0
#include "prefix/hit_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace quire {
namespace {

constexpr std::uint32_t kPages = 24;

/// A path of which every group holds some pages.
struct Scene {
  std::vector<AnchoredPages> held;  // by group
  std::vector<HitGroup> groups;
  std::vector<PageId> pages;
  HitPath path;
  HitLimits limits;

  std::uint32_t add(const HitGroup& group, const std::vector<std::uint32_t>& columns) {
    Result<AnchoredPages> anchored = AnchoredPages::create({.tree_page_end = kPages + 2, .page_end = kPages + 2});
    EXPECT_TRUE(anchored.has_value());
    for (const std::uint32_t column : columns) anchored->attach(PageId{column + 1}, PageId{column + 1});
    held.push_back(std::move(*anchored));
    groups.push_back(group);
    return static_cast<std::uint32_t>(groups.size() - 1);
  }
  void set_path(std::uint32_t page_count, std::uint32_t partial_tokens, std::uint32_t prompt_tokens) {
    pages.resize(page_count);
    for (std::uint32_t i = 0; i < page_count; ++i) pages[i] = PageId{i + 1};
    path = {.pages = pages,
            .partial_page = PageId{page_count + 1},
            .partial_tokens = partial_tokens,
            .prompt_tokens = prompt_tokens};
  }
  [[nodiscard]] Hit find() {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (groups[i].pages == nullptr && !is_never_kept(i)) groups[i].pages = &held[i];
    }
    return find_hit(groups, path, limits);
  }
  [[nodiscard]] std::string describe() const {
    std::string text = ": pages of " + std::to_string(limits.page_tokens) + ", boundary " +
                       std::to_string(limits.boundary_tokens) + ", parts from " +
                       std::to_string(limits.partial_tokens_min) + ", path " + std::to_string(path.pages.size()) +
                       " + " + std::to_string(path.partial_tokens) + " of " + std::to_string(path.prompt_tokens) + "\n";
    for (std::size_t i = 0; i < groups.size(); ++i) {
      text += "  W " + std::to_string(groups[i].window_tokens) + " sink " + std::to_string(groups[i].sink_tokens) +
              " anew " + std::to_string(static_cast<int>(groups[i].starts_anew)) + " replay " +
              std::to_string(groups[i].replay_tokens) + " held ";
      for (std::uint32_t page = 1; page < kPages + 2; ++page) text += held[i].has(PageId{page}) ? 'x' : '.';
      text += "\n";
    }
    return text;
  }
  [[nodiscard]] bool is_never_kept(std::size_t i) const { return held[i].attached_count() == 0; }
};

// The rule, as it is said: every start, every end, every token.
class BruteForce {
 public:
  explicit BruteForce(const Scene& scene) : scene_(scene) {}

  [[nodiscard]] Hit find() const {
    const std::uint32_t page_tokens = scene_.limits.page_tokens;
    const auto path_tokens =
        static_cast<std::uint32_t>(scene_.path.pages.size()) * page_tokens + scene_.path.partial_tokens;
    for (std::uint32_t start = path_tokens; start > 0; --start) {
      std::optional<Hit> best;  // rebuilds as little as possible
      for (std::uint32_t end = path_tokens; end >= start; --end) {
        const std::optional<Hit> hit = at(start, end);
        if (hit && (!best || std::popcount(hit->rebuilt_groups) < std::popcount(best->rebuilt_groups))) best = hit;
      }
      if (best) return *best;
    }
    return {};
  }

 private:
  [[nodiscard]] std::optional<Hit> at(std::uint32_t start, std::uint32_t end) const {
    const HitLimits& limits = scene_.limits;
    if (start % limits.boundary_tokens != 0 || end % limits.boundary_tokens != 0) return std::nullopt;
    const std::uint32_t rest = end % limits.page_tokens;
    if (rest != 0 && rest < limits.partial_tokens_min) return std::nullopt;
    Hit hit{.tokens = end, .replay_tokens = end - start};
    bool needs_replay = false;
    for (std::size_t i = 0; i < scene_.groups.size(); ++i) {
      const HitGroup& group = scene_.groups[i];
      if (group.window_tokens == 0 && start == scene_.path.prompt_tokens) return std::nullopt;
      // During a replay a state would be led astray, unless it starts anew behind it.
      const bool is_led_astray = end != start && group.window_tokens == 0 && !group.starts_anew;
      if (holds(i, start, end) && !is_led_astray) continue;
      const bool can_replay = group.replay_tokens > 0 && group.sink_tokens == 0;
      // Of a prompt that is found whole, one token behind them is asked what follows.
      const std::uint32_t needed = group.replay_tokens + (end == scene_.path.prompt_tokens ? 1 : 0);
      if (!can_replay || needed > end - start) return std::nullopt;
      if (!group.replay_is_exact && !limits.allows_inexact) return std::nullopt;
      hit.rebuilt_groups |= std::uint64_t{1} << i;
      hit.is_exact &= group.replay_is_exact;
      needs_replay |= !holds(i, start, start);
    }
    // Computing again what nobody needs is no hit.
    if (!needs_replay && end != start) return std::nullopt;
    return hit;
  }
  [[nodiscard]] bool holds(std::size_t index, std::uint32_t start, std::uint32_t end) const {
    const HitGroup& group = scene_.groups[index];
    const auto has_token = [&](std::uint32_t token) {
      return group.pages != nullptr && group.pages->has(PageId{(token / scene_.limits.page_tokens) + 1});
    };
    if (group.window_tokens == 0) {
      if (group.starts_anew) return start % group.boundary_tokens == 0;
      return start % scene_.limits.page_tokens == 0 && has_token(start - 1);
    }
    const std::uint32_t seen = group.window_tokens - (start == scene_.path.prompt_tokens ? 0 : 1);
    for (std::uint32_t token = 0; token < end; ++token) {
      const bool is_needed = token < group.sink_tokens || token + seen >= start;
      if (is_needed && !has_token(token)) return false;
    }
    return true;
  }

  const Scene& scene_;
};

TEST(HitRuleTest, WithoutOtherGroupsTheWholePathIsAHit) {
  Scene scene;
  scene.limits = {.page_tokens = 4};
  scene.set_path(5, 3, 30);
  EXPECT_EQ(scene.find().tokens, 23U);
  scene.limits.partial_tokens_min = 4;
  EXPECT_EQ(scene.find().tokens, 20U);
  scene.limits.boundary_tokens = 8;
  EXPECT_EQ(scene.find().tokens, 16U);
}

TEST(HitRuleTest, AWindowNeedsItsLastTokens) {
  Scene scene;
  scene.limits = {.page_tokens = 4, .partial_tokens_min = 4};
  scene.add({.window_tokens = 9}, {1, 2, 3, 4, 6, 7});
  scene.set_path(8, 0, 40);
  // Behind page 7: 8 tokens before 32 are pages 6 and 7.
  EXPECT_EQ(scene.find().tokens, 32U);
  scene.set_path(7, 0, 40);
  // Behind page 6 it would need page 5: back to where page 5 begins.
  const Hit hit = scene.find();
  EXPECT_EQ(hit.tokens, 20U);
  EXPECT_EQ(hit.limiting_group, 0U);
}

TEST(HitRuleTest, ATokenThatRunsAgainSeesOneMore) {
  Scene scene;
  scene.limits = {.page_tokens = 4, .partial_tokens_min = 4};
  scene.add({.window_tokens = 5}, {3});
  scene.set_path(4, 0, 40);
  EXPECT_EQ(scene.find().tokens, 16U);
  scene.set_path(4, 0, 16);
  EXPECT_EQ(scene.find().tokens, 0U);
  scene = {};
  scene.limits = {.page_tokens = 4, .partial_tokens_min = 4};
  scene.add({.window_tokens = 5}, {2, 3});
  scene.set_path(4, 0, 16);
  EXPECT_EQ(scene.find().tokens, 16U);
}

TEST(HitRuleTest, AStateIsNeededWhereASequenceGoesOn) {
  Scene scene;
  scene.limits = {.page_tokens = 4};
  const std::uint32_t state = scene.add({}, {1, 4});
  scene.set_path(8, 2, 40);
  const Hit hit = scene.find();
  EXPECT_EQ(hit.tokens, 20U);
  EXPECT_EQ(hit.limiting_group, state);
  scene.set_path(5, 0, 20);  // nothing would be left to compute
  EXPECT_EQ(scene.find().tokens, 8U);
}

TEST(HitRuleTest, GroupsMustAgree) {
  Scene scene;
  scene.limits = {.page_tokens = 4};
  scene.add({.window_tokens = 5}, {0, 1, 2, 5, 6, 7});
  scene.add({}, {2, 4});
  scene.set_path(8, 0, 40);
  EXPECT_EQ(scene.find().tokens, 12U);  // the state behind page 4 has no window
}

TEST(HitRuleTest, ARebuiltGroupStartsEarlier) {
  Scene scene;
  scene.limits = {.page_tokens = 4};
  scene.add({.window_tokens = 9, .replay_tokens = 16, .replay_is_exact = true}, {});
  scene.set_path(8, 0, 40);
  const Hit hit = scene.find();
  EXPECT_EQ(hit.tokens, 32U);
  EXPECT_EQ(hit.start(), 16U);
  EXPECT_TRUE(hit.is_rebuilt(0));
  EXPECT_TRUE(hit.is_exact);
  scene.set_path(4, 0, 40);  // all of it would be computed again
  EXPECT_EQ(scene.find().tokens, 0U);
}

TEST(HitRuleTest, AnInexactReplayNeedsToBeAllowed) {
  Scene scene;
  scene.limits = {.page_tokens = 4};
  scene.add({.window_tokens = 9, .replay_tokens = 8}, {});
  scene.set_path(8, 0, 40);
  EXPECT_EQ(scene.find().tokens, 0U);
  scene.limits.allows_inexact = true;
  const Hit hit = scene.find();
  EXPECT_EQ(hit.start(), 24U);
  EXPECT_FALSE(hit.is_exact);
}

TEST(HitRuleTest, AStateIsNotLedThroughAReplayOfOthers) {
  Scene scene;
  scene.limits = {.page_tokens = 4};
  scene.add({.window_tokens = 5, .replay_tokens = 10, .replay_is_exact = true}, {0, 1});
  const std::uint32_t state = scene.add({}, {1, 4});
  scene.set_path(8, 0, 40);
  // At 20 there is a state, but the window would have to be rebuilt around it.
  EXPECT_EQ(scene.find().tokens, 8U);
  EXPECT_EQ(scene.find().limiting_group, state);
  scene.groups[state].replay_tokens = 6;
  scene.groups[state].replay_is_exact = true;
  const Hit hit = scene.find();
  EXPECT_EQ(hit.start(), 22U);
  EXPECT_EQ(hit.tokens, 32U);
  EXPECT_EQ(hit.rebuilt_groups, 3U);
}

TEST(HitRuleTest, IsWhatTryingEverythingGives) {
  int hits = 0;
  int replays = 0;
  int partial = 0;
  for (std::uint32_t seed = 0; seed < 60'000; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t limit) { return static_cast<std::uint32_t>(random() % limit); };
    Scene scene;
    const std::uint32_t page_tokens = 1 + below(6);
    scene.limits.page_tokens = page_tokens;
    scene.limits.boundary_tokens = below(3) == 0 ? 1 + below(2 * page_tokens) : 1;
    scene.limits.partial_tokens_min = 1 + below(page_tokens);
    scene.limits.allows_inexact = below(2) == 0;
    const std::uint32_t group_count = below(4);
    for (std::uint32_t i = 0; i < group_count; ++i) {
      HitGroup group;
      std::vector<std::uint32_t> columns;
      const std::uint32_t density = below(8);
      for (std::uint32_t column = 0; column <= kPages; ++column) {
        if (below(8) <= density) columns.push_back(column);
      }
      if (below(2) == 0) {
        group.window_tokens = 1 + below(4 * page_tokens);
        group.sink_tokens = below(3) == 0 ? below(group.window_tokens) : 0;
        if (below(8) == 0) columns.clear();
      } else {
        std::erase_if(columns, [&](std::uint32_t) { return below(3) != 0; });
        group.starts_anew = below(3) == 0;
        if (group.starts_anew) {
          group.boundary_tokens = scene.limits.boundary_tokens;
          columns.clear();
        }
      }
      if (below(3) == 0) {
        group.replay_tokens = std::max(1U, group.window_tokens) + below(2 * page_tokens);
        group.replay_is_exact = below(2) == 0;
      }
      scene.add(group, columns);
    }
    const std::uint32_t pages = below(kPages);
    const std::uint32_t partial_tokens = below(page_tokens);
    const std::uint32_t tokens = (pages * page_tokens) + partial_tokens;
    scene.set_path(pages, partial_tokens, tokens + (below(2) == 0 ? 0 : 1 + below(10)));
    const Hit hit = scene.find();
    const Hit expected = BruteForce(scene).find();
    ASSERT_EQ(hit.start(), expected.start())
        << "seed " << seed << scene.describe() << " rebuilt " << expected.rebuilt_groups;
    ASSERT_EQ(hit.tokens, expected.tokens) << "seed " << seed;
    ASSERT_EQ(hit.is_exact, expected.is_exact) << "seed " << seed;
    ASSERT_EQ(hit.rebuilt_groups, expected.rebuilt_groups) << "seed " << seed;
    ASSERT_EQ(hit.limiting_group == Hit::kNoGroup && hit.tokens < tokens && group_count > 0 &&
                  scene.limits.boundary_tokens == 1 && scene.limits.partial_tokens_min == 1 &&
                  tokens != scene.path.prompt_tokens,
              false)
        << "seed " << seed << ": shorter than the path, and no group says why";

    // Wherever a part of it lies: pages on disk are as good.
    if (partial_tokens == 0) {
      const std::uint32_t in_memory = below(pages + 1);
      std::vector<std::uint64_t> on_disk(pages);
      for (std::uint32_t column = below(2) == 0 ? 0 : in_memory; column < pages; ++column) {
        for (std::size_t i = 0; i < scene.groups.size(); ++i) {
          const AnchoredPages* const held = scene.groups[i].pages;
          if (held != nullptr && held->has(scene.path.pages[column])) on_disk[column] |= std::uint64_t{1} << i;
        }
      }
      HitPath split = scene.path;
      split.pages = scene.path.pages.first(in_memory);
      split.disk_page_count = pages - in_memory;
      split.on_disk = on_disk;
      const Hit from_disk = find_hit(scene.groups, split, scene.limits);
      ASSERT_EQ(from_disk.start(), hit.start()) << "seed " << seed;
      ASSERT_EQ(from_disk.tokens, hit.tokens) << "seed " << seed;
      ASSERT_EQ(from_disk.rebuilt_groups, hit.rebuilt_groups) << "seed " << seed;
    }

    // In any other order too.
    std::ranges::reverse(scene.groups);
    const Hit reversed = find_hit(scene.groups, scene.path, scene.limits);
    ASSERT_EQ(reversed.start(), hit.start()) << "seed " << seed;
    ASSERT_EQ(reversed.tokens, hit.tokens) << "seed " << seed;
    hits += hit.tokens > 0 ? 1 : 0;
    replays += hit.replay_tokens > 0 ? 1 : 0;
    partial += hit.tokens % page_tokens != 0 ? 1 : 0;
  }
  EXPECT_GT(hits, 20'000);
  EXPECT_GT(replays, 1'000);
  EXPECT_GT(partial, 2'000);
}

}  // namespace
}  // namespace quire
