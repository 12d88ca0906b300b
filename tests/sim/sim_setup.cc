// SPDX-License-Identifier: Apache-2.0
#include "sim_setup.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/hash.h"
#include "sim_groups_setup.h"

namespace quire::testing {

namespace {

std::string draw_policy(Random& random) {
  const auto names = policy_names();
  return std::string(names[random.below(static_cast<std::uint32_t>(names.size()))]);
}

// Often off; otherwise rare or frequent.
std::uint32_t draw_chance(Random& random, std::array<std::uint32_t, 4> chances) {
  return pick(random, chances);
}

// Names that are computed late, while everything else goes on: little happens besides requests.
void draw_lags(SimSetup& setup, Random& random, bool is_quiet) {
  setup.disk_stuck_chance = 30;
  setup.disk_write_policy = WritePolicy::WriteThrough;
  setup.device_page_count = pick(random, std::array{4U, 4U, 6U});
  setup.device_page_count_max = 2 * setup.device_page_count;
  setup.host_page_count = pick(random, std::array{2U, 4U, 6U});
  setup.transfer_count_max = pick(random, std::array{4U, 8U, 32U});
  setup.serve_chance = 150;
  setup.host_chance = 75;
  setup.document_chance = 95;
  if (!is_quiet) return;
  for (std::uint32_t SimSetup::* const chance :
       {&SimSetup::algebra_chance, &SimSetup::preempt_chance,    &SimSetup::abort_chance,
        &SimSetup::window_chance,  &SimSetup::pause_chance,      &SimSetup::sleep_chance,
        &SimSetup::resize_chance,  &SimSetup::keep_chance,       &SimSetup::drop_chance,
        &SimSetup::ttl_chance,     &SimSetup::extra_key_chance,  &SimSetup::options_chance,
        &SimSetup::flush_chance,   &SimSetup::direct_chance,     &SimSetup::io_chance,
        &SimSetup::flip_chance,    &SimSetup::lost_write_chance, &SimSetup::misdirected_chance,
        &SimSetup::stuck_chance,   &SimSetup::draft_chance,      &SimSetup::tree_chance}) {
    setup.*chance = 0;
  }
  setup.disk_write_bytes_per_day = 0;
  setup.crash_chance = std::min(setup.crash_chance, 5U);
  setup.compute_ns_per_token = 0;
  setup.load_timeout_ns = 0;
  setup.step_tokens_max = 128;
  setup.mover_chance = 50;
  setup.disk_chance = 60;
  setup.wind_down_every = 5'000;
  setup.check_every = 16;
}

// The same pages behind different beginnings, and host pages that soon hold something else.
void draw_shared_pages(SimSetup& setup, Random& random) {
  setup.beginning_count = 5 + random.below(4);
  setup.document_count = 12;
  setup.key_space_name_count = 1;
  setup.device_page_count = 4;
  setup.device_page_count_max = 8;
  setup.transfer_count_max = 32;
  setup.host_page_count = pick(random, std::array{4U, 6U, 8U});
  setup.context_tokens_max = pick(random, std::array{48U, 64U});
  setup.sequence_count_max = 2 + random.below(2);
  setup.host_chance = 40;
  setup.write_policy = WritePolicy::WriteBack;
  setup.prefetch_chance = 90;
  setup.serve_chance = 400;
}

// More key spaces than places for them: they get each other's indices.
void draw_swapped_key_spaces(SimSetup& setup, Random& random) {
  setup.key_space_name_count = 2 + random.below(3);
  setup.key_space_count_max = pick(random, std::array{1U, 1U, 1U, 2U});
  setup.sequence_count_max = 2;
  setup.document_count = 4;
  setup.context_tokens_max = pick(random, std::array{40U, 64U});
  setup.write_policy = WritePolicy::WriteThrough;
}

SimSetup draw_plain_setup(Random& random) {
  SimSetup setup;
  setup.page_tokens = pick(random, std::array{1U, 2U, 3U, 4U, 4U, 8U});
  setup.layer_count = pick(random, std::array{1U, 1U, 2U, 3U});
  setup.byte_layout = pick(random, std::array{ByteLayout::PageFirst, ByteLayout::LayerFirst});
  setup.device_page_count = pick(random, std::array{2U, 4U, 8U, 12U, 16U, 16U, 24U, 24U, 48U});
  setup.host_page_count = pick(random, std::array{1U, 3U, 9U, 16U, 24U, 32U, 64U, 96U});
  if (has_chance(random, 5)) {  // of a middling size
    setup.page_tokens = 16;
    setup.device_page_count = 100 + random.below(100);
    setup.host_page_count = 100 + random.below(300);
  }
  const std::uint32_t pool_tokens = setup.page_tokens * setup.device_page_count;
  setup.context_tokens_max = std::min(pool_tokens, pick(random, std::array{20U, 40U, 64U, 96U, 300U}));
  if (has_chance(random, 70))
    setup.context_tokens_max =
        std::min(setup.context_tokens_max, std::max(std::min(pool_tokens, 3 * setup.page_tokens), pool_tokens / 3));
  setup.sequence_count_max = pick(random, std::array{2U, 3U, 4U, 6U, 9U});
  setup.step_tokens_max = pick(random, std::array{8U, 24U, 64U, 128U});
  setup.steps_in_flight_max = 1 + random.below(3);
  setup.key_space_name_count = pick(random, std::array{1U, 1U, 2U, 4U});
  setup.key_space_count_max = 1 + random.below(5);
  if (has_chance(random, 70))
    setup.key_space_count_max = std::max(setup.key_space_count_max, setup.key_space_name_count + 1);
  if (has_chance(random, 50)) setup.partial_reuse_min_tokens = 1 + random.below(setup.page_tokens);
  setup.dedup = !has_chance(random, 20);
  setup.whole_runs = has_chance(random, 10);
  setup.policy = draw_policy(random);
  setup.host_policy = draw_policy(random);
  setup.write_policy =
      pick(random, std::array{WritePolicy::WriteBack, WritePolicy::WriteBack, WritePolicy::WriteThrough,
                              WritePolicy::WriteThrough, WritePolicy::Selective});
  setup.write_hits_min = 1 + random.below(3);
  if (has_chance(random, 60)) {
    setup.clean_reserve_pages = pick(random, std::array{0U, 1U, 2U, setup.device_page_count / 2});
  }
  setup.layer_bands = static_cast<std::uint16_t>(1 + random.below(setup.layer_count));
  setup.rank_count = has_chance(random, 25) ? 2 : 1;
  setup.transfer_count_max = pick(random, std::array{1U, 2U, 3U, 8U, 32U});
  setup.transfer_pages_max = pick(random, std::array{1U, 2U, 5U, 16U});
  if (has_chance(random, 50)) setup.lost_page_count_max = pick(random, std::array{0U, 1U, 8U, 64U, 1000U});

  setup.vocabulary = pick(random, std::array{2U, 3U, 3U, 9U});
  setup.segment_tokens_max = pick(random, std::array{3U, 8U, 20U});
  setup.document_count = pick(random, std::array{1U, 3U, 6U, 12U});
  setup.document_chance = pick(random, std::array{20U, 60U, 90U});
  setup.chat_chance = pick(random, std::array{0U, 30U, 60U});
  setup.algebra_chance = draw_chance(random, {0, 20, 40, 80});
  setup.preempt_chance = draw_chance(random, {0, 10, 30, 60});
  setup.draft_chance = draw_chance(random, {0, 0, 0, 20});
  setup.tree_chance = draw_chance(random, {0, 0, 0, 15});
  setup.abort_chance = draw_chance(random, {0, 0, 5, 20});
  setup.keep_chance = draw_chance(random, {0, 0, 10, 40});
  setup.drop_chance = draw_chance(random, {0, 0, 0, 2});
  setup.extra_key_chance = draw_chance(random, {0, 0, 0, 40});
  setup.options_chance = draw_chance(random, {0, 0, 20, 60});
  setup.ttl_chance = draw_chance(random, {0, 0, 0, 50});
  setup.prefetch_chance = draw_chance(random, {0, 20, 60, 90});

  const std::uint64_t page_bytes = std::uint64_t{setup.page_tokens} * setup.layer_count * 8;
  setup.op_ns_max = pick(random, std::array<TimeNs, 3>{10, 1'000, 100'000});
  // A page takes from a fraction of an operation's time to many of them.
  setup.bytes_per_ns = static_cast<double>(page_bytes) /
                       (static_cast<double>(setup.op_ns_max) * pick(random, std::array{0.02, 0.2, 1.0, 4.0}));
  if (has_chance(random, 40)) {
    const double page_ns = static_cast<double>(page_bytes) / setup.bytes_per_ns;
    setup.compute_ns_per_token = std::max<TimeNs>(
        1, static_cast<TimeNs>(page_ns / setup.page_tokens * pick(random, std::array{0.3, 0.8, 1.5, 4.0})));
  }
  if (has_chance(random, 35)) setup.load_timeout_ns = setup.op_ns_max * pick(random, std::array{5, 50, 500});
  setup.mover_chance = pick(random, std::array{40U, 60U, 80U});
  setup.moves_in_order = has_chance(random, 50);
  setup.reorders = has_chance(random, 60);
  const bool has_faults = has_chance(random, 75);
  const auto fault = [&](std::array<std::uint32_t, 4> chances) {
    const std::uint32_t chance = draw_chance(random, chances);
    return has_faults ? chance : 0;
  };
  setup.io_chance = fault({0, 0, 3, 25});
  setup.flip_chance = fault({0, 0, 1, 8});
  setup.lost_write_chance = fault({0, 0, 3, 20});
  setup.misdirected_chance = fault({0, 0, 2, 10});
  setup.odd_completion_chance = fault({0, 0, 5, 20});
  setup.stuck_chance = fault({0, 0, 1, 3});
  setup.partial_chance = fault({0, 0, 3, 15});
  setup.honour_chance = pick(random, std::array{0U, 50U, 100U});

  // What follows every page knows its path by its tokens, so these must tell everything.
  setup.has_path_model = has_chance(random, 70);
  setup.extra_keys_vary = !setup.has_path_model;
  const bool is_small = setup.device_page_count + setup.host_page_count <= 32;
  setup.wind_down_every = pick(random, std::array{500U, 2'000U, 5'000U});
  const bool is_large = setup.device_page_count >= 100;
  setup.check_every = is_small ? 2 : is_large ? 128 : 16;

  setup.save_chance = draw_chance(random, {0, 30, 60, 90});
  setup.pause_chance = draw_chance(random, {0, 0, 1, 3});
  setup.sleep_chance = draw_chance(random, {0, 0, 0, 1});
  setup.window_chance = draw_chance(random, {0, 0, 3, 8});
  setup.resize_chance = draw_chance(random, {0, 0, 0, 1});
  setup.device_page_count_max = 2 * setup.device_page_count;
  setup.window_rewind_tokens = random.below(2) * random.below(6);
  return setup;
}

// Few and small pages, so that little is enough to fill every tier.
void draw_disk_setup(SimSetup& setup, Random& random, const SimMutation& mutation) {
  setup.has_disk = true;
  setup.page_tokens = 16;
  setup.layer_count = 1 + random.below(2);
  setup.layer_bands = static_cast<std::uint16_t>(1 + random.below(setup.layer_count));
  setup.rank_count = 1;
  setup.device_page_count = pick(random, std::array{4U, 6U, 8U, 12U, 16U, 24U});
  setup.device_page_count_max = 2 * setup.device_page_count;
  setup.host_page_count = pick(random, std::array{1U, 2U, 4U, 6U, 9U, 16U});
  setup.context_tokens_max =
      std::min(16 * setup.device_page_count, pick(random, std::array{40U, 64U, 80U, 100U, 160U}));
  setup.step_tokens_max = pick(random, std::array{24U, 64U, 128U});
  if (setup.partial_reuse_min_tokens) setup.partial_reuse_min_tokens = 1 + random.below(16);
  if (setup.clean_reserve_pages) setup.clean_reserve_pages = random.below(3);
  setup.segment_tokens_max = pick(random, std::array{20U, 40U});
  setup.document_count = pick(random, std::array{4U, 8U, 12U});
  setup.document_chance = pick(random, std::array{60U, 90U, 95U});
  setup.transfer_count_max = pick(random, std::array{1U, 2U, 4U, 8U, 32U});
  setup.drop_chance = draw_chance(random, {0, 0, 1, 3});
  setup.check_every = pick(random, std::array{2U, 16U});

  setup.disk_directory_count = 1 + random.below(2);
  // Four segments of one page each are the least; eight of a few pages are more like it.
  const std::uint64_t share_bytes = std::uint64_t{4096} * pick(random, std::array{24U, 40U, 64U, 160U});
  setup.disk_capacity_bytes = setup.disk_directory_count * share_bytes;
  setup.disk_write_policy = pick(random, std::array{WritePolicy::WriteThrough, WritePolicy::WriteThrough,
                                                    WritePolicy::WriteBack, WritePolicy::Selective});
  setup.disk_write_hits_min = 1 + random.below(3);
  if (has_chance(random, 20)) {
    setup.disk_write_bytes_per_day = std::uint64_t{24} * 4096 * pick(random, std::array{8U, 40U, 200U});
  }
  if (has_chance(random, 20)) setup.zstd_level = 1;
  setup.hash_seed = random.next();

  const std::uint64_t page_bytes = std::uint64_t{setup.page_tokens} * setup.layer_count * 8;
  const auto page_ns = [&] {
    return static_cast<double>(setup.op_ns_max) * pick(random, std::array{0.02, 0.2, 1.0, 4.0});
  };
  setup.bytes_per_ns = static_cast<double>(page_bytes) / page_ns();
  setup.disk_bytes_per_ns = static_cast<double>(page_bytes) / page_ns();
  if (setup.compute_ns_per_token > 0) {
    setup.compute_ns_per_token = std::max<TimeNs>(
        1, static_cast<TimeNs>(page_ns() / setup.page_tokens * pick(random, std::array{0.3, 0.8, 1.5, 4.0})));
  }
  setup.disk_chance = pick(random, std::array{15U, 35U, 60U});
  setup.flush_chance = draw_chance(random, {0, 1, 1, 3});
  setup.direct_chance = draw_chance(random, {0, 0, 2, 6});
  setup.serve_chance = draw_chance(random, {0, 5, 20, 60});
  setup.host_chance = draw_chance(random, {0, 0, 20, 60});
  setup.disk_stuck_chance = draw_chance(random, {0, 0, 2, 6});
  setup.crash_chance = draw_chance(random, {0, 5, 20, 60});
  const bool is_forced = mutation.shares_pages || mutation.swaps_key_spaces;
  const std::uint32_t shape = random.below(100);
  const bool shares_pages = is_forced ? mutation.shares_pages : shape < 25;
  const bool swaps_key_spaces = is_forced ? mutation.swaps_key_spaces : shape >= 75;
  if (shares_pages || swaps_key_spaces) draw_lags(setup, random, is_forced || has_chance(random, 70));
  if (shares_pages) draw_shared_pages(setup, random);
  if (swaps_key_spaces) draw_swapped_key_spaces(setup, random);
  const bool has_faults = has_chance(random, 60) && !is_forced;
  const auto fault = [&](std::array<std::uint32_t, 4> chances) {
    const std::uint32_t chance = draw_chance(random, chances);
    return has_faults ? chance : 0;
  };
  setup.disk_read_failures = fault({0, 0, 5, 100});
  setup.disk_write_failures = fault({0, 0, 2, 30});
  setup.disk_sync_failures = fault({0, 0, 5, 60});
  setup.disk_flip_chance = fault({0, 0, 5, 40});
  setup.disk_forge_chance = fault({0, 0, 5, 40});
  setup.disk_full_chance = fault({0, 0, 0, 10});
  setup.disk_break_chance = fault({0, 0, 2, 10});
  setup.opening_chance = fault({0, 20, 50, 80});
}

// Most requests come back for pages that have gone down to the host, and steps are in flight while these arrive.
void draw_ahead(SimSetup& setup, Random& random) {
  setup.ahead_chance = pick(random, std::array{40U, 80U, 100U});
  setup.race_chance = pick(random, std::array{5U, 30U, 100U});
  setup.mover_chance = pick(random, std::array{20U, 40U});
  if (!setup.has_disk) {
    setup.layer_count = 1 + random.below(4);
    setup.device_page_count = std::min(setup.device_page_count, 24U);
    setup.device_page_count_max = 2 * setup.device_page_count;
    if (setup.clean_reserve_pages) {
      setup.clean_reserve_pages = std::min(*setup.clean_reserve_pages, setup.device_page_count / 2);
    }
    setup.context_tokens_max = std::min(setup.context_tokens_max, setup.page_tokens * setup.device_page_count);
    setup.host_page_count = std::max(setup.host_page_count, (1 + random.below(4)) * setup.device_page_count);
  }
  setup.layer_bands = static_cast<std::uint16_t>(1 + random.below(setup.layer_count));
  setup.steps_in_flight_max = 1 + random.below(3);
  setup.document_count = 2 + random.below(4);
  setup.document_chance = 90;
  setup.run_chance = pick(random, std::array{5U, 20U});
  setup.finish_chance = pick(random, std::array{4U, 12U, 30U});
  setup.abort_chance = pick(random, std::array{0U, 10U, 30U});
  setup.drop_chance = pick(random, std::array{0U, 0U, 1U, 3U});
  if (has_chance(random, 70)) {
    setup.transfer_pages_max = 16;
    setup.transfer_count_max = std::max(setup.transfer_count_max, 8U);
  }
  if (has_chance(random, 70)) setup.prefetch_chance = pick(random, std::array{0U, 20U});
  if (has_chance(random, 80)) setup.compute_ns_per_token = 0;
  if (has_chance(random, 50)) setup.io_chance = pick(random, std::array{0U, 5U, 30U});
  if (has_chance(random, 50)) setup.flip_chance = pick(random, std::array{0U, 4U, 20U});
}

std::string disk_path(std::uint32_t directory) {
  return "disk " + std::to_string(directory);
}

// Twice the files, and as much room for each. The cache tells shards apart by the heads of the pages that go to disk:
// it has one shard where none do.
void draw_disk_ranks(SimSetup& setup, Random& random) {
  bool has_pages_on_disk = !setup.has_groups();
  for (std::size_t group = 0; group < setup.groups.size(); ++group) {
    if (!is_anchored(setup.groups[group]) || has_store(setup, group)) has_pages_on_disk = true;
  }
  setup.rank_count = 2;
  setup.has_rank_pages = true;
  setup.shard_count = has_chance(random, 70) && has_pages_on_disk ? 2 : 1;
  setup.disk_capacity_bytes *= setup.shard_count;
  setup.disk_write_bytes_per_day *= setup.shard_count;
  for (std::uint64_t& bytes : setup.disk_group_capacity_bytes) bytes *= setup.shard_count;
}

// Values of a few pages, and a server that keeps a few dozen of them.
void draw_remote(SimSetup& setup, Random& random) {
  setup.has_remote = true;
  setup.transfer_count_max = std::max(setup.transfer_count_max, 8U);
  if (has_chance(random, 50)) setup.disk_access = TierAccess::WriteOnly;
  setup.remote_extent_bytes = pick(random, std::array{256U, 1'024U, 2'048U, 4'096U});
  setup.remote_write_policy = pick(random, std::array{WritePolicy::WriteThrough, WritePolicy::WriteThrough,
                                                      WritePolicy::WriteBack, WritePolicy::Selective});
  const auto timeout = [&] { return setup.op_ns_max * pick(random, std::array{10, 100, 1'000}); };
  setup.remote_find_timeout_ns = timeout();
  setup.remote_load_timeout_ns = timeout();
  setup.remote_store_timeout_ns = timeout();
  setup.remote_bytes_per_ns = setup.disk_bytes_per_ns * pick(random, std::array{0.1, 1.0, 10.0});
  setup.remote_value_count_max = pick(random, std::array{4U, 16U, 64U, 256U});
  setup.remote_evicts_any = has_chance(random, 30);
  setup.remote_chance = pick(random, std::array{30U, 60U});
  if (has_chance(random, 40)) return;
  const auto fault = [&] { return draw_chance(random, {0, 0, 5, 50}); };
  setup.remote_faults = {.refused_batches = fault(),
                         .late = fault(),
                         .failed = fault(),
                         .lost_puts = fault(),
                         .gone = fault(),
                         .promised = fault(),
                         .flipped_bits = fault(),
                         .foreign = fault(),
                         .other_lengths = fault()};
  setup.remote_node_chance = draw_chance(random, {0, 2, 10, 50});
  setup.remote_empty_chance = draw_chance(random, {0, 0, 1, 5});
}

// A third tier that is the first below the host. Requests and restarts stay what they are.
void draw_diskless(SimSetup& setup) {
  setup.is_diskless = true;
  setup.direct_chance = 0;  // they are calls of the disk tier
  setup.disk_read_failures = setup.disk_write_failures = setup.disk_sync_failures = 0;
  setup.disk_flip_chance = setup.disk_forge_chance = setup.disk_full_chance = setup.disk_break_chance = 0;
  setup.opening_chance = 0;
  setup.disk_write_bytes_per_day = 0;
  setup.zstd_level = 0;
}

bool is_drawn(SimSeeds seeds, Random& random) {
  const bool is_one = random.below(3) == 0;
  return seeds == SimSeeds::Always || (seeds == SimSeeds::Drawn && is_one);
}

}  // namespace

// Disk tier, running ahead and groups are drawn apart, so that seeds without them stay what they are.
SimSetup draw_sim_setup(std::uint64_t seed, const SimShape& shape, Random& random) {
  SimSetup setup = draw_plain_setup(random);
  Random disk_random(mix64(seed) + 1);
  Random groups_random(mix64(seed) + 2);
  Random ahead_random(mix64(seed) + 3);
  if (is_drawn(shape.disk_tier, disk_random)) draw_disk_setup(setup, disk_random, shape.mutation);
  const bool may_run_ahead = shape.ahead == SimSeeds::Always || seed >= kFirstAheadSeed;
  if (may_run_ahead && is_drawn(shape.ahead, ahead_random)) draw_ahead(setup, ahead_random);
  if (is_drawn(shape.groups, groups_random)) draw_groups(setup, groups_random);
  Random ranks_random(mix64(seed) + 3);
  if (setup.has_disk && shape.has_disk_ranks) draw_disk_ranks(setup, ranks_random);
  Random remote_random(mix64(seed) + 4);
  Random diskless_random(mix64(seed) + 5);
  if (setup.has_disk && shape.has_remote) {
    draw_remote(setup, remote_random);
    const bool is_one = has_chance(diskless_random, 25);
    if (shape.diskless == SimSeeds::Always || (shape.diskless == SimSeeds::Drawn && is_one)) draw_diskless(setup);
  }
  if (setup.has_files() && shape.mutation.damages_files) {
    setup.disk_flip_chance = 100;
    setup.disk_forge_chance = 200;
  }
  // A fault that is not noticed has to happen.
  if (!shape.mutation.checks_checksums && shape.mutation.breaks_bytes) setup.flip_chance = 8;
  if (!shape.mutation.checks_names && shape.mutation.breaks_bytes) {
    setup.lost_write_chance = 60;
    setup.misdirected_chance = 40;
  }
  if (!shape.mutation.breaks_bytes) {
    setup.flip_chance = 0;
    setup.lost_write_chance = 0;
    setup.misdirected_chance = 0;
  }
  // As it was opened, whatever its size will be.
  setup.lost_page_count_max = setup.lost_page_count_max.value_or(setup.device_page_count + setup.host_page_count);
  setup.has_chunks = shape.chunks && !setup.has_groups();
  return setup;
}

std::vector<std::string> disk_paths(const SimSetup& setup) {
  std::vector<std::string> paths;
  if (setup.is_diskless) return paths;
  for (std::uint32_t i = 0; i < setup.disk_directory_count * setup.shard_count; ++i) {
    std::string path = disk_path(i / setup.shard_count);
    if (setup.shard_count > 1) {
      path += "/shard-" + std::to_string(i % setup.shard_count) + "-of-" + std::to_string(setup.shard_count);
    }
    paths.push_back(path);
    for (std::size_t group = 0; group < setup.groups.size(); ++group) {
      if (has_store(setup, group)) paths.push_back(path + "/group-" + setup.groups[group].name);
    }
  }
  return paths;
}

std::vector<SimStore> disk_stores(const SimSetup& setup) {
  std::vector<SimStore> stores;
  if (setup.is_diskless) return stores;
  for (std::uint32_t shard = 0; shard < setup.shard_count; ++shard) {
    stores.push_back({.shard = shard, .pool = 0});
    std::uint32_t anchored_count = 0;
    for (std::size_t group = 0; group < setup.groups.size(); ++group) {
      if (!is_anchored(setup.groups[group])) continue;
      ++anchored_count;
      if (has_store(setup, group)) stores.push_back({.shard = shard, .pool = anchored_count});
    }
  }
  return stores;
}

bool is_anchored(const CacheGroup& group) {
  return group.kind != GroupKind::Full && group.kind != GroupKind::Compressed;
}

std::string to_string(const SimSetup& setup) {
  std::string text;
  const auto add = [&](const char* name, const std::string& value) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + value;
  };
  const auto number = [&](const char* name, std::int64_t value) { add(name, std::to_string(value)); };
  const auto flag = [&](const char* name, bool value) {
    if (value) text += ", " + std::string(name);
  };
  const auto optional = [&](const char* name, std::optional<std::uint32_t> value) {
    if (value) number(name, *value);
  };
  number("page_tokens", setup.page_tokens);
  number("layers", setup.layer_count);
  number("device pages", setup.device_page_count);
  number("host pages", setup.host_page_count);
  number("context", setup.context_tokens_max);
  number("sequences", setup.sequence_count_max);
  number("step tokens", setup.step_tokens_max);
  number("in flight", setup.steps_in_flight_max);
  number("key spaces", setup.key_space_count_max);
  optional("partial_reuse_min_tokens", setup.partial_reuse_min_tokens);
  add("policies", setup.policy + "/" + setup.host_policy);
  add("write", setup.write_policy == WritePolicy::WriteBack      ? "back"
               : setup.write_policy == WritePolicy::WriteThrough ? "through"
                                                                 : "selective");
  optional("clean_reserve", setup.clean_reserve_pages);
  number("ns per token", setup.compute_ns_per_token);
  number("load timeout", setup.load_timeout_ns);
  number("bands", setup.layer_bands);
  number("ranks", setup.rank_count);
  number("transfers", setup.transfer_count_max);
  number("transfer pages", setup.transfer_pages_max);
  optional("lost pages", setup.lost_page_count_max);
  flag("no dedup", !setup.dedup);
  flag("whole runs", setup.whole_runs);
  flag("layer-first", setup.byte_layout == ByteLayout::LayerFirst);
  flag("path model", setup.has_path_model);
  if (setup.ahead_chance > 0) number("ahead", setup.ahead_chance);
  if (setup.has_disk) {
    number("directories", setup.disk_directory_count);
    number("disk bytes", static_cast<std::int64_t>(setup.disk_capacity_bytes));
    number("disk write policy", static_cast<std::int64_t>(setup.disk_write_policy));
    number("bytes per day", static_cast<std::int64_t>(setup.disk_write_bytes_per_day));
    number("zstd", setup.zstd_level);
    number("beginnings", setup.beginning_count);
    if (setup.has_rank_pages) number("shards", setup.shard_count);
  }
  if (setup.has_remote) {
    flag("disk only written", setup.disk_access == TierAccess::WriteOnly);
    flag("no disk", setup.is_diskless);
    number("remote extent bytes", static_cast<std::int64_t>(setup.remote_extent_bytes));
    number("remote write policy", static_cast<std::int64_t>(setup.remote_write_policy));
    number("remote values", setup.remote_value_count_max);
    number("remote timeouts", setup.remote_find_timeout_ns);
    number("to load", setup.remote_load_timeout_ns);
    number("to store", setup.remote_store_timeout_ns);
  }
  text += "; faults";
  number("io", setup.io_chance);
  number("flip", setup.flip_chance);
  number("lost write", setup.lost_write_chance);
  number("misdirected", setup.misdirected_chance);
  number("odd", setup.odd_completion_chance);
  number("stuck", setup.stuck_chance);
  number("partial", setup.partial_chance);
  if (setup.has_disk) {
    number("disk read", setup.disk_read_failures);
    number("disk write", setup.disk_write_failures);
    number("disk sync", setup.disk_sync_failures);
    number("disk flip", setup.disk_flip_chance);
    number("disk forge", setup.disk_forge_chance);
    number("disk full", setup.disk_full_chance);
    number("disk break", setup.disk_break_chance);
    number("crash", setup.crash_chance);
    number("opening", setup.opening_chance);
  }
  if (setup.has_remote) {
    const SimRemoteServer::Faults& remote = setup.remote_faults;
    number("remote refused", remote.refused_batches);
    number("late", remote.late);
    number("failed", remote.failed);
    number("lost puts", remote.lost_puts);
    number("gone", remote.gone);
    number("promised", remote.promised);
    number("flipped bits", remote.flipped_bits);
    number("foreign", remote.foreign);
    number("other lengths", remote.other_lengths);
    number("node", setup.remote_node_chance);
    number("empty", setup.remote_empty_chance);
  }
  return text + to_string_of_groups(setup);
}

CacheConfig make_config(const SimSetup& setup) {
  const CacheGroup group{.name = "pages",
                         .layers = layer_range(0, setup.layer_count),
                         .components = {{.name = "bytes", .element = ElementType::Bytes, .dim = 8}},
                         .keys_rotated = false};
  std::vector<CacheGroup> groups = setup.has_groups() ? setup.groups : std::vector{group};
  // As many heads as shards: of each page a rank has as much as it would have alone.
  for (CacheGroup& each : groups) {
    for (Component& component : each.components) {
      if (setup.shard_count > 1) component.sharding = Sharding::Heads;
      component.heads *= setup.shard_count;
    }
  }
  CacheConfig config{
      .layout = ModelLayout::create("sim", groups).value(),
      .page = {.page_tokens = setup.page_tokens, .rank_count = setup.has_rank_pages ? setup.rank_count : 1},
      .device = {.page_count = setup.device_page_count,
                 .group_page_counts = setup.group_page_counts,
                 .state_slot_count = setup.state_slot_count,
                 .byte_layout = setup.byte_layout},
      .sequence_count_max = setup.sequence_count_max,
      .context_tokens_max = setup.context_tokens_max,
      .step_tokens_max = setup.step_tokens_max,
      .dedup = setup.dedup,
      .steps_in_flight_max = setup.steps_in_flight_max,
      .tree_tokens_max = 8,
      .window_rewind_tokens = setup.window_rewind_tokens,
      .extra_key_count_max = 512,
      .key_space_count_max = setup.key_space_count_max,
      .keep_count_max = 4,
      .partial_reuse_min_tokens = setup.partial_reuse_min_tokens,
      .policy = setup.policy,
      .whole_runs = setup.whole_runs,
      .lost_page_count_max = setup.lost_page_count_max};
  config.host = {.page_count = setup.host_page_count,
                 .group_page_counts = setup.host_group_page_counts,
                 .policy = setup.host_policy,
                 .write_policy = setup.write_policy,
                 .write_hits_min = setup.write_hits_min,
                 .clean_reserve_pages = setup.clean_reserve_pages,
                 .compute_ns_per_token = setup.compute_ns_per_token,
                 .load_timeout_ns = setup.load_timeout_ns,
                 .layer_bands = setup.layer_bands,
                 .external_mover = true,
                 .rank_count = setup.rank_count,
                 .transfer_count_max = setup.transfer_count_max,
                 .transfer_pages_max = setup.transfer_pages_max};
  if (setup.has_chunks) config.chunks = {.page_count_max = setup.device_page_count, .pin_count_max = 4};
  if (setup.has_disk) config.hash_seed = setup.hash_seed;
  if (setup.has_files()) {
    config.disk = {.capacity_bytes = setup.disk_capacity_bytes,
                   .access = setup.disk_access,
                   .write_policy = setup.disk_write_policy,
                   .write_hits_min = setup.disk_write_hits_min,
                   .write_bytes_per_day = setup.disk_write_bytes_per_day,
                   .queue_depth = 4,
                   .zstd_level = setup.zstd_level,
                   .group_retention = setup.disk_group_retention,
                   .group_capacity_bytes = setup.disk_group_capacity_bytes};
    for (std::uint32_t i = 0; i < setup.disk_directory_count; ++i) config.disk.directories.push_back(disk_path(i));
  }
  if (setup.has_remote) {  // its store comes when the cache is opened
    config.remote = {.extent_bytes = setup.remote_extent_bytes,
                     .find_timeout_ns = setup.remote_find_timeout_ns,
                     .load_timeout_ns = setup.remote_load_timeout_ns,
                     .store_timeout_ns = setup.remote_store_timeout_ns,
                     .write_policy = setup.remote_write_policy,
                     .write_hits_min = setup.disk_write_hits_min,
                     .group_retention = setup.disk_group_retention};
  }
  return config;
}

void SimCounts::add(SimEvent event, std::uint64_t count) {
  events[static_cast<std::size_t>(event)] += count;
  if (prints && count > 0) print("  " + std::string(to_string(event)));
}

void SimCounts::print(const std::string& line) {
  std::printf("%s\n", line.c_str());
}

}  // namespace quire::testing
