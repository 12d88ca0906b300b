// SPDX-License-Identifier: Apache-2.0
#include "arrays.h"
#include "casters.h"

#include <limits>
#include <optional>

namespace quire::python {
namespace {

std::string text_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(object));
}
std::string type_of(nb::handle object) {
  return text_of(object.type().attr("__name__"));
}

[[noreturn]] void refuse(const std::string& message) {
  raise(ErrorCode::InvalidArgument, message);
}

bool is_list(nb::handle source) {
  return nb::isinstance<nb::list>(source) || nb::isinstance<nb::tuple>(source);
}

// Where tokens are converted to.
struct Target {
  std::vector<TokenId>& scratch;
  std::span<TokenId> place;

  [[nodiscard]] TokenId* reserve(std::size_t count) const {
    if (count <= place.size()) return place.data();
    if (scratch.size() < count) scratch.resize(count);
    return scratch.data();
  }
};

std::span<const TokenId> from_list(nb::handle source, const Target& into, const char* what) {
  const std::size_t count = nb::len(source);
  TokenId* target = into.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const nb::object item = source[i];
    const std::optional<long long> value = integer_of(item);
    if (!value || *value < 0 || *value > std::numeric_limits<TokenId>::max()) {
      refuse(std::string(what) + "[" + std::to_string(i) + "] is " + nb::cast<std::string>(nb::repr(item)) +
             ": tokens are integers from 0 to 2147483647");
    }
    target[i] = static_cast<TokenId>(*value);
  }
  return {target, count};
}

std::span<const TokenId> narrow(std::span<const std::int64_t> values, const Target& into, const char* what) {
  TokenId* target = into.reserve(values.size());
  // All bits of all tokens, looked at once behind a loop that the compiler makes vector code of.
  std::uint64_t any = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto bits = static_cast<std::uint64_t>(values[i]);
    any |= bits;
    target[i] = static_cast<TokenId>(bits);
  }
  if ((any >> 31U) != 0) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] >= 0 && values[i] <= std::numeric_limits<TokenId>::max()) continue;
      refuse(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
             ": tokens lie from 0 to 2147483647");
    }
  }
  return {target, values.size()};
}

}  // namespace

std::optional<long long> integer_of(nb::handle object) {
  if (!PyLong_Check(object.ptr())) {
    // Arrays have __index__ too, whatever their shape.
    if (!PyIndex_Check(object.ptr()) || !nb::hasattr(object, "ndim")) return std::nullopt;
    const nb::object dimensions = object.attr("ndim");
    if (!PyLong_Check(dimensions.ptr()) || PyLong_AsLong(dimensions.ptr()) != 0) return std::nullopt;
  }
  const nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  const long long value = number.is_valid() ? PyLong_AsLongLong(number.ptr()) : -1;
  if (PyErr_Occurred() == nullptr) return value;
  PyErr_Clear();
  return std::nullopt;
}

std::string name_of(nb::dlpack::dtype type) {
  const std::string bits = std::to_string(type.bits);
  switch (static_cast<nb::dlpack::dtype_code>(type.code)) {
    case nb::dlpack::dtype_code::Int:
      return "int" + bits;
    case nb::dlpack::dtype_code::UInt:
      return "uint" + bits;
    case nb::dlpack::dtype_code::Float:
      return "float" + bits;
    case nb::dlpack::dtype_code::Bfloat:
      return "bfloat" + bits;
    case nb::dlpack::dtype_code::Bool:
      return "bool";
    default:
      return "a type of " + bits + " bits that quire has no name for";
  }
}

void refuse_array(nb::handle source, const std::string& what, const std::string& advice) {
  std::string is = what + " is of type " + type_of(source);
  if (nb::hasattr(source, "dtype")) is += " with dtype " + text_of(source.attr("dtype"));
  if (nb::hasattr(source, "__dlpack__")) {
    try {
      source.attr("__dlpack__")();
    } catch (nb::python_error& error) {
      raise_from(error, ErrorCode::InvalidArgument,
                 is + ", whose memory cannot be had: " + text_of(error.value()) + ": " + advice);
    }
    refuse(is + ", whose __dlpack__ gives nothing that can be used here: " + advice);
  }
  if (PyObject_CheckBuffer(source.ptr()) != 0) {
    refuse(is + ", whose buffer is of no type that can be used here: " + advice);
  }
  refuse(is + ", which has neither a buffer nor __dlpack__: " + advice);
}

ForeignArray import_array(nb::handle source, const char* what) {
  ForeignArray array;
  if (!nb::try_cast(source, array, false) || !array.is_valid()) {
    refuse_array(source, what, "give a NumPy array, a tensor or a list of int");
  }
  const auto is_on_host =
      array.device_type() == nb::device::cpu::value || array.device_type() == nb::device::cuda_host::value;
  if (!is_on_host) {
    refuse(std::string(what) + " lies on an accelerator (DLPack device type " + std::to_string(array.device_type()) +
           ", index " + std::to_string(array.device_id()) + "): copy it to the processor first, as with .cpu()");
  }
  if (array.ndim() != 1) {
    refuse(std::string(what) + " has " + std::to_string(array.ndim()) +
           " dimensions: give one sequence at a time, such as tokens[0]");
  }
  if (array.size() > 1 && array.stride(0) != 1) {
    refuse(std::string(what) + " is not contiguous (its stride is " + std::to_string(array.stride(0)) +
           "): use .contiguous() or numpy.ascontiguousarray()");
  }
  return array;
}

Tokens::Tokens(nb::handle source, std::vector<TokenId>& scratch, const char* what, std::span<TokenId> place) {
  const Target into{scratch, place};
  if (is_list(source)) {
    span_ = from_list(source, into, what);
    return;
  }
  array_ = import_array(source, what);
  if (array_.dtype() == nb::dtype<std::int32_t>()) {
    span_ = {static_cast<const TokenId*>(array_.data()), array_.size()};
  } else if (array_.dtype() == nb::dtype<std::int64_t>()) {
    span_ = narrow({static_cast<const std::int64_t*>(array_.data()), array_.size()}, into, what);
  } else {
    refuse(std::string(what) + " is " + name_of(array_.dtype()) + ": tokens are int32 or int64");
  }
}

}  // namespace quire::python
