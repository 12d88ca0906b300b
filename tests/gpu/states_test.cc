// SPDX-License-Identifier: Apache-2.0
//
// Random copies of state slots of drawn groups, beside the host twin. Memory starts as random bytes and is compared
// whole.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "quire/device_kernels.h"
#include "quire/host_kernels.h"
#include "quire/layout.h"
#include "quire/state_slots.h"
#include "testing/seeded_run.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/geometries.h"

namespace quire {
namespace {

using testing::DeviceBytes;
using testing::kLaunchings;
using testing::Launching;
using testing::Random;
using testing::random_bytes;
using testing::run_on_gpu;

CacheGroup draw_group(Random& random, std::uint32_t index) {
  CacheGroup group{.name = "group " + std::to_string(index),
                   .layers = layer_range(0, 1 + random.below(3)),
                   .components = testing::draw_components(random),
                   .retention = {.rule = RetentionRule::Last}};
  switch (random.below(3)) {
    case 0:  // a recurrent state
      group.kind = GroupKind::Snapshot;
      group.slot_entries = 1;
      group.slot_history = random.below(4);
      break;
    case 1:  // rows by position
      group.kind = GroupKind::Snapshot;
      group.slot_entries = 1 + random.below(9);
      group.snapshot_entries = 1 + random.below(group.slot_entries);
      group.slot_history = random.below(3);
      break;
    default:
      group.kind = GroupKind::Window;
      group.window_form = WindowForm::Ring;
      group.window_tokens = 1 + random.below(8);
      group.sink_tokens = random.below(2) == 0 ? random.below(group.window_tokens) : 0;
      group.slot_entries = group.window_tokens + group.sink_tokens + random.below(4);
      group.keys_rotated = false;
      break;
  }
  return group;
}

// State slots and pools on both sides.
class States {
 public:
  States(Random& random, std::uint32_t slot_count, std::uint32_t page_count)
      : slot_count_(slot_count), page_count_(page_count) {
    std::vector<CacheGroup> groups;
    for (std::uint32_t i = 1 + random.below(3); i > 0; --i) groups.push_back(draw_group(random, i));
    const PageOptions options{.page_tokens = 1 + random.below(4),
                              .head_order = random.below(2) == 0 ? HeadOrder::Nhd : HeadOrder::Hnd};
    const ByteLayout byte_layout = random.below(2) == 0 ? ByteLayout::PageFirst : ByteLayout::LayerFirst;
    slots_ = StateSlots::create(ModelLayout::create("states", groups).value(), options).value();
    for (const CacheGroup& group : groups) {
      geometries_.push_back(
          std::make_unique<PoolGeometry>(PoolGeometry::create(PageGeometry::create(group, options).value(),
                                                              {.page_count = page_count, .byte_layout = byte_layout})
                                             .value()));
      pointers_.push_back(geometries_.back().get());
      pools_.push_back(random_bytes(random, geometries_.back()->pool_bytes()));
      device_pools_.push_back(std::make_unique<DeviceBytes>(pools_.back()));
      device_addresses_.push_back(device_pools_.back()->data());
    }
    state_ = random_bytes(random, slot_count * slots_->slot_bytes());
    device_state_ = std::make_unique<DeviceBytes>(state_);
  }

  [[nodiscard]] StateCopy draw_copy(Random& random) const {
    const auto below = [&](std::uint32_t bound) { return static_cast<std::int32_t>(random.below(bound)); };
    StateCopy copy{.kind = static_cast<StateCopyKind>(random.below(4)),
                   .group = below(static_cast<std::uint32_t>(pointers_.size())),
                   .position = below(random.below(2) == 0 ? 12 : 100)};
    copy.source = copy.kind == StateCopyKind::Restore ? 1 + below(page_count_ - 1) : below(slot_count_);
    copy.target = copy.kind == StateCopyKind::Save ? 1 + below(page_count_ - 1) : below(slot_count_);
    return copy;
  }

  [[nodiscard]] Status launch(std::span<const StateCopy> copies, DeviceStream stream) {
    return launch_copy_states({.slots = &*slots_,
                               .state = device_state_->data(),
                               .slot_count = slot_count_,
                               .geometries = pointers_,
                               .pools = device_addresses_,
                               .copies = copies},
                              stream);
  }
  void copy_on_host(std::span<const StateCopy> copies) {
    std::vector<std::byte*> addresses;
    for (std::vector<std::byte>& pool : pools_) addresses.push_back(pool.data());
    copy_states_on_host({.slots = &*slots_,
                         .state = state_.data(),
                         .slot_count = slot_count_,
                         .geometries = pointers_,
                         .pools = addresses,
                         .copies = copies});
  }
  [[nodiscard]] bool is_same() const {
    bool is_same = device_state_->read() == state_;
    for (std::size_t i = 0; i < pools_.size(); ++i) is_same = is_same && device_pools_[i]->read() == pools_[i];
    return is_same;
  }

 private:
  std::uint32_t slot_count_;
  std::uint32_t page_count_;
  std::optional<StateSlots> slots_;
  std::vector<std::unique_ptr<PoolGeometry>> geometries_;
  std::vector<const PoolGeometry*> pointers_;
  std::vector<std::byte> state_;
  std::vector<std::vector<std::byte>> pools_;
  std::unique_ptr<DeviceBytes> device_state_;
  std::vector<std::unique_ptr<DeviceBytes>> device_pools_;
  std::vector<std::byte*> device_addresses_;
};

TEST(GpuCopyStates, RandomCopiesOfRandomGroupsAreThoseOfTheHost) {
  for (std::uint32_t seed = 1; seed <= 120; ++seed) {
    Random random(seed);
    States states(random, 4, 5);
    for (const Launching launching : kLaunchings) {  // one after the other, on what the first has left
      std::vector<StateCopy> copies(1 + random.below(15));
      for (StateCopy& copy : copies) copy = states.draw_copy(random);
      const Status done = run_on_gpu(launching, [&](DeviceStream stream) { return states.launch(copies, stream); });
      ASSERT_TRUE(done.has_value()) << done.error().message;
      states.copy_on_host(copies);
      ASSERT_TRUE(states.is_same()) << "seed " << seed;
    }
  }
}

// Many slots, so that many copies run side by side.
TEST(GpuCopyStates, ManyCopiesAreThoseOfTheHost) {
  for (std::uint32_t seed = 1; seed <= 10; ++seed) {
    Random random(1000 + seed);
    States states(random, 150, 160);
    std::vector<StateCopy> copies(500);
    for (StateCopy& copy : copies) copy = states.draw_copy(random);
    for (std::size_t i = 0; i < 300; ++i) copies[i].kind = copies[0].kind;  // of one kind: whole batches
    for (StateCopy& copy : copies) {
      // Numbers that slots and pages have alike, whatever the kind was drawn for.
      copy.source = 1 + (copy.source % 149);
      copy.target = 1 + (copy.target % 149);
    }
    const Status done =
        run_on_gpu(Launching::Directly, [&](DeviceStream stream) { return states.launch(copies, stream); });
    ASSERT_TRUE(done.has_value()) << done.error().message;
    states.copy_on_host(copies);
    ASSERT_TRUE(states.is_same()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace quire
