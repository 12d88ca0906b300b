// SPDX-License-Identifier: Apache-2.0
//
// quire models: what a token and a page of known models cost.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "quire/budget.h"
#include "quire/layout.h"
#include "terminal.h"

namespace quire {

namespace {

constexpr std::uint64_t kRoomBytes = std::uint64_t{10} << 30U;

/// The longest request that the bytes hold: a context, its windows and snapshots, and one state slot.
std::uint32_t longest_context(const ModelLayout& layout, const PageOptions& page) {
  std::uint32_t fits = 0;
  std::uint32_t fits_not = std::numeric_limits<std::uint32_t>::max();
  while (fits_not - fits > 1) {
    const std::uint32_t middle = fits + ((fits_not - fits) / 2);
    const BudgetRequest request{.page = page, .device_bytes = kRoomBytes, .context_tokens_max = middle};
    (solve_budget(layout, request) ? fits : fits_not) = middle;
  }
  return fits;
}

bool has_only_full_groups(const ModelLayout& layout) {
  return std::ranges::all_of(layout.groups(), [](const CacheGroup& group) { return group.kind == GroupKind::Full; });
}

Result<std::string> describe_model(std::string_view name, const ModelsOptions& options) {
  QUIRE_TRY_ASSIGN(const ModelLayout layout, preset(name));
  // 16 tokens, or the next number of them that makes whole entries.
  const std::uint32_t multiple = layout.page_multiple_tokens();
  const std::uint32_t usual_tokens = (16 + multiple - 1) / multiple * multiple;
  const PageOptions page_options{.page_tokens = options.page_tokens.value_or(usual_tokens),
                                 .rank_count = options.rank_count};
  QUIRE_TRY_ASSIGN(const std::string text, layout.describe(page_options));
  if (!has_only_full_groups(layout)) {
    return text +
           fmt::format("  10 GiB hold a request of {}\n", counted(longest_context(layout, page_options), "token"));
  }
  std::uint64_t token_bytes = 0;
  for (const CacheGroup& group : layout.groups()) {
    QUIRE_TRY_ASSIGN(const PageGeometry page, PageGeometry::create(group, page_options));
    token_bytes += page.token_bytes();
  }
  return text + fmt::format("  10 GiB hold {}\n", counted(kRoomBytes / token_bytes, "token"));
}

}  // namespace

int run_models(const ModelsOptions& options) {
  std::vector<std::string> names = {options.name};
  if (options.name.empty()) {
    const std::vector<std::string_view> known = preset_names();
    names.assign(known.begin(), known.end());
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Result<std::string> text = describe_model(names[i], options);
    if (!text) {
      fmt::print(stderr, "quire models: {}\n", text.error().message);
      return kExitUsage;
    }
    fmt::print("{}{}", i == 0 ? "" : "\n", *text);
  }
  return kExitDone;
}

}  // namespace quire
