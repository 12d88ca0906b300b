// SPDX-License-Identifier: Apache-2.0
#include "quire/budget.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "layout/text.h"
#include "quire/state_slots.h"

namespace quire {
namespace {

__extension__ using Wide = unsigned __int128;  // products of two numbers of 64 bits

// Ids of pages have 32 bits, two of which are taken: "none", and the device's null page.
constexpr std::uint64_t kPageCountMax = PageId::kNoneValue - 1;

std::uint64_t divided_up(std::uint64_t number, std::uint64_t divisor) {
  return (number / divisor) + (number % divisor == 0 ? 0 : 1);
}

// The interval in force, of a group that has one.
std::uint32_t interval_of(const CacheGroup& group, const BudgetRequest& request) {
  return request.snapshot_interval_tokens != 0 ? request.snapshot_interval_tokens : group.retention.interval_tokens;
}

// How pages_of_request() comes to its result, and what the pages are called.
std::string arithmetic(const CacheGroup& group, const BudgetRequest& request) {
  const std::string page_tokens = with_separators(request.page.page_tokens);
  const std::string context = with_separators(request.context_tokens_max);
  const std::uint64_t pages = pages_of_request(group, request, request.context_tokens_max);
  if (has_slot(group)) {
    if (group.retention.rule != RetentionRule::Every) return count_of(pages, "snapshot");
    return context + " tokens / " + with_separators(interval_of(group, request)) +
           " rounded down + 1 = " + count_of(pages, "snapshot");
  }
  if (group.kind != GroupKind::Window || pages == divided_up(request.context_tokens_max, request.page.page_tokens)) {
    return context + " tokens / " + page_tokens + " rounded up = " + count_of(pages, "page");
  }
  std::string text = "(" + with_separators(group.window_tokens - 1) + " + " +
                     with_separators(request.in_flight_tokens) + " in flight + " +
                     with_separators(request.rewind_tokens) + " to rewind) / " + page_tokens + " rounded up + 1";
  if (group.sink_tokens > 0)
    text += " + " + with_separators(group.sink_tokens) + " of the sink / " + page_tokens + " rounded up";
  return text + " = " + count_of(pages, "page");
}

/// What one tier has to share out, and how the groups want it.
struct Demand {
  std::uint64_t page_bytes = 0;
  std::uint64_t page_count_min = 0;
  std::uint64_t step_pages = 0;  // that are there once, for the tokens of a step, whatever the mix; at most the minimum
  std::uint64_t mix_pages = 0;   // of the whole mix, each kind as often as its weight

  // Of so many pages, those that the mix has.
  [[nodiscard]] std::uint64_t of_mix(std::uint64_t count) const { return count - std::min(count, step_pages); }
};

// Bytes of so many pages of each group, or nothing when that does not fit in 64 bits.
std::optional<std::uint64_t> bytes_of(const std::vector<Demand>& demands, const std::vector<std::uint64_t>& counts) {
  std::optional<std::uint64_t> sum = 0;
  for (std::size_t i = 0; i < demands.size() && sum; ++i) {
    const auto bytes = checked_multiply(demands[i].page_bytes, counts[i]);
    sum = bytes ? checked_add(*sum, *bytes) : std::nullopt;
  }
  return sum;
}

// The group whose pages hold the least of the mix; of equals, the first.
std::size_t scarcest(const std::vector<Demand>& demands, const std::vector<std::uint64_t>& counts) {
  std::size_t least = 0;
  for (std::size_t i = 1; i < demands.size(); ++i) {
    const Wide here = Wide{demands[i].of_mix(counts[i])} * demands[least].mix_pages;
    if (here < Wide{demands[least].of_mix(counts[least])} * demands[i].mix_pages) least = i;
  }
  return least;
}

// Pages go one by one to the scarcest group, from the minimum on, until the next does not fit. Whenever all groups have
// at least the share k / top of the mix, each has the greater of its minimum and that share, rounded up, beside the
// pages of a step: so the last such moment that fits is looked for by halving, and only the few pages after it are
// given one by one.
std::vector<std::uint64_t> share_out(const std::vector<Demand>& demands, std::uint64_t bytes) {
  const std::uint64_t top = std::ranges::max(demands, {}, &Demand::mix_pages).mix_pages;
  const auto counts_at = [&](std::uint64_t k) {
    std::vector<std::uint64_t> counts;
    for (const Demand& demand : demands) {
      const Wide share = ((Wide{k} * demand.mix_pages) + (top - 1)) / top;
      const std::uint64_t wanted = std::min(demand.step_pages + static_cast<std::uint64_t>(share), kPageCountMax);
      counts.push_back(std::max(demand.page_count_min, wanted));
    }
    return counts;
  };
  const auto fits = [&](const std::vector<std::uint64_t>& counts) {
    const auto used = bytes_of(demands, counts);
    return used && *used <= bytes;
  };
  std::uint64_t low = 0;
  std::uint64_t high = kPageCountMax + 1;  // not reached: that many pages have no ids
  while (high - low > 1) {
    const std::uint64_t middle = low + ((high - low) / 2);
    (fits(counts_at(middle)) ? low : high) = middle;
  }
  std::vector<std::uint64_t> counts = counts_at(low);
  for (;;) {
    const std::size_t next = scarcest(demands, counts);
    if (counts[next] >= kPageCountMax) return counts;
    ++counts[next];
    if (fits(counts)) continue;
    --counts[next];
    return counts;
  }
}

/// Solves one layout and request, tier by tier.
class Solver {
 public:
  Solver(const ModelLayout& layout, const BudgetRequest& request)
      : layout_(layout), request_(request), where_("budget of layout '" + layout.name() + "'") {
    // No sequence has more than its context in a step.
    lone_.in_flight_tokens =
        std::max(request.in_flight_tokens, std::min(request.step_tokens, request.context_tokens_max));
  }

  Result<Budget> solve() {
    QUIRE_TRY(check_request());
    QUIRE_TRY_ASSIGN(const StateSlots slots, StateSlots::create(layout_, request_.page));
    budget_.slot_bytes = slots.slot_bytes();
    budget_.slot_count = slots.slot_bytes() == 0 ? 0 : request_.sequence_count_max;
    for (std::uint32_t index = 0; index < layout_.groups().size(); ++index) {
      const CacheGroup& group = layout_.groups()[index];
      if (!has_pages(group)) continue;
      QUIRE_TRY_ASSIGN(const PageGeometry page, PageGeometry::create(group, request_.page));
      groups_.push_back({.group_index = index,
                         .page_bytes = page.page_bytes(),
                         .request_pages = pages_of_request(group, lone_, request_.context_tokens_max)});
    }
    if (groups_.empty()) return fail(ErrorCode::InvalidArgument, where_ + ": no group has pages");
    QUIRE_TRY(add_device());
    QUIRE_TRY(add_lower(Tier::Host, request_.host_bytes));
    QUIRE_TRY(add_lower(Tier::Disk, request_.disk_bytes));
    return std::move(budget_);
  }

 private:
  using Bytes = std::optional<std::uint64_t>;

  [[nodiscard]] tl::unexpected<Error> bad(const std::string& what) const {
    return fail(ErrorCode::InvalidArgument, where_ + ": " + what);
  }

  Status check_request() {
    if (request_.page.page_tokens == 0) return bad("page_tokens is 0: use 1 or more, 16 is usual");
    if (request_.context_tokens_max == 0) return bad("context_tokens_max is 0: give the tokens of the longest request");
    if (request_.sequence_count_max == 0) return bad("sequence_count_max is 0: no request could run");
    if (mix_.empty()) mix_ = {{.context_tokens = request_.context_tokens_max}};
    Bytes tokens = 0;
    for (const ExpectedRequest& expected : mix_) {
      if (expected.context_tokens == 0 || expected.context_tokens > request_.context_tokens_max) {
        return bad("the mix has requests of " + count_of(expected.context_tokens, "token") +
                   ": use 1 to context_tokens_max, which is " + with_separators(request_.context_tokens_max));
      }
      if (expected.weight == 0) {
        return bad("the mix has requests of " + count_of(expected.context_tokens, "token") +
                   " with weight 0: leave them out");
      }
      const auto more = checked_multiply(expected.context_tokens, expected.weight);
      tokens = more && tokens ? checked_add(*tokens, *more) : std::nullopt;
      weight_ += expected.weight;
    }
    if (!tokens || *tokens > UINT64_MAX / 8) {
      return bad("the mix has more tokens than 64 bits can count: use smaller weights");
    }
    mix_tokens_ = *tokens;
    for (const CacheGroup& group : layout_.groups()) {
      const bool has_interval = group.retention.rule == RetentionRule::Every;
      if (!has_interval || request_.snapshot_interval_tokens % boundary_multiple(group) == 0) continue;
      return bad("snapshot_interval_tokens is " + with_separators(request_.snapshot_interval_tokens) + ", but group '" +
                 group.name + "' resumes at multiples of " + with_separators(boundary_multiple(group)));
    }
    return {};
  }

  // How many pages of each group the mix wants; in tiers below the device without slack for steps.
  Result<std::vector<Demand>> demands_of(const BudgetRequest& request) const {
    std::vector<Demand> demands;
    for (const GroupBudget& group : groups_) {
      Bytes pages = 0;
      for (const ExpectedRequest& expected : mix_) {
        const auto more = checked_multiply(
            expected.weight, pages_of_request(layout_.groups()[group.group_index], request, expected.context_tokens));
        pages = more && pages ? checked_add(*pages, *more) : std::nullopt;
      }
      if (!pages) return bad("the mix needs more pages than 64 bits can count: use smaller weights");
      demands.push_back({.page_bytes = group.page_bytes, .mix_pages = *pages});
    }
    return demands;
  }

  Status add_device() {
    QUIRE_TRY_ASSIGN(std::vector<Demand> demands, demands_of(request_));
    Bytes fixed = checked_multiply(budget_.slot_bytes, budget_.slot_count);
    Bytes needed = fixed;
    std::string sum;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      const GroupBudget& group = groups_[i];
      const CacheGroup& declared = layout_.groups()[group.group_index];
      demands[i].page_count_min = group.request_pages;
      if (declared.kind == GroupKind::Window && !has_slot(declared)) {
        const std::uint64_t step_tokens = std::min(request_.step_tokens, request_.context_tokens_max);
        demands[i].step_pages = divided_up(step_tokens, request_.page.page_tokens);
      }
      fixed = fixed ? checked_add(*fixed, group.page_bytes) : std::nullopt;  // the null page
      const Bytes bytes = checked_multiply(group.page_bytes, group.request_pages + 1);
      needed = bytes && needed ? checked_add(*needed, *bytes) : std::nullopt;
      sum += "\n  group '" + declared.name + "': " + arithmetic(declared, lone_) + "; with the null page " +
             with_separators(group.request_pages + 1) + " x " + with_separators(group.page_bytes) +
             " bytes = " + bytes_text(bytes);
    }
    if (budget_.slot_count > 0) {
      sum += "\n  state: " + count_of(budget_.slot_count, "slot") + " x " + with_separators(budget_.slot_bytes) +
             " bytes = " + bytes_text(checked_multiply(budget_.slot_bytes, budget_.slot_count));
    }
    const bool has_ids =
        std::ranges::all_of(groups_, [](const GroupBudget& group) { return group.request_pages <= kPageCountMax; });
    if (!needed || !fixed || *needed > request_.device_bytes || !has_ids) {
      return bad("one request of " + count_of(request_.context_tokens_max, "token") + " does not fit in the device's " +
                 with_separators(request_.device_bytes) + " bytes: it needs " + bytes_text(needed) + sum +
                 "\ngive more bytes, a shorter context, " + (request_.step_tokens > 0 ? "smaller steps, " : "") +
                 "fewer sequences or rarer snapshots");
    }
    add_tier({.tier = Tier::Device, .bytes = request_.device_bytes, .groups = groups_}, demands, *fixed);
    return {};
  }

  Status add_lower(Tier tier, std::uint64_t bytes) {
    if (bytes == 0) return {};
    BudgetRequest at_rest = request_;
    at_rest.in_flight_tokens = 0;
    at_rest.rewind_tokens = 0;
    QUIRE_TRY_ASSIGN(std::vector<Demand> demands, demands_of(at_rest));
    Bytes needed = 0;
    std::string sum;
    for (std::size_t i = 0; i < groups_.size(); ++i) {
      demands[i].page_count_min = 1;
      needed = needed ? checked_add(*needed, groups_[i].page_bytes) : std::nullopt;
      sum += (i == 0 ? "" : " + ") + with_separators(groups_[i].page_bytes);
    }
    if (!needed || *needed > bytes) {
      return bad("the " + std::string(to_string(tier)) + " tier's " + with_separators(bytes) +
                 " bytes do not hold a page of each group: " + sum + " = " + bytes_text(needed) +
                 ": give more bytes, or leave it out");
    }
    TierBudget lower{.tier = tier, .bytes = bytes, .groups = groups_};
    for (GroupBudget& group : lower.groups) {
      group.request_pages = pages_of_request(layout_.groups()[group.group_index], at_rest, request_.context_tokens_max);
    }
    add_tier(std::move(lower), demands, 0);
    return {};
  }

  // Shares out what is left of the tier's bytes behind the fixed ones.
  void add_tier(TierBudget tier, const std::vector<Demand>& demands, std::uint64_t fixed_bytes) {
    const std::vector<std::uint64_t> counts = share_out(demands, tier.bytes - fixed_bytes);
    tier.used_bytes = fixed_bytes + bytes_of(demands, counts).value_or(0);  // fits: it was shared out
    tier.limiting_index = static_cast<std::uint32_t>(scarcest(demands, counts));
    for (std::size_t i = 0; i < counts.size(); ++i) {
      tier.groups[i].page_count = counts[i];
      tier.groups[i].capacity_tokens =
          static_cast<std::uint64_t>(Wide{demands[i].of_mix(counts[i])} * mix_tokens_ / demands[i].mix_pages);
    }
    const std::size_t least = tier.limiting_index;
    tier.capacity_tokens = tier.groups[least].capacity_tokens;
    tier.request_count =
        static_cast<std::uint64_t>(Wide{demands[least].of_mix(counts[least])} * weight_ / demands[least].mix_pages);
    budget_.tiers.push_back(std::move(tier));
  }

  static std::string bytes_text(const Bytes& bytes) {
    return bytes ? with_separators(*bytes) : "more than 64 bits can count";
  }

  const ModelLayout& layout_;
  const BudgetRequest& request_;
  BudgetRequest lone_ = request_;  // as one sequence alone needs it, whose step is the largest
  std::string where_;
  std::vector<ExpectedRequest> mix_ = request_.mix;
  std::uint64_t weight_ = 0;
  std::uint64_t mix_tokens_ = 0;
  std::vector<GroupBudget> groups_;
  Budget budget_;
};

}  // namespace

std::uint64_t pages_of_request(const CacheGroup& group, const BudgetRequest& request, std::uint64_t context_tokens) {
  const std::uint64_t page_tokens = request.page.page_tokens;
  if (has_slot(group)) {
    if (!has_pages(group)) return 0;
    if (group.retention.rule != RetentionRule::Every) return 1;
    return (context_tokens / interval_of(group, request)) + 1;
  }
  const std::uint64_t all = divided_up(context_tokens, page_tokens);
  if (group.kind != GroupKind::Window) return all;
  const std::uint64_t tokens =
      std::uint64_t{group.window_tokens} - 1 + request.in_flight_tokens + request.rewind_tokens;
  return std::min(all, divided_up(tokens, page_tokens) + 1 + divided_up(group.sink_tokens, page_tokens));
}

Result<Budget> solve_budget(const ModelLayout& layout, const BudgetRequest& request) {
  return Solver(layout, request).solve();
}

}  // namespace quire
