// SPDX-License-Identifier: Apache-2.0
//
// For tests of a disk tier below several ranks: one cache drives a mover for each rank, whose device memory is its own.
// An engine computes the heads of every rank, and verifies on every rank all that a request finds. Files are the
// system's, with the disk tier's threads, or those of a SimDisk, whose lanes the test runs.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/cache_for_tests.h"
#include "cache_fixture.h"
#include "testing/sim_disk.h"
#include "testing/temp_directory.h"

namespace quire {

/// Two layers, each with a row of eight bytes for each head. No heads: one row that every rank has.
[[nodiscard]] inline ModelLayout rank_layout(std::uint32_t heads) {
  Component rows{.name = "rows", .element = ElementType::Bytes, .dim = 8};
  if (heads == 0) rows.sharding = Sharding::Replicated;
  if (heads > 0) rows.heads = heads;
  return ModelLayout::create("ranks", {{.name = "full", .layers = {0, 1}, .components = {rows}, .keys_rotated = false}})
      .value();
}

/// One rank of a tensor-parallel engine, in this process.
class DiskRank {
 public:
  DiskRank(const CacheConfig& config, std::uint16_t rank)
      : rank_(rank),
        geometry_(PoolGeometry::create(PageGeometry::create(config.layout.groups().front(), config.page).value(),
                                       {.page_count = std::uint64_t{config.device.page_count} + 1})
                      .value()),
        memory_(geometry_.pool_bytes()),
        mover_(Mover::open({.device_geometry = &geometry_,
                            .device_memory = memory_.data(),
                            .host_page_count = config.host.page_count,
                            .rank = rank})
                   .value()) {}

  [[nodiscard]] Mover& mover() { return *mover_; }
  [[nodiscard]] const PageGeometry& page() const { return geometry_.page(); }
  [[nodiscard]] std::span<const std::byte> page_bytes(PageId page) const {
    return {memory_.data() + (page.value * geometry_.page().page_bytes()), geometry_.page().page_bytes()};
  }
  void copy(const PageCopy& copied) {
    const std::uint64_t bytes = geometry_.page().page_bytes();  // the tokens behind those that count are written later
    std::memcpy(memory_.data() + (copied.target.value * bytes), memory_.data() + (copied.source.value * bytes), bytes);
  }
  /// What the rank has of a token: all layers, the rank's heads.
  void write(PageId page, std::uint32_t token, std::uint64_t value) { visit(page, token, value, true); }
  void expect(PageId page, std::uint32_t token, std::uint64_t value) { visit(page, token, value, false); }

 private:
  void visit(PageId page, std::uint32_t token, std::uint64_t value, bool is_written) {
    const HeadRange heads = geometry_.page().heads_on_rank(0, rank_);
    for (std::uint32_t layer = 0; layer < geometry_.page().layer_count(); ++layer) {
      for (std::uint32_t head = 0; head < heads.count; ++head) {
        const std::uint64_t row = value + (1'000 * layer) + heads.first + head;
        std::byte* const place =
            memory_.data() +
            geometry_.offset_of({.page = page, .layer_index = layer, .token_index = token, .head_index = head});
        if (is_written) std::memcpy(place, &row, sizeof(row));
        ASSERT_EQ(std::memcmp(place, &row, sizeof(row)), 0)
            << "rank " << rank_ << ", page " << page.value << ", token " << token << ", head " << heads.first + head;
      }
    }
  }

  std::uint16_t rank_;
  PoolGeometry geometry_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Mover> mover_;
};

class RankDiskTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kPageTokens = 16;

  ~RankDiskTest() override { close(); }

  [[nodiscard]] std::string path() const { return sim_ != nullptr ? "pages" : directory_.path() + "/pages"; }
  [[nodiscard]] CacheConfig rank_config(std::uint32_t rank_count, std::uint32_t heads) const {
    CacheConfig config{.layout = rank_layout(heads), .page = {.page_tokens = kPageTokens, .rank_count = rank_count}};
    config.device = {.page_count = 32, .memory = DeviceMemory::None};
    config.host = {
        .page_count = 64, .write_policy = WritePolicy::WriteThrough, .external_mover = true, .rank_count = rank_count};
    config.disk = {.directories = {path()}, .capacity_bytes = 64 << 20U, .segment_bytes = 1 << 20U};
    config.sequence_count_max = 16;
    return config;
  }
  void make_ranks(const CacheConfig& config) {
    ranks_.clear();
    for (std::uint16_t rank = 0; rank < config.host.rank_count; ++rank) {
      ranks_.push_back(std::make_unique<DiskRank>(config, rank));
    }
  }
  /// Opens with new ranks: nothing is left of what the ones before had in memory.
  [[nodiscard]] Status try_open(CacheConfig config) {
    close();
    make_ranks(config);
    std::vector<HostPages*> host_pages;
    for (const auto& rank : ranks_) {
      config.host.rank_movers.push_back(&rank->mover());
      host_pages.push_back(&rank->mover().host_pages());
    }
    if (sim_ != nullptr) {
      QUIRE_TRY_ASSIGN(cache_, CacheForTests::open(std::move(config), *sim_, host_pages));
    } else {
      QUIRE_TRY_ASSIGN(cache_, Cache::open(std::move(config)));
    }
    space_ = cache_->key_space({.model = "test"}).value();
    return {};
  }
  void open(CacheConfig config) {
    const Status opened = try_open(std::move(config));
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
  }
  void open(std::uint32_t rank_count, std::uint32_t heads) { open(rank_config(rank_count, heads)); }
  void close() {
    cache_.reset();
    ranks_.clear();
  }
  void restart(std::uint32_t rank_count, std::uint32_t heads) {
    flush();
    open(rank_count, heads);
  }

  /// Plans go to all ranks; the cache hears what they and the disk tier say.
  void exchange() {
    std::array<TransferPlan, 4> plans;
    const std::span<TransferPlan> taken = cache_->take_transfers(plans).value();
    for (const TransferPlan& plan : taken) {
      for (const auto& rank : ranks_) ASSERT_TRUE(rank->mover().try_submit(plan).value());
    }
    std::array<TransferId, 4> ids;
    const std::span<TransferId> called_off = cache_->take_cancellations(ids).value();
    for (const TransferId id : called_off) {
      for (const auto& rank : ranks_) (void)rank->mover().cancel(id);
    }
    bool has_ended = !taken.empty();
    for (const auto& rank : ranks_) {
      std::array<Completion, 8> room;
      const std::span<Completion> ended = rank->mover().poll(room);
      has_ended = has_ended || !ended.empty();
      ASSERT_TRUE(cache_->apply(ended, 0));
    }
    for (std::uint32_t shard = 0; sim_ != nullptr && shard < CacheForTests::disk_shard_count(*cache_); ++shard) {
      for (const auto lane : {DiskMover::Lane::Names, DiskMover::Lane::Read, DiskMover::Lane::Write}) {
        has_ended = CacheForTests::disk(*cache_, shard).run(lane) || has_ended;
      }
    }
    const auto ended = cache_->poll();
    ASSERT_TRUE(ended.has_value()) << ended.error().message;
    ASSERT_TRUE(cache_->apply(*ended, 0));
    if (!has_ended && ended->empty()) std::this_thread::yield();
  }
  void exchange_all() {
    do {
      exchange();
      ASSERT_FALSE(HasFatalFailure());
    } while (stats().transfers_in_flight > 0);
    const Status right = cache_->check_invariants();
    ASSERT_TRUE(right.has_value()) << right.error().message;
  }
  void flush() {
    for (;;) {
      const Result<bool> done = cache_->flush();
      ASSERT_TRUE(done.has_value()) << done.error().message;
      if (*done) return;
      exchange();
      ASSERT_FALSE(HasFatalFailure());
    }
  }
  /// A whole request, every byte of which is verified on every rank; gives the tokens that it did not have to compute.
  std::uint32_t serve(const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) {
    Sequence sequence = cache_->begin(space_, {.tokens = tokens}, options).value();
    while (!cache_->admit(sequence)) exchange();
    while (cache_->view(sequence)->is_loading && !HasFatalFailure()) exchange();
    const std::uint32_t found = cache_->view(sequence)->computed_tokens;
    const StepEntry entry{&sequence};
    PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    while (!outcome.step && !HasFatalFailure()) {
      exchange();
      outcome = cache_->plan_step({&entry, 1}).value();
    }
    for (const PageCopy& copied : outcome.step->plan.groups[0].copies) {
      for (const auto& rank : ranks_) rank->copy(copied);
    }
    const AttentionPlanEntry& planned = outcome.step->plan.entries[0];
    for (std::uint32_t i = 0; i < planned.context_tokens; ++i) {
      const std::uint64_t value = ByteEngine::value_at(salt_, tokens, {}, i);
      const bool is_written = i >= planned.position && planned.append_slots[i - planned.position] != kNoSlot;
      for (const auto& rank : ranks_) {
        const PageId page = planned.pages[i / kPageTokens];
        if (is_written) rank->write(page, i % kPageTokens, value);
        rank->expect(page, i % kPageTokens, value);
      }
    }
    const StepResult result;
    EXPECT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
    EXPECT_TRUE(cache_->end(sequence));
    exchange_all();
    return found;
  }
  void forget_memory() {
    while (!cache_->sleep(Sleep::DropAll).value()) exchange();
    EXPECT_TRUE(cache_->wake());
  }
  [[nodiscard]] Stats stats() const { return cache_->stats().value(); }

  testing::TempDirectory directory_;
  std::unique_ptr<testing::SimDisk> sim_;  // null: files of the system
  std::vector<std::unique_ptr<DiskRank>> ranks_;
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::uint64_t salt_ = 0;  // of what is computed from here on
  std::uint64_t hits_ = 0;  // Stats::disk_hit_tokens, when it was last looked at
};

}  // namespace quire
