// SPDX-License-Identifier: Apache-2.0
#include "trace.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "terminal.h"

namespace quire {

namespace {

// Far more than any prompt has. It keeps a file without line ends from being read into memory as a whole.
constexpr std::size_t kLineBytesMax = std::size_t{128} << 20U;
constexpr std::size_t kBufferBytes = std::size_t{1} << 20U;
constexpr TimeNs kNsPerMs = 1'000'000;
constexpr std::uint64_t kTimestampMsMax = std::numeric_limits<TimeNs>::max() / kNsPerMs;
constexpr std::uint64_t kTokenMax = std::numeric_limits<TokenId>::max();
constexpr std::string_view kDefaultKeySpace = "default";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

struct Line {
  std::string_view text;  // valid until the next line is read; the parser may read, and ignores, the padding behind it
  bool has_end = false;   // false: the last one, and nothing ends it
};

/// Cuts a stream into lines with a buffer that is as large as the longest of them needs. single-threaded.
class LineReader {
 public:
  [[nodiscard]] static Result<LineReader> open(const std::string& path) {
    if (path == "-") return LineReader(stdin, "standard input");
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) {
      return fail(ErrorCode::Io, path + " is a directory: a trace is a file of JSON lines");
    }
    std::FILE* const file = std::fopen(path.c_str(), "rb");
    if (file == nullptr) return fail(ErrorCode::Io, fmt::format("cannot open {}: {}", path, std::strerror(errno)));
    return LineReader(file, path);
  }

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::uint64_t line_number() const { return line_number_; }

  /// None at the end of the file.
  [[nodiscard]] Result<std::optional<Line>> read_line() {
    std::size_t searched = begin_;
    for (;;) {
      const void* const end = std::memchr(buffer_.data() + searched, '\n', end_ - searched);
      if (end != nullptr) {
        const auto length = static_cast<std::size_t>(static_cast<const char*>(end) - buffer_.data()) - begin_;
        return take({.text = {buffer_.data() + begin_, length}, .has_end = true}, length + 1);
      }
      const std::size_t length = end_ - begin_;
      if (is_at_end_) {
        if (length == 0) return std::nullopt;
        return take({.text = {buffer_.data() + begin_, length}, .has_end = false}, length);
      }
      if (length > kLineBytesMax) {
        return fail(ErrorCode::InvalidArgument,
                    fmt::format("{}:{}: the line is longer than {} MiB: is this a file of JSON lines?", name_,
                                line_number_ + 1, kLineBytesMax >> 20U));
      }
      QUIRE_TRY(read_more());
      searched = begin_ + length;
    }
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };

  LineReader(std::FILE* file, std::string name) : file_(file), name_(std::move(name)), buffer_(kBufferBytes, '\0') {}

  Line take(Line line, std::size_t bytes) {
    begin_ += bytes;
    if (line_number_++ == 0 && line.text.starts_with(kByteOrderMark)) line.text.remove_prefix(kByteOrderMark.size());
    return line;
  }

  /// Moves the begun line to the front of the buffer and fills what is behind it.
  Status read_more() {
    std::copy(buffer_.data() + begin_, buffer_.data() + end_, buffer_.data());
    end_ -= begin_;
    begin_ = 0;
    if (end_ + simdjson::SIMDJSON_PADDING >= buffer_.size()) buffer_.resize(2 * buffer_.size());
    const std::size_t wanted = buffer_.size() - simdjson::SIMDJSON_PADDING - end_;
    const std::size_t bytes = std::fread(buffer_.data() + end_, 1, wanted, file_.get());
    end_ += bytes;
    if (bytes == wanted) return {};
    if (std::ferror(file_.get()) != 0) {
      return fail(ErrorCode::Io, fmt::format("cannot read {}: {}", name_, std::strerror(errno)));
    }
    is_at_end_ = true;
    return {};
  }

  std::unique_ptr<std::FILE, Close> file_;
  std::string name_;
  std::vector<char> buffer_;  // [begin_, end_) is read and not taken; the padding behind it is always there
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  bool is_at_end_ = false;
  std::uint64_t line_number_ = 0;  // of the line taken last
};

/// Gives numbers from 0 on to 64-bit ids. Most of a trace's time goes into this look-up, so the table is a flat one:
/// open addressing with linear probing, at most half full. single-threaded.
class Renumbering {
 public:
  [[nodiscard]] TokenId number_of(std::uint64_t id) {
    if (2 * (count_ + 1) > entries_.size()) grow();
    Entry& entry = find(id);
    if (entry.number < 0) entry = {.id = id, .number = static_cast<TokenId>(count_++)};
    return entry.number;
  }
  [[nodiscard]] bool has_room_for(std::size_t ids) const { return count_ + ids <= kTokenMax; }

 private:
  struct Entry {
    std::uint64_t id = 0;
    TokenId number = -1;  // negative: free
  };

  Entry& find(std::uint64_t id) {
    // Ids are often consecutive: a multiplication by an odd constant is enough to spread them.
    std::size_t i = (id * 0x9E3779B97F4A7C15ULL) >> shift_;
    while (entries_[i].number >= 0 && entries_[i].id != id) i = (i + 1) & (entries_.size() - 1);
    return entries_[i];
  }

  void grow() {
    const std::vector<Entry> old = std::exchange(entries_, std::vector<Entry>(2 * entries_.size()));
    --shift_;
    for (const Entry& entry : old) {
      if (entry.number >= 0) find(entry.id) = entry;
    }
  }

  std::vector<Entry> entries_ = std::vector<Entry>(std::size_t{1} << 12U);
  std::uint32_t shift_ = 64 - 12;  // leaves an index in entries_
  std::size_t count_ = 0;
};

enum Field : std::uint8_t { kTimestamp, kInputLength, kHashIds, kTokens, kOutput, kKeySpace, kPriority, kFieldCount };
constexpr std::array<std::string_view, kFieldCount> kFieldNames = {"timestamp", "input_length", "hash_ids", "tokens",
                                                                   "output",    "key_space",    "priority"};

using Value = simdjson::dom::element;

/// The fields of a line that mean something.
class Fields {
 public:
  [[nodiscard]] bool has(Field field) const { return is_there_[field]; }
  [[nodiscard]] const Value& operator[](Field field) const { return values_[field]; }

  // Empty, or what is wrong.
  [[nodiscard]] std::string read(simdjson::dom::object object) {
    for (const simdjson::dom::key_value_pair pair : object) {
      const auto* const name = std::find(kFieldNames.begin(), kFieldNames.end(), pair.key);
      if (name == kFieldNames.end()) continue;
      const auto field = static_cast<std::size_t>(name - kFieldNames.begin());
      if (is_there_[field]) return fmt::format("{} stands there twice", *name);
      is_there_[field] = true;
      values_[field] = pair.value;
    }
    return "";
  }

 private:
  std::array<bool, kFieldCount> is_there_{};
  std::array<Value, kFieldCount> values_;
};

std::string_view json_problem(simdjson::error_code error) {
  switch (error) {
    case simdjson::UTF8_ERROR:
      return "it is not UTF-8";
    case simdjson::UNCLOSED_STRING:
      return "a string has no end";
    case simdjson::STRING_ERROR:
    case simdjson::UNESCAPED_CHARS:
      return "a string has a bad escape or a control character";
    case simdjson::NUMBER_ERROR:
    case simdjson::NUMBER_OUT_OF_RANGE:
      return "a number is malformed or too large";
    case simdjson::T_ATOM_ERROR:
    case simdjson::F_ATOM_ERROR:
    case simdjson::N_ATOM_ERROR:
      return "a word is not true, false or null";
    case simdjson::DEPTH_ERROR:
      return "it is nested too deeply";
    case simdjson::CAPACITY:
    case simdjson::MEMALLOC:
      return "there is not enough memory for it";
    default:
      return "a comma, a bracket or a value is missing or misplaced";
  }
}

/// "-5", "a string", …: what stands where something else should.
std::string text_of(const Value& value) {
  switch (value.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "an array";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::INT64:
      return fmt::format("{}", value.get_int64().value_unsafe());
    case simdjson::dom::element_type::UINT64:
      return fmt::format("{}", value.get_uint64().value_unsafe());
    case simdjson::dom::element_type::DOUBLE: {
      // 4.0 is refused where 4 is wanted, so it must not be called 4.
      std::string text = fmt::format("{}", value.get_double().value_unsafe());
      return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
    }
    case simdjson::dom::element_type::BOOL:
      return value.get_bool().value_unsafe() ? "true" : "false";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
  }
  return "something else";
}

std::string wrong(Field field, const Value& value, std::string_view wanted) {
  return fmt::format("{} is {}: it has to be {}", kFieldNames[field], text_of(value), wanted);
}

std::string wrong_item(Field field, std::size_t index, const Value& value, std::string_view wanted) {
  return fmt::format("{}[{}] is {}: it has to be {}", kFieldNames[field], index, text_of(value), wanted);
}

/// Turns lines into requests. Whatever a line is, it either becomes a request as a whole or leaves no trace.
/// single-threaded.
class TraceReader {
 public:
  TraceReader(std::string name, const TraceOptions& options) : options_(options) {
    trace_.name = std::move(name);
    trace_.unit_tokens = options.unit_tokens;
  }

  // Empty, or what is wrong with the line.
  [[nodiscard]] std::string add(const Line& line, std::uint64_t line_number) {
    simdjson::dom::element root;
    constexpr bool kCopy = false;
    if (const auto error = parser_.parse(line.text.data(), line.text.size(), kCopy).get(root)) {
      return fmt::format("not valid JSON: {}{}", json_problem(error),
                         line.has_end ? "" : "; the file ends here, in the middle of a line");
    }
    simdjson::dom::object object;
    if (root.get(object) != simdjson::SUCCESS) {
      return fmt::format("this is {}: a line has to be a JSON object", text_of(root));
    }
    Fields fields;
    if (std::string problem = fields.read(object); !problem.empty()) return problem;
    return add(fields, line_number);
  }

  [[nodiscard]] Trace& trace() { return trace_; }

 private:
  enum class Form : std::uint8_t { Unknown, Hashes, Tokens };

  [[nodiscard]] std::string add(const Fields& fields, std::uint64_t line_number) {
    if (fields.has(kHashIds) && fields.has(kTokens)) return "hash_ids and tokens exclude each other";
    if (!fields.has(kHashIds) && !fields.has(kTokens)) {
      if (fields.has(kInputLength) || form_ == Form::Hashes) return "hash_ids is missing";
      return form_ == Form::Tokens ? "tokens is missing" : "there is neither hash_ids nor tokens: nothing to request";
    }
    const Form form = fields.has(kHashIds) ? Form::Hashes : Form::Tokens;
    if (form_ != Form::Unknown && form != form_) {
      return form == Form::Hashes ? "the line has hash_ids, but those before have tokens"
                                  : "the line has tokens, but those before have hash_ids";
    }

    TraceRequest request{.line = line_number, .first_unit = trace_.units.size()};
    std::string problem = read_timestamp(fields, form, request);
    if (problem.empty()) problem = form == Form::Hashes ? read_hashes(fields, request) : read_tokens(fields, request);
    if (!problem.empty()) return problem;

    // Nothing can be wrong from here on.
    form_ = form;
    if (form == Form::Hashes) {
      for (const std::uint64_t id : ids_) trace_.units.push_back(renumbering_.number_of(id));
    } else {
      trace_.unit_tokens = 1;
      trace_.units.insert(trace_.units.end(), tokens_.begin(), tokens_.end());
    }
    request.key_space =
        index_of_key_space(form == Form::Tokens && fields.has(kKeySpace) ? fields[kKeySpace].get_string().value_unsafe()
                                                                         : kDefaultKeySpace);
    trace_.requests.push_back(request);
    return "";
  }

  [[nodiscard]] std::string read_timestamp(const Fields& fields, Form form, TraceRequest& request) const {
    const TraceRequest* const last = trace_.requests.empty() ? nullptr : &trace_.requests.back();
    if (!fields.has(kTimestamp)) {
      if (form == Form::Hashes) return "timestamp is missing";
      request.timestamp_ns = last != nullptr ? last->timestamp_ns : 0;
      return "";
    }
    const Value& value = fields[kTimestamp];
    std::uint64_t whole_ms = 0;
    double ms = 0;
    if (value.get(whole_ms) == simdjson::SUCCESS && whole_ms <= kTimestampMsMax) {
      request.timestamp_ns = static_cast<TimeNs>(whole_ms) * kNsPerMs;
    } else if (value.is_double() && value.get(ms) == simdjson::SUCCESS && ms >= 0 &&
               ms < static_cast<double>(kTimestampMsMax)) {
      request.timestamp_ns = std::llround(ms * static_cast<double>(kNsPerMs));
    } else {
      return wrong(kTimestamp, value, fmt::format("a number of milliseconds from 0 to {}", kTimestampMsMax));
    }
    if (last != nullptr && request.timestamp_ns < last->timestamp_ns) {
      return fmt::format("timestamp {} is before that of line {}: sort the trace by timestamp", text_of(value),
                         last->line);
    }
    return "";
  }

  [[nodiscard]] std::string read_hashes(const Fields& fields, TraceRequest& request) {
    if (!fields.has(kInputLength)) return "input_length is missing";
    std::uint64_t input_length = 0;
    if (fields[kInputLength].get(input_length) != simdjson::SUCCESS || input_length == 0) {
      return wrong(kInputLength, fields[kInputLength], "a number of tokens, 1 or more");
    }
    simdjson::dom::array array;
    if (fields[kHashIds].get(array) != simdjson::SUCCESS) {
      return wrong(kHashIds, fields[kHashIds], "an array of whole numbers");
    }
    ids_.clear();
    for (const Value& value : array) {
      std::uint64_t id = 0;
      if (value.get(id) != simdjson::SUCCESS) {
        return wrong_item(kHashIds, ids_.size(), value, "a whole number from 0 to 2^64 - 1");
      }
      ids_.push_back(id);
    }
    const std::uint64_t unit_tokens = options_.unit_tokens;
    const std::uint64_t expected = input_length / unit_tokens + (input_length % unit_tokens != 0 ? 1 : 0);
    if (ids_.size() != expected) {
      return fmt::format("{} hash_ids for an input_length of {}: with --unit-tokens {} it takes ceil({} / {}) = {}",
                         ids_.size(), input_length, unit_tokens, input_length, unit_tokens, expected);
    }
    if (!renumbering_.has_room_for(ids_.size())) return "there are more than 2^31 different hash_ids";
    request.prompt_units = static_cast<std::uint32_t>(ids_.size());
    request.prompt_tokens = input_length;
    return "";
  }

  [[nodiscard]] std::string read_tokens(const Fields& fields, TraceRequest& request) {
    tokens_.clear();
    if (std::string problem = append_tokens(kTokens, fields[kTokens]); !problem.empty()) return problem;
    if (tokens_.empty()) return "tokens is empty: a request has at least one";
    request.prompt_tokens = tokens_.size();
    request.prompt_units = static_cast<std::uint32_t>(tokens_.size());
    if (fields.has(kOutput)) {
      if (std::string problem = append_tokens(kOutput, fields[kOutput]); !problem.empty()) return problem;
    }
    request.output_units = static_cast<std::uint32_t>(tokens_.size()) - request.prompt_units;

    if (fields.has(kKeySpace)) {
      std::string_view name;
      if (fields[kKeySpace].get(name) != simdjson::SUCCESS) return wrong(kKeySpace, fields[kKeySpace], "a string");
      if (name.empty()) return "key_space is empty: leave it out, or give it a name";
      // Names are printed in tables and reports.
      if (first_unprintable(name) != name.size()) return "key_space has characters that cannot be printed";
    }
    if (fields.has(kPriority)) {
      std::int64_t priority = 0;
      if (fields[kPriority].get(priority) != simdjson::SUCCESS || priority < std::numeric_limits<std::int8_t>::min() ||
          priority > std::numeric_limits<std::int8_t>::max()) {
        return wrong(kPriority, fields[kPriority], "a whole number from -128 to 127");
      }
      request.priority = static_cast<std::int8_t>(priority);
    }
    return "";
  }

  [[nodiscard]] std::string append_tokens(Field field, const Value& list) {
    simdjson::dom::array array;
    if (list.get(array) != simdjson::SUCCESS) return wrong(field, list, "an array of tokens");
    const std::size_t first = tokens_.size();
    for (const Value& value : array) {
      std::uint64_t token = 0;
      if (value.get(token) != simdjson::SUCCESS || token > kTokenMax) {
        return wrong_item(field, tokens_.size() - first, value, fmt::format("a token, from 0 to {}", kTokenMax));
      }
      tokens_.push_back(static_cast<TokenId>(token));
    }
    return "";
  }

  [[nodiscard]] std::uint32_t index_of_key_space(std::string_view name) {
    // Usually the one of the request before, or one of few.
    if (!trace_.requests.empty() && trace_.key_spaces[trace_.requests.back().key_space] == name) {
      return trace_.requests.back().key_space;
    }
    const auto [entry, is_new] =
        key_spaces_.try_emplace(std::string(name), static_cast<std::uint32_t>(trace_.key_spaces.size()));
    if (is_new) trace_.key_spaces.emplace_back(name);
    return entry->second;
  }

  TraceOptions options_;
  // The DOM rather than on-demand parsing: the latter does not look at what is not asked for, so that a damaged line
  // could pass for a good one.
  simdjson::dom::parser parser_;
  Form form_ = Form::Unknown;
  Renumbering renumbering_;
  std::unordered_map<std::string, std::uint32_t> key_spaces_;
  std::vector<std::uint64_t> ids_;  // of the line at hand
  std::vector<TokenId> tokens_;     // of the line at hand: prompt, output
  Trace trace_;
};

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

Result<Trace> read_trace(const std::string& path, const TraceOptions& options) {
  if (options.unit_tokens == 0)
    return fail(ErrorCode::InvalidArgument, "unit_tokens is 0: an id stands for some tokens");
  QUIRE_TRY_ASSIGN(LineReader lines, LineReader::open(path));
  TraceReader reader(path == "-" ? lines.name() : std::filesystem::path(path).filename().string(), options);
  Trace& trace = reader.trace();

  for (;;) {
    QUIRE_TRY_ASSIGN(const std::optional<Line> line, lines.read_line());
    if (!line.has_value()) break;
    if (is_blank(line->text)) continue;
    const std::string problem = reader.add(*line, lines.line_number());
    if (problem.empty()) continue;
    std::string message = fmt::format("{}:{}: {}", lines.name(), lines.line_number(), problem);
    if (!options.skip_bad) return fail(ErrorCode::InvalidArgument, std::move(message));
    if (trace.bad_line_count++ == 0) trace.first_bad_line = std::move(message);
  }

  if (!trace.requests.empty()) return std::move(trace);
  if (trace.bad_line_count == 0) return fail(ErrorCode::InvalidArgument, lines.name() + " has no requests in it");
  return fail(ErrorCode::InvalidArgument, fmt::format("{} has no usable request: {} bad, the first is {}", lines.name(),
                                                      counted(trace.bad_line_count, "line"), trace.first_bad_line));
}

std::string trace_text(const Trace& trace) {
  fmt::memory_buffer text;
  const auto out = fmt::appender(text);
  for (const TraceRequest& request : trace.requests) {
    std::string name;
    for (const char c : trace.key_spaces[request.key_space]) {
      if (c == '"' || c == '\\') name += '\\';
      name += c;
    }
    const std::span<const TokenId> output = trace.path(request).subspan(request.prompt_units);
    fmt::format_to(out, R"({{"timestamp":{},"key_space":"{}","priority":{},"tokens":[{}])",
                   static_cast<double>(request.timestamp_ns) / kNsPerMs, name, request.priority,
                   fmt::join(trace.prompt(request), ","));
    if (!output.empty()) fmt::format_to(out, R"(,"output":[{}])", fmt::join(output, ","));
    fmt::format_to(out, "}}\n");
  }
  return fmt::to_string(text);
}

}  // namespace quire
