// SPDX-License-Identifier: Apache-2.0
//
// What servers have of a remote tier, as text and as JSON. Lines end with '\n'.
#pragma once

#include <string>

#include "quire/redis_inspect.h"
#include "table.h"

namespace quire {

/// Totals, and a line per key space and layout.
[[nodiscard]] std::string remote_text(const RedisInspectReport& report, const TextPlace& place);
[[nodiscard]] std::string remote_json(const RedisInspectReport& report);
/// Every fault, and what was read.
[[nodiscard]] std::string remote_verify_text(const RedisInspectReport& report, bool is_repair, const TextPlace& place);
/// "12,000 values, 1.2 GiB read, 3 bad"
[[nodiscard]] std::string remote_progress_text(const RedisInspectProgress& progress, double elapsed_s);

}  // namespace quire
