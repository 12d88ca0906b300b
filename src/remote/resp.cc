// SPDX-License-Identifier: Apache-2.0
#include "remote/resp.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

namespace quire {
namespace {

// Of answers that are collected; values of keys are not.
constexpr std::size_t kCollectedBytesMax = std::size_t{64} << 20U;
constexpr std::size_t kDepthMax = 8;
constexpr std::int64_t kPartsMax = std::int64_t{1} << 24U;

std::optional<std::int64_t> parse_integer(std::string_view text) {
  // from_chars() would take everything but the plus sign that the protocol allows.
  if (text.starts_with('+')) text.remove_prefix(1);
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

bool read_count(std::string_view rest, std::int64_t limit, RespHead& head) {
  const std::optional<std::int64_t> number = parse_integer(rest);
  if (!number || *number < -1 || *number > limit) return false;
  head.number = *number;
  return true;
}

// A head without its line's end.
bool parse_head(std::string_view line, RespHead& head) {
  if (line.empty()) return false;
  const std::string_view rest = line.substr(1);
  head = {};
  head.text = rest;
  switch (line.front()) {
    case '+':
      head.kind = RespKind::Text;
      return true;
    case '-':
      head.kind = RespKind::Error;
      return true;
    case ':': {
      const std::optional<std::int64_t> number = parse_integer(rest);
      head.kind = RespKind::Integer;
      head.number = number.value_or(0);
      return number.has_value();
    }
    case '$':
      head.kind = RespKind::Bulk;
      if (!read_count(rest, kRespBulkBytesMax, head)) return false;
      break;
    case '=':
    case '!':
      head.kind = RespKind::Bulk;
      head.is_error_text = line.front() == '!';
      if (!read_count(rest, kRespBulkBytesMax, head) || head.number < 0) return false;
      break;
    case '*':
    case '~':
      head.kind = RespKind::Array;
      if (!read_count(rest, kPartsMax, head)) return false;
      break;
    case '>':
      head.kind = RespKind::Push;
      return read_count(rest, kPartsMax, head) && head.number > 0;
    case '%':
    case '|':
      head.kind = line.front() == '%' ? RespKind::Map : RespKind::Attribute;
      if (!read_count(rest, kPartsMax / 2, head) || head.number < 0) return false;
      head.number *= 2;
      return true;
    case '_':
      head.kind = RespKind::Null;
      return rest.empty();
    case '#':
      head.kind = RespKind::Boolean;
      head.number = rest == "t" ? 1 : 0;
      return rest == "t" || rest == "f";
    case ',':
    case '(':
      head.kind = RespKind::Number;
      return !rest.empty();
    default:
      return false;
  }
  // Version 2 has its nulls as lengths of -1.
  if (head.number < 0) head.kind = RespKind::Null;
  return true;
}

void append_number_line(std::string& text, char kind, std::size_t number) {
  std::array<char, 24> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number).ptr;
  text += kind;
  text.append(buffer.data(), end);
  text += "\r\n";
}

}  // namespace

void append_argument_count(std::string& text, std::size_t count) {
  append_number_line(text, '*', count);
}

void append_argument_bytes(std::string& text, std::size_t bytes) {
  append_number_line(text, '$', bytes);
}

void append_argument(std::string& text, std::string_view argument) {
  append_argument_bytes(text, argument.size());
  text += argument;
  text += "\r\n";
}

void append_command(std::string& text, std::span<const std::string_view> arguments) {
  append_argument_count(text, arguments.size());
  for (const std::string_view argument : arguments) append_argument(text, argument);
}

std::string redis_pattern(std::string_view prefix) {
  std::string pattern;
  for (const char c : prefix) {
    if (std::string_view("*?[]\\^-").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern + '*';
}

RespTaken take_resp_head(std::string_view& input, RespHead& head) {
  const std::size_t end = input.substr(0, kRespLineBytesMax).find('\n');
  if (end == std::string_view::npos) {
    // What cannot become a head is told at once, so that a foreign protocol is not waited for.
    const bool may_become =
        input.empty() || std::string_view("+-:$=!*~>%|_#,(").find(input[0]) != std::string_view::npos;
    return may_become && input.size() < kRespLineBytesMax ? RespTaken::NeedsMore : RespTaken::Nonsense;
  }
  if (end == 0 || input[end - 1] != '\r') return RespTaken::Nonsense;
  if (!parse_head(input.substr(0, end - 1), head)) return RespTaken::Nonsense;
  input.remove_prefix(end + 1);
  return RespTaken::Taken;
}

void RespCollector::reset() {
  open_.clear();
  body_left_ = 0;
  bytes_ = 0;
}

bool RespCollector::close(RespValue value) {
  while (!open_.empty()) {
    Open& outer = open_.back();
    outer.value.parts.push_back(std::move(value));
    if (--outer.parts_left > 0) return false;
    value = std::move(outer.value);
    open_.pop_back();
  }
  value_ = std::move(value);
  bytes_ = 0;
  return true;
}

RespTaken RespCollector::take_body(std::string_view& input) {
  const std::size_t taken = std::min<std::size_t>(input.size(), static_cast<std::size_t>(body_left_));
  body_.text.append(input.substr(0, taken));
  input.remove_prefix(taken);
  body_left_ -= static_cast<std::int64_t>(taken);
  if (body_left_ > 0) return RespTaken::NeedsMore;
  if (!body_.text.ends_with("\r\n")) return RespTaken::Nonsense;
  body_.text.resize(body_.text.size() - 2);
  return close(std::exchange(body_, {})) ? RespTaken::Taken : RespTaken::NeedsMore;
}

RespTaken RespCollector::take(std::string_view& input) {
  while (true) {
    if (body_left_ > 0) {
      const RespTaken taken = take_body(input);
      if (taken != RespTaken::NeedsMore || body_left_ > 0) return taken;
      continue;
    }
    RespHead head;
    if (const RespTaken taken = take_resp_head(input, head); taken != RespTaken::Taken) return taken;
    bytes_ += sizeof(RespValue) + head.text.size();
    if (head.kind == RespKind::Bulk) bytes_ += static_cast<std::size_t>(head.number);
    if (bytes_ > kCollectedBytesMax) return RespTaken::Nonsense;
    RespValue value{.kind = head.is_error_text ? RespKind::Error : head.kind, .number = head.number};
    switch (head.kind) {
      case RespKind::Bulk:
        body_ = std::move(value);
        body_left_ = head.number + 2;
        continue;
      case RespKind::Array:
      case RespKind::Map:
      case RespKind::Push:
      case RespKind::Attribute:
        if (head.number > 0) {
          if (open_.size() == kDepthMax) return RespTaken::Nonsense;
          open_.push_back({.value = std::move(value), .parts_left = head.number});
          continue;
        }
        break;
      case RespKind::Text:
      case RespKind::Error:
      case RespKind::Number:
        value.text = head.text;
        break;
      default:
        break;
    }
    if (close(std::move(value))) return RespTaken::Taken;
  }
}

std::string printable(std::string_view text) {
  std::string out(text.substr(0, 200));
  std::ranges::replace_if(out, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (out.size() < text.size()) out += "…";
  return out;
}

}  // namespace quire
