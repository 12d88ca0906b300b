// SPDX-License-Identifier: Apache-2.0
#include "amounts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace quire {

namespace {

/// Three digits: "1.25", "93.8", "512".
std::string three_digits(double value) {
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (decimals > 0) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

/// `amount` in the largest of the units that leaves at least 1.
template <std::size_t kCount>
std::string scaled(std::uint64_t amount, double base, const std::array<std::string_view, kCount>& units) {
  auto value = static_cast<double>(amount);
  std::size_t unit = 0;
  while (unit + 1 < kCount && value >= (unit == 0 ? base : base - 0.5)) {
    value /= base;
    ++unit;
  }
  return (unit == 0 ? std::to_string(amount) : three_digits(value)) + std::string(units[unit]);
}

}  // namespace

Result<std::uint64_t> parse_amount(std::string_view text) {
  const auto too_large = [&] {
    return fail(ErrorCode::InvalidArgument, fmt::format("'{}' is too large: the most is 18,446,744T", text));
  };
  const auto bad = [&] {
    return fail(ErrorCode::InvalidArgument,
                fmt::format("'{}' is no amount: write a whole number above 0 such as 4096, 100k, 2.5M or 1G", text));
  };
  std::string_view digits = text;
  std::uint64_t factor = 1;
  if (!digits.empty()) {
    constexpr std::array<std::pair<char, std::uint64_t>, 5> kSuffixes = {
        {{'k', 1'000}, {'K', 1'000}, {'M', 1'000'000}, {'G', 1'000'000'000}, {'T', 1'000'000'000'000}}};
    const auto suffix = std::ranges::find(kSuffixes, digits.back(), &std::pair<char, std::uint64_t>::first);
    if (suffix != kSuffixes.end()) {
      factor = suffix->second;
      digits.remove_suffix(1);
    }
  }
  // Exact: each digit behind the point takes its share of the factor.
  std::uint64_t amount = 0;
  std::size_t whole_digits = 0;
  bool is_fraction = false;
  std::uint64_t place = factor;
  for (const char c : digits) {
    if (c == '.' && !is_fraction && whole_digits > 0) {
      is_fraction = true;
      continue;
    }
    if (c < '0' || c > '9') return bad();
    const auto digit = static_cast<std::uint64_t>(c - '0');
    if (is_fraction) {
      if (place % 10 != 0) return bad();  // 1.0005k is no whole number
      place /= 10;
      if (__builtin_add_overflow(amount, digit * place, &amount)) return too_large();
    } else {
      ++whole_digits;
      if (__builtin_mul_overflow(amount, 10U, &amount)) return too_large();
      if (__builtin_add_overflow(amount, digit * factor, &amount)) return too_large();
    }
  }
  if (amount == 0 || digits.back() == '.') return bad();
  return amount;
}

Result<std::vector<std::uint64_t>> parse_amounts(std::string_view text) {
  QUIRE_TRY_ASSIGN(const std::vector<std::string> names, parse_names(text));
  std::vector<std::uint64_t> amounts;
  for (const std::string& name : names) {
    QUIRE_TRY_ASSIGN(const std::uint64_t amount, parse_amount(name));
    if (std::ranges::find(amounts, amount) == amounts.end()) amounts.push_back(amount);
  }
  return amounts;
}

Result<std::vector<std::string>> parse_names(std::string_view text) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) {
      return fail(ErrorCode::InvalidArgument,
                  fmt::format("'{}' has an empty part: put one comma between two values", text));
    }
    names.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

std::string amount_text(std::uint64_t amount) {
  return scaled<4>(amount, 1'000, {"", "k", "M", "G"});
}

std::string bytes_text(std::uint64_t bytes) {
  return scaled<5>(bytes, 1'024, {" bytes", " KiB", " MiB", " GiB", " TiB"});
}

}  // namespace quire
