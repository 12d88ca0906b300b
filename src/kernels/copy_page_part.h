// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "quire/layout.h"
#include "quire/plan.h"

namespace quire {

/// Copies the first copy.token_count tokens of a page to another page of the same pool, in all layers and components.
/// `pool` is where the geometry's first byte lies.
void copy_page_part_on_host(const PoolGeometry& geometry, std::byte* pool, const PageCopy& copy);

}  // namespace quire
