// SPDX-License-Identifier: Apache-2.0
//
// remote_drop: how long a drop of many small values takes on a server that is started for it, and how long others wait
// meanwhile: a connection asks PING again and again.
//
//   remote_drop [--server=redis-server] [--keys=1000000] [--other_keys=0]
//
// A line for people, and a JSON document as the last line. Of `other_keys` nothing is dropped.
#include <poll.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.h"
#include "quire/redis_store.h"
#include "remote/redis_login.h"
#include "remote/redis_session.h"
#include "remote/resp.h"
#include "tests/remote/redis_server.h"

namespace quire::bench {
namespace {

constexpr TimeNs kLongNs = 60'000'000'000;

struct Options {
  std::string server = "redis-server";
  std::uint64_t keys = 1'000'000;
  std::uint64_t other_keys = 0;
};

double ms_now() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A connection of its own.
struct Session {
  explicit Session(const testing::RedisServer& server)
      : endpoint{.host = server.socket_path(), .is_unix = true},
        login{.seeds = {endpoint}, .connect_timeout_ns = kLongNs, .command_timeout_ns = kLongNs},
        session(*RedisSession::open(endpoint, login)) {}

  RedisEndpoint endpoint;
  RedisLogin login;
  std::unique_ptr<RedisSession> session;
};

void fill(Session& to, const std::string& prefix, std::uint64_t count) {
  constexpr std::uint64_t kTogether = 1000;
  for (std::uint64_t begin = 0; begin < count; begin += kTogether) {
    const std::uint64_t end = std::min(count, begin + kTogether);
    std::string commands;
    for (std::uint64_t i = begin; i < end; ++i) {
      append_command(commands, {"SET", prefix + "0123456789abcdef0123456789abcdef:" + std::to_string(i), "a value"});
    }
    QUIRE_CHECK(to.session->send(commands).has_value(), "the server takes nothing");
    for (std::uint64_t i = begin; i < end; ++i) {
      const auto answer = to.session->read_answer();
      QUIRE_CHECK(answer.has_value() && answer->text == "OK", "the server does not keep a value");
    }
  }
}

int run(const Options& options) {
  testing::server_program() = options.server;
  const testing::RedisServer server({.has_port = true});
  Session filler(server);
  fill(filler, "quire:1:dropped:", options.keys);
  fill(filler, "quire:1:other:", options.other_keys);
  const auto store = open_redis_store({.urls = {server.url()}});
  QUIRE_CHECK(store.has_value(), store.error().message.c_str());

  std::atomic<bool> is_over = false;
  std::vector<double> waited_ms;
  std::thread asking([&] {
    Session session(server);
    while (!is_over) {
      const double begin = ms_now();
      QUIRE_CHECK(session.session->call({"PING"}).has_value(), "the server does not answer");
      waited_ms.push_back(ms_now() - begin);
    }
  });
  std::array<RemoteObject, 1> objects = {RemoteObject{.key = "quire:1:dropped:"}};
  const double begin = ms_now();
  QUIRE_CHECK((*store)->try_submit(
                  {.id = 1, .operation = RemoteOperation::DropBelow, .timeout_ns = 10 * kLongNs, .objects = objects}),
              "no room");
  for (std::array<RemoteAnswer, 1> answers; (*store)->poll(answers).empty();) {
    pollfd event{.fd = (*store)->event_fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&event, 1, -1);
  }
  const double drop_ms = ms_now() - begin;
  is_over = true;
  asking.join();
  QUIRE_CHECK(objects[0].outcome == RemoteOutcome::Ok, "the drop has failed");
  const auto left = filler.session->call({"DBSIZE"});
  QUIRE_CHECK(left.has_value() && static_cast<std::uint64_t>(left->number) == options.other_keys, "keys are left");

  std::ranges::sort(waited_ms);
  const auto of_hundred = [&](std::size_t share) { return waited_ms[(waited_ms.size() - 1) * share / 100]; };
  std::printf("drop of %lu keys beside %lu: %.0f ms; PING meanwhile, ms: median %.2f, p99 %.2f, greatest %.2f\n",
              static_cast<unsigned long>(options.keys), static_cast<unsigned long>(options.other_keys), drop_ms,
              of_hundred(50), of_hundred(99), waited_ms.back());
  std::printf("%s\n", nlohmann::json{{"server", options.server},
                                     {"keys", options.keys},
                                     {"other_keys", options.other_keys},
                                     {"drop_ms", drop_ms},
                                     {"ping_ms_p50", of_hundred(50)},
                                     {"ping_ms_p99", of_hundred(99)},
                                     {"ping_ms_max", waited_ms.back()}}
                          .dump()
                          .c_str());
  return 0;
}

bool read_option(std::string_view argument, Options& options) {
  const auto number = [&](std::string_view name, std::uint64_t& out) {
    if (!argument.starts_with(name)) return false;
    const char* const end = argument.data() + argument.size();
    const auto parsed = std::from_chars(argument.data() + name.size(), end, out);
    return parsed.ec == std::errc{} && parsed.ptr == end;
  };
  constexpr std::string_view kServer = "--server=";
  if (argument.starts_with(kServer)) options.server = argument.substr(kServer.size());
  return argument.starts_with(kServer) || number("--keys=", options.keys) ||
         number("--other_keys=", options.other_keys);
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  for (const std::string_view argument : std::span(argv + 1, static_cast<std::size_t>(argc - 1))) {
    if (quire::bench::read_option(argument, options)) continue;
    std::fprintf(stderr, "usage: remote_drop [--server=redis-server] [--keys=N] [--other_keys=N]\n");
    return 2;
  }
  return quire::bench::run(options);
}
