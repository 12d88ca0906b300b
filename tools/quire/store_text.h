// SPDX-License-Identifier: Apache-2.0
//
// What the files of a disk tier have, and what is wrong with them, as text for people and as JSON for programs. Lines
// end with '\n'.
#pragma once

#include <string>

#include "quire/disk_store.h"
#include "quire/types.h"
#include "table.h"

namespace quire {

/// Tables of what a store has; long lists are cut, with the rest added up.
[[nodiscard]] std::string store_text(const DiskStoreReport& report, TimeNs now_ns, const TextPlace& place);
/// One line of JSON per member and per element of a list. Members are those of DiskStoreReport.
[[nodiscard]] std::string store_json(const DiskStoreReport& report);

/// What a verification found: its faults as a table, and a line that sums up.
[[nodiscard]] std::string verify_text(const VerifyReport& report, const TextPlace& place);
/// "38 % [#########...............] 1.2 GiB of 3.2 GiB, 900 MiB/s, 2 s left"
[[nodiscard]] std::string verify_progress_text(const VerifyProgress& progress, double elapsed_s);

/// "45 s", "12 min", "7 h", "31 days"
[[nodiscard]] std::string age_text(TimeNs age_ns);
/// Text of foreign origin: what cannot be printed becomes \xNN.
[[nodiscard]] std::string escaped(std::string_view text);

}  // namespace quire
