// SPDX-License-Identifier: Apache-2.0
//
// Draws a prefix tree as text, from plain data: one line per run, with its pages and who holds them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/stats.h"
#include "quire/types.h"
#include "terminal.h"
#include "tree_script.h"

namespace quire {

struct DrawnRun {
  std::uint32_t depth = 0;  ///< 0: the root of a key space, of which only the title is drawn
  std::uint32_t child_count = 0;
  std::string title;
  std::vector<TokenId> tokens;
  std::uint32_t first_token = 0;  ///< position in the path
  std::vector<PageId> pages;
  std::uint32_t pin_count = 0;
  std::uint32_t soft_pin_count = 0;
  std::vector<std::string> holders;
};

struct DrawnSequence {
  std::string name;
  std::string state;
};

struct TreeDrawing {
  std::vector<DrawnRun> runs;  ///< parents first
  std::vector<DrawnSequence> sequences;
  Stats stats;
};

/// Lines of at most `width` columns, each with its '\n'.
[[nodiscard]] std::string draw(const TreeDrawing& drawing, const TreeScript& script, const Painter& paint,
                               std::size_t width);

/// "1..4 9", cut to fit.
[[nodiscard]] std::string page_list(std::span<const PageId> pages, std::size_t columns);

}  // namespace quire
