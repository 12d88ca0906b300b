// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "quire/device.h"
#include "tools/tiny_engine/step_kernels.h"

namespace quire::testing {

/// A device to run schedules on, in place of the host's memory.
struct ScheduleDevice {
  Device* device = nullptr;
  tiny_engine::StepKernels* kernels = nullptr;
};

}  // namespace quire::testing
