// SPDX-License-Identifier: Apache-2.0
//
// PagePattern: what an engine without a model writes. The bytes of a token in a layer depend on its key space, on every
// token up to it, and on the row they lie in, so that no other place of the pool has the same ones: whatever a cache
// mixes up, shifts or shares too widely is found by comparing.
//
//     history of token i   = next(history of token i - 1, token i), from root(key space)
//     row r of that token  : the words base, base + step, base + 2 step, … with base mixed from history and r
//
// single-threaded; the geometry is copied, the memory is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "quire/layout.h"
#include "quire/types.h"

namespace quire {

/// Where a token's bytes lie.
struct TokenPlace {
  PageId page;
  std::uint32_t token_index = 0;  ///< in the page
};

class PagePattern {
 public:
  /// `memory` has geometry.pool_bytes() bytes; its pages lie in one piece each.
  PagePattern(const PoolGeometry& geometry, std::byte* memory);
  /// The same for what lies every `stride_bytes` and has the inside of a page, such as a group's part of state slots.
  PagePattern(const PageGeometry& page, std::uint64_t stride_bytes, std::byte* memory);

  [[nodiscard]] static std::uint64_t root(std::string_view key_space);
  [[nodiscard]] static std::uint64_t next(std::uint64_t history, TokenId token);

  void write(const TokenPlace& place, std::uint64_t history);
  /// Compares all bytes of a token. Gives the offset in the page of the first that is wrong, if one is.
  [[nodiscard]] std::optional<std::uint64_t> first_wrong_byte(const TokenPlace& place, std::uint64_t history) const;

  /// Bytes of one token, in all rows.
  [[nodiscard]] std::uint64_t token_bytes() const { return token_bytes_; }
  /// Some byte of a token.
  [[nodiscard]] std::byte& byte_of(const TokenPlace& place);

 private:
  /// One row of a page: of one layer, component and head.
  struct Row {
    std::uint64_t key = 0;           // tells it from the others
    std::uint64_t offset = 0;        // of token 0, in the page
    std::uint64_t token_stride = 0;  // bytes
    std::uint64_t bytes = 0;
  };

  std::byte* memory_;
  std::uint64_t page_stride_;
  std::uint64_t token_bytes_ = 0;
  std::vector<Row> rows_;
};

}  // namespace quire
