// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "quire/entry_formats.h"
#include "quire/layout.h"
#include "quire/quantised_kernels.h"

namespace quire {
namespace {

PoolGeometry pool_of(const std::vector<Component>& components) {
  CacheGroup group{.name = "entries", .layers = {0}, .components = components};
  PageGeometry page = PageGeometry::create(std::move(group), {.page_tokens = 4}).value();
  return PoolGeometry::create(std::move(page), {.page_count = 2}).value();
}

PoolGeometry pool_of(const EntryFormat& format, std::string_view prefix = "") {
  CacheGroup group{.name = "entries", .layers = {0}};
  use_format(group, format, prefix);
  return pool_of(group.components);
}

std::string error_of(const Result<QuantisedEntries>& result) {
  return result ? "" : result.error().message;
}

Component part(std::string name, ElementType element, std::uint32_t dim) {
  return {.name = std::move(name), .element = element, .sharding = Sharding::Replicated, .dim = dim};
}

TEST(QuantisedEntries, TakeTheirPartsFromAFormat) {
  const QuantisedEntries rows =
      QuantisedEntries::create(pool_of(fp8_rows_then_scales()), fp8_rows_then_scales()).value();
  EXPECT_EQ(rows.components(), (QuantisedComponents{.values = 0, .scales = 2, .rope = 1, .block_values = 64}));
  EXPECT_EQ(rows.scale_form(), ScaleForm::Ue8m0);
  EXPECT_EQ(rows.dim(), 448);
  EXPECT_EQ(rows.rope_dim(), 64);
  EXPECT_EQ(rows.block_values(), 64);
  EXPECT_EQ(rows.row_bytes(), 1'024);

  const EntryFormat with_positions = fp8_arrays_with_positions();
  const QuantisedEntries arrays = QuantisedEntries::create(pool_of(with_positions, "a_"), with_positions, "a_").value();
  EXPECT_EQ(arrays.components(), (QuantisedComponents{.values = 0, .scales = 2, .rope = 1, .positions = 3}));
  EXPECT_EQ(arrays.scale_form(), ScaleForm::Fp32);
  EXPECT_EQ(arrays.block_values(), 448);

  const QuantisedEntries records = QuantisedEntries::create(pool_of(fp8_records()), fp8_records()).value();
  EXPECT_EQ(records.block_values(), 128);
  EXPECT_EQ(records.row_bytes(), 1'152);

  const QuantisedEntries keys = QuantisedEntries::create(pool_of(index_keys_fp8()), index_keys_fp8()).value();
  EXPECT_EQ(keys.rope_dim(), 0);
  EXPECT_EQ(keys.row_bytes(), 256);
}

TEST(QuantisedEntries, FindPartsWhosePrefixStandsOnce) {
  const QuantisedEntries keys =
      QuantisedEntries::create(pool_of(index_keys_fp8(), "index_"), index_keys_fp8(), "index_").value();
  EXPECT_EQ(keys.components(), (QuantisedComponents{.values = 0, .scales = 1}));
}

TEST(QuantisedEntries, RefuseFormatsWithoutE4m3Values) {
  for (const EntryFormat& format : {index_keys_mxfp4(), index_keys_nvfp4()}) {
    const Result<QuantisedEntries> entries = QuantisedEntries::create(pool_of(format), format);
    ASSERT_FALSE(entries);
    EXPECT_EQ(entries.error().code, ErrorCode::Unsupported);
    EXPECT_EQ(entries.error().message,
              "quantised entries of group 'entries': values of format '" + std::string(format.name) +
                  "' have 4 bits, and these kernels read and write values of 8 (E4M3): use a format of 8 bits, such as "
                  "index_keys_fp8(), or a kernel of the engine's own; the cache itself takes any format");
  }
  EXPECT_TRUE(QuantisedEntries::create(pool_of(index_keys_fp8()), index_keys_fp8()));
  EXPECT_FALSE(QuantisedEntries::create(pool_of(plain_rows()), plain_rows()));
  EXPECT_FALSE(QuantisedEntries::create(pool_of(compressor_bf16()), compressor_bf16()));
  EXPECT_EQ(error_of(QuantisedEntries::create(pool_of(fp8_arrays()), fp8_arrays(), "b_")),
            "quantised entries of group 'entries': format 'fp8_arrays' has a component 'b_values', and the group has "
            "none");
}

TEST(QuantisedEntries, RefuseComponentsThatAreNotThere) {
  const PoolGeometry pool = pool_of(fp8_arrays());
  EXPECT_EQ(error_of(QuantisedEntries::create(pool, QuantisedComponents{.values = 3, .scales = 2})),
            "quantised entries of group 'entries': the component of the values is number 3, but the group has 3 "
            "components, counted from 0");
  EXPECT_FALSE(QuantisedEntries::create(pool, QuantisedComponents{.values = 0}));
  EXPECT_FALSE(QuantisedEntries::create(pool, QuantisedComponents{.values = 0, .scales = 2, .rope = 9}));
  EXPECT_FALSE(QuantisedEntries::create(pool, QuantisedComponents{.values = 0, .scales = 2, .positions = 9}));
}

TEST(QuantisedEntries, RefuseComponentsOfOtherElements) {
  const PoolGeometry pool = pool_of(fp8_arrays());
  EXPECT_EQ(error_of(QuantisedEntries::create(pool, QuantisedComponents{.values = 1, .scales = 2})),
            "quantised entries of group 'entries': component 'rope' is bf16, but values are fp8");
  EXPECT_EQ(error_of(QuantisedEntries::create(pool, QuantisedComponents{.values = 0, .scales = 1})),
            "quantised entries of group 'entries': component 'rope' is bf16, but scales are fp32 or bytes");
  EXPECT_FALSE(QuantisedEntries::create(pool, QuantisedComponents{.values = 0, .scales = 2, .rope = 0}));
  EXPECT_FALSE(QuantisedEntries::create(pool, QuantisedComponents{.values = 0, .scales = 2, .positions = 1}));
}

TEST(QuantisedEntries, RefuseScalesThatDoNotFitTheValues) {
  const auto create = [](std::uint32_t dim, ElementType element, std::uint32_t scales, std::uint32_t block_values) {
    const PoolGeometry pool = pool_of({part("values", ElementType::Fp8, dim), part("scales", element, scales)});
    return QuantisedEntries::create(pool, QuantisedComponents{.values = 0, .scales = 1, .block_values = block_values});
  };
  EXPECT_EQ(error_of(create(448, ElementType::Fp32, 1, 128)),
            "quantised entries of group 'entries': component 'scales' has room for 1 scale, but the 448 values of "
            "'values' make 4 blocks of 128: set block_values to the values that share a scale, or name the component "
            "that has their scales");
  EXPECT_TRUE(create(448, ElementType::Fp32, 1, 448));  // as it says
  EXPECT_FALSE(create(448, ElementType::Fp32, 5, 128));
  EXPECT_TRUE(create(448, ElementType::Fp32, 4, 128));
  EXPECT_FALSE(create(448, ElementType::Bytes, 6, 64));
  EXPECT_TRUE(create(448, ElementType::Bytes, 7, 64));
  EXPECT_TRUE(create(448, ElementType::Bytes, 14, 64));
  EXPECT_FALSE(create(448, ElementType::Bytes, 15, 64));
}

Component with_heads(Component component, std::uint32_t heads) {
  component.heads = heads;
  return component;
}

TEST(QuantisedEntries, OfSeveralHeadsHaveScalesForEach) {
  const QuantisedEntries entries =
      QuantisedEntries::create(pool_of({with_heads(part("k", ElementType::Fp8, 128), 8),
                                        with_heads(part("k_scales", ElementType::Fp32, 1), 8)}),
                               QuantisedComponents{.values = 0, .scales = 1})
          .value();
  EXPECT_EQ(entries.head_count(), 8);
  EXPECT_EQ(entries.dim(), 128);
  EXPECT_EQ(entries.block_values(), 128);
  EXPECT_EQ(entries.row_bytes(), 2 * 8 * 128);
}

TEST(QuantisedEntries, RefuseHeadsThatDoNotFitTogether) {
  const Component values = with_heads(part("values", ElementType::Fp8, 8), 2);
  const Component scales = with_heads(part("scales", ElementType::Fp32, 1), 2);
  const Component rope = part("rope", ElementType::Bf16, 4);
  const Component one_head = part("values", ElementType::Fp8, 8);
  const Component one_scale = part("scales", ElementType::Fp32, 1);
  EXPECT_EQ(
      error_of(QuantisedEntries::create(pool_of({values, one_scale}), QuantisedComponents{.values = 0, .scales = 1})),
      "quantised entries of group 'entries': component 'scales' has 1 head on a rank: there is a row of scales "
      "for each of the 2 heads of the values");
  EXPECT_FALSE(QuantisedEntries::create(pool_of({one_head, scales}), QuantisedComponents{.values = 0, .scales = 1}));
  EXPECT_EQ(error_of(QuantisedEntries::create(pool_of({values, scales, rope}),
                                              QuantisedComponents{.values = 0, .scales = 1, .rope = 2})),
            "quantised entries of group 'entries': component 'values' has 2 heads on a rank: only values of one head "
            "have rope values beside them");
  EXPECT_EQ(error_of(QuantisedEntries::create(pool_of({one_head, one_scale, with_heads(rope, 2)}),
                                              QuantisedComponents{.values = 0, .scales = 1, .rope = 2})),
            "quantised entries of group 'entries': component 'rope' has 2 heads on a rank: an entry has one row of "
            "rope values");
}

TEST(QuantisedEntries, RefuseSeveralPositions) {
  const Component values = part("values", ElementType::Fp8, 8);
  const Component scales = part("scales", ElementType::Fp32, 1);
  const QuantisedComponents components{.values = 0, .scales = 1, .positions = 2};
  EXPECT_FALSE(
      QuantisedEntries::create(pool_of({values, scales, part("positions", ElementType::Int32, 2)}), components));
  EXPECT_EQ(error_of(QuantisedEntries::create(
                pool_of({values, scales, with_heads(part("positions", ElementType::Int32, 1), 2)}), components)),
            "quantised entries of group 'entries': component 'positions' has 2 heads on a rank: an entry has one "
            "position");
}

}  // namespace
}  // namespace quire
