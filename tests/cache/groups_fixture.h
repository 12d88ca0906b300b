// SPDX-License-Identifier: Apache-2.0
//
// An engine for layouts of any groups that computes nothing: what a token stores is a number that names the group and
// all tokens up to it. Before it writes, it reads everything that a model would, through the tables that plans keep up
// to date, and says what is not what it should be.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine_copies.h"
#include "quire/cache.h"
#include "quire/host_kernels.h"

namespace quire {

inline std::vector<Component> number_component() {
  return {{.name = "n", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = 8}};
}
inline CacheGroup full_group(std::string name = "full") {
  return {.name = std::move(name), .layers = {0}, .components = number_component()};
}
inline CacheGroup window_group(std::uint32_t window_tokens, GroupRetention retention = {}) {
  return {.name = "window",
          .kind = GroupKind::Window,
          .layers = {0},
          .components = number_component(),
          .retention = retention,
          .window_tokens = window_tokens};
}
inline CacheGroup ring_group(std::uint32_t window_tokens, std::uint32_t slot_entries, GroupRetention retention) {
  CacheGroup group = window_group(window_tokens, retention);
  group.name = "ring";
  group.window_form = WindowForm::Ring;
  group.slot_entries = slot_entries;
  return group;
}
inline CacheGroup compressed_group(std::uint32_t tokens_per_entry) {
  return {.name = "entries",
          .kind = GroupKind::Compressed,
          .layers = {0},
          .components = number_component(),
          .tokens_per_entry = tokens_per_entry};
}
/// A recurrent state.
inline CacheGroup state_group(std::uint32_t slot_history, GroupRetention retention) {
  return {.name = "state",
          .kind = GroupKind::Snapshot,
          .layers = {0},
          .components = number_component(),
          .retention = retention,
          .slot_entries = 1,
          .slot_history = slot_history};
}
/// A compressor's rows that are not part of an entry yet.
inline CacheGroup tail_group(std::uint32_t boundary_tokens, std::uint32_t overlap, std::uint32_t slot_entries,
                             GroupRetention retention) {
  return {.name = "tail",
          .kind = GroupKind::Snapshot,
          .layers = {0},
          .components = number_component(),
          .retention = retention,
          .slot_entries = slot_entries,
          .snapshot_entries = overlap,
          .boundary_tokens = boundary_tokens};
}

/// What a sequence's tokens amount to, one number per length.
class PrefixNumbers {
 public:
  /// Others for another key space.
  explicit PrefixNumbers(std::uint64_t salt = 1) : numbers_{salt} {}
  /// Those that somebody else has computed, of one token more each.
  PrefixNumbers(std::uint64_t salt, std::span<const std::uint64_t> numbers) : numbers_{salt} {
    numbers_.insert(numbers_.end(), numbers.begin(), numbers.end());
  }

  void add(TokenId token) { numbers_.push_back(next(numbers_.back(), token)); }
  [[nodiscard]] static std::uint64_t next(std::uint64_t before, TokenId token) {
    return mix64(before * 31 + static_cast<std::uint64_t>(token) + 1);
  }
  void cut(std::size_t length) { numbers_.resize(length + 1); }
  [[nodiscard]] std::size_t length() const { return numbers_.size() - 1; }
  /// Behind `length` tokens.
  [[nodiscard]] std::uint64_t at(std::size_t length) const { return numbers_[length]; }

 private:
  std::vector<std::uint64_t> numbers_;
};

class GroupsEngine {
 public:
  explicit GroupsEngine(Cache& cache) : cache_(cache), layout_(cache.config().layout) {
    columns_ = (cache.config().context_tokens_max + page_tokens() - 1) / page_tokens();
    tables_.resize(layout_.groups().size());
    for (auto& table : tables_) table.resize(std::size_t{cache.config().sequence_count_max} * columns_, -1);
  }

  /// Everything that comes with a plan before it is computed, once.
  [[nodiscard]] std::string start(const Step& step) {
    if (!take_deltas(step)) return "";
    const Status status = testing::apply_copies(cache_, step);
    return status ? "" : status.error().message;
  }
  /// The part of it that is the engine's own: the rows of page tables. False where it was done before.
  bool take_deltas(const Step& step) {
    if (step.number <= started_) return false;
    started_ = step.number;
    for (std::size_t g = 0; g < layout_.groups().size(); ++g) {
      apply_deltas_on_host({.table = tables_[g].data(),
                            .rows = cache_.config().sequence_count_max,
                            .row_columns = columns_,
                            .deltas = step.plan.groups[g].deltas});
    }
    return true;
  }

  /// The rows of an entry that depend on tokens behind them, as far as those are known by now: before the step is
  /// finished, and again before the next one.
  void complete(const AttentionPlan& plan, std::size_t place, const PrefixNumbers& numbers) {
    const AttentionPlanEntry& entry = plan.entries[place];
    for (std::size_t g = 0; g < layout_.groups().size(); ++g) {
      const std::uint32_t ahead = layout_.groups()[g].lookahead_tokens;
      if (ahead == 0) continue;
      const auto row = static_cast<std::size_t>(plan.groups[g].levels.back().rows[place]) * columns_;
      const std::uint32_t end = entry.position + entry.token_count;
      for (std::uint32_t i = entry.position - std::min(entry.position, ahead); i < end; ++i) {
        if (i + 1 + ahead > numbers.length()) break;
        const std::int64_t page = tables_[g][row + (i / page_tokens())];
        write(page_row(g, (page * page_tokens()) + (i % page_tokens())), value(g, numbers, i + 1));
      }
    }
  }

  /// What one entry reads and writes. `numbers` are those of all its tokens, drafts included, and `view` what the
  /// sequence was before the step.
  [[nodiscard]] std::string run(const AttentionPlan& plan, std::size_t place, const PrefixNumbers& numbers,
                                const SequenceView& view) {
    std::string wrong;
    complete(plan, place, numbers);
    for (std::size_t g = 0; g < layout_.groups().size() && wrong.empty(); ++g) {
      const CacheGroup& group = layout_.groups()[g];
      if (has_slot(group)) {
        wrong = run_slot(plan, place, g, numbers, view);
      } else {
        wrong = run_pages(plan, place, g, numbers, view);
      }
      if (!wrong.empty()) wrong = "group '" + group.name + "': " + wrong;
    }
    return wrong;
  }

  /// What an entry writes that did not happen: nothing that is right, wherever it may write.
  void spoil(const AttentionPlan& plan, std::size_t place) {
    const AttentionPlanEntry& entry = plan.entries[place];
    const auto query = static_cast<std::size_t>(plan.query_indptr[place]);
    const std::uint32_t end = entry.position + entry.token_count;
    for (std::size_t g = 0; g < layout_.groups().size(); ++g) {
      const CacheGroup& group = layout_.groups()[g];
      if (!has_slot(group)) {
        for (const std::int64_t slot : plan.groups[g].append_slots.subspan(query, entry.token_count)) {
          if (slot != kNoSlot) write(page_row(g, slot), 0xBAD);
        }
      } else if (has_rows(group)) {
        for (std::uint32_t i = entry.position; i < end; ++i) {
          if (is_last_in_slot(group, i, end)) write(state_row(g, entry.state_slot, 0, ring_entry(group, i)), 0xBAD);
        }
      } else {
        for (std::uint32_t i = first_version(group, entry.position, end); i <= end; ++i) {
          write(state_row(g, entry.state_slot, i % (group.slot_history + 1), 0), 0xBAD);
        }
      }
    }
  }

  /// Writes what queries with these numbers store in groups with pages, where the order of tokens is not that of a
  /// sequence: undecided trees.
  void write(const AttentionPlan& plan, std::size_t place, std::span<const std::uint64_t> numbers) {
    const auto query = static_cast<std::size_t>(plan.query_indptr[place]);
    for (std::size_t g = 0; g < layout_.groups().size(); ++g) {
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        write(page_row(g, plan.groups[g].append_slots[query + i]), mix64(numbers[i] + g));
      }
    }
  }

  /// The bytes of a direct call: what put_on_disk() is given.
  void write_direct(const DirectBytes& direct, const PrefixNumbers& numbers, std::span<std::byte> bytes) const {
    for (const DirectPart& part : direct.parts) {
      visit_direct(direct, part, [&](std::uint64_t offset, std::uint32_t length) {
        write(bytes.data() + offset, value(part.group_index, numbers, length));
        return true;
      });
    }
  }
  /// Whether get_from_disk() has read what the answer says.
  [[nodiscard]] std::string check_direct(const DirectBytes& direct, const DiskAnswer& answer,
                                         const PrefixNumbers& numbers, std::span<const std::byte> bytes) const {
    std::string wrong;
    for (const DirectPart& part : direct.parts) {
      const CacheGroup& group = layout_.groups()[part.group_index];
      const bool is_history = group.kind == GroupKind::Full || group.kind == GroupKind::Compressed;
      const bool is_rebuilt = std::ranges::count(answer.rebuilt_groups, part.group_index) > 0;
      // What a shorter answer needs of other groups need not be all that was asked for.
      if (!is_history && (is_rebuilt || answer.token_count < direct.token_count)) continue;
      visit_direct(direct, part, [&](std::uint64_t offset, std::uint32_t length) {
        if (length > answer.token_count) return true;
        if (read(bytes.data() + offset) == value(part.group_index, numbers, length)) return true;
        wrong = "group '" + group.name + "': wrong bytes of token " + std::to_string(length - 1);
        return false;
      });
    }
    return wrong;
  }

 private:
  // Calls visit(offset, length) for what a group has of a direct call: numbers of so many tokens.
  template <typename Visitor>
  void visit_direct(const DirectBytes& direct, const DirectPart& part, Visitor&& visit) const {
    const CacheGroup& group = layout_.groups()[part.group_index];
    const std::uint32_t entries = cache_.geometry(part.group_index).page().entry_count();
    for (std::uint32_t page = 0; page < part.end_page; ++page) {
      if (!part.offset_of(page)) continue;
      for (std::uint32_t entry = 0; entry < entries; ++entry) {
        std::uint32_t length = (page * page_tokens()) + ((entry + 1) * group.tokens_per_entry);
        // In a snapshot the newest stands last, behind those of a sink.
        if (has_slot(group)) {
          length = entry < group.sink_tokens ? entry + 1
                                             : direct.token_count - std::min(direct.token_count, entries - 1 - entry);
        }
        if (length > 0 && !visit(*part.offset_of(page) + (std::uint64_t{entry} * 8), length)) return;
      }
    }
  }
  [[nodiscard]] std::uint32_t page_tokens() const { return cache_.config().page.page_tokens; }
  [[nodiscard]] static std::uint64_t read(const std::byte* at) {
    std::uint64_t value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  static void write(std::byte* at, std::uint64_t value) { std::memcpy(at, &value, sizeof(value)); }
  [[nodiscard]] std::byte* page_row(std::size_t g, std::int64_t slot) const {
    const PoolGeometry& geometry = cache_.geometry(static_cast<std::uint32_t>(g));
    const auto entries = static_cast<std::int64_t>(geometry.page().entry_count());
    const PageId page{static_cast<std::uint32_t>(slot / entries)};
    return cache_.device_memory(static_cast<std::uint32_t>(g)) +
           geometry.offset_of({.page = page, .token_index = static_cast<std::uint32_t>(slot % entries)});
  }
  [[nodiscard]] std::byte* state_row(std::size_t g, std::uint32_t state_slot, std::uint32_t version,
                                     std::uint32_t entry) const {
    const StateSlots& slots = cache_.state_slots();
    std::uint32_t part = 0;
    while (slots.parts()[part].group_index != g) ++part;
    return cache_.state_memory() + (state_slot * slots.slot_bytes()) +
           slots.offset_of({.part_index = part, .version_index = version, .entry_index = entry});
  }

  // Groups in pages: the table says where each entry lies.
  [[nodiscard]] std::string run_pages(const AttentionPlan& plan, std::size_t place, std::size_t g,
                                      const PrefixNumbers& numbers, const SequenceView& view) {
    const CacheGroup& group = layout_.groups()[g];
    const AttentionPlanEntry& entry = plan.entries[place];
    const std::uint32_t exact_from = exact_from_of(view);
    const std::uint32_t r = group.tokens_per_entry;
    const GroupPlan& lists = plan.groups[g];
    const CascadeLevel& level = lists.levels.back();
    const auto query = static_cast<std::size_t>(plan.query_indptr[place]);
    const std::span<const std::int64_t> slots = lists.append_slots.subspan(query, entry.token_count);
    const std::span<const std::int32_t> row =
        std::span(tables_[g]).subspan(static_cast<std::size_t>(level.rows[place]) * columns_, columns_);
    const bool is_window = group.kind == GroupKind::Window;
    const bool is_rebuilt = is_window && entry.position < exact_from && slots.front() != kNoSlot;
    const bool runs_again = exact_from == 0 && entry.position < view.computed_tokens;
    for (std::uint32_t i = 0; i < (entry.position + (runs_again ? 1 : 0)) / r; ++i) {
      if (is_window && !sees(group, entry.position, i)) continue;
      if (!is_window && !sees_all(view.window, entry.position, i * r, (i + 1) * r)) continue;
      if (is_rebuilt && i < first_exact(group, exact_from, view)) {
        // Of no use to anybody, but layers read what is listed: it is what this replay has written, or not listed.
        const std::int64_t slot = (std::int64_t{row[i / page_tokens()]} * page_tokens()) + (i % page_tokens());
        const bool is_listed = i >= static_cast<std::uint32_t>(level.first_keys[place]);
        const std::uint64_t held = is_listed ? read(page_row(g, slot)) : 0;
        if (is_listed && held != inexact_value(g, numbers, i + 1) && held != value(g, numbers, i + 1)) {
          return "token " + std::to_string(i) + " is listed for a replay of tokens behind it, which nobody wrote";
        }
        continue;
      }
      if (std::size_t{i + 1} * r + group.lookahead_tokens > numbers.length()) continue;  // depends on what is to come
      const std::uint32_t column = i * r / page_tokens();
      if (is_window && column < static_cast<std::uint32_t>(level.first_columns[place]) && i >= group.sink_tokens) {
        return "token " + std::to_string(i) + " is seen, but its page is not listed";
      }
      const std::int64_t slot = (std::int64_t{row[column]} * (page_tokens() / r)) + (i * r % page_tokens() / r);
      if (row[column] <= 0 || read(page_row(g, slot)) != value(g, numbers, (i + 1) * r)) {
        return "entry " + std::to_string(i) + " of " + std::to_string(entry.position / r) + " is not there";
      }
    }
    for (std::uint32_t i = 0; i < entry.token_count; ++i) {
      const std::uint32_t end = entry.position + i + 1;
      if (slots[i] == kNoSlot) {
        const std::uint32_t next = entry.position + entry.token_count - entry.draft_count;
        const bool is_left = !is_window && !sees_all(view.window, next - 1, end - 1, end);
        if (end % r == 0 && end > exact_from && !runs_again && !is_left)
          return "token " + std::to_string(end - 1) + " has no slot";
        continue;
      }
      if (end % r != 0) return "token " + std::to_string(end - 1) + " completes no entry and has a slot";
      const bool is_wrong = is_rebuilt && end <= first_exact(group, exact_from, view);
      write(page_row(g, slots[i]), is_wrong ? inexact_value(g, numbers, end) : value(g, numbers, end));
    }
    return "";
  }

  // Groups in state slots.
  [[nodiscard]] std::string run_slot(const AttentionPlan& plan, std::size_t place, std::size_t g,
                                     const PrefixNumbers& numbers, const SequenceView& view) {
    const CacheGroup& group = layout_.groups()[g];
    const AttentionPlanEntry& entry = plan.entries[place];
    const std::uint32_t exact_from = exact_from_of(view);
    const bool is_ring = group.kind == GroupKind::Window;
    const std::uint32_t end = entry.position + entry.token_count;
    const bool is_exact = exact_from == 0 || entry.position >= exact_from;
    if (!has_rows(group)) {
      const std::uint32_t versions = group.slot_history + 1;
      const std::uint64_t held = read(state_row(g, entry.state_slot, entry.position % versions, 0));
      const std::uint64_t wanted = entry.position == 0 ? 0 : value(g, numbers, entry.position);
      if (is_exact && held != wanted) return "no state behind " + std::to_string(entry.position) + " tokens";
      for (std::uint32_t i = first_version(group, entry.position, end); i <= end; ++i) {
        write(state_row(g, entry.state_slot, i % versions, 0), value(g, numbers, i));
      }
      return "";
    }
    const std::uint32_t lookback =
        is_ring ? group.window_tokens - 1 : group.snapshot_entries + (entry.position % group.boundary_tokens);
    for (std::uint32_t i = 0; i < entry.position && is_exact; ++i) {
      if (i >= group.sink_tokens && i + lookback < entry.position) continue;
      if (read(state_row(g, entry.state_slot, 0, ring_entry(group, i))) != value(g, numbers, i + 1)) {
        return "row " + std::to_string(i) + " is not there behind " + std::to_string(entry.position) + " tokens";
      }
    }
    const auto query = static_cast<std::size_t>(plan.query_indptr[place]);
    for (std::uint32_t i = entry.position; i < end; ++i) {
      const bool is_last = is_last_in_slot(group, i, end);
      if (is_ring) {
        const std::int64_t slot = plan.groups[g].append_slots[query + (i - entry.position)];
        const std::int64_t wanted =
            (std::int64_t{entry.state_slot} * group.slot_entries) + static_cast<std::int64_t>(ring_entry(group, i));
        if (slot != (is_last ? wanted : kNoSlot)) return "token " + std::to_string(i) + " has another slot in the ring";
      }
      if (is_last) write(state_row(g, entry.state_slot, 0, ring_entry(group, i)), value(g, numbers, i + 1));
    }
    return "";
  }

  // Tokens before it are replayed: groups that are written there hold nothing that is right before it. 0: no replay.
  [[nodiscard]] static std::uint32_t exact_from_of(const SequenceView& view) {
    return view.replay_tokens > 0 ? view.computed_tokens + view.replay_tokens : 0;
  }
  // Entries of its slot stand by position: rings and tails.
  [[nodiscard]] static bool has_rows(const CacheGroup& group) {
    return group.kind == GroupKind::Window || (group.slot_entries > 1 && group.slot_history == 0);
  }
  // A row that no later one of a step up to `end` overwrites.
  [[nodiscard]] static bool is_last_in_slot(const CacheGroup& group, std::uint32_t token, std::uint32_t end) {
    return token < group.sink_tokens || token + (group.slot_entries - group.sink_tokens) >= end;
  }
  // Of the versions of a state that a step leaves.
  [[nodiscard]] static std::uint32_t first_version(const CacheGroup& group, std::uint32_t position, std::uint32_t end) {
    return std::max(position + 1, end - std::min(end, group.slot_history));
  }
  [[nodiscard]] static bool sees(const CacheGroup& group, std::uint32_t query, std::uint32_t token) {
    return token < group.sink_tokens || token + group.window_tokens > query;
  }
  // Whether a sequence with a window of its own sees all of [begin, end).
  [[nodiscard]] static bool sees_all(const Window& window, std::uint32_t query, std::uint32_t begin,
                                     std::uint32_t end) {
    if (window.visible_tokens == 0 || query < window.visible_tokens || end <= window.sink_tokens) return true;
    return begin + (window.visible_tokens - window.sink_tokens) > query;
  }
  // What a replay has made right of a window, when it is over: one token more where a whole prompt was found, which may
  // have grown since.
  [[nodiscard]] static std::uint32_t first_exact(const CacheGroup& group, std::uint32_t exact_from,
                                                 const SequenceView& view) {
    const bool was_whole = exact_from == view.token_count || view.replay_tokens > group.replay.tokens;
    return exact_from - std::min(exact_from, group.window_tokens - (was_whole ? 0 : 1));
  }
  // What the group stores of the last of `length` tokens, or of the entry or state that they end.
  [[nodiscard]] std::uint64_t value(std::size_t g, const PrefixNumbers& numbers, std::uint32_t length) const {
    const std::size_t known = std::size_t{length} + layout_.groups()[g].lookahead_tokens;
    return known <= numbers.length() ? mix64(numbers.at(known) + g) : 0xBAD;
  }
  // What a replay leaves of a token whose own window it did not have: of this text, and not what a model wants.
  [[nodiscard]] static std::uint64_t inexact_value(std::size_t g, const PrefixNumbers& numbers, std::uint32_t length) {
    return ~mix64(numbers.at(length) + g);
  }

  Cache& cache_;
  const ModelLayout& layout_;
  std::uint32_t columns_ = 0;
  std::uint64_t started_ = 0;  // the last step
  std::vector<std::vector<std::int32_t>> tables_;
};

}  // namespace quire
