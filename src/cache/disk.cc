// SPDX-License-Identifier: Apache-2.0
//
// Cache: the disk tier. Pages there are found by name, by a worker, so the tree does not know them: a sequence whose
// path goes on behind what the tree has looks there first. What is found is read into host pages that belong to the
// transfer until they have arrived; then they come into the tree as any host page, and go on from there.
//
//     admit ─ Looking: find ─ load ─ … ─ Loading: from the host to the device ─ Running
//
// Whoever wants the same page at the same time waits for the same find. What goes to disk is what the host has: when,
// is the write policy's business; how much, the endurance budget's, which gives pages that were used again a head
// start.
#include <algorithm>
#include <chrono>
#include <random>

#include "base/check.h"
#include "base/hash.h"
#include "cache/cache_impl.h"
#include "cache/cache_peer.h"
#include "layout/text.h"
#include "quire/cache.h"
#include "store/system_files.h"

namespace quire {

namespace {

// Finds at once: each keeps a copy of its path.
constexpr std::uint32_t kFindCountMax = 16;
// Of the transfers, so that writes in the background leave most to those who wait.
constexpr std::uint32_t kStoresMax = 2;
constexpr TimeNs kDayNs = TimeNs{86'400} * 1'000'000'000;
// What may be written at once after a quiet time. The rest of a day's budget comes evenly, so that no day has more.
constexpr std::uint64_t kBurstsPerDay = 24;

// How the bytes of a host page lie: whoever writes them another way must not read these.
std::uint64_t layout_hash(const PageGeometry& page) {
  std::string form = "quire page layout 1";
  const auto add = [&form](std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) form.push_back(static_cast<char>((value >> (8 * byte)) & 0xffU));
  };
  const PageOptions& options = page.options();
  add(options.page_tokens);
  add(options.rank_count);
  add(static_cast<std::uint64_t>(options.head_order));
  add(static_cast<std::uint64_t>(page.group().keys_rotated));
  add(page.layer_bytes());
  add(page.layer_count());
  for (const std::uint32_t layer : page.group().layers) add(layer);
  for (const Component& component : page.group().components) {
    add(component.name.size());
    form += component.name;
    add(static_cast<std::uint64_t>(component.element));
    add(component.heads);
    add(component.dim);
    add(static_cast<std::uint64_t>(component.sharding));
  }
  return hash_bytes(form.data(), form.size(), 0);
}

bool has_path(TransferKind kind) {
  return kind == TransferKind::FindOnDisk || kind == TransferKind::PutOnDisk || kind == TransferKind::GetFromDisk;
}

std::uint64_t random_seed() {
  std::random_device entropy;
  return (std::uint64_t{entropy()} << 32U) | entropy();
}

TimeNs unix_time() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Status Cache::Impl::open_disk(FileSystem* given_files, HostPages* given_host) {
  const DiskConfig& settings = config.disk;
  // Whoever gives host pages is the disk tier's threads, and wants the same every time.
  const bool has_threads = given_host == nullptr;
  if (has_threads && mover == nullptr) {
    return fail(ErrorCode::Unsupported,
                "disk.directories is set with host.external_mover: a disk tier needs the cache's own mover");
  }
  if (given_files == nullptr) files = std::make_unique<SystemFiles>();
  const std::uint32_t step_pages = (config.step_tokens_max / page_tokens) + config.sequence_count_max;
  const NameLog::Config log_config{.page_tokens = page_tokens,
                                   .entry_count_max = (4 * (pool_page_count() + host_page_count)) + (8 * step_pages),
                                   .page_count_max = 8 * step_pages,
                                   .extra_key_count_max = 4 * (config.extra_key_count_max + step_pages)};
  QUIRE_TRY_ASSIGN(name_log, NameLog::create(log_config));
  QUIRE_TRY_ASSIGN(
      disk, DiskMover::open(
                {.names = {.page_tokens = page_tokens,
                           .device_page_count = pool_page_count() + 1,
                           .host_page_count = host_page_count + 1,
                           .key_space_count_max = config.key_space_count_max},
                 .log = log_config,
                 .store = {.directories = settings.directories,
                           .capacity_bytes = settings.capacity_bytes,
                           .segment_bytes = settings.segment_bytes,
                           .layout = {.page_bytes = geometry.page().page_bytes(), .hash = layout_hash(geometry.page())},
                           .queue_depth = settings.queue_depth,
                           .zstd_level = settings.zstd_level,
                           .random_seed = has_threads ? random_seed() : config.hash_seed,
                           .now_ns = has_threads ? unix_time() : 0},
                 .transfer_count_max = config.host.transfer_count_max,
                 .transfer_pages_max = config.host.transfer_pages_max,
                 .path_pages_max = sequences.row_pages(),
                 .has_threads = has_threads,
                 .event_fd = mover != nullptr ? mover->event_fd() : -1,
                 .unix_time = has_threads ? unix_time : nullptr},
                given_files == nullptr ? *files : *given_files, has_threads ? mover->host_pages() : *given_host));
  find_row_count = std::min(kFindCountMax, config.host.transfer_count_max);
  QUIRE_TRY_ASSIGN(find_tokens, LazyArray<TokenId>::create(std::size_t{find_row_count} * context_tokens_max));
  QUIRE_TRY_ASSIGN(find_keys, LazyArray<ExtraKey>::create(std::size_t{find_row_count} * config.extra_key_count_max));
  find_row_users.assign(find_row_count, kNoTransfer);
  QUIRE_TRY_ASSIGN(disk_states, LazyArray<DiskState>::create(std::size_t{host_page_count} + 1));
  QUIRE_TRY(disk_lists.reserve(host_page_count + 1, kDiskListCount));
  write_budget = static_cast<double>(settings.write_bytes_per_day) / kBurstsPerDay;
  return {};
}

// Names

// Pages of a sequence that have just come into the tree. What they are called is computed elsewhere, from their tokens
// and the name of the page before them.
void Cache::Impl::log_names(std::uint32_t index, std::uint32_t first_page, std::uint32_t end_page) {
  const SequenceSlot& slot = sequences[index];
  const std::span<const PageId> row = sequences.page_row(index);
  const PrefixTree::Key key = sequences.key(index, end_page * page_tokens);
  for (std::uint32_t page = first_page; page < end_page; ++page) {
    if (key_spaces[slot.key_space].is_retired) {
      name_log.add_unnamed(Tier::Device, row[page]);
      continue;
    }
    const TokenRange range{page * page_tokens, (page + 1) * page_tokens};
    name_log.add_page({.page = row[page],
                       .parent = page == 0 ? PageId::none() : row[page - 1],
                       .key_space = slot.key_space,
                       .page_index = page,
                       .tokens = key.tokens.subspan(range.begin, page_tokens),
                       .extra_keys = overlapping(key.extra_keys, range)});
  }
}

// What is left of a key space that was dropped belongs to its sequences. It must not go to disk any more: by its name,
// whoever makes the key space anew would find it there.
void Cache::Impl::forget_names(std::uint32_t key_space) {
  tree->for_each_run(key_spaces[key_space].root, [this](const RunView& run) {
    for (const PageId page : run.pages) {
      name_log.add_unnamed(run.tier, page);
      if (run.tier == Tier::Host) continue;
      const PrefixTree::HostCopy copy = tree->copy_of(page);
      if (copy.state != PrefixTree::Copy::None) name_log.add_unnamed(Tier::Host, copy.host_page);
    }
  });
}

// Looking

// How many whole pages of its tokens a sequence may find in the cache.
std::uint32_t Cache::Impl::pages_asked(const SequenceSlot& slot) const {
  if (!slot.may_use_cache || key_spaces[slot.key_space].is_retired) return 0;
  const std::uint32_t window_tokens = slot.window_tokens > 0 ? slot.window_tokens : UINT32_MAX;
  return std::min({slot.token_count, slot.match_tokens_max, window_tokens}) / page_tokens;
}

bool Cache::Impl::may_look(const SequenceSlot& slot, const PrefixTree::Match& match) const {
  if (!has_disk() || disk_has_failed || is_paused || falls_asleep || is_asleep || slot.tier_max < Tier::Disk) {
    return false;
  }
  const std::uint32_t found = match.page_count + match.host_page_count;
  return found < pages_asked(slot) && (!slot.has_looked || found > slot.looked_pages);
}

// The find that asks for what follows a match, started now or before; none when there is no room for one.
std::optional<std::uint32_t> Cache::Impl::look_for(std::uint32_t index, const PrefixTree::Match& match) {
  const SequenceSlot& slot = sequences[index];
  const std::uint32_t first_page = match.page_count + match.host_page_count;
  const PrefixTree::Key key = sequences.key(index, pages_asked(slot) * page_tokens);
  const PageFingerprint missing = tree->next_fingerprint(tree->fingerprint_before(match), key, first_page);
  for (std::uint32_t i = 0; i < transfer_end; ++i) {
    const Transfer& find = transfers[i];
    const bool is_same = find.kind == TransferKind::FindOnDisk && find.state != Transfer::State::Free &&
                         !find.is_unwanted && !find.callback && find.key_space == slot.key_space &&
                         find.first_page == first_page && find.missing == missing;
    if (is_same) return i;
  }
  const std::optional<std::uint32_t> transfer = add_find(TransferKind::FindOnDisk, slot.key_space, key);
  if (!transfer) return std::nullopt;
  Transfer& find = transfers[*transfer];
  find.first_page = first_page;
  find.missing = missing;
  find.owner = {index, slot.generation};
  find.pin = tree->pin_all(match);  // splits where the path goes on, and keeps the page before it
  ++counters.disk_find_count;
  return transfer;
}

// A transfer with a path of its own.
std::optional<std::uint32_t> Cache::Impl::add_find(TransferKind kind, std::uint32_t key_space,
                                                   const PrefixTree::Key& key) {
  const auto row = std::ranges::find(find_row_users, kNoTransfer);
  if (row == find_row_users.end() || has_unstarted_drop) return std::nullopt;
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

// Makes an admitted sequence wait for what the disk may have. False: it does not.
bool Cache::Impl::start_looking(std::uint32_t index, const PrefixTree::Match& match) {
  SequenceSlot& slot = sequences[index];
  const std::optional<std::uint32_t> find = look_for(index, match);
  if (!find) {
    slot.has_looked = true;
    slot.looked_pages = UINT32_MAX;
    return false;
  }
  slot.state = SequenceSlot::State::Looking;
  slot.find = *find;
  slot.pin = tree->clone(transfers[*find].pin);
  slot.soft_pin.reset();
  return true;
}

DiskPlan Cache::Impl::disk_plan_of(std::uint32_t index) const {
  const Transfer& transfer = transfers[index];
  DiskPlan plan{.id = {index, transfer.generation},
                .kind = transfer.kind,
                .key_space = transfer.key_space,
                .pages = pages_of(index)};
  if (transfer.kind == TransferKind::FindOnDisk) {
    const RunId last = transfer.pin ? transfer.pin.run() : key_spaces[transfer.key_space].root;
    const std::span<const PageId> before = tree->pages(last);
    plan.parent = {.tier = tree->is_on_host(last) ? Tier::Host : Tier::Device,
                   .page = before.empty() ? PageId::none() : before.back()};
    plan.first_page = transfer.first_page;
  }
  if (has_path(transfer.kind)) {
    const PrefixTree::Key key = key_of_find(transfer);
    plan.tokens = key.tokens.subspan(std::size_t{transfer.first_page} * page_tokens);
    plan.extra_keys = key.extra_keys;
    plan.source = transfer.source;
    plan.target = transfer.target;
  }
  if (transfer.kind == TransferKind::LoadFromDisk) {
    plan.found_by = transfer.found_by;
    plan.first_found = transfer.first_page - transfers[transfer.found_by].first_page;
  }
  return plan;
}

// What became of transfers

void Cache::Impl::finish_disk(std::uint32_t index) {
  Transfer& transfer = transfers[index];
  if (transfer.outcome == TransferOutcome::Failed && disk->is_failed()) disk_has_failed = true;
  switch (transfer.kind) {
    case TransferKind::FindOnDisk:
      if (transfer.callback) {
        finish_direct(index);
      } else {
        finish_find(index);
      }
      return;
    case TransferKind::PutOnDisk:
    case TransferKind::GetFromDisk:
      finish_direct(index);
      return;
    case TransferKind::LoadFromDisk:
      transfer.state = Transfer::State::Arrived;
      finish_disk_loads(transfer.found_by);
      return;
    case TransferKind::StoreToDisk:
      finish_disk_store(index);
      return;
    case TransferKind::DropOnDisk: {
      const std::uint32_t key_space = transfer.key_space;
      remove_transfer(index);
      --key_spaces[key_space].user_count;
      leave_key_space(key_space);
      return;
    }
    default:
      is_flushing = false;
      flush_outcome = transfer.outcome;
      remove_transfer(index);
      return;
  }
}

void Cache::Impl::finish_find(std::uint32_t index) {
  Transfer& find = transfers[index];
  find.state = Transfer::State::Arrived;
  find.found_pages = find.good_pages;
  counters.disk_found_page_total += find.found_pages;
  if (key_spaces[find.key_space].is_retired) {
    find.miss = MissReason::LoadCancelled;
  } else if (find.found_pages > 0 && !find.is_unwanted && !is_paused && !falls_asleep) {
    if (is_worth_reading(find)) {
      start_disk_loads(index);
    } else {
      find.miss = MissReason::RecomputeCheaper;
    }
  }
  if (find.loads_in_flight == 0) end_find(index);
}

// Whether reading the pages, and bringing them on to the device, takes less time than computing them.
bool Cache::Impl::is_worth_reading(const Transfer& find) const {
  if (config.host.compute_ns_per_token == 0 || disk_load_rate == 0) return true;
  const auto bytes = static_cast<double>(find.found_pages * geometry.page().page_bytes());
  const double waiting = static_cast<double>(disk_loading_bytes);
  const double read_ns = (bytes + waiting) / disk_load_rate;
  const double load_ns = load_rate > 0 ? bytes / load_rate : 0;
  const double compute_ns =
      static_cast<double>(find.found_pages) * page_tokens * static_cast<double>(config.host.compute_ns_per_token);
  return read_ns + load_ns <= compute_ns;
}

// As far as there are transfers and host pages; the rest when others are over.
void Cache::Impl::start_disk_loads(std::uint32_t index) {
  while (transfers[index].started_pages < transfers[index].found_pages) {
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
    disk_loading_bytes += load.page_count * geometry.page().page_bytes();
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
  if (transfers[index].loads_in_flight == 0) end_find(index);
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
  disk_loading_bytes -= load.page_count * geometry.page().page_bytes();
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
  PrefixTree::Pin held = std::move(find.pin);
  const std::uint32_t key_space = find.key_space;
  ++key_spaces[key_space].user_count;  // until those who wait have gone on
  remove_find(index);
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    SequenceSlot& slot = sequences[i];
    if (slot.state != SequenceSlot::State::Looking || slot.find != index) continue;
    slot.has_looked = true;
    // One that joined may want other pages behind the first.
    slot.looked_pages = first_waiter == SequenceId{i, slot.generation} ? looked_pages : first_page;
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
  const LoadChoice choice = choose_load(slot, match);
  if (choice.page_count == 0) {
    slot.load_miss = choice.miss;
    (void)start_running(index);
    ready_sequences.push_back({index, slot.generation});
    return;
  }
  slot.state = SequenceSlot::State::Loading;
  slot.pin = tree->pin_all(match);  // wake_loading() starts what it waits for
}

// Those that have waited long enough take what there is.
void Cache::Impl::expire_looking() {
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
    SequenceSlot& slot = sequences[i];
    if (slot.state != SequenceSlot::State::Looking || now < slot.load_deadline) continue;
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
    if (find.is_prefetch || find.callback) continue;
    bool is_needed = false;
    for (std::uint32_t j = 0; j < sequences.capacity() && !is_needed; ++j) {
      is_needed = sequences[j].state == SequenceSlot::State::Looking && sequences[j].find == i;
    }
    if (!is_needed) abandon_find(i, MissReason::LoadCancelled);
  }
}

// What it finds, or its loads bring, is not to be used any more.
void Cache::Impl::abandon_find(std::uint32_t index, MissReason miss) {
  Transfer& find = transfers[index];
  if (find.is_unwanted || find.callback) return;
  find.is_unwanted = true;
  if (find.miss == MissReason::None) find.miss = miss;
  cancel_transfer(index);
  for (std::uint32_t i = 0; i < sequences.capacity(); ++i) {
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

// Storing

// A host page that has just got its bytes from the device.
void Cache::Impl::want_on_disk(PageId host_page) {
  if (disk_has_failed || config.disk.write_policy == WritePolicy::Selective) return;
  disk_states[host_page.value] = DiskState::Cold;
  disk_lists.push_back(host_page.value, kColdPages);
}

// Pages of a path that somebody uses again: they come first, and with WritePolicy::Selective at all.
void Cache::Impl::prefer_on_disk(const PrefixTree::Pin& pin) {
  const bool is_selective = config.disk.write_policy == WritePolicy::Selective;
  const std::uint32_t hits_min = is_selective ? config.disk.write_hits_min : 2;
  for (RunId run = pin.run(); !tree->parent(run).is_none(); run = tree->parent(run)) {
    if (tree->use_count(run) < hits_min) continue;
    for (const PageId page : tree->pages(run)) {
      const PrefixTree::HostCopy copy = tree->copy_of(page);
      if (copy.state != PrefixTree::Copy::Ready) continue;
      DiskState& state = disk_states[copy.host_page.value];
      if (state == DiskState::Cold) disk_lists.remove(copy.host_page.value);
      const bool is_new = state == DiskState::Cold || (is_selective && state == DiskState::None);
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

void Cache::Impl::refill_write_budget(TimeNs time) {
  const double per_day = static_cast<double>(config.disk.write_bytes_per_day);
  const double burst = per_day / kBurstsPerDay;
  const double rate = (per_day - burst) / static_cast<double>(kDayNs);
  write_budget = std::min(burst, write_budget + (rate * static_cast<double>(time - now)));
}

// Pages that were used again may take the budget down to nothing, others only to the half of it.
bool Cache::Impl::may_write(DiskList list, std::uint64_t bytes) const {
  if (config.disk.write_bytes_per_day == 0) return true;
  const double burst = static_cast<double>(config.disk.write_bytes_per_day) / kBurstsPerDay;
  return write_budget - static_cast<double>(bytes) >= (list == kHotPages ? 0 : burst / 2);
}

// With WriteBack, only when the host is about to need the room.
bool Cache::Impl::must_write() const {
  if (config.disk.write_policy != WritePolicy::WriteBack || wants_flush) return true;
  return host_pool.free_count() + on_disk_count < std::max(1U, host_page_count / 4);
}

void Cache::Impl::start_disk_stores() {
  const std::uint64_t bytes = record_bytes(geometry.page().page_bytes());
  while (disk_store_count < kStoresMax && disk_lists.size() > 0 && must_write() && !disk_has_failed) {
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
  for (std::uint32_t i = 0; i < pages.size(); ++i) {
    const PageId page = pages[i].host_page;
    const bool is_same =
        host_generations[page.value] == pages[i].host_generation && disk_states[page.value] == DiskState::Writing;
    if (is_same && i < store.good_pages) {
      disk_states[page.value] = DiskState::OnDisk;
      ++on_disk_count;
      ++counters.disk_stored_page_total;
    } else if (is_same) {
      disk_states[page.value] = DiskState::None;
    }
    release_host_read(page);
  }
  --disk_store_count;
  remove_transfer(index);
}

// Direct calls

Result<std::uint32_t> Cache::Impl::add_direct(TransferKind kind, KeySpaceId key_space, const Prompt& prompt,
                                              const char* call) {
  if (!has_disk()) return fail(ErrorCode::Unsupported, std::string(call) + ": the cache has no disk tier");
  QUIRE_TRY_ASSIGN(const std::uint32_t space, find_key_space(key_space));
  QUIRE_TRY(check_prompt(prompt));
  QUIRE_TRY(check_tokens(prompt.tokens, 0));
  if (disk_has_failed) {
    return fail(ErrorCode::Io, std::string(call) + ": the disk tier has failed: " + disk->store_stats().last_error);
  }
  const std::size_t token_count = prompt.tokens.size() / page_tokens * page_tokens;
  const std::optional<std::uint32_t> transfer =
      add_find(kind, space, {prompt.tokens.first(token_count), prompt.extra_keys});
  if (transfer) return *transfer;
  return fail(ErrorCode::Unavailable, std::string(call) + (is_paused ? ": transfers are paused"
                                                                     : ": too many are under way; apply what "
                                                                       "poll() gives first"));
}

Status Cache::Impl::check_bytes(const Prompt& prompt, std::size_t bytes, const char* call) const {
  const std::uint64_t wanted = prompt.tokens.size() / page_tokens * geometry.page().page_bytes();
  if (bytes == wanted) return {};
  return fail(ErrorCode::InvalidArgument, std::string(call) + ": " + with_separators(bytes) +
                                              " bytes were given for the " +
                                              with_separators(prompt.tokens.size() / page_tokens) +
                                              " whole pages of the prompt, which have " + with_separators(wanted));
}

void Cache::Impl::finish_direct(std::uint32_t index) {
  Transfer& transfer = transfers[index];
  TransferOutcome outcome = transfer.outcome == TransferOutcome::Empty ? TransferOutcome::Ok : transfer.outcome;
  // Dropped meanwhile: what was found may be that of a key space of the same name.
  if (key_spaces[transfer.key_space].is_retired) {
    outcome = TransferOutcome::Cancelled;
    transfer.good_pages = 0;
  }
  answers.push_back({.callback = std::move(transfer.callback),
                     .answer = {.outcome = outcome, .token_count = transfer.good_pages * page_tokens}});
  remove_find(index);
}

Status Cache::lookup_on_disk(KeySpaceId key_space, const Prompt& prompt,
                             std::function<void(const DiskAnswer&)> callback) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t index,
                   impl.add_direct(TransferKind::FindOnDisk, key_space, prompt, "lookup_on_disk"));
  impl.transfers[index].callback = std::move(callback);
  impl.hand_over_transfers();
  return {};
}

Status Cache::put_on_disk(KeySpaceId key_space, const Prompt& prompt, std::span<const std::byte> bytes,
                          std::function<void(const DiskAnswer&)> callback) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.check_bytes(prompt, bytes.size(), "put_on_disk"));
  QUIRE_TRY_ASSIGN(const std::uint32_t index,
                   impl.add_direct(TransferKind::PutOnDisk, key_space, prompt, "put_on_disk"));
  impl.transfers[index].callback = std::move(callback);
  impl.transfers[index].source = bytes;
  impl.hand_over_transfers();
  return {};
}

Status Cache::get_from_disk(KeySpaceId key_space, const Prompt& prompt, std::span<std::byte> bytes,
                            std::function<void(const DiskAnswer&)> callback) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.check_bytes(prompt, bytes.size(), "get_from_disk"));
  QUIRE_TRY_ASSIGN(const std::uint32_t index,
                   impl.add_direct(TransferKind::GetFromDisk, key_space, prompt, "get_from_disk"));
  impl.transfers[index].callback = std::move(callback);
  impl.transfers[index].target = bytes;
  impl.hand_over_transfers();
  return {};
}

// Dropping and flushing

void Cache::Impl::start_drops() {
  has_unstarted_drop = false;
  for (std::uint32_t i = 0; i < key_spaces.capacity(); ++i) {
    if (!key_spaces[i].is_live || !key_spaces[i].wants_disk_drop) continue;
    const std::optional<std::uint32_t> transfer = add_transfer(TransferKind::DropOnDisk, TransferPriority::Waiting);
    if (!transfer) {
      has_unstarted_drop = true;
      return;
    }
    transfers[*transfer].key_space = i;
    key_spaces[i].wants_disk_drop = false;
  }
}

// Everything of a key space goes from the disk too. The key space is used until that is done, so that its index means
// nothing else.
void Cache::Impl::drop_on_disk(std::uint32_t key_space) {
  if (key_spaces[key_space].wants_disk_drop) return;
  key_spaces[key_space].wants_disk_drop = true;
  ++key_spaces[key_space].user_count;
  start_drops();
  hand_over_transfers();
}

// With write policies that wait, what would be written some day is to be written now.
void Cache::Impl::want_all_copies() {
  if (!writes_back()) return;
  for (std::uint32_t i = 0; i < key_spaces.capacity(); ++i) {
    if (!key_spaces[i].is_live || key_spaces[i].is_retired) continue;
    tree->for_each_run(key_spaces[i].root, [this](const RunView& run) {
      if (run.tier != Tier::Device) return;
      for (const PageId page : tree->pages(run.run)) {
        const PrefixTree::HostCopy copy = tree->copy_of(page);
        if (copy.state == PrefixTree::Copy::None && !copy.is_held) tree->want_copy(page);
      }
    });
  }
}

Result<bool> Cache::flush() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (!impl.has_disk()) return fail(ErrorCode::Unsupported, "flush: the cache has no disk tier");
  const auto failed = [&] {
    impl.wants_flush = false;
    return fail(ErrorCode::Io, "flush: " + impl.disk->store_stats().last_error);
  };
  if (impl.disk_has_failed) return failed();
  if (!impl.wants_flush) {
    impl.wants_flush = true;
    impl.want_all_copies();
  }
  impl.work_in_background();
  if (const std::optional<TransferOutcome> outcome = std::exchange(impl.flush_outcome, std::nullopt)) {
    impl.wants_flush = false;
    if (*outcome != TransferOutcome::Ok) return failed();
    return true;
  }
  if (impl.is_flushing) return false;
  const bool is_writing = std::ranges::any_of(impl.transfers, [](const Impl::Transfer& each) {
    return each.state != Impl::Transfer::State::Free &&
           (each.kind == TransferKind::Store || each.kind == TransferKind::StoreToDisk ||
            each.kind == TransferKind::DropOnDisk);
  });
  if (is_writing) return false;
  // What is left finds no room on the host, or is more than the endurance budget allows.
  impl.is_flushing = impl.add_transfer(TransferKind::FlushDisk, TransferPriority::Background).has_value();
  impl.hand_over_transfers();
  return false;
}

DiskMover& CachePeer::disk(Cache& cache) {
  return *cache.impl_->disk;
}

Result<DiskStatus> Cache::disk_status() const {
  QUIRE_TRY(impl_->enter());
  if (!impl_->has_disk()) return fail(ErrorCode::Unsupported, "disk_status: the cache has no disk tier");
  const FileStoreStats stats = impl_->disk->store_stats();
  return DiskStatus{.capacity_bytes = stats.capacity_bytes,
                    .used_bytes = stats.used_bytes,
                    .live_bytes = stats.live_bytes,
                    .page_count = stats.record_count,
                    .segment_count = stats.segment_count,
                    .written_bytes = stats.written_bytes,
                    .carried_bytes = stats.carried_bytes,
                    .read_bytes = stats.read_bytes,
                    .evicted_page_total = stats.evicted_records,
                    .corrupt_page_total = stats.corrupt_records,
                    .torn_page_total = stats.torn_records,
                    .other_layout_pages = stats.other_layout_records,
                    .ignored_file_count = stats.ignored_files,
                    .directory_count = stats.directory_count,
                    .failed_directory_count = stats.failed_directories,
                    .failed_segment_count = stats.failed_segments,
                    .uses_io_uring = stats.mode.engine == IoMode::Engine::Uring,
                    .is_direct = stats.mode.is_direct,
                    .has_registered_buffers = stats.mode.has_registered_buffers,
                    .refusals = stats.mode.refusals,
                    .last_error = stats.last_error};
}

}  // namespace quire
