// SPDX-License-Identifier: Apache-2.0
//
// How a call says no. Ordinary outcomes (a pool is full, a prefix is half matched) are plain return values; what
// follows is for operating failures and bad input: Error names what was tried, on what, and what to do about it.
// A call that returns an Error has changed nothing. Nothing in the library throws, unless the system runs out of
// memory while a cache opens.
//
// Result is tl::expected, which C++23's std::expected was modelled on, but for temporaries: see below.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tl/expected.hpp>

namespace quire {

/// A code exists because some caller acts on it differently.
enum class ErrorCode : std::uint8_t {
  InvalidArgument,  ///< the caller's input is wrong; the same call fails again
  Unsupported,      ///< valid, but not something this build or configuration does
  Unavailable,      ///< a limit is reached or something is in the way; may succeed later
  TimedOut,
  Cancelled,
  Io,
  Corrupt,
};

struct Error {
  ErrorCode code = ErrorCode::InvalidArgument;
  std::string message = {};  ///< what was wrong, where, and what to do
};

namespace detail {
/// Types with lists that somebody else owns, or that go with them: `using IsBorrowed = void;` inside says so.
template <typename T>
concept Borrowed = requires { typename T::IsBorrowed; };
}  // namespace detail

/// A value, or an Error in its place. In a range-based for of C++20 a temporary Result is gone before the first turn,
/// and a reference into it would dangle. So `*` and value() give a temporary's value away, which then lives as long as
/// the loop, and `->` on a temporary does not compile for values that hold borrowed lists:
///
///     for (const Completion& each : *cache.poll())                             right
///     for (const WindowRun& run : cache.receive_targets(sequence)->windows)    an error: name the Result first
template <typename T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
  using Base = tl::expected<T, Error>;

 public:
  Result() = default;
  template <typename U = T>
    requires(!std::derived_from<std::remove_cvref_t<U>, Base> && std::constructible_from<T, U>)
  explicit(!std::convertible_to<U, T>) Result(U&& value) : Base(std::forward<U>(value)) {}
  Result(tl::unexpected<Error> error) : Base(std::move(error)) {}
  Result(Base result) : Base(std::move(result)) {}

  [[nodiscard]] T& operator*() & { return Base::operator*(); }
  [[nodiscard]] const T& operator*() const& { return Base::operator*(); }
  [[nodiscard]] T operator*() && { return std::move(Base::operator*()); }
  [[nodiscard]] T& value() & { return Base::value(); }
  [[nodiscard]] const T& value() const& { return Base::value(); }
  [[nodiscard]] T value() && { return std::move(Base::value()); }

  [[nodiscard]] T* operator->() & { return Base::operator->(); }
  [[nodiscard]] const T* operator->() const& { return Base::operator->(); }
  [[nodiscard]] T* operator->() && {
    static_assert(!detail::Borrowed<T>, "give the Result a name first: what the value lists is gone with a temporary");
    return Base::operator->();
  }
};

template <>
class [[nodiscard]] Result<void> : public tl::expected<void, Error> {
  using Base = tl::expected<void, Error>;

 public:
  Result() = default;
  Result(tl::unexpected<Error> error) : Base(std::move(error)) {}
  Result(Base result) : Base(std::move(result)) {}
};
using Status = Result<void>;

/// The only way to make a failed Result: `return fail(ErrorCode::InvalidArgument, "page_tokens is 0: …");`
[[nodiscard]] inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return tl::unexpected<Error>(Error{code, std::move(message)});
}

/// "InvalidArgument", "Io", …
[[nodiscard]] constexpr std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::InvalidArgument:
      return "InvalidArgument";
    case ErrorCode::Unsupported:
      return "Unsupported";
    case ErrorCode::Unavailable:
      return "Unavailable";
    case ErrorCode::TimedOut:
      return "TimedOut";
    case ErrorCode::Cancelled:
      return "Cancelled";
    case ErrorCode::Io:
      return "Io";
    case ErrorCode::Corrupt:
      return "Corrupt";
  }
  return "Unknown";
}

}  // namespace quire

#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)

/// Returns early with the error of a Status or Result that failed.
#define QUIRE_TRY(expression)                                                   \
  do {                                                                          \
    if (auto quire_status = (expression); !quire_status.has_value()) {          \
      return ::tl::unexpected<::quire::Error>(std::move(quire_status).error()); \
    }                                                                           \
  } while (false)

/// QUIRE_TRY_ASSIGN(const auto bytes, layout.page_bytes(16)): declares the value, or returns early with the error.
#define QUIRE_TRY_ASSIGN(declaration, expression)                                                      \
  auto QUIRE_CONCAT(quire_result_, __LINE__) = (expression);                                           \
  if (!QUIRE_CONCAT(quire_result_, __LINE__).has_value()) {                                            \
    return ::tl::unexpected<::quire::Error>(std::move(QUIRE_CONCAT(quire_result_, __LINE__)).error()); \
  }                                                                                                    \
  declaration = *std::move(QUIRE_CONCAT(quire_result_, __LINE__))
