// SPDX-License-Identifier: Apache-2.0
//
// For tests of the disk tier: a cache whose host pages a HandMover has and whose files lie on a SimDisk, so that every
// step of every lane is the test's, and everything can be made to fail.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "cache/cache_for_tests.h"
#include "kernels/copy_checked.h"
#include "store/host_pages.h"
#include "testing/sim_disk.h"
#include "tiers_fixture.h"

namespace quire {

/// The pages of a HandMover, which may be made later.
class HandHostPages : public HostPages {
 public:
  explicit HandHostPages(std::uint64_t page_bytes) : page_bytes_(page_bytes) {}
  void set_mover(HandMover* mover) { mover_ = mover; }

  [[nodiscard]] TransferFault begin_read(const PageTransfer& page, Record& record) override {
    HandMover::HostPage& host = mover_->host_pages[{0, page.host_page.value}];
    if (host.generation != page.host_generation) return TransferFault::Generation;
    if (host.name_tag != page.name_tag) return TransferFault::NameTag;
    record.bytes = host.bytes;
    record.checksum = checksum_of(host.bytes);
    if (host.is_bad) *record.checksum += 1;
    return TransferFault::None;
  }
  void end_read(const PageTransfer& /*page*/) override {}
  [[nodiscard]] TransferFault begin_write(const PageTransfer& page, std::span<std::byte>& bytes) override {
    HandMover::HostPage& host = mover_->host_pages[{0, page.host_page.value}];
    host = {.generation = 0, .name_tag = 0, .bytes = std::vector<std::byte>(page_bytes_)};
    bytes = host.bytes;
    return TransferFault::None;
  }
  void end_write(const PageTransfer& page, std::optional<std::uint64_t> checksum) override {
    HandMover::HostPage& host = mover_->host_pages[{0, page.host_page.value}];
    if (!checksum) return;
    host.generation = page.host_generation;
    host.name_tag = page.name_tag;
    host.is_bad = checksum_of(host.bytes) != *checksum;
  }

 private:
  [[nodiscard]] static std::uint64_t checksum_of(std::span<const std::byte> bytes) {
    return best_checked_copier().sum({.source = bytes.data(), .bytes = bytes.size()}).finish(bytes.size());
  }

  std::uint64_t page_bytes_;
  HandMover* mover_ = nullptr;
};

class DiskTest : public TiersTest {
 protected:
  static constexpr std::uint32_t kPageTokens = 16;
  static constexpr const char* kPath = "pages";

  [[nodiscard]] static CacheConfig disk_config(std::uint32_t page_count = 32, std::uint32_t host_page_count = 64) {
    CacheConfig config = tiers_config(page_count, host_page_count, WritePolicy::WriteThrough);
    config.page.page_tokens = kPageTokens;
    config.disk.directories = {kPath};
    config.disk.capacity_bytes = 64 << 20U;
    config.disk.segment_bytes = 1 << 20U;
    return config;
  }
  void close() {
    engine_.reset();
    mover_.reset();
    cache_.reset();
  }
  void open_disk(CacheConfig config) {
    close();
    Result<std::unique_ptr<Cache>> cache = CacheForTests::open(std::move(config), *disk_, host_pages_);
    ASSERT_TRUE(cache.has_value()) << cache.error().message;
    cache_ = std::move(*cache);
    mover_ = std::make_unique<HandMover>(*cache_);
    host_pages_.set_mover(mover_.get());
    engine_ = std::make_unique<ByteEngine>(*cache_);
    space_ = cache_->key_space({.model = "test"}).value();
  }
  void TearDown() override {
    TiersTest::TearDown();
    close();  // before its disk goes
  }

  /// One thing of one lane, and the cache hears what came of it.
  bool run_lane(DiskMover::Lane lane) {
    const bool has_run = CacheForTests::disk(*cache_).run(lane);
    hear();
    return has_run;
  }
  void hear() {
    std::array<Completion, 64> completions;
    const std::span<Completion> heard = CacheForTests::disk(*cache_).poll(completions);
    apply({heard.begin(), heard.end()});
  }
  /// Everything, in all tiers, until nothing is left to do.
  void settle_all() {
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      settle();
      for (const auto lane : {DiskMover::Lane::Names, DiskMover::Lane::Read, DiskMover::Lane::Write}) {
        while (run_lane(lane)) goes_on = true;
      }
    }
  }
  void flush() {
    for (;;) {
      const Result<bool> done = cache_->flush();
      ASSERT_TRUE(done.has_value()) << done.error().message;
      if (*done) return;
      settle_all();
    }
  }
  /// The tokens are on disk and nowhere else.
  void put_on_disk(const std::vector<TokenId>& tokens) {
    Live live = computed_all(tokens);
    end(live);
    settle_all();
    flush();
    forget_memory();
  }
  /// Admitted and computed with everything moved as it comes.
  [[nodiscard]] Live computed_all(const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) {
    Live live = admitted(tokens, options);
    settle_all();
    EXPECT_FALSE(view(live).is_loading);
    if (view(live).pending_tokens > 0) step(live.sequence, live.tokens);
    return live;
  }
  /// A whole request; gives the tokens that it did not have to compute.
  std::uint32_t serve_all(const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) {
    Live live = admitted(tokens, options);
    settle_all();
    const std::uint32_t computed_tokens = view(live).computed_tokens;
    step(live.sequence, live.tokens);
    end(live);
    settle_all();
    return computed_tokens;
  }
  /// When nobody is left, every page of the tiers in memory comes back.
  void expect_no_page_lost() {
    ASSERT_TRUE(cache_->reset());
    settle_all();
    EXPECT_EQ(stats().transfers_in_flight, 0U);
    EXPECT_EQ(stats().free_pages, stats().page_count);
    EXPECT_EQ(stats().host_free_pages, stats().host_page_count);
  }
  void forget_memory() {
    EXPECT_TRUE(cache_->sleep(Sleep::DropAll).value());
    EXPECT_TRUE(cache_->wake());
  }

  std::unique_ptr<testing::SimDisk> disk_ = std::make_unique<testing::SimDisk>(1);
  HandHostPages host_pages_{std::uint64_t{kPageTokens} * kTestTokenBytes};
};

}  // namespace quire
