// SPDX-License-Identifier: Apache-2.0
//
// Cache: prefixes that are brought to the host and held there without a sequence of the engine's. While pages arrive
// from lower tiers, the cache has a sequence of its own for them, which nobody admits: it looks for its pages as others
// do, and takes turns, times out and fails as they do. It never loads to the device, and ends when it has looked. What
// remains then is a hold of the tree.
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
  if (!groups.empty()) {
    return unsupported("hold_on_host: layout '", config.layout.name(),
                       "' has window or snapshot groups, whose host pages cannot be held yet; see keep()");
  }
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

// A hold with a sequence that is to look for its pages. It counts all pages of the prompt, until it is known how many
// come.
Result<std::uint32_t> Cache::Impl::add_hold(std::uint32_t space, const Prompt& prompt, const HoldOptions& options) {
  const auto token_count = static_cast<std::uint32_t>(prompt.tokens.size());
  const std::uint32_t page_count = sequences.keys().known_rows(token_count) / page_tokens;
  if (std::uint64_t{hold_pages} + page_count > hold_pages_max()) {
    return unavailable("hold_on_host: ", page_count, " pages more than the ", hold_pages,
                       " held now exceed host.hold_pages_max = ", hold_pages_max());
  }
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
  slot->page_count = page_count;
  slot->expires_at = tiers->parts.time_after(options.ttl_ns.value_or(INT64_MAX));
  slot->carrier = {carrier, sequence.generation};
  next_expiry = std::min(next_expiry, slot->expires_at);
  hold_pages += page_count;
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
  const PrefixTree::Match match = tiers->paths.match_of(carrier);
  hold->miss = tiers->paths.find_miss(carrier, match);
  hold->pages = tree->hold_on_host(match);
  const std::uint32_t found = match.page_count + match.host_page_count;
  hold_pages -= hold->page_count - found;
  hold->page_count = found;
  hold->carrier = {};
  sequences.set_state(carrier, SequenceSlot::State::Waiting);
  end_sequence(carrier);
  hold->is_told = !hold->callback;
  untold_holds += hold->is_told ? 0 : 1;
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
    const PrefixTree::Match match = tiers->paths.match_of(hold.carrier.index);
    held.token_count = (match.page_count + match.host_page_count) * page_tokens;
  } else {
    held.token_count = tree->held_pages(hold.pages) * page_tokens;
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
  QUIRE_CHECK(hold.is_live && hold_pages >= hold.page_count, "a prefix is let go that is not held");
  const std::uint32_t space = hold.key_space;
  const SequenceId carrier = hold.carrier;
  hold_pages -= hold.page_count;
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
