// SPDX-License-Identifier: Apache-2.0
#include "pool_memory.h"
#include "casters.h"

#include <array>
#include <string>
#include <utility>

#include "errors.h"
#include "host_device.h"

namespace quire::python {
namespace {

/// What an array of the pool's memory owns: the cache, and a count, so that the memory is not moved below it.
struct PoolLease {
  std::shared_ptr<HeldCache> cache;
  std::shared_ptr<CacheState> state;
  PoolLease(std::shared_ptr<HeldCache> of, std::shared_ptr<CacheState> counted)
      : cache(std::move(of)), state(std::move(counted)) {
    ++state->pool_arrays;
  }
  PoolLease(const PoolLease&) = delete;
  PoolLease& operator=(const PoolLease&) = delete;
  ~PoolLease() { --state->pool_arrays; }
};

nb::object lease_pool(const std::shared_ptr<CacheState>& state) {
  return nb::capsule(new PoolLease(state->lease(), state),
                     [](void* lease) noexcept { delete static_cast<PoolLease*>(lease); });
}

std::pair<int, int> place_of(const CacheConfig& config) {
  if (config.device.accelerator == nullptr || is_plain_memory(*config.device.accelerator)) {
    return {nb::device::cpu::value, 0};
  }
  return {nb::device::cuda::value, static_cast<int>(config.device.accelerator->index())};
}

nb::dlpack::dtype dtype_of(ElementType element) {
  using Code = nb::dlpack::dtype_code;
  switch (element) {
    case ElementType::Bf16:
      return {static_cast<std::uint8_t>(Code::Bfloat), 16, 1};
    case ElementType::Fp16:
      return {static_cast<std::uint8_t>(Code::Float), 16, 1};
    case ElementType::Fp32:
      return {static_cast<std::uint8_t>(Code::Float), 32, 1};
    case ElementType::Int8:
      return {static_cast<std::uint8_t>(Code::Int), 8, 1};
    case ElementType::Int32:
      return {static_cast<std::uint8_t>(Code::Int), 32, 1};
    case ElementType::Fp8:  // few frameworks take it from others
    case ElementType::Bytes:
      break;
  }
  return {static_cast<std::uint8_t>(Code::UInt), 8, 1};
}

std::uint32_t component_index(const CacheGroup& group, nb::handle component) {
  if (PyLong_Check(component.ptr())) {
    std::uint32_t index = 0;
    if (nb::try_cast(component, index) && index < group.components.size()) return index;
  } else if (std::string name; nb::try_cast(component, name)) {
    for (std::uint32_t i = 0; i < group.components.size(); ++i) {
      if (group.components[i].name == name) return i;
    }
  }
  std::string message =
      "group " + group.name + " has no component " + nb::cast<std::string>(nb::repr(component)) + "; it has";
  for (const Component& known : group.components) message += " " + known.name;
  raise(ErrorCode::InvalidArgument, message);
}

}  // namespace

void need_group(const Cache& cache, std::uint32_t group_index) {
  const std::size_t count = cache.config().layout.groups().size();
  if (group_index >= count) {
    raise(ErrorCode::InvalidArgument, "group_index is " + std::to_string(group_index) + ", and the layout has " +
                                          std::to_string(count) + " groups");
  }
  if (!has_pages(cache.config().layout.groups()[group_index])) {
    raise(ErrorCode::InvalidArgument, "group " + std::to_string(group_index) + " has no pages: see state_memory()");
  }
}

nb::object memory_of(const std::shared_ptr<CacheState>& state, std::byte* memory, std::uint64_t bytes,
                     const CacheConfig& config) {
  if (memory == nullptr) return nb::none();
  const auto [type, index] = place_of(config);
  return nb::cast(nb::ndarray<nb::array_api>(memory, {static_cast<std::size_t>(bytes)}, lease_pool(state), {},
                                             nb::dtype<std::uint8_t>(), type, index));
}

nb::object component_memory(const std::shared_ptr<CacheState>& state, std::uint32_t group_index, nb::handle component) {
  const CacheState::ByteAccess access(*state);
  need_group(*access, group_index);
  std::byte* memory = access->device_memory(group_index);
  if (memory == nullptr) return nb::none();
  const PoolGeometry& pool = access->geometry(group_index);
  const CacheGroup& group = pool.page().group();
  const std::uint32_t index = component_index(group, component);
  const ElementType element = group.components[index].element;
  const std::uint64_t bytes = element_bytes(element);
  const ComponentStrides& strides = pool.page().components()[index];
  const std::array<std::uint64_t, 4> in_bytes = {pool.strides().page, pool.strides().layer, strides.token,
                                                 strides.head};
  std::array<std::int64_t, 5> elements{};
  for (std::size_t i = 0; i < in_bytes.size(); ++i) {
    if (in_bytes[i] % bytes != 0 || strides.offset % bytes != 0) {
      raise(ErrorCode::Unsupported, "component " + group.components[index].name +
                                        " does not lie at whole elements in its records: use device_memory()");
    }
    elements[i] = static_cast<std::int64_t>(in_bytes[i] / bytes);
  }
  elements[4] = 1;
  const std::array<std::size_t, 5> shape = {pool.page_count(), pool.page().layer_count(), pool.page().entry_count(),
                                            pool.page().heads_on_rank(index, 0).count, strides.head_bytes / bytes};
  const auto [type, device] = place_of(access->config());
  return nb::cast(nb::ndarray<nb::array_api>(memory + strides.offset, shape.size(), shape.data(), lease_pool(state),
                                             elements.data(), dtype_of(element), type, device));
}

void need_no_pool_arrays(const CacheState& state, const char* call) {
  const std::int64_t count = state.pool_arrays;
  if (count == 0) return;
  raise(ErrorCode::Unavailable, std::to_string(count) + " arrays of the cache's memory are alive, and " + call +
                                    "() would take it from below them: drop them first");
}

}  // namespace quire::python
