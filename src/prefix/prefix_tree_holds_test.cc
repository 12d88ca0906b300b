// SPDX-License-Identifier: Apache-2.0
//
// Holds on the host: what the host has of a held path is not evicted, wherever else the path is.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::token_range;
using testing::Tokens;

constexpr std::uint32_t kHoldPageTokens = 4;
constexpr std::uint32_t kHoldPages = 24;

class PrefixTreeHolds : public ::testing::Test {
 protected:
  PrefixTreeHolds() {
    tree_ = PrefixTree::create(
                {.page_tokens = kHoldPageTokens, .page_count_max = kHoldPages, .host_page_count_max = kHoldPages},
                *policy_, nullptr, host_policy_.get())
                .value();
    root_ = tree_->add_root();
    for (std::uint32_t i = kHoldPages; i > 0; --i) {
      free_.push_back(PageId{i});
      host_free_.push_back(PageId{i});
    }
  }
  void TearDown() override { expect_invariants(); }

  [[nodiscard]] PrefixTree::Match match(const Tokens& tokens) const {
    return tree_->match(root_, {.tokens = tokens, .extra_keys = {}});
  }
  static std::optional<std::vector<PageId>> take(std::vector<PageId>& free, std::size_t count) {
    if (free.size() < count) return std::nullopt;
    std::vector<PageId> pages(free.end() - static_cast<std::ptrdiff_t>(count), free.end());
    free.resize(free.size() - count);
    return pages;
  }
  /// What the tree lacks of the tokens, on the device. False: no room, or the host has some of it.
  bool add(const Tokens& tokens) {
    const PrefixTree::Match found = match(tokens);
    std::optional<std::vector<PageId>> pages = take(free_, (tokens.size() / kHoldPageTokens) - found.page_count);
    if (!pages) return false;
    PrefixTree::Pin pin = tree_->pin(found);
    std::vector<PageId> duplicates(pages->size());
    EXPECT_EQ(tree_->insert(pin, {.tokens = tokens, .extra_keys = {}}, *pages, duplicates), 0U);
    return true;
  }
  bool add_on_host(const Tokens& tokens) {
    const PrefixTree::Match found = match(tokens);
    const std::optional<std::vector<PageId>> pages =
        take(host_free_, (tokens.size() / kHoldPageTokens) - found.page_count - found.host_page_count);
    if (!pages) return false;
    PrefixTree::Pin pin = tree_->pin_all(found);
    tree_->insert_host(pin, {.tokens = tokens, .extra_keys = {}}, *pages);
    return true;
  }
  /// Copies all that is wanted on the host, as far as it has room.
  void copy_wanted() {
    for (PageId page = tree_->next_wanted(); !page.is_none(); page = tree_->next_wanted()) {
      const std::optional<std::vector<PageId>> host_page = take(host_free_, 1);
      if (!host_page) {
        tree_->forget_copy(page);
        continue;
      }
      tree_->start_copy(page, (*host_page)[0]);
      tree_->end_copy(page, /*goes_first=*/true);
    }
  }
  std::uint32_t evict(std::uint32_t count) {
    const std::uint32_t evicted = tree_->evict(
        count, [&](std::span<const PageId> pages) { free_.insert(free_.end(), pages.begin(), pages.end()); });
    collect();
    return evicted;
  }
  std::uint32_t evict_host(std::uint32_t count) {
    const std::uint32_t evicted = tree_->evict_host(count);
    collect();
    return evicted;
  }
  void collect() {
    tree_->take_freed_host([&](PageId page) { host_free_.push_back(page); });
  }
  /// Brings the first host run of a path to the device.
  bool promote_first(const Tokens& tokens) {
    PrefixTree::Pin pin = tree_->pin_all(match(tokens));
    const RunId run = tree_->first_host_run(pin);
    if (run.is_none()) return false;
    const std::optional<std::vector<PageId>> pages = take(free_, tree_->pages(run).size());
    if (!pages) return false;
    tree_->promote(run, *pages);
    return true;
  }
  void expect_invariants() const {
    const Status status = tree_->check_invariants();
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }

  std::unique_ptr<Policy> policy_ = make_policy("lru").value();
  std::unique_ptr<Policy> host_policy_ = make_policy("lru").value();
  std::unique_ptr<PrefixTree> tree_;
  RunId root_;
  std::vector<PageId> free_;
  std::vector<PageId> host_free_;
};

TEST_F(PrefixTreeHolds, AHeldHostRunIsNotEvictedAndWhatIsBehindItIs) {
  ASSERT_TRUE(add_on_host(token_range(0, 24)));
  PrefixTree::HostHold hold = tree_->hold_on_host(tree_->cut_pages(match(token_range(0, 24)), 4));
  expect_invariants();
  EXPECT_EQ(tree_->held_pages(hold), 4U);
  EXPECT_EQ(tree_->host_held_pages(), 4U);
  EXPECT_EQ(tree_->host_evictable_pages(), 2U);
  EXPECT_EQ(evict_host(6), 2U);
  EXPECT_EQ(match(token_range(0, 24)).host_page_count, 4U);
  hold.reset();
  expect_invariants();
  EXPECT_EQ(evict_host(6), 4U);
}

TEST_F(PrefixTreeHolds, TwoHoldsOnOnePathAreTwo) {
  ASSERT_TRUE(add_on_host(token_range(0, 24)));
  PrefixTree::HostHold whole = tree_->hold_on_host(match(token_range(0, 24)));
  PrefixTree::HostHold first = tree_->hold_on_host(tree_->cut_pages(match(token_range(0, 24)), 2));
  expect_invariants();
  whole.reset();
  expect_invariants();
  EXPECT_EQ(evict_host(10), 4U);
  EXPECT_EQ(tree_->held_pages(first), 2U);
  first = {};
  EXPECT_EQ(evict_host(10), 2U);
}

TEST_F(PrefixTreeHolds, CopiesOfDevicePagesAreWantedAndHeld) {
  ASSERT_TRUE(add(token_range(0, 16)));
  const PrefixTree::HostHold hold = tree_->hold_on_host(match(token_range(0, 16)));
  copy_wanted();
  expect_invariants();
  EXPECT_EQ(tree_->copy_count(), 4U);
  EXPECT_EQ(evict_host(4), 0U);
  EXPECT_EQ(evict(4), 4U) << "the device gives its pages up";
  EXPECT_EQ(match(token_range(0, 16)).host_page_count, 4U);
  EXPECT_EQ(evict_host(4), 0U);
  EXPECT_EQ(tree_->held_pages(hold), 4U);
}

TEST_F(PrefixTreeHolds, WhatComesToTheDeviceLeavesItsHeldCopy) {
  ASSERT_TRUE(add_on_host(token_range(0, 16)));
  PrefixTree::HostHold hold = tree_->hold_on_host(match(token_range(0, 16)));
  ASSERT_TRUE(promote_first(token_range(0, 16)));
  expect_invariants();
  EXPECT_EQ(evict_host(4), 0U);
  EXPECT_EQ(evict(4), 4U);
  EXPECT_EQ(match(token_range(0, 16)).host_page_count, 4U);
  ASSERT_TRUE(promote_first(token_range(0, 16)));
  hold.reset();
  expect_invariants();
  EXPECT_EQ(evict_host(4), 4U) << "copies that nobody holds go first";
}

TEST_F(PrefixTreeHolds, ARunThatIsHeldDoesNotGrow) {
  ASSERT_TRUE(add(token_range(0, 8)));
  const PrefixTree::HostHold hold = tree_->hold_on_host(match(token_range(0, 8)));
  ASSERT_TRUE(add(token_range(0, 16)));
  expect_invariants();
  EXPECT_EQ(tree_->held_pages(hold), 2U);
}

TEST_F(PrefixTreeHolds, AHoldEndsWithItsLastRun) {
  ASSERT_TRUE(add(token_range(0, 8)));  // no copies are made
  PrefixTree::HostHold hold = tree_->hold_on_host(match(token_range(0, 8)));
  EXPECT_EQ(evict(2), 2U);
  expect_invariants();
  EXPECT_EQ(tree_->held_pages(hold), 0U);
  hold.reset();
  ASSERT_TRUE(add_on_host(token_range(0, 8)));
  PrefixTree::HostHold dropped = tree_->hold_on_host(match(token_range(0, 8)));
  tree_->drop_host_run(match(token_range(0, 8)).host_run, ResidencyCause::Failed);
  collect();
  expect_invariants();
  EXPECT_EQ(tree_->held_pages(dropped), 0U);
  EXPECT_EQ(tree_->host_held_pages(), 0U);
}

TEST_F(PrefixTreeHolds, NothingMatchedIsNothingHeld) {
  const PrefixTree::HostHold hold = tree_->hold_on_host(match(token_range(0, 8)));
  EXPECT_FALSE(hold);
  EXPECT_EQ(tree_->held_pages(hold), 0U);
}

// Whatever happens: pages that the host has of a held path stay, and every rule holds.
TEST_F(PrefixTreeHolds, InAnyOrderWhatTheHostHasOfAHeldPathStays) {
  std::mt19937 random(11);
  const auto below = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  struct Held {
    Tokens tokens;
    PrefixTree::HostHold hold;
  };
  std::vector<Held> holds;
  std::vector<PrefixTree::Pin> pins;
  const auto host_pages_of = [&](const Tokens& tokens) {
    std::uint32_t count = 0;
    const PrefixTree::Pin pin = tree_->pin_all(match(tokens));
    for (RunId run = pin.run(); !tree_->parent(run).is_none(); run = tree_->parent(run)) {
      for (const PageId page : tree_->pages(run)) {
        count += tree_->is_on_host(run) || tree_->copy_of(page).state == PrefixTree::Copy::Ready ? 1 : 0;
      }
    }
    return count;
  };
  for (int step = 0; step < 20'000; ++step) {
    Tokens tokens;
    const std::uint32_t page_count = 1 + below(5);
    for (std::uint32_t i = 0; i < page_count; ++i)
      tokens.insert(tokens.end(), kHoldPageTokens, static_cast<int>(below(2)));
    std::vector<std::uint32_t> before;
    for (const Held& held : holds) before.push_back(tree_->held_pages(held.hold) > 0 ? host_pages_of(held.tokens) : 0);
    bool is_eviction = false;
    switch (below(9)) {
      case 0:
        (void)add(tokens);
        break;
      case 1:
        (void)add_on_host(tokens);
        break;
      case 2:
        copy_wanted();
        break;
      case 3:
        is_eviction = true;
        (void)evict_host(1 + below(4));
        break;
      case 4:
        (void)evict(1 + below(4));  // where there is no copy, what the host has behind it goes too
        before.assign(before.size(), 0);
        break;
      case 5:
        (void)promote_first(tokens);
        break;
      case 6: {
        const PrefixTree::Match found = match(tokens);
        if (holds.size() < 4 && found.page_count + found.host_page_count == page_count) {
          holds.push_back({tokens, tree_->hold_on_host(found)});
          before.push_back(0);
        }
        break;
      }
      case 7:
        if (!holds.empty()) {
          holds.erase(holds.begin() + below(static_cast<std::uint32_t>(holds.size())));
          before.assign(holds.size(), 0);
        }
        break;
      default:
        if (pins.size() < 2) {
          pins.push_back(tree_->pin_all(match(tokens)));
        } else {
          pins.erase(pins.begin());
        }
        break;
    }
    expect_invariants();
    for (std::size_t i = 0; i < holds.size(); ++i) {
      ASSERT_GE(host_pages_of(holds[i].tokens), before[i]) << "step " << step << (is_eviction ? ", evicting" : "");
    }
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace quire
