// SPDX-License-Identifier: Apache-2.0
//
// Read-only views for tools, tests and dashboards: what runs the tree holds, and what changed where. Everything here
// is plain data that stays valid after the call, except the spans of RunView, which live as long as the visit.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "quire/types.h"

namespace quire {

/// Why pages came to or left a tier.
enum class ResidencyCause : std::uint8_t {
  Sealed,   ///< a sequence filled them
  Offered,  ///< an engine with its own pool offered them
  Loaded,   ///< from a lower tier
  Stored,   ///< a copy of what a higher tier holds
  Evicted,  ///< the policy gave them up for others
  Failed,   ///< their bytes were found to be wrong
  Dropped,  ///< drop(key_space)
  Reset,    ///< reset()
};

[[nodiscard]] constexpr std::string_view to_string(ResidencyCause cause) {
  switch (cause) {
    case ResidencyCause::Sealed:
      return "sealed";
    case ResidencyCause::Offered:
      return "offered";
    case ResidencyCause::Loaded:
      return "loaded";
    case ResidencyCause::Stored:
      return "stored";
    case ResidencyCause::Evicted:
      return "evicted";
    case ResidencyCause::Failed:
      return "failed";
    case ResidencyCause::Dropped:
      return "dropped";
    case ResidencyCause::Reset:
      return "reset";
  }
  return "unknown";
}

/// One change: `page_count` pages of a path, from its page `first_page` on, came to or left `tier`.
struct ResidencyRecord {
  std::uint64_t number = 0;      ///< counts from 0 without gaps; a reader that sees a gap was too slow
  RunId run;                     ///< the run that held them at that moment; none for the host's copy of a device page
  std::uint32_t first_page = 0;  ///< position in the path from the root, in pages
  std::uint32_t page_count = 0;
  std::uint16_t group = 0;
  Tier tier = Tier::Device;  ///< or Tier::Host: what lower tiers have is known by name only
  ResidencyCause cause = ResidencyCause::Sealed;
};

/// A run as the visitor sees it. Parents come before their children.
struct RunView {
  RunId run;
  RunId parent;  ///< none for the root of a key space
  KeySpaceId key_space;
  Tier tier = Tier::Device;         ///< where its pages are
  std::uint32_t depth = 0;          ///< runs above it
  std::uint32_t first_page = 0;     ///< position in the path from the root, in pages
  std::uint32_t pin_count = 0;      ///< pins that end here, plus one for each child that is pinned
  std::uint32_t own_pin_count = 0;  ///< pins that end here
  std::uint32_t soft_pin_count = 0;
  std::uint32_t child_count = 0;
  std::span<const TokenId> tokens;
  std::span<const PageId> pages;
};

}  // namespace quire
