// SPDX-License-Identifier: Apache-2.0
//
// Cache: the rules that hold between calls, across tree, pool and sequences.
#include <algorithm>
#include <functional>
#include <vector>

#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

template <typename... Pieces>
tl::unexpected<Error> broken(const Pieces&... rule) {
  return fail(ErrorCode::Corrupt, message_of("cache: ", rule...));
}

}  // namespace

Status Cache::check_invariants() const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.tree->check_invariants());
  QUIRE_TRY(impl.check_users());
  if (impl.config.device.pool == DevicePool::External) {
    QUIRE_TRY(impl.history->offered->check_invariants());
    if (impl.history->cached_page_count() != impl.tree->page_count()) {
      return broken("the held pages are not those of the tree");
    }
    for (const GroupRows& group : impl.groups) {
      if (group.has_pages()) QUIRE_TRY(group.tier->check_invariants());
    }
    return impl.check_groups();
  }
  if (impl.history->device.count(PageState::Sealed) != impl.tree->page_count()) {
    return broken("the sealed pages are not those of the tree");
  }
  QUIRE_TRY(impl.tiers->check_invariants());
  for (std::uint32_t i = 0; i < impl.sequences.capacity(); ++i) {
    if (impl.sequences[i].state == SequenceSlot::State::Running) QUIRE_TRY(impl.check_sequence(i));
    if (impl.sequences[i].state == SequenceSlot::State::RunningAhead) QUIRE_TRY(impl.check_ahead(i));
  }
  QUIRE_TRY(impl.check_steps());
  QUIRE_TRY(impl.check_groups());
  return impl.check_owners();
}

// Every key space counts its users rightly, and every pin of the tree has a holder.
Status Cache::Impl::check_users() const {
  std::vector<std::uint32_t> users(key_spaces.capacity());
  std::uint64_t handles = 0;
  std::uint64_t kept = 0;
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    const SequenceSlot& slot = sequences[i];
    if ((sequences.next_arriving(i) == i) != slot.is_arriving())
      return broken("the sequences that load are not those listed");
    if (slot.state != SequenceSlot::State::Free) ++users[slot.key_space];
    handles += (slot.pin ? 1 : 0) + (slot.tail && slot.tail->pin ? 1 : 0);
  }
  for (const KeepSlot& keep : keeps) {
    if (!keep.is_live) continue;
    ++users[keep.key_space];
    ++handles;
    kept += keep.page_count;
  }
  if (chunks != nullptr) {
    QUIRE_TRY(check_chunks());
    for (const CachedChunks::PinSlot& pin : chunks->pins) {
      if (pin.is_live) ++users[pin.key_space];
    }
    handles += chunks->run_count();
  }
  std::uint64_t held = 0;
  std::vector<std::uint32_t> held_of_groups(groups.size());
  std::vector<const AnchoredHold*> anchored_holds;
  for (const HoldSlot& hold : holds) {
    if (!hold.is_live) continue;
    ++users[hold.key_space];
    held += hold.page_count;
    for (std::size_t i = 0; i < hold.group_page_counts.size(); ++i) held_of_groups[i] += hold.group_page_counts[i];
    anchored_holds.push_back(&hold.anchored);
    if (hold.is_arriving() != sequences.find(hold.carrier).has_value()) return broken("a hold waits for no sequence");
  }
  if (held != hold_pages) return broken("the count of held pages is wrong");
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (held_of_groups[i] != groups[i].hold_pages) return broken("the count of held pages of a group is wrong");
  }
  QUIRE_TRY(tiers->host_holds.check_invariants(anchored_holds));
  const TransferBook& book = tiers->parts.book;
  for (std::uint32_t i = 0; i < book.end(); ++i) {
    const Transfer& transfer = book[i];
    const bool uses_key_space = transfer.kind == TransferKind::Load ||
                                (transfer.kind == TransferKind::DropBelow && transfer.key_space != kAllKeySpaces);
    if (!transfer.is_live() || !transfer.is_of_tree()) continue;
    if (uses_key_space) ++users[transfer.key_space];
    handles += transfer.pin ? 1 : 0;
  }
  for (std::uint32_t i = 0; i < tiers->parts.searches.end(); ++i) {
    const Search& search = tiers->parts.searches[i];
    if (!search.is_live()) continue;
    ++users[search.key_space];
    handles += search.pin ? 1 : 0;
  }
  for (std::uint32_t i = 0; i < key_spaces.end(); ++i) users[i] += key_spaces[i].wants_disk_drop ? 1 : 0;
  if (kept != kept_pages) return broken("the count of kept pages is wrong");
  std::uint64_t pins = 0;
  for (std::uint32_t i = 0; i < key_spaces.end(); ++i) {
    if (users[i] != key_spaces[i].user_count) return broken("a key space's count of users is wrong");
    if (!key_spaces[i].is_live) continue;
    tree->for_each_run(key_spaces[i].root, [&](const RunView& run) { pins += run.own_pin_count; });
  }
  if (pins != handles) return broken("the tree has pins that nobody holds");
  return {};
}

Status Cache::Impl::check_sequence(std::uint32_t index) const {
  const SequenceSlot& slot = sequences[index];
  const std::span<const PageId> row = sequences.page_row(index);
  const auto bad = [&](const auto&... rule) { return broken(name_of(index), ": ", rule...); };
  if (slot.computed_tokens > slot.token_count) return bad("more tokens are computed than it has");
  if (slot.planned_end < slot.computed_tokens) return bad("less is planned than computed");
  if (slot.steps_in_flight == 0 && slot.planned_end != slot.computed_tokens) return bad("planned tokens in no step");
  if (slot.shared_pages > slot.settled_pages || slot.settled_pages > slot.page_count)
    return bad("page counts disagree");
  const bool waits_for_tail = slot.tail && !slot.tail->is_planned;
  // During a replay planned_end lies before replay_end, up to where the row and its tail have tokens.
  const std::uint32_t stored_end = std::max(slot.planned_end, slot.replay_end);
  std::uint32_t end = stored_end + slot.tree_count - (waits_for_tail ? slot.tail->tokens : 0);
  if (slot.receive) end += slot.receive->tokens;
  if (!slot.has_draft && pages_for(end) != slot.page_count) return bad("its row is longer or shorter than its tokens");
  for (std::uint32_t page = 0; page < slot.page_count; ++page) {
    if (row[page] == kNullPage) {
      if (!slot.window) return bad("page ", plain(page), " is missing");
      continue;
    }
    if (slot.is_in_hole(page)) return bad("page ", plain(page), " is held behind its window");
    const PageState state = history->device.state(row[page]);
    const PageState wanted = page < slot.shared_pages    ? PageState::Sealed
                             : page < slot.settled_pages ? PageState::Private
                                                         : PageState::Open;
    if (state != wanted) return bad("page ", plain(page), " is ", to_string(state), ", not ", to_string(wanted));
  }
  if (slot.tail) {
    const PageState state = history->device.state(slot.tail->source);
    const bool is_held =
        slot.tail->pin ? state == PageState::Sealed : state == PageState::Open || state == PageState::Private;
    if (!is_held) return bad("the source of its tail is ", to_string(state));
  }
  std::uint32_t path_end = tree->end_page(slot.pin.run());
  const bool is_wrong =
      groups.empty() ? path_end != slot.pinned_pages() : path_end < pinned_pages(index) || path_end > slot.shared_pages;
  if (is_wrong) return bad("its pin does not end where its pages do");
  for (RunId run = slot.pin.run(); path_end > 0; run = tree->parent(run)) {
    const std::span<const PageId> pages = tree->view(run).pages;
    path_end -= static_cast<std::uint32_t>(pages.size());
    for (std::uint32_t i = 0; i < pages.size(); ++i) {
      if (row[path_end + i] != pages[i] && !slot.is_in_hole(path_end + i)) {
        return bad("page ", plain(path_end + i), " is not that of its path");
      }
    }
  }
  return {};
}

// Every sequence counts its steps in flight rightly.
Status Cache::Impl::check_steps() const {
  std::vector<std::uint32_t> parts(sequences.capacity());
  for (const std::uint32_t place : step_order) {
    if (!steps[place].is_planned) return broken("a step is in flight that was not planned");
    for (const StepPart& part : steps[place].parts) parts[part.index] += part.is_discarded ? 0 : 1;
  }
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    if (parts[i] != sequences[i].steps_in_flight) return broken(name_of(i), ": its count of steps in flight is wrong");
  }
  return {};
}

// A sequence that runs ahead has, in its row of the history, the pages of its path and of the loads that bring the
// rest.
Status Cache::Impl::check_ahead(std::uint32_t index) const {
  const SequenceSlot& slot = sequences[index];
  const auto bad = [&](const auto&... rule) { return broken(name_of(index), ": ", rule...); };
  const AheadReads& ahead = tiers->parts.ahead;
  if (slot.is_lost && slot.steps_in_flight == 0) return bad("is lost, and in no step");
  if (slot.is_lost && ahead.has_any(index)) return bad("is lost, and waits for loads");
  if (slot.is_lost) return {};
  if (tree->end_page(slot.pin.run()) != slot.shared_pages) return bad("its pin does not end where its pages do");
  if (slot.tail) return bad("runs ahead with a tail");
  const TierPath path = tiers->paths.path_of(slot.pin);
  const std::span<const PageId> row = sequences.page_row(index);
  std::vector<bool> is_right(slot.shared_pages);
  for (std::uint32_t column = 0; column < path.pages.size(); ++column)
    is_right[column] = row[column] == path.pages[column];
  bool has_ended = false;
  ahead.for_each(index, [&](std::uint32_t i) {
    const Transfer& load = tiers->parts.book[i];
    has_ended = has_ended || !load.is_tree_load() || !load.is_wanted() || !load.is_read_ahead;
    for (const PageTransfer& page : tiers->parts.book.pages(i)) {
      const bool is_here = load.pool == 0 && page.place < slot.shared_pages && row[page.place] == page.device_page;
      if (is_here) is_right[page.place] = true;
    }
  });
  if (has_ended) return bad("runs ahead on a load that is over");
  if (!std::ranges::all_of(is_right, std::identity{})) return bad("its row is not that of its path and loads");
  for (std::uint32_t page = slot.shared_pages; page < slot.page_count; ++page) {
    if (row[page] != kNullPage && history->device.state(row[page]) != PageState::Open)
      return bad("its own pages are not open");
  }
  return {};
}

// Whether a page of a sequence's rows belongs to a load that the sequence runs ahead on.
bool Cache::Impl::is_pending(std::uint32_t index, std::uint32_t pool, PageId page) const {
  if (sequences[index].state != SequenceSlot::State::RunningAhead) return false;
  bool is_found = false;
  tiers->parts.ahead.for_each(index, [&](std::uint32_t load) {
    if (tiers->parts.book[load].pool != pool) return;
    for (const PageTransfer& each : tiers->parts.book.pages(load)) is_found = is_found || each.device_page == page;
  });
  return is_found;
}

// How many sequences, kept paths, planned snapshots and loads use each page of an anchored group.
std::vector<std::uint32_t> Cache::Impl::count_users(std::size_t group_place) const {
  const GroupRows& group = groups[group_place];
  std::vector<std::uint32_t> uses(std::size_t{group.tier->pages.device_page_count()} + 1);
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    if (group.is_window() && sequences[i].state == SequenceSlot::State::Holding) {
      for (const GroupPages& piece : matched_row(i)) {
        if (piece.group_index != group.memory.group_index) continue;
        for (const PageId page : piece.page_ids) ++uses[page.value];
      }
    }
    if (!group.is_window()) {
      const PageId page = group.states[i].restore_page;
      if (!page.is_none() && !is_pending(i, group.tier->pool, page)) ++uses[page.value];
      continue;
    }
    const WindowRow& slot = group.slots[i];
    if (!slot.tail_source.is_none()) ++uses[slot.tail_source.value];
    if (!sequences[i].has_row()) continue;
    for (const PageId page : group.row(i).first(slot.page_count)) {
      uses[page.value] += page != kNullPage && !is_pending(i, group.tier->pool, page) ? 1 : 0;
    }
  }
  for (const KeepSlot& keep : keeps) {
    if (!keep.is_live || keep.hit.tokens == 0 || keep.hit.is_rebuilt(group_place)) continue;
    const TierPath path = tiers->paths.path_of(keep.pin);
    for_each_column(tiers->paths.needed_columns(group_place, keep.hit, UINT32_MAX),
                    [&](std::uint32_t column) { ++uses[group.pages().at(path.at(column).page).value]; });
  }
  for (const std::uint32_t place : step_order) {
    for (const PlannedSnapshot& save : steps[place].saves) {
      if (save.group == group_place) ++uses[save.page.value];
    }
  }
  for_each_loaded(group.tier->pool, [&](PageId page) { ++uses[page.value]; });
  return uses;
}

// Every page of an anchored group counts its users rightly: as pins if it hangs on the tree, else as owners.
Status Cache::Impl::check_groups() const {
  std::vector<std::uint32_t> slots(state_slot_count);
  for (const std::uint32_t slot : free_state_slots) ++slots[slot];
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    if (sequences[i].state_slot) ++slots[sequences[i].state_slot->index];
  }
  if (std::ranges::any_of(slots, [](std::uint32_t users) { return users != 1; })) {
    return broken("a state slot is nobody's, or has two sequences");
  }
  for (std::size_t place = 0; place < groups.size(); ++place) {
    const GroupRows& group = groups[place];
    if (!group.has_pages()) continue;
    const auto bad = [&](PageId page, const auto&... rule) {
      return broken("group '", group.group->name, "': page ", plain(page.value), " ", rule...);
    };
    for (std::uint32_t i = 0; i < sequences.capacity() && group.is_window(); ++i) {
      const WindowRow& slot = group.slots[i];
      if (sequences[i].state != SequenceSlot::State::Running) continue;
      const std::span<const PageId> path = tiers->paths.path_of(sequences[i].pin).pages;
      for (std::uint32_t column = 0; column < slot.page_count; ++column) {
        const PageId page = group.row(i)[column];
        if (column < slot.received_from) continue;  // a receiver has its old window, and then a gap
        const bool is_in_hole = column >= group.tier->sink_pages && column < slot.hole_end;
        if (is_in_hole != (page == kNullPage) && column >= group.tier->sink_pages) {
          return broken(name_of(i), ": column ", plain(column), " of group '", group.group->name, "' is ",
                        is_in_hole ? "held behind its window" : "missing");
        }
        if (page == kNullPage || group.pool().state(page) != PageState::Sealed) continue;
        const bool hangs_here = column < path.size() && group.pages().at(path[column]) == page;
        if (!hangs_here) return bad(page, "does not hang on the sequence's path");
      }
    }
    const std::vector<std::uint32_t> uses = count_users(place);
    const bool is_external = group.tier->pages.offered.has_value();  // ids begin with 0 then
    for (std::uint32_t i = is_external ? 0 : 1; i < uses.size() - (is_external ? 1 : 0); ++i) {
      const PageId page{i};
      const std::uint32_t owners = is_external ? 0 : group.pool().owner_count(page);
      const std::uint32_t counted = group.pages().is_attached(page) ? group.pages().pin_count(page) : owners;
      if (counted != uses[i]) return bad(page, "is used by ", plain(uses[i]), ", not ", plain(counted));
    }
  }
  return {};
}

// Every device page of the history counts its owners rightly; pages of the tree have none.
Status Cache::Impl::check_owners() const {
  std::vector<std::uint32_t> owners(history->device.page_count());
  const auto add = [&](PageId page) { ++owners[page.value - history->device.first_page()]; };
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    const SequenceSlot& slot = sequences[i];
    if (slot.tail && !slot.tail->pin) add(slot.tail->source);
    if (!slot.has_row()) continue;
    for (std::uint32_t page = slot.shared_pages; page < slot.page_count; ++page) {
      if (sequences.page_row(i)[page] != kNullPage) add(sequences.page_row(i)[page]);
    }
  }
  for_each_loaded(0, add);
  for (std::uint32_t i = 0; i < history->device.page_count(); ++i) {
    const PageId page{history->device.first_page() + i};
    if (owners[i] != history->device.owner_count(page)) {
      return broken("page ", plain(page.value), " has ", plain(owners[i]), " owners, not ",
                    plain(history->device.owner_count(page)));
    }
  }
  return {};
}

}  // namespace quire
