// SPDX-License-Identifier: Apache-2.0
//
// What a mover refuses, and what it says.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <functional>

#include "mover_fixture.h"

namespace quire {
namespace {

using MoverInput = MoverTest;

TEST_F(MoverInput, ConfigurationsThatMakeNoSenseAreErrors) {
  open();
  const MoverConfig good = config_;
  ASSERT_TRUE(good.validate().has_value());
  const auto refused = [&](const std::function<void(MoverConfig&)>& change, const std::string& text) {
    MoverConfig config = good;
    change(config);
    expect_error(config.validate(), ErrorCode::InvalidArgument, text);
    expect_error(Mover::open(config), ErrorCode::InvalidArgument, text);
  };
  refused([](MoverConfig& config) { config.device_geometry = nullptr; }, "device_geometry is missing");
  refused([](MoverConfig& config) { config.device_memory = nullptr; }, "device_memory is missing");
  refused([](MoverConfig& config) { config.host_page_count = 0; }, "host_page_count is 0: give 1 to 4294967294");
  refused([](MoverConfig& config) { config.host_page_count = UINT32_MAX; }, "host_page_count is 4294967295");
  refused([](MoverConfig& config) { config.load_thread_count = 0; }, "load_thread_count is 0: give 1 to 64");
  refused([](MoverConfig& config) { config.store_thread_count = 65; }, "store_thread_count is 65: give 1 to 64");
  refused([](MoverConfig& config) { config.queue_depth_max = 0; }, "queue_depth_max is 0");
  refused([](MoverConfig& config) { config.queue_depth_max = 1U << 31U; }, "queue_depth_max is 2147483648");
  refused([](MoverConfig& config) { config.transfer_pages_max = 0; }, "transfer_pages_max is 0");
}

TEST_F(MoverInput, AHostTierThatIsNotThereIsAnError) {
  open();
  static const RegionCalls kCalls = [] {
    RegionCalls calls = RegionCalls::real();
    calls.map = [](std::size_t, int) {
      errno = ENOMEM;
      return MAP_FAILED;
    };
    return calls;
  }();
  expect_error(MoverPeer::open(config_, {.calls = &kCalls}), ErrorCode::Unavailable, "of address space for host pages");
}

TEST_F(MoverInput, WhatTheSystemRefusesIsReported) {
  open();
  EXPECT_EQ(mover_->host_region().refusals, "");
  static const RegionCalls kCalls = [] {
    RegionCalls calls = RegionCalls::real();
    calls.lock = [](void*, std::size_t) {
      errno = EPERM;
      return -1;
    };
    return calls;
  }();
  config_.host_region.lock_memory = true;
  const std::unique_ptr<Mover> mover = MoverPeer::open(config_, {.calls = &kCalls}).value();
  EXPECT_FALSE(mover->host_region().is_locked);
  EXPECT_NE(mover->host_region().refusals.find("locked memory"), std::string::npos);
}

TEST_F(MoverInput, PagesOutsideThePoolsAreRefused) {
  open();
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    expect_error(try_submit(1, kind, {page(0, 1), page(kDevicePages, 2)}), ErrorCode::InvalidArgument,
                 "transfer 1.1 names device page 32: there are 32");
    expect_error(try_submit(1, kind, {page(0, 0)}), ErrorCode::InvalidArgument,
                 "names host page 0: ids lie in [1, 16]");
    expect_error(try_submit(1, kind, {page(0, kHostPages + 1)}), ErrorCode::InvalidArgument, "names host page 17");
    expect_error(try_submit(1, kind, {PageTransfer{}}), ErrorCode::InvalidArgument, "device page 4294967295");
  }
  EXPECT_FALSE(is_event_readable());
  EXPECT_EQ(try_submit(1, TransferKind::Store, {page(kDevicePages - 1, kHostPages)}), true);
  EXPECT_EQ(wait_for(1), TransferOutcome::Ok);
}

TEST_F(MoverInput, ATargetThatIsNamedTwiceIsRefused) {
  open();
  expect_error(try_submit(1, TransferKind::Load, {page(3, 1), page(4, 2), page(3, 5)}), ErrorCode::InvalidArgument,
               "transfer 1.1 has device page 3 twice as its target");
  expect_error(try_submit(1, TransferKind::Store, {page(3, 1), page(4, 1)}), ErrorCode::InvalidArgument,
               "transfer 1.1 has host page 1 twice as its target");
  EXPECT_EQ(try_submit(1, TransferKind::Store, {page(3, 1), page(3, 2)}), true) << "one source, two copies";
  EXPECT_EQ(wait_for(1), TransferOutcome::Ok);
  EXPECT_EQ(try_submit(2, TransferKind::Load, {page(3, 1), page(4, 1)}), true);
  EXPECT_EQ(wait_for(2), TransferOutcome::Ok);
}

TEST_F(MoverInput, PlansThatAreTooLargeAreRefused) {
  config_.transfer_pages_max = 3;
  open();
  expect_error(try_submit(1, TransferKind::Store, pages(0, 4)), ErrorCode::InvalidArgument,
               "transfer 1.1 has 4 pages: MoverConfig::transfer_pages_max is 3");
  EXPECT_EQ(try_submit(1, TransferKind::Store, pages(0, 3)), true);
  EXPECT_EQ(wait_for(1), TransferOutcome::Ok);
}

TEST_F(MoverInput, BandsWithoutLayersAreRefused) {
  open();
  expect_error(try_submit(1, TransferKind::Load, pages(0, 1), 0), ErrorCode::InvalidArgument, "has 0 bands");
  expect_error(try_submit(1, TransferKind::Load, pages(0, 1), 5), ErrorCode::InvalidArgument,
               "transfer 1.1 has 5 bands, and pages have 4 layers: give each band one at least");
  expect_error(try_submit(1, TransferKind::Load, {}, 5), ErrorCode::InvalidArgument, "has 5 bands");
}

TEST_F(MoverInput, UnknownKindsAndPrioritiesAreRefused) {
  open();
  expect_error(try_submit(1, static_cast<TransferKind>(2), {}), ErrorCode::InvalidArgument,
               "neither a load nor a store");
  expect_error(try_submit(1, TransferKind::Load, {}, 1, static_cast<TransferPriority>(2)), ErrorCode::InvalidArgument,
               "unknown priority");
}

TEST_F(MoverInput, AnIdThatIsQueuedOrRunningIsRefused) {
  open();
  gate_.close();
  submit(1, TransferKind::Store, pages(0, 1));
  gate_.wait_for_held();
  submit(2, TransferKind::Store, {page(0, 2)});
  for (const std::uint32_t index : {1U, 2U}) {
    expect_error(try_submit(index, TransferKind::Load, pages(9, 1)), ErrorCode::InvalidArgument,
                 "transfer " + std::to_string(index) + ".1 is queued or running");
  }
  gate_.open();
  EXPECT_EQ(wait_for(2), TransferOutcome::Ok);
  EXPECT_EQ(try_submit(2, TransferKind::Load, pages(9, 1)), true) << "its transfer is over";
  EXPECT_EQ(wait_for(2), TransferOutcome::Ok);
}

TEST_F(MoverInput, WaitingForWhatIsNotThereIsAnError) {
  config_.queue_depth_max = 1;
  open();
  expect_error(mover_->wait(id(1), 0, kLongNs), ErrorCode::InvalidArgument, "transfer 1.1 is unknown");
  submit(1, TransferKind::Store, pages(0, 1), 2);
  EXPECT_EQ(wait_for(1, 1), TransferOutcome::Ok);
  expect_error(mover_->wait(id(1), 2, kLongNs), ErrorCode::InvalidArgument,
               "transfer 1.1 has 2 bands: there is no band 2");
  expect_error(mover_->wait({.index = 1, .generation = 2}, 0, 0), ErrorCode::InvalidArgument,
               "transfer 1.2 is unknown");
  EXPECT_EQ(next_completion().id, id(1));
  for (std::uint32_t i = 100; i < 2000; ++i) {
    submit(i, TransferKind::Store, {});
    EXPECT_EQ(next_completion().id, id(i));
  }
  expect_error(mover_->wait(id(1), 0, 0), ErrorCode::InvalidArgument,
               "is forgotten, as all are when 1024 others have ended");
  EXPECT_FALSE(mover_->cancel(id(1)));
}

}  // namespace
}  // namespace quire
