// SPDX-License-Identifier: Apache-2.0
//
// The GPU benchmarks, each adding its rows to a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "quire/device.h"
#include "table.h"

namespace quire::bench {

[[nodiscard]] double now_seconds();

/// What one large copy reaches in this run: GB/s.
struct LinkLimits {
  double load = 0;
  double store = 0;
  double both = 0;
};

/// GB/s of a large copy inside the device, read and written together.
[[nodiscard]] double measure_device_copy();

struct Settings {
  // 0: what the engine chooses.
  std::uint64_t staging_bytes = 0;
  std::uint32_t staged_blocks = 0;
  std::uint32_t direct_blocks = 0;
  bool alternatives = true;
  std::string only;  ///< swaps of shapes whose name has this
  double gemm_seconds = 5;
  int gemm_runs = 5;
  std::string cublas;  ///< path of the library; empty: the loader looks for it
};

[[nodiscard]] LinkLimits measure_link(Device& device, Table& table);
void run_swaps(Device& device, const LinkLimits& limits, const Settings& settings, Table& table);
void run_latencies(Device& device, const Settings& settings, Table& table);
void run_call_overheads(Device& device, const Settings& settings, Table& table);
void run_kernels(Table& table);
void run_gemm(Device& device, const Settings& settings, Table& table);
void run_overlap(Device& device, const Settings& settings, Table& table);
void run_pinning(Device& device, Table& table);

}  // namespace quire::bench
