// SPDX-License-Identifier: Apache-2.0
//
// remote_redis_store: values through a RemoteStore on Redis or Valkey, plain and over TLS, beside a loop that does
// nothing but read and write the protocol on one socket, and beside hiredis where it is installed, in turn, on a server
// that is started for it. A server without TLS is measured without.
//
//   remote_redis_store [--server=redis-server] [--bytes=536870912] [--repetitions=5] [--plain]
//
// A table for people, and a JSON document as the last line: of each size and way bytes per second, median (least to
// greatest), and CPU seconds of this process and of the server per GB; from these follows what one could do with a core
// each, on a machine that is busy with other things too. The loop keeps as many bytes in flight as the store. Then a
// lookup of 8,192 names beside the same loop, and what the calls cost that the engine's thread makes.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/descriptor.h"
#include "quire/redis_store.h"
#include "remote/resp.h"
#include "testing/temp_directory.h"
#include "tests/remote/redis_server.h"
#include "tests/remote/test_certificates.h"

#if __has_include(<hiredis/hiredis.h>)
#include <hiredis/hiredis.h>
#define QUIRE_BENCH_HIREDIS 1
#endif

namespace quire::bench {
namespace {

using testing::RedisServer;

constexpr std::uint64_t kWindowBytes = std::uint64_t{8} << 20U;
constexpr std::size_t kNames = 8192;

struct Options {
  std::string server = "redis-server";
  std::uint64_t bytes = std::uint64_t{1} << 29U;
  std::uint32_t repetitions = 5;
  bool is_plain = false;  // neither TLS nor hiredis
};

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double cpu_seconds() {
  rusage usage{};
  (void)getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + (1e-6 * static_cast<double>(t.tv_usec));
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double server_cpu_seconds(RedisServer& server) {
  const std::string info = server.call({"INFO", "cpu"}).text;
  double seconds = 0;
  for (const std::string_view name : {"used_cpu_sys:", "used_cpu_user:"}) {
    const std::size_t place = info.find(name);
    if (place != std::string::npos) seconds += std::strtod(info.c_str() + place + name.size(), nullptr);
  }
  return seconds;
}

/// What one way has done, turn by turn.
struct Turns {
  std::vector<double> bytes_per_second;
  std::vector<double> cpu_per_gb;
  std::vector<double> server_cpu_per_gb;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values.empty() ? 0 : values[values.size() / 2];
}

/// The median of the ratios of two ways in the same turn: machines are slower for a while now and then.
double ratio(const std::vector<double>& figures, const std::vector<double>& beside) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < figures.size(); ++i) ratios.push_back(figures[i] / beside[i]);
  return median(ratios);
}

void take_turn(Turns& turns, RedisServer& server, std::uint64_t bytes, const std::function<void()>& work) {
  const double server_cpu = server_cpu_seconds(server);
  const double cpu = cpu_seconds();
  const double begin = seconds_now();
  work();
  turns.bytes_per_second.push_back(static_cast<double>(bytes) / (seconds_now() - begin));
  turns.cpu_per_gb.push_back((cpu_seconds() - cpu) / (static_cast<double>(bytes) / 1e9));
  turns.server_cpu_per_gb.push_back((server_cpu_seconds(server) - server_cpu) / (static_cast<double>(bytes) / 1e9));
}

/// Values and where they lie in memory; the same memory for all ways.
struct Work {
  std::size_t value_bytes = 0;
  std::vector<std::string> keys;  // of a turn, in order
  std::vector<std::byte> memory;  // as large as the window twice
  [[nodiscard]] std::span<std::byte> value(std::size_t index) {
    const std::size_t places = memory.size() / value_bytes;
    return std::span(memory).subspan((index % places) * value_bytes, value_bytes);
  }
};

// ── the loop ─────────────────────────────────────────────────────────────────────────────────────────────────────────

class RawLoop {
 public:
  explicit RawLoop(std::uint16_t port) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    QUIRE_CHECK(::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0,
                "no server");
    const int on = 1;
    (void)setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  void put(Work& work) {
    std::size_t unanswered = 0;
    for (std::size_t i = 0; i < work.keys.size(); ++i) {
      std::string head;
      append_argument_count(head, 3);
      append_argument(head, "SET");
      append_argument(head, work.keys[i]);
      append_argument_bytes(head, work.value_bytes);
      const auto value = work.value(i);
      std::string tail = "\r\n";
      std::array<iovec, 3> pieces = {iovec{head.data(), head.size()}, iovec{value.data(), value.size()},
                                     iovec{tail.data(), tail.size()}};
      move_all(pieces, [&](iovec* first, int count) { return ::writev(socket_.get(), first, count); });
      if (++unanswered * work.value_bytes >= kWindowBytes) {
        read_lines(1);
        --unanswered;
      }
    }
    read_lines(unanswered);
  }

  void get(Work& work) {
    const std::size_t depth = std::max<std::size_t>(kWindowBytes / work.value_bytes, 1);
    for (std::size_t i = 0; i < std::min(depth, work.keys.size()); ++i) ask("GET", work.keys[i]);
    for (std::size_t i = 0; i < work.keys.size(); ++i) {
      read_value(work.value(i));
      if (i + depth < work.keys.size()) ask("GET", work.keys[i + depth]);
    }
  }

  void find(const std::vector<std::string>& names) {
    std::string text;
    std::size_t unanswered = 0;
    for (const std::string& name : names) {
      append_command(text, {"TOUCH", name});
      ++unanswered;
      if (text.size() < 60'000) continue;
      send(text);
      text.clear();
    }
    send(text);
    read_lines(unanswered);
  }

 private:
  template <typename Move>
  void move_all(std::span<iovec> pieces, Move move) {
    while (!pieces.empty()) {
      ssize_t count = move(pieces.data(), static_cast<int>(pieces.size()));
      QUIRE_CHECK(count > 0, "the server is gone");
      while (!pieces.empty() && static_cast<std::size_t>(count) >= pieces[0].iov_len) {
        count -= static_cast<ssize_t>(pieces[0].iov_len);
        pieces = pieces.subspan(1);
      }
      if (pieces.empty()) return;
      pieces[0].iov_base = static_cast<char*>(pieces[0].iov_base) + count;
      pieces[0].iov_len -= static_cast<std::size_t>(count);
    }
  }
  void send(std::string& text) {
    std::array<iovec, 1> piece = {iovec{text.data(), text.size()}};
    move_all(piece, [&](iovec* first, int count) { return ::writev(socket_.get(), first, count); });
  }
  void ask(std::string_view command, const std::string& key) {
    std::string text;
    append_command(text, {command, key});
    send(text);
  }
  void fill() {
    std::copy(input_.begin() + begin_, input_.begin() + end_, input_.begin());
    end_ -= begin_;
    begin_ = 0;
    const ssize_t count = ::read(socket_.get(), input_.data() + end_, input_.size() - static_cast<std::size_t>(end_));
    QUIRE_CHECK(count > 0, "the server is gone");
    end_ += count;
  }
  std::string_view read_line() {
    while (true) {
      const std::string_view all(input_.data() + begin_, static_cast<std::size_t>(end_ - begin_));
      if (const std::size_t line = all.find('\n'); line != std::string_view::npos) {
        begin_ += static_cast<std::ptrdiff_t>(line) + 1;
        return all.substr(0, line - 1);
      }
      fill();
    }
  }
  void read_lines(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) QUIRE_CHECK(read_line()[0] != '-', "the server refuses");
  }
  void read_value(std::span<std::byte> target) {
    const std::string_view line = read_line();
    QUIRE_CHECK(line == "$" + std::to_string(target.size()), "another value");
    const std::size_t there = std::min<std::size_t>(target.size(), static_cast<std::size_t>(end_ - begin_));
    std::copy_n(reinterpret_cast<const std::byte*>(input_.data()) + begin_, there, target.begin());
    begin_ += static_cast<std::ptrdiff_t>(there);
    for (std::span<std::byte> rest = target.subspan(there); !rest.empty();) {
      begin_ = end_ = 0;
      const std::array<iovec, 2> pieces = {iovec{rest.data(), rest.size()}, iovec{input_.data(), 512}};
      const ssize_t count = ::readv(socket_.get(), pieces.data(), 2);
      QUIRE_CHECK(count > 0, "the server is gone");
      const std::size_t taken = std::min<std::size_t>(rest.size(), static_cast<std::size_t>(count));
      end_ = count - static_cast<ssize_t>(taken);
      rest = rest.subspan(taken);
    }
    QUIRE_CHECK(read_line().empty(), "a value without an end");
  }

  Descriptor socket_;
  std::array<char, 16'384> input_{};
  std::ptrdiff_t begin_ = 0;
  std::ptrdiff_t end_ = 0;
};

// ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────

void wait_for_answer(RemoteStore& store) {
  std::array<RemoteAnswer, 1> answers;
  while (store.poll(answers).empty()) {
    pollfd event{.fd = store.event_fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&event, 1, -1);
  }
}

void run_store(RemoteStore& store, RemoteOperation operation, Work& work) {
  const std::size_t count = work.keys.size();
  std::vector<std::span<std::byte>> targets(count);
  std::vector<std::span<const std::byte>> sources(count);
  std::vector<RemoteObject> objects(count);
  for (std::size_t i = 0; i < count; ++i) {
    objects[i].key = work.keys[i];
    if (operation == RemoteOperation::Find) continue;
    targets[i] = work.value(i);
    sources[i] = targets[i];
    if (operation == RemoteOperation::Get) objects[i].target = std::span(targets).subspan(i, 1);
    if (operation == RemoteOperation::Put) objects[i].source = std::span(sources).subspan(i, 1);
  }
  QUIRE_CHECK(store.try_submit({.id = 1, .operation = operation, .timeout_ns = 60'000'000'000, .objects = objects}),
              "no room");
  wait_for_answer(store);
  for (const RemoteObject& object : objects) {
    QUIRE_CHECK(object.outcome == RemoteOutcome::Ok || operation == RemoteOperation::Find, "an object that is not ok");
  }
}

// ── hiredis ──────────────────────────────────────────────────────────────────────────────────────────────────────────

#ifdef QUIRE_BENCH_HIREDIS
class Hiredis {
 public:
  explicit Hiredis(std::uint16_t port) : context_(redisConnect("127.0.0.1", port), &redisFree) {
    QUIRE_CHECK(context_ != nullptr && context_->err == 0, "no server");
  }
  void put(Work& work) {
    run(work, [&](std::size_t i) {
      const auto value = work.value(i);
      (void)redisAppendCommand(context_.get(), "SET %b %b", work.keys[i].data(), work.keys[i].size(), value.data(),
                               value.size());
    });
  }
  void get(Work& work) {
    run(work, [&](std::size_t i) {
      (void)redisAppendCommand(context_.get(), "GET %b", work.keys[i].data(), work.keys[i].size());
    });
  }

 private:
  template <typename Append>
  void run(Work& work, Append append) {
    const std::size_t depth = std::max<std::size_t>(kWindowBytes / work.value_bytes, 1);
    for (std::size_t i = 0; i < std::min(depth, work.keys.size()); ++i) append(i);
    for (std::size_t i = 0; i < work.keys.size(); ++i) {
      void* answer = nullptr;
      QUIRE_CHECK(redisGetReply(context_.get(), &answer) == REDIS_OK, "the server is gone");
      auto* const reply = static_cast<redisReply*>(answer);
      if (reply->type == REDIS_REPLY_STRING)
        std::copy_n(reinterpret_cast<std::byte*>(reply->str), reply->len, work.value(i).begin());
      freeReplyObject(answer);
      if (i + depth < work.keys.size()) append(i + depth);
    }
  }

  std::unique_ptr<redisContext, decltype(&redisFree)> context_;
};
#endif

// ── all of it ────────────────────────────────────────────────────────────────────────────────────────────────────────

nlohmann::json report(const std::string& name, const Turns& turns) {
  const auto [least, greatest] = std::ranges::minmax(turns.bytes_per_second);
  const double client = median(turns.cpu_per_gb);
  const double server = median(turns.server_cpu_per_gb);
  std::printf("%-22s %6.2f GB/s (%.2f to %.2f)  CPU s/GB: client %.3f, server %.3f  core each %.2f GB/s\n",
              name.c_str(), median(turns.bytes_per_second) / 1e9, least / 1e9, greatest / 1e9, client, server,
              1 / std::max(client, server));
  return {{"name", name},
          {"bytes_per_second", median(turns.bytes_per_second)},
          {"cpu_seconds_per_gb", client},
          {"server_cpu_seconds_per_gb", server}};
}

/// A server that was built without TLS knows no such setting.
bool has_tls() {
  RedisServer server;
  const RespValue answer = server.call({"CONFIG", "GET", "tls-port"});
  return !answer.parts.empty();
}

std::vector<std::string> tls_arguments(const testing::TestCertificates& files, std::uint16_t port) {
  if (!has_tls()) return {};
  return {"--tls-port",   std::to_string(port), "--tls-cert-file", files.certificate_file, "--tls-key-file",
          files.key_file, "--tls-ca-cert-file", files.ca_file,     "--tls-auth-clients",   "no"};
}

int run(const Options& options) {
  testing::server_program() = options.server;
  const testing::TempDirectory directory;
  const testing::TestCertificates files = testing::make_certificates(directory.path(), "bench", "127.0.0.1");
  const std::uint16_t tls_port = testing::free_port();
  const std::vector<std::string> with_tls = tls_arguments(files, tls_port);
  RedisServer server({.has_port = true, .more = with_tls});
  const auto opened = open_redis_store({.urls = {server.url()}, .window_bytes = kWindowBytes});
  QUIRE_CHECK(opened.has_value(), opened.error().message.c_str());
  RemoteStore& store = **opened;
  std::unique_ptr<RemoteStore> tls_store;
  if (!with_tls.empty()) {
    auto tls_opened = open_redis_store({.urls = {"rediss://127.0.0.1:" + std::to_string(tls_port)},
                                        .ca_file = files.ca_file,
                                        .window_bytes = kWindowBytes});
    QUIRE_CHECK(tls_opened.has_value(), tls_opened.error().message.c_str());
    tls_store = *std::move(tls_opened);
  }
  RawLoop loop(server.port());
  nlohmann::json results = nlohmann::json::array();

  for (const std::size_t value_bytes : {std::size_t{512} << 10U, std::size_t{2} << 20U, std::size_t{4608} << 10U}) {
    Work work{.value_bytes = value_bytes, .memory = std::vector<std::byte>(32U << 20U, std::byte{7})};
    for (std::uint64_t i = 0; i < options.bytes / value_bytes; ++i) {
      work.keys.push_back("quire:bench:" + std::to_string(value_bytes) + ":" + std::to_string(i % 64));
    }
    const std::uint64_t bytes = work.keys.size() * value_bytes;
    std::array<Turns, 8> turns;
#ifdef QUIRE_BENCH_HIREDIS
    Hiredis hiredis(server.port());
#endif
    loop.put(work);
    for (std::uint32_t i = 0; i < options.repetitions; ++i) {
      // Whoever goes second finds the server's caches warm, so they take turns at that, too.
      for (const bool is_loop : {i % 2 == 0, i % 2 != 0}) {
        take_turn(turns[is_loop ? 0 : 1], server, bytes,
                  [&] { is_loop ? loop.put(work) : run_store(store, RemoteOperation::Put, work); });
      }
      for (const bool is_loop : {i % 2 == 0, i % 2 != 0}) {
        take_turn(turns[is_loop ? 2 : 3], server, bytes,
                  [&] { is_loop ? loop.get(work) : run_store(store, RemoteOperation::Get, work); });
      }
      if (options.is_plain) continue;
      if (tls_store != nullptr) {
        take_turn(turns[6], server, bytes, [&] { run_store(*tls_store, RemoteOperation::Put, work); });
        take_turn(turns[7], server, bytes, [&] { run_store(*tls_store, RemoteOperation::Get, work); });
      }
#ifdef QUIRE_BENCH_HIREDIS
      take_turn(turns[4], server, bytes, [&] { hiredis.put(work); });
      take_turn(turns[5], server, bytes, [&] { hiredis.get(work); });
#endif
    }
    const std::array<const char*, 8> names = {"put loop",    "put store",   "get loop",      "get store",
                                              "put hiredis", "get hiredis", "put store TLS", "get store TLS"};
    for (std::size_t i = 0; i < turns.size(); ++i) {
      if (turns[i].cpu_per_gb.empty()) continue;
      results.push_back(report(std::string(names[i]) + " " + std::to_string(value_bytes >> 10U) + " KiB", turns[i]));
    }
    for (const std::size_t i : {0U, 2U}) {
      std::printf("%-24s %8.2f of the loop's rate, %.2f of its CPU\n", i == 0 ? "put store / loop" : "get store / loop",
                  ratio(turns[i + 1].bytes_per_second, turns[i].bytes_per_second),
                  ratio(turns[i + 1].cpu_per_gb, turns[i].cpu_per_gb));
      if (turns[6].cpu_per_gb.empty()) continue;
      std::printf("%-24s %8.2f of the store's CPU, %.2f of the server's\n",
                  i == 0 ? "put TLS / plain" : "get TLS / plain",
                  ratio(turns[6 + (i / 2)].cpu_per_gb, turns[i + 1].cpu_per_gb),
                  ratio(turns[6 + (i / 2)].server_cpu_per_gb, turns[i + 1].server_cpu_per_gb));
    }
    if (!turns[4].bytes_per_second.empty()) {
      std::printf("%-24s %8.2f of hiredis\n", "put store / hiredis",
                  ratio(turns[1].bytes_per_second, turns[4].bytes_per_second));
    }
    (void)server.call({"FLUSHALL"});
  }

  Work names;
  for (std::size_t i = 0; i < kNames; ++i) {
    names.keys.push_back("quire:1:tenant:0123456789abcdef0123456789abcdef0123456789abcdef:" + std::to_string(i));
  }
  Turns by_loop;
  Turns by_store;
  for (std::uint32_t i = 0; i < 5 * options.repetitions; ++i) {
    take_turn(by_loop, server, 1, [&] { loop.find(names.keys); });
    take_turn(by_store, server, 1, [&] { run_store(store, RemoteOperation::Find, names); });
  }
  const double loop_ms = 1e3 / median(by_loop.bytes_per_second);
  const double store_ms = 1e3 / median(by_store.bytes_per_second);
  std::printf("%-24s %8.2f ms, loop %.2f ms\n", "lookup of 8192 names", store_ms, loop_ms);
  results.push_back({{"name", "lookup 8192"}, {"ms", store_ms}, {"loop_ms", loop_ms}});

  // What the engine's thread pays: submitting and polling a question about 64 names.
  std::vector<RemoteObject> objects(64);
  for (std::size_t i = 0; i < objects.size(); ++i) objects[i].key = names.keys[i];
  std::vector<double> submit_us;
  std::vector<double> poll_us;
  for (int i = 0; i < 2000; ++i) {
    const double begin = seconds_now();
    QUIRE_CHECK(store.try_submit({.id = 1, .operation = RemoteOperation::Find, .objects = objects}), "no room");
    submit_us.push_back(1e6 * (seconds_now() - begin));
    pollfd event{.fd = store.event_fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&event, 1, -1);
    std::array<RemoteAnswer, 1> answers;
    const double end = seconds_now();
    QUIRE_CHECK(store.poll(answers).size() == 1, "no answer");
    poll_us.push_back(1e6 * (seconds_now() - end));
  }
  std::printf("%-24s %8.2f us, poll %.2f us\n", "try_submit of 64 names", median(submit_us), median(poll_us));
  results.push_back({{"name", "calls"}, {"submit_us", median(submit_us)}, {"poll_us", median(poll_us)}});
  std::printf("%s\n", nlohmann::json{{"server", options.server}, {"results", results}}.dump().c_str());
  return 0;
}

bool read_option(std::string_view argument, Options& options) {
  const auto number = [](std::string_view text, auto& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc{} && end == text.data() + text.size() && out > 0;
  };
  const auto value = [&](std::string_view name, std::string_view& out) {
    if (!argument.starts_with(name)) return false;
    out = argument.substr(name.size());
    return true;
  };
  if (argument == "--plain") return options.is_plain = true;
  std::string_view text;
  if (value("--bytes=", text)) return number(text, options.bytes);
  if (value("--repetitions=", text)) return number(text, options.repetitions);
  if (value("--server=", text)) options.server = text;
  return !text.empty();
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  quire::bench::Options options;
  for (const std::string_view argument : std::span(argv + 1, static_cast<std::size_t>(argc - 1))) {
    if (quire::bench::read_option(argument, options)) continue;
    std::fprintf(stderr, "usage: remote_redis_store [--server=redis-server] [--bytes=N] [--repetitions=N] [--plain]\n");
    return 2;
  }
  return quire::bench::run(options);
}
