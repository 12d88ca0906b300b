// SPDX-License-Identifier: Apache-2.0
#include "errors.h"
#include "casters.h"

#include <array>
#include <cstddef>

namespace nb = nanobind;

namespace quire::python {
namespace {

struct ErrorClass {
  ErrorCode code;
  PyObject** base;  // what callers who know nothing of quire would catch; null: nothing fits
  const char* text;
};

const std::array<ErrorClass, 7>& table() {
  static const std::array<ErrorClass, 7> kTable = {{
      {ErrorCode::InvalidArgument, &PyExc_ValueError, "The caller's input is wrong; the same call fails again."},
      {ErrorCode::Unsupported, nullptr, "Valid, but not something this build or configuration does."},
      {ErrorCode::Unavailable, nullptr, "A limit is reached or something is in the way; may succeed later."},
      {ErrorCode::TimedOut, &PyExc_TimeoutError, "Took longer than it was given."},
      {ErrorCode::Cancelled, nullptr, "Somebody called it off."},
      {ErrorCode::Io, &PyExc_OSError, "A file, a device or the system has failed."},
      {ErrorCode::Corrupt, nullptr, "Bytes are not those that were written."},
  }};
  return kTable;
}

// By ErrorCode. They belong to the module, which is never unloaded.
std::array<PyObject*, 7> classes{};

}  // namespace

void bind_errors(nb::module_& module) {
  const std::string prefix = "quire.";
  PyObject* root =
      PyErr_NewExceptionWithDoc("quire.Error", "What all exceptions of quire have in common.", nullptr, nullptr);
  if (root == nullptr) throw nb::python_error();
  module.attr("Error") = nb::handle(root);
  for (const ErrorClass& entry : table()) {
    const std::string name(to_string(entry.code));
    const nb::tuple bases = entry.base == nullptr ? nb::make_tuple(nb::handle(root))
                                                  : nb::make_tuple(nb::handle(root), nb::handle(*entry.base));
    PyObject* made = PyErr_NewExceptionWithDoc((prefix + name).c_str(), entry.text, bases.ptr(), nullptr);
    if (made == nullptr) throw nb::python_error();
    classes[static_cast<std::size_t>(entry.code)] = made;
    module.attr(name.c_str()) = nb::handle(made);
  }
}

void raise(const Error& error) {
  PyErr_SetString(classes[static_cast<std::size_t>(error.code)], error.message.c_str());
  throw nb::python_error();
}

void raise(ErrorCode code, std::string message) {
  raise(Error{code, std::move(message)});
}

}  // namespace quire::python
