// SPDX-License-Identifier: Apache-2.0
//
// Cache: the life of a sequence, from begin to end.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Result<std::span<TokenId>> Cache::prompt_buffer() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "prompt_buffer"));
  const std::span<TokenId> row = impl.sequences.next_token_row();
  return row.first(std::min<std::size_t>(row.size(), impl.context_tokens_max));
}

Result<Sequence> Cache::begin(KeySpaceId key_space, const Prompt& prompt, const SequenceOptions& options) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "begin"));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(prompt));
  QUIRE_TRY(Impl::check_ttl(options.ttl_ns));
  if (options.publish > Publish::None || options.prefetch > Prefetch::Timeout || options.tier_max > Tier::Remote) {
    return invalid(
        "publish, prefetch or tier_max has a value that is none of its own: ", plain(static_cast<int>(options.publish)),
        ", ", plain(static_cast<int>(options.prefetch)), ", ", plain(static_cast<int>(options.tier_max)));
  }
  if (options.load_timeout_ns < 0) {
    return invalid("load_timeout_ns is ", plain(options.load_timeout_ns), ": give a time from 0 on");
  }
  if (options.expected_tokens != 0 && options.expected_tokens < prompt.tokens.size()) {
    return invalid("expected_tokens is ", options.expected_tokens, ", less than the prompt of ", prompt.tokens.size(),
                   " tokens; count prompt and output together");
  }
  if (options.expected_tokens > impl.context_tokens_max) {
    return invalid("expected_tokens is ", options.expected_tokens, "; context_tokens_max is ", impl.context_tokens_max);
  }
  QUIRE_TRY_ASSIGN(const PrefixTree::Match match, impl.match(space, prompt, options));
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.add_sequence(space));

  const auto token_count = static_cast<std::uint32_t>(prompt.tokens.size());
  SequenceSlot& slot = impl.sequences[index];
  impl.sequences.set_state(index, SequenceSlot::State::Waiting);
  slot.token_count = token_count;
  slot.prompt_tokens = token_count;
  slot.options = {.match_tokens_max = options.match_tokens_max.value_or(UINT32_MAX),
                  .may_use_cache = options.use_cache,
                  .allows_inexact = options.allow_inexact_replay,
                  .publish = options.publish,
                  .priority = options.priority,
                  .ttl_ns = options.ttl_ns.value_or(INT64_MAX)};
  slot.admit_options = {.expected_tokens = options.expected_tokens,
                        .prefetch = options.prefetch,
                        .tier_max = options.tier_max,
                        .plan_while_loading = options.plan_while_loading,
                        .load_timeout_ns = options.load_timeout_ns};
  slot.extra_key_count = static_cast<std::uint32_t>(prompt.extra_keys.size());
  // The caller may have written the tokens to prompt_buffer(): to this row or, if a sequence has ended since, to
  // another free row.
  TokenId* row = impl.sequences.token_row(index).data();
  if (prompt.tokens.data() != row) std::memmove(row, prompt.tokens.data(), prompt.tokens.size_bytes());
  std::ranges::copy(prompt.extra_keys, impl.sequences.extra_key_row(index).begin());
  if (impl.has_host() && options.prefetch != Prefetch::Off) impl.tiers->arrivals.prefetch(index, match);
  slot.soft_pin = impl.tree->soft_pin(impl.tiers->paths.match_of(index));
  impl.key_spaces.touch(space);
  ++impl.counters.begun_sequence_count;
  return Sequence(impl.release_queue, {index, slot.generation});
}

Result<std::uint32_t> Cache::Impl::add_sequence(std::uint32_t key_space) {
  const std::optional<std::uint32_t> index = sequences.try_add();
  if (!index) {
    return unavailable("all ", sequences.capacity(), " sequences are live; end one, or raise sequence_count_max");
  }
  QUIRE_CHECK(!sequences[*index].pin && !sequences[*index].tail, "a free slot holds pages");
  sequences[*index].key_space = key_space;
  tiers->parts.arrivals[*index] = {};
  tiers->parts.use_key_space(key_space);
  return *index;
}

Result<std::uint32_t> Cache::Impl::find_sequence(const Sequence& sequence) const {
  if (sequence.queue_ == release_queue) {
    if (const auto index = sequences.find(sequence.id())) return *index;
  }
  if (sequence) return invalid(name_of(sequence.id().index), " belongs to another cache");
  if (sequence.id() == SequenceId{}) return invalid("the handle is empty: begin() gives one");
  return invalid(name_of(sequence.id().index), " has ended");
}

const char* Cache::Impl::not_running(const SequenceSlot& slot) {
  if (slot.is_lost) return " has a step in flight whose pages did not arrive; finish or abort it first";
  if (slot.state == SequenceSlot::State::RunningAhead) return " has pages that are still arriving; apply() hears of it";
  if (slot.is_loading()) return " is loading; apply() tells when it is ready";
  return slot.is_preempted ? " is preempted; resume it first" : " is waiting; admit it first";
}

std::string Cache::Impl::rebuilding(const SequenceSlot& slot) {
  return "is being rebuilt up to its token " + with_separators(slot.replay_end) + "; compute those first";
}

// Refuses a sequence that is not running, that receives, or that has steps in flight or undecided tree tokens.
Result<std::uint32_t> Cache::Impl::find_quiet(const Sequence& sequence, const char* call) const {
  QUIRE_TRY(require(DevicePool::Owned, call));
  QUIRE_TRY_ASSIGN(const std::uint32_t index, find_sequence(sequence));
  const SequenceSlot& slot = sequences[index];
  const Refusal refused{call, index};
  if (slot.state != SequenceSlot::State::Running) return refused.invalid(not_running(slot));
  if (slot.receive) return refused.unavailable(" is receiving tokens; finish_receive or abort_receive comes first");
  if (slot.steps_in_flight > 0) {
    return refused.unavailable(" is part of ", plain(slot.steps_in_flight),
                               " steps in flight; finish or abort them first");
  }
  if (slot.tree_count > 0) {
    return refused.unavailable(" has ", plain(slot.tree_count), " undecided tree tokens; commit_tree decides");
  }
  return index;
}

Result<Admission> Cache::admit(const Sequence& sequence, ReadyCallback callback) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  const SequenceSlot& slot = impl.sequences[index];
  if (slot.is_preempted) return invalid(Impl::name_of(index), " is preempted: resume() continues it");
  if (slot.state != SequenceSlot::State::Waiting) return invalid(Impl::name_of(index), " was admitted before");
  QUIRE_TRY(impl.require_awake("admit"));
  QUIRE_TRY(impl.check_state_slot({"admit", index}));
  QUIRE_TRY(impl.check_expected(index));
  QUIRE_TRY_ASSIGN(const Admission admission, impl.start_admitted(index));
  impl.tell_when_ready(index, admission.is_ready, std::move(callback));
  return admission;
}

// Device pages that an admitted sequence has, pages in loads that it waits for included.
std::uint32_t Cache::Impl::granted_pages(std::uint32_t index) const {
  const SequenceSlot& slot = sequences[index];
  if (slot.has_row()) return held_page_count(index);
  std::uint32_t granted = 0;
  for (RunId run = slot.pin.run(); !tree->parent(run).is_none(); run = tree->parent(run)) {
    const bool is_missing = tree->is_on_host(run) && tree->load_of(run) == 0;
    if (!is_missing) granted += static_cast<std::uint32_t>(tree->pages(run).size());
  }
  return granted;
}

// Whether the pages that a waiting sequence expects fit beside those that admitted sequences still expect.
Status Cache::Impl::check_expected(std::uint32_t index) {
  const SequenceSlot& slot = sequences[index];
  if (slot.admit_options.expected_tokens == 0) return {};
  std::uint64_t promised = 0;
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    const SequenceSlot& other = sequences[i];
    const bool is_admitted = other.state == SequenceSlot::State::Running || other.is_loading();
    if (!is_admitted || other.is_dropped || other.admit_options.expected_tokens == 0) continue;
    const std::uint32_t granted = granted_pages(i);
    promised += std::max(expected_pages(other), granted) - granted;
  }
  PrefixTree::Match match = tiers->paths.match_of(index);
  const auto needed = [&] { return std::max(expected_pages(slot), match.page_count) - match.page_count; };
  const HistoryPages& pages = tiers->parts.history;
  if (pages.writes_back() && needed() + promised > pages.available_besides(match)) {
    tiers->stores.make_clean(
        static_cast<std::uint32_t>(std::min<std::uint64_t>(needed() + promised, pool_page_count())), match);
    tiers->parts.hand_over();
    match = tiers->paths.match_of(index);
  }
  const std::uint64_t available = pages.available_besides(match);
  if (needed() + promised <= available) return {};
  return unavailable(name_of(index), " expects ", slot.admit_options.expected_tokens, " tokens, which need ", needed(),
                     " pages more; ", available, " are free or can be evicted, and admitted sequences expect ",
                     promised, " of them");
}

// A window that slides needs up to two pages more than its tokens fill: it enters a page before it has left another.
std::uint32_t Cache::Impl::expected_pages(const SequenceSlot& slot) const {
  const std::uint64_t held = std::uint64_t{slot.window_tokens()} + config.window_rewind_tokens;
  const std::uint32_t expected = slot.admit_options.expected_tokens;
  return expected > held ? pages_for(held) + 2 : pages_for(expected);
}

Result<Admission> Cache::Impl::start_admitted(std::uint32_t index) {
  QUIRE_CHECK(sequences[index].state == SequenceSlot::State::Waiting, "a sequence is admitted twice");
  sequences[index].skips_partial = false;
  QUIRE_TRY_ASSIGN(const std::optional<WaitingAdmission> waiting, tiers->arrivals.start(index));
  if (!waiting) {
    const PrefixTree::Pin found = std::move(sequences[index].pin);  // keeps the path until start_running() pins it
    return start_running(index);
  }
  take_state_slot(index);  // behind start(): a call that fails changes nothing
  const bool is_ready = tiers->arrivals.try_run_ahead(index);
  const Hit& on_device = waiting->on_device;
  return Admission{
      .matched_tokens = on_device.tokens,
      .replay_tokens = on_device.replay_tokens,
      .loading_tokens = waiting->in_memory.start() - std::min(waiting->in_memory.start(), on_device.start()),
      .is_ready = is_ready,
      .miss = waiting->miss};
}

// The sequence runs with what the device has of its tokens.
Admission Cache::Impl::start_running(std::uint32_t index, bool is_again) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(!slot.tail && slot.page_count == 0 && slot.steps_in_flight == 0, "a sequence starts with old pages");
  sequences.set_state(index, SequenceSlot::State::Running);
  PrefixTree::Match match = tiers->paths.match_of(index);
  // Where a hit begins, windows hold what comes next, but perhaps not all that a receiver waits for.
  if (!groups.empty() && slot.send) match = tree->cut(match, 0);
  Miss miss = tiers->paths.find_miss(index, match);
  Hit hit;
  if (!groups.empty()) {
    hit = tiers->paths.find_hit(match,
                                {.token_count = slot.token_count,
                                 .allows_inexact = slot.options.allows_inexact,
                                 .allows_partial = !slot.skips_partial},
                                HitScope::Device);
    note_junction(slot, tiers->paths.tokens_in(match) + match.partial_tokens, hit);
    miss = find_group_miss(index, match, hit, miss);
    match = tree->cut(match, hit.tokens);
  }

  const std::uint32_t tail_tokens = tiers->paths.usable_partial(match);
  tree->copy_pages(match, 0, sequences.page_row(index));
  if (tail_tokens > 0) {
    const PageId source = tree->partial_page(match);
    PrefixTree::PinnedMatch pinned = tree->pin_with_partial(match, retention_of(slot));
    slot.pin = std::move(pinned.path);
    slot.tail = {.tokens = tail_tokens,
                 .column = match.page_count,
                 .source = source,
                 .is_hit = true,
                 .pin = std::move(pinned.partial)};
  } else {
    slot.pin = tree->pin(match, retention_of(slot));
  }
  start_row(index, {.page_count = match.page_count, .tail_tokens = tail_tokens, .hit = hit});
  list_cached_sends(index);  // after a preemption: others may have computed tokens that this one is to send
  if (!is_again) count_admission(index, hit, miss);
  return {.matched_tokens = slot.computed_tokens + hit.replay_tokens,
          .replay_tokens = hit.replay_tokens,
          .partial_tokens = tail_tokens,
          .loading_tokens = 0,
          .miss = miss};
}

// Where the history goes on behind a hit, the sequence leaves a snapshot where it ends, for later requests that begin
// the same.
void Cache::Impl::note_junction(SequenceSlot& slot, std::uint32_t history_tokens, const Hit& hit) const {
  slot.junction.reset();
  const std::uint32_t junction = history_tokens / checkpoint_grid * checkpoint_grid;
  if (!groups.empty() && junction > hit.tokens) slot.junction = junction;
}

// The history's pages are in the sequence's row: the sequence takes what it needs of other groups, and may be planned.
void Cache::Impl::start_row(std::uint32_t index, const RowStart& start) {
  SequenceSlot& slot = sequences[index];
  const Hit& hit = start.hit;
  slot.soft_pin.reset();
  slot.is_preempted = false;
  slot.shared_pages = start.page_count;
  slot.settled_pages = start.page_count;
  slot.page_count = start.page_count;
  slot.changed_column = 0;
  slot.computed_tokens = (start.page_count * page_tokens) + start.tail_tokens;
  slot.replay_end = 0;
  slot.is_inexact = false;
  if (groups.empty()) slot.junction.reset();
  if (!groups.empty()) {
    slot.replay_end = hit.replay_tokens > 0 ? hit.tokens : 0;
    slot.is_inexact = !hit.is_exact;
    QUIRE_CHECK(slot.computed_tokens == hit.tokens, "the pages of a hit are not those that it was cut to");
    slot.computed_tokens -= hit.replay_tokens;
    take_windows(index, hit, slot.tail ? slot.tail->source : kNullPage);
    start_state(index, hit);
  }
  QUIRE_CHECK(slot.computed_tokens <= slot.token_count, "a hit is longer than its prompt");
  slot.planned_end = slot.computed_tokens;
}

// Why a sequence has to compute, where windows and states too decide how far a hit goes.
Miss Cache::Impl::find_group_miss(std::uint32_t index, const PrefixTree::Match& match, const Hit& hit, Miss miss) {
  const SequenceSlot& slot = sequences[index];
  const Arrival& arrival = tiers->parts.arrivals[index];
  const auto not_held = [this](std::uint32_t group) {
    return Miss{.reason = MissReason::NotHeld, .group = groups[group].memory.group_index};
  };
  const bool has_waited_in_vain = arrival.load_miss != MissReason::None || arrival.lower_miss != MissReason::None;
  const std::uint32_t device_tokens = tiers->paths.tokens_in(match);
  if (hit.limiting_group != Hit::kNoGroup && hit.tokens < device_tokens) {
    if (arrival.load_miss != MissReason::None) return {.reason = arrival.load_miss};
    return not_held(hit.limiting_group);
  }
  if (miss.reason == MissReason::LoadFailed && arrival.load_miss == MissReason::None && match.host_page_count > 0) {
    // Perhaps nothing was loaded because even the host's pages would not let the sequence go on from a later token.
    const Hit anywhere = tiers->paths.hit_of(slot, match, HitScope::DeviceAndHost);
    const std::uint32_t path_tokens = device_tokens + (match.host_page_count * page_tokens);
    const std::uint32_t last = std::min(path_tokens, slot.token_count - (has_state() ? 1 : 0));
    const bool is_limited = last - (last % tiers->paths.limits().boundary_tokens) > hit.start();
    const bool is_no_better = anywhere.start() <= hit.start();
    if (is_limited && anywhere.limiting_group != Hit::kNoGroup && is_no_better)
      return not_held(anywhere.limiting_group);
    if (anywhere.limiting_group == Hit::kNoGroup && is_no_better && path_tokens + page_tokens > slot.token_count) {
      miss = {};  // nothing is missing: a state computes what follows the last boundary anyway
    }
  }
  // A lower tier has more of the path, but a group that has less there limits the hit, so the rest was not read.
  if (arrival.limiting_group != Hit::kNoGroup && !has_waited_in_vain) return not_held(arrival.limiting_group);
  return miss;
}

void Cache::Impl::count_admission(std::uint32_t index, const Hit& hit, const Miss& miss) {
  SequenceSlot& slot = sequences[index];
  ++counters.admitted_sequence_count;
  counters.prompt_tokens += slot.token_count;
  counters.hit_tokens += slot.computed_tokens;
  counters.partial_hit_tokens += slot.tail ? slot.tail->tokens : 0;
  slot.miss = miss;
  const auto reason = static_cast<std::size_t>(miss.reason);
  ++counters.miss_requests[reason];
  counters.miss_tokens[reason] += slot.token_count - slot.computed_tokens;
  if (!has_host()) return;
  Arrival& arrival = tiers->parts.arrivals[index];
  // Only whole pages come from other tiers: a partial page was on the device.
  const std::uint32_t reached =
      groups.empty() ? slot.shared_pages * page_tokens : hit.start() / page_tokens * page_tokens;
  const std::uint32_t host_end = std::min(reached, arrival.lower_from.value_or(UINT32_MAX));
  arrival.remote_tokens = std::min(arrival.remote_gain, reached - host_end);
  arrival.disk_tokens = std::min(arrival.disk_gain, reached - host_end - arrival.remote_tokens);
  // Everything else that came while the sequence waited counts as the host's, also what others computed meanwhile.
  const std::uint32_t waited_for = reached - std::min(host_end, arrival.host_from.value_or(UINT32_MAX));
  arrival.host_tokens = waited_for - arrival.disk_tokens - arrival.remote_tokens;
  counters.host_hit_tokens += arrival.host_tokens;
  counters.disk_hit_tokens += arrival.disk_tokens;
  counters.remote_hit_tokens += arrival.remote_tokens;
  tiers->stores.want_copies_of_path(slot.pin);
  if (has_lower()) tiers->lower_stores.prefer(slot.pin);
}

Result<SequenceView> Cache::view(const Sequence& sequence) const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  const SequenceSlot& slot = impl.sequences[index];
  const Arrival& arrival = impl.tiers->parts.arrivals[index];
  const bool is_waiting = slot.is_waiting();
  const bool is_loading = slot.is_loading();
  SequenceView view;
  view.is_waiting = is_waiting;
  view.is_ready = slot.is_ready() && !slot.receive;
  view.is_planned = slot.steps_in_flight > 0;
  view.is_loading = is_loading;
  view.is_receiving = slot.receive.has_value();
  view.token_count = slot.token_count;
  view.computed_tokens = slot.computed_tokens;
  view.host_tokens = arrival.host_tokens;
  view.disk_tokens = arrival.disk_tokens;
  view.remote_tokens = arrival.remote_tokens;
  view.pending_tokens = impl.pending_tokens(slot);
  view.tree_tokens = slot.tree_count;
  view.steps_in_flight = slot.steps_in_flight;
  view.window = {.visible_tokens = slot.window ? slot.window->tokens : 0, .sink_tokens = slot.sink_tokens()};
  view.state_slot = slot.state_slot ? slot.state_slot->index : index;
  view.next_checkpoint = impl.next_checkpoint(slot, slot.planned_end);
  view.replay_tokens = slot.replay_end - std::min(slot.replay_end, slot.computed_tokens);
  view.miss = slot.miss;
  const bool has_pages = !is_waiting && (!is_loading || slot.state == SequenceSlot::State::RunningAhead);
  view.pages_ = impl.sequences.page_row(index).first(has_pages ? slot.page_count : 0);
  return view;
}

Status Cache::append(const Sequence& sequence, const Prompt& added) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::Owned, "append"));
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  SequenceSlot& slot = impl.sequences[index];
  const Refusal refused{"append", index};
  if (slot.steps_in_flight > 0) {
    return refused.unavailable(" is part of a step in flight: give its new tokens to finish_step");
  }
  if (slot.tree_count > 0) return refused.unavailable(" has undecided tree tokens; commit_tree decides");
  QUIRE_TRY(impl.check_new_tokens(slot, added.tokens));
  const std::size_t token_count = slot.token_count + added.tokens.size();
  QUIRE_TRY(impl.check_extra_keys(added.extra_keys, {slot.token_count, static_cast<std::uint32_t>(token_count)}));
  if (slot.extra_key_count + added.extra_keys.size() > impl.config.extra_key_count_max) {
    return invalid("the sequence would have ", slot.extra_key_count + added.extra_keys.size(),
                   " extra keys; extra_key_count_max is ", impl.config.extra_key_count_max);
  }
  impl.add_tokens(index, added.tokens);
  std::ranges::copy(added.extra_keys, impl.sequences.extra_key_row(index).begin() + slot.extra_key_count);
  slot.extra_key_count += static_cast<std::uint32_t>(added.extra_keys.size());
  return {};
}

Status Cache::Impl::check_new_tokens(const SequenceSlot& slot, std::span<const TokenId> tokens) const {
  if (slot.token_count + tokens.size() > context_tokens_max) {
    return invalid("with ", tokens.size(), " new tokens the sequence has ", slot.token_count + tokens.size(),
                   "; context_tokens_max is ", context_tokens_max);
  }
  return check_tokens(tokens, slot.token_count);
}

void Cache::Impl::add_tokens(std::uint32_t index, std::span<const TokenId> tokens) {
  QUIRE_CHECK(sequences[index].token_count + tokens.size() <= context_tokens_max, "tokens go beyond their row");
  std::ranges::copy(tokens, sequences.token_row(index).begin() + sequences[index].token_count);
  sequences[index].token_count += static_cast<std::uint32_t>(tokens.size());
}

Status Cache::end(Sequence& sequence, std::optional<Publish> publish) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  if (publish) {
    impl.sequences[index].options.publish = *publish;
    impl.sequences[index].publishes_at_end = true;
  }
  impl.drop_sequence(index);
  sequence.queue_.reset();
  impl.tiers->work_in_background();
  return {};
}

// Steps in flight may read the sequence's pages, so it ends when they are over.
void Cache::Impl::drop_sequence(std::uint32_t index) {
  QUIRE_CHECK(!sequences[index].is_dropped, "a sequence is dropped twice");
  sequences[index].is_dropped = true;
  ready_callbacks[index] = nullptr;
  if (sequences[index].steps_in_flight == 0) end_sequence(index);
}

void Cache::Impl::end_sequence(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(slot.steps_in_flight == 0, "a step may read the pages of a sequence that ends");
  const std::uint32_t space = slot.key_space;
  const bool was_arriving = slot.is_arriving();
  if (slot.state == SequenceSlot::State::Running) {
    if (slot.publishes_at_end) publish_rest(index);
    release_pages(index);
  }
  if (slot.state == SequenceSlot::State::RunningAhead) give_up_ahead(index);
  if (slot.state == SequenceSlot::State::Saving) tiers->saves.abandon_saving(index);
  if (slot.state == SequenceSlot::State::Restoring) {
    tiers->saves.abandon_restoring(
        index, [&](const PageHome& home, std::uint32_t place) { row_in(home, index)[place] = kNullPage; });
  }
  if (slot.state == SequenceSlot::State::Saving || slot.state == SequenceSlot::State::Restoring) release_pages(index);
  if (slot.state == SequenceSlot::State::Holding) release_matched(index);
  if (!groups.empty()) release_state(index);  // sequences that were loading, or are saved, have a state slot too
  if (has_host()) tiers->saves.release(index);
  sequences.remove(index);
  tiers->parts.leave_key_space(space);
  if (was_arriving) tiers->arrivals.cancel_unneeded();
}

// For end() with a Publish: private pages go into the tree as if they had become full just now, up to the first that is
// missing or that a fork has too. Pages behind are given back.
void Cache::Impl::publish_rest(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  const std::span<PageId> row = sequences.page_row(index);
  std::uint32_t end = slot.shared_pages;
  while (end < slot.settled_pages && row[end] != kNullPage && !history->device.is_shared(row[end]))
    history->device.reopen(row[end++]);
  drop_tails(index);
  give_back_rows(index, end);
  slot.computed_tokens = std::min(slot.computed_tokens, end * page_tokens);
  slot.settled_pages = slot.shared_pages;
  // A hole behind the published pages does not matter.
  if (slot.window && slot.window->hole_begin >= end) slot.window->hole_end = slot.window->hole_begin;
  settle(index);
}

// Gives back everything that a sequence holds; its state slot, and what resume() needs, only without `keeps_state`.
void Cache::Impl::release_pages(std::uint32_t index, KeepState keeps_state) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(slot.steps_in_flight == 0, "a step may read pages that are given back");
  planner.forget_row(index);
  drop_tails(index);
  release_windows(index, keeps_state);
  if (keeps_state == KeepState::No) release_state(index);
  give_back_row(index, slot.shared_pages);
  slot.pin.reset();
  slot.shared_pages = 0;
  slot.settled_pages = 0;
  slot.page_count = 0;
  if (slot.window && keeps_state == KeepState::No) slot.window->hole_begin = slot.window->hole_end = 0;
}

void Cache::Impl::drop_tail(SequenceSlot& slot) {
  if (!slot.tail) return;
  QUIRE_CHECK(slot.tail->tokens > 0 && slot.tail->tokens < page_tokens, "a tail is empty, or a whole page");
  if (!slot.tail->pin && history->device.is_shared(slot.tail->source)) {
    history->device.unshare(slot.tail->source);  // the other owner keeps the page, and may write it
  } else if (!slot.tail->pin) {
    history->give_back(slot.tail->source);
  }
  slot.tail.reset();
}

// The tails of the history and of all window groups.
void Cache::Impl::drop_tails(std::uint32_t index) {
  drop_tail(sequences[index]);
  drop_window_tails(index);
}

Status Cache::stop_loading(const Sequence& sequence) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.find_sequence(sequence));
  const Refusal refused{"stop_loading", index};
  if (impl.sequences[index].state == SequenceSlot::State::Restoring) {
    return refused.unsupported(" was saved, and is brought back as a whole; end it to stop that");
  }
  if (!impl.sequences[index].is_arriving()) return refused.invalid(" is not loading");
  impl.tiers->arrivals.stop(index, MissReason::LoadCancelled);
  impl.tiers->work_in_background();
  impl.call_ready({index, impl.sequences[index].generation});
  return {};
}

}  // namespace quire
