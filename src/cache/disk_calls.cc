// SPDX-License-Identifier: Apache-2.0
//
// Cache: calls about the disk tier: direct calls, flush(), its status, and what tests see of it.
#include <algorithm>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "cache/cache_for_tests.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

// Direct calls

// How many of a prompt's first tokens direct calls move: whole pages whose rows are known, up to a boundary where all
// groups can go on.
std::uint32_t Cache::Impl::direct_tokens(std::uint32_t token_count) const {
  const std::uint64_t grid = std::lcm<std::uint64_t>(page_tokens, tiers->paths.limits().boundary_tokens);
  const std::uint32_t rows = sequences.keys().known_rows(token_count);
  return static_cast<std::uint32_t>(rows - (rows % grid));
}

// The pages that direct calls move, for each pool: all of the history, and what a sequence needs of other groups to go
// on behind it.
std::vector<PoolColumns> Cache::Impl::direct_columns(std::uint32_t token_count) const {
  std::vector<PoolColumns> columns = {{.pool = 0, .first = 0, .last = token_count / page_tokens}};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::uint32_t pool = groups[i].tier->pool;
    if (!find_lower(Tier::Disk)->tier->keeps(pool)) continue;
    const WindowColumns needed = tiers->paths.needed_columns(i, {.tokens = token_count}, UINT32_MAX);
    columns.push_back({.pool = pool, .sink_pages = needed.sink_pages, .first = needed.first, .last = needed.last});
  }
  return columns;
}

DirectBytes Cache::Impl::direct_bytes(std::uint32_t token_count) const {
  DirectBytes bytes{.token_count = direct_tokens(token_count)};
  for (const PoolColumns& columns : direct_columns(bytes.token_count)) {
    const std::uint64_t stride = tiers->parts.homes[columns.pool]->pages.page_bytes;
    std::uint64_t offset = bytes.byte_count;
    const auto add_part = [&](std::uint32_t group_index) {
      const std::uint64_t page_bytes = group_geometries[group_index]->page().page_bytes();
      bytes.parts.push_back({.group_index = group_index,
                             .sink_pages = columns.sink_pages,
                             .first_page = columns.first,
                             .end_page = columns.last,
                             .page_bytes = page_bytes,
                             .offset = offset,
                             .stride_bytes = stride});
      offset += page_bytes;
    };
    if (columns.pool > 0) {
      add_part(groups[columns.pool - 1].memory.group_index);
    } else if (history_index < group_geometries.size()) {
      for (const GroupMemory& group : history_memory) add_part(group.group_index);
    }
    bytes.byte_count += columns.count() * stride;
  }
  std::ranges::sort(bytes.parts, {}, &DirectPart::group_index);
  bytes.shard_count = static_cast<std::uint32_t>(std::max<std::size_t>(disks.size(), 1));
  bytes.byte_count *= bytes.shard_count;
  return bytes;
}

Result<DirectBytes> Cache::direct_bytes(std::uint32_t token_count) const {
  QUIRE_TRY(impl_->enter());
  if (!impl_->has_disk()) return unsupported("direct_bytes: the cache has no disk tier");
  return impl_->direct_bytes(token_count);
}

Status Cache::Impl::add_direct(TransferKind kind, KeySpaceId key_space, const Prompt& prompt, const char* call,
                               Search::DirectCall direct) {
  if (!has_disk()) return unsupported(call, ": the cache has no disk tier");
  QUIRE_TRY_ASSIGN(const std::uint32_t space, find_key_space(key_space));
  QUIRE_TRY(check_prompt(prompt));
  QUIRE_TRY(check_tokens(prompt.tokens, 0));
  const Lower& lower = *find_lower(Tier::Disk);
  if (kind == TransferKind::PutBelow && !lower.settings.is_written()) {
    return unsupported(call, ": the disk tier is only read (TierAccess::ReadOnly)");
  }
  if (lower.has_failed) {
    return fail(ErrorCode::Io, std::string(call) + ": the disk tier has failed: " + lower.tier->last_error());
  }
  std::uint32_t row_count = sequences.keys().known_rows(static_cast<std::uint32_t>(prompt.tokens.size()));
  row_count -= row_count % page_tokens;
  if (kind != TransferKind::FindBelow) {
    row_count = direct_tokens(static_cast<std::uint32_t>(prompt.tokens.size()));
    direct.columns = direct_columns(row_count);
  }
  const std::optional<std::uint32_t> search = tiers->searches.add_direct(
      kind, space, sequences.keys().make(prompt.tokens, prompt.extra_keys, row_count), std::move(direct));
  if (!search) {
    const bool is_paused = tiers->parts.is_paused;
    return unavailable(
        call, is_paused ? ": transfers are paused" : ": too many are under way; apply what poll() gives first");
  }
  tiers->parts.hand_over();
  return {};
}

std::function<void(TransferOutcome, const Hit&)> Cache::Impl::answer_to(
    std::function<void(const DiskAnswer&)> callback) const {
  if (!callback) return nullptr;
  return [this, callback = std::move(callback)](TransferOutcome outcome, const Hit& hit) {
    DiskAnswer answer{.outcome = outcome, .token_count = hit.tokens, .replay_tokens = hit.replay_tokens};
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (hit.is_rebuilt(i)) answer.rebuilt_groups.push_back(groups[i].memory.group_index);
    }
    callback(answer);
  };
}

Status Cache::Impl::check_bytes(const Prompt& prompt, std::size_t bytes, const char* call) const {
  if (!has_disk()) return {};  // add_direct() refuses the call
  const DirectBytes wanted = direct_bytes(static_cast<std::uint32_t>(prompt.tokens.size()));
  if (bytes == wanted.byte_count) return {};
  return invalid(call, ": ", bytes, " bytes were given for the ", wanted.token_count / page_tokens,
                 " whole pages of the prompt, which have ", wanted.byte_count,
                 wanted.parts.size() > 1  ? ", those of other groups included: direct_bytes() tells"
                 : wanted.shard_count > 1 ? ", on all shards of ranks: direct_bytes() tells"
                                          : "");
}

Status Cache::lookup_on_disk(KeySpaceId key_space, const Prompt& prompt,
                             std::function<void(const DiskAnswer&)> callback) {
  QUIRE_TRY(impl_->enter());
  return impl_->add_direct(TransferKind::FindBelow, key_space, prompt, "lookup_on_disk",
                           {.callback = impl_->answer_to(std::move(callback))});
}

Status Cache::put_on_disk(KeySpaceId key_space, const Prompt& prompt, std::span<const std::byte> bytes,
                          std::function<void(const DiskAnswer&)> callback) {
  QUIRE_TRY(impl_->enter());
  QUIRE_TRY(impl_->check_bytes(prompt, bytes.size(), "put_on_disk"));
  return impl_->add_direct(TransferKind::PutBelow, key_space, prompt, "put_on_disk",
                           {.source = bytes, .callback = impl_->answer_to(std::move(callback))});
}

Status Cache::get_from_disk(KeySpaceId key_space, const Prompt& prompt, std::span<std::byte> bytes,
                            std::function<void(const DiskAnswer&)> callback) {
  QUIRE_TRY(impl_->enter());
  QUIRE_TRY(impl_->check_bytes(prompt, bytes.size(), "get_from_disk"));
  return impl_->add_direct(TransferKind::GetFromBelow, key_space, prompt, "get_from_disk",
                           {.target = bytes, .callback = impl_->answer_to(std::move(callback))});
}

// Flushing

Result<bool> Cache::flush() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (!impl.has_lower()) return unsupported("flush: the cache has no disk tier and no remote one");
  const TierParts& parts = impl.tiers->parts;
  const auto is_written = [](const Lower& lower) { return lower.settings.is_written(); };
  if (std::ranges::none_of(parts.lowers, is_written)) {
    return unsupported("flush: the tiers below the host are only read (TierAccess::ReadOnly): nothing is ever written");
  }
  if (!parts.wants_flush && std::ranges::all_of(parts.lowers, &Lower::has_failed)) {
    return fail(ErrorCode::Io, "flush: " + parts.lowers.front().tier->last_error());
  }
  if (impl.tiers->lower_stores.begin_flush()) {
    impl.make_moves();
    impl.tiers->stores.want_all_copies();
  }
  impl.tiers->work_in_background();
  const Result<bool> is_flushed = impl.tiers->lower_stores.try_flush();
  impl.tiers->parts.hand_over();
  return is_flushed;
}

// Observers

namespace {

// Adds one store to the status of all: numbers are summed, the I/O mode is that of the first store, and the error the
// first that there is.
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
  if (!impl.has_disk()) return unsupported("disk_status: the cache has no disk tier");
  const std::size_t group_count = impl.config.layout.groups().size();
  if (group_index.value_or(0) >= group_count) {
    return invalid("disk_status: group_index is ", plain(*group_index), "; the layout has ", plain(group_count),
                   " groups");
  }
  DiskStatus status;
  const auto is_asked = [&](const GroupRows& group) { return group.memory.group_index == group_index; };
  for (const std::unique_ptr<DiskMover>& shard : impl.disks) {
    if (!group_index || std::ranges::none_of(impl.groups, is_asked)) add_store(status, shard->store_stats());
    for (const GroupRows& group : impl.groups) {
      if (!group_index || is_asked(group)) add_store(status, shard->store_stats(group.tier->pool));
    }
  }
  return status;
}

// CacheForTests, for tests

DiskMover& CacheForTests::disk(Cache& cache, std::uint32_t shard) {
  return *cache.impl_->disks[shard];
}

std::uint32_t CacheForTests::disk_shard_count(const Cache& cache) {
  return static_cast<std::uint32_t>(cache.impl_->disks.size());
}

Mover& CacheForTests::mover(Cache& cache) {
  QUIRE_CHECK(cache.impl_->tiers->parts.mover != nullptr, "the cache has no mover of its own");
  return *cache.impl_->tiers->parts.mover;
}

Status CacheForTests::add_lowers(Cache& cache, std::span<const LowerRow> rows, const NameLog::Config& names) {
  for (const LowerRow& row : rows) QUIRE_TRY(cache.impl_->tiers->add_lower(row.tier, row.settings));
  return cache.impl_->tiers->open_searches(names);
}

std::span<const Lower> CacheForTests::lowers(const Cache& cache) {
  return cache.impl_->tiers->parts.lowers;
}

std::uint64_t CacheForTests::disk_loading_bytes(const Cache& cache) {
  return cache.impl_->tiers->parts.lowers.front().loading_bytes;
}

std::uint64_t CacheForTests::given_up_page_total(const Cache& cache) {
  return cache.impl_->tree->given_up_page_total();
}

void CacheForTests::visit_host_pages(const Cache& cache, std::uint32_t group_index,
                                     const std::function<void(Tier, PageId)>& visit) {
  for (const GroupRows& group : cache.impl_->groups) {
    if (group.memory.group_index == group_index && group.tier->has_host()) group.tier->visit_host_pages(visit);
  }
}

std::uint32_t CacheForTests::pool_of(const Cache& cache, TransferId id) {
  return cache.impl_->tiers->parts.book[id.index].pool;
}

std::uint32_t CacheForTests::own_pages_moving(const Cache& cache, SequenceId id) {
  return cache.impl_->tiers->parts.book.count_pages([&](const Transfer& each) { return each.sequence == id; });
}

bool CacheForTests::has_let_go(const Cache& cache, SequenceId id) {
  const std::optional<std::uint32_t> index = cache.impl_->sequences.find(id);
  return index && cache.impl_->tiers->parts.arrivals[*index].has_let_go;
}

std::uint32_t CacheForTests::unwritten_anchored_pages(const Cache& cache) {
  std::uint32_t count = cache.impl_->tiers->parts.book.count_pages(
      [](const Transfer& each) { return each.kind == TransferKind::StoreBelow && each.pool > 0; });
  for (const GroupRows& group : cache.impl_->groups) {
    for (const LowerCopies& copies : group.tier->pages.lower) count += copies.is_on() ? copies.waiting.size() : 0;
  }
  return count;
}

}  // namespace quire
