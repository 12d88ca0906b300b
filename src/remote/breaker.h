// SPDX-License-Identifier: Apache-2.0
//
// Breaker: whether a node is asked. It closes a node off after failures in a row, and lets it back in step by step:
//
//   Closed ── failures in a row ──► Open ── the pause is over ──► Probing ── its PING is answered ──► Trial
//     ▲                              ▲                               │                                  │
//     │                              └────── a failure, and the pause is doubled ───────────────────────┤
//     └──────────────────────────────────────────────────────────────── one object is answered in time ─┘
//
// Connecting proves nothing: a process that is stopped still accepts connections. Only answers do.
//
// single-threaded; time is an argument
#pragma once

#include <cstdint>

#include "quire/types.h"
#include "remote/growing_pause.h"

namespace quire {

struct BreakerConfig {
  std::uint32_t failures_in_a_row = 2;
  TimeNs pause_ns_min = 50'000'000;
  TimeNs pause_ns_max = 5'000'000'000;
};

class Breaker {
 public:
  enum class State : std::uint8_t { Closed, Open, Probing, Trial };

  Breaker(const BreakerConfig& config, std::uint64_t seed)
      : config_(config), pause_(config.pause_ns_min, config.pause_ns_max, seed) {}

  /// Whether one more object may be sent; each that may ends in succeeded(), failed() or abandoned().
  [[nodiscard]] bool try_take();
  /// Answered in time.
  void succeeded();
  /// Late, or the connection failed. True: the node is closed off from now on.
  bool failed(TimeNs now);
  /// It ended without saying anything about the node.
  void abandoned() { is_tried_ = false; }

  /// Once at the end of each pause: a PING is to be sent, which ends in probe_answered() or failed().
  [[nodiscard]] bool try_probe(TimeNs now);
  void probe_answered();

  [[nodiscard]] State state() const { return state_; }
  /// Nothing is asked at present.
  [[nodiscard]] bool is_shut() const { return state_ == State::Open || state_ == State::Probing; }
  /// Of Open: when the pause is over.
  [[nodiscard]] TimeNs probe_at_ns() const { return probe_at_ns_; }

 private:
  BreakerConfig config_;
  GrowingPause pause_;
  State state_ = State::Closed;
  std::uint32_t failures_ = 0;
  std::uint32_t openings_ = 0;  // since it was last closed
  bool is_tried_ = false;       // of Trial: the one object is on its way
  TimeNs probe_at_ns_ = 0;
};

}  // namespace quire
