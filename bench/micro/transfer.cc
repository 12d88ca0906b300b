// SPDX-License-Identifier: Apache-2.0
//
// Pages between a device that is plain memory and the host tier, beside memcpy of the same pages between the same
// places. Pages lie scattered over a quarter GB on each side, and every call goes on to another one, so neither source
// nor target is in a cache.
//
// transfer: what the mover adds to the copies: one plan after the other, and many that are queued.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/lazy_array.h"
#include "benchmarks.h"
#include "quire/layout.h"
#include "quire/mover.h"
#include "store/host_store.h"
#include "store/host_store_peer.h"
#include "testing/seeded_run.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::uint64_t kFootprintBytes = std::uint64_t{256} << 20U;
constexpr std::uint32_t kLayers = 32;

PoolGeometry make_geometry(std::uint64_t page_bytes, std::uint64_t page_count, ByteLayout byte_layout) {
  CacheGroup group{
      .name = "pages",
      .layers = layer_range(0, kLayers),
      .components = {
          {.name = "bytes", .element = ElementType::Bytes, .dim = static_cast<std::uint32_t>(page_bytes / kLayers)}}};
  return PoolGeometry::create(PageGeometry::create(std::move(group), {.page_tokens = 1}).value(),
                              {.page_count = page_count, .byte_layout = byte_layout})
      .value();
}

std::vector<std::uint32_t> shuffled(std::uint32_t count, std::uint64_t seed) {
  std::vector<std::uint32_t> numbers(count);
  for (std::uint32_t i = 0; i < count; ++i) numbers[i] = i;
  testing::Random random(seed);
  for (std::uint32_t i = count; i > 1; --i) std::swap(numbers[i - 1], numbers[random.below(i)]);
  return numbers;
}

struct CopyCase {
  TransferKind kind = TransferKind::Store;
  bool checksums = true;
  std::uint64_t page_bytes = 0;
  ByteLayout byte_layout = ByteLayout::PageFirst;
};

// Device pages, each with a host page somewhere else. Everything has been written once.
class Pages {
 public:
  explicit Pages(const CopyCase& copy)
      : geometry_(make_geometry(copy.page_bytes, kFootprintBytes / copy.page_bytes, copy.byte_layout)),
        // Apart by more than the footprint, for the reason that host_kernels.cc gives.
        device_(LazyMemory::reserve(kFootprintBytes + (std::uint64_t{5} << 20U)).value()) {
    device_.prefer_huge_pages();
    std::memset(device_.data(), 1, device_.bytes());
    store_ = HostStore::open({.parts = {{.layer_bytes = geometry_.page().layer_bytes(), .layer_count = kLayers}},
                              .page_count = geometry_.page_count(),
                              .checksums = copy.checksums})
                 .value();
    const std::vector<std::uint32_t> from = shuffled(geometry_.page_count(), 7);
    const std::vector<std::uint32_t> to = shuffled(geometry_.page_count(), 8);
    for (std::uint32_t i = 0; i < geometry_.page_count(); ++i) {
      pages_.push_back({.device_page = PageId{from[i]}, .host_page = PageId{to[i] + 1}});
      QUIRE_CHECK(store_->write_page(device(), pages_.back()) == TransferFault::None, "a store failed");
    }
  }

  void move(TransferKind kind, const PageTransfer& page) {
    const TransferFault fault =
        kind == TransferKind::Load ? store_->read_page(device(), page) : store_->write_page(device(), page);
    QUIRE_CHECK(fault == TransferFault::None, "a page did not move");
  }
  // Layer by layer where the device's are apart.
  void move_by_memcpy(TransferKind kind, const PageTransfer& page) {
    std::byte* const on_host = HostStorePeer::record(*store_, page.host_page).data();
    std::byte* const on_device = device_.data() + (page.device_page.value * geometry_.strides().page);
    const bool is_one_piece = geometry_.byte_layout() == ByteLayout::PageFirst;
    const std::uint64_t piece_count = is_one_piece ? 1 : kLayers;
    const std::uint64_t piece_bytes = geometry_.page().page_bytes() / piece_count;
    for (std::uint64_t i = 0; i < piece_count; ++i) {
      std::byte* const host_piece = on_host + (i * piece_bytes);
      std::byte* const device_piece = on_device + (i * geometry_.strides().layer);
      if (kind == TransferKind::Load) {
        std::memcpy(device_piece, host_piece, piece_bytes);
      } else {
        std::memcpy(host_piece, device_piece, piece_bytes);
      }
    }
    keep(*on_host);
    keep(*on_device);
  }
  [[nodiscard]] const PageTransfer& next() { return pages_[turn_++ % pages_.size()]; }

 private:
  [[nodiscard]] std::array<DevicePages, 1> device() {
    return {DevicePages{.geometry = &geometry_, .memory = device_.data()}};
  }

  PoolGeometry geometry_;
  LazyMemory device_;
  std::unique_ptr<HostStore> store_;
  std::vector<PageTransfer> pages_;
  std::size_t turn_ = 0;
};

void copy_pages_between_tiers(benchmark::State& state, CopyCase copy) {
  Pages pages(copy);
  const std::size_t calls_per_turn = std::max<std::size_t>(4, (std::size_t{8} << 20U) / copy.page_bytes);
  Samples quire_us;
  Samples memcpy_us;
  for (auto _ : state) {
    quire_us.time_warm(calls_per_turn, [&] { pages.move(copy.kind, pages.next()); });
    memcpy_us.time_warm(calls_per_turn, [&] { pages.move_by_memcpy(copy.kind, pages.next()); });
    state.SetIterationTime(quire_us.median() * 1e-6);
  }
  const auto gb_per_s = [&](const Samples& samples) {
    return static_cast<double>(copy.page_bytes) / samples.median() * 1e-3;
  };
  state.counters["quire_gb_per_s"] = gb_per_s(quire_us);
  state.counters["memcpy_gb_per_s"] = gb_per_s(memcpy_us);
  state.counters["to_memcpy"] = gb_per_s(quire_us) / gb_per_s(memcpy_us);
}

// Loads of one page of 4 KiB, which copies in no time.
void mover_overhead(benchmark::State& state) {
  constexpr std::uint32_t kBatch = 256;
  const PoolGeometry geometry = make_geometry(4096, 64, ByteLayout::PageFirst);
  std::vector<std::byte> memory(geometry.pool_bytes());
  const std::unique_ptr<Mover> mover =
      Mover::open({.device_geometry = &geometry, .device_memory = memory.data(), .host_page_count = 64}).value();
  constexpr TimeNs kLongNs = TimeNs{60} * 1'000'000'000;
  std::uint32_t index = 0;
  std::array<Completion, kBatch> completions;
  const auto submit = [&](TransferKind kind, std::uint32_t page) {
    const std::array<PageTransfer, 1> pages{{{.device_page = PageId{page}, .host_page = PageId{page + 1}}}};
    QUIRE_CHECK(mover->try_submit({.id = {.index = ++index}, .kind = kind, .pages = pages}).value(), "no room");
  };
  const auto wait_for_last = [&] {
    QUIRE_CHECK(mover->wait({.index = index}, 0, kLongNs).value() == TransferOutcome::Ok, "a transfer failed");
  };
  for (std::uint32_t page = 0; page < 64; ++page) submit(TransferKind::Store, page);
  wait_for_last();
  keep(mover->poll(completions));

  Samples round_trip_us;
  Samples batch_us;
  Samples submit_us;
  for (auto _ : state) {
    round_trip_us.time_warm(20, [&] {
      submit(TransferKind::Load, index % 64);
      wait_for_last();
      keep(mover->poll(completions));
    });
    batch_us.time([&] {
      for (std::uint32_t i = 0; i < kBatch; ++i) submit(TransferKind::Load, i % 64);
      wait_for_last();
      keep(mover->poll(completions));
    });
    mover->pause();
    submit_us.time([&] {
      for (std::uint32_t i = 0; i < kBatch; ++i) submit(TransferKind::Load, i % 64);
    });
    mover->resume();
    wait_for_last();
    keep(mover->poll(completions));
    state.SetIterationTime(batch_us.median() * 1e-6);
  }
  state.counters["round_trip_us"] = round_trip_us.median();
  state.counters["queued_us"] = batch_us.median() / kBatch;
  state.counters["submit_us"] = submit_us.median() / kBatch;
}

}  // namespace

void register_transfer_benchmarks(const Effort& effort) {
  const auto add = [&](const std::string& name, std::size_t iterations, auto... arguments) {
    benchmark::RegisterBenchmark(name.c_str(), arguments...)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(static_cast<benchmark::IterationCount>(effort.samples(iterations)));
  };
  for (const std::uint64_t kib : {64U, 256U, 1024U, 4096U}) {
    for (const bool checksums : {false, true}) {
      for (const TransferKind kind : {TransferKind::Store, TransferKind::Load}) {
        for (const ByteLayout layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
          const std::string name = std::string("tier_copy/") + (kind == TransferKind::Store ? "store" : "load") +
                                   (layout == ByteLayout::PageFirst ? "/page_first" : "/layer_first") +
                                   (checksums ? "/checked" : "/plain") + "/KiB:" + std::to_string(kib);
          add(name, 20, copy_pages_between_tiers,
              CopyCase{.kind = kind, .checksums = checksums, .page_bytes = kib << 10U, .byte_layout = layout});
        }
      }
    }
  }
  add("mover/overhead", 200, mover_overhead);
}

}  // namespace quire::bench
