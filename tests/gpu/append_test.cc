// SPDX-License-Identifier: Apache-2.0
//
// Appending to pools of drawn shapes, and reading back, beside the host twins. Pools start as random bytes and are
// compared whole.
#include <cstddef>
#include <cstdint>
#include <cstring>
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

TEST(GpuAppend, LeavesOutSlotsThatThePoolDoesNotHave) {
  Random random(2);
  for (int turn = 0; turn < 20; ++turn) {
    const testing::DrawnPool drawn = testing::draw_pool(random);
    const std::int64_t slot_count = testing::slot_count_of(drawn.geometry);
    DeviceArray<std::int64_t> slots(std::vector<std::int64_t>{kNoSlot, slot_count, -2, slot_count + 1,
                                                              std::numeric_limits<std::int64_t>::max(),
                                                              std::numeric_limits<std::int64_t>::min()});
    const std::vector<std::byte> before = testing::random_bytes(random, drawn.geometry.pool_bytes());
    DeviceBytes pool(before);
    DeviceBytes source(testing::random_bytes(random, 6 * token_bytes_of(drawn.geometry, 0)));
    ASSERT_TRUE(
        run_on_gpu(testing::Launching::Directly, [&](DeviceStream stream) {
          return launch_append(
              {.geometry = &drawn.geometry, .pool = pool.data(), .source = source.data(), .slots = slots.span()},
              stream);
        }).has_value());
    ASSERT_TRUE(pool.read() == before) << drawn.name;
  }
}

// A captured launch does what is in its arrays when it runs, not when it was captured.
TEST(GpuAppend, AGraphAppendsAtTheSlotsOfItsRun) {
  Random random(3);
  const testing::DrawnPool drawn = testing::draw_pool(random);
  const std::uint64_t token_bytes = token_bytes_of(drawn.geometry, 0);
  const std::vector<std::byte> row = testing::random_bytes(random, token_bytes);
  const std::vector<std::byte> before = testing::random_bytes(random, drawn.geometry.pool_bytes());
  std::vector<std::byte> expected = before;
  const std::vector<std::int64_t> slot{testing::slot_count_of(drawn.geometry) - 1};
  append_on_host({.geometry = &drawn.geometry, .pool = expected.data(), .source = row.data(), .slots = slot});
  DeviceBytes pool(before);
  DeviceBytes source(row);
  DeviceArray<std::int64_t> slots(std::vector<std::int64_t>{kNoSlot});
  const auto launch = [&](DeviceStream stream) {
    return launch_append(
        {.geometry = &drawn.geometry, .pool = pool.data(), .source = source.data(), .slots = slots.span()}, stream);
  };
  ASSERT_TRUE(run_on_gpu(testing::Launching::FromAGraph, launch, 3, [&](std::uint32_t run) {
                EXPECT_TRUE(pool.read() == before);
                if (run == 2) slots.write(slot);
              }).has_value());
  EXPECT_TRUE(pool.read() == expected);
}

TEST(GpuReadRows, GivesWhatTheHostGives) {
  Random random(4);
  for (int turn = 0; turn < 100; ++turn) {
    const testing::DrawnPool drawn = testing::draw_pool(random);
    const PoolGeometry& geometry = drawn.geometry;
    const std::uint32_t component = random.below(geometry.strides().component_count);
    const std::uint64_t token_bytes = token_bytes_of(geometry, component);
    const std::uint64_t gap = random.below(3) == 0 ? 128 : random.below(2) * (1 + random.below(9));
    std::vector<std::int64_t> slots = testing::draw_slots(random, testing::slot_count_of(geometry));
    const std::vector<std::byte> content = testing::random_bytes(random, geometry.pool_bytes());
    const std::vector<std::byte> before = testing::random_bytes(random, slots.size() * (token_bytes + gap));
    std::vector<std::byte> expected = before;
    ReadRowsParams params{.geometry = &geometry,
                          .pool = content.data(),
                          .layer_index = random.below(geometry.page().layer_count()),
                          .component_index = component,
                          .target = expected.data(),
                          .target_token_bytes = gap == 0 ? 0 : token_bytes + gap,
                          .slots = slots};
    read_rows_on_host(params);
    // What the pool does not have reads as zeros too.
    for (std::int64_t& slot : slots) {
      if (slot == kNoSlot && random.below(2) == 0) slot = testing::slot_count_of(geometry) + random.below(9);
    }
    DeviceBytes pool(content, random.below(4) == 0 ? 1 + random.below(17) : 0);
    DeviceBytes target(before, random.below(4) == 0 ? 1 + random.below(17) : 0);
    DeviceArray<std::int64_t> device_slots(slots);
    params.pool = pool.data();
    params.target = target.data();
    params.slots = device_slots.span();
    for (const testing::Launching launching : kLaunchings) {
      target.write(before);
      const Status done = run_on_gpu(launching, [&](DeviceStream stream) { return launch_read_rows(params, stream); });
      ASSERT_TRUE(done.has_value()) << done.error().message;
      ASSERT_TRUE(target.read() == expected) << "turn " << turn << ", " << drawn.name << ", gap " << gap;
      ASSERT_TRUE(pool.read() == content);
    }
  }
}

// As many tokens as a long prompt has, in a pool that no cache holds.
TEST(GpuAppend, ManyTokensLandWhereTheHostPutsThem) {
  const auto layout = ModelLayout::simple({.layers = 2, .kv_heads = 8, .head_dim = 128});
  ASSERT_TRUE(layout);
  const auto page = PageGeometry::create(layout->groups()[0], {.page_tokens = 16});
  ASSERT_TRUE(page);
  for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
    const auto geometry = PoolGeometry::create(*page, {.page_count = 1500, .byte_layout = byte_layout});
    ASSERT_TRUE(geometry);
    Random random(3);
    constexpr std::uint32_t kTokens = 16 * 1400;
    std::vector<std::byte> source(std::size_t{kTokens} * 2048);
    for (std::size_t i = 0; i < source.size(); i += 8) {
      const std::uint64_t word = random.next();
      std::memcpy(source.data() + i, &word, sizeof(word));
    }
    std::vector<std::int64_t> slots;
    for (std::uint32_t i = 0; i < kTokens; ++i) slots.push_back((std::int64_t{i} * 7919) % (16 * 1500));
    std::vector<std::byte> pool(geometry->pool_bytes());
    DeviceBytes on_gpu(pool);
    DeviceBytes source_on_gpu(source);
    AppendParams params{.geometry = &*geometry, .pool = pool.data(), .layer_index = 1, .component_index = 1};
    params.source = source.data();
    params.slots = slots;
    append_on_host(params);
    params.pool = on_gpu.data();
    params.source = source_on_gpu.data();
    DeviceArray<std::int64_t> device_slots(slots);
    params.slots = device_slots.span();
    ASSERT_TRUE(
        run_on_gpu(testing::Launching::Directly, [&](DeviceStream stream) { return launch_append(params, stream); }));
    EXPECT_EQ(on_gpu.read(), pool);
  }
}

}  // namespace
}  // namespace quire
