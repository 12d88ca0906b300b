// SPDX-License-Identifier: Apache-2.0
//
// Why a request had to compute although there is a server, and what is recorded of pages that come from it.
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "remote_fixture.h"

namespace quire {
namespace {

class CacheRemoteMisses : public RemoteTest {
 protected:
  static constexpr std::uint32_t kPages = 8;

  /// The prompt is on the server, and nowhere else.
  void open_with_prompt(const std::function<void(CacheConfig&)>& change = [](CacheConfig&) {}) {
    server_.restart_empty();
    server_.set_node(SimRemoteServer::Node::Up);
    open_remote(remote_config());
    (void)serve_remote(tokens_);
    ASSERT_EQ(server_.keys().size(), 2U);
    CacheConfig config = remote_config();
    change(config);
    open_remote(std::move(config));
  }
  /// The server is asked for the prompt by a request, and has heard nothing yet.
  [[nodiscard]] Live asking() {
    Live live = admitted(tokens_);
    EXPECT_TRUE(view(live).is_loading);
    while (remote().run()) {
    }
    EXPECT_EQ(server_.batch_count(), 1U);
    return live;
  }
  /// The question is answered, and what was found is asked for.
  void answer_question() {
    ASSERT_TRUE(server_.run_one());
    while (remote().run()) {
    }
    std::array<Completion, 8> completions;
    const std::span<Completion> heard = remote().poll(completions);
    ASSERT_EQ(heard.size(), 1U);
    apply({heard.begin(), heard.end()});
    while (remote().run()) {
    }
  }
  /// The request runs, and why it has to compute is counted once.
  void expect_miss(Live& live, MissReason reason, std::uint32_t pages_found = 0) {
    settle_remote();
    ASSERT_FALSE(view(live).is_loading);
    EXPECT_EQ(to_string(view(live).miss.reason), to_string(reason));
    EXPECT_EQ(view(live).computed_tokens, pages_found * kPageTokens);
    EXPECT_EQ(view(live).remote_tokens, pages_found * kPageTokens);
    EXPECT_EQ(stats().miss_requests[static_cast<std::size_t>(reason)], 1U);
    EXPECT_EQ(stats().miss_tokens[static_cast<std::size_t>(reason)], tokens_.size() - view(live).computed_tokens);
    server_.set_node(SimRemoteServer::Node::Up);
    finish(live);
    settle_remote();
  }

  std::vector<TokenId> tokens_ = token_range(0, (kPages * kPageTokens) + 1);
};

TEST_F(CacheRemoteMisses, NoneWhereAllWholePagesCame) {
  open_with_prompt();
  Live live = asking();
  expect_miss(live, MissReason::None, kPages);
}

TEST_F(CacheRemoteMisses, NeverSeenWhereTheServerHasNothing) {
  open_with_prompt();
  server_.restart_empty();
  Live live = asking();
  expect_miss(live, MissReason::NeverSeen);
  open_with_prompt();
  std::vector<TokenId> longer = token_range(0, ((kPages + 4) * kPageTokens) + 1);
  tokens_.swap(longer);
  Live part = asking();
  expect_miss(part, MissReason::NeverSeen, kPages);
}

TEST_F(CacheRemoteMisses, EvictedWhereMemoryHadItAndTheServerDoesNot) {
  open_with_prompt([](CacheConfig& config) { config.device.page_count = config.host.page_count = 2 * kPages; });
  EXPECT_EQ(serve_remote(tokens_), kPages * kPageTokens);
  for (TokenId i = 1; i < 5; ++i) (void)serve_remote(token_range(10'000 * i, kPages * kPageTokens));
  EXPECT_EQ(serve_remote(tokens_), kPages * kPageTokens);
  EXPECT_EQ(view_.remote_tokens, kPages * kPageTokens) << "memory did not have it any more";
  for (TokenId i = 1; i < 5; ++i) (void)serve_remote(token_range(10'000 * i, kPages * kPageTokens));
  server_.restart_empty();
  Live live = asking();
  const std::uint64_t evicted = stats().miss_requests[static_cast<std::size_t>(MissReason::Evicted)];
  settle_remote();
  EXPECT_EQ(to_string(view(live).miss.reason), to_string(MissReason::Evicted));
  EXPECT_EQ(stats().miss_requests[static_cast<std::size_t>(MissReason::Evicted)], evicted + 1);
  finish(live);
  settle_remote();
}

TEST_F(CacheRemoteMisses, LoadTimedOutWhereTheServerHangs) {
  struct Case {
    bool has_answered = false;
    TimeNs later_ns = 0;
  };
  // The tier itself gives up a sixteenth before its time is over.
  for (const Case& each :
       {Case{.has_answered = false, .later_ns = 95'000'000}, Case{.has_answered = false, .later_ns = 100'000'000},
        Case{.has_answered = true, .later_ns = 480'000'000}, Case{.has_answered = true, .later_ns = 500'000'000}}) {
    open_with_prompt();
    Live live = asking();
    if (each.has_answered) answer_question();
    server_.set_node(SimRemoteServer::Node::Stopped);
    set_time(now_ + each.later_ns);
    expect_miss(live, MissReason::LoadTimedOut);
  }
}

TEST_F(CacheRemoteMisses, LoadFailedWhereItRefusesOrLosesOrDamagesValues) {
  using Harm = std::function<void()>;
  struct Case {
    Harm harm;
    bool has_answered = true;
    std::uint32_t pages_found = 0;
  };
  const Harm refuse = [this] { server_.set_node(SimRemoteServer::Node::Failing); };
  const Harm lose = [this] { server_.restart_empty(); };
  const Harm damage = [this] {
    for (const std::string& key : server_.keys()) {
      std::vector<std::byte> value = server_.value(key);
      value.back() ^= std::byte{1};
      server_.put_value(key, std::move(value));
    }
  };
  for (const Case& each : {Case{.harm = refuse, .has_answered = false}, Case{.harm = refuse}, Case{.harm = lose},
                           Case{.harm = damage, .pages_found = 3}}) {
    open_with_prompt();
    Live live = asking();
    if (each.has_answered) answer_question();
    each.harm();
    expect_miss(live, MissReason::LoadFailed, each.pages_found);
  }
}

TEST_F(CacheRemoteMisses, LoadCancelledWhereTransfersPause) {
  open_with_prompt();
  Live live = asking();
  (void)cache_->pause_transfers();
  settle_remote();
  ASSERT_TRUE(cache_->resume_transfers());
  expect_miss(live, MissReason::LoadCancelled);
}

TEST_F(CacheRemoteMisses, RecomputeCheaperWhereTheServerIsSlow) {
  open_with_prompt([](CacheConfig& config) { config.host.compute_ns_per_token = 1'000; });
  // One question shows how long answers take.
  Live first = asking();
  set_time(now_ + 1'000 * static_cast<TimeNs>(tokens_.size()) - 1);
  settle_remote();
  finish(first);
  settle_remote();
  forget_memory();
  Live live = admitted(tokens_);
  EXPECT_FALSE(view(live).is_loading);
  expect_miss(live, MissReason::RecomputeCheaper);
}

TEST_F(CacheRemoteMisses, NotAskedWhereTheRequestKeepsOut) {
  open_with_prompt();
  Live live = admitted(tokens_, {.match_tokens_max = 0});
  expect_miss(live, MissReason::NotAsked);
}

// The tree knows device and host. What is further down is found by name, and nobody knows when it goes.
TEST_F(CacheRemoteMisses, ResidencyIsRecordedOfDeviceAndHostOnly) {
  CacheConfig config = remote_config();
  config.disk = disk_config().disk;
  open_remote(std::move(config));
  (void)serve_remote(tokens_);
  for (const bool has_disk : {true, false}) {
    if (!has_disk) disk_->set_broken(kPath);
    forget_memory();
    std::vector<ResidencyRecord> records(1'000);
    const std::uint64_t before = cache_->read_residency(0, records)->back().number;
    EXPECT_EQ(serve_remote(tokens_), kPages * kPageTokens);
    EXPECT_EQ(has_disk ? view_.disk_tokens : view_.remote_tokens, kPages * kPageTokens);
    std::uint32_t loaded_to_host = 0;
    for (const ResidencyRecord& record : cache_->read_residency(before + 1, records).value()) {
      EXPECT_TRUE(record.tier == Tier::Device || record.tier == Tier::Host) << to_string(record.tier);
      const bool is_loaded = record.tier == Tier::Host && record.cause == ResidencyCause::Loaded;
      loaded_to_host += is_loaded ? record.page_count : 0;
    }
    EXPECT_EQ(loaded_to_host, kPages);
  }
}

TEST(TierNames, EveryTierHasOne) {
  constexpr std::array kTiers = {Tier::Device, Tier::Host, Tier::Disk, Tier::Remote};
  constexpr std::array<std::string_view, 4> kNames = {"device", "host", "disk", "remote"};
  for (std::size_t i = 0; i < kTiers.size(); ++i) EXPECT_EQ(to_string(kTiers[i]), kNames[i]);
}

}  // namespace
}  // namespace quire
