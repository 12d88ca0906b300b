// SPDX-License-Identifier: Apache-2.0
//
// OverlapWork: the matrix products of one layer of Llama-3-8B, for 1,024 tokens that see 8,192 keys, put on a stream. A
// seam between what plans steps, which includes the headers of the cache, and what nvcc compiles.
//
// single-threaded
#pragma once

#include <memory>
#include <string>

#include "quire/device.h"
#include "quire/result.h"

namespace quire::bench {

class OverlapWork {
 public:
  virtual ~OverlapWork() = default;
  virtual void launch() = 0;
  [[nodiscard]] virtual double flops() const = 0;

  /// Null, and why, where cuBLAS is not there.
  [[nodiscard]] static std::unique_ptr<OverlapWork> open(const std::string& cublas, DeviceStream stream,
                                                         std::string& why);
};

/// Ends the program with what failed.
void check_overlap(const Status& status, const char* what);

}  // namespace quire::bench
