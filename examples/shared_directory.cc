// SPDX-License-Identifier: Apache-2.0
//
// Two machines and a directory that both have mounted, here two stores in one process: one puts values, the other asks
// for them. Any RemoteStore is used like this; a cache does it by itself.
#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/remote_store.h"
#include "shared_directory_store.h"

namespace {

/// Waits until a batch has ended. The next one may have the same memory.
void run(quire::RemoteStore& store, const quire::RemoteBatch& batch) {
  if (!store.try_submit(batch)) return;
  for (std::array<quire::RemoteAnswer, 1> answers; store.poll(answers).empty();) {
    pollfd fd{.fd = store.event_fd(), .events = POLLIN, .revents = 0};
    (void)::poll(&fd, 1, -1);
  }
}

bool serve(const std::string& directory) {
  const auto here = SharedDirectoryStore::open(directory);
  const auto there = SharedDirectoryStore::open(directory);
  if (!here || !there) return false;

  std::vector<std::byte> value(100'000, std::byte{7});
  const std::array<std::span<const std::byte>, 1> source = {value};
  std::array<quire::RemoteObject, 1> puts = {{{.key = "example:1", .source = source}}};
  run(**here, {.id = 1, .operation = quire::RemoteOperation::Put, .objects = puts});

  std::vector<std::byte> page(100'000);
  const std::array<std::span<std::byte>, 1> target = {page};
  std::array<quire::RemoteObject, 2> gets = {{{.key = "example:1", .target = target}, {.key = "example:2"}}};
  run(**there, {.id = 1, .operation = quire::RemoteOperation::Get, .timeout_ns = 5'000'000'000, .objects = gets});
  for (const quire::RemoteObject& object : gets) {
    std::printf("%s: %s\n", std::string(object.key).c_str(), std::string(quire::to_string(object.outcome)).c_str());
  }
  std::printf("%s\n", page == value ? "every byte is the one that was put" : "other bytes came");
  return page == value;
}

}  // namespace

int main() {
  std::string directory = (std::filesystem::temp_directory_path() / "quire-shared.XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return 1;
  const bool is_good = serve(directory);
  std::filesystem::remove_all(directory);
  return is_good ? 0 : 1;
}
