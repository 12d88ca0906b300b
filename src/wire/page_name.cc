// SPDX-License-Identifier: Apache-2.0
#include "wire/page_name.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/mutants.h"
#include "base/sha256.h"
#include "wire/little_endian.h"

namespace quire {
namespace {

constexpr std::string_view kKeySpaceTag = "quire key space 1";
constexpr std::string_view kRootTag = "quire root 1";
constexpr std::string_view kPageTag = "quire page 1";
constexpr std::size_t kExtraKeyBytes = 40;

std::byte* put_text(std::byte* target, std::string_view text) {
  std::memcpy(target, text.data(), text.size());
  return target + text.size();
}

std::byte* put_name(std::byte* target, const PageName& name) {
  std::memcpy(target, name.bytes.data(), name.bytes.size());
  return target + name.bytes.size();
}

// Two keys at one place would have no order that everybody agrees on.
void check_extra_keys(std::span<const ExtraKey> keys) {
  std::uint32_t end = 0;
  for (const ExtraKey& key : keys) {
    QUIRE_CHECK(key.begin >= end && key.end > key.begin, "extra keys are sorted and do not overlap");
    end = key.end;
  }
}

}  // namespace

std::string to_hex(const PageName& name) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * name.bytes.size());
  for (const std::byte byte : name.bytes) {
    text += kDigits[std::to_integer<std::size_t>(byte >> 4)];
    text += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

PageName key_space_name(const KeySpace& key_space) {
  return key_space_name(key_space.canonical_form());
}

PageName key_space_name(std::string_view canonical_form) {
  std::vector<std::byte> bytes(kKeySpaceTag.size() + canonical_form.size());
  put_text(put_text(bytes.data(), kKeySpaceTag), canonical_form);
  return {sha256(bytes)};
}

PageName root_name(const PageName& key_space, std::uint32_t page_tokens) {
  std::array<std::byte, kRootTag.size() + sizeof(PageName::bytes) + sizeof(page_tokens)> bytes;
  put_number(put_name(put_text(bytes.data(), kRootTag), key_space), page_tokens);
  return {sha256(bytes)};
}

void name_pages(const NamedPath& path, std::span<PageName> names) {
  const std::size_t page_tokens = path.page_tokens;
  QUIRE_CHECK(page_tokens > 0 && path.first_position % page_tokens == 0, "a path begins where a page does");
  QUIRE_CHECK(path.tokens.size() == names.size() * page_tokens, "a page has page_tokens tokens and one name");
  check_extra_keys(path.extra_keys);
  if (names.empty()) return;

  // A page's form is put together in one piece, because each call of OpenSSL costs as much as a few tokens. Only the
  // last part of it, the extra keys, has no fixed length.
  const std::size_t token_offset = kPageTag.size() + sizeof(PageName::bytes);
  const std::size_t count_offset = token_offset + (page_tokens * sizeof(std::uint32_t));
  std::array<std::byte, 2048> room;
  std::vector<std::byte> more_room;  // for large pages, and those with many keys
  PageName parent = path.parent;
  std::uint64_t begin = path.first_position;
  std::size_t first_key = 0;
  for (std::size_t page = 0; page < names.size(); ++page, begin += page_tokens) {
    const std::uint64_t end = begin + page_tokens;
    while (first_key < path.extra_keys.size() && path.extra_keys[first_key].end <= begin) ++first_key;
    std::size_t last_key = first_key;
    while (last_key < path.extra_keys.size() && path.extra_keys[last_key].begin < end) ++last_key;
    if (is_mutated(Mutant::NamesWithoutKeys)) last_key = first_key;
    const auto keys = path.extra_keys.subspan(first_key, last_key - first_key);

    const std::size_t bytes = count_offset + sizeof(std::uint32_t) + (keys.size() * kExtraKeyBytes);
    if (bytes > room.size()) more_room.resize(bytes);
    const std::span<std::byte> form = bytes > room.size() ? std::span(more_room) : std::span(room).first(bytes);
    put_name(put_text(form.data(), kPageTag), parent);
    std::byte* at = form.data() + token_offset;
    for (const TokenId token : path.tokens.subspan(page * page_tokens, page_tokens)) {
      put_number(at, static_cast<std::uint32_t>(token));
      at += sizeof(std::uint32_t);
    }
    put_number(at, static_cast<std::uint32_t>(keys.size()));
    at += sizeof(std::uint32_t);
    for (const ExtraKey& key : keys) {
      put_number(at, key.begin);
      put_number(at + 4, key.end);
      std::memcpy(at + 8, key.item.data(), key.item.size());
      at += kExtraKeyBytes;
    }
    parent = {sha256(form)};
    names[page] = parent;
  }
}

}  // namespace quire
