// SPDX-License-Identifier: Apache-2.0
#include "tiers/tiers.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutants.h"
#include "layout/text.h"

namespace quire {

// Opening

AnchoredGroup& Tiers::add_group(const CacheGroup& group, std::uint32_t group_index) {
  const auto pool = static_cast<std::uint16_t>(parts.groups.size() + 1);
  AnchoredGroup& added = *parts.groups.emplace_back(std::make_unique<AnchoredGroup>(pool, parts.fence, parts.tree));
  added.group = &group;
  added.group_index = group_index;
  added.is_window = !has_slot(group);
  added.sink_pages = added.is_window ? parts.pages_for(group.sink_tokens) : 0;
  added.pages.is_anchored = true;
  parts.homes.push_back(&added);
  return added;
}

void Tiers::open_paths() {
  paths.open(std::max(parts.config.layout.hit_multiple_tokens(), 1U));
}

Status Tiers::open_host(std::uint32_t page_count, std::uint32_t clean_reserve_pages) {
  const HostConfig& host = parts.config.host;
  const bool looks_ahead = parts.sequences.keys().lookahead_tokens() > 0;
  QUIRE_TRY(
      parts.history.open_host({.page_count = page_count, .looks_ahead = looks_ahead}, parts.sequences.row_pages()));
  QUIRE_TRY_ASSIGN(parts.book, TransferBook::create({.transfer_count_max = host.transfer_count_max,
                                                     .transfer_pages_max = host.transfer_pages_max,
                                                     .rank_count = host.rank_count}));
  parts.ready_sequences.reserve(parts.sequences.capacity());
  parts.ahead.open(parts.sequences.capacity(), host.transfer_count_max);
  parts.ended_loads.open(host.transfer_count_max);
  paths.open_host();
  stores.open(clean_reserve_pages);
  lower_stores.open(host.transfer_pages_max);
  loads.open(nullptr);
  return saves.open();
}

Status Tiers::add_lower(LowerTier& tier, const LowerSettings& settings) {
  // Each has a store, a load and a drop of its own at once, and the host needs transfers besides.
  const std::size_t count_max = std::clamp<std::size_t>(parts.config.host.transfer_count_max / 4, 1, kLowerCountMax);
  if (parts.lowers.size() >= count_max) {
    return invalid("a cache with host.transfer_count_max = ", plain(parts.config.host.transfer_count_max),
                   " has at most ", plain(count_max), count_max == 1 ? " lower tier" : " lower tiers");
  }
  const std::uint32_t extent_pages = tier.extent_pages();
  QUIRE_CHECK(extent_pages > 0 && extent_pages <= parts.book.pages_max(), "a store has room for a whole extent");
  if (extent_pages > 1) QUIRE_TRY(parts.history.open_extents());
  parts.lowers.push_back({.tier = &tier,
                          .settings = settings,
                          .budget = WriteBudget(settings.write_bytes_per_day),
                          .extent_pages = extent_pages});
  for (PageHome* const home : parts.homes) {
    QUIRE_TRY(home->pages.add_lower(home->pages.has_host() && tier.keeps(home->pool)));
  }
  return {};
}

Status Tiers::open_searches(const NameLog::Config& names) {
  QUIRE_TRY_ASSIGN(parts.name_log, NameLog::create(names));
  QUIRE_TRY(parts.history.open_lower(parts.name_log));
  loads.open(&searches);
  answers.reserve(parts.config.host.transfer_count_max);
  return searches.open(&arrivals);
}

// Completions

bool Tiers::apply(const Completion& completion) {
  if (!parts.book.knows(completion)) return false;
  const std::uint32_t index = completion.id.index;
  const Transfer& transfer = parts.book[index];
  const bool is_question = asks_for_path(transfer.kind);
  std::uint32_t pages_max = transfer.page_count;
  if (is_question) {
    const Search& search = parts.searches[transfer.search];
    pages_max = (search.token_count / parts.page_tokens) - search.first_page;
  }
  count(transfer, completion);
  if (parts.book.report(completion, pages_max, is_question)) finish(index);
  return true;
}

void Tiers::count(const Transfer& transfer, const Completion& completion) {
  Stats& counters = parts.counters;
  switch (transfer.kind) {
    case TransferKind::Load:
      counters.loaded_bytes += completion.moved_bytes;
      parts.load_rate.measure(completion);
      return;
    case TransferKind::Store:
      counters.stored_bytes += completion.moved_bytes;
      parts.store_rate.measure(completion);
      return;
    case TransferKind::FindBelow: {
      const bool is_answer =
          completion.outcome != TransferOutcome::Failed && completion.outcome != TransferOutcome::Cancelled;
      if (is_answer) parts.lowers[transfer.lower].measure_question(completion.busy_ns);
      return;
    }
    case TransferKind::LoadFromBelow: {
      Lower& lower = parts.lowers[transfer.lower];
      const PageHome& home = *parts.homes[transfer.pool];
      lower.totals.loaded_bytes += completion.moved_bytes;
      // Some shards may have brought theirs in time, which is of no use.
      if (completion.outcome == TransferOutcome::TimedOut && completion.good_pages == 0) {
        lower.load_rate.measure_late(completion, lower.extent_of(home) * home.pages.page_bytes);
      } else {
        lower.load_rate.measure(completion);
      }
      return;
    }
    case TransferKind::StoreBelow: {
      Lower& lower = parts.lowers[transfer.lower];
      lower.totals.stored_bytes += completion.moved_bytes;
      lower.budget.correct(transfer.page_count * lower.tier->written_bytes(transfer.pool), completion.moved_bytes);
      return;
    }
    case TransferKind::PutBelow:
      parts.lowers[transfer.lower].budget.take(completion.moved_bytes);
      return;
    default:
      return;
  }
}

// All ranks have reported.
void Tiers::finish(std::uint32_t index) {
  const Transfer& transfer = parts.book[index];
  Stats& counters = parts.counters;
  const auto outcome = static_cast<std::size_t>(transfer.outcome);
  const bool has_failed = transfer.outcome == TransferOutcome::Failed;
  if (is_of_lower_tier(transfer.kind) && has_failed) {
    Lower& lower = parts.lowers[transfer.lower];
    if (!lower.has_failed && lower.is_failed(0)) {
      lower.has_failed = true;
      lower_stores.lose_all_of(transfer.lower);
    }
  }
  switch (transfer.kind) {
    case TransferKind::Load:
      parts.ended_loads.add(parts.book.id(index), transfer.outcome);
      if (transfer.is_wanted()) ++counters.load_outcomes[outcome];
      if (has_failed) ++counters.load_faults[static_cast<std::size_t>(transfer.fault)];
      if (!transfer.is_of_tree()) saves.finish_restore(index);
      return;  // Loads::finish_arrived() attaches pages of the tree when their turn has come
    case TransferKind::Store:
      ++counters.store_outcomes[outcome];
      if (transfer.is_of_tree()) {
        stores.finish(index);
      } else {
        saves.finish_save(index);
      }
      return;
    case TransferKind::FindBelow:
    case TransferKind::PutBelow:
    case TransferKind::GetFromBelow:
      if (parts.searches[transfer.search].direct != nullptr) {
        finish_direct(index);
      } else {
        searches.finish_question(index);
      }
      return;
    case TransferKind::LoadFromBelow:
      ++parts.lowers[transfer.lower].totals.load_outcomes[outcome];
      searches.finish_load(index);
      return;
    case TransferKind::StoreBelow:
      ++parts.lowers[transfer.lower].totals.store_outcomes[outcome];
      lower_stores.finish(index);
      return;
    case TransferKind::DropBelow:
      lower_stores.finish_drop(index);
      return;
    case TransferKind::FlushBelow:
      lower_stores.finish_flush(index);
      return;
  }
}

// Answers a direct call with the hit that a sequence would have with the pages that were found, written or read.
void Tiers::finish_direct(std::uint32_t index) {
  const Transfer& transfer = parts.book[index];
  Search& search = parts.searches[transfer.search];
  std::span<const std::uint64_t> anchored = parts.searches.anchored(transfer.search, parts.page_tokens);
  if (!anchored.empty()) anchored = anchored.first(transfer.good_pages);
  Answer answer{.callback = std::move(search.direct->callback),
                .outcome = transfer.outcome == TransferOutcome::Empty ? TransferOutcome::Ok : transfer.outcome,
                .hit = paths.find_hit_below({}, {.token_count = UINT32_MAX},
                                            {.page_count = transfer.good_pages, .anchored = anchored})};
  // The key space was dropped meanwhile: the pages may belong to a new key space with the same name.
  if (parts.key_spaces[search.key_space].is_retired) {
    answer.outcome = TransferOutcome::Cancelled;
    answer.hit = {};
  }
  answers.push_back(std::move(answer));
  searches.remove(transfer.search);
}

// Background

void Tiers::work_in_background() {
  if (!parts.has_host()) return;
  parts.history.release_freed_host();
  if (parts.has_lower()) {
    lower_stores.start_drops();
    // Stores of anchored groups name pages by ids of the history's pages. They are handed over before stores.start()
    // can give these ids to other pages.
    if (lower_stores.start() && !is_mutated(Mutant::LateAnchoredNames)) parts.hand_over();
    arrivals.start_waiting_searches();
  }
  arrivals.start_waiting_loads();
  write_back();
}

void Tiers::cancel_all() {
  loads.call_off_all();
  if (parts.has_lower()) searches.abandon_all(MissReason::LoadCancelled);
  for (std::uint32_t i = 0; i < parts.book.end(); ++i) {
    const Transfer& store = parts.book[i];
    if (!store.is_live() || store.kind != TransferKind::Store || !store.is_of_tree()) continue;
    const bool is_queued = store.state == Transfer::State::Queued;
    parts.call_off(i);
    if (is_queued) stores.finish(i);
  }
  for (const auto& group : parts.groups) {
    if (group->has_host()) group->forget_wanted();
  }
}

// Rules

namespace {

template <typename... Pieces>
tl::unexpected<Error> broken(const Pieces&... rule) {
  return fail(ErrorCode::Corrupt, message_of("tiers: ", rule...));
}

}  // namespace

Status Tiers::check_invariants() const {
  std::uint32_t loading_count = 0;
  std::uint64_t loading_bytes = 0;
  std::vector<std::uint64_t> lower_bytes(parts.lowers.size());
  std::vector<std::uint32_t> lower_loads(parts.lowers.size());
  std::vector<std::uint32_t> lower_stores_begun(parts.lowers.size());
  QUIRE_TRY(parts.book.check_invariants());
  for (std::uint32_t i = 0; i < parts.book.end(); ++i) {
    const Transfer& transfer = parts.book[i];
    if (!transfer.is_live()) continue;
    const std::uint64_t bytes = transfer.page_count * parts.homes[transfer.pool]->pages.page_bytes;
    loading_count += transfer.is_tree_load() ? 1 : 0;
    if (transfer.is_tree_load()) loading_bytes += bytes;
    if (transfer.kind == TransferKind::StoreBelow) ++lower_stores_begun[transfer.lower];
    if (transfer.kind != TransferKind::LoadFromBelow) continue;
    lower_bytes[transfer.lower] += bytes;
    ++lower_loads[transfer.lower];
  }
  if (loading_count != parts.loading_count) return broken("the count of loads from the host is wrong");
  if (loading_bytes != parts.loading_bytes) return broken("the count of bytes being loaded is wrong");
  for (std::size_t i = 0; i < parts.lowers.size(); ++i) {
    QUIRE_TRY(check_extents(static_cast<std::uint16_t>(i)));
    if (lower_loads[i] != parts.lowers[i].load_count) return broken("the count of loads from below is wrong");
    if (lower_stores_begun[i] != parts.lowers[i].store_count) return broken("the count of stores below is wrong");
    if (std::max(lower_loads[i], lower_stores_begun[i]) > parts.lower_transfers_max()) {
      return broken("a lower tier has more transfers than leave room for others");
    }
    if (lower_bytes[i] != parts.lowers[i].loading_bytes) return broken("the count of bytes from below is wrong");
  }
  for (const PageHome* const home : parts.homes) QUIRE_TRY(check_pool(*home));
  for (const auto& group : parts.groups) {
    if (group->has_pages) QUIRE_TRY(group->check_invariants());
  }
  if (!parts.has_host()) return {};
  QUIRE_TRY(saves.check_invariants());
  const PrefixTree& tree = parts.tree;
  const std::uint32_t cached =
      tree.host_idle_pages() + tree.host_pinned_pages() + tree.host_held_pages() + tree.copy_count();
  if (parts.history.pages.host.count(PageState::Sealed) != cached) {
    return broken("the cached host pages are not those of the tree");
  }
  bool is_right = true;
  for (std::uint32_t i = 0; i < parts.key_spaces.end(); ++i) {
    if (!parts.key_spaces[i].is_live) continue;
    tree.for_each_run(parts.key_spaces[i].root, [&](const RunView& run) {
      const std::uint32_t load_number = tree.load_of(run.run);
      if (load_number == 0) return;
      const Transfer& load = parts.book[load_number - 1];
      is_right = is_right && tree.is_on_host(run.run) && load.is_live() && load.kind == TransferKind::Load &&
                 load.pool == 0 && load.is_wanted();
    });
  }
  return is_right ? Status{} : broken("a run waits for a load that is over");
}

// Whatever waits for a lower tier, or is written to it, is an extent.
Status Tiers::check_extents(std::uint16_t lower_index) const {
  const std::uint32_t extent_pages = parts.lowers[lower_index].extent_pages;
  if (extent_pages == 1) return {};
  const HistoryPages& history = parts.history;
  const LowerCopies& copies = history.pages.lower[lower_index];
  for (std::uint32_t page = 1; copies.is_on() && page <= history.pages.host.page_count(); ++page) {
    const LowerCopies::State state = copies.states[page];
    const bool waits = copies.waiting.contains(page) || state == LowerCopies::State::Writing;
    if (waits && history.column_of_host(PageId{page}) % extent_pages != extent_pages - 1) {
      return broken("a page waits for a lower tier that does not end an extent");
    }
  }
  for (std::uint32_t i = 0; i < parts.book.end(); ++i) {
    const Transfer& store = parts.book[i];
    const bool is_its = store.is_live() && store.kind == TransferKind::StoreBelow && store.lower == lower_index;
    if (!is_its || store.pool > 0) continue;
    if (store.page_count % extent_pages != 0) return broken("a part of an extent is written");
  }
  return {};
}

// Compares the pages of one pool with what its transfers do with them.
Status Tiers::check_pool(const PageHome& home) const {
  const TierPages& pages = home.pages;
  const auto bad = [&](const auto&... rule) { return broken("pool ", plain(home.pool), ": ", rule...); };
  std::vector<std::uint32_t> device_reads(std::size_t{pages.device.page_count()} + 1);
  std::vector<std::uint32_t> host_reads(std::size_t{pages.host.page_count()} + 1);
  std::vector<std::uint32_t> store_counts(parts.lowers.size());
  std::uint32_t filling = 0;
  for (std::uint32_t i = 0; i < parts.book.end(); ++i) {
    const Transfer& transfer = parts.book[i];
    if (!transfer.is_live() || transfer.pool != home.pool) continue;
    const bool fills_host = transfer.kind == TransferKind::Store || transfer.kind == TransferKind::LoadFromBelow;
    if (transfer.kind == TransferKind::StoreBelow) ++store_counts[transfer.lower];
    for (const PageTransfer& page : parts.book.pages(i)) {
      const PageState state = pages.host.state(page.host_page);
      const PageState cached = transfer.is_of_tree() ? PageState::Sealed : PageState::Private;
      const bool is_held = fills_host ? state == PageState::Open : state == cached || state == PageState::Fenced;
      if (!is_held) return bad("a transfer's host page is ", to_string(state));
      filling += fills_host ? 1 : 0;
      if (!fills_host) ++host_reads[page.host_page.value];
      if (transfer.kind == TransferKind::Store) ++device_reads[page.device_page.value];
    }
  }
  if (pages.has_host() && pages.host.count(PageState::Open) != filling) return bad("host pages are filled by nobody");
  for (std::size_t i = 0; i < pages.lower.size(); ++i) {
    if (store_counts[i] != pages.lower[i].store_count) return bad("the count of stores to a lower tier is wrong");
  }
  if (const Status status = pages.check(device_reads, host_reads); !status) return bad(status.error().message);
  return {};
}

}  // namespace quire
