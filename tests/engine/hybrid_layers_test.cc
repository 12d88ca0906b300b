// SPDX-License-Identifier: Apache-2.0
//
// The layers of the hybrid engine, each kind alone and all together, on plans made by hand: the logits are the oracle's
// however a text is cut into steps, and depend on every number that is stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hand_made_plans.h"
#include "seeded_text.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

using tiny_engine::HybridLayer;
using tiny_engine::HybridShape;
using tiny_engine::LayerKind;

struct Case {
  std::string name;
  std::vector<HybridLayer> layers;
};

std::vector<Case> all_cases() {
  const HybridLayer full{.kind = LayerKind::Full};
  const HybridLayer window{.kind = LayerKind::Window, .window_tokens = 6};
  const HybridLayer ring{.kind = LayerKind::Ring, .window_tokens = 5};
  const HybridLayer compressed{.kind = LayerKind::Compressed, .ratio = 4};
  const HybridLayer overlapped{.kind = LayerKind::Overlapped, .ratio = 2};
  const HybridLayer recurrent{.kind = LayerKind::Recurrent};
  return {{"Full", {full}},
          {"Window", {window, window}},
          {"NarrowWindow", {{.kind = LayerKind::Window, .window_tokens = 1}, full}},
          {"Ring", {ring}},
          {"Compressed", {full, compressed}},
          {"Overlapped", {overlapped, overlapped}},
          {"Recurrent", {recurrent, recurrent}},
          {"All", {recurrent, window, overlapped, full, ring, compressed, recurrent}}};
}

class HybridLayers : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr std::uint32_t kPageTokens = 4;
  static constexpr std::uint32_t kRewindTokens = 3;

  [[nodiscard]] static HybridShape shape() {
    return {.layers = GetParam().layers, .kv_heads = 2, .rewind_tokens = kRewindTokens};
  }
  [[nodiscard]] static std::vector<TokenId> text(std::uint64_t seed, std::size_t count) {
    std::vector<TokenId> tokens = seeded_text(seed, count);
    for (TokenId& token : tokens) token %= static_cast<TokenId>(HybridShape{}.vocabulary);
    return tokens;
  }
  /// The last row differs from the oracle by so much of its largest logit.
  [[nodiscard]] static double difference(const HandMadePlans& plans, std::span<const TokenId> text,
                                         std::span<const double> row) {
    const std::vector<double> right = plans.expected(text);
    double largest = 0.0;
    double off = 0.0;
    for (std::size_t i = 0; i < right.size(); ++i) {
      largest = std::max(largest, std::abs(right[i]));
      off = std::max(off, std::abs(right[i] - row[i]));
    }
    return off / largest;
  }
};

// Two sequences that share steps, in chunks of all sizes, with drafts that are taken back.
TEST_P(HybridLayers, LogitsAreTheOraclesHoweverATextIsCut) {
  Random random(7);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    HandMadePlans plans(shape(), kPageTokens);
    std::vector<std::vector<TokenId>> texts = {text(seed, 40), text(seed + 100, 33)};
    std::vector<std::uint32_t> done(texts.size(), 0);
    while (done[0] < texts[0].size() || done[1] < texts[1].size()) {
      std::vector<HandEntry> entries;
      std::vector<std::uint32_t> known;
      for (std::uint32_t i = 0; i < texts.size(); ++i) {
        const auto left = static_cast<std::uint32_t>(texts[i].size()) - done[i];
        if (left == 0 || random.below(4) == 0) continue;
        const std::uint32_t count = 1 + random.below(std::min(left, random.below(2) == 0 ? 20U : 3U));
        HandEntry entry{.sequence = i, .position = done[i], .tokens = {}};
        entry.tokens.assign(texts[i].begin() + done[i], texts[i].begin() + done[i] + count);
        for (std::uint32_t j = random.below(kRewindTokens + 1); j > 0; --j) {
          entry.tokens.push_back(static_cast<TokenId>(random.below(HybridShape{}.vocabulary)));  // rejected
        }
        known.push_back(count);
        entries.push_back(std::move(entry));
      }
      if (entries.empty()) continue;
      std::vector<double> logits;
      ASSERT_EQ(plans.step(entries, logits), "");
      std::size_t first = 0;
      for (std::size_t i = 0; i < entries.size(); ++i) {
        std::uint32_t& computed = done[entries[i].sequence];
        computed += known[i];
        const std::size_t vocabulary = HybridShape{}.vocabulary;
        const auto row = std::span(logits).subspan((first + known[i] - 1) * vocabulary, vocabulary);
        const std::vector<TokenId>& all = texts[entries[i].sequence];
        ASSERT_LT(difference(plans, std::span(all).first(computed), row), 1e-10) << "at " << computed;
        first += entries[i].tokens.size();
      }
    }
  }
}

TEST_P(HybridLayers, LogitsDependOnEveryNumberStored) {
  constexpr std::uint32_t kComputed = 15;
  const std::vector<TokenId> all = text(3, kComputed + kRewindTokens);
  const std::size_t group_count = tiny_engine::hybrid_groups(shape()).groups.size();
  HandMadePlans plans(shape(), kPageTokens);
  std::vector<double> logits;
  ASSERT_EQ(plans.step({{.sequence = 1, .position = 0, .tokens = {all.begin(), all.begin() + kComputed}}}, logits), "");
  HandEntry rest{.sequence = 1, .position = kComputed, .tokens = {all.begin() + kComputed, all.end()}};
  std::vector<double> right;
  ASSERT_EQ(plans.step({rest}, right), "");
  for (std::uint32_t group = 0; group < group_count; ++group) {
    const std::vector<double*> numbers = plans.live_numbers(group, 1, kComputed);
    // At the end of an entry a compressor without overlap has no rows to keep; 15 is no such place.
    ASSERT_FALSE(numbers.empty() && !(GetParam().name == "NarrowWindow")) << group;
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const double before = std::exchange(*numbers[i], *numbers[i] + 0.5);
      // The same tokens again, as after a rewind.
      ASSERT_EQ(plans.step({rest}, logits), "");
      *numbers[i] = before;
      double off = 0.0;
      for (std::size_t j = 0; j < right.size(); ++j) off = std::max(off, std::abs(right[j] - logits[j]));
      EXPECT_GT(off, 1e-7) << "group " << group << ", number " << i << " of " << numbers.size();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, HybridLayers, ::testing::ValuesIn(all_cases()),
                         [](const ::testing::TestParamInfo<Case>& at) { return at.param.name; });

}  // namespace
}  // namespace quire::testing
