// SPDX-License-Identifier: Apache-2.0
//
// What commands need to know about the place they print to: whether it takes colours, how wide it is, and how
// many columns a text fills there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace quire {

enum class Ink : std::uint8_t { Plain, Dim, Bold, Red, Green, Yellow, Cyan };

/// Paints text for one stream, or leaves it as it is where nobody would see a colour. immutable.
class Painter {
 public:
  /// Colours on a terminal, unless NO_COLOR is set or the terminal is a dumb one.
  explicit Painter(std::FILE* stream);
  [[nodiscard]] std::string operator()(Ink ink, std::string_view text) const;

 private:
  bool is_on_ = false;
};

/// Columns to fill: the terminal's width within reason, or 96 where there is no terminal.
[[nodiscard]] std::size_t page_width(std::FILE* stream);

/// Columns that UTF-8 text fills: two for wide characters, none for combining ones.
[[nodiscard]] std::size_t columns_of(std::string_view text);
/// As many leading characters as fit into `columns`, with an ellipsis where something was left out.
[[nodiscard]] std::string cut_to(std::string_view text, std::size_t columns);
/// Appends spaces up to `columns`.
[[nodiscard]] std::string pad_right(std::string text, std::size_t columns);

/// Where text stops being printable UTF-8 (control characters but tabs are not), or its size.
[[nodiscard]] std::size_t first_unprintable(std::string_view text);

/// "1,024"
[[nodiscard]] std::string with_commas(std::uint64_t count);
/// "1 page", "2 pages", "1,024 pages"
[[nodiscard]] std::string counted(std::uint64_t count, std::string_view noun);

}  // namespace quire
