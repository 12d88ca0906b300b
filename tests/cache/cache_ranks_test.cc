// SPDX-License-Identifier: Apache-2.0
//
// Two ranks driven from one cache: each has half of the bytes of every page and a mover of its own. Plans reach them as
// bytes, as they would in processes of their own.
#include <gtest/gtest.h>

#include <deque>

#include "store/host_store_peer.h"
#include "testing/seeded_run.h"
#include "tiers_fixture.h"
#include "transfer/mover_peer.h"

namespace quire {
namespace {

constexpr std::uint32_t kRankCount = 2;
constexpr std::uint32_t kPageTokens = 4;
constexpr std::uint32_t kRankTokenBytes = kTestTokenBytes / kRankCount;

/// A process of one rank: its half of the device pool, and a mover that knows nothing but plans.
class Rank {
 public:
  Rank(std::uint16_t rank, std::uint32_t page_count, std::uint32_t host_page_count, std::uint32_t transfer_pages_max)
      : geometry_(make_geometry(page_count)), memory_(geometry_.pool_bytes()) {
    mover_ = Mover::open({.device_geometry = &geometry_,
                          .device_memory = memory_.data(),
                          .host_page_count = host_page_count,
                          .transfer_pages_max = transfer_pages_max,
                          .rank = rank})
                 .value();
  }

  [[nodiscard]] std::byte* slot(std::uint32_t page, std::uint32_t token) {
    return memory_.data() + ((std::size_t{page} * kPageTokens + token) * kRankTokenBytes);
  }
  /// A plan as it comes over a wire.
  void receive(std::vector<std::uint64_t> bytes) { inbox_.push_back(std::move(bytes)); }
  /// Submits what has come, and gives what has ended.
  [[nodiscard]] std::vector<Completion> work() {
    while (!inbox_.empty()) {
      const Result<TransferPlan> plan = decode(std::as_bytes(std::span(inbox_.front())));
      EXPECT_TRUE(plan.has_value()) << plan.error().message;
      const Result<bool> taken = mover_->try_submit(*plan);
      EXPECT_TRUE(taken.has_value()) << taken.error().message;
      if (!*taken) break;
      inbox_.pop_front();
    }
    std::array<Completion, 8> room;
    const std::span<Completion> ended = mover_->poll(room);
    return {ended.begin(), ended.end()};
  }
  void cancel(TransferId id) { (void)mover_->cancel(id); }
  void break_page(PageId host_page) { HostStorePeer::flip_bit(MoverPeer::host_store(*mover_), host_page, 11); }

 private:
  [[nodiscard]] static PoolGeometry make_geometry(std::uint32_t page_count) {
    const ModelLayout layout = ModelLayout::opaque(kRankTokenBytes).value();
    const PageGeometry page = PageGeometry::create(layout.groups().front(), {.page_tokens = kPageTokens}).value();
    return PoolGeometry::create(page, {.page_count = page_count + 1}).value();
  }

  PoolGeometry geometry_;
  std::vector<std::byte> memory_;
  std::unique_ptr<Mover> mover_;
  std::deque<std::vector<std::uint64_t>> inbox_;
};

class CacheRanks : public TiersTest {
 protected:
  void open_ranks(std::uint32_t page_count, std::uint32_t host_page_count, WritePolicy policy) {
    CacheConfig config = tiers_config(page_count, host_page_count, policy);
    config.device.memory = DeviceMemory::None;  // the ranks have it
    config.host.rank_count = kRankCount;
    config.host.transfer_pages_max = 3;
    ranks_.clear();
    for (std::uint16_t rank = 0; rank < kRankCount; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(rank, page_count, host_page_count, config.host.transfer_pages_max));
    }
    open(std::move(config));
  }
  /// Sends plans and cancellations to both ranks, and hears what they say.
  void exchange() {
    std::array<TransferPlan, 4> plans;
    const auto taken = cache_->take_transfers(plans).value();
    for (const TransferPlan& plan : taken) {
      std::vector<std::uint64_t> bytes(encoded_bytes(plan.pages.size()) / sizeof(std::uint64_t));
      ASSERT_TRUE(encode(plan, std::as_writable_bytes(std::span(bytes))));
      if (plan.kind == TransferKind::Load) last_load_.assign(plan.pages.begin(), plan.pages.end());
      for (const auto& rank : ranks_) rank->receive(bytes);
    }
    std::array<TransferId, 4> ids;
    const auto cancelled = cache_->take_cancellations(ids).value();
    for (const TransferId id : cancelled) {
      for (const auto& rank : ranks_) rank->cancel(id);
    }
    bool has_ended = false;
    for (const auto& rank : ranks_) {
      const std::vector<Completion> ended = rank->work();
      has_ended = has_ended || !ended.empty();
      ASSERT_TRUE(cache_->apply(ended, 0));
    }
    if (!has_ended) std::this_thread::yield();
  }
  void exchange_all() {
    do {
      exchange();
    } while (stats().transfers_in_flight > 0);
  }
  /// Computes the half of each rank; what was there before must be right.
  void compute(const AttentionPlanEntry& entry, std::span<const TokenId> tokens) {
    for (std::uint32_t i = 0; i < entry.context_tokens; ++i) {
      const std::uint64_t value = ByteEngine::value_at(0, tokens, {}, i);
      const bool is_written = i >= entry.position && entry.append_slots[i - entry.position] != kNoSlot;
      for (std::uint32_t rank = 0; rank < kRankCount; ++rank) {
        std::byte* const slot = ranks_[rank]->slot(entry.pages[i / kPageTokens].value, i % kPageTokens);
        const std::byte* const half =
            reinterpret_cast<const std::byte*>(&value) + (std::size_t{rank} * kRankTokenBytes);
        if (is_written) std::memcpy(slot, half, kRankTokenBytes);
        ASSERT_EQ(std::memcmp(slot, half, kRankTokenBytes), 0) << "rank " << rank << ", position " << i;
      }
    }
  }
  /// A whole request; gives the tokens that it did not have to compute.
  std::uint32_t request(const std::vector<TokenId>& tokens) {
    Live live = begun(tokens);
    Result<Admission> admission = cache_->admit(live.sequence);
    while (!admission) {
      exchange();
      admission = cache_->admit(live.sequence);
    }
    while (view(live).is_loading) exchange();
    const std::uint32_t computed = view(live).computed_tokens;
    const StepEntry entry{&live.sequence};
    PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    while (!outcome.step) {
      exchange();
      outcome = cache_->plan_step({&entry, 1}).value();
    }
    for (const PageCopy& copy : outcome.step->plan.groups[0].copies) {
      for (const auto& rank : ranks_) {
        std::memcpy(rank->slot(copy.target.value, 0), rank->slot(copy.source.value, 0),
                    std::size_t{copy.token_count} * kRankTokenBytes);
      }
    }
    compute(outcome.step->plan.entries[0], tokens);
    const StepResult result;
    EXPECT_TRUE(cache_->finish_step(*outcome.step, {&result, 1}));
    end(live);
    return computed;
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<PageTransfer> last_load_;
};

TEST_F(CacheRanks, TwoRanksAreDrivenFromOneCache) {
  for (const WritePolicy policy : {WritePolicy::WriteBack, WritePolicy::WriteThrough, WritePolicy::Selective}) {
    open_ranks(12, 24, policy);
    testing::Random random(5);
    for (int i = 0; i < 200; ++i) {
      std::vector<TokenId> tokens;
      for (std::uint32_t k = 0; k <= random.below(4); ++k) {
        const auto part = token_range(static_cast<TokenId>(10 * random.below(3)), 4 + random.below(5));
        tokens.insert(tokens.end(), part.begin(), part.end());
      }
      request(tokens);
      ASSERT_FALSE(HasFatalFailure()) << "request " << i;
      exchange();
      if (random.below(2) == 0) exchange_all();
      expect_invariants();
    }
    EXPECT_GT(stats().host_hit_tokens, 100U);
    EXPECT_EQ(stats().unknown_completion_count, 0U);
    ASSERT_TRUE(cache_->reset());
    exchange_all();
    EXPECT_EQ(stats().free_pages, 12U);
    EXPECT_EQ(stats().host_free_pages, 24U);
  }
}

TEST_F(CacheRanks, WhatOneRankHasLostIsComputedByBoth) {
  open_ranks(12, 24, WritePolicy::WriteThrough);
  const std::vector<TokenId> tokens = token_range(0, 12);
  request(tokens);
  exchange_all();
  ASSERT_TRUE(cache_->reclaim(99));
  EXPECT_EQ(request(tokens), 12U);  // which host pages it has
  ASSERT_EQ(last_load_.size(), 3U);
  ASSERT_TRUE(cache_->reclaim(99));
  ranks_[1]->break_page(last_load_[1].host_page);
  EXPECT_EQ(request(tokens), 4U);
  EXPECT_EQ(stats().load_faults[static_cast<std::size_t>(TransferFault::Checksum)], 1U);
  exchange_all();
  ASSERT_TRUE(cache_->reclaim(99));
  EXPECT_EQ(request(tokens), 12U);  // written anew
}

TEST_F(CacheRanks, ACancelledLoadEndsOnBoth) {
  open_ranks(12, 24, WritePolicy::WriteThrough);
  const std::vector<TokenId> tokens = token_range(0, 12);
  for (int i = 0; i < 20; ++i) {
    request(tokens);
    exchange_all();
    ASSERT_TRUE(cache_->reclaim(99));
    Live live = begun(tokens);
    ASSERT_TRUE(cache_->admit(live.sequence));
    exchange();
    end(live);
    exchange_all();
    expect_invariants();
    EXPECT_EQ(stats().transfers_in_flight, 0U);
    EXPECT_EQ(stats().pinned_pages, 0U);
  }
}

}  // namespace
}  // namespace quire
