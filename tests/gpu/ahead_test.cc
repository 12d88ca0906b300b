// SPDX-License-Identifier: Apache-2.0
//
// Pages that arrive on a GPU while its streams read them layer by layer (Cache::wait_on). cache_ahead_mover_test has
// the same scene on a device without a GPU, in any order that streams allow.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>

#include "quire/device.h"
#include "tests/cache/ahead_scene.h"

namespace quire::testing {
namespace {

TEST(CacheAheadOnGpu, AStreamFindsEveryLayerOfPagesThatStillArrive) {
  const std::unique_ptr<Device> device = open_cuda_device(0).value();
  for (const SwapPath path : {SwapPath::Whole, SwapPath::Staged, SwapPath::Direct}) {
    for (const ByteLayout layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
      for (const std::uint16_t bands : {std::uint16_t{1}, std::uint16_t{3}, std::uint16_t{6}}) {
        for (const std::uint32_t pages_max : {4U, 64U}) {
          EXPECT_EQ(AheadSceneRun::run(
                        *device,
                        {.path = path, .byte_layout = layout, .layer_bands = bands, .transfer_pages_max = pages_max}),
                    "")
              << "path " << to_string(path) << ", " << bands << " bands, transfers of " << pages_max << " pages";
        }
      }
    }
  }
}

}  // namespace
}  // namespace quire::testing
