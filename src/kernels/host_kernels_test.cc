// SPDX-License-Identifier: Apache-2.0
//
// Each kernel, on each set of instructions, against a twin that goes byte by byte through PoolGeometry::offset_of.
// Pools start as random bytes and are compared whole, so that a byte written beside the named ones shows.
#include "quire/host_kernels.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/copy_rows.h"
#include "kernels/host_kernels_with.h"
#include "quire/layout.h"
#include "quire/plan.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::Random;

std::vector<std::byte> random_bytes(Random& random, std::uint64_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.below(256));
  return bytes;
}

struct Shape {
  std::string name;
  std::uint32_t layer_count = 1;
  std::uint32_t rank_count = 1;
  std::vector<Component> components;
};

// Rows of 1 byte to more than 4 KiB, whole vectors and not.
std::vector<Shape> shapes() {
  return {
      {.name = "keys and values",
       .layer_count = 3,
       .components = {{.name = "k", .heads = 2, .dim = 64}, {.name = "v", .heads = 2, .dim = 64}}},
      {.name = "odd dims of different elements",
       .layer_count = 2,
       .components = {{.name = "k", .element = ElementType::Fp8, .heads = 3, .dim = 7},
                      {.name = "v", .element = ElementType::Fp32, .heads = 1, .dim = 33},
                      {.name = "scale", .element = ElementType::Bytes, .heads = 1, .dim = 1},
                      {.name = "index", .element = ElementType::Int8, .heads = 5, .dim = 131}}},
      {.name = "one latent row",
       .layer_count = 2,
       .components = {{.name = "latent", .sharding = Sharding::Replicated, .heads = 1, .dim = 576}}},
      {.name = "one of two ranks",
       .layer_count = 2,
       .rank_count = 2,
       .components = {{.name = "k", .heads = 4, .dim = 24},
                      {.name = "v", .heads = 4, .dim = 40},
                      {.name = "shared", .sharding = Sharding::Replicated, .heads = 3, .dim = 5}}},
      {.name = "more ranks than heads",
       .layer_count = 1,
       .rank_count = 8,
       .components = {{.name = "k", .heads = 2, .dim = 17}}},
      {.name = "long rows",
       .layer_count = 2,
       .components = {{.name = "k", .element = ElementType::Fp32, .heads = 5, .dim = 257}}},
      {.name = "records, and an area with padding behind every row",
       .layer_count = 2,
       .rank_count = 2,
       .components =
           {{.name = "payload", .element = ElementType::Fp8, .heads = 4, .dim = 9, .placement = Placement::Interleaved},
            {.name = "scale",
             .element = ElementType::Fp32,
             .heads = 2,
             .dim = 1,
             .placement = Placement::Interleaved,
             .alignment = 4},
            {.name = "keys", .element = ElementType::Fp8, .heads = 4, .dim = 5, .alignment = 8}}},
  };
}

// A geometry and the copy that the kernels are given.
struct Case {
  std::string name;
  PoolGeometry geometry;
  CopyRows copy_rows;
};

struct NamedCopy {
  const char* name;
  CopyRows copy_rows;
};

std::vector<NamedCopy> copies_here() {
  std::vector<NamedCopy> copies{{"portable", pick_copy_rows(InstructionSet::Portable, Stores::Cached)}};
  if (is_available(InstructionSet::Avx2)) {
    copies.push_back({"avx2", pick_copy_rows(InstructionSet::Avx2, Stores::Cached)});
    copies.push_back({"avx2, streaming", pick_copy_rows(InstructionSet::Avx2, Stores::Streaming)});
  }
  return copies;
}

PoolGeometry make_pool(const Shape& shape, const PageOptions& page_options, ByteLayout byte_layout) {
  auto page = PageGeometry::create(
      {.name = "full", .layers = layer_range(0, shape.layer_count), .components = shape.components}, page_options);
  return PoolGeometry::create(std::move(page).value(), {.page_count = 5, .byte_layout = byte_layout}).value();
}

// visit(Case) for every shape, layout, head order, page size and set of instructions.
void for_each_case(auto visit) {
  for (const Shape& shape : shapes()) {
    for (const std::uint32_t page_tokens : {1U, 3U, 16U}) {
      for (const HeadOrder head_order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
        for (const ByteLayout byte_layout : {ByteLayout::PageFirst, ByteLayout::LayerFirst}) {
          for (const NamedCopy& copy : copies_here()) {
            const std::string name =
                shape.name + ", P=" + std::to_string(page_tokens) + (head_order == HeadOrder::Nhd ? ", NHD" : ", HND") +
                (byte_layout == ByteLayout::PageFirst ? ", page-first, " : ", layer-first, ") + copy.name;
            SCOPED_TRACE(name);
            const PageOptions options{
                .page_tokens = page_tokens, .rank_count = shape.rank_count, .head_order = head_order};
            visit(Case{name, make_pool(shape, options, byte_layout), copy.copy_rows});
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
    }
  }
}

std::uint32_t page_tokens_of(const PoolGeometry& geometry) {
  return geometry.page().options().page_tokens;
}

std::uint32_t slot_count_of(const PoolGeometry& geometry) {
  return geometry.page_count() * page_tokens_of(geometry);
}

std::uint32_t head_count_of(const PoolGeometry& geometry, std::uint32_t component_index) {
  return geometry.page().heads_on_rank(component_index, 0).count;
}

// Where a byte of one token's row lies.
std::uint64_t row_offset(const PoolGeometry& geometry, std::int64_t slot, std::uint32_t layer, std::uint32_t component,
                         std::uint32_t head) {
  const auto place = static_cast<std::uint32_t>(slot);
  return geometry.offset_of({.page = PageId{place / page_tokens_of(geometry)},
                             .layer_index = layer,
                             .component_index = component,
                             .token_index = place % page_tokens_of(geometry),
                             .head_index = head});
}

void append_naively(const AppendParams& params) {
  const PoolGeometry& geometry = *params.geometry;
  const std::uint64_t row_bytes = geometry.page().components()[params.component_index].head_bytes;
  const std::uint32_t head_count = head_count_of(geometry, params.component_index);
  const std::uint64_t stride = params.source_token_bytes != 0 ? params.source_token_bytes : head_count * row_bytes;
  for (std::size_t token = 0; token < params.slots.size(); ++token) {
    if (params.slots[token] == kNoSlot) continue;
    for (std::uint32_t head = 0; head < head_count; ++head) {
      const std::uint64_t target =
          row_offset(geometry, params.slots[token], params.layer_index, params.component_index, head);
      for (std::uint64_t byte = 0; byte < row_bytes; ++byte) {
        params.pool[target + byte] = params.source[(token * stride) + (head * row_bytes) + byte];
      }
    }
  }
}

void move_token_naively(const PoolGeometry& geometry, std::byte* pool, const TokenMove& move) {
  for (std::uint32_t layer = 0; layer < geometry.page().layer_count(); ++layer) {
    for (std::uint32_t component = 0; component < geometry.page().components().size(); ++component) {
      for (std::uint32_t head = 0; head < head_count_of(geometry, component); ++head) {
        const std::uint64_t source = row_offset(geometry, move.source_slot, layer, component, head);
        const std::uint64_t target = row_offset(geometry, move.target_slot, layer, component, head);
        for (std::uint64_t byte = 0; byte < geometry.page().components()[component].head_bytes; ++byte) {
          pool[target + byte] = pool[source + byte];
        }
      }
    }
  }
}

void copy_page_naively(const PoolGeometry& geometry, std::byte* pool, const PageCopy& copy) {
  for (std::uint32_t token = 0; token < copy.token_count; ++token) {
    const std::int64_t page_tokens = page_tokens_of(geometry);
    move_token_naively(geometry, pool,
                       {.source_slot = (copy.source.value * page_tokens) + token,
                        .target_slot = (copy.target.value * page_tokens) + token});
  }
}

// Rows of random bytes. What lies between them is zero: copies may take it along.
std::vector<std::byte> random_rows(Random& random, const PoolGeometry& geometry) {
  std::vector<std::byte> pool(geometry.pool_bytes());
  for (std::uint32_t slot = 0; slot < slot_count_of(geometry); ++slot) {
    for (std::uint32_t layer = 0; layer < geometry.page().layer_count(); ++layer) {
      for (std::uint32_t component = 0; component < geometry.page().components().size(); ++component) {
        for (std::uint32_t head = 0; head < head_count_of(geometry, component); ++head) {
          const std::uint64_t row = row_offset(geometry, slot, layer, component, head);
          const std::uint64_t row_bytes = geometry.page().components()[component].head_bytes;
          for (std::uint64_t byte = 0; byte < row_bytes; ++byte) {
            pool[row + byte] = static_cast<std::byte>(random.below(256));
          }
        }
      }
    }
  }
  return pool;
}

// Different slots, some of them left out: [0, slot_count) in random order with every fourth or so as kNoSlot.
std::vector<std::int64_t> draw_slots(Random& random, std::uint32_t slot_count) {
  std::vector<std::int64_t> slots(slot_count);
  for (std::uint32_t i = 0; i < slot_count; ++i) slots[i] = i;
  for (std::uint32_t i = slot_count; i > 1; --i) std::swap(slots[i - 1], slots[random.below(i)]);
  for (std::int64_t& slot : slots) {
    if (random.below(4) == 0) slot = kNoSlot;
  }
  return slots;
}

TEST(AppendOnHost, WritesEachTokenAtItsSlotAndNothingElse) {
  Random random(1);
  for_each_case([&](const Case& tested) {
    const PoolGeometry& geometry = tested.geometry;
    for (std::uint32_t component = 0; component < geometry.page().components().size(); ++component) {
      const std::uint64_t token_bytes =
          geometry.page().components()[component].head_bytes * head_count_of(geometry, component);
      const std::vector<std::int64_t> slots = draw_slots(random, slot_count_of(geometry));
      for (const std::uint64_t gap : {0, 1, 64}) {  // 0: dense
        const std::uint64_t stride = token_bytes + gap;
        // Nothing behind the last token: reading there is a sanitizer's business.
        const std::vector<std::byte> source = random_bytes(random, (stride * (slots.size() - 1)) + token_bytes);
        std::vector<std::byte> pool = random_bytes(random, geometry.pool_bytes());
        std::vector<std::byte> expected = pool;
        AppendParams params{.geometry = &geometry,
                            .pool = pool.data(),
                            .layer_index = geometry.page().layer_count() - 1,
                            .component_index = component,
                            .source = source.data(),
                            .source_token_bytes = gap == 0 ? 0 : stride,
                            .slots = slots};
        append_with(tested.copy_rows, params);
        params.pool = expected.data();
        append_naively(params);
        EXPECT_TRUE(pool == expected) << "component " << component << ", gap " << gap;
      }
    }
  });
}

TEST(AppendOnHost, KeepsTheLastOfTwoTokensAtOneSlot) {
  const PoolGeometry geometry = make_pool(shapes()[0], {.page_tokens = 3}, ByteLayout::PageFirst);
  const std::uint64_t token_bytes = geometry.page().components()[0].token;
  Random random(2);
  const std::vector<std::byte> source = random_bytes(random, 2 * token_bytes);
  std::vector<std::byte> pool(geometry.pool_bytes());
  const std::vector<std::int64_t> slots{4, 4};
  append_on_host({.geometry = &geometry, .pool = pool.data(), .source = source.data(), .slots = slots});
  const std::uint64_t offset = row_offset(geometry, 4, 0, 0, 0);
  EXPECT_TRUE(std::equal(source.begin() + static_cast<std::ptrdiff_t>(token_bytes), source.end(),
                         pool.begin() + static_cast<std::ptrdiff_t>(offset)));
}

TEST(ReadRowsOnHost, GivesWhatWasAppendedAndZerosWithoutASlot) {
  Random random(9);
  for_each_case([&](const Case& tested) {
    const PoolGeometry& geometry = tested.geometry;
    for (std::uint32_t component = 0; component < geometry.page().components().size(); ++component) {
      const std::uint64_t token_bytes =
          geometry.page().components()[component].head_bytes * head_count_of(geometry, component);
      const std::vector<std::int64_t> slots = draw_slots(random, slot_count_of(geometry));
      for (const std::uint64_t gap : {0, 3}) {  // 0: dense
        const std::uint64_t stride = token_bytes + gap;
        const std::vector<std::byte> source = random_bytes(random, stride * slots.size());
        std::vector<std::byte> pool = random_bytes(random, geometry.pool_bytes());
        append_with(tested.copy_rows, {.geometry = &geometry,
                                       .pool = pool.data(),
                                       .layer_index = geometry.page().layer_count() - 1,
                                       .component_index = component,
                                       .source = source.data(),
                                       .source_token_bytes = stride,
                                       .slots = slots});
        std::vector<std::byte> read = random_bytes(random, source.size());
        std::vector<std::byte> expected = read;
        for (std::size_t token = 0; token < slots.size(); ++token) {
          for (std::uint64_t byte = 0; byte < token_bytes; ++byte) {
            const std::uint64_t at = (token * stride) + byte;
            expected[at] = slots[token] == kNoSlot ? std::byte{0} : source[at];
          }
        }
        read_rows_on_host({.geometry = &geometry,
                           .pool = pool.data(),
                           .layer_index = geometry.page().layer_count() - 1,
                           .component_index = component,
                           .target = read.data(),
                           .target_token_bytes = gap == 0 ? 0 : stride,
                           .slots = slots});
        EXPECT_TRUE(read == expected) << "component " << component << ", gap " << gap;
      }
    }
  });
}

TEST(CopyPagesOnHost, CopiesTheFirstTokensOfPagesAndNothingElse) {
  Random random(3);
  for_each_case([&](const Case& tested) {
    const PoolGeometry& geometry = tested.geometry;
    const std::uint32_t page_tokens = page_tokens_of(geometry);
    for (const std::uint32_t token_count : {0U, 1U, page_tokens / 2, page_tokens - 1, page_tokens}) {
      std::vector<std::byte> pool = random_rows(random, geometry);
      std::vector<std::byte> expected = pool;
      const std::vector<PageCopy> copies{{.source = PageId{4}, .target = PageId{1}, .token_count = token_count},
                                         {.source = PageId{3}, .target = PageId{3}, .token_count = token_count},
                                         {.source = PageId{4}, .target = PageId{0}, .token_count = page_tokens},
                                         {.source = PageId{1}, .target = PageId{2}, .token_count = token_count}};
      copy_pages_with(tested.copy_rows, {.geometry = &geometry, .pool = pool.data(), .copies = copies});
      for (const PageCopy& copy : copies) copy_page_naively(geometry, expected.data(), copy);
      EXPECT_TRUE(pool == expected) << token_count << " tokens";
    }
  });
}

TEST(MoveTokensOnHost, MovesInOrderAlsoWithinAPageAndOntoItself) {
  Random random(4);
  for_each_case([&](const Case& tested) {
    const PoolGeometry& geometry = tested.geometry;
    const std::uint32_t slot_count = slot_count_of(geometry);
    // Few slots for many moves: what was moved moves on, and some moves go nowhere.
    const std::uint32_t used_count = std::min(slot_count, 2 + random.below(slot_count));
    std::vector<TokenMove> moves(100);
    for (TokenMove& move : moves) {
      move = {.source_slot = random.below(used_count), .target_slot = random.below(used_count)};
    }
    std::vector<std::byte> pool = random_bytes(random, geometry.pool_bytes());
    std::vector<std::byte> expected = pool;
    move_tokens_with(tested.copy_rows, {.geometry = &geometry, .pool = pool.data(), .moves = moves});
    for (const TokenMove& move : moves) move_token_naively(geometry, expected.data(), move);
    EXPECT_TRUE(pool == expected);
  });
}

TEST(HostKernels, DoTheSameOnTheBestCopyAsOnThePortableOne) {
  const CopyRows portable = pick_copy_rows(InstructionSet::Portable, Stores::Cached);
  const PoolGeometry geometry = make_pool(shapes()[1], {.page_tokens = 16}, ByteLayout::LayerFirst);
  Random random(5);
  std::vector<std::byte> pool = random_bytes(random, geometry.pool_bytes());
  std::vector<std::byte> expected = pool;
  const std::vector<std::byte> source = random_bytes(random, 80 * geometry.page().components()[0].token);
  const std::vector<std::int64_t> slots = draw_slots(random, 80);
  const std::vector<PageCopy> copies{{.source = PageId{2}, .target = PageId{1}, .token_count = 11}};
  const std::vector<TokenMove> moves{{.source_slot = 7, .target_slot = 3}, {.source_slot = 3, .target_slot = 70}};

  append_on_host({.geometry = &geometry, .pool = pool.data(), .source = source.data(), .slots = slots});
  append_with(portable, {.geometry = &geometry, .pool = expected.data(), .source = source.data(), .slots = slots});
  EXPECT_TRUE(pool == expected);
  move_tokens_on_host({.geometry = &geometry, .pool = pool.data(), .moves = moves});
  move_tokens_with(portable, {.geometry = &geometry, .pool = expected.data(), .moves = moves});
  EXPECT_TRUE(pool == expected);
  copy_pages_on_host({.geometry = &geometry, .pool = pool.data(), .copies = copies});
  copy_pages_with(portable, {.geometry = &geometry, .pool = expected.data(), .copies = copies});
  EXPECT_TRUE(pool == expected);
}

TEST(HostKernels, OfNothingTouchNothing) {
  const PoolGeometry geometry = make_pool(shapes()[0], {.page_tokens = 3}, ByteLayout::PageFirst);
  append_on_host({.geometry = &geometry});
  copy_pages_on_host({.geometry = &geometry});
  move_tokens_on_host({.geometry = &geometry});
  read_rows_on_host({.geometry = &geometry});
  apply_deltas_on_host({});
  const std::int32_t offset = 7;
  list_pages_on_host({.page_indptr = {&offset, 1}});
}

TEST(ApplyDeltasOnHost, WritesTheNamedCellsAndTheLastOfTwoDeltasStays) {
  std::vector<std::int32_t> table(15, -7);
  std::vector<std::int32_t> expected = table;
  const std::vector<PageDelta> deltas{{.row = 0, .column = 0, .page = 11},
                                      {.row = 2, .column = 4, .page = 12},
                                      {.row = 1, .column = 3, .page = 13},
                                      {.row = 1, .column = 3, .page = 14}};
  apply_deltas_on_host({.table = table.data(), .rows = 3, .row_columns = 5, .deltas = deltas});
  expected[0] = 11;
  expected[14] = 12;
  expected[8] = 14;
  EXPECT_EQ(table, expected);
}

TEST(ListPagesOnHost, ListsTheColumnsOfEachSliceAndNothingElse) {
  const std::vector<std::int32_t> table{10, 11, 12, 13,   //
                                        20, 21, 22, 23,   //
                                        30, 31, 32, 33};  //
  const std::vector<std::int32_t> slice_rows{2, 0, -1, 1, 2, -1};
  const std::vector<std::int32_t> first_columns{0, 1, 0, 3, 4, 0};
  const std::vector<std::int32_t> page_indptr{2, 6, 8, 8, 9, 9, 9};
  std::vector<std::int32_t> page_indices(11, -7);
  list_pages_on_host({.table = table.data(),
                      .rows = 3,
                      .row_columns = 4,
                      .slice_rows = slice_rows,
                      .first_columns = first_columns,
                      .page_indptr = page_indptr,
                      .page_indices = page_indices});
  EXPECT_EQ(page_indices, (std::vector<std::int32_t>{-7, -7, 30, 31, 32, 33, 11, 12, 23, -7, -7}));
}

// Every length up to where the loops change, at odd addresses, between bytes that must stay.
TEST(CopyRowsTest, CopiesRowsOfAnyLengthAtAnyAddress) {
  Random random(6);
  constexpr std::uint64_t kBytesMax = 400;
  constexpr std::size_t kRowCount = 5;
  for (const NamedCopy& copy : copies_here()) {
    for (std::uint64_t row_bytes = 0; row_bytes <= kBytesMax; ++row_bytes) {
      const std::vector<std::byte> source = random_bytes(random, kRowCount * (kBytesMax + 64));
      std::vector<std::byte> target = random_bytes(random, source.size());
      std::vector<std::byte> expected = target;
      std::vector<RowCopy> rows;
      for (std::size_t row = 0; row < kRowCount; ++row) {
        const std::uint64_t from = (row * (kBytesMax + 64)) + random.below(64);
        const std::uint64_t to = ((kRowCount - 1 - row) * (kBytesMax + 64)) + random.below(64);
        rows.push_back({.target = target.data() + to, .source = source.data() + from});
        for (std::uint64_t byte = 0; byte < row_bytes; ++byte) expected[to + byte] = source[from + byte];
      }
      copy.copy_rows(rows, {.row_bytes = row_bytes});
      ASSERT_TRUE(target == expected) << copy.name << ", " << row_bytes << " bytes";
    }
  }
}

// Long rows are copied in parts; the last part can be shorter than what is missing to the target's next line.
TEST(CopyRowsTest, CopiesLongRowsOfOddLengthsToAnyAddress) {
  Random random(7);
  constexpr std::uint64_t kPartBytes = 8192;
  constexpr std::uint64_t kSpaceBytes = (3 * kPartBytes) + 128;
  const std::vector<std::byte> source = random_bytes(random, 2 * kSpaceBytes);
  const std::vector<std::byte> before = random_bytes(random, 2 * kSpaceBytes);
  for (const NamedCopy& copy : copies_here()) {
    for (const std::uint64_t row_bytes : {kPartBytes - 1, kPartBytes, kPartBytes + 1, kPartBytes + 31, kPartBytes + 63,
                                          kPartBytes + 100, (2 * kPartBytes) + 33, 3 * kPartBytes}) {
      for (std::uint64_t to = 0; to < 64; ++to) {
        const std::uint64_t from = random.below(64);
        std::vector<std::byte> target = before;
        std::vector<std::byte> expected = before;
        std::vector<RowCopy> rows;
        for (const std::uint64_t space : {kSpaceBytes, std::uint64_t{0}}) {
          rows.push_back({.target = target.data() + space + to, .source = source.data() + space + from});
          std::copy_n(source.data() + space + from, row_bytes, expected.data() + space + to);
        }
        copy.copy_rows(rows, {.row_bytes = row_bytes});
        ASSERT_TRUE(target == expected) << copy.name << ", " << row_bytes << " bytes to " << to;
      }
    }
  }
}

// Steps and copies so large that they are stored around the caches.
TEST(HostKernels, DoTheSameWithMuchAsThePortableCopy) {
  const Shape shape{.name = "keys and values",
                    .layer_count = 8,
                    .components = {{.name = "k", .heads = 8, .dim = 129}, {.name = "v", .heads = 8, .dim = 128}}};
  const CopyRows portable = pick_copy_rows(InstructionSet::Portable, Stores::Cached);
  Random random(8);
  for (const HeadOrder head_order : {HeadOrder::Nhd, HeadOrder::Hnd}) {
    const PoolGeometry geometry =
        make_pool(shape, {.page_tokens = 64, .head_order = head_order}, ByteLayout::PageFirst);
    std::vector<std::byte> pool(geometry.pool_bytes());
    std::vector<std::byte> expected(geometry.pool_bytes());
    const std::uint32_t slot_count = slot_count_of(geometry);
    const std::vector<std::byte> source = random_bytes(random, slot_count * geometry.page().layer_bytes() / 64);
    std::vector<std::int64_t> slots(slot_count);
    for (std::uint32_t i = 0; i < slot_count; ++i) slots[i] = (std::int64_t{i} * 7) % slot_count;
    AppendParams append{.geometry = &geometry, .layer_index = 5, .source = source.data(), .slots = slots};
    append.pool = pool.data();
    append_on_host(append);
    append.pool = expected.data();
    append_with(portable, append);
    EXPECT_TRUE(pool == expected);
    const std::vector<PageCopy> copies{{.source = PageId{2}, .target = PageId{1}, .token_count = 41},
                                       {.source = PageId{1}, .target = PageId{4}, .token_count = 64}};
    copy_pages_on_host({.geometry = &geometry, .pool = pool.data(), .copies = copies});
    copy_pages_with(portable, {.geometry = &geometry, .pool = expected.data(), .copies = copies});
    EXPECT_TRUE(pool == expected);
  }
}

class HostKernelsDeathTest : public ::testing::Test {
 protected:
  void append(std::uint32_t layer, std::uint32_t component, std::int64_t slot, std::uint64_t source_token_bytes = 0) {
    append_on_host({.geometry = &geometry_,
                    .pool = pool_.data(),
                    .layer_index = layer,
                    .component_index = component,
                    .source = source_.data(),
                    .source_token_bytes = source_token_bytes,
                    .slots = {&slot, 1}});
  }
  void copy(const PageCopy& copy) {
    copy_pages_on_host({.geometry = &geometry_, .pool = pool_.data(), .copies = {&copy, 1}});
  }
  void move(const TokenMove& move) {
    move_tokens_on_host({.geometry = &geometry_, .pool = pool_.data(), .moves = {&move, 1}});
  }
  void apply(const PageDelta& delta) {
    apply_deltas_on_host({.table = table_.data(), .rows = 3, .row_columns = 5, .deltas = {&delta, 1}});
  }
  void read(std::uint32_t layer, std::uint32_t component, std::int64_t slot, std::uint64_t target_token_bytes = 0) {
    read_rows_on_host({.geometry = &geometry_,
                       .pool = pool_.data(),
                       .layer_index = layer,
                       .component_index = component,
                       .target = source_.data(),
                       .target_token_bytes = target_token_bytes,
                       .slots = {&slot, 1}});
  }
  // Two pages of one slice, into a list of three.
  void list(std::int32_t row, std::int32_t first_column, std::int32_t first_place) {
    std::vector<std::int32_t> page_indices(3);
    const std::vector<std::int32_t> page_indptr{first_place, first_place + 2};
    list_pages_on_host({.table = table_.data(),
                        .rows = 3,
                        .row_columns = 5,
                        .slice_rows = {&row, 1},
                        .first_columns = {&first_column, 1},
                        .page_indptr = page_indptr,
                        .page_indices = page_indices});
  }

  PoolGeometry geometry_ = make_pool(shapes()[0], {.page_tokens = 3}, ByteLayout::PageFirst);  // 5 pages, 3 layers
  std::vector<std::byte> pool_ = std::vector<std::byte>(geometry_.pool_bytes());
  std::vector<std::byte> source_ = std::vector<std::byte>(geometry_.page().components()[0].token);
  std::vector<std::int32_t> table_ = std::vector<std::int32_t>(15);
};

TEST_F(HostKernelsDeathTest, AppendingOutsideThePoolStops) {
  append(2, 1, 14);
  EXPECT_DEATH(append(0, 0, 15), "appending at a slot that the pool does not have");
  EXPECT_DEATH(append(0, 0, -2), "appending at a slot that the pool does not have");
  EXPECT_DEATH(append(3, 0, 0), "appending to a layer that the group does not have");
  EXPECT_DEATH(append(0, 2, 0), "appending to a component that the group does not have");
  EXPECT_DEATH(append(0, 0, 0, source_.size() - 1), "the source's tokens overlap");
}

TEST_F(HostKernelsDeathTest, ReadingOutsideThePoolStops) {
  read(2, 1, 14);
  EXPECT_DEATH(read(0, 0, 15), "reading a slot that the pool does not have");
  EXPECT_DEATH(read(0, 0, -2), "reading a slot that the pool does not have");
  EXPECT_DEATH(read(3, 0, 0), "reading from a layer that the group does not have");
  EXPECT_DEATH(read(0, 2, 0), "reading from a component that the group does not have");
  EXPECT_DEATH(read(0, 0, 0, source_.size() - 1), "the target's tokens overlap");
}

TEST_F(HostKernelsDeathTest, ListingOutsideTheTableOrTheListStops) {
  list(2, 3, 1);
  EXPECT_DEATH(list(3, 0, 0), "a row that the table does not have");
  EXPECT_DEATH(list(-1, 0, 0), "a row that the table does not have");
  EXPECT_DEATH(list(0, 4, 0), "columns that the table does not have");
  EXPECT_DEATH(list(0, -1, 0), "columns that the table does not have");
  EXPECT_DEATH(list(0, 0, 2), "behind the end of their list");
  EXPECT_DEATH(list(0, 0, -1), "behind the end of their list");
  EXPECT_DEATH(list_pages_on_host({}), "an offset for every slice, and one offset more");
}

TEST_F(HostKernelsDeathTest, CopyingOutsideThePoolStops) {
  copy({.source = PageId{4}, .target = PageId{0}, .token_count = 3});
  EXPECT_DEATH(copy({.source = PageId{5}, .target = PageId{0}, .token_count = 1}), "copying from a page");
  EXPECT_DEATH(copy({.source = PageId{0}, .target = PageId{5}, .token_count = 1}), "copying to a page");
  EXPECT_DEATH(copy({.source = PageId::none(), .target = PageId{0}, .token_count = 0}), "copying from a page");
  EXPECT_DEATH(copy({.source = PageId{0}, .target = PageId{1}, .token_count = 4}), "more tokens than a page has");
}

TEST_F(HostKernelsDeathTest, MovingOutsideThePoolStops) {
  move({.source_slot = 14, .target_slot = 0});
  EXPECT_DEATH(move({.source_slot = 15, .target_slot = 0}), "moving from a slot");
  EXPECT_DEATH(move({.source_slot = 0, .target_slot = 15}), "moving to a slot");
  EXPECT_DEATH(move({.source_slot = kNoSlot, .target_slot = kNoSlot}), "moving from a slot");
}

TEST_F(HostKernelsDeathTest, ADeltaOutsideTheTableStops) {
  apply({.row = 2, .column = 4, .page = 1});
  EXPECT_DEATH(apply({.row = 3, .column = 0, .page = 1}), "a row that the table does not have");
  EXPECT_DEATH(apply({.row = -1, .column = 0, .page = 1}), "a row that the table does not have");
  EXPECT_DEATH(apply({.row = 0, .column = 5, .page = 1}), "a column that the table does not have");
  EXPECT_DEATH(apply({.row = 0, .column = -1, .page = 1}), "a column that the table does not have");
}

}  // namespace
}  // namespace quire
