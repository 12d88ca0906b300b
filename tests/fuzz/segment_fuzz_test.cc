// SPDX-License-Identifier: Apache-2.0
//
// What the fuzzer does, without it: the inputs that were kept, and mutations of what the encoders write.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "tests/fuzz/segment_target.h"
#include "wire/extent.h"
#include "wire/segment.h"

namespace quire::testing {
namespace {

using Bytes = std::vector<std::byte>;

Bytes input_of(SegmentInput kind, std::span<const std::byte> rest) {
  Bytes input(2 + rest.size());
  input[0] = static_cast<std::byte>(kind);
  input[1] = std::byte{1};
  std::ranges::copy(rest, input.begin() + 2);
  return input;
}

PageName name_of(std::uint8_t value) {
  PageName name;
  name.bytes.fill(std::byte{value});
  return name;
}

std::vector<RecordHeader> some_records() {
  const KeySpace key_space{.model = "m"};
  return {{.kind = RecordKind::KeySpace,
           .order = 1,
           .offset = 4096,
           .key_space = key_space_name(key_space),
           .payload_bytes = encode_key_space_text(key_space).size(),
           .stored_bytes = encode_key_space_text(key_space).size(),
           .checksum = 8},
          {.order = 2,
           .offset = 8192,
           .name = name_of(1),
           .parent = name_of(2),
           .key_space = name_of(3),
           .layout = 4,
           .page_index = 5,
           .payload_bytes = 4000,
           .stored_bytes = 4000,
           .checksum = 7,
           .stored_at_ns = 8},
          {.compression = Compression::Zstd,
           .order = 3,
           .offset = 16384,
           .name = name_of(4),
           .parent = name_of(1),
           .key_space = name_of(3),
           .payload_bytes = 4000,
           .stored_bytes = 2000},
          {.kind = RecordKind::DropKeySpace, .order = 4, .offset = 20480, .key_space = name_of(3)},
          {.kind = RecordKind::DropPage, .order = 5, .offset = 24576, .name = name_of(9)},
          {.kind = RecordKind::DropAll, .order = 6, .offset = 28672}};
}

// One input per decoder and kind of record, each of which is taken.
std::vector<Bytes> written_inputs() {
  constexpr SegmentHeader kSegment{.segment_id = 7, .salt = 99, .store_id = {}};
  std::vector<Bytes> inputs;
  std::array<std::byte, kSegmentBlockBytes> block;
  encode_manifest({.created_at_ns = 1}, block);
  inputs.push_back(input_of(SegmentInput::Manifest, std::span(block).first(64)));
  encode_segment_header(kSegment, block);
  inputs.push_back(input_of(SegmentInput::SegmentHeader, std::span(block).first(64)));

  Bytes file(block.begin(), block.begin() + kBlockInputBytes);
  const std::vector<RecordHeader> records = some_records();
  for (const RecordHeader& record : records) {
    std::array<std::byte, kRecordHeaderBytes> header;
    encode_record_header(record, kSegment.salt, header);
    inputs.push_back(input_of(SegmentInput::RecordHeader, header));
    file.insert(file.end(), header.begin(), header.end());
    // The rest of a record that is longer than a block.
    file.resize(file.size() + ((record_bytes(record.stored_bytes) / kSegmentBlockBytes - 1) * kBlockInputBytes));
  }
  inputs.push_back(input_of(SegmentInput::File, file));

  Bytes footer(footer_bytes(3));
  encode_footer(std::span(records).first(3), kSegment, std::uint64_t{1} << 20U, footer);
  inputs.push_back(input_of(SegmentInput::Footer, std::span(footer).first(3 * kRecordHeaderBytes)));
  inputs.push_back(input_of(SegmentInput::Trailer, std::span(footer).last(kSegmentBlockBytes).first(64)));

  // A sealed file of one record, the footer of which fits in what an input says of a block.
  file.resize(2 * kBlockInputBytes);
  footer.resize(footer_bytes(1));
  encode_footer(std::span(records).first(1), kSegment, 8192, footer);
  file.insert(file.end(), footer.begin(), footer.begin() + kBlockInputBytes);
  file.insert(file.end(), footer.begin() + kSegmentBlockBytes, footer.begin() + kSegmentBlockBytes + kBlockInputBytes);
  inputs.push_back(input_of(SegmentInput::File, file));

  inputs.push_back(
      input_of(SegmentInput::KeySpaceText, encode_key_space_text({.model = "a", .rope = "bc", .salt = "d"})));

  std::vector<RecordHeader> pages(2, records[1]);
  pages[0].page_index = 6;
  pages[1].page_index = 7;
  pages[1].parent = pages[0].name;
  pages[1].name = name_of(6);
  Bytes headers(extent_headers_bytes(2));
  encode_extent(pages, headers);
  inputs.push_back(input_of(SegmentInput::Extent, headers));
  return inputs;
}

// Changes one thing: a byte, a number, a part, the length.
void mutate(Bytes& input, Random& random) {
  constexpr std::array<std::uint64_t, 12> kNumbers = {0,
                                                      1,
                                                      2,
                                                      4095,
                                                      4096,
                                                      8192,
                                                      1U << 20U,
                                                      std::uint64_t{1} << 32U,
                                                      (std::uint64_t{1} << 32U) + 1,
                                                      std::uint64_t{1} << 63U,
                                                      ~std::uint64_t{0},
                                                      ~std::uint64_t{0} - 4095};
  const auto place = [&](std::size_t behind) {
    return random.below(static_cast<std::uint32_t>(input.size() - std::min(behind, input.size()) + 1));
  };
  switch (random.below(6)) {
    case 0:
      if (!input.empty()) input[place(1)] ^= std::byte{1} << random.below(8);
      break;
    case 1:
      if (!input.empty()) input[place(1)] = static_cast<std::byte>(random.below(256));
      break;
    case 2: {  // Numbers lie at multiples of 8 behind the two bytes in front.
      const std::uint64_t number = kNumbers[random.below(kNumbers.size())];
      const std::size_t at = 2 + (place(9) / 8 * 8);
      for (std::size_t i = 0; i < 8 && at + i < input.size(); ++i)
        input[at + i] = static_cast<std::byte>(number >> (8 * i));
      break;
    }
    case 3:
      input.resize(place(0));
      break;
    case 4: {  // A part again, somewhere.
      const std::span<const std::byte> rest = std::span(input).subspan(place(0));
      const auto part = rest.first(std::min<std::size_t>(192, rest.size()));
      const Bytes copy(part.begin(), part.end());
      input.insert(input.begin() + place(0), copy.begin(), copy.end());
      break;
    }
    default:
      if (input.size() > 1) input[1] ^= std::byte{1};
      break;
  }
}

std::string replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return try_segment_input(std::as_bytes(std::span(text))).wrong;
}

TEST(SegmentFuzz, InputsThatWereKeptBreakNoRule) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_TEST_CORPUS)) {
    EXPECT_EQ(replay(entry.path()), "") << entry.path();
    ++count;
  }
  EXPECT_GT(count, 0);
}

TEST(SegmentFuzz, WhatTheEncodersWriteIsTaken) {
  for (const Bytes& input : written_inputs()) {
    const InputReport report = try_segment_input(input);
    EXPECT_TRUE(report.is_taken) << "kind " << std::to_integer<int>(input[0]);
    EXPECT_EQ(report.wrong, "");
  }
}

// Each step mutates what was taken last, so that it wanders away from what is ever written.
class Mutations {
 public:
  Mutations(std::vector<Bytes> inputs, std::array<std::uint64_t, 2>& counts)
      : inputs_(std::move(inputs)), counts_(&counts) {}

  std::string apply(const Op& op) {
    Bytes& taken = inputs_[op.kind % inputs_.size()];
    Bytes input = taken;
    Random random((std::uint64_t{op.draws[0]} << 32U) | op.draws[1]);
    for (std::uint32_t i = 0; i <= op.draws[2] % 4; ++i) mutate(input, random);
    const InputReport report = try_segment_input(input);
    ++(*counts_)[report.is_taken ? 1 : 0];
    if (report.is_taken && input.size() < 4096) taken = input;
    return report.wrong;
  }

 private:
  std::vector<Bytes> inputs_;
  std::array<std::uint64_t, 2>* counts_;
};

TEST(SegmentFuzz, MutationsBreakNoRule) {
  std::array<std::uint64_t, 2> counts{};
  EXPECT_EQ(run_seeds({.test = "bin/segment_fuzz_test --gtest_filter='*MutationsBreakNoRule'",
                       .seed_count = kIsSanitized ? 4U : 40U,
                       .step_count = 5000},
                      [&](Random&) { return Mutations(written_inputs(), counts); }),
            "");
  // Enough of both, else nothing was tried.
  EXPECT_GT(counts[0], (counts[0] + counts[1]) / 10);
  EXPECT_GT(counts[1], (counts[0] + counts[1]) / 10);
}

}  // namespace
}  // namespace quire::testing
