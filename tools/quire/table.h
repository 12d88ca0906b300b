// SPDX-License-Identifier: Apache-2.0
//
// Tables for a terminal or a file.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "terminal.h"

namespace quire {

/// Where the text goes.
struct TextPlace {
  Painter paint;
  std::size_t width = 0;
};

/// A cell of a table, and how it looks.
struct Cell {
  std::string text;
  Ink ink = Ink::Plain;
};

/// Cells in columns: the first one is left-aligned, the others right-aligned. A line without cells is empty, one with a
/// single cell is a title. When the columns do not fit side by side, they are continued below.
class Table {
 public:
  void add(std::vector<Cell> line) { lines_.push_back(std::move(line)); }
  /// The text of a column stands at its left, as in the first one.
  void align_left(std::size_t column) { left_columns_.push_back(column); }
  [[nodiscard]] std::string text(const TextPlace& place) const;

 private:
  struct Block {
    std::size_t begin;
    std::size_t end;
    std::size_t gap;
  };
  void append_block(std::string& text, const Block& block, std::span<const std::size_t> widths,
                    const Painter& paint) const;

  std::vector<std::vector<Cell>> lines_;
  std::vector<std::size_t> left_columns_;
};

}  // namespace quire
