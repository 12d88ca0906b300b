// SPDX-License-Identifier: Apache-2.0
#include "transfer/ranked_tier.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutants.h"

namespace quire {

Result<std::unique_ptr<RankedTier>> RankedTier::open(const Config& config, std::span<LowerTier* const> shards) {
  QUIRE_CHECK(!shards.empty() && shards.size() <= 64, "a ranked tier has from 1 to 64 shards");
  auto tier = std::unique_ptr<RankedTier>(new RankedTier);
  tier->shards_.assign(shards.begin(), shards.end());
  tier->config_ = config;
  const MutexLock lock(tier->mutex_);
  const std::size_t row_count = std::size_t{config.transfer_count_max} * shards.size();
  QUIRE_TRY_ASSIGN(tier->anchored_, LazyArray<std::uint64_t>::create(row_count * config.path_pages_max));
  tier->tasks_.resize(config.transfer_count_max);
  tier->answers_.resize(config.transfer_count_max);
  tier->completions_.reserve(config.transfer_count_max);
  return tier;
}

std::span<std::uint64_t> RankedTier::anchored_row(std::uint32_t transfer, std::uint32_t shard, std::size_t count) {
  const std::size_t row = (transfer * shards_.size()) + shard;
  return {anchored_.data() + (row * config_.path_pages_max), count};
}

void RankedTier::submit(const NameLog& log) {
  for (LowerTier* const shard : shards_) shard->submit(log);
}

void RankedTier::submit(const LowerPlan& plan) {
  const MutexLock lock(mutex_);
  QUIRE_CHECK(plan.id.index < tasks_.size() && tasks_[plan.id.index].waiting == 0,
              "a plan of several shards with the index of another one");
  QUIRE_CHECK(plan.anchored.size() <= config_.path_pages_max, "a plan of several shards is longer than any path");
  const std::size_t shard_count = shards_.size();
  tasks_[plan.id.index] = {.waiting = ~std::uint64_t{0} >> (64 - shard_count),
                           .completion = {.id = plan.id, .kind = plan.kind},
                           .anchored = plan.anchored};
  for (std::uint32_t i = 0; i < shard_count; ++i) {
    LowerPlan part = plan;
    part.anchored = anchored_row(plan.id.index, i, plan.anchored.size());
    std::ranges::fill(part.anchored, 0);  // a shard that fails may write nothing
    part.source = plan.source.subspan(plan.source.size() / shard_count * i, plan.source.size() / shard_count);
    part.target = plan.target.subspan(plan.target.size() / shard_count * i, plan.target.size() / shard_count);
    shards_[i]->submit(part);
  }
}

void RankedTier::cancel(TransferId id) {
  for (LowerTier* const shard : shards_) shard->cancel(id);
}

std::span<Completion> RankedTier::poll(std::span<Completion> out) {
  const MutexLock lock(mutex_);
  for (std::uint32_t i = 0; i < shards_.size(); ++i) {
    for (;;) {
      const std::span<const Completion> answers = shards_[i]->poll(answers_);
      for (const Completion& answer : answers) take(i, answer);
      if (answers.size() < answers_.size()) break;
    }
  }
  const std::size_t count = std::min(out.size(), completions_.size());
  std::copy_n(completions_.begin(), count, out.begin());
  completions_.erase(completions_.begin(), completions_.begin() + static_cast<std::ptrdiff_t>(count));
  return out.first(count);
}

// One shard's answer; an answer that is given twice changes nothing.
void RankedTier::take(std::uint32_t shard, const Completion& answer) {
  const std::uint64_t bit = std::uint64_t{1} << shard;
  if (answer.id.index >= tasks_.size()) return;
  Task& task = tasks_[answer.id.index];
  Completion& whole = task.completion;
  if ((task.waiting & bit) == 0 || whole.id != answer.id) return;
  task.merge.take(shard, answer);
  task.merge.write_to(whole);
  whole.moved_bytes += answer.moved_bytes;
  // A question is answered when the slowest shard has answered; of what moves, the quotient is the rate of one shard.
  const bool is_question = whole.kind == TransferKind::FindBelow;
  whole.busy_ns = is_question ? std::max(whole.busy_ns, answer.busy_ns) : whole.busy_ns + answer.busy_ns;
  task.waiting &= ~bit;
  if (task.waiting != 0 && !is_mutated(Mutant::FirstShardAnswers)) return;
  task.waiting = 0;
  for (std::size_t page = 0; page < task.anchored.size(); ++page) {
    std::uint64_t bits = ~std::uint64_t{0};
    for (std::uint32_t i = 0; i < shards_.size(); ++i) {
      bits &= anchored_row(answer.id.index, i, task.anchored.size())[page];
    }
    task.anchored[page] = bits;
  }
  completions_.push_back(whole);
}

bool RankedTier::keeps(std::uint32_t pool) const {
  return shards_.front()->keeps(pool);
}

bool RankedTier::is_failed(std::uint32_t pool) const {
  return std::ranges::any_of(shards_, [&](const LowerTier* shard) { return shard->is_failed(pool); });
}

std::string RankedTier::last_error() const {
  for (const LowerTier* const shard : shards_) {
    if (std::string error = shard->last_error(); !error.empty()) return error;
  }
  return {};
}

std::uint64_t RankedTier::written_bytes(std::uint32_t pool) const {
  std::uint64_t bytes = 0;
  for (const LowerTier* const shard : shards_) bytes += shard->written_bytes(pool);
  return bytes;
}

}  // namespace quire
