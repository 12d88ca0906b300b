// SPDX-License-Identifier: Apache-2.0
#include "quire/key_space.h"

#include <cstdint>

namespace quire {

std::string KeySpace::canonical_form() const {
  std::string form;
  for (const std::string* const field : {&model, &revision, &adapter, &element, &rope, &salt}) {
    for (int byte = 0; byte < 8; ++byte) {
      form.push_back(static_cast<char>((std::uint64_t{field->size()} >> (8 * byte)) & 0xffU));
    }
    form += *field;
  }
  return form;
}

}  // namespace quire
