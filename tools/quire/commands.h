// SPDX-License-Identifier: Apache-2.0
//
// The commands of the tool. main.cc turns arguments into these options; each command is one function in its
// own file and returns the exit status.
#pragma once

#include <cstdint>
#include <string>

namespace quire {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;  ///< an operation failed
inline constexpr int kExitUsage = 2;   ///< wrong arguments, or a script that does not parse

struct DemoOptions {
  std::uint64_t seed = 1;
  bool flip_a_bit = false;
};
int run_demo(const DemoOptions& options);

struct ModelsOptions {
  std::string name;  ///< empty: all
  std::uint32_t page_tokens = 16;
  std::uint32_t rank_count = 1;
};
int run_models(const ModelsOptions& options);

struct TreeOptions {
  std::string script;  ///< a file, "-" for standard input, or empty for the built-in example
  std::uint32_t page_tokens = 4;
  std::uint32_t page_count = 64;
  std::string policy = "lru";
  bool whole_runs = false;
  bool print_example = false;
};
int run_tree(const TreeOptions& options);
/// The part of its help that describes scripts.
std::string tree_script_help();

}  // namespace quire
