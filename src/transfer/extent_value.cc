// SPDX-License-Identifier: Apache-2.0
#include "transfer/extent_value.h"

#include <algorithm>
#include <charconv>
#include <vector>

#include "store/record_payload.h"
#include "wire/extent.h"

namespace quire {

namespace {

constexpr std::size_t kKeySpaceDigits = 16;
constexpr std::size_t kLayoutDigits = 16;
constexpr std::size_t kNameDigits = 64;

bool is_digits(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

/// The part of so many digits in front, and a colon behind it unless it is the last one.
std::optional<std::string_view> take_digits(std::string_view& rest, std::size_t count, bool is_last) {
  if (rest.size() < count + (is_last ? 0 : 1) || !is_digits(rest.substr(0, count))) return std::nullopt;
  if (is_last ? rest.size() != count : rest[count] != ':') return std::nullopt;
  const std::string_view digits = rest.substr(0, count);
  rest.remove_prefix(is_last ? count : count + 1);
  return digits;
}

}  // namespace

std::optional<ExtentKeyText> parse_extent_key(std::string_view key, std::string_view prefix) {
  std::array<char, kRemoteKeyBytesMax> room;
  if (prefix.size() > kExtentPrefixBytesMax) return std::nullopt;
  const std::string_view begin = write_key_space_prefix(prefix, PageName{}, room);
  if (!key.starts_with(begin)) return std::nullopt;
  key.remove_prefix(begin.size());
  ExtentKeyText parts;
  const auto key_space = take_digits(key, kKeySpaceDigits, false);
  if (!key_space) return std::nullopt;
  const auto layout = take_digits(key, kLayoutDigits, false);
  if (!layout) return std::nullopt;
  std::from_chars(layout->data(), layout->data() + layout->size(), parts.layout, 16);
  const char* const count_end = key.data() + key.size();
  const auto [end, error] = std::from_chars(key.data(), count_end, parts.page_count);
  const bool is_count = error == std::errc{} && end != count_end && *end == ':' && key.front() != '0';
  if (!is_count || parts.page_count > kExtentPagesMax) return std::nullopt;
  key.remove_prefix(static_cast<std::size_t>(end - key.data()) + 1);
  const auto name = take_digits(key, kNameDigits, true);
  if (!name) return std::nullopt;
  parts.key_space = *key_space;
  parts.name = *name;
  return parts;
}

std::string extent_fault(const ExtentKeyText& key, std::span<const std::byte> value) {
  const std::uint64_t headers_bytes = extent_headers_bytes(key.page_count);
  if (value.size() <= headers_bytes) return "it is shorter than its headers";
  std::vector<RecordHeader> pages(key.page_count);
  if (const Status status = decode_extent(value.first(headers_bytes), pages); !status) return status.error().message;
  const RecordHeader& last = pages.back();
  if (to_hex(last.name) != key.name) return "it has another name than its key";
  if (to_hex(last.key_space).substr(0, kKeySpaceDigits) != key.key_space)
    return "it has another key space than its key";
  if (last.layout != key.layout) return "it has another layout than its key";
  if (value.size() != extent_bytes(key.page_count, last.payload_bytes))
    return "it has another length than its headers say";
  std::span<const std::byte> payloads = value.subspan(headers_bytes);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const bool is_right = page_checksum(payloads.first(last.payload_bytes)) == pages[i].checksum;
    if (!is_right) return "its page " + std::to_string(i) + " does not have its checksum";
    payloads = payloads.subspan(last.payload_bytes);
  }
  return "";
}

}  // namespace quire
