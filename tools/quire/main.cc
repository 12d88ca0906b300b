// SPDX-License-Identifier: Apache-2.0
//
// The quire command line: turns arguments into options and hands over to one function per command. The only
// file that knows the argument parser.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "commands.h"
#include "quire/policy.h"
#include "quire/version.h"

namespace {

std::string joined(const auto& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

int run(int argc, char** argv) {
  CLI::App app{"Quire: a KV-cache layer for LLM inference. This tool shows what the library does.", "quire"};
  app.set_version_flag("--version", "quire " + std::string(quire::kVersion), "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this text and exit");
  app.require_subcommand(0, 1);
  app.get_formatter()->column_width(34);
  int status = quire::kExitDone;

  quire::DemoOptions demo;
  CLI::App* const demo_command = app.add_subcommand("demo", "Serve a multi-tenant chat workload and verify every byte");
  demo_command->add_option("--seed", demo.seed, "Draws the workload")->capture_default_str();
  demo_command->add_flag("--flip-a-bit", demo.flip_a_bit, "Damage a cached page on purpose, to see it noticed");
  demo_command->callback([&] { status = quire::run_demo(demo); });

  quire::ModelsOptions models;
  CLI::App* const models_command = app.add_subcommand("models", "Bytes per token and page of well-known models");
  models_command->add_option("NAME", models.name, "Only this model");
  models_command->add_option("--page-tokens", models.page_tokens, "Tokens per page")->capture_default_str();
  models_command->add_option("--rank-count", models.rank_count, "Tensor-parallel ranks")->capture_default_str();
  models_command->callback([&] { status = quire::run_models(models); });

  quire::TreeOptions tree;
  CLI::App* const tree_command = app.add_subcommand("tree", "Draw the prefix tree after a script of operations");
  tree_command->add_option("SCRIPT", tree.script, "A file, or - for standard input; a built-in example if left out");
  tree_command->add_option("--page-tokens", tree.page_tokens, "Tokens per page")->capture_default_str();
  tree_command->add_option("--page-count,--pages", tree.page_count, "Pages in the pool")->capture_default_str();
  tree_command->add_option("--policy", tree.policy, "Eviction policy: " + joined(quire::policy_names()))
      ->capture_default_str();
  tree_command->add_flag("--whole-runs", tree.whole_runs, "Evict whole runs, and never let one grow in place");
  tree_command->add_flag("--print-example", tree.print_example, "Print the built-in script instead of running it");
  tree_command->footer(quire::tree_script_help());
  tree_command->callback([&] { status = quire::run_tree(tree); });

  app.footer("'quire COMMAND --help' says more about a command.");

  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands(nullptr)) names.push_back(command->get_name());
  const std::string first = argc > 1 ? argv[1] : "-";
  if (!first.starts_with('-') && std::ranges::find(names, first) == names.end()) {
    fmt::print(stderr, "quire: unknown command '{}'; known: {} (see quire --help)\n", first, joined(names));
    return quire::kExitUsage;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help, --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    const auto commands = app.get_subcommands();
    const std::string command = commands.empty() ? "quire" : "quire " + commands.front()->get_name();
    fmt::print(stderr, "{}: {}; see {} --help\n", command, error.what(), command);
    return quire::kExitUsage;
  }
  if (app.get_subcommands().empty()) fmt::print("{}", app.help());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  // A reader that has seen enough ends the program without a word, even where the parent ignores the signal.
  std::signal(SIGPIPE, SIG_DFL);
  try {
    const int status = run(argc, argv);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    fmt::print(stderr, "quire: the output could not be written\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "quire: {}\n", error.what());
  }
  return quire::kExitFailed;
}
