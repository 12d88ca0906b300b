// SPDX-License-Identifier: Apache-2.0
#include "tiers/searches.h"

#include <algorithm>

#include "base/check.h"
#include "tiers/arrivals.h"

namespace quire {

namespace {

// Searches at once: each keeps a copy of its path.
constexpr std::uint32_t kSearchCountMax = 16;
// Loads of one search at once: the next is read while the last comes into the tree.
constexpr std::uint32_t kLoadsPerSearch = 2;
// So many searches are left unread because computing is faster, and then one is read all the same: what was measured
// once may not hold, and only reading measures again.
constexpr std::uint32_t kUnreadMax = 128;

using Stage = Search::State;

// Why a tier has not answered, or has not brought what it has; None: it has.
MissReason miss_of(TransferOutcome outcome) {
  switch (outcome) {
    case TransferOutcome::Ok:
    case TransferOutcome::Empty:
      return MissReason::None;
    case TransferOutcome::Cancelled:
      return MissReason::LoadCancelled;
    case TransferOutcome::TimedOut:
      return MissReason::LoadTimedOut;
    case TransferOutcome::Failed:
      return MissReason::LoadFailed;
  }
  return MissReason::LoadFailed;
}

}  // namespace

Status Searches::open(Arrivals* arrivals) {
  arrivals_ = arrivals;
  pages_.resize(parts_.book.pages_max());
  // A quarter of the transfers, as TierParts::lower_transfers_max() says.
  const std::uint32_t count = std::clamp(parts_.config.host.transfer_count_max / 4, 1U, kSearchCountMax);
  return parts_.searches.open(count, parts_.context_tokens_max, parts_.config.extra_key_count_max,
                              parts_.sequences.row_pages(), !parts_.groups.empty());
}

// Questions

std::optional<std::uint32_t> Searches::add(TransferKind kind, std::uint32_t key_space, std::uint16_t lower,
                                           const PrefixTree::Key& key) {
  if (stores_.awaits_drop(key_space)) return std::nullopt;
  QUIRE_CHECK(key.tokens.size() % parts_.page_tokens == 0, "lower tiers know whole pages only");
  QUIRE_CHECK(lower < parts_.lowers.size(), "a search in a tier that does not exist");
  const std::optional<std::uint32_t> index = parts_.searches.find_free();
  if (!index) return std::nullopt;
  const std::optional<std::uint32_t> transfer = parts_.add_transfer(kind, TransferPriority::Waiting);
  if (!transfer) return std::nullopt;
  Search& search = parts_.searches[*index];
  search.state = Stage::Asking;
  search.transfer = *transfer;
  search.lower = lower;
  search.key_space = key_space;
  parts_.searches.set_path(*index, key);
  parts_.book[*transfer].search = *index;
  parts_.book[*transfer].lower = lower;
  parts_.book[*transfer].key_space = key_space;
  parts_.use_key_space(key_space);
  return index;
}

std::optional<std::uint32_t> Searches::add_direct(TransferKind kind, std::uint32_t key_space,
                                                  const PrefixTree::Key& key, Search::DirectCall call) {
  const std::optional<std::uint32_t> index = add(kind, key_space, 0, key);
  if (!index) return std::nullopt;
  parts_.searches[*index].state = Stage::Direct;
  parts_.searches[*index].direct = std::make_unique<Search::DirectCall>(std::move(call));
  return index;
}

std::optional<std::uint32_t> Searches::look_for(std::uint32_t sequence, const PrefixTree::Match& match,
                                                std::uint16_t lower) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  const std::uint32_t first_page = match.page_count + match.host_page_count;
  const std::uint32_t pages_asked = paths_.pages_asked(slot);
  const PrefixTree::Key key = parts_.sequences.key(sequence, pages_asked * parts_.page_tokens);
  const PageFingerprint before = parts_.tree.fingerprint_before(match);
  // When memory has all pages that the sequence may find, the search is for windows and states.
  const PageFingerprint missing =
      first_page < pages_asked ? parts_.tree.next_fingerprint(before, key, first_page) : ~before;
  for (std::uint32_t i = 0; i < parts_.searches.end(); ++i) {
    const Search& other = parts_.searches[i];
    const bool is_same = other.is_open() && other.lower == lower && other.key_space == slot.key_space &&
                         other.first_page == first_page && other.missing == missing;
    // Where a prefix is to be held, windows and states are wanted at its end, and requests want them elsewhere.
    const bool wants_same = paths_.is_plain() || other.is_for_host == slot.admit_options.is_for_host;
    if (!is_same || !wants_same) continue;
    if (parts_.arrivals[sequence].look_deadline) {  // else all have the same, from when the search began
      parts_.searches[i].deadline = std::max(other.deadline, arrivals_->search_deadline(sequence));
    }
    return i;
  }
  const std::optional<std::uint32_t> index = add(TransferKind::FindBelow, slot.key_space, lower, key);
  if (!index) return std::nullopt;
  Search& search = parts_.searches[*index];
  search.first_page = first_page;
  // Memory may lack windows and states of history that it has: then the whole path is asked for.
  search.asked_from = paths_.is_plain() ? first_page : 0;
  search.missing = missing;
  search.owner = {sequence, slot.generation};
  search.prompt_tokens = Paths::query_of(slot).token_count;
  search.allows_inexact = slot.options.allows_inexact;
  search.is_for_host = slot.admit_options.is_for_host;
  search.asked_at = parts_.now;
  search.deadline = arrivals_->search_deadline(sequence);
  search.tier_deadline = parts_.deadline_after(parts_.lowers[lower].settings.find_timeout_ns);
  search.pin = parts_.tree.pin_all(match);  // up to the page before first_page
  ++parts_.lowers[lower].totals.find_count;
  return index;
}

void Searches::remove(std::uint32_t index) {
  const std::uint32_t key_space = parts_.searches[index].key_space;
  parts_.book.remove(parts_.searches[index].transfer);
  parts_.searches.remove(index);
  parts_.leave_key_space(key_space);
}

// Answers

void Searches::finish_question(std::uint32_t transfer) {
  const std::uint32_t index = parts_.book[transfer].search;
  Search& search = parts_.searches[index];
  QUIRE_CHECK(search.transfer == transfer && search.direct == nullptr, "an answer to another question");
  if (search.state == Stage::Asking) search.state = Stage::Reading;
  search.found_pages = parts_.book[transfer].good_pages;
  parts_.lowers[search.lower].totals.found_pages += search.found_pages;
  choose_pages(index);
  const bool has_found = search.found_pages > 0 || search.anchored_bytes > 0;
  if (parts_.key_spaces[search.key_space].is_retired) {
    search.miss = MissReason::LoadCancelled;
  } else if (!search.is_abandoned() && !has_found) {
    search.miss = miss_of(parts_.book[transfer].outcome);
  } else if (!search.is_abandoned() && !may_read()) {
    search.miss = MissReason::LoadCancelled;
  } else if (!search.is_abandoned() && !is_worth_reading(search)) {
    search.miss = MissReason::RecomputeCheaper;
  } else if (!search.is_abandoned()) {
    set_deadlines(index);
    start_loads(index);
  }
  try_end(index);
}

// What was found is waited for as long as computing it takes, and as the tier may take to bring it.
void Searches::set_deadlines(std::uint32_t index) {
  Search& search = parts_.searches[index];
  const Lower& lower = parts_.lowers[search.lower];
  if (!search.is_for_host && !lower.answers_at_once()) {
    search.deadline = std::min(search.deadline, parts_.computed_by(search.gained_tokens));
  }
  search.tier_deadline = parts_.deadline_after(lower.settings.load_timeout_ns);
}

// Not while the cache falls asleep: sleep() waits until no transfer lives. When it is asleep, no search is left.
bool Searches::may_read() const {
  return !parts_.is_paused && parts_.sleep_state != TierParts::SleepState::FallingAsleep;
}

// What those who wait for a search would have with the pages of a path in memory, and what its tier has besides.
Hit Searches::find_hit(const Search& search, const TierPath& path, const Paths::LowerPages& lower) const {
  const Paths::HitQuery query{.token_count = search.prompt_tokens,
                              .allows_inexact = search.allows_inexact,
                              .allows_partial = !search.is_for_host};
  return paths_.find_hit_below(path, query, lower);
}

// Chooses what to load of the answer: up to the hit, if that is behind the hit that memory alone gives.
void Searches::choose_pages(std::uint32_t index) {
  Search& search = parts_.searches[index];
  const TierPath path = paths_.path_of(search.pin);
  const Hit in_memory = find_hit(search, path, {});
  std::span<const std::uint64_t> anchored = parts_.searches.anchored(index, parts_.page_tokens);
  if (!anchored.empty()) anchored = anchored.first(path.size() + search.found_pages);
  search.hit = find_hit(search, path, {.page_count = search.found_pages, .anchored = anchored});
  const bool is_better = search.hit.start() > in_memory.start();
  search.has_asked_anchored = !is_better;
  search.gained_tokens = is_better ? search.hit.start() - in_memory.start() : 0;
  const std::uint32_t path_tokens = (path.size() + search.found_pages) * parts_.page_tokens;
  if (search.hit.tokens < path_tokens) search.limiting_group = search.hit.limiting_group;
  const std::uint32_t end_page = is_better ? parts_.pages_for(search.hit.tokens) : 0;
  search.found_pages = end_page - std::min(end_page, path.size());
  search.wanted_pages = search.found_pages;
  if (!is_better) return;
  paths_.for_each_anchored_need(search.hit, search.prompt_tokens,
                                [&](const AnchoredGroup& group, const WindowColumns& columns) {
                                  for_each_column(columns, [&](std::uint32_t column) {
                                    if (group.is_in_memory(path, column)) return;
                                    search.anchored_bytes += group.pages.page_bytes;
                                  });
                                });
}

// Whether reading the pages, and loading them to the device, takes less time than computing them. Also true when
// nothing was measured yet, and for every kUnreadMax-th search that is not worth it.
bool Searches::is_worth_reading(const Search& search) {
  Lower& lower = parts_.lowers[search.lower];
  const double compute_ns = parts_.compute_time(search.gained_tokens);
  if (compute_ns == 0 || lower.load_rate.bytes_per_ns == 0) return true;
  const std::uint64_t bytes = (search.found_pages * parts_.history.pages.page_bytes) + search.anchored_bytes;
  const double read_ns = lower.expected_ns(bytes);
  const double load_ns =
      parts_.load_rate.bytes_per_ns > 0 ? static_cast<double>(bytes) / parts_.load_rate.bytes_per_ns : 0;
  if (read_ns + load_ns > compute_ns && ++lower.unread_searches < kUnreadMax) return false;
  lower.unread_searches = 0;
  return true;
}

// Whether a search has pages to load that no transfer was free for, and a transfer lives that will end. A question that
// was answered does not count: it stays until its search has ended.
bool Searches::waits_for_transfers(const Search& search) const {
  if (search.is_abandoned() || search.miss != MissReason::None || search.started_pages == search.found_pages) {
    return false;
  }
  if (!may_read()) return false;
  return parts_.book.any([](const Transfer& each) {
    return each.kind != TransferKind::FindBelow || each.is_on_its_way() || each.state == Transfer::State::CalledOff;
  });
}

// Loads of the history

std::optional<std::uint32_t> Searches::add_load(std::uint32_t index, PageHome& home) {
  const std::optional<std::uint32_t> transfer =
      parts_.add_transfer(TransferKind::LoadFromBelow, TransferPriority::Waiting);
  if (!transfer) return std::nullopt;
  const Search& search = parts_.searches[index];
  Transfer& load = parts_.book[*transfer];
  load.pool = home.pool;
  load.lower = search.lower;
  load.search = index;
  load.key_space = search.key_space;
  return transfer;
}

// How many pages the next load of the history is to have. It ends with an extent, so that no two loads read the same
// one.
std::uint32_t Searches::next_load_pages(const Search& search) const {
  const std::uint32_t left = search.found_pages - search.started_pages;
  const std::uint32_t pages_max = parts_.book.pages_max();
  if (left <= pages_max) return left;
  const std::uint32_t over =
      (search.first_page + search.started_pages + pages_max) % parts_.lowers[search.lower].extent_pages;
  return over < pages_max ? pages_max - over : pages_max;
}

// Starts loads of the history, as far as there are transfers and host pages. The rest is started when transfers end.
void Searches::start_loads(std::uint32_t index) {
  Search& search = parts_.searches[index];
  Lower& lower = parts_.lowers[search.lower];
  HistoryPages& history = parts_.history;
  while (search.started_pages < search.found_pages && search.loads_in_flight < kLoadsPerSearch &&
         lower.load_count < parts_.lower_transfers_max()) {
    const std::uint32_t wanted = next_load_pages(search);
    const std::optional<std::uint32_t> transfer = add_load(index, history);
    if (!transfer) return;
    Transfer& load = parts_.book[*transfer];
    load.first_page = search.first_page + search.started_pages;
    const PrefixTree::Key key = parts_.searches.key(index);
    PageFingerprint tag = search.started_pages == 0 ? parts_.tree.fingerprint_of(search.pin) : search.last_tag;
    for (std::uint32_t i = 0; i < wanted; ++i) {
      const PageId host_page = parts_.take_host_page(history);
      if (host_page.is_none()) break;  // the host is full: the rest is not read
      tag = parts_.tree.next_fingerprint(tag, key, load.first_page + i);
      parts_.book.add_page(*transfer, history.pages.transfer_of(PageId::none(), host_page, tag,
                                                                load.first_page + i - search.asked_from));
    }
    if (load.page_count == 0) {
      parts_.book.remove(*transfer);
      search.found_pages = search.started_pages;
      return;
    }
    search.last_tag = tag;
    search.started_pages += load.page_count;
    if (load.page_count < wanted) search.found_pages = search.started_pages;
    ++search.loads_in_flight;
    ++lower.load_count;
    lower.loading_bytes += load.page_count * history.pages.page_bytes;
  }
}

void Searches::finish_load(std::uint32_t transfer) {
  if (parts_.book[transfer].pool == 0) {
    finish_loads(parts_.book[transfer].search);
  } else {
    finish_anchored_load(transfer);
  }
}

// Ends loads of the history that have arrived, in the order of the path, and starts the next ones.
void Searches::finish_loads(std::uint32_t index) {
  Search& search = parts_.searches[index];
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
      const Transfer& load = parts_.book[i];
      const bool is_next = load.has_ended() && load.kind == TransferKind::LoadFromBelow && load.pool == 0 &&
                           load.search == index && load.first_page == search.first_page + search.arrived_pages;
      if (!is_next) continue;
      finish_history_load(i);
      goes_on = true;
    }
  }
  if (!search.is_abandoned() && search.miss == MissReason::None) start_loads(index);
  try_end(index);
}

// Good pages come into the tree, unless they have been loaded or computed meanwhile; those and bad ones are released.
void Searches::finish_history_load(std::uint32_t transfer) {
  const Transfer& load = parts_.book[transfer];
  Search& search = parts_.searches[load.search];
  HistoryPages& history = parts_.history;
  // The key space was dropped: by now the same names may belong to pages of a new key space, with other bytes.
  if (parts_.key_spaces[search.key_space].is_retired && search.miss == MissReason::None) {
    search.miss = MissReason::LoadCancelled;
  }
  const bool is_wanted = !search.is_abandoned() && search.miss == MissReason::None;
  const std::uint32_t good = is_wanted ? load.good_pages : 0;
  const std::span<const PageTransfer> pages = parts_.book.pages(transfer);
  const std::span<PageId> host_pages = std::span(pages_).first(pages.size());
  for (std::size_t i = 0; i < pages.size(); ++i) host_pages[i] = pages[i].host_page;
  std::uint32_t begin = 0;
  if (good > 0) {
    const PrefixTree::Key key = parts_.searches.key(load.search);
    const std::uint32_t end_page = load.first_page + good;
    const PrefixTree::Match known =
        parts_.tree.match(parts_.key_spaces[search.key_space].root,
                          {key.tokens.first(std::size_t{end_page} * parts_.page_tokens), key.extra_keys});
    begin = std::min(known.page_count + known.host_page_count - load.first_page, good);
    PrefixTree::Pin pin = parts_.tree.pin_all(known);
    const std::span<const PageId> added = host_pages.subspan(begin, good - begin);
    const Hit before = find_hit(search, paths_.path_of(pin), {});
    stores_.log_arrived(search, key, parts_.last_page(pin), load.first_page + begin, added);
    history.pages.host.seal(added);
    parts_.tree.insert_host(pin, key, added);
    note_brought(load.search, before, paths_.path_of(pin));
    search.pin = std::move(pin);
    for (std::uint32_t i = 0; i < added.size(); ++i) {
      history.pages.lower[search.lower].set_there(added[i]);
      history.set_column({Tier::Host, added[i]}, load.first_page + begin + i);
    }
    history.pages.lower[search.lower].loaded_page_total += added.size();
  }
  history.pages.host.release(host_pages.first(begin));
  history.pages.host.release(host_pages.subspan(good));
  if (load.good_pages < load.page_count && search.miss == MissReason::None) {
    search.miss = load.outcome == TransferOutcome::Ok ? MissReason::LoadFailed : miss_of(load.outcome);
  }
  QUIRE_CHECK(search.loads_in_flight > 0, "more loads of a search end than began");
  search.arrived_pages += load.page_count;
  --search.loads_in_flight;
  end_load(transfer);
}

// Pages have come into memory, which gave `before` until then.
void Searches::note_brought(std::uint32_t index, const Hit& before, const TierPath& path) {
  const Hit after = find_hit(parts_.searches[index], path, {});
  if (after.start() > before.start()) arrivals_->note_brought(index, after.start() - before.start());
}

void Searches::end_load(std::uint32_t transfer) {
  const Transfer& load = parts_.book[transfer];
  Lower& lower = parts_.lowers[load.lower];
  QUIRE_CHECK(lower.load_count > 0, "more loads from a lower tier end than began");
  --lower.load_count;
  lower.loading_bytes -= load.page_count * parts_.homes[load.pool]->pages.page_bytes;
  parts_.book.remove(transfer);
}

// Loads of windows and states

bool Searches::reads_below(const AnchoredGroup& group, const Search& search) const {
  return group.pages.lower[search.lower].is_on();
}

// Whether the host has room for all windows and states that a search wants. A part of them would evict other pages, and
// be of no use.
bool Searches::has_room_for_anchored(const Search& search, const TierPath& path) const {
  bool has_room = true;
  paths_.for_each_anchored_need(
      search.hit, search.prompt_tokens, [&](const AnchoredGroup& group, const WindowColumns& columns) {
        if (!reads_below(group, search)) return;
        std::uint32_t needed = 0;
        for_each_column(columns, [&](std::uint32_t column) {
          needed += column < path.size() && !group.is_in_memory(path, column) ? 1 : 0;
        });
        has_room = has_room && needed <= group.pages.host.free_count() + group.host_evictable_pages();
      });
  return has_room;
}

// The history of a search is in memory. Starts loads of the windows and states that its hit needs and memory lacks, as
// far as there are transfers; try_end() calls again for the rest.
void Searches::start_anchored_loads(std::uint32_t index) {
  Search& search = parts_.searches[index];
  search.has_asked_anchored = true;
  if (!may_read() || !search.pin) return;
  const TierPath path = paths_.path_of(search.pin);
  if (path.size() < parts_.pages_for(search.hit.tokens)) return;  // some of the history did not come
  paths_.hold(path, search.hit, search.prompt_tokens, Tier::Host, /*is_held=*/true);
  const bool may_start = search.anchored_started > 0 || has_room_for_anchored(search, path);
  if (may_start && !load_anchored(index, path)) {
    // Questions do not count: one that was answered stays until its search has ended.
    const auto will_end = [](const Transfer& each) { return each.kind != TransferKind::FindBelow; };
    search.has_asked_anchored = !parts_.book.any(will_end);
  }
  paths_.hold(path, search.hit, search.prompt_tokens, Tier::Host, /*is_held=*/false);
}

// False: transfers ran out. A page that the host has no room for is left out.
bool Searches::load_anchored(std::uint32_t index, const TierPath& path) {
  Search& search = parts_.searches[index];
  Lower& lower = parts_.lowers[search.lower];
  const std::span<const std::uint64_t> is_there = parts_.searches.anchored(index, parts_.page_tokens);
  bool has_room = true;
  std::uint32_t place = 0;
  paths_.for_each_anchored_need(
      search.hit, search.prompt_tokens, [&](AnchoredGroup& group, const WindowColumns& columns) {
        std::optional<std::uint32_t> load;
        for_each_column(columns, [&](std::uint32_t column) {
          if (!has_room || place++ < search.anchored_started) return;
          const bool is_needed = reads_below(group, search) && column < path.size() &&
                                 !group.is_in_memory(path, column) && (is_there[column] >> (group.pool - 1U) & 1U) != 0;
          if (is_needed && (!load || parts_.book.is_full_transfer(*load))) {
            load = lower.load_count < parts_.lower_transfers_max() ? add_load(index, group) : std::nullopt;
            has_room = load.has_value();
            if (!has_room) return;
            parts_.book[*load].pin = parts_.tree.clone(search.pin);
            ++search.anchored_loads_in_flight;
            ++lower.load_count;
          }
          ++search.anchored_started;
          if (!is_needed) return;
          const PageId host_page = parts_.take_host_page(group);
          if (host_page.is_none()) return;
          parts_.book.add_page(
              *load, group.pages.transfer_of(PageId::none(), host_page, group.tag_of(path.at(column)), column));
          lower.loading_bytes += group.pages.page_bytes;
        });
        if (!load || parts_.book[*load].page_count > 0) return;
        --search.anchored_loads_in_flight;
        parts_.book[*load].pin.reset();
        end_load(*load);
      });
  return has_room;
}

void Searches::finish_anchored_load(std::uint32_t transfer) {
  Transfer& load = parts_.book[transfer];
  const std::uint32_t index = load.search;
  Search& search = parts_.searches[index];
  AnchoredGroup& group = *parts_.groups[load.pool - 1U];
  const bool is_wanted = load.is_wanted() && !search.is_abandoned() && !parts_.key_spaces[search.key_space].is_retired;
  const TierPath path = paths_.path_of(load.pin);  // pages of the path may have come to the device meanwhile
  const Hit before = find_hit(search, path, {});
  const std::span<const PageTransfer> pages = parts_.book.pages(transfer);
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const bool is_good = is_wanted && i < load.good_pages;
    if (is_good && group.attach_host(path.at(pages[i].place), pages[i].host_page, pages[i].place)) {
      group.pages.lower[search.lower].set_there(pages[i].host_page);
      ++group.pages.lower[search.lower].loaded_page_total;
    } else {
      group.pages.host.release({&pages[i].host_page, 1});
    }
  }
  note_brought(index, before, path);
  load.pin.reset();
  end_load(transfer);
  --search.anchored_loads_in_flight;
  try_end(index);
}

// Ends

// Ends a search when none of its loads is under way, and none can still be started.
void Searches::try_end(std::uint32_t index) {
  const Search& search = parts_.searches[index];
  if (search.loads_in_flight > 0 || waits_for_transfers(search)) return;
  const bool may_ask =
      !search.is_abandoned() && search.miss == MissReason::None && !parts_.key_spaces[search.key_space].is_retired;
  if (may_ask && !search.has_asked_anchored) {
    start_anchored_loads(index);
    parts_.hand_over();
  }
  const bool waits = may_ask && !search.has_asked_anchored;
  if (search.anchored_loads_in_flight == 0 && !waits) end(index);
}

void Searches::end(std::uint32_t index) {
  QUIRE_CHECK(parts_.searches[index].loads_in_flight == 0 && parts_.searches[index].anchored_loads_in_flight == 0,
              "a search ends while its loads are under way");
  Search ended = std::move(parts_.searches[index]);
  // For some pages to be loaded there was no transfer, or no host page.
  if (ended.miss == MissReason::None && ended.started_pages < ended.wanted_pages) ended.miss = MissReason::LoadFailed;
  parts_.use_key_space(ended.key_space);  // until sequences that waited have gone on
  remove(index);
  arrivals_->finish_search(index, ended);
  ended.pin.reset();
  parts_.leave_key_space(ended.key_space);
}

void Searches::read_more() {
  for (std::uint32_t i = 0; i < parts_.searches.end(); ++i) {
    const Search& search = parts_.searches[i];
    const bool is_answered = search.state == Stage::Reading || search.state == Stage::Abandoned;
    if (!is_answered || search.loads_in_flight > 0) continue;
    if (parts_.book[search.transfer].has_ended()) finish_loads(i);
  }
}

void Searches::expire() {
  for (std::uint32_t i = 0; i < parts_.searches.end(); ++i) {
    const Search& search = parts_.searches[i];
    if (!search.is_open()) continue;
    if (parts_.now >= search.deadline) {
      abandon(i, MissReason::LoadTimedOut);
    } else if (parts_.now >= search.tier_deadline) {
      abandon(i, MissReason::LoadTimedOut, Then::AskNext);
    }
  }
}

void Searches::cancel_unneeded() {
  for (std::uint32_t i = 0; i < parts_.searches.end(); ++i) {
    const Search& search = parts_.searches[i];
    if (!search.is_open() || search.is_prefetch || arrivals_->is_search_awaited(i)) continue;
    abandon(i, MissReason::LoadCancelled);
  }
}

void Searches::abandon_all(MissReason miss) {
  for (std::uint32_t i = 0; i < parts_.searches.end(); ++i) {
    if (parts_.searches[i].is_live()) abandon(i, miss);
  }
}

// Nobody uses what a search finds from here on, or what its loads bring. Sequences that wait for it stop looking.
void Searches::abandon(std::uint32_t index, MissReason miss, Then then) {
  Search& search = parts_.searches[index];
  if (!search.is_open()) return;
  const bool is_asking = search.state == Stage::Asking;
  // A tier that does not answer at all is known to be slow by that.
  if (is_asking && miss == MissReason::LoadTimedOut) {
    parts_.lowers[search.lower].measure_question(parts_.now - search.asked_at);
  }
  search.state = Stage::Abandoned;
  if (search.miss == MissReason::None) search.miss = miss;
  const bool is_queued = parts_.book[search.transfer].state == Transfer::State::Queued;
  if (is_asking) parts_.call_off(search.transfer);
  for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
    Transfer& load = parts_.book[i];
    if (!load.is_live() || load.kind != TransferKind::LoadFromBelow || load.search != index) continue;
    if (load.state == Transfer::State::Arrived) continue;
    if (load.state == Transfer::State::Queued) {
      // No rank will report, and the fields say that all went well.
      load.good_pages = 0;
      load.outcome = TransferOutcome::Cancelled;
    }
    parts_.call_off(i);
    load.pin.reset();
  }
  arrivals_->abandon_search(index, miss, /*asks_next=*/then == Then::AskNext);
  search.pin.reset();
  if (is_queued) {
    end(index);
  } else if (!is_asking) {
    finish_ended(index);
  }
}

// Ends the loads of an abandoned search that nobody is moving.
void Searches::finish_ended(std::uint32_t index) {
  for (std::uint32_t i = 0; i < parts_.book.end(); ++i) {
    const Transfer& load = parts_.book[i];
    const bool is_its = load.state == Transfer::State::Over && load.search == index && load.pool > 0;
    if (!is_its) continue;
    ++parts_.searches[index].loads_in_flight;  // not a load: keeps finish_anchored_load() from ending the search here
    finish_anchored_load(i);
    --parts_.searches[index].loads_in_flight;
  }
  finish_loads(index);
}

}  // namespace quire
