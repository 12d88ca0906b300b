// SPDX-License-Identifier: Apache-2.0
#include "terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace quire {

namespace {

constexpr std::size_t kPlainWidth = 96;
constexpr std::size_t kWidthMin = 72;
constexpr std::size_t kWidthMax = 120;

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;  // 0: not UTF-8
};

Character decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || bytes > text.size()) return {};
  char32_t code = first & (0x7FU >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0U) != 0x80) return {};
    code = (code << 6U) | (byte(i) & 0x3FU);
  }
  constexpr std::array<char32_t, 5> kSmallest = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kSmallest[bytes] || is_surrogate || code > 0x10FFFF) return {};
  return {code, bytes};
}

std::size_t columns_of(char32_t code) {
  const auto within = [code](char32_t first, char32_t last) { return code >= first && code <= last; };
  if (within(0x300, 0x36F) || within(0x200B, 0x200F) || within(0xFE00, 0xFE0F)) return 0;
  const bool is_wide = within(0x1100, 0x115F) || within(0x2E80, 0x303E) || within(0x3041, 0xA4CF) ||
                       within(0xAC00, 0xD7A3) || within(0xF900, 0xFAFF) || within(0xFE30, 0xFE6F) ||
                       within(0xFF00, 0xFF60) || within(0xFFE0, 0xFFE6) || within(0x1F300, 0x1F64F) ||
                       within(0x1F680, 0x1F6FF) || within(0x1F900, 0x1F9FF) || within(0x20000, 0x3FFFD);
  return is_wide ? 2 : 1;
}

std::string_view escape_of(Ink ink) {
  switch (ink) {
    case Ink::Plain:
      return "";
    case Ink::Dim:
      return "\033[2m";
    case Ink::Bold:
      return "\033[1m";
    case Ink::Red:
      return "\033[31m";
    case Ink::Green:
      return "\033[32m";
    case Ink::Yellow:
      return "\033[33m";
    case Ink::Cyan:
      return "\033[36m";
  }
  return "";
}

}  // namespace

Painter::Painter(std::FILE* stream) {
  const char* const no_color = std::getenv("NO_COLOR");
  const char* const terminal = std::getenv("TERM");
  is_on_ = isatty(fileno(stream)) == 1 && (no_color == nullptr || *no_color == '\0') && terminal != nullptr &&
           std::string_view(terminal) != "dumb";
}

std::string Painter::operator()(Ink ink, std::string_view text) const {
  if (!is_on_ || ink == Ink::Plain || text.empty()) return std::string(text);
  return std::string(escape_of(ink)).append(text).append("\033[0m");
}

std::size_t page_width(std::FILE* stream) {
  winsize size{};
  if (isatty(fileno(stream)) != 1 || ioctl(fileno(stream), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) {
    return kPlainWidth;
  }
  return std::clamp<std::size_t>(size.ws_col, kWidthMin, kWidthMax);
}

std::size_t columns_of(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Character character = decode(text);
    columns += columns_of(character.code);
    text.remove_prefix(std::max<std::size_t>(1, character.bytes));
  }
  return columns;
}

std::string cut_to(std::string_view text, std::size_t columns) {
  std::size_t used = 0;
  std::size_t fitting_bytes = 0;  // with room left for the ellipsis
  for (std::size_t at = 0; at < text.size();) {
    const Character character = decode(text.substr(at));
    used += columns_of(character.code);
    at += std::max<std::size_t>(1, character.bytes);
    if (used < columns) fitting_bytes = at;
    if (used > columns) return std::string(text.substr(0, fitting_bytes)) + "…";
  }
  return std::string(text);
}

std::string pad_right(std::string text, std::size_t columns) {
  const std::size_t used = columns_of(text);
  if (used < columns) text.append(columns - used, ' ');
  return text;
}

std::size_t first_unprintable(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Character character = decode(text.substr(at));
    const bool is_control = character.code < 0x20 || (character.code >= 0x7F && character.code < 0xA0);
    if (character.bytes == 0 || (is_control && character.code != '\t')) break;
    at += character.bytes;
  }
  return at;
}

std::string with_commas(std::uint64_t count) {
  const std::string digits = std::to_string(count);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string counted(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", with_commas(count), noun, count == 1 ? "" : "s");
}

}  // namespace quire
