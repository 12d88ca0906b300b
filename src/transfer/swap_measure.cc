// SPDX-License-Identifier: Apache-2.0
//
// Which way is the fastest depends on the link, the fragments and how many pages there are: it is tried out, in scratch
// memory with the same fragments.
#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "quire/swap.h"
#include "transfer/swap_lane.h"
#include "transfer/swap_layout.h"

namespace quire {
namespace {

constexpr std::uint64_t kScratchBytes = std::uint64_t{64} << 20U;
constexpr std::uint32_t kScratchPagesMax = 512;
constexpr int kTriesOfEach = 5;
// Copies of their own for fragments below this are no match for a kernel (half of the link at 32 KiB, 85 % at 128 KiB),
// and thousands of them take long to try.
constexpr std::uint64_t kWholeStretchBytesMin = std::uint64_t{256} << 10U;
// Whole wins when it is that near to the fastest.
constexpr double kNearlyAsFast = 1.05;

// Streams that end with the scope.
class Streams {
 public:
  explicit Streams(Device& device) : device_(device) {}
  ~Streams() {
    for (const DeviceStream stream : made_) device_.destroy_stream(stream);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  [[nodiscard]] Result<DeviceStream> add() {
    QUIRE_TRY_ASSIGN(const DeviceStream stream, device_.create_stream(StreamPriority::High));
    made_.push_back(stream);
    return stream;
  }

 private:
  Device& device_;
  std::vector<DeviceStream> made_;
};

// The same stretches, each with all its pages one behind the other, in `memory` of page_count records.
std::vector<std::vector<Fragment>> scratch_layers(const SwapLayout& layout, std::byte* memory,
                                                  std::uint32_t page_count) {
  SwapBand whole;
  layout.band(1, 0, whole);
  std::vector<Fragment> all;
  all.reserve(whole.stretches.size());
  for (const Fragment& stretch : whole.stretches) {
    all.push_back({.first = memory + (page_count * stretch.record_offset),
                   .page_stride = stretch.bytes,
                   .record_offset = stretch.record_offset,
                   .bytes = stretch.bytes});
  }
  return {all};
}

double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Trial {
  SwapEngine& engine;
  std::function<double()> seconds;
  SwapStreams streams;
  std::span<const PageId> device_pages;
  std::span<const RecordId> records;
};

// All of them, in an order that has nothing to do with where they lie: copies of neighbours would be joined.
template <typename Id>
std::vector<Id> scattered(std::uint32_t count, std::uint64_t seed) {
  std::vector<Id> ids;
  ids.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) ids.push_back(Id{i});
  std::ranges::sort(ids, {}, [&](Id id) { return mix64(seed + id.value); });
  return ids;
}

Result<double> best_of(const Trial& trial, TransferKind kind, SwapPath path, std::uint32_t page_count) {
  const SwapOrder order{.kind = kind,
                        .device_pages = trial.device_pages.first(page_count),
                        .records = trial.records.first(page_count),
                        .streams = trial.streams,
                        .path = path};
  QUIRE_TRY(trial.engine.swap(order));  // so that nothing is done for the first time
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTriesOfEach; ++i) {
    const double begin = trial.seconds();
    QUIRE_TRY(trial.engine.swap(order));
    best = std::min(best, trial.seconds() - begin);
  }
  return best;
}

const SwapTiming* find_timing(std::span<const SwapTiming> timings, TransferKind kind, SwapPath path,
                              std::uint32_t page_count) {
  const auto found = std::ranges::find_if(timings, [&](const SwapTiming& timing) {
    return timing.kind == kind && timing.path == path && timing.page_count == page_count;
  });
  return found == timings.end() ? nullptr : &*found;
}

// What decides between ways: Whole may take a little longer.
double cost_of(SwapPath path, double seconds) {
  return path == SwapPath::Whole ? seconds / kNearlyAsFast : seconds;
}

// The way that takes the least of what `seconds` counts.
template <typename Seconds>
SwapPath cheapest(std::span<const SwapTiming> timings, TransferKind kind, std::uint32_t page_count, Seconds seconds) {
  std::optional<SwapPath> best;
  double best_cost = 0;
  for (const SwapTiming& timing : timings) {
    if (timing.kind != kind || timing.page_count != page_count) continue;
    const double cost = cost_of(timing.path, seconds(timing));
    if (best && cost >= best_cost) continue;
    best = timing.path;
    best_cost = cost;
  }
  QUIRE_CHECK(best.has_value(), "nothing was measured for so many pages");
  return *best;
}

}  // namespace

Result<std::vector<SwapTiming>> measure_swaps(const SwapConfig& config) {
  QUIRE_TRY(config.validate());
  QUIRE_TRY_ASSIGN(const SwapLayout layout, SwapLayout::create(config));
  Device& device = *config.device;
  const std::uint64_t record_room = round_up(layout.record_bytes(), 64);
  const auto page_count = static_cast<std::uint32_t>(
      std::clamp<std::uint64_t>(kScratchBytes / record_room, 1, std::min(config.call_pages_max, kScratchPagesMax)));
  QUIRE_TRY_ASSIGN(const DeviceMemoryBlock memory, DeviceMemoryBlock::allocate(device, page_count * record_room));
  const std::uint64_t unit = std::lcm(record_room, std::uint64_t{4096});
  QUIRE_TRY_ASSIGN(const RegisteredMemory records, RegisteredMemory::allocate(device, page_count * record_room, unit));

  SwapConfig scratch = config;
  scratch.layers = scratch_layers(layout, memory.data(), page_count);
  scratch.device_page_count = page_count;
  scratch.records = records.data();
  scratch.record_stride = record_room;
  scratch.record_count = page_count;
  scratch.load_paths = SwapPaths{};
  scratch.store_paths = SwapPaths{};
  Streams streams(device);  // before the engine, which may wait for them at its end
  QUIRE_TRY_ASSIGN(const std::unique_ptr<SwapEngine> engine, SwapEngine::open(scratch));
  Trial trial{.engine = *engine,
              .seconds = config.seconds ? config.seconds : steady_seconds,
              .streams = {},
              .device_pages = {},
              .records = {}};
  QUIRE_TRY_ASSIGN(trial.streams.copies, streams.add());
  QUIRE_TRY_ASSIGN(trial.streams.kernels, streams.add());
  QUIRE_TRY_ASSIGN(trial.streams.more_kernels, streams.add());
  const std::vector<PageId> device_pages = scattered<PageId>(page_count, 1);
  const std::vector<RecordId> record_ids = scattered<RecordId>(page_count, std::uint64_t{1} << 32U);
  trial.device_pages = device_pages;
  trial.records = record_ids;

  std::vector<SwapTiming> timings;
  const bool tries_whole = layout.record_bytes() / layout.stretch_count() >= kWholeStretchBytesMin;
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    for (std::uint32_t count = 1;; count = std::min(page_count, count * 2)) {
      for (const SwapPath path : {SwapPath::Whole, SwapPath::Staged, SwapPath::Direct}) {
        if (path == SwapPath::Whole && !tries_whole) continue;
        QUIRE_TRY_ASSIGN(const double seconds, best_of(trial, kind, path, count));
        timings.push_back({.kind = kind, .path = path, .page_count = count, .seconds = seconds});
      }
      if (count == page_count) break;
    }
  }
  return timings;
}

SwapPaths choose_paths(std::span<const SwapTiming> timings, TransferKind kind) {
  std::vector<std::uint32_t> counts;
  for (const SwapTiming& timing : timings) {
    if (timing.kind == kind) counts.push_back(timing.page_count);
  }
  QUIRE_CHECK(!counts.empty(), "nothing was measured");
  std::ranges::sort(counts);
  counts.erase(std::ranges::unique(counts).begin(), counts.end());
  const std::uint32_t most = counts.back();
  const std::uint32_t half = counts.size() == 1 ? 0 : counts[counts.size() - 2];
  // Of many pages: what four times as many would take if it went on like this. What the first of them takes is for the
  // few to consider.
  const auto seconds_of_many = [&](const SwapTiming& timing) {
    const SwapTiming* const of_half = find_timing(timings, kind, timing.path, half);
    const double grows_by = timing.seconds - (of_half == nullptr ? 0 : of_half->seconds);
    return timing.seconds + (grows_by * 3 * most / (most - half));
  };
  SwapPaths paths{
      .few = cheapest(timings, kind, counts.front(), [](const SwapTiming& timing) { return timing.seconds; }),
      .few_pages_max = 0,
      .many = cheapest(timings, kind, most, seconds_of_many)};
  for (const std::uint32_t count : counts) {
    if (paths.few == paths.many) break;
    const SwapTiming* const few = find_timing(timings, kind, paths.few, count);
    const SwapTiming* const many = find_timing(timings, kind, paths.many, count);
    if (few == nullptr || (many != nullptr && cost_of(few->path, few->seconds) > cost_of(many->path, many->seconds)))
      break;
    paths.few_pages_max = count;
  }
  return paths;
}

}  // namespace quire
