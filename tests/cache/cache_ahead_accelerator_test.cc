// SPDX-License-Identifier: Apache-2.0
//
// Steps whose pages arrive on an accelerator while they are computed there: a stream waits for layers, and no thread
// does. The device runs what is on its streams in any order that they allow, so that work which should have waited and
// did not finds wrong bytes for some seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ahead_fixture.h"
#include "ahead_scene.h"
#include "testing/fake_device.h"
#include "testing/sanitized.h"

namespace quire {
namespace {

using testing::FakeDevice;

class CacheAheadOnAccelerator : public CacheAheadTest {
 protected:
  ~CacheAheadOnAccelerator() override { close_all(); }
  void close_all() {
    if (device_) device_->hold(false);
    if (stream_.handle != nullptr) device_->destroy_stream(std::exchange(stream_, {}));
    close();
    if (device_) {
      EXPECT_EQ(device_->leak_count(), 0U);
    }
    device_.reset();
  }
  void open_on(SwapPath path, std::uint64_t seed, CacheConfig config) {
    close_all();
    device_ = std::make_unique<FakeDevice>(testing::FakeDeviceConfig{.seed = seed});
    config.device.accelerator = device_.get();
    config.device.memory = DeviceMemory::Accelerator;
    config.device.byte_layout = seed % 2 == 0 ? ByteLayout::PageFirst : ByteLayout::LayerFirst;
    config.host.staging_bytes = 2048;
    config.host.load_paths = SwapPaths{.few = path, .many = path};
    config.host.store_paths = config.host.load_paths;
    open(std::move(config));
    stream_ = device_->create_stream(StreamPriority::Low).value();
  }
  /// A kernel of the engine's that reads one layer of every page that an entry finds.
  [[nodiscard]] bool launch_layer(const Step& step, const AheadRequest& request, GroupLayer layer,
                                  std::uint32_t entry_index = 0) {
    const std::size_t place = place_of(step, entry_index);
    const Status launched = device_->launch(
        engine_->touched(step, place, layer),
        [this, &step, &request, layer, place] {
          const testing::LayerBytes::Answer answer = engine_->check(step, place, request.tokens, layer);
          ++(answer.is_right ? right_ : wrong_);
          checked_pages_ += answer.page_count;
        },
        stream_);
    return launched.has_value();
  }
  /// The whole step, as an engine puts it on its stream. True: nothing went wrong on the way.
  bool launch(const Step& step, const AheadRequest& request) {
    const std::vector<GroupLayer> layers = engine_->layers();
    return std::ranges::all_of(layers, [&](GroupLayer layer) {
      return cache_->wait_on(stream_, step, layer).has_value() && launch_layer(step, request, layer);
    });
  }

  std::unique_ptr<FakeDevice> device_;  // outlives the cache
  DeviceStream stream_;
  std::uint32_t right_ = 0;  // kernels
  std::uint32_t wrong_ = 0;
  std::uint32_t checked_pages_ = 0;
};

class CacheAheadOnPaths : public CacheAheadOnAccelerator, public ::testing::WithParamInterface<SwapPath> {};
INSTANTIATE_TEST_SUITE_P(Cache, CacheAheadOnPaths,
                         ::testing::Values(SwapPath::Whole, SwapPath::Staged, SwapPath::Direct), [](const auto& param) {
                           return std::string(param.param == SwapPath::Whole    ? "Whole"
                                              : param.param == SwapPath::Staged ? "Staged"
                                                                                : "Direct");
                         });

TEST_P(CacheAheadOnPaths, AStreamFindsEveryLayerWhateverTheOrderOfStreams) {
  const std::uint64_t seed_count = testing::kIsSanitized ? 10 : 60;
  const std::vector<GroupMix> mixes = ahead_mixes();
  for (std::uint64_t seed = 0; seed < seed_count && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const auto bands = static_cast<std::uint16_t>(1 + (seed % 7));
    CacheConfig config = ahead_config(mixes[seed % mixes.size()].groups, bands);
    config.host.transfer_pages_max = seed % 3 == 0 ? 2 : 64;  // more loads than are on streams at a time
    open_on(GetParam(), seed, std::move(config));
    const std::vector<TokenId> prompt = token_range(0, 40);
    put_on_host(prompt);
    AheadRequest request = ahead(with_tail(prompt, 1, 6));
    const Step step = plan({&request});
    EXPECT_FALSE(step.loads.empty());
    right_ = wrong_ = 0;
    EXPECT_TRUE(launch(step, request));
    ASSERT_TRUE(device_->synchronize(stream_));
    EXPECT_EQ(wrong_, 0U) << "a layer was read before it was there";
    EXPECT_EQ(right_, engine_->layers().size());
    drain(*cache_);
    EXPECT_TRUE(lost(step).empty());
    EXPECT_TRUE(launch(step, request)) << "there is nothing to wait for any more";
    ASSERT_TRUE(device_->synchronize(stream_));
    EXPECT_EQ(wrong_, 0U);
    compute(step, request);
    finish(step);
    EXPECT_EQ(view(request).computed_tokens, 46U);
    complete(request);
  }
  EXPECT_GT(checked_pages_, seed_count);
}

// As on a GPU: tests/gpu has the same scene.
TEST_P(CacheAheadOnPaths, AStreamCopiesLayersThatStillArrive) {
  std::uint32_t early_count = 0;
  for (std::uint64_t seed = 0; seed < (testing::kIsSanitized ? 4 : 12); ++seed) {
    testing::AheadScene scene{.path = GetParam(),
                              .byte_layout = seed % 2 == 0 ? ByteLayout::PageFirst : ByteLayout::LayerFirst,
                              .layer_bands = static_cast<std::uint16_t>(1 + (seed % 6)),
                              .transfer_pages_max = seed % 3 == 0 ? 4U : 64U};
    FakeDevice device({.seed = seed});
    EXPECT_EQ(testing::AheadSceneRun::run(device, scene), "") << seed;
    scene.hold_without_waiting = [&](bool is_held) { device.hold(is_held); };
    early_count += testing::AheadSceneRun::run(device, scene).empty() ? 0 : 1;
    EXPECT_EQ(device.leak_count(), 0U);
  }
  EXPECT_GT(early_count, 0U) << "the scene does not notice a stream that does not wait";
}

// Streams take four loads at a time: whoever waits for the fifth is let go when one of them is over.
TEST_P(CacheAheadOnPaths, TheHostWaitsUntilALoadIsOnItsStreams) {
  CacheConfig config = ahead_config({layered(full_group(), 6)}, 3);
  config.host.transfer_pages_max = 1;
  open_on(GetParam(), 7, std::move(config));
  put_on_host(token_range(0, 32));
  device_->hold(true);
  AheadRequest request = ahead(token_range(0, 37));
  const Step step = plan({&request});
  ASSERT_EQ(step.loads.size(), 8U);
  Status waits = fail(ErrorCode::Cancelled, "nobody has waited");
  std::thread waiter([&] { waits = cache_->wait_on(stream_, step, {0, 0}); });
  while (MoverPeer::blocked_count(mover()) == 0) std::this_thread::yield();
  device_->hold(false);
  waiter.join();
  EXPECT_TRUE(waits.has_value()) << waits.error().message;
  EXPECT_TRUE(launch(step, request));
  ASSERT_TRUE(device_->synchronize(stream_));
  EXPECT_EQ(wrong_, 0U);
  EXPECT_EQ(right_, 6U);
  drain(*cache_);
  finish(step);
  complete(request);
}

TEST_P(CacheAheadOnPaths, APausedMoverIsNotWaitedFor) {
  open_on(GetParam(), 3, ahead_config({layered(full_group(), 6)}, 3));
  put_on_host(token_range(0, 32));
  mover().pause();
  AheadRequest request = ahead(token_range(0, 37));
  const Step step = plan({&request});
  expect_error(cache_->wait_on(stream_, step, {0, 0}), ErrorCode::Unavailable, "the mover is paused");
  EXPECT_EQ(wait(step, {0, 0}, 0), TransferOutcome::TimedOut);
  mover().resume();
  EXPECT_TRUE(launch(step, request));
  ASSERT_TRUE(device_->synchronize(stream_));
  EXPECT_EQ(wrong_, 0U);
  drain(*cache_);
  compute(step, request);
  finish(step);
  complete(request);
}

TEST_P(CacheAheadOnPaths, AThreadMayWaitForLayersAsWell) {
  open_on(GetParam(), 4, ahead_config({layered(full_group(), 6), layered(window_group(10), 3)}, 3));
  put_on_host(token_range(0, 32));
  AheadRequest request = ahead(token_range(0, 37));
  const Step step = plan({&request});
  for (const GroupLayer layer : engine_->layers()) {
    EXPECT_EQ(wait(step, layer), TransferOutcome::Ok);
    EXPECT_TRUE(engine_->check(step, 0, request.tokens, layer).is_right);
  }
  drain(*cache_);
  compute(step, request);
  finish(step);
  complete(request);
}

TEST_P(CacheAheadOnPaths, WhatCannotBeWaitedForIsAnError) {
  open_on(GetParam(), 5, ahead_config({layered(full_group(), 6)}, 3));
  put_on_host(token_range(0, 32));
  device_->hold(true);
  AheadRequest request = ahead(token_range(0, 37));
  const Step step = plan({&request});
  expect_error(cache_->wait_on(stream_, step, {0, 6}), ErrorCode::InvalidArgument, "group 0 with a layer 6");
  expect_error(cache_->wait_on(stream_, step, {1, 0}), ErrorCode::InvalidArgument, "group 1 with a layer 0");
  expect_error(cache_->wait_on({}, step, {0, 0}), ErrorCode::InvalidArgument, "no such stream");
  device_->hold(false);
  drain(*cache_);
  compute(step, request);
  finish(step);
  complete(request);
}

TEST_P(CacheAheadOnPaths, ABadPageTakesTheEntryBack) {
  open_on(GetParam(), 6, ahead_config({layered(full_group(), 6)}, 3));
  put_on_host(token_range(0, 32));
  gate_.break_pieces([](const PieceStart& piece) {
    return piece.kind == TransferKind::Load && piece.page_index == 3 ? TransferFault::Generation : TransferFault::None;
  });
  AheadRequest request = ahead(token_range(0, 37));
  const Step step = plan({&request});
  expect_error(cache_->wait_on(stream_, step, {0, 0}), ErrorCode::Io, "has failed");
  drain(*cache_);
  gate_.break_pieces(nullptr);
  expect_error(cache_->wait_on(stream_, step, {0, 0}), ErrorCode::Io, "lost_entries()");
  EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
  finish(step);
  EXPECT_EQ(view(request).computed_tokens, 12U) << "three pages came";
  complete(request);
}

// An entry that is not lost is computed: the stream waits for its pages, whatever became of the other one's.
TEST_P(CacheAheadOnPaths, BehindALoadThatFailedTheOthersAreWaitedFor) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    open_on(GetParam(), seed, ahead_config({layered(full_group(), 6)}, 3));
    put_on_host(token_range(0, 16));
    AheadRequest warm = admitted(token_range(500, 16), {});
    complete(warm);
    forget_device();
    gate_.close([](const PieceStart& piece) { return piece.kind == TransferKind::Load; });
    AheadRequest bad = ahead(token_range(0, 18));
    AheadRequest good = ahead(token_range(500, 18));
    const Step step = plan({&bad, &good});
    ASSERT_EQ(step.loads.size(), 2U);
    const TransferId failing = gate_.wait_for_held().id;
    gate_.break_pieces(
        [failing](const PieceStart& piece) { return piece.id == failing ? TransferFault::Io : TransferFault::None; });
    gate_.open();
    right_ = wrong_ = 0;
    for (const GroupLayer layer : engine_->layers()) {
      expect_error(cache_->wait_on(stream_, step, layer), ErrorCode::Io, "has failed");
      EXPECT_TRUE(launch_layer(step, good, layer, 1));
    }
    ASSERT_TRUE(device_->synchronize(stream_));
    EXPECT_EQ(wrong_, 0U) << "seed " << seed;
    EXPECT_EQ(right_, 6U);
    drain(*cache_);
    EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
    compute(step, good, 1);
    finish(step);
    EXPECT_EQ(view(good).computed_tokens, 18U);
    gate_.break_pieces(nullptr);
    complete(good);
    complete(bad);
  }
}

TEST_P(CacheAheadOnPaths, StopLoadingIsToldToWhoeverWaits) {
  open_on(GetParam(), 8, ahead_config({layered(full_group(), 6)}, 3));
  put_on_host(token_range(0, 16));
  device_->hold(true);
  AheadRequest request = ahead(token_range(0, 18));
  const Step step = plan({&request});
  ASSERT_TRUE(cache_->wait_on(stream_, step, {0, 0}));
  ASSERT_TRUE(cache_->stop_loading(request.sequence));
  expect_invariants();
  EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
  device_->hold(false);
  drain(*cache_);
  expect_error(cache_->wait_on(stream_, step, {0, 0}), ErrorCode::Cancelled, "was cancelled");
  finish(step);
  complete(request);
}

// Whichever call of the device it is: a step that was planned is right or lost, and the request is served.
TEST_P(CacheAheadOnPaths, ADeviceThatFailsOnceTakesStepsBack) {
  std::uint32_t lost_count = 0;
  std::uint32_t good_count = 0;
  for (std::uint64_t call = 0; good_count < 3; call += testing::kIsSanitized ? 11 : 2) {
    ASSERT_LT(call, 2'000U);
    SCOPED_TRACE(call);
    CacheConfig config = ahead_config({layered(full_group(), 4), layered(window_group(6), 2)}, 2);
    config.host.transfer_pages_max = 4;
    open_on(GetParam(), call, std::move(config));
    put_on_host(token_range(0, 24));
    device_->fail_call_after(call);
    AheadRequest request = ahead(token_range(0, 26));
    const Step step = plan({&request});
    right_ = wrong_ = 0;
    (void)launch(step, request);
    while (!device_->synchronize(stream_)) continue;  // this may be the call that fails
    drain(*cache_);
    const bool is_lost = !lost(step).empty();
    if (!is_lost) {
      EXPECT_EQ(wrong_, 0U);
      compute(step, request);
    }
    ++(is_lost ? lost_count : good_count);
    finish(step);
    complete(request);
  }
  EXPECT_GT(lost_count, 0U);
  EXPECT_GT(good_count, 0U);
}

}  // namespace
}  // namespace quire
