// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a step on large inputs: bytes that must be read and written, over the time, beside a device copy.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "benchmarks.h"
#include "cuda_rig.cuh"
#include "quire/device_kernels.h"
#include "quire/entry_formats.h"
#include "quire/layout.h"

namespace quire::bench {
namespace {

constexpr int kRuns = 21;

template <typename T>
class DeviceList {
 public:
  explicit DeviceList(const std::vector<T>& content) : memory_(content.size() * sizeof(T)), count_(content.size()) {
    check(cudaMemcpy(memory_.data(), content.data(), content.size() * sizeof(T), cudaMemcpyHostToDevice), "copying");
    // From memory that is not registered it returns before the bytes are there, and other streams do not wait for them.
    check(cudaDeviceSynchronize(), "copying");
  }
  [[nodiscard]] std::span<const T> span() const { return {reinterpret_cast<const T*>(memory_.data()), count_}; }

 private:
  Buffer memory_;
  std::size_t count_;
};

struct Measured {
  Table& table;
  double device_copy;
  cudaStream_t stream;
};

void add_row(const Measured& with, const std::string& what, double bytes,
             const std::function<Status(DeviceStream)>& run) {
  const double seconds =
      median_device_seconds(kRuns, with.stream, [&] { check(run(DeviceStream{with.stream}), what.c_str()); });
  const double rate = bytes / seconds / 1e9;
  with.table.add({.what = what,
                  .value = rate,
                  .unit = "GB/s",
                  .beside = "device copy " + text_of(with.device_copy, 0),
                  .ratio = rate / with.device_copy,
                  .target = ">= 0.85",
                  .is_met = rate >= 0.85 * with.device_copy});
}

std::vector<std::int64_t> scattered_slots(std::uint32_t page_tokens, std::uint32_t page_count, std::uint32_t tokens) {
  std::vector<std::int64_t> slots;
  for (const PageId page : scattered_pages(tokens / page_tokens, page_count, 5)) {
    for (std::uint32_t t = 0; t < page_tokens; ++t) slots.push_back((std::int64_t{page.value} * page_tokens) + t);
  }
  return slots;
}

// K of one layer for a very long prompt: one launch, far larger than the caches.
void run_append(const Measured& with, ByteLayout byte_layout, const std::string& suffix) {
  constexpr std::uint32_t kPages = 48'000;
  constexpr std::uint32_t kTokens = 16 * 46'000;
  const auto layout = take(ModelLayout::simple({.layers = 2, .kv_heads = 8, .head_dim = 128}), "the layout");
  const auto page = take(PageGeometry::create(layout.groups()[0], {}), "the page");
  const auto geometry =
      take(PoolGeometry::create(page, {.page_count = kPages, .byte_layout = byte_layout}), "the pool");
  const Buffer pool(geometry.pool_bytes());
  const Buffer source(std::size_t{kTokens} * 2048);
  const DeviceList<std::int64_t> slots(scattered_slots(16, kPages, kTokens));
  add_row(with, "append K, 736,000 tokens of 2 KiB" + suffix, 2.0 * kTokens * 2048, [&](DeviceStream stream) {
    return launch_append({.geometry = &geometry, .pool = pool.data(), .source = source.data(), .slots = slots.span()},
                         stream);
  });
}

void run_copies(const Measured& with, ByteLayout byte_layout, const std::string& suffix) {
  constexpr std::uint32_t kPages = 3'000;
  const auto layout = take(preset("llama-3-8b"), "the preset");
  const auto page = take(PageGeometry::create(layout.groups()[0], {}), "the page");
  const auto geometry =
      take(PoolGeometry::create(page, {.page_count = kPages, .byte_layout = byte_layout}), "the pool");
  const Buffer pool(geometry.pool_bytes());
  std::vector<PageCopy> copies;
  const std::vector<PageId> ids = scattered_pages(1024, kPages, 6);
  for (std::uint32_t i = 0; i < 512; ++i) {
    copies.push_back({.source = ids[i], .target = ids[512 + i], .token_count = 16});
  }
  const DeviceList<PageCopy> list(copies);
  add_row(with, "copy 512 pages of 2 MiB" + suffix, 2.0 * 512 * static_cast<double>(page.page_bytes()),
          [&](DeviceStream stream) {
            return launch_copy_pages({.geometry = &geometry, .pool = pool.data(), .copies = list.span()}, stream);
          });
}

void run_quantised(const Measured& with, const EntryFormat& format, const std::string& name) {
  CacheGroup group{.name = "entries", .layers = {0}};
  use_format(group, format);
  const auto page = take(PageGeometry::create(group, {.page_tokens = 64}), "the page");
  constexpr std::uint32_t kPages = 65536;  // four million entries
  const auto geometry = take(PoolGeometry::create(page, {.page_count = kPages}), "the pool");
  const auto entries = take(QuantisedEntries::create(geometry, format), "the entries");
  const Buffer pool(geometry.pool_bytes());
  const std::uint32_t rows = 2048 * 1024;
  const Buffer dense(rows * entries.row_bytes());
  const double entry_bytes = static_cast<double>(page.layer_bytes()) / 64;
  const DeviceList<std::int64_t> slots(scattered_slots(64, kPages, rows));
  const double bytes = rows * (static_cast<double>(entries.row_bytes()) + entry_bytes);
  std::vector<std::int32_t> positions;
  if (entries.components().positions != kNoComponent) positions.assign(rows, 1);
  const DeviceList<std::int32_t> device_positions(positions.empty() ? std::vector<std::int32_t>(1) : positions);
  add_row(with, "append " + name + ", 2,097,152 rows", bytes, [&](DeviceStream stream) {
    return launch_append_quantised(
        {.entries = &entries,
         .pool = pool.data(),
         .source = dense.data(),
         .slots = slots.span(),
         .positions = positions.empty() ? std::span<const std::int32_t>() : device_positions.span()},
        stream);
  });
  // 1,024 queries, each with 2,048 entries of a sequence of its own.
  constexpr std::uint32_t kQueries = 1024;
  constexpr std::uint32_t kEach = 2048;
  std::vector<std::int32_t> table;
  for (std::uint32_t i = 0; i < kPages; ++i) table.push_back(static_cast<std::int32_t>(i));
  std::vector<std::int32_t> ids;
  std::mt19937 draws(3);
  std::vector<std::int32_t> of_sequence(4096);
  std::iota(of_sequence.begin(), of_sequence.end(), 0);
  for (std::uint32_t i = 0; i < kQueries; ++i) {
    std::shuffle(of_sequence.begin(), of_sequence.end(), draws);
    ids.insert(ids.end(), of_sequence.begin(), of_sequence.begin() + kEach);
  }
  std::vector<std::int32_t> queries;
  for (std::uint32_t i = 0; i < kQueries; ++i) queries.push_back(static_cast<std::int32_t>(i));
  const DeviceList<std::int32_t> device_table(table);
  const DeviceList<std::int32_t> device_ids(ids);
  const DeviceList<std::int32_t> device_queries(queries);
  const DeviceList<std::int32_t> counts(std::vector<std::int32_t>(kQueries, 4096));
  const EntryTable entry_table{.pages = device_table.span().data(),
                               .rows = kQueries,
                               .row_columns = kPages / kQueries,
                               .entry_counts = counts.span()};
  const GatherTarget target{.data = dense.data(), .row_entries = kEach};
  add_row(with, "gather selected " + name + ", 1,024 x 2,048", bytes, [&](DeviceStream stream) {
    return launch_gather_selected({.entries = &entries,
                                   .pool = pool.data(),
                                   .table = entry_table,
                                   .table_rows = device_queries.span(),
                                   .ids = device_ids.span(),
                                   .ids_per_row = kEach,
                                   .target = target},
                                  stream);
  });
  add_row(with, "gather last " + name + ", 1,024 x 2,048", bytes, [&](DeviceStream stream) {
    return launch_gather_last({.entries = &entries,
                               .pool = pool.data(),
                               .table = entry_table,
                               .table_rows = device_queries.span(),
                               .entries_max = kEach,
                               .target = target},
                              stream);
  });
}

}  // namespace

void run_kernels(Table& table) {
  table.section("Kernels of a step: bytes read and written");
  Streams streams;
  const Measured with{.table = table, .device_copy = measure_device_copy(), .stream = streams.of[0]};
  const auto of_both_layouts = [&](auto run) {
    run(with, ByteLayout::PageFirst, ", page-first");
    run(with, ByteLayout::LayerFirst, ", layer-first");
  };
  of_both_layouts(run_copies);
  of_both_layouts(run_append);
  table.print_new();
  run_quantised(with, fp8_rows_then_scales(), "E4M3 rows of 584 bytes");
  run_quantised(with, fp8_records(), "E4M3 records of 656 bytes");
  table.print_new();
}

}  // namespace quire::bench
