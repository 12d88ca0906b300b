// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"
#include "testing/test_tree.h"
#include "tiers/anchored_group.h"
#include "tiers/search.h"

namespace quire {
namespace {

TEST(TierPathTest, BeginsOnTheDeviceAndGoesOnOnTheHost) {
  const std::vector<PageId> pages = {PageId{4}, PageId{2}, PageId{9}};
  for (std::size_t cut = 0; cut <= pages.size(); ++cut) {
    const TierPath path{.pages = std::span(pages).first(cut), .host_pages = std::span(pages).subspan(cut)};
    ASSERT_EQ(path.size(), pages.size());
    for (std::uint32_t column = 0; column < pages.size(); ++column) {
      EXPECT_EQ(path.at(column).tier, column < cut ? Tier::Device : Tier::Host);
      EXPECT_EQ(path.at(column).page, pages[column]);
    }
  }
}

// Searches by their places, each with its own path.
class SearchModel {
 public:
  explicit SearchModel(testing::Random& random) : has_groups_(random.below(2) == 0) {
    capacity_ = 1 + random.below(5);
    EXPECT_TRUE(searches_.open(capacity_, kTokensMax, kExtraKeysMax, kTokensMax / kPageTokens + 1, has_groups_));
  }

  std::string apply(const testing::Op& op) {
    const std::optional<std::uint32_t> place = searches_.find_free();
    if (op.kind % 2 == 0 && place) {
      testing::Prompt prompt;
      for (std::uint32_t i = 0; i < op.draws[0] % (kTokensMax + 1); ++i) prompt.tokens.push_back(op.draws[1] % 97 + i);
      for (std::uint32_t i = 0; i < op.draws[2] % (kExtraKeysMax + 1); ++i) {
        prompt.extra_keys.push_back(testing::extra_key(i, i + 1, static_cast<std::uint8_t>(op.draws[3])));
      }
      searches_[*place].state = Search::State::Asking;
      searches_.set_path(*place, prompt.key());
      std::ranges::fill(searches_.anchored(*place, kPageTokens), *place + 1);
      if (!twins_.emplace(*place, prompt).second) return "a place that is in use";
    } else if (!twins_.empty()) {
      const auto gone = std::next(twins_.begin(), op.draws[0] % twins_.size());
      searches_.remove(gone->first);
      twins_.erase(gone);
    }
    if (searches_.find_free().has_value() != (twins_.size() < capacity_)) return "whether there is room";
    if (searches_.end() != (twins_.empty() ? 0 : twins_.rbegin()->first + 1)) return "where searches end";
    for (const auto& [index, prompt] : twins_) {
      if (!std::ranges::equal(searches_.key(index).tokens, prompt.tokens)) return "the tokens of a path";
      if (!std::ranges::equal(searches_.key(index).extra_keys, prompt.extra_keys)) return "the extra keys of a path";
      const std::span<const std::uint64_t> anchored = searches_.anchored(index, kPageTokens);
      if (anchored.size() != (has_groups_ ? prompt.tokens.size() / kPageTokens : 0)) return "how many pages have bits";
      if (!std::ranges::all_of(anchored, [&](std::uint64_t bits) { return bits == index + 1; })) return "the bits";
    }
    return "";
  }

 private:
  static constexpr std::uint32_t kPageTokens = 3;
  static constexpr std::uint32_t kTokensMax = 20;
  static constexpr std::uint32_t kExtraKeysMax = 2;

  bool has_groups_;
  std::uint32_t capacity_ = 0;
  SearchPaths searches_;
  std::map<std::uint32_t, testing::Prompt> twins_;
};

TEST(SearchPathsTest, EverySearchKeepsItsOwnPath) {
  EXPECT_EQ(testing::run_seeds({.test = "bin/search_paths_test", .seed_count = 30, .step_count = 300},
                               [](testing::Random& random) { return SearchModel(random); }),
            "");
}

}  // namespace
}  // namespace quire
