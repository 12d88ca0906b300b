// SPDX-License-Identifier: Apache-2.0
//
// fio_file_queue: the queues of the file system beside fio, on one file, with the same engine, block size, depth and
// flags, in turn. fio measures itself; it is no dependency: without it only our own figures are printed. Its buffers
// lie in small pages, ours from 2 MiB on in huge ones where the system has them.
//
//   fio_file_queue [--directory=.] [--file-bytes=1073741824] [--repetitions=9] [--only=TEXT] [--random]
//
// A table for people, and a JSON document as the last line. Figures are bytes per second, median (least to greatest).
// The file was written before, so that no blocks are allocated; syncs are not part of it: whether fio counts its own is
// hard to say. With --random the blocks come in a random order, each once.
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"
#include "store/system_files.h"
#include "testing/refused_calls.h"
#include "testing/seeded_run.h"
#include "testing/temp_directory.h"

namespace quire::bench {
namespace {

struct Options {
  std::string directory = ".";
  std::uint64_t file_bytes = std::uint64_t{1} << 30U;
  std::uint32_t repetitions = 9;
  std::string only;  ///< a part of a case's name
  bool is_random = false;
};

struct Case {
  IoKind kind;
  std::uint64_t block_bytes;
  std::uint32_t depth;
};

constexpr std::array<Case, 4> kCases{{{IoKind::Write, std::uint64_t{2} << 20U, 16},
                                      {IoKind::Read, std::uint64_t{2} << 20U, 16},
                                      {IoKind::Write, std::uint64_t{64} << 10U, 32},
                                      {IoKind::Read, std::uint64_t{64} << 10U, 32}}};
constexpr const char* kFileName = "blocks";

[[noreturn]] void give_up(const std::string& why) {
  std::cerr << "fio_file_queue: " << why << "\n";
  std::exit(1);
}

template <typename T>
T value_of(Result<T> result) {
  if (!result) give_up(result.error().message);
  return *std::move(result);
}

void must(const Status& status) {
  if (!status) give_up(status.error().message);
}

std::vector<std::uint64_t> block_order(const Options& options, const Case& one) {
  std::vector<std::uint64_t> order(options.file_bytes / one.block_bytes);
  std::iota(order.begin(), order.end(), 0);
  if (!options.is_random) return order;
  testing::Random random(1);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.next() % i]);
  return order;
}

// Bytes per second.
double measure_queue(FileSystem& files, StoreDirectory& directory, const Options& options, const Case& one) {
  const FileId file = value_of(directory.open(kFileName));
  const auto queue = value_of(files.make_queue({.depth = one.depth, .buffer_bytes = one.block_bytes}));
  const std::span<std::byte> memory = queue->memory();
  for (std::size_t i = 0; i < memory.size(); i += 8) {
    const std::uint64_t word = mix64(i);
    std::copy_n(reinterpret_cast<const std::byte*>(&word), 8, memory.data() + i);
  }
  const std::vector<std::uint64_t> order = block_order(options, one);
  std::vector<IoResult> results(one.depth);

  const auto start = std::chrono::steady_clock::now();
  std::size_t next = 0;
  const auto submit = [&](std::uint64_t slot) {
    queue->submit({.kind = one.kind,
                   .file = file,
                   .offset = order[next++] * one.block_bytes,
                   .buffer = memory.subspan(slot * one.block_bytes, one.block_bytes),
                   .tag = slot});
  };
  while (next < std::min<std::size_t>(one.depth, order.size())) submit(next);
  for (std::size_t done = 0; done < order.size();) {
    for (const IoResult& result : queue->wait(results)) {
      must(result.status);
      ++done;
      if (next < order.size()) submit(result.tag);
    }
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (one.kind == IoKind::Write) must(directory.sync_file(file, SyncPoint::Flush));
  directory.close(file);
  return static_cast<double>(options.file_bytes) / took.count();
}

std::string output_of(const std::string& command) {
  struct Close {
    void operator()(std::FILE* pipe) const { (void)::pclose(pipe); }
  };
  const std::unique_ptr<std::FILE, Close> pipe(::popen(command.c_str(), "re"));
  if (pipe == nullptr) return "";
  std::string output;
  std::array<char, 4096> part{};
  while (const std::size_t bytes = std::fread(part.data(), 1, part.size(), pipe.get()))
    output.append(part.data(), bytes);
  return output;
}

std::string fio_command(const Options& options, const std::string& path, const Case& one, bool is_direct) {
  const bool is_write = one.kind == IoKind::Write;
  return "fio --name=blocks --filename='" + path + "' --size=" + std::to_string(options.file_bytes) +
         " --ioengine=io_uring --fixedbufs=1 --direct=" + (is_direct ? "1" : "0") +
         " --bs=" + std::to_string(one.block_bytes) + " --iodepth=" + std::to_string(one.depth) +
         " --rw=" + (options.is_random ? "rand" : "") + (is_write ? "write --overwrite=1" : "read") +
         " --fallocate=none --scramble_buffers=0 --invalidate=0 --thread --output-format=json";
}

double measure_fio(const Options& options, const std::string& path, const Case& one, bool is_direct) {
  const std::string output = output_of(fio_command(options, path, one, is_direct) + " 2>/dev/null");
  const nlohmann::json report = nlohmann::json::parse(output.substr(std::min(output.find('{'), output.size())), nullptr,
                                                      /*allow_exceptions=*/false);
  if (report.is_discarded() || !report.contains("jobs")) give_up("fio said: " + output);
  const nlohmann::json& job = report["jobs"][0];
  if (job.value("error", 0) != 0) give_up("fio failed: " + output);
  const double moved = job[one.kind == IoKind::Write ? "write" : "read"].value("io_bytes", 0.0);
  const double job_ms = job.value("job_runtime", 0.0);
  return moved / (job_ms / 1000);
}

struct Figures {
  double median = 0;
  double least = 0;
  double greatest = 0;
};

Figures figures_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples.front(), samples.back()};
}

std::string text_of(const Figures& figures) {
  std::array<char, 64> text{};
  (void)std::snprintf(text.data(), text.size(), "%6.0f (%.0f-%.0f)", figures.median / 1e6, figures.least / 1e6,
                      figures.greatest / 1e6);
  return text.data();
}

nlohmann::json json_of(const Figures& figures) {
  return {{"median", figures.median}, {"least", figures.least}, {"greatest", figures.greatest}};
}

void write_whole_file(FileSystem& files, StoreDirectory& directory, const Options& options) {
  directory.close(value_of(directory.create(kFileName, options.file_bytes)));
  (void)measure_queue(files, directory, options, kCases[0]);
}

std::optional<Options> options_of(std::span<char*> arguments) {
  Options options;
  const auto number = [](std::string_view text, auto& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc{} && end == text.data() + text.size() && out != 0;
  };
  for (const std::string_view argument : arguments) {
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const std::string_view name = argument.substr(0, equals);
    const std::string_view value = argument.substr(std::min(equals + 1, argument.size()));
    bool is_good = true;
    if (name == "--directory") {
      options.directory = value;
    } else if (name == "--file-bytes") {
      is_good = number(value, options.file_bytes) && options.file_bytes % kCases[0].block_bytes == 0;
    } else if (name == "--repetitions") {
      is_good = number(value, options.repetitions);
    } else if (name == "--only") {
      options.only = value;
    } else if (argument == "--random") {
      options.is_random = true;
    } else {
      is_good = false;
    }
    if (!is_good) return std::nullopt;
  }
  return options;
}

int run(const Options& options) {
  const testing::TempDirectory temp(options.directory);
  const FileCalls without_uring = testing::calls_without({.uring = true});
  SystemFiles files;
  SystemFiles thread_files(without_uring);
  {
    const auto directory = value_of(files.open_directory(temp.path()));
    write_whole_file(files, *directory, options);
  }
  const IoMode mode = files.mode();
  const std::string fio_version = output_of("fio --version 2>/dev/null");
  const bool has_fio = fio_version.starts_with("fio");
  if (!has_fio) std::cout << "fio is not installed (Debian: fio), so there is nothing to compare with\n";
  if (!mode.refusals.empty()) std::cout << "refused: " << mode.refusals << "\n";

  utsname system{};
  (void)::uname(&system);
  nlohmann::json document{{"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
                          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
                          {"fio", has_fio ? fio_version.substr(0, fio_version.find('\n')) : "none"},
                          {"fio_command", fio_command(options, "FILE", kCases[0], mode.is_direct)},
                          {"file_bytes", options.file_bytes},
                          {"repetitions", options.repetitions},
                          {"is_random", options.is_random},
                          {"is_direct", mode.is_direct},
                          {"cases", nlohmann::json::array()}};
  std::cout << "MB/s               fio                    io_uring               of fio   threads\n";
  for (const Case& one : kCases) {
    const std::string name = std::string(one.kind == IoKind::Write ? "write " : "read ") +
                             std::to_string(one.block_bytes >> 10U) + " KiB x" + std::to_string(one.depth);
    if (name.find(options.only) == std::string::npos) continue;
    std::vector<double> fio;
    std::vector<double> ring;
    std::vector<double> threads;
    for (std::uint32_t i = 0; i < options.repetitions; ++i) {
      if (has_fio) fio.push_back(measure_fio(options, temp.path() + "/" + kFileName, one, mode.is_direct));
      ring.push_back(measure_queue(files, *value_of(files.open_directory(temp.path())), options, one));
      threads.push_back(measure_queue(thread_files, *value_of(thread_files.open_directory(temp.path())), options, one));
    }
    const Figures ours = figures_of(ring);
    nlohmann::json entry{
        {"name", name}, {"io_uring", json_of(ours)}, {"threads", json_of(figures_of(threads))}, {"unit", "bytes/s"}};
    std::array<char, 160> line{};
    std::string ratio = "-";
    if (has_fio) {
      entry["fio"] = json_of(figures_of(fio));
      const auto percent = std::lround(100 * ours.median / figures_of(fio).median);
      entry["percent_of_fio"] = percent;
      ratio = std::to_string(percent) + " %";
    }
    (void)std::snprintf(line.data(), line.size(), "%-18s %-22s %-22s %-8s %s\n", name.c_str(),
                        has_fio ? text_of(figures_of(fio)).c_str() : "-", text_of(ours).c_str(), ratio.c_str(),
                        text_of(figures_of(threads)).c_str());
    std::cout << line.data() << std::flush;
    document["cases"].push_back(entry);
  }
  std::cout << document.dump() << "\n";
  return 0;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  const auto options = quire::bench::options_of(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
  if (options) return quire::bench::run(*options);
  std::cerr << "fio_file_queue [--directory=.] [--file-bytes=1073741824] [--repetitions=9] [--only=TEXT] [--random]\n"
               "--file-bytes is a multiple of 2 MiB\n";
  return 2;
}
