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

void write_remote_slots(const PlannerEntry& entry, std::span<std::int64_t> slots) {
  std::fill(slots.begin(), slots.end(), kNoSlot);
  const std::uint32_t token_count = entry.token_count - (entry.tree_parents.empty() ? 0 : entry.draft_count);
  const std::uint32_t first = entry.send_begin > entry.position ? entry.send_begin - entry.position : 0;
  if (entry.runs_again || first >= token_count) return;
  RemoteSlots remote(entry.send_slots, std::uint64_t{entry.position} + first - entry.send_begin);
  for (std::uint32_t i = first; i < token_count && !remote.is_at_end(); ++i) {
    slots[i] = remote.slot();
    remote.advance(1);
  }
}

std::size_t write_sends(const PlannerEntry& entry, std::uint32_t page_tokens, std::span<SendRun> runs) {
  if (entry.send_slots.empty() || entry.send_cached_begin >= entry.send_cached_end) return 0;
  QUIRE_CHECK(entry.send_cached_begin >= entry.send_begin && entry.send_cached_end <= entry.context_tokens,
              "tokens to send are not among those marked and in the cache");
  std::size_t count = 0;
  RemoteSlots remote(entry.send_slots, entry.send_cached_begin - entry.send_begin);
  std::uint32_t token = entry.send_cached_begin;
  while (token < entry.send_cached_end && !remote.is_at_end()) {
    const std::uint32_t offset = token % page_tokens;
    const std::uint32_t page_rest = std::min(page_tokens - offset, entry.send_cached_end - token);
    const std::int64_t chunk = std::min<std::int64_t>(page_rest, remote.run_tokens());
    if (const PageId page = entry.pages[token / page_tokens]; page != kNullPage) {
      const std::int64_t local = (std::int64_t{page.value} * page_tokens) + offset;
      SendRun* const last = count > 0 ? &runs[count - 1] : nullptr;
      if (last != nullptr && last->local_slot + last->token_count == local &&
          last->remote_slot + last->token_count == remote.slot()) {
        last->token_count += static_cast<std::int32_t>(chunk);
      } else {
        QUIRE_CHECK(count < runs.size(), "a plan is larger than its staging buffer");
        runs[count++] = {.local_slot = local,
                         .remote_slot = remote.slot(),
                         .token_count = static_cast<std::int32_t>(chunk),
                         .receiver = entry.receiver};
      }
    }
    remote.advance(chunk);
    token += static_cast<std::uint32_t>(chunk);
  }
  return count;
}

}  // namespace quire
