// SPDX-License-Identifier: Apache-2.0
#include "tiers/host_stores.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

// What is to be copied

void HostStores::want_copies(std::uint32_t sequence, std::uint32_t first_page, std::uint32_t end_page) {
  QUIRE_CHECK(first_page <= end_page, "the columns of a sequence's new pages end before they begin");
  const std::span<const PageId> row = parts_.sequences.page_row(sequence);
  const bool is_wanted = parts_.config.host.write_policy == WritePolicy::WriteThrough;
  for (const PageId page : row.subspan(first_page, end_page - first_page)) {
    parts_.history.pages.settle_later(page);
    if (is_wanted && parts_.tree.copy_of(page).state == PrefixTree::Copy::None) parts_.tree.want_copy(page);
  }
}

void HostStores::want_copies_of_path(const PrefixTree::Pin& path) {
  if (parts_.config.host.write_policy != WritePolicy::Selective) return;
  for (RunId run = path.run(); !parts_.tree.parent(run).is_none(); run = parts_.tree.parent(run)) {
    if (parts_.tree.use_count(run) < parts_.config.host.write_hits_min) continue;
    for (const PageId page : parts_.tree.pages(run)) {
      if (parts_.tree.copy_of(page).state == PrefixTree::Copy::None) parts_.tree.want_copy(page);
    }
  }
}

void HostStores::want_all_copies() {
  for (const auto& group : parts_.groups) {
    const auto is_on = [](const LowerCopies& copies) { return copies.is_on(); };
    if (group->has_host() && std::ranges::any_of(group->pages.lower, is_on)) group->want_all_copies();
  }
  if (parts_.config.host.write_policy == WritePolicy::Selective) return;
  const auto is_selective = [](const Lower& lower) { return lower.settings.write_policy == WritePolicy::Selective; };
  const bool wants_hot_only = std::ranges::all_of(parts_.lowers, is_selective);
  for (std::uint32_t i = 0; i < parts_.key_spaces.end(); ++i) {
    if (!parts_.key_spaces[i].is_live || parts_.key_spaces[i].is_retired) continue;
    parts_.tree.for_each_run(parts_.key_spaces[i].root, [&](const RunView& run) {
      if (run.tier != Tier::Device) return;
      for (const PageId page : parts_.tree.pages(run.run)) {
        const PrefixTree::HostCopy copy = parts_.tree.copy_of(page);
        if (wants_hot_only && !parts_.history.is_hot(page)) continue;
        if (copy.state == PrefixTree::Copy::None && !copy.is_held) parts_.tree.want_copy(page);
      }
    });
  }
}

// Stores

// False: the host has no room.
bool HostStores::add_page(std::uint32_t transfer, PageHome& home, PageId device_page) {
  const PageId host_page = parts_.take_host_page(home);
  if (host_page.is_none()) return false;
  parts_.book.add_page(transfer, home.start_copy(device_page, host_page));
  home.pages.begin_device_read(device_page);
  return true;
}

void HostStores::start() {
  const auto pool_count = static_cast<std::uint32_t>(parts_.homes.size());
  for (std::uint32_t idle_pools = 0; idle_pools < pool_count;) {
    idle_pools = start_one(*parts_.homes[next_pool_++ % pool_count]) ? 0 : idle_pools + 1;
  }
}

// True: a store was started.
bool HostStores::start_one(PageHome& home) {
  PageId page = home.next_wanted();
  if (page.is_none() || !home.pages.is_settled(page)) return false;
  const std::optional<std::uint32_t> transfer = parts_.add_transfer(TransferKind::Store, TransferPriority::Background);
  if (!transfer) return false;
  parts_.book[*transfer].pool = home.pool;
  while (!page.is_none() && home.pages.is_settled(page) && !parts_.book.is_full_transfer(*transfer) &&
         lower_.may_copy(home)) {
    if (!add_page(*transfer, home, page)) break;
    page = home.next_wanted();
  }
  if (parts_.book[*transfer].page_count > 0) return true;
  parts_.book.remove(*transfer);
  return false;
}

void HostStores::start_leaving(std::uint32_t page_count) {
  PrefixTree& tree = parts_.tree;
  const auto on_their_way = [&] {
    return parts_.history.pages.device.free_count() + tree.left_pages() + tree.leaving_pages();
  };
  while (on_their_way() < page_count) {
    const std::optional<std::uint32_t> transfer =
        parts_.add_transfer(TransferKind::Store, TransferPriority::Background);
    if (!transfer) break;
    const RunId run = tree.start_leaving(std::min(parts_.book.pages_max(), page_count - on_their_way()));
    if (run.is_none()) {
      parts_.book.remove(*transfer);
      break;
    }
    // Copied first: add_page() may evict host runs, and that moves the storage which tree.pages() points to.
    const std::span<const PageId> leaving = tree.pages(run);
    const std::span<PageId> pages = std::span(pages_).first(leaving.size());
    std::ranges::copy(leaving, pages.begin());
    for (const PageId page : pages) {
      if (tree.copy_of(page).state != PrefixTree::Copy::None || !parts_.history.pages.is_settled(page)) continue;
      if (!add_page(*transfer, parts_.history, page)) break;  // the rest is given up without a copy
    }
    if (parts_.book[*transfer].page_count == 0) parts_.book.remove(*transfer);
  }
  tree.end_leaving();
}

void HostStores::make_clean(std::uint32_t page_count, const PrefixTree::Match& match) {
  parts_.client.make_moves();
  const PrefixTree::Pin kept = parts_.tree.pin_all(match);
  if (parts_.history.writes_back()) start_leaving(page_count + clean_reserve_pages_);
}

void HostStores::finish(std::uint32_t transfer) {
  const Transfer& store = parts_.book[transfer];
  QUIRE_CHECK(store.kind == TransferKind::Store && store.is_of_tree(), "a transfer ends as a store, and is none");
  PageHome& home = *parts_.homes[store.pool];
  const std::span<const PageTransfer> pages = parts_.book.pages(transfer);
  std::size_t taken = 0;
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const PageTransfer& page = pages[i];
    const PageHome::CopyEnd end = home.end_copy(page, i < store.good_pages);
    if (end == PageHome::CopyEnd::Taken) {
      // Of an anchored group, `place` is the history's page that the copy hangs on.
      copied_[taken] = {page.host_page, home.pool == 0 ? page.device_page : PageId{page.place}};
      pages_[taken++] = page.host_page;
    } else {
      if (end == PageHome::CopyEnd::Lost && store.outcome == TransferOutcome::Failed) lower_.note_lost_copy();
      home.pages.host.release({&page.host_page, 1});
    }
    home.pages.end_device_read(page.device_page);
  }
  home.pages.host.seal(std::span(pages_).first(taken));  // all at once: the pool's bookkeeping is most of the work
  if (parts_.has_lower()) lower_.want(home, std::span(copied_).first(taken));
  parts_.book.remove(transfer);
  parts_.tree.end_leaving();
}

}  // namespace quire
