// SPDX-License-Identifier: Apache-2.0
//
// Steps whose pages arrive while they are computed, with the cache's own mover: waiting for layers on the owner's
// thread and on others, and loads that fail behind the plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ahead_fixture.h"
#include "groups_tiers_fixture.h"
#include "store/host_store_peer.h"

namespace quire {
namespace {

constexpr TransferOutcome kOk = TransferOutcome::Ok;
constexpr TransferOutcome kTimedOut = TransferOutcome::TimedOut;

[[nodiscard]] bool is_load(const PieceStart& piece) {
  return piece.kind == TransferKind::Load;
}

class CacheAheadMover : public CacheAheadTest {
 protected:
  /// A history of so many layers.
  void open_layers(std::uint32_t layer_count, std::uint16_t layer_bands) {
    open(ahead_config({layered(full_group(), layer_count)}, layer_bands));
  }
  /// Host pages that are there lose a bit each, in their last layer.
  void break_host_pages() {
    HostStore& store = MoverPeer::host_store(mover());
    const std::uint64_t bit = (cache_->geometry().page().page_bytes() * 8) - 1;
    for (std::uint32_t page = 1; page <= cache_->config().host.page_count; ++page) {
      HostStorePeer::flip_bit(store, PageId{page}, bit);
    }
  }
};

class CacheAheadMixes : public CacheAheadTest,
                        public ::testing::WithParamInterface<std::tuple<GroupMix, std::uint16_t>> {};

INSTANTIATE_TEST_SUITE_P(Cache, CacheAheadMixes,
                         ::testing::Combine(::testing::ValuesIn(ahead_mixes()),
                                            ::testing::Values<std::uint16_t>(1, 2, 3, 5, 7)),
                         [](const auto& param) {
                           return std::get<0>(param.param).name + std::to_string(std::get<1>(param.param));
                         });

// The mover's worker stands before each band of each load in turn. Whenever it does, a layer can be had if and only if
// all its bytes are there.
TEST_P(CacheAheadMixes, ALayerIsThereExactlyWhenItsBytesAre) {
  const auto& [mix, bands] = GetParam();
  CacheConfig config = ahead_config(mix.groups, bands);
  config.host.transfer_pages_max = 6;  // several loads of the history
  open(std::move(config));
  const std::vector<TokenId> prompt = token_range(0, 40);
  put_on_host(prompt);
  std::set<std::pair<std::uint32_t, std::uint32_t>> passed;  // transfer, band
  const auto hold_others = [&] {
    gate_.close(
        [passed](const PieceStart& piece) { return is_load(piece) && !passed.contains({piece.id.index, piece.band}); });
  };
  hold_others();
  AheadRequest request = ahead(with_tail(prompt, 1, 6));
  EXPECT_EQ(request.admission.loading_tokens, 40U);
  const Step step = plan({&request});
  std::size_t band_count = 0;
  for (const StepLoad& load : step.loads) band_count += load.band_count;
  EXPECT_GE(step.loads.size(), 2U);
  std::uint32_t changes = 0;
  std::uint32_t arrived_before = 0;
  for (std::size_t i = 0; i < band_count; ++i) {
    const PieceStart at = gate_.wait_for_held();
    std::uint32_t arrived = 0;
    for (const GroupLayer layer : engine_->layers()) {
      SCOPED_TRACE("stop " + std::to_string(i) + ", group " + std::to_string(layer.group_index) + ", layer " +
                   std::to_string(layer.layer_index));
      const testing::LayerBytes::Answer bytes = engine_->check(step, 0, request.tokens, layer);
      EXPECT_GT(bytes.page_count, 0U);
      EXPECT_EQ(wait(step, layer, 0), bytes.is_right ? kOk : kTimedOut);
      arrived += bytes.is_right ? 1 : 0;
    }
    changes += arrived != std::exchange(arrived_before, arrived) ? 1 : 0;
    passed.insert({at.id.index, at.band});
    hold_others();
  }
  EXPECT_GE(changes + 1U, std::min<std::size_t>(bands, 2)) << "no layer came before the others";
  for (const GroupLayer layer : engine_->layers()) EXPECT_EQ(wait(step, layer), kOk);
  drain(*cache_);
  EXPECT_TRUE(lost(step).empty());
  compute(step, request);
  finish(step);
  complete(request);
}

// Layers of the last group of the history come behind those of the first one, in bands of all of them.
TEST_F(CacheAheadMover, BandsCountTheLayersOfAllPartsOfAPool) {
  open(ahead_config({layered(full_group(), 5), layered(compressed_group(4), 3), layered(window_group(10), 6)}, 4));
  const std::vector<std::uint32_t> full = {0, 0, 1, 1, 2};
  const std::vector<std::uint32_t> compressed = {2, 3, 3};
  const std::vector<std::uint32_t> window = {0, 1, 1, 2, 3, 3};
  for (std::uint32_t i = 0; i < full.size(); ++i) EXPECT_EQ(cache_->band_of({0, i}), full[i]) << i;
  for (std::uint32_t i = 0; i < compressed.size(); ++i) EXPECT_EQ(cache_->band_of({1, i}), compressed[i]) << i;
  for (std::uint32_t i = 0; i < window.size(); ++i) EXPECT_EQ(cache_->band_of({2, i}), window[i]) << i;
  EXPECT_EQ(cache_->band_of({0, 5}), 0U) << "there is none";
  EXPECT_EQ(cache_->band_of({3, 0}), 0U) << "there is none";
}

TEST_F(CacheAheadMover, TheOwnerWaitsLayerByLayer) {
  open_layers(6, 6);
  put_on_host(token_range(0, 32));
  AheadRequest request = ahead(token_range(0, 37));
  const Step step = plan({&request});
  for (std::uint32_t l = 0; l < 6; ++l) {
    EXPECT_EQ(wait(step, {0, l}), kOk);
    EXPECT_TRUE(engine_->check(step, 0, request.tokens, {0, l}).is_right) << l;
  }
  engine_->write(step, 0, request.tokens);
  drain(*cache_);
  finish(step);
  EXPECT_EQ(view(request).host_tokens, 32U);
  complete(request);
}

// Runs under the thread sanitizer. The owner takes what has ended while others wait and read.
TEST_F(CacheAheadMover, OtherThreadsWaitWhileTheOwnerGoesOn) {
  for (std::uint32_t round = 0; round < 8; ++round) {
    open_layers(6, round % 2 == 0 ? 6 : 3);
    const std::vector<TokenId> prompt = token_range(0, 32);
    put_on_host(prompt);
    gate_.close([](const PieceStart& piece) { return is_load(piece) && piece.band == 1; });
    AheadRequest request = ahead(token_range(0, 37));
    const Step step = plan({&request});
    std::atomic<std::uint32_t> right = 0;
    std::atomic<std::uint32_t> running = 3;
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < 3; ++i) {
      threads.emplace_back([&, i] {
        for (std::uint32_t l = 0; l < 6; ++l) {
          if (i == 2) {  // asks, and never waits
            while (wait(step, {0, l}, 0) == kTimedOut) std::this_thread::yield();
          }
          const bool is_there = wait(step, {0, l}) == kOk;
          right += is_there && engine_->check(step, 0, request.tokens, {0, l}).is_right ? 1 : 0;
        }
        --running;
      });
    }
    gate_.wait_for_held();
    if (round % 4 < 2) hear();
    gate_.open();
    while (running > 0) hear();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(right, 18U);
    drain(*cache_);
    compute(step, request);
    finish(step);
    complete(request);
  }
}

TEST_F(CacheAheadMover, WaitingEndsWhenTheTimeIsOver) {
  open_layers(4, 2);
  put_on_host(token_range(0, 16));
  gate_.close([](const PieceStart& piece) { return is_load(piece) && piece.band == 1; });
  AheadRequest request = ahead(token_range(0, 18));
  const Step step = plan({&request});
  EXPECT_EQ(wait(step, {0, 1}), kOk);
  for (const TimeNs timeout_ns : {TimeNs{-5}, TimeNs{0}, TimeNs{1'000'000}}) {
    EXPECT_EQ(wait(step, {0, 2}, timeout_ns), kTimedOut);
  }
  gate_.open();
  EXPECT_EQ(wait(step, {0, 2}, INT64_MAX), kOk);
  drain(*cache_);
  compute(step, request);
  finish(step);
  complete(request);
}

TEST_F(CacheAheadMover, OnlyLayersThatThereAreCanBeWaitedFor) {
  open(ahead_config({layered(full_group(), 4), layered(window_group(10), 2)}, 2));
  put_on_host(token_range(0, 16));
  AheadRequest request = ahead(token_range(0, 18));
  const Step step = plan({&request});
  expect_error(cache_->wait_for_layer(step, {0, 4}, 0), ErrorCode::InvalidArgument,
               "the layout has no paged group 0 with a layer 4");
  expect_error(cache_->wait_for_layer(step, {1, 2}, 0), ErrorCode::InvalidArgument, "group 1 with a layer 2");
  expect_error(cache_->wait_for_layer(step, {2, 0}, 0), ErrorCode::InvalidArgument, "group 2 with a layer 0");
  expect_error(cache_->wait_on({}, step, {2, 0}), ErrorCode::InvalidArgument, "group 2 with a layer 0");
  expect_error(cache_->wait_on({}, step, {0, 0}), ErrorCode::Unsupported, "no mover with an accelerator");
  drain(*cache_);
  finish(step);
  complete(request);
}

TEST_F(CacheAheadMover, AnExternalMoverIsAskedItself) {
  CacheConfig config = ahead_config({layered(full_group(), 4)}, 2);
  config.host.external_mover = true;
  open(std::move(config));
  AheadRequest request = admitted(token_range(0, 18), {.plan_while_loading = true});
  const Step step = plan({&request});
  expect_error(cache_->wait_for_layer(step, {0, 0}, 0), ErrorCode::Unsupported, "ask its mover for band_of()");
  expect_error(cache_->wait_on({}, step, {0, 0}), ErrorCode::Unsupported, "no mover with an accelerator");
  EXPECT_EQ(cache_->band_of({0, 3}), 1U);
  finish(step);
}

TEST_F(CacheAheadMover, AStepWithoutLoadsHasNothingToWaitFor) {
  open_layers(4, 2);
  AheadRequest request = admitted(token_range(0, 18), {.plan_while_loading = true});
  EXPECT_TRUE(request.admission.is_ready);
  Step step = plan({&request});
  EXPECT_TRUE(step.loads.empty());
  for (std::uint32_t l = 0; l < 4; ++l) EXPECT_EQ(wait(step, {0, l}, 0), kOk);
  compute(step, request);
  finish(step);
  complete(request);

  CacheConfig config = ahead_config({layered(full_group(), 4)}, 1);
  config.host = {};
  open(std::move(config));
  AheadRequest bare = admitted(token_range(0, 18), {.plan_while_loading = true});
  step = plan({&bare});
  EXPECT_EQ(wait(step, {0, 3}, 0), kOk) << "there is no host tier";
  expect_error(cache_->wait_on({}, step, {0, 0}), ErrorCode::Unsupported, "no mover with an accelerator");
  compute(step, bare);
  finish(step);
}

// Loads that fail.

TEST_F(CacheAheadMover, ABadPageIsToldBehindTheLastBandAndTakesTheEntryBack) {
  open_layers(4, 4);
  put_on_host(token_range(0, 32));
  break_host_pages();
  gate_.close([](const PieceStart& piece) { return is_load(piece) && piece.band == 3; });
  AheadRequest request = ahead(token_range(0, 37));
  const Step step = plan({&request});
  for (std::uint32_t l = 0; l < 3; ++l) EXPECT_EQ(wait(step, {0, l}), kOk) << "as far as anybody knows";
  EXPECT_EQ(wait(step, {0, 3}, 0), kTimedOut);
  gate_.open();
  EXPECT_EQ(wait(step, {0, 3}), TransferOutcome::Failed);
  EXPECT_EQ(wait(step, {0, 0}, 0), TransferOutcome::Failed) << "now it is known";
  EXPECT_TRUE(lost(step).empty()) << "apply() has not heard of it";
  drain(*cache_);
  EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
  EXPECT_EQ(wait(step, {0, 3}, 0), TransferOutcome::Failed);
  finish(step);
  EXPECT_EQ(view(request).computed_tokens, 0U);
  EXPECT_EQ(view(request).pending_tokens, 37U);
  EXPECT_EQ(view(request).miss.reason, MissReason::LoadFailed);
  EXPECT_EQ(lookup(token_range(0, 37)).matched_tokens, 0U) << "nothing was published";
  complete(request);
  EXPECT_EQ(lookup(token_range(0, 37)).matched_tokens, 36U);
}

// A page that is not the one that the plan means is told before its first band.
TEST_F(CacheAheadMover, AFaultOfAnEarlyBandIsToldAtOnce) {
  open_layers(4, 4);
  put_on_host(token_range(0, 32));
  gate_.break_pieces([](const PieceStart& piece) {
    return is_load(piece) && piece.band == 1 && piece.page_index == 5 ? TransferFault::Generation : TransferFault::None;
  });
  gate_.close([](const PieceStart& piece) { return is_load(piece) && piece.band == 2; });
  AheadRequest request = ahead(token_range(0, 37));
  const Step step = plan({&request});
  (void)gate_.wait_for_held();
  for (std::uint32_t l = 0; l < 4; ++l) EXPECT_EQ(wait(step, {0, l}, 0), TransferOutcome::Failed) << l;
  hear();
  EXPECT_TRUE(lost(step).empty()) << "the pages before it are still arriving";
  const StepResult result;
  expect_error(cache_->finish_step(step, {&result, 1}), ErrorCode::Unavailable, "still arriving");
  gate_.open();
  drain(*cache_);
  EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
  finish(step);
  EXPECT_EQ(view(request).computed_tokens, 20U) << "five pages came";
  complete(request);
}

// An entry that is not lost is computed, and reads pages that were still on their way when the other one's failed.
TEST_F(CacheAheadMover, BehindALoadThatFailedTheOthersAreWaitedFor) {
  open_layers(4, 2);
  put_on_host(token_range(0, 16));
  AheadRequest warm = admitted(token_range(500, 16), {});
  complete(warm);
  forget_device();
  gate_.close(is_load);
  AheadRequest bad = ahead(token_range(0, 18));
  AheadRequest good = ahead(token_range(500, 18));
  const Step step = plan({&bad, &good});
  ASSERT_EQ(step.loads.size(), 2U);
  const TransferId failing = gate_.wait_for_held().id;
  gate_.break_pieces(
      [failing](const PieceStart& piece) { return piece.id == failing ? TransferFault::Io : TransferFault::None; });
  gate_.close([failing](const PieceStart& piece) { return is_load(piece) && piece.id != failing && piece.band == 1; });
  (void)gate_.wait_for_held();
  EXPECT_EQ(wait(step, {0, 0}, 0), TransferOutcome::Failed) << "the other one's layer is there";
  EXPECT_EQ(wait(step, {0, 3}, 0), kTimedOut) << "and here it is not";
  hear();
  EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
  EXPECT_EQ(wait(step, {0, 3}, 0), kTimedOut);
  gate_.open();
  EXPECT_EQ(wait(step, {0, 3}), TransferOutcome::Failed);
  compute(step, good, 1);
  drain(*cache_);
  finish(step);
  EXPECT_EQ(view(good).computed_tokens, 18U);
  EXPECT_EQ(view(bad).computed_tokens, 0U);
  complete(good);
  complete(bad);
}

TEST_F(CacheAheadMover, ALoadThatTheMoverHasForgottenStillAnswers) {
  for (const bool is_bad : {false, true}) {
    open_layers(4, 2);
    put_on_host(token_range(0, 16));
    if (is_bad) break_host_pages();
    AheadRequest request = ahead(token_range(0, 18));
    const Step step = plan({&request});
    ASSERT_EQ(step.loads.size(), 1U);
    drain(*cache_);
    std::vector<Completion> completions(64);
    for (std::uint32_t i = 0; i < 4096; ++i) {
      ASSERT_TRUE(mover().try_submit({.id = {.index = 1'000'000 + i, .generation = 1}, .pages = {}}).value());
      if (i % 16 == 0) (void)mover().poll(completions);
    }
    while (!mover().poll(completions).empty()) continue;
    expect_error(mover().wait(step.loads[0].id, 0, 0), ErrorCode::InvalidArgument, "unknown");
    for (std::uint32_t l = 0; l < 4; ++l) {
      EXPECT_EQ(wait(step, {0, l}), is_bad ? TransferOutcome::Failed : kOk);
    }
    EXPECT_EQ(lost(step).size(), is_bad ? 1U : 0U);
    if (!is_bad) compute(step, request);
    finish(step);
    complete(request);
  }
}

TEST_F(CacheAheadMover, StopLoadingEndsTheWaiting) {
  open_layers(4, 4);
  put_on_host(token_range(0, 16));
  gate_.close([](const PieceStart& piece) { return is_load(piece) && piece.band == 1; });
  AheadRequest request = ahead(token_range(0, 18));
  const Step step = plan({&request});
  (void)gate_.wait_for_held();
  EXPECT_EQ(wait(step, {0, 0}, 0), kOk);
  ASSERT_TRUE(cache_->stop_loading(request.sequence));
  expect_invariants();
  EXPECT_EQ(lost(step), std::vector<std::uint32_t>{0});
  TransferOutcome last = kOk;
  std::thread waiter([&] { last = wait(step, {0, 3}); });
  gate_.open();
  waiter.join();
  EXPECT_EQ(last, TransferOutcome::Cancelled);
  drain(*cache_);
  EXPECT_EQ(wait(step, {0, 0}, 0), TransferOutcome::Cancelled);
  finish(step);
  EXPECT_EQ(view(request).miss.reason, MissReason::LoadCancelled);
  complete(request);
}

// The cache goes while its pages arrive and somebody waits for them.
TEST_F(CacheAheadMover, WhoeverWaitsIsToldThatTheSequenceHasEnded) {
  open_layers(4, 2);
  put_on_host(token_range(0, 16));
  gate_.close([](const PieceStart& piece) { return is_load(piece) && piece.band == 1; });
  AheadRequest request = ahead(token_range(0, 18));
  const Step step = plan({&request});
  (void)gate_.wait_for_held();
  std::thread waiter([&] { (void)wait(step, {0, 3}); });
  ASSERT_TRUE(cache_->end(request.sequence));
  expect_invariants();
  finish(step);  // nobody waits for the pages of a sequence that has ended
  gate_.open();
  waiter.join();
  drain(*cache_);
  expect_invariants();
}

// State: filled by the plan's copies, from snapshots that have to be there by then.

class CacheAheadStates : public CacheGroupsTiersTest {
 protected:
  ~CacheAheadStates() override {
    gate_.open();
    cache_.reset();
  }
  void SetUp() override {
    CacheConfig config = host_config({full_group(), state_group(0, every(8))}, 96);
    config.host.external_mover = false;
    config.steps_in_flight_max = 3;
    open_tiers(std::move(config));
    MoverPeer::set_hooks(CacheForTests::mover(*cache_),
                         {.before_piece = [this](const PieceStart& piece) { return gate_.pass(piece); }});
    run_request(prompt_);
    settle();
    put_history_on_host();
    ASSERT_EQ(lookup(with_tail(prompt_, 1, 4)).host_tokens, 40U);
    gate_.close(is_load);
  }
  [[nodiscard]] GroupsRequest ahead() { return start(with_tail(prompt_, 1, 6), {.plan_while_loading = true}); }

  testing::MoverGate gate_;
};

TEST_F(CacheAheadStates, CopiesAreRefusedUntilTheSnapshotIsThere) {
  GroupsRequest request = ahead();
  const GroupsFlight flight = plan({{.request = &request, .sampled = {500}}});
  ASSERT_FALSE(flight.step.plan.state_copies.empty());
  expect_error(cache_->apply_copies(flight.step), ErrorCode::Unavailable, "wait_for_layer()");
  expect_error(cache_->apply_copies(flight.step), ErrorCode::Unavailable, "still arriving");
  gate_.open();
  EXPECT_EQ(cache_->wait_for_layer(flight.step, {1, 0}, kAheadLongNs), kOk);
  EXPECT_EQ(cache_->wait_for_layer(flight.step, {0, 0}, kAheadLongNs), kOk);
  run(flight);  // applies the copies, and finds the state
  settle();
  finish(flight);
  expect_invariants();
  decode(request, 5);
  end(request);
  settle();
  expect_empty_after_reset();
}

TEST_F(CacheAheadStates, AStepThatIsAbortedBeforeItsSnapshotIsThereLeavesNoWrongState) {
  GroupsRequest request = ahead();
  for (int i = 0; i < 2; ++i) {
    const GroupsFlight flight = plan({{.request = &request}});
    expect_error(cache_->apply_copies(flight.step), ErrorCode::Unavailable, "still arriving");
    ASSERT_TRUE(cache_->abort_step(flight.step));
    expect_invariants();
    EXPECT_TRUE(view(request).is_ready);
  }
  const GroupsFlight flight = plan({{.request = &request}});
  gate_.open();
  EXPECT_EQ(cache_->wait_for_layer(flight.step, {1, 0}, kAheadLongNs), kOk);
  EXPECT_EQ(cache_->wait_for_layer(flight.step, {0, 0}, kAheadLongNs), kOk);
  run(flight);
  settle();
  finish(flight);
  decode(request, 9);
  end(request);
  settle();
  expect_empty_after_reset();
}

// What comes instead of the snapshot is nobody's state.
TEST_F(CacheAheadStates, ASnapshotThatFailsTakesTheEntryBack) {
  GroupsRequest request = ahead();
  const GroupsFlight flight = plan({{.request = &request}});
  gate_.break_pieces([](const PieceStart& piece) { return is_load(piece) ? TransferFault::Io : TransferFault::None; });
  gate_.open();
  EXPECT_EQ(cache_->wait_for_layer(flight.step, {1, 0}, kAheadLongNs), TransferOutcome::Failed);
  settle();
  gate_.break_pieces(nullptr);
  EXPECT_EQ(cache_->lost_entries(flight.step)->size(), 1U);
  spoil(flight);
  finish(flight);
  expect_invariants();
  run_all(request);
  decode(request, 5);
  end(request);
  settle();
  expect_empty_after_reset();
}

TEST_F(CacheAheadStates, StopLoadingBeforeTheSnapshotIsThere) {
  GroupsRequest request = ahead();
  const GroupsFlight flight = plan({{.request = &request}});
  expect_error(cache_->apply_copies(flight.step), ErrorCode::Unavailable, "still arriving");
  ASSERT_TRUE(cache_->stop_loading(request.sequence));
  expect_invariants();
  EXPECT_EQ(cache_->lost_entries(flight.step)->size(), 1U);
  gate_.open();
  settle();
  spoil(flight);
  finish(flight);
  expect_invariants();
  run_all(request);
  decode(request, 5);
  end(request);
  settle();
  expect_empty_after_reset();
}

}  // namespace
}  // namespace quire
