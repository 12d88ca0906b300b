// SPDX-License-Identifier: Apache-2.0
#include "remote/breaker.h"

#include <utility>

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
  probe_at_ns_ = now + pause_.take(openings_++);
  state_ = State::Open;
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
