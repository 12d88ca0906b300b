// SPDX-License-Identifier: Apache-2.0
#include "tests/remote/fault_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "remote/resp.h"

namespace quire::testing {
namespace {

// Longer than what is said about the state of things.
constexpr std::size_t kLongAnswerBytes = 1000;

sockaddr_un address_of(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  QUIRE_CHECK(path.size() < sizeof(address.sun_path), "a socket's path is too long");
  std::ranges::copy(path, std::begin(address.sun_path));
  return address;
}

bool send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

// The first whole answer, taken off the front; empty when it is not all there.
std::string take_answer(std::string& bytes) {
  RespCollector collector;
  std::string_view rest = bytes;
  if (collector.take(rest) != RespTaken::Taken) return "";
  std::string answer = bytes.substr(0, bytes.size() - rest.size());
  bytes.erase(0, answer.size());
  return answer;
}

}  // namespace

FaultProxy::FaultProxy(const std::string& server_path, std::uint16_t port)
    : server_path_(server_path), listener_(::socket(port > 0 ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const std::string path = directory_.path() + "/proxy";
  url_ = port > 0 ? "redis://127.0.0.1:" + std::to_string(port) : "unix://" + path;
  const sockaddr_un unix_address = address_of(path);
  const sockaddr_in port_address{
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  const bool is_bound =
      port > 0 ? ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&port_address), sizeof(port_address)) == 0
               : ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&unix_address), sizeof(unix_address)) == 0;
  QUIRE_CHECK(is_bound && ::listen(listener_.get(), 64) == 0, "the proxy cannot listen");
  acceptor_ = std::thread([this] { accept_all(); });
}

FaultProxy::~FaultProxy() {
  std::vector<std::thread> threads;
  {
    const MutexLock lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  (void)::shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  cut_all();
  {
    const MutexLock lock(mutex_);
    threads = std::move(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  const MutexLock lock(mutex_);
  for (const int socket : sockets_) (void)::close(socket);
}

void FaultProxy::set(Fault fault, bool is_of_values) {
  const MutexLock lock(mutex_);
  fault_ = fault;
  is_of_values_ = is_of_values;
  has_happened_ = false;
  changed_.notify_all();
}

bool FaultProxy::has_happened() {
  const MutexLock lock(mutex_);
  return has_happened_;
}

void FaultProxy::cut_all() {
  const MutexLock lock(mutex_);
  for (const int socket : sockets_) (void)::shutdown(socket, SHUT_RDWR);
}

void FaultProxy::accept_all() {
  while (true) {
    const int client = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    const int server = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_un address = address_of(server_path_);
    const MutexLock lock(mutex_);
    sockets_.push_back(client);
    sockets_.push_back(server);
    if (is_stopping_ || ::connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      (void)::shutdown(client, SHUT_RDWR);
      continue;
    }
    ++connection_count_;
    threads_.emplace_back([this, client, server] { pass_requests(client, server); });
    threads_.emplace_back([this, client, server] { pass_answers(client, server); });
  }
}

bool FaultProxy::pause(std::optional<Fault> fault) {
  const auto next = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  const MutexLock lock(mutex_);
  while (std::chrono::steady_clock::now() < next && (!fault || fault_ == *fault) && !is_stopping_) {
    changed_.wait_until(mutex_, next);
  }
  return !is_stopping_;
}

void FaultProxy::pass_requests(int client, int server) {
  std::vector<char> buffer(std::size_t{1} << 16U);
  for (bool goes_on = true; goes_on;) {
    const std::size_t pace = request_bytes_per_ms_;
    const std::size_t bytes_max = pace == 0 ? buffer.size() : std::min(pace, buffer.size());
    const ssize_t count = ::recv(client, buffer.data(), bytes_max, 0);
    goes_on = count > 0 && send_all(server, {buffer.data(), static_cast<std::size_t>(count)}) &&
              (pace == 0 || pause(std::nullopt));
  }
  (void)::shutdown(server, SHUT_RDWR);
}

void FaultProxy::pass_answers(int client, int server) {
  std::vector<char> buffer(std::size_t{1} << 16U);
  std::string kept;
  for (ssize_t count = 1; count > 0;) {
    count = ::recv(server, buffer.data(), buffer.size(), 0);
    if (count > 0 && !pass(client, {buffer.data(), static_cast<std::size_t>(count)}, kept)) break;
  }
  (void)::shutdown(client, SHUT_RDWR);
}

// False: the connection is to end.
bool FaultProxy::pass(int client, std::string_view bytes, std::string& kept) {
  MutexLock lock(mutex_);
  const bool is_short = kept.size() + bytes.size() < kLongAnswerBytes;
  while ((fault_ == Fault::Hold || (fault_ == Fault::HoldShort && is_short)) && !is_stopping_) changed_.wait(mutex_);
  if (is_stopping_) return false;
  // What was kept for a fault that has ended, or that has happened to another connection, goes first.
  std::string changed = std::exchange(kept, {}) + std::string(bytes);
  bytes = changed;
  const bool is_long = changed.size() >= kLongAnswerBytes;
  const Fault slow = fault_;
  if (slow == Fault::Throttle || slow == Fault::HoldShort) {
    lock.unlock();
    while (!bytes.empty()) {
      const std::string_view piece = bytes.substr(0, bytes_per_ms_);
      if (!send_all(client, piece)) return false;
      answered_bytes_ += piece.size();
      bytes.remove_prefix(piece.size());
      if (!pause(slow)) return false;
    }
    return true;
  }
  if (!has_happened_ && (is_long || !is_of_values_)) {
    if (fault_ == Fault::Garbage || (fault_ == Fault::Cut && is_long)) {
      has_happened_ = true;
      changed = fault_ == Fault::Garbage ? "HTTP/1.1 400 Bad Request\r\n\r\n" : changed.substr(0, changed.size() / 2);
      lock.unlock();
      (void)send_all(client, changed);
      return false;
    }
    if (fault_ == Fault::Other) {
      has_happened_ = true;
      changed = "*0\r\n";
    } else if (fault_ == Fault::FlipBit && is_long) {
      has_happened_ = true;
      changed[changed.size() / 2] ^= 4;
    } else if (fault_ == Fault::Extra) {
      std::string rest = changed;
      const std::string first = take_answer(rest);
      has_happened_ = !first.empty();
      if (has_happened_) {
        changed = first + first + rest;
      } else {
        kept = std::exchange(changed, {});
      }
    } else if (fault_ == Fault::Swap && is_long) {
      std::string rest = changed;
      const std::string first = take_answer(rest);
      const std::string second = first.empty() ? "" : take_answer(rest);
      has_happened_ = !second.empty();
      if (has_happened_) {
        changed = second + first + rest;
      } else {
        kept = std::exchange(changed, {});
      }
    }
  }
  lock.unlock();
  answered_bytes_ += changed.size();
  return send_all(client, changed);
}

}  // namespace quire::testing
