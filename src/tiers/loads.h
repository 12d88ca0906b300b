// SPDX-License-Identifier: Apache-2.0
//
// Loads: pages on their way from the host to the device. The pages that a load fills belong to the transfer alone until
// it has arrived; then they attach to the tree, in the order of the path where the home asks for that. A load that
// nobody waits for any more, or that takes too long, is called off: whoever waited goes on with what there is.
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

  struct Order {
    PageHome& home;
    const PrefixTree::Pin& path;
    PageHome::Wanted wanted;
    std::uint32_t key_space = 0;
    TransferPriority priority = TransferPriority::Waiting;
  };
  /// Starts loads of all wanted pages of a pinned path that are on the host and in no load, as far as there are
  /// transfers and device pages. The column where the rest begins, which is started when others are over, or none.
  std::optional<std::uint32_t> start(const Order& order);
  /// Loads that have arrived, in any order, until none can go on.
  void finish_arrived();
  /// Loads that take too long.
  void expire();
  /// Loads that were started for sequences which wait no longer.
  void cancel_unneeded();
  void call_off(std::uint32_t load, MissReason reason);
  /// Everything that is cached is about to go.
  void call_off_all();
  /// Whether a loading sequence waits for some load.
  [[nodiscard]] bool is_awaited_by(std::uint32_t load, std::uint32_t sequence) const;

 private:
  [[nodiscard]] bool start_one(const Order& order, std::uint32_t page_count);
  [[nodiscard]] bool try_finish(std::uint32_t load);
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
