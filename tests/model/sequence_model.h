// SPDX-License-Identifier: Apache-2.0
//
// SequenceModel: random calls that change sequences, with several steps in flight, on a Cache and on its twin. After
// every call each page must be where the twin has it, by id, and every byte must be right. Steps write nonsense as soon
// as they are planned and what is right when they finish: a page that is reused too early shows.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "quire/cache.h"
#include "sequence_twin.h"
#include "testing/seeded_run.h"
#include "tests/cache/cache_fixture.h"

namespace quire::testing {

inline constexpr std::uint32_t kContextTokensMax = 40;
inline constexpr std::uint32_t kSequenceCountMax = 7;
inline constexpr std::uint32_t kStepTokensMax = 64;
inline constexpr std::uint32_t kTreeTokensMax = 9;
inline constexpr std::uint32_t kSavedPageCount = 24;
inline constexpr std::uint32_t kWindDownEvery = 120;
inline constexpr std::uint32_t kManyPages = 400;  // no page need ever be evicted

/// How often calls of each kind came out so, for a test to tell that they were made.
using CallCounts = std::map<std::string, std::uint64_t>;

struct ModelConfig {
  std::uint32_t page_tokens = 4;
  std::uint32_t page_count = kManyPages;
  std::uint32_t steps_in_flight_max = 3;
  std::uint32_t window_rewind_tokens = 0;
  bool copies_partial_hits = false;
  bool dedup = true;
  CallCounts* counts = nullptr;
};

class SequenceModel {
 public:
  explicit SequenceModel(const ModelConfig& config);

  /// Empty, or what differs.
  std::string apply(const Op& op);

 private:
  using State = TwinSequence::State;

  // Operations.
  std::string begin(Random& random);
  std::string admit(Random& random);
  std::string admitted(TwinSequence& sequence, const Result<Admission>& admission);
  std::string fork(Random& random);
  std::string add(Result<Sequence> handle, std::unique_ptr<TwinSequence> added);
  std::string rewind(Random& random);
  std::string window(Random& random);
  std::string append(Random& random);
  std::string commit(Random& random);
  std::string preempt(Random& random);
  std::string resume(Random& random);
  std::string receive(Random& random);
  std::string arrive(Random& random);
  std::string mark_send(Random& random);
  std::string end(Random& random);
  std::string end(TwinSequence& sequence, bool drops_handle);
  std::string keep(Random& random);
  std::string reclaim(Random& random);

  // Steps.
  /// One entry that may be planned, or none. `parents` must outlive it.
  bool draw_entry(TwinSequence& sequence, Random& random, StepEntry& entry, std::vector<std::int32_t>& parents) const;
  std::string plan(Random& random);
  std::string plan(const std::vector<StepEntry>& entries, std::vector<TwinPart>& parts);
  std::string planned(const std::vector<StepEntry>& entries, std::vector<TwinPart>& parts, const Step& step);
  std::string finish(Random& random);
  void draw_result(const TwinPart& part, Random& random, std::vector<TokenId>& tokens, StepResult& result) const;
  /// What is right goes where nonsense was.
  void compute(const TwinPart& part, const StepResult& result);
  std::string abort(Random& random);
  /// Everything ends, in any order; then nothing may be left.
  std::string wind_down(Random& random);

  // Calls that must fail.
  std::string refuse(Random& random);
  std::string refuse_begin(Random& random);
  std::string refuse_ended(Random& random);
  std::string refuse_fork(Random& random);
  std::string refuse_rewind(Random& random);
  std::string refuse_window(Random& random);
  std::string refuse_state(Random& random);
  std::string refuse_append(Random& random);
  std::string refuse_commit(Random& random);
  std::string refuse_plan(Random& random);
  std::string refuse_quiet_plan(const TwinSequence& sequence, Random& random);
  std::string refuse_finish(Random& random);
  std::string refuse_transfer(Random& random);
  std::string refuse_whole_cache(Random& random);
  /// The call fails with this code, and the picture stays as it was.
  template <typename Call>
  std::string refused(const char* name, ErrorCode code, const Call& call);
  /// All that the cache shows, and a hash of its memory.
  [[nodiscard]] std::string picture();
  [[nodiscard]] std::string picture_but_steps();
  void count(const char* name);

  // The twin.
  std::string compare();
  /// The tree holds what the twin's does, less what was evicted, which nobody used.
  std::string compare_tree(const Stats& stats);
  [[nodiscard]] std::set<std::vector<TokenId>> pinned_names() const;
  std::string compare_sequences() const;
  std::string compare_counts(const Stats& stats) const;
  /// What is computed is there, and right; so is what is cached.
  std::string compare_bytes() const;
  /// Whether `source` (any page, for the null page) is of the tree and begins with the sequence's tail.
  [[nodiscard]] bool has_page_with_tail(const TwinSequence& sequence, PageId source) const;
  /// Steps that wait for moves only have free pages as good as any.
  [[nodiscard]] std::uint32_t available_pages(const Stats& stats) const;
  [[nodiscard]] std::uint32_t saved_pages() const;

  // Bytes.
  static std::uint64_t value(std::span<const TokenId> tokens, std::uint32_t position) {
    return ByteEngine::value_at(0, tokens, {}, position);
  }
  void write(std::int64_t slot, std::uint64_t bytes) const {
    std::memcpy(cache_->device_memory() + (slot * kTestTokenBytes), &bytes, sizeof(bytes));
  }
  [[nodiscard]] std::uint64_t read(PageId page, std::uint32_t place) const {
    std::uint64_t bytes = 0;
    const std::size_t slot = (std::size_t{page.value} * config_.page_tokens) + place;
    std::memcpy(&bytes, cache_->device_memory() + (slot * kTestTokenBytes), sizeof(bytes));
    return bytes;
  }

  // Drawing.
  static std::vector<TokenId> draw_tokens(Random& random, std::uint32_t count);
  /// A prefix of an earlier text and something new.
  std::vector<TokenId> draw_text(Random& random);
  void remember(const std::vector<TokenId>& text);
  template <typename Predicate>
  TwinSequence* draw(Random& random, Predicate is_wanted) const {
    std::vector<TwinSequence*> wanted;
    for (const auto& each : twin_.sequences) {
      if (!each->is_ended && is_wanted(*each)) wanted.push_back(each.get());
    }
    return wanted.empty() ? nullptr : wanted[random.below(static_cast<std::uint32_t>(wanted.size()))];
  }
  TwinSequence* draw_quiet(Random& random) const {
    return draw(random, [](const TwinSequence& each) { return each.is_quiet(); });
  }

  struct Keep {
    KeepId id;
    std::vector<TokenId> tokens;
  };

  ModelConfig config_;
  SequenceTwin twin_;
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::vector<Keep> keeps_;
  std::vector<std::vector<TokenId>> history_;
  std::size_t next_memory_ = 0;
  std::uint64_t gone_ = 0;
  std::uint32_t applied_ = 0;
  Sequence ended_;                     // what is left of a handle
  Step done_;                          // finished or aborted
  std::uint64_t residency_count_ = 0;  // records seen
};

}  // namespace quire::testing
