// SPDX-License-Identifier: Apache-2.0
//
// Cache: sequences that look for their tokens on disk. A find asks for what follows the tree's pages; what is there is
// loaded to host pages, in the order of the path, and comes into the tree as it arrives. Then those who waited go on.
#include <algorithm>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "quire/cache.h"

namespace quire {

namespace {

// Of one search at once: the next is read while the last comes into the tree.
constexpr std::uint32_t kLoadsPerFind = 2;
// So many searches are left unread because computing is faster, and then one is read all the same: what was measured
// once may not hold, and only reading measures again.
constexpr std::uint32_t kUnreadMax = 128;

}  // namespace

// How many whole pages of its tokens a sequence may find in the cache.
std::uint32_t Cache::Impl::pages_asked(const SequenceSlot& slot) const {
  if (!slot.may_use_cache || key_spaces[slot.key_space].is_retired) return 0;
  const std::uint32_t window_tokens = slot.window_tokens > 0 ? slot.window_tokens : UINT32_MAX;
  return std::min({sequences.keys().known_rows(slot.token_count), slot.match_tokens_max, window_tokens}) / page_tokens;
}

bool Cache::Impl::may_look(const SequenceSlot& slot, const PrefixTree::Match& match) {
  if (!has_disk() || disk_has_failed || is_paused || falls_asleep || is_asleep || slot.tier_max < Tier::Disk) {
    return false;
  }
  const std::uint32_t found = match.page_count + match.host_page_count;
  if (slot.has_looked && found <= slot.looked_pages) return false;
  return found < pages_asked(slot) || lacks_sides(slot, match);
}

// The find that asks for what follows a match, started now or before; none when there is no room for one.
std::optional<std::uint32_t> Cache::Impl::look_for(std::uint32_t index, const PrefixTree::Match& match) {
  const SequenceSlot& slot = sequences[index];
  const std::uint32_t first_page = match.page_count + match.host_page_count;
  const PrefixTree::Key key = sequences.key(index, pages_asked(slot) * page_tokens);
  const PageFingerprint before = tree->fingerprint_before(match);
  // With all of the history there, other groups are what it looks for.
  const bool lacks_history = first_page < pages_asked(slot);
  const PageFingerprint missing = lacks_history ? tree->next_fingerprint(before, key, first_page) : ~before;
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    const Transfer& find = transfers[i];
    const bool is_same = find.kind == TransferKind::FindOnDisk && find.state != Transfer::State::Free &&
                         !find.is_unwanted && !find.is_direct && find.key_space == slot.key_space &&
                         find.first_page == first_page && find.missing == missing;
    if (is_same) return i;
  }
  const std::optional<std::uint32_t> transfer = add_find(TransferKind::FindOnDisk, slot.key_space, key);
  if (!transfer) return std::nullopt;
  Transfer& find = transfers[*transfer];
  find.first_page = first_page;
  find.missing = missing;
  find.owner = {index, slot.generation};
  find.prompt_tokens = slot.token_count;
  find.allows_inexact = slot.allows_inexact;
  find.deadline = config.host.load_timeout_ns > 0 ? time_after(config.host.load_timeout_ns) : INT64_MAX;
  find.pin = tree->pin_all(match);  // splits where the path goes on, and keeps the page before it
  ++counters.disk_find_count;
  return transfer;
}

// A transfer with a path of its own.
std::optional<std::uint32_t> Cache::Impl::add_find(TransferKind kind, std::uint32_t key_space,
                                                   const PrefixTree::Key& key) {
  if (!has_free_row() || has_unstarted_drop) return std::nullopt;
  const auto row = std::ranges::find(find_row_users, kNoTransfer);
  const std::optional<std::uint32_t> transfer = add_transfer(kind, TransferPriority::Waiting);
  if (!transfer) return std::nullopt;
  *row = *transfer;
  Transfer& find = transfers[*transfer];
  find.find_row = static_cast<std::uint32_t>(row - find_row_users.begin());
  find.key_space = key_space;
  find.token_count = static_cast<std::uint32_t>(key.tokens.size());
  find.extra_key_count = static_cast<std::uint32_t>(key.extra_keys.size());
  std::ranges::copy(key.tokens, find_tokens.data() + (std::size_t{find.find_row} * context_tokens_max));
  std::ranges::copy(key.extra_keys, find_keys.data() + (std::size_t{find.find_row} * config.extra_key_count_max));
  ++key_spaces[key_space].user_count;
  return transfer;
}

bool Cache::Impl::has_free_row() const {
  return std::ranges::find(find_row_users, kNoTransfer) != find_row_users.end();
}

void Cache::Impl::remove_find(std::uint32_t index) {
  const std::uint32_t key_space = transfers[index].key_space;
  find_row_users[transfers[index].find_row] = kNoTransfer;
  remove_transfer(index);
  --key_spaces[key_space].user_count;
  leave_key_space(key_space);
}

PrefixTree::Key Cache::Impl::key_of_find(const Transfer& find) const {
  return {.tokens = {find_tokens.data() + (std::size_t{find.find_row} * context_tokens_max), find.token_count},
          .extra_keys = {find_keys.data() + (std::size_t{find.find_row} * config.extra_key_count_max),
                         find.extra_key_count}};
}

// Makes an admitted sequence wait for what the disk may have, or for its turn to look. False: it does not.
bool Cache::Impl::start_looking(std::uint32_t index, const PrefixTree::Match& match) {
  SequenceSlot& slot = sequences[index];
  const std::optional<std::uint32_t> find = look_for(index, match);
  if (!find && live_transfer_count == 0) {  // whose end could give it its turn
    slot.has_looked = true;
    slot.looked_pages = UINT32_MAX;
    slot.disk_miss = MissReason::LoadFailed;
    return false;
  }
  const bool waited = slot.state == SequenceSlot::State::Looking && slot.find == kNoTransfer;
  if (!find && !waited) {
    slot.turn = ++last_turn;
    slot.turn_deadline = config.host.load_timeout_ns > 0 ? time_after(config.host.load_timeout_ns) : INT64_MAX;
  }
  if (find) slot.disk_from_page = std::min(slot.disk_from_page, match.page_count + match.host_page_count);
  sequences.set_state(index, SequenceSlot::State::Looking);
  slot.find = find.value_or(kNoTransfer);
  slot.pin = find ? tree->clone(transfers[*find].pin) : tree->pin_all(match);
  slot.soft_pin.reset();
  return true;
}

// The one that has waited longest of those who came behind `turn`, or capacity().
std::uint32_t Cache::Impl::next_waiting_for_turn(std::uint64_t turn) const {
  std::uint32_t next = sequences.capacity();
  for (std::uint32_t i = sequences.next_loading(0); i < sequences.capacity(); i = sequences.next_loading(i + 1)) {
    const SequenceSlot& slot = sequences[i];
    const bool waits = slot.state == SequenceSlot::State::Looking && slot.find == kNoTransfer && slot.turn > turn;
    if (waits && (next == sequences.capacity() || slot.turn < sequences[next].turn)) next = i;
  }
  return next;
}

// Those who waited for their turn look, as far as there is room.
void Cache::Impl::start_waiting_finds() {
  std::uint32_t next = next_waiting_for_turn(0);
  while (next < sequences.capacity() && has_free_row()) {
    const std::uint64_t turn = sequences[next].turn;
    const PrefixTree::Match match = match_of(next);
    if (may_look(sequences[next], match)) (void)start_looking(next, match);
    next = next_waiting_for_turn(turn);
  }
}

// After something has ended: searches that found more than there were transfers for, and those who wait for their turn.
void Cache::Impl::go_on_looking() {
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    const Transfer& find = transfers[i];
    const bool has_paused =
        find.kind == TransferKind::FindOnDisk && find.state == Transfer::State::Arrived && find.loads_in_flight == 0;
    if (has_paused) finish_disk_loads(i);
  }
  start_waiting_finds();
  for (std::uint32_t i = sequences.next_loading(0); i < sequences.capacity(); i = sequences.next_loading(i + 1)) {
    SequenceSlot& slot = sequences[i];
    if (slot.state != SequenceSlot::State::Looking || slot.find != kNoTransfer) continue;
    // It goes on waiting if it may look at all, and if something is left to wait for.
    if (live_transfer_count == 0) {
      stop_looking(i, MissReason::LoadFailed);
    } else if (!may_look(slot, match_of(i))) {
      stop_looking(i, is_paused || disk_has_failed ? MissReason::LoadCancelled : MissReason::None);
    }
  }
}

void Cache::Impl::finish_find(std::uint32_t index) {
  Transfer& find = transfers[index];
  find.state = Transfer::State::Arrived;
  find.found_pages = find.good_pages;
  counters.disk_found_page_total += find.found_pages;
  if (!sides.empty()) choose_side_hit(index);
  if (key_spaces[find.key_space].is_retired) {
    find.miss = MissReason::LoadCancelled;
  } else if ((find.found_pages > 0 || find.side_bytes > 0) && !find.is_unwanted && !is_paused && !falls_asleep) {
    if (is_worth_reading(find)) {
      start_disk_loads(index);
    } else {
      find.miss = MissReason::RecomputeCheaper;
    }
  }
  if (find.loads_in_flight == 0 && !waits_for_transfers(find)) end_find_with_sides(index);
}

// Whether a search has found more than there were transfers for, and others will end.
bool Cache::Impl::waits_for_transfers(const Transfer& find) const {
  if (find.is_unwanted || find.miss != MissReason::None || find.started_pages == find.found_pages) return false;
  if (is_paused || falls_asleep) return false;
  return std::ranges::any_of(transfers, [](const Transfer& each) {
    return each.state != Transfer::State::Free &&
           (each.kind != TransferKind::FindOnDisk || each.state != Transfer::State::Arrived);
  });
}

// Whether reading the pages, and bringing them on to the device, takes less time than computing them.
bool Cache::Impl::is_worth_reading(const Transfer& find) {
  if (config.host.compute_ns_per_token == 0 || disk_load_rate == 0) return true;
  const auto bytes = static_cast<double>((find.found_pages * history_page_bytes()) + find.side_bytes);
  const auto waiting = static_cast<double>(disk_loading_bytes);
  const double read_ns = (bytes + waiting) / disk_load_rate;
  const double load_ns = load_rate > 0 ? bytes / load_rate : 0;
  const double tokens = sides.empty() ? static_cast<double>(find.found_pages) * page_tokens : find.gained_tokens;
  const double compute_ns = tokens * static_cast<double>(config.host.compute_ns_per_token);
  if (read_ns + load_ns > compute_ns && ++unread_find_count < kUnreadMax) return false;
  unread_find_count = 0;
  return true;
}

// As far as there are transfers and host pages; the rest when others are over.
void Cache::Impl::start_disk_loads(std::uint32_t index) {
  const std::uint32_t count_max = std::max(1U, config.host.transfer_count_max / 4);
  while (transfers[index].started_pages < transfers[index].found_pages &&
         transfers[index].loads_in_flight < kLoadsPerFind && disk_load_count < count_max) {
    const std::uint32_t left = transfers[index].found_pages - transfers[index].started_pages;
    const std::uint32_t wanted = std::min(left, config.host.transfer_pages_max);
    // What the host cannot hold besides is not worth the way.
    const std::optional<std::uint32_t> transfer = add_transfer(TransferKind::LoadFromDisk, TransferPriority::Waiting);
    if (!transfer) return;
    Transfer& load = transfers[*transfer];
    Transfer& find = transfers[index];
    load.found_by = index;
    load.key_space = find.key_space;
    load.first_page = find.first_page + find.started_pages;
    const PrefixTree::Key key = key_of_find(find);
    PageFingerprint tag = find.last_tag;
    if (find.started_pages == 0) tag = tree->fingerprint_of(find.pin);
    for (std::uint32_t i = 0; i < wanted; ++i) {
      const PageId host_page = take_host_page();
      if (host_page.is_none()) break;
      tag = tree->next_fingerprint(tag, key, load.first_page + i);
      add_page(*transfer, way_of(PageId::none(), host_page, tag));
    }
    if (load.page_count == 0) {
      remove_transfer(*transfer);
      find.found_pages = find.started_pages;
      return;
    }
    find.last_tag = tag;
    find.started_pages += load.page_count;
    if (load.page_count < wanted) find.found_pages = find.started_pages;
    ++find.loads_in_flight;
    ++disk_load_count;
    disk_loading_bytes += load.page_count * history_page_bytes();
  }
}

// The loads of a find that have arrived, in the order of the path.
void Cache::Impl::finish_disk_loads(std::uint32_t index) {
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::uint32_t i = 0; i < transfer_end; ++i) {
      const Transfer& load = transfers[i];
      const bool is_next = load.state == Transfer::State::Arrived && load.kind == TransferKind::LoadFromDisk &&
                           load.found_by == index &&
                           load.first_page == transfers[index].first_page + transfers[index].arrived_pages;
      if (!is_next) continue;
      finish_disk_load(i);
      goes_on = true;
    }
  }
  Transfer& find = transfers[index];
  if (!find.is_unwanted && find.miss == MissReason::None) start_disk_loads(index);
  if (transfers[index].loads_in_flight == 0 && !waits_for_transfers(transfers[index])) end_find_with_sides(index);
}

// Its good pages come into the tree, as far as nobody has brought or computed them meanwhile.
void Cache::Impl::finish_disk_load(std::uint32_t index) {
  Transfer& load = transfers[index];
  Transfer& find = transfers[load.found_by];
  // By the time it was read, the name may have been that of a page with other bytes.
  if (key_spaces[find.key_space].is_retired && find.miss == MissReason::None) find.miss = MissReason::LoadCancelled;
  const bool is_wanted = !find.is_unwanted && find.miss == MissReason::None;
  std::uint32_t good = is_wanted ? load.good_pages : 0;
  const std::span<const PageTransfer> pages = pages_of(index);
  const std::span<PageId> host_pages = std::span(leaving_pages).first(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) host_pages[i] = pages[i].host_page;
  std::uint32_t begin = 0;
  if (good > 0) {
    const PrefixTree::Key key = key_of_find(find);
    const std::uint32_t end_page = load.first_page + good;
    const PrefixTree::Match known = tree->match(
        key_spaces[find.key_space].root, {key.tokens.first(std::size_t{end_page} * page_tokens), key.extra_keys});
    begin = std::min(known.page_count + known.host_page_count - load.first_page, good);
    PrefixTree::Pin pin = tree->pin_all(known);
    host_pool.seal(host_pages.subspan(begin, good - begin));
    tree->insert_host(pin, key, host_pages.subspan(begin, good - begin));
    find.pin = std::move(pin);
    for (const PageId page : host_pages.subspan(begin, good - begin)) {
      disk_states[page.value] = DiskState::OnDisk;
      ++on_disk_count;
    }
    counters.disk_loaded_page_total += good - begin;
  }
  host_pool.release(host_pages.first(begin));
  host_pool.release(host_pages.subspan(good));
  if (load.good_pages < load.page_count && find.miss == MissReason::None) {
    find.miss = load.outcome == TransferOutcome::Cancelled ? MissReason::LoadCancelled : MissReason::LoadFailed;
  }
  find.arrived_pages += load.page_count;
  --find.loads_in_flight;
  --disk_load_count;
  disk_loading_bytes -= load.page_count * history_page_bytes();
  remove_transfer(index);
}

// Those who wait for it go on with what there is.
void Cache::Impl::end_find(std::uint32_t index) {
  Transfer& find = transfers[index];
  MissReason miss = find.miss;
  // There was no transfer, or no host page, for some of what it found.
  if (miss == MissReason::None && find.started_pages < find.good_pages) miss = MissReason::LoadFailed;
  const SequenceId first_waiter = find.owner;
  const std::uint32_t first_page = find.first_page;
  const std::uint32_t looked_pages = first_page + find.found_pages;
  const std::uint32_t limiting_side = find.limiting_side;
  PrefixTree::Pin held = std::move(find.pin);
  const std::uint32_t key_space = find.key_space;
  ++key_spaces[key_space].user_count;  // until those who wait have gone on
  remove_find(index);
  for (std::uint32_t i = sequences.next_loading(0); i < sequences.capacity(); i = sequences.next_loading(i + 1)) {
    SequenceSlot& slot = sequences[i];
    if (slot.state != SequenceSlot::State::Looking || slot.find != index) continue;
    slot.has_looked = true;
    // One that joined may want other pages behind the first.
    slot.looked_pages = first_waiter == SequenceId{i, slot.generation} ? looked_pages : first_page;
    slot.limiting_side = limiting_side;
    stop_looking(i, miss);
  }
  held.reset();
  --key_spaces[key_space].user_count;
  leave_key_space(key_space);
}

// A sequence goes on from where the tree's pages end, once more from the disk or from the host.
void Cache::Impl::stop_looking(std::uint32_t index, MissReason miss) {
  SequenceSlot& slot = sequences[index];
  if (miss != MissReason::None) slot.disk_miss = miss;
  const PrefixTree::Pin waited = std::move(slot.pin);
  const PrefixTree::Match match = match_of(index);
  if (miss == MissReason::None && may_look(slot, match) && start_looking(index, match)) return;
  if (!sides.empty()) {
    go_on_with_sides(index);
    return;
  }
  const LoadChoice choice = choose_load(slot, match);
  if (choice.page_count == 0) {
    slot.load_miss = choice.miss;
    (void)start_running(index);
    ready_sequences.push_back({index, slot.generation});
    return;
  }
  sequences.set_state(index, SequenceSlot::State::Loading);
  slot.pin = tree->pin_all(match);  // wake_loading() starts what it waits for
}

// Those that have waited long enough take what there is.
void Cache::Impl::expire_looking() {
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    const Transfer& find = transfers[i];
    const bool is_late =
        find.kind == TransferKind::FindOnDisk && find.state != Transfer::State::Free && now >= find.deadline;
    if (is_late) abandon_find(i, MissReason::LoadTimedOut);
  }
  for (std::uint32_t i = sequences.next_loading(0); i < sequences.capacity(); i = sequences.next_loading(i + 1)) {
    SequenceSlot& slot = sequences[i];
    const TimeNs deadline =
        slot.find == kNoTransfer ? std::min(slot.load_deadline, slot.turn_deadline) : slot.load_deadline;
    if (slot.state != SequenceSlot::State::Looking || now < deadline) continue;
    slot.has_looked = true;
    slot.looked_pages = UINT32_MAX;
    stop_looking(i, MissReason::LoadTimedOut);
  }
  cancel_unneeded_finds();
}

// Finds whose sequences have gone, or wait no longer.
void Cache::Impl::cancel_unneeded_finds() {
  if (!has_disk()) return;
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    const Transfer& find = transfers[i];
    if (find.kind != TransferKind::FindOnDisk || find.state == Transfer::State::Free) continue;
    if (find.is_prefetch || find.is_direct) continue;
    bool is_needed = false;
    for (std::uint32_t j = sequences.next_loading(0); j < sequences.capacity() && !is_needed;
         j = sequences.next_loading(j + 1)) {
      is_needed = sequences[j].state == SequenceSlot::State::Looking && sequences[j].find == i;
    }
    if (!is_needed) abandon_find(i, MissReason::LoadCancelled);
  }
}

// What it finds, or its loads bring, is not to be used any more.
void Cache::Impl::abandon_find(std::uint32_t index, MissReason miss) {
  Transfer& find = transfers[index];
  if (find.is_unwanted || find.is_direct) return;
  find.is_unwanted = true;
  if (find.miss == MissReason::None) find.miss = miss;
  cancel_transfer(index);
  if (!sides.empty()) cancel_side_disk_loads(index);
  for (std::uint32_t i = sequences.next_loading(0); i < sequences.capacity(); i = sequences.next_loading(i + 1)) {
    SequenceSlot& slot = sequences[i];
    if (slot.state != SequenceSlot::State::Looking || slot.find != index) continue;
    slot.has_looked = true;
    slot.looked_pages = UINT32_MAX;
    stop_looking(i, miss);
  }
  transfers[index].pin.reset();
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    Transfer& load = transfers[i];
    const bool is_its =
        load.kind == TransferKind::LoadFromDisk && load.state != Transfer::State::Free && load.found_by == index;
    if (!is_its) continue;
    cancel_transfer(i);
    if (load.state != Transfer::State::Queued) continue;
    load.good_pages = 0;
    load.outcome = TransferOutcome::Cancelled;
    load.state = Transfer::State::Arrived;
    std::erase(transfer_order, i);
  }
  if (transfers[index].state == Transfer::State::Queued) {
    end_find(index);
  } else if (transfers[index].state == Transfer::State::Arrived) {
    finish_disk_loads(index);
  }
}

}  // namespace quire
