// SPDX-License-Identifier: Apache-2.0
//
// The extension module: the public headers of quire under their own names. What each class is for stands in its header;
// what Python adds is in docs/python.md.

#include "bind.h"
#include "cache_state.h"
#include "casters.h"
#include "errors.h"
#include "quire/version.h"

NB_MODULE(_quire, module) {
  // Objects that are alive when the interpreter ends are no leak of anybody's.
  nanobind::set_leak_warnings(false);
  module.doc() = "The KV-cache layer of an LLM inference engine.";
  module.attr("__version__") = nanobind::str(quire::kVersion.data(), quire::kVersion.size());
  quire::python::bind_errors(module);
  quire::python::bind_types(module);
  quire::python::bind_layout(module);
  quire::python::bind_entry_formats(module);
  quire::python::bind_geometry(module);
  quire::python::bind_device(module);
  quire::python::bind_swap_values(module);
  quire::python::bind_config(module);
  quire::python::bind_stats(module);
  quire::python::bind_plan(module);
  quire::python::bind_state_slots(module);
  quire::python::bind_sequence(module);
  quire::python::bind_chunks(module);
  quire::python::bind_cache(module);
  quire::python::bind_disk_store(module);
  quire::python::bind_swap(module);
  quire::python::bind_mover(module);
  quire::python::bind_metrics(module);
  quire::python::bind_closing_at_exit(module);
}
