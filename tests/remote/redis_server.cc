// SPDX-License-Identifier: Apache-2.0
#include "tests/remote/redis_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "base/check.h"
#include "remote/cluster_slots.h"
#include "tests/remote/comes_true.h"

namespace quire::testing {
namespace {

constexpr TimeNs kLong = 20'000'000'000;

RespValue lost(const Error& error) {
  return {.kind = RespKind::Error, .text = error.message};
}

}  // namespace

std::string& server_program() {
  static std::string program;
  return program;
}

std::uint16_t free_port() {
  const Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  QUIRE_CHECK(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), bytes) == 0, "there is no free port");
  QUIRE_CHECK(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0, "a socket has a name");
  const std::uint16_t port = ntohs(address.sin_port);
  // A cluster's nodes listen at a port that is 10,000 higher, too.
  return port < 55'000 ? port : free_port();
}

RedisServer::RedisServer(Options options) : options_(std::move(options)) {
  if (options_.has_port || options_.is_cluster) port_ = free_port();
  start();
}

RedisServer::~RedisServer() {
  kill();
}

void RedisServer::start() {
  QUIRE_CHECK(pid_ == 0, "the server runs");
  std::vector<std::string> arguments = {server_program(),
                                        "--port",
                                        std::to_string(port_),
                                        "--bind",
                                        "127.0.0.1",
                                        "--save",
                                        "",
                                        "--appendonly",
                                        "no",
                                        "--dir",
                                        directory_.path(),
                                        "--logfile",
                                        "log",
                                        "--loglevel",
                                        "warning",
                                        "--unixsocket",
                                        socket_path(),
                                        "--hz",
                                        "100"};
  if (options_.is_cluster) {
    for (const char* const more :
         {"--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no",
          "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0"}) {
      arguments.emplace_back(more);
    }
  }
  arguments.insert(arguments.end(), options_.more.begin(), options_.more.end());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  (void)::unlink(socket_path().c_str());
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  QUIRE_CHECK(pid_ >= 0, "there is no process");
  if (pid_ == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    const int null = ::open("/dev/null", O_RDWR);
    (void)::dup2(null, STDIN_FILENO);
    (void)::dup2(null, STDOUT_FILENO);
    ::execvp(pointers[0], pointers.data());
    ::_exit(127);
  }
  // A port that is a server's own is heard of by TCP; one with TLS only is heard of by its Unix socket.
  const bool is_up = comes_true([&] {
    int status = 0;
    QUIRE_CHECK(::waitpid(pid_, &status, WNOHANG) == 0, "the server has ended at once: see its log");
    const RespValue answer = call({"PING"});
    return answer.kind != RespKind::Error || answer.text.starts_with("NOAUTH") || answer.text.starts_with("NOPERM") ||
           answer.text.starts_with("LOADING");
  });
  QUIRE_CHECK(is_up, "the server does not answer");
}

void RedisServer::kill() {
  if (pid_ == 0) return;
  (void)::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  pid_ = 0;
}

void RedisServer::stop() {
  (void)::kill(pid_, SIGSTOP);
}

void RedisServer::go_on() {
  (void)::kill(pid_, SIGCONT);
}

RespValue RedisServer::call(std::initializer_list<std::string_view> arguments) {
  const RedisEndpoint endpoint{.host = socket_path(), .is_unix = true};
  const RedisLogin login{.seeds = {endpoint}, .connect_timeout_ns = kLong, .command_timeout_ns = kLong};
  auto session = RedisSession::open(endpoint, login);
  if (!session.has_value()) return lost(session.error());
  auto answer = (*session)->call(arguments);
  return answer.has_value() ? *std::move(answer) : lost(answer.error());
}

RedisClusterServers::RedisClusterServers(std::uint32_t primary_count, bool has_replicas)
    : primary_count_(primary_count) {
  for (std::uint32_t i = 0; i < primary_count * (has_replicas ? 2 : 1); ++i) {
    servers_.push_back(std::make_unique<RedisServer>(RedisServer::Options{.is_cluster = true}));
  }
  for (std::uint32_t i = 0; i < primary_count; ++i) {
    const std::uint32_t first = kClusterSlots * i / primary_count;
    const std::uint32_t last = (kClusterSlots * (i + 1) / primary_count) - 1;
    const RespValue answer = primary(i).call({"CLUSTER", "ADDSLOTSRANGE", std::to_string(first), std::to_string(last)});
    QUIRE_CHECK(answer.text == "OK", answer.text.c_str());
    (void)primary(i).call({"CLUSTER", "SET-CONFIG-EPOCH", std::to_string(i + 1)});
  }
  for (std::uint32_t i = 1; i < servers_.size(); ++i) {
    (void)primary(0).call({"CLUSTER", "MEET", "127.0.0.1", std::to_string(servers_[i]->port())});
  }
  QUIRE_CHECK(comes_together(), "the cluster does not come together");
  for (std::uint32_t i = 0; has_replicas && i < primary_count; ++i) {
    QUIRE_CHECK(comes_true([&] { return replica(i).call({"CLUSTER", "REPLICATE", id_of(primary(i))}).text == "OK"; }),
                "a replica does not know its primary");
    QUIRE_CHECK(comes_true([&] {
                  return replica(i).call({"INFO", "replication"}).text.find("master_link_status:up") !=
                         std::string::npos;
                }),
                "a replica does not follow its primary");
  }
}

bool RedisClusterServers::comes_together() {
  const std::string node_count = "cluster_known_nodes:" + std::to_string(servers_.size()) + "\r";
  const auto is_well = [&](const auto& server) {
    const std::string info = server->call({"CLUSTER", "INFO"}).text;
    return info.find("cluster_state:ok") != std::string::npos && info.find(node_count) != std::string::npos &&
           info.find("cluster_slots_ok:16384") != std::string::npos;
  };
  return comes_true([&] { return std::ranges::all_of(servers_, is_well); });
}

std::uint32_t RedisClusterServers::owner_of(std::uint16_t slot) const {
  std::uint32_t owner = 0;
  while (slot >= kClusterSlots * (owner + 1) / primary_count_) ++owner;
  return owner;
}

std::vector<std::string> RedisClusterServers::urls() const {
  std::vector<std::string> urls;
  for (std::uint32_t i = 0; i < primary_count_; ++i) urls.push_back(servers_[i]->url());
  return urls;
}

std::string RedisClusterServers::id_of(RedisServer& server) {
  return server.call({"CLUSTER", "MYID"}).text;
}

void RedisClusterServers::move_slot(std::uint16_t slot, RedisServer& from, RedisServer& to) {
  const std::string number = std::to_string(slot);
  (void)to.call({"CLUSTER", "SETSLOT", number, "IMPORTING", id_of(from)});
  (void)from.call({"CLUSTER", "SETSLOT", number, "MIGRATING", id_of(to)});
  while (true) {
    const RespValue keys = from.call({"CLUSTER", "GETKEYSINSLOT", number, "1"});
    if (keys.parts.empty()) break;
    const RespValue moved =
        from.call({"MIGRATE", "127.0.0.1", std::to_string(to.port()), keys.parts[0].text, "0", "10000"});
    QUIRE_CHECK(moved.text == "OK" || moved.text == "NOKEY", moved.text.c_str());
  }
  (void)to.call({"CLUSTER", "SETSLOT", number, "NODE", id_of(to)});
  (void)from.call({"CLUSTER", "SETSLOT", number, "NODE", id_of(to)});
}

}  // namespace quire::testing
