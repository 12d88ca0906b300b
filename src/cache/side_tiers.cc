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
    QUIRE_TRY_ASSIGN(host.pool, PagePool::create({.page_count = count, .first_page = 1}));
    QUIRE_TRY_ASSIGN(host.of_device,
                     SidePages::create({.tree_page_end = pool_page_count() + 1, .side_page_end = count + 1}));
    QUIRE_TRY_ASSIGN(host.of_host,
                     SidePages::create({.tree_page_end = host_page_count + 1, .side_page_end = count + 1}));
    QUIRE_TRY_ASSIGN(host.generations, LazyArray<std::uint32_t>::create(std::size_t{count} + 1));
    QUIRE_TRY_ASSIGN(host.readers, LazyArray<std::uint32_t>::create(std::size_t{count} + 1));
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
    PageId victim = host.of_device.evict();  // the device has it too
    if (victim.is_none()) victim = host.of_host.evict();
    if (victim.is_none()) return PageId::none();
    release_host(side, victim);
  }
  ++host.generations[page.value];
  return page;
}

void Cache::Impl::release_host(SideGroup& side, PageId host_page) {
  if (kFencesTransfers && side.host->readers[host_page.value] > 0) {
    side.host->pool.fence({&host_page, 1});
  } else {
    side.host->pool.release({&host_page, 1});
  }
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
    const PageId page = side.host->of_device.drop(device_page);
    if (page.is_none()) continue;
    side.host->of_host.attach(host_page, page);
    side.host->of_host.unpin(page, SidePages::Worth::Kept);
  }
}

void Cache::Impl::on_promote(PageId host_page, PageId device_page) {
  for (SideGroup& side : sides) {
    if (side.host == nullptr) continue;
    const PageId page = side.host->of_host.drop(host_page);
    if (page.is_none()) continue;
    side.host->of_device.attach(device_page, page);
    side.host->of_device.unpin(page, SidePages::Worth::Kept);
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

void Cache::Impl::want_side_copy(SideGroup& side, PageId page) {
  if (side.host == nullptr || side.host->wanted.contains(page.value)) return;
  side.host->wanted.push_back(page.value);
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
  const std::uint32_t generation = transfer.generation;
  transfer = {};
  transfer.generation = generation;
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
  transfer = {};
  transfer.generation = generation;
  --side_transfer_count;
}

TransferPlan Cache::Impl::side_plan_of(std::uint32_t index) {
  const SideTransfer& transfer = side_transfers[index];
  const bool is_load = transfer.kind == TransferKind::Load;
  return {.id = {static_cast<std::uint32_t>(transfers.size()) + index, transfer.generation},
          .kind = transfer.kind,
          .priority = is_load ? TransferPriority::Waiting : TransferPriority::Background,
          .band_count = 1,
          .pool_index = static_cast<std::uint16_t>(transfer.side + 1),
          .pages = side_page_row(index).first(transfer.page_count)};
}

std::uint64_t Cache::Impl::side_name_tag(const SideGroup& side, PageId tree_page) const {
  return mix64(tree->fingerprint(tree_page, Tier::Device) + (std::uint64_t{side.memory.group_index} << 32U));
}

// Copies what is wanted, as long as there are transfers and host pages.
void Cache::Impl::start_side_stores() {
  if (move_count() > 0) return;  // pages may still be written by moves of the next plan
  for (std::uint32_t i = 0; i < sides.size(); ++i) {
    SideGroup& side = sides[i];
    if (side.host == nullptr) continue;
    SideHost& host = *side.host;
    while (host.wanted.size() > 0) {
      const std::optional<std::uint32_t> index = add_side_transfer(TransferKind::Store, i);
      if (!index) return;
      SideTransfer& store = side_transfers[*index];
      while (host.wanted.size() > 0 && store.page_count < config.host.transfer_pages_max) {
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
      host.of_device.unpin(pages[i].host_page, SidePages::Worth::Kept);
    } else {
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

// What a loading sequence, whose history has arrived, needs of side groups and the device lacks. False: nothing is on
// its way to it.
bool Cache::Impl::start_side_loads(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  slot.has_asked_sides = true;
  if (slot.tier_max == Tier::Device || is_paused) return false;
  // Whole pages of the device: a part of one is found by what is there.
  PrefixTree::Match match = match_of(index);
  match = tree->cut_pages(match, match.page_count);
  const Hit hit = find_hit(match, slot.token_count, slot.allows_inexact, /*counts_host=*/true);
  if (hit.tokens == 0) return false;
  const PrefixTree::Pin path = tree->pin_all(match);
  const std::span<PageId> row = std::span(path_scratch).first(tree->end_page(path.run()));
  tree->copy_path(path, 0, row);
  // What is there must not make room for what is not.
  hold_path_sides(row, hit, slot.token_count, /*is_held=*/true);
  const bool fits =
      can_load_sides(row, hit, slot.token_count);  // all of it, or what is evicted for it goes for nothing
  for (std::uint32_t i = 0; fits && i < sides.size(); ++i) {
    if (sides[i].host != nullptr && !hit.is_rebuilt(i))
      load_side(i, index, path, needed_columns(i, hit, slot.token_count));
  }
  tree->copy_path(path, 0, row);
  hold_path_sides(row, hit, slot.token_count, /*is_held=*/false);
  return slot.side_loads > 0;
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

bool Cache::Impl::can_load_sides(std::span<const PageId> row, const Hit& hit, std::uint32_t token_count) const {
  std::size_t transfer_count = side_transfer_count;
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const SideGroup& side = sides[i];
    if (side.host == nullptr || hit.is_rebuilt(i)) continue;
    const WindowColumns columns = needed_columns(i, hit, token_count);
    std::uint32_t needed = 0;
    for (std::uint32_t column = 0; column < columns.last; ++column) {
      const bool is_needed = column < columns.sink_pages || column >= columns.first;
      needed += is_needed && !side.pages.has(row[column]) ? 1 : 0;
    }
    const std::uint32_t available = available_pages(side) - (step_order.empty() ? side.fenced.count() : 0);
    if (needed > available) return false;
    transfer_count += (needed + config.host.transfer_pages_max - 1) / config.host.transfer_pages_max;
  }
  return transfer_count <= side_transfers.size();
}

// Pins what the device has of that, or no longer.
void Cache::Impl::hold_path_sides(std::span<const PageId> row, const Hit& hit, std::uint32_t token_count,
                                  bool is_held) {
  for (std::size_t i = 0; i < sides.size(); ++i) {
    SideGroup& side = sides[i];
    if (!side.has_pages || hit.is_rebuilt(i)) continue;
    const WindowColumns columns = needed_columns(i, hit, token_count);
    for (std::uint32_t column = 0; column < columns.last; ++column) {
      if (column >= columns.sink_pages && column < columns.first) continue;
      const PageId page = side.pages.at(row[column]);
      if (page.is_none()) continue;
      if (is_held) {
        side.pages.pin(page);
      } else {
        side.pages.unpin(page, SidePages::Worth::Kept);
      }
    }
  }
}

void Cache::Impl::load_side(std::uint32_t side_index, std::uint32_t index, const PrefixTree::Pin& path,
                            const WindowColumns& columns) {
  SequenceSlot& slot = sequences[index];
  SideGroup& side = sides[side_index];
  const std::span<const PageId> row = std::span(path_scratch).first(tree->end_page(path.run()));
  std::optional<std::uint32_t> load;
  for (std::uint32_t column = 0; column < columns.last; ++column) {
    if (column >= columns.sink_pages && column < columns.first) continue;
    const PageId tree_page = row[column];
    if (side.pages.has(tree_page) || !side.host->of_device.has(tree_page)) continue;
    if (!load || side_transfers[*load].page_count == config.host.transfer_pages_max) {
      load = add_side_transfer(TransferKind::Load, side_index);
      if (!load) return;
      SideTransfer& started = side_transfers[*load];
      started.waiter = {index, slot.generation};
      started.pin = tree->clone(path);
      started.key_space = slot.key_space;
      ++key_spaces[slot.key_space].user_count;
      ++slot.side_loads;
    }
    make_room(side, 1);
    PageId target;
    if (!side.pool.try_allocate({&target, 1})) break;
    const PageId host_page = side.host->of_device.at(tree_page);
    ++side.host->readers[host_page.value];
    SideTransfer& filled = side_transfers[*load];
    side_page_row(*load)[filled.page_count++] = {.device_page = target,
                                                 .host_page = host_page,
                                                 .host_generation = side.host->generations[host_page.value],
                                                 .place = tree_page.value,
                                                 .name_tag = side_name_tag(side, tree_page)};
  }
  if (load && side_transfers[*load].page_count == 0) end_side_load(*load);
}

void Cache::Impl::finish_side_load(std::uint32_t index) {
  const SideTransfer& load = side_transfers[index];
  SideGroup& side = sides[load.side];
  const std::span<const PageTransfer> pages = side_page_row(index).first(load.page_count);
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const PageTransfer& page = pages[i];
    const PageId tree_page{page.place};  // pinned since
    const bool is_good = i < load.good_pages;
    if (is_good && !side.pages.has(tree_page)) {
      side.pool.seal({&page.device_page, 1});
      side.pages.attach(tree_page, page.device_page);
      side.pages.unpin(page.device_page, SidePages::Worth::Kept);
      ++side.totals.loaded_page_total;
    } else {
      side.pool.release({&page.device_page, 1});
    }
    const bool is_bad = !is_good && i == load.good_pages && load.outcome == TransferOutcome::Failed;
    if (is_bad && side.host->of_device.at(tree_page) == page.host_page) {
      release_host(side, side.host->of_device.drop(tree_page));
    }
    SideHost& host = *side.host;
    if (--host.readers[page.host_page.value] == 0 && host.pool.state(page.host_page) == PageState::Fenced) {
      host.pool.release({&page.host_page, 1});
    }
  }
  end_side_load(index);
}

// Nobody waits for it any longer.
void Cache::Impl::end_side_load(std::uint32_t index) {
  const SequenceId waiter = side_transfers[index].waiter;
  const std::uint32_t key_space = side_transfers[index].key_space;
  side_transfers[index].pin.reset();
  remove_side_transfer(index);
  if (waiter.index < sequences.capacity() && sequences[waiter.index].generation == waiter.generation &&
      sequences[waiter.index].side_loads > 0) {
    --sequences[waiter.index].side_loads;
  }
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
  transfer.good_pages = transfer.reported_ranks == 0 ? good : std::min(transfer.good_pages, good);
  if (!is_ok && completion.fault != TransferFault::None && completion.fault != TransferFault::Io) {
    transfer.outcome = TransferOutcome::Failed;  // the page itself is not what it should be
  }
  transfer.reported_ranks |= 1ULL << completion.rank;
  const bool is_load = transfer.kind == TransferKind::Load;
  (is_load ? counters.loaded_bytes : counters.stored_bytes) += completion.moved_bytes;
  if (std::popcount(transfer.reported_ranks) < static_cast<int>(config.host.rank_count)) return;
  if (is_load) {
    finish_side_load(index);
  } else {
    finish_side_store(index);
  }
}

// What nobody has taken yet is not started: its pages are nobody's.
void Cache::Impl::cancel_side_transfers() {
  for (std::uint32_t i = 0; i < side_transfers.size(); ++i) {
    if (side_transfers[i].state != SideTransfer::State::Queued) continue;
    side_transfers[i].good_pages = 0;
    side_transfers[i].outcome = TransferOutcome::Cancelled;
    if (side_transfers[i].kind == TransferKind::Load) {
      finish_side_load(i);
    } else {
      finish_side_store(i);
    }
  }
  for (SideGroup& side : sides) {
    if (side.host == nullptr) continue;
    while (side.host->wanted.size() > 0) side.host->wanted.remove(side.host->wanted.front());
  }
}

}  // namespace quire
