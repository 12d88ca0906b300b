// SPDX-License-Identifier: Apache-2.0
//
// Cache: key spaces and prompts; keep(), drop() and reset(); time; observers.
#include "quire/cache.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "wire/page_name.h"

namespace quire {

Sequence::~Sequence() {
  if (queue_ != nullptr) queue_->push(id_.index);
}

Cache::Cache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cache::~Cache() = default;

void Cache::set_owner_thread() {
  impl_->owner = std::this_thread::get_id();
}

Status Cache::Impl::enter() {
  if (owner.load(std::memory_order_relaxed) != std::this_thread::get_id()) {
    return invalid(
        "the cache was called from another thread than its owner's; call it from one thread, or hand it over with "
        "set_owner_thread()");
  }
  tiers->parts.fence.begin_call();
  release_queue->drain([this](std::uint32_t index) { drop_sequence(index); });
  if (chunks != nullptr) chunks->released->drain([this](std::uint32_t pin) { unpin_chunks(pin); });
  return {};
}

Status Cache::Impl::require(DevicePool wanted, const char* call) const {
  if (config.device.pool == wanted) return {};
  return unsupported(call, wanted == DevicePool::Owned
                               ? ": this cache's device pool is external; use offer and match"
                               : ": this cache owns its device pool; use begin, admit and plan_step");
}

// Key spaces and prompts

Result<KeySpaceId> Cache::key_space(const KeySpace& key_space) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  if (key_space.model.empty() && impl.find_lower(Tier::Remote) != nullptr) {
    return invalid(
        "key_space: model is empty, and the cache has a remote tier, where engines with other weights would find these "
        "pages under the same names: name the weights in KeySpace::model, and in the other fields what else their KV "
        "depends on (revision, adapter, element, rope)");
  }
  if (const auto known = impl.key_spaces.find(key_space)) {
    impl.key_spaces.touch(*known);
    return impl.key_spaces.id(*known);
  }
  std::optional<std::uint32_t> index = impl.key_spaces.find_free();
  if (!index) {
    index = impl.key_spaces.find_unused();
    if (!index) {
      return unavailable(
          "all ", impl.key_spaces.capacity(),
          " key spaces have live sequences or kept prefixes; end or unkeep some, or raise key_space_count_max");
    }
    impl.counters.evicted_page_total +=
        impl.tiers->parts.history.drop_all(impl.key_spaces[*index].root, ResidencyCause::Evicted);
    impl.tiers->parts.release_key_space(*index);
  }
  impl.key_spaces.add(*index, key_space, impl.tree->add_root());
  if (impl.has_lower()) impl.tiers->parts.name_log.add_key_space(*index, key_space);
  return impl.key_spaces.id(*index);
}

Result<std::uint32_t> Cache::Impl::find_key_space(KeySpaceId id) const {
  if (const auto index = key_spaces.find(id)) return *index;
  return invalid("this key space id is unknown here or was dropped; ask key_space() for a new one");
}

Status Cache::Impl::check_prompt(const Prompt& prompt) const {
  if (prompt.tokens.empty()) return invalid("the prompt is empty: give at least one token");
  const std::uint64_t pages_needed = (std::uint64_t{prompt.tokens.size()} + page_tokens - 1) / page_tokens;
  if (pages_needed > pool_page_count()) {
    return invalid("the prompt of ", prompt.tokens.size(), " tokens needs ", pages_needed, " pages of ",
                   plain(page_tokens), " tokens; the device pool has ", pool_page_count());
  }
  if (prompt.tokens.size() > context_tokens_max) {
    return invalid("the prompt has ", prompt.tokens.size(), " tokens; context_tokens_max is ", context_tokens_max);
  }
  if (prompt.extra_keys.size() > config.extra_key_count_max) {
    return invalid("the prompt has ", prompt.extra_keys.size(), " extra keys; extra_key_count_max is ",
                   config.extra_key_count_max);
  }
  return check_extra_keys(prompt.extra_keys, {0, static_cast<std::uint32_t>(prompt.tokens.size())});
}

Status Cache::Impl::check_extra_keys(std::span<const ExtraKey> keys, TokenRange range) const {
  std::uint32_t last_end = range.begin;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].begin >= keys[i].end || keys[i].begin < last_end || keys[i].end > range.end) {
      return invalid("extra key ", plain(i), " covers [", plain(keys[i].begin), ", ", plain(keys[i].end),
                     "): extra keys lie within the tokens [", plain(range.begin), ", ", plain(range.end),
                     "), are not empty, do not overlap, and are sorted by position");
    }
    last_end = keys[i].end;
  }
  return {};
}

Status Cache::Impl::check_tokens(std::span<const TokenId> tokens, std::size_t first_position) {
  TokenId any = 0;
  for (const TokenId token : tokens) any |= token;  // negative if any token is
  if (any >= 0) return {};
  const auto bad = std::ranges::find_if(tokens, [](TokenId token) { return token < 0; });
  return invalid("token ", plain(first_position + static_cast<std::size_t>(bad - tokens.begin())), " is ", plain(*bad),
                 ": token ids are not negative");
}

Result<PrefixTree::Match> Cache::Impl::match(std::uint32_t space, const Prompt& prompt,
                                             const SequenceOptions& options) {
  const std::size_t tokens_max = options.use_cache ? options.match_tokens_max.value_or(UINT32_MAX) : 0;
  const auto row_count = static_cast<std::uint32_t>(std::min<std::size_t>(prompt.tokens.size(), tokens_max));
  const PrefixTree::Match match = tiers->paths.with_whole_entries(
      tree->match(key_spaces[space].root, sequences.keys().make(prompt.tokens, prompt.extra_keys, row_count)));
  // Tokens that matched are equal to tokens of the tree, which were checked when they came in.
  QUIRE_TRY(check_tokens(prompt.tokens.subspan(tiers->paths.tokens_in(match)), tiers->paths.tokens_in(match)));
  return match;
}

Result<Lookup> Cache::lookup(KeySpaceId key_space, const Prompt& prompt, const SequenceOptions& options) const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(prompt));
  QUIRE_TRY_ASSIGN(const PrefixTree::Match match, impl.match(space, prompt, options));
  Paths& paths = impl.tiers->paths;
  const bool asks_host = impl.has_host() && options.tier_max != Tier::Device;
  if (!paths.is_plain()) {
    const Paths::HitQuery query{.token_count = static_cast<std::uint32_t>(prompt.tokens.size()),
                                .allows_inexact = options.allow_inexact_replay,
                                .allows_partial = impl.config.device.pool == DevicePool::Owned};
    const Hit hit = paths.find_hit(match, query, HitScope::Device);
    const Hit anywhere = asks_host ? paths.find_hit(match, query, HitScope::DeviceAndHost) : hit;
    return Lookup{.matched_tokens = hit.tokens,
                  .replay_tokens = hit.replay_tokens,
                  .partial_tokens = hit.tokens % impl.page_tokens,
                  .host_tokens = anywhere.start() - std::min(anywhere.start(), hit.start())};
  }
  const std::uint32_t partial =
      impl.config.device.pool == DevicePool::Owned ? impl.tiers->paths.usable_partial(match) : 0;
  return Lookup{.matched_tokens = impl.tiers->paths.tokens_in(match) + partial,
                .partial_tokens = partial,
                .host_tokens = asks_host ? match.host_page_count * impl.page_tokens : 0};
}

Result<std::vector<PageName>> Cache::page_names(KeySpaceId key_space, const Prompt& prompt) const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(prompt));
  QUIRE_TRY(Impl::check_tokens(prompt.tokens, 0));
  const std::uint32_t row_count = impl.sequences.keys().known_rows(static_cast<std::uint32_t>(prompt.tokens.size()));
  const PrefixTree::Key key =
      impl.sequences.keys().make(prompt.tokens, prompt.extra_keys, row_count - (row_count % impl.page_tokens));
  std::vector<PageName> names(key.tokens.size() / impl.page_tokens);
  name_pages({.parent = root_name(key_space_name(impl.key_spaces[space].canonical_form), impl.page_tokens),
              .page_tokens = impl.page_tokens,
              .tokens = key.tokens,
              .extra_keys = key.extra_keys},
             names);
  return names;
}

// Keeping and dropping

Result<Kept> Cache::keep(KeySpaceId key_space, const Prompt& prompt, std::optional<TimeNs> ttl_ns) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(prompt));
  QUIRE_TRY(Impl::check_ttl(ttl_ns));
  QUIRE_TRY_ASSIGN(PrefixTree::Match match, impl.match(space, prompt, {}));
  Hit hit;
  if (!impl.groups.empty()) {
    // Sequences will go on behind the kept path. So the hit is that of a prompt one token longer than the path: its
    // last token need not run again.
    match.partial_tokens = 0;
    hit = impl.tiers->paths.find_hit(match, {.token_count = impl.tiers->paths.tokens_in(match) + 1}, HitScope::Device);
    QUIRE_TRY(impl.check_keep(hit));
  }
  if (std::uint64_t{impl.kept_pages} + match.page_count > impl.keep_pages_max()) {
    return unavailable("keeping ", match.page_count, " pages more than the ", impl.kept_pages,
                       " kept now exceeds keep_pages_max = ", impl.keep_pages_max());
  }
  const auto slot = std::ranges::find_if(impl.keeps, [](const Impl::KeepSlot& each) { return !each.is_live; });
  if (slot == impl.keeps.end()) {
    return unavailable("all ", impl.keeps.size(), " kept prefixes are in use; unkeep one, or raise keep_count_max");
  }
  slot->is_live = true;
  slot->key_space = space;
  slot->page_count = match.page_count;
  slot->expires_at = impl.tiers->parts.time_after(ttl_ns.value_or(INT64_MAX));
  // Keeping pages counts as a use, but changes no wish: the lowest priority and time leave those that the pages had.
  slot->pin = impl.tree->pin(match, {.priority = INT8_MIN, .expires_at = INT64_MIN});
  slot->hit = hit;
  impl.hold_anchored(*slot, /*is_held=*/true);
  impl.next_expiry = std::min(impl.next_expiry, slot->expires_at);
  impl.kept_pages += match.page_count;
  impl.tiers->parts.use_key_space(space);
  return Kept{.id = {static_cast<std::uint32_t>(slot - impl.keeps.begin()), slot->generation},
              .token_count = impl.groups.empty() ? impl.tiers->paths.tokens_in(match) : hit.tokens};
}

Status Cache::unkeep(KeepId keep) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  const bool is_live = keep.index < impl.keeps.size() && impl.keeps[keep.index].is_live &&
                       impl.keeps[keep.index].generation == keep.generation;
  if (!is_live) return invalid("this prefix is not kept, or no longer");
  impl.end_keep(keep.index);
  return {};
}

Status Cache::Impl::check_ttl(std::optional<TimeNs> ttl_ns) {
  if (!ttl_ns || *ttl_ns > 0) return {};
  return invalid("ttl_ns is ", plain(*ttl_ns), ": give a time above 0, or none for no limit");
}

void Cache::Impl::end_keep(std::uint32_t index) {
  KeepSlot& slot = keeps[index];
  const std::uint32_t space = slot.key_space;
  QUIRE_CHECK(slot.is_live && kept_pages >= slot.page_count, "a prefix is given up that is not kept");
  kept_pages -= slot.page_count;
  hold_anchored(slot, /*is_held=*/false);
  slot.pin.reset();
  slot = {.generation = slot.generation + 1};
  --key_spaces[space].user_count;
}

void Cache::Impl::end_keeps(std::optional<std::uint32_t> key_space) {
  for (std::uint32_t i = 0; i < keeps.size(); ++i) {
    if (keeps[i].is_live && keeps[i].key_space == key_space.value_or(keeps[i].key_space)) end_keep(i);
  }
}

Status Cache::advance(TimeNs now) {
  QUIRE_TRY(impl_->enter());
  QUIRE_TRY(impl_->may_apply_alone("advance"));
  impl_->rank_reports.is_late = true;
  return impl_->advance(now);
}

Status Cache::Impl::advance(TimeNs time) {
  const TimeNs before = tiers->parts.now;
  if (time < before) {
    return invalid("time goes back from ", plain(before), " to ", plain(time), " ns; give times that do not decrease");
  }
  tiers->advance(time);
  lost_pages.set_time(time);
  policy->on_advance(time);
  if (host_policy != nullptr) host_policy->on_advance(time);
  if (time < next_expiry) return {};
  next_expiry = INT64_MAX;
  for (std::uint32_t i = 0; i < keeps.size(); ++i) {
    if (!keeps[i].is_live) continue;
    if (keeps[i].expires_at <= time) {
      end_keep(i);
    } else {
      next_expiry = std::min(next_expiry, keeps[i].expires_at);
    }
  }
  for (std::uint32_t i = 0; i < holds.size(); ++i) {
    if (!holds[i].is_live) continue;
    if (holds[i].expires_at <= time) {
      end_hold(i);
    } else {
      next_expiry = std::min(next_expiry, holds[i].expires_at);
    }
  }
  return {};
}

Result<std::uint32_t> Cache::drop(KeySpaceId key_space) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  impl.end_keeps(space);
  impl.end_holds(space);
  const std::uint32_t dropped =
      impl.tiers->parts.history.drop_all(impl.key_spaces[space].root, ResidencyCause::Dropped);
  impl.counters.dropped_page_total += dropped;
  if (impl.has_lower()) {
    impl.tiers->lower_stores.forget_names(space);
    impl.tiers->lower_stores.drop(space);
    impl.tiers->parts.hand_over();
  }
  if (impl.chunks != nullptr) (void)impl.chunks->index->drop(key_space);  // pages of live sequences stay in the tree
  impl.key_spaces.retire(space);
  if (impl.key_spaces[space].user_count == 0) impl.tiers->parts.release_key_space(space);
  impl.tiers->start_waiting_loads();
  return dropped;
}

Result<std::uint32_t> Cache::reclaim(std::uint32_t page_count, std::optional<std::uint32_t> group_index) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY_ASSIGN(PageHome* const home, impl.find_pool(group_index, "reclaim"));
  const std::uint32_t evicted = home->evict(page_count);
  impl.tiers->start_waiting_loads();
  return evicted;
}

Status Cache::reset() {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  const std::uint32_t live_count = impl.sequences.live_count() - impl.arriving_hold_count();
  if (live_count > 0) return unavailable("live sequences: ", live_count, "; end them before reset()");
  if (impl.chunks != nullptr && impl.chunks->pin_count > 0) {
    return unavailable("pinned chunks: ", impl.chunks->pin_count, " ChunkPins live; drop them before reset()");
  }
  impl.drop_moves();
  impl.tiers->cancel_all();
  impl.end_keeps();
  impl.end_holds();
  for (std::uint32_t i = 0; i < impl.key_spaces.end(); ++i) {
    if (!impl.key_spaces[i].is_live) continue;
    impl.counters.dropped_page_total +=
        impl.tiers->parts.history.drop_all(impl.key_spaces[i].root, ResidencyCause::Reset);
  }
  if (impl.has_lower()) impl.tiers->lower_stores.drop_all();
  impl.tiers->parts.hand_over();
  return {};
}

// Observers

Result<Stats> Cache::stats() const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  Stats stats = impl.counters;
  const PrefixTree& tree = *impl.tree;
  const GroupStats pages = impl.history->stats();
  stats.page_count = pages.page_count;
  stats.free_pages = pages.free_pages;
  stats.open_pages = pages.open_pages;
  stats.sealed_pages = pages.sealed_pages;
  stats.private_pages = pages.private_pages;
  stats.fenced_pages = pages.fenced_pages;
  stats.saved_pages = impl.history->host.count(PageState::Private);
  stats.pinned_pages = tree.pinned_pages();
  stats.evictable_pages = tree.evictable_pages();
  stats.soft_pinned_pages = tree.soft_pinned_pages();
  stats.kept_pages = impl.kept_pages;
  if (impl.chunks != nullptr) {
    stats.chunk_pages = impl.chunks->index->page_count();
    stats.chunk_pinned_pages = impl.chunks->pinned_pages;
  }
  stats.held_pages = impl.hold_pages;
  stats.run_count = tree.run_count();
  stats.key_space_count = impl.key_spaces.live_count();
  stats.sequence_count = impl.sequences.live_count();
  for (std::uint32_t i = 0; i < impl.sequences.capacity(); ++i) {
    if (impl.sequences[i].is_waiting()) ++stats.waiting_sequence_count;
    if (impl.sequences[i].is_loading()) ++stats.loading_sequence_count;
  }
  const TierParts& parts = impl.tiers->parts;
  stats.loaded_page_total = pages.loaded_page_total;
  stats.host_page_count = pages.host_page_count;
  stats.host_free_pages = pages.host_free_pages;
  if (impl.has_host()) {
    stats.host_only_pages = tree.host_idle_pages() + tree.host_pinned_pages() + tree.host_held_pages();
    stats.host_copy_pages = tree.copy_count();
    stats.host_filling_pages = impl.history->host.count(PageState::Open);
    stats.leaving_pages = tree.leaving_pages();
    stats.clean_reserve_pages = tree.left_pages();
    stats.host_has_huge_pages = impl.host_region.has_huge_pages;
    stats.host_is_on_numa_node = impl.host_region.is_on_numa_node;
    stats.host_is_locked = impl.host_region.is_locked;
    stats.transfers_in_flight = parts.book.live_count();
    for (std::uint32_t i = 0; i < parts.book.end(); ++i) {
      const Transfer::State state = parts.book[i].state;
      const bool is_moving = parts.book[i].is_on_its_way() || state == Transfer::State::CalledOff;
      stats.transfers_moving += is_moving ? 1 : 0;
    }
    stats.load_bytes_per_ns = parts.load_rate.bytes_per_ns;
    stats.store_bytes_per_ns = parts.store_rate.bytes_per_ns;
  }
  impl.add_lower_stats(stats);
  stats.lost_page_total = tree.lost_page_total();
  return stats;
}

// What the tiers below the host have done, by kind.
void Cache::Impl::add_lower_stats(Stats& stats) const {
  const TierParts& parts = tiers->parts;
  for (std::size_t i = 0; i < parts.lowers.size(); ++i) {
    const Lower& lower = parts.lowers[i];
    const LowerTotals& totals = lower.totals;
    const bool is_remote = lower.settings.tier == Tier::Remote;
    (is_remote ? stats.remote_find_count : stats.disk_find_count) += totals.find_count;
    (is_remote ? stats.remote_found_page_total : stats.disk_found_page_total) += totals.found_pages;
    (is_remote ? stats.remote_loaded_bytes : stats.disk_loaded_bytes) += totals.loaded_bytes;
    (is_remote ? stats.remote_stored_bytes : stats.disk_stored_bytes) += totals.stored_bytes;
    for (std::size_t outcome = 0; outcome < kTransferOutcomeCount; ++outcome) {
      (is_remote ? stats.remote_load_outcomes : stats.disk_load_outcomes)[outcome] += totals.load_outcomes[outcome];
      (is_remote ? stats.remote_store_outcomes : stats.disk_store_outcomes)[outcome] += totals.store_outcomes[outcome];
    }
    bool& has_failed = is_remote ? stats.remote_has_failed : stats.disk_has_failed;
    const bool is_away =
        is_remote && std::ranges::any_of(remotes, [](const Remote& remote) { return !remote.mover->is_usable(); });
    has_failed = has_failed || lower.has_failed || is_away;
    bool& is_on = is_remote ? stats.remote_is_on : stats.disk_is_on;
    is_on = is_on || (!lower.has_failed && !is_away);
    for (const PageHome* const home : parts.homes) {
      const LowerCopies& copies = home->pages.lower[i];
      const std::uint32_t waiting = copies.is_on() ? copies.waiting.size() * lower.extent_of(*home) : 0;
      (is_remote ? stats.remote_waiting_pages : stats.disk_waiting_pages) += waiting;
    }
  }
  GroupStats history_stats;
  add_lower_stats(history_stats, *history);
  stats.disk_loaded_page_total = history_stats.disk_loaded_page_total;
  stats.disk_stored_page_total = history_stats.disk_stored_page_total;
  stats.remote_loaded_page_total = history_stats.remote_loaded_page_total;
  stats.remote_stored_page_total = history_stats.remote_stored_page_total;
}

void Cache::Impl::add_lower_stats(GroupStats& stats, const TierPages& pages) const {
  for (std::size_t i = 0; i < pages.lower.size(); ++i) {
    const bool is_remote = tiers->parts.lowers[i].settings.tier == Tier::Remote;
    (is_remote ? stats.remote_loaded_page_total : stats.disk_loaded_page_total) += pages.lower[i].loaded_page_total;
    (is_remote ? stats.remote_stored_page_total : stats.disk_stored_page_total) += pages.lower[i].stored_page_total;
  }
}

Result<GroupStats> Cache::group_stats(std::uint32_t group_index) const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  const std::span<const CacheGroup> groups = impl.config.layout.groups();
  if (group_index >= groups.size()) {
    return invalid("group_stats: group_index is ", plain(group_index), "; the layout has ", plain(groups.size()),
                   " groups");
  }
  const GroupRows* const group = impl.find_anchored(group_index);
  if (group == nullptr) {
    GroupStats stats = impl.history->stats();
    impl.add_lower_stats(stats, *impl.history);
    stats.pinned_pages = impl.tree->pinned_pages();
    stats.evictable_pages = impl.tree->evictable_pages();
    stats.sealed_page_total = impl.counters.sealed_page_total;
    stats.duplicate_page_total = impl.counters.duplicate_page_total;
    stats.evicted_page_total = impl.counters.evicted_page_total;
    stats.dropped_page_total = impl.counters.dropped_page_total;
    return stats;
  }
  GroupStats stats = group->tier->pages.stats();
  impl.add_lower_stats(stats, group->tier->pages);
  if (has_slot(*group->group)) {
    stats.slot_count = impl.state_slot_count;
    stats.used_slots = impl.state_slot_count - static_cast<std::uint32_t>(impl.free_state_slots.size());
  }
  stats.evictable_pages = group->pages().idle_count();
  stats.pinned_pages = stats.sealed_pages - stats.evictable_pages;
  return stats;
}

Status Cache::visit_runs(const std::function<void(const RunView&)>& visit) const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  for (std::uint32_t i = 0; i < impl.key_spaces.end(); ++i) {
    if (!impl.key_spaces[i].is_live) continue;
    impl.tree->for_each_run(impl.key_spaces[i].root, [&](RunView view) {
      view.key_space = impl.key_spaces.id(i);
      visit(view);
    });
  }
  return {};
}

Status Cache::visit_group_pages(std::uint32_t group_index, const std::function<void(PageId, PageId)>& visit) const {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  for (const GroupRows& group : impl.groups) {
    if (group.memory.group_index == group_index && group.has_pages()) group.pages().for_each(visit);
  }
  return {};
}

Result<std::span<ResidencyRecord>> Cache::read_residency(std::uint64_t first, std::span<ResidencyRecord> out) const {
  QUIRE_TRY(impl_->enter());
  return impl_->log.read(first, out);
}

const CacheConfig& Cache::config() const {
  return impl_->config;
}
const PoolGeometry& Cache::geometry(std::uint32_t group_index) const {
  const bool has_pages =
      group_index < impl_->group_geometries.size() && impl_->group_geometries[group_index] != nullptr;
  QUIRE_CHECK(has_pages, "geometry() of a group that has no pages, or is not there");
  return *impl_->group_geometries[group_index];
}
std::byte* Cache::device_memory(std::uint32_t group_index) const {
  if (group_index == impl_->history_index) return impl_->history_memory.front().data;
  return group_index < impl_->group_pools.size() ? impl_->group_pools[group_index] : nullptr;
}
const StateSlots& Cache::state_slots() const {
  return *impl_->state_slots;
}
std::byte* Cache::state_memory() const {
  return impl_->state_memory;
}

}  // namespace quire
