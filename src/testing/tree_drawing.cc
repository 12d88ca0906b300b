// SPDX-License-Identifier: Apache-2.0
#include "testing/tree_drawing.h"

#include <algorithm>
#include <utility>

namespace quire::testing {
namespace {

constexpr std::size_t kListWidthMax = 30;

template <typename Range, typename ToNumber>
std::string list_text(const Range& items, ToNumber to_number) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(to_number(item));
  }
  return (text + "]").substr(0, kListWidthMax);
}

struct Line {
  const DrawnNode* node;
  std::size_t depth;
  bool is_last;
};

void draw_node(const Line& line, const std::string& indent, std::string& out) {
  if (line.depth > kDrawingDepthMax) return;
  const DrawnNode& node = *line.node;
  out += indent + (line.is_last ? "└── " : "├── ") + "uuid=" + std::to_string(node.number);
  if (!node.is_root) {
    out += ", tokens=" + list_text(node.tokens, [](TokenId token) { return token; });
    out += ", slots=" + list_text(node.pages, [](PageId page) { return page.value; });
  }
  out += ", ref=" + std::to_string(node.ref);
  if (node.children.empty()) {
    out += " [L]";
  } else if (node.is_root) {
    out += " [R]";
  }
  out += '\n';

  std::vector<const DrawnNode*> children;
  children.reserve(node.children.size());
  for (const DrawnNode& child : node.children) children.push_back(&child);
  std::ranges::sort(children, {}, [](const DrawnNode* child) { return child->tokens; });
  for (const DrawnNode* child : children) {
    draw_node({.node = child, .depth = line.depth + 1, .is_last = child == children.back()},
              indent + (line.is_last ? "    " : "│   "), out);
  }
}

}  // namespace

std::string draw_tree(const DrawnNode& root) {
  const std::string rule(80, '=');
  std::string out = "\n" + rule + "\nRADIX TREE STRUCTURE\n" + rule + "\nRoot Node:\n";
  draw_node({.node = &root, .depth = 0, .is_last = true}, "", out);
  return out;
}

std::string draw_prefix_tree(const PrefixTree& tree, RunId root) {
  DrawnNode drawn;
  tree.for_each_run(root, [&](const RunView& run) {
    if (run.depth > kDrawingDepthMax) return;
    DrawnNode node{.number = run.run.value,
                   .tokens = {run.tokens.begin(), run.tokens.end()},
                   .pages = {run.pages.begin(), run.pages.end()},
                   .ref = run.depth == 0 ? 1 : run.pin_count,
                   .is_root = run.depth == 0};
    if (run.depth == 0) {
      drawn = std::move(node);
      return;
    }
    // Parents come first, so the run's parent is the last one drawn on the level above.
    DrawnNode* parent = &drawn;
    for (std::uint32_t depth = 1; depth < run.depth; ++depth) parent = &parent->children.back();
    parent->children.push_back(std::move(node));
  });
  return draw_tree(drawn);
}

}  // namespace quire::testing
