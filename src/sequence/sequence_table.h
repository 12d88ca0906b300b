// SPDX-License-Identifier: Apache-2.0
//
// SequenceTable: the live sequences. Each has a slot of counts and pins, and rows of tokens, pages, extra keys, tree
// tokens and transfer slots, all of fixed size, so that a sequence costs no allocation. Who owns which pages of a row:
//
//     0 ──────────── shared_pages ──────────── settled_pages ──────────── page_count
//     in the tree, pinned    full, private (to forks too)    open: being written
//
// How far its tokens are:
//
//     0 ──────────── computed_tokens ──────────── planned_end ──────────── token_count
//     K and V are there      in steps in flight             pending
//
// A step may be planned before its tokens are known, so planned_end may lie beyond token_count. Tree tokens stand
// behind planned_end until commit_tree() decides.
//
// A tail is a page begun by somebody else: its first tokens are the sequence's too, and are copied to a page of its own
// by the first step that needs it. A window leaves a hole in the row: pages [hole_begin, hole_end) are not held.
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
  std::uint32_t lookahead_tokens = 0;  ///< that a row depends on, behind it
};

struct alignas(64) SequenceSlot {
  enum class State : std::uint8_t {
    Free,
    Waiting,    // begun or preempted
    Saving,     // preempted; its pages are on their way to the host, and here until they have arrived
    Saved,      // preempted; its pages are on the host
    Restoring,  // resumed; its pages are on their way back
    Looking,    // admitted; waits for what the disk has of its path
    Loading,    // admitted; pages of its path are on their way from the host
    Running,
    Holding,  // a match in an external pool
  };

  // What every step looks at comes first: a large batch touches two lines of each slot.
  State state = State::Free;
  bool is_dropped = false;    // the handle is gone; ends when its steps do
  bool is_preempted = false;  // waits for resume(), not admit()
  bool has_run = false;       // nobody need ask for what comes after the last computed token
  bool has_draft = false;     // in a step in flight
  bool is_receiving = false;
  bool tail_is_hit = false;      // found by admit(), and counted
  bool tail_is_planned = false;  // a step in flight copies it
  std::uint32_t generation = 0;
  std::uint32_t steps_in_flight = 0;
  std::uint64_t plan_mark = 0;  // of the last call of plan_step it was in
  std::uint32_t token_count = 0;
  std::uint32_t computed_tokens = 0;
  std::uint32_t planned_end = 0;
  std::uint32_t shared_pages = 0;
  std::uint32_t settled_pages = 0;
  std::uint32_t page_count = 0;
  std::uint32_t changed_column = 0;  // the row differs from what plans have told from this column on
  std::uint32_t tree_count = 0;      // undecided tree tokens, those in flight included

  // A window; window_tokens 0: none.
  std::uint32_t window_tokens = 0;
  std::uint32_t sink_tokens = 0;
  std::uint32_t full_tokens = 0;  // tokens before this one have seen all before them
  std::uint32_t hole_begin = 0;
  std::uint32_t hole_end = 0;

  // The tail: tokens [tail_page * page_tokens, + tail_tokens). Its source is kept by tail_pin or, when that is empty,
  // by a share of the page.
  std::uint32_t tail_tokens = 0;  // 0: none
  std::uint32_t tail_page = 0;
  PageId tail_source;
  PrefixTree::Pin tail_pin;

  std::uint32_t send_run_count = 0;  // 0: not marked
  std::uint32_t send_end = 0;
  std::uint32_t send_cached_end = 0;  // tokens [send_begin, this) were computed before they were marked; 0: all sent

  // Where the layout has groups that do not keep everything.
  std::uint32_t replay_end = 0;  // the history has the tokens before it, which are computed for other groups; 0: none
  std::uint32_t state_slot = UINT32_MAX;  // of an admitted one, where the layout has state
  bool is_inexact = false;                // a group was rebuilt inexactly: nothing behind replay_end is published
  bool allows_inexact = false;
  bool needs_state = false;        // its state slot is not filled yet: the next plan with it does that
  bool state_is_in_doubt = false;  // a step that did not happen may have written it

  // The third line, where there are such groups.
  std::uint32_t state_high = 0;  // its state was written up to this position, drafts included
  std::uint32_t junction = 0;    // a checkpoint where the history was known and no state; 0: none
  std::uint32_t checkpoint = 0;  // the last one that was planned

  std::uint32_t side_loads = 0;              // of a loading one: on their way to it
  std::uint32_t limiting_side = UINT32_MAX;  // of one that has looked on disk: which group has less there than others
  bool has_asked_sides = false;              // what other groups have of its path on the host was asked for
  bool skips_partial = false;  // there was no room for the copy of a page that its hit ended in: it ends before that
  std::uint32_t send_begin = 0;
  std::int32_t receiver = -1;
  std::uint32_t receive_tokens = 0;
  std::uint32_t receive_run_count = 0;

  PrefixTree::Pin pin;
  PrefixTree::SoftPin soft_pin;
  std::uint32_t key_space = 0;  // index in the table of key spaces
  std::uint32_t match_tokens_max = 0;
  std::uint32_t prompt_tokens = 0;                // what is left of the prompt that it began with
  std::uint32_t publish_tokens_max = UINT32_MAX;  // without dedup: up to where others were first
  std::uint32_t expected_tokens = 0;
  std::uint32_t extra_key_count = 0;
  bool may_use_cache = true;
  Publish publish = Publish::All;
  bool publishes_at_end = false;
  bool has_lost_pages = false;            // a page that it saved did not arrive
  std::uint32_t transfers_in_flight = 0;  // of one that is saving or restoring
  std::uint32_t saved_page_count = 0;     // in its row of saved pages
  Tier tier_max = Tier::Disk;
  Prefetch prefetch = Prefetch::Off;
  MissReason load_miss = MissReason::None;    // why a load it waited for brought less than it should
  std::uint32_t waited_from_page = 0;         // where its path went on from the host when it was admitted
  bool has_looked = false;                    // on disk, since it was admitted
  MissReason disk_miss = MissReason::None;    // why that brought less than it should
  std::uint32_t looked_pages = 0;             // the disk has nothing of its path behind so many pages
  std::uint32_t disk_from_page = UINT32_MAX;  // where its path went on from the disk, the highest value: it did not
  std::uint32_t host_tokens = 0;              // that were loaded for its admission
  std::uint32_t disk_tokens = 0;              // that were read from disk for it
  std::uint32_t find = 0;                     // the transfer that a looking one waits for; the highest value: its turn
  std::uint64_t turn = 0;                     // of one that waits for its turn to look: the lowest looks first
  TimeNs turn_deadline = 0;                   // of such a one
  TimeNs load_timeout_ns = 0;
  TimeNs load_deadline = 0;  // of a loading one; the highest value: none
  Miss miss;
  std::int8_t priority = 0;
  TimeNs ttl_ns = 0;  // the highest value: for ever

  [[nodiscard]] bool is_waiting() const {
    return state == State::Waiting || state == State::Saving || state == State::Saved;
  }
  [[nodiscard]] bool is_loading() const {
    return state == State::Looking || state == State::Loading || state == State::Restoring;
  }
  [[nodiscard]] bool has_hole() const { return hole_end > hole_begin; }
  [[nodiscard]] bool is_in_hole(std::uint32_t page) const { return page >= hole_begin && page < hole_end; }
  /// Pages that `pin` covers: those of the tree, or the sink's when the window has left all others.
  [[nodiscard]] std::uint32_t pinned_pages() const {
    return has_hole() && hole_end >= shared_pages ? std::min(shared_pages, hole_begin) : shared_pages;
  }
  [[nodiscard]] bool is_undecided() const { return has_draft || tree_count > 0; }
};
static_assert(offsetof(SequenceSlot, state_high) == 128, "what every step looks at fills two lines");

class SequenceTable {
 public:
  [[nodiscard]] static Result<SequenceTable> create(const SequenceTableConfig& config);

  /// A slot with empty rows, or nothing when all are taken.
  [[nodiscard]] std::optional<std::uint32_t> try_add();
  /// The tokens' row of the slot that try_add() would give now; empty when all are taken.
  [[nodiscard]] std::span<TokenId> next_token_row() {
    return free_slots_.empty() ? std::span<TokenId>() : token_row(free_slots_.back());
  }
  /// Its pins end; its pages are the caller's business.
  void remove(std::uint32_t index);
  void set_state(std::uint32_t index, SequenceSlot::State state);
  /// The first sequence from `index` on that is Looking or Loading, or capacity(). A loop over them takes no look at
  /// the others, and they may change their states in it.
  [[nodiscard]] std::uint32_t next_loading(std::uint32_t index) const;

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
  /// What the sequence's first rows are looked up and cached by, as far as they are known. Good until the next call.
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
  // Rows are a little longer than what they hold: at a power of two apart, the places that a step touches in each of
  // them would fall on a few sets of the processor's cache.
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
  std::vector<std::uint64_t> loading_bits_;  // a bit for each slot: Looking or Loading
  std::vector<std::uint32_t> free_slots_;    // the last one given back goes first: its rows are warm
  std::uint32_t live_count_ = 0;
  std::size_t row_tokens_ = 0;
  std::size_t row_pages_ = 0;
  std::size_t row_extra_keys_ = 0;
  std::size_t row_tree_tokens_ = 0;
  LazyArray<TokenId> tokens_;
  LazyArray<PageId> pages_;
  LazyArray<ExtraKey> extra_keys_;
  LazyArray<std::int32_t> tree_parents_;
  LazyArray<TokenId> tree_tokens_;
  LazyArray<SlotRun> receives_;
  LazyArray<SlotRun> sends_;
};

}  // namespace quire
