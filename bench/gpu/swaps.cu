// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <string>

#include "alternatives.cuh"
#include "benchmarks.h"
#include "quire/layout.h"
#include "quire/mover.h"
#include "swap_rig.cuh"

namespace quire::bench {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30U;
constexpr int kCalls = 8;

Row rate_row(std::string what, double rate, double limit, double at_least) {
  return {.what = std::move(what),
          .value = rate,
          .unit = "GB/s",
          .beside = "one large copy " + text_of(limit),
          .ratio = rate / limit,
          .target = at_least > 0 ? ">= " + text_of(at_least, 2) : "",
          .is_met = at_least > 0 ? std::optional(rate / limit >= at_least) : std::nullopt};
}

void add_alternatives(SwapRig& rig, const LinkLimits& limits, Table& table) {
  cudaStream_t stream = rig.streams().of[0];
  const auto bytes = static_cast<double>(rig.call_bytes());
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    const bool is_load = kind == TransferKind::Load;
    const std::string way = is_load ? " load" : " store";
    const double limit = is_load ? limits.load : limits.store;
    const Pages pages = rig.pages(kind);
    const WarpEach warps(pages);
    // As many calls behind each other as quire's have.
    const auto rate_of = [&](int calls, const std::function<void()>& call) {
      const double seconds = median_seconds(3, [&] {
        for (int i = 0; i < calls; ++i) call();
      });
      return bytes * calls / seconds / 1e9;
    };
    const Batch as_batch(pages);
    const double each = rate_of(1, [&] { one_copy_each(pages, stream); });  // thousands of copies as it is
    const double batch = rate_of(kCalls, [&] { as_batch.run(stream); });
    const double warp = rate_of(kCalls, [&] { warps.run(stream); });
    table.add(rate_row("  one memcpy per fragment," + way, each, limit, 0));
    table.add(rate_row("  cudaMemcpyBatchAsync of fragments," + way, batch, limit, 0));
    table.add(rate_row("  one warp per fragment," + way, warp, limit, 0));
  }
}

void add_rates(SwapRig& rig, const LinkLimits& limits, const std::string& suffix, double one_way, double both_ways,
               Table& table) {
  const double load = rig.rate(true, false, kCalls);
  const double store = rig.rate(false, true, kCalls);
  table.add(rate_row("load" + suffix, load, limits.load, one_way));
  table.add(rate_row("store" + suffix, store, limits.store, one_way));
  const double both = rig.rate(true, true, kCalls);
  Row row = rate_row("both at once" + suffix, both, limits.both, 0);
  if (both_ways > 0) {
    row.target = ">= " + text_of(both_ways, 0) + " GB/s";
    row.is_met = both >= both_ways;
  }
  table.add(row);
}

void add_busy_shares(SwapRig& rig, const std::string& suffix, Table& table) {
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    const double share = 100 * rig.busy_share(kind, kCalls);
    table.add({.what = std::string("multiprocessors busy, ") + (kind == TransferKind::Load ? "load" : "store") + suffix,
               .value = share,
               .unit = "%",
               .beside = "of the transfer's time",
               .ratio = std::nullopt,
               .target = "<= 5 %",
               .is_met = share <= 5});
  }
}

std::string paths_text(const SwapPaths& paths) {
  if (paths.few_pages_max == 0) return std::string(to_string(paths.many));
  return std::string(to_string(paths.few)) + " up to " + std::to_string(paths.few_pages_max) + " pages, then " +
         std::string(to_string(paths.many));
}

struct Case {
  SwapShape shape;
  double one_way = 0;
  double both_ways = 0;
  bool has_busy_target = false;
  bool has_checksum_target = true;  // of the rates with checksums
  bool has_alternatives = false;
};

void run_case(Device& device, const Case& of, const LinkLimits& limits, const Settings& settings, Table& table) {
  if (of.shape.name.find(settings.only) == std::string::npos) return;
  table.section(of.shape.name + ", pages of " + std::to_string(of.shape.page_bytes()) + " bytes, " +
                std::to_string(of.shape.call_pages) + " scattered pages a call, " + std::to_string(kCalls) +
                " calls behind each other");
  double with_sums = 0;
  for (const bool checksums : {true, false}) {
    SwapRig rig(device, of.shape, settings, checksums);
    const std::string suffix = checksums ? ", checksums" : ", no checksums";
    table.note("chosen" + suffix + ": loads " + paths_text(rig.engine().paths(TransferKind::Load)) + "; stores " +
               paths_text(rig.engine().paths(TransferKind::Store)));
    const double one_way = checksums && !of.has_checksum_target ? 0 : of.one_way;
    add_rates(rig, limits, suffix, one_way, of.both_ways, table);
    if (of.has_busy_target) add_busy_shares(rig, suffix, table);
    const double both = rig.rate(true, false, kCalls) + rig.rate(false, true, kCalls);
    if (checksums) {
      with_sums = both;
    } else {
      const double cost = 100 * (1 - (with_sums / both));
      table.add({.what = "checksums cost (loads and stores)",
                 .value = cost,
                 .unit = "%",
                 .beside = "of the rate without",
                 .ratio = std::nullopt,
                 .target = "<= 3 %",
                 .is_met = cost <= 3});
      if (of.has_alternatives && settings.alternatives) add_alternatives(rig, limits, table);
    }
    table.print_new();
  }
}

}  // namespace

double measure_device_copy() {
  const Buffer memory(4 * kGiB);
  Streams streams;
  const double seconds = median_device_seconds(11, streams.of[0], [&] {
    check(cudaMemcpyAsync(memory.data() + (2 * kGiB), memory.data(), 2 * kGiB, cudaMemcpyDefault, streams.of[0]),
          "copying");
  });
  return 4 * static_cast<double>(kGiB) / seconds / 1e9;
}

LinkLimits measure_link(Device& device, Table& table) {
  const Buffer memory(2 * kGiB);
  const HostMemory host(device, 2 * kGiB, kGiB);
  Streams streams;
  const auto load = [&] {
    check(cudaMemcpyAsync(memory.data(), host.data(), kGiB, cudaMemcpyDefault, streams.of[0]), "copying");
  };
  const auto store = [&] {
    check(cudaMemcpyAsync(host.data() + kGiB, memory.data() + kGiB, kGiB, cudaMemcpyDefault, streams.of[1]), "copying");
  };
  const auto bytes = static_cast<double>(kGiB);
  const LinkLimits limits{.load = bytes / median_seconds(5, load) / 1e9,
                          .store = bytes / median_seconds(5, store) / 1e9,
                          .both = 2 * bytes /
                                  median_seconds(5,
                                                 [&] {
                                                   load();
                                                   store();
                                                 }) /
                                  1e9};
  table.section("The limits: one large copy of 1 GiB");
  table.add({.what = "host to device", .value = limits.load, .unit = "GB/s"});
  table.add({.what = "device to host", .value = limits.store, .unit = "GB/s"});
  table.add({.what = "both at once", .value = limits.both, .unit = "GB/s"});
  table.add({.what = "device to device, read and written", .value = measure_device_copy(), .unit = "GB/s"});
  table.print_new();
  return limits;
}

void run_swaps(Device& device, const LinkLimits& limits, const Settings& settings, Table& table) {
  run_case(
      device,
      {.shape = llama_shape(), .one_way = 0.95, .both_ways = 88, .has_busy_target = true, .has_alternatives = true},
      limits, settings, table);
  run_case(device,
           {.shape = {.name = "MLA of 61 layers, 18 KiB fragments",
                      .fragment_bytes = 18432,
                      .fragment_count = 61,
                      .layer_count = 61},
            .one_way = 0.95,
            .both_ways = 88,
            .has_busy_target = true,
            .has_alternatives = true},
           limits, settings, table);
  run_case(device,
           {.shape = {.name = "4 KiB fragments, 32 layers",
                      .fragment_bytes = 4096,
                      .fragment_count = 32,
                      .layer_count = 32,
                      .call_pages = 2048},
            .one_way = 0.92,
            .has_alternatives = true},
           limits, settings, table);
  SwapShape page_first = llama_shape();
  page_first.name = "Page-first on both sides, 2 MiB pages";
  page_first.is_page_first = true;
  run_case(device, {.shape = page_first, .one_way = 0.98, .has_busy_target = true, .has_checksum_target = false},
           limits, settings, table);
}

void run_latencies(Device& device, const Settings& settings, Table& table) {
  table.section("One call of Llama-3-8B pages, checksums");
  SwapShape shape = llama_shape();
  shape.call_pages = 64;
  SwapRig rig(device, shape, settings, true);
  const Pages pages = rig.pages(TransferKind::Load);
  cudaStream_t stream = rig.streams().of[0];
  // One page of 2 MiB, until the host knows that it is there.
  const Buffer target(shape.page_bytes());
  const double copy = median_seconds_of(101, [&] {
    check(cudaMemcpyAsync(target.data(), pages.records, shape.page_bytes(), cudaMemcpyDefault, stream), "copying");
    check(cudaStreamSynchronize(stream), "waiting");
  });
  const SwapOrder one{
      .kind = TransferKind::Load,
      .device_pages = pages.device_pages.first(1),
      .records = pages.record_ids.first(1),
      .streams = {
          .copies = {rig.streams().of[0]}, .kernels = {rig.streams().of[1]}, .more_kernels = {rig.streams().of[2]}}};
  for (const std::optional<SwapPath> path :
       {std::optional<SwapPath>(), std::optional(SwapPath::Direct), std::optional(SwapPath::Staged)}) {
    SwapOrder order = one;
    order.path = path;
    const double swap = median_seconds_of(101, [&] { (void)take(rig.engine().swap(order), "swapping"); });
    table.add({.what = std::string("one page, host to device, ") + (path ? std::string(to_string(*path)) : "as chosen"),
               .value = swap * 1e6,
               .unit = "us",
               .beside = "its memcpy " + text_of(copy * 1e6) + " us",
               .ratio = swap / copy,
               .target = path ? "" : "<= 1.3",
               .is_met = path ? std::nullopt : std::optional(swap <= 1.3 * copy)});
  }
  // What of that is on the thread that calls.
  SwapOrder direct = one;
  direct.path = SwapPath::Direct;
  std::vector<double> start_seconds;
  for (int i = 0; i < 51; ++i) {
    const double begin = now_seconds();
    const auto ticket = take(rig.engine().try_start(direct), "starting a swap");
    start_seconds.push_back(now_seconds() - begin);
    check(cudaStreamSynchronize(rig.streams().of[1]), "waiting");
    (void)take(rig.engine().finish(*ticket), "finishing a swap");
  }
  table.add({.what = "  of that on the calling thread, direct", .value = median(start_seconds) * 1e6, .unit = "us"});
  table.print_new();
}

// What a call of 64 pages costs the thread that makes it: with a mover, which has threads for the rest.
void run_call_overheads(Device& device, const Settings& settings, Table& table) {
  table.section("A call of 64 Llama-3-8B pages x 32 layers, checksums");
  SwapShape shape = llama_shape();
  shape.call_pages = 64;
  {
    const auto page = take(PageGeometry::create(take(preset("llama-3-8b"), "the preset").groups()[0], {}), "the page");
    const auto geometry =
        take(PoolGeometry::create(page, {.page_count = 512, .byte_layout = ByteLayout::LayerFirst}), "the pool");
    const Buffer pool(geometry.pool_bytes());
    const auto mover = take(Mover::open({.device_geometry = &geometry,
                                         .device_memory = pool.data(),
                                         .host_page_count = 512,
                                         .accelerator = &device}),
                            "opening a mover");
    std::vector<PageTransfer> pages;
    for (std::uint32_t i = 0; i < 64; ++i) {
      pages.push_back({.device_page = PageId{i * 7}, .host_page = PageId{500 - (i * 5)}, .host_generation = 1});
    }
    std::uint32_t index = 0;
    for (const TransferKind kind : {TransferKind::Store, TransferKind::Load}) {
      std::vector<double> seconds;
      for (int i = 0; i < 101; ++i) {
        const TransferId id{.index = index++, .generation = 1};
        const double begin = now_seconds();
        const bool is_taken = take(mover->try_submit({.id = id, .kind = kind, .pages = pages}), "submitting");
        seconds.push_back(now_seconds() - begin);
        check(is_taken ? cudaSuccess : cudaErrorUnknown, "submitting");
        if (take(mover->wait(id, 0, TimeNs{10'000'000'000}), "waiting") != TransferOutcome::Ok) {
          check(cudaErrorUnknown, "a transfer");
        }
        Completion completion;
        (void)mover->poll({&completion, 1});
      }
      const double call = median(seconds) * 1e6;
      table.add({.what = std::string("Mover::try_submit, ") + (kind == TransferKind::Load ? "load" : "store"),
                 .value = call,
                 .unit = "us",
                 .beside = "on the calling thread",
                 .ratio = std::nullopt,
                 .target = "<= 20 us",
                 .is_met = call <= 20});
    }
  }
  SwapRig rig(device, shape, settings, true);
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    std::vector<double> seconds;
    for (int i = 0; i < 101; ++i) {
      const double begin = now_seconds();
      rig.start(kind);
      seconds.push_back(now_seconds() - begin);
      rig.finish_all(kind);
    }
    table.add({.what = std::string("SwapEngine::try_start, ") + (kind == TransferKind::Load ? "load" : "store"),
               .value = median(seconds) * 1e6,
               .unit = "us",
               .beside = "on the mover's own thread"});
  }
  const Pages pages = rig.pages(TransferKind::Load);
  const std::vector<Fragment> one_fragment = {
      {.first = pages.fragments[0].first, .page_stride = shape.page_bytes(), .bytes = shape.page_bytes()}};
  Pages as_wholes = pages;
  as_wholes.fragments = one_fragment;
  const Batch batch(as_wholes);
  std::vector<double> batch_seconds;
  for (int i = 0; i < 51; ++i) {
    const double begin = now_seconds();
    batch.run(rig.streams().of[0]);
    batch_seconds.push_back(now_seconds() - begin);
    check(cudaStreamSynchronize(rig.streams().of[0]), "waiting");
  }
  table.add({.what = "cudaMemcpyBatchAsync of 64 pages alone", .value = median(batch_seconds) * 1e6, .unit = "us"});
  table.print_new();
}

void run_pinning(Device& device, Table& table) {
  constexpr std::size_t kBytes = std::size_t{8} << 30U;
  // The first time, a virtual machine may have to ask its host for the memory.
  std::vector<double> times;
  for (int i = 0; i < 4; ++i) {
    const HostMemory memory(device, kBytes, std::size_t{2} << 20U);
    times.push_back(memory.register_seconds() / (kBytes / 1e9));
  }
  const double seconds = median({times[1], times[2], times[3]});
  const double first_seconds = times[0];
  table.section("Host memory");
  table.add({.what = "registering 8 GiB, behind the first time",
             .value = seconds,
             .unit = "s/GB",
             .beside = "the first time " + text_of(first_seconds, 2) + " s/GB",
             .ratio = std::nullopt,
             .target = "<= 0.12",
             .is_met = seconds <= 0.12});
  table.print_new();
}

}  // namespace quire::bench
