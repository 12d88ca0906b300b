// SPDX-License-Identifier: Apache-2.0
//
// A Step as Python holds it. Its plan's arrays lie in the cache: they can be asked for until the step is finished or
// aborted, and one that was taken before stays readable, with contents that later steps overwrite.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "arrays.h"
#include "cache_state.h"
#include "quire/cache.h"

namespace quire::python {

struct StepHandle {
  StepHandle(Step given, const std::shared_ptr<CacheState>& of) : step(std::move(given)), state(of) {}

  Step step;
  std::shared_ptr<CacheState> state;
  bool is_live = true;

  /// What an array of its plan owns.
  [[nodiscard]] nb::object owner() const { return own(state->lease()); }
  /// Raises for one that is over.
  [[nodiscard]] const AttentionPlan& plan() const;
};

}  // namespace quire::python
