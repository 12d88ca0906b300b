// SPDX-License-Identifier: Apache-2.0
#include "tiers/history_pages.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutants.h"

namespace quire {

Status HistoryPages::open_host(const TierPages::HostConfig& config, std::uint32_t path_pages_max) {
  QUIRE_TRY(pages.open_host(config));
  runs_.reserve(path_pages_max);
  targets_.resize(path_pages_max);
  tree_.set_listener(this);
  return {};
}

Status HistoryPages::open_lower(NameLog& name_log) {
  name_log_ = &name_log;
  QUIRE_TRY_ASSIGN(hot_, LazyArray<std::uint8_t>::create(std::size_t{pages.device.page_count()} + 1));
  QUIRE_TRY_ASSIGN(below_, LazyArray<std::uint8_t>::create(std::size_t{pages.device.page_count()} + 1));
  return {};
}

Status HistoryPages::open_extents() {
  if (has_extents()) return {};
  QUIRE_TRY(tree_.find_runs());
  QUIRE_TRY(device_columns_.grow(std::size_t{pages.device.page_count()} + 1));
  return host_columns_.grow(std::size_t{pages.host.page_count()} + 1);
}

Status HistoryPages::grow_device(std::uint32_t page_count) {
  QUIRE_TRY(pages.grow_device(page_count));
  for (const auto& group : parts_.groups) {
    if (group->has_pages) QUIRE_TRY(group->grow_tree(page_count));
  }
  if (name_log_ == nullptr) return {};
  QUIRE_TRY(hot_.grow(std::size_t{page_count} + 1));
  if (has_extents()) QUIRE_TRY(device_columns_.grow(std::size_t{page_count} + 1));
  return below_.grow(std::size_t{page_count} + 1);
}

// What leaves the tree

// Every device page that leaves the tree comes here: evicted, dropped, or with its copy on the host in its place.
void HistoryPages::give_up(std::span<const PageId> device_pages) {
  if (chunks_ != nullptr && !is_mutated(Mutant::StaleChunks)) {
    for (const PageId page : device_pages) (void)chunks_->erase({.value = page.value});
  }
  for (const auto& group : parts_.groups) {
    for (const PageId page : device_pages) group->drop_anchor(page);
  }
  if (pages.offered) {
    pages.offered->release(device_pages);
  } else if (pages.read_page_count() == 0) {
    pages.device.release(device_pages);
  } else {
    for (const PageId page : device_pages) pages.release_device(page);
  }
}

std::uint32_t HistoryPages::evict(std::uint32_t page_count) {
  const std::uint32_t evicted =
      tree_.evict(page_count, [this](std::span<const PageId> given_up) { give_up(given_up); });
  parts_.counters.evicted_page_total += evicted;
  release_freed_host();
  return evicted;
}

std::uint32_t HistoryPages::drop_all(RunId root, ResidencyCause cause) {
  const std::uint32_t dropped =
      tree_.evict_all(root, cause, [this](std::span<const PageId> given_up) { give_up(given_up); });
  release_freed_host();
  return dropped;
}

void HistoryPages::release_freed_host() {
  if (!pages.has_host()) return;
  tree_.take_freed_host([this](PageId page) {
    for (const auto& group : parts_.groups) group->drop_host_anchor(page);
    pages.release_host(page);
  });
}

bool HistoryPages::evict_host() {
  const std::uint32_t evicted = tree_.evict_host(1);
  parts_.counters.host_evicted_page_total += evicted;
  release_freed_host();
  return evicted > 0;
}

void HistoryPages::renumber(RunId run, std::uint32_t index_in_run, PageId page) {
  const PageId before = tree_.pages(run)[index_in_run];
  tree_.renumber(run, index_in_run, page);
  for (const auto& group : parts_.groups) {
    if (group->has_pages) group->renumber_anchor(before, page);
  }
  if (chunks_ != nullptr) (void)chunks_->erase({.value = before.value});  // another page may get the id
  if (pages.has_host()) pages.set_settled(page);
  if (name_log_ != nullptr) {
    name_log_->add_copy(NameLog::Kind::DeviceMove, page, before);
    hot_[page.value] = hot_[before.value];
    below_[page.value] = below_[before.value];
    if (has_extents()) device_columns_[page.value] = device_columns_[before.value];
  }
  pages.device.seal({&page, 1});
  pages.device.release({&before, 1});
}

// What can be had

std::uint32_t HistoryPages::evictable_pages() const {
  if (!pages.has_host()) return tree_.evictable_pages();
  // A page that a store reads can be evicted, but is free only when the store has ended.
  const std::uint32_t evictable = writes_back() ? tree_.left_pages() : tree_.evictable_pages();
  const std::uint32_t read = (writes_back() ? 0 : tree_.storing_count()) + abandoned_reads_;
  return evictable - std::min(evictable, read);
}

std::uint32_t HistoryPages::available_besides(const PrefixTree::Match& match) const {
  const std::uint32_t matched = writes_back() ? tree_.left_pages(match) : tree_.idle_pages(match);
  const std::uint32_t evictable = evictable_pages();
  return pages.free_for_plan() + evictable - std::min(evictable, matched);
}

std::uint32_t HistoryPages::pages_leaving(bool is_full) const {
  std::uint32_t leaving = tree_.leaving_pages();
  if (!writes_back()) leaving += std::min(tree_.storing_count(), tree_.evictable_pages());
  if (writes_back() && is_full) leaving += tree_.evictable_pages() - tree_.left_pages();
  return leaving;
}

// Copies

PageTransfer HistoryPages::start_copy(PageId device_page, PageId host_page) {
  tree_.start_copy(device_page, host_page);
  if (name_log_ != nullptr) name_log_->add_copy(NameLog::Kind::HostCopy, host_page, device_page);
  if (has_extents()) host_columns_[host_page.value] = device_columns_[device_page.value];
  return pages.transfer_of(device_page, host_page, tree_.fingerprint(device_page, Tier::Device), 0);
}

PageHome::CopyEnd HistoryPages::end_copy(const PageTransfer& page, bool is_good) {
  const PrefixTree::HostCopy copy = tree_.copy_of(page.device_page);
  const bool is_awaited = copy.state == PrefixTree::Copy::Storing && copy.host_page == page.host_page;
  if (!is_awaited) return CopyEnd::Unwanted;  // the page has left the tree
  if (!is_good) {
    tree_.forget_copy(page.device_page);
    return CopyEnd::Lost;
  }
  tree_.end_copy(page.device_page, /*goes_first=*/writes_back());
  ++parts_.counters.stored_page_total;
  return CopyEnd::Taken;
}

void HistoryPages::on_demote(PageId device_page, PageId host_page) {
  for (const auto& group : parts_.groups) group->on_demote(device_page, host_page);
}

void HistoryPages::on_promote(PageId host_page, PageId device_page) {
  if (has_extents()) device_columns_[device_page.value] = host_columns_[host_page.value];
  for (const auto& group : parts_.groups) group->on_promote(host_page, device_page);
}

void HistoryPages::on_copy_given_up(PageId device_page, PageId host_page) {
  for (std::size_t i = 0; i < pages.lower.size(); ++i) {
    if (!pages.lower[i].has(host_page)) continue;
    below_[device_page.value] = static_cast<std::uint8_t>(below_[device_page.value] | (1U << i));
  }
}

bool HistoryPages::is_below(Tier tier, PageId page) const {
  if (name_log_ == nullptr) return false;
  if (tier == Tier::Device) return below_[page.value] != 0;
  return std::ranges::any_of(pages.lower, [&](const LowerCopies& copies) { return copies.has(page); });
}

void HistoryPages::forget_below(std::uint16_t lower) {
  for (std::uint32_t page = 1; page <= pages.device.page_count(); ++page) {
    below_[page] = static_cast<std::uint8_t>(below_[page] & ~(1U << lower));
  }
}

// Extents

PageId HistoryPages::host_page_at(RunId run, std::uint32_t column) const {
  const std::span<const PageId> row = tree_.pages(run);
  const PageId page = row[column - (tree_.end_page(run) - row.size())];
  if (tree_.is_on_host(run)) return page;
  const PrefixTree::HostCopy copy = tree_.copy_of(page);
  return copy.state == PrefixTree::Copy::Ready ? copy.host_page : PageId::none();
}

bool HistoryPages::list_on_host(RunId run, std::uint32_t last, std::span<PageId> out) const {
  QUIRE_CHECK(last + 1 >= out.size() && tree_.end_page(run) > last, "pages before the root, or behind a run");
  for (std::size_t i = out.size(); i > 0; --i) {
    const std::uint32_t column = last + 1 - static_cast<std::uint32_t>(out.size() - i + 1);
    while (tree_.end_page(tree_.parent(run)) > column) run = tree_.parent(run);
    out[i - 1] = host_page_at(run, column);
    if (out[i - 1].is_none()) return false;
  }
  return true;
}

// Loads. PrefixTree::load_of() is the index of the load that brings a host run, + 1; 0: none does.

void HistoryPages::list_host_runs(const PrefixTree::Pin& path) {
  runs_.clear();
  for (RunId run = path.run(); tree_.is_on_host(run); run = tree_.parent(run)) runs_.push_back(run);
}

// Lists the first consecutive host pages of the path, of one or several runs, that no load brings.
PageHome::Listed HistoryPages::list_loads(const PrefixTree::Pin& path, const Wanted& /*wanted*/,
                                          std::span<PageTransfer> out) {
  list_host_runs(path);
  while (!runs_.empty() && tree_.load_of(runs_.back()) != 0) runs_.pop_back();
  std::uint32_t count = 0;
  for (; !runs_.empty() && tree_.load_of(runs_.back()) == 0 && count < out.size(); runs_.pop_back()) {
    const RunId run = runs_.back();
    const std::span<const PageId> host_pages = tree_.pages(run);
    const std::uint32_t first = tree_.end_page(run) - static_cast<std::uint32_t>(host_pages.size());
    for (std::uint32_t i = 0; i < host_pages.size() && count < out.size(); ++i) {
      out[count++] = pages.transfer_of(PageId::none(), host_pages[i], tag_of({Tier::Host, host_pages[i]}), first + i);
    }
  }
  return {.page_count = count};
}

void HistoryPages::note_load(const PrefixTree::Pin& path, std::span<const PageTransfer> load,
                             std::uint32_t load_index) {
  for (RunId run = path.run(); tree_.is_on_host(run) && tree_.end_page(run) > load.front().place;
       run = tree_.parent(run)) {
    tree_.load_of(run) = load_index + 1;
  }
}

void HistoryPages::forget_load(const PrefixTree::Pin& path, std::span<const PageTransfer> /*load*/,
                               std::uint32_t load_index) {
  for (RunId run = path.run(); tree_.is_on_host(run); run = tree_.parent(run)) {
    if (tree_.load_of(run) == load_index + 1) tree_.load_of(run) = 0;
  }
}

bool HistoryPages::brings(std::uint32_t load_index, const PrefixTree::Pin& path, const WindowColumns& /*columns*/) {
  for (RunId run = path.run(); tree_.is_on_host(run); run = tree_.parent(run)) {
    if (tree_.load_of(run) == load_index + 1) return true;
  }
  return false;
}

PageHome::Turn HistoryPages::turn_of(const Transfer& load) const {
  const RunId first = tree_.first_host_run(load.pin);
  if (first.is_none() || tree_.end_page(first) > load.first_page || is_mutated(Mutant::UnorderedLoads))
    return Turn::Now;
  return tree_.load_of(first) != 0 ? Turn::Later : Turn::Never;
}

// Promotes run by run, from the first host run of the path on.
void HistoryPages::attach(const Transfer& load, std::span<PageTransfer> good) {
  QUIRE_CHECK(load.pin && load.pool == pool, "a load without a path, or of another pool, arrives");
  const PrefixTree::Pin arrived = tree_.pin_prefix(load.pin, load.first_page + static_cast<std::uint32_t>(good.size()));
  list_host_runs(arrived);
  for (; !runs_.empty(); runs_.pop_back()) {
    const RunId run = runs_.back();
    const auto page_count = static_cast<std::uint32_t>(tree_.pages(run).size());
    const std::uint32_t place = tree_.end_page(run) - page_count - load.first_page;
    const std::span<PageTransfer> of_run = good.subspan(place, page_count);
    const std::span<PageId> targets = std::span(targets_).first(page_count);
    for (std::uint32_t i = 0; i < page_count; ++i) {
      targets[i] = std::exchange(of_run[i].device_page, PageId::none());
      pages.set_settled(targets[i]);
    }
    pages.device.seal(targets);
    if (name_log_ != nullptr) {
      for (std::uint32_t i = 0; i < page_count; ++i) {
        set_cold(targets[i]);
        name_log_->add_copy(NameLog::Kind::DeviceCopy, targets[i], of_run[i].host_page);
      }
    }
    tree_.promote(run, targets);
    pages.totals.loaded_page_total += page_count;
  }
}

// None: the page was computed meanwhile, so that the host page is only a copy of a device page.
RunId HistoryPages::drop_bad(const Transfer& load, const PageTransfer& /*bad*/, std::uint32_t place) {
  QUIRE_CHECK(place < load.page_count, "a bad page lies behind the last one of its load");
  const std::uint32_t bad_page = load.first_page + place;
  const PrefixTree::Pin good = tree_.pin_prefix(load.pin, bad_page);  // splits there
  RunId bad = load.pin.run();
  while (tree_.end_page(tree_.parent(bad)) > bad_page) bad = tree_.parent(bad);
  return tree_.is_on_host(bad) ? bad : RunId::none();
}

}  // namespace quire
