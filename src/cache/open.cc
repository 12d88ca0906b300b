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

// How many evicted pages are remembered at most when lost_page_count_max is not set.
constexpr std::uint64_t kLostPagesMax = 1U << 20U;

// Bytes are not shared out for shorter requests than these, unless expected_requests says so: windows of very
// many sequences would leave the history no more than one context.
constexpr std::uint32_t kExpectedTokensMin = 2'048;

bool is_history(const CacheGroup& group) {
  return group.kind == GroupKind::Full || group.kind == GroupKind::Compressed;
}

std::uint32_t window_count_of(const ModelLayout& layout) {
  const auto is_paged = [](const CacheGroup& group) { return group.kind == GroupKind::Window && !has_slot(group); };
  return static_cast<std::uint32_t>(std::ranges::count_if(layout.groups(), is_paged));
}

std::uint32_t lookahead_of(const ModelLayout& layout) {
  return std::ranges::max(layout.groups(), {}, &CacheGroup::lookahead_tokens).lookahead_tokens;
}

// A model in which no group keeps everything still needs paths, because pages of anchored groups hang on pages of
// paths. This group stands for them; its pages have as good as no bytes.
CacheGroup make_path_group() {
  return {.name = "path",
          .layers = {0},
          .components = {{.name = "token", .element = ElementType::Bytes, .sharding = Sharding::Replicated, .dim = 1}}};
}

Result<std::uint32_t> count_host_pages(const HostConfig& host, const PageGeometry& page) {
  const std::uint64_t page_count = host.page_count > 0 ? host.page_count : page.page_count_within(host.capacity_bytes);
  if (page_count == 0) {
    return invalid("host.capacity_bytes is ", host.capacity_bytes, ": too small for one page of ", page.page_bytes(),
                   " bytes (", plain(page.options().page_tokens), " tokens of ", page.token_bytes(), " bytes)");
  }
  if (page_count >= PageId::kNoneValue) {
    return invalid("the host tier would have ", page_count, " pages; the most is ", PageId::kNoneValue - 1);
  }
  return static_cast<std::uint32_t>(page_count);
}

// Device pages of the history and of each group, null pages not counted; 0: the group has no pages.
struct PageCounts {
  std::uint64_t history = 0;
  std::vector<std::uint64_t> groups;
};

std::uint32_t state_slot_count_of(const CacheConfig& config) {
  return config.device.state_slot_count != 0 ? config.device.state_slot_count : config.sequence_count_max;
}

// A sequence that runs has a token in each step in flight. What else a step has is there once, whoever computes it.
BudgetRequest budget_request_of(const CacheConfig& config) {
  BudgetRequest request{.page = config.page,
                        .device_bytes = config.device.capacity_bytes,
                        .context_tokens_max = config.context_tokens_max,
                        .sequence_count_max = state_slot_count_of(config),
                        .in_flight_tokens = config.steps_in_flight_max,
                        .step_tokens = config.step_tokens_max,
                        .rewind_tokens = config.window_rewind_tokens};
  request.mix = config.expected_requests;
  return request;
}

// How long requests are if as many run at once as may: the more, the shorter. The mix of a request that has none.
Result<std::uint32_t> expect_request_tokens(const CacheConfig& config, BudgetRequest request) {
  const bool has_state = std::ranges::any_of(config.layout.groups(), has_slot);
  const std::uint32_t running = has_state ? state_slot_count_of(config) : config.sequence_count_max;
  std::uint32_t low = std::min(kExpectedTokensMin, config.context_tokens_max);
  std::uint32_t high = config.context_tokens_max;
  while (low < high) {
    const std::uint32_t middle = high - ((high - low) / 2);
    request.mix = {{.context_tokens = middle}};
    QUIRE_TRY_ASSIGN(const Budget budget, solve_budget(config.layout, request));
    if (budget.tiers.front().request_count >= running) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Turns host.capacity_bytes into page counts for each group, as solve_budget() shares the bytes.
Status share_host_bytes(CacheConfig& config, const BudgetRequest& device) {
  HostConfig& host = config.host;
  BudgetRequest request = device;
  request.host_bytes = host.capacity_bytes;
  // Only the host's part of the budget is used here, so the device may be of any size.
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
  // No group keeps everything: pages of paths have as good as no bytes, so there are enough for two contexts of full
  // length for each sequence.
  if (history == UINT64_MAX) {
    history = 2 * std::uint64_t{config.sequence_count_max} *
              ((std::uint64_t{config.context_tokens_max} / config.page.page_tokens) + 1);
  }
  host.page_count = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(history, 1, PageId::kNoneValue - 1));
  host.capacity_bytes = 0;
  return {};
}

// A layout of one group: as many pages as are asked for, or as fit in capacity_bytes.
Result<PageCounts> count_pages_of_one(const CacheConfig& config) {
  const DeviceConfig& device = config.device;
  if (device.capacity_bytes == 0) return PageCounts{.history = device.page_count, .groups = {device.page_count}};
  QUIRE_TRY_ASSIGN(const PageGeometry page, PageGeometry::create(config.layout.groups().front(), config.page));
  const std::uint64_t null_pages = device.pool == DevicePool::Owned ? 1 : 0;
  const std::uint64_t page_count = page.page_count_within(device.capacity_bytes);
  if (page_count < 2) {
    return invalid("device.capacity_bytes is ", device.capacity_bytes, ": too small for the null page and one page of ",
                   page.page_bytes(), " bytes (", plain(config.page.page_tokens), " tokens of ", page.token_bytes(),
                   " bytes)");
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
      return invalid("device.capacity_bytes is shared by ", plain(groups.size()),
                     " groups, which depends on the longest context: set context_tokens_max, or device.page_count");
    }
    QUIRE_TRY_ASSIGN(const Budget budget, solve_budget(config.layout, request));
    counts.history = UINT64_MAX;
    for (const GroupBudget& group : budget.tiers.front().groups) {
      counts.groups[group.group_index] = group.page_count;
      if (is_history(groups[group.group_index])) counts.history = std::min(counts.history, group.page_count);
    }
    if (counts.history == UINT64_MAX) {
      // No group keeps everything: pages for two contexts of full length for each sequence, so that paths of ended ones
      // stay.
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
      // Nothing is shared out here, so windows have room for all steps in flight, evenly spread, and one beside them.
      BudgetRequest spread = request;
      spread.in_flight_tokens = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
          std::uint64_t{config.step_tokens_max} * config.steps_in_flight_max / config.sequence_count_max,
          config.steps_in_flight_max, std::max(config.context_tokens_max, 1U)));
      const std::uint64_t wanted = (pages_of_request(groups[i], spread, context) * config.sequence_count_max) +
                                   (groups[i].kind == GroupKind::Window ? step_pages : 0);
      counts.groups[i] = config.device.group_page_counts.empty()
                             ? std::min(std::max<std::uint64_t>(wanted, 1), counts.history)
                             : config.device.group_page_counts[i];
    }
    if (is_history(groups[i])) continue;
    BudgetRequest least = request;
    least.in_flight_tokens = 1;
    const bool is_window = groups[i].kind == GroupKind::Window && !has_slot(groups[i]);
    const bool is_owned = config.device.pool == DevicePool::Owned;  // else the engine knows what it runs
    const std::uint64_t needed = is_window && is_owned ? pages_of_request(groups[i], least, context) : 1;
    if (counts.groups[i] >= needed) continue;
    return invalid("group '", groups[i].name, "' has ", count_of(counts.groups[i], "page"), "; one sequence of ",
                   context, " tokens needs ", needed, " of them: raise device.group_page_counts[", plain(i), "]");
  }
  return counts;
}

// Snapshots are taken at multiples of the grid: where a page of the history ends and all snapshot groups can go on.
// Widens the grid for one group.
Result<std::uint32_t> add_to_grid(std::uint32_t grid, std::uint32_t page_tokens, const CacheGroup& group) {
  const std::uint64_t of_group = std::lcm(std::uint64_t{page_tokens}, std::uint64_t{boundary_multiple(group)});
  const std::uint64_t of_all = of_group <= UINT32_MAX ? std::lcm(std::uint64_t{grid}, of_group) : of_group;
  if (of_all <= UINT32_MAX) return static_cast<std::uint32_t>(of_all);
  return invalid("group '", group.name, "': its snapshots are taken at multiples of page_tokens = ", page_tokens,
                 " and of its boundary, ", boundary_multiple(group), " tokens",
                 grid > 1 ? ", and other groups' at multiples of " + with_separators(grid) : "",
                 ": the first place for both is ", of_all, ", and positions have 32 bits");
}

Result<std::uint32_t> interval_on_grid(std::uint32_t interval_tokens, std::uint32_t grid) {
  const std::uint64_t rounded = (std::uint64_t{interval_tokens} + grid - 1) / grid * grid;
  if (rounded <= UINT32_MAX) return static_cast<std::uint32_t>(rounded);
  return invalid("retention.interval_tokens is ", interval_tokens, ": snapshots are taken at multiples of ", grid,
                 " tokens, and the next one, ", rounded,
                 ", does not fit in 32 bits: use a smaller one, or RetentionRule::Last");
}

}  // namespace

Result<std::unique_ptr<Cache>> Cache::open(CacheConfig config) {
  return open(std::move(config), nullptr, {});
}

Result<std::unique_ptr<Cache>> Cache::open(CacheConfig config, FileSystem* files,
                                           std::span<HostPages* const> host_pages) {
  QUIRE_TRY(config.validate());
  const bool is_plain = config.layout.groups().size() == 1 && is_history(config.layout.groups().front());
  const bool shares_bytes = !is_plain && config.device.capacity_bytes != 0 && config.context_tokens_max != 0;
  if (shares_bytes && config.expected_requests.empty()) {
    QUIRE_TRY_ASSIGN(const std::uint32_t tokens, expect_request_tokens(config, budget_request_of(config)));
    config.expected_requests = {{.context_tokens = tokens}};
  }
  QUIRE_TRY_ASSIGN(const PageCounts counts, count_pages(config));
  if (!is_plain && config.host.capacity_bytes > 0) {
    if (config.context_tokens_max == 0) {
      return invalid(
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
  auto impl = std::make_unique<Impl>(std::move(config));
  const CacheConfig& settings = impl->config;
  impl->history_index = static_cast<std::uint32_t>(std::ranges::find_if(settings.layout.groups(), is_history) -
                                                   settings.layout.groups().begin());
  GroupMemory& memory = impl->history_memory.emplace_back();
  memory.group_index = impl->history_index;
  memory.geometry = std::move(geometry);
  const std::uint32_t page_count = memory.geometry->page_count() - (is_owned ? 1 : 0);
  impl->page_tokens = settings.page.page_tokens;
  impl->partial_reuse_min_tokens =
      settings.partial_reuse_min_tokens.value_or(std::max(1U, (impl->page_tokens + 1) / 2));

  // Positions have 32 bits.
  const std::uint64_t pool_tokens = std::min<std::uint64_t>(std::uint64_t{page_count} * impl->page_tokens, UINT32_MAX);
  impl->context_tokens_max =
      settings.context_tokens_max != 0 ? settings.context_tokens_max : static_cast<std::uint32_t>(pool_tokens);
  if (is_owned && impl->context_tokens_max > pool_tokens) {
    return invalid("one sequence of context_tokens_max = ", impl->context_tokens_max, " tokens needs ",
                   impl->pages_for(impl->context_tokens_max), " pages of ", plain(impl->page_tokens), " tokens (",
                   readable_bytes(memory.geometry->page().page_bytes()), " each); the device pool has ", page_count,
                   " pages: ", pool_tokens, " tokens");
  }

  impl->config.context_tokens_max = impl->context_tokens_max;

  if (impl->config.custom_policy) {
    impl->policy = std::move(impl->config.custom_policy);
  } else {
    QUIRE_TRY_ASSIGN(impl->policy, make_policy(settings.policy));
  }
  if (settings.host.is_on()) {
    QUIRE_TRY_ASSIGN(impl->host_policy, make_policy(settings.host.policy));
    QUIRE_TRY_ASSIGN(impl->config.host.page_count, count_host_pages(settings.host, memory.geometry->page()));
  }
  const std::uint32_t host_page_count = settings.host.is_on() ? settings.host.page_count : 0;
  const std::uint64_t all_pages = std::uint64_t{page_count} + host_page_count;
  const auto lost_pages = static_cast<std::uint32_t>(std::min<std::uint64_t>(all_pages, kLostPagesMax));
  QUIRE_TRY_ASSIGN(impl->lost_pages,
                   LostPages::create(settings.lost_page_count_max.value_or(settings.host.is_on() ? lost_pages : 0)));
  QUIRE_TRY_ASSIGN(impl->tree, PrefixTree::create({.page_tokens = impl->page_tokens,
                                                   .page_count_max = page_count,
                                                   .host_page_count_max = host_page_count,
                                                   .root_count_max = settings.key_space_count_max,
                                                   .whole_runs = settings.whole_runs,
                                                   .finds_runs = settings.chunks.is_on(),
                                                   .hash_seed = settings.hash_seed},
                                                  *impl->policy, &impl->log, impl->host_policy.get(),
                                                  impl->lost_pages.is_on() ? &impl->lost_pages : nullptr));
  QUIRE_TRY_ASSIGN(impl->sequences, SequenceTable::create({.sequence_count_max = settings.sequence_count_max,
                                                           .context_tokens_max = impl->context_tokens_max,
                                                           .page_tokens = impl->page_tokens,
                                                           .extra_key_count_max = settings.extra_key_count_max,
                                                           .tree_tokens_max = settings.tree_tokens_max,
                                                           .lookahead_tokens = lookahead_of(settings.layout),
                                                           .window_count = window_count_of(settings.layout)}));
  impl->ready_callbacks.resize(settings.sequence_count_max);
  impl->release_queue = std::make_shared<ReleaseQueue>(settings.sequence_count_max);
  impl->tiers = std::make_unique<Tiers>(TierContext{.config = impl->config,
                                                    .tree = *impl->tree,
                                                    .sequences = impl->sequences,
                                                    .key_spaces = impl->key_spaces,
                                                    .lost_pages = impl->lost_pages,
                                                    .counters = impl->counters,
                                                    .client = *impl,
                                                    .page_tokens = impl->page_tokens,
                                                    .partial_reuse_min_tokens = impl->partial_reuse_min_tokens,
                                                    .context_tokens_max = impl->context_tokens_max});
  impl->history = &impl->tiers->parts.history.pages;
  if (is_owned) {
    QUIRE_TRY(impl->history->open_device(page_count));
    QUIRE_TRY(impl->reserve_memory(memory));
  } else {
    QUIRE_TRY(impl->history->open_offered(page_count));
  }
  QUIRE_TRY(impl->open_groups(counts.groups));
  QUIRE_TRY(impl->open_states());
  QUIRE_TRY(impl->reserve_steps());
  if (host_page_count > 0) QUIRE_TRY(impl->open_host(host_page_count));
  if (settings.disk.is_on()) QUIRE_TRY(impl->open_disk(files, host_pages));
  if (settings.remote.is_on()) QUIRE_TRY(impl->open_remote(host_pages));
  if (impl->has_lower()) QUIRE_TRY(impl->tiers->open_searches(impl->name_log_config()));
  if (settings.chunks.is_on()) {
    QUIRE_TRY_ASSIGN(impl->chunks, CachedChunks::open(settings, page_count, impl->sequences.row_pages()));
    impl->tiers->parts.history.set_chunk_index(*impl->chunks->index);
  }
  return std::unique_ptr<Cache>(new Cache(std::move(impl)));
}

// Opens all groups but the first that keeps everything, whose pages open() has opened.
Status Cache::Impl::open_groups(std::span<const std::uint64_t> page_counts) {
  const std::span<const CacheGroup> all = config.layout.groups();
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    if (i == history_index) continue;
    if (is_history(all[i])) {
      QUIRE_TRY(open_memory(history_memory.emplace_back(), i, page_counts[i]));
    } else {
      QUIRE_TRY(open_group(i, page_counts[i]));
    }
  }
  tiers->open_paths();
  if (config.device.pool == DevicePool::External) {
    const std::size_t row_pieces = 2 * groups.size();  // a window's sink, and its last pages
    QUIRE_TRY_ASSIGN(matched_pages, LazyArray<GroupPages>::create(row_pieces * config.sequence_count_max));
  }
  history->layer_count = 0;
  for (const GroupMemory& memory : history_memory) {
    history->page_bytes += memory.geometry->page().page_bytes();
    history->layer_count += memory.geometry->page().layer_count();
  }
  group_geometries.resize(all.size());
  group_pools.resize(all.size());
  const auto add_memory = [this](const GroupMemory& memory) {
    if (!memory.geometry || memory.group_index == group_pools.size()) return;
    group_geometries[memory.group_index] = &*memory.geometry;
    group_pools[memory.group_index] = memory.data;
  };
  for (const GroupMemory& memory : history_memory) add_memory(memory);
  for (const GroupRows& group : groups) add_memory(group.memory);
  return {};
}

Status Cache::Impl::open_states() {
  QUIRE_TRY_ASSIGN(state_slots, StateSlots::create(config.layout, config.page));
  QUIRE_TRY_ASSIGN(checkpoint_interval, interval_on_grid(checkpoint_interval, checkpoint_grid));
  if (state_slots->slot_bytes() == 0 || config.device.pool == DevicePool::External) return {};
  const std::uint32_t slot_count = state_slot_count_of(config);
  const auto state_bytes = checked_multiply(slot_count, state_slots->slot_bytes());
  if (!state_bytes) {
    return invalid(slot_count, " state slots of ", state_slots->slot_bytes(),
                   " bytes each do not fit in 64 bits: lower device.state_slot_count, or sequence_count_max");
  }
  for (std::uint32_t i = slot_count; i > 0; --i) free_state_slots.push_back(i - 1);
  state_slot_count = slot_count;
  // For each sequence, a plan's state copies may fill its slot, save a checkpoint that its drafts have passed, and make
  // kForksMax forks.
  static_assert(kStateCopiesMax >= 2 + kForksMax);
  pending_forks.reserve(state_group_count() * kForksMax * config.sequence_count_max);
  scratch.state_copies.reserve(state_group_count() * kStateCopiesMax * config.sequence_count_max);
  scratch.state_saves.reserve(state_group_count() * config.sequence_count_max);
  scratch.state_sends.reserve(config.sequence_count_max);
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

Status Cache::Impl::open_memory(GroupMemory& memory, std::uint32_t group_index, std::uint64_t page_count) {
  memory.group_index = group_index;
  QUIRE_TRY_ASSIGN(const PageGeometry page, PageGeometry::create(config.layout.groups()[group_index], config.page));
  const bool is_owned = config.device.pool == DevicePool::Owned;
  QUIRE_TRY_ASSIGN(memory.geometry, PoolGeometry::create(page, {.page_count = page_count + (is_owned ? 1 : 0),
                                                                .byte_layout = config.device.byte_layout}));
  return is_owned ? reserve_memory(memory) : Status{};
}

Status Cache::Impl::reserve_memory(GroupMemory& memory) {
  const DeviceConfig& device = config.device;
  // Where no group keeps everything, only the mover touches the pages of paths, and so must reach their memory.
  const bool is_path = memory.group_index == config.layout.groups().size();
  const bool is_adopted = device.memory == DeviceMemory::Adopted;
  if (device.memory == DeviceMemory::Accelerator || (is_path && is_adopted && device.accelerator != nullptr)) {
    QUIRE_TRY_ASSIGN(memory.data, allocate_on_accelerator(memory.geometry->pool_bytes()));
  } else if (device.memory == DeviceMemory::Host || is_path) {
    QUIRE_TRY_ASSIGN(memory.own, LazyMemory::reserve(memory.geometry->pool_bytes()));
    memory.data = memory.own.data();
  } else if (is_adopted && !device.adopted_group_memory.empty()) {
    memory.data = device.adopted_group_memory[memory.group_index];
  } else if (is_adopted) {
    memory.data = device.adopted_memory;  // null where tensors are adopted: open_mover() gives them to the mover
  }
  return {};
}

Status Cache::Impl::open_group(std::uint32_t group_index, std::uint64_t page_count) {
  const CacheGroup& layout = config.layout.groups()[group_index];
  GroupRows& group = groups.emplace_back();
  group.tier = &tiers->add_group(layout, group_index);
  group.group = &layout;
  group.memory.group_index = group_index;
  group.slots.resize(config.sequence_count_max);
  group.states.resize(config.sequence_count_max);
  if (!has_pages(layout)) return {};
  QUIRE_TRY(open_memory(group.memory, group_index, page_count));
  group.tier->pages.page_bytes = group.memory.geometry->page().page_bytes();
  group.tier->pages.layer_count = group.memory.geometry->page().layer_count();
  QUIRE_TRY(group.tier->open_device(config.device.pool, static_cast<std::uint32_t>(page_count), pool_page_count()));
  if (!group.is_window()) {
    has_snapshots = true;
    QUIRE_TRY_ASSIGN(checkpoint_grid, add_to_grid(checkpoint_grid, page_tokens, layout));
    if (layout.retention.rule == RetentionRule::Every) {
      checkpoint_interval = std::max(checkpoint_interval, layout.retention.interval_tokens);
    }
    return {};
  }
  group.row_stride = sequences.row_pages() + 17;  // not a power of two: see SequenceTable::stride()
  QUIRE_TRY_ASSIGN(group.rows, LazyArray<PageId>::create(group.row_stride * config.sequence_count_max));
  group.copies.reserve(config.sequence_count_max);
  QUIRE_TRY_ASSIGN(group.moves,
                   LazyArray<TokenMove>::create(std::size_t{config.sequence_count_max} * config.tree_tokens_max));
  windows.push_back(static_cast<std::uint32_t>(groups.size() - 1));
  return {};
}

std::vector<PlannerGroup> Cache::Impl::planner_groups() const {
  std::vector<PlannerGroup> planned;
  for (const CacheGroup& group : config.layout.groups()) {
    using Kind = PlannerGroup::Kind;
    const Kind window = has_slot(group) ? Kind::Ring : Kind::Window;
    planned.push_back({.kind = group.kind == GroupKind::Full         ? Kind::Full
                               : group.kind == GroupKind::Compressed ? Kind::Compressed
                               : group.kind == GroupKind::Window     ? window
                                                                     : Kind::State,
                       .tokens_per_entry = group.tokens_per_entry,
                       .window_tokens = group.window_tokens,
                       .sink_tokens = group.sink_tokens,
                       .slot_entries = group.slot_entries});
  }
  return planned;
}

// Reserves everything that planning and finishing steps will ever need.
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
    step.windows.reserve(sequence_count * windows.size());
    if (config.host.is_on()) step.loads.reserve(config.host.transfer_count_max);
    step.saves.reserve(sequence_count * groups.size() * 2);  // at the step's end, and a checkpoint that drafts passed
  }
  tiers->parts.fence.reserve(config.steps_in_flight_max);
  step_order.reserve(config.steps_in_flight_max);
  planning.reserve(sequence_count);
  planning_windows.reserve(sequence_count * windows.size());
  scratch.lost_entries.reserve(sequence_count);
  scratch.revoked.reserve(sequence_count);
  scratch.revoked_runs.reserve(sequence_count);
  scratch.entries.reserve(sequence_count);
  scratch.windows.reserve(sequence_count * windows.size());
  scratch.entry_groups.reserve(sequence_count);
  scratch.window_steps.reserve(windows.size());
  scratch.copies.reserve(sequence_count);
  scratch.held.reserve(1 + windows.size());
  // New pages of the largest step, in which every entry begins and ends inside a page; or those that a restore takes at
  // once: all rows of one sequence, the history's and the windows'.
  page_scratch.resize(std::max<std::size_t>((config.step_tokens_max / page_tokens) + (2 * sequence_count),
                                            (1 + windows.size()) * (std::size_t{sequences.row_pages()} + 1)));
  QUIRE_TRY_ASSIGN(moves, LazyArray<TokenMove>::create(sequence_count * config.tree_tokens_max));
  move_indptr.reserve(sequence_count + 1);
  move_indptr.assign(1, 0);
  return {};
}

}  // namespace quire
