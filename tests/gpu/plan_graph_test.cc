// SPDX-License-Identifier: Apache-2.0
//
// Steps of a real cache on a GPU, launched one by one and from a graph that was captured in the first of them, beside
// the host: the same K and V appended, the same page tables, the same keys read through them.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/device.h"
#include "quire/device_kernels.h"
#include "quire/device_plan_buffer.h"
#include "quire/host_kernels.h"
#include "testing/seeded_run.h"
#include "tests/gpu/device_buffer.h"
#include "tests/gpu/geometries.h"
#include "tests/gpu/list_slots.h"
#include "tests/gpu/plan_script.h"

namespace quire::testing {
namespace {

constexpr PlanShape kShape = PlanScript::kShape;
constexpr std::uint32_t kLayers = 2;
constexpr std::uint32_t kComponents = 2;
constexpr std::size_t kListed = std::size_t{kShape.entries} * PlanScript::kColumns;
constexpr std::size_t kKeys = std::size_t{kShape.entries} * PlanScript::kContextTokens;

/// K or V of a step's tokens, for each layer and component.
using StepRows = std::vector<std::vector<std::byte>>;

std::uint64_t token_bytes_of(const PoolGeometry& geometry, std::uint32_t component) {
  return geometry.page().group().components[component].heads * geometry.page().components()[component].head_bytes;
}

/// What there is to compare of a step.
struct StepOutcome {
  std::vector<std::int64_t> slots;  // of all keys
  StepRows keys;                    // their rows
  friend bool operator==(const StepOutcome&, const StepOutcome&) = default;
};

class GpuMachine {
 public:
  GpuMachine(Device& device, PageTables page_tables, Launching launching, std::span<const std::byte> pool)
      : device_(device),
        page_tables_(page_tables),
        launching_(launching),
        geometry_(PlanScript::geometry()),
        stream_(device.create_stream(StreamPriority::High).value()),
        pool_(pool),
        page_indices_(std::vector<std::int32_t>(kListed, -1)),
        slots_(std::vector<std::int64_t>(kKeys, -1)) {
    DevicePlanBufferConfig config{.device = &device, .plan_bytes_max = 8'192, .upload_count_max = 2};
    if (page_tables == PageTables::Rows) {
      config.tables = {{.rows = PlanScript::kSequences, .row_columns = PlanScript::kColumns}};
      config.graph_deltas_max = 4;
    }
    plans_ = DevicePlanBuffer::create(config).value();
    for (std::uint32_t i = 0; i < kLayers * kComponents; ++i) {
      const std::uint64_t token_bytes = token_bytes_of(geometry_, i % kComponents);
      sources_.push_back(std::make_unique<DeviceBytes>(std::vector<std::byte>(kShape.tokens * token_bytes)));
      keys_.push_back(std::make_unique<DeviceBytes>(std::vector<std::byte>(kKeys * token_bytes)));
    }
  }
  ~GpuMachine() {
    graph_.reset();
    plans_.reset();
    device_.destroy_stream(stream_);
  }
  GpuMachine(const GpuMachine&) = delete;
  GpuMachine& operator=(const GpuMachine&) = delete;

  StepOutcome run(const AttentionPlan& plan, const StepRows& rows) {
    for (std::size_t i = 0; i < rows.size(); ++i) sources_[i]->write(rows[i]);
    const UploadedPlan uploaded = plans_->try_upload(plan, stream_).value().value();
    const GroupPlan& group = plan.groups[0];
    const bool is_graph = launching_ == Launching::FromAGraph;
    // Before a graph, since their number differs from plan to plan.
    if (page_tables_ == PageTables::Rows && !(is_graph && uploaded.has_graph_deltas())) {
      EXPECT_TRUE(launch_apply_deltas(plans_->deltas_of(plan, uploaded, 0), stream_).has_value());
      ++deltas_launched_;
    }
    EXPECT_TRUE(launch_copy_pages(
                    {.geometry = &geometry_, .pool = pool_.data(), .copies = uploaded.on_device(group.copies)}, stream_)
                    .has_value());
    if (is_graph) {
      if (!graph_) {
        graph_ = std::make_unique<GpuGraph>(stream_,
                                            [&](DeviceStream stream) { return launch_step(plan, uploaded, stream); });
      }
      graph_->launch(stream_);
    } else {
      const Status launched = launch_step(plan, uploaded, stream_);
      EXPECT_TRUE(launched.has_value()) << launched.error().message;
    }
    EXPECT_TRUE(device_.synchronize(stream_).has_value());
    StepOutcome outcome{.slots = slots_.read(), .keys = {}};
    for (const auto& keys : keys_) outcome.keys.push_back(keys->read());
    return outcome;
  }

  [[nodiscard]] std::vector<std::byte> pool() const { return pool_.read(); }
  [[nodiscard]] std::uint32_t deltas_launched() const { return deltas_launched_; }

 private:
  // What is captured: every address and length in it follows from the shape.
  Status launch_step(const AttentionPlan& plan, const UploadedPlan& uploaded, DeviceStream stream) {
    const GroupPlan& group = plan.groups[0];
    const CascadeLevel& level = group.levels[0];
    if (page_tables_ == PageTables::Rows && launching_ == Launching::FromAGraph) {
      QUIRE_TRY(launch_apply_deltas(plans_->graph_deltas_of(0), stream));
    }
    for (std::uint32_t i = 0; i < kLayers * kComponents; ++i) {
      QUIRE_TRY(launch_append({.geometry = &geometry_,
                               .pool = pool_.data(),
                               .layer_index = i / kComponents,
                               .component_index = i % kComponents,
                               .source = sources_[i]->data(),
                               .slots = uploaded.on_device(group.append_slots)},
                              stream));
    }
    ListSlotsParams listing{.entries = kShape.entries,
                            .keys_max = PlanScript::kContextTokens,
                            .page_tokens = PlanScript::kPageTokens,
                            .seq_lens = uploaded.on_device(plan.seq_lens).data(),
                            .slots = slots_.data()};
    switch (page_tables_) {
      case PageTables::Rows: {
        const DeviceTable& table = plans_->table(0);
        QUIRE_TRY(launch_list_pages({.table = table.pages,
                                     .rows = table.rows,
                                     .row_columns = table.row_columns,
                                     .slice_rows = uploaded.on_device(level.rows),
                                     .first_columns = uploaded.on_device(level.first_columns),
                                     .page_indptr = uploaded.on_device(level.page_indptr),
                                     .page_indices = page_indices_.mutable_span()},
                                    stream));
        listing.page_indptr = uploaded.on_device(level.page_indptr).data();
        listing.page_indices = page_indices_.data();
        break;
      }
      case PageTables::Csr:
        listing.page_indptr = uploaded.on_device(level.page_indptr).data();
        listing.page_indices = uploaded.on_device(group.page_indices).data();
        break;
      case PageTables::Block:
        listing.page_indices = uploaded.on_device(group.block_table).data();
        listing.columns = kShape.columns;
        break;
    }
    QUIRE_TRY(launch_list_slots(listing, stream));
    for (std::uint32_t i = 0; i < kLayers * kComponents; ++i) {
      QUIRE_TRY(launch_read_rows({.geometry = &geometry_,
                                  .pool = pool_.data(),
                                  .layer_index = i / kComponents,
                                  .component_index = i % kComponents,
                                  .target = keys_[i]->data(),
                                  .slots = slots_.span()},
                                 stream));
    }
    return {};
  }

  Device& device_;
  const PageTables page_tables_;
  const Launching launching_;
  const PoolGeometry geometry_;
  const DeviceStream stream_;
  DeviceBytes pool_;
  DeviceArray<std::int32_t> page_indices_;
  DeviceArray<std::int64_t> slots_;
  std::unique_ptr<DevicePlanBuffer> plans_;
  std::vector<std::unique_ptr<DeviceBytes>> sources_;  // by layer and component
  std::vector<std::unique_ptr<DeviceBytes>> keys_;
  std::unique_ptr<GpuGraph> graph_;
  std::uint32_t deltas_launched_ = 0;
};

/// The same by the host twins, from the plan where the cache has it.
class HostMachine {
 public:
  HostMachine(PageTables page_tables, std::vector<std::byte> pool)
      : page_tables_(page_tables),
        geometry_(PlanScript::geometry()),
        pool_(std::move(pool)),
        table_(std::size_t{PlanScript::kSequences} * PlanScript::kColumns) {}

  StepOutcome run(const AttentionPlan& plan, const StepRows& rows) {
    const GroupPlan& group = plan.groups[0];
    const CascadeLevel& level = group.levels[0];
    apply_deltas_on_host({.table = table_.data(),
                          .rows = PlanScript::kSequences,
                          .row_columns = PlanScript::kColumns,
                          .deltas = group.deltas});
    copy_pages_on_host({.geometry = &geometry_, .pool = pool_.data(), .copies = group.copies});
    for (std::uint32_t i = 0; i < kLayers * kComponents; ++i) {
      append_on_host({.geometry = &geometry_,
                      .pool = pool_.data(),
                      .layer_index = i / kComponents,
                      .component_index = i % kComponents,
                      .source = rows[i].data(),
                      .slots = group.append_slots});
    }
    std::vector<std::int32_t> page_indices(kListed, -1);
    StepOutcome outcome{.slots = std::vector<std::int64_t>(kKeys), .keys = {}};
    ListSlotsParams listing{.entries = kShape.entries,
                            .keys_max = PlanScript::kContextTokens,
                            .page_tokens = PlanScript::kPageTokens,
                            .seq_lens = plan.seq_lens.data(),
                            .page_indptr = level.page_indptr.data(),
                            .page_indices = group.page_indices.data(),
                            .slots = outcome.slots.data()};
    if (page_tables_ == PageTables::Rows) {
      list_pages_on_host({.table = table_.data(),
                          .rows = PlanScript::kSequences,
                          .row_columns = PlanScript::kColumns,
                          .slice_rows = level.rows,
                          .first_columns = level.first_columns,
                          .page_indptr = level.page_indptr,
                          .page_indices = page_indices});
      listing.page_indices = page_indices.data();
    } else if (page_tables_ == PageTables::Block) {
      listing.page_indptr = nullptr;
      listing.page_indices = group.block_table.data();
      listing.columns = kShape.columns;
    }
    list_slots_on_host(listing);
    for (std::uint32_t i = 0; i < kLayers * kComponents; ++i) {
      auto& keys = outcome.keys.emplace_back(kKeys * token_bytes_of(geometry_, i % kComponents));
      read_rows_on_host({.geometry = &geometry_,
                         .pool = pool_.data(),
                         .layer_index = i / kComponents,
                         .component_index = i % kComponents,
                         .target = keys.data(),
                         .slots = outcome.slots});
    }
    return outcome;
  }

  [[nodiscard]] const std::vector<std::byte>& pool() const { return pool_; }

 private:
  const PageTables page_tables_;
  const PoolGeometry geometry_;
  std::vector<std::byte> pool_;
  std::vector<std::int32_t> table_;
};

class PlanGraph : public ::testing::TestWithParam<PageTables> {};

TEST_P(PlanGraph, ReplayedOnLaterPlansDoesWhatLaunchingThemDoes) {
  const std::unique_ptr<Device> device = open_cuda_device(0).value();
  Random random(7);
  const PoolGeometry geometry = PlanScript::geometry();
  const std::vector<std::byte> pool = random_bytes(random, geometry.pool_bytes());
  PlanScript script(GetParam());
  GpuMachine captured(*device, GetParam(), Launching::FromAGraph, pool);
  GpuMachine launched(*device, GetParam(), Launching::Directly, pool);
  HostMachine host(GetParam(), pool);
  for (std::uint32_t step = 0; step < PlanScript::kStepCount; ++step) {
    const AttentionPlan& plan = script.next();
    StepRows rows;
    for (std::uint32_t i = 0; i < kLayers * kComponents; ++i) {
      rows.push_back(random_bytes(random, kShape.tokens * token_bytes_of(geometry, i % kComponents)));
    }
    const StepOutcome expected = host.run(plan, rows);
    EXPECT_EQ(launched.run(plan, rows), expected) << "step " << step;
    EXPECT_EQ(captured.run(plan, rows), expected) << "step " << step;
  }
  EXPECT_EQ(launched.pool(), host.pool());
  EXPECT_EQ(captured.pool(), host.pool());
  EXPECT_GT(script.copy_count(), 0U);
  if (GetParam() == PageTables::Rows) {
    // Mostly from the graph, but for the plans that have more of them than it takes.
    EXPECT_EQ(launched.deltas_launched(), PlanScript::kStepCount);
    EXPECT_GT(captured.deltas_launched(), 0U);
    EXPECT_LT(captured.deltas_launched(), PlanScript::kStepCount / 2);
  }
}

std::string name_of(const ::testing::TestParamInfo<PageTables>& tables) {
  constexpr const char* kNames[] = {"Rows", "Csr", "Block"};
  return kNames[static_cast<std::size_t>(tables.param)];
}
INSTANTIATE_TEST_SUITE_P(AllTables, PlanGraph, ::testing::Values(PageTables::Rows, PageTables::Csr, PageTables::Block),
                         name_of);

}  // namespace
}  // namespace quire::testing
