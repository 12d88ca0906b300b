// SPDX-License-Identifier: Apache-2.0
#include "remote/resp.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire {
namespace {

// As text that shows its parts, or "nonsense", or "more".
std::string shown(const RespValue& value) {
  switch (value.kind) {
    case RespKind::Text:
      return "+" + value.text;
    case RespKind::Error:
      return "-" + value.text;
    case RespKind::Integer:
      return std::to_string(value.number);
    case RespKind::Null:
      return "null";
    case RespKind::Boolean:
      return value.number != 0 ? "true" : "false";
    case RespKind::Number:
      return "," + value.text;
    case RespKind::Bulk:
      return "'" + value.text + "'";
    default:
      break;
  }
  std::string text = value.kind == RespKind::Array ? "[" : value.kind == RespKind::Map ? "{" : ">";
  for (const RespValue& part : value.parts) text += shown(part) + " ";
  return text + "]";
}

// All answers in the text, which comes in pieces of so many bytes.
std::vector<std::string> collect(std::string_view text, std::size_t piece_bytes) {
  std::vector<std::string> answers;
  RespCollector collector;
  std::string input;
  while (true) {
    std::string_view rest = input;
    const RespTaken taken = collector.take(rest);
    input = rest;
    if (taken == RespTaken::Taken) answers.push_back(shown(collector.value()));
    if (taken == RespTaken::Nonsense) answers.emplace_back("nonsense");
    if (taken == RespTaken::Nonsense) return answers;
    if (taken == RespTaken::Taken) continue;
    if (text.empty()) break;
    input += text.substr(0, piece_bytes);
    text.remove_prefix(std::min(piece_bytes, text.size()));
  }
  if (!input.empty() || collector.has_begun()) answers.emplace_back("more");
  return answers;
}

using Answers = std::vector<std::string>;

TEST(Resp, AnswersAreTheSameInWhateverPiecesTheyCome) {
  const std::string text =
      "+OK\r\n-ERR no\r\n:42\r\n:-7\r\n$5\r\nhe\r\nl\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n"
      "*2\r\n$1\r\n0\r\n*2\r\n$1\r\na\r\n:1\r\n_\r\n#t\r\n,1.5\r\n(123\r\n!3\r\nERR\r\n=7\r\ntxt:abc\r\n"
      "%1\r\n+k\r\n:1\r\n~2\r\n:1\r\n:2\r\n>1\r\n+hello\r\n";
  const Answers expected = {"+OK",     "-ERR no",         "42",       "-7",   "'he\r\nl'", "''",   "null", "null",
                            "[]",      "['0' ['a' 1 ] ]", "null",     "true", ",1.5",      ",123", "-ERR", "'txt:abc'",
                            "{+k 1 ]", "[1 2 ]",          ">+hello ]"};
  for (const std::size_t piece_bytes : {1U, 2U, 3U, 7U, 1000U}) EXPECT_EQ(collect(text, piece_bytes), expected);
}

TEST(Resp, WhatIsNoAnswerIsNonsense) {
  for (const char* const text :
       {"HTTP/1.1 400 Bad Request\r\n", "\x15\x03\x01", "+OK\n", ":4x\r\n", ":\r\n", ":99999999999999999999\r\n",
        "$5x\r\n", "$-2\r\n", "$999999999999\r\n", "*99999999999\r\n", "$?\r\n", "$3\r\nabcde", "#x\r\n", "_x\r\n",
        "\r\n", "!-1\r\n", ">0\r\n", "%-1\r\n"}) {
    EXPECT_EQ(collect(text, 1).back(), "nonsense") << text;
    EXPECT_EQ(collect(text, 100).back(), "nonsense") << text;
  }
}

TEST(Resp, ALineWithoutAnEndIsNonsense) {
  EXPECT_EQ(collect("+" + std::string(kRespLineBytesMax, 'x'), 100).back(), "nonsense");
}

TEST(Resp, DeepAnswersAndLargeOnesAreNonsense) {
  std::string deep;
  for (int i = 0; i < 9; ++i) deep += "*1\r\n";
  EXPECT_EQ(collect(deep, 100).back(), "nonsense");
  std::string large = "*4\r\n";
  for (int i = 0; i < 4; ++i) large += "$20000000\r\n" + std::string(20'000'000, 'x') + "\r\n";
  EXPECT_EQ(collect(large, 1U << 20U).back(), "nonsense");
}

TEST(Resp, ALengthAloneAllocatesNothing) {
  RespCollector collector;
  std::string_view input = "*16777216\r\n";
  EXPECT_EQ(collector.take(input), RespTaken::NeedsMore);
  input = "$60000000\r\n";
  EXPECT_EQ(collector.take(input), RespTaken::NeedsMore);
  EXPECT_TRUE(collector.has_begun());
}

TEST(Resp, CommandsAreListsOfBulks) {
  std::string text;
  append_command(text, {"SET", "key", ""});
  EXPECT_EQ(text, "*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$0\r\n\r\n");
}

TEST(Resp, TextOfAServerIsMadePrintable) {
  EXPECT_EQ(printable("ERR a\x1b[31m\n"), "ERR a?[31m?");
  EXPECT_LE(printable(std::string(1000, 'x')).size(), 210U);
}

}  // namespace
}  // namespace quire
