// SPDX-License-Identifier: Apache-2.0
//
// Cache: the rules that hold between calls, across tree, pool and sequences.
#include <algorithm>
#include <vector>

#include "cache/cache_impl.h"
#include "quire/cache.h"

namespace quire {

namespace {

tl::unexpected<Error> broken(const std::string& rule) {
  return fail(ErrorCode::Corrupt, "cache: " + rule);
}

}  // namespace

Status Cache::check_invariants() const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.tree->check_invariants());
  QUIRE_TRY(impl.check_users());
  if (impl.config.device.pool == DevicePool::External) {
    QUIRE_TRY(impl.offered.check_invariants());
    if (impl.offered.count(OfferedPages::State::Held) != impl.tree->page_count()) {
      return broken("the held pages are not those of the tree");
    }
    return {};
  }
  QUIRE_TRY(impl.pool.check_invariants());
  if (impl.pool.count(PageState::Sealed) != impl.tree->page_count()) {
    return broken("the sealed pages are not those of the tree");
  }
  QUIRE_TRY(impl.check_tiers());
  for (std::uint32_t i = 0; i < impl.sequences.capacity(); ++i) {
    if (impl.sequences[i].state == SequenceSlot::State::Running) QUIRE_TRY(impl.check_sequence(i));
  }
  QUIRE_TRY(impl.check_steps());
  QUIRE_TRY(impl.check_sides());
  return impl.check_owners();
}

// Who uses which key space, and who holds which pin.
Status Cache::Impl::check_users() const {
  std::vector<std::uint32_t> users(key_spaces.capacity());
  std::uint64_t handles = 0;
  std::uint64_t kept = 0;
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    const SequenceSlot& slot = sequences[i];
    const bool loads = slot.state == SequenceSlot::State::Looking || slot.state == SequenceSlot::State::Loading;
    if ((sequences.next_loading(i) == i) != loads) return broken("the sequences that load are not those listed");
    if (slot.state != SequenceSlot::State::Free) ++users[slot.key_space];
    handles += (slot.pin ? 1 : 0) + (slot.tail_pin ? 1 : 0);
  }
  for (const KeepSlot& keep : keeps) {
    if (!keep.is_live) continue;
    ++users[keep.key_space];
    ++handles;
    kept += keep.page_count;
  }
  for (const Transfer& transfer : transfers) {
    const bool has_key_space = transfer.kind == TransferKind::Load || transfer.kind == TransferKind::FindOnDisk ||
                               transfer.kind == TransferKind::PutOnDisk || transfer.kind == TransferKind::GetFromDisk ||
                               transfer.kind == TransferKind::DropOnDisk;
    if (transfer.state == Transfer::State::Free || !has_key_space || transfer.sequence != SequenceId{}) continue;
    ++users[transfer.key_space];
    handles += transfer.pin ? 1 : 0;
  }
  for (const SideTransfer& transfer : side_transfers) {
    const bool is_load = transfer.kind == TransferKind::Load || transfer.kind == TransferKind::LoadFromDisk;
    if (transfer.state == SideTransfer::State::Free || !is_load) continue;
    ++users[transfer.key_space];
    handles += transfer.pin ? 1 : 0;
  }
  for (std::uint32_t i = 0; i < key_spaces.capacity(); ++i) users[i] += key_spaces[i].wants_disk_drop ? 1 : 0;
  if (kept != kept_pages) return broken("the count of kept pages is wrong");
  std::uint64_t pins = 0;
  for (std::uint32_t i = 0; i < key_spaces.capacity(); ++i) {
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
  const auto bad = [&](const std::string& rule) { return broken(name_of(index) + ": " + rule); };
  if (slot.computed_tokens > slot.token_count) return bad("more tokens are computed than it has");
  if (slot.planned_end < slot.computed_tokens) return bad("less is planned than computed");
  if (slot.steps_in_flight == 0 && slot.planned_end != slot.computed_tokens) return bad("planned tokens in no step");
  if (slot.shared_pages > slot.settled_pages || slot.settled_pages > slot.page_count)
    return bad("page counts disagree");
  const bool waits_for_tail = slot.tail_tokens > 0 && !slot.tail_is_planned;
  // A replay may begin before the tail, or inside it.
  const std::uint32_t stored_end = std::max(slot.planned_end, slot.replay_end);
  std::uint32_t end = stored_end + slot.tree_count - (waits_for_tail ? slot.tail_tokens : 0);
  if (slot.is_receiving) end += slot.receive_tokens;
  if (!slot.has_draft && pages_for(end) != slot.page_count) return bad("its row is longer or shorter than its tokens");
  for (std::uint32_t page = 0; page < slot.page_count; ++page) {
    if (row[page] == kNullPage) {
      if (slot.window_tokens == 0) return bad("page " + std::to_string(page) + " is missing");
      continue;
    }
    if (slot.is_in_hole(page)) return bad("page " + std::to_string(page) + " is held behind its window");
    const PageState state = pool.state(row[page]);
    const PageState wanted = page < slot.shared_pages    ? PageState::Sealed
                             : page < slot.settled_pages ? PageState::Private
                                                         : PageState::Open;
    if (state != wanted) {
      return bad("page " + std::to_string(page) + " is " + std::string(to_string(state)) + ", not " +
                 std::string(to_string(wanted)));
    }
  }
  if (slot.tail_tokens > 0) {
    const PageState state = pool.state(slot.tail_source);
    const bool is_held =
        slot.tail_pin ? state == PageState::Sealed : state == PageState::Open || state == PageState::Private;
    if (!is_held) return bad("the source of its tail is " + std::string(to_string(state)));
  }
  if (tree->end_page(slot.pin.run()) != slot.pinned_pages()) return bad("its pin does not end where its pages do");
  std::uint32_t path_end = slot.pinned_pages();
  for (RunId run = slot.pin.run(); path_end > 0; run = tree->parent(run)) {
    const std::span<const PageId> pages = tree->view(run).pages;
    path_end -= static_cast<std::uint32_t>(pages.size());
    for (std::uint32_t i = 0; i < pages.size(); ++i) {
      if (row[path_end + i] != pages[i] && !slot.is_in_hole(path_end + i)) {
        return bad("page " + std::to_string(path_end + i) + " is not that of its path");
      }
    }
  }
  return {};
}

// Parts of steps in flight, as the sequences count them.
Status Cache::Impl::check_steps() const {
  std::vector<std::uint32_t> parts(sequences.capacity());
  for (const std::uint32_t place : step_order) {
    if (!steps[place].is_planned) return broken("a step is in flight that was not planned");
    for (const StepPart& part : steps[place].parts) parts[part.index] += part.is_discarded ? 0 : 1;
  }
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    if (parts[i] != sequences[i].steps_in_flight) return broken(name_of(i) + ": its count of steps in flight is wrong");
  }
  return {};
}

// Pages on their way, and those that wait until nobody reads them.
Status Cache::Impl::check_tiers() const {
  std::uint32_t fenced_pages = fenced.count();
  if (has_host()) {
    std::vector<std::uint32_t> host_reads(std::size_t{host_page_count} + 1);
    std::vector<std::uint32_t> device_reads(std::size_t{pool.page_count()} + 1);
    std::uint32_t filling = 0;
    std::uint32_t live = 0;
    std::uint32_t queued = 0;
    std::uint64_t bytes = 0;
    for (std::uint32_t i = 0; i < transfers.size(); ++i) {
      const Transfer& transfer = transfers[i];
      if (transfer.state == Transfer::State::Free) continue;
      ++live;
      if (i >= transfer_end) return broken("a transfer lies behind the last one");
      queued += transfer.state == Transfer::State::Queued ? 1 : 0;
      const bool is_load = transfer.kind == TransferKind::Load;
      const bool is_of_tree = transfer.sequence == SequenceId{};
      if (is_load && is_of_tree && transfer.is_unwanted == static_cast<bool>(transfer.pin)) {
        return broken("a load holds its path for nobody");
      }
      if (transfer.kind == TransferKind::LoadFromDisk || transfer.kind == TransferKind::StoreToDisk) {
        const bool reads_host = transfer.kind == TransferKind::StoreToDisk;
        for (const PageTransfer& page : pages_of(i)) {
          const PageState host_state = host_pool.state(page.host_page);
          const bool is_held = reads_host ? host_state == PageState::Sealed || host_state == PageState::Fenced
                                          : host_state == PageState::Open;
          if (!is_held) return broken("a disk transfer's host page is " + std::string(to_string(host_state)));
          host_reads[page.host_page.value] += reads_host ? 1 : 0;
        }
        filling += reads_host ? 0 : transfer.page_count;
        continue;
      }
      for (const PageTransfer& page : pages_of(i)) {
        ++(is_load ? host_reads[page.host_page.value] : device_reads[page.device_page.value]);
        const PageState host_state = host_pool.state(page.host_page);
        const PageState wanted = is_of_tree ? PageState::Sealed : PageState::Private;
        const bool is_held =
            is_load ? host_state == wanted || host_state == PageState::Fenced : host_state == PageState::Open;
        if (!is_held) return broken("a transfer's host page is " + std::string(to_string(host_state)));
      }
      if (is_load && is_of_tree) {
        bytes += transfer.page_count * history_page_bytes();
      } else if (!is_load) {
        filling += transfer.page_count;
      }
    }
    const auto disk_loads = std::ranges::count_if(transfers, [](const Transfer& each) {
      return each.state != Transfer::State::Free && each.kind == TransferKind::LoadFromDisk;
    });
    if (disk_loads != disk_load_count) return broken("the count of loads from disk is wrong");
    if (live != live_transfer_count) return broken("the count of transfers is wrong");
    if (has_disk()) {
      std::uint32_t on_disk = 0;
      std::uint32_t listed = 0;
      for (std::uint32_t i = 1; i <= host_page_count; ++i) {
        const DiskState state = disk_states[i];
        const bool is_listed = state == DiskState::Cold || state == DiskState::Hot;
        if (is_listed != disk_lists.contains(i)) return broken("a host page waits for the disk in no list, or in vain");
        if (state != DiskState::None && host_pool.state(PageId{i}) != PageState::Sealed) {
          return broken("a host page that is not cached is, or is to be, on disk");
        }
        on_disk += state == DiskState::OnDisk ? 1 : 0;
        listed += is_listed ? 1 : 0;
      }
      if (on_disk != on_disk_count || listed != disk_lists.size()) return broken("the count of pages on disk is wrong");
    }
    if (queued != transfer_order.size()) return broken("the order of transfers is not that of those to be taken");
    if (bytes != loading_bytes) return broken("the count of bytes being loaded is wrong");
    std::uint32_t host_fenced = 0;
    for (std::uint32_t i = 1; i <= host_page_count; ++i) {
      if (host_reads[i] != host_readers[i]) return broken("the count of a host page's readers is wrong");
      const bool is_fenced = host_pool.state(PageId{i}) == PageState::Fenced;
      if (is_fenced && host_reads[i] == 0) return broken("a host page waits for nobody");
      host_fenced += is_fenced ? 1 : 0;
    }
    for (std::uint32_t i = 1; i <= pool.page_count(); ++i) {
      if (device_reads[i] != device_readers[i]) return broken("the count of a device page's readers is wrong");
      fenced_pages += device_reads[i] > 0 && pool.state(PageId{i}) == PageState::Fenced ? 1 : 0;
    }
    QUIRE_TRY(host_pool.check_invariants());
    if (host_pool.count(PageState::Open) != filling) return broken("host pages are filled by no transfer");
    const std::uint32_t cached = tree->host_idle_pages() + tree->host_pinned_pages() + tree->copy_count();
    if (host_pool.count(PageState::Sealed) != cached) return broken("the cached host pages are not those of the tree");
    std::uint32_t saved = 0;
    for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
      const SequenceSlot& slot = sequences[i];
      const std::span<const PageId> row{saved_pages.data() + (std::size_t{i} * (sequences.row_pages() + 1)),
                                        slot.state == SequenceSlot::State::Free ? 0 : slot.saved_page_count};
      for (const PageId page : row) {
        saved += page != kNullPage && host_pool.state(page) == PageState::Private ? 1 : 0;
      }
    }
    if (host_pool.count(PageState::Private) != saved) return broken("saved pages that nobody owns");
    if (host_pool.free_count() + filling + cached + saved + host_fenced != host_page_count) {
      return broken("a host page is in no place");
    }
    for (std::uint32_t i = 0; i < key_spaces.capacity(); ++i) {
      if (!key_spaces[i].is_live) continue;
      bool is_right = true;
      tree->for_each_run(key_spaces[i].root, [&](const RunView& run) {
        const std::uint32_t mark = tree->mark(run.run);
        if (mark == 0) return;
        const Transfer& load = transfers[mark - 1];
        const bool is_loading = load.state != Transfer::State::Free && load.kind == TransferKind::Load;
        is_right = is_right && tree->is_on_host(run.run) && is_loading && !load.is_unwanted;
      });
      if (!is_right) return broken("a run waits for a load that is over");
    }
  }
  if (pool.count(PageState::Fenced) != fenced_pages) {
    return broken("the fenced pages are not those that somebody may still use");
  }
  return {};
}

// What a side group has on the host, and on its way. Adds the users of device pages, and how many given up ones a store
// still reads.
Status Cache::Impl::check_side_host(std::size_t side_index, std::span<std::uint32_t> uses,
                                    std::uint32_t& read_pages) const {
  const SideGroup& side = sides[side_index];
  if (side.host == nullptr) return {};
  const SideHost& host = *side.host;
  const auto bad = [&](const std::string& rule) {
    return broken("group '" + side.group->name + "' on the host: " + rule);
  };
  QUIRE_TRY(host.pool.check_invariants());
  QUIRE_TRY(host.of_device.check_invariants());
  QUIRE_TRY(host.of_host.check_invariants());
  if (host.pool.count(PageState::Sealed) != host.of_device.attached_count() + host.of_host.attached_count()) {
    return bad("the sealed pages are not those of the tree");
  }
  std::vector<std::uint32_t> device_reads(uses.size());
  std::vector<std::uint32_t> host_reads(std::size_t{host.pool.page_count()} + 1);
  std::uint32_t filling = 0;
  for (std::uint32_t i = 0; i < side_transfers.size(); ++i) {
    const SideTransfer& transfer = side_transfers[i];
    if (transfer.state == SideTransfer::State::Free || transfer.side != side_index) continue;
    const bool is_load = transfer.kind == TransferKind::Load;
    const bool fills = transfer.kind == TransferKind::Store || transfer.kind == TransferKind::LoadFromDisk;
    filling += fills ? transfer.page_count : 0;
    for (std::uint32_t page = 0; page < transfer.page_count; ++page) {
      const PageTransfer& way = side_transfer_pages[(std::size_t{i} * config.host.transfer_pages_max) + page];
      if (is_load) {
        ++uses[way.device_page.value];
        ++host_reads[way.host_page.value];
      } else if (transfer.kind == TransferKind::Store) {
        ++device_reads[way.device_page.value];
      } else if (transfer.kind == TransferKind::StoreToDisk) {
        ++host_reads[way.host_page.value];
      }
    }
  }
  if (host.has_disk) {
    for (std::uint32_t i = 1; i <= host.pool.page_count(); ++i) {
      const DiskState state = host.disk_states[i];
      if ((state == DiskState::Cold) != host.to_disk.contains(i)) return bad("a page waits for the disk in vain");
      const bool is_cached = host.pool.state(PageId{i}) == PageState::Sealed;
      if (state != DiskState::None && !is_cached) return bad("a page that is not cached is, or is to be, on disk");
    }
  }
  if (host.pool.count(PageState::Open) != filling) return bad("pages are filled by no transfer");
  std::uint32_t read_count = 0;
  for (std::uint32_t i = 1; i < device_reads.size(); ++i) {
    if (device_reads[i] != host.device_readers[i]) return bad("the count of a device page's readers is wrong");
    read_count += device_reads[i] > 0 ? 1 : 0;
    read_pages += device_reads[i] > 0 && side.pool.state(PageId{i}) == PageState::Fenced ? 1 : 0;
  }
  if (read_count != host.read_page_count) return bad("the count of pages that are read is wrong");
  std::uint32_t fenced_pages = 0;
  for (std::uint32_t i = 1; i < host_reads.size(); ++i) {
    if (host_reads[i] != host.readers[i]) return bad("the count of a host page's readers is wrong");
    fenced_pages += host_reads[i] > 0 && host.pool.state(PageId{i}) == PageState::Fenced ? 1 : 0;
  }
  if (host.pool.count(PageState::Fenced) != fenced_pages) return bad("a page waits for nobody");
  return {};
}

// Every page of a side group has the owners it counts, or as many pins as somebody holds.
Status Cache::Impl::check_sides() const {
  std::vector<std::uint32_t> slots(state_slot_count);
  for (const std::uint32_t slot : free_state_slots) ++slots[slot];
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    if (sequences[i].state_slot != UINT32_MAX) ++slots[sequences[i].state_slot];
  }
  if (std::ranges::any_of(slots, [](std::uint32_t users) { return users != 1; })) {
    return broken("a state slot is nobody's, or has two sequences");
  }
  for (std::size_t s = 0; s < sides.size(); ++s) {
    const SideGroup& side = sides[s];
    if (!side.has_pages) continue;
    const auto bad = [&](PageId page, const std::string& rule) {
      return broken("group '" + side.group->name + "': page " + std::to_string(page.value) + " " + rule);
    };
    QUIRE_TRY(side.pool.check_invariants());
    QUIRE_TRY(side.pages.check_invariants());
    if (side.pool.count(PageState::Sealed) != side.pages.attached_count()) {
      return broken("group '" + side.group->name + "': the sealed pages are not those of the tree");
    }
    std::vector<std::uint32_t> uses(std::size_t{side.pool.page_count()} + 1);
    for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
      const SideSlot& slot = side.slots[i];
      if (!slot.restore_page.is_none()) ++uses[slot.restore_page.value];
      if (!slot.tail_source.is_none()) ++uses[slot.tail_source.value];
      if (!side.is_window || sequences[i].state != SequenceSlot::State::Running) continue;
      for (std::uint32_t column = 0; column < slot.page_count; ++column) {
        const PageId page = side.row(i)[column];
        const bool is_in_hole = column >= side.sink_pages && column < slot.hole_end;
        if (is_in_hole != (page == kNullPage) && column >= side.sink_pages) {
          return broken(name_of(i) + ": column " + std::to_string(column) + " of group '" + side.group->name + "' is " +
                        (is_in_hole ? "held behind its window" : "missing"));
        }
        if (page == kNullPage) continue;
        ++uses[page.value];
        const PageState state = side.pool.state(page);
        const bool hangs_here = state == PageState::Sealed && column < sequences[i].shared_pages &&
                                side.pages.at(sequences.page_row(i)[column]) == page;
        if (state == PageState::Sealed && !hangs_here) return bad(page, "does not hang on the sequence's path");
      }
    }
    for (const KeepSlot& keep : keeps) {
      if (!keep.is_live || keep.hit.tokens == 0 || keep.hit.is_rebuilt(s)) continue;
      std::vector<PageId> path(tree->end_page(keep.pin.run()));
      tree->copy_path(keep.pin, 0, path);
      WindowColumns columns{.first = (keep.hit.start() / page_tokens) - 1, .last = keep.hit.start() / page_tokens};
      if (side.is_window) {
        columns = window_columns(hit_groups[s], hit_limits, {.start = keep.hit.start(), .end = keep.hit.tokens});
      }
      for (std::uint32_t column = 0; column < columns.last; ++column) {
        if (column < columns.sink_pages || column >= columns.first) ++uses[side.pages.at(path[column]).value];
      }
    }
    for (const std::uint32_t place : step_order) {
      for (const PlannedSave& save : steps[place].saves) {
        if (save.side == s) ++uses[save.page.value];  // page ids are of the side's own pool
      }
    }
    std::uint32_t read_pages = 0;
    QUIRE_TRY(check_side_host(s, uses, read_pages));
    for (std::uint32_t i = 1; i <= side.pool.page_count(); ++i) {
      const PageId page{i};
      const std::uint32_t counted =
          side.pages.is_attached(page) ? side.pages.pin_count(page) : side.pool.owner_count(page);
      if (counted != uses[i]) {
        return bad(page, "is used by " + std::to_string(uses[i]) + ", not " + std::to_string(counted));
      }
    }
    if (side.pool.count(PageState::Fenced) != side.fenced.count() + read_pages) {
      return broken("group '" + side.group->name + "': the fenced pages are not those that somebody may still use");
    }
  }
  return {};
}

// Every open or private page has exactly the owners it counts.
Status Cache::Impl::check_owners() const {
  std::vector<std::uint32_t> owners(pool.page_count());
  const auto add = [&](PageId page) { ++owners[page.value - pool.first_page()]; };
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    const SequenceSlot& slot = sequences[i];
    if (slot.tail_tokens > 0 && !slot.tail_pin) add(slot.tail_source);
    const bool has_row = slot.state == SequenceSlot::State::Running || slot.state == SequenceSlot::State::Saving ||
                         slot.state == SequenceSlot::State::Restoring;
    if (!has_row) continue;
    for (std::uint32_t page = slot.shared_pages; page < slot.page_count; ++page) {
      if (sequences.page_row(i)[page] != kNullPage) add(sequences.page_row(i)[page]);
    }
  }
  for (std::uint32_t i = 0; i < transfers.size(); ++i) {
    if (transfers[i].state == Transfer::State::Free || transfers[i].kind != TransferKind::Load) continue;
    if (transfers[i].sequence != SequenceId{} && !transfers[i].is_unwanted) continue;  // in the sequence's row
    for (const PageTransfer& page : pages_of(i)) {
      if (!page.device_page.is_none()) add(page.device_page);
    }
  }
  for (std::uint32_t i = 0; i < pool.page_count(); ++i) {
    const PageId page{pool.first_page() + i};
    if (owners[i] != pool.owner_count(page)) {
      return broken("page " + std::to_string(page.value) + " has " + std::to_string(owners[i]) + " owners, not " +
                    std::to_string(pool.owner_count(page)));
    }
  }
  return {};
}

}  // namespace quire
