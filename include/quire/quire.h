// SPDX-License-Identifier: Apache-2.0
//
// Everything quire offers to its users.
#pragma once

#include "quire/budget.h"              // IWYU pragma: export
#include "quire/cache.h"               // IWYU pragma: export
#include "quire/cache_group.h"         // IWYU pragma: export
#include "quire/chunk_index.h"         // IWYU pragma: export
#include "quire/config.h"              // IWYU pragma: export
#include "quire/device.h"              // IWYU pragma: export
#include "quire/device_plan_buffer.h"  // IWYU pragma: export
#include "quire/disk_store.h"          // IWYU pragma: export
#include "quire/entry_formats.h"       // IWYU pragma: export
#include "quire/host_kernels.h"        // IWYU pragma: export
#include "quire/introspect.h"          // IWYU pragma: export
#include "quire/key_space.h"           // IWYU pragma: export
#include "quire/layout.h"              // IWYU pragma: export
#include "quire/mover.h"               // IWYU pragma: export
#include "quire/plan.h"                // IWYU pragma: export
#include "quire/policy.h"              // IWYU pragma: export
#include "quire/quantised_kernels.h"   // IWYU pragma: export
#include "quire/redis_inspect.h"       // IWYU pragma: export
#include "quire/redis_store.h"         // IWYU pragma: export
#include "quire/remote_store.h"        // IWYU pragma: export
#include "quire/result.h"              // IWYU pragma: export
#include "quire/state_slots.h"         // IWYU pragma: export
#include "quire/stats.h"               // IWYU pragma: export
#include "quire/swap.h"                // IWYU pragma: export
#include "quire/swap_kernels.h"        // IWYU pragma: export
#include "quire/transfer.h"            // IWYU pragma: export
#include "quire/types.h"               // IWYU pragma: export
#include "quire/version.h"             // IWYU pragma: export
