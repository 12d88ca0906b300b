// SPDX-License-Identifier: Apache-2.0
//
// SwapEngine on a device in plain memory: what arrives, what stays as it is, and what is refused.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/swap.h"
#include "swap_fixture.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::page_ids;
using testing::Random;
using testing::record_ids;
using testing::SwapForm;
using testing::SwapRig;
using testing::SwapShape;

constexpr std::array kAllPaths = {SwapPath::Whole, SwapPath::Staged, SwapPath::Direct};
constexpr std::array kBothKinds = {TransferKind::Load, TransferKind::Store};
constexpr std::array kAllForms = {SwapForm::PageFirst, SwapForm::LayerFirst, SwapForm::KvApart};

// Asks until the call is done: the device goes on a little each time.
Result<SwapReport> ask_and_finish(SwapEngine& engine, SwapTicket ticket) {
  while (true) {
    QUIRE_TRY_ASSIGN(const bool is_done, engine.is_done(ticket));
    if (is_done) return engine.finish(ticket);
  }
}

// ── what arrives ───────────────────────────────────────────────────────────────────────────────────────────────

// Every way, direction, number of bands and set of streams for one shape, each compared with the twin in every byte.
void swap_all_ways(const SwapShape& shape, bool checksums, std::uint64_t seed) {
  SwapRig rig(shape, {.seed = seed});
  SwapConfig config = rig.config();
  config.checksums = checksums;
  SwapEngine& engine = rig.open(config);
  const std::array streams = {rig.add_stream(), rig.add_stream(), rig.add_stream()};
  const std::vector<PageId> device_pages = page_ids({5, 0, 6, 2, 3});
  const std::vector<RecordId> records = record_ids({8, 1, 0, 7, 3});
  ASSERT_EQ(engine.record_bytes(), rig.record_bytes());
  for (const SwapPath path : kAllPaths) {
    for (const TransferKind kind : kBothKinds) {
      for (const std::uint32_t bands : {1U, 2U, shape.layers}) {
        for (std::size_t stream_count = 1; stream_count <= 3; ++stream_count) {
          SCOPED_TRACE(std::string(to_string(path)) + (kind == TransferKind::Load ? " load, " : " store, ") +
                       std::to_string(bands) + " bands, " + std::to_string(stream_count) + " streams");
          // New bytes at the source, so that nothing of an earlier round is taken for this one's.
          for (std::size_t i = 0; i < device_pages.size(); ++i) {
            const std::uint64_t content = ++seed * 1000;
            rig.for_each_piece(device_pages[i].value, 0, rig.record_bytes(), [&](auto place, auto at, auto bytes) {
              std::byte* const first =
                  kind == TransferKind::Load ? rig.record(records[i].value) + at : rig.pages() + place;
              testing::fill_swap_bytes({first, bytes}, content, at);
            });
          }
          rig.sync_twin();
          const Result<std::optional<SwapTicket>> ticket =
              engine.try_start({.kind = kind,
                                .device_pages = device_pages,
                                .records = records,
                                .band_count = bands,
                                .streams = {.copies = streams[0],
                                            .kernels = stream_count > 1 ? streams[1] : DeviceStream{},
                                            .more_kernels = stream_count > 2 ? streams[2] : DeviceStream{}},
                                .path = path});
          ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
          ASSERT_TRUE(ticket->has_value());
          const Result<SwapReport> report = ask_and_finish(engine, **ticket);
          ASSERT_TRUE(report.has_value()) << report.error().message;
          for (std::size_t i = 0; i < device_pages.size(); ++i) {
            rig.twin_swap(kind, device_pages[i].value, records[i].value);
          }
          ASSERT_EQ(rig.difference(), "");
          EXPECT_EQ(report->page_count, device_pages.size());
          EXPECT_EQ(report->good_pages, device_pages.size());
          ASSERT_EQ(report->checksums.size(), checksums ? device_pages.size() : 0);
          for (std::size_t i = 0; i < report->checksums.size(); ++i) {
            EXPECT_EQ(report->checksums[i], rig.twin_checksum(records[i].value));
          }
        }
      }
    }
  }
  rig.close();
  EXPECT_EQ(rig.device().pending_count(), 0U);
}

struct SwapSize {
  std::uint32_t component_bytes = 0;
  std::uint32_t first_byte = 0;
  std::uint32_t stride_unit = 0;
};

class SwapSizes : public ::testing::TestWithParam<SwapSize> {};

TEST_P(SwapSizes, ArriveAsTheyAreAndNothingElseChanges) {
  const SwapSize size = GetParam();
  for (const SwapForm form : kAllForms) {
    for (const bool checksums : {true, false}) {
      SCOPED_TRACE("form " + std::to_string(static_cast<int>(form)) + (checksums ? ", checksums" : ""));
      swap_all_ways({.form = form,
                     .component_bytes = size.component_bytes,
                     .first_byte = size.first_byte,
                     .stride_unit = size.stride_unit},
                    checksums, size.component_bytes + size.first_byte);
    }
  }
}

// Accesses of 16, 4 and 1 bytes: addresses, distances and lengths decide together.
INSTANTIATE_TEST_SUITE_P(Sizes, SwapSizes,
                         ::testing::Values(SwapSize{1, 0, 1}, SwapSize{1, 3, 16}, SwapSize{3, 0, 16}, SwapSize{3, 1, 1},
                                           SwapSize{4, 0, 4}, SwapSize{4, 0, 16}, SwapSize{4, 2, 4},
                                           SwapSize{12, 0, 16}, SwapSize{12, 4, 4}, SwapSize{16, 0, 16},
                                           SwapSize{16, 4, 16}, SwapSize{16, 1, 16}, SwapSize{4096, 0, 16},
                                           SwapSize{4096, 4, 4}, SwapSize{4097, 0, 1}, SwapSize{4097, 0, 64},
                                           SwapSize{18432, 0, 64}, SwapSize{18432, 8, 8}),
                         [](const auto& size) {
                           return std::to_string(size.param.component_bytes) + "From" +
                                  std::to_string(size.param.first_byte) + "Every" +
                                  std::to_string(size.param.stride_unit);
                         });

class SwapEngineTest : public ::testing::Test {
 protected:
  void open(const SwapConfig& config) {
    rig_.open(config);
    if (streams_.copies.handle != nullptr) return;
    streams_ = {.copies = rig_.add_stream(), .kernels = rig_.add_stream(), .more_kernels = rig_.add_stream()};
  }
  void open() { open(rig_.config()); }
  [[nodiscard]] SwapOrder order(TransferKind kind, SwapPath path) const {
    return {.kind = kind, .device_pages = device_pages_, .records = records_, .streams = streams_, .path = path};
  }
  void twin_swap(TransferKind kind) {
    for (std::size_t i = 0; i < device_pages_.size(); ++i) {
      rig_.twin_swap(kind, device_pages_[i].value, records_[i].value);
    }
  }

  SwapRig rig_{SwapShape{}};
  SwapStreams streams_;
  std::vector<PageId> device_pages_ = page_ids({5, 0, 6, 2, 3});
  std::vector<RecordId> records_ = record_ids({8, 1, 0, 7, 3});
};

TEST_F(SwapEngineTest, SwapWaitsAndFinishes) {
  open();
  for (const SwapPath path : kAllPaths) {
    for (const TransferKind kind : kBothKinds) {
      const Result<SwapReport> report = rig_.engine().swap(order(kind, path));
      ASSERT_TRUE(report.has_value()) << report.error().message;
      twin_swap(kind);
      EXPECT_EQ(rig_.difference(), "");
      EXPECT_EQ(report->good_pages, 5U);
    }
  }
}

TEST_F(SwapEngineTest, ACallOfNoPagesIsDoneAndGood) {
  for (const bool checksums : {true, false}) {
    SwapConfig config = rig_.config();
    config.checksums = checksums;
    open(config);
    for (const SwapPath path : kAllPaths) {
      for (const TransferKind kind : kBothKinds) {
        const Result<SwapReport> report =
            rig_.engine().swap({.kind = kind, .band_count = 3, .streams = streams_, .path = path});
        ASSERT_TRUE(report.has_value()) << report.error().message;
        EXPECT_EQ(report->page_count, 0U);
        EXPECT_EQ(report->good_pages, 0U);
        EXPECT_TRUE(report->checksums.empty());
      }
    }
    EXPECT_EQ(rig_.difference(), "");
    rig_.close();
  }
}

TEST_F(SwapEngineTest, OneRecordMayBeLoadedToSeveralPages) {
  open();
  records_ = record_ids({4, 4, 1, 4, 1});
  for (const SwapPath path : kAllPaths) {
    ASSERT_TRUE(rig_.engine().swap(order(TransferKind::Load, path)).has_value());
    twin_swap(TransferKind::Load);
    EXPECT_EQ(rig_.difference(), "");
  }
}

TEST_F(SwapEngineTest, FewPagesGoOneWayAndManyAnother) {
  SwapConfig config = rig_.config();
  config.checksums = false;
  config.load_paths = SwapPaths{.few = SwapPath::Direct, .few_pages_max = 2, .many = SwapPath::Whole};
  config.store_paths = SwapPaths{.few = SwapPath::Whole, .few_pages_max = 1, .many = SwapPath::Direct};
  open(config);
  EXPECT_EQ(rig_.engine().paths(TransferKind::Load), *config.load_paths);
  EXPECT_EQ(rig_.engine().paths(TransferKind::Store), *config.store_paths);
  const auto kernels_of = [&](TransferKind kind, std::size_t page_count) {
    const std::uint64_t before = rig_.device().kernel_count();
    EXPECT_TRUE(rig_.engine()
                    .swap({.kind = kind,
                           .device_pages = std::span(device_pages_).first(page_count),
                           .records = std::span(records_).first(page_count),
                           .streams = streams_})
                    .has_value());
    return rig_.device().kernel_count() - before;
  };
  EXPECT_EQ(kernels_of(TransferKind::Load, 2), 1U);
  EXPECT_EQ(kernels_of(TransferKind::Load, 3), 0U);
  EXPECT_EQ(kernels_of(TransferKind::Store, 1), 0U);
  EXPECT_EQ(kernels_of(TransferKind::Store, 2), 1U);
}

// ── tickets ────────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(SwapEngineTest, AsManyCallsAsAllowedAreOnTheirWayAndThenNone) {
  open();
  rig_.device().hold(true);
  std::vector<SwapTicket> tickets;
  for (std::uint32_t i = 0; i < 3; ++i) {
    const std::vector<PageId> page = page_ids({i});
    const std::vector<RecordId> record = record_ids({i});
    tickets.push_back(
        rig_.engine().try_start({.device_pages = page, .records = record, .streams = streams_}).value().value());
  }
  const std::vector<PageId> page = page_ids({4});
  const std::vector<RecordId> record = record_ids({4});
  const SwapOrder one_more{.device_pages = page, .records = record, .streams = streams_};
  const std::uint64_t calls = rig_.device().call_count();
  EXPECT_FALSE(rig_.engine().try_start(one_more).value().has_value());
  EXPECT_EQ(rig_.engine().swap(one_more).error().code, ErrorCode::Unavailable);
  EXPECT_EQ(rig_.device().call_count(), calls);
  // The other direction has room of its own.
  ASSERT_TRUE(
      rig_.engine()
          .try_start({.kind = TransferKind::Store, .device_pages = page, .records = record, .streams = streams_})
          .value()
          .has_value());
  EXPECT_EQ(rig_.engine().finish(tickets[1]).error().code, ErrorCode::Unavailable) << "it is on its way";
  rig_.device().hold(false);
  EXPECT_TRUE(ask_and_finish(rig_.engine(), tickets[1]).has_value());
  const SwapTicket next = rig_.engine().try_start(one_more).value().value();
  EXPECT_EQ(next.index, tickets[1].index);
  EXPECT_NE(next.generation, tickets[1].generation);
}

TEST_F(SwapEngineTest, ATicketIsSpentWhenItsCallIsFinished) {
  open();
  const SwapTicket ticket = rig_.engine().try_start(order(TransferKind::Load, SwapPath::Direct)).value().value();
  ASSERT_TRUE(ask_and_finish(rig_.engine(), ticket).has_value());
  const std::uint64_t calls = rig_.device().call_count();
  EXPECT_EQ(rig_.engine().finish(ticket).error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(rig_.engine().is_done(ticket).error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(rig_.engine().has_arrived(ticket, 0).error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(rig_.engine().wait_on(streams_.copies, ticket, 0).error().code, ErrorCode::InvalidArgument);
  EXPECT_FALSE(rig_.engine().is_done({}).has_value());
  EXPECT_FALSE(rig_.engine().is_done({.index = 99}).has_value());
  EXPECT_FALSE(rig_.engine().is_done({.kind = TransferKind::FlushBelow}).has_value());
  EXPECT_EQ(rig_.device().call_count(), calls);
  // The call that has its place now is not meant by it.
  const SwapTicket next = rig_.engine().try_start(order(TransferKind::Load, SwapPath::Direct)).value().value();
  EXPECT_EQ(next.index, ticket.index);
  EXPECT_FALSE(rig_.engine().is_done(ticket).has_value());
  EXPECT_TRUE(ask_and_finish(rig_.engine(), next).has_value());
}

TEST_F(SwapEngineTest, BandsArriveInOrderEachWithAllPages) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    for (const SwapPath path : kAllPaths) {
      SwapRig rig({.layers = 4}, {.seed = seed});
      SwapEngine& engine = rig.open();
      const SwapStreams streams{
          .copies = rig.add_stream(), .kernels = rig.add_stream(), .more_kernels = rig.add_stream()};
      SwapOrder load = order(TransferKind::Load, path);
      load.streams = streams;
      load.band_count = 3;
      const SwapTicket ticket = engine.try_start(load).value().value();
      EXPECT_FALSE(engine.has_arrived(ticket, 3).has_value()) << "there are three";
      EXPECT_FALSE(engine.wait_on(streams.copies, ticket, 3).has_value());
      for (std::size_t i = 0; i < device_pages_.size(); ++i) {
        rig.twin_swap(TransferKind::Load, device_pages_[i].value, records_[i].value);
      }
      // Layers [0, 1), [1, 2), [2, 4).
      const std::uint64_t layer_bytes = rig.page().layer_bytes();
      const std::array<std::uint64_t, 3> ends = {layer_bytes, 2 * layer_bytes, 4 * layer_bytes};
      for (std::uint32_t band = 0; band < 3; ++band) {
        while (!engine.has_arrived(ticket, band).value()) {
        }
        for (const PageId page : device_pages_) EXPECT_TRUE(rig.has_twin_page(page.value, 0, ends[band]));
      }
      EXPECT_TRUE(ask_and_finish(engine, ticket).has_value());
    }
  }
}

TEST_F(SwapEngineTest, DestroyingTheEngineWaitsForWhatIsOnItsWay) {
  for (const SwapPath path : kAllPaths) {
    for (const TransferKind kind : kBothKinds) {
      open();
      rig_.device().hold(true);
      ASSERT_TRUE(rig_.engine().try_start(order(kind, path)).value().has_value());
      twin_swap(kind);
      EXPECT_GT(rig_.device().pending_count(), 0U);
      rig_.close();
      EXPECT_EQ(rig_.device().pending_count(), 0U);
      EXPECT_EQ(rig_.difference(), "");
    }
  }
}

// A page that a store has read is free when its last band has arrived, and so is a record that a load has read: what
// is written there behind the fence is not part of what was moved, nor of its checksum.
TEST_F(SwapEngineTest, BehindTheFenceOfTheLastBandTheSourceMayBeOverwritten) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    for (const SwapPath path : kAllPaths) {
      for (const TransferKind kind : kBothKinds) {
        SwapRig rig({}, {.seed = seed});
        SwapEngine& engine = rig.open();
        const SwapStreams streams{.copies = rig.add_stream(), .kernels = rig.add_stream()};
        const DeviceStream compute = rig.add_stream();
        std::byte* const new_bytes = rig.device().allocate(rig.record_bytes()).value();
        SwapOrder swap = order(kind, path);
        swap.streams = streams;
        swap.band_count = 2;
        std::vector<std::uint64_t> checksums;
        for (std::size_t i = 0; i < device_pages_.size(); ++i) {
          rig.twin_swap(kind, device_pages_[i].value, records_[i].value);
          checksums.push_back(rig.twin_checksum(records_[i].value));
        }
        const SwapTicket ticket = engine.try_start(swap).value().value();
        ASSERT_TRUE(engine.wait_on(compute, ticket, 1).has_value());
        for (std::size_t i = 0; i < device_pages_.size(); ++i) {
          std::byte* const source = kind == TransferKind::Store ? rig.pages() + rig.place_of(device_pages_[i].value, 0)
                                                                : rig.record(records_[i].value);
          ASSERT_TRUE(rig.device().copy(source, new_bytes, rig.record_bytes(), compute).has_value());
        }
        const SwapReport report = ask_and_finish(engine, ticket).value();
        EXPECT_EQ((std::vector(report.checksums.begin(), report.checksums.end())), checksums)
            << to_string(path) << ", seed " << seed;
        for (std::size_t i = 0; i < device_pages_.size(); ++i) {
          EXPECT_TRUE(kind == TransferKind::Store ? rig.has_twin_record(records_[i].value)
                                                  : rig.has_twin_page(device_pages_[i].value, 0, rig.record_bytes()));
        }
        rig.device().drain();
        rig.device().release(new_bytes);
      }
    }
  }
}

// ── checksums ──────────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(SwapEngineTest, ALoadSaysWhichPageIsTheFirstThatIsNotAsExpected) {
  open();
  std::vector<std::uint64_t> expected;
  expected.reserve(records_.size());
  for (const RecordId record : records_) expected.push_back(rig_.twin_checksum(record.value));
  for (const SwapPath path : kAllPaths) {
    SwapOrder load = order(TransferKind::Load, path);
    load.expected = expected;
    EXPECT_EQ(rig_.engine().swap(load).value().good_pages, 5U);
    for (std::uint32_t bad = 0; bad < 5; ++bad) {
      // One bit of the record, at the end of one page and in the middle of one behind it.
      std::byte* const damaged = rig_.record(records_[bad].value) + rig_.record_bytes() - 1;
      std::byte* const also = rig_.record(records_[4].value) + (rig_.record_bytes() / 2);
      *damaged ^= std::byte{0x10};
      *also ^= std::byte{1};
      const SwapReport report = rig_.engine().swap(load).value();
      EXPECT_EQ(report.good_pages, bad) << to_string(path);
      EXPECT_EQ(report.page_count, 5U);
      EXPECT_NE(report.checksums[bad], expected[bad]);
      *damaged ^= std::byte{0x10};
      *also ^= std::byte{1};
    }
    EXPECT_EQ(rig_.engine().swap(load).value().good_pages, 5U);
  }
}

TEST_F(SwapEngineTest, WhatAStoreSummedIsWhatALoadExpects) {
  open();
  for (const SwapPath store_path : kAllPaths) {
    for (const SwapPath load_path : kAllPaths) {
      const SwapReport stored = rig_.engine().swap(order(TransferKind::Store, store_path)).value();
      const std::vector<std::uint64_t> expected(stored.checksums.begin(), stored.checksums.end());
      SwapOrder load = order(TransferKind::Load, load_path);
      load.expected = expected;
      EXPECT_EQ(rig_.engine().swap(load).value().good_pages, 5U);
    }
  }
}

// ── what is refused ────────────────────────────────────────────────────────────────────────────────────────────

TEST_F(SwapEngineTest, AnOrderThatIsWrongIsRefusedAndNothingIsDone) {
  open();
  const std::uint64_t calls = rig_.device().call_count();
  const std::uint64_t copied = rig_.device().copied_bytes();
  const auto refused = [&](TransferKind kind, std::vector<PageId> device_pages, std::vector<RecordId> records,
                           const auto& change) {
    SwapOrder wrong{.kind = kind, .device_pages = device_pages, .records = records, .streams = streams_};
    change(wrong);
    const auto started = rig_.engine().try_start(wrong);
    if (started.has_value()) return std::string("it was started");
    EXPECT_EQ(started.error().code, ErrorCode::InvalidArgument);
    return started.error().message;
  };
  const auto as_it_is = [](SwapOrder&) {};
  constexpr auto kLoad = TransferKind::Load;
  constexpr auto kStore = TransferKind::Store;
  EXPECT_EQ(refused(kLoad, page_ids({1, 2}), record_ids({1}), as_it_is),
            "device_pages has 2 pages and records 1: give as many of each");
  EXPECT_EQ(refused(kLoad, page_ids({1, 2, 7}), record_ids({1, 2, 3}), as_it_is),
            "device_pages[2] is 7: pages lie in [0, 7)");
  EXPECT_EQ(refused(kStore, page_ids({1, 2}), record_ids({9, 2}), as_it_is), "records[0] is 9: records lie in [0, 9)");
  EXPECT_EQ(refused(kStore, {PageId{}}, record_ids({2}), as_it_is),
            "device_pages[0] is " + std::to_string(PageId{}.value) + ": pages lie in [0, 7)");
  EXPECT_EQ(refused(kLoad, page_ids({1, 5, 2, 5}), record_ids({1, 2, 3, 4}), as_it_is),
            "device_pages[3] is 5, as device_pages[1] is: two pages cannot go to one place");
  EXPECT_EQ(refused(kStore, page_ids({1, 2, 3, 4}), record_ids({0, 8, 1, 8}), as_it_is),
            "records[3] is 8, as records[1] is: two pages cannot go to one place");
  EXPECT_EQ(refused(kLoad, page_ids({0, 1, 2, 3, 4, 5, 6}), record_ids({0, 1, 2, 3, 4, 5, 6}), as_it_is),
            "device_pages has 7 pages: SwapConfig::call_pages_max is 6");
  EXPECT_EQ(refused(kLoad, page_ids({1}), record_ids({1}), [](SwapOrder& wrong) { wrong.band_count = 0; }),
            "band_count is 0: give 1 to 3, a layer at least for each");
  EXPECT_EQ(refused(kLoad, page_ids({1}), record_ids({1}), [](SwapOrder& wrong) { wrong.band_count = 4; }),
            "band_count is 4: give 1 to 3, a layer at least for each");
  EXPECT_EQ(refused(kLoad, page_ids({1}), record_ids({1}), [](SwapOrder& wrong) { wrong.streams.copies = {}; }),
            "streams.copies is missing: work goes on streams of the caller's, never on the default stream");
  const std::vector<std::uint64_t> sums(2);
  EXPECT_EQ(refused(kLoad, page_ids({1}), record_ids({1}), [&](SwapOrder& wrong) { wrong.expected = sums; }),
            "expected has 2 checksums for 1 pages: give one for each, or none");
  EXPECT_EQ(refused(kStore, page_ids({1, 2}), record_ids({1, 2}), [&](SwapOrder& wrong) { wrong.expected = sums; }),
            "expected is for loads: a store makes checksums");
  EXPECT_EQ(refused(TransferKind::FindBelow, page_ids({1}), record_ids({1}), as_it_is), "a swap is a load or a store");
  EXPECT_EQ(rig_.device().call_count(), calls);
  EXPECT_EQ(rig_.device().copied_bytes(), copied);
  EXPECT_EQ(rig_.device().pending_count(), 0U);
  EXPECT_EQ(rig_.difference(), "");
  // Nothing of it is remembered.
  EXPECT_TRUE(rig_.engine().swap(order(kLoad, SwapPath::Staged)).has_value());
  EXPECT_TRUE(rig_.engine().swap(order(kStore, SwapPath::Staged)).has_value());
}

TEST_F(SwapEngineTest, ExpectedChecksumsNeedChecksums) {
  SwapConfig config = rig_.config();
  config.checksums = false;
  open(config);
  const std::vector<std::uint64_t> sums(5);
  SwapOrder load = order(TransferKind::Load, SwapPath::Direct);
  load.expected = sums;
  EXPECT_EQ(rig_.engine().try_start(load).error().message, "expected is given, and SwapConfig::checksums is off");
}

TEST_F(SwapEngineTest, AConfigThatCannotBeIsRefused) {
  const auto refused = [&](const auto& change) {
    SwapConfig config = rig_.config();
    change(config);
    const Status status = config.validate();
    const std::uint64_t calls = rig_.device().call_count();
    const auto engine = SwapEngine::open(config);
    EXPECT_EQ(engine.has_value(), status.has_value());
    EXPECT_EQ(rig_.device().call_count(), calls);
    if (status) return std::string("it is valid");
    EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
    return status.error().message;
  };
  EXPECT_EQ(refused([](SwapConfig& config) { config.device = nullptr; }), "SwapConfig::device is missing");
  EXPECT_EQ(refused([](SwapConfig& config) { config.records = nullptr; }),
            "SwapConfig::records is missing: say where the host's records lie");
  EXPECT_EQ(refused([](SwapConfig& config) { config.device_page_count = 0; }),
            "SwapConfig::device_page_count is 0: give 1 to 4294967295");
  EXPECT_EQ(refused([](SwapConfig& config) { config.record_count = 0; }),
            "SwapConfig::record_count is 0: give 1 to 4294967295");
  EXPECT_EQ(refused([](SwapConfig& config) { config.call_pages_max = 0; }),
            "SwapConfig::call_pages_max is 0: give 1 to 1048576");
  EXPECT_EQ(refused([](SwapConfig& config) { config.calls_in_flight_max = 1025; }),
            "SwapConfig::calls_in_flight_max is 1025: give 1 to 1024");
  EXPECT_EQ(refused([](SwapConfig& config) { config.layers.clear(); }), "SwapConfig::layers is empty");
  EXPECT_EQ(refused([](SwapConfig& config) { config.layers[1].clear(); }), "SwapConfig::layers[1] has no bytes");
  EXPECT_EQ(refused([](SwapConfig& config) { config.layers[1][0].first = nullptr; }),
            "SwapConfig::layers[1] has a fragment without an address");
  EXPECT_EQ(refused([](SwapConfig& config) { config.layers[2][0].record_offset += 1; }),
            "SwapConfig::layers[2] has a fragment at 193 of the record, where what came before ends at 192");
  EXPECT_EQ(refused([](SwapConfig& config) { config.record_stride = 287; }),
            "SwapConfig::record_stride is 287, and a record has 288 bytes");
  EXPECT_EQ(refused([](SwapConfig& config) { config.layers[0][0].page_stride = 95; }),
            "SwapConfig::layers[0] has a fragment of 96 bytes with 95 from page to page");
}

// Numbers that nobody has memory for are refused by arithmetic, not found out by trying.
TEST_F(SwapEngineTest, SizesThatDoNotFitAreRefused) {
  const auto message_of = [&](const auto& change) {
    SwapConfig config = rig_.config();
    change(config);
    const Status status = config.validate();
    return status ? std::string("it is valid") : status.error().message;
  };
  constexpr std::uint64_t kHuge = std::uint64_t{1} << 63U;
  EXPECT_EQ(message_of([](SwapConfig& config) { config.record_stride = kHuge; }),
            "SwapConfig::record_stride is 9223372036854775808, and record_count 9: records of 2^64 bytes or more");
  EXPECT_EQ(message_of([](SwapConfig& config) { config.layers[0][0].page_stride = kHuge; }),
            "SwapConfig::layers[0] has a fragment with 9223372036854775808 bytes from page to page, and "
            "device_page_count is 7: pages of 2^64 bytes or more");
  EXPECT_EQ(message_of([](SwapConfig& config) {
              config.layers = {{{.first = config.layers[0][0].first, .page_stride = kHuge, .bytes = kHuge}}};
              config.device_page_count = 1;
            }),
            "SwapConfig::record_stride is 320, and a record has 9223372036854775808 bytes");
  EXPECT_EQ(message_of([](SwapConfig& config) {
              std::byte* const first = config.layers[0][0].first;
              config.layers = {{{.first = first, .page_stride = kHuge, .bytes = kHuge},
                                {.first = first, .page_stride = kHuge, .record_offset = kHuge, .bytes = kHuge}}};
              config.device_page_count = 1;
            }),
            "SwapConfig::layers: a record has 2^64 bytes or more");
  EXPECT_EQ(message_of([](SwapConfig& config) {
              constexpr std::uint64_t kLong = std::uint64_t{1} << 40U;
              config.layers = {{{.first = config.layers[0][0].first, .page_stride = kLong, .bytes = kLong}}};
              config.record_stride = kLong;
              config.call_pages_max = 64;
            }),
            "SwapConfig::call_pages_max is 64, and a page has 268435456 pieces: give fewer than 2^32 in all");
}

// ── devices ────────────────────────────────────────────────────────────────────────────────────────────────────

TEST(SwapDevices, EachEngineHasItsOwn) {
  SwapRig first({}, {.index = 0, .seed = 1});
  SwapRig second({.form = SwapForm::LayerFirst}, {.index = 1, .seed = 2});
  first.open();
  second.open();
  const SwapStreams first_streams{.copies = first.add_stream(), .kernels = first.add_stream()};
  const SwapStreams second_streams{.copies = second.add_stream(), .kernels = second.add_stream()};
  const std::vector<PageId> pages = page_ids({1, 4, 2});
  const std::vector<RecordId> records = record_ids({1, 4, 2});
  const auto order = [&](TransferKind kind, const SwapStreams& streams) {
    return SwapOrder{.kind = kind, .device_pages = pages, .records = records, .streams = streams};
  };
  for (const TransferKind kind : kBothKinds) {
    const SwapTicket a = first.engine().try_start(order(kind, first_streams)).value().value();
    const SwapTicket b = second.engine().try_start(order(kind, second_streams)).value().value();
    EXPECT_TRUE(ask_and_finish(second.engine(), b).has_value());
    EXPECT_TRUE(ask_and_finish(first.engine(), a).has_value());
    for (const PageId page : pages) {
      first.twin_swap(kind, page.value, page.value);
      second.twin_swap(kind, page.value, page.value);
    }
  }
  EXPECT_EQ(first.difference(), "");
  EXPECT_EQ(second.difference(), "");
}

TEST(SwapDevices, StreamsAndEventsOfAnotherAreRefused) {
  SwapRig other({}, {.index = 1});
  const DeviceStream foreign = other.add_stream();
  const DeviceEvent event = other.device().create_event().value();
  const std::vector<PageId> pages = page_ids({1, 4, 2});
  const std::vector<RecordId> records = record_ids({1, 4, 2});
  for (const SwapPath path : kAllPaths) {
    for (const TransferKind kind : kBothKinds) {
      for (int wrong = 0; wrong < 3; ++wrong) {
        SwapRig rig({});
        rig.open();
        SwapOrder order{.kind = kind,
                        .device_pages = pages,
                        .records = records,
                        .streams = {.copies = rig.add_stream(), .kernels = rig.add_stream()},
                        .path = path};
        if (wrong == 0) order.streams.copies = foreign;
        if (wrong == 1) order.streams.kernels = foreign;
        if (wrong == 2) order.after = event;
        const bool is_used = wrong != 0 || path != SwapPath::Direct;
        EXPECT_EQ(rig.engine().try_start(order).has_value(), !is_used);
        EXPECT_TRUE(!is_used || rig.device().pending_count() == 0);
        const SwapOrder good{.kind = kind == TransferKind::Load ? TransferKind::Store : TransferKind::Load,
                             .device_pages = pages,
                             .records = records,
                             .streams = {.copies = rig.add_stream()}};
        EXPECT_TRUE(rig.engine().swap(good).has_value());
      }
    }
  }
  other.device().destroy_event(event);
}

}  // namespace
}  // namespace quire
