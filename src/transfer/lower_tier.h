// SPDX-License-Identifier: Apache-2.0
//
// LowerTier: a tier below the host, where pages are found by name. DiskMover implements it, for files; tests implement
// it in memory. src/tiers submits LowerPlans, Cache::poll() collects Completions, and neither knows more of a tier than
// this interface.
//
// Each pool of pages has a place of its own there, with its own capacity: pool 0 is the history, pool i + 1 the
// anchored group i (windows and snapshots). Pages of an anchored group lie under the name of the history's page that
// they hang on.
//
// A tier may keep the history in extents, so that it moves few large values: extent_pages() consecutive pages of a
// path, the first at a column that is a multiple of extent_pages(). An extent has the name of its last page, is written
// as a whole, and is found as a whole. Two paths that part inside an extent have an extent each.
//
// A DropBelow that has ended has hidden its key space: nothing of it is found or written from then on, until the tier
// has really dropped it, which may take longer. FlushBelow ends when everything is done that was submitted before it.
// If it fails with a fault, what was written may be gone; without one, it is only drops that have not been done, which
// the tier goes on trying.
//
// Tokens and pages that a plan points to belong to the caller, and stay as they are until the plan's completion has
// been polled. Until then the key space of the plan keeps its index.
//
// An implementation is thread-safe, and no call waits for the tier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "quire/transfer.h"
#include "quire/types.h"
#include "transfer/page_names.h"

namespace quire {

/// Pages of one pool that go with a path: its columns [0, sink_pages) and [first, last).
struct PoolColumns {
  std::uint32_t pool = 0;
  std::uint32_t sink_pages = 0;
  std::uint32_t first = 0;
  std::uint32_t last = 0;
  [[nodiscard]] std::uint32_t count() const { return sink_pages + last - first; }
  [[nodiscard]] std::uint32_t at(std::uint32_t index) const {
    return index < sink_pages ? index : first + index - sink_pages;
  }
};

/// LowerPlan::key_space of a DropBelow that drops everything the tier has, also what this process has never named.
inline constexpr std::uint32_t kAllKeySpaces = UINT32_MAX;

struct LowerPlan {
  TransferId id;
  TransferKind kind = TransferKind::FindBelow;
  std::uint32_t key_space = 0;  ///< of FindBelow and DropBelow: index in the log; or kAllKeySpaces
  std::uint32_t pool = 0;       ///< of LoadFromBelow and StoreBelow

  /// FindBelow, LoadFromBelow, StoreBelow: how long somebody waits for it, from submit() on. What has arrived in order
  /// by then is used, so the tier ends the plan then, with TransferOutcome::TimedOut if it has less than was asked for.
  /// 0: there is no limit.
  TimeNs timeout_ns = 0;

  // FindBelow: Completion::good_pages says how many leading pages the tier has. PutBelow, GetFromBelow: how many were
  // written or read; their pages begin at the root.
  NamedPage parent;              ///< the page in memory before the first one that is asked for
  std::uint32_t first_page = 0;  ///< how many pages of the path lie before `tokens`
  /// FindBelow, of a tier that makes room by use: the last page of each whole extent of the path that ends before
  /// `first_page`, in their order, or none. Nobody asks for a beginning that is in memory, so the tier would give up
  /// just that, and with it the use of all that lies behind.
  std::span<const NamedPage> before;
  std::span<const TokenId> tokens;       ///< whole pages, from the first one on
  std::span<const ExtraKey> extra_keys;  ///< those that overlap them
  std::uint32_t held_pages = 0;          ///< FindBelow: memory has so many of them, and they are not counted
  /// FindBelow: for each page of `tokens` that is held or found a bit for each anchored group that has it there too.
  /// PutBelow, GetFromBelow: a bit where a page of the group was written or read. Empty: nobody asks.
  std::span<std::uint64_t> anchored;

  std::span<const PoolColumns> columns;  ///< of PutBelow and GetFromBelow: which pages, the history's first
  std::span<const std::byte> source;     ///< of PutBelow: their bytes, in this order
  std::span<std::byte> target;           ///< of GetFromBelow

  /// LoadFromBelow: the index of the FindBelow that has found the pages. Its transfer still lives.
  std::uint32_t found_by = 0;
  /// StoreBelow: the tier of the pages that PageTransfer::place names.
  Tier named_in = Tier::Host;
  /// LoadFromBelow, StoreBelow: host pages. PageTransfer::place tells the name of a page: in a load, it is the number
  /// of the page among those of `found_by`; in a store, the id of a page of the history in `named_in`, which has that
  /// name. A store of the history has whole extents, each in the order of its path; a load may have parts of some.
  /// TransferOutcome::Cancelled: some were not written, because their key space is being dropped.
  std::span<const PageTransfer> pages;
};

class LowerTier {
 public:
  virtual ~LowerTier() = default;

  /// Takes entries that say which page in memory has which name. They hold for plans that are submitted later, not for
  /// earlier ones. All lower tiers get the same entries.
  virtual void submit(const NameLog& log) = 0;
  /// Takes a plan. Each plan gets one Completion.
  virtual void submit(const LowerPlan& plan) = 0;
  /// Ends a FindBelow or LoadFromBelow early, if work on it has not begun. Its completion comes all the same.
  virtual void cancel(TransferId id) = 0;
  /// Plans that have ended since the last call, as many as `out` has room for.
  [[nodiscard]] virtual std::span<Completion> poll(std::span<Completion> out) = 0;

  /// Whether the tier keeps anything of a pool.
  [[nodiscard]] virtual bool keeps(std::uint32_t pool) const = 0;
  /// Whether the tier can no longer read or write pages of a pool. If it is pool 0, the tier is not used any more.
  [[nodiscard]] virtual bool is_failed(std::uint32_t pool) const = 0;
  [[nodiscard]] virtual std::string last_error() const = 0;
  /// How many pages of the history an extent has. Pages of other pools are kept one by one.
  [[nodiscard]] virtual std::uint32_t extent_pages() const { return 1; }
  /// Whether the tier gives up first what was not used for longest, and so wants LowerPlan::before.
  [[nodiscard]] virtual bool makes_room_by_use() const { return false; }
  /// How many bytes of the write budget a page of a pool takes.
  [[nodiscard]] virtual std::uint64_t written_bytes(std::uint32_t pool) const = 0;
};

}  // namespace quire
