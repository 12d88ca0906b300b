// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "quire/host_kernels.h"

namespace quire {

void list_pages_on_host(const ListPagesParams& params) {
  const std::size_t slice_count = params.slice_rows.size();
  QUIRE_CHECK(params.first_columns.size() == slice_count && params.page_indptr.size() == slice_count + 1,
              "listing pages needs a row, a first column and an offset for every slice, and one offset more");
  for (std::size_t slice = 0; slice < slice_count; ++slice) {
    // A negative number becomes too large, in all of these.
    const auto first = static_cast<std::uint64_t>(params.page_indptr[slice]);
    const auto end = static_cast<std::uint64_t>(params.page_indptr[slice + 1]);
    QUIRE_CHECK(first <= end && end <= params.page_indices.size(), "listing pages behind the end of their list");
    if (first == end) continue;
    const auto row = static_cast<std::uint64_t>(params.slice_rows[slice]);
    const auto column = static_cast<std::uint64_t>(params.first_columns[slice]);
    QUIRE_CHECK(row < params.rows, "listing pages of a row that the table does not have");
    QUIRE_CHECK(column <= params.row_columns && end - first <= params.row_columns - column,
                "listing pages of columns that the table does not have");
    std::memcpy(params.page_indices.data() + first, params.table + (row * params.row_columns) + column,
                (end - first) * sizeof(std::int32_t));
  }
}

}  // namespace quire
