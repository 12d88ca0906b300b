// SPDX-License-Identifier: Apache-2.0
//
// A cache for each rank: what is wrong is refused, and changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "own_ranks_fixture.h"

namespace quire {
namespace {

constexpr TimeNs kHourNs = TimeNs{3'600} * 1'000'000'000;

class CacheOwnRanksInput : public CacheOwnRanksApart {
 protected:
  /// What a rank says to these reports.
  [[nodiscard]] std::string says(const std::vector<ReportBytes>& reports, std::uint32_t rank = 0) {
    const Result<RankAgreement> agreed = apply_to(cache(rank), reports);
    return agreed ? std::string("agreed") : agreed.error().message;
  }
  void expect_refused(const std::vector<ReportBytes>& reports, ErrorCode code, const std::string& text) {
    for (std::uint32_t rank = 0; rank < rank_count_; ++rank) {
      const std::string before = text_of(rank);
      const Result<RankAgreement> agreed = apply_to(cache(rank), reports);
      ASSERT_FALSE(agreed.has_value()) << "rank " << rank << ": " << text;
      EXPECT_EQ(agreed.error().code, code) << agreed.error().message;
      EXPECT_NE(agreed.error().message.find(text), std::string::npos) << agreed.error().message;
      EXPECT_EQ(text_of(rank), before);
    }
  }
  /// A request of which all ranks have heard something, and not told it.
  void start_with_news(RankRequests& requests) {
    EXPECT_EQ(serve(prompt_), 0U);
    forget_memory();
    start(requests, prompt_);
    const auto has_news = [this](const ReportBytes& report) { return report.size() > empty_bytes_; };
    while (!std::ranges::all_of(report(), has_news) && !HasFailure()) {
      run_servers();
      std::this_thread::yield();
    }
  }

  std::size_t empty_bytes_ = 0;  // of a report that has no completion
};

// Who applies

TEST_F(CacheOwnRanksInput, OtherCallsThatWouldApplyAreRefused) {
  open_plain();
  exchange();
  RankRequests requests;
  start(requests, prompt_);
  while (!is_ready(requests) && !HasFailure()) exchange();
  ASSERT_TRUE(try_step(requests));
  const Completion completion;
  const std::string before = text_of(0);
  const auto expect_refused = [&](const auto& result, const char* name) {
    ASSERT_FALSE(result.has_value()) << name;
    EXPECT_EQ(result.error().code, ErrorCode::Unsupported) << result.error().message;
    EXPECT_EQ(result.error().message.find(name), 0U) << result.error().message;
    EXPECT_NE(result.error().message.find("report_to_ranks()"), std::string::npos) << result.error().message;
  };
  expect_refused(cache(0).poll(), "poll: ");
  expect_refused(cache(0).apply({&completion, 1}, now_), "apply: ");
  expect_refused(cache(0).apply({}, now_), "apply: ");
  expect_refused(cache(0).advance(now_ + 1), "advance: ");
  expect_refused(cache(0).wait_until_ready(requests[0].sequence), "wait_until_ready: ");
  expect_refused(cache(0).wait_until_flushed(), "wait_until_flushed: ");
  EXPECT_EQ(text_of(0), before);
  exchange();  // nothing was done on the one alone
  end(requests);
  settle();
}

// A load whose time is over on one rank is on its way on the other.
TEST_F(CacheOwnRanksInput, ADeadlineIsNotOverForOneAlone) {
  open([this](std::uint32_t) {
    CacheConfig config = rank_config({full_group()});
    config.host.load_timeout_ns = config.remote.load_timeout_ns;
    return config;
  });
  EXPECT_EQ(serve(prompt_), 0U);
  forget_memory();
  is_held_ = {true, true};
  RankRequests requests;
  start(requests, prompt_);
  exchange();
  const TimeNs over = now_ + cache(0).config().host.load_timeout_ns;
  (void)cache(0).apply({}, over);
  (void)cache(0).advance(over);
  EXPECT_TRUE(cache(0).view(requests[0].sequence)->is_loading);
  EXPECT_TRUE(cache(1).view(requests[1].sequence)->is_loading);
  is_held_ = {};
  complete(requests);
}

TEST_F(CacheOwnRanksInput, WhoHasAppliedAloneCannotReport) {
  const auto expect_late = [&](const char* what, auto&& call) {
    open_plain();
    call(cache(0));
    const auto report = report_of(0, 0);
    ASSERT_FALSE(report.has_value()) << what;
    EXPECT_EQ(report.error().code, ErrorCode::Unsupported);
    EXPECT_NE(report.error().message.find("was told by poll(), apply() or advance()"), std::string::npos)
        << report.error().message;
  };
  expect_late("poll", [](Cache& cache) { ASSERT_TRUE(cache.poll()); });
  expect_late("apply", [](Cache& cache) { ASSERT_TRUE(cache.apply({}, 0)); });
  expect_late("advance", [](Cache& cache) { ASSERT_TRUE(cache.advance(1)); });
}

TEST_F(CacheOwnRanksInput, TimeDoesNotGoBack) {
  open_plain();
  now_ = 10 * kHourNs;
  exchange();
  now_ = 0;
  exchange();
  EXPECT_EQ(now_, (10 * kHourNs) + skew_ns_);
}

TEST_F(CacheOwnRanksInput, TimesThatAreFarApartAreRefusedByAll) {
  open_plain();
  skew_ns_ = 2 * kHourNs;
  expect_refused(report(), ErrorCode::InvalidArgument, "apart");
  skew_ns_ = kHourNs / 2;
  exchange();
}

// Which reports

TEST_F(CacheOwnRanksInput, ReportsThatAreNotOfThisRoundOrNotOfAllAreRefused) {
  open_plain();
  EXPECT_NE(says({}).find("report_to_ranks() comes first"), std::string::npos);
  const std::vector<ReportBytes> before = report();
  apply_all(before);
  EXPECT_NE(says(before).find("report_to_ranks() comes first"), std::string::npos);
  const std::vector<ReportBytes> now = report();
  expect_refused({}, ErrorCode::InvalidArgument, "there are 0 reports, and 2 ranks");
  expect_refused({now[0]}, ErrorCode::InvalidArgument, "there are 1 reports, and 2 ranks");
  expect_refused({now[0], now[1], now[1]}, ErrorCode::InvalidArgument, "there are 3 reports, and 2 ranks");
  expect_refused({now[1], now[1]}, ErrorCode::InvalidArgument, "report 1 is of rank 1, as report 0");
  expect_refused({now[0], now[0]}, ErrorCode::InvalidArgument, "report 1 is of rank 0, as report 0");
  expect_refused({now[0], before[1]}, ErrorCode::InvalidArgument, "report 1 is of round 0, this rank is in round 1");
  ReportBytes cut = now[1];
  cut.pop_back();
  expect_refused({now[0], cut}, ErrorCode::InvalidArgument, "report 1 is damaged");
  const std::vector<ReportBytes> later = report();  // of the same round, and another time
  EXPECT_EQ(now, later);
  now_ += 5;
  const std::vector<ReportBytes> last = report();
  expect_refused(later, ErrorCode::InvalidArgument, "not the last one that this rank gave");
  apply_all(last);
}

TEST_F(CacheOwnRanksInput, TheOrderOfReportsDoesNotMatter) {
  open_plain();
  EXPECT_EQ(serve(prompt_), 0U);
  forget_memory();
  RankRequests requests;
  start(requests, prompt_);
  for (int i = 0; !is_ready(requests) && !HasFailure(); ++i) {
    run_servers();
    std::vector<ReportBytes> reports = report();
    ASSERT_EQ(says(reports, 0), "agreed");
    std::swap(reports[0], reports[1]);
    ASSERT_EQ(says(reports, 1), "agreed");
    expect_alike();
  }
  EXPECT_EQ(view(requests).computed_tokens, 12U * kPageTokens);
  complete(requests);
}

// Damage

TEST_F(CacheOwnRanksInput, AReportWithAnyBitFlippedIsRefused) {
  open([this](std::uint32_t) { return rank_config({full_group(), window_group(20)}); });
  empty_bytes_ = report()[0].size();
  exchange();
  RankRequests requests;
  start_with_news(requests);
  const std::vector<ReportBytes> reports = report();
  ASSERT_GT(reports[1].size(), empty_bytes_);
  const std::string before = text_of(0);
  for (std::size_t bit = 0; bit < 8 * reports[1].size(); ++bit) {
    std::vector<ReportBytes> damaged = reports;
    damaged[1][bit / 8] ^= std::byte{1} << (bit % 8);
    const Result<RankAgreement> agreed = apply_to(cache(0), damaged);
    ASSERT_FALSE(agreed.has_value()) << "bit " << bit;
    ASSERT_EQ(agreed.error().code, ErrorCode::InvalidArgument) << "bit " << bit;
    ASSERT_EQ(text_of(0), before) << "bit " << bit;
  }
  for (std::size_t bytes = 0; bytes < reports[1].size(); ++bytes) {
    const Result<RankAgreement> agreed =
        apply_to(cache(0), {reports[0], ReportBytes(reports[1].begin(), reports[1].begin() + bytes)});
    ASSERT_FALSE(agreed.has_value()) << bytes << " bytes";
  }
  ASSERT_EQ(text_of(0), before);
  apply_all(reports);
  complete(requests);
}

// Ranks that are not alike

TEST_F(CacheOwnRanksInput, RanksThatWereOpenedOtherwiseAreNoticed) {
  using Change = std::function<void(CacheConfig&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"layout", [this](CacheConfig& config) { config.layout = rank_config({full_group(), window_group(20)}).layout; }},
      {"window", [this](CacheConfig& config) { config.layout = rank_config({full_group(), window_group(36)}).layout; }},
      {"rows",
       [this](CacheConfig& config) {
         CacheGroup group = full_group();
         group.components[0].name = "other";  // of the same size
         config.layout = rank_config({group}).layout;
       }},
      {"page tokens", [](CacheConfig& config) { config.page.page_tokens *= 2; }},
      {"device pages", [](CacheConfig& config) { --config.device.page_count; }},
      {"host pages", [](CacheConfig& config) { ++config.host.page_count; }},
      {"sequences", [](CacheConfig& config) { ++config.sequence_count_max; }},
      {"context", [](CacheConfig& config) { config.context_tokens_max -= kPageTokens; }},
      {"transfers", [](CacheConfig& config) { config.host.transfer_count_max *= 2; }},
      {"pages of a transfer", [](CacheConfig& config) { config.host.transfer_pages_max *= 2; }},
      {"write policy", [](CacheConfig& config) { config.host.write_policy = WritePolicy::WriteBack; }},
      {"compute time", [](CacheConfig& config) { config.host.compute_ns_per_token = 1; }},
      {"load timeout", [](CacheConfig& config) { config.host.load_timeout_ns = kHourNs; }},
      {"policy", [](CacheConfig& config) { config.policy = "fifo"; }},
      {"host policy", [](CacheConfig& config) { config.host.policy = "fifo"; }},
      {"dedup", [](CacheConfig& config) { config.dedup = false; }},
      {"hash seed", [](CacheConfig& config) { config.hash_seed = 1; }},
      {"remote timeout", [](CacheConfig& config) { ++config.remote.find_timeout_ns; }},
      {"remote write policy", [](CacheConfig& config) { config.remote.write_policy = WritePolicy::Selective; }},
      {"remote access", [](CacheConfig& config) { config.remote.access = TierAccess::WriteOnly; }},
  };
  for (const auto& [what, change] : changes) {
    SCOPED_TRACE(what);
    open([&](std::uint32_t rank) {
      CacheConfig config = rank_config({full_group()});
      if (what == "window") config.layout = rank_config({full_group(), window_group(20)}).layout;
      if (rank == 1) change(config);
      return config;
    });
    expect_refused(report(), ErrorCode::Corrupt, "is of a cache that was opened otherwise");
  }
  open([this](std::uint32_t rank) {
    CacheConfig config = rank_config({full_group()});
    config.host.checksums = rank == 0;  // decides nothing
    config.residency_record_count_max += rank;
    return config;
  });
  exchange();
}

TEST_F(CacheOwnRanksInput, ARankThatGotAnotherCallIsNoticedInTheNextRound) {
  open_plain();
  exchange();
  GroupsRequest request = ranks_[1]->start(prompt_);  // rank 0 has none
  expect_refused(report(), ErrorCode::Corrupt, "is of a cache that went another way");
  ranks_[1]->end(request);
}

// The same pages and the same transfers, of other tokens.
TEST_F(CacheOwnRanksInput, ARankThatGotOtherTokensIsNoticedBeforeAnythingIsApplied) {
  servers_.clear();
  open_plain();
  exchange();
  std::array<GroupsRequest, 2> requests = {ranks_[0]->start(token_range(0, 200)),
                                           ranks_[1]->start(token_range(5'000, 200))};
  for (std::uint32_t rank = 0; rank < 2; ++rank) ranks_[rank]->run_all(requests[rank]);
  expect_refused(report(), ErrorCode::Corrupt, "is of a cache that went another way");
  for (std::uint32_t rank = 0; rank < 2; ++rank) ranks_[rank]->end(requests[rank]);
}

// Only calls that change something have to be the same.
TEST_F(CacheOwnRanksInput, QuestionsToOneRankMakeNoDifference) {
  open_plain();
  RankRequests requests;
  start(requests, prompt_);
  while (!is_ready(requests) && !HasFailure()) {
    (void)ranks_[1]->lookup(prompt_);
    (void)cache(1).view(requests[1].sequence);
    ASSERT_TRUE(cache(1).page_names(ranks_[1]->space_, {.tokens = prompt_}));
    ASSERT_TRUE(cache(1).disk_status().has_value() || cache(1).remote_status().has_value());
    exchange();
  }
  ASSERT_TRUE(try_step(requests));
  (void)ranks_[0]->lookup(prompt_);
  exchange();
  end(requests);
  settle();
}

// How much is told

TEST_F(CacheOwnRanksInput, WhatWasToldIsNotToldAgain) {
  open([this](std::uint32_t) { return rank_config({full_group(), window_group(20)}); });
  empty_bytes_ = report()[0].size();
  exchange();
  EXPECT_EQ(serve(prompt_), 0U);
  forget_memory();
  is_held_[1] = true;
  RankRequests requests;
  start(requests, prompt_);
  std::size_t told_count = 0;
  for (int i = 0; i < 200; ++i) {
    run_servers();
    const std::vector<ReportBytes> reports = report();
    told_count += reports[0].size() > empty_bytes_ ? 1 : 0;
    apply_all(reports);
    std::this_thread::yield();
  }
  EXPECT_EQ(told_count, 1U) << "of the question, which rank 1 has not answered";
  is_held_ = {};
  complete(requests);
}

}  // namespace
}  // namespace quire
