// SPDX-License-Identifier: Apache-2.0
//
// Metrics as text, in the format that Prometheus reads: the same bytes that prometheus-cpp sends.
//
// immutable
#pragma once

#include <span>
#include <string>

#include "metrics/families.h"

namespace quire {

[[nodiscard]] std::string text_of(std::span<const MetricFamily> families);

}  // namespace quire
