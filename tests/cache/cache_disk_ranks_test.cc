// SPDX-License-Identifier: Apache-2.0
//
// A disk tier below several ranks: what all of them have is found, what one of them lacks is computed, and no rank ever
// gets bytes that are not its own.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "quire/disk_store.h"
#include "rank_disk_fixture.h"
#include "testing/sanitized.h"
#include "wire/segment.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class CacheDiskRanks : public RankDiskTest {
 protected:
  [[nodiscard]] std::string shard(std::uint32_t index, std::uint32_t count) const {
    return path() + "/shard-" + std::to_string(index) + "-of-" + std::to_string(count);
  }
  /// The files of a closed store, whose pages are in the order in which they were written.
  [[nodiscard]] static std::vector<std::string> segments(const std::string& directory) {
    std::vector<std::string> files;
    for (const auto& file : fs::directory_iterator(directory)) {
      if (file.path().filename().string().starts_with(kSegmentFilePrefix)) files.push_back(file.path());
    }
    std::ranges::sort(files);
    return files;
  }
  /// Changes a byte of one record's payload in a closed store: the first record is that of the key space.
  static void spoil_record(const std::string& directory, std::uint32_t record) {
    std::fstream file(segments(directory).front(), std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(((1 + record) * kSegmentBlockBytes) + kRecordHeaderBytes + 3);
    file.seekg(at);
    const auto byte = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }
};

TEST_F(CacheDiskRanks, WhatAllRanksHaveIsFoundAfterARestart) {
  for (const std::uint32_t rank_count : {2U, 4U}) {
    open(rank_count, 4);
    const std::vector<TokenId> tokens = token_range(0, 100);
    EXPECT_EQ(serve(tokens), 0U);
    restart(rank_count, 4);
    EXPECT_EQ(serve(tokens), 96U);
    EXPECT_EQ(stats().disk_hit_tokens, 96U);
    EXPECT_EQ(cache_->disk_status()->page_count, 6U * rank_count);
    EXPECT_EQ(cache_->disk_status()->capacity_bytes, std::uint64_t{64} << 20U);
    for (std::uint32_t i = 0; i < rank_count; ++i) EXPECT_TRUE(fs::exists(shard(i, rank_count) + "/quire-manifest"));
    EXPECT_FALSE(fs::exists(path() + "/quire-manifest"));
    close();
    fs::remove_all(path());
  }
}

TEST_F(CacheDiskRanks, MoversAreGivenAsTheDocumentSays) {
  CacheConfig config = rank_config(1, 4);
  const PageGeometry page =
      PageGeometry::create(config.layout.groups().front(), {.page_tokens = kPageTokens, .rank_count = 2}).value();
  const PoolGeometry pool = PoolGeometry::create(page, {.page_count = 33}).value();
  std::array<std::vector<std::byte>, 2> memory;
  std::array<std::unique_ptr<Mover>, 2> movers;
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    memory[rank].resize(pool.pool_bytes());
    movers[rank] = Mover::open({.device_geometry = &pool,
                                .device_memory = memory[rank].data(),
                                .host_page_count = config.host.page_count,
                                .rank = rank})
                       .value();
  }
  // [ranks]
  config.page.rank_count = 2;
  config.host.external_mover = true;
  config.host.rank_count = 2;
  config.host.rank_movers = {movers[0].get(), movers[1].get()};  // mover i was opened with rank = i
  // [ranks]
  const std::unique_ptr<Cache> cache = open_cache(std::move(config));
  EXPECT_EQ(cache->direct_bytes(16)->shard_count, 2U);
}

TEST_F(CacheDiskRanks, OneRankWithAnExternalMoverHasADiskTier) {
  open(1, 4);
  EXPECT_EQ(serve(token_range(0, 100)), 0U);
  restart(1, 4);
  EXPECT_EQ(serve(token_range(0, 100)), 96U);
  EXPECT_TRUE(fs::exists(path() + "/quire-manifest"));
}

TEST_F(CacheDiskRanks, RanksThatHoldTheSameBytesHaveOneStoreForAnyNumberOfThem) {
  const std::vector<TokenId> tokens = token_range(0, 100);
  open(1, 0);
  EXPECT_EQ(serve(tokens), 0U);
  for (const std::uint32_t rank_count : {2U, 4U, 1U}) {
    restart(rank_count, 0);
    EXPECT_EQ(serve(tokens), 96U) << rank_count;
    EXPECT_EQ(cache_->disk_status()->page_count, 6U);
    EXPECT_EQ(cache_->disk_status()->other_layout_pages, 0U);
  }
  restart(4, 0);
  EXPECT_EQ(serve(token_range(500, 64)), 0U);
  restart(2, 0);
  EXPECT_EQ(serve(token_range(500, 64)), 64U);
  for (const auto& file : fs::directory_iterator(path())) EXPECT_FALSE(fs::is_directory(file)) << file.path();
}

// A cache as it is without ranks reads them, too: it has a mover of its own.
TEST_F(CacheDiskRanks, ACacheWithItsOwnMoverReadsWhatRanksThatHoldTheSameBytesWrote) {
  open(4, 0);
  serve(token_range(0, 100));
  flush();
  close();
  CacheConfig config = rank_config(1, 0);
  config.host.external_mover = false;
  config.device.memory = DeviceMemory::Host;
  const std::unique_ptr<Cache> alone = open_cache(std::move(config));
  const KeySpaceId space = alone->key_space({.model = "test"}).value();
  std::uint32_t found = 0;
  ASSERT_TRUE(alone->lookup_on_disk(space, {.tokens = token_range(0, 100)},
                                    [&](const DiskAnswer& answer) { found = answer.token_count; }));
  drain(*alone);
  EXPECT_EQ(found, 96U);
}

TEST_F(CacheDiskRanks, HeadsThatAreSplitOverOtherNumbersOfRanksAreToldApart) {
  const std::vector<TokenId> tokens = token_range(0, 100);
  for (const std::uint32_t rank_count : {1U, 2U, 4U}) {
    open(rank_count, 4);
    EXPECT_EQ(serve(tokens), 0U) << rank_count;
    flush();
  }
  for (const std::uint32_t rank_count : {2U, 1U, 4U}) {
    open(rank_count, 4);
    EXPECT_EQ(serve(tokens), 96U) << rank_count;
  }
}

TEST_F(CacheDiskRanks, MoreRanksThanHeadsReadWhatOneRankForEachHeadWrote) {
  const std::vector<TokenId> tokens = token_range(0, 100);
  open(2, 2);
  serve(tokens);
  for (const std::uint32_t rank_count : {4U, 8U, 2U}) {
    restart(rank_count, 2);
    EXPECT_EQ(serve(tokens), 96U) << rank_count;
    EXPECT_EQ(cache_->disk_status()->page_count, 12U);
  }
}

TEST_F(CacheDiskRanks, StoresThatAreSwappedAreNoticedAndNeverServed) {
  const std::vector<TokenId> tokens = token_range(0, 100);
  open(2, 4);
  serve(tokens);
  flush();
  close();
  fs::rename(shard(0, 2), path() + "/aside");
  fs::rename(shard(1, 2), shard(0, 2));
  fs::rename(path() + "/aside", shard(1, 2));
  open(2, 4);
  EXPECT_EQ(cache_->disk_status()->other_layout_pages, 12U);
  EXPECT_EQ(serve(tokens), 0U);
  restart(2, 4);
  EXPECT_EQ(serve(tokens), 96U);  // written anew, beside the others
}

// A cache for each rank, as in processes of their own.
class CacheOfOneRank : public CacheDiskRanks {
 protected:
  /// Of rank `rank` of two, with a directory of its own: the bytes of its ranks are told apart by the salt.
  [[nodiscard]] CacheConfig config_of(std::optional<std::uint32_t> rank, std::uint32_t heads,
                                      const std::string& directory) const {
    CacheConfig config = rank_config(1, heads);
    config.page.rank_count = 2;
    config.disk.directories = {path() + directory};
    config.disk.rank_index = rank;
    return config;
  }
  void serve_as(std::uint32_t rank, std::uint32_t heads, const std::string& directory, std::uint32_t found) {
    open(config_of(rank, heads, directory));
    salt_ = heads > 0 ? 1 + rank : 0;
    EXPECT_EQ(serve(token_range(0, 100)), found) << "rank " << rank << " in " << directory;
    flush();
  }
};

TEST_F(CacheOfOneRank, FindsItsOwnPagesAndNeverThoseOfAnotherRank) {
  serve_as(0, 4, "/a", 0);
  serve_as(1, 4, "/b", 0);
  serve_as(0, 4, "/a", 96);
  serve_as(1, 4, "/b", 96);
  // Somebody has exchanged the directories.
  serve_as(0, 4, "/b", 0);
  EXPECT_EQ(cache_->disk_status()->other_layout_pages, 6U);
  serve_as(1, 4, "/a", 0);
  serve_as(0, 4, "/a", 96);
  serve_as(1, 4, "/a", 96);
}

TEST_F(CacheOfOneRank, ReadsWhatOneCacheOfAllRanksWrote) {
  open(2, 4);
  salt_ = 2;
  serve(token_range(0, 100));
  flush();
  open(config_of(1, 4, "/shard-1-of-2"));
  std::uint32_t found = 0;
  ASSERT_TRUE(cache_->lookup_on_disk(space_, {.tokens = token_range(0, 100)},
                                     [&](const DiskAnswer& answer) { found = answer.token_count; }));
  exchange_all();
  EXPECT_EQ(found, 96U);
}

TEST_F(CacheOfOneRank, NeedNotBeNamedWhereEveryRankHoldsEverything) {
  open(config_of(std::nullopt, 0, "/a"));
  EXPECT_EQ(serve(token_range(0, 100)), 0U);
  flush();
  serve_as(1, 0, "/a", 96);
}

TEST_F(CacheOfOneRank, IsRefusedWithoutANameOrWithAWrongOne) {
  const Status unnamed = try_open(config_of(std::nullopt, 4, "/a"));
  ASSERT_FALSE(unnamed.has_value());
  EXPECT_EQ(unnamed.error().code, ErrorCode::InvalidArgument);
  EXPECT_EQ(unnamed.error().message,
            "disk.rank_index is not set: group 'full' has a share of its heads on each of 2 ranks; say which of them "
            "the cache drives, so that it never reads another one's pages");
  EXPECT_FALSE(fs::exists(path() + "/a")) << "nothing was made";
  const Status unknown = try_open(config_of(2, 4, "/a"));
  ASSERT_FALSE(unknown.has_value());
  EXPECT_EQ(unknown.error().message, "disk.rank_index is 2, but page.rank_count is 2: ranks count from 0");
  CacheConfig all = rank_config(2, 4);
  all.disk.rank_index = 0;
  const Status both = try_open(std::move(all));
  ASSERT_FALSE(both.has_value());
  EXPECT_EQ(both.error().message,
            "disk.rank_index is 0, but the cache drives all of host.rank_count = 2 ranks: leave it out");
}

TEST_F(CacheDiskRanks, SegmentsOfAnotherShardAreNotRead) {
  const std::vector<TokenId> tokens = token_range(0, 100);
  open(2, 4);
  serve(tokens);
  flush();
  close();
  fs::copy_file(segments(shard(0, 2)).front(), segments(shard(1, 2)).front(), fs::copy_options::overwrite_existing);
  open(2, 4);
  EXPECT_EQ(cache_->disk_status()->ignored_file_count, 1U);
  EXPECT_EQ(serve(tokens), 0U);
}

TEST_F(CacheDiskRanks, WhatOneShardHasLostIsComputedByAllRanksAndWrittenAgain) {
  const std::vector<TokenId> tokens = token_range(0, 100);
  open(2, 4);
  serve(tokens);
  flush();
  close();
  for (const std::string& segment : segments(shard(1, 2))) fs::remove(segment);
  open(2, 4);
  EXPECT_EQ(serve(tokens), 0U);
  EXPECT_EQ(cache_->disk_status()->page_count, 12U);
  restart(2, 4);
  EXPECT_EQ(serve(tokens), 96U);
}

TEST_F(CacheDiskRanks, APageThatIsSpoiltOnOneShardEndsTheHitOfAllRanks) {
  const std::vector<TokenId> tokens = token_range(0, 100);
  for (const std::uint32_t spoilt : {0U, 1U}) {
    open(2, 4);
    serve(tokens);
    flush();
    close();
    spoil_record(shard(spoilt, 2), 3);  // the third page
    open(2, 4);
    EXPECT_EQ(serve(tokens), 32U);
    EXPECT_EQ(cache_->disk_status()->corrupt_page_total, 1U);
    restart(2, 4);
    EXPECT_EQ(serve(tokens), 96U);
    close();
    fs::remove_all(path());
  }
}

TEST_F(CacheDiskRanks, ASpoiltPageIsNeverServedToRanksThatHoldTheSameBytes) {
  const std::vector<TokenId> tokens = token_range(0, 100);
  open(4, 0);
  serve(tokens);
  flush();
  close();
  spoil_record(path(), 3);
  open(4, 0);
  EXPECT_EQ(serve(tokens), 32U);
  restart(4, 0);
  EXPECT_EQ(serve(tokens), 96U);
}

TEST_F(CacheDiskRanks, DroppedKeySpacesAreGoneFromAllShards) {
  const std::vector<TokenId> tokens = token_range(0, 100);
  open(2, 4);
  serve(tokens);
  flush();
  ASSERT_TRUE(cache_->drop(space_));
  salt_ = 7;  // whoever finds what was dropped reads wrong bytes
  space_ = cache_->key_space({.model = "test"}).value();
  EXPECT_EQ(serve(tokens), 0U);
  restart(2, 4);
  EXPECT_EQ(serve(tokens), 96U);
  ASSERT_TRUE(cache_->reset());
  exchange_all();
  restart(2, 4);
  salt_ = 8;
  EXPECT_EQ(serve(tokens), 0U);
}

TEST_F(CacheDiskRanks, DirectBytesAreThoseOfAllShardsOneBehindTheOther) {
  const std::vector<TokenId> tokens = token_range(0, 64);
  open(2, 4);
  serve(tokens);
  flush();
  const DirectBytes wanted = cache_->direct_bytes(64).value();
  EXPECT_EQ(wanted.token_count, 64U);
  EXPECT_EQ(wanted.shard_count, 2U);
  const std::uint64_t page_bytes = ranks_[0]->page().page_bytes();
  EXPECT_EQ(wanted.byte_count, 2 * 4 * page_bytes);
  ASSERT_EQ(wanted.parts.size(), 1U);
  EXPECT_EQ(wanted.parts[0].page_bytes, page_bytes);
  std::vector<std::byte> bytes(wanted.byte_count);
  std::uint32_t answered = 0;
  const auto answer = [&](const DiskAnswer& given) { answered = given.token_count; };
  ASSERT_TRUE(cache_->get_from_disk(space_, {.tokens = tokens}, bytes, answer));
  exchange_all();
  EXPECT_EQ(answered, 64U);
  // Token 17, layer 1, heads 2 and 3, which the second rank has.
  for (const std::uint32_t head : {2U, 3U}) {
    const ComponentStrides& row = ranks_[1]->page().components()[0];
    std::uint64_t read = 0;
    std::memcpy(&read,
                bytes.data() + (wanted.byte_count / 2) + *wanted.parts[0].offset_of(1) +
                    ranks_[1]->page().layer_bytes() + row.token + ((head - 2) * row.head),
                sizeof(read));
    EXPECT_EQ(read, ByteEngine::value_at(0, tokens, {}, 17) + 1'000 + head);
  }
  // Elsewhere they are what requests find.
  close();
  fs::remove_all(path());
  open(2, 4);
  answered = 0;
  ASSERT_TRUE(cache_->put_on_disk(space_, {.tokens = tokens}, bytes, answer));
  exchange_all();
  EXPECT_EQ(answered, 64U);
  answered = 0;
  ASSERT_TRUE(cache_->lookup_on_disk(space_, {.tokens = tokens}, answer));
  exchange_all();
  EXPECT_EQ(answered, 64U);
  EXPECT_EQ(serve(tokens), 64U);
  const Status refused =
      cache_->put_on_disk(space_, {.tokens = tokens}, std::span(bytes).first(4 * page_bytes), nullptr);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("on all shards of ranks"), std::string::npos) << refused.error().message;
}

TEST_F(CacheDiskRanks, TheEnduranceBudgetIsThatOfAllShards) {
  CacheConfig config = rank_config(2, 4);
  config.disk.write_bytes_per_day = std::uint64_t{24} * 4 * 8'192;  // an hour's share: four pages of both shards
  open(std::move(config));
  serve(token_range(0, 320));
  EXPECT_LE(cache_->disk_status()->written_bytes, 4U * 8'192);
  EXPECT_GT(cache_->disk_status()->page_count, 0U);
}

TEST_F(CacheDiskRanks, TheEventTellsOfWhatTheDiskTierHasDone) {
  open(2, 4);
  ASSERT_GE(cache_->event_fd(), 0);
  bool is_answered = false;
  ASSERT_TRUE(cache_->lookup_on_disk(space_, {.tokens = token_range(0, 64)},
                                     [&](const DiskAnswer& /*answer*/) { is_answered = true; }));
  while (!is_answered) {
    pollfd event{.fd = cache_->event_fd(), .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&event, 1, 60'000), 1) << "nobody tells";
    ASSERT_TRUE(cache_->apply(cache_->poll().value(), 0));
  }
  pollfd event{.fd = cache_->event_fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&event, 1, 0), 0);
}

TEST_F(CacheDiskRanks, ASecondProcessIsKeptFromEveryShard) {
  open(2, 4);
  CacheConfig config = rank_config(2, 4);
  std::vector<std::unique_ptr<DiskRank>> ranks;
  for (std::uint16_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(std::make_unique<DiskRank>(config, rank));
    config.host.rank_movers.push_back(&ranks.back()->mover());
  }
  const auto second = Cache::open(std::move(config));
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::Unavailable);
  EXPECT_NE(second.error().message.find("shard-0-of-2"), std::string::npos) << second.error().message;
}

TEST_F(CacheDiskRanks, RanksAreRefusedWithWhatIsWrong) {
  const auto refused = [&](const auto& change, const std::string& text) {
    CacheConfig config = rank_config(2, 4);
    make_ranks(config);
    for (const auto& rank : ranks_) config.host.rank_movers.push_back(&rank->mover());
    change(config);
    const auto cache = Cache::open(std::move(config));
    ASSERT_FALSE(cache.has_value()) << text;
    EXPECT_NE(cache.error().message.find(text), std::string::npos) << cache.error().message;
    EXPECT_FALSE(fs::exists(path()));
  };
  const CacheConfig small = [&] {
    CacheConfig config = rank_config(2, 4);
    config.host.page_count = 8;
    return config;
  }();
  DiskRank few_pages(small, 1);
  DiskRank other_pages(rank_config(4, 4), 1);
  refused([](CacheConfig& c) { c.host.rank_movers.clear(); }, "give these by host.rank_movers");
  refused([](CacheConfig& c) { c.host.rank_movers.pop_back(); },
          "host.rank_movers has 1 movers; host.rank_count is 2: give one for each rank");
  refused([](CacheConfig& c) { c.host.rank_movers[1] = nullptr; }, "host.rank_movers[1] is null");
  refused([](CacheConfig& c) { std::swap(c.host.rank_movers[0], c.host.rank_movers[1]); },
          "host.rank_movers[0] reports as rank 1: open it with MoverConfig::rank = 0");
  refused([](CacheConfig& c) { c.host.rank_movers[1] = c.host.rank_movers[0]; },
          "host.rank_movers[1] reports as rank 0");
  refused([&](CacheConfig& c) { c.host.rank_movers[1] = &few_pages.mover(); },
          "host.rank_movers[1]: pool 0 has 8 host pages; the cache has 64");
  refused([&](CacheConfig& c) { c.host.rank_movers[1] = &other_pages.mover(); },
          "host.rank_movers[1]: a page of pool 0 has 256 bytes; the cache's have 512 on each rank");
  refused([](CacheConfig& c) { c.page.rank_count = 1; }, "host.rank_count is 2, but page.rank_count is 1");
  refused(
      [](CacheConfig& c) {
        c.host.external_mover = false;
        c.host.rank_count = 1;
        c.page.rank_count = 1;
        c.device.memory = DeviceMemory::Host;
      },
      "host.rank_movers is set, but host.external_mover is off");
  refused(
      [](CacheConfig& c) {
        c.layout = ModelLayout::create(
                       "two", {c.layout.groups().front(),
                               {.name = "window",
                                .kind = GroupKind::Window,
                                .layers = {2},
                                .components = {{.name = "rows", .element = ElementType::Bytes, .heads = 4, .dim = 8}},
                                .keys_rotated = false,
                                .window_tokens = 32}})
                       .value();
      },
      "host.rank_movers[0] has 1 pool, and none with number 1");
}

TEST_F(CacheDiskRanks, ACapacityThatIsTooSmallForAShardIsRefusedWithTheShard) {
  CacheConfig config = rank_config(2, 4);
  config.disk.capacity_bytes = 2 * config.disk.capacity_bytes_min(512);
  const std::uint64_t least = config.disk.capacity_bytes;
  open(std::move(config));
  EXPECT_EQ(serve(token_range(0, 32)), 0U);
  config = rank_config(2, 4);
  config.disk.capacity_bytes = least - 2;
  const Status opened = try_open(std::move(config));
  ASSERT_FALSE(opened.has_value());
  EXPECT_TRUE(opened.error().message.starts_with("shard 0 of 2, with ")) << opened.error().message;
  EXPECT_NE(opened.error().message.find("capacity_bytes"), std::string::npos) << opened.error().message;
}

TEST_F(CacheDiskRanks, StoresOfShardsCanBeInspectedAndVerifiedOneByOne) {
  open(2, 4);
  serve(token_range(0, 100));
  flush();
  close();
  for (std::uint32_t i = 0; i < 2; ++i) {
    const std::vector<std::string> one = {shard(i, 2)};
    EXPECT_EQ(inspect_disk_store(one)->page_count, 6U);
    EXPECT_TRUE(verify_disk_store(one)->is_clean());
  }
  const std::vector<std::string> all = {path()};
  const auto inspected = inspect_disk_store(all);
  const auto verified = verify_disk_store(all);
  ASSERT_FALSE(inspected.has_value() || verified.has_value());
  for (const Error& error : {inspected.error(), verified.error()}) {
    EXPECT_NE(error.message.find("it has stores of shards in it: give one of them, such as " + shard(0, 2)),
              std::string::npos)
        << error.message;
  }
  open(1, 4);  // in the directory itself, beside them
  serve(token_range(0, 100));
  flush();
  close();
  EXPECT_EQ(inspect_disk_store(all)->directories[0].group_stores,
            (std::vector<std::string>{"shard-0-of-2", "shard-1-of-2"}));
  EXPECT_TRUE(inspect_disk_store(all)->directories[0].foreign_files.empty());
}

// On a simulated disk, whose lanes the test runs.
class CacheSimulatedDiskRanks : public CacheDiskRanks {
 protected:
  void SetUp() override { sim_ = std::make_unique<testing::SimDisk>(1); }
};

TEST_F(CacheSimulatedDiskRanks, WhatAllRanksHaveSurvivesACrash) {
  for (const std::uint32_t heads : {0U, 2U, 4U}) {
    sim_ = std::make_unique<testing::SimDisk>(1);
    open(4, heads);
    EXPECT_EQ(serve(token_range(0, 100)), 0U);
    flush();
    close();
    sim_ = sim_->crash(5);
    open(4, heads);
    EXPECT_EQ(serve(token_range(0, 100)), 96U) << heads;
    close();
  }
}

TEST_F(CacheSimulatedDiskRanks, AShardThatFailsEndsTheDiskTierAndTheCacheGoesOn) {
  open(2, 4);
  const std::vector<TokenId> tokens = token_range(0, 100);
  serve(tokens);
  flush();
  forget_memory();
  sim_->set_broken(shard(1, 2));
  EXPECT_EQ(serve(tokens), 0U);
  for (TokenId i = 1; i < 8; ++i) serve(token_range(1'000 * i, 40));
  EXPECT_TRUE(stats().disk_has_failed);
  EXPECT_NE(cache_->disk_status()->last_error.find("shard-1-of-2"), std::string::npos)
      << cache_->disk_status()->last_error;
  EXPECT_EQ(serve(tokens), 96U);  // from memory
}

TEST_F(CacheSimulatedDiskRanks, RandomRequestsFindRightBytesOnEveryRankWhateverHappensToTheFiles) {
  for (std::uint64_t seed = 1; seed <= (testing::kIsSanitized ? 6U : 24U); ++seed) {
    testing::Random random(seed);
    sim_ = std::make_unique<testing::SimDisk>(seed);
    const std::uint32_t rank_count = std::uint32_t{1} << random.below(3);
    const std::uint32_t heads = std::array{0U, 2U, 4U}[random.below(3)];
    open(rank_count, heads);
    std::uint64_t found = 0;
    for (int i = 0; i < 60; ++i) {
      const std::uint32_t what = random.below(12);
      if (what == 0) {
        flush();
        close();
        sim_ = sim_->crash(random.next());
        open(rank_count, heads);
      } else if (what == 1) {
        close();  // nothing is flushed
        sim_ = sim_->kill(random.next());
        open(rank_count, heads);
      } else if (what == 2) {
        const std::uint32_t count = CacheForTests::disk_shard_count(*cache_);
        const std::string directory = count == 1 ? path() : shard(random.below(count), count);
        for (const std::string& name : sim_->file_names(directory)) {
          if (!name.starts_with(kSegmentFilePrefix)) continue;
          const std::size_t bytes = sim_->file_bytes(directory, name).size();
          if (bytes > 0) sim_->flip_bit(directory, name, random.next() % (8 * bytes));
        }
      } else if (what == 3) {
        sim_->fail_once(testing::SimOperation::Read, random.below(4));
      }
      std::vector<TokenId> tokens;
      for (std::uint32_t k = 0; k <= random.below(4); ++k) {
        const auto part = token_range(static_cast<TokenId>(100 * random.below(3)), 16 + random.below(30));
        tokens.insert(tokens.end(), part.begin(), part.end());
      }
      if (random.below(2) == 0) forget_memory();
      serve(tokens);
      found += std::exchange(hits_, stats().disk_hit_tokens) == hits_ ? 0 : 1;
      ASSERT_FALSE(HasFatalFailure()) << "seed " << seed << ", request " << i;
    }
    EXPECT_GT(found, 0U) << "seed " << seed;
    close();
  }
}

}  // namespace
}  // namespace quire
