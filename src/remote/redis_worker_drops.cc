// SPDX-License-Identifier: Apache-2.0
//
// RedisWorker's drops of all that is below a prefix: a sweep over all nodes, which go on beside each other.
#include <algorithm>
#include <charconv>
#include <utility>

#include "remote/cluster_nodes.h"
#include "remote/redis_worker.h"
#include "remote/resp.h"

namespace quire {
namespace {

// Keys that a server looks at before others have their turn: about a third of a millisecond of its time, when all of
// them are to be dropped.
constexpr const char* kScanCount = "500";
// Of a sweep in a cluster, that have to be quiet in a row, and that are tried.
constexpr std::uint32_t kQuietPasses = 2;
constexpr std::uint32_t kPassesMax = 10;

}  // namespace

// A batch may have more of them than there is room for requests to all nodes, so they take turns.
void RedisWorker::start_sweeps() {
  const bool are_over = std::ranges::all_of(sweeps_, [](const Sweep& sweep) { return sweep.request == kNone; });
  if (are_over && std::exchange(has_bare_nodes_, false)) {
    for (const auto& node : nodes_) node->is_bare = false;
    want_tick();  // when their places are given back
  }
  while (lists_.front(kWaitingSweeps) != IndexLists::kNone) {
    const auto is_free = [](const Sweep& sweep) { return sweep.request == kNone && sweep.open_nodes == 0; };
    const auto place = std::ranges::find_if(sweeps_, is_free);
    if (place == sweeps_.end()) return;
    const std::uint32_t request = lists_.front(kWaitingSweeps);
    lists_.remove(request);
    *place = {.request = request, .prefix = std::string(object_of(requests_[request]).key)};
    begin_pass(static_cast<std::uint32_t>(place - sweeps_.begin()));
  }
}

void RedisWorker::begin_pass(std::uint32_t sweep_index) {
  Sweep& sweep = sweeps_[sweep_index];
  ++sweep.pass_count;
  sweep.topology_epoch = topology_epoch_;
  sweep.is_asking = std::exchange(sweep.has_moved, false);
  sweep.is_asked_maps = false;
  ask_nodes(sweep_index, Kind::Sweep);
}

// All nodes have been swept. In a cluster, keys can have gone meanwhile from a node whose turn was to come to one that
// was through with it. A key that goes while its slot is on the way is found by the next pass, at the node that it has
// gone to; a slot that has gone is told of by the nodes that had it and have it. So two passes in a row have to be
// quiet, and the nodes are asked for their slots at the end of each, when none of them is swept any more. They also
// tell of nodes that have no slots: keys of a slot that is on its way to such a node are there before the slot is.
void RedisWorker::end_pass(std::uint32_t sweep_index) {
  Sweep& sweep = sweeps_[sweep_index];
  if (is_cluster_ && !sweep.has_failed) {
    if (!std::exchange(sweep.is_asked_maps, true)) {
      ask_nodes(sweep_index, Kind::SweepMap);
      return;
    }
    const bool is_quiet = !sweep.has_moved && sweep.topology_epoch == topology_epoch_;
    sweep.quiet_passes = is_quiet ? sweep.quiet_passes + 1 : 0;
    sweep.has_failed = sweep.pass_count == kPassesMax;
    if (sweep.quiet_passes < kQuietPasses && !sweep.has_failed) {
      begin_pass(sweep_index);
      return;
    }
    sweep.has_failed = sweep.quiet_passes < kQuietPasses;
  }
  end_request(std::exchange(sweep.request, kNone), sweep.has_failed ? RemoteOutcome::Failed : RemoteOutcome::Ok);
}

// By the connection that carries no values: by another, each of the many pages of a sweep would wait for all values in
// front of it, and on a busy link the sweep would never end. A question waits for one page at most.
void RedisWorker::ask_nodes(std::uint32_t sweep_index, Kind kind) {
  Sweep& sweep = sweeps_[sweep_index];
  const auto is_of_use = [](const auto& node) { return node->is_used; };
  if (!has_topology_ || std::ranges::none_of(nodes_, is_of_use)) sweep.has_failed = true;
  ++sweep.open_nodes;  // so that it does not end before all are asked
  for (std::uint32_t node_index = 0; node_index < nodes_.size(); ++node_index) {
    RedisNode& node = *nodes_[node_index];
    if (!node.is_used && !node.is_bare) continue;
    if (!node.breaker.try_take()) {
      sweep.has_failed = true;
      continue;
    }
    const std::uint32_t request = make_request(kind);
    requests_[request].object_index = sweep_index;
    node_sweeps_[request] = {};
    ++sweep.open_nodes;
    queue(request, (node_index * kLanesOfNode) + static_cast<std::uint32_t>(LaneKind::Questions));
  }
  node_swept(sweep_index);
}

// What was found is dropped, and the server looks for more. All of it can be sent again.
void RedisWorker::append_sweep(std::uint32_t request, RedisNode::Lane& lane) {
  const NodeSweep& node_sweep = node_sweeps_[request];
  const Sweep& sweep = sweeps_[requests_[request].object_index];
  std::string& text = lane.lane.text();
  // One by one, since keys of several slots cannot stand in one command, and others have their turn in between.
  for (const std::string& key : node_sweep.keys) {
    if (sweep.is_asking) append_command(text, {"ASKING"});
    append_command(text, {"UNLINK", key});
  }
  requests_[request].answers_left = static_cast<std::uint32_t>(node_sweep.keys.size() * (sweep.is_asking ? 2 : 1));
  if (node_sweep.is_done) return;
  append_command(
      text, {"SCAN", std::to_string(node_sweep.cursor), "MATCH", redis_pattern(sweep.prefix), "COUNT", kScanCount});
  ++requests_[request].answers_left;
}

void RedisWorker::unlink_answered(std::uint32_t request, const RespValue& answer) {
  if (answer.kind != RespKind::Error) return;
  Sweep& sweep = sweeps_[requests_[request].object_index];
  const std::uint32_t node_index = requests_[request].lane_id / kLanesOfNode;
  const RedisRefusal refusal = refusal_of(answer.text);
  const bool is_moved = refusal == RedisRefusal::Moved;
  if (is_cluster_ && (is_moved || refusal == RedisRefusal::Ask || refusal == RedisRefusal::TryAgain)) {
    // The key has gone since it was seen, or its slot is on the way to this node. The next pass asks for it.
    sweep.has_moved = true;
    const auto redirection = is_moved ? parse_redirection(answer.text) : std::nullopt;
    const std::uint32_t to = redirection.has_value() ? node_of_redirection(node_index, *redirection) : kNone;
    if (to != kNone) learn_slot(redirection->slot, to);
    return;
  }
  sweep.has_failed = true;
  tell_error(node_index, printable(answer.text));
}

bool RedisWorker::sweep_answered(std::uint32_t request, const RespValue& answer) {
  const Request& answered = requests_[request];
  if (answer.kind == RespKind::Error) {
    sweep_refused(request, answer);
    return true;
  }
  bool makes_sense = true;
  if (is_let_go(answered)) {
    end_node_sweep(request);
  } else if (answered.kind == Kind::SweepMap) {
    sweep_nodes_answered(request, answer);
    end_node_sweep(request);
  } else if (node_sweeps_[request].is_done) {
    makes_sense = answer.kind == RespKind::Integer;
    makes_sense ? end_node_sweep(request) : fail_request(request, RemoteOutcome::Failed);
  } else {
    makes_sense = page_answered(request, answer);
  }
  return makes_sense;
}

void RedisWorker::sweep_refused(std::uint32_t request, const RespValue& answer) {
  const std::uint32_t node_index = requests_[request].lane_id / kLanesOfNode;
  switch (refusal_of(answer.text)) {
    case RedisRefusal::Loading:
    case RedisRefusal::NotLoggedIn:
    case RedisRefusal::TooManyClients:
      node_failed(node_index, printable(answer.text));
      break;
    default:
      nodes_[node_index]->breaker.succeeded();
      break;
  }
  unlink_answered(request, answer);
  end_node_sweep(request);
}

bool RedisWorker::page_answered(std::uint32_t request, const RespValue& answer) {
  NodeSweep& node_sweep = node_sweeps_[request];
  const bool is_page =
      answer.kind == RespKind::Array && answer.parts.size() == 2 && answer.parts[1].kind == RespKind::Array;
  const std::string cursor = is_page ? answer.parts[0].text : "";
  const auto [end, error] = std::from_chars(cursor.data(), cursor.data() + cursor.size(), node_sweep.cursor);
  if (error != std::errc{} || end != cursor.data() + cursor.size()) {
    fail_request(request, RemoteOutcome::Failed);
    return false;
  }
  const std::uint32_t lane_id = requests_[request].lane_id;
  node_of(lane_id).breaker.succeeded();
  node_sweep.is_done = node_sweep.cursor == 0;
  node_sweep.keys.clear();
  for (const RespValue& key : answer.parts[1].parts) {
    // Whatever else the server may say, nothing else is dropped.
    if (key.text.starts_with(sweeps_[requests_[request].object_index].prefix)) node_sweep.keys.push_back(key.text);
  }
  if (node_sweep.is_done && node_sweep.keys.empty()) {
    end_node_sweep(request);
  } else {
    queue(request, lane_id);
  }
  return true;
}

void RedisWorker::sweep_slots_answered(std::uint32_t request, const RespValue& answer) {
  const std::uint32_t node_index = requests_[request].lane_id / kLanesOfNode;
  const auto map = parse_cluster_slots(answer, nodes_[node_index]->endpoint.host);
  if (map.has_value()) {
    learn_own_slots(node_index, *map);
  } else {
    tell_error(node_index, answer.kind == RespKind::Error ? printable(answer.text) : map.error().message);
    sweeps_[requests_[request].object_index].has_failed = true;
  }
}

void RedisWorker::sweep_nodes_answered(std::uint32_t request, const RespValue& answer) {
  const std::uint32_t node_index = requests_[request].lane_id / kLanesOfNode;
  RedisNode& asked = *nodes_[node_index];
  asked.breaker.succeeded();
  Sweep& sweep = sweeps_[requests_[request].object_index];
  const auto nodes = parse_cluster_nodes(answer);
  if (!nodes.has_value()) {
    tell_error(node_index, nodes.error().message);
    sweep.has_failed = true;
    return;
  }
  // All of a cluster are called by their names, or none.
  const bool has_names = std::ranges::any_of(
      *nodes, [&](const ClusterNode& node) { return node.is_self && node.name == asked.endpoint.host; });
  for (const ClusterNode& node : *nodes) {
    // One that is gone has nothing that could come back, but for what is just going there: when a node that had slots
    // is there again, it follows the one that has them now.
    if (!node.is_primary || node.has_slots || (node.is_gone && !node.is_target)) continue;
    const std::string& host = has_names && !node.name.empty() ? node.name : node.address;
    learn_bare_node(sweep, {.host = host, .port = node.port, .is_tls = asked.endpoint.is_tls}, node.id);
  }
}

void RedisWorker::learn_bare_node(Sweep& sweep, const RedisEndpoint& endpoint, const std::string& id) {
  const auto has_id = [&](const auto& node) { return !node->is_vacant && node->is_used && node->cluster_id == id; };
  if (std::ranges::any_of(nodes_, has_id)) return;
  const std::uint32_t place = endpoint.host.empty() ? kNone : find_or_add_node(endpoint);
  if (place == kNone) {
    sweep.has_failed = true;
    return;
  }
  nodes_[place]->cluster_id = id;
  has_bare_nodes_ = true;
  if (!std::exchange(nodes_[place]->is_bare, true)) ++topology_epoch_;
}

void RedisWorker::end_node_sweep(std::uint32_t request) {
  const std::uint32_t sweep_index = requests_[request].object_index;
  free_request(request);
  node_swept(sweep_index);
}

void RedisWorker::node_swept(std::uint32_t sweep_index) {
  Sweep& sweep = sweeps_[sweep_index];
  if (--sweep.open_nodes == 0 && sweep.request != kNone) end_pass(sweep_index);
}

void RedisWorker::let_go_of_sweep(std::uint32_t request) {
  const auto place = std::ranges::find(sweeps_, request, &Sweep::request);
  if (place == sweeps_.end()) {
    lists_.remove(request);
  } else {
    place->request = kNone;
    std::vector<std::uint32_t> queued;
    for (const auto& [of_node, node_sweep] : node_sweeps_) {
      if (&sweeps_[requests_[of_node].object_index] != &*place) continue;
      node_of(requests_[of_node].lane_id).breaker.abandoned();
      if (requests_[of_node].state == State::Queued) queued.push_back(of_node);
    }
    for (const std::uint32_t of_node : queued) {
      unqueue(of_node);
      end_node_sweep(of_node);
    }
  }
  requests_[request].state = State::Ended;
  free_request(request);
}

}  // namespace quire
