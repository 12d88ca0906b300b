// SPDX-License-Identifier: Apache-2.0
//
// HybridSchedule: random calls on a HybridRig. Tokens are random, so nothing needs to be decoded: what counts is that
// the logits of every query are the oracle's, whatever was shared, forked, rewound, preempted or evicted on the way,
// and whichever kinds of layers the model has.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hybrid_rig.h"
#include "schedule_counts.h"
#include "testing/seeded_run.h"

namespace quire::testing {

/// The lowest tier of a cache.
enum class HybridTier : std::uint8_t { Device, Host, Disk };
inline constexpr std::array kHybridTiers = {HybridTier::Device, HybridTier::Host, HybridTier::Disk};
[[nodiscard]] std::string_view to_string(HybridTier tier);

/// Any mix of layers on a cache of any shape. With a disk tier, disk_directory is left to the caller.
[[nodiscard]] HybridSetup draw_hybrid_setup(Random& random, HybridTier tier);

class HybridSchedule {
 public:
  HybridSchedule(const HybridSetup& setup, ScheduleCounts& counts) : rig_(setup, counts), counts_(counts) {}

  /// One random call. Empty, or what is wrong.
  [[nodiscard]] std::string apply(Random& random);
  /// Ends everything.
  [[nodiscard]] std::string drain();
  [[nodiscard]] HybridRig& rig() { return rig_; }

 private:
  using Operation = std::string (HybridSchedule::*)(Random&);

  std::string begin(Random& random);
  std::string admit(Random& random);
  std::string append(Random& random);
  std::string fork(Random& random);
  std::string rewind(Random& random);
  std::string set_window(Random& random);
  std::string preempt(Random& random);
  std::string end(Random& random);
  std::string reclaim(Random& random);
  std::string plan(Random& random);
  std::string finish(Random& random);
  std::string run(Random& random);
  std::string abort(Random& random);
  std::string resize(Random& random);
  std::string race(Random& random);
  std::string restart(Random& random);

  [[nodiscard]] bool describe(HybridLive& live, std::uint32_t tokens_left, Random& random, HybridAsk& ask);
  std::string make_room(Random& random);
  [[nodiscard]] HybridLive* draw_resting(Random& random);
  [[nodiscard]] TokenId draw_token(Random& random) const;

  HybridRig rig_;
  ScheduleCounts& counts_;
  std::vector<std::vector<TokenId>> prompts_;  // what new prompts begin like
  std::uint64_t call_ = 0;
};

}  // namespace quire::testing
