// SPDX-License-Identifier: Apache-2.0
//
// Cache: side groups on the host. Their pages are copied there as soon as the tree has them, whatever the write policy:
// they are few, or small, and a hole among them makes all that follows useless. They follow the history's pages from
// tier to tier, go with them, and may go before them.
//
// A sequence that is admitted waits for the history that it can use, and then for what other groups have of it on the
// host. What does not come is a shorter hit.
#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/hash.h"
#include "cache/cache_impl.h"
#include "cache/cache_peer.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Status Cache::Impl::open_side_hosts() {
  for (SideGroup& side : sides) {
    if (!side.has_pages) continue;
    const std::uint32_t group_index = side.memory.group_index;
    const std::uint64_t proportional =
        std::uint64_t{side.pool.page_count()} * host_page_count / std::max(pool_page_count(), 1U);
    const std::uint64_t wanted = config.host.group_page_counts.empty()
                                     ? std::max<std::uint64_t>(proportional, side.pool.page_count())
                                     : config.host.group_page_counts[group_index];
    if (wanted == 0 || wanted >= PageId::kNoneValue) {
      return fail(ErrorCode::InvalidArgument, "group '" + side.group->name + "' would have " + with_separators(wanted) +
                                                  " host pages: set host.group_page_counts[" +
                                                  std::to_string(group_index) + "]");
    }
    const auto count = static_cast<std::uint32_t>(wanted);
    side.host = std::make_unique<SideHost>();
    SideHost& host = *side.host;
    host.pool_index = ++side_pool_count;
    QUIRE_TRY_ASSIGN(host.pool, PagePool::create({.page_count = count, .first_page = 1}));
    QUIRE_TRY_ASSIGN(host.of_device,
                     SidePages::create({.tree_page_end = pool_page_count() + 1, .side_page_end = count + 1}));
    QUIRE_TRY_ASSIGN(host.of_host,
                     SidePages::create({.tree_page_end = host_page_count + 1, .side_page_end = count + 1}));
    QUIRE_TRY_ASSIGN(host.generations, LazyArray<std::uint32_t>::create(std::size_t{count} + 1));
    QUIRE_TRY_ASSIGN(host.readers, LazyArray<std::uint32_t>::create(std::size_t{count} + 1));
    QUIRE_TRY_ASSIGN(host.loads, LazyArray<std::uint32_t>::create(std::size_t{pool_page_count()} + 1));
    QUIRE_TRY_ASSIGN(host.settled_by_step, LazyArray<std::uint64_t>::create(std::size_t{side.pool.page_count()} + 1));
    if (sequences.keys().lookahead_tokens() > 0) {
      QUIRE_TRY_ASSIGN(host.settled_in_call, LazyArray<std::uint64_t>::create(std::size_t{side.pool.page_count()} + 1));
    }
    QUIRE_TRY_ASSIGN(host.columns, LazyArray<std::uint32_t>::create(std::size_t{count} + 1));
    QUIRE_TRY_ASSIGN(host.device_columns, LazyArray<std::uint32_t>::create(std::size_t{side.pool.page_count()} + 1));
    QUIRE_TRY_ASSIGN(host.device_readers, LazyArray<std::uint32_t>::create(std::size_t{side.pool.page_count()} + 1));
    QUIRE_TRY(host.wanted.reserve(side.pool.page_count() + 1));
  }
  for (std::size_t i = 0; i < sides.size(); ++i) {
    HitGroup& group = all_hit_groups.emplace_back(hit_groups[i]);
    if (sides[i].host == nullptr) continue;
    group.host_of_device = &sides[i].host->of_device;
    group.host_of_host = &sides[i].host->of_host;
  }
  side_transfers.resize(config.host.transfer_count_max);
  for (SideTransfer& transfer : side_transfers) transfer.waiters.reserve(config.sequence_count_max);
  side_order.reserve(config.host.transfer_count_max);
  QUIRE_TRY_ASSIGN(side_transfer_pages,
                   LazyArray<PageTransfer>::create(side_transfers.size() * config.host.transfer_pages_max));
  if (!sides.empty()) tree->set_listener(this);
  return {};
}

// Pages of the host

PageId Cache::Impl::take_host_page(SideGroup& side) {
  SideHost& host = *side.host;
  PageId page;
  while (!host.pool.try_allocate({&page, 1})) {
    // What was only passed goes first, and of the rest what the device may have too.
    PageId victim = host.of_device.evict(SidePages::Worth::Passed);
    if (victim.is_none()) victim = host.of_host.evict(SidePages::Worth::Passed);
    if (victim.is_none()) victim = host.of_device.evict();
    if (victim.is_none()) victim = host.of_host.evict();
    if (victim.is_none()) return PageId::none();
    release_host(side, victim);
  }
  ++host.generations[page.value];
  return page;
}

void Cache::Impl::release_host(SideGroup& side, PageId host_page) {
  if (has_disk()) forget_on_disk(side, host_page);
  if (kFencesTransfers && side.host->readers[host_page.value] > 0) {
    side.host->pool.fence({&host_page, 1});
  } else {
    side.host->pool.release({&host_page, 1});
  }
}

// What the host has of it, if anything, goes after all that a window has only passed.
void Cache::Impl::keep_host_copy(SideGroup& side, PageId tree_page) {
  const PageId host_page = side.host->of_device.at(tree_page);
  if (host_page.is_none()) return;
  side.host->of_device.pin(host_page);
  side.host->of_device.unpin(host_page, SidePages::Worth::Kept);
}

// What the host has of a page that is not to be found any more.
void Cache::Impl::drop_host_copy(SideGroup& side, PageId page) {
  if (side.host == nullptr) return;
  const PageId host_page = side.host->of_device.drop(side.pages.tree_page_of(page));
  if (!host_page.is_none()) release_host(side, host_page);
}

// Pages that are evicted at once and free only when the store that reads them is over.
std::uint32_t Cache::Impl::idle_read_pages(const SideGroup& side) const {
  if (side.host == nullptr || side.host->read_page_count == 0) return 0;
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < side_transfers.size(); ++i) {
    const SideTransfer& store = side_transfers[i];
    if (store.state == SideTransfer::State::Free || store.kind != TransferKind::Store) continue;
    if (&sides[store.side] != &side) continue;
    for (std::uint32_t page = 0; page < store.page_count; ++page) {
      const PageId read = side_transfer_pages[(std::size_t{i} * config.host.transfer_pages_max) + page].device_page;
      count += side.pages.is_attached(read) && !side.pages.is_pinned(read) ? 1 : 0;
    }
  }
  return count;
}

// A load, or a store to disk, no longer reads the page.
void Cache::Impl::release_host_read(SideGroup& side, PageId host_page) {
  SideHost& host = *side.host;
  if (--host.readers[host_page.value] > 0 || host.pool.state(host_page) != PageState::Fenced) return;
  host.pool.release({&host_page, 1});
}

// A page of the device that the tree has given up.
void Cache::Impl::release_device(SideGroup& side, PageId page) {
  if (side.host != nullptr) {
    if (side.host->wanted.contains(page.value)) side.host->wanted.remove(page.value);
    if (kFencesTransfers && side.host->device_readers[page.value] > 0) {
      side.pool.fence({&page, 1});  // until the store that reads it is over
      return;
    }
  }
  side.pool.release({&page, 1});
}

void Cache::Impl::on_demote(PageId device_page, PageId host_page) {
  for (SideGroup& side : sides) {
    if (side.host == nullptr) continue;
    PageId page = side.host->of_device.at(device_page);
    if (page.is_none()) continue;
    const PageId on_device = side.pages.at(device_page);
    const bool is_kept = side.host->of_device.is_kept(page) || (!on_device.is_none() && side.pages.is_kept(on_device));
    page = side.host->of_device.drop(device_page);
    side.host->of_host.attach(host_page, page);
    side.host->of_host.unpin(page, is_kept ? SidePages::Worth::Kept : SidePages::Worth::Passed);
  }
}

void Cache::Impl::on_promote(PageId host_page, PageId device_page) {
  for (SideGroup& side : sides) {
    if (side.host == nullptr) continue;
    PageId page = side.host->of_host.at(host_page);
    if (page.is_none()) continue;
    const bool is_kept = side.host->of_host.is_kept(page);
    page = side.host->of_host.drop(host_page);
    side.host->of_device.attach(device_page, page);
    side.host->of_device.unpin(page, is_kept ? SidePages::Worth::Kept : SidePages::Worth::Passed);
  }
}

// The tree has given up a host page, one of its own or the copy of a device page.
void Cache::Impl::drop_host_sides(PageId host_page) {
  for (SideGroup& side : sides) {
    if (side.host == nullptr) continue;
    const PageId page = side.host->of_host.drop(host_page);
    if (!page.is_none()) release_host(side, page);
  }
}

void Cache::Impl::want_side_copy(SideGroup& side, PageId page, std::uint32_t column) {
  if (side.host == nullptr || side.host->wanted.contains(page.value)) return;
  side.host->wanted.push_back(page.value);
  side.host->device_columns[page.value] = column;
  // Moves of a committed tree come with the next plan: until that is over, the bytes are not all there.
  side.host->settled_by_step[page.value] = move_count() > 0 ? step_number + 1 : 0;
  if (side.host->settled_in_call.size() > 0) side.host->settled_in_call[page.value] = call_number;
}

// Transfers

std::span<PageTransfer> Cache::Impl::side_page_row(std::uint32_t index) {
  return {side_transfer_pages.data() + (std::size_t{index} * config.host.transfer_pages_max),
          config.host.transfer_pages_max};
}

std::optional<std::uint32_t> Cache::Impl::add_side_transfer(TransferKind kind, std::uint32_t side) {
  if (is_paused || side_transfer_count == side_transfers.size()) return std::nullopt;
  std::uint32_t index = 0;
  while (side_transfers[index].state != SideTransfer::State::Free) ++index;
  SideTransfer& transfer = side_transfers[index];
  transfer.state = SideTransfer::State::Queued;
  transfer.kind = kind;
  transfer.side = side;
  side_order.push_back(index);
  ++side_transfer_count;
  return index;
}

void Cache::Impl::remove_side_transfer(std::uint32_t index) {
  SideTransfer& transfer = side_transfers[index];
  if (transfer.state == SideTransfer::State::Queued) std::erase(side_order, index);
  const std::uint32_t generation = transfer.generation + 1;
  std::vector<SequenceId> waiters = std::move(transfer.waiters);  // what it has reserved
  waiters.clear();
  transfer = {};
  transfer.generation = generation;
  transfer.waiters = std::move(waiters);
  --side_transfer_count;
}

TransferPlan Cache::Impl::side_plan_of(std::uint32_t index) {
  const SideTransfer& transfer = side_transfers[index];
  const bool is_load = transfer.kind == TransferKind::Load;
  return {.id = {static_cast<std::uint32_t>(transfers.size()) + index, transfer.generation},
          .kind = transfer.kind,
          .priority = is_load ? TransferPriority::Waiting : TransferPriority::Background,
          .band_count = 1,
          .pool_index = sides[transfer.side].host->pool_index,
          .pages = side_page_row(index).first(transfer.page_count)};
}

std::uint64_t Cache::Impl::side_name_tag(const SideGroup& side, PageId tree_page, Tier tier) const {
  return mix64(tree->fingerprint(tree_page, tier) + (std::uint64_t{side.memory.group_index} << 32U));
}

// Copies what is wanted, as long as there are transfers and host pages.
void Cache::Impl::start_side_stores() {
  for (std::uint32_t i = 0; i < sides.size(); ++i) {
    SideGroup& side = sides[i];
    if (side.host == nullptr) continue;
    SideHost& host = *side.host;
    const auto has_next = [&] {
      // While flush() wants everything on disk, nothing that has still to be written makes room for others.
      const bool may_copy_more = !wants_flush || host.pool.free_count() > 0 || host.to_disk.size() == 0;
      return may_copy_more && host.wanted.size() > 0 && is_over(host.settled_by_step[host.wanted.front()]) &&
             is_written(host.settled_in_call, PageId{host.wanted.front()});
    };
    while (has_next()) {
      const std::optional<std::uint32_t> index = add_side_transfer(TransferKind::Store, i);
      if (!index) return;
      SideTransfer& store = side_transfers[*index];
      while (has_next() && store.page_count < config.host.transfer_pages_max) {
        const PageId page{host.wanted.front()};
        const PageId tree_page = side.pages.tree_page_of(page);
        if (host.of_device.has(tree_page)) {
          host.wanted.remove(page.value);
          continue;
        }
        const PageId host_page = take_host_page(side);
        if (host_page.is_none()) break;
        host.wanted.remove(page.value);
        if (++host.device_readers[page.value] == 1) ++host.read_page_count;
        side_page_row(*index)[store.page_count++] = {.device_page = page,
                                                     .host_page = host_page,
                                                     .host_generation = host.generations[host_page.value],
                                                     .place = tree_page.value,
                                                     .name_tag = side_name_tag(side, tree_page)};
      }
      if (store.page_count > 0) continue;
      remove_side_transfer(*index);
      break;
    }
  }
}

void Cache::Impl::finish_side_store(std::uint32_t index) {
  const SideTransfer& store = side_transfers[index];
  SideGroup& side = sides[store.side];
  SideHost& host = *side.host;
  const std::span<const PageTransfer> pages = side_page_row(index).first(store.page_count);
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const PageId page = pages[i].device_page;
    const PageId tree_page{pages[i].place};
    // A page that is read is not used for anything else: if it hangs there, it has all the time.
    const bool is_there = side.pool.state(page) == PageState::Sealed && side.pages.is_attached(page) &&
                          side.pages.tree_page_of(page) == tree_page;
    if (is_there && i < store.good_pages && !host.of_device.has(tree_page)) {
      host.pool.seal({&pages[i].host_page, 1});
      host.of_device.attach(tree_page, pages[i].host_page);
      host.of_device.unpin(pages[i].host_page,
                           side.pages.is_kept(page) ? SidePages::Worth::Kept : SidePages::Worth::Passed);
      host.columns[pages[i].host_page.value] = host.device_columns[page.value];
      if (has_disk()) want_side_on_disk(side, pages[i].host_page);
    } else {
      has_lost_copies = has_lost_copies || (is_there && store.outcome == TransferOutcome::Failed);
      host.pool.release({&pages[i].host_page, 1});
    }
    if (--host.device_readers[page.value] == 0) --host.read_page_count;
    if (host.device_readers[page.value] == 0 && side.pool.state(page) == PageState::Fenced) {
      if (step_order.empty() && move_count() == 0) {
        side.pool.release({&page, 1});
      } else {
        side.fenced.push(page, move_count() > 0 ? step_number + 1 : step_at(step_order.size() - 1).number);
      }
    }
  }
  remove_side_transfer(index);
}

// What a loading sequence, whose history has arrived, needs of side groups and the device lacks. Afterwards it waits as
// long as has_asked_sides is false, or side_loads is not 0.
void Cache::Impl::start_side_loads(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  slot.has_asked_sides = true;
  if (slot.tier_max == Tier::Device || is_paused) return;
  // Whole pages of the device: a part of one is found by what is there.
  PrefixTree::Match match = match_of(index);
  match = tree->cut_pages(match, match.page_count);
  const Hit hit = find_hit(match, slot.token_count, slot.allows_inexact, /*counts_host=*/true);
  if (hit.tokens == 0) return;
  const PrefixTree::Pin path = tree->pin_all(match);
  const std::span<PageId> row = std::span(path_scratch).first(tree->end_page(path.run()));
  tree->copy_path(path, 0, row);
  // What is there must not make room for what is not.
  hold_path_sides(row, hit, slot.token_count, /*is_held=*/true);
  // All of it, or what is evicted for it goes for nothing.
  const SideLoadRoom room = room_for_side_loads(row, hit, slot.token_count);
  if (room == SideLoadRoom::Later) {
    slot.has_asked_sides = false;  // others end first
    if (config.host.load_timeout_ns > 0 && slot.load_deadline == INT64_MAX) {
      slot.load_deadline = time_after(config.host.load_timeout_ns);
    }
  }
  for (std::uint32_t i = 0; room == SideLoadRoom::Now && i < sides.size(); ++i) {
    if (sides[i].host == nullptr || hit.is_rebuilt(i)) continue;
    load_side(i, index, path, needed_columns(i, hit, slot.token_count));
  }
  tree->copy_path(path, 0, row);
  hold_path_sides(row, hit, slot.token_count, /*is_held=*/false);
}

// The columns of a path that a sequence needs of a side group to go on there.
WindowColumns Cache::Impl::needed_columns(std::size_t side, const Hit& hit, std::uint32_t token_count) const {
  if (!sides[side].is_window) {
    const std::uint32_t end = hit.start() / page_tokens;
    return {.first = end - std::min(end, 1U), .last = end};
  }
  return window_columns(hit_groups[side], hit_limits,
                        {.start = hit.start(), .end = hit.tokens, .runs_again = hit.start() == token_count});
}

SideLoadRoom Cache::Impl::room_for_side_loads(std::span<const PageId> row, const Hit& hit,
                                              std::uint32_t token_count) const {
  std::size_t transfer_count = side_transfer_count;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const SideGroup& side = sides[i];
    if (side.host == nullptr || hit.is_rebuilt(i)) continue;
    std::uint32_t needed = 0;
    for_each_column(needed_columns(i, hit, token_count), [&](std::uint32_t column) {
      const PageId tree_page = row[column];
      needed += !side.pages.has(tree_page) && side.host->loads[tree_page.value] == 0 ? 1 : 0;
    });
    const std::uint32_t available = available_pages(side) - (step_order.empty() ? side.fenced.count() : 0);
    if (needed > available) return SideLoadRoom::Never;
    transfer_count += (needed + config.host.transfer_pages_max - 1) / config.host.transfer_pages_max;
  }
  if (transfer_count <= side_transfers.size()) return SideLoadRoom::Now;
  return side_transfer_count > 0 ? SideLoadRoom::Later : SideLoadRoom::Never;
}

// Pins what the device has of that, or no longer.
void Cache::Impl::hold_path_sides(std::span<const PageId> row, const Hit& hit, std::uint32_t token_count,
                                  bool is_held) {
  for (std::size_t i = 0; i < sides.size(); ++i) {
    SideGroup& side = sides[i];
    if (!side.has_pages || hit.is_rebuilt(i)) continue;
    for_each_column(needed_columns(i, hit, token_count), [&](std::uint32_t column) {
      const PageId page = side.pages.at(row[column]);
      if (page.is_none()) return;
      if (is_held) {
        side.pages.pin(page);
      } else {
        side.pages.unpin(page, SidePages::Worth::Kept);
      }
    });
  }
}

// A free page of the device that may be written at any time from now on, or none. Those that wait for moves of the next
// plan are not among them.
PageId Cache::Impl::take_load_target(SideGroup& side) {
  do {
    for (std::uint32_t tries = side.pool.free_count(); tries > 0; --tries) {
      PageId page;
      QUIRE_CHECK(side.pool.try_allocate({&page, 1}), "pages that were counted are not there");
      if (is_over(side.host->settled_by_step[page.value])) return page;
      side.pool.release({&page, 1});  // its turn comes after all others'
    }
  } while (evict_side(side));
  return PageId::none();
}

void Cache::Impl::wait_for_side_load(std::uint32_t load, std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  std::vector<SequenceId>& waiters = side_transfers[load].waiters;
  if (std::ranges::find(waiters, SequenceId{index, slot.generation}) != waiters.end()) return;
  waiters.push_back({index, slot.generation});
  ++slot.side_loads;
}

void Cache::Impl::load_side(std::uint32_t side_index, std::uint32_t index, const PrefixTree::Pin& path,
                            const WindowColumns& columns) {
  const SequenceSlot& slot = sequences[index];
  SideGroup& side = sides[side_index];
  SideHost& host = *side.host;
  const std::span<const PageId> row = std::span(path_scratch).first(tree->end_page(path.run()));
  std::optional<std::uint32_t> load;
  bool has_room = true;
  for_each_column(columns, [&](std::uint32_t column) {
    const PageId tree_page = row[column];
    if (!has_room || side.pages.has(tree_page) || !host.of_device.has(tree_page)) return;
    if (host.loads[tree_page.value] != 0) {  // somebody else's brings it
      wait_for_side_load(host.loads[tree_page.value] - 1, index);
      return;
    }
    if (!load || side_transfers[*load].page_count == config.host.transfer_pages_max) {
      load = add_side_transfer(TransferKind::Load, side_index);
      has_room = load.has_value();
      if (!has_room) return;
      SideTransfer& started = side_transfers[*load];
      started.pin = tree->clone(path);
      started.key_space = slot.key_space;
      started.deadline = config.host.load_timeout_ns > 0 ? time_after(config.host.load_timeout_ns) : INT64_MAX;
      ++key_spaces[slot.key_space].user_count;
      wait_for_side_load(*load, index);
    }
    const PageId target = take_load_target(side);
    has_room = !target.is_none();
    if (!has_room) return;
    const PageId host_page = host.of_device.at(tree_page);
    ++host.readers[host_page.value];
    host.loads[tree_page.value] = *load + 1;
    SideTransfer& filled = side_transfers[*load];
    side_page_row(*load)[filled.page_count++] = {.device_page = target,
                                                 .host_page = host_page,
                                                 .host_generation = host.generations[host_page.value],
                                                 .place = tree_page.value,
                                                 .name_tag = side_name_tag(side, tree_page)};
  });
  if (load && side_transfers[*load].page_count == 0) end_side_load(*load);
}

void Cache::Impl::finish_side_load(std::uint32_t index) {
  const SideTransfer& load = side_transfers[index];
  SideGroup& side = sides[load.side];
  SideHost& host = *side.host;
  const std::span<const PageTransfer> pages = side_page_row(index).first(load.page_count);
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const PageTransfer& page = pages[i];
    const PageId tree_page{page.place};  // pinned since, if it is wanted
    const bool is_good = i < load.good_pages && !load.is_unwanted;
    if (is_good && !side.pages.has(tree_page)) {
      side.pool.seal({&page.device_page, 1});
      side.pages.attach(tree_page, page.device_page);
      side.pages.unpin(page.device_page, SidePages::Worth::Kept);
      host.device_columns[page.device_page.value] = host.columns[page.host_page.value];
      ++side.totals.loaded_page_total;
    } else {
      side.pool.release({&page.device_page, 1});
    }
    // The page itself is not what it should be.
    const bool is_bad = !load.is_unwanted && i == load.good_pages && load.outcome == TransferOutcome::Failed &&
                        load.fault != TransferFault::None && load.fault != TransferFault::Io;
    if (is_bad && host.of_device.at(tree_page) == page.host_page) release_host(side, host.of_device.drop(tree_page));
    release_host_read(side, page.host_page);
  }
  end_side_load(index);
}

// What it brings is of no use to anybody: pages of the tree may be others from here on.
void Cache::Impl::disown_side_load(std::uint32_t index) {
  SideTransfer& load = side_transfers[index];
  if (load.is_unwanted) return;
  load.is_unwanted = true;
  if (load.kind == TransferKind::Load) {
    for (const PageTransfer& page : side_page_row(index).first(load.page_count)) {
      sides[load.side].host->loads[page.place] = 0;
    }
  }
  load.pin.reset();
}

// It takes too long, or nobody waits for it.
void Cache::Impl::call_off_side_load(std::uint32_t index, MissReason reason) {
  SideTransfer& load = side_transfers[index];
  const bool is_late = reason == MissReason::LoadTimedOut;
  ++counters.load_outcomes[static_cast<std::size_t>(is_late ? TransferOutcome::TimedOut : TransferOutcome::Cancelled)];
  for (const SequenceId waiter : load.waiters) {
    SequenceSlot& slot = sequences[waiter.index];
    if (slot.load_miss == MissReason::None) slot.load_miss = reason;
    --slot.side_loads;
  }
  load.waiters.clear();
  disown_side_load(index);
  if (load.state == SideTransfer::State::Queued) {
    finish_side_load(index);
  } else if (mover != nullptr) {
    mover->cancel({static_cast<std::uint32_t>(transfers.size()) + index, load.generation});
  }
}

void Cache::Impl::expire_side_loads() {
  for (std::uint32_t i = 0; i < side_transfers.size() && side_transfer_count > 0; ++i) {
    const SideTransfer& load = side_transfers[i];
    const bool waits = load.state != SideTransfer::State::Free && load.kind == TransferKind::Load && !load.is_unwanted;
    if (waits && now >= load.deadline) call_off_side_load(i, MissReason::LoadTimedOut);
  }
}

// A sequence waits no longer.
void Cache::Impl::leave_side_loads(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  for (std::uint32_t i = 0; i < side_transfers.size() && slot.side_loads > 0; ++i) {
    if (std::erase(side_transfers[i].waiters, SequenceId{index, slot.generation}) == 0) continue;
    --slot.side_loads;
    if (side_transfers[i].waiters.empty()) call_off_side_load(i, MissReason::LoadCancelled);
  }
}

// Those who wait for it go on.
void Cache::Impl::end_side_load(std::uint32_t index) {
  const std::uint32_t key_space = side_transfers[index].key_space;
  for (const SequenceId waiter : side_transfers[index].waiters) --sequences[waiter.index].side_loads;
  disown_side_load(index);
  remove_side_transfer(index);
  --key_spaces[key_space].user_count;
  leave_key_space(key_space);
}

void Cache::Impl::apply_side(const Completion& completion) {
  const auto index = static_cast<std::uint32_t>(completion.id.index - transfers.size());
  const bool is_known = index < side_transfers.size() && side_transfers[index].generation == completion.id.generation &&
                        side_transfers[index].state == SideTransfer::State::Moving &&
                        completion.rank < config.host.rank_count &&
                        (side_transfers[index].reported_ranks & (1ULL << completion.rank)) == 0;
  if (!is_known) {
    ++counters.unknown_completion_count;
    return;
  }
  SideTransfer& transfer = side_transfers[index];
  const bool is_ok = completion.outcome == TransferOutcome::Ok;
  const std::uint32_t good = is_ok ? transfer.page_count : std::min(completion.good_pages, transfer.page_count);
  // Where ranks differ, the one that stopped first says why.
  const bool is_first = transfer.reported_ranks == 0;
  if (!is_ok && (is_first || transfer.outcome == TransferOutcome::Ok || good < transfer.good_pages)) {
    transfer.outcome = completion.outcome;
    transfer.fault = completion.fault;
  }
  transfer.good_pages = is_first ? good : std::min(transfer.good_pages, good);
  transfer.reported_ranks |= 1ULL << completion.rank;
  count_side(transfer, completion);
  if (std::popcount(transfer.reported_ranks) < static_cast<int>(config.host.rank_count)) return;
  const auto outcome = static_cast<std::size_t>(transfer.outcome);
  if (transfer.kind == TransferKind::Store) ++counters.store_outcomes[outcome];
  if (transfer.kind == TransferKind::Load && !transfer.is_unwanted) ++counters.load_outcomes[outcome];
  if (transfer.kind == TransferKind::Load && transfer.outcome == TransferOutcome::Failed) {
    ++counters.load_faults[static_cast<std::size_t>(transfer.fault)];
  }
  if (transfer.kind == TransferKind::LoadFromDisk) ++counters.disk_load_outcomes[outcome];
  if (transfer.kind == TransferKind::StoreToDisk) ++counters.disk_store_outcomes[outcome];
  end_side_transfer(index);
}

void Cache::Impl::count_side(const SideTransfer& transfer, const Completion& completion) {
  switch (transfer.kind) {
    case TransferKind::Load:
      counters.loaded_bytes += completion.moved_bytes;
      measure_rate(completion, load_rate);
      return;
    case TransferKind::Store:
      counters.stored_bytes += completion.moved_bytes;
      measure_rate(completion, store_rate);
      return;
    case TransferKind::LoadFromDisk:
      counters.disk_loaded_bytes += completion.moved_bytes;
      measure_rate(completion, disk_load_rate);
      return;
    default: {
      counters.disk_stored_bytes += completion.moved_bytes;
      // What was taken from the budget was a guess.
      const std::uint64_t page_bytes = sides[transfer.side].memory.geometry->page().page_bytes();
      const std::uint64_t guessed = transfer.page_count * record_bytes(page_bytes);
      write_budget += static_cast<double>(guessed) - static_cast<double>(completion.moved_bytes);
      return;
    }
  }
}

void Cache::Impl::end_side_transfer(std::uint32_t index) {
  switch (side_transfers[index].kind) {
    case TransferKind::Load:
      finish_side_load(index);
      return;
    case TransferKind::Store:
      finish_side_store(index);
      return;
    case TransferKind::LoadFromDisk:
      finish_side_disk_load(index);
      return;
    default:
      finish_side_disk_store(index);
      return;
  }
}

// What nobody has taken yet is not started: its pages are nobody's. What loads that are moving bring is not used.
void Cache::Impl::cancel_side_transfers() {
  for (std::uint32_t i = 0; i < side_transfers.size(); ++i) {
    const SideTransfer& transfer = side_transfers[i];
    if (transfer.state == SideTransfer::State::Free) continue;
    if (transfer.kind == TransferKind::Load && !transfer.is_unwanted) {
      call_off_side_load(i, MissReason::LoadCancelled);
      continue;
    }
    if (transfer.kind == TransferKind::LoadFromDisk) disown_side_load(i);
    if (transfer.state != SideTransfer::State::Queued) continue;
    side_transfers[i].good_pages = 0;
    side_transfers[i].outcome = TransferOutcome::Cancelled;
    end_side_transfer(i);
  }
  for (SideGroup& side : sides) {
    if (side.host == nullptr) continue;
    while (side.host->wanted.size() > 0) side.host->wanted.remove(side.host->wanted.front());
  }
}

void CachePeer::visit_host_pages(const Cache& cache, std::uint32_t group_index,
                                 const std::function<void(Tier, PageId)>& visit) {
  for (const SideGroup& side : cache.impl_->sides) {
    if (side.memory.group_index != group_index || side.host == nullptr) continue;
    side.host->of_device.for_each([&](PageId page, PageId /*host_page*/) { visit(Tier::Device, page); });
    side.host->of_host.for_each([&](PageId page, PageId /*host_page*/) { visit(Tier::Host, page); });
  }
}

}  // namespace quire
