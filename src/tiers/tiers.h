// SPDX-License-Identifier: Apache-2.0
//
// Tiers: everything between device, host and lower tiers, for any pool of any group, put together. It decides which
// pages move and draws the conclusions from completions; bytes are moved by a Mover and by LowerTiers.
//
//     parts        pools, transfers, lower tiers: what the others work on
//     paths        what memory has of a sequence, and where it can go on
//     stores       device to host            lower_stores  host to lower tiers
//     loads        host to device            searches      lower tiers to host
//     arrivals     what admitted sequences wait for        saves  pages of preempted sequences
//
// Tiers knows nothing of steps but StepFence, and nothing of the cache but TierClient.
//
// single-threaded
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "quire/result.h"
#include "quire/transfer.h"
#include "tiers/arrivals.h"
#include "tiers/host_stores.h"
#include "tiers/loads.h"
#include "tiers/lower_stores.h"
#include "tiers/paths.h"
#include "tiers/saves.h"
#include "tiers/searches.h"
#include "tiers/tier_parts.h"

namespace quire {

struct Tiers {
  explicit Tiers(const TierContext& context) : parts(context) {
    parts.homes.push_back(&parts.history);
    arrivals.open();
  }
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  /// One more group that does not keep everything. Its device pages are the caller's to open.
  AnchoredGroup& add_group(const CacheGroup& group, std::uint32_t group_index);
  /// When all groups are open.
  void open_paths();
  /// A host tier of so many pages of the history. Those of the groups are the caller's to open, before this.
  [[nodiscard]] Status open_host(std::uint32_t page_count, std::uint32_t clean_reserve_pages);
  /// One more lower tier, which must outlive this. There may be as many as a drop has transfers for, and not more than
  /// kLowerCountMax.
  [[nodiscard]] Status add_lower(LowerTier& tier, const LowerSettings& settings);
  /// When all lower tiers are added.
  [[nodiscard]] Status open_searches(const NameLog::Config& names);

  /// What a mover or a lower tier reports. False: nobody waits for it.
  [[nodiscard]] bool apply(const Completion& completion);
  /// After completions were applied, and when time has passed: sequences that have all they wait for run, and transfers
  /// that have become possible start.
  void follow_up() {
    arrivals.wake_sequences();
    work_in_background();
  }
  /// What goes on by itself: after every call that may have given it something to do.
  void work_in_background();
  /// Everything that is cached is about to go; what sequences save is not. Transfers that somebody is moving end by
  /// their completions.
  void cancel_all();
  /// Time passes.
  void advance(TimeNs now) {
    lower_stores.refill_budgets(now - parts.now);
    parts.now = now;
  }

  /// Names the first rule that does not hold, if any.
  [[nodiscard]] Status check_invariants() const;

  struct Answer {
    std::function<void(TransferOutcome outcome, const Hit& hit)> callback;
    TransferOutcome outcome = TransferOutcome::Ok;
    Hit hit;
  };

  TierParts parts;
  Paths paths{parts};
  LowerStores lower_stores{parts};
  HostStores stores{parts, lower_stores};
  Loads loads{parts, paths};
  Searches searches{parts, paths, lower_stores};
  Arrivals arrivals{parts, paths, stores, loads, searches};
  Saves saves{parts};
  std::vector<Answer> answers;  // to direct calls, to be given at the end of apply()

 private:
  void count(const Transfer& transfer, const Completion& completion);
  void finish(std::uint32_t transfer);
  void finish_direct(std::uint32_t transfer);
  [[nodiscard]] Status check_pool(const PageHome& home) const;
};

}  // namespace quire
