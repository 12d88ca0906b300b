// SPDX-License-Identifier: Apache-2.0
//
// The remote tier of the simulation: a server in memory that outlives the process, loses values, breaks bytes, stops
// and comes back, and is asked only when the simulation says so.
#include <algorithm>
#include <bit>
#include <utility>

#include "base/hash.h"
#include "sim_groups_setup.h"
#include "simulation.h"
#include "tests/cache/group_pools.h"
#include "wire/extent.h"

namespace quire::testing {

// The server stays what it is from one life of the process to the next.
void Simulation::open_remote(CacheConfig& config) {
  if (!server_) {
    server_ = std::make_unique<SimRemoteServer>(random_.next());
    server_->set_faults(setup_.remote_faults);
    server_->set_value_count_max(setup_.remote_value_count_max, setup_.remote_evicts_any
                                                                    ? SimRemoteServer::Eviction::Random
                                                                    : SimRemoteServer::Eviction::LeastUsed);
    server_->set_batch_count_max(1 + random_.below(8));
    server_->set_checks_memory(setup_.flip_chance + setup_.misdirected_chance + setup_.lost_write_chance == 0);
  }
  remote_stores_.clear();  // an opening before may have failed
  for (std::uint32_t shard = 0; shard < setup_.shard_count; ++shard) {
    remote_stores_.push_back(std::make_unique<SimRemoteStore>(*server_));
  }
  if (setup_.shard_count > 1) {
    config.remote = {};  // see open_remote_shards()
  } else {
    config.remote.store = remote_stores_.front().get();
  }
}

// A cache takes one store of its caller's, and shards need one each. So what it makes of urls is made here.
Status Simulation::open_remote_shards() {
  const CacheConfig& config = cache_->config();
  const std::vector<std::vector<std::uint32_t>> host_pools = transfer_pools(config.layout);
  const auto page_bytes = [&](std::uint32_t group) { return cache_->geometry(group).page().page_bytes(); };
  const Stats stats = cache_->stats().value();
  const std::uint32_t memory_pages = setup_.device_page_count_max + stats.host_page_count;
  const std::uint32_t step_pages = (config.step_tokens_max / setup_.page_tokens) + config.sequence_count_max;
  RemoteMover::Config mover{
      .names = {.page_tokens = setup_.page_tokens,
                .device_page_count = memory_pages + 1,
                .host_page_count = memory_pages + 1,
                .key_space_count_max = config.key_space_count_max},
      .log = {.page_tokens = setup_.page_tokens,
              .entry_count_max = (4 * memory_pages) + (8 * step_pages),
              .page_count_max = (2 * memory_pages) + (8 * step_pages),
              .extra_key_count_max = 4 * (config.extra_key_count_max + step_pages + memory_pages)},
      .pools = {},
      .transfer_count_max = setup_.transfer_count_max,
      .transfer_pages_max = setup_.transfer_pages_max,
      .path_pages_max = (setup_.context_tokens_max / setup_.page_tokens) + 2,
      .find_timeout_ns = setup_.remote_find_timeout_ns,
      .load_timeout_ns = setup_.remote_load_timeout_ns,
      .store_timeout_ns = setup_.remote_store_timeout_ns,
      .has_threads = false,
      .clock = [this] { return told_; },
      .unix_time = {}};
  std::vector<LowerTier*> shards;
  for (std::uint32_t shard = 0; shard < setup_.shard_count; ++shard) {
    const std::size_t first = shard * host_pools.size();
    std::vector<HostPages*> hosts = {&host_pages_[first]};
    std::uint64_t bytes = 0;
    for (const std::uint32_t group : host_pools.front()) bytes += page_bytes(group);
    if (bytes == 0) bytes = setup_.page_tokens;  // no group keeps everything: what there is for the names alone
    const auto fitting = static_cast<std::uint32_t>(setup_.remote_extent_bytes / extent_bytes(1, bytes));
    mover.pools = {{.layout = {.page_bytes = bytes, .hash = 1 + shard},
                    .extent_pages = std::bit_floor(std::clamp(fitting, 1U, setup_.transfer_pages_max))}};
    for (std::uint32_t group = 0; group < setup_.groups.size(); ++group) {
      if (!is_anchored(setup_.groups[group])) continue;
      const auto pool = std::ranges::find(host_pools, std::vector<std::uint32_t>{group});
      const bool is_kept = has_store(setup_, group);
      hosts.push_back(is_kept ? &host_pages_[first + static_cast<std::size_t>(pool - host_pools.begin())] : nullptr);
      mover.pools.push_back({.is_kept = is_kept,
                             .layout = {.page_bytes = is_kept ? page_bytes(group) : 0,
                                        .hash = mix64((std::uint64_t{mover.pools.size()} << 32U) + shard)}});
    }
    QUIRE_TRY_ASSIGN(std::unique_ptr<RemoteMover> opened, RemoteMover::open(mover, *remote_stores_[shard], hosts));
    shards.push_back(remote_movers_.emplace_back(std::move(opened)).get());
  }
  QUIRE_TRY_ASSIGN(remote_shards_, RankedTier::open({.transfer_count_max = mover.transfer_count_max,
                                                     .path_pages_max = mover.path_pages_max},
                                                    shards));
  const std::vector<CacheForTests::LowerRow> rows = {{.tier = *remote_shards_,
                                                      .settings = {.tier = Tier::Remote,
                                                                   .write_policy = setup_.remote_write_policy,
                                                                   .write_hits_min = setup_.disk_write_hits_min,
                                                                   .find_timeout_ns = setup_.remote_find_timeout_ns,
                                                                   .load_timeout_ns = setup_.remote_load_timeout_ns,
                                                                   .store_timeout_ns = setup_.remote_store_timeout_ns,
                                                                   .group_retention = setup_.disk_group_retention}}};
  return CacheForTests::add_lowers(*cache_, rows, mover.log);
}

void Simulation::close_cache() {
  remote_movers_.clear();  // while what their plans point to is there: in the cache, and in what joins them
  remote_shards_.reset();
  cache_.reset();
  remote_stores_.clear();
}

void Simulation::remote_operation() {
  if (random_.below(1'000) < setup_.remote_node_chance) {
    using Node = SimRemoteServer::Node;
    constexpr std::array kNodes = {Node::Up, Node::Up, Node::Failing, Node::Stopped};
    server_->set_node(kNodes[below(kNodes.size())]);
    counts_.add(SimEvent::RemoteNodeChanged);
  }
  if (random_.below(1'000) < setup_.remote_empty_chance) {
    server_->restart_empty();
    counts_.add(SimEvent::RemoteEmptied);
  }
  (void)run_remote();
}

bool Simulation::run_remote() {
  if (!server_) return false;
  server_->set_now(now_);
  const bool has_answered = server_->run_one();
  bool has_run = false;
  for (const auto& mover : remote_movers_) has_run = mover->run() || has_run;
  if (remote_movers_.empty()) has_run = CacheForTests::remote(*cache_).run();
  if (!has_answered && !has_run) return false;
  ++counts_.mover_events;
  counts_.add(SimEvent::RemoteRan);
  take_lower_completions();
  return true;
}

void Simulation::check_remote_accounts(const Stats& stats) {
  if (stats.remote_hit_tokens == std::exchange(remote_hit_tokens_, stats.remote_hit_tokens)) return;
  counts_.add(SimEvent::RemoteHit);
  if (life_ > 0) counts_.add(SimEvent::RemoteHitAfterRestart);
}

}  // namespace quire::testing
