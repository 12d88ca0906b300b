// SPDX-License-Identifier: Apache-2.0
//
// How a failed Result becomes a Python exception: one class per ErrorCode, all of them below quire.Error. The table in
// errors.cc is the only place that knows both.
#pragma once

#include <string>
#include <type_traits>
#include <utility>

#include "casters.h"
#include "quire/result.h"

namespace quire::python {

void bind_errors(nanobind::module_& module);

/// Throws the exception of the error's code.
[[noreturn]] void raise(const Error& error);
[[noreturn]] void raise(ErrorCode code, std::string message);
/// The same, because of an exception of Python's.
[[noreturn]] void raise_from(nanobind::python_error& cause, ErrorCode code, const std::string& message);

/// The value of a Result, or its exception. Needs the GIL.
template <typename T>
T take(Result<T> result) {
  if (!result.has_value()) raise(result.error());
  if constexpr (!std::is_void_v<T>) return *std::move(result);
}

}  // namespace quire::python
