// SPDX-License-Identifier: Apache-2.0
#include "group_pattern.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace quire {
namespace {

/// A group of every kind, and of every way to lie in a slot: pages, a ring, a state with versions, rows by position.
ModelLayout all_kinds() {
  const std::vector<Component> rows = {{.name = "k", .heads = 2, .dim = 12}, {.name = "v", .heads = 2, .dim = 12}};
  const GroupRetention every{.rule = RetentionRule::Every, .interval_tokens = 32};
  return *ModelLayout::create(
      "all-kinds",
      {{.name = "full", .layers = {0, 1}, .components = rows},
       {.name = "entries", .kind = GroupKind::Compressed, .layers = {2}, .components = rows, .tokens_per_entry = 4},
       {.name = "window", .kind = GroupKind::Window, .layers = {3}, .components = rows, .window_tokens = 10},
       {.name = "ring",
        .kind = GroupKind::Window,
        .layers = {4},
        .components = rows,
        .retention = every,
        .window_tokens = 6,
        .window_form = WindowForm::Ring,
        .slot_entries = 8},
       {.name = "state",
        .kind = GroupKind::Snapshot,
        .layers = {5},
        .components = rows,
        .retention = every,
        .slot_entries = 1,
        .slot_history = 2},
       {.name = "tail",
        .kind = GroupKind::Snapshot,
        .layers = {6},
        .components = rows,
        .retention = every,
        .slot_entries = 8,
        .snapshot_entries = 4,
        .boundary_tokens = 4}});
}

class GroupPatternTest : public ::testing::Test {
 protected:
  GroupPatternTest() {
    CacheConfig config{.layout = all_kinds(), .page = {.page_tokens = 8}};
    config.device.page_count = 64;
    config.device.group_page_counts = {64, 64, 64, 64, 64, 64};
    config.sequence_count_max = 2;
    config.plan.page_tables = PageTables::Block;
    Result<std::unique_ptr<Cache>> opened = Cache::open(std::move(config));
    EXPECT_TRUE(opened) << opened.error().message;
    cache_ = *std::move(opened);
    pattern_ = std::make_unique<GroupPattern>(*cache_);
    space_ = *cache_->key_space({.model = "all-kinds"});
    for (TokenId token = 0; token < 100; ++token) {
      tokens_.push_back(token);
      const std::uint64_t before = histories_.empty() ? PagePattern::root("") : histories_.back();
      histories_.push_back(PagePattern::next(before, token));
    }
  }

  /// Computes a prompt to its end. `look` sees the plan of the first step, with its copies applied.
  template <typename Look>
  void compute(std::uint32_t token_count, const Look& look) {
    Sequence sequence = *cache_->begin(space_, {.tokens = std::span(tokens_).first(token_count)});
    ASSERT_TRUE(cache_->admit(sequence));
    for (bool is_first = true; cache_->view(sequence)->pending_tokens > 0; is_first = false) {
      const StepEntry asked{&sequence};
      Result<PlanOutcome> outcome = cache_->plan_step({&asked, 1});
      ASSERT_TRUE(outcome && outcome->step) << (outcome ? "pages are short" : outcome.error().message);
      const Step& step = *outcome->step;
      ASSERT_TRUE(cache_->apply_copies(step));
      const PatternEntry entry{&step.plan, 0, histories_};
      if (is_first) look(entry, step.plan.entries[0]);
      pattern_->write(entry);
      ASSERT_TRUE(cache_->apply_saves(step));
      const StepResult result;
      ASSERT_TRUE(cache_->finish_step(step, {&result, 1}));
    }
    ASSERT_TRUE(cache_->end(sequence));
  }

  std::unique_ptr<Cache> cache_;
  std::unique_ptr<GroupPattern> pattern_;
  KeySpaceId space_;
  std::vector<TokenId> tokens_;
  std::vector<std::uint64_t> histories_;
};

TEST_F(GroupPatternTest, WhatOneSequenceLeftTheNextFinds) {
  compute(70, [](const PatternEntry&, const AttentionPlanEntry& planned) { EXPECT_EQ(planned.position, 0U); });
  compute(90, [&](const PatternEntry& entry, const AttentionPlanEntry& planned) {
    EXPECT_EQ(planned.position, 64U);
    EXPECT_FALSE(pattern_->first_wrong_byte(entry, planned.position));
  });
  EXPECT_GT(pattern_->verified_bytes(), 64U * 96U);
}

TEST_F(GroupPatternTest, OneChangedBitIsFoundInEveryGroup) {
  compute(70, [](const PatternEntry&, const AttentionPlanEntry&) {});
  compute(90, [&](const PatternEntry& entry, const AttentionPlanEntry& planned) {
    const auto expect_found = [&](std::byte* bytes, std::uint64_t count, std::uint32_t group, bool is_slot) {
      // Some bytes are of entries that nobody reads any more; those of a whole page or part are not.
      std::uint64_t found = 0;
      for (std::uint64_t i = 0; i < count; ++i) {
        bytes[i] ^= std::byte{1};
        const auto wrong = pattern_->first_wrong_byte(entry, planned.position);
        bytes[i] ^= std::byte{1};
        if (!wrong) continue;
        ++found;
        EXPECT_EQ(wrong->group_index, group);
        EXPECT_EQ(wrong->is_slot, is_slot);
        EXPECT_EQ(wrong->offset, i);
      }
      EXPECT_GT(found, 0U) << "group " << group;
    };
    const auto page_of = [&](std::uint32_t group, PageId page) {
      return cache_->device_memory(group) + (page.value * cache_->geometry(group).page().page_bytes());
    };
    expect_found(page_of(0, planned.pages[3]), cache_->geometry(0).page().page_bytes(), 0, false);
    expect_found(page_of(1, planned.pages[3]), cache_->geometry(1).page().page_bytes(), 1, false);
    const PageId last{static_cast<std::uint32_t>(entry.plan->groups[2].block_table[7])};
    expect_found(page_of(2, last), cache_->geometry(2).page().page_bytes(), 2, false);
    for (const StatePart& part : cache_->state_slots().parts()) {
      std::byte* const slot =
          cache_->state_memory() + (planned.state_slot * cache_->state_slots().slot_bytes()) + part.offset;
      expect_found(slot, part.geometry.page_bytes(), part.group_index, true);
    }
  });
}

TEST_F(GroupPatternTest, SomeByteOfATokenIsOfAGroupThatKeepsEverything) {
  compute(70, [](const PatternEntry&, const AttentionPlanEntry&) {});
  compute(90, [&](const PatternEntry& entry, const AttentionPlanEntry& planned) {
    for (std::uint32_t position = 0; position < planned.position; ++position) {
      std::byte& byte = pattern_->byte_of(entry, position);
      byte ^= std::byte{0x10};
      const auto wrong = pattern_->first_wrong_byte(entry, planned.position);
      byte ^= std::byte{0x10};
      ASSERT_TRUE(wrong);
      EXPECT_EQ(wrong->group_index, 0U);
      EXPECT_EQ(wrong->position, position);
    }
  });
}

}  // namespace
}  // namespace quire
