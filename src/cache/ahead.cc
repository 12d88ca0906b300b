// SPDX-License-Identifier: Apache-2.0
//
// Cache: sequences that run ahead, on pages that are still on their way from the host. Such a sequence has the pages
// that loads fill in its rows, and may be planned. Its loads decide what becomes of that: when all have brought good
// pages, the sequence is Running and its steps can finish; when one has not, its steps in flight are lost, and the
// sequence starts anew with what has come.
//
//     Loading ── all loads are on their way ──► RunningAhead ── all have arrived ──► Running
//        ▲                                        │      │
//        └── the engine takes its step back ──────┘      └── one failed: lost, until its steps have ended ──► Running
//
// Until a load has arrived, its pages are the load's: rows name them without owning or pinning them.
#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/mutants.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

// Rows

void Cache::Impl::run_ahead(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(slot.state == SequenceSlot::State::Loading && slot.page_count == 0, "a sequence runs ahead twice");
  TierParts& parts = tiers->parts;
  const Arrival& arrival = parts.arrivals[index];
  sequences.set_state(index, SequenceSlot::State::RunningAhead);
  const PrefixTree::Match match = tiers->paths.match_of(index);
  const std::uint32_t page_count = tree->end_page(slot.pin.run());
  const Hit hit = groups.empty() ? Hit{.tokens = page_count * page_tokens} : arrival.anchored->hit;
  const std::span<PageId> row = sequences.page_row(index);
  tree->copy_path(slot.pin, 0, row.first(page_count));
  for (RunId run = slot.pin.run(); tree->is_on_host(run); run = tree->parent(run)) {
    const std::uint32_t load = tree->load_of(run) - 1;
    read_ahead(index, load);
    // Of a load that goes on along another path, only the pages of this one.
    const std::uint32_t end = tree->end_page(run);
    const std::uint32_t first = end - static_cast<std::uint32_t>(tree->pages(run).size());
    const std::span<const PageTransfer> pages = parts.book.pages(load);
    QUIRE_CHECK(first >= pages.front().place && end <= pages.back().place + 1, "a load does not bring all of a run");
    for (std::uint32_t column = first; column < end; ++column) {
      const std::uint32_t begin = is_mutated(Mutant::OtherPathsOfLoads) ? first : pages.front().place;
      row[column] = pages[column - begin].device_page;
    }
  }
  note_junction(slot, (match.page_count + match.host_page_count) * page_tokens, hit);
  start_row(index, {.page_count = page_count, .tail_tokens = 0, .hit = hit});
  if (!groups.empty()) take_pending(index, hit);
}

void Cache::Impl::read_ahead(std::uint32_t index, std::uint32_t load) {
  tiers->parts.ahead.add(index, load);
  tiers->parts.book[load].is_read_ahead = true;
}

// Puts the pages that loads fill of windows and snapshots into the sequence's rows.
void Cache::Impl::take_pending(std::uint32_t index, const Hit& hit) {
  TierParts& parts = tiers->parts;
  const TierPath path = tiers->paths.path_of(sequences[index].pin);
  tiers->paths.for_each_anchored_need(
      hit, sequences[index].token_count, [&](const AnchoredGroup& group, const WindowColumns& columns) {
        GroupRows& rows = groups[group.pool - 1U];
        for_each_column(columns, [&](std::uint32_t column) {
          const NamedPage anchor = path.at(column);
          if (anchor.tier == Tier::Device && group.on_device.has(anchor.page)) return;
          const std::uint32_t load = group.load_at(anchor) - 1;
          read_ahead(index, load);
          const std::span<const PageTransfer> pages = parts.book.pages(load);
          const auto page = std::ranges::find(pages, column, &PageTransfer::place);
          QUIRE_CHECK(page != pages.end(), "a load does not bring the page that it is noted for");
          (rows.is_window() ? rows.row(index)[column] : rows.states[index].restore_page) = page->device_page;
        });
      });
}

// Calls visit(page in the sequence's row, page of the tree in its place, column) for each page of a load of an anchored
// group that the sequence has in its rows and does not hold. The page of the tree is none if there is none.
template <typename Visitor>
void Cache::Impl::for_each_pending(std::uint32_t index, std::uint32_t load, Visitor&& visit) {
  const Transfer& transfer = tiers->parts.book[load];
  GroupRows& rows = groups[transfer.pool - 1U];
  const TierPath path = tiers->paths.path_of(transfer.pin);
  for (const PageTransfer& page : tiers->parts.book.pages(load)) {
    const NamedPage anchor = path.at(page.place);
    const PageId attached = anchor.tier == Tier::Device ? rows.pages().at(anchor.page) : PageId::none();
    const bool is_in_row = rows.is_window() && page.place < rows.slots[index].page_count;
    if (rows.is_window() && !is_in_row) continue;
    PageId& mine = rows.is_window() ? rows.row(index)[page.place] : rows.states[index].restore_page;
    // A page that the load has attached was nobody's before. If somebody else has attached another one, the load keeps
    // its own, and the sequence has one of them.
    const PageId brought = page.device_page.is_none() ? attached : page.device_page;
    if (!mine.is_none() && mine == brought) visit(mine, attached, page.place);
  }
}

void Cache::Impl::take_loaded(std::uint32_t index, std::uint32_t load) {
  const Transfer& transfer = tiers->parts.book[load];
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(slot.state == SequenceSlot::State::RunningAhead, "pages arrive for a sequence that does not run ahead");
  if (transfer.pool > 0) {
    GroupRows& rows = groups[transfer.pool - 1U];
    for_each_pending(index, load, [&](PageId& mine, PageId attached, std::uint32_t column) {
      QUIRE_CHECK(!attached.is_none(), "a page has arrived, and the tree has none");
      if (mine != attached && rows.is_window()) {
        rows.slots[index].changed_column = std::min(rows.slots[index].changed_column, column);
        planner.forget_row(index);
      }
      mine = attached;
      if (rows.is_window()) {
        rows.pages().pin_found(mine);
      } else {
        rows.pages().pin(mine);
      }
    });
    return;
  }
  // Where another sequence has computed a page meanwhile, the tree has that one. Steps in flight read the load's.
  const std::span<PageId> row = sequences.page_row(index);
  const TierPath path = tiers->paths.path_of(slot.pin);
  for (const PageTransfer& page : tiers->parts.book.pages(load)) {
    const bool is_own = page.device_page.is_none() || page.place >= slot.shared_pages;
    if (is_own || row[page.place] != page.device_page) continue;
    row[page.place] = path.pages[page.place];
    slot.changed_column = std::min(slot.changed_column, page.place);
    planner.forget_row(index);
  }
}

void Cache::Impl::lose_loaded(std::uint32_t index, std::uint32_t load) {
  if (tiers->parts.book[load].pool == 0) return;  // rows of the history do not own the pages before shared_pages
  const bool is_window = groups[tiers->parts.book[load].pool - 1U].is_window();
  for_each_pending(index, load, [&](PageId& mine, PageId /*attached*/, std::uint32_t /*column*/) {
    mine = is_window ? kNullPage : PageId::none();
  });
}

// The end of running ahead

// All loads have ended, or one has failed.
void Cache::Impl::end_ahead(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(!slot.is_lost, "a sequence is lost twice");
  if (tiers->parts.arrivals[index].load_miss == MissReason::None || is_mutated(Mutant::TrustsLoads)) {
    land(index);
    return;
  }
  drop_pending(index);
  slot.is_lost = true;
  if (slot.steps_in_flight == 0) leave_ahead(index);
}

// Everything has arrived: the pages in the sequence's rows are the tree's, and pinned.
void Cache::Impl::land(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  const Arrival& arrival = tiers->parts.arrivals[index];
  QUIRE_CHECK(tree->first_host_run(slot.pin).is_none(), "a sequence lands, and its path is not on the device");
  sequences.set_state(index, SequenceSlot::State::Running);
  const Hit hit = groups.empty() ? Hit{} : arrival.anchored->hit;
  const PrefixTree::Match match = tiers->paths.match_of(index);
  const PrefixTree::Match landed = tree->cut_pages(match, slot.shared_pages);
  Miss miss = tiers->paths.find_miss(index, match);
  if (!groups.empty()) miss = find_group_miss(index, match, hit, miss);
  // Counts as a use. A key space that was dropped meanwhile has no match: the sequence keeps the path that it has.
  if (landed.page_count == slot.shared_pages) slot.pin = tree->pin(landed, retention_of(slot));
  count_admission(index, hit, miss);
}

void Cache::Impl::drop_pending(std::uint32_t index) {
  AheadReads& ahead = tiers->parts.ahead;
  ahead.for_each(index, [&](std::uint32_t load) { lose_loaded(index, load); });
  ahead.clear(index);
}

// No step has the sequence any more. A lost one starts anew with what has come; any other one waits again for its
// loads, and runs ahead again if it can.
void Cache::Impl::leave_ahead(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  QUIRE_CHECK(slot.state == SequenceSlot::State::RunningAhead && slot.steps_in_flight == 0, "a sequence runs on");
  give_up_ahead(index);
  sequences.set_state(index, SequenceSlot::State::Loading);
  if (std::exchange(slot.is_lost, false)) {
    const PrefixTree::Pin waited = std::move(slot.pin);  // keeps the path until start_running() has pinned it
    start_running(index);
  } else {
    (void)tiers->arrivals.try_run_ahead(index);
  }
}

// Gives up the rows of a sequence that runs ahead. It keeps its path and its state slot.
void Cache::Impl::give_up_ahead(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  drop_pending(index);
  planner.forget_row(index);
  release_windows(index, KeepState::No);
  for (GroupRows& group : groups) unpin_restored(group, index);
  give_back_row(index, slot.shared_pages);
  slot.shared_pages = slot.settled_pages = slot.page_count = 0;
  slot.computed_tokens = slot.planned_end = slot.replay_end = 0;
}

// Steps

// Lists the loads that a step waits for, each once.
void Cache::Impl::list_loads(StepInFlight& step) {
  step.loads.clear();
  for (const StepPart& part : step.parts) {
    if (sequences[part.index].state != SequenceSlot::State::RunningAhead) continue;
    tiers->parts.ahead.for_each(part.index, [&](std::uint32_t load) {
      const TransferPlan plan = tiers->parts.plan_of(load);
      if (std::ranges::find(step.loads, plan.id, &StepLoad::id) != step.loads.end()) return;
      step.loads.push_back({.id = plan.id, .pool_index = plan.pool_index, .band_count = plan.band_count});
    });
  }
}

// Whether a load that has not arrived fills a page of a group.
bool Cache::Impl::is_filling(std::uint32_t group_index, PageId page) const {
  const GroupRows* const rows = find_anchored(group_index);
  if (rows == nullptr) return false;
  bool is_found = false;
  for_each_loaded(rows->tier->pool, [&](PageId filled) { is_found = is_found || filled == page; });
  return is_found;
}

// The same as apply_moves_and_copies() where a step is aborted, this one or a later one: state slots whose snapshot is
// still arriving are not filled. A step that was aborted never needs them; for any other one the engine applies the
// copies once more, when the snapshots are there.
void Cache::Impl::apply_arrived_copies(StepInFlight& step, bool is_aborted) {
  apply_moves(step);
  if (config.device.memory != DeviceMemory::Host || step.is_applied) return;
  bool has_left_out = false;
  for (const StateCopy& copy : step.plan.state_copies) {
    const bool restores = copy.kind == StateCopyKind::Restore;
    const PageId source{static_cast<std::uint32_t>(copy.source)};
    const bool is_arriving = restores && is_filling(static_cast<std::uint32_t>(copy.group), source);
    has_left_out = has_left_out || is_arriving;
    if (!is_arriving) copy_states({&copy, 1});
  }
  step.is_applied = is_aborted || !has_left_out;
}

// Refuses to fill state slots from snapshots that are still arriving, as far as the cache's own mover can tell.
Status Cache::Impl::check_snapshots_arrived(const StepInFlight& step) const {
  const Mover* const mover = tiers->parts.mover.get();
  for (const StepLoad& load : step.loads) {
    const auto is_of_load = [&](const GroupRows& group) {
      return !group.is_window() && group.has_pages() && group.tier->pages.mover_pool == load.pool_index;
    };
    const auto group = std::ranges::find_if(groups, is_of_load);
    if (group == groups.end() || mover == nullptr) continue;
    QUIRE_TRY_ASSIGN(const TransferOutcome outcome, wait_for(load, load.band_count - 1U, 0));
    if (outcome != TransferOutcome::TimedOut) continue;
    return unavailable("apply_copies: the snapshot of group '", group->group->name, "' that step ", plain(step.number),
                       " fills a state from is still arriving: wait_for_layer() of the group's last layer comes first");
  }
  return {};
}

Result<std::span<const std::uint32_t>> Cache::lost_entries(const Step& step) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t place, impl.find_step(step));
  std::vector<std::uint32_t>& lost = impl.scratch.lost_entries;
  lost.clear();
  const StepInFlight& asked = impl.step_at(place);
  for (std::uint32_t i = 0; i < asked.parts.size(); ++i) {
    const StepPart& part = asked.parts[i];
    if (!part.is_discarded && impl.sequences[part.index].is_lost) lost.push_back(i);
  }
  return std::span<const std::uint32_t>(lost);
}

// Waiting for layers. Called on any thread: reads nothing that changes, but for what the mover and EndedLoads guard.

Cache::Impl::PoolLayer Cache::Impl::find_layer(GroupLayer layer) const {
  std::uint32_t before = 0;
  for (const GroupMemory& memory : history_memory) {
    const std::uint32_t layer_count = memory.geometry->page().layer_count();
    if (memory.group_index == layer.group_index && layer.layer_index < layer_count) {
      return {.pages = history, .layer = before + layer.layer_index};
    }
    before += layer_count;
  }
  const GroupRows* const rows = find_anchored(layer.group_index);
  const bool is_there = rows != nullptr && rows->has_pages() && layer.layer_index < rows->tier->pages.layer_count;
  return is_there ? PoolLayer{.pages = &rows->tier->pages, .layer = layer.layer_index} : PoolLayer{};
}

std::uint32_t Cache::Impl::band_of(const PoolLayer& layer, std::uint32_t band_count) {
  return static_cast<std::uint32_t>(((std::uint64_t{layer.layer} + 1) * band_count - 1) / layer.pages->layer_count);
}

Result<TransferOutcome> Cache::Impl::wait_for(const StepLoad& load, std::uint32_t band, TimeNs timeout_ns) const {
  const TierParts& parts = tiers->parts;
  if (const auto ended = parts.ended_loads.find(load.id)) return *ended;
  Result<TransferOutcome> outcome = parts.mover->wait(load.id, band, timeout_ns);
  if (outcome) return outcome;
  // The mover has forgotten it: apply() has heard of its end by now.
  if (const auto ended = parts.ended_loads.find(load.id)) return *ended;
  return outcome;
}

namespace {

tl::unexpected<Error> no_layer(const char* call, GroupLayer layer) {
  return invalid(call, ": the layout has no paged group ", plain(layer.group_index), " with a layer ",
                 plain(layer.layer_index));
}

}  // namespace

std::uint32_t Cache::band_of(GroupLayer layer) const {
  const Impl::PoolLayer found = impl_->find_layer(layer);
  if (found.pages == nullptr) return 0;
  return Impl::band_of(found, std::min<std::uint32_t>(impl_->config.host.layer_bands, found.pages->layer_count));
}

Result<TransferOutcome> Cache::wait_for_layer(const Step& step, GroupLayer layer, TimeNs timeout_ns) const {
  using Clock = std::chrono::steady_clock;
  const Impl& impl = *impl_;
  const Impl::PoolLayer found = impl.find_layer(layer);
  if (found.pages == nullptr) return no_layer("wait_for_layer", layer);
  const bool is_external = impl.config.host.is_on() && impl.config.host.external_mover;
  if (is_external) return unsupported("wait_for_layer: the engine moves pages itself: ask its mover for band_of()");
  const Clock::time_point begin = Clock::now();
  // All of them, one that has failed included: entries that are not lost need what the others bring.
  TransferOutcome worst = TransferOutcome::Ok;
  for (const StepLoad& load : step.loads) {
    if (load.pool_index != found.pages->mover_pool) continue;
    const TimeNs passed = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
    QUIRE_TRY_ASSIGN(const TransferOutcome outcome, impl.wait_for(load, Impl::band_of(found, load.band_count),
                                                                  timeout_ns - std::min(timeout_ns, passed)));
    if (outcome == TransferOutcome::TimedOut) return outcome;
    if (outcome != TransferOutcome::Ok) worst = outcome;
  }
  return worst;
}

Status Cache::Impl::wait_on(DeviceStream stream, const StepLoad& load, std::uint32_t band) const {
  const TierParts& parts = tiers->parts;
  std::optional<TransferOutcome> ended = parts.ended_loads.find(load.id);
  if (!ended) {
    Status status = parts.mover->wait_on(stream, load.id, band, INT64_MAX);
    if (status || status.error().code != ErrorCode::InvalidArgument) return status;
    ended = parts.ended_loads.find(load.id);  // as in wait_for()
    if (!ended) return status;
  }
  if (*ended == TransferOutcome::Ok) return {};
  const bool is_cancelled = *ended == TransferOutcome::Cancelled;
  return fail(is_cancelled ? ErrorCode::Cancelled : ErrorCode::Io,
              message_of("wait_on: a load that the step reads pages of ", is_cancelled ? "was cancelled" : "has failed",
                         ": see lost_entries()"));
}

Status Cache::wait_on(DeviceStream stream, const Step& step, GroupLayer layer) const {
  const Impl& impl = *impl_;
  const Impl::PoolLayer found = impl.find_layer(layer);
  if (found.pages == nullptr) return no_layer("wait_on", layer);
  if (impl.tiers->parts.mover == nullptr || impl.config.device.accelerator == nullptr) {
    return unsupported("wait_on: the cache has no mover with an accelerator; see wait_for_layer()");
  }
  Status worst;  // as in wait_for_layer()
  for (const StepLoad& load : step.loads) {
    if (load.pool_index != found.pages->mover_pool) continue;
    Status status = impl.wait_on(stream, load, Impl::band_of(found, load.band_count));
    if (!status) worst = std::move(status);
  }
  return worst;
}

}  // namespace quire
