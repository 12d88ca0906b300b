// SPDX-License-Identifier: Apache-2.0
//
// HandMadePlans: the hybrid engine on plans that a test makes itself: a few sequences that each have their state slot
// and, unless a test hands out others, their pages from the beginning. It says in the plainest way what a plan has to
// say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/plan.h"
#include "quire/types.h"
#include "tools/tiny_engine/hybrid_engine.h"
#include "tools/tiny_engine/hybrid_model.h"

namespace quire::testing {

/// Arrays one behind the other in one piece of memory, as a cache would stage them.
class StagingBuffer {
 public:
  template <typename Element>
  std::span<const Element> add(const std::vector<Element>& values);
  [[nodiscard]] std::span<const std::byte> bytes() const;

 private:
  struct alignas(16) Block {
    std::byte bytes[16];
  };
  // Not to be moved while plans point into it.
  std::vector<Block> blocks_ = std::vector<Block>(1U << 14U);
  std::size_t used_ = 0;
};

/// Tokens of one sequence to compute from a position on: at most what rewind_tokens allows behind the last one.
struct HandEntry {
  std::uint32_t sequence = 0;
  std::uint32_t position = 0;
  std::vector<TokenId> tokens;
};

/// A page of one group in a sequence's table; 0 is the null page.
struct HandPage {
  std::int32_t page = 0;
  bool is_shared = false;  ///< read, and not written
};

/// What is done to state slots before a step, and behind it.
struct HandStates {
  std::vector<StateCopy> before;
  std::vector<StateCopy> after;
};

class HandMadePlans {
 public:
  static constexpr std::uint32_t kSequenceCount = 3;
  static constexpr std::uint32_t kColumns = 24;
  static constexpr std::uint32_t kPageCount = 2 + (kSequenceCount * kColumns);  ///< of each pool

  HandMadePlans(const tiny_engine::HybridShape& shape, std::uint32_t page_tokens);

  /// The logits of all queries, or what the engine says is wrong.
  [[nodiscard]] std::string step(const std::vector<HandEntry>& entries, std::vector<double>& logits,
                                 const HandStates& states = {});
  [[nodiscard]] HandPage& page_at(std::uint32_t group_index, std::uint32_t sequence, std::uint32_t column) {
    return tables_[group_index][(sequence * kColumns) + column];
  }
  /// The oracle's logits of the last token of a text.
  [[nodiscard]] std::vector<double> expected(std::span<const TokenId> text) const;

  [[nodiscard]] const tiny_engine::HybridWeights& weights() const { return weights_; }
  /// Every double that the group has stored for a sequence of so many tokens and needs to go on; for tests to change.
  [[nodiscard]] std::vector<double*> live_numbers(std::uint32_t group_index, std::uint32_t sequence,
                                                  std::uint32_t token_count);

 private:
  [[nodiscard]] GroupPlan plan_group(StagingBuffer& staging, std::uint32_t group_index,
                                     const std::vector<HandEntry>& entries);
  [[nodiscard]] std::int64_t append_slot(std::uint32_t group_index, const HandEntry& entry, std::uint32_t index);

  tiny_engine::HybridWeights weights_;
  tiny_engine::HybridGroups groups_;
  std::uint32_t page_tokens_;
  std::vector<std::vector<HandPage>> tables_;  // [groups][kSequenceCount * kColumns]
  std::vector<std::vector<std::byte>> pools_;
  std::vector<std::byte> state_;
  std::unique_ptr<tiny_engine::HybridEngine> engine_;
  std::vector<CascadeLevel> levels_;  // of the plan being made, one for each group
};

}  // namespace quire::testing
