// SPDX-License-Identifier: Apache-2.0
//
// Appending to pools of drawn shapes, and reading back, beside the host twins. Pools start as random bytes and are
// compared whole.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "quire/device_kernels.h"
#include "quire/host_kernels.h"
#include "quire/plan.h"
#include "testing/seeded_run.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/geometries.h"

namespace quire {
namespace {

using testing::DeviceArray;
using testing::DeviceBytes;
using testing::kLaunchings;
using testing::Random;
using testing::run_on_gpu;

// Bytes of a token of a component, all heads.
std::uint64_t token_bytes_of(const PoolGeometry& geometry, std::uint32_t component) {
  return geometry.page().heads_on_rank(component, 0).count * geometry.page().components()[component].head_bytes;
}

TEST(GpuAppend, WritesWhatTheHostWrites) {
  Random random(1);
  for (int turn = 0; turn < 150; ++turn) {
    const testing::DrawnPool drawn = testing::draw_pool(random);
    const PoolGeometry& geometry = drawn.geometry;
    const std::uint32_t component = random.below(geometry.strides().component_count);
    const std::uint64_t token_bytes = token_bytes_of(geometry, component);
    // Dense, with a gap of a whole number of lines, and with an odd one.
    const std::uint64_t gap = random.below(3) == 0 ? 128 : random.below(2) * (1 + random.below(9));
    const std::vector<std::int64_t> slots = testing::draw_slots(random, testing::slot_count_of(geometry));
    const std::vector<std::byte> source = testing::random_bytes(random, slots.size() * (token_bytes + gap));
    const std::vector<std::byte> before = testing::random_bytes(random, geometry.pool_bytes());
    std::vector<std::byte> expected = before;
    AppendParams params{.geometry = &geometry,
                        .pool = expected.data(),
                        .layer_index = random.below(geometry.page().layer_count()),
                        .component_index = component,
                        .source = source.data(),
                        .source_token_bytes = gap == 0 ? 0 : token_bytes + gap,
                        .slots = slots};
    append_on_host(params);

    DeviceBytes pool(before, random.below(4) == 0 ? 1 + random.below(17) : 0);
    DeviceBytes device_source(source, random.below(4) == 0 ? 1 + random.below(17) : 0);
    DeviceArray<std::int64_t> device_slots(slots);
    params.pool = pool.data();
    params.source = device_source.data();
    params.slots = device_slots.span();
    for (const testing::Launching launching : kLaunchings) {
      pool.write(before);
      ASSERT_TRUE(
          run_on_gpu(launching, [&](DeviceStream stream) { return launch_append(params, stream); }).has_value());
      ASSERT_TRUE(pool.read() == expected) << "turn " << turn << ", " << drawn.name << ", gap " << gap;
    }
  }
}

}  // namespace
}  // namespace quire
