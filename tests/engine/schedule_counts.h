// SPDX-License-Identifier: Apache-2.0
//
// What happened in random schedules.
#pragma once

#include <cstdint>
#include <map>
#include <ostream>
#include <string>

namespace quire::testing {

/// How often things happened, so that a test can tell that its schedules do what they are for.
struct ScheduleCounts {
  std::map<std::string, std::uint64_t> by_name;
  std::ostream* log = nullptr;  ///< when set, what happens is written to it
  void add(const std::string& name, std::uint64_t count = 1) {
    by_name[name] += count;
    if (log != nullptr && count > 0) *log << "  " << name << '\n';
  }
};

}  // namespace quire::testing
