// SPDX-License-Identifier: Apache-2.0
//
// bench_micro: takes Google Benchmark's flags (--benchmark_filter=match, --benchmark_out=FILE for JSON), --quick
// for fewer samples, and --lines for what quire bench reads instead of what people do.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <iostream>
#include <string_view>
#include <utility>

#include "benchmarks.h"
#include "summary.h"

namespace {

// Whether the flag was given; then it is gone.
bool take_flag(std::string_view flag, int& argc, char** argv) {
  char** const end = std::remove(argv + 1, argv + argc, flag);
  return std::exchange(argc, static_cast<int>(end - argv)) != argc;
}

}  // namespace

int main(int argc, char** argv) {
  const quire::bench::Effort effort{.is_quick = take_flag("--quick", argc, argv)};
  const bool wants_lines = take_flag("--lines", argc, argv);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  quire::bench::register_match_benchmarks(effort);
  quire::bench::register_chat_benchmarks(effort);
  quire::bench::register_long_context_benchmarks(effort);
  quire::bench::register_eviction_benchmarks(effort);
  quire::bench::register_memory_benchmarks();
  quire::bench::register_plan_benchmarks();
  quire::bench::register_host_kernel_benchmarks(effort);
  quire::bench::register_quantised_kernel_benchmarks(effort);
  quire::bench::register_transfer_benchmarks(effort);
  quire::bench::register_overlap_benchmarks(effort);
  quire::bench::register_tier_benchmarks();
  quire::bench::register_rank_benchmarks(effort);

  if (wants_lines) {
    quire::bench::Summary summary(effort);
    benchmark::RunSpecifiedBenchmarks(&summary);
  } else {
    benchmark::RunSpecifiedBenchmarks();
  }
  benchmark::Shutdown();
  return 0;
}
