// SPDX-License-Identifier: Apache-2.0
//
// Very deep and very wide trees. Everything runs in a thread with a small stack, so that anything that
// recursed once per run or per sibling would not return; and what is quadratic would not end.
#include <pthread.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/index_lists.h"
#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "testing/sanitized.h"

namespace quire {
namespace {

constexpr std::uint32_t kRunCount = testing::kIsSanitized ? 100'000 : 1'000'000;
constexpr std::size_t kStackBytes = std::size_t{64} << 10U;

void run_on_a_small_stack(const std::function<void()>& work) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, kStackBytes), 0);
  const auto call = [](void* argument) -> void* {
    (*static_cast<const std::function<void()>*>(argument))();
    return nullptr;
  };
  pthread_t thread{};
  ASSERT_EQ(pthread_create(&thread, &attributes, call, const_cast<std::function<void()>*>(&work)), 0);
  ASSERT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&attributes);
}

/// Names the run that was sealed first; the whole tree must be idle when it is asked. On a path that is the
/// top of it.
class OldestSealed final : public Policy {
 public:
  Status reserve(const PolicyLimits& limits) override { return runs_.reserve(limits.run_count_max); }
  void on_seal(RunId run, const PageChange& /*added*/) override {
    if (!runs_.contains(run.value)) runs_.push_back(run.value);
  }
  void on_split(RunId suffix, RunId prefix, std::uint32_t /*prefix_pages*/) override {
    runs_.insert_after(suffix.value, prefix.value);
  }
  void on_pin(RunId /*run*/) override { --idle_count_; }
  void on_idle(RunId /*run*/) override { ++idle_count_; }
  void on_remove(RunId run, const PageChange& /*lost*/) override {
    runs_.remove(run.value);
    --idle_count_;
  }
  std::optional<RunId> next_victim() override {
    if (runs_.size() == 0) return std::nullopt;
    return RunId{runs_.front()};
  }
  [[nodiscard]] std::uint32_t idle_run_count() const override { return idle_count_; }

 private:
  IndexLists runs_;
  std::uint32_t idle_count_ = 0;
};

/// A tree of kRunCount runs of one page of one token. Nothing here uses the stack of the test.
class LargeTree {
 public:
  explicit LargeTree(std::unique_ptr<Policy> policy) : policy_(std::move(policy)), tokens_(kRunCount) {
    for (std::uint32_t i = 0; i < kRunCount; ++i) tokens_[i] = static_cast<TokenId>(i);
    tree_ = *PrefixTree::create({.page_tokens = 1, .page_count_max = kRunCount, .whole_runs = true}, *policy_, nullptr);
    root_ = tree_->add_root();
  }

  [[nodiscard]] PrefixTree& tree() { return *tree_; }
  [[nodiscard]] RunId root() const { return root_; }
  [[nodiscard]] PrefixTree::Key path(std::uint32_t length) const {
    return {.tokens = std::span(tokens_).first(length), .extra_keys = {}};
  }
  [[nodiscard]] PrefixTree::Key child(std::uint32_t index) const {
    return {.tokens = std::span(tokens_).subspan(index, 1), .extra_keys = {}};
  }

  /// One path, each page in a run of its own.
  void build_chain() {
    PrefixTree::Pin pin = tree_->pin(tree_->match(root_, {}));
    for (std::uint32_t i = 0; i < kRunCount; ++i) insert_page(pin, path(i + 1), i);
  }

  /// Children of the root, each a page.
  void build_siblings() {
    for (std::uint32_t i = 0; i < kRunCount; ++i) {
      PrefixTree::Pin pin = tree_->pin(tree_->match(root_, child(i)));
      insert_page(pin, child(i), i);
    }
  }

  std::uint32_t visited_runs() {
    std::uint32_t count = 0;
    tree_->for_each_run(root_, [&](const RunView& /*run*/) { ++count; });
    return count;
  }

 private:
  void insert_page(PrefixTree::Pin& pin, const PrefixTree::Key& key, std::uint32_t page) {
    PageId pages[] = {PageId{page}};
    PageId duplicates[1];
    static_cast<void>(tree_->insert(pin, key, pages, duplicates));
  }

  std::unique_ptr<Policy> policy_;
  std::vector<TokenId> tokens_;
  std::unique_ptr<PrefixTree> tree_;
  RunId root_;
};

std::unique_ptr<Policy> lru() {
  return *make_policy("lru");
}

const auto kIgnore = [](std::span<const PageId> /*pages*/) {};

TEST(PrefixTreeScale, AMillionRunsInAChainAreMatchedPinnedVisitedAndEvicted) {
  run_on_a_small_stack([] {
    LargeTree large(lru());
    large.build_chain();
    PrefixTree& tree = large.tree();
    ASSERT_EQ(tree.run_count(), kRunCount);
    ASSERT_EQ(tree.evictable_pages(), kRunCount);

    const PrefixTree::Match match = tree.match(large.root(), large.path(kRunCount));
    ASSERT_EQ(match.page_count, kRunCount);
    std::vector<PageId> pages(kRunCount);
    tree.copy_pages(match, 0, pages);
    ASSERT_EQ(pages.back(), PageId{kRunCount - 1});

    PrefixTree::Pin pin = tree.pin(match);
    ASSERT_EQ(tree.pinned_pages(), kRunCount);
    ASSERT_EQ(tree.evict(1, kIgnore), 0U);
    pin.reset();
    ASSERT_EQ(tree.evictable_pages(), kRunCount);

    PrefixTree::SoftPin soft_pin = tree.soft_pin(match);
    ASSERT_EQ(tree.soft_pinned_pages(), kRunCount);
    soft_pin.reset();
    ASSERT_EQ(tree.soft_pinned_pages(), 0U);

    ASSERT_EQ(large.visited_runs(), kRunCount + 1);
    ASSERT_TRUE(tree.check_invariants().has_value());
    ASSERT_EQ(tree.evict(kRunCount, kIgnore), kRunCount);
    ASSERT_TRUE(tree.is_empty(large.root()));
  });
}

TEST(PrefixTreeScale, AMillionSiblingsAreMatchedPinnedVisitedAndEvicted) {
  run_on_a_small_stack([] {
    LargeTree large(lru());
    large.build_siblings();
    PrefixTree& tree = large.tree();
    ASSERT_EQ(tree.run_count(), kRunCount);

    std::vector<PrefixTree::Pin> pins;
    for (std::uint32_t i = 0; i < kRunCount; ++i) {
      const PrefixTree::Match match = tree.match(large.root(), large.child(i));
      ASSERT_EQ(match.page_count, 1U);
      PageId page[1];
      tree.copy_pages(match, 0, page);
      ASSERT_EQ(page[0], PageId{i});  // among so many, a hundred pairs have equal hashes
      if (i % 100 == 0) pins.push_back(tree.pin(match));
    }
    ASSERT_EQ(tree.pinned_pages(), kRunCount / 100);
    pins.clear();

    ASSERT_EQ(large.visited_runs(), kRunCount + 1);
    ASSERT_TRUE(tree.check_invariants().has_value());
    ASSERT_EQ(tree.evict(kRunCount / 2, kIgnore), kRunCount / 2);
    ASSERT_EQ(tree.evict_all(large.root(), ResidencyCause::Dropped, kIgnore), kRunCount / 2);
    ASSERT_TRUE(tree.is_empty(large.root()));
  });
}

TEST(PrefixTreeScale, EvictingAllOfALongChainEndsAtTheRoot) {
  run_on_a_small_stack([] {
    LargeTree large(lru());
    large.build_chain();
    ASSERT_EQ(large.tree().evict_all(large.root(), ResidencyCause::Reset, kIgnore), kRunCount);
    ASSERT_TRUE(large.tree().is_empty(large.root()));
  });
}

// The policy names the top of the chain for every page. Going down from there each time would take 10^11
// steps.
TEST(PrefixTreeScale, APolicyThatNamesTheTopOfALongChainDoesNotCostTheWayDownEachTime) {
  run_on_a_small_stack([] {
    LargeTree large(std::make_unique<OldestSealed>());
    large.build_chain();
    ASSERT_EQ(large.tree().evict(kRunCount / 2, kIgnore), kRunCount / 2);
    for (std::uint32_t i = 0; i < kRunCount / 2; ++i) ASSERT_EQ(large.tree().evict(1, kIgnore), 1U);
    ASSERT_TRUE(large.tree().is_empty(large.root()));
  });
}

TEST(PrefixTreeScale, PinsInsideALongRunSplitItIntoAChain) {
  run_on_a_small_stack([] {
    std::vector<TokenId> tokens(2048);
    for (std::uint32_t i = 0; i < 2048; ++i) tokens[i] = static_cast<TokenId>(i);
    const std::unique_ptr<Policy> policy = lru();
    const std::unique_ptr<PrefixTree> tree =
        *PrefixTree::create({.page_tokens = 1, .page_count_max = 2048}, *policy, nullptr);
    const RunId root = tree->add_root();
    PrefixTree::Pin pin = tree->pin(tree->match(root, {}));
    std::vector<PageId> pages(2048);
    for (std::uint32_t i = 0; i < 2048; ++i) pages[i] = PageId{i};
    std::vector<PageId> duplicates(2048);
    static_cast<void>(tree->insert(pin, {.tokens = tokens, .extra_keys = {}}, pages, duplicates));
    ASSERT_EQ(tree->run_count(), 1U);
    for (std::size_t length = 2047; length > 0; --length) {
      const PrefixTree::Key key{.tokens = std::span(tokens).first(length), .extra_keys = {}};
      tree->pin(tree->match(root, key)).reset();
    }
    ASSERT_EQ(tree->run_count(), 2048U);
    ASSERT_EQ(tree->pinned_pages(), 2048U);
    ASSERT_TRUE(tree->check_invariants().has_value());
  });
}

}  // namespace
}  // namespace quire
