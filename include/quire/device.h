// SPDX-License-Identifier: Apache-2.0
//
// What the CUDA runtime hands out, for code that includes no header of it. Neither is owned by whoever holds it here.
#pragma once

namespace quire {

/// A cudaStream_t: work on one is done in the order in which it came. Null is CUDA's default stream, as it is there.
struct DeviceStream {
  void* handle = nullptr;
};

/// A cudaEvent_t: a moment of a stream that others can wait for.
struct DeviceEvent {
  void* handle = nullptr;
};

}  // namespace quire
