// SPDX-License-Identifier: Apache-2.0
//
// Scrapes over the loopback interface, with plain sockets.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX has more in it
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "quire/cache.h"
#include "quire/metrics.h"

namespace quire {
namespace {

/// A connection to a port of this machine, or -1.
int connect_to(const std::string& address, std::uint16_t port) {
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(port);
  inet_pton(AF_INET, address.c_str(), &target.sin_addr);
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(file, reinterpret_cast<const sockaddr*>(&target), sizeof(target)) == 0) return file;
  close(file);
  return -1;
}

/// The whole answer, headers included; empty when nobody listens.
std::string fetch(const std::string& address, std::uint16_t port, std::string_view path = "/metrics") {
  const int file = connect_to(address, port);
  if (file < 0) return "";
  const std::string request = "GET " + std::string(path) + " HTTP/1.0\r\n\r\n";
  EXPECT_EQ(write(file, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 4096> buffer{};
  for (ssize_t count = 0; (count = read(file, buffer.data(), buffer.size())) > 0;) {
    answer.append(buffer.data(), static_cast<std::size_t>(count));
  }
  close(file);
  return answer;
}

std::string scrape(const MetricsServer& server) {
  return fetch("127.0.0.1", server.port());
}

bool has_line(const std::string& text, const std::string& line) {
  return text.find("\n" + line + "\n") != std::string::npos;
}

TEST(MetricsServer, AScrapeHasTheValuesOfTheLastUpdate) {
  const auto server = *MetricsServer::open({.port = 0, .start_time_seconds = 12.5});
  ASSERT_NE(server->port(), 0);
  Stats stats;
  stats.prompt_tokens = 70;
  stats.hit_tokens = 50;
  stats.host_hit_tokens = 20;
  server->update(stats);
  std::string text = scrape(*server);
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200")) << text.substr(0, 80);
  EXPECT_NE(text.find("Content-Type: text/plain"), std::string::npos);
  EXPECT_TRUE(has_line(text,
                       "# HELP quire_prompt_tokens_total Tokens of admitted sequences, and all tokens of resumed "
                       "ones."));
  EXPECT_TRUE(has_line(text, "# TYPE quire_prompt_tokens_total counter"));
  EXPECT_TRUE(has_line(text, "quire_prompt_tokens_total 70"));
  EXPECT_TRUE(has_line(text, "quire_hit_tokens_total{tier=\"device\"} 30"));
  EXPECT_TRUE(has_line(text, "quire_hit_tokens_total{tier=\"host\"} 20"));
  EXPECT_TRUE(has_line(text, "# TYPE quire_pages gauge"));
  EXPECT_TRUE(has_line(text, "quire_start_time_seconds 12.5"));
  EXPECT_EQ(text.find("quire_disk_used_bytes"), std::string::npos);

  stats.prompt_tokens = 71;
  server->update(stats);
  server->update(DiskStatus{.used_bytes = std::uint64_t{1} << 40U, .uses_io_uring = true, .is_direct = true});
  text = scrape(*server);
  EXPECT_TRUE(has_line(text, "quire_prompt_tokens_total 71"));
  EXPECT_TRUE(has_line(text, "quire_disk_used_bytes 1099511627776"));
  EXPECT_TRUE(has_line(text, "quire_disk_info{io=\"io_uring\",direct=\"yes\",registered_buffers=\"no\"} 1"));
}

TEST(MetricsServer, ObservationsFillTheBucketsAtAndAboveThem) {
  const auto server = *MetricsServer::open({});
  server->observe(TimedCall::PlanStep, 5'000);
  server->observe(TimedCall::PlanStep, 6'000);
  const std::array<Completion, 3> completions = {
      Completion{.kind = TransferKind::LoadFromBelow, .busy_ns = 20'000'000'000},
      Completion{.kind = TransferKind::LoadFromBelow, .tier = Tier::Remote, .busy_ns = 3'000'000'000},
      Completion{.kind = TransferKind::Store, .busy_ns = 0}};  // nobody knows how long it took
  server->observe(completions);
  server->observe_ready(-5);
  server->observe({.matched_tokens = 40, .loading_tokens = 20}, 80);
  server->observe({.miss = {.reason = MissReason::Evicted, .tier = Tier::Host, .age_ns = 90'000'000'000}}, 10);
  const std::string text = "\n" + server->text();
  EXPECT_TRUE(has_line(text, "# TYPE quire_call_seconds histogram"));
  EXPECT_TRUE(has_line(text, "quire_call_seconds_count{call=\"plan_step\"} 2"));
  EXPECT_TRUE(has_line(text, "quire_call_seconds_bucket{call=\"plan_step\",le=\"2e-06\"} 0"));
  EXPECT_TRUE(has_line(text, "quire_call_seconds_bucket{call=\"plan_step\",le=\"5e-06\"} 1"));
  EXPECT_TRUE(has_line(text, "quire_call_seconds_bucket{call=\"plan_step\",le=\"1e-05\"} 2"));
  EXPECT_TRUE(has_line(text, "quire_call_seconds_bucket{call=\"plan_step\",le=\"+Inf\"} 2"));
  EXPECT_TRUE(has_line(text, "quire_transfer_seconds_bucket{kind=\"load_from_disk\",le=\"10\"} 0"));
  EXPECT_TRUE(has_line(text, "quire_transfer_seconds_sum{kind=\"load_from_disk\"} 20"));
  EXPECT_TRUE(has_line(text, "quire_transfer_seconds_sum{kind=\"load_from_remote\"} 3"));
  EXPECT_EQ(text.find("quire_transfer_seconds_sum{kind=\"store\"}"), std::string::npos);
  EXPECT_TRUE(has_line(text, "quire_ready_seconds_sum 0"));
  EXPECT_TRUE(has_line(text, "quire_ready_seconds_count 1"));
  EXPECT_TRUE(has_line(text, "quire_matched_tokens_sum 60"));
  EXPECT_TRUE(has_line(text, "quire_request_tokens_sum 90"));
  EXPECT_TRUE(has_line(text, "quire_matched_ratio_sum 0.75"));
  EXPECT_TRUE(has_line(text, "quire_miss_age_seconds_bucket{tier=\"host\",le=\"60\"} 0"));
  EXPECT_TRUE(has_line(text, "quire_miss_age_seconds_bucket{tier=\"host\",le=\"300\"} 1"));
}

TEST(MetricsServer, TheTextIsByteForByteWhatAScrapeGets) {
  const auto server = *MetricsServer::open({.port = 0, .start_time_seconds = 1'700'000'000.125});
  Stats stats{.page_count = 7, .prompt_tokens = (std::uint64_t{1} << 60U) + 1, .load_bytes_per_ns = 1.0 / 3};
  server->update(stats);
  server->update(DiskStatus{.last_error = "a \"quoted\" path\\ and\na line"});
  server->observe(TimedCall::Begin, 1'234'567);
  server->observe({.matched_tokens = 1}, 3);
  const std::string text = server->text();
  EXPECT_NE(scrape(*server).find(text), std::string::npos) << text;
}

TEST(MetricsServer, ACacheIsDescribed) {
  CacheConfig config{.layout = *preset("llama-3-8b"), .device = {.page_count = 8}};
  config.device.memory = DeviceMemory::None;
  const auto cache = *Cache::open(std::move(config));
  const auto server = *MetricsServer::open({});
  server->describe(*cache);
  server->update(*cache->stats());
  const std::string text = server->text();
  EXPECT_TRUE(has_line(text, "quire_page_tokens 16"));
  EXPECT_TRUE(has_line(text, "quire_page_bytes 2097152"));
  EXPECT_TRUE(has_line(text, "quire_policy_info{device=\"lru\",host=\"none\"} 1"));
  EXPECT_TRUE(has_line(text, "quire_pages{tier=\"device\",state=\"free\"} 8"));
  EXPECT_TRUE(has_line(text, "quire_tier_capacity_bytes{tier=\"device\"} 16777216"));
  EXPECT_EQ(text.find("quire_disk_write_budget_bytes"), std::string::npos);
}

TEST(MetricsServer, WithoutAPortNobodyListens) {
  const auto server = *MetricsServer::open({});
  EXPECT_EQ(server->port(), 0);
  EXPECT_NE(server->text().find("quire_info{version="), std::string::npos);
}

TEST(MetricsServer, ListensOnLoopbackOnlyUnlessAskedOtherwise) {
  // Every address in 127/8 is this machine, and only one of them is 127.0.0.1.
  const auto closed = *MetricsServer::open({.port = 0});
  EXPECT_EQ(fetch("127.0.0.2", closed->port()), "");
  EXPECT_NE(fetch("127.0.0.1", closed->port()), "");
  const auto open = *MetricsServer::open({.port = 0, .address = "0.0.0.0"});
  EXPECT_NE(fetch("127.0.0.2", open->port()), "");
}

TEST(MetricsServer, APortInUseIsRefusedWithTheReason) {
  const auto first = *MetricsServer::open({.port = 0});
  const auto second = MetricsServer::open({.port = first->port()});
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::Unavailable);
  EXPECT_EQ(second.error().message, "cannot listen on 127.0.0.1:" + std::to_string(first->port()) +
                                        ": Address already in use: choose another address or port, 0 for a free one");
  EXPECT_NE(scrape(*first), "");
}

TEST(MetricsServer, APortIsFreeAgainOnceItsServerIsGone) {
  auto server = *MetricsServer::open({.port = 0});
  const std::uint16_t port = server->port();
  EXPECT_NE(scrape(*server), "");
  server.reset();
  EXPECT_EQ(fetch("127.0.0.1", port), "");
  server = *MetricsServer::open({.port = port});
  EXPECT_EQ(server->port(), port);
}

TEST(MetricsServer, AnAddressIsWrittenInNumbers) {
  for (const char* address : {"", "localhost", "127.0.0.1:80", "127.0.0.1,8080", "1.2.3"}) {
    const auto server = MetricsServer::open({.port = 0, .address = address});
    ASSERT_FALSE(server.has_value()) << address;
    EXPECT_EQ(server.error().code, ErrorCode::InvalidArgument);
    EXPECT_EQ(server.error().message,
              "address \"" + std::string(address) + "\" is not one: write it in numbers, such as 127.0.0.1 or ::1");
  }
  // 192.0.2.0/24 is for documents: no machine has it.
  const auto foreign = MetricsServer::open({.port = 0, .address = "192.0.2.1"});
  ASSERT_FALSE(foreign.has_value());
  EXPECT_NE(foreign.error().message.find("Cannot assign requested address"), std::string::npos)
      << foreign.error().message;
}

TEST(MetricsServer, OnlyMetricsAreServed) {
  const auto server = *MetricsServer::open({.port = 0});
  for (const char* path : {"/", "/other", "/../../../../etc/passwd"}) {
    const std::string answer = fetch("127.0.0.1", server->port(), path);
    EXPECT_NE(answer.substr(0, answer.find('\r')).find(" 404 "), std::string::npos) << path;
  }
}

TEST(MetricsServer, WhatSignalsDoStaysAsItWas) {
  struct sigaction before{};
  sigaction(SIGPIPE, nullptr, &before);
  sigset_t mask_before;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_before);
  const auto server = *MetricsServer::open({.port = 0});
  struct sigaction after{};
  sigaction(SIGPIPE, nullptr, &after);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
  sigset_t mask_after;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask_after);
  EXPECT_EQ(sigismember(&mask_after, SIGTERM), sigismember(&mask_before, SIGTERM));
  // A client that goes away in the middle of an answer: the process must live on.
  for (int i = 0; i < 20; ++i) {
    const int file = connect_to("127.0.0.1", server->port());
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(file, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    constexpr std::string_view kRequest = "GET /metrics HTTP/1.0\r\n\r\n";
    EXPECT_GT(write(file, kRequest.data(), kRequest.size()), 0);
    close(file);
  }
  EXPECT_NE(scrape(*server), "");
}

TEST(MetricsServer, AClientThatSaysNothingDelaysNobody) {
  auto server = *MetricsServer::open({.port = 0});
  const int silent = connect_to("127.0.0.1", server->port());
  ASSERT_GE(silent, 0);
  EXPECT_NE(scrape(*server), "");
  server.reset();
  close(silent);
}

// For the thread sanitizer; and each scrape is of one snapshot, never of half of two.
TEST(MetricsServer, UpdatesAndScrapesDoNotMix) {
  const auto server = *MetricsServer::open({.port = 0});
  server->update(Stats{});
  std::atomic<bool> is_done = false;
  std::thread engine([&] {
    for (std::uint64_t i = 1; !is_done; ++i) {
      server->update(Stats{.planned_step_count = i, .short_plan_count = i});
      server->update(DiskStatus{.used_bytes = i, .last_error = std::string(100, 'x')});
      server->observe(TimedCall::Admit, 1'000);
      server->observe({.matched_tokens = 3}, 4);
      server->observe_ready(1);
    }
  });
  const auto value_of = [](const std::string& text, const std::string& name) {
    const std::size_t begin = text.find("\n" + name + " ") + name.size() + 2;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  const auto look = [&] {
    for (int i = 0; i < 30; ++i) {
      const std::string text = scrape(*server);
      EXPECT_EQ(value_of(text, "quire_steps_total"), value_of(text, "quire_short_plans_total"));
      EXPECT_EQ(value_of(text, "quire_request_tokens_count"), value_of(text, "quire_matched_tokens_count"));
    }
  };
  std::thread other(look);
  look();
  other.join();
  is_done = true;
  engine.join();
}

}  // namespace
}  // namespace quire
