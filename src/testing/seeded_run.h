// SPDX-License-Identifier: Apache-2.0
//
// Random runs of a model test that one line repeats. A test has a model: the real type, a naive twin of it,
// and an interpreter that applies one operation to both and says what differs. Operations are plain numbers,
// and every list of them is valid, because the interpreter takes each number modulo what there is to choose
// from. So the same interpreter serves a loop over seeds and a generator that shrinks what fails.
//
//   class Model { public: std::string apply(const Op& op); };     // "" or what differs
//
//   EXPECT_EQ(run_seeds({.test = "bin/pool_model_test --gtest_filter=…", .seed_count = 100, .step_count =
//   5000},
//                       [](Random& random) { return Model(random.below(9)); }), "");
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/hash.h"

namespace quire::testing {

/// Numbers that depend on the seed alone. single-threaded.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(quire::mix64(seed)) {}

  std::uint64_t next() { return quire::mix64(state_++); }
  /// In [0, bound).
  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>((next() >> 32U) % bound); }

 private:
  std::uint64_t state_;
};

/// What to do, and what to draw its arguments from. Smaller numbers should mean simpler operations.
struct Op {
  std::uint32_t kind = 0;
  std::array<std::uint32_t, 4> draws{};
};

[[nodiscard]] inline Op draw_op(Random& random) {
  Op op{.kind = static_cast<std::uint32_t>(random.next() >> 40U)};
  for (std::uint32_t& draw : op.draws) draw = static_cast<std::uint32_t>(random.next() >> 40U);
  return op;
}

[[nodiscard]] inline std::string to_string(const Op& op) {
  std::string text = std::to_string(op.kind);
  for (const std::uint32_t draw : op.draws) text += ' ' + std::to_string(draw);
  return text;
}

struct SeedPlan {
  std::string test;  ///< the command that runs this test alone
  std::uint64_t first_seed = 1;
  std::uint64_t seed_count = 0;
  std::uint64_t step_count = 0;  ///< of each seed
};

/// Seeds first_seed, first_seed + 1, …, each with a new model; the first failure as text that begins with the
/// line that repeats it. QUIRE_SEED and QUIRE_STEPS in the environment ask for one seed and for another
/// number of steps.
template <typename MakeModel>
[[nodiscard]] std::string run_seeds(const SeedPlan& plan, MakeModel make_model) {
  const char* const seed_text = std::getenv("QUIRE_SEED");
  const char* const steps_text = std::getenv("QUIRE_STEPS");
  const std::uint64_t first_seed = seed_text != nullptr ? std::strtoull(seed_text, nullptr, 10) : plan.first_seed;
  const std::uint64_t seed_count = seed_text != nullptr ? 1 : plan.seed_count;
  const std::uint64_t step_count = steps_text != nullptr ? std::strtoull(steps_text, nullptr, 10) : plan.step_count;
  for (std::uint64_t seed = first_seed; seed < first_seed + seed_count; ++seed) {
    Random random(seed);
    auto model = make_model(random);
    for (std::uint64_t step = 1; step <= step_count; ++step) {
      const Op op = draw_op(random);
      const std::string difference = model.apply(op);
      if (difference.empty()) continue;
      return "\nQUIRE_SEED=" + std::to_string(seed) + " QUIRE_STEPS=" + std::to_string(step) + " " + plan.test +
             "\nstep " + std::to_string(step) + ", operation " + to_string(op) + ": " + difference + "\n";
    }
  }
  return "";
}

}  // namespace quire::testing
