// SPDX-License-Identifier: Apache-2.0
//
// Cache: planning steps. Every check comes first; from the moment pages are taken nothing fails.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

tl::unexpected<Error> bad_entry(std::size_t i, const std::string& what, ErrorCode code = ErrorCode::InvalidArgument) {
  return fail(code, "entry " + std::to_string(i) + ": " + what);
}

std::uint32_t draft_count_of(const StepEntry& entry) {
  return entry.tree_parents.empty() ? entry.draft_count : static_cast<std::uint32_t>(entry.tree_parents.size());
}

}  // namespace

// Checks

std::string Cache::Impl::too_long(std::uint64_t token_count) const {
  return "would have " + with_separators(token_count) + " tokens; context_tokens_max is " +
         with_separators(context_tokens_max);
}

Status Cache::Impl::check_entries(std::span<const StepEntry> entries) {
  if (entries.empty()) return invalid("a step has at least one entry");
  ++plan_stamp;
  std::uint64_t step_tokens = 0;
  planning.clear();
  planning_windows.clear();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].sequence == nullptr) return bad_entry(i, "its sequence is null");
    const Result<std::uint32_t> index = find_sequence(*entries[i].sequence);
    if (!index) return bad_entry(i, index.error().message);
    SequenceSlot& slot = sequences[*index];
    if (slot.plan_stamp == plan_stamp) return bad_entry(i, name_of(*index) + " is in the step already");
    slot.plan_stamp = plan_stamp;
    Status status = check_entry(entries[i], *index);
    if (!status) return bad_entry(i, status.error().message, status.error().code);
    const StepPart& part = planning.emplace_back(make_part(entries[i], *index));
    if (!windows.empty()) make_window_parts(part);
    if (has_state() && part.draft_count > 0) {
      status = check_drafts(*index, slot.planned_end + part.token_count, part.draft_count);
      if (!status) return bad_entry(i, status.error().message, status.error().code);
    }
    if (end_of(slot, part) > context_tokens_max) {
      return bad_entry(i, name_of(*index) + " " + too_long(end_of(slot, part)));
    }
    step_tokens += part.query_count();
  }
  if (step_tokens > config.step_tokens_max) {
    return invalid("the step computes ", step_tokens, " tokens; step_tokens_max is ", config.step_tokens_max);
  }
  return {};
}

Status Cache::Impl::check_entry(const StepEntry& entry, std::uint32_t index) const {
  const SequenceSlot& slot = sequences[index];
  const auto bad = [&](const auto&... what) { return invalid(name_of(index), " ", what...); };
  if (slot.is_lost) return unavailable(name_of(index), not_running(slot));
  if (!slot.is_ready()) return invalid(name_of(index), not_running(slot));
  if (slot.receive) return bad("is receiving tokens; finish_receive or abort_receive comes first");
  if (slot.has_draft || (slot.tree_count > 0 && slot.steps_in_flight > 0)) {
    return unavailable(name_of(index), " has undecided tokens in a step in flight; finish that step first");
  }
  const bool is_tree = !entry.tree_parents.empty();
  if (slot.tree_count > 0 && !is_tree) {
    return bad("has ", plain(slot.tree_count),
               " undecided tree tokens: commit_tree decides, or give it more of the tree");
  }
  if (has_state() && slot.state_slot->is_in_doubt) {
    return unavailable(name_of(index), " has steps in flight and one that did not happen; finish the others first");
  }
  const std::uint32_t draft_count = draft_count_of(entry);
  const std::uint32_t missing = slot.token_count - std::min(slot.token_count, slot.planned_end);
  const std::uint32_t pending = pending_tokens(slot);
  if (draft_count == 0 && pending == 0 && slot.steps_in_flight == 0) {
    return bad("has no pending tokens; finish_step or append brings new ones");
  }
  if (slot.steps_in_flight == 0 && entry.token_count > pending) {
    return bad("has ", pending, " pending tokens, but token_count is ", entry.token_count);
  }
  // With no known token left to plan, the entry asks for at least one that a step in flight brings.
  const std::uint32_t wanted = std::max(entry.token_count, missing > 0 ? 0U : 1U);
  if (slot.steps_in_flight > 0 &&
      std::uint64_t{slot.planned_end} + wanted > std::uint64_t{slot.token_count} + slot.steps_in_flight) {
    return bad("has ", pending, " pending tokens, and its ", plain(slot.steps_in_flight),
               " steps in flight bring one each, less what is planned already; token_count is ", entry.token_count);
  }
  if (draft_count > 0) {
    if (is_tree && entry.draft_count > 0) return bad("has both draft_count and tree_parents: give one of them");
    if (slot.send) return bad("is marked for sending: tokens that may be rejected cannot be sent");
    if (missing == 0 && pending == 1) return bad("runs its last token again: plan that without drafts first");
    if (entry.token_count != 0 && (entry.token_count < missing || slot.tree_count > 0)) {
      return bad("has drafts, which stand behind all pending tokens: leave token_count at 0");
    }
    const std::uint64_t end = std::uint64_t{slot.planned_end} + slot.tree_count + missing + draft_count;
    if (end > context_tokens_max) return bad(too_long(end));
    if (is_tree) QUIRE_TRY(check_tree(entry, index));
  }
  return {};
}

Status Cache::Impl::check_tree(const StepEntry& entry, std::uint32_t index) const {
  // Tokens of a tree stand at positions that are not final. In pages, moving their rows corrects that. A state has seen
  // the tokens of all branches, and an entry of several tokens is computed from neighbours that may go: nothing
  // corrects those.
  const auto follows_order = [](const CacheGroup& group) {
    return has_slot(group) || group.kind == GroupKind::Compressed;
  };
  const std::span<const CacheGroup> all = config.layout.groups();
  if (const auto group = std::ranges::find_if(all, follows_order); group != all.end()) {
    return unsupported(name_of(index), ": group '", group->name, "' ",
                       has_slot(*group) ? "keeps state" : "has entries of several tokens",
                       ", which a tree of tokens would mix up: use draft_count, a chain");
  }
  const std::uint32_t before = sequences[index].tree_count;
  const std::size_t count = before + entry.tree_parents.size();
  if (count > config.tree_tokens_max) {
    return invalid(name_of(index), " would have ", count, " undecided tree tokens; tree_tokens_max is ",
                   config.tree_tokens_max);
  }
  for (std::size_t i = 0; i < entry.tree_parents.size(); ++i) {
    const std::int32_t parent = entry.tree_parents[i];
    if (parent >= -1 && parent < static_cast<std::int64_t>(before + i)) continue;
    return invalid(name_of(index), ": the parent of tree token ", plain(before + i), " is ", plain(parent),
                   ": parents stand before their children, and -1 is the last known token");
  }
  return {};
}

// Columns that a line of the entry has: a window leaves out those between its sink and what the first query sees.
std::uint32_t Cache::Impl::listed_pages(const SequenceSlot& slot, const StepPart& part) const {
  const std::uint32_t end = pages_for(end_of(slot, part));
  if (!windows.empty()) return end;  // lines of window groups have all columns
  const std::uint32_t first_query = part.runs_again() ? part.position : slot.planned_end;
  const std::uint32_t sink_pages = pages_for(slot.sink_tokens());
  const std::uint32_t first_page = first_recent(slot, first_query + 1) / page_tokens;
  return first_page > sink_pages ? sink_pages + (end - first_page) : end;
}

Status Cache::Impl::check_shape(const PlanShape& shape) const {
  if (shape == PlanShape{}) return {};
  std::uint64_t tokens = 0;
  std::uint32_t columns = 0;
  for (const StepPart& part : planning) {
    const SequenceSlot& slot = sequences[part.index];
    tokens += part.query_count();
    columns = std::max(columns, listed_pages(slot, part));
  }
  const auto check = [](const char* name, std::uint64_t asked, std::uint64_t needed, std::uint64_t most) -> Status {
    if (asked >= needed && asked <= most) return {};
    return invalid("shape.", name, " is ", asked, ": this step needs ", needed, ", and the most is ", most);
  };
  QUIRE_TRY(check("entries", shape.entries, planning.size(), config.sequence_count_max));
  QUIRE_TRY(check("tokens", shape.tokens, tokens, config.step_tokens_max));
  if (config.plan.page_tables == PageTables::Block) {
    QUIRE_TRY(check("columns", shape.columns, columns, sequences.row_pages()));
  }
  return {};
}

// What a step adds to a sequence

StepPart Cache::Impl::make_part(const StepEntry& entry, std::uint32_t index) const {
  const SequenceSlot& slot = sequences[index];
  const std::uint32_t missing = slot.token_count - std::min(slot.token_count, slot.planned_end);
  StepPart part{.index = index,
                .generation = slot.generation,
                .draft_count = draft_count_of(entry),
                .first_column = slot.page_count,
                .tree_before = slot.tree_count,
                .is_tree = !entry.tree_parents.empty()};
  const bool runs_again = missing == 0 && slot.steps_in_flight == 0 && part.draft_count == 0;
  if (!runs_again && slot.tree_count == 0) {
    // With no known token left, the next one, which a step in flight will bring.
    const std::uint32_t all = missing > 0 ? missing : std::min<std::uint32_t>(slot.steps_in_flight, 1);
    part.token_count =
        part.draft_count > 0 || entry.token_count == 0 ? std::max(all, entry.token_count) : entry.token_count;
  }
  if (has_snapshots && part.token_count > 0) cut_at_checkpoint(slot, index, part);
  // A state is sent where a step ends.
  const bool sends_state = slot.send && has_state() && slot.planned_end < slot.send->end;
  if (sends_state) part.token_count = std::min(part.token_count, slot.send->end - slot.planned_end);
  QUIRE_DCHECK(!runs_again || slot.computed_tokens > 0, "there is no last token to run again");
  part.position = runs_again ? slot.computed_tokens - 1 : slot.planned_end + slot.tree_count;
  const std::uint32_t end_page = pages_for(end_of(slot, part));
  // A step of a replay may end before the tail's page, and then leaves the tail as it is.
  if (slot.tail && !slot.tail->is_planned && (slot.replay_end == 0 || end_page > slot.tail->column)) {
    // If nobody else owns the tail's source, the sequence takes that page itself, without a copy.
    part.adopts_tail = !slot.tail->pin && !history->device.is_shared(slot.tail->source);
    part.copies_tail = !part.adopts_tail;
  }
  for (std::uint32_t page = slot.page_count; page < end_page; ++page) {
    if (stores_page(slot, part, page)) ++part.new_pages;
  }
  QUIRE_DCHECK(!part.adopts_tail || part.new_pages > 0, "the row has no place for the tail");
  if (part.adopts_tail) --part.new_pages;
  return part;
}

// Ends a part at the next checkpoint, because a snapshot can be taken only where a step ends.
void Cache::Impl::cut_at_checkpoint(const SequenceSlot& slot, std::uint32_t index, StepPart& part) const {
  const std::uint32_t next = next_checkpoint(slot, slot.planned_end);
  if (next == 0 || next >= slot.planned_end + part.token_count || !wants_snapshot(index, next)) return;
  part.token_count = next - slot.planned_end;
  part.draft_count = 0;
  part.is_tree = false;
}

// Pages that the window will have left when the step is done are not taken at all, unless they begin with tokens
// computed before, or replayed, which the step itself reads.
bool Cache::Impl::stores_page(const SequenceSlot& slot, const StepPart& part, std::uint32_t page) const {
  if (!slot.window || page < pages_for(slot.window->sink_tokens)) return true;
  if (std::uint64_t{page} * page_tokens < std::max(slot.planned_end, slot.replay_end)) return true;
  return std::uint64_t{page + 1} * page_tokens > keep_from(slot, slot.planned_end + part.token_count);
}

std::uint32_t Cache::Impl::pending_tokens(const SequenceSlot& slot) const {
  if (slot.state == SequenceSlot::State::Holding || slot.receive) return 0;
  const std::uint32_t missing = slot.token_count - std::min(slot.token_count, slot.planned_end);
  if (missing > 0) return missing;
  // Somebody has to ask the model what follows a prompt that was found whole: its last token runs again. A state would
  // count that token twice, so there the sequence waits for new tokens.
  const bool runs_again =
      !slot.has_run && slot.token_count > 0 && slot.steps_in_flight == 0 && !slot.is_undecided() && !has_state();
  return runs_again ? 1 : 0;
}

// Makes the parts of checked entries again, after the sequences have changed.
void Cache::Impl::make_parts(std::span<const StepEntry> entries) {
  planning_windows.clear();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    planning[i] = make_part(entries[i], planning[i].index);
    if (!windows.empty()) make_window_parts(planning[i]);
  }
}

// Planning

Result<PlanOutcome> Cache::plan_step(std::span<const StepEntry> entries, const PlanShape& shape) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "plan_step"));
  if (impl.step_order.size() == impl.config.steps_in_flight_max) {
    return unavailable("step ", plain(impl.step_at(0).number), " is in flight, and ", plain(impl.step_order.size()),
                       " in all; steps_in_flight_max is ", plain(impl.config.steps_in_flight_max),
                       ": finish or abort one first");
  }
  QUIRE_TRY(impl.check_entries(entries));
  QUIRE_TRY(impl.check_shape(shape));
  Shortage needs = impl.measure();
  if (needs.pages_needed > needs.pages_available && impl.tiers->arrivals.let_go()) needs = impl.measure();
  if (needs.pages_needed > needs.pages_available && needs.is_of_history && impl.tiers->parts.history.writes_back()) {
    impl.tiers->stores.start_leaving(needs.pages_needed);  // pages that have a copy on the host leave at once
    needs = impl.measure();
  }
  if (needs.pages_needed > needs.pages_available && !impl.try_without_tails(entries, shape) &&
      !impl.try_without_partial(entries, shape)) {
    ++impl.counters.short_plan_count;
    // try_without_tails() may have given tails up although the step does not fit: then the entries need other pages.
    impl.make_parts(entries);
    needs = impl.measure();
    // Other stores than those of write-back would read pages that the fitting entries need.
    if (impl.tiers->parts.history.writes_back()) impl.tiers->write_back();
    needs.fitting_tokens = impl.fitting_tokens(entries, needs.entries_that_fit);
    return PlanOutcome{.step = std::nullopt, .shortage = needs};
  }

  // From here on nothing fails.
  const std::uint64_t number = impl.tiers->parts.fence.next_number();
  std::uint32_t page_count = 0;
  for (const StepPart& part : impl.planning) page_count += part.new_pages;
  impl.history->unfence(page_count);
  impl.tiers->parts.history.make_room(page_count);
  const std::span<PageId> new_pages = std::span(impl.page_scratch).first(page_count);
  QUIRE_CHECK(impl.history->device.try_allocate(new_pages), "pages that were counted are not there");
  for (std::size_t i = 0; i < impl.windows.size(); ++i) {
    GroupRows& group = impl.groups[impl.windows[i]];
    group.tier->pages.unfence(impl.window_pages_needed(i));
    group.tier->make_room(impl.window_pages_needed(i));
    group.copies.clear();
  }

  impl.scratch.copies.clear();
  std::size_t used = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    StepPart& part = impl.planning[i];
    if (!impl.windows.empty()) impl.plan_window_parts(part, impl.planning_windows_of(i));
    impl.plan_part(entries[i], part, new_pages.subspan(used, part.new_pages));
    used += part.new_pages;
  }
  QUIRE_CHECK(used == page_count, "pages were taken that are in no row");
  // Takes the place in `steps` that has been free for longest, or nearly: a plan stays readable a little after its
  // step.
  const auto step_count = static_cast<std::uint32_t>(impl.steps.size());
  std::uint32_t place = impl.next_step;
  while (impl.steps[place].is_planned) place = (place + 1) % step_count;
  impl.next_step = (place + 1) % step_count;
  StepInFlight& step = impl.steps[place];
  step.is_planned = true;
  step.is_moved = false;
  step.is_applied = false;
  step.number = number;
  step.parts.swap(impl.planning);
  step.windows.swap(impl.planning_windows);
  impl.list_loads(step);
  step.plan = impl.build_plan(step, shape, place);
  impl.move_indptr.resize(1);
  impl.tiers->parts.fence.set_moves(false);
  impl.tiers->parts.fence.plan_step();
  impl.step_order.push_back(place);
  ++impl.counters.planned_step_count;
  return PlanOutcome{.step = Step{.number = number, .cache = &impl, .plan = step.plan, .loads = step.loads},
                     .shortage = {}};
}

// The plan of a step whose pages are taken.
AttentionPlan Cache::Impl::build_plan(StepInFlight& step, const PlanShape& shape, std::uint32_t place) {
  step.saves.clear();
  step.is_saved = false;
  if (has_state()) plan_states(step);
  scratch.entries.clear();
  scratch.windows.clear();
  for (std::uint32_t i = 0; i < step.parts.size(); ++i) add_planner_entry(step.parts[i], i);
  scratch.entry_groups.clear();
  if (!groups.empty()) {
    for (const StepPart& part : step.parts) add_planner_groups(part);
  }
  scratch.window_steps.clear();
  for (const std::uint32_t i : windows) {
    scratch.window_steps.push_back(
        {.copies = groups[i].copies, .moves = {groups[i].moves.data(), move_count()}, .move_indptr = move_indptr});
  }
  return planner.build({.entries = scratch.entries,
                        .entry_groups = scratch.entry_groups,
                        .shape = shape,
                        .copies = scratch.copies,
                        .moves = {moves.data(), move_count()},
                        .move_indptr = move_indptr,
                        .windows = scratch.window_steps,
                        .state_copies = scratch.state_copies,
                        .state_saves = scratch.state_saves,
                        .state_sends = scratch.state_sends,
                        .buffer_index = place});
}

// What the first pool that is short of pages needs: the history, then windows. If none is short, what the history
// needs.
Shortage Cache::Impl::measure() const {
  Shortage needs = measure_history();
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const AnchoredGroup& group = *groups[windows[i]].tier;
    const std::uint32_t available = group.available_pages();
    std::uint64_t needed = 0;
    std::uint32_t fits = 0;
    for (std::size_t part = 0; part < planning.size(); ++part) {
      needed += planning_windows[(part * windows.size()) + i].new_pages;
      if (needed <= available) ++fits;
    }
    if (needs.pages_needed <= needs.pages_available && needed > available) {
      needs = {.group_index = group.group_index,
               .pages_needed = static_cast<std::uint32_t>(needed),
               .pages_available = available,
               .pages_returning = step_order.empty() ? 0 : group.pages.fenced.count(),
               .pages_leaving = group.pages.read_page_count(),
               .entries_that_fit = needs.entries_that_fit,
               .is_of_history = false};
    }
    needs.entries_that_fit = std::min(needs.entries_that_fit, fits);
  }
  return needs;
}

std::uint32_t Cache::Impl::window_pages_needed(std::size_t window) const {
  std::uint32_t needed = 0;
  for (std::size_t part = 0; part < planning.size(); ++part) {
    needed += planning_windows[(part * windows.size()) + window].new_pages;
  }
  return needed;
}

bool Cache::Impl::windows_fit() const {
  for (std::size_t i = 0; i < windows.size(); ++i) {
    if (window_pages_needed(i) > groups[windows[i]].tier->available_pages()) return false;
  }
  return true;
}

Shortage Cache::Impl::measure_history() const {
  const TierParts& parts = tiers->parts;
  Shortage needs{.group_index = history_index,
                 .pages_available = parts.history.available_pages(),
                 .pages_returning = step_order.empty() ? 0 : history->fenced.count()};
  if (has_host()) {
    needs.pages_leaving = parts.history.pages_leaving(parts.book.is_full());
    needs.pages_leaving += parts.book.count_pages([](const Transfer& each) {
      return each.kind == TransferKind::Store && !each.is_of_tree() && each.pool == 0;  // a save
    });
    // A page that a save reads may be leaving as well.
    needs.pages_leaving = std::min(needs.pages_leaving, history->device.page_count() - needs.pages_available);
  }
  std::uint64_t needed = 0;
  for (const StepPart& part : planning) {
    needed += part.new_pages;
    if (needed <= needs.pages_available) ++needs.entries_that_fit;
  }
  needs.pages_needed = static_cast<std::uint32_t>(needed);
  return needs;
}

// How many tokens of entry `index` the pages suffice for that the entries before it leave, which fit. Drafts are left
// out: they stand behind all known tokens.
std::uint32_t Cache::Impl::fitting_tokens(std::span<const StepEntry> entries, std::uint32_t index) const {
  if (index >= planning.size() || planning[index].tree_before > 0) return 0;
  StepEntry entry = entries[index];
  entry.draft_count = 0;
  entry.tree_parents = {};
  const auto before = std::span(planning).first(index);
  const auto fits = [&](std::uint32_t token_count) {
    entry.token_count = token_count;
    const StepPart part = make_part(entry, planning[index].index);
    std::uint64_t needed = part.new_pages;
    for (const StepPart& other : before) needed += other.new_pages;
    if (needed > tiers->parts.history.available_pages()) return false;
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const GroupRows& group = groups[windows[i]];
      needed = make_window_part(group, part).new_pages;
      for (std::size_t other = 0; other < index; ++other) {
        needed += planning_windows[(other * windows.size()) + i].new_pages;
      }
      if (needed > group.tier->available_pages()) return false;
    }
    return true;
  };
  std::uint32_t fitting = 0;
  std::uint32_t too_many = planning[index].token_count + 1;
  while (too_many - fitting > 1) {
    const std::uint32_t middle = fitting + ((too_many - fitting) / 2);
    (fits(middle) ? fitting : too_many) = middle;
  }
  return fitting;
}

// When pages are short, gives up tails. A tail that waits to be copied pins the run of its source; without this, a lone
// sequence could wait for ever for pages that only its own tail holds. Gives up the tails of all sequences that can
// compute those tokens again, if the step then fits; otherwise everything stays as it was, the policy's order too.
bool Cache::Impl::try_without_tails(std::span<const StepEntry> entries, const PlanShape& shape) {
  scratch.revoked.clear();
  scratch.revoked_runs.clear();
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    SequenceSlot& slot = sequences[i];
    if (slot.state != SequenceSlot::State::Running) continue;  // transfers may read the tail of one that is being saved
    // Once a window has slid, tokens that are computed again would see less than they did.
    const bool sees_all = slot.computed_tokens <= slot.window_tokens();
    if (!slot.tail || !slot.tail->pin || slot.tail->is_planned || !sees_all || slot.is_undecided()) continue;
    // Windows must hold what the sequence needs to go on where its tail begins; states cannot go back there.
    const bool can_go_back = groups.empty() || (!has_state() && slot.replay_end == 0 &&
                                                windows_hold(i, slot.computed_tokens - slot.tail->tokens));
    if (!can_go_back) continue;
    slot.computed_tokens -= slot.tail->tokens;
    slot.planned_end = slot.computed_tokens;
    scratch.revoked_runs.push_back(slot.tail->pin.run());
    scratch.revoked.push_back({.index = i, .tail = *std::move(slot.tail)});
    slot.tail.reset();
  }
  if (scratch.revoked.empty()) return false;
  std::uint64_t step_tokens = 0;
  make_parts(entries);
  for (const StepPart& part : planning) step_tokens += part.query_count();
  const Shortage needs = measure();
  const std::uint32_t tokens_max = shape.tokens > 0 ? shape.tokens : config.step_tokens_max;
  // Pages that have to be written back first come too late for this step, but not for the next call.
  const std::uint32_t later =
      tiers->parts.history.writes_back() ? tree->evictable_pages() - tree->left_pages() + tree->leaving_pages() : 0;
  // Giving up tails makes pages of the history idle, but none of other groups.
  const std::uint32_t freed = needs.is_of_history ? later + tree->pages_idle_without(scratch.revoked_runs) : 0;
  const bool fits = step_tokens <= tokens_max && needs.pages_needed <= needs.pages_available + freed && windows_fit();
  for (auto& [index, tail] : scratch.revoked) {
    SequenceSlot& slot = sequences[index];
    if (!fits) {
      slot.computed_tokens += tail.tokens;
      slot.planned_end = slot.computed_tokens;
      slot.tail = std::move(tail);
      continue;
    }
    tail.pin.reset();
    drop_window_tails(index);
    if (slot.send) slot.send->cached_end = std::min(slot.send->cached_end, slot.computed_tokens);
    if (!tail.is_hit) continue;
    counters.hit_tokens -= tail.tokens;
    counters.partial_hit_tokens -= tail.tokens;
  }
  if (!fits || !has_host()) return fits;
  if (tiers->parts.history.writes_back()) tiers->stores.start_leaving(needs.pages_needed);
  return needs.pages_needed <= tiers->parts.history.available_pages();  // a store may still read some
}

// Where windows or states cannot go on at the beginning of a tail, a lone sequence that has computed nothing yet would
// wait for ever for pages that only its own tail holds. It starts again with a hit that ends at the end of a page.
bool Cache::Impl::try_without_partial(std::span<const StepEntry> entries, const PlanShape& shape) {
  if (groups.empty() || entries.size() != 1 || !step_order.empty()) return false;
  if (planning.front().draft_count > 0) return false;  // drafts must stand behind all known tokens
  const std::uint32_t index = planning.front().index;
  SequenceSlot& slot = sequences[index];
  if (!can_be_computed_again(slot)) return false;
  if (!slot.tail || !slot.tail->pin || !slot.tail->is_hit || slot.tail->is_planned) return false;
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    if (i != index && sequences[i].state != SequenceSlot::State::Free && !sequences[i].is_waiting()) return false;
  }
  slot.skips_partial = true;
  begin_anew(index);
  // The entry may ask for too much now: the tree may have more of the tokens, or a step cannot compute all that are
  // left.
  const std::uint32_t tokens_max = shape.tokens > 0 ? shape.tokens : config.step_tokens_max;
  StepEntry entry = entries.front();
  entry.token_count =
      std::min({entry.token_count > 0 ? entry.token_count : UINT32_MAX, pending_tokens(slot), tokens_max});
  make_parts({&entry, 1});
  Shortage needs = measure();
  if (needs.pages_needed > needs.pages_available && needs.is_of_history && tiers->parts.history.writes_back()) {
    tiers->stores.start_leaving(needs.pages_needed);
    needs = measure();
  }
  return needs.pages_needed <= needs.pages_available;
}

void Cache::Impl::plan_part(const StepEntry& entry, StepPart& part, std::span<const PageId> new_pages) {
  SequenceSlot& slot = sequences[part.index];
  const std::span<PageId> row = sequences.page_row(part.index);
  slot.changed_column = std::min(slot.changed_column, slot.page_count);
  std::uint32_t page = slot.page_count;
  slot.page_count = std::max(slot.page_count, pages_for(end_of(slot, part)));
  if (part.adopts_tail) {
    history->device.reopen(slot.tail->source);
    row[page++] = slot.tail->source;
    part.first_column = page;  // the page is the sequence's own from here on, whatever becomes of the step
    slot.tail.reset();
  }
  std::size_t taken = 0;
  for (; page < slot.page_count; ++page) {
    row[page] = stores_page(slot, part, page) ? new_pages[taken++] : kNullPage;
  }
  QUIRE_CHECK(taken == new_pages.size(), "a part has more pages than its row has places");
  if (part.copies_tail) {
    SequenceSlot::Tail& tail = *slot.tail;
    QUIRE_CHECK(row[tail.column] != kNullPage, "there is no page to copy the tail to");
    scratch.copies.push_back({.source = tail.source, .target = row[tail.column], .token_count = tail.tokens});
    tail.is_planned = true;
  }
  slot.planned_end += part.token_count;
  if (part.is_tree) {
    std::ranges::copy(entry.tree_parents, sequences.tree_parent_row(part.index).begin() + slot.tree_count);
    slot.tree_count += part.draft_count;
  } else {
    slot.has_draft = part.draft_count > 0;
  }
  ++slot.steps_in_flight;
  QUIRE_DCHECK(slot.steps_in_flight <= config.steps_in_flight_max, "a sequence is in a step twice");
}

// What the planner needs to know of an entry for window and state groups.
void Cache::Impl::add_planner_groups(const StepPart& part) {
  const SequenceSlot& slot = sequences[part.index];
  PlannerEntryGroups& entry = scratch.entry_groups.emplace_back();
  if (slot.state_slot) entry.state_slot = slot.state_slot->index;
  entry.checkpoint = part.checkpoint;
  entry.write_from = slot.replay_end;
  const std::size_t first = scratch.windows.size();
  for (const std::uint32_t i : windows) {
    WindowRow& window = groups[i].slots[part.index];
    scratch.windows.push_back({.pages = groups[i].row(part.index).first(window.page_count),
                               .changed_column = window.changed_column,
                               .write_from = window.is_rebuilt ? 0 : slot.replay_end,
                               .written_from = window.written_from});
    window.changed_column = window.page_count;
  }
  entry.windows = std::span(scratch.windows).subspan(first);  // stays valid: scratch.windows has room for all entries
  if (slot.send) entry.send_windows = sequences.send_window_row(part.index).first(slot.send->window_count);
}

void Cache::Impl::add_planner_entry(const StepPart& part, std::uint32_t entry_index) {
  SequenceSlot& slot = sequences[part.index];
  const std::uint32_t query_count = part.query_count();
  QUIRE_DCHECK(pages_for(part.position + query_count) <= slot.page_count, "a token is computed that has no page");
  const std::uint32_t known_end = std::min(slot.token_count, part.position + query_count);
  const std::uint32_t known_begin = std::min(part.position, known_end);
  PlannerEntry& entry = scratch.entries.emplace_back();
  entry.sequence = {part.index, slot.generation};
  entry.entry_index = entry_index;
  entry.position = part.position;
  entry.token_count = query_count;
  entry.draft_count = part.draft_count;
  entry.context_tokens = part.position + query_count;
  entry.runs_again = part.runs_again();
  entry.pages = sequences.page_row(part.index).first(slot.page_count);
  entry.tokens = sequences.token_row(part.index).subspan(known_begin, known_end - known_begin);
  entry.shareable_pages = slot.settled_pages;
  entry.changed_column = slot.changed_column;
  if (slot.window) {
    entry.window_tokens = slot.window->tokens;
    entry.sink_tokens = slot.window->sink_tokens;
  }
  slot.changed_column = slot.page_count;  // this plan tells the device all columns
  if (part.is_tree) entry.tree_parents = sequences.tree_parent_row(part.index).first(slot.tree_count);
  if (!slot.send) return;
  const SequenceSlot::Send& send = *slot.send;
  entry.send_slots = sequences.send_row(part.index).first(send.run_count);
  entry.send_begin = send.begin;
  entry.receiver = send.receiver;
  if (send.cached_end > send.begin && slot.steps_in_flight == 1) {  // else an earlier step in flight sends them
    entry.send_cached_begin = send.begin;
    entry.send_cached_end = send.cached_end;
  }
}

}  // namespace quire
