// SPDX-License-Identifier: Apache-2.0
//
// RedisWorker's drops of all that is below a prefix: a sweep over all nodes, which go on beside each other.
#include <algorithm>
#include <charconv>
#include <utility>

#include "remote/redis_refusal.h"
#include "remote/redis_worker.h"
#include "remote/resp.h"

namespace quire {
namespace {

// Keys that a server looks at before others have their turn: about a third of a millisecond of its time, when all of
// them are to be dropped.
constexpr const char* kScanCount = "500";

}  // namespace

// A batch may have more of them than there is room for requests to all nodes, so they take turns.
void RedisWorker::start_sweeps() {
  while (lists_.front(kWaitingSweeps) != IndexLists::kNone) {
    const auto is_free = [](const Sweep& sweep) { return sweep.request == kNone && sweep.open_nodes == 0; };
    const auto place = std::ranges::find_if(sweeps_, is_free);
    if (place == sweeps_.end()) return;
    const std::uint32_t request = lists_.front(kWaitingSweeps);
    lists_.remove(request);
    *place = {.request = request, .prefix = std::string(object_of(requests_[request]).key)};
    sweep_nodes(static_cast<std::uint32_t>(place - sweeps_.begin()));
  }
}

void RedisWorker::sweep_nodes(std::uint32_t sweep_index) {
  Sweep& sweep = sweeps_[sweep_index];
  ++sweep.open_nodes;  // so that it does not end before all are asked
  if (!has_topology_) sweep.has_failed = true;
  for (std::uint32_t node_index = 0; node_index < nodes_.size(); ++node_index) {
    RedisNode& node = *nodes_[node_index];
    if (!node.is_used) continue;
    if (!node.breaker.try_take()) {
      sweep.has_failed = true;
      continue;
    }
    const std::uint32_t request = make_request(Kind::Sweep);
    requests_[request].object_index = sweep_index;
    node_sweeps_[request] = {};
    ++sweep.open_nodes;
    queue(request, (node_index * kLanesOfNode) + static_cast<std::uint32_t>(LaneKind::Background));
  }
  node_swept(sweep_index);
}

// What was found is dropped, and the server looks for more. All of it can be sent again.
void RedisWorker::append_sweep(std::uint32_t request, RedisNode::Lane& lane) {
  const NodeSweep& node_sweep = node_sweeps_[request];
  std::string& text = lane.lane.text();
  // One by one, since keys of several slots cannot stand in one command, and others have their turn in between.
  for (const std::string& key : node_sweep.keys) append_command(text, {"UNLINK", key});
  requests_[request].answers_left = static_cast<std::uint32_t>(node_sweep.keys.size());
  if (node_sweep.is_done) return;
  append_command(text, {"SCAN", std::to_string(node_sweep.cursor), "MATCH",
                        redis_pattern(sweeps_[requests_[request].object_index].prefix), "COUNT", kScanCount});
  ++requests_[request].answers_left;
}

void RedisWorker::unlink_answered(std::uint32_t request, const RespValue& answer) {
  if (answer.kind != RespKind::Error) return;
  sweeps_[requests_[request].object_index].has_failed = true;
  tell_error(requests_[request].lane_id / kLanesOfNode, printable(answer.text));
}

bool RedisWorker::sweep_answered(std::uint32_t request, const RespValue& answer) {
  const Request& answered = requests_[request];
  Sweep& sweep = sweeps_[answered.object_index];
  NodeSweep& node_sweep = node_sweeps_[request];
  const std::uint32_t node_index = answered.lane_id / kLanesOfNode;
  if (answer.kind == RespKind::Error) {
    const RedisRefusal refusal = refusal_of(answer.text);
    if (refusal == RedisRefusal::Loading || refusal == RedisRefusal::NotLoggedIn ||
        refusal == RedisRefusal::TooManyClients) {
      node_failed(node_index, printable(answer.text));
    } else {
      nodes_[node_index]->breaker.succeeded();
    }
    unlink_answered(request, answer);
    end_node_sweep(request);
    return true;
  }
  if (is_let_go(answered) || node_sweep.is_done) {
    const bool makes_sense = is_let_go(answered) || answer.kind == RespKind::Integer;
    if (makes_sense) nodes_[node_index]->breaker.succeeded();
    sweep.has_failed = sweep.has_failed || !makes_sense;
    end_node_sweep(request);
    return makes_sense;
  }
  const bool is_page =
      answer.kind == RespKind::Array && answer.parts.size() == 2 && answer.parts[1].kind == RespKind::Array;
  const std::string cursor = is_page ? answer.parts[0].text : "";
  const auto [end, error] = std::from_chars(cursor.data(), cursor.data() + cursor.size(), node_sweep.cursor);
  if (error != std::errc{} || end != cursor.data() + cursor.size()) {
    fail_request(request, RemoteOutcome::Failed);
    return false;
  }
  nodes_[node_index]->breaker.succeeded();
  node_sweep.is_done = node_sweep.cursor == 0;
  node_sweep.keys.clear();
  for (const RespValue& key : answer.parts[1].parts) {
    // Whatever else the server may say, nothing else is dropped.
    if (key.text.starts_with(sweep.prefix)) node_sweep.keys.push_back(key.text);
  }
  if (node_sweep.is_done && node_sweep.keys.empty()) {
    end_node_sweep(request);
  } else {
    queue(request, answered.lane_id);
  }
  return true;
}

void RedisWorker::end_node_sweep(std::uint32_t request) {
  const std::uint32_t sweep_index = requests_[request].object_index;
  free_request(request);
  node_swept(sweep_index);
}

void RedisWorker::node_swept(std::uint32_t sweep_index) {
  Sweep& sweep = sweeps_[sweep_index];
  if (--sweep.open_nodes > 0 || sweep.request == kNone) return;
  end_request(std::exchange(sweep.request, kNone), sweep.has_failed ? RemoteOutcome::Failed : RemoteOutcome::Ok);
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
