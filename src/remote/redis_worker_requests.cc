// SPDX-License-Identifier: Apache-2.0
//
// RedisWorker's way from objects to nodes and back: what is sent for each operation, and what an answer means.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "remote/monotonic_clock.h"
#include "remote/redis_refusal.h"
#include "remote/redis_worker.h"
#include "remote/resp.h"

namespace quire {
namespace {

constexpr std::uint8_t kRedirectionsMax = 8;

}  // namespace

// ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

std::uint32_t RedisWorker::make_request(Kind kind) {
  std::uint32_t request = free_requests_;
  if (request != kNone) {
    free_requests_ = requests_[request].next;
  } else {
    QUIRE_CHECK(used_requests_ < requests_.size(), "more objects than the mailbox lets in");
    request = used_requests_++;
  }
  requests_[request] = {.state = State::Ended, .kind = kind, .batch = kNone, .next = kNone, .lane_id = kNone};
  return request;
}

void RedisWorker::free_request(std::uint32_t request) {
  Request& freed = requests_[request];
  if (is_of_sweep(freed)) node_sweeps_.erase(request);
  if (freed.kind < Kind::Ping) ++given_back_;
  freed.state = State::Free;
  freed.next = std::exchange(free_requests_, request);
}

std::uint32_t RedisWorker::route(std::string_view key) const {
  if (!has_topology_) return kNone;
  const std::uint16_t node_index = slots_[is_cluster_ ? cluster_slot(key) : 0];
  return node_index == ClusterMap::kNobody ? kNone : node_index;
}

void RedisWorker::send_to(std::uint32_t request, std::uint32_t node_index) {
  // Somebody may have the slot by now, and there may be nobody to say so.
  if (node_index == kNone && is_cluster_) want_map();
  const bool is_put = requests_[request].kind == Kind::Put;
  if (node_index == kNone || (is_put && !nodes_[node_index]->puts.try_take(now_)) ||
      !nodes_[node_index]->breaker.try_take()) {
    end_request(request, RemoteOutcome::Failed);
    return;
  }
  LaneKind lane = LaneKind::Background;
  if (requests_[request].kind == Kind::Find) {
    lane = LaneKind::Questions;
  } else if (batches_[requests_[request].batch].batch.priority == RemotePriority::Waiting) {
    lane = LaneKind::Waiting;
  }
  queue(request, (node_index * kLanesOfNode) + static_cast<std::uint32_t>(lane));
}

void RedisWorker::queue(std::uint32_t request, std::uint32_t lane_id) {
  requests_[request].state = State::Queued;
  requests_[request].lane_id = lane_id;
  lists_.push_back(request, queue_of(lane_id));
  mailbox_.add_waiting_bytes(requests_[request].bytes);
  queue_turn(lane_id);
}

void RedisWorker::unqueue(std::uint32_t request) {
  lists_.remove(request);
  requests_[request].state = State::Ended;
  mailbox_.remove_waiting_bytes(requests_[request].bytes);
}

void RedisWorker::leave_flight(std::uint32_t request) {
  lists_.remove(request);
  requests_[request].state = State::Ended;
  lane_of(requests_[request].lane_id).flight_bytes -= requests_[request].bytes;
}

void RedisWorker::end_request(std::uint32_t request, RemoteOutcome outcome) {
  Request& ended = requests_[request];
  ended.state = State::Ended;
  Batch& batch = batches_[ended.batch];
  object_of(ended).outcome = outcome;
  --batch.open_count;
  if (outcome == RemoteOutcome::Ok) {
    batch.answer.moved_bytes += ended.bytes;
  } else if (batch.batch.is_path && (ended.kind == Kind::Find || ended.kind == Kind::Get)) {
    close_path(batch, ended.object_index);
  }
  if (batch.open_count == 0 && !batch.is_held) end_batch(ended.batch);
}

void RedisWorker::fail_request(std::uint32_t request, RemoteOutcome outcome) {
  const Request& failed = requests_[request];
  if (failed.kind == Kind::Map) node_of(failed.lane_id).is_asked_map = false;
  if (is_of_sweep(failed)) {
    sweeps_[failed.object_index].has_failed = true;
    end_node_sweep(request);
  } else if (failed.batch == kNone) {
    free_request(request);
  } else {
    end_request(request, outcome);
  }
}

// What lies behind the object is of no use, so nobody waits for it.
void RedisWorker::close_path(Batch& batch, std::uint32_t object_index) {
  batch.path_end = std::min(batch.path_end, object_index);
  std::uint32_t kept = kNone;
  for (std::uint32_t request = batch.first_request; request != kNone;) {
    const std::uint32_t next = requests_[request].next;
    const bool is_open = requests_[request].state != State::Ended;
    if (is_open && requests_[request].object_index > object_index) {
      --batch.open_count;
      node_of(requests_[request].lane_id).breaker.abandoned();
      let_go(request);
    } else {
      requests_[request].next = std::exchange(kept, request);
    }
    request = next;
  }
  batch.first_request = kept;
}

// Its batch goes on, or ends, without it. From here on nothing of the caller's memory is known.
void RedisWorker::let_go(std::uint32_t request) {
  Request& gone = requests_[request];
  gone.batch = kNone;
  if (gone.state == State::Queued) {
    unqueue(request);
    free_request(request);
    return;
  }
  RedisNode::Lane& lane = lane_of(gone.lane_id);
  if (lane.sending != request || !lane.lane.is_sending_value()) return;
  lane.sending = kNone;
  if (lane.lane.try_take_back_value()) {
    leave_flight(request);
    free_request(request);
  } else {
    // The server waits for the rest of a value that nobody may read any more.
    drop_lane(gone.lane_id);
  }
}

void RedisWorker::note_first_byte(const Request& request) {
  if (is_let_go(request)) return;
  const bool is_sweep = is_of_sweep(request);
  Batch& batch = batches_[is_sweep ? requests_[sweeps_[request.object_index].request].batch : request.batch];
  if (batch.answer.first_byte_ns == 0) {
    batch.answer.first_byte_ns = std::max<TimeNs>(monotonic_now() - batch.submitted_at_ns, 1);
  }
}

// ── what is sent ─────────────────────────────────────────────────────────────────────────────────────────────────────

bool RedisWorker::can_fill(RedisNode::Lane& lane) const {
  const std::uint32_t request = lists_.front(queue_of(lane.lane.id()));
  return request != IndexLists::kNone && lane.lane.state() == RedisLane::State::Ready && lane.lane.has_room() &&
         (lane.flight_bytes == 0 || lane.flight_bytes + requests_[request].bytes <= config_.window_bytes);
}

void RedisWorker::fill(RedisNode::Lane& lane) {
  while (can_fill(lane)) {
    const std::uint32_t request = lists_.front(queue_of(lane.lane.id()));
    unqueue(request);
    requests_[request].state = State::InFlight;
    requests_[request].answers_left = 1;
    lane.flight_bytes += requests_[request].bytes;
    lists_.push_back(request, flight_of(lane.lane.id()));
    append_request(request, lane);
  }
}

void RedisWorker::append_request(std::uint32_t request, RedisNode::Lane& lane) {
  Request& sent = requests_[request];
  std::string& text = lane.lane.text();
  const std::size_t begin = text.size();
  if (sent.kind == Kind::Ping) {
    append_command(text, {"PING"});
    return;
  }
  if (sent.kind == Kind::Map || sent.kind == Kind::SweepMap) {
    append_command(text, {"CLUSTER", "SLOTS"});
    if (sent.kind == Kind::Map) return;
    append_command(text, {"CLUSTER", "NODES"});
    ++sent.answers_left;
    return;
  }
  if (sent.kind == Kind::Sweep) {
    append_sweep(request, lane);
    return;
  }
  if (sent.is_asking) {
    append_command(text, {"ASKING"});
    ++sent.answers_left;
  }
  const std::string_view key = object_of(sent).key;
  switch (sent.kind) {
    case Kind::Find:
      append_command(text, {"TOUCH", key});
      break;
    case Kind::Get:
      append_command(text, {"GET", key});
      break;
    case Kind::Drop:
      append_command(text, {"UNLINK", key});
      break;
    default: {
      std::string tail = "\r\n";
      append_argument_count(text, config_.max_age_ns > 0 ? 5 : 3);
      if (config_.max_age_ns > 0) {
        append_argument(tail, "PX");
        append_argument(tail, std::to_string(config_.max_age_ns / 1'000'000));
      }
      append_argument(text, "SET");
      append_argument(text, key);
      append_argument_bytes(text, sent.bytes);
      lane.lane.send_value(begin, sent.bytes, tail);
      lane.sending = request;
      break;
    }
  }
}

// ── what comes back ──────────────────────────────────────────────────────────────────────────────────────────────────

bool RedisWorker::expects_answer(const RedisLane& lane) {
  return !is_empty(flight_of(lane.id()));
}

bool RedisWorker::expects_value(const RedisLane& lane) {
  const Request& request = requests_[lists_.front(flight_of(lane.id()))];
  return request.kind == Kind::Get && request.answers_left == 1;
}

std::optional<RedisLane::Target> RedisWorker::target(const RedisLane& lane, std::uint64_t bytes) {
  const Request& request = requests_[lists_.front(flight_of(lane.id()))];
  if (request.batch == kNone || request.bytes != bytes) return std::nullopt;
  note_first_byte(request);
  return object_of(request).target;
}

RedisLane::Source RedisWorker::source(const RedisLane& lane) {
  const std::uint32_t request = lane_of(lane.id()).sending;
  QUIRE_CHECK(request != kNone && requests_[request].batch != kNone, "sending a value that was let go");
  return object_of(requests_[request]).source;
}

void RedisWorker::value_ended(RedisLane& lane, bool is_in_place) {
  const std::uint32_t request = lists_.front(flight_of(lane.id()));
  leave_flight(request);
  node_of(lane.id()).breaker.succeeded();
  if (requests_[request].batch == kNone) {
    free_request(request);
    return;
  }
  note_first_byte(requests_[request]);
  if (!is_in_place) tell_error(lane.id() / kLanesOfNode, "a value has another length than what was put there");
  end_request(request, is_in_place ? RemoteOutcome::Ok : RemoteOutcome::Corrupt);
}

Status RedisWorker::answered(RedisLane& lane, const RespValue& answer) {
  const std::uint32_t request = lists_.front(flight_of(lane.id()));
  note_first_byte(requests_[request]);
  if (lane.is_sending_value() && lane_of(lane.id()).sending == request) {
    // Whatever it means, the rest of the value is of no use to this connection.
    return fail(ErrorCode::Corrupt, answer.kind == RespKind::Error
                                        ? "it refused a value before it had all of it: " + printable(answer.text)
                                        : "it answered before it had all of a value");
  }
  if (requests_[request].answers_left > 1) {
    // To ASKING, or to one of many.
    --requests_[request].answers_left;
    if (requests_[request].kind == Kind::Sweep) unlink_answered(request, answer);
    if (requests_[request].kind == Kind::SweepMap) sweep_slots_answered(request, answer);
    return {};
  }
  leave_flight(request);
  if (finish_answer(request, answer)) return {};
  return fail(ErrorCode::Corrupt, "the server answered something else than what was asked");
}

bool RedisWorker::finish_answer(std::uint32_t request, const RespValue& answer) {
  const Kind kind = requests_[request].kind;
  const std::uint32_t node_index = requests_[request].lane_id / kLanesOfNode;
  if (kind == Kind::Ping || kind == Kind::Map) {
    free_request(request);
    kind == Kind::Ping ? ping_answered(node_index, answer) : map_answered(node_index, answer);
    return true;
  }
  if (is_of_sweep(requests_[request])) return sweep_answered(request, answer);
  if (requests_[request].batch == kNone) {
    if (answer.kind != RespKind::Error) nodes_[node_index]->breaker.succeeded();
    free_request(request);
    return true;
  }
  if (answer.kind == RespKind::Error) {
    refused(request, answer);
    return true;
  }
  bool makes_sense = false;
  RemoteOutcome outcome = RemoteOutcome::Ok;
  switch (kind) {
    case Kind::Find:
      makes_sense = answer.kind == RespKind::Integer && (answer.number == 0 || answer.number == 1);
      outcome = answer.number == 1 ? RemoteOutcome::Ok : RemoteOutcome::Absent;
      break;
    case Kind::Get:
      makes_sense = answer.kind == RespKind::Null;
      outcome = RemoteOutcome::Absent;
      break;
    case Kind::Put:
      makes_sense = answer.kind == RespKind::Text && answer.text == "OK";
      break;
    default:
      makes_sense = answer.kind == RespKind::Integer && (answer.number == 0 || answer.number == 1);
      break;
  }
  if (!makes_sense) {
    const bool is_read = kind == Kind::Find || kind == Kind::Get;
    fail_request(request, is_read ? RemoteOutcome::Corrupt : RemoteOutcome::Failed);
    return false;
  }
  nodes_[node_index]->breaker.succeeded();
  if (kind == Kind::Put) nodes_[node_index]->puts.taken();
  end_request(request, outcome);
  return true;
}

void RedisWorker::refused(std::uint32_t request, const RespValue& answer) {
  const std::uint32_t node_index = requests_[request].lane_id / kLanesOfNode;
  const RedisRefusal refusal = refusal_of(answer.text);
  switch (refusal) {
    case RedisRefusal::Loading:
    case RedisRefusal::NotLoggedIn:
    case RedisRefusal::TooManyClients:
    case RedisRefusal::ProtectedMode:
      node_failed(node_index, told_of(answer.text));
      fail_request(request, RemoteOutcome::Failed);
      return;
    default:
      nodes_[node_index]->breaker.succeeded();
      break;
  }
  switch (refusal) {
    case RedisRefusal::Moved:
    case RedisRefusal::Ask:
      redirect(request, answer);
      return;
    case RedisRefusal::TryAgain:
      if (++requests_[request].redirections > kRedirectionsMax) break;
      send_to(request, node_index);
      return;
    case RedisRefusal::OutOfMemory:
      if (requests_[request].kind == Kind::Put) put_refused(node_index);
      break;
    case RedisRefusal::ReadOnly:
      // Another may have become the primary; without a cluster, the name may lead to it.
      is_cluster_ ? want_map() : (void)try_leave_address(node_index);
      if (requests_[request].kind == Kind::Put) put_refused(node_index);
      break;
    case RedisRefusal::ClusterDown:
      if (is_cluster_) want_map();
      break;
    default:
      break;
  }
  tell_error(node_index, printable(answer.text));
  const bool is_foreign = refusal == RedisRefusal::WrongType && requests_[request].kind == Kind::Get;
  fail_request(request, is_foreign ? RemoteOutcome::Corrupt : RemoteOutcome::Failed);
}

void RedisWorker::put_refused(std::uint32_t node_index) {
  if (!nodes_[node_index]->puts.refused(now_)) return;
  for (const RedisNode::Lane& lane : nodes_[node_index]->lanes) {
    for (std::uint32_t queued = lists_.front(queue_of(lane.lane.id())); queued != IndexLists::kNone;) {
      const std::uint32_t next = lists_.next(queued);
      if (requests_[queued].kind == Kind::Put) {
        nodes_[node_index]->breaker.abandoned();
        unqueue(queued);
        fail_request(queued, RemoteOutcome::Failed);
      }
      queued = next;
    }
  }
}

std::uint32_t RedisWorker::node_of_redirection(std::uint32_t from, const Redirection& redirection) {
  const RedisEndpoint& here = nodes_[from]->endpoint;
  if (redirection.host.empty() && here.is_unix) return kNone;
  return find_or_add_node({.host = redirection.host.empty() ? here.host : redirection.host,
                           .port = redirection.port,
                           .is_tls = here.is_tls});
}

void RedisWorker::redirect(std::uint32_t request, const RespValue& answer) {
  Request& moved = requests_[request];
  const std::uint32_t from = moved.lane_id / kLanesOfNode;
  const auto redirection = parse_redirection(answer.text);
  const bool is_moved = refusal_of(answer.text) == RedisRefusal::Moved;
  const bool goes_round = ++moved.redirections > kRedirectionsMax;
  std::uint32_t to = kNone;
  if (is_cluster_ && redirection.has_value() && redirection->slot == cluster_slot(object_of(moved).key) &&
      !goes_round) {
    to = node_of_redirection(from, *redirection);
    // Whoever sends on to itself is not the node that has the name now.
    if (is_moved && to == from && !try_leave_address(from)) to = kNone;
  }
  if (to == kNone) {
    tell_error(from, !is_cluster_ ? "it is part of a cluster, which RedisConfig::cluster denies"
                     : goes_round ? "it and others send on to each other: " + printable(answer.text)
                                  : "it sends on to a place that cannot be: " + printable(answer.text));
    fail_request(request, RemoteOutcome::Failed);
    return;
  }
  moved.is_asking = !is_moved;
  if (is_moved) {
    learn_slot(redirection->slot, to);
  }
  send_to(request, to);
}

}  // namespace quire
