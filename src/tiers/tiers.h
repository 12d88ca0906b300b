// SPDX-License-Identifier: Apache-2.0
//
// Tiers: everything between device, host and lower tiers, for any pool of any group, put together. It decides which
// pages move and draws the conclusions from completions; bytes are moved by a Mover and by LowerTiers.
//
//     parts         the pools, transfers and lower tiers that all the others work on
//     paths         what memory has of a sequence's tokens, and where the sequence can go on
//     stores        HostStores: from the device to the host
//     lower_stores  from the host to the lower tiers
//     loads         from the host to the device
//     searches      from the lower tiers to the host
//     arrivals      what admitted sequences wait for
//     saves         host pages that preempted sequences own
//
// Of steps, Tiers knows StepFence only. The cache gives it a TierContext and is called back through TierClient.
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
#include "tiers/host_holds.h"
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

  /// Adds a window or snapshot group. If the group has pages, the caller opens them: AnchoredGroup::open_device().
  AnchoredGroup& add_group(const CacheGroup& group, std::uint32_t group_index);
  /// To be called once all groups are open.
  void open_paths();
  /// Opens a host tier of so many pages of the history. The caller has opened the host pages of the groups before this:
  /// AnchoredGroup::open_host().
  [[nodiscard]] Status open_host(std::uint32_t page_count, std::uint32_t clean_reserve_pages);
  /// Adds a lower tier, which is asked after those added before it and must outlive this. The host tier is open by
  /// then. There are at most min(kLowerCountMax, transfer_count_max) of them: a drop takes a transfer for each at once.
  [[nodiscard]] Status add_lower(LowerTier& tier, const LowerSettings& settings);
  /// To be called once all lower tiers are added.
  [[nodiscard]] Status open_searches(const NameLog::Config& names);

  /// Takes a report of a mover or of a lower tier. False: nobody is moving a transfer with this id, or the rank has
  /// reported before.
  [[nodiscard]] bool apply(const Completion& completion);
  /// After completions were applied, and when time has passed: sequences that have all they wait for run, and transfers
  /// that have become possible start.
  void follow_up() {
    loads.finish_arrived();
    arrivals.wake_sequences();
    work_in_background();
    arrivals.run_ahead();
  }
  /// Starts drops, stores and waiting searches, as far as there are transfers and pages for them, and hands queued
  /// transfers over. To be called after every call that may have made something of this possible.
  void work_in_background();
  /// After calls that give device pages back and do nothing else in the background.
  void start_waiting_loads() {
    if (!parts.has_host()) return;
    arrivals.start_waiting_loads();
    parts.hand_over();
  }
  /// The whole cache is about to be dropped: calls off the tree's loads, its stores to the host and all searches. Saves
  /// and restores of sequences go on. Transfers that somebody is moving end with their completions.
  void cancel_all();
  void advance(TimeNs now) {
    lower_stores.refill_budgets(now - parts.now);
    parts.now = now;
  }

  /// Names the first rule that does not hold, if any.
  [[nodiscard]] Status check_invariants() const;

  /// The answer to a direct call: lookup_on_disk(), put_on_disk() or get_from_disk().
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
  HostHolds host_holds{parts, paths};
  Saves saves{parts};
  std::vector<Answer> answers;  // Cache::Impl::follow_up() gives them, at the end of Cache::apply()

 private:
  void count(const Transfer& transfer, const Completion& completion);
  void finish(std::uint32_t transfer);
  void finish_direct(std::uint32_t transfer);
  [[nodiscard]] Status check_pool(const PageHome& home) const;
  [[nodiscard]] Status check_extents(std::uint16_t lower_index) const;
};

}  // namespace quire
