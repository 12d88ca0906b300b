// SPDX-License-Identifier: Apache-2.0
#include "remote/breaker.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace quire {

bool Breaker::try_take() {
  if (state_ == State::Closed) return true;
  return state_ == State::Trial && !std::exchange(is_tried_, true);
}

void Breaker::succeeded() {
  failures_ = 0;
  if (state_ != State::Trial) return;
  state_ = State::Closed;
  openings_ = 0;
  is_tried_ = false;
}

bool Breaker::failed(TimeNs now) {
  if (state_ == State::Open) return false;
  if (state_ == State::Closed && ++failures_ < config_.failures_in_a_row) return false;
  const TimeNs longest = std::max(config_.pause_ns_max, config_.pause_ns_min);
  TimeNs pause = std::max<TimeNs>(config_.pause_ns_min, 1);
  for (std::uint32_t i = 0; i < openings_ && pause < longest; ++i) pause *= 2;
  pause = std::min(pause, longest);
  // Between half of it and all of it.
  seed_ = mix64(seed_);
  const TimeNs half = pause / 2;
  probe_at_ns_ = now + half + static_cast<TimeNs>(seed_ % static_cast<std::uint64_t>(pause - half + 1));
  state_ = State::Open;
  ++openings_;
  failures_ = 0;
  is_tried_ = false;
  return true;
}

bool Breaker::try_probe(TimeNs now) {
  if (state_ != State::Open || now < probe_at_ns_) return false;
  state_ = State::Probing;
  return true;
}

void Breaker::probe_answered() {
  if (state_ == State::Probing) state_ = State::Trial;
}

}  // namespace quire
