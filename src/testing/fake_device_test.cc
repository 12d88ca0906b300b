// SPDX-License-Identifier: Apache-2.0
//
// What tests of swaps rely on: work runs in every order that streams and events allow, and in no other.
#include "testing/fake_device.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace quire::testing {
namespace {

constexpr std::size_t kHostBytes = 8192;

struct FreeMemory {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// A device with three streams, memory of its own and registered memory in units of 4096.
class FakeDeviceTest : public ::testing::Test {
 protected:
  FakeDeviceTest() { reset(0); }
  ~FakeDeviceTest() override { give_back(); }

  void reset(std::uint64_t seed) {
    give_back();
    device_ = std::make_unique<FakeDevice>(FakeDeviceConfig{.seed = seed});
    memory_ = device_->allocate(4096).value();
    host_.reset(static_cast<std::byte*>(std::aligned_alloc(4096, kHostBytes)));
    std::memset(host_.get(), 0, kHostBytes);
    ASSERT_TRUE(device_->register_host({host_.get(), kHostBytes}, 4096).has_value());
    for (DeviceStream& stream : streams_) stream = device_->create_stream(StreamPriority::High).value();
    event_ = device_->create_event().value();
  }
  void give_back() {
    if (!device_) return;
    for (const DeviceStream stream : streams_) device_->destroy_stream(stream);
    if (event_.handle != nullptr) device_->destroy_event(event_);
    device_->unregister_host({host_.get(), kHostBytes});
    device_->release(memory_);
    EXPECT_EQ(device_->leak_count(), 0U);
    device_.reset();
  }
  // Writes `value` to byte 0 of the device's memory, when it runs.
  void put(std::uint8_t value, std::size_t stream) {
    host_[value] = static_cast<std::byte>(value);
    ASSERT_TRUE(device_->copy(memory_, host_.get() + value, 1, streams_[stream]).has_value());
  }
  [[nodiscard]] int written() const { return static_cast<int>(memory_[0]); }

  std::unique_ptr<FakeDevice> device_;
  std::byte* memory_ = nullptr;
  std::unique_ptr<std::byte[], FreeMemory> host_;  // NOLINT(modernize-avoid-c-arrays): its deleter is free()
  std::array<DeviceStream, 3> streams_{};
  DeviceEvent event_;
};

TEST_F(FakeDeviceTest, NothingRunsBeforeSomebodyAsks) {
  put(1, 0);
  EXPECT_EQ(written(), 0);
  EXPECT_EQ(device_->pending_count(), 1U);
  EXPECT_EQ(device_->copied_bytes(), 1U);
  ASSERT_TRUE(device_->synchronize(streams_[0]).has_value());
  EXPECT_EQ(written(), 1);
  EXPECT_EQ(device_->pending_count(), 0U);
}

TEST_F(FakeDeviceTest, AStreamKeepsItsOrder) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    reset(seed);
    for (std::uint8_t value = 1; value <= 5; ++value) put(value, 0);
    device_->drain();
    EXPECT_EQ(written(), 5);
  }
}

TEST_F(FakeDeviceTest, StreamsWithoutEventsRunInEveryOrder) {
  std::set<int> last;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    reset(seed);
    for (std::uint8_t stream = 0; stream < 3; ++stream) put(static_cast<std::uint8_t>(stream + 1), stream);
    device_->drain();
    last.insert(written());
  }
  EXPECT_EQ(last, (std::set<int>{1, 2, 3}));
}

TEST_F(FakeDeviceTest, ASeedGivesTheSameOrderEveryTime) {
  const auto run = [&](std::uint64_t seed) {
    reset(seed);
    std::vector<int> seen;
    for (std::uint8_t round = 0; round < 10; ++round) {
      for (std::uint8_t stream = 0; stream < 3; ++stream)
        put(static_cast<std::uint8_t>(1 + (round * 3) + stream), stream);
      (void)device_->has_happened(event_);
      seen.push_back(written());
    }
    return seen;
  };
  EXPECT_EQ(run(7), run(7));
  EXPECT_NE(run(7), run(8));
}

TEST_F(FakeDeviceTest, WhatWaitsForAnEventRunsBehindIt) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    reset(seed);
    put(1, 0);
    ASSERT_TRUE(device_->record(event_, streams_[0]).has_value());
    ASSERT_TRUE(device_->wait(streams_[1], event_).has_value());
    put(2, 1);
    ASSERT_TRUE(device_->synchronize(streams_[1]).has_value());
    EXPECT_EQ(written(), 2);
    EXPECT_TRUE(device_->has_happened(event_).value());
  }
}

TEST_F(FakeDeviceTest, AWaitIsForTheEventAsItWasRecordedLast) {
  bool has_run_before_the_second = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    reset(seed);
    ASSERT_TRUE(device_->record(event_, streams_[0]).has_value());
    ASSERT_TRUE(device_->wait(streams_[1], event_).has_value());
    put(2, 1);
    put(1, 0);
    ASSERT_TRUE(device_->record(event_, streams_[0]).has_value());
    ASSERT_TRUE(device_->wait(streams_[2], event_).has_value());
    put(3, 2);
    ASSERT_TRUE(device_->synchronize(streams_[1]).has_value());
    has_run_before_the_second = has_run_before_the_second || written() == 2;
    const int before = written();
    EXPECT_TRUE(before != 3 || device_->has_happened(event_).value());
    ASSERT_TRUE(device_->synchronize(streams_[2]).has_value());
    EXPECT_NE(written(), 1);
  }
  EXPECT_TRUE(has_run_before_the_second);
}

TEST_F(FakeDeviceTest, RecordingAnEventAgainElsewhereIsNothingToWhatWaitsForIt) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    reset(seed);
    put(1, 0);
    ASSERT_TRUE(device_->record(event_, streams_[0]).has_value());
    ASSERT_TRUE(device_->wait(streams_[1], event_).has_value());
    put(2, 1);
    ASSERT_TRUE(device_->record(event_, streams_[2]).has_value());
    ASSERT_TRUE(device_->synchronize(streams_[2]).has_value());
    device_->drain();
    EXPECT_EQ(written(), 2);
  }
}

TEST_F(FakeDeviceTest, AnEventThatWasNeverRecordedHoldsNothingBack) {
  ASSERT_TRUE(device_->wait(streams_[0], event_).has_value());
  put(1, 0);
  ASSERT_TRUE(device_->synchronize(streams_[0]).has_value());
  EXPECT_EQ(written(), 1);
  EXPECT_TRUE(device_->has_happened(event_).value());
}

TEST_F(FakeDeviceTest, AStreamThatOnlyWaitedIsDoneWhenTheEventHasHappened) {
  ASSERT_TRUE(device_->record(event_, streams_[0]).has_value());
  ASSERT_TRUE(device_->wait(streams_[1], event_).has_value());
  ASSERT_TRUE(device_->synchronize(streams_[0]).has_value());
  ASSERT_TRUE(device_->synchronize(streams_[1]).has_value());
  EXPECT_EQ(device_->pending_count(), 0U);
}

TEST_F(FakeDeviceTest, AnEventMayBeDestroyedBeforeWhatWaitsForItHasRun) {
  put(1, 0);
  ASSERT_TRUE(device_->record(event_, streams_[0]).has_value());
  ASSERT_TRUE(device_->wait(streams_[1], event_).has_value());
  put(2, 1);
  device_->destroy_event(event_);
  event_ = {};
  EXPECT_EQ(written(), 0);
  device_->drain();
  EXPECT_EQ(written(), 2);
}

TEST_F(FakeDeviceTest, WhileItIsHeldOnlySynchronizeRunsWork) {
  device_->hold(true);
  put(1, 0);
  ASSERT_TRUE(device_->record(event_, streams_[0]).has_value());
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(device_->has_happened(event_).value());
  ASSERT_TRUE(device_->synchronize(streams_[0]).has_value());
  EXPECT_TRUE(device_->has_happened(event_).value());
}

TEST_F(FakeDeviceTest, RefusesCopiesOfMemoryThatItDoesNotKnow) {
  std::array<std::byte, 64> unknown{};
  EXPECT_EQ(device_->copy(unknown.data(), memory_, 8, streams_[0]).error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(device_->copy(memory_, unknown.data(), 8, streams_[0]).error().code, ErrorCode::InvalidArgument);
  EXPECT_FALSE(device_->copy(memory_, host_.get() + kHostBytes - 4, 8, streams_[0]).has_value());
  EXPECT_FALSE(device_->copy(memory_ + 4092, host_.get(), 8, streams_[0]).has_value());
  EXPECT_EQ(device_->pending_count(), 0U);
  device_->adopt(unknown);
  EXPECT_TRUE(device_->copy(unknown.data(), memory_, 8, streams_[0]).has_value());
  device_->drain();
}

TEST_F(FakeDeviceTest, RefusesCopiesThatCrossFromOneRegisteredPieceIntoTheNext) {
  EXPECT_TRUE(device_->copy(memory_, host_.get() + 4088, 8, streams_[0]).has_value());
  EXPECT_FALSE(device_->copy(memory_, host_.get() + 4088, 9, streams_[0]).has_value());
  const std::array<std::byte*, 2> targets = {memory_, memory_ + 100};
  const std::array<const std::byte*, 2> sources = {host_.get(), host_.get() + 4095};
  const std::array<std::size_t, 2> bytes = {10, 2};
  EXPECT_FALSE(device_->copy_all({.targets = targets, .sources = sources, .bytes = bytes}, streams_[0]).has_value());
  EXPECT_EQ(device_->pending_count(), 1U) << "all of a list, or nothing";
  device_->drain();
}

TEST_F(FakeDeviceTest, RefusesStreamsAndEventsOfAnotherDevice) {
  FakeDevice other({.index = 1});
  const DeviceStream stream = other.create_stream(StreamPriority::Low).value();
  const DeviceEvent event = other.create_event().value();
  EXPECT_FALSE(device_->copy(memory_, host_.get(), 1, stream).has_value());
  EXPECT_FALSE(device_->record(event_, stream).has_value());
  EXPECT_FALSE(device_->record(event, streams_[0]).has_value());
  EXPECT_FALSE(device_->wait(streams_[0], event).has_value());
  EXPECT_FALSE(device_->has_happened(event).has_value());
  EXPECT_EQ(device_->synchronize(stream).error().message, "fake device 0 has no such stream");
  EXPECT_EQ(device_->pending_count(), 0U);
  other.destroy_stream(stream);
  other.destroy_event(event);
  EXPECT_EQ(other.index(), 1U);
}

TEST_F(FakeDeviceTest, CopiesOfAListRunInAnyOrder) {
  std::set<int> last;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    reset(seed);
    host_[1] = std::byte{1};
    host_[2] = std::byte{2};
    const std::array<std::byte*, 2> targets = {memory_, memory_};
    const std::array<const std::byte*, 2> sources = {host_.get() + 1, host_.get() + 2};
    const std::array<std::size_t, 2> bytes = {1, 1};
    ASSERT_TRUE(device_->copy_all({.targets = targets, .sources = sources, .bytes = bytes}, streams_[0]).has_value());
    device_->drain();
    last.insert(written());
  }
  EXPECT_EQ(last, (std::set<int>{1, 2}));
}

TEST_F(FakeDeviceTest, FailsTheCallItWasToldTo) {
  device_->fail_call_after(1);
  EXPECT_TRUE(device_->synchronize(streams_[0]).has_value());
  EXPECT_EQ(device_->synchronize(streams_[0]).error().code, ErrorCode::Io);
  EXPECT_TRUE(device_->synchronize(streams_[0]).has_value());
  device_->fail_calls_from(2);
  EXPECT_TRUE(device_->synchronize(streams_[0]).has_value());
  put(1, 0);
  EXPECT_FALSE(device_->synchronize(streams_[0]).has_value());
  EXPECT_FALSE(device_->create_event().has_value());
  device_->drain();
  EXPECT_EQ(written(), 0) << "of a device that is lost nothing runs";
}

TEST_F(FakeDeviceTest, SaysWhenItsMemoryIsFull) {
  FakeDevice small({.memory_bytes_max = 1024});
  std::byte* const all = small.allocate(1000).value();
  EXPECT_EQ(small.allocate(1).error().code, ErrorCode::Unavailable);
  small.release(all);
  EXPECT_EQ(small.leak_count(), 0U);
}

using FakeDeviceDeathTest = FakeDeviceTest;

TEST_F(FakeDeviceDeathTest, StopsWhenWorkRunsAfterItsMemoryWasGivenBack) {
  EXPECT_DEATH(
      {
        put(1, 0);
        device_->unregister_host({host_.get(), kHostBytes});
        device_->drain();
      },
      "given back");
}

TEST_F(FakeDeviceDeathTest, StopsWhenAnAccessDoesNotFitAnAddress) {
  auto* const fragments = reinterpret_cast<Fragment*>(memory_ + 1024);
  fragments[0] = {.first = memory_ + 4, .page_stride = 0, .record_offset = 0, .bytes = 16};
  auto* const items = reinterpret_cast<SwapItem*>(memory_ + 2048);
  const auto run = [&](std::uint8_t access_bytes) {
    EXPECT_TRUE(device_
                    ->move_fragments({.access_bytes = access_bytes,
                                      .fragments = {fragments, 1},
                                      .items = {items, 1},
                                      .records = host_.get(),
                                      .record_stride = 64},
                                     streams_[0])
                    .has_value());
    device_->drain();
  };
  run(4);
  EXPECT_EQ(device_->kernel_count(), 1U);
  EXPECT_DEATH(run(16), "does not fit");
}

}  // namespace
}  // namespace quire::testing
