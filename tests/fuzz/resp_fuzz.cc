// SPDX-License-Identifier: Apache-2.0
//
// For libFuzzer, which brings main(); see docs/testing.md.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "tests/fuzz/resp_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  const auto report = quire::testing::try_resp_input(std::as_bytes(std::span(data, bytes)));
  QUIRE_CHECK(report.wrong.empty(), report.wrong.c_str());
  return 0;
}
