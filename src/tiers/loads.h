// SPDX-License-Identifier: Apache-2.0
//
// Loads: pages on their way from the host to the device. The device pages that a load fills belong to the transfer
// alone until it has arrived; then they attach to the tree when PageHome::turn_of() says so: pages of the history in
// the order of the path, those of anchored groups at once. A load that nobody waits for any more, or that takes too
// long, is called off: sequences that waited for it run with what there is.
//
// single-threaded
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tiers/paths.h"
#include "tiers/tier_parts.h"

namespace quire {

class Searches;

class Loads {
 public:
  Loads(TierParts& parts, Paths& paths) : parts_(parts), paths_(paths) {}
  void open(Searches* searches) {
    searches_ = searches;
    pages_.resize(parts_.book.pages_max());
    targets_.resize(parts_.book.pages_max());
  }

  /// What is to be loaded: the wanted pages of a pinned path that belong to one home.
  struct Order {
    PageHome& home;
    const PrefixTree::Pin& path;
    PageHome::Wanted wanted;
    std::uint32_t key_space = 0;
    TransferPriority priority = TransferPriority::Waiting;
  };
  /// Starts loads of all wanted pages of a pinned path that are on the host and in no load, as far as there are
  /// transfers and device pages. Returns none when all were started; else the column where the rest begins (of the
  /// history: wanted.from), which the caller starts by another call when transfers have ended.
  std::optional<std::uint32_t> start(const Order& order);
  /// Calls off loads that take too long. Attaches the pages of loads that have arrived, and ends these loads, until the
  /// others have to wait for their turn.
  void finish_arrived();
  /// Calls off loads that no sequence waits for any more. Prefetches go on.
  void cancel_unneeded();
  void call_off(std::uint32_t load, MissReason reason);
  /// Calls off all loads of the tree, because the whole cache is about to be dropped.
  void call_off_all();
  /// Whether a sequence is Loading and waits for this load, or runs ahead on it.
  [[nodiscard]] bool is_awaited_by(std::uint32_t load, std::uint32_t sequence) const;

 private:
  void expire();
  [[nodiscard]] bool start_one(const Order& order, std::uint32_t page_count);
  [[nodiscard]] bool try_finish(std::uint32_t load);
  void take_ahead(std::uint32_t load);
  /// Calls visit(sequence) for each sequence that runs ahead on a load, which it does no longer.
  template <typename Visitor>
  void for_each_ahead(std::uint32_t load, Visitor&& visit) {
    if (!parts_.book[load].is_read_ahead) return;
    for (const std::uint32_t i : parts_.sequences.arriving()) {
      if (!parts_.ahead.has(i, load)) continue;
      visit(i);
      parts_.ahead.remove(i, load);
    }
  }
  void drop_bad_page(std::uint32_t load);
  void drop_run(RunId bad);
  void forget(std::uint32_t load, MissReason reason);
  void end(std::uint32_t load);

  TierParts& parts_;
  Paths& paths_;
  Searches* searches_ = nullptr;     // null: there is no lower tier
  std::vector<PageTransfer> pages_;  // scratch
  std::vector<PageId> targets_;      // scratch
};

}  // namespace quire
