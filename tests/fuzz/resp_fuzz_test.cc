// SPDX-License-Identifier: Apache-2.0
//
// What the fuzzer does, without it: the inputs that were kept, and mutations of what servers say.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "tests/fuzz/resp_target.h"

namespace quire::testing {
namespace {

std::vector<std::string> said_by_servers() {
  return {
      "\x01+OK\r\n$5\r\nvalue\r\n:1\r\n$-1\r\n",
      "\x02-MOVED 3999 127.0.0.1:6381\r\n-ASK 12 ::1:7000\r\n-OOM command not allowed\r\n",
      "\x03*2\r\n$1\r\n0\r\n*2\r\n$3\r\nk:1\r\n$3\r\nk:2\r\n",
      "\x04*2\r\n*3\r\n:0\r\n:8191\r\n*2\r\n$9\r\n127.0.0.1\r\n:7000\r\n*3\r\n:8192\r\n:16383\r\n*2\r\n$0\r\n\r\n:"
      "7001\r\n",
      "\x06$90\r\naa h:1@2,n myself,master - 0 0 1 connected 0-5 [7->-b]\nb ::1:2@3 slave aa 0 0 0 connected\n\r\n",
      "\x05%1\r\n+k\r\n~2\r\n#t\r\n,1.5\r\n>2\r\n+pubsub\r\n_\r\n!3\r\nERR\r\n=7\r\ntxt:abc\r\n(12345\r\n|1\r\n+a\r\n:"
      "1\r\n",
  };
}

RespReport report_of(std::string_view input) {
  return try_resp_input(std::as_bytes(std::span(input.data(), input.size())));
}

TEST(RespFuzz, InputsThatWereKeptBreakNoRule) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(QUIRE_TEST_CORPUS)) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(report_of(text).wrong, "") << entry.path();
    ++count;
  }
  EXPECT_GT(count, 0);
}

TEST(RespFuzz, WhatServersSayIsTaken) {
  for (const std::string& input : said_by_servers()) {
    EXPECT_GT(report_of(input).answer_count, 0U);
    EXPECT_EQ(report_of(input).wrong, "");
  }
}

// Each step mutates what was taken last, so that it wanders away from what is ever said.
class Mutations {
 public:
  explicit Mutations(std::array<std::uint64_t, 2>& counts) : counts_(&counts) {}

  std::string apply(const Op& op) {
    std::string& taken = inputs_[op.kind % inputs_.size()];
    std::string input = taken;
    Random random((std::uint64_t{op.draws[0]} << 32U) | op.draws[1]);
    for (std::uint32_t i = 0; i <= op.draws[2] % 3; ++i) mutate(input, random);
    const RespReport report = report_of(input);
    ++(*counts_)[report.answer_count > 1 ? 1 : 0];
    if (report.answer_count > 0 && input.size() < 1000) taken = input;
    return report.wrong;
  }

 private:
  static void mutate(std::string& input, Random& random) {
    constexpr std::string_view kSigns = "+-:$*_#,(!=%~>|\r\n0123456789-";
    const std::size_t place = random.below(static_cast<std::uint32_t>(input.size()));
    switch (random.below(5)) {
      case 0:
        input[place] = kSigns[random.below(static_cast<std::uint32_t>(kSigns.size()))];
        break;
      case 1:
        input[place] = static_cast<char>(random.below(256));
        break;
      case 2:
        if (input.size() > 4) input.erase(place, 1 + random.below(4));
        if (input.empty()) input = "\x01";
        break;
      case 3:
        input.insert(place, input.substr(random.below(static_cast<std::uint32_t>(input.size())), random.below(30)));
        break;
      default:
        input.insert(place, 1, kSigns[random.below(static_cast<std::uint32_t>(kSigns.size()))]);
        break;
    }
  }

  std::vector<std::string> inputs_ = said_by_servers();
  std::array<std::uint64_t, 2>* counts_;
};

TEST(RespFuzz, MutationsBreakNoRule) {
  std::array<std::uint64_t, 2> counts{};
  EXPECT_EQ(run_seeds({.test = "bin/resp_fuzz_test --gtest_filter='*MutationsBreakNoRule'",
                       .seed_count = kIsSanitized ? 4U : 20U,
                       .step_count = 3000},
                      [&](Random&) { return Mutations(counts); }),
            "");
  // Enough of both, else nothing was tried.
  EXPECT_GT(counts[0], (counts[0] + counts[1]) / 50);
  EXPECT_GT(counts[1], (counts[0] + counts[1]) / 50);
}

}  // namespace
}  // namespace quire::testing
