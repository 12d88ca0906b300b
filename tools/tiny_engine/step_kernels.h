// SPDX-License-Identifier: Apache-2.0
//
// StepKernels: what a step does in a device's memory, kernel by kernel. cuda_step_kernels.h launches them on a GPU;
// tests have those of a device that runs in plain memory, which do the same by the host twins.
//
// All put work on the stream and return. What parameters point to, but for geometries and what else describes memory,
// lies in the device's.
#pragma once

#include "paged_attention.h"
#include "quire/device.h"
#include "quire/host_kernels.h"
#include "quire/quantised_kernels.h"
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
  /// `copies` is in the host's memory.
  [[nodiscard]] virtual quire::Status copy_states(const quire::CopyStatesParams& params,
                                                  quire::DeviceStream stream) = 0;
  // Entries in 8 bits: what QuantisedEntries says of them is read on the host.
  [[nodiscard]] virtual quire::Status append_quantised(const quire::AppendQuantisedParams& params,
                                                       quire::DeviceStream stream) = 0;
  [[nodiscard]] virtual quire::Status gather_selected(const quire::GatherSelectedParams& params,
                                                      quire::DeviceStream stream) = 0;
  [[nodiscard]] virtual quire::Status gather_last(const quire::GatherLastParams& params,
                                                  quire::DeviceStream stream) = 0;
  [[nodiscard]] virtual quire::Status gather_ring(const quire::GatherRingParams& params,
                                                  quire::DeviceStream stream) = 0;
  /// attend_paged() for every query and head.
  [[nodiscard]] virtual quire::Status attend(const PagedAttentionParams& params, quire::DeviceStream stream) = 0;
};

}  // namespace tiny_engine
