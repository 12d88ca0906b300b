// SPDX-License-Identifier: Apache-2.0
//
// For tests of a cache for each rank, as in processes of their own. Each rank has values of its own on a server, loses
// them on its own and hears of them at times of its own. All caches get the same calls, and after each exchange of what
// they have heard they must be alike: the same hits, the same pages.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "remote_fixture.h"
#include "testing/mover_gate.h"
#include "testing/seeded_run.h"
#include "transfer/mover_peer.h"

namespace quire {

inline constexpr std::uint32_t kOwnRanksMax = 4;
using ReportBytes = std::vector<std::byte>;

/// The cache of one rank, with an engine that verifies every byte that it finds.
class OwnRank : public CacheGroupsTest {
 public:
  testing::MoverGate gate_;  // of the cache's own mover; close the cache first

 private:
  void TestBody() override {}
};

/// A request, as every rank has it.
using RankRequests = std::array<GroupsRequest, kOwnRanksMax>;

class CacheOwnRanks : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kPageTokens = kGroupsDiskPageTokens;

  ~CacheOwnRanks() override { close(); }

  [[nodiscard]] CacheConfig rank_config(std::vector<CacheGroup> groups, std::uint32_t page_count = 64) const {
    for (CacheGroup& group : groups) {
      for (Component& component : group.components) {
        component.sharding = Sharding::Heads;
        component.heads = rank_count_;
      }
    }
    CacheConfig config = groups_config(std::move(groups), kPageTokens, page_count, 512);
    config.page.rank_count = rank_count_;
    config.host.page_count = 2 * page_count;
    config.host.write_policy = WritePolicy::WriteThrough;
    config.host.transfer_pages_max = 4;  // and so an extent has four pages
    // Real time is not to matter here.
    config.remote.find_timeout_ns = 3'600'000'000'000;
    config.remote.load_timeout_ns = config.remote.find_timeout_ns;
    config.remote.store_timeout_ns = config.remote.find_timeout_ns;
    return config;
  }
  /// `config` by rank. With servers, all ranks have a remote tier.
  void open(const std::function<CacheConfig(std::uint32_t)>& config) {
    close();
    for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
      CacheConfig own = config(rank);
      if (!servers_.empty()) {
        stores_.push_back(std::make_unique<SimRemoteStore>(server(rank)));
        own.remote.store = stores_.back().get();
        own.remote.rank_index = rank;
      }
      OwnRank& opened = *ranks_.emplace_back(std::make_unique<OwnRank>());
      opened.open(std::move(own));
      MoverPeer::set_hooks(CacheForTests::mover(*opened.cache_),
                           {.before_piece = [&opened](const PieceStart& piece) { return opened.gate_.pass(piece); }});
    }
    is_held_ = {};
    now_ = 0;
  }
  void close() {
    for (const auto& rank : ranks_) rank->gate_.open();
    for (const auto& rank : ranks_) rank->engine_.reset();
    for (const auto& rank : ranks_) rank->cache_.reset();
    ranks_.clear();
    stores_.clear();
  }
  [[nodiscard]] Cache& cache(std::uint32_t rank) { return *ranks_[rank]->cache_; }
  [[nodiscard]] SimRemoteServer& server(std::uint32_t rank) { return *servers_[rank % servers_.size()]; }
  /// Servers answer what they have, unless they are held.
  void run_servers() {
    for (std::uint32_t i = 0; i < servers_.size(); ++i) {
      while (!is_held_[i] && server(i).run_one()) {
      }
    }
  }

  [[nodiscard]] Result<std::span<const std::byte>> report_of(std::uint32_t rank, TimeNs now) {
    return cache(rank).report_to_ranks({.rank_index = rank, .rank_count = rank_count_, .now = now});
  }
  [[nodiscard]] std::vector<ReportBytes> report() {
    std::vector<ReportBytes> reports;
    for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
      const auto report = report_of(rank, now_ + (rank * skew_ns_));  // clocks differ
      EXPECT_TRUE(report.has_value()) << report.error().message;
      reports.emplace_back(report->begin(), report->end());
    }
    return reports;
  }
  static Result<RankAgreement> apply_to(Cache& cache, const std::vector<ReportBytes>& reports) {
    const std::vector<std::span<const std::byte>> spans(reports.begin(), reports.end());
    return cache.apply_ranks(spans);
  }
  /// All ranks get these, each in an order of its own.
  void apply_all(std::vector<ReportBytes> reports) {
    for (const auto& rank : ranks_) {
      const Result<RankAgreement> agreed = apply_to(*rank->cache_, reports);
      ASSERT_TRUE(agreed.has_value()) << agreed.error().message;
      now_ = agreed->now;
      agreed_total_ += agreed->completions.size();
      rank->expect_invariants();
      for (std::uint32_t i = rank_count_; i > 1; --i) std::swap(reports[i - 1], reports[order_.below(i)]);
    }
    expect_alike();
  }
  /// What an engine does once in a step.
  void exchange() {
    run_servers();
    apply_all(report());
  }
  void settle() {
    while (cache(0).stats()->transfers_in_flight > 0 && !HasFailure()) {
      exchange();
      std::this_thread::yield();
    }
  }
  void expect_alike() {
    const std::string first = text_of(0);
    for (std::uint32_t rank = 1; rank < rank_count_; ++rank) ASSERT_EQ(text_of(rank), first) << "rank " << rank;
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
          s.remote_stored_page_total, s.disk_hit_tokens, s.disk_found_page_total, s.disk_loaded_page_total,
          s.disk_stored_page_total, s.lost_page_total, s.host_evicted_page_total}) {
      text += std::to_string(number) + " ";
    }
    for (const std::uint64_t count : s.remote_load_outcomes) text += std::to_string(count) + " ";
    for (const std::uint64_t count : s.load_outcomes) text += std::to_string(count) + " ";
    for (const std::uint64_t count : s.load_faults) text += std::to_string(count) + " ";
    return text + std::to_string(s.load_bytes_per_ns);
  }

  /// Begun and admitted on all ranks.
  void start(RankRequests& requests, const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) {
    for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
      GroupsRequest& request = requests[rank];
      request.tokens = tokens;
      request.sequence = cache(rank).begin(ranks_[rank]->space_, {.tokens = tokens}, options).value();
    }
    for (bool is_admitted = false; !is_admitted && !HasFailure();) {
      for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
        const Result<Admission> admission = cache(rank).admit(requests[rank].sequence);
        ASSERT_TRUE(rank == 0 || admission.has_value() == is_admitted) << "only some ranks can admit it";
        is_admitted = admission.has_value();
        if (is_admitted) requests[rank].admission = *admission;
      }
      if (!is_admitted) exchange();
    }
    live_.push_back(&requests);
  }
  [[nodiscard]] SequenceView view(const RankRequests& requests) { return ranks_[0]->view(requests[0]); }
  [[nodiscard]] bool is_ready(const RankRequests& requests) { return view(requests).is_ready; }
  /// On all ranks; none when there are no pages for it now.
  using Flights = std::array<std::optional<GroupsFlight>, kOwnRanksMax>;
  [[nodiscard]] Flights plan(RankRequests& requests) {
    Flights flights;
    for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
      const StepEntry entry{.sequence = &requests[rank].sequence};
      const Result<PlanOutcome> outcome = cache(rank).plan_step({&entry, 1});
      EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
      if (!outcome || !outcome->step) continue;
      flights[rank] = GroupsFlight{.step = *outcome->step,
                                   .works = {{.request = &requests[rank]}},
                                   .views = {ranks_[rank]->view(requests[rank])}};
    }
    for (std::uint32_t rank = 1; rank < rank_count_; ++rank) {
      EXPECT_EQ(flights[rank].has_value(), flights[0].has_value()) << "only some ranks can plan it";
    }
    return flights;
  }
  /// Whether an entry's pages do not come, as all ranks have agreed.
  [[nodiscard]] bool is_lost(const Flights& flights) {
    const bool is_lost = !cache(0).lost_entries(flights[0]->step)->empty();
    for (std::uint32_t rank = 1; rank < rank_count_; ++rank) {
      EXPECT_EQ(!cache(rank).lost_entries(flights[rank]->step)->empty(), is_lost) << "only some ranks have lost it";
    }
    return is_lost;
  }
  /// Plans, computes and finishes all that is pending; false when there are no pages for it now.
  bool try_step(RankRequests& requests) {
    const Flights flights = plan(requests);
    if (!flights[0] || HasFailure()) return false;
    while (view(requests).is_loading && !is_lost(flights) && !HasFailure()) exchange();
    const bool is_spoiled = is_lost(flights);
    for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
      is_spoiled ? ranks_[rank]->spoil(*flights[rank]) : ranks_[rank]->run(*flights[rank]);
      ranks_[rank]->finish(*flights[rank]);
    }
    return true;
  }
  void end(RankRequests& requests) {
    std::erase(live_, &requests);
    for (std::uint32_t rank = 0; rank < rank_count_; ++rank) ranks_[rank]->end(requests[rank]);
  }
  /// A whole request; gives the tokens that no rank had to compute.
  std::uint32_t serve(const std::vector<TokenId>& tokens) {
    RankRequests requests;
    start(requests, tokens);
    while (!is_ready(requests) && !HasFailure()) exchange();
    const SequenceView found = view(requests);
    complete(requests);
    return found.token_count - found.pending_tokens;
  }
  void complete(RankRequests& requests) {
    while ((view(requests).pending_tokens > 0 || !is_ready(requests)) && !HasFailure()) {
      if (!is_ready(requests) || !try_step(requests)) exchange();
    }
    end(requests);
    settle();
  }
  /// Memory has nothing any more.
  void forget_memory() {
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->cache_->sleep(Sleep::DropAll).value());
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->cache_->wake());
  }

  std::uint32_t rank_count_ = 2;
  std::vector<std::unique_ptr<SimRemoteServer>> servers_;  // one for each rank, or one for all; none: no remote tier
  std::vector<std::unique_ptr<SimRemoteStore>> stores_;
  std::vector<std::unique_ptr<OwnRank>> ranks_;
  std::array<bool, kOwnRanksMax> is_held_{};  // by server: nothing is answered now
  std::vector<const RankRequests*> live_;
  TimeNs now_ = 0;
  TimeNs skew_ns_ = 7;
  std::uint64_t agreed_total_ = 0;
  testing::Random order_{1};  // in which reports come
};

/// A server for each rank.
class CacheOwnRanksApart : public CacheOwnRanks {
 protected:
  CacheOwnRanksApart() {
    for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
      servers_.push_back(std::make_unique<SimRemoteServer>(rank + 1));
    }
  }
  void open_plain() {
    open([this](std::uint32_t) { return rank_config({full_group()}); });
  }

  const std::vector<TokenId> prompt_ = token_range(0, (12 * kPageTokens) + 3);  // three extents
};

}  // namespace quire
