// SPDX-License-Identifier: Apache-2.0
#include "cuda_step_kernels.h"

#include <string>

#include <cuda_runtime.h>

#include "quire/device_kernels.h"

namespace tiny_engine {
namespace {

static_assert(sizeof(PagedAttentionParams) <= 4096);  // what a kernel takes as parameters

// A block for every query, a thread for every head: each goes through the keys in order, so that sums have one order.
__global__ void attend_kernel(PagedAttentionParams params) {
  attend_paged(params, static_cast<std::int32_t>(blockIdx.x), threadIdx.x);
}

}  // namespace

quire::Status CudaStepKernels::append(const quire::AppendParams& params, quire::DeviceStream stream) {
  return quire::launch_append(params, stream);
}

quire::Status CudaStepKernels::read_rows(const quire::ReadRowsParams& params, quire::DeviceStream stream) {
  return quire::launch_read_rows(params, stream);
}

quire::Status CudaStepKernels::copy_pages(const quire::CopyPagesParams& params, quire::DeviceStream stream) {
  return quire::launch_copy_pages(params, stream);
}

quire::Status CudaStepKernels::move_tokens(const quire::MoveTokensParams& params, quire::DeviceStream stream) {
  return quire::launch_move_tokens(params, stream);
}

quire::Status CudaStepKernels::apply_deltas(const quire::ApplyDeltasParams& params, quire::DeviceStream stream) {
  return quire::launch_apply_deltas(params, stream);
}

quire::Status CudaStepKernels::copy_states(const quire::CopyStatesParams& params, quire::DeviceStream stream) {
  return quire::launch_copy_states(params, stream);
}

quire::Status CudaStepKernels::append_quantised(const quire::AppendQuantisedParams& params,
                                                quire::DeviceStream stream) {
  return quire::launch_append_quantised(params, stream);
}

quire::Status CudaStepKernels::gather_selected(const quire::GatherSelectedParams& params, quire::DeviceStream stream) {
  return quire::launch_gather_selected(params, stream);
}

quire::Status CudaStepKernels::gather_last(const quire::GatherLastParams& params, quire::DeviceStream stream) {
  return quire::launch_gather_last(params, stream);
}

quire::Status CudaStepKernels::gather_ring(const quire::GatherRingParams& params, quire::DeviceStream stream) {
  return quire::launch_gather_ring(params, stream);
}

quire::Status CudaStepKernels::attend(const PagedAttentionParams& params, quire::DeviceStream stream) {
  if (params.plan.query_count == 0) return {};
  PagedAttentionParams copy = params;  // the runtime takes no address of anything const
  void* arguments[] = {&copy};
  const cudaError_t error = cudaLaunchKernel(
      reinterpret_cast<const void*>(attend_kernel), dim3(static_cast<unsigned>(params.plan.query_count)),
      dim3(params.shape.query_heads), arguments, 0, static_cast<cudaStream_t>(stream.handle));
  if (error == cudaSuccess) return {};
  // The call's own answer: what the thread's last error says may be about somebody else's call.
  static_cast<void>(cudaGetLastError());
  return quire::fail(quire::ErrorCode::Io,
                     std::string("launching attention: ") + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

}  // namespace tiny_engine
