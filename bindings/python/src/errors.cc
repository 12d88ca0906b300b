// SPDX-License-Identifier: Apache-2.0
#include "errors.h"
#include "casters.h"

#include <array>
#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>

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

bool is_word(char character) {
  return std::isalnum(static_cast<unsigned char>(character)) != 0 || character == '_';
}

// "PlanConfig::page_tables is" as Python writes it. What is quoted, or part of a path, is the caller's own.
std::string in_python(const std::string& message) {
  std::string text;
  for (std::size_t i = 0; i < message.size(); ++i) {
    text += message[i];
    const bool is_first = i == 0 || !is_word(message[i - 1]);
    if (!is_first || std::isupper(static_cast<unsigned char>(message[i])) == 0) continue;
    if (i > 0 && std::string_view("'\"/.-:").find(message[i - 1]) != std::string_view::npos) continue;
    std::size_t end = i + 1;
    while (end < message.size() && is_word(message[end])) ++end;
    if (end + 2 >= message.size() || message.compare(end, 2, "::") != 0 || !is_word(message[end + 2])) continue;
    text += message.substr(i + 1, end - i - 1) + ".";
    i = end + 1;
  }
  return text;
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
  PyErr_SetString(classes[static_cast<std::size_t>(error.code)], in_python(error.message).c_str());
  throw nb::python_error();
}

void raise(ErrorCode code, std::string message) {
  raise(Error{code, std::move(message)});
}

void raise_from(nb::python_error& cause, ErrorCode code, const std::string& message) {
  nb::raise_from(cause, classes[static_cast<std::size_t>(code)], "%s", message.c_str());
  throw nb::python_error();
}

}  // namespace quire::python
