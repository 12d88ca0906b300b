// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_worker.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <system_error>
#include <utility>

#include "base/blocked_signals.h"
#include "base/check.h"
#include "base/system_error.h"
#include "remote/monotonic_clock.h"

namespace quire {
namespace {

// How exactly connections, pauses and slot tables are timed. Batches have their own deadlines.
constexpr TimeNs kTickNs = 5'000'000;
// What the events of epoll are about that is no lane.
constexpr std::uint32_t kMailEvent = UINT32_MAX;
constexpr std::uint32_t kTimerEvent = UINT32_MAX - 1;

const char* late_text(const RedisNode::Lane& lane) {
  switch (lane.lane.state()) {
    case RedisLane::State::Closed:
      return "its name could not be looked up in time";
    case RedisLane::State::Ready:
      return "it said nothing for as long as a command may take";
    default:
      return "it could not be reached in time";
  }
}

Status watch_for_input(int epoll, int descriptor, std::uint32_t what) {
  epoll_event event{.events = EPOLLIN, .data = {.u32 = what}};
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0) return {};
  return fail(errno_code(errno), "epoll of a remote store: " + errno_text(errno));
}

}  // namespace

RedisWorker::RedisWorker(const RedisConfig& config, const RedisLogin& login, RedisMailbox& mailbox)
    : config_(config),
      login_(login),
      mailbox_(mailbox),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      batches_(config.batch_count_max),
      resolver_(login.look_up, [&mailbox] { mailbox.wake(); }) {
  slots_.fill(ClusterMap::kNobody);
}

Result<std::unique_ptr<RedisWorker>> RedisWorker::start(const RedisConfig& config, const RedisLogin& login,
                                                        RedisMailbox& mailbox, const Result<RedisTopology>& topology) {
  std::unique_ptr<RedisWorker> worker(new RedisWorker(config, login, mailbox));
  QUIRE_TRY(worker->prepare(topology));
  const BlockedSignals blocked;
  try {
    worker->thread_ = std::thread([&worker = *worker] { worker.run(); });
  } catch (const std::system_error& error) {
    return fail(errno_code(error.code().value()), "starting the thread of a remote store: " + error.code().message());
  }
  return worker;
}

RedisWorker::~RedisWorker() {
  if (!thread_.joinable()) return;
  mailbox_.stop();
  thread_.join();
  for (const auto& node : nodes_) {
    for (RedisNode::Lane& lane : node->lanes) lane.lane.close();
  }
}

Status RedisWorker::prepare(const Result<RedisTopology>& topology) {
  if (epoll_.get() < 0 || timer_.get() < 0) {
    return fail(errno_code(errno), "no epoll for a remote store: " + errno_text(errno));
  }
  QUIRE_TRY(watch_for_input(epoll_.get(), mailbox_.work_event(), kMailEvent));
  QUIRE_TRY(watch_for_input(epoll_.get(), timer_.get(), kTimerEvent));
  // Each object has a request, and each lane a few of the worker's own.
  const std::uint32_t request_count = config_.object_count_max + (2 * kLanesMax) + (kSweepsMax * kNodesMax);
  QUIRE_TRY(requests_.grow(request_count));
  QUIRE_TRY(lists_.reserve(request_count, (2 * kLanesMax) + 1));
  QUIRE_TRY(deadlines_.reserve(config_.batch_count_max));
  mail_.reserve(config_.batch_count_max);
  cancelled_.reserve(config_.batch_count_max);

  now_ = monotonic_now();
  for (const RedisEndpoint& seed : login_.seeds) {
    const std::uint32_t node_index = find_or_add_node(seed);
    if (node_index == kNone) continue;
    nodes_[node_index]->is_seed = true;
    if (topology.has_value() && topology->seed == seed) nodes_[node_index]->addresses = topology->seed_addresses;
  }
  if (topology.has_value() && topology->is_cluster) {
    is_cluster_ = true;
    apply_map(topology->map);
  } else if (topology.has_value() || config_.cluster == RedisCluster::No) {
    has_topology_ = true;
    slots_.fill(0);
    nodes_[0]->is_used = true;
  } else {
    wants_map_ = true;
  }
  if (!topology.has_value()) {
    // Each is asked with a PING first, after a short pause.
    last_error_ = topology.error().message;
    for (const auto& node : nodes_) {
      while (!node->breaker.failed(now_)) continue;
    }
    want_tick();
  }
  publish_status();
  return {};
}

void RedisWorker::run() {
  pthread_setname_np(pthread_self(), "quire-remote");
  std::array<epoll_event, 64> events;
  while (true) {
    start_sweeps();
    set_timer();
    const int count = epoll_wait(epoll_.get(), events.data(), events.size(), turns_.empty() ? -1 : 0);
    now_ = monotonic_now();
    bool has_mail = false;
    for (const epoll_event& event : std::span(events).first(static_cast<std::size_t>(std::max(count, 0)))) {
      if (event.data.u32 == kMailEvent) {
        has_mail = true;
      } else if (event.data.u32 == kTimerEvent) {
        std::uint64_t times = 0;
        (void)!read(timer_.get(), &times, sizeof(times));
        timer_at_ns_ = 0;
      } else {
        // Errors and ends of connections are found by reading, too.
        if ((event.events & ~std::uint32_t{EPOLLOUT}) != 0) lane_of(event.data.u32).may_read = true;
        queue_turn(event.data.u32);
      }
    }
    if (has_mail) {
      if (!mailbox_.take(mail_, cancelled_)) return;
      take_mail();
      take_addresses();
    }
    expire_batches();
    if (tick_at_ns_ != 0 && now_ >= tick_at_ns_) tick();
    take_turns();
    shut_nodes();
    leave_addresses();
    if (given_back_ > 0) mailbox_.give_back_objects(std::exchange(given_back_, 0));
    if (std::exchange(is_status_old_, false)) publish_status();
  }
}

// ── batches ──────────────────────────────────────────────────────────────────────────────────────────────────────────

void RedisWorker::take_mail() {
  for (const RedisMailbox::Taken& taken : mail_) begin_batch(taken);
  for (const std::uint64_t id : cancelled_) {
    const auto is_it = [&](const Batch& batch) { return batch.is_open && batch.batch.id == id; };
    const auto batch = std::ranges::find_if(batches_, is_it);
    if (batch != batches_.end()) end_batch_late(static_cast<std::uint32_t>(batch - batches_.begin()), true);
  }
}

void RedisWorker::begin_batch(const RedisMailbox::Taken& taken) {
  const TimeNs limit = taken.batch.timeout_ns > 0 ? taken.batch.timeout_ns : config_.command_timeout_ns;
  Batch& batch = batches_[taken.place];
  batch = {.batch = taken.batch,
           .submitted_at_ns = taken.submitted_at_ns,
           .deadline_ns = taken.submitted_at_ns + std::min(limit, TimeNs{1} << 60U),
           .answer = {.id = taken.batch.id},
           .is_open = true,
           .is_held = true};
  deadlines_.insert(taken.place, batch.deadline_ns);
  for (RemoteObject& object : batch.batch.objects) object.outcome = RemoteOutcome::NotTried;
  const Kind kind = static_cast<Kind>(batch.batch.operation);
  for (std::uint32_t i = 0; i < batch.batch.objects.size() && i < batch.path_end; ++i) {
    const RemoteObject& object = batch.batch.objects[i];
    const std::uint32_t made = make_request(kind);
    Request& request = requests_[made];
    request.batch = taken.place;
    request.object_index = i;
    request.next = std::exchange(batch.first_request, made);
    ++batch.request_count;
    ++batch.open_count;
    if (kind == Kind::Get) {
      for (const auto& piece : object.target) request.bytes += piece.size();
    } else if (kind == Kind::Put) {
      for (const auto& piece : object.source) request.bytes += piece.size();
    }
    if (object.key.size() > kRemoteKeyBytesMax) {
      end_request(made, RemoteOutcome::Failed);
    } else if (config_.is_read_only && batch.batch.operation >= RemoteOperation::Put) {
      last_error_ = "nothing is written: RedisConfig::is_read_only is set";
      is_status_old_ = true;
      end_request(made, RemoteOutcome::Failed);
    } else if (kind == Kind::DropBelow) {
      request.state = State::Sweeping;
      lists_.push_back(made, kWaitingSweeps);
    } else {
      send_to(made, route(object.key));
    }
  }
  batch.is_held = false;
  if (batch.open_count == 0) end_batch(taken.place);
}

void RedisWorker::end_batch(std::uint32_t batch_index) {
  Batch& batch = batches_[batch_index];
  QUIRE_CHECK(batch.is_open && batch.open_count == 0, "ending a batch that is open");
  batch.is_open = false;
  deadlines_.remove(batch_index);
  given_back_ += static_cast<std::uint32_t>(batch.batch.objects.size()) - batch.request_count;
  for (std::uint32_t request = batch.first_request; request != kNone;) {
    const std::uint32_t next = requests_[request].next;
    free_request(request);
    request = next;
  }
  batch.answer.busy_ns = std::max<TimeNs>(monotonic_now() - batch.submitted_at_ns, 1);
  mailbox_.give_back_objects(std::exchange(given_back_, 0));
  // Whoever has the answer can ask why.
  if (std::exchange(is_status_old_, false)) publish_status();
  mailbox_.answer(batch_index, batch.answer);
}

// Its objects that have no outcome are Late. Nodes that owe an answer, or that cannot even be reached, are late too;
// not so while other addresses of a node are still to be tried.
void RedisWorker::end_batch_late(std::uint32_t batch_index, bool is_cancelled) {
  Batch& batch = batches_[batch_index];
  batch.is_held = true;
  std::uint32_t ended = kNone;  // those that stay the batch's
  for (std::uint32_t request = std::exchange(batch.first_request, kNone); request != kNone;) {
    const std::uint32_t next = requests_[request].next;
    const State state = requests_[request].state;
    if (state == State::Ended) {
      requests_[request].next = std::exchange(ended, request);
      request = next;
      continue;
    }
    if (state == State::Sweeping) {
      // As long as there is more to drop than time, that says nothing about the nodes.
      object_of(requests_[request]).outcome = RemoteOutcome::Late;
      --batch.open_count;
      let_go_of_sweep(request);
      request = next;
      continue;
    }
    const std::uint32_t lane_id = requests_[request].lane_id;
    const std::uint32_t first = lists_.front(flight_of(lane_id));
    // One that was not asked yet, because its time was over at once, is not to blame.
    const bool is_connecting = lane_of(lane_id).lane.state() != RedisLane::State::Ready && lane_of(lane_id).due_ns != 0;
    const bool is_held_up = is_connecting || (first != IndexLists::kNone && is_let_go(requests_[first]));
    object_of(requests_[request]).outcome = RemoteOutcome::Late;
    --batch.open_count;
    let_go(request);
    const bool is_on_its_way = lane_of(lane_id).round.has_next();
    if (is_cancelled || is_on_its_way || !(state == State::InFlight || is_held_up)) {
      node_of(lane_id).breaker.abandoned();
    } else {
      note_late(lane_id / kLanesOfNode, batch.submitted_at_ns);
    }
    request = next;
  }
  batch.first_request = ended;
  // Those that were let go are not the batch's any more; each is given back when it is freed.
  end_batch(batch_index);
}

// A node that says anything at all is alive, and its answer may be behind a value of somebody else's; if it never
// comes, the limit of commands finds out. Batches that were waiting at the same time, and have waited in vain, are one
// failure.
void RedisWorker::note_late(std::uint32_t node_index, TimeNs submitted_at_ns) {
  RedisNode& node = *nodes_[node_index];
  for (RedisNode::Lane& lane : node.lanes) note_heard(lane, lane.lane.arrived_bytes());
  if (node.heard_at_ns >= submitted_at_ns || node.late_at_ns >= submitted_at_ns) {
    node.breaker.abandoned();
    return;
  }
  node.late_at_ns = now_;
  node_failed(node_index, "it did not answer in time");
}

void RedisWorker::expire_batches() {
  while (deadlines_.size() > 0 && deadlines_.top_key() <= now_) end_batch_late(deadlines_.top(), false);
}

// ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

void RedisWorker::want_tick() {
  if (tick_at_ns_ == 0) tick_at_ns_ = now_ + kTickNs;
}

void RedisWorker::tick() {
  tick_at_ns_ = 0;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    RedisNode& node = *nodes_[i];
    for (RedisNode::Lane& lane : node.lanes) {
      if (lane.due_ns == 0) continue;
      want_tick();
      if (now_ < lane.due_ns) continue;
      if (lane.lane.state() == RedisLane::State::Ready) {
        // The socket does not tell of less than RedisConnection::set_low_water() says, and a slow network brings less.
        lane.may_read = true;
        go_on(lane.lane.id());
        if (lane.due_ns == 0 || now_ < lane.due_ns) continue;
      }
      fail_lane(lane.lane.id(), {ErrorCode::TimedOut, late_text(lane)});
    }
    if (!node.is_used && !node.is_seed) continue;
    if (node.breaker.is_shut()) want_tick();
    if (node.shut_why.empty() && node.breaker.try_probe(now_)) {
      queue(make_request(Kind::Ping), i * kLanesOfNode);
    }
  }
  if (wants_map_) {
    want_tick();
    ask_for_map(now_);
  }
  vacate_nodes();
}

// Set only when it would be too late: one that comes too early does no harm.
void RedisWorker::set_timer() {
  TimeNs next = tick_at_ns_;
  if (deadlines_.size() > 0 && (next == 0 || deadlines_.top_key() < next)) next = deadlines_.top_key();
  if (next == 0 || (timer_at_ns_ != 0 && timer_at_ns_ <= next)) return;
  constexpr TimeNs kSecond = 1'000'000'000;
  const itimerspec when{.it_interval = {}, .it_value = {.tv_sec = next / kSecond, .tv_nsec = next % kSecond}};
  (void)timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr);
  timer_at_ns_ = next;
}

void RedisWorker::publish_status() {
  RemoteStatus status;
  for (const auto& node : nodes_) {
    if (has_topology_ ? !node->is_used : !node->is_seed) continue;
    ++status.node_count;
    if (node->breaker.is_shut()) ++status.failed_nodes;
  }
  status.is_usable = has_topology_ && status.failed_nodes < status.node_count;
  status.last_error = last_error_;
  mailbox_.publish(status);
}

}  // namespace quire
