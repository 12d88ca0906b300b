// SPDX-License-Identifier: Apache-2.0
//
// What a step asks of the engine, as plain data. The engine first copies `staging` to its device in one piece and
// applies, in this order, each group's `deltas`, `moves` and `copies`, and the `state_copies`: once for every plan,
// even for a step that is then aborted. Then it computes each entry's tokens, writing K and V at `append_slots`, and at
// last it applies `state_saves`. What is to be sent to other caches is sent in between: tokens as plan and groups say,
// states as `state_sends` says.
//
// Every array lies in `staging`, 16-byte aligned. Those whose length follows from the shape come first, then deltas,
// page_indices or block_table: all of them at offsets that depend on the shape alone, but for the deltas of window
// groups, which follow each other. Behind them lie those that vary: tree_nodes, moves, copies, what is to be sent, and
// copies of states. docs/attention_plans.md has an example of each.
//
// How the keys of an entry are numbered. An entry has seq_lens[e] keys, counted j = 0, 1, …, those of this step last:
//
//     0 ─────── sink ─────────────────────────── seq_len - tree tokens ──────────── seq_len
//     sink tokens   recent tokens (all tokens, without a window)   undecided token tree (or nothing)
//
// Key j is token j (j < sink) or token j - sink + window_offset (otherwise) of the entry's listed pages. The entry's
// query r (of q) is key seq_len - q + r, and sees the keys up to its own; with a window, of those behind the sink only
// the visible_tokens - sink last ones, its own among them; in a token tree, of the tree's keys only its ancestors, and
// sink and window count along their path: there a key's place is seq_len - tree tokens + its depth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quire/result.h"
#include "quire/types.h"

namespace quire {

/// The page that padding reads: reserved, never written, all zeros.
inline constexpr PageId kNullPage{0};

/// No place to write to: the token's K and V are in the cache already, or no later step will need them. Where they are
/// in the cache, as those of a token that runs again or is replayed for other groups, they are a key in the listed
/// pages like any other, and layers read them there; what is computed of them is not stored.
inline constexpr std::int64_t kNoSlot = -1;

/// How a plan names the pages of its entries.
enum class PageTables : std::uint8_t {
  Rows,   ///< a table on the device with a row per sequence; a plan ships what changed in it: cost flat in context
  Csr,    ///< every page id in every plan, one list per slice: what FlashInfer reads
  Block,  ///< every page id in every plan, one padded line per entry: block_table, slot_mapping, seq_lens
};

/// The lengths that a plan's arrays are padded to. Plans of one shape have their arrays at the same offsets, so a
/// captured graph can be replayed on them. Padding entries have no queries and no keys.
struct PlanShape {
  std::uint32_t entries = 0;
  std::uint32_t tokens = 0;
  std::uint32_t columns = 0;  ///< of a block_table line
  friend constexpr bool operator==(PlanShape, PlanShape) = default;
};

/// The first `token_count` tokens of `source` become those of `target`, in all layers. No target of a plan is a source
/// of it, and none is written twice: copies may run in any order.
struct PageCopy {
  PageId source;
  PageId target;
  std::uint32_t token_count = 0;
};

/// One token's K and V move from slot to slot in all layers: what a token tree leaves of its accepted path. In order.
struct TokenMove {
  std::int64_t source_slot = 0;
  std::int64_t target_slot = 0;
};

/// table[row][column] = page.
struct PageDelta {
  std::int32_t row = 0;
  std::int32_t column = 0;
  std::int32_t page = 0;
};

/// One token of an undecided tree. Key k of a tree is seen by query q of it iff begin[k] <= begin[q] < end[k].
struct TreeNode {
  std::int32_t begin = 0;  ///< its place in depth-first order
  std::int32_t end = 0;    ///< one past the last of its descendants
  std::int32_t depth = 0;  ///< its position is that of the tree's first token plus depth
};

/// Consecutive slots.
struct SlotRun {
  std::int64_t first_slot = 0;
  std::int64_t token_count = 0;
};

/// Tokens in the cache to be sent to another one before the step: those marked with mark_send() after they were
/// computed.
struct SendRun {
  std::int64_t local_slot = 0;
  std::int64_t remote_slot = 0;
  std::int32_t token_count = 0;
  std::int32_t receiver = 0;
};

/// Consecutive slots of a window group in another cache, for a sequence's tokens from `position` on.
struct WindowRun {
  std::uint32_t group = 0;  ///< in ModelLayout::groups()
  std::uint32_t position = 0;
  std::int64_t first_slot = 0;
  std::int64_t token_count = 0;
  friend constexpr bool operator==(const WindowRun&, const WindowRun&) = default;
};

/// When a state is to be sent: behind the plan's state_copies and before its tokens are computed, or once they are.
enum class SendTime : std::int32_t { BeforeStep, AfterStep };

/// The state behind `position` tokens goes to another cache: of each group that has state slots, the entries of version
/// `position` modulo slot_history + 1, all slot_entries of them. Other entries of the target stay as they are.
struct StateSend {
  std::int32_t source = 0;  ///< state slot
  std::int32_t target = 0;  ///< the receiver's
  std::int32_t position = 0;
  std::int32_t receiver = 0;
  SendTime time = SendTime::BeforeStep;
  friend constexpr bool operator==(const StateSend&, const StateSend&) = default;
};

/// What a copy does to one group's part of a state slot (state_slots.h).
enum class StateCopyKind : std::int32_t {
  Reset,    ///< slot `target` becomes what it is before anything is computed: the group's initial bytes
  Restore,  ///< slot `target` gets the state behind `position` tokens from the snapshot in page `source`
  Save,     ///< page `target` gets a snapshot of slot `source`, whose sequence has computed `position` tokens
  Fork,     ///< slot `target` becomes what slot `source` is, with all earlier versions
};

/// In order. copy_states_on_host() does it, and says what lies where.
struct StateCopy {
  StateCopyKind kind = StateCopyKind::Reset;
  std::int32_t group = 0;   ///< in ModelLayout::groups(); the page is one of its pool
  std::int32_t source = 0;  ///< page or slot
  std::int32_t target = 0;  ///< slot or page
  std::int32_t position = 0;
  friend constexpr bool operator==(const StateCopy&, const StateCopy&) = default;
};

/// One level of the cascade: slices of keys, each shared by all queries of its range. The slices of a level follow each
/// other and cover all queries; one without pages adds nothing. What a query sees is the slices it has in all levels,
/// one after the other. The last level has one slice per entry, and only it holds windows, trees and this step's own
/// tokens. Every level is padded to the shape's number of entries with slices that have no queries and no pages.
struct CascadeLevel {
  std::span<const std::int32_t> query_indptr;      ///< [slices + 1] slice i serves queries [indptr[i], indptr[i + 1])
  std::span<const std::int32_t> page_indptr;       ///< [slices + 1] it has indptr[i + 1] - indptr[i] pages
  std::span<const std::int32_t> rows;              ///< [slices] Rows: the table's row that lists them
  std::span<const std::int32_t> first_columns;     ///< [slices] Rows: from this column on
  std::span<const std::int32_t> last_page_tokens;  ///< [slices] keys in the last page; 0 for no pages
  std::span<const std::int32_t> window_offsets;    ///< [slices] token of the listed pages where recent keys begin
  std::span<const std::int32_t> sink_tokens;       ///< [slices] keys before them, at the start of the first page
  std::span<const std::int32_t> first_keys;        ///< [slices] number j of the slice's first key
};

/// For layers that attend to their last `window_tokens` tokens only: each entry's pages without those in front that
/// none of its queries sees there. Such a layer's query sees, of the keys that the entry lets it see, those whose
/// position for RoPE is less than window_tokens below its own. Without a window of the entry's own, that is by place in
/// the text or along the path of a tree, whatever the chunks; with one, a sink token is as near as its place in the
/// window.
///
/// The lists ignore levels: they are parts of the sequences' own rows, and their last pages those of the last level.
/// Listed are the keys from first_keys[e] up to seq_lens[e]; key j is token j - first_keys[e] + key_offsets[e] of the
/// list. Of an entry with a window of its own the last level's whole list is repeated, to be read as that one is.
struct LayerWindowPlan {
  std::uint32_t window_tokens = 0;
  std::span<const std::int32_t> page_indptr;    ///< [entries + 1] goes on where that of the last level ends
  std::span<const std::int32_t> rows;           ///< [entries] Rows: the table's row that lists the pages
  std::span<const std::int32_t> first_columns;  ///< [entries] Rows: from this column on
  std::span<const std::int32_t> first_keys;     ///< [entries] number j of the first listed key
  std::span<const std::int32_t> key_offsets;    ///< [entries] its token in the first listed page
};

/// What one cache group's layers need besides. A plan has one for each group of the layout, in its order:
///
///     full        everything below
///     compressed  the same lists, table and copies as the first full or compressed group, whose page ids it shares.
///                 append_slots are of entries: the token that completes one has its slot, page * (page_tokens / r) +
///                 entry; others have kNoSlot. An entry has seq_lens / r of them, rounded down, and no more. With a
///                 window of its own a query sees those of whose tokens it sees all, each at the position of its first:
///                 where a page begins, so does an entry
///     window      a table and lists of its own, in one level: the pages that the step's queries see, and those of the
///                 sink. With a ring: append_slots only, state_slot * slot_entries + entry; see ring_entry()
///     snapshot    nothing: its layers have AttentionPlan::state_slots
///
/// What a window group lists. Its keys are the entry's tokens by number, [0, N) with N = context_lens[e], whatever
/// window the entry itself has; query r of q is key N - q + r and sees the sink's S and the last W up to its own, along
/// its path in a token tree. With P = page_tokens, n = N - seq_lens[e] + stored_lens[e] (where the first query stands,
/// or the tree's first token), d = ceil(S / P) and B the token at which a replay began that rebuilds the group (else 0;
/// nobody wrote keys of tokens before B, and S is 0):
///
///     c               max(0, n - W + 1, B) / P, the column of the first token that some query sees behind the sink
///     sink_tokens     min(S, N)
///     nothing skipped, c <= d           the row's columns [0, end), end = ceil(N / P)
///                                       first_keys = window_offsets = max(sink_tokens, B)
///     else                              first_keys = c * P; keys of the sink, and from first_keys on, are listed
///       Csr                             columns [0, d) and [c, end);  window_offsets = d * P
///       Rows, S = 0                     columns [c, end);             window_offsets = 0
///       Rows, S > 0, and Block          columns [0, end);             window_offsets = c * P
///       where B lies behind c * P       first_keys = B, and window_offsets are B - c * P more
///
/// So key j is token j of the listed pages (j < sink_tokens) or token j - first_keys + window_offsets (j >=
/// first_keys), and the last listed page has last_page_tokens of them. Columns that are listed and hold no key may be
/// kNullPage. With Csr, all groups have one page_indices: page_indptr goes on where that of the group before ends.
struct GroupPlan {
  std::span<const std::int64_t> append_slots;      ///< [tokens] page * page_tokens + place in the page, or kNoSlot
  std::span<const CascadeLevel> levels;            ///< PlanConfig::cascade_levels_max of them
  std::span<const LayerWindowPlan> layer_windows;  ///< of full groups: PlanConfig::layer_windows, in order
  std::span<const PageDelta> deltas;           ///< Rows: changes of the table; columns behind a row's end are undefined
  std::span<const std::int32_t> page_indices;  ///< Csr: page ids; all page_indptr point into this one array
  std::span<const std::int32_t> block_table;   ///< Block: [entries][columns] page ids, kNullPage behind the end
  std::span<const TokenMove> moves;            ///< before anything else is written
  std::span<const std::int32_t> move_indptr;   ///< [committed sequences + 1] whose moves are whose
  std::span<const PageCopy> copies;            ///< after the moves
  // Prefill for another cache: empty unless a sequence of the step is marked with mark_send(), and for rings and
  // states, which are in AttentionPlan::state_sends. Slots of a compressed group are of entries, as append_slots are.
  std::span<const std::int64_t> remote_slots;  ///< [tokens] where the receiver puts the token, or kNoSlot
  std::span<const std::int32_t> receivers;     ///< [tokens] whose the token is, or -1; the same for all groups
  std::span<const SendRun> sends;              ///< tokens computed earlier
  std::uint32_t tokens_per_entry = 1;          ///< r of a compressed group
  std::uint32_t window_tokens = 0;             ///< W of a window group with pages; 0 for others
};

/// One sequence's part of a step, for the host.
struct AttentionPlanEntry {
  SequenceId sequence;
  std::uint32_t entry_index = 0;       ///< its place in the call of plan_step, and in the results of finish_step
  std::uint32_t position = 0;          ///< of the first token to compute, in the sequence
  std::uint32_t token_count = 0;       ///< tokens to compute: known ones, then draft_count drafts or tree tokens
  std::uint32_t draft_count = 0;       ///< of them
  std::uint32_t context_tokens = 0;    ///< tokens whose K and V are there once the step has run
  std::uint32_t last_page_tokens = 0;  ///< how many of them lie in the last page
  std::uint32_t state_slot = 0;        ///< the sequence's own from admission to its end or preemption
  std::uint32_t checkpoint = 0;        ///< tokens at whose end a snapshot is taken behind this step; 0: none
  std::span<const TokenId> tokens;     ///< of the tokens to compute, those known to the cache
  /// All of the sequence's pages, in order; kNullPage where a window left a hole. As of this moment: finishing another
  /// step may replace some. Kernels read the arrays.
  std::span<const PageId> pages;
  std::span<const std::int64_t> append_slots;  ///< one per token, of the first group that keeps everything
};

/// Spans point into the cache and stay valid until the step is finished or aborted.
struct AttentionPlan {
  PlanShape shape;
  PageTables page_tables = PageTables::Rows;
  std::uint32_t entry_count = 0;
  std::uint32_t token_count = 0;

  // Padded to the shape: positions and numbers with 0, rows and state slots with -1, slots with kNoSlot, offsets with
  // the last one.
  /// [tokens] for RoPE in groups that keep everything; with a window never above visible_tokens - 1
  std::span<const std::int32_t> query_positions;
  std::span<const std::int32_t> query_indptr;    ///< [entries + 1] entry e computes queries [indptr[e], indptr[e + 1])
  std::span<const std::int32_t> seq_lens;        ///< [entries] keys, this step's included
  std::span<const std::int32_t> stored_lens;     ///< [entries] keys before this step, undecided tree tokens not counted
  std::span<const std::int32_t> visible_tokens;  ///< [entries] of the sequence's Window, the sink included; 0: none
  /// [entries] tokens that the sequence has once the step has run: seq_lens and what its own window has skipped. Query
  /// r of q is token context_lens - q + r (or, in a tree, its first token plus depth), and that is its position in
  /// window groups, rings and states. Empty where the layout is one full or compressed group.
  std::span<const std::int32_t> context_lens;
  /// [entries] the sequence's state slot, where the layout has state; else the row of its page table.
  std::span<const std::int32_t> state_slots;
  /// [entries + 1] tree tokens, the last keys of the entry. Known tokens that the tree's first step computes in front
  /// of it count among them.
  std::span<const std::int32_t> tree_indptr;
  std::span<const TreeNode> tree_nodes;  ///< [tree tokens]

  std::span<const GroupPlan> groups;
  /// Before anything is computed, behind the groups' copies. Those of a plan make way for each other in this order.
  std::span<const StateCopy> state_copies;
  /// When the step's tokens are computed, before finish_step().
  std::span<const StateCopy> state_saves;
  std::span<const StateSend> state_sends;  ///< of sequences marked with mark_send(), at most one each
  /// All of the above, to be copied to the device in one piece. An array's offset in it is its address minus data().
  std::span<const std::byte> staging;

  // On the host.
  std::span<const AttentionPlanEntry> entries;  ///< in the order of the arrays, which a cascade chooses
  // Of the first full or compressed group; empty if there is none.
  std::span<const PageCopy> copies;
  std::span<const std::int64_t> append_slots;  ///< without padding
};

/// The arrays by the names of FlashInfer's paged wrappers (one level of its cascade wrapper).
struct FlashInferView {
  using IsBorrowed = void;  // see Result

  std::span<const std::int32_t> qo_indptr;
  std::span<const std::int32_t> kv_indptr;
  std::span<const std::int32_t> kv_indices;
  std::span<const std::int32_t> kv_last_page_len;
};
/// Fails unless the plan's page_tables are Csr and the group has such a level, and for token trees and windows that
/// have left keys behind: such kernels would read what is not to be seen. kv_indptr of a level begins where the one
/// before ends. A window group's lists begin with the page of the first key that is seen: tell the kernel the window.
/// Fails for those with a sink, and for compressed groups, whose pages hold entries.
[[nodiscard]] Result<FlashInferView> flashinfer_view(const AttentionPlan& plan, std::uint32_t group_index = 0,
                                                     std::uint32_t level_index = 0);

/// The arrays by the names of engines with block tables.
struct BlockTableView {
  using IsBorrowed = void;  // see Result

  std::span<const std::int32_t> block_table;  ///< [entries][columns]
  std::uint32_t columns = 0;
  std::span<const std::int64_t> slot_mapping;
  std::span<const std::int32_t> seq_lens;
  std::span<const std::int32_t> query_start_loc;
};
/// Fails unless the plan's page_tables are Block, and for trees, windows and compressed groups as above. A window
/// group's lines have all columns: tell the kernel the window.
[[nodiscard]] Result<BlockTableView> block_table_view(const AttentionPlan& plan, std::uint32_t group_index = 0);

}  // namespace quire
