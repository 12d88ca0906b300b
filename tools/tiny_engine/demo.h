// SPDX-License-Identifier: Apache-2.0
//
// The tiny engine at work: a fixed workload through the scheduler, every token compared with the oracle's.
#pragma once

#include <cstdio>

namespace tiny_engine {

/// Runs the workload and prints a summary of a dozen lines. 0, or 1 when something differs or fails.
int run_tiny_engine(std::FILE* out);

}  // namespace tiny_engine
