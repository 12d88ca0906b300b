// SPDX-License-Identifier: Apache-2.0
//
// What a Cache is made of: plain structs with defaults. Only the layout and the size of the device pool have none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/budget.h"
#include "quire/layout.h"
#include "quire/mover.h"
#include "quire/plan.h"
#include "quire/policy.h"
#include "quire/redis_store.h"
#include "quire/remote_store.h"
#include "quire/result.h"

namespace quire {

/// Who hands out device pages.
enum class DevicePool : std::uint8_t {
  Owned,     ///< quire does: begin, admit, plan_step, finish_step, end
  External,  ///< the engine does, and shares pages by offer and match
};

/// Where the bytes of an owned pool lie.
enum class DeviceMemory : std::uint8_t {
  Host,         ///< quire reserves plain memory; it is taken from the system page by page as it is written
  Adopted,      ///< the engine's: DeviceConfig::adopted_memory
  Accelerator,  ///< quire allocates it on DeviceConfig::accelerator, zero at first; it stays where it is
  None,         ///< nowhere: bookkeeping only
};

struct DeviceConfig {
  DevicePool pool = DevicePool::Owned;
  /// Pages that sequences can use, the null page not counted, of the groups that keep everything: full and compressed
  /// ones, which share page ids. Give this or capacity_bytes. An external pool's page ids lie in [0, page_count).
  std::uint32_t page_count = 0;
  /// As many pages as fit, null pages and state slots included. Several groups share it as solve_budget() says, for
  /// CacheConfig::expected_requests; one sequence alone always fits, in steps of step_tokens_max.
  std::uint64_t capacity_bytes = 0;
  /// With page_count, pages of each group of the layout; those of full and compressed ones, and of groups without
  /// pages, are not looked at. Empty: as many as sequence_count_max sequences of context_tokens_max need at once
  /// (pages_of_request()), and no more than page_count; an external pool's are given, and ids lie below them.
  std::vector<std::uint32_t> group_page_counts = {};
  /// Sequences that may run at once, where the layout has state; 0: sequence_count_max.
  std::uint32_t state_slot_count = 0;
  DeviceMemory memory = DeviceMemory::Host;
  /// Cache::geometry().pool_bytes() bytes, page 0 being the null page, which the engine fills with zeros.
  std::byte* adopted_memory = nullptr;
  /// The same for layouts of several groups: for each its geometry(g).pool_bytes(), null where a group has no pages.
  std::vector<std::byte*> adopted_group_memory = {};
  /// And for their state: state_slot_count times state_slots().slot_bytes().
  std::byte* adopted_state_memory = nullptr;
  /// In place of both, on an accelerator: tensors that lie anywhere, such as K and V of each layer, for each group of
  /// the layout; empty where a group has no pages. Each has page_count + 1 blocks: block 0 is the null page.
  std::vector<std::vector<AdoptedTensor>> adopted_tensors = {};
  ByteLayout byte_layout = ByteLayout::PageFirst;
  /// Where the memory lies, owned or adopted, if the processor does not reach it: open_cuda_device(). It outlives the
  /// cache. The engine then applies plans with the kernels of device_kernels.h, or its own.
  Device* accelerator = nullptr;
};

/// When device pages are copied to the host.
enum class WritePolicy : std::uint8_t {
  WriteBack,     ///< before they are given up on the device
  WriteThrough,  ///< as soon as they are full
  Selective,     ///< once write_hits_min requests have used them; colder ones are dropped
};

/// The host tier: where pages go that the device has no room for, and come back from. Off without pages.
struct HostConfig {
  /// Give this or capacity_bytes.
  std::uint32_t page_count = 0;
  std::uint64_t capacity_bytes = 0;
  /// With page_count, pages of each group, as in DeviceConfig. Empty: in the proportion that the device has.
  std::vector<std::uint32_t> group_page_counts = {};
  std::string policy = "lru";  ///< one of policy_names(): which host pages go first
  WritePolicy write_policy = WritePolicy::WriteBack;
  std::uint32_t write_hits_min = 2;  ///< for WritePolicy::Selective
  /// With WriteBack, so many device pages are kept free, or given up but for the asking; unset: one in sixteen.
  std::optional<std::uint32_t> clean_reserve_pages = std::nullopt;
  /// How long an engine computes for one token of a prompt. A load that would take longer than computing what it brings
  /// is left, and nobody waits longer for tiers below the host than computing takes. 0: everything is loaded.
  TimeNs compute_ns_per_token = 0;
  /// Loads, and searches below the host with what they find, that take longer have failed for those who wait. 0: no
  /// limit.
  TimeNs load_timeout_ns = 0;
  /// Pieces of a load, each some layers of all its pages. More than one is of use to
  /// SequenceOptions::plan_while_loading and to engines that wait for bands, if transfer_pages_max holds all pages of a
  /// prompt: a load begins when the one before it has all its bands.
  std::uint16_t layer_bands = 1;
  bool checksums = true;
  HostRegionConfig region = {};
  /// Transfers are moved by the engine: take_transfers() gives them, apply() takes what became of them. Off: by a Mover
  /// of the cache's own, which needs device memory other than None.
  bool external_mover = false;
  std::uint32_t rank_count = 1;  ///< that report on each transfer, with an external mover
  /// With an external mover and a tier below the host: the movers of all ranks, whose host pages it reads and writes.
  /// Mover i reports as rank i. The engine gives them the transfers and polls them; they outlive the cache.
  std::vector<Mover*> rank_movers = {};
  std::uint32_t transfer_count_max = 64;  ///< at once
  std::uint32_t transfer_pages_max = 64;  ///< of one transfer
  // With an accelerator, as in MoverConfig.
  std::uint64_t staging_bytes = 0;
  std::optional<SwapPaths> load_paths = std::nullopt;
  std::optional<SwapPaths> store_paths = std::nullopt;
  TransferStreams load_streams = {};
  TransferStreams store_streams = {};
  std::uint32_t hold_count_max = 256;  ///< prefixes that hold_on_host() holds at once
  /// Pages of the history that hold_on_host() may hold in all, and the same share of each other group's host pages;
  /// unset: half of the host's.
  std::optional<std::uint32_t> hold_pages_max = std::nullopt;

  [[nodiscard]] bool is_on() const { return page_count > 0 || capacity_bytes > 0; }
};

/// What a tier below the host is there for.
enum class TierAccess : std::uint8_t {
  ReadAndWrite,
  /// Requests find what is there, and nothing is written: no page, no tombstone, no file. Several processes may have
  /// the same directories at once, as long as none of them writes. What drop() and reset() forget, and pages that turn
  /// out to be bad, are not found again by this cache; the next one that opens the directories finds them.
  /// put_on_disk() and flush() are refused.
  ReadOnly,
  /// Pages are written, and requests never look for any: only lookup_on_disk() and get_from_disk() read.
  WriteOnly,
};

/// The disk tier: pages that outlive the process, and those that the host has no room for. Off without directories; it
/// needs a host tier, through which all pages go, and pages of 16 tokens or more. Where ranks hold different heads,
/// each shard of them has a store in a directory "shard-0-of-2" below those that are given.
struct DiskConfig {
  /// Made if missing; one for each disk. Nobody else may use them meanwhile. With TierAccess::ReadOnly they are there.
  std::vector<std::string> directories = {};
  /// Of all directories together, and of all shards of ranks. With TierAccess::ReadOnly not looked at.
  std::uint64_t capacity_bytes = 0;
  TierAccess access = TierAccess::ReadAndWrite;
  /// Of a cache that drives one of PageOptions::rank_count ranks: which one, counted from 0. Needed where a rank holds
  /// a share of the heads, because another rank's pages have the same names. Unset for a cache that drives all ranks.
  /// Caches of ranks find the same only if they apply the same: Cache::report_to_ranks().
  std::optional<std::uint32_t> rank_index = std::nullopt;
  /// When host pages are written: WriteThrough, as soon as they have their bytes; WriteBack, when the host is about to
  /// need their room; Selective, once write_hits_min requests have used them.
  WritePolicy write_policy = WritePolicy::WriteThrough;
  std::uint32_t write_hits_min = 2;  ///< for WritePolicy::Selective
  /// Endurance: no more than this is written in any 24 hours, and pages that were used again come first. What is put on
  /// disk directly counts, and is never refused; where making room moves more than is left, that is made up for before
  /// anything else is written. 0: no limit.
  std::uint64_t write_bytes_per_day = 0;
  /// Of one file; less when capacity_bytes asks for it, and more when otherwise the store's files, which are all open,
  /// would be more than half of those that the process may have open (`ulimit -n`).
  std::uint64_t segment_bytes = std::uint64_t{256} << 20U;
  std::uint32_t queue_depth = 16;  ///< reads, or writes, at once
  int zstd_level = 0;              ///< 0: pages are not compressed

  // With several groups. Windows and snapshots have stores of their own, in directories "group-" and their name below
  // the history's, so that what is kept longer does not depend on what is not.
  /// What each group has on disk of what the host has: Dense, all of it; Every, what requests need to go on at
  /// multiples of interval_tokens; None, nothing: it must then be rebuilt by a replay, or nothing is found after a
  /// restart. History is always Dense. Empty: all groups are.
  std::vector<GroupRetention> group_retention = {};
  /// Of capacity_bytes, for each group; what full and compressed groups have is ignored, they share the rest. Empty: in
  /// proportion to what groups write.
  std::vector<std::uint64_t> group_capacity_bytes = {};

  /// The least capacity_bytes that serves pages of this size in these directories, for one shard of ranks.
  [[nodiscard]] std::uint64_t capacity_bytes_min(std::uint64_t page_bytes) const;

  [[nodiscard]] bool is_on() const { return !directories.empty(); }
};

/// The remote tier: pages that caches on many machines share. Off without urls and without a store; it needs a host
/// tier, through which all pages go, and pages of 16 tokens or more. Pages are found by what the model, its weights and
/// the tokens are, whoever wrote them; another layout is never read. What KeySpace does not name is not told apart.
/// docs/tiers.md says when the tier is asked and how long requests wait for it, docs/remote.md how to run the servers
/// and what must be in the key.
struct RemoteConfig {
  /// Of Valkey or Redis servers: redis://host:port, rediss://host:port (TLS), unix:///path; several are nodes of one
  /// cluster.
  std::vector<std::string> urls = {};
  /// Instead of urls, a store of the engine's own, which outlives the cache and which no other cache has.
  RemoteStore* store = nullptr;

  // With urls, as in RedisConfig.
  RedisCluster cluster = RedisCluster::Auto;
  std::string user = {};
  std::string password = {};       ///< or
  std::string password_file = {};  ///< whose first line it is
  std::string ca_file = {};
  std::string certificate_file = {};
  std::string key_file = {};
  std::string server_name = {};
  /// Values that were written so long ago are gone; 0: the server keeps them until it needs the room.
  std::uint32_t max_age_s = 0;
  /// Off: when no server can be used, the cache opens all the same and goes on without until one can. Cache::stats()
  /// and remote_status() say so. What is wrong with the configuration is an error in any case.
  bool is_required = true;

  /// All keys begin with it: 1 to 128 printable characters, no spaces and no braces, between which a cluster would look
  /// for the place of a key. Caches with different ones share nothing.
  std::string key_prefix = "quire";
  /// The history is written in extents of consecutive pages, as many as fit, a power of two. Larger ones are moved
  /// faster, and what is found ends with one. All who share pages use the same.
  std::uint64_t extent_bytes = std::uint64_t{2} << 20U;
  // How long the tier may take; what takes longer counts as not there, and the request goes on. It never waits longer
  // than computing would take (HostConfig::compute_ns_per_token), or than HostConfig::load_timeout_ns.
  TimeNs find_timeout_ns = 100'000'000;     ///< for its answer
  TimeNs load_timeout_ns = 500'000'000;     ///< from there on, until the host has what was found
  TimeNs store_timeout_ns = 5'000'000'000;  ///< to write what one transfer has

  TierAccess access = TierAccess::ReadAndWrite;
  /// As in DiskConfig.
  std::optional<std::uint32_t> rank_index = std::nullopt;
  WritePolicy write_policy = WritePolicy::WriteThrough;
  std::uint32_t write_hits_min = 2;       ///< for WritePolicy::Selective
  std::uint64_t write_bytes_per_day = 0;  ///< 0: no limit
  std::vector<GroupRetention> group_retention = {};

  [[nodiscard]] bool is_on() const { return !urls.empty() || store != nullptr; }
};

/// Pages that are found by their own tokens, wherever those stand in a prompt (docs/chunk_reuse.md). Off without pages.
/// Needs a layout whose groups all keep everything, and whose rows do not depend on tokens behind them.
struct ChunkConfig {
  std::uint32_t page_count_max = 0;  ///< that can be found at once; more than the device has are never needed
  double recompute_ratio = 0.2;      ///< as in ChunkIndexConfig
  std::uint32_t pin_count_max = 64;  ///< ChunkPins at once
  /// Pages that ChunkPins may hold in all, each counted with what stands before it in its path, which stays too. Unset:
  /// half of the pool that open() makes; all of it at most.
  std::optional<std::uint32_t> pinned_pages_max = std::nullopt;

  [[nodiscard]] bool is_on() const { return page_count_max > 0; }
};

/// What plans look like.
struct PlanConfig {
  PageTables page_tables = PageTables::Rows;
  /// Levels of shared prefixes in a plan, 1 for none: keys that several sequences of a step share are listed once, for
  /// kernels that read them once. Deeper sharing counts as each sequence's own. Above 1, plans choose their own order
  /// of entries. Block tables have one level.
  std::uint32_t cascade_levels_max = 1;
  /// Windows of layers that attend to their last tokens only and keep all of them in a full group, in tokens: the plan
  /// of every full group has trimmed page lists for each of them. This saves attention work, not pages: a window group
  /// saves both. At most 8, none with block tables, and none where no group is full.
  std::vector<std::uint32_t> layer_windows = {};
};

struct CacheConfig {
  ModelLayout layout;     ///< preset("llama-3-8b"), ModelLayout::simple(…)
  PageOptions page = {};  ///< tokens per page, tensor-parallel ranks, order of heads
  DeviceConfig device = {};
  HostConfig host = {};
  DiskConfig disk = {};
  RemoteConfig remote = {};
  ChunkConfig chunks = {};

  std::uint32_t sequence_count_max = 256;  ///< live at once, waiting ones included
  /// Tokens of one sequence, prompt and output together; 0: as many as the pool holds.
  std::uint32_t context_tokens_max = 0;
  std::uint32_t step_tokens_max = 16'384;  ///< tokens computed in one step
  /// The mix of requests, each with its tokens, prompt and output together, and how often it comes beside the others:
  /// capacity_bytes is shared out so that all groups run out at the same time if requests are like that. Shorter ones
  /// need more of windows, longer ones more of the history. Empty: requests of one length, as long as leaves room for
  /// all sequences that may run at once, and 2,048 tokens at least; config() then has it.
  std::vector<ExpectedRequest> expected_requests = {};
  /// Two sequences that compute the same pages share one copy from the moment both are full. Off: the later one keeps
  /// its own, and what it computes from there on is not cached.
  bool dedup = true;
  std::uint32_t steps_in_flight_max = 2;  ///< steps planned and not finished
  std::uint32_t tree_tokens_max = 256;    ///< undecided tree tokens of one sequence
  /// Tokens that a windowed sequence keeps beyond its window, so that it can be rewound by as many.
  std::uint32_t window_rewind_tokens = 0;
  PlanConfig plan = {};
  std::uint32_t extra_key_count_max = 1'024;  ///< extra keys of one sequence
  std::uint32_t key_space_count_max = 1'024;  ///< key spaces known at once
  std::uint32_t keep_count_max = 1'024;       ///< prefixes kept at once
  /// Pages that keep() may hold in all; unset: half of the pool.
  std::optional<std::uint32_t> keep_pages_max = std::nullopt;
  /// A prefix that ends inside a cached page is reused by copying when it saves at least this many tokens; unset: half
  /// a page, and never less than 1.
  std::optional<std::uint32_t> partial_reuse_min_tokens = std::nullopt;

  std::string policy = "lru";                       ///< one of policy_names()
  std::unique_ptr<Policy> custom_policy = nullptr;  ///< used instead of `policy` when given
  /// Evict whole runs instead of just the pages needed, and never let a run grow in place: how other radix caches
  /// behave.
  bool whole_runs = false;
  /// Places runs in hash tables. A secret one keeps strangers from choosing tokens that collide.
  std::uint64_t hash_seed = 0;
  std::uint32_t residency_record_count_max = 4'096;
  /// Evicted pages that are remembered, to tell why a request missed them; unset: as many as the tiers have pages when
  /// there is a host tier, else none.
  std::optional<std::uint32_t> lost_page_count_max = std::nullopt;

  /// Says what is wrong with this configuration, if anything; open() asks it first.
  [[nodiscard]] Status validate() const;
};

}  // namespace quire
