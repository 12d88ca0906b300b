// SPDX-License-Identifier: Apache-2.0
#include "remote_sizing.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <queue>
#include <random>
#include <tuple>
#include <vector>

namespace quire {

namespace {

constexpr TimeNs kSecondNs = 1'000'000'000;
constexpr std::uint32_t kFailuresInARow = 2;
constexpr TimeNs kPauseNsMin = 50'000'000;
constexpr TimeNs kPauseNsMax = 5'000'000'000;

class Simulation {
 public:
  explicit Simulation(const RemoteSizing& sizing)
      : sizing_(sizing),
        draws_(sizing.seed),
        shards_(sizing.shard_count),
        link_free_at_ns_(sizing.engine_count),
        lanes_(std::size_t{sizing.engine_count} * sizing.shard_count) {
    const auto bytes = static_cast<double>(sizing.value_bytes);
    service_ns_ = std::max<TimeNs>(1, std::llround(bytes * sizing.server_ns_per_byte));
    receive_ns_ = std::max<TimeNs>(1, std::llround(bytes * sizing.engine_ns_per_byte));
    compute_ns_ = bytes / sizing.compute_bytes_per_s * 1e9;
    window_values_ = std::max<std::uint64_t>(1, sizing.window_bytes / std::max<std::uint64_t>(1, sizing.value_bytes));
    hang_begin_ = sizing.duration_ns / 3;
    hang_end_ = hang_begin_ + sizing.hang_ns;
  }

  RemoteSizingOutcome run() {
    draw_loads();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.at_ns;
      handle(event);
    }
    return outcome();
  }

 private:
  enum class Kind : std::uint8_t { LoadBegins, ValueServed, ValueArrives, Deadline, Probe };
  struct Event {
    TimeNs at_ns;
    std::uint64_t number;  // among those of one time, the first one first
    Kind kind;
    std::uint32_t index;  // of the load, the value, or the lane
    bool operator<(const Event& other) const {
      return std::tie(at_ns, number) > std::tie(other.at_ns, other.number);  // the earliest is on top of the heap
    }
  };
  enum class State : std::uint8_t { Waiting, Asked, Arrived };
  struct Value {
    std::uint32_t load = 0;
    std::uint32_t shard = 0;
    State state = State::Waiting;
  };
  struct Load {
    std::uint32_t engine = 0;
    TimeNs begin_ns = 0;
    std::uint32_t first_value = 0;
    std::uint32_t arrived = 0;  // in order
    std::uint32_t end = 0;      // the first value that will not come
    bool is_over = false;
  };
  struct Shard {
    std::deque<std::uint32_t> queue;  // values; the first one is being served
    TimeNs busy_ns = 0;
  };
  /// What an engine knows of a shard.
  struct Lane {
    std::deque<std::uint32_t> waiting;  // values
    std::deque<std::uint32_t> asked;
    TimeNs last_arrival_ns = -1;
    std::uint32_t failures = 0;
    TimeNs pause_ns = 0;
    bool is_open = false;  // the breaker: nothing is asked
  };

  void schedule(TimeNs at_ns, Kind kind, std::uint32_t index) { events_.push({at_ns, ++event_count_, kind, index}); }
  // Above 0 and at most 1.
  double draw() { return static_cast<double>((draws_() >> 11U) + 1) * 0x1p-53; }
  std::uint32_t lane_of(const Value& value) const {
    return (loads_[value.load].engine * sizing_.shard_count) + value.shard;
  }

  void draw_loads() {
    for (std::uint32_t engine = 0; engine < sizing_.engine_count; ++engine) {
      for (double at_s = -std::log(draw()) / sizing_.loads_per_s;
           at_s * kSecondNs < static_cast<double>(sizing_.duration_ns);
           at_s -= std::log(draw()) / sizing_.loads_per_s) {
        loads_.push_back({.engine = engine,
                          .begin_ns = static_cast<TimeNs>(at_s * kSecondNs),
                          .first_value = static_cast<std::uint32_t>(values_.size()),
                          .end = sizing_.value_count});
        const auto load = static_cast<std::uint32_t>(loads_.size() - 1);
        for (std::uint32_t i = 0; i < sizing_.value_count; ++i) {
          const auto shard = static_cast<std::uint32_t>(draws_() % sizing_.shard_count);
          values_.push_back({.load = load, .shard = shard});
        }
        schedule(loads_.back().begin_ns, Kind::LoadBegins, load);
      }
    }
    times_.reserve(loads_.size());
  }

  void handle(const Event& event) {
    switch (event.kind) {
      case Kind::LoadBegins:
        return begin_load(event.index);
      case Kind::ValueServed:
        return value_served(event.index);
      case Kind::ValueArrives:
        return value_arrives(event.index);
      case Kind::Deadline:
        return deadline_passes(event.index);
      case Kind::Probe:
        return probe(event.index);
    }
  }

  void begin_load(std::uint32_t index) {
    Load& load = loads_[index];
    for (std::uint32_t i = 0; i < load.end; ++i) {
      const std::uint32_t value = load.first_value + i;
      Lane& lane = lanes_[lane_of(values_[value])];
      if (lane.is_open) {
        load.end = i;
      } else if (lane.asked.size() < window_values_) {
        ask(lane, value);
      } else {
        lane.waiting.push_back(value);
      }
    }
    if (sizing_.deadline_ns > 0) schedule(now_ + sizing_.deadline_ns, Kind::Deadline, index);
    end_if_decided(load);
  }

  void ask(Lane& lane, std::uint32_t value) {
    values_[value].state = State::Asked;
    lane.asked.push_back(value);
    Shard& shard = shards_[values_[value].shard];
    shard.queue.push_back(value);
    if (shard.queue.size() == 1) serve_next(values_[value].shard);
  }

  // The first shard is the one that hangs.
  void serve_next(std::uint32_t shard_index) {
    TimeNs begin_ns = now_;
    const bool may_hang = shard_index == 0 && sizing_.hang_ns > 0;
    if (may_hang && begin_ns >= hang_begin_) begin_ns = std::max(begin_ns, hang_end_);
    TimeNs end_ns = begin_ns + service_ns_;
    if (may_hang && begin_ns < hang_begin_ && end_ns > hang_begin_) end_ns += sizing_.hang_ns;
    if (begin_ns < sizing_.duration_ns) shards_[shard_index].busy_ns += service_ns_;
    schedule(end_ns, Kind::ValueServed, shards_[shard_index].queue.front());
  }

  void value_served(std::uint32_t index) {
    const Value& value = values_[index];
    Shard& shard = shards_[value.shard];
    shard.queue.pop_front();
    if (!shard.queue.empty()) serve_next(value.shard);
    TimeNs& free_at_ns = link_free_at_ns_[loads_[value.load].engine];
    free_at_ns = std::max(free_at_ns, now_) + receive_ns_;
    schedule(free_at_ns, Kind::ValueArrives, index);
  }

  void value_arrives(std::uint32_t index) {
    Value& value = values_[index];
    Lane& lane = lanes_[lane_of(value)];
    lane.asked.pop_front();
    lane.last_arrival_ns = now_;
    lane.failures = 0;
    while (!lane.waiting.empty() && !lane.is_open && lane.asked.size() < window_values_) {
      const std::uint32_t next = lane.waiting.front();
      lane.waiting.pop_front();
      if (!loads_[values_[next].load].is_over) ask(lane, next);
    }
    value.state = State::Arrived;
    Load& load = loads_[value.load];
    if (load.is_over) return;
    while (load.arrived < load.end && values_[load.first_value + load.arrived].state == State::Arrived) ++load.arrived;
    end_if_decided(load);
  }

  void end_if_decided(Load& load) {
    if (!load.is_over && load.arrived >= load.end) end_load(load);
  }

  void end_load(Load& load) {
    load.is_over = true;
    const std::uint32_t computed = sizing_.value_count - load.arrived;
    computed_values_ += computed;
    times_.push_back(now_ - load.begin_ns + std::llround(computed * compute_ns_));
  }

  // A shard that has brought this engine something since the load began is slow, not gone.
  void deadline_passes(std::uint32_t index) {
    Load& load = loads_[index];
    if (load.is_over) return;
    end_load(load);
    if (!sizing_.has_breaker) return;
    for (std::uint32_t i = load.first_value; i < load.first_value + sizing_.value_count; ++i) {
      const std::uint32_t lane_index = lane_of(values_[i]);
      Lane& lane = lanes_[lane_index];
      if (values_[i].state != State::Asked || lane.is_open || lane.last_arrival_ns >= load.begin_ns) continue;
      if (++lane.failures >= kFailuresInARow) open_breaker(lane_index);
    }
  }

  void open_breaker(std::uint32_t lane_index) {
    Lane& lane = lanes_[lane_index];
    lane.is_open = true;
    lane.pause_ns = lane.pause_ns == 0 ? kPauseNsMin : std::min(kPauseNsMax, 2 * lane.pause_ns);
    schedule(now_ + std::llround(static_cast<double>(lane.pause_ns) * (0.5 + (0.5 * draw()))), Kind::Probe, lane_index);
    for (const std::uint32_t value : lane.asked) give_up(value);
    for (const std::uint32_t value : lane.waiting) give_up(value);
    lane.waiting.clear();
  }

  void give_up(std::uint32_t index) {
    Load& load = loads_[values_[index].load];
    load.end = std::min(load.end, index - load.first_value);
    end_if_decided(load);
  }

  void probe(std::uint32_t lane_index) {
    Lane& lane = lanes_[lane_index];
    lane.is_open = false;
    const bool is_hung = lane_index % sizing_.shard_count == 0 && now_ >= hang_begin_ && now_ < hang_end_;
    if (is_hung) return open_breaker(lane_index);
    lane.failures = 0;
    lane.pause_ns = 0;
  }

  RemoteSizingOutcome outcome() {
    RemoteSizingOutcome outcome{.load_count = times_.size()};
    if (times_.empty()) return outcome;
    std::ranges::sort(times_);
    outcome.p50_ns = times_[times_.size() / 2];
    outcome.p99_ns = times_[times_.size() * 99 / 100];
    outcome.computed_share = static_cast<double>(computed_values_) / static_cast<double>(values_.size());
    double busy_ns = 0;
    for (const Shard& shard : shards_) busy_ns += static_cast<double>(shard.busy_ns);
    outcome.busy_share = busy_ns / static_cast<double>(shards_.size()) / static_cast<double>(sizing_.duration_ns);
    return outcome;
  }

  const RemoteSizing& sizing_;
  std::mt19937_64 draws_;
  TimeNs service_ns_ = 0;
  TimeNs receive_ns_ = 0;
  double compute_ns_ = 0;  // of a value
  std::uint64_t window_values_ = 0;
  TimeNs hang_begin_ = 0;
  TimeNs hang_end_ = 0;

  TimeNs now_ = 0;
  std::uint64_t event_count_ = 0;
  std::priority_queue<Event> events_;
  std::vector<Load> loads_;
  std::vector<Value> values_;
  std::vector<Shard> shards_;
  std::vector<TimeNs> link_free_at_ns_;  // by engine
  std::vector<Lane> lanes_;              // by engine, then shard
  std::uint64_t computed_values_ = 0;
  std::vector<TimeNs> times_;
};

}  // namespace

RemoteSizingOutcome simulate_remote(const RemoteSizing& sizing) {
  return Simulation(sizing).run();
}

}  // namespace quire
