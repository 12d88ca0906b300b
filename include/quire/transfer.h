// SPDX-License-Identifier: Apache-2.0
//
// What goes between the half of quire that decides and the half that moves bytes. A Cache names pages to be copied in
// TransferPlans; a Mover, or an engine's own code, copies them and reports Completions; Cache::apply() draws the
// conclusions. All of it is plain data: encode() makes a plan bytes that another process can decode().
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "quire/result.h"
#include "quire/types.h"

namespace quire {

/// Names a transfer. The generation makes the id of one that is over recognisable.
struct TransferId {
  std::uint32_t index = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t generation = 0;
  friend constexpr auto operator<=>(TransferId, TransferId) = default;
};

enum class TransferKind : std::uint8_t {
  Load,   ///< host to device
  Store,  ///< device to host
  // Of the tiers below the host, disk and remote, which no Mover sees.
  FindBelow,
  LoadFromBelow,  ///< to the host
  StoreBelow,     ///< from the host
  PutBelow,       ///< from memory of the caller's
  GetFromBelow,
  DropBelow,
  FlushBelow,
};
inline constexpr std::size_t kTransferKindCount = 9;

/// No Mover sees it: it is of a tier below the host.
[[nodiscard]] constexpr bool is_of_lower_tier(TransferKind kind) {
  return kind != TransferKind::Load && kind != TransferKind::Store;
}

/// Within a direction, those that somebody waits for go first.
enum class TransferPriority : std::uint8_t { Waiting, Background };

/// One page's way. What the host page must hold, or will, is told by generation and tag: a load of anything else fails.
struct PageTransfer {
  PageId device_page = {};
  PageId host_page = {};
  std::uint32_t host_generation = 0;  ///< grows each time the host page is handed out
  std::uint32_t place = 0;            ///< the planner's own
  std::uint64_t name_tag = 0;         ///< a hash of the page's tokens and all before them
  friend constexpr bool operator==(const PageTransfer&, const PageTransfer&) = default;
};

struct TransferPlan {
  TransferId id = {};
  TransferKind kind = TransferKind::Load;
  TransferPriority priority = TransferPriority::Waiting;
  /// A load of k > 1 bands moves the first layers of all its pages before the next ones, so that an engine may begin.
  std::uint16_t band_count = 1;
  /// Which of the mover's pools its pages belong to. Of a cache's plans: 0, full and compressed groups, whose pages
  /// have the same ids; then one for each window and snapshot group that has pages, in the layout's order.
  std::uint16_t pool_index = 0;
  std::span<const PageTransfer> pages = {};  ///< of a load in the order of the path
};

/// How a transfer, or one band of it, ended.
enum class TransferOutcome : std::uint8_t {
  Ok,
  Failed,
  TimedOut,
  Cancelled,
  Empty,  ///< there was nothing to move
};
inline constexpr std::size_t kTransferOutcomeCount = 5;

[[nodiscard]] constexpr std::string_view to_string(TransferOutcome outcome) {
  switch (outcome) {
    case TransferOutcome::Ok:
      return "ok";
    case TransferOutcome::Failed:
      return "failed";
    case TransferOutcome::TimedOut:
      return "timed out";
    case TransferOutcome::Cancelled:
      return "cancelled";
    case TransferOutcome::Empty:
      return "empty";
  }
  return "unknown";
}

/// Why a transfer failed.
enum class TransferFault : std::uint8_t {
  None,
  Checksum,    ///< the bytes are not those that were stored
  Generation,  ///< the host page was handed out again since
  NameTag,     ///< the host page holds another page
  Io,          ///< the copy itself
};
inline constexpr std::size_t kTransferFaultCount = 5;

[[nodiscard]] constexpr std::string_view to_string(TransferFault fault) {
  switch (fault) {
    case TransferFault::None:
      return "none";
    case TransferFault::Checksum:
      return "checksum";
    case TransferFault::Generation:
      return "generation";
    case TransferFault::NameTag:
      return "name tag";
    case TransferFault::Io:
      return "io";
  }
  return "unknown";
}

/// A mover's report: from here on it neither reads nor writes the transfer's pages.
struct Completion {
  TransferId id = {};
  TransferKind kind = TransferKind::Load;         ///< for those who watch; the cache knows its transfers
  Tier tier = Tier::Host;                         ///< for them too: the lowest tier that took part
  TransferOutcome outcome = TransferOutcome::Ok;  ///< TimedOut: of lower tiers only, which know how long they have
  TransferFault fault = TransferFault::None;
  std::uint16_t rank = 0;        ///< of tensor-parallel ranks; a transfer is over when all have reported
  std::uint32_t good_pages = 0;  ///< so many leading pages arrived and are right; all of them when Ok
  std::uint64_t moved_bytes = 0;
  TimeNs busy_ns = 0;  ///< how long the copy itself took; 0: unknown
};

/// How many bytes encode() writes for a plan of so many pages.
[[nodiscard]] std::size_t encoded_bytes(std::size_t page_count);
/// Writes a plan as bytes, which mean the same at any address and in any process of the same build. Gives those used,
/// or an error when `out` is too small.
[[nodiscard]] Result<std::span<std::byte>> encode(const TransferPlan& plan, std::span<std::byte> out);
/// Reads what encode() wrote. The plan's pages lie in `bytes`, which must be aligned to 8.
[[nodiscard]] Result<TransferPlan> decode(std::span<const std::byte> bytes);

}  // namespace quire
