// SPDX-License-Identifier: Apache-2.0
//
// What a Cache is made of. Public calls check the thread, end dropped sequences and then work on these parts; they
// validate everything before the first change. Sequences, steps and plans are decided here; everything between device,
// host and lower tiers is decided by Tiers.
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
#include "base/lazy_array.h"
#include "base/residency_log.h"
#include "cache/cached_chunks.h"
#include "cache/group_rows.h"
#include "cache/rank_reports.h"
#include "cache/steps_in_flight.h"
#include "pool/page_pool.h"
#include "prefix/prefix_tree.h"
#include "quire/cache.h"
#include "sequence/key_space_table.h"
#include "sequence/refusal.h"
#include "sequence/release_queue.h"
#include "sequence/sequence_table.h"
#include "store/device_memory.h"
#include "store/file_system.h"
#include "store/system_directory.h"
#include "tiers/tiers.h"
#include "transfer/disk_mover.h"
#include "transfer/disk_stores.h"
#include "transfer/rank_host_pages.h"
#include "transfer/ranked_tier.h"
#include "transfer/remote_mover.h"

namespace quire {

struct Cache::Impl : TierClient {
  struct KeepSlot {
    bool is_live = false;
    std::uint32_t generation = 0;
    std::uint32_t key_space = 0;
    std::uint32_t page_count = 0;
    TimeNs expires_at = 0;
    Hit hit;  // where a sequence can go on; anchored groups pin what it needs there
    PrefixTree::Pin pin;
  };

  /// A prefix that is brought to the host and held there.
  struct HoldSlot {
    bool is_live = false;
    bool is_told = true;  // false: it has settled, and its callback was not called yet
    std::uint32_t generation = 0;
    std::uint32_t key_space = 0;
    std::uint32_t page_count = 0;                  // of the history, as counted against hold_pages_max
    std::vector<std::uint32_t> group_page_counts;  // the same of anchored groups
    TimeNs expires_at = 0;
    SequenceId carrier;  // the cache's own sequence, which looks for its pages; none: it has looked
    PrefixTree::HostHold pages;
    AnchoredHold anchored;
    Miss miss;
    std::function<void(const HeldPrefix&)> callback;
    [[nodiscard]] bool is_arriving() const { return is_live && carrier != SequenceId{}; }
  };

  explicit Impl(CacheConfig config_)
      : config(std::move(config_)),
        log(config.residency_record_count_max),
        key_spaces(config.key_space_count_max),
        keeps(config.keep_count_max),
        holds(config.host.is_on() ? config.host.hold_count_max : 0) {}

  /// First thing in a public call, but for plain getters and set_owner_thread(): refuses other threads, and ends
  /// sequences whose handles were dropped.
  [[nodiscard]] Status enter();
  [[nodiscard]] Status require(DevicePool pool, const char* call) const;
  [[nodiscard]] Status require_awake(const char* call) const;

  // Opening.
  [[nodiscard]] Status open_groups(std::span<const std::uint64_t> page_counts);
  [[nodiscard]] Status open_group(std::uint32_t group_index, std::uint64_t page_count);
  [[nodiscard]] Status open_states();
  [[nodiscard]] Result<std::byte*> allocate_on_accelerator(std::size_t bytes);
  [[nodiscard]] Status open_memory(GroupMemory& memory, std::uint32_t group_index, std::uint64_t page_count);
  [[nodiscard]] Status reserve_memory(GroupMemory& memory);
  [[nodiscard]] std::vector<PlannerGroup> planner_groups() const;
  [[nodiscard]] Status reserve_steps();
  [[nodiscard]] Status open_host(std::uint32_t page_count);
  [[nodiscard]] Status open_group_host(AnchoredGroup& group, std::uint32_t host_page_count);
  [[nodiscard]] Status open_mover();

  // Opening tiers below the host.
  /// What of their configuration they have in common.
  struct LowerScope {
    const char* name = nullptr;    // how its fields begin: "disk"
    const char* is_set = nullptr;  // the field that switches it on
    std::span<const GroupRetention> group_retention;
    std::optional<std::uint32_t> rank_index;
  };
  [[nodiscard]] LowerScope disk_scope() const {
    return {"disk", "disk.directories", config.disk.group_retention, config.disk.rank_index};
  }
  [[nodiscard]] LowerScope remote_scope() const {
    return {"remote", config.remote.store == nullptr ? "remote.urls" : "remote.store", config.remote.group_retention,
            config.remote.rank_index};
  }
  /// What their movers are made with.
  struct LowerCommon {
    PageNames::Config names;
    NameLog::Config log;
    bool has_threads = true;
    int event_fd = -1;
    TimeNs (*unix_time)() = nullptr;
  };
  using ShardHosts = std::vector<std::vector<HostPages*>>;  // by shard of ranks, then by pool
  [[nodiscard]] Result<LowerCommon> open_lower_common(const LowerScope& scope, std::span<HostPages* const> given_hosts);
  [[nodiscard]] NameLog::Config name_log_config() const;
  [[nodiscard]] Status check_lower_rank(const LowerScope& scope) const;
  [[nodiscard]] std::vector<DiskPool> lower_pools(const LowerScope& scope, std::uint32_t rank) const;
  [[nodiscard]] std::vector<const PageGeometry*> pages_below(const LowerScope& scope) const;
  [[nodiscard]] std::uint32_t shard_count_of(const LowerScope& scope) const;
  [[nodiscard]] Result<std::vector<HostPages*>> host_pages_of_rank(std::uint32_t rank,
                                                                   std::span<HostPages* const> given_hosts) const;
  [[nodiscard]] Result<ShardHosts> hosts_of_shards(const LowerScope& scope, std::span<HostPages* const> given_hosts);
  [[nodiscard]] Result<LowerTier*> rank_shards(std::span<LowerTier* const> shards);
  [[nodiscard]] Status open_disk(FileSystem* given_files, std::span<HostPages* const> given_hosts);
  [[nodiscard]] Status open_disk_shard(std::uint32_t shard, FileSystem& on, std::span<HostPages* const> hosts,
                                       const DiskMover::Config& common);
  [[nodiscard]] Status open_remote(std::span<HostPages* const> given_hosts);
  [[nodiscard]] Result<RemoteStore*> open_remote_store(std::uint32_t shard, std::uint32_t shard_count);
  [[nodiscard]] std::uint32_t remote_extent_pages() const;
  [[nodiscard]] std::uint32_t clean_reserve_for(std::uint32_t page_count) const {
    return config.host.clean_reserve_pages.value_or(std::max(1U, page_count / 16));
  }

  // Resizing.
  /// Where a cached page stands in the tree.
  struct PagePlace {
    RunId run;
    std::uint32_t index = 0;
  };
  [[nodiscard]] Result<std::vector<PagePlace>> pages_to_move(std::uint32_t page_count) const;
  void move_below(std::span<const PagePlace> places, std::uint32_t page_count);

  /// Of the first group of the history.
  [[nodiscard]] const PoolGeometry& history_geometry() const { return *history_memory.front().geometry; }

  // Input.
  [[nodiscard]] Result<std::uint32_t> find_key_space(KeySpaceId id) const;
  [[nodiscard]] Result<std::uint32_t> find_sequence(const Sequence& sequence) const;
  /// "sequence 12", for messages.
  [[nodiscard]] static std::string name_of(std::uint32_t index) { return "sequence " + std::to_string(index); }
  /// Checks lengths and extra keys of a prompt. match() checks the values of its tokens, but only of those that the
  /// tree lacks.
  [[nodiscard]] Status check_prompt(const Prompt& prompt) const;
  [[nodiscard]] Status check_extra_keys(std::span<const ExtraKey> keys, TokenRange range) const;
  [[nodiscard]] static Status check_tokens(std::span<const TokenId> tokens, std::size_t first_position);
  [[nodiscard]] static Status check_ttl(std::optional<TimeNs> ttl_ns);
  [[nodiscard]] Status check_new_tokens(const SequenceSlot& slot, std::span<const TokenId> tokens) const;
  /// Finds a running sequence that is in no step, receives nothing and has no undecided tokens. Refuses any other one:
  /// "fork: sequence 3 …".
  [[nodiscard]] Result<std::uint32_t> find_quiet(const Sequence& sequence, const char* call) const;
  [[nodiscard]] static const char* not_running(const SequenceSlot& slot);
  [[nodiscard]] static std::string rebuilding(const SequenceSlot& slot);

  // The life of a sequence.
  /// Matches a prompt with the tree, and checks the values of the tokens that did not match.
  [[nodiscard]] Result<PrefixTree::Match> match(std::uint32_t space, const Prompt& prompt,
                                                const SequenceOptions& options);
  [[nodiscard]] std::uint32_t pending_tokens(const SequenceSlot& slot) const;
  [[nodiscard]] Retention retention_of(const SequenceSlot& slot) const {
    return {.priority = slot.options.priority, .expires_at = tiers->parts.time_after(slot.options.ttl_ns)};
  }
  [[nodiscard]] std::uint32_t pages_for(std::uint64_t token_count) const {
    return static_cast<std::uint32_t>((token_count + page_tokens - 1) / page_tokens);
  }
  [[nodiscard]] Result<std::uint32_t> add_sequence(std::uint32_t key_space);
  /// The last part of admit(), and of resume() after Preempt::Drop: the sequence runs, or waits for pages.
  [[nodiscard]] Result<Admission> start_admitted(std::uint32_t index);
  /// `is_again`: the sequence has run before, so its admission is not counted a second time.
  Admission start_running(std::uint32_t index, bool is_again = false);
  [[nodiscard]] Miss find_group_miss(std::uint32_t index, const PrefixTree::Match& match, const Hit& hit, Miss miss);
  void count_admission(std::uint32_t index, const Hit& hit, const Miss& miss);
  /// What a sequence starts with: the first pages of its row, and the beginning of one more.
  struct RowStart {
    std::uint32_t page_count = 0;
    std::uint32_t tail_tokens = 0;
    Hit hit;
  };
  void start_row(std::uint32_t index, const RowStart& start);
  void note_junction(SequenceSlot& slot, std::uint32_t history_tokens, const Hit& hit) const;
  void run_sequence(std::uint32_t index) override {
    if (sequences[index].state == SequenceSlot::State::RunningAhead) {
      end_ahead(index);
    } else if (sequences[index].admit_options.is_for_host) {
      settle_hold(index);
    } else {
      (void)start_running(index);
    }
  }
  void add_tokens(std::uint32_t index, std::span<const TokenId> tokens);
  [[nodiscard]] std::uint32_t granted_pages(std::uint32_t index) const;
  [[nodiscard]] Status check_expected(std::uint32_t index);
  [[nodiscard]] std::uint32_t expected_pages(const SequenceSlot& slot) const;
  void drop_sequence(std::uint32_t index);
  void end_sequence(std::uint32_t index);
  void publish_rest(std::uint32_t index);

  // Running ahead, on pages that loads are still filling.
  void run_ahead(std::uint32_t index) override;
  void take_loaded(std::uint32_t index, std::uint32_t load) override;
  void lose_loaded(std::uint32_t index, std::uint32_t load) override;
  void read_ahead(std::uint32_t index, std::uint32_t load);
  void take_pending(std::uint32_t index, const Hit& hit);
  template <typename Visitor>
  void for_each_pending(std::uint32_t index, std::uint32_t load, Visitor&& visit);
  void end_ahead(std::uint32_t index);
  void land(std::uint32_t index);
  void drop_pending(std::uint32_t index);
  void leave_ahead(std::uint32_t index);
  void give_up_ahead(std::uint32_t index);
  void list_loads(StepInFlight& step);
  [[nodiscard]] bool is_filling(std::uint32_t group_index, PageId page) const;
  void apply_arrived_copies(StepInFlight& step, bool is_aborted);
  [[nodiscard]] Status check_snapshots_arrived(const StepInFlight& step) const;
  /// A layer of a group as the mover counts: in its pool. Without pages: there is no such layer.
  struct PoolLayer {
    const TierPages* pages = nullptr;
    std::uint32_t layer = 0;
  };
  [[nodiscard]] PoolLayer find_layer(GroupLayer layer) const;
  [[nodiscard]] static std::uint32_t band_of(const PoolLayer& layer, std::uint32_t band_count);
  [[nodiscard]] Result<TransferOutcome> wait_for(const StepLoad& load, std::uint32_t band, TimeNs timeout_ns) const;
  [[nodiscard]] Status wait_on(DeviceStream stream, const StepLoad& load, std::uint32_t band) const;

  // Planning. A StepPart is what one entry adds to its sequence; `planning` has one for each entry of the call.
  [[nodiscard]] std::string too_long(std::uint64_t token_count) const;
  [[nodiscard]] std::uint32_t listed_pages(const SequenceSlot& slot, const StepPart& part) const;
  [[nodiscard]] Status check_shape(const PlanShape& shape) const;
  [[nodiscard]] Status check_entries(std::span<const StepEntry> entries);
  [[nodiscard]] Status check_entry(const StepEntry& entry, std::uint32_t index) const;
  [[nodiscard]] Status check_tree(const StepEntry& entry, std::uint32_t index) const;
  [[nodiscard]] Shortage measure() const;
  [[nodiscard]] Shortage measure_history() const;
  [[nodiscard]] std::uint32_t fitting_tokens(std::span<const StepEntry> entries, std::uint32_t index) const;
  [[nodiscard]] std::uint32_t window_pages_needed(std::size_t window) const;
  [[nodiscard]] bool windows_fit() const;
  [[nodiscard]] bool try_without_tails(std::span<const StepEntry> entries, const PlanShape& shape);
  [[nodiscard]] bool try_without_partial(std::span<const StepEntry> entries, const PlanShape& shape);
  void make_parts(std::span<const StepEntry> entries);
  [[nodiscard]] StepPart make_part(const StepEntry& entry, std::uint32_t index) const;
  void cut_at_checkpoint(const SequenceSlot& slot, std::uint32_t index, StepPart& part) const;
  [[nodiscard]] bool stores_page(const SequenceSlot& slot, const StepPart& part, std::uint32_t page) const;
  [[nodiscard]] std::span<WindowPart> planning_windows_of(std::size_t part) {
    return std::span(planning_windows).subspan(part * windows.size(), windows.size());
  }
  /// Tokens, drafts and tree tokens included, that the sequence's pages hold once the step has run.
  [[nodiscard]] static std::uint64_t end_of(const SequenceSlot& slot, const StepPart& part) {
    return std::uint64_t{slot.planned_end} + part.tree_before + part.token_count + part.draft_count;
  }
  void plan_part(const StepEntry& entry, StepPart& part, std::span<const PageId> new_pages);
  void add_planner_entry(const StepPart& part, std::uint32_t entry_index);
  void add_planner_groups(const StepPart& part);
  [[nodiscard]] AttentionPlan build_plan(StepInFlight& step, const PlanShape& shape, std::uint32_t place);

  // Steps in flight, oldest first.
  [[nodiscard]] Result<std::uint32_t> find_step(const Step& asked) const;  // the index in step_order
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
  void make_moves() override;
  void drop_moves();
  void free_fenced();
  [[nodiscard]] std::size_t move_count() const { return static_cast<std::size_t>(move_indptr.back()); }
  /// Whether moves of committed token trees wait for a plan, or are part of a step in flight.
  [[nodiscard]] bool is_moving() const {
    return move_count() > 0 ||
           std::ranges::any_of(step_order, [this](std::uint32_t place) { return steps[place].has_moves(); });
  }

  // Sequences' pages of the history.
  void settle(std::uint32_t index);
  [[nodiscard]] std::uint32_t known_end(std::uint32_t index, std::uint32_t public_pages) const;
  void slide(std::uint32_t index);
  [[nodiscard]] std::uint32_t pinned_pages(std::uint32_t index) const;
  void shorten_pin(std::uint32_t index);
  void pin_tails(std::uint32_t index, std::uint32_t first_page, std::uint32_t end_page);
  void drop_tail(SequenceSlot& slot);
  void drop_tails(std::uint32_t index);
  void truncate(std::uint32_t index, std::uint32_t computed_tokens);
  void copy_sequence(std::uint32_t source_index, std::uint32_t index, std::uint32_t at);
  void cut_extra_keys(std::uint32_t index);
  void give_back_row(std::uint32_t index, std::uint32_t first_page);
  void give_back_rows(std::uint32_t index, std::uint32_t first_page);
  enum class KeepState : std::uint8_t { No, Yes };
  void release_pages(std::uint32_t index, KeepState keeps_state = KeepState::No);
  [[nodiscard]] std::uint32_t keep_from(const SequenceSlot& slot, std::uint32_t computed_tokens) const;
  [[nodiscard]] static std::uint32_t first_recent(const SequenceSlot& slot, std::uint32_t computed_tokens);
  [[nodiscard]] Status check_held(const SequenceSlot& slot, std::uint32_t end) const;
  [[nodiscard]] std::uint32_t publishable_tokens(const SequenceSlot& slot) const;
  /// The pages of a sequence in the pool of a home.
  [[nodiscard]] std::span<PageId> row_in(const PageHome& home, std::uint32_t index) {
    return home.pool == 0 ? sequences.page_row(index) : groups[home.pool - 1U].row(index);
  }
  [[nodiscard]] std::uint32_t held_page_count(std::uint32_t index, std::uint32_t first_page = 0) const;

  // Sequences' pages of windows.
  void take_windows(std::uint32_t index, const Hit& hit, PageId tail_page);
  [[nodiscard]] Status check_keep(const Hit& hit) const;
  void hold_anchored(const KeepSlot& keep, bool is_held);
  void release_windows(std::uint32_t index, KeepState keeps_state);
  void settle_windows(std::uint32_t index, TokenRange columns, std::uint32_t known);
  void make_windows_private(std::uint32_t index, std::uint32_t first, std::uint32_t end);
  [[nodiscard]] std::uint32_t pin_window_tails(GroupRows& group, PageId page);
  [[nodiscard]] bool is_kept_column(const GroupRows& group, const SequenceSlot& slot, std::uint32_t column) const;
  void slide_windows(std::uint32_t index);
  [[nodiscard]] TokenRange missing_of_window(const GroupRows& group, std::uint32_t index, std::uint32_t end,
                                             bool may_run_again) const;
  [[nodiscard]] Status check_anchored_held(std::uint32_t index, std::uint32_t end, bool may_run_again) const;
  void copy_windows(std::uint32_t source_index, std::uint32_t index);
  [[nodiscard]] bool windows_own(std::uint32_t index, std::uint32_t column) const;
  void truncate_windows(std::uint32_t index, std::uint32_t end);
  void drop_window_tail(GroupRows& group, std::uint32_t index);
  void drop_window_tails(std::uint32_t index);
  void give_back_window_row(GroupRows& group, std::uint32_t index, std::uint32_t first_column,
                            AnchoredPages::Worth worth);
  void make_window_parts(const StepPart& part);
  [[nodiscard]] WindowPart make_window_part(const GroupRows& group, const StepPart& part) const;
  void plan_window_parts(const StepPart& part, std::span<WindowPart> parts);
  [[nodiscard]] bool windows_hold(std::uint32_t index, std::uint32_t end) const;

  // State slots.
  [[nodiscard]] bool has_state() const { return state_slot_count > 0; }
  [[nodiscard]] std::size_t state_group_count() const { return groups.size() - windows.size(); }
  [[nodiscard]] Status check_state_slot(const Refusal& refused) const;
  void take_state_slot(std::uint32_t index);
  void release_state(std::uint32_t index);
  void start_state(std::uint32_t index, const Hit& hit);
  [[nodiscard]] bool is_state_held(const GroupRows& group, std::uint32_t index, std::uint32_t end,
                                   std::uint32_t high) const;
  [[nodiscard]] std::string how_to_get_a_slot() const;
  [[nodiscard]] Status check_state_held(const GroupRows& group, std::uint32_t index, std::uint32_t end) const;
  [[nodiscard]] Status check_drafts(std::uint32_t index, std::uint32_t known_end, std::uint32_t draft_count) const;
  /// Where the last snapshot of a prompt is taken: before its last token.
  [[nodiscard]] std::uint32_t prompt_checkpoint(const SequenceSlot& slot) const {
    return (slot.prompt_tokens - std::min(slot.prompt_tokens, 1U)) / checkpoint_grid * checkpoint_grid;
  }
  [[nodiscard]] std::uint32_t next_checkpoint(const SequenceSlot& slot, std::uint32_t position) const;
  [[nodiscard]] bool take_snapshot_pages(std::uint32_t part, std::uint32_t position,
                                         std::vector<PlannedSnapshot>& saves);
  [[nodiscard]] bool wants_snapshot(std::uint32_t index, std::uint32_t position) const;
  void plan_states(StepInFlight& step);
  void fill_state(std::uint32_t index, std::uint64_t step_number_of_fill);
  void plan_snapshots(std::uint32_t place, StepPart& part, StepInFlight& step);
  void finish_snapshots(const StepInFlight& step, std::uint32_t place, bool is_done);
  void replace_last(GroupRows& group, std::uint32_t index, std::uint32_t position);
  void unpin_restored(std::uint32_t index, std::uint64_t step);
  static void unpin_restored(GroupRows& group, std::uint32_t index);
  void recover_state(std::uint32_t index);
  void restart_state(std::uint32_t index);
  void begin_anew(std::uint32_t index);
  void take_received_state(std::uint32_t index);
  void cut_state(std::uint32_t index, std::uint32_t end);
  void fork_state(std::uint32_t source_index, std::uint32_t index);
  void add_fork(StateCopy copy);
  /// How many copies of state slots may wait for the next plan, for each sequence and state group.
  static constexpr std::uint32_t kForksMax = 2;

  // External pools.
  [[nodiscard]] Status check_offered_groups(const Offer& offer) const;
  [[nodiscard]] Status hold_offered(const Offer& offer);
  void unhold_offered(const Offer& offer, std::size_t group_piece_count);
  void attach_offered(const Offer& offer, const TierPath& path, OfferOutcome& outcome);
  [[nodiscard]] std::span<const GroupPages> matched_row(std::uint32_t index) const {
    return {matched_pages.data() + (index * 2 * groups.size()), 2 * groups.size()};
  }
  [[nodiscard]] std::span<const GroupPages> hold_matched(std::uint32_t index, const Hit& hit, const TierPath& path,
                                                         std::uint32_t token_count);
  void release_matched(std::uint32_t index);
  /// A window or snapshot group by its index in the layout; null: the history, or not there.
  [[nodiscard]] const GroupRows* find_anchored(std::uint32_t group_index) const;
  /// The pages of a group, by its index in the layout; without one, those of the history.
  [[nodiscard]] Result<PageHome*> find_pool(std::optional<std::uint32_t> group_index, const char* call) const;

  // Preemption, sending and receiving.
  [[nodiscard]] std::span<const HeldPages> held_pages(std::uint32_t index);
  [[nodiscard]] Status check_save(std::uint32_t index, std::span<const HeldPages> held) const;
  void end_save(std::uint32_t index) override;
  [[nodiscard]] Result<Admission> start_restoring(std::uint32_t index);
  [[nodiscard]] Status check_restore(std::uint32_t index, const PrefixTree::Match& match) const;
  void end_restore(std::uint32_t index) override;
  void run_restored(std::uint32_t index);
  [[nodiscard]] static bool can_be_computed_again(const SequenceSlot& slot);
  void become_waiting(std::uint32_t index);
  [[nodiscard]] Result<std::uint32_t> find_receiving(const Sequence& sequence, const char* call) const;
  [[nodiscard]] Status check_receive(std::uint32_t index) const;
  [[nodiscard]] WindowColumns received_columns(std::uint32_t window, std::uint32_t index, std::uint32_t end) const;
  void reserve_windows(std::uint32_t index, std::uint32_t end);
  void end_receive(std::uint32_t index);
  [[nodiscard]] Status check_send(std::uint32_t index, TokenRange range, const ReceiveTargets& targets) const;
  [[nodiscard]] Status check_send_window(std::uint32_t window, std::uint32_t index, TokenRange range,
                                         std::span<const WindowRun> runs) const;
  void list_cached_sends(std::uint32_t index);
  void list_state_send(const StepPart& part);

  // Tiers.
  [[nodiscard]] bool has_host() const { return tiers->parts.has_host(); }
  [[nodiscard]] bool has_lower() const { return tiers->parts.has_lower(); }
  /// The first lower tier of a kind; null: there is none.
  [[nodiscard]] const Lower* find_lower(Tier tier) const {
    const auto found =
        std::ranges::find(tiers->parts.lowers, tier, [](const Lower& each) { return each.settings.tier; });
    return found != tiers->parts.lowers.end() ? &*found : nullptr;
  }
  [[nodiscard]] bool has_disk() const { return find_lower(Tier::Disk) != nullptr; }
  void add_lower_stats(Stats& stats) const;
  void add_lower_stats(GroupStats& stats, const TierPages& pages) const;
  /// Written when there is something to poll(); -1: there is no such thing.
  [[nodiscard]] int event_fd() const {
    return tiers->parts.mover != nullptr ? tiers->parts.mover->event_fd() : lower_events.get();
  }
  [[nodiscard]] std::uint32_t direct_tokens(std::uint32_t token_count) const;
  [[nodiscard]] std::vector<PoolColumns> direct_columns(std::uint32_t token_count) const;
  [[nodiscard]] DirectBytes direct_bytes(std::uint32_t token_count) const;
  [[nodiscard]] Status add_direct(TransferKind kind, KeySpaceId key_space, const Prompt& prompt, const char* call,
                                  Search::DirectCall direct);
  [[nodiscard]] std::function<void(TransferOutcome, const Hit&)> answer_to(
      std::function<void(const DiskAnswer&)> callback) const;
  [[nodiscard]] Status check_bytes(const Prompt& prompt, std::size_t bytes, const char* call) const;
  /// After apply() has taken completions and the time: runs sequences that need not wait any longer, and calls the
  /// engine's callbacks.
  void follow_up();
  /// Calls `callback` now, or when the sequence is ready.
  void tell_when_ready(std::uint32_t index, bool is_ready, ReadyCallback callback);
  /// Calls what admit() or resume() was given for a sequence that lives, if it was given something.
  void call_ready(SequenceId id);
  template <typename IsDone>
  [[nodiscard]] Result<bool> wait_until(Cache& cache, const WaitOptions& options, IsDone&& is_done);
  [[nodiscard]] std::span<const Completion> collect();
  [[nodiscard]] static Status check_completions(std::span<const Completion> completions, const char* call);
  [[nodiscard]] Status advance(TimeNs time);

  // A cache for each rank.
  [[nodiscard]] Status open_reports(const RankReport& report);
  /// Refuses a call that would apply what this rank alone has heard or is told, from the first report on.
  [[nodiscard]] Status may_apply_alone(const char* call) const;
  [[nodiscard]] std::uint64_t opened_as() const;
  [[nodiscard]] std::uint64_t decisions() const;
  void hear(std::span<const Completion> ended);
  void write_report(TimeNs now);
  [[nodiscard]] Result<TimeNs> read_reports(std::span<const std::span<const std::byte>> reports);
  [[nodiscard]] Status check_report(std::uint32_t rank);
  void agree();
  void take_told(std::uint32_t rank, const RankReportEntry& entry, std::span<const std::byte> words);
  [[nodiscard]] std::span<std::uint64_t> anchored_told(std::uint32_t transfer);

  void end_keep(std::uint32_t index);
  /// Gives up all kept prefixes, or those of one key space.
  void end_keeps(std::optional<std::uint32_t> key_space = std::nullopt);
  [[nodiscard]] Status check_hold(const HoldOptions& options) const;
  [[nodiscard]] Result<std::uint32_t> add_hold(std::uint32_t space, const Prompt& prompt, const HoldOptions& options);
  [[nodiscard]] std::uint32_t hold_pages_of(std::size_t group_place, std::uint32_t path_pages) const;
  [[nodiscard]] Status check_hold_pages(std::span<const std::uint32_t> group_page_counts) const;
  void count_held(HoldSlot& hold, std::uint32_t page_count, std::span<const std::uint32_t> group_page_counts);
  void settle_hold(std::uint32_t carrier);
  void settle_anchored(HoldSlot& hold, std::uint32_t carrier, PrefixTree::Match& match);
  /// Takes what held prefixes have waited for, and lets go of those whose history has gone.
  void update_holds();
  void release_lost_holds();
  void call_holders();
  [[nodiscard]] std::optional<std::uint32_t> find_hold(HoldId hold) const;
  [[nodiscard]] HeldPrefix held_prefix(std::uint32_t index) const;
  void end_hold(std::uint32_t index);
  /// Lets go of all held prefixes, or of those of one key space.
  void end_holds(std::optional<std::uint32_t> key_space = std::nullopt);
  [[nodiscard]] std::uint32_t arriving_hold_count() const;
  [[nodiscard]] std::uint32_t hold_pages_max() const {
    return config.host.hold_pages_max.value_or(history->host.page_count() / 2);
  }
  /// The share of an anchored group's host pages that hold_pages_max is of the history's.
  [[nodiscard]] std::uint32_t hold_pages_max(const GroupRows& group) const {
    const std::uint64_t host_pages = group.tier->pages.host.page_count();
    const std::uint64_t history_pages = history->host.page_count();
    const std::uint64_t share = ((host_pages * hold_pages_max()) + history_pages - 1) / history_pages;
    return static_cast<std::uint32_t>(std::min(share, host_pages));
  }
  [[nodiscard]] std::uint32_t keep_pages_max() const { return config.keep_pages_max.value_or(pool_page_count() / 2); }
  [[nodiscard]] std::uint32_t pool_page_count() const { return history->device_page_count(); }

  // Chunks.
  [[nodiscard]] Status require_chunks(const char* call) const;
  void unpin_chunks(std::uint32_t pin);
  [[nodiscard]] Status check_chunks() const;

  // Rules, for check_invariants().
  [[nodiscard]] Status check_users() const;
  [[nodiscard]] Status check_sequence(std::uint32_t index) const;
  [[nodiscard]] Status check_steps() const;
  [[nodiscard]] Status check_owners() const;
  [[nodiscard]] Status check_groups() const;
  [[nodiscard]] std::vector<std::uint32_t> count_users(std::size_t group_place) const;
  [[nodiscard]] Status check_ahead(std::uint32_t index) const;
  [[nodiscard]] bool is_pending(std::uint32_t index, std::uint32_t pool, PageId page) const;
  template <typename Visitor>
  void for_each_loaded(std::uint32_t pool, Visitor&& visit) const;

  CacheConfig config;
  std::atomic<std::thread::id> owner = std::this_thread::get_id();
  std::uint32_t page_tokens = 0;
  std::uint32_t partial_reuse_min_tokens = 0;
  std::uint32_t context_tokens_max = 0;

  std::vector<DeviceMemoryBlock> accelerator_memory;  // declared before `tiers`, so that it outlives the mover

  // The layout's groups. Those that keep everything are the history and use the same page ids. If there is none, a
  // group behind the layout's last one stands for them.
  std::uint32_t history_index = 0;  // of the first of them, in the layout
  std::vector<GroupMemory> history_memory;
  std::vector<GroupRows> groups;                      // anchored groups: those that do not keep everything
  std::vector<std::uint32_t> windows;                 // indices in `groups` of the window groups
  std::vector<const PoolGeometry*> group_geometries;  // by group of the layout; null: the group has no pages
  std::vector<std::byte*> group_pools;

  // State slots.
  bool has_snapshots = false;
  std::uint32_t checkpoint_grid = 1;      // snapshots are taken at multiples of this
  std::uint32_t checkpoint_interval = 0;  // 0: no group has RetentionRule::Every
  std::optional<StateSlots> state_slots;
  std::uint32_t state_slot_count = 0;
  std::vector<std::uint32_t> free_state_slots;
  LazyMemory own_state_memory;
  std::byte* state_memory = nullptr;
  std::vector<StateCopy> pending_forks;  // copies of state slots for forks, made by the next plan

  // Whatever holds pins of the tree is declared behind `tree`, so that it is destroyed before the tree.
  std::unique_ptr<Policy> policy;
  std::unique_ptr<Policy> host_policy;
  ResidencyLog log;
  LostPages lost_pages;
  std::unique_ptr<PrefixTree> tree;
  LazyArray<GroupPages> matched_pages;  // what matches hold of groups: a row for each, two pieces for each group
  KeySpaceTable key_spaces;
  SequenceTable sequences;
  std::shared_ptr<ReleaseQueue> release_queue;  // shared with the handles, which may outlive the cache
  std::vector<KeepSlot> keeps;
  std::uint32_t kept_pages = 0;
  std::vector<HoldSlot> holds;
  std::uint32_t hold_pages = 0;
  std::uint32_t untold_holds = 0;
  TimeNs next_expiry = INT64_MAX;
  std::unique_ptr<CachedChunks> chunks;  // null: CacheConfig::chunks is off
  Stats counters;                        // totals only; stats() reads the levels from tree, pools and tables
  std::unique_ptr<Tiers> tiers;
  TierPages* history = nullptr;  // tiers->parts.history.pages: the pages of the groups that keep everything
  HostRegionStatus host_region;
  std::vector<Completion> completions;
  RankReports rank_reports;
  std::shared_ptr<ReadyCallback> on_ready;     // follow_up() holds it during a call; null: none
  std::vector<ReadyCallback> ready_callbacks;  // by sequence: what admit() or resume() was given, until it is called

  // Steps.
  std::vector<StepInFlight> steps;        // one more than can be in flight: a plan stays readable after its step
  std::vector<std::uint32_t> step_order;  // indices in `steps` of the steps in flight, oldest first
  std::uint32_t next_step = 0;            // index in `steps` where plan_step() begins to look for a free one
  std::uint64_t plan_stamp = 0;
  std::vector<StepPart> planning;
  std::vector<WindowPart> planning_windows;
  PlanScratch scratch;
  std::vector<PageId> page_scratch;  // pages that a call has taken for rows, or duplicates that settle() gives back
  LazyArray<TokenMove> moves;        // of token trees committed since the last plan; the next plan makes them
  std::vector<std::int32_t> move_indptr;
  AttentionPlanner planner;

  // Last, so that the threads of lower tiers end before the memory that they read is freed.
  std::unique_ptr<FileSystem> files;
  Descriptor lower_events;                                      // written by lower tiers where the cache has no mover
  std::vector<std::unique_ptr<RankHostPages>> rank_host_pages;  // of ranks that hold the same bytes
  std::vector<std::unique_ptr<RankedTier>> ranked_tiers;        // of several shards, which answer into its memory
  std::vector<std::unique_ptr<DiskMover>> disks;                // one for each shard of ranks
  /// Host memory that a remote store knows.
  struct RegisteredMemory {
    RegisteredMemory(RemoteStore& the_store, std::span<std::byte> the_memory) : store(the_store), memory(the_memory) {}
    RegisteredMemory(const RegisteredMemory&) = delete;
    RegisteredMemory& operator=(const RegisteredMemory&) = delete;
    ~RegisteredMemory() { store.unregister_memory(memory); }
    RemoteStore& store;
    std::span<std::byte> memory;
  };
  /// Of one shard of ranks.
  struct Remote {
    RemoteStore* store = nullptr;
    std::unique_ptr<RemoteMover> mover;
  };
  std::vector<std::unique_ptr<RemoteStore>> own_remote_stores;
  std::vector<std::unique_ptr<RegisteredMemory>> registered_memory;
  std::vector<Remote> remotes;
};

// Calls visit(page) for each device page of a pool that a load fills, and no row of a sequence has.
template <typename Visitor>
void Cache::Impl::for_each_loaded(std::uint32_t pool, Visitor&& visit) const {
  const TransferBook& book = tiers->parts.book;
  for (std::uint32_t i = 0; i < book.end(); ++i) {
    const Transfer& load = book[i];
    if (!load.is_live() || load.kind != TransferKind::Load || load.pool != pool) continue;
    if (!load.is_of_tree() && load.is_wanted()) continue;  // a restore: the sequence's row has its pages
    for (const PageTransfer& page : book.pages(i)) {
      if (!page.device_page.is_none()) visit(page.device_page);
    }
  }
}

}  // namespace quire
