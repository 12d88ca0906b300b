// SPDX-License-Identifier: Apache-2.0
//
// Random steps of sequences in layouts of random groups. A reader that knows nothing but quire/plan.h derives from the
// arrays of each group what every query can read and where its token goes; that must be what the definitions of the
// groups say, token by token.
#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_planner.h"
#include "quire/plan.h"
#include "quire/state_slots.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using Kind = PlannerGroup::Kind;
using Table = std::vector<std::vector<std::int32_t>>;
/// Page and place in it.
using Place = std::pair<std::int64_t, std::int64_t>;

/// What a window group's arrays say, as a kernel would read them.
class WindowReader {
 public:
  WindowReader(const AttentionPlan& plan, const GroupPlan& group, std::uint32_t page_tokens, const Table& table)
      : plan_(plan), group_(group), level_(group.levels[0]), page_tokens_(page_tokens), table_(table) {}

  /// Places of the keys that query r of entry e sees.
  [[nodiscard]] std::vector<Place> visible(std::size_t e, std::int64_t r) const {
    const std::int64_t seq_len = plan_.seq_lens[e];
    const std::int64_t query_key = seq_len - (plan_.query_indptr[e + 1] - plan_.query_indptr[e]) + r;
    const std::int64_t tree_begin = seq_len - (plan_.tree_indptr[e + 1] - plan_.tree_indptr[e]);
    const auto node = [&](std::int64_t key) {
      return plan_.tree_nodes[static_cast<std::size_t>(plan_.tree_indptr[e] + key - tree_begin)];
    };
    const auto place = [&](std::int64_t key) { return key < tree_begin ? key : tree_begin + node(key).depth; };
    std::vector<Place> places;
    for (std::int64_t key = 0; key <= query_key; ++key) {
      if (key >= tree_begin && (node(key).begin > node(query_key).begin || node(query_key).begin >= node(key).end)) {
        continue;
      }
      const bool is_sink = key < level_.sink_tokens[e];
      if (!is_sink && place(query_key) - place(key) >= group_.window_tokens) continue;
      places.push_back(place_of(e, key, is_sink));
    }
    return places;
  }

 private:
  [[nodiscard]] Place place_of(std::size_t e, std::int64_t key, bool is_sink) const {
    if (!is_sink && key < level_.first_keys[e]) return {-1, key};  // seen, but not listed
    const std::int64_t token = is_sink ? key : key - level_.first_keys[e] + level_.window_offsets[e];
    const std::int64_t column = token / page_tokens_;
    const std::int64_t count = level_.page_indptr[e + 1] - level_.page_indptr[e];
    if (column >= count) return {-2, key};
    if (column + 1 == count && token % page_tokens_ >= level_.last_page_tokens[e]) return {-3, key};
    const auto index = static_cast<std::size_t>(column);
    std::int64_t page = 0;
    switch (plan_.page_tables) {
      case PageTables::Rows:
        page =
            table_[static_cast<std::size_t>(level_.rows[e])][static_cast<std::size_t>(level_.first_columns[e]) + index];
        break;
      case PageTables::Csr:
        page = group_.page_indices[static_cast<std::size_t>(level_.page_indptr[e]) + index];
        break;
      case PageTables::Block:
        page = group_.block_table[(e * plan_.shape.columns) + index];
        break;
    }
    return {page, token % page_tokens_};
  }

  const AttentionPlan& plan_;
  const GroupPlan& group_;
  const CascadeLevel& level_;
  std::uint32_t page_tokens_;
  const Table& table_;
};

struct TestSequence {
  std::uint32_t generation = 1;
  std::uint32_t token_count = 0;
  std::vector<std::int32_t> parents;  // of an undecided tree
  std::vector<PageId> row;
  std::uint32_t device_columns = 0;
  std::vector<std::vector<PageId>> windows;
  std::vector<std::uint32_t> window_columns;  // that the device's tables have
};

class GroupsModel {
 public:
  GroupsModel(testing::Random& random, PageTables page_tables)
      : config_(draw_config(random, page_tables)),
        planner_(*AttentionPlanner::create(config_)),
        tables_(config_.groups.size(), Table(kSequences, std::vector<std::int32_t>(kContextMax, -5))),
        sequences_(kSequences) {
    for (const PlannerGroup& group : config_.groups) {
      window_count_ += group.kind == Kind::Window ? 1 : 0;
      has_trees_ = has_trees_ && group.kind != Kind::Compressed;
    }
    for (std::size_t i = config_.groups.size(); i-- > 0;) {
      if (config_.groups[i].kind == Kind::Full || config_.groups[i].kind == Kind::Compressed) main_index_ = i;
    }
    for (std::uint32_t i = 0; i < kSequences; ++i) restart(i);
  }

  std::string apply(const testing::Op& op) {
    testing::Random random(op.kind ^ (std::uint64_t{op.draws[0]} << 24U));
    if (random.below(5) == 0) restart(random.below(kSequences));
    draw_step(random);
    const AttentionPlan plan =
        planner_.build({.entries = entries_, .entry_groups = entry_groups_, .shape = shape_, .windows = window_steps_});
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      for (const PageDelta& delta : plan.groups[g].deltas) {
        tables_[g][static_cast<std::size_t>(delta.row)][static_cast<std::size_t>(delta.column)] = delta.page;
      }
    }
    std::string difference = compare(plan);
    for (const PlannerEntry& entry : entries_) {  // a tree is dropped now and then
      TestSequence& sequence = sequences_[entry.sequence.index];
      if (!sequence.parents.empty() && (random.below(2) == 0 || sequence.parents.size() > 7)) drop_tree(sequence);
    }
    return difference;
  }

 private:
  static constexpr std::uint32_t kSequences = 5;
  static constexpr std::uint32_t kContextMax = 90;
  static constexpr std::size_t kNone = SIZE_MAX;

  static AttentionPlannerConfig draw_config(testing::Random& random, PageTables page_tables) {
    AttentionPlannerConfig config{.page_tokens = 1 + random.below(6),
                                  .sequence_count_max = kSequences,
                                  .row_pages = kContextMax,
                                  .step_tokens_max = 100,
                                  .steps_in_flight_max = 0,
                                  .tree_tokens_max = 12,
                                  .page_tables = page_tables,
                                  .cascade_levels_max = page_tables == PageTables::Block ? 1 : 1 + random.below(3)};
    if (page_tables != PageTables::Block && random.below(3) == 0) config.layer_windows = {3};
    for (std::uint32_t i = 1 + random.below(5); i > 0; --i) {
      PlannerGroup& group = config.groups.emplace_back();
      group.kind = static_cast<Kind>(random.below(5));
      if (group.kind == Kind::Compressed) {
        do group.tokens_per_entry = 1 + random.below(config.page_tokens);
        while (config.page_tokens % group.tokens_per_entry != 0);
      }
      if (group.kind == Kind::Window) group.window_tokens = 1 + random.below(random.below(2) == 0 ? 4 : 25);
      if (group.kind == Kind::Window || group.kind == Kind::Ring) {
        group.sink_tokens = random.below(2) == 0 ? random.below(9) : 0;
      }
      if (group.kind == Kind::Ring) group.slot_entries = group.sink_tokens + 1 + random.below(12);
    }
    return config;
  }

  void restart(std::uint32_t index) {
    const std::uint32_t generation = sequences_[index].generation + 1;
    sequences_[index] = {.generation = generation};
    sequences_[index].row.reserve(kContextMax);  // rows stay where they are
    sequences_[index].windows.resize(window_count_);
    sequences_[index].window_columns.assign(window_count_, 0);
    planner_.forget_row(index);
  }

  void drop_tree(TestSequence& sequence) {
    sequence.parents.clear();
    const std::size_t columns = (sequence.token_count + config_.page_tokens - 1) / config_.page_tokens;
    sequence.row.resize(columns);
    sequence.device_columns = std::min(sequence.device_columns, static_cast<std::uint32_t>(columns));
    for (std::size_t i = 0; i < window_count_; ++i) {
      sequence.windows[i].resize(columns);
      sequence.window_columns[i] = std::min(sequence.window_columns[i], static_cast<std::uint32_t>(columns));
    }
  }

  void draw_step(testing::Random& random) {
    entries_.clear();
    entry_groups_.clear();
    windows_.clear();
    std::uint32_t tokens = 0;
    for (std::uint32_t i = 0; i < kSequences; ++i) {
      if (random.below(3) == 0) continue;
      if (sequences_[i].token_count + 40 > kContextMax) restart(i);
      draw_entry(i, random);
      tokens += entries_.back().token_count;
    }
    shape_ = {};
    if (random.below(2) == 0) {
      shape_ = {.entries = kSequences, .tokens = tokens + random.below(5), .columns = kContextMax};
    }
    copies_.assign(window_count_, {});
    window_steps_.clear();
    if (random.below(2) == 0) return;
    for (std::vector<PageCopy>& copies : copies_) {
      copies.resize(random.below(3), {.source = PageId{next_page_}, .target = PageId{next_page_ + 1}});
      window_steps_.push_back({.copies = copies});
    }
  }

  void draw_entry(std::uint32_t index, testing::Random& random) {
    TestSequence& sequence = sequences_[index];
    PlannerEntry entry{.sequence = {index, sequence.generation},
                       .entry_index = static_cast<std::uint32_t>(entries_.size())};
    if (has_trees_ && (!sequence.parents.empty() || random.below(5) == 0)) {
      const std::uint32_t known = sequence.parents.empty() ? random.below(3) : 0;
      entry.draft_count = 1 + random.below(4);
      sequence.token_count += known;
      for (std::uint32_t i = 0; i < entry.draft_count; ++i) {
        const auto size = static_cast<std::uint32_t>(sequence.parents.size());
        sequence.parents.push_back(static_cast<std::int32_t>(random.below(size + 1)) - 1);
      }
      entry.token_count = known + entry.draft_count;
    } else if (sequence.token_count > 0 && random.below(8) == 0) {
      entry.runs_again = true;
      entry.token_count = 1;
    } else {
      entry.token_count = 1 + (random.below(2) == 0 ? random.below(19) : 0);
      entry.draft_count = random.below(entry.token_count);
      sequence.token_count += entry.token_count;
    }
    entry.context_tokens = sequence.token_count + static_cast<std::uint32_t>(sequence.parents.size());
    entry.position = entry.context_tokens - entry.token_count;
    while (sequence.row.size() * config_.page_tokens < entry.context_tokens)
      sequence.row.push_back(PageId{next_page_++});
    entry.pages = sequence.row;
    entry.tree_parents = sequence.parents;
    entry.changed_column = std::exchange(sequence.device_columns, static_cast<std::uint32_t>(sequence.row.size()));
    entry.shareable_pages = sequence.token_count / config_.page_tokens;

    PlannerEntryGroups groups;
    if (random.below(2) == 0) groups.state_slot = random.below(50);
    if (random.below(3) == 0) groups.checkpoint = entry.context_tokens;
    if (random.below(3) == 0) groups.write_from = random.below(entry.context_tokens + 2);
    if (random.below(3) == 0) groups.ring_write_from = random.below(entry.context_tokens + 2);
    std::vector<PlannerWindow>& windows = windows_.emplace_back(window_count_);
    for (std::size_t i = 0; i < window_count_; ++i) draw_window(sequence, i, random, windows[i]);
    groups.windows = windows;
    entries_.push_back(entry);
    entry_groups_.push_back(groups);
  }

  /// New columns have pages or not, and old ones are given up now and then.
  void draw_window(TestSequence& sequence, std::size_t i, testing::Random& random, PlannerWindow& window) {
    std::vector<PageId>& row = sequence.windows[i];
    while (row.size() < sequence.row.size()) row.push_back(random.below(4) == 0 ? kNullPage : PageId{next_page_++});
    window.changed_column = std::exchange(sequence.window_columns[i], static_cast<std::uint32_t>(row.size()));
    if (window.changed_column > 0 && random.below(4) == 0) {
      window.changed_column = random.below(window.changed_column);
      row[window.changed_column] = kNullPage;
    }
    window.pages = row;
    if (random.below(4) == 0) window.write_from = random.below(sequence.token_count + 2);
  }

  // What the definitions say.

  /// Tokens from the first of the text to `token`, along its path in a tree.
  [[nodiscard]] static std::vector<std::uint32_t> path_to(const PlannerEntry& entry, std::uint32_t token) {
    const std::uint32_t tree_begin = entry.context_tokens - static_cast<std::uint32_t>(entry.tree_parents.size());
    std::vector<std::uint32_t> path;
    std::int64_t node = token;
    while (node >= tree_begin) {
      path.insert(path.begin(), static_cast<std::uint32_t>(node));
      const std::int32_t parent = entry.tree_parents[static_cast<std::size_t>(node - tree_begin)];
      node = parent == -1 ? std::int64_t{tree_begin} - 1 : tree_begin + parent;
    }
    for (; node >= 0; --node) path.insert(path.begin(), static_cast<std::uint32_t>(node));
    return path;
  }

  [[nodiscard]] std::int64_t slot_of(const PlannerEntry& entry, const PlannerEntryGroups& groups, std::size_t g,
                                     std::uint32_t token) const {
    const PlannerGroup& group = config_.groups[g];
    const std::int64_t page_tokens = config_.page_tokens;
    if (entry.runs_again) return kNoSlot;
    switch (group.kind) {
      case Kind::Full:
      case Kind::Compressed: {
        const std::int64_t page = entry.pages[token / config_.page_tokens].value;
        const std::int64_t r = group.kind == Kind::Full ? 1 : group.tokens_per_entry;
        if (page == 0 || token < groups.write_from || (token + 1) % r != 0) return kNoSlot;
        return (page * (page_tokens / r)) + (token % page_tokens / r);
      }
      case Kind::Window: {
        const PlannerWindow& window = groups.windows[window_index(g)];
        const std::int64_t page = window.pages[token / config_.page_tokens].value;
        return page == 0 || token < window.write_from ? kNoSlot : (page * page_tokens) + (token % page_tokens);
      }
      case Kind::Ring: {
        const std::uint32_t room = group.slot_entries - group.sink_tokens;
        const bool is_last = token < group.sink_tokens || token + room >= entry.context_tokens;
        if (!is_last || token < groups.ring_write_from) return kNoSlot;
        CacheGroup ring;
        ring.sink_tokens = group.sink_tokens;
        ring.slot_entries = group.slot_entries;
        return (std::int64_t{state_slot(entry, groups)} * group.slot_entries) + ring_entry(ring, token);
      }
      case Kind::State:
        break;
    }
    return kNoSlot;
  }

  static std::uint32_t state_slot(const PlannerEntry& entry, const PlannerEntryGroups& groups) {
    return groups.state_slot == PlannerEntryGroups::kSequenceIndex ? entry.sequence.index : groups.state_slot;
  }

  [[nodiscard]] std::size_t window_index(std::size_t group_index) const {
    return static_cast<std::size_t>(
        std::count_if(config_.groups.begin(), config_.groups.begin() + static_cast<std::ptrdiff_t>(group_index),
                      [](const PlannerGroup& group) { return group.kind == Kind::Window; }));
  }

  [[nodiscard]] std::string compare(const AttentionPlan& plan) const {
    if (plan.groups.size() != config_.groups.size()) return "another number of groups";
    if (plan.entries.size() != entries_.size()) return "entries are missing";
    if (main_index_ == kNone ? !plan.append_slots.empty()
                             : plan.append_slots.data() != plan.groups[main_index_].append_slots.data()) {
      return "shows the slots of another group";
    }
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      const std::uint32_t index = plan.entries[e].entry_index;
      const PlannerEntryGroups& groups = entry_groups_[index];
      const auto slot = static_cast<std::int32_t>(state_slot(entries_[index], groups));
      if (plan.state_slots[e] != slot || static_cast<std::int32_t>(plan.entries[e].state_slot) != slot) {
        return "another state slot";
      }
      if (plan.entries[e].checkpoint != groups.checkpoint) return "another checkpoint";
    }
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      std::string difference = compare_group(plan, g);
      if (!difference.empty()) return "group " + std::to_string(g) + ": " + difference;
    }
    return "";
  }

  [[nodiscard]] std::string compare_group(const AttentionPlan& plan, std::size_t g) const {
    const GroupPlan& group = plan.groups[g];
    const PlannerGroup& of = config_.groups[g];
    if (of.kind == Kind::State) {
      return group.append_slots.empty() && group.levels.empty() && group.copies.empty() ? "" : "is not empty";
    }
    if (group.append_slots.size() != plan.shape.tokens) return "slots of another shape";
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      const std::uint32_t index = plan.entries[e].entry_index;
      const PlannerEntry& entry = entries_[index];
      for (std::uint32_t r = 0; r < entry.token_count; ++r) {
        const auto query = static_cast<std::size_t>(plan.query_indptr[e]) + r;
        if (group.append_slots[query] != slot_of(entry, entry_groups_[index], g, entry.position + r)) {
          return "entry " + std::to_string(e) + " writes token " + std::to_string(entry.position + r) + " elsewhere";
        }
      }
    }
    for (std::size_t query = plan.token_count; query < plan.shape.tokens; ++query) {
      if (group.append_slots[query] != kNoSlot) return "a padding query is written";
    }
    if (of.kind == Kind::Window) return compare_window(plan, g);
    if (of.kind == Kind::Ring) return group.levels.empty() ? "" : "a ring with pages";
    const GroupPlan& main = plan.groups[main_index_];
    const bool is_same = group.levels.data() == main.levels.data() && group.deltas.data() == main.deltas.data() &&
                         group.page_indices.data() == main.page_indices.data() &&
                         group.block_table.data() == main.block_table.data();
    return is_same ? "" : "lists of its own";
  }

  [[nodiscard]] std::string compare_window(const AttentionPlan& plan, std::size_t g) const {
    const GroupPlan& group = plan.groups[g];
    const PlannerGroup& of = config_.groups[g];
    const std::size_t window = window_index(g);
    if (group.levels.size() != 1 || group.levels[0].query_indptr.data() != plan.query_indptr.data()) return "levels";
    if (group.copies.size() != (window_steps_.empty() ? 0 : window_steps_[window].copies.size())) return "copies";
    const CascadeLevel& level = group.levels[0];
    const WindowReader reader(plan, group, config_.page_tokens, tables_[g]);
    for (std::size_t e = 0; e < entries_.size(); ++e) {
      const std::uint32_t index = plan.entries[e].entry_index;
      const PlannerEntry& entry = entries_[index];
      const std::span<const PageId> pages = entry_groups_[index].windows[window].pages;
      for (std::uint32_t r = 0; r < entry.token_count; ++r) {
        const std::vector<std::uint32_t> path = path_to(entry, entry.position + r);
        std::vector<Place> expected;
        for (std::size_t depth = 0; depth < path.size(); ++depth) {
          if (path[depth] >= of.sink_tokens && path.size() - depth > of.window_tokens) continue;
          expected.emplace_back(pages[path[depth] / config_.page_tokens].value, path[depth] % config_.page_tokens);
        }
        if (reader.visible(e, r) != expected) return "entry " + std::to_string(e) + " reads other keys";
      }
      if (of.sink_tokens == 0 && lists_too_much(plan, g, e)) return "lists a page that nobody sees";
    }
    for (std::size_t e = entries_.size(); e < plan.shape.entries; ++e) {
      if (level.page_indptr[e + 1] != level.page_indptr[e] || level.first_keys[e] != 0 || level.sink_tokens[e] != 0 ||
          level.last_page_tokens[e] != 0 || (!level.rows.empty() && level.rows[e] != -1)) {
        return "a padding entry is none";
      }
    }
    return "";
  }

  /// Without a sink, a list begins with the page of the first key that the first query, or the tree's first, sees.
  [[nodiscard]] bool lists_too_much(const AttentionPlan& plan, std::size_t g, std::size_t e) const {
    const std::int64_t first = plan.stored_lens[e];
    const std::int64_t begin = std::max<std::int64_t>(first - config_.groups[g].window_tokens + 1, 0);
    return plan.groups[g].levels[0].first_keys[e] != begin / config_.page_tokens * config_.page_tokens;
  }

  AttentionPlannerConfig config_;
  AttentionPlanner planner_;
  std::vector<Table> tables_;  // the device's
  std::vector<TestSequence> sequences_;
  std::size_t window_count_ = 0;
  std::size_t main_index_ = kNone;
  bool has_trees_ = true;
  std::uint32_t next_page_ = 1;
  std::vector<PlannerEntry> entries_;
  std::vector<PlannerEntryGroups> entry_groups_;
  std::deque<std::vector<PlannerWindow>> windows_;
  std::vector<std::vector<PageCopy>> copies_;
  std::vector<PlannerWindowStep> window_steps_;
  PlanShape shape_;
};

class PlannerGroupsModel : public ::testing::TestWithParam<PageTables> {};

TEST_P(PlannerGroupsModel, EveryGroupReadsAndWritesWhatItsDefinitionSays) {
  EXPECT_EQ(testing::run_seeds({.test = "bin/attention_planner_test --gtest_filter=*WhatItsDefinitionSays*",
                                .seed_count = 60,
                                .step_count = 60},
                               [](testing::Random& random) { return GroupsModel(random, GetParam()); }),
            "");
}

INSTANTIATE_TEST_SUITE_P(
    PageTables, PlannerGroupsModel, ::testing::Values(PageTables::Rows, PageTables::Csr, PageTables::Block),
    [](const ::testing::TestParamInfo<PageTables>& tables) {
      return std::string(tables.param == PageTables::Rows ? "Rows" : tables.param == PageTables::Csr ? "Csr" : "Block");
    });

}  // namespace
}  // namespace quire
