// SPDX-License-Identifier: Apache-2.0
//
// SequenceTable: the live sequences. Each has a SequenceSlot of counts and pins, and rows of fixed length for tokens,
// pages, extra keys, token trees and slots to receive or send, so that a sequence costs no allocation. Who owns which
// pages of a row:
//
//     0 ──────────── shared_pages ──────────── settled_pages ──────────── page_count
//     in the tree, pinned    full, private (to forks too)    open: being written
//
// How far the tokens of a sequence are:
//
//     0 ──────────── computed_tokens ──────────── planned_end ──────────── token_count
//     K and V are there      in steps in flight             pending
//
// A step may be planned before its tokens are known, so planned_end may lie beyond token_count. Tokens of a token tree
// stand behind planned_end until commit_tree() picks a path.
//
// A tail is the beginning of a page that somebody else has: its first tokens are the sequence's too. The first step
// that needs them copies them to a page of the sequence's own. A window leaves a hole in the row: the sequence does not
// hold pages [hole_begin, hole_end).
//
// single-threaded
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "prefix/prefix_tree.h"
#include "quire/plan.h"
#include "quire/result.h"
#include "quire/types.h"
#include "sequence/lookahead_keys.h"

namespace quire {

struct SequenceTableConfig {
  std::uint32_t sequence_count_max = 0;
  std::uint32_t context_tokens_max = 0;
  std::uint32_t page_tokens = 0;
  std::uint32_t extra_key_count_max = 0;
  std::uint32_t tree_tokens_max = 0;
  std::uint32_t lookahead_tokens = 0;  ///< a K/V row depends on so many tokens behind it
  std::uint32_t window_count = 0;      ///< window groups with pages
};

struct alignas(64) SequenceSlot {
  enum class State : std::uint8_t {
    Free,
    Waiting,       // begun, or preempted with Drop
    Saving,        // preempted; its device pages stay until their copies are on the host
    Saved,         // preempted; its pages are on the host
    Restoring,     // resumed; its pages are on their way back
    Looking,       // admitted; waits for what lower tiers have of its path
    Loading,       // admitted; pages of its path are on their way from the host
    RunningAhead,  // steps may be planned, although pages of its path are still on their way from the host
    Running,
    Holding,  // match() in an external pool: holds pages, and never runs
  };

  /// The beginning of a page that somebody else has. A pin keeps that page or, where it is empty, a share that the
  /// sequence owns of it.
  struct Tail {
    std::uint32_t tokens = 0;  // from the beginning of `column` on; at least 1
    std::uint32_t column = 0;
    PageId source;
    bool is_hit = false;      // admit() has found it, and counted it as a hit
    bool is_planned = false;  // a step in flight copies it
    PrefixTree::Pin pin;
  };
  /// A window that set_window() gave the sequence. Groups with windows have rows of their own.
  struct OwnWindow {
    std::uint32_t tokens = 0;
    std::uint32_t sink_tokens = 0;
    std::uint32_t full_tokens = 0;  // tokens before this one have seen every token before them
    std::uint32_t hole_begin = 0;   // what the window has left; empty before it has slid
    std::uint32_t hole_end = 0;

    /// The sequence goes back to `end` tokens, the first `whole_pages` pages of which are full.
    void cut(std::uint32_t end, std::uint32_t whole_pages) {
      full_tokens = std::max(tokens, std::min(full_tokens, end));
      if (hole_begin >= whole_pages) hole_begin = hole_end = 0;
    }
  };
  /// Tokens [begin, end) go to another cache, into the slots of the sequence's send rows.
  struct Send {
    std::uint32_t run_count = 0;
    std::uint32_t window_count = 0;  // runs of window groups
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::uint32_t cached_end = 0;  // the next step sends tokens [begin, this), computed before
    std::int32_t receiver = 0;
    std::int32_t state_slot = 0;  // of the receiver, where the layout has state
  };
  /// Tokens behind the computed ones are on their way from another cache.
  struct Receive {
    std::uint32_t tokens = 0;
    std::uint32_t window_count = 0;  // runs of window groups
  };
  struct StateSlot {
    std::uint32_t index = 0;
    std::uint32_t high = 0;        // it was written up to this position, drafts included
    std::uint32_t checkpoint = 0;  // the last one that was planned
    bool needs_fill = false;       // the next plan fills it
    bool is_in_doubt = false;      // a step that did not happen may have written it
  };
  /// What begin() was asked for, and what forks take over.
  struct Options {
    std::uint32_t match_tokens_max = 0;
    bool may_use_cache = true;
    bool allows_inexact = false;
    Publish publish = Publish::All;
    std::int8_t priority = 0;
    TimeNs ttl_ns = 0;  // the highest value: for ever
  };
  /// What begin() was asked for, and what only an admission heeds.
  struct AdmitOptions {
    std::uint32_t expected_tokens = 0;
    Prefetch prefetch = Prefetch::Off;
    Tier tier_max = Tier::Remote;
    bool plan_while_loading = false;
    TimeNs load_timeout_ns = 0;
    bool is_for_host = false;  // the cache's own, of a prefix that is brought to the host: nothing is loaded further
  };

  PrefixTree::Pin pin;
  PrefixTree::SoftPin soft_pin;

  // What every step reads fills two cache lines: a large batch touches no more of each slot. Of a tail that is only
  // whether there is one. std::optional has that behind the value, so the value lies in the line before.
  std::optional<Tail> tail;
  std::uint64_t plan_stamp = 0;  // of the last plan_step() that named the sequence
  std::uint32_t generation = 0;
  State state = State::Free;
  bool is_dropped = false;    // the handle is gone; the sequence ends when its steps do
  bool is_preempted = false;  // waits for resume(), not admit()
  bool has_run = false;       // the model was asked what follows the last computed token
  bool has_draft = false;     // a step in flight has drafts of it
  bool is_inexact = false;    // a group was rebuilt inexactly: nothing behind replay_end is published
  std::uint16_t steps_in_flight = 0;
  std::uint32_t token_count = 0;
  std::uint32_t computed_tokens = 0;
  std::uint32_t planned_end = 0;
  std::uint32_t shared_pages = 0;
  std::uint32_t settled_pages = 0;
  std::uint32_t page_count = 0;
  std::uint32_t changed_column = 0;  // plans have not told the device of the columns from this one on
  std::uint32_t tree_count = 0;      // undecided tokens of a token tree, those in flight included
  std::optional<OwnWindow> window;
  std::optional<Receive> receive;
  std::optional<Send> send;

  // Steps read these where the layout has anchored groups.
  std::optional<StateSlot> state_slot;    // of an admitted sequence, where the layout has state
  std::uint32_t replay_end = 0;           // tokens before it are replayed for groups that lack them
  std::optional<std::uint32_t> junction;  // a checkpoint where history was cached, but no state
  std::uint32_t seen_tokens = 0;  // tokens that steps have seen: rows that look ahead at later ones are not written

  bool skips_partial = false;  // no room for the copy of the page that its hit ended in: the hit ends before that page
  bool is_lost = false;        // RunningAhead: a load has failed; the sequence starts anew when its step has ended
  bool publishes_at_end = false;                  // end() has said what is published: private pages are, too
  std::uint32_t key_space = 0;                    // index in the table of key spaces
  std::uint32_t prompt_tokens = 0;                // tokens of the prompt that rewind() has left
  std::uint32_t publish_tokens_max = UINT32_MAX;  // without dedup: others have published what follows
  std::uint32_t extra_key_count = 0;
  Options options;
  AdmitOptions admit_options;
  Miss miss;

  [[nodiscard]] bool is_waiting() const {
    return state == State::Waiting || state == State::Saving || state == State::Saved;
  }
  [[nodiscard]] bool is_arriving() const {
    return state == State::Looking || state == State::Loading || state == State::RunningAhead;
  }
  [[nodiscard]] bool is_loading() const { return is_arriving() || state == State::Restoring; }
  /// Steps can be planned.
  [[nodiscard]] bool is_ready() const { return state == State::Running || (state == State::RunningAhead && !is_lost); }
  /// The sequence holds device pages in its rows.
  [[nodiscard]] bool has_row() const {
    return state == State::Running || state == State::RunningAhead || state == State::Saving ||
           state == State::Restoring;
  }
  /// How many tokens before it a token sees, itself included.
  [[nodiscard]] std::uint32_t window_tokens() const { return window ? window->tokens : UINT32_MAX; }
  [[nodiscard]] std::uint32_t sink_tokens() const { return window ? window->sink_tokens : 0; }
  /// Tokens before this one have seen every token before them.
  [[nodiscard]] std::uint32_t full_tokens() const { return window ? window->full_tokens : UINT32_MAX; }
  [[nodiscard]] bool has_hole() const { return window && window->hole_end > window->hole_begin; }
  [[nodiscard]] bool is_in_hole(std::uint32_t page) const {
    return window && page >= window->hole_begin && page < window->hole_end;
  }
  /// Pages that `pin` covers: all shared pages or, when the window has left the others, those of the sink.
  [[nodiscard]] std::uint32_t pinned_pages() const {
    const bool has_left = has_hole() && window->hole_end >= shared_pages;
    return has_left ? std::min(shared_pages, window->hole_begin) : shared_pages;
  }
  [[nodiscard]] bool is_undecided() const { return has_draft || tree_count > 0; }
};
static_assert(offsetof(SequenceSlot, tail) + sizeof(SequenceSlot::Tail) == 64 &&
                  offsetof(SequenceSlot, send) + sizeof(SequenceSlot::send) == 192,
              "what every step looks at fills two lines");

class SequenceTable {
 public:
  [[nodiscard]] static Result<SequenceTable> create(const SequenceTableConfig& config);

  /// A slot with empty rows, or nothing when all are taken.
  [[nodiscard]] std::optional<std::uint32_t> try_add();
  /// The token row of the slot that try_add() would give now; empty when all are taken.
  [[nodiscard]] std::span<TokenId> next_token_row() {
    return free_slots_.empty() ? std::span<TokenId>() : token_row(free_slots_.back());
  }
  /// Ends the sequence's pins and frees the slot; the caller has given back the pages.
  void remove(std::uint32_t index);
  void set_state(std::uint32_t index, SequenceSlot::State state);
  /// Indices of the sequences that are Looking, Loading or RunningAhead. A loop over them skips all other sequences,
  /// and may change the states of those that it visits.
  class ArrivingRange {
   public:
    explicit ArrivingRange(const SequenceTable& table) : table_(table) {}
    struct Iterator {
      const SequenceTable& table;
      std::uint32_t index;
      std::uint32_t operator*() const { return index; }
      Iterator& operator++() {
        index = table.next_arriving(index + 1);
        return *this;
      }
      bool operator!=(const Iterator& other) const { return index != other.index; }
    };
    [[nodiscard]] Iterator begin() const { return {table_, table_.next_arriving(0)}; }
    [[nodiscard]] Iterator end() const { return {table_, table_.capacity()}; }

   private:
    const SequenceTable& table_;
  };
  [[nodiscard]] ArrivingRange arriving() const { return ArrivingRange(*this); }
  /// The first sequence from `index` on that is one of these, or capacity().
  [[nodiscard]] std::uint32_t next_arriving(std::uint32_t index) const;

  /// Whether some sequence runs: when it ends or is preempted, others have its pages.
  [[nodiscard]] bool has_running() const { return running_count_ > 0; }

  [[nodiscard]] SequenceSlot& operator[](std::uint32_t index) { return slots_[index]; }
  [[nodiscard]] const SequenceSlot& operator[](std::uint32_t index) const { return slots_[index]; }
  /// The slot of a live sequence, or nothing when the id is of an ended one.
  [[nodiscard]] std::optional<std::uint32_t> find(SequenceId id) const {
    if (id.index >= slots_.size()) return std::nullopt;
    const SequenceSlot& slot = slots_[id.index];
    const bool is_live = slot.state != SequenceSlot::State::Free && slot.generation == id.generation;
    return is_live && !slot.is_dropped ? std::optional(id.index) : std::nullopt;
  }

  [[nodiscard]] std::span<TokenId> token_row(std::uint32_t index) { return row(tokens_, index, row_tokens_); }
  [[nodiscard]] std::span<PageId> page_row(std::uint32_t index) { return row(pages_, index, row_pages_); }
  [[nodiscard]] std::span<ExtraKey> extra_key_row(std::uint32_t index) {
    return row(extra_keys_, index, row_extra_keys_);
  }
  [[nodiscard]] std::span<const PageId> page_row(std::uint32_t index) const {
    return {pages_.data() + (index * stride<PageId>(row_pages_)), row_pages_};
  }
  [[nodiscard]] std::span<std::int32_t> tree_parent_row(std::uint32_t index) {
    return row(tree_parents_, index, row_tree_tokens_);
  }
  [[nodiscard]] std::span<TokenId> tree_token_row(std::uint32_t index) {
    return row(tree_tokens_, index, row_tree_tokens_);
  }
  [[nodiscard]] std::span<SlotRun> receive_row(std::uint32_t index) { return row(receives_, index, row_pages_); }
  [[nodiscard]] std::span<SlotRun> send_row(std::uint32_t index) { return row(sends_, index, row_tokens_); }
  [[nodiscard]] std::span<WindowRun> receive_window_row(std::uint32_t index) {
    return row(window_receives_, index, row_pages_ * window_count_);
  }
  [[nodiscard]] std::span<WindowRun> send_window_row(std::uint32_t index) {
    return row(window_sends_, index, row_tokens_ * window_count_);
  }
  /// The key by which the sequence's first K/V rows are looked up and cached, as far as the tokens that they depend on
  /// are known. Good until the next call.
  [[nodiscard]] PrefixTree::Key key(std::uint32_t index, std::uint32_t row_count) {
    return keys_.make(token_row(index).first(slots_[index].token_count),
                      extra_key_row(index).first(slots_[index].extra_key_count), row_count);
  }
  [[nodiscard]] LookaheadKeys& keys() { return keys_; }
  [[nodiscard]] const LookaheadKeys& keys() const { return keys_; }

  [[nodiscard]] std::uint32_t live_count() const { return live_count_; }
  [[nodiscard]] std::uint32_t capacity() const { return static_cast<std::uint32_t>(slots_.size()); }
  [[nodiscard]] std::uint32_t row_pages() const { return static_cast<std::uint32_t>(row_pages_); }

 private:
  // Rows are a little longer than what they hold. If they lay a power of two apart, the places that a step touches in
  // each row would fall on a few sets of the processor's cache.
  template <typename T>
  [[nodiscard]] static std::size_t stride(std::size_t length) {
    return length + (64 / sizeof(T)) + 1;
  }
  template <typename T>
  [[nodiscard]] static std::span<T> row(LazyArray<T>& rows, std::uint32_t index, std::size_t length) {
    return {rows.data() + (index * stride<T>(length)), length};
  }

  LookaheadKeys keys_;
  std::vector<SequenceSlot> slots_;
  std::vector<std::uint64_t> loading_bits_;  // a bit for each slot: Looking, Loading or RunningAhead
  std::vector<std::uint32_t> free_slots_;    // the last one given back goes first: its rows are warm
  std::uint32_t live_count_ = 0;
  std::uint32_t running_count_ = 0;
  std::size_t row_tokens_ = 0;
  std::size_t row_pages_ = 0;
  std::size_t row_extra_keys_ = 0;
  std::size_t row_tree_tokens_ = 0;
  std::size_t window_count_ = 0;
  LazyArray<TokenId> tokens_;
  LazyArray<PageId> pages_;
  LazyArray<ExtraKey> extra_keys_;
  LazyArray<std::int32_t> tree_parents_;
  LazyArray<TokenId> tree_tokens_;
  LazyArray<SlotRun> receives_;
  LazyArray<SlotRun> sends_;
  LazyArray<WindowRun> window_receives_;
  LazyArray<WindowRun> window_sends_;
};

}  // namespace quire
