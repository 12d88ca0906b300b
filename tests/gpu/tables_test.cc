// SPDX-License-Identifier: Apache-2.0
//
// Tables of pages and lists of them, beside the host twins.
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "quire/device_kernels.h"
#include "quire/host_kernels.h"
#include "quire/plan.h"
#include "testing/seeded_run.h"
#include "tests/gpu/device_buffer.h"

namespace quire {
namespace {

using testing::DeviceArray;
using testing::kLaunchings;
using testing::Launching;
using testing::Random;
using testing::run_on_gpu;

std::vector<std::int32_t> random_numbers(Random& random, std::size_t count) {
  std::vector<std::int32_t> numbers(count);
  for (std::int32_t& number : numbers) number = static_cast<std::int32_t>(random.next());
  return numbers;
}

TEST(GpuApplyDeltas, WritesWhatTheHostWritesAndLeavesOutTheRest) {
  Random random(1);
  for (int turn = 0; turn < 50; ++turn) {
    const std::uint32_t rows = 1 + random.below(20);
    const std::uint32_t row_columns = 1 + random.below(300);
    const std::vector<std::int32_t> before = random_numbers(random, std::size_t{rows} * row_columns);
    std::vector<PageDelta> deltas;
    for (std::uint32_t row = 0; row < rows; ++row) {
      for (std::uint32_t column = random.below(row_columns + 1); column < row_columns; ++column) {
        deltas.push_back({.row = static_cast<std::int32_t>(row),
                          .column = static_cast<std::int32_t>(column),
                          .page = static_cast<std::int32_t>(random.below(1'000'000))});
      }
    }
    std::vector<std::int32_t> expected = before;
    apply_deltas_on_host({.table = expected.data(), .rows = rows, .row_columns = row_columns, .deltas = deltas});
    constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
    for (const PageDelta& outside :
         {PageDelta{-1, 0, 1}, PageDelta{0, -1, 1}, PageDelta{static_cast<std::int32_t>(rows), 0, 1},
          PageDelta{0, static_cast<std::int32_t>(row_columns), 1}, PageDelta{kLeast, 0, 1}}) {
      deltas.insert(deltas.begin() + random.below(static_cast<std::uint32_t>(deltas.size()) + 1), outside);
    }
    DeviceArray<std::int32_t> table(before);
    DeviceArray<PageDelta> device_deltas(deltas);
    for (const Launching launching : kLaunchings) {
      table.write(before);
      const Status done = run_on_gpu(launching, [&](DeviceStream stream) {
        return launch_apply_deltas(
            {.table = table.data(), .rows = rows, .row_columns = row_columns, .deltas = device_deltas.span()}, stream);
      });
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_EQ(table.read(), expected);
    }
  }
}

// Slices as plans have them: some without pages, padding at the end, and room behind.
TEST(GpuListPages, ListsWhatTheHostLists) {
  Random random(2);
  for (int turn = 0; turn < 60; ++turn) {
    const std::uint32_t rows = 1 + random.below(10);
    const std::uint32_t row_columns = 1 + random.below(turn < 50 ? 40 : 20'000);
    const std::vector<std::int32_t> content = random_numbers(random, std::size_t{rows} * row_columns);
    std::vector<std::int32_t> slice_rows;
    std::vector<std::int32_t> first_columns;
    std::vector<std::int32_t> page_indptr{static_cast<std::int32_t>(random.below(5))};
    const std::uint32_t slice_count = random.below(100);
    for (std::uint32_t slice = 0; slice < slice_count; ++slice) {
      const bool has_pages = random.below(4) != 0;
      const std::uint32_t column = random.below(row_columns);
      const std::uint32_t count = has_pages ? random.below(row_columns - column + 1) : 0;
      slice_rows.push_back(has_pages ? static_cast<std::int32_t>(random.below(rows)) : -1);
      first_columns.push_back(static_cast<std::int32_t>(column));
      page_indptr.push_back(page_indptr.back() + static_cast<std::int32_t>(count));
    }
    const std::vector<std::int32_t> before =
        random_numbers(random, static_cast<std::size_t>(page_indptr.back()) + random.below(300));
    std::vector<std::int32_t> expected = before;
    list_pages_on_host({.table = content.data(),
                        .rows = rows,
                        .row_columns = row_columns,
                        .slice_rows = slice_rows,
                        .first_columns = first_columns,
                        .page_indptr = page_indptr,
                        .page_indices = expected});
    DeviceArray<std::int32_t> table(content);
    DeviceArray<std::int32_t> device_rows(slice_rows);
    DeviceArray<std::int32_t> device_columns(first_columns);
    DeviceArray<std::int32_t> device_indptr(page_indptr);
    DeviceArray<std::int32_t> page_indices(before);
    for (const Launching launching : kLaunchings) {
      page_indices.write(before);
      const Status done = run_on_gpu(launching, [&](DeviceStream stream) {
        return launch_list_pages({.table = table.data(),
                                  .rows = rows,
                                  .row_columns = row_columns,
                                  .slice_rows = device_rows.span(),
                                  .first_columns = device_columns.span(),
                                  .page_indptr = device_indptr.span(),
                                  .page_indices = page_indices.mutable_span()},
                                 stream);
      });
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_EQ(page_indices.read(), expected) << "turn " << turn;
    }
  }
}

TEST(GpuListPages, LeavesOutRowsColumnsAndPlacesThatThereAreNot) {
  DeviceArray<std::int32_t> table(std::vector<std::int32_t>{10, 11, 12, 13, 20, 21, 22, 23});
  DeviceArray<std::int32_t> slice_rows(std::vector<std::int32_t>{-1, 2, 1, 0, 1});
  DeviceArray<std::int32_t> first_columns(std::vector<std::int32_t>{0, 0, 3, -1, 0});
  DeviceArray<std::int32_t> page_indptr(std::vector<std::int32_t>{0, 1, 2, 4, 6, 9});  // the list ends at 7
  DeviceArray<std::int32_t> page_indices(std::vector<std::int32_t>(7, -7));
  ASSERT_TRUE(run_on_gpu(Launching::Directly, [&](DeviceStream stream) {
                return launch_list_pages({.table = table.data(),
                                          .rows = 2,
                                          .row_columns = 4,
                                          .slice_rows = slice_rows.span(),
                                          .first_columns = first_columns.span(),
                                          .page_indptr = page_indptr.span(),
                                          .page_indices = page_indices.mutable_span()},
                                         stream);
              }).has_value());
  EXPECT_EQ(page_indices.read(), (std::vector<std::int32_t>{-7, -7, 23, -7, -7, 10, 20}));
}

}  // namespace
}  // namespace quire
