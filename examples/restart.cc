// SPDX-License-Identifier: Apache-2.0
//
// A cache on a directory: two processes, one after the other, here in one program. What the first has computed, the
// second finds. Usage: restart [DIRECTORY]
#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace {

constexpr std::uint32_t kTokenBytes = 64;
constexpr std::uint32_t kPageTokens = 16;

std::unique_ptr<quire::Cache> open_on(const std::string& directory) {
  // [open]
  quire::CacheConfig config{.layout = *quire::ModelLayout::opaque(kTokenBytes), .page = {.page_tokens = kPageTokens}};
  config.device.page_count = 64;
  config.host.page_count = 256;
  config.disk.directories = {directory};   // one for each disk
  config.disk.capacity_bytes = 64 << 20U;  // of all of them together
  quire::Result<std::unique_ptr<quire::Cache>> cache = quire::Cache::open(std::move(config));
  if (!cache) {  // in use by another process, another program's directory, no permission …
    std::fprintf(stderr, "%s\n", cache.error().message.c_str());
    std::exit(1);
  }
  // [open]
  return std::move(*cache);
}

/// Lets transfers go on.
void move(quire::Cache& cache) {
  const auto ended = *cache.poll();
  if (!cache.apply(ended, /*now=*/0)) std::abort();
  if (!ended.empty()) return;
  pollfd event{.fd = cache.event_fd(), .events = POLLIN, .revents = 0};
  poll(&event, 1, /*milliseconds=*/1'000);
}

/// One request that computes what is not cached; gives how many tokens were.
std::uint32_t serve(quire::Cache& cache, quire::KeySpaceId space, std::span<const quire::TokenId> prompt) {
  quire::Sequence sequence = *cache.begin(space, {prompt});
  // [wait]
  const quire::Admission admission = *cache.admit(sequence);
  if (!admission.is_ready) {  // it looks on disk, or pages are on their way
    while (cache.view(sequence)->is_loading) move(cache);
  }
  const std::uint32_t found = cache.view(sequence)->computed_tokens;
  // [wait]
  const quire::StepEntry entry{&sequence};
  const quire::PlanOutcome outcome = *cache.plan_step({&entry, 1});
  if (!outcome.step || !cache.apply_copies(*outcome.step)) std::abort();
  // … the model would run here …
  const quire::StepResult result;
  if (!cache.finish_step(*outcome.step, {&result, 1}) || !cache.end(sequence)) std::abort();
  return found;
}

void flush(quire::Cache& cache) {
  // [flush]
  for (;;) {
    const quire::Result<bool> done = cache.flush();
    if (!done) {  // something could not be written; the next one tries again
      std::fprintf(stderr, "%s\n", done.error().message.c_str());
      return;
    }
    if (*done) return;  // whatever was cached survives a crash from here on
    move(cache);
  }
  // [flush]
}

/// A whole life of a process.
void live(const char* name, const std::string& directory, std::span<const quire::TokenId> prompt) {
  const std::unique_ptr<quire::Cache> cache = open_on(directory);
  const quire::KeySpaceId space = *cache->key_space({.model = "restart", .revision = "1"});
  const std::uint32_t found = serve(*cache, space, prompt);
  std::printf("%s process: %u of %zu tokens were cached\n", name, found, prompt.size());
  flush(*cache);
}

void look(const std::string& directory, std::span<const quire::TokenId> prompt) {
  const std::unique_ptr<quire::Cache> cache = open_on(directory);
  const quire::KeySpaceId space = *cache->key_space({.model = "restart", .revision = "1"});
  // [direct]
  std::vector<std::byte> pages(cache->direct_bytes(static_cast<std::uint32_t>(prompt.size()))->byte_count);
  bool is_done = false;
  const quire::Status asked = cache->get_from_disk(space, {prompt}, pages, [&](const quire::DiskAnswer& answer) {
    std::printf("straight from disk: the bytes of %u tokens\n", answer.token_count);
    is_done = true;
  });
  while (asked && !is_done) move(*cache);
  // [direct]
}

}  // namespace

int main(int argc, char** argv) {
  std::string directory = argc > 1 ? argv[1] : std::filesystem::temp_directory_path() / "quire_restart_XXXXXX";
  if (argc <= 1 && mkdtemp(directory.data()) == nullptr) return 1;
  std::vector<quire::TokenId> prompt(1'024);
  std::iota(prompt.begin(), prompt.end(), 0);

  live("first", directory, prompt);
  live("second", directory, prompt);
  look(directory, prompt);

  if (argc <= 1) std::filesystem::remove_all(directory);
  return 0;
}
