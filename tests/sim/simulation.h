// SPDX-License-Identifier: Apache-2.0
//
// Simulation: a cache of one group or of several, with a host tier, perhaps a disk tier, an engine, and a mover, in one
// thread on a simulated clock. A seed draws all of it. Every byte that a step reads, in every group, is compared with
// what that token must be; what the cache says about hits, misses and pages is compared with what the simulation knows
// itself: of one group by following every page, of several by trying every position on everything that is held.
//
//   simulation.cc        the loop, the mover's operations, time, winding down
//   sim_requests.cc      texts, requests until they run, hits and misses
//   sim_sequences.cc     what happens to sequences, and to the cache around them
//   sim_steps.cc         what happens to steps
//   sim_groups.cc        what several groups must hold, find and read
//   sim_ahead.cc         steps whose pages are still arriving
//   sim_disk.cc          the disk tier's lanes, flushes, direct calls, and the end of the process
//   sim_remote.cc        the remote tier's server
//
// single-threaded
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cache/cache_for_tests.h"
#include "quire/cache.h"
#include "sim_files.h"
#include "sim_mover.h"
#include "sim_paths.h"
#include "sim_setup.h"
#include "testing/sim_remote_store.h"
#include "tests/cache/groups_fixture.h"
#include "tests/cache/held_groups.h"
#include "transfer/ranked_tier.h"
#include "transfer/remote_mover.h"

namespace quire::testing {

class Simulation {
 public:
  Simulation(std::uint64_t seed, SimCounts& counts, const SimShape& shape = {});
  ~Simulation();

  /// One random operation, and what has to hold after it. Throws SimFailure.
  void step();
  /// Everything ends, everything is given back, and a lone request is served.
  void wind_down();
  /// From here on check_invariants() after every operation.
  void check_always() { setup_.check_every = 1; }
  [[nodiscard]] const SimSetup& setup() const { return setup_; }

 private:
  /// A flush that has nothing else to wait for may wait for a drop, which the remote tier makes twice with a pause.
  static constexpr TimeNs kDropPauseNs = 10'000'000;

  struct Space {
    KeySpaceId id;
    std::uint64_t salt = 0;  // of the bytes; another one when the key space is a new one of the same name
    bool is_known = false;
    // With a disk tier bytes outlive what the cache knows of a key space, until it is dropped.
    enum class Drop : std::uint8_t { None, Asked, Flushing, Flushed };
    Drop drop = Drop::None;
    bool was_dropped = false;      // in some life of the process
    std::uint32_t name_index = 0;  // another name, where what was dropped may be back
  };
  struct TreeToken {
    TokenId token = 0;
    std::int32_t parent = -1;
    std::uint64_t value = 0;
  };
  /// Where a preempted sequence's pages are.
  enum class SaveState : std::uint8_t { None, Saving, Saved, Restoring, Lost };
  /// Whether a sequence that is loading may be planned; or was, and a load has failed since.
  enum class Ahead : std::uint8_t { No, Yes, Lost };
  /// A sequence as the simulation knows it.
  struct Live {
    std::uint64_t number = 0;
    Sequence handle;
    KeySpaceId space;
    bool is_retired = false;  // its key space was dropped
    std::uint64_t salt = 0;
    SequenceOptions options;
    bool is_admitted = false;  // running or loading
    bool is_loading = false;
    bool has_waited = false;          // for a load, since it was admitted
    Ahead ahead = Ahead::No;          // of one that is loading
    std::uint32_t owed_calls = 0;     // of the ready callback
    std::uint32_t loading_pages = 0;  // when it was admitted
    bool may_look = false;            // on disk, when it was admitted
    std::uint32_t matched = 0;        // on the device when it was admitted, less what is replayed
    bool is_preempted = false;
    SaveState save_state = SaveState::None;
    std::uint32_t page_count = 0;  // that were to be saved
    std::uint32_t pages_left = 0;  // whose transfers are not over
    std::uint32_t host_pages = 0;  // that are its own now
    bool has_lost_pages = false;   // on their way
    Window window;
    std::uint32_t full_tokens = UINT32_MAX;  // so many see all before them
    std::uint64_t window_salt = 0;           // of the bytes of others
    bool has_hole = false;                   // as it was saved
    bool may_lose_copy = false;              // a tail that no step has copied yet
    bool has_draft = false;                  // in flight
    TimeNs admitted_at = 0;
    std::uint32_t waits_from = UINT32_MAX;  // whole pages it had when it began to load
    std::set<MissReason> load_troubles;     // of loads that it waits for
    std::vector<TokenId> tokens;            // known to the cache
    std::vector<TokenId> promised;          // that steps in flight will bring
    std::vector<ExtraKey> extra_keys;
    std::vector<std::uint64_t> values;  // the bytes of tokens and promised ones, as far as computed here
    std::vector<TreeToken> tree;        // undecided
    std::uint32_t computed = 0;
    std::uint32_t planned_end = 0;
    std::uint32_t steps_in_flight = 0;
  };
  struct FlightEntry {
    std::uint64_t number = 0;  // of the sequence
    std::uint32_t position = 0;
    Window window;
    std::uint32_t known_count = 0;  // tokens before drafts or tree; 0 with neither: the last one runs again
    std::uint32_t draft_count = 0;
    bool is_tree = false;
    bool runs_again = false;
    bool is_void = false;
    bool is_ahead = false;              // planned while pages were arriving
    bool is_lost = false;               // and they did not
    std::uint32_t layers_read = 0;      // of one that is ahead
    std::string wrong;                  // what it has read that was not right
    std::vector<std::uint64_t> values;  // of everything up to the last token, drafts or tree tokens included
    std::vector<TokenId> drafts;
    std::vector<PageId> pages;
    std::vector<std::int64_t> slots;
    std::uint64_t salt = 0;
    SequenceView view;  // before the step; of several groups
  };
  struct Flight {
    Step step;
    std::vector<FlightEntry> entries;  // as in the call
    std::vector<StepLoad> loads;
    bool may_move = false;   // tokens of a tree that was committed before it
    bool has_begun = false;  // copies are made, contexts were read, nonsense is written
    bool has_run = false;    // what is right is written
  };
  /// The pages of one sequence in transfers, whether it lives or not.
  struct Save {
    SequenceId id;
    std::uint64_t number = 0;
    std::uint32_t token_count = 0;
    std::uint32_t pages_left = 0;
  };
  struct Keep {
    KeepId id;
    KeySpaceId space;
    std::uint32_t page_count = 0;
    TimeNs expires_at = INT64_MAX;
  };

  /// A call past the other tiers, until it is answered.
  struct Direct {
    TransferKind kind = TransferKind::FindBelow;
    std::vector<TokenId> tokens;
    std::vector<ExtraKey> extra_keys;
    std::vector<std::uint64_t> values;
    std::vector<std::byte> bytes;
    std::uint64_t salt = 0;
  };

  [[nodiscard]] Status open_cache();
  void make_texts();
  void share_pages();
  /// After every call: counts it, and looks at what it has changed.
  void called();
  void check_accounts();
  void check_requests(const Stats& stats);
  void poison();

  // Several groups.
  void open_groups();
  void count_groups();
  void check_group_accounts(const Stats& stats);
  void check_admission(const Live& live, const Admission& admission, const HeldGroups& held);
  void check_start(const Live& live, const HeldGroups& held);
  void check_hit(const Live& live, const HeldGroups& held, const SequenceView& view);
  void check_held_miss(const Live& live, const HeldGroups& held, const SequenceView& view);
  void check_lookup(KeySpaceId space, std::span<const TokenId> tokens, const Lookup& found);
  void expect_unused(const AttentionPlan& plan) const;
  void start_groups(const Flight& flight);
  void run_groups(Flight& flight);
  void complete_rows(const Flight& flight, std::span<const StepResult> results);
  /// Of a fork or what is left by a rewind: something to run.
  void append_one(Live& live);
  [[nodiscard]] std::uint32_t partial_min() const {
    return setup_.partial_reuse_min_tokens.value_or(std::max(1U, (setup_.page_tokens + 1) / 2));
  }
  /// What it finds is what all groups hold, no less by its own choice.
  [[nodiscard]] static bool asks_for_all(const Live& live) {
    return live.options.use_cache && !live.options.match_tokens_max && !live.is_retired;
  }

  // The mover's side.
  void mover_operation();
  void take_transfers(std::uint32_t count_max);
  void take_cancellations();
  void apply(bool all);
  void add_odd_completions(std::vector<Completion>& completions);
  void note_owners(std::span<const TransferPlan> plans);
  void note_saves(std::span<const SimMover::Over> over);
  /// A page that a load brings, as far as the mover knows.
  struct Coming {
    SimPaths::PathKey key = 0;
    TimeNs taken_at = 0;
  };
  void note_ready(std::span<const Coming> on_their_way, std::size_t completion_count);
  /// As far as it goes now, stuck as some of it may be.
  void move_on();
  /// Until nothing is on its way.
  void pump();

  // The disk tier's side.
  [[nodiscard]] FileStore& disk_store(SimStore store) {
    return CacheForTests::disk(*cache_, store.shard).store(store.pool);
  }
  [[nodiscard]] FileStoreStats disk_store_stats(SimStore store) {
    return CacheForTests::disk(*cache_, store.shard).store_stats(store.pool);
  }
  void disk_operation();
  bool run_lane(DiskMover::Lane lane, std::uint32_t shard);
  /// Until nothing is left to do.
  void run_lanes();
  [[nodiscard]] std::vector<Completion> collect_disk(bool all);
  void check_arrived(std::span<const PageTransfer> arrived);
  /// What the cache may choose from when it hears of a find: to read what was found, or to compute it.
  struct DiskChoice {
    std::uint32_t found_pages = 0;
    std::uint64_t waiting_bytes = 0;     // that are read before them
    std::vector<std::uint64_t> waiting;  // sequences that wait for something on disk, and for nothing on the host
  };
  [[nodiscard]] std::optional<DiskChoice> disk_choice(std::span<const Completion> completions) const;
  void check_disk_choice(const DiskChoice& choice);
  [[nodiscard]] KeySpace key_space_of(std::uint32_t name) const;
  void note_drop(Space& space);
  [[nodiscard]] bool may_look(const Live& live, SimPaths::Found found) const;
  void check_disk_accounts(const Stats& stats);
  void take_lower_completions();
  void check_fault(const Completion& completion) const;
  void flush();
  /// `is_of_all`: nothing happened meanwhile but what it waited for.
  void end_flush(const Result<bool>& flushed, bool is_of_all);
  [[nodiscard]] std::uint64_t failed_stores() const;
  [[nodiscard]] std::vector<PageName> known_names() const;
  void call_direct();
  template <typename Visitor>
  void for_each_direct_row(const Direct& direct, std::uint32_t token_count, Visitor&& visit);
  void answer(Direct& direct, const DiskAnswer& answer);
  /// What one shard has read.
  void check_direct(const Direct& direct, const DiskAnswer& answer, std::span<const std::byte> bytes);
  /// The process ends; another one opens what it has left.
  void restart();
  void forget_life();
  void reopen();
  [[nodiscard]] std::uint32_t failed_directories();

  // The remote tier's side.
  void open_remote(CacheConfig& config);
  /// Of a cache that was just opened.
  [[nodiscard]] Status open_remote_shards();
  /// Before its files and its server.
  void close_cache();
  void remote_operation();
  bool run_remote();
  void check_remote_accounts(const Stats& stats);

  // Sequences.
  void engine_operation();
  void begin();
  void serve();
  bool begin_with(std::uint32_t name, std::vector<TokenId> tokens, std::vector<ExtraKey> extra_keys,
                  const SequenceOptions& options);
  void admit();
  bool admit_one(Live& live);
  void start_running(Live& live);
  void check_choice(const Live& live, const Admission& admission, SimPaths::Found found, const Stats& before);
  void check_miss(const Live& live, const Miss& miss, std::span<const Miss> any);
  void count_miss(const Miss& miss);
  void expect_cached(const Live& live) const;
  void append();
  void fork();
  void rewind();
  void preempt();
  void set_window();
  [[nodiscard]] static bool can_be_computed_again(const Live& live) {
    return live.window.visible_tokens == 0 || live.full_tokens <= live.window.visible_tokens;
  }
  void save(Live& live);
  bool resume_saved(Live& live);
  void end_restoring(Live& live, const SequenceView& view);
  void commit_tree();
  void end();
  void end_one(Live& live);
  void keep();
  void unkeep();
  void drop_space();
  void chunk_operation();
  void pin_chunks(const Live& live);
  [[nodiscard]] std::int64_t slot_of(PageHandle handle, std::uint32_t place) const {
    return (static_cast<std::int64_t>(handle.value) * setup_.page_tokens) + place;
  }
  void reclaim();
  void stop_loading();
  void lookup();
  void pause();
  void resize();
  void unpause();
  void sleep();
  bool try_sleep();
  void wake();

  // Sequences that run ahead of their loads.
  void race();
  bool plan_twin(const Live& live);
  [[nodiscard]] bool is_ahead(std::uint64_t number);
  void start_ahead(Live& live, const SequenceView& view);
  void note_brought(std::span<const SimMover::Over> over);
  void expect_on_its_way(const Live& live) const;
  void expect_ready();
  /// Behind a call that may have brought it further. True where the ready callback is to be called.
  bool follow_ahead(Live& live);
  void follow_ahead_all();
  void land(Live& live, const SequenceView& view);
  void lose(Live& live);
  [[nodiscard]] bool has_arrived(const Flight& flight, std::uint32_t band, bool is_of_anchored = false) const;
  [[nodiscard]] bool is_read(const Flight& flight) const;
  void read_layers(Flight& flight);
  void wait_until(const std::function<bool()>& is_met);
  void wait_for_layers(Flight& flight);
  void wait_for_loads(const Flight& flight);
  void try_finish_too_soon(const Flight& flight);
  void check_lost(const Flight& flight);
  void check_wrong(const Flight& flight, std::span<const StepResult> results);

  // Steps.
  void plan();
  /// Nothing where groups cannot compute what was asked for, which they say.
  [[nodiscard]] std::optional<PlanOutcome> ask_plan(std::span<const StepEntry> entries);
  void plan_entries(std::vector<StepEntry>& entries, std::vector<Live*>& lives);
  void record_flight(const Step& step, std::span<const StepEntry> entries, std::span<Live* const> lives);
  void record_entry(const AttentionPlanEntry& planned, const StepEntry& asked, Live& live, FlightEntry& entry);
  void begin_flight(Flight& flight);
  void run_flight(Flight& flight);
  void run_up_to(std::size_t place);
  void run();
  void finish();
  void abort();
  void make_void(std::uint64_t number, std::size_t first_flight, const FlightEntry& first);
  void make_room();
  /// Of tokens of a committed tree, by the next step or one that is not over.
  [[nodiscard]] bool has_moves_to_make() const {
    return has_moves_ || std::ranges::any_of(flights_, &Flight::may_move);
  }

  [[nodiscard]] Live* find(std::uint64_t number);
  [[nodiscard]] bool is_quiet(const Live& live) const;
  [[nodiscard]] Live* draw_quiet();
  [[nodiscard]] Live* draw_live() { return lives_.empty() ? nullptr : lives_[below(lives_.size())].get(); }
  [[nodiscard]] std::uint32_t below(std::size_t bound) { return random_.below(static_cast<std::uint32_t>(bound)); }
  [[nodiscard]] bool chance(std::uint32_t percent) { return has_chance(random_, percent); }
  [[nodiscard]] TokenId draw_token();
  [[nodiscard]] std::vector<TokenId> draw_prompt(std::size_t tokens_max);
  void add_extra_keys(std::vector<TokenId>& tokens, std::size_t first, std::vector<ExtraKey>& keys);
  [[nodiscard]] SequenceOptions draw_options(std::size_t token_count);
  [[nodiscard]] static std::uint64_t next_value(std::uint64_t value, TokenId token, std::span<const ExtraKey> keys,
                                                std::size_t position);
  /// The same, where a token tells its extra key.
  [[nodiscard]] static std::uint64_t next_value_of_path(std::uint64_t value, TokenId token);
  void extend_values(Live& live) const;
  void refresh(Live& live);
  [[nodiscard]] SimPaths::Request request_of(const Live& live) const {
    return {.space = live.space, .is_retired = live.is_retired, .tokens = live.tokens, .options = &live.options};
  }
  [[nodiscard]] std::byte* byte_of(std::int64_t slot, std::uint32_t layer) const;
  void compare_value(std::int64_t slot, std::uint64_t value, const char* what, std::uint32_t position) const;
  void write_value(std::int64_t slot, std::uint64_t value);
  /// What is wrong in a layer of what an entry sees before its tokens.
  [[nodiscard]] std::string find_wrong(const FlightEntry& entry, std::uint32_t layer) const;
  void remove(const Live& live);

  SimCounts& counts_;
  SimMutation mutation_;
  Random random_;
  SimSetup setup_;
  std::unique_ptr<SimFiles> files_;          // null without a disk tier
  std::deque<SimHostPages> host_pages_;      // by rank, then by pool
  std::vector<SimStore> stores_ = {{0, 0}};  // on disk
  std::unique_ptr<SimRemoteServer> server_;  // null without a remote tier
  // What this life of the process has of it, by shard. Of one shard, the mover is the cache's.
  std::vector<std::unique_ptr<SimRemoteStore>> remote_stores_;
  std::vector<std::unique_ptr<RemoteMover>> remote_movers_;
  std::unique_ptr<RankedTier> remote_shards_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<GroupsEngine> engine_;  // null of one group
  std::unique_ptr<SimMover> mover_;
  std::unique_ptr<SimPaths> paths_;  // null in seeds that do not follow paths
  std::vector<std::uint16_t> pool_of_group_;
  bool has_anchored_ = false;  // groups
  bool has_state_ = false;
  bool has_replay_ = false;
  std::uint32_t lookahead_tokens_ = 0;  // of the group that looks furthest
  TimeNs now_ = 0;                      // the simulation's
  TimeNs told_ = 0;                     // as the cache knows it
  std::vector<Space> spaces_;           // by name
  std::uint64_t salt_count_ = 0;
  std::vector<std::unique_ptr<Live>> lives_;
  std::deque<Flight> flights_;
  std::vector<Keep> keeps_;
  bool has_chunks_ = false;
  Random chunk_random_;
  struct ChunkHold {
    ChunkPin pin;
    std::vector<std::pair<PageHandle, std::vector<std::uint64_t>>> pages;  // with the bytes of their tokens
  };
  std::vector<ChunkHold> chunk_holds_;
  std::vector<Save> saves_;                                    // in transfers
  std::unordered_map<std::uint32_t, std::uint64_t> restores_;  // sequence by transfer index
  std::array<std::vector<std::int32_t>, 16> tree_parents_;     // by entry of the step being planned
  std::vector<std::vector<TokenId>> segments_;
  std::vector<std::vector<TokenId>> documents_;
  std::vector<std::vector<TokenId>> texts_;                                       // of sequences that have ended
  std::unordered_set<std::uint64_t> computed_;                                    // values that some step has computed
  std::unordered_map<std::uint32_t, std::vector<SimPaths::PathKey>> load_paths_;  // by transfer index
  std::vector<std::vector<SimPaths::PathKey>>
      brought_;  // by loads that wait for others before them: see note_brought()
  std::vector<Completion> past_completions_;
  std::vector<SequenceId> ready_;
  bool has_ghosts_ = false;  // ended sequences that run ahead, in steps in flight: what they count is not known
  std::uint64_t odd_completion_count_ = 0;
  std::array<std::uint64_t, kMissReasonCount> miss_counts_{};
  std::array<std::uint64_t, kTransferOutcomeCount> store_outcomes_{};
  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t host_hit_tokens_ = 0;
  bool is_paused_ = false;
  std::uint32_t transfers_paused_ = 0;  // in flight, when that was last looked at while paused
  bool falls_asleep_ = false;
  bool is_asleep_ = false;
  Sleep sleep_ = Sleep::KeepHost;
  std::vector<Completion> disk_outbox_;
  std::unordered_map<std::uint32_t, std::vector<PageTransfer>> arrived_;  // from disk, by transfer index
  std::array<TimeNs, 3> lane_stuck_until_{};
  std::array<TimeNs, 3> lane_goes_until_{};  // is not stuck again before
  std::vector<std::unique_ptr<Direct>> directs_;
  bool is_flushing_ = false;
  std::uint64_t failed_stores_ = 0;  // to the host, when that began
  bool wants_restart_ = false;
  std::uint32_t life_ = 0;
  std::uint32_t failed_directories_ = 0;  // while the process lived
  std::uint64_t disk_hit_tokens_ = 0;
  std::uint64_t remote_hit_tokens_ = 0;
  bool has_disk_rate_ = false;  // some load from disk has told how long it took
  bool has_disk_failed_ = false;
  TimeNs born_at_ = 0;      // this life
  bool has_moves_ = false;  // of a committed tree, for the next plan
  std::uint64_t next_number_ = 1;
  std::uint64_t step_count_ = 0;
};

}  // namespace quire::testing
