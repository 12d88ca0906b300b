// SPDX-License-Identifier: Apache-2.0
//
// Random steps of sequences that grow, fork, slide and draft. A reader that knows nothing but quire/plan.h derives from
// the arrays what each query can read and where its token goes; that must be what the sequences say themselves.
#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_planner.h"
#include "quire/plan.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

/// Page and place in it.
using Place = std::pair<std::int64_t, std::int64_t>;

/// What the arrays of a plan say, as a kernel would read them.
class PlanReader {
 public:
  PlanReader(const AttentionPlan& plan, std::uint32_t page_tokens, const std::vector<std::vector<std::int32_t>>& table)
      : plan_(plan), group_(plan.groups[0]), page_tokens_(page_tokens), table_(table) {}

  /// Places of the keys that query r of entry e sees, in the order of the keys.
  [[nodiscard]] std::vector<Place> visible(std::size_t e, std::int64_t r) const {
    const std::vector<Place> keys = keys_of(e);
    const std::int64_t seq_len = plan_.seq_lens[e];
    const std::int64_t query_key = seq_len - (plan_.query_indptr[e + 1] - plan_.query_indptr[e]) + r;
    const std::int64_t window = plan_.visible_tokens[e];
    const std::int64_t sink = group_.levels.back().sink_tokens[e];
    const std::int64_t tree_begin = seq_len - (plan_.tree_indptr[e + 1] - plan_.tree_indptr[e]);
    const auto node = [&](std::int64_t key) {
      return plan_.tree_nodes[static_cast<std::size_t>(plan_.tree_indptr[e] + key - tree_begin)];
    };
    std::vector<Place> places;
    for (std::int64_t key = 0; key <= query_key; ++key) {
      if (window > 0 && key >= sink && query_key - key >= window - sink) continue;
      if (key >= tree_begin && (node(key).begin > node(query_key).begin || node(query_key).begin >= node(key).end)) {
        continue;
      }
      places.push_back(keys[static_cast<std::size_t>(key)]);
    }
    return places;
  }

  /// Likewise in layers with this window, of an entry without one: from the trimmed list alone.
  [[nodiscard]] std::vector<Place> visible(std::size_t e, std::int64_t r, const LayerWindowPlan& window) const {
    const std::int64_t seq_len = plan_.seq_lens[e];
    const std::int64_t query_key = seq_len - (plan_.query_indptr[e + 1] - plan_.query_indptr[e]) + r;
    const std::int64_t tree_begin = seq_len - (plan_.tree_indptr[e + 1] - plan_.tree_indptr[e]);
    const auto node = [&](std::int64_t key) {
      return plan_.tree_nodes[static_cast<std::size_t>(plan_.tree_indptr[e] + key - tree_begin)];
    };
    const auto place = [&](std::int64_t key) { return key < tree_begin ? key : tree_begin + node(key).depth; };
    const std::vector<Place> listed = listed_of(e, window);
    const std::int64_t first = window.first_keys[e];
    EXPECT_EQ(first + static_cast<std::int64_t>(listed.size()), seq_len);
    std::vector<Place> places;
    for (std::int64_t key = first; key <= query_key; ++key) {
      if (place(query_key) - place(key) >= window.window_tokens) continue;
      if (key >= tree_begin && (node(key).begin > node(query_key).begin || node(query_key).begin >= node(key).end)) {
        continue;
      }
      places.push_back(listed[static_cast<std::size_t>(key - first)]);
    }
    return places;
  }

  /// Whether an entry's list for layers with this window is that of the last level.
  [[nodiscard]] bool lists_all(std::size_t e, const LayerWindowPlan& window) const {
    const CascadeLevel& own = group_.levels.back();
    return window.first_keys[e] == 0 && window.key_offsets[e] == 0 &&
           pages_of(view_of(window), e, e) == pages_of(own, e, e);
  }

 private:
  /// What pages_of() reads of a level.
  [[nodiscard]] static CascadeLevel view_of(const LayerWindowPlan& window) {
    return {.page_indptr = window.page_indptr, .rows = window.rows, .first_columns = window.first_columns};
  }

  /// Every key of a trimmed list.
  [[nodiscard]] std::vector<Place> listed_of(std::size_t e, const LayerWindowPlan& window) const {
    const std::vector<std::int64_t> pages = pages_of(view_of(window), e, e);
    const std::int64_t tokens =
        ((static_cast<std::int64_t>(pages.size()) - 1) * page_tokens_) + group_.levels.back().last_page_tokens[e];
    std::vector<Place> places;
    for (std::int64_t token = window.key_offsets[e]; token < tokens; ++token) {
      places.emplace_back(pages[static_cast<std::size_t>(token / page_tokens_)], token % page_tokens_);
    }
    return places;
  }

  /// All keys of an entry: those of its slices in all levels, one after the other.
  [[nodiscard]] std::vector<Place> keys_of(std::size_t e) const {
    std::vector<Place> keys;
    const auto seq_len = static_cast<std::size_t>(plan_.seq_lens[e]);
    for (const CascadeLevel& level : group_.levels) {
      std::size_t slice = 0;
      while (level.query_indptr[slice + 1] <= plan_.query_indptr[e]) ++slice;
      const bool is_own = &level == &group_.levels.back();
      const std::vector<std::int64_t> pages = pages_of(level, slice, e);
      if (pages.empty()) continue;
      EXPECT_EQ(static_cast<std::size_t>(level.first_keys[slice]), keys.size());
      const std::int64_t tokens =
          ((static_cast<std::int64_t>(pages.size()) - 1) * page_tokens_) + level.last_page_tokens[slice];
      std::int64_t token = 0;
      while (token < tokens && (!is_own || keys.size() < seq_len)) {
        if (token == level.sink_tokens[slice]) token = level.window_offsets[slice];
        if (level.sink_tokens[slice] == 0 && keys.empty()) token = level.window_offsets[slice];
        keys.emplace_back(pages[static_cast<std::size_t>(token / page_tokens_)], token % page_tokens_);
        ++token;
      }
      EXPECT_EQ(token, tokens) << "keys end before the last listed token";
    }
    EXPECT_EQ(keys.size(), seq_len);
    return keys;
  }

  [[nodiscard]] std::vector<std::int64_t> pages_of(const CascadeLevel& level, std::size_t slice, std::size_t e) const {
    std::vector<std::int64_t> pages;
    const auto count = static_cast<std::size_t>(level.page_indptr[slice + 1] - level.page_indptr[slice]);
    for (std::size_t i = 0; i < count; ++i) {
      switch (plan_.page_tables) {
        case PageTables::Rows:
          pages.push_back(table_[static_cast<std::size_t>(level.rows[slice])]
                                [static_cast<std::size_t>(level.first_columns[slice]) + i]);
          break;
        case PageTables::Csr:
          pages.push_back(group_.page_indices[static_cast<std::size_t>(level.page_indptr[slice]) + i]);
          break;
        case PageTables::Block:
          pages.push_back(group_.block_table[(e * plan_.shape.columns) + i]);
          break;
      }
    }
    return pages;
  }

  const AttentionPlan& plan_;
  const GroupPlan& group_;
  std::uint32_t page_tokens_;
  const std::vector<std::vector<std::int32_t>>& table_;
};

/// A sequence as its owner knows it. Tokens are stored, then undecided tree tokens.
struct TestSequence {
  SequenceId id;
  std::vector<PageId> row;
  std::uint32_t token_count = 0;      // without the tree
  std::vector<std::int32_t> parents;  // of the tree
  std::uint32_t device_columns = 0;   // columns that the device's table has
  std::uint32_t window_tokens = 0;
  std::uint32_t sink_tokens = 0;
  std::vector<SlotRun> send_slots;
  std::uint32_t send_begin = 0;
  std::uint32_t sent_end = 0;  // tokens before it are sent
  std::vector<TokenId> tokens;

  [[nodiscard]] std::uint32_t context() const { return token_count + static_cast<std::uint32_t>(parents.size()); }
};

class PlannerModel {
 public:
  PlannerModel(testing::Random& random, PageTables page_tables)
      : config_{.page_tokens = 1 + random.below(5),
                .sequence_count_max = kSequences,
                .row_pages = kContextMax,
                .step_tokens_max = 200,
                .steps_in_flight_max = random.below(3),
                .tree_tokens_max = 12,
                .page_tables = page_tables,
                .cascade_levels_max = page_tables == PageTables::Block ? 1 : 1 + random.below(4),
                .layer_windows = draw_layer_windows(random, page_tables)},
        planner_(*AttentionPlanner::create(config_)),
        table_(kSequences, std::vector<std::int32_t>(kContextMax, -5)),
        sequences_(kSequences) {
    for (std::uint32_t i = 0; i < kSequences; ++i) restart(i);
  }

  std::string apply(const testing::Op& op) {
    testing::Random random(op.kind ^ (std::uint64_t{op.draws[0]} << 24U));
    if (random.below(3) == 0) change(random);
    draw_step(random);
    const AttentionPlan plan = planner_.build({.entries = entries_, .shape = shape_});
    for (const PageDelta& delta : plan.groups[0].deltas) {
      table_[static_cast<std::size_t>(delta.row)][static_cast<std::size_t>(delta.column)] = delta.page;
    }
    std::string difference = compare(plan);
    if (difference.empty()) difference = compare_levels(plan);
    if (difference.empty()) difference = compare_padding(plan);
    if (difference.empty() && ::testing::Test::HasFailure()) difference = "see above";
    finish_step(random);
    return difference;
  }

 private:
  static constexpr std::uint32_t kSequences = 6;
  static constexpr std::uint32_t kContextMax = 60;

  static std::vector<std::uint32_t> draw_layer_windows(testing::Random& random, PageTables page_tables) {
    std::vector<std::uint32_t> windows(page_tables == PageTables::Block ? 0 : random.below(4));
    for (std::uint32_t& window : windows) window = 1 + random.below(random.below(2) == 0 ? 6 : 40);
    return windows;
  }

  void restart(std::uint32_t index) {
    const std::uint32_t generation = sequences_[index].id.generation + 1;
    sequences_[index] = {};
    sequences_[index].id = {index, generation};
    sequences_[index].row.reserve(kContextMax);  // rows stay where they are
    planner_.forget_row(index);
  }

  void change(testing::Random& random) {
    TestSequence& sequence = sequences_[random.below(kSequences)];
    const TestSequence source = sequences_[random.below(kSequences)];
    switch (random.below(4)) {
      case 0:
        restart(sequence.id.index);
        break;
      case 1:  // a fork, at a whole page of a sequence that has all of them
        if (source.id.index == sequence.id.index || source.window_tokens > 0) break;
        restart(sequence.id.index);
        sequence.token_count = random.below((source.token_count / config_.page_tokens) + 1) * config_.page_tokens;
        sequence.row.assign(source.row.begin(), source.row.begin() + sequence.token_count / config_.page_tokens);
        break;
      case 2:
        if (!sequence.parents.empty() || sequence.window_tokens > 0) break;
        sequence.window_tokens = 1 + random.below(12);
        sequence.sink_tokens = random.below(sequence.window_tokens);
        break;
      default:
        sequence.send_slots.clear();
        sequence.send_begin = sequence.sent_end = random.below(sequence.token_count + 1);
        for (std::int64_t slot = 1000; slot < 1060;) {
          const std::int64_t count = 1 + random.below(9);
          sequence.send_slots.push_back({.first_slot = slot, .token_count = count});
          slot += count + random.below(2);
        }
        break;
    }
  }

  /// Each sequence takes part or not; `entries_` point into the sequences.
  void draw_step(testing::Random& random) {
    if (random.below(3) == 0) {  // otherwise the same sequences as before, which share what they shared
      batch_.resize(kSequences);
      std::iota(batch_.begin(), batch_.end(), 0U);
      for (std::uint32_t i = kSequences; i > 1; --i) std::swap(batch_[i - 1], batch_[random.below(i)]);
      batch_.resize(random.below(kSequences + 1));
    }
    entries_.clear();
    std::uint32_t tokens = 0;
    for (const std::uint32_t index : batch_) {
      if (sequences_[index].context() + 12 > kContextMax) restart(index);
      draw_entry(sequences_[index], random);
      tokens += entries_.back().token_count;
    }
    shape_ = {};
    if (random.below(2) == 0) {
      const std::uint32_t shape_tokens = random.below(4) == 0 ? tokens + random.below(20) : config_.step_tokens_max;
      shape_ = {.entries = kSequences, .tokens = shape_tokens, .columns = kContextMax};
    }
  }

  void draw_entry(TestSequence& sequence, testing::Random& random) {
    PlannerEntry entry{.sequence = sequence.id, .entry_index = static_cast<std::uint32_t>(entries_.size())};
    entry.window_tokens = sequence.window_tokens;
    entry.sink_tokens = sequence.sink_tokens;
    if (!sequence.parents.empty() || random.below(4) == 0) {  // a round of a tree
      const bool is_first = sequence.parents.empty();
      const std::uint32_t known = is_first ? random.below(3) : 0;
      entry.draft_count = 1 + random.below(4);
      sequence.token_count += known;
      for (std::uint32_t i = 0; i < entry.draft_count; ++i) {
        const auto size = static_cast<std::uint32_t>(sequence.parents.size());
        sequence.parents.push_back(static_cast<std::int32_t>(random.below(size + 1)) - 1);
      }
      entry.token_count = known + entry.draft_count;
    } else if (sequence.token_count > 0 && random.below(6) == 0) {
      entry.runs_again = true;
      entry.token_count = 1;
    } else {
      entry.token_count = 1 + (random.below(2) == 0 ? random.below(11) : 0);
      entry.draft_count = random.below(entry.token_count);
      sequence.token_count += entry.token_count;
    }
    entry.context_tokens = sequence.context();
    entry.position = entry.context_tokens - entry.token_count;
    while (sequence.row.size() * config_.page_tokens < sequence.context()) {
      // With a window, now and then a page is not stored at all.
      const bool is_stored = sequence.window_tokens == 0 || random.below(4) != 0;
      sequence.row.push_back(is_stored ? PageId{next_page_++} : kNullPage);
    }
    sequence.tokens.assign(entry.token_count, 1);
    entry.pages = sequence.row;
    entry.tokens = sequence.tokens;
    entry.tree_parents = sequence.parents;
    entry.changed_column = sequence.device_columns;
    sequence.device_columns = static_cast<std::uint32_t>(sequence.row.size());
    entry.shareable_pages = sequence.window_tokens > 0 ? 0 : sequence.token_count / config_.page_tokens;
    entry.send_slots = sequence.send_slots;
    if (!sequence.send_slots.empty()) {
      entry.send_begin = sequence.send_begin;
      entry.receiver = static_cast<std::int32_t>(sequence.id.index);
      entry.send_cached_begin = sequence.sent_end;
      entry.send_cached_end = std::max(sequence.sent_end, entry.position);
    }
    entries_.push_back(entry);
  }

  /// A tree is decided now and then, chain drafts are all accepted.
  void finish_step(testing::Random& random) {
    for (const PlannerEntry& entry : entries_) {
      TestSequence& sequence = sequences_[entry.sequence.index];
      sequence.sent_end = std::max(sequence.sent_end, entry.position);
      if (sequence.parents.empty() || (random.below(2) == 0 && sequence.parents.size() < 8)) continue;
      sequence.parents.clear();
      sequence.row.resize((sequence.token_count + config_.page_tokens - 1) / config_.page_tokens);
      sequence.device_columns = std::min(sequence.device_columns, static_cast<std::uint32_t>(sequence.row.size()));
      sequence.sent_end = std::min(sequence.sent_end, sequence.token_count);
    }
  }

  [[nodiscard]] Place place_of(const PlannerEntry& entry, std::uint32_t token) const {
    return {entry.pages[token / config_.page_tokens].value, token % config_.page_tokens};
  }

  /// Whether token a is token b or, in the undecided tree, its ancestor; tokens before the tree are ancestors of all.
  [[nodiscard]] static bool is_ancestor(const PlannerEntry& entry, std::uint32_t a, std::uint32_t b) {
    const std::uint32_t tree_begin = entry.context_tokens - static_cast<std::uint32_t>(entry.tree_parents.size());
    if (a < tree_begin) return a <= b;
    if (b < tree_begin) return false;
    auto node = static_cast<std::int32_t>(b - tree_begin);
    while (node > static_cast<std::int32_t>(a - tree_begin)) node = entry.tree_parents[static_cast<std::size_t>(node)];
    return node == static_cast<std::int32_t>(a - tree_begin);
  }

  [[nodiscard]] std::string compare(const AttentionPlan& plan) const {
    const PlanReader reader(plan, config_.page_tokens, table_);
    if (plan.entries.size() != entries_.size()) return "entries are missing";
    std::set<std::uint32_t> seen;
    for (std::size_t e = 0; e < plan.entries.size(); ++e) {
      const std::uint32_t index = plan.entries[e].entry_index;
      if (index >= entries_.size() || !seen.insert(index).second) return "entries are no permutation";
      const PlannerEntry& entry = entries_[index];
      std::string at = "entry " + std::to_string(e) + ": ";
      if (plan.state_slots[e] != static_cast<std::int32_t>(entry.sequence.index)) return at + "another state slot";
      if (plan.visible_tokens[e] != static_cast<std::int32_t>(entry.window_tokens)) return at + "another window";
      if (plan.entries[e].append_slots.size() != entry.token_count) return at + "another number of queries";
      for (std::uint32_t r = 0; r < entry.token_count; ++r) {
        const std::string difference = compare_query(plan, reader, e, r);
        if (!difference.empty()) return at.append("query ").append(std::to_string(r)).append(": ").append(difference);
      }
    }
    return compare_sends(plan);
  }

  [[nodiscard]] std::string compare_query(const AttentionPlan& plan, const PlanReader& reader, std::size_t e,
                                          std::uint32_t r) const {
    const PlannerEntry& entry = entries_[plan.entries[e].entry_index];
    const std::uint32_t token = entry.position + r;
    const std::uint32_t recent = entry.window_tokens - entry.sink_tokens;
    std::vector<Place> places;
    std::uint32_t ancestors = 0;
    for (std::uint32_t other = 0; other <= token; ++other) {
      if (!is_ancestor(entry, other, token)) continue;
      ++ancestors;
      if (entry.window_tokens > 0 && other >= entry.sink_tokens && token - other >= recent) continue;
      places.push_back(place_of(entry, other));
    }
    if (reader.visible(e, r) != places) return "reads other keys";
    for (const LayerWindowPlan& window : plan.groups[0].layer_windows) {
      // Without a window of its own, the query sees its last ancestors; their places count up by one.
      const std::size_t seen = std::min<std::size_t>(places.size(), window.window_tokens);
      const std::vector<Place> last(places.end() - static_cast<std::ptrdiff_t>(seen), places.end());
      const bool is_right =
          entry.window_tokens > 0 ? reader.lists_all(e, window) : reader.visible(e, r, window) == last;
      if (!is_right) return "reads other keys in layers with a window of " + std::to_string(window.window_tokens);
      // Nothing is listed that no query can see.
      const std::uint32_t first = first_place(entry);
      const std::uint32_t begin = first + 1 - std::min(first + 1, window.window_tokens);
      if (entry.window_tokens == 0 && window.first_keys[e] != static_cast<std::int32_t>(begin)) return "lists too much";
    }

    const auto query = static_cast<std::size_t>(plan.query_indptr[e]) + r;
    std::uint32_t position = ancestors - 1;
    if (entry.window_tokens > 0) position = std::min(position, entry.window_tokens - 1);
    if (plan.query_positions[query] != static_cast<std::int32_t>(position)) return "stands elsewhere";
    const Place place = place_of(entry, token);
    const bool is_written = !entry.runs_again && place.first != 0;
    if (plan.append_slots[query] != (is_written ? (place.first * config_.page_tokens) + place.second : kNoSlot)) {
      return "writes elsewhere";
    }
    const std::uint32_t before =
        entry.tree_parents.empty() || entry.draft_count < entry.tree_parents.size()
            ? entry.context_tokens - std::max(entry.token_count, static_cast<std::uint32_t>(entry.tree_parents.size()))
            : entry.position;
    if (plan.seq_lens[e] - plan.stored_lens[e] != static_cast<std::int32_t>(entry.context_tokens - before)) {
      return "counts other stored keys";
    }
    return "";
  }

  /// Every token to be sent has its slot once, with its query or in a run.
  [[nodiscard]] std::string compare_sends(const AttentionPlan& plan) const {
    const GroupPlan& group = plan.groups[0];
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> sent;  // receiver and remote slot to local slot
    for (const SendRun& run : group.sends) {
      for (std::int64_t i = 0; i < run.token_count; ++i) sent[{run.receiver, run.remote_slot + i}] = run.local_slot + i;
    }
    bool is_any = false;
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      const PlannerEntry& entry = entries_[plan.entries[e].entry_index];
      is_any = is_any || !entry.send_slots.empty();
      if (group.remote_slots.empty()) continue;
      std::vector<std::int64_t> slots;
      for (const SlotRun& run : entry.send_slots) {
        for (std::int64_t i = 0; i < run.token_count; ++i) slots.push_back(run.first_slot + i);
      }
      for (std::uint32_t token = 0; token < entry.context_tokens; ++token) {
        const bool is_marked = token >= entry.send_begin && token - entry.send_begin < slots.size();
        const std::int64_t slot = is_marked ? slots[token - entry.send_begin] : kNoSlot;
        const Place place = place_of(entry, token);
        if (is_marked && token >= entry.send_cached_begin && token < entry.send_cached_end && place.first != 0) {
          const auto found = sent.extract({entry.receiver, slot});
          if (found.empty() || found.mapped() != (place.first * config_.page_tokens) + place.second) return "not sent";
        }
        if (token < entry.position) continue;
        const auto query = static_cast<std::size_t>(plan.query_indptr[e]) + token - entry.position;
        const bool is_tree = token >= entry.context_tokens - entry.tree_parents.size();
        const std::int64_t remote = entry.runs_again || is_tree ? kNoSlot : slot;
        if (group.remote_slots[query] != remote) return "a query is sent elsewhere";
        if (group.receivers[query] != (remote == kNoSlot ? -1 : entry.receiver)) return "another receiver";
      }
    }
    if (is_any == group.remote_slots.empty()) return "remote slots without sends, or the other way round";
    return sent.empty() ? "" : "sent without need";
  }

  /// Of the first query, or in a later round of a tree of the tree's first token.
  [[nodiscard]] static std::uint32_t first_place(const PlannerEntry& entry) {
    return std::min(entry.position, entry.context_tokens - static_cast<std::uint32_t>(entry.tree_parents.size()));
  }

  [[nodiscard]] std::string compare_levels(const AttentionPlan& plan) const {
    const std::span<const CascadeLevel> levels = plan.groups[0].levels;
    if (levels.size() != config_.cascade_levels_max) return "another number of levels";
    if (plan.groups[0].layer_windows.size() != config_.layer_windows.size()) return "another number of layer windows";
    for (const CascadeLevel& level : levels) {
      if (level.query_indptr.size() != plan.shape.entries + 1U) return "levels of another shape";
      if (level.query_indptr.front() != 0 || level.query_indptr.back() != static_cast<std::int32_t>(plan.token_count)) {
        return "slices do not cover the queries";
      }
      for (std::size_t i = 0; i + 1 < level.page_indptr.size(); ++i) {
        const bool has_pages = level.page_indptr[i + 1] > level.page_indptr[i];
        const bool is_padding = level.query_indptr[i] == static_cast<std::int32_t>(plan.token_count);
        if (is_padding &&
            (has_pages || level.query_indptr[i + 1] != level.query_indptr[i] || level.last_page_tokens[i] != 0 ||
             level.first_keys[i] != 0 || level.sink_tokens[i] != 0 || level.window_offsets[i] != 0 ||
             (!level.rows.empty() && level.rows[i] != -1) || (!level.rows.empty() && level.first_columns[i] != 0))) {
          return "a padding slice is none";
        }
        if (has_pages != (level.last_page_tokens[i] > 0)) return "an empty slice with keys";
        if (!has_pages || &level == &levels.back()) continue;
        const auto begin = std::ranges::lower_bound(plan.query_indptr, level.query_indptr[i]);
        const auto end = std::ranges::lower_bound(plan.query_indptr, level.query_indptr[i + 1]);
        if (end - begin < 2) return "a shared slice with one entry";
        if (level.last_page_tokens[i] != static_cast<std::int32_t>(config_.page_tokens)) return "a shared part page";
      }
    }
    return "";
  }

  [[nodiscard]] std::string compare_padding(const AttentionPlan& plan) const {
    if (shape_.entries > 0 && plan.shape != shape_) return "another shape";
    for (std::size_t e = entries_.size(); e < plan.shape.entries; ++e) {
      if (plan.seq_lens[e] != 0 || plan.stored_lens[e] != 0 || plan.visible_tokens[e] != 0 ||
          plan.state_slots[e] != -1 || plan.query_indptr[e + 1] != plan.query_indptr[e] ||
          plan.tree_indptr[e + 1] != plan.tree_indptr[e]) {
        return "a padding entry is none";
      }
      for (const LayerWindowPlan& window : plan.groups[0].layer_windows) {
        if (window.page_indptr[e + 1] != window.page_indptr[e] || window.first_keys[e] != 0 ||
            window.key_offsets[e] != 0 || (!window.rows.empty() && window.rows[e] != -1)) {
          return "a padding entry lists keys for a layer";
        }
      }
    }
    for (std::size_t query = plan.token_count; query < plan.shape.tokens; ++query) {
      if (plan.query_positions[query] != 0 || plan.groups[0].append_slots[query] != kNoSlot) return "a padding query";
    }
    return "";
  }

  AttentionPlannerConfig config_;
  AttentionPlanner planner_;
  std::vector<std::vector<std::int32_t>> table_;  // the device's
  std::vector<TestSequence> sequences_;
  std::uint32_t next_page_ = 1;
  std::vector<std::uint32_t> batch_;
  std::vector<PlannerEntry> entries_;
  PlanShape shape_;
};

class AttentionPlannerModel : public ::testing::TestWithParam<PageTables> {};

TEST_P(AttentionPlannerModel, QueriesReadAndWriteWhatTheirSequencesSay) {
  EXPECT_EQ(testing::run_seeds({.test = "bin/attention_planner_test --gtest_filter=*WhatTheirSequencesSay*",
                                .seed_count = 30,
                                .step_count = 100},
                               [](testing::Random& random) { return PlannerModel(random, GetParam()); }),
            "");
}

INSTANTIATE_TEST_SUITE_P(
    PageTables, AttentionPlannerModel, ::testing::Values(PageTables::Rows, PageTables::Csr, PageTables::Block),
    [](const ::testing::TestParamInfo<PageTables>& tables) {
      return std::string(tables.param == PageTables::Rows ? "Rows" : tables.param == PageTables::Csr ? "Csr" : "Block");
    });

}  // namespace
}  // namespace quire
