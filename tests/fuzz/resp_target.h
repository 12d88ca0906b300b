// SPDX-License-Identifier: Apache-2.0
//
// Foreign bytes for the reader of answers of remote/resp.h, and for what is made of them. The first byte of an input
// says in which pieces the rest comes. Whatever the bytes are: the same answers in whatever pieces, and no slot table
// or redirection that cannot be.
//
// thread-safe
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace quire::testing {

struct RespReport {
  std::size_t answer_count = 0;
  std::string wrong;  ///< empty, or which rule was broken
};
[[nodiscard]] RespReport try_resp_input(std::span<const std::byte> input);

}  // namespace quire::testing
