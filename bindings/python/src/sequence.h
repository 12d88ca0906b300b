// SPDX-License-Identifier: Apache-2.0
//
// A Sequence as Python holds it. It keeps its cache; dropping it ends the sequence at the cache's next call, on
// whichever thread that happens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache_state.h"
#include "cache_values.h"
#include "quire/cache.h"

namespace quire::python {

struct SequenceHandle {
  std::shared_ptr<CacheState> state;
  Sequence sequence;
  nb::object cache;  ///< the Python object, so that its callbacks live as long as somebody can reach it through this

  /// Raises for one that has ended.
  [[nodiscard]] const Sequence& get() const;
};

struct StepEntryHandle {
  nb::object sequence = nb::none();
  std::uint32_t token_count = 0;
  std::uint32_t draft_count = 0;
  std::vector<std::int32_t> tree_parents;
};

struct ExternalMatchHandle {
  nb::object sequence;
  std::uint32_t token_count = 0;
  std::uint32_t replay_tokens = 0;
  std::vector<std::uint32_t> pages;
  std::vector<GroupPagesValue> groups;
};

}  // namespace quire::python
