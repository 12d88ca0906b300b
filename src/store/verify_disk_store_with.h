// SPDX-License-Identifier: Apache-2.0
//
// verify_disk_store() on given calls of the system, for tests; quire/disk_store.h has the one on the system's own, and
// the contract.
//
// thread-safe: calls share nothing.
#pragma once

#include <span>
#include <string>

#include "quire/disk_store.h"
#include "quire/result.h"
#include "store/file_calls.h"

namespace quire {

[[nodiscard]] Result<VerifyReport> verify_disk_store_with(const FileCalls& calls,
                                                          std::span<const std::string> directories,
                                                          const VerifyOptions& options);

}  // namespace quire
