// SPDX-License-Identifier: Apache-2.0
#include "quire/entry_formats.h"

#include <string>
#include <string_view>
#include <utility>

#include "layout/format_names.h"

namespace quire {
namespace {

// Every rank stores it whole: these rows have no heads to split.
Component row(std::string name, ElementType element, std::uint32_t dim, Placement placement = Placement::Area) {
  return {.name = std::move(name),
          .element = element,
          .sharding = Sharding::Replicated,
          .dim = dim,
          .placement = placement};
}

Component row_that_begins_as(std::vector<std::byte> initial, std::string name, ElementType element, std::uint32_t dim,
                             Placement placement = Placement::Area) {
  Component component = row(std::move(name), element, dim, placement);
  component.initial = std::move(initial);
  return component;
}

constexpr std::uint32_t blocks_of(std::uint32_t dim, std::uint32_t block) {
  return (dim / block) + (dim % block == 0 ? 0 : 1);
}

constexpr float kClosedGate = -1e9F;

}  // namespace

std::string prefixed_name(std::string_view prefix, std::string_view name) {
  return name.starts_with(prefix) ? std::string(name) : std::string(prefix).append(name);
}

void use_format(CacheGroup& group, const EntryFormat& format, std::string_view prefix) {
  for (Component component : format.components) {
    component.name = prefixed_name(prefix, component.name);
    group.components.push_back(std::move(component));
  }
  if (format.layer_multiple_bytes != 1) group.layer_multiple_bytes = format.layer_multiple_bytes;
}

EntryFormat fp8_arrays(MixedRow shape) {
  return {.name = "fp8_arrays",
          .components = {row("values", ElementType::Fp8, shape.dim), row("rope", ElementType::Bf16, shape.rope_dim),
                         row_that_begins_as(fp32_pattern(1.0F), "scale", ElementType::Fp32, 1)}};
}

EntryFormat fp8_arrays_with_positions(MixedRow shape) {
  EntryFormat format = fp8_arrays(shape);
  format.name = "fp8_arrays_with_positions";
  format.components.push_back(row_that_begins_as(int32_pattern(-1), "position", ElementType::Int32, 1));
  return format;
}

EntryFormat fp8_rows_then_scales(MixedRow shape) {
  const std::uint32_t scale_bytes = blocks_of(blocks_of(shape.dim, 64), 8) * 8;
  return {.name = "fp8_rows_then_scales",
          .components = {row("values", ElementType::Fp8, shape.dim, Placement::Interleaved),
                         row("rope", ElementType::Bf16, shape.rope_dim, Placement::Interleaved),
                         row("scales", ElementType::Bytes, scale_bytes)},
          .layer_multiple_bytes = shape.dim + (2 * shape.rope_dim),
          .block_values = 64};
}

EntryFormat fp8_records(MixedRow shape) {
  return {.name = "fp8_records",
          .components = {row("values", ElementType::Fp8, shape.dim, Placement::Interleaved),
                         row("scales", ElementType::Fp32, blocks_of(shape.dim, 128), Placement::Interleaved),
                         row("rope", ElementType::Bf16, shape.rope_dim, Placement::Interleaved)},
          .block_values = 128};
}

EntryFormat index_keys_fp8(std::uint32_t dim) {
  return {.name = "index_keys_fp8",
          .components = {row("index_keys", ElementType::Fp8, dim), row("index_scale", ElementType::Fp32, 1)}};
}

EntryFormat index_keys_mxfp4(std::uint32_t dim) {
  return {.name = "index_keys_mxfp4",
          .components = {row("index_keys", ElementType::Bytes, blocks_of(dim, 2)),
                         row("index_scales", ElementType::Bytes, blocks_of(dim, 32))},
          .block_values = 32,
          .value_bits = 4};
}

EntryFormat index_keys_nvfp4(std::uint32_t dim) {
  return {.name = "index_keys_nvfp4",
          .components = {row("index_keys", ElementType::Bytes, blocks_of(dim, 2)),
                         row("index_scales", ElementType::Fp8, blocks_of(dim, 16))},
          .block_values = 16,
          .value_bits = 4};
}

EntryFormat compressor_fp32(CompressorRow shape) {
  const std::uint32_t dim = shape.series * shape.dim;
  return {.name = "compressor_fp32",
          .components = {
              row("values", ElementType::Fp32, dim, Placement::Interleaved),
              row_that_begins_as(fp32_pattern(kClosedGate), "gates", ElementType::Fp32, dim, Placement::Interleaved)}};
}

EntryFormat compressor_bf16(CompressorRow shape) {
  EntryFormat format{.name = "compressor_bf16", .components = {}};
  for (std::uint32_t series = 0; series < shape.series; ++series) {
    const std::string number = std::to_string(series);
    format.components.push_back(row("values_" + number, ElementType::Bf16, shape.dim));
    format.components.push_back(
        row_that_begins_as(bf16_pattern(kClosedGate), "gates_" + number, ElementType::Bf16, shape.dim));
  }
  return format;
}

EntryFormat compressor_running(std::uint32_t dim) {
  return {.name = "compressor_running",
          .components = {
              row_that_begins_as(fp32_pattern(kClosedGate), "gate_max", ElementType::Fp32, dim, Placement::Interleaved),
              row("weight_sum", ElementType::Fp32, dim, Placement::Interleaved),
              row("value_sum", ElementType::Fp32, dim, Placement::Interleaved)}};
}

EntryFormat plain_rows(std::uint32_t dim, ElementType element) {
  EntryFormat format{.name = "plain_rows", .components = {row("row", element, dim)}};
  format.components[0].alignment = 512;
  return format;
}

}  // namespace quire
