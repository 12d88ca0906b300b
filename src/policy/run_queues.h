// SPDX-License-Identifier: Apache-2.0
//
// RunQueues: first in, first out, for policies whose order does not depend on use. A run keeps its place while it
// cannot be a victim (it is *blocked*: pinned, or it has children). What is blocked when its turn comes is passed over
// and remembered; as soon as nothing blocks it, it goes before all that wait, in the order in which this happened. So
// next_victim() looks at a blocked run once for each time it is blocked, not at every call.
//
// Of what is evicted leaf by leaf, a parent is older than its children: it is passed over once, and follows them
// directly when the last is gone.
//
// single-threaded
#pragma once

#include <cstdint>

#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "quire/policy.h"

namespace quire {

class RunQueues {
 public:
  static constexpr std::uint32_t kNone = IndexLists::kNone;

  [[nodiscard]] Status reserve(std::uint32_t run_count_max, std::uint32_t queue_count = 1);

  /// A run appears, pinned and without children, at the back of `queue`.
  void add(RunId run, std::uint32_t queue = 0);
  /// To the back of `queue`, which may be another than before.
  void move(RunId run, std::uint32_t queue = 0);
  /// `prefix` stands behind `suffix` in the same queue, blocked by it.
  void split(RunId suffix, RunId prefix);
  void remove(RunId run);

  void pin(RunId run);
  void unpin(RunId run);
  void set_has_children(RunId run, bool has_children);

  /// The run whose turn it is, or kNone. It may be blocked: pass it over, or move it, and ask again.
  [[nodiscard]] std::uint32_t front(std::uint32_t queue = 0) const;
  void pass_over(std::uint32_t run);

  [[nodiscard]] bool contains(RunId run) const { return states_[run.value].is_known; }
  [[nodiscard]] bool has_children(std::uint32_t run) const { return states_[run].has_children; }
  [[nodiscard]] bool is_blocked(std::uint32_t run) const { return states_[run].is_pinned || states_[run].has_children; }
  [[nodiscard]] std::uint32_t queue_of(RunId run) const { return states_[run.value].queue; }
  [[nodiscard]] std::uint32_t idle_count() const { return idle_count_; }

 private:
  struct State {
    bool is_known;
    bool is_pinned;
    bool has_children;
    std::uint8_t queue;
  };

  void go_first_if_passed_over(std::uint32_t run);

  // Each queue is two lists: those that were passed over and are free again, then those whose turn has not come.
  IndexLists lists_;
  LazyArray<State> states_;
  std::uint32_t idle_count_ = 0;
};

}  // namespace quire
