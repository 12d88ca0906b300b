// SPDX-License-Identifier: Apache-2.0
#include "tree_drawing.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire {

namespace {

// The columns right of the tree, two spaces before each. The last one takes what is left of the line.
constexpr std::size_t kAtColumns = 5;
constexpr std::size_t kPagesColumns = 13;
constexpr std::size_t kPinsColumns = 4;
constexpr std::size_t kSoftColumns = 4;
constexpr std::size_t kHoldersColumns = 18;
constexpr std::size_t kRightColumns = kAtColumns + kPagesColumns + kPinsColumns + kSoftColumns + kHoldersColumns + 10;
// Deeper runs are drawn at this level, with their depth in brackets.
constexpr std::uint32_t kLevelsMax = 7;

// The lines that connect a run with those above it.
class Branches {
 public:
  std::string next(std::uint32_t depth, std::uint32_t child_count) {
    children_left_.resize(depth + std::size_t{1});
    children_left_[depth] = child_count;
    if (depth == 0) return "";
    --children_left_[depth - 1];
    std::string lines;
    const std::uint32_t levels = std::min(depth, kLevelsMax);
    for (std::uint32_t level = 0; level + 1 < levels; ++level) lines += children_left_[level] > 0 ? "│  " : "   ";
    lines += children_left_[depth - 1] > 0 ? "├─ " : "└─ ";
    if (depth > kLevelsMax) lines += fmt::format("({}) ", depth);
    return lines;
  }

 private:
  std::vector<std::uint32_t> children_left_;  // by depth: children yet to come of the run on the way down
};

std::string pages_text(std::span<const PageId> pages) {
  const std::string count = std::to_string(pages.size());
  return fmt::format("{} ({})", count, page_list(pages, kPagesColumns - count.size() - 3));
}

std::string draw_run(const DrawnRun& run, const std::string& branches, const TreeScript& script, const Painter& paint,
                     std::size_t tree_columns) {
  const auto number_or_dash = [](std::uint32_t count) { return count == 0 ? "-" : std::to_string(count); };
  const bool is_idle = run.pin_count == 0 && run.soft_pin_count == 0;
  const Ink ink = run.pin_count > 0 ? Ink::Yellow : is_idle ? Ink::Dim : Ink::Cyan;
  const std::size_t room = tree_columns - columns_of(branches);
  const std::string holders = is_idle ? "idle" : fmt::format("{}", fmt::join(run.holders, ", "));
  return paint(Ink::Dim, branches) + pad_right(script.preview(run.tokens, room), room) +
         fmt::format("  {:>{}}  {}", run.first_token, kAtColumns, pad_right(pages_text(run.pages), kPagesColumns)) +
         paint(ink, fmt::format("  {:>{}}  {:>{}}  {}", number_or_dash(run.pin_count), kPinsColumns,
                                number_or_dash(run.soft_pin_count), kSoftColumns, cut_to(holders, kHoldersColumns)));
}

std::string draw_runs(std::span<const DrawnRun> runs, const TreeScript& script, const Painter& paint,
                      std::size_t width) {
  const std::size_t tree_columns = width - kRightColumns;
  std::string text =
      paint(Ink::Dim, fmt::format("{:<{}}  {:>{}}  {:<{}}  {:>{}}  {:>{}}  held by", "tokens", tree_columns, "at",
                                  kAtColumns, "pages", kPagesColumns, "pins", kPinsColumns, "soft", kSoftColumns)) +
      "\n";
  Branches branches;
  for (const DrawnRun& run : runs) {
    const std::string lines = branches.next(run.depth, run.child_count);
    if (run.depth == 0) {
      text += paint(Ink::Bold, cut_to(run.title, tree_columns)) + (run.child_count == 0 ? ": nothing cached" : "");
    } else {
      text += draw_run(run, lines, script, paint, tree_columns);
    }
    text += "\n";
  }
  return text;
}

std::string summary(const Stats& stats) {
  std::string text = fmt::format("{}: {} free", counted(stats.page_count, "page"), stats.free_pages);
  if (stats.open_pages > 0) text += fmt::format(", {} open", stats.open_pages);
  if (stats.private_pages > 0) text += fmt::format(", {} private", stats.private_pages);
  text += fmt::format(", {} cached in {}", stats.sealed_pages, counted(stats.run_count, "run"));
  if (stats.sealed_pages > 0) {
    text += fmt::format(" ({} pinned, {} evictable", stats.pinned_pages, stats.evictable_pages);
    if (stats.soft_pinned_pages > 0) text += fmt::format(", {} of these last", stats.soft_pinned_pages);
    text += ")";
  }
  return text;
}

}  // namespace

std::string page_list(std::span<const PageId> pages, std::size_t columns) {
  std::string text;
  for (std::size_t begin = 0; begin < pages.size();) {
    std::size_t end = begin + 1;
    while (end < pages.size() && pages[end].value == pages[end - 1].value + 1) ++end;
    if (end - begin == 2) --end;
    text += text.empty() ? "" : " ";
    text += end - begin == 1 ? std::to_string(pages[begin].value)
                             : fmt::format("{}..{}", pages[begin].value, pages[end - 1].value);
    if (text.size() > columns) break;
    begin = end;
  }
  return cut_to(text, columns);
}

std::string draw(const TreeDrawing& drawing, const TreeScript& script, const Painter& paint, std::size_t width) {
  std::string text = drawing.runs.empty() ? "nothing cached\n" : draw_runs(drawing.runs, script, paint, width);
  for (const DrawnSequence& sequence : drawing.sequences) {
    const std::string name = cut_to(sequence.name, width / 2);
    text += "  " + paint(Ink::Yellow, name) + ": " + cut_to(sequence.state, width - columns_of(name) - 4) + "\n";
  }
  return text + cut_to(summary(drawing.stats), width) + "\n";
}

}  // namespace quire
