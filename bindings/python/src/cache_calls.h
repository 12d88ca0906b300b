// SPDX-License-Identifier: Apache-2.0
//
// Calls of a cache that do more from Python than pass their arguments on: they gather what Python gave, wait without
// the GIL, and run callbacks once nothing of the cache is held.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache_state.h"
#include "cache_values.h"
#include "casters.h"
#include "quire/cache.h"
#include "sequence.h"
#include "settings.h"
#include "step.h"

namespace quire::python {

using StatePointer = std::shared_ptr<CacheState>;
using Access = CacheState::Access;
using ByteAccess = CacheState::ByteAccess;

/// PlanOutcome.
struct Outcome {
  std::shared_ptr<StepHandle> step;  // null: see shortage
  Shortage shortage;
};

/// Runs a call that moves bytes or may take long, while other Python threads go on.
template <typename Call>
auto without_gil(Call call) {
  const WithoutGil without;
  return call();
}

[[nodiscard]] std::vector<std::uint32_t> page_ids(std::span<const PageId> pages);

[[nodiscard]] StatePointer open_cache(const Settings& settings);
/// A sequence as Python holds it: with the Python object of its cache.
[[nodiscard]] SequenceHandle sequence_of(const StatePointer& state, Sequence sequence);
[[nodiscard]] SequenceHandle begin(const StatePointer& state, KeySpaceId key_space, nb::handle prompt,
                                   const std::optional<SequenceOptions>& options);
/// admit(), or resume(). `callback` is None or a function that takes a SequenceId.
[[nodiscard]] Admission admit(CacheState& state, const SequenceHandle& sequence, nb::object callback);
[[nodiscard]] Admission resume(CacheState& state, const SequenceHandle& sequence, nb::object callback);
void stop_loading(CacheState& state, const SequenceHandle& sequence);
/// `callback` is None or a function that takes a HeldPrefix.
[[nodiscard]] HeldPrefix hold_on_host(CacheState& state, KeySpaceId key_space, nb::handle prompt,
                                      const HoldOptions& options, nb::object callback);
[[nodiscard]] ViewCopy view_of(CacheState& state, const SequenceHandle& sequence);
/// Until the sequence's load has ended. False when that takes longer than it was given.
[[nodiscard]] bool wait_until_ready(const StatePointer& state, const SequenceHandle& sequence,
                                    std::optional<double> timeout_s);
[[nodiscard]] bool wait_until_flushed(const StatePointer& state, std::optional<double> timeout_s);

[[nodiscard]] Outcome plan_step(const StatePointer& state, const nb::sequence& entries,
                                const std::optional<PlanShape>& shape);
/// A step may only be given to the cache that planned it, and once.
[[nodiscard]] const Step& step_of(const StepHandle& handle);
/// Of one layer of a step whose pages are still arriving. Any thread may wait, and others may call the cache meanwhile.
[[nodiscard]] TransferOutcome wait_for_layer(const StatePointer& state, const StepHandle& step, GroupLayer layer,
                                             std::optional<double> timeout_s);
void finish_step(CacheState& state, StepHandle& step, const nb::sequence& results);
void abort_step(CacheState& state, StepHandle& step);

[[nodiscard]] std::vector<Completion> poll(CacheState& state);
/// Without `now`, time has gone on since the cache was last told it: read under the lock, so that it never goes back.
void apply(CacheState& state, const std::vector<Completion>& completions, std::optional<TimeNs> now);
/// `now` as there. The time goes on from what it is told, and from what apply_ranks() agrees on where that is later.
[[nodiscard]] nb::bytes report_to_ranks(CacheState& state, std::uint32_t rank_index, std::uint32_t rank_count,
                                        std::optional<TimeNs> now, const std::vector<Completion>& moved);
AgreementCopy apply_ranks(CacheState& state, const std::vector<nb::bytes>& reports);

}  // namespace quire::python
