// SPDX-License-Identifier: Apache-2.0
//
// PrefixTree: pins, which keep a path, soft ones, which ask for it, and holds, which keep what the host has of it. A
// run that no pin holds is idle.
#include "base/check.h"
#include "prefix/prefix_tree.h"

namespace quire {

PrefixTree::Pin PrefixTree::pin(const Match& match, const Retention& retention) {
  QUIRE_CHECK(match.version == version_, "the tree has changed since this match");
  std::uint32_t run = match.run.value;
  if (match.pages_in_run < runs_[run].page_count) run = split(run, match.pages_in_run);
  add_pin(run);
  for (std::uint32_t used = run; !is_root(used); used = runs_[used].parent) {
    policy_.on_use(RunId{used}, retention);
    if (has_host()) ++tiers_[used].use_count;
    move_to_front(used);
  }
  return Pin(this, RunId{run});
}

PrefixTree::Pin PrefixTree::pin_all(const Match& match) {
  QUIRE_CHECK(match.version == version_, "the tree has changed since this match");
  const bool ends_on_host = match.host_page_count > 0;
  std::uint32_t run = ends_on_host ? match.host_run.value : match.run.value;
  const std::uint32_t pages_in_run = ends_on_host ? match.host_pages_in_run : match.pages_in_run;
  if (pages_in_run < runs_[run].page_count) run = split(run, pages_in_run);
  return pin_run(RunId{run});
}

PrefixTree::PinnedMatch PrefixTree::pin_with_partial(const Match& match, const Retention& retention) {
  QUIRE_CHECK(match.partial_tokens > 0, "the match ends with a page");
  PinnedMatch pinned{.path = pin(match, retention), .partial = {}};
  // Where the match ends inside the run, pin() has split it there, and the run keeps what is behind.
  std::uint32_t run = match.partial_run.value;
  const std::uint32_t page =
      match.partial_run == match.run ? match.partial_page - match.pages_in_run : match.partial_page;
  QUIRE_CHECK(page < runs_[run].page_count, "a match ends in a page that its run lacks");
  if (page + 1 < runs_[run].page_count) run = split(run, page + 1);
  pinned.partial = pin_run(RunId{run});
  return pinned;
}

PrefixTree::Pin PrefixTree::pin_run(RunId run) {
  add_pin(run.value);
  return Pin(this, run);
}

PrefixTree::Pin PrefixTree::clone(const Pin& pin) {
  QUIRE_CHECK(pin.tree_ == this, "cloning an empty pin");
  return pin_run(pin.run_);
}

// The run of a pinned path that holds its page `page`.
std::uint32_t PrefixTree::run_on_path(const Pin& pin, std::uint32_t page) const {
  QUIRE_CHECK(pin.tree_ == this && page < end_page(pin.run_), "a page beyond the pinned path");
  std::uint32_t run = pin.run_.value;
  while (runs_[run].first_page > page) run = runs_[run].parent;
  return run;
}

PrefixTree::Pin PrefixTree::pin_prefix(const Pin& pin, std::uint32_t page_count) {
  if (page_count == end_page(pin.run_)) return clone(pin);
  if (page_count == 0) return pin_run(RunId{runs_[pin.run_.value].root});
  std::uint32_t run = run_on_path(pin, page_count - 1);
  const std::uint32_t pages_in_run = page_count - runs_[run].first_page;
  if (pages_in_run < runs_[run].page_count) run = split(run, pages_in_run);
  return pin_run(RunId{run});
}

PrefixTree::Pin PrefixTree::pin_page(const Pin& pin, std::uint32_t page) {
  return pin_run(RunId{run_on_path(pin, page)});
}

// Counts down as remove_pin() does, and up again; neither the policy nor the orders hear of it.
std::uint32_t PrefixTree::pages_idle_without(std::span<const RunId> pinned) {
  std::uint32_t pages = 0;
  for (const RunId each : pinned) {
    std::uint32_t run = each.value;
    for (; --runs_[run].pins == 0 && !is_root(run); run = runs_[run].parent) pages += runs_[run].page_count;
  }
  for (const RunId each : pinned) {
    std::uint32_t run = each.value;
    while (runs_[run].pins++ == 0 && !is_root(run)) run = runs_[run].parent;
  }
  return pages;
}

void PrefixTree::add_pin(std::uint32_t run) {
  // Stops at the first ancestor that was pinned already: it is counted in all above it.
  while (runs_[run].pins++ == 0 && !is_root(run)) {
    leave_idle(run);
    (runs_[run].is_on_host ? host_pinned_pages_ : pinned_pages_) += runs_[run].page_count;
    run = runs_[run].parent;
  }
}

void PrefixTree::remove_pin(RunId pinned) {
  std::uint32_t run = pinned.value;
  for (;;) {
    QUIRE_CHECK(runs_[run].pins > 0, "a pin removed twice");
    if (--runs_[run].pins > 0 || is_root(run)) return;
    (runs_[run].is_on_host ? host_pinned_pages_ : pinned_pages_) -= runs_[run].page_count;
    enter_idle(run);
    run = runs_[run].parent;
  }
}

PrefixTree::SoftPin PrefixTree::soft_pin(const Match& match) {
  QUIRE_CHECK(match.version == version_, "the tree has changed since this match");
  // What lies behind the match in its last run is not asked for, and keeps its place in the policy's order.
  std::uint32_t end = match.run.value;
  if (match.pages_in_run < runs_[end].page_count) end = split(end, match.pages_in_run);
  // Counts stop at the first ancestor that had a soft pin already, but the whole path moves to the end of the order: a
  // run that stood before its own descendants would send evict() down to them, past older ones.
  bool is_counted = true;
  for (std::uint32_t run = end; !is_root(run); run = runs_[run].parent) {
    const bool is_idle = runs_[run].pins == 0;
    if (is_idle) leave_idle(run);
    if (is_counted) is_counted = runs_[run].soft_pins++ == 0;
    if (is_idle) enter_idle(run);
  }
  if (is_counted) ++runs_[runs_[end].root].soft_pins;
  return SoftPin(this, RunId{end}, runs_[end].generation);
}

void PrefixTree::remove_soft_pin(RunId softly_pinned, std::uint32_t generation) {
  if (runs_[softly_pinned.value].generation == generation) drop_soft(softly_pinned.value);
}

void PrefixTree::drop_soft(std::uint32_t run) {
  for (;;) {
    QUIRE_CHECK(runs_[run].soft_pins > 0, "a soft pin removed twice");
    const bool is_last = runs_[run].soft_pins == 1;
    const bool is_idle = is_last && runs_[run].pins == 0 && !is_root(run);
    if (is_idle) leave_idle(run);
    --runs_[run].soft_pins;
    if (is_idle) enter_idle(run);
    if (!is_last || is_root(run)) return;
    run = runs_[run].parent;
  }
}

// Holds on the host

PrefixTree::HostHold PrefixTree::hold_on_host(const Match& match) {
  QUIRE_CHECK(match.version == version_ && has_host(), "the tree has changed since this match, or has no host tier");
  const bool ends_on_host = match.host_page_count > 0;
  std::uint32_t end = ends_on_host ? match.host_run.value : match.run.value;
  const std::uint32_t pages_in_run = ends_on_host ? match.host_pages_in_run : match.pages_in_run;
  if (is_root(end)) return {};
  if (pages_in_run < runs_[end].page_count) end = split(end, pages_in_run);
  // Stops at the first ancestor that was held already: it is counted in all above it.
  for (std::uint32_t run = end; !is_root(run); run = runs_[run].parent) {
    if (tiers_[run].holds > 0) {
      ++tiers_[run].holds;
      break;
    }
    set_held(run, /*is_held=*/true);
  }
  return HostHold(this, RunId{end}, runs_[end].generation);
}

std::uint32_t PrefixTree::held_pages(const HostHold& hold) const {
  const bool is_there = hold.tree_ == this && runs_[hold.run_.value].generation == hold.generation_;
  return is_there ? end_page(hold.run_) : 0;
}

void PrefixTree::remove_host_hold(RunId held, std::uint32_t generation) {
  if (runs_[held.value].generation == generation) drop_host_hold(held.value);
}

void PrefixTree::drop_host_hold(std::uint32_t run) {
  for (; !is_root(run); run = runs_[run].parent) {
    QUIRE_CHECK(tiers_[run].holds > 0, "a hold removed twice");
    if (tiers_[run].holds > 1) {
      --tiers_[run].holds;
      return;
    }
    set_held(run, /*is_held=*/false);
  }
}

// A run without children goes though it is held: what ends here ends now, and the handles see it by the generation.
void PrefixTree::end_host_holds(std::uint32_t run) {
  if (!has_host() || tiers_[run].holds == 0) return;
  set_held(run, /*is_held=*/false);
  ++runs_[run].generation;
  drop_host_hold(runs_[run].parent);
}

// The first hold of a run begins, or its last one ends.
void PrefixTree::set_held(std::uint32_t run, bool is_held) {
  const bool is_idle_on_host = runs_[run].is_on_host && runs_[run].pins == 0;
  if (is_idle_on_host) leave_idle(run);
  tiers_[run].holds = is_held ? 1 : 0;
  if (is_idle_on_host) enter_idle(run);
  if (runs_[run].is_on_host) return;
  for (const PageId page : pages(RunId{run})) {
    HostCopy& copy = copies_[page.value];
    copy.is_kept = is_held;
    if (copy.is_held) continue;  // in no list while its run leaves
    if (copy.state == Copy::Ready) {
      if (is_held) {
        page_lists_.remove(page.value);
      } else {
        page_lists_.push_back(page.value, kFirstCopies);
      }
    } else if (is_held && copy.state == Copy::None) {
      want_copy(page);
    }
  }
}

// An idle run is in its policy's order, or, while softly pinned, in the tree's own.
void PrefixTree::enter_idle(std::uint32_t run) {
  if (runs_[run].is_on_host && tiers_[run].holds > 0) {
    host_held_pages_ += runs_[run].page_count;  // its policy does not name it
  } else if (runs_[run].is_on_host) {
    host_idle_pages_ += runs_[run].page_count;
    host_policy_->on_idle(RunId{run});
  } else if (runs_[run].soft_pins > 0) {
    soft_pages_ += runs_[run].page_count;
    soft_.push_back(run);
  } else {
    idle_pages_ += runs_[run].page_count;
    policy_.on_idle(RunId{run});
  }
}

void PrefixTree::leave_idle(std::uint32_t run) {
  if (runs_[run].is_on_host && tiers_[run].holds > 0) {
    host_held_pages_ -= runs_[run].page_count;
  } else if (runs_[run].is_on_host) {
    host_idle_pages_ -= runs_[run].page_count;
    host_policy_->on_pin(RunId{run});
  } else if (runs_[run].leaving != Leaving::No) {
    stop_leaving(run);
  } else if (runs_[run].soft_pins > 0) {
    soft_pages_ -= runs_[run].page_count;
    soft_.remove(run);
  } else {
    idle_pages_ -= runs_[run].page_count;
    policy_.on_pin(RunId{run});
  }
}

}  // namespace quire
