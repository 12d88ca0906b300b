// SPDX-License-Identifier: Apache-2.0
//
// Swaps on a GPU beside plain copies on the host: every way, odd fragments, bands, both directions at once. Pools and
// records start as random bytes and are compared whole; checksums are the host's own.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/copy_checked.h"
#include "quire/device.h"
#include "quire/mover.h"
#include "quire/swap.h"
#include "store/device_memory.h"
#include "testing/seeded_run.h"
#include "tests/gpu/device_buffer.h"

namespace quire {
namespace {

using testing::DeviceBytes;
using testing::Random;

constexpr std::uint32_t kPages = 25;  // more than travel with a launch
constexpr std::uint32_t kRecords = 29;

std::vector<std::byte> random_bytes(Random& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t at = 0; at < count; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), count - at));
  }
  return bytes;
}

// Fragments of drawn sizes, one behind the other in a pool; what is not theirs lies between pages.
struct DrawnPages {
  std::vector<std::vector<Fragment>> layers;  // `first` counts from the pool's beginning
  std::uint64_t record_bytes = 0;
  std::uint64_t pool_bytes = 0;
};

DrawnPages draw_pages(Random& random) {
  static constexpr std::uint64_t kOddSizes[] = {1, 3, 7, 50, 1023, 4095, 4097, 9001};
  static constexpr std::uint64_t kEvenSizes[] = {4, 12, 100, 4100, 8196};
  static constexpr std::uint64_t kWideSizes[] = {16, 64, 4096, 4112, 18432};
  const std::uint32_t kind = random.below(3);
  const bool is_page_first = random.below(3) == 0;
  DrawnPages drawn;
  const std::uint64_t unit = kind == 0 ? 1 : kind == 1 ? 4 : 16;
  std::uint64_t at = unit * random.below(5);
  drawn.layers.resize(1 + random.below(5));
  std::vector<Fragment*> all;
  for (auto& layer : drawn.layers) {
    layer.resize(1 + random.below(3));
    for (Fragment& fragment : layer) {
      fragment.bytes = kind == 0   ? kOddSizes[random.below(std::size(kOddSizes))]
                       : kind == 1 ? kEvenSizes[random.below(std::size(kEvenSizes))]
                                   : kWideSizes[random.below(std::size(kWideSizes))];
      fragment.record_offset = drawn.record_bytes;
      drawn.record_bytes += fragment.bytes;
    }
  }
  for (auto& layer : drawn.layers) {
    for (Fragment& fragment : layer) {
      const std::uint64_t gap = unit * random.below(3);
      fragment.page_stride = is_page_first ? drawn.record_bytes : fragment.bytes + gap;
      fragment.first = reinterpret_cast<std::byte*>(is_page_first ? at + fragment.record_offset : at);
      if (!is_page_first) at += kPages * fragment.page_stride;
    }
  }
  drawn.pool_bytes = is_page_first ? at + (kPages * drawn.record_bytes) : at;
  return drawn;
}

std::uint64_t offset_of(const Fragment& fragment) {
  return reinterpret_cast<std::uintptr_t>(fragment.first);
}

template <typename Id>
std::vector<Id> draw_ids(Random& random, std::uint32_t count, std::uint32_t end) {
  std::vector<Id> ids;
  for (std::uint32_t i = 0; i < end; ++i) ids.push_back(Id{i});
  for (std::uint32_t i = end; i > 1; --i) std::swap(ids[i - 1], ids[random.below(i)]);
  ids.resize(count);
  return ids;
}

// A pool on the GPU and its records, with copies of both on the host that the naive code works on.
class Scene {
 public:
  Scene(Device& device, Random& random, bool checksums)
      : device_(device),
        drawn_(draw_pages(random)),
        pool_(random_bytes(random, drawn_.pool_bytes)),
        on_gpu_(pool_),
        record_stride_((drawn_.record_bytes + 63) / 64 * 64) {
    const std::size_t bytes = kRecords * record_stride_;
    auto memory = RegisteredMemory::allocate(device, bytes, record_stride_);
    EXPECT_TRUE(memory) << memory.error().message;
    memory_ = std::move(*memory);
    records_ = random_bytes(random, bytes);
    std::memcpy(memory_.data(), records_.data(), bytes);
    SwapConfig config{.device = &device,
                      .layers = drawn_.layers,
                      .device_page_count = kPages,
                      .records = memory_.data(),
                      .record_stride = record_stride_,
                      .record_count = kRecords,
                      .checksums = checksums,
                      .load_paths = SwapPaths{},
                      .store_paths = SwapPaths{},
                      .call_pages_max = kPages,
                      .calls_in_flight_max = kPages,
                      // Three records, so that calls go round the ring, or several of them in each slot.
                      .staging_bytes = random.below(2) == 0 ? 1 : std::uint64_t{3} << 20U};
    for (auto& layer : config.layers) {
      for (Fragment& fragment : layer) fragment.first = on_gpu_.data() + offset_of(fragment);
    }
    auto engine = SwapEngine::open(config);
    EXPECT_TRUE(engine) << engine.error().message;
    engine_ = std::move(*engine);
    for (DeviceStream* stream : {&streams_.copies, &streams_.kernels, &streams_.more_kernels}) {
      *stream = *device.create_stream(StreamPriority::High);
    }
  }
  ~Scene() {
    engine_.reset();
    for (const DeviceStream stream : {streams_.copies, streams_.kernels, streams_.more_kernels}) {
      device_.destroy_stream(stream);
    }
  }
  Scene(const Scene&) = delete;
  Scene& operator=(const Scene&) = delete;

  [[nodiscard]] SwapEngine& engine() { return *engine_; }
  [[nodiscard]] const SwapStreams& streams() const { return streams_; }
  [[nodiscard]] std::uint32_t layer_count() const { return static_cast<std::uint32_t>(drawn_.layers.size()); }
  [[nodiscard]] std::byte* record(RecordId id) { return memory_.data() + (id.value * record_stride_); }

  // What a swap does, by plain copies.
  void move(TransferKind kind, PageId device_page, RecordId record_id) {
    for (const auto& layer : drawn_.layers) {
      for (const Fragment& fragment : layer) {
        std::byte* const on_device = pool_.data() + offset_of(fragment) + (device_page.value * fragment.page_stride);
        std::byte* const in_record = records_.data() + (record_id.value * record_stride_) + fragment.record_offset;
        if (kind == TransferKind::Load) {
          std::memcpy(on_device, in_record, fragment.bytes);
        } else {
          std::memcpy(in_record, on_device, fragment.bytes);
        }
      }
    }
  }
  [[nodiscard]] std::uint64_t checksum(RecordId record_id) const {
    const ChecksumPart sum = best_checked_copier().sum(
        {.source = records_.data() + (record_id.value * record_stride_), .bytes = drawn_.record_bytes});
    return sum.finish(drawn_.record_bytes);
  }
  [[nodiscard]] std::string difference() {
    if (on_gpu_.read() != pool_) return "the pages on the GPU differ";
    if (std::memcmp(memory_.data(), records_.data(), records_.size()) != 0) return "the records differ";
    return "";
  }
  /// All bytes of the pages become zero, for the naive code too.
  void clear_pages() {
    std::ranges::fill(pool_, std::byte{0});
    on_gpu_.write(pool_);
  }
  /// The first fragment of a layer.
  [[nodiscard]] const Fragment& fragment(std::uint32_t layer) const { return drawn_.layers[layer][0]; }
  [[nodiscard]] const std::byte* on_gpu(const Fragment& fragment, PageId page) {
    return on_gpu_.data() + offset_of(fragment) + (page.value * fragment.page_stride);
  }
  /// Breaks a record, for the naive code too.
  void break_record(RecordId id, std::uint64_t at) {
    record(id)[at % drawn_.record_bytes] ^= std::byte{1};
    records_[(id.value * record_stride_) + (at % drawn_.record_bytes)] ^= std::byte{1};
  }

 private:
  Device& device_;
  DrawnPages drawn_;
  std::vector<std::byte> pool_;
  DeviceBytes on_gpu_;
  std::uint64_t record_stride_;
  RegisteredMemory memory_;
  std::vector<std::byte> records_;
  std::unique_ptr<SwapEngine> engine_;
  SwapStreams streams_;
};

class GpuSwap : public ::testing::Test {
 protected:
  void SetUp() override {
    auto device = open_cuda_device(0);
    ASSERT_TRUE(device) << device.error().message;
    device_ = std::move(*device);
  }
  std::unique_ptr<Device> device_;
};

TEST_F(GpuSwap, MovesWhatPlainCopiesMove) {
  Random random(7);
  for (int turn = 0; turn < 60; ++turn) {
    const bool checksums = random.below(3) != 0;
    Scene scene(*device_, random, checksums);
    for (int call = 0; call < 6; ++call) {
      const TransferKind kind = random.below(2) == 0 ? TransferKind::Load : TransferKind::Store;
      const std::uint32_t count = random.below(kPages + 1);
      const std::vector<PageId> device_pages = draw_ids<PageId>(random, count, kPages);
      const std::vector<RecordId> records = draw_ids<RecordId>(random, count, kRecords);
      std::vector<std::uint64_t> expected;
      if (kind == TransferKind::Load && checksums && random.below(2) == 0) {
        for (const RecordId id : records) expected.push_back(scene.checksum(id));
      }
      SwapStreams streams = scene.streams();
      const std::uint32_t stream_count = 1 + random.below(3);
      if (stream_count < 3) streams.more_kernels = {};
      if (stream_count < 2) streams.kernels = {};
      const SwapOrder order{.kind = kind,
                            .device_pages = device_pages,
                            .records = records,
                            .expected = expected,
                            .band_count = 1 + random.below(scene.layer_count()),
                            .streams = streams,
                            .path = static_cast<SwapPath>(random.below(3))};
      const Result<SwapReport> report = scene.engine().swap(order);
      ASSERT_TRUE(report) << report.error().message;
      for (std::uint32_t i = 0; i < count; ++i) scene.move(kind, device_pages[i], records[i]);
      ASSERT_EQ(scene.difference(), "") << "turn " << turn << ", call " << call << ", path " << to_string(*order.path);
      ASSERT_EQ(report->good_pages, count);
      ASSERT_EQ(report->checksums.size(), checksums ? count : 0);
      for (std::uint32_t i = 0; i < report->checksums.size(); ++i) {
        ASSERT_EQ(report->checksums[i], scene.checksum(records[i])) << "turn " << turn << ", call " << call;
      }
    }
  }
}

TEST_F(GpuSwap, ARecordThatChangedIsNoticedAndSaysWhere) {
  Random random(8);
  for (int turn = 0; turn < 20; ++turn) {
    Scene scene(*device_, random, true);
    const std::vector<PageId> device_pages = draw_ids<PageId>(random, kPages, kPages);
    const std::vector<RecordId> records = draw_ids<RecordId>(random, kPages, kRecords);
    std::vector<std::uint64_t> expected;
    for (const RecordId id : records) expected.push_back(scene.checksum(id));
    const std::uint32_t bad = random.below(kPages);
    scene.break_record(records[bad], random.next());
    for (const SwapPath path : {SwapPath::Whole, SwapPath::Staged, SwapPath::Direct}) {
      const Result<SwapReport> report = scene.engine().swap({.kind = TransferKind::Load,
                                                             .device_pages = device_pages,
                                                             .records = records,
                                                             .expected = expected,
                                                             .streams = scene.streams(),
                                                             .path = path});
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->good_pages, bad) << to_string(path);
    }
  }
}

// Half of the pages go one way while the other half goes the other, with several calls on the streams at a time.
TEST_F(GpuSwap, BothDirectionsRunAtTheSameTime) {
  Random random(9);
  for (int turn = 0; turn < 20; ++turn) {
    Scene scene(*device_, random, true);
    const std::vector<PageId> device_pages = draw_ids<PageId>(random, kPages, kPages);
    const std::vector<RecordId> records = draw_ids<RecordId>(random, kPages, kRecords);
    SwapStreams store_streams;
    for (DeviceStream* stream : {&store_streams.copies, &store_streams.kernels, &store_streams.more_kernels}) {
      *stream = *device_->create_stream(StreamPriority::High);
    }
    std::vector<SwapTicket> tickets;
    for (std::uint32_t i = 0; i + 1 < kPages; i += 2) {
      for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
        const std::uint32_t at = kind == TransferKind::Load ? i : i + 1;
        const Result<std::optional<SwapTicket>> ticket =
            scene.engine().try_start({.kind = kind,
                                      .device_pages = std::span(device_pages).subspan(at, 1),
                                      .records = std::span(records).subspan(at, 1),
                                      .streams = kind == TransferKind::Load ? scene.streams() : store_streams,
                                      .path = static_cast<SwapPath>(random.below(3))});
        ASSERT_TRUE(ticket) << ticket.error().message;
        ASSERT_TRUE(ticket->has_value());
        tickets.push_back(**ticket);
        scene.move(kind, device_pages[at], records[at]);
      }
    }
    for (const SwapTicket ticket : tickets) {
      Result<bool> is_done = scene.engine().is_done(ticket);
      while (is_done && !*is_done) is_done = scene.engine().is_done(ticket);
      ASSERT_TRUE(is_done) << is_done.error().message;
      ASSERT_TRUE(scene.engine().finish(ticket));
    }
    EXPECT_EQ(scene.difference(), "");
    for (const DeviceStream stream : {store_streams.copies, store_streams.kernels, store_streams.more_kernels}) {
      device_->destroy_stream(stream);
    }
  }
}

// A stream that waits for a band finds its layers; those behind it come later, or are not on the streams yet.
TEST_F(GpuSwap, AStreamWaitsForABand) {
  Random random(10);
  Scene scene(*device_, random, true);
  const std::vector<PageId> device_pages = draw_ids<PageId>(random, kPages, kPages);
  const std::vector<RecordId> records = draw_ids<RecordId>(random, kPages, kRecords);
  const DeviceStream compute = *device_->create_stream(StreamPriority::Low);
  auto seen = RegisteredMemory::allocate(*device_, 1 << 20, 1 << 20);
  ASSERT_TRUE(seen);
  for (int way = 0; way < 6; ++way) {
    const SwapPath path = std::array{SwapPath::Whole, SwapPath::Staged, SwapPath::Direct}[way % 3];
    const bool band_by_band = way >= 3;
    scene.clear_pages();
    const auto ticket = scene.engine().try_start({.kind = TransferKind::Load,
                                                  .device_pages = device_pages,
                                                  .records = records,
                                                  .band_count = scene.layer_count(),
                                                  .band_by_band = band_by_band,
                                                  .streams = scene.streams(),
                                                  .path = path});
    ASSERT_TRUE(ticket && *ticket);
    for (std::uint32_t band = 0; band < scene.layer_count(); ++band) {
      if (band_by_band && band != 0) {
        // The places of events have happened in rounds before.
        const Result<bool> has_arrived = scene.engine().has_arrived(**ticket, band);
        ASSERT_TRUE(has_arrived);
        EXPECT_FALSE(*has_arrived);
        EXPECT_FALSE(scene.engine().wait_on(compute, **ticket, band));
        const Result<bool> is_done = scene.engine().is_done(**ticket);
        ASSERT_TRUE(is_done);
        EXPECT_FALSE(*is_done);
        const Result<bool> has_started = scene.engine().start_next_band(**ticket);
        ASSERT_TRUE(has_started) << has_started.error().message;
        EXPECT_TRUE(*has_started);
      }
      // What the stream reads behind the wait is what the record has.
      const Fragment& fragment = scene.fragment(band);
      const std::uint32_t at = random.below(kPages);
      ASSERT_TRUE(scene.engine().wait_on(compute, **ticket, band));
      ASSERT_TRUE(device_->copy(seen->data(), scene.on_gpu(fragment, device_pages[at]), fragment.bytes, compute));
      ASSERT_TRUE(device_->synchronize(compute));
      EXPECT_EQ(std::memcmp(seen->data(), scene.record(records[at]) + fragment.record_offset, fragment.bytes), 0)
          << to_string(path) << ", band " << band;
      const Result<bool> has_arrived = scene.engine().has_arrived(**ticket, band);
      ASSERT_TRUE(has_arrived);
      EXPECT_TRUE(*has_arrived);
    }
    const Result<bool> has_started = scene.engine().start_next_band(**ticket);
    ASSERT_TRUE(has_started);
    EXPECT_FALSE(*has_started) << "all are there";
    ASSERT_TRUE(device_->synchronize(scene.streams().kernels));
    ASSERT_TRUE(device_->synchronize(scene.streams().copies));
    ASSERT_TRUE(scene.engine().finish(**ticket));
    for (std::uint32_t i = 0; i < kPages; ++i) scene.move(TransferKind::Load, device_pages[i], records[i]);
    EXPECT_EQ(scene.difference(), "") << to_string(path);
  }
  device_->destroy_stream(compute);
}

TEST_F(GpuSwap, MeasuresItsWaysWhenItIsOpened) {
  constexpr std::uint64_t kLayerBytes = 262144;  // long enough for copies of their own
  constexpr std::uint32_t kLayers = 4;
  constexpr std::uint32_t kPageCount = 16;
  std::byte* const memory = *device_->allocate(kPageCount * kLayers * kLayerBytes);
  auto records = RegisteredMemory::allocate(*device_, kPageCount * kLayers * kLayerBytes, kLayers * kLayerBytes);
  ASSERT_TRUE(records);
  SwapConfig config{.device = device_.get(),
                    .device_page_count = kPageCount,
                    .records = records->data(),
                    .record_stride = kLayers * kLayerBytes,
                    .record_count = kPageCount};
  for (std::uint64_t l = 0; l < kLayers; ++l) {
    config.layers.push_back({{.first = memory + (l * kPageCount * kLayerBytes),
                              .page_stride = kLayerBytes,
                              .record_offset = l * kLayerBytes,
                              .bytes = kLayerBytes}});
  }
  const auto timings = measure_swaps(config);
  ASSERT_TRUE(timings) << timings.error().message;
  for (const TransferKind kind : {TransferKind::Load, TransferKind::Store}) {
    for (const SwapPath path : {SwapPath::Whole, SwapPath::Staged, SwapPath::Direct}) {
      EXPECT_TRUE(std::ranges::any_of(*timings, [&](const SwapTiming& timing) {
        return timing.kind == kind && timing.path == path && timing.page_count > 1 && timing.seconds > 0;
      })) << to_string(path);
    }
  }
  auto engine = SwapEngine::open(config);
  EXPECT_TRUE(engine) << engine.error().message;
  engine = SwapEngine::open({.device = nullptr});
  EXPECT_FALSE(engine);
  device_->release(memory);
}

// What the runtime refuses is told, and leaves nothing behind. In a suite of its own, because compute-sanitizer counts
// every call that the runtime refuses as an error.
TEST(GpuRefusals, RegisteringMemoryTwiceAndAGpuThatThereIsNot) {
  const auto device = open_cuda_device(0);
  ASSERT_TRUE(device) << device.error().message;
  {
    const auto memory = RegisteredMemory::allocate(**device, 1 << 20, 1 << 20);
    ASSERT_TRUE(memory);
    const Status twice = (*device)->register_host({memory->data(), 1 << 20}, 4096);
    ASSERT_FALSE(twice);
    EXPECT_NE(twice.error().message.find("cudaErrorHostMemoryAlreadyRegistered"), std::string::npos)
        << twice.error().message;
    EXPECT_TRUE((*device)->allocate(1 << 20).map([&](std::byte* other) { (*device)->release(other); }));
  }
  const auto none = open_cuda_device(1000);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().message.find("opening GPU 1000"), std::string::npos) << none.error().message;
  EXPECT_FALSE((*device)->allocate(std::size_t{1} << 60U));
  EXPECT_EQ(testing::last_cuda_error(), "") << "an error that was told is not the next caller's";
}

// Pages of a pool of the GPU through a mover's host tier and back.
TEST_F(GpuSwap, AMoverBringsPagesBack) {
  const auto page =
      PageGeometry::create({.name = "kv",
                            .layers = {0, 1, 2},
                            .components = {{.name = "k", .element = ElementType::Bf16, .heads = 2, .dim = 24},
                                           {.name = "v", .element = ElementType::Bf16, .heads = 2, .dim = 24}}},
                           {.page_tokens = 7});
  ASSERT_TRUE(page) << page.error().message;
  for (const ByteLayout layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    const auto geometry = PoolGeometry::create(*page, {.page_count = 40, .byte_layout = layout});
    ASSERT_TRUE(geometry);
    Random random(11);
    const std::vector<std::byte> content = random_bytes(random, geometry->pool_bytes());
    DeviceBytes pool(content);
    auto mover = Mover::open({.device_geometry = &*geometry,
                              .device_memory = pool.data(),
                              .host_page_count = 40,
                              .transfer_pages_max = 40,
                              .accelerator = device_.get()});
    ASSERT_TRUE(mover) << mover.error().message;
    std::vector<PageTransfer> pages;
    for (std::uint32_t i = 0; i < 40; ++i) {
      pages.push_back({.device_page = PageId{i}, .host_page = PageId{40 - i}, .host_generation = 1, .name_tag = i});
    }
    const auto run = [&](TransferKind kind, std::uint32_t index) {
      ASSERT_TRUE((*mover)->try_submit({.id = {.index = index, .generation = 1},
                                        .kind = kind,
                                        .band_count = static_cast<std::uint16_t>(kind == TransferKind::Load ? 3 : 1),
                                        .pages = pages}));
      const std::uint32_t last = kind == TransferKind::Load ? 2 : 0;
      const auto outcome = (*mover)->wait({.index = index, .generation = 1}, last, TimeNs{10'000'000'000});
      ASSERT_TRUE(outcome);
      ASSERT_EQ(*outcome, TransferOutcome::Ok);
    };
    run(TransferKind::Store, 1);
    pool.write(std::vector<std::byte>(content.size()));
    run(TransferKind::Load, 2);
    EXPECT_EQ(pool.read(), content);
  }
}

}  // namespace
}  // namespace quire
