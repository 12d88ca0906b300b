// SPDX-License-Identifier: Apache-2.0
#include "base/system_error.h"

#include <cerrno>
#include <system_error>

namespace quire {

ErrorCode errno_code(int error_number) {
  switch (error_number) {
    case EINVAL:
      return ErrorCode::InvalidArgument;
    case ENOSYS:
    case EOPNOTSUPP:
      return ErrorCode::Unsupported;
    case ENOMEM:
    case EAGAIN:
    case ENOSPC:
    case EDQUOT:
    case EMFILE:
    case ENFILE:
      return ErrorCode::Unavailable;
    case ETIMEDOUT:
      return ErrorCode::TimedOut;
    case ECANCELED:
      return ErrorCode::Cancelled;
    default:
      return ErrorCode::Io;
  }
}

std::string errno_text(int error_number) {
  return std::generic_category().message(error_number);
}

}  // namespace quire
