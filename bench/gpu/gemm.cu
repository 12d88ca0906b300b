// SPDX-License-Identifier: Apache-2.0
//
// What a matrix product loses beside a swap.
#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks.h"
#include "cublas.cuh"
#include "swap_rig.cuh"

namespace quire::bench {
namespace {

constexpr int kSide = 8192;

struct Gemm {
  void run() {
    cublas.multiply({.rows = kSide, .columns = kSide, .inner = kSide, .a = a.data(), .b = b.data(), .c = c.data()});
  }

  static constexpr std::size_t kBytes = std::size_t{kSide} * kSide * 2;
  Cublas cublas;
  Buffer a{kBytes, 1};
  Buffer b{kBytes, 2};
  Buffer c{kBytes, 3};
};

struct Beside {
  double products_per_second = 0;
  double swap_rate = 0;  // GB/s
};

// Products for so long, while other threads keep swaps going.
Beside run_beside(Gemm& gemm, cudaStream_t stream, double seconds, SwapRig* rig, bool loads, bool stores) {
  std::atomic<bool> must_stop = false;
  std::atomic<std::uint64_t> calls = 0;
  const auto swap = [&](TransferKind kind) {
    while (!must_stop) {
      rig->start(kind);
      ++calls;
    }
    rig->finish_all(kind);
  };
  std::vector<std::thread> swappers;
  if (loads) swappers.emplace_back(swap, TransferKind::Load);
  if (stores) swappers.emplace_back(swap, TransferKind::Store);
  for (int i = 0; i < 20; ++i) gemm.run();
  check(cudaStreamSynchronize(stream), "waiting");
  const double begin = now_seconds();
  const std::uint64_t calls_before = calls;
  std::uint64_t count = 0;
  double took = 0;
  do {
    for (int i = 0; i < 20; ++i) gemm.run();
    count += 20;
    check(cudaStreamSynchronize(stream), "waiting");
    took = now_seconds() - begin;
  } while (took < seconds);
  const auto swapped = static_cast<double>(calls - calls_before);
  must_stop = true;
  for (std::thread& swapper : swappers) swapper.join();
  const double call_bytes = rig == nullptr ? 0 : static_cast<double>(rig->call_bytes());
  return {.products_per_second = static_cast<double>(count) / took, .swap_rate = swapped * call_bytes / took / 1e9};
}

}  // namespace

void run_gemm(Device& device, const Settings& settings, Table& table) {
  table.section("A bf16 product of 8192-cubed matrices (cuBLAS) beside a swap of Llama-3-8B pages");
  SwapRig rig(device, llama_shape(), settings, true);
  cudaStream_t stream = rig.streams().compute;
  Gemm gemm;
  if (const std::string why = gemm.cublas.load(settings.cublas, stream); !why.empty()) {
    table.not_measured(why + " (say where it is with --cublas)");
    table.print_new();
    return;
  }
  struct Way {
    const char* name;
    bool loads;
    bool stores;
    double alone = 0;  // GB/s of the swap without the product
    std::vector<double> losses;
    std::vector<double> rates;
  };
  std::vector<Way> ways = {{.name = "loads", .loads = true, .stores = false},
                           {.name = "stores", .loads = false, .stores = true},
                           {.name = "both ways", .loads = true, .stores = true}};
  for (Way& way : ways) way.alone = rig.rate(way.loads, way.stores, 4);
  std::vector<double> alone_rates;
  for (int i = 0; i < settings.gemm_runs; ++i) {
    const Beside alone = run_beside(gemm, stream, settings.gemm_seconds, nullptr, false, false);
    alone_rates.push_back(alone.products_per_second);
    for (Way& way : ways) {
      const Beside beside = run_beside(gemm, stream, settings.gemm_seconds, &rig, way.loads, way.stores);
      way.losses.push_back(100 * (1 - (beside.products_per_second / alone.products_per_second)));
      way.rates.push_back(beside.swap_rate);
    }
  }
  const double flops = 2.0 * kSide * kSide * kSide;
  table.add({.what = "alone", .value = median(alone_rates) * flops / 1e12, .unit = "TFLOP/s"});
  for (const Way& way : ways) {
    const double loss = median(way.losses);
    table.add({.what = std::string("loss beside ") + way.name,
               .value = loss,
               .unit = "%",
               .beside = "swap " + text_of(median(way.rates)) + " of " + text_of(way.alone) + " GB/s alone",
               .ratio = median(way.rates) / way.alone,
               .target = "<= 5 %, 0.8",
               .is_met = loss <= 5 && median(way.rates) >= 0.8 * way.alone});
  }
  table.print_new();
}

}  // namespace quire::bench
