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
  CLI::App* const demo_command = app.add_subcommand("demo", "Serve a multi-tenant workload and verify every byte");
  demo_command->footer(
      "Ends with a small transformer that runs on the cache: its tokens must equal those of one without a cache.");
  demo_command->add_option("--seed", demo.seed, "Draws the workload")
      ->capture_default_str()
      ->check([](const std::string& text) { return text.starts_with('-') ? text + " is below 0" : ""; });
  demo_command->add_option("--report", demo.report, "Where the report goes")->capture_default_str();
  demo_command->add_option("--write-trace", demo.write_trace, "Write the workload there, for quire replay, and exit");
  demo_command
      ->add_option("--host-bytes", demo.host.host_bytes, "A host tier behind the smallest pool, such as 64M; none")
      ->capture_default_str();
  demo_command->add_option("--write-policy", demo.host.write_policy,
                           "When pages go there: " + quire::write_policy_names() + "; default: write_back");
  // A list may be given in one piece or in several.
  const auto is_list = [](CLI::Option* option) {
    option->multi_option_policy(CLI::MultiOptionPolicy::Join)->delimiter(',');
  };
  is_list(demo_command->add_option("--disk", demo.disk.disk,
                                   "Directories of a disk tier behind the host tier; default: a temporary one"));
  demo_command->add_option("--disk-bytes", demo.disk.disk_bytes, "How much of them may be used; none; default: 512M");
  demo_command->add_option("--disk-write-policy", demo.disk.write_policy,
                           "When host pages are written: as --write-policy; default: write_through");
  demo_command->add_option("--disk-write-bytes-per-day", demo.disk.write_bytes_per_day,
                           "Write no more than this in 24 hours of the workload; default: no limit");
  demo_command->add_flag("--flip-a-byte", demo.flip_a_byte, "Damage a cached page on purpose, to see it noticed");
  demo_command->callback([&] { status = quire::run_demo(demo); });

  // How to reach the servers of a remote tier.
  const auto add_servers = [&is_list](CLI::App* command, quire::RemoteServerOptions& server, const char* about) {
    is_list(command->add_option("--remote", server.remote, about));
    command->add_option("--remote-user", server.user,
                        "Who asks; default: as the url says, or the server's default user");
    command->add_option("--remote-password-file", server.password_file,
                        "Its first line is the password; default: the variable QUIRE_REMOTE_PASSWORD");
    command->add_option("--remote-ca-file", server.ca_file, "Whom to trust, with rediss://; default: as the system");
    command->add_option("--remote-certificate-file", server.certificate_file, "What the server is told who asks");
    command->add_option("--remote-key-file", server.key_file, "The key of that");
    command->add_option("--remote-server-name", server.server_name, "In the certificates; default: the url's host");
  };

  quire::InspectCommandOptions inspect;
  CLI::App* const inspect_command = app.add_subcommand("inspect", "Show what a disk or remote tier has");
  inspect_command->add_option("DIR", inspect.directories, "All directories of one store");
  add_servers(inspect_command, inspect.server, "Instead of DIR, urls of servers: redis://host:port, unix:///path");
  inspect_command->add_option("--remote-key-prefix", inspect.server.key_prefix, "Of the tier; default: quire");
  inspect_command->add_flag("--json", inspect.json, "Print JSON instead of tables");
  inspect_command->footer(
      "Shows key spaces, pages, ages, layouts and segments, and what can be reclaimed. Nothing is written\n"
      "or locked, so it works beside a process that has the store open. Payloads are not read: quire verify\n"
      "does that. Segments are sealed (complete), open (being written, or not sealed when their process\n"
      "ended), damaged, empty, newer (of a newer quire) or foreign (of another store). Of servers it shows\n"
      "values by key space and layout.\n\n"
      "Exit status: 0 done; 1 no store, or one that cannot be read; 2 wrong arguments; 130 Ctrl-C.");
  // One of both, and not both.
  const auto run_on_one = [&status](const CLI::App* command, const auto& options, const auto& run) {
    const bool has_remote = options.server.remote.has_value();
    if (options.directories.empty() != has_remote) {
      fmt::print(stderr, "quire {0}: {1}; see quire {0} --help\n", command->get_name(),
                 has_remote ? "give DIR or --remote, not both" : "DIR is required, or --remote");
      status = quire::kExitUsage;
    } else {
      status = run(options);
    }
  };
  inspect_command->callback([&] { run_on_one(inspect_command, inspect, quire::run_inspect); });

  quire::ModelsOptions models;
  CLI::App* const models_command = app.add_subcommand("models", "Bytes per token and page of well-known models");
  models_command->add_option("NAME", models.name, "Only this model");
  models_command->add_option("--page-tokens", models.page_tokens,
                             "Tokens per page; default: 16, or as many as make whole entries");
  models_command->add_option("--rank-count", models.rank_count, "Tensor-parallel ranks")->capture_default_str();
  models_command->callback([&] { status = quire::run_models(models); });

  quire::ReplayOptions replay;
  CLI::App* const replay_command = app.add_subcommand("replay", "Run a trace through the cache and compare policies");
  replay_command->add_option("TRACE", replay.trace,
                             "A file of JSON lines, or - for standard input; with a model, the demo's if left out");
  is_list(replay_command->add_option("--policy", replay.policy, "all, or some of " + joined(quire::policy_names()))
              ->capture_default_str());
  is_list(replay_command->add_option("--capacity-tokens", replay.capacity_tokens,
                                     "Pool sizes, such as 100k,2.5M; default: all distinct tokens, then by halves"));
  is_list(replay_command->add_option("--capacity-bytes", replay.capacity_bytes,
                                     "Pool sizes in bytes instead, such as 40G,80G"));
  is_list(replay_command->add_option(
      "--page-tokens", replay.page_tokens,
      "Page sizes, such as 16,64; default: a unit, or 16 tokens or as many as a model needs"));
  replay_command->add_option("--unit-tokens", replay.unit_tokens, "Tokens that each of a trace's hash_ids stands for")
      ->capture_default_str();
  replay_command->add_option("--model", replay.model,
                             "Whose groups and tokens these are, see quire models; default: 1 KiB each");
  replay_command
      ->add_option("--mix", replay.mix,
                   "trace: groups share bytes out for requests such as the trace has; longest: for its longest")
      ->capture_default_str();
  replay_command->add_option("--bytes", replay.bytes, "verify: write and compare all bytes of pages; none")
      ->capture_default_str();
  replay_command->add_option("--running-max", replay.running_max, "Requests in flight at once")->capture_default_str();
  replay_command->add_option("--engines", replay.engines, "Caches that get the requests in turn, each with these tiers")
      ->capture_default_str();
  replay_command->add_option("--host-bytes", replay.host.host_bytes, "A host tier behind every pool, such as 4G; none")
      ->capture_default_str();
  replay_command->add_option("--write-policy", replay.host.write_policy,
                             "When pages go there: " + quire::write_policy_names() + "; default: write_back");
  replay_command->add_option("--host-policy", replay.host.host_policy,
                             "Which host pages go first, as --policy; default: lru");
  is_list(replay_command->add_option("--disk", replay.disk.disk,
                                     "Directories of a disk tier behind the host tier; made if missing"));
  replay_command->add_option("--disk-bytes", replay.disk.disk_bytes, "How much of them may be used, such as 64G");
  replay_command->add_option("--disk-write-policy", replay.disk.write_policy,
                             "When host pages are written: as --write-policy; default: write_through");
  replay_command->add_option("--disk-write-bytes-per-day", replay.disk.write_bytes_per_day,
                             "Write no more than this in 24 hours of the trace; default: no limit");
  add_servers(replay_command, replay.remote.server,
              "A remote tier behind the host tier: urls of servers, redis://host:port or unix:///path");
  replay_command->add_option("--remote-key-prefix", replay.remote.server.key_prefix,
                             "What keys begin with, and stay; default: one of its own, dropped at the end");
  replay_command->add_option("--remote-extent-bytes", replay.remote.extent_bytes,
                             "Of a value, such as 512k; default: 2M");
  replay_command->add_option("--remote-write-policy", replay.remote.write_policy,
                             "When host pages are written: as --write-policy; default: write_through");
  replay_command->add_option("--remote-write-bytes-per-day", replay.remote.write_bytes_per_day,
                             "Write no more than this in 24 hours of the trace; default: no limit");
  replay_command->add_option("--remote-max-age-s", replay.remote.max_age_s, "How long values stay; default: for ever");
  replay_command->add_flag("--remote-keep", replay.remote.keep, "Leave there what was written");
  replay_command->add_option("--jobs", replay.jobs, "Threads; 0 for one per core")->capture_default_str();
  replay_command->add_flag("--skip-bad", replay.skip_bad, "Leave out lines that cannot be used, and count them");
  replay_command->add_option("--report", replay.report, "Write a page with plots there");
  replay_command->add_flag("--json", replay.json, "Print JSON instead of a table");
  replay_command->add_flag("--flip-a-byte", replay.flip_a_byte, "Damage a cached page on purpose, to see it noticed");
  replay_command->footer(
      "A line of a trace is an object with timestamp (ms), input_length and hash_ids, or with tokens;\n"
      "timestamp, output, key_space and priority may follow. Hit rates are prompt tokens found in the\n"
      "cache, of all. The bound is what the best choice of victims finds that knows the future.\n"
      "A disk tier stays when the command ends, and the next one finds it; quire inspect looks into it.\n\n"
      "Example: quire replay trace.jsonl --policy all --capacity-tokens 1M,10M --report out.html\n\n"
      "Exit status: 0 done; 1 damaged or shared pages, a disk that failed, or no report could be written;\n"
      "2 wrong arguments or trace; 130 Ctrl-C.");
  replay_command->callback([&] { status = quire::run_replay(replay); });

  quire::ServersOptions servers;
  CLI::App* const servers_command =
      app.add_subcommand("servers", "How many servers a tier shared by many engines needs");
  servers_command->add_option("--engines", servers.engines, "Engines that load from it")->capture_default_str();
  servers_command->add_option("--loads-per-second", servers.loads_per_second, "Of each engine, at random times")
      ->capture_default_str();
  servers_command->add_option("--values", servers.values, "That a load consists of")->capture_default_str();
  servers_command->add_option("--value-bytes", servers.value_bytes, "Of an extent")->capture_default_str();
  servers_command
      ->add_option("--compute-bytes-per-second", servers.compute_bytes_per_second,
                   "That an engine makes instead: its tokens per second times bytes per token")
      ->capture_default_str();
  is_list(
      servers_command->add_option("--shards", servers.shards, "Numbers of servers; default: around the sum by hand"));
  servers_command->add_option("--deadline-ms", servers.deadline_ms,
                              "Of a load; default: what computing all of it takes");
  servers_command->add_option("--hang-ms", servers.hang_ms, "How long one shard hangs")->capture_default_str();
  servers_command->add_flag("--tls", servers.tls, "Connections are encrypted");
  servers_command->add_option("--seed", servers.seed, "Draws when loads begin, and their shards")
      ->capture_default_str();
  servers_command->footer(
      "A simulation with measured times per byte: nothing is connected to. A shard serves one value after the\n"
      "other, an engine has 8 MiB in flight to each, uses what has come in order, and computes the rest.\n\n"
      "Exit status: 0 done; 2 wrong arguments.");
  servers_command->callback([&] { status = quire::run_servers(servers); });

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

  quire::VerifyCommandOptions verify;
  CLI::App* const verify_command = app.add_subcommand("verify", "Read and check all that a disk or remote tier has");
  verify_command->add_option("DIR", verify.directories, "All directories of one store");
  add_servers(verify_command, verify.server, "Instead of DIR, urls of servers: redis://host:port, unix:///path");
  verify_command->add_option("--remote-key-prefix", verify.server.key_prefix, "Of the tier; default: quire");
  verify_command->add_flag("--repair", verify.repair, "Drop what is bad; of DIR, needs that no process has it open");
  verify_command->footer(
      "Compares headers, footers and payloads with their checksums, compressed ones too, and lists what is\n"
      "bad: segment, offset, name of the page and why. Beside a process that has the store open, records\n"
      "on their way to disk are not judged. A repair drops bad records, writes headers and footers anew\n"
      "where a good copy is there, and removes segments of which nothing can be read; what is left is good.\n"
      "On servers, it drops values that are not what their keys say, and keys below those of the tier that no\n"
      "cache writes; engines may go on meanwhile.\n\n"
      "Exit status: 0 all is good, or repaired; 1 something is bad, or cannot be read; 2 wrong arguments;\n"
      "130 Ctrl-C.");
  verify_command->callback([&] { run_on_one(verify_command, verify, quire::run_verify); });

  quire::BenchOptions bench;
  CLI::App* const bench_command = app.add_subcommand("bench", "Run the micro-benchmarks and print the ratios");
  bench_command->add_option("--filter", bench.filter, "Only benchmarks with a match of this regular expression");
  bench_command->add_flag("--list", bench.list, "Print the names of the benchmarks instead of running them");
  bench_command->add_flag("--quick", bench.quick, "Fewer samples and smaller trees: one minute instead of three");
  bench_command->add_option("--json", bench.json, "Write all that was measured there, as Google Benchmark's JSON");
  bench_command->footer(
      "A row of the table is a figure beside others of the same run: a limit (memcmp, memcpy), a textbook\n"
      "radix tree, a tree of 1,000 leaves, or the policy lru. A ratio is quire's figure divided by such a\n"
      "one. The target is for the figure or, with an x, for the first ratio. P is the tokens of a page;\n"
      "warm, calls follow each other; cold, 512 MB of other memory are used in between. bench/README.md\n"
      "says what W1, W2 and W3 are.\n"
      "\n"
      "On a busy machine, pin it to a core: taskset -c 1 build/release/bin/quire bench\n"
      "\n"
      "Exit status: 0 done, whether targets are met or not; 1 a benchmark failed, or there are none;\n"
      "2 wrong arguments; 130 ended by Ctrl-C, with what was finished in the table.\n");
  bench_command->callback([&] { status = quire::run_bench(bench); });

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
