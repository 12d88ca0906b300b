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

tl::unexpected<Error> bad_entry(std::size_t i, const std::string& what) {
  return fail(ErrorCode::InvalidArgument, "entry " + std::to_string(i) + ": " + what);
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
  if (entries.empty()) return fail(ErrorCode::InvalidArgument, "a step has at least one entry");
  ++plan_mark;
  std::uint64_t step_tokens = 0;
  planning.clear();
  planning_sides.clear();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].sequence == nullptr) return bad_entry(i, "its sequence is null");
    const Result<std::uint32_t> index = find_sequence(*entries[i].sequence);
    if (!index) return bad_entry(i, index.error().message);
    SequenceSlot& slot = sequences[*index];
    if (slot.plan_mark == plan_mark) return bad_entry(i, name_of(*index) + " is in the step already");
    slot.plan_mark = plan_mark;
    if (const Status status = check_entry(entries[i], *index); !status) {
      return fail(status.error().code, "entry " + std::to_string(i) + ": " + status.error().message);
    }
    const StepPart& part = planning.emplace_back(make_part(entries[i], *index));
    if (!window_sides.empty()) make_side_parts(part);
    if (has_state() && part.draft_count > 0) {
      if (const Status status = check_drafts(*index, slot.planned_end + part.token_count, part.draft_count); !status) {
        return fail(status.error().code, "entry " + std::to_string(i) + ": " + status.error().message);
      }
    }
    if (end_of(slot, part) > context_tokens_max) {
      return bad_entry(i, name_of(*index) + " " + too_long(end_of(slot, part)));
    }
    step_tokens += part.query_count();
  }
  if (step_tokens > config.step_tokens_max) {
    return fail(ErrorCode::InvalidArgument, "the step computes " + with_separators(step_tokens) +
                                                " tokens; step_tokens_max is " +
                                                with_separators(config.step_tokens_max));
  }
  return {};
}

Status Cache::Impl::check_entry(const StepEntry& entry, std::uint32_t index) const {
  const SequenceSlot& slot = sequences[index];
  const auto bad = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, name_of(index) + " " + what);
  };
  if (slot.state != SequenceSlot::State::Running) {
    return bad(not_running(slot) + 1);
  }
  if (slot.is_receiving) return bad("is receiving tokens; finish_receive or abort_receive comes first");
  if (slot.has_draft || (slot.tree_count > 0 && slot.steps_in_flight > 0)) {
    return fail(ErrorCode::Unavailable,
                name_of(index) + " has undecided tokens in a step in flight; finish that step first");
  }
  const bool is_tree = !entry.tree_parents.empty();
  if (slot.tree_count > 0 && !is_tree) {
    return bad("has " + std::to_string(slot.tree_count) +
               " undecided tree tokens: commit_tree decides, or give it more of the tree");
  }
  if (slot.state_is_in_doubt) {
    return fail(ErrorCode::Unavailable,
                name_of(index) + " has steps in flight and one that did not happen; finish the others first");
  }
  const std::uint32_t draft_count = draft_count_of(entry);
  const std::uint32_t missing = slot.token_count - std::min(slot.token_count, slot.planned_end);
  const std::uint32_t pending = pending_tokens(slot);
  if (draft_count == 0 && pending == 0 && slot.steps_in_flight == 0) {
    return bad("has no pending tokens; finish_step or append brings new ones");
  }
  if (slot.steps_in_flight == 0 && entry.token_count > pending) {
    return bad("has " + with_separators(pending) + " pending tokens, but token_count is " +
               with_separators(entry.token_count));
  }
  // Without known tokens, the least is one that a step in flight brings.
  const std::uint32_t wanted = std::max(entry.token_count, missing > 0 ? 0U : 1U);
  if (slot.steps_in_flight > 0 &&
      std::uint64_t{slot.planned_end} + wanted > std::uint64_t{slot.token_count} + slot.steps_in_flight) {
    return bad("has " + with_separators(pending) + " pending tokens, and its " + std::to_string(slot.steps_in_flight) +
               " steps in flight bring one each, less what is planned already; token_count is " +
               with_separators(entry.token_count));
  }
  if (draft_count > 0) {
    if (is_tree && entry.draft_count > 0) return bad("has both draft_count and tree_parents: give one of them");
    if (slot.send_run_count > 0) return bad("is marked for sending: tokens that may be rejected cannot be sent");
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
  // Tokens of a tree take places that are not theirs in the end. Pages are put right by moving rows; a state has been
  // through all of them, and an entry of several tokens is made of what stood there.
  const auto follows_order = [](const CacheGroup& group) {
    return has_slot(group) || group.kind == GroupKind::Compressed;
  };
  const std::span<const CacheGroup> groups = config.layout.groups();
  if (const auto group = std::ranges::find_if(groups, follows_order); group != groups.end()) {
    return fail(ErrorCode::Unsupported, name_of(index) + ": group '" + group->name + "' " +
                                            (has_slot(*group) ? "keeps state" : "has entries of several tokens") +
                                            ", which a tree of tokens would mix up: use draft_count, a chain");
  }
  const std::uint32_t before = sequences[index].tree_count;
  const std::size_t count = before + entry.tree_parents.size();
  if (count > config.tree_tokens_max) {
    return fail(ErrorCode::InvalidArgument, name_of(index) + " would have " + with_separators(count) +
                                                " undecided tree tokens; tree_tokens_max is " +
                                                with_separators(config.tree_tokens_max));
  }
  for (std::size_t i = 0; i < entry.tree_parents.size(); ++i) {
    const std::int32_t parent = entry.tree_parents[i];
    if (parent >= -1 && parent < static_cast<std::int64_t>(before + i)) continue;
    return fail(ErrorCode::InvalidArgument,
                name_of(index) + ": the parent of tree token " + std::to_string(before + i) + " is " +
                    std::to_string(parent) + ": parents stand before their children, and -1 is the last known token");
  }
  return {};
}

// Pages that a list of the entry's keys has: a window leaves out those between its sink and what the first query sees.
std::uint32_t Cache::Impl::listed_pages(const SequenceSlot& slot, const StepPart& part) const {
  const std::uint32_t end = pages_for(end_of(slot, part));
  const std::uint32_t first_query = part.runs_again() ? part.position : slot.planned_end;
  const std::uint32_t sink_pages = pages_for(slot.sink_tokens);
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
    return fail(ErrorCode::InvalidArgument, "shape." + std::string(name) + " is " + with_separators(asked) +
                                                ": this step needs " + with_separators(needed) + ", and the most is " +
                                                with_separators(most));
  };
  QUIRE_TRY(check("entries", shape.entries, planning.size(), config.sequence_count_max));
  QUIRE_TRY(check("tokens", shape.tokens, tokens, config.step_tokens_max));
  if (config.plan.page_tables == PageTables::Block) {
    QUIRE_TRY(check("columns", shape.columns, columns, sequences.row_pages()));
  }
  return {};
}

// What a step adds to a sequence

Cache::Impl::StepPart Cache::Impl::make_part(const StepEntry& entry, std::uint32_t index) const {
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
    // Without known tokens, the one that the steps in flight will bring.
    const std::uint32_t all = missing > 0 ? missing : std::min(slot.steps_in_flight, 1U);
    part.token_count =
        part.draft_count > 0 || entry.token_count == 0 ? std::max(all, entry.token_count) : entry.token_count;
  }
  if (has_snapshots && part.token_count > 0) cut_at_checkpoint(slot, index, part);
  part.position = runs_again ? slot.computed_tokens - 1 : slot.planned_end + slot.tree_count;
  // A replay may end before the page that the history ends in.
  const bool reaches_tail = slot.replay_end == 0 || pages_for(end_of(slot, part)) > slot.tail_page;
  if (slot.tail_tokens > 0 && !slot.tail_is_planned && reaches_tail) {
    // The last owner of a page needs no copy of it.
    part.adopts_tail = !slot.tail_pin && !pool.is_shared(slot.tail_source);
    part.copies_tail = !part.adopts_tail;
  }
  const std::uint32_t end_page = pages_for(end_of(slot, part));
  for (std::uint32_t page = slot.page_count; page < end_page; ++page) {
    if (stores_page(slot, part, page)) ++part.new_pages;
  }
  if (part.adopts_tail) --part.new_pages;
  return part;
}

// A snapshot is taken where a step ends.
void Cache::Impl::cut_at_checkpoint(const SequenceSlot& slot, std::uint32_t index, StepPart& part) const {
  const std::uint32_t next = next_checkpoint(slot, slot.planned_end);
  if (next == 0 || next >= slot.planned_end + part.token_count || !wants_snapshot(index, next)) return;
  part.token_count = next - slot.planned_end;
  part.draft_count = 0;
  part.is_tree = false;
}

// Pages that the window will have left when the step is done are not taken at all, unless they begin with tokens
// computed before, which the step itself reads.
bool Cache::Impl::stores_page(const SequenceSlot& slot, const StepPart& part, std::uint32_t page) const {
  if (slot.window_tokens == 0 || page < pages_for(slot.sink_tokens)) return true;
  if (std::uint64_t{page} * page_tokens < slot.planned_end) return true;
  return std::uint64_t{page + 1} * page_tokens > keep_from(slot, slot.planned_end + part.token_count);
}

std::uint32_t Cache::Impl::pending_tokens(const SequenceSlot& slot) const {
  if (slot.state == SequenceSlot::State::Holding || slot.is_receiving) return 0;
  const std::uint32_t missing = slot.token_count - std::min(slot.token_count, slot.planned_end);
  if (missing > 0) return missing;
  // Somebody has to ask the model what comes after a prompt that was found whole.
  // A state would count the token twice: there the sequence waits for new tokens.
  const bool runs_again =
      !slot.has_run && slot.token_count > 0 && slot.steps_in_flight == 0 && !slot.is_undecided() && !has_state();
  return runs_again ? 1 : 0;
}

// What entries that were checked ask for, as things are now.
void Cache::Impl::make_parts(std::span<const StepEntry> entries) {
  planning_sides.clear();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    planning[i] = make_part(entries[i], planning[i].index);
    if (!window_sides.empty()) make_side_parts(planning[i]);
  }
}

// Planning

Result<PlanOutcome> Cache::plan_step(std::span<const StepEntry> entries, const PlanShape& shape) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "plan_step"));
  if (impl.step_order.size() == impl.config.steps_in_flight_max) {
    return fail(ErrorCode::Unavailable,
                "step " + std::to_string(impl.step_at(0).number) + " is in flight, and " +
                    std::to_string(impl.step_order.size()) + " in all; steps_in_flight_max is " +
                    std::to_string(impl.config.steps_in_flight_max) + ": finish or abort one first");
  }
  QUIRE_TRY(impl.check_entries(entries));
  QUIRE_TRY(impl.check_shape(shape));
  Shortage needs = impl.measure();
  if (needs.pages_needed > needs.pages_available && needs.is_of_history && impl.writes_back()) {
    impl.start_leaving(needs.pages_needed);  // some may have been copied long ago
    needs = impl.measure();
  }
  if (needs.pages_needed > needs.pages_available && !impl.try_without_copies(entries, shape) &&
      !impl.try_anew(entries, shape)) {
    ++impl.counters.short_plan_count;
    // Copies may have been given up all the same, and entries without them have other needs.
    impl.make_parts(entries);
    needs = impl.measure();
    if (impl.writes_back()) impl.work_in_background();  // other copies would take pages from the entries that fit
    return PlanOutcome{.step = std::nullopt, .shortage = needs};
  }

  // From here on nothing fails.
  const std::uint64_t number = ++impl.step_number;
  std::uint32_t page_count = 0;
  for (const Impl::StepPart& part : impl.planning) page_count += part.new_pages;
  impl.unfence(page_count);
  impl.make_room(page_count);
  const std::span<PageId> new_pages = std::span(impl.page_scratch).first(page_count);
  QUIRE_CHECK(impl.pool.try_allocate(new_pages), "pages that were counted are not there");
  for (std::size_t i = 0; i < impl.window_sides.size(); ++i) {
    SideGroup& side = impl.sides[impl.window_sides[i]];
    std::uint32_t side_pages = 0;
    for (std::size_t part = 0; part < entries.size(); ++part) {
      side_pages += impl.planning_sides[(part * impl.window_sides.size()) + i].new_pages;
    }
    impl.make_room(side, side_pages);
    side.copies.clear();
  }

  impl.copies.clear();
  std::size_t used = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    Impl::StepPart& part = impl.planning[i];
    if (!impl.window_sides.empty()) impl.plan_side_parts(part, impl.planning_sides_of(i));
    impl.plan_part(entries[i], part, new_pages.subspan(used, part.new_pages));
    used += part.new_pages;
  }
  // The place that has been free for longest, or nearly: plans may outlive their steps a little.
  const auto step_count = static_cast<std::uint32_t>(impl.steps.size());
  std::uint32_t place = impl.next_step;
  while (impl.steps[place].is_planned) place = (place + 1) % step_count;
  impl.next_step = (place + 1) % step_count;
  Impl::StepInFlight& step = impl.steps[place];
  step.is_planned = true;
  step.is_moved = false;
  step.is_applied = false;
  step.number = number;
  step.parts.swap(impl.planning);
  step.sides.swap(impl.planning_sides);
  step.plan = impl.build_plan(step, shape, place);
  impl.move_indptr.resize(1);
  impl.step_order.push_back(place);
  ++impl.counters.planned_step_count;
  return PlanOutcome{.step = Step{.number = number, .cache = &impl, .plan = step.plan}, .shortage = {}};
}

// The plan of a step whose pages are taken.
AttentionPlan Cache::Impl::build_plan(StepInFlight& step, const PlanShape& shape, std::uint32_t place) {
  step.saves.clear();
  step.is_saved = false;
  if (has_state()) plan_states(step);
  planner_entries.clear();
  planner_sides.clear();
  for (std::uint32_t i = 0; i < step.parts.size(); ++i) add_planner_entry(step.parts[i], i);
  planner_groups_of_entries.clear();
  if (!sides.empty()) {
    for (const StepPart& part : step.parts) add_planner_groups(part);
  }
  planner_steps.clear();
  for (const std::uint32_t i : window_sides) {
    planner_steps.push_back(
        {.copies = sides[i].copies, .moves = {sides[i].moves.data(), move_count()}, .move_indptr = move_indptr});
  }
  return planner.build({.entries = planner_entries,
                        .entry_groups = planner_groups_of_entries,
                        .shape = shape,
                        .copies = copies,
                        .moves = {moves.data(), move_count()},
                        .move_indptr = move_indptr,
                        .sides = planner_steps,
                        .state_copies = state_copies,
                        .state_saves = state_saves,
                        .buffer_index = place});
}

// The first group that is short, or the history.
Shortage Cache::Impl::measure() const {
  Shortage needs = measure_history();
  for (std::size_t i = 0; i < window_sides.size(); ++i) {
    const SideGroup& side = sides[window_sides[i]];
    const std::uint32_t available = available_pages(side);
    std::uint64_t needed = 0;
    std::uint32_t fits = 0;
    for (std::size_t part = 0; part < planning.size(); ++part) {
      needed += planning_sides[(part * window_sides.size()) + i].new_pages;
      if (needed <= available) ++fits;
    }
    if (needs.pages_needed <= needs.pages_available && needed > available) {
      needs = {.group_index = side.memory.group_index,
               .pages_needed = static_cast<std::uint32_t>(needed),
               .pages_available = available,
               .pages_returning = step_order.empty() ? 0 : side.fenced.count(),
               .pages_leaving = side.host != nullptr ? side.host->read_page_count : 0,
               .entries_that_fit = needs.entries_that_fit,
               .is_of_history = false};
    }
    needs.entries_that_fit = std::min(needs.entries_that_fit, fits);
  }
  return needs;
}

bool Cache::Impl::sides_fit() const {
  for (std::size_t i = 0; i < window_sides.size(); ++i) {
    std::uint64_t needed = 0;
    for (std::size_t part = 0; part < planning.size(); ++part) {
      needed += planning_sides[(part * window_sides.size()) + i].new_pages;
    }
    if (needed > available_pages(sides[window_sides[i]])) return false;
  }
  return true;
}

Shortage Cache::Impl::measure_history() const {
  Shortage needs{.group_index = history_index,
                 .pages_available = available_pages(),
                 .pages_returning = step_order.empty() ? 0 : fenced.count(),
                 .pages_leaving = has_host() ? pages_leaving() : 0};
  std::uint64_t needed = 0;
  for (const StepPart& part : planning) {
    needed += part.new_pages;
    if (needed <= needs.pages_available) ++needs.entries_that_fit;
  }
  needs.pages_needed = static_cast<std::uint32_t>(needed);
  return needs;
}

// A tail that waits to be copied pins its source, with the run that holds it. When pages are short, what it saves is
// worth less than the pages: without this, a lone sequence could wait for ever for pages that only it holds. Gives up
// the tails of all sequences that can compute them again if that makes the step fit; otherwise everything stays as it
// was, the policy's order too.
bool Cache::Impl::try_without_copies(std::span<const StepEntry> entries, const PlanShape& shape) {
  revoked.clear();
  revoked_runs.clear();
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    const SequenceSlot& slot = sequences[i];
    if (slot.state != SequenceSlot::State::Running) continue;  // what is being saved is read
    // Behind a window that has moved, tokens computed again would see less than they did.
    const bool sees_all = slot.window_tokens == 0 || slot.computed_tokens <= slot.window_tokens;
    if (!slot.tail_pin || slot.tail_is_planned || !sees_all || slot.is_undecided()) continue;
    // Other groups must be able to go on where the tail begins.
    const bool can_go_back = sides.empty() || (!has_state() && slot.replay_end == 0 &&
                                               windows_hold(i, slot.computed_tokens - slot.tail_tokens));
    if (!can_go_back) continue;
    revoked.push_back({.index = i, .tail_tokens = slot.tail_tokens});
    revoked_runs.push_back(slot.tail_pin.run());
  }
  if (revoked.empty()) return false;
  for (const auto& [index, tail_tokens] : revoked) {
    SequenceSlot& slot = sequences[index];
    slot.computed_tokens -= tail_tokens;
    slot.planned_end = slot.computed_tokens;
    slot.tail_tokens = 0;
  }
  std::uint64_t step_tokens = 0;
  make_parts(entries);
  for (const StepPart& part : planning) step_tokens += part.query_count();
  const Shortage needs = measure();
  const std::uint32_t tokens_max = shape.tokens > 0 ? shape.tokens : config.step_tokens_max;
  // What is written back first comes too late for this step, but not for the next attempt.
  const std::uint32_t later = writes_back() ? tree->evictable_pages() - tree->left_pages() + tree->leaving_pages() : 0;
  // Only the history's pages come free with the runs that held them.
  const std::uint32_t freed = needs.is_of_history ? later + tree->pages_idle_without(revoked_runs) : 0;
  const bool fits = step_tokens <= tokens_max && needs.pages_needed <= needs.pages_available + freed && sides_fit();
  for (const auto& [index, tail_tokens] : revoked) {
    SequenceSlot& slot = sequences[index];
    if (!fits) {
      slot.tail_tokens = tail_tokens;
      slot.computed_tokens += tail_tokens;
      slot.planned_end = slot.computed_tokens;
      continue;
    }
    slot.tail_pin.reset();
    drop_side_tails(index);
    slot.send_cached_end = std::min(slot.send_cached_end, slot.computed_tokens);
    if (std::exchange(slot.tail_is_hit, false)) {
      counters.hit_tokens -= tail_tokens;
      counters.partial_hit_tokens -= tail_tokens;
    }
  }
  if (!fits || !has_host()) return fits;
  if (writes_back()) start_leaving(needs.pages_needed);
  return needs.pages_needed <= available_pages();  // some of them may still be read by a store
}

// Where other groups cannot go on at the beginning of the tail, a lone sequence that has computed nothing yet would
// wait for ever for pages that only it holds: it is found anew, up to the end of a page.
bool Cache::Impl::try_anew(std::span<const StepEntry> entries, const PlanShape& shape) {
  if (sides.empty() || entries.size() != 1 || !step_order.empty()) return false;
  if (planning.front().draft_count > 0) return false;  // these stand behind its end
  const std::uint32_t index = planning.front().index;
  SequenceSlot& slot = sequences[index];
  if (!slot.tail_pin || !slot.tail_is_hit || slot.tail_is_planned) return false;
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    if (i != index && sequences[i].state != SequenceSlot::State::Free && !sequences[i].is_waiting()) return false;
  }
  release_pages(index);
  slot.computed_tokens = 0;
  slot.planned_end = 0;
  slot.skips_partial = true;
  start_running(index, /*is_again=*/true);
  // Others may have come further meanwhile; or there is more left than a step computes.
  const std::uint32_t tokens_max = shape.tokens > 0 ? shape.tokens : config.step_tokens_max;
  StepEntry entry = entries.front();
  entry.token_count =
      std::min({entry.token_count > 0 ? entry.token_count : UINT32_MAX, pending_tokens(slot), tokens_max});
  make_parts({&entry, 1});
  Shortage needs = measure();
  if (needs.pages_needed > needs.pages_available && needs.is_of_history && writes_back()) {
    start_leaving(needs.pages_needed);
    needs = measure();
  }
  return needs.pages_needed <= needs.pages_available && sides_fit();
}

// Pages that wait only for moves which come with this very plan can be written by it: moves run first. The others stay,
// for calls that hand out pages to be written at any time.
void Cache::Impl::unfence(std::uint32_t page_count) {
  if (!step_order.empty()) return;
  while (pool.free_count() < page_count && fenced.count() > 0) {
    const PageId page = fenced.pop();
    pool.release({&page, 1});
  }
}

void Cache::Impl::make_room(std::uint32_t page_count) {
  // Pages that a store still reads are evicted, but not free.
  while (page_count > pool.free_count() && evict(page_count - pool.free_count()) > 0) {
  }
}

void Cache::Impl::plan_part(const StepEntry& entry, StepPart& part, std::span<const PageId> new_pages) {
  SequenceSlot& slot = sequences[part.index];
  const std::span<PageId> row = sequences.page_row(part.index);
  slot.changed_column = std::min(slot.changed_column, slot.page_count);
  std::uint32_t page = slot.page_count;
  slot.page_count = std::max(slot.page_count, pages_for(end_of(slot, part)));
  if (part.adopts_tail) {
    pool.reopen(slot.tail_source);
    row[page++] = slot.tail_source;
    part.first_column = page;  // the page is the sequence's own from here on, whatever becomes of the step
    slot.tail_tokens = 0;
    slot.tail_is_hit = false;
  }
  std::size_t taken = 0;
  for (; page < slot.page_count; ++page) {
    row[page] = stores_page(slot, part, page) ? new_pages[taken++] : kNullPage;
  }
  if (part.copies_tail) {
    copies.push_back({.source = slot.tail_source, .target = row[slot.tail_page], .token_count = slot.tail_tokens});
    slot.tail_is_planned = true;
  }
  slot.planned_end += part.token_count;
  if (part.is_tree) {
    std::ranges::copy(entry.tree_parents, sequences.tree_parent_row(part.index).begin() + slot.tree_count);
    slot.tree_count += part.draft_count;
  } else {
    slot.has_draft = part.draft_count > 0;
  }
  ++slot.steps_in_flight;
}

// What groups beside the history need of an entry.
void Cache::Impl::add_planner_groups(const StepPart& part) {
  const SequenceSlot& slot = sequences[part.index];
  PlannerEntryGroups& groups = planner_groups_of_entries.emplace_back();
  if (has_state()) groups.state_slot = slot.state_slot;
  groups.checkpoint = part.checkpoint;
  groups.write_from = slot.replay_end;
  const std::size_t first = planner_sides.size();
  for (const std::uint32_t i : window_sides) {
    SideSlot& side = sides[i].slots[part.index];
    planner_sides.push_back({.pages = sides[i].row(part.index).first(side.page_count),
                             .changed_column = side.changed_column,
                             .write_from = side.is_rebuilt ? 0 : slot.replay_end});
    side.changed_column = side.page_count;
  }
  groups.sides = std::span(planner_sides).subspan(first);  // there is room for all of a step's
}

void Cache::Impl::add_planner_entry(const StepPart& part, std::uint32_t entry_index) {
  SequenceSlot& slot = sequences[part.index];
  const std::uint32_t query_count = part.query_count();
  const std::uint32_t known_end = std::min(slot.token_count, part.position + query_count);
  const std::uint32_t known_begin = std::min(part.position, known_end);
  PlannerEntry& entry = planner_entries.emplace_back();
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
  entry.window_tokens = slot.window_tokens;
  entry.sink_tokens = slot.sink_tokens;
  slot.changed_column = slot.page_count;  // the plan tells all of it
  if (part.is_tree) entry.tree_parents = sequences.tree_parent_row(part.index).first(slot.tree_count);
  if (slot.send_run_count == 0) return;
  entry.send_slots = sequences.send_row(part.index).first(slot.send_run_count);
  entry.send_begin = slot.send_begin;
  entry.receiver = slot.receiver;
  if (slot.send_cached_end > 0 && slot.steps_in_flight == 1) {  // a step in flight before this one sends them already
    entry.send_cached_begin = slot.send_begin;
    entry.send_cached_end = slot.send_cached_end;
  }
}

}  // namespace quire
