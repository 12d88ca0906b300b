// SPDX-License-Identifier: Apache-2.0
//
// Three workloads that any prefix tree in any language can replay to the token: everything is drawn from one
// counter-based hash in 64-bit unsigned arithmetic, so there is no random state to carry and no order of
// drawing.
//
//   ChatWorkload         W1: many chats of several turns behind a few system prompts, turns interleaved
//   LongContextWorkload  W2: a few very long sequences
//   EvictionWorkload     W3: groups of short sequences that share a prefix, in shuffled order
//
// Defaults are the published sizes; tests use smaller ones. All are immutable once constructed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quire/types.h"

namespace quire::testing {

inline constexpr std::uint64_t kWorkloadSeed = 20250215;
inline constexpr std::uint64_t kWorkloadVocabulary = 128000;

/// The finaliser of splitmix64, with its increment.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

/// H(a, b, c): `a` says what is drawn, `b` and `c` number the draws.
[[nodiscard]] constexpr std::uint64_t workload_hash(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  return mix64(mix64(mix64(kWorkloadSeed ^ a) + b) + c);
}

/// T(kind, id, position): a token of text number `id` of one kind.
[[nodiscard]] constexpr TokenId workload_token(std::uint64_t kind, std::uint64_t id, std::uint64_t position) {
  return static_cast<TokenId>(workload_hash(kind, id, position) % kWorkloadVocabulary);
}

struct ChatConfig {
  std::uint32_t session_count = 2000;
  std::uint32_t turn_count = 8;
  std::uint32_t prompt_count = 20;
  std::uint32_t prompt_tokens = 1000;
  std::uint32_t turn_tokens_min = 200;
  std::uint32_t turn_tokens_max = 400;
};

/// W1. All sessions are active from the start; each request is the next turn of one of them and carries every
/// token of its session so far. Tokens are made by the constructor, so that walking requests() costs nothing
/// to a clock.
class ChatWorkload {
 public:
  struct Request {
    std::uint32_t session = 0;
    std::uint32_t turn = 0;
    std::span<const TokenId> tokens;  ///< valid while the workload lives, also after it is moved
  };

  explicit ChatWorkload(const ChatConfig& config = {});
  ChatWorkload(ChatWorkload&&) = default;
  ChatWorkload& operator=(ChatWorkload&&) = default;
  ChatWorkload(const ChatWorkload&) = delete;  // The requests of a copy would point into the original.
  ChatWorkload& operator=(const ChatWorkload&) = delete;

  [[nodiscard]] const ChatConfig& config() const { return config_; }
  /// In the order they arrive.
  [[nodiscard]] std::span<const Request> requests() const { return requests_; }
  /// The whole text of one session: its last request.
  [[nodiscard]] std::span<const TokenId> session_tokens(std::uint32_t session) const;

  /// Sum over all requests.
  [[nodiscard]] std::uint64_t requested_token_count() const { return requested_token_count_; }
  /// Each system prompt in use once, and each session's own text. A tree without eviction may hold a few
  /// tokens less: with the defaults, two texts behind one prompt happen to start with the same token.
  [[nodiscard]] std::uint64_t distinct_token_count() const { return distinct_token_count_; }
  /// 30 % of the distinct tokens, in whole pages of up to 64 tokens.
  [[nodiscard]] std::uint64_t pool_token_count() const { return distinct_token_count_ * 3 / 10 / 64 * 64; }

 private:
  ChatConfig config_;
  std::vector<std::vector<TokenId>> sessions_;
  std::vector<Request> requests_;
  std::uint64_t requested_token_count_ = 0;
  std::uint64_t distinct_token_count_ = 0;
};

struct LongContextConfig {
  std::uint32_t sequence_count = 8;
  std::uint32_t sequence_tokens = 131072;
};

/// W2. Sequences are inserted cumulatively: the first chunk, then the first two, and so on; then matched
/// whole. Trees that do not merge hold one node per chunk.
class LongContextWorkload {
 public:
  /// 1, 16 and 512 chunks per sequence at the default length.
  static constexpr std::array<std::uint32_t, 3> kChunkTokens = {131072, 8192, 256};

  explicit LongContextWorkload(const LongContextConfig& config = {});

  [[nodiscard]] std::size_t sequence_count() const { return sequences_.size(); }
  [[nodiscard]] std::span<const TokenId> sequence(std::size_t index) const { return sequences_.at(index); }

 private:
  std::vector<std::vector<TokenId>> sequences_;
};

struct EvictionConfig {
  std::uint32_t group_count = 2000;
  std::uint32_t leaves_per_group = 100;
  std::uint32_t prefix_tokens = 64;  ///< shared by the leaves of a group
  std::uint32_t own_tokens = 64;
};

/// W3. Leaf `n` belongs to group `n / leaves_per_group`. Tokens are made on request: those of a million
/// leaves would outweigh the tree under test.
class EvictionWorkload {
 public:
  /// What one eviction asks for.
  static constexpr std::uint32_t kEvictTokens = 256;

  explicit EvictionWorkload(const EvictionConfig& config = {});

  [[nodiscard]] const EvictionConfig& config() const { return config_; }
  /// Every leaf once, in the order of insertion.
  [[nodiscard]] std::span<const std::uint32_t> leaf_order() const { return leaf_order_; }
  [[nodiscard]] std::uint32_t tokens_per_leaf() const { return config_.prefix_tokens + config_.own_tokens; }
  /// What a tree holds after all leaves are inserted: each group's prefix once, and each leaf's own part.
  [[nodiscard]] std::uint64_t distinct_token_count() const;

  /// Prefix and own part of `leaf`; `target` has tokens_per_leaf() elements.
  void write_tokens(std::uint32_t leaf, std::span<TokenId> target) const;
  [[nodiscard]] std::vector<TokenId> tokens_of(std::uint32_t leaf) const;

 private:
  EvictionConfig config_;
  std::vector<std::uint32_t> leaf_order_;
};

}  // namespace quire::testing
