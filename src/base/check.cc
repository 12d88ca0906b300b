// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace quire {

void check_failed(const char* file, int line, const char* condition, const char* why) {
  std::fprintf(stderr, "quire: bug: %s\n  check failed: %s (%s:%d)\n", why, condition, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace quire
