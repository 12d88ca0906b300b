// SPDX-License-Identifier: Apache-2.0
//
// Prefill in one cache and decode in another, of layouts with several groups: what one sends of pages, windows and
// states is what the other goes on with. Both have an engine that reads every byte a model would.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "cache_groups_fixture.h"
#include "peer_bytes.h"

namespace quire {
namespace {

std::vector<GroupMix> peer_mixes() {
  return {{"one group", {full_group()}},
          {"window", {full_group(), window_group(20)}},
          {"short window", {full_group(), window_group(3, every(16))}},
          {"window of one", {full_group(), window_group(1)}},
          {"window with a sink", {with_sink(window_group(9), 5), full_group()}},
          {"two windows", {window_group(7, kLast), full_group(), named(window_group(30), "far"), full_group("more")}},
          {"compressed", {full_group(), compressed_group(4)}},
          {"entries alone", {compressed_group(4)}},
          {"entries first", {compressed_group(2), full_group()}},
          {"windows alone", {window_group(20)}},
          {"state", {full_group(), state_group(0, every(32))}},
          {"state with versions", {full_group(), state_group(2, every(16))}},
          {"ring", {full_group(), with_sink(ring_group(10, 14, every(32)), 2)}},
          {"tail", {full_group(), compressed_group(4), tail_group(4, 4, 12, every(16))}},
          {"tail without overlap", {compressed_group(4), tail_group(4, 0, 8, kNone)}},
          {"state alone", {state_group(1, kLast)}},
          {"all",
           {full_group(), compressed_group(4), window_group(20), ring_group(10, 14, every(32)),
            state_group(1, every(16)), tail_group(4, 4, 12, every(16))}}};
}

/// One of the two caches, with all that CacheGroupsTest can do.
class Peer final : public CacheGroupsTest {
  void TestBody() override {}
};

class CacheGroupsPeers : public ::testing::Test {
 protected:
  void open(const std::vector<CacheGroup>& groups, std::uint32_t page_tokens = 8, std::uint32_t target_page_tokens = 0,
            std::uint32_t page_count = 64) {
    sender_.open(groups_config(groups, page_tokens, page_count, 256));
    receiver_.open(groups_config(groups, target_page_tokens > 0 ? target_page_tokens : page_tokens, page_count, 256));
  }
  void TearDown() override {
    if (sender_.cache_) sender_.expect_invariants();
    if (receiver_.cache_) receiver_.expect_invariants();
  }
  /// All that a request is to receive, from what it has on.
  void mark(GroupsRequest& sending, const GroupsRequest& receiving, std::uint32_t token_count) {
    const Status status = try_mark(sending, receiving, token_count);
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }
  [[nodiscard]] Status try_mark(GroupsRequest& sending, const GroupsRequest& receiving, std::uint32_t token_count) {
    const std::uint32_t begin = receiver_.view(receiving).computed_tokens;
    const Result<std::span<const SlotRun>> slots = receiver_.cache_->prepare_receive(receiving.sequence, token_count);
    EXPECT_TRUE(slots.has_value()) << slots.error().message;
    const ReceiveTargets targets = receiver_.cache_->receive_targets(receiving.sequence).value();
    receiver_.expect_invariants();
    return sender_.cache_->mark_send(sending.sequence, begin, *slots, 5, targets);
  }
  /// One step of the sender, whose bytes go over.
  void send_step(GroupsRequest& sending, std::uint32_t token_count = 0) {
    send_step({{.request = &sending, .token_count = token_count}});
  }
  void send_step(std::vector<GroupsWork> works) {
    const GroupsFlight flight = sender_.plan(std::move(works));
    EXPECT_EQ(sender_.engine_->start(flight.step), "");
    testing::send_before(*sender_.cache_, flight.step.plan, *receiver_.cache_);
    sender_.run(flight);
    EXPECT_EQ(testing::send_after(*sender_.cache_, flight.step.plan, *receiver_.cache_), "");
    sender_.finish(flight);
    sender_.expect_invariants();
  }
  void send_all(GroupsRequest& sending, std::uint32_t chunk = UINT32_MAX) {
    while (sender_.view(sending).pending_tokens > 0 && !HasFailure()) {
      send_step(sending, std::min(sender_.view(sending).pending_tokens, chunk));
    }
  }
  void finish_receive(GroupsRequest& receiving) {
    const Status status = receiver_.cache_->finish_receive(receiving.sequence);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    receiver_.expect_invariants();
  }

  Peer sender_;
  Peer receiver_;
};

TEST_F(CacheGroupsPeers, WhatOneComputesTheOtherDecodes) {
  for (const GroupMix& mix : peer_mixes()) {
    for (const std::uint32_t token_count : {3U, 40U, 90U, 93U}) {
      SCOPED_TRACE(mix.name + ", " + std::to_string(token_count) + " tokens");
      open(mix.groups);
      GroupsRequest decoding = receiver_.start(token_range(0, token_count));
      GroupsRequest prefill = sender_.start(token_range(0, token_count));
      mark(prefill, decoding, token_count);
      send_all(prefill, 37);
      finish_receive(decoding);
      EXPECT_EQ(receiver_.cache_->stats()->received_tokens, token_count);
      EXPECT_EQ(receiver_.view(decoding).computed_tokens, token_count);
      receiver_.decode(decoding, 40);
      receiver_.end(decoding);
      // Whatever is found of it is right, and a prefix of it can be sent again.
      (void)receiver_.run_request(with_tail(token_range(0, token_count), 1, 9));
      receiver_.expect_empty_after_reset();
      if (HasFailure()) return;
    }
  }
}

TEST_F(CacheGroupsPeers, WhatBothHaveOfAPromptIsNotSent) {
  for (const GroupMix& mix : peer_mixes()) {
    for (const std::uint32_t page_tokens : {8U, 4U}) {
      SCOPED_TRACE(mix.name + ", pages of " + std::to_string(page_tokens));
      open(mix.groups, 8, page_tokens);
      const std::vector<TokenId> prompt = with_tail(token_range(0, 50), 3, 31);
      (void)sender_.run_request(token_range(0, 64));
      (void)receiver_.run_request(token_range(0, 48));
      GroupsRequest decoding = receiver_.start(prompt, {.match_tokens_max = 48});
      GroupsRequest prefill = sender_.start(prompt, {.use_cache = page_tokens == 8});
      mark(prefill, decoding, 81 - receiver_.view(decoding).computed_tokens);
      send_all(prefill, 13);
      finish_receive(decoding);
      receiver_.decode(decoding, 25);
      if (HasFailure()) return;
    }
  }
}

TEST_F(CacheGroupsPeers, WhatWasComputedBeforeTheMarkIsListedByTheNextStep) {
  for (const GroupMix& mix : peer_mixes()) {
    for (const std::uint32_t before : {1U, 30U, 60U, 69U, 70U}) {
      SCOPED_TRACE(mix.name + ", " + std::to_string(before) + " before the mark");
      open(mix.groups);
      GroupsRequest decoding = receiver_.start(token_range(0, 70));
      GroupsRequest prefill = sender_.start(token_range(0, 70));
      sender_.step({{.request = &prefill, .token_count = before, .sampled = {500}}});
      while (sender_.view(prefill).computed_tokens < before) sender_.step({{&prefill, 1}});
      mark(prefill, decoding, 70);
      // A state would count the last token twice: it is listed by a step that computes another one.
      if (sender_.view(prefill).pending_tokens == 0) sender_.append(prefill, {500});
      send_all(prefill);
      finish_receive(decoding);
      receiver_.decode(decoding, 20);
      if (HasFailure()) return;
    }
  }
}

TEST_F(CacheGroupsPeers, AStepEndsWhereAStateIsSent) {
  open({full_group(), state_group(0, every(64))});
  GroupsRequest decoding = receiver_.start(token_range(0, 50));
  GroupsRequest prefill = sender_.start(token_range(0, 50));
  mark(prefill, decoding, 37);
  const GroupsFlight first = sender_.plan({{.request = &prefill}});
  EXPECT_EQ(first.step.plan.entries[0].token_count, 37U);
  ASSERT_EQ(first.step.plan.state_sends.size(), 1U);
  const StateSend wanted{.source = static_cast<std::int32_t>(sender_.view(prefill).state_slot),
                         .target = static_cast<std::int32_t>(receiver_.view(decoding).state_slot),
                         .position = 37,
                         .receiver = 5,
                         .time = SendTime::AfterStep};
  EXPECT_EQ(first.step.plan.state_sends[0], wanted);
  const GroupsFlight second = sender_.plan({{.request = &prefill}});
  EXPECT_TRUE(second.step.plan.state_sends.empty());
  sender_.run(first);
  EXPECT_EQ(testing::send_after(*sender_.cache_, first.step.plan, *receiver_.cache_), "");
  sender_.run(second);
  sender_.finish(first);
  sender_.finish(second);
  finish_receive(decoding);
  receiver_.run_all(decoding);
}

TEST_F(CacheGroupsPeers, AStateThatIsThereIsSentBeforeTheNextStep) {
  open({full_group(), state_group(0, every(64))});
  GroupsRequest decoding = receiver_.start(token_range(0, 40));
  GroupsRequest prefill = sender_.start(token_range(0, 40));
  sender_.run_all(prefill, {700});
  mark(prefill, decoding, 40);
  const GroupsFlight flight = sender_.plan({{.request = &prefill}});
  ASSERT_EQ(flight.step.plan.state_sends.size(), 1U);
  EXPECT_EQ(flight.step.plan.state_sends[0].time, SendTime::BeforeStep);
  EXPECT_EQ(sender_.engine_->start(flight.step), "");
  testing::send_before(*sender_.cache_, flight.step.plan, *receiver_.cache_);
  sender_.run(flight);
  sender_.finish(flight);
  finish_receive(decoding);
  receiver_.decode(decoding, 3);
}

TEST_F(CacheGroupsPeers, OnlyTheLastWindowIsReserved) {
  open({full_group(), with_sink(window_group(20), 3)});
  GroupsRequest decoding = receiver_.start(token_range(0, 100));
  ASSERT_TRUE(receiver_.cache_->prepare_receive(decoding.sequence, 100));
  const ReceiveTargets targets = receiver_.cache_->receive_targets(decoding.sequence).value();
  std::vector<std::pair<std::uint32_t, std::int64_t>> tokens;
  for (const WindowRun& run : targets.windows) tokens.emplace_back(run.position, run.token_count);
  // The page of the sink, and those of the last 20 tokens: the last one may run again.
  EXPECT_EQ(tokens, (std::vector<std::pair<std::uint32_t, std::int64_t>>{{0, 8}, {80, 20}}));
  EXPECT_EQ(targets.state_slot, -1);
  EXPECT_EQ(receiver_.group_stats(1).open_pages, 4U);
  EXPECT_EQ(receiver_.group_stats(0).open_pages, 13U);
}

TEST_F(CacheGroupsPeers, AnAbortedReceiveLeavesNothing) {
  for (const GroupMix& mix : peer_mixes()) {
    SCOPED_TRACE(mix.name);
    open(mix.groups);
    GroupsRequest decoding = receiver_.start(token_range(0, 90));
    const std::string before = receiver_.dump({&decoding});
    ASSERT_TRUE(receiver_.cache_->prepare_receive(decoding.sequence, 90));
    ASSERT_TRUE(receiver_.cache_->abort_receive(decoding.sequence));
    EXPECT_EQ(receiver_.dump({&decoding}), before);
    receiver_.run_all(decoding, {}, 17);
    if (HasFailure()) return;
  }
}

TEST_F(CacheGroupsPeers, AReceiveThatIsAbortedHalfwayLosesAState) {
  for (const GroupMix& mix : peer_mixes()) {
    SCOPED_TRACE(mix.name);
    open(mix.groups);
    GroupsRequest decoding = receiver_.start(token_range(0, 90));
    receiver_.step({{.request = &decoding, .token_count = 21}});
    const std::uint32_t computed = receiver_.view(decoding).computed_tokens;
    GroupsRequest prefill = sender_.start(token_range(500, 90));  // what arrives is of no use
    mark(prefill, decoding, 60);
    send_all(prefill);
    ASSERT_TRUE(receiver_.cache_->abort_receive(decoding.sequence));
    receiver_.expect_invariants();
    EXPECT_LE(receiver_.view(decoding).computed_tokens, computed);
    receiver_.run_all(decoding, {}, 17);
    receiver_.decode(decoding, 5);
    if (HasFailure()) return;
  }
}

TEST_F(CacheGroupsPeers, AReceiverThatIsEndedGivesEverythingBack) {
  for (const GroupMix& mix : peer_mixes()) {
    SCOPED_TRACE(mix.name);
    open(mix.groups);
    {
      GroupsRequest dropped = receiver_.start(token_range(0, 90));
      GroupsRequest ended = receiver_.start(token_range(200, 90));
      receiver_.step({{&dropped, 11}, {&ended, 40}});
      ASSERT_TRUE(receiver_.cache_->prepare_receive(dropped.sequence, 30));
      ASSERT_TRUE(receiver_.cache_->prepare_receive(ended.sequence, 30));
      expect_error(receiver_.cache_->preempt(dropped.sequence, Preempt::Drop), ErrorCode::Unavailable, "is receiving");
      receiver_.end(ended);
    }
    receiver_.expect_invariants();
    receiver_.expect_empty_after_reset();
  }
}

TEST_F(CacheGroupsPeers, AForkOfAReceiverHasWhatItComputed) {
  open({full_group(), window_group(6)});
  GroupsRequest decoding = receiver_.start(token_range(0, 90));
  receiver_.step({{.request = &decoding, .token_count = 21}});
  GroupsRequest prefill = sender_.start(token_range(0, 90));
  mark(prefill, decoding, 60);
  GroupsRequest child = receiver_.fork(decoding, 21);
  send_all(prefill);
  receiver_.append(child, {900, 901});
  receiver_.run_all(child);
  finish_receive(decoding);
  receiver_.run_all(decoding);
  receiver_.decode(child, 12);
}

TEST_F(CacheGroupsPeers, AReceiversStateIsNotForked) {
  open({full_group(), state_group(0, every(64))});
  GroupsRequest decoding = receiver_.start(token_range(0, 90));
  receiver_.step({{.request = &decoding, .token_count = 21}});
  ASSERT_TRUE(receiver_.cache_->prepare_receive(decoding.sequence, 30));
  expect_error(receiver_.cache_->fork(decoding.sequence, 21), ErrorCode::Unavailable, "its state may be overwritten");
  GroupsRequest anew = receiver_.fork(decoding, 0);
  ASSERT_TRUE(receiver_.cache_->abort_receive(decoding.sequence));
  receiver_.append(anew, {5, 6});
  receiver_.run_all(anew);
  receiver_.run_all(decoding);
}

TEST_F(CacheGroupsPeers, AStateThatIsStillToBeCopiedIsNotReceived) {
  open({full_group(), state_group(1, every(64))});
  GroupsRequest source = receiver_.start(token_range(0, 40));
  receiver_.step({{.request = &source, .token_count = 24}});
  GroupsRequest child = receiver_.fork(source, 24);
  receiver_.append(child, token_range(600, 20));
  for (const GroupsRequest* request : {&source, &child}) {
    expect_error(receiver_.cache_->prepare_receive(request->sequence, 9), ErrorCode::Unavailable, "plan one first");
  }
  GroupsRequest other = receiver_.start(token_range(300, 10));
  const GroupsFlight flight = receiver_.compute({{&other}});
  for (const GroupsRequest* request : {&source, &child}) {
    expect_error(receiver_.cache_->prepare_receive(request->sequence, 9), ErrorCode::Unavailable, "is in flight");
  }
  receiver_.finish(flight);
  EXPECT_TRUE(receiver_.cache_->prepare_receive(child.sequence, 9).has_value());
}

// A page of a window that was begun here and not finished by what has arrived is nothing for others.
TEST_F(CacheGroupsPeers, APageOfAWindowThatHasArrivedInPartIsNotCached) {
  for (const std::uint32_t end : {90U, 30U}) {  // behind a gap, or in the page that follows
    open({full_group(), window_group(6)});
    GroupsRequest decoding = receiver_.start(token_range(0, end));
    receiver_.step({{.request = &decoding, .token_count = 21}});
    GroupsRequest prefill = sender_.start(token_range(0, end));
    mark(prefill, decoding, end - 21);
    send_all(prefill);
    finish_receive(decoding);
    std::vector<TokenId> columns;
    const std::span<const PageId> path = receiver_.view(decoding).pages();
    ASSERT_TRUE(receiver_.cache_->visit_group_pages(1, [&](PageId page, PageId) {
      columns.push_back(static_cast<TokenId>(std::ranges::find(path, page) - path.begin()));
    }));
    std::ranges::sort(columns);
    EXPECT_EQ(columns, (end == 90 ? std::vector<TokenId>{0, 1, 10} : std::vector<TokenId>{0, 1}));
    receiver_.decode(decoding, 9);
    receiver_.end(decoding);
    EXPECT_EQ(receiver_.run_request(with_tail(token_range(0, 24), 2, 5)), 16U);
    EXPECT_GE(receiver_.run_request(with_tail(token_range(0, end), 3, 5)), end / 8 * 8);
  }
}

TEST_F(CacheGroupsPeers, ASnapshotIsTakenWhereAReceiveEndsAtACheckpoint) {
  open({full_group(), state_group(0, every(32))});
  GroupsRequest decoding = receiver_.start(token_range(0, 70));
  GroupsRequest prefill = sender_.start(token_range(0, 70));
  mark(prefill, decoding, 64);
  send_all(prefill);
  finish_receive(decoding);
  receiver_.run_all(decoding);
  EXPECT_EQ(receiver_.group_stats(1).sealed_pages, 1U);
  receiver_.end(decoding);
  EXPECT_EQ(receiver_.lookup(with_tail(token_range(0, 70), 2, 5)).matched_tokens, 64U);
  EXPECT_EQ(receiver_.run_request(with_tail(token_range(0, 70), 2, 5)), 64U);
  EXPECT_EQ(receiver_.run_request(with_tail(token_range(0, 40), 3, 5)), 0U);  // nobody has sent the state at 32
}

TEST_F(CacheGroupsPeers, AMarkedSequenceThatLosesItsPagesBeginsAnew) {
  for (const GroupMix& mix : peer_mixes()) {
    SCOPED_TRACE(mix.name);
    open(mix.groups);
    GroupsRequest decoding = receiver_.start(token_range(0, 70));
    GroupsRequest prefill = sender_.start(token_range(0, 70));
    mark(prefill, decoding, 70);
    send_step(prefill, 50);
    ASSERT_TRUE(sender_.cache_->preempt(prefill.sequence, Preempt::Drop));
    ASSERT_TRUE(sender_.cache_->resume(prefill.sequence));
    send_step(prefill, 10);
    const GroupsFlight lost = sender_.plan({{.request = &prefill, .token_count = 5}});
    sender_.spoil(lost);
    sender_.abort(lost);
    send_all(prefill);
    finish_receive(decoding);
    receiver_.decode(decoding, 20);
    if (HasFailure()) return;
  }
}

TEST_F(CacheGroupsPeers, OfSeveralAtOnceEachGetsItsOwn) {
  for (const GroupMix& mix : peer_mixes()) {
    SCOPED_TRACE(mix.name);
    open(mix.groups);
    std::vector<GroupsRequest> decoding;
    std::vector<GroupsRequest> prefill;
    for (TokenId i = 0; i < 3; ++i) {
      const std::vector<TokenId> prompt = with_tail(token_range(0, 30), i, 40 + (7 * i));
      decoding.push_back(receiver_.start(prompt));
      prefill.push_back(sender_.start(prompt));
    }
    for (std::size_t i = 0; i < 3; ++i) {
      mark(prefill[i], decoding[i], static_cast<std::uint32_t>(decoding[i].tokens.size()));
    }
    send_step(prefill[1], 9);
    send_step({{&prefill[0], 20}, {&prefill[1], 30}, {&prefill[2], 50}});
    receiver_.end(decoding[1]);  // what is sent to it from here on would be others'
    ASSERT_TRUE(sender_.cache_->mark_send(prefill[1].sequence, 0, {}, 5));
    for (int i = 0; i < 20; ++i) send_step({{&prefill[0], 1}, {&prefill[1], 1}});
    send_all(prefill[0], 13);
    send_all(prefill[2], 4);
    for (const std::size_t i : {2, 0}) {
      finish_receive(decoding[i]);
      receiver_.decode(decoding[i], 12);
    }
    if (HasFailure()) return;
  }
}

// What is refused

TEST_F(CacheGroupsPeers, AWindowThatHasLeftWhatIsWantedCannotBeSent) {
  open({full_group(), window_group(20)});
  GroupsRequest decoding = receiver_.start(token_range(0, 60));
  GroupsRequest prefill = sender_.start(token_range(0, 100));
  sender_.run_all(prefill);
  const std::string before = sender_.dump({&prefill});
  expect_error(try_mark(prefill, decoding, 60), ErrorCode::InvalidArgument,
               "mark_send: sequence 0 group 'window' no longer holds its tokens [40, 60), which its window of 20 "
               "tokens has left");
  EXPECT_EQ(sender_.dump({&prefill}), before);
}

TEST_F(CacheGroupsPeers, AStateThatHasGoneOnCannotBeSent) {
  open({full_group(), state_group(1, every(64))});
  GroupsRequest decoding = receiver_.start(token_range(0, 60));
  GroupsRequest prefill = sender_.start(token_range(0, 62));
  sender_.run_all(prefill);
  expect_error(try_mark(prefill, decoding, 60), ErrorCode::InvalidArgument, "no longer has the state behind 60 tokens");
  ASSERT_TRUE(receiver_.cache_->abort_receive(decoding.sequence));
  receiver_.append(decoding, {60});
  mark(prefill, decoding, 61);  // one version earlier is still there
  sender_.append(prefill, {900});
  send_all(prefill);
  finish_receive(decoding);
  receiver_.decode(decoding, 4);
}

// What it has listed once is listed again by the next step, so it must be there again.
TEST_F(CacheGroupsPeers, AStateToBeSentThatALostStepHasOverwrittenIsComputedAgain) {
  for (const CacheGroup& state : {state_group(1, every(64)), tail_group(8, 0, 12, kNone)}) {
    open({full_group(), state});
    GroupsRequest decoding = receiver_.start(token_range(0, 45));
    GroupsRequest prefill = sender_.start(token_range(0, 46));
    sender_.run_all(prefill);
    mark(prefill, decoding, 45);
    sender_.append(prefill, token_range(900, 12));
    const GroupsFlight lost = sender_.plan({{.request = &prefill}});
    ASSERT_EQ(lost.step.plan.state_sends.size(), 1U);
    sender_.spoil(lost);
    sender_.abort(lost);
    EXPECT_EQ(sender_.view(prefill).computed_tokens, 0U);
    send_all(prefill);
    finish_receive(decoding);
    receiver_.decode(decoding, 4);
  }
}

TEST_F(CacheGroupsPeers, SlotsThatAreNotThoseOfTheReceiverAreRefused) {
  open({full_group(), window_group(20), named(window_group(5), "near"), state_group(1, every(64))});
  GroupsRequest prefill = sender_.start(token_range(0, 60));
  GroupsRequest decoding = receiver_.start(token_range(0, 60));
  const std::span<const SlotRun> slots = receiver_.cache_->prepare_receive(decoding.sequence, 60).value();
  const ReceiveTargets right = receiver_.cache_->receive_targets(decoding.sequence).value();
  const std::string before = sender_.dump({&prefill});
  const auto expect_refused = [&](const ReceiveTargets& targets, const char* reason) {
    expect_error(sender_.cache_->mark_send(prefill.sequence, 0, slots, 5, targets), ErrorCode::InvalidArgument, reason);
    EXPECT_EQ(sender_.dump({&prefill}), before);
  };
  expect_refused({}, "group 'window' has no slot for token 41");
  expect_refused({.windows = right.windows}, "has a state: give the receiver's state slot");
  std::vector<WindowRun> runs(right.windows.begin(), right.windows.end());
  const auto expect_bad_runs = [&](const char* reason) {
    expect_refused({.windows = runs, .state_slot = right.state_slot}, reason);
    runs.assign(right.windows.begin(), right.windows.end());
  };
  runs.pop_back();
  expect_bad_runs("group 'near' has no slot for token 56");
  std::ranges::reverse(runs);
  expect_bad_runs("group 'window' has no slot for token 41");
  runs[0].group = 7;
  expect_bad_runs("group 'window' has no slot for token 41");
  runs.push_back(runs.front());
  expect_bad_runs("has a run of slots of group 1");
  runs[0].first_slot = -1;
  expect_bad_runs("has slots from -1 on");
  runs[0].token_count = 0;
  expect_bad_runs("for 0 tokens at 40");
  runs[0].token_count = INT64_MAX;
  expect_bad_runs("are among those that are sent, [0, 60)");
  runs[0].position = UINT32_MAX;
  expect_bad_runs("tokens at 4,294,967,295");
  runs.insert(runs.begin(), runs.front());
  expect_bad_runs("runs follow each other");
  EXPECT_TRUE(sender_.cache_->mark_send(prefill.sequence, 0, slots, 5, right));
  EXPECT_TRUE(sender_.cache_->mark_send(prefill.sequence, 0, {}, 5));
  const GroupsFlight flight = sender_.compute({{&prefill}});
  EXPECT_TRUE(flight.step.plan.groups[1].remote_slots.empty() && flight.step.plan.state_sends.empty());
  sender_.finish(flight);

  open({full_group(), window_group(20)});
  GroupsRequest plain = sender_.start(token_range(0, 60));
  const SlotRun run{.first_slot = 8, .token_count = 1};
  const WindowRun window{.group = 1, .position = 0, .first_slot = 8, .token_count = 1};
  expect_error(sender_.cache_->mark_send(plain.sequence, 0, {&run, 1}, 5, {.windows = {&window, 1}, .state_slot = 0}),
               ErrorCode::InvalidArgument, "has no state, and a state slot was given");
  EXPECT_TRUE(sender_.cache_->mark_send(plain.sequence, 0, {&run, 1}, 5, {.windows = {&window, 1}}));
}

TEST_F(CacheGroupsPeers, OneThatIsMarkedReceivesNothing) {
  open({full_group(), window_group(20)});
  GroupsRequest first = receiver_.start(token_range(0, 60));
  GroupsRequest second = sender_.start(token_range(0, 60));
  mark(second, first, 60);
  expect_error(sender_.cache_->prepare_receive(second.sequence, 10), ErrorCode::Unavailable, "is marked for sending");
  ASSERT_TRUE(sender_.cache_->mark_send(second.sequence, 0, {}, 5));
  EXPECT_TRUE(sender_.cache_->prepare_receive(second.sequence, 10));
}

TEST_F(CacheGroupsPeers, OneThatIsBeingRebuiltNeitherSendsNorReceives) {
  const CacheGroup window = rebuilt(window_group(6, kNone), 12);
  open({full_group(), window});
  (void)sender_.run_request(token_range(0, 40));
  GroupsRequest request = sender_.start(with_tail(token_range(0, 40), 1, 20));
  ASSERT_GT(request.admission.replay_tokens, 0U);
  expect_error(sender_.cache_->prepare_receive(request.sequence, 10), ErrorCode::Unavailable,
               "is being rebuilt up to its token 40");
  GroupsRequest decoding = receiver_.start(request.tokens);
  expect_error(try_mark(request, decoding, 60), ErrorCode::Unavailable, "is being rebuilt up to its token 40");
  ASSERT_TRUE(receiver_.cache_->abort_receive(decoding.sequence));
  sender_.step({{&request, 12}});
  mark(request, decoding, 60);
  send_all(request, 7);
  finish_receive(decoding);
  receiver_.decode(decoding, 12);
}

TEST_F(CacheGroupsPeers, WhatWasRebuiltInexactlyIsNotSent) {
  const CacheGroup window = rebuilt(window_group(6, kNone), 12, /*is_exact=*/false);
  open({full_group(), window});
  (void)sender_.run_request(token_range(0, 40));
  GroupsRequest request = sender_.start(with_tail(token_range(0, 40), 1, 20), {.allow_inexact_replay = true});
  ASSERT_GT(request.admission.replay_tokens, 0U);
  const SlotRun run{.first_slot = 8, .token_count = 60};
  expect_error(sender_.cache_->mark_send(request.sequence, 0, {&run, 1}, 5), ErrorCode::Unsupported,
               "was rebuilt inexactly");
}

TEST_F(CacheGroupsPeers, APoolOfAWindowThatIsShortIsNamed) {
  CacheConfig config = groups_config({full_group(), window_group(20)}, 8, 64, 64);
  config.device.group_page_counts = {64, 16};
  receiver_.open(std::move(config));
  std::vector<GroupsRequest> others;
  for (TokenId i = 0; i < 5; ++i) others.push_back(receiver_.start(token_range(100 + (i * 100), 28)));
  for (GroupsRequest& other : others) receiver_.run_all(other);
  GroupsRequest decoding = receiver_.start(token_range(0, 60));
  const std::string before = receiver_.dump({&decoding});
  expect_error(receiver_.cache_->prepare_receive(decoding.sequence, 60), ErrorCode::Unavailable,
               "prepare_receive: sequence 5 needs 3 pages of group 'window'; 1 are free or can be evicted");
  EXPECT_EQ(receiver_.dump({&decoding}), before);
  receiver_.end(others.front());
  EXPECT_TRUE(receiver_.cache_->prepare_receive(decoding.sequence, 60));
}

TEST_F(CacheGroupsPeers, TargetsAreThoseOfAReceiver) {
  open({full_group(), window_group(20)});
  GroupsRequest request = receiver_.start(token_range(0, 60));
  expect_error(receiver_.cache_->receive_targets(request.sequence), ErrorCode::InvalidArgument,
               "receive_targets: sequence 0 is not receiving");
}

}  // namespace
}  // namespace quire
