// SPDX-License-Identifier: Apache-2.0
//
// A made-up workload that needs no file: what a service with several tenants sees in half an hour. Numbers depend on
// the seed alone, on every machine.
#pragma once

#include <cstdint>

#include "trace.h"

namespace quire {

/// Chats, agents with sub-agents, crowds that ask about one document, batch jobs and one-off requests, with their
/// outputs and in the order of their timestamps. Tenants are key spaces with equal system prompts and partly equal
/// documents: a cache that shared anything between them would show it.
[[nodiscard]] Trace demo_workload(std::uint64_t seed);

}  // namespace quire
