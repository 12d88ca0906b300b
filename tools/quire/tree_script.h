// SPDX-License-Identifier: Apache-2.0
//
// The language of `quire tree`: one operation per line, read by TreeScript::parse. A token is written as a
// number or as a word in quotes; TreeScript gives each word a number of its own and can write tokens back as
// they were read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tl/expected.hpp>

#include "quire/cache.h"
#include "quire/key_space.h"
#include "quire/types.h"

namespace quire {

enum class TreeVerb : std::uint8_t {
  Nothing,  ///< an empty line or a comment
  Let,
  Space,
  Run,
  Begin,
  Admit,
  Step,
  Decode,
  End,
  Lookup,
  Keep,
  Unkeep,
  Advance,
  Drop,
  Reset,
  Show
};

struct TreeOperation {
  TreeVerb verb = TreeVerb::Nothing;
  std::string name;  ///< of a request, a kept prefix, a key space or a text
  std::vector<TokenId> tokens;
  std::vector<TokenId> answer;  ///< behind =>
  std::optional<std::uint32_t> count;
  std::optional<TimeNs> duration;
  std::optional<KeySpace> key_space;
  SequenceOptions sequence;
};

/// What is wrong with a line, and where: bytes [begin, begin + length) of it.
struct TreeScriptError {
  std::size_t begin = 0;
  std::size_t length = 0;
  std::string message;
};

/// Reads one line after the other, and remembers the words and names it has seen. single-threaded.
class TreeScript {
 public:
  [[nodiscard]] tl::expected<TreeOperation, TreeScriptError> parse(std::string_view line);

  /// Tokens in the form they have in a script, cut in the middle to fit `columns`.
  [[nodiscard]] std::string preview(std::span<const TokenId> tokens, std::size_t columns) const;

  /// What can stand on a line, as a table.
  [[nodiscard]] static std::string help();

 private:
  class Line;

  [[nodiscard]] TreeOperation parse_operation(Line& line);
  [[nodiscard]] std::vector<TokenId> parse_tokens(Line& line, std::string_view verb);
  // These return what is wrong; an empty text is good news.
  [[nodiscard]] static std::string set_option(std::string_view field, std::string_view value, TreeOperation& operation);
  [[nodiscard]] std::string add_words(std::string_view text, std::vector<TokenId>& tokens);
  [[nodiscard]] static std::string add_numbers(std::string_view text, std::size_t room, std::vector<TokenId>& tokens);

  std::unordered_map<std::string, TokenId> token_by_word_;
  std::vector<std::string> words_;                               // by token
  std::unordered_map<std::string, std::vector<TokenId>> texts_;  // by the name that let gave them
};

}  // namespace quire
