// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_lane.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/descriptor.h"
#include "base/hash.h"

namespace quire {
namespace {

constexpr std::size_t kValueBytes = 16'000'000;
// With what stands around a value.
constexpr std::uint64_t kReadBytesMax = (std::uint64_t{512} << 10U) + 20'000;
constexpr std::uint64_t kWriteBytesMax = (std::uint64_t{4} << 20U) + 20'000;

/// A lane to a socket of this process, which sends one value and gets one.
class RedisLaneTest : public ::testing::Test, private RedisLane::Owner {
 protected:
  RedisLaneTest() {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t bytes = sizeof(address);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    endpoint_ = {.host = "127.0.0.1", .port = ntohs(address.sin_port)};
    connect();
    for (std::size_t i = 0; i < kValueBytes; ++i) value_[i] = static_cast<std::byte>(i * 7 % 251);
  }
  void connect() {
    lane_.close();
    EXPECT_TRUE(lane_.begin(*address_in_numbers(endpoint_), endpoint_, login_).has_value());
    peer_ = Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    while (lane_.state() != RedisLane::State::Ready) EXPECT_TRUE(lane_.go_on(*this, false).has_value());
  }
  void hear(std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::send(peer_.get(), text.data(), text.size(), MSG_NOSIGNAL);
      ASSERT_GT(count, 0);
      text.remove_prefix(static_cast<std::size_t>(count));
    }
  }
  bool goes_on() { return lane_.go_on(*this, true).has_value(); }
  // Until the connection is of no use, and why.
  std::string go_on_to_the_end() {
    while (true) {
      const Status status = lane_.go_on(*this, true);
      if (!status.has_value()) return status.error().message;
    }
  }
  // Goes on once, and says how much that moved.
  std::uint64_t go_on() {
    const std::uint64_t before = lane_.moved_bytes();
    EXPECT_TRUE(lane_.go_on(*this, true).has_value());
    return lane_.moved_bytes() - before;
  }

  RedisLogin login_{.connect_timeout_ns = 1'000'000'000, .command_timeout_ns = 1'000'000'000};
  RedisEndpoint endpoint_;
  Descriptor listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  RedisLane lane_{0};
  Descriptor peer_;
  std::vector<std::byte> value_ = std::vector<std::byte>(kValueBytes);
  std::vector<std::byte> got_;
  bool is_value_expected_ = true;
  bool has_ended_ = false;
  bool is_in_place_ = false;
  std::uint32_t answer_count_ = 0;

 private:
  bool expects_answer(const RedisLane& /*lane*/) override { return !has_ended_; }
  bool expects_value(const RedisLane& /*lane*/) override { return is_value_expected_ && !has_ended_; }
  std::optional<RedisLane::Target> target(const RedisLane& /*lane*/, std::uint64_t bytes) override {
    if (bytes != got_.size()) return std::nullopt;
    target_ = {std::span(got_)};
    return target_;
  }
  void value_ended(RedisLane& /*lane*/, bool is_in_place) override {
    has_ended_ = true;
    is_in_place_ = is_in_place;
  }
  Status answered(RedisLane& /*lane*/, const RespValue& /*answer*/) override {
    ++answer_count_;
    if (!is_value_expected_) return {};
    return fail(ErrorCode::Corrupt, "no answer but a value is expected");
  }
  RedisLane::Source source(const RedisLane& /*lane*/) override {
    source_ = {std::span(value_)};
    return source_;
  }

  std::array<std::span<std::byte>, 1> target_;
  std::array<std::span<const std::byte>, 1> source_;
};

TEST_F(RedisLaneTest, ACallSendsAPartOfALargeValueAndSaysThatThereIsMore) {
  lane_.send_value(0, kValueBytes, "tail");
  std::vector<std::byte> heard(kValueBytes + 4);
  std::thread peer([&] {
    for (std::size_t count = 0; count < heard.size();) {
      count += static_cast<std::size_t>(
          std::max<ssize_t>(::recv(peer_.get(), heard.data() + count, heard.size() - count, 0), 0));
    }
  });
  while (lane_.is_sending_value()) {
    EXPECT_LE(go_on(), kWriteBytesMax);
    EXPECT_TRUE(lane_.has_more() || lane_.waits_to_write() || !lane_.is_sending_value());
  }
  peer.join();
  EXPECT_TRUE(std::equal(value_.begin(), value_.end(), heard.begin()));
}

TEST_F(RedisLaneTest, ACallReadsAPartOfALargeValue) {
  got_.resize(kValueBytes);
  const std::string head = "$" + std::to_string(kValueBytes) + "\r\n";
  std::thread peer([&] {
    (void)::send(peer_.get(), head.data(), head.size(), MSG_NOSIGNAL);
    (void)::send(peer_.get(), value_.data(), value_.size(), MSG_NOSIGNAL);
    (void)::send(peer_.get(), "\r\n", 2, MSG_NOSIGNAL);
  });
  while (!has_ended_) EXPECT_LE(go_on(), kReadBytesMax);
  peer.join();
  EXPECT_TRUE(is_in_place_);
  EXPECT_EQ(got_, value_);
}

TEST_F(RedisLaneTest, AnEmptyValueFitsATargetWithoutBytes) {
  (void)::send(peer_.get(), "$0\r\n\r\n", 6, MSG_NOSIGNAL);
  while (!has_ended_) (void)go_on();
  EXPECT_TRUE(is_in_place_);
}

TEST_F(RedisLaneTest, WhatIsSaidInBetweenIsNoAnswer) {
  got_.resize(4);
  hear(">2\r\n+a\r\n$2\r\nbc\r\n|1\r\n+d\r\n:5\r\n>1\r\n*1\r\n_\r\n$4\r\nabcd\r\n");
  while (!has_ended_) (void)go_on();
  EXPECT_TRUE(is_in_place_);
  EXPECT_EQ(answer_count_, 0U);
  EXPECT_EQ(std::memcmp(got_.data(), "abcd", 4), 0);
}

TEST_F(RedisLaneTest, ALengthIsNotBelieved) {
  got_.resize(4);
  hear("$536870912\r\n" + std::string(300'000, 'x'));
  (void)::shutdown(peer_.get(), SHUT_WR);
  EXPECT_EQ(go_on_to_the_end(), "the server closed the connection");
  EXPECT_FALSE(has_ended_);
  EXPECT_EQ(got_, std::vector<std::byte>(4));
  for (const bool is_value : {true, false}) {
    is_value_expected_ = is_value;
    // Of a value, half a gigabyte is the most that a server has; an answer of that length is none.
    connect();
    hear(is_value ? "$536870913\r\n" : "$536870912\r\n");
    EXPECT_EQ(go_on_to_the_end(), "what came is no answer in the protocol of Redis");
  }
}

TEST_F(RedisLaneTest, AnErrorThatNobodyAskedForIsTold) {
  has_ended_ = true;
  hear("-ERR max number");
  for (std::uint64_t heard = 0; heard < 15;) heard += go_on();
  hear(" of clients\r\n");
  EXPECT_EQ(go_on_to_the_end(), "it has too many clients already: raise its maxclients");
  connect();
  hear("-ERR I am tired\r\n");
  EXPECT_EQ(go_on_to_the_end(), "the server said without being asked: ERR I am tired");
  connect();
  hear("+OK");
  EXPECT_EQ(go_on_to_the_end(), "the server said something that nobody asked for");
}

// Whatever is said, in whatever pieces, ends; the sanitizers watch what becomes of it.
TEST_F(RedisLaneTest, AnythingMayBeSaid) {
  constexpr std::array<std::string_view, 24> kParts = {
      "$4\r\nabcd\r\n", "$4\r\n",          "abcd",   "\r\n",     ">1\r\n",  "|1\r\n",         "+x\r\n", "-ERR x\r\n",
      ":1\r\n",         "*2\r\n",          "*0\r\n", "$-1\r\n",  "_\r\n",   "%1\r\n",         "~1\r\n", "$0\r\n\r\n",
      "!3\r\nERR\r\n",  "=5\r\ntxt:a\r\n", "#t\r\n", ",1.5\r\n", "*-1\r\n", "$536870912\r\n", "\r",     "\xff"};
  got_.resize(4);
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    is_value_expected_ = seed % 2 == 0;
    has_ended_ = false;
    connect();
    for (std::uint64_t i = 0, word = mix64(seed); i < 1 + (seed % 40); ++i, word = mix64(word)) {
      hear(kParts[word % kParts.size()]);
      if (word % 5 == 0 && !goes_on()) break;
    }
    (void)::shutdown(peer_.get(), SHUT_WR);
    EXPECT_NE(go_on_to_the_end(), "");
  }
}

TEST_F(RedisLaneTest, AValueThatDoesNotFitIsDropped) {
  got_.resize(3);
  (void)::send(peer_.get(), "$4\r\nabcd\r\n", 10, MSG_NOSIGNAL);
  while (!has_ended_) (void)go_on();
  EXPECT_FALSE(is_in_place_);
  EXPECT_EQ(got_, std::vector<std::byte>(3));
}

}  // namespace
}  // namespace quire
