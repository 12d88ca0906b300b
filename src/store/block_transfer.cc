// SPDX-License-Identifier: Apache-2.0
#include "store/block_transfer.h"

#include <algorithm>
#include <cerrno>

#include "base/check.h"
#include "base/system_error.h"

namespace quire {

bool BlockTransfer::advance(ssize_t answer) {
  if (answer == -EINTR) return true;
  if (answer < 0) {
    error_number = static_cast<int>(-answer);
    return false;
  }
  const std::uint64_t before = done_bytes;
  done_bytes = std::min<std::uint64_t>(before + static_cast<std::uint64_t>(answer), buffer.size());
  if (done_bytes == buffer.size()) return false;
  done_bytes = done_bytes / kIoBlockBytes * kIoBlockBytes;
  return done_bytes > before;
}

void BlockTransfer::run(const FileCalls& calls) {
  ssize_t answer = 0;
  do {
    const std::span<std::byte> left = rest();
    const auto where = static_cast<off_t>(rest_offset());
    answer = kind == IoKind::Read ? calls.read(file, left.data(), left.size(), where)
                                  : calls.write(file, left.data(), left.size(), where);
    if (answer < 0) answer = -errno;
  } while (advance(answer));
}

Status BlockTransfer::status(const std::string& path) const {
  if (error_number == 0 && done_bytes == buffer.size()) return {};
  const bool is_read = kind == IoKind::Read;
  const std::string what = std::string(is_read ? "reading " : "writing ") + std::to_string(buffer.size()) +
                           " bytes at " + std::to_string(offset) + " of " + path + ": ";
  if (error_number != 0) return fail(errno_code(error_number), what + errno_text(error_number));
  return fail(ErrorCode::Io, what + "only " + std::to_string(done_bytes) + (is_read ? " are there" : " were taken"));
}

void check_request(const IoRequest& request, std::span<const std::byte> memory) {
  QUIRE_CHECK(!request.buffer.empty() && request.buffer.data() >= memory.data() &&
                  request.buffer.data() + request.buffer.size() <= memory.data() + memory.size(),
              "the buffer is not the queue's");
  const auto begin = static_cast<std::uint64_t>(request.buffer.data() - memory.data());
  QUIRE_CHECK((request.offset | request.buffer.size() | begin) % kIoBlockBytes == 0,
              "a request that is not made of blocks");
}

}  // namespace quire
