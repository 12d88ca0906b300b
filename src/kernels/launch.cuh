// SPDX-License-Identifier: Apache-2.0
//
// What all launchers share: kernels go to a stream, and the runtime's errors become Status here and nowhere else.
//
// thread-safe
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include <cuda_runtime.h>

#include "quire/device.h"
#include "quire/layout.h"
#include "quire/result.h"

namespace quire {

/// The one place where the CUDA runtime's errors become Errors: Unavailable where there is no device, driver or memory
/// for it, else Io, with the error's name and text. `what` is what was tried.
[[nodiscard]] Status cuda_status(cudaError_t error, std::string_view what);

// Arguments that the host can see. `what` is the launcher's name.
[[nodiscard]] Status check_argument(bool is_right, std::string_view what, std::string_view why);
/// An address is needed where there is something to do.
[[nodiscard]] Status check_address(const void* address, std::string_view what, std::string_view name);
[[nodiscard]] Status check_layer(const PoolGeometry& geometry, std::uint32_t layer_index, std::string_view what);
[[nodiscard]] Status check_component(const PoolGeometry& geometry, std::uint32_t component_index,
                                     std::string_view what);

inline constexpr std::uint32_t kBlockThreads = 256;

/// How many blocks share so many pieces of work, of which a block does `block_items` at a time. Kernels go round in a
/// loop where there are fewer blocks. Nothing here depends on the device, so that nobody has to ask which one it is.
[[nodiscard]] inline std::uint32_t block_count_for(std::uint64_t items, std::uint64_t block_items) {
  constexpr std::uint64_t kBlocksMax = std::uint64_t{1} << 20U;
  return static_cast<std::uint32_t>(std::min(((items - 1) / block_items) + 1, kBlocksMax));
}

struct LaunchShape {
  std::uint32_t blocks = 1;
  std::uint32_t threads = kBlockThreads;
  DeviceStream stream;
  std::string_view what;  ///< the launcher's name
};

template <typename... Parameters, typename... Arguments>
[[nodiscard]] Status launch(const LaunchShape& shape, void (*kernel)(Parameters...), Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(shape.blocks);
  config.blockDim = dim3(shape.threads);
  config.stream = static_cast<cudaStream_t>(shape.stream.handle);
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  // The call's own answer, since what the thread's last error says may be about somebody else's call. That is taken
  // back only where it is about this one.
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return cuda_status(error, shape.what);
}

struct Division {
  std::uint64_t quotient;
  std::uint32_t remainder;
};

/// GPUs have no instruction for it: with 32 bits it takes a third of the time, and that is nearly always enough.
[[nodiscard]] __device__ inline Division divide(std::uint64_t value, std::uint32_t divisor) {
  if ((value >> 32U) == 0) {
    const auto low = static_cast<std::uint32_t>(value);
    return {low / divisor, low % divisor};
  }
  return {value / divisor, static_cast<std::uint32_t>(value % divisor)};
}

}  // namespace quire
