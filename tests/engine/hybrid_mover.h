// SPDX-License-Identifier: Apache-2.0
//
// HybridMover: moves pages between the pools of several groups and a host of its own, for a cache with an external
// mover. Bytes move when a transfer ends, which may be long after it was taken: what is used too early by others comes
// to hold wrong bytes. What a load is to fill is garbage until then, but for the bands that somebody waits for. A
// transfer that fails leaves garbage where the rest should be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/cache.h"
#include "schedule_counts.h"
#include "testing/seeded_run.h"

namespace quire::testing {

/// In percent, of each transfer.
struct HybridTransferChances {
  std::uint32_t delay = 0;  ///< it does not end this time
  std::uint32_t fault = 0;
};

class HybridMover {
 public:
  HybridMover(Cache& cache, std::uint64_t seed, ScheduleCounts& counts);

  /// Takes what is to be moved: from then on it is on its way.
  [[nodiscard]] std::string take();
  /// Takes what is to be moved, ends some of it, and has the cache apply that. Empty, or what is wrong.
  [[nodiscard]] std::string move(const HybridTransferChances& chances);
  /// Brings the layers up to this one, of all good pages of a load; nothing of a load that has ended.
  [[nodiscard]] std::string bring(TransferId id, GroupLayer layer, const HybridTransferChances& chances);
  /// Ends the transfers with these ids that have not ended, and has the cache apply that.
  [[nodiscard]] std::string end(std::span<const StepLoad> loads, const HybridTransferChances& chances);

 private:
  struct HostPage {
    std::uint32_t generation = 0;
    std::uint64_t name_tag = 0;
    std::vector<std::byte> bytes;
  };
  struct Moving {
    TransferPlan plan;
    std::vector<PageTransfer> pages;
    bool is_cancelled = false;
    std::optional<Completion> end;  // where that is decided
    std::uint64_t moved_bytes = 0;  // of each good page
  };

  void decide_end(Moving& moving, bool fails);
  std::string finish(Moving& moving, bool fails);
  std::string move_page(const Moving& moving, const PageTransfer& page, std::uint64_t end);
  void spoil_page(const Moving& moving, const PageTransfer& page);
  [[nodiscard]] HostPage& host_page(const Moving& moving, PageId page);

  Cache& cache_;
  Random random_;
  ScheduleCounts& counts_;
  std::vector<std::vector<std::uint32_t>> pools_;  // the groups of each
  std::vector<std::vector<HostPage>> host_pages_;  // by pool
  std::vector<Moving> moving_;
};

}  // namespace quire::testing
