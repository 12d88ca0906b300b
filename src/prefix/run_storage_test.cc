// SPDX-License-Identifier: Apache-2.0
#include "prefix/run_storage.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using RunArray = LazyArray<Run>;  // inside a test, Run is a member of its fixture

/// A storage with its runs, and a twin that keeps each run's contents in vectors. Contents are numbered anew
/// with every page, so no two pages are alike.
class StoredRuns {
 public:
  StoredRuns(std::uint32_t page_tokens, std::uint32_t page_count_max)
      : page_tokens_(page_tokens),
        runs_(*RunArray::create(std::size_t{page_count_max} + 1)),
        storage_(*RunStorage::create(page_tokens, page_count_max, runs_)),
        page_count_max_(page_count_max) {}

  StoredRuns(const StoredRuns&) = delete;  // the storage points to the runs
  StoredRuns& operator=(const StoredRuns&) = delete;

  [[nodiscard]] RunStorage& storage() { return storage_; }
  [[nodiscard]] const Run& run(std::uint32_t index) const { return runs_[index]; }
  [[nodiscard]] std::uint32_t page_count() const { return page_count_; }
  [[nodiscard]] std::uint32_t room() const { return page_count_max_ - page_count_; }
  [[nodiscard]] std::uint32_t slab_of(std::uint32_t index) const {
    return static_cast<std::uint32_t>(runs_[index].block * RunStorage::kUnitBytes / storage_.slab_bytes());
  }
  [[nodiscard]] std::vector<std::uint32_t> live_runs() const {
    std::vector<std::uint32_t> live;
    live.reserve(twin_.size());
    for (const auto& [index, pages] : twin_) live.push_back(index);
    return live;
  }

  std::uint32_t allocate(std::uint32_t page_count) {
    const std::uint32_t index = new_index();
    runs_[index].is_live = true;
    storage_.allocate(index, page_count);
    append(index, page_count);
    return index;
  }

  void grow_run(std::uint32_t index, std::uint32_t page_count) {
    storage_.reserve(index, page_count);
    append(index, page_count - runs_[index].page_count);
  }

  void shrink_run(std::uint32_t index, std::uint32_t page_count) {
    page_count_ -= runs_[index].page_count - page_count;
    runs_[index].page_count = page_count;
    twin_.at(index).resize(page_count);
    storage_.shrink(index);
  }

  std::uint32_t split(std::uint32_t suffix, std::uint32_t page_count) {
    const std::uint32_t prefix = new_index();
    runs_[prefix].is_live = true;
    storage_.split(suffix, prefix, page_count);
    std::vector<std::uint64_t>& rest = twin_.at(suffix);
    twin_[prefix].assign(rest.begin(), rest.begin() + page_count);
    rest.erase(rest.begin(), rest.begin() + page_count);
    return prefix;
  }

  void release(std::uint32_t index) {
    storage_.release(index);
    page_count_ -= runs_[index].page_count;
    runs_[index] = {};
    twin_.erase(index);
    free_indices_.push_back(index);
  }

  /// "" or what is not as it was written.
  [[nodiscard]] std::string difference() const {
    for (const auto& [index, pages] : twin_) {
      const Run& run = runs_[index];
      if (run.page_count != pages.size()) return "page count of run " + std::to_string(index);
      for (std::size_t i = 0; i < pages.size(); ++i) {
        if (storage_.pages(run)[i] != page_id(pages[i])) return "page ids of run " + std::to_string(index);
        const std::span tokens(storage_.tokens(run) + (i * page_tokens_), page_tokens_);
        if (tokens.front() != token(pages[i]) || tokens.back() != token(pages[i])) {
          return "tokens of run " + std::to_string(index);
        }
      }
    }
    if (storage_.slab_count() > storage_.slab_count_max()) return "more slabs than there are";
    const Status status = storage_.check_invariants();
    return status.has_value() ? "" : status.error().message;
  }

 private:
  [[nodiscard]] static PageId page_id(std::uint64_t content) { return PageId{static_cast<std::uint32_t>(content)}; }
  [[nodiscard]] static TokenId token(std::uint64_t content) { return static_cast<TokenId>(content * 3 % 1'000'003); }

  std::uint32_t new_index() {
    if (free_indices_.empty()) return fresh_index_++;
    const std::uint32_t index = free_indices_.back();
    free_indices_.pop_back();
    return index;
  }

  void append(std::uint32_t index, std::uint32_t page_count) {
    Run& run = runs_[index];
    for (std::uint32_t i = 0; i < page_count; ++i) {
      const std::uint64_t content = next_content_++;
      std::fill_n(storage_.tokens(run) + (std::size_t{run.page_count} * page_tokens_), page_tokens_, token(content));
      storage_.pages(run)[run.page_count] = page_id(content);
      ++run.page_count;
      twin_[index].push_back(content);
    }
    page_count_ += page_count;
  }

  std::uint32_t page_tokens_;
  RunArray runs_;
  RunStorage storage_;
  std::uint32_t page_count_max_;
  std::uint32_t page_count_ = 0;
  std::map<std::uint32_t, std::vector<std::uint64_t>> twin_;
  std::vector<std::uint32_t> free_indices_;
  std::uint32_t fresh_index_ = 0;
  std::uint64_t next_content_ = 0;
};

// Sizes

TEST(RunStorage, ARunHoldsAbout2048Tokens) {
  RunArray runs;
  EXPECT_EQ(RunStorage::create(1, 10, runs)->run_pages_max(), 2048U);
  EXPECT_EQ(RunStorage::create(16, 10, runs)->run_pages_max(), 128U);
  EXPECT_EQ(RunStorage::create(100, 10, runs)->run_pages_max(), 20U);
  EXPECT_EQ(RunStorage::create(2048, 10, runs)->run_pages_max(), 1U);
  EXPECT_EQ(RunStorage::create(100'000, 10, runs)->run_pages_max(), 1U);
}

TEST(RunStorage, AnIndexOfMoreThan32GiBIsRefused) {
  RunArray runs;
  const auto storage = RunStorage::create(1024, 1U << 30U, runs);
  ASSERT_FALSE(storage.has_value());
  EXPECT_EQ(storage.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(storage.error().message.find("1073741824 pages of 1024 tokens need an index of"), std::string::npos)
      << storage.error().message;
}

// Single operations

TEST(RunStorage, KeepsWhatIsWrittenToEveryLengthOfRun) {
  StoredRuns runs(16, 128 * 129 / 2);
  for (std::uint32_t page_count = 1; page_count <= 128; ++page_count) runs.allocate(page_count);
  EXPECT_EQ(runs.difference(), "");
}

TEST(RunStorage, AGrowingRunKeepsItsPages) {
  StoredRuns runs(16, 200);
  const std::uint32_t run = runs.allocate(1);
  for (std::uint32_t page_count = 2; page_count <= 128; ++page_count) {
    runs.grow_run(run, page_count);
    ASSERT_EQ(runs.difference(), "");
  }
}

TEST(RunStorage, AShrinkingRunKeepsItsFirstPages) {
  StoredRuns runs(16, 200);
  const std::uint32_t run = runs.allocate(128);
  for (std::uint32_t page_count = 127; page_count >= 1; --page_count) {
    runs.shrink_run(run, page_count);
    ASSERT_EQ(runs.difference(), "");
  }
}

TEST(RunStorage, AShrunkRunGivesMemoryBack) {
  StoredRuns runs(16, 200);
  const std::uint32_t run = runs.allocate(128);
  const std::uint8_t size_class = runs.run(run).size_class;
  runs.shrink_run(run, 1);
  EXPECT_LT(runs.run(run).size_class, size_class);
}

TEST(RunStorage, TheShortSuffixOfASplitGivesMemoryBack) {
  StoredRuns runs(16, 200);
  const std::uint32_t suffix = runs.allocate(128);
  const std::uint32_t other = runs.allocate(1);
  runs.split(suffix, 127);
  EXPECT_EQ(runs.run(suffix).size_class, runs.run(other).size_class);
}

TEST(RunStorage, ASplitAtEveryPageKeepsBothParts) {
  for (std::uint32_t at = 1; at < 64; ++at) {
    StoredRuns runs(32, 64);
    const std::uint32_t suffix = runs.allocate(64);
    const std::uint32_t prefix = runs.split(suffix, at);
    EXPECT_EQ(runs.run(prefix).page_count, at);
    EXPECT_EQ(runs.run(suffix).page_count, 64 - at);
    ASSERT_EQ(runs.difference(), "");
  }
}

TEST(RunStorage, AReleasedBlockServesTheNextRun) {
  StoredRuns runs(16, 100);
  const std::uint32_t block = runs.run(runs.allocate(5)).block;
  const std::uint32_t other = runs.allocate(5);
  runs.release(0);
  EXPECT_EQ(runs.run(runs.allocate(5)).block, block);
  EXPECT_EQ(runs.run(other).page_count, 5U);
  EXPECT_EQ(runs.difference(), "");
}

TEST(RunStorage, AnEmptySlabServesAnotherClass) {
  StoredRuns runs(16, 1000);
  const std::uint32_t first = runs.allocate(128);
  const std::uint32_t slab = runs.slab_of(first);
  runs.release(first);
  EXPECT_EQ(runs.storage().slab_count(), 0U);
  EXPECT_EQ(runs.slab_of(runs.allocate(1)), slab);
}

TEST(RunStorage, GrowingKeepsTheContents) {
  StoredRuns runs(16, 50);
  runs.allocate(20);
  runs.allocate(30);
  ASSERT_TRUE(runs.storage().grow(100'000).has_value());
  EXPECT_EQ(runs.difference(), "");
}

TEST(RunStorageDeathTest, ReleasingARunTwiceStopsTheProgram) {
  RunArray runs = *RunArray::create(10);
  RunStorage storage = *RunStorage::create(16, 100, runs);
  storage.allocate(0, 10);
  storage.allocate(1, 10);
  storage.release(0);
  EXPECT_DEATH(storage.release(0), "a block given back twice");
}

// The bound: whatever was allocated and released before, pages within the bound find room.

class RunStorageBound : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  /// About 64 slabs of the smallest runs, or a few dozen where a page is large.
  [[nodiscard]] static std::uint32_t page_count_max() { return GetParam() >= 64 ? 4000 : 64'000 / GetParam(); }

  /// Leaves one run in every slab.
  static void thin_out(StoredRuns& runs) {
    std::set<std::uint32_t> kept;
    std::vector<std::uint32_t> released;
    for (const std::uint32_t run : runs.live_runs()) {
      if (!kept.insert(runs.slab_of(run)).second) released.push_back(run);
    }
    for (const std::uint32_t run : released) runs.release(run);
  }
};

TEST_P(RunStorageBound, HoldsAfterFillingWithRunsOfOnePageAndKeepingOneInEachSlab) {
  StoredRuns runs(GetParam(), page_count_max());
  const std::uint32_t run_pages_max = runs.storage().run_pages_max();
  while (runs.room() > 0) runs.allocate(1);
  thin_out(runs);
  while (runs.room() > 0) runs.allocate(std::min(runs.room(), run_pages_max));
  EXPECT_LE(runs.storage().slab_count(), runs.storage().slab_count_max());
  EXPECT_EQ(runs.difference(), "");
}

// For each class, the fewest pages a run can have without leaving it: what wastes most memory.
struct WorstRun {
  std::uint32_t page_count;
  std::uint32_t pages_left;
};

std::vector<WorstRun> worst_runs(std::uint32_t page_tokens) {
  std::map<std::uint8_t, WorstRun> by_class;
  const std::uint32_t run_pages_max = std::max(1U, RunStorage::kRunTokensMax / page_tokens);
  for (std::uint32_t page_count = 1; page_count <= run_pages_max; ++page_count) {
    StoredRuns runs(page_tokens, run_pages_max);
    const std::uint32_t run = runs.allocate(page_count);
    const std::uint8_t size_class = runs.run(run).size_class;
    WorstRun worst{.page_count = page_count, .pages_left = page_count};
    while (worst.pages_left > 1) {
      runs.shrink_run(run, worst.pages_left - 1);
      if (runs.run(run).size_class != size_class) break;
      --worst.pages_left;
    }
    by_class[size_class] = worst;
    // Every length of the longest runs would take long and show nothing new: only the last of a class counts.
    if (page_count > 64) page_count += page_count / 32;
  }
  std::vector<WorstRun> worst;
  worst.reserve(by_class.size());
  for (const auto& [size_class, run] : by_class) worst.push_back(run);
  return worst;
}

void fill(StoredRuns& runs, const WorstRun& worst) {
  while (runs.room() >= worst.page_count) {
    const std::uint32_t run = runs.allocate(worst.page_count);
    if (worst.pages_left < worst.page_count) runs.shrink_run(run, worst.pages_left);
  }
}

TEST_P(RunStorageBound, HoldsForRunsThatUseAsLittleOfTheirBlocksAsTheyMay) {
  for (const WorstRun& worst : worst_runs(GetParam())) {
    StoredRuns runs(GetParam(), page_count_max());
    fill(runs, worst);
    ASSERT_LE(runs.storage().slab_count(), runs.storage().slab_count_max());
  }
}

TEST_P(RunStorageBound, HoldsWhenEveryClassInTurnIsFilledAndThinnedOut) {
  std::vector<WorstRun> worst = worst_runs(GetParam());
  for (const bool is_largest_first : {false, true}) {
    StoredRuns runs(GetParam(), page_count_max());
    for (const WorstRun& each : worst) {
      fill(runs, each);
      ASSERT_EQ(runs.difference(), "");
      thin_out(runs);
    }
    while (runs.room() > 0) runs.allocate(1);
    ASSERT_EQ(runs.difference(), "") << (is_largest_first ? "largest" : "smallest") << " first";
    std::ranges::reverse(worst);
  }
}

// Too few free blocks to be worth moving, until the bound is reached: then they are what is left.
TEST(RunStorage, HoldsItsBoundWhenAFewBlocksAreFreeInMostSlabs) {
  constexpr std::uint32_t kPageTokens = 300;
  for (const WorstRun& worst : worst_runs(kPageTokens)) {
    StoredRuns runs(kPageTokens, 12'000);
    fill(runs, worst);
    const std::vector<std::uint32_t> live = runs.live_runs();
    for (std::size_t i = 0; i < live.size(); i += 33) runs.release(live[i]);
    const std::uint32_t length = worst.page_count == 1 ? runs.storage().run_pages_max() : 1;
    while (runs.room() >= length) runs.allocate(length);
    ASSERT_EQ(runs.difference(), "");
  }
}

TEST_P(RunStorageBound, EmptyingSlabsMovesBlocksAndKeepsTheirContents) {
  StoredRuns runs(GetParam(), page_count_max());
  while (runs.room() > 0) runs.allocate(1);
  thin_out(runs);
  while (runs.room() > 0) runs.allocate(std::min(runs.room(), runs.storage().run_pages_max()));
  // Where a page is a run, there is one class, and nothing to make room for.
  EXPECT_EQ(runs.storage().moved_block_count() > 0, runs.storage().run_pages_max() > 1);
  EXPECT_EQ(runs.difference(), "");
}

std::string page_tokens_name(const ::testing::TestParamInfo<std::uint32_t>& info) {
  return "P" + std::to_string(info.param);
}

INSTANTIATE_TEST_SUITE_P(WithPages, RunStorageBound, ::testing::Values(1, 3, 4, 16, 64, 100, 300, 1024, 2048),
                         page_tokens_name);

// Random operations against the twin.

class StorageModel {
 public:
  explicit StorageModel(std::uint32_t page_tokens) : runs_(page_tokens, 600) {}

  std::string apply(const testing::Op& op) {
    const std::vector<std::uint32_t> live = runs_.live_runs();
    const std::uint32_t run_pages_max = runs_.storage().run_pages_max();
    const std::uint32_t run = live.empty() ? 0 : live[op.draws[0] % live.size()];
    const std::uint32_t page_count = live.empty() ? 0 : runs_.run(run).page_count;
    // Mostly short runs, as trees have.
    const std::uint32_t longest = op.draws[2] % 4 == 0 ? run_pages_max : std::min(run_pages_max, 8U);
    switch (op.kind % 5) {
      case 0:
        if (runs_.room() > 0) runs_.allocate(1 + (op.draws[1] % std::min(runs_.room(), longest)));
        break;
      case 1:
        if (!live.empty()) {
          const std::uint32_t more = std::min(runs_.room(), run_pages_max - page_count);
          runs_.grow_run(run, page_count + (more == 0 ? 0 : op.draws[1] % (more + 1)));
        }
        break;
      case 2:
        if (page_count > 1) runs_.shrink_run(run, 1 + (op.draws[1] % page_count));
        break;
      case 3:
        if (page_count > 1) runs_.split(run, 1 + (op.draws[1] % (page_count - 1)));
        break;
      default:
        release(live, op.draws[1] % 64 == 0 ? live.size() : 1, op.draws[0]);
        break;
    }
    return runs_.difference();
  }

 private:
  // One run, or nearly all of them.
  void release(const std::vector<std::uint32_t>& live, std::size_t count, std::uint32_t draw) {
    for (std::size_t i = 0; i < count && !live.empty(); ++i) {
      const std::uint32_t run = live[(draw + i) % live.size()];
      if (count == 1 || quire::mix64(draw + i) % 8 != 0) runs_.release(run);
    }
  }

  StoredRuns runs_;
};

class RunStorageModel : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(RunStorageModel, KeepsEveryRunAfterEveryStep) {
  const testing::SeedPlan plan{
      .test = "bin/run_storage_test --gtest_filter='*KeepsEveryRunAfterEveryStep/P" + std::to_string(GetParam()) + "'",
      .first_seed = 1 + (1000ULL * GetParam()),
      .seed_count = testing::kIsSanitized ? 1U : 40U,
      .step_count = 2000};
  EXPECT_EQ(testing::run_seeds(plan, [](testing::Random& /*random*/) { return StorageModel(GetParam()); }), "");
}

INSTANTIATE_TEST_SUITE_P(WithPages, RunStorageModel, ::testing::Values(1, 3, 16, 64, 300, 1024, 4096),
                         page_tokens_name);

}  // namespace
}  // namespace quire
