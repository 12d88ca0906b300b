// SPDX-License-Identifier: Apache-2.0
//
// SequenceTable: the live sequences. Each has a slot of counts and pins, a row of tokens, a row of pages and a row
// of extra keys, all of fixed size, so that a sequence costs no allocation. Who owns which pages of a row:
//
//     0 ──────────── shared_pages ──────────── settled_pages ──────────── page_count
//     in the tree, pinned    full, private to the sequence   open: being written
//
// single-threaded
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "prefix/prefix_tree.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

struct SequenceTableConfig {
  std::uint32_t sequence_count_max = 0;
  std::uint32_t context_tokens_max = 0;
  std::uint32_t page_tokens = 0;
  std::uint32_t extra_key_count_max = 0;
};

struct SequenceSlot {
  enum class State : std::uint8_t { Free, Waiting, Running, Holding };  // Holding: a match in an external pool

  State state = State::Free;
  bool is_dropped = false;  // the handle is gone; ends when its step does
  bool may_use_cache = true;
  bool has_run = false;  // since it was admitted, some step has computed something of it
  std::uint32_t generation = 0;
  std::uint32_t key_space = 0;  // index in the table of key spaces

  std::uint32_t prompt_tokens = 0;
  std::uint32_t token_count = 0;
  std::uint32_t computed_tokens = 0;
  std::uint32_t match_tokens_max = 0;
  std::uint32_t publish_tokens_max = 0;
  std::uint32_t extra_key_count = 0;
  std::int8_t priority = 0;
  TimeNs ttl_ns = 0;  // the highest value: for ever

  std::uint32_t shared_pages = 0;
  std::uint32_t settled_pages = 0;
  std::uint32_t page_count = 0;

  // Part of a step in flight: what it adds.
  bool is_planned = false;
  std::uint32_t planned_tokens = 0;  // that will be computed; 0 when only the last token runs again
  std::uint32_t planned_pages = 0;

  // A page whose first tokens are to be copied by the first step.
  PageId partial_page;
  std::uint32_t partial_tokens = 0;
  RunId revoked_run;  // while plan_step finds out whether it fits without the copy: the run its pin was on

  PrefixTree::Pin pin;
  PrefixTree::Pin partial_pin;
  PrefixTree::SoftPin soft_pin;
};

class SequenceTable {
 public:
  [[nodiscard]] static Result<SequenceTable> create(const SequenceTableConfig& config);

  /// A slot with empty rows, or nothing when all are taken.
  [[nodiscard]] std::optional<std::uint32_t> try_add();
  /// Its pins end; its pages are the caller's business.
  void remove(std::uint32_t index);

  [[nodiscard]] SequenceSlot& operator[](std::uint32_t index) { return slots_[index]; }
  [[nodiscard]] const SequenceSlot& operator[](std::uint32_t index) const { return slots_[index]; }
  /// The slot of a live sequence, or nothing when the id is of an ended one.
  [[nodiscard]] std::optional<std::uint32_t> find(SequenceId id) const;

  [[nodiscard]] std::span<TokenId> token_row(std::uint32_t index) { return row(tokens_, index, row_tokens_); }
  [[nodiscard]] std::span<PageId> page_row(std::uint32_t index) { return row(pages_, index, row_pages_); }
  [[nodiscard]] std::span<ExtraKey> extra_key_row(std::uint32_t index) {
    return row(extra_keys_, index, row_extra_keys_);
  }
  [[nodiscard]] std::span<const PageId> page_row(std::uint32_t index) const {
    return {pages_.data() + (index * row_pages_), row_pages_};
  }
  /// What the sequence is looked up and cached by, cut to `token_count` tokens.
  [[nodiscard]] PrefixTree::Key key(std::uint32_t index, std::uint32_t token_count) {
    return {token_row(index).first(token_count), extra_key_row(index).first(slots_[index].extra_key_count)};
  }

  [[nodiscard]] std::uint32_t live_count() const { return live_count_; }
  [[nodiscard]] std::uint32_t capacity() const { return static_cast<std::uint32_t>(slots_.size()); }

 private:
  template <typename T>
  [[nodiscard]] static std::span<T> row(LazyArray<T>& rows, std::uint32_t index, std::size_t length) {
    return {rows.data() + (index * length), length};
  }

  std::vector<SequenceSlot> slots_;
  std::vector<std::uint32_t> free_slots_;  // the last one given back goes first: its rows are warm
  std::uint32_t live_count_ = 0;
  std::size_t row_tokens_ = 0;
  std::size_t row_pages_ = 0;
  std::size_t row_extra_keys_ = 0;
  LazyArray<TokenId> tokens_;
  LazyArray<PageId> pages_;
  LazyArray<ExtraKey> extra_keys_;
};

}  // namespace quire
