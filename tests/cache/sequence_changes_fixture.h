// SPDX-License-Identifier: Apache-2.0
//
// For tests of what can be done to sequences: an engine that finds keys only as a plan's arrays list them (page
// indices, window offset, sink), so that it sees windows, forks and trees as a kernel does; and a picture of
// everything a cache shows, to be compared before and after a call.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cache_fixture.h"

namespace quire {

/// A sequence and what the test knows of its tokens.
struct Live {
  Sequence sequence;
  std::vector<TokenId> tokens;
};

/// Everything that a cache shows: levels and counts, the tree with its pages and pins, and the given sequences.
[[nodiscard]] inline std::string dump(const Cache& cache, std::span<const Sequence* const> sequences = {}) {
  std::ostringstream out;
  const Stats s = cache.stats().value();
  out << "pages " << s.page_count << ' ' << s.free_pages << ' ' << s.open_pages << ' ' << s.sealed_pages << ' '
      << s.private_pages << ' ' << s.fenced_pages << ' ' << s.saved_pages << "\npinned " << s.pinned_pages << ' '
      << s.evictable_pages << ' ' << s.soft_pinned_pages << ' ' << s.kept_pages << "\nlive " << s.run_count << ' '
      << s.key_space_count << ' ' << s.sequence_count << ' ' << s.waiting_sequence_count << "\nsequences "
      << s.begun_sequence_count << ' ' << s.admitted_sequence_count << ' ' << s.forked_sequence_count << ' '
      << s.preempted_sequence_count << "\nsteps " << s.planned_step_count << ' ' << s.short_plan_count << ' '
      << s.aborted_step_count << "\ntokens " << s.prompt_tokens << ' ' << s.hit_tokens << ' ' << s.partial_hit_tokens
      << ' ' << s.computed_tokens << ' ' << s.received_tokens << "\ntotals " << s.sealed_page_total << ' '
      << s.duplicate_page_total << ' ' << s.evicted_page_total << ' ' << s.dropped_page_total << '\n';
  const auto pages = [&](std::span<const PageId> list) {
    for (const PageId page : list) out << ' ' << page.value;
    out << '\n';
  };
  EXPECT_TRUE(cache.visit_runs([&](const RunView& run) {
    out << "run " << run.run.value << " below " << run.parent.value << " from " << run.first_page << " pins "
        << run.pin_count << ' ' << run.own_pin_count << ' ' << run.soft_pin_count << " tokens";
    for (const TokenId token : run.tokens) out << ' ' << token;
    out << " pages";
    pages(run.pages);
  }));
  for (const Sequence* const sequence : sequences) {
    const Result<SequenceView> view = cache.view(*sequence);
    if (!view) continue;
    out << "sequence " << sequence->id().index << ": " << view->is_waiting << view->is_planned << view->is_receiving
        << ' ' << view->token_count << ' ' << view->computed_tokens << ' ' << view->pending_tokens << ' '
        << view->tree_tokens << ' ' << view->steps_in_flight << ' ' << view->window.visible_tokens << ' '
        << view->window.sink_tokens << ' ' << view->state_slot << " pages";
    pages(view->pages());
  }
  const Status status = cache.check_invariants();
  EXPECT_TRUE(status.has_value()) << status.error().message;
  return out.str();
}

class SequenceChangesTest : public CacheTest {
 protected:
  /// Pages of 4 tokens, CSR page tables, four steps in flight, room for saved pages.
  [[nodiscard]] static CacheConfig changes_config(std::uint32_t page_count = 64) {
    CacheConfig config = test_config(4, page_count);
    config.steps_in_flight_max = 4;
    config.host = host_for_saving(16);
    config.tree_tokens_max = 32;
    config.plan.page_tables = PageTables::Csr;
    return config;
  }
  void SetUp() override { open(changes_config()); }

  [[nodiscard]] SequenceView view(const Live& live) const { return cache_->view(live.sequence).value(); }
  [[nodiscard]] std::uint32_t in_use() const { return stats().page_count - stats().free_pages; }

  [[nodiscard]] Live admitted(std::vector<TokenId> tokens, const SequenceOptions& options = {}) {
    Live live{.sequence = begin_admitted(tokens, options)};
    live.tokens = std::move(tokens);
    return live;
  }
  /// Admitted, and all its tokens computed.
  [[nodiscard]] Live computed(std::vector<TokenId> tokens, const SequenceOptions& options = {}) {
    Live live = admitted(std::move(tokens), options);
    run(live);
    return live;
  }
  [[nodiscard]] Live forked(const Live& source, std::uint32_t at) {
    Result<Sequence> fork = cache_->fork(source.sequence, at);
    EXPECT_TRUE(fork.has_value()) << fork.error().message;
    return {std::move(*fork), {source.tokens.begin(), source.tokens.begin() + at}};
  }
  void append(Live& live, std::vector<TokenId> tokens) {
    EXPECT_TRUE(cache_->append(live.sequence, {.tokens = tokens}));
    live.tokens.insert(live.tokens.end(), tokens.begin(), tokens.end());
  }
  void rewind(Live& live, std::uint32_t token_count) {
    const Status status = cache_->rewind(live.sequence, token_count);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    live.tokens.resize(live.tokens.size() - token_count);
    expect_invariants();
  }

  /// Plans, and applies the copies.
  [[nodiscard]] Step plan(const std::vector<StepEntry>& entries) {
    const Result<PlanOutcome> outcome = cache_->plan_step(entries);
    EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
    EXPECT_TRUE(outcome->step.has_value()) << "short of pages";
    EXPECT_TRUE(cache_->apply_copies(*outcome->step));
    expect_invariants();
    return *outcome->step;
  }
  /// Runs an entry: every key that it finds stored must be right, every token of it is written. `tokens` is the whole
  /// sequence, drafts included.
  void compute(const Step& step, std::uint32_t entry_index, std::span<const TokenId> tokens) {
    const std::uint32_t e = place_of(step, entry_index);
    const AttentionPlanEntry& entry = step.plan.entries[e];
    ASSERT_LE(entry.context_tokens, tokens.size());
    for (std::uint32_t i = 0; i < entry.token_count; ++i) {
      if (entry.append_slots[i] != kNoSlot) write(entry.append_slots[i], value(tokens, entry.position + i));
    }
    const CascadeLevel& level = step.plan.groups[0].levels.back();
    const auto key_count = static_cast<std::uint32_t>(step.plan.seq_lens[e]);
    const auto sink = static_cast<std::uint32_t>(level.sink_tokens[e]);
    const auto offset = static_cast<std::uint32_t>(level.window_offsets[e]);
    for (std::uint32_t j = 0; j < key_count; ++j) {
      const bool is_query = j >= key_count - entry.token_count;
      if (is_query && entry.append_slots[j - (key_count - entry.token_count)] == kNoSlot) continue;
      const std::uint32_t token = j < sink ? j : entry.context_tokens - key_count + j;
      const std::uint32_t place = j < sink ? j : j - sink + offset;
      const std::uint32_t page = static_cast<std::uint32_t>(level.page_indptr[e]) + (place / page_tokens());
      ASSERT_LT(page, static_cast<std::uint32_t>(level.page_indptr[e + 1]));
      const std::int64_t slot =
          (std::int64_t{step.plan.groups[0].page_indices[page]} * page_tokens()) + (place % page_tokens());
      ASSERT_EQ(read(slot), value(tokens, token)) << "key " << j << " of " << key_count << ", token " << token;
    }
  }
  /// Writes the tree tokens of an entry: each depends on the known tokens and its ancestors alone.
  void compute_tree(const Step& step, std::uint32_t entry_index, const Live& live,
                    std::span<const std::int32_t> parents, std::span<const TokenId> values) {
    const AttentionPlanEntry& entry = step.plan.entries[place_of(step, entry_index)];
    for (std::uint32_t i = 0; i < entry.draft_count; ++i) {
      std::vector<TokenId> path;
      for (auto node = static_cast<std::int32_t>(parents.size() - entry.draft_count + i); node >= 0;
           node = parents[node]) {
        path.insert(path.begin(), values[node]);
      }
      path.insert(path.begin(), live.tokens.begin(), live.tokens.end());
      write(entry.append_slots[entry.token_count - entry.draft_count + i], value(path, path.size() - 1));
    }
    for (std::uint32_t i = 0; i < entry.token_count - entry.draft_count; ++i) {
      if (entry.append_slots[i] != kNoSlot) write(entry.append_slots[i], value(live.tokens, entry.position + i));
    }
  }
  void finish(const Step& step, const std::vector<StepResult>& results) {
    const Status status = cache_->finish_step(step, results);
    ASSERT_TRUE(status.has_value()) << status.error().message;
    expect_invariants();
  }
  /// One step of one sequence: all its pending tokens, or so many.
  void run(Live& live, std::vector<TokenId> new_tokens = {}, std::uint32_t token_count = 0) {
    const Step step = plan({{&live.sequence, token_count}});
    compute(step, 0, live.tokens);
    finish(step, {{.tokens = new_tokens}});
    live.tokens.insert(live.tokens.end(), new_tokens.begin(), new_tokens.end());
  }
  /// Some more tokens of it, all right.
  void expect_good(Live& live) {
    append(live, token_range(900, 3));
    run(live);
  }
  void end(Live& live) { ASSERT_TRUE(cache_->end(live.sequence)); }
  /// When everything has ended and nothing is cached, every page is free.
  void expect_all_free() {
    const Status status = cache_->reset();
    ASSERT_TRUE(status.has_value()) << status.error().message;
    EXPECT_EQ(stats().free_pages, stats().page_count);
    EXPECT_EQ(stats().saved_pages, 0U);
    expect_invariants();
  }

  [[nodiscard]] static std::uint32_t place_of(const Step& step, std::uint32_t entry_index) {
    for (std::uint32_t e = 0; e < step.plan.entries.size(); ++e) {
      if (step.plan.entries[e].entry_index == entry_index) return e;
    }
    ADD_FAILURE() << "no entry " << entry_index;
    return 0;
  }
  [[nodiscard]] std::uint32_t page_tokens() const { return cache_->geometry().page().options().page_tokens; }
  [[nodiscard]] static std::uint64_t value(std::span<const TokenId> tokens, std::size_t position) {
    return ByteEngine::value_at(0, tokens, {}, position);
  }
  void write(std::int64_t slot, std::uint64_t bytes) const {
    std::memcpy(cache_->device_memory() + (slot * kTestTokenBytes), &bytes, sizeof(bytes));
  }
  [[nodiscard]] std::uint64_t read(std::int64_t slot) const {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, cache_->device_memory() + (slot * kTestTokenBytes), sizeof(bytes));
    return bytes;
  }
};

}  // namespace quire
