// SPDX-License-Identifier: Apache-2.0
//
// The smallest user of an installed quire: includes the public headers, opens a cache, prints the version.
#include <cstdio>
#include <utility>

#include "quire/quire.h"

int main() {
  auto layout = quire::preset("llama-3-8b");
  if (!layout.has_value()) return 1;

  const auto cache = quire::Cache::open({.layout = *std::move(layout), .device = {.page_count = 4}});
  if (!cache.has_value()) {
    std::fprintf(stderr, "%s\n", cache.error().message.c_str());
    return 1;
  }
  std::printf("quire %.*s\n", static_cast<int>(quire::kVersion.size()), quire::kVersion.data());
  return 0;
}
