// SPDX-License-Identifier: Apache-2.0
//
// HybridRig: a cache of several groups with the hybrid engine behind it, and what a test has to know to judge the two:
// each sequence's text, and what the oracle says of it. The model knows nothing of pages and slots. Scripts and random
// schedules call the same functions; all give what is wrong, or an empty text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "hybrid_mover.h"
#include "key_writers.h"
#include "oracle_texts.h"
#include "quire/cache.h"
#include "schedule_counts.h"
#include "schedule_device.h"
#include "testing/fake_device.h"
#include "testing/seeded_run.h"
#include "tools/tiny_engine/device_plan.h"
#include "tools/tiny_engine/hybrid_device.h"
#include "tools/tiny_engine/hybrid_engine.h"
#include "tools/tiny_engine/hybrid_model.h"

namespace quire::testing {

/// What the engine waits for of pages that are still arriving. A test that leaves something out sees that it is
/// noticed.
enum class HybridWaits : std::uint8_t { All, LayersOnly, SnapshotsOnly };

struct HybridSetup {
  tiny_engine::HybridShape shape;
  bool adopts_memory = false;  ///< the engine owns pools and states, and applies all copies
  std::uint32_t page_tokens = 4;
  std::uint32_t page_count = 32;                 ///< of the groups that keep everything
  std::vector<std::uint32_t> group_page_counts;  ///< of all groups
  std::uint32_t context_tokens_max = 48;
  std::uint32_t sequence_count_max = 6;
  std::uint32_t state_slot_count = 0;  ///< 0: one for each sequence
  std::uint32_t step_tokens_max = 64;
  std::uint32_t steps_in_flight_max = 2;
  PageTables page_tables = PageTables::Rows;
  std::uint32_t cascade_levels_max = 1;
  ByteLayout byte_layout = ByteLayout::PageFirst;
  HeadOrder head_order = HeadOrder::Nhd;
  std::string policy = "lru";
  bool dedup = true;
  bool resizes = false;  ///< the pool of the history, now and then
  // Tiers below the device.
  std::uint32_t host_page_count = 0;
  std::vector<std::uint32_t> host_group_page_counts;  ///< empty: in the proportion that the device has
  WritePolicy write_policy = WritePolicy::WriteBack;
  std::uint32_t transfer_count_max = 64;
  std::uint32_t transfer_pages_max = 64;
  bool has_own_mover = false;  ///< the cache's, which moves everything at once; a disk tier needs it
  /// Steps are planned for sequences whose pages are still arriving.
  bool plans_while_loading = false;
  std::uint16_t layer_bands = 1;
  HybridWaits waits = HybridWaits::All;
  /// With both: the engine's memory is an accelerator's, and pages go this way.
  std::optional<SwapPath> accelerator_path;
  /// The cache's memory is this device's. With a host tier, pages go that way.
  ScheduleDevice device;
  HybridTransferChances transfer_chances;
  std::uint64_t transfer_seed = 1;
  std::string disk_directory;  ///< empty: no disk
  std::uint64_t disk_capacity_bytes = 0;
  bool watches_keys = false;  ///< every key that a plan lists is compared with who wrote it; not on a device
};
[[nodiscard]] std::string to_string(const HybridSetup& setup);

struct HybridLive {
  std::uint64_t number = 0;
  Sequence handle;
  SequenceOptions options;
  bool is_admitted = false;
  bool is_loading = false;  ///< and cannot be planned
  bool is_ahead = false;    ///< it is loading, and can be planned
  bool is_preempted = false;
  bool may_lose_copy = false;  ///< of a page begun, which no step has made yet
  /// Something that was planned of it did not happen, but may have been written: until no step has it any more, a
  /// sequence with a state cannot be planned, and then it may begin anew.
  bool is_in_doubt = false;
  Window window;
  bool is_saved = false;                  ///< preempted, with its pages on the host
  std::vector<std::int32_t> saved_texts;  ///< of those
  std::vector<TokenId> tokens;
  std::vector<std::int32_t> texts;  ///< of the tokens whose K and V, and all else, are in the cache
  std::uint32_t replay_end = 0;     ///< tokens before it are computed again, for groups that are rebuilt
};

/// Where a sequence receives what another rig computes.
struct HybridReceive {
  std::uint32_t begin = 0;
  std::span<const SlotRun> slots;
  ReceiveTargets targets;
};

/// What a step is to compute of a sequence.
struct HybridAsk {
  HybridLive* live = nullptr;
  std::uint32_t token_count = 0;     ///< as in StepEntry
  std::vector<TokenId> drafts = {};  // NOLINT(readability-redundant-member-init)
  TokenId brings = 0;                ///< the token that follows, where a later step counts on it
};

/// What becomes of it.
struct HybridAnswer {
  std::uint32_t accepted_count = 0;
  std::vector<TokenId> next = {};  // NOLINT(readability-redundant-member-init)
  bool discard = false;
};

class HybridRig {
 public:
  struct FlightEntry {
    std::uint64_t number = 0;  ///< of the sequence
    std::uint32_t position = 0;
    std::uint32_t known_count = 0;
    std::uint32_t draft_count = 0;
    bool is_void = false;
    bool must_bring = false;  ///< a later step counts on the one token it brings
    TokenId brings = 0;
    std::vector<TokenId> queries;
    std::vector<std::int32_t> texts;         ///< of the queries
    std::vector<std::int32_t> texts_before;  ///< of the tokens before them; where keys are watched
    bool has_window = false;
    std::uint32_t hidden_count = 0;  ///< the first of them, whose logits are nothing to anyone
    bool is_lost = false;            ///< void, because a load of its sequence has failed
    bool is_ahead = false;           ///< planned while pages were arriving …
    std::vector<double> logits;      ///< … so that these count when all have come; of the queries
  };
  struct Flight {
    Step step;
    tiny_engine::DevicePlan plan;
    std::vector<FlightEntry> entries;       ///< as in the call
    std::vector<std::uint32_t> plan_order;  ///< entries of the plan, as indices of `entries`
    std::vector<StepLoad> loads;
    bool is_prepared = false;
    bool has_run = false;
  };
  /// One step as a device sees it.
  struct Recorded {
    tiny_engine::DevicePlan plan;
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> texts;  ///< -1: what comes out of it is not looked at
  };

  HybridRig(const HybridSetup& setup, ScheduleCounts& counts);

  // Sequences. One that has to be refused gives an empty text and no sequence, and is counted.
  std::string begin(std::vector<TokenId> tokens, const SequenceOptions& options, HybridLive*& live);
  std::string admit(HybridLive& live);
  std::string append(HybridLive& live, const std::vector<TokenId>& tokens);
  std::string fork(HybridLive& source, std::uint32_t at, HybridLive*& live);
  std::string rewind(HybridLive& live, std::uint32_t count);
  std::string set_window(HybridLive& live, const Window& window);
  std::string preempt(HybridLive& live, Preempt how);
  std::string resume(HybridLive& live);
  std::string end(HybridLive& live);

  // Prefill in one rig, decode in another. Nothing is given where a call has to be refused, which is counted.
  std::string prepare_receive(HybridLive& live, std::uint32_t count, std::optional<HybridReceive>& receive);
  std::string finish_receive(HybridLive& live, std::uint32_t count);
  std::string abort_receive(HybridLive& live);
  std::string mark_send(HybridLive& live, const HybridReceive& receive, bool& is_marked);
  /// What plans send goes there from now on.
  void set_receiver(const Cache& receiver) { receiver_ = &receiver; }

  // Steps.
  /// `planned` is false when pages are short; `fitting` is then the number of leading asks that would fit.
  std::string plan(std::vector<HybridAsk>& asks, const PlanShape& shape, bool& planned, std::uint32_t& fitting);
  std::string run_up_to(std::size_t flight_index);
  std::string finish(const std::function<HybridAnswer(const FlightEntry&, const HybridLive&)>& answer);
  std::string abort(std::size_t flight_index, bool runs);
  /// Plans, runs and finishes one step; for scripts.
  std::string step(std::vector<HybridAsk> asks, const std::vector<HybridAnswer>& answers);

  /// Pages move between the tiers: some of those that are to, or until nothing is on its way.
  std::string collect(bool all = true);
  /// All that is to be moved is on its way; nothing of it arrives.
  std::string start_transfers();
  /// The cache is closed and opened again: what is left is what is on disk. With `flushes`, that is all of it.
  std::string restart(bool flushes);
  /// More or fewer pages of the history. Refused, which is counted, while a step, a transfer or a page is in the way.
  std::string resize(std::uint32_t page_count);

  /// Invariants of the cache, and what it says of every sequence.
  [[nodiscard]] std::string check();
  [[nodiscard]] std::optional<OracleTexts::Mismatch> compare() const;
  /// When nobody is left nothing is held, and everything can be given up.
  [[nodiscard]] std::string check_empty();
  void count_groups();

  [[nodiscard]] const HybridSetup& setup() const { return setup_; }
  [[nodiscard]] Cache& cache() { return *cache_; }
  [[nodiscard]] const tiny_engine::HybridWeights& weights() const { return weights_; }
  [[nodiscard]] const OracleTexts& texts() const { return texts_; }
  [[nodiscard]] const std::vector<std::unique_ptr<HybridLive>>& lives() const { return lives_; }
  [[nodiscard]] const std::deque<Flight>& flights() const { return flights_; }
  [[nodiscard]] std::vector<Recorded>& recorded() { return recorded_; }
  [[nodiscard]] std::uint64_t compared_key_count() const { return key_writers_.compared_count(); }
  [[nodiscard]] HybridLive* find(std::uint64_t number);
  /// In a step whose result counts.
  [[nodiscard]] bool is_in_flight(const HybridLive& live) const;
  /// Tokens that it has, and those that steps in flight compute.
  [[nodiscard]] std::size_t planned_count(const HybridLive& live) const { return planned_texts(live).size(); }
  [[nodiscard]] bool is_undecided(const HybridLive& live) const;
  /// Admitted, with all its pages, and in no step.
  [[nodiscard]] bool is_resting(const HybridLive& live) const;
  [[nodiscard]] bool has_kind(tiny_engine::LayerKind kind) const;
  void set_call(std::uint64_t call) { call_ = call; }

 private:
  void open();
  std::string move_pages(bool all);
  std::string follow_loads();
  // Sequences that run ahead of their loads.
  std::string follow_ahead(HybridLive& live);
  void start_ahead(HybridLive& live, const SequenceView& view);
  std::string land(HybridLive& live, const SequenceView& view);
  std::string wait_for_layer(const Flight& flight, const tiny_engine::GroupLayer& layer);
  std::string end_loads(const Flight& flight);
  std::string check_lost(const Flight& flight);
  void note_arrived(Flight& flight);
  [[nodiscard]] bool is_ahead(std::uint64_t number);
  std::string take_admission(HybridLive& live, const Admission& admission, const char* name);
  std::string describe_entry(const AttentionPlanEntry& planned, const HybridAsk& ask, FlightEntry& entry);
  /// Where its state is not to be used, it may be filled with what has not come.
  std::string prepare(Flight& flight, bool waits = true);
  std::string run(Flight& flight);
  [[nodiscard]] bool watches_keys() const { return setup_.watches_keys && setup_.device.device == nullptr; }
  void watch_keys(const Flight& flight);
  void make_void(std::uint64_t number, std::size_t first_flight);
  /// What the cache has of a sequence may have become less: the model follows where that is allowed.
  std::string follow(HybridLive& live, const char* after);
  void follow_copy(HybridLive& live);
  [[nodiscard]] std::int32_t intern(const HybridLive& live, std::int32_t previous, TokenId token) {
    return texts_.intern(previous, token, live.window.visible_tokens, live.window.sink_tokens);
  }
  /// What is known to be cached of a sequence's tokens.
  void set_computed(HybridLive& live, std::uint32_t count);
  [[nodiscard]] std::vector<std::int32_t> planned_texts(const HybridLive& live) const;
  void remove(const HybridLive& live);

  HybridSetup setup_;
  ScheduleCounts& counts_;
  const tiny_engine::HybridWeights weights_;
  bool replays_windows_ = false;                  // what replayed tokens give is then not the oracle's
  std::vector<std::vector<std::byte>> memories_;  // of the groups, when the engine owns them
  std::vector<std::byte> state_memory_;
  std::unique_ptr<FakeDevice> accelerator_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<tiny_engine::HybridDevice> device_;  // before the engine, behind the cache
  KeyWriters key_writers_;
  std::unique_ptr<tiny_engine::HybridEngine> engine_;
  const Cache* receiver_ = nullptr;
  std::unique_ptr<HybridMover> mover_;  // null without a host tier, and where the cache has its own
  Random ahead_random_;                 // for what is drawn only where steps are planned while pages arrive
  KeySpaceId space_;
  OracleTexts texts_;
  std::vector<std::unique_ptr<HybridLive>> lives_;
  std::deque<Flight> flights_;
  std::vector<Recorded> recorded_;
  std::uint64_t next_number_ = 1;
  std::uint64_t call_ = 0;
};

}  // namespace quire::testing
