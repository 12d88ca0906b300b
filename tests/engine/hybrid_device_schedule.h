// SPDX-License-Identifier: Apache-2.0
//
// A random schedule on a cache of several groups whose pages and states are a device's: every logit must be the
// oracle's, and the same, bit for bit, as when all of it is in plain memory. K, V and entries are stored in 8 bits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hybrid_schedule.h"
#include "schedule_counts.h"
#include "schedule_device.h"

namespace quire::testing {

/// Empty, or what is wrong, with all that is needed to repeat it.
[[nodiscard]] std::string run_hybrid_on_device(const ScheduleDevice& device, HybridTier tier, std::uint64_t seed,
                                               ScheduleCounts& counts);

/// What has to have happened in some of a number of schedules, by the names of ScheduleCounts.
[[nodiscard]] std::vector<const char*> must_happen_on_device(HybridTier tier);

}  // namespace quire::testing
