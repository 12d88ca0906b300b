// SPDX-License-Identifier: Apache-2.0
//
// RankedTier: a lower tier of several shards, for a cache that drives several ranks. A shard is a lower tier with the
// pages of the ranks that hold the same heads. Every plan goes to all shards, and its one completion comes when all of
// them have answered:
//
//     good_pages               the least of all shards: a page is there when every rank has it
//     LowerPlan::anchored      the bits that all shards have set
//     outcome                  the worst; the fault is that of the shard which stopped first among those
//     moved_bytes, busy_ns     added up, so that their quotient is the rate of one shard; of a question, the longest
//     time
//
// Shards may differ: each makes room and loses pages on its own. What one lacks is computed and stored again, and those
// that have it write nothing. The bytes of direct calls are those of shard 0, then those of shard 1, and so on.
//
// thread-safe
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/lazy_array.h"
#include "base/mutex.h"
#include "quire/result.h"
#include "quire/transfer.h"
#include "transfer/lower_tier.h"
#include "transfer/rank_merge.h"

namespace quire {

class RankedTier final : public LowerTier {
 public:
  struct Config {
    std::uint32_t transfer_count_max = 0;  ///< indices of TransferIds lie below it
    std::uint32_t path_pages_max = 0;      ///< entries of a plan's `anchored`
  };

  /// From 1 to 64 shards, which keep the same pools in extents of the same size, and must
  /// outlive it.
  [[nodiscard]] static Result<std::unique_ptr<RankedTier>> open(const Config& config,
                                                                std::span<LowerTier* const> shards);

  void submit(const NameLog& log) override;
  void submit(const LowerPlan& plan) override;
  void cancel(TransferId id) override;
  [[nodiscard]] std::span<Completion> poll(std::span<Completion> out) override;
  [[nodiscard]] bool keeps(std::uint32_t pool) const override;
  /// Any shard has failed: without it no page is whole.
  [[nodiscard]] bool is_failed(std::uint32_t pool) const override;
  [[nodiscard]] std::string last_error() const override;
  [[nodiscard]] std::uint32_t extent_pages() const override { return shards_.front()->extent_pages(); }
  [[nodiscard]] bool makes_room_by_use() const override { return shards_.front()->makes_room_by_use(); }
  /// Of all shards together.
  [[nodiscard]] std::uint64_t written_bytes(std::uint32_t pool) const override;

 private:
  struct Task {
    std::uint64_t waiting = 0;  // a bit for each shard that has not answered
    Completion completion;      // of those that have
    RankMerge merge;
    std::span<std::uint64_t> anchored;
  };

  RankedTier() = default;
  void take(std::uint32_t shard, const Completion& answer) QUIRE_REQUIRES(mutex_);
  [[nodiscard]] std::span<std::uint64_t> anchored_row(std::uint32_t transfer, std::uint32_t shard, std::size_t count)
      QUIRE_REQUIRES(mutex_);

  std::vector<LowerTier*> shards_;
  Config config_;

  mutable Mutex mutex_;  // guards what follows; taken before the shards' own
  std::vector<Task> tasks_ QUIRE_GUARDED_BY(mutex_);
  LazyArray<std::uint64_t> anchored_ QUIRE_GUARDED_BY(mutex_);  // a row for each transfer and shard
  std::vector<Completion> answers_ QUIRE_GUARDED_BY(mutex_);    // room for what one shard gives at once
  std::vector<Completion> completions_ QUIRE_GUARDED_BY(mutex_);
};

}  // namespace quire
