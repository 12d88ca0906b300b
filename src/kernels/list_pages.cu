// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string_view>

#include "kernels/launch.cuh"
#include "quire/device_kernels.h"

namespace quire {
namespace {

struct ListPagesWork {
  const std::int32_t* table;
  std::uint32_t rows;
  std::uint32_t row_columns;
  const std::int32_t* slice_rows;
  const std::int32_t* first_columns;
  const std::int32_t* page_indptr;
  std::uint32_t slice_count;
  std::int32_t* page_indices;
  std::uint64_t page_index_count;
};

// A thread for every place of the list looks for its slice: one for every slice would leave a single long sequence to a
// few threads.
__global__ void __launch_bounds__(kBlockThreads) list_pages_kernel(ListPagesWork work) {
  for (std::uint64_t at = (std::uint64_t{blockIdx.x} * kBlockThreads) + threadIdx.x; at < work.page_index_count;
       at += std::uint64_t{gridDim.x} * kBlockThreads) {
    const auto place = static_cast<std::int64_t>(at);
    if (place < work.page_indptr[0] || place >= work.page_indptr[work.slice_count]) continue;
    // page_indptr[slice] <= place < page_indptr[end]
    std::uint32_t slice = 0;
    std::uint32_t end = work.slice_count;
    while (end - slice > 1) {
      const std::uint32_t middle = slice + ((end - slice) / 2);
      (work.page_indptr[middle] <= place ? slice : end) = middle;
    }
    // Negative ones become too large.
    const auto row = static_cast<std::uint32_t>(work.slice_rows[slice]);
    const auto column = static_cast<std::uint64_t>(work.first_columns[slice] + place - work.page_indptr[slice]);
    if (row >= work.rows || column >= work.row_columns) continue;
    work.page_indices[at] = work.table[(std::uint64_t{row} * work.row_columns) + column];
  }
}

}  // namespace

Status launch_list_pages(const ListPagesParams& params, DeviceStream stream) {
  constexpr std::string_view kWhat = "launch_list_pages";
  const std::size_t slice_count = params.slice_rows.size();
  QUIRE_TRY(check_argument(params.first_columns.size() == slice_count && params.page_indptr.size() == slice_count + 1,
                           kWhat,
                           "there is not a row, a first column and an offset for every slice, and one offset more"));
  if (slice_count == 0 || params.page_indices.empty()) return {};
  QUIRE_TRY(check_address(params.table, kWhat, "table"));
  QUIRE_TRY(check_address(params.slice_rows.data(), kWhat, "slice_rows"));
  QUIRE_TRY(check_address(params.first_columns.data(), kWhat, "first_columns"));
  QUIRE_TRY(check_address(params.page_indptr.data(), kWhat, "page_indptr"));
  QUIRE_TRY(check_address(params.page_indices.data(), kWhat, "page_indices"));
  return launch({.blocks = block_count_for(params.page_indices.size(), kBlockThreads), .stream = stream, .what = kWhat},
                list_pages_kernel,
                ListPagesWork{.table = params.table,
                              .rows = params.rows,
                              .row_columns = params.row_columns,
                              .slice_rows = params.slice_rows.data(),
                              .first_columns = params.first_columns.data(),
                              .page_indptr = params.page_indptr.data(),
                              .slice_count = static_cast<std::uint32_t>(slice_count),
                              .page_indices = params.page_indices.data(),
                              .page_index_count = params.page_indices.size()});
}

}  // namespace quire
