// SPDX-License-Identifier: Apache-2.0
//
// What launchers refuse before they launch anything: it needs no GPU. tests/gpu has what the kernels do.
#include "quire/device_kernels.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "quire/entry_formats.h"
#include "quire/layout.h"
#include "quire/plan.h"
#include "quire/state_slots.h"

namespace quire {
namespace {

// The message of an InvalidArgument.
std::string refusal(const Status& status) {
  if (status.has_value()) return "launched";
  return (status.error().code == ErrorCode::InvalidArgument ? "" : "another code: ") + status.error().message;
}

class DeviceKernelsTest : public ::testing::Test {
 protected:
  static QuantisedEntries make_entries(const EntryFormat& format) {
    CacheGroup group{.name = "entries", .layers = layer_range(0, 2)};
    use_format(group, format);
    PageGeometry page = PageGeometry::create(group, {.page_tokens = 3}).value();
    return QuantisedEntries::create(PoolGeometry::create(std::move(page), {.page_count = 5}).value(), format).value();
  }

  PoolGeometry geometry_ =
      PoolGeometry::create(
          PageGeometry::create(
              {.name = "kv", .layers = layer_range(0, 3), .components = {{.name = "k", .heads = 2, .dim = 8}}}, {})
              .value(),
          {.page_count = 5})
          .value();
  QuantisedEntries entries_ = make_entries(fp8_arrays());
  // Never read: nothing is launched with it.
  std::array<std::byte, 64> memory_{};
  std::int64_t slot_ = 0;
  std::int32_t number_ = 0;
};

TEST_F(DeviceKernelsTest, AppendingRefusesWhatTheHostCanSee) {
  AppendParams params{.geometry = &geometry_, .pool = memory_.data(), .source = memory_.data(), .slots = {&slot_, 1}};
  params.geometry = nullptr;
  EXPECT_EQ(refusal(launch_append(params, {})), "launch_append: geometry is null");
  params.geometry = &geometry_;
  params.layer_index = 3;
  EXPECT_EQ(refusal(launch_append(params, {})),
            "launch_append: layer_index is 3, but group 'kv' has 3 layers, counted from 0");
  params.layer_index = 0;
  params.component_index = 1;
  EXPECT_EQ(refusal(launch_append(params, {})),
            "launch_append: component_index is 1, but group 'kv' has 1 component, counted from 0");
  params.component_index = 0;
  params.source_token_bytes = 31;
  EXPECT_EQ(refusal(launch_append(params, {})),
            "launch_append: the source's tokens overlap: source_token_bytes is less than a token has");
  params.source_token_bytes = 0;
  params.pool = nullptr;
  EXPECT_EQ(refusal(launch_append(params, {})), "launch_append: pool is null");
  params.pool = memory_.data();
  params.source = nullptr;
  EXPECT_EQ(refusal(launch_append(params, {})), "launch_append: source is null");
  params.source = memory_.data();
  params.slots = {static_cast<const std::int64_t*>(nullptr), 1};
  EXPECT_EQ(refusal(launch_append(params, {})), "launch_append: slots is null");
}

TEST_F(DeviceKernelsTest, ReadingRefusesWhatTheHostCanSee) {
  ReadRowsParams params{.geometry = &geometry_, .pool = memory_.data(), .target = memory_.data(), .slots = {&slot_, 1}};
  params.layer_index = 7;
  EXPECT_EQ(refusal(launch_read_rows(params, {})),
            "launch_read_rows: layer_index is 7, but group 'kv' has 3 layers, counted from 0");
  params.layer_index = 0;
  params.target_token_bytes = 31;
  EXPECT_EQ(refusal(launch_read_rows(params, {})),
            "launch_read_rows: the target's tokens overlap: target_token_bytes is less than a token has");
  params.target_token_bytes = 0;
  params.target = nullptr;
  EXPECT_EQ(refusal(launch_read_rows(params, {})), "launch_read_rows: target is null");
}

TEST_F(DeviceKernelsTest, PagesAndTablesNeedTheirAddresses) {
  const PageCopy copy{};
  const TokenMove move{};
  const PageDelta delta{};
  const PageId page{0};
  EXPECT_EQ(refusal(launch_copy_pages({.copies = {&copy, 1}}, {})), "launch_copy_pages: geometry is null");
  EXPECT_EQ(refusal(launch_copy_pages({.geometry = &geometry_, .copies = {&copy, 1}}, {})),
            "launch_copy_pages: pool is null");
  EXPECT_EQ(refusal(launch_move_tokens({.geometry = &geometry_, .moves = {&move, 1}}, {})),
            "launch_move_tokens: pool is null");
  EXPECT_EQ(refusal(launch_reset_pages({.geometry = &geometry_, .pages = {&page, 1}}, {})),
            "launch_reset_pages: pool is null");
  EXPECT_EQ(refusal(launch_apply_deltas({.deltas = {&delta, 1}}, {})), "launch_apply_deltas: table is null");
}

TEST_F(DeviceKernelsTest, ListsNeedAnOffsetMoreThanSlices) {
  const std::vector<std::int32_t> numbers(3);
  EXPECT_EQ(refusal(launch_list_pages({.slice_rows = numbers, .first_columns = numbers, .page_indptr = numbers}, {})),
            "launch_list_pages: there is not a row, a first column and an offset for every slice, and one offset more");
  EXPECT_EQ(refusal(launch_list_pages({.rows = 1,
                                       .row_columns = 1,
                                       .slice_rows = {&number_, 1},
                                       .first_columns = {&number_, 1},
                                       .page_indptr = {numbers.data(), 2},
                                       .page_indices = {&number_, 1}},
                                      {})),
            "launch_list_pages: table is null");
}

TEST_F(DeviceKernelsTest, CopiesOfStatesThatThereCannotBeAreRefusedBeforeAnyRuns) {
  const CacheGroup state{.name = "state",
                         .kind = GroupKind::Snapshot,
                         .layers = {0},
                         .components = {{.name = "s", .dim = 4}},
                         .retention = {.rule = RetentionRule::Last},
                         .slot_entries = 1};
  const StateSlots slots = StateSlots::create(ModelLayout::create("model", {state}).value()).value();
  const PoolGeometry pages = PoolGeometry::create(PageGeometry::create(state, {}).value(), {.page_count = 3}).value();
  const PoolGeometry* const geometry = &pages;
  std::byte* pool = memory_.data();
  StateCopy copy{.kind = StateCopyKind::Save, .source = 1, .target = 2, .position = 5};
  CopyStatesParams params{.slots = &slots,
                          .state = memory_.data(),
                          .slot_count = 2,
                          .geometries = {&geometry, 1},
                          .pools = {&pool, 1},
                          .copies = {&copy, 1}};
  const auto with = [&](const StateCopy& changed) {
    copy = changed;
    return refusal(launch_copy_states(params, {}));
  };
  EXPECT_EQ(with({.kind = StateCopyKind::Save, .group = 1}),
            "launch_copy_states: copy 0: group 1 keeps nothing in state slots");
  EXPECT_EQ(with({.kind = StateCopyKind::Reset, .target = 2}), "launch_copy_states: copy 0: there is no state slot 2");
  EXPECT_EQ(with({.kind = StateCopyKind::Fork, .source = -1}), "launch_copy_states: copy 0: there is no state slot -1");
  EXPECT_EQ(with({.kind = StateCopyKind::Save, .source = 0, .target = 0}),
            "launch_copy_states: copy 0: there is no page 0 for a snapshot");
  EXPECT_EQ(with({.kind = StateCopyKind::Restore, .source = 3, .target = 0}),
            "launch_copy_states: copy 0: there is no page 3 for a snapshot");
  EXPECT_EQ(with({.kind = StateCopyKind::Restore, .source = 1, .target = 0, .position = -1}),
            "launch_copy_states: copy 0: a snapshot before the first token");
  EXPECT_EQ(with({.kind = static_cast<StateCopyKind>(9)}), "launch_copy_states: copy 0: there is no such kind of copy");
  params.pools = {};
  EXPECT_EQ(with({.kind = StateCopyKind::Save, .source = 0, .target = 1}),
            "launch_copy_states: copy 0: group 'state' has no pages");
  params.pools = {&pool, 1};
  params.state = nullptr;
  EXPECT_EQ(with({}), "launch_copy_states: state is null");
}

TEST_F(DeviceKernelsTest, QuantisedEntriesRefuseWhatTheHostCanSee) {
  AppendQuantisedParams append{
      .entries = &entries_, .pool = memory_.data(), .source = memory_.data(), .slots = {&slot_, 1}};
  append.layer_index = 2;
  EXPECT_EQ(refusal(launch_append_quantised(append, {})),
            "launch_append_quantised: layer_index is 2, but group 'entries' has 2 layers, counted from 0");
  append.layer_index = 0;
  append.positions = {&number_, 1};
  EXPECT_EQ(refusal(launch_append_quantised(append, {})),
            "launch_append_quantised: there are not as many positions as slots where entries have them, else none");
  append.positions = {};
  append.source_row_bytes = 1;
  EXPECT_EQ(refusal(launch_append_quantised(append, {})),
            "launch_append_quantised: the source's rows overlap: source_row_bytes is less than a row has");
  append.source_row_bytes = 0;
  append.source = nullptr;
  EXPECT_EQ(refusal(launch_append_quantised(append, {})), "launch_append_quantised: source is null");
  append.entries = nullptr;
  EXPECT_EQ(refusal(launch_append_quantised(append, {})), "launch_append_quantised: entries is null");
}

TEST_F(DeviceKernelsTest, GathersRefuseWhatTheHostCanSee) {
  GatherSelectedParams selected{
      .entries = &entries_,
      .pool = memory_.data(),
      .table = {.pages = &number_, .rows = 1, .row_columns = 1, .entry_counts = {&number_, 1}},
      .table_rows = {&number_, 1},
      .ids = {&number_, 1},
      .ids_per_row = 1,
      .target = {.data = memory_.data(), .row_entries = 1, .first_entry = 1}};
  EXPECT_EQ(refusal(launch_gather_selected(selected, {})), "launch_gather_selected: a row of the target is too short");
  selected.target.first_entry = 0;
  selected.ids_per_row = 2;
  EXPECT_EQ(refusal(launch_gather_selected(selected, {})),
            "launch_gather_selected: there are not ids_per_row ids for every row");
  selected.ids_per_row = 1;
  selected.table.rows = 2;
  EXPECT_EQ(refusal(launch_gather_selected(selected, {})),
            "launch_gather_selected: the table has another number of entry counts than of rows");
  selected.table.rows = 1;
  selected.table.pages = nullptr;
  EXPECT_EQ(refusal(launch_gather_selected(selected, {})), "launch_gather_selected: table.pages is null");
  selected.table.pages = &number_;
  selected.target.data = nullptr;
  EXPECT_EQ(refusal(launch_gather_selected(selected, {})), "launch_gather_selected: target.data is null");

  std::array<std::int32_t, 2> counts{};
  GatherLastParams last{.entries = &entries_,
                        .pool = memory_.data(),
                        .table = selected.table,
                        .table_rows = {&number_, 1},
                        .entries_max = 1,
                        .target = {.data = memory_.data(), .row_entries = 1, .valid_counts = counts}};
  EXPECT_EQ(refusal(launch_gather_last(last, {})),
            "launch_gather_last: the target has another number of valid counts than of rows");
  last.target.valid_counts = {};
  last.pool = nullptr;
  EXPECT_EQ(refusal(launch_gather_last(last, {})), "launch_gather_last: pool is null");

  GatherRingParams ring{.entries = &entries_,
                        .pool = memory_.data(),
                        .state_slots = {&number_, 1},
                        .entries_max = 4,
                        .target = {.data = memory_.data(), .row_entries = 4}};
  EXPECT_EQ(refusal(launch_gather_ring(ring, {})), "launch_gather_ring: there is not a length for every row");
  ring.lengths = {&number_, 1};
  EXPECT_EQ(refusal(launch_gather_ring(ring, {})), "launch_gather_ring: entries_max is more than a ring has");
}

}  // namespace
}  // namespace quire
