// SPDX-License-Identifier: Apache-2.0
//
// What the host tier is given: configurations that cannot work, calls for the other kind of mover, completions of
// nothing. Whatever is refused has changed nothing. And what became of the memory that was asked for.
#include <gtest/gtest.h>

#include "cache_fixture.h"
#include "tiers_fixture.h"

namespace quire {
namespace {

class CacheTiers : public TiersTest {
 protected:
  [[nodiscard]] static CacheConfig through() { return tiers_config(24, 48, WritePolicy::WriteThrough); }
  template <typename Call>
  void expect_refused(const Call& call, ErrorCode code, const std::string& text,
                      std::span<const Sequence* const> sequences = {}) {
    const std::string before = dump_tiers(*cache_, sequences);
    expect_error(call(), code, text);
    EXPECT_EQ(dump_tiers(*cache_, sequences), before);
  }
};
using CacheHostInput = CacheTiers;
class CacheOpen : public TiersTest {};

TEST_F(CacheOpen, TheHostTierIsRefusedWithWhatIsWrong) {
  const auto refused = [](const auto& change, ErrorCode code, const std::string& text) {
    CacheConfig config = tiers_config(24, 48);
    change(config);
    expect_error(config.validate(), code, text);
    expect_error(Cache::open(std::move(config)), code, text);
  };
  constexpr ErrorCode kInvalid = ErrorCode::InvalidArgument;
  refused([](CacheConfig& c) { c.host.capacity_bytes = 1'000; }, kInvalid,
          "host.page_count and host.capacity_bytes are both set");
  refused([](CacheConfig& c) { c.host.policy = "lrv"; }, kInvalid, "host.policy: ");
  refused([](CacheConfig& c) { c.host.write_policy = static_cast<WritePolicy>(3); }, kInvalid,
          "host.write_policy is 3: use WriteBack, WriteThrough or Selective");
  refused([](CacheConfig& c) { c.host.write_hits_min = 0; }, kInvalid, "use WritePolicy::WriteThrough for that");
  refused([](CacheConfig& c) { c.host.layer_bands = 0; }, kInvalid, "host.layer_bands is 0");
  refused([](CacheConfig& c) { c.host.layer_bands = 2; }, kInvalid, "host.layer_bands is 2; the model has 1 layers");
  refused([](CacheConfig& c) { c.host.rank_count = 0; }, kInvalid, "host.rank_count is 0");
  refused([](CacheConfig& c) { c.host.rank_count = 65; }, kInvalid, "host.rank_count is 65; the most is 64");
  refused(
      [](CacheConfig& c) {
        c.host.rank_count = 2;
        c.host.external_mover = false;
      },
      kInvalid, "the cache's own mover moves one rank: set external_mover");
  refused([](CacheConfig& c) { c.host.transfer_count_max = 0; }, kInvalid, "host.transfer_count_max is 0");
  refused([](CacheConfig& c) { c.host.transfer_count_max = 65'537; }, kInvalid, "host.transfer_count_max is 65,537");
  refused([](CacheConfig& c) { c.host.transfer_pages_max = 0; }, kInvalid, "host.transfer_pages_max is 0");
  refused([](CacheConfig& c) { c.host.transfer_pages_max = 65'537; }, kInvalid, "host.transfer_pages_max is 65,537");
  refused([](CacheConfig& c) { c.host.compute_ns_per_token = -1; }, kInvalid, "times from 0 on");
  refused([](CacheConfig& c) { c.host.load_timeout_ns = -1; }, kInvalid, "times from 0 on");
  refused(
      [](CacheConfig& c) {
        c.device.memory = DeviceMemory::None;
        c.host.external_mover = false;
      },
      kInvalid, "there are no bytes to move");
  refused([](CacheConfig& c) { c.device.pool = DevicePool::External; }, ErrorCode::Unsupported,
          "a host tier needs an owned device pool");
  const auto refused_by_open = [](const auto& change, const std::string& text) {
    CacheConfig config = tiers_config(24, 48);
    change(config);
    expect_error(Cache::open(std::move(config)), kInvalid, text);
  };
  refused_by_open([](CacheConfig& c) { c.host.clean_reserve_pages = 25; },
                  "host.clean_reserve_pages is 25; the device pool has 24 pages");
  refused_by_open(
      [](CacheConfig& c) {
        c.host.page_count = 0;
        c.host.capacity_bytes = 31;
      },
      "host.capacity_bytes is 31: too small for one page of 32 bytes (4 tokens of 8 bytes)");
  refused_by_open(
      [](CacheConfig& c) {
        c.host.page_count = 0;
        c.host.capacity_bytes = UINT64_MAX;
      },
      "the host tier would have");
}

TEST_F(CacheOpen, WhatIsSaidInBytesIsRoundedDown) {
  CacheConfig config = tiers_config(24, 0);
  config.host.capacity_bytes = (32 * 7) + 31;
  open_tiers(std::move(config));
  EXPECT_EQ(stats().host_page_count, 7U);
  EXPECT_EQ(cache_->config().host.page_count, 7U);
}

TEST_F(CacheTiers, EveryCombinationOfMemoryAndMoverOpensAndCloses) {
  for (const DeviceMemory memory : {DeviceMemory::Host, DeviceMemory::Adopted, DeviceMemory::None}) {
    for (const bool has_host : {false, true}) {
      for (const bool is_external : {false, true}) {
        for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
          std::vector<std::byte> adopted(std::size_t{9} * 4 * kTestTokenBytes);
          CacheConfig config = tiers_config(8, has_host ? 16 : 0, policy);
          config.host.external_mover = is_external;
          config.device.memory = memory;
          if (memory == DeviceMemory::Adopted) config.device.adopted_memory = adopted.data();
          Result<std::unique_ptr<Cache>> cache = Cache::open(std::move(config));
          if (memory == DeviceMemory::None && has_host && !is_external) {
            expect_error(cache, ErrorCode::InvalidArgument, "there are no bytes to move");
            continue;
          }
          ASSERT_TRUE(cache.has_value()) << cache.error().message;
          EXPECT_EQ((*cache)->event_fd() >= 0, has_host && !is_external);
          EXPECT_EQ((*cache)->host_region().has_value(), has_host && !is_external);
          const KeySpaceId space = (*cache)->key_space({.model = "test"}).value();
          for (TokenId i = 0; i < 3; ++i) {
            const std::vector<TokenId> tokens = token_range(100 * i, 8);
            Sequence sequence = (*cache)->begin(space, {.tokens = tokens}).value();
            ASSERT_TRUE((*cache)->admit(sequence));
            const StepEntry entry{&sequence};
            const PlanOutcome outcome = (*cache)->plan_step({&entry, 1}).value();
            if (!outcome.step) break;
            const StepResult result;
            ASSERT_TRUE((*cache)->finish_step(*outcome.step, {&result, 1}));
            if (i == 1) break;  // the handle outlives its use
            ASSERT_TRUE((*cache)->end(sequence));
          }
          if (has_host && is_external && policy == WritePolicy::WriteThrough) {
            std::array<TransferPlan, 1> plan;
            EXPECT_EQ((*cache)->take_transfers(plan)->size(), 1U);
          }
          cache->reset();  // with transfers queued and moving
        }
      }
    }
  }
}

TEST_F(CacheTiers, WhatIsTheEnginesOutlivesAResetASleepAndTheCache) {
  std::vector<std::byte> adopted(std::size_t{9} * 4 * kTestTokenBytes);
  CacheConfig config = tiers_config(8, 16, WritePolicy::WriteThrough);
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_memory = adopted.data();
  open_tiers(std::move(config));
  std::vector<std::byte> device;
  decltype(HandMover::host_pages) host;
  TokenId first = 0;
  const auto compute = [&] {
    Sequence sequence = begin_admitted(token_range(first, 16));
    const StepEntry entry{&sequence};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    ASSERT_TRUE(outcome.step.has_value());
    engine_->run(outcome.step->plan.entries[0], 0, token_range(first, 16));
    const StepResult result;
    ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
    ASSERT_TRUE(cache_->end(sequence));
    settle();
    first += 100;
    device = adopted;
    host = mover_->host_pages;
  };
  const auto expect_untouched = [&](const char* call) {
    EXPECT_EQ(adopted, device) << call;
    EXPECT_EQ(mover_->host_pages, host) << call;
  };
  compute();
  EXPECT_EQ(host.size(), 4U);
  ASSERT_TRUE(cache_->reset());
  settle();
  expect_untouched("reset");
  for (const Sleep how : {Sleep::KeepHost, Sleep::DropAll}) {
    compute();
    ASSERT_TRUE(cache_->sleep(how).value());
    ASSERT_TRUE(cache_->wake());
    expect_untouched("sleep");
  }
  compute();
  cache_.reset();
  expect_untouched("destruction");
}

TEST_F(CacheTiers, CallsForTheOtherKindOfMoverAreRefused) {
  std::array<TransferPlan, 1> plans;
  std::array<TransferId, 1> ids;
  open_tiers(through());
  put_on_host(token_range(0, 16));
  Live live = admitted(token_range(0, 16));
  const std::array<const Sequence*, 1> sequences = {&live.sequence};
  expect_refused([&] { return cache_->poll(); }, ErrorCode::Unsupported, "see take_transfers()", sequences);
  expect_refused([&] { return cache_->host_region(); }, ErrorCode::Unsupported, "moves pages itself", sequences);
  EXPECT_EQ(cache_->event_fd(), -1);
  // What is loading is not planned, nor changed.
  const StepEntry entry{&live.sequence};
  constexpr ErrorCode kInvalid = ErrorCode::InvalidArgument;
  expect_refused([&] { return cache_->plan_step({&entry, 1}); }, kInvalid, "is loading", sequences);
  expect_refused([&] { return cache_->admit(live.sequence); }, kInvalid, "was admitted before", sequences);
  expect_refused([&] { return cache_->fork(live.sequence, 4); }, kInvalid, "is loading", sequences);
  expect_refused([&] { return cache_->rewind(live.sequence, 4); }, kInvalid, "is loading", sequences);
  expect_refused([&] { return cache_->set_window(live.sequence, {8, 1}); }, kInvalid, "is loading", sequences);
  expect_refused([&] { return cache_->commit_tree(live.sequence, -1); }, kInvalid, "", sequences);
  expect_refused([&] { return cache_->preempt(live.sequence, Preempt::Drop); }, kInvalid, "is loading", sequences);
  expect_refused([&] { return cache_->preempt(live.sequence, Preempt::Save); }, kInvalid, "is loading", sequences);
  expect_refused([&] { return cache_->resume(live.sequence); }, kInvalid, "not preempted", sequences);
  expect_refused([&] { return cache_->prepare_receive(live.sequence, 1); }, kInvalid, "is loading", sequences);
  expect_refused([&] { return cache_->mark_send(live.sequence, 0, {}, 1); }, kInvalid, "is loading", sequences);
  expect_refused([&] { return cache_->reset(); }, ErrorCode::Unavailable, "live sequences: 1", sequences);
  expect_refused([&] { return cache_->resize(30); }, ErrorCode::Unavailable, "1 transfers are in flight", sequences);
  settle();
  expect_refused([&] { return cache_->stop_loading(live.sequence); }, kInvalid, "is not loading", sequences);
  finish(live);
  expect_refused([&] { return cache_->stop_loading(live.sequence); }, kInvalid, "has ended");
  expect_refused([&] { return cache_->stop_loading({}); }, kInvalid, "the handle is empty");

  CacheConfig own = through();
  own.host.external_mover = false;
  open(std::move(own));
  expect_refused([&] { return cache_->take_transfers(plans); }, ErrorCode::Unsupported, "see host.external_mover");
  expect_refused([&] { return cache_->take_cancellations(ids); }, ErrorCode::Unsupported, "see host.external_mover");

  open(test_config(4, 8));
  EXPECT_TRUE(cache_->poll()->empty());
  expect_refused([&] { return cache_->host_region(); }, ErrorCode::Unsupported, "no host tier");
  expect_refused([&] { return cache_->take_transfers(plans); }, ErrorCode::Unsupported, "");
  ASSERT_TRUE(cache_->resume_transfers());
}

TEST_F(CacheHostInput, CompletionsThatMakeNoSenseAreRefusedOrCounted) {
  open_tiers(through());
  Live live = computed(token_range(0, 16));
  expect_invariants();
  const auto counted = [&](const Completion& completion) {
    const std::uint64_t before = stats().unknown_completion_count;
    const std::string picture = dump_tiers(*cache_);
    apply({completion});
    EXPECT_EQ(stats().unknown_completion_count, before + 1);
    EXPECT_EQ(dump_tiers(*cache_), picture);
  };
  counted({});
  counted({.id = {0, 0}});  // there is such a transfer, but nobody has taken it
  counted({.id = {0, 7}});
  counted({.id = {63, 0}});
  counted({.id = {64, 0}});
  mover_->take();
  ASSERT_EQ(mover_->waiting.size(), 1U);
  const Completion done = mover_->move(0);
  counted({.id = {done.id.index, done.id.generation + 1}});
  counted({.id = done.id, .rank = 1});
  const std::vector<Completion> bad = {done, {.id = done.id, .outcome = static_cast<TransferOutcome>(200)}};
  expect_refused([&] { return cache_->apply(bad, 0); }, ErrorCode::InvalidArgument, "completion 1 has outcome 200");
  const std::vector<Completion> worse = {{.id = done.id, .fault = static_cast<TransferFault>(5)}};
  expect_refused([&] { return cache_->apply(worse, 0); }, ErrorCode::InvalidArgument, "fault 5");
  now_ = 10;
  apply({});
  expect_refused([&] { return cache_->apply({&done, 1}, 9); }, ErrorCode::InvalidArgument, "time goes back");
  const std::uint64_t before = stats().unknown_completion_count;
  apply({done, done});
  EXPECT_EQ(stats().unknown_completion_count, before + 1);
  EXPECT_EQ(stats().stored_page_total, 4U);
  counted(done);
  end(live);

  open(test_config(4, 8));  // no host tier, so nothing can have been moved
  ASSERT_TRUE(cache_->apply({&done, 1}, 0));
  EXPECT_EQ(stats().unknown_completion_count, 1U);
}

TEST_F(CacheHostInput, MoreGoodPagesThanThereAreCountAsAll) {
  open_tiers(through());
  put_on_host(token_range(0, 16));
  Live live = admitted(token_range(0, 16));
  mover_->take();
  Completion completion = mover_->move(0);
  completion.outcome = TransferOutcome::Cancelled;  // too late
  completion.good_pages = 4'000'000'000;
  apply({completion});
  EXPECT_EQ(view(live).computed_tokens, 16U);
  finish(live);
}

TEST_F(CacheHostInput, WhatIsStoppedOrCancelledTwiceIsRefused) {
  open_tiers(through());
  put_on_host(token_range(0, 16));
  Live live = admitted(token_range(0, 16));
  mover_->take();
  ASSERT_TRUE(cache_->stop_loading(live.sequence));
  expect_refused([&] { return cache_->stop_loading(live.sequence); }, ErrorCode::InvalidArgument, "is not loading");
  std::array<TransferId, 2> ids;
  EXPECT_EQ(cache_->take_cancellations({ids.data(), 0})->size(), 0U);
  EXPECT_EQ(cache_->take_cancellations(ids)->size(), 1U);
  EXPECT_EQ(cache_->take_cancellations(ids)->size(), 0U);
  apply({mover_->fail_it(0, TransferOutcome::Cancelled)});
  end(live);
  expect_all_free();
}

TEST_F(CacheHostInput, ValuesThatNoEnumerationHasAreRefused) {
  open_tiers(through());
  const std::vector<TokenId> tokens = token_range(0, 16);
  const auto begin = [&](const SequenceOptions& options) { return cache_->begin(space_, {.tokens = tokens}, options); };
  const std::string text = "has a value that is none of its own";
  expect_refused([&] { return begin({.publish = static_cast<Publish>(3)}); }, ErrorCode::InvalidArgument, text);
  expect_refused([&] { return begin({.prefetch = static_cast<Prefetch>(4)}); }, ErrorCode::InvalidArgument, text);
  expect_refused([&] { return begin({.tier_max = static_cast<Tier>(4)}); }, ErrorCode::InvalidArgument, text);
  Live live = computed(tokens);
  expect_refused([&] { return cache_->preempt(live.sequence, static_cast<Preempt>(2)); }, ErrorCode::InvalidArgument,
                 "preempt: there is no way 2");
  end(live);
  expect_refused([&] { return cache_->sleep(static_cast<Sleep>(2)); }, ErrorCode::InvalidArgument,
                 "sleep: there is no way 2");
  settle();
}

TEST_F(CacheHostInput, APoolThatCannotHoldTheCleanReserveIsRefused) {
  CacheConfig config = tiers_config(24, 48);
  config.context_tokens_max = 16;
  config.host.clean_reserve_pages = 8;
  open_tiers(std::move(config));
  expect_refused([&] { return cache_->resize(7); }, ErrorCode::InvalidArgument,
                 "7 pages are fewer than host.clean_reserve_pages = 8");
  EXPECT_TRUE(cache_->resize(8));
}

TEST_F(CacheHostInput, WhatIsBroughtBackIsNotStopped) {
  open_tiers(through());
  Live live = computed(token_range(0, 16));
  settle();
  ASSERT_TRUE(cache_->preempt(live.sequence, Preempt::Save));
  settle();
  ASSERT_TRUE(cache_->reclaim(99));
  ASSERT_TRUE(cache_->resume(live.sequence));
  expect_refused([&] { return cache_->stop_loading(live.sequence); }, ErrorCode::Unsupported,
                 "brought back as a whole");
  settle();
  finish(live);
}

// What the host tier's memory lies in, as a cache tells it. What each refusal looks like is tested beside HostRegion.

class CacheHostRegion : public CacheTest {
 protected:
  void open_with(const HostRegionConfig& region) {
    CacheConfig config = test_config(4, 8);
    config.host = {.page_count = 8, .region = region};
    open(std::move(config));
  }
};

TEST_F(CacheHostRegion, WhatWasNotAskedForIsNotInUse) {
  open_with({.huge_pages = false});
  EXPECT_FALSE(stats().host_has_huge_pages);
  EXPECT_FALSE(stats().host_is_on_numa_node);
  EXPECT_FALSE(stats().host_is_locked);
  EXPECT_EQ(cache_->host_region()->refusals, "");
}

TEST_F(CacheHostRegion, ANodeThatDoesNotExistIsDoneWithoutAndSaid) {
  open_with({.huge_pages = false, .numa_node = 1'000});
  EXPECT_FALSE(stats().host_is_on_numa_node);
  EXPECT_NE(cache_->host_region()->refusals.find("1000"), std::string::npos) << cache_->host_region()->refusals;
  Sequence sequence = begin_admitted(token_range(0, 4));  // it works all the same
}

TEST_F(CacheHostRegion, StatsSayWhatTheRegionSays) {
  open_with({.lock_memory = true});
  const HostRegionStatus region = cache_->host_region().value();
  EXPECT_EQ(stats().host_has_huge_pages, region.has_huge_pages);
  EXPECT_EQ(stats().host_is_locked, region.is_locked);
  EXPECT_EQ(region.is_locked, region.refusals.find("lock") == std::string::npos) << region.refusals;
}

TEST_F(CacheHostRegion, WithoutMemoryOfItsOwnThereIsNothingToTell) {
  open(4, 8);
  expect_error(cache_->host_region(), ErrorCode::Unsupported, "the cache has no host tier");
}

}  // namespace
}  // namespace quire
