// SPDX-License-Identifier: Apache-2.0
//
// How fast a shared tier brings prefixes: a simulation of engines that load values from shards, each of which serves
// one value after the other, as a single-threaded server does. Every engine has one connection to every shard with a
// window of bytes in flight, takes one value after the other from the network, uses what has come in order, and
// computes the rest. One shard may hang for a while. Time is a number, and the same request always has the same
// outcome.
#pragma once

#include <cstdint>

#include "quire/types.h"

namespace quire {

/// CPU time of both sides for a value of 2 MiB over one connection, as bench/remote measures it.
inline constexpr double kServerNsPerByte = 0.35;
inline constexpr double kEngineNsPerByte = 0.23;
/// How much more of both an encrypted connection takes.
inline constexpr double kTlsFactor = 3.3;
/// What a shard is kept busy at most, so that queues stay short.
inline constexpr double kShardBusyMax = 0.6;

struct RemoteSizing {
  std::uint32_t engine_count = 100;
  double loads_per_s = 4;          ///< of each engine, at random times
  std::uint32_t value_count = 88;  ///< of each load, on shards drawn at random
  std::uint64_t value_bytes = std::uint64_t{2} << 20U;
  std::uint32_t shard_count = 1;
  double server_ns_per_byte = kServerNsPerByte;
  double engine_ns_per_byte = kEngineNsPerByte;
  double compute_bytes_per_s = 1.4e9;  ///< that an engine computes instead: tokens per second times bytes per token
  std::uint64_t window_bytes = std::uint64_t{8} << 20U;
  TimeNs duration_ns = 30'000'000'000;  ///< in which loads begin
  TimeNs hang_ns = 0;                   ///< of one shard, from a third of the duration on; 0: none hangs
  TimeNs deadline_ns = 0;               ///< of a load; 0: none
  bool has_breaker = false;  ///< an engine leaves a shard alone after two values in a row that came not in time
  std::uint64_t seed = 1;

  [[nodiscard]] double load_bytes() const {
    return static_cast<double>(value_count) * static_cast<double>(value_bytes);
  }
  [[nodiscard]] double read_bytes_per_s() const { return engine_count * loads_per_s * load_bytes(); }
  /// The fewest that are busy no more than kShardBusyMax.
  [[nodiscard]] double shards_by_hand() const { return read_bytes_per_s() * server_ns_per_byte / 1e9 / kShardBusyMax; }
  [[nodiscard]] TimeNs compute_ns() const { return static_cast<TimeNs>(load_bytes() / compute_bytes_per_s * 1e9); }
};

struct RemoteSizingOutcome {
  std::uint64_t load_count = 0;
  /// From the beginning of a load until its prefix is there, loaded or computed.
  TimeNs p50_ns = 0;
  TimeNs p99_ns = 0;
  double computed_share = 0;  ///< of all values
  double busy_share = 0;      ///< of the shards' time, while loads begin
};

[[nodiscard]] RemoteSizingOutcome simulate_remote(const RemoteSizing& sizing);

}  // namespace quire
