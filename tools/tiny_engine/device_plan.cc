// SPDX-License-Identifier: Apache-2.0
#include "device_plan.h"

#include <cstring>
#include <functional>
#include <utility>

namespace tiny_engine {
namespace {

using quire::ErrorCode;
using quire::fail;
using quire::Result;

constexpr std::uintptr_t kAlignment = 16;

/// Turns addresses into offsets, and remembers the first that is none.
class Locator {
 public:
  explicit Locator(std::span<const std::byte> staging) : staging_(staging) {}

  template <typename Element>
  [[nodiscard]] StagedArray<Element> locate(const char* name, std::span<const Element> array) {
    if (array.empty()) return {};
    const auto* first = reinterpret_cast<const std::byte*>(array.data());
    const bool is_inside = !staging_.empty() && std::less_equal<>{}(staging_.data(), first) &&
                           std::less_equal<>{}(first + array.size_bytes(), staging_.data() + staging_.size());
    if (!is_inside) {
      if (problem_.empty()) problem_ = std::string(name) + " lies outside the staging buffer";
      return {};
    }
    const auto offset = static_cast<std::uint64_t>(first - staging_.data());
    if (offset % kAlignment != 0 && problem_.empty()) problem_ = std::string(name) + " is not 16-byte aligned";
    return {.offset = offset, .count = array.size()};
  }

  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  std::span<const std::byte> staging_;
  std::string problem_;
};

StagedLevel locate_level(Locator& locator, const quire::CascadeLevel& level) {
  return {.query_indptr = locator.locate("levels.query_indptr", level.query_indptr),
          .page_indptr = locator.locate("levels.page_indptr", level.page_indptr),
          .rows = locator.locate("levels.rows", level.rows),
          .first_columns = locator.locate("levels.first_columns", level.first_columns),
          .last_page_tokens = locator.locate("levels.last_page_tokens", level.last_page_tokens),
          .window_offsets = locator.locate("levels.window_offsets", level.window_offsets),
          .sink_tokens = locator.locate("levels.sink_tokens", level.sink_tokens),
          .first_keys = locator.locate("levels.first_keys", level.first_keys)};
}

StagedLayerWindow locate_layer_window(Locator& locator, const quire::LayerWindowPlan& window) {
  return {.window_tokens = window.window_tokens,
          .page_indptr = locator.locate("layer_windows.page_indptr", window.page_indptr),
          .rows = locator.locate("layer_windows.rows", window.rows),
          .first_columns = locator.locate("layer_windows.first_columns", window.first_columns),
          .first_keys = locator.locate("layer_windows.first_keys", window.first_keys),
          .key_offsets = locator.locate("layer_windows.key_offsets", window.key_offsets)};
}

StagedGroup locate_group(Locator& locator, const quire::GroupPlan& group) {
  StagedGroup copy;
  copy.append_slots = locator.locate("append_slots", group.append_slots);
  for (const quire::CascadeLevel& level : group.levels) copy.levels.push_back(locate_level(locator, level));
  for (const quire::LayerWindowPlan& window : group.layer_windows) {
    copy.layer_windows.push_back(locate_layer_window(locator, window));
  }
  copy.deltas = locator.locate("deltas", group.deltas);
  copy.page_indices = locator.locate("page_indices", group.page_indices);
  copy.block_table = locator.locate("block_table", group.block_table);
  copy.moves = locator.locate("moves", group.moves);
  copy.move_indptr = locator.locate("move_indptr", group.move_indptr);
  copy.copies = locator.locate("copies", group.copies);
  copy.remote_slots = locator.locate("remote_slots", group.remote_slots);
  copy.receivers = locator.locate("receivers", group.receivers);
  copy.sends = locator.locate("sends", group.sends);
  return copy;
}

}  // namespace

Result<DevicePlan> DevicePlan::upload(const quire::AttentionPlan& plan) {
  Locator locator(plan.staging);
  if (reinterpret_cast<std::uintptr_t>(plan.staging.data()) % kAlignment != 0) {
    return fail(ErrorCode::InvalidArgument, "the staging buffer is not 16-byte aligned");
  }
  DevicePlan copy;
  copy.page_tables = plan.page_tables;
  copy.shape = plan.shape;
  copy.query_positions = locator.locate("query_positions", plan.query_positions);
  copy.query_indptr = locator.locate("query_indptr", plan.query_indptr);
  copy.seq_lens = locator.locate("seq_lens", plan.seq_lens);
  copy.stored_lens = locator.locate("stored_lens", plan.stored_lens);
  copy.visible_tokens = locator.locate("visible_tokens", plan.visible_tokens);
  copy.context_lens = locator.locate("context_lens", plan.context_lens);
  copy.state_slots = locator.locate("state_slots", plan.state_slots);
  copy.tree_indptr = locator.locate("tree_indptr", plan.tree_indptr);
  copy.tree_nodes = locator.locate("tree_nodes", plan.tree_nodes);
  for (const quire::GroupPlan& group : plan.groups) copy.groups.push_back(locate_group(locator, group));
  copy.state_copies = locator.locate("state_copies", plan.state_copies);
  copy.state_saves = locator.locate("state_saves", plan.state_saves);
  if (!locator.problem().empty()) return fail(ErrorCode::InvalidArgument, locator.problem());
  copy.buffer_.resize(plan.staging.size());
  if (!plan.staging.empty()) std::memcpy(copy.buffer_.data(), plan.staging.data(), plan.staging.size());
  return copy;
}

namespace {

/// Lists arrays number by number.
class NumberList {
 public:
  explicit NumberList(std::vector<StagedNumbers>& all) : all_(all) {}

  std::uint32_t group_index = 0;
  std::uint32_t level_index = 0;

  template <typename Element>
  void add(const char* name, const StagedArray<Element>& array) {
    add_part(name, array, 0, sizeof(Element));
  }
  template <typename Element>
  void add_part(const char* name, const StagedArray<Element>& array, std::uint64_t at, std::uint32_t width) {
    if (array.count == 0) return;
    all_.push_back({.name = name,
                    .group_index = group_index,
                    .level_index = level_index,
                    .offset = array.offset + at,
                    .stride = sizeof(Element),
                    .width = width,
                    .count = array.count});
  }
  void add_state_copies(const std::string& name, const StagedArray<quire::StateCopy>& copies) {
    add_part((name + ".kind").c_str(), copies, offsetof(quire::StateCopy, kind), 4);
    add_part((name + ".group").c_str(), copies, offsetof(quire::StateCopy, group), 4);
    add_part((name + ".source").c_str(), copies, offsetof(quire::StateCopy, source), 4);
    add_part((name + ".target").c_str(), copies, offsetof(quire::StateCopy, target), 4);
    add_part((name + ".position").c_str(), copies, offsetof(quire::StateCopy, position), 4);
  }

 private:
  std::vector<StagedNumbers>& all_;
};

void add_group(NumberList& list, const StagedGroup& group) {
  list.add("append_slots", group.append_slots);
  for (const StagedLevel& level : group.levels) {
    list.add("levels.query_indptr", level.query_indptr);
    list.add("levels.page_indptr", level.page_indptr);
    list.add("levels.rows", level.rows);
    list.add("levels.first_columns", level.first_columns);
    list.add("levels.last_page_tokens", level.last_page_tokens);
    list.add("levels.window_offsets", level.window_offsets);
    list.add("levels.sink_tokens", level.sink_tokens);
    list.add("levels.first_keys", level.first_keys);
    ++list.level_index;
  }
  list.level_index = 0;
  for (const StagedLayerWindow& window : group.layer_windows) {
    list.add("layer_windows.page_indptr", window.page_indptr);
    list.add("layer_windows.rows", window.rows);
    list.add("layer_windows.first_columns", window.first_columns);
    list.add("layer_windows.first_keys", window.first_keys);
    list.add("layer_windows.key_offsets", window.key_offsets);
  }
  list.add_part("deltas.row", group.deltas, offsetof(quire::PageDelta, row), 4);
  list.add_part("deltas.column", group.deltas, offsetof(quire::PageDelta, column), 4);
  list.add_part("deltas.page", group.deltas, offsetof(quire::PageDelta, page), 4);
  list.add("page_indices", group.page_indices);
  list.add("block_table", group.block_table);
  list.add_part("moves.source_slot", group.moves, offsetof(quire::TokenMove, source_slot), 8);
  list.add_part("moves.target_slot", group.moves, offsetof(quire::TokenMove, target_slot), 8);
  list.add("move_indptr", group.move_indptr);
  list.add_part("copies.source", group.copies, offsetof(quire::PageCopy, source), 4);
  list.add_part("copies.target", group.copies, offsetof(quire::PageCopy, target), 4);
  list.add_part("copies.token_count", group.copies, offsetof(quire::PageCopy, token_count), 4);
  list.add("remote_slots", group.remote_slots);
  list.add("receivers", group.receivers);
  list.add_part("sends.local_slot", group.sends, offsetof(quire::SendRun, local_slot), 8);
  list.add_part("sends.remote_slot", group.sends, offsetof(quire::SendRun, remote_slot), 8);
  list.add_part("sends.token_count", group.sends, offsetof(quire::SendRun, token_count), 4);
  list.add_part("sends.receiver", group.sends, offsetof(quire::SendRun, receiver), 4);
}

}  // namespace

std::vector<StagedNumbers> DevicePlan::numbers() const {
  std::vector<StagedNumbers> all;
  NumberList list(all);
  list.add("query_positions", query_positions);
  list.add("query_indptr", query_indptr);
  list.add("seq_lens", seq_lens);
  list.add("stored_lens", stored_lens);
  list.add("visible_tokens", visible_tokens);
  list.add("context_lens", context_lens);
  list.add("state_slots", state_slots);
  list.add("tree_indptr", tree_indptr);
  list.add_part("tree_nodes.begin", tree_nodes, offsetof(quire::TreeNode, begin), 4);
  list.add_part("tree_nodes.end", tree_nodes, offsetof(quire::TreeNode, end), 4);
  list.add_part("tree_nodes.depth", tree_nodes, offsetof(quire::TreeNode, depth), 4);
  for (const StagedGroup& group : groups) {
    add_group(list, group);
    ++list.group_index;
  }
  list.group_index = 0;
  list.add_state_copies("state_copies", state_copies);
  list.add_state_copies("state_saves", state_saves);
  return all;
}

std::int64_t DevicePlan::number(const StagedNumbers& numbers, std::uint64_t index) const {
  const std::byte* at = buffer_.data() + numbers.offset + (index * numbers.stride);
  if (numbers.width == 8) {
    std::int64_t value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  std::int32_t value = 0;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

void DevicePlan::set_number(const StagedNumbers& numbers, std::uint64_t index, std::int64_t value) {
  std::byte* at = buffer_.data() + numbers.offset + (index * numbers.stride);
  if (numbers.width == 8) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const auto narrow = static_cast<std::int32_t>(value);
  std::memcpy(at, &narrow, sizeof(narrow));
}

}  // namespace tiny_engine
