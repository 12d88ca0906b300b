// SPDX-License-Identifier: Apache-2.0
//
// The subjects of bench_prefix_tree. Each adds its benchmarks to Google Benchmark; a name is
// subject/variant/parameters.
#pragma once

namespace quire::bench {

void register_match_benchmarks();         // one prompt of 100,000 tokens: match and insert
void register_chat_benchmarks();          // W1, multi-turn chat
void register_long_context_benchmarks();  // W2
void register_eviction_benchmarks();      // W3, eviction at scale
void register_memory_benchmarks();        // what the index weighs on W1

}  // namespace quire::bench
