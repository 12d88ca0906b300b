// SPDX-License-Identifier: Apache-2.0
//
// Attention of one query and one head, from a plan's arrays and a pool, wherever both lie: the code of a GPU's thread,
// and of the host in tests. It reads what KeyFinder reads, key by key and without lists of them, and computes what the
// engine's own loops compute, in their order, so that results are the same bit for bit: RoPE comes from a table that
// the host has filled, and exp() is portable_exp().
//
// A plan that names places outside of pool, table or step is noticed, not followed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "portable_exp.h"
#include "quire/layout.h"
#include "quire/plan.h"

#if defined(__CUDACC__)
#define TINY_ENGINE_BOTH __host__ __device__
#else
#define TINY_ENGINE_BOTH
#endif

namespace tiny_engine {

inline constexpr std::uint32_t kPagedLevelsMax = 8;
inline constexpr std::uint32_t kPagedDimMax = 64;

/// What attention does with the rows of a layer, of either kind.
struct AttentionShape {
  std::uint32_t query_heads = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t key_dim = 0;          ///< of a head's row of component 0, and of a query
  std::uint32_t value_dim = 0;        ///< the first numbers of …
  std::uint32_t value_component = 0;  ///< … a head's row of this one
  std::uint32_t rope_begin = 0;       ///< what RoPE turns of a key
  std::uint32_t rope_dim = 0;
  bool turns_keys = false;  ///< they are stored unrotated
  double divisor = 1.0;     ///< of scores
};

/// A level's lists, or the trimmed ones of layers with a window.
struct PagedLevel {
  const std::int32_t* query_indptr = nullptr;  ///< null: slices are entries
  const std::int32_t* page_indptr = nullptr;
  const std::int32_t* rows = nullptr;
  const std::int32_t* first_columns = nullptr;
  const std::int32_t* last_page_tokens = nullptr;
  const std::int32_t* window_offsets = nullptr;
  const std::int32_t* sink_tokens = nullptr;
  const std::int32_t* first_keys = nullptr;
  const std::int32_t* key_offsets = nullptr;  ///< of trimmed lists only
};

/// A plan as a kernel gets it: addresses in the device's memory, and lengths.
struct PagedPlan {
  quire::PageTables page_tables = quire::PageTables::Rows;
  std::int32_t entry_count = 0;  ///< padding included
  std::int32_t query_count = 0;
  const std::int32_t* query_positions = nullptr;
  const std::int32_t* query_indptr = nullptr;
  const std::int32_t* seq_lens = nullptr;
  const std::int32_t* visible_tokens = nullptr;
  const std::int32_t* tree_indptr = nullptr;
  const quire::TreeNode* tree_nodes = nullptr;
  std::int64_t tree_node_count = 0;
  const std::int64_t* append_slots = nullptr;
  PagedLevel levels[kPagedLevelsMax];
  std::uint32_t level_count = 0;
  std::int32_t layer_window = 0;  ///< the one level is a trimmed list for it; 0: the levels are the plan's
  // One of three, by page_tables.
  const std::int32_t* table = nullptr;
  std::int64_t table_rows = 0;
  std::int64_t table_columns = 0;
  const std::int32_t* page_indices = nullptr;
  std::int64_t page_index_count = 0;
  const std::int32_t* block_table = nullptr;
  std::int64_t block_columns = 0;
  // The pool.
  std::int32_t page_tokens = 1;
  std::int32_t page_count = 0;
  bool reads_appended = false;  ///< this step's own keys are in their pages, where they have an append slot
};

enum class PagedProblem : std::int32_t { None, NoEntry, NoSlice, NoNode, NoQuery, NoPage, NoPosition, NoKey };

struct PagedKey {
  std::int64_t slot = quire::kNoSlot;  ///< in the pool …
  std::int32_t query = -1;             ///< … or the query of this step whose K and V it is
  std::int32_t position = 0;
};

/// The keys that one query sees, one after the other. See docs/attention_plans.md for the rules.
class KeyWalk {
 public:
  TINY_ENGINE_BOTH KeyWalk(const PagedPlan& plan, std::int32_t query) : plan_(plan), query_(query) {
    entry_ = range_of(plan.query_indptr, query);
    if (entry_ < 0) {
      problem_ = PagedProblem::NoEntry;
      return;
    }
    first_query_ = plan.query_indptr[entry_];
    const std::int32_t query_count = plan.query_indptr[entry_ + 1] - first_query_;
    seq_len_ = plan.seq_lens[entry_];
    window_ = plan.visible_tokens[entry_];
    tree_begin_ = plan.tree_indptr[entry_];
    tree_count_ = plan.tree_indptr[entry_ + 1] - tree_begin_;
    if (tree_count_ < 0 || tree_begin_ < 0 || std::int64_t{tree_begin_} + tree_count_ > plan.tree_node_count) {
      problem_ = PagedProblem::NoNode;
      return;
    }
    first_new_ = seq_len_ - query_count;
    key_index_ = first_new_ + (query - first_query_);
    text_index_ = text_index_of(key_index_);
    position_ = plan.query_positions[query];
    // A window's sink is that of the last level, wherever the query's other slices lie.
    if (plan.layer_window == 0 || window_ > 0) sink_ = sink_of(plan.levels[plan.level_count - 1]);
  }

  /// The next key; false behind the last one, and when there is a problem.
  TINY_ENGINE_BOTH bool next(PagedKey& key) {
    while (problem_ == PagedProblem::None) {
      if (at_ == key_count_) {
        if (level_ == plan_.level_count || !open_slice(plan_.levels[level_++])) return false;
        continue;
      }
      const std::int32_t in_slice = at_++;
      const std::int32_t number = first_key_ + in_slice;
      if (number < 0 || number >= seq_len_) {
        problem_ = PagedProblem::NoKey;
        return false;
      }
      if (!sees(number)) continue;
      const std::int32_t text_index = text_index_of(number);
      // A window renumbers what lies behind its sink by how far back it is.
      const bool is_renumbered = window_ > 0 && text_index >= sink_;
      key.position = is_renumbered ? position_ - (text_index_ - text_index) : text_index;
      if (plan_.layer_window > 0 && position_ - key.position >= plan_.layer_window) continue;
      const std::int32_t query = first_query_ + number - first_new_;
      const bool is_in_pages = number < first_new_ || (plan_.reads_appended && query >= 0 &&
                                                       query < plan_.query_count && plan_.append_slots[query] >= 0);
      key.slot = quire::kNoSlot;
      key.query = -1;
      if (is_in_pages) {
        key.slot = slot_of(in_slice);
        if (key.slot < 0) problem_ = PagedProblem::NoPage;
      } else {
        key.query = query;
        if (query < 0 || query >= plan_.query_count) problem_ = PagedProblem::NoQuery;
      }
      return problem_ == PagedProblem::None;
    }
    return false;
  }

  [[nodiscard]] TINY_ENGINE_BOTH PagedProblem problem() const { return problem_; }

 private:
  /// The range of offsets that holds `at`, or -1.
  [[nodiscard]] TINY_ENGINE_BOTH std::int32_t range_of(const std::int32_t* indptr, std::int32_t at) const {
    for (std::int32_t i = 0; i < plan_.entry_count; ++i) {
      if (indptr[i] <= at && at < indptr[i + 1]) return i;
    }
    return -1;
  }
  [[nodiscard]] TINY_ENGINE_BOTH std::int32_t slice_in(const PagedLevel& level) const {
    return level.query_indptr == nullptr ? entry_ : range_of(level.query_indptr, query_);
  }
  [[nodiscard]] TINY_ENGINE_BOTH std::int32_t sink_of(const PagedLevel& level) const {
    const std::int32_t slice = slice_in(level);
    return slice < 0 ? 0 : level.sink_tokens[slice];
  }

  TINY_ENGINE_BOTH bool open_slice(const PagedLevel& level) {
    slice_ = slice_in(level);
    if (slice_ < 0) {
      problem_ = PagedProblem::NoSlice;
      return false;
    }
    page_begin_ = level.page_indptr[slice_];
    listed_pages_ = level.page_indptr[slice_ + 1] - page_begin_;
    first_key_ = level.first_keys[slice_];
    const bool is_trimmed = level.key_offsets != nullptr && window_ == 0;
    slice_sink_ = is_trimmed ? 0 : level.sink_tokens[slice_];
    window_offset_ = is_trimmed ? level.key_offsets[slice_] : level.window_offsets[slice_];
    if (plan_.page_tables == quire::PageTables::Rows) {
      row_ = level.rows[slice_];
      first_column_ = level.first_columns[slice_];
    }
    at_ = 0;
    key_count_ = 0;
    if (listed_pages_ > 0) {
      key_count_ =
          ((listed_pages_ - 1) * plan_.page_tokens) + level.last_page_tokens[slice_] - window_offset_ + slice_sink_;
      if (key_count_ < 0) problem_ = PagedProblem::NoKey;
    }
    return problem_ == PagedProblem::None;
  }

  /// Negative where there is none.
  [[nodiscard]] TINY_ENGINE_BOTH std::int64_t slot_of(std::int32_t in_slice) const {
    const std::int32_t token = in_slice < slice_sink_ ? in_slice : in_slice - slice_sink_ + window_offset_;
    const std::int32_t listed = token / plan_.page_tokens;
    if (token < 0 || listed >= listed_pages_) return -1;
    std::int32_t page = -1;
    if (plan_.page_tables == quire::PageTables::Rows) {
      const std::int64_t column = std::int64_t{first_column_} + listed;
      if (row_ < 0 || row_ >= plan_.table_rows || column < 0 || column >= plan_.table_columns) return -1;
      page = plan_.table[(row_ * plan_.table_columns) + column];
    } else if (plan_.page_tables == quire::PageTables::Csr) {
      const std::int64_t index = std::int64_t{page_begin_} + listed;
      if (index < 0 || index >= plan_.page_index_count) return -1;
      page = plan_.page_indices[index];
    } else {
      if (listed >= plan_.block_columns) return -1;
      page = plan_.block_table[(entry_ * plan_.block_columns) + listed];
    }
    if (page < 0 || page >= plan_.page_count) return -1;
    return (std::int64_t{page} * plan_.page_tokens) + (token % plan_.page_tokens);
  }

  [[nodiscard]] TINY_ENGINE_BOTH std::int32_t text_index_of(std::int32_t key) const {
    const std::int32_t tree_first = seq_len_ - tree_count_;
    return key < tree_first ? key : tree_first + plan_.tree_nodes[tree_begin_ + key - tree_first].depth;
  }

  [[nodiscard]] TINY_ENGINE_BOTH bool sees(std::int32_t key) const {
    const std::int32_t tree_first = seq_len_ - tree_count_;
    if (key >= tree_first && key_index_ >= tree_first) {
      const quire::TreeNode& seen = plan_.tree_nodes[tree_begin_ + key - tree_first];
      const quire::TreeNode& own = plan_.tree_nodes[tree_begin_ + key_index_ - tree_first];
      if (seen.begin > own.begin || own.begin >= seen.end) return false;
    } else if (key > key_index_) {
      return false;
    }
    const std::int32_t text_index = text_index_of(key);
    if (window_ == 0 || text_index < sink_) return true;
    return text_index_ - text_index < window_ - sink_;
  }

  const PagedPlan& plan_;
  std::int32_t query_;
  PagedProblem problem_ = PagedProblem::None;
  // Of the query's entry.
  std::int32_t entry_ = -1;
  std::int32_t first_query_ = 0;
  std::int32_t seq_len_ = 0;
  std::int32_t window_ = 0;
  std::int32_t sink_ = 0;
  std::int32_t tree_begin_ = 0;
  std::int32_t tree_count_ = 0;
  std::int32_t first_new_ = 0;   // number of the first key that is a query
  std::int32_t key_index_ = 0;   // the query's own number
  std::int32_t text_index_ = 0;  // its place in the text
  std::int32_t position_ = 0;    // for RoPE
  // Of the slice that is walked.
  std::uint32_t level_ = 0;  // the next one
  std::int32_t slice_ = -1;
  std::int32_t row_ = -1;
  std::int32_t first_column_ = 0;
  std::int32_t page_begin_ = 0;
  std::int32_t listed_pages_ = 0;
  std::int32_t first_key_ = 0;
  std::int32_t window_offset_ = 0;
  std::int32_t slice_sink_ = 0;
  std::int32_t at_ = 0;
  std::int32_t key_count_ = 0;
};

struct PagedAttentionParams {
  PagedPlan plan;
  AttentionShape shape;
  quire::PoolStrides strides;
  const std::byte* pool = nullptr;
  std::uint32_t layer_index = 0;
  const double* queries = nullptr;             ///< [queries][query_heads][key_dim], rotated
  const double* rows[2] = {nullptr, nullptr};  ///< what the step stores: [queries][kv_heads][dim], of each component
  std::uint32_t row_dims[2] = {0, 0};          ///< numbers of a head in them
  const double* turns = nullptr;               ///< [position_count][rope_dim / 2] cosine and sine
  std::int32_t position_count = 0;
  double* mixed = nullptr;          ///< [queries][query_heads][value_dim]
  std::int32_t* problem = nullptr;  ///< the PagedProblem of a query that has one
};

/// A head's row of a key.
[[nodiscard]] TINY_ENGINE_BOTH inline const double* paged_row(const PagedAttentionParams& params, const PagedKey& key,
                                                              std::uint32_t component, std::uint32_t head) {
  if (key.slot < 0) {
    return params.rows[component] +
           (((static_cast<std::uint64_t>(key.query) * params.shape.kv_heads) + head) * params.row_dims[component]);
  }
  const auto page_tokens = static_cast<std::int64_t>(params.plan.page_tokens);
  const quire::ComponentStrides& strides = params.strides.components[component];
  const std::uint64_t offset = (static_cast<std::uint64_t>(key.slot / page_tokens) * params.strides.page) +
                               (params.layer_index * params.strides.layer) + strides.offset +
                               (static_cast<std::uint64_t>(key.slot % page_tokens) * strides.token) +
                               (head * strides.head);
  return reinterpret_cast<const double*>(params.pool + offset);
}

/// Fills the query's and head's part of `mixed`.
TINY_ENGINE_BOTH inline void attend_paged(const PagedAttentionParams& params, std::int32_t query, std::uint32_t head) {
  const AttentionShape& shape = params.shape;
  const std::uint64_t line = (static_cast<std::uint64_t>(query) * shape.query_heads) + head;
  const double* const own = params.queries + (line * shape.key_dim);
  double* const out = params.mixed + (line * shape.value_dim);
  const std::uint32_t kv_head = head / (shape.query_heads / shape.kv_heads);
  for (std::uint32_t i = 0; i < shape.value_dim; ++i) out[i] = 0.0;
  double highest = -1e300;
  double total = 0.0;
  double turned[kPagedDimMax];
  KeyWalk walk(params.plan, query);
  PagedKey key;
  while (walk.next(key)) {
    const double* row = paged_row(params, key, 0, kv_head);
    const double* const value = paged_row(params, key, shape.value_component, kv_head);
    if (shape.turns_keys) {
      if (key.position < 0 || key.position >= params.position_count) {
        *params.problem = static_cast<std::int32_t>(PagedProblem::NoPosition);
        return;
      }
      for (std::uint32_t i = 0; i < shape.key_dim; ++i) turned[i] = row[i];
      const double* const turns = params.turns + (static_cast<std::uint64_t>(key.position) * shape.rope_dim);
      for (std::uint32_t i = 0; i + 1 < shape.rope_dim; i += 2) {
        const double x = row[shape.rope_begin + i];
        const double y = row[shape.rope_begin + i + 1];
        turned[shape.rope_begin + i] = (turns[i] * x) - (turns[i + 1] * y);
        turned[shape.rope_begin + i + 1] = (turns[i + 1] * x) + (turns[i] * y);
      }
      row = turned;
    }
    double score = 0.0;
    for (std::uint32_t i = 0; i < shape.key_dim; ++i) score += own[i] * row[i];
    score /= shape.divisor;
    if (score > highest) {
      const double shrink = total > 0.0 ? portable_exp(highest - score) : 0.0;
      total *= shrink;
      for (std::uint32_t i = 0; i < shape.value_dim; ++i) out[i] *= shrink;
      highest = score;
    }
    const double weight = portable_exp(score - highest);
    total += weight;
    for (std::uint32_t i = 0; i < shape.value_dim; ++i) out[i] += weight * value[i];
  }
  const PagedProblem problem =
      walk.problem() == PagedProblem::None && total == 0.0 ? PagedProblem::NoKey : walk.problem();
  if (problem != PagedProblem::None) *params.problem = static_cast<std::int32_t>(problem);
  for (std::uint32_t i = 0; i < shape.value_dim; ++i) out[i] /= total;
}

}  // namespace tiny_engine
