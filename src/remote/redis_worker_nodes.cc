// SPDX-License-Identifier: Apache-2.0
//
// RedisWorker's nodes: which there are, how they are, and their connections.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/system_error.h"
#include "remote/monotonic_clock.h"
#include "remote/redis_refusal.h"
#include "remote/redis_worker.h"

namespace quire {
namespace {

// Between questions about the slots: while all is well again at once, and while something is still missing.
constexpr TimeNs kMapPauseNs = 50'000'000;
constexpr TimeNs kMapRetryNs = 300'000'000;
// Of a lane, after which others have theirs. It ends sooner when a deadline has come.
constexpr TimeNs kTurnNs = 500'000;
// Between looks for another address of a node whose name leads to another node.
constexpr TimeNs kLeavePauseNs = 300'000'000;

}  // namespace

// ── which nodes there are ────────────────────────────────────────────────────────────────────────────────────────────

std::uint32_t RedisWorker::find_or_add_node(const RedisEndpoint& endpoint) {
  const auto has_endpoint = [&](const auto& node) { return !node->is_vacant && node->endpoint == endpoint; };
  auto place = std::ranges::find_if(nodes_, has_endpoint);
  if (place != nodes_.end()) return static_cast<std::uint32_t>(place - nodes_.begin());
  place = std::ranges::find_if(nodes_, [](const auto& node) { return node->is_vacant; });
  if (place == nodes_.end()) {
    if (nodes_.size() == kNodesMax) return kNone;
    place = nodes_.insert(nodes_.end(), nullptr);
  }
  const auto index = static_cast<std::uint32_t>(place - nodes_.begin());
  // The address of the worker differs between processes, the time between stores.
  const std::uint64_t seed =
      mix64(reinterpret_cast<std::uintptr_t>(this) ^ mix64(static_cast<std::uint64_t>(now_))) + index;
  *place = std::make_unique<RedisNode>(endpoint, index * kLanesOfNode,
                                       BreakerConfig{.failures_in_a_row = config_.failures_in_a_row,
                                                     .pause_ns_min = config_.pause_ns_min,
                                                     .pause_ns_max = config_.pause_ns_max},
                                       seed);
  return index;
}

bool RedisWorker::is_idle(const RedisNode& node) const {
  return std::ranges::all_of(node.lanes, [&](const RedisNode::Lane& lane) {
    return is_empty(queue_of(lane.lane.id())) && is_empty(flight_of(lane.lane.id())) && !lane.is_queued;
  });
}

void RedisWorker::vacate_nodes() {
  for (const auto& node : nodes_) {
    if (node->is_used || node->is_bare || node->is_seed || node->is_vacant || node->is_looked_up || !is_idle(*node))
      continue;
    for (RedisNode::Lane& lane : node->lanes) close_lane(lane);
    node->is_vacant = true;
  }
}

void RedisWorker::apply_map(const ClusterMap& map) {
  for (const auto& node : nodes_) node->is_used = false;
  std::vector<std::uint16_t> indices;
  for (const ClusterMap::Node& each : map.nodes) {
    const std::uint32_t index =
        find_or_add_node({.host = each.host, .port = each.port, .is_tls = login_.seeds.front().is_tls});
    if (index != kNone) {
      nodes_[index]->is_used = true;
      nodes_[index]->cluster_id = each.id;
    }
    indices.push_back(index == kNone ? ClusterMap::kNobody : static_cast<std::uint16_t>(index));
  }
  std::array<std::uint16_t, kClusterSlots> slots;
  std::ranges::transform(map.slots, slots.begin(), [&](std::uint16_t owner) {
    return owner == ClusterMap::kNobody ? ClusterMap::kNobody : indices[owner];
  });
  if (std::exchange(slots_, slots) != slots) ++topology_epoch_;
  has_topology_ = is_cluster_ = is_status_old_ = true;
  const bool is_well = std::ranges::none_of(nodes_, [](const auto& n) { return n->is_used && n->breaker.is_shut(); });
  wants_map_ = !is_well || map.missing_slots() > 0;
  map_at_ns_ = now_ + kMapRetryNs;
}

void RedisWorker::learn_slot(std::uint16_t slot, std::uint32_t node_index) {
  if (std::exchange(slots_[slot], static_cast<std::uint16_t>(node_index)) != node_index) ++topology_epoch_;
  nodes_[node_index]->is_used = true;
  is_status_old_ = true;
  want_map();
}

void RedisWorker::learn_own_slots(std::uint32_t node_index, const ClusterMap& map) {
  const auto endpoint_of = [&](std::uint16_t owner) {
    const ClusterMap::Node& at = map.nodes[owner];
    return RedisEndpoint{.host = at.host, .port = at.port, .is_tls = login_.seeds.front().is_tls};
  };
  // Nodes may call each other by other addresses than themselves.
  const RedisNode& node = *nodes_[node_index];
  const auto is_it = [&](std::uint16_t index) {
    const std::string& id = map.nodes[index].id;
    return id.empty() || node.cluster_id.empty() ? endpoint_of(index) == node.endpoint : id == node.cluster_id;
  };
  std::uint16_t itself = 0;
  while (itself < map.nodes.size() && !is_it(itself)) ++itself;
  for (std::uint16_t slot = 0; slot < kClusterSlots; ++slot) {
    const std::uint16_t owner = map.slots[slot];
    if ((owner == itself) == (slots_[slot] == node_index)) continue;
    const std::uint32_t place = owner == ClusterMap::kNobody ? kNone : find_or_add_node(endpoint_of(owner));
    if (place != kNone) {
      learn_slot(slot, place);
    } else {
      slots_[slot] = ClusterMap::kNobody;
      ++topology_epoch_;
      want_map();
    }
  }
}

void RedisWorker::want_map() {
  wants_map_ = true;
  want_tick();
}

// Of those that have slots, or of the configuration's, the next that is not shut.
void RedisWorker::ask_for_map(TimeNs now) {
  if (now < map_at_ns_) return;
  const bool is_asked = std::ranges::any_of(nodes_, [](const auto& node) { return node->is_asked_map; });
  if (is_asked) return;
  for (const bool asks_seeds : {false, true}) {
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      map_node_ = static_cast<std::uint32_t>((map_node_ + 1) % nodes_.size());
      const RedisNode& node = *nodes_[map_node_];
      if ((asks_seeds ? node.is_seed : node.is_used) && !node.breaker.is_shut() && node.shut_why.empty()) {
        map_at_ns_ = now + kMapPauseNs;
        ask_for_map_at(map_node_);
        return;
      }
    }
  }
}

void RedisWorker::ask_for_map_at(std::uint32_t node_index) {
  nodes_[node_index]->is_asked_map = true;
  queue(make_request(Kind::Map), node_index * kLanesOfNode);
}

void RedisWorker::map_answered(std::uint32_t node_index, const RespValue& answer) {
  RedisNode& node = *nodes_[node_index];
  node.is_asked_map = false;
  if (answer.kind == RespKind::Error) {
    const bool is_alone = refusal_of(answer.text) == RedisRefusal::NoCluster && config_.cluster == RedisCluster::Auto &&
                          login_.seeds.size() == 1;
    if (is_alone && !has_topology_) {
      has_topology_ = is_status_old_ = true;
      wants_map_ = false;
      slots_.fill(static_cast<std::uint16_t>(node_index));
      ++topology_epoch_;
      node.is_used = true;
    } else {
      tell_error(node_index, "it refuses CLUSTER SLOTS: " + told_of(answer.text));
      map_at_ns_ = now_ + kMapRetryNs;
    }
    return;
  }
  auto map = parse_cluster_slots(answer, node.endpoint.host);
  if (map.has_value() && !map->nodes.empty()) {
    apply_map(*map);
  } else {
    tell_error(node_index, map.has_value() ? "it knows no node that has slots" : map.error().message);
    map_at_ns_ = now_ + kMapRetryNs;
  }
}

void RedisWorker::ping_answered(std::uint32_t node_index, const RespValue& answer) {
  if (answer.kind == RespKind::Error) {
    node_failed(node_index, told_of(answer.text));
    return;
  }
  nodes_[node_index]->breaker.probe_answered();
  is_status_old_ = true;
}

// ── how they are ─────────────────────────────────────────────────────────────────────────────────────────────────────

void RedisWorker::tell_error(std::uint32_t node_index, const std::string& why) {
  last_error_ = to_string(nodes_[node_index]->endpoint) + ": " + why;
  is_status_old_ = true;
}

// What is in flight there is ended by shut_nodes(): one of its lanes may be in the middle of something.
void RedisWorker::node_failed(std::uint32_t node_index, const std::string& why) {
  RedisNode& node = *nodes_[node_index];
  tell_error(node_index, why);
  want_tick();
  if (is_cluster_) want_map();
  if (!node.breaker.failed(now_)) return;
  node.shut_why = why;
  has_shut_nodes_ = true;
}

void RedisWorker::shut_nodes() {
  while (std::exchange(has_shut_nodes_, false)) {
    for (const auto& node : nodes_) {
      if (std::exchange(node->shut_why, {}).empty()) continue;
      for (RedisNode::Lane& lane : node->lanes) {
        const std::uint32_t lane_id = lane.lane.id();
        close_lane(lane);
        end_flight(lane_id, RemoteOutcome::Failed);
        while (!is_empty(queue_of(lane_id))) {
          const std::uint32_t request = lists_.front(queue_of(lane_id));
          unqueue(request);
          fail_request(request, RemoteOutcome::Failed);
        }
      }
    }
  }
}

bool RedisWorker::try_leave_address(std::uint32_t node_index) {
  RedisNode& node = *nodes_[node_index];
  if (node.is_elsewhere) return true;
  if (!node.is_name || now_ < node.may_leave_at_ns) return false;
  node.may_leave_at_ns = now_ + kLeavePauseNs;
  node.is_elsewhere = has_nodes_elsewhere_ = true;
  return true;
}

// Not while an answer is taken, since that would close the connection that it came by. What is queued goes by the next.
void RedisWorker::leave_addresses() {
  if (!std::exchange(has_nodes_elsewhere_, false)) return;
  for (const auto& node : nodes_) {
    if (!std::exchange(node->is_elsewhere, false)) continue;
    node->addresses.clear();
    for (RedisNode::Lane& lane : node->lanes) drop_lane(lane.lane.id());
  }
}

// ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────────

void RedisWorker::queue_turn(std::uint32_t lane_id) {
  if (!std::exchange(lane_of(lane_id).is_queued, true)) turns_.push_back(lane_id);
}

void RedisWorker::take_turns() {
  std::swap(turns_, turns_taken_);
  for (const std::uint32_t lane_id : turns_taken_) {
    lane_of(lane_id).is_queued = false;
    go_on(lane_id);
    now_ = monotonic_now();
    expire_batches();
  }
  turns_taken_.clear();
}

void RedisWorker::take_addresses() {
  for (const NameResolver::Answer& answer : resolver_.take_answers()) {
    RedisNode& node = *nodes_[answer.node_index];
    node.is_looked_up = false;
    // A lane that is connected by now knows better which of them is the first to be tried.
    if (answer.addresses.has_value() && node.addresses.empty()) node.addresses = *answer.addresses;
    for (RedisNode::Lane& lane : node.lanes) {
      if (lane.lane.state() != RedisLane::State::Closed || lane.round.is_under_way()) continue;
      lane.due_ns = 0;
      if (answer.addresses.has_value()) {
        queue_turn(lane.lane.id());
      } else if (!is_empty(queue_of(lane.lane.id()))) {
        fail_lane(lane.lane.id(), answer.addresses.error());
      }
    }
  }
}

void RedisWorker::connect(std::uint32_t lane_id) {
  RedisNode& node = node_of(lane_id);
  RedisNode::Lane& lane = lane_of(lane_id);
  want_tick();
  if (!lane.round.is_under_way()) {
    if (node.addresses.empty()) {
      if (lane.due_ns == 0) lane.due_ns = now_ + login_.connect_timeout_ns;
      if (!std::exchange(node.is_looked_up, true)) resolver_.ask(lane_id / kLanesOfNode, node.endpoint);
      return;
    }
    lane.round.begin(node.addresses, now_, login_.connect_timeout_ns);
  }
  const SocketAddress& address = lane.round.take_next(now_);
  lane.due_ns = lane.round.due_ns();
  if (Status begun = lane.lane.begin(address, node.endpoint, login_); !begun.has_value()) {
    fail_lane(lane_id, begun.error());
  }
}

void RedisWorker::note_connected(RedisNode::Lane& lane) {
  if (!lane.round.is_under_way() || lane.lane.state() == RedisLane::State::Connecting) return;
  node_of(lane.lane.id()).addresses = lane.round.with_taken_first();
  lane.due_ns = lane.round.end_ns();  // for logging in
  lane.round.end();
}

void RedisWorker::note_heard(RedisNode::Lane& lane, std::uint64_t bytes) {
  if (bytes <= lane.heard_bytes) return;
  lane.heard_bytes = bytes;
  node_of(lane.lane.id()).heard_at_ns = now_;
}

// It need not wait for its socket.
bool RedisWorker::goes_on(RedisNode::Lane& lane) const {
  return lane.lane.has_more() || (can_fill(lane) && !lane.lane.waits_to_write());
}

void RedisWorker::go_on(std::uint32_t lane_id) {
  RedisNode::Lane& lane = lane_of(lane_id);
  const RedisNode& node = node_of(lane_id);
  if (!node.shut_why.empty() || node.is_elsewhere) return;  // it is about to be closed
  if (lane.lane.state() == RedisLane::State::Closed) {
    // A round goes on without anybody who waits for it, so that the next will find the address that works.
    if (is_empty(queue_of(lane_id)) && !lane.round.is_under_way()) return;
    connect(lane_id);
    if (lane.lane.state() == RedisLane::State::Closed) return;
  }
  const TimeNs turn_end = now_ + kTurnNs;
  while (true) {
    fill(lane);
    const bool was_ready = lane.lane.state() == RedisLane::State::Ready;
    const bool may_read = std::exchange(lane.may_read, false);
    if (Status status = lane.lane.go_on(*this, may_read); !status.has_value()) {
      fail_lane(lane_id, status.error());
      return;
    }
    note_heard(lane, lane.lane.heard_bytes());
    if (node.is_elsewhere) return;
    note_connected(lane);
    if (!lane.lane.is_sending_value()) lane.sending = kNone;
    if (!was_ready && lane.lane.state() == RedisLane::State::Ready) lane.due_ns = 0;
    if (!goes_on(lane) || !node_of(lane_id).shut_why.empty()) break;
    now_ = monotonic_now();
    if (now_ >= turn_end || (deadlines_.size() > 0 && deadlines_.top_key() <= now_)) break;
  }
  watch(lane);
  set_due(lane);
  if (goes_on(lane)) queue_turn(lane_id);
}

void RedisWorker::watch(RedisNode::Lane& lane) {
  const std::uint32_t wanted = EPOLLIN | (lane.lane.waits_to_write() ? EPOLLOUT : 0U);
  if (lane.epoll_events == wanted) return;
  epoll_event event{.events = wanted, .data = {.u32 = lane.lane.id()}};
  const int what = lane.epoll_events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  if (epoll_ctl(epoll_.get(), what, lane.lane.descriptor(), &event) != 0) {
    fail_lane(lane.lane.id(), {errno_code(errno), "epoll: " + errno_text(errno)});
    return;
  }
  lane.epoll_events = wanted;
}

void RedisWorker::set_due(RedisNode::Lane& lane) {
  if (lane.lane.state() != RedisLane::State::Ready) return;
  if (is_empty(flight_of(lane.lane.id()))) {
    lane.due_ns = 0;
  } else if (lane.due_ns == 0 || lane.seen_bytes != lane.lane.moved_bytes()) {
    lane.due_ns = now_ + login_.command_timeout_ns;
    lane.seen_bytes = lane.lane.moved_bytes();
    want_tick();
  }
}

void RedisWorker::close_lane(RedisNode::Lane& lane) {
  close_connection(lane);
  lane.round.end();
}

void RedisWorker::close_connection(RedisNode::Lane& lane) {
  // The system would forget a socket that is closed, but not one that a forked child has too.
  if (lane.epoll_events != 0) (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, lane.lane.descriptor(), nullptr);
  lane.lane.close();
  lane.epoll_events = 0;
  lane.due_ns = 0;
  lane.seen_bytes = lane.heard_bytes = 0;
  lane.may_read = false;
  lane.sending = kNone;
}

void RedisWorker::end_flight(std::uint32_t lane_id, RemoteOutcome first_outcome) {
  RemoteOutcome outcome = first_outcome;
  while (!is_empty(flight_of(lane_id))) {
    const std::uint32_t request = lists_.front(flight_of(lane_id));
    leave_flight(request);
    fail_request(request, requests_[request].kind == Kind::Get ? outcome : RemoteOutcome::Failed);
    outcome = RemoteOutcome::Failed;
  }
}

void RedisWorker::fail_lane(std::uint32_t lane_id, const Error& error) {
  RedisNode& node = node_of(lane_id);
  RedisNode::Lane& lane = lane_of(lane_id);
  const RedisLane::State state = lane.lane.state();
  const bool was_ready = state == RedisLane::State::Ready;
  std::string why = error.message;
  if (lane.round.is_under_way() && (state == RedisLane::State::Closed || state == RedisLane::State::Connecting)) {
    lane.round.failed(why);
    if (lane.round.has_next()) {
      close_connection(lane);
      queue_turn(lane_id);
      return;
    }
    why = lane.round.failures(node.endpoint.host);
  }
  // What made no sense was the end of a request, which is in no list any more.
  const bool was_in_use =
      !was_ready || error.code == ErrorCode::Corrupt || !is_empty(flight_of(lane_id)) || !is_empty(queue_of(lane_id));
  close_lane(lane);
  // A name may have other addresses by now.
  if (!was_ready && node.is_name) node.addresses.clear();
  end_flight(lane_id, error.code == ErrorCode::Corrupt ? RemoteOutcome::Corrupt : RemoteOutcome::Failed);
  // Servers close what has been idle for long.
  if (!was_in_use) return;
  node_failed(lane_id / kLanesOfNode, why);
  queue_turn(lane_id);
}

// Nothing that is in flight is the worse for being done twice, and the value that was half sent was let go.
void RedisWorker::drop_lane(std::uint32_t lane_id) {
  close_lane(lane_of(lane_id));
  std::uint32_t last = kNone;
  while (!is_empty(flight_of(lane_id))) {
    const std::uint32_t request = lists_.front(flight_of(lane_id));
    leave_flight(request);
    const bool is_own = requests_[request].kind == Kind::Ping || requests_[request].kind == Kind::Map;
    if (is_let_go(requests_[request]) && !is_own) {
      is_of_sweep(requests_[request]) ? end_node_sweep(request) : free_request(request);
      continue;
    }
    requests_[request].state = State::Queued;
    mailbox_.add_waiting_bytes(requests_[request].bytes);
    last == kNone ? lists_.push_front(request, queue_of(lane_id)) : lists_.insert_after(last, request);
    last = request;
  }
  queue_turn(lane_id);
}

}  // namespace quire
