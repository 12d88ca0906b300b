// SPDX-License-Identifier: Apache-2.0
//
// HybridSimulation: what Simulation is to a cache of one group, for several: windows, rings, states and compressed
// entries with a host tier and in some seeds a disk tier, on the same clock, with the same mover, the same files and
// their faults. Before a step writes, the GroupsEngine reads everything that a model would, in every group; hits are
// compared with what trying every position gives.
//
//   hybrid_simulation.cc    the loop, the mover's operations, what must hold after every one, winding down
//   hybrid_requests.cc      requests and sequences, hits and misses
//   hybrid_steps.cc         what happens to steps
//   hybrid_disk.cc          the disk tier's lanes and flushes, and the end of the process
//
// single-threaded
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cache/cache_peer.h"
#include "hybrid_sim_setup.h"
#include "quire/cache.h"
#include "sim_files.h"
#include "sim_mover.h"
#include "sim_setup.h"
#include "tests/cache/groups_fixture.h"
#include "tests/cache/held_groups.h"

namespace quire::testing {

class HybridSimulation {
 public:
  HybridSimulation(std::uint64_t seed, SimCounts& counts, const SimMutation& mutation = {},
                   SimDiskTier disk_tier = SimDiskTier::Drawn);
  ~HybridSimulation();

  /// One random operation, and what has to hold after it. Throws SimFailure.
  void step();
  /// Everything ends, everything is given back, and a lone request is served.
  void wind_down();
  /// From here on check_invariants() after every operation.
  void check_always() { setup_.sim.check_every = 1; }
  [[nodiscard]] const HybridSimSetup& setup() const { return setup_; }

 private:
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
  struct Live {
    std::uint64_t number = 0;
    Sequence handle;
    KeySpaceId space;
    bool is_retired = false;  // its key space was dropped
    std::uint64_t salt = 0;
    SequenceOptions options;
    bool is_admitted = false;  // running or loading
    bool is_loading = false;
    bool has_waited = false;  // for a load, since it was admitted
    bool may_look = false;    // on disk, when it was admitted
    bool is_preempted = false;
    TimeNs admitted_at = 0;
    std::uint32_t matched = 0;  // of a loading one, on the device when it was admitted, less what is replayed
    std::vector<TokenId> tokens;
    std::uint32_t steps_in_flight = 0;  // whose result counts
  };
  struct FlightEntry {
    std::uint64_t number = 0;  // of the sequence, which may have ended
    bool is_void = false;      // what was planned of it did not happen
    SequenceView view;         // before the step
    PrefixNumbers numbers;     // of all its tokens, drafts included
    std::vector<TokenId> drafts;
  };
  struct Flight {
    Step step;
    std::vector<FlightEntry> entries;  // as in the call
    bool has_begun = false;            // copies are made
    bool has_run = false;
  };
  struct Keep {
    KeepId id;
    KeySpaceId space;
    TimeNs expires_at = INT64_MAX;
  };

  // The mover's side, and what must hold.
  void called() { ++counts_.api_calls; }
  void check_accounts();
  void count_groups();
  void mover_operation();
  void take_transfers(std::uint32_t count_max);
  void take_cancellations();
  void add_odd_completions(std::vector<Completion>& completions);
  void apply(bool all);
  void note_ready(std::size_t completion_count);
  void pump();

  // The disk tier.
  [[nodiscard]] Status open_cache();
  void share_pages();
  void reopen();
  void restart();
  void disk_operation();
  bool run_lane(DiskMover::Lane lane);
  void run_lanes();
  [[nodiscard]] std::vector<Completion> collect_disk(bool all);
  void check_disk_accounts(const Stats& stats);
  void flush();
  void move_on();
  [[nodiscard]] DiskMover& disk_mover() { return CachePeer::disk(*cache_); }
  [[nodiscard]] KeySpace key_space_of(std::uint32_t name) const;
  [[nodiscard]] std::vector<PageName> known_names() const;
  void note_drop(Space& space);
  [[nodiscard]] bool may_look(const Live& live) const;

  // Requests and sequences.
  void engine_operation();
  void serve();
  void begin();
  bool begin_with(std::uint32_t name, std::vector<TokenId> tokens, const SequenceOptions& options);
  void admit();
  bool admit_one(Live& live);
  void start_running(Live& live, const HeldGroups* held);
  void check_hit(const Live& live, const HeldGroups& held, const SequenceView& view);
  void check_miss(const Live& live, const HeldGroups& held, const SequenceView& view);
  void append();
  void fork();
  void rewind();
  void preempt();
  void end();
  void end_one(Live& live);
  void keep();
  void unkeep();
  void drop_space();
  void reclaim();
  void stop_loading();
  void lookup();
  void pause();
  void unpause();
  void sleep();
  void wake();

  // Steps.
  void plan();
  [[nodiscard]] bool plan_entries(std::span<const StepEntry> entries, std::span<Live* const> lives);
  void begin_flight(Flight& flight);
  void run_flight(Flight& flight);
  void expect_unused(const AttentionPlan& plan) const;
  void run_up_to(std::size_t place);
  void run();
  void finish();
  void abort();
  void make_void(std::uint64_t number, std::size_t first_flight);

  [[nodiscard]] Live* find(std::uint64_t number);
  [[nodiscard]] static bool is_quiet(const Live& live) {
    return live.is_admitted && !live.is_loading && live.steps_in_flight == 0;
  }
  [[nodiscard]] Live* draw_quiet();
  [[nodiscard]] Live* draw_live() { return lives_.empty() ? nullptr : lives_[below(lives_.size())].get(); }
  [[nodiscard]] std::uint32_t below(std::size_t bound) { return random_.below(static_cast<std::uint32_t>(bound)); }
  [[nodiscard]] bool chance(std::uint32_t percent) { return has_chance(random_, percent); }
  [[nodiscard]] TokenId draw_token() { return static_cast<TokenId>(random_.below(setup_.sim.vocabulary)); }
  [[nodiscard]] std::vector<TokenId> draw_prompt();
  [[nodiscard]] SequenceOptions draw_options(std::size_t token_count);
  [[nodiscard]] static PrefixNumbers numbers_of(const Live& live, std::span<const TokenId> drafts = {});
  /// What it finds is what all groups hold, no less by its own choice.
  [[nodiscard]] static bool asks_for_all(const Live& live) {
    return live.options.use_cache && !live.options.match_tokens_max && !live.is_retired;
  }
  [[nodiscard]] std::uint32_t partial_min() const {
    return setup_.sim.partial_reuse_min_tokens.value_or(std::max(1U, (setup_.sim.page_tokens + 1) / 2));
  }
  void remove(const Live& live);

  SimCounts& counts_;
  SimMutation mutation_;
  Random random_;
  HybridSimSetup setup_;
  std::unique_ptr<SimFiles> files_;  // null without a disk tier
  std::deque<SimHostPages> host_pages_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<GroupsEngine> engine_;
  std::unique_ptr<SimMover> mover_;
  std::vector<std::uint16_t> pool_of_group_;
  bool has_sides_ = false;  // groups that do not keep everything
  bool has_state_ = false;
  bool has_replay_ = false;
  TimeNs now_ = 0;   // the simulation's
  TimeNs told_ = 0;  // as the cache knows it
  std::vector<Space> spaces_;
  std::uint64_t salt_count_ = 1;
  std::vector<std::unique_ptr<Live>> lives_;
  std::deque<Flight> flights_;
  std::vector<Keep> keeps_;
  std::vector<std::vector<TokenId>> documents_;
  std::vector<std::vector<TokenId>> texts_;  // of sequences that have ended
  std::vector<Completion> past_completions_;
  std::vector<SequenceId> ready_;
  std::uint64_t odd_completion_count_ = 0;
  std::array<std::uint64_t, kMissReasonCount> miss_counts_{};
  std::uint64_t prompt_tokens_ = 0;
  bool is_paused_ = false;
  bool falls_asleep_ = false;
  bool is_asleep_ = false;
  Sleep sleep_ = Sleep::KeepHost;
  std::vector<std::uint32_t> stores_;  // on disk
  std::vector<Completion> disk_outbox_;
  std::array<TimeNs, 3> lane_stuck_until_{};
  std::array<TimeNs, 3> lane_goes_until_{};  // is not stuck again before
  bool is_flushing_ = false;
  std::uint64_t failed_stores_ = 0;  // to the host, when that began
  bool wants_restart_ = false;
  std::uint32_t life_ = 0;
  bool has_failed_directories_ = false;  // while the process lived
  std::uint64_t disk_hit_tokens_ = 0;
  bool has_disk_failed_ = false;
  TimeNs born_at_ = 0;  // this life
  std::uint64_t next_number_ = 1;
  std::uint64_t step_count_ = 0;
};

}  // namespace quire::testing
