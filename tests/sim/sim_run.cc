// SPDX-License-Identifier: Apache-2.0
#include "sim_run.h"

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "simulation.h"
#include "testing/sanitized.h"

namespace quire::testing {

namespace {

// A check of the library's own aborts, or memory is not there: the line that repeats it is printed all the same.
char repeat_line[128];  // NOLINT(*-avoid-non-const-global-variables): a signal handler knows nothing else

void print_repeat_line(int signal) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, repeat_line, std::strlen(repeat_line));
  std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
}

std::string flags_of(const SimShape& shape) {
  std::string flags;
  if (shape.disk_tier != SimSeeds::Drawn) flags += shape.disk_tier == SimSeeds::Always ? " --disk" : " --no-disk";
  if (shape.groups != SimSeeds::Drawn) flags += shape.groups == SimSeeds::Always ? " --groups" : " --no-groups";
  if (shape.has_disk_ranks) flags += " --disk-ranks";
  if (shape.has_remote) flags += " --remote";
  if (shape.diskless == SimSeeds::Always) flags += " --no-files";
  if (shape.chunks) flags += " --chunks";
  if (shape.ahead != SimSeeds::Drawn) flags += shape.ahead == SimSeeds::Always ? " --ahead" : " --no-ahead";
  if (shape.mutation.shares_pages) flags += " --shares-pages";
  if (shape.mutation.swaps_key_spaces) flags += " --swaps-key-spaces";
  return flags;
}

std::string run_seeds(const SimRun& run, SimCounts& counts) {
  const std::string flags = flags_of(run.shape);
  for (std::uint64_t i = 0; i < run.seed_count && counts.operations() < run.operations_max; ++i) {
    const std::uint64_t seed = run.first_seed + i;
    std::uint64_t step = 0;
    std::string setup = "(not open)";
    try {
      Simulation simulation(seed, counts, run.shape);
      setup = to_string(simulation.setup());
      if (run.checks_always) simulation.check_always();
      if (run.prints) std::printf("seed %llu: %s\n", static_cast<unsigned long long>(seed), setup.c_str());
      while (step < run.step_count) {
        ++step;
        (void)std::snprintf(repeat_line, sizeof(repeat_line), "quire-sim --seed %llu --steps %llu%s\n",
                            static_cast<unsigned long long>(seed), static_cast<unsigned long long>(step),
                            flags.c_str());
        simulation.step();
      }
      simulation.wind_down();
      ++counts.seeds;
    } catch (const SimFailure& failure) {
      std::ostringstream text;
      text << "quire-sim --seed " << seed << " --steps " << step << flags << "\n"
           << setup << "\nstep " << step << ": " << failure.what() << "\n";
      return text.str();
    }
  }
  return "";
}

}  // namespace

std::string run_simulation(const SimRun& run, SimCounts& counts) {
  counts.prints = run.prints;
  auto* const on_abort = std::signal(SIGABRT, print_repeat_line);
  auto* const on_arithmetic = std::signal(SIGFPE, print_repeat_line);
  // Sanitizers have more to say.
  auto* const on_fault = kIsSanitized ? SIG_DFL : std::signal(SIGSEGV, print_repeat_line);
  const std::string failure = run_seeds(run, counts);
  std::signal(SIGABRT, on_abort);
  std::signal(SIGFPE, on_arithmetic);
  if (!kIsSanitized) std::signal(SIGSEGV, on_fault);
  return failure;
}

std::string to_string(const SimCounts& counts) {
  std::string text;
  for (std::size_t i = 0; i < kSimEventCount; ++i) {
    text += std::to_string(counts.events[i]) + "\t" + std::string(to_string(static_cast<SimEvent>(i))) + "\n";
  }
  return text + std::to_string(counts.api_calls) + "\tcalls\n" + std::to_string(counts.mover_events) +
         "\tevents of the mover\n";
}

}  // namespace quire::testing
