// SPDX-License-Identifier: Apache-2.0
//
// A cache for each rank: what they find, and that they stay alike.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "own_ranks_fixture.h"
#include "store/host_store_peer.h"

namespace quire {
namespace {

/// Exchanges what ranks, each in a thread of its own, have to tell.
class Gathering {
 public:
  explicit Gathering(std::uint32_t rank_count) : given_(rank_count), barrier_(rank_count) {}
  /// What all ranks gave. Returns when all have called it.
  std::vector<ReportBytes> all_gather(std::uint32_t rank, std::span<const std::byte> mine) {
    given_[rank].assign(mine.begin(), mine.end());
    barrier_.arrive_and_wait();
    std::vector<ReportBytes> all = given_;
    barrier_.arrive_and_wait();
    return all;
  }

 private:
  std::vector<ReportBytes> given_;
  std::barrier<> barrier_;
};

// [exchange]
/// Every rank, once in each step. `all_gather` gives what all ranks gave it.
template <typename AllGather>
Status exchange_reports(Cache& cache, const RankReport& report, AllGather&& all_gather) {
  const Result<std::span<const std::byte>> mine = cache.report_to_ranks(report);
  if (!mine) return fail(mine.error().code, mine.error().message);
  const std::vector<std::vector<std::byte>> all = all_gather(*mine);
  const std::vector<std::span<const std::byte>> reports(all.begin(), all.end());
  const Result<RankAgreement> agreed = cache.apply_ranks(reports);
  return agreed ? Status{} : fail(agreed.error().code, agreed.error().message);
}
// [exchange]

TEST_F(CacheOwnRanksApart, FindWhatAllHave) {
  open_plain();
  EXPECT_EQ(serve(prompt_), 0U);
  forget_memory();
  EXPECT_EQ(serve(prompt_), 12 * kPageTokens);
  EXPECT_GT(agreed_total_, 0U);
  for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
    EXPECT_EQ(cache(rank).stats()->remote_hit_tokens, 12U * kPageTokens);
  }
}

TEST_F(CacheOwnRanksApart, AValueThatOneHasLostIsFoundByNone) {
  open_plain();
  for (std::uint32_t loser = 0; loser < rank_count_; ++loser) {
    server(loser).restart_empty();
    forget_memory();
    EXPECT_EQ(serve(prompt_), 0U) << "rank " << loser;
    forget_memory();
    EXPECT_EQ(serve(prompt_), 12 * kPageTokens) << "it was written again";
    ASSERT_EQ(server(loser).keys().size(), 3U);
  }
}

TEST_F(CacheOwnRanksApart, AHitEndsWhereTheFirstOfThemEnds) {
  open_plain();
  EXPECT_EQ(serve(prompt_), 0U);
  for (std::uint32_t loser = 0; loser < rank_count_; ++loser) {
    for (const std::string& key : server(loser).keys()) {
      const std::vector<std::byte> value = server(loser).value(key);
      server(loser).drop_value(key);
      forget_memory();
      EXPECT_LE(serve(prompt_), 8 * kPageTokens) << "rank " << loser;
      ASSERT_EQ(server(loser).keys().size(), 3U);
    }
  }
}

TEST_F(CacheOwnRanksApart, AValueThatIsDamagedOnOneIsComputedByAll) {
  open_plain();
  EXPECT_EQ(serve(prompt_), 0U);
  for (std::uint32_t loser = 0; loser < rank_count_; ++loser) {
    const std::uint64_t before = cache(loser).remote_status()->corrupt_values;
    const std::uint64_t others = cache(1 - loser).remote_status()->corrupt_values;
    for (const std::string& key : server(loser).keys()) {
      std::vector<std::byte> value = server(loser).value(key);
      value.back() ^= std::byte{1};
      server(loser).put_value(key, std::move(value));
    }
    forget_memory();
    EXPECT_LT(serve(prompt_), 4 * kPageTokens) << "rank " << loser;
    EXPECT_GT(cache(loser).remote_status()->corrupt_values, before);
    EXPECT_EQ(cache(1 - loser).remote_status()->corrupt_values, others);
    // What is found damaged is dropped, and computed pages replace it.
    forget_memory();
    (void)serve(prompt_);
    forget_memory();
    (void)serve(prompt_);
    forget_memory();
    EXPECT_EQ(serve(prompt_), 12 * kPageTokens);
  }
}

TEST_F(CacheOwnRanksApart, WhoHearsEarlyWaitsForTheOthers) {
  open_plain();
  EXPECT_EQ(serve(prompt_), 0U);
  for (std::uint32_t late = 0; late < rank_count_; ++late) {
    forget_memory();
    is_held_[late] = true;
    RankRequests requests;
    start(requests, prompt_);
    for (int i = 0; i < 50; ++i) exchange();
    EXPECT_FALSE(is_ready(requests)) << "rank " << late;
    is_held_[late] = false;
    while (!is_ready(requests) && !HasFailure()) exchange();
    EXPECT_EQ(view(requests).computed_tokens, 12U * kPageTokens);
    while (!HasFailure() && !try_step(requests)) exchange();
    end(requests);
    settle();
  }
}

TEST_F(CacheOwnRanksApart, ADeadlineIsOverForAllAtOnce) {
  open([this](std::uint32_t) {
    CacheConfig config = rank_config({full_group()});
    config.host.load_timeout_ns = config.remote.load_timeout_ns;
    return config;
  });
  EXPECT_EQ(serve(prompt_), 0U);
  forget_memory();
  is_held_[1] = true;
  RankRequests requests;
  start(requests, prompt_);
  for (int i = 0; i < 5; ++i) exchange();
  EXPECT_FALSE(is_ready(requests));
  now_ += cache(0).config().host.load_timeout_ns;
  exchange();
  EXPECT_TRUE(is_ready(requests));
  EXPECT_EQ(view(requests).computed_tokens, 0U);
  while (!HasFailure() && !try_step(requests)) exchange();
  end(requests);
  is_held_[1] = false;
  settle();
}

// Windows and snapshots: which of them a tier has is no number of pages.
TEST_F(CacheOwnRanksApart, AWindowThatOneHasLostLimitsTheHitOfAll) {
  for (const CacheGroup& group : {window_group(20), state_group(0, every(64))}) {
    open([&](std::uint32_t) { return rank_config({full_group(), group}); });
    const std::vector<TokenId> prompt = token_range(0, 200);
    const std::vector<TokenId> next = with_tail(prompt, 1, 30);
    EXPECT_EQ(serve(prompt), 0U);
    EXPECT_GT(serve(next), 0U);
    forget_memory();
    const std::uint32_t whole = serve(next);
    EXPECT_GT(whole, 0U);
    for (std::uint32_t loser = 0; loser < rank_count_; ++loser) {
      // Extents of the history are larger than pages of the other group.
      std::size_t largest = 0;
      for (const std::string& key : server(loser).keys()) largest = std::max(largest, server(loser).value(key).size());
      for (const std::string& key : server(loser).keys()) {
        if (server(loser).value(key).size() < largest) server(loser).drop_value(key);
      }
      forget_memory();
      const auto loads = cache(loser).stats()->remote_load_outcomes;
      EXPECT_EQ(serve(next), 0U) << group.name << ", rank " << loser;
      EXPECT_EQ(cache(loser).stats()->remote_load_outcomes, loads) << "nothing was promised";
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
  for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
    CacheConfig config = rank_config({full_group()});
    config.disk.directories = {directory.path() + "/rank-" + std::to_string(rank)};
    config.disk.capacity_bytes = 64 << 20U;
    config.disk.segment_bytes = 1 << 20U;
    config.disk.rank_index = rank;
    ranks_[rank]->engine_.reset();
    ranks_[rank]->use(rank == 1 ? CacheForTests::open(std::move(config), failing).value()
                                : Cache::open(std::move(config)).value());
  }
  EXPECT_EQ(serve(prompt_), 0U);
  forget_memory();
  EXPECT_EQ(serve(prompt_), 12 * kPageTokens);
  testing::call_failures.write = EIO;
  testing::call_failures.create = EIO;
  for (TokenId i = 1; i < 8; ++i) (void)serve(token_range(i * 10'000, 8 * kPageTokens));
  for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
    EXPECT_TRUE(CacheForTests::lowers(cache(rank)).front().has_failed) << "rank " << rank;
  }
  testing::call_failures.clear();
  forget_memory();
  EXPECT_EQ(serve(prompt_), 0U);
  close();  // before its files go
}

// As engines do it, with processes in place of threads.
TEST_F(CacheOwnRanksApart, ExchangeOnceInEachStep) {
  Gathering gathering(rank_count_);
  std::vector<std::unique_ptr<PromptStore>> stores;
  for (const auto& server : servers_) stores.push_back(std::make_unique<PromptStore>(*server));
  std::array<std::vector<std::uint32_t>, kOwnRanksMax> found;
  std::array<OwnRank, 2> engines;  // not on the threads: what they are made of keeps GoogleTest's settings
  const auto run_rank = [&](std::uint32_t rank) {
    OwnRank& engine = engines[rank];
    CacheConfig config = rank_config({full_group(), window_group(20)});
    config.remote.store = stores[rank].get();
    config.remote.rank_index = rank;
    engine.open(std::move(config));
    TimeNs now = 100 * rank;
    const auto exchange_now = [&] {
      const Status done =
          exchange_reports(*engine.cache_, {.rank_index = rank, .rank_count = rank_count_, .now = ++now},
                           [&](std::span<const std::byte> mine) { return gathering.all_gather(rank, mine); });
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

// Steps on pages that arrive. Each rank waits for layers of its own mover, whose answers differ: no decision is made on
// them, but on what all ranks have agreed.

class CacheOwnRanksAhead : public CacheOwnRanks {
 protected:
  /// The host has a prompt of four pages, and the device nothing.
  void put_on_host(std::uint32_t transfer_count_max = 64) {
    open([&](std::uint32_t) {
      CacheConfig config = rank_config({full_group()});
      config.host.transfer_count_max = transfer_count_max;
      return config;
    });
    EXPECT_EQ(serve(prompt_), 0U);
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->cache_->reclaim(UINT32_MAX));
  }
  void fail_loads(std::uint32_t rank) {
    ranks_[rank]->gate_.break_pieces([](const PieceStart& piece) {
      return piece.kind == TransferKind::Load ? TransferFault::Io : TransferFault::None;
    });
  }
  void flip_bits(std::uint32_t rank) {
    HostStore& store = MoverPeer::host_store(CacheForTests::mover(cache(rank)));
    for (std::uint32_t page = 1; page <= cache(rank).config().host.page_count; ++page) {
      HostStorePeer::flip_bit(store, PageId{page}, 3);
    }
  }
  void start_ahead(RankRequests& requests) {
    start(requests, with_tail(prompt_, 1, 5), {.plan_while_loading = true});
    ASSERT_TRUE(is_ready(requests));
    ASSERT_TRUE(view(requests).is_loading);
  }
  [[nodiscard]] Result<TransferOutcome> wait(std::uint32_t rank, const Flights& flights) {
    return cache(rank).wait_for_layer(flights[rank]->step, {}, TimeNs{200} * 1'000'000'000);
  }

  const std::vector<TokenId> prompt_ = token_range(0, 4 * kPageTokens);
};

TEST_F(CacheOwnRanksAhead, ALoadThatFailsOnOneIsLostOnAll) {
  for (std::uint32_t loser = 0; loser < rank_count_; ++loser) {
    for (const bool is_damaged : {false, true}) {
      SCOPED_TRACE("rank " + std::to_string(loser) + (is_damaged ? ", damaged" : ", not copied"));
      put_on_host();
      is_damaged ? flip_bits(loser) : fail_loads(loser);
      RankRequests requests;
      start_ahead(requests);
      const Flights flights = plan(requests);
      ASSERT_TRUE(flights[0]);
      EXPECT_EQ(wait(1 - loser, flights).value(), TransferOutcome::Ok);
      if (!is_damaged) {
        EXPECT_EQ(wait(loser, flights).value(), TransferOutcome::Failed) << "checksums are known later";
      }
      EXPECT_FALSE(is_lost(flights)) << "nothing was agreed on";
      for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
        EXPECT_EQ(cache(rank).finish_step(flights[rank]->step, {}).error().code, ErrorCode::InvalidArgument);
        const StepResult result;
        EXPECT_EQ(cache(rank).finish_step(flights[rank]->step, {&result, 1}).error().code, ErrorCode::Unavailable);
      }
      while (view(requests).is_loading && !is_lost(flights) && !HasFailure()) exchange();
      EXPECT_TRUE(is_lost(flights));
      for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
        EXPECT_EQ(wait(rank, flights).value(), TransferOutcome::Failed) << "all are told the same now";
        ranks_[rank]->spoil(*flights[rank]);
        ranks_[rank]->finish(*flights[rank]);
      }
      EXPECT_EQ(view(requests).computed_tokens, 0U);
      ranks_[loser]->gate_.break_pieces(nullptr);
      complete(requests);
    }
  }
}

// The mover has told of the load and forgotten it, and the other rank has not heard of its own.
TEST_F(CacheOwnRanksAhead, WhatWasHeardIsAnsweredBeforeItIsAgreed) {
  put_on_host();
  ranks_[1]->gate_.close([](const PieceStart& piece) { return piece.kind == TransferKind::Load; });
  RankRequests requests;
  start_ahead(requests);
  (void)ranks_[1]->gate_.wait_for_held();
  const std::uint64_t before = cache(0).stats()->stored_page_total;
  for (TokenId i = 1; cache(0).stats()->stored_page_total < before + 4'400 && !HasFailure(); ++i) {
    RankRequests other;
    start(other, token_range(i * 1'000, 8 * kPageTokens));
    while (!try_step(other) && !HasFailure()) exchange();
    end(other);
    exchange();
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->cache_->reclaim(8));
  }
  const Flights flights = plan(requests);
  ASSERT_TRUE(flights[0]);
  EXPECT_EQ(flights[0]->step.loads.size(), 1U);
  const Result<TransferOutcome> heard = wait(0, flights);
  EXPECT_TRUE(heard.has_value()) << heard.error().message;
  EXPECT_EQ(heard.value_or(TransferOutcome::Empty), TransferOutcome::Ok);
  ranks_[1]->gate_.open();
  while (view(requests).is_loading && !HasFailure()) exchange();
  for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
    ranks_[rank]->run(*flights[rank]);
    ranks_[rank]->finish(*flights[rank]);
  }
  complete(requests);
}

// Random runs.

enum class Below : std::uint8_t { Nothing, OneServer, Servers, Disks };

struct RandomCase {
  GroupMix mix;
  Below below;
  std::uint32_t rank_count;

  friend void PrintTo(const RandomCase& each, std::ostream* out) { *out << each.mix.name << each.rank_count; }
};

class CacheOwnRanksRandom : public CacheOwnRanks, public ::testing::WithParamInterface<RandomCase> {
 protected:
  [[nodiscard]] static std::vector<TokenId> draw_tokens(testing::Random& random) {
    std::vector<TokenId> tokens = token_range(static_cast<TokenId>(1'000 * random.below(3)), 40 + random.below(200));
    const std::uint32_t tail = random.below(40);
    return tail > 0 ? with_tail(tokens, static_cast<TokenId>(random.below(3)), tail) : tokens;
  }
  void open_drawn(std::uint64_t seed);
  void run(std::uint64_t seed);

  testing::TempDirectory directory_;
};

void CacheOwnRanksRandom::open_drawn(std::uint64_t seed) {
  const auto& [mix, below, rank_count] = GetParam();
  close();
  servers_.clear();
  rank_count_ = rank_count;
  const std::uint32_t server_count = below == Below::Servers ? rank_count : below == Below::OneServer ? 1 : 0;
  for (std::uint32_t i = 0; i < server_count; ++i) {
    servers_.push_back(std::make_unique<SimRemoteServer>(seed + i));
    servers_.back()->set_faults(
        {.late = 20, .failed = 20, .lost_puts = 50, .gone = 50, .promised = 50, .flipped_bits = 30});
  }
  open([&](std::uint32_t rank) {
    CacheConfig config = rank_config(mix.groups, 48);
    config.host.page_count = 60;
    config.host.load_timeout_ns = 2'000'000'000;
    config.host.compute_ns_per_token = 2'000'000;
    if (below != Below::Disks) return config;
    config.disk.directories = {directory_.path() + "/" + std::to_string(seed) + "-" + std::to_string(rank)};
    config.disk.segment_bytes = 1 << 20U;
    config.disk.capacity_bytes = (4U + (2 * rank)) << 20U;  // each gives up others
    config.disk.rank_index = rank;
    return config;
  });
  // Each rank's own copies fail now and then.
  for (std::uint32_t rank = 0; rank < rank_count; ++rank) {
    ranks_[rank]->gate_.break_pieces([salt = mix64((seed * kOwnRanksMax) + rank)](const PieceStart& piece) {
      const std::uint64_t draw = mix64(salt + (std::uint64_t{piece.id.generation} << 32U) + piece.id.index);
      return draw % 50 == 0 ? TransferFault::Io : TransferFault::None;
    });
  }
}

void CacheOwnRanksRandom::run(std::uint64_t seed) {
  open_drawn(seed);
  testing::Random random(seed);
  std::vector<std::unique_ptr<RankRequests>> requests;
  const auto settle_all = [&] {
    is_held_ = {};
    settle();
  };
  for (int step = 0; step < 500 && !HasFailure(); ++step) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", step " + std::to_string(step));
    switch (random.below(12)) {
      case 0:
      case 1:
        if (requests.size() == 3) break;
        start(*requests.emplace_back(std::make_unique<RankRequests>()), draw_tokens(random),
              {.plan_while_loading = random.below(2) == 0});
        break;
      case 2:
      case 3:
      case 4:
        for (const auto& each : requests) {
          if (is_ready(*each) && view(*each).pending_tokens > 0) (void)try_step(*each);
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
        if (servers_.empty()) break;
        SimRemoteServer& server = *servers_[random.below(static_cast<std::uint32_t>(servers_.size()))];
        const std::vector<std::string> keys = server.keys();
        if (!keys.empty()) server.drop_value(keys[random.below(static_cast<std::uint32_t>(keys.size()))]);
        break;
      }
      case 8:
        is_held_[random.below(rank_count_)] = random.below(2) == 0;
        break;
      case 9:
        now_ += random.below(300'000'000);
        skew_ns_ = random.below(100);
        break;
      default:
        break;
    }
    if (requests.empty() && GetParam().below != Below::Nothing && random.below(3) == 0) {
      settle_all();
      forget_memory();
    } else if (requests.empty() && random.below(30) == 0) {
      for (const auto& rank : ranks_) ASSERT_TRUE(rank->cache_->reset());  // on the servers too
    }
    exchange();
  }
  for (const auto& each : requests) end(*each);
  settle_all();
}

TEST_P(CacheOwnRanksRandom, StayAlike) {
  const std::uint64_t seed_count = GetParam().below == Below::Disks ? 2 : 5;  // disks take their time to sync
  for (std::uint64_t seed = 1; seed <= seed_count && !HasFailure(); ++seed) run(seed);
  EXPECT_GT(agreed_total_, 0U);  // how many hits there are, depends on how busy the machine is
}

[[nodiscard]] std::vector<RandomCase> random_cases() {
  std::vector<RandomCase> cases;
  for (const GroupMix& mix : mixes()) {
    if (mix.name == "Plain") {
      cases.push_back({mix, Below::OneServer, 2});
      cases.push_back({mix, Below::Nothing, 3});
      cases.push_back({mix, Below::Disks, 4});
    } else if (mix.name == "Window") {
      cases.push_back({mix, Below::Servers, 2});
      cases.push_back({mix, Below::Disks, 3});
    } else if (mix.name == "DraftAndState") {
      cases.push_back({mix, Below::OneServer, 3});
    } else if (mix.name == "Sink") {
      cases.push_back({mix, Below::Nothing, 2});
    } else if (mix.name == "Everything") {
      cases.push_back({mix, Below::Servers, 3});
    }
  }
  return cases;
}

[[nodiscard]] std::string name_of(const ::testing::TestParamInfo<RandomCase>& info) {
  constexpr std::array<const char*, 4> kBelow = {"Alone", "OnOneServer", "OnServers", "OnDisks"};
  return info.param.mix.name + kBelow[static_cast<std::size_t>(info.param.below)] +
         std::to_string(info.param.rank_count);
}

INSTANTIATE_TEST_SUITE_P(Groups, CacheOwnRanksRandom, ::testing::ValuesIn(random_cases()), name_of);

}  // namespace
}  // namespace quire
