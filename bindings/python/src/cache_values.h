// SPDX-License-Identifier: Apache-2.0
//
// What the cache's calls return, where the C++ struct has spans: copies that stay valid.
#pragma once

#include <cstdint>
#include <vector>

#include "casters.h"
#include "quire/cache.h"
#include "quire/introspect.h"
#include "quire/transfer.h"

namespace quire::python {

namespace nb = nanobind;

struct ViewCopy : SequenceView {
  std::vector<std::uint32_t> page_ids;
};

struct TargetsCopy {
  std::vector<WindowRun> windows;
  std::int32_t state_slot = -1;
};

struct TransferCopy {
  TransferId id;
  TransferKind kind = TransferKind::Load;
  TransferPriority priority = TransferPriority::Waiting;
  std::uint16_t band_count = 1;
  std::uint16_t pool_index = 0;
  std::vector<PageTransfer> pages;
};

struct GroupPagesValue {
  std::uint32_t group_index = 0;
  std::uint32_t first_page = 0;
  std::vector<std::uint32_t> page_ids;
};

struct AgreementCopy {
  TimeNs now = 0;
  std::vector<Completion> completions;
};

struct RunCopy : RunView {
  nb::object token_array;
  nb::object page_array;
};

void bind_cache_values(nb::module_& module);

}  // namespace quire::python
