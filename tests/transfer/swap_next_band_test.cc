// SPDX-License-Identifier: Apache-2.0
//
// A SwapEngine that puts a call on its streams band by band: what is there by then, what is said of the rest, and what
// becomes of the call when the device fails in between.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quire/swap.h"
#include "swap_fixture.h"

namespace quire {
namespace {

using testing::page_ids;
using testing::record_ids;
using testing::SwapRig;

struct BandWay {
  SwapPath path = SwapPath::Whole;
  TransferKind kind = TransferKind::Load;
};

class SwapNextBand : public ::testing::TestWithParam<BandWay> {
 protected:
  static constexpr std::uint32_t kLayers = 4;
  static constexpr std::uint32_t kBands = 3;  // layers [0, 1), [1, 2), [2, 4)

  static SwapStreams add_streams(SwapRig& rig) {
    return {.copies = rig.add_stream(), .kernels = rig.add_stream(), .more_kernels = rig.add_stream()};
  }
  [[nodiscard]] SwapOrder order_on(const SwapStreams& streams) const {
    return {.kind = GetParam().kind,
            .device_pages = device_pages_,
            .records = records_,
            .band_count = kBands,
            .band_by_band = true,
            .streams = streams,
            .path = GetParam().path};
  }
  void twin_swap(SwapRig& rig) const {
    for (std::size_t i = 0; i < device_pages_.size(); ++i) {
      rig.twin_swap(GetParam().kind, device_pages_[i].value, records_[i].value);
    }
  }
  static Result<SwapReport> ask_and_finish(SwapEngine& engine, SwapTicket ticket) {
    while (true) {
      QUIRE_TRY_ASSIGN(const bool is_done, engine.is_done(ticket));
      if (is_done) return engine.finish(ticket);
    }
  }
  template <typename T>
  static void expect_error(const Result<T>& result, ErrorCode code, const std::string& text) {
    ASSERT_FALSE(result.has_value()) << "not refused: " << text;
    EXPECT_EQ(result.error().code, code);
    EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
  }

  std::vector<PageId> device_pages_ = page_ids({5, 0, 6, 2, 3});
  std::vector<RecordId> records_ = record_ids({8, 1, 0, 7, 3});
};

INSTANTIATE_TEST_SUITE_P(
    Ways, SwapNextBand,
    ::testing::Values(BandWay{SwapPath::Whole, TransferKind::Load}, BandWay{SwapPath::Whole, TransferKind::Store},
                      BandWay{SwapPath::Staged, TransferKind::Load}, BandWay{SwapPath::Staged, TransferKind::Store},
                      BandWay{SwapPath::Direct, TransferKind::Load}, BandWay{SwapPath::Direct, TransferKind::Store}),
    [](const auto& way) {
      return std::string(to_string(way.param.path)) + (way.param.kind == TransferKind::Load ? "_load" : "_store");
    });

TEST_P(SwapNextBand, WhatIsNotOnTheStreamsHasNotArrived) {
  SwapRig rig({.layers = kLayers});
  SwapEngine& engine = rig.open();
  const SwapStreams streams = add_streams(rig);
  // So that all events of the call's place have happened once.
  ASSERT_TRUE(engine.swap(order_on(streams)).has_value());
  twin_swap(rig);
  ASSERT_EQ(rig.difference(), "");
  for (std::uint32_t page = 0; page < 7; ++page) {
    rig.for_each_piece(page, 0, rig.record_bytes(), [&](auto place, auto at, auto bytes) {
      if (GetParam().kind == TransferKind::Store) testing::fill_swap_bytes({rig.pages() + place, bytes}, 50 + page, at);
    });
    if (GetParam().kind == TransferKind::Load) {
      testing::fill_swap_bytes({rig.record(records_[page % 5].value), rig.record_bytes()}, 50 + page);
    }
  }
  rig.sync_twin();
  const SwapTicket ticket = engine.try_start(order_on(streams)).value().value();
  twin_swap(rig);
  for (std::uint32_t started = 1; started <= kBands; ++started) {
    EXPECT_EQ(engine.band_events(ticket).value().size(), started);
    rig.device().drain();
    for (std::uint32_t band = 0; band < started; ++band) EXPECT_TRUE(engine.has_arrived(ticket, band).value());
    if (started == kBands) break;
    const std::uint64_t calls = rig.device().call_count();
    EXPECT_FALSE(engine.has_arrived(ticket, started).value());
    EXPECT_FALSE(engine.has_arrived(ticket, kBands - 1).value());
    expect_error(engine.wait_on(streams.copies, ticket, started), ErrorCode::Unavailable,
                 "band " + std::to_string(started) + " of the swap is not on its streams, where " +
                     std::to_string(started) + " are by now");
    expect_error(engine.wait_on(streams.copies, ticket, kBands), ErrorCode::InvalidArgument, "there is no band 3");
    EXPECT_FALSE(engine.is_done(ticket).value());
    expect_error(engine.finish(ticket), ErrorCode::Unavailable,
                 std::to_string(started) + " of 3 bands of the swap are on its streams: start_next_band() first");
    EXPECT_EQ(rig.device().call_count(), calls);
    const std::uint64_t end = rig.page().layer_bytes() * started;
    for (std::size_t i = 0; i < device_pages_.size() && GetParam().kind == TransferKind::Load; ++i) {
      EXPECT_TRUE(rig.has_twin_page(device_pages_[i].value, 0, end));
      EXPECT_FALSE(rig.has_twin_page(device_pages_[i].value, 0, rig.record_bytes()));
    }
    EXPECT_NE(rig.difference(), "");
    EXPECT_TRUE(engine.start_next_band(ticket).value());
  }
  EXPECT_FALSE(engine.start_next_band(ticket).value()) << "all are there";
  EXPECT_EQ(engine.finish(ticket).value().good_pages, 5U);
  EXPECT_EQ(rig.difference(), "");
  expect_error(engine.start_next_band(ticket), ErrorCode::InvalidArgument, "unknown");
  expect_error(engine.band_events(ticket), ErrorCode::InvalidArgument, "unknown");
}

// With its own streams or with the same: nothing that a call needs between its bands is the direction's.
TEST_P(SwapNextBand, OtherCallsMayComeBetweenTwoBands) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SwapRig rig({.layers = kLayers, .ring_pages = 1 + (seed % 2), .slot_pages = 1}, {.seed = seed});
    SwapEngine& engine = rig.open();
    const SwapStreams streams = add_streams(rig);
    const SwapStreams others = seed % 4 < 2 ? add_streams(rig) : streams;
    const SwapTicket ticket = engine.try_start(order_on(streams)).value().value();
    twin_swap(rig);
    const std::vector<PageId> pages = page_ids({1, 4});
    const std::vector<RecordId> records = record_ids({2, 6});
    SwapOrder between = order_on(others);
    between.device_pages = pages;
    between.records = records;
    between.band_by_band = false;
    for (std::size_t i = 0; i < 2; ++i) rig.twin_swap(between.kind, pages[i].value, records[i].value);
    const SwapTicket other = engine.try_start(between).value().value();
    EXPECT_TRUE(engine.start_next_band(ticket).value());
    EXPECT_EQ(ask_and_finish(engine, other).value().good_pages, 2U);
    EXPECT_TRUE(engine.start_next_band(ticket).value());
    const SwapReport report = ask_and_finish(engine, ticket).value();
    for (std::size_t i = 0; i < records_.size(); ++i) {
      EXPECT_EQ(report.checksums[i], rig.twin_checksum(records_[i].value)) << seed;
    }
    EXPECT_EQ(rig.difference(), "") << seed;
  }
}

TEST_P(SwapNextBand, SwapPutsThemAll) {
  SwapRig rig({.layers = kLayers});
  SwapEngine& engine = rig.open();
  EXPECT_EQ(engine.swap(order_on(add_streams(rig))).value().good_pages, 5U);
  twin_swap(rig);
  EXPECT_EQ(rig.difference(), "");
}

// An event of a band is one that anybody may wait for, with the device's own means.
TEST_P(SwapNextBand, EventsOfBandsAreThoseThatStreamsWaitFor) {
  if (GetParam().kind == TransferKind::Store) return;
  SwapRig rig({.layers = kLayers});
  SwapEngine& engine = rig.open();
  for (const std::uint32_t bands : {1U, kBands}) {
    SwapOrder order = order_on(add_streams(rig));
    order.band_count = bands;
    order.band_by_band = false;
    const DeviceStream compute = rig.add_stream();
    rig.device().hold(true);
    const SwapTicket ticket = engine.try_start(order).value().value();
    twin_swap(rig);
    const std::vector<DeviceEvent> events = [&] {
      const auto all = engine.band_events(ticket).value();
      return std::vector(all.begin(), all.end());
    }();
    ASSERT_EQ(events.size(), bands);
    for (std::uint32_t band = 0; band < bands; ++band) {
      ASSERT_TRUE(rig.device().wait(compute, events[band]).has_value());
      ASSERT_TRUE(rig.device().synchronize(compute).has_value());
      const std::uint64_t end = rig.page().layer_bytes() * (kLayers * (band + 1) / bands);
      for (const PageId page : device_pages_) EXPECT_TRUE(rig.has_twin_page(page.value, 0, end));
    }
    rig.device().hold(false);
    EXPECT_TRUE(ask_and_finish(engine, ticket).has_value());
  }
}

TEST_P(SwapNextBand, DestroyingTheEngineWaitsForTheBandsThatAreThere) {
  SwapRig rig({.layers = kLayers});
  SwapEngine& engine = rig.open();
  const SwapStreams streams = add_streams(rig);
  rig.device().hold(true);
  const SwapTicket ticket = engine.try_start(order_on(streams)).value().value();
  EXPECT_TRUE(engine.start_next_band(ticket).value());
  EXPECT_GT(rig.device().pending_count(), 0U);
  rig.close();
  EXPECT_EQ(rig.device().pending_count(), 0U);
  EXPECT_EQ(rig.device().leak_count(), 4U) << "the rig's registration and three streams";
}

// At every call of the device that a band takes, the last one's end included.
TEST_P(SwapNextBand, ADeviceThatFailsAtABandEndsTheCallAndItsDirection) {
  for (std::uint32_t failing = 1; failing < kBands; ++failing) {
    std::uint64_t call = 0;
    for (bool has_started = false; !has_started; ++call) {
      SCOPED_TRACE("band " + std::to_string(failing) + ", failing call " + std::to_string(call));
      SwapRig rig({.layers = kLayers}, {.seed = call});
      SwapEngine& engine = rig.open();
      const SwapStreams streams = add_streams(rig);
      // One that is on its way, and one that lacks bands.
      const std::vector<PageId> pages = page_ids({1, 4});
      const std::vector<RecordId> records = record_ids({2, 6});
      SwapOrder order = order_on(streams);
      order.device_pages = std::span(pages).first(1);
      order.records = std::span(records).first(1);
      order.band_by_band = false;
      const SwapTicket all_there = engine.try_start(order).value().value();
      rig.twin_swap(order.kind, 1, 2);
      order.device_pages = std::span(pages).last(1);
      order.records = std::span(records).last(1);
      order.band_by_band = true;
      const SwapTicket one_there = engine.try_start(order).value().value();
      const SwapTicket ticket = engine.try_start(order_on(streams)).value().value();
      for (std::uint32_t band = 1; band < failing; ++band) ASSERT_TRUE(engine.start_next_band(ticket).value());
      rig.device().fail_call_after(call);
      const Result<bool> started = engine.start_next_band(ticket);
      has_started = started.has_value();
      if (!has_started) {
        expect_error(started, ErrorCode::Io, "the device was told to fail");
        EXPECT_EQ(rig.device().pending_count(), 0U);
        expect_error(engine.is_done(ticket), ErrorCode::InvalidArgument, "unknown");
        const std::string why = std::string("no more ") + (order.kind == TransferKind::Load ? "loads" : "stores") +
                                ", since the device has failed: " + started.error().message;
        expect_error(engine.start_next_band(one_there), ErrorCode::Io, why);
        expect_error(engine.is_done(one_there), ErrorCode::InvalidArgument, "unknown");
        expect_error(engine.try_start(order), ErrorCode::Io, why);
        EXPECT_TRUE(engine.is_done(all_there).value());
        EXPECT_EQ(engine.finish(all_there).value().good_pages, 1U);
        EXPECT_TRUE(order.kind == TransferKind::Load ? rig.has_twin_page(1, 0, rig.record_bytes())
                                                     : rig.has_twin_record(2));
        SwapOrder other = order_on(streams);
        other.kind = order.kind == TransferKind::Load ? TransferKind::Store : TransferKind::Load;
        EXPECT_TRUE(engine.swap(other).has_value());
      }
      rig.close();
      EXPECT_EQ(rig.device().pending_count(), 0U);
      EXPECT_EQ(rig.device().leak_count(), 4U);
    }
    EXPECT_GT(call, 2U);
  }
}

}  // namespace
}  // namespace quire
