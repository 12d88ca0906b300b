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

}  // namespace

std::uint64_t disk_layout_hash(const PageGeometry& page) {
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
  // What follows came later: a group without any of it keeps its hash, and so its files.
  for (std::uint32_t index = 0; index < page.components().size(); ++index) {
    const Component& component = page.group().components[index];
    if (component.placement == Placement::Area && component.alignment == 1) continue;
    add(index);
    add(page.components()[index].offset);
    add(page.components()[index].token);
  }
  const CacheGroup& group = page.group();
  if (group.kind != GroupKind::Full) {
    add(static_cast<std::uint64_t>(group.kind));
    add(static_cast<std::uint64_t>(group.window_form));
    for (const std::uint32_t value :
         {group.window_tokens, group.sink_tokens, group.tokens_per_entry, group.overlap_tokens, group.slot_entries,
          group.slot_history, group.snapshot_entries, group.boundary_tokens}) {
      add(value);
    }
  }
  return hash_bytes(form.data(), form.size(), 0);
}

namespace {

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

Status Cache::Impl::open_disk(FileSystem* given_files, std::span<HostPages* const> given_hosts) {
  const DiskConfig& settings = config.disk;
  // Whoever gives host pages is the disk tier's threads, and wants the same every time.
  const bool has_threads = given_hosts.empty();
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
  // The history's groups lie in one record.
  std::uint64_t hash = disk_layout_hash(geometry.page());
  for (const GroupMemory& group : more_history) hash = mix64(hash) ^ disk_layout_hash(group.geometry->page());
  // Pages then stand under other tokens.
  if (sequences.keys().lookahead_tokens() > 0) hash = mix64(hash ^ sequences.keys().lookahead_tokens());
  FileStoreConfig store{.directories = settings.directories,
                        .capacity_bytes = settings.capacity_bytes,
                        .segment_bytes = settings.segment_bytes,
                        .layout = {.page_bytes = history_page_bytes(), .hash = hash},
                        .queue_depth = settings.queue_depth,
                        .zstd_level = settings.zstd_level,
                        .random_seed = has_threads ? random_seed() : config.hash_seed,
                        .now_ns = has_threads ? unix_time() : 0};
  std::vector<FileStoreConfig> side_stores;
  std::vector<HostPages*> side_hosts(sides.size());
  if (!sides.empty()) {
    QUIRE_TRY_ASSIGN(side_stores, side_store_configs(store));
    for (std::size_t i = 0; i < sides.size(); ++i) {
      if (sides[i].host == nullptr) continue;
      const std::uint16_t place = sides[i].host->pool_index;
      QUIRE_CHECK(has_threads || place < given_hosts.size(),
                  "a disk tier without threads has host pages of every pool");
      side_hosts[i] = has_threads ? &mover->host_pages(place) : given_hosts[place];
    }
  }
  QUIRE_TRY_ASSIGN(disk,
                   DiskMover::open({.names = {.page_tokens = page_tokens,
                                              .device_page_count = pool_page_count() + 1,
                                              .host_page_count = host_page_count + 1,
                                              .key_space_count_max = config.key_space_count_max},
                                    .log = log_config,
                                    .store = store,
                                    .side_stores = std::move(side_stores),
                                    .transfer_count_max = config.host.transfer_count_max * (sides.empty() ? 1 : 2),
                                    .transfer_pages_max = config.host.transfer_pages_max,
                                    .path_pages_max = sequences.row_pages(),
                                    .has_threads = has_threads,
                                    .event_fd = mover != nullptr ? mover->event_fd() : -1,
                                    .unix_time = has_threads ? unix_time : nullptr},
                                   given_files == nullptr ? *files : *given_files,
                                   has_threads ? mover->host_pages() : *given_hosts.front(), side_hosts));
  // A disk that hangs keeps the transfers it has: a quarter for searches, a quarter for what they find, and the rest is
  // the host's.
  find_row_count = std::clamp(config.host.transfer_count_max / 4, 1U, kFindCountMax);
  QUIRE_TRY_ASSIGN(find_tokens, LazyArray<TokenId>::create(std::size_t{find_row_count} * context_tokens_max));
  QUIRE_TRY_ASSIGN(find_keys, LazyArray<ExtraKey>::create(std::size_t{find_row_count} * config.extra_key_count_max));
  find_row_users.assign(find_row_count, kNoTransfer);
  QUIRE_TRY_ASSIGN(disk_states, LazyArray<DiskState>::create(std::size_t{host_page_count} + 1));
  QUIRE_TRY_ASSIGN(device_hot, LazyArray<std::uint8_t>::create(std::size_t{pool_page_count()} + 1));
  QUIRE_TRY(disk_lists.reserve(host_page_count + 1, kDiskListCount));
  answers.reserve(config.host.transfer_count_max);
  write_budget = write_burst();
  return open_side_disks();
}

std::uint64_t Cache::Impl::history_page_bytes() const {
  std::uint64_t bytes = geometry.page().page_bytes();
  for (const GroupMemory& group : more_history) bytes += group.geometry->page().page_bytes();
  return bytes;
}

// Names

// Pages of a sequence that have just come into the tree. What they are called is computed elsewhere, from their tokens
// and the name of the page before them.
void Cache::Impl::log_names(std::uint32_t index, std::uint32_t first_page, std::uint32_t end_page) {
  const SequenceSlot& slot = sequences[index];
  const std::span<const PageId> row = sequences.page_row(index);
  const PrefixTree::Key key = sequences.key(index, end_page * page_tokens);
  for (std::uint32_t page = first_page; page < end_page; ++page) {
    device_hot[row[page].value] = 0;
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
      const bool has_page = copy.state == PrefixTree::Copy::Storing || copy.state == PrefixTree::Copy::Ready;
      if (has_page) name_log.add_unnamed(Tier::Host, copy.host_page);
    }
  });
}

DiskPlan Cache::Impl::disk_plan_of(std::uint32_t index) {
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
    if (!sides.empty()) {
      // Other groups may have something of what memory has, too: it asks for all of the path.
      plan.tokens = key.tokens;
      plan.parent = {};
      plan.first_page = 0;
      plan.held_pages = transfer.first_page;
      plan.on_sides = on_sides_of(transfer);
    }
    plan.extra_keys = key.extra_keys;
    plan.source = transfer.source;
    plan.target = transfer.target;
  }
  if (transfer.kind == TransferKind::LoadFromDisk) {
    plan.found_by = transfer.found_by;
    plan.first_found = transfer.first_page - (sides.empty() ? transfers[transfer.found_by].first_page : 0);
  }
  return plan;
}

// What became of transfers

void Cache::Impl::finish_disk(std::uint32_t index) {
  Transfer& transfer = transfers[index];
  if (transfer.outcome == TransferOutcome::Failed && disk->is_failed()) disk_has_failed = true;
  switch (transfer.kind) {
    case TransferKind::FindOnDisk:
      if (transfer.is_direct) {
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

// Direct calls

Result<std::uint32_t> Cache::Impl::add_direct(TransferKind kind, KeySpaceId key_space, const Prompt& prompt,
                                              const char* call) {
  if (!has_disk()) return fail(ErrorCode::Unsupported, std::string(call) + ": the cache has no disk tier");
  QUIRE_TRY(require_one_group(call, "begin() and admit() find what several groups have on disk"));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, find_key_space(key_space));
  QUIRE_TRY(check_prompt(prompt));
  QUIRE_TRY(check_tokens(prompt.tokens, 0));
  if (disk_has_failed) {
    return fail(ErrorCode::Io, std::string(call) + ": the disk tier has failed: " + disk->store_stats().last_error);
  }
  const std::size_t token_count = prompt.tokens.size() / page_tokens * page_tokens;
  const std::optional<std::uint32_t> transfer =
      add_find(kind, space, {prompt.tokens.first(token_count), prompt.extra_keys});
  if (transfer) {
    transfers[*transfer].is_direct = true;
    return *transfer;
  }
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
  // A disk that hangs must leave transfers to the host.
  const std::uint32_t count_max = std::max(1U, config.host.transfer_count_max / 8);
  auto count = static_cast<std::uint32_t>(std::ranges::count_if(transfers, [](const Transfer& each) {
    return each.state != Transfer::State::Free && each.kind == TransferKind::DropOnDisk;
  }));
  for (std::uint32_t i = 0; i < key_spaces.capacity(); ++i) {
    if (!key_spaces[i].is_live || !key_spaces[i].wants_disk_drop) continue;
    std::optional<std::uint32_t> transfer;
    if (count < count_max) transfer = add_transfer(TransferKind::DropOnDisk, TransferPriority::Waiting);
    if (!transfer) {
      has_unstarted_drop = true;
      return;
    }
    ++count;
    transfers[*transfer].key_space = i;
    key_spaces[i].wants_disk_drop = false;
  }
}

// Everything of a key space goes from the disk too. The key space is used until that is done, so that its index means
// nothing else.
void Cache::Impl::drop_on_disk(std::uint32_t key_space) {
  if (key_spaces[key_space].wants_disk_drop) return;
  key_spaces[key_space].wants_disk_drop = true;
  wants_flush_again = wants_flush;
  ++key_spaces[key_space].user_count;
  start_drops();
  hand_over_transfers();
}

// With write policies that wait, what would be written some day is to be written now; and what could not be written
// is tried once more.
void Cache::Impl::want_all_copies() {
  for (std::uint32_t page = 1; page <= host_page_count; ++page) {
    if (disk_states[page] != DiskState::Lost) continue;
    disk_states[page] = DiskState::Cold;
    disk_lists.push_back(page, kColdPages);
  }
  want_lost_sides();
  if (config.host.write_policy == WritePolicy::Selective) return;
  const bool is_selective = config.disk.write_policy == WritePolicy::Selective;
  for (std::uint32_t i = 0; i < key_spaces.capacity(); ++i) {
    if (!key_spaces[i].is_live || key_spaces[i].is_retired) continue;
    tree->for_each_run(key_spaces[i].root, [&](const RunView& run) {
      if (run.tier != Tier::Device) return;
      for (const PageId page : tree->pages(run.run)) {
        const PrefixTree::HostCopy copy = tree->copy_of(page);
        if (is_selective && device_hot[page.value] == 0) continue;
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
    impl.lose_on_disk();
    std::string why;
    for (std::uint32_t i = 0; i <= impl.sides.size() && why.empty(); ++i) why = impl.disk->store_stats(i).last_error;
    return fail(ErrorCode::Io, "flush: " + why);
  };
  if (impl.disk_has_failed) return failed();
  if (!impl.wants_flush) {
    impl.wants_flush = true;
    impl.wants_flush_again = false;
    impl.has_lost_copies = false;
    impl.has_lost_writes = false;
    impl.flush_moves();
    impl.want_all_copies();
  }
  impl.work_in_background();
  if (const std::optional<TransferOutcome> outcome = std::exchange(impl.flush_outcome, std::nullopt)) {
    if (*outcome != TransferOutcome::Ok || impl.has_lost_writes) return failed();
    if (impl.has_lost_copies) {
      impl.wants_flush = false;
      return fail(ErrorCode::Io, "flush: some pages did not reach the host, through which they go to disk");
    }
    impl.wants_flush = std::exchange(impl.wants_flush_again, false);
    if (!impl.wants_flush) return true;
  }
  if (impl.is_flushing) return false;
  const bool is_writing =
      std::ranges::any_of(impl.transfers,
                          [](const Impl::Transfer& each) {
                            return each.state != Impl::Transfer::State::Free &&
                                   (each.kind == TransferKind::Store || each.kind == TransferKind::StoreToDisk ||
                                    each.kind == TransferKind::DropOnDisk || each.kind == TransferKind::PutOnDisk);
                          }) ||
      std::ranges::any_of(impl.side_transfers, [](const SideTransfer& each) {
        return each.state != SideTransfer::State::Free &&
               (each.kind == TransferKind::Store || each.kind == TransferKind::StoreToDisk);
      });
  if (is_writing || impl.has_unstarted_drop || impl.has_unstarted_side_writes()) return false;
  // What is left finds no room on the host, or is more than the endurance budget allows.
  impl.is_flushing = impl.add_transfer(TransferKind::FlushDisk, TransferPriority::Background).has_value();
  impl.hand_over_transfers();
  return false;
}

DiskMover& CachePeer::disk(Cache& cache) {
  return *cache.impl_->disk;
}

std::uint64_t CachePeer::disk_loading_bytes(const Cache& cache) {
  return cache.impl_->disk_loading_bytes;
}

namespace {

// Of several stores: sums, the first error, and the ways of the first.
void add_store(DiskStatus& status, const FileStoreStats& stats) {
  status.capacity_bytes += stats.capacity_bytes;
  status.used_bytes += stats.used_bytes;
  status.live_bytes += stats.live_bytes;
  status.page_count += stats.record_count;
  status.segment_count += stats.segment_count;
  status.written_bytes += stats.written_bytes;
  status.carried_bytes += stats.carried_bytes;
  status.read_bytes += stats.read_bytes;
  status.evicted_page_total += stats.evicted_records;
  status.corrupt_page_total += stats.corrupt_records;
  status.torn_page_total += stats.torn_records;
  status.other_layout_pages += stats.other_layout_records;
  status.ignored_file_count += stats.ignored_files;
  if (status.directory_count == 0) {
    status.uses_io_uring = stats.mode.engine == IoMode::Engine::Uring;
    status.is_direct = stats.mode.is_direct;
    status.has_registered_buffers = stats.mode.has_registered_buffers;
    status.refusals = stats.mode.refusals;
  }
  status.directory_count += stats.directory_count;
  status.failed_directory_count += stats.failed_directories;
  status.failed_segment_count += stats.failed_segments;
  if (status.last_error.empty()) status.last_error = stats.last_error;
}

}  // namespace

Result<DiskStatus> Cache::disk_status(std::optional<std::uint32_t> group_index) const {
  const Impl& impl = *impl_;
  QUIRE_TRY(impl_->enter());
  if (!impl.has_disk()) return fail(ErrorCode::Unsupported, "disk_status: the cache has no disk tier");
  const std::size_t group_count = impl.config.layout.groups().size();
  if (group_index.value_or(0) >= group_count) {
    return fail(ErrorCode::InvalidArgument, "disk_status: group_index is " + std::to_string(*group_index) +
                                                "; the layout has " + std::to_string(group_count) + " groups");
  }
  DiskStatus status;
  const auto is_side = [&](const SideGroup& side) { return side.memory.group_index == group_index; };
  const auto asked = std::ranges::find_if(impl.sides, is_side);
  if (!group_index || asked == impl.sides.end()) add_store(status, impl.disk->store_stats());
  for (std::uint32_t i = 0; i < impl.sides.size(); ++i) {
    if (!group_index || is_side(impl.sides[i])) add_store(status, impl.disk->store_stats(i + 1));
  }
  return status;
}

}  // namespace quire
