// SPDX-License-Identifier: Apache-2.0
//
// Which streams a mover with an accelerator puts its transfers on, and where its memory and its threads stand.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mover_fixture.h"
#include "store/host_region.h"
#include "store/numa_node.h"

namespace quire {
namespace {

class MoverStreams : public MoverTest {
 protected:
  MoverStreams() { use_accelerator(SwapPath::Whole); }

  /// Loads of a page each that are on their streams, and of which nothing has run.
  void start_held_loads(std::uint32_t count) {
    store(0, count, 50);
    accelerator_->hold(true);
    const DeviceStream stream = accelerator_->create_stream(StreamPriority::Low).value();
    for (std::uint32_t i = 0; i < count; ++i) {
      submit(i + 1, TransferKind::Load, {page(10 + i, 1 + i)});
      while (!mover_->wait_on(stream, id(i + 1), 0)) std::this_thread::yield();
    }
    busy_streams_ = accelerator_->busy_stream_count() - 1;  // and the one that waits
    accelerator_->hold(false);
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
      EXPECT_TRUE(device_->holds(PageId{10 + i}, 50 + i) || i + 1 < count);
    }
    for (std::uint32_t i = 0; i < count; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 50 + i));
    accelerator_->destroy_stream(stream);
  }

  std::size_t busy_streams_ = 0;
};

TEST_F(MoverStreams, AsManyAreMadeAsAskedForWithTheirPriority) {
  open();
  EXPECT_EQ(accelerator_->stream_count(StreamPriority::High), 6U) << "a set of three in each direction";
  config_.load_streams = {.set_count = 3, .priority = StreamPriority::Low};
  config_.store_streams = {.set_count = 2};
  open();
  EXPECT_EQ(accelerator_->stream_count(StreamPriority::Low), 9U);
  EXPECT_EQ(accelerator_->stream_count(StreamPriority::High), 6U);
  store(0, 5, 50);
}

TEST_F(MoverStreams, TransfersTakeSetsInTurn) {
  config_.checksums = false;  // so that a load is on one stream
  for (const std::uint32_t sets : {1U, 4U}) {
    config_.load_streams.set_count = sets;
    open();
    start_held_loads(4);
    EXPECT_EQ(busy_streams_, sets);
  }
}

TEST_F(MoverStreams, StreamsOfTheCallersAreUsedAndLeft) {
  open();
  close();
  std::vector<SwapStreams> given(2);
  for (SwapStreams& streams : given) {
    streams.copies = accelerator_->create_stream(StreamPriority::Low).value();
    streams.kernels = accelerator_->create_stream(StreamPriority::Low).value();  // and no second one
  }
  config_.load_streams = {.given = given};
  config_.store_streams = {.given = {{.copies = given[0].copies}}};
  for (const bool checksums : {true, false}) {
    config_.checksums = checksums;
    mover_ = Mover::open(config_).value();
    EXPECT_EQ(accelerator_->stream_count(StreamPriority::High), 0U);
    store(0, 5, 50);
    submit(1, TransferKind::Load, pages(10, 5));
    submit(2, TransferKind::Load, pages(20, 5));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
    for (std::uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(device_->holds(PageId{20 + i}, 50 + i));
    mover_.reset();
    EXPECT_EQ(accelerator_->stream_count(StreamPriority::Low), 4U);
  }
  for (const SwapStreams& streams : given) {
    accelerator_->destroy_stream(streams.copies);
    accelerator_->destroy_stream(streams.kernels);
  }
}

TEST_F(MoverStreams, OnSeveralSetsEveryByteIsRight) {
  for (const SwapPath path : {SwapPath::Whole, SwapPath::Staged, SwapPath::Direct}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(std::string(to_string(path)) + " " + std::to_string(seed));
      close();
      use_accelerator(path, seed);
      config_.load_streams = {.set_count = 4};
      config_.store_streams = {.set_count = 3};
      open();
      store(0, 12, 70);
      for (std::uint32_t i = 0; i < 6; ++i) {
        submit(i + 1, TransferKind::Load, {page(14 + (2 * i), 1 + (2 * i)), page(15 + (2 * i), 2 + (2 * i))}, 2);
      }
      for (int i = 0; i < 6; ++i) EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
      for (std::uint32_t i = 0; i < 12; ++i) EXPECT_TRUE(device_->holds(PageId{14 + i}, 70 + i));
    }
  }
}

TEST_F(MoverStreams, ADeviceThatFailsEndsTransfersOnAllSets) {
  config_.load_streams = {.set_count = 4};
  open();
  store(0, 4, 50);
  accelerator_->hold(true);
  for (std::uint32_t i = 0; i < 4; ++i) submit(i + 1, TransferKind::Load, {page(10 + i, 1 + i)});
  accelerator_->fail_calls_from(8);
  accelerator_->hold(false);
  for (int i = 0; i < 4; ++i) (void)next_completion();  // each has an end
  mover_.reset();
  accelerator_->fail_calls_from(UINT64_MAX);
}

TEST_F(MoverStreams, WhatMakesNoSenseIsRefused) {
  open();
  close();
  const auto refused = [this](const std::string& text) {
    expect_error(Mover::open(config_), ErrorCode::InvalidArgument, text);
  };
  config_.load_streams.set_count = 0;
  refused("load_streams.set_count is 0: give 1 to 4");
  config_.load_streams.set_count = 5;
  refused("load_streams.set_count is 5");
  config_.load_streams = {.priority = static_cast<StreamPriority>(7)};
  refused("load_streams.priority is 7");
  config_.load_streams = {};
  config_.store_streams.given = {SwapStreams{}};
  refused("store_streams.given[0].copies is missing");
  config_.store_streams.given.assign(5, {.copies = {.handle = &config_}});
  refused("store_streams.given has 5 sets");
  config_.store_streams.given.resize(1);
  config_.accelerator = nullptr;
  refused("that needs MoverConfig::accelerator");
}

// A machine whose nodes the test makes.
struct FakeMachine {
  static inline std::map<std::string, std::string> files;
  static inline std::vector<std::uint32_t> allowed;
  static inline std::vector<std::vector<std::uint32_t>> bound;
  static inline int bind_error = 0;
  static inline std::vector<std::uint32_t> preferred;
  static inline int prefer_error = 0;

  static void reset() {
    files = {{"/sys/bus/pci/devices/0000:3b:00.0/numa_node", "1\n"},
             {"/sys/devices/system/node/node0/cpulist", "0-3\n"},
             {"/sys/devices/system/node/node1/cpulist", "4-7\n"}};
    allowed = {0, 1, 2, 3, 4, 5, 6, 7};
    bound.clear();
    preferred.clear();
    bind_error = 0;
    prefer_error = 0;
  }
  static const NumaCalls& numa() {
    static constexpr NumaCalls kCalls{.read_text =
                                          [](const std::string& path) {
                                            const auto found = files.find(path);
                                            return found == files.end() ? std::string() : found->second;
                                          },
                                      .allowed_processors = [] { return allowed; },
                                      .bind_thread =
                                          [](pthread_t, std::span<const std::uint32_t> processors) {
                                            if (bind_error == 0)
                                              bound.emplace_back(processors.begin(), processors.end());
                                            return bind_error;
                                          }};
    return kCalls;
  }
  static const RegionCalls& region() {
    static const RegionCalls calls = [] {
      RegionCalls made = RegionCalls::real();
      made.prefer_node = [](void*, std::size_t, std::uint32_t node) {
        if (prefer_error != 0) {
          errno = prefer_error;
          return -1;
        }
        preferred.push_back(node);
        return 0;
      };
      return made;
    }();
    return calls;
  }
};

class MoverNuma : public MoverTest {
 protected:
  MoverNuma() {
    FakeMachine::reset();
    use_accelerator(SwapPath::Whole);
  }
  HostRegionStatus status_on(const std::string& pci_bus_id) {
    close();
    accelerator_ =
        std::make_unique<testing::FakeDevice>(testing::FakeDeviceConfig{.seed = 1, .pci_bus_id = pci_bus_id});
    return status(accelerator_.get());
  }
  HostRegionStatus status(Device* accelerator) {
    config_.accelerator = accelerator;
    device_ = std::make_unique<testing::TestDevice>(
        testing::TestDeviceShape{.layers = 4, .layer_bytes = 96, .pages = kDevicePages});
    adopt(*device_);
    config_.device_geometry = &device_->geometry();
    config_.device_memory = device_->memory();
    config_.host_page_count = kHostPages;
    mover_ = MoverPeer::open(config_, {.calls = &FakeMachine::region(), .numa = &FakeMachine::numa()}).value();
    store(0, 3, 50);  // it works, wherever it stands
    return mover_->host_region();
  }
};

TEST_F(MoverNuma, MemoryAndThreadsStandWhereTheAcceleratorDoes) {
  const HostRegionStatus status = status_on("0000:3B:00.0");
  EXPECT_EQ(status.numa_node, 1U);
  EXPECT_TRUE(status.is_on_numa_node);
  EXPECT_TRUE(status.has_bound_threads);
  EXPECT_EQ(status.refusals, "");
  EXPECT_EQ(FakeMachine::preferred, std::vector<std::uint32_t>{1});
  const std::vector<std::uint32_t> node{4, 5, 6, 7};
  EXPECT_EQ(FakeMachine::bound, (std::vector{node, node})) << "the thread of each direction";
}

TEST_F(MoverNuma, WhatTheCallerAsksForComesFirst) {
  config_.host_region.numa_node = 0;
  EXPECT_EQ(status_on("0000:3b:00.0").numa_node, 0U);
  EXPECT_EQ(FakeMachine::bound[0], (std::vector<std::uint32_t>{0, 1, 2, 3}));
  FakeMachine::reset();
  config_.host_region = {.huge_pages = false, .bind_threads = false};
  const HostRegionStatus status = status_on("0000:3b:00.0");
  EXPECT_TRUE(status.is_on_numa_node);
  EXPECT_FALSE(status.has_bound_threads);
  EXPECT_TRUE(FakeMachine::bound.empty());
}

TEST_F(MoverNuma, ThreadsThatCopyAreBoundToo) {
  config_.host_region.numa_node = 1;
  config_.load_thread_count = 2;
  close();
  accelerator_.reset();
  EXPECT_TRUE(status(nullptr).has_bound_threads);
  EXPECT_EQ(FakeMachine::bound.size(), 3U);
}

TEST_F(MoverNuma, WhereTheSystemDoesNotTellNothingIsAskedForAndNothingFails) {
  for (const std::string node : {"-1\n", "", "nonsense\n"}) {
    FakeMachine::reset();
    FakeMachine::files["/sys/bus/pci/devices/0000:3b:00.0/numa_node"] = node;
    const HostRegionStatus status = status_on("0000:3b:00.0");
    EXPECT_FALSE(status.numa_node) << node;
    EXPECT_FALSE(status.is_on_numa_node);
    EXPECT_FALSE(status.has_bound_threads);
    EXPECT_EQ(status.refusals, "");
  }
  FakeMachine::reset();
  EXPECT_FALSE(status_on("").numa_node) << "a device that does not know where it stands";
  EXPECT_TRUE(FakeMachine::preferred.empty());
}

TEST_F(MoverNuma, WhatTheSystemRefusesIsTold) {
  FakeMachine::prefer_error = EPERM;
  FakeMachine::bind_error = EINVAL;
  HostRegionStatus status = status_on("0000:3b:00.0");
  EXPECT_EQ(status.numa_node, 1U);
  EXPECT_FALSE(status.is_on_numa_node);
  EXPECT_FALSE(status.has_bound_threads);
  EXPECT_NE(status.refusals.find("NUMA node 1: mbind says"), std::string::npos) << status.refusals;
  EXPECT_NE(status.refusals.find("threads on NUMA node 1: Invalid argument"), std::string::npos) << status.refusals;
  FakeMachine::reset();
  FakeMachine::files.erase("/sys/devices/system/node/node1/cpulist");
  status = status_on("0000:3b:00.0");
  EXPECT_TRUE(status.is_on_numa_node);
  EXPECT_NE(status.refusals.find("does not tell its processors"), std::string::npos) << status.refusals;
  FakeMachine::reset();
  FakeMachine::allowed = {0, 1};
  status = status_on("0000:3b:00.0");
  EXPECT_NE(status.refusals.find("may run on none"), std::string::npos) << status.refusals;
}

}  // namespace
}  // namespace quire
