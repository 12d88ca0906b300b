// SPDX-License-Identifier: Apache-2.0
//
// quire models: what a token and a page of known models cost.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "quire/layout.h"
#include "terminal.h"

namespace quire {

namespace {

Result<std::string> describe(std::string_view name, const ModelsOptions& options) {
  const PageOptions page_options{.page_tokens = options.page_tokens, .rank_count = options.rank_count};
  QUIRE_TRY_ASSIGN(const ModelLayout layout, preset(name));
  QUIRE_TRY_ASSIGN(std::string text, layout.describe(page_options));
  std::uint64_t token_bytes = 0;
  for (const CacheGroup& group : layout.groups()) {
    QUIRE_TRY_ASSIGN(const PageGeometry page, PageGeometry::create(group, page_options));
    token_bytes += page.token_bytes();
  }
  return text + fmt::format("  10 GiB hold {}\n", counted((10ULL << 30U) / token_bytes, "token"));
}

}  // namespace

int run_models(const ModelsOptions& options) {
  std::vector<std::string> names = {options.name};
  if (options.name.empty()) {
    const std::vector<std::string_view> known = preset_names();
    names.assign(known.begin(), known.end());
  }
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Result<std::string> text = describe(names[i], options);
    if (!text) {
      fmt::print(stderr, "quire models: {}\n", text.error().message);
      return kExitUsage;
    }
    fmt::print("{}{}", i == 0 ? "" : "\n", *text);
  }
  return kExitDone;
}

}  // namespace quire
