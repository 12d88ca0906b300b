// SPDX-License-Identifier: Apache-2.0
#include "page_pattern.h"

#include <cstring>

namespace quire {

namespace {

using Word = std::uint64_t;

constexpr Word kStep = 0x9E3779B97F4A7C15;  // odd: no two words of a row are equal

Word mix(Word x) {
  x += kStep;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EB;
  return x ^ (x >> 31U);
}

void fill(std::byte* row, std::uint64_t bytes, Word word) {
  std::uint64_t at = 0;
  for (; at + sizeof(Word) <= bytes; at += sizeof(Word), word += kStep) std::memcpy(row + at, &word, sizeof(Word));
  if (at < bytes) std::memcpy(row + at, &word, bytes - at);
}

// Without a branch per word: damage is rare, and looked for only when there is some.
bool is_filled(const std::byte* row, std::uint64_t bytes, Word word) {
  Word difference = 0;
  std::uint64_t at = 0;
  for (; at + sizeof(Word) <= bytes; at += sizeof(Word), word += kStep) {
    Word found = 0;
    std::memcpy(&found, row + at, sizeof(Word));
    difference |= found ^ word;
  }
  return difference == 0 && (at == bytes || std::memcmp(row + at, &word, bytes - at) == 0);
}

std::uint64_t first_difference(const std::byte* row, std::uint64_t bytes, Word word) {
  std::vector<std::byte> expected(bytes);
  fill(expected.data(), bytes, word);
  std::uint64_t at = 0;
  while (row[at] == expected[at]) ++at;
  return at;
}

}  // namespace

PagePattern::PagePattern(const PoolGeometry& geometry, std::byte* memory)
    : PagePattern(geometry.page(), geometry.strides().page, memory) {}

PagePattern::PagePattern(const PageGeometry& page, std::uint64_t stride_bytes, std::byte* memory)
    : memory_(memory), page_stride_(stride_bytes) {
  for (std::uint32_t layer = 0; layer < page.layer_count(); ++layer) {
    for (std::uint32_t component = 0; component < page.components().size(); ++component) {
      const ComponentStrides& strides = page.components()[component];
      for (std::uint32_t head = 0; head < page.heads_on_rank(component, 0).count; ++head) {
        rows_.push_back({.key = mix(rows_.size()),
                         .offset = (layer * page.layer_bytes()) + strides.offset + (head * strides.head),
                         .token_stride = strides.token,
                         .bytes = strides.head_bytes});
        token_bytes_ += strides.head_bytes;
      }
    }
  }
}

std::uint64_t PagePattern::root(std::string_view key_space) {
  Word history = mix(key_space.size());
  for (const char c : key_space) history = mix(history ^ static_cast<unsigned char>(c));
  return history;
}

std::uint64_t PagePattern::next(std::uint64_t history, TokenId token) {
  return mix(history ^ static_cast<Word>(token));
}

void PagePattern::write(const TokenPlace& place, std::uint64_t history) {
  std::byte* const page = memory_ + (place.page.value * page_stride_);
  for (const Row& row : rows_) {
    fill(page + row.offset + (place.token_index * row.token_stride), row.bytes, mix(history ^ row.key));
  }
}

std::optional<std::uint64_t> PagePattern::first_wrong_byte(const TokenPlace& place, std::uint64_t history) const {
  const std::byte* const page = memory_ + (place.page.value * page_stride_);
  std::optional<std::uint64_t> first;
  for (const Row& row : rows_) {
    const std::uint64_t offset = row.offset + (place.token_index * row.token_stride);
    const Word word = mix(history ^ row.key);
    if (is_filled(page + offset, row.bytes, word)) continue;
    const std::uint64_t wrong = offset + first_difference(page + offset, row.bytes, word);
    if (!first || wrong < *first) first = wrong;
  }
  return first;
}

std::byte& PagePattern::byte_of(const TokenPlace& place) {
  const Row& row = rows_[rows_.size() / 2];
  const std::uint64_t offset = row.offset + (place.token_index * row.token_stride) + (row.bytes / 2);
  return memory_[(place.page.value * page_stride_) + offset];
}

}  // namespace quire
