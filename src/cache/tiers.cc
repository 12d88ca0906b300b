// SPDX-License-Identifier: Apache-2.0
//
// Cache: the host tier. What goes to the host, when, and what makes room for it there.
//
// A page that a store reads stays what it is until that is over: device pages that leave the tree meanwhile are fenced,
// and so are host pages that a load reads.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Status Cache::Impl::open_host() {
  const HostConfig& host = config.host;
  clean_reserve_pages = clean_reserve_for(pool_page_count());
  if (clean_reserve_pages > pool_page_count()) {
    return fail(ErrorCode::InvalidArgument, "host.clean_reserve_pages is " + with_separators(clean_reserve_pages) +
                                                "; the device pool has " + with_separators(pool_page_count()) +
                                                " pages");
  }
  QUIRE_TRY_ASSIGN(host_pool, PagePool::create({.page_count = host_page_count, .first_page = 1}));
  QUIRE_TRY_ASSIGN(host_generations, LazyArray<std::uint32_t>::create(std::size_t{host_page_count} + 1));
  QUIRE_TRY_ASSIGN(host_readers, LazyArray<std::uint32_t>::create(std::size_t{host_page_count} + 1));
  QUIRE_TRY_ASSIGN(device_readers, LazyArray<std::uint32_t>::create(std::size_t{pool_page_count()} + 1));
  QUIRE_TRY_ASSIGN(copy_after_step, LazyArray<std::uint64_t>::create(std::size_t{pool_page_count()} + 1));
  if (sequences.keys().lookahead_tokens() > 0) {
    QUIRE_TRY_ASSIGN(copy_after_call, LazyArray<std::uint64_t>::create(std::size_t{pool_page_count()} + 1));
  }
  transfers.resize(host.transfer_count_max);
  QUIRE_TRY_ASSIGN(transfer_pages,
                   LazyArray<PageTransfer>::create(std::size_t{host.transfer_count_max} * host.transfer_pages_max));
  transfer_order.reserve(host.transfer_count_max);
  leaving_pages.resize(host.transfer_pages_max);
  path_runs.reserve(sequences.row_pages());
  QUIRE_TRY_ASSIGN(saved_pages,
                   LazyArray<PageId>::create(std::size_t{config.sequence_count_max} * (sequences.row_pages() + 1)));
  completions.resize(std::size_t{host.transfer_count_max} * (sides.empty() ? 1 : 2));
  if (!sides.empty()) QUIRE_TRY(open_side_hosts());
  ready_sequences.reserve(config.sequence_count_max);
  if (!host.external_mover) {
    MoverConfig mover_config{.host_region = host.region,
                             .checksums = host.checksums,
                             .queue_depth_max = host.transfer_count_max,
                             .transfer_pages_max = host.transfer_pages_max,
                             .accelerator = config.device.accelerator,
                             .staging_bytes = host.staging_bytes,
                             .load_paths = host.load_paths,
                             .store_paths = host.store_paths};
    // The history's pool, then one for each side group that has pages.
    const auto part_of = [&](const PoolGeometry& of, std::byte* data, std::uint32_t group_index) {
      MoverPart part{.geometry = &of, .memory = data};
      if (data == nullptr) part.tensors = config.device.adopted_tensors[group_index];
      return part;
    };
    MoverPool& history = mover_config.pools.emplace_back();
    history.host_page_count = host_page_count;
    history.parts.push_back(part_of(geometry, memory, history_index));
    for (const GroupMemory& group : more_history) {
      history.parts.push_back(part_of(*group.geometry, group.data, group.group_index));
    }
    for (const SideGroup& side : sides) {
      if (side.host == nullptr) continue;
      MoverPool& of_side = mover_config.pools.emplace_back();
      of_side.host_page_count = side.host->pool.page_count();
      of_side.parts.push_back(part_of(*side.memory.geometry, side.memory.data, side.memory.group_index));
    }
    if (mover_config.pools.size() > 1) mover_config.queue_depth_max *= 2;
    QUIRE_TRY_ASSIGN(mover, Mover::open(mover_config));
    host_region = mover->host_region();
  }
  return {};
}

std::uint32_t Cache::Impl::evictable_now() const {
  if (!has_host()) return tree->evictable_pages();
  // A page that is being copied can be evicted, but not used before that is over.
  const std::uint32_t pages = writes_back() ? tree->left_pages() : tree->evictable_pages();
  const std::uint32_t read_pages = (writes_back() ? 0 : tree->storing_count()) + abandoned_save_pages;
  return pages - std::min(pages, read_pages);
}

std::uint32_t Cache::Impl::available_besides(const PrefixTree::Match& match) const {
  const std::uint32_t matched = writes_back() ? tree->left_pages(match) : tree->idle_pages(match);
  const std::uint32_t evictable = evictable_now() - std::min(evictable_now(), matched);
  return pool.free_count() + evictable + (step_order.empty() ? fenced.count() : 0);
}

// Device pages that are free, or can be had, once what is on its way to the host has arrived.
std::uint32_t Cache::Impl::pages_leaving() const {
  std::uint32_t pages = tree->leaving_pages();
  if (!writes_back()) pages += std::min(tree->storing_count(), tree->evictable_pages());
  // More will leave when a transfer is over.
  if (writes_back() && live_transfer_count == transfers.size()) pages += tree->evictable_pages() - tree->left_pages();
  for (const Transfer& each : transfers) {
    const bool saves = each.state != Transfer::State::Free && each.kind == TransferKind::Store;
    if (saves && each.sequence != SequenceId{}) pages += each.page_count;
  }
  return pages;
}

// Copies

// Pages of a sequence that have just come into the tree.
void Cache::Impl::want_copies(std::uint32_t index, std::uint32_t first_page, std::uint32_t end_page) {
  const std::span<const PageId> row = sequences.page_row(index);
  // Moves of a committed tree come with the next plan: until that is over, the bytes are not all there.
  const std::uint64_t after_step = move_count() > 0 ? step_number + 1 : 0;
  for (std::uint32_t page = first_page; page < end_page; ++page) {
    copy_after_step[row[page].value] = after_step;
    if (copy_after_call.size() > 0) copy_after_call[row[page].value] = call_number;
    const bool is_wanted = config.host.write_policy == WritePolicy::WriteThrough;
    if (is_wanted && tree->copy_of(row[page]).state == PrefixTree::Copy::None) tree->want_copy(row[page]);
  }
}

// Pages that have been used often enough.
void Cache::Impl::want_copies_of_path(const PrefixTree::Pin& pin) {
  if (config.host.write_policy != WritePolicy::Selective) return;
  for (RunId run = pin.run(); !tree->parent(run).is_none(); run = tree->parent(run)) {
    if (tree->use_count(run) < config.host.write_hits_min) continue;
    for (const PageId page : tree->pages(run)) {
      if (tree->copy_of(page).state == PrefixTree::Copy::None) tree->want_copy(page);
    }
  }
}

// Whether moves that come with a step have been made: none that is still to be writes the page, though it may have left
// the tree meanwhile.
bool Cache::Impl::is_over(std::uint64_t step) const {
  if (step_order.empty() && move_count() == 0) return true;  // flush_moves() may have made them without a step
  return step == 0 || (step <= step_number && (step_order.empty() || steps[step_order.front()].number > step));
}

// Free pages that may be written at any time from now on, all of them or none.
bool Cache::Impl::try_take_targets(std::span<PageId> out) {
  std::uint32_t tries = pool.free_count();
  for (std::size_t taken = 0; taken < out.size();) {
    if (tries-- == 0) {
      pool.release(out.first(taken));
      return false;
    }
    QUIRE_CHECK(pool.try_allocate(out.subspan(taken, 1)), "pages that were counted are not there");
    if (is_settled(out[taken])) {
      ++taken;
    } else {
      pool.release(out.subspan(taken, 1));  // its turn comes after all others'
    }
  }
  return true;
}

// None when the host is full of what cannot go.
PageId Cache::Impl::take_host_page() {
  PageId page;
  while (!host_pool.try_allocate({&page, 1})) {
    const std::uint32_t evicted = tree->evict_host(1);
    if (evicted == 0) return PageId::none();
    counters.host_evicted_page_total += evicted;
    release_freed_host();
  }
  ++host_generations[page.value];
  return page;
}

void Cache::Impl::release_host(PageId host_page) {
  if (kFencesTransfers && host_readers[host_page.value] > 0) {
    host_pool.fence({&host_page, 1});
  } else {
    host_pool.release({&host_page, 1});
  }
}

// A load, or a store to disk, no longer reads the page.
void Cache::Impl::release_host_read(PageId host_page) {
  if (--host_readers[host_page.value] > 0 || host_pool.state(host_page) != PageState::Fenced) return;
  host_pool.release({&host_page, 1});
}

void Cache::Impl::release_freed_host() {
  if (!has_host()) return;
  tree->take_freed_host([this](PageId page) {
    if (!sides.empty()) drop_host_sides(page);
    if (has_disk()) forget_on_disk(page);
    release_host(page);
  });
}

// False when the host has no room.
bool Cache::Impl::add_store(std::uint32_t transfer, PageId device_page) {
  const PageId host_page = take_host_page();
  if (host_page.is_none()) return false;
  tree->start_copy(device_page, host_page);
  if (has_disk()) name_log.add_copy(NameLog::Kind::HostCopy, host_page, device_page);
  ++device_readers[device_page.value];
  add_page(transfer, way_of(device_page, host_page, tree->fingerprint(device_page, Tier::Device)));
  return true;
}

// Starts what is wanted, as long as there are transfers and host pages for it.
void Cache::Impl::start_stores() {
  for (PageId page = tree->next_wanted(); !page.is_none() && is_settled(page);) {
    const std::optional<std::uint32_t> transfer = add_transfer(TransferKind::Store, TransferPriority::Background);
    if (!transfer) return;
    Transfer& store = transfers[*transfer];
    while (!page.is_none() && is_settled(page) && store.page_count < config.host.transfer_pages_max && may_copy()) {
      if (!add_store(*transfer, page)) break;
      page = tree->next_wanted();
    }
    if (store.page_count > 0) continue;
    remove_transfer(*transfer);
    return;
  }
}

// Sees to it that so many device pages are free, or can be had at once, when what is on its way has arrived.
void Cache::Impl::start_leaving(std::uint32_t page_count) {
  while (pool.free_count() + tree->left_pages() + tree->leaving_pages() < page_count) {
    const std::optional<std::uint32_t> transfer = add_transfer(TransferKind::Store, TransferPriority::Background);
    if (!transfer) break;
    const RunId run = tree->start_leaving(config.host.transfer_pages_max);
    if (run.is_none()) {
      remove_transfer(*transfer);
      break;
    }
    // What makes room for them on the host moves the tree's storage about.
    const std::span<const PageId> leaving = tree->pages(run);
    const std::span<PageId> pages = std::span(leaving_pages).first(leaving.size());
    std::ranges::copy(leaving, pages.begin());
    for (const PageId page : pages) {
      if (tree->copy_of(page).state != PrefixTree::Copy::None || !is_settled(page)) continue;
      if (!add_store(*transfer, page)) break;  // the rest is given up without a copy
    }
    if (transfers[*transfer].page_count == 0) remove_transfer(*transfer);
  }
  tree->end_leaving();
}

void Cache::Impl::finish_store(std::uint32_t index) {
  const Transfer& store = transfers[index];
  const std::span<const PageTransfer> pages = pages_of(index);
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const PageTransfer& page = pages[i];
    const PrefixTree::HostCopy copy = tree->copy_of(page.device_page);
    const bool is_awaited = copy.state == PrefixTree::Copy::Storing && copy.host_page == page.host_page;
    if (is_awaited && i < store.good_pages) {
      host_pool.seal({&page.host_page, 1});
      tree->end_copy(page.device_page, /*goes_first=*/writes_back());
      if (has_disk()) want_on_disk(page.host_page, page.device_page);
      ++counters.stored_page_total;
    } else {
      if (is_awaited) tree->forget_copy(page.device_page);  // else the page has left the tree
      has_lost_copies = has_lost_copies || (is_awaited && store.outcome == TransferOutcome::Failed);
      host_pool.release({&page.host_page, 1});
    }
    release_read(page.device_page);
  }
  remove_transfer(index);
  tree->end_leaving();
}

// A store no longer reads the page: it goes, if it was given up meanwhile and nobody else reads it, when the steps in
// flight are over, of which one may have been planned before it was given up.
void Cache::Impl::release_read(PageId device_page) {
  if (--device_readers[device_page.value] > 0 || pool.state(device_page) != PageState::Fenced) return;
  if (step_order.empty() && move_count() == 0) {
    pool.release({&device_page, 1});
  } else {
    fenced.push(device_page, move_count() > 0 ? step_number + 1 : step_at(step_order.size() - 1).number);
  }
}

}  // namespace quire
