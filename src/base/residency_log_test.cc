// SPDX-License-Identifier: Apache-2.0
#include "base/residency_log.h"

#include <array>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace quire {
namespace {

using Numbers = std::vector<std::uint64_t>;

/// Records are told apart by their run.
void append(ResidencyLog& log, std::uint32_t count) {
  const auto first = static_cast<std::uint32_t>(log.next_number());
  for (std::uint32_t i = 0; i < count; ++i) log.append({.run = RunId{first + i}, .page_count = 1});
}

Numbers read(const ResidencyLog& log, std::uint64_t first, std::size_t count_max = 100) {
  std::vector<ResidencyRecord> buffer(count_max);
  Numbers numbers;
  for (const ResidencyRecord& record : log.read(first, buffer)) {
    EXPECT_EQ(record.run.value, record.number);
    numbers.push_back(record.number);
  }
  return numbers;
}

TEST(ResidencyLog, AnEmptyLogHasNothingToRead) {
  const ResidencyLog log(4);
  EXPECT_EQ(log.next_number(), 0U);
  EXPECT_EQ(read(log, 0), Numbers{});
  EXPECT_EQ(read(log, 5), Numbers{});
}

TEST(ResidencyLog, RecordsAreNumberedFromZeroAndReadInOrder) {
  ResidencyLog log(4);
  append(log, 3);
  EXPECT_EQ(log.next_number(), 3U);
  EXPECT_EQ(read(log, 0), (Numbers{0, 1, 2}));
}

TEST(ResidencyLog, ARecordKeepsAllItsFields) {
  ResidencyLog log(1);
  log.append({.number = 99,
              .run = RunId{7},
              .first_page = 3,
              .page_count = 5,
              .group = 2,
              .tier = Tier::Host,
              .cause = ResidencyCause::Evicted});
  std::array<ResidencyRecord, 1> buffer;
  const ResidencyRecord record = log.read(0, buffer).front();
  EXPECT_EQ(record.number, 0U);
  EXPECT_EQ(record.run, RunId{7});
  EXPECT_EQ(record.first_page, 3U);
  EXPECT_EQ(record.page_count, 5U);
  EXPECT_EQ(record.group, 2U);
  EXPECT_EQ(record.tier, Tier::Host);
  EXPECT_EQ(record.cause, ResidencyCause::Evicted);
}

TEST(ResidencyLog, AReaderContinuesWhereItStopped) {
  ResidencyLog log(4);
  append(log, 2);
  EXPECT_EQ(read(log, 0), (Numbers{0, 1}));
  append(log, 2);
  EXPECT_EQ(read(log, 2), (Numbers{2, 3}));
  EXPECT_EQ(read(log, 4), Numbers{});
}

TEST(ResidencyLog, AFullLogOverwritesTheOldest) {
  ResidencyLog log(4);
  append(log, 10);
  EXPECT_EQ(log.next_number(), 10U);
  EXPECT_EQ(read(log, 6), (Numbers{6, 7, 8, 9}));
}

TEST(ResidencyLog, ASlowReaderSeesTheGapInTheNumbers) {
  ResidencyLog log(4);
  append(log, 2);
  EXPECT_EQ(read(log, 0), (Numbers{0, 1}));
  append(log, 7);
  EXPECT_EQ(read(log, 2), (Numbers{5, 6, 7, 8}));
}

TEST(ResidencyLog, AsManyRecordsAreReadAsFitOldestFirst) {
  ResidencyLog log(8);
  append(log, 6);
  EXPECT_EQ(read(log, 1, 3), (Numbers{1, 2, 3}));
  EXPECT_EQ(read(log, 4, 3), (Numbers{4, 5}));
  EXPECT_EQ(read(log, 0, 0), Numbers{});
}

TEST(ResidencyLog, ReadingFromTheFutureGivesNothing) {
  ResidencyLog log(4);
  append(log, 2);
  EXPECT_EQ(read(log, 3), Numbers{});
  EXPECT_EQ(read(log, UINT64_MAX), Numbers{});
}

TEST(ResidencyLog, ReadingTwiceGivesTheSame) {
  ResidencyLog log(4);
  append(log, 6);
  EXPECT_EQ(read(log, 0), read(log, 0));
}

TEST(ResidencyLog, WithoutCapacityNothingIsKept) {
  ResidencyLog log(0);
  append(log, 3);
  EXPECT_EQ(log.next_number(), 0U);
  EXPECT_EQ(read(log, 0), Numbers{});
}

}  // namespace
}  // namespace quire
