// SPDX-License-Identifier: Apache-2.0
#include "layout/columns.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace quire {

std::string columns_text(std::vector<TextColumn> columns) {
  for (TextColumn& column : columns) column.cells.insert(column.cells.begin(), column.title);
  std::vector<std::string> lines(columns.front().cells.size());
  for (const TextColumn& column : columns) {
    const std::size_t width = std::ranges::max(column.cells, {}, &std::string::size).size();
    for (std::size_t row = 0; row < lines.size(); ++row) {
      const std::string padding(width - column.cells[row].size(), ' ');
      lines[row] += "  " + (column.is_number ? padding + column.cells[row] : column.cells[row] + padding);
    }
  }
  std::string text;
  for (std::string& line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace quire
