// SPDX-License-Identifier: Apache-2.0
#include "tests/remote/scripted_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "remote/cluster_slots.h"
#include "remote/resp.h"

namespace quire::testing {
namespace {

constexpr std::size_t kLongCommandBytes = 100'000;

bool say(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

std::string bulk(const std::string& text) {
  return "$" + std::to_string(text.size()) + "\r\n" + text + "\r\n";
}

}  // namespace

ScriptedServer::ScriptedServer(Options options, Script script)
    : options_(std::move(options)),
      script_(std::move(script)),
      port_(0),
      listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t bytes = sizeof(address);
  QUIRE_CHECK(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), bytes) == 0 &&
                  ::listen(listener_.get(), 64) == 0 &&
                  ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &bytes) == 0,
              "the server of a script cannot listen");
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_all(); });
}

ScriptedServer::~ScriptedServer() {
  (void)::shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    for (const int client : clients_) (void)::shutdown(client, SHUT_RDWR);
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  const MutexLock lock(mutex_);
  for (const int client : clients_) (void)::close(client);
}

std::uint32_t ScriptedServer::count(const std::string& name) {
  const MutexLock lock(mutex_);
  return static_cast<std::uint32_t>(std::ranges::count(names_, name));
}

void ScriptedServer::accept_all() {
  while (true) {
    const int client = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    const int on = 1;
    (void)::setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    const MutexLock lock(mutex_);
    clients_.push_back(client);
    threads_.emplace_back([this, client] { serve(client); });
  }
}

void ScriptedServer::serve(int client) {
  RespCollector collector;
  std::array<char, 16'384> heard;
  std::size_t bytes = 0;  // of the command that has begun
  for (ssize_t count = 1; count > 0;) {
    count = ::recv(client, heard.data(), heard.size(), 0);
    if (count <= 0) break;
    std::string_view rest(heard.data(), static_cast<std::size_t>(count));
    bytes += rest.size();
    while (collector.take(rest) == RespTaken::Taken) {
      bytes = rest.size();
      Command command;
      for (const RespValue& part : collector.value().parts) command.push_back(part.text);
      if (!answer(client, command)) count = 0;
    }
    if (bytes > kLongCommandBytes && !options_.early.empty() && !say(client, options_.early)) break;
  }
  (void)::shutdown(client, SHUT_RDWR);
}

bool ScriptedServer::answer(int client, const Command& command) {
  std::string text;
  {
    const MutexLock lock(mutex_);
    names_.push_back(command.empty() ? "" : command.front());
    text = script_(command);
  }
  bool is_heard = say(client, text);
  while (is_heard && options_.is_endless) is_heard = say(client, text);
  return is_heard;
}

std::string plain_answer(const ScriptedServer::Command& command) {
  const std::string name = command.empty() ? "" : command.front();
  if (name == "PING") return "+PONG\r\n";
  if (name == "SET" || name == "ASKING") return "+OK\r\n";
  if (name == "GET") return "$-1\r\n";
  if (name == "TOUCH" || name == "UNLINK") return ":0\r\n";
  if (name == "SCAN") return "*2\r\n$1\r\n0\r\n*0\r\n";
  if (name == "CLUSTER") return "-ERR This instance has cluster support disabled\r\n";
  return "-ERR unknown command\r\n";
}

std::string cluster_answer(const ScriptedServer::Command& command, const std::vector<std::uint16_t>& ports) {
  if (command.size() != 2 || command[0] != "CLUSTER") return plain_answer(command);
  std::string slots = "*" + std::to_string(ports.size()) + "\r\n";
  std::string nodes;
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const std::string port = std::to_string(ports[i]);
    const std::string first = std::to_string(kClusterSlots * i / ports.size());
    const std::string last = std::to_string((kClusterSlots * (i + 1) / ports.size()) - 1);
    slots += "*3\r\n:" + first + "\r\n:" + last + "\r\n*2\r\n" + bulk("127.0.0.1") + ":" + port + "\r\n";
    nodes += "node" + port + " 127.0.0.1:" + port + "@1 master - 0 0 1 connected " + first + "-" + last + "\n";
  }
  return command[1] == "SLOTS" ? slots : bulk(nodes);
}

}  // namespace quire::testing
