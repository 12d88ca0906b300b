// SPDX-License-Identifier: Apache-2.0
#include "device_step.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "device_exchange.h"
#include "quire/host_kernels.h"

namespace tiny_engine {

using quire::ErrorCode;
using quire::fail;
using quire::Result;
using quire::Status;

namespace {

constexpr std::size_t kProblemDoubles = 8;  // room of the problem, which is one number
constexpr std::size_t kSlotPlaces = 2;

std::string text_of(const Status& status) {
  return status ? "" : status.error().message;
}

const char* text_of(PagedProblem problem) {
  switch (problem) {
    case PagedProblem::None:
      return "";
    case PagedProblem::NoEntry:
      return "a query is in no entry";
    case PagedProblem::NoSlice:
      return "a query is in no slice of a level";
    case PagedProblem::NoNode:
      return "an entry's tree nodes lie outside tree_nodes";
    case PagedProblem::NoQuery:
      return "a key is of no query";
    case PagedProblem::NoPage:
      return "a key lies in no page";
    case PagedProblem::NoPosition:
      return "a key has a position that no token has";
    case PagedProblem::NoKey:
      return "a query sees no key, or one beyond seq_lens";
  }
  return "attention had a problem without a name";
}

}  // namespace

AttentionShape attention_shape(const ModelShape& shape, bool keys_rotated) {
  if (shape.attention == AttentionKind::Mla) {
    return {.query_heads = shape.query_heads,
            .kv_heads = 1,
            .key_dim = shape.latent_dim + shape.rope_dim,
            .value_dim = shape.latent_dim,
            .value_component = 0,
            .rope_begin = shape.latent_dim,
            .rope_dim = shape.rope_dim,
            .turns_keys = !keys_rotated,
            .divisor = std::sqrt(static_cast<double>(shape.head_dim + shape.rope_dim))};
  }
  return {.query_heads = shape.query_heads,
          .kv_heads = shape.kv_heads,
          .key_dim = shape.head_dim,
          .value_dim = shape.head_dim,
          .value_component = 1,
          .rope_begin = 0,
          .rope_dim = shape.head_dim,
          .turns_keys = !keys_rotated,
          .divisor = std::sqrt(static_cast<double>(shape.head_dim))};
}

/// What goes to the device and comes back:
///
///     problem │ queries │ rows of component 0 │ of component 1 │ mixed │ turns │ slots, twice
///
/// The slots are 64-bit numbers, the problem is one of 32 bits, all else is doubles.
struct DeviceStep::Memory : DeviceExchange {
  using DeviceExchange::DeviceExchange;
  // Where things begin.
  std::size_t queries = 0;
  std::vector<std::size_t> rows;
  std::size_t mixed = 0;
  std::size_t turns = 0;
  std::size_t slots = 0;
};

DeviceStep::DeviceStep(const DeviceStepConfig& config)
    : config_(config), shape_(attention_shape(config.shape, config.keys_rotated)) {
  for (const quire::ComponentStrides& component : config.pool.geometry.page().components()) {
    row_dims_.push_back(static_cast<std::uint32_t>(component.head_bytes / sizeof(double)));
  }
}

DeviceStep::~DeviceStep() = default;

Result<std::unique_ptr<DeviceStep>> DeviceStep::create(const DeviceStepConfig& config) {
  std::unique_ptr<DeviceStep> step(new DeviceStep(config));
  QUIRE_TRY(step->open());
  return step;
}

Status DeviceStep::open() {
  if (shape_.key_dim > kPagedDimMax || row_dims_.size() > 2) {
    return fail(ErrorCode::Unsupported, "attention on a device takes rows of " + std::to_string(kPagedDimMax) +
                                            " numbers and two components at most");
  }
  const std::size_t tokens = config_.step_tokens_max;
  memory_ = std::make_unique<Memory>(*config_.device);
  std::size_t end = kProblemDoubles;
  const auto place = [&end](std::size_t count) { return std::exchange(end, end + count); };
  memory_->queries = place(tokens * shape_.query_heads * shape_.key_dim);
  for (const std::uint32_t dim : row_dims_) memory_->rows.push_back(place(tokens * shape_.kv_heads * dim));
  memory_->mixed = place(tokens * shape_.query_heads * shape_.value_dim);
  memory_->turns = place(std::size_t{config_.context_tokens_max} * shape_.rope_dim);
  memory_->slots = place(kSlotPlaces * tokens);
  QUIRE_TRY(memory_->open(end));
  QUIRE_TRY(fill_turns());

  quire::DevicePlanBufferConfig plans{.device = config_.device, .plan_bytes_max = config_.plan_bytes_max};
  if (config_.page_tables == quire::PageTables::Rows) {
    plans.tables = {{.rows = config_.sequence_count_max, .row_columns = config_.row_columns}};
  }
  QUIRE_TRY_ASSIGN(plans_, quire::DevicePlanBuffer::create(plans));
  return {};
}

// The angles are those of rotate() in arithmetic.h.
Status DeviceStep::fill_turns() {
  const double ratio = std::pow(config_.shape.rope_base, -2.0 / static_cast<double>(shape_.rope_dim));
  auto* turns = memory_->on_host<double>(memory_->turns);
  for (std::uint32_t position = 0; position < config_.context_tokens_max; ++position) {
    double angle = position;
    for (std::uint32_t i = 0; i + 1 < shape_.rope_dim; i += 2, angle *= ratio) {
      turns[i] = std::cos(angle);
      turns[i + 1] = std::sin(angle);
    }
    turns += shape_.rope_dim;
  }
  QUIRE_TRY(memory_->bring(memory_->turns, std::size_t{config_.context_tokens_max} * shape_.rope_dim));
  return wait();
}

Status DeviceStep::wait() {
  return memory_->wait();
}

Status DeviceStep::upload(const DevicePlan& plan) {
  // All that is looked at of a plan are its bytes and its deltas.
  const quire::GroupPlan group{.deltas = plan.read(plan.groups.front().deltas)};
  const quire::AttentionPlan staged{.groups = {&group, 1}, .staging = plan.staging()};
  QUIRE_TRY_ASSIGN(std::optional<quire::UploadedPlan> uploaded, plans_->try_upload(staged, memory_->stream()));
  if (!uploaded) {
    QUIRE_TRY(wait());
    QUIRE_TRY_ASSIGN(uploaded, plans_->try_upload(staged, memory_->stream()));
  }
  if (!uploaded) return fail(ErrorCode::Unavailable, "no plan can be uploaded, though nothing is on its way");
  uploaded_ = *uploaded;
  uploaded_staging_ = plan.staging().data();
  return {};
}

std::string DeviceStep::prepare(const DevicePlan& plan) {
  if (plan.groups.size() != 1) return "this engine's model has one cache group";
  const StagedGroup& group = plan.groups.front();
  std::string problem = check_deltas(config_.sequence_count_max, config_.row_columns, plan.read(group.deltas));
  if (problem.empty()) problem = check_moves(config_.pool, plan.read(group.moves), plan.read(group.move_indptr));
  if (problem.empty()) problem = check_copies(config_.pool, plan.read(group.copies));
  return problem.empty() ? text_of(apply_plan(plan)) : problem;
}

Status DeviceStep::apply_plan(const DevicePlan& plan) {
  const StagedGroup& group = plan.groups.front();
  const quire::DeviceStream stream = memory_->stream();
  QUIRE_TRY(upload(plan));
  if (config_.page_tables == quire::PageTables::Rows && group.deltas.count > 0) {
    const quire::DeviceTable& table = plans_->table(0);
    QUIRE_TRY(config_.kernels->apply_deltas({.table = table.pages,
                                             .rows = table.rows,
                                             .row_columns = table.row_columns,
                                             .deltas = on_device(plan, group.deltas)},
                                            stream));
  }
  const quire::PoolGeometry* const geometry = &config_.pool.geometry;
  if (group.moves.count > 0) {
    QUIRE_TRY(config_.kernels->move_tokens(
        {.geometry = geometry, .pool = config_.pool.bytes, .moves = on_device(plan, group.moves)}, stream));
  }
  if (group.copies.count > 0) {
    QUIRE_TRY(config_.kernels->copy_pages(
        {.geometry = geometry, .pool = config_.pool.bytes, .copies = on_device(plan, group.copies)}, stream));
  }
  // A step that is aborted has done this much: who comes next may have its pages moved to another tier.
  return wait();
}

std::string DeviceStep::load(std::span<const double> queries, const Rows& rows) {
  token_count_ = queries.size() / (std::size_t{shape_.query_heads} * shape_.key_dim);
  if (token_count_ > config_.step_tokens_max) return "a step has more tokens than there is room for";
  *memory_->on_host<std::int32_t>(0) = 0;
  std::ranges::copy(queries, memory_->on_host<double>(memory_->queries));
  Status status = memory_->bring(0, memory_->queries + queries.size());
  for (std::size_t i = 0; i < rows.size() && status; ++i) {
    std::ranges::copy(rows[i], memory_->on_host<double>(memory_->rows[i]));
    status = memory_->bring(memory_->rows[i], rows[i].size());
  }
  return text_of(status);
}

Result<std::span<const std::int64_t>> DeviceStep::bring_slots(std::span<const std::int64_t> slots, std::size_t place) {
  const std::size_t at = memory_->slots + (place * config_.step_tokens_max);
  std::ranges::copy(slots, memory_->on_host<std::int64_t>(at));
  QUIRE_TRY(memory_->bring(at, slots.size()));
  return std::span<const std::int64_t>(memory_->on_device<std::int64_t>(at), slots.size());
}

Status DeviceStep::append_rows(const PoolMemory& target, std::uint32_t layer_index,
                               std::span<const std::int64_t> slots) {
  for (std::uint32_t component = 0; component < row_dims_.size(); ++component) {
    QUIRE_TRY(config_.kernels->append({.geometry = &target.geometry,
                                       .pool = target.bytes,
                                       .layer_index = layer_index,
                                       .component_index = component,
                                       .source = memory_->on_device<std::byte>(memory_->rows[component]),
                                       .slots = slots},
                                      memory_->stream()));
  }
  return {};
}

std::string DeviceStep::append(const DevicePlan& plan, std::uint32_t layer_index) {
  const StagedArray<std::int64_t>& slots = plan.groups.front().append_slots;
  if (slots.count < token_count_) return "the plan has fewer slots than tokens";
  if (std::string problem = check_slots(config_.pool, plan.read(slots), token_count_); !problem.empty()) return problem;
  if (uploaded_staging_ != plan.staging().data()) {
    if (std::string problem = text_of(upload(plan)); !problem.empty()) return problem;
  }
  return text_of(append_rows(config_.pool, layer_index, on_device(plan, slots).first(token_count_)));
}

std::string DeviceStep::append_to(const PoolMemory& target, std::uint32_t layer_index,
                                  std::span<const std::int64_t> slots) {
  if (std::string problem = check_slots(target, slots, token_count_); !problem.empty()) return problem;
  Status status = wait();  // the pinned place may be another receiver's yet
  if (!status) return text_of(status);
  const Result<std::span<const std::int64_t>> brought = bring_slots(slots.first(token_count_), 0);
  return brought ? text_of(append_rows(target, layer_index, *brought)) : brought.error().message;
}

std::string DeviceStep::send(const PoolMemory& target, std::span<const std::int64_t> local_slots,
                             std::span<const std::int64_t> remote_slots) {
  for (std::size_t i = 0; i < local_slots.size(); ++i) {
    if (!has_slot(config_.pool, local_slots[i]) || !may_write(target, remote_slots[i])) return "a send leaves the pool";
  }
  while (!local_slots.empty()) {
    const std::size_t count = std::min<std::size_t>(local_slots.size(), config_.step_tokens_max);
    if (std::string problem = text_of(send_some(target, local_slots.first(count), remote_slots.first(count)));
        !problem.empty()) {
      return problem;
    }
    local_slots = local_slots.subspan(count);
    remote_slots = remote_slots.subspan(count);
  }
  return "";
}

// Through where a layer's rows lie otherwise.
Status DeviceStep::send_some(const PoolMemory& target, std::span<const std::int64_t> local_slots,
                             std::span<const std::int64_t> remote_slots) {
  QUIRE_TRY_ASSIGN(const std::span<const std::int64_t> local, bring_slots(local_slots, 0));
  QUIRE_TRY_ASSIGN(const std::span<const std::int64_t> remote, bring_slots(remote_slots, 1));
  for (std::uint32_t layer = 0; layer < config_.pool.geometry.page().layer_count(); ++layer) {
    for (std::uint32_t component = 0; component < row_dims_.size(); ++component) {
      QUIRE_TRY(config_.kernels->read_rows({.geometry = &config_.pool.geometry,
                                            .pool = config_.pool.bytes,
                                            .layer_index = layer,
                                            .component_index = component,
                                            .target = memory_->on_device<std::byte>(memory_->rows[component]),
                                            .slots = local},
                                           memory_->stream()));
    }
    QUIRE_TRY(append_rows(target, layer, remote));
  }
  return wait();
}

PagedLevel DeviceStep::level_on_device(const DevicePlan& plan, const StagedLevel& level) const {
  return {.query_indptr = on_device(plan, level.query_indptr).data(),
          .page_indptr = on_device(plan, level.page_indptr).data(),
          .rows = on_device(plan, level.rows).data(),
          .first_columns = on_device(plan, level.first_columns).data(),
          .last_page_tokens = on_device(plan, level.last_page_tokens).data(),
          .window_offsets = on_device(plan, level.window_offsets).data(),
          .sink_tokens = on_device(plan, level.sink_tokens).data(),
          .first_keys = on_device(plan, level.first_keys).data()};
}

std::string DeviceStep::attend(const DevicePlan& plan, const LayerAttention& layer) {
  if (uploaded_staging_ != plan.staging().data()) {
    if (std::string problem = text_of(upload(plan)); !problem.empty()) return problem;
  }
  return text_of(start_attention(plan, layer));
}

Status DeviceStep::start_attention(const DevicePlan& plan, const LayerAttention& layer) {
  const StagedGroup& group = plan.groups.front();
  if (group.levels.size() > kPagedLevelsMax) {
    return fail(ErrorCode::Unsupported,
                "attention on a device has " + std::to_string(kPagedLevelsMax) + " levels at most");
  }
  PagedAttentionParams params{.shape = shape_,
                              .strides = config_.pool.geometry.strides(),
                              .pool = config_.pool.bytes,
                              .layer_index = layer.layer_index,
                              .queries = memory_->on_device<const double>(memory_->queries),
                              .turns = memory_->on_device<const double>(memory_->turns),
                              .position_count = static_cast<std::int32_t>(config_.context_tokens_max),
                              .mixed = memory_->on_device<double>(memory_->mixed),
                              .problem = memory_->on_device<std::int32_t>(0)};
  for (std::size_t i = 0; i < row_dims_.size(); ++i) {
    params.rows[i] = memory_->on_device<const double>(memory_->rows[i]);
    params.row_dims[i] = row_dims_[i];
  }
  PagedPlan& paged = params.plan;
  paged.page_tables = config_.page_tables;
  paged.entry_count = static_cast<std::int32_t>(plan.shape.entries);
  paged.query_count = static_cast<std::int32_t>(token_count_);
  paged.query_positions = on_device(plan, plan.query_positions).data();
  paged.query_indptr = on_device(plan, plan.query_indptr).data();
  paged.seq_lens = on_device(plan, plan.seq_lens).data();
  paged.visible_tokens = on_device(plan, plan.visible_tokens).data();
  paged.tree_indptr = on_device(plan, plan.tree_indptr).data();
  paged.tree_nodes = on_device(plan, plan.tree_nodes).data();
  paged.tree_node_count = static_cast<std::int64_t>(plan.tree_nodes.count);
  paged.append_slots = on_device(plan, group.append_slots).data();
  if (layer.layer_window != nullptr) {
    const StagedLayerWindow& window = *layer.layer_window;
    PagedLevel& level = paged.levels[0];
    level = level_on_device(plan, group.levels.back());
    level.query_indptr = nullptr;
    level.page_indptr = on_device(plan, window.page_indptr).data();
    level.rows = on_device(plan, window.rows).data();
    level.first_columns = on_device(plan, window.first_columns).data();
    level.first_keys = on_device(plan, window.first_keys).data();
    level.key_offsets = on_device(plan, window.key_offsets).data();
    paged.level_count = 1;
    paged.layer_window = static_cast<std::int32_t>(window.window_tokens);
  } else {
    for (const StagedLevel& level : group.levels) paged.levels[paged.level_count++] = level_on_device(plan, level);
  }
  if (config_.page_tables == quire::PageTables::Rows) {
    const quire::DeviceTable& table = plans_->table(0);
    paged.table = table.pages;
    paged.table_rows = table.rows;
    paged.table_columns = table.row_columns;
  }
  paged.page_indices = on_device(plan, group.page_indices).data();
  paged.page_index_count = static_cast<std::int64_t>(group.page_indices.count);
  paged.block_table = on_device(plan, group.block_table).data();
  paged.block_columns = plan.shape.columns;
  paged.page_tokens = static_cast<std::int32_t>(config_.pool.geometry.page().options().page_tokens);
  paged.page_count = static_cast<std::int32_t>(config_.pool.geometry.page_count());
  paged.reads_appended = layer.reads_appended;
  return config_.kernels->attend(params, memory_->stream());
}

std::string DeviceStep::finish_layer(std::span<double> mixed) {
  Status status = memory_->fetch(0, kProblemDoubles);
  if (status) status = memory_->fetch(memory_->mixed, mixed.size());
  if (status) status = wait();
  if (!status) return text_of(status);
  const auto problem = static_cast<PagedProblem>(*memory_->on_host<std::int32_t>(0));
  if (problem != PagedProblem::None) return text_of(problem);
  std::copy_n(memory_->on_host<double>(memory_->mixed), mixed.size(), mixed.begin());
  return "";
}

}  // namespace tiny_engine
