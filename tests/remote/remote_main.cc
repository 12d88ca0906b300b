// SPDX-License-Identifier: Apache-2.0
//
// Runs the tests that need a server, with the program that the first argument names. Where that is not installed, it
// says so once, as GoogleTest says it of a test, so that nobody takes what was not run for what has passed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "tests/remote/redis_server.h"

namespace {

std::string find_program(const std::string& name) {
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string program = folder + "/" + name;
    if (::access(program.c_str(), X_OK) == 0) return program;
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const std::string name = argc > 1 ? argv[1] : "redis-server";
  quire::testing::server_program() = find_program(name);
  if (!quire::testing::server_program().empty() || GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  const int count = ::testing::UnitTest::GetInstance()->total_test_count();
  std::printf("%d tests were NOT run, because %s is not installed.\n", count, name.c_str());
  std::printf("[  SKIPPED ] RemoteStore.%dTestsNeedAServer (0 ms)\n", count);
  return 0;
}
