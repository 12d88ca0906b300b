// SPDX-License-Identifier: Apache-2.0
//
// KeySpace: everything besides tokens that KV depends on. Two requests share pages only if all of it is equal, field by
// field: nothing is ever joined into one string, so salt "a" with adapter "bc" is not salt "ab" with adapter "c".
#pragma once

#include <string>

namespace quire {

struct KeySpace {
  std::string model = {};     ///< which weights: a name or a path
  std::string revision = {};  ///< which version of them
  std::string adapter = {};   ///< LoRA or other adapter; empty for none
  std::string element = {};   ///< how KV is stored: "bf16", "fp8-e4m3", …
  std::string rope = {};      ///< form and scaling of the positions, where it varies
  std::string salt = {};      ///< keeps tenants apart that must not share, or learn that others sent the same prompt
  friend bool operator==(const KeySpace&, const KeySpace&) = default;

  /// One string per identity: each field behind its length, as eight little-endian bytes.
  [[nodiscard]] std::string canonical_form() const;
};

}  // namespace quire
