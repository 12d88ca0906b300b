// SPDX-License-Identifier: Apache-2.0
#include "sequence/sequence_table.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using State = SequenceSlot::State;

std::vector<std::uint32_t> loading(const SequenceTable& table) {
  std::vector<std::uint32_t> found;
  for (std::uint32_t i = table.next_arriving(0); i < table.capacity(); i = table.next_arriving(i + 1))
    found.push_back(i);
  return found;
}

TEST(SequenceTable, ListsThoseThatLookOrLoadAndNoOthers) {
  for (const std::uint32_t capacity : {1U, 63U, 64U, 65U, 200U}) {
    auto table =
        SequenceTable::create({.sequence_count_max = capacity, .context_tokens_max = 16, .page_tokens = 16}).value();
    for (std::uint32_t i = 0; i < capacity; ++i) ASSERT_TRUE(table.try_add().has_value());
    EXPECT_EQ(table.next_arriving(0), capacity);
    testing::Random random(capacity);
    for (int step = 0; step < 2'000; ++step) {
      const auto state = static_cast<State>(1 + random.below(static_cast<std::uint32_t>(State::Holding)));
      table.set_state(random.below(capacity), state);
      std::vector<std::uint32_t> expected;
      for (std::uint32_t i = 0; i < capacity; ++i) {
        const State each = table[i].state;
        const bool arrives = each == State::Looking || each == State::Loading || each == State::RunningAhead;
        if (arrives) expected.push_back(i);
      }
      ASSERT_EQ(loading(table), expected);
    }
  }
}

TEST(SequenceTable, OneThatEndedLoadsNothing) {
  auto table = SequenceTable::create({.sequence_count_max = 2, .context_tokens_max = 16, .page_tokens = 16}).value();
  const std::uint32_t index = table.try_add().value_or(table.capacity());
  ASSERT_LT(index, table.capacity());
  table.set_state(index, State::Loading);
  EXPECT_EQ(loading(table), std::vector{index});
  table.remove(index);
  EXPECT_TRUE(loading(table).empty());
}

}  // namespace
}  // namespace quire
