// SPDX-License-Identifier: Apache-2.0
#include "tiers/anchored_group.h"

#include <utility>

#include "base/check.h"
#include "base/hash.h"

namespace quire {

Status AnchoredGroup::open_device(DevicePool owner, std::uint32_t page_count, std::uint32_t tree_page_count) {
  has_pages = true;
  QUIRE_TRY(owner == DevicePool::Owned ? pages.open_device(page_count) : pages.open_offered(page_count));
  QUIRE_TRY_ASSIGN(on_device,
                   AnchoredPages::create({.tree_page_end = tree_page_count + 1, .page_end = page_count + 1}));
  return {};
}

Status AnchoredGroup::open_host(const HostConfig& config) {
  const std::size_t device_end = std::size_t{pages.device.page_count()} + 1;
  const std::uint32_t host_end = config.page_count + 1;
  QUIRE_TRY(pages.open_host({.page_count = config.page_count, .looks_ahead = config.looks_ahead, .lists_reads = true}));
  QUIRE_TRY_ASSIGN(host_of_device_,
                   AnchoredPages::create({.tree_page_end = config.tree_page_count + 1, .page_end = host_end}));
  QUIRE_TRY_ASSIGN(host_of_host_,
                   AnchoredPages::create({.tree_page_end = config.tree_host_page_count + 1, .page_end = host_end}));
  QUIRE_TRY_ASSIGN(load_of_, LazyArray<std::uint32_t>::create(std::size_t{config.tree_page_count} + 1));
  QUIRE_TRY_ASSIGN(load_of_host_, LazyArray<std::uint32_t>::create(std::size_t{config.tree_host_page_count} + 1));
  QUIRE_TRY_ASSIGN(device_columns_, LazyArray<std::uint32_t>::create(device_end));
  QUIRE_TRY_ASSIGN(host_columns_, LazyArray<std::uint32_t>::create(host_end));
  QUIRE_TRY(wanted_.reserve(static_cast<std::uint32_t>(device_end)));
  path_.resize(config.path_pages_max);
  return {};
}

Status AnchoredGroup::grow_tree(std::uint32_t tree_page_count) {
  QUIRE_TRY(on_device.grow(tree_page_count + 1));
  if (!has_host()) return {};
  QUIRE_TRY(host_of_device_.grow(tree_page_count + 1));
  return load_of_.grow(std::size_t{tree_page_count} + 1);
}

// Device pages

void AnchoredGroup::take(PageId page) {
  if (pages.device.state(page) == PageState::Sealed) {
    on_device.pin(page);
  } else {
    pages.device.share(page);
  }
}

void AnchoredGroup::release(PageId page, Worth worth) {
  if (pages.device.state(page) != PageState::Sealed) {
    pages.give_back(page);
    return;
  }
  on_device.unpin(page, worth);
  if (worth == Worth::Kept) keep_host_copy(on_device.tree_page_of(page));
}

// Marks a host copy as Worth::Kept, so that it is evicted after pages that a window has only passed.
void AnchoredGroup::keep_host_copy(PageId tree_page) {
  if (!has_host()) return;
  const PageId host_page = host_of_device_.at(tree_page);
  if (host_page.is_none()) return;
  host_of_device_.pin(host_page);
  host_of_device_.unpin(host_page, Worth::Kept);
}

void AnchoredGroup::release_device(PageId page) {
  if (has_host() && wanted_.contains(page.value)) wanted_.remove(page.value);
  pages.release_device(page);
}

void AnchoredGroup::drop_anchor(PageId tree_page) {
  if (!has_pages) return;
  if (has_host()) release_host_copy(host_of_device_.drop(tree_page));
  const PageId page = on_device.drop(tree_page);
  if (page.is_none()) return;
  release_device(page);
  ++pages.totals.dropped_page_total;
}

void AnchoredGroup::drop(PageId page) {
  const PageId tree_page = on_device.tree_page_of(page);
  const bool has_copy = has_host() && host_of_device_.has(tree_page);
  if (has_copy && host_of_device_.hold_count(host_of_device_.at(tree_page)) == 0) {
    release_host_copy(host_of_device_.drop(tree_page));
  }
  on_device.detach(page);
  release_device(page);
  ++pages.totals.dropped_page_total;
}

void AnchoredGroup::want_copy(PageId page, std::uint32_t column) {
  if (!has_host() || wanted_.contains(page.value)) return;
  QUIRE_CHECK(on_device.is_attached(page), "a page is to be copied that hangs on no page of the tree");
  wanted_.push_back(page.value);
  device_columns_[page.value] = column;
  pages.settle_later(page);
}

void AnchoredGroup::want_all_copies() {
  on_device.for_each([&](PageId tree_page, PageId page) {
    if (!host_of_device_.has(tree_page) && !pages.is_read(page)) want_copy(page, device_columns_[page.value]);
  });
}

void AnchoredGroup::forget_wanted() {
  while (wanted_.size() > 0) wanted_.remove(wanted_.front());
}

// A page that a store reads can be evicted, but is free only when the store has ended.
std::uint32_t AnchoredGroup::evictable_pages() const {
  std::uint32_t count = on_device.idle_count();
  pages.for_each_read([&](PageId page) { count -= on_device.is_attached(page) && !on_device.is_pinned(page) ? 1 : 0; });
  return count;
}

std::uint32_t AnchoredGroup::pages_in_time() const {
  std::uint32_t count = on_device.idle_count();
  pages.for_each_read([&](PageId page) { count += on_device.is_attached(page) ? 0 : 1; });
  return count;
}

bool AnchoredGroup::evict_device() {
  const PageId page = on_device.first_idle();
  if (page.is_none()) return false;
  const PageId tree_page = on_device.tree_page_of(page);
  const bool is_kept = on_device.is_kept(page);
  on_device.detach(page);
  if (is_kept) keep_host_copy(tree_page);  // the host's copy is the only one from here on
  release_device(page);
  ++pages.totals.evicted_page_total;
  return true;
}

std::uint32_t AnchoredGroup::evict(std::uint32_t page_count) {
  std::uint32_t evicted = 0;
  while (evicted < page_count && evict_device()) ++evicted;
  return evicted;
}

// Host pages

// Evicts pages of Worth::Passed first, then others; of either, first those whose history is on the device, because the
// device may have them too.
bool AnchoredGroup::evict_host() {
  PageId victim = host_of_device_.evict(Worth::Passed);
  if (victim.is_none()) victim = host_of_host_.evict(Worth::Passed);
  if (victim.is_none()) victim = host_of_device_.evict();
  if (victim.is_none()) victim = host_of_host_.evict();
  if (victim.is_none()) return false;
  pages.release_host(victim);
  return true;
}

void AnchoredGroup::on_demote(PageId device_page, PageId host_page) {
  if (!has_host() || !host_of_device_.has(device_page)) return;
  const PageId of_device = on_device.at(device_page);
  const bool is_kept = host_of_device_.is_kept(host_of_device_.at(device_page)) ||
                       (!of_device.is_none() && on_device.is_kept(of_device));
  move_host_page(host_of_device_, device_page, host_of_host_, host_page, is_kept);
}

// The same host page hangs on another page of the history; who holds it goes on holding it.
void AnchoredGroup::move_host_page(AnchoredPages& source, PageId source_anchor, AnchoredPages& target,
                                   PageId target_anchor, bool is_kept) {
  const std::uint32_t holds = source.hold_count(source.at(source_anchor));
  const PageId page = source.drop(source_anchor);
  target.attach(target_anchor, page);
  target.hold(page, holds);
  target.unpin(page, is_kept ? Worth::Kept : Worth::Passed);
}

void AnchoredGroup::on_promote(PageId host_page, PageId device_page) {
  if (!has_host()) return;
  load_of_[device_page.value] = std::exchange(load_of_host_[host_page.value], 0);
  if (!host_of_host_.has(host_page)) return;
  move_host_page(host_of_host_, host_page, host_of_device_, device_page,
                 host_of_host_.is_kept(host_of_host_.at(host_page)));
}

void AnchoredGroup::drop_host_anchor(PageId host_page) {
  if (has_host()) release_host_copy(host_of_host_.drop(host_page));
}

bool AnchoredGroup::is_in_memory(const TierPath& path, std::uint32_t column) const {
  if (column >= path.size()) return false;
  const NamedPage anchor = path.at(column);
  return !host_page_at(anchor).is_none() || (anchor.tier == Tier::Device && on_device.has(anchor.page));
}

bool AnchoredGroup::attach_host(const NamedPage& tree_page, PageId host_page, std::uint32_t column) {
  AnchoredPages& anchored = anchored_in(tree_page.tier);
  if (anchored.has(tree_page.page)) return false;
  pages.host.seal({&host_page, 1});
  anchored.attach(tree_page.page, host_page);
  anchored.unpin(host_page, Worth::Kept);
  host_columns_[host_page.value] = column;
  return true;
}

bool AnchoredGroup::is_kept_at(std::uint32_t column, const GroupRetention& retention, std::uint32_t page_tokens) const {
  if (retention.rule != RetentionRule::Every) return retention.rule != RetentionRule::None;
  const std::uint64_t interval = retention.interval_tokens;
  const std::uint64_t begin = std::uint64_t{column} * page_tokens;
  const std::uint64_t end = begin + page_tokens;
  if (!is_window) return end % interval == 0;
  if (column < sink_pages) return true;
  // Kept if a window covers part of the page: the window of a sequence that goes on at the next boundary behind the
  // page's first token.
  const std::uint64_t boundary = ((begin / interval) + 1) * interval;
  return boundary < end + group->window_tokens;
}

void AnchoredGroup::hold(const TierPath& path, const WindowColumns& columns, Tier tier, bool is_held) {
  for_each_column(columns, [&](std::uint32_t column) {
    if (column >= path.size()) return;
    const NamedPage anchor = path.at(column);
    AnchoredPages& anchored = tier == Tier::Device ? on_device : anchored_in(anchor.tier);
    if (tier == Tier::Device && anchor.tier != Tier::Device) return;
    const PageId page = anchored.at(anchor.page);
    if (page.is_none()) return;
    if (is_held) {
      anchored.pin(page);
    } else {
      anchored.unpin(page, Worth::Kept);
    }
  });
}

// Holds on the host

AnchoredGroup::HostHold AnchoredGroup::hold_on_host(const NamedPage& tree_page, std::uint32_t column,
                                                    const HostHold& before) {
  const PageId host_page = host_page_at(tree_page);
  if (!host_page.is_none()) {
    anchored_in(tree_page.tier).hold(host_page);
    return {.page = host_page, .generation = pages.generation(host_page)};
  }
  const PageId page = tree_page.tier == Tier::Device ? on_device.at(tree_page.page) : PageId::none();
  if (page.is_none()) return {};
  // Somebody asked for the page, so it is not among the first to go before it is copied. Asking again is no new use.
  if (!before.is_wanted) {
    on_device.pin_found(page);
    on_device.unpin(page, Worth::Kept);
  }
  if (!pages.is_read(page)) want_copy(page, column);
  return {.is_wanted = true};
}

bool AnchoredGroup::is_there(const HostHold& hold) const {
  const bool is_cached = host_of_device_.is_attached(hold.page) || host_of_host_.is_attached(hold.page);
  return is_cached && pages.generation(hold.page) == hold.generation;
}

void AnchoredGroup::release_host_hold(const HostHold& hold) {
  if (!is_there(hold)) return;
  AnchoredPages& anchored = host_of_device_.is_attached(hold.page) ? host_of_device_ : host_of_host_;
  anchored.release_hold(hold.page);
}

// Copies

PageId AnchoredGroup::next_wanted() {
  while (wanted_.size() > 0) {
    const PageId page{wanted_.front()};
    if (!host_of_device_.has(on_device.tree_page_of(page))) return page;
    wanted_.remove(page.value);
  }
  return PageId::none();
}

PageTransfer AnchoredGroup::start_copy(PageId device_page, PageId host_page) {
  QUIRE_CHECK(wanted_.contains(device_page.value), "a page is copied that nobody wants a copy of");
  const PageId tree_page = on_device.tree_page_of(device_page);
  wanted_.remove(device_page.value);
  return pages.transfer_of(device_page, host_page, tag_of({Tier::Device, tree_page}), tree_page.value);
}

PageHome::CopyEnd AnchoredGroup::end_copy(const PageTransfer& page, bool is_good) {
  const PageId tree_page{page.place};
  // A page that a store reads is not used for anything else. So if it hangs on this tree page now, it did all the time.
  const bool is_awaited = pages.device.state(page.device_page) == PageState::Sealed &&
                          on_device.is_attached(page.device_page) &&
                          on_device.tree_page_of(page.device_page) == tree_page;
  if (!is_awaited) return CopyEnd::Unwanted;
  if (!is_good) return CopyEnd::Lost;
  if (host_of_device_.has(tree_page)) return CopyEnd::Unwanted;
  host_of_device_.attach(tree_page, page.host_page);
  host_of_device_.unpin(page.host_page, on_device.is_kept(page.device_page) ? Worth::Kept : Worth::Passed);
  host_columns_[page.host_page.value] = device_columns_[page.device_page.value];
  return CopyEnd::Taken;
}

NamedPage AnchoredGroup::name_of(PageId host_page) const {
  QUIRE_CHECK(pages.host.state(host_page) == PageState::Sealed, "a host page has a name, and is not cached");
  const Tier tier = host_of_device_.is_attached(host_page) ? Tier::Device : Tier::Host;
  return {tier, anchored_in(tier).tree_page_of(host_page)};
}

std::uint64_t AnchoredGroup::tag_of(const NamedPage& tree_page) const {
  return mix64(tree_.fingerprint(tree_page.page, tree_page.tier) + (std::uint64_t{group_index} << 32U));
}

// Loads

// The pages of a path. Only those in `columns` are filled in: without a sink, the cost is that of the window and not
// that of the path.
TierPath AnchoredGroup::path_of(const PrefixTree::Pin& pin, const WindowColumns& columns) {
  const RunId host_run = tree_.first_host_run(pin);
  const std::span<PageId> row = std::span(path_).first(tree_.end_page(pin.run()));
  const std::size_t device_pages = host_run.is_none() ? row.size() : tree_.end_page(tree_.parent(host_run));
  const std::uint32_t first = columns.sink_pages > 0 ? 0 : columns.first;
  if (first < row.size()) tree_.copy_path(pin, first, row.subspan(first));
  return {.pages = row.first(device_pages), .host_pages = row.subspan(device_pages)};
}

// The same for the columns of a load, which are those of its pages' places.
TierPath AnchoredGroup::path_of(const PrefixTree::Pin& pin, std::span<const PageTransfer> load) {
  if (load.empty()) return {};
  return path_of(pin, {.first = load.front().place, .last = load.back().place + 1});
}

std::uint32_t AnchoredGroup::count_loads(const TierPath& path, const WindowColumns& columns) const {
  std::uint32_t count = 0;
  for_each_column(columns, [&](std::uint32_t column) {
    if (column >= path.size()) return;
    const NamedPage anchor = path.at(column);
    const bool is_there = anchor.tier == Tier::Device && on_device.has(anchor.page);
    count += is_there || load_at(anchor) != 0 ? 0 : 1;
  });
  return count;
}

PageHome::Listed AnchoredGroup::list_loads(const PrefixTree::Pin& pin, const Wanted& wanted,
                                           std::span<PageTransfer> out) {
  const TierPath path = path_of(pin, wanted.columns);
  Listed listed{.page_count = 0, .next_column = wanted.from};
  for_each_column(wanted.columns, [&](std::uint32_t column) {
    if (column < listed.next_column || column >= path.size() || listed.page_count == out.size()) return;
    listed.next_column = column + 1;
    const NamedPage anchor = path.at(column);
    const bool is_there = anchor.tier == Tier::Device && on_device.has(anchor.page);
    const PageId host_page = host_page_at(anchor);
    if (is_there || load_at(anchor) != 0 || host_page.is_none()) return;
    out[listed.page_count++] = pages.transfer_of(PageId::none(), host_page, tag_of(anchor), column);
  });
  return listed;
}

void AnchoredGroup::note_load(const PrefixTree::Pin& pin, std::span<const PageTransfer> load,
                              std::uint32_t load_index) {
  const TierPath path = path_of(pin, load);
  for (const PageTransfer& page : load) load_at(path.at(page.place)) = load_index + 1;
}

void AnchoredGroup::forget_load(const PrefixTree::Pin& pin, std::span<const PageTransfer> load,
                                std::uint32_t load_index) {
  const TierPath path = path_of(pin, load);
  for (const PageTransfer& page : load) {
    std::uint32_t& noted = load_at(path.at(page.place));
    if (noted == load_index + 1) noted = 0;
  }
}

bool AnchoredGroup::brings(std::uint32_t load_index, const PrefixTree::Pin& pin, const WindowColumns& columns) {
  const TierPath path = path_of(pin, columns);
  bool is_brought = false;
  for_each_column(columns, [&](std::uint32_t column) {
    is_brought = is_brought || (column < path.size() && load_at(path.at(column)) == load_index + 1);
  });
  return is_brought;
}

// Pages hang on device pages of the history, which may still be on their way themselves.
PageHome::Turn AnchoredGroup::turn_of(const Transfer& load) const {
  const RunId first = tree_.first_host_run(load.pin);
  if (first.is_none() || load.last_page < tree_.end_page(tree_.parent(first))) return Turn::Now;
  return tree_.load_of(first) != 0 ? Turn::Later : Turn::Never;
}

void AnchoredGroup::attach(const Transfer& load, std::span<PageTransfer> good) {
  QUIRE_CHECK(load.pin && load.pool == pool, "a load without a path, or of another group, arrives");
  const TierPath path = path_of(load.pin, good);
  for (PageTransfer& page : good) {
    QUIRE_CHECK(page.place < path.pages.size(), "a page arrives before the page of the history that it hangs on");
    const PageId tree_page = path.pages[page.place];
    if (on_device.has(tree_page)) continue;
    const PageId device_page = std::exchange(page.device_page, PageId::none());
    pages.device.seal({&device_page, 1});
    on_device.attach(tree_page, device_page);
    on_device.unpin(device_page, Worth::Kept);
    device_columns_[device_page.value] = host_columns_[page.host_page.value];
    ++pages.totals.loaded_page_total;
  }
}

RunId AnchoredGroup::drop_bad(const Transfer& load, const PageTransfer& bad, std::uint32_t /*place*/) {
  const NamedPage anchor = path_of(load.pin, {&bad, 1}).at(bad.place);
  if (host_page_at(anchor) == bad.host_page) release_host_copy(anchored_in(anchor.tier).drop(anchor.page));
  return RunId::none();
}

Status AnchoredGroup::check_invariants() const {
  QUIRE_TRY(on_device.check_invariants());
  const auto bad = [this](const char* rule) {
    return fail(ErrorCode::Corrupt, "group '" + group->name + "': " + rule);
  };
  if (pages.offered) QUIRE_TRY(pages.offered->check_invariants());
  if (pages.cached_page_count() != on_device.attached_count())
    return bad("the sealed device pages are not those of the tree");
  if (!has_host()) return {};
  QUIRE_TRY(host_of_device_.check_invariants());
  QUIRE_TRY(host_of_host_.check_invariants());
  if (pages.host.count(PageState::Sealed) != host_of_device_.attached_count() + host_of_host_.attached_count()) {
    return bad("the sealed host pages are not those of the tree");
  }
  return {};
}

}  // namespace quire
