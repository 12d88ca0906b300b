// SPDX-License-Identifier: Apache-2.0
//
// Pages for tests of the file store: chains of them, each with a name, a parent and bytes that follow from its number,
// so that whoever reads one can say whether it is right.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kernels/copy_checked.h"
#include "quire/key_space.h"
#include "store/file_store.h"
#include "wire/page_name.h"

namespace quire::testing {

/// Page `index` of chain `chain`; all chains of a key space have roots of their own.
struct TestPage {
  std::uint32_t chain = 0;
  std::uint32_t index = 0;
  friend constexpr auto operator<=>(TestPage, TestPage) = default;
};

[[nodiscard]] inline PageName made_name(std::uint64_t number) {
  PageName name;
  for (std::size_t word = 0; word < 4; ++word) {
    const std::uint64_t value = mix64(mix64(number) + word);
    std::memcpy(name.bytes.data() + (word * sizeof(value)), &value, sizeof(value));
  }
  return name;
}
[[nodiscard]] inline PageName name_of(TestPage page) {
  return made_name((std::uint64_t{page.chain} << 32U) + page.index + 1);
}
[[nodiscard]] inline PageName parent_of(TestPage page) {
  return page.index == 0 ? made_name(std::uint64_t{page.chain} << 32U) : name_of({page.chain, page.index - 1});
}

/// What a page should hold. With `is_plain` half of it is zeros, and compresses well.
inline void fill_page(TestPage page, std::span<std::byte> bytes, bool is_plain = false) {
  const std::uint64_t start = (std::uint64_t{page.chain} << 32U) + page.index;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = is_plain && at % 64 >= 16 ? 0 : mix64((start * 0x10001) + at);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
  }
}
[[nodiscard]] inline std::vector<std::byte> bytes_of(TestPage page, std::uint64_t page_bytes, bool is_plain = false) {
  std::vector<std::byte> bytes(page_bytes);
  fill_page(page, bytes, is_plain);
  return bytes;
}
[[nodiscard]] inline std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return best_checked_copier().sum({.source = bytes.data(), .bytes = bytes.size()}).finish(bytes.size());
}

[[nodiscard]] inline KeySpace test_key_space(std::uint32_t number = 0) {
  return {.model = "test", .revision = std::to_string(number), .salt = "secret"};
}

[[nodiscard]] inline FileOutcome write_one(FileStore& store, TestPage page, const FileStoreConfig& config,
                                           std::uint32_t key_space = 0) {
  const std::vector<std::byte> bytes = bytes_of(page, config.layout.page_bytes);
  FileWrite write{.name = name_of(page), .parent = parent_of(page), .page_index = page.index, .bytes = bytes};
  store.write(test_key_space(key_space), {&write, 1}, 1);
  return write.outcome;
}

/// "" when the page is there and right, "absent", or what is wrong with it.
[[nodiscard]] inline std::string read_one(FileStore& store, TestPage page, const FileStoreConfig& config) {
  std::vector<std::byte> bytes(config.layout.page_bytes);
  FileRead read{.name = name_of(page), .bytes = bytes};
  store.read({&read, 1});
  switch (read.outcome) {
    case FileOutcome::Ok:
      if (bytes != bytes_of(page, config.layout.page_bytes)) return "wrong bytes";
      return read.checksum == checksum_of(bytes) ? "" : "wrong checksum";
    case FileOutcome::Absent:
      return "absent";
    case FileOutcome::Corrupt:
      return "corrupt";
    case FileOutcome::Failed:
      return "failed";
    case FileOutcome::Full:
      return "full";
  }
  return "unknown";
}

[[nodiscard]] inline bool has_page(const FileStore& store, TestPage page) {
  const PageName name = name_of(page);
  return store.find({&name, 1}) == 1;
}

}  // namespace quire::testing
