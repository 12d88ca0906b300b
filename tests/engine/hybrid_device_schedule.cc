// SPDX-License-Identifier: Apache-2.0
#include "hybrid_device_schedule.h"

#include <memory>

#include "testing/seeded_run.h"
#include "testing/temp_directory.h"

namespace quire::testing {
namespace {

HybridSetup draw_device_setup(Random& random, HybridTier tier, std::uint64_t seed) {
  HybridSetup setup = draw_hybrid_setup(random, tier);
  setup.shape.stores_fp8 = true;
  setup.shape.keys_rotated = true;  // so that no sequence has a window: kernels gather the last rows of a text
  setup.adopts_memory = false;
  setup.resizes = false;
  setup.page_tables = PageTables::Rows;
  setup.cascade_levels_max = 1;
  setup.has_own_mover = tier != HybridTier::Device;
  if (tier == HybridTier::Disk) setup.plans_while_loading = false;  // what came first may then decide
  setup.accelerator_path.reset();
  if (tier != HybridTier::Device) setup.accelerator_path = static_cast<SwapPath>(seed % 3);
  return setup;
}

std::string apply_all(HybridSchedule& schedule, Random random, std::uint64_t call_count) {
  for (std::uint64_t call = 1; call <= call_count; ++call) {
    const std::string problem = schedule.apply(random);
    if (!problem.empty()) return "call " + std::to_string(call) + ": " + problem;
  }
  return "";
}

}  // namespace

std::string run_hybrid_on_device(const ScheduleDevice& device, HybridTier tier, std::uint64_t seed,
                                 ScheduleCounts& counts) {
  const std::uint64_t call_count = tier == HybridTier::Device ? 200 : 600;
  Random random(seed);
  HybridSetup setup = draw_device_setup(random, tier, seed);
  const std::string where =
      std::string(to_string(tier)) + ", seed " + std::to_string(seed) + ": " + to_string(setup) + "\n";

  const TempDirectory plain_directory;
  if (tier == HybridTier::Disk) setup.disk_directory = plain_directory.path();
  HybridSetup plain_setup = setup;
  plain_setup.accelerator_path.reset();
  ScheduleCounts plain_counts;
  HybridSchedule plain(plain_setup, plain_counts);
  if (std::string problem = apply_all(plain, random, call_count); !problem.empty()) return where + "plain " + problem;

  const TempDirectory directory;
  if (tier == HybridTier::Disk) setup.disk_directory = directory.path();
  setup.device = device;
  HybridSchedule schedule(setup, counts);
  std::string problem = apply_all(schedule, random, call_count);
  // Wrong logits come first: they may be why the rest went wrong.
  if (const auto mismatch = schedule.rig().compare()) {
    return where + "call " + std::to_string(mismatch->when) + ": " + mismatch->text;
  }
  if (problem.empty() && !schedule.rig().texts().has_same_notes(plain.rig().texts())) {
    problem = "logits differ from those of plain memory";
  }
  if (problem.empty()) problem = schedule.drain();
  return problem.empty() ? "" : where + problem;
}

std::vector<const char*> must_happen_on_device(HybridTier tier) {
  if (tier == HybridTier::Disk) {
    return {"restart",
            "tokens found on disk",
            "pages read of a full",
            "pages read of a compressed",
            "pages read of a window",
            "pages read of a ring",
            "pages read of a snapshot"};
  }
  std::vector<const char*> names = {"logits compared",
                                    "admit with a partial hit",
                                    "admit with a replay",
                                    "snapshots restored of a snapshot",
                                    "snapshots restored of a ring",
                                    "state reset",
                                    "state forked",
                                    "rewind over a recurrent state",
                                    "rewind over a ring",
                                    "rewind over a compressor",
                                    "fork inside a page",
                                    "drafts rejected",
                                    "abort",
                                    "copies",
                                    "finish with steps in flight"};
  if (tier == HybridTier::Host) {
    names.insert(names.end(),
                 {"pages loaded of a full", "pages loaded of a compressed", "pages loaded of a window",
                  "pages loaded of a ring", "pages loaded of a snapshot", "step planned while pages arrive",
                  "snapshot waited for", "pages came for steps in flight"});
  }
  return names;
}

}  // namespace quire::testing
