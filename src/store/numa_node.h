// SPDX-License-Identifier: Apache-2.0
//
// Which NUMA node a device stands at, and which processors that node has, as the system tells in /sys. What it tells is
// not trusted: a file that is missing, or that says something else than it should, gives no answer.
//
// Pure functions of NumaCalls.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

/// What is asked of the system, so that tests can answer.
struct NumaCalls {
  /// What a small file says; empty when it cannot be read, or is not small.
  std::string (*read_text)(const std::string& path);
  /// The processors that the calling thread may run on.
  std::vector<std::uint32_t> (*allowed_processors)();
  /// As pthread_setaffinity_np(): 0, or an error number.
  int (*bind_thread)(pthread_t thread, std::span<const std::uint32_t> processors);

  /// The system's own.
  [[nodiscard]] static const NumaCalls& real();
};

/// "0-3,8,10-11" and a newline, ascending, without repetition: what /sys calls a cpulist. Nothing for anything else,
/// for numbers that no machine has, and for an empty list, which a node without processors has.
[[nodiscard]] std::optional<std::vector<std::uint32_t>> parse_processor_list(std::string_view text);

/// The node of a PCI device, such as "0000:3b:00.0"; nothing where the system does not know.
[[nodiscard]] std::optional<std::uint32_t> find_numa_node(std::string_view pci_bus_id, const NumaCalls& calls);
/// The processors of a node that this thread may run on: those that others have kept it from are not among them.
/// Nothing where the system does not tell the node's.
[[nodiscard]] std::optional<std::vector<std::uint32_t>> processors_of_node(std::uint32_t numa_node,
                                                                           const NumaCalls& calls);

}  // namespace quire
