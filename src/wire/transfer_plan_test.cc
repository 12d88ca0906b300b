// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/transfer.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

// Exactly as long as they are, so that the address sanitizer sees the first byte behind them. Aligned to 8.
class ExactBytes {
 public:
  explicit ExactBytes(std::size_t count) : bytes_(std::make_unique<std::byte[]>(count)), count_(count) {}
  explicit ExactBytes(std::span<const std::byte> source) : ExactBytes(source.size()) {
    std::ranges::copy(source, bytes_.get());
  }
  [[nodiscard]] std::span<std::byte> all() const { return {bytes_.get(), count_}; }
  void set(std::size_t index, std::uint8_t value) { all()[index] = std::byte{value}; }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t count_;
};

std::vector<PageTransfer> some_pages(std::uint32_t count) {
  std::vector<PageTransfer> pages;
  pages.reserve(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    pages.push_back({.device_page = PageId{i + 7},
                     .host_page = PageId{i + 1},
                     .host_generation = 3 + i,
                     .name_tag = 0x1234567890ABCDEFU + i});
  }
  return pages;
}

TransferPlan some_plan(std::span<const PageTransfer> pages) {
  return {.id = {.index = 17, .generation = 4},
          .kind = TransferKind::Store,
          .priority = TransferPriority::Background,
          .band_count = 6,
          .pool_index = 0x0203,
          .pages = pages};
}

ExactBytes encoded(const TransferPlan& plan) {
  ExactBytes bytes(encoded_bytes(plan.pages.size()));
  EXPECT_EQ(encode(plan, bytes.all()).value().size(), bytes.all().size());
  return bytes;
}

void expect_same(const TransferPlan& a, const TransferPlan& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.priority, b.priority);
  EXPECT_EQ(a.band_count, b.band_count);
  EXPECT_EQ(a.pool_index, b.pool_index);
  EXPECT_TRUE(std::ranges::equal(a.pages, b.pages));
}

void expect_refused(const ExactBytes& bytes, ErrorCode code, const std::string& text) {
  const auto plan = decode(bytes.all());
  ASSERT_FALSE(plan.has_value()) << text;
  EXPECT_EQ(plan.error().code, code);
  EXPECT_NE(plan.error().message.find(text), std::string::npos) << plan.error().message;
}

TEST(TransferPlan, WhatWasEncodedIsDecoded) {
  for (const std::uint32_t count : {0U, 1U, 2U, 300U}) {
    const std::vector<PageTransfer> pages = some_pages(count);
    const ExactBytes bytes = encoded(some_plan(pages));
    const ExactBytes elsewhere(bytes.all());  // The bytes mean the same at another address.
    const TransferPlan plan = decode(elsewhere.all()).value();
    expect_same(plan, some_plan(pages));
    EXPECT_EQ(static_cast<const void*>(plan.pages.data()), elsewhere.all().data() + 32);
  }
  const TransferPlan plain{.id = {.index = 1, .generation = 2}};
  expect_same(decode(encoded(plain).all()).value(), plain);
}

TEST(TransferPlan, BytesBehindAPlanAreNobodysBusiness) {
  const std::vector<PageTransfer> pages = some_pages(2);
  ExactBytes large(encoded_bytes(2) + 100);
  const std::span<std::byte> used = encode(some_plan(pages), large.all()).value();
  EXPECT_EQ(used.data(), large.all().data());
  EXPECT_EQ(used.size(), encoded_bytes(2));
  expect_same(decode(large.all()).value(), some_plan(pages));
}

TEST(TransferPlan, EncodingNeedsRoomAndAPlanThatMeansSomething) {
  const std::vector<PageTransfer> pages = some_pages(2);
  const ExactBytes small(encoded_bytes(2) - 1);
  const auto refused = encode(some_plan(pages), small.all());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "encoding a transfer plan of 2 pages: it takes 80 bytes, and there are 79");
  const ExactBytes bytes(encoded_bytes(2));
  TransferPlan plan = some_plan(pages);
  plan.band_count = 0;
  EXPECT_EQ(encode(plan, bytes.all()).error().message, "encoding a transfer plan: it has 0 bands");
  plan = some_plan(pages);
  plan.kind = static_cast<TransferKind>(2);
  EXPECT_EQ(encode(plan, bytes.all()).error().code, ErrorCode::InvalidArgument);
}

TEST(TransferPlan, ForeignBytesAreRefused) {
  const std::vector<PageTransfer> pages = some_pages(2);
  const auto with = [&](std::size_t index, std::uint8_t value) {
    ExactBytes bytes = encoded(some_plan(pages));
    bytes.set(index, value);
    return bytes;
  };
  expect_refused(ExactBytes(0), ErrorCode::Corrupt, "0 bytes are less than the head");
  expect_refused(ExactBytes(31), ErrorCode::Corrupt, "31 bytes are less than the head");
  expect_refused(ExactBytes(64), ErrorCode::Corrupt, "the bytes are none");
  expect_refused(with(0, 'X'), ErrorCode::Corrupt, "the bytes are none");
  expect_refused(with(4, 3), ErrorCode::Unsupported, "it has version 3, and this build reads version 2");
  expect_refused(with(6, 0), ErrorCode::Corrupt, "0 bands");
  expect_refused(with(8, 2), ErrorCode::Corrupt, "no kind 2");
  expect_refused(with(9, 9), ErrorCode::Corrupt, "no priority 9");
  expect_refused(with(12, 1), ErrorCode::Corrupt, "bytes that must be 0");
  expect_refused(with(30, 1), ErrorCode::Corrupt, "bytes that must be 0");
  expect_refused(with(24, 3), ErrorCode::Corrupt, "3 pages do not fit in 80 bytes");
  expect_refused(with(27, 0xFF), ErrorCode::Corrupt, "pages do not fit");
  const ExactBytes whole = encoded(some_plan(pages));
  expect_refused(ExactBytes(whole.all().first(79)), ErrorCode::Corrupt, "2 pages do not fit in 79 bytes");
}

// Both ends are of one build, so the bytes of another version are told apart and not read.
TEST(TransferPlan, AVersionWithoutPoolsIsRefused) {
  constexpr std::array<std::uint8_t, 32> kHead{'Q', 'T', 'P', '1', 1, 0, 6, 0, 1, 1, 0, 0, 0, 0, 0, 0,   // to zeros
                                               17,  0,   0,   0,   4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0};  // id, pages
  ExactBytes bytes(encoded_bytes(1));
  for (std::size_t i = 0; i < kHead.size(); ++i) bytes.set(i, kHead[i]);
  expect_refused(bytes, ErrorCode::Unsupported, "it has version 1, and this build reads version 2");
  bytes.set(4, 2);
  const TransferPlan plan = decode(bytes.all()).value();
  EXPECT_EQ(plan.id, (TransferId{.index = 17, .generation = 4}));
  EXPECT_EQ(plan.pool_index, 0U);
  bytes.set(10, 5);
  bytes.set(11, 1);
  EXPECT_EQ(decode(bytes.all()).value().pool_index, 0x105U);
}

TEST(TransferPlan, BytesThatAreNotAlignedAreRefused) {
  const ExactBytes bytes(100);
  const auto plan = decode(bytes.all().subspan(4));
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::InvalidArgument);
}

// Whatever the bytes are: an error, or a plan whose every page can be read and which encodes to the same bytes.
TEST(TransferPlan, DamagedBytesAreNeverReadOutOfRange) {
  std::uint32_t decoded_count = 0;
  for (std::uint64_t seed = 1; seed <= 20'000; ++seed) {
    testing::Random random(seed);
    const std::vector<PageTransfer> pages = some_pages(random.below(5));
    const ExactBytes good = encoded(some_plan(pages));
    const std::size_t kept =
        random.below(4) == 0 ? random.below(static_cast<std::uint32_t>(good.all().size() + 1)) : good.all().size();
    ExactBytes bytes(good.all().first(kept));
    for (std::uint32_t change = random.below(4); change > 0 && kept > 0; --change) {
      const std::size_t at = random.below(random.below(2) == 0 && kept > 32 ? 32 : static_cast<std::uint32_t>(kept));
      const auto old = std::to_integer<std::uint8_t>(bytes.all()[at]);
      bytes.set(at, static_cast<std::uint8_t>(random.below(2) == 0 ? old ^ (1U << random.below(8)) : random.next()));
    }
    const auto plan = decode(bytes.all());
    if (!plan) continue;
    ++decoded_count;
    ExactBytes again(encoded_bytes(plan->pages.size()));
    ASSERT_LE(again.all().size(), bytes.all().size()) << "seed " << seed;
    ASSERT_TRUE(encode(*plan, again.all()).has_value()) << "seed " << seed;
    ASSERT_TRUE(std::ranges::equal(again.all(), bytes.all().first(again.all().size()))) << "seed " << seed;
  }
  EXPECT_GT(decoded_count, 1000U);
}

}  // namespace
}  // namespace quire
