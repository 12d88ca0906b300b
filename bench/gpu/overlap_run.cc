// SPDX-License-Identifier: Apache-2.0
//
// The first step of a request while its pages come from the host (bench/overlap.h), with the shapes of Llama-3-8B:
// 8,192 tokens, of which 7,168 are loaded (896 MiB) and 1,024 computed. A layer is computed by the matrix products that
// it would take, of the right sizes, on numbers of the benchmark's: projections of 1,024 tokens, their attention to
// 8,192 keys as one product for all heads, and the feed-forward part. The engine's stream waits for each layer; no
// thread does.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/overlap.h"
#include "benchmarks.h"
#include "overlap_work.h"
#include "table.h"

namespace quire::bench {
namespace {

constexpr int kRuns = 7;
constexpr int kKvWidth = 1024;

template <typename T>
T take(Result<T> result, const char* what) {
  if (!result) check_overlap(Status(tl::unexpected(result.error())), what);
  return *std::move(result);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

}  // namespace

void run_overlap(Device& device, const Settings& settings, Table& table) {
  table.section("The first step of 8,192 tokens of Llama-3-8B, 7,168 of them from the host (896 MiB)");
  const DeviceStream stream = take(device.create_stream(StreamPriority::Low), "making a stream");
  std::string why;
  const std::unique_ptr<OverlapWork> layer = OverlapWork::open(settings.cublas, stream, why);
  if (layer == nullptr) {
    table.not_measured(why + " (say where it is with --cublas)");
    table.print_new();
    device.destroy_stream(stream);
    return;
  }
  const OverlapEngine engine{.wait =
                                 [&](const Cache& cache, const Step& step, std::uint32_t index) {
                                   check_overlap(cache.wait_on(stream, step, {0, index}), "waiting for a layer");
                                 },
                             .compute = [&](std::uint32_t) { layer->launch(); },
                             .synchronize = [&] { check_overlap(device.synchronize(stream), "waiting"); }};
  const auto measure = [&](std::uint16_t bands, std::uint32_t pages_max) {
    CacheConfig config{
        .layout = take(ModelLayout::simple({.layers = kOverlapLayers, .kv_heads = 8, .head_dim = 128}), "a layout")};
    config.device.memory = DeviceMemory::Accelerator;
    config.device.byte_layout = ByteLayout::LayerFirst;
    config.device.accelerator = &device;
    config.host.staging_bytes = settings.staging_bytes;
    Overlap runs(std::move(config), bands, pages_max);
    (void)runs.measure(engine);
    std::vector<double> load, compute, in_turn, overlapped;
    for (int i = 0; i < kRuns; ++i) {
      const OverlapTimes times = runs.measure(engine);
      load.push_back(times.load);
      compute.push_back(times.compute);
      in_turn.push_back(times.in_turn);
      overlapped.push_back(times.overlapped);
    }
    return OverlapTimes{
        .load = median(load), .compute = median(compute), .in_turn = median(in_turn), .overlapped = median(overlapped)};
  };
  const auto row = [&](std::string what, double seconds, const OverlapTimes& times) {
    const bool load_is_longer = times.load > times.compute;
    return Row{.what = std::move(what),
               .value = seconds * 1e3,
               .unit = "ms",
               .beside = (load_is_longer ? "loading alone " : "computing alone ") +
                         text_of(std::max(times.load, times.compute) * 1e3),
               .ratio = times.ratio(seconds)};
  };
  for (const int bands : {1, 4, 8, 16, 32}) {
    const OverlapTimes times = measure(static_cast<std::uint16_t>(bands), 512);
    if (bands == 1) {
      const double bytes = static_cast<double>(kOverlapCachedTokens) * kOverlapLayers * 2 * kKvWidth * 2;
      table.add({.what = "load alone",
                 .value = times.load * 1e3,
                 .unit = "ms",
                 .beside = text_of(bytes / times.load / 1e9) + " GB/s"});
      table.add({.what = "compute alone",
                 .value = times.compute * 1e3,
                 .unit = "ms",
                 .beside = text_of(kOverlapLayers * layer->flops() / times.compute / 1e12) + " TFLOP/s"});
      table.add(row("loading first, then computing", times.in_turn, times));
    }
    Row made = row("computing while layers arrive, bands: " + std::to_string(bands), times.overlapped, times);
    if (bands == 16) {
      made.target = "<= 1.15 x";
      made.is_met = made.ratio <= 1.15;
    }
    table.add(std::move(made));
    table.print_new();
  }
  const OverlapTimes parts = measure(32, 64);
  table.add(row("the same in transfers of 64 pages, bands: 32", parts.overlapped, parts));
  table.print_new();
  device.destroy_stream(stream);
}

}  // namespace quire::bench
