// SPDX-License-Identifier: Apache-2.0
//
// The pools' memory for Python: DLPack tensors that own a share of the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cache_state.h"
#include "casters.h"
#include "quire/cache.h"

namespace quire::python {

/// Raises unless the layout has the group, and it has pages.
void need_group(const Cache& cache, std::uint32_t group_index);
/// Raises while arrays are alive that `call` would take the memory from below of.
void need_no_pool_arrays(const CacheState& state, const char* call);

/// An array of so many bytes of the cache's; None for null.
[[nodiscard]] nb::object memory_of(const std::shared_ptr<CacheState>& state, std::byte* memory, std::uint64_t bytes,
                                   const CacheConfig& config);
/// [page][layer][entry][head][dim] of a component, which is given by its name or number.
[[nodiscard]] nb::object component_memory(const std::shared_ptr<CacheState>& state, std::uint32_t group_index,
                                          nb::handle component);

}  // namespace quire::python
