// SPDX-License-Identifier: Apache-2.0
//
// ScheduleModel: random calls on a cache with the tiny engine behind it. Tokens are random, so nothing needs to be
// decoded: what counts is that the logits of every query of every step are those of the oracle for that sequence's
// text, whatever was forked, rewound, moved, preempted or evicted on the way. The model knows each sequence's text and
// under which window each of its tokens was computed, and nothing of pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oracle_texts.h"
#include "quire/cache.h"
#include "schedule_counts.h"
#include "schedule_device.h"
#include "testing/seeded_run.h"
#include "tools/tiny_engine/device_plan.h"
#include "tools/tiny_engine/device_step.h"
#include "tools/tiny_engine/engine.h"
#include "tools/tiny_engine/model.h"
#include "tools/tiny_engine/step_kernels.h"

namespace quire::testing {

[[nodiscard]] inline bool draw_chance(Random& random, std::uint32_t percent) {
  return random.below(100) < percent;
}

/// What a seed draws once.
struct ScheduleSetup {
  tiny_engine::AttentionKind attention = tiny_engine::AttentionKind::Gqa;
  bool keys_rotated = false;
  bool appends_first = false;
  bool adopts_memory = false;  ///< the engine owns the pool and applies moves and copies
  std::uint32_t page_tokens = 4;
  std::uint32_t page_count = 32;
  std::uint32_t context_tokens_max = 48;
  std::uint32_t sequence_count_max = 8;
  std::uint32_t step_tokens_max = 64;
  std::uint32_t steps_in_flight_max = 2;
  std::uint32_t tree_tokens_max = 16;
  std::uint32_t window_rewind_tokens = 0;
  std::uint32_t host_page_count = 0;
  std::uint32_t cascade_levels_max = 1;
  PageTables page_tables = PageTables::Rows;
  std::uint32_t layer_window = 0;  ///< of every second layer; 0: none
  ByteLayout byte_layout = ByteLayout::PageFirst;
  HeadOrder head_order = HeadOrder::Nhd;
  std::string policy = "lru";
  bool whole_runs = false;
  bool dedup = true;
};

[[nodiscard]] ScheduleSetup draw_setup(Random& random);
[[nodiscard]] std::string to_string(const ScheduleSetup& setup);

class ScheduleModel {
 public:
  /// With a device, the pool is quire's own there, and the engine applies moves and copies.
  ScheduleModel(const ScheduleSetup& setup, ScheduleCounts& counts, const ScheduleDevice& device = {});

  /// One random call. Empty, or what is wrong.
  [[nodiscard]] std::string apply(Random& random);
  /// Compares all logits so far with the oracle; `when` of a mismatch is the call that computed them, from 1.
  [[nodiscard]] std::optional<OracleTexts::Mismatch> compare() const;

 private:
  struct TreeToken {
    TokenId token = 0;
    std::int32_t text = 0;  // in the oracle's texts
    std::int32_t parent = -1;
  };
  struct Live {
    std::uint64_t number = 0;
    Sequence handle;
    bool is_admitted = false;
    bool is_preempted = false;
    bool is_saved = false;
    bool is_receiving = false;
    bool publishes_all = true;   // while it has no window
    bool is_new_fork = false;    // and in no step yet
    bool may_lose_copy = false;  // a partial hit that no step has copied yet
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> texts;  // of the tokens whose K and V are in the cache
    Window window;
    std::vector<TreeToken> tree;
  };
  struct FlightEntry {
    std::uint64_t number = 0;  // of the sequence
    std::uint32_t position = 0;
    std::uint32_t known_count = 0;  // queries before drafts or tree
    std::uint32_t draft_count = 0;  // or tree tokens
    bool is_tree = false;
    bool runs_again = false;
    bool is_void = false;
    bool must_bring = false;  // a later step counts on the one token it brings
    TokenId brings = 0;
    std::vector<TokenId> queries;
    std::vector<std::int32_t> texts;  // of the queries
  };
  struct Flight {
    Step step;
    tiny_engine::DevicePlan plan;
    std::vector<FlightEntry> entries;       // as in the call
    std::vector<std::uint32_t> plan_order;  // entries of the plan, as indices of `entries`
    bool is_prepared = false;
    bool has_run = false;
  };
  /// Tokens [begin, end) of `target`, computed by `source`.
  struct Transfer {
    std::uint64_t target = 0;
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
    std::vector<SlotRun> slots;
    std::uint64_t source = 0;  // 0: nobody, or nobody any more
    bool is_sent = false;      // all of it
  };
  static constexpr std::int32_t kOwnPool = 3;  // its number as a receiver
  using Operation = std::string (ScheduleModel::*)(Random&);

  // Sequences.
  std::string begin(Random& random);
  std::string admit(Random& random);
  std::string append(Random& random);
  std::string fork(Random& random);
  std::string rewind(Random& random);
  std::string set_window(Random& random);
  std::string commit_tree(Random& random);
  std::string preempt(Random& random);
  std::string resume(Random& random);
  void drain();
  std::string end(Random& random);
  std::string reclaim(Random& random);
  // Transfers.
  std::string receive(Random& random);
  std::string mark_send(Random& random);
  std::string arrive(Random& random);
  // Steps.
  std::string plan(Random& random);
  std::string run(Random& random);
  std::string finish(Random& random);
  std::string abort(Random& random);

  std::string begin_with(std::vector<TokenId> tokens, const SequenceOptions& options);
  std::string admit_one(Live& live);
  std::string receive_for(Live& target, Random& random);
  std::string begin_copy(const Live& source, Random& random, Live*& copy);
  std::string mark(Transfer& transfer, Random& random);
  /// Sequences that may be marked to send tokens before `end` to it.
  [[nodiscard]] std::vector<Live*> senders_to(const Live& target, std::uint32_t end) const;
  [[nodiscard]] Live& draw_sender(std::span<Live* const> senders, Random& random);
  [[nodiscard]] bool can_stop_sending(const Transfer& transfer);
  std::string stop_sending(Transfer& transfer);
  std::string mend_sender(Live& live, std::span<const TokenId> cut, Random& random);
  [[nodiscard]] Transfer* find_sending(const Live& live);
  [[nodiscard]] Transfer* find_receiving(const Live& live);
  std::string plan_entries(std::vector<StepEntry>& entries, std::vector<Live*>& lives, const PlanShape& shape,
                           Random& random);
  std::string record_flight(const Step& step, std::span<const StepEntry> entries, std::span<Live* const> lives,
                            Random& random);
  std::string describe_entry(const AttentionPlanEntry& planned, const StepEntry& asked, Live& live, FlightEntry& entry,
                             Random& random);
  std::string make_room(Random& random);
  std::string prepare(Flight& flight);
  std::string run_up_to(std::size_t flight_index);
  std::string run_flight(Flight& flight);
  void apply_result(const FlightEntry& entry, Live& live, const StepResult& result);
  void make_void(std::uint64_t number, std::size_t first_flight);

  [[nodiscard]] Live* find(std::uint64_t number);
  [[nodiscard]] bool is_in_flight(const Live& live) const;
  [[nodiscard]] bool is_undecided(const Live& live) const;
  /// Admitted, decided, in no step and not receiving.
  [[nodiscard]] bool is_resting(const Live& live) const;
  /// A random one that rests, or nothing.
  [[nodiscard]] Live* draw_resting(Random& random);
  [[nodiscard]] TokenId draw_token(Random& random) const;
  /// The text index of the token at `position`, with what steps in flight compute counted in.
  [[nodiscard]] std::vector<std::int32_t> planned_texts(const Live& live) const;
  void set_plain_texts(Live& live, std::uint32_t count);
  [[nodiscard]] std::string compare_views();
  [[nodiscard]] std::string compare_equal_pages() const;
  [[nodiscard]] std::string check_unchanged(const Live& live, const SequenceView& before,
                                            std::span<const PageId> pages) const;
  void remove(const Live& live);

  /// Moves and copies are the engine's business.
  [[nodiscard]] bool engine_copies() const { return setup_.adopts_memory || device_step_ != nullptr; }

  ScheduleSetup setup_;
  ScheduleCounts& counts_;
  const tiny_engine::Weights weights_;
  std::vector<std::byte> memory_;  // when the engine owns it
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<tiny_engine::DeviceStep> device_step_;  // null without a device
  std::unique_ptr<tiny_engine::Engine> engine_;
  KeySpaceId space_;
  OracleTexts texts_;
  std::vector<std::unique_ptr<Live>> lives_;
  std::deque<Flight> flights_;
  std::vector<Transfer> transfers_;
  std::map<std::uint64_t, std::uint64_t> states_;  // by number: what the device's state must be
  std::vector<std::vector<TokenId>> prompts_;      // what new prompts begin like
  std::uint64_t next_number_ = 1;
  std::uint64_t call_count_ = 0;
};

}  // namespace quire::testing
