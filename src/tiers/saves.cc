// SPDX-License-Identifier: Apache-2.0
#include "tiers/saves.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/hash.h"
#include "layout/text.h"

namespace quire {

namespace {

/// Only its sequence loads a saved page, so the tag need not depend on tokens: it is a hash of sequence, pool and
/// place.
std::uint64_t tag_of(SequenceId sequence, const PageHome& home, std::uint32_t place) {
  const std::uint64_t of_sequence = mix64((std::uint64_t{sequence.generation} << 32U) | sequence.index);
  return mix64(of_sequence + place + (std::uint64_t{home.pool} << 32U));
}

}  // namespace

std::uint32_t HeldPages::page_count() const {
  const auto held = std::ranges::count_if(row, [](PageId page) { return page != kNullPage; });
  return static_cast<std::uint32_t>(held) + (tail.is_none() ? 0 : 1);
}

Status Saves::open() {
  const std::size_t sequence_count = parts_.sequences.capacity();
  saved_.resize(sequence_count);
  rows_.resize(parts_.homes.size());
  for (std::size_t pool = 0; pool < parts_.homes.size(); ++pool) {
    rows_[pool].counts.resize(sequence_count);
    if (!parts_.homes[pool]->pages.has_host()) continue;
    const std::size_t stride = std::size_t{parts_.sequences.row_pages()} + 1;
    QUIRE_TRY_ASSIGN(rows_[pool].pages, LazyArray<PageId>::create(sequence_count * stride));
  }
  return {};
}

// Saving

Status Saves::check_save(std::uint32_t sequence, std::span<const HeldPages> held) const {
  const Refusal refused{"preempt", sequence};
  TransferNeed need;
  for (const HeldPages& pages : held) {
    // Pages that transfers read are not free at once when they are evicted.
    const std::uint32_t read_pages = parts_.book.count_pages([&](const Transfer& each) {
      const bool reads = each.kind == TransferKind::Load || each.kind == TransferKind::StoreBelow;
      return reads && each.pool == pages.home->pool;
    });
    const std::uint32_t evictable = pages.home->host_evictable_pages();
    const std::uint32_t room = pages.home->pages.host.free_count() + evictable - std::min(evictable, read_pages);
    const std::uint32_t needed = pages.page_count();
    if (needed > room) return refused.unavailable(" has ", needed, " pages to save; the host has room for ", room);
    need.add(needed, parts_.book.pages_max());
  }
  return check_transfers(need, refused);
}

Status Saves::check_transfers(const TransferNeed& need, const Refusal& refused) const {
  const auto [page_count, needed] = need;
  if (needed == 0) return {};
  if (needed > parts_.book.capacity()) {
    return refused.unsupported(" has ", page_count, " pages, which takes ", needed,
                               " transfers; host.transfer_count_max is ", parts_.config.host.transfer_count_max);
  }
  if (parts_.is_paused || needed > parts_.book.free_count()) {
    return refused.unavailable(
        " needs ", plain(needed), " transfers; ",
        parts_.is_paused ? "they are paused: resume_transfers() first"
                         : std::to_string(parts_.book.free_count()) + " are free: apply what poll() gives first");
  }
  return {};
}

// Adds a page to a transfer of the sequence, or to a new one when there is none or it is full.
void Saves::add_page(std::uint32_t sequence, TransferKind kind, PageHome& home, PageId device_page, std::uint32_t place,
                     std::uint32_t& transfer) {
  const SequenceId id{sequence, parts_.sequences[sequence].generation};
  if (transfer == Transfer::kNone || parts_.book.is_full_transfer(transfer)) {
    const std::optional<std::uint32_t> added = parts_.add_transfer(kind, TransferPriority::Waiting);
    QUIRE_CHECK(added.has_value(), "transfers that were counted are not there");
    transfer = *added;
    parts_.book[transfer].sequence = id;
    parts_.book[transfer].pool = home.pool;
    ++saved_[sequence].transfers_in_flight;
  }
  const PageId host_page = row(sequence, home)[place];
  parts_.book.add_page(transfer, home.pages.transfer_of(device_page, host_page, tag_of(id, home, place), place));
}

void Saves::start_saving(std::uint32_t sequence, std::span<const HeldPages> held) {
  QUIRE_CHECK(!is_moving(sequence), "a sequence is saved while its pages are on their way");
  saved_[sequence].has_lost_pages = false;
  for (const HeldPages& pages : held) {
    rows_[pages.home->pool].counts[sequence] = pages.place_count();
    const std::span<PageId> saved = row(sequence, *pages.home);
    std::uint32_t transfer = Transfer::kNone;
    for (std::uint32_t place = 0; place < saved.size(); ++place) {
      const PageId device_page = pages.at(place);
      saved[place] = kNullPage;
      if (device_page == kNullPage) continue;
      saved[place] = parts_.take_host_page(*pages.home);
      QUIRE_CHECK(!saved[place].is_none(), "host pages that were counted are not there");
      pages.home->pages.begin_device_read(device_page);
      add_page(sequence, TransferKind::Store, *pages.home, device_page, place, transfer);
    }
  }
}

void Saves::finish_save(std::uint32_t transfer) {
  const Transfer& save = parts_.book[transfer];
  QUIRE_CHECK(save.kind == TransferKind::Store && !save.is_of_tree(), "a transfer saves nobody's pages");
  const std::uint32_t sequence = save.sequence.index;
  PageHome& home = *parts_.homes[save.pool];
  const SequenceSlot& slot = parts_.sequences[sequence];
  const bool is_awaited = slot.generation == save.sequence.generation && slot.state == SequenceSlot::State::Saving;
  const std::span<const PageTransfer> pages = parts_.book.pages(transfer);
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const PageTransfer& page = pages[i];
    if (is_awaited && i < save.good_pages) {
      home.pages.host.make_private({&page.host_page, 1});
    } else {
      home.pages.host.release({&page.host_page, 1});
      if (is_awaited) row(sequence, home)[page.place] = kNullPage;
    }
    home.pages.end_device_read(page.device_page);
  }
  if (is_awaited && save.good_pages < pages.size()) saved_[sequence].has_lost_pages = true;
  if (!is_awaited && save.pool == 0) parts_.history.end_abandoned_reads(save.page_count);
  parts_.book.remove(transfer);
  if (is_awaited && --saved_[sequence].transfers_in_flight == 0) parts_.client.end_save(sequence);
}

void Saves::abandon_saving(std::uint32_t sequence) {
  const SequenceId id{sequence, parts_.sequences[sequence].generation};
  parts_.history.add_abandoned_reads(
      parts_.book.count_pages([&](const Transfer& save) { return save.sequence == id && save.pool == 0; }));
  saved_[sequence].transfers_in_flight = 0;
}

void Saves::release(std::uint32_t sequence) {
  for (PageHome* const home : parts_.homes) {
    if (!home->pages.has_host()) continue;
    for (PageId& page : row(sequence, *home)) {
      if (page != kNullPage && home->pages.host.state(page) == PageState::Private) home->pages.release_host(page);
      page = kNullPage;
    }
    rows_[home->pool].counts[sequence] = 0;
  }
  saved_[sequence] = {};
}

// Restoring

std::uint32_t Saves::page_count(std::uint32_t sequence, const PageHome& home, std::uint32_t first) const {
  const std::span<const PageId> saved = row(sequence, home);
  const auto held = std::ranges::count_if(saved.subspan(std::min<std::size_t>(first, saved.size())),
                                          [](PageId page) { return page != kNullPage; });
  return static_cast<std::uint32_t>(held);
}

void Saves::release_first(std::uint32_t sequence, std::uint32_t page_count) {
  for (PageId& page : row(sequence, parts_.history).first(page_count)) {
    parts_.history.pages.release_host(page);
    page = kNullPage;
  }
}

void Saves::start_restoring(std::uint32_t sequence, PageHome& home, std::uint32_t first, std::span<PageId> pages,
                            std::span<const PageId> targets) {
  const std::span<const PageId> saved = row(sequence, home);
  std::size_t taken = 0;
  std::uint32_t transfer = Transfer::kNone;
  for (std::uint32_t place = first; place < saved.size(); ++place) {
    pages[place] = kNullPage;
    if (saved[place] == kNullPage) continue;
    QUIRE_CHECK(taken < targets.size(), "more pages are to be restored than there are targets");
    pages[place] = targets[taken++];
    home.pages.begin_host_read(saved[place]);
    add_page(sequence, TransferKind::Load, home, pages[place], place, transfer);
  }
}

void Saves::finish_restore(std::uint32_t transfer) {
  const Transfer& restore = parts_.book[transfer];
  QUIRE_CHECK(restore.kind == TransferKind::Load && !restore.is_of_tree(), "a transfer restores nobody's pages");
  const std::uint32_t sequence = restore.sequence.index;
  PageHome& home = *parts_.homes[restore.pool];
  const bool is_awaited = restore.is_wanted();
  const std::span<const PageTransfer> pages = parts_.book.pages(transfer);
  for (const PageTransfer& page : pages) {
    if (is_awaited) {
      row(sequence, home)[page.place] = kNullPage;
      home.pages.host.fence({&page.host_page, 1});
    } else {
      home.pages.device.release({&page.device_page, 1});
    }
    home.pages.end_host_read(page.host_page);  // frees the page: it was fenced above, or by abandon_restoring()
  }
  if (is_awaited && restore.good_pages < pages.size()) saved_[sequence].has_lost_pages = true;
  parts_.book.remove(transfer);
  if (is_awaited && --saved_[sequence].transfers_in_flight == 0) parts_.client.end_restore(sequence);
}

Status Saves::check_invariants() const {
  for (const PageHome* const home : parts_.homes) {
    if (!home->pages.has_host()) continue;
    std::uint32_t saved = 0;
    for (std::uint32_t i = 0; i < parts_.sequences.capacity(); ++i) {
      for (const PageId page : row(i, *home)) {
        saved += page != kNullPage && home->pages.host.state(page) == PageState::Private ? 1 : 0;
      }
    }
    if (home->pages.host.count(PageState::Private) != saved) {
      return fail(ErrorCode::Corrupt, "saved pages that no sequence owns");
    }
  }
  return {};
}

}  // namespace quire
