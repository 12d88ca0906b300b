// SPDX-License-Identifier: Apache-2.0
//
// After open() neither callers nor workers allocate, whatever becomes of the transfers.
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>

#include "quire/device.h"
#include "quire/mover.h"
#include "quire/swap_kernels.h"
#include "testing/test_pool.h"
#include "tests/cache/allocation_counter.h"

namespace quire {
namespace {

// An accelerator that does at once what it is told: it has nothing to keep, so what allocates is not it.
class PromptDevice : public Device {
 public:
  [[nodiscard]] std::uint32_t index() const override { return 0; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::uint32_t multiprocessor_count() const override { return 1; }
  [[nodiscard]] Result<std::byte*> allocate(std::size_t bytes) override {
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(256, (bytes + 255) / 256 * 256));
    std::memset(memory, 0, bytes);
    return memory;
  }
  void release(std::byte* memory) override { std::free(memory); }
  [[nodiscard]] Status register_host(std::span<std::byte> /*memory*/, std::size_t /*unit_bytes*/) override {
    return {};
  }
  void unregister_host(std::span<std::byte> /*memory*/) override {}
  [[nodiscard]] Result<DeviceStream> create_stream(StreamPriority /*priority*/) override {
    return DeviceStream{&handles_[next_++]};
  }
  void destroy_stream(DeviceStream /*stream*/) override {}
  [[nodiscard]] Result<DeviceEvent> create_event() override { return DeviceEvent{&handles_[next_++]}; }
  void destroy_event(DeviceEvent /*event*/) override {}
  [[nodiscard]] Status record(DeviceEvent /*event*/, DeviceStream /*stream*/) override { return {}; }
  [[nodiscard]] Status wait(DeviceStream /*stream*/, DeviceEvent /*event*/) override { return {}; }
  [[nodiscard]] Result<bool> has_happened(DeviceEvent /*event*/) override { return true; }
  [[nodiscard]] Status synchronize(DeviceStream /*stream*/) override { return {}; }
  [[nodiscard]] Status copy(std::byte* target, const std::byte* source, std::size_t bytes,
                            DeviceStream /*stream*/) override {
    std::memcpy(target, source, bytes);
    return {};
  }
  [[nodiscard]] Status copy_all(const CopyList& copies, DeviceStream /*stream*/) override {
    for (std::size_t i = 0; i < copies.bytes.size(); ++i) {
      std::memcpy(copies.targets[i], copies.sources[i], copies.bytes[i]);
    }
    return {};
  }
  [[nodiscard]] Status move_fragments(const MoveFragmentsParams& params, DeviceStream /*stream*/) override {
    move_fragments_on_host(params);
    return {};
  }
  [[nodiscard]] Status finish_checksums(const FinishChecksumsParams& params, DeviceStream /*stream*/) override {
    finish_checksums_on_host(params);
    return {};
  }

 private:
  std::string name_ = "prompt device";
  std::array<char, 4096> handles_{};
  std::size_t next_ = 0;
};

// Callers and workers, on a mover of two pools.
void expect_no_allocation(MoverConfig config) {
  constexpr TimeNs kLongNs = TimeNs{200} * 1'000'000'000;
  const testing::TestPool first({{.layers = 4, .layer_bytes = 64, .pages = 16}});
  const testing::TestPool second({{.layers = 1, .layer_bytes = 33, .pages = 8},
                                  {.layers = 3, .layer_bytes = 5, .pages = 8, .byte_layout = ByteLayout::LayerFirst}});
  config.pools = {first.for_mover(8), second.for_mover(4)};
  config.queue_depth_max = 4;
  config.transfer_pages_max = 4;
  const std::unique_ptr<Mover> mover = Mover::open(config).value();
  std::array<PageTransfer, 4> pages;
  std::array<Completion, 8> completions;
  std::uint32_t index = 0;
  std::uint32_t ended_count = 0;
  const auto run = [&](std::uint32_t round_count) {
    for (std::uint32_t round = 0; round < round_count; ++round) {
      for (std::uint32_t i = 0; i < pages.size(); ++i) {
        pages[i] = {.device_page = PageId{i}, .host_page = PageId{1 + i}, .host_generation = round / 2};
      }
      const TransferId id{.index = ++index};
      const bool is_wrong = round % 7 == 6;
      if (is_wrong) pages[2].name_tag = 5;
      (void)mover->try_submit({.id = id,
                               .kind = round % 2 == 0 ? TransferKind::Store : TransferKind::Load,
                               .band_count = static_cast<std::uint16_t>(1 + (round % 4)),
                               .pool_index = static_cast<std::uint16_t>(round / 4 % 2),
                               .pages = round % 11 == 10 ? std::span<const PageTransfer>() : pages});
      if (round % 5 == 4) (void)mover->cancel(id);
      (void)mover->wait(id, 0, round % 3 == 0 ? 0 : kLongNs);
      (void)mover->cancel(id);
      ended_count += static_cast<std::uint32_t>(mover->poll(completions).size());
      if (round % 50 == 49) {
        mover->pause();
        mover->resume();
      }
    }
  };
  run(2000);
  const std::uint64_t before = allocation_count;
  run(20'000);
  EXPECT_EQ(allocation_count, before);
  EXPECT_GT(ended_count, 10'000U);
}

TEST(MoverNoAllocation, TransfersDoNotAllocate) {
  expect_no_allocation({});
}

TEST(MoverNoAllocation, NorDoThoseOfAnAccelerator) {
  for (const SwapPath path : {SwapPath::Whole, SwapPath::Staged, SwapPath::Direct}) {
    for (const bool checksums : {true, false}) {
      PromptDevice device;
      const SwapPaths paths{.few = path, .many = path};
      expect_no_allocation({.checksums = checksums,
                            .accelerator = &device,
                            .staging_bytes = 256,
                            .load_paths = paths,
                            .store_paths = paths});
    }
  }
}

}  // namespace
}  // namespace quire
