// SPDX-License-Identifier: Apache-2.0
#include "local_server.h"

#include <sys/stat.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(LocalServer, EndsWithItsOwnerAndLeavesNothing) {
  const std::string program = LocalServer::find();
  if (program.empty()) GTEST_SKIP() << "neither valkey-server nor redis-server is installed";
  pid_t process = 0;
  std::string path;
  {
    Result<LocalServer> started = LocalServer::start({.program = program, .maxmemory_bytes = 8U << 20U});
    ASSERT_TRUE(started) << started.error().message;
    const LocalServer server = *std::move(started);
    process = server.process();
    path = server.socket_path();
    struct stat status{};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0077U, 0U) << "only this user may use it";
    EXPECT_EQ(::kill(process, 0), 0);
    EXPECT_EQ(server.url(), "unix://" + path);
  }
  EXPECT_EQ(::kill(process, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  struct stat status{};
  EXPECT_EQ(::stat(path.substr(0, path.rfind('/')).c_str(), &status), -1);
}

TEST(LocalServer, AProgramThatIsNoneIsSaid) {
  const Result<LocalServer> server = LocalServer::start({.program = "/bin/false"});
  ASSERT_FALSE(server);
  EXPECT_EQ(server.error().message, "/bin/false ended at once, with status 1");
}

TEST(LocalServer, WithoutAPathThereIsNone) {
  const std::string path = std::getenv("PATH") == nullptr ? "" : std::getenv("PATH");
  ::setenv("PATH", "/nowhere:", 1);
  EXPECT_EQ(LocalServer::find(), "");
  ::setenv("PATH", path.c_str(), 1);
}

}  // namespace
}  // namespace quire
