// SPDX-License-Identifier: Apache-2.0
//
// Arrivals: why a request has to compute. The most certain reason comes first: what the request itself
// ruled out, what is known to be lost, what another key space has; and "never seen" only as long as nothing was
// forgotten.
#include <algorithm>

#include "tiers/arrivals.h"

namespace quire {

Miss Arrivals::find_miss(std::uint32_t sequence, const PrefixTree::Match& match) {
  const SequenceSlot& slot = parts_.sequences[sequence];
  const Arrival& arrival = parts_.arrivals[sequence];
  const std::uint32_t page_tokens = parts_.page_tokens;
  const bool waits = slot.state == SequenceSlot::State::Loading;
  const std::uint32_t found = match.page_count + (waits ? match.host_page_count : 0);
  // A partial match directly behind the device pages. While host pages are loading, no partial match is known.
  const bool is_partial = !waits && match.partial_tokens > 0 && paths_.usable_partial(match) == 0;
  if (found >= parts_.sequences.keys().known_rows(slot.token_count) / page_tokens) {
    return {.reason = is_partial ? MissReason::PartialPage : MissReason::None};
  }
  if (arrival.load_miss != MissReason::None) return {.reason = arrival.load_miss};
  if (arrival.lower_miss != MissReason::None) return {.reason = arrival.lower_miss};
  const std::uint32_t window_tokens = slot.window_tokens > 0 ? slot.window_tokens : UINT32_MAX;
  const std::uint32_t tokens_max = slot.may_use_cache ? std::min(slot.match_tokens_max, window_tokens) : 0;
  if (found >= tokens_max / page_tokens) return {.reason = MissReason::NotAsked};
  if (!waits && match.host_page_count > 0) return {.reason = MissReason::LoadFailed};
  const PrefixTree::Key key = parts_.sequences.key(sequence, slot.token_count);
  if (parts_.lost_pages.is_on()) {
    const PageFingerprint missing = parts_.tree.next_fingerprint(parts_.tree.fingerprint_before(match), key, found);
    if (const auto loss = parts_.lost_pages.find(missing)) {
      if (loss->was_bad) return {.reason = MissReason::LoadFailed};
      return {.reason = MissReason::Evicted, .tier = loss->tier, .age_ns = parts_.now - loss->time};
    }
  }
  if (is_partial) return {.reason = MissReason::PartialPage};
  if (found == 0) {
    for (std::uint32_t i = 0; i < parts_.key_spaces.end(); ++i) {
      const KeySpaceTable::Entry& space = parts_.key_spaces[i];
      if (i == slot.key_space || !space.is_live || space.is_retired) continue;
      if (parts_.tree.has_first_page(space.root, key)) return {.reason = MissReason::KeySpaceDiffers};
    }
  }
  const bool knows_all = parts_.lost_pages.is_on() && !parts_.lost_pages.has_forgotten();
  return {.reason = knows_all ? MissReason::NeverSeen : MissReason::Unknown};
}

}  // namespace quire
