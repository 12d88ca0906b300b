// SPDX-License-Identifier: Apache-2.0
//
// Runs the tests that need a GPU. Where there is none, it says so once, as GoogleTest says it of a test, so that nobody
// takes what was not run for what has passed.
#include <cstdio>
#include <string>

#include <gtest/gtest.h>

#include "tests/gpu/device_buffer.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string why = quire::testing::why_no_gpu();
  if (why.empty() || GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  const int count = ::testing::UnitTest::GetInstance()->total_test_count();
  std::printf("%d tests were NOT run, because no GPU can be used here: %s.\n", count, why.c_str());
  std::printf("[  SKIPPED ] Gpu.%dTestsNeedAGpu (0 ms)\n", count);
  return 0;
}
