// SPDX-License-Identifier: Apache-2.0
//
// Tables for people, in plain text.
#pragma once

#include <string>
#include <vector>

namespace quire {

struct TextColumn {
  std::string title;
  bool is_number = false;  ///< numbers stand right, words left
  std::vector<std::string> cells;
};

/// The titles, then the cells, row by row; columns two spaces apart, all with the same number of cells. Lines end with
/// '\n'.
[[nodiscard]] std::string columns_text(std::vector<TextColumn> columns);

}  // namespace quire
