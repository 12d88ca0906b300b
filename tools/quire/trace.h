// SPDX-License-Identifier: Apache-2.0
//
// Trace: the requests of a recorded or made-up workload, in the order they run. Prompts are made of *key units*: a unit
// is one token, or, in traces that publish hashes instead of tokens, one id that stands for `unit_tokens` tokens and
// for everything before them. Equal units after equal prefixes in equal key spaces are equal content.
//
// immutable once read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "quire/result.h"
#include "quire/types.h"

namespace quire {

struct TraceRequest {
  std::uint64_t line = 0;  ///< where it stands in its file, from 1
  TimeNs timestamp_ns = 0;
  std::uint32_t key_space = 0;  ///< index in Trace::key_spaces
  std::int8_t priority = 0;
  std::uint64_t first_unit = 0;     ///< in Trace::units: the prompt's units, then the output's
  std::uint32_t prompt_units = 0;   ///< at least 1
  std::uint32_t output_units = 0;   ///< known output, which is cached behind the prompt
  std::uint64_t prompt_tokens = 0;  ///< prompt_units * unit_tokens, or less when the last unit is only begun
};

struct Trace {
  std::string name;                     ///< for people: the file's name
  std::uint32_t unit_tokens = 1;        ///< tokens that a key unit stands for
  std::vector<std::string> key_spaces;  ///< by what their tenants are told apart; at least one
  std::vector<TraceRequest> requests;
  std::vector<TokenId> units;  ///< of all requests, one after the other: tokens as they are, hashes renumbered from 0

  std::uint64_t bad_line_count = 0;  ///< left out on request
  std::string first_bad_line;        ///< file, line and what is wrong there, of the first of them

  [[nodiscard]] std::span<const TokenId> prompt(const TraceRequest& request) const {
    return std::span(units).subspan(request.first_unit, request.prompt_units);
  }
  /// Prompt and output.
  [[nodiscard]] std::span<const TokenId> path(const TraceRequest& request) const {
    return std::span(units).subspan(request.first_unit, request.prompt_units + request.output_units);
  }
};

struct TraceOptions {
  std::uint32_t unit_tokens = 512;  ///< tokens that one of `hash_ids` stands for; traces with tokens have units of 1
  bool skip_bad = false;            ///< count lines that cannot be used, and go on
};

/// Reads JSON lines from a file, or from standard input for "-". The first usable line decides which of two forms all
/// of them have; fields that are not named here are ignored, and so are blank lines.
///
///   {"timestamp": 27482, "input_length": 6955, "hash_ids": [46, 47, 2353]}
///   {"tokens": [1, 15, 7], "output": [9, 4], "key_space": "tenant", "priority": 1, "timestamp": 27482.5}
///
/// In the first form an id stands for unit_tokens tokens, the last one for the rest. In the second only `tokens` is
/// needed; requests without `key_space` share one that is called "default", and a request without `timestamp` has
/// that of the one before. Timestamps are milliseconds and never go back. Errors name file, line and what is wrong
/// there.
[[nodiscard]] Result<Trace> read_trace(const std::string& path, const TraceOptions& options);

/// The trace as read_trace() takes it, in the form with tokens; its units are tokens.
[[nodiscard]] std::string trace_text(const Trace& trace);

}  // namespace quire
