// SPDX-License-Identifier: Apache-2.0
//
// Plans of a real cache, brought to a device that does things late and in any order.
#include "quire/device_plan_buffer.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/host_kernels.h"
#include "testing/fake_device.h"
#include "tests/gpu/plan_script.h"

namespace quire::testing {
namespace {

class DevicePlanBufferTest : public ::testing::Test {
 protected:
  [[nodiscard]] DevicePlanBufferConfig config() {
    return {.device = &device_,
            .plan_bytes_max = 4'096,
            .upload_count_max = 2,
            .tables = {{.rows = PlanScript::kSequences, .row_columns = PlanScript::kColumns}},
            .graph_deltas_max = 4};
  }
  void SetUp() override { stream_ = device_.create_stream(StreamPriority::High).value(); }
  void TearDown() override {
    device_.destroy_stream(stream_);
    EXPECT_EQ(device_.leak_count(), 0U);
  }

  FakeDevice device_;
  DeviceStream stream_;
};

template <typename T>
std::vector<std::byte> bytes_of(std::span<const T> array) {
  const std::span<const std::byte> bytes = std::as_bytes(array);
  return {bytes.begin(), bytes.end()};
}

TEST_F(DevicePlanBufferTest, EveryArrayIsOnTheDeviceAtTheSamePlace) {
  for (const PageTables page_tables : {PageTables::Rows, PageTables::Csr, PageTables::Block}) {
    PlanScript script(page_tables);
    const auto buffer = DevicePlanBuffer::create(config()).value();
    const std::int64_t* slots_place = nullptr;
    for (std::uint32_t i = 0; i < PlanScript::kStepCount; ++i) {
      const AttentionPlan& plan = script.next();
      const std::uint64_t copied = device_.copied_bytes();
      const UploadedPlan uploaded = buffer->try_upload(plan, stream_).value().value();
      EXPECT_GE(device_.copied_bytes() - copied, plan.staging.size());
      ASSERT_TRUE(device_.synchronize(stream_).has_value());
      const auto expect_same = [&](const auto& array) {
        EXPECT_EQ(bytes_of(uploaded.on_device(array)), bytes_of(array));
      };
      const GroupPlan& group = plan.groups[0];
      expect_same(plan.staging);
      expect_same(plan.query_positions);
      expect_same(group.append_slots);
      expect_same(group.levels[0].page_indptr);
      expect_same(group.deltas);
      expect_same(group.page_indices);
      expect_same(group.block_table);
      expect_same(group.copies);
      // Where a graph looks for it.
      const std::int64_t* const place = uploaded.on_device(group.append_slots).data();
      EXPECT_TRUE(slots_place == nullptr || slots_place == place);
      slots_place = place;
      EXPECT_NE(place, group.append_slots.data());
    }
    EXPECT_GT(script.copy_count(), 0U);
  }
}

TEST_F(DevicePlanBufferTest, UploadsAreOneCopyAndOneEvent) {
  PlanScript script(PageTables::Rows);
  const auto buffer = DevicePlanBuffer::create(config()).value();
  const std::uint64_t calls = device_.call_count();
  ASSERT_TRUE(buffer->try_upload(script.next(), stream_).value().has_value());
  EXPECT_EQ(device_.call_count() - calls, 2U);
  EXPECT_EQ(device_.kernel_count(), 0U);
}

TEST_F(DevicePlanBufferTest, AFullRingIsAnOutcome) {
  PlanScript script(PageTables::Csr);
  DevicePlanBufferConfig settings = config();
  settings.tables.clear();
  const auto buffer = DevicePlanBuffer::create(settings).value();
  device_.hold(true);
  const AttentionPlan& plan = script.next();
  EXPECT_TRUE(buffer->try_upload(plan, stream_).value().has_value());
  EXPECT_TRUE(buffer->try_upload(plan, stream_).value().has_value());
  EXPECT_FALSE(buffer->try_upload(plan, stream_).value().has_value());
  device_.drain();
  EXPECT_TRUE(buffer->try_upload(plan, stream_).value().has_value());
  EXPECT_TRUE(buffer->try_upload(plan, stream_).value().has_value());
  EXPECT_FALSE(buffer->try_upload(plan, stream_).value().has_value());
  device_.hold(false);
}

TEST_F(DevicePlanBufferTest, ThePlansMemoryIsTheCachesAgainAtOnce) {
  PlanScript script(PageTables::Csr);
  DevicePlanBufferConfig settings = config();
  settings.tables.clear();
  const auto buffer = DevicePlanBuffer::create(settings).value();
  device_.hold(true);
  const AttentionPlan plan = script.next();
  const std::vector<std::byte> content = bytes_of(plan.staging);
  const UploadedPlan uploaded = buffer->try_upload(plan, stream_).value().value();
  const std::span<const std::byte> on_device = uploaded.on_device(plan.staging);
  for (int i = 0; i < 6; ++i) (void)script.next();  // more than there are staging buffers
  device_.drain();
  EXPECT_EQ(bytes_of(on_device), content);
  device_.hold(false);
}

TEST_F(DevicePlanBufferTest, TablesFollowThePlans) {
  for (const bool is_graph : {false, true}) {
    PlanScript script(PageTables::Rows);
    const auto buffer = DevicePlanBuffer::create(config()).value();
    const DeviceTable& table = buffer->table(0);
    std::uint32_t left_out_count = 0;
    for (std::uint32_t i = 0; i < PlanScript::kStepCount; ++i) {
      const AttentionPlan& plan = script.next();
      const UploadedPlan uploaded = buffer->try_upload(plan, stream_).value().value();
      const bool from_graph = is_graph && uploaded.has_graph_deltas();
      left_out_count += uploaded.has_graph_deltas() ? 0 : 1;
      EXPECT_EQ(uploaded.has_graph_deltas(), plan.groups[0].deltas.size() <= 4);
      ASSERT_TRUE(device_.synchronize(stream_).has_value());
      ApplyDeltasParams params = from_graph ? buffer->graph_deltas_of(0) : buffer->deltas_of(plan, uploaded, 0);
      if (from_graph) {
        ASSERT_EQ(params.deltas.size(), 4U);
        // The kernel leaves out what the twin would stop at.
        const std::size_t count = plan.groups[0].deltas.size();
        for (const PageDelta& padding : params.deltas.subspan(count)) EXPECT_EQ(padding.row, -1);
        params.deltas = params.deltas.first(count);
      }
      apply_deltas_on_host(params);
      for (const AttentionPlanEntry& entry : plan.entries) {
        for (std::size_t column = 0; column < entry.pages.size(); ++column) {
          EXPECT_EQ(table.pages[(entry.state_slot * std::size_t{table.row_columns}) + column],
                    static_cast<std::int32_t>(entry.pages[column].value));
        }
      }
    }
    EXPECT_GT(left_out_count, 0U);
    EXPECT_LT(left_out_count, PlanScript::kStepCount);
  }
}

TEST_F(DevicePlanBufferTest, WhatDoesNotFitIsRefused) {
  DevicePlanBufferConfig settings = config();
  settings.plan_bytes_max = 64;
  PlanScript script(PageTables::Rows);
  const AttentionPlan& plan = script.next();
  const auto buffer = DevicePlanBuffer::create(settings).value();
  const Result<std::optional<UploadedPlan>> refused = buffer->try_upload(plan, stream_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(refused.error().message.find("plan_bytes_max is 64"), std::string::npos) << refused.error().message;

  settings = config();
  settings.tables.push_back({.rows = 1, .row_columns = 1});
  const auto of_two_groups = DevicePlanBuffer::create(settings).value();
  EXPECT_EQ(of_two_groups->try_upload(plan, stream_).error().code, ErrorCode::InvalidArgument);
}

TEST_F(DevicePlanBufferTest, AConfigurationSaysWhatIsWrongWithIt) {
  const auto code_of = [](const DevicePlanBufferConfig& settings) {
    return DevicePlanBuffer::create(settings).error().code;
  };
  DevicePlanBufferConfig settings = config();
  settings.device = nullptr;
  EXPECT_EQ(code_of(settings), ErrorCode::InvalidArgument);
  settings = config();
  settings.plan_bytes_max = 0;
  EXPECT_EQ(code_of(settings), ErrorCode::InvalidArgument);
  settings = config();
  settings.upload_count_max = 0;
  EXPECT_EQ(code_of(settings), ErrorCode::InvalidArgument);
  settings = config();
  settings.tables[0].rows = 0;
  EXPECT_EQ(code_of(settings), ErrorCode::InvalidArgument);
  settings = config();
  settings.plan_bytes_max = UINT64_MAX / 2;
  EXPECT_EQ(code_of(settings), ErrorCode::InvalidArgument);
}

TEST_F(DevicePlanBufferTest, AFailingDeviceIsReportedAndNothingIsLost) {
  // While it is made: every call may be the one that fails.
  const std::uint64_t before = device_.call_count();
  (void)DevicePlanBuffer::create(config()).value();
  const std::uint64_t call_count = device_.call_count() - before;
  for (std::uint64_t i = 0; i < call_count; ++i) {
    device_.fail_call_after(i);
    EXPECT_FALSE(DevicePlanBuffer::create(config()).has_value()) << i;
    EXPECT_EQ(device_.leak_count(), 1U) << i;  // the stream
  }
  // While it is used.
  PlanScript script(PageTables::Rows);
  const auto buffer = DevicePlanBuffer::create(config()).value();
  const AttentionPlan& plan = script.next();
  for (std::uint64_t i = 0; i < 2; ++i) {
    device_.fail_call_after(i);
    EXPECT_EQ(buffer->try_upload(plan, stream_).error().code, ErrorCode::Io);
  }
  const UploadedPlan uploaded = buffer->try_upload(plan, stream_).value().value();
  ASSERT_TRUE(device_.synchronize(stream_).has_value());
  EXPECT_EQ(bytes_of(uploaded.on_device(plan.staging)), bytes_of(plan.staging));
}

}  // namespace
}  // namespace quire::testing
