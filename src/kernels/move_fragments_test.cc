// SPDX-License-Identifier: Apache-2.0
//
// The twins of a swap's kernels against code that goes byte by byte, from the definitions in swap_kernels.h and
// copy_checked.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "quire/swap_kernels.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::Random;

// What one byte at its place in a record adds to the sum.
std::uint64_t byte_term(std::byte byte, std::uint64_t offset) {
  const std::uint64_t word = std::uint64_t{std::to_integer<std::uint8_t>(byte)} << (8 * (offset % 4));
  const std::uint64_t key = mix64(offset / 4 % 256) >> 32U;
  const std::uint64_t block = mix64((std::uint64_t{1} << 32U) + (offset / 1024)) | 1U;
  return block * (key * word);
}

// Pages and records in random bytes, and a copy of all of it for the naive code.
struct Scene {
  std::vector<std::byte> device;
  std::vector<std::byte> records;
  std::vector<Fragment> fragments;
  std::vector<SwapItem> items;
  std::vector<std::uint64_t> sums;  // of each item, or none
  std::uint64_t record_bytes = 0;
  MoveFragmentsParams params;
};

constexpr std::uint64_t kScenePages = 5;
constexpr std::uint64_t kSceneRecords = 6;

Scene make_scene(Random& random, FragmentWay way) {
  static constexpr std::uint64_t kSizes[] = {1, 3, 4, 5, 12, 16, 64, 255, 1023, 1024, 1025, 4095, 4096};
  Scene scene;
  const std::uint32_t fragment_count = 1 + random.below(5);
  const std::uint32_t first_fragment = random.below(fragment_count);  // those before it belong to another band
  std::uint64_t device_bytes = random.below(20);
  for (std::uint32_t f = 0; f < fragment_count; ++f) {
    const std::uint64_t bytes = kSizes[random.below(std::size(kSizes))];
    const std::uint64_t stride = bytes + random.below(9);
    if (f >= first_fragment) {
      // An offset for now: the memory is made below.
      scene.fragments.push_back(
          {.first = nullptr, .page_stride = stride, .record_offset = scene.record_bytes, .bytes = bytes});
    }
    device_bytes += kScenePages * stride;
    scene.record_bytes += bytes;
  }
  scene.device.resize(device_bytes);
  std::uint64_t at = device_bytes;
  for (Fragment& fragment : scene.fragments) {
    at -= kScenePages * fragment.page_stride;
    fragment.first = scene.device.data() + at;
  }
  scene.params = {.way = way,
                  .record_order = random.below(2) == 0 ? RecordOrder::ByItem : RecordOrder::ByHostPage,
                  .record_stride = scene.record_bytes + random.below(7),
                  .record_begin = random.below(2) == 0 ? 0 : scene.fragments[0].record_offset};
  scene.records.resize(kSceneRecords * scene.params.record_stride);
  for (std::byte& byte : scene.device) byte = static_cast<std::byte>(random.below(256));
  for (std::byte& byte : scene.records) byte = static_cast<std::byte>(random.below(256));
  const std::uint32_t item_count = random.below(kScenePages + 1);
  const std::uint32_t turn = random.below(kScenePages);
  const bool has_sums = way == FragmentWay::SumOnly || random.below(3) != 0;
  for (std::uint32_t i = 0; i < item_count; ++i) {
    scene.items.push_back({.device_page = static_cast<std::uint32_t>((i + turn) % kScenePages),
                           .host_page = static_cast<std::uint32_t>(kSceneRecords - 1 - i),
                           .expected = random.next()});
    if (has_sums) scene.sums.push_back(random.next());
  }
  return scene;
}

std::string difference_of(Random& random, FragmentWay way) {
  Scene scene = make_scene(random, way);
  std::vector<std::byte> device = scene.device;
  std::vector<std::byte> records = scene.records;
  const std::vector<SwapItem> items = scene.items;
  std::vector<std::uint64_t> sums = scene.sums;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const std::uint64_t record =
        scene.params.record_order == RecordOrder::ByItem ? i : std::uint64_t{items[i].host_page};
    for (const Fragment& fragment : scene.fragments) {
      for (std::uint64_t b = 0; b < fragment.bytes; ++b) {
        const auto on_device = static_cast<std::size_t>(fragment.first - scene.device.data()) +
                               (items[i].device_page * fragment.page_stride) + b;
        const std::uint64_t in_record =
            (record * scene.params.record_stride) + fragment.record_offset + b - scene.params.record_begin;
        if (way == FragmentWay::ToRecords) records[in_record] = device[on_device];
        if (way == FragmentWay::FromRecords) device[on_device] = records[in_record];
        if (!sums.empty()) sums[i] += byte_term(device[on_device], fragment.record_offset + b);
      }
    }
  }
  MoveFragmentsParams params = scene.params;
  params.fragments = scene.fragments;
  params.items = scene.items;
  params.sums = scene.sums;
  if (way != FragmentWay::SumOnly) params.records = scene.records.data();
  move_fragments_on_host(params);
  if (scene.device != device) return "the pages differ";
  if (scene.records != records) return "the records differ";
  if (scene.sums != sums) return "the sums differ";
  for (std::size_t i = 0; i < items.size(); ++i) {
    const SwapItem& item = scene.items[i];
    if (item.device_page != items[i].device_page || item.host_page != items[i].host_page ||
        item.expected != items[i].expected) {
      return "item " + std::to_string(i) + " was changed";
    }
  }
  return "";
}

TEST(MoveFragments, MovesAndSumsAsGoingByteByByteDoes) {
  for (const FragmentWay way : {FragmentWay::ToRecords, FragmentWay::FromRecords, FragmentWay::SumOnly}) {
    for (std::uint64_t seed = 1; seed <= 60; ++seed) {
      Random random(seed);
      ASSERT_EQ(difference_of(random, way), "") << "way " << static_cast<int>(way) << ", seed " << seed;
    }
  }
}

TEST(MoveFragments, FinishingGivesChecksumsAndTheFirstThatIsWrong) {
  constexpr std::uint64_t kRecordBytes = 777;
  for (std::uint64_t bad = 0; bad <= 5; ++bad) {
    std::vector<SwapItem> items(5);
    std::vector<std::uint64_t> sums;
    std::vector<std::uint64_t> wanted;
    for (std::uint64_t i = 0; i < items.size(); ++i) {
      sums.push_back(mix64(i + 99));
      wanted.push_back(mix64(sums[i] ^ mix64(kRecordBytes)));
      items[i].expected = wanted[i] + (i == bad || i == bad + 2 ? 1 : 0);
    }
    std::vector<std::uint64_t> checksums(6, 42);
    std::uint64_t first_bad = 99;
    const std::vector<std::uint64_t> sums_before = sums;
    FinishChecksumsParams params{
        .items = items, .sums = sums, .record_bytes = kRecordBytes, .checksums = checksums, .first_bad = &first_bad};
    finish_checksums_on_host(params);
    EXPECT_EQ(first_bad, bad);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), checksums.begin()));
    EXPECT_EQ(checksums[5], 42U);
    EXPECT_EQ(sums, std::vector<std::uint64_t>(5, 0)) << "the next call begins with them";
    // Where nobody compares, checksums are all there is.
    sums = sums_before;
    params.first_bad = nullptr;
    finish_checksums_on_host(params);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), checksums.begin()));
  }
}

TEST(MoveFragments, OneCallMovesAndFinishes) {
  std::vector<std::byte> bytes(100, std::byte{7});
  std::vector<std::byte> record(100);
  const std::vector<Fragment> fragments = {{.first = bytes.data(), .bytes = 100}};
  const std::vector<SwapItem> items(1);
  std::vector<std::uint64_t> sums(1);
  std::vector<std::uint64_t> checksums(1);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < 100; ++i) sum += byte_term(bytes[i], i);
  move_fragments_on_host(
      {.fragments = fragments,
       .items = items,
       .sums = sums,
       .records = record.data(),
       .record_stride = 100,
       .finish = FinishChecksumsParams{.items = items, .sums = sums, .record_bytes = 100, .checksums = checksums}});
  EXPECT_EQ(record, bytes);
  EXPECT_EQ(checksums[0], mix64(sum ^ mix64(100)));
  EXPECT_EQ(sums[0], 0U);
}

TEST(MoveFragmentsDeathTest, AFragmentThatIsTooLongStopsTheProgram) {
  std::vector<std::byte> bytes(2 * (kFragmentBytesMax + 1));
  const std::vector<Fragment> fragments = {{.first = bytes.data(), .bytes = kFragmentBytesMax + 1}};
  std::vector<SwapItem> items(1);
  EXPECT_DEATH(move_fragments_on_host({.fragments = fragments,
                                       .items = items,
                                       .records = bytes.data() + kFragmentBytesMax + 1,
                                       .record_stride = 1}),
               "longer than kernels take");
}

}  // namespace
}  // namespace quire
