// SPDX-License-Identifier: Apache-2.0
#include "prefix/anchored_pages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace quire {

struct AnchoredPagesPeer {
  static void forget_anchored(AnchoredPages& pages, PageId tree_page) { pages.anchored_[tree_page.value] = 0; }
  static void add_pin(AnchoredPages& pages, PageId page) { ++pages.entries_[page.value].pins; }
  static void add_hold(AnchoredPages& pages, PageId page) { ++pages.entries_[page.value].holds; }
  static void turn_worth(AnchoredPages& pages, PageId page) { pages.entries_[page.value].is_kept ^= true; }
  static void count_one_more(AnchoredPages& pages) { ++pages.attached_count_; }
};

namespace {

using Worth = AnchoredPages::Worth;

AnchoredPages make(std::uint32_t tree_pages, std::uint32_t anchored_pages) {
  Result<AnchoredPages> pages = AnchoredPages::create({.tree_page_end = tree_pages, .page_end = anchored_pages});
  EXPECT_TRUE(pages.has_value());
  return std::move(*pages);
}

TEST(AnchoredPagesTest, APageHangsOnOneOfTheTreesUntilItIsTaken) {
  AnchoredPages pages = make(10, 5);
  EXPECT_TRUE(pages.at(PageId{7}).is_none());
  pages.attach(PageId{7}, PageId{3});
  EXPECT_EQ(pages.at(PageId{7}), PageId{3});
  EXPECT_EQ(pages.idle_count(), 0U);
  pages.unpin(PageId{3}, Worth::Kept);
  EXPECT_EQ(pages.idle_count(), 1U);
  pages.detach(PageId{3});
  EXPECT_TRUE(pages.at(PageId{7}).is_none());
  EXPECT_EQ(pages.attached_count(), 0U);
  EXPECT_TRUE(pages.check_invariants());
}

TEST(AnchoredPagesTest, WhatWasPassedGoesBeforeWhatIsKept) {
  AnchoredPages pages = make(10, 10);
  for (std::uint32_t i = 1; i <= 4; ++i) pages.attach(PageId{i}, PageId{i + 4});
  pages.unpin(PageId{5}, Worth::Kept);
  pages.unpin(PageId{6}, Worth::Passed);
  pages.unpin(PageId{7}, Worth::Kept);
  pages.unpin(PageId{8}, Worth::Passed);
  EXPECT_EQ(pages.evict(), PageId{6});
  EXPECT_EQ(pages.evict(), PageId{8});
  EXPECT_EQ(pages.evict(), PageId{5});
  EXPECT_EQ(pages.evict(), PageId{7});
  EXPECT_TRUE(pages.evict().is_none());
}

TEST(AnchoredPagesTest, WhatSomebodyCameBackToIsKept) {
  AnchoredPages pages = make(10, 10);
  pages.attach(PageId{1}, PageId{1});
  pages.attach(PageId{2}, PageId{2});
  pages.unpin(PageId{1}, Worth::Passed);
  pages.unpin(PageId{2}, Worth::Passed);
  pages.pin(PageId{1});
  pages.unpin(PageId{1}, Worth::Kept);
  pages.pin(PageId{1});
  pages.unpin(PageId{1}, Worth::Passed);  // once wanted, it stays so
  EXPECT_EQ(pages.evict(), PageId{2});
  EXPECT_EQ(pages.evict(), PageId{1});
}

TEST(AnchoredPagesTest, WhatWasFoundIsKeptHoweverItIsLeft) {
  AnchoredPages pages = make(10, 10);
  pages.attach(PageId{1}, PageId{1});
  pages.attach(PageId{2}, PageId{2});
  pages.unpin(PageId{1}, Worth::Passed);
  pages.unpin(PageId{2}, Worth::Passed);
  pages.pin_found(PageId{1});
  pages.unpin(PageId{1}, Worth::Passed);
  EXPECT_TRUE(pages.is_kept(PageId{1}));
  EXPECT_TRUE(pages.check_invariants());
  EXPECT_EQ(pages.evict(), PageId{2});
  EXPECT_EQ(pages.evict(), PageId{1});
}

TEST(AnchoredPagesTest, AUsedPageGoesAfterThoseUsedBefore) {
  AnchoredPages pages = make(10, 10);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    pages.attach(PageId{i}, PageId{i});
    pages.unpin(PageId{i}, Worth::Kept);
  }
  pages.pin(PageId{1});
  pages.unpin(PageId{1}, Worth::Kept);
  EXPECT_EQ(pages.evict(), PageId{2});
  EXPECT_EQ(pages.evict(), PageId{3});
  EXPECT_EQ(pages.evict(), PageId{1});
}

TEST(AnchoredPagesTest, WhatIsHeldIsNotEvictedButGoesWithTheTreesPage) {
  AnchoredPages pages = make(10, 10);
  for (std::uint32_t i = 1; i <= 3; ++i) {
    pages.attach(PageId{i}, PageId{i});
    pages.unpin(PageId{i}, Worth::Kept);
  }
  pages.hold(PageId{1}, 2);
  pages.hold(PageId{2});
  pages.pin(PageId{1});
  pages.unpin(PageId{1}, Worth::Passed);
  pages.release_hold(PageId{1});
  EXPECT_EQ(pages.hold_count(PageId{1}), 1U);
  EXPECT_EQ(pages.idle_count(), 1U);
  EXPECT_TRUE(pages.check_invariants());
  EXPECT_EQ(pages.evict(), PageId{3});
  EXPECT_TRUE(pages.evict().is_none());
  EXPECT_EQ(pages.drop(PageId{2}), PageId{2});
  EXPECT_EQ(pages.hold_count(PageId{2}), 0U);
  pages.release_hold(PageId{1});
  EXPECT_EQ(pages.evict(), PageId{1});
  EXPECT_TRUE(pages.check_invariants());
}

TEST(AnchoredPagesTest, EveryBrokenRuleIsNamed) {
  const auto broken = [](auto&& breaks) {
    AnchoredPages pages = make(10, 10);
    pages.attach(PageId{1}, PageId{4});
    pages.attach(PageId{2}, PageId{5});
    pages.unpin(PageId{5}, Worth::Kept);
    EXPECT_TRUE(pages.check_invariants());
    breaks(pages);
    return !pages.check_invariants();
  };
  EXPECT_TRUE(broken([](AnchoredPages& pages) { AnchoredPagesPeer::forget_anchored(pages, PageId{1}); }));
  EXPECT_TRUE(broken([](AnchoredPages& pages) { AnchoredPagesPeer::add_pin(pages, PageId{5}); }));
  EXPECT_TRUE(broken([](AnchoredPages& pages) { AnchoredPagesPeer::add_pin(pages, PageId{9}); }));
  EXPECT_TRUE(broken([](AnchoredPages& pages) { AnchoredPagesPeer::add_hold(pages, PageId{5}); }));
  EXPECT_TRUE(broken([](AnchoredPages& pages) { AnchoredPagesPeer::add_hold(pages, PageId{9}); }));
  EXPECT_TRUE(broken([](AnchoredPages& pages) { AnchoredPagesPeer::turn_worth(pages, PageId{5}); }));
  EXPECT_TRUE(broken([](AnchoredPages& pages) { AnchoredPagesPeer::count_one_more(pages); }));
}

// The same by lists.
struct NaiveAnchoredPages {
  struct Page {
    std::uint32_t tree_page = 0;
    std::uint32_t pins = 1;
    std::uint32_t holds = 0;
    bool is_kept = false;
    [[nodiscard]] bool is_idle() const { return pins == 0 && holds == 0; }
  };
  std::map<std::uint32_t, Page> pages;
  std::vector<std::uint32_t> idle;  // least recently used first

  [[nodiscard]] std::uint32_t victim() const {
    for (const bool kept : {false, true}) {
      for (const std::uint32_t page : idle) {
        if (pages.at(page).is_kept == kept) return page;
      }
    }
    return UINT32_MAX;
  }
  void take(std::uint32_t page) {
    std::erase(idle, page);
    pages.erase(page);
  }
};

TEST(AnchoredPagesTest, DoesWhatListsDo) {
  constexpr std::uint32_t kTreePages = 40;
  constexpr std::uint32_t kAnchoredPages = 20;
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    AnchoredPages pages = make(kTreePages, kAnchoredPages);
    NaiveAnchoredPages naive;
    for (int step = 0; step < 400; ++step) {
      const auto page = static_cast<std::uint32_t>(random() % kAnchoredPages);
      const auto tree = static_cast<std::uint32_t>(random() % kTreePages);
      const auto known = naive.pages.find(page);
      const bool is_known = known != naive.pages.end();
      switch (random() % 8) {
        case 0:
        case 1:
          if (is_known || !pages.at(PageId{tree}).is_none()) break;
          pages.attach(PageId{tree}, PageId{page});
          naive.pages[page] = {.tree_page = tree};
          break;
        case 2:
          if (!is_known) break;
          pages.pin(PageId{page});
          ++known->second.pins;
          std::erase(naive.idle, page);
          break;
        case 3: {
          if (!is_known || known->second.pins == 0) break;
          const bool keeps = random() % 2 == 0;
          pages.unpin(PageId{page}, keeps ? Worth::Kept : Worth::Passed);
          known->second.is_kept |= keeps;
          --known->second.pins;
          if (known->second.is_idle()) naive.idle.push_back(page);
          break;
        }
        case 5:
          if (!is_known) break;
          pages.hold(PageId{page});
          ++known->second.holds;
          std::erase(naive.idle, page);
          break;
        case 6:
          if (!is_known || known->second.holds == 0) break;
          pages.release_hold(PageId{page});
          known->second.is_kept = true;
          --known->second.holds;
          if (known->second.is_idle()) naive.idle.push_back(page);
          break;
        case 4: {
          if (random() % 3 != 0) break;
          const std::uint32_t victim = naive.victim();
          ASSERT_EQ(pages.evict().value, victim);
          if (victim != UINT32_MAX) naive.take(victim);
          break;
        }
        default: {
          const PageId hangs = pages.at(PageId{tree});
          if (!hangs.is_none() && pages.is_pinned(hangs)) break;
          ASSERT_EQ(pages.drop(PageId{tree}), hangs);
          if (!hangs.is_none()) naive.take(hangs.value);
          break;
        }
      }
      ASSERT_TRUE(pages.check_invariants()) << "seed " << seed << " step " << step;
      ASSERT_EQ(pages.attached_count(), naive.pages.size());
      ASSERT_EQ(pages.idle_count(), naive.idle.size());
      for (std::uint32_t i = 0; i < kTreePages; ++i) {
        const auto found =
            std::ranges::find_if(naive.pages, [&](const auto& known_page) { return known_page.second.tree_page == i; });
        ASSERT_EQ(pages.at(PageId{i}).value, found == naive.pages.end() ? UINT32_MAX : found->first);
      }
    }
  }
}

}  // namespace
}  // namespace quire
