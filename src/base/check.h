// SPDX-License-Identifier: Apache-2.0
//
// Checks for bugs in the program. QUIRE_CHECK is on in every build: a cache that has lost count of its pages must stop,
// not serve. QUIRE_DCHECK is for measured hot loops and is on in builds without NDEBUG.
#pragma once

namespace quire {

/// Prints where, what and why on standard error, and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* why);

}  // namespace quire

#define QUIRE_CHECK(condition, why)                               \
  do {                                                            \
    if (!(condition)) [[unlikely]] {                              \
      ::quire::check_failed(__FILE__, __LINE__, #condition, why); \
    }                                                             \
  } while (false)

#ifdef NDEBUG
#define QUIRE_DCHECK(condition, why) \
  do {                               \
  } while (false)
#else
#define QUIRE_DCHECK(condition, why) QUIRE_CHECK(condition, why)
#endif
