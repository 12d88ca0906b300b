// SPDX-License-Identifier: Apache-2.0
//
// Quantised entries beside one memcpy that reads and writes as many bytes: what a kernel reads of an entry and what it
// writes count together, and a memcpy of half of that reads and writes as much. Rows have 448 values of 8 bits and 64
// of 16 (512 and 64 in records), pages 64 entries. One thread; every call goes on to other entries and to another part
// of the target, a quarter GB each, far more than the caches hold.
//
// selected: 512 entries for each of 16 queries, from anywhere in the context of one of 16 sequences, as an indexer
// would choose them. all: a sequence's entries in order. ring: the windows of 128 tokens of 64 sequences. portable: the
// same without vector instructions.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/lazy_array.h"
#include "benchmarks.h"
#include "kernel_memory.h"
#include "kernels/copy_rows.h"
#include "kernels/e4m3_rows.h"
#include "kernels/quantised_kernels_with.h"
#include "quire/entry_formats.h"
#include "quire/layout.h"
#include "quire/quantised_kernels.h"
#include "testing/seeded_run.h"
#include "timing.h"

namespace quire::bench {
namespace {

constexpr std::size_t kCallsPerTurn = 40;
constexpr std::uint32_t kPageEntries = 64;
constexpr std::uint32_t kRingEntries = 128;
constexpr std::uint32_t kEntriesPerCall = 2'048;  // a fifth of a millisecond: longer calls are often interrupted
constexpr std::uint32_t kCalls = 128;             // until the first entries come again
constexpr std::uint32_t kLayers = 2;

QuantisedEntries make_entries(const EntryFormat& format, bool is_ring) {
  CacheGroup group{.name = "entries", .layers = layer_range(0, kLayers)};
  if (is_ring) {
    group.kind = GroupKind::Window;
    group.window_tokens = kRingEntries;
    group.window_form = WindowForm::Ring;
    group.slot_entries = kRingEntries;
    group.retention.rule = RetentionRule::None;
  }
  use_format(group, format);
  const PageOptions options{.page_tokens = kPageEntries};
  PageGeometry page =
      (is_ring ? PageGeometry::create_slot(group, options) : PageGeometry::create(group, options)).value();
  const std::uint64_t page_count = std::uint64_t{kCalls} * kEntriesPerCall / page.entry_count();
  PoolGeometry pool = PoolGeometry::create(std::move(page), {.page_count = page_count}).value();
  return QuantisedEntries::create(std::move(pool), format).value();
}

// What one call reads and writes: entries on one side, rows of bf16 on the other.
std::uint64_t bytes_of_call(const QuantisedEntries& entries) {
  return kEntriesPerCall * (entries.row_bytes() + (entries.geometry().page().entry_bytes() / kLayers));
}

// A pool of entries that hold something, dense rows of bf16, and what the calls have in common.
class Kernel {
 public:
  Kernel(const EntryFormat& format, bool is_ring)
      : entries_(make_entries(format, is_ring)),
        pool_(make_memory(entries_.geometry().pool_bytes())),
        rows_(make_memory(std::uint64_t{kCalls} * kEntriesPerCall * entries_.row_bytes())) {
    testing::Random random(3);
    for (std::uint64_t at = 0; at < rows_.bytes(); at += 2) {
      // From 2^-8 to 2^8, either sign.
      const auto bits =
          static_cast<std::uint16_t>((random.below(2) << 15U) | ((119U + random.below(16)) << 7U) | random.below(128));
      std::memcpy(rows_.data() + at, &bits, sizeof(bits));
    }
    const std::uint32_t slot_count = entries_.geometry().page_count() * entries_.geometry().page().entry_count();
    for (const std::uint32_t slot : shuffled(slot_count)) slots_.push_back(slot);
    for (std::uint32_t i = 0; i < slot_count; ++i) positions_.push_back(static_cast<std::int32_t>(i));
    for (std::uint32_t call = 0; call < kCalls * kLayers; ++call) append(best_e4m3_codec());
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_of_call(entries_); }

  void append(const E4m3Codec& codec) {
    const std::uint64_t turn = next_turn();
    const bool has_positions = entries_.components().positions != kNoComponent;
    append_quantised_with(codec,
                          {.entries = &entries_,
                           .pool = pool_.data(),
                           .layer_index = layer_index_,
                           .source = rows_of(turn),
                           .slots = std::span(slots_).subspan(turn * kEntriesPerCall, kEntriesPerCall),
                           .positions = has_positions ? std::span<const std::int32_t>(positions_).first(kEntriesPerCall)
                                                      : std::span<const std::int32_t>()});
    keep(pool_);
  }

 protected:
  std::uint64_t next_turn() {
    const std::uint64_t turn = turn_++;
    layer_index_ = turn / kCalls % kLayers;
    return turn % kCalls;
  }
  [[nodiscard]] std::byte* rows_of(std::uint64_t turn) const {
    return rows_.data() + (turn * kEntriesPerCall * entries_.row_bytes());
  }

  QuantisedEntries entries_;
  LazyMemory pool_;
  LazyMemory rows_;
  std::uint32_t layer_index_ = 0;

 private:
  std::vector<std::int64_t> slots_;
  std::vector<std::int32_t> positions_;
  std::uint64_t turn_ = 0;
};

class Append : public Kernel {
 public:
  explicit Append(const EntryFormat& format) : Kernel(format, false) {}
  void run(const E4m3Codec& codec) { append(codec); }
};

// Sequences with an equal share of the pool's pages each, which lie scattered.
class Paged : public Kernel {
 public:
  Paged(const EntryFormat& format, std::uint32_t sequence_entries)
      : Kernel(format, false), columns_(sequence_entries / kPageEntries) {
    for (const std::uint32_t page : shuffled(entries_.geometry().page_count())) {
      pages_.push_back(static_cast<std::int32_t>(page));
    }
    entry_counts_.assign(pages_.size() / columns_, static_cast<std::int32_t>(sequence_entries));
  }

 protected:
  [[nodiscard]] std::uint32_t rows() const { return static_cast<std::uint32_t>(entry_counts_.size()); }
  [[nodiscard]] EntryTable table() const {
    return {.pages = pages_.data(), .rows = rows(), .row_columns = columns_, .entry_counts = entry_counts_};
  }

 private:
  std::uint32_t columns_;
  std::vector<std::int32_t> pages_;
  std::vector<std::int32_t> entry_counts_;
};

class Selected : public Paged {
 public:
  explicit Selected(const EntryFormat& format) : Paged(format, kSequenceEntries), ids_(kCalls * kEntriesPerCall) {
    testing::Random random(5);
    for (std::int32_t& id : ids_) id = static_cast<std::int32_t>(random.below(kSequenceEntries));
    for (std::uint32_t row = 0; row < kRows; ++row) table_rows_.push_back(static_cast<std::int32_t>(row % rows()));
  }
  void run(const E4m3Codec& codec) {
    const std::uint64_t turn = next_turn();
    gather_selected_with(codec, {.entries = &entries_,
                                 .pool = pool_.data(),
                                 .layer_index = layer_index_,
                                 .table = table(),
                                 .table_rows = table_rows_,
                                 .ids = std::span(ids_).subspan(turn * kEntriesPerCall, kEntriesPerCall),
                                 .ids_per_row = kEntriesPerCall / kRows,
                                 .target = {.data = rows_of(turn), .row_entries = kEntriesPerCall / kRows}});
    keep(rows_);
  }

 private:
  static constexpr std::uint32_t kSequenceEntries = 65'536;
  static constexpr std::uint32_t kRows = 4;
  std::vector<std::int32_t> table_rows_;
  std::vector<std::int32_t> ids_;
};

class All : public Paged {
 public:
  explicit All(const EntryFormat& format) : Paged(format, kEntriesPerCall) {}
  void run(const E4m3Codec& codec) {
    const std::uint64_t turn = next_turn();
    const auto row = static_cast<std::int32_t>(turn % rows());
    gather_last_with(codec, {.entries = &entries_,
                             .pool = pool_.data(),
                             .layer_index = layer_index_,
                             .table = table(),
                             .table_rows = {&row, 1},
                             .entries_max = kEntriesPerCall,
                             .target = {.data = rows_of(turn), .row_entries = kEntriesPerCall}});
    keep(rows_);
  }
};

class Ring : public Kernel {
 public:
  explicit Ring(const EntryFormat& format) : Kernel(format, true) {
    for (const std::uint32_t slot : shuffled(entries_.geometry().page_count())) {
      state_slots_.push_back(static_cast<std::int32_t>(slot));
      lengths_.push_back(static_cast<std::int32_t>(1'000 + slot));
    }
  }
  void run(const E4m3Codec& codec) {
    constexpr std::uint32_t kRows = kEntriesPerCall / kRingEntries;
    const std::uint64_t turn = next_turn();
    gather_ring_with(codec, {.entries = &entries_,
                             .pool = pool_.data(),
                             .layer_index = layer_index_,
                             .state_slots = std::span(state_slots_).subspan(turn * kRows, kRows),
                             .lengths = std::span(lengths_).subspan(turn * kRows, kRows),
                             .entries_max = kRingEntries,
                             .target = {.data = rows_of(turn), .row_entries = kRingEntries}});
    keep(rows_);
  }

 private:
  std::vector<std::int32_t> state_slots_;
  std::vector<std::int32_t> lengths_;
};

template <typename Made>
void contest(benchmark::State& state, const EntryFormat& format) {
  Made kernel(format);
  Memcpy limit(kernel.bytes() / 2, kCalls * kernel.bytes() / 2);
  Samples quire_us;
  Samples memcpy_us;
  for (auto _ : state) {
    quire_us.time_warm(kCallsPerTurn, [&] { kernel.run(best_e4m3_codec()); });
    memcpy_us.time_warm(kCallsPerTurn, [&] { limit.run(); });
    state.SetIterationTime(quire_us.median() * 1e-6);
  }
  const auto gb_per_s = [&](const Samples& samples) {
    return static_cast<double>(kernel.bytes()) / samples.median() * 1e-3;
  };
  state.counters["quire_gb_per_s"] = gb_per_s(quire_us);
  state.counters["memcpy_gb_per_s"] = gb_per_s(memcpy_us);
  state.counters["to_memcpy"] = gb_per_s(quire_us) / gb_per_s(memcpy_us);
  for (const auto& [name, instructions] :
       {std::pair{"portable_gb_per_s", InstructionSet::Portable}, std::pair{"avx2_gb_per_s", InstructionSet::Avx2}}) {
    if (!is_available(instructions)) continue;
    Samples us;
    us.time_warm(kCallsPerTurn, [&] { kernel.run(pick_e4m3_codec(instructions)); });
    state.counters[name] = gb_per_s(us);
  }
}

}  // namespace

void register_quantised_kernel_benchmarks(const Effort& effort) {
  const auto add = [&](const std::string& name, auto run, const EntryFormat& format) {
    benchmark::RegisterBenchmark((name + "/" + std::string(format.name)).c_str(), run, format)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond)
        ->Iterations(static_cast<benchmark::IterationCount>(effort.samples(10)));
  };
  for (const EntryFormat& format : {fp8_arrays(), fp8_rows_then_scales(), fp8_records()}) {
    add("gather/selected", contest<Selected>, format);
    add("gather/all", contest<All>, format);
    add("append_quantised", contest<Append>, format);
  }
  add("gather/ring", contest<Ring>, fp8_arrays_with_positions());
}

}  // namespace quire::bench
