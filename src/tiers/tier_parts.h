// SPDX-License-Identifier: Apache-2.0
//
// TierParts: what stores, loads, searches and arrivals work on together. The cache gives the tree, the sequences and
// the key spaces; pools, transfers and lower tiers are the tiers' own.
//
// single-threaded
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "prefix/prefix_tree.h"
#include "quire/config.h"
#include "quire/mover.h"
#include "quire/stats.h"
#include "sequence/key_space_table.h"
#include "sequence/sequence_table.h"
#include "tiers/ahead_reads.h"
#include "tiers/anchored_group.h"
#include "tiers/arrival.h"
#include "tiers/ended_loads.h"
#include "tiers/history_pages.h"
#include "tiers/search.h"
#include "tiers/step_fence.h"
#include "tiers/transfer_book.h"
#include "tiers/write_budget.h"
#include "transfer/lower_tier.h"

namespace quire {

/// The settings of one lower tier: what it is asked to keep, and when.
struct LowerSettings {
  Tier tier = Tier::Disk;
  TierAccess access = TierAccess::ReadAndWrite;
  WritePolicy write_policy = WritePolicy::WriteThrough;
  std::uint32_t write_hits_min = 2;
  std::uint64_t write_bytes_per_day = 0;        // 0: no limit
  TimeNs find_timeout_ns = 0;                   // of a question; 0: no limit
  TimeNs load_timeout_ns = 0;                   // from the answer on, until all that was found is there
  TimeNs store_timeout_ns = 0;                  // of one store
  bool answers_at_once = false;                 // from an index in memory: how long that takes is not measured, and
                                                // computing is no deadline for it
  std::vector<GroupRetention> group_retention;  // by group of the layout; empty: everything

  /// Whether sequences look for pages there.
  [[nodiscard]] bool is_read() const { return access != TierAccess::WriteOnly; }
  [[nodiscard]] bool is_written() const { return access != TierAccess::ReadOnly; }
  /// How often pages were used that are written before others.
  [[nodiscard]] std::uint32_t hot_hits_min() const {
    return write_policy == WritePolicy::Selective ? write_hits_min : 2;
  }
};

/// How many lower tiers there can be: HistoryPages::hot_ and Arrival::asked have one bit of a byte for each.
inline constexpr std::size_t kLowerCountMax = 8;

/// What a lower tier did since open(). Pages are counted in LowerCopies, by pool.
struct LowerTotals {
  std::uint64_t find_count = 0;
  std::uint64_t found_pages = 0;
  std::uint64_t loaded_bytes = 0;
  std::uint64_t stored_bytes = 0;
  std::array<std::uint64_t, kTransferOutcomeCount> load_outcomes{};
  std::array<std::uint64_t, kTransferOutcomeCount> store_outcomes{};
};

/// A lower tier, and what the tiers keep count of for it.
struct Lower {
  LowerTier* tier = nullptr;
  LowerSettings settings;
  WriteBudget budget;
  std::uint32_t extent_pages = 1;  // of the history
  TransferRate load_rate;
  AnswerTime question_time;
  LowerTotals totals;
  std::uint64_t loading_bytes = 0;    // in loads from this tier that are in the book
  std::uint32_t load_count = 0;       // such loads
  std::uint32_t store_count = 0;      // stores to this tier, of all pools, that are in the book
  std::uint32_t unread_searches = 0;  // since the last search whose pages were read
  std::uint32_t unasked_count = 0;    // requests that did not ask, because computing is faster, since the last that did
  bool has_failed = false;            // the tier's pool 0 has failed, the history's: the tier is not used any more
  bool is_agreed = false;             // ranks with caches of their own say together what has failed:
  std::uint64_t failed_pools = 0;     // a bit for each pool that any of them can no longer read or write
  // Since flush() was first called:
  bool has_lost_writes = false;   // a store or a flush of this tier has failed
  bool has_failed_drops = false;  // a flush says that drops have not been done, which the tier goes on trying

  /// Whether the tier can no longer read or write pages of a pool, as LowerTier::is_failed().
  [[nodiscard]] bool is_failed(std::uint32_t pool) const {
    return is_agreed ? (failed_pools >> std::min(pool, 63U) & 1U) != 0 : tier->is_failed(pool);
  }
  /// What this rank alone knows of it.
  [[nodiscard]] std::uint64_t own_failed_pools(std::size_t pool_count) const {
    std::uint64_t bits = 0;
    for (std::uint32_t pool = 0; pool < pool_count; ++pool) {
      if (tier->is_failed(pool)) bits |= std::uint64_t{1} << std::min(pool, 63U);
    }
    return bits;
  }
  /// How many pages of a home are written as one.
  [[nodiscard]] std::uint32_t extent_of(const PageHome& home) const { return home.pool == 0 ? extent_pages : 1; }
  [[nodiscard]] bool answers_at_once() const { return settings.answers_at_once; }
  [[nodiscard]] bool is_measured() const {
    return (settings.answers_at_once || question_time.ns > 0) && load_rate.bytes_per_ns > 0;
  }
  void measure_question(TimeNs took_ns) {
    if (!settings.answers_at_once) question_time.measure(took_ns);
  }
  /// About how long it takes until so many bytes are on the host, if the tier is measured.
  [[nodiscard]] double expected_ns(std::uint64_t bytes) const {
    return question_time.ns + (static_cast<double>(bytes + loading_bytes) / load_rate.bytes_per_ns);
  }
};

/// What the tiers ask of the cache that owns them.
class TierClient {
 public:
  virtual ~TierClient() = default;
  /// An admitted sequence stops waiting, and runs with what has come.
  virtual void run_sequence(std::uint32_t index) = 0;
  /// All that an admitted sequence waits for is on its way: it becomes RunningAhead, on the pages that loads fill.
  virtual void run_ahead(std::uint32_t index) = 0;
  /// The pages of a load that a sequence runs ahead on have arrived, and belong to the tree.
  virtual void take_loaded(std::uint32_t index, std::uint32_t load) = 0;
  /// The pages of such a load do not come, or are not good. They are still the load's.
  virtual void lose_loaded(std::uint32_t index, std::uint32_t load) = 0;
  /// All transfers that save a preempted sequence have ended. Saves::has_lost_pages() tells whether a page is missing.
  virtual void end_save(std::uint32_t index) = 0;
  /// All transfers that bring a saved sequence back have ended. Saves::has_lost_pages() tells whether a page is
  /// missing.
  virtual void end_restore(std::uint32_t index) = 0;
  /// Makes the moves of committed token trees now, if the pages lie in memory that the cache itself can write.
  virtual void make_moves() = 0;
};

/// What the cache gives. All of it outlives the tiers.
struct TierContext {
  const CacheConfig& config;
  PrefixTree& tree;
  SequenceTable& sequences;
  KeySpaceTable& key_spaces;
  LostPages& lost_pages;
  Stats& counters;
  TierClient& client;
  std::uint32_t page_tokens = 0;
  std::uint32_t partial_reuse_min_tokens = 0;
  std::uint32_t context_tokens_max = 0;
};

struct TierParts : TierContext {
  explicit TierParts(const TierContext& context) : TierContext(context) {}

  StepFence fence;
  TimeNs now = 0;
  std::vector<std::unique_ptr<AnchoredGroup>> groups;
  HistoryPages history{fence, {tree, groups, counters, config.host.write_policy}};
  std::vector<PageHome*> homes;  // by pool: the history, then the groups
  TransferBook book;
  std::unique_ptr<Mover> mover;  // null: an external one, or no host tier
  TransferRate load_rate;
  TransferRate store_rate;
  std::uint32_t loading_count = 0;  // the tree's loads from the host that are in the book
  std::uint64_t loading_bytes = 0;  // in these loads
  std::vector<Lower> lowers;        // in the order in which they are asked until they are measured
  std::uint16_t first_lower = 0;    // which of them was asked first the last time
  SearchPaths searches;
  std::vector<Arrival> arrivals;  // by sequence
  AheadReads ahead;               // which sequences run ahead on which loads
  EndedLoads ended_loads;         // for threads of the engine that wait for layers
  NameLog name_log;
  bool wants_flush = false;  // everything is to go to the lower tiers
  bool is_paused = false;    // no transfer starts
  enum class SleepState : std::uint8_t { Awake, FallingAsleep, Asleep } sleep_state = SleepState::Awake;
  std::vector<SequenceId> ready_sequences;  // they run, and Cache::Impl::follow_up() has not told the engine yet

  [[nodiscard]] bool has_host() const { return history.pages.has_host(); }
  [[nodiscard]] bool has_lower() const { return !lowers.empty(); }
  [[nodiscard]] bool is_awake() const { return sleep_state == SleepState::Awake; }
  [[nodiscard]] std::uint32_t pages_for(std::uint64_t token_count) const {
    return static_cast<std::uint32_t>((token_count + page_tokens - 1) / page_tokens);
  }
  /// now + duration_ns, or INT64_MAX where that would overflow.
  [[nodiscard]] TimeNs time_after(TimeNs duration_ns) const {
    return duration_ns > INT64_MAX - std::max<TimeNs>(now, 0) ? INT64_MAX : now + duration_ns;
  }
  /// The same, where 0 is no limit.
  [[nodiscard]] TimeNs deadline_after(TimeNs timeout_ns) const {
    return timeout_ns > 0 ? time_after(timeout_ns) : INT64_MAX;
  }
  [[nodiscard]] TimeNs load_deadline() const { return deadline_after(config.host.load_timeout_ns); }
  /// When so many tokens would be computed, if that began now; INT64_MAX: it is not known how long computing takes.
  [[nodiscard]] TimeNs computed_by(std::uint32_t token_count) const {
    const double compute_ns = compute_time(token_count);
    return compute_ns == 0 ? INT64_MAX : time_after(static_cast<TimeNs>(std::min(compute_ns, 9e18)));
  }
  /// In nanoseconds; 0: it is not known how long computing takes.
  [[nodiscard]] double compute_time(std::uint32_t token_count) const {
    return static_cast<double>(token_count) * static_cast<double>(config.host.compute_ns_per_token);
  }

  /// So many loads, and so many stores, each lower tier may have at once. A tier that hangs keeps what it has, so all
  /// tiers together get a quarter of the transfers for loads, a quarter for stores, and a quarter for searches.
  [[nodiscard]] std::uint32_t lower_transfers_max() const {
    return std::max(1U, book.capacity() / 4 / static_cast<std::uint32_t>(lowers.size()));
  }
  [[nodiscard]] std::optional<std::uint32_t> add_transfer(TransferKind kind, TransferPriority priority) {
    return is_paused ? std::nullopt : book.add(kind, priority);
  }
  /// Calls off a transfer, because nobody wants what it brings: whoever moves its pages is told.
  void call_off(std::uint32_t transfer);
  /// A host page; evicts an idle one if none is free. None: all host pages are in use.
  [[nodiscard]] PageId take_host_page(PageHome& home);
  /// Gives queued transfers to the cache's own mover and to the lower tiers, as far as they take them.
  void hand_over();
  [[nodiscard]] TransferPlan plan_of(std::uint32_t transfer);
  [[nodiscard]] LowerPlan lower_plan_of(std::uint32_t transfer);
  /// Of a transfer that asks a lower tier for a path: for each page a bit for each anchored group whose page there the
  /// tier has. Empty: it asks for nothing of the kind.
  [[nodiscard]] std::span<std::uint64_t> anchored_of(std::uint32_t transfer);
  [[nodiscard]] std::span<const NamedPage> list_before(std::uint32_t search_index);
  [[nodiscard]] TimeNs time_left(const Search& search) const;
  /// The last page of a pinned path.
  [[nodiscard]] NamedPage last_page(const PrefixTree::Pin& path) const;
  void use_key_space(std::uint32_t index) { ++key_spaces[index].user_count; }
  /// One user less. A key space that was dropped is removed with its last user.
  void leave_key_space(std::uint32_t index);
  void release_key_space(std::uint32_t index);
};

}  // namespace quire
