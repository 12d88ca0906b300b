// SPDX-License-Identifier: Apache-2.0
//
// Files that a command writes at the end of its work: their place is known to be good before the work begins, and they
// cost nobody what was there before.
#pragma once

#include <string>
#include <string_view>

#include "quire/result.h"

namespace quire {

/// Whether a file can be written at `path`. Leaves everything as it was: no file is made, none is changed.
[[nodiscard]] Status check_writable(const std::string& path);
/// The same for a report, which replaces nothing but an earlier report or an empty file: a name that was mistyped
/// should not cost somebody a trace.
[[nodiscard]] Status check_report_path(const std::string& path);
/// A file that is there stays as it is until all of the new one is written, where its folder allows that.
[[nodiscard]] Status write_file(const std::string& path, std::string_view text);

}  // namespace quire
