// SPDX-License-Identifier: Apache-2.0
//
// LookaheadKeys: what a path is looked up by where rows depend on tokens behind them, as those of draft layers do. A
// page is good only if so many tokens behind it agree too, so page i stands in the tree under the tokens that end
// there, k further on; the path's first k tokens, which no page has, go along with its first page as an extra key:
//
//     page_tokens 4, k 1       tokens   a b c d e f g h i
//                              pages   [a b c d][e f g h]
//                              keys       [b c d e][f g h i]   and "a" with the first
//
// So the tree compares exactly what it should, and nothing in it knows. With k = 0 a key is what it is made of.
//
// single-threaded: a key is good until the next one is made.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/mutants.h"
#include "base/sha256.h"
#include "prefix/prefix_tree.h"
#include "quire/types.h"

namespace quire {

class LookaheadKeys {
 public:
  LookaheadKeys() = default;
  LookaheadKeys(std::uint32_t lookahead_tokens, std::uint32_t extra_key_count_max)
      : lookahead_tokens_(lookahead_tokens) {
    if (lookahead_tokens > 0) {
      keys_.reserve(std::size_t{extra_key_count_max} + 2);
      head_.reserve(lookahead_tokens + 1);
    }
  }

  [[nodiscard]] std::uint32_t lookahead_tokens() const { return lookahead_tokens_; }
  /// Rows of which all is known that they depend on.
  [[nodiscard]] std::uint32_t known_rows(std::uint32_t token_count) const {
    return token_count - std::min(token_count, lookahead_tokens_);
  }

  /// The key of a path's first rows: no more of them than are known.
  [[nodiscard]] PrefixTree::Key make(std::span<const TokenId> tokens, std::span<const ExtraKey> extra_keys,
                                     std::uint32_t row_count) {
    const auto token_count = static_cast<std::uint32_t>(tokens.size());
    if (lookahead_tokens_ == 0) return {tokens.first(std::min(row_count, token_count)), extra_keys};
    const std::uint32_t rows = std::min(row_count, known_rows(token_count));
    keys_.clear();
    if (rows == 0) return {};
    if (is_mutated(Mutant::KeysWithoutLookahead)) return {tokens.first(rows), {}};
    // The first key position is spoken for: what lies there goes into the same item.
    keys_.push_back({.begin = 0, .end = 1, .item = hash_head(tokens, extra_keys)});
    for (const ExtraKey& key : extra_keys) {
      if (key.end <= lookahead_tokens_ + 1) continue;
      const std::uint32_t begin = key.begin > lookahead_tokens_ ? key.begin - lookahead_tokens_ : 1;
      keys_.push_back({.begin = std::max(begin, 1U), .end = key.end - lookahead_tokens_, .item = key.item});
    }
    return {tokens.subspan(lookahead_tokens_, rows), keys_};
  }

 private:
  struct HeadToken {
    std::array<std::uint8_t, 32> item;
    std::int64_t token;
  };

  // The first k + 1 tokens with what they depend on.
  [[nodiscard]] std::array<std::uint8_t, 32> hash_head(std::span<const TokenId> tokens,
                                                       std::span<const ExtraKey> extra_keys) {
    head_.clear();
    for (std::uint32_t i = 0; i <= lookahead_tokens_; ++i) {
      HeadToken& head = head_.emplace_back(HeadToken{.item = {}, .token = tokens[i]});
      for (const ExtraKey& key : extra_keys) {
        if (key.begin <= i && i < key.end) head.item = key.item;
      }
    }
    const std::array<std::byte, 32> hash = sha256(std::as_bytes(std::span(head_)));
    std::array<std::uint8_t, 32> item{};
    std::ranges::transform(hash, item.begin(), [](std::byte byte) { return std::to_integer<std::uint8_t>(byte); });
    return item;
  }

  std::uint32_t lookahead_tokens_ = 0;
  std::vector<ExtraKey> keys_;
  std::vector<HeadToken> head_;
};

}  // namespace quire
