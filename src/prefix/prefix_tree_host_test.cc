// SPDX-License-Identifier: Apache-2.0
//
// Pages that come to the tree from below: straight to the host, behind what is on the device or on the host already.
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using testing::token_range;
using testing::Tokens;

constexpr std::uint32_t kPageTokens = 4;

class PrefixTreeHost : public ::testing::Test {
 protected:
  PrefixTreeHost() {
    tree_ = PrefixTree::create({.page_tokens = kPageTokens, .page_count_max = 64, .host_page_count_max = 64}, *policy_,
                               nullptr, host_policy_.get())
                .value();
    root_ = tree_->add_root();
  }

  [[nodiscard]] PrefixTree::Match match(const Tokens& tokens) const {
    return tree_->match(root_, {.tokens = tokens, .extra_keys = {}});
  }
  static std::vector<PageId> new_pages(std::size_t count, std::uint32_t& next) {
    std::vector<PageId> pages(count);
    for (PageId& page : pages) page = PageId{next++};
    return pages;
  }
  /// What the tree lacks of the tokens, on the device.
  void add(const Tokens& tokens) {
    PrefixTree::Pin pin = tree_->pin(match(tokens));
    std::vector<PageId> pages = new_pages((tokens.size() / kPageTokens) - tree_->end_page(pin.run()), next_page_);
    std::vector<PageId> duplicates(pages.size());
    ASSERT_EQ(tree_->insert(pin, {.tokens = tokens, .extra_keys = {}}, pages, duplicates), 0U);
  }
  /// The same on the host.
  void add_on_host(const Tokens& tokens) {
    PrefixTree::Pin pin = tree_->pin_all(match(tokens));
    const std::vector<PageId> pages =
        new_pages((tokens.size() / kPageTokens) - tree_->end_page(pin.run()), next_host_page_);
    tree_->insert_host(pin, {.tokens = tokens, .extra_keys = {}}, pages);
    EXPECT_EQ(tree_->end_page(pin.run()), tokens.size() / kPageTokens);
  }
  void expect_invariants() const {
    const Status status = tree_->check_invariants();
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }

  std::unique_ptr<Policy> policy_ = make_policy("lru").value();
  std::unique_ptr<Policy> host_policy_ = make_policy("lru").value();
  std::unique_ptr<PrefixTree> tree_;
  RunId root_;
  std::uint32_t next_page_ = 1;
  std::uint32_t next_host_page_ = 1;
};

TEST_F(PrefixTreeHost, WhatComesFromBelowIsFoundBehindWhatWasThere) {
  add(token_range(0, 8));
  add_on_host(token_range(0, 24));
  expect_invariants();
  const PrefixTree::Match found = match(token_range(0, 30));
  EXPECT_EQ(found.page_count, 2U);
  EXPECT_EQ(found.host_page_count, 4U);
  add_on_host(token_range(0, 32));  // behind a host run
  EXPECT_EQ(match(token_range(0, 32)).host_page_count, 6U);
  add_on_host(token_range(100, 112));  // below the root
  EXPECT_EQ(match(token_range(100, 112)).host_page_count, 3U);
  expect_invariants();
  EXPECT_EQ(tree_->host_idle_pages(), 9U);
}

TEST_F(PrefixTreeHost, ABranchInsideAHostRunSplitsIt) {
  add_on_host(token_range(0, 16));
  Tokens other = token_range(0, 8);
  other.insert(other.end(), {90, 91, 92, 93});
  add_on_host(other);
  expect_invariants();
  EXPECT_EQ(match(token_range(0, 16)).host_page_count, 4U);
  EXPECT_EQ(match(other).host_page_count, 3U);
  EXPECT_EQ(tree_->evict_host(3), 3U);  // the ends of both branches, before what they share
  expect_invariants();
  EXPECT_EQ(match(other).host_page_count + match(token_range(0, 16)).host_page_count, 4U);
}

TEST_F(PrefixTreeHost, ItsFingerprintsAreThoseOfTheSamePathOnTheDevice) {
  add(token_range(0, 16));
  const PageFingerprint on_device = tree_->fingerprint_before(match(token_range(0, 16)));
  (void)tree_->evict(4, [](std::span<const PageId>) {});
  add_on_host(token_range(0, 16));
  EXPECT_EQ(tree_->fingerprint_before(match(token_range(0, 16))), on_device);
}

TEST_F(PrefixTreeHost, ItCanBeBroughtToTheDevice) {
  add_on_host(token_range(0, 16));
  const PrefixTree::Pin pin = tree_->pin_all(match(token_range(0, 16)));
  const std::array<PageId, 4> pages = {PageId{1}, PageId{2}, PageId{3}, PageId{4}};
  tree_->promote(pin.run(), pages);
  expect_invariants();
  EXPECT_EQ(match(token_range(0, 16)).page_count, 4U);
  EXPECT_EQ(tree_->copy_count(), 4U);
}

// Against a map from paths to tiers.
TEST_F(PrefixTreeHost, AgreesWithAMapAfterEveryStep) {
  std::mt19937 random(7);
  const auto below = [&](std::uint32_t end) { return static_cast<std::uint32_t>(random() % end); };
  std::map<Tokens, Tier> known;  // by all tokens up to the page's end
  const auto expect_known = [&](const Tokens& tokens) {
    std::uint32_t device = 0;
    std::uint32_t host = 0;
    for (std::size_t end = kPageTokens; end <= tokens.size(); end += kPageTokens) {
      const auto page = known.find(Tokens(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(end)));
      if (page == known.end()) break;
      ++(page->second == Tier::Device ? device : host);
    }
    const PrefixTree::Match found = match(tokens);
    ASSERT_EQ(found.page_count, device);
    ASSERT_EQ(found.host_page_count, host);
  };
  for (int step = 0; step < 4'000; ++step) {
    Tokens tokens;
    const std::uint32_t page_count = 1 + below(6);
    for (std::uint32_t i = 0; i < page_count; ++i) tokens.insert(tokens.end(), kPageTokens, static_cast<int>(below(2)));
    const bool on_host = below(2) == 0;
    const PrefixTree::Match before = match(tokens);
    if (next_page_ + page_count >= 64 || next_host_page_ + page_count > 64 ||
        (!on_host && before.host_page_count > 0)) {
      (void)tree_->evict_all(root_, ResidencyCause::Reset, [](std::span<const PageId>) {});
      tree_->take_freed_host([](PageId) {});
      known.clear();
      next_page_ = 1;
      next_host_page_ = 1;
      continue;
    }
    if (on_host) {
      add_on_host(tokens);
    } else {
      add(tokens);
    }
    for (std::uint32_t page = before.page_count + before.host_page_count; page < page_count; ++page) {
      known[Tokens(tokens.begin(), tokens.begin() + (std::ptrdiff_t{page + 1} * kPageTokens))] =
          on_host ? Tier::Host : Tier::Device;
    }
    expect_invariants();
    for (const auto& [path, tier] : known) expect_known(path);
    if (HasFatalFailure()) return;
  }
}

// Two paths part behind two pages on the device; one goes on there, one on the host.
TEST_F(PrefixTreeHost, RunsOfHostPagesAndRunsWithAPageOfTheirPathAreFound) {
  ASSERT_TRUE(tree_->find_runs());
  const Tokens stem = token_range(0, 8);
  Tokens left = token_range(0, 20);
  Tokens right = token_range(0, 16);
  right[8] += 100;
  add(left);
  add_on_host(right);
  expect_invariants();
  const RunId host_run = match(right).host_run;
  for (const PageId page : tree_->pages(host_run)) EXPECT_EQ(tree_->run_of_host(page), host_run);
  // A copy is found where its page is, also after splits.
  const PageId device_page = tree_->pages(match(left).run).back();
  tree_->start_copy(device_page, PageId{60});
  tree_->end_copy(device_page, /*goes_first=*/false);
  EXPECT_EQ(tree_->run_of_host(PageId{60}), match(left).run);
  expect_invariants();
  const auto runs_with = [&](std::uint32_t page) {
    std::vector<RunId> runs;
    tree_->for_each_run_with(match(stem).run, page, [&](RunId run) { runs.push_back(run); });
    return runs.size();
  };
  EXPECT_EQ(runs_with(1), 1U);
  EXPECT_EQ(runs_with(2), 2U);
  EXPECT_EQ(runs_with(3), 2U);
  EXPECT_EQ(runs_with(4), 1U);  // the left one only
  EXPECT_EQ(runs_with(5), 0U);
}

}  // namespace
}  // namespace quire
