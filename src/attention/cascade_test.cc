// SPDX-License-Identifier: Apache-2.0
#include "attention/cascade.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using Row = std::vector<std::uint32_t>;

/// Rows of page ids that may be shared whole, unless `shareable` says less.
struct Rows {
  std::vector<std::vector<PageId>> pages;
  std::vector<CascadeEntry> entries;

  explicit Rows(const std::vector<Row>& rows, const std::vector<std::uint32_t>& shareable = {}) {
    for (const Row& row : rows) {
      std::vector<PageId>& ids = pages.emplace_back();
      for (const std::uint32_t page : row) ids.push_back(PageId{page});
    }
    for (std::size_t i = 0; i < pages.size(); ++i) {
      entries.push_back(
          {.sequence = {static_cast<std::uint32_t>(i), 1},
           .pages = pages[i].data(),
           .shareable_pages = i < shareable.size() ? shareable[i] : static_cast<std::uint32_t>(pages[i].size())});
    }
  }
};

Cascade make_cascade(std::uint32_t entries, std::uint32_t shared_levels) {
  Result<Cascade> cascade = Cascade::create(entries, shared_levels);
  EXPECT_TRUE(cascade.has_value());
  return *std::move(cascade);
}

/// One level: "ACB:0-2 D:-" says that A, C and B have pages 0 and 1 in common.
std::string to_text(const Cascade& cascade, std::uint32_t level) {
  std::string text;
  for (const CascadeSlice& slice : cascade.slices(level)) {
    if (!text.empty()) text += ' ';
    for (std::uint32_t i = slice.entry_begin; i < slice.entry_end; ++i) {
      text += static_cast<char>('A' + static_cast<int>(cascade.order()[i]));
    }
    text += slice.is_empty() ? ":-" : ':' + std::to_string(slice.page_begin) + '-' + std::to_string(slice.page_end);
  }
  return text;
}

TEST(Cascade, SharersComeTogetherThoughTheyAreNotNeighbours) {
  const Rows rows({{1, 2, 3, 4}, {8, 9}, {1, 2, 7}, {1, 2, 3, 5, 6}});
  Cascade cascade = make_cascade(4, 2);
  cascade.update(rows.entries, 0);
  EXPECT_EQ(to_text(cascade, 0), "ADC:0-2 B:-");
  EXPECT_EQ(to_text(cascade, 1), "AD:2-3 CB:-");
  EXPECT_EQ(cascade.shared_pages(0), 3U);
  EXPECT_EQ(cascade.shared_pages(1), 0U);
  EXPECT_EQ(cascade.shared_pages(2), 2U);
  EXPECT_EQ(cascade.shared_pages(3), 3U);
}

TEST(Cascade, SharingIsFoundAtEveryDepth) {
  const Rows rows({{1, 2, 3, 4, 90}, {1, 5, 91}, {1, 2, 3, 92}, {1, 2, 6, 93}, {1, 5, 94}, {1, 2, 3, 4, 95}});
  Cascade cascade = make_cascade(6, 4);
  cascade.update(rows.entries, 0);
  EXPECT_EQ(to_text(cascade, 0), "AFCDBE:0-1");
  EXPECT_EQ(to_text(cascade, 1), "AFCD:1-2 BE:1-2");
  EXPECT_EQ(to_text(cascade, 2), "AFC:2-3 DBE:-");
  EXPECT_EQ(to_text(cascade, 3), "AF:3-4 CDBE:-");
}

TEST(Cascade, WhatIsSharedDeeperThanTheLevelsIsNotListed) {
  const Rows rows({{1, 2, 3, 4, 90}, {1, 5, 91}, {1, 2, 3, 92}});
  Cascade cascade = make_cascade(3, 1);
  cascade.update(rows.entries, 0);
  EXPECT_EQ(to_text(cascade, 0), "ABC:0-1");
  EXPECT_EQ(cascade.shared_pages(2), 1U);
}

TEST(Cascade, OnlyShareablePagesAreShared) {
  const Rows rows({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}, {2, 0, 3});
  Cascade cascade = make_cascade(3, 1);
  cascade.update(rows.entries, 0);
  EXPECT_EQ(to_text(cascade, 0), "AC:0-2 B:-");
}

TEST(Cascade, EntriesThatShareNothingKeepTheirOrderInOneEmptySlice) {
  const Rows rows({{3}, {2}, {1}});
  Cascade cascade = make_cascade(3, 2);
  cascade.update(rows.entries, 0);
  EXPECT_EQ(to_text(cascade, 0), "ABC:-");
  EXPECT_EQ(to_text(cascade, 1), "ABC:-");
  cascade.update({}, 0);
  EXPECT_EQ(to_text(cascade, 0), "");
}

TEST(Cascade, AResultHoldsForAsLongAsVersionAndSequencesAreTheSame) {
  Rows rows({{1, 2, 90}, {1, 2, 91}, {5, 6}}, {2, 2, 1});
  Cascade cascade = make_cascade(3, 1);
  cascade.update(rows.entries, 7);
  for (CascadeEntry& entry : rows.entries) ++entry.shareable_pages;  // a page was filled
  cascade.update(rows.entries, 7);
  EXPECT_EQ(cascade.found_count(), 1U);
  EXPECT_EQ(to_text(cascade, 0), "AB:0-2 C:-");

  cascade.update(rows.entries, 8);
  EXPECT_EQ(cascade.found_count(), 2U);
  std::swap(rows.entries[0], rows.entries[2]);
  cascade.update(rows.entries, 8);
  EXPECT_EQ(cascade.found_count(), 3U);
  EXPECT_EQ(to_text(cascade, 0), "A:- BC:0-2");
  cascade.update(std::span(rows.entries).first(2), 8);
  EXPECT_EQ(cascade.found_count(), 4U);
  EXPECT_EQ(to_text(cascade, 0), "AB:-");
}

TEST(Cascade, AnEntryThatMayShareLessThanBeforeIsLookedAtAgain) {
  Rows rows({{1, 2, 90}, {1, 2, 91}});
  Cascade cascade = make_cascade(2, 1);
  cascade.update(rows.entries, 7);
  rows.entries[1].shareable_pages = 1;
  cascade.update(rows.entries, 7);
  EXPECT_EQ(cascade.found_count(), 2U);
  EXPECT_EQ(to_text(cascade, 0), "AB:0-1");
}

TEST(Cascade, TooManyLevelsAreRefused) {
  const Result<Cascade> cascade = Cascade::create(UINT32_MAX, UINT32_MAX);
  ASSERT_FALSE(cascade.has_value());
  EXPECT_EQ(cascade.error().code, ErrorCode::InvalidArgument);
}

// Random rows against the definition of each level, by comparing all pairs.

/// Pages that both may share and have in common.
std::uint32_t common_pages(const CascadeEntry& a, const CascadeEntry& b) {
  const std::uint32_t end = std::min(a.shareable_pages, b.shareable_pages);
  std::uint32_t count = 0;
  while (count < end && a.pages[count] == b.pages[count]) ++count;
  return count;
}

/// Where the slices of entry `index` end, level by level: each takes what all entries share that share the next page.
std::vector<std::uint32_t> naive_ends(const std::vector<CascadeEntry>& entries, std::size_t index,
                                      std::uint32_t shared_levels) {
  std::vector<std::uint32_t> ends;
  std::uint32_t begin = 0;
  for (std::uint32_t level = 0; level < shared_levels; ++level) {
    std::uint32_t end = UINT32_MAX;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::uint32_t common = common_pages(entries[i], entries[index]);
      if (i != index && common > begin) end = std::min(end, common);
    }
    if (end == UINT32_MAX) end = begin;
    ends.push_back(end);
    begin = end;
  }
  return ends;
}

class CascadeModel {
 public:
  explicit CascadeModel(testing::Random& random)
      : levels_(1 + random.below(4)), cascade_(make_cascade(kEntriesMax, levels_)) {}

  std::string apply(const testing::Op& op) {
    testing::Random random(op.kind ^ (std::uint64_t{op.draws[0]} << 32U));
    draw_rows(random);
    cascade_.update(rows_.entries, ++version_);
    const auto& entries = rows_.entries;
    if (const std::string difference = compare_order(); !difference.empty()) return difference;
    for (std::uint32_t level = 0; level < levels_; ++level) {
      std::uint32_t next = 0;
      for (const CascadeSlice& slice : cascade_.slices(level)) {
        if (slice.entry_begin != next || slice.entry_end <= next) return "slices do not follow each other";
        next = slice.entry_end;
        if (!slice.is_empty() && slice.entry_end - slice.entry_begin < 2) return "one entry shares with itself";
        for (std::uint32_t i = slice.entry_begin; i < slice.entry_end; ++i) {
          const std::string difference = compare(level, slice, i);
          if (!difference.empty()) return difference;
        }
      }
      if (next != entries.size()) return "slices do not cover the entries";
    }
    return "";
  }

 private:
  static constexpr std::uint32_t kEntriesMax = 12;

  /// Rows branch off earlier ones at random columns; a page that is not copied is a new one.
  void draw_rows(testing::Random& random) {
    std::vector<Row> rows(random.below(kEntriesMax + 1));
    std::vector<std::uint32_t> shareable;
    std::uint32_t next_page = 1;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::uint32_t length = 1 + random.below(10);
      if (i > 0 && random.below(4) != 0) {
        rows[i] = rows[random.below(static_cast<std::uint32_t>(i))];
        rows[i].resize(std::min<std::size_t>(rows[i].size(), random.below(length + 1)));
      }
      while (rows[i].size() < length) rows[i].push_back(next_page++);
      shareable.push_back(random.below(3) == 0 ? random.below(length + 1) : length);
    }
    rows_ = Rows(rows, shareable);
  }

  std::string compare(std::uint32_t level, const CascadeSlice& slice, std::uint32_t place) const {
    const std::uint32_t index = cascade_.order()[place];
    const std::vector<std::uint32_t> ends = naive_ends(rows_.entries, index, levels_);
    const std::uint32_t begin = level == 0 ? 0 : ends[level - 1];
    const bool is_shared = ends[level] > begin;
    if (is_shared != !slice.is_empty()) return "level " + std::to_string(level) + " shares otherwise";
    if (is_shared && (slice.page_begin != begin || slice.page_end != ends[level])) return "a slice is not maximal";
    if (cascade_.shared_pages(index) != ends.back()) return "the entry's own pages begin elsewhere";
    // Sharers are all in the slice, and nobody else is.
    for (std::uint32_t i = 0; is_shared && i < rows_.entries.size(); ++i) {
      const bool shares = common_pages(rows_.entries[cascade_.order()[i]], rows_.entries[index]) > begin || i == place;
      if (shares != (i >= slice.entry_begin && i < slice.entry_end)) return "a sharer stands elsewhere";
    }
    return "";
  }

  /// Level by level, an entry stands where the first of those it shares the level with stands.
  std::string compare_order() const {
    const std::vector<CascadeEntry>& entries = rows_.entries;
    std::vector<std::vector<std::uint32_t>> places(entries.size());
    for (std::uint32_t index = 0; index < entries.size(); ++index) {
      const std::vector<std::uint32_t> ends = naive_ends(entries, index, levels_);
      for (std::uint32_t level = 0; level < levels_; ++level) {
        std::uint32_t first = 0;
        while (first != index && common_pages(entries[first], entries[index]) <= (level == 0 ? 0 : ends[level - 1])) {
          ++first;
        }
        places[index].push_back(first);
      }
      places[index].push_back(index);
    }
    std::vector<std::uint32_t> expected(entries.size());
    std::iota(expected.begin(), expected.end(), 0U);
    std::sort(expected.begin(), expected.end(),
              [&](std::uint32_t a, std::uint32_t b) { return places[a] < places[b]; });
    return std::ranges::equal(expected, cascade_.order()) ? "" : "the order is another one";
  }

  std::uint32_t levels_;
  Cascade cascade_;
  Rows rows_{{}};
  std::uint64_t version_ = 0;
};

TEST(Cascade, RandomRowsAreSplitAsAllPairsSay) {
  EXPECT_EQ(
      testing::run_seeds({.test = "bin/cascade_test --gtest_filter=*AllPairsSay", .seed_count = 20, .step_count = 100},
                         [](testing::Random& random) { return CascadeModel(random); }),
      "");
}

}  // namespace
}  // namespace quire
