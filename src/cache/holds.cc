// SPDX-License-Identifier: Apache-2.0
//
// Cache: prefixes that are brought to the host and held there without a sequence of the engine's. While pages arrive
// from lower tiers, the cache has a sequence of its own for them, which nobody admits: it looks for its pages as others
// do, and takes turns, times out and fails as they do. It never loads to the device, and ends when it has looked. What
// remains then is a hold of the tree and, where there are windows or snapshots, of what goes on at its end.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Result<HeldPrefix> Cache::hold_on_host(KeySpaceId key_space, const Prompt& prompt, const HoldOptions& options,
                                       std::function<void(const HeldPrefix&)> callback) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.check_hold(options));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(prompt));
  QUIRE_TRY(impl.match(space, prompt, {}));  // looks at the tokens
  QUIRE_TRY_ASSIGN(const std::uint32_t index, impl.add_hold(space, prompt, options));
  Impl::HoldSlot& hold = impl.holds[index];
  const HoldId id{index, hold.generation};
  hold.callback = std::move(callback);
  const Result<std::optional<WaitingAdmission>> waiting = impl.tiers->arrivals.start(hold.carrier.index);
  QUIRE_CHECK(waiting.has_value(), "a sequence that loads nothing to the device is short of device pages");
  if (!*waiting) impl.settle_hold(hold.carrier.index);
  impl.tiers->work_in_background();
  impl.call_holders();
  // A callback may have let it go.
  const HeldPrefix held = impl.find_hold(id) ? impl.held_prefix(index) : HeldPrefix{.id = id};
  return held;
}

Status Cache::Impl::check_hold(const HoldOptions& options) const {
  QUIRE_TRY(require(DevicePool::Owned, "hold_on_host"));
  if (!has_host()) return unsupported("hold_on_host: the cache has no host tier; set host.page_count");
  QUIRE_TRY(require_awake("hold_on_host"));
  QUIRE_TRY(check_ttl(options.ttl_ns));
  if (options.timeout_ns && *options.timeout_ns < 0) {
    return invalid("timeout_ns is ", plain(*options.timeout_ns), ": give a time from 0 on, or none for no limit");
  }
  if (options.tier_max < Tier::Host || options.tier_max > Tier::Remote) {
    return invalid("tier_max is ", plain(static_cast<int>(options.tier_max)), ": use Host, Disk or Remote");
  }
  return {};
}

// How many pages of an anchored group a prefix of so many pages is expected to need where requests go on behind it.
std::uint32_t Cache::Impl::hold_pages_of(std::size_t group_place, std::uint32_t path_pages) const {
  const Hit hit{.tokens = path_pages * page_tokens};
  return tiers->host_holds.pages_needed(group_place, hit);
}

Status Cache::Impl::check_hold_pages(std::span<const std::uint32_t> group_page_counts) const {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (group_page_counts[i] == 0) continue;
    const std::uint32_t pages_max = hold_pages_max(groups[i]);
    if (std::uint64_t{groups[i].hold_pages} + group_page_counts[i] <= pages_max) continue;
    return unavailable("hold_on_host: ", group_page_counts[i], " pages of group '", groups[i].group->name,
                       "' more than the ", groups[i].hold_pages, " held now exceed ", pages_max,
                       ", its share of host.hold_pages_max = ", hold_pages_max());
  }
  return {};
}

// What a hold counts from now on, instead of what it has counted so far.
void Cache::Impl::count_held(HoldSlot& hold, std::uint32_t page_count,
                             std::span<const std::uint32_t> group_page_counts) {
  QUIRE_CHECK(hold_pages >= hold.page_count, "fewer pages are held than one hold has");
  hold_pages = hold_pages - hold.page_count + page_count;
  hold.page_count = page_count;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::uint32_t before = hold.group_page_counts.empty() ? 0 : hold.group_page_counts[i];
    const std::uint32_t now = group_page_counts.empty() ? 0 : group_page_counts[i];
    QUIRE_CHECK(groups[i].hold_pages >= before, "fewer pages of a group are held than one hold has");
    groups[i].hold_pages = groups[i].hold_pages - before + now;
  }
  hold.group_page_counts.assign(group_page_counts.begin(), group_page_counts.end());
}

// A hold with a sequence that is to look for its pages. It counts all pages of the prompt, until it is known how many
// come.
Result<std::uint32_t> Cache::Impl::add_hold(std::uint32_t space, const Prompt& prompt, const HoldOptions& options) {
  const auto token_count = static_cast<std::uint32_t>(prompt.tokens.size());
  const std::uint32_t page_count = sequences.keys().known_rows(token_count) / page_tokens;
  if (std::uint64_t{hold_pages} + page_count > hold_pages_max()) {
    return unavailable("hold_on_host: ", page_count, " pages more than the ", hold_pages,
                       " held now exceed host.hold_pages_max = ", hold_pages_max());
  }
  std::vector<std::uint32_t> group_page_counts(groups.size());
  for (std::size_t i = 0; i < groups.size(); ++i) group_page_counts[i] = hold_pages_of(i, page_count);
  QUIRE_TRY(check_hold_pages(group_page_counts));
  const auto slot = std::ranges::find_if(holds, [](const HoldSlot& each) { return !each.is_live; });
  if (slot == holds.end()) {
    return unavailable("hold_on_host: all ", holds.size(),
                       " holds are in use; release_hold() one, or raise host.hold_count_max");
  }
  QUIRE_TRY_ASSIGN(const std::uint32_t carrier, add_sequence(space));
  sequences.set_state(carrier, SequenceSlot::State::Waiting);
  SequenceSlot& sequence = sequences[carrier];
  sequence.token_count = token_count;
  sequence.prompt_tokens = token_count;
  sequence.options = {.match_tokens_max = UINT32_MAX, .ttl_ns = INT64_MAX};
  sequence.admit_options = {.prefetch = options.timeout_ns ? Prefetch::Timeout : Prefetch::Wait,
                            .tier_max = options.tier_max,
                            .load_timeout_ns = options.timeout_ns.value_or(0),
                            .is_for_host = true};
  sequence.extra_key_count = static_cast<std::uint32_t>(prompt.extra_keys.size());
  std::ranges::copy(prompt.tokens, sequences.token_row(carrier).begin());
  std::ranges::copy(prompt.extra_keys, sequences.extra_key_row(carrier).begin());
  slot->is_live = true;
  slot->key_space = space;
  count_held(*slot, page_count, group_page_counts);
  slot->expires_at = tiers->parts.time_after(options.ttl_ns.value_or(INT64_MAX));
  slot->carrier = {carrier, sequence.generation};
  next_expiry = std::min(next_expiry, slot->expires_at);
  tiers->parts.use_key_space(space);
  key_spaces.touch(space);
  return static_cast<std::uint32_t>(slot - holds.begin());
}

// The sequence of a hold has looked everywhere: what memory has now is held, and the sequence ends.
void Cache::Impl::settle_hold(std::uint32_t carrier) {
  const SequenceId id{carrier, sequences[carrier].generation};
  const auto hold = std::ranges::find(holds, id, &HoldSlot::carrier);
  QUIRE_CHECK(hold != holds.end() && hold->is_live, "a sequence that looks for the host belongs to no hold");
  sequences.set_state(carrier, SequenceSlot::State::Loading);  // to find_miss(), pages on the host are found
  PrefixTree::Match match = tiers->paths.match_of(carrier);
  hold->miss = tiers->paths.find_miss(carrier, match);
  if (groups.empty()) {
    count_held(*hold, match.page_count + match.host_page_count, {});
    hold->pages = tree->hold_on_host(match);
  } else {
    settle_anchored(*hold, carrier, match);
  }
  hold->carrier = {};
  sequences.set_state(carrier, SequenceSlot::State::Waiting);
  end_sequence(carrier);
  hold->is_told = !hold->callback;
  untold_holds += hold->is_told ? 0 : 1;
}

// The same with windows and snapshots: the history is held up to where a request can go on, with what it needs there.
void Cache::Impl::settle_anchored(HoldSlot& hold, std::uint32_t carrier, PrefixTree::Match& match) {
  const Arrival& arrival = tiers->parts.arrivals[carrier];
  const std::uint32_t found_tokens = (match.page_count + match.host_page_count) * page_tokens;
  const auto not_held = [this](std::uint32_t group) {
    return Miss{.reason = MissReason::NotHeld, .group = groups[group].memory.group_index};
  };
  Hit hit = tiers->paths.hit_of(sequences[carrier], match, HitScope::DeviceAndHost);
  const bool has_waited_in_vain = arrival.load_miss != MissReason::None || arrival.lower_miss != MissReason::None;
  if (has_waited_in_vain && (hit.tokens < found_tokens || hold.miss.reason != MissReason::None)) {
    hold.miss = {.reason = arrival.load_miss != MissReason::None ? arrival.load_miss : arrival.lower_miss};
  } else if (hit.tokens < found_tokens && hit.limiting_group != Hit::kNoGroup) {
    hold.miss = not_held(hit.limiting_group);
  } else if (hold.miss.reason != MissReason::None && arrival.limiting_group != Hit::kNoGroup) {
    hold.miss = not_held(arrival.limiting_group);  // a lower tier has more, which was not read for want of this
  }
  // A hit that is to be replayed may need more pages than were expected.
  std::vector<std::uint32_t> group_page_counts(groups.size());
  const std::uint32_t expected_pages = hold.page_count;
  count_held(hold, 0, {});
  for (std::size_t i = 0; i < groups.size(); ++i) group_page_counts[i] = tiers->host_holds.pages_needed(i, hit);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].hold_pages + group_page_counts[i] <= hold_pages_max(groups[i])) continue;
    hold.miss = not_held(static_cast<std::uint32_t>(i));
    hit = {};
    std::ranges::fill(group_page_counts, 0);
  }
  match = tiers->paths.cut(match, hit);
  const std::uint32_t page_count = match.page_count + match.host_page_count;
  QUIRE_CHECK(page_count <= expected_pages, "more of a prefix is held than it has");
  count_held(hold, page_count, group_page_counts);
  hold.pages = tree->hold_on_host(match);
  tiers->host_holds.take(hold.pages, hit, hold.anchored);
}

void Cache::Impl::update_holds() {
  release_lost_holds();
  if (hold_pages == 0) return;
  for (HoldSlot& hold : holds) {
    if (hold.is_live && !hold.is_arriving() && hold.page_count > 0) tiers->host_holds.update(hold.pages, hold.anchored);
  }
}

// Where the history of a hold has left memory, nobody can go on from the rest, and nothing of it counts any more.
void Cache::Impl::release_lost_holds() {
  if (hold_pages == 0) return;
  for (HoldSlot& hold : holds) {
    if (!hold.is_live || hold.is_arriving() || hold.page_count == 0 || tree->held_pages(hold.pages) > 0) continue;
    tiers->host_holds.release(hold.anchored);
    count_held(hold, 0, {});
  }
}

// Calls back for holds that have settled.
void Cache::Impl::call_holders() {
  for (std::uint32_t i = 0; i < holds.size() && untold_holds > 0; ++i) {
    HoldSlot& hold = holds[i];
    if (hold.is_told) continue;
    hold.is_told = true;
    --untold_holds;
    const auto callback = std::exchange(hold.callback, nullptr);  // it may let the hold go
    callback(held_prefix(i));
  }
}

std::optional<std::uint32_t> Cache::Impl::find_hold(HoldId hold) const {
  const bool is_live =
      hold.index < holds.size() && holds[hold.index].is_live && holds[hold.index].generation == hold.generation;
  return is_live ? std::optional(hold.index) : std::nullopt;
}

HeldPrefix Cache::Impl::held_prefix(std::uint32_t index) const {
  const HoldSlot& hold = holds[index];
  HeldPrefix held{.id = {index, hold.generation}, .is_arriving = hold.is_arriving(), .miss = hold.miss};
  if (held.is_arriving) {
    const std::uint32_t carrier = hold.carrier.index;
    const PrefixTree::Match match = tiers->paths.match_of(carrier);
    held.token_count = tiers->paths.hit_of(sequences[carrier], match, HitScope::DeviceAndHost).tokens;
  } else {
    held.token_count = tiers->host_holds.hit_of(hold.pages).tokens;
  }
  return held;
}

Result<HeldPrefix> Cache::held_prefix(HoldId hold) const {
  QUIRE_TRY(impl_->enter());
  const std::optional<std::uint32_t> index = impl_->find_hold(hold);
  if (!index) return invalid("this prefix is not held, or no longer");
  return impl_->held_prefix(*index);
}

Status Cache::release_hold(HoldId hold) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  const std::optional<std::uint32_t> index = impl.find_hold(hold);
  if (!index) return invalid("this prefix is not held, or no longer");
  impl.end_hold(*index);
  impl.tiers->work_in_background();
  return {};
}

void Cache::Impl::end_hold(std::uint32_t index) {
  HoldSlot& hold = holds[index];
  QUIRE_CHECK(hold.is_live, "a prefix is let go that is not held");
  const std::uint32_t space = hold.key_space;
  const SequenceId carrier = hold.carrier;
  count_held(hold, 0, {});
  tiers->host_holds.release(hold.anchored);
  untold_holds -= hold.is_told ? 0 : 1;
  hold = {.generation = hold.generation + 1};
  if (sequences.find(carrier)) end_sequence(carrier.index);
  tiers->parts.leave_key_space(space);
}

void Cache::Impl::end_holds(std::optional<std::uint32_t> key_space) {
  for (std::uint32_t i = 0; i < holds.size(); ++i) {
    if (holds[i].is_live && holds[i].key_space == key_space.value_or(holds[i].key_space)) end_hold(i);
  }
}

std::uint32_t Cache::Impl::arriving_hold_count() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(holds, &HoldSlot::is_arriving));
}

}  // namespace quire
