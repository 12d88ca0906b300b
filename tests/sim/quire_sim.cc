// SPDX-License-Identifier: Apache-2.0
//
// quire-sim: runs one seed of the simulation, or several.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "sim_run.h"

namespace {

constexpr const char* kHelp =
    "Runs a cache with a host tier, in some seeds with a disk tier or with several groups, its engine\n"
    "and its mover in one thread on a simulated clock.\n"
    "Everything is drawn from the seed: sizes, policies, requests, and the faults of mover and disk.\n"
    "\n"
    "usage: quire-sim [options]\n"
    "\n"
    "  --seed N     the first seed; 1 when not given\n"
    "  --seeds N    how many seeds, one after the other; 1 when not given\n"
    "  --operations N\n"
    "               stop after the seed that comes to so many calls and events in all\n"
    "  --steps N    operations of each seed; 5000 when not given\n"
    "  --disk, --no-disk\n"
    "               all seeds have a disk tier, or none; otherwise a third of them\n"
    "  --disk-ranks all seeds with a disk tier have two ranks, with the same bytes or with different ones\n"
    "  --remote     seeds with a disk tier have a remote tier too, a quarter of them in its place\n"
    "  --no-files   the remote tier is in the place of the disk tier in all seeds\n"
    "  --groups, --no-groups\n"
    "               all seeds have several cache groups (windows, states, compressed entries), or one;\n"
    "               otherwise a third of them has several\n"
    "  --chunks     seeds of one group also find and pin pages by their own tokens, with draws of their own\n"
    "  --ahead, --no-ahead\n"
    "               in all seeds steps are planned for sequences whose pages still arrive, or in none;\n"
    "               otherwise in a third of those from 900000000 on\n"
    "  --all        --ahead --disk --disk-ranks --remote --chunks: everything that a seed can have\n"
    "               together, with several groups in a third of the seeds, which have no chunks\n"
    "  --print      tell what happens, step by step\n"
    "  --check      call check_invariants() after every operation, not just after some\n"
    "  --counts     tell at the end how often everything happened\n"
    "  --no-checksums, --no-names\n"
    "               the mover does not check what it loads, to see that the bytes tell\n"
    "  --shares-pages, --swaps-key-spaces\n"
    "               all seeds with a disk tier have the same pages behind different beginnings, or more\n"
    "               key spaces than places for them, with names that are computed late; otherwise a\n"
    "               quarter of them each\n"
    "  --no-fence-checks, --no-invariant-checks\n"
    "               nobody checks who uses a page, or calls check_invariants()\n"
    "  --help       print this text\n"
    "\n"
    "Exits with 0 when everything was as it must be, with 1 and the line that repeats it when\n"
    "something was not, and with 2 for arguments that it cannot use.\n";

bool read_number(std::string_view text, std::uint64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

int main(int argc, char** argv) {
  quire::testing::SimRun run{.seed_count = 1, .step_count = 5'000};
  bool tells_counts = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    std::uint64_t* number = nullptr;
    if (flag == "--help" || flag == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (flag == "--print") {
      run.prints = true;
    } else if (flag == "--check") {
      run.checks_always = true;
    } else if (flag == "--counts") {
      tells_counts = true;
    } else if (flag == "--disk") {
      run.shape.disk_tier = quire::testing::SimSeeds::Always;
    } else if (flag == "--no-disk") {
      run.shape.disk_tier = quire::testing::SimSeeds::Never;
    } else if (flag == "--disk-ranks") {
      run.shape.has_disk_ranks = true;
    } else if (flag == "--remote") {
      run.shape.has_remote = true;
    } else if (flag == "--no-files") {
      run.shape.diskless = quire::testing::SimSeeds::Always;
    } else if (flag == "--groups") {
      run.shape.groups = quire::testing::SimSeeds::Always;
    } else if (flag == "--no-groups") {
      run.shape.groups = quire::testing::SimSeeds::Never;
    } else if (flag == "--chunks") {
      run.shape.chunks = true;
    } else if (flag == "--ahead") {
      run.shape.ahead = quire::testing::SimSeeds::Always;
    } else if (flag == "--all") {
      run.shape.ahead = quire::testing::SimSeeds::Always;
      run.shape.disk_tier = quire::testing::SimSeeds::Always;
      run.shape.has_disk_ranks = true;
      run.shape.has_remote = true;
      run.shape.chunks = true;
    } else if (flag == "--no-ahead") {
      run.shape.ahead = quire::testing::SimSeeds::Never;
    } else if (flag == "--no-checksums") {
      run.shape.mutation.checks_checksums = false;
    } else if (flag == "--no-names") {
      run.shape.mutation.checks_names = false;
    } else if (flag == "--shares-pages") {
      run.shape.mutation.shares_pages = true;
    } else if (flag == "--swaps-key-spaces") {
      run.shape.mutation.swaps_key_spaces = true;
    } else if (flag == "--no-fence-checks") {
      run.shape.mutation.checks_fences = false;
    } else if (flag == "--no-invariant-checks") {
      run.shape.mutation.checks_invariants = false;
    } else if (flag == "--operations") {
      number = &run.operations_max;
    } else if (flag == "--seed") {
      number = &run.first_seed;
    } else if (flag == "--seeds") {
      number = &run.seed_count;
    } else if (flag == "--steps") {
      number = &run.step_count;
    } else {
      std::fprintf(stderr, "quire-sim: unknown argument '%s'; --help lists those there are\n", argv[i]);
      return 2;
    }
    if (number == nullptr) continue;
    if (i + 1 == argc || !read_number(argv[i + 1], *number)) {
      std::fprintf(stderr, "quire-sim: %s needs a number\n", argv[i]);
      return 2;
    }
    // Of nothing, everything is as it must be: that would be no answer.
    if (*number == 0 && number != &run.first_seed) {
      std::fprintf(stderr, "quire-sim: %s 0 would check nothing; give 1 or more\n", argv[i]);
      return 2;
    }
    ++i;
  }
  if (run.prints) (void)std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  quire::testing::SimCounts counts;
  const std::string failure = quire::testing::run_simulation(run, counts);
  if (tells_counts) std::fputs(quire::testing::to_string(counts).c_str(), stdout);
  if (failure.empty()) {
    std::printf("%llu operations of %llu seeds, all as they must be\n",
                static_cast<unsigned long long>(counts.operations()), static_cast<unsigned long long>(counts.seeds));
    return 0;
  }
  std::fprintf(stderr, "%s", failure.c_str());
  return 1;
}
