// SPDX-License-Identifier: Apache-2.0
//
// Cache: side groups on disk. Each has a store of its own there, in a directory below the history's, with its own
// capacity: long histories may outlive the windows and snapshots that were written with them, and the other way. What
// a store has of a path lies under the name of the history's page that it hangs on.
//
//     directory/                the history
//     directory/group-window    its windows
//     directory/group-state     its snapshots
//
// A search asks all stores at once. The hit rule then says which boundary is the best that memory and disk together
// can serve; the history is loaded up to there, and of the others only what a sequence needs to go on there.
#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "cache/cache_peer.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

// Of one store, for reads and for writes.
constexpr std::uint64_t kBufferBytesMax = 64 << 20U;

GroupRetention retention_on_disk(const DiskConfig& disk, std::uint32_t group_index) {
  return disk.group_retention.empty() ? GroupRetention{} : disk.group_retention[group_index];
}

}  // namespace

// Opening

// How many pages a group writes for each page of the history, about: what it may take of the capacity follows from it.
double Cache::Impl::side_pages_on_disk(const SideGroup& side) const {
  const GroupRetention on_disk = retention_on_disk(config.disk, side.memory.group_index);
  const GroupRetention& in_memory = side.group->retention;
  double every = page_tokens;
  if (on_disk.rule == RetentionRule::Every) {
    every = on_disk.interval_tokens;
  } else if (!side.is_window) {
    // Snapshots lie where prompts end as well.
    every = in_memory.rule == RetentionRule::Every ? in_memory.interval_tokens : context_tokens_max / 4.0;
  }
  const double pages = side.is_window ? 1 + std::ceil((side.group->window_tokens - 1.0) / page_tokens) : 1;
  const double share = (on_disk.rule == RetentionRule::Every || !side.is_window) ? pages * page_tokens / every : 1;
  return std::clamp(share, 1.0 / 1'024, 1.0);
}

Result<std::vector<FileStoreConfig>> Cache::Impl::side_store_configs(FileStoreConfig& history) const {
  const DiskConfig& disk_config = config.disk;
  const std::vector<std::uint64_t>& given_bytes = disk_config.group_capacity_bytes;
  std::vector<FileStoreConfig> stores(sides.size());
  std::vector<double> weights(sides.size());
  double all = static_cast<double>(record_bytes(history.layout.page_bytes));
  for (std::size_t i = 0; i < sides.size(); ++i) {
    const SideGroup& side = sides[i];
    const std::uint32_t group_index = side.memory.group_index;
    if (side.host == nullptr || retention_on_disk(disk_config, group_index).rule == RetentionRule::None) continue;
    const PageGeometry& page = side.memory.geometry->page();
    stores[i] = history;
    stores[i].layout = {.page_bytes = page.page_bytes(), .hash = disk_layout_hash(page)};
    if (sequences.keys().lookahead_tokens() > 0) stores[i].layout.hash ^= mix64(sequences.keys().lookahead_tokens());
    stores[i].random_seed = history.random_seed + group_index + 1;
    stores[i].segment_bytes = std::max(history.segment_bytes, FileStoreConfig::segment_bytes_min(page.page_bytes()));
    // Each has buffers for what is under way, and a snapshot may have a hundred megabytes.
    stores[i].queue_depth = static_cast<std::uint32_t>(
        std::clamp<std::uint64_t>(kBufferBytesMax / page.page_bytes(), 1, history.queue_depth));
    for (std::string& directory : stores[i].directories) {
      directory += "/" + std::string(kGroupDirectoryPrefix) + side.group->name;
    }
    weights[i] = static_cast<double>(record_bytes(page.page_bytes())) * side_pages_on_disk(side);
    all += weights[i];
  }
  const auto store_count = 1 + static_cast<std::uint32_t>(std::ranges::count_if(
                                   stores, [](const auto& each) { return !each.directories.empty(); }));
  history.store_count = store_count;
  const std::uint64_t history_least = disk_config.capacity_bytes_min(history.layout.page_bytes);
  std::uint64_t left = disk_config.capacity_bytes - std::min(disk_config.capacity_bytes, history_least);
  for (std::size_t i = 0; i < sides.size(); ++i) {
    FileStoreConfig& store = stores[i];
    if (store.directories.empty()) continue;
    store.store_count = store_count;
    const std::uint32_t group_index = sides[i].memory.group_index;
    const std::uint64_t least = disk_config.capacity_bytes_min(store.layout.page_bytes);
    const double share = static_cast<double>(disk_config.capacity_bytes) * weights[i] / all;
    store.capacity_bytes =
        given_bytes.empty() ? std::max(static_cast<std::uint64_t>(share), least) : given_bytes[group_index];
    if (store.capacity_bytes < least) {
      return fail(ErrorCode::InvalidArgument,
                  "group '" + sides[i].group->name + "' has " + with_separators(store.capacity_bytes) +
                      " bytes on disk; its pages of " + with_separators(store.layout.page_bytes) + " bytes need " +
                      with_separators(least) + ": raise disk.group_capacity_bytes[" + std::to_string(group_index) +
                      "]");
    }
    if (store.capacity_bytes > left && given_bytes.empty() && left >= least) store.capacity_bytes = left;
    if (store.capacity_bytes > left) {
      return fail(ErrorCode::InvalidArgument,
                  "disk.capacity_bytes is " + with_separators(disk_config.capacity_bytes) +
                      ": the history needs at least " + with_separators(history_least) + " of it, and when group '" +
                      sides[i].group->name + "' wants " + with_separators(store.capacity_bytes) + ", " +
                      with_separators(left) +
                      " are left: raise it, or keep less of some groups by disk.group_retention");
    }
    left -= store.capacity_bytes;
  }
  history.capacity_bytes = history_least + left;
  return stores;
}

Status Cache::Impl::open_side_disks() {
  if (sides.empty()) return {};
  QUIRE_TRY_ASSIGN(find_on_sides,
                   LazyArray<std::uint64_t>::create(std::size_t{find_row_count} * sequences.row_pages()));
  for (SideGroup& side : sides) {
    if (side.host == nullptr) continue;
    SideHost& host = *side.host;
    const std::size_t count = std::size_t{host.pool.page_count()} + 1;
    host.has_disk = retention_on_disk(config.disk, side.memory.group_index).rule != RetentionRule::None;
    QUIRE_TRY_ASSIGN(host.disk_states, LazyArray<DiskState>::create(count));
    QUIRE_TRY(host.to_disk.reserve(static_cast<std::uint32_t>(count)));
  }
  return {};
}

// Writing

// Whether a group's retention on disk wants what hangs on a page of a path.
bool Cache::Impl::is_kept_on_disk(const SideGroup& side, std::uint32_t column) const {
  const GroupRetention retention = retention_on_disk(config.disk, side.memory.group_index);
  if (retention.rule != RetentionRule::Every) return retention.rule != RetentionRule::None;
  const std::uint64_t interval = retention.interval_tokens;
  const std::uint64_t begin = std::uint64_t{column} * page_tokens;
  const std::uint64_t end = begin + page_tokens;
  if (!side.is_window) return end % interval == 0;
  if (column < side.sink_pages) return true;
  // The next boundary behind the page's first token: whether its window reaches back into the page.
  const std::uint64_t boundary = ((begin / interval) + 1) * interval;
  return boundary < end + side.group->window_tokens;
}

// A host page that has just got its bytes from the device.
void Cache::Impl::want_side_on_disk(SideGroup& side, PageId host_page) {
  SideHost& host = *side.host;
  if (!host.has_disk || disk_has_failed || !is_kept_on_disk(side, host.columns[host_page.value])) return;
  DiskState& state = host.disk_states[host_page.value];
  if (state != DiskState::None && state != DiskState::Lost) return;
  if (config.disk.write_policy == WritePolicy::Selective && host.of_device.is_attached(host_page) &&
      device_hot[host.of_device.tree_page_of(host_page).value] == 0) {
    return;
  }
  state = DiskState::Cold;
  host.to_disk.push_back(host_page.value);
}

// A page of the history is used again: with WritePolicy::Selective, what hangs on it is worth writing.
void Cache::Impl::prefer_sides_on_disk(PageId device_page) {
  for (SideGroup& side : sides) {
    if (side.host == nullptr || !side.host->of_device.has(device_page)) continue;
    want_side_on_disk(side, side.host->of_device.at(device_page));
  }
}

// flush() tries once more, and with what the host had no room for.
void Cache::Impl::want_lost_sides() {
  for (SideGroup& side : sides) {
    if (side.host == nullptr || !side.host->has_disk) continue;
    side.pages.for_each([&](PageId tree_page, PageId page) {
      const bool is_read = side.host->device_readers[page.value] > 0;
      if (!side.host->of_device.has(tree_page) && !is_read) {
        want_side_copy(side, page, side.host->device_columns[page.value]);
      }
    });
    for (std::uint32_t page = 1; page <= side.host->pool.page_count(); ++page) {
      if (side.host->disk_states[page] == DiskState::Lost) want_side_on_disk(side, PageId{page});
    }
  }
}

// Whether what is to be written waits for loads, which have all transfers.
bool Cache::Impl::has_unstarted_side_writes() const {
  return !side_transfers.empty() && side_transfer_count == side_transfers.size() &&
         std::ranges::any_of(sides, [](const SideGroup& side) {
           return side.host != nullptr && side.host->to_disk.size() + side.host->wanted.size() > 0;
         });
}

void Cache::Impl::lose_sides_on_disk() {
  for (SideGroup& side : sides) {
    if (side.host == nullptr || !side.host->has_disk) continue;
    for (std::uint32_t page = 1; page <= side.host->pool.page_count(); ++page) {
      if (side.host->disk_states[page] == DiskState::OnDisk) side.host->disk_states[page] = DiskState::Lost;
    }
  }
}

// The host gives the page up.
void Cache::Impl::forget_on_disk(SideGroup& side, PageId host_page) {
  SideHost& host = *side.host;
  if (!host.has_disk) return;
  DiskState& state = host.disk_states[host_page.value];
  if (state == DiskState::Cold) host.to_disk.remove(host_page.value);
  state = DiskState::None;
}

// As soon as the host has them, whatever the write policy, but for Selective: see want_side_on_disk(). True: some were
// started.
bool Cache::Impl::start_side_disk_stores() {
  bool has_started = false;
  const std::uint32_t count_max = disk_store_count_max();
  for (std::size_t tries = 0; tries < sides.size() && side_disk_store_count < count_max; ++tries) {
    const std::uint32_t i = next_side_store++ % static_cast<std::uint32_t>(sides.size());  // each has its turn
    SideHost* const host = sides[i].host.get();
    if (host == nullptr || !host->has_disk || host->to_disk.size() == 0) continue;
    if (disk_has_failed || disk->is_failed(i + 1)) continue;
    const std::optional<std::uint32_t> index = add_side_transfer(TransferKind::StoreToDisk, i);
    if (!index) return has_started;
    if (!fill_side_disk_store(*index)) {
      remove_side_transfer(*index);
      continue;
    }
    ++side_disk_store_count;
    has_started = true;
  }
  return has_started;
}

// As many as hang on pages of one tier, and as the budget allows. False: none.
bool Cache::Impl::fill_side_disk_store(std::uint32_t index) {
  SideTransfer& store = side_transfers[index];
  SideGroup& side = sides[store.side];
  SideHost& host = *side.host;
  const std::uint64_t bytes = record_bytes(side.memory.geometry->page().page_bytes());
  while (host.to_disk.size() > 0 && store.page_count < config.host.transfer_pages_max) {
    const PageId page{host.to_disk.front()};
    const Tier tier = host.of_device.is_attached(page) ? Tier::Device : Tier::Host;
    if (store.page_count == 0) store.named_in = tier;
    if (tier != store.named_in) break;
    const PageId tree_page = (tier == Tier::Device ? host.of_device : host.of_host).tree_page_of(page);
    const bool is_hot = tier == Tier::Device && device_hot[tree_page.value] != 0;
    if (!may_write(is_hot ? kHotPages : kColdPages, bytes)) break;
    host.to_disk.remove(page.value);
    host.disk_states[page.value] = DiskState::Writing;
    ++host.readers[page.value];
    write_budget -= static_cast<double>(bytes);
    side_page_row(index)[store.page_count++] = {.device_page = PageId::none(),
                                                .host_page = page,
                                                .host_generation = host.generations[page.value],
                                                .place = tree_page.value,
                                                .name_tag = side_name_tag(side, tree_page, tier)};
  }
  return store.page_count > 0;
}

void Cache::Impl::finish_side_disk_store(std::uint32_t index) {
  const SideTransfer& store = side_transfers[index];
  SideGroup& side = sides[store.side];
  SideHost& host = *side.host;
  const bool is_of_disk = store.fault == TransferFault::Io || disk_has_failed;  // else of one page
  if (store.outcome == TransferOutcome::Failed && is_of_disk) has_lost_writes = true;
  for (std::uint32_t i = 0; i < store.page_count; ++i) {
    const PageTransfer& way = side_page_row(index)[i];
    DiskState& state = host.disk_states[way.host_page.value];
    const bool is_same = host.generations[way.host_page.value] == way.host_generation && state == DiskState::Writing;
    if (is_same && i < store.good_pages) {
      state = DiskState::OnDisk;
      ++side.totals.disk_stored_page_total;
    } else if (is_same && is_of_disk) {
      state = DiskState::Lost;
    } else if (is_same && i == store.good_pages) {
      state = DiskState::None;  // not what it should be: who loads it will see
    } else if (is_same) {
      state = DiskState::Cold;  // only stood behind that one
      host.to_disk.push_back(way.host_page.value);
    }
    release_host_read(side, way.host_page);
  }
  --side_disk_store_count;
  remove_side_transfer(index);
}

// Reading

std::span<std::uint64_t> Cache::Impl::on_sides_of(const Transfer& find) {
  return {find_on_sides.data() + (std::size_t{find.find_row} * sequences.row_pages()), find.token_count / page_tokens};
}

// Whether other groups keep a sequence from all of the history that memory has of it.
bool Cache::Impl::lacks_sides(const SequenceSlot& slot, const PrefixTree::Match& match) {
  if (sides.empty()) return false;
  const std::uint32_t found = (match.page_count + match.host_page_count) * page_tokens;
  std::uint32_t best = std::min(found, pages_asked(slot) * page_tokens);
  if (has_state() && best == slot.token_count) best = (best - 1) / page_tokens * page_tokens;
  const std::uint32_t boundary = hit_limits.boundary_tokens;
  return find_hit(match, slot.token_count, slot.allows_inexact, /*counts_host=*/true).start() <
         best / boundary * boundary;
}

// The pages of a pinned path, in the tiers where they are.
FindPath Cache::Impl::path_of(const PrefixTree::Pin& pin) {
  const std::uint32_t page_count = pin ? tree->end_page(pin.run()) : 0;
  const std::span<PageId> row = std::span(path_scratch).first(page_count);
  if (page_count == 0) return {};
  tree->copy_path(pin, 0, row);
  const RunId host_run = tree->first_host_run(pin);
  const std::uint32_t device_pages = host_run.is_none() ? page_count : tree->end_page(tree->parent(host_run));
  return {.pages = row.first(device_pages), .host_pages = row.subspan(device_pages)};
}

// What of a search's answer is to be loaded: up to the best boundary, if that is more than what memory serves.
void Cache::Impl::choose_side_hit(std::uint32_t index) {
  Transfer& find = transfers[index];
  const FindPath path = path_of(find.pin);
  HitPath hit_path{.pages = path.pages, .host_pages = path.host_pages, .prompt_tokens = find.prompt_tokens};
  HitLimits limits = hit_limits;
  limits.allows_inexact = find.allows_inexact;
  const Hit in_memory = quire::find_hit(all_hit_groups, hit_path, limits);
  hit_path.disk_page_count = find.found_pages;
  hit_path.on_disk = on_sides_of(find).first(path.size() + find.found_pages);
  find.hit = quire::find_hit(all_hit_groups, hit_path, limits);
  const bool is_better = find.hit.start() > in_memory.start();
  find.has_asked_sides = !is_better;
  find.gained_tokens = is_better ? find.hit.start() - in_memory.start() : 0;
  const std::uint32_t path_tokens = (path.size() + find.found_pages) * page_tokens;
  if (find.hit.tokens < path_tokens) find.limiting_side = find.hit.limiting_group;
  const std::uint32_t end_page = is_better ? pages_for(find.hit.tokens) : 0;
  find.found_pages = end_page - std::min(end_page, path.size());
  find.good_pages = find.found_pages;
  find.side_bytes = 0;
  for (std::uint32_t side = 0; is_better && side < sides.size(); ++side) {
    if (sides[side].host == nullptr || find.hit.is_rebuilt(side)) continue;
    for_each_column(needed_columns(side, find.hit, find.prompt_tokens), [&](std::uint32_t column) {
      if (!is_in_memory(sides[side], path, column)) find.side_bytes += sides[side].memory.geometry->page().page_bytes();
    });
  }
}

// Whether device or host have what hangs on a page of a path.
bool Cache::Impl::is_in_memory(const SideGroup& side, const FindPath& path, std::uint32_t column) {
  if (column >= path.size()) return false;
  return !host_side_at(side, path, column).is_none() ||
         (path.tier(column) == Tier::Device && side.pages.has(path.at(column)));
}

// What hangs on a page of a path on the host, or none.
PageId Cache::Impl::host_side_at(const SideGroup& side, const FindPath& path, std::uint32_t column) {
  const SidePages& pages = path.tier(column) == Tier::Device ? side.host->of_device : side.host->of_host;
  return pages.at(path.at(column));
}

// Pins what the host has of what a search's sequence needs, or no longer.
void Cache::Impl::hold_host_sides(std::uint32_t index, const FindPath& path, bool is_held) {
  const Transfer& find = transfers[index];
  for (std::size_t i = 0; i < sides.size(); ++i) {
    SideGroup& side = sides[i];
    if (side.host == nullptr || find.hit.is_rebuilt(i)) continue;
    const WindowColumns columns = needed_columns(i, find.hit, find.prompt_tokens);
    for (std::uint32_t column = 0; column < std::min(columns.last, path.size()); ++column) {
      if (column >= columns.sink_pages && column < columns.first) continue;
      const PageId page = host_side_at(side, path, column);
      if (page.is_none()) continue;
      SidePages& pages = path.tier(column) == Tier::Device ? side.host->of_device : side.host->of_host;
      if (is_held) {
        pages.pin(page);
      } else {
        pages.unpin(page, SidePages::Worth::Kept);
      }
    }
  }
}

// Whether all that a search wants of side groups can be read now: all of it, or what is evicted for it goes for
// nothing. A disk that hangs must leave transfers to the host.
SideLoadRoom Cache::Impl::room_for_side_disk_loads(std::uint32_t index, const FindPath& path) const {
  const Transfer& find = transfers[index];
  const std::uint32_t pages_max = config.host.transfer_pages_max;
  std::uint32_t transfer_count = 0;
  for (std::uint32_t i = 0; i < sides.size(); ++i) {
    if (!reads_from_disk(i, find)) continue;
    const SideHost& host = *sides[i].host;
    std::uint32_t needed = 0;
    for_each_column(needed_columns(i, find.hit, find.prompt_tokens), [&](std::uint32_t column) {
      needed += column < path.size() && !is_in_memory(sides[i], path, column) ? 1 : 0;
    });
    if (needed > host.pool.free_count() + host.of_device.idle_count() + host.of_host.idle_count()) {
      return SideLoadRoom::Never;
    }
    transfer_count += (needed + pages_max - 1) / pages_max;
  }
  const std::size_t for_disk = std::max<std::size_t>(side_transfers.size() / 4, 1);
  const bool fits = side_transfer_count + transfer_count <= side_transfers.size() &&
                    (side_disk_load_count == 0 || side_disk_load_count + transfer_count <= for_disk);
  if (fits) return SideLoadRoom::Now;
  return side_transfer_count > 0 ? SideLoadRoom::Later : SideLoadRoom::Never;
}

bool Cache::Impl::reads_from_disk(std::uint32_t side, const Transfer& find) const {
  return sides[side].host != nullptr && sides[side].host->has_disk && !find.hit.is_rebuilt(side);
}

// The history of a search is there: what other groups need at its boundary, and memory lacks, comes next. As long as
// has_asked_sides is false, or side_loads_in_flight is not 0, the search goes on.
void Cache::Impl::start_side_disk_loads(std::uint32_t index) {
  Transfer& find = transfers[index];
  find.has_asked_sides = true;
  if (is_paused || falls_asleep || !find.pin) return;
  const FindPath path = path_of(find.pin);
  if (path.size() < pages_for(find.hit.tokens)) return;  // some of it did not come
  // What is there must not make room for what is not.
  hold_host_sides(index, path, /*is_held=*/true);
  const SideLoadRoom room = room_for_side_disk_loads(index, path);
  if (room == SideLoadRoom::Later) find.has_asked_sides = false;  // others end first
  for (std::uint32_t i = 0; room == SideLoadRoom::Now && i < sides.size(); ++i) {
    if (reads_from_disk(i, find)) load_side_from_disk(i, index, path);
  }
  hold_host_sides(index, path, /*is_held=*/false);
}

void Cache::Impl::load_side_from_disk(std::uint32_t side_index, std::uint32_t find_index, const FindPath& path) {
  Transfer& find = transfers[find_index];
  SideGroup& side = sides[side_index];
  const std::span<const std::uint64_t> on_sides = on_sides_of(find);
  std::optional<std::uint32_t> load;
  bool has_room = true;
  for_each_column(needed_columns(side_index, find.hit, find.prompt_tokens), [&](std::uint32_t column) {
    if (!has_room || column >= path.size() || is_in_memory(side, path, column)) return;
    if ((on_sides[column] >> side_index & 1U) == 0) return;
    const PageId host_page = take_host_page(side);
    has_room = !host_page.is_none();
    if (!has_room) return;
    if (!load || side_transfers[*load].page_count == config.host.transfer_pages_max) {
      load = add_side_transfer(TransferKind::LoadFromDisk, side_index);
      has_room = load.has_value();
      if (!has_room) {
        side.host->pool.release({&host_page, 1});
        return;
      }
      SideTransfer& started = side_transfers[*load];
      started.pin = tree->clone(find.pin);
      started.key_space = find.key_space;
      started.found_by = find_index;
      ++key_spaces[find.key_space].user_count;
      ++find.side_loads_in_flight;
      ++side_disk_load_count;
    }
    SideTransfer& filled = side_transfers[*load];
    side_page_row(*load)[filled.page_count++] = {.device_page = PageId::none(),
                                                 .host_page = host_page,
                                                 .host_generation = side.host->generations[host_page.value],
                                                 .place = column,
                                                 .name_tag = side_name_tag(side, path.at(column), path.tier(column))};
  });
}

void Cache::Impl::finish_side_disk_load(std::uint32_t index) {
  SideTransfer& load = side_transfers[index];
  SideGroup& side = sides[load.side];
  SideHost& host = *side.host;
  const std::uint32_t find_index = load.found_by;
  const Transfer& find = transfers[find_index];
  const bool is_wanted = !load.is_unwanted && !find.is_unwanted && !key_spaces[find.key_space].is_retired;
  const FindPath path = path_of(load.pin);  // pages of it may have come to the device meanwhile
  for (std::uint32_t i = 0; i < load.page_count; ++i) {
    const PageTransfer& way = side_page_row(index)[i];
    const std::uint32_t column = way.place;
    if (!is_wanted || i >= load.good_pages || !host_side_at(side, path, column).is_none()) {
      host.pool.release({&way.host_page, 1});
      continue;
    }
    SidePages& pages = path.tier(column) == Tier::Device ? host.of_device : host.of_host;
    host.pool.seal({&way.host_page, 1});
    pages.attach(path.at(column), way.host_page);
    pages.unpin(way.host_page, SidePages::Worth::Kept);
    host.columns[way.host_page.value] = column;
    host.disk_states[way.host_page.value] = DiskState::OnDisk;
    ++side.totals.disk_loaded_page_total;
  }
  const std::uint32_t key_space = load.key_space;
  load.pin.reset();
  remove_side_transfer(index);
  --side_disk_load_count;
  --key_spaces[key_space].user_count;  // the search uses it still
  --transfers[find_index].side_loads_in_flight;
  if (transfers[find_index].side_loads_in_flight == 0) end_find_with_sides(find_index);
}

// A search has all of the history that it wanted, or no more of it comes.
void Cache::Impl::end_find_with_sides(std::uint32_t index) {
  const Transfer& find = transfers[index];
  const bool may_ask =
      !sides.empty() && !find.is_unwanted && find.miss == MissReason::None && !key_spaces[find.key_space].is_retired;
  if (may_ask && !find.has_asked_sides) {
    start_side_disk_loads(index);
    hand_over_transfers();
  }
  const bool waits = may_ask && !transfers[index].has_asked_sides;
  if (transfers[index].side_loads_in_flight == 0 && !waits) end_find(index);
}

// What a search that was abandoned would have loaded is not read any more, if nobody has begun with it.
void Cache::Impl::cancel_side_disk_loads(std::uint32_t find) {
  for (std::uint32_t i = 0; i < side_transfers.size(); ++i) {
    const SideTransfer& load = side_transfers[i];
    if (load.state == SideTransfer::State::Free || load.kind != TransferKind::LoadFromDisk) continue;
    if (load.found_by != find) continue;
    disown_side_load(i);
    disk->cancel({static_cast<std::uint32_t>(transfers.size()) + i, load.generation});
  }
}

DiskPlan Cache::Impl::side_disk_plan_of(std::uint32_t index) {
  const SideTransfer& transfer = side_transfers[index];
  return {.id = {static_cast<std::uint32_t>(transfers.size()) + index, transfer.generation},
          .kind = transfer.kind,
          .key_space = transfer.key_space,
          .store_index = transfer.side + 1,
          .named_in = transfer.named_in,
          .found_by = transfer.found_by,
          .pages = side_page_row(index).first(transfer.page_count)};
}

// A sequence that has looked on disk goes on from what memory has.
void Cache::Impl::go_on_with_sides(std::uint32_t index) {
  SequenceSlot& slot = sequences[index];
  slot.has_asked_sides = false;
  slot.side_loads = 0;
  const Hit on_device = find_hit(match_of(index), slot.token_count, slot.allows_inexact);
  const PrefixTree::Match match = match_of(index);
  const Hit anywhere = find_hit(match, slot.token_count, slot.allows_inexact, /*counts_host=*/true);
  if (!may_load(slot) || anywhere.start() <= on_device.start()) {
    (void)start_running(index);
    ready_sequences.push_back({index, slot.generation});
    return;
  }
  sequences.set_state(index, SequenceSlot::State::Loading);
  slot.pin =
      tree->pin_all(tree->cut_pages(match, pages_for(anywhere.tokens)));  // wake_loading() starts what it waits for
}

std::uint32_t CachePeer::unwritten_side_pages(const Cache& cache) {
  std::uint32_t count = 0;
  for (const SideGroup& side : cache.impl_->sides) count += side.host != nullptr ? side.host->to_disk.size() : 0;
  for (const SideTransfer& each : cache.impl_->side_transfers) {
    count += each.state != SideTransfer::State::Free && each.kind == TransferKind::StoreToDisk ? each.page_count : 0;
  }
  return count;
}

}  // namespace quire
