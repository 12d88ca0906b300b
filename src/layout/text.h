// SPDX-License-Identifier: Apache-2.0
//
// Numbers and names as people read them, for messages and tables; and messages of failed calls.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire {

/// 1234567 as "1,234,567".
[[nodiscard]] std::string with_separators(std::uint64_t number);

/// In the largest binary unit that keeps the number at 1 or above, with two decimals unless it is exact: "2
/// MiB", "1.07 MiB", "656 B".
[[nodiscard]] std::string readable_bytes(std::uint64_t bytes);

/// The name in single quotes.
[[nodiscard]] std::string quoted(std::string_view name);

/// "1 page", "2,000 pages".
[[nodiscard]] std::string count_of(std::uint64_t count, std::string_view noun);

// Messages, made of pieces: text as it is, and counts with separators. A number that is a name, an index or a value of
// an enumeration has none: plain().

[[nodiscard]] std::string plain(std::integral auto number) {
  return std::to_string(number);
}

namespace internal {

inline void append(std::string& message, std::string_view piece) {
  message += piece;
}
template <std::unsigned_integral Number>
  requires(!std::same_as<Number, bool>)
void append(std::string& message, Number count) {
  message += with_separators(count);
}

}  // namespace internal

template <typename... Pieces>
[[nodiscard]] std::string message_of(const Pieces&... pieces) {
  std::string message;
  (internal::append(message, pieces), ...);
  return message;
}

/// invalid("the prompt has ", token_count, " tokens; context_tokens_max is ", limit): a failed Result with that
/// message.
template <typename... Pieces>
[[nodiscard]] tl::unexpected<Error> invalid(const Pieces&... pieces) {
  return fail(ErrorCode::InvalidArgument, message_of(pieces...));
}
template <typename... Pieces>
[[nodiscard]] tl::unexpected<Error> unsupported(const Pieces&... pieces) {
  return fail(ErrorCode::Unsupported, message_of(pieces...));
}
template <typename... Pieces>
[[nodiscard]] tl::unexpected<Error> unavailable(const Pieces&... pieces) {
  return fail(ErrorCode::Unavailable, message_of(pieces...));
}

struct Factor {
  std::uint64_t value;
  std::string_view unit;
};

/// The product, or an error that shows the factors, so that the reader sees which one is absurd.
[[nodiscard]] Result<std::uint64_t> product(const std::string& what, std::initializer_list<Factor> factors);

}  // namespace quire
