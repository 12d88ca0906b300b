// SPDX-License-Identifier: Apache-2.0
#include "local_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace quire {

namespace {

constexpr std::chrono::seconds kStartMax{10};
constexpr std::chrono::milliseconds kLookInterval{2};

std::string errno_text() {
  return std::generic_category().message(errno);
}

bool is_listening(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket < 0) return false;
  const bool is_connected = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  ::close(socket);
  return is_connected;
}

// Only calls that are safe in the child of a process with threads. The server gets no Ctrl-C of the terminal, because
// the command ends it in its own time, and is killed with the command.
[[noreturn]] void become_server(const std::vector<char*>& arguments, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, stream);
  if (::getppid() == parent) ::execv(arguments.front(), arguments.data());
  ::_exit(127);
}

}  // namespace

std::string LocalServer::find() {
  const char* const variable = std::getenv("PATH");
  for (const std::string_view name : {"valkey-server", "redis-server"}) {
    std::string_view paths = variable == nullptr ? "" : variable;
    while (!paths.empty()) {
      const std::size_t end = std::min(paths.find(':'), paths.size());
      std::string program = fmt::format("{}/{}", paths.substr(0, end), name);
      if (::access(program.c_str(), X_OK) == 0) return program;
      paths.remove_prefix(std::min(paths.size(), end + 1));
    }
  }
  return "";
}

Result<LocalServer> LocalServer::start(const Options& options) {
  QUIRE_TRY_ASSIGN(TemporaryDirectory directory, TemporaryDirectory::make());
  std::vector<std::string> words = {options.program, "--port", "0", "--unixsocket", directory.path() + "/kv.sock"};
  for (const std::string_view word : {"--unixsocketperm", "700", "--save", "", "--appendonly", "no", "--dir"}) {
    words.emplace_back(word);
  }
  words.push_back(directory.path());
  for (const std::string_view word :
       {"--maxmemory-policy", "allkeys-lru", "--maxmemory-samples", "64", "--maxmemory"}) {
    words.emplace_back(word);
  }
  words.push_back(std::to_string(options.maxmemory_bytes));
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) return fail(ErrorCode::Unavailable, "starting " + options.program + ": " + errno_text());
  if (process == 0) become_server(arguments, parent);
  LocalServer server(std::move(directory), process);
  const auto begin = std::chrono::steady_clock::now();
  while (!is_listening(server.socket_path())) {
    int status = 0;
    if (::waitpid(process, &status, WNOHANG) == process) {
      server.process_ = -1;
      return fail(ErrorCode::Unavailable,
                  fmt::format("{} ended at once, {}", options.program,
                              WIFEXITED(status) ? fmt::format("with status {}", WEXITSTATUS(status)) : "by a signal"));
    }
    if (std::chrono::steady_clock::now() - begin > kStartMax) {
      return fail(ErrorCode::TimedOut,
                  fmt::format("{} does not answer after {} s", options.program, kStartMax.count()));
    }
    std::this_thread::sleep_for(kLookInterval);
  }
  return server;
}

LocalServer::~LocalServer() {
  if (process_ < 0) return;
  ::kill(process_, SIGKILL);  // it has nothing to write
  while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace quire
