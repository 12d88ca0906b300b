// SPDX-License-Identifier: Apache-2.0
#include "transfer/ranked_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "testing/seeded_run.h"

namespace quire {
namespace {

constexpr std::uint32_t kTransferCount = 4;
constexpr std::uint32_t kPathPages = 6;

/// A shard that answers what the test says, when it says so.
class HandShard final : public LowerTier {
 public:
  void submit(const NameLog& /*log*/) override { ++log_count; }
  void submit(const LowerPlan& plan) override { plans[plan.id.index] = plan; }
  void cancel(TransferId id) override { cancelled.push_back(id); }
  [[nodiscard]] std::span<Completion> poll(std::span<Completion> out) override {
    const std::size_t count = std::min(out.size(), answers.size());
    std::copy_n(answers.begin(), count, out.begin());
    answers.erase(answers.begin(), answers.begin() + static_cast<std::ptrdiff_t>(count));
    return out.first(count);
  }
  [[nodiscard]] bool keeps(std::uint32_t pool) const override { return pool == 0; }
  [[nodiscard]] bool is_failed(std::uint32_t pool) const override { return pool == failed_pool; }
  [[nodiscard]] std::string last_error() const override { return error; }
  [[nodiscard]] std::uint64_t written_bytes(std::uint32_t pool) const override { return 100 + pool; }

  std::map<std::uint32_t, LowerPlan> plans;  // by index, those that were not answered
  std::vector<TransferId> cancelled;
  std::vector<Completion> answers;
  std::uint32_t log_count = 0;
  std::uint32_t failed_pool = UINT32_MAX;
  std::string error;
};

class RankedTierTest : public ::testing::Test {
 protected:
  void open(std::size_t shard_count) {
    shards_ = std::vector<HandShard>(shard_count);
    std::vector<LowerTier*> pointers;
    for (HandShard& shard : shards_) pointers.push_back(&shard);
    tier_ = RankedTier::open({.transfer_count_max = kTransferCount, .path_pages_max = kPathPages}, pointers).value();
  }
  [[nodiscard]] std::vector<Completion> poll() {
    std::array<Completion, kTransferCount> room;
    const std::span<Completion> given = tier_->poll(room);
    return {given.begin(), given.end()};
  }

  std::vector<HandShard> shards_;
  std::unique_ptr<RankedTier> tier_;
};

TEST_F(RankedTierTest, APlanIsOverWhenAllShardsHaveAnswered) {
  open(2);
  tier_->submit(LowerPlan{.id = {1, 7}, .kind = TransferKind::LoadFromBelow});
  EXPECT_TRUE(poll().empty());
  shards_[1].answers = {{.id = {1, 7}, .good_pages = 3, .moved_bytes = 10, .busy_ns = 2}};
  EXPECT_TRUE(poll().empty());
  shards_[0].answers = {{.id = {1, 7}, .good_pages = 3, .moved_bytes = 10, .busy_ns = 5}};
  const std::vector<Completion> over = poll();
  ASSERT_EQ(over.size(), 1U);
  EXPECT_EQ(over[0].id, (TransferId{1, 7}));
  EXPECT_EQ(over[0].kind, TransferKind::LoadFromBelow);
  EXPECT_EQ(over[0].outcome, TransferOutcome::Ok);
  EXPECT_EQ(over[0].good_pages, 3U);
  EXPECT_EQ(over[0].moved_bytes, 20U);
  EXPECT_EQ(over[0].busy_ns, 7);
  EXPECT_TRUE(poll().empty());
}

TEST_F(RankedTierTest, APageCountsWhenEveryShardHasIt) {
  open(3);
  std::array<std::uint64_t, 4> anchored{9, 9, 9, 9};
  tier_->submit(LowerPlan{.id = {0, 1}, .kind = TransferKind::FindBelow, .anchored = anchored});
  constexpr std::array<std::array<std::uint64_t, 4>, 3> kBits = {{{3, 1, 2, 1}, {3, 3, 1, 1}, {1, 1, 3, 0}}};
  for (std::size_t i = 0; i < 3; ++i) {
    std::ranges::copy(kBits[i], shards_[i].plans[0].anchored.begin());
    shards_[i].answers = {{.id = {0, 1}, .good_pages = static_cast<std::uint32_t>(4 - i)}};
  }
  EXPECT_EQ(anchored[0], 9U);  // shards have rows of their own
  const std::vector<Completion> over = poll();
  ASSERT_EQ(over.size(), 1U);
  EXPECT_EQ(over[0].good_pages, 2U);
  EXPECT_EQ(anchored, (std::array<std::uint64_t, 4>{1, 1, 0, 0}));
}

TEST_F(RankedTierTest, AShardThatWritesNoBitsHasNone) {
  open(2);
  for (const std::uint64_t bits : {7U, 0U}) {
    std::array<std::uint64_t, 1> anchored{};
    tier_->submit(LowerPlan{.id = {0, 1}, .kind = TransferKind::FindBelow, .anchored = anchored});
    for (HandShard& shard : shards_) {
      if (bits != 0) shard.plans[0].anchored[0] = bits;
      shard.answers = {{.id = {0, 1}}};
    }
    ASSERT_EQ(poll().size(), 1U);
    EXPECT_EQ(anchored[0], bits);
  }
}

TEST_F(RankedTierTest, AnAnswerThatComesTwiceOrOfAnotherPlanChangesNothing) {
  open(2);
  tier_->submit(LowerPlan{.id = {2, 5}, .kind = TransferKind::StoreBelow});
  const Completion answer{.id = {2, 5}, .good_pages = 1, .moved_bytes = 8};
  const Completion stale{.id = {2, 4}, .outcome = TransferOutcome::Failed};
  const Completion unknown{.id = {kTransferCount, 0}, .outcome = TransferOutcome::Failed};
  shards_[0].answers = {answer, answer, stale, unknown};
  EXPECT_TRUE(poll().empty());
  shards_[1].answers = {stale, answer, answer};
  const std::vector<Completion> over = poll();
  ASSERT_EQ(over.size(), 1U);
  EXPECT_EQ(over[0].outcome, TransferOutcome::Ok);
  EXPECT_EQ(over[0].moved_bytes, 16U);
  shards_[0].answers = {answer};
  EXPECT_TRUE(poll().empty());
}

TEST_F(RankedTierTest, DirectBytesAreThoseOfOneShardAfterTheOther) {
  open(2);
  std::array<std::byte, 8> source{};
  std::array<std::byte, 6> target{};
  tier_->submit(LowerPlan{.id = {0, 1}, .kind = TransferKind::PutBelow, .source = source});
  tier_->submit(LowerPlan{.id = {1, 1}, .kind = TransferKind::GetFromBelow, .target = target});
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(shards_[i].plans[0].source.data(), source.data() + (4 * i));
    EXPECT_EQ(shards_[i].plans[0].source.size(), 4U);
    EXPECT_EQ(shards_[i].plans[1].target.data(), target.data() + (3 * i));
    EXPECT_EQ(shards_[i].plans[1].target.size(), 3U);
  }
}

TEST_F(RankedTierTest, CallsReachAllShardsAndOneThatFailsFailsAll) {
  open(2);
  tier_->submit(NameLog{});
  tier_->submit(LowerPlan{.id = {3, 2}});
  tier_->cancel({3, 2});
  for (const HandShard& shard : shards_) {
    EXPECT_EQ(shard.log_count, 1U);
    EXPECT_EQ(shard.cancelled, (std::vector<TransferId>{{3, 2}}));
  }
  EXPECT_TRUE(tier_->keeps(0));
  EXPECT_FALSE(tier_->keeps(1));
  EXPECT_EQ(tier_->written_bytes(1), 202U);
  EXPECT_FALSE(tier_->is_failed(0));
  EXPECT_EQ(tier_->last_error(), "");
  shards_[1].failed_pool = 0;
  shards_[1].error = "no more";
  EXPECT_TRUE(tier_->is_failed(0));
  EXPECT_FALSE(tier_->is_failed(1));
  EXPECT_EQ(tier_->last_error(), "no more");
}

/// The naive twin keeps every answer of every shard, and looks at all of them once the last one is there.
class RankedTierModel {
 public:
  explicit RankedTierModel(testing::Random& random) : shards_(1 + random.below(4)) {
    std::vector<LowerTier*> pointers;
    for (HandShard& shard : shards_) pointers.push_back(&shard);
    tier_ = RankedTier::open({.transfer_count_max = kTransferCount, .path_pages_max = kPathPages}, pointers).value();
    plans_.resize(kTransferCount);
  }

  std::string apply(const testing::Op& op) {
    const std::uint32_t index = op.draws[0] % kTransferCount;
    switch (op.kind % 4) {
      case 0:
        submit(index, op);
        return "";
      case 1:
        return compare(op.draws[0] % 3);
      default:
        answer(op.draws[1] % shards_.size(), index, op);
        return "";
    }
  }

 private:
  struct Answer {
    Completion completion;
    std::vector<std::uint64_t> anchored;
  };
  struct Plan {
    bool is_live = false;
    TransferId id;
    std::vector<std::uint64_t> anchored;
    std::map<std::size_t, Answer> answers;  // by shard
  };

  void submit(std::uint32_t index, const testing::Op& op) {
    Plan& plan = plans_[index];
    if (plan.is_live) return;
    plan = {.is_live = true, .id = {index, ++generation_}, .anchored = {}, .answers = {}};
    plan.anchored.assign(op.draws[1] % (kPathPages + 1), 77);
    tier_->submit(LowerPlan{.id = plan.id, .kind = TransferKind::FindBelow, .anchored = plan.anchored});
  }
  void answer(std::size_t shard, std::uint32_t index, const testing::Op& op) {
    Plan& plan = plans_[index];
    if (!plan.is_live) return;
    testing::Random random(op.draws[2]);
    if (plan.answers.contains(shard)) {  // given twice, with other contents
      shards_[shard].answers.push_back({.id = plan.id, .outcome = TransferOutcome::Failed, .moved_bytes = 99});
      return;
    }
    Answer& made = plan.answers[shard];
    const auto outcome = static_cast<TransferOutcome>(random.below(kTransferOutcomeCount));
    const bool has_failed = outcome == TransferOutcome::Failed;
    made.completion = {.id = plan.id,
                       .kind = TransferKind::FindBelow,
                       .outcome = outcome,
                       .fault = has_failed ? static_cast<TransferFault>(1 + random.below(4)) : TransferFault::None,
                       .good_pages = random.below(4),
                       .moved_bytes = random.below(1'000),
                       .busy_ns = random.below(1'000)};
    for (std::uint64_t& bits : shards_[shard].plans[index].anchored) {
      bits = random.below(8);
      made.anchored.push_back(bits);
    }
    shards_[shard].answers.push_back(made.completion);
  }
  [[nodiscard]] static Completion whole(const Plan& plan) {
    constexpr std::array kWorstFirst = {TransferOutcome::Failed, TransferOutcome::TimedOut, TransferOutcome::Cancelled,
                                        TransferOutcome::Empty, TransferOutcome::Ok};
    Completion whole{.id = plan.id, .good_pages = UINT32_MAX};
    for (const auto& [shard, each] : plan.answers) {
      whole.good_pages = std::min(whole.good_pages, each.completion.good_pages);
      whole.moved_bytes += each.completion.moved_bytes;
      whole.busy_ns = std::max(whole.busy_ns, each.completion.busy_ns);  // of a question
    }
    for (const TransferOutcome outcome : kWorstFirst) {
      const Completion* first = nullptr;
      for (const auto& [shard, each] : plan.answers) {
        if (each.completion.outcome != outcome) continue;
        if (first == nullptr || each.completion.good_pages < first->good_pages) first = &each.completion;
      }
      if (first == nullptr) continue;
      whole.outcome = outcome;
      whole.fault = first->fault;
      break;
    }
    return whole;
  }
  std::string compare(std::uint32_t room_count) {
    std::array<Completion, kTransferCount> room;
    const std::span<Completion> given = tier_->poll(std::span(room).first(room_count + 1));
    for (const Completion& completion : given) {
      Plan& plan = plans_[completion.id.index];
      if (!plan.is_live || plan.id != completion.id) return "a plan that is over is answered again";
      if (plan.answers.size() < shards_.size()) return "a plan is over before all shards have answered";
      const Completion wanted = whole(plan);
      if (completion.outcome != wanted.outcome || completion.fault != wanted.fault) return "another outcome";
      if (completion.good_pages != wanted.good_pages) return "other good pages";
      if (completion.moved_bytes != wanted.moved_bytes || completion.busy_ns != wanted.busy_ns)
        return "other bytes or times";
      for (std::size_t page = 0; page < plan.anchored.size(); ++page) {
        std::uint64_t bits = 7;
        for (const auto& [shard, each] : plan.answers) bits &= each.anchored[page];
        if (plan.anchored[page] != bits) return "other bits";
      }
      plan.is_live = false;
    }
    const auto is_over = [&](const Plan& plan) { return plan.is_live && plan.answers.size() == shards_.size(); };
    if (given.size() <= room_count && std::ranges::any_of(plans_, is_over)) return "a plan that is over is not told";
    return "";
  }

  std::vector<HandShard> shards_;
  std::unique_ptr<RankedTier> tier_;
  std::vector<Plan> plans_;
  std::uint32_t generation_ = 0;
};

TEST(RankedTierModel, AnswersInAnyOrderAreTheNaiveTwins) {
  EXPECT_EQ(
      testing::run_seeds(
          {.test = "bin/ranked_tier_test --gtest_filter=RankedTierModel.*", .seed_count = 300, .step_count = 1'000},
          [](testing::Random& random) { return RankedTierModel(random); }),
      "");
}

}  // namespace
}  // namespace quire
