// SPDX-License-Identifier: Apache-2.0
//
// Model tests on generated lists of operations, which shrink to a short one when they fail. The interpreters
// are those of testing/seeded_run.h. The seed is fixed, so that a test that passed passes again; RC_PARAMS in
// the environment chooses another one, or repeats a failure (RapidCheck prints how).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include <rapidcheck.h>

#include "testing/seeded_run.h"

namespace quire::testing {

/// How RapidCheck prints an operation.
inline void showValue(const Op& op, std::ostream& out) {
  out << '{' << to_string(op) << '}';
}

/// Applies lists of up to 300 operations to models from make_model(); false if one differed, after printing
/// the shortest list that does.
template <typename MakeModel>
[[nodiscard]] bool check_generated(MakeModel make_model) {
  setenv("RC_PARAMS", "seed=1", /*overwrite=*/0);
  return rc::check([&] {
    const auto number = rc::gen::inRange<std::uint32_t>(0, 1000);
    const auto op = rc::gen::construct<Op>(number, rc::gen::container<std::array<std::uint32_t, 4>>(number));
    const std::vector<Op> ops = *rc::gen::scale(3, rc::gen::container<std::vector<Op>>(op));
    auto model = make_model();
    for (const Op& each : ops) {
      const std::string difference = model.apply(each);
      if (!difference.empty()) RC_FAIL(difference);
    }
  });
}

}  // namespace quire::testing
