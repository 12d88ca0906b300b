// SPDX-License-Identifier: Apache-2.0
//
// One seed of the crash test: a file store under a random workload on a simulated disk, some lives one after the other,
// each of which ends in the middle of an operation. After each the remains are opened and compared with what was
// promised:
//
//   - the store opens, and only right bytes are read;
//   - what a completed flush() covered is there, unless it would be gone as well if nothing but the process had ended:
//     the power may take no more than that;
//   - what was dropped before a completed flush() is gone, unless it was written since.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "store/file_system.h"

namespace quire::testing {

struct CrashRun {
  std::uint64_t seed = 0;
  std::optional<SyncPoint> ignored;         ///< syncs of this kind do nothing
  std::uint32_t failures_per_thousand = 0;  ///< calls that fail; the store has one directory then
};

struct CrashOutcome {
  std::string violation;  ///< empty: none
  std::uint32_t crash_count = 0;
  std::uint64_t promised_count = 0;  ///< pages that had to be there, over all crashes
  std::uint64_t dropped_count = 0;   ///< pages that had to be gone
  std::uint64_t reclaimed_count = 0;
  std::uint64_t carried_bytes = 0;
};

[[nodiscard]] CrashOutcome run_crashes(const CrashRun& run);

}  // namespace quire::testing
