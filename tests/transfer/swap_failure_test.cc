// SPDX-License-Identifier: Apache-2.0
//
// The device fails, at every call that it can fail at: nothing is left behind, nothing is left on its way, and the
// other direction goes on.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/swap.h"
#include "swap_fixture.h"
#include "testing/sanitized.h"

namespace quire {
namespace {

using testing::page_ids;
using testing::record_ids;
using testing::SwapForm;
using testing::SwapRig;

struct FailedSwap {
  SwapPath path = SwapPath::Whole;
  TransferKind kind = TransferKind::Load;
};

class SwapFailures : public ::testing::TestWithParam<FailedSwap> {
 protected:
  [[nodiscard]] SwapOrder order_on(const SwapStreams& streams) const {
    return {.kind = GetParam().kind,
            .device_pages = device_pages_,
            .records = records_,
            .band_count = 2,
            .streams = streams,
            .path = GetParam().path};
  }
  // The other direction, which has nothing to do with it.
  [[nodiscard]] SwapOrder other_on(const SwapStreams& streams) const {
    SwapOrder order = order_on(streams);
    order.kind = GetParam().kind == TransferKind::Load ? TransferKind::Store : TransferKind::Load;
    return order;
  }
  static SwapStreams add_streams(SwapRig& rig) {
    return {.copies = rig.add_stream(), .kernels = rig.add_stream(), .more_kernels = rig.add_stream()};
  }

  std::vector<PageId> device_pages_ = page_ids({5, 0, 6, 2, 3});
  std::vector<RecordId> records_ = record_ids({8, 1, 0, 7, 3});
};

INSTANTIATE_TEST_SUITE_P(Ways, SwapFailures,
                         ::testing::Values(FailedSwap{SwapPath::Whole, TransferKind::Load},
                                           FailedSwap{SwapPath::Whole, TransferKind::Store},
                                           FailedSwap{SwapPath::Staged, TransferKind::Load},
                                           FailedSwap{SwapPath::Staged, TransferKind::Store},
                                           FailedSwap{SwapPath::Direct, TransferKind::Load},
                                           FailedSwap{SwapPath::Direct, TransferKind::Store}),
                         [](const auto& way) {
                           return std::string(to_string(way.param.path)) +
                                  (way.param.kind == TransferKind::Load ? "_load" : "_store");
                         });

TEST(SwapOpenFailures, LeaveNothingBehind) {
  for (const bool is_measured : {false, true}) {
    for (const bool is_lost : {false, true}) {
      SwapRig rig({.layers = is_measured ? 1U : 2U,
                   .component_bytes = is_measured ? 140'000U : 16U,
                   .device_pages = 3,
                   .records = 3});
      std::uint64_t call = 0;
      const std::uint64_t stride = is_measured && testing::kIsSanitized ? 7 : 1;
      for (bool has_opened = false; !has_opened; call += stride) {
        SwapConfig config = rig.config();
        config.call_pages_max = 2;
        config.calls_in_flight_max = 1;
        if (is_measured) config.load_paths = std::nullopt;
        double now = 0;
        config.seconds = [&now] { return now += 1; };
        if (is_lost) rig.device().fail_calls_from(call);
        if (!is_lost) rig.device().fail_call_after(call);
        const auto engine = SwapEngine::open(config);
        has_opened = engine.has_value();
        if (has_opened) break;
        EXPECT_EQ(engine.error().code, ErrorCode::Io) << engine.error().message;
        EXPECT_EQ(rig.device().pending_count(), 0U) << call;
        EXPECT_EQ(rig.device().leak_count(), 1U) << "call " << call << ": only the rig's registration is left";
      }
      EXPECT_EQ(rig.difference(), "");
      EXPECT_GT(call, is_measured ? 200U : 20U);
    }
  }
}

TEST(SwapOpenFailures, OfMemoryAreSaid) {
  SwapRig rig({}, {.memory_bytes_max = 1024});
  const auto engine = SwapEngine::open(rig.config());
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(rig.device().leak_count(), 1U);
}

TEST_P(SwapFailures, WhileACallStartsEndIt) {
  std::uint64_t call = 0;
  for (bool has_started = false; !has_started; ++call) {
    SCOPED_TRACE("failing call " + std::to_string(call));
    SwapRig rig({}, {.seed = call});
    SwapEngine& engine = rig.open();
    const SwapStreams streams = add_streams(rig);
    // One that is on its way when the next one fails, with other pages.
    const std::vector<PageId> device_page = page_ids({1});
    const std::vector<RecordId> record = record_ids({4});
    SwapOrder first = order_on(streams);
    first.device_pages = device_page;
    first.records = record;
    SwapOrder second = order_on(streams);
    const DeviceEvent event = rig.device().create_event().value();
    ASSERT_TRUE(rig.device().record(event, streams.more_kernels).has_value());
    second.after = event;
    const SwapTicket ticket = engine.try_start(first).value().value();
    rig.twin_swap(first.kind, 1, 4);
    rig.device().fail_call_after(call);
    const auto started = engine.try_start(second);
    has_started = started.has_value();
    if (!has_started) {
      EXPECT_EQ(started.error().code, ErrorCode::Io);
      EXPECT_NE(started.error().message.find("the device was told to fail"), std::string::npos);
      EXPECT_EQ(rig.device().pending_count(), 0U);
      // The direction takes no more, and says why; what was on its way before can be finished.
      const std::uint64_t calls = rig.device().call_count();
      const auto refused = engine.try_start(first);
      ASSERT_FALSE(refused.has_value());
      EXPECT_EQ(refused.error().message, std::string("no more ") +
                                             (first.kind == TransferKind::Load ? "loads" : "stores") +
                                             ", since the device has failed: " + started.error().message);
      EXPECT_EQ(rig.device().call_count(), calls);
      EXPECT_TRUE(engine.is_done(ticket).value());
      EXPECT_EQ(engine.finish(ticket).value().good_pages, 1U);
      EXPECT_TRUE(first.kind == TransferKind::Load ? rig.has_twin_page(1, 0, rig.record_bytes())
                                                   : rig.has_twin_record(4));
      EXPECT_TRUE(engine.swap(other_on(streams)).has_value());
    }
    rig.close();
    EXPECT_EQ(rig.device().pending_count(), 0U);
    rig.device().destroy_event(event);
    EXPECT_EQ(rig.device().leak_count(), 4U) << "the rig's registration and three streams";
  }
  EXPECT_GT(call, 5U);
}

TEST_P(SwapFailures, OfADeviceThatIsLostEndBothDirections) {
  for (std::uint64_t call = 0; call < 12; ++call) {
    SwapRig rig({}, {.seed = call});
    SwapEngine& engine = rig.open();
    const SwapStreams streams = add_streams(rig);
    rig.device().fail_calls_from(call);
    (void)engine.swap(order_on(streams));
    EXPECT_FALSE(engine.swap(order_on(streams)).has_value());
    EXPECT_FALSE(engine.swap(other_on(streams)).has_value());
    rig.close();
    EXPECT_EQ(rig.device().leak_count(), 4U);
  }
}

TEST_P(SwapFailures, WhileACallIsFinishedEndIt) {
  SwapRig rig({});
  SwapEngine& engine = rig.open();
  const SwapStreams streams = add_streams(rig);
  rig.device().hold(true);
  const SwapTicket ticket = engine.try_start(order_on(streams)).value().value();
  // Asking may fail and leaves the call as it is.
  rig.device().fail_call_after(0);
  EXPECT_EQ(engine.is_done(ticket).error().code, ErrorCode::Io);
  rig.device().fail_call_after(0);
  EXPECT_EQ(engine.has_arrived(ticket, 1).error().code, ErrorCode::Io);
  rig.device().fail_call_after(0);
  EXPECT_EQ(engine.wait_on(streams.copies, ticket, 0).error().code, ErrorCode::Io);
  EXPECT_FALSE(engine.is_done(ticket).value());
  EXPECT_GT(rig.device().pending_count(), 0U);
  rig.device().fail_call_after(0);
  EXPECT_EQ(engine.finish(ticket).error().code, ErrorCode::Io);
  EXPECT_EQ(rig.device().pending_count(), 0U) << "what was begun has ended";
  EXPECT_EQ(engine.finish(ticket).error().code, ErrorCode::InvalidArgument) << "the ticket is spent";
  EXPECT_FALSE(engine.try_start(order_on(streams)).has_value());
  EXPECT_TRUE(engine.swap(other_on(streams)).has_value());
}

TEST_P(SwapFailures, WhileASwapIsWaitedForLoseNoTicket) {
  std::uint64_t started_calls = 0;
  {
    SwapRig rig({});
    SwapEngine& engine = rig.open();
    const SwapStreams streams = add_streams(rig);
    const std::uint64_t before = rig.device().call_count();
    ASSERT_TRUE(engine.try_start(order_on(streams)).value().has_value());
    started_calls = rig.device().call_count() - before;
  }
  // Every call behind the start may be the one that fails, until there is none.
  bool has_failed = true;
  for (std::uint64_t i = 0; has_failed; ++i) {
    SwapRig rig({}, {.seed = 1});
    SwapEngine& engine = rig.open();
    const SwapStreams streams = add_streams(rig);
    rig.device().fail_call_after(started_calls + i);
    const Result<SwapReport> report = engine.swap(order_on(streams));
    has_failed = !report.has_value();
    if (!has_failed) {
      EXPECT_GE(i, 2U) << "a wait, and finish()";
      break;
    }
    EXPECT_EQ(report.error().code, ErrorCode::Io);
    EXPECT_EQ(rig.device().pending_count(), 0U);
    EXPECT_NE(engine.swap(order_on(streams)).error().message.find("since the device has failed"), std::string::npos);
    // All that is left to do for the end has been done: it asks the device for nothing that can fail.
    const std::uint64_t calls = rig.device().call_count();
    rig.close();
    EXPECT_EQ(rig.device().call_count(), calls);
  }
}

}  // namespace
}  // namespace quire
