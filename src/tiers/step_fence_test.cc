// SPDX-License-Identifier: Apache-2.0
#include "tiers/step_fence.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

// The same with a set of the steps that are not over.
class FenceModel {
 public:
  std::string apply(const testing::Op& op) {
    if (op.kind % 4 == 0) {
      EXPECT_EQ(fence_.next_number(), planned_ + 1);
      fence_.plan_step();
      running_.insert(++planned_);
    } else if (op.kind % 4 == 1) {
      has_moves_ = op.draws[0] % 2 == 0;
      fence_.set_moves(has_moves_);
    } else if (!running_.empty()) {  // in any order
      const std::uint64_t step = *std::next(running_.begin(), op.draws[0] % running_.size());
      fence_.end_step(step);
      running_.erase(step);
    }
    const bool is_quiet = running_.empty() && !has_moves_;
    if (fence_.is_quiet() != is_quiet || fence_.has_steps() == running_.empty()) return "who is running";
    if (!is_quiet && fence_.last_user() != (has_moves_ ? planned_ + 1 : *running_.rbegin())) return "the last user";
    const std::uint64_t of_moves = has_moves_ ? planned_ + 1 : UINT64_MAX;
    if (fence_.first_user() != (running_.empty() ? of_moves : *running_.begin())) return "the first user";
    for (std::uint64_t step = 0; step <= planned_ + 2; ++step) {
      const bool has_begun = step <= planned_;
      const bool is_over = has_begun && (running_.empty() || *running_.begin() > step);
      if (fence_.is_over(step) != (step == 0 || is_quiet || is_over)) return "step " + std::to_string(step);
    }
    return "";
  }

 private:
  StepFence fence_;
  std::set<std::uint64_t> running_;
  std::uint64_t planned_ = 0;
  bool has_moves_ = false;
};

TEST(StepFenceTest, KnowsWhichStepsMayStillUseAPage) {
  EXPECT_EQ(testing::run_seeds({.test = "bin/step_fence_test", .seed_count = 40, .step_count = 100},
                               [](testing::Random&) { return FenceModel(); }),
            "");
}

TEST(StepFenceDeathTest, AStepThatIsNotInFlightDoesNotEnd) {
  StepFence fence;
  fence.plan_step();
  fence.end_step(1);
  EXPECT_DEATH(fence.end_step(1), "a step ends that is not in flight");
  EXPECT_DEATH(fence.end_step(2), "a step ends that is not in flight");
}

}  // namespace
}  // namespace quire
