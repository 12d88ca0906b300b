// SPDX-License-Identifier: Apache-2.0
//
// The lower tier of a shared store: what is dropped, and what a flush says of it.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/transfer/remote_mover_fixture.h"

namespace quire {
namespace {

using testing::SimRemoteServer;

TEST_F(RemoteMoverTest, ADroppedKeySpaceIsGoneAndOthersAreNot) {
  RemoteEngine& engine = open();
  RemoteEngine& other_layout = open({.layout = 5});
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(engine, prompt, 0, 0);
  store_prompt(engine, prompt, 20, 1);
  EXPECT_EQ(end_of(engine, engine.submit_store(0, 0, 2, 1)).outcome, TransferOutcome::Ok);
  store_prompt(other_layout, prompt, 0, 0);
  EXPECT_EQ(store_.keys().size(), 2U + 2U + 2U + 2U);
  EXPECT_EQ(end_of(engine, engine.submit_drop(3, 0)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(store_.keys().size(), 2U);
  EXPECT_EQ(find(engine, prompt, {.key_space = 0}).good_pages, 0U);
  EXPECT_EQ(find(engine, prompt, {.key_space = 1}).good_pages, 8U);
  EXPECT_EQ(end_of(engine, engine.submit_drop(3, kAllKeySpaces)).outcome, TransferOutcome::Ok);
  EXPECT_TRUE(store_.keys().empty());
}

TEST_F(RemoteMoverTest, ADropIsOverAtOnceThoughTheStoreHangs) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(engine, prompt, 0, 0);
  store_prompt(engine, prompt, 20, 1);
  EXPECT_EQ(find(engine, prompt).good_pages, 8U);
  store_.set_node(SimRemoteServer::Node::Stopped);
  engine.put_on_host(remote_prompt(2, 8), 40);
  const TransferId stored = engine.submit_store(0, 40, 8);  // waits for its answer
  EXPECT_EQ(end_of(engine, engine.submit_drop(3, 0)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(end_of(engine, engine.submit_drop(3, 1)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(end_of(engine, engine.submit_drop(3, kAllKeySpaces)).outcome, TransferOutcome::Ok);
  // Nothing of it is found, not even what was found before, and the store is not asked.
  EXPECT_EQ(load(engine, 0, 8).good_pages, 0U);
  EXPECT_EQ(find(engine, prompt).outcome, TransferOutcome::Empty);
  EXPECT_EQ(end_of(engine, engine.submit_direct(TransferKind::GetFromBelow, 5, prompt, 0)).good_pages, 0U);
  EXPECT_FALSE(engine.heard(stored).has_value());
  store_.set_node(SimRemoteServer::Node::Up);
  settle();
  EXPECT_TRUE(engine.heard(stored).has_value());
  EXPECT_TRUE(store_.keys().empty());
  store_prompt(engine, prompt);
  EXPECT_EQ(find(engine, prompt).good_pages, 8U);
}

TEST_F(RemoteMoverTest, AStoreBesideADropSkipsWhatIsDroppedAndWritesTheRest) {
  for (int seed = 0; seed < 20; ++seed) {
    RemoteEngine& engine = open();
    store_.restart_empty();
    const RemotePrompt prompt = remote_prompt(1, 8);
    engine.put_on_host(prompt, 0, 0);
    engine.put_on_host(prompt, 20, 1);
    const TransferId drop = engine.submit_drop(3, 0);
    run_movers();
    EXPECT_TRUE(engine.heard(drop).has_value());
    const TransferId dropped = engine.submit_store(4, 0, 8);
    const TransferId kept = engine.submit_store(5, 20, 8);
    const TransferId direct = engine.submit_direct(TransferKind::PutBelow, 6, prompt, 1);
    run_movers();
    EXPECT_EQ(store_.batch_count(), 2U);  // the drop, and the question for what it does not take
    EXPECT_EQ(engine.heard(direct)->good_pages, 0U);
    const Completion skipped = engine.heard(dropped).value();
    EXPECT_EQ(skipped.outcome, TransferOutcome::Cancelled);
    EXPECT_EQ(skipped.good_pages, 0U);
    settle();
    EXPECT_EQ(engine.heard(kept)->outcome, TransferOutcome::Ok);
    EXPECT_EQ(store_.keys().size(), 2U);
    EXPECT_EQ(find(engine, prompt, {.key_space = 0}).good_pages, 0U);
    EXPECT_EQ(find(engine, prompt, {.key_space = 1}).good_pages, 8U);
    EXPECT_EQ(engine.mover->stats().skipped_pages, 8U + 8U);
    engines_.clear();
    clients_.clear();
  }
}

// Whoever hears of a bad page takes the first one that was not written for it.
TEST_F(RemoteMoverTest, APageThatIsNotWrittenBecauseOfADropIsNotTakenForABadOneBehindIt) {
  RemoteEngine& engine = open();
  engine.put_on_host(remote_prompt(1, 4), 0, 0);
  engine.put_on_host(remote_prompt(2, 8), 4, 1);
  engine.history.spoil(engine.host_page(0, 9));
  store_.set_node(SimRemoteServer::Node::Stopped);
  (void)end_of(engine, engine.submit_drop(3, 0));
  const TransferId id = engine.submit_store(4, 0, 12);
  settle();
  store_.set_node(SimRemoteServer::Node::Up);
  const Completion stored = end_of(engine, id);
  EXPECT_EQ(stored.good_pages, 0U);
  EXPECT_EQ(stored.outcome, TransferOutcome::Cancelled);
  EXPECT_EQ(stored.fault, TransferFault::None);
  EXPECT_EQ(store_.keys().size(), 1U);  // what stands between
}

// Answers come in any order; the store says so itself when a drop and a put before it are there at the same time.
TEST_F(RemoteMoverTest, WhatWasAskedForOrPutBeforeADropDoesNotSurviveIt) {
  for (int seed = 0; seed < 20; ++seed) {
    for (const int answer_count : {0, 1, 2, 3}) {
      RemoteEngine& engine = open();
      store_.restart_empty();
      const RemotePrompt prompt = remote_prompt(1, 8);
      engine.put_on_host(prompt, 0, 0);
      engine.put_on_host(prompt, 20, 1);
      const RemotePrompt longer = remote_prompt(2, 40);  // several transfers' worth
      const std::array ids = {engine.submit_store(0, 0, 8), engine.submit_store(4, 20, 8),
                              engine.submit_direct(TransferKind::PutBelow, 5, longer, 2)};
      run_movers();
      for (int i = 0; i < answer_count; ++i) {
        ASSERT_TRUE(store_.run_one());
        run_movers();
      }
      const TransferId drop = engine.submit_drop(3, 0);
      run_movers();
      EXPECT_TRUE(engine.heard(drop).has_value());
      const std::uint64_t put_before = store_.counts().put;
      settle();
      if (answer_count == 0) {
        EXPECT_EQ(store_.counts().put, put_before + 2);  // what the other key space has
      }
      for (const TransferId id : ids) {
        const TransferOutcome outcome = engine.heard(id)->outcome;  // a drop may come before it was put
        EXPECT_TRUE(outcome == TransferOutcome::Ok || outcome == TransferOutcome::Cancelled) << to_string(outcome);
      }
      EXPECT_EQ(store_.keys().size(), 2U);
      forget_absent();
      EXPECT_EQ(find(engine, prompt, {.key_space = 0}).good_pages, 0U);
      EXPECT_EQ(find(engine, longer, {.key_space = 0}).good_pages, 0U);
      EXPECT_EQ(find(engine, prompt, {.key_space = 1}).good_pages, 8U);
      engines_.clear();
      clients_.clear();
    }
  }
}

TEST_F(RemoteMoverTest, AStreamOfStoresKeepsNoDropAndNoFlushWaiting) {
  RemoteEngine& engine = open();
  store_prompt(engine, remote_prompt(0, 4), 0, 0);
  std::uint32_t stored = 0;
  const auto store_another = [&] {  // of the other key space, at one of ten places
    const std::uint32_t place = 10 + (stored % 10 * 4);
    engine.put_on_host(remote_prompt(++stored, 4), place, 1);
    (void)engine.submit_store(5 + (stored % 10), place, 4);
  };
  for (int i = 0; i < 4; ++i) store_another();
  run_movers();
  const TransferId drop = engine.submit_drop(3, 0);
  const TransferId flush = engine.submit_flush(4);
  bool is_dropped = false;
  bool is_flushed = false;
  for (int answers = 0; answers < 200 && !is_flushed; ++answers) {
    run_movers();
    is_dropped = is_dropped || engine.heard(drop).has_value();
    is_flushed = engine.heard(flush).has_value();
    for (; engine.completions.size() > 0; engine.completions.pop_back()) store_another();
    run_movers();
    EXPECT_GE(store_.batch_count(), 4U);
    ASSERT_TRUE(store_.run_one());
  }
  EXPECT_TRUE(is_dropped && is_flushed);
  settle();
  EXPECT_EQ(store_.keys().size(), stored);
}

TEST_F(RemoteMoverTest, ADropThatFailsIsTriedAgainAndHidesItsKeySpaceUntilThen) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(engine, prompt);
  EXPECT_EQ(find(engine, prompt).good_pages, 8U);
  store_.set_node(SimRemoteServer::Node::Failing);
  EXPECT_EQ(end_of(engine, engine.submit_drop(3, 0)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(engine.mover->stats().failed_drops, 1U);
  store_.set_node(SimRemoteServer::Node::Up);
  const std::size_t key_count = store_.keys().size();
  EXPECT_GT(key_count, 0U);  // half of what fails happens; not here
  EXPECT_EQ(find(engine, prompt).good_pages, 0U);
  EXPECT_EQ(end_of(engine, engine.submit_direct(TransferKind::GetFromBelow, 5, prompt, 0)).good_pages, 0U);
  EXPECT_EQ(find(engine, prompt, {.key_space = 1}).outcome, TransferOutcome::Empty);
  // Nothing new comes below it.
  EXPECT_EQ(end_of(engine, engine.submit_store(0, 0, 8)).outcome, TransferOutcome::Cancelled);
  EXPECT_EQ(store_.keys().size(), key_count);
  set_now(now_ + 1'000'000'000);
  settle();
  EXPECT_TRUE(store_.keys().empty());
  EXPECT_EQ(store_prompt(engine, prompt).outcome, TransferOutcome::Ok);
  EXPECT_EQ(find(engine, prompt).good_pages, 8U);
}

TEST_F(RemoteMoverTest, ADropThatIsAskedForAgainIsTriedAtOnceAndHidesOnce) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_.set_node(SimRemoteServer::Node::Failing);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    (void)end_of(engine, engine.submit_drop(3, 0));
    EXPECT_EQ(engine.mover->stats().failed_drops, i);
  }
  store_.set_node(SimRemoteServer::Node::Up);
  (void)end_of(engine, engine.submit_drop(3, 0));
  store_prompt(engine, prompt);
  EXPECT_EQ(find(engine, prompt).good_pages, 8U);
  // One that is asked for while it is at the store takes what others have put meanwhile.
  const std::uint64_t before = store_.counts().dropped;
  (void)engine.submit_drop(3, 0);
  run_movers();
  EXPECT_EQ(store_.batch_count(), 1U);
  (void)engine.submit_drop(4, 0);
  (void)engine.submit_drop(5, 0);
  run_movers();
  EXPECT_EQ(store_.batch_count(), 1U);
  settle();
  EXPECT_EQ(store_.counts().dropped, before + 2);
}

TEST_F(RemoteMoverTest, ADropOfEverythingEndsThoseOfKeySpacesBeforeItOnly) {
  for (int seed = 0; seed < 20; ++seed) {
    RemoteEngine& engine = open();
    const RemotePrompt prompt = remote_prompt(1, 8);
    store_.set_node(SimRemoteServer::Node::Failing);
    (void)end_of(engine, engine.submit_drop(3, 0));
    store_.set_node(SimRemoteServer::Node::Stopped);
    for (const std::uint32_t key_space : {kAllKeySpaces, 1U, 2U}) {
      (void)end_of(engine, engine.submit_drop(4, key_space));
    }
    EXPECT_EQ(store_.batch_count(), 2U);  // there may be no more of them
    store_.set_node(SimRemoteServer::Node::Up);
    const std::uint64_t before = store_.counts().dropped;
    settle();
    EXPECT_EQ(store_.counts().dropped, before + 3);  // and none for the first, whose pause was not over
    for (int i = 0; i < 2; ++i) {
      store_prompt(engine, prompt, 0, 0);
      store_prompt(engine, prompt, 20, 1);
      store_prompt(engine, prompt, 40, 2);
      for (std::uint32_t space = 0; space < 3; ++space) {
        EXPECT_EQ(find(engine, prompt, {.key_space = space}).good_pages, 8U);
      }
      set_now(now_ + 60'000'000'000);
      settle();
    }
    engines_.clear();
    clients_.clear();
    store_.restart_empty();
  }
}

TEST_F(RemoteMoverTest, NothingIsPutBelowADropThatIsStillAtTheStore) {
  for (int seed = 0; seed < 20; ++seed) {
    RemoteEngine& engine = open();
    const RemotePrompt prompt = remote_prompt(1, 8);
    engine.put_on_host(prompt, 20, 1);
    for (const std::uint32_t key_space : {1U, kAllKeySpaces}) (void)engine.submit_drop(4 + key_space % 4, key_space);
    run_movers();
    EXPECT_EQ(store_.batch_count(), 2U);
    ASSERT_TRUE(store_.run_one());  // that of everything does for both, when it is this one
    run_movers();
    (void)engine.submit_store(0, 20, 8);
    do {
      run_movers();
    } while (store_.run_one());
    engine.hear();
    engine.completions.clear();
    store_prompt(engine, prompt, 20, 1);
    forget_absent();
    EXPECT_EQ(find(engine, prompt, {.key_space = 1}).good_pages, 8U);
    engines_.clear();
    clients_.clear();
    store_.restart_empty();
  }
}

TEST_F(RemoteMoverTest, AFlushSaysWhetherTheDropsBeforeItHaveReachedTheStore) {
  RemoteEngine& engine = open();
  RemoteEngine& other = open({.first_page = 30});
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(engine, prompt, 0, 0);
  store_prompt(engine, prompt, 20, 1);
  EXPECT_EQ(find(other, prompt).good_pages, 8U);
  store_.set_node(SimRemoteServer::Node::Failing);
  (void)end_of(engine, engine.submit_drop(3, 0));
  for (std::uint64_t i = 2; i < 6; ++i) {  // each tries once more, however long the pause would be
    const Completion flushed = end_of(engine, engine.submit_flush(4));
    EXPECT_EQ(flushed.outcome, TransferOutcome::Failed);
    EXPECT_EQ(flushed.fault, TransferFault::None);
    EXPECT_EQ(engine.mover->stats().failed_drops, i);
  }
  store_.set_node(SimRemoteServer::Node::Up);
  store_prompt(other, prompt, 0, 0);  // half of what fails has happened
  EXPECT_EQ(store_.keys().size(), 4U);
  // What is at the store when a flush begins was tried before it.
  store_.set_node(SimRemoteServer::Node::Stopped);
  set_now(now_ + 60'000'000'000);
  settle();
  EXPECT_EQ(store_.batch_count(), 1U);
  const TransferId late = engine.submit_flush(4);
  settle();
  set_now(now_ + 30'000'000'000);
  settle();
  EXPECT_EQ(store_.batch_count(), 1U);
  EXPECT_FALSE(engine.heard(late).has_value());
  store_.set_node(SimRemoteServer::Node::Up);
  EXPECT_EQ(end_of(engine, late).outcome, TransferOutcome::Ok);
  forget_absent();
  EXPECT_EQ(find(other, prompt).good_pages, 0U);
  EXPECT_EQ(find(other, prompt, {.key_space = 1}).good_pages, 8U);
  EXPECT_EQ(end_of(engine, engine.submit_flush(4)).outcome, TransferOutcome::Ok);
}

TEST_F(RemoteMoverTest, AMoverThatOnlyReadsHidesWhatItDropsAndAsksTheStoreForNothing) {
  store_prompt(open(), remote_prompt(1, 8));
  RemoteEngine& engine = open({.first_page = 30, .is_read_only = true});
  const RemotePrompt prompt = remote_prompt(1, 8);
  EXPECT_EQ(find(engine, prompt).good_pages, 8U);
  for (int i = 0; i < 3; ++i) (void)end_of(engine, engine.submit_drop(3, 0));
  EXPECT_EQ(end_of(engine, engine.submit_flush(4)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(store_.counts().dropped, 0U);
  EXPECT_EQ(find(engine, prompt).good_pages, 0U);
  set_now(now_ + 600'000'000'000);
  EXPECT_EQ(find(engine, prompt).good_pages, 0U);
}

// The server has it in a buffer, and is stopped; when it goes on, nobody waits for an answer any more.
TEST_F(RemoteMoverTest, APutThatWasGivenUpDoesNotComeBackBehindADrop) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 4);
  store_prompt(engine, prompt);
  const std::string key = store_.keys()[0];
  const std::vector<std::byte> value = store_.value(key);
  store_.restart_empty();
  const TransferId id = engine.submit_store(0, 0, 4);
  while (engine.mover->run()) {
  }
  ASSERT_TRUE(store_.run_one());  // its question
  store_.set_node(SimRemoteServer::Node::Stopped);
  settle();
  set_now(now_ + 5'000'000'000);
  EXPECT_EQ(end_of(engine, id).outcome, TransferOutcome::Failed);
  store_.set_node(SimRemoteServer::Node::Up);
  store_.restart_empty();
  EXPECT_EQ(end_of(engine, engine.submit_drop(3, 0)).outcome, TransferOutcome::Ok);
  store_.put_value(key, value);
  EXPECT_EQ(find(engine, prompt).good_pages, 0U);
  const TransferId flush = engine.submit_flush(4);
  settle();
  EXPECT_FALSE(engine.heard(flush).has_value());
  set_now(now_ + 1'000'000'000);
  EXPECT_EQ(end_of(engine, flush).outcome, TransferOutcome::Ok);
  EXPECT_TRUE(store_.keys().empty());
  EXPECT_EQ(store_prompt(engine, prompt).outcome, TransferOutcome::Ok);
  EXPECT_EQ(find(engine, prompt).good_pages, 4U);
  EXPECT_EQ(engine.mover->stats().failed_drops, 0U);
}

TEST_F(RemoteMoverTest, TheMorePausesADropHasMadeTheLongerTheyAre) {
  RemoteEngine& engine = open();
  store_.set_node(SimRemoteServer::Node::Failing);
  (void)end_of(engine, engine.submit_drop(3, 0));
  EXPECT_EQ(engine.mover->stats().failed_drops, 1U);
  for (std::uint64_t i = 0; i < 3; ++i) {
    set_now(now_ + (TimeNs{1'000'000'000} << i) - 1);
    settle();
    EXPECT_EQ(engine.mover->stats().failed_drops, 1 + i);
    set_now(now_ + 1);
    settle();
    EXPECT_EQ(engine.mover->stats().failed_drops, 2 + i);
  }
}

TEST_F(RemoteMoverTest, AFlushEndsWhenAllPutsBeforeItHaveBeenAnswered) {
  RemoteEngine& engine = open();
  engine.put_on_host(remote_prompt(1, 8), 0);
  const TransferId store_id = engine.submit_store(0, 0, 8);
  const TransferId flush = engine.submit_flush(1);
  while (engine.mover->run()) {
  }
  EXPECT_FALSE(engine.heard(flush).has_value());
  settle();
  engine.hear();
  ASSERT_EQ(engine.completions.size(), 2U);
  EXPECT_EQ(engine.completions[0].id, store_id);
  EXPECT_EQ(engine.completions[1].id, flush);
  EXPECT_EQ(engine.completions[1].outcome, TransferOutcome::Ok);
}

}  // namespace
}  // namespace quire
