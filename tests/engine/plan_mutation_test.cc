// SPDX-License-Identifier: Apache-2.0
//
// Is every number of every plan array used, and looked at? A few scripts that together use all arrays are replayed with
// one number changed, for each number there is. Something must then come out differently: logits, a sequence's state,
// or a check of the engine that the plan makes sense. A number that could be anything would be one that nobody tests.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "recording.h"
#include "seeded_text.h"

namespace quire::testing {
namespace {

using tiny_engine::AttentionKind;

std::vector<TokenId> text(std::uint64_t seed, std::size_t count) {
  return seeded_text(seed, count);
}

struct Tally {
  std::uint64_t changed = 0;
  std::uint64_t seen = 0;
};

class PlanMutation : public ::testing::Test {
 protected:
  /// Changes every number of the recording in turn.
  void mutate(Recording& recording, const std::string& script) {
    ASSERT_EQ(recording.replay(), "") << script << " is wrong as it is";
    for (const Mutation& place : recording.places()) {
      Tally& tally = tallies_[place.numbers.name];
      // K and V that no later step reads can as well lie elsewhere, or nowhere.
      const bool is_read = place.numbers.name != "append_slots" || is_seen(recording, place, kNoSlot);
      if (!is_read) continue;
      ++tally.changed;
      // The next number may happen to mean the same, as a window that is one larger does before it is full.
      const bool is_seen_near = std::ranges::any_of(
          std::array{1, -1, 3, -3, 6, -6}, [&](int change) { return is_seen(recording, place, place.value + change); });
      if (is_seen_near) ++tally.seen;
      EXPECT_TRUE(is_seen_near) << script << ", step " << place.step_index << ": " << place.numbers.name << "["
                                << place.index << "] = " << place.value << " can be something else";
    }
  }

  [[nodiscard]] static bool is_seen(const Recording& recording, Mutation place, std::int64_t value) {
    place.value = value;
    return !recording.replay(place).empty();
  }

  static void TearDownTestSuite() {
    for (const auto& [name, tally] : tallies_) {
      std::cout << "  " << name << ": " << tally.seen << " of " << tally.changed << " changes seen\n";
    }
  }

  // Over all scripts: the last test looks at it.
  static std::map<std::string, Tally> tallies_;  // NOLINT(cert-err58-cpp)
};
std::map<std::string, Tally> PlanMutation::tallies_;  // NOLINT(cert-err58-cpp)

constexpr std::array kPageTables = {PageTables::Rows, PageTables::Csr, PageTables::Block};

// Prompts in chunks, drafts half accepted, forks inside a page, a rewind, and a cached prompt's last token run again.
TEST_F(PlanMutation, StepsForksAndRewindsShow) {
  for (const PageTables page_tables : kPageTables) {
    for (const AttentionKind attention : {AttentionKind::Gqa, AttentionKind::Mla}) {
      const bool keys_rotated = attention == AttentionKind::Mla;
      Recording recording({.attention = attention, .keys_rotated = keys_rotated, .page_tables = page_tables});
      const auto first = recording.begin(text(1, 11));
      const auto second = recording.begin(text(2, 7));
      recording.step({{.live = first, .token_count = 5}, {.live = second, .next = text(3, 1)}});
      recording.step({{.live = first, .next = text(4, 1)}, {.live = second, .next = text(5, 1)}});
      const auto child = recording.fork(first, 10);
      recording.append(child, text(6, 2));
      recording.step({{.live = child, .next = text(7, 1)},
                      {.live = first, .drafts = text(8, 3), .accepted_count = 2, .next = text(9, 1)}});
      recording.rewind(second, 3);
      recording.append(second, text(10, 2));
      const auto again = recording.begin(text(1, 8));
      recording.step({{.live = second, .next = text(11, 1)}, {.live = again, .next = text(12, 1)}});
      recording.begin_probes();
      recording.step({{.live = first}, {.live = second}, {.live = child}, {.live = again}});
      mutate(recording, "steps");
    }
  }
}

// Two sequences with trees that branch, committed before one plan; one tree grows by a second round.
TEST_F(PlanMutation, TokenTreesShow) {
  for (const PageTables page_tables : kPageTables) {
    Recording recording({.page_tables = page_tables});
    const auto first = recording.begin(text(1, 6));
    const auto second = recording.begin(text(2, 9));
    recording.step({{.live = first, .next = text(3, 1)}, {.live = second, .next = text(4, 1)}});
    // A chain, so that in the second round all of it is seen; then it branches.
    recording.step({{.live = first, .drafts = text(5, 3), .parents = {-1, 0, 1}},
                    {.live = second, .drafts = text(6, 7), .parents = {-1, -1, 0, 1, 1, 3, 3}}});
    recording.step({{.live = first, .drafts = text(7, 4), .parents = {2, 2, 4, 4}}});
    // Paths whose moves must run in order: a token moves to where the next one came from.
    recording.commit_tree(first, 6);
    recording.commit_tree(second, 6);
    recording.append(first, text(8, 1));
    recording.append(second, text(9, 1));
    recording.step({{.live = first, .next = text(10, 1)}, {.live = second, .next = text(11, 1)}});
    recording.begin_probes();
    recording.step({{.live = first}, {.live = second}});
    mutate(recording, "trees");
  }
}

TEST_F(PlanMutation, WindowsWithSinksShow) {
  for (const PageTables page_tables : kPageTables) {
    Recording recording({.page_tokens = 3, .page_tables = page_tables});
    const auto early = recording.begin(text(1, 5));
    const auto late = recording.begin(text(2, 17));
    recording.set_window(early, {.visible_tokens = 9, .sink_tokens = 2});
    recording.step({{.live = late, .next = text(13, 1)}, {.live = early, .next = text(3, 1)}});
    recording.step({{.live = late}});
    recording.set_window(late, {.visible_tokens = 10, .sink_tokens = 4});
    recording.append(late, text(4, 1));
    recording.append(early, text(5, 9));
    recording.step({{.live = late, .next = text(6, 1)}, {.live = early, .next = text(7, 1)}});
    recording.step({{.live = late, .next = text(8, 1)}, {.live = early, .next = text(9, 1)}});
    recording.append(early, text(10, 12));
    recording.step({{.live = late, .next = text(11, 1)}, {.live = early, .next = text(12, 1)}});
    recording.begin_probes();
    for (std::uint64_t i = 0; i < 8; ++i) {
      recording.step({{.live = late, .next = text(20 + i, 1)}, {.live = early, .next = text(30 + i, 1)}});
    }
    mutate(recording, "windows");
  }
}

// Prefixes shared at three depths, by sequences that are not neighbours in the step.
TEST_F(PlanMutation, CascadesShow) {
  for (const PageTables page_tables : {PageTables::Rows, PageTables::Csr}) {
    Recording recording({.page_tokens = 2, .page_tables = page_tables, .cascade_levels_max = 4});
    const auto one = recording.begin(join(text(1, 4), join(text(2, 4), text(3, 3))));
    recording.step({{.live = one, .next = text(4, 1)}});
    const auto two = recording.begin(join(text(1, 4), join(text(2, 4), text(5, 4))));
    recording.step({{.live = two, .next = text(6, 1)}});
    const auto other = recording.begin(text(7, 5));
    const auto three = recording.begin(join(text(1, 4), text(8, 3)));
    const auto four = recording.begin(join(join(text(1, 4), text(2, 4)), join(text(5, 4), text(9, 2))));
    recording.step({{.live = one, .next = text(10, 1)},
                    {.live = other, .next = text(11, 1)},
                    {.live = four, .next = text(12, 1)},
                    {.live = three, .next = text(13, 1)},
                    {.live = two, .next = text(14, 1)}});
    recording.begin_probes();
    // Alone, so that the row of each is read from its first page on.
    for (const auto live : {one, two, three, four, other}) recording.step({{.live = live}});
    mutate(recording, "cascade");
  }
}

// Layers with a window of their own: prompts in chunks, decode, a tree in two rounds, and a prefix that two share. The
// second round has a root too, which sees the first of the listed keys.
TEST_F(PlanMutation, WindowsOfLayersShow) {
  for (const PageTables page_tables : {PageTables::Rows, PageTables::Csr}) {
    Recording recording({.page_tokens = 3, .page_tables = page_tables, .cascade_levels_max = 2, .layer_window = 5});
    const auto first = recording.begin(join(text(1, 6), text(2, 7)));
    recording.step({{.live = first, .token_count = 8}});
    const auto second = recording.begin(join(text(1, 6), text(3, 4)));
    recording.step({{.live = first, .next = text(4, 1)}, {.live = second, .next = text(5, 1)}});
    recording.step({{.live = first, .drafts = text(6, 2), .parents = {-1, 0}}, {.live = second, .next = text(7, 1)}});
    recording.step({{.live = first, .drafts = text(8, 3), .parents = {1, -1, 2}}});
    recording.commit_tree(first, 4);
    recording.append(first, text(9, 1));
    recording.step({{.live = second, .next = text(10, 1)}, {.live = first, .next = text(11, 1)}});
    recording.begin_probes();
    recording.step({{.live = first}});
    recording.step({{.live = second}});
    mutate(recording, "layer windows");
  }
}

// A prompt computed in one cache, half of it before it is asked for, and decoded in another.
TEST_F(PlanMutation, TransfersShow) {
  for (const AttentionKind attention : {AttentionKind::Gqa, AttentionKind::Mla}) {
    Recording recording({.attention = attention, .page_tables = PageTables::Csr, .cache_count = 2});
    const std::vector<TokenId> prompt = text(1, 15);
    // Other pages are taken first, so that no slot is the same on both sides.
    const auto other = recording.begin(text(2, 6), 1);
    recording.step({{.live = other, .next = text(3, 1)}});
    const auto source = recording.begin(prompt, 0);
    recording.step({{.live = source, .token_count = 6}});
    const auto target = recording.begin(prompt, 1);
    recording.prepare_transfer(source, target, 14);
    recording.step({{.live = source, .token_count = 5}});
    recording.step({{.live = source, .token_count = 4}});
    recording.finish_transfer(target);
    recording.begin_probes();
    recording.step({{.live = target, .next = text(4, 1)}, {.live = other, .next = text(5, 1)}});
    recording.step({{.live = target, .next = text(6, 1)}, {.live = other, .next = text(7, 1)}});
    mutate(recording, "transfer");
  }
}

// Runs last: gtest runs the tests of a suite in the order they are written.
TEST_F(PlanMutation, EveryArrayWasChanged) {
  const std::set<std::string> all = {"query_positions",
                                     "query_indptr",
                                     "seq_lens",
                                     "stored_lens",
                                     "visible_tokens",
                                     "state_slots",
                                     "tree_indptr",
                                     "tree_nodes.begin",
                                     "tree_nodes.end",
                                     "tree_nodes.depth",
                                     "append_slots",
                                     "levels.query_indptr",
                                     "levels.page_indptr",
                                     "levels.rows",
                                     "levels.first_columns",
                                     "levels.last_page_tokens",
                                     "levels.window_offsets",
                                     "levels.sink_tokens",
                                     "levels.first_keys",
                                     "layer_windows.page_indptr",
                                     "layer_windows.rows",
                                     "layer_windows.first_columns",
                                     "layer_windows.first_keys",
                                     "layer_windows.key_offsets",
                                     "deltas.row",
                                     "deltas.column",
                                     "deltas.page",
                                     "page_indices",
                                     "block_table",
                                     "moves.source_slot",
                                     "moves.target_slot",
                                     "move_indptr",
                                     "copies.source",
                                     "copies.target",
                                     "copies.token_count",
                                     "remote_slots",
                                     "receivers",
                                     "sends.local_slot",
                                     "sends.remote_slot",
                                     "sends.token_count",
                                     "sends.receiver"};
  for (const std::string& name : all) EXPECT_GT(tallies_[name].changed, 0U) << name << " was never changed";
  for (const auto& [name, tally] : tallies_) EXPECT_TRUE(all.contains(name)) << name << " is not in the list";
}

}  // namespace
}  // namespace quire::testing
