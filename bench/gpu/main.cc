// SPDX-License-Identifier: Apache-2.0
//
// gpu_bench: what quire moves and how fast, on the GPU of this machine, beside the limit and the alternatives.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks.h"

namespace {

constexpr const char* kHelp =
    "Usage: gpu_bench [options] [part]...\n"
    "\n"
    "Parts: swaps latencies calls kernels pinning gemm overlap; all of them when none is named.\n"
    "\n"
    "  --only TEXT            of the swaps, those whose name has this\n"
    "  --no-alternatives      only quire's own swaps\n"
    "  --cublas PATH          cuBLAS, for the matrix products that run beside swaps\n"
    "  --gemm-seconds N       of one run of it (5)\n"
    "  --gemm-runs N          of which the median counts (5)\n"
    "  --staging-mib N        device memory of a swap's ring, of each direction\n"
    "  --staged-blocks N      thread blocks of a kernel in device memory\n"
    "  --direct-blocks N      thread blocks of a kernel that reaches to the host\n"
    "  --can-run              only say whether there is a GPU\n"
    "  --help                 this text\n"
    "\n"
    "Figures go to the error output as they come, and in one table to the standard output at the end. Exit status: 0\n"
    "when every target was met, 1 when not, 2 for wrong arguments, 3 without a GPU.\n";

struct Arguments {
  quire::bench::Settings settings;
  std::vector<std::string> parts;
  bool wants_help = false;
  bool only_asks = false;
  std::string wrong;
};

Arguments parse(int count, char** values) {
  Arguments arguments;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = values[i];
    if (name == "--help") {
      arguments.wants_help = true;
      continue;
    }
    if (name == "--can-run") {
      arguments.only_asks = true;
      continue;
    }
    if (!name.starts_with("--")) {
      if (name != "swaps" && name != "latencies" && name != "calls" && name != "kernels" && name != "gemm" &&
          name != "pinning" && name != "overlap")
        arguments.wrong = name;
      arguments.parts.emplace_back(name);
      continue;
    }
    if (i + 1 == count && name != "--no-alternatives") {
      arguments.wrong = name;
      break;
    }
    if (name == "--no-alternatives") {
      arguments.settings.alternatives = false;
      continue;
    }
    const char* const value = values[++i];
    if (name == "--only") {
      arguments.settings.only = value;
    } else if (name == "--cublas") {
      arguments.settings.cublas = value;
    } else if (name == "--gemm-seconds") {
      arguments.settings.gemm_seconds = std::atof(value);
    } else if (name == "--gemm-runs") {
      arguments.settings.gemm_runs = std::max(1, std::atoi(value));
    } else if (name == "--staging-mib") {
      arguments.settings.staging_bytes = std::strtoull(value, nullptr, 10) << 20U;
    } else if (name == "--staged-blocks") {
      arguments.settings.staged_blocks = static_cast<std::uint32_t>(std::atoi(value));
    } else if (name == "--direct-blocks") {
      arguments.settings.direct_blocks = static_cast<std::uint32_t>(std::atoi(value));
    } else {
      arguments.wrong = name;
    }
  }
  return arguments;
}

}  // namespace

int main(int count, char** values) {
  const Arguments arguments = parse(count, values);
  if (arguments.wants_help) {
    (void)std::fputs(kHelp, stdout);
    return 0;
  }
  if (!arguments.wrong.empty()) {
    (void)std::fprintf(stderr, "gpu_bench: unknown or incomplete: %s; see gpu_bench --help\n", arguments.wrong.c_str());
    return 2;
  }
  const double begin = quire::bench::now_seconds();
  const auto device = quire::open_cuda_device(0);
  if (!device) {
    (void)std::fprintf(stderr, "gpu_bench: there is no GPU to measure: %s\n", device.error().message.c_str());
    return 3;
  }
  if (arguments.only_asks) return 0;
  const auto wants = [&](std::string_view part) {
    return arguments.parts.empty() ||
           std::find(arguments.parts.begin(), arguments.parts.end(), part) != arguments.parts.end();
  };
  quire::bench::Table table;
  const auto limits = quire::bench::measure_link(**device, table);
  if (wants("swaps")) quire::bench::run_swaps(**device, limits, arguments.settings, table);
  if (wants("latencies")) quire::bench::run_latencies(**device, arguments.settings, table);
  if (wants("calls")) quire::bench::run_call_overheads(**device, arguments.settings, table);
  if (wants("kernels")) quire::bench::run_kernels(table);
  if (wants("pinning")) quire::bench::run_pinning(**device, table);
  if (wants("gemm")) quire::bench::run_gemm(**device, arguments.settings, table);
  if (wants("overlap")) quire::bench::run_overlap(**device, arguments.settings, table);
  std::printf("\n%s, %u multiprocessors; measured in %.0f s\n", (*device)->name().c_str(),
              (*device)->multiprocessor_count(), quire::bench::now_seconds() - begin);
  table.print();
  const int missed = table.missed_count();
  std::printf("\ntargets missed: %d, not measured: %d\n", missed, table.not_measured_count());
  return missed + table.not_measured_count() == 0 ? 0 : 1;
}
