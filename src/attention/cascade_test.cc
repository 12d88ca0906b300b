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

using PageRow = std::vector<std::uint32_t>;

/// Rows of page ids that may be shared whole, unless `shareable` says less.
struct Rows {
  std::vector<std::vector<PageId>> pages;
  std::vector<CascadeEntry> entries;

  explicit Rows(const std::vector<PageRow>& rows, const std::vector<std::uint32_t>& shareable = {}) {
    for (const PageRow& row : rows) {
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
  cascade.update(rows.entries);
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
  cascade.update(rows.entries);
  EXPECT_EQ(to_text(cascade, 0), "AFCDBE:0-1");
  EXPECT_EQ(to_text(cascade, 1), "AFCD:1-2 BE:1-2");
  EXPECT_EQ(to_text(cascade, 2), "AFC:2-3 DBE:-");
  EXPECT_EQ(to_text(cascade, 3), "AF:3-4 CDBE:-");
}

TEST(Cascade, WhatIsSharedDeeperThanTheLevelsIsNotListed) {
  const Rows rows({{1, 2, 3, 4, 90}, {1, 5, 91}, {1, 2, 3, 92}});
  Cascade cascade = make_cascade(3, 1);
  cascade.update(rows.entries);
  EXPECT_EQ(to_text(cascade, 0), "ABC:0-1");
  EXPECT_EQ(cascade.shared_pages(2), 1U);
}

TEST(Cascade, OnlyShareablePagesAreShared) {
  const Rows rows({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}}, {2, 0, 3});
  Cascade cascade = make_cascade(3, 1);
  cascade.update(rows.entries);
  EXPECT_EQ(to_text(cascade, 0), "AC:0-2 B:-");
}

TEST(Cascade, EntriesThatShareNothingKeepTheirOrderInOneEmptySlice) {
  const Rows rows({{3}, {2}, {1}});
  Cascade cascade = make_cascade(3, 2);
  cascade.update(rows.entries);
  EXPECT_EQ(to_text(cascade, 0), "ABC:-");
  EXPECT_EQ(to_text(cascade, 1), "ABC:-");
  cascade.update({});
  EXPECT_EQ(to_text(cascade, 0), "");
}

TEST(Cascade, AResultHoldsUntilOtherSequencesComeOrOneIsForgotten) {
  Rows rows({{1, 2, 90}, {1, 2, 91}, {5, 6}, {7}}, {2, 2, 1});
  const std::span<CascadeEntry> entries = std::span(rows.entries).first(3);
  Cascade cascade = make_cascade(4, 1);
  cascade.update(entries);
  for (CascadeEntry& entry : entries) ++entry.shareable_pages;  // a page was filled
  cascade.update(entries);
  cascade.forget(3);  // it is not in the batch
  cascade.update(entries);
  EXPECT_EQ(cascade.found_count(), 1U);
  EXPECT_EQ(to_text(cascade, 0), "AB:0-2 C:-");

  cascade.forget(1);
  cascade.update(entries);
  EXPECT_EQ(cascade.found_count(), 2U);
  std::swap(entries[0], entries[2]);
  cascade.update(entries);
  EXPECT_EQ(cascade.found_count(), 3U);
  EXPECT_EQ(to_text(cascade, 0), "A:- BC:0-2");
  cascade.update(entries.first(2));
  EXPECT_EQ(cascade.found_count(), 4U);
  EXPECT_EQ(to_text(cascade, 0), "AB:-");
}

TEST(Cascade, AnEntryThatMayShareLessThanBeforeIsLookedAtAgain) {
  Rows rows({{1, 2, 90}, {1, 2, 91}});
  Cascade cascade = make_cascade(2, 1);
  cascade.update(rows.entries);
  rows.entries[1].shareable_pages = 1;
  cascade.update(rows.entries);
  EXPECT_EQ(cascade.found_count(), 2U);
  EXPECT_EQ(to_text(cascade, 0), "AB:0-1");
}

TEST(Cascade, WhoeverLeavesLetsTheOthersShareMore) {
  const Rows rows({{1, 2, 3, 4}, {1, 9}, {1, 2, 3, 5}});
  Cascade cascade = make_cascade(3, 1);
  cascade.update(rows.entries);
  EXPECT_EQ(to_text(cascade, 0), "ABC:0-1");
  const std::vector<CascadeEntry> rest{rows.entries[0], rows.entries[2]};
  cascade.update(rest);
  EXPECT_EQ(to_text(cascade, 0), "AB:0-3");
  cascade.update(rows.entries);
  EXPECT_EQ(to_text(cascade, 0), "ABC:0-1");
}

TEST(Cascade, PagesOfASequenceThatHasEndedAreNotReadAgain) {
  Rows rows({{1, 2, 3}, {1, 2, 4}, {6, 7}});
  Cascade cascade = make_cascade(3, 1);
  cascade.update(rows.entries);
  // B ends, its pages are handed out again: to C, and to A's successor.
  cascade.forget(1);
  rows.entries[1].pages = nullptr;
  cascade.forget(0);
  rows.entries[0].sequence.generation = 2;
  rows.pages[0] = {PageId{6}, PageId{2}, PageId{4}};
  rows.entries[0].pages = rows.pages[0].data();
  const std::vector<CascadeEntry> rest{rows.entries[2], rows.entries[0]};
  cascade.update(rest);
  EXPECT_EQ(to_text(cascade, 0), "AB:0-1");
}

TEST(CascadeDeathTest, ASequenceTwiceInABatchStopsTheProgram) {
  const Rows rows({{1, 2}, {1, 2}});
  Cascade cascade = make_cascade(2, 1);
  EXPECT_DEATH(cascade.update(std::vector{rows.entries[0], rows.entries[0]}), "in a batch twice");
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

/// What the definition says of a result.
class AllPairs {
 public:
  AllPairs(const Cascade& cascade, const std::vector<CascadeEntry>& entries, std::uint32_t levels)
      : cascade_(cascade), entries_(entries), levels_(levels) {}

  [[nodiscard]] std::string compare() const {
    if (const std::string difference = compare_order(); !difference.empty()) return difference;
    for (std::uint32_t level = 0; level < levels_; ++level) {
      std::uint32_t next = 0;
      bool was_empty = false;
      for (const CascadeSlice& slice : cascade_.slices(level)) {
        if (slice.entry_begin != next || slice.entry_end <= next) return "slices do not follow each other";
        next = slice.entry_end;
        if (!slice.is_empty() && slice.entry_end - slice.entry_begin < 2) return "one entry shares with itself";
        if (std::exchange(was_empty, slice.is_empty()) && slice.is_empty()) return "two empty slices in a row";
        for (std::uint32_t i = slice.entry_begin; i < slice.entry_end; ++i) {
          const std::string difference = compare(level, slice, i);
          if (!difference.empty()) return difference;
        }
      }
      if (next != entries_.size()) return "slices do not cover the entries";
    }
    return "";
  }

 private:
  [[nodiscard]] std::string compare(std::uint32_t level, const CascadeSlice& slice, std::uint32_t place) const {
    const std::uint32_t index = cascade_.order()[place];
    const std::vector<std::uint32_t> ends = naive_ends(entries_, index, levels_);
    const std::uint32_t begin = level == 0 ? 0 : ends[level - 1];
    const bool is_shared = ends[level] > begin;
    if (is_shared != !slice.is_empty()) return "level " + std::to_string(level) + " shares otherwise";
    if (is_shared && (slice.page_begin != begin || slice.page_end != ends[level])) return "a slice is not maximal";
    if (cascade_.shared_pages(index) != ends.back()) return "the entry's own pages begin elsewhere";
    // Sharers are all in the slice, and nobody else is.
    for (std::uint32_t i = 0; is_shared && i < entries_.size(); ++i) {
      const bool shares = common_pages(entries_[cascade_.order()[i]], entries_[index]) > begin || i == place;
      if (shares != (i >= slice.entry_begin && i < slice.entry_end)) return "a sharer stands elsewhere";
    }
    return "";
  }

  /// Level by level, an entry stands where the first of those it shares the level with stands.
  [[nodiscard]] std::string compare_order() const {
    std::vector<std::vector<std::uint32_t>> places(entries_.size());
    for (std::uint32_t index = 0; index < entries_.size(); ++index) {
      const std::vector<std::uint32_t> ends = naive_ends(entries_, index, levels_);
      for (std::uint32_t level = 0; level < levels_; ++level) {
        std::uint32_t first = 0;
        while (first != index && common_pages(entries_[first], entries_[index]) <= (level == 0 ? 0 : ends[level - 1])) {
          ++first;
        }
        places[index].push_back(first);
      }
      places[index].push_back(index);
    }
    std::vector<std::uint32_t> expected(entries_.size());
    std::iota(expected.begin(), expected.end(), 0U);
    std::sort(expected.begin(), expected.end(),
              [&](std::uint32_t a, std::uint32_t b) { return places[a] < places[b]; });
    return std::ranges::equal(expected, cascade_.order()) ? "" : "the order is another one";
  }

  const Cascade& cascade_;
  const std::vector<CascadeEntry>& entries_;
  std::uint32_t levels_;
};

/// Other rows each time.
class CascadeModel {
 public:
  explicit CascadeModel(testing::Random& random)
      : levels_(1 + random.below(4)), cascade_(make_cascade(kEntriesMax, levels_)) {}

  std::string apply(const testing::Op& op) {
    testing::Random random(op.kind ^ (std::uint64_t{op.draws[0]} << 32U));
    for (std::uint32_t i = 0; i < kEntriesMax; ++i) cascade_.forget(i);
    draw_rows(random);
    cascade_.update(rows_.entries);
    return AllPairs(cascade_, rows_.entries, levels_).compare();
  }

 private:
  static constexpr std::uint32_t kEntriesMax = 12;

  /// Rows branch off earlier ones at random columns; a page that is not copied is a new one.
  void draw_rows(testing::Random& random) {
    std::vector<PageRow> rows(random.below(kEntriesMax + 1));
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

  std::uint32_t levels_;
  Cascade cascade_;
  Rows rows_{{}};
};

TEST(Cascade, RandomRowsAreSplitAsAllPairsSay) {
  EXPECT_EQ(
      testing::run_seeds({.test = "bin/cascade_test --gtest_filter=*AllPairsSay", .seed_count = 20, .step_count = 100},
                         [](testing::Random& random) { return CascadeModel(random); }),
      "");
}

/// Sequences that grow, fork, rewind, slide, end and are followed by others in batches that change: what is kept from
/// batch to batch must not show. Pages that nobody has are handed out again, the lowest first.
class ChangingBatchModel {
 public:
  explicit ChangingBatchModel(testing::Random& random)
      : levels_(1 + random.below(4)),
        keeps_turns_(random.below(2) == 0),
        cascade_(make_cascade(kSequences, levels_)),
        sequences_(kSequences) {
    for (TestSequence& sequence : sequences_) sequence.row.resize(kPagesMax);
  }

  std::string apply(const testing::Op& op) {
    testing::Random random(op.kind ^ (std::uint64_t{op.draws[0]} << 32U));
    for (std::uint32_t i = random.below(4); i > 0; --i) change(random);
    draw_batch(random);
    std::vector<CascadeEntry> entries;
    for (const std::uint32_t index : batch_) {
      const TestSequence& sequence = sequences_[index];
      entries.push_back({.sequence = {index, sequence.generation},
                         .pages = sequence.row.data(),
                         .shareable_pages = sequence.has_window ? 0 : sequence.shareable});
    }
    const std::uint64_t found_before = cascade_.found_count();
    cascade_.update(entries);
    if (cascade_.found_count() == found_before) return compare_kept(entries);
    return AllPairs(cascade_, entries, levels_).compare();
  }

 private:
  static constexpr std::uint32_t kSequences = 14;
  static constexpr std::uint32_t kPagesMax = 12;

  struct TestSequence {
    std::uint32_t generation = 0;
    std::vector<PageId> row;  // always as long, so that it stays where it is
    std::uint32_t length = 0;
    std::uint32_t shareable = 0;
    bool has_window = false;
  };

  [[nodiscard]] PageId free_page() const {
    for (std::uint32_t page = 1;; ++page) {
      const bool is_used = std::ranges::any_of(sequences_, [&](const TestSequence& sequence) {
        return std::ranges::count(std::span(sequence.row).first(sequence.length), PageId{page}) > 0;
      });
      if (!is_used) return PageId{page};
    }
  }

  void grow(TestSequence& sequence, std::uint32_t page_count) {
    for (; page_count > 0 && sequence.length < kPagesMax; --page_count) {
      const PageId page = free_page();
      sequence.row[sequence.length++] = page;
    }
  }

  void change(testing::Random& random) {
    const std::uint32_t index = random.below(kSequences);
    TestSequence& sequence = sequences_[index];
    const TestSequence& source = sequences_[random.below(kSequences)];
    switch (random.below(8)) {
      case 0:  // another one in its place
        cascade_.forget(index);
        ++sequence.generation;
        sequence.length = sequence.shareable = 0;
        sequence.has_window = false;
        grow(sequence, 1 + random.below(3));
        break;
      case 1:
      case 2: {  // a fork, or one that begins like another
        if (&source == &sequence) break;
        cascade_.forget(index);
        ++sequence.generation;
        sequence.length = random.below(source.shareable + 1);
        std::copy_n(source.row.begin(), sequence.length, sequence.row.begin());
        sequence.shareable = sequence.length;
        sequence.has_window = source.has_window;
        grow(sequence, random.below(3));
        break;
      }
      case 3: {  // its last pages turn out to be those of another
        if (source.shareable <= sequence.shareable || sequence.length <= sequence.shareable ||
            !std::equal(sequence.row.begin(), sequence.row.begin() + sequence.shareable, source.row.begin())) {
          break;
        }
        cascade_.forget(index);
        sequence.length = sequence.shareable = std::min(sequence.length, source.shareable);
        std::copy_n(source.row.begin(), sequence.length, sequence.row.begin());
        break;
      }
      case 4:
        cascade_.forget(index);
        sequence.length = random.below(sequence.length + 1);
        sequence.shareable = std::min(sequence.shareable, sequence.length);
        break;
      case 5:
        if (random.below(3) == 0) sequence.has_window = true;
        break;
      case 6:  // less may be shared for a while, though the pages stay
        sequence.shareable = random.below(sequence.length + 1);
        break;
      default:
        grow(sequence, 1);
        sequence.shareable = sequence.length - random.below(std::min(sequence.length, 2U) + 1);
        break;
    }
  }

  void draw_batch(testing::Random& random) {
    if (keeps_turns_) std::swap(batch_, other_batch_);
    switch (random.below(6)) {
      case 0:
        break;
      case 1: {  // all others
        batch_.resize(kSequences);
        std::iota(batch_.begin(), batch_.end(), 0U);
        for (std::uint32_t i = kSequences; i > 1; --i) std::swap(batch_[i - 1], batch_[random.below(i)]);
        batch_.resize(random.below(kSequences + 1));
        break;
      }
      case 2:
        if (batch_.empty()) break;
        batch_.erase(batch_.begin() + random.below(static_cast<std::uint32_t>(batch_.size())));
        break;
      default: {
        const std::uint32_t index = random.below(kSequences);
        if (std::ranges::count(batch_, index) > 0) break;
        batch_.insert(batch_.begin() + random.below(static_cast<std::uint32_t>(batch_.size()) + 1), index);
        break;
      }
    }
  }

  /// A result that was kept shares no page that is not shared, though perhaps fewer than could be.
  [[nodiscard]] std::string compare_kept(const std::vector<CascadeEntry>& entries) const {
    for (std::uint32_t level = 0; level < levels_; ++level) {
      for (const CascadeSlice& slice : cascade_.slices(level)) {
        for (std::uint32_t i = slice.entry_begin; !slice.is_empty() && i < slice.entry_end; ++i) {
          const CascadeEntry& first = entries[cascade_.order()[slice.entry_begin]];
          if (common_pages(entries[cascade_.order()[i]], first) < slice.page_end) return "kept what is not shared";
        }
      }
    }
    return "";
  }

  std::uint32_t levels_;
  bool keeps_turns_;  // two batches take turns
  Cascade cascade_;
  std::vector<TestSequence> sequences_;
  std::vector<std::uint32_t> batch_;
  std::vector<std::uint32_t> other_batch_;
};

TEST(Cascade, WhatIsKeptBetweenRandomBatchesDoesNotShow) {
  EXPECT_EQ(
      testing::run_seeds({.test = "bin/cascade_test --gtest_filter=*DoesNotShow", .seed_count = 40, .step_count = 400},
                         [](testing::Random& random) { return ChangingBatchModel(random); }),
      "");
}

}  // namespace
}  // namespace quire
