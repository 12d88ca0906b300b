// SPDX-License-Identifier: Apache-2.0
//
// StepKernels: what a step does in a device's memory, kernel by kernel. cuda_step_kernels.h launches them on a GPU;
// tests have those of a device that runs in plain memory, which do the same by the host twins.
//
// All put work on the stream and return. What parameters point to, but for geometries, lies in the device's memory.
#pragma once

#include "paged_attention.h"
#include "quire/device.h"
#include "quire/host_kernels.h"
#include "quire/result.h"

namespace tiny_engine {

class StepKernels {
 public:
  virtual ~StepKernels() = default;

  [[nodiscard]] virtual quire::Status append(const quire::AppendParams& params, quire::DeviceStream stream) = 0;
  [[nodiscard]] virtual quire::Status read_rows(const quire::ReadRowsParams& params, quire::DeviceStream stream) = 0;
  [[nodiscard]] virtual quire::Status copy_pages(const quire::CopyPagesParams& params, quire::DeviceStream stream) = 0;
  [[nodiscard]] virtual quire::Status move_tokens(const quire::MoveTokensParams& params,
                                                  quire::DeviceStream stream) = 0;
  [[nodiscard]] virtual quire::Status apply_deltas(const quire::ApplyDeltasParams& params,
                                                   quire::DeviceStream stream) = 0;
  /// attend_paged() for every query and head.
  [[nodiscard]] virtual quire::Status attend(const PagedAttentionParams& params, quire::DeviceStream stream) = 0;
};

}  // namespace tiny_engine
