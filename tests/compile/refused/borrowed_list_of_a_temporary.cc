// SPDX-License-Identifier: Apache-2.0
//
// The Result is gone before the loop's first turn, and the list of runs with it. error: give the Result a name first
#include "quire/cache.h"

std::uint64_t sum(const quire::Cache& cache, const quire::Sequence& sequence) {
  std::uint64_t positions = 0;
#ifdef RIGHT
  const auto targets = cache.receive_targets(sequence);
  for (const quire::WindowRun& run : targets->windows) positions += run.position;
#else
  for (const quire::WindowRun& run : cache.receive_targets(sequence)->windows) positions += run.position;
#endif
  return positions;
}
