// SPDX-License-Identifier: Apache-2.0
//
// A cache for each rank, as in processes of their own. Each rank has values of its own on a server, loses them on its
// own and hears of them at times of its own. All caches get the same calls, and after each exchange of what they have
// heard they must be alike: the same hits, the same pages.
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "remote_fixture.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

constexpr std::uint32_t kPageTokens = kGroupsDiskPageTokens;
constexpr std::uint32_t kRankCount = 2;
using Bytes = std::vector<std::byte>;

/// Exchanges what ranks, each in a thread of its own, have to tell.
class Gathering {
 public:
  /// What all ranks gave, in their order. Returns when all have called it.
  std::vector<Bytes> all_gather(std::uint32_t rank, std::span<const std::byte> mine) {
    given_[rank].assign(mine.begin(), mine.end());
    barrier_.arrive_and_wait();
    std::vector<Bytes> all(given_.begin(), given_.end());
    barrier_.arrive_and_wait();
    return all;
  }

 private:
  std::array<Bytes, kRankCount> given_;
  std::barrier<> barrier_{kRankCount};
};

// [exchange]
/// Every rank, once in each step. `all_gather` gives what all ranks gave it, in the same order on all.
template <typename AllGather>
Status exchange_reports(Cache& cache, TimeNs now, AllGather&& all_gather) {
  const Result<std::span<const std::byte>> mine = cache.report_to_ranks(now);
  if (!mine) return fail(mine.error().code, mine.error().message);
  const std::vector<std::vector<std::byte>> all = all_gather(*mine);
  const std::vector<std::span<const std::byte>> reports(all.begin(), all.end());
  const Result<RankAgreement> agreed = cache.apply_ranks(reports);
  return agreed ? Status{} : fail(agreed.error().code, agreed.error().message);
}
// [exchange]

/// The cache of one rank, with an engine that verifies every byte that it finds.
class OwnRank : public CacheGroupsTest {
 private:
  void TestBody() override {}
};

/// A request, as every rank has it.
using RankRequests = std::array<GroupsRequest, kRankCount>;

class CacheOwnRanks : public ::testing::Test {
 protected:
  ~CacheOwnRanks() override { close(); }

  [[nodiscard]] static CacheConfig rank_config(std::vector<CacheGroup> groups, std::uint32_t page_count = 64) {
    for (CacheGroup& group : groups) {
      for (Component& component : group.components) {
        component.sharding = Sharding::Heads;
        component.heads = kRankCount;
      }
    }
    CacheConfig config = groups_config(std::move(groups), kPageTokens, page_count, 512);
    config.page.rank_count = kRankCount;
    config.host.page_count = 2 * page_count;
    config.host.write_policy = WritePolicy::WriteThrough;
    config.host.transfer_pages_max = 4;  // and so an extent has four pages
    // Real time is not to matter here.
    config.remote.find_timeout_ns = 3'600'000'000'000;
    config.remote.load_timeout_ns = config.remote.find_timeout_ns;
    config.remote.store_timeout_ns = config.remote.find_timeout_ns;
    return config;
  }
  void open(const std::function<CacheConfig()>& config) {
    close();
    for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
      stores_.push_back(std::make_unique<SimRemoteStore>(*servers_[rank % servers_.size()]));
      CacheConfig own = config();
      own.remote.store = stores_.back().get();
      own.remote.rank_index = rank;
      ranks_.push_back(std::make_unique<OwnRank>());
      ranks_.back()->open(std::move(own));
    }
    is_held_ = {};
    now_ = 0;
    exchange();
  }
  void close() {
    for (const auto& rank : ranks_) rank->engine_.reset();
    for (const auto& rank : ranks_) rank->cache_.reset();
    ranks_.clear();
    stores_.clear();
  }
  [[nodiscard]] Cache& cache(std::uint32_t rank) { return *ranks_[rank]->cache_; }
  [[nodiscard]] SimRemoteServer& server(std::uint32_t rank) { return *servers_[rank % servers_.size()]; }

  [[nodiscard]] std::vector<Bytes> report() {
    std::vector<Bytes> reports;
    for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
      const auto report = cache(rank).report_to_ranks(now_ + (rank * skew_ns_));  // clocks differ
      EXPECT_TRUE(report.has_value()) << report.error().message;
      reports.emplace_back(report->begin(), report->end());
    }
    return reports;
  }
  static Result<RankAgreement> apply_to(Cache& cache, const std::vector<Bytes>& reports) {
    const std::vector<std::span<const std::byte>> spans(reports.begin(), reports.end());
    return cache.apply_ranks(spans);
  }
  /// What an engine does once in a step.
  void exchange() {
    for (std::uint32_t i = 0; i < servers_.size(); ++i) {
      while (!is_held_[i] && server(i).run_one()) {
      }
    }
    const std::vector<Bytes> reports = report();
    for (const auto& rank : ranks_) {
      const Result<RankAgreement> agreed = apply_to(*rank->cache_, reports);
      ASSERT_TRUE(agreed.has_value()) << agreed.error().message;
      now_ = agreed->now;
      agreed_total_ += agreed->completions.size();
      rank->expect_invariants();
    }
    expect_alike();
  }
  void settle() {
    while (cache(0).stats()->transfers_in_flight > 0 && !HasFailure()) {
      exchange();
      std::this_thread::yield();
    }
  }
  void expect_alike() {
    const std::string first = text_of(0);
    for (std::uint32_t rank = 1; rank < kRankCount; ++rank) ASSERT_EQ(text_of(rank), first) << "rank " << rank;
  }
  [[nodiscard]] std::string text_of(std::uint32_t rank) {
    std::vector<const GroupsRequest*> requests;
    for (const RankRequests* each : live_) requests.push_back(&(*each)[rank]);
    std::string text = ranks_[rank]->dump(requests);
    const Stats s = cache(rank).stats().value();
    for (const std::uint64_t number :
         {std::uint64_t{s.free_pages}, std::uint64_t{s.host_free_pages}, std::uint64_t{s.host_only_pages},
          std::uint64_t{s.transfers_in_flight}, std::uint64_t{s.loading_sequence_count}, s.loaded_page_total,
          s.stored_page_total, s.remote_hit_tokens, s.remote_found_page_total, s.remote_loaded_page_total,
          s.remote_stored_page_total, s.lost_page_total, s.host_evicted_page_total}) {
      text += std::to_string(number) + " ";
    }
    for (const std::uint64_t count : s.remote_load_outcomes) text += std::to_string(count) + " ";
    for (const std::uint64_t count : s.load_faults) text += std::to_string(count) + " ";
    return text + std::to_string(s.load_bytes_per_ns);
  }

  /// Begun and admitted on all ranks.
  void start(RankRequests& requests, const std::vector<TokenId>& tokens) {
    for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
      GroupsRequest& request = requests[rank];
      request.tokens = tokens;
      request.sequence = cache(rank).begin(ranks_[rank]->space_, {.tokens = tokens}).value();
    }
    for (bool is_admitted = false; !is_admitted && !HasFailure();) {
      for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
        const Result<Admission> admission = cache(rank).admit(requests[rank].sequence);
        ASSERT_TRUE(rank == 0 || admission.has_value() == is_admitted) << "only some ranks can admit it";
        is_admitted = admission.has_value();
        if (is_admitted) requests[rank].admission = *admission;
      }
      if (!is_admitted) exchange();
    }
    live_.push_back(&requests);
  }
  [[nodiscard]] bool is_loading(const RankRequests& requests) { return ranks_[0]->view(requests[0]).is_loading; }
  /// Plans, computes and finishes all that is pending; false when there are no pages for it now.
  bool try_step(RankRequests& requests) {
    std::array<std::optional<GroupsFlight>, kRankCount> flights;
    for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
      const StepEntry entry{.sequence = &requests[rank].sequence};
      const Result<PlanOutcome> outcome = cache(rank).plan_step({&entry, 1});
      EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
      if (!outcome || !outcome->step) continue;
      flights[rank] = GroupsFlight{.step = *outcome->step,
                                   .works = {{.request = &requests[rank]}},
                                   .views = {ranks_[rank]->view(requests[rank])}};
    }
    EXPECT_EQ(flights[0].has_value(), flights[1].has_value()) << "only some ranks can plan it";
    for (std::uint32_t rank = 0; rank < kRankCount && flights[rank]; ++rank) {
      ranks_[rank]->run(*flights[rank]);
      ranks_[rank]->finish(*flights[rank]);
    }
    return flights[0].has_value();
  }
  void end(RankRequests& requests) {
    std::erase(live_, &requests);
    for (std::uint32_t rank = 0; rank < kRankCount; ++rank) ranks_[rank]->end(requests[rank]);
  }
  /// A whole request; gives the tokens that no rank had to compute.
  std::uint32_t serve(const std::vector<TokenId>& tokens) {
    RankRequests requests;
    start(requests, tokens);
    while (is_loading(requests) && !HasFailure()) exchange();
    const SequenceView view = ranks_[0]->view(requests[0]);
    while (ranks_[0]->view(requests[0]).pending_tokens > 0 && !HasFailure()) {
      if (!try_step(requests)) exchange();
    }
    end(requests);
    settle();
    return view.token_count - view.pending_tokens;
  }
  /// Memory has nothing any more.
  void forget_memory() {
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->cache_->sleep(Sleep::DropAll).value());
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->cache_->wake());
  }

  std::vector<std::unique_ptr<SimRemoteServer>> servers_;  // one for each rank, or one for all
  std::vector<std::unique_ptr<SimRemoteStore>> stores_;
  std::vector<std::unique_ptr<OwnRank>> ranks_;
  std::array<bool, kRankCount> is_held_{};  // by server: nothing is answered now
  std::vector<const RankRequests*> live_;
  TimeNs now_ = 0;
  TimeNs skew_ns_ = 7;
  std::uint64_t agreed_total_ = 0;
};

class CacheOwnRanksApart : public CacheOwnRanks {
 protected:
  CacheOwnRanksApart() {
    for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
      servers_.push_back(std::make_unique<SimRemoteServer>(rank + 1));
    }
  }
  void open_plain() {
    open([] { return rank_config({full_group()}); });
  }
};

const std::vector<TokenId> kPrompt = token_range(0, (12 * kPageTokens) + 3);  // three extents

TEST_F(CacheOwnRanksApart, FindWhatAllHave) {
  open_plain();
  EXPECT_EQ(serve(kPrompt), 0U);
  forget_memory();
  EXPECT_EQ(serve(kPrompt), 12 * kPageTokens);
  EXPECT_GT(agreed_total_, 0U);
  for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
    EXPECT_EQ(cache(rank).stats()->remote_hit_tokens, 12U * kPageTokens);
  }
}

TEST_F(CacheOwnRanksApart, AValueThatOneHasLostIsFoundByNone) {
  open_plain();
  for (std::uint32_t loser = 0; loser < kRankCount; ++loser) {
    server(loser).restart_empty();
    forget_memory();
    EXPECT_EQ(serve(kPrompt), 0U) << "rank " << loser;
    forget_memory();
    EXPECT_EQ(serve(kPrompt), 12 * kPageTokens) << "it was written again";
    ASSERT_EQ(server(loser).keys().size(), 3U);
  }
}

TEST_F(CacheOwnRanksApart, AHitEndsWhereTheFirstOfThemEnds) {
  open_plain();
  EXPECT_EQ(serve(kPrompt), 0U);
  for (std::uint32_t loser = 0; loser < kRankCount; ++loser) {
    for (const std::string& key : server(loser).keys()) {
      const std::vector<std::byte> value = server(loser).value(key);
      server(loser).drop_value(key);
      forget_memory();
      EXPECT_LE(serve(kPrompt), 8 * kPageTokens) << "rank " << loser;
      ASSERT_EQ(server(loser).keys().size(), 3U);
    }
  }
}

TEST_F(CacheOwnRanksApart, AValueThatIsDamagedOnOneIsComputedByAll) {
  open_plain();
  EXPECT_EQ(serve(kPrompt), 0U);
  for (std::uint32_t loser = 0; loser < kRankCount; ++loser) {
    const std::uint64_t before = cache(loser).remote_status()->corrupt_values;
    const std::uint64_t others = cache(1 - loser).remote_status()->corrupt_values;
    for (const std::string& key : server(loser).keys()) {
      std::vector<std::byte> value = server(loser).value(key);
      value.back() ^= std::byte{1};
      server(loser).put_value(key, std::move(value));
    }
    forget_memory();
    EXPECT_LT(serve(kPrompt), 4 * kPageTokens) << "rank " << loser;
    EXPECT_GT(cache(loser).remote_status()->corrupt_values, before);
    EXPECT_EQ(cache(1 - loser).remote_status()->corrupt_values, others);
    // What is found damaged is dropped, and computed pages replace it.
    forget_memory();
    (void)serve(kPrompt);
    forget_memory();
    (void)serve(kPrompt);
    forget_memory();
    EXPECT_EQ(serve(kPrompt), 12 * kPageTokens);
  }
}

TEST_F(CacheOwnRanksApart, WhoHearsEarlyWaitsForTheOthers) {
  open_plain();
  EXPECT_EQ(serve(kPrompt), 0U);
  for (std::uint32_t late = 0; late < kRankCount; ++late) {
    forget_memory();
    is_held_[late] = true;
    RankRequests requests;
    start(requests, kPrompt);
    for (int i = 0; i < 50; ++i) exchange();
    EXPECT_TRUE(is_loading(requests)) << "rank " << late;
    is_held_[late] = false;
    while (is_loading(requests) && !HasFailure()) exchange();
    EXPECT_EQ(ranks_[0]->view(requests[0]).computed_tokens, 12U * kPageTokens);
    while (!HasFailure() && !try_step(requests)) exchange();
    end(requests);
    settle();
  }
}

TEST_F(CacheOwnRanksApart, ADeadlineIsOverForAllAtOnce) {
  open([] {
    CacheConfig config = rank_config({full_group()});
    config.host.load_timeout_ns = config.remote.load_timeout_ns;
    return config;
  });
  EXPECT_EQ(serve(kPrompt), 0U);
  forget_memory();
  is_held_[1] = true;
  RankRequests requests;
  start(requests, kPrompt);
  for (int i = 0; i < 5; ++i) exchange();
  EXPECT_TRUE(is_loading(requests));
  now_ += cache(0).config().host.load_timeout_ns;
  exchange();
  EXPECT_FALSE(is_loading(requests));
  EXPECT_EQ(ranks_[0]->view(requests[0]).computed_tokens, 0U);
  while (!HasFailure() && !try_step(requests)) exchange();
  end(requests);
  is_held_[1] = false;
  settle();
}

// Windows and snapshots: which of them a tier has is no number of pages.
TEST_F(CacheOwnRanksApart, AWindowThatOneHasLostLimitsTheHitOfAll) {
  for (const CacheGroup& group : {window_group(20), state_group(0, every(64))}) {
    open([&] { return rank_config({full_group(), group}); });
    const std::vector<TokenId> prompt = token_range(0, 200);
    const std::vector<TokenId> next = with_tail(prompt, 1, 30);
    EXPECT_EQ(serve(prompt), 0U);
    EXPECT_GT(serve(next), 0U);
    forget_memory();
    const std::uint32_t whole = serve(next);
    EXPECT_GT(whole, 0U);
    for (std::uint32_t loser = 0; loser < kRankCount; ++loser) {
      // Extents of the history are larger than pages of the other group.
      std::size_t largest = 0;
      for (const std::string& key : server(loser).keys()) largest = std::max(largest, server(loser).value(key).size());
      for (const std::string& key : server(loser).keys()) {
        if (server(loser).value(key).size() < largest) server(loser).drop_value(key);
      }
      forget_memory();
      EXPECT_EQ(serve(next), 0U) << group.name << ", rank " << loser;
      forget_memory();
      EXPECT_EQ(serve(next), whole) << "written again";
    }
    for (const auto& server : servers_) server->restart_empty();
  }
}

// The tier of the one knows nothing of it: it is told.
TEST_F(CacheOwnRanksApart, ADiskThatFailsOnOneIsGivenUpByAll) {
  testing::TempDirectory directory;
  const FileCalls calls = testing::failing_calls({});
  SystemFiles failing(calls);
  open_plain();
  for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
    CacheConfig config = rank_config({full_group()});
    config.disk.directories = {directory.path() + "/rank-" + std::to_string(rank)};
    config.disk.capacity_bytes = 64 << 20U;
    config.disk.segment_bytes = 1 << 20U;
    config.disk.rank_index = rank;
    ranks_[rank]->engine_.reset();
    ranks_[rank]->use(rank == 1 ? CacheForTests::open(std::move(config), failing).value()
                                : Cache::open(std::move(config)).value());
  }
  EXPECT_EQ(serve(kPrompt), 0U);
  forget_memory();
  EXPECT_EQ(serve(kPrompt), 12 * kPageTokens);
  testing::call_failures.write = EIO;
  testing::call_failures.create = EIO;
  for (TokenId i = 1; i < 8; ++i) (void)serve(token_range(i * 10'000, 8 * kPageTokens));
  for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
    EXPECT_TRUE(CacheForTests::lowers(cache(rank)).front().has_failed) << "rank " << rank;
  }
  testing::call_failures.clear();
  forget_memory();
  EXPECT_EQ(serve(kPrompt), 0U);
  close();  // before its files go
}

// As engines do it, with processes in place of threads.
TEST_F(CacheOwnRanksApart, ExchangeOnceInEachStep) {
  Gathering gathering;
  std::vector<std::unique_ptr<PromptStore>> stores;
  for (const auto& server : servers_) stores.push_back(std::make_unique<PromptStore>(*server));
  std::array<std::vector<std::uint32_t>, kRankCount> found;
  const auto run_rank = [&](std::uint32_t rank) {
    OwnRank engine;
    CacheConfig config = rank_config({full_group(), window_group(20)});
    config.remote.store = stores[rank].get();
    config.remote.rank_index = rank;
    engine.open(std::move(config));
    TimeNs now = 100 * rank;
    const auto exchange_now = [&] {
      const Status done = exchange_reports(
          *engine.cache_, ++now, [&](std::span<const std::byte> mine) { return gathering.all_gather(rank, mine); });
      EXPECT_TRUE(done.has_value()) << done.error().message;
    };
    for (int i = 0; i < 6; ++i) {
      GroupsRequest request = engine.start(with_tail(token_range(0, 200), 1, 30));
      while (engine.view(request).is_loading) exchange_now();
      found[rank].push_back(engine.view(request).computed_tokens);
      engine.run_all(request);
      engine.end(request);
      while (engine.cache_->stats()->transfers_in_flight > 0) exchange_now();
      EXPECT_TRUE(engine.cache_->sleep(Sleep::DropAll).value());
      EXPECT_TRUE(engine.cache_->wake());
    }
    engine.engine_.reset();
    engine.cache_.reset();
  };
  {
    std::jthread other([&] { run_rank(1); });
    run_rank(0);
  }
  EXPECT_EQ(found[0], found[1]);
  EXPECT_EQ(found[0].front(), 0U);
  EXPECT_GT(found[0].back(), 0U);
}

// What is wrong is refused, and changes nothing.

TEST_F(CacheOwnRanksApart, OtherCallsThatWouldApplyAreRefused) {
  open_plain();
  EXPECT_EQ(cache(0).poll().error().code, ErrorCode::Unsupported);
  const Completion completion;
  EXPECT_EQ(cache(0).apply({&completion, 1}, now_).error().code, ErrorCode::Unsupported);
  EXPECT_TRUE(cache(0).apply({}, now_));
  RankRequests requests;
  start(requests, kPrompt);
  while (is_loading(requests) && !HasFailure()) exchange();
  ASSERT_TRUE(try_step(requests));
  EXPECT_EQ(cache(0).wait_until_flushed().error().code, ErrorCode::Unsupported);
  EXPECT_FALSE(*cache(1).flush());  // the same call on the other
  end(requests);
  settle();
}

TEST_F(CacheOwnRanksApart, ReportsThatAreNotOfThisRoundOrNotOfAllAreRefused) {
  open_plain();
  const auto says = [&](const std::vector<Bytes>& reports) {
    const Result<RankAgreement> agreed = apply_to(cache(0), reports);
    return agreed ? std::string("agreed") : agreed.error().message;
  };
  EXPECT_NE(says({}).find("report_to_ranks() comes first"), std::string::npos);
  const std::vector<Bytes> before = report();
  for (const auto& rank : ranks_) ASSERT_TRUE(apply_to(*rank->cache_, before));
  const std::vector<Bytes> now = report();
  EXPECT_NE(says({}).find("there are no reports"), std::string::npos);
  EXPECT_NE(says({now[0], before[1]}).find("report 1 is of round 1, this rank is in round 2"), std::string::npos);
  EXPECT_NE(says({now[1]}).find("the last report of this rank is not among them"), std::string::npos);
  Bytes cut = now[1];
  cut.pop_back();
  EXPECT_NE(says({now[0], cut}).find("report 1 is damaged"), std::string::npos);
  EXPECT_EQ(says(now), "agreed");
  EXPECT_TRUE(apply_to(cache(1), now));
}

TEST_F(CacheOwnRanksApart, ARankThatWentAnotherWayIsNoticed) {
  open_plain();
  GroupsRequest request = ranks_[1]->start(kPrompt);  // rank 0 has none
  for (;;) {
    while (server(1).run_one()) {
    }
    const std::vector<Bytes> reports = report();
    const Result<RankAgreement> agreed = apply_to(cache(0), reports);
    if (agreed) {
      ASSERT_TRUE(apply_to(cache(1), reports));
      continue;
    }
    EXPECT_EQ(agreed.error().code, ErrorCode::Corrupt);
    EXPECT_NE(agreed.error().message.find("report 1 has a transfer that this rank has not begun"), std::string::npos)
        << agreed.error().message;
    break;
  }
  ranks_[1]->end(request);
}

// Bytes from elsewhere: whatever they are, a rank refuses them or stays whole.
TEST_F(CacheOwnRanksApart, DamagedReportsBreakNothing) {
  open([] { return rank_config({full_group(), window_group(20)}); });
  (void)serve(kPrompt);
  testing::Random random(3);
  Cache& tried = cache(1);
  std::size_t agreed_count = 0;
  for (int i = 0; i < 3'000; ++i) {
    if (i % 30 == 0) {
      ASSERT_TRUE(tried.reset());
    }
    GroupsRequest request = ranks_[1]->start(token_range(0, kPageTokens * (1 + random.below(12))));
    while (random.below(3) > 0 && server(1).run_one()) {
    }
    const auto report = tried.report_to_ranks(now_);
    ASSERT_TRUE(report.has_value());
    const Bytes own(report->begin(), report->end());
    Bytes other = own;  // as a rank that is alike would have it
    for (std::uint32_t flips = random.below(4); flips > 0; --flips) {
      other[8 + random.below(static_cast<std::uint32_t>(other.size() - 8))] ^= std::byte{1} << random.below(8);
    }
    if (random.below(8) == 0) other.resize(random.below(static_cast<std::uint32_t>(other.size())));
    const Result<RankAgreement> agreed = apply_to(tried, {other, own});
    if (agreed) agreed_count += agreed->completions.size();
    ranks_[1]->expect_invariants();
    ranks_[1]->end(request);
  }
  EXPECT_GT(agreed_count, 100U);
}

// Random runs.

struct RandomCase {
  GroupMix mix;
  bool is_shared;  // one server for all ranks

  friend void PrintTo(const RandomCase& each, std::ostream* out) { *out << each.mix.name; }
};

class CacheOwnRanksRandom : public CacheOwnRanks, public ::testing::WithParamInterface<RandomCase> {
 protected:
  [[nodiscard]] std::vector<TokenId> draw_tokens(testing::Random& random) {
    std::vector<TokenId> tokens = token_range(static_cast<TokenId>(1'000 * random.below(3)), 40 + random.below(200));
    const std::uint32_t tail = random.below(40);
    return tail > 0 ? with_tail(tokens, static_cast<TokenId>(random.below(3)), tail) : tokens;
  }
  void run(std::uint64_t seed);
};

void CacheOwnRanksRandom::run(std::uint64_t seed) {
  close();
  servers_.clear();
  const std::uint32_t server_count = GetParam().is_shared ? 1 : kRankCount;
  for (std::uint32_t i = 0; i < server_count; ++i) servers_.push_back(std::make_unique<SimRemoteServer>(seed + i));
  testing::Random random(seed);
  open([&] {
    CacheConfig config = rank_config(GetParam().mix.groups, 48);
    config.host.page_count = 60;
    config.host.load_timeout_ns = 2'000'000'000;
    config.host.compute_ns_per_token = 2'000'000;
    return config;
  });
  for (const auto& server : servers_) {
    server->set_faults({.late = 20, .failed = 20, .lost_puts = 50, .gone = 50, .promised = 50, .flipped_bits = 30});
  }
  std::vector<std::unique_ptr<RankRequests>> requests;
  for (int step = 0; step < 500 && !HasFailure(); ++step) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
    switch (random.below(12)) {
      case 0:
      case 1:
        if (requests.size() == 3) break;
        start(*requests.emplace_back(std::make_unique<RankRequests>()), draw_tokens(random));
        break;
      case 2:
      case 3:
      case 4:
        for (const auto& each : requests) {
          if (!is_loading(*each) && ranks_[0]->view((*each)[0]).pending_tokens > 0) (void)try_step(*each);
        }
        break;
      case 5:
      case 10:
        if (requests.empty()) break;
        {
          const auto chosen = requests.begin() + random.below(static_cast<std::uint32_t>(requests.size()));
          end(**chosen);
          requests.erase(chosen);
        }
        break;
      case 6:
        for (const auto& rank : ranks_) ASSERT_TRUE(rank->cache_->reclaim(20));
        break;
      case 7: {  // one rank loses a value
        SimRemoteServer& server = *servers_[random.below(server_count)];
        const std::vector<std::string> keys = server.keys();
        if (!keys.empty()) server.drop_value(keys[random.below(static_cast<std::uint32_t>(keys.size()))]);
        break;
      }
      case 8:
        is_held_[random.below(server_count)] = random.below(2) == 0;
        break;
      case 9:
        now_ += random.below(300'000'000);
        skew_ns_ = random.below(100);
        break;
      default:
        break;
    }
    if (requests.empty() && random.below(3) == 0) {
      is_held_ = {};
      settle();
      forget_memory();
    } else if (requests.empty() && random.below(30) == 0) {
      for (const auto& rank : ranks_) ASSERT_TRUE(rank->cache_->reset());  // on the servers too
    }
    exchange();
  }
  for (const auto& each : requests) end(*each);
  is_held_ = {};
  settle();
}

TEST_P(CacheOwnRanksRandom, StayAlike) {
  for (std::uint64_t seed = 1; seed <= 4 && !HasFailure(); ++seed) run(seed);
  EXPECT_GT(agreed_total_, 0U);  // how many hits there are, depends on how busy the machine is
}

[[nodiscard]] std::vector<RandomCase> random_cases() {
  std::vector<RandomCase> cases;
  for (const GroupMix& mix : mixes()) {
    if (mix.name != "Plain" && mix.name != "Window" && mix.name != "Sink" && mix.name != "Everything") continue;
    cases.push_back({mix, cases.size() % 2 == 0});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Groups, CacheOwnRanksRandom, ::testing::ValuesIn(random_cases()),
                         [](const auto& param) { return param.param.mix.name; });

}  // namespace
}  // namespace quire
