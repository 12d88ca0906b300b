// SPDX-License-Identifier: Apache-2.0
//
// quire tree: runs a script of cache operations, says what each did, and draws the prefix tree.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

#include "commands.h"
#include "terminal.h"
#include "tree_drawing.h"
#include "tree_script.h"
#include "tree_session.h"

namespace quire {

namespace {

constexpr std::string_view kExample = R"(# A page holds four tokens, and each word in quotes is one token.
let system "You are a helpful assistant that answers briefly"

# The first request finds nothing. What it computes stays cached, in whole pages.
run ann system "What is a page ?" => "A few tokens , together"

# The next begins with the same system prompt, and with half a page more, which is copied.
run bob system "What is the tree ?"
run eve "Once upon a time there was a cache with far too few pages"
show

# Cas is being served, so her pages are pinned. Dan waits: what he will need is evicted last.
begin cas system "What is a page ?" "A few tokens" "of what ?"
admit cas
step cas
begin dan system "What is the tree ?"

# Another tenant never finds these pages, though the words are the same.
space acme salt=acme
lookup system

# Too few pages are free for this: idle ones go, from the end of the least recently used run.
run big 1..228
)";

constexpr std::size_t kLineBytesMax = 1'000'000;

/// Where a script comes from, how its lines are shown, and how its errors are.
class Transcript {
 public:
  Transcript(std::string source, bool is_typed) : source_(std::move(source)), is_typed_(is_typed) {}

  /// A line of the script. One that is typed is on the screen already.
  void echo(std::string_view line) {
    if (is_typed_ || (line.empty() && is_after_blank_)) return;
    if (is_after_drawing_ && !line.empty()) print("");
    const Ink ink = line.starts_with('#') ? Ink::Dim : Ink::Bold;
    print(paint_(ink, cut_to(line, page_width(stdout))));
  }
  void outcome(std::string_view text) { print(fmt::format("  {} {}", paint_(Ink::Dim, "→"), text)); }
  void drawing(const TreeDrawing& drawing, const TreeScript& script) {
    if (!is_after_blank_) print("");
    fmt::print("{}", draw(drawing, script, paint_, page_width(stdout)));
    is_after_blank_ = false;
    is_after_drawing_ = true;
  }
  void error(std::size_t line_number, std::string_view line, const TreeScriptError& error) {
    const std::string_view before = line.substr(0, error.begin);
    const std::size_t column = columns_of(before) + (error.begin - before.size());  // may lie behind the line
    print_error(fmt::format("{}:{}:{}", source_, line_number, column + 1), error.message, line);
    if (!is_shown_whole(line)) return;
    const std::string_view marked = error.begin < line.size() ? line.substr(error.begin, error.length) : " ";
    const std::size_t marks = std::max<std::size_t>(1, columns_of(marked));
    fmt::print(stderr, "  {:{}}{}\n", "", column, paint_error_(Ink::Red, "^" + std::string(marks - 1, '~')));
  }
  void error(std::size_t line_number, std::string_view line, const Error& error) const {
    print_error(fmt::format("{}:{}", source_, line_number), error.message, line);
  }

 private:
  void print(const std::string& text) {
    fmt::print("{}\n", text);
    is_after_blank_ = text.empty();
    is_after_drawing_ = false;
  }
  void print_error(std::string_view where, std::string_view message, std::string_view line) const {
    std::fflush(stdout);
    fmt::print(stderr, "{}: {} {}\n", paint_error_(Ink::Bold, where), paint_error_(Ink::Red, "error:"), message);
    if (!is_shown_whole(line)) return;
    std::string shown(line);
    std::ranges::replace(shown, '\t', ' ');  // so that the marks below stand where they should
    fmt::print(stderr, "  {}\n", shown);
  }
  // What would garble the terminal, or bury the error, is not shown.
  static bool is_shown_whole(std::string_view line) {
    return line.size() <= 1'000 && first_unprintable(line) == line.size();
  }

  std::string source_;
  bool is_typed_;
  bool is_after_blank_ = true;
  bool is_after_drawing_ = false;
  Painter paint_{stdout};
  Painter paint_error_{stderr};
};

// Like std::getline, but a line without end does not fill the memory: what is longer comes in pieces, which
// are refused.
bool read_line(std::istream& input, std::string& line) {
  line.clear();
  char c = 0;
  while (line.size() <= kLineBytesMax && input.get(c)) {
    if (c == '\n') return true;
    line += c;
  }
  return !line.empty();
}

// Runs the script line by line. A line that does not parse, or an operation that fails, ends it, unless it is
// typed by someone who can correct it.
int run_script(std::istream& input, Transcript transcript, TreeSession& session, bool is_typed) {
  TreeScript script;
  const auto draw_now = [&] {
    const Result<TreeDrawing> drawing = session.drawing();
    if (drawing) {
      transcript.drawing(*drawing, script);
    } else {
      fmt::print(stderr, "quire tree: this should not happen, please report it: {}\n", drawing.error().message);
    }
    return drawing.has_value();
  };
  bool is_drawn = false;
  std::string line;
  for (std::size_t line_number = 1; read_line(input, line); ++line_number) {
    if (line.ends_with('\r')) line.pop_back();
    const auto operation = line.size() > kLineBytesMax
                               ? tl::unexpected(TreeScriptError{0, 1, "a line may have a million bytes"})
                               : script.parse(line);
    if (!operation) {
      transcript.error(line_number, line, operation.error());
      if (is_typed) continue;
      return kExitUsage;
    }
    transcript.echo(line);
    if (operation->verb == TreeVerb::Nothing) continue;
    is_drawn = operation->verb == TreeVerb::Show;
    if (is_drawn) {
      if (!draw_now()) return kExitFailed;
      continue;
    }
    const Result<std::string> outcome = session.execute(*operation);
    if (outcome) {
      transcript.outcome(*outcome);
    } else if (is_typed) {
      transcript.error(line_number, line, outcome.error());
    } else {
      draw_now();
      transcript.error(line_number, line, outcome.error());
      return kExitFailed;
    }
  }
  return is_drawn || draw_now() ? kExitDone : kExitFailed;
}

int fail_to_read(std::string_view path, int code) {
  fmt::print(stderr, "quire tree: cannot read '{}': {}\n", path, std::strerror(code));
  return kExitUsage;
}

}  // namespace

int run_tree(const TreeOptions& options) {
  if (options.print_example) {
    fmt::print("{}", kExample);
    return kExitDone;
  }
  Result<TreeSession> session = TreeSession::open(options);
  if (!session) {
    fmt::print(stderr, "quire tree: {}\n", session.error().message);
    return kExitUsage;
  }
  if (options.script.empty()) {
    std::istringstream example{std::string(kExample)};
    return run_script(example, Transcript("example", false), *session, false);
  }
  if (options.script == "-") {
    const bool is_typed = isatty(STDIN_FILENO) == 1;
    if (is_typed) fmt::print(stderr, "One operation per line, such as: run ann 1..12. Ctrl-D ends.\n");
    return run_script(std::cin, Transcript("standard input", is_typed), *session, is_typed);
  }
  std::error_code ignored;  // whatever it is, opening the file meets it too
  if (std::filesystem::is_directory(options.script, ignored)) return fail_to_read(options.script, EISDIR);
  errno = 0;
  std::ifstream file(options.script);
  if (!file) return fail_to_read(options.script, errno);
  return run_script(file, Transcript(options.script, false), *session, false);
}

std::string tree_script_help() {
  return "A script has one operation per line; # begins a comment.\n\n" + TreeScript::help() +
         R"(
TOKENS are numbers (7), ranges (1..16), words in quotes ("each word is a token") and names
given by let, in any mixture. DURATION is such as 500ms, 10s, 5m or 1h. FIELD is model,
revision, adapter, element, rope or salt; without any, a key space's name is its salt. run
and begin take publish=all|prompt|none, use_cache=true|false and match_tokens_max=N at the end.

Each line of the drawing is a run: its tokens, their position in the path, its pages, the pins
that end in it plus one for each pinned child, the same for the soft pins of waiting requests,
and who holds it. Siblings stand most recently used first. Tokens that are "copied" are found
at the start of a cached page that goes on differently.

Example, with a pool of eight pages:

  printf '%s\n' 'run a 1..12' 'begin b 1..8 50..57' 'admit b' | quire tree - --page-count 8

Exit status: 0 done, 1 an operation failed, 2 wrong arguments or a line that does not parse.
)";
}

}  // namespace quire
