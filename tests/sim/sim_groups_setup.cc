// SPDX-License-Identifier: Apache-2.0
#include "sim_groups_setup.h"

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
      const std::uint32_t sink = window > 1 && has_chance(random, 25) ? 1 + random.below(window - 1) : 0;
      CacheGroup ring =
          ring_group(window, sink + window + drafts + random.below(4), draw_snapshot_retention(random, 1));
      ring.sink_tokens = sink;
      ring.keys_rotated = sink == 0;
      return ring;
    }
    case 1:
      return tail_group(r, r, (2 * r) + 1 + drafts + random.below(4), draw_snapshot_retention(random, r));
    case 2:
      return tail_group(r, 0, (2 * r) + 2 + drafts, {.rule = RetentionRule::None});
    default:
      return state_group(drafts + random.below(3), draw_snapshot_retention(random, 1));
  }
}

// What groups have on disk: all of it or less, and little room for it.
void draw_disk_groups(SimSetup& setup, Random& random) {
  std::uint64_t history_bytes = 0;
  for (const CacheGroup& group : setup.groups) {
    GroupRetention& retention = setup.disk_group_retention.emplace_back();
    const std::uint32_t drawn = random.below(100);
    if (is_anchored(group) && has_pages(group) && drawn < 30) {
      retention = {.rule = RetentionRule::Every, .interval_tokens = setup.page_tokens * (1 + random.below(3))};
    } else if (is_anchored(group) && has_pages(group) && group.replay.tokens > 0 && drawn < 65) {
      retention = {.rule = RetentionRule::None};
    }
    if (!is_anchored(group))
      history_bytes += PageGeometry::create(group, {.page_tokens = setup.page_tokens})->page_bytes();
  }
  DiskConfig disk;
  disk.directories.resize(setup.disk_directory_count);
  const auto draw_bytes = [&](std::uint64_t page_bytes) {
    return disk.capacity_bytes_min(page_bytes) * pick(random, std::array{1U, 2U, 3U, 8U, 20U});
  };
  setup.disk_capacity_bytes = draw_bytes(std::max<std::uint64_t>(history_bytes, setup.page_tokens));
  for (std::size_t i = 0; i < setup.groups.size(); ++i) {
    std::uint64_t& bytes = setup.disk_group_capacity_bytes.emplace_back(0);
    if (!has_store(setup, i)) continue;
    bytes = draw_bytes(PageGeometry::create(setup.groups[i], {.page_tokens = setup.page_tokens})->page_bytes());
    setup.disk_capacity_bytes += bytes;
  }
  if (!has_chance(random, 25)) return;
  setup.disk_capacity_bytes *= 12;  // every share is enough then
  setup.disk_group_capacity_bytes.clear();
}

// The device alone.
void draw_no_host(SimSetup& setup) {
  setup.host_page_count = 0;
  setup.host_group_page_counts.clear();
  setup.clean_reserve_pages.reset();
  setup.flip_chance = 0;
  setup.pause_chance = 0;
}

}  // namespace

bool has_store(const SimSetup& setup, std::size_t group_index) {
  const CacheGroup& group = setup.groups[group_index];
  return is_anchored(group) && has_pages(group) && setup.disk_group_retention[group_index].rule != RetentionRule::None;
}

void draw_groups(SimSetup& setup, Random& random) {
  setup.layer_count = 1;
  setup.layer_bands = 1;
  setup.context_tokens_max = std::min(setup.context_tokens_max, setup.has_disk ? 160U : 80U);
  // Not for several groups, or drawn below.
  for (std::uint32_t SimSetup::* const chance :
       {&SimSetup::save_chance, &SimSetup::resize_chance, &SimSetup::tree_chance}) {
    setup.*chance = 0;
  }
  setup.device_page_count_max = setup.device_page_count;
  setup.has_path_model = false;   // what is held is looked at instead,
  setup.extra_keys_vary = false;  // and paths are told apart by their tokens
  setup.wind_down_every = 1'000;
  // States and windows are spoilt by steps that did not happen, behind others that did.
  if (!setup.has_disk) {
    setup.steps_in_flight_max = 1 + random.below(4);
    setup.run_chance = pick(random, std::array{2U, 20U});
    setup.finish_chance = pick(random, std::array{4U, 12U, 30U});
    setup.abort_chance = pick(random, std::array{0U, 10U, 20U, 40U});
  }
  // Most requests come back for something that has gone down to the host.
  if (!setup.has_disk && has_chance(random, 60)) {
    setup.host_page_count = std::max(setup.host_page_count, (2 + random.below(4)) * setup.device_page_count);
    setup.document_count = 3 + random.below(4);
    setup.document_chance = 95;
    setup.serve_chance = pick(random, std::array{0U, 30U, 100U});
    setup.transfer_count_max = std::max(setup.transfer_count_max, 4U);
  }

  // Or from there to disk.
  if (setup.has_disk && setup.beginning_count == 0 && has_chance(random, 70)) {
    setup.document_count = 2 + random.below(4);
    setup.document_chance = 95;
    setup.host_chance = 0;
    setup.prefetch_chance = pick(random, std::array{0U, 10U, 30U});
    setup.serve_chance = std::max(setup.serve_chance, 30U);
    setup.crash_chance = std::max(setup.crash_chance, 10U);
    setup.flush_chance = std::max(setup.flush_chance, 2U);
    setup.transfer_count_max = std::max(setup.transfer_count_max, 4U);
    if (has_chance(random, 60)) setup.compute_ns_per_token = 0;
  }

  setup.draft_tokens_max = random.below(4);
  setup.draft_chance = setup.draft_tokens_max > 0 ? 30 : 0;
  std::vector<CacheGroup>& groups = setup.groups;
  if (!has_chance(random, 15)) groups.push_back(full_group());
  if (!setup.has_disk && setup.context_tokens_max >= 16 && has_chance(random, 15)) {
    groups.push_back(full_group("ahead"));
    groups.back().lookahead_tokens = 1 + random.below(3);
    setup.extra_key_chance = 0;
    setup.window_chance = 0;  // what rows look ahead to is not told apart by windows
  }
  std::uint32_t r = 1;
  if (setup.page_tokens > 1 && has_chance(random, 35)) {
    r = setup.page_tokens % 2 == 0 && has_chance(random, 50) ? 2 : setup.page_tokens;
    groups.push_back(compressed_group(r));
  }
  for (CacheGroup& group : groups) group.keys_rotated = setup.window_chance == 0;
  if (has_chance(random, 70)) groups.push_back(draw_window(random, setup.page_tokens));
  if (has_chance(random, 20)) {
    groups.push_back(draw_window(random, setup.page_tokens));
    groups.back().name = "second window";
  }
  const std::uint32_t states = random.below(3) + (groups.size() < 2 ? 1 : 0);
  for (std::uint32_t i = 0; i < states; ++i) {
    groups.push_back(draw_state(random, r, setup.draft_tokens_max));
    groups.back().name += " " + std::to_string(i);
    GroupRetention& retention = groups.back().retention;
    if (setup.has_disk && retention.rule == RetentionRule::Every && has_chance(random, 60)) {
      retention.interval_tokens = setup.page_tokens;  // where pages end, and requests can go on
    }
  }
  for (std::size_t i = groups.size(); i > 1; --i) {
    std::swap(groups[i - 1], groups[random.below(static_cast<std::uint32_t>(i))]);
  }

  const BudgetRequest request{.page = {.page_tokens = setup.page_tokens},
                              .context_tokens_max = setup.context_tokens_max,
                              .in_flight_tokens = setup.step_tokens_max,
                              .rewind_tokens = setup.window_rewind_tokens};
  for (const CacheGroup& group : groups) {
    const bool is_window = group.kind == GroupKind::Window && !has_slot(group);
    const auto least =
        is_window ? static_cast<std::uint32_t>(pages_of_request(group, request, setup.context_tokens_max)) : 1U;
    setup.group_page_counts.push_back(least + 1 + random.below(is_window ? 2 * least : 12));
    setup.host_group_page_counts.push_back(1 + random.below(has_chance(random, 30) ? 4 : 40));
  }
  if (!setup.has_disk && has_chance(random, 10)) draw_no_host(setup);
  setup.state_slot_count = has_chance(random, 30) ? 1 + random.below(setup.sequence_count_max) : 0;
  if (setup.has_disk) draw_disk_groups(setup, random);
  // Drawn last, so that the rest of a seed is what it was.
  if (has_chance(random, 50)) {
    setup.save_chance = pick(random, std::array{30U, 60U, 90U});
    setup.preempt_chance = std::max(setup.preempt_chance, 30U);
  }
  if (has_chance(random, 25)) {
    setup.resize_chance = 1;
    setup.device_page_count_max = 2 * setup.device_page_count;
  }
}

std::string to_string_of_groups(const SimSetup& setup) {
  if (!setup.has_groups()) return "";
  std::string text =
      "\ndrafts " + std::to_string(setup.draft_tokens_max) + ", state slots " + std::to_string(setup.state_slot_count);
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
    add("lookahead", group.lookahead_tokens);
    add("pages", setup.group_page_counts[i]);
    add("host pages", setup.host_group_page_counts[i]);
    if (!setup.has_disk) continue;
    add("retention on disk", static_cast<std::uint64_t>(setup.disk_group_retention[i].rule));
    add("every", setup.disk_group_retention[i].interval_tokens);
    if (!setup.disk_group_capacity_bytes.empty()) add("bytes on disk", setup.disk_group_capacity_bytes[i]);
  }
  return text;
}

}  // namespace quire::testing
