// SPDX-License-Identifier: Apache-2.0
//
// Cache: state slots. An admitted sequence has one, in which its recurrent states, rings and row tails live. (A row
// tail is the last rows of a snapshot group; it has nothing to do with a sequence's tail.) The first step fills the
// slot, from a snapshot or with initial bytes. A checkpoint is a position where a step ends so that the state can be
// saved as a snapshot for other sequences. A snapshot hangs on the history's page that ends there.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"
#include "quire/state_slots.h"

namespace quire {

namespace {

// Whether a slot has rows by position (rings and row tails), and not one state.
bool has_rows(const CacheGroup& group) {
  return group.kind == GroupKind::Window || (group.slot_entries > 1 && group.slot_history == 0);
}

// How many rows before `position` a sequence must have in its slot to go on there; 0 for a state.
std::uint32_t needed_rows(const CacheGroup& group, std::uint32_t position) {
  if (group.kind == GroupKind::Window) return group.window_tokens - 1;
  return has_rows(group) ? group.snapshot_entries + (position % group.boundary_tokens) : 0;
}

// How many rows a snapshot brings into a slot; 0 for a state.
std::uint32_t snapshot_rows(const CacheGroup& group) {
  // Without a ring's oldest row: drafts may have overwritten it before the snapshot was taken. No sequence that goes on
  // there sees that row.
  if (group.kind == GroupKind::Window) return group.window_tokens - 1;
  return has_rows(group) ? group.snapshot_entries : 0;
}

// The line that gives a layout's slots room for so many drafts, and what that costs.
std::string room_for_drafts(const CacheConfig& config, std::uint32_t draft_count) {
  const Result<ModelLayout> layout = config.layout.with_drafts(draft_count);
  if (!layout) return "";
  const Result<StateSlots> now = StateSlots::create(config.layout, config.page);
  const Result<StateSlots> then = StateSlots::create(*layout, config.page);
  if (!now || !then) return "";
  return ", as config.layout = layout.with_drafts(" + std::to_string(draft_count) + ") does: a state slot then takes " +
         readable_bytes(then->slot_bytes()) + ", now " + readable_bytes(now->slot_bytes());
}

}  // namespace

// What to do when all state slots are taken.
std::string Cache::Impl::how_to_get_a_slot() const {
  const bool has_slot_count = config.device.state_slot_count != 0;  // else there is a slot for every sequence
  const bool needs_sequences = state_slot_count >= config.sequence_count_max;
  return message_of("end a sequence, preempt one with Preempt::Drop (a saved one keeps its slot), or raise ",
                    has_slot_count ? "device.state_slot_count" : "", has_slot_count && needs_sequences ? " and " : "",
                    needs_sequences ? "sequence_count_max" : "");
}

Status Cache::Impl::check_state_slot(const Refusal& refused) const {
  if (!has_state() || sequences[refused.sequence].state_slot || !free_state_slots.empty()) return {};
  return refused.unavailable(" needs a state slot, and all ", state_slot_count, " are taken: ", how_to_get_a_slot());
}

void Cache::Impl::take_state_slot(std::uint32_t index) {
  if (!has_state() || sequences[index].state_slot) return;
  QUIRE_CHECK(!free_state_slots.empty(), "a sequence came to run without a state slot");
  sequences[index].state_slot = {.index = free_state_slots.back()};
  free_state_slots.pop_back();
}

void Cache::Impl::release_state(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  for (GroupRows& group : groups) unpin_restored(group, index);
  QUIRE_CHECK(!slot.state_slot || free_state_slots.size() < state_slot_count, "a state slot goes back twice");
  if (slot.state_slot) free_state_slots.push_back(slot.state_slot->index);
  slot.state_slot.reset();
}

// The first step is to fill the sequence's slot with the state behind hit.start() tokens.
void Cache::Impl::start_state(std::uint32_t index, const Hit& hit) {
  SequenceSlot& slot = sequences[index];
  take_state_slot(index);
  if (!slot.state_slot) return;
  *slot.state_slot = {.index = slot.state_slot->index,
                      .high = hit.start(),
                      .checkpoint = hit.tokens,  // a replay takes no snapshots
                      .needs_fill = true};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    GroupRows& group = groups[i];
    if (group.is_window()) continue;
    GroupState& state = group.states[index];
    state = {};
    state.valid_from =
        hit.is_rebuilt(i) ? hit.tokens - std::min(hit.tokens, needed_rows(*group.group, hit.tokens)) : hit.start();
    if (hit.start() == 0 || hit.is_rebuilt(i) || tiers->paths.hit_group(i).starts_anew) continue;
    state.restore_page = group.pages().at(sequences.page_row(index)[(hit.start() / page_tokens) - 1]);
    QUIRE_CHECK(!state.restore_page.is_none() || slot.state == SequenceSlot::State::RunningAhead,
                "a hit needs a snapshot that is not there");
    if (!state.restore_page.is_none()) group.pages().pin(state.restore_page);  // else a load brings it
    state.restore_position = hit.start();
    state.valid_from = hit.start() - std::min(hit.start(), snapshot_rows(*group.group));
    state.lacks_first_rows = true;
    ++group.tier->pages.totals.restored_snapshot_total;
  }
}

// Whether the slot still has the state behind `end` tokens when tokens up to `high` were written to it.
bool Cache::Impl::is_state_held(const GroupRows& group, std::uint32_t index, std::uint32_t end,
                                std::uint32_t high) const {
  if (end == 0) return true;  // the slot is reset
  QUIRE_DCHECK(end <= high, "a state is asked for that was never written");
  const CacheGroup& layout = *group.group;
  const GroupState& slot = group.states[index];
  // Before its snapshot is restored, a sequence cannot go back to fewer tokens: it would give up the page that the
  // snapshot hangs on.
  if (!slot.restore_page.is_none() && end < slot.restore_position) return false;
  if (!has_rows(layout)) return end >= slot.valid_from && high - end <= layout.slot_history;
  const std::uint32_t room = layout.slot_entries - layout.sink_tokens;
  const std::uint32_t lookback = needed_rows(layout, end);
  if (lookback == 0) return true;
  if (end - std::min(end, lookback) < slot.valid_from) return false;
  // A row tail has initial bytes for positions before token 0, until later rows overwrite them; a ring has no such
  // rows.
  const bool is_tail = layout.kind != GroupKind::Window;
  if (is_tail && lookback > end && slot.lacks_first_rows) return false;
  const std::uint32_t needed = is_tail ? lookback : std::min(end, lookback);
  return std::uint64_t{end} + room >= std::uint64_t{high} + needed;
}

Status Cache::Impl::check_state_held(const GroupRows& group, std::uint32_t index, std::uint32_t end) const {
  const std::uint32_t high = sequences[index].state_slot->high;
  if (is_state_held(group, index, end, std::max(high, end))) return {};
  const CacheGroup& layout = *group.group;
  const std::string missing =
      message_of("group '", layout.name, "' no longer has the state behind ", count_of(end, "token"));
  const std::string begin =
      message_of("begin() a sequence with these ", count_of(end, "token"), ", which finds what is cached of them");
  // A larger slot helps only with what was written into it.
  const GroupState& state = group.states[index];
  const std::uint32_t needed = needed_rows(layout, end);
  const bool was_written = state.restore_page.is_none() && end - std::min(end, needed) >= state.valid_from &&
                           (needed <= end || layout.kind == GroupKind::Window || !state.lacks_first_rows);
  if (!was_written) {
    return invalid(missing, ": the sequence began further on, from a snapshot, or was taken back before; ", begin);
  }
  if (has_rows(layout)) {
    const std::uint64_t rows = std::uint64_t{high} - end + needed + layout.sink_tokens;
    return invalid(missing, ": its slots hold the rows of ", count_of(layout.slot_entries, "token"),
                   ", and tokens up to ", high, " were computed; declare slot_entries of ", rows, " or more, or ",
                   begin);
  }
  return invalid(missing, ": it keeps ", count_of(layout.slot_history, "earlier version"), ", and tokens up to ", high,
                 " were computed; declare a slot_history of ", high - end, " or more, or ", begin);
}

// Drafts that are not accepted are taken back, so the slot must still have the state before each of them.
Status Cache::Impl::check_drafts(std::uint32_t index, std::uint32_t known_end, std::uint32_t draft_count) const {
  for (const GroupRows& group : groups) {
    if (group.is_window()) continue;
    const CacheGroup& layout = *group.group;
    const std::uint32_t high = std::max(sequences[index].state_slot->high, known_end + draft_count);
    for (std::uint32_t end = known_end; end < known_end + draft_count; ++end) {
      // This step itself writes all versions of a state from known_end on; but rows of earlier tokens must be there.
      const bool is_held =
          has_rows(layout) ? is_state_held(group, index, end, high) : high - end <= layout.slot_history;
      if (is_held) continue;
      return invalid(name_of(index), " cannot compute ", count_of(draft_count, "draft"), " behind ",
                     count_of(known_end, "token"), ": group '", layout.name, "' could not go back to ", end,
                     " if they are not accepted; raise its ",
                     has_rows(layout) ? "slot_entries, now " + with_separators(layout.slot_entries)
                                      : "slot_history, now " + with_separators(layout.slot_history),
                     room_for_drafts(config, draft_count));
    }
  }
  return {};
}

// Checkpoints

// The first checkpoint behind `position`, or 0.
std::uint32_t Cache::Impl::next_checkpoint(const SequenceSlot& slot, std::uint32_t position) const {
  if (!has_snapshots) return 0;
  std::uint64_t next = UINT64_MAX;
  const auto add = [&](std::uint64_t candidate) {
    if (candidate > position) next = std::min(next, candidate);
  };
  add(slot.junction.value_or(0));
  add(prompt_checkpoint(slot));
  // Without an interval, there is a checkpoint at every multiple of the grid behind the prompt, and each snapshot
  // replaces the one before.
  const std::uint32_t interval = checkpoint_interval > 0 ? checkpoint_interval : checkpoint_grid;
  const std::uint64_t from = checkpoint_interval > 0 ? position : std::max(position, slot.prompt_tokens);
  add((from / interval + 1) * interval);
  return next <= std::min(context_tokens_max, publishable_tokens(slot)) ? static_cast<std::uint32_t>(next) : 0;
}

// Takes a page in each snapshot group for a snapshot behind `position` tokens, or in none: a snapshot that lacks a
// group is of no use.
bool Cache::Impl::take_snapshot_pages(std::uint32_t part, std::uint32_t position, std::vector<PlannedSnapshot>& saves) {
  const std::size_t first = saves.size();
  for (std::uint32_t i = 0; i < groups.size(); ++i) {
    GroupRows& group = groups[i];
    if (group.is_window() || !group.has_pages()) continue;
    group.tier->pages.unfence(1);
    group.tier->make_room(1);
    PageId page;
    if (group.pool().try_allocate({&page, 1})) {
      saves.push_back({.part = part, .group = i, .page = page, .position = position});
      continue;
    }
    ++group.tier->pages.totals.skipped_snapshot_total;
    for (std::size_t taken = first; taken < saves.size(); ++taken) {
      groups[saves[taken].group].pool().release({&saves[taken].page, 1});
    }
    saves.resize(first);
    return false;
  }
  return saves.size() > first;
}

// Whether a snapshot there would be of use to anybody: the tree has none, and the sequence the page it would hang on.
bool Cache::Impl::wants_snapshot(std::uint32_t index, std::uint32_t position) const {
  QUIRE_CHECK(position > 0 && position % page_tokens == 0, "no page ends where a snapshot is wanted");
  const std::uint32_t column = (position / page_tokens) - 1;
  const SequenceSlot& slot = sequences[index];
  if (slot.is_in_hole(column)) return false;
  if (column >= slot.shared_pages) return true;
  const PageId tree_page = sequences.page_row(index)[column];
  return std::ranges::any_of(groups, [&](const GroupRows& group) {
    return !group.is_window() && group.has_pages() && !group.pages().has(tree_page);
  });
}

// What a step does with states: makes pending forks, fills its sequences' slots, and saves snapshots at checkpoints.
void Cache::Impl::plan_states(StepInFlight& step) {
  scratch.state_copies.assign(pending_forks.begin(), pending_forks.end());
  pending_forks.clear();
  scratch.state_saves.clear();
  scratch.state_sends.clear();
  for (std::uint32_t i = 0; i < step.parts.size(); ++i) {
    StepPart& part = step.parts[i];
    SequenceSlot& slot = sequences[part.index];
    SequenceSlot::StateSlot& state = *slot.state_slot;
    if (state.needs_fill) fill_state(part.index, step.number);
    plan_snapshots(i, part, step);
    if (slot.send) list_state_send(part);
    state.high = std::max(state.high, part.position + part.token_count + part.draft_count);
  }
}

void Cache::Impl::fill_state(std::uint32_t index, std::uint64_t step_number_of_fill) {
  SequenceSlot::StateSlot& slot = *sequences[index].state_slot;
  for (GroupRows& group : groups) {
    if (group.is_window()) continue;
    GroupState& state = group.states[index];
    state.restore_step = step_number_of_fill;
    const bool restores = !state.restore_page.is_none();
    scratch.state_copies.push_back({.kind = restores ? StateCopyKind::Restore : StateCopyKind::Reset,
                                    .group = static_cast<std::int32_t>(group.memory.group_index),
                                    .source = restores ? static_cast<std::int32_t>(state.restore_page.value) : 0,
                                    .target = static_cast<std::int32_t>(slot.index),
                                    .position = static_cast<std::int32_t>(state.restore_position)});
  }
  slot.needs_fill = false;
}

void Cache::Impl::plan_snapshots(std::uint32_t place, StepPart& part, StepInFlight& step) {
  if (!has_snapshots) return;
  const SequenceSlot& slot = sequences[part.index];
  SequenceSlot::StateSlot& state = *sequences[part.index].state_slot;
  const auto add = [&](std::uint32_t position, std::vector<StateCopy>& target) {
    state.checkpoint = position;
    if (!wants_snapshot(part.index, position)) return false;
    const std::size_t first = step.saves.size();
    if (!take_snapshot_pages(place, position, step.saves)) return false;
    for (std::size_t i = first; i < step.saves.size(); ++i) {
      const PlannedSnapshot& save = step.saves[i];
      target.push_back({.kind = StateCopyKind::Save,
                        .group = static_cast<std::int32_t>(groups[save.group].memory.group_index),
                        .source = static_cast<std::int32_t>(state.index),
                        .target = static_cast<std::int32_t>(save.page.value),
                        .position = static_cast<std::int32_t>(position)});
    }
    return true;
  };
  // Accepted drafts may have passed a checkpoint. A slot that keeps earlier versions still has the state there.
  const std::uint32_t passed = next_checkpoint(slot, state.checkpoint);
  const auto still_has = [&](const GroupRows& group) {
    return group.is_window() || is_state_held(group, part.index, passed, std::max(state.high, passed));
  };
  if (passed > 0 && passed <= slot.computed_tokens && slot.steps_in_flight == 1) {
    state.checkpoint = passed;
    if (std::ranges::all_of(groups, still_has)) (void)add(passed, scratch.state_copies);
  }
  const std::uint32_t known_end = part.position + part.token_count;
  const std::uint32_t next = next_checkpoint(slot, part.position);
  part.checkpoint = 0;
  if (part.token_count > 0 && next == known_end && next >= slot.replay_end && add(next, scratch.state_saves)) {
    part.checkpoint = next;
  }
}

// Attaches the snapshots of a part that is done to the pages of the tree that they belong to. Where the tree has no
// such page, or the part was not done, their pages go back.
void Cache::Impl::finish_snapshots(const StepInFlight& step, std::uint32_t place, bool is_done) {
  for (const PlannedSnapshot& save : step.saves) {
    if (save.part != place) continue;
    GroupRows& group = groups[save.group];
    const StepPart& part = step.parts[place];
    const SequenceSlot& slot = sequences[part.index];
    const std::uint32_t column = (save.position / page_tokens) - 1;
    const bool is_public = is_done && column < slot.shared_pages && !slot.is_in_hole(column) &&
                           save.position <= slot.computed_tokens && !slot.is_inexact &&
                           slot.generation == part.generation;
    const PageId tree_page = is_public ? sequences.page_row(part.index)[column] : kNullPage;
    if (!is_public || group.pages().has(tree_page)) {
      group.tier->pages.give_back(save.page);
      group.tier->pages.totals.duplicate_page_total += is_public ? 1 : 0;
      continue;
    }
    group.pool().seal({&save.page, 1});
    group.pages().attach(tree_page, save.page);
    group.pages().unpin(save.page, AnchoredPages::Worth::Kept);
    group.tier->want_copy(save.page, column);
    ++group.tier->pages.totals.sealed_page_total;
    if (group.group->retention.rule == RetentionRule::Last) replace_last(group, part.index, save.position);
  }
}

// With RetentionRule::Last, the snapshot that the sequence left before this one goes, unless somebody uses it.
// Snapshots at the junction and at the end of the prompt stay: other requests may go on from there.
void Cache::Impl::replace_last(GroupRows& group, std::uint32_t index, std::uint32_t position) {
  const SequenceSlot& sequence = sequences[index];
  if (position == sequence.junction || position == prompt_checkpoint(sequence)) return;
  const PageId tree_page = sequences.page_row(index)[(position / page_tokens) - 1];
  const PageId page = std::exchange(group.states[index].last_snapshot, group.pages().at(tree_page));
  const std::uint32_t column = std::exchange(group.states[index].last_snapshot_column, (position / page_tokens) - 1);
  if (page.is_none() || page == group.states[index].last_snapshot) return;
  if (!group.pages().is_attached(page) || group.pages().is_pinned(page)) return;
  // The earlier snapshot may have been evicted, and its page hold another snapshot by now.
  if (column >= sequence.shared_pages || group.pages().at(sequences.page_row(index)[column]) != page) return;
  group.tier->drop(page);
}

// The step that filled a slot is over: the snapshot that it was filled from is no longer pinned.
void Cache::Impl::unpin_restored(std::uint32_t index, std::uint64_t step) {
  for (GroupRows& group : groups) {
    if (group.states[index].restore_step == step) unpin_restored(group, index);
  }
}

void Cache::Impl::unpin_restored(GroupRows& group, std::uint32_t index) {
  PageId& page = group.states[index].restore_page;
  if (!page.is_none()) group.pages().unpin(page, AnchoredPages::Worth::Kept);
  page = PageId::none();
}

// After a step that was aborted or discarded, which may have written the state slot all the same. If the slot no longer
// has the state that the sequence goes on from, the sequence starts again with what is cached.
void Cache::Impl::recover_state(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  if (!slot.state_slot || !slot.state_slot->is_in_doubt || slot.steps_in_flight > 0 || slot.is_dropped) return;
  slot.state_slot->is_in_doubt = false;
  if (slot.state_slot->needs_fill) return;
  // If the state behind fewer tokens is still to be sent, the slot must have that state too.
  const std::uint32_t sent = slot.send ? std::min(slot.send->end, slot.computed_tokens) : slot.computed_tokens;
  const auto is_held = [&](const GroupRows& group) {
    return group.is_window() || (is_state_held(group, index, slot.computed_tokens, slot.state_slot->high) &&
                                 is_state_held(group, index, sent, slot.state_slot->high));
  };
  if (std::ranges::all_of(groups, is_held)) {
    cut_state(index, slot.computed_tokens);
  } else {
    begin_anew(index);
  }
}

// The sequence gives up its pages and its state, and starts again with what is cached of it.
void Cache::Impl::begin_anew(std::uint32_t index) {
  release_pages(index);
  sequences[index].computed_tokens = 0;
  sequences[index].planned_end = 0;
  start_running(index, /*is_again=*/true);
}

// The sequence begins at token 0 again: the next plan resets its state slot.
void Cache::Impl::restart_state(std::uint32_t index) {
  for (GroupRows& group : groups) {
    if (group.is_window()) continue;
    unpin_restored(group, index);
    group.states[index] = {};
  }
  SequenceSlot::StateSlot& slot = *sequences[index].state_slot;
  slot = {.index = slot.index, .needs_fill = true};
}

// The slot has the state behind all computed tokens, as it was sent: all rows that the sequence goes on from, and no
// earlier version.
void Cache::Impl::take_received_state(std::uint32_t index) {
  SequenceSlot::StateSlot& slot = *sequences[index].state_slot;
  const std::uint32_t end = sequences[index].computed_tokens;
  QUIRE_CHECK(end > 0, "a state was received, and no tokens");
  for (GroupRows& group : groups) {
    if (group.is_window()) continue;
    unpin_restored(group, index);
    GroupState& state = group.states[index];
    state.valid_from = end - std::min(end, needed_rows(*group.group, end));
    state.lacks_first_rows = true;
  }
  slot.needs_fill = false;
  slot.high = end;
  slot.checkpoint = end - 1;  // a checkpoint at `end` was not planned here: the next step may save it
}

// The sequence goes back to `end` tokens: notes which rows before `end` its slot still has.
void Cache::Impl::cut_state(std::uint32_t index, std::uint32_t end) {
  if (!has_state()) return;
  if (end == 0) return restart_state(index);
  SequenceSlot::StateSlot& slot = *sequences[index].state_slot;
  for (GroupRows& group : groups) {
    if (group.is_window()) continue;
    const CacheGroup& layout = *group.group;
    GroupState& state = group.states[index];
    const std::uint32_t room = has_rows(layout) ? layout.slot_entries - layout.sink_tokens : layout.slot_history;
    const std::uint32_t oldest = slot.high - std::min(slot.high, room);
    state.valid_from = std::min(end, std::max(state.valid_from, oldest));
    state.lacks_first_rows |= std::uint64_t{slot.high} + layout.snapshot_entries > room;
  }
  slot.high = std::min(slot.high, end);
  slot.checkpoint = std::min(slot.checkpoint, end);
}

// Adds a copy of a state slot to those that the next plan makes, in this order. Copies into slots of sequences that
// have ended meanwhile, which nobody reads, are removed. So there is rarely more than one for each sequence: only when
// slots change hands in circles.
void Cache::Impl::add_fork(StateCopy copy) {
  const auto writes = [&](std::int32_t slot) {
    return [&copy, slot](const StateCopy& other) { return other.group == copy.group && other.target == slot; };
  };
  const auto last_to = [&](std::int32_t slot) {
    const auto found = std::find_if(pending_forks.rbegin(), pending_forks.rend(), writes(slot));
    return found == pending_forks.rend() ? pending_forks.end() : found.base() - 1;
  };
  // If the source slot itself waits for a copy, copies from where that copy comes, unless that slot is overwritten
  // meanwhile.
  if (const auto from = last_to(copy.source); from != pending_forks.end()) {
    if (std::none_of(from, pending_forks.end(), writes(from->source))) copy.source = from->source;
  }
  if (const auto older = last_to(copy.target); older != pending_forks.end()) {
    const auto reads = [&](const StateCopy& other) { return other.group == copy.group && other.source == copy.target; };
    if (copy.source != copy.target && std::none_of(older, pending_forks.end(), reads)) {
      pending_forks.erase(older);
    }
  }
  QUIRE_CHECK(pending_forks.size() < pending_forks.capacity(), "more copies wait than fork() lets");
  if (copy.source != copy.target) pending_forks.push_back(copy);
}

// The next plan fills a fork's state slot: with a copy of its source's slot, or from the same snapshot.
void Cache::Impl::fork_state(std::uint32_t source_index, std::uint32_t index) {
  if (!has_state()) return;
  const SequenceSlot::StateSlot& source = *sequences[source_index].state_slot;
  const std::uint32_t end = sequences[index].computed_tokens;
  take_state_slot(index);
  SequenceSlot::StateSlot& slot = *sequences[index].state_slot;
  slot.high = source.high;
  slot.needs_fill = source.needs_fill || end == 0;
  slot.checkpoint = end;
  for (GroupRows& group : groups) {
    if (group.is_window()) continue;
    const GroupState& from = group.states[source_index];
    GroupState& state = group.states[index];
    state = {};
    state.valid_from = from.valid_from;
    state.lacks_first_rows = from.lacks_first_rows && end > 0;
    if (slot.needs_fill) {
      if (end == 0 || from.restore_page.is_none()) continue;
      state.restore_page = from.restore_page;
      state.restore_position = from.restore_position;
      group.pages().pin(state.restore_page);
      continue;
    }
    StateCopy copy{.kind = StateCopyKind::Fork,
                   .group = static_cast<std::int32_t>(group.memory.group_index),
                   .source = static_cast<std::int32_t>(source.index),
                   .target = static_cast<std::int32_t>(slot.index)};
    add_fork(copy);
  }
  cut_state(index, end);
}

}  // namespace quire
