// SPDX-License-Identifier: Apache-2.0
//
// The commands of the tool. main.cc turns arguments into these options; each command is one function in its
// own file and returns the exit status.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "disk_tier.h"
#include "host_tier.h"
#include "remote_tier.h"

namespace quire {

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;         ///< an operation failed
inline constexpr int kExitUsage = 2;          ///< wrong arguments, or a script that does not parse
inline constexpr int kExitInterrupted = 130;  ///< as shells number an end by Ctrl-C

struct BenchOptions {
  std::string filter;  ///< a regular expression; empty: all
  bool list = false;
  bool quick = false;
  std::string json;  ///< a file; empty: none
};
int run_bench(const BenchOptions& options);

struct DemoOptions {
  std::uint64_t seed = 1;
  std::string report = "quire-demo.html";
  std::string write_trace;  ///< where to write the workload instead of serving it; empty: serve it
  HostTierOptions host = {.host_bytes = "64M", .write_policy = std::nullopt, .host_policy = std::nullopt};
  DiskTierOptions disk = {.disk = std::nullopt, .disk_bytes = "512M"};
  bool flip_a_byte = false;
};
int run_demo(const DemoOptions& options);

struct InspectCommandOptions {
  std::vector<std::string> directories;
  RemoteServerOptions server;  ///< instead
  bool json = false;
};
int run_inspect(const InspectCommandOptions& options);

struct ModelsOptions {
  std::string name;                          ///< empty: all
  std::optional<std::uint32_t> page_tokens;  ///< if unset, 16, or as many as make whole entries
  std::uint32_t rank_count = 1;
};
int run_models(const ModelsOptions& options);

struct ReplayOptions {
  std::string trace;  ///< a file of JSON lines; empty, with a model: the demo's workload
  std::string policy = "lru";
  std::optional<std::string> capacity_tokens;  ///< a list; if unset, from the trace's distinct tokens downwards
  std::optional<std::string> capacity_bytes;   ///< a list, instead of capacity_tokens
  std::optional<std::string> page_tokens;      ///< a list; if unset, as the trace or the model suggests
  std::uint32_t unit_tokens = 512;             ///< of traces with hashes
  std::string model;
  std::string mix = "trace";
  std::string bytes = "none";
  std::uint32_t running_max = 1;
  std::uint32_t engines = 1;
  HostTierOptions host;
  DiskTierOptions disk;
  RemoteTierOptions remote;
  std::uint32_t jobs = 0;  ///< 0: one per core
  bool skip_bad = false;
  std::optional<std::string> report;
  bool json = false;
  bool flip_a_byte = false;
};
int run_replay(const ReplayOptions& options);

struct ServersOptions {
  std::uint32_t engines = 100;
  double loads_per_second = 4;
  std::uint32_t values = 88;
  std::string value_bytes = "2097152";
  std::string compute_bytes_per_second = "1.4G";
  std::optional<std::string> shards;  ///< a list; if unset, from the sum by hand
  std::optional<double> deadline_ms;  ///< if unset, what computing takes
  double hang_ms = 3'600;
  bool tls = false;
  std::uint64_t seed = 1;
};
int run_servers(const ServersOptions& options);

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

struct VerifyCommandOptions {
  std::vector<std::string> directories;
  RemoteServerOptions server;  ///< instead
  bool repair = false;
};
int run_verify(const VerifyCommandOptions& options);

}  // namespace quire
