// SPDX-License-Identifier: Apache-2.0
//
// One thread loads while another stores, on one engine and one device, each with pages and streams of its own.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "quire/swap.h"
#include "swap_fixture.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::page_ids;
using testing::SwapForm;
using testing::SwapRig;

constexpr std::uint32_t kSwapRounds = 150;

// Calls of one direction, two on their way at a time; each page of a call has its record.
std::string swap_in_rounds(SwapRig& rig, TransferKind kind, const std::array<std::vector<PageId>, 2>& pages,
                           const SwapStreams& streams) {
  testing::Random random(static_cast<std::uint64_t>(kind) + 1);
  for (std::uint32_t round = 0; round < kSwapRounds; ++round) {
    std::array<SwapTicket, 2> tickets;
    for (std::size_t i = 0; i < 2; ++i) {
      std::vector<RecordId> records;
      for (const PageId page : pages[i]) records.push_back(RecordId{page.value});
      const auto ticket = rig.engine().try_start({.kind = kind,
                                                  .device_pages = pages[i],
                                                  .records = records,
                                                  .band_count = 1 + random.below(3),
                                                  .streams = streams,
                                                  .path = static_cast<SwapPath>(random.below(3))});
      if (!ticket) return ticket.error().message;
      if (!ticket->has_value()) return "there was no room";
      tickets[i] = **ticket;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      while (true) {
        const auto is_done = rig.engine().is_done(tickets[i]);
        if (!is_done) return is_done.error().message;
        if (*is_done) break;
      }
      const auto report = rig.engine().finish(tickets[i]);
      if (!report) return report.error().message;
      if (report->good_pages != pages[i].size()) return "pages are missing";
    }
  }
  return "";
}

TEST(SwapThreads, LoadsAndStoresRunAtTheSameTime) {
  SwapRig rig({.form = SwapForm::LayerFirst, .device_pages = 12, .records = 12, .ring_pages = 1}, {.seed = 3});
  rig.open();
  const SwapStreams load_streams{.copies = rig.add_stream(), .kernels = rig.add_stream()};
  const SwapStreams store_streams{
      .copies = rig.add_stream(), .kernels = rig.add_stream(), .more_kernels = rig.add_stream()};
  const std::array loads = {page_ids({0, 1, 2}), page_ids({3, 4, 5})};
  const std::array stores = {page_ids({6, 7, 8}), page_ids({9, 10, 11})};
  std::string load_failure;
  std::string store_failure;
  std::thread loader([&] { load_failure = swap_in_rounds(rig, TransferKind::Load, loads, load_streams); });
  std::thread storer([&] { store_failure = swap_in_rounds(rig, TransferKind::Store, stores, store_streams); });
  loader.join();
  storer.join();
  EXPECT_EQ(load_failure, "");
  EXPECT_EQ(store_failure, "");
  for (std::uint32_t page = 0; page < 6; ++page) rig.twin_swap(TransferKind::Load, page, page);
  for (std::uint32_t page = 6; page < 12; ++page) rig.twin_swap(TransferKind::Store, page, page);
  EXPECT_EQ(rig.difference(), "");
}

}  // namespace
}  // namespace quire
