// SPDX-License-Identifier: Apache-2.0
//
// The protocol of Redis, versions 2 and 3: what is sent, and what is said to be an answer. Bytes may come in any
// pieces, and may be anything: lengths and numbers are believed only within limits, and nothing is allocated on the
// word of a length alone.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// ── requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────

/// "*<count>\r\n": that many arguments follow.
void append_argument_count(std::string& text, std::size_t count);
/// "$<bytes>\r\n": that many bytes and "\r\n" follow.
void append_argument_bytes(std::string& text, std::size_t bytes);
void append_argument(std::string& text, std::string_view argument);
void append_command(std::string& text, std::span<const std::string_view> arguments);
inline void append_command(std::string& text, std::initializer_list<std::string_view> arguments) {
  append_command(text, std::span(arguments.begin(), arguments.size()));
}

/// For SCAN: matches what begins with the prefix, whatever signs are in that.
[[nodiscard]] std::string redis_pattern(std::string_view prefix);

// ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

enum class RespKind : std::uint8_t {
  Text,
  Error,
  Integer,
  Null,
  Boolean,
  Number,  ///< a floating-point or large one, as text
  Bulk,    ///< text of a known length
  Array,   ///< or a set
  Map,     ///< keys and values by turns
  Push,    ///< said without being asked
  Attribute,
};

inline constexpr std::size_t kRespLineBytesMax = 4096;
inline constexpr std::int64_t kRespBulkBytesMax = std::int64_t{512} << 20U;

/// The line that an answer, or a part of one, begins with.
struct RespHead {
  RespKind kind = RespKind::Null;
  bool is_error_text = false;  ///< of Bulk: the text of an error
  std::string_view text = {};  ///< of Text, Error and Number; within the input
  std::int64_t number = 0;     ///< of Integer and Boolean; of Bulk: bytes; of others: parts
};

enum class RespTaken : std::uint8_t { Taken, NeedsMore, Nonsense };

/// Takes a head off the front of the input, which stays as it was unless the answer is Taken.
[[nodiscard]] RespTaken take_resp_head(std::string_view& input, RespHead& head);

struct RespValue {
  RespKind kind = RespKind::Null;
  std::int64_t number = 0;
  std::string text = {};
  std::vector<RespValue> parts = {};
};

/// Whole answers, put together from pieces. Answers that are too large, too deep or no answers are Nonsense, after
/// which the rest of the input has no meaning.
class RespCollector {
 public:
  /// Takes off the input what belongs to the answer. Taken: value() is complete, and the next call begins another.
  [[nodiscard]] RespTaken take(std::string_view& input);
  [[nodiscard]] const RespValue& value() const { return value_; }
  /// In the middle of an answer.
  [[nodiscard]] bool has_begun() const { return body_left_ > 0 || !open_.empty(); }
  void reset();

 private:
  struct Open {
    RespValue value;
    std::int64_t parts_left = 0;
  };

  /// The value is complete; so may be those that it is part of. True: all are.
  bool close(RespValue value);
  RespTaken take_body(std::string_view& input);

  RespValue value_;
  std::vector<Open> open_;      // from the outside to the inside
  RespValue body_;              // a Bulk that is being read
  std::int64_t body_left_ = 0;  // of it, with its "\r\n"
  std::size_t bytes_ = 0;       // of this answer, about
};

/// Of a server's text, for messages: printable and short.
[[nodiscard]] std::string printable(std::string_view text);

}  // namespace quire
