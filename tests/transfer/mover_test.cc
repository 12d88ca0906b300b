// SPDX-License-Identifier: Apache-2.0
//
// Plans in, completions out.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "mover_fixture.h"

namespace quire {
namespace {

using MoverInPlaces = InPlaces<MoverTest>;
INSTANTIATE_TEST_SUITE_P(Mover, MoverInPlaces, ::testing::ValuesIn(kMoverPlaces), name_of_place);

TEST_P(MoverInPlaces, PagesGoToTheHostAndComeBack) {
  for (const ByteLayout layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    open({.layers = 4, .layer_bytes = 96, .pages = kDevicePages, .byte_layout = layout});
    store(0, 5, 50);
    submit(1, TransferKind::Load, pages(10, 5));
    const Completion completion = next_completion();
    EXPECT_EQ(completion.id, id(1));
    EXPECT_EQ(completion.outcome, TransferOutcome::Ok);
    EXPECT_EQ(completion.fault, TransferFault::None);
    EXPECT_EQ(completion.good_pages, 5U);
    EXPECT_EQ(completion.moved_bytes, 5U * 4 * 96);
    EXPECT_GT(completion.busy_ns, 0);
    for (std::uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 50 + i)) << "page " << i;
  }
}

TEST_P(MoverInPlaces, CompletionsCarryTheRank) {
  config_.rank = 7;
  open();
  submit(1, TransferKind::Store, pages(0, 1));
  EXPECT_EQ(next_completion().rank, 7U);
  submit(2, TransferKind::Store, {});
  EXPECT_EQ(next_completion().rank, 7U);
  gate_.close();
  submit(3, TransferKind::Store, pages(0, 1));
  gate_.wait_for_held();
  submit(4, TransferKind::Store, pages(0, 1));
  EXPECT_TRUE(mover_->cancel(id(4)));
  EXPECT_EQ(next_completion().rank, 7U);
}

TEST_P(MoverInPlaces, ThoseSomebodyWaitsForGoFirstAndThenTheOldest) {
  open();
  store(0, 3, 1);
  gate_.close();
  submit(1, TransferKind::Load, pages(10, 1), 1, TransferPriority::Background);
  gate_.wait_for_held();
  submit(2, TransferKind::Load, pages(11, 1), 1, TransferPriority::Background);
  submit(3, TransferKind::Load, pages(12, 1), 1, TransferPriority::Waiting);
  submit(4, TransferKind::Load, pages(13, 1), 1, TransferPriority::Background);
  submit(5, TransferKind::Load, pages(14, 1), 1, TransferPriority::Waiting);
  gate_.open();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
  std::vector<std::uint32_t> started;
  for (const PieceStart& piece : gate_.passed()) {
    if (piece.kind == TransferKind::Load) started.push_back(piece.id.index);
  }
  EXPECT_EQ(started, (std::vector<std::uint32_t>{1, 3, 5, 2, 4}));
}

TEST_P(MoverInPlaces, DirectionsDoNotWaitForEachOther) {
  open();
  store(0, 1, 1);
  gate_.close([](const PieceStart& piece) { return piece.kind == TransferKind::Store; });
  submit(1, TransferKind::Store, {page(0, 2)});
  gate_.wait_for_held();
  submit(2, TransferKind::Load, pages(9, 1));
  EXPECT_EQ(next_completion().id, id(2));
  gate_.open();
  EXPECT_EQ(next_completion().id, id(1));
}

TEST_F(MoverTest, SeveralThreadsOfADirectionRunSeveralTransfers) {
  config_.load_thread_count = 3;
  open();
  store(0, 3, 1);
  gate_.close();
  for (std::uint32_t i = 0; i < 3; ++i) submit(1 + i, TransferKind::Load, {page(10 + i, 1 + i)});
  gate_.wait_for_held(3);
  gate_.open();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
}

TEST_P(MoverInPlaces, AnEmptyPlanIsOverAtOnce) {
  open();
  gate_.close();
  submit(1, TransferKind::Load, {}, 3);
  EXPECT_TRUE(is_event_readable());
  EXPECT_EQ(mover_->wait(id(1), 2, 0), TransferOutcome::Empty);
  const Completion completion = next_completion();
  EXPECT_EQ(completion.outcome, TransferOutcome::Empty);
  EXPECT_EQ(completion.good_pages, 0U);
  EXPECT_FALSE(mover_->cancel(id(1)));
}

TEST_P(MoverInPlaces, TheEventIsReadableExactlyWhileThereIsSomethingToPoll) {
  open();
  EXPECT_FALSE(is_event_readable());
  for (std::uint32_t i = 1; i <= 3; ++i) submit(i, TransferKind::Load, {});
  EXPECT_TRUE(is_event_readable());
  std::array<Completion, 2> two;
  ASSERT_EQ(mover_->poll(two).size(), 2U);
  EXPECT_TRUE(is_event_readable()) << "one is left";
  ASSERT_EQ(mover_->poll(two).size(), 1U);
  EXPECT_FALSE(is_event_readable());
  EXPECT_TRUE(mover_->poll(two).empty());
  submit(4, TransferKind::Load, {});
  EXPECT_TRUE(is_event_readable());
  EXPECT_TRUE(mover_->poll({}).empty());
  EXPECT_TRUE(is_event_readable());
}

TEST_F(MoverTest, AnEventThatTheCallerHasReadDoesNoHarm) {
  open();
  submit(1, TransferKind::Load, {});
  std::uint64_t count = 0;
  ASSERT_EQ(::read(mover_->event_fd(), &count, sizeof(count)), 8);
  std::array<Completion, 2> two;
  EXPECT_EQ(mover_->poll(two).size(), 1U);
  submit(2, TransferKind::Load, {});
  EXPECT_TRUE(is_event_readable());
}

// Full is an answer.

TEST_P(MoverInPlaces, AFullQueueSaysNoUntilThereIsRoom) {
  config_.queue_depth_max = 2;
  open();
  gate_.close();
  submit(1, TransferKind::Store, pages(0, 1));
  gate_.wait_for_held();
  submit(2, TransferKind::Store, {page(0, 2)});
  submit(3, TransferKind::Store, {page(0, 3)});
  EXPECT_EQ(try_submit(4, TransferKind::Store, {page(0, 4)}), false);
  EXPECT_EQ(try_submit(4, TransferKind::Load, {page(0, 4)}), true) << "the other direction has room";
  EXPECT_TRUE(mover_->cancel(id(2)));
  EXPECT_EQ(try_submit(5, TransferKind::Store, {page(0, 4)}), true);
  gate_.open();
  EXPECT_EQ(wait_for(5), TransferOutcome::Ok);
}

TEST_P(MoverInPlaces, CompletionsThatNobodyPollsAreNeverLost) {
  config_.queue_depth_max = 2;
  open();
  std::uint32_t accepted = 0;
  // Those that are on their way have host pages of their own.
  const auto submit_next = [&] {
    return try_submit(accepted, TransferKind::Store, {page(0, 1 + (accepted % kHostPages))});
  };
  while (true) {
    const auto submitted = submit_next();
    ASSERT_TRUE(submitted.has_value());
    if (!*submitted) {
      // Its queue may just be full: then it will not be for long.
      if (accepted > 0 && wait_for(accepted - 1) == TransferOutcome::Ok && !submit_next().value()) {
        break;
      }
    }
    ++accepted;
    ASSERT_LT(accepted, 1000U);
  }
  // On an accelerator several are on their way at a time, and the last one may end before the others.
  for (std::uint32_t i = 0; i < accepted; ++i) ASSERT_EQ(wait_for(i), TransferOutcome::Ok);
  std::vector<Completion> all(1000);
  const auto polled = mover_->poll(all);
  ASSERT_EQ(polled.size(), accepted);
  if (has_accelerator()) std::ranges::sort(polled, {}, &Completion::id);
  for (std::uint32_t i = 0; i < accepted; ++i) EXPECT_EQ(polled[i].id, id(i)) << "in order";
  EXPECT_EQ(try_submit(5000, TransferKind::Store, pages(0, 1)), true);
}

// Cancelling.

TEST_P(MoverInPlaces, AQueuedTransferThatIsCancelledNeverRuns) {
  open();
  gate_.close();
  submit(1, TransferKind::Store, pages(0, 1));
  gate_.wait_for_held();
  submit(2, TransferKind::Store, {page(1, 2)});
  EXPECT_TRUE(mover_->cancel(id(2)));
  EXPECT_FALSE(mover_->cancel(id(2))) << "twice";
  const Completion completion = next_completion();
  EXPECT_EQ(completion.id, id(2));
  EXPECT_EQ(completion.outcome, TransferOutcome::Cancelled);
  EXPECT_EQ(completion.good_pages, 0U);
  EXPECT_EQ(completion.moved_bytes, 0U);
  EXPECT_EQ(wait_for(2), TransferOutcome::Cancelled);
  gate_.open();
  EXPECT_EQ(next_completion().id, id(1));
  EXPECT_EQ(gate_.passed().size(), 1U);
}

TEST_F(MoverTest, ARunningTransferThatIsCancelledStopsAtTheNextPage) {
  open();
  store(0, 5, 1);
  gate_.close([](const PieceStart& piece) { return piece.page_index == 2; });
  submit(1, TransferKind::Load, pages(10, 5));
  gate_.wait_for_held();
  EXPECT_TRUE(mover_->cancel(id(1)));
  EXPECT_FALSE(mover_->cancel(id(1))) << "twice";
  EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::TimedOut) << "its pages are still in use";
  gate_.open();
  const Completion completion = next_completion();
  EXPECT_EQ(completion.outcome, TransferOutcome::Cancelled);
  EXPECT_EQ(completion.good_pages, 3U) << "the one that was being copied arrived too";
  EXPECT_FALSE(mover_->cancel(id(1))) << "over";
  EXPECT_FALSE(mover_->cancel(id(77))) << "unknown";
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i));
}

TEST_F(MoverTest, ATransferThatWasDoneByThenIsOk) {
  open();
  store(0, 1, 1);
  gate_.close();
  submit(1, TransferKind::Load, pages(10, 1));
  gate_.wait_for_held();  // at its only page: nothing comes behind it to stop at
  EXPECT_TRUE(mover_->cancel(id(1)));
  gate_.open();
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
}

TEST_F(MoverTest, PagesOfACancelledStoreAreWholeOrNotThere) {
  open();
  gate_.close([](const PieceStart& piece) { return piece.page_index == 1; });
  submit(1, TransferKind::Store, pages(0, 3));
  gate_.wait_for_held();
  EXPECT_TRUE(mover_->cancel(id(1)));
  gate_.open();
  EXPECT_EQ(next_completion().good_pages, 2U);
  submit(2, TransferKind::Load, pages(10, 3));
  const Completion completion = next_completion();
  EXPECT_EQ(completion.outcome, TransferOutcome::Failed);
  EXPECT_EQ(completion.fault, TransferFault::Generation);
  EXPECT_EQ(completion.good_pages, 2U);
}

// What is wrong with a page is reported, and the pages before it are good.

TEST_P(MoverInPlaces, DamagedPagesAreReportedAndNotCountedAsGood) {
  open();
  store(0, 5, 1);
  HostStorePeer::flip_bit(MoverPeer::host_store(*mover_), PageId{4}, 777);
  submit(1, TransferKind::Load, pages(10, 5));
  const Completion completion = next_completion();
  EXPECT_EQ(completion.outcome, TransferOutcome::Failed);
  EXPECT_EQ(completion.fault, TransferFault::Checksum);
  EXPECT_EQ(completion.good_pages, 3U);
  EXPECT_EQ(wait_for(1), TransferOutcome::Failed);
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(device_->holds(PageId{10 + i}, 1 + i));
}

TEST_P(MoverInPlaces, PagesThatAreOthersAreReported) {
  open();
  store(0, 3, 1);
  std::vector<PageTransfer> wanted = pages(10, 3);
  wanted[1].host_generation = 2;
  submit(1, TransferKind::Load, wanted);
  Completion completion = next_completion();
  EXPECT_EQ(completion.fault, TransferFault::Generation);
  EXPECT_EQ(completion.good_pages, 1U);
  wanted = pages(10, 3);
  wanted[0].name_tag = 5;
  submit(2, TransferKind::Load, wanted);
  completion = next_completion();
  EXPECT_EQ(completion.fault, TransferFault::NameTag);
  EXPECT_EQ(completion.good_pages, 0U);
  EXPECT_EQ(completion.moved_bytes, 0U);
}

TEST_P(MoverInPlaces, ACopyThatFailsIsReported) {
  open();
  gate_.break_pieces(
      [](const PieceStart& piece) { return piece.page_index == 1 ? TransferFault::Io : TransferFault::None; });
  submit(1, TransferKind::Store, pages(0, 3));
  const Completion completion = next_completion();
  EXPECT_EQ(completion.outcome, TransferOutcome::Failed);
  EXPECT_EQ(completion.fault, TransferFault::Io);
  EXPECT_EQ(completion.good_pages, 1U);
  gate_.break_pieces(nullptr);
  submit(2, TransferKind::Load, {page(10, 2)});
  EXPECT_EQ(next_completion().fault, TransferFault::Generation) << "a store that failed was served";
}

TEST_P(MoverInPlaces, WithoutChecksumsGenerationsStillCount) {
  config_.checksums = false;
  open();
  store(0, 2, 1);
  HostStorePeer::flip_bit(MoverPeer::host_store(*mover_), PageId{1}, 0);
  submit(1, TransferKind::Load, pages(10, 2));
  EXPECT_EQ(next_completion().outcome, TransferOutcome::Ok);
  submit(2, TransferKind::Load, pages(10, 2, 9));
  EXPECT_EQ(next_completion().fault, TransferFault::Generation);
}

// A plan that breaks the rules gets faults, and the process lives.
TEST_F(MoverTest, TwoTransfersAtOnePageAreAFaultOfOne) {
  config_.store_thread_count = 2;
  open({.layers = 2, .layer_bytes = 64, .pages = 4});
  gate_.close([](const PieceStart& piece) { return piece.band == 1 && piece.id.index == 1; });
  submit(1, TransferKind::Store, {page(0, 1, 1)}, 2);
  gate_.wait_for_held();
  submit(2, TransferKind::Store, {page(1, 1, 2)});
  EXPECT_EQ(wait_for(2), TransferOutcome::Ok);
  gate_.open();
  EXPECT_EQ(wait_for(1, 1), TransferOutcome::Failed);
  submit(3, TransferKind::Load, {page(2, 1, 2)});
  EXPECT_EQ(wait_for(3), TransferOutcome::Ok);
}

// Pausing, forgetting, moving the device.

TEST_P(MoverInPlaces, PausingFinishesWhatRunsAndStartsNothing) {
  open();
  gate_.close();
  submit(1, TransferKind::Store, pages(0, 2));
  gate_.wait_for_held();
  submit(2, TransferKind::Store, {page(0, 3)});
  std::atomic<bool> is_paused = false;
  std::thread pauser([&] {
    mover_->pause();
    is_paused = true;
  });
  wait_for_blocked(1);
  EXPECT_FALSE(is_paused);
  gate_.open();
  pauser.join();
  EXPECT_EQ(mover_->wait(id(1), 0, 0), TransferOutcome::Ok);
  EXPECT_EQ(mover_->wait(id(2), 0, 0), TransferOutcome::TimedOut);
  submit(3, TransferKind::Store, {page(0, 4)});
  submit(4, TransferKind::Load, pages(9, 1));
  EXPECT_TRUE(mover_->cancel(id(3)));
  EXPECT_EQ(mover_->wait(id(4), 0, 1'000'000), TransferOutcome::TimedOut);
  mover_->pause();  // once more changes nothing
  mover_->resume();
  EXPECT_EQ(wait_for(2), TransferOutcome::Ok);
  EXPECT_EQ(wait_for(4), TransferOutcome::Ok);
  EXPECT_EQ(mover_->wait(id(3), 0, 0), TransferOutcome::Cancelled);
}

TEST_P(MoverInPlaces, ForgettingHostPagesNeedsEmptyQueuesAndLeavesNothing) {
  open();
  store(0, 2, 1);
  gate_.close();
  submit(1, TransferKind::Load, pages(9, 1));
  gate_.wait_for_held();
  expect_error(mover_->forget_host_pages(), ErrorCode::Unavailable, "0 transfers are queued and 1 run");
  gate_.open();
  EXPECT_EQ(wait_for(1), TransferOutcome::Ok);
  mover_->pause();
  submit(2, TransferKind::Load, pages(9, 1));
  expect_error(mover_->forget_host_pages(), ErrorCode::Unavailable, "1 transfers are queued and 0 run");
  mover_->resume();
  EXPECT_EQ(wait_for(2), TransferOutcome::Ok);
  ASSERT_TRUE(mover_->forget_host_pages().has_value());
  submit(3, TransferKind::Load, pages(9, 1));
  EXPECT_EQ(wait_for(3), TransferOutcome::Failed);
}

TEST_F(MoverTest, TheDeviceCanMoveWhileNothingRuns) {
  open();
  store(0, 2, 1);
  testing::TestDevice other({.layers = 4, .layer_bytes = 96, .pages = 64, .byte_layout = ByteLayout::LayerFirst});
  gate_.close();
  submit(1, TransferKind::Load, pages(9, 1));
  gate_.wait_for_held();
  expect_error(mover_->set_device(other.geometry(), other.memory()), ErrorCode::Unavailable, "1 run");
  gate_.open();
  EXPECT_EQ(wait_for(1), TransferOutcome::Ok);
  expect_error(mover_->set_device(other.geometry(), nullptr), ErrorCode::InvalidArgument, "memory is missing");
  testing::TestDevice shorter({.layers = 3, .layer_bytes = 128, .pages = 64});
  expect_error(mover_->set_device(shorter.geometry(), shorter.memory()), ErrorCode::InvalidArgument,
               "device pages of 3 layers of 128 bytes: host pages have 4 of 96");
  expect_error(try_submit(2, TransferKind::Load, {page(40, 1)}), ErrorCode::InvalidArgument, "device page 40");

  ASSERT_TRUE(mover_->set_device(other.geometry(), other.memory()).has_value());
  submit(2, TransferKind::Load, {page(40, 1), page(63, 2)});
  EXPECT_EQ(wait_for(2), TransferOutcome::Ok);
  EXPECT_TRUE(other.holds(PageId{40}, 1));
  EXPECT_TRUE(other.holds(PageId{63}, 2));
}

// What a worker uses comes with its mover: nothing depends on which one was opened last, or by which thread.
TEST_P(MoverInPlaces, EachOfTwoMoversKeepsToItsOwnDevice) {
  open();
  testing::TestDevice other({.layers = 4, .layer_bytes = 96, .pages = kDevicePages});
  adopt(other);
  MoverConfig config = config_;
  config.device_geometry = &other.geometry();
  config.device_memory = other.memory();
  std::unique_ptr<Mover> second;
  std::thread([&] { second = Mover::open(config).value(); }).join();
  const auto move = [&](std::uint32_t index, TransferKind kind, std::uint32_t first_page) {
    const std::vector<PageTransfer> moved = pages(first_page, 2);
    ASSERT_TRUE(second->try_submit({.id = id(index), .kind = kind, .pages = moved}).value());
    EXPECT_EQ(second->wait(id(index), 0, kLongNs).value(), TransferOutcome::Ok);
  };
  for (std::uint32_t page = 0; page < kDevicePages; ++page) {
    device_->fill(PageId{page}, 100 + page);
    other.fill(PageId{page}, 200 + page);
  }
  store(0, 2, 1);  // to host pages 1 and 2, as the other does
  move(1, TransferKind::Store, 4);
  submit(1, TransferKind::Load, pages(8, 2));
  EXPECT_EQ(wait_for(1), TransferOutcome::Ok);
  move(2, TransferKind::Load, 12);
  for (std::uint32_t page = 2; page < kDevicePages; ++page) {
    const bool is_loaded = page == 8 || page == 9;
    EXPECT_TRUE(device_->holds(PageId{page}, is_loaded ? page - 7 : 100 + page)) << page;
    const bool is_loaded_there = page == 12 || page == 13;
    EXPECT_TRUE(other.holds(PageId{page}, is_loaded_there ? 200 + page - 8 : 200 + page)) << page;
  }
}

// Destruction.

TEST_P(MoverInPlaces, DestructionDropsWhatIsQueuedAndStopsWhatRuns) {
  open();
  gate_.close([](const PieceStart& piece) { return piece.page_index == 1; });
  submit(1, TransferKind::Store, pages(0, 10));
  gate_.wait_for_held();
  submit(2, TransferKind::Store, {page(0, 12)});
  Mover& mover = *mover_;
  std::thread destroyer([&] { mover_.reset(); });
  while (!MoverPeer::is_stopping(mover)) std::this_thread::yield();  // It waits for the page that is being copied.
  gate_.open();
  destroyer.join();
  EXPECT_EQ(gate_.passed().size(), 2U);
}

TEST_P(MoverInPlaces, DestructionWhilePausedDoesNotWaitForResume) {
  open();
  mover_->pause();
  submit(1, TransferKind::Store, pages(0, 1));
  mover_.reset();
  EXPECT_TRUE(gate_.passed().empty());
}

TEST_P(MoverInPlaces, WhoeverWaitsIsSentHomeFirst) {
  open();
  mover_->pause();
  submit(1, TransferKind::Store, pages(0, 1));
  std::optional<Result<TransferOutcome>> outcome;
  std::thread waiter([&] { outcome = mover_->wait(id(1), 0, kLongNs); });
  wait_for_blocked(1);
  mover_.reset();
  waiter.join();
  EXPECT_EQ(outcome->value(), TransferOutcome::Cancelled);
}

}  // namespace
}  // namespace quire
