// SPDX-License-Identifier: Apache-2.0
//
// A mover whose pages lie on an accelerator, where that differs from one whose threads copy: transfers are on streams,
// several at a time, and cannot be called back from there. What both promise is tested beside the others, in places.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mover_fixture.h"
#include "store/host_pages.h"
#include "testing/test_pool.h"

namespace quire {
namespace {

// [bands]
// Work that is put on the stream from now on finds the layers of a band. Until the band is on the mover's streams the
// host waits, then the stream does.
bool await_band(quire::Mover& mover, quire::DeviceStream stream, quire::TransferId load, std::uint32_t band) {
  return mover.wait_on(stream, load, band, /*timeout_ns=*/1'000'000'000).has_value();
}
// [bands]

class MoverOnAccelerator : public MoverTest {
 protected:
  /// Until the transfer is on its streams, and one of the engine's waits for one of its bands.
  void wait_until_started(std::uint32_t index, std::uint32_t band = 0) {
    const Status status = mover_->wait_on(stream(), id(index), band, kLongNs);
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }
  /// A stream of the engine's.
  DeviceStream stream() {
    if (stream_.handle == nullptr) stream_ = accelerator_->create_stream(StreamPriority::Low).value();
    return stream_;
  }
  void close_stream() {
    if (stream_.handle != nullptr) accelerator_->destroy_stream(std::exchange(stream_, {}));
  }
  void open_held(const testing::TestDeviceShape& shape = {.layers = 4, .layer_bytes = 96, .pages = kDevicePages}) {
    close_stream();
    open(shape);
  }
  void TearDown() override { close_stream(); }
  /// Nobody is at a host page.
  bool is_unclaimed(std::uint32_t host_page, std::uint16_t pool = 0) {
    std::span<std::byte> bytes;
    HostPages& host = mover_->host_pages(pool);
    if (host.begin_write(page(0, host_page, 77), bytes) != TransferFault::None) return false;
    host.end_write(page(0, host_page, 77), std::nullopt);
    return true;
  }

  DeviceStream stream_;
  std::size_t leak_count_ = 0;
};

using MoverOnPaths = InPlaces<MoverOnAccelerator>;
INSTANTIATE_TEST_SUITE_P(Mover, MoverOnPaths, ::testing::ValuesIn(std::span(kMoverPlaces).subspan<1>()), name_of_place);

// A page that one of them has stored is one that the other could load.
TEST_P(MoverOnPaths, RecordsAndChecksumsAreThoseOfTheProcessor) {
  for (const ByteLayout layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    for (const std::uint32_t layer_bytes : {1U, 7U, 16U, 96U, 2048U, 4099U}) {
      open({.layers = 3, .layer_bytes = layer_bytes, .pages = kDevicePages, .byte_layout = layout});
      store(0, 5, 50);
      MoverConfig config = config_;
      config.accelerator = nullptr;
      const std::unique_ptr<Mover> other = Mover::open(config).value();
      const std::vector<PageTransfer> stored = pages(0, 5);
      ASSERT_TRUE(other->try_submit({.id = id(1), .kind = TransferKind::Store, .pages = stored}).value());
      ASSERT_EQ(other->wait(id(1), 0, kLongNs).value(), TransferOutcome::Ok);
      for (const PageTransfer& page : stored) {
        HostPages::Record ours;
        HostPages::Record theirs;
        ASSERT_EQ(mover_->host_pages().begin_read(page, ours), TransferFault::None);
        ASSERT_EQ(other->host_pages().begin_read(page, theirs), TransferFault::None);
        EXPECT_TRUE(std::ranges::equal(ours.bytes, theirs.bytes));
        EXPECT_TRUE(ours.checksum.has_value());
        EXPECT_EQ(ours.checksum, theirs.checksum) << layer_bytes << " bytes";
        mover_->host_pages().end_read(page);
        other->host_pages().end_read(page);
      }
    }
  }
}

TEST_P(MoverOnPaths, WhatWasMeasuredServesAsWell) {
  config_.load_paths.reset();
  config_.store_paths.reset();
  config_.transfer_pages_max = 8;
  open();
  store(0, 5, 50);
  submit(1, TransferKind::Load, pages(10, 5), 2);
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 50 + i));
}

// As an engine has them: of each layer, K and V in tensors of their own, with other tensors between them.
TEST_P(MoverOnPaths, TensorsThatLieAnywhereAreParts) {
  constexpr std::uint32_t kLayers = 3;
  constexpr std::uint32_t kPages = 8;
  CacheGroup group{.name = "kv",
                   .layers = layer_range(0, kLayers),
                   .components = {{.name = "k", .element = ElementType::Bytes, .dim = 48},
                                  {.name = "v", .element = ElementType::Bytes, .dim = 80}}};
  const PageGeometry page_geometry = PageGeometry::create(std::move(group), {.page_tokens = 1}).value();
  const PoolGeometry geometry = PoolGeometry::create(page_geometry, {.page_count = kPages}).value();
  const std::array<std::uint64_t, 2> bytes{48, 80};
  std::vector<std::vector<std::byte>> memory;
  MoverPart part{.geometry = &geometry};
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    for (std::uint32_t component = 0; component < 2; ++component) {
      const std::uint64_t stride = bytes[component] + (std::uint64_t{16} * layer);
      std::vector<std::byte>& tensor = memory.emplace_back(stride * kPages);
      accelerator_->adopt(tensor);
      part.tensors.push_back(
          {.layer_index = layer, .component_index = component, .data = tensor.data(), .page_stride = stride});
    }
  }
  std::ranges::reverse(part.tensors);
  testing::TestPool other({{.layers = 2, .layer_bytes = 24, .pages = kPages}});
  adopt(other);
  config_.pools = {{.parts = {part, other.for_mover(1).parts[0]}, .host_page_count = 4}};
  config_.transfer_pages_max = 4;
  mover_ = Mover::open(config_).value();
  const auto each_byte = [&](std::uint32_t at, auto visit) {
    for (std::uint32_t i = 0; i < memory.size(); ++i) {
      const std::uint64_t stride = memory[i].size() / kPages;
      for (std::uint64_t b = 0; b < bytes[i % 2]; ++b) visit(memory[i][(at * stride) + b], i, b);
    }
  };
  for (std::uint32_t at = 0; at < 3; ++at) {
    each_byte(at,
              [&](std::byte& byte, std::uint32_t i, std::uint64_t b) { byte = std::byte(at + (i * 17) + (b * 3)); });
    other.fill(PageId{at}, at);
  }
  for (const std::uint16_t bands : {std::uint16_t{1}, std::uint16_t{3}, std::uint16_t{5}}) {
    submit(1, TransferKind::Store, pages(0, 3, bands), bands);
    ASSERT_EQ(next_completion().outcome, TransferOutcome::Ok);
    submit(2, TransferKind::Load, pages(4, 3, bands), bands);
    const Completion completion = next_completion();
    ASSERT_EQ(completion.outcome, TransferOutcome::Ok);
    EXPECT_EQ(completion.moved_bytes, 3U * (page_geometry.page_bytes() + 48));
    for (std::uint32_t at = 0; at < 3; ++at) {
      bool is_same = other.holds(PageId{4 + at}, at);
      each_byte(4 + at, [&](std::byte& byte, std::uint32_t i, std::uint64_t b) {
        is_same = is_same && byte == std::byte(at + (i * 17) + (b * 3));
        byte = std::byte{0};
      });
      EXPECT_TRUE(is_same) << at;
      other.clear(PageId{4 + at});
    }
  }
}

TEST_P(MoverOnPaths, MoreTransfersThanStreamsTakeAtATime) {
  open();
  store(0, 4, 1);
  for (std::uint32_t round = 0; round < 5; ++round) {
    for (std::uint32_t i = 0; i < 20; ++i) {
      submit((round * 100) + i, TransferKind::Load, {page(12 + i, 1 + (i % 4))},
             static_cast<std::uint16_t>(1 + (i % 4)));
      submit((round * 100) + 50 + i, TransferKind::Store, {page(i % 4, 5 + (i % 12), 1 + i)});
    }
    std::uint32_t fault_count = 0;
    for (std::uint32_t i = 0; i < 40; ++i) {
      const Completion completion = next_completion();
      if (completion.kind == TransferKind::Load) {
        EXPECT_EQ(completion.outcome, TransferOutcome::Ok);
      }
      fault_count += completion.outcome == TransferOutcome::Ok ? 0 : 1;
    }
    EXPECT_EQ(fault_count, 0U);
    for (std::uint32_t i = 0; i < 20; ++i) {
      EXPECT_TRUE(device_->holds(PageId{12 + i}, 1 + (i % 4)));
      device_->clear(PageId{12 + i});
    }
  }
}

// Rates are made of these: what is behind others on the streams is not slower for it.
TEST_P(MoverOnPaths, TransfersThatOverlapDoNotCountTheSameTimeTwice) {
  open();
  store(0, 4, 1);
  const auto begin = std::chrono::steady_clock::now();  // nothing here depends on how fast it goes
  accelerator_->hold(true);
  for (std::uint32_t i = 0; i < 4; ++i) submit(1 + i, TransferKind::Load, {page(10 + i, 1 + i)});
  for (std::uint32_t i = 0; i < 4; ++i) wait_until_started(1 + i);
  accelerator_->hold(false);
  TimeNs busy_ns = 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    const Completion completion = next_completion();
    EXPECT_GT(completion.busy_ns, 0);
    busy_ns += completion.busy_ns;
  }
  EXPECT_LE(busy_ns, std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count() + 4);
}

// Bands.

TEST_P(MoverOnPaths, AStreamWaitsForABandAndFindsItsLayers) {
  for (const std::uint16_t bands : {std::uint16_t{1}, std::uint16_t{3}, std::uint16_t{7}}) {
    for (std::uint32_t band = 0; band < bands; ++band) {
      open_held({.layers = 7, .layer_bytes = 33, .pages = kDevicePages});
      store(0, 4, 1);
      accelerator_->hold(true);
      submit(1, TransferKind::Load, pages(10, 4), bands);
      wait_until_started(1, band);
      EXPECT_EQ(mover_->wait(id(1), band, 0), TransferOutcome::TimedOut);
      ASSERT_TRUE(accelerator_->synchronize(stream()).has_value());
      for (std::uint32_t i = 0; i < 4; ++i) {
        EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i, 7 * (band + 1) / bands)) << "bands " << bands;
      }
      if (band + 1 < bands) {
        EXPECT_EQ(wait_for(1, band), TransferOutcome::Ok) << "told while the rest is on its way";
      }
      accelerator_->hold(false);
      EXPECT_EQ(wait_for(1, bands - 1), TransferOutcome::Ok);
      const Completion completion = next_completion();
      EXPECT_EQ(completion.good_pages, 4U);
      EXPECT_EQ(completion.moved_bytes, 4U * 7 * 33);
    }
  }
}

// As docs/tiers.md has it.
TEST_P(MoverOnPaths, AnEngineBeginsOnTheFirstLayers) {
  open({.layers = 6, .layer_bytes = 64, .pages = kDevicePages});
  store(0, 4, 1);
  submit(1, TransferKind::Load, pages(10, 4), 6);
  for (std::uint32_t band = 0; band < 6; ++band) {
    ASSERT_TRUE(await_band(*mover_, stream(), id(1), band));
    ASSERT_TRUE(accelerator_->synchronize(stream()).has_value());
    for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i, band + 1));
  }
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
  EXPECT_TRUE(await_band(*mover_, stream(), id(1), 5)) << "it is over";
  EXPECT_FALSE(await_band(*mover_, stream(), id(2), 0)) << "there is none";
}

TEST_P(MoverOnPaths, ChecksumsAreKnownAtTheEndAndThenCountForAll) {
  open();
  store(0, 4, 1);
  HostStorePeer::flip_bit(MoverPeer::host_store(*mover_), PageId{3}, 5);  // in its first layer
  accelerator_->hold(true);
  submit(1, TransferKind::Load, pages(10, 4), 2);
  wait_until_started(1);
  ASSERT_TRUE(accelerator_->synchronize(stream()).has_value());
  EXPECT_NE(wait_for(1, 0), TransferOutcome::TimedOut);
  accelerator_->hold(false);
  EXPECT_EQ(wait_for(1, 1), TransferOutcome::Failed);
  EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::Failed) << "now it is known";
  const Completion completion = next_completion();
  EXPECT_EQ(completion.fault, TransferFault::Checksum);
  EXPECT_EQ(completion.good_pages, 2U);
  for (std::uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i));
  for (std::uint32_t host_page = 1; host_page <= 4; ++host_page) EXPECT_TRUE(is_unclaimed(host_page));
}

// The pages before it are worth loading; those behind it are not.
TEST_P(MoverOnPaths, APageThatIsAnotherEndsTheWayThere) {
  open();
  store(0, 4, 1);
  std::vector<PageTransfer> wanted = pages(10, 4);
  wanted[2].host_generation = 5;
  accelerator_->hold(true);
  submit(1, TransferKind::Load, wanted, 4);
  EXPECT_EQ(wait_for(1, 0), TransferOutcome::Failed) << "told as soon as it is known";
  EXPECT_EQ(mover_->wait(id(1), 3, 0), TransferOutcome::Failed);
  std::array<Completion, 1> none;
  EXPECT_TRUE(mover_->poll(none).empty()) << "but its pages are still in use";
  EXPECT_FALSE(is_unclaimed(1));
  EXPECT_FALSE(is_unclaimed(2));
  EXPECT_TRUE(is_unclaimed(3)) << "it was not touched";
  accelerator_->hold(false);
  const Completion completion = next_completion();
  EXPECT_EQ(completion.outcome, TransferOutcome::Failed);
  EXPECT_EQ(completion.fault, TransferFault::Generation);
  EXPECT_EQ(completion.good_pages, 2U);
  EXPECT_EQ(completion.moved_bytes, 2U * 4 * 96);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(device_->holds(PageId{10 + i}, 1 + i), i < 2);
  for (std::uint32_t host_page = 1; host_page <= 4; ++host_page) EXPECT_TRUE(is_unclaimed(host_page));
}

TEST_P(MoverOnPaths, WhatIsQueuedCannotBeWaitedForByAStream) {
  open();
  store(0, 2, 1);
  expect_error(mover_->wait_on(stream(), id(5), 0), ErrorCode::InvalidArgument, "transfer 5.1 is unknown");
  mover_->pause();
  submit(1, TransferKind::Load, pages(10, 2), 2);
  for (const TimeNs timeout_ns : {TimeNs{-1}, TimeNs{0}, kLongNs}) {
    expect_error(mover_->wait_on(stream(), id(1), 0, timeout_ns), ErrorCode::Unavailable,
                 "transfer 1.1 is queued, and not on its way: the mover is paused");
  }
  expect_error(mover_->wait_on(stream(), id(1), 2), ErrorCode::InvalidArgument, "there is no band 2");
  accelerator_->hold(true);
  mover_->resume();
  wait_until_started(1);
  expect_error(mover_->wait_on(stream(), id(1), 2), ErrorCode::InvalidArgument, "there is no band 2");
  expect_error(mover_->wait_on({}, id(1), 0), ErrorCode::InvalidArgument, "no such stream");
  wait_until_started(1, 1);
  submit(2, TransferKind::Store, {page(0, 5)});
  wait_until_started(2);
  accelerator_->hold(false);
  EXPECT_EQ(wait_for(1, 1), TransferOutcome::Ok);
  EXPECT_EQ(wait_for(2), TransferOutcome::Ok);
}

// Four are on their streams, and the fifth waits for one of them.
TEST_P(MoverOnPaths, AStreamCanWaitForATransferAsSoonAsItBegins) {
  open_held();
  store(0, 2, 1);
  accelerator_->hold(true);
  for (std::uint32_t i = 1; i <= 4; ++i) submit(i, TransferKind::Load, pages(10 + (2 * i), 2), 2);
  for (std::uint32_t i = 1; i <= 4; ++i) wait_until_started(i);
  submit(5, TransferKind::Load, pages(20, 2), 2);
  expect_error(mover_->wait_on(stream(), id(5), 0, 1'000'000), ErrorCode::Unavailable, "not on its way yet");
  const DeviceStream other = accelerator_->create_stream(StreamPriority::Low).value();
  Status waits = fail(ErrorCode::Cancelled, "nobody has waited");
  std::thread waiter([&] { waits = mover_->wait_on(other, id(5), 0, kLongNs); });
  wait_for_blocked(1);
  accelerator_->hold(false);
  EXPECT_EQ(wait_for(1, 1), TransferOutcome::Ok);
  waiter.join();
  EXPECT_TRUE(waits.has_value()) << waits.error().message;
  ASSERT_TRUE(accelerator_->synchronize(other).has_value());
  for (std::uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(device_->holds(PageId{20 + i}, 1 + i, 2));
  accelerator_->destroy_stream(other);
}

// Nothing arrives meanwhile: it is the beginning that is waited for.
TEST_P(MoverOnPaths, NobodyWaitsLongerThanUntilATransferBegins) {
  open_held();
  store(0, 2, 1);
  accelerator_->hold(true);
  gate_.close();
  submit(1, TransferKind::Load, pages(12, 2), 2);
  gate_.wait_for_held();
  submit(2, TransferKind::Load, pages(14, 2), 2);
  Status waits = fail(ErrorCode::Cancelled, "nobody has waited");
  std::thread waiter([&] { waits = mover_->wait_on(stream(), id(2), 1, kLongNs); });
  wait_for_blocked(1);
  gate_.open();
  waiter.join();
  EXPECT_TRUE(waits.has_value()) << waits.error().message;
  EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::TimedOut) << "the device has done nothing yet";
  ASSERT_TRUE(accelerator_->synchronize(stream()).has_value());
  for (std::uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(device_->holds(PageId{14 + i}, 1 + i));
}

TEST_P(MoverOnPaths, WhoeverWaitsForABeginningIsToldThatThereIsNone) {
  struct Case {
    const char* name;
    std::function<void()> act;
    ErrorCode code;
    const char* text;
  };
  std::optional<std::thread> closer;
  const std::vector<Case> cases = {
      {"cancelled", [&] { EXPECT_TRUE(mover_->cancel(id(5))); }, ErrorCode::Cancelled, "transfer 5.1 was cancelled"},
      {"paused", [&] { closer.emplace([this] { mover_->pause(); }); }, ErrorCode::Unavailable, "the mover is paused"},
      {"destroyed", [&] { closer.emplace([this] { mover_.reset(); }); }, ErrorCode::Unavailable,
       "the mover is being destroyed"}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.name);
    open_held();
    store(0, 2, 1);
    accelerator_->hold(true);
    for (std::uint32_t i = 1; i <= 4; ++i) submit(i, TransferKind::Load, pages(10 + (2 * i), 2), 2);
    for (std::uint32_t i = 1; i <= 4; ++i) wait_until_started(i);
    submit(5, TransferKind::Load, pages(20, 2), 2);
    Status waits;
    std::thread waiter([&, mover = mover_.get()] { waits = mover->wait_on(stream(), id(5), 0, kLongNs); });
    wait_for_blocked(1);
    each.act();
    waiter.join();
    expect_error(waits, each.code, each.text);
    accelerator_->hold(false);
    if (closer) closer->join();
    closer.reset();
  }
}

TEST_P(MoverOnPaths, BandsThatHaveArrivedNeedNoWaiting) {
  open();
  store(0, 2, 1);
  submit(1, TransferKind::Load, pages(10, 2), 2);
  EXPECT_EQ(wait_for(1, 1), TransferOutcome::Ok);
  for (const std::uint32_t band : {0U, 1U}) EXPECT_TRUE(mover_->wait_on(stream(), id(1), band).has_value());
  mover_->pause();
  EXPECT_TRUE(mover_->wait_on(stream(), id(1), 0).has_value()) << "whatever the mover does now";
  mover_->resume();
  submit(2, TransferKind::Load, {});
  EXPECT_TRUE(mover_->wait_on(stream(), id(2), 0).has_value()) << "there is nothing to wait for";
}

TEST_P(MoverOnPaths, ATransferThatHasFailedIsAnErrorToWhoeverWaits) {
  open();
  store(0, 4, 1);
  submit(1, TransferKind::Load, pages(10, 2, 99), 2);
  expect_error(mover_->wait_on(stream(), id(1), 0, kLongNs), ErrorCode::Io, "transfer 1.1 has failed");
  // Its first pages are worth loading, and are on their way.
  std::vector<PageTransfer> wanted = pages(10, 4);
  wanted[2].host_generation = 5;
  accelerator_->hold(true);
  submit(2, TransferKind::Load, wanted, 4);
  EXPECT_EQ(wait_for(2, 0), TransferOutcome::Failed);
  expect_error(mover_->wait_on(stream(), id(2), 0), ErrorCode::Io, "transfer 2.1 has failed");
  accelerator_->hold(false);
  EXPECT_EQ(wait_for(2, 3), TransferOutcome::Failed);
  expect_error(mover_->wait_on(stream(), id(2), 3), ErrorCode::Io, "not all of its pages arrive");
}

TEST_F(MoverOnAccelerator, WithoutOneNoStreamCanWait) {
  open();
  expect_error(mover_->wait_on({}, id(1), 0), ErrorCode::Unsupported, "the mover has no accelerator");
}

// Cancelling: streams do not give back what is on them.

TEST_P(MoverOnPaths, ACancelledTransferOnStreamsKeepsItsPagesUntilItIsOver) {
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    open_held();
    store(0, 3, 1);
    accelerator_->hold(true);
    submit(1, kind, pages(10, 3, kind == TransferKind::Load ? 1 : 2), 2);
    wait_until_started(1);
    EXPECT_TRUE(mover_->cancel(id(1)));
    EXPECT_FALSE(mover_->cancel(id(1))) << "twice";
    EXPECT_EQ(mover_->wait(id(1), 0, 1'000'000), TransferOutcome::TimedOut) << "its pages are still in use";
    for (std::uint32_t host_page = 1; host_page <= 3; ++host_page) EXPECT_FALSE(is_unclaimed(host_page));
    accelerator_->hold(false);
    const Completion completion = next_completion();
    EXPECT_EQ(completion.outcome, TransferOutcome::Cancelled);
    EXPECT_EQ(completion.fault, TransferFault::None);
    EXPECT_EQ(completion.good_pages, 0U);
    EXPECT_FALSE(mover_->cancel(id(1))) << "over";
    if (kind == TransferKind::Load) {
      submit(2, TransferKind::Load, pages(20, 3));
      EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok) << "what it read is what it was";
    } else {
      for (const std::uint32_t generation : {1U, 2U}) {
        submit(2, TransferKind::Load, pages(20, 1, generation));
        EXPECT_EQ(next_completion().fault, TransferFault::Generation) << "there is no data";
      }
    }
    for (std::uint32_t host_page = 1; host_page <= 3; ++host_page) EXPECT_TRUE(is_unclaimed(host_page));
  }
}

TEST_P(MoverOnPaths, ATransferThatIsCancelledWhileItIsBeingStartedMovesNothing) {
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    open();
    store(0, 5, 1);
    const std::size_t passed_before = gate_.passed().size();
    gate_.close([](const PieceStart& piece) { return piece.page_index == 2; });
    submit(1, kind, pages(10, 5));
    gate_.wait_for_held();
    EXPECT_TRUE(mover_->cancel(id(1)));
    EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::TimedOut);
    gate_.open();
    const Completion completion = next_completion();
    EXPECT_EQ(completion.outcome, TransferOutcome::Cancelled);
    EXPECT_EQ(completion.good_pages, 0U);
    EXPECT_EQ(completion.moved_bytes, 0U);
    EXPECT_EQ(gate_.passed().size() - passed_before, 3U) << "it went on behind the page where it was cancelled";
    for (std::uint32_t host_page = 1; host_page <= 5; ++host_page) EXPECT_TRUE(is_unclaimed(host_page));
  }
}

// A plan that breaks the rules gets faults, and the process lives.
TEST_P(MoverOnPaths, TwoTransfersAtOnePageAreAFaultOfTheSecond) {
  open();
  store(0, 2, 1);
  accelerator_->hold(true);
  submit(1, TransferKind::Store, {page(4, 1, 2)});
  wait_until_started(1);
  submit(2, TransferKind::Store, {page(5, 1, 3)});
  EXPECT_EQ(wait_for(2), TransferOutcome::Failed);
  EXPECT_EQ(next_completion().fault, TransferFault::Io);
  submit(3, TransferKind::Load, {page(10, 1, 1)});
  EXPECT_EQ(wait_for(3), TransferOutcome::Failed);
  EXPECT_EQ(next_completion().fault, TransferFault::Generation);
  submit(4, TransferKind::Load, {page(10, 2)});
  submit(5, TransferKind::Load, {page(11, 2)});
  wait_until_started(4);
  wait_until_started(5);
  submit(6, TransferKind::Store, {page(6, 2, 2)});
  EXPECT_EQ(wait_for(6), TransferOutcome::Failed) << "two read it";
  accelerator_->hold(false);
  for (const std::uint32_t index : {1U, 4U, 5U}) EXPECT_EQ(wait_for(index), TransferOutcome::Ok);
  submit(7, TransferKind::Load, {page(12, 1, 2), page(13, 2, 1)});
  EXPECT_EQ(wait_for(7), TransferOutcome::Ok);
}

TEST_P(MoverOnPaths, PausingWaitsForWhatIsOnStreams) {
  open();
  store(0, 2, 1);
  accelerator_->hold(true);
  submit(1, TransferKind::Load, pages(10, 2));
  wait_until_started(1);
  std::atomic<bool> is_paused = false;
  std::thread pauser([&] {
    mover_->pause();
    is_paused = true;
  });
  wait_for_blocked(1);
  submit(2, TransferKind::Load, pages(12, 2));
  EXPECT_FALSE(is_paused);
  accelerator_->hold(false);
  pauser.join();
  EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::Ok);
  EXPECT_EQ(mover_->wait(id(2), 0, 1'000'000), TransferOutcome::TimedOut);
  mover_->resume();
  EXPECT_EQ(wait_for(2), TransferOutcome::Ok);
}

TEST_P(MoverOnPaths, TheDeviceStaysWhereItIs) {
  open();
  testing::TestDevice other({.layers = 4, .layer_bytes = 96, .pages = 64});
  expect_error(mover_->set_device(other.geometry(), other.memory()), ErrorCode::Unsupported, "without an accelerator");
}

// Devices that fail.

// Whichever call it is: what was reported as good is, what was not is over, and nothing is lost.
TEST_P(MoverOnPaths, ADeviceThatFailsOnceAtAnyCallIsReported) {
  for (const bool checksums : {true, false}) {
    config_.checksums = checksums;
    config_.transfer_pages_max = 4;
    bool has_failed = true;
    std::uint32_t open_count = 0;
    for (std::uint64_t call = 0; has_failed; ++call) {
      ASSERT_LT(call, 2000U);
      gate_.open();
      mover_.reset();
      ASSERT_EQ(accelerator_->leak_count(), 0U) << "behind call " << call;
      renew_accelerator();
      device_ = std::make_unique<testing::TestDevice>(
          testing::TestDeviceShape{.layers = 3, .layer_bytes = 40, .pages = kDevicePages});
      adopt(*device_);
      config_.device_geometry = &device_->geometry();
      config_.device_memory = device_->memory();
      config_.host_page_count = kHostPages;
      accelerator_->fail_call_after(call);
      Result<std::unique_ptr<Mover>> opened = Mover::open(config_);
      if (!opened) {
        EXPECT_EQ(opened.error().code, ErrorCode::Io) << opened.error().message;
        continue;
      }
      ++open_count;
      mover_ = std::move(*opened);
      for (std::uint32_t i = 0; i < 4; ++i) device_->fill(PageId{i}, 1 + i);
      bool is_stored = false;
      for (std::uint32_t round = 0; round < 6; ++round) {
        const TransferKind kind = round % 2 == 0 ? TransferKind::Store : TransferKind::Load;
        const std::vector<PageTransfer> moved = pages(kind == TransferKind::Store ? 0 : 10, 4, 1 + (round / 2));
        submit(round, kind, moved, static_cast<std::uint16_t>(1 + (round % 3)));
        const Completion completion = next_completion();
        if (completion.outcome == TransferOutcome::Failed) {
          const bool has_nothing_to_load = kind == TransferKind::Load && !is_stored;
          EXPECT_EQ(completion.fault, has_nothing_to_load ? TransferFault::Generation : TransferFault::Io);
          EXPECT_EQ(completion.good_pages, 0U);
        } else {
          EXPECT_EQ(completion.outcome, TransferOutcome::Ok);
          EXPECT_EQ(completion.good_pages, 4U);
        }
        if (kind == TransferKind::Store) is_stored = completion.outcome == TransferOutcome::Ok;
        for (std::uint32_t i = 0; i < 4 && kind == TransferKind::Load; ++i) {
          if (completion.outcome == TransferOutcome::Ok) {
            EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i));
          }
          device_->clear(PageId{10 + i});
        }
      }
      has_failed = accelerator_->call_count() > call;
      for (std::uint32_t host_page = 1; host_page <= 4; ++host_page) {
        EXPECT_TRUE(is_unclaimed(host_page)) << "behind call " << call;
      }
    }
    EXPECT_GT(open_count, 20U);
  }
}

// That the device cannot say whether it is done does not mean that it is.
TEST_P(MoverOnPaths, PagesOfATransferThatCannotBeAskedForAreLeftAloneAfterItsEnd) {
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    open_held();
    store(0, 4, 1);
    for (std::uint32_t round = 0; round < 8; ++round) {
      accelerator_->hold(true);
      submit(round, kind, pages(10, 4, kind == TransferKind::Load ? 1 : 2 + round));
      (void)mover_->wait_on(stream(), id(round), 0, kLongNs);  // fails when the direction is shut
      accelerator_->fail_call_after(0);
      const Completion completion = next_completion();
      EXPECT_EQ(completion.outcome, TransferOutcome::Failed);
      EXPECT_EQ(completion.fault, TransferFault::Io);
      EXPECT_EQ(completion.good_pages, 0U);
      HostStore& host = MoverPeer::host_store(*mover_);
      for (std::uint32_t i = 0; i < 4; ++i) {
        if (kind == TransferKind::Load) device_->fill(PageId{10 + i}, 100 + i);
        if (kind == TransferKind::Store) {
          EXPECT_TRUE(is_unclaimed(1 + i));
        }
        if (kind == TransferKind::Store) std::ranges::fill(HostStorePeer::record(host, PageId{1 + i}), std::byte{7});
      }
      accelerator_->drain();
      for (std::uint32_t i = 0; i < 4; ++i) {
        if (kind == TransferKind::Load) {
          EXPECT_TRUE(device_->holds(PageId{10 + i}, 100 + i));
        }
        if (kind == TransferKind::Load) continue;
        for (const std::byte byte : HostStorePeer::record(host, PageId{1 + i})) ASSERT_EQ(byte, std::byte{7});
      }
    }
  }
}

// Destruction.

TEST_P(MoverOnPaths, DestructionWaitsForWhatIsOnStreams) {
  open();
  store(0, 4, 1);
  accelerator_->hold(true);
  for (std::uint32_t i = 0; i < 6; ++i) {
    submit(1 + i, TransferKind::Load, {page(10 + i, 1 + (i % 4))}, 3);
    submit(11 + i, TransferKind::Store, {page(i, 5 + i)}, 2);
  }
  for (std::uint32_t i = 0; i < 4; ++i) {
    wait_until_started(1 + i);
    wait_until_started(11 + i);
  }
  std::optional<Result<TransferOutcome>> outcome;
  std::thread waiter([&] { outcome = mover_->wait(id(1), 2, kLongNs); });
  wait_for_blocked(1);
  std::thread destroyer([&] { mover_.reset(); });
  waiter.join();
  EXPECT_EQ(outcome->value(), TransferOutcome::Cancelled);
  accelerator_->hold(false);
  destroyer.join();
  close_stream();
  EXPECT_EQ(accelerator_->leak_count(), 0U);
}

// Configuration.

TEST_F(MoverOnAccelerator, WhatIsAskedOfItIsChecked) {
  use_accelerator(SwapPath::Staged);
  config_.load_thread_count = 0;
  config_.store_thread_count = 1000;
  open();  // thread counts are not looked at
  MoverConfig config = config_;
  config.accelerator = nullptr;
  expect_error(config.validate(), ErrorCode::InvalidArgument, "load_thread_count is 0");

  const auto refused = [&](MoverPart part, const std::string& text) {
    MoverConfig of_part = config_;
    of_part.device_geometry = nullptr;
    of_part.device_memory = nullptr;
    of_part.host_page_count = 0;
    of_part.pools = {{.parts = {std::move(part)}, .host_page_count = 4}};
    expect_error(Mover::open(of_part), ErrorCode::InvalidArgument, text);
    EXPECT_EQ(accelerator_->leak_count(), leak_count_);
  };
  leak_count_ = accelerator_->leak_count();  // what the open one has
  const PoolGeometry& geometry = device_->geometry();
  const AdoptedTensor tensor{.data = device_->memory(), .page_stride = 96};
  refused({.geometry = &geometry}, "pools[0].parts[0].memory is missing");
  refused({.geometry = &geometry, .memory = device_->memory(), .tensors = {tensor}}, "has memory and tensors");
  refused({.geometry = &geometry, .tensors = {tensor}}, "layer 1 has bytes in no tensor");
  config.load_thread_count = config.store_thread_count = 1;
  config.device_geometry = nullptr;
  config.device_memory = nullptr;
  config.host_page_count = 0;
  config.pools = {{.parts = {{.geometry = &geometry, .tensors = {tensor}}}, .host_page_count = 4}};
  expect_error(Mover::open(config), ErrorCode::InvalidArgument, "that needs MoverConfig::accelerator");
}

TEST_F(MoverOnAccelerator, ALittleStagingIsNotTheDefault) {
  use_accelerator(SwapPath::Staged);
  const testing::FakeDeviceConfig small{.memory_bytes_max = std::size_t{1} << 20U};
  accelerator_ = std::make_unique<testing::FakeDevice>(small);
  config_.accelerator = accelerator_.get();
  testing::TestPool first({{.layers = 2, .layer_bytes = 64, .pages = 8}});
  testing::TestPool second({{.layers = 1, .layer_bytes = 64, .pages = 8}});
  adopt(first);
  adopt(second);
  config_.pools = {first.for_mover(4), second.for_mover(4)};
  config_.staging_bytes = 1;
  Result<std::unique_ptr<Mover>> opened = Mover::open(config_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  mover_ = std::move(*opened);
  first.fill(PageId{0}, 5);
  submit(1, TransferKind::Store, {page(0, 1)});
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
  submit(2, TransferKind::Load, {page(3, 1)});
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
  EXPECT_TRUE(first.holds(PageId{3}, 5));
}

}  // namespace
}  // namespace quire
