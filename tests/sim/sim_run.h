// SPDX-License-Identifier: Apache-2.0
//
// Runs seeds of the simulation one after the other. The first failure is text that begins with the line that repeats
// it.
#pragma once

#include <cstdint>
#include <string>

#include "sim_setup.h"

namespace quire::testing {

struct SimRun {
  std::uint64_t first_seed = 1;
  std::uint64_t seed_count = 0;
  std::uint64_t step_count = 0;               ///< of each seed
  std::uint64_t operations_max = UINT64_MAX;  ///< of all seeds together; what is begun is not broken off
  bool prints = false;
  bool checks_always = false;  ///< check_invariants() after every operation
  SimShape shape;
};

/// Empty when everything was as it must be.
[[nodiscard]] std::string run_simulation(const SimRun& run, SimCounts& counts);
/// One line per event, and the operations.
[[nodiscard]] std::string to_string(const SimCounts& counts);

}  // namespace quire::testing
