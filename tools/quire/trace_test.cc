// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using std::string_view_literals::operator""sv;

/// A file that lives as long as the test that wrote it.
class TraceFile {
 public:
  explicit TraceFile(std::string_view text)
      : path_(::testing::TempDir() + "quire_trace_" + std::to_string(::getpid()) + ".jsonl") {
    std::ofstream(path_, std::ios::binary) << text;
  }
  ~TraceFile() { std::filesystem::remove(path_); }
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

Result<Trace> read(std::string_view text, const TraceOptions& options = {}) {
  const TraceFile file(text);
  return read_trace(file.path(), options);
}

std::string lines(std::initializer_list<std::string_view> lines) {
  std::string text;
  for (const std::string_view line : lines) text.append(line).append("\n");
  return text;
}

/// The message for a text, without the file's name: "LINE: what is wrong".
std::string error_of(std::string_view text, const TraceOptions& options = {}) {
  const TraceFile file(text);
  const Result<Trace> trace = read_trace(file.path(), options);
  if (trace.has_value()) return "no error";
  EXPECT_EQ(trace.error().code, ErrorCode::InvalidArgument);
  const std::string& message = trace.error().message;
  EXPECT_TRUE(message.starts_with(file.path() + ":")) << message;
  return message.substr(std::min(message.size(), file.path().size() + 1));
}

/// The same for a file of one line.
std::string error_in(std::string_view line, const TraceOptions& options = {}) {
  return error_of(lines({line}), options);
}

std::vector<TokenId> list(std::span<const TokenId> units) {
  return {units.begin(), units.end()};
}

using Units = std::vector<TokenId>;

// ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────────

TEST(Trace, HashIdsAreRenumberedInTheOrderTheyAppear) {
  const auto trace = read(
      lines({R"({"timestamp": 0, "input_length": 1025, "output_length": 4, "hash_ids": [7, 18446744073709551615, 9]})",
             R"({"timestamp": 3.25, "input_length": 1024, "output_length": 4, "hash_ids": [7, 0]})"}));
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), 2U);
  EXPECT_EQ(trace->unit_tokens, 512U);
  EXPECT_EQ(trace->key_spaces, std::vector<std::string>{"default"});
  EXPECT_EQ(list(trace->prompt(trace->requests[0])), (Units{0, 1, 2}));
  EXPECT_EQ(list(trace->path(trace->requests[1])), (Units{0, 3}));
  EXPECT_EQ(trace->requests[0].prompt_tokens, 1025U);
  EXPECT_EQ(trace->requests[0].output_units, 0U);
  EXPECT_EQ(trace->requests[1].prompt_tokens, 1024U);
  EXPECT_EQ(trace->requests[1].timestamp_ns, 3'250'000);
  EXPECT_EQ(trace->requests[1].line, 2U);
  EXPECT_EQ(trace->bad_line_count, 0U);
}

TEST(Trace, ManyHashIdsKeepTheirNumbers) {
  std::string text;
  constexpr std::uint64_t kStride = 0x1234'5678'9ABCULL;
  for (std::uint64_t i = 0; i < 20'000; ++i) {
    text += R"({"timestamp": 0, "input_length": 2, "hash_ids": [)" + std::to_string(i * kStride) + ", " +
            std::to_string(i / 2 * kStride) + "]}\n";
  }
  const auto trace = read(text, {.unit_tokens = 1});
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  for (const TraceRequest& request : trace->requests) {
    const auto i = static_cast<TokenId>(request.line) - 1;
    ASSERT_EQ(list(trace->prompt(request)), (Units{i, i / 2}));
  }
}

TEST(Trace, TokensComeWithOutputTenantAndPriority) {
  const auto trace =
      read(lines({R"({"tokens": [5, 2147483647], "output": [0], "key_space": "a", "priority": -128, "timestamp": 1})",
                  R"({"tokens": [5], "priority": 127})",
                  R"({"timestamp": 1.0, "key_space": "default", "tokens": [6], "output": []})",
                  R"({"tokens": [5], "key_space": "a", "note": {"ignored": [null]}})"}));
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  EXPECT_EQ(trace->unit_tokens, 1U);
  EXPECT_EQ(trace->key_spaces, (std::vector<std::string>{"a", "default"}));
  ASSERT_EQ(trace->requests.size(), 4U);
  EXPECT_EQ(list(trace->prompt(trace->requests[0])), (Units{5, 2147483647}));
  EXPECT_EQ(list(trace->path(trace->requests[0])), (Units{5, 2147483647, 0}));
  EXPECT_EQ(trace->requests[0].prompt_tokens, 2U);
  EXPECT_EQ(trace->requests[0].priority, -128);
  EXPECT_EQ(trace->requests[1].priority, 127);
  EXPECT_EQ(trace->requests[1].key_space, 1U);
  EXPECT_EQ(trace->requests[2].key_space, 1U);
  EXPECT_EQ(trace->requests[3].key_space, 0U);
  EXPECT_EQ(trace->requests[3].priority, 0);
}

TEST(Trace, ARequestWithoutTimestampHasThatOfTheOneBefore) {
  const auto trace = read(lines({R"({"tokens": [1]})", R"({"tokens": [1], "timestamp": 8})", R"({"tokens": [1]})"}));
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  EXPECT_EQ(trace->requests[0].timestamp_ns, 0);
  EXPECT_EQ(trace->requests[2].timestamp_ns, 8'000'000);
}

TEST(Trace, BlankLinesCarriageReturnsAndAByteOrderMarkAreNoMatter) {
  const auto trace = read("\xEF\xBB\xBF{\"tokens\": [1]}\r\n\r\n \t\n{\"tokens\": [2]}");
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), 2U);
  EXPECT_EQ(trace->requests[1].line, 4U);
}

TEST(Trace, LinesMayBeLongerThanTheBufferAndEndAnywhereInIt) {
  std::string text;
  std::vector<std::size_t> lengths;
  for (std::size_t length = 1; length < 2'000'000; length = length * 3 + 1) {
    text += R"({"tokens": [)";
    for (std::size_t i = 0; i < length; ++i) text += i == 0 ? "1" : ",1";
    text += "]}\n";
    lengths.push_back(length);
  }
  const auto trace = read(text);
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  ASSERT_EQ(trace->requests.size(), lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(trace->requests[i].prompt_units, lengths[i]);
}

TEST(Trace, IsNamedAfterItsFile) {
  const TraceFile file(R"({"tokens": [1]})");
  EXPECT_EQ(read_trace(file.path(), {}).value().name, std::filesystem::path(file.path()).filename());
}

TEST(Trace, AMinusReadsStandardInput) {
  const TraceFile file(lines({R"({"tokens": [1, 2, 3]})", R"({"tokens": 4})"}));
  const int kept = ::dup(STDIN_FILENO);
  const int source = ::open(file.path().c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::dup2(source, STDIN_FILENO), STDIN_FILENO);
  const auto trace = read_trace("-", {.skip_bad = true});
  ::dup2(kept, STDIN_FILENO);
  ::close(kept);
  ::close(source);
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  EXPECT_EQ(trace->name, "standard input");
  EXPECT_EQ(trace->requests[0].prompt_units, 3U);
  EXPECT_EQ(trace->first_bad_line, "standard input:2: tokens is 4: it has to be an array of tokens");
}

// ── what is wrong ───────────────────────────────────────────────────────────────────────────────────────────────────

TEST(TraceErrors, SayWhichFileCannotBeRead) {
  const auto missing = read_trace("/nowhere/trace.jsonl", {});
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::Io);
  EXPECT_EQ(missing.error().message, "cannot open /nowhere/trace.jsonl: No such file or directory");

  const auto folder = read_trace("/", {});
  ASSERT_FALSE(folder.has_value());
  EXPECT_EQ(folder.error().code, ErrorCode::Io);
  EXPECT_EQ(folder.error().message, "/ is a directory: a trace is a file of JSON lines");

  // It opens, but nothing is mapped at its beginning.
  const auto unreadable = read_trace("/proc/self/mem", {});
  ASSERT_FALSE(unreadable.has_value());
  EXPECT_EQ(unreadable.error().code, ErrorCode::Io);
  EXPECT_EQ(unreadable.error().message, "cannot read /proc/self/mem: Input/output error");
}

TEST(TraceErrors, SayThatThereIsNothingToRead) {
  for (const std::string_view text : {"", "\n", "\r\n \n"}) {
    const TraceFile file(text);
    const auto trace = read_trace(file.path(), {.skip_bad = true});
    ASSERT_FALSE(trace.has_value());
    EXPECT_EQ(trace.error().code, ErrorCode::InvalidArgument);
    EXPECT_EQ(trace.error().message, file.path() + " has no requests in it");
  }
  const TraceFile file("\n{}\n[]\n");
  EXPECT_EQ(read_trace(file.path(), {.skip_bad = true}).error().message,
            file.path() + " has no usable request: 2 lines bad, the first is " + file.path() +
                ":2: there is neither hash_ids nor tokens: nothing to request");
  const TraceFile good(R"({"tokens": [1]})");
  EXPECT_EQ(read_trace(good.path(), {.unit_tokens = 0}).error().message,
            "unit_tokens is 0: an id stands for some tokens");
}

TEST(TraceErrors, AFileWithoutLineEndsIsNotReadToItsEnd) {
  const auto trace = read_trace("/dev/zero", {.skip_bad = true});
  ASSERT_FALSE(trace.has_value());
  EXPECT_EQ(trace.error().message, "/dev/zero:1: the line is longer than 128 MiB: is this a file of JSON lines?");
}

TEST(TraceErrors, NameTheLineAndTheDamageToJson) {
  const std::string_view good = R"({"tokens": [1]})";
  EXPECT_EQ(error_of(lines({good, R"({"tokens": [1})"})),
            "2: not valid JSON: a comma, a bracket or a value is missing or misplaced");
  EXPECT_EQ(error_of(lines({good, "", R"({"tokens": [1]} {})"})),
            "3: not valid JSON: a comma, a bracket or a value is missing or misplaced");
  EXPECT_EQ(error_in("{\"tokens\": [1], \"note\": \"\xFF\"}"), "1: not valid JSON: it is not UTF-8");
  EXPECT_EQ(error_in(R"({"tokens": [1], "note": "x})"), "1: not valid JSON: a string has no end");
  EXPECT_EQ(error_in(R"({"tokens": [1], "note": "\q"})"),
            "1: not valid JSON: a string has a bad escape or a control character");
  EXPECT_EQ(error_in("{\"tokens\": [1], \"note\": \"\x01\"}"),
            "1: not valid JSON: a string has a bad escape or a control character");
  EXPECT_EQ(error_in(R"({"tokens": [1], "note": -})"), "1: not valid JSON: a number is malformed or too large");
  EXPECT_EQ(error_in(R"({"tokens": [18446744073709551616]})"), "1: not valid JSON: a number is malformed or too large");
  EXPECT_EQ(error_in(R"({"tokens": [1], "note": tru})"), "1: not valid JSON: a word is not true, false or null");
  EXPECT_EQ(error_in(R"({"tokens": [1], "note": )" + std::string(2000, '[') + std::string(2000, ']') + "}"),
            "1: not valid JSON: it is nested too deeply");
  EXPECT_EQ(error_of(lines({good}) + R"({"tokens": [1, 2)"),
            "2: not valid JSON: a comma, a bracket or a value is missing or misplaced; the file ends here, in the "
            "middle of a line");
  EXPECT_EQ(error_in("[1, 2]"), "1: this is an array: a line has to be a JSON object");
  EXPECT_EQ(error_in("7"), "1: this is 7: a line has to be a JSON object");
  EXPECT_EQ(error_in(R"("x")"), "1: this is a string: a line has to be a JSON object");
}

TEST(TraceErrors, NameTheFieldOfALineWithHashIds) {
  const auto line = [](std::string_view timestamp, std::string_view input_length, std::string_view hash_ids) {
    return R"({"timestamp": )" + std::string(timestamp) + R"(, "input_length": )" + std::string(input_length) +
           R"(, "hash_ids": )" + std::string(hash_ids) + "}\n";
  };
  EXPECT_EQ(error_of(line("0", "513", "[1, 2]") + line("0", "513", "[1, 2, 3]")),
            "2: 3 hash_ids for an input_length of 513: with --unit-tokens 512 it takes ceil(513 / 512) = 2");
  EXPECT_EQ(error_of(line("0", "1024", "[1]")),
            "1: 1 hash_ids for an input_length of 1024: with --unit-tokens 512 it takes ceil(1024 / 512) = 2");
  EXPECT_EQ(error_of(line("0", "18446744073709551615", "[1]"), {.unit_tokens = 16}),
            "1: 1 hash_ids for an input_length of 18446744073709551615: with --unit-tokens 16 it takes "
            "ceil(18446744073709551615 / 16) = 1152921504606846976");
  EXPECT_EQ(error_of(line("0", "0", "[]")), "1: input_length is 0: it has to be a number of tokens, 1 or more");
  EXPECT_EQ(error_of(line("0", "-4", "[1]")), "1: input_length is -4: it has to be a number of tokens, 1 or more");
  EXPECT_EQ(error_of(line("0", "4.0", "[1]")), "1: input_length is 4.0: it has to be a number of tokens, 1 or more");
  EXPECT_EQ(error_of(line("0", R"("4")", "[1]")),
            "1: input_length is a string: it has to be a number of tokens, 1 or more");
  EXPECT_EQ(error_of(line("0", "4", "{}")), "1: hash_ids is an object: it has to be an array of whole numbers");
  EXPECT_EQ(error_of(line("0", "4", "null")), "1: hash_ids is null: it has to be an array of whole numbers");
  EXPECT_EQ(error_of(line("0", "513", "[1, -2]")),
            "1: hash_ids[1] is -2: it has to be a whole number from 0 to 2^64 - 1");
  EXPECT_EQ(error_of(line("0", "4", "[true]")),
            "1: hash_ids[0] is true: it has to be a whole number from 0 to 2^64 - 1");
  EXPECT_EQ(error_in(R"({"timestamp": 0, "input_length": 4})"), "1: hash_ids is missing");
  EXPECT_EQ(error_of(line("0", "4", "[1]") + "{}\n"), "2: hash_ids is missing");
  EXPECT_EQ(error_in(R"({"timestamp": 0, "hash_ids": [4]})"), "1: input_length is missing");
  EXPECT_EQ(error_in(R"({"input_length": 4, "hash_ids": [4]})"), "1: timestamp is missing");
  EXPECT_EQ(error_of(line("0", "4", R"([1], "hash_ids": [1])")), "1: hash_ids stands there twice");
}

TEST(Trace, IsReadBackAsItWasWritten) {
  const std::string text = lines({
      R"({"timestamp": 0.25, "tokens": [1, 2, 3], "output": [4], "key_space": "a \"b\" \\ c", "priority": -7})",
      R"({"timestamp": 1000, "tokens": [2147483647, 0]})",
  });
  const Result<Trace> first = read(text);
  ASSERT_TRUE(first.has_value()) << first.error().message;
  const std::string written = trace_text(*first);
  const Result<Trace> second = read(written);
  ASSERT_TRUE(second.has_value()) << second.error().message;
  EXPECT_EQ(second->units, first->units);
  EXPECT_EQ(second->key_spaces, first->key_spaces);
  ASSERT_EQ(second->requests.size(), 2U);
  EXPECT_EQ(second->requests[0].timestamp_ns, 250'000);
  EXPECT_EQ(second->requests[0].priority, -7);
  EXPECT_EQ(second->requests[0].output_units, 1U);
  EXPECT_EQ(second->requests[1].timestamp_ns, 1'000'000'000);
  EXPECT_EQ(trace_text(*second), written);
}

TEST(TraceErrors, NameTheFieldOfALineWithTokens) {
  const auto line = [](std::string_view rest) { return R"({"tokens": [1], )" + std::string(rest) + "}\n"; };
  EXPECT_EQ(error_in(R"({"tokens": []})"), "1: tokens is empty: a request has at least one");
  EXPECT_EQ(error_in(R"({"tokens": "abc"})"), "1: tokens is a string: it has to be an array of tokens");
  EXPECT_EQ(error_in(R"({"tokens": [1, [2]]})"),
            "1: tokens[1] is an array: it has to be a token, from 0 to 2147483647");
  EXPECT_EQ(error_in(R"({"tokens": [1, -2]})"), "1: tokens[1] is -2: it has to be a token, from 0 to 2147483647");
  EXPECT_EQ(error_in(R"({"tokens": [2147483648]})"),
            "1: tokens[0] is 2147483648: it has to be a token, from 0 to 2147483647");
  EXPECT_EQ(error_in(R"({"tokens": [1.5]})"), "1: tokens[0] is 1.5: it has to be a token, from 0 to 2147483647");
  EXPECT_EQ(error_of(line(R"("output": 5)")), "1: output is 5: it has to be an array of tokens");
  EXPECT_EQ(error_of(line(R"("output": [5, -1])")), "1: output[1] is -1: it has to be a token, from 0 to 2147483647");
  EXPECT_EQ(error_of(line(R"("key_space": 5)")), "1: key_space is 5: it has to be a string");
  EXPECT_EQ(error_of(line(R"("key_space": "")")), "1: key_space is empty: leave it out, or give it a name");
  EXPECT_EQ(error_of(line(R"("key_space": "a\u001b[31m")")), "1: key_space has characters that cannot be printed");
  EXPECT_EQ(error_of(line(R"("priority": 128)")), "1: priority is 128: it has to be a whole number from -128 to 127");
  EXPECT_EQ(error_of(line(R"("priority": -129)")), "1: priority is -129: it has to be a whole number from -128 to 127");
  EXPECT_EQ(error_of(line(R"("priority": 18446744073709551615)")),
            "1: priority is 18446744073709551615: it has to be a whole number from -128 to 127");
  EXPECT_EQ(error_of(line(R"("priority": 1.5)")), "1: priority is 1.5: it has to be a whole number from -128 to 127");
  EXPECT_EQ(error_of(line(R"("tokens": [1])")), "1: tokens stands there twice");
  EXPECT_EQ(error_in(R"({"output": [1]})"), "1: there is neither hash_ids nor tokens: nothing to request");
  EXPECT_EQ(error_of(lines({R"({"tokens": [1]})", R"({"output": [1]})"})), "2: tokens is missing");
}

TEST(TraceErrors, TimestampsNeverGoBack) {
  const auto line = [](std::string_view timestamp) {
    return R"({"tokens": [1], "timestamp": )" + std::string(timestamp) + "}\n";
  };
  const std::string wanted = ": it has to be a number of milliseconds from 0 to 9223372036854";
  EXPECT_EQ(error_of(line("10") + line("10") + line("9.5")),
            "3: timestamp 9.5 is before that of line 2: sort the trace by timestamp");
  EXPECT_EQ(error_of(line("-1")), "1: timestamp is -1" + wanted);
  EXPECT_EQ(error_of(line("-0.5")), "1: timestamp is -0.5" + wanted);
  EXPECT_EQ(error_of(line(R"("1")")), "1: timestamp is a string" + wanted);
  EXPECT_EQ(error_of(line("9223372036855")), "1: timestamp is 9223372036855" + wanted);
  EXPECT_EQ(error_of(line("1e300")), "1: timestamp is 1e+300" + wanted);
  EXPECT_EQ(error_of(line("false")), "1: timestamp is false" + wanted);
  EXPECT_EQ(read(line("9223372036854")).value().requests[0].timestamp_ns, 9223372036854000000);
}

TEST(TraceErrors, AllLinesHaveTheFormOfTheFirst) {
  const std::string_view hashes = R"({"timestamp": 0, "input_length": 4, "hash_ids": [1]})";
  const std::string_view tokens = R"({"tokens": [1]})";
  EXPECT_EQ(error_of(lines({tokens, hashes})), "2: the line has hash_ids, but those before have tokens");
  EXPECT_EQ(error_of(lines({hashes, tokens})), "2: the line has tokens, but those before have hash_ids");
  EXPECT_EQ(error_in(R"({"tokens": [1], "hash_ids": [1]})"), "1: hash_ids and tokens exclude each other");
  // A bad line decides nothing.
  const auto trace = read(lines({R"({"hash_ids": [1]})", tokens}), {.skip_bad = true});
  EXPECT_EQ(trace.value().unit_tokens, 1U);
}

TEST(TraceErrors, BadLinesAreCountedAndLeftOutOnRequest) {
  const std::string whole = lines({R"({"timestamp": 5, "input_length": 4, "hash_ids": [40]})",
                                   R"({"timestamp": 6, "input_length": 600, "hash_ids": [41]})",
                                   R"({"timestamp": 4, "input_length": 4, "hash_ids": [42]})", "",
                                   R"({"timestamp": 5, "input_length": 4, "hash_ids": [43]})"});
  const TraceFile file(whole + R"({"timestamp": 6, "inp)");
  const auto trace = read_trace(file.path(), {.skip_bad = true});
  ASSERT_TRUE(trace.has_value()) << trace.error().message;
  EXPECT_EQ(trace->requests.size(), 2U);
  EXPECT_EQ(trace->requests[1].line, 5U);
  EXPECT_EQ(trace->units, (Units{0, 1}));  // ids of bad lines have no numbers
  EXPECT_EQ(trace->bad_line_count, 3U);
  EXPECT_EQ(
      trace->first_bad_line,
      file.path() + ":2: 1 hash_ids for an input_length of 600: with --unit-tokens 512 it takes ceil(600 / 512) = 2");
}

/// Damages good lines at random. Whatever comes out is read as something sound, or refused.
class DamagedTrace {
 public:
  static std::string apply(const testing::Op& op) {
    testing::Random random((std::uint64_t{op.kind} << 32U) ^ op.draws[0] ^ (std::uint64_t{op.draws[1]} << 20U));
    std::string text =
        lines({R"({"timestamp": 1.5, "tokens": [1, 22, 333], "output": [4], "key_space": "\u00e9", "priority": 1})",
               R"({"timestamp": 20, "input_length": 4, "hash_ids": [12345678901234567890]})"
               "\r",
               R"({"tokens": [7], "note": {"a": [true, null, -1e5]}})"});
    for (std::uint32_t edits = random.below(4); edits > 0; --edits) {
      const std::size_t at = random.below(static_cast<std::uint32_t>(text.size()));
      constexpr std::string_view kBytes = "{}[]\",:.-+0019eE\\\n\r u\x80\xC3\x00"sv;
      const char byte = kBytes[random.below(kBytes.size())];
      if (random.below(3) == 0) text.resize(at + 1);
      if (random.below(2) == 0) {
        text[at] = byte;
      } else {
        text.insert(at, 1, byte);
      }
    }
    const Result<Trace> trace = read(text, {.skip_bad = true});
    if (!trace.has_value()) return trace.error().message.empty() ? "an error without a message" : "";
    std::size_t units = 0;
    for (const TraceRequest& request : trace->requests) {
      if (request.first_unit != units || request.prompt_units == 0) return "a request has the wrong units";
      if (request.key_space >= trace->key_spaces.size()) return "a request has an unknown key space";
      units += trace->path(request).size();
    }
    if (units != trace->units.size()) return "there are units without a request";
    for (const TokenId unit : trace->units) {
      if (unit < 0) return "a unit is negative";
    }
    if ((trace->bad_line_count == 0) != trace->first_bad_line.empty()) return "bad lines are not counted";
    return "";
  }
};

TEST(TraceErrors, DamagedFilesAreReadAsSomethingSoundOrRefused) {
  EXPECT_EQ(testing::run_seeds(
                {.test = "bin/trace_test --gtest_filter=TraceErrors.Damaged*", .seed_count = 20, .step_count = 200},
                [](testing::Random&) { return DamagedTrace(); }),
            "");
}

}  // namespace
}  // namespace quire
