// SPDX-License-Identifier: Apache-2.0
//
// MetricsListener: answers scrapes on threads of its own. listener.cc has the one of prometheus-cpp; a build without it
// has no_listener.cc, which refuses to listen and says so.
//
// thread-safe
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "metrics/families.h"
#include "quire/result.h"

namespace quire {

class MetricsListener {
 public:
  virtual ~MetricsListener() = default;
  [[nodiscard]] virtual std::uint16_t port() const = 0;
};

/// Listens at an address, which is one in numbers, until it is destroyed. `collect` is called by its threads.
[[nodiscard]] Result<std::unique_ptr<MetricsListener>> listen_for_scrapes(
    const std::string& address, std::uint16_t port, std::function<std::vector<MetricFamily>()> collect);

}  // namespace quire
