// SPDX-License-Identifier: Apache-2.0
//
// What a Cache is made of. Public calls check the thread, end dropped sequences and then work on these parts; they
// validate everything before the first change.
//
// single-threaded
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "attention/attention_planner.h"
#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "base/residency_log.h"
#include "cache/key_space_table.h"
#include "cache/side_groups.h"
#include "pool/fenced_pages.h"
#include "pool/offered_pages.h"
#include "pool/page_pool.h"
#include "prefix/prefix_tree.h"
#include "quire/cache.h"
#include "sequence/release_queue.h"
#include "sequence/sequence_table.h"
#include "store/device_memory.h"
#include "store/file_system.h"
#include "transfer/disk_mover.h"

namespace quire {

// Pages that leave the tree while a transfer reads them are not used again before it is over. The build of one test
// does without, to see that it notices.
#ifdef QUIRE_TEST_NO_FENCE
static constexpr bool kFencesTransfers = false;
#else
static constexpr bool kFencesTransfers = true;
#endif

/// How the bytes of a host page lie: whoever writes them another way must not read these.
[[nodiscard]] std::uint64_t disk_layout_hash(const PageGeometry& page);

struct Cache::Impl : TierListener {
  struct KeepSlot {
    bool is_live = false;
    std::uint32_t generation = 0;
    std::uint32_t key_space = 0;
    std::uint32_t page_count = 0;
    TimeNs expires_at = 0;
    // Other groups hold what a sequence needs to go on there.
    Hit hit;
    PrefixTree::Pin pin;
  };

  /// One sequence's part of a step in flight, in the order of the call that planned it.
  struct StepPart {
    std::uint32_t index = 0;  // of the sequence
    std::uint32_t generation = 0;
    std::uint32_t position = 0;      // of its first query
    std::uint32_t token_count = 0;   // known tokens, or such that will be; 0 when only the last token runs again
    std::uint32_t draft_count = 0;   // drafts or tree tokens behind them
    std::uint32_t new_pages = 0;     // taken from the pool
    std::uint32_t first_column = 0;  // the row's page count before
    std::uint32_t tree_before = 0;   // tree tokens before
    bool is_tree = false;
    bool copies_tail = false;
    bool adopts_tail = false;
    bool is_discarded = false;
    std::uint32_t checkpoint = 0;  // behind whose tokens a snapshot is taken

    [[nodiscard]] bool runs_again() const { return token_count + draft_count == 0; }
    [[nodiscard]] std::uint32_t query_count() const { return runs_again() ? 1 : token_count + draft_count; }
    /// Tokens computed once it is done, drafts and tree tokens not counted.
    [[nodiscard]] std::uint32_t computed_end(std::uint32_t computed_tokens) const {
      return token_count == 0 ? computed_tokens : position + token_count;
    }
  };

  struct StepInFlight {
    bool is_planned = false;
    bool is_moved = false;    // its moves and copies of pages, by apply_copies() or by a call that could not wait
    bool is_applied = false;  // those and its copies of states, by apply_copies()
    std::uint64_t number = 0;
    std::vector<StepPart> parts;
    std::vector<SidePart> sides;     // for each part, one for each window group
    std::vector<PlannedSave> saves;  // snapshots
    bool is_saved = false;           // by apply_saves()
    AttentionPlan plan;

    [[nodiscard]] std::span<const SidePart> sides_of(std::size_t part) const {
      const std::size_t count = parts.empty() ? 0 : sides.size() / parts.size();
      return std::span(sides).subspan(part * count, count);
    }
  };

  /// Pages on their way between tiers.
  struct Transfer {
    enum class State : std::uint8_t {
      Free,
      Queued,  // nobody has taken it yet
      Moving,
      Arrived,  // a load that waits for one before it in its path
    };
    State state = State::Free;
    TransferKind kind = TransferKind::Load;
    TransferPriority priority = TransferPriority::Waiting;
    bool is_unwanted = false;       // what it brings is not to be used; its pages are free when it is over
    bool is_cancelled = false;      // the mover has been asked to stop, or will be
    bool wants_cancelling = false;  // take_cancellations() has not told yet
    TransferOutcome outcome = TransferOutcome::Ok;  // of the ranks that have reported
    TransferFault fault = TransferFault::None;
    std::uint32_t generation = 0;
    std::uint32_t page_count = 0;
    std::uint32_t good_pages = 0;
    std::uint32_t first_page = 0;  // of a load: its place in the path
    std::uint32_t key_space = 0;   // of a load
    SequenceId sequence;           // whose pages it saves or brings back; none for pages of the tree
    std::uint64_t reported_ranks = 0;
    TimeNs deadline = INT64_MAX;
    PrefixTree::Pin pin;  // of a load: ends with its last page; of a find: with the page before what it looks for

    // Of a find on disk, which lives until all that it found has been loaded.
    std::uint32_t find_row = 0;  // where its path is kept
    std::uint32_t token_count = 0;
    std::uint32_t extra_key_count = 0;
    PageFingerprint missing = 0;      // of the first page it looks for: whoever misses the same one joins
    PageFingerprint last_tag = 0;     // of the last page whose load was started
    SequenceId owner;                 // whose path it is
    bool is_prefetch = false;         // nobody need wait for it
    std::uint32_t found_pages = 0;    // as many as are to be loaded
    std::uint32_t started_pages = 0;  // of those
    std::uint32_t arrived_pages = 0;  // of those, well or not
    std::uint32_t loads_in_flight = 0;
    MissReason miss = MissReason::None;  // why what it found did not come
    // With side groups: what a sequence would have if all came that memory and disk have of its path.
    Hit hit;
    std::uint32_t prompt_tokens = 0;
    bool allows_inexact = false;
    std::uint32_t limiting_side = Hit::kNoGroup;  // because of which it is not all that there is
    std::uint32_t gained_tokens = 0;              // by it, over what memory has
    std::uint64_t side_bytes = 0;                 // that have to be read of side groups for that
    bool has_asked_sides = false;
    std::uint32_t side_loads_in_flight = 0;
    // Of a load from disk.
    std::uint32_t found_by = 0;
    // Of what was asked for directly.
    bool is_direct = false;
    std::span<std::byte> target;
    std::span<const std::byte> source;
    std::function<void(const DiskAnswer&)> callback;
  };
  static constexpr std::uint32_t kNoTransfer = UINT32_MAX;

  enum DiskList : std::uint32_t { kHotPages, kColdPages, kDiskListCount };

  Impl(CacheConfig config_, PoolGeometry geometry_)
      : config(std::move(config_)),
        geometry(std::move(geometry_)),
        log(config.residency_record_count_max),
        key_spaces(config.key_space_count_max),
        keeps(config.keep_count_max) {}

  // Every public call begins with this: it refuses other threads, and ends sequences whose handles were dropped.
  [[nodiscard]] Status enter();
  [[nodiscard]] Status require(DevicePool pool, const char* call) const;
  [[nodiscard]] Status require_awake(const char* call) const;
  /// For what knows tokens in the pages of one full group only.
  [[nodiscard]] Status require_one_group(const char* call, const char* instead) const;
  [[nodiscard]] Status reserve_steps();
  [[nodiscard]] Status open_groups(std::span<const std::uint64_t> page_counts);
  [[nodiscard]] Result<std::byte*> allocate_on_accelerator(std::size_t bytes);
  [[nodiscard]] Status open_memory(GroupMemory& memory_of_group, std::uint32_t group_index, std::uint64_t page_count);
  [[nodiscard]] Status open_side(std::uint32_t group_index, std::uint64_t page_count);

  // Input.
  [[nodiscard]] Result<std::uint32_t> find_key_space(KeySpaceId id) const;
  [[nodiscard]] Result<std::uint32_t> find_sequence(const Sequence& sequence) const;
  /// "sequence 12", for messages.
  [[nodiscard]] static std::string name_of(std::uint32_t index) { return "sequence " + std::to_string(index); }
  /// Everything about a prompt but its tokens' values: those that match need no look.
  [[nodiscard]] Status check_prompt(const Prompt& prompt) const;
  [[nodiscard]] Status check_extra_keys(std::span<const ExtraKey> keys, TokenRange range) const;
  [[nodiscard]] static Status check_tokens(std::span<const TokenId> tokens, std::size_t first_position);
  [[nodiscard]] static Status check_ttl(std::optional<TimeNs> ttl_ns);

  // Sequences and steps.
  /// What of a prompt is cached, after checking the tokens of the rest.
  [[nodiscard]] Result<PrefixTree::Match> match(std::uint32_t space, const Prompt& prompt,
                                                const SequenceOptions& options);
  [[nodiscard]] std::uint32_t tokens_in(const PrefixTree::Match& match) const { return match.page_count * page_tokens; }
  /// Entries of several tokens are shared as a whole.
  [[nodiscard]] PrefixTree::Match with_whole_entries(PrefixTree::Match match) const {
    if (hit_groups.empty()) match.partial_tokens -= match.partial_tokens % hit_limits.boundary_tokens;
    return match;
  }
  [[nodiscard]] std::uint32_t usable_partial(const PrefixTree::Match& match) const {
    return match.partial_tokens >= partial_reuse_min_tokens ? match.partial_tokens : 0;
  }
  [[nodiscard]] std::uint32_t pending_tokens(const SequenceSlot& slot) const;
  [[nodiscard]] TimeNs time_after(TimeNs ttl_ns) const;  // the end of time if that is too long
  [[nodiscard]] Retention retention_of(const SequenceSlot& slot) const {
    return {.priority = slot.priority, .expires_at = time_after(slot.ttl_ns)};
  }
  [[nodiscard]] std::uint32_t pages_for(std::uint64_t token_count) const {
    return static_cast<std::uint32_t>((token_count + page_tokens - 1) / page_tokens);
  }
  [[nodiscard]] Result<std::uint32_t> add_sequence(std::uint32_t key_space);
  [[nodiscard]] PrefixTree::Match match_of(std::uint32_t index);
  /// `is_again`: its admission has been counted.
  Admission start_running(std::uint32_t index, bool is_again = false);
  [[nodiscard]] Status check_new_tokens(const SequenceSlot& slot, std::span<const TokenId> tokens) const;
  void add_tokens(std::uint32_t index, std::span<const TokenId> tokens);
  [[nodiscard]] static const char* not_running(const SequenceSlot& slot);
  /// Refuses sequences that are not admitted, in a step, receiving or undecided: "fork: sequence 3 …".
  [[nodiscard]] Result<std::uint32_t> find_quiet(const Sequence& sequence, const char* call) const;

  // Planning. Parts are those of `planning`, one per entry.
  [[nodiscard]] std::string too_long(std::uint64_t token_count) const;
  [[nodiscard]] std::uint32_t listed_pages(const SequenceSlot& slot, const StepPart& part) const;
  [[nodiscard]] Status check_shape(const PlanShape& shape) const;
  [[nodiscard]] Status check_entries(std::span<const StepEntry> entries);
  [[nodiscard]] Status check_entry(const StepEntry& entry, std::uint32_t index) const;
  [[nodiscard]] Status check_tree(const StepEntry& entry, std::uint32_t index) const;
  [[nodiscard]] Shortage measure() const;
  [[nodiscard]] Shortage measure_history() const;
  [[nodiscard]] bool sides_fit() const;
  [[nodiscard]] bool try_anew(std::span<const StepEntry> entries, const PlanShape& shape);
  void make_parts(std::span<const StepEntry> entries);
  void cut_at_checkpoint(const SequenceSlot& slot, std::uint32_t index, StepPart& part) const;
  [[nodiscard]] std::span<SidePart> planning_sides_of(std::size_t part) {
    return std::span(planning_sides).subspan(part * window_sides.size(), window_sides.size());
  }
  [[nodiscard]] std::uint32_t pages_leaving() const;
  [[nodiscard]] StepPart make_part(const StepEntry& entry, std::uint32_t index) const;
  /// Tokens that the sequence's row holds once the step has run.
  [[nodiscard]] static std::uint64_t end_of(const SequenceSlot& slot, const StepPart& part) {
    return std::uint64_t{slot.planned_end} + part.tree_before + part.token_count + part.draft_count;
  }
  [[nodiscard]] bool stores_page(const SequenceSlot& slot, const StepPart& part, std::uint32_t page) const;
  [[nodiscard]] bool try_without_copies(std::span<const StepEntry> entries, const PlanShape& shape);
  void plan_part(const StepEntry& entry, StepPart& part, std::span<const PageId> new_pages);
  void add_planner_entry(const StepPart& part, std::uint32_t entry_index);
  void add_planner_groups(const StepPart& part);
  [[nodiscard]] std::vector<PlannerGroup> planner_groups() const;
  [[nodiscard]] AttentionPlan build_plan(StepInFlight& step, const PlanShape& shape, std::uint32_t place);
  void unfence(std::uint32_t page_count);
  void make_room(std::uint32_t page_count);
  /// Pages that can be taken: free, evictable, and those that only wait for moves which will have run by then.
  [[nodiscard]] std::uint32_t available_pages() const {
    return pool.free_count() + evictable_now() + (step_order.empty() ? fenced.count() : 0);
  }

  // Steps in flight, oldest first.
  [[nodiscard]] Result<std::uint32_t> find_step(const Step& asked) const;  // its place in step_order
  [[nodiscard]] StepInFlight& step_at(std::size_t place) { return steps[step_order[place]]; }
  [[nodiscard]] Status check_result(const StepPart& part, const StepResult& result) const;
  void finish_part(const StepPart& part, const StepResult& result);
  void discard(StepInFlight& step, StepPart& part, std::size_t place = 0);
  void end_step(StepInFlight& step);
  [[nodiscard]] bool is_applied(const StepInFlight& step) const;
  void apply_moves(StepInFlight& step);
  void apply_moves_and_copies(StepInFlight& step);
  void copy_states(std::span<const StateCopy> of_plan);
  void end_replay(std::uint32_t index);
  void flush_moves();
  void drop_moves();
  void free_fenced();
  [[nodiscard]] std::size_t move_count() const { return static_cast<std::size_t>(move_indptr.back()); }

  // Sequences' pages.
  void settle(std::uint32_t index);
  [[nodiscard]] std::uint32_t known_end(std::uint32_t index, std::uint32_t public_pages) const;
  void slide(std::uint32_t index);
  void adopt_tails(std::uint32_t index, std::uint32_t first_page, std::uint32_t end_page);
  void drop_tail(SequenceSlot& slot);
  void truncate(std::uint32_t index, std::uint32_t computed_tokens);
  void copy_sequence(std::uint32_t source_index, std::uint32_t index, std::uint32_t at);
  void cut_extra_keys(std::uint32_t index);
  void give_back_row(std::uint32_t index, std::uint32_t first_page);
  void release_pages(std::uint32_t index);
  [[nodiscard]] std::uint32_t keep_from(const SequenceSlot& slot, std::uint32_t computed_tokens) const;
  [[nodiscard]] static std::uint32_t first_recent(const SequenceSlot& slot, std::uint32_t computed_tokens);
  [[nodiscard]] Status check_held(const SequenceSlot& slot, std::uint32_t end) const;
  [[nodiscard]] std::uint32_t publishable_tokens(const SequenceSlot& slot) const {
    if (slot.publish == Publish::None || slot.is_inexact) return 0;
    return std::min({slot.publish == Publish::Prompt ? slot.prompt_tokens : UINT32_MAX, slot.publish_tokens_max,
                     slot.window_tokens > 0 ? slot.full_tokens : UINT32_MAX});
  }
  void give_back(std::span<const PageId> pages);
  void drop_sequence(std::uint32_t index);
  void end_sequence(std::uint32_t index);
  void publish_rest(std::uint32_t index);
  [[nodiscard]] std::uint32_t granted_pages(std::uint32_t index) const;
  [[nodiscard]] Status check_expected(std::uint32_t index);
  [[nodiscard]] std::uint32_t expected_pages(const SequenceSlot& slot) const;

  // Groups that do not keep everything.
  [[nodiscard]] std::uint32_t available_pages(const SideGroup& side) const;
  void make_room(SideGroup& side, std::uint32_t page_count);
  bool evict_side(SideGroup& side);
  void drop_host_copy(SideGroup& side, PageId page);
  void keep_host_copy(SideGroup& side, PageId tree_page);
  void give_back(SideGroup& side, PageId page);
  void release_side(SideGroup& side, PageId page, SidePages::Worth worth);
  void drop_sides(std::span<const PageId> tree_pages);
  /// `counts_host`: what is on the host is as good.
  [[nodiscard]] Hit find_hit(const PrefixTree::Match& match, std::uint32_t token_count, bool allows_inexact,
                             bool counts_host = false, bool allows_partial = true);
  void take_sides(std::uint32_t index, const Hit& hit, PageId tail_page);
  [[nodiscard]] Status check_keep(const Hit& hit) const;
  void hold_sides(const KeepSlot& keep, bool is_held);
  void release_sides(std::uint32_t index);
  void settle_sides(std::uint32_t index, TokenRange columns, std::uint32_t known);
  void make_sides_private(std::uint32_t index, std::uint32_t first, std::uint32_t end);
  [[nodiscard]] std::uint32_t adopt_side_tails(SideGroup& side, PageId page);
  [[nodiscard]] bool is_kept_column(const SideGroup& side, const SequenceSlot& slot, std::uint32_t column) const;
  void slide_sides(std::uint32_t index);
  [[nodiscard]] TokenRange missing_of_window(const SideGroup& side, std::uint32_t index, std::uint32_t end,
                                             bool may_run_again) const;
  [[nodiscard]] Status check_sides_held(std::uint32_t index, std::uint32_t end, bool may_run_again) const;
  void copy_sides(std::uint32_t source_index, std::uint32_t index);
  void truncate_sides(std::uint32_t index, std::uint32_t end);
  void drop_side_tail(SideGroup& side, std::uint32_t index);
  void drop_side_tails(std::uint32_t index);
  void give_back_side_rows(std::uint32_t index, std::uint32_t first_page);
  void give_back_side_rows(std::uint32_t index, std::span<const SidePart> parts);
  void make_side_parts(const StepPart& part);
  void plan_side_parts(const StepPart& part, std::span<SidePart> parts);
  void give_back_side_row(SideGroup& side, std::uint32_t index, std::uint32_t first_column);
  [[nodiscard]] bool windows_hold(std::uint32_t index, std::uint32_t end) const;
  void free_fenced_sides(std::uint64_t oldest);
  [[nodiscard]] Status check_sides() const;
  [[nodiscard]] Status check_side_host(std::size_t side_index, std::span<std::uint32_t> uses,
                                       std::uint32_t& read_pages) const;

  // Side groups on the host.
  [[nodiscard]] Status open_side_hosts();
  [[nodiscard]] PageId take_host_page(SideGroup& side);
  void release_host(SideGroup& side, PageId host_page);
  void release_device(SideGroup& side, PageId page);
  void on_demote(PageId device_page, PageId host_page) override;
  void on_promote(PageId host_page, PageId device_page) override;
  void drop_host_sides(PageId host_page);
  void want_side_copy(SideGroup& side, PageId page, std::uint32_t column);
  [[nodiscard]] std::span<PageTransfer> side_page_row(std::uint32_t index);
  [[nodiscard]] std::optional<std::uint32_t> add_side_transfer(TransferKind kind, std::uint32_t side);
  void remove_side_transfer(std::uint32_t index);
  [[nodiscard]] TransferPlan side_plan_of(std::uint32_t index);
  [[nodiscard]] std::uint64_t side_name_tag(const SideGroup& side, PageId tree_page, Tier tier = Tier::Device) const;
  void start_side_stores();
  void finish_side_store(std::uint32_t index);
  void start_side_loads(std::uint32_t index);
  [[nodiscard]] WindowColumns needed_columns(std::size_t side, const Hit& hit, std::uint32_t token_count) const;
  [[nodiscard]] SideLoadRoom room_for_side_loads(std::span<const PageId> row, const Hit& hit,
                                                 std::uint32_t token_count) const;
  void count_side(const SideTransfer& transfer, const Completion& completion);
  void hold_path_sides(std::span<const PageId> row, const Hit& hit, std::uint32_t token_count, bool is_held);
  void load_side(std::uint32_t side_index, std::uint32_t index, const PrefixTree::Pin& path,
                 const WindowColumns& columns);
  void finish_side_load(std::uint32_t index);
  void end_side_load(std::uint32_t index);
  [[nodiscard]] PageId take_load_target(SideGroup& side);
  void wait_for_side_load(std::uint32_t load, std::uint32_t index);
  void leave_side_loads(std::uint32_t index);
  void disown_side_load(std::uint32_t index);
  void call_off_side_load(std::uint32_t index, MissReason reason);
  void expire_side_loads();
  [[nodiscard]] std::uint32_t idle_read_pages(const SideGroup& side) const;
  void apply_side(const Completion& completion);
  void end_side_transfer(std::uint32_t index);
  void cancel_side_transfers();
  void release_host_read(SideGroup& side, PageId host_page);

  // Side groups on disk.
  [[nodiscard]] double side_pages_on_disk(const SideGroup& side) const;
  /// And leaves the history what it has of the capacity.
  [[nodiscard]] Result<std::vector<FileStoreConfig>> side_store_configs(FileStoreConfig& history) const;
  [[nodiscard]] Status open_side_disks();
  [[nodiscard]] bool is_kept_on_disk(const SideGroup& side, std::uint32_t column) const;
  void want_side_on_disk(SideGroup& side, PageId host_page);
  void prefer_sides_on_disk(PageId device_page);
  void want_lost_sides();
  [[nodiscard]] bool has_unstarted_side_writes() const;
  void lose_sides_on_disk();
  void forget_on_disk(SideGroup& side, PageId host_page);
  [[nodiscard]] bool start_side_disk_stores();
  [[nodiscard]] bool fill_side_disk_store(std::uint32_t index);
  void finish_side_disk_store(std::uint32_t index);
  [[nodiscard]] std::span<std::uint64_t> on_sides_of(const Transfer& find);
  [[nodiscard]] bool lacks_sides(const SequenceSlot& slot, const PrefixTree::Match& match);
  [[nodiscard]] FindPath path_of(const PrefixTree::Pin& pin);
  void choose_side_hit(std::uint32_t find);
  void start_side_disk_loads(std::uint32_t find);
  [[nodiscard]] SideLoadRoom room_for_side_disk_loads(std::uint32_t find, const FindPath& path) const;
  [[nodiscard]] bool reads_from_disk(std::uint32_t side, const Transfer& find) const;
  [[nodiscard]] static bool is_in_memory(const SideGroup& side, const FindPath& path, std::uint32_t column);
  void cancel_side_disk_loads(std::uint32_t find);
  void load_side_from_disk(std::uint32_t side_index, std::uint32_t find, const FindPath& path);
  void hold_host_sides(std::uint32_t find, const FindPath& path, bool is_held);
  [[nodiscard]] static PageId host_side_at(const SideGroup& side, const FindPath& path, std::uint32_t column);
  void finish_side_disk_load(std::uint32_t index);
  [[nodiscard]] DiskPlan side_disk_plan_of(std::uint32_t index);
  void go_on_with_sides(std::uint32_t index);
  /// Whether a sequence may wait for what is not on the device.
  [[nodiscard]] bool may_load(const SequenceSlot& slot) const {
    return slot.tier_max != Tier::Device && slot.prefetch != Prefetch::BestEffort && !is_paused && !falls_asleep &&
           !is_asleep;
  }
  [[nodiscard]] std::uint64_t history_page_bytes() const;
  [[nodiscard]] Result<Admission> start_admitted_with_sides(std::uint32_t index);

  // State slots.
  [[nodiscard]] bool has_state() const { return state_slot_count > 0; }
  [[nodiscard]] std::size_t state_group_count() const { return sides.size() - window_sides.size(); }
  [[nodiscard]] Status check_state_slot(std::uint32_t index, const char* call) const;
  void take_state_slot(std::uint32_t index);
  void release_state(std::uint32_t index);
  void start_state(std::uint32_t index, const Hit& hit);
  [[nodiscard]] static bool has_rows(const CacheGroup& group);
  [[nodiscard]] static std::uint32_t needed_rows(const CacheGroup& group, std::uint32_t position);
  [[nodiscard]] static std::uint32_t snapshot_rows(const SideGroup& side);
  [[nodiscard]] bool is_state_held(const SideGroup& side, std::uint32_t index, std::uint32_t end,
                                   std::uint32_t high) const;
  [[nodiscard]] Status check_state_held(const SideGroup& side, std::uint32_t index, std::uint32_t end) const;
  [[nodiscard]] Status check_drafts(std::uint32_t index, std::uint32_t known_end, std::uint32_t draft_count) const;
  [[nodiscard]] std::uint32_t next_checkpoint(const SequenceSlot& slot, std::uint32_t position) const;
  [[nodiscard]] bool take_snapshot_pages(std::uint32_t part, std::uint32_t position, std::vector<PlannedSave>& saves);
  [[nodiscard]] bool wants_snapshot(std::uint32_t index, std::uint32_t position) const;
  void plan_states(StepInFlight& step);
  void fill_state(std::uint32_t index, std::uint64_t step_number_of_fill);
  void plan_saves(std::uint32_t place, StepPart& part, StepInFlight& step);
  void finish_saves(const StepInFlight& step, std::uint32_t place, bool is_done);
  void replace_last(SideGroup& side, std::uint32_t index, std::uint32_t position);
  void end_restores(std::uint32_t index, std::uint64_t step);
  void settle_state(std::uint32_t index);
  void restart_state(std::uint32_t index);
  void cut_state(std::uint32_t index, std::uint32_t end);
  void fork_state(std::uint32_t source_index, std::uint32_t index);
  void add_fork(StateCopy copy);
  /// Forks that may wait for the next plan, for each sequence.
  static constexpr std::uint32_t kForksMax = 2;

  // Preemption and transfers.
  [[nodiscard]] std::uint32_t held_page_count(std::uint32_t index, std::uint32_t first_page = 0) const;
  [[nodiscard]] std::span<PageId> saved_row(std::uint32_t index) {
    return {saved_pages.data() + (std::size_t{index} * (sequences.row_pages() + 1)), sequences.row_pages() + 1};
  }
  [[nodiscard]] Status check_save(std::uint32_t index, std::uint32_t page_count) const;
  [[nodiscard]] Status check_transfers(std::uint32_t page_count, const char* call, std::uint32_t index) const;
  void start_saving(std::uint32_t index);
  void finish_save(std::uint32_t transfer);
  void end_saving(std::uint32_t index);
  [[nodiscard]] Result<Admission> start_restoring(std::uint32_t index);
  void finish_restore(std::uint32_t transfer);
  void end_restoring(std::uint32_t index);
  void abandon_saving(std::uint32_t index);
  void abandon_restoring(std::uint32_t index);
  [[nodiscard]] static bool can_be_computed_again(const SequenceSlot& slot);
  void become_dropped(std::uint32_t index);
  void release_saved(std::uint32_t index);
  void release_read(PageId device_page);
  [[nodiscard]] Result<std::uint32_t> find_receiving(const Sequence& sequence, const char* call) const;
  void list_cached_sends(std::uint32_t index);

  // The host tier: copies to it.
  [[nodiscard]] bool has_host() const { return host_page_count > 0; }
  [[nodiscard]] bool writes_back() const { return has_host() && config.host.write_policy == WritePolicy::WriteBack; }
  [[nodiscard]] Status open_host();
  [[nodiscard]] std::uint32_t clean_reserve_for(std::uint32_t page_count) const {
    return config.host.clean_reserve_pages.value_or(std::max(1U, page_count / 16));
  }
  void want_copies(std::uint32_t index, std::uint32_t first_page, std::uint32_t end_page);
  void want_copies_of_path(const PrefixTree::Pin& pin);
  [[nodiscard]] bool is_settled(PageId device_page) const {
    return is_over(copy_after_step[device_page.value]) && is_written(copy_after_call, device_page);
  }
  [[nodiscard]] bool is_over(std::uint64_t step) const;
  /// Rows that look ahead are written between the call that makes the tokens behind them known and the next one.
  [[nodiscard]] bool is_written(const LazyArray<std::uint64_t>& calls, PageId page) const {
    return calls.size() == 0 || calls[page.value] != call_number;
  }
  [[nodiscard]] bool try_take_targets(std::span<PageId> out);
  [[nodiscard]] PageId take_host_page();
  void release_host(PageId host_page);
  void release_host_read(PageId host_page);
  void release_freed_host();
  [[nodiscard]] bool add_store(std::uint32_t transfer, PageId device_page);
  void start_stores();
  void start_leaving(std::uint32_t page_count);
  void finish_store(std::uint32_t index);
  /// Device pages that can be had at once, when those of a match are not among them.
  [[nodiscard]] std::uint32_t available_besides(const PrefixTree::Match& match) const;
  /// The same for a load, which writes at any time: pages that wait for moves of the next plan are of no use to it.
  [[nodiscard]] std::uint32_t available_for_loads(const PrefixTree::Match& match) const {
    return available_besides(match) - (step_order.empty() ? fenced.count() : 0);
  }
  [[nodiscard]] std::uint32_t evictable_now() const;

  // Transfers.
  [[nodiscard]] std::span<PageTransfer> page_row_of(std::uint32_t transfer) {
    return {transfer_pages.data() + (std::size_t{transfer} * config.host.transfer_pages_max),
            config.host.transfer_pages_max};
  }
  [[nodiscard]] std::span<PageTransfer> pages_of(std::uint32_t transfer) {
    return page_row_of(transfer).first(transfers[transfer].page_count);
  }
  [[nodiscard]] std::span<const PageTransfer> pages_of(std::uint32_t transfer) const {
    return {transfer_pages.data() + (std::size_t{transfer} * config.host.transfer_pages_max),
            transfers[transfer].page_count};
  }
  [[nodiscard]] PageTransfer way_of(PageId device_page, PageId host_page, std::uint64_t name_tag,
                                    std::uint32_t place = 0) const {
    return {.device_page = device_page,
            .host_page = host_page,
            .host_generation = host_generations[host_page.value],
            .place = place,
            .name_tag = name_tag};
  }
  void add_page(std::uint32_t transfer, const PageTransfer& page) {
    page_row_of(transfer)[transfers[transfer].page_count++] = page;
  }
  [[nodiscard]] std::optional<std::uint32_t> add_transfer(TransferKind kind, TransferPriority priority);
  void remove_transfer(std::uint32_t index);
  [[nodiscard]] TransferPlan plan_of(std::uint32_t index);
  void hand_over_transfers();
  void cancel_transfer(std::uint32_t index);
  void cancel_all_transfers();
  void apply_one(const Completion& completion);
  void go_on();
  static void measure_rate(const Completion& completion, double& rate);
  void count_disk(const Transfer& transfer, const Completion& completion);
  void work_in_background();

  // The host tier: loads from it.
  struct LoadChoice {
    std::uint32_t page_count = 0;        // on the host, to be waited for
    std::uint32_t new_pages = 0;         // of those, in no load so far
    MissReason miss = MissReason::None;  // when none
  };
  [[nodiscard]] LoadChoice choose_load(const SequenceSlot& slot, const PrefixTree::Match& match) const;
  [[nodiscard]] Status check_room_for_load(std::uint32_t index, const LoadChoice& choice,
                                           const PrefixTree::Match& match) const;
  [[nodiscard]] Result<Admission> start_admitted(std::uint32_t index);
  void make_clean(std::uint32_t page_count, const PrefixTree::Match& match);
  void start_loads(const PrefixTree::Pin& pin, std::uint32_t key_space, TransferPriority priority);
  [[nodiscard]] bool start_load(const PrefixTree::Pin& pin, TokenRange pages, std::uint32_t key_space,
                                TransferPriority priority);
  void list_host_runs(const PrefixTree::Pin& pin);
  [[nodiscard]] bool is_load_of(std::uint32_t load, const PrefixTree::Pin& pin) const;
  [[nodiscard]] bool try_finish_load(std::uint32_t index);
  void promote_arrived(std::uint32_t index);
  void drop_bad_page(std::uint32_t index);
  void forget_load(std::uint32_t index, MissReason reason);
  void call_off(std::uint32_t index, MissReason reason);
  void release_path(std::uint32_t index);
  void end_load(std::uint32_t index);
  void expire_loads();
  void finish_loads();
  void wake_loading();
  void wake(std::uint32_t index, MissReason reason);
  void cancel_unneeded_loads();
  [[nodiscard]] bool has_host_transfers() const;
  void prefetch(std::uint32_t index, const PrefixTree::Match& match);
  void prefetch_from_host(std::uint32_t index, const PrefixTree::Match& match);
  [[nodiscard]] Miss find_miss(std::uint32_t index, const PrefixTree::Match& match);

  // The disk tier.
  [[nodiscard]] bool has_disk() const { return disk != nullptr; }
  [[nodiscard]] Status open_disk(FileSystem* given_files, std::span<HostPages* const> given_hosts);
  void log_names(std::uint32_t index, std::uint32_t first_page, std::uint32_t end_page);
  void forget_names(std::uint32_t key_space);
  [[nodiscard]] std::uint32_t pages_asked(const SequenceSlot& slot) const;
  [[nodiscard]] bool may_look(const SequenceSlot& slot, const PrefixTree::Match& match);
  [[nodiscard]] std::optional<std::uint32_t> look_for(std::uint32_t index, const PrefixTree::Match& match);
  [[nodiscard]] std::optional<std::uint32_t> add_find(TransferKind kind, std::uint32_t key_space,
                                                      const PrefixTree::Key& key);
  void remove_find(std::uint32_t index);
  [[nodiscard]] bool start_looking(std::uint32_t index, const PrefixTree::Match& match);
  void stop_looking(std::uint32_t index, MissReason miss);
  [[nodiscard]] std::uint32_t pages_looked_for(const Transfer& find) const {
    return (find.token_count / page_tokens) - find.first_page;
  }
  [[nodiscard]] PrefixTree::Key key_of_find(const Transfer& find) const;
  [[nodiscard]] DiskPlan disk_plan_of(std::uint32_t index);
  void finish_disk(std::uint32_t index);
  void finish_find(std::uint32_t index);
  [[nodiscard]] bool is_worth_reading(const Transfer& find);
  void start_disk_loads(std::uint32_t find);
  [[nodiscard]] bool waits_for_transfers(const Transfer& find) const;
  [[nodiscard]] bool has_free_row() const;
  [[nodiscard]] std::uint32_t next_waiting_for_turn(std::uint64_t turn) const;
  void start_waiting_finds();
  void go_on_looking();
  void finish_disk_loads(std::uint32_t find);
  void finish_disk_load(std::uint32_t index);
  void end_find_with_sides(std::uint32_t index);
  void end_find(std::uint32_t index);
  void abandon_find(std::uint32_t index, MissReason miss);
  void cancel_unneeded_finds();
  void expire_looking();
  void want_on_disk(PageId host_page, PageId device_page);
  void prefer_on_disk(const PrefixTree::Pin& pin);
  void forget_on_disk(PageId host_page);
  void lose_on_disk();
  [[nodiscard]] bool may_copy() const;
  [[nodiscard]] double write_burst() const;
  void refill_write_budget(TimeNs time);
  [[nodiscard]] bool may_write(DiskList list, std::uint64_t bytes) const;
  [[nodiscard]] bool must_write() const;
  [[nodiscard]] std::uint32_t disk_store_count_max() const;
  void start_disk_stores();
  void finish_disk_store(std::uint32_t index);
  void drop_on_disk(std::uint32_t key_space);
  void start_drops();
  void want_all_copies();
  [[nodiscard]] Result<std::uint32_t> add_direct(TransferKind kind, KeySpaceId key_space, const Prompt& prompt,
                                                 const char* call);
  [[nodiscard]] Status check_bytes(const Prompt& prompt, std::size_t bytes, const char* call) const;
  void finish_direct(std::uint32_t index);

  // Rules, for check_invariants().
  [[nodiscard]] Status check_tiers() const;
  [[nodiscard]] Status check_users() const;
  [[nodiscard]] Status check_sequence(std::uint32_t index) const;
  [[nodiscard]] Status check_steps() const;
  [[nodiscard]] Status check_owners() const;

  // Pages that leave the tree.
  void give_up(std::span<const PageId> pages);
  std::uint32_t evict(std::uint32_t page_count);
  std::uint32_t drop_pages(RunId root, ResidencyCause cause);
  void release_key_space(std::uint32_t index);
  void leave_key_space(std::uint32_t index);
  [[nodiscard]] Status advance(TimeNs time);
  void end_keep(std::uint32_t index);
  [[nodiscard]] std::uint32_t keep_pages_max() const { return config.keep_pages_max.value_or(pool_page_count() / 2); }
  [[nodiscard]] std::uint32_t pool_page_count() const {
    return config.device.pool == DevicePool::Owned ? pool.page_count() : offered.page_count();
  }

  CacheConfig config;
  std::atomic<std::thread::id> owner = std::this_thread::get_id();
  PoolGeometry geometry;
  std::uint32_t page_tokens = 0;
  std::uint32_t partial_reuse_min_tokens = 0;
  std::uint32_t context_tokens_max = 0;

  LazyMemory host_memory;
  std::vector<DeviceMemoryBlock> accelerator_memory;  // outlives the mover
  std::byte* memory = nullptr;

  // The layout's groups. The first that keeps everything is `geometry`'s; the others of the history share its page ids.
  std::uint32_t history_index = 0;  // in the layout; one past the last group when none keeps everything
  std::vector<GroupMemory> more_history;
  std::vector<SideGroup> sides;
  std::vector<std::uint32_t> window_sides;  // those with rows of pages
  std::vector<HitGroup> hit_groups;         // as many as sides
  std::vector<HitGroup> all_hit_groups;     // the same with what is on the host, where there is one
  LazyArray<PageTransfer> side_transfer_pages;
  std::vector<std::uint32_t> side_order;  // those nobody has taken, oldest first
  std::uint32_t side_transfer_count = 0;  // that live
  HitLimits hit_limits;
  bool has_snapshots = false;
  std::uint32_t checkpoint_grid = 1;      // snapshots are taken at multiples of this
  std::uint32_t checkpoint_interval = 0;  // 0: the last one counts
  std::optional<StateSlots> state_slots;
  std::uint32_t state_slot_count = 0;
  std::vector<std::uint32_t> free_state_slots;
  LazyMemory own_state_memory;
  std::byte* state_memory = nullptr;
  std::vector<const PoolGeometry*> group_geometries;  // by group of the layout; null where it has no pages
  std::vector<std::byte*> group_pools;
  std::vector<StateCopy> pending_forks;  // for the next plan
  std::vector<StateCopy> state_copies;   // of the plan being made
  std::vector<StateCopy> state_saves;    // of the plan being made
  std::vector<SidePart> planning_sides;
  std::vector<PageId> path_scratch;

  // What pins the tree is declared after it, and so destroyed before.
  std::unique_ptr<Policy> policy;
  std::unique_ptr<Policy> host_policy;
  ResidencyLog log;
  LostPages lost_pages;
  std::unique_ptr<PrefixTree> tree;
  PagePool pool;         // DevicePool::Owned
  OfferedPages offered;  // DevicePool::External
  KeySpaceTable key_spaces;
  SequenceTable sequences;
  std::unique_ptr<Mover> mover;                 // null: an external one, or no host tier
  std::shared_ptr<ReleaseQueue> release_queue;  // shared with the handles, which may outlive the cache
  std::vector<KeepSlot> keeps;
  std::uint32_t kept_pages = 0;
  TimeNs now = 0;
  TimeNs next_expiry = INT64_MAX;

  std::vector<StepInFlight> steps;        // one more than can be in flight: a plan outlives its step a while
  std::vector<std::uint32_t> step_order;  // those in flight
  std::uint32_t next_step = 0;            // where the search for a place begins
  std::uint64_t step_number = 0;          // of the last one planned
  std::uint64_t plan_mark = 0;
  std::vector<StepPart> planning;
  // Tails that plan_step gives up, or finds that it need not.
  struct RevokedTail {
    std::uint32_t index = 0;
    std::uint32_t tail_tokens = 0;
  };
  std::vector<RevokedTail> revoked;
  std::vector<RunId> revoked_runs;
  std::vector<PlannerEntry> planner_entries;
  std::vector<PageCopy> copies;
  std::vector<PlannerEntryGroups> planner_groups_of_entries;
  std::vector<PlannerSideStep> planner_steps;
  std::vector<PlannerSide> planner_sides;  // of planner_entries, one for each window group
  std::vector<PageId> page_scratch;        // pages on their way into rows, and duplicates on their way out
  LazyArray<TokenMove> moves;              // of trees committed since the last plan
  std::vector<std::int32_t> move_indptr;
  AttentionPlanner planner;
  FencedPages fenced;

  // The host tier, when there is one.
  std::uint32_t host_page_count = 0;
  std::uint32_t clean_reserve_pages = 0;
  HostRegionStatus host_region;
  PagePool host_pool;
  LazyArray<std::uint32_t> host_generations;  // by host page
  LazyArray<std::uint32_t> host_readers;      // loads that read a host page
  LazyArray<std::uint32_t> device_readers;    // stores that read a device page
  LazyArray<std::uint64_t> copy_after_step;   // by device page: not to be read before this step is finished
  LazyArray<std::uint64_t> copy_after_call;   // nor in this call; empty where no group looks ahead
  std::uint64_t call_number = 0;
  std::vector<Transfer> transfers;
  std::vector<SideTransfer> side_transfers;  // their ids go on behind those of `transfers`
  LazyArray<PageTransfer> transfer_pages;
  std::vector<std::uint32_t> transfer_order;  // those nobody has taken, oldest first
  std::uint32_t live_transfer_count = 0;
  std::uint32_t transfer_end = 0;          // those that live have indices below it
  std::uint32_t abandoned_save_pages = 0;  // in saves of sequences that have ended: still read, held by nobody
  std::vector<PageId> leaving_pages;
  LazyArray<PageId> saved_pages;  // a row for each sequence: its host pages while it is saved, kNullPage for none
  std::vector<RunId> path_runs;
  std::vector<Completion> completions;
  bool is_paused = false;     // no transfer starts
  bool falls_asleep = false;  // sleep() was called and is not done
  bool is_asleep = false;
  std::vector<SequenceId> ready_sequences;
  std::shared_ptr<std::function<void(SequenceId)>> on_ready;  // shared with apply() while it runs; null: none
  double load_rate = 0;                                       // bytes per ns
  double store_rate = 0;
  std::uint64_t loading_bytes = 0;  // in loads that are not over

  // The disk tier, when there is one.
  NameLog name_log;
  bool disk_has_failed = false;
  std::uint32_t find_row_count = 0;
  LazyArray<TokenId> find_tokens;  // a row for each find: its path from the root on
  LazyArray<ExtraKey> find_keys;
  LazyArray<std::uint64_t> find_on_sides;     // a row for each find: which side groups have something of a page on disk
  std::vector<std::uint32_t> find_row_users;  // the find, or kNoTransfer
  LazyArray<DiskState> disk_states;           // by host page
  LazyArray<std::uint8_t> device_hot;         // by device page: 1 when it was used so often that its copy is Hot
  IndexLists disk_lists;                      // host pages by DiskList
  std::uint32_t on_disk_count = 0;            // host pages that are there, too
  std::uint32_t disk_store_count = 0;         // transfers
  std::uint32_t side_disk_store_count = 0;    // transfers
  std::uint32_t side_disk_load_count = 0;     // transfers
  std::uint32_t next_side_store = 0;          // whose turn it is
  std::uint16_t side_pool_count = 0;
  std::uint32_t disk_load_count = 0;    // transfers
  std::uint64_t last_turn = 0;          // of those who wait for their turn to look
  std::uint32_t unread_find_count = 0;  // since the last that was read
  std::uint64_t disk_loading_bytes = 0;
  double disk_load_rate = 0;  // bytes per ns
  double write_budget = 0;    // bytes that may be written now
  bool has_unstarted_drop = false;
  bool wants_flush = false;        // flush() was called and is not done
  bool is_flushing = false;        // all is written, and being synced
  bool has_lost_copies = false;    // to the host, since flush() was called first
  bool has_lost_writes = false;    // since flush() was called first
  bool wants_flush_again = false;  // something was dropped meanwhile
  std::optional<TransferOutcome> flush_outcome;
  struct Answer {
    std::function<void(const DiskAnswer&)> callback;
    DiskAnswer answer;
  };
  std::vector<Answer> answers;  // to be given at the end of apply()

  Stats counters;  // the counting half; levels are read when asked for

  // Last, so that its threads end before what they read.
  std::unique_ptr<FileSystem> files;
  std::unique_ptr<DiskMover> disk;
};

}  // namespace quire
