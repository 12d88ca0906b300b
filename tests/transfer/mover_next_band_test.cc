// SPDX-License-Identifier: Apache-2.0
//
// Bands of one transfer reach the streams one by one: who waits for a band is let through as soon as that one is there,
// while the mover is still busy with the next. The device here has whoever puts a band of a load on a stream wait.
#include <gtest/gtest.h>

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mover_fixture.h"
#include "store/host_pages.h"
#include "testing/sanitized.h"

namespace quire {
namespace {

/// Takes a band of a load when it is told to. Without checksums, and with few pages, a band is one call here: a list of
/// copies, or a kernel.
class HesitantDevice : public testing::FakeDevice {
 public:
  using FakeDevice::FakeDevice;

  /// From now on so many bands are taken, and the call that puts the next one waits.
  void take_bands(std::uint32_t count) {
    const std::lock_guard lock(mutex_);
    left_ = count;
    changed_.notify_all();
  }
  void take_all() { take_bands(UINT32_MAX); }
  /// Until a call waits that would put a band there, and no band may be taken.
  void wait_for_call() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_waiting_ && left_ == 0; });
  }
  /// The call that puts the next band there is refused, and nothing else.
  void refuse_next_band() {
    const std::lock_guard lock(mutex_);
    refuses_next_ = true;
  }

  [[nodiscard]] Status copy_all(const CopyList& copies, DeviceStream stream) override {
    if (is_memory_of_pages(copies.targets[0])) QUIRE_TRY(pass());
    return FakeDevice::copy_all(copies, stream);
  }
  [[nodiscard]] Status move_fragments(const MoveFragmentsParams& params, DeviceStream stream) override {
    if (params.way == FragmentWay::FromRecords) QUIRE_TRY(pass());
    return FakeDevice::move_fragments(params, stream);
  }
  /// Copies to there are a load's.
  void set_pages(std::span<const std::byte> pages) { pages_ = pages; }

 private:
  [[nodiscard]] bool is_memory_of_pages(const std::byte* data) const {
    return data >= pages_.data() && data < pages_.data() + pages_.size();
  }
  [[nodiscard]] Status pass() {
    std::unique_lock lock(mutex_);
    is_waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return left_ != 0; });
    is_waiting_ = false;
    if (left_ != UINT32_MAX) --left_;
    if (std::exchange(refuses_next_, false)) return fail(ErrorCode::Io, "the device refuses a band");
    return {};
  }

  std::span<const std::byte> pages_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::uint32_t left_ = UINT32_MAX;
  bool is_waiting_ = false;
  bool refuses_next_ = false;
};

/// One who waits, on a thread of his own.
struct Waiter {
  Status status = fail(ErrorCode::Cancelled, "nobody has waited");
  std::thread thread;

  const Status& join() {
    thread.join();
    return status;
  }
};

class MoverNextBand : public MoverTest {
 protected:
  static constexpr std::uint32_t kLayers = 6;
  static constexpr std::uint32_t kPages = 4;
  static constexpr std::uint16_t kBands = 3;

  MoverNextBand() { config_.checksums = false; }
  ~MoverNextBand() override {
    take_all();
    close_streams();
    close();
  }
  std::unique_ptr<testing::FakeDevice> make_accelerator(const testing::FakeDeviceConfig& config) override {
    return std::make_unique<HesitantDevice>(config);
  }
  HesitantDevice& device() { return static_cast<HesitantDevice&>(*accelerator_); }
  void take_all() {
    if (has_accelerator()) device().take_all();
  }
  DeviceStream add_stream() {
    streams_.push_back(accelerator_->create_stream(StreamPriority::Low).value());
    return streams_.back();
  }
  void close_streams() {
    for (const DeviceStream stream : streams_) accelerator_->destroy_stream(stream);
    streams_.clear();
  }
  /// Four pages of six layers on the host, and a device that takes no band of a load.
  void open_hesitant() {
    take_all();
    close_streams();
    open({.layers = kLayers, .layer_bytes = 64, .pages = kDevicePages});
    device().set_pages({device_->memory(), device_->geometry().pool_bytes()});
    store(0, kPages, 1);
    device().hold(true);
    device().take_bands(0);
  }
  /// A load to pages 10… on, of which one band is on the streams, and the next one is being put there.
  void start_load(std::uint32_t index = 1) {
    submit(index, TransferKind::Load, pages(10, kPages), kBands);
    device().wait_for_call();
    device().take_bands(1);
    device().wait_for_call();
  }
  [[nodiscard]] Status wait_on(DeviceStream stream, std::uint32_t index, std::uint32_t band,
                               TimeNs timeout_ns = kLongNs) {
    return mover_->wait_on(stream, id(index), band, timeout_ns);
  }
  void start_waiting(Waiter& waiter, DeviceStream stream, std::uint32_t index, std::uint32_t band) {
    waiter.thread = std::thread([this, &waiter, stream, index, band, mover = mover_.get()] {
      waiter.status = mover->wait_on(stream, id(index), band, kLongNs);
    });
  }
  static void expect_ok(const Status& status) { EXPECT_TRUE(status.has_value()) << status.error().message; }
  /// What is on the stream by now has run: the load has brought the layers of so many bands, and no more.
  void expect_bands(DeviceStream stream, std::uint32_t bands) {
    ASSERT_TRUE(accelerator_->synchronize(stream).has_value());
    for (std::uint32_t i = 0; i < kPages; ++i) {
      EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i, kLayers * bands / kBands)) << bands;
      EXPECT_TRUE(bands == kBands || !device_->holds(PageId{10 + i}, 1 + i, kLayers)) << bands;
    }
  }
  /// Nobody is at the host pages.
  void expect_unclaimed() {
    for (std::uint32_t host_page = 1; host_page <= kPages; ++host_page) {
      std::span<std::byte> bytes;
      EXPECT_EQ(mover_->host_pages().begin_write(page(0, host_page, 77), bytes), TransferFault::None);
      mover_->host_pages().end_write(page(0, host_page, 77), std::nullopt);
    }
  }

  std::vector<DeviceStream> streams_;
};

using MoverNextBandOnPaths = InPlaces<MoverNextBand>;
INSTANTIATE_TEST_SUITE_P(Mover, MoverNextBandOnPaths,
                         ::testing::Values(MoverPlace{.name = "Whole", .path = SwapPath::Whole},
                                           MoverPlace{.name = "Direct", .path = SwapPath::Direct}),
                         name_of_place);

TEST_P(MoverNextBandOnPaths, AStreamWaitsForABandWhileTheNextOneIsBeingPut) {
  open_hesitant();
  const DeviceStream stream = add_stream();
  submit(1, TransferKind::Load, pages(10, kPages), kBands);
  for (std::uint32_t band = 0; band < kBands; ++band) {
    device().wait_for_call();
    device().take_bands(1);
    if (band + 1 < kBands) device().wait_for_call();
    expect_ok(wait_on(stream, 1, band));
    expect_bands(stream, band + 1);
  }
  device().hold(false);
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
}

TEST_P(MoverNextBandOnPaths, WhoWaitsForABandIsLetThroughWithIt) {
  open_hesitant();
  submit(1, TransferKind::Load, pages(10, kPages), kBands);
  device().wait_for_call();
  std::array<Waiter, kBands> waiters;
  for (std::uint32_t band = 0; band < kBands; ++band) start_waiting(waiters[band], add_stream(), 1, band);
  wait_for_blocked(kBands);
  for (std::uint32_t band = 0; band < kBands; ++band) {
    device().take_bands(1);
    expect_ok(waiters[band].join());
    EXPECT_EQ(MoverPeer::blocked_count(*mover_), kBands - band - 1);
    if (band + 1 < kBands) device().wait_for_call();
    expect_bands(streams_[band], band + 1);
  }
  device().hold(false);
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
}

TEST_P(MoverNextBandOnPaths, NobodyWaitsLongerForABandThanHeSays) {
  open_hesitant();
  const DeviceStream stream = add_stream();
  submit(1, TransferKind::Load, pages(10, kPages), kBands);
  device().wait_for_call();
  for (const TimeNs timeout_ns : {TimeNs{-1}, TimeNs{0}, TimeNs{1'000'000}}) {
    expect_error(wait_on(stream, 1, 0, timeout_ns), ErrorCode::Unavailable,
                 "band 0 of transfer 1.1 is not on its streams yet");
  }
  device().take_bands(1);
  expect_ok(wait_on(stream, 1, 0));
  expect_ok(wait_on(stream, 1, 0, 0));
  expect_error(wait_on(stream, 1, 1, 0), ErrorCode::Unavailable, "band 1 of transfer 1.1 is not on its streams yet");
  expect_error(wait_on(stream, 1, kBands, 0), ErrorCode::InvalidArgument, "there is no band 3");
  device().take_all();
  expect_ok(wait_on(stream, 1, kBands - 1));
  expect_bands(stream, kBands);
}

// What a ring of staging memory, and a link, carry best: one transfer behind the other.
TEST_P(MoverNextBandOnPaths, ATransferBeginsBehindAllBandsOfTheOneBefore) {
  open_hesitant();
  const DeviceStream stream = add_stream();
  start_load();
  submit(2, TransferKind::Load, pages(20, kPages), kBands);
  expect_error(wait_on(stream, 2, 0, 0), ErrorCode::Unavailable, "transfer 2.1 is queued");
  device().take_bands(kBands - 1);
  expect_ok(wait_on(stream, 1, kBands - 1));
  device().wait_for_call();
  expect_error(wait_on(stream, 2, 0, 0), ErrorCode::Unavailable, "band 0 of transfer 2.1 is not on its streams yet");
  device().take_bands(1);
  expect_ok(wait_on(stream, 2, 0));
  device().take_all();
  device().hold(false);
  for (std::uint32_t i = 0; i < 2; ++i) EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
}

TEST_P(MoverNextBandOnPaths, StoresGoOnMeanwhile) {
  open_hesitant();
  start_load();
  device().hold(false);
  submit(2, TransferKind::Store, {page(0, 9), page(1, 10)}, kBands);
  EXPECT_EQ(next_completion().id, id(2));
  EXPECT_EQ(mover_->wait(id(1), kBands - 1, 0), TransferOutcome::TimedOut);
  device().take_all();
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
}

TEST_P(MoverNextBandOnPaths, PausingWaitsForBandsThatAreNotThereYet) {
  open_hesitant();
  start_load();
  std::thread pauser([&] { mover_->pause(); });
  wait_for_blocked(1);
  Waiter waiter;
  start_waiting(waiter, add_stream(), 1, kBands - 1);
  wait_for_blocked(2);
  device().take_all();
  expect_ok(waiter.join());
  device().hold(false);
  pauser.join();
  EXPECT_EQ(mover_->wait(id(1), kBands - 1, 0), TransferOutcome::Ok);
  mover_->resume();
}

TEST_P(MoverNextBandOnPaths, CancelledBetweenBandsATransferGoesItsWayAndCountsForNothing) {
  open_hesitant();
  start_load();
  Waiter waiter;
  start_waiting(waiter, add_stream(), 1, 1);
  wait_for_blocked(1);
  EXPECT_TRUE(mover_->cancel(id(1)));
  device().take_all();
  expect_ok(waiter.join());
  device().hold(false);
  const Completion completion = next_completion();
  EXPECT_EQ(completion.outcome, TransferOutcome::Cancelled);
  EXPECT_EQ(completion.good_pages, 0U);
  expect_unclaimed();
  expect_error(wait_on(streams_[0], 1, 1), ErrorCode::Cancelled, "was cancelled");
}

TEST_P(MoverNextBandOnPaths, ADeviceThatFailsBetweenBandsEndsTheTransfer) {
  open_hesitant();
  start_load();
  submit(2, TransferKind::Load, pages(20, kPages), kBands);
  std::array<Waiter, 2> waiters;
  for (std::uint32_t i = 0; i < 2; ++i) start_waiting(waiters[i], add_stream(), 1, 1 + i);
  wait_for_blocked(2);
  device().refuse_next_band();
  device().take_all();
  for (Waiter& waiter : waiters) expect_error(waiter.join(), ErrorCode::Io, "transfer 1.1 has failed");
  const Completion completion = next_completion();
  EXPECT_EQ(completion.id, id(1));
  EXPECT_EQ(completion.outcome, TransferOutcome::Failed);
  EXPECT_EQ(completion.fault, TransferFault::Io);
  EXPECT_EQ(completion.good_pages, 0U);
  // The band that was on the streams has ended: whoever has the pages now finds what he writes.
  EXPECT_EQ(accelerator_->pending_count(), 0U);
  for (std::uint32_t i = 0; i < kPages; ++i) device_->fill(PageId{10 + i}, 100 + i);
  EXPECT_EQ(next_completion().fault, TransferFault::Io) << "the direction takes no more";
  accelerator_->drain();
  for (std::uint32_t i = 0; i < kPages; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 100 + i));
  expect_unclaimed();
  device().hold(false);
  submit(3, TransferKind::Store, {page(0, 9)}, kBands);
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok) << "the other one does";
}

TEST_P(MoverNextBandOnPaths, DestructionBetweenBandsTellsThoseWhoWait) {
  open_hesitant();
  start_load();
  Waiter waiter;
  start_waiting(waiter, add_stream(), 1, 1);
  wait_for_blocked(1);
  std::thread destroyer([&] { mover_.reset(); });
  expect_error(waiter.join(), ErrorCode::Unavailable,
               "band 1 of transfer 1.1 is not on its streams: the mover is being destroyed");
  device().take_all();
  device().hold(false);
  destroyer.join();
  close_streams();
  EXPECT_EQ(accelerator_->pending_count(), 0U);
  EXPECT_EQ(accelerator_->leak_count(), 0U);
}

// Whatever the mover is putting there, and whoever else waits.
class MoverBandsForMany : public InPlaces<MoverTest> {};
INSTANTIATE_TEST_SUITE_P(Mover, MoverBandsForMany, ::testing::ValuesIn(std::span(kMoverPlaces).subspan<1>()),
                         name_of_place);

TEST_P(MoverBandsForMany, EveryStreamFindsTheLayersThatItWaitsFor) {
  constexpr std::uint32_t kBandCount = 6;
  constexpr std::uint32_t kPageCount = 4;
  constexpr std::uint32_t kWaiters = 3;
  open({.layers = kBandCount, .layer_bytes = 96, .pages = kDevicePages});
  store(0, kPageCount, 1);
  std::array<DeviceStream, kWaiters> streams;
  for (DeviceStream& stream : streams) stream = accelerator_->create_stream(StreamPriority::Low).value();
  for (std::uint32_t round = 0; round < (testing::kIsSanitized ? 20 : 100); ++round) {
    // Two at a time, so that one begins while streams wait for the other.
    for (std::uint32_t load = 0; load < 2; ++load) {
      for (std::uint32_t i = 0; i < kPageCount; ++i) device_->clear(PageId{10 + (10 * load) + i});
    }
    for (std::uint32_t load = 0; load < 2; ++load) {
      submit((2 * round) + load, TransferKind::Load, pages(10 + (10 * load), kPageCount), kBandCount);
    }
    std::array<std::thread, kWaiters> waiters;
    for (std::uint32_t who = 0; who < kWaiters; ++who) {
      waiters[who] = std::thread([&, who] {
        for (std::uint32_t at = 0; at < 2 * kBandCount; ++at) {
          const std::uint32_t load = at / kBandCount;
          const std::uint32_t band = (at + (who == 0 ? 0 : who * round)) % kBandCount;  // the first one in order
          const Status status = mover_->wait_on(streams[who], id((2 * round) + load), band, kLongNs);
          EXPECT_TRUE(status.has_value()) << status.error().message;
          EXPECT_TRUE(accelerator_->synchronize(streams[who]).has_value());
          for (std::uint32_t i = 0; i < kPageCount; ++i) {
            EXPECT_TRUE(device_->holds(PageId{10 + (10 * load) + i}, 1 + i, band + 1)) << "band " << band;
          }
        }
      });
    }
    for (std::thread& waiter : waiters) waiter.join();
    for (std::uint32_t load = 0; load < 2; ++load) EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
  }
  for (const DeviceStream stream : streams) accelerator_->destroy_stream(stream);
}

}  // namespace
}  // namespace quire
