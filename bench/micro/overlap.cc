// SPDX-License-Identifier: Apache-2.0
//
// overlap: the first step of a request while its pages come from the host (bench/overlap.h), with the shapes of
// Llama-3-8B but for two KV heads in place of eight, which makes 224 MiB to load. A layer is computed by a stand-in on
// one thread: products of small matrices that stay in the cache, as many as take the time in which the pages are
// loaded, which is when overlapping could bring most and is hardest.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/overlap.h"
#include "benchmarks.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::uint32_t kSide = 64;

struct Products {
  std::array<float, kSide * kSide> a{};
  std::array<float, kSide * kSide> b{};
  std::array<float, kSide * kSide> c{};

  [[gnu::noinline]] void run(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      for (std::uint32_t row = 0; row < kSide; ++row) {
        for (std::uint32_t k = 0; k < kSide; ++k) {
          const float left = a[(row * kSide) + k];
          for (std::uint32_t column = 0; column < kSide; ++column) {
            c[(row * kSide) + column] += left * b[(k * kSide) + column];
          }
        }
      }
      keep(c);
    }
  }
};

void overlap(benchmark::State& state, std::uint16_t layer_bands, std::uint32_t transfer_pages_max) {
  CacheConfig config{.layout = ModelLayout::simple({.layers = kOverlapLayers, .kv_heads = 2, .head_dim = 128}).value()};
  Overlap runs(std::move(config), layer_bands, transfer_pages_max);
  Products products;
  std::uint32_t count = 1;  // of a layer
  const OverlapEngine engine{.wait =
                                 [](const Cache& cache, const Step& step, std::uint32_t layer) {
                                   constexpr TimeNs kLongNs = TimeNs{60} * 1'000'000'000;
                                   QUIRE_CHECK(cache.wait_for_layer(step, {0, layer}, kLongNs) == TransferOutcome::Ok,
                                               "a layer did not arrive");
                                 },
                             .compute = [&](std::uint32_t) { products.run(count); },
                             .synchronize = [] {}};
  Samples load;
  (void)runs.measure(engine);  // touches all memory
  for (int i = 0; i < 4; ++i) load.add(runs.measure(engine).load * 1e6);
  Samples product;
  product.time_warm(10, [&] { products.run(100); });
  count = std::max(1U, static_cast<std::uint32_t>(100 * load.quantile(0) / kOverlapLayers / product.quantile(0)));

  // The least of each: somebody else's work on the machine makes all of them longer.
  OverlapTimes least{.load = 1e9, .compute = 1e9, .in_turn = 1e9, .overlapped = 1e9};
  for (auto _ : state) {
    const OverlapTimes times = runs.measure(engine);
    least = {.load = std::min(least.load, times.load),
             .compute = std::min(least.compute, times.compute),
             .in_turn = std::min(least.in_turn, times.in_turn),
             .overlapped = std::min(least.overlapped, times.overlapped)};
    state.SetIterationTime(times.overlapped);
  }
  state.counters["load_ms"] = least.load * 1e3;
  state.counters["compute_ms"] = least.compute * 1e3;
  state.counters["in_turn_ms"] = least.in_turn * 1e3;
  state.counters["overlapped_ms"] = least.overlapped * 1e3;
  state.counters["longer_ms"] = std::max(least.load, least.compute) * 1e3;
  state.counters["in_turn_ratio"] = least.ratio(least.in_turn);
  state.counters["overlapped_ratio"] = least.ratio(least.overlapped);
}

}  // namespace

void register_overlap_benchmarks(const Effort& effort) {
  const auto add = [&](const std::string& name, std::uint16_t layer_bands, std::uint32_t transfer_pages_max) {
    benchmark::RegisterBenchmark(name.c_str(), overlap, layer_bands, transfer_pages_max)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond)
        ->Iterations(static_cast<benchmark::IterationCount>(effort.samples(10)));
  };
  for (const int bands : {1, 4, 8, 16, 32}) {
    add("overlap/bands:" + std::to_string(bands), static_cast<std::uint16_t>(bands), 512);
  }
  // A load of several transfers: each has all its bands before the next one begins.
  add("overlap/pages_max:64/bands:32", 32, 64);
}

}  // namespace quire::bench
