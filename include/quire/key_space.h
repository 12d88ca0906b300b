// SPDX-License-Identifier: Apache-2.0
//
// KeySpace: everything besides tokens that KV depends on. Two requests share pages only if all of it is equal, field by
// field: nothing is ever joined into one string, so salt "a" with adapter "bc" is not salt "ab" with adapter "c".
// PageName: what a page of one is called outside the process.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <string>

namespace quire {

struct KeySpace {
  std::string model = {};     ///< which weights: a name that all machines give them, no path; a remote tier needs it
  std::string revision = {};  ///< which version of them; another one when weights change in place
  std::string adapter = {};   ///< LoRA or other adapter; empty for none
  std::string element = {};   ///< how KV is stored: "bf16", "fp8-e4m3", …; also its scales, where they come at run time
  std::string rope = {};      ///< form and scaling of the positions, where it varies
  std::string salt = {};      ///< keeps tenants apart that must not share, or learn that others sent the same prompt
  friend bool operator==(const KeySpace&, const KeySpace&) = default;

  /// One string per identity: each field behind its length, as eight little-endian bytes.
  [[nodiscard]] std::string canonical_form() const;
};

/// What a page is called outside the process, between restarts and machines: a SHA-256 over everything that its bytes
/// depend on. docs/formats.md has its form.
struct PageName {
  std::array<std::byte, 32> bytes{};

  /// All zeros: no name.
  [[nodiscard]] constexpr bool is_none() const { return *this == PageName{}; }
  friend constexpr auto operator<=>(const PageName&, const PageName&) = default;
};

}  // namespace quire
