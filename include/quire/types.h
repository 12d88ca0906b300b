// SPDX-License-Identifier: Apache-2.0
//
// The ids and small values every part of quire speaks in. An id is a type of its own, so that a page cannot be
// passed where a run is wanted; `value` is the plain number for kernels, files and printing.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>

namespace quire {

/// A token of the model's vocabulary, never negative. Anything that identifies content may stand in for one.
using TokenId = std::int32_t;

/// Time as the caller measures it, in nanoseconds since an origin of its choice. Quire never reads a clock; until it is
/// told otherwise, it is 0.
using TimeNs = std::int64_t;

namespace detail {
/// 32-bit index with a type; the highest value means "none".
template <typename Tag>
struct Id {
  static constexpr std::uint32_t kNoneValue = std::numeric_limits<std::uint32_t>::max();

  std::uint32_t value = kNoneValue;

  [[nodiscard]] static constexpr Id none() { return Id{}; }
  [[nodiscard]] constexpr bool is_none() const { return value == kNoneValue; }
  friend constexpr auto operator<=>(Id, Id) = default;
};
}  // namespace detail

/// A page of one pool: the KV of page_tokens consecutive tokens, all layers of one group.
using PageId = detail::Id<struct PageTag>;
/// A run of the prefix tree: consecutive tokens with the pages that hold them.
using RunId = detail::Id<struct RunTag>;

/// An interned KeySpace. The generation makes an id of a dropped key space recognisable.
struct KeySpaceId {
  std::uint32_t index = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t generation = 0;
  friend constexpr auto operator<=>(KeySpaceId, KeySpaceId) = default;
};

/// Names a sequence in records and plans; the Sequence handle is what keeps it alive.
struct SequenceId {
  std::uint32_t index = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t generation = 0;
  friend constexpr auto operator<=>(SequenceId, SequenceId) = default;
};

/// A kind of place where pages live.
enum class Tier : std::uint8_t { Device, Host, Disk, Remote };

[[nodiscard]] constexpr std::string_view to_string(Tier tier) {
  switch (tier) {
    case Tier::Device:
      return "device";
    case Tier::Host:
      return "host";
    case Tier::Disk:
      return "disk";
    case Tier::Remote:
      return "remote";
  }
  return "unknown";
}

/// Which of a sequence's pages other sequences may find.
enum class Publish : std::uint8_t { All, Prompt, None };

/// When pages on the host are brought to the device for a sequence, and whether it waits for them.
enum class Prefetch : std::uint8_t {
  Off,         ///< from admit() on; the sequence can be planned once they have arrived
  BestEffort,  ///< from begin() on; admit() takes what has arrived by then
  Wait,        ///< from begin() on; the sequence can be planned once they have arrived
  Timeout,     ///< the same, but not for longer than load_timeout_ns
};

/// Why a request has to compute tokens.
enum class MissReason : std::uint8_t {
  None,              ///< all whole pages of the prompt were found
  NeverSeen,         ///< nobody has computed them
  Evicted,           ///< they were cached once
  LoadFailed,        ///< they are, or were, on the host or below and did not arrive, or a tier did not answer
  LoadTimedOut,      ///< the same, not in time
  LoadCancelled,     ///< the same, and somebody called it off
  RecomputeCheaper,  ///< they are on the host; computing them takes less time
  KeySpaceDiffers,   ///< another key space has them
  PartialPage,       ///< a page that begins with them is cached, too little of it to be worth a copy
  NotAsked,          ///< the sequence's options exclude them
  NotHeld,           ///< they are cached, but a group lacks what it needs to go on there: Miss::group
  Unknown,           ///< lost longer ago than is remembered, or never seen
};
inline constexpr std::size_t kMissReasonCount = 12;

[[nodiscard]] constexpr std::string_view to_string(MissReason reason) {
  constexpr std::array<std::string_view, kMissReasonCount> kNames = {
      "none",           "never seen",     "evicted",           "load failed",
      "load timed out", "load cancelled", "recompute cheaper", "key space differs",
      "partial page",   "not asked",      "not held",          "unknown"};
  return kNames[static_cast<std::size_t>(reason)];
}

/// What became of the first whole page of a prompt that was not found.
struct Miss {
  MissReason reason = MissReason::None;
  Tier tier = Tier::Device;  ///< of MissReason::Evicted: the last that held it
  TimeNs age_ns = 0;         ///< of MissReason::Evicted: how long ago it was lost
  std::uint32_t group = 0;   ///< of MissReason::NotHeld: in ModelLayout::groups()
};

/// What a token range depends on besides its tokens, such as the hash of an image whose placeholder tokens stand at
/// [begin, end). It belongs to every page it overlaps: one with end <= the page's first position is outside.
struct ExtraKey {
  std::uint32_t begin = 0;              ///< position of its first token in the prompt
  std::uint32_t end = 0;                ///< one past its last token
  std::array<std::uint8_t, 32> item{};  ///< the item's content hash, compared exactly; pad shorter ones with zeros
  friend constexpr bool operator==(const ExtraKey&, const ExtraKey&) = default;
};

}  // namespace quire

template <typename Tag>
struct std::hash<quire::detail::Id<Tag>> {
  std::size_t operator()(quire::detail::Id<Tag> id) const noexcept { return std::hash<std::uint32_t>{}(id.value); }
};
