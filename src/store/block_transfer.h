// SPDX-License-Identifier: Apache-2.0
//
// BlockTransfer: one read or write of whole blocks on its way through a system that may move less than was asked for.
// After a part it goes on at the last whole block: what lies behind that is moved again, because O_DIRECT knows whole
// blocks only. It ends when all is moved, when the system says no, or when a step moved no block: then it came short.
//
// single-threaded
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "quire/result.h"
#include "store/file_calls.h"
#include "store/file_system.h"

namespace quire {

struct BlockTransfer {
  IoKind kind = IoKind::Read;
  int file = -1;
  std::uint64_t offset = 0;
  std::span<std::byte> buffer;
  std::uint64_t done_bytes = 0;
  int error_number = 0;

  [[nodiscard]] std::span<std::byte> rest() const { return buffer.subspan(done_bytes); }
  [[nodiscard]] std::uint64_t rest_offset() const { return offset + done_bytes; }
  /// Takes the system's answer to the rest: how many bytes, or a negative errno. Whether it goes on.
  [[nodiscard]] bool advance(ssize_t answer);
  /// All of it, with calls that block.
  void run(const FileCalls& calls);
  [[nodiscard]] Status status(const std::string& path) const;
};

/// The request keeps the promises of file_system.h about blocks and buffers.
void check_request(const IoRequest& request, std::span<const std::byte> memory);

}  // namespace quire
