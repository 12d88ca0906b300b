// SPDX-License-Identifier: Apache-2.0
#include "store/host_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/host_store_peer.h"
#include "testing/seeded_run.h"
#include "testing/test_device.h"
#include "testing/test_pool.h"

namespace quire {
namespace {

using testing::TestDevice;
using testing::TestDeviceShape;
using testing::TestPool;

constexpr std::uint32_t kHostPages = 8;

std::unique_ptr<HostStore> open_store(const TestDevice& device, bool checksums = true) {
  return HostStore::open({.parts = {{.layer_bytes = device.geometry().page().layer_bytes(),
                                     .layer_count = device.geometry().page().layer_count()}},
                          .page_count = kHostPages,
                          .checksums = checksums,
                          .region = {.huge_pages = false}})
      .value();
}

std::array<DevicePages, 1> pages_of(TestDevice& device) {
  return {DevicePages{.geometry = &device.geometry(), .memory = device.memory()}};
}

std::unique_ptr<HostStore> open_store(const TestPool& pool) {
  return HostStore::open({.parts = pool.record_parts(), .page_count = kHostPages, .region = {.huge_pages = false}})
      .value();
}

PageTransfer transfer(std::uint32_t device_page, std::uint32_t host_page, std::uint32_t generation = 1,
                      std::uint64_t name_tag = 77) {
  return {.device_page = PageId{device_page},
          .host_page = PageId{host_page},
          .host_generation = generation,
          .name_tag = name_tag};
}

class HostStoreTest : public ::testing::TestWithParam<ByteLayout> {
 protected:
  TestDevice device_{TestDeviceShape{.layers = 5, .layer_bytes = 203, .byte_layout = GetParam()}};
  std::unique_ptr<HostStore> store_ = open_store(device_);

  TransferFault write(const PageTransfer& page) { return store_->write_page(pages_of(device_), page); }
  TransferFault read(const PageTransfer& page) { return store_->read_page(pages_of(device_), page); }
  TransferFault write_layers(const PageTransfer& page, LayerRange layers, ChecksumPart& sum) {
    return store_->write_layers({.device = pages_of(device_), .page = page, .layers = layers}, sum);
  }
  TransferFault read_layers(const PageTransfer& page, LayerRange layers, ChecksumPart& sum) {
    return store_->read_layers({.device = pages_of(device_), .page = page, .layers = layers}, sum);
  }
};

INSTANTIATE_TEST_SUITE_P(Layouts, HostStoreTest, ::testing::Values(ByteLayout::PageFirst, ByteLayout::LayerFirst),
                         [](const auto& layout) {
                           return std::string(layout.param == ByteLayout::PageFirst ? "PageFirst" : "LayerFirst");
                         });

TEST_P(HostStoreTest, APageComesBackAsItWas) {
  for (std::uint32_t i = 0; i < kHostPages; ++i) {
    device_.fill(PageId{i}, 100 + i);
    EXPECT_EQ(write(transfer(i, kHostPages - i)), TransferFault::None);
  }
  for (std::uint32_t i = 0; i < kHostPages; ++i) {
    EXPECT_EQ(read(transfer(i + 8, kHostPages - i)), TransferFault::None);
    EXPECT_TRUE(device_.holds(PageId{i + 8}, 100 + i));
    EXPECT_TRUE(device_.holds(PageId{i}, 100 + i)) << "the source has changed";
  }
}

TEST_P(HostStoreTest, BandsOfAnySizeGiveTheSamePage) {
  device_.fill(PageId{0}, 5);
  for (std::uint32_t first = 1; first < 5; ++first) {
    ChecksumPart sum;
    EXPECT_EQ(write_layers(transfer(0, 1, first), {.first = 0, .count = first}, sum), TransferFault::None);
    EXPECT_EQ(read(transfer(1, 1, first)), TransferFault::Generation) << "half a page was served";
    EXPECT_EQ(write_layers(transfer(0, 1, first), {.first = first, .count = 5 - first}, sum), TransferFault::None);
    device_.clear(PageId{1});
    EXPECT_EQ(read(transfer(1, 1, first)), TransferFault::None);
    EXPECT_TRUE(device_.holds(PageId{1}, 5));

    device_.clear(PageId{2});
    sum = {};
    EXPECT_EQ(read_layers(transfer(2, 1, first), {.first = 0, .count = first}, sum), TransferFault::None);
    EXPECT_TRUE(device_.holds(PageId{2}, 5, first));
    EXPECT_FALSE(device_.holds(PageId{2}, 5));
    EXPECT_EQ(read_layers(transfer(2, 1, first), {.first = first, .count = 5 - first}, sum), TransferFault::None);
    EXPECT_TRUE(device_.holds(PageId{2}, 5));
  }
}

// Layers that are long enough to go around the caches, and some that are not a multiple of anything.
TEST_P(HostStoreTest, LongLayersComeBackAsTheyWereInAnyBands) {
  for (const std::uint32_t layer_bytes : {2048U, 2080U, 2111U, 5000U, 16'384U, 65'600U}) {
    for (const bool checksums : {true, false}) {
      TestDevice device({.layers = 3, .layer_bytes = layer_bytes, .pages = 2, .byte_layout = GetParam()});
      const std::unique_ptr<HostStore> store = open_store(device, checksums);
      device.fill(PageId{0}, layer_bytes);
      ChecksumPart sum;
      for (const LayerRange layers : {LayerRange{.first = 0, .count = 1}, LayerRange{.first = 1, .count = 2}}) {
        ASSERT_EQ(store->write_layers({.device = pages_of(device), .page = transfer(0, 3), .layers = layers}, sum),
                  TransferFault::None);
      }
      EXPECT_EQ(store->read_page(pages_of(device), transfer(1, 3)), TransferFault::None) << layer_bytes;
      EXPECT_TRUE(device.holds(PageId{1}, layer_bytes)) << layer_bytes;
      EXPECT_EQ(store->write_page(pages_of(device), transfer(1, 4)), TransferFault::None);
      device.clear(PageId{0});
      sum = {};
      for (const LayerRange layers : {LayerRange{.first = 0, .count = 2}, LayerRange{.first = 2, .count = 1}}) {
        ASSERT_EQ(store->read_layers({.device = pages_of(device), .page = transfer(0, 4), .layers = layers}, sum),
                  TransferFault::None);
      }
      EXPECT_TRUE(device.holds(PageId{0}, layer_bytes)) << layer_bytes;
    }
  }
}

// A page comes back in whatever layout the device has then.
TEST_P(HostStoreTest, TheLayoutOfTheDeviceIsNotThatOfTheRecord) {
  TestDevice other(TestDeviceShape{
      .layers = 5,
      .layer_bytes = 203,
      .byte_layout = GetParam() == ByteLayout::PageFirst ? ByteLayout::LayerFirst : ByteLayout::PageFirst});
  device_.fill(PageId{3}, 9);
  ASSERT_EQ(write(transfer(3, 2)), TransferFault::None);
  EXPECT_EQ(store_->read_page(pages_of(other), transfer(4, 2)), TransferFault::None);
  EXPECT_TRUE(other.holds(PageId{4}, 9));
}

TEST_P(HostStoreTest, AnotherGenerationOrTagIsNotServed) {
  EXPECT_EQ(read(transfer(0, 1, 0, 0)), TransferFault::Generation) << "a page that was never written";
  ASSERT_EQ(write(transfer(0, 1, 2, 70)), TransferFault::None);
  EXPECT_EQ(read(transfer(0, 1, 1, 70)), TransferFault::Generation);
  EXPECT_EQ(read(transfer(0, 1, 3, 70)), TransferFault::Generation);
  EXPECT_EQ(read(transfer(0, 1, 2, 71)), TransferFault::NameTag);
  EXPECT_EQ(read(transfer(0, 1, 2, 70)), TransferFault::None);
  EXPECT_EQ(read(transfer(0, 2, 2, 70)), TransferFault::Generation) << "another page";
}

TEST_P(HostStoreTest, GenerationAndTagAreCheckedWithoutChecksumsToo) {
  store_ = open_store(device_, false);
  device_.fill(PageId{0}, 4);
  ASSERT_EQ(write(transfer(0, 1, 2, 70)), TransferFault::None);
  EXPECT_EQ(read(transfer(1, 1, 1, 70)), TransferFault::Generation);
  EXPECT_EQ(read(transfer(1, 1, 2, 71)), TransferFault::NameTag);
  EXPECT_EQ(read(transfer(1, 1, 2, 70)), TransferFault::None);
  EXPECT_TRUE(device_.holds(PageId{1}, 4));
  HostStorePeer::flip_bit(*store_, PageId{1}, 8);
  EXPECT_EQ(read(transfer(1, 1, 2, 70)), TransferFault::None) << "nobody asked for checksums";
}

TEST_P(HostStoreTest, EveryFlippedBitIsFound) {
  device_.fill(PageId{0}, 4);
  ASSERT_EQ(write(transfer(0, 1)), TransferFault::None);
  for (std::uint64_t bit = 0; bit < device_.geometry().page().page_bytes() * 8; bit += 13) {
    HostStorePeer::flip_bit(*store_, PageId{1}, bit);
    ASSERT_EQ(read(transfer(1, 1)), TransferFault::Checksum) << "bit " << bit;
    HostStorePeer::flip_bit(*store_, PageId{1}, bit);
  }
  EXPECT_EQ(read(transfer(1, 1)), TransferFault::None);
  ++HostStorePeer::checksum(*store_, PageId{1});
  EXPECT_EQ(read(transfer(1, 1)), TransferFault::Checksum);
}

TEST_P(HostStoreTest, AWriteThatEndsEarlyLeavesNothing) {
  ASSERT_EQ(write(transfer(0, 1, 1)), TransferFault::None);
  ChecksumPart sum;
  ASSERT_EQ(write_layers(transfer(0, 1, 2), {.first = 0, .count = 4}, sum), TransferFault::None);
  EXPECT_EQ(read(transfer(1, 1, 1)), TransferFault::Generation);
  EXPECT_EQ(read(transfer(1, 1, 2)), TransferFault::Generation);
  EXPECT_EQ(write(transfer(0, 1, 3)), TransferFault::None) << "a later write begins anew";
  EXPECT_EQ(read(transfer(1, 1, 3)), TransferFault::None);
}

TEST_P(HostStoreTest, APieceOfAnotherWriteIsAFault) {
  ChecksumPart sum;
  EXPECT_EQ(write_layers(transfer(0, 1, 1), {.first = 2, .count = 3}, sum), TransferFault::Generation)
      << "nothing was begun";
  ASSERT_EQ(write_layers(transfer(0, 1, 1), {.first = 0, .count = 2}, sum), TransferFault::None);
  ChecksumPart other_sum;
  ASSERT_EQ(write_layers(transfer(0, 1, 2), {.first = 0, .count = 2}, other_sum), TransferFault::None);
  EXPECT_EQ(write_layers(transfer(0, 1, 1), {.first = 2, .count = 3}, sum), TransferFault::Generation);
  EXPECT_EQ(write_layers(transfer(0, 1, 2), {.first = 2, .count = 3}, other_sum), TransferFault::None);
  EXPECT_EQ(read(transfer(1, 1, 2)), TransferFault::None);
}

TEST_P(HostStoreTest, APageThatIsRewrittenBetweenTwoBandsIsNoticed) {
  store_ = open_store(device_, false);  // even without checksums
  ASSERT_EQ(write(transfer(0, 1, 1)), TransferFault::None);
  ChecksumPart sum;
  ASSERT_EQ(read_layers(transfer(1, 1, 1), {.first = 0, .count = 2}, sum), TransferFault::None);
  ASSERT_EQ(write(transfer(2, 1, 2)), TransferFault::None);
  EXPECT_EQ(read_layers(transfer(1, 1, 1), {.first = 2, .count = 3}, sum), TransferFault::Generation);
}

TEST_P(HostStoreTest, TwoAtOnePageAreAFaultAndNoRace) {
  ASSERT_EQ(write(transfer(0, 1)), TransferFault::None);
  HostStorePeer::set_writer(*store_, PageId{1}, true);
  EXPECT_EQ(read(transfer(1, 1)), TransferFault::Generation);
  EXPECT_EQ(write(transfer(1, 1)), TransferFault::Io);
  HostStorePeer::set_readers(*store_, PageId{1}, 2);
  EXPECT_EQ(read(transfer(1, 1)), TransferFault::None) << "readers do not disturb each other";
  EXPECT_EQ(write(transfer(1, 1)), TransferFault::Io);
  HostStorePeer::set_readers(*store_, PageId{1}, 0);
  EXPECT_EQ(write(transfer(1, 1)), TransferFault::None);
}

TEST_P(HostStoreTest, AfterForgettingNothingIsThere) {
  ASSERT_EQ(write(transfer(0, 1)), TransferFault::None);
  ASSERT_TRUE(store_->forget().has_value());
  EXPECT_EQ(read(transfer(1, 1)), TransferFault::Generation);
  device_.fill(PageId{0}, 6);
  EXPECT_EQ(write(transfer(0, 1)), TransferFault::None);
  EXPECT_EQ(read(transfer(1, 1)), TransferFault::None);
  EXPECT_TRUE(device_.holds(PageId{1}, 6));
}

// Pages of several parts: two layouts, one with layers of one byte.
class HostStoreParts : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kLayers = 8;

  TestPool pool_{{{.layers = 3, .layer_bytes = 203, .byte_layout = ByteLayout::LayerFirst},
                  {.layers = 4, .layer_bytes = 1, .byte_layout = ByteLayout::PageFirst},
                  {.layers = 1, .layer_bytes = 2080, .byte_layout = ByteLayout::LayerFirst}}};
  std::unique_ptr<HostStore> store_ = open_store(pool_);

  TransferFault write(const PageTransfer& page) { return store_->write_page(pool_.device(), page); }
  TransferFault read(const PageTransfer& page) { return store_->read_page(pool_.device(), page); }
};

TEST_F(HostStoreParts, APageIsARecordOfAllParts) {
  EXPECT_EQ(store_->layer_count(), kLayers);
  EXPECT_EQ(store_->bytes_of({.first = 0, .count = kLayers}), (3U * 203) + 4 + 2080);
  EXPECT_EQ(store_->bytes_of({.first = 2, .count = 3}), 203U + 2);
  EXPECT_EQ(store_->bytes_of({.first = 3, .count = 4}), 4U);
  EXPECT_EQ(store_->bytes_of({.first = 7, .count = 1}), 2080U);
  pool_.fill(PageId{5}, 50);
  ASSERT_EQ(write(transfer(5, 2)), TransferFault::None);
  const std::span<std::byte> record = HostStorePeer::record(*store_, PageId{2});
  ASSERT_EQ(record.size(), pool_.page_bytes());
  const std::byte* const second = pool_.part(1).memory() + (std::size_t{5} * 4);
  EXPECT_TRUE(std::ranges::equal(record.subspan(std::size_t{3} * 203, 4), std::span(second, 4)));
  EXPECT_EQ(best_checked_copier().sum({.source = record.data(), .bytes = record.size()}).finish(record.size()),
            HostStorePeer::checksum(*store_, PageId{2}))
      << "the checksum is not the record's";
  EXPECT_EQ(read(transfer(6, 2)), TransferFault::None);
  EXPECT_TRUE(pool_.holds(PageId{6}, 50));
}

TEST_F(HostStoreParts, PiecesMayEndAnywhereInAPart) {
  pool_.fill(PageId{0}, 7);
  for (std::uint32_t first = 1; first < kLayers; ++first) {
    for (std::uint32_t second = first; second < kLayers; ++second) {
      const PageTransfer page = transfer(0, 1, (first * kLayers) + second);
      const auto pieces = {LayerRange{.first = 0, .count = first}, LayerRange{.first = first, .count = second - first},
                           LayerRange{.first = second, .count = kLayers - second}};
      ChecksumPart written;
      for (const LayerRange layers : pieces) {
        if (layers.count == 0) continue;
        EXPECT_EQ(read(page), TransferFault::Generation) << "part of a page was served";
        ASSERT_EQ(store_->write_layers({.device = pool_.device(), .page = page, .layers = layers}, written),
                  TransferFault::None);
      }
      PageTransfer back = page;
      back.device_page = PageId{3};
      pool_.clear(PageId{3});
      ChecksumPart loaded;
      for (const LayerRange layers : pieces) {
        if (layers.count == 0) continue;
        ASSERT_EQ(store_->read_layers({.device = pool_.device(), .page = back, .layers = layers}, loaded),
                  TransferFault::None);
        EXPECT_TRUE(pool_.holds(PageId{3}, 7, layers.first + layers.count));
      }
      EXPECT_EQ(loaded, written);
    }
  }
}

TEST_F(HostStoreParts, EveryFlippedBitOfEveryPartIsFound) {
  pool_.fill(PageId{0}, 4);
  ASSERT_EQ(write(transfer(0, 1)), TransferFault::None);
  for (std::uint64_t bit = 0; bit < pool_.page_bytes() * 8; bit += 3) {
    HostStorePeer::flip_bit(*store_, PageId{1}, bit);
    ASSERT_EQ(read(transfer(1, 1)), TransferFault::Checksum) << "bit " << bit;
    HostStorePeer::flip_bit(*store_, PageId{1}, bit);
  }
  EXPECT_EQ(read(transfer(1, 1)), TransferFault::None);
}

TEST_F(HostStoreParts, StoresInOneMemoryKeepToTheirOwn) {
  TestPool other({{.layers = 2, .layer_bytes = 77}});
  HostStoreConfig first{.parts = pool_.record_parts(), .page_count = 3};
  HostStoreConfig second{.parts = other.record_parts(), .page_count = 5};
  const std::uint64_t first_bytes = HostStore::memory_bytes(first).value();
  const std::uint64_t second_bytes = HostStore::memory_bytes(second).value();
  EXPECT_EQ(first_bytes, 3U * 2752) << "2693 bytes to the next multiple of 64";
  EXPECT_EQ(second_bytes, 5U * 192);
  const HostRegion region = HostRegion::map(first_bytes + second_bytes, {.huge_pages = false}).value();
  first.memory = region.data();
  second.memory = region.data() + first_bytes;
  const std::unique_ptr<HostStore> first_store = HostStore::open(first).value();
  const std::unique_ptr<HostStore> second_store = HostStore::open(second).value();
  for (std::uint32_t i = 0; i < 3; ++i) pool_.fill(PageId{i}, 10 + i);
  for (std::uint32_t i = 0; i < 5; ++i) other.fill(PageId{i}, 20 + i);
  for (std::uint32_t i = 0; i < 3; ++i) {
    ASSERT_EQ(first_store->write_page(pool_.device(), transfer(i, i + 1)), TransferFault::None);
  }
  for (std::uint32_t i = 0; i < 5; ++i) {
    ASSERT_EQ(second_store->write_page(other.device(), transfer(i, i + 1)), TransferFault::None);
  }
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(first_store->read_page(pool_.device(), transfer(8 + i, i + 1)), TransferFault::None);
    EXPECT_TRUE(pool_.holds(PageId{8 + i}, 10 + i));
  }
  EXPECT_EQ(HostStorePeer::record(*second_store, PageId{1}).data(), region.data() + first_bytes);
  ASSERT_TRUE(first_store->forget().has_value());
  EXPECT_EQ(first_store->read_page(pool_.device(), transfer(0, 1)), TransferFault::Generation);
  for (std::uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(second_store->read_page(other.device(), transfer(8 + i, i + 1)), TransferFault::None);
    EXPECT_TRUE(other.holds(PageId{8 + i}, 20 + i));
  }
}

TEST(HostStoreInput, SizesThatMakeNoSenseAreErrors) {
  for (const HostStoreConfig& config :
       {HostStoreConfig{.parts = {{.layer_bytes = 0, .layer_count = 1}}, .page_count = 1},
        HostStoreConfig{.parts = {{.layer_bytes = 1, .layer_count = 0}}, .page_count = 1},
        HostStoreConfig{.parts = {{.layer_bytes = 1, .layer_count = 1}}, .page_count = 0},
        HostStoreConfig{.parts = {}, .page_count = 1},
        HostStoreConfig{.parts = {{.layer_bytes = UINT64_MAX, .layer_count = 2}}, .page_count = 1},
        HostStoreConfig{.parts = {{.layer_bytes = UINT64_MAX, .layer_count = 1}}, .page_count = 1},
        HostStoreConfig{.parts = {{.layer_bytes = 1ULL << 40U, .layer_count = 1U << 20U}}, .page_count = 99},
        HostStoreConfig{.parts = {{.layer_bytes = 1, .layer_count = 1}, {.layer_bytes = 1, .layer_count = 0}},
                        .page_count = 1},
        HostStoreConfig{
            .parts = {{.layer_bytes = 1ULL << 63U, .layer_count = 1}, {.layer_bytes = 1ULL << 62U, .layer_count = 2}},
            .page_count = 1},
        HostStoreConfig{.parts = {{.layer_bytes = 1, .layer_count = UINT32_MAX}, {.layer_bytes = 1, .layer_count = 1}},
                        .page_count = 1}}) {
    const auto bytes = HostStore::memory_bytes(config);
    ASSERT_FALSE(bytes.has_value());
    EXPECT_EQ(bytes.error().code, ErrorCode::InvalidArgument) << bytes.error().message;
    const auto store = HostStore::open(config);
    ASSERT_FALSE(store.has_value());
    EXPECT_EQ(store.error().code, ErrorCode::InvalidArgument) << store.error().message;
  }
}

// Random reads, writes, pieces and damage beside what the plainest form would do.
class TwinModel {
 public:
  explicit TwinModel(testing::Random& random)
      : device_(random.below(2) == 0 ? std::vector{shape(random, 3)} : std::vector{shape(random, 2), shape(random, 1)}),
        store_(open_store(device_)) {}

  std::string apply(const testing::Op& op) {
    const std::uint32_t host_page = 1 + (op.draws[0] % kHostPages);
    const std::uint32_t device_page = op.draws[1] % 8;
    switch (op.kind % 8) {
      case 0:
      case 1:
      case 2:
        return write(device_page, host_page, op.draws[2] % 4);
      case 3:
        return damage(host_page, op.draws[2]);
      default:
        return read(device_page, host_page, op.draws[2] % 4, op.draws[3] % 8);
    }
  }

 private:
  struct Page {
    std::uint32_t generation = 0;
    std::uint64_t name_tag = 0;
    std::uint64_t content = 0;
    bool has_data = false;
    bool is_damaged = false;
  };

  static TestDeviceShape shape(testing::Random& random, std::uint32_t layers) {
    return {.layers = layers,
            .layer_bytes = 1 + random.below(90),
            .pages = 8,
            .byte_layout = random.below(2) == 0 ? ByteLayout::PageFirst : ByteLayout::LayerFirst};
  }

  // `layers` of 3: fewer are an early end.
  std::string write(std::uint32_t device_page, std::uint32_t host_page, std::uint32_t layers) {
    const std::uint64_t content = ++content_;
    device_.fill(PageId{device_page}, content);
    Page& page = pages_[host_page];
    if (layers == 0) return "";
    page = {.generation = page.generation + 1,
            .name_tag = content * 3,
            .content = content,
            .has_data = layers == 3,
            .is_damaged = false};
    const PageTransfer transfer{.device_page = PageId{device_page},
                                .host_page = PageId{host_page},
                                .host_generation = page.generation,
                                .name_tag = page.name_tag};
    ChecksumPart sum;
    for (std::uint32_t layer = 0; layer < layers; ++layer) {
      const TransferFault fault = store_->write_layers(
          {.device = device_.device(), .page = transfer, .layers = {.first = layer, .count = 1}}, sum);
      if (fault != TransferFault::None) return "a write failed: " + std::string(to_string(fault));
    }
    return "";
  }

  std::string damage(std::uint32_t host_page, std::uint32_t draw) {
    Page& page = pages_[host_page];
    if (!page.has_data || page.is_damaged) return "";
    HostStorePeer::flip_bit(*store_, PageId{host_page}, draw % (device_.page_bytes() * 8));
    page.is_damaged = true;
    return "";
  }

  std::string read(std::uint32_t device_page, std::uint32_t host_page, std::uint32_t wrong, std::uint32_t tag_change) {
    const Page& page = pages_[host_page];
    const PageTransfer transfer{.device_page = PageId{device_page},
                                .host_page = PageId{host_page},
                                .host_generation = page.generation - (wrong == 1 ? 1U : 0U),
                                .name_tag = page.name_tag + (tag_change == 0 ? 1U : 0U)};
    const TransferFault wanted = !page.has_data || wrong == 1 ? TransferFault::Generation
                                 : tag_change == 0            ? TransferFault::NameTag
                                 : page.is_damaged            ? TransferFault::Checksum
                                                              : TransferFault::None;
    const TransferFault fault = store_->read_page(device_.device(), transfer);
    if (fault != wanted) return "got " + std::string(to_string(fault)) + ", wanted " + std::string(to_string(wanted));
    if (fault == TransferFault::None && !device_.holds(PageId{device_page}, page.content)) return "wrong bytes";
    return "";
  }

  TestPool device_;
  std::unique_ptr<HostStore> store_;
  std::map<std::uint32_t, Page> pages_;
  std::uint64_t content_ = 0;
};

TEST(HostStoreTwin, BehavesAsThePlainestForm) {
  EXPECT_EQ(testing::run_seeds(
                {.test = "bin/host_store_test --gtest_filter=HostStoreTwin.*", .seed_count = 50, .step_count = 400},
                [](testing::Random& random) { return TwinModel(random); }),
            "");
}

}  // namespace
}  // namespace quire
