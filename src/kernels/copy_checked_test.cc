// SPDX-License-Identifier: Apache-2.0
#include "kernels/copy_checked.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::Random;

std::vector<std::byte> random_bytes(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = std::byte(random.next() & 0xFFU);
  return bytes;
}

// The definition, byte by byte: byte p of a record is byte p % 4 of word p / 4.
ChecksumPart naive_sum(const CopyPart& part) {
  ChecksumPart sum;
  for (std::uint64_t i = 0; i < part.bytes; ++i) {
    const std::uint64_t place = part.offset + i;
    const std::uint64_t word_key = mix64(place / 4 % 256) >> 32U;
    const std::uint64_t block_key = mix64((std::uint64_t{1} << 32U) + (place / 1024)) | 1U;
    sum.sum += block_key * word_key * (std::to_integer<std::uint64_t>(part.source[i]) << (8 * (place % 4)));
  }
  return sum;
}

std::uint64_t checksum(const CheckedCopier& copier, const std::vector<std::byte>& bytes) {
  return copier.sum({.source = bytes.data(), .bytes = bytes.size()}).finish(bytes.size());
}

class CopyChecked : public ::testing::TestWithParam<InstructionSet> {
 protected:
  void SetUp() override {
    if (!is_available(GetParam())) GTEST_SKIP() << "the processor does not have these instructions";
    copier_ = &pick_checked_copier(GetParam());
  }

  const CheckedCopier* copier_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Sets, CopyChecked, ::testing::Values(InstructionSet::Portable, InstructionSet::Avx2),
                         [](const auto& set) {
                           return std::string(set.param == InstructionSet::Portable ? "Portable" : "Avx2");
                         });

// Lengths, places in the record, and where source and target lie in memory: everything odd.
TEST_P(CopyChecked, EveryLengthAndOffsetGivesTheSumOfTheDefinitionAndAnExactCopy) {
  const std::vector<std::byte> source = random_bytes(70'000, 1);
  std::vector<std::byte> target(70'200);
  const auto check = [&](std::uint64_t bytes, std::uint64_t offset, std::uint64_t source_at, std::uint64_t target_at,
                         NextUse next_use) {
    std::ranges::fill(target, std::byte{0xEE});
    const CopyPart part{.target = target.data() + target_at,
                        .source = source.data() + source_at,
                        .bytes = bytes,
                        .offset = offset,
                        .next_use = next_use};
    const ChecksumPart wanted = naive_sum(part);
    ASSERT_EQ(copier_->sum(part), wanted) << bytes << " bytes at " << offset;
    ASSERT_EQ(copier_->copy_summed(part), wanted) << bytes << " bytes at " << offset;
    ASSERT_EQ(std::memcmp(part.target, part.source, bytes), 0) << bytes << " bytes at " << offset;
    for (std::uint64_t i = 0; i < target_at; ++i) ASSERT_EQ(target[i], std::byte{0xEE}) << "before the target";
    for (std::uint64_t i = target_at + bytes; i < target.size(); ++i) {
      ASSERT_EQ(target[i], std::byte{0xEE}) << "behind the target, " << bytes << " bytes at " << offset;
    }
    std::ranges::fill(target, std::byte{0xEE});
    copier_->copy(part);
    ASSERT_EQ(std::memcmp(part.target, part.source, bytes), 0);
    if (target_at > 0) {
      ASSERT_EQ(target[target_at - 1], std::byte{0xEE});
    }
    ASSERT_EQ(target[target_at + bytes], std::byte{0xEE});
  };
  for (std::uint64_t bytes = 0; bytes <= 200; ++bytes) {
    for (const std::uint64_t offset : {0U, 1U, 2U, 3U, 60U, 1000U, 1021U, 1024U})
      check(bytes, offset, 3, 5, NextUse::Soon);
  }
  Random random(2);
  for (int i = 0; i < 300; ++i) {
    const std::uint64_t bytes = random.below(3) == 0 ? random.below(66'000) : random.below(5000);
    const std::uint64_t source_at = random.below(64);
    const std::uint64_t target_at = random.below(2) == 0 ? 0 : random.below(64);
    const std::uint64_t offset = random.below(2) == 0 ? random.below(64) * 32 : random.below(1U << 30U);
    check(bytes, offset, source_at, target_at, random.below(2) == 0 ? NextUse::Later : NextUse::Soon);
  }
  // Around the caches, which needs an aligned target and offset.
  const std::uint64_t aligned = (64 - (reinterpret_cast<std::uintptr_t>(target.data()) % 64)) % 64;
  for (const std::uint64_t bytes : {16'384U, 65'536U, 65'537U, 65'599U, 69'000U}) {
    for (const std::uint64_t offset : {0U, 32U, 64U, 1024U, 1'000'032U})
      check(bytes, offset, 1, aligned, NextUse::Later);
  }
}

TEST_P(CopyChecked, PartsAddUpInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    const std::vector<std::byte> record = random_bytes(1 + random.below(20'000), seed);
    std::vector<std::uint64_t> cuts{0, record.size()};
    for (std::uint32_t i = random.below(12); i > 0; --i) {
      cuts.push_back(random.below(static_cast<std::uint32_t>(record.size() + 1)));
    }
    std::ranges::sort(cuts);
    std::vector<std::pair<std::uint64_t, std::uint64_t>> parts;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) parts.emplace_back(cuts[i], cuts[i + 1]);
    for (std::size_t i = parts.size(); i > 1; --i) {
      std::swap(parts[i - 1], parts[random.below(static_cast<std::uint32_t>(i))]);
    }
    ChecksumPart sum;
    for (const auto& [begin, end] : parts) {
      sum.add(copier_->sum({.source = record.data() + begin, .bytes = end - begin, .offset = begin}));
    }
    ASSERT_EQ(sum.finish(record.size()), checksum(*copier_, record)) << "seed " << seed;
  }
}

TEST_P(CopyChecked, EverySingleBitFlipIsSeen) {
  for (const std::size_t size : {1U, 63U, 64U, 2085U}) {
    std::vector<std::byte> record = random_bytes(size, 5);
    const std::uint64_t good = checksum(*copier_, record);
    for (std::size_t bit = 0; bit < size * 8; ++bit) {
      record[bit / 8] ^= std::byte(1U << (bit % 8));
      ASSERT_NE(checksum(*copier_, record), good) << "bit " << bit << " of " << size << " bytes";
      record[bit / 8] ^= std::byte(1U << (bit % 8));
    }
  }
}

TEST_P(CopyChecked, AnyTwoFlippedBitsAreSeen) {
  std::vector<std::byte> record = random_bytes(2048, 6);
  const std::uint64_t good = checksum(*copier_, record);
  Random random(7);
  for (int i = 0; i < 20'000; ++i) {
    const std::uint32_t a = random.below(2048 * 8);
    const std::uint32_t b = random.below(3) == 0 ? (a + 8192) % (2048 * 8) : random.below(2048 * 8);
    if (a == b) continue;
    for (const std::uint32_t bit : {a, b}) record[bit / 8] ^= std::byte(1U << (bit % 8));
    ASSERT_NE(checksum(*copier_, record), good) << "bits " << a << " and " << b;
    for (const std::uint32_t bit : {a, b}) record[bit / 8] ^= std::byte(1U << (bit % 8));
  }
}

// Words, lines, blocks, layers: whatever could be copied to the wrong place.
TEST_P(CopyChecked, PiecesThatChangePlacesAreSeen) {
  constexpr std::size_t kBytes = 16'384;
  std::vector<std::byte> record = random_bytes(kBytes, 8);
  const std::uint64_t good = checksum(*copier_, record);
  Random random(9);
  for (const std::size_t piece : {1U, 2U, 4U, 8U, 64U, 512U, 1024U, 2048U, 4096U}) {
    for (int i = 0; i < 500; ++i) {
      const std::size_t a = random.below(static_cast<std::uint32_t>(kBytes / piece)) * piece;
      const std::size_t b = random.below(static_cast<std::uint32_t>(kBytes / piece)) * piece;
      if (std::memcmp(record.data() + a, record.data() + b, piece) == 0) continue;
      const auto swap = [&] { std::swap_ranges(record.data() + a, record.data() + a + piece, record.data() + b); };
      swap();
      ASSERT_NE(checksum(*copier_, record), good) << "pieces of " << piece << " bytes at " << a << " and " << b;
      swap();
    }
  }
}

TEST_P(CopyChecked, LengthsAndLostTailsAreSeen) {
  const std::vector<std::byte> zeros(4096);
  std::vector<std::uint64_t> seen;
  for (std::size_t size = 0; size <= zeros.size(); ++size) {
    seen.push_back(copier_->sum({.source = zeros.data(), .bytes = size}).finish(size));
  }
  std::ranges::sort(seen);
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end()) << "zeros of two lengths have one checksum";

  std::vector<std::byte> record = random_bytes(4096, 10);
  record.back() = std::byte{1};
  const std::uint64_t good = checksum(*copier_, record);
  for (std::size_t kept = 4095; kept > 4000; --kept) {
    record[kept] = std::byte{0};
    ASSERT_NE(checksum(*copier_, record), good) << "zeros from byte " << kept << " on";
  }
}

// The definition is part of what other code, on a GPU or elsewhere, relies on.
TEST_P(CopyChecked, TheValueIsWhatItHasAlwaysBeen) {
  std::vector<std::byte> record(3001);
  for (std::size_t i = 0; i < record.size(); ++i) record[i] = std::byte((i * 7) & 0xFFU);
  EXPECT_EQ(checksum(*copier_, record), 0xF468E9C6F8BE33A9ULL);
  EXPECT_EQ(checksum(*copier_, {}), mix64(mix64(0)));
}

}  // namespace
}  // namespace quire
