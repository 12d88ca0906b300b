// SPDX-License-Identifier: Apache-2.0
#include "bind.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cache_calls.h"
#include "casters.h"
#include "errors.h"
#include "prompt.h"
#include "sequence.h"
#include "structs.h"

namespace quire::python {
namespace {

// What a Python object of the class refers to, for the garbage collector.
template <typename T, nb::object T::* member>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT((nb::inst_ptr<T>(self)->*member).ptr());
  return 0;
}
template <typename T, nb::object T::* member>
int clear(PyObject* self) {
  if (nb::inst_ready(self)) (nb::inst_ptr<T>(self)->*member).reset();
  return 0;
}
template <typename T, nb::object T::* member>
PyType_Slot* collected() {
  static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(traverse<T, member>)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear<T, member>)},
                                {0, nullptr}};
  return slots;
}

}  // namespace

void bind_sequence(nb::module_& module) {
  nb::class_<PromptHandle>(module, "Prompt", "Tokens to look for or to cache, with what they depend on besides.")
      .def(
          "__init__",
          [](PromptHandle* self, nb::object tokens, std::vector<ExtraKey> extra_keys) {
            new (self) PromptHandle{std::move(tokens), std::move(extra_keys)};
          },
          nb::arg("tokens"), nb::arg("extra_keys") = std::vector<ExtraKey>{})
      .def_ro("tokens", &PromptHandle::tokens)
      .def_prop_ro(
          "extra_keys", [](const PromptHandle& self) { return to_python(self.extra_keys); },
          nb::sig("def extra_keys(self) -> tuple[ExtraKey, ...]"))
      .def(
          "__eq__",
          [](const PromptHandle& self, const PromptHandle& other) {
            return is_same(self.tokens, other.tokens) && self.extra_keys == other.extra_keys;
          },
          nb::is_operator(), nb::sig(kEqual))
      .def(
          "__reduce__",
          [](const nb::object& self) {
            return nb::make_tuple(self.type(), nb::make_tuple(self.attr("tokens"), self.attr("extra_keys")));
          },
          nb::sig("def __reduce__(self) -> tuple[type[Prompt], tuple[object, ...]]"))
      .def("__repr__",
           [](const nb::object& self) {
             return "Prompt(tokens=" + nb::cast<std::string>(nb::repr(self.attr("tokens"))) +
                    ", extra_keys=" + nb::cast<std::string>(nb::repr(self.attr("extra_keys"))) + ")";
           })
      .attr("__hash__") = nb::none();

  nb::class_<SequenceHandle>(module, "Sequence", nb::is_weak_referenceable(),
                             nb::type_slots(collected<SequenceHandle, &SequenceHandle::cache>()),
                             "A live sequence. Dropping it ends it at the cache's next call; as a context manager it "
                             "ends at the end of the block.")
      .def_prop_ro(
          "id", [](const SequenceHandle& self) { return self.sequence.id(); }, "Of an ended sequence too.")
      .def_prop_ro(
          "cache", [](const SequenceHandle& self) { return self.state; }, nb::sig("def cache(self) -> Cache"))
      .def_prop_ro("has_ended", [](const SequenceHandle& self) { return !self.sequence; })
      .def(
          "ready", [](const nb::object& self) { return nb::module_::import_("quire._ready").attr("ready")(self); },
          nb::sig("def ready(self) -> collections.abc.Awaitable[SequenceView]"),
          "To be awaited: until its load has ended. Other tasks of the event loop run meanwhile.")
      .def(
          "__enter__", [](const nb::object& self) { return self; }, nb::sig("def __enter__(self) -> Sequence"))
      .def(
          "__exit__",
          [](SequenceHandle& self, const nb::args&) {
            if (!self.sequence || self.state->is_closed()) return;
            const Access access(*self.state);
            take(access->end(self.sequence));
          },
          nb::sig("def __exit__(self, *exc_info: object) -> None"))
      .def("__repr__", [](const SequenceHandle& self) {
        return "Sequence(" + std::to_string(self.sequence.id().index) + (self.sequence ? ")" : ", ended)");
      });

  StructClass<StepEntryHandle>(module, "StepEntry", "One sequence's part of a step to be planned.",
                               nb::type_slots(collected<StepEntryHandle, &StepEntryHandle::sequence>()))
      .field("sequence", &StepEntryHandle::sequence, "", "Sequence | None")
      .field("token_count", &StepEntryHandle::token_count, "At most the sequence's pending tokens; 0: all of them.")
      .field("draft_count", &StepEntryHandle::draft_count,
             "Tokens to compute behind all pending ones, to be accepted or not.")
      .field("tree_parents", &StepEntryHandle::tree_parents,
             "For each token of a tree its parent among the sequence's tree tokens, or -1 for the last known token.")
      .with_constructor();
  StructClass<StepResultHandle>(module, "StepResult", "What a step brought for one of its entries.")
      .field("tokens", &StepResultHandle::tokens,
             "New tokens of the sequence; the first accepted_count are drafts of this step.")
      .field("accepted_count", &StepResultHandle::accepted_count)
      .field("discard", &StepResultHandle::discard, "The entry did not happen.")
      .with_constructor();
  nb::class_<Outcome>(module, "PlanOutcome", "A step, or what is short.")
      .def_prop_ro(
          "step", [](const Outcome& self) { return self.step; }, "None: see shortage.",
          nb::sig("def step(self) -> Step | None"))
      .def_ro("shortage", &Outcome::shortage);
  nb::class_<ExternalMatchHandle>(module, "ExternalMatch",
                                  nb::type_slots(collected<ExternalMatchHandle, &ExternalMatchHandle::sequence>()),
                                  "The longest cached prefix of an external pool.")
      .def_prop_ro(
          "sequence", [](const ExternalMatchHandle& self) { return self.sequence; },
          nb::sig("def sequence(self) -> Sequence"), "while it lives, the pages are not released")
      .def_ro("token_count", &ExternalMatchHandle::token_count, "where all groups can go on")
      .def_ro("replay_tokens", &ExternalMatchHandle::replay_tokens,
              "the last of them, to be computed once more for groups that are not in `groups`")
      .def_ro("pages", &ExternalMatchHandle::pages, "of the history")
      .def_ro("groups", &ExternalMatchHandle::groups, "what other groups need to go on, a list of GroupPages");
}

}  // namespace quire::python
