// SPDX-License-Identifier: Apache-2.0
//
// What a seed draws of several groups: windows with and without sinks, rings, states, compressors' rows and entries,
// and rows that look ahead, in pools of their own, as small as the others.
#pragma once

#include <cstddef>
#include <string>

#include "sim_setup.h"

namespace quire::testing {

/// Makes it a setup of several groups, with what each has on disk where there is a disk tier.
void draw_groups(SimSetup& setup, Random& random);
/// Whether it has a store of its own on disk.
[[nodiscard]] bool has_store(const SimSetup& setup, std::size_t group_index);
[[nodiscard]] std::string to_string_of_groups(const SimSetup& setup);

}  // namespace quire::testing
