// SPDX-License-Identifier: Apache-2.0
//
// Cache: opening. Everything that will ever be needed is reserved here.
#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/checked.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/budget.h"
#include "quire/cache.h"

namespace quire {

namespace {

// Evicted pages that are remembered unless a configuration says otherwise.
constexpr std::uint64_t kLostPagesMax = 1U << 20U;

bool is_history(const CacheGroup& group) {
  return group.kind == GroupKind::Full || group.kind == GroupKind::Compressed;
}

std::uint32_t lookahead_of(const ModelLayout& layout) {
  return std::ranges::max(layout.groups(), {}, &CacheGroup::lookahead_tokens).lookahead_tokens;
}

// A model without a group that keeps everything still has paths, whose pages other groups' hang on. They have as good
// as no bytes.
CacheGroup make_path_group() {
  return {.name = "path",
          .layers = {0},
          .components = {{.name = "token", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = 1}}};
}

Result<std::uint32_t> count_host_pages(const HostConfig& host, const PageGeometry& page) {
  const std::uint64_t page_count = host.page_count > 0 ? host.page_count : page.page_count_within(host.capacity_bytes);
  if (page_count == 0) {
    return fail(ErrorCode::InvalidArgument, "host.capacity_bytes is " + with_separators(host.capacity_bytes) +
                                                ": too small for one page of " + with_separators(page.page_bytes()) +
                                                " bytes (" + std::to_string(page.options().page_tokens) +
                                                " tokens of " + with_separators(page.token_bytes()) + " bytes)");
  }
  if (page_count >= PageId::kNoneValue) {
    return fail(ErrorCode::InvalidArgument, "the host tier would have " + with_separators(page_count) +
                                                " pages; the most is " + with_separators(PageId::kNoneValue - 1));
  }
  return static_cast<std::uint32_t>(page_count);
}

// Pages of every group, null pages not counted; 0 for groups without any.
struct PageCounts {
  std::uint64_t history = 0;
  std::vector<std::uint64_t> groups;
};

std::uint32_t state_slot_count_of(const CacheConfig& config) {
  return config.device.state_slot_count != 0 ? config.device.state_slot_count : config.sequence_count_max;
}

// What one sequence has in flight when all are, so that together they fill the steps.
BudgetRequest budget_request_of(const CacheConfig& config) {
  const std::uint64_t in_flight =
      std::uint64_t{config.step_tokens_max} * config.steps_in_flight_max / config.sequence_count_max;
  return {.page = config.page,
          .device_bytes = config.device.capacity_bytes,
          .context_tokens_max = config.context_tokens_max,
          .sequence_count_max = state_slot_count_of(config),
          .in_flight_tokens = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
              in_flight, config.steps_in_flight_max, std::max(config.context_tokens_max, 1U))),
          .rewind_tokens = config.window_rewind_tokens};
}

// How several groups share host.capacity_bytes: as the budget says.
Status share_host_bytes(CacheConfig& config, const BudgetRequest& device) {
  HostConfig& host = config.host;
  BudgetRequest request = device;
  request.host_bytes = host.capacity_bytes;
  // Only the host's share is asked for: the device is large enough for anything.
  if (request.device_bytes == 0) request.device_bytes = std::uint64_t{1} << 62U;
  const Result<Budget> budget = solve_budget(config.layout, request);
  if (!budget) {
    return fail(budget.error().code, "host.capacity_bytes is " + with_separators(host.capacity_bytes) + ": " +
                                         budget.error().message + "; or give host.page_count");
  }
  const std::span<const CacheGroup> groups = config.layout.groups();
  std::uint64_t history = UINT64_MAX;
  host.group_page_counts.assign(groups.size(), 0);
  for (const GroupBudget& group : budget->tiers[1].groups) {
    const std::uint64_t count = std::min<std::uint64_t>(group.page_count, PageId::kNoneValue - 1);
    host.group_page_counts[group.group_index] = static_cast<std::uint32_t>(count);
    if (is_history(groups[group.group_index])) history = std::min(history, count);
  }
  // Paths without history have as good as no bytes: as many as the device has, twice.
  if (history == UINT64_MAX) {
    history = 2 * std::uint64_t{config.sequence_count_max} *
              ((std::uint64_t{config.context_tokens_max} / config.page.page_tokens) + 1);
  }
  host.page_count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(history, 1, PageId::kNoneValue - 1));
  host.capacity_bytes = 0;
  return {};
}

// One group: as many pages as fit, or as are asked for.
Result<PageCounts> count_pages_of_one(const CacheConfig& config) {
  const DeviceConfig& device = config.device;
  if (device.capacity_bytes == 0) return PageCounts{.history = device.page_count, .groups = {device.page_count}};
  QUIRE_TRY_ASSIGN(const PageGeometry page, PageGeometry::create(config.layout.groups().front(), config.page));
  const std::uint64_t null_pages = device.pool == DevicePool::Owned ? 1 : 0;
  const std::uint64_t page_count = page.page_count_within(device.capacity_bytes);
  if (page_count < 2) {
    return fail(ErrorCode::InvalidArgument, "device.capacity_bytes is " + with_separators(device.capacity_bytes) +
                                                ": too small for the null page and one page of " +
                                                with_separators(page.page_bytes()) + " bytes (" +
                                                std::to_string(config.page.page_tokens) + " tokens of " +
                                                with_separators(page.token_bytes()) + " bytes)");
  }
  return PageCounts{.history = page_count - null_pages, .groups = {page_count - null_pages}};
}

Result<PageCounts> count_pages(const CacheConfig& config) {
  const std::span<const CacheGroup> groups = config.layout.groups();
  if (groups.size() == 1 && is_history(groups.front())) return count_pages_of_one(config);
  PageCounts counts{.history = config.device.page_count, .groups = std::vector<std::uint64_t>(groups.size())};
  const BudgetRequest request = budget_request_of(config);
  if (config.device.capacity_bytes != 0) {
    if (config.context_tokens_max == 0) {
      return fail(ErrorCode::InvalidArgument,
                  "device.capacity_bytes is shared by " + std::to_string(groups.size()) +
                      " groups, which depends on the longest context: set context_tokens_max, or device.page_count");
    }
    QUIRE_TRY_ASSIGN(const Budget budget, solve_budget(config.layout, request));
    counts.history = UINT64_MAX;
    for (const GroupBudget& group : budget.tiers.front().groups) {
      counts.groups[group.group_index] = group.page_count;
      if (is_history(groups[group.group_index])) counts.history = std::min(counts.history, group.page_count);
    }
    if (counts.history == UINT64_MAX) {
      // Nothing keeps everything: paths as long as all sequences may be, twice, so that some are left behind.
      const std::uint64_t row_pages =
          (std::uint64_t{config.context_tokens_max} + config.page.page_tokens - 1) / config.page.page_tokens;
      counts.history = std::min<std::uint64_t>(2 * row_pages * config.sequence_count_max, PageId::kNoneValue / 2);
    }
  }
  const std::uint64_t step_pages =
      (std::uint64_t{config.step_tokens_max} + config.page.page_tokens - 1) / config.page.page_tokens;
  const std::uint64_t context = config.context_tokens_max != 0
                                    ? config.context_tokens_max
                                    : std::min<std::uint64_t>(counts.history * config.page.page_tokens, UINT32_MAX);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!has_pages(groups[i])) continue;
    if (is_history(groups[i])) {
      counts.groups[i] = counts.history;
    } else if (config.device.capacity_bytes == 0) {
      const std::uint64_t wanted = (pages_of_request(groups[i], request, context) * config.sequence_count_max) +
                                   (groups[i].kind == GroupKind::Window ? step_pages : 0);
      counts.groups[i] = config.device.group_page_counts.empty()
                             ? std::min(std::max<std::uint64_t>(wanted, 1), counts.history)
                             : config.device.group_page_counts[i];
    }
    if (is_history(groups[i])) continue;
    BudgetRequest least = request;
    least.in_flight_tokens = 1;
    const bool is_window = groups[i].kind == GroupKind::Window && !has_slot(groups[i]);
    const std::uint64_t needed = is_window ? pages_of_request(groups[i], least, context) : 1;
    if (counts.groups[i] >= needed) continue;
    return fail(ErrorCode::InvalidArgument, "group '" + groups[i].name + "' has " + count_of(counts.groups[i], "page") +
                                                "; one sequence of " + with_separators(context) + " tokens needs " +
                                                with_separators(needed) + " of them: raise device.group_page_counts[" +
                                                std::to_string(i) + "]");
  }
  return counts;
}

// Snapshots of a group are taken where a page of the history ends, and where the group can go on.
Result<std::uint32_t> add_to_grid(std::uint32_t grid, std::uint32_t page_tokens, const CacheGroup& group) {
  const std::uint64_t of_group = std::lcm(std::uint64_t{page_tokens}, std::uint64_t{boundary_multiple(group)});
  const std::uint64_t of_all = of_group <= UINT32_MAX ? std::lcm(std::uint64_t{grid}, of_group) : of_group;
  if (of_all <= UINT32_MAX) return static_cast<std::uint32_t>(of_all);
  return fail(ErrorCode::InvalidArgument,
              "group '" + group.name + "': its snapshots are taken at multiples of page_tokens = " +
                  with_separators(page_tokens) + " and of its boundary, " + with_separators(boundary_multiple(group)) +
                  " tokens" + (grid > 1 ? ", and other groups' at multiples of " + with_separators(grid) : "") +
                  ": the first place for both is " + with_separators(of_all) + ", and positions have 32 bits");
}

Result<std::uint32_t> interval_on_grid(std::uint32_t interval_tokens, std::uint32_t grid) {
  const std::uint64_t rounded = (std::uint64_t{interval_tokens} + grid - 1) / grid * grid;
  if (rounded <= UINT32_MAX) return static_cast<std::uint32_t>(rounded);
  return fail(ErrorCode::InvalidArgument, "retention.interval_tokens is " + with_separators(interval_tokens) +
                                              ": snapshots are taken at multiples of " + with_separators(grid) +
                                              " tokens, and the next one, " + with_separators(rounded) +
                                              ", does not fit in 32 bits: use a smaller one, or RetentionRule::Last");
}

}  // namespace

Result<std::unique_ptr<Cache>> Cache::open(CacheConfig config) {
  return open(std::move(config), nullptr, {});
}

Result<std::unique_ptr<Cache>> Cache::open(CacheConfig config, FileSystem* files,
                                           std::span<HostPages* const> host_pages) {
  QUIRE_TRY(config.validate());
  QUIRE_TRY_ASSIGN(const PageCounts counts, count_pages(config));
  const bool is_plain = config.layout.groups().size() == 1 && is_history(config.layout.groups().front());
  if (!is_plain && config.host.capacity_bytes > 0) {
    if (config.context_tokens_max == 0) {
      return fail(ErrorCode::InvalidArgument,
                  "host.capacity_bytes is shared by several groups, which depends on the longest context: set "
                  "context_tokens_max, or host.page_count");
    }
    QUIRE_TRY(share_host_bytes(config, budget_request_of(config)));
  }
  const auto history = std::ranges::find_if(config.layout.groups(), is_history);
  const bool has_history = history != config.layout.groups().end();
  QUIRE_TRY_ASSIGN(const PageGeometry page,
                   PageGeometry::create(has_history ? *history : make_path_group(), config.page));
  const bool is_owned = config.device.pool == DevicePool::Owned;
  QUIRE_TRY_ASSIGN(PoolGeometry geometry, PoolGeometry::create(page, {.page_count = counts.history + (is_owned ? 1 : 0),
                                                                      .byte_layout = config.device.byte_layout}));
  auto impl = std::make_unique<Impl>(std::move(config), std::move(geometry));
  const CacheConfig& settings = impl->config;
  impl->history_index = static_cast<std::uint32_t>(std::ranges::find_if(settings.layout.groups(), is_history) -
                                                   settings.layout.groups().begin());
  const std::uint32_t page_count = impl->geometry.page_count() - (is_owned ? 1 : 0);
  impl->page_tokens = settings.page.page_tokens;
  impl->partial_reuse_min_tokens =
      settings.partial_reuse_min_tokens.value_or(std::max(1U, (impl->page_tokens + 1) / 2));

  // Positions have 32 bits.
  const std::uint64_t pool_tokens = std::min<std::uint64_t>(std::uint64_t{page_count} * impl->page_tokens, UINT32_MAX);
  impl->context_tokens_max =
      settings.context_tokens_max != 0 ? settings.context_tokens_max : static_cast<std::uint32_t>(pool_tokens);
  if (is_owned && impl->context_tokens_max > pool_tokens) {
    return fail(ErrorCode::InvalidArgument,
                "one sequence of context_tokens_max = " + with_separators(impl->context_tokens_max) + " tokens needs " +
                    with_separators(impl->pages_for(impl->context_tokens_max)) + " pages of " +
                    std::to_string(impl->page_tokens) + " tokens (" +
                    readable_bytes(impl->geometry.page().page_bytes()) + " each); the device pool has " +
                    with_separators(page_count) + " pages: " + with_separators(pool_tokens) + " tokens");
  }

  impl->config.context_tokens_max = impl->context_tokens_max;

  if (impl->config.custom_policy) {
    impl->policy = std::move(impl->config.custom_policy);
  } else {
    QUIRE_TRY_ASSIGN(impl->policy, make_policy(settings.policy));
  }
  if (settings.host.is_on()) {
    QUIRE_TRY_ASSIGN(impl->host_policy, make_policy(settings.host.policy));
    QUIRE_TRY_ASSIGN(impl->host_page_count, count_host_pages(settings.host, impl->geometry.page()));
    impl->config.host.page_count = impl->host_page_count;
  }
  const std::uint64_t all_pages = std::uint64_t{page_count} + impl->host_page_count;
  const auto lost_pages = static_cast<std::uint32_t>(std::min<std::uint64_t>(all_pages, kLostPagesMax));
  QUIRE_TRY_ASSIGN(impl->lost_pages,
                   LostPages::create(settings.lost_page_count_max.value_or(settings.host.is_on() ? lost_pages : 0)));
  QUIRE_TRY_ASSIGN(impl->tree, PrefixTree::create({.page_tokens = impl->page_tokens,
                                                   .page_count_max = page_count,
                                                   .host_page_count_max = impl->host_page_count,
                                                   .root_count_max = settings.key_space_count_max,
                                                   .whole_runs = settings.whole_runs,
                                                   .hash_seed = settings.hash_seed},
                                                  *impl->policy, &impl->log, impl->host_policy.get(),
                                                  impl->lost_pages.is_on() ? &impl->lost_pages : nullptr));
  if (is_owned) {
    QUIRE_TRY_ASSIGN(impl->pool, PagePool::create({.page_count = page_count, .first_page = kNullPage.value + 1}));
    // A path without bytes of its own has memory that nobody touches but the mover, which must reach it.
    const bool is_adopted = settings.device.memory == DeviceMemory::Adopted;
    const bool has_accelerator = settings.device.accelerator != nullptr;
    if (settings.device.memory == DeviceMemory::Accelerator || (!has_history && is_adopted && has_accelerator)) {
      QUIRE_TRY_ASSIGN(impl->memory, impl->allocate_on_accelerator(impl->geometry.pool_bytes()));
    } else if (settings.device.memory == DeviceMemory::Host || !has_history) {
      QUIRE_TRY_ASSIGN(impl->host_memory, LazyMemory::reserve(impl->geometry.pool_bytes()));
      impl->memory = impl->host_memory.data();
    } else if (!settings.device.adopted_tensors.empty()) {
      impl->memory = nullptr;  // the mover knows where they are
    } else if (!settings.device.adopted_group_memory.empty()) {
      impl->memory = settings.device.adopted_group_memory[impl->history_index];
    } else {
      impl->memory = settings.device.adopted_memory;
    }
  } else {
    QUIRE_TRY_ASSIGN(impl->offered, OfferedPages::create(page_count));
  }
  QUIRE_TRY_ASSIGN(impl->sequences, SequenceTable::create({.sequence_count_max = settings.sequence_count_max,
                                                           .context_tokens_max = impl->context_tokens_max,
                                                           .page_tokens = impl->page_tokens,
                                                           .extra_key_count_max = settings.extra_key_count_max,
                                                           .tree_tokens_max = settings.tree_tokens_max,
                                                           .lookahead_tokens = lookahead_of(settings.layout)}));
  impl->release_queue = std::make_shared<ReleaseQueue>(settings.sequence_count_max);
  QUIRE_TRY(impl->open_groups(counts.groups));

  QUIRE_TRY(impl->reserve_steps());
  if (impl->has_host()) QUIRE_TRY(impl->open_host());
  if (settings.disk.is_on()) QUIRE_TRY(impl->open_disk(files, host_pages));
  return std::unique_ptr<Cache>(new Cache(std::move(impl)));
}

// The groups beside the first that keeps everything.
Status Cache::Impl::open_groups(std::span<const std::uint64_t> page_counts) {
  const std::span<const CacheGroup> groups = config.layout.groups();
  hit_limits = {.page_tokens = page_tokens,
                .boundary_tokens = std::max(config.layout.hit_multiple_tokens(), 1U),
                .partial_tokens_min = partial_reuse_min_tokens};
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    if (i == history_index) continue;
    if (is_history(groups[i])) {
      QUIRE_TRY(open_memory(more_history.emplace_back(), i, page_counts[i]));
    } else {
      QUIRE_TRY(open_side(i, page_counts[i]));
    }
  }
  for (SideGroup& side : sides) {
    const CacheGroup& group = *side.group;
    hit_groups.push_back({.pages = side.has_pages ? &side.pages : nullptr,
                          .window_tokens = side.is_window ? group.window_tokens : 0,
                          .sink_tokens = side.is_window ? group.sink_tokens : 0,
                          .starts_anew = group.kind == GroupKind::Snapshot && group.snapshot_entries == 0,
                          .boundary_tokens = boundary_multiple(group),
                          .replay_tokens = group.replay.tokens,
                          .replay_is_exact = group.replay.is_exact});
  }
  group_geometries.resize(groups.size());
  group_pools.resize(groups.size());
  if (history_index < groups.size()) {
    group_geometries[history_index] = &geometry;
    group_pools[history_index] = memory;
  }
  const auto add_memory = [this](const GroupMemory& group) {
    if (!group.geometry) return;
    group_geometries[group.group_index] = &*group.geometry;
    group_pools[group.group_index] = group.data;
  };
  for (const GroupMemory& group : more_history) add_memory(group);
  for (const SideGroup& side : sides) add_memory(side.memory);
  QUIRE_TRY_ASSIGN(state_slots, StateSlots::create(config.layout, config.page));
  QUIRE_TRY_ASSIGN(checkpoint_interval, interval_on_grid(checkpoint_interval, checkpoint_grid));
  if (state_slots->slot_bytes() == 0) return {};
  const std::uint32_t slot_count = state_slot_count_of(config);
  const auto state_bytes = checked_multiply(slot_count, state_slots->slot_bytes());
  if (!state_bytes) {
    return fail(ErrorCode::InvalidArgument, with_separators(slot_count) + " state slots of " +
                                                with_separators(state_slots->slot_bytes()) +
                                                " bytes each do not fit in 64 bits: lower device.state_slot_count, or "
                                                "sequence_count_max");
  }
  for (std::uint32_t i = slot_count; i > 0; --i) free_state_slots.push_back(i - 1);
  state_slot_count = slot_count;
  // Of a plan's copies, every sequence may have its slot filled, and a checkpoint saved that its drafts have passed.
  static_assert(kStateCopiesMax >= 2 + kForksMax);
  pending_forks.reserve(state_group_count() * kForksMax * config.sequence_count_max);
  state_copies.reserve(state_group_count() * kStateCopiesMax * config.sequence_count_max);
  state_saves.reserve(state_group_count() * config.sequence_count_max);
  if (config.device.memory == DeviceMemory::Host) {
    QUIRE_TRY_ASSIGN(own_state_memory, LazyMemory::reserve(*state_bytes));
    state_memory = own_state_memory.data();
  } else if (config.device.memory == DeviceMemory::Accelerator) {
    QUIRE_TRY_ASSIGN(state_memory, allocate_on_accelerator(*state_bytes));
  } else {
    state_memory = config.device.adopted_state_memory;
  }
  return {};
}

Result<std::byte*> Cache::Impl::allocate_on_accelerator(std::size_t bytes) {
  QUIRE_TRY_ASSIGN(DeviceMemoryBlock block, DeviceMemoryBlock::allocate(*config.device.accelerator, bytes));
  accelerator_memory.push_back(std::move(block));
  return accelerator_memory.back().data();
}

Status Cache::Impl::open_memory(GroupMemory& memory_of_group, std::uint32_t group_index, std::uint64_t page_count) {
  memory_of_group.group_index = group_index;
  QUIRE_TRY_ASSIGN(const PageGeometry page, PageGeometry::create(config.layout.groups()[group_index], config.page));
  QUIRE_TRY_ASSIGN(memory_of_group.geometry, PoolGeometry::create(page, {.page_count = page_count + 1,
                                                                         .byte_layout = config.device.byte_layout}));
  if (config.device.memory == DeviceMemory::Host) {
    QUIRE_TRY_ASSIGN(memory_of_group.own, LazyMemory::reserve(memory_of_group.geometry->pool_bytes()));
    memory_of_group.data = memory_of_group.own.data();
  } else if (config.device.memory == DeviceMemory::Accelerator) {
    QUIRE_TRY_ASSIGN(memory_of_group.data, allocate_on_accelerator(memory_of_group.geometry->pool_bytes()));
  } else if (config.device.memory == DeviceMemory::Adopted && config.device.adopted_tensors.empty()) {
    memory_of_group.data = config.device.adopted_group_memory[group_index];
  }
  return {};
}

Status Cache::Impl::open_side(std::uint32_t group_index, std::uint64_t page_count) {
  SideGroup& side = sides.emplace_back();
  side.group = &config.layout.groups()[group_index];
  side.is_window = !has_slot(*side.group);
  side.has_pages = has_pages(*side.group);
  side.memory.group_index = group_index;
  side.slots.resize(config.sequence_count_max);
  if (!side.has_pages) return {};
  QUIRE_TRY(open_memory(side.memory, group_index, page_count));
  const auto count = static_cast<std::uint32_t>(page_count);
  QUIRE_TRY_ASSIGN(side.pool, PagePool::create({.page_count = count, .first_page = kNullPage.value + 1}));
  QUIRE_TRY(side.fenced.reserve(count));
  QUIRE_TRY_ASSIGN(side.pages, SidePages::create({.tree_page_end = pool_page_count() + 1, .side_page_end = count + 1}));
  if (!side.is_window) {
    has_snapshots = true;
    QUIRE_TRY_ASSIGN(checkpoint_grid, add_to_grid(checkpoint_grid, page_tokens, *side.group));
    if (side.group->retention.rule == RetentionRule::Every) {
      checkpoint_interval = std::max(checkpoint_interval, side.group->retention.interval_tokens);
    }
    return {};
  }
  side.sink_pages = pages_for(side.group->sink_tokens);
  side.row_stride = sequences.row_pages() + 17;  // apart from a power of two, as the sequences' own rows
  QUIRE_TRY_ASSIGN(side.rows, LazyArray<PageId>::create(side.row_stride * config.sequence_count_max));
  side.copies.reserve(config.sequence_count_max);
  QUIRE_TRY_ASSIGN(side.moves,
                   LazyArray<TokenMove>::create(std::size_t{config.sequence_count_max} * config.tree_tokens_max));
  window_sides.push_back(static_cast<std::uint32_t>(sides.size() - 1));
  return {};
}

std::vector<PlannerGroup> Cache::Impl::planner_groups() const {
  std::vector<PlannerGroup> groups;
  for (const CacheGroup& group : config.layout.groups()) {
    using Kind = PlannerGroup::Kind;
    const Kind window = has_slot(group) ? Kind::Ring : Kind::Window;
    groups.push_back({.kind = group.kind == GroupKind::Full         ? Kind::Full
                              : group.kind == GroupKind::Compressed ? Kind::Compressed
                              : group.kind == GroupKind::Window     ? window
                                                                    : Kind::State,
                      .tokens_per_entry = group.tokens_per_entry,
                      .window_tokens = group.window_tokens,
                      .sink_tokens = group.sink_tokens,
                      .slot_entries = group.slot_entries});
  }
  return groups;
}

// Everything that steps and sequences will ever need.
Status Cache::Impl::reserve_steps() {
  const std::size_t sequence_count = config.sequence_count_max;
  QUIRE_TRY_ASSIGN(planner, AttentionPlanner::create({.page_tokens = page_tokens,
                                                      .sequence_count_max = config.sequence_count_max,
                                                      .row_pages = sequences.row_pages(),
                                                      .step_tokens_max = config.step_tokens_max,
                                                      .steps_in_flight_max = config.steps_in_flight_max,
                                                      .tree_tokens_max = config.tree_tokens_max,
                                                      .page_tables = config.plan.page_tables,
                                                      .cascade_levels_max = config.plan.cascade_levels_max,
                                                      .layer_windows = config.plan.layer_windows,
                                                      .groups = planner_groups()}));
  steps.resize(std::size_t{config.steps_in_flight_max} + 1);
  for (StepInFlight& step : steps) {
    step.parts.reserve(sequence_count);
    step.sides.reserve(sequence_count * window_sides.size());
    step.saves.reserve(sequence_count * sides.size() * 2);  // where it ends, and where accepted drafts have passed one
  }
  planning_sides.reserve(sequence_count * window_sides.size());
  step_order.reserve(config.steps_in_flight_max);
  planning.reserve(sequence_count);
  revoked.reserve(sequence_count);
  revoked_runs.reserve(sequence_count);
  planner_entries.reserve(sequence_count);
  planner_sides.reserve(sequence_count * window_sides.size());
  planner_groups_of_entries.reserve(sequence_count);
  planner_steps.reserve(window_sides.size());
  copies.reserve(sequence_count);
  // The largest step: every entry computes something, and begins and ends inside a page. Or a whole sequence at once.
  path_scratch.resize(sequences.row_pages());
  page_scratch.resize(
      std::max<std::size_t>((config.step_tokens_max / page_tokens) + (2 * sequence_count), sequences.row_pages()));
  QUIRE_TRY_ASSIGN(moves, LazyArray<TokenMove>::create(sequence_count * config.tree_tokens_max));
  move_indptr.reserve(sequence_count + 1);
  move_indptr.assign(1, 0);
  QUIRE_TRY(fenced.reserve(pool_page_count()));
  return {};
}

}  // namespace quire
