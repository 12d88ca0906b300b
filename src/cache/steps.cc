// SPDX-License-Identifier: Apache-2.0
//
// Cache: sequences and steps.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "kernels/copy_page_part.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

void clear_plan(SequenceSlot& slot) {
  slot.is_planned = false;
  slot.planned_tokens = 0;
  slot.planned_pages = 0;
}

}  // namespace

Result<Sequence> Cache::begin(KeySpaceId key_space, const Prompt& prompt, const SequenceOptions& options) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "begin"));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(prompt));
  QUIRE_TRY(Impl::check_ttl(options.ttl_ns));
  QUIRE_TRY_ASSIGN(const PrefixTree::Match match, impl.match(space, prompt, options));
  const std::optional<std::uint32_t> index = impl.sequences.try_add();
  if (!index) {
    return fail(ErrorCode::Unavailable, "all " + with_separators(impl.sequences.capacity()) +
                                            " sequences are live; end one, or raise sequence_count_max");
  }

  const auto token_count = static_cast<std::uint32_t>(prompt.tokens.size());
  SequenceSlot& slot = impl.sequences[*index];
  slot.state = SequenceSlot::State::Waiting;
  slot.key_space = space;
  slot.prompt_tokens = token_count;
  slot.token_count = token_count;
  slot.match_tokens_max = options.match_tokens_max.value_or(UINT32_MAX);
  slot.may_use_cache = options.use_cache;
  slot.publish_tokens_max = options.publish == Publish::All      ? UINT32_MAX
                            : options.publish == Publish::Prompt ? token_count
                                                                 : 0;
  slot.priority = options.priority;
  slot.ttl_ns = options.ttl_ns.value_or(INT64_MAX);
  slot.extra_key_count = static_cast<std::uint32_t>(prompt.extra_keys.size());
  std::memcpy(impl.sequences.token_row(*index).data(), prompt.tokens.data(), prompt.tokens.size_bytes());
  std::ranges::copy(prompt.extra_keys, impl.sequences.extra_key_row(*index).begin());
  slot.soft_pin = impl.tree->soft_pin(match);
  ++impl.key_spaces[space].user_count;
  impl.key_spaces.touch(space);
  ++impl.counters.begun_sequence_count;
  return Sequence(impl.release_queue, {*index, slot.generation});
}

Result<std::uint32_t> Cache::Impl::find_sequence(const Sequence& sequence) const {
  if (sequence.queue_ == release_queue) {
    if (const auto index = sequences.find(sequence.id())) return *index;
  }
  return fail(ErrorCode::InvalidArgument, sequence ? "this sequence belongs to another cache"
                                                   : "this sequence has ended, or the handle was never begun");
}

Result<Admission> Cache::admit(const Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  SequenceSlot& slot = impl.sequences[index];
  if (slot.state != SequenceSlot::State::Waiting) {
    return fail(ErrorCode::InvalidArgument, "this sequence was admitted before");
  }
  // A key space that was dropped while the sequence waited has nothing to offer it.
  const KeySpaceTable::Entry& space = impl.key_spaces[slot.key_space];
  const bool may_match = slot.may_use_cache && !space.is_retired;
  const std::uint32_t tokens_max = may_match ? std::min(slot.token_count, slot.match_tokens_max) : 0;
  const PrefixTree::Match match = impl.tree->match(space.root, impl.sequences.key(index, tokens_max));

  slot.partial_tokens = impl.usable_partial(match);
  if (slot.partial_tokens > 0) {
    slot.partial_page = impl.tree->partial_page(match);
    slot.partial_pin = impl.tree->pin_partial(match);
  }
  impl.tree->copy_pages(match, 0, impl.sequences.page_row(index));
  slot.pin = impl.tree->pin(match, impl.retention_of(slot));
  slot.soft_pin.reset();
  slot.state = SequenceSlot::State::Running;
  slot.shared_pages = match.page_count;
  slot.settled_pages = match.page_count;
  slot.page_count = match.page_count;
  slot.computed_tokens = (match.page_count * impl.page_tokens) + slot.partial_tokens;

  ++impl.counters.admitted_sequence_count;
  impl.counters.prompt_tokens += slot.token_count;
  impl.counters.hit_tokens += slot.computed_tokens;
  impl.counters.partial_hit_tokens += slot.partial_tokens;
  return Admission{.matched_tokens = slot.computed_tokens, .partial_tokens = slot.partial_tokens};
}

std::uint32_t Cache::Impl::pending_tokens(const SequenceSlot& slot) const {
  if (slot.state == SequenceSlot::State::Holding) return 0;  // the engine computes, quire only holds
  const std::uint32_t missing = slot.token_count - slot.computed_tokens;
  // Somebody has to ask the model what comes after a prompt that was found whole.
  return missing == 0 && !slot.has_run ? 1 : missing;
}

std::uint32_t Cache::Impl::tokens_of(const StepEntry& entry, const SequenceSlot& slot) const {
  return entry.token_count == 0 ? pending_tokens(slot) : entry.token_count;
}

Result<SequenceView> Cache::view(const Sequence& sequence) const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  const SequenceSlot& slot = impl.sequences[index];
  return SequenceView{.is_waiting = slot.state == SequenceSlot::State::Waiting,
                      .is_planned = slot.is_planned,
                      .token_count = slot.token_count,
                      .computed_tokens = slot.computed_tokens,
                      .pending_tokens = impl.pending_tokens(slot),
                      .pages = impl.sequences.page_row(index).first(slot.page_count)};
}

// Steps

Status Cache::Impl::check_entries(std::span<const StepEntry> entries) const {
  const auto bad = [](std::size_t i, const std::string& what) {
    return fail(ErrorCode::InvalidArgument, "entry " + std::to_string(i) + ": " + what);
  };
  if (entries.empty()) return fail(ErrorCode::InvalidArgument, "a step has at least one entry");
  std::uint64_t step_tokens = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].sequence == nullptr) return bad(i, "its sequence is null");
    const Result<std::uint32_t> index = find_sequence(*entries[i].sequence);
    if (!index) return bad(i, index.error().message);
    const SequenceSlot& slot = sequences[*index];
    if (slot.state != SequenceSlot::State::Running) return bad(i, "its sequence is waiting; admit it first");
    const std::uint32_t pending = pending_tokens(slot);
    if (pending == 0) return bad(i, "its sequence has no pending tokens; finish_step or append brings new ones");
    if (entries[i].token_count > pending) {
      return bad(i, "token_count is " + with_separators(entries[i].token_count) + ", but the sequence has " +
                        with_separators(pending) + " pending tokens");
    }
    step_tokens += tokens_of(entries[i], slot);
  }
  if (step_tokens > config.step_tokens_max) {
    return fail(ErrorCode::InvalidArgument, "the step computes " + with_separators(step_tokens) +
                                                " tokens; step_tokens_max is " +
                                                with_separators(config.step_tokens_max));
  }
  return {};
}

// Marks the sequences to find one that is there twice, and takes the marks back.
Status Cache::Impl::check_distinct(std::span<const StepEntry> entries) {
  std::size_t marked = 0;
  while (marked < entries.size() && !sequences[entries[marked].sequence->id().index].is_planned) {
    sequences[entries[marked++].sequence->id().index].is_planned = true;
  }
  unplan(entries.first(marked));
  if (marked == entries.size()) return {};
  return fail(ErrorCode::InvalidArgument, "entry " + std::to_string(marked) + ": its sequence is in the step already");
}

Result<PlanOutcome> Cache::plan_step(std::span<const StepEntry> entries) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "plan_step"));
  if (impl.step.is_planned) {
    return fail(ErrorCode::Unavailable,
                "step " + std::to_string(impl.step.number) + " is in flight; finish or abort it first");
  }
  QUIRE_TRY(impl.check_entries(entries));
  QUIRE_TRY(impl.check_distinct(entries));
  const Shortage needs = impl.measure(entries);
  if (needs.pages_needed > needs.pages_available && !impl.try_without_copies(entries)) {
    impl.unplan(entries);
    ++impl.counters.short_plan_count;
    return PlanOutcome{.step = std::nullopt, .shortage = needs};
  }

  // From here on nothing fails.
  std::uint32_t page_count = 0;
  for (const StepEntry& entry : entries) page_count += impl.sequences[entry.sequence->id().index].planned_pages;
  impl.make_room(page_count);
  const std::span<PageId> new_pages = std::span(impl.step.page_scratch).first(page_count);
  QUIRE_CHECK(impl.pool.try_allocate(new_pages), "pages that were counted are not there");
  impl.step.entries.clear();
  impl.step.append_slots.clear();
  impl.step.copies.clear();
  std::size_t used = 0;
  for (const StepEntry& entry : entries) {
    const std::uint32_t index = entry.sequence->id().index;
    const std::uint32_t count = impl.sequences[index].planned_pages;
    impl.plan_entry(index, new_pages.subspan(used, count));
    used += count;
  }
  impl.step.is_planned = true;
  ++impl.step.number;
  ++impl.counters.planned_step_count;
  return PlanOutcome{.step = Step{.number = impl.step.number,
                                  .plan = {.copies = impl.step.copies,
                                           .entries = impl.step.entries,
                                           .append_slots = impl.step.append_slots}},
                     .shortage = {}};
}

// Notes in each entry's sequence what the step adds to it, and sums up.
Shortage Cache::Impl::measure(std::span<const StepEntry> entries) {
  Shortage needs{.pages_available = pool.free_count() + tree->evictable_pages()};
  std::uint64_t needed = 0;
  for (const StepEntry& entry : entries) {
    SequenceSlot& slot = sequences[entry.sequence->id().index];
    const bool runs_again = slot.computed_tokens == slot.token_count;
    slot.is_planned = true;
    slot.planned_tokens = runs_again ? 0 : tokens_of(entry, slot);
    slot.planned_pages = pages_for(slot.computed_tokens + slot.planned_tokens) - slot.page_count;
    needed += slot.planned_pages;
    if (needed <= needs.pages_available) ++needs.entries_that_fit;
  }
  needs.pages_needed = static_cast<std::uint32_t>(needed);
  return needs;
}

void Cache::Impl::unplan(std::span<const StepEntry> entries) {
  for (const StepEntry& entry : entries) clear_plan(sequences[entry.sequence->id().index]);
}

// A pending copy pins its source, with the run that holds it. When pages are short, what it saves is worth less than
// the pages: without this, a lone sequence could wait for ever for pages that only it holds. Gives up the copies of all
// sequences that have not run yet if that makes the step fit; otherwise everything stays as it was.
bool Cache::Impl::try_without_copies(std::span<const StepEntry> entries) {
  const auto for_each_copying = [this](const auto& visit) {
    for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
      if (sequences[i].partial_pin) visit(sequences[i]);
    }
  };
  for_each_copying([&](SequenceSlot& slot) {
    slot.revoked_run = slot.partial_pin.run();
    slot.partial_pin.reset();
    slot.computed_tokens -= slot.partial_tokens;
  });
  const auto for_each_revoked = [this](const auto& visit) {
    for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
      if (!sequences[i].revoked_run.is_none()) visit(sequences[i]);
    }
  };
  std::uint64_t step_tokens = 0;
  const Shortage needs = measure(entries);
  for (const StepEntry& entry : entries) step_tokens += tokens_of(entry, sequences[entry.sequence->id().index]);
  const bool fits = needs.pages_needed <= needs.pages_available && step_tokens <= config.step_tokens_max;
  for_each_revoked([&](SequenceSlot& slot) {
    if (fits) {
      counters.hit_tokens -= slot.partial_tokens;
      counters.partial_hit_tokens -= slot.partial_tokens;
      slot.partial_tokens = 0;
    } else {
      slot.partial_pin = tree->pin_run(slot.revoked_run);
      slot.computed_tokens += slot.partial_tokens;
    }
    slot.revoked_run = RunId::none();
  });
  return fits;
}

void Cache::Impl::make_room(std::uint32_t page_count) {
  if (page_count > pool.free_count()) evict(page_count - pool.free_count());
}

void Cache::Impl::plan_entry(std::uint32_t index, std::span<const PageId> new_pages) {
  SequenceSlot& slot = sequences[index];
  const std::span<PageId> row = sequences.page_row(index);
  std::ranges::copy(new_pages, row.begin() + slot.page_count);
  slot.page_count += slot.planned_pages;
  if (slot.partial_tokens > 0) {
    step.copies.push_back({.source = slot.partial_page,
                           .target = row[slot.computed_tokens / page_tokens],
                           .token_count = slot.partial_tokens});
  }

  const bool runs_again = slot.planned_tokens == 0;
  const std::uint32_t token_count = runs_again ? 1 : slot.planned_tokens;
  const std::uint32_t position = runs_again ? slot.computed_tokens - 1 : slot.computed_tokens;
  const std::uint32_t context_tokens = slot.computed_tokens + slot.planned_tokens;
  const std::size_t first_slot = step.append_slots.size();
  if (runs_again) {
    step.append_slots.push_back(kNoSlot);
  } else {
    for (std::uint32_t at = position; at < context_tokens;) {
      const std::uint32_t place = at % page_tokens;
      const std::uint32_t end = at + std::min(context_tokens - at, page_tokens - place);
      std::int64_t slot_in_pool = (std::int64_t{row[at / page_tokens].value} * page_tokens) + place;
      for (; at < end; ++at) step.append_slots.push_back(slot_in_pool++);
    }
  }
  step.entries.push_back({.sequence = {index, slot.generation},
                          .position = position,
                          .token_count = token_count,
                          .context_tokens = context_tokens,
                          .last_page_tokens = ((context_tokens - 1) % page_tokens) + 1,
                          .tokens = sequences.token_row(index).subspan(position, token_count),
                          .pages = row.first(slot.page_count),
                          .append_slots = std::span(step.append_slots).subspan(first_slot)});
}

Status Cache::Impl::check_in_flight(const Step& asked) const {
  if (step.is_planned && asked.number == step.number) return {};
  return fail(ErrorCode::InvalidArgument, "step " + std::to_string(asked.number) + " is not in flight");
}

Status Cache::apply_copies(const Step& step) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (impl.config.device.memory != DeviceMemory::Host) {
    return fail(ErrorCode::Unsupported,
                "apply_copies: the pool's memory is not quire's own; apply plan.copies where the memory is");
  }
  QUIRE_TRY(impl.check_in_flight(step));
  for (const PageCopy& copy : impl.step.copies) copy_page_part_on_host(impl.geometry, impl.memory, copy);
  return {};
}

Status Cache::finish_step(const Step& step, std::span<const StepResult> results) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.check_in_flight(step));
  const std::span<const AttentionPlanEntry> entries = impl.step.entries;
  if (results.size() != entries.size()) {
    return fail(ErrorCode::InvalidArgument, "the step has " + std::to_string(entries.size()) + " entries, but " +
                                                std::to_string(results.size()) + " results were given");
  }
  for (std::size_t i = 0; i < results.size(); ++i) {
    const SequenceSlot& slot = impl.sequences[entries[i].sequence.index];
    if (results[i].tokens.empty()) continue;
    const auto bad = [i](const std::string& what) {
      return fail(ErrorCode::InvalidArgument, "result " + std::to_string(i) + ": " + what);
    };
    if (slot.computed_tokens + slot.planned_tokens < slot.token_count) {
      return bad("new tokens for a sequence whose known ones are not all computed; they come after its last step");
    }
    if (const Status status = impl.check_new_tokens(slot, results[i].tokens); !status) {
      return bad(status.error().message);
    }
  }

  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::uint32_t index = entries[i].sequence.index;
    SequenceSlot& slot = impl.sequences[index];
    slot.has_run = true;
    slot.computed_tokens += slot.planned_tokens;
    slot.partial_tokens = 0;  // the copy has been applied
    slot.partial_pin.reset();
    impl.counters.computed_tokens += entries[i].token_count;
    impl.settle(index);
    impl.add_tokens(index, results[i].tokens);
  }
  impl.end_step();
  return {};
}

// Pages that have become full: into the tree as far as the sequence publishes, private beyond.
void Cache::Impl::settle(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  const std::uint32_t full_pages = slot.computed_tokens / page_tokens;
  const std::uint32_t public_pages =
      std::max(slot.shared_pages, std::min(slot.computed_tokens, slot.publish_tokens_max) / page_tokens);
  const std::span<PageId> row = sequences.page_row(index);
  if (public_pages > slot.shared_pages) {
    const std::span<PageId> pages = row.subspan(slot.shared_pages, public_pages - slot.shared_pages);
    const std::uint32_t known = tree->insert(slot.pin, sequences.key(index, public_pages * page_tokens), pages,
                                             step.page_scratch, {.retention = retention_of(slot)});
    // The row now names the tree's pages; those computed in vain go back.
    pool.release(std::span(step.page_scratch).first(known));
    pool.seal(pages.subspan(known));
    counters.duplicate_page_total += known;
    counters.sealed_page_total += pages.size() - known;
    slot.shared_pages = public_pages;
    slot.settled_pages = public_pages;
  }
  if (full_pages > slot.settled_pages) {
    pool.make_private(row.subspan(slot.settled_pages, full_pages - slot.settled_pages));
    slot.settled_pages = full_pages;
  }
}

Status Cache::abort_step(const Step& step) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.check_in_flight(step));
  for (const AttentionPlanEntry& entry : impl.step.entries) {
    SequenceSlot& slot = impl.sequences[entry.sequence.index];
    slot.page_count -= slot.planned_pages;
    impl.pool.release(impl.sequences.page_row(entry.sequence.index).subspan(slot.page_count, slot.planned_pages));
  }
  ++impl.counters.aborted_step_count;
  impl.end_step();
  return {};
}

void Cache::Impl::end_step() {
  step.is_planned = false;
  for (const AttentionPlanEntry& entry : step.entries) {
    SequenceSlot& slot = sequences[entry.sequence.index];
    clear_plan(slot);
    if (slot.is_dropped) end_sequence(entry.sequence.index);
  }
}

Status Cache::append(const Sequence& sequence, const Prompt& added) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "append"));
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  SequenceSlot& slot = impl.sequences[index];
  if (slot.is_planned) {
    return fail(ErrorCode::Unavailable, "this sequence is part of step " + std::to_string(impl.step.number) +
                                            ": give its new tokens to finish_step");
  }
  QUIRE_TRY(impl.check_new_tokens(slot, added.tokens));
  const std::size_t token_count = slot.token_count + added.tokens.size();
  QUIRE_TRY(impl.check_extra_keys(added.extra_keys, {slot.token_count, static_cast<std::uint32_t>(token_count)}));
  if (slot.extra_key_count + added.extra_keys.size() > impl.config.extra_key_count_max) {
    return fail(ErrorCode::InvalidArgument,
                "the sequence would have " + with_separators(slot.extra_key_count + added.extra_keys.size()) +
                    " extra keys; extra_key_count_max is " + with_separators(impl.config.extra_key_count_max));
  }
  impl.add_tokens(index, added.tokens);
  std::ranges::copy(added.extra_keys, impl.sequences.extra_key_row(index).begin() + slot.extra_key_count);
  slot.extra_key_count += static_cast<std::uint32_t>(added.extra_keys.size());
  return {};
}

Status Cache::Impl::check_new_tokens(const SequenceSlot& slot, std::span<const TokenId> tokens) const {
  if (slot.token_count + tokens.size() > context_tokens_max) {
    return fail(ErrorCode::InvalidArgument, "with " + with_separators(tokens.size()) + " new tokens the sequence has " +
                                                with_separators(slot.token_count + tokens.size()) +
                                                "; context_tokens_max is " + with_separators(context_tokens_max));
  }
  return check_tokens(tokens, slot.token_count);
}

void Cache::Impl::add_tokens(std::uint32_t index, std::span<const TokenId> tokens) {
  std::ranges::copy(tokens, sequences.token_row(index).begin() + sequences[index].token_count);
  sequences[index].token_count += static_cast<std::uint32_t>(tokens.size());
}

Status Cache::end(Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  if (impl.sequences[index].is_planned) {
    return fail(ErrorCode::Unavailable, "this sequence is part of step " + std::to_string(impl.step.number) +
                                            "; finish or abort the step first");
  }
  impl.end_sequence(index);
  sequence.queue_.reset();
  sequence.id_ = {};
  return {};
}

void Cache::Impl::end_sequence(std::uint32_t index) {
  const SequenceSlot& slot = sequences[index];
  const std::uint32_t space = slot.key_space;
  if (slot.state == SequenceSlot::State::Running) {
    pool.release(sequences.page_row(index).subspan(slot.shared_pages, slot.page_count - slot.shared_pages));
  }
  sequences.remove(index);
  --key_spaces[space].user_count;
  if (key_spaces[space].is_retired) {
    counters.dropped_page_total += drop_pages(key_spaces[space].root, ResidencyCause::Dropped);
    if (key_spaces[space].user_count == 0) release_key_space(space);
  }
}

}  // namespace quire
