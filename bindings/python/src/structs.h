// SPDX-License-Identifier: Apache-2.0
//
// StructClass: a plain struct of quire's as a Python class. Its constructor takes every field as a keyword, with the
// defaults of the C++ struct; a name that is no field is refused, with those there are. Lists are given back as tuples,
// because a list would be a copy, and what is appended to a copy is lost without a word.
//
// All of them are values: equal when all fields are, picklable when all fields are, hashable when nobody can change
// them.
#pragma once

#include "casters.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <limits>
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

/// How a type is written in signatures: as callers may give it.
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
  } else if constexpr (std::is_same_v<T, std::filesystem::path>) {
    return "str | os.PathLike[str]";
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

/// The same, as it is given back.
template <typename T>
std::string result_text() {
  if constexpr (is_vector<T>::value || is_array<T>::value) {
    return "tuple[" + result_text<typename T::value_type>() + ", ...]";
  } else {
    return type_text<T>();
  }
}

/// And for people, with what a number may be.
template <typename T>
std::string words_for() {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    return "int from " + std::to_string(std::numeric_limits<T>::min()) + " to " +
           std::to_string(std::numeric_limits<T>::max());
  } else if constexpr (is_optional<T>::value) {
    return words_for<typename T::value_type>() + ", or None";
  } else if constexpr (is_vector<T>::value || is_array<T>::value) {
    return "sequence of " + words_for<typename T::value_type>();
  } else {
    const std::string text = type_text<T>();
    return text.find("_quire.") == std::string::npos ? text : text.substr(text.rfind('.') + 1);  // without the module
  }
}

/// What Python gets of a field: a copy, and tuples of lists at any depth.
template <typename F>
nb::object to_python(const F& value) {
  if constexpr (is_vector<F>::value || is_array<F>::value) {
    nb::list list;
    for (const auto& item : value) list.append(to_python(item));
    return nb::tuple(list);
  } else {
    return nb::cast(value);
  }
}

/// A field as Python gave it; `field` is "DeviceConfig.page_count", and `words` say what it may be.
template <typename F>
F from_python(nb::handle given, const char* field, const char* words) {
  if constexpr (std::is_same_v<F, nb::object>) {
    return nb::borrow(given);
  } else {
    F value{};
    if (nb::try_cast(given, value)) return value;
    constexpr std::size_t kLengthMax = 200;
    std::string text = nb::cast<std::string>(nb::repr(given));
    if (text.size() > kLengthMax) text = "what it was given";
    const std::string message = std::string(field) + " cannot be " + text + ", which is of type " +
                                nb::cast<std::string>(given.type().attr("__name__")) + ": it is of type " + words;
    throw nb::type_error(message.c_str());
  }
}

inline nb::bytes to_bytes(const std::vector<std::byte>& bytes) {
  return nb::bytes(bytes.data(), bytes.size());
}

/// Equality of fields. Memory of the caller's, such as a tensor, is equal to itself alone.
inline bool is_same(nb::handle a, nb::handle b) {
  if (a.is(b)) return true;
  if (nb::isinstance<nb::tuple>(a) && nb::isinstance<nb::tuple>(b)) {
    const std::size_t count = nb::len(a);
    if (count != nb::len(b)) return false;
    for (std::size_t i = 0; i < count; ++i) {
      if (!is_same(nb::object(a[i]), nb::object(b[i]))) return false;
    }
    return true;
  }
  const bool is_bytes = nb::isinstance<nb::bytes>(a);
  if (!is_bytes && (nb::ndarray_check(a) || nb::ndarray_check(b))) return false;
  return nb::object(nb::borrow(a)).equal(b);
}

/// Text that lives as long as the module, as signatures must.
inline const char* keep_text(std::string text) {
  static std::deque<std::string> texts;
  return texts.emplace_back(std::move(text)).c_str();
}

constexpr const char* kEqual = "def __eq__(self, arg: object, /) -> bool";

template <typename T>
class StructClass {
 public:
  template <typename... Extra>
  StructClass(nb::module_& module, const char* name, const char* text, const Extra&... extra)
      : class_(module, name, text, extra...), name_(name) {}

  /// A field that Python reads and writes; `type` is for objects that only Python knows.
  template <typename F, typename Base>
  StructClass& field(const char* name, F Base::* member, const char* text = "", const char* type = nullptr) {
    add_value(name, member, type != nullptr ? type : type_text<F>());
    const std::string result = type != nullptr ? type : result_text<F>();
    const std::size_t index = parts().size() - 1;
    const auto set = [index](T& self, nb::handle value) { parts()[index].put(self, value); };
    define(name, getter_of(member), set, text, result, parts().back().type);
    return *this;
  }

  /// A field that Python only reads.
  template <typename F, typename Base>
  StructClass& value(const char* name, F Base::* member, const char* text = "") {
    class_.def_prop_ro(name, getter_of(member), text, getter_sig(name, result_text<F>()));
    add_value(name, member, type_text<F>());
    return *this;
  }

  /// What Python reads and a function makes; with `put`, which takes it back, from a pickle.
  template <typename Get>
  StructClass& made(const char* name, Get get, const char* text, const char* type) {
    class_.def_prop_ro(name, get, text, getter_sig(name, type));
    parts().push_back({name, type, nullptr, nullptr});
    return *this;
  }
  template <typename Get, typename Put>
  StructClass& made(const char* name, Get get, Put put, const char* text, const char* type) {
    class_.def_prop_ro(name, get, text, getter_sig(name, type));
    add_property(name, type, get, put);
    return *this;
  }

  /// A field that has getters and setters of its own.
  template <typename Get, typename Set>
  StructClass& property(const char* name, const char* type, Get get, Set set, const char* text = "",
                        const char* result = nullptr) {
    add_property(name, type, get, set);
    const std::size_t index = parts().size() - 1;
    const auto put = [index](T& self, nb::handle value) { parts()[index].put(self, value); };
    define(name, get, put, text, result != nullptr ? result : type, type);
    return *this;
  }

  /// A text that no message and no repr() shows.
  StructClass& secret(const char* name, std::string T::* member, const char* text = "") {
    property(
        name, "str", [member](const T& self) { return nb::str((self.*member).c_str(), (self.*member).size()); },
        [member, field = keep_text(std::string(name_) + "." + name)](T& self, const nb::object& value) {
          if (!nb::isinstance<nb::str>(value)) {
            throw nb::type_error(
                (std::string(field) + " is of type " + nb::type_name(value.type()).c_str() + ": give a str").c_str());
          }
          self.*member = nb::cast<std::string>(value);
        },
        text);
    parts().back().is_secret = true;
    return *this;
  }

  /// Once all fields are known.
  nb::class_<T>& with_constructor() {
    std::string signature = "def __init__(self";
    if (!parts().empty()) signature += ", *";
    for (const Part& part : parts()) signature += ", " + part.name + ": " + part.type + " = ...";
    signature += ") -> None";
    class_.def(
        "__init__",
        [name = name_](nb::pointer_and_handle<T> self, const nb::kwargs& fields) {
          set_fields(make_default(self), name, fields);
        },
        nb::sig(keep_text(signature)));
    add_common();
    class_.attr("__hash__") = nb::none();  // it can change
    return class_;
  }

  /// For what only quire makes.
  nb::class_<T>& without_constructor() {
    add_common();
    if (is_value()) {
      class_.def("__hash__", [](const T& self) {
        nb::list values;
        for (const Part& part : parts()) values.append(part.get(self));
        return nb::hash(nb::tuple(values));
      });
    }
    return class_;
  }

 private:
  struct Part {
    std::string name;
    std::string type;
    std::function<nb::object(const T&)> get;
    std::function<void(T&, nb::handle)> put;
    bool is_secret = false;  // what it is appears in no repr()
  };
  static std::vector<Part>& parts() {
    static std::vector<Part> all;
    return all;
  }
  /// Every part can be read and written: what equality and pickles need.
  static bool is_value() {
    for (const Part& part : parts()) {
      if (!part.put) return false;
    }
    return true;
  }

  template <typename Method>
  struct Second;
  template <typename Class, typename Self, typename Argument>
  struct Second<void (Class::*)(Self, Argument) const> {
    using Type = std::decay_t<Argument>;
  };

  // Structs in structs are given out in place, lists as copies.
  template <typename F, typename Base>
  static auto getter_of(F Base::* member) {
    if constexpr (is_vector<F>::value || is_array<F>::value) {
      return [member](const T& self) { return to_python(self.*member); };
    } else {
      return [member](const T& self) -> const F& { return self.*member; };
    }
  }
  static nb::sig getter_sig(const char* name, const std::string& type) {
    return nb::sig(keep_text("def " + std::string(name) + "(self) -> " + type));
  }
  template <typename Get, typename Set>
  void define(const char* name, Get get, Set set, const char* text, const std::string& result,
              const std::string& type) {
    const std::string setter = "def " + std::string(name) + "(self, arg: " + type + ", /) -> None";
    class_.def_prop_rw(name, get, set, text, nb::for_getter(getter_sig(name, result)),
                       nb::for_setter(nb::arg("arg").none()), nb::for_setter(nb::sig(keep_text(setter))));
  }

  template <typename F, typename Base>
  void add_value(const char* name, F Base::* member, std::string type) {
    const char* field = keep_text(std::string(name_) + "." + name);
    const char* words = keep_text(words_for<F>());
    parts().push_back(
        {name, std::move(type), [member](const T& self) { return to_python(self.*member); },
         [member, field, words](T& self, nb::handle value) { self.*member = from_python<F>(value, field, words); }});
  }
  template <typename Get, typename Set>
  void add_property(const char* name, const char* type, Get get, Set set) {
    using Argument = typename Second<decltype(&Set::operator())>::Type;
    const char* field = keep_text(std::string(name_) + "." + name);
    constexpr bool kIsPython = std::is_base_of_v<nb::handle, Argument>;
    const char* words = kIsPython ? type : keep_text(words_for<Argument>());
    parts().push_back(
        {name, type, [get](const T& self) -> nb::object { return nb::cast(get(self)); },
         [set, field, words](T& self, nb::handle value) { set(self, from_python<Argument>(value, field, words)); }});
  }

  // A constructor's object, from when on its fields can be set.
  static T& make_default(nb::pointer_and_handle<T> self) {
    T* made = new (self.p) T();
    nb::inst_mark_ready(self.h);
    return *made;
  }
  static void set_fields(T& self, const char* name, const nb::dict& fields) {
    for (const auto& [key, value] : fields) {
      const std::string field = nb::cast<std::string>(key);
      const Part* found = nullptr;
      for (const Part& part : parts()) found = part.name == field ? &part : found;
      if (found == nullptr) {
        std::string message = std::string(name) + " has no field " + field + "; it has";
        for (const Part& part : parts()) message += (&part == &parts().front() ? " " : ", ") + part.name;
        throw nb::type_error(message.c_str());
      }
      found->put(self, value);
    }
  }

  void add_common() {
    if constexpr (std::is_default_constructible_v<T>) {
      if (is_value()) add_value_methods();
    }
    if constexpr (std::is_copy_constructible_v<T>) {
      class_.def("__copy__", [](const T& self) { return T(self); });
      class_.def(
          "__deepcopy__", [](const T& self, nb::handle) { return T(self); },
          nb::sig(keep_text("def __deepcopy__(self, memo: object, /) -> " + std::string(name_))));
    }
    class_.def("__repr__", [name = name_](nb::handle self) {
      std::string text = std::string(name) + "(";
      for (const Part& part : parts()) {
        if (&part != &parts().front()) text += ", ";
        const nb::object value = self.attr(part.name.c_str());
        const bool is_hidden = part.is_secret && nb::len(value) > 0;
        text += part.name + "=" + (is_hidden ? "'***'" : nb::cast<std::string>(nb::repr(value)));
      }
      return text + ")";
    });
    nb::list fields;
    for (const Part& part : parts()) fields.append(nb::str(part.name.c_str()));
    class_.attr("_fields") = nb::tuple(fields);
  }

  void add_value_methods() {
    class_.def(
        "__eq__",
        [](const T& self, const T& other) {
          for (const Part& part : parts()) {
            if (!is_same(part.get(self), part.get(other))) return false;
          }
          return true;
        },
        nb::is_operator(), nb::sig(kEqual));
    class_.def(
        "__getstate__",
        [](const T& self) {
          nb::dict state;
          for (const Part& part : parts()) state[part.name.c_str()] = part.get(self);
          return state;
        },
        nb::sig("def __getstate__(self) -> dict[str, object]"));
    class_.def(
        "__setstate__",
        [name = name_](nb::pointer_and_handle<T> self, const nb::dict& state) {
          set_fields(make_default(self), name, state);
        },
        nb::sig("def __setstate__(self, arg: dict[str, object], /) -> None"));
  }

  nb::class_<T> class_;
  const char* name_;
};

}  // namespace quire::python
