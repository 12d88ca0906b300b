// SPDX-License-Identifier: Apache-2.0
#include "testing/workloads.h"

#include <numeric>
#include <utility>

#include "base/check.h"

namespace quire::testing {
namespace {

// The first argument of H and T: what is drawn. The numbers are part of the published definition.
constexpr std::uint64_t kSystemPrompt = 1;
constexpr std::uint64_t kPromptOfSession = 2;
constexpr std::uint64_t kTurnLength = 3;
constexpr std::uint64_t kSessionText = 4;
constexpr std::uint64_t kNextSession = 5;
constexpr std::uint64_t kLongText = 6;
constexpr std::uint64_t kGroupPrefix = 7;
constexpr std::uint64_t kLeafText = 8;
constexpr std::uint64_t kLeafShuffle = 9;

struct Text {
  std::uint64_t kind = 0;
  std::uint64_t id = 0;
};

void write_text(Text text, std::span<TokenId> target) {
  for (std::size_t i = 0; i < target.size(); ++i) target[i] = workload_token(text.kind, text.id, i);
}

/// `index` in [0, bound) by the definition's modulo.
std::uint32_t below(std::uint64_t hash, std::size_t bound) {
  return static_cast<std::uint32_t>(hash % bound);
}

}  // namespace

ChatWorkload::ChatWorkload(const ChatConfig& config) : config_(config) {
  QUIRE_CHECK(config.prompt_count > 0, "every session has a system prompt");
  QUIRE_CHECK(config.turn_tokens_min > 0, "a turn adds at least one token");
  QUIRE_CHECK(config.turn_tokens_min <= config.turn_tokens_max, "turn length is drawn from a range");
  const std::uint32_t turn_length_count = config.turn_tokens_max - config.turn_tokens_min + 1;

  std::vector<std::vector<TokenId>> prompts(config.prompt_count);
  // The end of turn t of session s, at s * turn_count + t.
  std::vector<std::size_t> turn_ends;
  turn_ends.reserve(std::size_t{config.session_count} * config.turn_count);
  sessions_.reserve(config.session_count);
  for (std::uint32_t session = 0; session < config.session_count; ++session) {
    const std::uint32_t prompt_index = below(workload_hash(kPromptOfSession, session, 0), config.prompt_count);
    std::vector<TokenId>& prompt = prompts[prompt_index];
    if (prompt.empty()) {
      prompt.resize(config.prompt_tokens);
      write_text({.kind = kSystemPrompt, .id = prompt_index}, prompt);
      distinct_token_count_ += prompt.size();
    }
    std::size_t end = config.prompt_tokens;
    for (std::uint32_t turn = 0; turn < config.turn_count; ++turn) {
      end += config.turn_tokens_min + below(workload_hash(kTurnLength, session, turn), turn_length_count);
      turn_ends.push_back(end);
    }
    std::vector<TokenId>& tokens = sessions_.emplace_back(prompt);
    tokens.resize(end);
    write_text({.kind = kSessionText, .id = session}, std::span(tokens).subspan(config.prompt_tokens));
    distinct_token_count_ += end - config.prompt_tokens;
  }

  if (config.turn_count == 0) return;
  std::vector<std::uint32_t> active(config.session_count);
  std::iota(active.begin(), active.end(), 0U);
  std::vector<std::uint32_t> next_turn(config.session_count, 0);
  requests_.reserve(turn_ends.size());
  for (std::uint64_t step = 0; !active.empty(); ++step) {
    const std::uint32_t index = below(workload_hash(kNextSession, step, 0), active.size());
    const std::uint32_t session = active[index];
    const std::uint32_t turn = next_turn[session]++;
    const std::size_t end = turn_ends[std::size_t{session} * config.turn_count + turn];
    requests_.push_back({.session = session, .turn = turn, .tokens = std::span(sessions_[session]).first(end)});
    requested_token_count_ += end;
    if (next_turn[session] == config.turn_count) {
      active[index] = active.back();
      active.pop_back();
    }
  }
}

std::span<const TokenId> ChatWorkload::session_tokens(std::uint32_t session) const {
  return sessions_.at(session);
}

LongContextWorkload::LongContextWorkload(const LongContextConfig& config) : sequences_(config.sequence_count) {
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    sequences_[i].resize(config.sequence_tokens);
    write_text({.kind = kLongText, .id = i}, sequences_[i]);
  }
}

EvictionWorkload::EvictionWorkload(const EvictionConfig& config)
    : config_(config), leaf_order_(std::size_t{config.group_count} * config.leaves_per_group) {
  std::iota(leaf_order_.begin(), leaf_order_.end(), 0U);
  for (std::size_t i = leaf_order_.size(); i-- > 1;) {
    std::swap(leaf_order_[i], leaf_order_[below(workload_hash(kLeafShuffle, 0, i), i + 1)]);
  }
}

std::uint64_t EvictionWorkload::distinct_token_count() const {
  return std::uint64_t{config_.group_count} * config_.prefix_tokens + leaf_order_.size() * config_.own_tokens;
}

void EvictionWorkload::write_tokens(std::uint32_t leaf, std::span<TokenId> target) const {
  QUIRE_CHECK(leaf < leaf_order_.size(), "a leaf of this workload");
  QUIRE_CHECK(target.size() == tokens_per_leaf(), "target holds exactly one leaf");
  const std::uint32_t group = leaf / config_.leaves_per_group;
  write_text({.kind = kGroupPrefix, .id = group}, target.first(config_.prefix_tokens));
  write_text({.kind = kLeafText, .id = leaf}, target.subspan(config_.prefix_tokens));
}

std::vector<TokenId> EvictionWorkload::tokens_of(std::uint32_t leaf) const {
  std::vector<TokenId> tokens(tokens_per_leaf());
  write_tokens(leaf, tokens);
  return tokens;
}

}  // namespace quire::testing
