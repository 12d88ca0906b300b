// SPDX-License-Identifier: Apache-2.0
//
// After open() a swap allocates nothing, whichever way it goes: the device here does nothing but answer.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/swap.h"
#include "tests/cache/allocation_counter.h"

namespace quire {
namespace {

class NullDevice : public Device {
 public:
  [[nodiscard]] std::uint32_t index() const override { return 0; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t multiprocessor_count() const override { return 1; }
  [[nodiscard]] Result<std::byte*> allocate(std::size_t bytes) override {
    return static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
  }
  void release(std::byte* memory) override { std::free(memory); }
  [[nodiscard]] Status register_host(std::span<std::byte>, std::size_t) override { return {}; }
  void unregister_host(std::span<std::byte>) override {}
  [[nodiscard]] Result<DeviceStream> create_stream(StreamPriority) override { return DeviceStream{this}; }
  void destroy_stream(DeviceStream) override {}
  [[nodiscard]] Result<DeviceEvent> create_event() override { return DeviceEvent{this}; }
  void destroy_event(DeviceEvent) override {}
  [[nodiscard]] Status record(DeviceEvent, DeviceStream) override { return count(); }
  [[nodiscard]] Status wait(DeviceStream, DeviceEvent) override { return count(); }
  [[nodiscard]] Result<bool> has_happened(DeviceEvent) override { return true; }
  [[nodiscard]] Status synchronize(DeviceStream) override { return count(); }
  [[nodiscard]] Status copy(std::byte*, const std::byte*, std::size_t, DeviceStream) override { return count(); }
  [[nodiscard]] Status copy_all(const CopyList&, DeviceStream) override { return count(); }
  [[nodiscard]] Status move_fragments(const MoveFragmentsParams&, DeviceStream) override { return count(); }
  [[nodiscard]] Status finish_checksums(const FinishChecksumsParams&, DeviceStream) override { return count(); }
  [[nodiscard]] std::uint64_t call_count() const { return call_count_; }

 private:
  [[nodiscard]] Status count() {
    ++call_count_;
    return {};
  }
  const std::string name_ = "null";
  std::uint64_t call_count_ = 0;
};

TEST(SwapNoAllocation, CallsDoNotAllocate) {
  constexpr std::uint32_t kPages = 64;
  constexpr std::uint64_t kFragmentBytes = 5000;
  constexpr std::uint32_t kLayers = 6;
  NullDevice device;
  std::vector<std::byte> memory(1);  // nobody touches it
  SwapConfig config{.device = &device,
                    .device_page_count = kPages,
                    .records = memory.data(),
                    .record_stride = std::uint64_t{kLayers} * 2 * kFragmentBytes,
                    .record_count = kPages,
                    .load_paths = SwapPaths{},
                    .store_paths = SwapPaths{},
                    .call_pages_max = kPages,
                    .calls_in_flight_max = 2,
                    .staging_bytes = 1};
  for (std::uint64_t l = 0; l < kLayers; ++l) {
    config.layers.emplace_back();
    for (std::uint64_t c = 0; c < 2; ++c) {
      config.layers.back().push_back({.first = memory.data(),
                                      .page_stride = kFragmentBytes,
                                      .record_offset = ((l * 2) + c) * kFragmentBytes,
                                      .bytes = kFragmentBytes});
    }
  }
  const auto engine = SwapEngine::open(config).value();
  std::vector<PageId> pages;
  pages.reserve(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i) pages.push_back(PageId{i});
  std::vector<RecordId> records;
  records.reserve(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i) records.push_back(RecordId{i});
  const std::vector<std::uint64_t> expected(kPages);
  std::vector<int> handles(3);
  const SwapStreams streams{.copies = {&handles[0]}, .kernels = {&handles[1]}, .more_kernels = {&handles[2]}};
  std::uint64_t finished = 0;
  const auto run = [&](std::uint32_t round_count) {
    for (std::uint32_t round = 0; round < round_count; ++round) {
      const auto kind = round % 2 == 0 ? TransferKind::Load : TransferKind::Store;
      const bool expects = kind == TransferKind::Load && round % 3 == 0;
      const std::size_t count = round % 7 == 0 ? kPages : round % kPages;
      const SwapOrder order{.kind = kind,
                            .device_pages = std::span(pages).first(count),
                            .records = std::span(records).last(count),
                            .expected = expects ? std::span(expected).first(count) : std::span<const std::uint64_t>(),
                            .band_count = 1 + (round / 6 % kLayers),
                            .band_by_band = round % 2 == 1,
                            .streams = streams,
                            .after = {&handles[0]},
                            .path = static_cast<SwapPath>(round / 2 % 3)};
      const SwapTicket first = engine->try_start(order).value().value();
      const SwapTicket second = engine->try_start(order).value().value();
      if (engine->try_start(order).value().has_value()) return;  // a full engine is an answer
      for (const SwapTicket ticket : {first, second}) {
        while (engine->start_next_band(ticket).value()) {
        }
        if (engine->band_events(ticket).value().size() != order.band_count) return;
      }
      if (!engine->is_done(first).value() || !engine->has_arrived(second, 0).value()) return;
      if (!engine->wait_on(streams.copies, second, 0).has_value()) return;
      if (engine->finish(first).value().page_count != count) return;
      if (engine->finish(second).value().checksums.size() != count) return;
      if (!engine->swap(order).has_value()) return;
      finished += 3;
    }
  };
  run(10);
  const std::uint64_t before = allocation_count;
  const std::uint64_t calls_before = device.call_count();
  run(3000);
  EXPECT_EQ(allocation_count, before);
  EXPECT_GT(device.call_count(), calls_before + 9000);
  EXPECT_EQ(finished, 3U * 3010U);
}

}  // namespace
}  // namespace quire
