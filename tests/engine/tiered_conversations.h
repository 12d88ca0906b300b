// SPDX-License-Identifier: Apache-2.0
//
// Conversations of several turns on a pool that is too small for them, with a host and a disk behind it: pages leave
// the device, come back, and are found on disk by a second cache when the first one is gone. Every output is compared
// with the oracle. The pool lies in plain memory or on a device; what is computed is the same, bit for bit, because
// nothing of it depends on what was found where.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule_model.h"
#include "tools/tiny_engine/request.h"

namespace quire::testing {

struct ConversationsResult {
  std::string problem;                       ///< empty, or what is wrong
  std::vector<tiny_engine::Output> outputs;  ///< by turn, request and sample
  // What has happened on the way.
  std::uint64_t evicted_pages = 0;
  std::uint64_t stored_pages = 0;
  std::uint64_t loaded_pages = 0;
  std::uint64_t restarted_loaded_pages = 0;  ///< of these, by the second cache
  std::uint64_t disk_stored_pages = 0;
  std::uint64_t disk_loaded_pages = 0;
  std::uint64_t restarted_disk_loaded_pages = 0;
  std::uint64_t found_tokens = 0;
  std::uint64_t fork_count = 0;
  std::uint64_t preempt_count = 0;
  std::uint64_t copied_pages = 0;
  std::uint64_t moved_tokens = 0;
  std::uint64_t early_steps = 0;  ///< planned before all their pages had arrived
};

/// From this seed on, steps are planned while pages arrive, a layer at a time.
inline constexpr std::uint64_t kFirstEarlySeed = 100;

/// The disk tier is in `directory`, which is empty. Without a device, the pool is the host's.
[[nodiscard]] ConversationsResult run_conversations(const ScheduleDevice& device, std::uint64_t seed,
                                                    const std::string& directory);
/// Adds what has happened.
void add_counts(ConversationsResult& sum, const ConversationsResult& added);
[[nodiscard]] std::string to_string(const ConversationsResult& result);
/// Whether outputs are the same, logits bit for bit; what differs first, otherwise.
[[nodiscard]] std::string compare_outputs(const std::vector<tiny_engine::Output>& left,
                                          const std::vector<tiny_engine::Output>& right);

}  // namespace quire::testing
