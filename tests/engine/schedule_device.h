// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/tiny_engine/step_kernels.h"
#include "quire/device.h"

namespace quire::testing {

/// A device to run schedules on, in place of the host's memory.
struct ScheduleDevice {
  Device* device = nullptr;
  tiny_engine::StepKernels* kernels = nullptr;
};

}  // namespace quire::testing
