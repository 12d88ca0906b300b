// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "base/check.h"
#include "quire/host_kernels.h"

namespace quire {

void apply_deltas_on_host(const ApplyDeltasParams& params) {
  for (const PageDelta& delta : params.deltas) {
    // A negative one becomes too large.
    const auto row = static_cast<std::uint32_t>(delta.row);
    const auto column = static_cast<std::uint32_t>(delta.column);
    QUIRE_CHECK(row < params.rows, "a delta for a row that the table does not have");
    QUIRE_CHECK(column < params.row_columns, "a delta for a column that the table does not have");
    params.table[(std::uint64_t{row} * params.row_columns) + column] = delta.page;
  }
}

}  // namespace quire
