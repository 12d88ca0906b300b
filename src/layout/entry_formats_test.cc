// SPDX-License-Identifier: Apache-2.0
//
// Formats against the published sizes of the caches that use them.
#include "quire/entry_formats.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "quire/layout.h"
#include "quire/state_slots.h"

namespace quire {
namespace {

CacheGroup compressed_group(std::uint32_t tokens_per_entry, std::vector<std::uint32_t> layers = {0}) {
  CacheGroup group{.name = "entries", .layers = std::move(layers)};
  if (tokens_per_entry > 1) {
    group.kind = GroupKind::Compressed;
    group.tokens_per_entry = tokens_per_entry;
  }
  return group;
}

/// A page of one layer whose entries stand for so many tokens.
PageGeometry page_of(std::uint32_t tokens_per_entry, std::uint32_t page_tokens,
                     const std::vector<EntryFormat>& formats) {
  CacheGroup group = compressed_group(tokens_per_entry);
  for (const EntryFormat& format : formats) use_format(group, format);
  auto page = PageGeometry::create(std::move(group), {.page_tokens = page_tokens});
  EXPECT_TRUE(page.has_value()) << page.error().message;
  return *page;
}

std::uint64_t entry_bytes(const EntryFormat& format) {
  return page_of(1, 1, {format}).entry_bytes();
}

PageGeometry slot_of(std::uint32_t entries, const EntryFormat& format) {
  CacheGroup group{.name = "state",
                   .kind = GroupKind::Snapshot,
                   .layers = {0},
                   .retention = {.rule = RetentionRule::Last},
                   .slot_entries = entries};
  use_format(group, format);
  auto slot = PageGeometry::create_slot(std::move(group), {});
  EXPECT_TRUE(slot.has_value()) << slot.error().message;
  return *slot;
}

TEST(EntryFormats, ArraysOfEightBitValues) {
  EXPECT_EQ(entry_bytes(fp8_arrays()), 580U);
  EXPECT_EQ(entry_bytes(fp8_arrays_with_positions()), 584U);
  // A page of 128 tokens: 32 entries of 4 tokens, with their index keys, and one entry of 128.
  EXPECT_EQ(page_of(4, 128, {fp8_arrays()}).page_bytes(), 18'560U);
  EXPECT_EQ(page_of(4, 128, {index_keys_nvfp4()}).page_bytes(), 2'304U);
  EXPECT_EQ(page_of(4, 128, {fp8_arrays(), index_keys_nvfp4()}).page_bytes(), 18'560U + 2'304);
  EXPECT_EQ(page_of(128, 128, {fp8_arrays()}).page_bytes(), 580U);

  const PageGeometry page = page_of(4, 128, {fp8_arrays()});
  EXPECT_EQ(page.components()[1].offset, 32U * 448);
  EXPECT_EQ(page.components()[2].offset, 32U * (448 + 128));
  EXPECT_EQ(page.components()[2].token, 4U);
}

TEST(EntryFormats, ARingOfArraysAndTheTailsBesideIt) {
  EXPECT_EQ(slot_of(128, fp8_arrays_with_positions()).page_bytes(), 74'752U);
  EXPECT_EQ(slot_of(4, compressor_bf16()).page_bytes(), 16'384U);
  EXPECT_EQ(slot_of(128, compressor_bf16({.series = 1})).page_bytes(), 262'144U);
}

TEST(EntryFormats, RowsThenScalesArePaddedToAMultipleOfARow) {
  const PageGeometry page = page_of(4, 256, {fp8_rows_then_scales()});
  EXPECT_EQ(page.entry_count(), 64U);
  EXPECT_EQ(page.entry_count() * page.entry_bytes(), 37'376U);
  EXPECT_EQ(page.page_bytes(), 37'440U);
  // [64 x (448 values, 64 rope values)][64 x 8 scales]
  EXPECT_EQ(page.components()[0].offset, 0U);
  EXPECT_EQ(page.components()[0].token, 576U);
  EXPECT_EQ(page.components()[1].offset, 448U);
  EXPECT_EQ(page.components()[1].token, 576U);
  EXPECT_EQ(page.components()[2].offset, 64U * 576);
  EXPECT_EQ(page.components()[2].token, 8U);

  const PageGeometry small = page_of(128, 256, {fp8_rows_then_scales()});
  EXPECT_EQ(small.entry_count(), 2U);
  EXPECT_EQ(small.entry_count() * small.entry_bytes(), 1'168U);
  EXPECT_EQ(small.page_bytes(), 1'728U);
}

TEST(EntryFormats, RecordsOfEightBitValues) {
  const PageGeometry page = page_of(1, 64, {fp8_records()});
  EXPECT_EQ(page.entry_bytes(), 656U);
  EXPECT_EQ(page.page_bytes(), 64U * 656);
  EXPECT_EQ(page.components()[0].offset, 0U);
  EXPECT_EQ(page.components()[1].offset, 512U);
  EXPECT_EQ(page.components()[2].offset, 512U + 16);
  for (const ComponentStrides& component : page.components()) EXPECT_EQ(component.token, 656U);
}

TEST(EntryFormats, IndexKeys) {
  EXPECT_EQ(entry_bytes(index_keys_fp8()), 132U);
  EXPECT_EQ(entry_bytes(index_keys_mxfp4()), 68U);
  EXPECT_EQ(entry_bytes(index_keys_nvfp4()), 72U);
}

std::vector<std::string> names_of(const CacheGroup& group) {
  std::vector<std::string> names;
  for (const Component& component : group.components) names.push_back(component.name);
  return names;
}

TEST(EntryFormats, APrefixStandsBeforeEachNameOnce) {
  using Names = std::vector<std::string>;
  CacheGroup group{.name = "entries", .layers = {0}};
  use_format(group, index_keys_fp8(), "index_");
  use_format(group, compressor_fp32(), "index_");
  EXPECT_EQ(names_of(group), (Names{"index_keys", "index_scale", "index_values", "index_gates"}));
  group.components.clear();
  use_format(group, index_keys_fp8());
  use_format(group, index_keys_fp8(), "second_");
  EXPECT_EQ(names_of(group), (Names{"index_keys", "index_scale", "second_index_keys", "second_index_scale"}));
}

// Names are part of what tells one layout's files from another's.
TEST(EntryFormats, NamesInPresetsStayAsTheyAreOnDisk) {
  using Names = std::vector<std::string>;
  const ModelLayout layout = preset("deepseek-v4-flash").value();
  std::vector<Names> names;
  for (const CacheGroup& group : layout.groups()) names.push_back(names_of(group));
  const Names rows{"values", "rope", "scales"};
  EXPECT_EQ(names, (std::vector<Names>{rows,
                                       {"values", "rope", "scales", "index_keys", "index_scales"},
                                       rows,
                                       {"values", "gates", "index_values", "index_gates"},
                                       {"values", "gates"}}));
}

TEST(EntryFormats, CompressorRows) {
  EXPECT_EQ(entry_bytes(compressor_fp32()), 8'192U);
  EXPECT_EQ(entry_bytes(compressor_fp32({.series = 1})), 4'096U);
  EXPECT_EQ(entry_bytes(compressor_fp32({.dim = 128})), 2'048U);
  EXPECT_EQ(entry_bytes(compressor_fp32({.dim = 128, .series = 1})), 1'024U);
  EXPECT_EQ(entry_bytes(compressor_running()), 3U * 512 * 4);
  EXPECT_EQ(slot_of(8, compressor_fp32()).page_bytes(), 8U * 8'192);
  EXPECT_EQ(slot_of(128, compressor_fp32({.series = 1})).page_bytes(), 128U * 4'096);
  // The values of a token, then its gates.
  EXPECT_EQ(slot_of(8, compressor_fp32()).components()[1].offset, 4'096U);
  EXPECT_EQ(slot_of(8, compressor_fp32()).components()[1].token, 8'192U);
}

TEST(EntryFormats, PlainRowsAreAligned) {
  EXPECT_EQ(entry_bytes(plain_rows()), 1'024U);
  EXPECT_EQ(entry_bytes(plain_rows(512, ElementType::Fp8)), 512U);
  const PageGeometry page = page_of(1, 3, {plain_rows(300, ElementType::Fp8)});
  EXPECT_EQ(page.alignment(), 512U);
  EXPECT_EQ(page.components()[0].token, 512U);
  EXPECT_EQ(page.page_bytes(), 3U * 512);
}

TEST(EntryFormats, WhatIsNotWrittenYetMasksItself) {
  const std::vector<std::byte> ring = slot_of(2, fp8_arrays_with_positions()).initial_bytes();
  const PageGeometry geometry = slot_of(2, fp8_arrays_with_positions());
  EXPECT_EQ(std::to_integer<int>(ring[geometry.components()[2].offset + 3]), 0x3f);  // 1.0
  EXPECT_EQ(std::to_integer<int>(ring[geometry.components()[3].offset]), 0xff);      // -1
  const std::vector<std::byte> tail = slot_of(2, compressor_bf16()).initial_bytes();
  for (const std::size_t gates : {1U, 3U}) {
    const std::uint64_t offset = slot_of(2, compressor_bf16()).components()[gates].offset;
    EXPECT_EQ(std::to_integer<int>(tail[offset]), 0x6e);
    EXPECT_EQ(std::to_integer<int>(tail[offset + 1]), 0xce);
  }
}

TEST(EntryFormats, FormatsHaveDifferentNamesAndFitTogetherInAGroup) {
  const EntryFormat formats[] = {
      fp8_arrays(),       fp8_arrays_with_positions(), fp8_rows_then_scales(), fp8_records(),     index_keys_fp8(),
      index_keys_mxfp4(), index_keys_nvfp4(),          compressor_fp32(),      compressor_bf16(), compressor_running(),
      plain_rows()};
  std::vector<std::string_view> names;
  for (const EntryFormat& format : formats) {
    EXPECT_EQ(std::ranges::find(names, format.name), names.end()) << format.name;
    names.push_back(format.name);
  }
  CacheGroup group = compressed_group(4);
  use_format(group, fp8_rows_then_scales());
  use_format(group, index_keys_fp8());
  EXPECT_EQ(group.layer_multiple_bytes, 576U);
  const auto page = PageGeometry::create(group, {.page_tokens = 256});
  ASSERT_TRUE(page.has_value()) << page.error().message;
  EXPECT_EQ(page->page_bytes(), 46'080U);  // 37,376 + 64 x 132 = 45,824, to a multiple of 576
}

// All state of one sequence, window as a ring and tails in bf16, for two schedules of layers: a window in all of them,
// entries of 4 tokens in some, of 128 in others.
std::vector<CacheGroup> arrays_everywhere(std::uint32_t layers, const std::vector<std::uint32_t>& fine,
                                          const std::vector<std::uint32_t>& coarse) {
  CacheGroup window{.name = "window",
                    .kind = GroupKind::Window,
                    .layers = layer_range(0, layers),
                    .retention = {.rule = RetentionRule::None},
                    .window_tokens = 128,
                    .window_form = WindowForm::Ring,
                    .slot_entries = 128};
  use_format(window, fp8_arrays_with_positions());
  CacheGroup entries_4 = compressed_group(4, fine);
  entries_4.name = "entries_4";
  entries_4.overlap_tokens = 4;
  use_format(entries_4, fp8_arrays());
  use_format(entries_4, index_keys_nvfp4());
  CacheGroup entries_128 = compressed_group(128, coarse);
  entries_128.name = "entries_128";
  use_format(entries_128, fp8_arrays());
  CacheGroup tail_4{.name = "tail_4",
                    .kind = GroupKind::Snapshot,
                    .layers = fine,
                    .retention = {.rule = RetentionRule::None},
                    .slot_entries = 4,
                    .snapshot_entries = 4,
                    .boundary_tokens = 4};
  use_format(tail_4, compressor_bf16());
  CacheGroup tail_128{.name = "tail_128",
                      .kind = GroupKind::Snapshot,
                      .layers = coarse,
                      .retention = {.rule = RetentionRule::None},
                      .slot_entries = 128,
                      .snapshot_entries = 0,
                      .boundary_tokens = 128};
  use_format(tail_128, compressor_bf16({.series = 1}));
  return {window, entries_4, entries_128, tail_4, tail_128};
}

// {first, first + 2, …} below end.
std::vector<std::uint32_t> every_other(std::uint32_t first, std::uint32_t end) {
  std::vector<std::uint32_t> layers;
  for (std::uint32_t layer = first; layer < end; layer += 2) layers.push_back(layer);
  return layers;
}

TEST(EntryFormats, AllStateOfASequenceIsOneSlot) {
  const auto small = ModelLayout::create("small", arrays_everywhere(43, every_other(2, 43), every_other(3, 43)));
  ASSERT_TRUE(small.has_value()) << small.error().message;
  EXPECT_EQ(StateSlots::create(*small)->slot_bytes(), 8'801'280U);

  std::vector<std::uint32_t> coarse = every_other(3, 61);
  coarse.insert(coarse.begin(), {0, 1});
  const auto large = ModelLayout::create("large", arrays_everywhere(61, every_other(2, 61), coarse));
  ASSERT_TRUE(large.has_value()) << large.error().message;
  EXPECT_EQ(StateSlots::create(*large)->slot_bytes(), 13'177'856U);

  // 1,000,000 tokens in pages of 128.
  std::uint64_t bytes = 0;
  for (const std::size_t index : {1U, 2U}) {
    bytes += 7'813 * PageGeometry::create(large->groups()[index], {.page_tokens = 128})->page_bytes();
  }
  EXPECT_EQ(bytes, 7'813ULL * (30 * (18'560 + 2'304) + 31 * 580));
  EXPECT_EQ(bytes, 5'030'790'700U);  // 4.68 GiB
}

}  // namespace
}  // namespace quire
