// SPDX-License-Identifier: Apache-2.0
//
// A Step as Python holds it. Its plan's arrays lie in the cache: they can be asked for until the step is finished or
// aborted, and one that was taken before stays readable, with contents that later steps overwrite. As a context manager
// it is aborted at the end of the block unless it was finished there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "arrays.h"
#include "cache_state.h"
#include "quire/cache.h"

namespace quire::python {

struct StepHandle {
  StepHandle(Step given, const std::shared_ptr<CacheState>& of)
      : step(std::move(given)), loads(step.loads.begin(), step.loads.end()), state(of) {
    step.loads = loads;  // any thread may wait for them, whatever becomes of the step
  }
  StepHandle(const StepHandle&) = delete;
  StepHandle& operator=(const StepHandle&) = delete;
  /// One that is dropped in flight did not happen: the cache's next call aborts it.
  ~StepHandle() {
    if (is_live && !state->is_closed()) state->dropped_steps.push_back(std::move(step));
  }

  Step step;
  std::vector<StepLoad> loads;
  std::shared_ptr<CacheState> state;
  bool is_live = true;

  /// What an array of its plan owns.
  [[nodiscard]] nb::object owner() const { return own(state->lease()); }
  /// Raises for one that is over.
  [[nodiscard]] const AttentionPlan& plan() const;
};

}  // namespace quire::python
