// SPDX-License-Identifier: Apache-2.0
//
// Whether this build has a sanitizer, which makes everything several times slower: tests that are about size
// then use smaller ones. The macro is for what must not even be compiled in, such as an instantiation of a
// parameterised test.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QUIRE_TEST_IS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_TEST_IS_SANITIZED 1
#endif

namespace quire::testing {

#ifdef QUIRE_TEST_IS_SANITIZED
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace quire::testing
