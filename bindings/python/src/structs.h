// SPDX-License-Identifier: Apache-2.0
//
// StructClass: a plain struct of quire's as a Python class. Its constructor takes every field as a keyword, with the
// defaults of the C++ struct; a name that is no field is refused, with those there are. Lists are given back as tuples,
// because a list would be a copy, and what is appended to a copy is lost without a word.
#pragma once

#include "casters.h"

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace quire::python {

namespace nb = nanobind;

template <typename T>
struct is_vector : std::false_type {};
template <typename T>
struct is_vector<std::vector<T>> : std::true_type {};
template <typename T>
struct is_array : std::false_type {};
template <typename T, std::size_t N>
struct is_array<std::array<T, N>> : std::true_type {};
template <typename T>
struct is_optional : std::false_type {};
template <typename T>
struct is_optional<std::optional<T>> : std::true_type {};

template <typename T>
std::string& enum_name() {
  static std::string name;
  return name;
}
/// An enum, whose name is remembered for signatures.
template <typename T>
nb::enum_<T> enum_class(nb::module_& module, const char* name, const char* text) {
  enum_name<T>() = name;
  return nb::enum_<T>(module, name, nb::is_arithmetic(), text);
}

/// How a type is written in signatures. Classes of quire's are asked for their name.
template <typename T>
std::string type_text() {
  if constexpr (std::is_same_v<T, bool>) {
    return "bool";
  } else if constexpr (std::is_integral_v<T>) {
    return "int";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "float";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "str";
  } else if constexpr (is_optional<T>::value) {
    return type_text<typename T::value_type>() + " | None";
  } else if constexpr (is_vector<T>::value || is_array<T>::value) {
    return "collections.abc.Sequence[" + type_text<typename T::value_type>() + "]";
  } else if constexpr (std::is_enum_v<T>) {
    return enum_name<T>();
  } else if constexpr (std::is_base_of_v<nb::handle, T>) {
    return "object";
  } else {
    return nb::type_name(nb::type<T>()).c_str();
  }
}

/// Text that lives as long as the module, as signatures must.
inline const char* keep_text(std::string text) {
  static std::deque<std::string> texts;
  return texts.emplace_back(std::move(text)).c_str();
}

template <typename T>
class StructClass {
 public:
  template <typename... Extra>
  StructClass(nb::module_& module, const char* name, const char* text, const Extra&... extra)
      : class_(module, name, text, extra...), name_(name) {}

  /// A field that Python reads and writes.
  template <typename F, typename Base>
  StructClass& field(const char* name, F Base::* member, const char* text = "") {
    if constexpr (is_vector<F>::value || is_array<F>::value) {
      class_.def_prop_rw(
          name, [member](const T& self) { return to_tuple(self.*member); },
          [member](T& self, F value) { self.*member = std::move(value); }, text, nb::for_getter(getter_text<F>(name)));
    } else if constexpr (std::is_base_of_v<nb::handle, F>) {
      class_.def_rw(name, member, text, nb::for_setter(nb::arg("value").none()));
    } else {
      class_.def_rw(name, member, text);
    }
    return add(name, type_text<F>());
  }

  /// A field that Python only reads.
  template <typename F, typename Base>
  StructClass& value(const char* name, F Base::* member, const char* text = "") {
    if constexpr (is_vector<F>::value || is_array<F>::value) {
      class_.def_prop_ro(name, [member](const T& self) { return to_tuple(self.*member); }, text, getter_text<F>(name));
    } else {
      class_.def_ro(name, member, text);
    }
    return add(name, type_text<F>());
  }

  /// What Python reads and a function makes.
  template <typename Get>
  StructClass& made(const char* name, Get get, const char* text, const char* type) {
    class_.def_prop_ro(name, get, text, nb::sig(keep_text("def " + std::string(name) + "(self) -> " + type)));
    return add(name, type);
  }

  /// A field that has getters and setters of its own.
  template <typename Get, typename Set>
  StructClass& property(const char* name, const char* type, Get get, Set set, const char* text = "") {
    class_.def_prop_rw(name, get, set, text);
    return add(name, type);
  }

  /// Once all fields are known.
  nb::class_<T>& with_constructor() {
    std::string signature = "def __init__(self";
    if (!names_.empty()) signature += ", *";
    for (std::size_t i = 0; i < names_.size(); ++i) signature += ", " + names_[i] + ": " + types_[i] + " = ...";
    signature += ") -> None";
    const char* name = name_;
    const std::vector<std::string> names = names_;
    class_.def(
        "__init__",
        [name, names](nb::pointer_and_handle<T> self, const nb::kwargs& fields) {
          new (self.p) T();
          nb::inst_mark_ready(self.h);
          set_fields(self.h, name, names, fields);
        },
        nb::sig(keep_text(signature)));
    add_repr();
    return class_;
  }

  /// For what only quire makes.
  nb::class_<T>& without_constructor() {
    add_repr();
    return class_;
  }

 private:
  template <typename F>
  static nb::sig getter_text(const char* name) {
    return nb::sig(
        keep_text("def " + std::string(name) + "(self) -> tuple[" + type_text<typename F::value_type>() + ", ...]"));
  }

  template <typename F>
  static nb::tuple to_tuple(const F& values) {
    nb::list list;
    for (const auto& value : values) list.append(nb::cast(value));
    return nb::tuple(list);
  }

  static void set_fields(nb::handle self, const char* name, const std::vector<std::string>& names,
                         const nb::kwargs& fields) {
    for (const auto& [key, value] : fields) {
      const std::string field = nb::cast<std::string>(key);
      bool is_known = false;
      for (const std::string& known : names) is_known |= known == field;
      if (!is_known) {
        std::string message = std::string(name) + " has no field " + field + "; it has";
        for (const std::string& known : names) message += (&known == &names.front() ? " " : ", ") + known;
        throw nb::type_error(message.c_str());
      }
      try {
        nb::setattr(self, key, value);
      } catch (nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
        const std::string message = std::string(name) + "." + field + " cannot be " +
                                    nb::cast<std::string>(nb::repr(value)) + ", which is of type " +
                                    nb::cast<std::string>(value.type().attr("__name__"));
        throw nb::type_error(message.c_str());
      }
    }
  }

  void add_repr() {
    if constexpr (std::equality_comparable<T>) {
      class_.def("__eq__", [](const T& self, const T& other) { return self == other; }, nb::is_operator());
    }
    if constexpr (std::is_copy_constructible_v<T>) {
      class_.def("__copy__", [](const T& self) { return T(self); });
      class_.def("__deepcopy__", [](const T& self, nb::handle) { return T(self); });
    }
    const char* name = name_;
    const std::vector<std::string> names = names_;
    class_.def("__repr__", [name, names](nb::handle self) {
      std::string text = std::string(name) + "(";
      for (const std::string& field : names) {
        if (&field != &names.front()) text += ", ";
        text += field + "=" + nb::cast<std::string>(nb::repr(self.attr(field.c_str())));
      }
      return text + ")";
    });
    nb::list fields;
    for (const std::string& field : names_) fields.append(nb::str(field.c_str()));
    class_.attr("_fields") = nb::tuple(fields);
  }

  StructClass& add(const char* name, std::string type) {
    names_.emplace_back(name);
    types_.push_back(std::move(type));
    return *this;
  }

  nb::class_<T> class_;
  const char* name_;
  std::vector<std::string> names_;
  std::vector<std::string> types_;
};

}  // namespace quire::python
