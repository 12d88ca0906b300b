// SPDX-License-Identifier: Apache-2.0
//
// is_mutated(): whether a rule of the library is switched off. In the library that users get none is: the answer is a
// constant, and the compiler leaves nothing of the question. tests/sim/mutants has a header of the same name that reads
// a variable instead. One test binary is linked with a copy of the library that was compiled with that header.
//
// immutable
#pragma once

#include "base/mutant.h"

namespace quire {

[[nodiscard]] constexpr bool is_mutated(Mutant /*mutant*/) {
  return false;
}

}  // namespace quire
