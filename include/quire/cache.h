// SPDX-License-Identifier: Apache-2.0
//
// Cache: finds the longest cached prefix of each request, hands out pages for the rest, and keeps what was computed for
// whoever comes next. An engine's loop:
//
//     auto cache = *Cache::open({.layout = *preset("llama-3-8b"), .device = {.capacity_bytes = 8ULL << 30}});
//     KeySpaceId space = *cache->key_space({.model = "llama-3-8b"});
//     Sequence sequence = *cache->begin(space, {.tokens = prompt});
//     Admission hit = *cache->admit(sequence);                    // hit.matched_tokens need no prefill
//     while (…) {
//       StepEntry entry{&sequence};                               // all of its pending tokens
//       PlanOutcome outcome = *cache->plan_step({&entry, 1});     // outcome.step, or what is short
//       Status copied = cache->apply_copies(*outcome.step);       // in memory of quire's own
//       …                                                         // run the model as outcome.step->plan says
//       Status saved = cache->apply_saves(*outcome.step);         // where the layout has state
//       StepResult result{.tokens = sampled};
//       Status done = cache->finish_step(*outcome.step, {&result, 1});  // full pages are cached from here on
//     }
//     Status ended = cache->end(sequence);
//
// A failed call has changed nothing but which cached pages are where: one that finds too few pages has copies to the
// host started, so that the next one finds more. No call after open() allocates, but for key_space(), resize(),
// check_invariants(), the text of an Error, and the first report to ranks.
//
// single-threaded: calls are refused on any thread but the owner's, which is the one that opened the cache or last
// called set_owner_thread(). Sequence and ChunkPin handles may be dropped on any thread, and may outlive the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/chunk_index.h"
#include "quire/config.h"
#include "quire/introspect.h"
#include "quire/key_space.h"
#include "quire/layout.h"
#include "quire/plan.h"
#include "quire/result.h"
#include "quire/state_slots.h"
#include "quire/stats.h"
#include "quire/transfer.h"
#include "quire/types.h"

namespace quire {

class FileSystem;
class HostPages;

class ReleaseQueue;

/// Tokens to look for or to cache, with what they depend on besides. Copied by whoever needs it longer than the call.
struct Prompt {
  std::span<const TokenId> tokens = {};
  /// By position, not overlapping, within the tokens.
  std::span<const ExtraKey> extra_keys = {};
};

struct SequenceOptions {
  /// Reuse no more than this many tokens of what is cached (all, when unset): prompt log-probabilities need the rest
  /// computed.
  std::optional<std::uint32_t> match_tokens_max = std::nullopt;
  bool use_cache = true;  ///< false: match nothing
  Publish publish = Publish::All;
  /// Prompt and output together, as far as can be told. admit() then waits until the pages for it are there, besides
  /// those that other running sequences still expect. 0: unknown, and nothing is held back for it.
  std::uint32_t expected_tokens = 0;
  /// For policies that heed them, such as "priority": what this sequence uses or adds is worth more than what lower
  /// priorities do, and for no longer than ttl_ns after it was last used or added (for ever, when unset).
  std::int8_t priority = 0;
  std::optional<TimeNs> ttl_ns = std::nullopt;
  Prefetch prefetch = Prefetch::Off;
  TimeNs load_timeout_ns = 0;  ///< for Prefetch::Timeout, from admit() on
  /// Steps may be planned as soon as all pages that the host has of the prompt are on their way to the device, before
  /// they have arrived. The engine then waits layer by layer for the loads that a step lists (Step::loads).
  bool plan_while_loading = false;
  Tier tier_max = Tier::Remote;  ///< the lowest tier to take pages from
  /// Groups may be rebuilt by a replay that does not give the same bytes (GroupReplay::is_exact). What follows one is
  /// not cached.
  bool allow_inexact_replay = false;
};

/// What one of several ranks with a cache each tells the others.
struct RankReport {
  std::uint32_t rank_index = 0;            ///< which rank this is, counted from 0; the same in all its reports
  std::uint32_t rank_count = 0;            ///< ranks that exchange reports
  TimeNs now = 0;                          ///< this rank's time, as for advance()
  std::span<const Completion> moved = {};  ///< what an external mover has ended
};

/// What ranks with a cache each have agreed on.
struct RankAgreement {
  TimeNs now = 0;                                ///< the cache's time
  std::span<const Completion> completions = {};  ///< that were applied; valid until the next apply_ranks()
};

/// A live sequence. Move-only; dropping it ends the sequence at the cache's next call.
class Sequence {
 public:
  Sequence() = default;
  Sequence(Sequence&& other) noexcept : queue_(std::move(other.queue_)), id_(std::exchange(other.id_, {})) {}
  /// What this handle held before is dropped.
  Sequence& operator=(Sequence&& other) noexcept {
    Sequence taken(std::move(other));
    std::swap(queue_, taken.queue_);
    std::swap(id_, taken.id_);
    return *this;
  }
  ~Sequence();

  /// Of an ended sequence too.
  [[nodiscard]] SequenceId id() const { return id_; }
  [[nodiscard]] explicit operator bool() const { return queue_ != nullptr; }

 private:
  friend class Cache;
  Sequence(std::shared_ptr<ReleaseQueue> queue, SequenceId id) : queue_(std::move(queue)), id_(id) {}

  // Shared with the cache, so that a handle dropped later or elsewhere has somewhere to say so.
  std::shared_ptr<ReleaseQueue> queue_;
  SequenceId id_;
};

struct Lookup {
  std::uint32_t matched_tokens = 0;  ///< on the device, partial_tokens included
  std::uint32_t replay_tokens = 0;   ///< of them, to be computed again for groups that have to be rebuilt
  std::uint32_t partial_tokens = 0;  ///< of them, at the start of a page, to be copied
  std::uint32_t host_tokens = 0;     ///< that follow the whole pages on the device, on the host
};

struct Admission {
  std::uint32_t matched_tokens = 0;  ///< that are cached, partial_tokens included
  /// The last of them that are computed all the same, for groups that have to be rebuilt: the history is not written
  /// again. What needs no computing is matched_tokens - replay_tokens.
  std::uint32_t replay_tokens = 0;
  /// Of them, those to be copied by the first step. When pages are short, plan_step gives the copy up instead, and the
  /// tokens are pending again.
  std::uint32_t partial_tokens = 0;
  /// On their way from the host, besides: the sequence is loading, and view() tells when it is not. They need no
  /// computing if they arrive.
  std::uint32_t loading_tokens = 0;
  /// Steps can be planned at once: with plan_while_loading, also while tokens are loading. Else the sequence is
  /// loading, or looks for more of its tokens on disk.
  bool is_ready = true;
  Miss miss = {};  ///< why the rest has to be computed; of a loading sequence as far as can be told
};

/// Told that a sequence need not wait any longer.
using ReadyCallback = std::function<void(SequenceId)>;

/// How long a call may wait, and how it tells the time and lets it pass.
struct WaitOptions {
  std::optional<TimeNs> timeout_ns = std::nullopt;  ///< by `now`; unset: no limit
  /// What apply() is told, in the caller's time. Unset: the system's clock goes on from the time that the cache was
  /// told last, so that it never runs ahead of a caller who tells it the time of a clock.
  std::function<TimeNs()> now = {};
  /// Returns when event_fd is readable, or after timeout_ns, or earlier. Unset: poll() of the system.
  std::function<void(int event_fd, TimeNs timeout_ns)> wait = {};
};

/// A sequence that sees its first `sink_tokens` tokens and the most recent ones, `visible_tokens` in all. A group's
/// window_tokens do not count the sink: such a group sees window_tokens + sink_tokens.
struct Window {
  std::uint32_t visible_tokens = 0;  ///< sink and most recent ones together
  std::uint32_t sink_tokens = 0;
};

struct SequenceView {
  bool is_waiting = false;            ///< begun or preempted, not admitted
  bool is_ready = false;              ///< steps can be planned, as far as this sequence goes
  bool is_planned = false;            ///< part of a step in flight
  bool is_loading = false;            ///< admitted, and pages are on their way from the host
  bool is_receiving = false;          ///< between prepare_receive and finish_receive
  std::uint32_t token_count = 0;      ///< known tokens: the prompt, and what was added since
  std::uint32_t computed_tokens = 0;  ///< for all groups; undecided tree tokens not counted, nor replay_tokens
  std::uint32_t host_tokens = 0;      ///< that its admission found on the host, and had loaded
  std::uint32_t disk_tokens = 0;      ///< that its admission found on disk, and had read and loaded
  std::uint32_t remote_tokens = 0;    ///< the same of the remote tier
  /// To be computed, and in no step in flight. 1 when all is computed but nobody has asked for what comes next, as
  /// after a prompt that was cached whole: its last token then runs again, writing nothing.
  std::uint32_t pending_tokens = 0;
  std::uint32_t tree_tokens = 0;  ///< computed and undecided
  std::uint32_t steps_in_flight = 0;
  Window window = {};                 ///< visible_tokens 0: none
  std::uint32_t state_slot = 0;       ///< of an admitted one; see AttentionPlanEntry
  std::uint32_t next_checkpoint = 0;  ///< tokens behind which a snapshot is taken next: steps end there; 0: nowhere
  std::uint32_t replay_tokens = 0;    ///< of the pending ones: groups that keep everything have them, others do not
  Miss miss = {};                     ///< as of its admission, or of the end of its load

  /// Valid until the next call that changes the sequence, also when this view is gone.
  [[nodiscard]] std::span<const PageId> pages() const { return pages_; }

 private:
  friend class Cache;
  std::span<const PageId> pages_;
};

struct StepEntry {
  const Sequence* sequence = nullptr;
  /// At most the sequence's pending tokens; 0: all of them. While steps of the sequence are in flight, one more for
  /// each of them: tokens that they will bring.
  std::uint32_t token_count = 0;
  /// Tokens to compute behind all pending ones, to be accepted or not: a chain of so many … (A sequence whose last
  /// token has to run again does that first, without drafts.)
  std::uint32_t draft_count = 0;
  /// … or a tree: for each token its parent among the sequence's tree tokens, which stands before it, or -1 for the
  /// last known token. Later rounds count on: a tree of 3 grows by {2, 3} to 5 tokens, each the child of the one
  /// before.
  std::span<const std::int32_t> tree_parents = {};
};

/// A load that a step reads pages of, before they have arrived.
struct StepLoad {
  TransferId id = {};
  std::uint16_t pool_index = 0;  ///< as in its TransferPlan
  std::uint16_t band_count = 1;
};

struct Step {
  std::uint64_t number = 0;
  const void* cache = nullptr;  ///< whose step it is
  AttentionPlan plan = {};
  /// What has to arrive while the step is computed, of sequences with plan_while_loading: see wait_for_layer(). Valid
  /// as long as the plan.
  std::span<const StepLoad> loads = {};
};

/// A layer of a group, both by index: of the group in the layout, of the layer in the group.
struct GroupLayer {
  std::uint32_t group_index = 0;
  std::uint32_t layer_index = 0;
};

/// Why plan_step planned nothing: evicting everything evictable would not give enough pages. Of several groups that are
/// short, the first.
struct Shortage {
  std::uint32_t group_index = 0;  ///< in ModelLayout::groups()
  std::uint32_t pages_needed = 0;
  std::uint32_t pages_available = 0;
  std::uint32_t pages_returning = 0;   ///< given back, and free once the steps in flight are finished
  std::uint32_t pages_leaving = 0;     ///< on their way to the host: so many at most are available once that is done
  std::uint32_t entries_that_fit = 0;  ///< so many leading entries could be planned without the rest
  /// Behind these, the next entry could be planned with so many tokens, as its token_count and without drafts or a
  /// tree. 0: with none.
  std::uint32_t fitting_tokens = 0;
  bool is_of_history = true;  ///< the group keeps everything: others that do are short of the same pages
};

struct PlanOutcome {
  std::optional<Step> step = std::nullopt;  ///< nothing: see shortage
  Shortage shortage = {};
};

struct StepResult {
  /// New tokens of the sequence, when the step has computed its last known one. The first accepted_count are drafts of
  /// this step, so their K and V are there; the rest is to be computed by a later step. For a tree: the values of all
  /// its tokens in this step; commit_tree() decides.
  std::span<const TokenId> tokens = {};
  std::uint32_t accepted_count = 0;
  /// The entry, and what later steps in flight compute of the sequence, did not happen.
  bool discard = false;
};

/// What becomes of a preempted sequence's pages.
enum class Preempt : std::uint8_t {
  Drop,  ///< they go; what is cached of them may be found again by resume(), the rest is computed again
  /// Copies of all groups' pages go to the host tier, and the device's when all have arrived; resume() brings them
  /// back. When one does not arrive, the sequence runs on. A state stays in its state slot.
  Save,
};

/// What is left of a cache that sleeps.
enum class Sleep : std::uint8_t {
  KeepHost,  ///< what the host has room for
  DropAll,   ///< nothing in memory, and the host's is given back too; what is on disk stays
};

/// The disk tier, as its store sees it. Totals count since open().
struct DiskStatus {
  std::uint64_t capacity_bytes = 0;
  std::uint64_t used_bytes = 0;  ///< of files
  std::uint64_t live_bytes = 0;  ///< of records that can be found
  std::uint64_t page_count = 0;
  std::uint32_t segment_count = 0;
  std::uint64_t written_bytes = 0;
  std::uint64_t carried_bytes = 0;  ///< part of it, to make room
  std::uint64_t read_bytes = 0;
  std::uint64_t evicted_page_total = 0;
  std::uint64_t corrupt_page_total = 0;  ///< dropped, when opening and since
  std::uint64_t torn_page_total = 0;     ///< were being written when the last process ended
  std::uint64_t other_layout_pages = 0;  ///< of another model or page size: never read, and first to go
  std::uint64_t ignored_file_count = 0;  ///< segments of no store, or of another: left alone
  std::uint32_t directory_count = 0;
  std::uint32_t failed_directory_count = 0;
  std::uint64_t failed_segment_count = 0;
  bool uses_io_uring = false;
  bool is_direct = false;  ///< O_DIRECT
  bool has_registered_buffers = false;
  std::string refusals = {};    ///< what was asked of the system and refused, and why
  std::string last_error = {};  ///< empty: none so far
};

/// The remote tier. Totals count since open().
struct RemoteTierStatus {
  bool is_usable = true;  ///< false: every question fails at once, until a server can be reached
  std::uint32_t node_count = 0;
  std::uint32_t failed_nodes = 0;   ///< left alone for a while
  std::uint64_t waiting_bytes = 0;  ///< of values that are not on their way yet
  std::string last_error = {};      ///< empty: none so far; never has a password
  std::uint32_t extent_pages = 1;   ///< of the history, in one value
  double question_ns = 0;           ///< how long answers take, as measured of late; 0: not yet
  double load_bytes_per_ns = 0;
  std::uint64_t asked_names = 0;
  std::uint64_t spared_names = 0;  ///< not asked for: they were absent a moment ago
  std::uint64_t got_values = 0;    ///< that came and were right
  std::uint64_t got_bytes = 0;
  std::uint64_t put_values = 0;
  std::uint64_t put_bytes = 0;
  std::uint64_t kept_values = 0;     ///< not put, because the servers have them
  std::uint64_t absent_values = 0;   ///< gone when they were to be read
  std::uint64_t corrupt_values = 0;  ///< came damaged: they are put anew, or dropped when they come so again
  std::uint64_t foreign_values = 0;  ///< came as somebody else's under the name of a page, and the same
  std::uint64_t late_objects = 0;
  std::uint64_t failed_objects = 0;
  std::uint64_t failed_drops = 0;  ///< of key spaces; each is tried again
};

/// What came of a direct call to the disk tier.
struct DiskAnswer {
  TransferOutcome outcome = TransferOutcome::Ok;
  /// Leading tokens of the prompt that were found, written or read; 0: none. Where several groups have a say, up to
  /// where all of them can go on with what was, as admit() would find it for a prompt that goes on there.
  std::uint32_t token_count = 0;
  /// The last of them, to be computed once more for groups that lack what they need and declare an exact replay,
  std::uint32_t replay_tokens = 0;
  std::vector<std::uint32_t> rebuilt_groups = {};  ///< and those groups, by index in the layout
};

/// Where one group's pages lie among the bytes of a direct call: those of the path's pages [0, sink_pages) and
/// [first_page, end_page), in this order.
struct DirectPart {
  std::uint32_t group_index = 0;
  std::uint32_t sink_pages = 0;
  std::uint32_t first_page = 0;
  std::uint32_t end_page = 0;
  std::uint64_t page_bytes = 0;    ///< of the group's page, page-first
  std::uint64_t offset = 0;        ///< of the first of them
  std::uint64_t stride_bytes = 0;  ///< from one to the next: groups of the history lie side by side

  [[nodiscard]] std::uint32_t page_count() const { return sink_pages + end_page - first_page; }
  /// Where the group's part of a page of the path begins, if it has one.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(std::uint32_t page) const {
    if (page < sink_pages) return offset + (page * stride_bytes);
    if (page < first_page || page >= end_page) return std::nullopt;
    return offset + ((sink_pages + page - first_page) * stride_bytes);
  }
};

/// What put_on_disk() and get_from_disk() move of a prompt:
///
///     history             all pages, one behind the other, each with the full and compressed groups in the layout's
///                         order. Where there are none, page_tokens bytes for each page, whose values do not matter
///     each other group    of a window group, the pages of the sink and those that are needed to go on at the end; of
///                         a snapshot group, the snapshot at the end. Nothing of a group that is not on disk
///
/// A cache that drives several ranks, which hold different heads, has all of this for each shard of ranks, one behind
/// the other: those of shard i begin at i * byte_count / shard_count.
struct DirectBytes {
  /// Leading tokens of the prompt: whole pages, up to a multiple of every group's boundary.
  std::uint32_t token_count = 0;
  std::uint64_t byte_count = 0;        ///< of all shards
  std::uint32_t shard_count = 1;       ///< ranks that follow one another and hold the same heads are a shard
  std::vector<DirectPart> parts = {};  ///< of one shard, in the layout's order; groups that are not on disk have none
};

/// Names a prefix held by keep().
struct KeepId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend constexpr auto operator<=>(KeepId, KeepId) = default;
};

struct Kept {
  KeepId id = {};
  /// The cached part of what was asked for, in whole pages; where several groups have a say, up to where all of them
  /// can go on, replays included.
  std::uint32_t token_count = 0;
};

/// Keeps the pages of a match by chunks on the device. Move-only; dropping it lets them go at the cache's next call. It
/// may be dropped on any thread, and may outlive the cache.
class ChunkPin {
 public:
  ChunkPin() = default;
  ChunkPin(ChunkPin&& other) noexcept : queue_(std::move(other.queue_)), index_(other.index_) {}
  /// What this handle held before is dropped.
  ChunkPin& operator=(ChunkPin&& other) noexcept {
    ChunkPin taken(std::move(other));
    std::swap(queue_, taken.queue_);
    std::swap(index_, taken.index_);
    return *this;
  }
  ~ChunkPin() { reset(); }
  void reset();
  [[nodiscard]] explicit operator bool() const { return queue_ != nullptr; }

 private:
  friend class Cache;
  ChunkPin(std::shared_ptr<ReleaseQueue> queue, std::uint32_t index) : queue_(std::move(queue)), index_(index) {}

  // Shared with the cache, so that a handle dropped later or elsewhere has somewhere to say so.
  std::shared_ptr<ReleaseQueue> queue_;
  std::uint32_t index_ = 0;
};

struct PinnedChunks {
  ChunkMatch match = {};
  ChunkPin pin = {};  ///< while it lives, the pages of the match are where their handles say; empty if none was found
};

/// Names a prefix held by hold_on_host().
struct HoldId {
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  friend constexpr auto operator<=>(HoldId, HoldId) = default;
};

struct HoldOptions {
  std::optional<TimeNs> ttl_ns = std::nullopt;  ///< how long, from the call on; unset: until release_hold()
  std::optional<TimeNs> timeout_ns =
      std::nullopt;              ///< how long pages may take from lower tiers; unset: as long as they take
  Tier tier_max = Tier::Remote;  ///< the lowest tier to take pages from
};

/// What hold_on_host() has of a prefix by now.
struct HeldPrefix {
  HoldId id = {};
  std::uint32_t token_count = 0;  ///< in memory, in whole pages: where a request can go on
  bool is_arriving = false;       ///< more may come from lower tiers
  Miss miss = {};                 ///< why the rest did not come, once nothing more will
};

/// Pages of a window or snapshot group that go with consecutive pages of a path. A window's holds the same tokens; a
/// snapshot was taken where the path's page ends.
struct GroupPages {
  std::uint32_t group_index = 0;
  std::uint32_t first_page = 0;  ///< the path's page that page_ids[0] goes with
  std::span<const PageId> page_ids = {};
};

struct ExternalMatch {
  using IsBorrowed = void;  // see Result

  Sequence sequence = {};  ///< while it lives, the pages are not released
  /// Where all groups can go on, in whole pages. A prompt that is found whole runs its last token once more, which a
  /// state must not count twice: with a state it ends before.
  std::uint32_t token_count = 0;
  std::uint32_t replay_tokens = 0;  ///< the last of them, to be computed once more for groups that are not in `groups`
  std::span<const PageId> pages = {};  ///< of the history; valid as long as `sequence`
  /// What other groups need to go on, valid as long: of a window the pages of its sink, if those lie apart, and of its
  /// last tokens; of a state the snapshot to begin with. Groups that are rebuilt by a replay are left out.
  std::span<const GroupPages> groups = {};
};

struct Offer {
  /// The whole path, from its first token on.
  Prompt prompt = {};
  /// The path's page that page_ids[0] holds. The pages before it must be cached.
  std::uint32_t first_page = 0;
  /// Of the history: groups that keep everything have ids in common. Where there is no such group, ids without bytes.
  /// None, when `groups` has some and first_page is the end.
  std::span<const PageId> page_ids = {};
  /// What the engine has of other groups, of any pages of the path, and of a group in as many pieces as it likes.
  std::span<const GroupPages> groups = {};
};

/// A page of one group.
struct GroupPage {
  std::uint32_t group_index = 0;
  PageId page = {};
  friend constexpr bool operator==(GroupPage, GroupPage) = default;
};

struct OfferOutcome {
  /// How many pages of the path before first_page are cached; if fewer than first_page, nothing was adopted.
  std::uint32_t prefix_pages = 0;
  std::uint32_t duplicate_pages = 0;      ///< the first of page_ids: cached under other ids, these stay the engine's
  std::uint32_t adopted_pages = 0;        ///< the rest: quire may read them until it reports them as released
  std::uint32_t adopted_group_pages = 0;  ///< the same of `groups`,
  std::vector<GroupPage> group_duplicates = {};  ///< but for these, which stay the engine's: the path has others there
};

/// Where a receiving sequence has room for what groups hold that do not keep everything.
struct ReceiveTargets {
  using IsBorrowed = void;  // see Result

  /// Of paged window groups, group by group and in order of position: the tokens that the sequence still needs once it
  /// has received all, in whole pages. The others are not sent.
  std::span<const WindowRun> windows = {};
  std::int32_t state_slot = -1;  ///< where the state behind the last token goes; -1: the layout has none
};

class Cache {
 public:
  /// Refuses a configuration that cannot work, with the arithmetic.
  [[nodiscard]] static Result<std::unique_ptr<Cache>> open(CacheConfig config);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  /// Makes the calling thread the owner. The former owner must be done with the cache.
  void set_owner_thread();

  /// The id of a key space, the same for equal ones. Unused key spaces make room for new ones. With a remote tier,
  /// which others share, KeySpace::model is not empty.
  [[nodiscard]] Result<KeySpaceId> key_space(const KeySpace& key_space);
  /// How much of a prompt begin() and admit() with these options would find now. Changes nothing, not even recency.
  [[nodiscard]] Result<Lookup> lookup(KeySpaceId key_space, const Prompt& prompt,
                                      const SequenceOptions& options = {}) const;

  /// What the whole pages of a prompt are called outside the process: the names of their records on disk. With or
  /// without a disk tier. Hashes all tokens on the calling thread, some hundred nanoseconds a page, and allocates: not
  /// for the step path.
  [[nodiscard]] Result<std::vector<PageName>> page_names(KeySpaceId key_space, const Prompt& prompt) const;

  // Sequences: begin, admit, then steps until end.

  /// Where begin() would copy the prompt's tokens to. Whoever has them in another form, such as 64 bits each or in
  /// several parts, writes them here and gives begin() what was written: then they are not copied again. For
  /// context_tokens_max tokens, and valid until the next call; empty when all sequences are live.
  [[nodiscard]] Result<std::span<TokenId>> prompt_buffer();
  /// A waiting sequence. While it waits, what is cached of its prompt is evicted last, and then from its end.
  [[nodiscard]] Result<Sequence> begin(KeySpaceId key_space, const Prompt& prompt, const SequenceOptions& options = {});
  /// Matches anew and pins: from here on the matched pages stay. Loads of what follows on the host start. Unavailable
  /// when expected_tokens would not fit, or the pages to load: some may be on their way to the host.
  /// `callback`, if given, is called once when steps of the sequence can be planned: before admit() returns if that is
  /// so at once, else by apply(), or by stop_loading(), when all else is done. It may call the cache. A call that fails
  /// does not keep it, and a sequence that ends before takes it along, uncalled.
  [[nodiscard]] Result<Admission> admit(const Sequence& sequence, ReadyCallback callback = nullptr);
  /// Polls and applies until a sequence that was admitted or resumed is ready; false when that takes longer than the
  /// time that is given for it. Fails for a sequence that was not admitted, or that a callback has ended meanwhile.
  /// Unsupported where an external mover would have to be waited for: only its engine can apply its completions.
  [[nodiscard]] Result<bool> wait_until_ready(const Sequence& sequence, const WaitOptions& options = {});
  /// All entries or none; at most steps_in_flight_max steps at once. A shape larger than the step pads its plan.
  [[nodiscard]] Result<PlanOutcome> plan_step(std::span<const StepEntry> entries, const PlanShape& shape = {});
  /// Applies the plan's moves and copies in the memory of the host backend, once, when the steps planned before it have
  /// been computed. Engines with their own memory do this themselves.
  [[nodiscard]] Status apply_copies(const Step& step);
  /// The same for state_saves, once the step's tokens are computed.
  [[nodiscard]] Status apply_saves(const Step& step);
  /// The device work of the oldest step in flight is complete: its tokens are computed, its full pages are cached. One
  /// result per entry, in the order of plan_step's. Of sequences that have ended only `discard` counts, and of
  /// lost_entries() nothing: their tokens are pending again. Unavailable while a load of Step::loads has not ended:
  /// poll() and apply() come first.
  [[nodiscard]] Status finish_step(const Step& step, std::span<const StepResult> results);
  /// The step did not happen, nor did what later steps in flight compute of its sequences; its moves and copies did: in
  /// memory of the host backend they are applied now, if they were not. Its device work writes nothing any more. Where
  /// it has overwritten a state that the slot keeps no earlier version of, the sequence goes back to the last snapshot,
  /// or to its beginning, and has that many more tokens pending.
  [[nodiscard]] Status abort_step(const Step& step);
  /// Entries of a step in flight whose pages did not arrive, as far as apply() has heard of it. What was computed for
  /// them is of no use, and their sampled tokens are not to be used: finish_step() takes these entries back, and the
  /// sequences run with what has come. Valid until the next call.
  [[nodiscard]] Result<std::span<const std::uint32_t>> lost_entries(const Step& step);
  /// New tokens of a sequence that is not in a step: those of a user's next turn, or sampled after finish_step. Extra
  /// keys lie within them; their positions count from the start of the sequence.
  [[nodiscard]] Status append(const Sequence& sequence, const Prompt& added);
  /// What is full stays cached, the rest is freed once the steps in flight are finished. The handle is empty
  /// afterwards.
  /// `publish` replaces what begin() was told: whole pages that were the sequence's own so far may be cached now, up to
  /// the first that a fork shares. What is cached already stays.
  [[nodiscard]] Status end(Sequence& sequence, std::optional<Publish> publish = std::nullopt);
  [[nodiscard]] Result<SequenceView> view(const Sequence& sequence) const;

  // Changing a sequence. It is admitted, and where not said otherwise in no step in flight and without undecided
  // tokens.

  /// A second sequence with the first `at` tokens of this one, its options and its window. Takes no page now: whole
  /// pages are shared, and a page begun is copied when the new sequence first writes. The old one may be in a step in
  /// flight; `at` is then at most its computed tokens.
  [[nodiscard]] Result<Sequence> fork(const Sequence& sequence, std::uint32_t at);
  /// Takes back the last `token_count` known tokens.
  [[nodiscard]] Status rewind(const Sequence& sequence, std::uint32_t token_count);
  /// From the next token to be computed on, the sequence sees its first sink_tokens and its last tokens only,
  /// visible_tokens in all, and pages behind the window are freed. Tokens that do not see all before them are not
  /// cached, in any group; a last token that runs again sees the window, with K and V as they were stored. Once per
  /// sequence, waiting ones too (what they find is then cut to the window). This is so in groups that keep everything,
  /// all of which store K unrotated; of a compressed one a token sees the entries of whose tokens it sees all. Window
  /// groups keep the windows that they declare, and states go through every token: both count positions as if there
  /// were none. A state that is lost is computed again from the beginning, so that a sequence with state gets its
  /// window before it has computed more tokens than that.
  [[nodiscard]] Status set_window(const Sequence& sequence, const Window& window);
  /// Keeps, of the sequence's undecided tree, the path down to token `leaf`, or none of it for -1.
  [[nodiscard]] Status commit_tree(const Sequence& sequence, std::int32_t leaf);
  /// The sequence waits without device pages of its own. Drop is refused for one that saw more than its window before
  /// that was set: it could not be computed again as it was.
  [[nodiscard]] Status preempt(const Sequence& sequence, Preempt how);
  /// What admit() is to a begun sequence, `callback` included. Fails with Unavailable when there are too few pages to
  /// bring saved ones back. Where saved pages were lost and cannot be computed again, `callback` comes, too: view()
  /// then says that the sequence still waits, and it can only be ended.
  [[nodiscard]] Result<Admission> resume(const Sequence& sequence, ReadyCallback callback = nullptr);

  // Prefill in one cache, decode in another.

  /// The other cache computes the next `token_count` pending tokens of the sequence: reserves their pages and says at
  /// which slots they go. The slots stay valid until finish_receive or abort_receive; no step may plan the sequence
  /// until then. Unavailable when pages are short. The slots are those of the groups that keep everything, page *
  /// page_tokens + place, whatever an entry of theirs holds; receive_targets() has the others'.
  [[nodiscard]] Result<std::span<const SlotRun>> prepare_receive(const Sequence& sequence, std::uint32_t token_count);
  /// What a receiving sequence has reserved besides. Valid as long as those slots.
  [[nodiscard]] Result<ReceiveTargets> receive_targets(const Sequence& sequence) const;
  /// Everything has arrived, of all groups: as finish_step for tokens computed here. Where the last token is a
  /// checkpoint, the sequence's next step takes the snapshot.
  [[nodiscard]] Status finish_receive(const Sequence& sequence);
  /// Nothing of it counts. The other side has stopped writing; until it has, leave the sequence as it is and begin
  /// another: to end or to drop it says the same. A state may have been overwritten: as after abort_step, the sequence
  /// then goes back to the last snapshot, or to its beginning.
  [[nodiscard]] Status abort_receive(const Sequence& sequence);
  /// Tokens from position `begin` on are for another cache: token begin + i goes to slot i of `slots`, as
  /// prepare_receive() there named them, and `targets` are what receive_targets() there said. Steps of the sequence
  /// list what to send, those computed already in the next one.
  /// The mark ends when finished steps have listed all of it; another one replaces it, and no slots take it back.
  /// Where there is a state, a step ends behind the last of the tokens. Refused when a window or a state that is to be
  /// sent is no longer held. A marked sequence that loses its pages or its state begins anew, without what is cached.
  [[nodiscard]] Status mark_send(const Sequence& sequence, std::uint32_t begin, std::span<const SlotRun> slots,
                                 std::int32_t receiver, const ReceiveTargets& targets = {});

  // What stays and what goes.

  /// Keeps the cached part of a prefix from eviction until unkeep(), or for `ttl_ns` from now, as advance() told it.
  [[nodiscard]] Result<Kept> keep(KeySpaceId key_space, const Prompt& prompt,
                                  std::optional<TimeNs> ttl_ns = std::nullopt);
  /// Fails when the prefix is kept no longer: its time is over, or its key space was dropped.
  [[nodiscard]] Status unkeep(KeepId keep);
  /// Brings what lower tiers have of a prefix to the host and holds it there, without a sequence: a later admit() loads
  /// it from memory. What memory has is held, too: pages that only the device has are copied. The device gives its own
  /// copies up as it does all others. Of windows and snapshots, what a request needs that goes on behind the prefix is
  /// held with it. Held until release_hold(), or for HoldOptions::ttl_ns, or until a page of its history turns out to
  /// be bad, its key space is dropped, or the cache is reset or sleeps. `callback`, if given, is called once when
  /// nothing more will come: before the call returns if that is so at once, else by apply(). It may call the cache, and
  /// does not come when the hold has ended before. Takes a place of sequence_count_max as long as pages arrive.
  /// Unavailable when hold_pages_max or hold_count_max do not suffice for all of the prompt; Unsupported without a host
  /// tier.
  [[nodiscard]] Result<HeldPrefix> hold_on_host(KeySpaceId key_space, const Prompt& prompt,
                                                const HoldOptions& options = {},
                                                std::function<void(const HeldPrefix&)> callback = nullptr);
  /// Fails when the prefix is held no longer.
  [[nodiscard]] Result<HeldPrefix> held_prefix(HoldId hold) const;
  /// Lets it go, and calls off what is on its way. Fails when the prefix is held no longer.
  [[nodiscard]] Status release_hold(HoldId hold);
  /// Time goes on: what was kept until `now` or earlier is kept no longer, and the policy hears of it.
  [[nodiscard]] Status advance(TimeNs now);
  /// Forgets a key space: nothing of it will match again. Live sequences finish on their own pages. Gives the number of
  /// pages freed at once; those in use follow when their sequences end.
  [[nodiscard]] Result<std::uint32_t> drop(KeySpaceId key_space);
  /// Gives up everything cached, on disk also what earlier processes have left there, of any key space. Nothing of it
  /// is found from here on, nor by a later process once a flush() has succeeded. Refused while sequences live or chunks
  /// are pinned.
  [[nodiscard]] Status reset();
  /// Gives up so many idle pages, or all there are, at once: those that the host has no copy of are lost, also under
  /// write-back. Returns how many. Those of an external pool are named by take_released(). Pages of the history take
  /// along what other groups have of them; a window or snapshot group's, which are asked for by its index, go alone.
  [[nodiscard]] Result<std::uint32_t> reclaim(std::uint32_t page_count,
                                              std::optional<std::uint32_t> group_index = std::nullopt);
  /// More or fewer device pages of the groups that keep everything, between steps. Allocates; host memory may move, and
  /// idle pages above the new size move to ids that are free below it. Refused when more pages are in use or cached
  /// than that leaves room for: reclaim() as many idle ones first. Refused also when a page in use lies above the new
  /// size, when one sequence of context_tokens_max would no longer fit, and for adopted memory. With DeviceMemory::None
  /// idle pages cannot move either: reclaim() all of them.
  [[nodiscard]] Status resize(std::uint32_t page_count);

  // Pages found by their own tokens, wherever these stand in a prompt (CacheConfig::chunks, docs/chunk_reuse.md). A
  // PageHandle's value is a device page of the groups that keep everything, and stays true: a page that leaves the
  // device is not found from that call on. These calls hash tokens, and are not part of any step.

  /// What the device has cached of a prompt can be found from now on. Sequences need not have ended. `known_pages`
  /// counts pages that were there. Unavailable until the step that makes the moves of a committed tree is finished.
  [[nodiscard]] Result<ChunkInsertion> add_chunks(KeySpaceId key_space, const Prompt& prompt);
  /// ChunkIndex::lookup(). What is found is good until the next call that changes the cache: to use it, pin_chunks().
  [[nodiscard]] Result<ChunkMatch> lookup_chunks(KeySpaceId key_space, std::span<const Chunk> chunks,
                                                 std::span<ChunkPage> out) const;
  /// The same, and the pages that are found stay on the device until the pin is dropped: the engine may copy them, in
  /// order with its steps. In the index they count as used. Unavailable beyond ChunkConfig::pinned_pages_max and
  /// pin_count_max.
  [[nodiscard]] Result<PinnedChunks> pin_chunks(KeySpaceId key_space, std::span<const Chunk> chunks,
                                                std::span<ChunkPage> out);

  // The host tier. Bytes move in the background: these calls say what is to be moved, and hear what was.

  /// What has ended since the last call, each told once: apply() it. Hands the cache's own mover what is to be moved.
  /// Valid until the next poll(). Nothing where there is no host tier. With an external mover, what the tiers below the
  /// host have done; refused where there are none.
  [[nodiscard]] Result<std::span<const Completion>> poll();
  /// Draws the conclusions: loaded pages become usable, copied ones can be given up. Completions of transfers that are
  /// unknown or over are counted and change nothing; outcomes and faults that do not exist are refused. `now` as for
  /// advance().
  [[nodiscard]] Status apply(std::span<const Completion> completions, TimeNs now);
  /// Readable when poll() has something; -1 without a host tier, or with an external mover and no tier below the host.
  [[nodiscard]] int event_fd() const;
  /// Called by apply() for each sequence whose load has ended, when all else is done. It may call the
  /// cache; a callback that it sets replaces it once it has returned.
  [[nodiscard]] Status set_ready_callback(ReadyCallback callback);
  /// With an external mover: what is to be moved now, those that somebody waits for first. A plan's pages stay valid
  /// until its completion is applied.
  [[nodiscard]] Result<std::span<TransferPlan>> take_transfers(std::span<TransferPlan> out);
  /// With an external mover: transfers that nobody needs any more. They still end by a completion.
  [[nodiscard]] Result<std::span<TransferId>> take_cancellations(std::span<TransferId> out);
  /// What the memory of the host tier lies in; Unsupported with an external mover or without a host tier.
  [[nodiscard]] Result<HostRegionStatus> host_region() const;
  /// The sequence, which is loading, waits no longer: what has not arrived is computed. Unsupported for one that was
  /// saved and is brought back.
  [[nodiscard]] Status stop_loading(const Sequence& sequence);

  // A cache for each rank, in processes of their own, instead of one that drives all (HostConfig::rank_count). Each
  // rank hears of what its tiers did at times of its own, and its tiers lose pages on their own. These two take the
  // place of poll(), apply(), advance() and of the calls that wait: all ranks report, exchange what they got, and apply
  // what all have. Caches that were opened alike but for rank_index, and are given the same calls in the same order,
  // then stay alike: the same hits, the same pages, the same steps. docs/disk.md says what an engine does.

  /// Polls, and gives what this rank has heard of and has not told yet, as bytes for the other ranks. Valid until the
  /// next call of these two. From the first call on, poll(), apply(), advance(), wait_until_ready() and
  /// wait_until_flushed() are Unsupported; where one of the first three came before it, the call itself is.
  [[nodiscard]] Result<std::span<const std::byte>> report_to_ranks(const RankReport& report);
  /// Takes what report_to_ranks() has given on all ranks, this one's included, in any order, and applies what all have
  /// told by now: least good pages, worst outcome. The time is the latest of any rank. An error has changed nothing:
  /// InvalidArgument  these are not the reports of this round: one is damaged, missing, there twice, of another round
  ///                  or group of ranks, or their times are more than an hour apart. Give the right ones; when all
  ///                  ranks have refused, report and exchange again.
  /// Corrupt          the caches are not alike, because they were opened otherwise or have got other calls. Begin anew,
  ///                  with new caches on all ranks.
  [[nodiscard]] Result<RankAgreement> apply_ranks(std::span<const std::span<const std::byte>> reports);

  // The disk tier, past the others. Callbacks come from apply(), and may call the cache; memory that is given must be
  // there until then.

  /// How many leading tokens of a prompt are on disk, in whole pages; whatever the other tiers have. With several
  /// groups: where a request could go on from what is there.
  [[nodiscard]] Status lookup_on_disk(KeySpaceId key_space, const Prompt& prompt,
                                      std::function<void(const DiskAnswer&)> callback);
  /// What the next two calls move of a prompt of so many tokens.
  [[nodiscard]] Result<DirectBytes> direct_bytes(std::uint32_t token_count) const;
  /// Writes the pages of a prompt that are not on disk: `bytes` has all that direct_bytes() names. When some cannot be
  /// written the answer is what is of use nevertheless, which is mostly nothing where a window or a state is missing.
  [[nodiscard]] Status put_on_disk(KeySpaceId key_space, const Prompt& prompt, std::span<const std::byte> bytes,
                                   std::function<void(const DiskAnswer&)> callback);
  /// Reads those that are on disk, each to its place. What is not of the tokens that the answer says is undefined:
  /// history behind them, and groups that have to be rebuilt.
  [[nodiscard]] Status get_from_disk(KeySpaceId key_space, const Prompt& prompt, std::span<std::byte> bytes,
                                     std::function<void(const DiskAnswer&)> callback);
  /// Has all that is cached written to disk, as far as the write policies, the host's room and the endurance budget let
  /// it, and synced. True when that is done; else call it again after apply(). What is computed after the first of
  /// these calls may be in it or not: ask once more for that. An error when something could not be written or
  /// dropped, or a sync has failed: the next call tries again with what is still cached. Not done while transfers are
  /// paused.
  [[nodiscard]] Result<bool> flush();
  /// flush(), poll() and apply() until it is done; false when that takes longer than the time that is given for it:
  /// what was begun goes on, and the next flush() goes on with it. Unavailable while transfers are paused.
  [[nodiscard]] Result<bool> wait_until_flushed(const WaitOptions& options = {});
  /// Of all groups together, or of what one has: full and compressed groups share a store.
  [[nodiscard]] Result<DiskStatus> disk_status(std::optional<std::uint32_t> group_index = std::nullopt) const;
  [[nodiscard]] Result<RemoteTierStatus> remote_status() const;

  /// No transfer starts until resume_transfers(); what is on the host counts as missing meanwhile. True when none is in
  /// flight; else call it again after apply().
  [[nodiscard]] Result<bool> pause_transfers();
  [[nodiscard]] Status resume_transfers();
  /// Gives the device's memory up until wake(): what the host has room for is copied there first, or everything is
  /// dropped. Kept and held prefixes are let go. True when it is done; else transfers are in flight: call it again
  /// after apply(). While transfers are paused nothing is copied, and what has no copy is lost. Refused while sequences
  /// are admitted or chunks pinned. Memory of the engine's own is free to be used from then on.
  [[nodiscard]] Result<bool> sleep(Sleep how);
  /// The device's memory is there again; that of quire's own is filled with zeros.
  [[nodiscard]] Status wake();

  // External pools: the engine hands out pages and shares them.

  /// Lets others find pages that the engine has filled. All or nothing; a page that is held already is refused.
  [[nodiscard]] Result<OfferOutcome> offer(KeySpaceId key_space, const Offer& offer);
  /// The longest cached prefix in whole pages that all groups can go on from, held until the sequence ends. State slots
  /// are the engine's business.
  [[nodiscard]] Result<ExternalMatch> match(KeySpaceId key_space, const Prompt& prompt);
  /// Pages that quire no longer reads, oldest first; the engine may reuse them. Fills `out` from the front. Each window
  /// and snapshot group has pages of its own, which are asked for by its index; otherwise they are the history's.
  [[nodiscard]] Result<std::span<PageId>> take_released(std::span<PageId> out,
                                                        std::optional<std::uint32_t> group_index = std::nullopt);

  // Observers.

  [[nodiscard]] Result<Stats> stats() const;
  /// What one group of the layout holds. Full and compressed groups have their pages in common, and the same numbers.
  [[nodiscard]] Result<GroupStats> group_stats(std::uint32_t group_index) const;
  /// Visits every run, parents first, key space by key space. `visit` must not call the cache.
  [[nodiscard]] Status visit_runs(const std::function<void(const RunView&)>& visit) const;
  /// Which of those runs' pages have something of a window or snapshot group: `visit(page, page_of_group)`. Other
  /// groups have all of them.
  [[nodiscard]] Status visit_group_pages(std::uint32_t group_index,
                                         const std::function<void(PageId, PageId)>& visit) const;
  /// Copies residency records from number `first` on, oldest first, as many as fit. The first may be a later one: what
  /// lies between is lost.
  [[nodiscard]] Result<std::span<ResidencyRecord>> read_residency(std::uint64_t first,
                                                                  std::span<ResidencyRecord> out) const;
  /// Names the first rule that does not hold, if any. O(size of the cache).
  [[nodiscard]] Status check_invariants() const;

  // Steps whose pages are still arriving (Step::loads). These three answer on any thread, while the step is in flight.

  /// Waits until a layer of all pages that the step has to wait for is on the device, at most timeout_ns; 0 asks and
  /// does not wait. Ok at once where there is nothing to wait for. Failed or Cancelled: pages of some entries do not
  /// arrive, and those of the others are there. The step may then be computed, or aborted; finish_step() takes back
  /// lost_entries(). Checksums are known when a load has ended, behind its last band. State is filled by the plan's
  /// copies, before the first layer: wait for the last layer of snapshot groups before those are applied. Unsupported
  /// with an external mover, which waits for band_of() itself.
  [[nodiscard]] Result<TransferOutcome> wait_for_layer(const Step& step, GroupLayer layer, TimeNs timeout_ns) const;
  /// The same on an accelerator: what is put on the stream from now on runs when the layer is there. Blocks only until
  /// the layer's bands are on the streams of the loads, of which there are several at a time. Io or Cancelled: as
  /// Failed or Cancelled there; the stream waits for the pages of the other entries. Unavailable: the mover is paused.
  [[nodiscard]] Status wait_on(DeviceStream stream, const Step& step, GroupLayer layer) const;
  /// The band of its pool's loads that a layer belongs to (HostConfig::layer_bands); 0 for a layer that is not there.
  [[nodiscard]] std::uint32_t band_of(GroupLayer layer) const;

  // These three answer on any thread; resize() changes what the last two say.

  /// As given to open(), with context_tokens_max filled in; a custom policy has moved out of it.
  [[nodiscard]] const CacheConfig& config() const;
  /// Where every row of a group's pool lies; page 0 is the null page. The group has pages; groups count as in the
  /// layout. Full and compressed ones have page ids in common.
  [[nodiscard]] const PoolGeometry& geometry(std::uint32_t group_index = 0) const;
  /// The pool's bytes; null for DeviceMemory::None, external pools and groups without pages.
  [[nodiscard]] std::byte* device_memory(std::uint32_t group_index = 0) const;
  /// What a state slot is made of, and where the first one begins: null as above, and where the layout has no state.
  [[nodiscard]] const StateSlots& state_slots() const;
  [[nodiscard]] std::byte* state_memory() const;

 private:
  friend struct CacheForTests;  // tests have files and host pages of their own
  struct Impl;
  /// `host_pages` by rank and pool, if the disk tier has no threads; else none.
  [[nodiscard]] static Result<std::unique_ptr<Cache>> open(CacheConfig config, FileSystem* files,
                                                           std::span<HostPages* const> host_pages);
  explicit Cache(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
