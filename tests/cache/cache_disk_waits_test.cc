// SPDX-License-Identifier: Apache-2.0
//
// Those who wait for the disk when it is slow, when it hangs, and when there are many of them.
#include <gtest/gtest.h>

#include <array>
#include <utility>
#include <vector>

#include "disk_fixture.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using Lane = DiskMover::Lane;

class CacheDiskWaits : public DiskTest {};

TEST_F(CacheDiskWaits, ADiskThatHangsHoldsNobodyBeyondTheTimeout) {
  CacheConfig config = disk_config();
  config.host.load_timeout_ns = 100;
  open_disk(std::move(config));
  put_on_disk(token_range(0, 64));
  now_ = 1'000;
  apply({});
  for (const bool is_found : {false, true}) {  // the names do not come; the pages do not
    Live live = admitted(token_range(0, 64));
    const TimeNs start = now_;
    if (is_found) {
      ASSERT_TRUE(run_lane(Lane::Names));
    }
    now_ = start + 99;
    apply({});
    EXPECT_TRUE(view(live).is_loading);
    now_ = start + 100;
    apply({});
    EXPECT_FALSE(view(live).is_loading);
    EXPECT_EQ(view(live).miss.reason, MissReason::LoadTimedOut);
    end(live);
    settle_all();
    forget_memory();
  }
  EXPECT_EQ(serve_all(token_range(0, 64)), 64U) << "when it is back";
  expect_no_page_lost();
}

TEST_F(CacheDiskWaits, ADiskThatHangsHoldsNobodyWhoWaitsForItsTurn) {
  CacheConfig config = disk_config();
  config.host.load_timeout_ns = 100;
  config.host.transfer_count_max = 4;  // one search at a time
  open_disk(std::move(config));
  put_on_disk(token_range(0, 64));
  put_on_disk(token_range(1'000, 64));
  now_ = 1'000;
  apply({});
  Live first = admitted(token_range(0, 64));
  ASSERT_TRUE(run_lane(Lane::Names));  // found, and never read
  now_ = 1'100;
  apply({});
  EXPECT_FALSE(view(first).is_loading);
  Live second = admitted(token_range(1'000, 64));
  EXPECT_TRUE(view(second).is_loading);
  now_ = 1'200;
  apply({});
  EXPECT_FALSE(view(second).is_loading);
  EXPECT_EQ(view(second).miss.reason, MissReason::LoadTimedOut);
  end(first);
  end(second);
  settle_all();
  expect_no_page_lost();
}

TEST_F(CacheDiskWaits, DropsThatHangLeaveTransfersToTheHost) {
  CacheConfig config = disk_config();
  config.host.transfer_count_max = 8;
  open_disk(std::move(config));
  for (int i = 0; i < 12; ++i) {
    const KeySpaceId space = cache_->key_space({.model = "model " + std::to_string(i)}).value();
    ASSERT_TRUE(cache_->drop(space));
  }
  EXPECT_LE(stats().transfers_in_flight, 2U);
  settle_all();
  EXPECT_EQ(stats().transfers_in_flight, 0U) << "and all have been made";
  expect_invariants();
}

TEST_F(CacheDiskWaits, TheOneThatWaitedLongestLooksNext) {
  CacheConfig config = disk_config();
  config.host.transfer_count_max = 4;
  config.sequence_count_max = 4;
  open_disk(std::move(config));
  for (TokenId i = 0; i < 3; ++i) put_on_disk(token_range(1'000 * i, 64));
  Live taken = begun(token_range(9'000, 16));  // the lowest slot
  Live first = admitted(token_range(0, 64));
  Live second = admitted(token_range(1'000, 64));
  end(taken);
  Live third = admitted(token_range(2'000, 64));
  while (view(first).is_loading) {
    settle();
    for (const Lane lane : {Lane::Names, Lane::Read, Lane::Write}) (void)run_lane(lane);
  }
  while (view(second).is_loading) {
    EXPECT_TRUE(view(third).is_loading);
    settle();
    for (const Lane lane : {Lane::Names, Lane::Read, Lane::Write}) (void)run_lane(lane);
  }
  settle_all();
  for (Live* const live : {&first, &second, &third}) {
    EXPECT_EQ(view(*live).computed_tokens, 64U);
    end(*live);
  }
  settle_all();
}

TEST_F(CacheDiskWaits, ADiskThatHangsLeavesTransfersToTheHost) {
  CacheConfig config = disk_config(32, 64);
  config.host.transfer_pages_max = 1;
  config.host.transfer_count_max = 8;
  open_disk(std::move(config));
  for (TokenId i = 0; i < 6; ++i) put_on_disk(token_range(1'000 * i, 64));
  std::vector<Live> waiting;
  waiting.reserve(6);
  for (TokenId i = 0; i < 6; ++i) waiting.push_back(admitted(token_range(1'000 * i, 64)));
  while (run_lane(Lane::Names)) continue;  // found; and nothing is read
  Live other = admitted(token_range(50'000, 64), {.tier_max = Tier::Host});
  ASSERT_FALSE(view(other).is_loading);
  step(other.sequence, other.tokens);
  settle();
  EXPECT_EQ(stats().stored_page_total, 24U + 4U) << "the host goes on";
  end(other);
  settle_all();
  for (Live& live : waiting) {
    EXPECT_EQ(view(live).computed_tokens, 64U);
    end(live);
  }
  settle_all();
  expect_no_page_lost();
}

TEST_F(CacheDiskWaits, ManyLookAndAllFindWhatIsTheirs) {
  for (const std::uint32_t transfer_count : {2U, 3U, 64U}) {
    constexpr TokenId kCount = 40;
    close();
    disk_ = std::make_unique<testing::SimDisk>(1);
    const auto config = [&] {
      CacheConfig made = disk_config(2 * kCount + 4, 2 * kCount + 4);
      made.sequence_count_max = kCount + 1;
      made.host.transfer_count_max = transfer_count;
      return made;
    };
    open_disk(config());
    for (TokenId i = 0; i < kCount; ++i) put_on_disk(token_range(1'000 * i, 32));
    open_disk(config());
    std::vector<Live> waiting;
    for (TokenId i = 0; i < kCount; ++i) {
      waiting.push_back(admitted(token_range(1'000 * i, 32)));
      EXPECT_TRUE(view(waiting.back()).is_loading) << i;
    }
    settle_all();
    for (Live& live : waiting) {
      EXPECT_FALSE(view(live).is_loading);
      EXPECT_EQ(view(live).computed_tokens, 32U) << transfer_count;
      EXPECT_EQ(view(live).miss.reason, MissReason::None);
      end(live);
    }
    settle_all();
    expect_no_page_lost();
  }
}

// One that found no room for its search holds nothing back when the world around it changes.
TEST_F(CacheDiskWaits, OneThatWaitsForItsTurnToLookMayBeEndedStoppedAndDropped) {
  enum class What : std::uint8_t { End, Stop, Drop, Pause, Expire };
  for (const What what : {What::End, What::Stop, What::Drop, What::Pause, What::Expire}) {
    close();
    disk_ = std::make_unique<testing::SimDisk>(1);
    CacheConfig config = disk_config();
    config.host.transfer_count_max = 2;  // one search at a time
    open_disk(std::move(config));
    put_on_disk(token_range(0, 64));
    put_on_disk(token_range(1'000, 64));
    now_ += 1'000;
    apply({});
    Live first = admitted(token_range(0, 64));
    Live second = begun(token_range(1'000, 64), {.prefetch = Prefetch::Timeout, .load_timeout_ns = 100});
    ASSERT_FALSE(cache_->admit(second.sequence)->is_ready);
    switch (what) {
      case What::End:
        end(second);
        break;
      case What::Stop:
        ASSERT_TRUE(cache_->stop_loading(second.sequence));
        EXPECT_EQ(view(second).miss.reason, MissReason::LoadCancelled);
        break;
      case What::Drop:
        ASSERT_TRUE(cache_->drop(space_));
        break;
      case What::Pause:
        (void)cache_->pause_transfers().value();
        break;
      case What::Expire:
        now_ += 100;
        apply({});
        EXPECT_FALSE(view(second).is_loading);
        EXPECT_EQ(view(second).miss.reason, MissReason::LoadTimedOut);
        break;
    }
    expect_invariants();
    settle_all();
    EXPECT_EQ(view(first).is_loading, false);
    if (what != What::End) {
      EXPECT_FALSE(view(second).is_loading);
      end(second);
    }
    end(first);
    settle_all();
    ASSERT_TRUE(cache_->resume_transfers());
    if (what == What::Drop) space_ = cache_->key_space({.model = "test"}).value();
    expect_no_page_lost();
  }
}

TEST_F(CacheDiskWaits, RoomIsMadeForWhatCameFromDiskWhileOthersMove) {
  CacheConfig config = disk_config(10, 40);
  config.context_tokens_max = 128;
  config.host.write_policy = WritePolicy::WriteBack;
  config.host.clean_reserve_pages = 0;
  open_disk(std::move(config));
  put_on_disk(token_range(0, 112));
  Live other = computed_all(token_range(1'000, 48));
  end(other);
  other = computed_all(token_range(2'000, 96));
  end(other);  // the device is full of pages that only it has
  Live live = admitted(token_range(0, 112));
  ASSERT_TRUE(run_lane(Lane::Names));
  while (run_lane(Lane::Names) || CacheForTests::disk(*cache_).run(Lane::Read)) continue;
  const std::vector<TokenId> looked = token_range(5'000, 64);
  ASSERT_TRUE(cache_->lookup_on_disk(space_, {.tokens = looked}, [](const DiskAnswer&) {}));  // not answered
  hear();
  mover_->take();
  EXPECT_FALSE(mover_->waiting.empty()) << "something leaves the device for it";
  settle_all();
  EXPECT_EQ(view(live).computed_tokens, 112U);
  end(live);
  settle_all();
}

TEST_F(CacheDiskWaits, ALookupNeedsNobodyWhoListens) {
  open_disk(disk_config());
  put_on_disk(token_range(0, 64));
  const std::vector<TokenId> tokens = token_range(0, 64);
  ASSERT_TRUE(cache_->lookup_on_disk(space_, {.tokens = tokens}, nullptr));
  settle_all();
  EXPECT_EQ(stats().transfers_in_flight, 0U);
}

TEST_F(CacheDiskWaits, OneSlowReadDoesNotEndReadingForGood) {
  CacheConfig config = disk_config(40, 64);
  config.host.compute_ns_per_token = 1'000'000;
  open_disk(std::move(config));
  put_on_disk(token_range(0, 64));
  Live live = admitted(token_range(0, 64));
  ASSERT_TRUE(run_lane(Lane::Names));
  ASSERT_TRUE(run_lane(Lane::Names));
  ASSERT_TRUE(CacheForTests::disk(*cache_).run(Lane::Read));
  std::array<Completion, 4> completions;
  for (Completion& completion : CacheForTests::disk(*cache_).poll(completions)) {
    completion.busy_ns = TimeNs{3'600} * 1'000'000'000;  // the disk was asleep
    apply({completion});
  }
  settle_all();
  end(live);
  settle_all();
  std::uint32_t found = 0;
  for (int i = 0; i < 2'000 && found == 0; ++i) {
    forget_memory();
    Live again = admitted(token_range(0, 64));
    settle_all();
    found = view(again).computed_tokens;
    end(again);
    settle_all();
  }
  EXPECT_EQ(found, 64U);
}

TEST_F(CacheDiskWaits, PutsAreChargedToTheBudget) {
  CacheConfig config = disk_config();
  config.disk.write_bytes_per_day = std::uint64_t{24} * 8 * 4096;
  open_disk(std::move(config));
  const std::vector<TokenId> tokens = token_range(0, 128);
  const std::vector<std::byte> bytes(tokens.size() * kTestTokenBytes);
  ASSERT_TRUE(cache_->put_on_disk(space_, {.tokens = tokens}, bytes, nullptr));
  settle_all();
  EXPECT_EQ(serve_all(token_range(1'000, 64)), 0U);
  EXPECT_EQ(cache_->disk_status()->page_count, 8U) << "the hour's budget is spent";
}

// As a request for pages of the host waits, which admit() puts off until there is room.
TEST_F(CacheDiskWaits, ADeviceThatOthersFillIsWaitedFor) {
  for (const WritePolicy policy : {WritePolicy::WriteThrough, WritePolicy::WriteBack}) {
    CacheConfig config = disk_config(8);
    config.context_tokens_max = 128;
    config.host.write_policy = policy;
    open_disk(std::move(config));
    put_on_disk(token_range(0, 64));
    Live other = computed_all(token_range(1'000, 90), {.publish = Publish::None});  // 6 pages of 8
    Live live = admitted(token_range(0, 80));
    settle_all();
    EXPECT_TRUE(view(live).is_loading);
    apply({});
    EXPECT_TRUE(view(live).is_loading) << "the other one runs on";
    end(other);
    EXPECT_GT(stats().transfers_in_flight, 0U) << "pages that come back are used at once";
    settle_all();
    EXPECT_FALSE(view(live).is_loading);
    EXPECT_EQ(view(live).computed_tokens, 64U);
    end(live);
    settle_all();
    expect_no_page_lost();
  }
}

TEST_F(CacheDiskWaits, PagesThatComeBackAreUsedAtOnceWhoeverGivesThemBack) {
  for (const bool by_preempt : {true, false}) {
    CacheConfig config = disk_config(8);
    config.context_tokens_max = 128;
    open_disk(std::move(config));
    put_on_disk(token_range(0, 64));
    Live other = computed_all(token_range(1'000, 90), {.publish = Publish::None});
    Live live = admitted(token_range(0, 80));
    settle_all();
    ASSERT_TRUE(view(live).is_loading);
    ASSERT_EQ(stats().transfers_in_flight, 0U);
    ASSERT_TRUE(by_preempt ? cache_->preempt(other.sequence, Preempt::Drop) : cache_->rewind(other.sequence, 60));
    EXPECT_GT(stats().transfers_in_flight, 0U);
    settle_all();
    EXPECT_EQ(view(live).computed_tokens, 64U);
    end(live);
    end(other);
    settle_all();
  }
}

// It pins pages that the running one needs, and lets go of them.
TEST_F(CacheDiskWaits, OneThatWaitsForRoomDoesNotKeepPagesFromThoseThatRun) {
  for (const WritePolicy policy : {WritePolicy::WriteThrough, WritePolicy::WriteBack}) {
    CacheConfig config = disk_config(8);
    config.context_tokens_max = 128;
    config.host.write_policy = policy;
    open_disk(std::move(config));
    put_on_disk(token_range(0, 80));
    EXPECT_EQ(serve_all(token_range(0, 32)), 32U);  // two pages of it are on the device from here on
    Live other = computed_all(token_range(1'000, 66), {.publish = Publish::None});  // 5 pages of 8
    Live live = admitted(token_range(0, 81));
    settle_all();
    ASSERT_TRUE(view(live).is_loading) << "three more do not fit";
    const std::vector<TokenId> more = token_range(5'000, 40);  // two pages, and one is free
    ASSERT_TRUE(cache_->append(other.sequence, {.tokens = more}));
    other.tokens.insert(other.tokens.end(), more.begin(), more.end());
    step(other.sequence, other.tokens);
    EXPECT_TRUE(view(live).is_loading);
    end(other);
    settle_all();
    EXPECT_FALSE(view(live).is_loading);
    EXPECT_EQ(view(live).computed_tokens, 80U) << "nothing is lost by that";
    end(live);
    settle_all();
    expect_no_page_lost();
  }
}

// A plan that is short lets two sequences go that wait for room. What one of them held is room for the other one's
// loads, and for entries that are said to fit.
TEST_F(CacheDiskWaits, EntriesThatFitAreNotOvertakenByLoads) {
  CacheConfig config = disk_config(8);
  config.context_tokens_max = 128;
  config.host.write_policy = WritePolicy::WriteBack;
  open_disk(std::move(config));
  put_on_disk(token_range(0, 80));
  put_on_disk(token_range(2'000, 32));
  EXPECT_EQ(serve_all(token_range(0, 32)), 32U);                                   // two device pages from here on
  Live first = computed_all(token_range(1'000, 40), {.publish = Publish::None});   // three
  Live second = computed_all(token_range(3'000, 20), {.publish = Publish::None});  // two: one is left
  Live with_none = admitted(token_range(2'000, 33));
  Live with_two = admitted(token_range(0, 81));
  settle_all();
  ASSERT_TRUE(view(with_two).is_loading);
  ASSERT_TRUE(view(with_none).is_loading);
  for (Live* const live : {&first, &second}) {  // two more pages each
    const std::vector<TokenId> more = token_range(5'000, 30);
    ASSERT_TRUE(cache_->append(live->sequence, {.tokens = more}));
    live->tokens.insert(live->tokens.end(), more.begin(), more.end());
  }
  const std::array<StepEntry, 2> entries = {StepEntry{&first.sequence}, StepEntry{&second.sequence}};
  const PlanOutcome both = cache_->plan_step(entries).value();
  ASSERT_FALSE(both.step.has_value());
  ASSERT_EQ(both.shortage.entries_that_fit, 1U);
  step(first.sequence, first.tokens);
  end(first);
  end(second);
  settle_all();
  EXPECT_EQ(view(with_two).computed_tokens, 80U);
  EXPECT_EQ(view(with_none).computed_tokens, 32U);
  end(with_two);
  end(with_none);
}

/// An engine that steps what is ready, preempts when it is told that pages are short, and sets no limit of time.
class CrowdedDevice : public CacheDiskWaits {
 protected:
  struct Request {
    Live live;
    bool is_admitted = false;
    bool is_preempted = false;
    std::uint32_t outputs_left = 0;
  };

  void run(std::uint64_t seed) {
    testing::Random random(seed);
    close();
    disk_ = std::make_unique<testing::SimDisk>(seed);
    CacheConfig config = disk_config(7 + random.below(8), 24 + random.below(24));
    config.context_tokens_max = 112;
    config.host.write_policy = random.below(2) == 0 ? WritePolicy::WriteThrough : WritePolicy::WriteBack;
    open_disk(std::move(config));
    for (TokenId document = 0; document < 4; ++document) put_on_disk(token_range(1'000 * document, 64));
    std::vector<Request> requests;
    for (std::uint32_t i = 0; i < 12; ++i) {
      std::vector<TokenId> prompt = token_range(static_cast<TokenId>(1'000 * random.below(5)), 16 + random.below(49));
      const std::vector<TokenId> own = token_range(static_cast<TokenId>(100'000 + (1'000 * i)), random.below(20));
      prompt.insert(prompt.end(), own.begin(), own.end());
      requests.push_back({.live = begun(std::move(prompt)), .outputs_left = random.below(28)});
    }
    std::uint32_t turns = 0;
    while (!requests.empty() && !HasFailure()) {
      ASSERT_LT(++turns, 5'000U) << "nobody gets on";
      turn(requests, random);
    }
    settle_all();
    expect_no_page_lost();
  }

  void turn(std::vector<Request>& requests, testing::Random& random) {
    Request& request = requests[random.below(static_cast<std::uint32_t>(requests.size()))];
    if (!request.is_admitted) {
      const auto admission =
          request.is_preempted ? cache_->resume(request.live.sequence) : cache_->admit(request.live.sequence);
      request.is_admitted = admission.has_value();
      if (!admission) {
        EXPECT_EQ(admission.error().code, ErrorCode::Unavailable) << admission.error().message;
      }
    } else if (!view(request.live).is_loading) {
      step_or_preempt(requests, request, random);
    }
    switch (random.below(4)) {
      case 0:
        settle();
        break;
      case 1:
        settle_all();
        break;
      default:
        (void)run_lane(static_cast<Lane>(random.below(3)));
    }
    std::erase_if(requests, [this](Request& each) {
      const bool is_over = each.is_admitted && each.outputs_left == 0 && !view(each.live).is_loading &&
                           view(each.live).pending_tokens == 0;
      if (is_over) end(each.live);
      return is_over;
    });
  }

  void step_or_preempt(std::vector<Request>& requests, Request& request, testing::Random& random) {
    if (view(request.live).pending_tokens == 0) {
      if (request.outputs_left == 0) return;
      --request.outputs_left;
      const TokenId token = static_cast<TokenId>(random.below(1'000));
      ASSERT_TRUE(cache_->append(request.live.sequence, {.tokens = {&token, 1}}));
      request.live.tokens.push_back(token);
    }
    const StepEntry entry{&request.live.sequence};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    if (outcome.step) {
      ASSERT_TRUE(cache_->apply_copies(*outcome.step));
      engine_->run(outcome.step->plan.entries[0], 0, request.live.tokens);
      const StepResult result;
      ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
      return;
    }
    if (outcome.shortage.pages_leaving > 0) return;  // they come back when they are copied
    for (Request& other : requests) {
      if (&other == &request || !other.is_admitted || view(other.live).is_loading) continue;
      ASSERT_TRUE(cache_->preempt(other.live.sequence, Preempt::Drop));
      other.is_admitted = false;
      other.is_preempted = true;
      return;
    }
    // Loads that are on their way have taken pages, and bring somebody who can be preempted.
    EXPECT_GT(stats().transfers_in_flight, 0U)
        << "the only one that runs is short of pages, and can do nothing about it";
  }
};

TEST_F(CrowdedDevice, EveryRequestIsServedWithoutALimitOfTime) {
  for (std::uint64_t seed = 1; seed <= (testing::kIsSanitized ? 20 : 150) && !HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    run(seed);
  }
}

TEST_F(CacheDiskWaits, AnEngineThatWaitsForASequenceBeforeItStepsOthersIsNotHeldForEver) {
  CacheConfig config = disk_config(8);
  config.context_tokens_max = 128;
  open_disk(std::move(config));
  put_on_disk(token_range(0, 64));
  Live other = computed_all(token_range(1'000, 90), {.publish = Publish::None});
  Live live = admitted(token_range(0, 80));
  settle_all();
  for (std::uint32_t tries = 0; view(live).is_loading; ++tries) {
    ASSERT_LT(tries, 100U);
    apply({});
  }
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadFailed);
  end(other);
  end(live);
}

TEST_F(CacheDiskWaits, ADeviceThatOthersFillIsNotWaitedForBeyondTheTimeout) {
  CacheConfig config = disk_config(8);
  config.context_tokens_max = 128;
  config.host.load_timeout_ns = 100;
  open_disk(std::move(config));
  put_on_disk(token_range(0, 64));
  now_ = 1'000;
  apply({});
  Live other = computed_all(token_range(1'000, 90), {.publish = Publish::None});
  Live live = admitted(token_range(0, 80));
  settle_all();
  EXPECT_TRUE(view(live).is_loading);
  now_ = 1'200;
  apply({});
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).miss.reason, MissReason::LoadTimedOut);
  end(other);
  end(live);
}

}  // namespace
}  // namespace quire
