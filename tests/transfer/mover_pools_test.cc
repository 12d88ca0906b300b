// SPDX-License-Identifier: Apache-2.0
//
// A mover with several pools: pages of different sizes and layouts, and pages in several parts. Page ids are used in
// all pools at once, so that whatever took one pool for another would be seen.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mover_fixture.h"
#include "store/host_pages.h"
#include "testing/test_pool.h"

namespace quire {
namespace {

using testing::TestDeviceShape;
using testing::TestPool;

class MoverPools : public MoverTest {
 protected:
  // Pool 0 as of a full group and a compressed one; a window; a snapshot; and three odd parts.
  static constexpr std::uint16_t kPools = 4;
  static constexpr std::array<std::uint32_t, kPools> kHostPagesOf{16, 5, 3, 4};

  void open_pools(MoverHooks hooks = {}) {
    close();
    if (has_accelerator()) renew_accelerator();
    pools_.clear();
    pools_.push_back(std::make_unique<TestPool>(std::vector<TestDeviceShape>{
        {.layers = 4, .layer_bytes = 96, .pages = kDevicePages},
        {.layers = 3, .layer_bytes = 33, .pages = kDevicePages, .byte_layout = ByteLayout::LayerFirst}}));
    pools_.push_back(std::make_unique<TestPool>(std::vector<TestDeviceShape>{
        {.layers = 2, .layer_bytes = 203, .pages = 20, .byte_layout = ByteLayout::LayerFirst}}));
    pools_.push_back(
        std::make_unique<TestPool>(std::vector<TestDeviceShape>{{.layers = 1, .layer_bytes = 5000, .pages = 6}}));
    pools_.push_back(std::make_unique<TestPool>(std::vector<TestDeviceShape>{
        {.layers = 1, .layer_bytes = 1, .pages = 8, .byte_layout = ByteLayout::LayerFirst},
        {.layers = 5, .layer_bytes = 2111, .pages = 8, .byte_layout = ByteLayout::LayerFirst},
        {.layers = 2, .layer_bytes = 7, .pages = 8}}));
    config_.pools.clear();
    for (std::uint16_t pool = 0; pool < kPools; ++pool) {
      adopt(*pools_[pool]);
      config_.pools.push_back(pools_[pool]->for_mover(kHostPagesOf[pool]));
    }
    hooks.before_piece = [this](const PieceStart& piece) { return gate_.pass(piece); };
    mover_ = MoverPeer::open(config_, std::move(hooks)).value();
  }

  Result<bool> try_submit_to(std::uint16_t pool, TransferKind kind, const std::vector<PageTransfer>& pages,
                             std::uint16_t band_count = 1) {
    return mover_->try_submit(
        {.id = id(1 + pool), .kind = kind, .band_count = band_count, .pool_index = pool, .pages = pages});
  }
  Completion move(std::uint16_t pool, TransferKind kind, const std::vector<PageTransfer>& pages,
                  std::uint16_t band_count = 1) {
    const auto submitted = try_submit_to(pool, kind, pages, band_count);
    EXPECT_TRUE(submitted.has_value()) << submitted.error().message;
    if (!submitted.value_or(false)) return {.outcome = TransferOutcome::Empty};
    return next_completion();
  }
  /// Fills device pages 0… of a pool and stores them to host pages 1….
  void store_to(std::uint16_t pool, std::uint32_t count, std::uint32_t generation = 1) {
    for (std::uint32_t i = 0; i < count; ++i) pools_[pool]->fill(PageId{i}, content(pool, i));
    const Completion completion = move(pool, TransferKind::Store, pages(0, count, generation));
    ASSERT_EQ(completion.outcome, TransferOutcome::Ok);
    ASSERT_EQ(completion.good_pages, count);
  }
  static std::uint64_t content(std::uint16_t pool, std::uint32_t page) { return (1000U * (pool + 1U)) + page; }

  std::vector<std::unique_ptr<TestPool>> pools_;
};

using MoverPoolsInPlaces = InPlaces<MoverPools>;
INSTANTIATE_TEST_SUITE_P(Mover, MoverPoolsInPlaces, ::testing::ValuesIn(kMoverPlaces), name_of_place);

TEST_P(MoverPoolsInPlaces, PagesOfEveryPoolGoToTheHostAndComeBack) {
  for (const bool checksums : {true, false}) {
    config_.checksums = checksums;
    open_pools();
    for (std::uint16_t pool = 0; pool < kPools; ++pool) {
      for (std::uint32_t page = 0; page < pools_[pool]->page_count(); ++page) {
        pools_[pool]->fill(PageId{page}, 500 + page);
      }
    }
    for (std::uint16_t pool = 0; pool < kPools; ++pool) store_to(pool, 3);
    for (std::uint16_t pool = 0; pool < kPools; ++pool) {
      const Completion completion = move(pool, TransferKind::Load, pages(3, 3));
      EXPECT_EQ(completion.outcome, TransferOutcome::Ok) << "pool " << pool;
      EXPECT_EQ(completion.good_pages, 3U);
      EXPECT_EQ(completion.moved_bytes, 3 * pools_[pool]->page_bytes());
    }
    for (std::uint16_t pool = 0; pool < kPools; ++pool) {
      for (std::uint32_t page = 0; page < pools_[pool]->page_count(); ++page) {
        EXPECT_TRUE(pools_[pool]->holds(PageId{page}, page < 6 ? content(pool, page % 3) : 500 + page))
            << "pool " << pool << ", page " << page;
      }
    }
  }
}

TEST_P(MoverPoolsInPlaces, EveryPageOfEveryPoolHasAPlaceOfItsOwn) {
  open_pools();
  for (std::uint16_t pool = 0; pool < kPools; ++pool) {
    for (std::uint32_t i = 0; i < kHostPagesOf[pool]; ++i) {
      pools_[pool]->fill(PageId{0}, content(pool, i));
      ASSERT_EQ(move(pool, TransferKind::Store, {page(0, i + 1)}).outcome, TransferOutcome::Ok);
    }
  }
  for (std::uint16_t pool = 0; pool < kPools; ++pool) {
    const std::uint32_t last_page = pools_[pool]->page_count() - 1;
    for (std::uint32_t i = 0; i < kHostPagesOf[pool]; ++i) {
      ASSERT_EQ(move(pool, TransferKind::Load, {page(last_page, i + 1)}).outcome, TransferOutcome::Ok);
      EXPECT_TRUE(pools_[pool]->holds(PageId{last_page}, content(pool, i))) << "pool " << pool << ", page " << i;
    }
  }
}

// Bands.

TEST_F(MoverPools, BandsGoOverTheLayersOfAllParts) {
  open_pools();
  store_to(0, 3);
  gate_.close([](const PieceStart& piece) { return piece.kind == TransferKind::Load && piece.band == 1; });
  ASSERT_EQ(try_submit_to(0, TransferKind::Load, pages(10, 3), 3), true);  // of layers 0 and 1, 2 and 3, and part 1
  EXPECT_EQ(wait_for(1, 0), TransferOutcome::Ok);
  gate_.wait_for_held();
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(pools_[0]->holds(PageId{10 + i}, content(0, i), 2));
    EXPECT_FALSE(pools_[0]->holds(PageId{10 + i}, content(0, i), 3));
  }
  EXPECT_EQ(mover_->wait(id(1), 1, 0), TransferOutcome::TimedOut);
  gate_.close([](const PieceStart& piece) { return piece.kind == TransferKind::Load && piece.band == 2; });
  EXPECT_EQ(wait_for(1, 1), TransferOutcome::Ok);
  EXPECT_EQ(mover_->wait(id(1), 2, 0), TransferOutcome::TimedOut);
  gate_.open();
  EXPECT_EQ(wait_for(1, 2), TransferOutcome::Ok);
  const Completion completion = next_completion();
  EXPECT_EQ(completion.good_pages, 3U);
  EXPECT_EQ(completion.moved_bytes, 3 * pools_[0]->page_bytes());
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(pools_[0]->holds(PageId{10 + i}, content(0, i)));
}

TEST_P(MoverPoolsInPlaces, EveryNumberOfBandsMovesTheSameBytes) {
  open_pools();
  for (std::uint16_t pool = 0; pool < kPools; ++pool) {
    const auto layers = static_cast<std::uint16_t>(pools_[pool]->layer_count());
    for (std::uint16_t bands = 1; bands <= layers; ++bands) {
      for (std::uint32_t i = 0; i < 2; ++i) {
        pools_[pool]->fill(PageId{i}, content(pool, i));
        pools_[pool]->clear(PageId{3 + i});
      }
      const auto store_bands = static_cast<std::uint16_t>(layers + 1 - bands);
      EXPECT_EQ(move(pool, TransferKind::Store, pages(0, 2, bands), store_bands).outcome, TransferOutcome::Ok);
      EXPECT_EQ(move(pool, TransferKind::Load, pages(3, 2, bands), bands).outcome, TransferOutcome::Ok);
      for (std::uint32_t i = 0; i < 2; ++i) {
        EXPECT_TRUE(pools_[pool]->holds(PageId{3 + i}, content(pool, i))) << "pool " << pool << ", bands " << bands;
      }
    }
    expect_error(try_submit_to(pool, TransferKind::Load, pages(3, 2), layers + 1), ErrorCode::InvalidArgument,
                 std::to_string(layers + 1) + " bands, and pages of pool " + std::to_string(pool) + " have " +
                     std::to_string(layers) + " layers");
  }
}

// What is not there.

TEST_P(MoverPoolsInPlaces, APoolThatIsNotThereIsRefusedAndNothingChanges) {
  open_pools();
  store_to(0, 2);
  store_to(3, 2);
  for (const std::uint16_t pool : {std::uint16_t{4}, std::uint16_t{5}, std::uint16_t{65535}}) {
    for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
      const TransferId of_nobody{.index = 77, .generation = 1};
      const std::vector<PageTransfer> moved = pages(0, 2, 9);
      expect_error(mover_->try_submit({.id = of_nobody, .kind = kind, .pool_index = pool, .pages = moved}),
                   ErrorCode::InvalidArgument,
                   "transfer 77.1 is of pool " + std::to_string(pool) + ": the mover has 4 pools, counted from 0");
      EXPECT_FALSE(mover_->cancel(of_nobody));
      EXPECT_FALSE(mover_->wait(of_nobody, 0, 0).has_value());
    }
    expect_error(mover_->try_submit({.pool_index = pool}), ErrorCode::InvalidArgument, "is of pool");
  }
  EXPECT_FALSE(is_event_readable());
  for (const std::uint16_t pool : {std::uint16_t{0}, std::uint16_t{3}}) {
    EXPECT_EQ(move(pool, TransferKind::Load, pages(4, 2)).outcome, TransferOutcome::Ok);
    for (std::uint32_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(pools_[pool]->holds(PageId{i}, content(pool, i)));
      EXPECT_TRUE(pools_[pool]->holds(PageId{4 + i}, content(pool, i)));
    }
  }
}

TEST_F(MoverPools, AMoverOfOnePoolRefusesOthers) {
  open();
  expect_error(mover_->try_submit({.id = id(1), .pool_index = 1}), ErrorCode::InvalidArgument,
               "transfer 1.1 is of pool 1: the mover has 1 pool, counted from 0");
}

TEST_P(MoverPoolsInPlaces, PagesOutsideOneOfThePoolsAreRefused) {
  open_pools();
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    expect_error(try_submit_to(1, kind, {page(20, 1)}), ErrorCode::InvalidArgument,
                 "transfer 2.1 names device page 20 of pool 1: there are 20");
    expect_error(try_submit_to(2, kind, {page(0, 1), page(1, 4)}), ErrorCode::InvalidArgument,
                 "transfer 3.1 names host page 4 of pool 2: ids lie in [1, 3]");
    expect_error(try_submit_to(3, kind, {page(0, 0)}), ErrorCode::InvalidArgument, "names host page 0 of pool 3");
  }
  EXPECT_FALSE(is_event_readable());
  EXPECT_EQ(move(0, TransferKind::Store, {page(20, 4)}).outcome, TransferOutcome::Ok) << "another pool has them";
  expect_error(try_submit_to(2, TransferKind::Load, {page(3, 1), page(3, 2)}), ErrorCode::InvalidArgument,
               "device page 3 twice as its target");
}

// What is wrong with a page is reported, whichever pool and part it is in.

TEST_P(MoverPoolsInPlaces, DamageInAnyPartIsReported) {
  open_pools();
  for (std::uint16_t pool = 0; pool < kPools; ++pool) {
    store_to(pool, 3);
    HostStore& store = MoverPeer::host_store(*mover_, pool);
    std::uint64_t first_bit = 0;
    for (std::size_t part = 0; part < pools_[pool]->part_count(); ++part) {
      const std::uint64_t bits = 8 * pools_[pool]->part(part).geometry().page().page_bytes();
      for (const std::uint64_t bit : {first_bit, first_bit + (bits / 2), first_bit + bits - 1}) {
        HostStorePeer::flip_bit(store, PageId{2}, bit);
        const auto layers = static_cast<std::uint16_t>(pools_[pool]->layer_count());
        for (std::uint16_t bands = 1; bands <= layers; ++bands) {
          const Completion completion = move(pool, TransferKind::Load, pages(3, 3), bands);
          EXPECT_EQ(completion.outcome, TransferOutcome::Failed);
          EXPECT_EQ(completion.fault, TransferFault::Checksum) << "pool " << pool << ", bit " << bit;
          EXPECT_EQ(completion.good_pages, 1U);
        }
        HostStorePeer::flip_bit(store, PageId{2}, bit);
      }
      first_bit += bits;
    }
    EXPECT_EQ(move(pool, TransferKind::Load, pages(3, 3)).outcome, TransferOutcome::Ok);
  }
}

TEST_P(MoverPoolsInPlaces, GenerationsAndTagsAreThePools) {
  open_pools();
  for (std::uint16_t pool = 0; pool < kPools; ++pool) store_to(pool, 2, 10 + pool);
  for (std::uint16_t pool = 0; pool < kPools; ++pool) {
    for (std::uint16_t other = 0; other < kPools; ++other) {
      const Completion completion = move(pool, TransferKind::Load, pages(3, 2, 10 + other));
      EXPECT_EQ(completion.fault, pool == other ? TransferFault::None : TransferFault::Generation);
      EXPECT_EQ(completion.good_pages, pool == other ? 2U : 0U);
    }
    std::vector<PageTransfer> wanted = pages(3, 2, 10 + pool);
    ++wanted[1].name_tag;
    const Completion completion = move(pool, TransferKind::Load, wanted);
    EXPECT_EQ(completion.fault, TransferFault::NameTag);
    EXPECT_EQ(completion.good_pages, 1U);
  }
  store_to(1, 1, 50);
  EXPECT_EQ(move(0, TransferKind::Load, pages(3, 2, 10)).outcome, TransferOutcome::Ok) << "the other pool was written";
  EXPECT_EQ(move(1, TransferKind::Load, pages(3, 1, 11)).fault, TransferFault::Generation);
}

TEST_F(MoverPools, AStoreThatEndsBetweenItsPartsLeavesNothing) {
  open_pools();
  store_to(0, 1);
  gate_.close([](const PieceStart& piece) { return piece.band == 4; });  // part 0 has layers 0 to 3
  ASSERT_EQ(try_submit_to(0, TransferKind::Store, {page(1, 1, 2), page(2, 2, 2)}, 7), true);
  gate_.wait_for_held();
  EXPECT_TRUE(mover_->cancel(id(1)));
  gate_.open();
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Cancelled);
  for (const std::uint32_t generation : {1U, 2U}) {
    EXPECT_EQ(move(0, TransferKind::Load, {page(10, 1, generation)}).fault, TransferFault::Generation);
  }
}

// The tier below.

TEST_P(MoverPoolsInPlaces, TheTierBelowSeesTheRecordsOfEachPool) {
  open_pools();
  for (std::uint16_t pool = 0; pool < kPools; ++pool) store_to(pool, 2);
  for (std::uint16_t pool = 0; pool < kPools; ++pool) {
    HostPages& host = mover_->host_pages(pool);
    HostPages::Record record;
    ASSERT_EQ(host.begin_read(page(0, 2), record), TransferFault::None);
    EXPECT_EQ(record.bytes.size(), pools_[pool]->page_bytes());
    const std::vector<std::byte> bytes(record.bytes.begin(), record.bytes.end());
    const std::optional<std::uint64_t> checksum = record.checksum;
    host.end_read(page(0, 2));
    ASSERT_TRUE(checksum.has_value());

    std::span<std::byte> target;
    ASSERT_EQ(host.begin_write(page(0, 3, 8), target), TransferFault::None);
    ASSERT_EQ(target.size(), bytes.size());
    std::ranges::copy(bytes, target.begin());
    host.end_write(page(0, 3, 8), checksum);
    EXPECT_EQ(move(pool, TransferKind::Load, {page(5, 3, 8)}).outcome, TransferOutcome::Ok);
    EXPECT_TRUE(pools_[pool]->holds(PageId{5}, content(pool, 1)));
  }
  EXPECT_EQ(&mover_->host_pages(), &mover_->host_pages(0));
}

TEST_P(MoverPoolsInPlaces, ForgettingCoversAllPools) {
  open_pools();
  for (std::uint16_t pool = 0; pool < kPools; ++pool) store_to(pool, 2);
  gate_.close();
  ASSERT_EQ(try_submit_to(2, TransferKind::Load, pages(3, 1)), true);
  gate_.wait_for_held();
  expect_error(mover_->forget_host_pages(), ErrorCode::Unavailable, "0 transfers are queued and 1 run");
  gate_.open();
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
  ASSERT_TRUE(mover_->forget_host_pages().has_value());
  for (std::uint16_t pool = 0; pool < kPools; ++pool) {
    const Completion completion = move(pool, TransferKind::Load, pages(3, 2));
    EXPECT_EQ(completion.fault, TransferFault::Generation);
    EXPECT_EQ(completion.good_pages, 0U);
    for (const std::byte byte : HostStorePeer::record(MoverPeer::host_store(*mover_, pool), PageId{1})) {
      if (has_accelerator()) break;  // which knows the memory
      ASSERT_EQ(byte, std::byte{0}) << "its memory was not given back";
    }
    store_to(pool, 1, 2);
    EXPECT_EQ(move(pool, TransferKind::Load, pages(3, 1, 2)).outcome, TransferOutcome::Ok);
    EXPECT_TRUE(pools_[pool]->holds(PageId{3}, content(pool, 0)));
  }
}

TEST_F(MoverPools, AllHostPagesLieInOneRegion) {
  static std::atomic<int> map_count = 0;
  static std::atomic<std::size_t> mapped_bytes = 0;
  static const RegionCalls kCalls = [] {
    RegionCalls calls = RegionCalls::real();
    calls.map = [](std::size_t bytes, int flags) {
      ++map_count;
      mapped_bytes = bytes;
      return RegionCalls::real().map(bytes, flags);
    };
    calls.lock = [](void*, std::size_t) {
      errno = EPERM;
      return -1;
    };
    return calls;
  }();
  config_.host_region.lock_memory = true;
  map_count = 0;
  open_pools({.calls = &kCalls});
  EXPECT_EQ(map_count, 1);
  // Records of 483, 406, 5000 and 10570 bytes, each to the next multiple of 64, those of a pool to the next one of
  // 4096; and 2 MiB to align them.
  const auto in_pages = [](std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; };
  EXPECT_EQ(mapped_bytes,
            in_pages(16U * 512) + in_pages(5U * 448) + in_pages(3U * 5056) + in_pages(4U * 10624) + (2U << 20U));
  const HostRegionStatus status = mover_->host_region();
  EXPECT_FALSE(status.is_locked);
  EXPECT_EQ(status.refusals.find("locked memory"), status.refusals.rfind("locked memory")) << "told once";
  EXPECT_NE(status.refusals.find("locked memory"), std::string::npos);
  for (std::uint16_t pool = 0; pool < kPools; ++pool) store_to(pool, 3);
}

// Configuration.

TEST_P(MoverPoolsInPlaces, PoolsThatMakeNoSenseAreErrors) {
  open_pools();
  const MoverConfig good = config_;
  ASSERT_TRUE(good.validate().has_value());
  const TestPool shorter({{.layers = 3, .layer_bytes = 33, .pages = 31}});
  const auto refused = [&](const std::function<void(MoverConfig&)>& change, const std::string& text) {
    MoverConfig config = good;
    change(config);
    expect_error(config.validate(), ErrorCode::InvalidArgument, text);
    expect_error(Mover::open(config), ErrorCode::InvalidArgument, text);
  };
  refused([](MoverConfig& config) { config.host_page_count = 1; }, "MoverConfig has pools, and device_geometry");
  refused([&](MoverConfig& config) { config.device_geometry = config.pools[0].parts[0].geometry; }, "has pools, and");
  refused([&](MoverConfig& config) { config.device_memory = config.pools[0].parts[0].memory; }, "has pools, and");
  refused([](MoverConfig& config) { config.pools[2].parts.clear(); }, "MoverConfig::pools[2].parts is empty");
  refused([](MoverConfig& config) { config.pools[0].parts[1].geometry = nullptr; },
          "MoverConfig::pools[0].parts[1].geometry is missing");
  refused([](MoverConfig& config) { config.pools[3].parts[2].memory = nullptr; },
          "MoverConfig::pools[3].parts[2].memory is missing");
  refused([&](MoverConfig& config) { config.pools[0].parts[1].geometry = shorter.device()[0].geometry; },
          "MoverConfig::pools[0].parts[1] has 31 pages, and parts[0] has 32: an id names a page in each of them");
  refused([](MoverConfig& config) { config.pools[1].host_page_count = 0; },
          "MoverConfig::pools[1].host_page_count is 0: give 1 to 4294967294");
  refused([](MoverConfig& config) { config.pools[1].host_page_count = UINT32_MAX; },
          "pools[1].host_page_count is 4294967295");
  refused([](MoverConfig& config) { config.pools.resize(65537, config.pools[1]); },
          "MoverConfig::pools has 65537: give 65536 at most");
}

TEST_F(MoverPools, DevicePagesOfAPoolCanMoveInAsManyPartsAsItHas) {
  open_pools();
  TestPool elsewhere({{.layers = 2, .layer_bytes = 203, .pages = 40}});
  const MoverPart part{
      .geometry = elsewhere.device()[0].geometry, .memory = elsewhere.device()[0].memory, .tensors = {}};
  expect_error(mover_->set_device({&part, 1}), ErrorCode::InvalidArgument, "parts");
  expect_error(mover_->set_device({&part, 1}, 99), ErrorCode::InvalidArgument, "pool 99");

  config_.pools = {pools_[0]->for_mover(4), pools_[1]->for_mover(4)};
  mover_ = Mover::open(config_).value();
  pools_[1]->fill(PageId{0}, 9);
  PageTransfer moved = page(0, 1);
  ASSERT_EQ(move(1, TransferKind::Store, {moved}).outcome, TransferOutcome::Ok);
  ASSERT_TRUE(mover_->set_device({&part, 1}, 1).has_value());
  moved.device_page = PageId{39};
  ASSERT_EQ(move(1, TransferKind::Load, {moved}).outcome, TransferOutcome::Ok);
  EXPECT_TRUE(elsewhere.holds(PageId{39}, 9));
}

// The caller's geometries may go when the mover is open.
TEST_P(MoverPoolsInPlaces, GeometriesAreCopied) {
  TestPool pool({{.layers = 2, .layer_bytes = 24, .pages = 4}, {.layers = 3, .layer_bytes = 10, .pages = 4}});
  adopt(pool);
  {
    const PoolGeometry first = *pool.device()[0].geometry;
    const PoolGeometry second = *pool.device()[1].geometry;
    config_.pools = {{.parts = {{.geometry = &first, .memory = pool.device()[0].memory},
                                {.geometry = &second, .memory = pool.device()[1].memory}},
                      .host_page_count = 2}};
    mover_ = Mover::open(config_).value();
  }
  pool.fill(PageId{1}, 3);
  ASSERT_EQ(move(0, TransferKind::Store, {page(1, 2)}, 5).outcome, TransferOutcome::Ok);
  ASSERT_EQ(move(0, TransferKind::Load, {page(3, 2)}, 4).outcome, TransferOutcome::Ok);
  EXPECT_TRUE(pool.holds(PageId{3}, 3));
}

}  // namespace
}  // namespace quire
