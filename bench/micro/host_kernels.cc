// SPDX-License-Identifier: Apache-2.0
//
// The host kernels on a pool like that of an 8B model (32 layers, 8 KV heads of 128 bf16 elements, pages of 16 tokens),
// beside one memcpy of as many bytes from one piece of memory to another, and beside a memcpy of each row to its place.
// Rows and pages lie scattered over the pool; with whole pages, a page's tokens follow each other, as in a prefill.
//
// memory: every call goes on to other tokens and pages, so that source and target come from a quarter GB each, far more
// than the caches hold; memcpy goes through as much. few: the same with 16 tokens in a call.
// l2: one layer, and everything is in the second-level cache.
//
// append_then_read: in each layer K is appended and then the K of the same pages is read, as attention would. Stores
// around the caches beside ordinary ones: what append saves by them, the reader pays.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/lazy_array.h"
#include "benchmarks.h"
#include "kernel_memory.h"
#include "kernels/copy_rows.h"
#include "kernels/host_kernels_with.h"
#include "quire/host_kernels.h"
#include "quire/layout.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::uint32_t kPageTokens = 16;
constexpr std::size_t kCallsPerTurn = 20;

struct Setting {
  std::uint32_t layers = 0;
  std::uint32_t pages = 0;
  std::uint32_t append_tokens = 0;  // of one call
  std::uint32_t copied_pages = 0;   // by one call
  HeadOrder head_order = HeadOrder::Nhd;
  ByteLayout byte_layout = ByteLayout::PageFirst;
  bool has_whole_pages = false;  // appends all tokens of a page, one after the other
};

constexpr Setting kMemory{.layers = 32, .pages = 256, .append_tokens = 256, .copied_pages = 8};
constexpr Setting kFew{.layers = 32, .pages = 256, .append_tokens = 16, .copied_pages = 8};
constexpr Setting kL2{.layers = 1, .pages = 8, .append_tokens = 64, .copied_pages = 2};

PoolGeometry make_geometry(const Setting& setting) {
  const ModelLayout model = ModelLayout::simple({.layers = setting.layers, .kv_heads = 8, .head_dim = 128}).value();
  PageGeometry page =
      PageGeometry::create(model.groups()[0], {.page_tokens = kPageTokens, .head_order = setting.head_order}).value();
  return PoolGeometry::create(std::move(page), {.page_count = setting.pages, .byte_layout = setting.byte_layout})
      .value();
}

// K of some tokens in all layers, at slots or whole pages in random order.
class Append {
 public:
  explicit Append(const Setting& setting)
      : geometry_(make_geometry(setting)),
        pool_(make_memory(geometry_.pool_bytes())),
        source_(make_memory(geometry_.pool_bytes() / 2)),
        token_count_(setting.append_tokens) {
    const std::uint32_t run_tokens = setting.has_whole_pages ? kPageTokens : 1;
    for (const std::uint32_t run : shuffled(setting.pages * kPageTokens / run_tokens)) {
      for (std::uint32_t i = 0; i < run_tokens; ++i) slots_.push_back((std::int64_t{run} * run_tokens) + i);
    }
  }
  [[nodiscard]] std::uint64_t bytes() const { return layer_bytes() * geometry_.page().layer_count(); }
  // K is half of the pool.
  [[nodiscard]] std::uint64_t bytes_of_all_turns() const { return geometry_.pool_bytes() / 2; }

  void run() {
    run_with([](const AppendParams& layer) { append_on_host(layer); });
  }
  void run_row_by_row() {
    run_with([](const AppendParams& layer) {
      append_with(pick_copy_rows(InstructionSet::Portable, Stores::Cached), layer);
    });
  }
  // append(AppendParams) for each layer of the next tokens.
  template <typename AppendLayer>
  void run_with(AppendLayer&& append) {
    const std::uint64_t turn = turn_++ % (slots_.size() / token_count_);
    for (std::uint32_t layer = 0; layer < geometry_.page().layer_count(); ++layer) {
      append(AppendParams{.geometry = &geometry_,
                          .pool = pool_.data(),
                          .layer_index = layer,
                          .source = source_.data() + (turn * bytes()) + (layer * layer_bytes()),
                          .slots = std::span(slots_).subspan(turn * token_count_, token_count_)});
    }
    keep(pool_);
  }

 private:
  [[nodiscard]] std::uint64_t layer_bytes() const {
    return geometry_.page().layer_bytes() / 2 / kPageTokens * token_count_;
  }

  PoolGeometry geometry_;
  LazyMemory pool_;
  LazyMemory source_;
  std::uint32_t token_count_;
  std::vector<std::int64_t> slots_;
  std::uint64_t turn_ = 0;
};

// Pages in random order: one half of the pool's to the other half.
class CopyPages {
 public:
  CopyPages(const Setting& setting, std::uint32_t token_count)
      : geometry_(make_geometry(setting)),
        pool_(make_memory(geometry_.pool_bytes())),
        token_count_(token_count),
        pages_per_turn_(setting.copied_pages) {
    const std::vector<std::uint32_t> pages = shuffled(setting.pages);
    for (std::size_t i = 0; i < pages.size(); i += 2) {
      copies_.push_back({.source = PageId{pages[i]}, .target = PageId{pages[i + 1]}, .token_count = token_count});
    }
  }
  [[nodiscard]] std::uint64_t bytes() const { return geometry_.page().token_bytes() * token_count_ * pages_per_turn_; }
  [[nodiscard]] std::uint64_t bytes_of_all_turns() const { return bytes() * (copies_.size() / pages_per_turn_); }

  void run() {
    copy_pages_on_host(next_turn());
    keep(pool_);
  }
  void run_row_by_row() {
    copy_pages_with(pick_copy_rows(InstructionSet::Portable, Stores::Cached), next_turn());
    keep(pool_);
  }

 private:
  CopyPagesParams next_turn() {
    const std::uint64_t turn = turn_++ % (copies_.size() / pages_per_turn_);
    return {.geometry = &geometry_,
            .pool = pool_.data(),
            .copies = std::span(copies_).subspan(turn * pages_per_turn_, pages_per_turn_)};
  }

  PoolGeometry geometry_;
  LazyMemory pool_;
  std::uint32_t token_count_;
  std::uint32_t pages_per_turn_;
  std::vector<PageCopy> copies_;
  std::uint64_t turn_ = 0;
};

// All turns of one contender, then all of the next: none finds what another has left in the caches.
template <typename Kernel>
void contest(benchmark::State& state, Kernel kernel, std::uint64_t working_set_bytes) {
  Memcpy limit(kernel.bytes(), working_set_bytes);
  Samples quire_us;
  Samples memcpy_us;
  Samples rows_us;
  for (auto _ : state) {
    quire_us.time_warm(kCallsPerTurn, [&] { kernel.run(); });
    memcpy_us.time_warm(kCallsPerTurn, [&] { limit.run(); });
    state.SetIterationTime(quire_us.median() * 1e-6);
  }
  while (rows_us.count() < quire_us.count()) rows_us.time_warm(kCallsPerTurn, [&] { kernel.run_row_by_row(); });
  const auto gb_per_s = [&](const Samples& samples) {
    return static_cast<double>(kernel.bytes()) / samples.median() * 1e-3;
  };
  state.counters["quire_gb_per_s"] = gb_per_s(quire_us);
  state.counters["memcpy_gb_per_s"] = gb_per_s(memcpy_us);
  state.counters["rows_gb_per_s"] = gb_per_s(rows_us);
  state.counters["to_memcpy"] = gb_per_s(quire_us) / gb_per_s(memcpy_us);
}

void append(benchmark::State& state, Setting setting, HeadOrder head_order, ByteLayout byte_layout) {
  setting.head_order = head_order;
  setting.byte_layout = byte_layout;
  Append kernel(setting);
  const std::uint64_t working_set_bytes = kernel.bytes_of_all_turns();
  contest(state, std::move(kernel), working_set_bytes);
}

// A word of every line of K in the pages of the appended tokens.
std::uint64_t read_pages_of(const AppendParams& params) {
  constexpr std::uint64_t kLineBytes = 64;
  const PageGeometry& page = params.geometry->page();
  const std::uint64_t k_bytes = page.layer_bytes() / 2;
  std::uint64_t sum = 0;
  for (const std::int64_t slot : params.slots) {
    const PageId page_id{static_cast<std::uint32_t>(slot / kPageTokens)};
    const std::byte* const k =
        params.pool + params.geometry->offset_of({.page = page_id, .layer_index = params.layer_index});
    for (std::uint64_t at = 0; at < k_bytes; at += kLineBytes) {
      std::uint64_t word = 0;
      std::memcpy(&word, k + at, sizeof(word));
      sum += word;
    }
  }
  return sum;
}

void append_then_read(benchmark::State& state, Setting setting, HeadOrder head_order) {
  setting.head_order = head_order;
  Append kernel(setting);
  std::uint64_t sum = 0;
  const auto run = [&](Samples& us, Stores stores) {
    us.time_warm(kCallsPerTurn, [&] {
      kernel.run_with([&](const AppendParams& layer) {
        append_with(best_copy_rows(stores), layer);
        sum += read_pages_of(layer);
      });
    });
  };
  Samples streaming_us;
  Samples cached_us;
  for (auto _ : state) {
    run(streaming_us, Stores::Streaming);
    run(cached_us, Stores::Cached);
    state.SetIterationTime(streaming_us.median() * 1e-6);
  }
  keep(sum);
  state.counters["streaming_us"] = streaming_us.median();
  state.counters["cached_us"] = cached_us.median();
}

void copy_pages(benchmark::State& state, Setting setting, std::uint32_t token_count, ByteLayout byte_layout) {
  setting.byte_layout = byte_layout;
  CopyPages kernel(setting, token_count);
  const std::uint64_t working_set_bytes = kernel.bytes_of_all_turns();
  contest(state, std::move(kernel), working_set_bytes);
}

}  // namespace

void register_host_kernel_benchmarks(const Effort& effort) {
  const auto add = [&](const std::string& name, std::size_t iterations, auto... arguments) {
    benchmark::RegisterBenchmark(name.c_str(), arguments...)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(static_cast<benchmark::IterationCount>(effort.samples(iterations)));
  };
  add("append/few/nhd/page_first", 20, append, kFew, HeadOrder::Nhd, ByteLayout::PageFirst);
  add("append/few/hnd/page_first", 20, append, kFew, HeadOrder::Hnd, ByteLayout::PageFirst);
  add("append_then_read/nhd", 4, append_then_read, kMemory, HeadOrder::Nhd);
  add("append_then_read/hnd", 4, append_then_read, kMemory, HeadOrder::Hnd);
  for (const bool is_in_l2 : {false, true}) {
    const Setting& setting = is_in_l2 ? kL2 : kMemory;
    const std::string suffix = is_in_l2 ? "/l2" : "/memory";
    const std::size_t iterations = is_in_l2 ? 500 : 10;
    add("append" + suffix + "/nhd/page_first", iterations, append, setting, HeadOrder::Nhd, ByteLayout::PageFirst);
    add("append" + suffix + "/nhd/layer_first", iterations, append, setting, HeadOrder::Nhd, ByteLayout::LayerFirst);
    add("append" + suffix + "/hnd/page_first", iterations, append, setting, HeadOrder::Hnd, ByteLayout::PageFirst);
    Setting prefill = setting;
    prefill.has_whole_pages = true;
    add("append" + suffix + "/hnd/whole_pages", iterations, append, prefill, HeadOrder::Hnd, ByteLayout::PageFirst);
    add("copy_pages" + suffix + "/page_first/tokens:16", iterations, copy_pages, setting, 16U, ByteLayout::PageFirst);
    add("copy_pages" + suffix + "/page_first/tokens:7", iterations, copy_pages, setting, 7U, ByteLayout::PageFirst);
    add("copy_pages" + suffix + "/layer_first/tokens:16", iterations, copy_pages, setting, 16U, ByteLayout::LayerFirst);
  }
}

}  // namespace quire::bench
