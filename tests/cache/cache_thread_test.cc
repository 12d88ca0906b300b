// SPDX-License-Identifier: Apache-2.0
//
// One thread decides; handles may be dropped anywhere. Runs under the thread sanitizer.
#include <gtest/gtest.h>

#include <thread>

#include "cache_fixture.h"

namespace quire {
namespace {

using CacheThread = CacheTest;

TEST_F(CacheThread, EveryCallFromAnotherThreadIsRefusedAndChangesNothing) {
  open(4, 8);
  Sequence sequence = begin_admitted(token_range(1, 4));
  const std::string text = "another thread";
  std::thread([&] {
    const std::vector<TokenId> tokens = token_range(1, 4);
    const auto refused = [&](const auto& result) { expect_error(result, ErrorCode::InvalidArgument, text); };
    refused(cache_->key_space({}));
    refused(cache_->lookup(space_, {.tokens = tokens}));
    refused(cache_->begin(space_, {.tokens = tokens}));
    refused(cache_->admit(sequence));
    refused(cache_->plan_step({}));
    refused(cache_->apply_copies({}));
    refused(cache_->finish_step({}, {}));
    refused(cache_->abort_step({}));
    refused(cache_->append(sequence, {.tokens = tokens}));
    refused(cache_->end(sequence));
    refused(cache_->view(sequence));
    refused(cache_->keep(space_, {.tokens = tokens}, 1));
    refused(cache_->unkeep({}));
    refused(cache_->advance(1));
    refused(cache_->drop(space_));
    refused(cache_->reset());
    refused(cache_->resize(9));
    refused(cache_->offer(space_, {}));
    refused(cache_->match(space_, {.tokens = tokens}));
    refused(cache_->reclaim(1));
    refused(cache_->take_released({}));
    refused(cache_->stats());
    refused(cache_->visit_runs([](const RunView&) {}));
    refused(cache_->read_residency(0, {}));
    refused(cache_->check_invariants());
    refused(cache_->fork(sequence, 1));
    refused(cache_->rewind(sequence, 1));
    refused(cache_->set_window(sequence, {2, 1}));
    refused(cache_->commit_tree(sequence, 0));
    refused(cache_->preempt(sequence, Preempt::Drop));
    refused(cache_->resume(sequence));
    refused(cache_->prepare_receive(sequence, 1));
    refused(cache_->finish_receive(sequence));
    refused(cache_->abort_receive(sequence));
    refused(cache_->mark_send(sequence, 0, {}, 0));
    refused(cache_->poll());
    refused(cache_->apply({}, 1));
    refused(cache_->set_ready_callback(nullptr));
    refused(cache_->take_transfers({}));
    refused(cache_->take_cancellations({}));
    refused(cache_->host_region());
    refused(cache_->stop_loading(sequence));
    refused(cache_->pause_transfers());
    refused(cache_->resume_transfers());
    refused(cache_->sleep(Sleep::DropAll));
    refused(cache_->wake());
  }).join();
  EXPECT_EQ(stats().sequence_count, 1U);
}

TEST_F(CacheThread, TheCacheCanBeHandedToAnotherThread) {
  open(4, 8);
  std::thread([&] {
    cache_->set_owner_thread();
    EXPECT_TRUE(cache_->stats().has_value());
  }).join();
  EXPECT_FALSE(cache_->stats().has_value());
  cache_->set_owner_thread();
  EXPECT_TRUE(cache_->stats().has_value());
}

TEST_F(CacheThread, HandlesDroppedOnManyThreadsAllEnd) {
  CacheConfig config = test_config(4, 64);
  config.sequence_count_max = 64;
  open(std::move(config));
  for (TokenId round = 0; round < 50; ++round) {
    std::vector<Sequence> sequences(64);
    for (Sequence& each : sequences) each = begin_admitted(token_range(round, 4));
    std::vector<std::thread> threads(4);
    for (std::size_t t = 0; t < threads.size(); ++t) {
      threads[t] = std::thread([&sequences, t] {
        for (std::size_t i = t; i < sequences.size(); i += 4) sequences[i] = Sequence();
      });
    }
    // The owner goes on working while handles are dropped.
    const TimeNs now = TimeNs{round} * 100;
    for (TimeNs i = 0; i < 20; ++i) ASSERT_TRUE(cache_->advance(now + i));
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(cache_->advance(now + 50));
    ASSERT_EQ(stats().sequence_count, 0U);
  }
}

TEST_F(CacheThread, HandlesMayBeDroppedElsewhereAfterTheCacheIsGone) {
  open(4, 8);
  Sequence sequence = begin_admitted(token_range(1, 4));
  engine_.reset();
  cache_.reset();
  std::thread([&sequence] { sequence = Sequence(); }).join();
}

}  // namespace
}  // namespace quire
