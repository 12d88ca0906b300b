// SPDX-License-Identifier: Apache-2.0
//
// bench_prefix_tree: takes Google Benchmark's flags (--benchmark_filter=match, --benchmark_out=FILE for JSON)
// and prints, after the run, each figure that has a target beside it.
#include <benchmark/benchmark.h>

#include <iostream>
#include <memory>

#include "benchmarks.h"
#include "summary.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  quire::bench::register_match_benchmarks();
  quire::bench::register_chat_benchmarks();
  quire::bench::register_long_context_benchmarks();
  quire::bench::register_eviction_benchmarks();
  quire::bench::register_memory_benchmarks();

  std::unique_ptr<benchmark::BenchmarkReporter> shown(benchmark::CreateDefaultDisplayReporter());
  // Beside JSON or CSV on standard output, the table would make it unreadable to programs.
  const bool is_console = dynamic_cast<benchmark::ConsoleReporter*>(shown.get()) != nullptr;
  quire::bench::Summary summary(std::move(shown));
  benchmark::RunSpecifiedBenchmarks(&summary);
  summary.print(is_console ? std::cout : std::cerr);
  benchmark::Shutdown();
  return 0;
}
