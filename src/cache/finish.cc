// SPDX-License-Identifier: Apache-2.0
//
// Cache: finishing and aborting planned steps. Steps finish in the order they were planned. When a sequence's part of a
// step is aborted or discarded, its parts of later steps are discarded too.
#include <algorithm>

#include "base/check.h"
#include "base/mutants.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"
#include "quire/host_kernels.h"

namespace quire {

Result<std::uint32_t> Cache::Impl::find_step(const Step& asked) const {
  if (asked.cache != this) {
    return invalid("step ", plain(asked.number),
                   asked.cache == nullptr ? " was never planned" : " was planned by another cache");
  }
  for (std::uint32_t place = 0; place < step_order.size(); ++place) {
    if (steps[step_order[place]].number == asked.number) return place;
  }
  return invalid("step ", plain(asked.number), " is not in flight");
}

Status Cache::apply_copies(const Step& step) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (impl.config.device.memory != DeviceMemory::Host) {
    return unsupported(
        "apply_copies: the pool's memory is not quire's own; apply the plan's moves and copies where it is");
  }
  QUIRE_TRY_ASSIGN(const std::uint32_t place, impl.find_step(step));
  if (place > 0 && !impl.is_applied(impl.step_at(place - 1))) {
    return invalid("apply_copies: those of step ", plain(impl.step_at(place - 1).number),
                   ", which was planned before, come first");
  }
  QUIRE_TRY(impl.check_snapshots_arrived(impl.step_at(place)));
  impl.apply_moves_and_copies(impl.step_at(place));
  return {};
}

Status Cache::apply_saves(const Step& step) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (impl.config.device.memory != DeviceMemory::Host) {
    return unsupported("apply_saves: the memory is not quire's own; apply the plan's state_saves where it is");
  }
  QUIRE_TRY_ASSIGN(const std::uint32_t place, impl.find_step(step));
  StepInFlight& computed = impl.step_at(place);
  if (!impl.is_applied(computed)) {
    return invalid("apply_saves: step ", plain(step.number),
                   " has copies that were not applied; apply_copies comes before its work, apply_saves behind it");
  }
  if (!std::exchange(computed.is_saved, true)) impl.copy_states(computed.plan.state_saves);
  return {};
}

bool Cache::Impl::is_applied(const StepInFlight& step) const {
  const auto has_none = [](const GroupPlan& group) { return group.moves.empty() && group.copies.empty(); };
  return config.device.memory != DeviceMemory::Host || step.is_applied ||
         ((step.is_moved || std::ranges::all_of(step.plan.groups, has_none)) && step.plan.state_copies.empty());
}

void Cache::Impl::apply_moves_and_copies(StepInFlight& step) {
  apply_moves(step);
  if (config.device.memory != DeviceMemory::Host || std::exchange(step.is_applied, true)) return;
  copy_states(step.plan.state_copies);
}

// Makes the moves and copies of pages that a step asks for. Earlier steps in flight write other pages, so this may come
// before their kernels have run.
void Cache::Impl::apply_moves(StepInFlight& step) {
  if (config.device.memory != DeviceMemory::Host || std::exchange(step.is_moved, true)) return;
  const auto apply = [&plans = step.plan.groups](const GroupMemory& memory) {
    if (memory.group_index >= plans.size()) return;
    const GroupPlan& group = plans[memory.group_index];
    move_tokens_on_host({.geometry = &*memory.geometry, .pool = memory.data, .moves = group.moves});
    copy_pages_on_host({.geometry = &*memory.geometry, .pool = memory.data, .copies = group.copies});
  };
  for (const GroupMemory& memory : history_memory) apply(memory);
  for (const std::uint32_t i : windows) apply(groups[i].memory);
}

void Cache::Impl::copy_states(std::span<const StateCopy> of_plan) {
  if (of_plan.empty()) return;
  copy_states_on_host({.slots = &*state_slots,
                       .state = state_memory,
                       .slot_count = state_slot_count,
                       .geometries = group_geometries,
                       .pools = group_pools,
                       .copies = of_plan});
}

// For calls that read or write pages at once: makes the moves and copies of pages that steps in flight ask for, and the
// moves that wait for the next plan, since they must not come afterwards. In memory of the engine's own, only the
// engine's steps make them. State slots are no pages, and running steps may still write them: copies of states wait.
void Cache::Impl::make_moves() {
  if (config.device.memory != DeviceMemory::Host) return;
  for (std::size_t place = 0; place < step_order.size(); ++place) apply_moves(step_at(place));
  const auto move = [this](const GroupMemory& memory, const LazyArray<TokenMove>& of_group) {
    move_tokens_on_host({.geometry = &*memory.geometry, .pool = memory.data, .moves = {of_group.data(), move_count()}});
  };
  for (const GroupMemory& memory : history_memory) move(memory, moves);
  for (const std::uint32_t i : windows) move(groups[i].memory, groups[i].moves);
  drop_moves();
}

// Forgets the moves that wait for the next plan: they have been made, or their pages are gone.
void Cache::Impl::drop_moves() {
  move_indptr.resize(1);
  tiers->parts.fence.set_moves(false);
  free_fenced();
}

Status Cache::finish_step(const Step& step, std::span<const StepResult> results) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t place, impl.find_step(step));
  if (place > 0) {
    return invalid("step ", plain(step.number), " was planned after step ", plain(impl.step_at(0).number),
                   ", which is in flight: steps finish in the order they were planned");
  }
  StepInFlight& finished = impl.step_at(0);
  if (!impl.is_applied(finished)) {
    return invalid("step ", plain(step.number),
                   " has copies that were not applied; call apply_copies before the step's own work");
  }
  if (impl.config.device.memory == DeviceMemory::Host && !finished.is_saved && !finished.plan.state_saves.empty()) {
    return invalid("step ", plain(step.number),
                   " has states to save that were not; call apply_saves when its tokens are computed");
  }
  if (results.size() != finished.parts.size()) {
    return invalid("the step has ", plain(finished.parts.size()), " entries, but ", plain(results.size()),
                   " results were given");
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    const StepPart& part = finished.parts[i];
    const SequenceSlot& slot = impl.sequences[part.index];
    if (part.is_discarded || slot.is_dropped || slot.is_lost) continue;
    const bool is_ahead = slot.state == SequenceSlot::State::RunningAhead && !is_mutated(Mutant::FinishBeforeLoads);
    if (is_ahead && !results[i].discard) {
      return unavailable("result ", plain(i), ": ", Impl::name_of(part.index),
                         " has pages that are still arriving: poll() and apply() until they have ended, or discard it");
    }
    if (const Status status = impl.check_result(part, results[i]); !status) {
      return fail(status.error().code,
                  "result " + std::to_string(i) + ": " + Impl::name_of(part.index) + ": " + status.error().message);
    }
  }

  impl.step_order.erase(impl.step_order.begin());
  impl.tiers->parts.fence.end_step(finished.number);  // over: pages that are given back below do not wait for it
  for (std::size_t i = 0; i < results.size(); ++i) {
    StepPart& part = finished.parts[i];
    bool is_done = false;
    if (!part.is_discarded) {
      SequenceSlot& slot = impl.sequences[part.index];
      // Nobody decides about the drafts of an ended sequence any more. What it computed of known tokens is still good.
      const bool is_known = part.computed_end(slot.computed_tokens) <= slot.token_count && part.draft_count == 0;
      const bool is_ahead = slot.state == SequenceSlot::State::RunningAhead;  // lost, discarded, or dropped
      is_done = !results[i].discard && !is_ahead && (!slot.is_dropped || is_known);
      if (results[i].discard || slot.is_lost) {
        impl.discard(finished, part);  // of an ended sequence too: discarded tokens are not cached
      } else if (is_done) {
        impl.finish_part(part, slot.is_dropped ? StepResult{} : results[i]);
      } else {
        --slot.steps_in_flight;
      }
    }
    if (!finished.saves.empty()) impl.finish_snapshots(finished, static_cast<std::uint32_t>(i), is_done);
  }
  impl.end_step(finished);
  impl.tiers->work_in_background();
  return {};
}

Status Cache::Impl::check_result(const StepPart& part, const StepResult& result) const {
  const SequenceSlot& slot = sequences[part.index];
  if (result.discard) {
    if (result.tokens.empty() && result.accepted_count == 0) return {};
    return invalid("discard is set, but so are tokens or accepted_count");
  }
  const std::uint32_t end = part.computed_end(slot.computed_tokens);
  if (end > slot.token_count) {
    return invalid("the token at position ", end - 1,
                   " was computed but is not known: the result of the step before brings it, or this one discards it");
  }
  if (part.is_tree) {
    if (end < slot.token_count) {
      return invalid("the token at position ", end,
                     " is known by now, and its tree was planned in that place: discard this one");
    }
    if (result.accepted_count > 0) return invalid("commit_tree decides about its tree: leave accepted_count at 0");
    if (result.tokens.size() != part.draft_count) {
      return invalid("it has ", plain(part.draft_count), " tree tokens in this step, but ", plain(result.tokens.size()),
                     " token values were given");
    }
    return check_tokens(result.tokens, slot.computed_tokens);
  }
  if (result.accepted_count > part.draft_count) {
    return invalid("it has ", plain(part.draft_count), " drafts in this step; accepted_count is ",
                   plain(result.accepted_count));
  }
  if (result.accepted_count > result.tokens.size()) {
    return invalid("accepted_count is ", plain(result.accepted_count), ", but only ", plain(result.tokens.size()),
                   " tokens were given");
  }
  if (result.tokens.empty()) return {};
  if (end < slot.token_count) {
    return invalid("new tokens, but the known ones are not all computed; they come with its last step");
  }
  return check_new_tokens(slot, result.tokens);
}

void Cache::Impl::finish_part(const StepPart& part, const StepResult& result) {
  SequenceSlot& slot = sequences[part.index];
  QUIRE_CHECK(slot.steps_in_flight > 0 && slot.generation == part.generation, "a part of another sequence's step");
  slot.computed_tokens = part.computed_end(slot.computed_tokens) + result.accepted_count;
  slot.has_run = true;
  if (slot.send) slot.send->cached_end = slot.send->begin;
  if (slot.send && slot.computed_tokens >= slot.send->end) slot.send.reset();  // all marked tokens are sent
  --slot.steps_in_flight;
  if (part.copies_tail || part.adopts_tail) drop_tails(part.index);
  if (part.is_tree) {
    std::ranges::copy(result.tokens, sequences.tree_token_row(part.index).begin() + part.tree_before);
  } else {
    add_tokens(part.index, result.tokens);
  }
  QUIRE_CHECK(slot.computed_tokens <= slot.token_count, "tokens are computed that nobody knows");
  if (part.draft_count > 0 && !part.is_tree) {
    slot.has_draft = false;
    slot.planned_end = slot.computed_tokens;
    give_back_rows(part.index, pages_for(slot.computed_tokens));
  }
  counters.computed_tokens += part.query_count();
  if (!groups.empty() && slot.replay_end > 0 && slot.computed_tokens >= slot.replay_end) end_replay(part.index);
  slot.seen_tokens = slot.token_count;
  settle(part.index);
  slide(part.index);
}

// The replay is over: the rebuilt groups have what the sequence needs to go on.
void Cache::Impl::end_replay(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(slot.replay_end > 0, "a replay ends that was none");
  slot.replay_end = 0;
  settle_windows(index, {0, slot.shared_pages}, slot.shared_pages);  // fills the tree's holes with rebuilt pages
  for (const std::uint32_t i : windows) groups[i].slots[index].is_rebuilt = false;
}

Status Cache::abort_step(const Step& step) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t place, impl.find_step(step));
  for (std::uint32_t i = 0; i <= place; ++i) {
    StepInFlight& applied = impl.step_at(i);
    if (applied.loads.empty()) {
      impl.apply_moves_and_copies(applied);
    } else {
      impl.apply_arrived_copies(applied, /*is_aborted=*/i == place);
    }
  }
  StepInFlight& aborted = impl.step_at(place);
  impl.step_order.erase(impl.step_order.begin() + place);
  impl.tiers->parts.fence.end_step(aborted.number);
  for (std::uint32_t i = 0; i < aborted.parts.size(); ++i) {
    StepPart& part = aborted.parts[i];
    if (!part.is_discarded) impl.discard(aborted, part, place);
    if (!aborted.saves.empty()) impl.finish_snapshots(aborted, i, /*is_done=*/false);
  }
  ++impl.counters.aborted_step_count;
  impl.end_step(aborted);
  return {};
}

// Takes back a part that did not happen, and the same sequence's parts of later steps, from index `place` of step_order
// on.
void Cache::Impl::discard(StepInFlight& step, StepPart& part, std::size_t place) {
  SequenceSlot& slot = sequences[part.index];
  QUIRE_CHECK(!part.is_discarded && slot.steps_in_flight > 0, "a part is taken back twice");
  QUIRE_CHECK(!part.copies_tail || slot.tail, "a tail went before the step that copies it");
  part.is_discarded = true;
  --slot.steps_in_flight;
  for (; place < step_order.size(); ++place) {
    for (StepPart& later : step_at(place).parts) {
      if (later.index != part.index || later.is_discarded) continue;
      later.is_discarded = true;
      if (later.copies_tail) slot.tail->is_planned = false;  // in a replay, a later step than the first may copy it
      --slot.steps_in_flight;
    }
  }
  if (part.tree_before == 0) slot.planned_end = part.runs_again() ? slot.computed_tokens : part.position;
  slot.tree_count = part.tree_before;
  slot.has_draft = false;
  if (part.copies_tail) slot.tail->is_planned = false;
  give_back_row(part.index, part.first_column);
  if (groups.empty()) return;
  if (part.adopts_tail) drop_window_tails(part.index);
  const std::span<const WindowPart> of_windows = step.windows_of(static_cast<std::size_t>(&part - step.parts.data()));
  for (std::size_t i = 0; i < of_windows.size(); ++i) {
    give_back_window_row(groups[windows[i]], part.index, of_windows[i].first_column, AnchoredPages::Worth::Passed);
  }
  if (!slot.state_slot) return;
  slot.state_slot->checkpoint = std::min(slot.state_slot->checkpoint, slot.computed_tokens);
  slot.state_slot->is_in_doubt = true;
}

void Cache::Impl::end_step(StepInFlight& step) {
  QUIRE_CHECK(step.is_planned, "a step ends twice");
  step.is_planned = false;
  free_fenced();
  for (const StepPart& part : step.parts) {
    const SequenceSlot& slot = sequences[part.index];
    const bool is_ahead = slot.state == SequenceSlot::State::RunningAhead;
    const bool is_same = slot.generation == part.generation;
    if (is_ahead && is_same && slot.steps_in_flight == 0 && !slot.is_dropped) {
      leave_ahead(part.index);
      continue;
    }
    if (has_state() && !is_ahead) unpin_restored(part.index, step.number);
    if (slot.is_dropped && slot.steps_in_flight == 0) {
      end_sequence(part.index);
    } else if (has_state()) {
      recover_state(part.index);
    }
  }
}

void Cache::Impl::free_fenced() {
  for (PageHome* const home : tiers->parts.homes) home->pages.free_fenced();
}

// Gives back the sequence's own pages from column `first_page` on.
void Cache::Impl::give_back_row(std::uint32_t index, std::uint32_t first_page) {
  SequenceSlot& slot = sequences[index];
  const std::span<const PageId> row = sequences.page_row(index).first(slot.page_count);
  QUIRE_CHECK(first_page >= slot.shared_pages, "giving back pages of the tree");
  for (std::uint32_t page = first_page; page < row.size(); ++page) {
    if (row[page] != kNullPage) history->give_back(row[page]);
  }
  slot.page_count = std::min(slot.page_count, first_page);
  slot.settled_pages = std::min(slot.settled_pages, slot.page_count);
  slot.changed_column = std::min(slot.changed_column, slot.page_count);
}

// The same of the history and of all window groups.
void Cache::Impl::give_back_rows(std::uint32_t index, std::uint32_t first_page) {
  give_back_row(index, first_page);
  for (const std::uint32_t i : windows) {
    give_back_window_row(groups[i], index, first_page, AnchoredPages::Worth::Passed);
  }
}

std::uint32_t Cache::Impl::publishable_tokens(const SequenceSlot& slot) const {
  if (slot.options.publish == Publish::None || slot.is_inexact) return 0;
  const std::uint32_t asked = slot.options.publish == Publish::Prompt ? slot.prompt_tokens : UINT32_MAX;
  return std::min({asked, slot.publish_tokens_max, slot.full_tokens()});
}

// Pages that have become full go into the tree as far as the sequence publishes; the others become private.
void Cache::Impl::settle(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  const std::span<PageId> row = sequences.page_row(index);
  const std::uint32_t full_pages = slot.computed_tokens / page_tokens;
  const bool looks_ahead = sequences.keys().lookahead_tokens() > 0;
  if (full_pages <= slot.settled_pages && !looks_ahead) return;
  const std::uint32_t seen_tokens = looks_ahead ? std::min(slot.seen_tokens, slot.token_count) : slot.token_count;
  const std::uint32_t known_rows = std::min(slot.computed_tokens, sequences.keys().known_rows(seen_tokens));
  std::uint32_t public_pages =
      std::max(slot.shared_pages, std::min(known_rows, publishable_tokens(slot)) / page_tokens);
  // A path of the tree has no gaps: pages behind a private page stay private too.
  if (slot.settled_pages > slot.shared_pages) {
    public_pages = looks_ahead ? known_end(index, public_pages) : slot.shared_pages;
  }
  if (full_pages <= slot.settled_pages && public_pages == slot.shared_pages) return;
  if (slot.window) {
    if (slot.has_hole() && slot.window->hole_end >= slot.shared_pages) public_pages = slot.shared_pages;
    const auto hole = std::find(row.begin() + slot.shared_pages, row.begin() + public_pages, kNullPage);
    public_pages = static_cast<std::uint32_t>(hole - row.begin());
  }
  if (public_pages > slot.shared_pages && !config.dedup &&
      tree->has_next_page(slot.pin, sequences.key(index, public_pages * page_tokens))) {
    slot.publish_tokens_max = slot.shared_pages * page_tokens;
    public_pages = slot.shared_pages;
  }
  if (public_pages > slot.shared_pages) {
    QUIRE_CHECK(public_pages <= full_pages, "a page is published that is not full");
    for (std::uint32_t page = slot.shared_pages; page < std::min(public_pages, slot.settled_pages); ++page) {
      history->device.reopen(row[page]);
    }
    const std::span<PageId> pages = row.subspan(slot.shared_pages, public_pages - slot.shared_pages);
    const std::uint32_t known = tree->insert(slot.pin, sequences.key(index, public_pages * page_tokens), pages,
                                             page_scratch, {.retention = retention_of(slot)});
    if (known > 0) {
      // insert() has put the tree's pages into the row; the sequence's own, computed in vain, go back.
      slot.changed_column = std::min(slot.changed_column, slot.shared_pages);
      planner.forget_row(index);
      for (const PageId page : std::span(page_scratch).first(known)) history->give_back(page);
    }
    pin_tails(index, public_pages - static_cast<std::uint32_t>(pages.size()) + known, public_pages);
    history->device.seal(pages.subspan(known));
    const std::uint32_t first_new = slot.shared_pages + known;
    if (has_lower()) tiers->lower_stores.log_names(index, first_new, public_pages);
    if (has_host()) tiers->stores.want_copies(index, first_new, public_pages);
    counters.duplicate_page_total += known;
    counters.sealed_page_total += pages.size() - known;
    const std::uint32_t first = std::exchange(slot.shared_pages, public_pages);
    settle_windows(index, {first, public_pages}, known);
  }
  for (std::uint32_t page = std::max(slot.settled_pages, slot.shared_pages); page < full_pages; ++page) {
    if (row[page] != kNullPage) history->device.make_private({&row[page], 1});
  }
  make_windows_private(index, std::max(slot.settled_pages, slot.shared_pages), full_pages);
  slot.settled_pages = std::max(full_pages, slot.settled_pages);
  QUIRE_CHECK(slot.shared_pages <= slot.settled_pages && slot.settled_pages <= slot.page_count,
              "the row is out of order");
}

// With lookahead, full pages stay private until the tokens behind them are known. Returns the column up to which a
// sequence's full pages can be published now.
std::uint32_t Cache::Impl::known_end(std::uint32_t index, std::uint32_t public_pages) const {
  const SequenceSlot& slot = sequences[index];
  const std::span<const PageId> row = sequences.page_row(index);
  for (std::uint32_t page = slot.shared_pages; page < std::min(public_pages, slot.settled_pages); ++page) {
    if (history->device.is_shared(row[page])) return page;  // a fork has the page too, and may go on with other tokens
  }
  return public_pages;
}

// A page that enters the tree may be the source of other sequences' tails. These sequences then pin it in the tree,
// instead of owning a share of it.
void Cache::Impl::pin_tails(std::uint32_t index, std::uint32_t first_page, std::uint32_t end_page) {
  const std::span<const PageId> row = sequences.page_row(index);
  for (std::uint32_t page = first_page; page < end_page; ++page) {
    for (std::uint32_t i = 0; history->device.is_shared(row[page]) && i < sequences.capacity(); ++i) {
      SequenceSlot& slot = sequences[i];
      if (!slot.tail || slot.tail->pin || slot.tail->source != row[page]) continue;
      slot.tail->pin = tree->pin_page(sequences[index].pin, page);
      history->device.unshare(row[page]);
    }
  }
}

// The first token behind the sink that a sequence with a window still needs when `computed_tokens` are computed: the
// first that the last of them saw, since that one may run again; and earlier ones as far as rewind() may go.
std::uint32_t Cache::Impl::keep_from(const SequenceSlot& slot, std::uint32_t computed_tokens) const {
  const std::uint32_t first = first_recent(slot, computed_tokens);
  return first - std::min(first, config.window_rewind_tokens);
}

std::uint32_t Cache::Impl::first_recent(const SequenceSlot& slot, std::uint32_t computed_tokens) {
  if (computed_tokens <= slot.window_tokens()) return 0;
  return computed_tokens - (slot.window->tokens - slot.window->sink_tokens);
}

// Gives up the pages that window groups, and the sequence's own window, have left.
void Cache::Impl::slide(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  if (!windows.empty()) slide_windows(index);
  if (!slot.window) return;
  SequenceSlot::OwnWindow& window = *slot.window;
  const std::uint32_t hole_end = keep_from(slot, slot.computed_tokens) / page_tokens;
  const std::uint32_t hole_begin = pages_for(window.sink_tokens);
  const std::uint32_t begin = std::max(window.hole_end, hole_begin);
  QUIRE_CHECK(hole_end <= slot.page_count, "a window has left pages that were never there");
  const std::span<PageId> row = sequences.page_row(index);
  for (std::uint32_t page = begin; page < hole_end; ++page) {
    if (page >= slot.shared_pages && row[page] != kNullPage) history->give_back(row[page]);
    row[page] = kNullPage;
  }
  if (hole_end > begin) {
    window.hole_begin = hole_begin;
    window.hole_end = hole_end;
  }
  shorten_pin(index);
}

// Pages of the tree that a sequence keeps there: its own, and those on which hangs what it holds of other groups, whose
// windows may reach further back than its own.
std::uint32_t Cache::Impl::pinned_pages(std::uint32_t index) const {
  const SequenceSlot& slot = sequences[index];
  std::uint32_t pinned = slot.pinned_pages();
  for (std::size_t i = 0; i < groups.size() && pinned < slot.shared_pages; ++i) {
    const GroupRows& group = groups[i];
    std::uint32_t end = group.is_window() ? group.slots[index].page_count : 0;
    if (group.is_window() && group.slots[index].hole_end >= std::min(end, slot.shared_pages)) {
      end = std::min(end, group.tier->sink_pages);
    }
    if (!group.is_window() && !group.states[index].restore_page.is_none()) {
      end = group.states[index].restore_position / page_tokens;
    }
    pinned = std::max(pinned, std::min(end, slot.shared_pages));
  }
  return pinned;
}

void Cache::Impl::shorten_pin(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  const std::uint32_t pinned = pinned_pages(index);
  if (tree->end_page(slot.pin.run()) > pinned) slot.pin = tree->pin_prefix(slot.pin, pinned);
}

}  // namespace quire
