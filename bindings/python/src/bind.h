// SPDX-License-Identifier: Apache-2.0
//
// One function for each part of the module, in the order that module.cc calls them: what a part's signatures name is
// there before it. bind_cache() calls bind_cache_disk() and bind_cache_chunks().
#pragma once

#include "cache_state.h"
#include "casters.h"

namespace quire::python {

namespace nb = nanobind;

void bind_types(nb::module_& module);
void bind_layout(nb::module_& module);
void bind_entry_formats(nb::module_& module);
void bind_geometry(nb::module_& module);
void bind_device(nb::module_& module);
void bind_swap_values(nb::module_& module);
void bind_config(nb::module_& module);
void bind_stats(nb::module_& module);
void bind_plan(nb::module_& module);
void bind_state_slots(nb::module_& module);
void bind_sequence(nb::module_& module);
void bind_chunks(nb::module_& module);
void bind_cache(nb::module_& module);
void bind_cache_disk(nb::class_<CacheState>& cache);
void bind_cache_chunks(nb::class_<CacheState>& cache);
void bind_disk_store(nb::module_& module);
void bind_swap(nb::module_& module);
void bind_mover(nb::module_& module);
void bind_metrics(nb::module_& module);

}  // namespace quire::python
