// SPDX-License-Identifier: Apache-2.0
#include "wire/page_name.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "testing/seeded_run.h"

namespace quire {
namespace {

const KeySpace kPoet{.model = "llama-3-8b",
                     .revision = "main",
                     .adapter = "poet",
                     .element = "bf16",
                     .rope = "linear:8",
                     .salt = "tenant 7"};
const std::vector<TokenId> kTokens = {0, 1, 2, 3, 128000, 5, 6, 2147483647, 8, 9, 10, 11};

ExtraKey extra_key(std::uint32_t begin, std::uint32_t end, std::uint8_t item) {
  ExtraKey key{.begin = begin, .end = end};
  key.item.fill(item);
  return key;
}

std::vector<PageName> names_of(const NamedPath& path) {
  std::vector<PageName> names(path.tokens.size() / path.page_tokens);
  name_pages(path, names);
  return names;
}

// The names of a whole prompt, from its root.
std::vector<PageName> names_of(const KeySpace& key_space, std::uint32_t page_tokens, std::span<const TokenId> tokens,
                               std::span<const ExtraKey> keys = {}) {
  return names_of({.parent = root_name(key_space_name(key_space), page_tokens),
                   .page_tokens = page_tokens,
                   .tokens = tokens,
                   .extra_keys = keys});
}

// tests/format/page_names.py computes these names with Python's hashlib, and checks that they stand here.
TEST(PageName, NamesAreTheOnesThatOthersCompute) {
  EXPECT_EQ(to_hex(key_space_name(KeySpace{})), "73a80bb99ae85a90f57a831defd462ad950ec8d14bd8f0fb18e7eab866efb7e8");
  EXPECT_EQ(to_hex(key_space_name(kPoet)), "ac430a0fea3309ebee9215cbc8c5b43a14f89afaed22c86d98050f82406b5223");
  EXPECT_EQ(to_hex(root_name(key_space_name(KeySpace{}), 16)),
            "6004f062cc3372cf9669941b7256107982c6c41f8872110c08a5b74b77f894f3");
  EXPECT_EQ(to_hex(root_name(key_space_name(kPoet), 4)),
            "6c3459cb9e25cd3275eb2388c1416fe5f643212804e7d80159269d5612c267cd");

  const std::vector<PageName> names = names_of(kPoet, 4, kTokens);
  EXPECT_EQ(to_hex(names[0]), "d6bb2d24dfef70a62b7367787ebe6697789a4f2705d19c2495a340beef05c0cc");
  EXPECT_EQ(to_hex(names[1]), "aa0d7e3a68d27cee2cbfaebd1882ba71f5339c16f4021ce9d6872ee18621e81b");
  EXPECT_EQ(to_hex(names[2]), "d01f5b43ef017dfe75edd901db2fb9e732f013561d672911f296c97bfe498794");

  std::array<ExtraKey, 2> keys = {extra_key(2, 5, 0), extra_key(5, 6, 255)};
  std::iota(keys[0].item.begin(), keys[0].item.end(), std::uint8_t{0});
  const std::vector<PageName> with_keys = names_of(kPoet, 4, kTokens, keys);
  EXPECT_EQ(to_hex(with_keys[0]), "f351d5d6957467860e6f8d5c26987751fca0dc199455923c86f07b6b7e9ed226");
  EXPECT_EQ(to_hex(with_keys[1]), "f29f34af1be44b1303000216aab3fe99bfa2e32faf0453694322bd41ba16f0f3");
  EXPECT_EQ(to_hex(with_keys[2]), "b87ffc78769d64123c8feb0020ddc1ef03ee3236513670f4cd15516eba37a008");

  std::vector<TokenId> long_prompt(100000);
  std::iota(long_prompt.begin(), long_prompt.end(), 0);
  EXPECT_EQ(to_hex(names_of({}, 16, long_prompt).back()),
            "c72d52518be7eba8bd386a14117d9abd5bceca9475149d747cc967164093b0cc");
  long_prompt.resize(4096);
  EXPECT_EQ(to_hex(names_of({}, 2048, long_prompt, keys).back()),
            "4d503490769bbda1b7a8cc953aa2d762ee39d3a8b6c28dc45a260ab1183e1344");
}

TEST(PageName, NoNameIsAllZeros) {
  EXPECT_TRUE(PageName{}.is_none());
  EXPECT_FALSE(key_space_name(KeySpace{}).is_none());
  EXPECT_EQ(to_hex({}), std::string(64, '0'));
}

TEST(PageName, EveryFieldOfAKeySpaceCounts) {
  std::set<PageName> names = {key_space_name(KeySpace{})};
  for (std::string KeySpace::* const field : {&KeySpace::model, &KeySpace::revision, &KeySpace::adapter,
                                              &KeySpace::element, &KeySpace::rope, &KeySpace::salt}) {
    KeySpace key_space;
    key_space.*field = "a";
    names.insert(key_space_name(key_space));
    key_space.*field = std::string("\0", 1);
    names.insert(key_space_name(key_space));
  }
  EXPECT_EQ(names.size(), 13U);
}

TEST(PageName, FieldsOfAKeySpaceAreNeverJoined) {
  EXPECT_NE(key_space_name({.model = "ab", .revision = "c"}), key_space_name({.model = "a", .revision = "bc"}));
  EXPECT_NE(key_space_name({.model = "ab"}), key_space_name({.model = "a", .revision = "b"}));
  // A field that looks like the end of one and the beginning of the next.
  const std::string form = KeySpace{.model = "a", .revision = "b"}.canonical_form();
  EXPECT_NE(key_space_name({.model = form.substr(8)}), key_space_name({.model = "a", .revision = "b"}));
}

TEST(PageName, EveryTokenCountsFromItsPageOn) {
  const std::vector<PageName> before = names_of(kPoet, 4, kTokens);
  for (std::size_t i = 0; i < kTokens.size(); ++i) {
    std::vector<TokenId> tokens = kTokens;
    tokens[i] ^= 1;
    const std::vector<PageName> after = names_of(kPoet, 4, tokens);
    for (std::size_t page = 0; page < after.size(); ++page) {
      EXPECT_EQ(after[page] == before[page], page < i / 4) << "token " << i << ", page " << page;
    }
  }
}

TEST(PageName, TheOrderOfTokensCounts) {
  std::vector<TokenId> tokens = kTokens;
  std::swap(tokens[1], tokens[2]);
  EXPECT_NE(names_of(kPoet, 4, tokens)[0], names_of(kPoet, 4, kTokens)[0]);
  tokens = kTokens;
  std::swap_ranges(tokens.begin(), tokens.begin() + 4, tokens.begin() + 4);
  EXPECT_NE(names_of(kPoet, 4, tokens)[1], names_of(kPoet, 4, kTokens)[1]);
}

TEST(PageName, TheSameTokensInAnotherPlaceHaveAnotherName) {
  const std::vector<TokenId> tokens(12, 7);
  const std::vector<PageName> names = names_of(kPoet, 4, tokens);
  EXPECT_NE(names[0], names[1]);
  EXPECT_NE(names[1], names[2]);
}

TEST(PageName, PageTokensCount) {
  const std::vector<PageName> by_four = names_of(kPoet, 4, kTokens);
  const std::vector<PageName> by_six = names_of(kPoet, 6, kTokens);
  const std::vector<PageName> by_twelve = names_of(kPoet, 12, kTokens);
  std::set<PageName> all(by_four.begin(), by_four.end());
  all.insert(by_six.begin(), by_six.end());
  all.insert(by_twelve.begin(), by_twelve.end());
  EXPECT_EQ(all.size(), 6U);
}

TEST(PageName, EveryPartOfAnExtraKeyCounts) {
  const auto first_name = [](const ExtraKey& key) { return names_of(kPoet, 12, kTokens, std::array{key})[0]; };
  std::set<PageName> names = {names_of(kPoet, 12, kTokens)[0], first_name(extra_key(2, 5, 1)),
                              first_name(extra_key(1, 5, 1)), first_name(extra_key(2, 6, 1))};
  for (std::size_t i = 0; i < 32; ++i) {
    ExtraKey key = extra_key(2, 5, 1);
    key.item[i] ^= 128U;
    names.insert(first_name(key));
  }
  names.insert(names_of(kPoet, 12, kTokens, std::array{extra_key(2, 5, 1), extra_key(5, 6, 1)})[0]);
  names.insert(names_of(kPoet, 12, kTokens, std::array{extra_key(2, 5, 1), extra_key(5, 6, 2)})[0]);
  names.insert(names_of(kPoet, 12, kTokens, std::array{extra_key(2, 5, 2), extra_key(5, 6, 1)})[0]);
  EXPECT_EQ(names.size(), 4U + 32U + 3U);
}

TEST(PageName, AnExtraKeyBelongsToThePagesThatItOverlaps) {
  const std::vector<PageName> plain = names_of(kPoet, 4, kTokens);
  struct Case {
    std::uint32_t begin, end;
    std::size_t first_changed;  // Names behind it change too, by their parent.
  };
  for (const Case& c : {Case{0, 1, 0}, {3, 4, 0}, {3, 5, 0}, {4, 5, 1}, {7, 8, 1}, {8, 9, 2}, {11, 99, 2}}) {
    const std::vector<PageName> names = names_of(kPoet, 4, kTokens, std::array{extra_key(c.begin, c.end, 9)});
    for (std::size_t page = 0; page < 3; ++page) {
      EXPECT_EQ(names[page] == plain[page], page < c.first_changed) << c.begin << " to " << c.end << ", page " << page;
    }
  }
  // Behind the prompt.
  EXPECT_EQ(names_of(kPoet, 4, kTokens, std::array{extra_key(12, 13, 9)}), plain);
}

TEST(PageName, AnExtraKeyThatEndsWhereAPageBeginsIsOutsideOfIt) {
  const PageName parent = names_of(kPoet, 4, kTokens)[0];
  const auto second_page = [&](std::span<const ExtraKey> keys) {
    return names_of({.parent = parent,
                     .page_tokens = 4,
                     .first_position = 4,
                     .tokens = std::span(kTokens).subspan(4, 4),
                     .extra_keys = keys})[0];
  };
  EXPECT_EQ(second_page(std::array{extra_key(1, 4, 9)}), second_page({}));
  EXPECT_NE(second_page(std::array{extra_key(1, 5, 9)}), second_page({}));
  EXPECT_EQ(second_page(std::array{extra_key(8, 9, 9)}), second_page({}));
}

TEST(PageName, ChainingInPiecesIsChainingAtOnce) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    testing::Random random(seed);
    const std::uint32_t page_tokens = 1 + random.below(20);
    std::vector<TokenId> tokens(std::size_t{page_tokens} * random.below(12));
    for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(1U << 31U));
    std::vector<ExtraKey> keys;
    for (std::uint32_t at = random.below(9); at < tokens.size(); at = keys.back().end + random.below(9)) {
      keys.push_back(extra_key(at, at + 1 + random.below(30), static_cast<std::uint8_t>(random.below(256))));
    }

    const PageName root = root_name(key_space_name(kPoet), page_tokens);
    std::vector<PageName> pieces;
    for (std::size_t done = 0; done < tokens.size();) {
      const std::size_t pages_left = (tokens.size() - done) / page_tokens;
      const std::size_t count = std::size_t{page_tokens} * random.below(static_cast<std::uint32_t>(pages_left + 1));
      const std::vector<PageName> piece = names_of({.parent = pieces.empty() ? root : pieces.back(),
                                                    .page_tokens = page_tokens,
                                                    .first_position = static_cast<std::uint32_t>(done),
                                                    .tokens = std::span(tokens).subspan(done, count),
                                                    .extra_keys = keys});
      pieces.insert(pieces.end(), piece.begin(), piece.end());
      done += count;
    }
    EXPECT_EQ(pieces, names_of(kPoet, page_tokens, tokens, keys));
  }
}

TEST(PageNameDeathTest, PathsThatAreNoneAreBugs) {
  std::array<PageName, 3> names;
  EXPECT_DEATH(name_pages({.page_tokens = 0}, {}), "a path begins where a page does");
  EXPECT_DEATH(name_pages({.page_tokens = 4, .first_position = 2, .tokens = kTokens}, names), "begins where a page");
  EXPECT_DEATH(name_pages({.page_tokens = 5, .tokens = kTokens}, names), "page_tokens tokens and one name");
  const std::array keys = {extra_key(4, 6, 1), extra_key(5, 7, 1)};
  EXPECT_DEATH(name_pages({.page_tokens = 4, .tokens = kTokens, .extra_keys = keys}, names), "do not overlap");
}

}  // namespace
}  // namespace quire
