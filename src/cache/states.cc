// SPDX-License-Identifier: Apache-2.0
//
// Cache: state slots. An admitted sequence has one, in which its rings, tails and recurrent states live. The slot is
// filled by the first step: from a snapshot, or with initial bytes. Checkpoints are positions at which a step ends, so
// that its state can be saved as a snapshot for others. A snapshot hangs on the history's page that ends there.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Status Cache::Impl::check_state_slot(std::uint32_t index, const char* call) const {
  if (!has_state() || sequences[index].state_slot != UINT32_MAX || !free_state_slots.empty()) return {};
  return fail(ErrorCode::Unavailable, std::string(call) + name_of(index) + " needs a state slot, and all " +
                                          with_separators(state_slot_count) +
                                          " are taken: end or preempt a sequence, or raise device.state_slot_count");
}

void Cache::Impl::take_state_slot(std::uint32_t index) {
  if (!has_state() || sequences[index].state_slot != UINT32_MAX) return;
  sequences[index].state_slot = free_state_slots.back();
  free_state_slots.pop_back();
}

void Cache::Impl::release_state(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  for (SideGroup& side : sides) {
    SideSlot& of_side = side.slots[index];
    if (side.is_window || of_side.restore_page.is_none()) continue;
    side.pages.unpin(of_side.restore_page, SidePages::Worth::Kept);
    of_side.restore_page = PageId::none();
  }
  if (slot.state_slot != UINT32_MAX) free_state_slots.push_back(std::exchange(slot.state_slot, UINT32_MAX));
  slot.needs_state = false;
}

// The state behind hit.start() tokens is to be put into the sequence's slot.
void Cache::Impl::start_state(std::uint32_t index, const Hit& hit) {
  SequenceSlot& slot = sequences[index];
  take_state_slot(index);
  slot.needs_state = has_state();
  slot.state_high = hit.start();
  slot.state_is_in_doubt = false;
  slot.checkpoint = hit.tokens;  // none is taken during a replay
  for (std::size_t i = 0; i < sides.size(); ++i) {
    SideGroup& side = sides[i];
    if (side.is_window) continue;
    SideSlot& of_side = side.slots[index];
    of_side = {};
    of_side.valid_from =
        hit.is_rebuilt(i) ? hit.tokens - std::min(hit.tokens, needed_rows(*side.group, hit.tokens)) : hit.start();
    if (hit.start() == 0 || hit.is_rebuilt(i) || hit_groups[i].starts_anew) continue;
    of_side.restore_page = side.pages.at(sequences.page_row(index)[(hit.start() / page_tokens) - 1]);
    side.pages.pin(of_side.restore_page);
    of_side.restore_position = hit.start();
    of_side.valid_from = hit.start() - std::min(hit.start(), snapshot_rows(side));
    of_side.lacks_first_rows = true;
    ++side.totals.restored_snapshot_total;
  }
}

// Rows by position that a sequence goes on from; 0 for a state.
std::uint32_t Cache::Impl::needed_rows(const CacheGroup& group, std::uint32_t position) {
  if (group.kind == GroupKind::Window) return group.window_tokens - 1;
  return has_rows(group) ? group.snapshot_entries + (position % group.boundary_tokens) : 0;
}

// Rows by position that a snapshot brings; 0 for a state.
std::uint32_t Cache::Impl::snapshot_rows(const SideGroup& side) {
  const CacheGroup& group = *side.group;
  // Drafts behind the place where it was taken may have overwritten a ring's oldest row: nobody who goes on there sees
  // it.
  if (group.kind == GroupKind::Window) return group.window_tokens - 1;
  return has_rows(group) ? group.snapshot_entries : 0;
}

// Entries of a slot stand by position: rings and tails.
bool Cache::Impl::has_rows(const CacheGroup& group) {
  return group.kind == GroupKind::Window || (group.slot_entries > 1 && group.slot_history == 0);
}

// Whether the slot still has the state behind `end` tokens, once it was written up to `high`.
bool Cache::Impl::is_state_held(const SideGroup& side, std::uint32_t index, std::uint32_t end,
                                std::uint32_t high) const {
  if (end == 0) return true;  // it starts anew
  const CacheGroup& group = *side.group;
  const SideSlot& slot = side.slots[index];
  // A snapshot that is still to be restored hangs on a page that the sequence must keep.
  if (!slot.restore_page.is_none() && end < slot.restore_position) return false;
  if (!has_rows(group)) return end >= slot.valid_from && high - end <= group.slot_history;
  const std::uint32_t room = group.slot_entries - group.sink_tokens;
  const std::uint32_t lookback = needed_rows(group, end);
  if (lookback == 0) return true;
  if (end - std::min(end, lookback) < slot.valid_from) return false;
  // A tail's rows before the first token are initial bytes, until others take their place; a window has none.
  const bool is_tail = group.kind != GroupKind::Window;
  if (is_tail && lookback > end && slot.lacks_first_rows) return false;
  const std::uint32_t needed = is_tail ? lookback : std::min(end, lookback);
  return std::uint64_t{end} + room >= std::uint64_t{high} + needed;
}

Status Cache::Impl::check_state_held(const SideGroup& side, std::uint32_t index, std::uint32_t end) const {
  const SequenceSlot& slot = sequences[index];
  if (is_state_held(side, index, end, std::max(slot.state_high, end))) return {};
  const CacheGroup& group = *side.group;
  return fail(ErrorCode::InvalidArgument,
              "group '" + group.name + "' no longer has the state behind " + count_of(end, "token") + ": " +
                  (has_rows(group) ? "its slots hold the rows of " + count_of(group.slot_entries, "token")
                                   : "it keeps " + count_of(group.slot_history, "earlier version")) +
                  ", and tokens up to " + with_separators(slot.state_high) + " were computed; raise " +
                  (has_rows(group) ? "slot_entries" : "slot_history"));
}

// Drafts that are not accepted are taken back, so the state before them must outlive them.
Status Cache::Impl::check_drafts(std::uint32_t index, std::uint32_t known_end, std::uint32_t draft_count) const {
  for (const SideGroup& side : sides) {
    if (side.is_window) continue;
    const CacheGroup& group = *side.group;
    const std::uint32_t high = std::max(sequences[index].state_high, known_end + draft_count);
    for (std::uint32_t end = known_end; end < known_end + draft_count; ++end) {
      // Positions that this very step computes are there; what came before must be.
      const bool is_held = has_rows(group) ? is_state_held(side, index, end, high) : high - end <= group.slot_history;
      if (is_held) continue;
      return fail(ErrorCode::InvalidArgument,
                  name_of(index) + " cannot compute " + count_of(draft_count, "draft") + " behind " +
                      count_of(known_end, "token") + ": group '" + group.name + "' could not go back to " +
                      with_separators(end) + " if they are not accepted; raise its " +
                      (has_rows(group) ? "slot_entries, now " + with_separators(group.slot_entries)
                                       : "slot_history, now " + with_separators(group.slot_history)));
    }
  }
  return {};
}

// Checkpoints

// The first one behind `position`, or 0.
std::uint32_t Cache::Impl::next_checkpoint(const SequenceSlot& slot, std::uint32_t position) const {
  if (!has_snapshots || slot.publish == Publish::None || slot.is_inexact) return 0;
  std::uint64_t next = UINT64_MAX;
  const auto add = [&](std::uint64_t candidate) {
    if (candidate > position) next = std::min(next, candidate);
  };
  add(slot.junction);
  if (slot.prompt_tokens > 0) add((slot.prompt_tokens - 1) / checkpoint_grid * checkpoint_grid);
  // Without an interval the last one counts: they follow each other, and the one before goes.
  const std::uint32_t interval = checkpoint_interval > 0 ? checkpoint_interval : checkpoint_grid;
  const std::uint64_t from = checkpoint_interval > 0 ? position : std::max(position, slot.prompt_tokens);
  add((from / interval + 1) * interval);
  const bool is_published = slot.publish != Publish::Prompt || next <= slot.prompt_tokens;
  return is_published && next <= std::min(context_tokens_max, slot.publish_tokens_max)
             ? static_cast<std::uint32_t>(next)
             : 0;
}

// A page in each group for a snapshot of the part's sequence behind `position` tokens, or none at all: one group's is
// of no use without the others'.
bool Cache::Impl::take_snapshot_pages(std::uint32_t part, std::uint32_t position, std::vector<PlannedSave>& saves) {
  const std::size_t first = saves.size();
  for (std::uint32_t i = 0; i < sides.size(); ++i) {
    SideGroup& side = sides[i];
    if (side.is_window || !side.has_pages) continue;
    make_room(side, 1);
    PageId page;
    if (side.pool.try_allocate({&page, 1})) {
      saves.push_back({.part = part, .side = i, .page = page, .position = position});
      continue;
    }
    ++side.totals.skipped_snapshot_total;
    for (std::size_t taken = first; taken < saves.size(); ++taken) {
      sides[saves[taken].side].pool.release({&saves[taken].page, 1});
    }
    saves.resize(first);
    return false;
  }
  return saves.size() > first;
}

// Whether a snapshot there would be of use to anybody: the tree has none.
bool Cache::Impl::wants_snapshot(std::uint32_t index, std::uint32_t position) const {
  const std::uint32_t column = (position / page_tokens) - 1;
  const SequenceSlot& slot = sequences[index];
  if (column >= slot.shared_pages) return true;
  const PageId tree_page = sequences.page_row(index)[column];
  return std::ranges::any_of(
      sides, [&](const SideGroup& side) { return !side.is_window && side.has_pages && !side.pages.has(tree_page); });
}

// What a step does with its sequences' states: fills their slots, and saves what has become a checkpoint.
void Cache::Impl::plan_states(StepInFlight& step) {
  state_copies.assign(pending_forks.begin(), pending_forks.end());
  pending_forks.clear();
  state_saves.clear();
  for (std::uint32_t i = 0; i < step.parts.size(); ++i) {
    StepPart& part = step.parts[i];
    SequenceSlot& slot = sequences[part.index];
    if (slot.needs_state) fill_state(part.index, step.number);
    plan_saves(i, part, step);
    slot.state_high = std::max(slot.state_high, part.position + part.token_count + part.draft_count);
  }
}

void Cache::Impl::fill_state(std::uint32_t index, std::uint64_t step_number_of_fill) {
  SequenceSlot& slot = sequences[index];
  for (SideGroup& side : sides) {
    if (side.is_window) continue;
    SideSlot& of_side = side.slots[index];
    of_side.restore_step = step_number_of_fill;
    const bool restores = !of_side.restore_page.is_none();
    state_copies.push_back({.kind = restores ? StateCopyKind::Restore : StateCopyKind::Reset,
                            .group = static_cast<std::int32_t>(side.memory.group_index),
                            .source = restores ? static_cast<std::int32_t>(of_side.restore_page.value) : 0,
                            .target = static_cast<std::int32_t>(slot.state_slot),
                            .position = static_cast<std::int32_t>(of_side.restore_position)});
  }
  slot.needs_state = false;
}

void Cache::Impl::plan_saves(std::uint32_t place, StepPart& part, StepInFlight& step) {
  if (!has_snapshots) return;
  SequenceSlot& slot = sequences[part.index];
  const auto add = [&](std::uint32_t position, std::vector<StateCopy>& target) {
    slot.checkpoint = position;
    if (!wants_snapshot(part.index, position)) return false;
    const std::size_t first = step.saves.size();
    if (!take_snapshot_pages(place, position, step.saves)) return false;
    for (std::size_t i = first; i < step.saves.size(); ++i) {
      const PlannedSave& save = step.saves[i];
      target.push_back({.kind = StateCopyKind::Save,
                        .group = static_cast<std::int32_t>(sides[save.side].memory.group_index),
                        .source = static_cast<std::int32_t>(slot.state_slot),
                        .target = static_cast<std::int32_t>(save.page.value),
                        .position = static_cast<std::int32_t>(position)});
    }
    return true;
  };
  // Accepted drafts may have passed one: the slot still has the state there, if it keeps earlier versions.
  const std::uint32_t passed = next_checkpoint(slot, slot.checkpoint);
  const auto still_has = [&](const SideGroup& side) {
    return side.is_window || is_state_held(side, part.index, passed, std::max(slot.state_high, passed));
  };
  if (passed > 0 && passed <= slot.computed_tokens && slot.steps_in_flight == 1) {
    slot.checkpoint = passed;
    if (std::ranges::all_of(sides, still_has)) (void)add(passed, state_copies);
  }
  const std::uint32_t known_end = part.position + part.token_count;
  const std::uint32_t next = next_checkpoint(slot, part.position);
  part.checkpoint = 0;
  if (part.token_count > 0 && next == known_end && next >= slot.replay_end && add(next, state_saves)) {
    part.checkpoint = next;
  }
}

// Snapshots of a part that is done: the tree has them if it has the page that they hang on.
void Cache::Impl::finish_saves(const StepInFlight& step, std::uint32_t place, bool is_done) {
  for (const PlannedSave& save : step.saves) {
    if (save.part != place) continue;
    SideGroup& side = sides[save.side];
    const StepPart& part = step.parts[place];
    const SequenceSlot& slot = sequences[part.index];
    const std::uint32_t column = (save.position / page_tokens) - 1;
    const bool is_public = is_done && column < slot.shared_pages && save.position <= slot.computed_tokens &&
                           !slot.is_inexact && slot.generation == part.generation;
    const PageId tree_page = is_public ? sequences.page_row(part.index)[column] : kNullPage;
    if (!is_public || side.pages.has(tree_page)) {
      give_back(side, save.page);
      side.totals.duplicate_page_total += is_public ? 1 : 0;
      continue;
    }
    side.pool.seal({&save.page, 1});
    side.pages.attach(tree_page, save.page);
    side.pages.unpin(save.page, SidePages::Worth::Kept);
    want_side_copy(side, save.page, column);
    ++side.totals.sealed_page_total;
    if (side.group->retention.rule == RetentionRule::Last) replace_last(side, part.index, save.position);
  }
}

// Of a group that keeps the last one only, the sequence's snapshot before goes, unless somebody uses it. Those where
// others may part from it, or where its prompt ends, are not its own.
void Cache::Impl::replace_last(SideGroup& side, std::uint32_t index, std::uint32_t position) {
  const SequenceSlot& sequence = sequences[index];
  const std::uint32_t prompt_end =
      (sequence.prompt_tokens - std::min(sequence.prompt_tokens, 1U)) / checkpoint_grid * checkpoint_grid;
  if (position == sequence.junction || position == prompt_end) return;
  const PageId tree_page = sequences.page_row(index)[(position / page_tokens) - 1];
  const PageId page = std::exchange(side.slots[index].last_snapshot, side.pages.at(tree_page));
  const std::uint32_t column = std::exchange(side.slots[index].last_snapshot_column, (position / page_tokens) - 1);
  if (page.is_none() || page == side.slots[index].last_snapshot) return;
  if (!side.pages.is_attached(page) || side.pages.is_pinned(page)) return;
  // It may have gone, and its page be another's snapshot by now.
  if (column >= sequence.shared_pages || side.pages.at(sequences.page_row(index)[column]) != page) return;
  drop_host_copy(side, page);
  side.pages.detach(page);
  release_device(side, page);
  ++side.totals.dropped_page_total;
}

// The step that filled a slot is over.
void Cache::Impl::end_restores(std::uint32_t index, std::uint64_t step) {
  for (SideGroup& side : sides) {
    SideSlot& slot = side.slots[index];
    if (side.is_window || slot.restore_page.is_none() || slot.restore_step != step) continue;
    side.pages.unpin(slot.restore_page, SidePages::Worth::Kept);
    slot.restore_page = PageId::none();
  }
}

// After a step that did not happen: it may have written states all the same. Where the slot no longer has what the
// sequence goes on from, that is found or computed again.
void Cache::Impl::settle_state(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  if (!slot.state_is_in_doubt || slot.steps_in_flight > 0 || slot.is_dropped) return;
  slot.state_is_in_doubt = false;
  if (slot.needs_state) return;
  const auto is_held = [&](const SideGroup& side) {
    return side.is_window || is_state_held(side, index, slot.computed_tokens, slot.state_high);
  };
  if (slot.computed_tokens == 0) {
    restart_state(index);
    return;
  }
  if (std::ranges::all_of(sides, is_held)) {
    cut_state(index, slot.computed_tokens);
    return;
  }
  release_pages(index);
  slot.computed_tokens = 0;
  slot.planned_end = 0;
  start_running(index, /*is_again=*/true);
}

// The sequence begins anew, and so does its state.
void Cache::Impl::restart_state(std::uint32_t index) {
  for (SideGroup& side : sides) {
    if (side.is_window) continue;
    SideSlot& slot = side.slots[index];
    if (!slot.restore_page.is_none()) side.pages.unpin(slot.restore_page, SidePages::Worth::Kept);
    slot = {};
  }
  sequences[index].needs_state = true;
  sequences[index].state_high = 0;
}

// What follows `end` tokens is written anew: from here on it counts what the slot has of those before.
void Cache::Impl::cut_state(std::uint32_t index, std::uint32_t end) {
  SequenceSlot& slot = sequences[index];
  for (SideGroup& side : sides) {
    if (side.is_window) continue;
    const CacheGroup& group = *side.group;
    SideSlot& of_side = side.slots[index];
    const std::uint32_t room = has_rows(group) ? group.slot_entries - group.sink_tokens : group.slot_history;
    const std::uint32_t oldest = slot.state_high - std::min(slot.state_high, room);
    of_side.valid_from = std::min(end, std::max(of_side.valid_from, oldest));
    of_side.lacks_first_rows |= std::uint64_t{slot.state_high} + group.snapshot_entries > room;
  }
  slot.state_high = std::min(slot.state_high, end);
}

// Copies are made in order, so each is right whatever becomes of its slots behind it. Those of sequences that have
// ended meanwhile, which nobody reads, are left out: it takes slots that change hands in circles to have more than one
// for each sequence.
void Cache::Impl::add_fork(StateCopy copy) {
  const auto writes = [&](std::int32_t slot) {
    return [&copy, slot](const StateCopy& other) { return other.group == copy.group && other.target == slot; };
  };
  const auto last_to = [&](std::int32_t slot) {
    const auto found = std::find_if(pending_forks.rbegin(), pending_forks.rend(), writes(slot));
    return found == pending_forks.rend() ? pending_forks.end() : found.base() - 1;
  };
  // Where the source waits for a copy itself, that one's source will do, unless it is another's slot by then.
  if (const auto from = last_to(copy.source); from != pending_forks.end()) {
    if (std::none_of(from, pending_forks.end(), writes(from->source))) copy.source = from->source;
  }
  if (const auto older = last_to(copy.target); older != pending_forks.end()) {
    const auto reads = [&](const StateCopy& other) { return other.group == copy.group && other.source == copy.target; };
    if (copy.source != copy.target && std::none_of(older, pending_forks.end(), reads)) {
      pending_forks.erase(older);
    }
  }
  if (copy.source != copy.target) pending_forks.push_back(copy);
}

// A fork's slot becomes what its source's is, with the next plan.
void Cache::Impl::fork_state(std::uint32_t source_index, std::uint32_t index) {
  if (!has_state()) return;
  const SequenceSlot& source = sequences[source_index];
  SequenceSlot& slot = sequences[index];
  take_state_slot(index);
  slot.state_high = source.state_high;
  slot.needs_state = source.needs_state || slot.computed_tokens == 0;
  slot.checkpoint = slot.computed_tokens;
  for (SideGroup& side : sides) {
    if (side.is_window) continue;
    const SideSlot& from = side.slots[source_index];
    SideSlot& of_side = side.slots[index];
    of_side = {};
    of_side.valid_from = from.valid_from;
    of_side.lacks_first_rows = from.lacks_first_rows && slot.computed_tokens > 0;
    if (slot.needs_state) {
      if (slot.computed_tokens == 0 || from.restore_page.is_none()) continue;
      of_side.restore_page = from.restore_page;
      of_side.restore_position = from.restore_position;
      side.pages.pin(of_side.restore_page);
      continue;
    }
    StateCopy copy{.kind = StateCopyKind::Fork,
                   .group = static_cast<std::int32_t>(side.memory.group_index),
                   .source = static_cast<std::int32_t>(source.state_slot),
                   .target = static_cast<std::int32_t>(slot.state_slot)};
    add_fork(copy);
  }
  if (slot.computed_tokens == 0) {
    restart_state(index);
  } else {
    cut_state(index, slot.computed_tokens);
  }
}

}  // namespace quire
