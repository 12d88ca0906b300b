// SPDX-License-Identifier: Apache-2.0
#include "store/page_compressor.h"

#include <zstd.h>

namespace quire {

PageCompressor::PageCompressor() = default;
PageCompressor::~PageCompressor() = default;

void PageCompressor::FreeCompression::operator()(ZSTD_CCtx_s* context) const {
  ZSTD_freeCCtx(context);
}
void PageCompressor::FreeDecompression::operator()(ZSTD_DCtx_s* context) const {
  ZSTD_freeDCtx(context);
}

std::optional<std::uint64_t> PageCompressor::compress(std::span<const std::byte> source, std::span<std::byte> target,
                                                      int level) {
  if (!compression_) compression_.reset(ZSTD_createCCtx());
  if (!compression_) return std::nullopt;
  const std::size_t bytes =
      ZSTD_compressCCtx(compression_.get(), target.data(), target.size(), source.data(), source.size(), level);
  if (ZSTD_isError(bytes) != 0U) return std::nullopt;
  return bytes;
}

bool PageCompressor::decompress(std::span<const std::byte> source, std::span<std::byte> target) {
  if (!decompression_) decompression_.reset(ZSTD_createDCtx());
  if (!decompression_) return false;
  const std::size_t bytes =
      ZSTD_decompressDCtx(decompression_.get(), target.data(), target.size(), source.data(), source.size());
  return ZSTD_isError(bytes) == 0U && bytes == target.size();
}

}  // namespace quire
