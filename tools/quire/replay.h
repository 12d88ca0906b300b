// SPDX-License-Identifier: Apache-2.0
//
// Replaying a trace: every request goes through a quire::Cache as an engine would send it, one configuration of the
// cache per replay. Nothing is simulated beside the cache; only the model is missing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "disk_tier.h"
#include "host_tier.h"
#include "quire/result.h"
#include "quire/stats.h"
#include "quire/types.h"
#include "remote_tier.h"
#include "trace.h"
#include "trace_facts.h"

namespace quire {

enum class BytesMode : std::uint8_t {
  None,    ///< bookkeeping only: pages have no bytes
  Verify,  ///< every byte is written when computed, and checked whenever a request finds it in the cache
};

/// Which requests the groups of a model share memory out for.
enum class RequestMix : std::uint8_t {
  Trace,    ///< such as the trace has
  Longest,  ///< all as long as its longest
};

/// What distinguishes one replay of a trace from the others.
struct ReplayConfig {
  std::string policy = "lru";
  std::uint32_t page_tokens = 16;
  std::uint64_t capacity_tokens = 0;
  std::uint64_t capacity_bytes = 0;  ///< instead, where it is not 0; capacity_tokens is then what they hold
  /// Of all keys of the remote tier, for this replay alone unless it was given.
  std::string remote_prefix;
  std::string disk_folder;  ///< below each of the disk tier's directories, so that replays have stores of their own
};

/// A pause before request number `request_index` until all before it are done; then the next `window_count` requests
/// are counted by themselves. 0: none.
struct RestartSettings {
  std::size_t request_index = 0;
  std::size_t window_count = 0;
  /// In the pause the cache is closed, after a flush where there is a disk tier, and another one is opened.
  bool has_new_cache = true;
};

/// What all replays of one command have in common.
struct ReplaySettings {
  /// Caches of this replay, each with tiers of its own of the sizes given. Requests go to them in turn, and each one
  /// has run its request, as far as running_max lets it wait, before the next one goes on.
  std::uint32_t engine_count = 1;
  std::string model;  ///< one of preset_names(), for its groups and their pages; empty: token_bytes per token
  std::uint32_t token_bytes = 1'024;
  BytesMode bytes = BytesMode::None;
  RequestMix mix = RequestMix::Trace;
  std::uint32_t running_max = 1;  ///< requests in flight at once; with 1 they run one after the other
  bool flip_a_byte = false;       ///< damages a cached page on purpose
  double flip_share = 0.5;        ///< where in what a request finds: 0 is its first token, 1 its last
  HostTierSettings host;
  /// With a host tier and Verify: requests begin while their pages arrive, and wait for these layer by layer.
  bool plans_while_loading = false;
  DiskTierSettings disk;  ///< needs the host tier and BytesMode::Verify
  /// Needs both, too. Engines share it, and then the replay is repeated without it, to compare.
  RemoteTierSettings remote;
  RestartSettings restart;
  std::uint32_t bin_count = 96;  ///< of ReplayOutcome::timeline

  /// There is a tier in which pages are found by name.
  [[nodiscard]] bool has_named_tier() const { return disk.is_on() || remote.is_on(); }
};

/// A stretch of the trace: equal spans of its timestamps, or of its requests when it has none.
struct TimeBin {
  double begin = 0;  ///< seconds from the trace's first request, or the number of the stretch's first request
  std::uint64_t prompt_tokens = 0;
  std::uint64_t hit_tokens = 0;
  std::uint32_t cached_pages = 0;  ///< at its end
};

/// Tokens per key space.
struct KeySpaceOutcome {
  std::uint64_t prompt_tokens = 0;
  std::uint64_t hit_tokens = 0;
};

/// What one of several engines found.
struct EngineOutcome {
  std::uint64_t request_count = 0;
  std::uint64_t prompt_tokens = 0;
  std::uint64_t hit_tokens = 0;
  std::uint64_t host_hit_tokens = 0;     ///< of these, loaded from its host tier
  std::uint64_t disk_hit_tokens = 0;     ///< and read from its disk tier
  std::uint64_t remote_hit_tokens = 0;   ///< and got from the remote tier
  std::uint64_t private_hit_tokens = 0;  ///< with a remote tier: hit_tokens of the same replay without it

  [[nodiscard]] double hit_rate() const {
    return prompt_tokens == 0 ? 0 : static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens);
  }
  [[nodiscard]] double private_hit_rate() const {
    return prompt_tokens == 0 ? 0 : static_cast<double>(private_hit_tokens) / static_cast<double>(prompt_tokens);
  }
  [[nodiscard]] std::uint64_t device_hit_tokens() const {
    return hit_tokens - host_hit_tokens - disk_hit_tokens - remote_hit_tokens;
  }
  EngineOutcome& operator+=(const EngineOutcome& other) {
    request_count += other.request_count;
    prompt_tokens += other.prompt_tokens;
    hit_tokens += other.hit_tokens;
    host_hit_tokens += other.host_hit_tokens;
    disk_hit_tokens += other.disk_hit_tokens;
    remote_hit_tokens += other.remote_hit_tokens;
    private_hit_tokens += other.private_hit_tokens;
    return *this;
  }
};

/// A page whose bytes are not those that were written.
struct Corruption {
  std::uint64_t line = 0;  ///< of the request that found it
  std::string group;       ///< empty for a model with one full group
  bool is_slot = false;    ///< a state slot, not a page
  std::uint32_t page = 0;
  std::uint64_t offset = 0;  ///< of the first wrong byte in the page
  std::string prefix;        ///< key space and tokens that the page belongs to, for people
};

/// Requests that did not find all whole pages of their prompts, or none such, and what they computed of the prompts.
struct MissOutcome {
  std::uint64_t request_count = 0;
  std::uint64_t token_count = 0;
};

/// What the host tier did.
struct HostTierOutcome {
  std::uint32_t page_count = 0;
  std::uint64_t hit_tokens = 0;           ///< of the replay's hit_tokens: loaded for the request
  std::uint64_t stored_bytes = 0;         ///< to the host
  std::uint64_t loaded_bytes = 0;         ///< to the device
  std::uint64_t evicted_pages = 0;        ///< given up on the host
  std::uint64_t lost_pages = 0;           ///< given up on the device, of which the host had no copy
  std::uint64_t early_request_count = 0;  ///< whose first step began before their pages had all arrived
  std::uint64_t early_step_count = 0;     ///< steps that did
  /// By MissReason, of requests that ran. Together with the hits, these are all their prompt tokens.
  std::array<MissOutcome, kMissReasonCount> misses{};
  std::string region;  ///< what its memory lies in, for people; empty when pages have no bytes
};

/// What the disk tier did.
struct DiskTierOutcome {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t hit_tokens = 0;     ///< of the replay's hit_tokens: read from disk for the request
  std::uint64_t page_count = 0;     ///< in the store at the end
  std::uint64_t found_pages = 0;    ///< in it at the beginning: of an earlier process
  std::uint64_t written_bytes = 0;  ///< to disk, with everything around the pages
  std::uint64_t read_bytes = 0;     ///< of pages, to the host
  std::uint64_t evicted_pages = 0;  ///< that went to make room
  bool has_failed = false;          ///< the replay went on without it
  std::string last_error;           ///< empty: none
  std::string mode;                 ///< how files were accessed, for people
};

/// What the remote tier did.
struct RemoteTierOutcome {
  std::uint64_t hit_tokens = 0;  ///< of the replay's hit_tokens: got from the servers for the request
  std::uint32_t extent_pages = 0;
  std::uint64_t put_values = 0;
  std::uint64_t put_bytes = 0;      ///< of pages
  std::uint64_t kept_values = 0;    ///< that were there already
  std::uint64_t got_bytes = 0;      ///< of pages, to the host
  std::uint64_t absent_values = 0;  ///< gone between question and answer
  std::uint64_t bad_values = 0;     ///< damaged or foreign; they were not used
  std::uint64_t late_objects = 0;
  std::uint64_t failed_objects = 0;
  std::string last_error;  ///< empty: none
};

/// One group of a model that has several: what it was given, and what it did.
struct GroupOutcome {
  std::string name;
  std::string kind;              ///< "full", "window 128", "compressed 4", "snapshot"
  std::uint64_t page_bytes = 0;  ///< 0: it has no pages
  std::uint64_t slot_bytes = 0;  ///< of its part of a state slot; 0: none
  /// Pages as of the end; totals of the whole replay. Full and compressed groups have theirs in common.
  GroupStats stats;
  /// Requests whose hit ended earlier than what is kept of their prompts, because this group could not go on there, and
  /// what they computed of the prompts (MissReason::NotHeld).
  MissOutcome limited;
};

/// Of several engines together: pages and bytes are those of all.
struct ReplayOutcome {
  ReplayConfig config;
  std::uint32_t page_count = 0;
  std::uint64_t page_bytes = 0;  ///< of several groups, those that keep everything
  std::uint64_t device_bytes =
      0;  ///< of all groups, with null pages and state slots; 0 for a model with one full group

  std::uint64_t request_count = 0;
  std::uint64_t prompt_tokens = 0;  ///< of all requests, those over the pool included
  std::uint64_t hit_tokens = 0;
  std::uint64_t partial_hit_tokens = 0;  ///< of these, found at the start of a page and copied
  std::uint64_t hit_request_count = 0;   ///< requests that found anything
  /// Hits beyond what the request's own key space can have: none, or the cache is wrong.
  std::uint64_t shared_hit_tokens = 0;
  std::uint64_t over_pool_count = 0;           ///< requests that need more pages than the pool has: not run, no hits
  std::vector<std::uint64_t> over_pool_lines;  ///< the first few of them
  std::uint64_t sealed_pages = 0;
  std::uint64_t evicted_pages = 0;
  std::uint64_t verified_bytes = 0;
  std::vector<KeySpaceOutcome> key_spaces;
  std::vector<TimeBin> timeline;
  /// Runs in the tree at the end, by length: [i] counts those of 2^i pages or more, and less than 2^(i+1).
  std::vector<std::uint64_t> run_lengths;
  std::vector<GroupOutcome> groups;    ///< in the model's order; empty for a model with one full group
  std::vector<EngineOutcome> engines;  ///< in their turn; empty for one
  std::optional<HostTierOutcome> host;
  std::optional<DiskTierOutcome> disk;
  std::optional<RemoteTierOutcome> remote;
  KeySpaceOutcome window;                ///< of the requests that follow RestartSettings::request_index
  std::optional<Corruption> corruption;  ///< the replay stopped there

  [[nodiscard]] double hit_rate() const {
    return prompt_tokens == 0 ? 0 : static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens);
  }
};

/// The bound for one capacity, beside the outcomes.
struct BoundOutcome {
  std::uint64_t capacity_tokens = 0;
  std::uint64_t host_tokens = 0;  ///< that the host tier holds besides
  std::uint64_t disk_tokens = 0;  ///< that the disk tier holds besides
  std::uint64_t prompt_tokens = 0;
  std::uint64_t hit_tokens = 0;
  std::vector<TimeBin> timeline;  ///< cached_pages is not known
  [[nodiscard]] double hit_rate() const {
    return prompt_tokens == 0 ? 0 : static_cast<double>(hit_tokens) / static_cast<double>(prompt_tokens);
  }
};

/// What other threads may see and change of a replay under way.
struct ReplayControl {
  std::atomic<std::uint64_t> done_tokens = 0;  ///< prompt tokens so far
  std::atomic<bool> stop = false;              ///< set it to end the replay early, with ErrorCode::Cancelled
  std::function<void()> before_request = {};   ///< for who wants to pace it; on the thread of the replay
};

/// The pools of a replay, of one engine.
struct ReplayPool {
  std::uint32_t page_count = 0;
  std::uint64_t page_bytes = 0;
  std::uint32_t host_page_count = 0;
  std::vector<GroupOutcome> groups;  ///< as in ReplayOutcome
  std::uint64_t device_bytes = 0;
  std::uint64_t host_bytes = 0;

  /// Of all device pages, or the highest value if there are more.
  [[nodiscard]] std::uint64_t bytes() const {
    if (!groups.empty()) return device_bytes;
    std::uint64_t product = 0;
    const bool is_too_large = __builtin_mul_overflow(std::uint64_t{page_count}, page_bytes, &product);
    return is_too_large ? std::numeric_limits<std::uint64_t>::max() : product;
  }
};

/// Tokens per page where nothing else is asked for: 16, or as many as make whole entries of the model; without a model,
/// or with one of a single full group, a unit of the trace if that is more than a token.
[[nodiscard]] Result<std::uint32_t> usual_page_tokens(const Trace& trace, const std::string& model);
/// The model has groups beside a full one: its requests are replayed token by token, whatever the trace's units.
[[nodiscard]] Result<bool> has_several_groups(const std::string& model);
/// Checks what can be known before the work: the policy, the model, the sizes, and with Verify the bytes of a page.
[[nodiscard]] Status check_replay(const Trace& trace, const ReplayConfig& config, const ReplaySettings& settings);
/// What check_replay() finds to be good, in pages.
[[nodiscard]] Result<ReplayPool> pool_of(const Trace& trace, const ReplayConfig& config,
                                         const ReplaySettings& settings);
[[nodiscard]] Result<ReplayOutcome> replay(const Trace& trace, const TraceFacts& facts, const ReplayConfig& config,
                                           const ReplaySettings& settings, ReplayControl& control);

}  // namespace quire
