// SPDX-License-Identifier: Apache-2.0
#include "hand_made_plans.h"

#include <algorithm>
#include <cstring>

#include "tools/tiny_engine/device_plan.h"
#include "tools/tiny_engine/hybrid_oracle.h"

namespace quire::testing {

template <typename Element>
std::span<const Element> StagingBuffer::add(const std::vector<Element>& values) {
  auto* const at = reinterpret_cast<Element*>(&blocks_[used_]);
  if (!values.empty()) std::memcpy(at, values.data(), values.size() * sizeof(Element));
  used_ += ((values.size() * sizeof(Element)) + sizeof(Block) - 1) / sizeof(Block);
  return {at, values.size()};
}

namespace {

// Where a sequence's pages lie at first: not in order, and never the null page.
std::vector<HandPage> scattered_pages() {
  constexpr std::uint32_t kPages = HandMadePlans::kPageCount - 1;  // 73, a prime
  std::vector<HandPage> pages;
  for (std::uint32_t sequence = 0; sequence < HandMadePlans::kSequenceCount; ++sequence) {
    for (std::uint32_t column = 0; column < HandMadePlans::kColumns; ++column) {
      const std::uint32_t number = (column * HandMadePlans::kSequenceCount) + sequence;
      pages.push_back({.page = static_cast<std::int32_t>(1 + ((number * 7) + 3) % kPages)});
    }
  }
  return pages;
}

}  // namespace

std::span<const std::byte> StagingBuffer::bytes() const {
  return std::as_bytes(std::span(blocks_));
}

HandMadePlans::HandMadePlans(const tiny_engine::HybridShape& shape, std::uint32_t page_tokens)
    : weights_(tiny_engine::make_hybrid_weights(shape, 31)),
      groups_(tiny_engine::hybrid_groups(shape)),
      page_tokens_(page_tokens) {
  const ModelLayout layout = ModelLayout::create("hybrid", groups_.groups).value();
  const StateSlots slots = StateSlots::create(layout, {.page_tokens = page_tokens}).value();
  for (std::uint32_t i = 0; i < kSequenceCount; ++i) {
    const std::vector<std::byte> initial = slots.initial_bytes();
    state_.insert(state_.end(), initial.begin(), initial.end());
  }
  tiny_engine::HybridMemory memory{.pools = {}, .states = {slots, state_.data(), kSequenceCount}};
  for (const CacheGroup& group : layout.groups()) {
    tables_.push_back(scattered_pages());
    pools_.emplace_back();
    memory.pools.emplace_back();
    if (!has_pages(group)) continue;
    const PageGeometry page = PageGeometry::create(group, {.page_tokens = page_tokens}).value();
    const PoolGeometry pool = PoolGeometry::create(page, {.page_count = kPageCount}).value();
    pools_.back().assign(pool.pool_bytes(), std::byte{0x41});
    memory.pools.back() = tiny_engine::PoolMemory{.geometry = pool, .bytes = pools_.back().data()};
  }
  engine_ = std::make_unique<tiny_engine::HybridEngine>(
      weights_, std::move(memory),
      tiny_engine::HybridEngineOptions{
          .sequence_count_max = kSequenceCount, .row_columns = kColumns, .page_tokens = page_tokens});
}

std::int64_t HandMadePlans::append_slot(std::uint32_t group_index, const HandEntry& entry, std::uint32_t index) {
  const CacheGroup& group = groups_.groups[group_index];
  const std::uint32_t position = entry.position + index;
  const auto [page_id, is_shared] = page_at(group_index, entry.sequence, position / page_tokens_);
  const std::int64_t page = page_id;
  const std::uint32_t place = position % page_tokens_;
  if (is_shared) return kNoSlot;
  switch (group.kind) {
    case GroupKind::Full:
      return (page * page_tokens_) + place;
    case GroupKind::Window:
      if (group.window_form == WindowForm::Paged) return (page * page_tokens_) + place;
      if (index + group.slot_entries < entry.tokens.size()) return kNoSlot;  // a later one takes its place
      return (std::int64_t{entry.sequence} * group.slot_entries) + ring_entry(group, position);
    case GroupKind::Compressed:
      if ((position + 1) % group.tokens_per_entry != 0) return kNoSlot;
      return (page * (page_tokens_ / group.tokens_per_entry)) + (place / group.tokens_per_entry);
    case GroupKind::Snapshot:
      break;
  }
  return kNoSlot;
}

GroupPlan HandMadePlans::plan_group(StagingBuffer& staging, std::uint32_t group_index,
                                    const std::vector<HandEntry>& entries) {
  const CacheGroup& group = groups_.groups[group_index];
  GroupPlan plan;
  if (group.kind == GroupKind::Snapshot) return plan;
  std::vector<std::int64_t> append_slots;
  std::vector<std::int32_t> query_indptr = {0};
  std::vector<std::int32_t> page_indptr = {0};
  std::vector<std::int32_t> pages;
  std::vector<std::int32_t> last_page_tokens;
  std::vector<std::int32_t> first_keys;
  for (const HandEntry& entry : entries) {
    const auto count = static_cast<std::uint32_t>(entry.tokens.size());
    for (std::uint32_t i = 0; i < count; ++i) append_slots.push_back(append_slot(group_index, entry, i));
    const std::uint32_t end = entry.position + count;
    // A window's list begins with the page of the first key that the first query sees.
    const std::uint32_t seen = group.window_tokens > 0 ? group.window_tokens - 1 : entry.position;
    const std::uint32_t first_column = (entry.position - std::min(entry.position, seen)) / page_tokens_;
    for (std::uint32_t column = first_column; column * page_tokens_ < end; ++column) {
      pages.push_back(page_at(group_index, entry.sequence, column).page);
    }
    query_indptr.push_back(query_indptr.back() + static_cast<std::int32_t>(count));
    page_indptr.push_back(static_cast<std::int32_t>(pages.size()));
    last_page_tokens.push_back(static_cast<std::int32_t>(((end - 1) % page_tokens_) + 1));
    first_keys.push_back(static_cast<std::int32_t>(first_column * page_tokens_));
  }
  plan.append_slots = staging.add(append_slots);
  if (has_slot(group)) return plan;
  levels_[group_index] = {.query_indptr = staging.add(query_indptr),
                          .page_indptr = staging.add(page_indptr),
                          .rows = {},
                          .first_columns = {},
                          .last_page_tokens = staging.add(last_page_tokens),
                          .window_offsets = staging.add(std::vector<std::int32_t>(entries.size(), 0)),
                          .sink_tokens = staging.add(std::vector<std::int32_t>(entries.size(), 0)),
                          .first_keys = staging.add(first_keys)};
  plan.levels = {&levels_[group_index], 1};
  plan.page_indices = staging.add(pages);
  return plan;
}

std::string HandMadePlans::step(const std::vector<HandEntry>& entries, std::vector<double>& logits,
                                const HandStates& states) {
  StagingBuffer staging;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> query_indptr = {0};
  std::vector<std::int32_t> seq_lens;
  std::vector<std::int32_t> stored_lens;
  std::vector<std::int32_t> slots;
  std::vector<TokenId> tokens;
  for (const HandEntry& entry : entries) {
    for (const TokenId token : entry.tokens) {
      positions.push_back(static_cast<std::int32_t>(
          entry.position + (positions.size() - static_cast<std::size_t>(query_indptr.back()))));
      tokens.push_back(token);
    }
    query_indptr.push_back(static_cast<std::int32_t>(tokens.size()));
    stored_lens.push_back(static_cast<std::int32_t>(entry.position));
    seq_lens.push_back(static_cast<std::int32_t>(entry.position + entry.tokens.size()));
    slots.push_back(static_cast<std::int32_t>(entry.sequence));
  }
  AttentionPlan plan;
  plan.page_tables = PageTables::Csr;
  plan.query_positions = staging.add(positions);
  plan.query_indptr = staging.add(query_indptr);
  plan.seq_lens = staging.add(seq_lens);
  plan.stored_lens = staging.add(stored_lens);
  plan.context_lens = plan.seq_lens;
  plan.visible_tokens = staging.add(std::vector<std::int32_t>(entries.size(), 0));
  plan.state_slots = staging.add(slots);
  levels_.assign(groups_.groups.size(), {});
  std::vector<GroupPlan> groups;
  for (std::uint32_t i = 0; i < groups_.groups.size(); ++i) groups.push_back(plan_group(staging, i, entries));
  plan.groups = groups;
  plan.state_copies = staging.add(states.before);
  plan.state_saves = staging.add(states.after);
  plan.staging = staging.bytes();
  const Result<tiny_engine::DevicePlan> uploaded = tiny_engine::DevicePlan::upload(plan);
  if (!uploaded) return uploaded.error().message;
  std::string problem = engine_->prepare(*uploaded);
  if (problem.empty()) problem = engine_->forward(*uploaded, tokens, logits);
  return problem.empty() ? engine_->save(*uploaded) : problem;
}

std::vector<double> HandMadePlans::expected(std::span<const TokenId> text) const {
  std::vector<tiny_engine::OracleToken> tokens;
  for (const TokenId token : text) {
    tokens.push_back({.token = token, .previous = static_cast<std::int32_t>(tokens.size()) - 1});
  }
  return tiny_engine::oracle_logits(weights_, std::span<const tiny_engine::OracleToken>(tokens)).back();
}

std::vector<double*> HandMadePlans::live_numbers(std::uint32_t group_index, std::uint32_t sequence,
                                                 std::uint32_t token_count) {
  const CacheGroup& group = groups_.groups[group_index];
  std::vector<double*> numbers;
  const auto add = [&numbers](std::byte* row, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; i += sizeof(double)) numbers.push_back(reinterpret_cast<double*>(row + i));
  };
  const auto& pool = engine_->memory().pools[group_index];
  const StateSlots& slots = engine_->memory().states.slots();
  for (std::uint32_t layer = 0; layer < group.layers.size(); ++layer) {
    for (std::uint32_t i = 0; i < group.components.size(); ++i) {
      for (std::uint32_t head = 0; head < group.components[i].heads; ++head) {
        const auto add_page_row = [&](std::uint32_t entry, std::uint32_t page_entries) {
          const auto page = static_cast<std::uint32_t>(page_at(group_index, sequence, entry / page_entries).page);
          const std::uint64_t offset = pool->geometry.offset_of({.page = {page},
                                                                 .layer_index = layer,
                                                                 .component_index = i,
                                                                 .token_index = entry % page_entries,
                                                                 .head_index = head});
          add(pool->bytes + offset, pool->geometry.page().components()[i].head_bytes);
        };
        const auto add_slot_row = [&](std::uint32_t version, std::uint32_t entry) {
          for (std::uint32_t part = 0; part < slots.parts().size(); ++part) {
            if (slots.parts()[part].group_index != group_index) continue;
            const std::uint64_t offset = slots.offset_of({.part_index = part,
                                                          .version_index = version,
                                                          .layer_index = layer,
                                                          .component_index = i,
                                                          .entry_index = entry,
                                                          .head_index = head});
            add(state_.data() + (sequence * slots.slot_bytes()) + offset,
                slots.parts()[part].geometry.components()[i].head_bytes);
          }
        };
        if (group.kind == GroupKind::Snapshot && group.slot_entries == 1) {
          add_slot_row(token_count % (group.slot_history + 1), 0);
        } else if (group.kind == GroupKind::Snapshot) {
          const std::uint32_t first = token_count - (token_count % group.boundary_tokens);
          // The first series is of an entry's own tokens, the second also of those before.
          const std::uint32_t begin = first - (head == 1 ? std::min(first, group.snapshot_entries) : 0);
          for (std::uint32_t at = begin; at < token_count; ++at) add_slot_row(0, ring_entry(group, at));
        } else if (group.kind == GroupKind::Compressed) {
          for (std::uint32_t at = 0; at < token_count / group.tokens_per_entry; ++at) {
            add_page_row(at, page_tokens_ / group.tokens_per_entry);
          }
        } else {
          const std::uint32_t seen = group.kind == GroupKind::Full ? token_count : group.window_tokens - 1;
          for (std::uint32_t at = token_count - std::min(token_count, seen); at < token_count; ++at) {
            if (has_slot(group)) {
              add_slot_row(0, ring_entry(group, at));
            } else {
              add_page_row(at, page_tokens_);
            }
          }
        }
      }
    }
  }
  return numbers;
}

}  // namespace quire::testing
