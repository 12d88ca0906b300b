// SPDX-License-Identifier: Apache-2.0
#include "hybrid_sim_setup.h"

#include <algorithm>
#include <array>
#include <utility>

#include "quire/budget.h"
#include "tests/cache/groups_fixture.h"

namespace quire::testing {

namespace {

GroupRetention draw_snapshot_retention(Random& random, std::uint32_t boundary_tokens) {
  if (has_chance(random, 25)) return {.rule = RetentionRule::Last};
  return {.rule = RetentionRule::Every, .interval_tokens = boundary_tokens * (1 + random.below(20))};
}

void add_replay(CacheGroup& group, Random& random) {
  if (group.window_tokens < 2 || !has_chance(random, 20)) return;
  group.replay = {.tokens = group.window_tokens - 1 + random.below(6), .is_exact = true};
}

CacheGroup draw_window(Random& random, std::uint32_t page_tokens) {
  CacheGroup group = window_group(1 + random.below(4 * page_tokens));
  const std::uint32_t retention = random.below(6);
  if (retention == 0) group.retention = {.rule = RetentionRule::Every, .interval_tokens = 1 + random.below(30)};
  if (retention == 1) group.retention = {.rule = RetentionRule::Last};
  if (retention == 2 && has_chance(random, 30)) group.retention = {.rule = RetentionRule::None};
  if (has_chance(random, 20) && group.window_tokens > 1) {
    group.sink_tokens = 1 + random.below(group.window_tokens - 1);
    group.keys_rotated = false;
  } else {
    add_replay(group, random);
  }
  return group;
}

CacheGroup draw_state(Random& random, std::uint32_t tokens_per_entry, std::uint32_t drafts) {
  const std::uint32_t r = tokens_per_entry;
  switch (random.below(5)) {
    case 0: {
      const std::uint32_t window = 1 + random.below(10);
      return ring_group(window, window + drafts + random.below(4), draw_snapshot_retention(random, 1));
    }
    case 1:
      return tail_group(r, r, (2 * r) + 1 + drafts + random.below(4), draw_snapshot_retention(random, r));
    case 2:
      return tail_group(r, 0, (2 * r) + 2 + drafts, {.rule = RetentionRule::None});
    default:
      return state_group(drafts + random.below(3), draw_snapshot_retention(random, 1));
  }
}

bool is_side(const CacheGroup& group) {
  return group.kind != GroupKind::Full && group.kind != GroupKind::Compressed;
}

bool has_store(const HybridSimSetup& setup, std::size_t group_index) {
  const CacheGroup& group = setup.groups[group_index];
  return is_side(group) && has_pages(group) && setup.disk_group_retention[group_index].rule != RetentionRule::None;
}

// What groups have on disk: all of it or less, and little room for it.
void draw_disk_groups(HybridSimSetup& setup, Random& random) {
  SimSetup& sim = setup.sim;
  std::uint64_t history_bytes = 0;
  for (const CacheGroup& group : setup.groups) {
    GroupRetention& retention = setup.disk_group_retention.emplace_back();
    const std::uint32_t drawn = random.below(100);
    if (is_side(group) && has_pages(group) && drawn < 30) {
      retention = {.rule = RetentionRule::Every, .interval_tokens = sim.page_tokens * (1 + random.below(3))};
    } else if (is_side(group) && has_pages(group) && group.replay.tokens > 0 && drawn < 65) {
      retention = {.rule = RetentionRule::None};
    }
    if (!is_side(group)) history_bytes += PageGeometry::create(group, {.page_tokens = sim.page_tokens})->page_bytes();
  }
  DiskConfig disk;
  disk.directories.resize(sim.disk_directory_count);
  const auto draw_bytes = [&](std::uint64_t page_bytes) {
    return disk.capacity_bytes_min(page_bytes) * pick(random, std::array{1U, 2U, 3U, 8U, 20U});
  };
  sim.disk_capacity_bytes = draw_bytes(std::max<std::uint64_t>(history_bytes, sim.page_tokens));
  for (std::size_t i = 0; i < setup.groups.size(); ++i) {
    std::uint64_t& bytes = setup.disk_group_capacity_bytes.emplace_back(0);
    if (!has_store(setup, i)) continue;
    bytes = draw_bytes(PageGeometry::create(setup.groups[i], {.page_tokens = sim.page_tokens})->page_bytes());
    sim.disk_capacity_bytes += bytes;
  }
  if (!has_chance(random, 25)) return;
  sim.disk_capacity_bytes *= 12;  // every share is enough then
  setup.disk_group_capacity_bytes.clear();
}

}  // namespace

std::vector<std::string> disk_paths(const HybridSimSetup& setup) {
  std::vector<std::string> paths;
  for (std::uint32_t i = 0; i < setup.sim.disk_directory_count; ++i) {
    paths.push_back(disk_path(i));
    for (std::size_t group = 0; group < setup.groups.size(); ++group) {
      if (has_store(setup, group)) paths.push_back(disk_path(i) + "/group-" + setup.groups[group].name);
    }
  }
  return paths;
}

std::vector<std::uint32_t> disk_stores(const HybridSimSetup& setup) {
  std::vector<std::uint32_t> stores = {0};
  std::uint32_t side_count = 0;
  for (std::size_t group = 0; group < setup.groups.size(); ++group) {
    if (!is_side(setup.groups[group])) continue;
    ++side_count;
    if (has_store(setup, group)) stores.push_back(side_count);
  }
  return stores;
}

HybridSimSetup draw_hybrid_sim_setup(Random& random, Random* disk_random, const SimMutation& mutation) {
  HybridSimSetup setup;
  SimSetup& sim = setup.sim;
  sim = draw_sim_setup(random);
  if (disk_random != nullptr) draw_disk_setup(sim, *disk_random, mutation);
  sim.layer_count = 1;
  sim.layer_bands = 1;
  sim.context_tokens_max = std::min(sim.context_tokens_max, sim.has_disk ? 160U : 80U);
  // Not for several groups, or not here.
  for (std::uint32_t SimSetup::* const chance :
       {&SimSetup::save_chance, &SimSetup::window_chance, &SimSetup::resize_chance, &SimSetup::tree_chance,
        &SimSetup::extra_key_chance}) {
    sim.*chance = 0;
  }
  sim.device_page_count_max = sim.device_page_count;
  sim.extra_keys_vary = false;
  sim.wind_down_every = 1'000;
  // Most requests come back for something that has gone down to the host.
  if (!sim.has_disk && has_chance(random, 60)) {
    sim.host_page_count = std::max(sim.host_page_count, (2 + random.below(4)) * sim.device_page_count);
    sim.document_count = 3 + random.below(4);
    sim.document_chance = 95;
    sim.transfer_count_max = std::max(sim.transfer_count_max, 4U);
  }

  // Or from there to disk.
  if (sim.has_disk && sim.beginning_count == 0 && has_chance(random, 70)) {
    sim.document_count = 2 + random.below(4);
    sim.document_chance = 95;
    sim.host_chance = 0;
    sim.prefetch_chance = pick(random, std::array{0U, 10U, 30U});
    sim.serve_chance = std::max(sim.serve_chance, 30U);
    sim.crash_chance = std::max(sim.crash_chance, 10U);
    sim.flush_chance = std::max(sim.flush_chance, 2U);
    sim.transfer_count_max = std::max(sim.transfer_count_max, 4U);
    if (has_chance(random, 60)) sim.compute_ns_per_token = 0;
  }

  setup.draft_tokens_max = random.below(4);
  std::vector<CacheGroup>& groups = setup.groups;
  if (!has_chance(random, 15)) groups.push_back(full_group());
  std::uint32_t r = 1;
  if (sim.page_tokens > 1 && has_chance(random, 35)) {
    r = sim.page_tokens % 2 == 0 && has_chance(random, 50) ? 2 : sim.page_tokens;
    groups.push_back(compressed_group(r));
  }
  if (has_chance(random, 70)) groups.push_back(draw_window(random, sim.page_tokens));
  if (has_chance(random, 20)) {
    groups.push_back(draw_window(random, sim.page_tokens));
    groups.back().name = "second window";
  }
  const std::uint32_t states = random.below(3) + (groups.size() < 2 ? 1 : 0);
  for (std::uint32_t i = 0; i < states; ++i) {
    groups.push_back(draw_state(random, r, setup.draft_tokens_max));
    groups.back().name += " " + std::to_string(i);
    GroupRetention& retention = groups.back().retention;
    if (sim.has_disk && retention.rule == RetentionRule::Every && has_chance(random, 60)) {
      retention.interval_tokens = sim.page_tokens;  // where pages end, and requests can go on
    }
  }
  for (std::size_t i = groups.size(); i > 1; --i) {
    std::swap(groups[i - 1], groups[random.below(static_cast<std::uint32_t>(i))]);
  }

  const BudgetRequest request{.page = {.page_tokens = sim.page_tokens},
                              .context_tokens_max = sim.context_tokens_max,
                              .in_flight_tokens = sim.step_tokens_max,
                              .rewind_tokens = sim.window_rewind_tokens};
  for (const CacheGroup& group : groups) {
    const bool is_window = group.kind == GroupKind::Window && !has_slot(group);
    const auto least =
        is_window ? static_cast<std::uint32_t>(pages_of_request(group, request, sim.context_tokens_max)) : 1U;
    setup.group_page_counts.push_back(least + 1 + random.below(is_window ? 2 * least : 12));
    setup.host_group_page_counts.push_back(1 + random.below(has_chance(random, 30) ? 4 : 40));
  }
  setup.state_slot_count = has_chance(random, 30) ? 1 + random.below(sim.sequence_count_max) : 0;
  if (disk_random != nullptr) draw_disk_groups(setup, *disk_random);
  return setup;
}

std::string to_string(const HybridSimSetup& setup) {
  std::string text = to_string(setup.sim) + "\ndrafts " + std::to_string(setup.draft_tokens_max) + ", state slots " +
                     std::to_string(setup.state_slot_count);
  for (std::size_t i = 0; i < setup.groups.size(); ++i) {
    const CacheGroup& group = setup.groups[i];
    text += "\n  " + group.name + ": " + std::string(to_string(group.kind));
    const auto add = [&](const char* name, std::uint64_t value) {
      if (value > 0) text += ", " + std::string(name) + " " + std::to_string(value);
    };
    add("window", group.window_tokens);
    add("sink", group.sink_tokens);
    add("tokens per entry", group.tokens_per_entry);
    add("slot entries", group.slot_entries);
    add("slot history", group.slot_history);
    add("snapshot entries", group.snapshot_entries);
    add("boundary", group.boundary_tokens);
    add("retention", static_cast<std::uint64_t>(group.retention.rule));
    add("every", group.retention.interval_tokens);
    add("replay", group.replay.tokens);
    add("pages", setup.group_page_counts[i]);
    add("host pages", setup.host_group_page_counts[i]);
    if (!setup.sim.has_disk) continue;
    add("retention on disk", static_cast<std::uint64_t>(setup.disk_group_retention[i].rule));
    add("every", setup.disk_group_retention[i].interval_tokens);
    if (!setup.disk_group_capacity_bytes.empty()) add("bytes on disk", setup.disk_group_capacity_bytes[i]);
  }
  return text;
}

CacheConfig make_config(const HybridSimSetup& setup) {
  CacheConfig config = make_config(setup.sim);
  config.layout = ModelLayout::create("hybrid sim", setup.groups).value();
  config.device.group_page_counts = setup.group_page_counts;
  config.device.state_slot_count = setup.state_slot_count;
  config.host.group_page_counts = setup.host_group_page_counts;
  config.disk.group_retention = setup.disk_group_retention;
  config.disk.group_capacity_bytes = setup.disk_group_capacity_bytes;
  return config;
}

}  // namespace quire::testing
