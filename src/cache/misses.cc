// SPDX-License-Identifier: Apache-2.0
//
// Cache: why a request has to compute. The reasons come in the order in which they are sure: what the request itself
// ruled out, what is known to be lost, what another key space has; and "never seen" only as long as nothing was
// forgotten.
#include <algorithm>

#include "cache/cache_impl.h"
#include "quire/cache.h"

namespace quire {

Miss Cache::Impl::find_miss(std::uint32_t index, const PrefixTree::Match& match) {
  const SequenceSlot& slot = sequences[index];
  const bool waits = slot.state == SequenceSlot::State::Loading;
  const std::uint32_t found = match.page_count + (waits ? match.host_page_count : 0);
  // Of a page that goes on where the device's end. Behind those to be loaded nobody has looked for one.
  const bool is_partial = !waits && match.partial_tokens > 0 && usable_partial(match) == 0;
  if (found >= sequences.keys().known_rows(slot.token_count) / page_tokens) {
    return {.reason = is_partial ? MissReason::PartialPage : MissReason::None};
  }
  if (slot.load_miss != MissReason::None) return {.reason = slot.load_miss};
  if (slot.disk_miss != MissReason::None) return {.reason = slot.disk_miss};
  const std::uint32_t window_tokens = slot.window_tokens > 0 ? slot.window_tokens : UINT32_MAX;
  const std::uint32_t tokens_max = slot.may_use_cache ? std::min(slot.match_tokens_max, window_tokens) : 0;
  if (found >= tokens_max / page_tokens) return {.reason = MissReason::NotAsked};
  if (!waits && match.host_page_count > 0) return {.reason = MissReason::LoadFailed};
  const PrefixTree::Key key = sequences.key(index, slot.token_count);
  if (lost_pages.is_on()) {
    const PageFingerprint missing = tree->next_fingerprint(tree->fingerprint_before(match), key, found);
    if (const auto loss = lost_pages.find(missing)) {
      if (loss->was_bad) return {.reason = MissReason::LoadFailed};
      return {.reason = MissReason::Evicted, .tier = loss->tier, .age_ns = now - loss->time};
    }
  }
  if (is_partial) return {.reason = MissReason::PartialPage};
  if (found == 0) {
    for (std::uint32_t i = 0; i < key_spaces.capacity(); ++i) {
      if (i == slot.key_space || !key_spaces[i].is_live || key_spaces[i].is_retired) continue;
      if (tree->has_first_page(key_spaces[i].root, key)) return {.reason = MissReason::KeySpaceDiffers};
    }
  }
  const bool knows_all = lost_pages.is_on() && !lost_pages.has_forgotten();
  return {.reason = knows_all ? MissReason::NeverSeen : MissReason::Unknown};
}

}  // namespace quire
