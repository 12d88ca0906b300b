// SPDX-License-Identifier: Apache-2.0
#include "kernels/launch.cuh"

#include <string>

#include "layout/text.h"

namespace quire {
namespace {

ErrorCode cuda_code(cudaError_t error) {
  switch (error) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorMemoryAllocation:
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorInitializationError:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorSystemNotReady:
      return ErrorCode::Unavailable;
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
      return ErrorCode::Unsupported;
    default:
      return ErrorCode::Io;
  }
}

}  // namespace

Status cuda_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return {};
  // It has been told: whoever asks for the thread's last error next is not to take it for that of a call of its own.
  (void)cudaGetLastError();
  return fail(cuda_code(error),
              std::string(what) + ": " + cudaGetErrorName(error) + ": " + std::string(cudaGetErrorString(error)));
}

Status check_argument(bool is_right, std::string_view what, std::string_view why) {
  if (is_right) return {};
  return fail(ErrorCode::InvalidArgument, std::string(what) + ": " + std::string(why));
}

Status check_address(const void* address, std::string_view what, std::string_view name) {
  if (address != nullptr) return {};
  return fail(ErrorCode::InvalidArgument, std::string(what) + ": " + std::string(name) + " is null");
}

Status check_layer(const PoolGeometry& geometry, std::uint32_t layer_index, std::string_view what) {
  if (layer_index < geometry.page().layer_count()) return {};
  return fail(ErrorCode::InvalidArgument, std::string(what) + ": layer_index is " + with_separators(layer_index) +
                                              ", but group " + quoted(geometry.page().group().name) + " has " +
                                              count_of(geometry.page().layer_count(), "layer") + ", counted from 0");
}

Status check_component(const PoolGeometry& geometry, std::uint32_t component_index, std::string_view what) {
  if (component_index < geometry.strides().component_count) return {};
  return fail(ErrorCode::InvalidArgument,
              std::string(what) + ": component_index is " + with_separators(component_index) + ", but group " +
                  quoted(geometry.page().group().name) + " has " +
                  count_of(geometry.strides().component_count, "component") + ", counted from 0");
}

}  // namespace quire
