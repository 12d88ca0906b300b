// SPDX-License-Identifier: Apache-2.0
//
// The remote tier as a cache has it: what one cache computes, others find.
#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "remote_fixture.h"

namespace quire {
namespace {

class CacheRemote : public RemoteTest {};
class CacheRemoteGroups : public RemoteGroupsTest, public ::testing::WithParamInterface<GroupMix> {};
class CacheRemoteGroupsDisk : public RemoteGroupsTest {};

TEST_F(CacheRemote, WhatOneCacheComputesAnotherFinds) {
  open_remote(remote_config());
  const std::vector<TokenId> tokens = token_range(0, (9 * kPageTokens) + 3);
  EXPECT_EQ(serve_remote(tokens), 0U);
  EXPECT_EQ(server_.keys().size(), 2U);  // extents of four pages
  EXPECT_EQ(stats().remote_stored_page_total, 8U);
  EXPECT_TRUE(stats().remote_is_on);
  EXPECT_FALSE(stats().disk_is_on);
  // With other pools, so that the pages get other ids.
  open_remote(remote_config(24, 40));
  EXPECT_EQ(serve_remote(token_range(5'000, 3 * kPageTokens)), 0U);
  EXPECT_EQ(serve_remote(tokens), 8 * kPageTokens);
  EXPECT_EQ(view_.remote_tokens, 8 * kPageTokens);
  EXPECT_EQ(view_.disk_tokens, 0U);
  EXPECT_EQ(stats().remote_hit_tokens, 8U * kPageTokens);
  EXPECT_EQ(stats().remote_loaded_page_total, 8U);
  EXPECT_EQ(stats().remote_found_page_total, 8U);
  EXPECT_EQ(stats().remote_find_count, 2U);
  EXPECT_EQ(stats().remote_load_outcomes[0], 2U);
  EXPECT_EQ(stats().disk_find_count, 0U);
  const RemoteTierStatus status = cache_->remote_status().value();
  EXPECT_EQ(status.extent_pages, 4U);
  EXPECT_EQ(status.got_values, 2U);
  EXPECT_GT(status.question_ns, 0.0);
}

// Nobody asks the server for what memory has. If that counted as unused there, the server would give up the beginning
// of a path that grows, and nobody could use what lies behind it.
TEST_F(CacheRemote, TheBeginningOfAPathThatMemoryHasCountsAsUsed) {
  for (const Tier where : {Tier::Device, Tier::Host}) {
    server_.restart_empty();
    open_remote(remote_config());
    (void)serve_remote(token_range(0, (9 * kPageTokens) + 1));
    if (where == Tier::Host) {
      ASSERT_TRUE(cache_->reclaim(32));
    }
    (void)serve_remote(token_range(5'000, 8 * kPageTokens));
    const std::vector<TokenId> tokens = token_range(0, (16 * kPageTokens) + 1);
    EXPECT_EQ(serve_remote(tokens), 9 * kPageTokens);
    EXPECT_EQ(server_.keys().size(), 6U);
    server_.set_value_count_max(4);
    open_remote(remote_config());
    EXPECT_EQ(serve_remote(tokens), 16 * kPageTokens);
    server_.set_value_count_max(SIZE_MAX);
  }
}

TEST_F(CacheRemote, AnotherLayoutOrPrefixIsNeverRead) {
  open_remote(remote_config());
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  (void)serve_remote(tokens);
  const auto expect_nothing = [&](const std::function<void(CacheConfig&)>& change) {
    CacheConfig config = remote_config();
    change(config);
    open_remote(std::move(config));
    EXPECT_EQ(serve_remote(tokens), 0U);
    EXPECT_EQ(stats().remote_find_count, 1U);
  };
  expect_nothing([](CacheConfig& config) { config.remote.key_prefix = "others"; });
  expect_nothing([](CacheConfig& config) { config.remote.extent_bytes = 1; });  // single pages
  open_remote(remote_config());
  EXPECT_EQ(serve_remote(tokens), 8 * kPageTokens);
}

// Two engines of one layout and different weights would else read each other's pages.
TEST_F(CacheRemote, AKeySpaceThatNamesNoModelIsRefused) {
  open_remote(remote_config());
  for (const KeySpace& unnamed : {KeySpace{}, KeySpace{.revision = "2"}, KeySpace{.salt = "tenant"}}) {
    const Result<KeySpaceId> refused = cache_->key_space(unnamed);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
    EXPECT_NE(refused.error().message.find("name the weights in KeySpace::model"), std::string::npos);
  }
  EXPECT_TRUE(cache_->key_space({.model = "weights"}));
  open_disk(disk_config());
  EXPECT_TRUE(cache_->key_space({})) << "nobody else has these files";
}

TEST_F(CacheRemote, WhatIsDroppedIsGoneOnTheServerToo) {
  open_remote(remote_config());
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  (void)serve_remote(tokens);
  EXPECT_EQ(server_.keys().size(), 2U);
  ASSERT_TRUE(cache_->drop(space_));
  settle_remote();
  EXPECT_EQ(server_.keys().size(), 0U);
  space_ = cache_->key_space({.model = "test"}).value();
  (void)serve_remote(tokens);
  EXPECT_EQ(server_.keys().size(), 2U);
  ASSERT_TRUE(cache_->reset());
  settle_remote();
  EXPECT_EQ(server_.keys().size(), 0U);
}

TEST_F(CacheRemote, DropsKeepNoTransfersWhileTheServerHangs) {
  open_remote(remote_config());
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  (void)serve_remote(tokens);
  server_.set_node(SimRemoteServer::Node::Stopped);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(cache_->drop(space_));
    settle_remote();
    EXPECT_EQ(stats().transfers_in_flight, 0U);
    space_ = cache_->key_space({.model = "test"}).value();
    EXPECT_EQ(serve_remote(tokens), 0U);  // and the server is not asked
    ASSERT_TRUE(cache_->reset());
    settle_remote();
    EXPECT_EQ(stats().transfers_in_flight, 0U);
  }
  server_.set_node(SimRemoteServer::Node::Up);
  settle_remote();
  EXPECT_EQ(server_.keys().size(), 0U);
  (void)serve_remote(tokens);
  EXPECT_EQ(server_.keys().size(), 2U);
}

TEST_F(CacheRemote, AFlushBehindADropSaysWhetherItHasReachedTheServer) {
  open_remote(remote_config());
  const auto flush = [&] {
    Result<bool> flushed = cache_->flush();
    for (int i = 0; i < 9 && flushed && !*flushed; ++i, flushed = cache_->flush()) settle_remote();
    EXPECT_TRUE(!flushed || *flushed);
    return flushed;
  };
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  (void)serve_remote(tokens);
  const KeySpaceId dropped = std::exchange(space_, cache_->key_space({.model = "other"}).value());
  (void)serve_remote(tokens);
  ASSERT_TRUE(flush());
  const std::vector<std::string> keys = server_.keys();
  EXPECT_EQ(keys.size(), 4U);
  const std::uint64_t asked = server_.counts().found;
  server_.set_node(SimRemoteServer::Node::Failing);
  ASSERT_TRUE(cache_->drop(dropped));
  settle_remote();
  for (int i = 0; i < 3; ++i) {
    const Result<bool> failed = flush();
    ASSERT_FALSE(failed.has_value());
    EXPECT_NE(failed.error().message.find("a drop has failed"), std::string::npos) << failed.error().message;
  }
  server_.set_node(SimRemoteServer::Node::Up);
  ASSERT_TRUE(flush());
  EXPECT_EQ(server_.keys().size(), 2U);
  EXPECT_EQ(server_.counts().found, asked) << "what was not dropped is not written again";
  // The drop is over, also for others.
  open_remote(remote_config(20, 40));
  EXPECT_EQ(serve_remote(tokens), 0U);
  space_ = cache_->key_space({.model = "other"}).value();
  EXPECT_EQ(serve_remote(tokens), 8 * kPageTokens);
}

// The server would drop it again, so it is not written, and does not count as if it was.
TEST_F(CacheRemote, WhatIsComputedDuringADropIsWrittenWhenItIsUsedAgain) {
  open_remote(remote_config());
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  (void)serve_remote(tokens);
  EXPECT_EQ(server_.keys().size(), 2U);
  server_.set_node(SimRemoteServer::Node::Stopped);
  ASSERT_TRUE(cache_->drop(space_));
  space_ = cache_->key_space({.model = "test"}).value();
  EXPECT_EQ(serve_remote(tokens), 0U);
  set_time(now_ + 30'000'000'000);
  settle_remote();  // the server has not answered for as long as a drop may take
  server_.set_node(SimRemoteServer::Node::Up);
  set_time(now_ + 60'000'000'000);
  settle_remote();
  EXPECT_EQ(server_.keys().size(), 0U);
  EXPECT_EQ(stats().remote_stored_page_total, 8U);
  EXPECT_EQ(serve_remote(tokens), 8 * kPageTokens);  // from memory
  EXPECT_EQ(server_.keys().size(), 2U);
  EXPECT_EQ(stats().remote_stored_page_total, 16U);
}

// flush() waits for the drop, and has written nothing of the key space by then.
TEST_F(CacheRemote, AFlushDuringADropWritesWhatIsComputedMeanwhile) {
  for (const WritePolicy policy : {WritePolicy::WriteThrough, WritePolicy::WriteBack}) {
    CacheConfig config = remote_config();
    config.remote.write_policy = policy;
    open_remote(std::move(config));
    const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
    (void)serve_remote(tokens);
    server_.set_node(SimRemoteServer::Node::Stopped);
    ASSERT_TRUE(cache_->drop(space_));
    space_ = cache_->key_space({.model = "test"}).value();
    EXPECT_EQ(serve_remote(tokens), 0U);
    Result<bool> flushed = cache_->flush();
    for (int i = 0; i < 99 && flushed && !*flushed; ++i, flushed = cache_->flush()) {
      settle_remote();
      if (i == 3) server_.set_node(SimRemoteServer::Node::Up);
    }
    ASSERT_TRUE(flushed.has_value()) << flushed.error().message;
    EXPECT_TRUE(*flushed);
    EXPECT_EQ(server_.keys().size(), 2U);
    open_remote(remote_config());
    EXPECT_EQ(serve_remote(tokens), 8 * kPageTokens);
    server_.restart_empty();
  }
}

TEST_F(CacheRemote, ACacheThatOnlyReadsWritesNothingAndDropsForItselfOnly) {
  open_remote(remote_config());
  const std::vector<TokenId> tokens = token_range(0, (4 * kPageTokens) + 1);
  (void)serve_remote(tokens);
  const auto read_only = [&] {
    CacheConfig config = remote_config();
    config.remote.access = TierAccess::ReadOnly;
    return config;
  };
  open_remote(read_only());
  EXPECT_EQ(serve_remote(tokens), 4 * kPageTokens);
  (void)serve_remote(token_range(1'000, 4 * kPageTokens));
  EXPECT_EQ(server_.keys().size(), 1U);
  ASSERT_TRUE(cache_->drop(space_));
  settle_remote();
  space_ = cache_->key_space({.model = "test"}).value();
  EXPECT_EQ(serve_remote(tokens), 0U);
  EXPECT_EQ(server_.keys().size(), 1U);
  open_remote(read_only());
  EXPECT_EQ(serve_remote(tokens), 4 * kPageTokens);
}

TEST_F(CacheRemote, AServerThatHangsHoldsARequestNoLongerThanItMay) {
  CacheConfig config = remote_config();
  config.remote.find_timeout_ns = 1'000;
  open_remote(std::move(config));
  const std::vector<TokenId> tokens = token_range(0, (4 * kPageTokens) + 1);
  (void)serve_remote(tokens);
  forget_memory();
  server_.set_node(SimRemoteServer::Node::Stopped);
  set_time(5'000);
  Live live = admitted(tokens);
  (void)run_remote();
  set_time(5'936);
  EXPECT_TRUE(view(live).is_loading);
  (void)run_remote();
  set_time(5'938);  // the mover gives up a sixteenth before, so that its answer is heard in time
  (void)run_remote();
  EXPECT_FALSE(view(live).is_loading);
  EXPECT_EQ(view(live).computed_tokens, 0U);
  finish(live);
  server_.set_node(SimRemoteServer::Node::Up);
  settle_remote();
  forget_memory();
  set_time(5'000'000'000);
  EXPECT_EQ(serve_remote(tokens), 4 * kPageTokens) << "when it is back";
}

// A tier is worth what it has brought, and not what others have computed while it was asked.
TEST_F(CacheRemote, WhatOthersComputeWhileTheServerIsAskedIsNotItsWorth) {
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  struct Case {
    std::uint32_t pages_there = 0;  // on the server
    std::uint32_t pages_computed = 0;
    std::uint32_t pages_brought = 0;
  };
  for (const Case& each : {Case{.pages_there = 0, .pages_computed = 8, .pages_brought = 0},
                           Case{.pages_there = 8, .pages_computed = 8, .pages_brought = 0},
                           Case{.pages_there = 8, .pages_computed = 3, .pages_brought = 5},
                           Case{.pages_there = 8, .pages_computed = 0, .pages_brought = 8},
                           Case{.pages_there = 4, .pages_computed = 8, .pages_brought = 0}}) {
    SCOPED_TRACE(std::to_string(each.pages_there) + " there, " + std::to_string(each.pages_computed) + " computed");
    const auto first = [&](std::uint32_t pages) {
      return std::vector<TokenId>(tokens.begin(), tokens.begin() + (std::ptrdiff_t{pages} * kPageTokens) + 1);
    };
    server_.restart_empty();
    open_remote(remote_config());
    if (each.pages_there > 0) (void)serve_remote(first(each.pages_there));
    open_remote(remote_config());
    Live waiting = admitted(tokens);
    while (remote().run()) {
    }
    ASSERT_EQ(server_.batch_count(), 1U);  // its question
    if (each.pages_computed > 0) {
      Live other = admitted(first(each.pages_computed), {.tier_max = Tier::Host});
      finish(other);
    }
    ASSERT_TRUE(server_.run_one());
    settle_remote();
    ASSERT_FALSE(view(waiting).is_loading);
    const std::uint32_t pages_found = std::max(each.pages_computed, each.pages_there);
    EXPECT_EQ(view(waiting).computed_tokens, pages_found * kPageTokens);
    EXPECT_EQ(view(waiting).remote_tokens, each.pages_brought * kPageTokens);
    EXPECT_EQ(view(waiting).host_tokens, (pages_found - each.pages_brought) * kPageTokens);
    EXPECT_EQ(stats().remote_hit_tokens, each.pages_brought * kPageTokens);
    finish(waiting);
    settle_remote();
  }
}

TEST_F(CacheRemote, AServerThatFailsCostsHitsAndNothingElse) {
  open_remote(remote_config());
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  server_.set_node(SimRemoteServer::Node::Failing);
  EXPECT_EQ(serve_remote(tokens), 0U);
  EXPECT_EQ(stats().remote_store_outcomes[static_cast<std::size_t>(TransferOutcome::Failed)], 2U);
  server_.set_node(SimRemoteServer::Node::Up);
  // flush() tries again what could not be written.
  Result<bool> flushed = cache_->flush();
  for (int i = 0; i < 9 && flushed && !*flushed; ++i, flushed = cache_->flush()) settle_remote();
  ASSERT_TRUE(flushed.has_value()) << flushed.error().message;
  EXPECT_EQ(server_.keys().size(), 2U);
  forget_memory();
  EXPECT_EQ(serve_remote(tokens), 8 * kPageTokens);
}

TEST_F(CacheRemote, ValuesThatAreNotRightAreNotServed) {
  open_remote(remote_config());
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  (void)serve_remote(tokens);
  const std::vector<std::string> keys = server_.keys();
  for (const std::string& key : keys) {
    std::vector<std::byte> value = server_.value(key);
    value.back() ^= std::byte{1};
    server_.put_value(key, std::move(value));
  }
  forget_memory();
  EXPECT_LT(serve_remote(tokens), 4 * kPageTokens);  // the engine compares all bytes
  EXPECT_GT(cache_->remote_status()->corrupt_values, 0U);
}

TEST_F(CacheRemote, DiskAndServerServeTheSamePages) {
  CacheConfig config = remote_config();
  config.disk = disk_config().disk;
  open_remote(std::move(config));
  const std::vector<TokenId> tokens = token_range(0, (8 * kPageTokens) + 1);
  EXPECT_EQ(serve_remote(tokens), 0U);
  EXPECT_EQ(stats().disk_stored_page_total, 8U);
  EXPECT_EQ(stats().remote_stored_page_total, 8U);
  forget_memory();
  EXPECT_EQ(serve_remote(tokens), 8 * kPageTokens);
  EXPECT_EQ(view_.disk_tokens, 8 * kPageTokens);
  EXPECT_EQ(view_.remote_tokens, 0U);
  disk_->set_broken(kPath);
  forget_memory();
  EXPECT_EQ(serve_remote(tokens), 8 * kPageTokens);
  EXPECT_EQ(view_.remote_tokens, 8 * kPageTokens);
  EXPECT_EQ(view_.disk_tokens, 0U);
  EXPECT_EQ(stats().remote_hit_tokens, 8U * kPageTokens);
  EXPECT_TRUE(stats().remote_is_on);
}

TEST_F(CacheRemote, ARequestMayKeepOutOfTheRemoteTier) {
  open_remote(remote_config());
  const std::vector<TokenId> tokens = token_range(0, (4 * kPageTokens) + 1);
  (void)serve_remote(tokens);
  forget_memory();
  const std::uint64_t before = stats().remote_find_count;
  EXPECT_EQ(serve_remote(tokens, {.tier_max = Tier::Disk}), 0U);
  EXPECT_EQ(stats().remote_find_count, before);
}

TEST_F(CacheRemote, DirectCallsAreTheDisksOwn) {
  open_remote(remote_config());
  EXPECT_EQ(cache_->lookup_on_disk(space_, {.tokens = token_range(0, 64)}, {}).error().code, ErrorCode::Unsupported);
  EXPECT_EQ(cache_->disk_status().error().code, ErrorCode::Unsupported);
  open_disk(disk_config());
  EXPECT_EQ(cache_->remote_status().error().code, ErrorCode::Unsupported);
}

// Several groups, with threads.

TEST_P(CacheRemoteGroups, AnotherCacheFindsWhatAllGroupsNeed) {
  open(remote_config(GetParam().groups));
  const std::vector<TokenId> prompt = token_range(0, 200);
  EXPECT_EQ(serve(prompt), 0U);
  const std::uint32_t before = serve(with_tail(prompt, 1, 30));
  EXPECT_EQ(before, 192U);
  flush();
  close();
  open(remote_config(GetParam().groups, 80));
  EXPECT_EQ(serve(with_tail(prompt, 2, 30)), before);
  EXPECT_EQ(view_.remote_tokens, before);
  EXPECT_GE(serve(with_tail(prompt, 3, 30)), before) << "from memory";
  EXPECT_EQ(view_.remote_tokens, 0U);
}

TEST_P(CacheRemoteGroups, WhatOthersComputeWhileTheServerIsAskedIsNotItsWorth) {
  const std::vector<TokenId> prompt = token_range(0, 200);
  for (const bool has_server_it : {false, true}) {
    if (has_server_it) {
      open(remote_config(GetParam().groups));
      serve(prompt);
      flush();
      close();
    }
    CacheConfig config = remote_config(GetParam().groups);
    config.remote.find_timeout_ns = config.remote.load_timeout_ns = 60'000'000'000;  // machines may be slow
    open(std::move(config));
    store_.hold();
    GroupsRequest waiting = start(prompt);
    GroupsRequest other = start(prompt, {.tier_max = Tier::Host});
    run_all(other);
    end(other);
    EXPECT_TRUE(view(waiting).is_loading);
    store_.let_go();
    drain(*cache_, now_);
    EXPECT_EQ(view(waiting).computed_tokens, 192U);
    EXPECT_EQ(view(waiting).remote_tokens, 0U);
    EXPECT_EQ(view(waiting).host_tokens, 192U);
    run_all(waiting);
    end(waiting);
    drain(*cache_, now_);
    close();
    server_.restart_empty();
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, CacheRemoteGroups, ::testing::ValuesIn(mixes()),
                         [](const auto& param) { return param.param.name; });

TEST_F(CacheRemoteGroupsDisk, AGroupThatIsNotKeptThereIsRebuilt) {
  const auto config = [&] {
    CacheConfig made = remote_config({full_group(), rebuilt(window_group(20), 24)});
    made.remote.group_retention = {{}, kNone};
    return made;
  };
  open(config());
  serve(token_range(0, 200));
  flush();
  EXPECT_EQ(server_.keys().size(), 3U);  // extents of the history, and no window
  close();
  open(config());
  EXPECT_EQ(serve(with_tail(token_range(0, 200), 1, 30)), 192U - 24U);
}

// Configurations that are refused, with what the message says.

TEST(RemoteConfigCheck, SaysWhatIsWrongAndWhatToDo) {
  SimRemoteServer server(1);
  SimRemoteStore store(server);
  struct Case {
    std::function<void(CacheConfig&)> change;
    const char* says;
  };
  const std::vector<Case> cases = {
      {[](CacheConfig& c) { c.remote.urls = {"unix:///tmp/none"}; }, "remote.urls and remote.store are both set"},
      {[](CacheConfig& c) { c.host.page_count = 0; }, "remote.store is set, but there is no host tier"},
      {[](CacheConfig& c) { c.page.page_tokens = 8; }, "a remote tier needs pages of 16 tokens or more"},
      {[](CacheConfig& c) { c.remote.user = "me"; }, "remote.user is set, but it is for servers that remote.urls"},
      {[](CacheConfig& c) { c.remote.password = "secret"; }, "remote.password is set, but it is for servers"},
      {[](CacheConfig& c) { c.remote.max_age_s = 1; }, "remote.max_age_s is set, but how long remote.store keeps"},
      {[](CacheConfig& c) {
         c.remote.store = nullptr;
         c.remote.urls = {"unix:///tmp/none"};
         c.remote.password = "secret";
         c.remote.password_file = "/tmp/none";
       },
       "remote.password and remote.password_file are both set"},
      {[](CacheConfig& c) {
         c.remote.store = nullptr;
         c.remote.urls = {"rediss://localhost"};
         c.remote.key_file = "/tmp/none";
       },
       "remote.certificate_file and remote.key_file belong together"},
      {[](CacheConfig& c) { c.remote.key_prefix = "a b"; }, "remote.key_prefix has a space"},
      {[](CacheConfig& c) { c.remote.key_prefix = "a\n"; }, "at position 1"},
      {[](CacheConfig& c) { c.remote.key_prefix = "{quire}"; },
       "remote.key_prefix is '{quire}': a cluster places keys by what stands between braces"},
      {[](CacheConfig& c) { c.remote.key_prefix = "a}"; }, "leave { and } out"},
      {[](CacheConfig& c) { c.remote.key_prefix = ""; }, "remote.key_prefix has 0 characters: use 1 to 128"},
      {[](CacheConfig& c) { c.remote.key_prefix = std::string(129, 'a'); }, "remote.key_prefix has 129 characters"},
      {[](CacheConfig& c) { c.remote.extent_bytes = 0; }, "remote.extent_bytes is 0"},
      {[](CacheConfig& c) { c.remote.find_timeout_ns = 0; }, "remote.find_timeout_ns is 0"},
      {[](CacheConfig& c) { c.remote.load_timeout_ns = -1; }, "remote.load_timeout_ns is -1"},
      {[](CacheConfig& c) { c.remote.store_timeout_ns = 0; }, "remote.store_timeout_ns is 0"},
      {[](CacheConfig& c) { c.remote.write_hits_min = 0; }, "remote.write_hits_min is 0"},
      {[](CacheConfig& c) { c.remote.access = static_cast<TierAccess>(7); }, "remote.access is 7"},
      {[](CacheConfig& c) { c.remote.write_policy = static_cast<WritePolicy>(7); }, "remote.write_policy is 7"},
      {[](CacheConfig& c) { c.remote.rank_index = 3; }, "remote.rank_index is 3, but page.rank_count is 1"},
  };
  for (const Case& each : cases) {
    CacheConfig config{.layout = preset("llama-3-8b").value()};
    config.page.page_tokens = 16;
    config.device.page_count = 64;
    config.device.memory = DeviceMemory::None;
    config.host.page_count = 64;
    config.host.external_mover = true;
    config.remote.store = &store;
    ASSERT_TRUE(config.validate()) << config.validate().error().message;
    each.change(config);
    const Status status = config.validate();
    ASSERT_FALSE(status.has_value()) << each.says;
    EXPECT_NE(status.error().message.find(each.says), std::string::npos) << status.error().message;
    EXPECT_EQ(status.error().message.find("secret"), std::string::npos);
  }
}

}  // namespace
}  // namespace quire
