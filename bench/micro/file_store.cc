// SPDX-License-Identifier: Apache-2.0
//
// fio_file_store: whole pages through a FileStore beside fio, which writes and reads blocks of the same size with the
// same engine, depth and flags on the same file system, in turn. The store computes and checks a checksum of every page
// while it copies it; a store that copies without is measured in turn with the others, to see what that costs. fio is
// no dependency: without it only our own figures are printed.
//
//   fio_file_store [--directory=.] [--bytes=1073741824] [--repetitions=7] [--call-pages=1024] [--only=TEXT]
//   fio_file_store --reopen=100000 [--directory=.]
//
// A table for people, and a JSON document as the last line. Figures are bytes of pages per second, median (least to
// greatest). Neither side counts syncs, and both write to new files whose room is reserved: to blocks that were written
// before, file systems write faster. At the end of a call the store waits for all of its pages, so that short calls do
// not keep the disk busy; a cache's have up to transfer_pages_max. With --reopen: how long a store of so many pages of
// 64 bytes takes to open, when it was closed, and when all of its segments must be scanned.
#include <sys/resource.h>
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
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/copy_checked.h"
#include "store/file_store.h"
#include "store/system_files.h"
#include "testing/file_pages.h"
#include "testing/temp_directory.h"

namespace quire::bench {
namespace {

using testing::TestPage;

struct Options {
  std::string directory = ".";
  std::uint64_t bytes = std::uint64_t{1} << 30U;
  std::uint32_t repetitions = 7;
  std::uint32_t call_pages = 1024;  ///< that the store is given at once
  std::uint32_t reopen_page_count = 0;
  std::string only;  ///< a part of a case's name
};

struct Case {
  std::uint64_t page_bytes;
  std::uint32_t depth;
};
constexpr std::array<Case, 2> kCases{{{std::uint64_t{2} << 20U, 16}, {std::uint64_t{64} << 10U, 32}}};

[[noreturn]] void give_up(const std::string& why) {
  std::cerr << "fio_file_store: " << why << "\n";
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

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
double cpu_seconds() {
  rusage usage{};
  (void)::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + (static_cast<double>(time.tv_usec) / 1e6);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

struct Sample {
  double write = 0;  ///< bytes per second
  double read = 0;
  double write_cpu = 0;  ///< seconds of all cores in a second
  double read_cpu = 0;
};

// Copies, and tells the same sum of everything.
const CheckedCopier& copier_without_checksums() {
  static const CheckedCopier copier{.copy_summed =
                                        [](const CopyPart& part) {
                                          best_checked_copier().copy(part);
                                          return ChecksumPart{};
                                        },
                                    .copy = best_checked_copier().copy,
                                    .sum = [](const CopyPart& /*part*/) { return ChecksumPart{}; },
                                    .settle = best_checked_copier().settle};
  return copier;
}

FileStoreConfig config_of(const std::string& path, const Options& options, const Case& one) {
  FileStoreConfig config;
  config.directories = {path};
  config.capacity_bytes = (options.bytes / 4 * 6) + (std::uint64_t{1} << 30U);
  config.layout = {.page_bytes = one.page_bytes, .hash = 1};
  config.queue_depth = one.depth;
  return config;
}

Sample measure_store(const Options& options, const Case& one, const CheckedCopier& copier, const std::string& path,
                     std::string& mode) {
  std::filesystem::remove_all(path);
  SystemFiles files;
  FileStoreConfig config = config_of(path, options, one);
  config.copier = &copier;
  const auto store = value_of(FileStore::open(config, files));
  const auto count = static_cast<std::uint32_t>(options.bytes / one.page_bytes);
  // Pages come from and go to a region of many, as a host tier's do, so that no cache has them.
  const std::size_t slot_count = (std::size_t{128} << 20U) / one.page_bytes;
  std::vector<std::byte> host(slot_count * one.page_bytes);
  for (std::uint32_t i = 0; i < slot_count; ++i) {
    testing::fill_page({0, i}, std::span(host).subspan(i * one.page_bytes, one.page_bytes));
  }
  const auto slot = [&](std::uint32_t page) {
    return std::span(host).subspan((page % slot_count) * one.page_bytes, one.page_bytes);
  };
  Sample sample;
  const auto bytes = static_cast<double>(std::uint64_t{count} * one.page_bytes);

  auto start = std::chrono::steady_clock::now();
  double cpu = cpu_seconds();
  std::vector<FileWrite> writes;
  for (std::uint32_t page = 0; page < count;) {
    writes.clear();
    for (; writes.size() < options.call_pages && page < count; ++page) {
      writes.push_back({.name = testing::name_of({1, page}), .parent = testing::parent_of({1, page})});
      writes.back().bytes = slot(page);
    }
    store->write(testing::test_key_space(), writes, 1);
    for (const FileWrite& write : writes) {
      if (write.outcome != FileOutcome::Ok) give_up("a write failed: " + store->stats().last_error);
    }
  }
  double took = seconds_since(start);
  sample.write = bytes / took;
  sample.write_cpu = (cpu_seconds() - cpu) / took;
  must(store->flush());

  start = std::chrono::steady_clock::now();
  cpu = cpu_seconds();
  std::vector<FileRead> reads;
  for (std::uint32_t page = 0; page < count;) {
    reads.clear();
    for (; reads.size() < options.call_pages && page < count; ++page) {
      reads.push_back({.name = testing::name_of({1, page}), .bytes = slot(page)});
    }
    store->read(reads);
    for (const FileRead& read : reads) {
      if (read.outcome != FileOutcome::Ok) give_up("a read failed: " + store->stats().last_error);
    }
  }
  took = seconds_since(start);
  sample.read = bytes / took;
  sample.read_cpu = (cpu_seconds() - cpu) / took;

  const IoMode io = store->stats().mode;
  mode = std::string(io.engine == IoMode::Engine::Uring ? "io_uring" : "threads") + (io.is_direct ? ", O_DIRECT" : "") +
         (io.has_registered_buffers ? ", registered buffers" : "") +
         (io.refusals.empty() ? "" : "; refused: " + io.refusals);
  return sample;
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

std::string fio_command(const Options& options, const std::string& path, const Case& one, bool is_write) {
  return "fio --name=blocks --filename='" + path + "' --size=" + std::to_string(options.bytes) +
         " --ioengine=io_uring --fixedbufs=1 --direct=1 --bs=" + std::to_string(one.page_bytes) +
         " --iodepth=" + std::to_string(one.depth) + " --rw=" + (is_write ? "write --fallocate=native" : "read") +
         " --scramble_buffers=0 --invalidate=0 --thread --output-format=json";
}

double measure_fio(const Options& options, const std::string& path, const Case& one, bool is_write) {
  const std::string output = output_of(fio_command(options, path, one, is_write) + " 2>/dev/null");
  const nlohmann::json report =
      nlohmann::json::parse(output.substr(std::min(output.find('{'), output.size())), nullptr, false);
  if (report.is_discarded() || !report.contains("jobs")) give_up("fio said: " + output);
  const nlohmann::json& job = report["jobs"][0];
  if (job.value("error", 0) != 0) give_up("fio failed: " + output);
  return job[is_write ? "write" : "read"].value("io_bytes", 0.0) / (job.value("job_runtime", 0.0) / 1000);
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

struct Row {
  std::string name;
  std::vector<double> fio;
  std::vector<double> store;
  std::vector<double> unchecked;  ///< the store without checksums
  std::vector<double> cpu;
};

long percent_of(const std::vector<double>& part, const std::vector<double>& whole) {
  return std::lround(100 * figures_of(part).median / figures_of(whole).median);
}

void print_row(const Row& row, nlohmann::json& cases) {
  nlohmann::json entry{{"name", row.name},
                       {"unit", "bytes/s"},
                       {"store", json_of(figures_of(row.store))},
                       {"without_checksums", json_of(figures_of(row.unchecked))},
                       {"percent_of_without", percent_of(row.store, row.unchecked)},
                       {"cpu_seconds_per_second", figures_of(row.cpu).median}};
  std::string fio = "-";
  std::string ratio = "-";
  if (!row.fio.empty()) {
    fio = text_of(figures_of(row.fio));
    ratio = std::to_string(percent_of(row.store, row.fio)) + " %";
    entry["fio"] = json_of(figures_of(row.fio));
    entry["percent_of_fio"] = percent_of(row.store, row.fio);
  }
  std::array<char, 200> line{};
  (void)std::snprintf(line.data(), line.size(), "%-18s %-22s %-22s %-8s %-22s %3ld %%  %5.2f\n", row.name.c_str(),
                      fio.c_str(), text_of(figures_of(row.store)).c_str(), ratio.c_str(),
                      text_of(figures_of(row.unchecked)).c_str(), percent_of(row.store, row.unchecked),
                      figures_of(row.cpu).median);
  std::cout << line.data() << std::flush;
  cases.push_back(entry);
}

nlohmann::json machine_of(const Options& options) {
  utsname system{};
  (void)::uname(&system);
  return {{"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
          {"cores", ::sysconf(_SC_NPROCESSORS_ONLN)},
          {"bytes", options.bytes},
          {"call_pages", options.call_pages},
          {"repetitions", options.repetitions}};
}

int run(const Options& options) {
  const testing::TempDirectory temp(options.directory);
  const std::string fio_version = output_of("fio --version 2>/dev/null");
  const bool has_fio = fio_version.starts_with("fio");
  if (!has_fio) std::cout << "fio is not installed (Debian: fio), so there is nothing to compare with\n";
  nlohmann::json document = machine_of(options);
  document["fio"] = has_fio ? fio_version.substr(0, fio_version.find('\n')) : "none";
  document["fio_command"] = fio_command(options, "FILE", kCases[0], true);
  document["cases"] = nlohmann::json::array();
  std::string mode;
  std::cout << "MB/s               fio                    FileStore              of fio   without checksums      of "
               "that  cores\n";
  for (const Case& one : kCases) {
    const std::string size = std::to_string(one.page_bytes >> 10U) + " KiB x" + std::to_string(one.depth);
    if (size.find(options.only) == std::string::npos) continue;
    Row writes{.name = "write " + size};
    Row reads{.name = "read " + size};
    const std::string fio_path = temp.path() + "/blocks";
    for (std::uint32_t i = 0; i < options.repetitions; ++i) {
      std::filesystem::remove(fio_path);
      if (has_fio) {
        writes.fio.push_back(measure_fio(options, fio_path, one, true));
        reads.fio.push_back(measure_fio(options, fio_path, one, false));
      }
      const Sample sample = measure_store(options, one, best_checked_copier(), temp.path() + "/store", mode);
      writes.store.push_back(sample.write);
      writes.cpu.push_back(sample.write_cpu);
      reads.store.push_back(sample.read);
      reads.cpu.push_back(sample.read_cpu);
      const Sample unchecked = measure_store(options, one, copier_without_checksums(), temp.path() + "/store", mode);
      writes.unchecked.push_back(unchecked.write);
      reads.unchecked.push_back(unchecked.read);
    }
    print_row(writes, document["cases"]);
    print_row(reads, document["cases"]);
    std::filesystem::remove(fio_path);
  }
  std::cout << "mode: " << mode << "\n";
  document["mode"] = mode;
  std::cout << document.dump() << "\n";
  return 0;
}

// How long a store of many small pages takes to open: by footers, and by scanning what a killed process leaves.
int run_reopen(const Options& options) {
  const testing::TempDirectory temp(options.directory);
  FileStoreConfig config;
  config.directories = {temp.path() + "/store"};
  config.layout = {.page_bytes = 64, .hash = 1};
  config.capacity_bytes = std::uint64_t{options.reopen_page_count} * 8192 + (std::uint64_t{1} << 30U);
  config.queue_depth = 32;
  nlohmann::json document = machine_of(options);
  for (const bool is_closed : {true, false}) {
    std::filesystem::remove_all(config.directories[0]);
    {
      SystemFiles files;
      const auto store = value_of(FileStore::open(config, files));
      std::vector<std::byte> bytes(64);
      std::vector<FileWrite> writes;
      for (std::uint32_t page = 0; page < options.reopen_page_count; ++page) {
        writes.push_back({.name = testing::name_of({1, page}), .parent = testing::parent_of({1, page})});
        writes.back().bytes = bytes;
        if (writes.size() < options.call_pages && page + 1 < options.reopen_page_count) continue;
        store->write(testing::test_key_space(), writes, 1);
        writes.clear();
      }
      must(store->close());
    }
    if (!is_closed) {
      // Without their trailers all segments are scanned.
      for (const auto& file : std::filesystem::directory_iterator(config.directories[0])) {
        if (!segment_id_of(file.path().filename().string())) continue;
        std::filesystem::resize_file(file.path(), file.file_size() - kSegmentBlockBytes);
      }
    }
    SystemFiles files;
    const auto start = std::chrono::steady_clock::now();
    const auto store = value_of(FileStore::open(config, files));
    const double took = seconds_since(start);
    if (store->stats().record_count != options.reopen_page_count) give_up("pages are missing");
    std::cout << options.reopen_page_count << " pages, " << (is_closed ? "closed" : "all scanned") << ": " << took
              << " s\n";
    document[is_closed ? "closed_s" : "scanned_s"] = took;
  }
  std::cout << document.dump() << "\n";
  return 0;
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
    } else if (name == "--bytes") {
      is_good = number(value, options.bytes) && options.bytes % kCases[0].page_bytes == 0;
    } else if (name == "--repetitions") {
      is_good = number(value, options.repetitions);
    } else if (name == "--call-pages") {
      is_good = number(value, options.call_pages);
    } else if (name == "--reopen") {
      is_good = number(value, options.reopen_page_count);
    } else if (name == "--only") {
      options.only = value;
    } else {
      is_good = false;
    }
    if (!is_good) return std::nullopt;
  }
  return options;
}

}  // namespace
}  // namespace quire::bench

int main(int argc, char** argv) {
  const auto options = quire::bench::options_of(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
  if (options) return options->reopen_page_count > 0 ? quire::bench::run_reopen(*options) : quire::bench::run(*options);
  std::cerr
      << "fio_file_store [--directory=.] [--bytes=1073741824] [--repetitions=7] [--call-pages=1024] [--only=TEXT]\n"
         "fio_file_store --reopen=100000 [--directory=.]\n"
         "--bytes is a multiple of 2 MiB\n";
  return 2;
}
