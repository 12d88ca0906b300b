// SPDX-License-Identifier: Apache-2.0
//
// The subjects of bench_micro. Each adds its benchmarks to Google Benchmark; a name is
// subject/variant/parameters.
#pragma once

#include <algorithm>
#include <cstdint>

namespace quire::bench {

/// How much a run measures. A quick one takes fewer samples of each figure and leaves out the largest trees.
struct Effort {
  bool is_quick = false;

  [[nodiscard]] std::size_t samples(std::size_t count) const {
    return is_quick ? std::max<std::size_t>(1, count / 5) : count;
  }
  /// Of W3.
  [[nodiscard]] std::uint32_t leaf_count_max() const { return is_quick ? 200'000 : 1'000'000; }
};

void register_match_benchmarks(const Effort& effort);             // one prompt of 100,000 tokens: match and insert
void register_chat_benchmarks(const Effort& effort);              // W1, multi-turn chat
void register_long_context_benchmarks(const Effort& effort);      // W2
void register_eviction_benchmarks(const Effort& effort);          // W3, eviction at scale
void register_memory_benchmarks();                                // what the index weighs on W1
void register_plan_benchmarks();                                  // attention plans of decode steps
void register_host_kernel_benchmarks(const Effort& effort);       // append and page copies in host memory
void register_quantised_kernel_benchmarks(const Effort& effort);  // gather and append of E4M3 entries
void register_transfer_benchmarks(const Effort& effort);          // pages between tiers, and the mover
void register_overlap_benchmarks(const Effort& effort);           // computing a step while its pages arrive
void register_tier_benchmarks();                                  // what a host tier costs the engine's thread
void register_rank_benchmarks(const Effort& effort);              // the same of ranks with a cache each

}  // namespace quire::bench
