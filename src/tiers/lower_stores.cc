// SPDX-License-Identifier: Apache-2.0
#include "tiers/lower_stores.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace quire {

namespace {

using CopyState = LowerCopies::State;

// Stores of one pool to one tier at once, so that writes in the background leave transfers to loads that are waited
// for.
constexpr std::uint32_t kStoresMax = 2;
constexpr std::uint32_t kTransfersForTwoStores = 16;
// So often does a flush write what drops have kept from being written, which are done by then: once, unless a tier says
// so and they are not.
constexpr std::uint32_t kRoundsMax = 3;

}  // namespace

// What is to be written

void LowerStores::want(PageHome& home, std::span<const Copied> copied) {
  for (std::uint16_t i = 0; i < parts_.lowers.size(); ++i) {
    const Lower& lower = parts_.lowers[i];
    LowerCopies& copies = home.pages.lower[i];
    if (!writes(lower, copies) || lower.has_failed) continue;
    if (lower.extent_of(home) > 1) {
      for (const Copied& each : copied) want_extents_of(i, each.host_page);
      continue;
    }
    const bool is_selective = lower.settings.write_policy == WritePolicy::Selective;
    for (const auto& [host_page, anchor] : copied) {
      const bool is_hot = parts_.history.is_hot(anchor, i);
      if ((is_selective && !is_hot) || !keeps(lower, home, host_page)) continue;
      const CopyState state = copies.states[host_page.value];
      if (state == CopyState::None || state == CopyState::Lost) copies.want(host_page, is_hot);
    }
  }
}

// The host has got a page: extents may have all their pages now. There are several where paths part behind the page.
void LowerStores::want_extents_of(std::uint16_t lower_index, PageId host_page) {
  const Lower& lower = parts_.lowers[lower_index];
  const std::uint32_t column = parts_.history.column_of_host(host_page);
  const std::uint32_t last = column - (column % lower.extent_pages) + lower.extent_pages - 1;
  LowerCopies& copies = parts_.history.pages.lower[lower_index];
  parts_.tree.for_each_run_with(parts_.tree.run_of_host(host_page), last, [&](RunId run) {
    const PageId end = parts_.history.host_page_at(run, last);
    if (end.is_none()) return;
    const CopyState state = copies.states[end.value];
    if (state != CopyState::None && state != CopyState::Lost) return;
    const bool is_hot = is_used_enough(lower, run);
    if (lower.settings.write_policy == WritePolicy::Selective && !is_hot) return;
    if (list_extent(run, last, lower.extent_pages)) copies.want(end, is_hot);
  });
}

bool LowerStores::is_used_enough(const Lower& lower, RunId run) const {
  return parts_.tree.use_count(run) >= lower.settings.hot_hits_min();
}

// Lists an extent in `extent_`. False: the host lacks a page of it.
bool LowerStores::list_extent(RunId run, std::uint32_t last, std::uint32_t page_count) {
  return parts_.history.list_on_host(run, last, std::span(extent_).first(page_count));
}

// Whether pages of a pool are ever written to a tier. Of others none waits, so that none is stored.
bool LowerStores::writes(const Lower& lower, const LowerCopies& copies) {
  return copies.is_on() && lower.settings.is_written();
}

// Whether the tier's retention rule wants a page of an anchored group, by the page's column in its path.
bool LowerStores::keeps(const Lower& lower, const PageHome& home, PageId host_page) const {
  if (home.pool == 0 || lower.settings.group_retention.empty()) return true;
  const AnchoredGroup& group = *parts_.groups[home.pool - 1];
  const GroupRetention& retention = lower.settings.group_retention[group.group_index];
  return group.is_kept_at(group.column_of(host_page), retention, parts_.page_tokens);
}

void LowerStores::prefer(const PrefixTree::Pin& path) {
  for (std::uint16_t i = 0; i < parts_.lowers.size(); ++i) {
    const Lower& lower = parts_.lowers[i];
    for (RunId run = path.run(); !parts_.tree.parent(run).is_none(); run = parts_.tree.parent(run)) {
      const bool is_hot = is_used_enough(lower, run);
      std::uint32_t column = parts_.tree.end_page(run) - static_cast<std::uint32_t>(parts_.tree.pages(run).size());
      for (const PageId page : parts_.tree.pages(run)) {
        if (is_hot) parts_.history.set_hot(page, i);  // for copies that are still to be made
        const PrefixTree::HostCopy copy = parts_.tree.copy_of(page);
        const bool has_copy = copy.state == PrefixTree::Copy::Ready;
        if (lower.extent_pages == 1 && has_copy) prefer_page(i, parts_.history, copy.host_page, is_hot);
        if (lower.extent_pages > 1 && ++column % lower.extent_pages == 0 && has_copy)
          prefer_extent(i, run, column - 1, is_hot);
        for (const auto& group : parts_.groups) {
          const PageId host_page = group->has_host() ? group->host_page_at({Tier::Device, page}) : PageId::none();
          if (!host_page.is_none()) prefer_page(i, *group, host_page, is_hot);
        }
      }
    }
  }
}

// A page that was not written, or was lost, gets another chance when it is used; others only when they are hot.
void LowerStores::prefer_page(std::uint16_t lower_index, PageHome& home, PageId host_page, bool is_hot) {
  const Lower& lower = parts_.lowers[lower_index];
  LowerCopies& copies = home.pages.lower[lower_index];
  if (!writes(lower, copies) || !keeps(lower, home, host_page)) return;
  const CopyState state = copies.states[host_page.value];
  const bool is_selective = lower.settings.write_policy == WritePolicy::Selective;
  const bool is_preferred = is_hot && (state == CopyState::Cold || (is_selective && state == CopyState::None));
  if (state != CopyState::Lost && !is_preferred) return;
  copies.forget(host_page);
  copies.want(host_page, is_hot);
}

// As prefer_page(); an extent that was left, because the host lacked a page of it, gets another chance.
void LowerStores::prefer_extent(std::uint16_t lower_index, RunId run, std::uint32_t last, bool is_hot) {
  const Lower& lower = parts_.lowers[lower_index];
  LowerCopies& copies = parts_.history.pages.lower[lower_index];
  if (!writes(lower, copies)) return;
  const PageId end = parts_.history.host_page_at(run, last);
  const CopyState state = copies.states[end.value];
  const bool is_preferred = is_hot && (state == CopyState::None || state == CopyState::Cold);
  if (state != CopyState::Lost && !is_preferred) return;
  if (!list_extent(run, last, lower.extent_pages)) return;
  copies.forget(end);
  copies.want(end, is_hot);
}

bool LowerStores::may_copy(const PageHome& home) const {
  if (!parts_.wants_flush || home.pages.host.free_count() > 0) return true;
  return std::ranges::all_of(home.pages.lower, [](const LowerCopies& copies) {
    return !copies.is_on() || (copies.waiting.size() == 0 && copies.store_count == 0);
  });
}

void LowerStores::refill_budgets(TimeNs elapsed_ns) {
  for (Lower& lower : parts_.lowers) lower.budget.refill(elapsed_ns);
}

// Stores

// Whether waiting pages of a pool are to be written now. With WritePolicy::WriteBack, pages of the history wait until
// the host is about to need their room.
bool LowerStores::must_write(const Lower& lower, const PageHome& home, const LowerCopies& copies) const {
  if (lower.settings.write_policy != WritePolicy::WriteBack || parts_.wants_flush) return true;
  if (home.pages.is_anchored) return true;
  const PagePool& host = home.pages.host;
  return host.free_count() + copies.there_count < std::max(1U, host.page_count() / 4);
}

bool LowerStores::start() {
  bool has_anchored = false;
  if (wants_drop_all_) return false;  // it would drop what is written before it
  const auto pool_count = static_cast<std::uint32_t>(parts_.homes.size());
  for (std::uint16_t i = 0; i < parts_.lowers.size(); ++i) {
    for (std::uint32_t idle_pools = 0; idle_pools < pool_count;) {
      PageHome& home = *parts_.homes[next_pool_++ % pool_count];
      const bool has_started = start_one(i, home);
      has_anchored = has_anchored || (has_started && home.pool > 0);
      idle_pools = has_started ? 0 : idle_pools + 1;
    }
  }
  return has_anchored;
}

// True: a store was started.
bool LowerStores::start_one(std::uint16_t lower_index, PageHome& home) {
  Lower& lower = parts_.lowers[lower_index];
  LowerCopies& copies = home.pages.lower[lower_index];
  const std::uint32_t count_max = parts_.config.host.transfer_count_max < kTransfersForTwoStores ? 1 : kStoresMax;
  if (!copies.is_on() || copies.waiting.size() == 0 || copies.store_count >= count_max) return false;
  if (lower.store_count >= parts_.lower_transfers_max()) return false;
  if (lower.has_failed || lower.is_failed(home.pool) || !must_write(lower, home, copies)) return false;
  const std::optional<std::uint32_t> transfer =
      parts_.add_transfer(TransferKind::StoreBelow, TransferPriority::Background);
  if (!transfer) return false;
  Transfer& store = parts_.book[*transfer];
  store.pool = home.pool;
  store.lower = lower_index;
  // By the home's own type: two virtual calls for each page would be a tenth of the work.
  if (lower.extent_of(home) > 1) {
    fill_extents(*transfer, lower);
  } else if (home.pool == 0) {
    fill(*transfer, lower, parts_.history);
  } else {
    fill(*transfer, lower, *parts_.groups[home.pool - 1U]);
  }
  if (store.page_count == 0) {
    parts_.book.remove(*transfer);
    return false;
  }
  ++copies.store_count;
  ++lower.store_count;
  return true;
}

// Adds as many pages as the budget allows, those that were used again first. All of them are named by pages of the
// history in one tier (Transfer::named_in).
template <typename Home>
void LowerStores::fill(std::uint32_t transfer, Lower& lower, Home& home) {
  Transfer& store = parts_.book[transfer];
  LowerCopies& copies = home.pages.lower[store.lower];
  const std::uint64_t bytes = lower.tier->written_bytes(home.pool);
  for (const LowerCopies::List list : {LowerCopies::kHot, LowerCopies::kCold}) {
    while (store.page_count < parts_.book.pages_max() && lower.budget.allows(bytes, list == LowerCopies::kHot)) {
      const std::uint32_t front = copies.waiting.front(list);
      if (front == IndexLists::kNone) break;
      const PageId page{front};
      const NamedPage name = home.name_of(page);
      if (store.page_count == 0) store.named_in = name.tier;
      if (name.tier != store.named_in) return;
      copies.waiting.remove(front);
      copies.states[front] = CopyState::Writing;
      home.pages.begin_host_read(page);
      lower.budget.take(bytes);
      parts_.book.add_page(transfer, home.pages.transfer_of(PageId::none(), page, home.tag_of(name), name.page.value));
    }
  }
}

// The same for whole extents.
void LowerStores::fill_extents(std::uint32_t transfer, Lower& lower) {
  Transfer& store = parts_.book[transfer];
  HistoryPages& history = parts_.history;
  LowerCopies& copies = history.pages.lower[store.lower];
  const std::uint64_t bytes = lower.extent_pages * lower.tier->written_bytes(history.pool);
  store.named_in = Tier::Host;
  for (const LowerCopies::List list : {LowerCopies::kHot, LowerCopies::kCold}) {
    while (store.page_count + lower.extent_pages <= parts_.book.pages_max() &&
           lower.budget.allows(bytes, list == LowerCopies::kHot)) {
      const std::uint32_t front = copies.waiting.front(list);
      if (front == IndexLists::kNone) break;
      const PageId end{front};
      copies.waiting.remove(front);
      copies.states[front] = CopyState::None;
      const RunId run = parts_.tree.run_of_host(end);
      if (!list_extent(run, history.column_of_host(end), lower.extent_pages)) continue;
      copies.states[front] = CopyState::Writing;
      lower.budget.take(bytes);
      for (const PageId page : std::span(extent_).first(lower.extent_pages)) {
        history.pages.begin_host_read(page);
        parts_.book.add_page(
            transfer, history.pages.transfer_of(PageId::none(), page, history.tag_of({Tier::Host, page}), page.value));
      }
    }
  }
}

void LowerStores::finish(std::uint32_t transfer) {
  const Transfer& store = parts_.book[transfer];
  QUIRE_CHECK(store.kind == TransferKind::StoreBelow, "a transfer ends as a store to a lower tier, and is none");
  PageHome& home = *parts_.homes[store.pool];
  LowerCopies& copies = home.pages.lower[store.lower];
  Lower& lower = parts_.lowers[store.lower];
  // The tier has failed, and not just one page.
  const bool is_of_tier = store.fault == TransferFault::Io || lower.has_failed;
  if (store.outcome == TransferOutcome::Failed && is_of_tier) lower.has_lost_writes = true;
  // A drop was on its way: what was computed since is written when somebody uses it again, or flushes.
  const bool is_cancelled = store.outcome == TransferOutcome::Cancelled;
  const bool is_lost = is_of_tier || is_cancelled;
  has_cancelled_stores_ = has_cancelled_stores_ || is_cancelled;
  const std::span<const PageTransfer> pages = parts_.book.pages(transfer);
  const bool has_extents = lower.extent_of(home) > 1;
  if (has_extents) finish_extents(store, pages, is_lost);
  for (std::uint32_t i = 0; i < pages.size() && !has_extents; ++i) {
    const PageId page = pages[i].host_page;
    CopyState& state = copies.states[page.value];
    const bool is_same = home.pages.generation(page) == pages[i].host_generation && state == CopyState::Writing;
    if (is_same && i < store.good_pages) {
      copies.set_there(page);
      ++copies.stored_page_total;
    } else if (is_same && is_lost) {
      state = CopyState::Lost;
    } else if (is_same && i == store.good_pages) {
      state = CopyState::None;  // the host page has bad bytes: a load of it will fail, and drop it
    } else if (is_same) {
      copies.want(page, /*is_hot=*/false);  // the tier did not try it, because it stood behind the bad page
    }
    home.pages.end_host_read(page);
  }
  --copies.store_count;
  --lower.store_count;
  parts_.book.remove(transfer);
}

// Pages of an extent that were given up meanwhile are there too, but nobody keeps count of them.
void LowerStores::finish_extents(const Transfer& store, std::span<const PageTransfer> pages, bool is_lost) {
  HistoryPages& history = parts_.history;
  LowerCopies& copies = history.pages.lower[store.lower];
  const std::uint32_t extent_pages = parts_.lowers[store.lower].extent_pages;
  const auto is_cached = [&](const PageTransfer& page) {
    return history.pages.generation(page.host_page) == page.host_generation &&
           history.pages.host.state(page.host_page) == PageState::Sealed;
  };
  for (std::uint32_t first = 0; first < pages.size(); first += extent_pages) {
    const std::span<const PageTransfer> extent = pages.subspan(first, extent_pages);
    const bool is_written = first + extent_pages <= store.good_pages;
    const PageId end = extent.back().host_page;
    const bool is_same = is_cached(extent.back()) && copies.states[end.value] == CopyState::Writing;
    if (is_same) copies.states[end.value] = is_lost ? CopyState::Lost : CopyState::None;
    for (const PageTransfer& page : extent) {
      if (is_written && is_cached(page) && !copies.has(page.host_page)) copies.set_there(page.host_page);
      history.pages.end_host_read(page.host_page);
    }
    if (is_written) copies.stored_page_total += extent_pages;
    // The tier did not try it, because it stood behind one with a bad page on the host.
    if (is_same && !is_lost && first > store.good_pages) copies.want(end, /*is_hot=*/false);
  }
}

// Names

void LowerStores::log_names(std::uint32_t sequence, std::uint32_t first_page, std::uint32_t end_page) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  const std::span<const PageId> row = parts_.sequences.page_row(sequence);
  const PrefixTree::Key key = parts_.sequences.key(sequence, end_page * parts_.page_tokens);
  for (std::uint32_t page = first_page; page < end_page; ++page) {
    parts_.history.set_cold(row[page]);
    parts_.history.set_column({Tier::Device, row[page]}, page);
    if (parts_.key_spaces[slot.key_space].is_retired) {
      parts_.name_log.add_unnamed(Tier::Device, row[page]);
      continue;
    }
    const PageId parent = page == 0 ? PageId::none() : row[page - 1];
    log_page({Tier::Device, row[page]}, {Tier::Device, parent}, slot.key_space, key, page);
  }
}

// Page `page_index` of the path `key`.
void LowerStores::log_page(const NamedPage& page, const NamedPage& parent, std::uint32_t key_space,
                           const PrefixTree::Key& key, std::uint32_t page_index) {
  const TokenRange range{page_index * parts_.page_tokens, (page_index + 1) * parts_.page_tokens};
  parts_.name_log.add_page({.page = page.page,
                            .parent = parent.page,
                            .tier = page.tier,
                            .parent_tier = parent.tier,
                            .key_space = key_space,
                            .page_index = page_index,
                            .tokens = key.tokens.subspan(range.begin, parts_.page_tokens),
                            .extra_keys = overlapping(key.extra_keys, range)});
}

void LowerStores::log_arrived(const Search& search, const PrefixTree::Key& key, const NamedPage& parent,
                              std::uint32_t first_page, std::span<const PageId> host_pages) {
  if (parts_.lowers.size() < 2) return;
  NamedPage before = parent;
  for (const PageId host_page : host_pages) {
    const NamedPage page{Tier::Host, host_page};
    log_page(page, before, search.key_space, key, first_page++);
    before = page;
  }
}

void LowerStores::forget_names(std::uint32_t key_space) {
  parts_.tree.for_each_run(parts_.key_spaces[key_space].root, [this](const RunView& run) {
    for (const PageId page : run.pages) {
      parts_.name_log.add_unnamed(run.tier, page);
      if (run.tier == Tier::Host) continue;
      const PrefixTree::HostCopy copy = parts_.tree.copy_of(page);
      const bool has_page = copy.state == PrefixTree::Copy::Storing || copy.state == PrefixTree::Copy::Ready;
      if (has_page) parts_.name_log.add_unnamed(Tier::Host, copy.host_page);
    }
  });
}

// Drops

void LowerStores::drop(std::uint32_t key_space) {
  QUIRE_CHECK(parts_.key_spaces[key_space].is_live, "a key space is dropped that does not live");
  if (parts_.key_spaces[key_space].wants_disk_drop) return;
  parts_.key_spaces[key_space].wants_disk_drop = true;
  flushes_again_ = parts_.wants_flush;
  round_ = 0;
  parts_.use_key_space(key_space);
  has_unstarted_drop_ = true;
  start_drops();
}

void LowerStores::drop_all() {
  wants_drop_all_ = true;
  flushes_again_ = parts_.wants_flush;
  round_ = 0;
  has_unstarted_drop_ = true;
  start_drops();
}

void LowerStores::start_drops() {
  if (!std::exchange(has_unstarted_drop_, false)) return;
  if (wants_drop_all_) wants_drop_all_ = !try_start_drop(kAllKeySpaces);
  has_unstarted_drop_ = wants_drop_all_;
  for (std::uint32_t i = 0; i < parts_.key_spaces.end() && !has_unstarted_drop_; ++i) {
    KeySpaceTable::Entry& space = parts_.key_spaces[i];
    if (!space.is_live || !space.wants_disk_drop) continue;
    has_unstarted_drop_ = !try_start_drop(i);
    if (has_unstarted_drop_) return;
    // Each drop is a user; the first was one before.
    for (std::size_t lower = 1; lower < parts_.lowers.size(); ++lower) parts_.use_key_space(i);
    space.wants_disk_drop = false;
  }
}

bool LowerStores::awaits_drop(std::uint32_t key_space) const {
  if (!has_unstarted_drop_ || wants_drop_all_) return has_unstarted_drop_;
  const KeySpaceTable::Entry& searched = parts_.key_spaces[key_space];
  for (std::uint32_t i = 0; i < parts_.key_spaces.end(); ++i) {
    const KeySpaceTable::Entry& space = parts_.key_spaces[i];
    if (space.is_live && space.wants_disk_drop && space.canonical_form == searched.canonical_form) return true;
  }
  return false;
}

// A tier that hangs keeps its transfers: drops take an eighth at most, or one for each tier.
bool LowerStores::try_start_drop(std::uint32_t key_space) {
  const auto needed = static_cast<std::uint32_t>(parts_.lowers.size());
  const std::uint32_t count_max = std::max(1U, parts_.config.host.transfer_count_max / 8);
  std::uint32_t count = 0;
  for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
    count += parts_.book[i].is_live() && parts_.book[i].kind == TransferKind::DropBelow ? 1 : 0;
  }
  const bool has_room = count == 0 || count + needed <= count_max;
  if (!has_room || parts_.is_paused || parts_.book.free_count() < needed) return false;
  for (std::uint16_t lower = 0; lower < parts_.lowers.size(); ++lower) {
    Transfer& drop = parts_.book[*parts_.add_transfer(TransferKind::DropBelow, TransferPriority::Waiting)];
    drop.lower = lower;
    drop.key_space = key_space;
  }
  return true;
}

void LowerStores::finish_drop(std::uint32_t transfer) {
  const std::uint32_t key_space = parts_.book[transfer].key_space;
  parts_.book.remove(transfer);
  if (key_space != kAllKeySpaces) parts_.leave_key_space(key_space);
}

// flush()

bool LowerStores::begin_flush() {
  if (parts_.wants_flush) return false;
  parts_.wants_flush = true;
  flushes_again_ = false;
  has_lost_copies_ = has_cancelled_stores_ = false;
  is_flushed_ = false;
  round_ = 0;
  for (std::uint16_t i = 0; i < parts_.lowers.size(); ++i) {
    parts_.lowers[i].has_lost_writes = parts_.lowers[i].has_failed_drops = false;
  }
  want_lost();
  return true;
}

// Pages that could not be written are tried once more.
void LowerStores::want_lost() {
  for (std::uint16_t i = 0; i < parts_.lowers.size(); ++i) {
    if (parts_.lowers[i].has_failed) continue;
    for_each_host_page(i, [&](PageHome& home, LowerCopies& copies, PageId page) {
      if (copies.states[page.value] != CopyState::Lost) return;
      if (parts_.lowers[i].extent_of(home) > 1) {
        want_extents_of(i, page);
      } else {
        copies.want(page, /*is_hot=*/false);
      }
    });
  }
}

template <typename Visitor>
void LowerStores::for_each_host_page(std::uint16_t lower_index, Visitor&& visit) {
  for (PageHome* const home : parts_.homes) {
    LowerCopies& copies = home->pages.lower[lower_index];
    for (std::uint32_t page = 1; copies.is_on() && page <= home->pages.host.page_count(); ++page) {
      visit(*home, copies, PageId{page});
    }
  }
}

void LowerStores::lose_all_of(std::uint16_t lower_index) {
  parts_.history.forget_below(lower_index);
  for_each_host_page(lower_index, [](const PageHome& /*home*/, LowerCopies& copies, PageId page) {
    if (copies.states[page.value] != CopyState::There) return;
    copies.states[page.value] = CopyState::Lost;
    --copies.there_count;
  });
}

// Whether pages wait to be copied or written, and all transfers are in use.
bool LowerStores::has_unstarted_writes() const {
  if (!parts_.book.is_full()) return false;
  return std::ranges::any_of(parts_.homes, [](PageHome* home) {
    const auto waits = [](const LowerCopies& copies) { return copies.is_on() && copies.waiting.size() > 0; };
    return !home->next_wanted().is_none() || std::ranges::any_of(home->pages.lower, waits);
  });
}

Result<bool> LowerStores::try_flush() {
  const auto failed = [this] {
    parts_.wants_flush = false;
    std::string why;
    bool has_failed_drops = false;
    for (std::uint16_t i = 0; i < parts_.lowers.size(); ++i) {
      const Lower& lower = parts_.lowers[i];
      if (lower.has_failed || lower.has_lost_writes) lose_all_of(i);
      has_failed_drops = has_failed_drops || lower.has_failed_drops;
      if (why.empty()) why = lower.tier->last_error();
    }
    return fail(ErrorCode::Io, (has_failed_drops ? "flush: a drop has failed, and is tried again: " : "flush: ") + why);
  };
  // The flush goes on as long as one tier works; that others have failed is reported when it has ended.
  if (std::ranges::all_of(parts_.lowers, &Lower::has_failed)) return failed();
  if (std::exchange(is_flushed_, false)) {
    const auto lacks_some = [](const Lower& lower) {
      return lower.has_lost_writes || lower.has_failed_drops || lower.has_failed;
    };
    if (std::ranges::any_of(parts_.lowers, lacks_some)) return failed();
    if (has_lost_copies_) {
      parts_.wants_flush = false;
      return fail(ErrorCode::Io, "flush: some pages did not reach the host, through which they go to disk");
    }
    parts_.wants_flush = std::exchange(flushes_again_, false) || has_cancelled_stores_;
    if (!parts_.wants_flush) return true;
    if (std::exchange(has_cancelled_stores_, false)) {
      if (round_++ == kRoundsMax) {
        parts_.wants_flush = false;
        return fail(ErrorCode::Unavailable, "flush: some pages were not written, because drops go on: flush once more");
      }
      want_lost();
      (void)start();
    }
  }
  if (flushes_in_flight_ > 0) return false;
  const bool is_writing = parts_.book.any([](const Transfer& each) {
    return each.kind == TransferKind::Store || each.kind == TransferKind::StoreBelow ||
           each.kind == TransferKind::DropBelow || each.kind == TransferKind::PutBelow;
  });
  if (is_writing || has_unstarted_drop_ || has_unstarted_writes()) return false;
  // Pages that still wait find no room on the host, or are more than the write budget allows: they are not flushed.
  if (parts_.is_paused || parts_.book.free_count() < parts_.lowers.size()) return false;
  for (std::uint16_t lower = 0; lower < parts_.lowers.size(); ++lower) {
    if (parts_.lowers[lower].has_failed) continue;
    parts_.book[*parts_.add_transfer(TransferKind::FlushBelow, TransferPriority::Background)].lower = lower;
    ++flushes_in_flight_;
  }
  return false;
}

void LowerStores::finish_flush(std::uint32_t transfer) {
  QUIRE_CHECK(flushes_in_flight_ > 0, "a flush ends that was not begun");
  const Transfer& flush = parts_.book[transfer];
  if (flush.outcome != TransferOutcome::Ok) {
    Lower& lower = parts_.lowers[flush.lower];
    (flush.fault == TransferFault::None ? lower.has_failed_drops : lower.has_lost_writes) = true;
  }
  is_flushed_ = --flushes_in_flight_ == 0;
  parts_.book.remove(transfer);
}

}  // namespace quire
