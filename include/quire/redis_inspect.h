// SPDX-License-Identifier: Apache-2.0
//
// What servers have of a remote tier, and whether it is what caches wrote: for tools, beside running engines too.
// Values come and go meanwhile, so counts are of about now.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quire/redis_store.h"
#include "quire/result.h"

namespace quire {

struct RedisInspectProgress {
  std::uint64_t value_count = 0;
  std::uint64_t read_bytes = 0;
  std::uint64_t fault_count = 0;
};

struct RedisInspectOptions {
  std::string key_prefix = "quire";  ///< of the tier whose values are looked at
  bool verify = false;               ///< reads every value and checks it
  bool repair = false;               ///< with verify: drops what is bad
  /// Called on the calling thread or while it waits; once it returns false, the work ends with what was seen by then.
  std::function<bool(const RedisInspectProgress&)> on_progress = {};
};

/// Values of one key space and layout.
struct RedisPart {
  std::string key_space = {};  ///< the first 16 digits of its name
  std::uint64_t layout = 0;
  std::uint64_t value_count = 0;
  std::uint64_t page_count = 0;
  std::uint64_t bytes = 0;
};

/// A value that is not what its key says.
struct RedisFault {
  std::string key = {};
  std::string why = {};
  bool is_dropped = false;
};

struct RedisInspectReport {
  static constexpr std::size_t kPartsMax = 10'000;  ///< the last one has what belongs to none of the others
  static constexpr std::size_t kFaultsMax = 1'000;  ///< that are listed

  std::uint32_t node_count = 0;
  std::uint64_t value_count = 0;
  std::uint64_t page_count = 0;
  std::uint64_t bytes = 0;
  std::vector<RedisPart> parts = {};    ///< those with most bytes first
  std::uint64_t checked_count = 0;      ///< verify: of values that were read
  std::uint64_t gone_count = 0;         ///< verify: that were evicted or dropped before they were read
  std::uint64_t fault_count = 0;        ///< foreign ones included
  std::uint64_t foreign_count = 0;      ///< of keys or kinds that no cache writes
  std::uint64_t dropped_count = 0;      ///< repair: of the faults
  std::vector<RedisFault> faults = {};  ///< the first of them
  bool is_complete = true;              ///< false: on_progress ended it

  [[nodiscard]] bool is_clean() const { return fault_count == dropped_count; }
};

/// Memory for it does not grow with what the servers have. An error when no server can be used, or one fails.
[[nodiscard]] Result<RedisInspectReport> inspect_redis_store(const RedisConfig& config,
                                                             const RedisInspectOptions& options = {});

}  // namespace quire
