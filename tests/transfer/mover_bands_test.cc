// SPDX-License-Identifier: Apache-2.0
//
// Bands of layers, and waiting for them.
#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <thread>

#include "mover_fixture.h"

namespace quire {
namespace {

using MoverBands = MoverTest;
using MoverBandsInPlaces = InPlaces<MoverTest>;
INSTANTIATE_TEST_SUITE_P(Mover, MoverBandsInPlaces, ::testing::ValuesIn(kMoverPlaces), name_of_place);

TEST_F(MoverBands, TheFirstLayersOfAllPagesComeBeforeTheNextOnes) {
  for (const ByteLayout layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    open({.layers = 7, .layer_bytes = 33, .pages = kDevicePages, .byte_layout = layout});
    store(0, 4, 1);
    gate_.close([](const PieceStart& piece) { return piece.kind == TransferKind::Load && piece.band == 1; });
    submit(1, TransferKind::Load, pages(10, 4), 3);
    EXPECT_EQ(wait_for(1, 0), TransferOutcome::Ok);
    gate_.wait_for_held();
    for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i, 2)) << "layers 0 and 1";
    EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::Ok);
    EXPECT_EQ(mover_->wait(id(1), 1, 0), TransferOutcome::TimedOut);
    EXPECT_EQ(mover_->wait(id(1), 2, 0), TransferOutcome::TimedOut);
    gate_.open();
    EXPECT_EQ(wait_for(1, 1), TransferOutcome::Ok);
    EXPECT_EQ(wait_for(1, 2), TransferOutcome::Ok);
    const Completion completion = next_completion();
    EXPECT_EQ(completion.good_pages, 4U);
    EXPECT_EQ(completion.moved_bytes, 4U * 7 * 33);
    for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i));
  }
}

TEST_P(MoverBandsInPlaces, EveryNumberOfBandsMovesTheSameBytes) {
  open({.layers = 7, .layer_bytes = 33, .pages = kDevicePages});
  store(0, 3, 1);
  for (std::uint16_t bands = 1; bands <= 7; ++bands) {
    for (std::uint32_t i = 0; i < 3; ++i) device_->clear(PageId{10 + i});
    submit(bands, TransferKind::Load, pages(10, 3), bands);
    EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok) << bands;
    for (std::uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i)) << bands;
    // And a store in bands.
    submit(100 + bands, TransferKind::Store, pages(0, 3, 10 + bands), bands);
    EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok) << bands;
    submit(200 + bands, TransferKind::Load, pages(20, 3, 10 + bands));
    EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok) << bands;
    for (std::uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(device_->holds(PageId{20 + i}, 1 + i)) << bands;
    submit(300 + bands, TransferKind::Store, pages(0, 3));
    EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok) << bands;
  }
}

TEST_F(MoverBands, ChecksumsAreKnownAtTheLastBandAndThenCountForAll) {
  open();
  store(0, 4, 1);
  HostStorePeer::flip_bit(MoverPeer::host_store(*mover_), PageId{3}, 5);  // in its first layer
  gate_.close([](const PieceStart& piece) { return piece.band == 1; });
  submit(1, TransferKind::Load, pages(10, 4), 2);
  EXPECT_EQ(wait_for(1, 0), TransferOutcome::Ok);
  gate_.open();
  EXPECT_EQ(wait_for(1, 1), TransferOutcome::Failed);
  EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::Failed) << "now it is known";
  const Completion completion = next_completion();
  EXPECT_EQ(completion.fault, TransferFault::Checksum);
  EXPECT_EQ(completion.good_pages, 2U);
}

// The pages before it are worth loading; those behind it are not.
TEST_F(MoverBands, APageThatFailsInTheFirstBandEndsTheWayThere) {
  open();
  store(0, 4, 1);
  std::vector<PageTransfer> wanted = pages(10, 4);
  wanted[2].host_generation = 5;
  gate_.close([](const PieceStart& piece) { return piece.band == 1; });
  submit(1, TransferKind::Load, wanted, 4);
  gate_.wait_for_held();
  EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::Failed) << "told as soon as it is known";
  EXPECT_EQ(mover_->wait(id(1), 3, 0), TransferOutcome::Failed);
  std::array<Completion, 1> none;
  EXPECT_TRUE(mover_->poll(none).empty()) << "but its pages are still in use";
  gate_.open();
  const Completion completion = next_completion();
  EXPECT_EQ(completion.outcome, TransferOutcome::Failed);
  EXPECT_EQ(completion.fault, TransferFault::Generation);
  EXPECT_EQ(completion.good_pages, 2U);
  for (std::uint32_t i = 0; i < 2; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i));
  for (const PieceStart& piece : gate_.passed()) {
    if (piece.kind == TransferKind::Store) continue;
    EXPECT_LE(piece.page_index, piece.band == 0 ? 2U : 1U);
  }
}

TEST_F(MoverBands, CancellingBetweenBandsLeavesNoPageGood) {
  open();
  store(0, 3, 1);
  gate_.close([](const PieceStart& piece) { return piece.band == 2 && piece.page_index == 1; });
  submit(1, TransferKind::Load, pages(10, 3), 4);
  gate_.wait_for_held();
  EXPECT_TRUE(mover_->cancel(id(1)));
  gate_.open();
  const Completion completion = next_completion();
  EXPECT_EQ(completion.outcome, TransferOutcome::Cancelled);
  EXPECT_EQ(completion.good_pages, 0U);
  EXPECT_EQ(completion.moved_bytes, 96U * 8);
  EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::Cancelled);
}

TEST_F(MoverBands, AStoreThatIsCancelledBetweenBandsLeavesNoData) {
  open();
  store(0, 2, 1);
  gate_.close([](const PieceStart& piece) { return piece.band == 1 && piece.page_index == 0; });
  submit(1, TransferKind::Store, pages(4, 2, 2), 2);
  gate_.wait_for_held();
  EXPECT_TRUE(mover_->cancel(id(1)));
  gate_.open();
  EXPECT_EQ(next_completion().good_pages, 1U);
  submit(2, TransferKind::Load, {page(10, 1, 2)});
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
  for (const std::uint32_t generation : {1U, 2U}) {
    submit(3, TransferKind::Load, {page(10, 2, generation)});
    EXPECT_EQ(next_completion().fault, TransferFault::Generation);
  }
}

TEST_F(MoverBands, WhoeverWaitsIsWokenByItsBand) {
  open();
  store(0, 2, 1);
  gate_.close([](const PieceStart& piece) { return piece.band == 0 && piece.kind == TransferKind::Load; });
  submit(1, TransferKind::Load, pages(10, 2), 4);
  gate_.wait_for_held();
  std::optional<TransferOutcome> first;
  std::optional<TransferOutcome> last;
  std::thread first_waiter([&] { first = wait_for(1, 0); });
  std::thread last_waiter([&] { last = wait_for(1, 3); });
  wait_for_blocked(2);
  gate_.close([](const PieceStart& piece) { return piece.band == 3; });
  gate_.open();
  first_waiter.join();
  last_waiter.join();
  EXPECT_EQ(first, TransferOutcome::Ok);
  EXPECT_EQ(last, TransferOutcome::Ok);
}

TEST_P(MoverBandsInPlaces, WaitingHasFiveOutcomes) {
  open();
  store(0, 2, 1);
  submit(1, TransferKind::Load, pages(10, 2));
  EXPECT_EQ(wait_for(1), TransferOutcome::Ok);
  submit(2, TransferKind::Load, pages(10, 2, 99));
  EXPECT_EQ(wait_for(2), TransferOutcome::Failed);
  gate_.close();
  submit(3, TransferKind::Load, pages(10, 2));
  EXPECT_EQ(mover_->wait(id(3), 0, 0), TransferOutcome::TimedOut);
  EXPECT_EQ(mover_->wait(id(3), 0, -5), TransferOutcome::TimedOut);
  EXPECT_EQ(mover_->wait(id(3), 0, 1'000'000), TransferOutcome::TimedOut);
  gate_.wait_for_held();
  submit(4, TransferKind::Load, pages(12, 2));
  EXPECT_TRUE(mover_->cancel(id(4)));
  EXPECT_EQ(wait_for(4), TransferOutcome::Cancelled);
  submit(5, TransferKind::Load, {});
  EXPECT_EQ(wait_for(5), TransferOutcome::Empty);
  gate_.open();
  EXPECT_EQ(mover_->wait(id(3), 0, std::numeric_limits<TimeNs>::max()), TransferOutcome::Ok);
}

TEST_P(MoverBandsInPlaces, AWaiterOfATransferThatIsCancelledIsWoken) {
  open();
  mover_->pause();
  submit(1, TransferKind::Store, pages(0, 1));
  std::optional<TransferOutcome> outcome;
  std::thread waiter([&] { outcome = wait_for(1); });
  wait_for_blocked(1);
  EXPECT_TRUE(mover_->cancel(id(1)));
  waiter.join();
  EXPECT_EQ(outcome, TransferOutcome::Cancelled);
}

}  // namespace
}  // namespace quire
