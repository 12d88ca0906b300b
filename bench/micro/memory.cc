// SPDX-License-Identifier: Apache-2.0
//
// What the index weighs: the growth of resident memory over one run of W1, for tree, policy and pool
// together, per token that is cached at its end. Each case runs in a process of its own, forked before the
// tree exists, so that no memory another benchmark gave back is counted as free.
#include <benchmark/benchmark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

#include "base/check.h"
#include "benchmarks.h"
#include "testing/chat_driver.h"
#include "testing/workloads.h"

namespace quire::bench {
namespace {

struct ProcessMemory {
  long virtual_pages = 0;
  long resident_pages = 0;  // without files: code that runs for the first time is not the tree's
};

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  QUIRE_CHECK(file != nullptr, "the system says how much memory a process has");
  long shared_pages = 0;
  const int read = std::fscanf(file, "%ld %ld %ld", &memory.virtual_pages, &memory.resident_pages, &shared_pages);
  QUIRE_CHECK(read == 3, "the system says how much memory a process has");
  memory.resident_pages -= shared_pages;
  std::fclose(file);
  return memory;
}

struct Weight {
  double resident_bytes = 0;
  double virtual_bytes = 0;
  double cached_tokens = 0;
};

Weight weigh_chat(const testing::ChatWorkload& workload, std::uint32_t page_tokens) {
  const ProcessMemory before = process_memory();
  testing::TreeDriver driver(testing::chat_driver_config(workload, page_tokens));
  for (const testing::ChatWorkload::Request& request : workload.requests()) driver.run_request(request.tokens);
  const ProcessMemory after = process_memory();
  const auto page_bytes = static_cast<double>(::sysconf(_SC_PAGESIZE));
  return {.resident_bytes = static_cast<double>(after.resident_pages - before.resident_pages) * page_bytes,
          .virtual_bytes = static_cast<double>(after.virtual_pages - before.virtual_pages) * page_bytes,
          .cached_tokens = static_cast<double>(driver.tree().page_count()) * page_tokens};
}

// In a child process; false if it could not be run.
bool weigh_in_child(const testing::ChatWorkload& workload, std::uint32_t page_tokens, Weight& weight) {
  (void)process_memory();  // what the first reading allocates is not the tree's
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return false;
  const pid_t child = ::fork();
  if (child == 0) {
    const Weight measured = weigh_chat(workload, page_tokens);
    const bool is_written = ::write(ends[1], &measured, sizeof(measured)) == sizeof(measured);
    ::_exit(is_written ? 0 : 1);
  }
  ::close(ends[1]);
  const bool is_read = child > 0 && ::read(ends[0], &weight, sizeof(weight)) == sizeof(weight);
  ::close(ends[0]);
  if (child > 0) ::waitpid(child, nullptr, 0);
  return is_read;
}

void memory(benchmark::State& state, std::uint32_t page_tokens) {
  const testing::ChatWorkload workload;
  Weight weight;
  for (auto _ : state) {
    if (!weigh_in_child(workload, page_tokens, weight)) {
      state.SkipWithError("the child process did not finish");
      return;
    }
  }
  state.counters["bytes_per_token"] = weight.resident_bytes / weight.cached_tokens;
  state.counters["resident_mb"] = weight.resident_bytes / 1e6;
  state.counters["reserved_mb"] = weight.virtual_bytes / 1e6;
  state.counters["cached_tokens"] = weight.cached_tokens;
}

}  // namespace

void register_memory_benchmarks() {
  for (const std::uint32_t page_tokens : {16U, 1U, 64U}) {
    benchmark::RegisterBenchmark(("memory/P:" + std::to_string(page_tokens)).c_str(), memory, page_tokens)
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1);
  }
}

}  // namespace quire::bench
