// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <vector>

#include "layout/text.h"
#include "quire/layout.h"
#include "quire/swap.h"

namespace quire {
namespace {

// The bytes of a layer that a component has, from its first to behind its last.
struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Extent extent_of(const PageGeometry& page, std::uint32_t component_index) {
  const ComponentStrides& strides = page.components()[component_index];
  const std::uint32_t heads = page.heads_on_rank(component_index, 0).count;
  return {.begin = strides.offset,
          .end = strides.offset + ((page.entry_count() - 1) * strides.token) + ((heads - 1) * strides.head) +
                 strides.head_bytes};
}

std::string text_of(const PageGeometry& page, const AdoptedTensor& tensor) {
  std::string text = "the tensor of layer " + std::to_string(tensor.layer_index);
  if (tensor.component_index) text += ", component " + quoted(page.group().components[*tensor.component_index].name);
  return text;
}

Status check_tensor(const PageGeometry& page, const AdoptedTensor& tensor) {
  const auto invalid = [&](const std::string& why) {
    return fail(ErrorCode::InvalidArgument, "adopting tensors of group " + quoted(page.group().name) + ": " + why);
  };
  if (tensor.layer_index >= page.layer_count()) {
    return invalid("layer " + std::to_string(tensor.layer_index) + ": there are " + std::to_string(page.layer_count()) +
                   ", counted from 0");
  }
  if (tensor.component_index && *tensor.component_index >= page.components().size()) {
    return invalid("component " + std::to_string(*tensor.component_index) + " of layer " +
                   std::to_string(tensor.layer_index) + ": there are " + std::to_string(page.components().size()) +
                   ", counted from 0");
  }
  if (tensor.data == nullptr) return invalid(text_of(page, tensor) + " has no address");
  return {};
}

}  // namespace

std::vector<std::vector<Fragment>> fragments_of(const PoolGeometry& geometry, std::byte* memory) {
  std::vector<std::vector<Fragment>> layers(geometry.page().layer_count());
  const std::uint64_t layer_bytes = geometry.page().layer_bytes();
  for (std::size_t l = 0; l < layers.size(); ++l) {
    layers[l].push_back({.first = memory + (l * geometry.strides().layer),
                         .page_stride = geometry.strides().page,
                         .record_offset = l * layer_bytes,
                         .bytes = layer_bytes});
  }
  return layers;
}

Result<std::vector<std::vector<Fragment>>> fragments_of(const PageGeometry& page,
                                                        std::span<const AdoptedTensor> tensors) {
  const auto invalid = [&](const std::string& why) {
    return fail(ErrorCode::InvalidArgument, "adopting tensors of group " + quoted(page.group().name) + ": " + why);
  };
  std::vector<std::vector<Fragment>> layers(page.layer_count());
  for (const AdoptedTensor& tensor : tensors) {
    QUIRE_TRY(check_tensor(page, tensor));
    const Extent extent = tensor.component_index ? extent_of(page, *tensor.component_index)
                                                 : Extent{.begin = 0, .end = page.layer_bytes()};
    if (tensor.page_stride < extent.end - extent.begin) {
      return invalid(text_of(page, tensor) + " has " + std::to_string(tensor.page_stride) +
                     " bytes from page to page, and " + std::to_string(extent.end - extent.begin) + " in each");
    }
    layers[tensor.layer_index].push_back({.first = tensor.data,
                                          .page_stride = tensor.page_stride,
                                          .record_offset = (tensor.layer_index * page.layer_bytes()) + extent.begin,
                                          .bytes = extent.end - extent.begin});
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    std::ranges::sort(layers[l], {}, &Fragment::record_offset);
    std::uint64_t end = l * page.layer_bytes();
    for (const Fragment& fragment : layers[l]) {
      if (fragment.record_offset < end) {
        return invalid("layer " + std::to_string(l) +
                       " has bytes in two tensors: components that share records, or are given twice, go together");
      }
      if (fragment.record_offset > end) break;
      end += fragment.bytes;
    }
    if (end != (l + 1) * page.layer_bytes()) {
      return invalid("layer " + std::to_string(l) + " has bytes in no tensor, from byte " +
                     std::to_string(end - (l * page.layer_bytes())) + " of " + std::to_string(page.layer_bytes()) +
                     " on: a component is missing, or padding is where components are apart");
    }
  }
  return layers;
}

}  // namespace quire
