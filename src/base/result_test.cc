// SPDX-License-Identifier: Apache-2.0
//
// What a Result adds to tl::expected: temporaries that do not dangle. tests/compile has what does not compile.
#include "quire/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace quire {
namespace {

// Says when it goes.
struct Watched {
  explicit Watched(std::vector<int> given, int* gone_count) : values(std::move(given)), gone(gone_count) {}
  Watched(Watched&& other) noexcept : values(std::move(other.values)), gone(std::exchange(other.gone, nullptr)) {}
  Watched& operator=(Watched&&) = delete;
  ~Watched() {
    if (gone != nullptr) ++*gone;
  }
  [[nodiscard]] auto begin() const { return values.begin(); }
  [[nodiscard]] auto end() const { return values.end(); }

  std::vector<int> values;
  int* gone;
};

Result<Watched> watched(int* gone) {
  return Watched({1, 2, 3}, gone);
}

TEST(Result, TheValueOfATemporaryLivesAsLongAsALoopOverIt) {
  int gone = 0;
  int sum = 0;
  for (const int value : *watched(&gone)) {
    EXPECT_EQ(gone, 0);
    sum += value;
  }
  EXPECT_EQ(gone, 1);
  for (const int value : watched(&gone).value()) {
    EXPECT_EQ(gone, 1);
    sum += value;
  }
  EXPECT_EQ(gone, 2);
  EXPECT_EQ(sum, 12);
}

TEST(Result, ANamedOneGivesReferences) {
  Result<std::string> name = std::string("page");
  EXPECT_EQ(&*name, &name.value());
  EXPECT_EQ(name->size(), 4U);
  static_assert(std::is_same_v<decltype(*name), std::string&>);
  static_assert(std::is_same_v<decltype(*std::as_const(name)), const std::string&>);
  static_assert(std::is_same_v<decltype(*std::move(name)), std::string>);
}

// A Result of bool is no bool: a copy of it must not ask whether it has one.
TEST(Result, CopiesOfAFalseOneAreFalse) {
  Result<bool> no = false;
  Result<bool> copy(no);
  const Result<bool> assigned = copy;
  EXPECT_TRUE(assigned.has_value());
  EXPECT_FALSE(*assigned);
}

struct Base {
  virtual ~Base() = default;
};
struct Derived : Base {};

Result<std::unique_ptr<Base>> derived() {
  return std::make_unique<Derived>();
}

Result<std::size_t> length(const Result<std::string>& text) {
  return text.map([](const std::string& value) { return value.size(); });
}

Result<int> half(int number) {
  if (number % 2 != 0) return fail(ErrorCode::InvalidArgument, "odd");
  return number / 2;
}

Result<int> quarter(int number) {
  QUIRE_TRY_ASSIGN(const int once, half(number));
  return half(once);
}

TEST(Result, ConvertsAsItsBaseDoes) {
  EXPECT_NE(derived().value(), nullptr);
  EXPECT_EQ(*length(std::string("quire")), 5U);
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().message, "odd");
  static_assert(!std::is_convertible_v<std::string, Result<int>>);
  Status done;
  done = half(3).map([](int) {});
  EXPECT_EQ(done.error().code, ErrorCode::InvalidArgument);
}

}  // namespace
}  // namespace quire
