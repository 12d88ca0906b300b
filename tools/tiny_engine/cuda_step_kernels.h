// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a step on a GPU: quire's own, and an attention kernel that is as plain as they come.
//
// thread-safe
#pragma once

#include "step_kernels.h"

namespace tiny_engine {

class CudaStepKernels : public StepKernels {
 public:
  [[nodiscard]] quire::Status append(const quire::AppendParams& params, quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status read_rows(const quire::ReadRowsParams& params, quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status copy_pages(const quire::CopyPagesParams& params, quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status move_tokens(const quire::MoveTokensParams& params, quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status apply_deltas(const quire::ApplyDeltasParams& params, quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status copy_states(const quire::CopyStatesParams& params, quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status append_quantised(const quire::AppendQuantisedParams& params,
                                               quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status gather_selected(const quire::GatherSelectedParams& params,
                                              quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status gather_last(const quire::GatherLastParams& params, quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status gather_ring(const quire::GatherRingParams& params, quire::DeviceStream stream) override;
  [[nodiscard]] quire::Status attend(const PagedAttentionParams& params, quire::DeviceStream stream) override;
};

}  // namespace tiny_engine
