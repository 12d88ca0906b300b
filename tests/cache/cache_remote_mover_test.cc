// SPDX-License-Identifier: Apache-2.0
//
// Caches with a RemoteMover as their lower tier: what one has put on a server another one finds, and whatever the
// server does costs hits and nothing else.
#include <array>
#include <memory>
#include <vector>

#include "disk_fixture.h"
#include "testing/sim_remote_store.h"
#include "transfer/remote_mover.h"

namespace quire {
namespace {

using testing::SimRemoteServer;

class RemoteTierTest : public DiskTest {
 protected:
  /// A process of its own, whose pages have other ids than those of one with another page count.
  void open_engine(std::uint32_t extent_pages, std::uint32_t page_count = 32, std::uint32_t host_page_count = 64) {
    close_engine();
    CacheConfig config = tiers_config(page_count, host_page_count, WritePolicy::WriteThrough);
    config.page.page_tokens = kPageTokens;
    config.host.transfer_pages_max = 8;
    cache_ = open_cache(std::move(config));
    mover_ = std::make_unique<HandMover>(*cache_);
    host_pages_.set_mover(mover_.get());
    engine_ = std::make_unique<ByteEngine>(*cache_);
    const NameLog::Config log{
        .page_tokens = kPageTokens, .entry_count_max = 1'000, .page_count_max = 300, .extra_key_count_max = 8};
    store_ = std::make_unique<testing::SimRemoteStore>(server_);
    const std::array<HostPages*, 1> hosts = {&host_pages_};
    auto tier =
        RemoteMover::open({.names = {.page_tokens = kPageTokens,
                                     .device_page_count = stats().page_count + 1,
                                     .host_page_count = stats().host_page_count + 1,
                                     .key_space_count_max = cache_->config().key_space_count_max},
                           .log = log,
                           .pools = {{.layout = {.page_bytes = std::uint64_t{kPageTokens} * kTestTokenBytes, .hash = 1},
                                      .extent_pages = extent_pages}},
                           .transfer_count_max = cache_->config().host.transfer_count_max,
                           .transfer_pages_max = 8,
                           .path_pages_max = 1'000,
                           .has_threads = false,
                           .clock = [this] { return now_ns_; },
                           .unix_time = {}},
                          *store_, hosts);
    ASSERT_TRUE(tier.has_value()) << tier.error().message;
    tier_ = std::move(*tier);
    const std::vector<CacheForTests::LowerRow> rows = {{.tier = *tier_, .settings = {}}};
    ASSERT_TRUE(CacheForTests::add_lowers(*cache_, rows, log));
    space_ = cache_->key_space({.model = "test"}).value();
  }
  void close_engine() {
    if (tier_ != nullptr) tier_.reset();
    store_.reset();
    close();
  }
  void TearDown() override {
    if (cache_ != nullptr) DiskTest::TearDown();
    close_engine();
  }
  void set_now(TimeNs now_ns) {
    now_ns_ = now_ns;
    server_.set_now(now_ns);
  }
  bool run_tier() {
    while (tier_->run() || server_.run_one()) {
    }
    std::array<Completion, 64> completions;
    const std::span<Completion> heard = tier_->poll(completions);
    apply({heard.begin(), heard.end()});
    return !heard.empty();
  }
  void settle_tier() {
    do {
      settle();
    } while (run_tier());
  }
  /// The tokens of a request that need not be computed. Memory has nothing of them afterwards; what is computed is
  /// compared with what a page that was found holds.
  std::uint32_t serve(const std::vector<TokenId>& tokens) {
    Live live = admitted(tokens);
    settle_tier();
    EXPECT_FALSE(view(live).is_loading);
    const std::uint32_t computed_tokens = view(live).computed_tokens;
    finish(live);
    settle_tier();
    forget_memory();
    set_now(now_ns_ + 2'000'000'000);
    return computed_tokens;
  }

  SimRemoteServer server_{1};
  std::unique_ptr<testing::SimRemoteStore> store_;
  std::unique_ptr<RemoteMover> tier_;
  TimeNs now_ns_ = 1;
};

TEST_F(RemoteTierTest, OneCacheFindsWhatAnotherHasPut) {
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  for (const std::uint32_t extent_pages : {1U, 4U, 8U}) {
    open_engine(extent_pages);
    EXPECT_EQ(serve(tokens), 0U);
    EXPECT_EQ(server_.keys().size(), 8 / extent_pages);
    open_engine(extent_pages, 20, 40);
    (void)serve(token_range(5'000, 3 * kPageTokens));  // other pages have the ids
    EXPECT_EQ(serve(tokens), 8 * kPageTokens);
    // Longer, shorter, and one that parts from it.
    EXPECT_EQ(serve(token_range(0, (12 * kPageTokens) + 1)), 8 * kPageTokens);
    EXPECT_EQ(serve(token_range(0, 5 * kPageTokens)), 5 / extent_pages * extent_pages * kPageTokens);
    server_.restart_empty();
  }
}

TEST_F(RemoteTierTest, AServerThatIsAwayCostsHitsAndIsUsedAgain) {
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  open_engine(4);
  EXPECT_EQ(serve(tokens), 0U);
  server_.set_node(SimRemoteServer::Node::Failing);
  EXPECT_EQ(serve(tokens), 0U);
  EXPECT_EQ(serve(token_range(1'000, 8 * kPageTokens)), 0U);
  server_.set_node(SimRemoteServer::Node::Up);
  EXPECT_EQ(serve(tokens), 8 * kPageTokens);
  server_.restart_empty();
  EXPECT_EQ(serve(tokens), 0U);
  EXPECT_EQ(serve(tokens), 8 * kPageTokens);
}

TEST_F(RemoteTierTest, AServerThatHangsIsWaitedForAsLongAsAQuestionMayTake) {
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  open_engine(4);
  (void)serve(tokens);
  server_.set_node(SimRemoteServer::Node::Stopped);
  Live live = admitted(tokens);
  settle_tier();
  EXPECT_TRUE(view(live).is_loading);
  set_now(now_ns_ + 100'000'000);
  settle_tier();
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).computed_tokens, 0U);
  finish(live);
  // What the request computed is not written either.
  settle_tier();
  set_now(now_ns_ + 10'000'000'000);
  settle_tier();
  server_.set_node(SimRemoteServer::Node::Up);
  forget_memory();
  EXPECT_EQ(serve(tokens), 8 * kPageTokens);
}

TEST_F(RemoteTierTest, WhatIsDamagedOnTheServerIsComputedAndPutAgain) {
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  open_engine(2);
  (void)serve(tokens);
  for (const std::string& key : server_.keys()) {
    std::vector<std::byte> value = server_.value(key);
    value[value.size() - 5] ^= std::byte{1};
    server_.put_value(key, value);
  }
  // The first page of the first extent is good.
  EXPECT_EQ(serve(tokens), kPageTokens);
  EXPECT_EQ(tier_->stats().corrupt_values, 4U);  // those behind it came with it
  EXPECT_EQ(server_.keys().size(), 4U);          // what was computed instead has been put in their place
  EXPECT_EQ(serve(tokens), 8 * kPageTokens);
  EXPECT_EQ(tier_->stats().corrupt_values, 4U);
}

TEST_F(RemoteTierTest, ADroppedKeySpaceIsGoneForAllCaches) {
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  open_engine(4);
  (void)serve(tokens);
  EXPECT_EQ(server_.keys().size(), 2U);
  ASSERT_TRUE(cache_->drop(space_));
  settle_tier();
  EXPECT_TRUE(server_.keys().empty());
  open_engine(4, 20);
  EXPECT_EQ(serve(tokens), 0U);
}

}  // namespace
}  // namespace quire
