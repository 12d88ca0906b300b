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
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/descriptor.h"

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
    const RedisEndpoint endpoint{.host = "127.0.0.1", .port = ntohs(address.sin_port)};
    EXPECT_TRUE(lane_.begin(*address_in_numbers(endpoint), endpoint, login_).has_value());
    peer_ = Descriptor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    while (lane_.state() != RedisLane::State::Ready) EXPECT_TRUE(lane_.go_on(*this, false).has_value());
    for (std::size_t i = 0; i < kValueBytes; ++i) value_[i] = static_cast<std::byte>(i * 7 % 251);
  }
  // Goes on once, and says how much that moved.
  std::uint64_t go_on() {
    const std::uint64_t before = lane_.moved_bytes();
    EXPECT_TRUE(lane_.go_on(*this, true).has_value());
    return lane_.moved_bytes() - before;
  }

  RedisLogin login_{.connect_timeout_ns = 1'000'000'000, .command_timeout_ns = 1'000'000'000};
  Descriptor listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  RedisLane lane_{0};
  Descriptor peer_;
  std::vector<std::byte> value_ = std::vector<std::byte>(kValueBytes);
  std::vector<std::byte> got_;
  bool has_ended_ = false;
  bool is_in_place_ = false;

 private:
  bool expects_answer(const RedisLane& /*lane*/) override { return !has_ended_; }
  bool expects_value(const RedisLane& /*lane*/) override { return !has_ended_; }
  std::optional<RedisLane::Target> target(const RedisLane& /*lane*/, std::uint64_t bytes) override {
    if (bytes != got_.size()) return std::nullopt;
    target_ = {std::span(got_)};
    return target_;
  }
  void value_ended(RedisLane& /*lane*/, bool is_in_place) override {
    has_ended_ = true;
    is_in_place_ = is_in_place;
  }
  bool answered(RedisLane& /*lane*/, const RespValue& /*answer*/) override { return false; }
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

TEST_F(RedisLaneTest, AValueThatDoesNotFitIsDropped) {
  got_.resize(3);
  (void)::send(peer_.get(), "$4\r\nabcd\r\n", 10, MSG_NOSIGNAL);
  while (!has_ended_) (void)go_on();
  EXPECT_FALSE(is_in_place_);
  EXPECT_EQ(got_, std::vector<std::byte>(3));
}

}  // namespace
}  // namespace quire
