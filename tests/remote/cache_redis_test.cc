// SPDX-License-Identifier: Apache-2.0
//
// Caches with a remote tier on a real server: of one rank and of several, that hold different heads or the same; in
// processes of their own; and what becomes of requests when the server takes nobody, stops, is killed or is replaced.
// Every byte of every request is compared.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "quire/redis_store.h"
#include "store/record_payload.h"
#include "testing/child_process.h"
#include "testing/temp_directory.h"
#include "tests/cache/rank_disk_fixture.h"
#include "tests/remote/comes_true.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/test_certificates.h"

namespace quire {
namespace {

class CacheRedis : public RankDiskTest {
 protected:
  ~CacheRedis() override { close(); }  // before its server goes

  [[nodiscard]] CacheConfig remote_config(std::uint32_t rank_count, std::uint32_t heads) const {
    CacheConfig config = rank_config(rank_count, heads);
    config.disk = {};
    config.host.transfer_pages_max = 4;  // and so an extent has four pages
    config.remote.urls = {server_.unix_url()};
    // Slower machines than any that tests run on.
    config.remote.find_timeout_ns = config.remote.load_timeout_ns = 60'000'000'000;
    return config;
  }
  void expect_found(const CacheConfig& config, std::uint32_t found) {
    CacheConfig made{.layout = config.layout, .page = config.page};
    made.device = {.page_count = config.device.page_count, .memory = DeviceMemory::None};
    made.host = config.host;
    made.remote = config.remote;
    made.sequence_count_max = config.sequence_count_max;
    open(std::move(made));
    EXPECT_EQ(serve(tokens_), found);
    EXPECT_EQ(stats().remote_hit_tokens, found);
    flush();
  }

  /// What a request finds when memory has nothing.
  std::uint32_t serve_from_below(const std::vector<TokenId>& tokens) {
    forget_memory();
    return serve(tokens);
  }
  /// A server that is not there keeps nothing.
  void flush_if_possible() {
    for (;;) {
      const Result<bool> done = cache_->flush();
      if (!done || *done || HasFatalFailure()) return;
      exchange();
    }
  }
  /// Sooner or later the server keeps what is computed, and gives it.
  [[nodiscard]] bool is_shared_again() {
    return testing::comes_true([&] {
      const bool is_found = serve_from_below(tokens_) == 64;
      flush_if_possible();
      return is_found || HasFatalFailure();
    });
  }
  /// The server has carried out no command meanwhile that could write.
  template <typename Body>
  void expect_only_read(Body body) {
    (void)server_.call({"CONFIG", "RESETSTAT"});
    body();
    const std::string commands = server_.call({"INFO", "commandstats"}).text;
    EXPECT_NE(commands.find("cmdstat_get:"), std::string::npos) << commands;
    for (const char* const writing : {"cmdstat_set:", "cmdstat_unlink:", "cmdstat_del:"}) {
      EXPECT_EQ(commands.find(writing), std::string::npos) << commands;
    }
  }
  [[nodiscard]] RemoteTierStatus status() const { return cache_->remote_status().value(); }

  testing::RedisServer server_;
  std::vector<TokenId> tokens_ = token_range(0, 100);  // six pages, of which four are an extent
};

TEST_F(CacheRedis, WhatOneProcessComputedAnotherFinds) {
  expect_found(remote_config(1, 4), 0);
  EXPECT_EQ(cache_->remote_status()->put_values, 1U);
  expect_found(remote_config(1, 4), 64);
  EXPECT_EQ(cache_->remote_status()->got_values, 1U);
  EXPECT_EQ(cache_->remote_status()->node_count, 1U);
  EXPECT_TRUE(stats().remote_is_on);
}

TEST_F(CacheRedis, EveryShardOfRanksHasItsOwnValues) {
  expect_found(remote_config(2, 4), 0);
  EXPECT_EQ(cache_->remote_status()->put_values, 2U);
  expect_found(remote_config(2, 4), 64);
  // Other numbers of ranks hold other heads.
  expect_found(remote_config(4, 4), 0);
  expect_found(remote_config(4, 4), 64);
  expect_found(remote_config(2, 4), 64);
  // Ranks that hold the same bytes have one value, for any number of them.
  expect_found(remote_config(2, 0), 0);
  EXPECT_EQ(cache_->remote_status()->put_values, 1U);
  expect_found(remote_config(4, 0), 64);
}

TEST_F(CacheRedis, AValueThatOneShardLacksEndsTheHitOfAllRanks) {
  expect_found(remote_config(2, 4), 0);
  std::vector<std::string> keys;
  ASSERT_TRUE(scan_redis_store({.urls = {server_.unix_url()}}, "quire:", [&](const RedisScanPage& page) {
    for (const RedisScanPage::Key& key : page.keys) keys.push_back(key.key);
    return true;
  }));
  ASSERT_EQ(keys.size(), 2U);
  (void)server_.call({"DEL", keys.front()});
  expect_found(remote_config(2, 4), 0);  // and writes what was lacking
  expect_found(remote_config(2, 4), 64);
}

TEST_F(CacheRedis, AValueOfAnotherTypeIsDroppedAndComputed) {
  expect_found(remote_config(1, 4), 0);
  std::string key;
  ASSERT_TRUE(scan_redis_store({.urls = {server_.unix_url()}}, "quire:", [&](const RedisScanPage& page) {
    key = page.keys.at(0).key;
    return true;
  }));
  for (const char* const type : {"list", "hash"}) {
    (void)server_.call({"DEL", key});
    (void)(type == std::string("list") ? server_.call({"RPUSH", key, "a"}) : server_.call({"HSET", key, "a", "b"}));
    EXPECT_EQ(server_.call({"TYPE", key}).text, type);
    expect_found(remote_config(1, 4), 0);
    EXPECT_EQ(status().corrupt_values + status().foreign_values, 1U);
    EXPECT_EQ(status().last_error.find("password"), std::string::npos);
    EXPECT_EQ(server_.call({"TYPE", key}).text, "string") << "what was computed is written in its place";
    expect_found(remote_config(1, 4), 64);
  }
  // Whoever only reads leaves it where it is.
  (void)server_.call({"DEL", key});
  (void)server_.call({"RPUSH", key, "a"});
  CacheConfig config = remote_config(1, 4);
  config.remote.access = TierAccess::ReadOnly;
  open(std::move(config));
  EXPECT_EQ(serve(tokens_), 0U);
  EXPECT_EQ(server_.call({"TYPE", key}).text, "list");
}

TEST_F(CacheRedis, KeysMayBeginWithAsMuchAsTheyMay) {
  CacheConfig config = remote_config(1, 4);
  config.remote.key_prefix = std::string(128, 'q');
  expect_found(config, 0);
  expect_found(config, 64);
}

TEST_F(CacheRedis, ErrorsNameFieldsOfItsOwnConfiguration) {
  testing::RedisServer closed({.more = {"--requirepass", "a secret"}});
  testing::RedisServer lonely({.is_cluster = true});  // which has no slots
  const auto why = [&](RemoteConfig remote) {
    CacheConfig config = remote_config(1, 4);
    config.remote = std::move(remote);
    const Status opened = try_open(std::move(config));
    const std::string text = opened.has_value() ? status().last_error : opened.error().message;
    EXPECT_EQ(text.find("RedisConfig"), std::string::npos) << text;
    return text;
  };
  for (const bool is_required : {true, false}) {
    EXPECT_NE(why({.urls = {closed.unix_url()}, .is_required = is_required}).find("remote.password_file"),
              std::string::npos);
    EXPECT_NE(why({.urls = {lonely.unix_url()}, .is_required = is_required}).find("remote.is_required = false"),
              std::string::npos);
  }
  EXPECT_NE(why({.urls = {"rediss://127.0.0.1:1"}, .ca_file = "/no/such/file"}).find("remote.ca_file"),
            std::string::npos);
  EXPECT_NE(why({.urls = {"redis://127.0.0.1:1"}, .user = "me"}).find("remote.password_file"), std::string::npos);
  close();
}

TEST_F(CacheRedis, AFlushBehindADropSaysWhetherItHasReachedTheServer) {
  expect_found(remote_config(2, 4), 0);
  ASSERT_TRUE(cache_->drop(space_));
  flush();
  expect_found(remote_config(2, 4), 0);
  expect_found(remote_config(2, 4), 64);
  // One that is away has not heard of it.
  server_.kill();
  ASSERT_TRUE(cache_->drop(space_));
  const auto try_flush = [this] {
    Result<bool> done = cache_->flush();
    for (; done && !*done; done = cache_->flush()) exchange();
    return done;
  };
  const Result<bool> flushed = try_flush();
  ASSERT_FALSE(flushed.has_value());
  EXPECT_NE(flushed.error().message.find("a drop has failed"), std::string::npos) << flushed.error().message;
  server_.start();
  // A node that has failed is left alone for a while.
  EXPECT_TRUE(testing::comes_true([&] { return try_flush().has_value(); }));
  space_ = cache_->key_space({.model = "test"}).value();
  EXPECT_EQ(serve(tokens_), 0U);
  flush();
  expect_found(remote_config(2, 4), 64);
}

TEST_F(CacheRedis, AServerThatIsNotThereIsAnErrorUnlessItNeedNotBe) {
  server_.kill();
  const Status refused = try_open(remote_config(1, 4));
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("socket"), std::string::npos) << refused.error().message;
  CacheConfig config = remote_config(1, 4);
  config.remote.is_required = false;
  config.remote.password = "very secret";
  open(std::move(config));
  EXPECT_EQ(serve(tokens_), 0U);
  EXPECT_TRUE(stats().remote_has_failed);
  EXPECT_FALSE(stats().remote_is_on);
  EXPECT_NE(cache_->remote_status()->last_error, "");
  EXPECT_EQ(cache_->remote_status()->last_error.find("secret"), std::string::npos);
}

// An engine with pools and page tables of its own, in a process of its own.
class CacheRedisProcess : public CacheRedis {
 protected:
  static constexpr std::uint64_t kWrong = std::uint64_t{1} << 32U;
  static constexpr std::uint32_t kPrompts = 6;
  struct Engine {
    std::uint32_t page_count = 32;
    std::uint32_t host_page_count = 64;
    std::uint32_t heads = 4;
    std::uint32_t other_prompts = 0;  ///< that it has computed before, and so its pages have other ids
  };
  /// The tokens that it found of all prompts.
  [[nodiscard]] std::uint64_t run(const Engine& engine) {
    testing::ChildProcess process([&](const testing::ChildProcess::Reporter& report) {
      CacheConfig config = remote_config(1, engine.heads);
      config.device.page_count = engine.page_count;
      config.host.page_count = engine.host_page_count;
      open(std::move(config));
      for (std::uint32_t i = 0; i < engine.other_prompts; ++i) {
        (void)serve(token_range(static_cast<TokenId>(1'000'000 + (1'000 * engine.page_count) + (200 * i)), 90));
      }
      std::uint64_t found = 0;
      for (std::uint32_t i = 0; i < kPrompts; ++i) found += serve(token_range(static_cast<TokenId>(1'000 * i), 100));
      flush();
      report(HasFailure() ? kWrong : found);
    });
    const std::uint64_t found = process.hear().value_or(kWrong);
    process.kill();
    EXPECT_TRUE(process.was_well());
    return found;
  }
};

TEST_F(CacheRedisProcess, OfOneLayoutFindEachOthersPagesWhateverTheirPools) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "its processes start threads, which the thread sanitizer does not like behind a fork";
#endif
  EXPECT_EQ(run({.page_count = 32, .host_page_count = 64}), 0U);
  EXPECT_EQ(run({.page_count = 47, .host_page_count = 29, .other_prompts = 3}), kPrompts * 64U);
  EXPECT_EQ(run({.page_count = 9, .host_page_count = 12, .other_prompts = 5}), kPrompts * 64U);
  // Other heads are another layout.
  EXPECT_EQ(run({.heads = 8}), 0U);
  EXPECT_EQ(run({.page_count = 21, .heads = 8, .other_prompts = 1}), kPrompts * 64U);
}

TEST_F(CacheRedis, AServerThatIsKilledComesBackEmptyAndIsFilledAgain) {
  open(remote_config(1, 4));
  EXPECT_EQ(serve(tokens_), 0U);
  flush();
  EXPECT_EQ(serve_from_below(tokens_), 64U);
  for (int life = 0; life < 3; ++life) {
    server_.kill();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(serve_from_below(tokens_), 0U);
    EXPECT_NE(status().last_error, "");
    server_.start();
    EXPECT_TRUE(is_shared_again());
  }
  EXPECT_EQ(status().corrupt_values + status().foreign_values, 0U);
}

TEST_F(CacheRedis, AServerThatIsKilledAtAnyMomentOfARequestGivesNoWrongByte) {
  open(remote_config(1, 4));
  for (int round = 0; round < 12; ++round) {
    EXPECT_TRUE(is_shared_again());
    forget_memory();
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(150 * round));
      server_.kill();
    });
    const std::uint32_t found = serve(tokens_);
    EXPECT_TRUE(found == 0 || found == 64) << found;
    killer.join();
    server_.start();
  }
  EXPECT_TRUE(is_shared_again());
}

TEST_F(CacheRedis, AServerThatStopsHoldsRequestsForTheirTimeoutsAndIsUsedAgain) {
  CacheConfig config = remote_config(1, 4);
  config.remote.find_timeout_ns = 20'000'000;
  config.remote.load_timeout_ns = 500'000'000;
  open(std::move(config));
  EXPECT_TRUE(is_shared_again());
  for (int round = 0; round < 3; ++round) {
    server_.stop();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(serve_from_below(tokens_), 0U);
    server_.go_on();
    EXPECT_TRUE(is_shared_again());
  }
  EXPECT_EQ(status().corrupt_values + status().foreign_values, 0U);
}

TEST_F(CacheRedis, AReplicaThatBecomesThePrimaryGivesWhatTheOldOneHad) {
  constexpr std::uint32_t kPrompts = 12;
  const auto prompt = [](std::uint32_t i) { return token_range(static_cast<TokenId>(1'000 * i), 100); };
  testing::RedisClusterServers cluster(3, true);
  CacheConfig config = remote_config(1, 4);
  config.remote.urls = cluster.urls();
  open(std::move(config));
  for (std::uint32_t i = 0; i < kPrompts; ++i) EXPECT_EQ(serve(prompt(i)), 0U);
  flush();
  EXPECT_EQ(status().put_values, kPrompts);
  EXPECT_GT(cluster.primary(0).call({"DBSIZE"}).number, 0) << "or its end would cost nothing";
  EXPECT_TRUE(testing::comes_true([&] {
    std::int64_t copies = 0;
    for (std::uint32_t i = 0; i < 3; ++i) copies += cluster.replica(i).call({"DBSIZE"}).number;
    return copies == kPrompts;
  }));
  cluster.primary(0).kill();
  EXPECT_TRUE(testing::comes_true([&] {
    forget_memory();
    std::uint32_t found = 0;
    for (std::uint32_t i = 0; i < kPrompts; ++i) found += serve(prompt(i));
    return found == kPrompts * 64 || HasFatalFailure();
  })) << status().last_error;
  EXPECT_EQ(status().put_values, kPrompts) << "what was found then was not computed again";
  EXPECT_EQ(status().node_count, 3U);
  close();  // before the cluster goes
}

// Servers that take nobody when the cache is opened.

TEST_F(CacheRedis, AServerWithoutRoomForClientsIsDoneWithoutUntilItHasSome) {
  testing::RedisServer full({.more = {"--maxclients", "1"}});
  const RedisEndpoint endpoint{.host = full.socket_path(), .is_unix = true};
  const RedisLogin login{
      .seeds = {endpoint}, .connect_timeout_ns = 20'000'000'000, .command_timeout_ns = 20'000'000'000};
  std::unique_ptr<RedisSession> other;
  EXPECT_TRUE(testing::comes_true([&] {  // the server hears late of clients that have gone
    auto session = RedisSession::open(endpoint, login);
    if (!session.has_value()) return false;
    const auto answer = (*session)->call({"PING"});
    other = *std::move(session);
    return answer.has_value() && answer->kind != RespKind::Error;
  }));
  CacheConfig config = remote_config(1, 4);
  config.remote.urls = {full.unix_url()};
  config.remote.is_required = false;
  open(std::move(config));
  EXPECT_FALSE(status().is_usable);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(serve_from_below(tokens_), 0U);
  EXPECT_NE(status().last_error, "");
  EXPECT_EQ(other->call({"CONFIG", "SET", "maxclients", "100"})->text, "OK");
  EXPECT_TRUE(is_shared_again()) << status().last_error;
  EXPECT_TRUE(status().is_usable);
  close();
}

TEST_F(CacheRedis, AWrongPasswordIsDoneWithoutUntilTheServerHasIt) {
  const std::string secret = "hunter2-is-no-secret";
  const auto set_password = [&](const std::string& password) {
    const std::string added = ">" + password;
    EXPECT_EQ(server_.call({"ACL", "SETUSER", "engine", "on", added, "~quire:*", "+@all"}).text, "OK");
  };
  set_password("another");
  const auto config = [&](bool is_required) {
    CacheConfig made = remote_config(1, 4);
    made.remote.user = "engine";
    made.remote.password = secret;
    made.remote.is_required = is_required;
    return made;
  };
  const Status refused = try_open(config(true));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message.find(secret), std::string::npos) << refused.error().message;
  open(config(false));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(serve_from_below(tokens_), 0U);
  EXPECT_FALSE(status().is_usable);
  EXPECT_NE(status().last_error.find("password"), std::string::npos) << status().last_error;
  EXPECT_EQ(status().last_error.find(secret), std::string::npos) << status().last_error;
  set_password(secret);
  EXPECT_TRUE(is_shared_again()) << status().last_error;
  EXPECT_TRUE(status().is_usable);
  EXPECT_TRUE(stats().remote_is_on);
}

// A user of the server that may only read is enough for an engine that only reads.
TEST_F(CacheRedis, OneThatOnlyReadsNeedsNoMoreThanThat) {
  const auto set_user = [&](const std::string& user, const std::string& may) {
    const std::string keys = "~" + remote_config(1, 4).remote.key_prefix + ":*";
    EXPECT_EQ(server_.call({"ACL", "SETUSER", user, "on", ">of a reader", keys, "-@all", may, "+ping"}).text, "OK");
  };
  set_user("reader", "+@read");
  set_user("writer", "+@write");
  expect_found(remote_config(1, 4), 0);
  const auto config = [&](const std::string& user, TierAccess access) {
    CacheConfig made = remote_config(1, 4);
    made.remote.cluster = RedisCluster::No;
    made.remote.user = user;
    made.remote.password = "of a reader";
    made.remote.access = access;
    return made;
  };
  expect_only_read([&] {
    open(config("reader", TierAccess::ReadOnly));
    EXPECT_EQ(serve(tokens_), 64U);
    EXPECT_EQ(serve(token_range(5'000, 100)), 0U);
    ASSERT_TRUE(cache_->drop(space_));
    close();
  });
  const Status refused = try_open(config("reader", TierAccess::ReadAndWrite));
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("does not allow SET"), std::string::npos) << refused.error().message;
  EXPECT_FALSE(try_open(config("writer", TierAccess::ReadOnly)).has_value());
  expect_found(remote_config(1, 4), 64);
}

TEST_F(CacheRedis, AWrongCertificateIsDoneWithoutUntilTheServerHasTheRightOne) {
  testing::TempDirectory directory;
  const testing::TestCertificates good = testing::make_certificates(directory.path(), "good", "127.0.0.1");
  const testing::TestCertificates other = testing::make_certificates(directory.path(), "other", "127.0.0.1");
  const std::string port = std::to_string(testing::free_port());
  const auto with = [&](const testing::TestCertificates& own) {
    return testing::RedisServer::Options{.more = {"--tls-port", port, "--tls-cert-file", own.certificate_file,
                                                  "--tls-key-file", own.key_file, "--tls-ca-cert-file", own.ca_file,
                                                  "--tls-auth-clients", "no"}};
  };
  auto server = std::make_unique<testing::RedisServer>(with(other));
  CacheConfig config = remote_config(1, 4);
  config.remote.urls = {"rediss://127.0.0.1:" + port};
  config.remote.ca_file = good.ca_file;
  config.remote.is_required = false;
  open(std::move(config));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(serve_from_below(tokens_), 0U);
  EXPECT_FALSE(status().is_usable);
  EXPECT_NE(status().last_error.find("certificate"), std::string::npos) << status().last_error;
  server.reset();
  server = std::make_unique<testing::RedisServer>(with(good));
  EXPECT_TRUE(is_shared_again()) << status().last_error;
  close();
}

// Host pages of a cache whose mover moves nothing: all of them hold zeros.
class ZeroPages final : public HostPages {
 public:
  explicit ZeroPages(std::uint64_t page_bytes) : bytes_(page_bytes) {}
  [[nodiscard]] TransferFault begin_read(const PageTransfer& /*page*/, Record& record) override {
    record = {.bytes = bytes_, .checksum = page_checksum(bytes_)};
    return TransferFault::None;
  }
  void end_read(const PageTransfer& /*page*/) override {}
  [[nodiscard]] TransferFault begin_write(const PageTransfer& /*page*/, std::span<std::byte>& bytes) override {
    bytes = bytes_;
    return TransferFault::None;
  }
  void end_write(const PageTransfer& /*page*/, std::optional<std::uint64_t> /*checksum*/) override {}

 private:
  std::vector<std::byte> bytes_;
};

// Two ranks with heads of their own and a group besides the history: the shards of the remote tier say where that
// group has pages, in memory that all shards together have.
class CacheRedisShards : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kPageBytes = 16 * 8;

  void open() {
    Component rows{.name = "rows", .element = ElementType::Bytes, .heads = 2, .dim = 8};
    std::vector<CacheGroup> groups = {{.name = "full", .layers = {0}, .components = {rows}, .keys_rotated = false},
                                      {.name = "window",
                                       .kind = GroupKind::Window,
                                       .layers = {1},
                                       .components = {rows},
                                       .keys_rotated = false,
                                       .window_tokens = 32}};
    CacheConfig config{.layout = ModelLayout::create("shards", std::move(groups)).value(),
                       .page = {.page_tokens = 16, .rank_count = 2}};
    config.device = {.page_count = 32, .group_page_counts = {32, 32}, .memory = DeviceMemory::None};
    config.host = {.page_count = 64,
                   .group_page_counts = {64, 64},
                   .write_policy = WritePolicy::WriteThrough,
                   .external_mover = true,
                   .rank_count = 2,
                   .transfer_pages_max = 4};
    config.remote.urls = {server_.unix_url()};
    config.remote.find_timeout_ns = config.remote.load_timeout_ns = 60'000'000'000;
    config.sequence_count_max = 4;
    config.context_tokens_max = 256;
    const std::vector<HostPages*> hosts = {&pages_, &pages_, &pages_, &pages_};
    Result<std::unique_ptr<Cache>> opened = CacheForTests::open(std::move(config), disk_, hosts);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    cache_ = std::move(*opened);
    space_ = cache_->key_space({.model = "test"}).value();
  }
  void run_shards() {
    for (std::uint32_t shard = 0; shard < 2; ++shard) (void)CacheForTests::remote(*cache_, shard).run();
  }
  void exchange() {
    std::array<TransferPlan, 4> plans;
    for (const TransferPlan& plan : cache_->take_transfers(plans).value()) {
      for (std::uint16_t rank = 0; rank < 2; ++rank) {
        const Completion done{.id = plan.id, .kind = plan.kind, .rank = rank};
        ASSERT_TRUE(cache_->apply({&done, 1}, 0));
      }
    }
    run_shards();
    std::array<Completion, 8> room;
    for (const Lower& lower : CacheForTests::lowers(*cache_)) ASSERT_TRUE(cache_->apply(lower.tier->poll(room), 0));
  }
  Sequence begin() { return cache_->begin(space_, {.tokens = tokens_}).value(); }

  testing::RedisServer server_;
  testing::SimDisk disk_{1};
  ZeroPages pages_{kPageBytes};
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::vector<TokenId> tokens_ = token_range(0, 100);
};

TEST_F(CacheRedisShards, AnAnswerThatComesWhileTheCacheClosesTouchesNothingThatIsGone) {
  open();
  ASSERT_FALSE(HasFatalFailure());
  {
    const Sequence sequence = begin();
    ASSERT_TRUE(cache_->admit(sequence));
    ASSERT_TRUE(testing::comes_true([&] {
      exchange();
      return !cache_->view(sequence)->is_loading;
    }));
    const StepEntry entry{&sequence};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    const StepResult result;
    ASSERT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
  }
  ASSERT_TRUE(testing::comes_true([&] {
    exchange();
    return cache_->flush().value_or(false);
  }));
  EXPECT_GT(server_.call({"DBSIZE"}).number, 2) << "of both shards, and of both groups";
  // After so many rounds the shards wait for one answer or another, which has come when they are destroyed.
  for (int rounds = 0; rounds < 8; ++rounds) {
    cache_.reset();
    open();
    ASSERT_FALSE(HasFatalFailure());
    const Sequence sequence = begin();
    (void)cache_->admit(sequence);
    for (int i = 0; i < rounds; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      run_shards();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    cache_.reset();
  }
}

}  // namespace
}  // namespace quire
