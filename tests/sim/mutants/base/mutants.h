// SPDX-License-Identifier: Apache-2.0
//
// is_mutated() for the copy of the library that mutants_test is linked with: the test says which rule is switched off.
//
// single-threaded: the test sets the variable before it opens a cache, which has no threads of its own.
#pragma once

#include "base/mutant.h"

namespace quire {

extern Mutant mutant_on;  // NOLINT(*-avoid-non-const-global-variables): the test's

[[nodiscard]] inline bool is_mutated(Mutant mutant) {
  return mutant_on == mutant;
}

}  // namespace quire
