// SPDX-License-Identifier: Apache-2.0
#include "store_text.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include <gtest/gtest.h>

namespace quire {
namespace {

constexpr TimeNs kSecondNs = 1'000'000'000;

TextPlace place() {
  return {.paint = Painter(stdout), .width = 96};
}

DiskStoreReport many(std::size_t count) {
  DiskStoreReport report{.store_id = "00", .directories = {{.path = "kv"}}};
  for (std::size_t i = 0; i < count; ++i) {
    report.segments.push_back({.file = "segment-" + std::to_string(i), .page_count = 1});
    report.key_spaces.push_back({.name = std::string(64, 'a'), .text = KeySpace{.model = "m"}, .page_count = 2});
  }
  return report;
}

TEST(StoreText, AgesHaveOneUnit) {
  EXPECT_EQ(age_text(0), "0 s");
  EXPECT_EQ(age_text(59 * kSecondNs), "59 s");
  EXPECT_EQ(age_text(60 * kSecondNs), "1 min");
  EXPECT_EQ(age_text(7'200 * kSecondNs), "2 h");
  EXPECT_EQ(age_text(86'400 * kSecondNs), "1 day");
  EXPECT_EQ(age_text(31 * 86'400 * kSecondNs), "31 days");
}

TEST(StoreText, WhatCannotBePrintedIsSpelledOut) {
  EXPECT_EQ(escaped("plain ä"), "plain ä");
  EXPECT_EQ(escaped("a\033[31mb\xff"), "a\\x1b[31mb\\xff");
  EXPECT_EQ(escaped(""), "");
}

TEST(StoreText, LongListsEndWithTheRestAddedUp) {
  const std::string text = store_text(many(50), 0, place());
  EXPECT_NE(text.find("31 others"), std::string::npos);
  EXPECT_NE(text.find("segment-18"), std::string::npos);
  EXPECT_EQ(text.find("segment-19"), std::string::npos);
}

TEST(StoreText, OfManySegmentsTheOddOnesAreShown) {
  DiskStoreReport report = many(50);
  report.segments[40].state = DiskSegmentState::Damaged;
  report.segments[40].why = "because";
  const std::string text = store_text(report, 0, place());
  EXPECT_NE(text.find("segment-40 is damaged: because"), std::string::npos);
}

TEST(StoreText, StoresBelowADirectoryAreNamed) {
  DiskStoreReport report = many(1);
  report.directories[0].group_stores = {"group-window", "shard-0-of-2"};
  const std::string text = store_text(report, 0, place());
  EXPECT_NE(text.find("kv: a group of the model has a store of its own: kv/group-window\n"), std::string::npos) << text;
  EXPECT_NE(text.find("kv: a shard of ranks has a store of its own: kv/shard-0-of-2\n"), std::string::npos) << text;
}

TEST(StoreText, TimesBeyondAllSenseAreTakenAsTheyAre) {
  DiskStoreReport report = many(1);
  report.page_count = 1;
  report.oldest_ns = std::numeric_limits<TimeNs>::min();
  report.newest_ns = std::numeric_limits<TimeNs>::max();
  report.created_at_ns = std::numeric_limits<TimeNs>::min();
  report.ages = {{.age_ns_max = std::numeric_limits<TimeNs>::max(), .page_count = 1}};
  EXPECT_FALSE(store_text(report, 5, place()).empty());
}

TEST(StoreText, JsonIsJsonWhateverKeySpacesAreCalled) {
  DiskStoreReport report = many(2);
  report.key_spaces[0].text->model = "\"\xff\n";
  const nlohmann::json document = nlohmann::json::parse(store_json(report));
  EXPECT_EQ(document["segments"].size(), 2U);
  EXPECT_EQ(document["key_spaces"].size(), 2U);
  EXPECT_EQ(document["directories"][0]["path"], "kv");
}

TEST(StoreText, AFaultIsOneLine) {
  VerifyReport report{.directories = {{.path = "kv"}}};
  report.faults.push_back(
      {.file = "segment-1", .offset = 4'096, .name = std::string(64, 'a'), .why = std::string(200, 'w')});
  const std::string text = verify_text(report, place());
  EXPECT_NE(text.find("4,096  aaaaaaaaaaaa…  " + std::string(200, 'w') + "\n"), std::string::npos) << text;
  EXPECT_NE(text.find("1 bad\n"), std::string::npos);
}

TEST(StoreText, ProgressTellsShareAndSpeed) {
  EXPECT_EQ(verify_progress_text({.done_bytes = 512, .all_bytes = 1'024}, 1),
            "50 % [############............] 512 bytes of 1 KiB, 512 bytes/s, 1 s left");
  EXPECT_EQ(verify_progress_text({}, 0), "100 % [########################] 0 bytes of 0 bytes");
}

}  // namespace
}  // namespace quire
