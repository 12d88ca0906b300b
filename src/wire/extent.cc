// SPDX-License-Identifier: Apache-2.0
#include "wire/extent.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

#include "base/check.h"

namespace quire {
namespace {

constexpr std::string_view kKeyVersion = ":1:";
constexpr std::size_t kKeySpaceDigits = 16;

std::uint64_t offset_of(std::size_t page) {
  return (page + 1) * kSegmentBlockBytes;
}

// Text of a key, piece by piece.
class KeyText {
 public:
  explicit KeyText(std::span<char, kRemoteKeyBytesMax> out) : out_(out) {}

  void add(std::string_view text) {
    QUIRE_CHECK(text.size() <= out_.size() - length_, "a key has room for its prefix");
    std::ranges::copy(text, out_.begin() + static_cast<std::ptrdiff_t>(length_));
    length_ += text.size();
  }
  void add_digits(std::span<const std::byte> bytes) {
    constexpr std::string_view kDigits = "0123456789abcdef";
    for (const std::byte byte : bytes) {
      const auto value = std::to_integer<std::size_t>(byte);
      add(kDigits.substr(value >> 4U, 1));
      add(kDigits.substr(value & 15U, 1));
    }
  }
  [[nodiscard]] std::string_view text() const { return {out_.data(), length_}; }

 private:
  std::span<char, kRemoteKeyBytesMax> out_;
  std::size_t length_ = 0;
};

void add_key_space(KeyText& text, std::string_view prefix, const PageName& key_space) {
  text.add(prefix);
  text.add(kKeyVersion);
  if (key_space.is_none()) return;
  text.add_digits(std::span(key_space.bytes).first(kKeySpaceDigits / 2));
  text.add(":");
}

tl::unexpected<Error> corrupt(std::size_t page, std::string_view why) {
  return fail(ErrorCode::Corrupt, "decoding an extent: page " + std::to_string(page) + ": " + std::string(why));
}

// What is wrong with a page that stands behind another one.
const char* wrong_behind(const RecordHeader& page, const RecordHeader& before) {
  if (page.key_space != before.key_space) return "it has another key space than the page before it";
  if (page.layout != before.layout) return "it has another layout than the page before it";
  if (page.payload_bytes != before.payload_bytes) return "it has another length than the page before it";
  if (page.parent != before.name) return "it does not follow the page before it";
  if (page.page_index != std::uint64_t{before.page_index} + 1) return "its index is not the next one";
  return nullptr;
}

}  // namespace

void encode_extent(std::span<const RecordHeader> pages, std::span<std::byte> out) {
  QUIRE_CHECK(out.size() == extent_headers_bytes(static_cast<std::uint32_t>(pages.size())),
              "the headers of an extent have their length");
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const char* const wrong = i == 0 ? nullptr : wrong_behind(pages[i], pages[i - 1]);
    QUIRE_CHECK(wrong == nullptr, wrong);
    RecordHeader page = pages[i];
    page.offset = offset_of(i);
    encode_record_header(page, kExtentSalt, out.subspan(i * kRecordHeaderBytes, kRecordHeaderBytes));
  }
}

Status decode_extent(std::span<const std::byte> headers, std::span<RecordHeader> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    const RecordPlace place{
        .salt = kExtentSalt, .offset = offset_of(i), .segment_bytes = std::numeric_limits<std::uint64_t>::max()};
    const std::size_t begin = std::min(headers.size(), i * kRecordHeaderBytes);
    const Result<RecordHeader> page = decode_record_header(headers.subspan(begin), place);
    if (!page) return corrupt(i, page.error().message);
    if (page->kind != RecordKind::Page) return corrupt(i, "it is no page");
    if (page->compression != Compression::None) return corrupt(i, "it is compressed");
    const char* const wrong = i == 0 ? nullptr : wrong_behind(*page, out[i - 1]);
    if (wrong != nullptr) return corrupt(i, wrong);
    out[i] = *page;
  }
  if (!out.empty() && out[0].page_index % out.size() != 0) return corrupt(0, "no extent begins at its index");
  return {};
}

std::string_view write_extent_key(const ExtentKey& key, std::span<char, kRemoteKeyBytesMax> out) {
  KeyText text(out);
  add_key_space(text, key.prefix, key.key_space);
  std::array<std::byte, 8> layout;
  for (std::size_t i = 0; i < layout.size(); ++i) layout[i] = static_cast<std::byte>(key.layout >> (56 - (8 * i)));
  text.add_digits(layout);
  text.add(":");
  std::array<char, 10> digits;
  std::size_t first = digits.size();
  std::uint32_t count = key.page_count;
  do {
    digits[--first] = static_cast<char>('0' + (count % 10));
    count /= 10;
  } while (count > 0);
  text.add({digits.data() + first, digits.size() - first});
  text.add(":");
  text.add_digits(key.name.bytes);
  return text.text();
}

std::string_view write_key_space_prefix(std::string_view prefix, const PageName& key_space,
                                        std::span<char, kRemoteKeyBytesMax> out) {
  KeyText text(out);
  add_key_space(text, prefix, key_space);
  return text.text();
}

}  // namespace quire
