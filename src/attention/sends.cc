// SPDX-License-Identifier: Apache-2.0
#include "attention/sends.h"

#include <algorithm>

#include "base/check.h"

namespace quire {
namespace {

/// Walks the slots of the receiver, token by token or in larger steps.
class RemoteSlots {
 public:
  /// Stands at token `index` of the runs.
  RemoteSlots(std::span<const SlotRun> runs, std::uint64_t index) : runs_(runs) {
    while (!runs_.empty() && index >= static_cast<std::uint64_t>(runs_.front().token_count)) {
      index -= static_cast<std::uint64_t>(runs_.front().token_count);
      runs_ = runs_.subspan(1);
    }
    offset_ = static_cast<std::int64_t>(index);
  }

  [[nodiscard]] bool is_at_end() const { return runs_.empty(); }
  [[nodiscard]] std::int64_t slot() const { return runs_.front().first_slot + offset_; }
  /// Tokens up to the end of the run.
  [[nodiscard]] std::int64_t run_tokens() const { return runs_.front().token_count - offset_; }
  /// At most run_tokens().
  void advance(std::int64_t tokens) {
    offset_ += tokens;
    while (!runs_.empty() && offset_ >= runs_.front().token_count) {
      runs_ = runs_.subspan(1);
      offset_ = 0;
    }
  }

 private:
  std::span<const SlotRun> runs_;
  std::int64_t offset_ = 0;
};

}  // namespace

void write_remote_slots(const PlannerEntry& entry, const SendTarget& target, std::span<std::int64_t> slots) {
  const std::uint32_t token_count = entry.token_count - (entry.tree_parents.empty() ? 0 : entry.draft_count);
  const std::uint32_t first = target.begin > entry.position ? target.begin - entry.position : 0;
  if (entry.runs_again || first >= token_count) return;
  RemoteSlots remote(target.slots, std::uint64_t{entry.position} + first - target.begin);
  for (std::uint32_t i = first; i < token_count && !remote.is_at_end(); ++i) {
    slots[i] = remote.slot();
    remote.advance(1);
  }
}

void make_entry_slots(const PlannerEntry& entry, std::uint32_t tokens_per_entry, std::span<std::int64_t> slots) {
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    const bool is_complete = (entry.position + i + 1) % tokens_per_entry == 0 && slots[i] != kNoSlot;
    slots[i] = is_complete ? slots[i] / tokens_per_entry : kNoSlot;
  }
}

std::size_t write_sends(const PlannerEntry& entry, const SendTarget& target, std::uint32_t page_tokens,
                        std::span<SendRun> runs) {
  if (target.slots.empty() || entry.send_cached_begin >= entry.send_cached_end) return 0;
  QUIRE_CHECK(entry.send_cached_begin >= entry.send_begin && entry.send_cached_end <= entry.context_tokens,
              "tokens to send are not among those marked and in the cache");
  const std::uint32_t r = target.tokens_per_entry;
  std::size_t count = 0;
  std::uint32_t token = std::max(entry.send_cached_begin, target.begin);
  RemoteSlots remote(target.slots, token - target.begin);
  while (token < entry.send_cached_end && !remote.is_at_end()) {
    const std::uint32_t offset = token % page_tokens;
    const std::uint32_t page_rest = std::min(page_tokens - offset, entry.send_cached_end - token);
    const auto chunk = static_cast<std::uint32_t>(std::min<std::int64_t>(page_rest, remote.run_tokens()));
    // Entries that these tokens complete: of one token each, as many, and else perhaps none.
    const auto entries = static_cast<std::int32_t>(((token + chunk) / r) - (token / r));
    if (const PageId page = target.pages[token / page_tokens]; page != kNullPage && entries > 0) {
      const std::uint32_t last = r - 1 - (token % r);  // of the first entry's tokens, from here
      const std::int64_t local = ((std::int64_t{page.value} * page_tokens) + offset + last) / r;
      const std::int64_t remote_slot = (remote.slot() + last) / r;
      SendRun* const before = count > 0 ? &runs[count - 1] : nullptr;
      if (before != nullptr && before->local_slot + before->token_count == local &&
          before->remote_slot + before->token_count == remote_slot) {
        before->token_count += entries;
      } else {
        QUIRE_CHECK(count < runs.size(), "a plan is larger than its staging buffer");
        runs[count++] = {
            .local_slot = local, .remote_slot = remote_slot, .token_count = entries, .receiver = entry.receiver};
      }
    }
    remote.advance(chunk);
    token += chunk;
  }
  return count;
}

}  // namespace quire
