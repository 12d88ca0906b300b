// SPDX-License-Identifier: Apache-2.0
//
// What a seed of the simulation draws once: the cache, the workload and the faults. Everything else follows from the
// same seed, step by step.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "quire/config.h"
#include "sim_events.h"
#include "testing/seeded_run.h"
#include "testing/sim_remote_store.h"

namespace quire::testing {

/// Something is wrong with the cache: the simulation stops with this text.
struct SimFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Chances are in percent.
struct SimSetup {
  // The cache.
  std::uint32_t page_tokens = 4;
  std::uint32_t layer_count = 1;
  ByteLayout byte_layout = ByteLayout::PageFirst;
  std::uint32_t device_page_count = 16;
  std::uint32_t host_page_count = 32;
  std::uint32_t context_tokens_max = 64;
  std::uint32_t sequence_count_max = 6;
  std::uint32_t step_tokens_max = 64;
  std::uint32_t steps_in_flight_max = 2;
  std::uint32_t key_space_count_max = 3;
  std::optional<std::uint32_t> partial_reuse_min_tokens;
  bool dedup = true;
  bool whole_runs = false;
  std::string policy = "lru";
  std::string host_policy = "lru";
  WritePolicy write_policy = WritePolicy::WriteBack;
  std::uint32_t write_hits_min = 2;
  std::optional<std::uint32_t> clean_reserve_pages;
  TimeNs compute_ns_per_token = 0;
  TimeNs load_timeout_ns = 0;
  std::uint16_t layer_bands = 1;
  std::uint32_t rank_count = 1;
  /// Each rank has whole pages, as with a disk tier; otherwise the ranks share out the bytes of one page.
  bool has_rank_pages = false;
  std::uint32_t shard_count = 1;  ///< of ranks with pages of their own: 1, all have the same bytes
  std::uint32_t transfer_count_max = 8;
  std::uint32_t transfer_pages_max = 8;
  std::optional<std::uint32_t> lost_page_count_max;

  // Several groups; of none, there is one that keeps everything.
  std::vector<CacheGroup> groups;
  std::vector<std::uint32_t> group_page_counts;
  std::vector<std::uint32_t> host_group_page_counts;
  std::uint32_t state_slot_count = 0;
  std::uint32_t draft_tokens_max = 4;  ///< that every group can take back

  // The disk tier.
  bool has_disk = false;
  std::uint32_t disk_directory_count = 1;
  std::uint64_t disk_capacity_bytes = 0;
  WritePolicy disk_write_policy = WritePolicy::WriteThrough;
  std::uint32_t disk_write_hits_min = 2;
  std::uint64_t disk_write_bytes_per_day = 0;
  int zstd_level = 0;
  std::uint64_t hash_seed = 0;  ///< another one in every life of the process
  std::vector<GroupRetention> disk_group_retention;
  std::vector<std::uint64_t> disk_group_capacity_bytes;  ///< empty: in proportion

  // The remote tier, beside the disk tier or in its place.
  bool has_remote = false;
  bool is_diskless = false;  ///< all else is as with a disk tier, and there is none
  TierAccess disk_access = TierAccess::ReadAndWrite;
  std::uint64_t remote_extent_bytes = 0;
  WritePolicy remote_write_policy = WritePolicy::WriteThrough;
  TimeNs remote_find_timeout_ns = 0;
  TimeNs remote_load_timeout_ns = 0;
  TimeNs remote_store_timeout_ns = 0;
  double remote_bytes_per_ns = 0.1;
  std::uint32_t remote_value_count_max = 0;
  bool remote_evicts_any = false;  ///< otherwise the value that was not used for longest
  SimRemoteServer::Faults remote_faults;
  std::uint32_t remote_chance = 0;        ///< of operations of the disk that are the remote tier's
  std::uint32_t remote_node_chance = 0;   ///< of a thousand of these: the server stops, fails, or is back
  std::uint32_t remote_empty_chance = 0;  ///< the same: it restarts empty

  // The workload.
  std::uint32_t key_space_name_count = 1;
  std::uint32_t vocabulary = 3;
  std::uint32_t segment_tokens_max = 8;
  std::uint32_t document_count = 4;
  std::uint32_t document_chance = 50;  ///< of a prompt that begins with one
  std::uint32_t beginning_count = 0;   ///< documents have the same pages behind so many beginnings; 0: they do not
  std::uint32_t chat_chance = 40;      ///< of a prompt that goes on from an earlier text
  std::uint32_t run_chance = 20;       ///< a weight among operations, as the next one: steps that are begun, or over
  std::uint32_t finish_chance = 30;
  std::uint32_t algebra_chance = 30;  ///< forks and rewinds
  std::uint32_t preempt_chance = 30;
  std::uint32_t save_chance = 0;   ///< of a preemption that saves
  std::uint32_t pause_chance = 0;  ///< transfers are held back
  std::uint32_t sleep_chance = 0;
  std::uint32_t window_chance = 0;
  std::uint32_t resize_chance = 0;
  std::uint32_t device_page_count_max = 16;  ///< after a resize
  std::uint32_t window_rewind_tokens = 0;
  std::uint32_t draft_chance = 0;
  std::uint32_t tree_chance = 0;
  std::uint32_t abort_chance = 10;
  std::uint32_t keep_chance = 0;
  std::uint32_t drop_chance = 0;
  std::uint32_t extra_key_chance = 0;
  bool extra_keys_vary = false;       ///< the same tokens with other items; otherwise a token tells its item
  std::uint32_t options_chance = 20;  ///< match_tokens_max, publish, expected_tokens, tier_max, …
  std::uint32_t ttl_chance = 0;
  std::uint32_t prefetch_chance = 30;
  std::uint32_t race_chance = 0;   ///< a weight among operations: of requests that are planned while their pages arrive
  std::uint32_t ahead_chance = 0;  ///< of a sequence whose steps may be planned while its pages arrive

  // Time and the mover.
  TimeNs op_ns_max = 1'000;         ///< simulated time between two operations
  double bytes_per_ns = 0.1;        ///< of each rank
  std::uint32_t mover_chance = 50;  ///< of operations that are the mover's
  bool moves_in_order = false;
  bool reorders = false;
  std::uint32_t io_chance = 0;
  std::uint32_t flip_chance = 0;
  std::uint32_t lost_write_chance = 0;
  std::uint32_t misdirected_chance = 0;
  std::uint32_t honour_chance = 50;         ///< of a cancellation
  std::uint32_t odd_completion_chance = 0;  ///< duplicates, unknown ones, stale generations
  std::uint32_t stuck_chance = 0;
  std::uint32_t partial_chance = 0;  ///< of an early end without a fault: some good pages only

  // The disk.
  std::uint32_t disk_chance = 0;         ///< of operations of the mover that are the disk's
  double disk_bytes_per_ns = 0.1;        ///< of reads
  std::uint32_t flush_chance = 0;        ///< a weight among operations
  std::uint32_t direct_chance = 0;       ///< the same, of calls past the other tiers
  std::uint32_t serve_chance = 0;        ///< the same, of requests that are served at once
  std::uint32_t host_chance = 0;         ///< of requests that look no further than the host
  std::uint32_t disk_stuck_chance = 0;   ///< of a lane
  std::uint32_t disk_read_failures = 0;  ///< of a thousand
  std::uint32_t disk_write_failures = 0;
  std::uint32_t disk_sync_failures = 0;
  std::uint32_t disk_flip_chance = 0;  ///< of a thousand operations of the disk, as the next two
  std::uint32_t disk_forge_chance = 0;
  std::uint32_t disk_full_chance = 0;
  std::uint32_t disk_break_chance = 0;  ///< of ten thousand, as the next one
  std::uint32_t crash_chance = 0;       ///< the process ends in the middle of something
  std::uint32_t opening_chance = 0;     ///< of an opening that something happens to

  bool has_chunks = false;

  // The simulation itself.
  bool has_path_model = true;  ///< follows every page of the tree
  std::uint32_t wind_down_every = 1'000;
  std::uint32_t check_every = 1;  ///< operations between two calls of check_invariants()

  [[nodiscard]] bool has_groups() const { return !groups.empty(); }
  [[nodiscard]] bool has_files() const { return has_disk && !is_diskless; }
};

/// Checks that a test switches off to see that the simulation notices.
struct SimMutation {
  bool checks_checksums = true;
  bool checks_names = true;       ///< generations and tags
  bool checks_fences = true;      ///< the simulation's own look at who uses a page, and at plans
  bool checks_invariants = true;  ///< check_invariants()
  bool breaks_bytes = true;       ///< writes that get lost or land elsewhere, bits that turn over
  bool damages_files = false;     ///< often: for a store that does not verify what it reads
  bool shares_pages = false;      ///< always, behind different beginnings, with names that are computed late
  bool swaps_key_spaces = false;  ///< always, with names that are computed late
  bool confuses_pools = false;    ///< of several groups: the mover stores another group's page, where it is as large
};

/// Which seeds have something: a third of them, all or none.
enum class SimSeeds : std::uint8_t { Drawn, Always, Never };

inline constexpr std::uint64_t kFirstAheadSeed = 900'000'000;

/// What a seed means depends on these.
struct SimShape {
  SimSeeds disk_tier = SimSeeds::Drawn;
  SimSeeds groups = SimSeeds::Drawn;  ///< several
  bool has_disk_ranks = false;        ///< all seeds with a disk tier have two ranks
  /// Sequences that run ahead of their loads; drawn from seed kFirstAheadSeed on, so that those before stay the same.
  SimSeeds ahead = SimSeeds::Drawn;
  SimMutation mutation;
  bool chunks = false;  ///< seeds of one group look for chunks, beside all else that they do
  /// All seeds with a disk tier have a remote tier too, or in its place: Drawn, a quarter of them.
  bool has_remote = false;
  SimSeeds diskless = SimSeeds::Drawn;
};

[[nodiscard]] SimSetup draw_sim_setup(std::uint64_t seed, const SimShape& shape, Random& random);
/// The directories of all stores.
[[nodiscard]] std::vector<std::string> disk_paths(const SimSetup& setup);
/// A store of one shard and pool, as LowerPlan::pool counts pools: 0 is the history.
struct SimStore {
  std::uint32_t shard = 0;
  std::uint32_t pool = 0;
};
/// The history's of shard 0 first.
[[nodiscard]] std::vector<SimStore> disk_stores(const SimSetup& setup);
/// What the bytes of a rank's pages are changed by, so that none is taken for another's.
[[nodiscard]] inline std::byte rank_mask(const SimSetup& setup, std::uint32_t shard) {
  return setup.shard_count > 1 ? std::byte(0x5aU * shard) : std::byte{0};
}
/// Whether a group's pages hang at those of others, instead of making up the history.
[[nodiscard]] bool is_anchored(const CacheGroup& group);
[[nodiscard]] std::string to_string(const SimSetup& setup);
[[nodiscard]] CacheConfig make_config(const SimSetup& setup);

[[nodiscard]] inline bool has_chance(Random& random, std::uint32_t percent) {
  return random.below(100) < percent;
}
template <typename Value, std::size_t kCount>
[[nodiscard]] Value pick(Random& random, const std::array<Value, kCount>& values) {
  return values[random.below(kCount)];
}

/// What happened how often.
struct SimCounts {
  std::array<std::uint64_t, kSimEventCount> events{};
  std::uint64_t api_calls = 0;
  std::uint64_t mover_events = 0;
  std::uint64_t seeds = 0;        ///< that went through
  std::uint64_t chunk_pages = 0;  ///< that were found and pinned
  bool prints = false;

  void add(SimEvent event, std::uint64_t count = 1);
  /// A line of --print.
  template <typename MakeText>
  void tell(MakeText make_text) const {
    if (prints) print(make_text());
  }
  static void print(const std::string& line);
  [[nodiscard]] std::uint64_t operator[](SimEvent event) const { return events[static_cast<std::size_t>(event)]; }
  [[nodiscard]] std::uint64_t operations() const { return api_calls + mover_events; }
};

}  // namespace quire::testing
