// SPDX-License-Identifier: Apache-2.0
//
// LowerStores: what of the host goes to lower tiers, and when. The write policy of a tier says which pages, its write
// budget how much: pages that were used again have a head start. Pools take turns. Dropping a key space and flush() are
// stores, too: they end when the tier says so.
//
// single-threaded
#pragma once

#include <cstdint>

#include "quire/result.h"
#include "tiers/tier_parts.h"

namespace quire {

class LowerStores {
 public:
  explicit LowerStores(TierParts& parts) : parts_(parts) {}

  /// A host page has just got its bytes from the device; `anchor` is the history's device page that it belongs to.
  void want(PageHome& home, PageId host_page, PageId anchor);
  /// Pages of a path that somebody uses again: they are written first and, with WritePolicy::Selective, at all.
  void prefer(const PrefixTree::Pin& path);
  /// Whether one more page of a pool may be copied to the host now: while flush() wants everything below, no page
  /// that has still to be written makes room for others.
  [[nodiscard]] bool may_copy(const PageHome& home) const;

  /// Starts stores as far as there are transfers, and the budgets allow. True: some are of anchored groups, whose pages
  /// are called by pages of the tree that may go from here on. They are to be handed over at once.
  [[nodiscard]] bool start();
  void finish(std::uint32_t transfer);
  void refill_budgets(TimeNs elapsed_ns);

  // Names.

  /// Pages of a sequence have just come into the tree: their names are computed elsewhere, from their tokens and the
  /// name of the page before them.
  void log_names(std::uint32_t sequence, std::uint32_t first_page, std::uint32_t end_page);
  /// The same of pages that a search has brought to the host, which its own tier knows: the others do not.
  void log_arrived(const Search& search, const PrefixTree::Key& key, const NamedPage& parent, std::uint32_t first_page,
                   std::span<const PageId> host_pages);
  /// What is left of a key space that was dropped belongs to its sequences. It must not go below any more: by its name,
  /// whoever makes the key space anew would find it there.
  void forget_names(std::uint32_t key_space);

  // Drops and flush().

  /// Everything of a key space goes from the lower tiers, too. The key space is in use until that is done, so that its
  /// index means nothing else meanwhile.
  void drop(std::uint32_t key_space);
  void start_drops();
  void finish_drop(std::uint32_t transfer);
  [[nodiscard]] bool has_unstarted_drop() const { return has_unstarted_drop_; }
  /// A copy that flush() waits for did not reach the host.
  void note_lost_copy() { has_lost_copies_ = true; }
  /// Begins a flush. False: one is under way.
  [[nodiscard]] bool begin_flush();
  /// True: everything that was asked for is below. False: call again.
  [[nodiscard]] Result<bool> try_flush();
  void finish_flush(std::uint32_t transfer);

 private:
  [[nodiscard]] bool must_write(const Lower& lower, const PageHome& home, const LowerCopies& copies) const;
  [[nodiscard]] bool keeps(const Lower& lower, const PageHome& home, PageId host_page) const;
  [[nodiscard]] bool start_one(std::uint16_t lower_index, PageHome& home);
  void fill(std::uint32_t transfer, Lower& lower, PageHome& home);
  void prefer_page(std::uint16_t lower_index, PageHome& home, PageId host_page);
  [[nodiscard]] bool has_unstarted_writes() const;
  template <typename Visitor>
  void for_each_host_page(std::uint16_t lower_index, Visitor&& visit);
  /// What was written to a tier may be gone: a sync has failed, or a whole segment.
  void lose_all_of(std::uint16_t lower_index);

  TierParts& parts_;
  std::uint32_t next_pool_ = 0;  // whose turn it is
  bool has_unstarted_drop_ = false;
  // flush(), while it is wanted.
  std::uint32_t flushes_in_flight_ = 0;
  bool is_flushed_ = false;       // all tiers have answered
  bool has_lost_copies_ = false;  // to the host, since flush() was called first
  bool flushes_again_ = false;    // something was dropped meanwhile
};

}  // namespace quire
