// SPDX-License-Identifier: Apache-2.0
//
// PageCompressor: zstd, with the memory it works in. A lane of the file store has one each.
//
// single-threaded
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace quire {

class PageCompressor {
 public:
  PageCompressor();
  ~PageCompressor();

  /// How many bytes of `target` the source takes; nothing when they are too few.
  [[nodiscard]] std::optional<std::uint64_t> compress(std::span<const std::byte> source, std::span<std::byte> target,
                                                      int level);
  /// Whether the source gives exactly so many bytes.
  [[nodiscard]] bool decompress(std::span<const std::byte> source, std::span<std::byte> target);

 private:
  struct FreeCompression {
    void operator()(ZSTD_CCtx_s* context) const;
  };
  struct FreeDecompression {
    void operator()(ZSTD_DCtx_s* context) const;
  };

  // Made when first needed: most stores hold pages as they are.
  std::unique_ptr<ZSTD_CCtx_s, FreeCompression> compression_;
  std::unique_ptr<ZSTD_DCtx_s, FreeDecompression> decompression_;
};

}  // namespace quire
