// SPDX-License-Identifier: Apache-2.0
//
// Cache: what of the host goes to disk, and when. The write policy says which pages, the endurance budget how much:
// pages that were used again have a head start.
#include <algorithm>

#include "cache/cache_impl.h"
#include "quire/cache.h"

namespace quire {

namespace {

// Transfers at once, so that writes in the background leave most to those who wait.
constexpr std::uint32_t kStoresMax = 2;
constexpr std::uint32_t kTransfersForTwoStores = 16;
constexpr TimeNs kDayNs = TimeNs{86'400} * 1'000'000'000;
// What may be written at once after a quiet time. The rest of a day's budget comes evenly, so that no day has more.
constexpr std::uint64_t kBurstsPerDay = 24;

}  // namespace

double Cache::Impl::write_burst() const {
  return static_cast<double>(config.disk.write_bytes_per_day) / kBurstsPerDay;
}

// A host page that has just got its bytes from a device page.
void Cache::Impl::want_on_disk(PageId host_page, PageId device_page) {
  const bool is_hot = device_hot[device_page.value] != 0;
  if (disk_has_failed || (config.disk.write_policy == WritePolicy::Selective && !is_hot)) return;
  disk_states[host_page.value] = is_hot ? DiskState::Hot : DiskState::Cold;
  disk_lists.push_back(host_page.value, is_hot ? kHotPages : kColdPages);
}

// Pages of a path that somebody uses again: they come first, and with WritePolicy::Selective at all.
void Cache::Impl::prefer_on_disk(const PrefixTree::Pin& pin) {
  const bool is_selective = config.disk.write_policy == WritePolicy::Selective;
  const std::uint32_t hits_min = is_selective ? config.disk.write_hits_min : 2;
  for (RunId run = pin.run(); !tree->parent(run).is_none(); run = tree->parent(run)) {
    if (tree->use_count(run) < hits_min) continue;
    for (const PageId page : tree->pages(run)) {
      device_hot[page.value] = 1;  // for copies that are still to be made
      if (is_selective && !sides.empty()) prefer_sides_on_disk(page);
      const PrefixTree::HostCopy copy = tree->copy_of(page);
      if (copy.state != PrefixTree::Copy::Ready) continue;
      DiskState& state = disk_states[copy.host_page.value];
      if (state == DiskState::Cold) disk_lists.remove(copy.host_page.value);
      const bool is_new =
          state == DiskState::Cold || state == DiskState::Lost || (is_selective && state == DiskState::None);
      if (!is_new) continue;
      state = DiskState::Hot;
      disk_lists.push_back(copy.host_page.value, kHotPages);
    }
  }
}

// The host gives the page up.
void Cache::Impl::forget_on_disk(PageId host_page) {
  DiskState& state = disk_states[host_page.value];
  if (state == DiskState::Cold || state == DiskState::Hot) disk_lists.remove(host_page.value);
  if (state == DiskState::OnDisk) --on_disk_count;
  state = DiskState::None;
}

// What was written may be gone: a sync has failed, or a whole segment.
void Cache::Impl::lose_on_disk() {
  for (std::uint32_t page = 1; page <= host_page_count; ++page) {
    if (disk_states[page] == DiskState::OnDisk) disk_states[page] = DiskState::Lost;
  }
  on_disk_count = 0;
  lose_sides_on_disk();
}

// Whether one more page may come to the host without need: while flush() wants everything on disk, nothing that has
// still to be written makes room for others.
bool Cache::Impl::may_copy() const {
  return !wants_flush || host_pool.free_count() > 0 || (disk_lists.size() == 0 && disk_store_count == 0);
}

void Cache::Impl::refill_write_budget(TimeNs time) {
  const auto per_day = static_cast<double>(config.disk.write_bytes_per_day);
  const double burst = write_burst();
  const double rate = (per_day - burst) / static_cast<double>(kDayNs);
  write_budget = std::min(burst, write_budget + (rate * static_cast<double>(time - now)));
}

// Pages that were used again may take the budget down to nothing, others only to the half of it.
bool Cache::Impl::may_write(DiskList list, std::uint64_t bytes) const {
  if (config.disk.write_bytes_per_day == 0) return true;
  return write_budget - static_cast<double>(bytes) >= (list == kHotPages ? 0 : write_burst() / 2);
}

// With WriteBack, only when the host is about to need the room.
bool Cache::Impl::must_write() const {
  if (config.disk.write_policy != WritePolicy::WriteBack || wants_flush) return true;
  return host_pool.free_count() + on_disk_count < std::max(1U, host_page_count / 4);
}

std::uint32_t Cache::Impl::disk_store_count_max() const {
  return config.host.transfer_count_max < kTransfersForTwoStores ? 1 : kStoresMax;
}

void Cache::Impl::start_disk_stores() {
  const std::uint64_t bytes = record_bytes(history_page_bytes());
  const std::uint32_t count_max = disk_store_count_max();
  while (disk_store_count < count_max && disk_lists.size() > 0 && must_write() && !disk_has_failed) {
    const std::optional<std::uint32_t> transfer = add_transfer(TransferKind::StoreToDisk, TransferPriority::Background);
    if (!transfer) return;
    for (const DiskList list : {kHotPages, kColdPages}) {
      while (transfers[*transfer].page_count < config.host.transfer_pages_max && may_write(list, bytes)) {
        const std::uint32_t page = disk_lists.front(list);
        if (page == IndexLists::kNone) break;
        disk_lists.remove(page);
        disk_states[page] = DiskState::Writing;
        ++host_readers[page];
        write_budget -= static_cast<double>(bytes);
        add_page(*transfer, way_of(PageId::none(), PageId{page}, tree->fingerprint(PageId{page}, Tier::Host)));
      }
    }
    if (transfers[*transfer].page_count == 0) {
      remove_transfer(*transfer);
      return;
    }
    ++disk_store_count;
  }
}

void Cache::Impl::finish_disk_store(std::uint32_t index) {
  const Transfer& store = transfers[index];
  const std::span<const PageTransfer> pages = pages_of(index);
  const bool is_of_disk = store.fault == TransferFault::Io || disk_has_failed;  // else of one page
  if (store.outcome == TransferOutcome::Failed && is_of_disk) has_lost_writes = true;
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const PageId page = pages[i].host_page;
    const bool is_same =
        host_generations[page.value] == pages[i].host_generation && disk_states[page.value] == DiskState::Writing;
    if (is_same && i < store.good_pages) {
      disk_states[page.value] = DiskState::OnDisk;
      ++on_disk_count;
      ++counters.disk_stored_page_total;
    } else if (is_same && is_of_disk) {
      disk_states[page.value] = DiskState::Lost;
    } else if (is_same && i == store.good_pages) {
      disk_states[page.value] = DiskState::None;  // not what it should be: who loads it will see
    } else if (is_same) {
      disk_states[page.value] = DiskState::Cold;  // only stood behind that one
      disk_lists.push_back(page.value, kColdPages);
    }
    release_host_read(page);
  }
  --disk_store_count;
  remove_transfer(index);
}

}  // namespace quire
