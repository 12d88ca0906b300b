// SPDX-License-Identifier: Apache-2.0
//
// An engine's thread allocates nothing in a steady state where the cache has a remote tier: while pages go to a server
// and come from it, and while the server is gone. The threads that speak with it are not counted.
#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "base/hash.h"
#include "quire/cache.h"
#include "tests/cache/allocation_counter.h"
#include "tests/remote/redis_server.h"

namespace quire {
namespace {

class RemoteCycles {
 public:
  explicit RemoteCycles(const std::string& url) {
    CacheConfig config{.layout = ModelLayout::opaque(4).value(), .page = {.page_tokens = 16}};
    config.device = {.page_count = 24};
    config.host = {.page_count = 40, .write_policy = WritePolicy::WriteThrough, .transfer_pages_max = 4};
    config.remote.urls = {url};
    // Slower machines than any that tests run on.
    config.remote.find_timeout_ns = config.remote.load_timeout_ns = 60'000'000'000;
    config.sequence_count_max = 4;
    cache_ = std::move(Cache::open(std::move(config)).value());
    space_ = cache_->key_space({.model = "m"}).value();
  }

  // Three pages that a fifth of the prompts begin with, and some more of their own. Memory has room for a few of them.
  [[nodiscard]] bool run(std::uint32_t request_count) {
    for (std::uint32_t i = 0; i < request_count; ++i) {
      const std::uint64_t draw = mix64(++draw_count_);
      const auto family = static_cast<TokenId>(draw % 5);
      const auto member = static_cast<TokenId>((draw >> 8U) % 8);
      for (TokenId k = 0; k < 48; ++k) tokens_[static_cast<std::size_t>(k)] = (1'000 * family) + k;
      for (TokenId k = 48; k < 150; ++k) tokens_[static_cast<std::size_t>(k)] = 100'000 + (1'000 * member) + family + k;
      if (!serve()) return false;
    }
    return true;
  }
  [[nodiscard]] Cache& cache() { return *cache_; }
  /// Of this thread, but for the texts of refusals: how often there is no room yet is up to the machine.
  [[nodiscard]] std::uint64_t allocations() const { return thread_allocation_count - refusal_allocations_; }

 private:
  /// Whether there was something.
  bool hear() {
    const Result<std::span<const Completion>> ended = cache_->poll();
    return ended && cache_->apply(*ended, 0) && !ended->empty();
  }
  void move() {
    if (hear()) return;
    pollfd event{.fd = cache_->event_fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&event, 1, 100);
  }
  bool serve() {
    Result<Sequence> sequence = cache_->begin(space_, {.tokens = tokens_});
    if (!sequence) return false;
    for (bool is_admitted = false; !is_admitted;) {
      const std::uint64_t before = thread_allocation_count;
      const Result<Admission> admission = cache_->admit(*sequence);
      is_admitted = admission.has_value();
      if (is_admitted) continue;
      refusal_allocations_ += thread_allocation_count - before;
      move();
    }
    while (cache_->view(*sequence)->is_loading) move();
    const StepEntry entry{&*sequence};
    Result<PlanOutcome> outcome = cache_->plan_step({&entry, 1});
    while (outcome && !outcome->step) {
      move();
      outcome = cache_->plan_step({&entry, 1});
    }
    const StepResult result;
    if (!outcome || !cache_->apply_copies(*outcome->step) || !cache_->finish_step(*outcome->step, {&result, 1})) {
      return false;
    }
    if (!cache_->end(*sequence)) return false;
    (void)hear();
    return true;
  }

  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::uint64_t draw_count_ = 0;
  std::uint64_t refusal_allocations_ = 0;
  std::array<TokenId, 150> tokens_{};
};

TEST(RemoteNoAllocation, AnEnginesThreadAllocatesNothingWhetherTheServerIsThereOrNot) {
  testing::RedisServer server;
  RemoteCycles cycles(server.unix_url());
  ASSERT_TRUE(cycles.run(500));
  const Stats before = cycles.cache().stats().value();
  EXPECT_GT(before.remote_hit_tokens, 0U);
  const std::uint64_t with_server = cycles.allocations();
  EXPECT_GT(with_server, 0U) << "nothing is counted";
  const bool is_well = cycles.run(1'500);
  const Stats after = cycles.cache().stats().value();
  EXPECT_EQ(cycles.allocations() - with_server, 0U);
  ASSERT_TRUE(is_well);
  EXPECT_TRUE(after.remote_is_on);
  EXPECT_GT(after.remote_hit_tokens, before.remote_hit_tokens);
  EXPECT_GT(after.evicted_page_total, before.evicted_page_total);
  server.kill();
  const std::uint64_t without_server = cycles.allocations();
  const bool is_well_alone = cycles.run(1'500);
  const Stats alone = cycles.cache().stats().value();
  EXPECT_EQ(cycles.allocations() - without_server, 0U);
  ASSERT_TRUE(is_well_alone);
  EXPECT_FALSE(alone.remote_is_on);
  EXPECT_TRUE(cycles.cache().check_invariants().has_value());
}

}  // namespace
}  // namespace quire
