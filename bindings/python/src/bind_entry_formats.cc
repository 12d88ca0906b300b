// SPDX-License-Identifier: Apache-2.0
#include "bind.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "casters.h"
#include "quire/entry_formats.h"
#include "structs.h"

namespace quire::python {
namespace {

// EntryFormat, with a name of its own.
struct Format {
  std::string name;
  std::vector<Component> components;
  std::uint32_t layer_multiple_bytes = 1;
  std::uint32_t block_values = 0;
  std::uint32_t value_bits = 8;
};

Format copy_of(const EntryFormat& format) {
  return {.name = std::string(format.name),
          .components = format.components,
          .layer_multiple_bytes = format.layer_multiple_bytes,
          .block_values = format.block_values,
          .value_bits = format.value_bits};
}

}  // namespace

void bind_entry_formats(nb::module_& module) {
  StructClass<Format>(module, "EntryFormat", "A way in which kernels lay out an entry, as components for a CacheGroup.")
      .field("name", &Format::name)
      .field("components", &Format::components)
      .field("layer_multiple_bytes", &Format::layer_multiple_bytes)
      .field("block_values", &Format::block_values, "values that share a scale; 0: all of them, or there are no scales")
      .field("value_bits", &Format::value_bits,
             "Of a value that has a scale: 8, one E4M3 to a byte, or 4, two to a byte.")
      .with_constructor();
  StructClass<MixedRow>(
      module, "MixedRow",
      "A row whose first `dim` values are stored in 8 bits, and whose last `rope_dim`, which carry the position, in "
      "bf16.")
      .field("dim", &MixedRow::dim)
      .field("rope_dim", &MixedRow::rope_dim)
      .with_constructor();
  StructClass<CompressorRow>(
      module, "CompressorRow",
      "What a compressor keeps of a token until it is part of an entry: `series` rows of values and as many of gates, "
      "which begin closed (-1e9). Two series where entries overlap.")
      .field("dim", &CompressorRow::dim)
      .field("series", &CompressorRow::series)
      .with_constructor();

  module.def(
      "use_format",
      [](CacheGroup& group, const Format& format, std::string_view prefix) {
        use_format(group,
                   {.name = format.name,
                    .components = format.components,
                    .layer_multiple_bytes = format.layer_multiple_bytes,
                    .block_values = format.block_values,
                    .value_bits = format.value_bits},
                   prefix);
      },
      nb::arg("group"), nb::arg("format"), nb::arg("prefix") = "",
      "Gives the group the format's components, behind those it has, and its padding. `prefix` goes before the "
      "names that do not begin with it: with \"index_\", `values` becomes `index_values`, and `index_keys` stays as it "
      "is.");
  const auto mixed = [&](const char* name, EntryFormat (*make)(MixedRow), MixedRow row, const char* text) {
    module.def(name, [make](MixedRow given) { return copy_of(make(given)); }, nb::arg("row") = row, text);
  };
  mixed("fp8_arrays", &fp8_arrays, {},
        "Arrays side by side: values, rope values, one fp32 scale per row, which begins as 1.");
  mixed("fp8_arrays_with_positions", &fp8_arrays_with_positions, {},
        "The same with the token's position, which begins as -1: for rings.");
  mixed("fp8_rows_then_scales", &fp8_rows_then_scales, {},
        "[values and rope values of every row][8-bit scales of every row, one per 64 values, padded to 8 bytes], and a "
        "layer padded to a multiple of a row.");
  mixed("fp8_records", &fp8_records, {.dim = 512, .rope_dim = 64},
        "Records of values, one fp32 scale per 128 of them, rope values.");
  const auto keys = [&](const char* name, EntryFormat (*make)(std::uint32_t), std::uint32_t dim, const char* text) {
    module.def(name, [make](std::uint32_t given) { return copy_of(make(given)); }, nb::arg("dim") = dim, text);
  };
  keys("index_keys_fp8", &index_keys_fp8, 128, "Keys of an indexer: values of 8 bits, then one fp32 scale each.");
  keys("index_keys_mxfp4", &index_keys_mxfp4, 128,
       "Values of 4 bits, two to a byte, then an 8-bit scale per 32 values.");
  keys("index_keys_nvfp4", &index_keys_nvfp4, 128,
       "Values of 4 bits, two to a byte, then an E4M3 scale per 16 values.");
  keys("compressor_running", &compressor_running, 512,
       "A compressor that adds up as it goes: greatest gate, sum of weights, weighted sum, in fp32.");
  const auto compressor = [&](const char* name, EntryFormat (*make)(CompressorRow), const char* text) {
    module.def(name, [make](CompressorRow row) { return copy_of(make(row)); }, nb::arg("row") = CompressorRow{}, text);
  };
  compressor("compressor_fp32", &compressor_fp32, "Records of fp32 values, then gates.");
  compressor("compressor_bf16", &compressor_bf16, "Arrays of bf16, one for each series of values and gates.");
  module.def(
      "plain_rows", [](std::uint32_t dim, ElementType element) { return copy_of(plain_rows(dim, element)); },
      nb::arg("dim") = 512, nb::arg("element") = ElementType::Bf16, "One row of plain elements, aligned to 512 bytes.");
}

}  // namespace quire::python
