// SPDX-License-Identifier: Apache-2.0
//
// LowerTier: a tier below the host, where pages are found by name. The file store's mover implements it; a store that
// machines share is another implementation. The deciding half submits LowerPlans and hears Completions; it asks for
// nothing else, so that loads, stores and searches know of no particular tier.
//
// Each pool of pages has a place of its own there, with its own capacity: pool 0 is the history, pool i + 1 the
// anchored group i (windows and snapshots). Pages of an anchored group lie under the name of the history's page that
// they hang on.
//
// What a plan points to (tokens, pages) is the caller's and stays as it is until the plan's completion has been polled.
// In between, the pages it names must not get another name, nor its key space another index.
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

struct LowerPlan {
  TransferId id;
  TransferKind kind = TransferKind::FindOnDisk;
  std::uint32_t key_space = 0;  ///< of FindOnDisk and DropOnDisk: index in the log
  std::uint32_t pool = 0;       ///< of LoadFromDisk and StoreToDisk

  // FindOnDisk: so many leading pages are there, says Completion::good_pages. PutOnDisk, GetFromDisk: the same of those
  // that were written or read; they begin at the root.
  NamedPage parent;                      ///< the page before the first one
  std::uint32_t first_page = 0;          ///< its place in the path
  std::span<const TokenId> tokens;       ///< whole pages, from the first one on
  std::span<const ExtraKey> extra_keys;  ///< those that overlap them
  std::uint32_t held_pages = 0;          ///< FindOnDisk: so many of them need not be there, and do not count
  /// FindOnDisk: for each page of `tokens` that is held or found a bit for each anchored group that has it there too.
  /// PutOnDisk, GetFromDisk: a bit where a page of the group was written or read. Empty: nobody asks.
  std::span<std::uint64_t> anchored;

  std::span<const PoolColumns> columns;  ///< of PutOnDisk and GetFromDisk: which pages, the history's first
  std::span<const std::byte> source;     ///< of PutOnDisk: their bytes, in this order
  std::span<std::byte> target;           ///< of GetFromDisk

  /// LoadFromDisk: the index of the FindOnDisk whose path the pages belong to. Its id is still in use.
  std::uint32_t found_by = 0;
  /// StoreToDisk: the tier of the pages that PageTransfer::place names.
  Tier named_in = Tier::Host;
  /// LoadFromDisk, StoreToDisk: host pages. PageTransfer::place says what a page is called: in a load, its place among
  /// the pages of `found_by`; in a store, the id of a page of the history in `named_in`.
  std::span<const PageTransfer> pages;
};

class LowerTier {
 public:
  virtual ~LowerTier() = default;

  /// Follows the log, which others follow too, before any plan that is submitted later.
  virtual void submit(const NameLog& log) = 0;
  virtual void submit(const LowerPlan& plan) = 0;
  /// Ends a search or a load early, if nobody has begun with it. Its completion comes all the same.
  virtual void cancel(TransferId id) = 0;
  [[nodiscard]] virtual std::span<Completion> poll(std::span<Completion> out) = 0;

  /// Whether the tier keeps anything of a pool.
  [[nodiscard]] virtual bool keeps(std::uint32_t pool) const = 0;
  /// Nothing of a pool can be had or written any more.
  [[nodiscard]] virtual bool is_failed(std::uint32_t pool) const = 0;
  [[nodiscard]] virtual std::string last_error() const = 0;
  /// What writing one page of a pool costs of the write budget.
  [[nodiscard]] virtual std::uint64_t written_bytes(std::uint32_t pool) const = 0;
};

}  // namespace quire
