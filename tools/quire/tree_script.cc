// SPDX-License-Identifier: Apache-2.0
#include "tree_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "terminal.h"

namespace quire {

namespace {

// Numbers in a script are below this; words get the ones from here on.
constexpr TokenId kFirstWord = 2'000'000'000;
constexpr std::size_t kLineTokensMax = 1'000'000;

enum class NameRule : std::uint8_t { None, Optional, Required };

struct VerbInfo {
  TreeVerb verb;
  NameRule name_rule;
  bool takes_tokens;
  std::string_view name;
  std::string_view arguments;
  std::string_view effect;
};

constexpr auto kNone = NameRule::None;
constexpr auto kNamed = NameRule::Required;
constexpr std::array kVerbs = {
    VerbInfo{TreeVerb::Run, kNamed, true, "run", "NAME TOKENS [=> TOKENS]",
             "serve a whole request; => brings the answer"},
    VerbInfo{TreeVerb::Begin, kNamed, true, "begin", "NAME TOKENS", "a request arrives and waits"},
    VerbInfo{TreeVerb::Admit, kNamed, false, "admit", "NAME", "match and pin what is cached of it"},
    VerbInfo{TreeVerb::Step, kNamed, false, "step", "NAME [COUNT] [=> TOKENS]",
             "compute its next COUNT tokens, or all it has"},
    VerbInfo{TreeVerb::Decode, kNamed, true, "decode", "NAME TOKENS", "one step for each token of its answer"},
    VerbInfo{TreeVerb::End, kNamed, false, "end", "NAME", "the request is over"},
    VerbInfo{TreeVerb::Lookup, kNone, true, "lookup", "TOKENS", "how much is cached; changes nothing"},
    VerbInfo{TreeVerb::Keep, kNamed, true, "keep", "NAME TOKENS [ttl=10s]",
             "hold what is cached of them, for a time or for good"},
    VerbInfo{TreeVerb::Unkeep, kNamed, false, "unkeep", "NAME", "hold it no longer"},
    VerbInfo{TreeVerb::Advance, kNone, false, "advance", "DURATION", "time goes on"},
    VerbInfo{TreeVerb::Space, kNamed, false, "space", "NAME [FIELD=VALUE …]",
             "from here on, requests belong to this key space"},
    VerbInfo{TreeVerb::Drop, NameRule::Optional, false, "drop", "[NAME]", "forget a key space, or the current one"},
    VerbInfo{TreeVerb::Reset, kNone, false, "reset", "", "give up everything cached"},
    VerbInfo{TreeVerb::Let, kNamed, true, "let", "NAME TOKENS", "give tokens a name, to be used as tokens below"},
    VerbInfo{TreeVerb::Show, kNone, false, "show", "", "draw the tree, as at the end"},
};

constexpr std::string_view kTooManyTokens = "a line may have a million tokens";
constexpr std::string_view kNumberTooLarge = "token numbers go up to 1,999,999,999";
constexpr std::string_view kTokensExpected =
    "tokens are numbers (7), ranges (1..16), \"words in quotes\" and names given by let";

template <typename Number>
std::optional<Number> number_of(std::string_view text) {
  Number number{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

/// "10s", or nothing.
std::optional<TimeNs> duration_of(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, TimeNs>, 6> kUnits = {{{"ns", 1},
                                                                          {"us", 1'000},
                                                                          {"ms", 1'000'000},
                                                                          {"s", 1'000'000'000},
                                                                          {"m", 60'000'000'000},
                                                                          {"h", 3'600'000'000'000}}};
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const auto number = number_of<TimeNs>(text.substr(0, digits));
  for (const auto& [unit, ns] : kUnits) {
    if (number && text.substr(digits) == unit && *number <= INT64_MAX / ns) return *number * ns;
  }
  return std::nullopt;
}

constexpr std::string_view kDurationExpected =
    "expected a duration: a whole number with ns, us, ms, s, m or h behind it, such as 10s";

bool is_space(char c) {
  return c == ' ' || c == '\t';
}

bool is_name(std::string_view text) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
  };
  return !text.empty() && is_letter(text.front()) && std::ranges::all_of(text, [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
  });
}

}  // namespace

/// A line in words, taken from the front. The first error stays; whoever reads on after it finds nothing
/// harmful.
class TreeScript::Line {
 public:
  struct Word {
    std::size_t begin = 0;
    std::size_t length = 0;
    std::string_view text;  // without the quotes
    bool is_quoted = false;
  };
  struct Option {
    Word word;
    std::string_view field;
    std::string_view value;
  };

  explicit Line(std::string_view line) {
    const std::size_t printable = first_unprintable(line);
    if (printable < line.size()) {
      fail_at(printable, 1, "this is not text: a script is plain UTF-8");
      return;
    }
    for (std::size_t at = 0;;) {
      while (at < line.size() && is_space(line[at])) ++at;
      if (at == line.size() || line[at] == '#') return;
      const std::size_t begin = at;
      if (line[begin] == '"') {
        const std::size_t close = line.find('"', begin + 1);
        if (close == std::string_view::npos) {
          fail_at(begin, 1, "the closing quote is missing");
          return;
        }
        at = close + 1;
        words_.push_back({begin, at - begin, line.substr(begin + 1, close - begin - 1), true});
      } else {
        while (at < line.size() && !is_space(line[at]) && line[at] != '"' && line[at] != '#') ++at;
        words_.push_back({begin, at - begin, line.substr(begin, at - begin), false});
      }
    }
  }

  [[nodiscard]] bool is_empty() const { return next_ == words_.size(); }
  [[nodiscard]] bool is_arrow() const { return !is_empty() && !peek().is_quoted && peek().text == "=>"; }
  [[nodiscard]] bool is_option() const {
    return !is_empty() && !peek().is_quoted && !is_arrow() && peek().text.find('=') != std::string_view::npos;
  }
  [[nodiscard]] const Word& peek() const { return words_[next_]; }
  Word take() { return words_[next_++]; }

  std::string take_name(std::string_view verb) {
    if (is_empty()) {
      missing(fmt::format("expected a name after '{}'", verb));
      return {};
    }
    const Word word = take();
    if (word.is_quoted || !is_name(word.text)) {
      wrong(word, fmt::format("expected a name after '{}'; names begin with a letter", verb));
    }
    return std::string(word.text);
  }

  /// FIELD=VALUE, or FIELD="VALUE", which is two words.
  Option take_option() {
    const Word word = take();
    const std::size_t equals = word.text.find('=');
    Option option{word, word.text.substr(0, equals), word.text.substr(equals + 1)};
    const bool is_quoted =
        option.value.empty() && !is_empty() && peek().is_quoted && peek().begin == word.begin + word.length;
    if (is_quoted) option.value = take().text;
    return option;
  }

  void wrong(const Word& word, std::string message) { fail_at(word.begin, word.length, std::move(message)); }
  /// Something should have followed the last word.
  void missing(std::string message) {
    const Word& last = words_.back();
    fail_at(last.begin + last.length + 1, 1, std::move(message));
  }
  [[nodiscard]] const std::optional<TreeScriptError>& error() const { return error_; }

 private:
  void fail_at(std::size_t begin, std::size_t length, std::string message) {
    if (!error_) error_ = {begin, length, std::move(message)};
  }

  std::vector<Word> words_;
  std::size_t next_ = 0;
  std::optional<TreeScriptError> error_;
};

tl::expected<TreeOperation, TreeScriptError> TreeScript::parse(std::string_view text) {
  Line line(text);
  TreeOperation operation;
  if (!line.error() && !line.is_empty()) operation = parse_operation(line);
  if (!line.error() && !line.is_empty()) {
    line.wrong(line.peek(), fmt::format("unexpected '{}': the operation is complete without it", line.peek().text));
  }
  if (const auto& error = line.error()) return tl::unexpected(*error);
  if (operation.verb == TreeVerb::Let) texts_[operation.name] = operation.tokens;
  return operation;
}

TreeOperation TreeScript::parse_operation(Line& line) {
  const Line::Word verb = line.take();
  const auto* const info = std::ranges::find(kVerbs, verb.text, &VerbInfo::name);
  if (info == kVerbs.end() || verb.is_quoted) {
    std::vector<std::string_view> names;
    names.reserve(kVerbs.size());
    for (const VerbInfo& each : kVerbs) names.push_back(each.name);
    line.wrong(verb, fmt::format("unknown operation '{}'; known: {}", verb.text, fmt::join(names, ", ")));
    return {};
  }
  TreeOperation operation{.verb = info->verb};
  if (info->name_rule == NameRule::Required || (info->name_rule == NameRule::Optional && !line.is_empty())) {
    operation.name = line.take_name(info->name);
  }
  if (info->verb == TreeVerb::Step && !line.is_empty() && !line.is_arrow()) {
    const Line::Word word = line.take();
    operation.count = word.is_quoted ? std::nullopt : number_of<std::uint32_t>(word.text);
    if (operation.count.value_or(0) == 0) line.wrong(word, "expected how many tokens to compute, or =>");
  }
  if (info->verb == TreeVerb::Advance && line.is_empty()) line.missing(std::string(kDurationExpected));
  if (info->verb == TreeVerb::Advance && !line.is_empty()) {
    const Line::Word word = line.take();
    operation.duration = duration_of(word.text);
    if (!operation.duration) line.wrong(word, std::string(kDurationExpected));
  }
  if (info->takes_tokens) operation.tokens = parse_tokens(line, info->name);
  if (line.is_arrow() && (info->verb == TreeVerb::Run || info->verb == TreeVerb::Step)) {
    line.take();
    operation.answer = parse_tokens(line, "=>");
  }
  while (line.is_option()) {
    const Line::Option option = line.take_option();
    if (std::string error = set_option(option.field, option.value, operation); !error.empty()) {
      line.wrong(option.word, std::move(error));
    }
  }
  return operation;
}

// Does what FIELD=VALUE says, or tells what is wrong with it.
std::string TreeScript::set_option(std::string_view field, std::string_view value, TreeOperation& operation) {
  const auto unknown = [&](std::string_view known) {
    return fmt::format("there is no option '{}' here{}{}", field, known.empty() ? "" : "; known: ", known);
  };
  if (operation.verb == TreeVerb::Keep) {
    if (field != "ttl") return unknown("ttl");
    operation.duration = duration_of(value);
    return std::string(operation.duration ? "" : kDurationExpected);
  }
  if (operation.verb == TreeVerb::Space) {
    constexpr std::array<std::pair<std::string_view, std::string KeySpace::*>, 6> kFields = {
        {{"model", &KeySpace::model},
         {"revision", &KeySpace::revision},
         {"adapter", &KeySpace::adapter},
         {"element", &KeySpace::element},
         {"rope", &KeySpace::rope},
         {"salt", &KeySpace::salt}}};
    const auto* const found = std::ranges::find(kFields, field, [](const auto& each) { return each.first; });
    if (found == kFields.end()) return unknown("model, revision, adapter, element, rope, salt");
    if (!operation.key_space) operation.key_space.emplace();
    (*operation.key_space).*(found->second) = value;
    return {};
  }
  if (operation.verb != TreeVerb::Run && operation.verb != TreeVerb::Begin) return unknown("");
  SequenceOptions& sequence = operation.sequence;
  if (field == "publish") {
    sequence.publish = value == "none" ? Publish::None : value == "prompt" ? Publish::Prompt : Publish::All;
    const bool is_known = value == "all" || value == "prompt" || value == "none";
    return is_known ? "" : "expected publish=all, publish=prompt or publish=none";
  }
  if (field == "use_cache") {
    sequence.use_cache = value == "true";
    return value == "true" || value == "false" ? "" : "expected use_cache=true or use_cache=false";
  }
  if (field == "match_tokens_max") {
    sequence.match_tokens_max = number_of<std::uint32_t>(value);
    return sequence.match_tokens_max ? "" : "expected a number, such as match_tokens_max=8";
  }
  return unknown("publish, use_cache, match_tokens_max");
}

std::vector<TokenId> TreeScript::parse_tokens(Line& line, std::string_view verb) {
  std::vector<TokenId> tokens;
  if (line.is_empty()) {
    line.missing(fmt::format("expected tokens after '{}'; {}", verb, kTokensExpected));
  } else if (line.is_arrow() || line.is_option()) {
    line.wrong(line.peek(), fmt::format("expected tokens after '{}'; {}", verb, kTokensExpected));
  }
  while (!line.is_empty() && !line.is_arrow() && !line.is_option()) {
    const Line::Word word = line.take();
    const std::size_t room = kLineTokensMax - tokens.size();
    std::string error;
    if (word.is_quoted) {
      error = add_words(word.text, tokens);
    } else if (word.text.find_first_not_of("0123456789.-") == std::string_view::npos) {
      error = add_numbers(word.text, room, tokens);
    } else if (const auto text = texts_.find(std::string(word.text)); text != texts_.end()) {
      tokens.insert(tokens.end(), text->second.begin(), text->second.end());
    } else {
      error = is_name(word.text)
                  ? fmt::format("no text is named '{0}': name one by let, or quote the word: \"{0}\"", word.text)
                  : std::string(kTokensExpected);
    }
    if (error.empty() && tokens.size() > kLineTokensMax) error = kTooManyTokens;
    if (!error.empty()) {
      line.wrong(word, std::move(error));
      return {};
    }
  }
  return tokens;
}

std::string TreeScript::add_words(std::string_view text, std::vector<TokenId>& tokens) {
  bool is_empty = true;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    while (end < text.size() && !is_space(text[end])) ++end;
    if (end > at) {
      const std::string word(text.substr(at, end - at));
      const auto [found, is_new] = token_by_word_.try_emplace(word, kFirstWord + static_cast<TokenId>(words_.size()));
      if (is_new) words_.push_back(word);
      tokens.push_back(found->second);
      is_empty = false;
    }
    at = end + 1;
  }
  return is_empty ? "there are no words in these quotes" : "";
}

// "7", "1..16". Negative numbers are let through: that they are none is for the cache to say.
std::string TreeScript::add_numbers(std::string_view text, std::size_t room, std::vector<TokenId>& tokens) {
  const std::size_t dots = text.find("..");
  const auto first = number_of<std::int64_t>(text.substr(0, dots));
  const auto last = dots == std::string_view::npos ? first : number_of<std::int64_t>(text.substr(dots + 2));
  if (!first || !last) {
    const bool is_long = text.size() > 18;
    return is_long ? std::string(kNumberTooLarge) : std::string(kTokensExpected);
  }
  if (*first > *last) return "a range goes upwards, such as 1..16";
  if (*last >= kFirstWord || *first < INT32_MIN) return std::string(kNumberTooLarge);
  if (static_cast<std::uint64_t>(*last - *first) >= room) return std::string(kTooManyTokens);
  for (std::int64_t token = *first; token <= *last; ++token) tokens.push_back(static_cast<TokenId>(token));
  return {};
}

std::string TreeScript::preview(std::span<const TokenId> tokens, std::size_t columns) const {
  constexpr std::size_t kWordColumnsMax = 24;
  struct Item {
    std::string text;
    bool is_word = false;
  };
  // Items from the front, or from the back; no more than could fit.
  const auto items_of = [&](bool from_back) {
    std::vector<Item> items;
    for (std::size_t used = 0; used < tokens.size() && items.size() < columns;) {
      const auto at = [&](std::size_t i) { return tokens[from_back ? tokens.size() - 1 - i : i]; };
      const TokenId token = at(used);
      if (token >= kFirstWord) {
        items.push_back({cut_to(words_[static_cast<std::size_t>(token - kFirstWord)], kWordColumnsMax), true});
        ++used;
        continue;
      }
      const TokenId step = from_back ? -1 : 1;
      TokenId last = token;
      std::size_t end = used + 1;
      while (end < tokens.size() && at(end) == last + step && at(end) < kFirstWord) last = at(end++);
      if (end - used < 3) {
        items.push_back({std::to_string(token)});
        ++used;
      } else {
        items.push_back({fmt::format("{}..{}", std::min(token, last), std::max(token, last))});
        used = end;
      }
    }
    return items;
  };
  const auto join = [](std::span<const Item> items) {
    std::string text;
    bool is_open = false;
    for (const Item& item : items) {
      if (is_open && !item.is_word) text += '"';
      if (!text.empty()) text += ' ';
      if (!is_open && item.is_word) text += '"';
      text += item.text;
      is_open = item.is_word;
    }
    return is_open ? text + '"' : text;
  };

  const std::vector<Item> front = items_of(false);
  std::string text = join(front);
  const bool is_whole = front.size() < columns;
  if (is_whole && columns_of(text) <= columns) return text;

  // Two items from the front for each from the back, as long as they fit.
  const std::vector<Item> back = items_of(true);
  std::string best = "…";
  for (std::size_t count = 1; count < front.size() + back.size(); ++count) {
    const std::size_t from_back = count / 3;
    const std::size_t from_front = count - from_back;
    if (from_front >= front.size() || count >= front.size()) break;
    std::vector<Item> shown(front.begin(), front.begin() + static_cast<std::ptrdiff_t>(from_front));
    const bool in_words = shown.back().is_word && (from_back == 0 || back[from_back - 1].is_word);
    shown.push_back({"…", in_words});
    for (std::size_t i = from_back; i > 0; --i) shown.push_back(back[i - 1]);
    text = join(shown);
    if (columns_of(text) > columns) break;
    best = text;
  }
  return best;
}

std::string TreeScript::help() {
  std::string text;
  for (const VerbInfo& each : kVerbs) {
    text += fmt::format("  {:<8}{:<26}{}\n", each.name, each.arguments, each.effect);
  }
  return text;
}

}  // namespace quire
