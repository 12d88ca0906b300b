// SPDX-License-Identifier: Apache-2.0
//
// OracleTexts: all texts of a test, as one branching text for the oracle. Tests intern each token as they compute it
// and note the logits that the engine gave; at the end the oracle computes every distinct token once, and all notes are
// compared. What the oracle costs so depends on the texts, not on how often steps come back to them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "tools/tiny_engine/hybrid_oracle.h"
#include "tools/tiny_engine/oracle.h"

namespace quire::testing {

class OracleTexts {
 public:
  static constexpr std::int32_t kBegin = -1;

  /// The token after `previous`, computed under a window (0: none).
  std::int32_t intern(std::int32_t previous, std::int32_t token, std::uint32_t visible_tokens,
                      std::uint32_t sink_tokens) {
    const std::uint32_t position = previous == kBegin ? 0 : positions_[static_cast<std::size_t>(previous)] + 1;
    // Before it is full a window hides nothing, so such tokens are those of texts without one.
    if (position < visible_tokens) visible_tokens = 0;
    if (visible_tokens == 0) sink_tokens = 0;
    const auto [at, is_new] =
        index_.try_emplace({previous, token, visible_tokens, sink_tokens}, static_cast<std::int32_t>(tokens_.size()));
    if (is_new) {
      tokens_.push_back(
          {.token = token, .previous = previous, .visible_tokens = visible_tokens, .sink_tokens = sink_tokens});
      positions_.push_back(position);
    }
    return at->second;
  }

  void note(std::int32_t token, std::span<const double> logits, std::uint64_t when) {
    notes_.push_back({.token = token, .when = when, .logits = {logits.begin(), logits.end()}});
  }

  struct Mismatch {
    std::uint64_t when = 0;
    std::string text;
  };
  /// The first note that is further from the oracle than `tolerance` times its largest logit.
  template <typename Weights>
  [[nodiscard]] std::optional<Mismatch> compare(const Weights& weights, double tolerance) const {
    const std::vector<std::vector<double>> expected = logits(weights);
    for (const Note& note : notes_) {
      const std::vector<double>& right = expected[static_cast<std::size_t>(note.token)];
      double largest = 0.0;
      double difference = 0.0;
      for (std::size_t i = 0; i < right.size(); ++i) {
        largest = std::max(largest, std::abs(right[i]));
        difference = std::max(difference, std::abs(right[i] - note.logits[i]));
      }
      if (difference <= tolerance * largest) continue;  // false for NaN too
      const tiny_engine::OracleToken& token = tokens_[static_cast<std::size_t>(note.token)];
      return Mismatch{.when = note.when,
                      .text = "logits at position " + std::to_string(positions_[static_cast<std::size_t>(note.token)]) +
                              " (token " + std::to_string(token.token) + ", window " +
                              std::to_string(token.visible_tokens) + " with sink " + std::to_string(token.sink_tokens) +
                              ") are off by " + std::to_string(difference / largest) + " of the largest"};
    }
    return std::nullopt;
  }
  /// The same tokens have the same logits, bit for bit, in the same order.
  [[nodiscard]] bool has_same_notes(const OracleTexts& other) const {
    return std::ranges::equal(notes_, other.notes_, [](const Note& left, const Note& right) {
      return left.token == right.token &&
             std::ranges::equal(std::as_bytes(std::span(left.logits)), std::as_bytes(std::span(right.logits)));
    });
  }
  /// The oracle's logits of every interned token.
  template <typename Weights>
  [[nodiscard]] std::vector<std::vector<double>> logits(const Weights& weights) const {
    return tiny_engine::oracle_logits(weights, std::span<const tiny_engine::OracleToken>(tokens_));
  }
  [[nodiscard]] std::size_t note_count() const { return notes_.size(); }

 private:
  struct Note {
    std::int32_t token = 0;
    std::uint64_t when = 0;
    std::vector<double> logits;
  };

  std::vector<tiny_engine::OracleToken> tokens_;
  std::vector<std::uint32_t> positions_;
  std::map<std::tuple<std::int32_t, std::int32_t, std::uint32_t, std::uint32_t>, std::int32_t> index_;
  std::vector<Note> notes_;
};

}  // namespace quire::testing
