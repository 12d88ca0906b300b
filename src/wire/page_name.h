// SPDX-License-Identifier: Apache-2.0
//
// PageName: what a page is called outside the process. It is a SHA-256 hash over everything that its bytes depend on,
// so that equal names mean equal pages, between processes, restarts and machines:
//
//     key space   H("quire key space 1" | canonical form of the KeySpace)
//     root        H("quire root 1" | key space | page_tokens as u32)
//     page        H("quire page 1" | parent | page_tokens tokens as u32 each | count as u32 | extra keys)
//
// where a page's parent is the page before it, or the root, and its extra keys are those that overlap it, ascending,
// each as begin, end (u32 both) and item (32 bytes). Numbers are little-endian; the texts have no terminator. Where the
// bytes of a page lie, and which shard of a model it is, is not in its name. Names tell nothing of tokens to those who
// cannot guess them; a secret salt in the key space keeps others from guessing.
//
// immutable
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "quire/key_space.h"
#include "quire/types.h"

namespace quire {

/// 64 hexadecimal digits.
[[nodiscard]] std::string to_hex(const PageName& name);

[[nodiscard]] PageName key_space_name(const KeySpace& key_space);
/// The same by KeySpace::canonical_form().
[[nodiscard]] PageName key_space_name(std::string_view canonical_form);
[[nodiscard]] PageName root_name(const PageName& key_space, std::uint32_t page_tokens);

/// Consecutive pages whose names are wanted.
struct NamedPath {
  PageName parent;  ///< of the first page: the page before it, or the root
  std::uint32_t page_tokens = 0;
  std::uint32_t first_position = 0;      ///< of the first token: a multiple of page_tokens
  std::span<const TokenId> tokens;       ///< a multiple of page_tokens
  std::span<const ExtraKey> extra_keys;  ///< sorted, without overlaps; those that touch none of the pages do not count
};
/// Names the pages of a path, one each. `names` has a place for every page. Some hundred nanoseconds a page: something
/// for workers.
void name_pages(const NamedPath& path, std::span<PageName> names);

}  // namespace quire
