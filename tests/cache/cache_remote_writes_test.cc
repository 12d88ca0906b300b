// SPDX-License-Identifier: Apache-2.0
//
// What a cache writes to a server, and when: its write policy, how often pages must have been used, and its budget.
#include <vector>

#include "remote_fixture.h"
#include "wire/extent.h"

namespace quire {
namespace {

class CacheRemoteWrites : public RemoteTest {
 protected:
  static constexpr std::uint32_t kExtentTokens = 4 * kPageTokens;
  static constexpr std::uint64_t kExtentBytes = extent_bytes(4, std::uint64_t{kPageTokens} * kTestTokenBytes);

  /// Prompts of two extents that have nothing in common.
  [[nodiscard]] static std::vector<TokenId> prompt(TokenId number) {
    return token_range(10'000 * number, (2 * kExtentTokens) + 1);
  }
  [[nodiscard]] std::size_t value_count() const { return server_.keys().size(); }
  void flush_remote() {
    Result<bool> flushed = cache_->flush();
    for (int i = 0; i < 9 && flushed && !*flushed; ++i, flushed = cache_->flush()) settle_remote();
    ASSERT_TRUE(flushed.has_value()) << flushed.error().message;
    EXPECT_TRUE(*flushed);
  }
};

TEST_F(CacheRemoteWrites, WriteThroughWritesWhatWasUsedOnce) {
  open_remote(remote_config());
  EXPECT_EQ(cache_->config().remote.write_policy, WritePolicy::WriteThrough);
  (void)serve_remote(prompt(1));
  EXPECT_EQ(value_count(), 2U);
  EXPECT_EQ(stats().remote_waiting_pages, 0U);
}

TEST_F(CacheRemoteWrites, WriteBackWritesWhenTheHostNeedsTheRoomOrSomebodyFlushes) {
  CacheConfig config = remote_config();  // 64 host pages, of which a quarter are to be free or written
  config.remote.write_policy = WritePolicy::WriteBack;
  open_remote(std::move(config));
  for (TokenId i = 0; i < 6; ++i) (void)serve_remote(prompt(i));
  EXPECT_EQ(value_count(), 0U);
  EXPECT_EQ(stats().remote_waiting_pages, 48U);
  (void)serve_remote(prompt(6));
  EXPECT_EQ(value_count(), 2U);
  flush_remote();
  EXPECT_EQ(value_count(), 14U);
  EXPECT_EQ(stats().remote_waiting_pages, 0U);
}

TEST_F(CacheRemoteWrites, SelectiveWritesWhatWasUsedOftenEnough) {
  for (const std::uint32_t hits_min : {1U, 2U, 4U}) {
    server_.restart_empty();
    CacheConfig config = remote_config();
    config.remote.write_policy = WritePolicy::Selective;
    config.remote.write_hits_min = hits_min;
    open_remote(std::move(config));
    for (std::uint32_t used = 0; used < hits_min; ++used) {
      (void)serve_remote(prompt(1));
      EXPECT_EQ(value_count(), 0U) << "used again " << used << " times of " << hits_min;
    }
    (void)serve_remote(prompt(2));
    flush_remote();
    EXPECT_EQ(value_count(), 0U);
    EXPECT_EQ(serve_remote(prompt(1)), 2 * kExtentTokens);
    EXPECT_EQ(value_count(), 2U);
    EXPECT_EQ(stats().remote_stored_page_total, 8U);
  }
}

TEST_F(CacheRemoteWrites, NoMoreIsWrittenThanTheBudgetAllows) {
  const std::vector<TokenId> tokens = token_range(0, (6 * kExtentTokens) + 1);
  const auto with_budget = [&] {
    CacheConfig config = remote_config();
    config.remote.write_bytes_per_day = 24 * 4 * kExtentBytes;  // four extents at once
    return config;
  };
  open_remote(with_budget());
  (void)serve_remote(tokens);
  EXPECT_EQ(value_count(), 2U) << "what was used once may have half of an hour's share";
  EXPECT_EQ(stats().remote_waiting_pages, 16U);
  flush_remote();
  EXPECT_EQ(value_count(), 2U);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(serve_remote(tokens), 6 * kExtentTokens);
  EXPECT_EQ(value_count(), 4U) << "and what was used again and again all of it";
  EXPECT_EQ(cache_->remote_status()->put_bytes, 4 * kExtentBytes);
  set_time(1'800'000'000'000);
  settle_remote();
  EXPECT_EQ(value_count(), 5U);
  set_time(2 * 1'800'000'000'000);
  settle_remote();
  EXPECT_EQ(value_count(), 6U);
  EXPECT_EQ(stats().remote_stored_bytes, 6 * kExtentBytes);
  EXPECT_EQ(stats().remote_waiting_pages, 0U);
  // What the server has already costs nothing.
  open_remote(with_budget());
  EXPECT_EQ(serve_remote(tokens, {.tier_max = Tier::Host}), 0U);
  EXPECT_EQ(stats().remote_waiting_pages, 0U);
  EXPECT_EQ(cache_->remote_status()->kept_values, 6U);
  EXPECT_EQ(cache_->remote_status()->put_values, 0U);
}

}  // namespace
}  // namespace quire
