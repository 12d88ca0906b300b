// SPDX-License-Identifier: Apache-2.0
//
// What stays and what goes: key spaces, keep, drop, reset, resize, and the records of it.
#include <gtest/gtest.h>

#include <algorithm>

#include "cache_fixture.h"

namespace quire {
namespace {

class CacheResidency : public CacheTest {
 protected:
  [[nodiscard]] std::uint32_t matched(KeySpaceId space, std::span<const TokenId> tokens) const {
    return cache_->lookup(space, {.tokens = tokens})->matched_tokens;
  }
  void run_in(KeySpaceId space, std::vector<TokenId> tokens) {
    std::swap(space_, space);
    run_request(std::move(tokens));
    std::swap(space_, space);
  }
};

TEST_F(CacheResidency, EqualKeySpacesHaveOneId) {
  open(4, 8);
  const KeySpace key_space{.model = "m", .revision = "1", .salt = "tenant"};
  EXPECT_EQ(cache_->key_space(key_space).value(), cache_->key_space(key_space).value());
}

TEST_F(CacheResidency, EqualTokensInTwoKeySpacesShareNothing) {
  open(4, 16);
  const KeySpaceId a = cache_->key_space({.model = "m", .salt = "a"}).value();
  const KeySpaceId b = cache_->key_space({.model = "m", .salt = "b"}).value();
  const std::vector<TokenId> tokens = token_range(1, 8);
  run_in(a, tokens);
  EXPECT_EQ(matched(a, tokens), 8U);
  EXPECT_EQ(matched(b, tokens), 0U);
  run_in(b, tokens);
  EXPECT_EQ(stats().duplicate_page_total, 0U);
  EXPECT_EQ(stats().sealed_pages, 4U);
}

TEST_F(CacheResidency, FieldsOfAKeySpaceAreNeverJoined) {
  open(4, 16);
  const std::vector<TokenId> tokens = token_range(1, 8);
  const std::vector<KeySpace> all{
      {.salt = "a"},
      {.adapter = "bc", .salt = "a"},
      {.adapter = "c", .salt = "ab"},
      {.adapter = "abc"},
      {.salt = "abc"},
      {.model = "abc"},
      {.revision = "abc"},
      {.element = "abc"},
      {.rope = "abc"},
  };
  run_in(cache_->key_space({.adapter = "bc", .salt = "a"}).value(), tokens);
  std::uint32_t found = 0;
  for (const KeySpace& key_space : all) found += matched(cache_->key_space(key_space).value(), tokens);
  EXPECT_EQ(found, 8U);  // only the one it was stored under
}

TEST_F(CacheResidency, AFullTableForgetsTheKeySpaceUsedLeastRecently) {
  CacheConfig config = test_config(4, 16);
  config.key_space_count_max = 3;
  open(std::move(config));  // one
  const KeySpaceId old = cache_->key_space({.salt = "old"}).value();
  const KeySpaceId used = cache_->key_space({.salt = "used"}).value();
  run_in(old, token_range(1, 8));
  run_in(used, token_range(1, 8));
  run_in(space_, token_range(1, 8));
  EXPECT_TRUE(cache_->key_space({.salt = "new"}).has_value());
  expect_error(cache_->lookup(old, {.tokens = token_range(1, 8)}), ErrorCode::InvalidArgument, "was dropped");
  EXPECT_EQ(matched(used, token_range(1, 8)), 8U);
  EXPECT_EQ(stats().sealed_pages, 4U);
  EXPECT_EQ(stats().evicted_page_total, 2U);
}

TEST_F(CacheResidency, KeySpacesWithLiveSequencesAreNotForgotten) {
  CacheConfig config = test_config(4, 16);
  config.key_space_count_max = 1;
  open(std::move(config));
  const Sequence sequence = begin_admitted(token_range(1, 8));
  expect_error(cache_->key_space({.salt = "new"}), ErrorCode::Unavailable, "all 1 key spaces have live sequences");
}

TEST_F(CacheResidency, AKeptPrefixSurvivesUntilItsTimeIsOver) {
  open(4, 4);
  ASSERT_TRUE(cache_->advance(1000));
  run_request(token_range(1, 8));
  const Kept kept = cache_->keep(space_, {.tokens = token_range(1, 8)}, 500).value();
  EXPECT_EQ(kept.token_count, 8U);
  EXPECT_EQ(stats().kept_pages, 2U);
  run_request(token_range(50, 8));
  run_request(token_range(90, 8));
  EXPECT_EQ(matched(space_, token_range(1, 8)), 8U);
  ASSERT_TRUE(cache_->advance(1499));
  EXPECT_EQ(stats().kept_pages, 2U);
  ASSERT_TRUE(cache_->advance(1500));
  EXPECT_EQ(stats().kept_pages, 0U);
  run_request(token_range(200, 16));
  EXPECT_EQ(matched(space_, token_range(1, 8)), 0U);
  expect_error(cache_->unkeep(kept.id), ErrorCode::InvalidArgument, "not kept");
}

TEST_F(CacheResidency, UnkeepEndsAKeepAtOnce) {
  open(4, 4);
  run_request(token_range(1, 8));
  const Kept kept = cache_->keep(space_, {.tokens = token_range(1, 8)}, 500).value();
  ASSERT_TRUE(cache_->unkeep(kept.id));
  EXPECT_EQ(stats().pinned_pages, 0U);
  expect_error(cache_->unkeep(kept.id), ErrorCode::InvalidArgument, "not kept");
}

TEST_F(CacheResidency, KeepStaysWithinItsBudget) {
  CacheConfig config = test_config(4, 8);
  config.keep_pages_max = 3;
  config.keep_count_max = 2;
  open(std::move(config));
  run_request(token_range(1, 8));
  run_request(token_range(50, 8));
  ASSERT_TRUE(cache_->keep(space_, {.tokens = token_range(1, 8)}, 500));
  expect_error(cache_->keep(space_, {.tokens = token_range(50, 8)}, 500), ErrorCode::Unavailable,
               "exceeds keep_pages_max = 3");
  ASSERT_TRUE(cache_->keep(space_, {.tokens = token_range(50, 4)}, 500));
  expect_error(cache_->keep(space_, {.tokens = token_range(90, 4)}, 500), ErrorCode::Unavailable,
               "all 2 kept prefixes are in use");
  expect_error(cache_->keep(space_, {.tokens = token_range(1, 4)}, 0), ErrorCode::InvalidArgument, "ttl_ns is 0");
}

TEST_F(CacheResidency, WithoutATimeAPrefixIsKeptUntilUnkeep) {
  open(4, 4);
  run_request(token_range(1, 8));
  const Kept kept = cache_->keep(space_, {.tokens = token_range(1, 8)}).value();
  ASSERT_TRUE(cache_->advance(INT64_MAX - 1));
  run_request(token_range(50, 8));
  EXPECT_EQ(matched(space_, token_range(1, 8)), 8U);
  ASSERT_TRUE(cache_->unkeep(kept.id));
}

TEST_F(CacheResidency, TimeDoesNotGoBack) {
  open(4, 4);
  ASSERT_TRUE(cache_->advance(10));
  expect_error(cache_->advance(9), ErrorCode::InvalidArgument, "time goes back");
}

TEST_F(CacheResidency, DropForgetsOneKeySpaceAndNoOther) {
  open(4, 16);
  const KeySpace doomed{.model = "m", .revision = "1"};
  const KeySpaceId space = cache_->key_space(doomed).value();
  run_in(space, token_range(1, 8));
  run_request(token_range(1, 8));
  ASSERT_TRUE(cache_->keep(space, {.tokens = token_range(1, 8)}, 500));
  EXPECT_EQ(cache_->drop(space).value(), 2U);
  EXPECT_EQ(stats().kept_pages, 0U);
  EXPECT_EQ(stats().dropped_page_total, 2U);
  expect_error(cache_->lookup(space, {.tokens = token_range(1, 8)}), ErrorCode::InvalidArgument, "was dropped");
  EXPECT_EQ(matched(cache_->key_space(doomed).value(), token_range(1, 8)), 0U);
  EXPECT_EQ(matched(space_, token_range(1, 8)), 8U);
}

TEST_F(CacheResidency, SequencesOfADroppedKeySpaceFinishAndLeaveNothing) {
  open(4, 16);
  std::vector<TokenId> tokens = token_range(1, 8);
  run_request(tokens);
  Sequence running = begin_admitted(tokens);
  const Sequence waiting = cache_->begin(space_, {.tokens = tokens}).value();
  EXPECT_EQ(cache_->drop(space_).value(), 0U);  // both pages are in use
  EXPECT_EQ(cache_->admit(waiting)->matched_tokens, 0U);
  step(running, tokens, {9});
  const KeySpaceId again = cache_->key_space({.model = "test"}).value();
  EXPECT_EQ(matched(again, tokens), 0U);
  ASSERT_TRUE(cache_->end(running));
  EXPECT_EQ(stats().free_pages, 16U);
  EXPECT_EQ(stats().key_space_count, 2U);  // the dropped one still has the waiting sequence
}

TEST_F(CacheResidency, ADroppedKeySpaceIsGoneWithItsLastSequence) {
  open(4, 16);
  {
    std::vector<TokenId> tokens = token_range(1, 8);
    Sequence running = begin_admitted(tokens);
    step(running, tokens);
    ASSERT_TRUE(cache_->drop(space_).has_value());
  }
  ASSERT_TRUE(cache_->advance(1));
  EXPECT_EQ(stats().key_space_count, 0U);
  EXPECT_EQ(stats().free_pages, 16U);
}

TEST_F(CacheResidency, ResetGivesUpEverythingWhenNothingIsLive) {
  open(4, 16);
  run_request(token_range(1, 8));
  ASSERT_TRUE(cache_->keep(space_, {.tokens = token_range(1, 8)}, 500));
  {
    const Sequence sequence = begin_admitted(token_range(1, 8));
    expect_error(cache_->reset(), ErrorCode::Unavailable, "live sequences: 1");
  }
  ASSERT_TRUE(cache_->reset());
  EXPECT_EQ(stats().free_pages, 16U);
  EXPECT_EQ(stats().run_count, 0U);
  EXPECT_EQ(run_request(token_range(1, 8)), 0U);
}

TEST_F(CacheResidency, ResizeKeepsWhatIsCachedAndItsBytes) {
  for (const ByteLayout bytes : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    CacheConfig config = test_config(4, 8);
    config.device.byte_layout = bytes;
    config.context_tokens_max = 16;
    open(std::move(config));
    run_request(token_range(1, 16));
    run_request(token_range(100, 16));
    ASSERT_TRUE(cache_->resize(64));
    EXPECT_EQ(stats().free_pages, 56U);
    for (TokenId first = 200; first < 1500; first += 100) run_request(token_range(first, 16));
    EXPECT_EQ(run_request(token_range(1, 16)), 16U);  // checks the bytes
    EXPECT_EQ(run_request(token_range(100, 16)), 16U);
    expect_error(cache_->resize(8), ErrorCode::Unavailable, "cannot shrink the pool from 64 to 8 pages");
    ASSERT_TRUE(cache_->reset());
    ASSERT_TRUE(cache_->resize(8));
    EXPECT_EQ(run_request(token_range(1, 16)), 0U);
    expect_error(cache_->resize(3), ErrorCode::InvalidArgument, "cannot hold one sequence");
  }
}

TEST_F(CacheResidency, ARefusedResizeLeavesTheMemoryWhereItWas) {
  CacheConfig config = test_config(1, 1000);
  config.context_tokens_max = 16;
  open(std::move(config));
  run_request(token_range(1, 16));
  const std::byte* const memory = cache_->device_memory();
  expect_error(cache_->resize(1U << 31U), ErrorCode::InvalidArgument, "prefix tree");
  EXPECT_EQ(cache_->device_memory(), memory);
  EXPECT_EQ(stats().page_count, 1000U);
  EXPECT_EQ(run_request(token_range(1, 16)), 16U);  // reads and writes there
}

TEST_F(CacheResidency, ReclaimGivesUpIdlePagesSoThatThePoolCanShrink) {
  CacheConfig config = test_config(4, 16);
  config.context_tokens_max = 16;
  open(std::move(config));
  for (const TokenId first : {1, 100, 200, 300}) run_request(token_range(first, 16));
  expect_error(cache_->resize(8), ErrorCode::Unavailable, "cannot shrink");
  EXPECT_EQ(cache_->reclaim(100).value(), 16U);
  EXPECT_EQ(stats().evicted_page_total, 16U);
  ASSERT_TRUE(cache_->resize(8));
  EXPECT_EQ(run_request(token_range(1, 16)), 0U);
}

TEST_F(CacheResidency, APoolShrinksByAsManyIdlePagesAsWereReclaimed) {
  for (const ByteLayout bytes : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    CacheConfig config = test_config(4, 100);
    config.device.byte_layout = bytes;
    config.context_tokens_max = 16;
    open(std::move(config));
    for (TokenId i = 0; i < 25; ++i) run_request(token_range(100 * i, 16));
    for (TokenId i = 0; i < 25; i += 2) EXPECT_EQ(run_request(token_range(100 * i, 16)), 16U);
    EXPECT_EQ(cache_->reclaim(50).value(), 50U);
    ASSERT_TRUE(cache_->resize(50));
    EXPECT_EQ(stats().page_count, 50U);
    EXPECT_EQ(stats().sealed_pages, 50U) << "nothing else is given up";
    expect_error(cache_->resize(49), ErrorCode::Unavailable, "cannot shrink the pool from 50 to 49 pages");
    ASSERT_TRUE(cache_->check_invariants());
    EXPECT_EQ(cache_->reclaim(2).value(), 2U);
    ASSERT_TRUE(cache_->resize(48));
    for (TokenId i = 2; i < 25; i += 2) {
      EXPECT_EQ(run_request(token_range(100 * i, 16)), 16U) << i;  // checks the bytes
    }
    ASSERT_TRUE(cache_->check_invariants());
  }
}

TEST_F(CacheResidency, AResizeThatAPageInUseForbidsMovesNothing) {
  CacheConfig config = test_config(4, 16);
  config.context_tokens_max = 16;
  open(std::move(config));
  run_request(token_range(1, 16));
  run_request(token_range(100, 16));
  run_request(token_range(200, 16));
  const Sequence user = begin_admitted(token_range(200, 16));  // pages 9 to 12
  EXPECT_EQ(cache_->reclaim(4).value(), 4U);
  std::vector<PageId> before;
  std::vector<PageId> after;
  const auto list = [&](std::vector<PageId>& pages) {
    return cache_->visit_runs(
        [&](const RunView& run) { pages.insert(pages.end(), run.pages.begin(), run.pages.end()); });
  };
  ASSERT_TRUE(list(before));
  expect_error(cache_->resize(8), ErrorCode::Unavailable,
               "cannot shrink the pool from 16 to 8 pages: page 9 is sealed");
  ASSERT_TRUE(list(after));
  EXPECT_EQ(before, after);
}

TEST_F(CacheResidency, APolicyHearsHowManyPagesThereAreAlsoAfterARefusedResize) {
  class Listens final : public Policy {
   public:
    explicit Listens(std::uint32_t& page_count_max) : page_count_max_(page_count_max) {}
    Status reserve(const PolicyLimits& limits) override {
      page_count_max_ = limits.page_count_max;
      return {};
    }
    void on_split(RunId, RunId, std::uint32_t) override { ++idle_; }
    void on_pin(RunId) override { --idle_; }
    void on_idle(RunId) override { ++idle_; }
    void on_remove(RunId, const PageChange&) override {}
    std::optional<RunId> next_victim() override { return std::nullopt; }
    [[nodiscard]] std::uint32_t idle_run_count() const override { return idle_; }

   private:
    std::uint32_t& page_count_max_;
    std::uint32_t idle_ = 0;
  };
  std::uint32_t told = 0;
  CacheConfig config = test_config(4, 16);
  config.context_tokens_max = 4;
  config.custom_policy = std::make_unique<Listens>(told);
  open(std::move(config));
  EXPECT_EQ(told, 16U);
  ASSERT_TRUE(cache_->resize(8).has_value());
  EXPECT_EQ(told, 8U);
  for (TokenId i = 0; i < 6; ++i) run_request(token_range(100 * i, 4));
  expect_error(cache_->resize(3), ErrorCode::Unavailable, "");
  EXPECT_EQ(told, 8U);
  ASSERT_TRUE(cache_->resize(32).has_value());
  EXPECT_EQ(told, 32U);
}

TEST_F(CacheResidency, APolicyIsNeverToldOfFewerRunsThanThereAre) {
  class Watched final : public Policy {
   public:
    explicit Watched(std::vector<std::uint32_t>& reserved) : reserved_(reserved) {}
    Status reserve(const PolicyLimits& limits) override {
      reserved_.push_back(limits.run_count_max);
      return {};
    }
    void on_split(RunId, RunId, std::uint32_t) override {}
    void on_pin(RunId) override { --idle_; }
    void on_idle(RunId) override { ++idle_; }
    void on_remove(RunId, const PageChange&) override {}
    std::optional<RunId> next_victim() override { return std::nullopt; }
    [[nodiscard]] std::uint32_t idle_run_count() const override { return idle_; }

   private:
    std::vector<std::uint32_t>& reserved_;
    std::uint32_t idle_ = 0;
  };
  std::vector<std::uint32_t> reserved;
  CacheConfig config = test_config(4, 16);
  config.context_tokens_max = 4;
  config.custom_policy = std::make_unique<Watched>(reserved);
  open(std::move(config));
  ASSERT_TRUE(cache_->resize(8));
  ASSERT_TRUE(cache_->resize(32));
  EXPECT_TRUE(std::ranges::is_sorted(reserved));
  EXPECT_GE(reserved.size(), 2U);
}

TEST_F(CacheResidency, AdoptedMemoryIsUsedAndNotResized) {
  CacheConfig config = test_config(4, 8);
  std::vector<std::byte> memory(std::size_t{9} * 4 * kTestTokenBytes);
  config.device.memory = DeviceMemory::Adopted;
  config.device.adopted_memory = memory.data();
  open(std::move(config));
  EXPECT_EQ(cache_->device_memory(), memory.data());
  EXPECT_EQ(cache_->geometry().pool_bytes(), memory.size());
  expect_error(cache_->resize(16), ErrorCode::Unsupported, "the engine's");
}

TEST_F(CacheResidency, TheNullPageIsNeverWritten) {
  open(4, 4);
  for (TokenId first = 0; first < 2000; first += 100) run_request(token_range(first, 16));
  for (std::size_t i = 0; i < std::size_t{4} * kTestTokenBytes; ++i)
    ASSERT_EQ(cache_->device_memory()[i], std::byte{0});
}

TEST_F(CacheResidency, EveryChangeOfResidencyIsRecorded) {
  CacheConfig config = test_config(4, 4);
  config.residency_record_count_max = 5;
  open(std::move(config));
  run_request(token_range(1, 8));     // sealed [0, 2)
  run_request(token_range(100, 12));  // evicts one page of the first, sealed [0, 3)
  std::vector<ResidencyRecord> buffer(16);
  std::span<ResidencyRecord> records = cache_->read_residency(0, buffer).value();
  ASSERT_EQ(records.size(), 3U);
  EXPECT_EQ(records[0].cause, ResidencyCause::Sealed);
  EXPECT_EQ(records[0].page_count, 2U);
  EXPECT_EQ(records[1].cause, ResidencyCause::Evicted);
  EXPECT_EQ(records[1].first_page, 1U);
  EXPECT_EQ(records[1].page_count, 1U);
  EXPECT_EQ(records[1].run, records[0].run);
  EXPECT_EQ(records[2].cause, ResidencyCause::Sealed);
  ASSERT_TRUE(cache_->drop(space_).has_value());  // two runs
  records = cache_->read_residency(3, buffer).value();
  ASSERT_EQ(records.size(), 2U);
  EXPECT_EQ(records[0].cause, ResidencyCause::Dropped);
  EXPECT_EQ(records[1].number, 4U);

  space_ = cache_->key_space({.model = "again"}).value();
  run_request(token_range(1, 8));
  records = cache_->read_residency(0, buffer).value();  // the first record is lost, and that shows
  ASSERT_EQ(records.size(), 5U);
  EXPECT_EQ(records[0].number, 1U);
}

TEST_F(CacheResidency, RunsAreVisitedParentsFirstWithTheirKeySpace) {
  open(4, 16);
  std::vector<TokenId> fork = token_range(1, 12);
  run_request(fork);
  fork[9] = 99;
  run_request(fork);
  const KeySpaceId other = cache_->key_space({.salt = "other"}).value();
  run_in(other, token_range(1, 4));
  std::vector<std::string> lines;
  ASSERT_TRUE(cache_->visit_runs([&](const RunView& run) {
    lines.push_back(std::string(std::size_t{run.depth} * 2, ' ') + (run.key_space == other ? "other " : "test ") +
                    std::to_string(run.pages.size()) + " pages, " + std::to_string(run.child_count) + " children");
  }));
  EXPECT_EQ(lines, (std::vector<std::string>{"test 0 pages, 1 children", "  test 2 pages, 2 children",
                                             "    test 1 pages, 0 children", "    test 1 pages, 0 children",
                                             "other 0 pages, 1 children", "  other 1 pages, 0 children"}));
}

TEST_F(CacheResidency, ACustomPolicyDecidesWhatGoes) {
  // Most recently idle first: a run that has just been used is the first to go.
  class Newest final : public Policy {
   public:
    Status reserve(const PolicyLimits&) override { return {}; }
    void on_split(RunId suffix, RunId prefix, std::uint32_t) override {
      const auto found = std::ranges::find(idle_, suffix);
      if (found != idle_.end()) idle_.insert(found, prefix);
    }
    void on_pin(RunId run) override { std::erase(idle_, run); }
    void on_idle(RunId run) override { idle_.push_back(run); }
    void on_remove(RunId run, const PageChange& /*lost*/) override { std::erase(idle_, run); }
    std::optional<RunId> next_victim() override { return idle_.empty() ? std::nullopt : std::optional(idle_.back()); }
    [[nodiscard]] std::uint32_t idle_run_count() const override { return static_cast<std::uint32_t>(idle_.size()); }

   private:
    std::vector<RunId> idle_;
  };
  CacheConfig config = test_config(4, 4);
  config.custom_policy = std::make_unique<Newest>();
  open(std::move(config));
  run_request(token_range(1, 8));
  run_request(token_range(50, 8));
  run_request(token_range(90, 8));
  EXPECT_EQ(matched(space_, token_range(1, 8)), 8U);
  EXPECT_EQ(matched(space_, token_range(50, 8)), 0U);
}

TEST_F(CacheResidency, WholeRunsMayGiveUpMoreThanNeeded) {
  CacheConfig config = test_config(4, 4);
  config.whole_runs = true;
  open(std::move(config));
  run_request(token_range(1, 16));
  run_request(token_range(100, 4));
  EXPECT_EQ(stats().evicted_page_total, 4U);
  EXPECT_EQ(stats().free_pages, 3U);
}

}  // namespace
}  // namespace quire
