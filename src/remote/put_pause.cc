// SPDX-License-Identifier: Apache-2.0
#include "remote/put_pause.h"

#include <algorithm>

namespace quire {
namespace {

// That are remembered: more would make no pause longer, and those that are to come stay long for too long.
constexpr std::uint32_t kRefusalsMax = 16;

}  // namespace

bool PutPause::try_take(TimeNs now) {
  if (!is_paused_) return true;
  if (now < until_ns_) return false;
  is_trying_ = true;
  until_ns_ = now + pause_.take(refusals_);
  return true;
}

bool PutPause::refused(TimeNs now) {
  // Those that were on their way when the pause began say nothing new.
  if (is_paused_ && !is_trying_) return false;
  is_paused_ = true;
  is_trying_ = false;
  until_ns_ = now + pause_.take(refusals_);
  refusals_ = std::min(refusals_ + 1, kRefusalsMax);
  return true;
}

void PutPause::taken() {
  if (is_paused_ && !is_trying_) return;
  is_paused_ = is_trying_ = false;
  if (refusals_ > 0) --refusals_;
}

}  // namespace quire
