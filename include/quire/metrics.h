// SPDX-License-Identifier: Apache-2.0
//
// MetricsServer: what a Cache holds and does, for Prometheus to fetch (docs/metrics.md has every name). It is a library
// of its own, quire::metrics, so that an engine without it needs neither an HTTP server nor prometheus-cpp:
//
//     find_package(quire COMPONENTS metrics)
//     target_link_libraries(engine PRIVATE quire::metrics)
//
// The engine's thread hands over snapshots at its own pace, once a second, say; the server's threads only ever see
// those and never touch the cache. So a scrape costs the engine nothing, and an update a copy under a mutex.
//
// thread-safe
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "quire/cache.h"
#include "quire/result.h"
#include "quire/stats.h"
#include "quire/transfer.h"
#include "quire/types.h"

namespace quire {

class MetricsListener;

struct MetricsConfig {
  /// Where to listen; 0: on a free port, which port() tells. Unset: nowhere, and no thread starts; text() is for
  /// engines that have a server of their own.
  std::optional<std::uint16_t> port = std::nullopt;
  /// In numbers, such as "0.0.0.0" for all interfaces or "::1". Whoever can reach it can read everything: there is
  /// neither encryption nor a password, and names of key spaces or tokens are never shown.
  std::string address = "127.0.0.1";
  /// When the engine started, in seconds since 1970, shown as quire_start_time_seconds. Unset: it is not shown.
  std::optional<double> start_time_seconds = std::nullopt;
};

/// Calls of a Cache whose time is worth watching, since they are made between two steps.
enum class TimedCall : std::uint8_t { Lookup, Begin, Admit, PlanStep, FinishStep, Append, Offer, Match, Apply };
inline constexpr std::size_t kTimedCallCount = 9;

[[nodiscard]] constexpr std::string_view to_string(TimedCall call) {
  switch (call) {
    case TimedCall::Lookup:
      return "lookup";
    case TimedCall::Begin:
      return "begin";
    case TimedCall::Admit:
      return "admit";
    case TimedCall::PlanStep:
      return "plan_step";
    case TimedCall::FinishStep:
      return "finish_step";
    case TimedCall::Append:
      return "append";
    case TimedCall::Offer:
      return "offer";
    case TimedCall::Match:
      return "match";
    case TimedCall::Apply:
      return "apply";
  }
  return "unknown";
}

class MetricsServer {
 public:
  /// Fails with the system's reason when it cannot listen there.
  [[nodiscard]] static Result<std::unique_ptr<MetricsServer>> open(const MetricsConfig& config);
  /// Stops listening. Waits for answers that are being sent, and up to two seconds for clients that say nothing.
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  /// What does not change: sizes, policies, the endurance budget. Called by the cache's own thread, once.
  void describe(const Cache& cache);
  /// The newest snapshot replaces the one before.
  void update(const Stats& stats);
  void update(const DiskStatus& status);
  void update(const RemoteTierStatus& status);

  // Distributions, observed by whoever has a clock. Allocate nothing; times below 0 count as 0.

  void observe(TimedCall call, TimeNs duration_ns);
  /// `tier`: which one, if the transfer is of a tier below the host.
  void observe(TransferKind kind, TimeNs duration_ns, Tier tier = Tier::Disk);
  /// What poll() gave, or a mover of the engine's own: transfers by how long they took.
  void observe(std::span<const Completion> completions);
  /// From begin() until the sequence can be planned.
  void observe_ready(TimeNs waited_ns);
  /// What admit() or resume() found of so many tokens, loading ones included; and how long ago the rest was lost.
  void observe(const Admission& admission, std::uint32_t prompt_tokens);

  /// What a scrape gets now, in Prometheus' text format, but for the server's counts of scrapes.
  [[nodiscard]] std::string text() const;
  /// 0: it does not listen.
  [[nodiscard]] std::uint16_t port() const;

 private:
  class State;
  explicit MetricsServer(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;  // shared with the listener's threads
  std::unique_ptr<MetricsListener> listener_;
};

}  // namespace quire
