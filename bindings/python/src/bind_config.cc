// SPDX-License-Identifier: Apache-2.0
#include "bind.h"

#include <filesystem>
#include <optional>
#include <vector>

#include "casters.h"
#include "errors.h"
#include "quire/cache.h"
#include "quire/config.h"
#include "quire/mover.h"
#include "quire/swap.h"
#include "settings.h"
#include "structs.h"

namespace quire::python {

void bind_config(nb::module_& module) {
  enum_class<DevicePool>(module, "DevicePool", "Who hands out device pages.")
      .value("Owned", DevicePool::Owned, "quire does: begin, admit, plan_step, finish_step, end")
      .value("External", DevicePool::External, "the engine does, and shares pages by offer and match");

  enum_class<DeviceMemory>(module, "DeviceMemory", "Where the bytes of an owned pool lie.")
      .value("Host", DeviceMemory::Host,
             "quire reserves plain memory; it is taken from the system page by page as it is written")
      .value("Adopted", DeviceMemory::Adopted, "the engine's: DeviceConfig.adopted_memory")
      .value("Accelerator", DeviceMemory::Accelerator,
             "quire allocates it on DeviceConfig.accelerator, zero at first; it stays where it is")
      .value("None_", DeviceMemory::None, "nowhere: bookkeeping only");

  enum_class<WritePolicy>(module, "WritePolicy", "When device pages are copied to the host.")
      .value("WriteBack", WritePolicy::WriteBack, "before they are given up on the device")
      .value("WriteThrough", WritePolicy::WriteThrough, "as soon as they are full")
      .value("Selective", WritePolicy::Selective,
             "once write_hits_min requests have used them; colder ones are dropped");

  enum_class<PageTables>(module, "PageTables", "How a plan names the pages of its entries.")
      .value("Rows", PageTables::Rows,
             "a table on the device with a row per sequence; a plan ships what changed in it: cost flat in context")
      .value("Csr", PageTables::Csr, "every page id in every plan, one list per slice: what FlashInfer reads")
      .value("Block", PageTables::Block,
             "every page id in every plan, one padded line per entry: block_table, slot_mapping, seq_lens");

  StructClass<HostRegionConfig>(
      module, "HostRegionConfig",
      "What the host region should lie in. What the system refuses is done without, and told by HostRegionStatus.")
      .field("huge_pages", &HostRegionConfig::huge_pages)
      .field("numa_node", &HostRegionConfig::numa_node,
             "Unset: the accelerator's, where the system tells which that is; else wherever the system puts it.")
      .field("bind_threads", &HostRegionConfig::bind_threads, "the mover's threads run on the processors of that node")
      .field("lock_memory", &HostRegionConfig::lock_memory, "never swapped out; all of it is taken at once")
      .with_constructor();

  enum_class<TierAccess>(module, "TierAccess", "What a tier below the host is there for.")
      .value("ReadAndWrite", TierAccess::ReadAndWrite)
      .value("ReadOnly", TierAccess::ReadOnly,
             "Requests find what is there, and nothing is written: no page, no tombstone, no file. Several processes "
             "may have the same directories at once, as long as none of them writes. What drop() and reset() forget, "
             "and pages that turn out to be bad, are not found again by this cache; the next one that opens the "
             "directories finds them. put_on_disk() and flush() are refused.")
      .value("WriteOnly", TierAccess::WriteOnly,
             "Pages are written, and requests never look for any: only lookup_on_disk() and get_from_disk() read.");

  const auto number_of = [](DeviceStream stream) { return reinterpret_cast<std::uintptr_t>(stream.handle); };
  const auto stream_of = [](std::uintptr_t number) { return DeviceStream{reinterpret_cast<void*>(number)}; };
  StructClass<SwapStreams>(module, "SwapStreams",
                           "Where transfers go: streams of the engine's, as numbers, such as the cuda_stream of a "
                           "torch.cuda.Stream. They live until the cache is closed, or the call of a SwapEngine is "
                           "finished. 0: none.")
      .property(
          "copies", "int", [number_of](const SwapStreams& self) { return number_of(self.copies); },
          [stream_of](SwapStreams& self, std::uintptr_t stream) { self.copies = stream_of(stream); })
      .property(
          "kernels", "int", [number_of](const SwapStreams& self) { return number_of(self.kernels); },
          [stream_of](SwapStreams& self, std::uintptr_t stream) { self.kernels = stream_of(stream); }, "0: on copies")
      .property(
          "more_kernels", "int", [number_of](const SwapStreams& self) { return number_of(self.more_kernels); },
          [stream_of](SwapStreams& self, std::uintptr_t stream) { self.more_kernels = stream_of(stream); },
          "0: on kernels")
      .with_constructor();
  StructClass<TransferStreams>(
      module, "TransferStreams",
      "The streams of one direction, load or store, of a cache's own mover with an accelerator. A set of them carries "
      "one transfer behind the other; transfers take the sets in turn.")
      .field("set_count", &TransferStreams::set_count, "that the mover makes, 1 to 4")
      .field("priority", &TransferStreams::priority)
      .field(
          "given", &TransferStreams::given,
          "In place of those: the caller's own, up to 4 sets, which outlive the cache. Nobody else puts work on them "
          "meanwhile.")
      .with_constructor();

  StructClass<TensorSettings>(
      module, "AdoptedTensor",
      "A tensor of the engine's that holds some of every page: a layer, or one component of it.")
      .field("layer_index", &TensorSettings::layer_index, "in the group")
      .field("component_index", &TensorSettings::component_index,
             "Which of the group's components; None: all of them, as the layer of a page has them.")
      .field("data", &TensorSettings::data, "The tensor: its first dimension is the page, the rest is contiguous.")
      .with_constructor();

  StructClass<DeviceSettings>(module, "DeviceConfig", "The device pool: how many pages, and whose memory they lie in.")
      .field("pool", &DeviceSettings::pool)
      .field("page_count", &DeviceSettings::page_count,
             "Pages that sequences can use, the null page not counted, of the groups that keep everything: full and "
             "compressed ones, which share page ids. Give this or capacity_bytes. An external pool's page ids lie in "
             "[0, page_count).")
      .field("capacity_bytes", &DeviceSettings::capacity_bytes,
             "As many pages as fit, null pages and state slots included. Several groups share it as solve_budget() "
             "says, for CacheConfig.expected_requests; one sequence alone always fits, in steps of "
             "step_tokens_max.")
      .field("group_page_counts", &DeviceSettings::group_page_counts,
             "With page_count, pages of each group of the layout; those of full and compressed ones, and of groups "
             "without pages, are not looked at. Empty: as many as sequence_count_max sequences of context_tokens_max "
             "need at once (pages_of_request()), and no more than page_count.")
      .field("state_slot_count", &DeviceSettings::state_slot_count,
             "Sequences that may run at once, where the layout has state; 0: sequence_count_max.")
      .field("memory", &DeviceSettings::memory)
      .field("byte_layout", &DeviceSettings::byte_layout)
      .field("adopted_memory", &DeviceSettings::adopted_memory,
             "A tensor of the engine's, of Cache.geometry().pool_bytes bytes, page 0 being the null page, which the "
             "engine fills with zeros. It stays the cache's until that is closed.")
      .field("adopted_group_memory", &DeviceSettings::adopted_group_memory,
             "The same for layouts of several groups: a tensor for each, None where a group has no pages.")
      .field("adopted_state_memory", &DeviceSettings::adopted_state_memory,
             "And for their state: state_slot_count times state_slots().slot_bytes.")
      .field(
          "adopted_tensors", &DeviceSettings::adopted_tensors,
          "In place of both, on an accelerator: for each group a list of AdoptedTensor, such as K and V of each layer.")
      .field("accelerator", &DeviceSettings::accelerator,
             "Where the memory lies, owned or adopted, if the processor does not reach it: open_cuda_device().",
             "Device | None")
      .with_constructor();

  StructClass<HostSettings>(
      module, "HostConfig",
      "The host tier: where pages go that the device has no room for, and come back from. Off without pages.")
      .field("page_count", &HostSettings::page_count, "Give this or capacity_bytes.")
      .field("capacity_bytes", &HostSettings::capacity_bytes)
      .field("group_page_counts", &HostSettings::group_page_counts,
             "With page_count, pages of each group, as in DeviceConfig. Empty: in the proportion that the device has.")
      .field("policy", &HostSettings::policy, "one of policy_names(): which host pages go first")
      .field("write_policy", &HostSettings::write_policy)
      .field("write_hits_min", &HostSettings::write_hits_min, "for WritePolicy.Selective")
      .field(
          "clean_reserve_pages", &HostSettings::clean_reserve_pages,
          "With WriteBack, so many device pages are kept free, or given up but for the asking; unset: one in sixteen.")
      .field("compute_ns_per_token", &HostSettings::compute_ns_per_token,
             "How long an engine computes for one token of a prompt. A load that would take longer than computing what "
             "it brings is left. 0: everything is loaded.")
      .field("load_timeout_ns", &HostSettings::load_timeout_ns,
             "Loads, and searches on disk with what they find, that take longer have failed for those who wait. 0: no "
             "limit.")
      .field("layer_bands", &HostSettings::layer_bands, "pieces of a load, each some layers of all its pages")
      .field("checksums", &HostSettings::checksums)
      .field("region", &HostSettings::region)
      .field("external_mover", &HostSettings::external_mover,
             "Transfers are moved by the engine: take_transfers() gives them, apply() takes what became of them. Off: "
             "by a Mover of the cache's own, which needs device memory other than None_.")
      .field("rank_count", &HostSettings::rank_count, "that report on each transfer, with an external mover")
      .property(
          "rank_movers", "collections.abc.Sequence[Mover]",
          [](const HostSettings& self) { return to_python(self.rank_movers); },
          [](HostSettings& self, const std::vector<nb::object>& movers) { self.rank_movers = movers; },
          "With an external mover and a tier below the host: the movers of all ranks, whose host pages it reads and "
          "writes. Mover i reports as rank i. The engine gives them the transfers and polls them; the cache keeps them "
          "until it is closed.",
          "tuple[Mover, ...]")
      .field("transfer_count_max", &HostSettings::transfer_count_max, "at once")
      .field("transfer_pages_max", &HostSettings::transfer_pages_max, "of one transfer")
      .field("staging_bytes", &HostSettings::staging_bytes)
      .field("load_paths", &HostSettings::load_paths, "with an accelerator; unset: measured by open()")
      .field("store_paths", &HostSettings::store_paths)
      .field("load_streams", &HostSettings::load_streams)
      .field("store_streams", &HostSettings::store_streams)
      .field("hold_count_max", &HostSettings::hold_count_max, "prefixes that hold_on_host() holds at once")
      .field("hold_pages_max", &HostSettings::hold_pages_max,
             "Pages of the history that hold_on_host() may hold in all, and the same share of each other group's host "
             "pages; unset: half of the host's.")
      .with_constructor()
      .def_prop_ro("is_on", [](const HostSettings& self) { return self.is_on(); }, "There is a host tier.");

  StructClass<DiskConfig>(
      module, "DiskConfig",
      "The disk tier: pages that outlive the process, and those that the host has no room for. Off without "
      "directories; it needs a host tier, through which all pages go, and pages of 16 tokens or more.")
      .property(
          "directories", keep_text(type_text<std::vector<std::filesystem::path>>()),
          [](const DiskConfig& self) { return to_python(self.directories); },
          [](DiskConfig& self, const std::vector<std::filesystem::path>& paths) {
            self.directories.assign(paths.begin(), paths.end());
          },
          "Made if missing; one for each disk. Nobody else may use them meanwhile. With TierAccess.ReadOnly they are "
          "there.",
          "tuple[str, ...]")
      .field("capacity_bytes", &DiskConfig::capacity_bytes,
             "Of all directories together, and of all shards of ranks. With TierAccess.ReadOnly not looked at.")
      .field("access", &DiskConfig::access)
      .field("rank_index", &DiskConfig::rank_index,
             "Of a cache that drives one of PageOptions.rank_count ranks: which one, counted from 0. Needed where a "
             "rank holds a share of the heads, because another rank's pages have the same names. Unset for a cache "
             "that drives all ranks.")
      .field("write_policy", &DiskConfig::write_policy,
             "When host pages are written: WriteThrough, as soon as they have their bytes; WriteBack, when the host is "
             "about to need their room; Selective, once write_hits_min requests have used them.")
      .field("write_hits_min", &DiskConfig::write_hits_min, "for WritePolicy.Selective")
      .field("write_bytes_per_day", &DiskConfig::write_bytes_per_day,
             "Endurance: no more than this is written in any 24 hours, and pages that were used again come first. What "
             "is put on disk directly counts, and is never refused; where making room moves more than is left, that is "
             "made up for before anything else is written. 0: no limit.")
      .field("segment_bytes", &DiskConfig::segment_bytes,
             "Of one file; less when capacity_bytes asks for it, and more when otherwise the store's files, which are "
             "all open, would be more than half of those that the process may have open (`ulimit -n`).")
      .field("queue_depth", &DiskConfig::queue_depth, "reads, or writes, at once")
      .field("zstd_level", &DiskConfig::zstd_level, "0: pages are not compressed")
      .field(
          "group_retention", &DiskConfig::group_retention,
          "What each group has on disk of what the host has: Dense, all of it; Every, what requests need to go on "
          "at multiples of interval_tokens; None_, nothing: it must then be rebuilt by a replay, or nothing is found "
          "after a restart. History is always Dense. Empty: all groups are.")
      .field("group_capacity_bytes", &DiskConfig::group_capacity_bytes,
             "Of capacity_bytes, for each group; what full and compressed groups have is ignored, they share the rest. "
             "Empty: in proportion to what groups write.")
      .with_constructor()
      .def_prop_ro("is_on", &DiskConfig::is_on, "There is a disk tier.")
      .def("capacity_bytes_min", &DiskConfig::capacity_bytes_min, nb::arg("page_bytes"),
           "The least capacity_bytes that serves pages of this size in these directories, for one shard of ranks.");

  enum_class<RedisCluster>(module, "RedisCluster", "Whether servers are nodes of a cluster.")
      .value("Auto", RedisCluster::Auto, "the server is asked")
      .value("Yes", RedisCluster::Yes)
      .value("No", RedisCluster::No);

  StructClass<RemoteConfig>(module, "RemoteConfig",
                            "The remote tier: pages that caches on many machines share. Off without urls; it needs a "
                            "host tier, through which "
                            "all pages go, and pages of 16 tokens or more. Pages are found by what the model, its "
                            "weights and the tokens are, "
                            "whoever wrote them; another layout is never read.")
      .field("urls", &RemoteConfig::urls,
             "Of Valkey or Redis servers: redis://host:port, rediss://host:port (TLS), unix:///path; several are nodes "
             "of one cluster.")
      .field("cluster", &RemoteConfig::cluster)
      .field("user", &RemoteConfig::user)
      .secret("password", &RemoteConfig::password, "or")
      .field("password_file", &RemoteConfig::password_file, "whose first line it is")
      .field("ca_file", &RemoteConfig::ca_file)
      .field("certificate_file", &RemoteConfig::certificate_file)
      .field("key_file", &RemoteConfig::key_file)
      .field("server_name", &RemoteConfig::server_name)
      .field("max_age_s", &RemoteConfig::max_age_s,
             "Values that were written so long ago are gone; 0: the server keeps them until it needs the room.")
      .field("is_required", &RemoteConfig::is_required,
             "Off: when no server can be used, the cache opens all the same and goes on without until one can. "
             "Cache.stats() and remote_status() say so. What is wrong with the configuration is an error in any case.")
      .field("key_prefix", &RemoteConfig::key_prefix,
             "All keys begin with it: 1 to 128 printable characters, no spaces and no braces, between which a cluster "
             "would look for the place of a key. Caches with different ones share nothing.")
      .field("extent_bytes", &RemoteConfig::extent_bytes,
             "The history is written in extents of consecutive pages, as many as fit, a power of two. Larger ones are "
             "moved faster, and what is found ends with one. All who share pages use the same.")
      .field("find_timeout_ns", &RemoteConfig::find_timeout_ns, "for its answer")
      .field("load_timeout_ns", &RemoteConfig::load_timeout_ns, "from there on, until the host has what was found")
      .field("store_timeout_ns", &RemoteConfig::store_timeout_ns, "to write what one transfer has")
      .field("access", &RemoteConfig::access)
      .field("rank_index", &RemoteConfig::rank_index, "As in DiskConfig.")
      .field("write_policy", &RemoteConfig::write_policy)
      .field("write_hits_min", &RemoteConfig::write_hits_min, "for WritePolicy.Selective")
      .field("write_bytes_per_day", &RemoteConfig::write_bytes_per_day, "0: no limit")
      .field("group_retention", &RemoteConfig::group_retention)
      .with_constructor()
      .def_prop_ro("is_on", &RemoteConfig::is_on, "There is a remote tier.");

  StructClass<ChunkConfig>(
      module, "ChunkConfig",
      "Pages that are found by their own tokens, wherever those stand in a prompt. Off without pages. Needs a layout "
      "whose groups all keep everything, and whose rows do not depend on tokens behind them.")
      .field("page_count_max", &ChunkConfig::page_count_max,
             "that can be found at once; more than the device has are never needed")
      .field("recompute_ratio", &ChunkConfig::recompute_ratio, "as in ChunkIndexConfig")
      .field("pin_count_max", &ChunkConfig::pin_count_max, "ChunkPins at once")
      .field("pinned_pages_max", &ChunkConfig::pinned_pages_max,
             "Pages that ChunkPins may hold in all, each counted with what stands before it in its path, which stays "
             "too. Unset: half of the pool that open() makes; all of it at most.")
      .with_constructor()
      .def_prop_ro("is_on", &ChunkConfig::is_on, "Chunks can be found.");

  StructClass<PlanConfig>(module, "PlanConfig", "What plans look like.")
      .field("page_tables", &PlanConfig::page_tables)
      .field("cascade_levels_max", &PlanConfig::cascade_levels_max,
             "Levels of shared prefixes in a plan, 1 for none: keys that several sequences of a step share are listed "
             "once, for kernels that read them once. Deeper sharing counts as each sequence's own. Above 1, plans "
             "choose their own order of entries. Block tables have one level.")
      .field("layer_windows", &PlanConfig::layer_windows,
             "Windows of layers that attend to their last tokens only and keep all of them in a full group, in tokens: "
             "the plan of every full group has trimmed page lists for each of them. This saves attention work, not "
             "pages: a window group saves both. At most 8, none with block tables, and none where no group is full.")
      .with_constructor();

  StructClass<Settings>(module, "CacheConfig",
                        "What a Cache is made of. Only the layout and the size of the device pool have no defaults.")
      .property(
          "layout", "ModelLayout | None",
          [](const Settings& self) -> std::optional<ModelLayout> {
            return self.has_layout ? std::optional(self.layout) : std::nullopt;
          },
          [](Settings& self, const std::optional<ModelLayout>& layout) {
            self.has_layout = layout.has_value();
            if (layout) self.layout = *layout;
          },
          "preset(\"llama-3-8b\"), ModelLayout.simple(…); None until it is set")
      .field("page", &Settings::page, "tokens per page, tensor-parallel ranks, order of heads")
      .field("device", &Settings::device)
      .field("host", &Settings::host)
      .field("disk", &Settings::disk)
      .field("remote", &Settings::remote)
      .field("chunks", &Settings::chunks)
      .field("sequence_count_max", &Settings::sequence_count_max, "live at once, waiting ones included")
      .field("context_tokens_max", &Settings::context_tokens_max,
             "Tokens of one sequence, prompt and output together; 0: as many as the pool holds.")
      .field("step_tokens_max", &Settings::step_tokens_max, "tokens computed in one step")
      .field("expected_requests", &Settings::expected_requests,
             "The mix of requests, each with its tokens, prompt and output together, and how often it comes beside the "
             "others: capacity_bytes is shared out so that all groups run out at the same time if requests are like "
             "that. Shorter ones need more of windows, longer ones more of the history. Empty: requests of one length, "
             "as long as leaves room for all sequences that may run at once, and 2,048 tokens at least.")
      .field("dedup", &Settings::dedup,
             "Two sequences that compute the same pages share one copy from the moment both are full. Off: the later "
             "one keeps its own, and what it computes from there on is not cached.")
      .field("steps_in_flight_max", &Settings::steps_in_flight_max, "steps planned and not finished")
      .field("tree_tokens_max", &Settings::tree_tokens_max, "undecided tree tokens of one sequence")
      .field("window_rewind_tokens", &Settings::window_rewind_tokens,
             "Tokens that a windowed sequence keeps beyond its window, so that it can be rewound by as many.")
      .field("plan", &Settings::plan)
      .field("extra_key_count_max", &Settings::extra_key_count_max, "extra keys of one sequence")
      .field("key_space_count_max", &Settings::key_space_count_max, "key spaces known at once")
      .field("keep_count_max", &Settings::keep_count_max, "prefixes kept at once")
      .field("keep_pages_max", &Settings::keep_pages_max, "Pages that keep() may hold in all; unset: half of the pool.")
      .field("partial_reuse_min_tokens", &Settings::partial_reuse_min_tokens,
             "A prefix that ends inside a cached page is reused by copying when it saves at least this many tokens; "
             "unset: half a page, and never less than 1.")
      .field("policy", &Settings::policy, "one of policy_names()")
      .field("whole_runs", &Settings::whole_runs,
             "Evict whole runs instead of just the pages needed, and never let a run grow in place: how other radix "
             "caches behave.")
      .field("hash_seed", &Settings::hash_seed,
             "Places runs in hash tables. A secret one keeps strangers from choosing tokens that collide.")
      .field("residency_record_count_max", &Settings::residency_record_count_max)
      .field("lost_page_count_max", &Settings::lost_page_count_max,
             "Evicted pages that are remembered, to tell why a request missed them; unset: as many as the tiers have "
             "pages when there is a host tier, else none.")
      .with_constructor()
      .def(
          "validate", [](const Settings& self) { take(make_request(self).config.validate()); },
          "Raises what is wrong with this configuration, if anything; Cache.open() asks it first.");
}

}  // namespace quire::python
