// SPDX-License-Identifier: Apache-2.0
//
// For the cache's tests: a small cache on host memory, and an engine that computes real bytes. The eight bytes of
// each token are a hash of everything before it, so any page served to the wrong prefix shows.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "engine_copies.h"
#include "quire/cache.h"

namespace quire {

inline constexpr std::uint32_t kTestTokenBytes = 8;

/// As a CacheConfig, with the layout of these tests.
[[nodiscard]] inline CacheConfig test_config(std::uint32_t page_tokens, std::uint32_t page_count) {
  return {.layout = ModelLayout::opaque(kTestTokenBytes).value(),
          .page = {.page_tokens = page_tokens},
          .device = {.page_count = page_count},
          .sequence_count_max = 16};
}

[[nodiscard]] inline std::unique_ptr<Cache> open_cache(CacheConfig config) {
  Result<std::unique_ptr<Cache>> cache = Cache::open(std::move(config));
  EXPECT_TRUE(cache.has_value()) << cache.error().message;
  return std::move(*cache);
}

/// A host tier that only sequences use, for what they save: nothing else is copied there.
[[nodiscard]] inline HostConfig host_for_saving(std::uint32_t page_count) {
  return {.page_count = page_count, .write_policy = WritePolicy::Selective, .write_hits_min = UINT32_MAX};
}

/// Waits until the cache's own mover has nothing left to do.
inline void drain(Cache& cache, TimeNs now = 0) {
  while (cache.stats()->transfers_in_flight > 0) {
    const Result<std::span<const Completion>> completions = cache.poll();
    ASSERT_TRUE(completions.has_value()) << completions.error().message;
    if (completions->empty()) std::this_thread::yield();
    ASSERT_TRUE(cache.apply(*completions, now));
  }
}

/// 0, 1, 2, … from `first`, `count` of them.
[[nodiscard]] inline std::vector<TokenId> token_range(TokenId first, std::size_t count) {
  std::vector<TokenId> tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = first + static_cast<TokenId>(i);
  return tokens;
}

/// Computes the tokens of a step's entries into the cache's host memory, after checking what it reads.
class ByteEngine {
 public:
  explicit ByteEngine(Cache& cache) : cache_(cache) {}

  /// The bytes of the token at `position`, which depend on all before it, on the extra keys so far, and on `salt`.
  [[nodiscard]] static std::uint64_t value_at(std::uint64_t salt, std::span<const TokenId> tokens,
                                              std::span<const ExtraKey> extra_keys, std::size_t position) {
    std::uint64_t value = mix64(salt);
    for (std::size_t i = 0; i <= position; ++i) value = next_value(value, tokens[i], extra_keys, i);
    return value;
  }

  /// Runs one entry: every token before it must be right, every token of it is written. `tokens` is the whole sequence.
  void run(const AttentionPlanEntry& entry, std::uint64_t salt, std::span<const TokenId> tokens,
           std::span<const ExtraKey> extra_keys = {}) {
    std::uint64_t value = mix64(salt);
    ASSERT_LE(entry.position + entry.token_count, tokens.size());
    for (std::uint32_t i = 0; i < entry.context_tokens; ++i) {
      value = next_value(value, tokens[i], extra_keys, i);
      const bool is_computed = i >= entry.position;
      if (is_computed && entry.append_slots[i - entry.position] != kNoSlot) {
        std::memcpy(at(entry.append_slots[i - entry.position]), &value, sizeof(value));
      }
      const std::uint32_t page_tokens = cache_.geometry().page().options().page_tokens;
      std::uint64_t found = 0;
      const std::int64_t slot = (std::int64_t{entry.pages[i / page_tokens].value} * page_tokens) + (i % page_tokens);
      std::memcpy(&found, at(slot), sizeof(found));
      ASSERT_EQ(found, value) << "wrong bytes at position " << i << " of " << entry.context_tokens;
    }
  }

 private:
  [[nodiscard]] static std::uint64_t next_value(std::uint64_t value, TokenId token,
                                                std::span<const ExtraKey> extra_keys, std::size_t position) {
    value = mix64(value + static_cast<std::uint64_t>(token));
    for (const ExtraKey& key : extra_keys) {
      if (key.begin <= position && position < key.end) value = hash_bytes(&key, sizeof(key), value);
    }
    return value;
  }
  [[nodiscard]] std::byte* at(std::int64_t slot) const { return cache_.device_memory() + (slot * kTestTokenBytes); }

  Cache& cache_;
};

class CacheTest : public ::testing::Test {
 protected:
  void open(CacheConfig config) {
    cache_ = open_cache(std::move(config));
    engine_ = std::make_unique<ByteEngine>(*cache_);
    space_ = cache_->key_space({.model = "test"}).value();
  }
  void open(std::uint32_t page_tokens, std::uint32_t page_count) { open(test_config(page_tokens, page_count)); }

  void TearDown() override {
    if (cache_) expect_invariants();
  }
  void expect_invariants() const {
    const Status status = cache_->check_invariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
  [[nodiscard]] Stats stats() const { return cache_->stats().value(); }

  [[nodiscard]] Sequence begin_admitted(std::span<const TokenId> tokens, const SequenceOptions& options = {}) {
    Sequence sequence = cache_->begin(space_, {.tokens = tokens}, options).value();
    EXPECT_TRUE(cache_->admit(sequence).has_value());
    return sequence;
  }
  /// preempt(Save), with everything moved.
  [[nodiscard]] Status save(const Sequence& sequence) {
    const Status status = cache_->preempt(sequence, Preempt::Save);
    drain(*cache_);
    return status;
  }
  /// resume(), with everything moved: what was loading is matched.
  [[nodiscard]] Result<Admission> resume(const Sequence& sequence) {
    Result<Admission> admission = cache_->resume(sequence);
    drain(*cache_);
    if (admission) admission->matched_tokens += std::exchange(admission->loading_tokens, 0);
    return admission;
  }
  /// Plans and finishes one step of one sequence that computes all pending tokens; `tokens` is the sequence so far.
  void step(const Sequence& sequence, std::vector<TokenId>& tokens, std::vector<TokenId> new_tokens = {}) {
    const StepEntry entry{&sequence, cache_->view(sequence)->pending_tokens};
    const PlanOutcome outcome = cache_->plan_step({&entry, 1}).value();
    ASSERT_TRUE(outcome.step.has_value()) << "short of pages";
    ASSERT_TRUE(testing::apply_copies(*cache_, *outcome.step).has_value());
    engine_->run(outcome.step->plan.entries[0], 0, tokens);
    const StepResult result{.tokens = new_tokens};
    const Status status = cache_->finish_step(*outcome.step, {&result, 1});
    ASSERT_TRUE(status.has_value()) << status.error().message;
    tokens.insert(tokens.end(), new_tokens.begin(), new_tokens.end());
    expect_invariants();
  }
  /// A whole request; gives the tokens it did not have to compute.
  std::uint32_t run_request(std::vector<TokenId> tokens, const SequenceOptions& options = {}) {
    Sequence sequence = cache_->begin(space_, {.tokens = tokens}, options).value();
    const Admission admission = cache_->admit(sequence).value();
    step(sequence, tokens);
    EXPECT_TRUE(cache_->end(sequence).has_value());
    return admission.matched_tokens;
  }

  std::unique_ptr<Cache> cache_;
  std::unique_ptr<ByteEngine> engine_;
  KeySpaceId space_;
};

/// EXPECT that a Result or Status failed with this code and a message that contains this text.
template <typename ResultType>
void expect_error(const ResultType& result, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(result.has_value()) << "expected an error that says: " << text;
  EXPECT_EQ(result.error().code, code) << result.error().message;
  EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
}

}  // namespace quire
