// SPDX-License-Identifier: Apache-2.0
//
// wait_until_ready() and wait_until_flushed(), with a clock and a wait of the test's. What keeps pages from arriving is
// an accelerator that does nothing before it is told to.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "system_disk_fixture.h"
#include "testing/fake_device.h"
#include "tiers_fixture.h"

namespace quire {
namespace {

class CacheWaitUntil : public SystemDiskTest {
 protected:
  ~CacheWaitUntil() override { close(); }

  void open_on_accelerator() {
    CacheConfig config = disk_config(16, 32);
    config.device.accelerator = &device_;
    config.device.memory = DeviceMemory::Accelerator;
    config.host.staging_bytes = 4096;
    config.host.load_paths = SwapPaths{.few = SwapPath::Whole, .many = SwapPath::Whole};
    config.host.store_paths = config.host.load_paths;
    config.host.region.huge_pages = false;
    open(std::move(config));
    EXPECT_EQ(serve(tokens_), 0U);
    EXPECT_TRUE(cache_->reclaim(UINT32_MAX));  // on the host, and no longer on the device
  }
  /// Time goes on as a wait says, and nobody waits.
  [[nodiscard]] WaitOptions at_once(std::optional<TimeNs> timeout_ns = std::nullopt) {
    return {.timeout_ns = timeout_ns,
            .now = [this] { return time_; },
            .wait =
                [this](int event_fd, TimeNs wait_ns) {
                  EXPECT_EQ(event_fd, cache_->event_fd());
                  EXPECT_GT(wait_ns, 0);
                  waited_ns_.push_back(wait_ns);
                  time_ += wait_ns;
                  if (on_wait_) on_wait_();
                  std::this_thread::yield();
                }};
  }
  [[nodiscard]] Sequence admitted() {
    Sequence sequence = cache_->begin(space_, {.tokens = tokens_}).value();
    EXPECT_FALSE(cache_->admit(sequence).value().is_ready);
    return sequence;
  }

  const std::vector<TokenId> tokens_ = token_range(0, 64);
  testing::FakeDevice device_;
  TimeNs time_ = 1'000'000;
  std::vector<TimeNs> waited_ns_;
  std::function<void()> on_wait_;
};

TEST_F(CacheWaitUntil, ASequenceIsReadyWhenItsPagesAreThere) {
  open_on_accelerator();
  device_.hold(true);
  const Sequence sequence = admitted();
  on_wait_ = [&] {
    if (waited_ns_.size() == 3) {
      device_.hold(false);
      device_.drain();
    }
  };
  EXPECT_TRUE(cache_->wait_until_ready(sequence, at_once()).value());
  EXPECT_EQ(cache_->view(sequence)->computed_tokens, 64U);
  EXPECT_GE(waited_ns_.size(), 3U);
  EXPECT_TRUE(cache_->wait_until_ready(sequence, at_once(0)).value()) << "one that is ready is not waited for";
}

TEST_F(CacheWaitUntil, ItEndsWithItsTimeAndTheLoadGoesOn) {
  open_on_accelerator();
  device_.hold(true);
  const Sequence sequence = admitted();
  EXPECT_FALSE(cache_->wait_until_ready(sequence, at_once(0)).value());
  EXPECT_TRUE(waited_ns_.empty());
  EXPECT_FALSE(cache_->wait_until_ready(sequence, at_once(120'000'000)).value());
  EXPECT_EQ(waited_ns_, (std::vector<TimeNs>{50'000'000, 50'000'000, 20'000'000}))
      << "in slices, so that limits of a load's own are noticed";
  EXPECT_TRUE(cache_->view(sequence)->is_loading);
  device_.hold(false);
  EXPECT_TRUE(cache_->wait_until_ready(sequence, at_once()).value());
}

TEST_F(CacheWaitUntil, TheCacheIsToldTheTime) {
  open_on_accelerator();
  device_.hold(true);
  Sequence sequence =
      cache_->begin(space_, {.tokens = tokens_}, {.prefetch = Prefetch::Timeout, .load_timeout_ns = 75'000'000})
          .value();
  ASSERT_TRUE(cache_->advance(time_));
  ASSERT_FALSE(cache_->admit(sequence).value().is_ready);
  EXPECT_TRUE(cache_->wait_until_ready(sequence, at_once()).value()) << "with what there is";
  EXPECT_EQ(cache_->view(sequence)->miss.reason, MissReason::LoadTimedOut);
  EXPECT_EQ(waited_ns_.size(), 2U);
  device_.hold(false);
}

TEST_F(CacheWaitUntil, WithoutAClockOfTheCallersTimeGoesOnFromWhatTheCacheWasTold) {
  open_on_accelerator();
  ASSERT_TRUE(cache_->advance(5'000'000'000'000));
  const Sequence sequence = admitted();
  EXPECT_TRUE(cache_->wait_until_ready(sequence, {.timeout_ns = 60'000'000'000}).value());
  EXPECT_FALSE(cache_->advance(4'999'999'999'999)) << "not back";
  EXPECT_TRUE(cache_->advance(5'060'000'000'000)) << "nor further than it took";
}

TEST_F(CacheWaitUntil, ASequenceThatEndsMeanwhileIsAnError) {
  open_on_accelerator();
  device_.hold(true);
  Sequence sequence = admitted();
  on_wait_ = [&] { EXPECT_TRUE(cache_->end(sequence)); };
  expect_error(cache_->wait_until_ready(sequence, at_once()), ErrorCode::InvalidArgument, "has ended");
  device_.hold(false);
}

TEST_F(CacheWaitUntil, WhatCannotBecomeReadyIsRefused) {
  open_on_accelerator();
  const Sequence waiting = cache_->begin(space_, {.tokens = tokens_}).value();
  expect_error(cache_->wait_until_ready(waiting), ErrorCode::InvalidArgument, "is waiting; admit it first");
  expect_error(cache_->wait_until_ready(Sequence{}), ErrorCode::InvalidArgument, "empty");
  const Sequence sequence = admitted();
  expect_error(cache_->wait_until_ready(sequence, {.timeout_ns = -1}), ErrorCode::InvalidArgument, "timeout_ns is -1");
  drain(*cache_);
}

TEST_F(CacheWaitUntil, AFlushIsWaitedFor) {
  open_on_accelerator();
  EXPECT_TRUE(cache_->wait_until_flushed(at_once()).value());
  close();
  open(disk_config(16, 32));
  EXPECT_EQ(serve(tokens_), 64U) << "what was flushed is there for the next process";
}

TEST_F(CacheWaitUntil, AFlushEndsWithItsTimeAndGoesOnLater) {
  CacheConfig config = disk_config(16, 32);
  config.device.accelerator = &device_;
  config.device.memory = DeviceMemory::Accelerator;
  config.host.write_policy = WritePolicy::WriteBack;  // so that a flush has something to do
  config.host.staging_bytes = 4096;
  config.host.load_paths = SwapPaths{.few = SwapPath::Whole, .many = SwapPath::Whole};
  config.host.store_paths = config.host.load_paths;
  config.host.region.huge_pages = false;
  open(std::move(config));
  EXPECT_EQ(serve(tokens_), 0U);
  device_.hold(true);
  EXPECT_FALSE(cache_->wait_until_flushed(at_once(100'000'000)).value());
  EXPECT_EQ(waited_ns_.size(), 2U);
  device_.hold(false);
  EXPECT_TRUE(cache_->wait_until_flushed(at_once()).value());
  EXPECT_EQ(stats().disk_stored_page_total, 4U);
}

TEST_F(CacheWaitUntil, AFlushIsNotWaitedForWhileTransfersArePaused) {
  open_on_accelerator();
  ASSERT_TRUE(cache_->pause_transfers().value());
  expect_error(cache_->wait_until_flushed(), ErrorCode::Unavailable, "paused");
  ASSERT_TRUE(cache_->resume_transfers());
  EXPECT_TRUE(cache_->wait_until_flushed(at_once()).value());
}

class CacheWaitUntilInput : public TiersTest {};

TEST_F(CacheWaitUntilInput, AnExternalMoverIsNotWaitedFor) {
  open_tiers(tiers_config(8, 16, WritePolicy::WriteThrough));
  put_on_host(token_range(0, 16));
  Live live = admitted(token_range(0, 17));
  expect_error(cache_->wait_until_ready(live.sequence), ErrorCode::Unsupported, "take_transfers()");
  EXPECT_TRUE(view(live).is_loading);
  settle();
  EXPECT_TRUE(cache_->wait_until_ready(live.sequence).value()) << "there is nothing to wait for";
  finish(live);
}

TEST_F(CacheWaitUntilInput, WithoutTiersEverySequenceIsReadyAndNothingCanBeFlushed) {
  open(4, 8);
  Live live = admitted(token_range(0, 8));
  EXPECT_TRUE(cache_->wait_until_ready(live.sequence).value());
  expect_error(cache_->wait_until_flushed(), ErrorCode::Unsupported, "no disk tier");
  finish(live);
}

}  // namespace
}  // namespace quire
