// SPDX-License-Identifier: Apache-2.0
//
// The host kernels on a given copy of rows, for tests; quire/host_kernels.h has those on the best one, and the
// contract.
//
// thread-safe: calls on memory that does not overlap may run at the same time.
#pragma once

#include "kernels/copy_rows.h"
#include "quire/host_kernels.h"

namespace quire {

void append_with(CopyRows copy_rows, const AppendParams& params);
void copy_pages_with(CopyRows copy_rows, const CopyPagesParams& params);
void move_tokens_with(CopyRows copy_rows, const MoveTokensParams& params);
void copy_states_with(CopyRows copy_rows, const CopyStatesParams& params);

}  // namespace quire
