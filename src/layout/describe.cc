// SPDX-License-Identifier: Apache-2.0
//
// A layout as a table. Layouts whose groups are all full have a short one; others also say what must be held to resume.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "layout/columns.h"
#include "layout/text.h"
#include "quire/layout.h"

namespace quire {
namespace {

// "k, v: 8 x 128 bf16": what one rank stores for a token in a layer. Neighbours of the same shape share one.
std::string entry_text(const PageGeometry& page) {
  std::string text;
  std::string last_shape;
  for (std::uint32_t index = 0; index < page.components().size(); ++index) {
    const Component& component = page.group().components[index];
    const std::uint32_t heads = page.heads_on_rank(index, 0).count;
    std::string shape = with_separators(component.dim) + " " + std::string(to_string(component.element));
    if (component.sharding == Sharding::Heads || heads > 1) shape.insert(0, with_separators(heads) + " x ");

    if (index > 0) text += shape == last_shape ? ", " : ": " + last_shape + "; ";
    text += component.name;
    last_shape = std::move(shape);
  }
  return text + ": " + last_shape;
}

std::string kind_text(const CacheGroup& group) {
  std::string text(to_string(group.kind));
  if (group.kind == GroupKind::Compressed) text += " " + with_separators(group.tokens_per_entry);
  if (group.kind == GroupKind::Window) {
    text += " " + with_separators(group.window_tokens);
    if (group.sink_tokens > 0) text += " + " + with_separators(group.sink_tokens);
    if (group.window_form == WindowForm::Ring) text += ", ring";
  }
  return text;
}

// Whole where it is, else with two decimals: entries of several tokens and padding make fractions.
std::string token_bytes_text(const PageGeometry& page) {
  const std::uint64_t tokens = page.options().page_tokens;
  const std::uint64_t whole = page.page_bytes() / tokens;
  const std::uint64_t rest = page.page_bytes() % tokens;
  const std::uint64_t hundredths = ((rest * 100) + (tokens / 2)) / tokens;
  if (hundredths % 100 == 0) return with_separators(whole + (hundredths / 100));
  return with_separators(whole) + (hundredths < 10 ? ".0" : ".") + std::to_string(hundredths);
}

std::string held_text(const CacheGroup& group) {
  switch (group.kind) {
    case GroupKind::Full:
      return "all tokens";
    case GroupKind::Compressed:
      return "all entries";
    case GroupKind::Window:
      if (group.window_tokens == 1) return "nothing";
      return "the last " + count_of(group.window_tokens - 1, "token") +
             (group.sink_tokens > 0 ? " and the first " + with_separators(group.sink_tokens) : "");
    case GroupKind::Snapshot:
      if (group.snapshot_entries == 0) return "nothing";
      if (group.slot_entries == 1) return "a snapshot";
      return "a snapshot of the last " + count_of(group.snapshot_entries, "token");
  }
  return "";
}

std::string resume_text(const CacheGroup& group) {
  std::string text = held_text(group);
  if (text == "nothing") {
    return boundary_multiple(group) == 1 ? text
                                         : text + ", at multiples of " + with_separators(boundary_multiple(group));
  }
  switch (group.retention.rule) {
    case RetentionRule::Dense:
      break;
    case RetentionRule::Every:
      text += ", kept every " + with_separators(group.retention.interval_tokens);
      break;
    case RetentionRule::Last:
      text += ", kept at the end";
      break;
    case RetentionRule::None:
      text += ", never kept";
      break;
  }
  if (group.replay.tokens > 0) text += ", or a replay of " + with_separators(group.replay.tokens);
  return text;
}

std::string hit_text(const ModelLayout& layout) {
  if (layout.hit_multiple_tokens() == 0) {
    const auto group = std::ranges::find_if_not(layout.groups(), is_reusable);
    return "no hits: what group '" + group->name + "' needs to resume is never kept";
  }
  const std::string positions = layout.hit_multiple_tokens() == 1
                                    ? "any token"
                                    : "multiples of " + with_separators(layout.hit_multiple_tokens()) + " tokens";
  const bool is_sparse = std::ranges::any_of(layout.groups(), [](const CacheGroup& group) {
    return group.retention.rule == RetentionRule::Every || group.retention.rule == RetentionRule::Last;
  });
  return "a hit can end at " + positions + (is_sparse ? " where what it needs was kept" : "");
}

}  // namespace

Result<std::string> ModelLayout::describe(const PageOptions& options) const {
  TextColumn name{.title = "group"};
  TextColumn kind{.title = "kind"};
  TextColumn layers{.title = "layers", .is_number = true};
  TextColumn entry{.title = "entry of a layer"};
  TextColumn token{.title = "bytes per token", .is_number = true};
  TextColumn page{.title = "bytes per page", .is_number = true};
  TextColumn slot{.title = "bytes per slot", .is_number = true};
  TextColumn resume{.title = "to resume, it needs"};
  for (const CacheGroup& group : groups_) {
    name.cells.push_back(group.name);
    kind.cells.push_back(kind_text(group));
    layers.cells.push_back(with_separators(group.layers.size()));
    token.cells.emplace_back("-");
    page.cells.emplace_back("-");
    slot.cells.emplace_back("-");
    resume.cells.push_back(resume_text(group));
    entry.cells.emplace_back();
    if (has_slot(group)) {
      QUIRE_TRY_ASSIGN(const PageGeometry geometry, PageGeometry::create_slot(group, options));
      slot.cells.back() = readable_bytes(geometry.page_bytes());
      entry.cells.back() = entry_text(geometry);
    }
    if (has_pages(group)) {
      QUIRE_TRY_ASSIGN(const PageGeometry geometry, PageGeometry::create(group, options));
      page.cells.back() = readable_bytes(geometry.page_bytes());
      entry.cells.back() = entry_text(geometry);
      if (!has_slot(group)) token.cells.back() = token_bytes_text(geometry);
    }
  }
  const bool is_all_full =
      std::ranges::all_of(groups_, [](const CacheGroup& group) { return group.kind == GroupKind::Full; });
  std::string title = name_ + ": " + count_of(layer_count_, "layer") + ", " + count_of(token_bytes_, "byte") +
                      (is_all_full ? " per token" : " per token of context") + "; pages of " +
                      count_of(options.page_tokens, "token");
  if (options.rank_count > 1) title += "; each of " + with_separators(options.rank_count) + " ranks has";
  title += "\n";
  if (is_all_full) return title + columns_text({name, kind, layers, entry, token, page});
  // The entry goes last: it may be long.
  std::vector<TextColumn> columns = {name, kind, layers, token, page};
  if (std::ranges::any_of(groups_, has_slot)) columns.push_back(slot);
  columns.push_back(resume);
  columns.push_back(entry);
  return title + columns_text(columns) + "  " + hit_text(*this) + "\n";
}

}  // namespace quire
