// SPDX-License-Identifier: Apache-2.0
//
// PlanScript: the plans of a cache in which sequences grow, one is forked, some end and one begins like another, all of
// one shape: what a captured graph is replayed on. The bytes of the pages are the test's own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "quire/cache.h"

namespace quire::testing {

class PlanScript {
 public:
  static constexpr std::uint32_t kStepCount = 16;
  static constexpr std::uint32_t kPageTokens = 4;
  static constexpr std::uint32_t kPageCount = 40;
  static constexpr std::uint32_t kContextTokens = 64;
  static constexpr std::uint32_t kColumns = kContextTokens / kPageTokens;
  static constexpr std::uint32_t kSequences = 6;
  static constexpr PlanShape kShape{.entries = 5, .tokens = 16, .columns = kColumns};

  explicit PlanScript(PageTables page_tables)
      : cache_(Cache::open({.layout = layout(),
                            .page = {.page_tokens = kPageTokens},
                            .device = {.page_count = kPageCount, .memory = DeviceMemory::None},
                            .sequence_count_max = kSequences,
                            .context_tokens_max = kContextTokens,
                            .step_tokens_max = kShape.tokens,
                            .plan = {.page_tables = page_tables}})
                   .value()),
        space_(cache_->key_space({.model = "script"}).value()) {}

  /// Two layers of K and V, of which no two rows have the same place.
  [[nodiscard]] static ModelLayout layout() {
    return ModelLayout::create(
               "script", {{.name = "full",
                           .layers = layer_range(0, 2),
                           .components = {{.name = "k", .heads = 2, .dim = 24}, {.name = "v", .heads = 2, .dim = 24}}}})
        .value();
  }
  /// Of a pool with pages for all ids of the plans.
  [[nodiscard]] static PoolGeometry geometry() {
    return PoolGeometry::create(PageGeometry::create(layout().groups()[0], {.page_tokens = kPageTokens}).value(),
                                {.page_count = kPageCount + 1})
        .value();
  }

  /// The plan of the next step, valid until the next call. The step before it is finished.
  const AttentionPlan& next() {
    finish();
    change_sequences();
    std::vector<StepEntry> entries;
    for (const Live& live : lives_) entries.push_back({.sequence = &live.sequence});
    step_ = cache_->plan_step(entries, kShape).value().step.value();
    ++step_count_;
    copy_count_ += step_->plan.copies.size();
    return step_->plan;
  }
  [[nodiscard]] std::size_t copy_count() const { return copy_count_; }

 private:
  struct Live {
    Sequence sequence;
    std::vector<TokenId> tokens;
  };

  static void require(const Status& status) {
    if (!status) std::abort();
  }

  void finish() {
    if (!step_) return;
    std::vector<TokenId> tokens;
    for (Live& live : lives_) {
      tokens.push_back(next_token_++);
      live.tokens.push_back(tokens.back());
    }
    std::vector<StepResult> results;
    for (const TokenId& token : tokens) results.push_back({.tokens = {&token, 1}});
    require(cache_->finish_step(*step_, results));
    step_.reset();
  }

  void change_sequences() {
    switch (step_count_) {
      case 0:
        begin({1, 2, 3, 4, 5});
        begin({11, 12, 13, 14, 15, 16, 17, 18, 19});
        begin({21, 22});
        break;
      case 3: {
        Live& source = lives_[0];
        lives_.push_back({.sequence = cache_->fork(source.sequence, std::uint32_t(source.tokens.size())).value(),
                          .tokens = source.tokens});
        break;
      }
      case 6:
        end(1);
        break;
      case 8:
        begin({11, 12, 13, 14, 15, 16, 17, 18, 29, 30, 31});
        break;
      case 13:
        end(0);
        break;
      default:
        break;
    }
  }
  void begin(std::vector<TokenId> tokens) {
    Sequence sequence = cache_->begin(space_, {.tokens = tokens}).value();
    (void)cache_->admit(sequence).value();
    lives_.push_back({.sequence = std::move(sequence), .tokens = std::move(tokens)});
  }
  void end(std::size_t index) {
    require(cache_->end(lives_[index].sequence));
    lives_.erase(lives_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::vector<Live> lives_;
  std::optional<Step> step_;
  std::uint32_t step_count_ = 0;
  std::size_t copy_count_ = 0;
  TokenId next_token_ = 1'000;
};

}  // namespace quire::testing
