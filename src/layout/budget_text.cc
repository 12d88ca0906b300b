// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "layout/columns.h"
#include "layout/text.h"
#include "quire/budget.h"

namespace quire {
namespace {

std::string tier_text(const TierBudget& tier, const Budget& budget, const ModelLayout& layout) {
  TextColumn name{.title = "group"};
  TextColumn pages{.title = "pages", .is_number = true};
  TextColumn page_bytes{.title = "bytes each", .is_number = true};
  TextColumn bytes{.title = "bytes", .is_number = true};
  TextColumn longest{.title = "longest request", .is_number = true};
  TextColumn tokens{.title = "room for tokens", .is_number = true};
  for (const GroupBudget& group : tier.groups) {
    name.cells.push_back(layout.groups()[group.group_index].name);
    pages.cells.push_back(with_separators(group.page_count));
    page_bytes.cells.push_back(with_separators(group.page_bytes));
    bytes.cells.push_back(readable_bytes(group.page_count * group.page_bytes));
    longest.cells.push_back(with_separators(group.request_pages));
    tokens.cells.push_back(with_separators(group.capacity_tokens));
  }
  if (tier.tier == Tier::Device && budget.slot_count > 0) {
    name.cells.emplace_back("state slots");
    pages.cells.push_back(with_separators(budget.slot_count));
    page_bytes.cells.push_back(with_separators(budget.slot_bytes));
    bytes.cells.push_back(readable_bytes(budget.slot_count * budget.slot_bytes));
    longest.cells.emplace_back("1");
    tokens.cells.emplace_back("-");
  }
  const std::string& limit = layout.groups()[tier.groups[tier.limiting_index].group_index].name;
  return std::string(to_string(tier.tier)) + ": " + readable_bytes(tier.used_bytes) + " of " +
         readable_bytes(tier.bytes) + " used, room for " + count_of(tier.capacity_tokens, "token") + " in " +
         count_of(tier.request_count, "expected request") + "\n" +
         columns_text({name, pages, page_bytes, bytes, longest, tokens}) + "  group '" + limit + "' runs out first\n";
}

}  // namespace

std::string describe(const Budget& budget, const ModelLayout& layout) {
  std::string text;
  for (const TierBudget& tier : budget.tiers) text += tier_text(tier, budget, layout);
  return text;
}

}  // namespace quire
