// SPDX-License-Identifier: Apache-2.0
//
// HybridRecording: the steps of a HybridRig as a device saw them, to be replayed on fresh memory without the cache,
// with one number of one plan changed or one thing that a plan asks for left out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "hybrid_rig.h"
#include "tools/tiny_engine/device_plan.h"
#include "tools/tiny_engine/hybrid_engine.h"

namespace quire::testing {

/// Numbers of one element of a plan's array, and what they become.
struct PlanChange {
  std::string what;
  std::size_t step_index = 0;
  struct Number {
    tiny_engine::StagedNumbers numbers;
    std::uint64_t index = 0;
    std::int64_t value = 0;
  };
  std::vector<Number> numbers;
};

class HybridRecording {
 public:
  /// What the rig has recorded so far. Only the first `changed_count` steps are changed: the others show what came of
  /// it. The rig must outlive the recording.
  HybridRecording(HybridRig& rig, std::size_t changed_count);

  /// Empty, or the first thing that is wrong. The first call of all is this one.
  [[nodiscard]] std::string replay();
  /// Replays from the changed step on.
  [[nodiscard]] std::string replay(const PlanChange& change) const;

  /// Everything a plan asks for, left out: append slots, deltas, page copies, state copies and saves.
  [[nodiscard]] std::vector<PlanChange> omissions() const;
  /// Every number that means something, as it is.
  [[nodiscard]] std::vector<PlanChange> places() const;

 private:
  /// Everything a device has. One state slot and one row of the page tables are nobody's.
  struct World {
    std::vector<std::vector<std::byte>> pools;
    std::vector<std::byte> state;
    tiny_engine::HybridEngine engine;
  };
  [[nodiscard]] World make_world() const;
  [[nodiscard]] static World copy_world(const World& world);
  static void connect(World& world);
  [[nodiscard]] std::string replay_step(World& world, const HybridRig::Recorded& step,
                                        const tiny_engine::DevicePlan& plan) const;
  [[nodiscard]] bool is_used(const HybridRig::Recorded& step, const tiny_engine::StagedNumbers& numbers,
                             std::uint64_t index) const;
  /// A reset that nothing depends on: what it clears is written before it is read.
  [[nodiscard]] bool is_idle(const StateCopy& copy) const;

  HybridRig& rig_;
  std::vector<CacheGroup> groups_;
  std::size_t changed_count_;
  std::vector<std::vector<double>> expected_;  // by text
  std::vector<World> before_;                  // the world before each step
};

}  // namespace quire::testing
