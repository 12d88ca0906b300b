// SPDX-License-Identifier: Apache-2.0
#include "store/file_index.h"

#include <map>
#include <vector>

#include <gtest/gtest.h>

#include "testing/file_pages.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

FileIndex make_index(std::uint32_t page_count_max) {
  FileIndex index = FileIndex::create(page_count_max, 1).value();
  for (std::uint32_t segment = 0; segment < 4; ++segment) index.add_segment(segment);
  return index;
}

IndexedPage page_of(FileIndex& index, TestPage page, PagePlace place) {
  return {.name = name_of(page),
          .parent = parent_of(page),
          .order = 1,
          .place = place,
          .stored_bytes = 1000,
          .page_index = page.index,
          .key_space = index.key_space(made_name(page.chain))};
}

TEST(FileIndex, WholeNamesAreCompared) {
  FileIndex index = make_index(4);
  const IndexedPage page = page_of(index, {1, 0}, {.segment = 0, .block = 1});
  index.insert(page);
  PageName alike = page.name;
  alike.bytes[31] ^= std::byte{1};
  EXPECT_NE(index.find(page.name), FileIndex::kNone);
  EXPECT_EQ(index.find(alike), FileIndex::kNone);
}

TEST(FileIndex, HotBytesAreThoseReadSinceTheyWereWrittenOrCarriedTwice) {
  FileIndex index = make_index(4);
  const std::uint32_t entry = index.insert(page_of(index, {1, 0}, {.segment = 0, .block = 1}));
  index.touch(entry);
  index.touch(entry);
  EXPECT_EQ(index.segment(0).hot_bytes, 4096U);
  index.move(entry, {.segment = 1, .block = 1}, 2);
  EXPECT_EQ(index.segment(0).hot_bytes, 0U);
  EXPECT_EQ(index.segment(1).hot_bytes, 4096U);
  index.move(entry, {.segment = 2, .block = 1}, 3);
  EXPECT_EQ(index.segment(2).hot_bytes, 0U);
  EXPECT_EQ(index.segment(2).live_bytes, 4096U);
  index.check_invariants();
}

TEST(FileIndex, AKeySpaceIsKnownAsLongAsItHasPagesOrATextAndItsNumberIsTakenAgain) {
  FileIndex index = make_index(4);
  const std::uint32_t entry = index.insert(page_of(index, {1, 0}, {.segment = 0, .block = 1}));
  const std::uint32_t number = index.find_key_space(made_name(1));
  index.add_text(number);
  index.remove(entry);
  EXPECT_EQ(index.find_key_space(made_name(1)), number);
  index.remove_text(number);
  EXPECT_EQ(index.find_key_space(made_name(1)), FileIndex::kNone);
  EXPECT_EQ(index.key_space(made_name(2)), number);
}

// The real index and a map of the standard library, under random operations in a table that is nearly full.
class Model {
 public:
  explicit Model(Random& random) : index_(make_index(8 + random.below(60))) {}

  std::string apply(const Op& op) {
    const TestPage page{op.draws[0] % 3, op.draws[1] % 40};
    const std::uint32_t entry = index_.find(name_of(page));
    if ((entry != FileIndex::kNone) != twin_.contains(page)) return "the page is where it should not be, or is not";
    const PagePlace place{.segment = op.draws[2] % 4, .block = 1 + (op.draws[3] % 1000)};
    if (entry == FileIndex::kNone) {
      if (index_.is_full() != (twin_.size() == index_.page_count_max())) return "full differs";
      if (!index_.is_full()) {
        index_.insert(page_of(index_, page, place));
        twin_[page] = place;
      }
    } else if (op.kind % 3 == 0) {
      index_.remove(entry);
      twin_.erase(page);
    } else if (op.kind % 3 == 1) {
      index_.touch(entry);
    } else {
      index_.move(entry, place, 5);
      twin_[page] = place;
    }
    index_.check_invariants();
    if (index_.page_count() != twin_.size()) return "the number of pages differs";
    for (const auto& [known, at] : twin_) {
      const std::uint32_t found = index_.find(name_of(known));
      if (found == FileIndex::kNone || index_.page(found).place != at) return "a page is lost, or lies elsewhere";
    }
    return "";
  }

 private:
  FileIndex index_;
  std::map<TestPage, PagePlace> twin_;
};

TEST(FileIndex, AgreesWithAMap) {
  EXPECT_EQ(run_seeds({.test = "bin/file_store_test --gtest_filter=FileIndex.AgreesWithAMap",
                       .seed_count = 20,
                       .step_count = 1'000},
                      [](Random& random) { return Model(random); }),
            "");
}

}  // namespace
}  // namespace quire::testing
