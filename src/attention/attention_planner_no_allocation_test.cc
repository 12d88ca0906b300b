// SPDX-License-Identifier: Apache-2.0
//
// A binary of its own: the counter replaces operator new everywhere in it.
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "attention/attention_planner.h"
#include "tests/cache/allocation_counter.h"

namespace quire {
namespace {

TEST(AttentionPlanner, PlansOfSeveralGroupsAllocateNothing) {
  using Kind = PlannerGroup::Kind;
  for (const PageTables tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    AttentionPlanner planner =
        AttentionPlanner::create({.page_tokens = 4,
                                  .sequence_count_max = 2,
                                  .row_pages = 8,
                                  .step_tokens_max = 16,
                                  .page_tables = tables,
                                  .cascade_levels_max = tables == PageTables::Block ? 1U : 2U,
                                  .groups = {{.kind = Kind::Full},
                                             {.kind = Kind::Compressed, .tokens_per_entry = 2},
                                             {.kind = Kind::Window, .window_tokens = 5, .sink_tokens = 2},
                                             {.kind = Kind::Ring, .slot_entries = 6},
                                             {.kind = Kind::State}}})
            .value();
    const std::vector<PageId> row{PageId{1}, PageId{2}, PageId{3}, PageId{4}};
    const PlannerWindow window{.pages = row};
    const PlannerEntryGroups groups{.windows = {&window, 1}};
    const std::vector<StateCopy> copies(2);
    const std::uint64_t before = allocation_count;
    std::uint64_t bytes = 0;
    for (std::uint32_t token = 1; token < 16; ++token) {
      const PlannerEntry entry{
          .sequence = {0, 1}, .position = token - 1, .token_count = 1, .context_tokens = token, .pages = row};
      const AttentionPlan plan =
          planner.build({.entries = {&entry, 1}, .entry_groups = {&groups, 1}, .state_copies = copies});
      bytes += plan.staging.size();
    }
    EXPECT_EQ(allocation_count - before, 0U);
    EXPECT_GT(bytes, 0U);
  }
}

}  // namespace
}  // namespace quire
