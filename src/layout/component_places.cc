// SPDX-License-Identifier: Apache-2.0
#include "layout/component_places.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "base/checked.h"
#include "layout/text.h"

namespace quire {
namespace {

std::uint64_t row_bytes(const Component& component) {
  return std::uint64_t{component.dim} * element_bytes(component.element);
}

std::string span_text(std::uint64_t begin, std::uint64_t bytes) {
  return with_separators(begin) + " to " + with_separators(begin + bytes - 1);
}

/// Places components one after the other. What it adds is checked; everything it returns fits in 64 bits.
class Placer {
 public:
  explicit Placer(const LayerRequest& request) : request_(request), components_(request.group->components) {}

  Result<LayerShape> place() {
    for (std::size_t index = 0; index < components_.size();) {
      std::size_t end = index + 1;
      if (components_[index].placement == Placement::Area) {
        QUIRE_TRY(add_area(index));
      } else {
        while (end < components_.size() && components_[end].placement == Placement::Interleaved) ++end;
        QUIRE_TRY(add_record(index, end));
      }
      index = end;
    }
    QUIRE_TRY_ASSIGN(shape_.layer_bytes, rounded_up(shape_.layer_bytes, shape_.alignment));
    QUIRE_TRY_ASSIGN(shape_.layer_bytes, rounded_up(shape_.layer_bytes, request_.group->layer_multiple_bytes));
    return std::move(shape_);
  }

 private:
  Status add_area(std::size_t index) {
    const Component& component = components_[index];
    const std::uint64_t head_bytes = row_bytes(component);
    const std::uint64_t heads = request_.heads[index];
    QUIRE_TRY(component_bytes(index));
    const bool token_major = request_.head_order == HeadOrder::Nhd;
    QUIRE_TRY_ASSIGN(const std::uint64_t stride,
                     rounded_up(token_major ? heads * head_bytes : head_bytes, component.alignment));
    QUIRE_TRY(begin_at_multiple_of(component.alignment));
    shape_.components.push_back({.offset = shape_.layer_bytes,
                                 .token = stride,
                                 .head = token_major ? head_bytes : request_.entry_count * stride,
                                 .head_bytes = head_bytes});
    QUIRE_TRY_ASSIGN(const std::uint64_t bytes, product(named(index), {{request_.entry_count, request_.unit},
                                                                       {token_major ? 1 : heads, "heads"},
                                                                       {stride, "bytes"}}));
    return add(bytes);
  }

  Status add_record(std::size_t begin, std::size_t end) {
    std::uint64_t record_bytes = 0;
    std::uint32_t alignment = 1;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> places;  // begin and bytes, in the record
    for (std::size_t index = begin; index < end; ++index) {
      const Component& component = components_[index];
      alignment = std::max(alignment, component.alignment);
      QUIRE_TRY_ASSIGN(const std::uint64_t all_bytes, component_bytes(index));
      const std::uint64_t bytes = all_bytes / request_.entry_count;
      QUIRE_TRY_ASSIGN(const std::uint64_t next, rounded_up(record_bytes, component.alignment));
      const std::uint64_t at = component.record_offset ? *component.record_offset : next;
      if (at % component.alignment != 0) {
        return fail(ErrorCode::InvalidArgument, request_.where + ": component " + quoted(component.name) +
                                                    " begins at byte " + with_separators(at) +
                                                    " of its record, which is no multiple of its alignment " +
                                                    with_separators(component.alignment));
      }
      for (std::size_t other = 0; other < places.size(); ++other) {
        const auto [other_at, other_bytes] = places[other];
        // In this form neither sum can wrap around.
        if (at >= other_at ? at - other_at >= other_bytes : other_at - at >= bytes) continue;
        return fail(ErrorCode::InvalidArgument,
                    request_.where + ": components " + quoted(components_[begin + other].name) + " (bytes " +
                        span_text(other_at, other_bytes) + ") and " + quoted(component.name) + " (bytes " +
                        span_text(at, bytes) + ") of the record overlap: move one");
      }
      places.emplace_back(at, bytes);
      QUIRE_TRY_ASSIGN(const std::uint64_t component_end, sum(at, bytes));
      record_bytes = std::max(record_bytes, component_end);
    }
    QUIRE_TRY_ASSIGN(record_bytes, rounded_up(record_bytes, alignment));
    QUIRE_TRY(begin_at_multiple_of(alignment));
    for (std::size_t index = begin; index < end; ++index) {
      const std::uint64_t head_bytes = row_bytes(components_[index]);
      QUIRE_TRY_ASSIGN(const std::uint64_t offset, sum(shape_.layer_bytes, places[index - begin].first));
      shape_.components.push_back(
          {.offset = offset, .token = record_bytes, .head = head_bytes, .head_bytes = head_bytes});
    }
    QUIRE_TRY_ASSIGN(const std::uint64_t bytes,
                     product(request_.where + ": a record per entry of a " + std::string(request_.what),
                             {{request_.entry_count, request_.unit}, {record_bytes, "bytes"}}));
    return add(bytes);
  }

  [[nodiscard]] std::string named(std::size_t index) const {
    return request_.where + ": component " + quoted(components_[index].name) + " of a " + std::string(request_.what);
  }

  [[nodiscard]] Result<std::uint64_t> component_bytes(std::size_t index) const {
    return product(named(index), {{request_.entry_count, request_.unit},
                                  {request_.heads[index], "heads"},
                                  {row_bytes(components_[index]), "bytes"}});
  }

  [[nodiscard]] Result<std::uint64_t> sum(std::uint64_t a, std::uint64_t b) const {
    if (const auto result = checked_add(a, b)) return *result;
    return fail(ErrorCode::InvalidArgument, request_.where + ": one layer of a " + std::string(request_.what) +
                                                " does not fit in 64 bits (" + with_separators(a) + " + " +
                                                with_separators(b) + " bytes): make it smaller");
  }

  [[nodiscard]] Result<std::uint64_t> rounded_up(std::uint64_t bytes, std::uint64_t multiple) const {
    const std::uint64_t rest = bytes % multiple;
    return rest == 0 ? Result<std::uint64_t>(bytes) : sum(bytes, multiple - rest);
  }

  Status begin_at_multiple_of(std::uint32_t alignment) {
    shape_.alignment = std::max(shape_.alignment, alignment);
    QUIRE_TRY_ASSIGN(shape_.layer_bytes, rounded_up(shape_.layer_bytes, alignment));
    return {};
  }

  Status add(std::uint64_t bytes) {
    QUIRE_TRY_ASSIGN(shape_.layer_bytes, sum(shape_.layer_bytes, bytes));
    return {};
  }

  const LayerRequest& request_;
  std::span<const Component> components_;
  LayerShape shape_;
};

}  // namespace

Result<LayerShape> place_components(const LayerRequest& request) {
  return Placer(request).place();
}

}  // namespace quire
