// SPDX-License-Identifier: Apache-2.0
//
// For tests of lower tiers: a cache with tiers in memory below the host, which move when the test says so.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "disk_fixture.h"
#include "testing/memory_tier.h"
#include "testing/seeded_run.h"

namespace quire {

using testing::MemoryTier;

using Counts = std::vector<std::uint64_t>;

inline constexpr std::uint64_t kPageCost = 100;
inline constexpr std::uint32_t kKeySpacesMax = 32;  // some are dropped, and not gone yet

class LowerTiersTest : public DiskTest {
 protected:
  /// One tier for each row; the nearest is asked first.
  void open_lowers(const std::vector<LowerSettings>& rows, std::uint32_t page_count = 32,
                   std::uint32_t host_page_count = 64, std::uint32_t lower_page_count = 1'000) {
    CacheConfig config = tiers_config(page_count, host_page_count, WritePolicy::WriteThrough);
    config.host.transfer_pages_max = 3;
    open_lowers(rows, std::move(config), lower_page_count);
  }
  void open_lowers(const std::vector<LowerSettings>& rows, CacheConfig config, std::uint32_t lower_page_count = 1'000) {
    close();
    tiers_.clear();
    config.page.page_tokens = kPageTokens;
    config.key_space_count_max = kKeySpacesMax;
    cache_ = open_cache(std::move(config));
    mover_ = std::make_unique<HandMover>(*cache_);
    host_pages_.set_mover(mover_.get());
    engine_ = std::make_unique<ByteEngine>(*cache_);
    add_tiers(rows, lower_page_count);
    space_ = cache_->key_space({.model = "test"}).value();
  }
  /// For a cache that has not been used.
  void add_tiers(const std::vector<LowerSettings>& rows, std::uint32_t lower_page_count) {
    const NameLog::Config log{
        .page_tokens = kPageTokens, .entry_count_max = 1'000, .page_count_max = 300, .extra_key_count_max = 8};
    std::vector<CacheForTests::LowerRow> lowers;
    for (const LowerSettings& settings : rows) {
      const std::size_t place = tiers_.size();
      const std::uint32_t extent_pages = place < extents_by_tier_.size() ? extents_by_tier_[place] : extent_pages_;
      const PageNames::Config names{.page_tokens = kPageTokens,
                                    .device_page_count = stats().page_count + 1,
                                    .host_page_count = stats().host_page_count + 1,
                                    .key_space_count_max = cache_->config().key_space_count_max};
      tiers_.push_back(std::make_unique<MemoryTier>(MemoryTier::Config{.names = names,
                                                                       .log = log,
                                                                       .hosts = {&host_pages_},
                                                                       .page_bytes = kPageCost,
                                                                       .page_count_max = lower_page_count,
                                                                       .extent_pages = extent_pages}));
      lowers.push_back({.tier = *tiers_.back(), .settings = settings});
    }
    ASSERT_TRUE(CacheForTests::add_lowers(*cache_, lowers, log));
  }
  void open_two() { open_lowers({{}, {}}); }
  [[nodiscard]] MemoryTier& near() { return *tiers_.front(); }
  [[nodiscard]] MemoryTier& far() { return *tiers_.back(); }

  /// False: there was nothing to hear.
  bool hear_lowers() {
    bool has_heard = false;
    for (const auto& tier : tiers_) {
      std::array<Completion, 64> completions;
      const std::span<Completion> heard = tier->poll(completions);
      apply({heard.begin(), heard.end()});
      has_heard = has_heard || !heard.empty();
    }
    return has_heard;
  }
  bool run_tiers() {
    for (const auto& tier : tiers_) {
      while (tier->run_one(random_)) {
      }
    }
    return hear_lowers();
  }
  void settle_lowers() {
    for (bool goes_on = true; goes_on;) {
      settle();
      goes_on = run_tiers() || stats().transfers_moving > 0;  // the last apply() may have started something
    }
  }
  /// Gives the tokens that need not be computed. Memory has nothing of them afterwards.
  std::uint32_t serve_from_below(const std::vector<TokenId>& tokens) {
    Live live = admitted(tokens);
    settle_lowers();
    EXPECT_FALSE(view(live).is_loading);
    const std::uint32_t computed_tokens = view(live).computed_tokens;
    finish(live);
    settle_lowers();
    forget_memory();
    return computed_tokens;
  }
  [[nodiscard]] std::vector<std::uint64_t> question_counts() const {
    std::vector<std::uint64_t> counts;
    for (const auto& tier : tiers_) counts.push_back(tier->question_count);
    return counts;
  }

  std::uint32_t extent_pages_ = 1;  // of tiers that are opened from here on, but for those that have their own:
  std::vector<std::uint32_t> extents_by_tier_;
  testing::Random random_{1};
  std::vector<std::unique_ptr<MemoryTier>> tiers_;
};

}  // namespace quire
