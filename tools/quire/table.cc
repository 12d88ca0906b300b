// SPDX-License-Identifier: Apache-2.0
#include "table.h"

#include <algorithm>

namespace quire {

std::string Table::text(const TextPlace& place) const {
  std::size_t column_count = 1;
  for (const auto& line : lines_) column_count = std::max(column_count, line.size());
  std::vector<std::size_t> widths(column_count, 0);
  for (const auto& line : lines_) {
    for (std::size_t i = 0; line.size() > 1 && i < line.size(); ++i) {
      widths[i] = std::max(widths[i], columns_of(line[i].text));
    }
  }
  std::size_t all = widths[0];
  for (std::size_t i = 1; i < column_count; ++i) all += widths[i];
  const std::size_t gap = all + (2 * (column_count - 1)) <= place.width ? 2 : 1;
  std::string text;
  for (std::size_t begin = 1; begin < column_count || begin == 1;) {
    std::size_t end = begin;
    std::size_t used = widths[0];
    while (end < column_count && (end == begin || used + gap + widths[end] <= place.width)) {
      used += gap + widths[end++];
    }
    if (begin > 1) text += '\n';
    append_block(text, {begin, end, gap}, widths, place.paint);
    begin = std::max(end, begin + 1);
  }
  return text;
}

void Table::append_block(std::string& text, const Block& block, std::span<const std::size_t> widths,
                         const Painter& paint) const {
  for (const auto& line : lines_) {
    if (!line.empty()) {
      const bool has_more = std::min(block.end, line.size()) > block.begin;
      const std::string& name = line.front().text;
      text += paint(line.front().ink, has_more ? pad_right(name, widths[0]) : name);
    }
    for (std::size_t i = block.begin; i < std::min(block.end, line.size()); ++i) {
      const std::size_t padding = widths[i] - columns_of(line[i].text);
      const bool is_left = std::ranges::find(left_columns_, i) != left_columns_.end();
      text.append(block.gap + (is_left ? 0 : padding), ' ');
      text += paint(line[i].ink, line[i].text);
      if (is_left && i + 1 < std::min(block.end, line.size())) text.append(padding, ' ');
    }
    text += '\n';
  }
}

}  // namespace quire
