// SPDX-License-Identifier: Apache-2.0
//
// PutPause: whether values are sent to a node that is well and takes none, because it is full or a replica. Without it,
// all that is to be written would go over the network again and again, to be thrown away there.
//
//   Open ── a value is refused ──► Paused ── the pause is over ──► one value is tried ── taken ──► Open
//                                    ▲                                 │
//                                    └── refused, and the pause is doubled
//
// One that says nothing of itself is tried again after as long a pause. Each value that is taken makes the next pause
// shorter, so that a node that is full now and then is not taken for one that has room.
//
// single-threaded; time is an argument
#pragma once

#include <cstdint>

#include "quire/types.h"
#include "remote/growing_pause.h"

namespace quire {

class PutPause {
 public:
  explicit PutPause(const GrowingPause& pause) : pause_(pause) {}

  /// Whether one more value may be sent.
  [[nodiscard]] bool try_take(TimeNs now);
  /// True: a pause begins, also for those that have not been sent yet.
  bool refused(TimeNs now);
  void taken();

 private:
  GrowingPause pause_;
  std::uint32_t refusals_ = 0;
  bool is_paused_ = false;
  bool is_trying_ = false;  // of Paused
  TimeNs until_ns_ = 0;     // of Paused
};

}  // namespace quire
