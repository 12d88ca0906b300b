// SPDX-License-Identifier: Apache-2.0
#include "kernels/copy_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

// Functions with a target attribute rather than a file with a flag: a flag would also reach the inline functions of
// headers, and the linker could keep that version of them for every processor.
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define QUIRE_AVX2 [[gnu::target("avx2")]]
#endif

namespace quire {
namespace {

RowCopy row_of(const RowCopy& bundle, std::uint64_t row, const RowShape& shape) {
  return {.target = bundle.target + (row * shape.target_stride), .source = bundle.source + (row * shape.source_stride)};
}

void copy_rows_portable(std::span<const RowCopy> bundles, const RowShape& shape) {
  for (const RowCopy& bundle : bundles) {
    for (std::uint64_t i = 0; i < shape.bundle_rows; ++i) {
      const RowCopy row = row_of(bundle, i, shape);
      std::memcpy(row.target, row.source, shape.row_bytes);
    }
  }
}

#if defined(__x86_64__)

// From here on the standard library is as fast: it knows the processor's own copy of long strings.
constexpr std::uint64_t kLongRowBytes = 4096;
// How far ahead of the copy targets are asked for. Less is too late for the memory, more brings nothing.
constexpr std::uint64_t kAheadBytes = 8192;
constexpr std::uint64_t kLineBytes = 64;
constexpr std::uint64_t kVector = 32;
// Shorter rows have too few whole lines for streaming stores.
constexpr std::uint64_t kStreamedRowBytesMin = 4 * kLineBytes;

// Fewer than 32 bytes: the first ones and the last ones, which may overlap.
template <typename Word>
void copy_two_words(const RowCopy& row, std::uint64_t row_bytes) {
  Word first;
  Word last;
  std::memcpy(&first, row.source, sizeof(Word));
  std::memcpy(&last, row.source + row_bytes - sizeof(Word), sizeof(Word));
  std::memcpy(row.target, &first, sizeof(Word));
  std::memcpy(row.target + row_bytes - sizeof(Word), &last, sizeof(Word));
}

void copy_tiny_row(const RowCopy& row, std::uint64_t row_bytes) {
  if (row_bytes >= sizeof(__m128i)) {
    copy_two_words<__m128i>(row, row_bytes);
  } else if (row_bytes >= 8) {
    copy_two_words<std::uint64_t>(row, row_bytes);
  } else if (row_bytes >= 4) {
    copy_two_words<std::uint32_t>(row, row_bytes);
  } else if (row_bytes >= 2) {
    copy_two_words<std::uint16_t>(row, row_bytes);
  } else if (row_bytes == 1) {
    *row.target = *row.source;
  }
}

void copy_tiny_rows(std::span<const RowCopy> bundles, const RowShape& shape) {
  for (const RowCopy& bundle : bundles) {
    for (std::uint64_t i = 0; i < shape.bundle_rows; ++i) copy_tiny_row(row_of(bundle, i, shape), shape.row_bytes);
  }
}

QUIRE_AVX2 inline __m256i load(const std::byte* source) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
}

QUIRE_AVX2 inline void store(std::byte* target, __m256i vector) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), vector);
}

// The row that is copied kAheadBytes after another one, or the next row where rows are longer than that.
class Ahead {
 public:
  Ahead(std::span<const RowCopy> bundles, const RowShape& shape) : bundles_(bundles), shape_(shape) {
    const std::uint64_t rows = std::max<std::uint64_t>(kAheadBytes / shape.row_bytes, 1);
    whole_bundles_ = rows / shape.bundle_rows;
    rows_ = rows % shape.bundle_rows;
  }
  // Near the end one of the last bundle's.
  [[nodiscard]] RowCopy row_from(std::size_t bundle, std::uint64_t row) const {
    bundle += whole_bundles_;
    row += rows_;
    if (row >= shape_.bundle_rows) {
      ++bundle;
      row -= shape_.bundle_rows;
    }
    return row_of(bundles_[std::min(bundle, bundles_.size() - 1)], row, shape_);
  }

 private:
  std::span<const RowCopy> bundles_;
  RowShape shape_;  // A copy: through a reference it would be read again after every store.
  std::uint64_t whole_bundles_;
  std::uint64_t rows_;
};

// Asks for a line in the second-level cache. The first level can wait for too few lines at a time, and those are the
// source's.
inline void ask_for(const std::byte* line) {
  __builtin_prefetch(line, 0, 2);
}

// At least one vector. What is no multiple of it ends with a vector that overlaps the one before. Meanwhile asks for as
// many bytes from `next` on.
QUIRE_AVX2 inline void copy_row(const RowCopy& row, std::uint64_t row_bytes, const std::byte* next) {
  std::byte* const target = row.target;
  const std::byte* const source = row.source;
  std::uint64_t at = 0;
  for (; at + (4 * kVector) <= row_bytes; at += 4 * kVector) {
    ask_for(next + at);
    ask_for(next + at + kLineBytes);
    const __m256i a = load(source + at);
    const __m256i b = load(source + at + kVector);
    const __m256i c = load(source + at + (2 * kVector));
    const __m256i d = load(source + at + (3 * kVector));
    store(target + at, a);
    store(target + at + kVector, b);
    store(target + at + (2 * kVector), c);
    store(target + at + (3 * kVector), d);
  }
  if (at < row_bytes) ask_for(next + at);
  for (; at + kVector <= row_bytes; at += kVector) store(target + at, load(source + at));
  if (at < row_bytes) store(target + row_bytes - kVector, load(source + row_bytes - kVector));
}

// Bundles of one row. Not inlined, and the rows' length an argument: in one function with the loop over bundles, the
// compiler's code for this one is 3 % slower beyond the caches.
[[gnu::noinline]] QUIRE_AVX2 void copy_single_rows(std::span<const RowCopy> rows, std::uint64_t row_bytes) {
  const std::size_t ahead = kAheadBytes / row_bytes;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    copy_row(rows[i], row_bytes, rows[std::min(i + ahead, rows.size() - 1)].target);
  }
}

// Rows of 2 KiB scattered over more memory than the caches hold reach .79 to .87 of memcpy's speed on one piece (Zen
// 4), and .82 to .92 within the second-level cache. Calling memcpy for each row: .35 and .90. Without asking ahead: at
// most .50 and .92. Asking for a whole row before each copy: .84 and .82; then with vectors of 512 bits .76 and .79, so
// there is no third set of instructions, and with lines asked for in the first level .65. Rows of 256 bytes: .64 to .72
// and .80 to .85; asking for the source too would make it .76 and .77.
QUIRE_AVX2 void copy_rows_avx2(std::span<const RowCopy> bundles, const RowShape& given_shape) {
  const RowShape shape = given_shape;
  if (shape.row_bytes >= kLongRowBytes) return copy_rows_portable(bundles, shape);
  if (shape.row_bytes < kVector) return copy_tiny_rows(bundles, shape);
  if (shape.bundle_rows == 1) return copy_single_rows(bundles, shape.row_bytes);
  const Ahead ahead(bundles, shape);
  for (std::size_t i = 0; i < bundles.size(); ++i) {
    for (std::uint64_t j = 0; j < shape.bundle_rows; ++j) {
      copy_row(row_of(bundles[i], j, shape), shape.row_bytes, ahead.row_from(i, j).target);
    }
  }
}

// Around the caches, to a multiple of the vector's size.
QUIRE_AVX2 inline void stream(std::byte* target, __m256i vector) {
  _mm256_stream_si256(reinterpret_cast<__m256i*>(target), vector);
}

// Less than a line.
QUIRE_AVX2 inline void copy_part_of_line(const RowCopy& part, std::uint64_t bytes) {
  if (bytes < kVector) return copy_tiny_row(part, bytes);
  const __m256i first = load(part.source);
  const __m256i last = load(part.source + bytes - kVector);
  store(part.target, first);
  store(part.target + bytes - kVector, last);
}

// Whole lines of the target around the caches; the first and the last one, when they are shared with other rows,
// through them. Meanwhile asks for as many bytes from `next` on.
QUIRE_AVX2 inline void stream_row(const RowCopy& row, std::uint64_t row_bytes, const std::byte* next) {
  std::uint64_t at = std::min(-reinterpret_cast<std::uintptr_t>(row.target) % kLineBytes, row_bytes);
  copy_part_of_line(row, at);
  for (; at + kLineBytes <= row_bytes; at += kLineBytes) {
    ask_for(next + at);
    const __m256i a = load(row.source + at);
    const __m256i b = load(row.source + at + kVector);
    stream(row.target + at, a);
    stream(row.target + at + kVector, b);
  }
  copy_part_of_line({.target = row.target + at, .source = row.source + at}, row_bytes - at);
}

// Here the sources are asked for, since stores wait for no target. Long rows are copied in parts, so that no more is
// asked for than the caches keep until its turn. Beyond the caches this reaches .9 to 1.2 of memcpy's speed on one
// piece, with rows of 256 bytes as with longer ones.
QUIRE_AVX2 void stream_rows_avx2(std::span<const RowCopy> bundles, const RowShape& given_shape) {
  const RowShape shape = given_shape;
  if (shape.row_bytes < kStreamedRowBytesMin) return copy_rows_avx2(bundles, shape);
  const Ahead ahead(bundles, shape);
  for (std::size_t i = 0; i < bundles.size(); ++i) {
    for (std::uint64_t j = 0; j < shape.bundle_rows; ++j) {
      RowCopy row = row_of(bundles[i], j, shape);
      std::uint64_t left = shape.row_bytes;
      for (; left > kAheadBytes; left -= kAheadBytes) {
        stream_row(row, kAheadBytes, row.source + kAheadBytes);
        row = {.target = row.target + kAheadBytes, .source = row.source + kAheadBytes};
      }
      stream_row(row, left, ahead.row_from(i, j).source);
    }
  }
  _mm_sfence();  // Streaming stores are seen in any order until then.
}

// Not every compiler knows it by name.
bool has_f16c() {
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & static_cast<unsigned int>(bit_F16C)) != 0;
}

#endif

}  // namespace

bool is_available(InstructionSet instructions) {
#if defined(__x86_64__)
  // Asked once: the question leaves the virtual machine, and costs more than most copies.
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0 && has_f16c();
  if (instructions == InstructionSet::Avx2) return has_avx2;
  if (instructions == InstructionSet::Avx512) {
    return is_available(InstructionSet::Avx2) && __builtin_cpu_supports("avx512f") != 0 &&
           __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  }
#endif
  return instructions == InstructionSet::Portable;
}

InstructionSet best_instructions() {
  if (is_available(InstructionSet::Avx512)) return InstructionSet::Avx512;
  return is_available(InstructionSet::Avx2) ? InstructionSet::Avx2 : InstructionSet::Portable;
}

CopyRows pick_copy_rows(InstructionSet instructions, [[maybe_unused]] Stores stores) {
  QUIRE_CHECK(is_available(instructions), "the processor does not have these instructions");
#if defined(__x86_64__)
  if (instructions >= InstructionSet::Avx2) return stores == Stores::Streaming ? stream_rows_avx2 : copy_rows_avx2;
#endif
  return copy_rows_portable;
}

CopyRows best_copy_rows(Stores stores) {
  static const InstructionSet best = best_instructions();
  return pick_copy_rows(best, stores);
}

}  // namespace quire
