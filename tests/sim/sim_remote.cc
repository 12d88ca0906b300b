// SPDX-License-Identifier: Apache-2.0
//
// The remote tier of the simulation: a server in memory that outlives the process, loses values, breaks bytes, stops
// and comes back, and is asked only when the simulation says so.
#include <utility>

#include "simulation.h"

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
  remote_store_ = std::make_unique<SimRemoteStore>(*server_);
  config.remote.store = remote_store_.get();
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
  const bool has_run = CacheForTests::remote(*cache_).run();
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
