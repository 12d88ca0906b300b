// SPDX-License-Identifier: Apache-2.0
#include "replay_setup.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "group_pattern.h"
#include "quire/quire.h"
#include "terminal.h"

namespace quire {

namespace {

constexpr std::uint32_t kUsualPageTokens = 16;
constexpr std::uint64_t kVerifiedPageBytesMin = 4'096;
constexpr std::uint32_t kNamedPageUnitsMin = 16;
constexpr std::uint32_t kRunningMax = 4'096;
constexpr std::uint32_t kEnginesMax = 256;
constexpr std::uint32_t kLoneStepUnits = 16'384;  // computed in one step by a request that runs alone
constexpr std::uint32_t kChunkTokens = 2'048;     // computed in one step of each that run together
constexpr std::uint32_t kPageCountMax = std::numeric_limits<std::uint32_t>::max() / 2;

bool is_plain(const ModelLayout& layout) {
  return layout.groups().size() == 1 && layout.groups().front().kind == GroupKind::Full;
}

/// For messages: the option and the tier that has pages by name.
std::string_view named_tier_of(const ReplaySettings& settings) {
  return settings.disk.is_on() ? "disk" : "remote";
}

/// What one key unit stores, of models with one full group; all groups of others, by tokens.
Result<ModelLayout> layout_of(const Trace& trace, const ReplaySettings& settings) {
  std::uint64_t token_bytes = settings.token_bytes;
  if (!settings.model.empty()) {
    QUIRE_TRY_ASSIGN(ModelLayout layout, preset(settings.model));
    if (trace.unit_tokens == 1 || !is_plain(layout)) return layout;
    token_bytes = layout.token_bytes();
  }
  const std::uint64_t unit_bytes = token_bytes * trace.unit_tokens;
  if (unit_bytes > std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::InvalidArgument, fmt::format("a unit of {} with {} bytes each has more than 4 GiB",
                                                        counted(trace.unit_tokens, "token"), with_commas(token_bytes)));
  }
  return ModelLayout::opaque(static_cast<std::uint32_t>(unit_bytes));
}

Status check_page_tokens(const Trace& trace, std::uint32_t page_tokens) {
  if (page_tokens == 0) return fail(ErrorCode::InvalidArgument, "--page-tokens is 0: a page holds at least one token");
  if (page_tokens % trace.unit_tokens == 0) return {};
  // The nearest multiple, of two the smaller one, and never 0.
  const std::uint64_t below = page_tokens / trace.unit_tokens;
  const bool is_above_half = page_tokens % trace.unit_tokens > trace.unit_tokens / 2;
  const std::uint64_t nearest = std::max<std::uint64_t>(1, below + (is_above_half ? 1 : 0)) * trace.unit_tokens;
  return fail(ErrorCode::InvalidArgument,
              fmt::format("--page-tokens {} does not agree with the trace, which tells tokens apart in units of {}: "
                          "use a multiple of that, such as {}",
                          with_commas(page_tokens), with_commas(trace.unit_tokens), with_commas(nearest)));
}

Result<std::uint32_t> host_pages_of(const HostTierSettings& host, std::uint64_t page_bytes) {
  if (!host.is_on()) return 0U;
  const std::uint64_t page_count = host.capacity_bytes / page_bytes;
  if (page_count == 0) {
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--host-bytes {} is less than one page of {} bytes; use at least {}",
                            with_commas(host.capacity_bytes), with_commas(page_bytes), with_commas(page_bytes)));
  }
  if (page_count > kPageCountMax) {
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--host-bytes {} makes {} of {} bytes; the most is {}: use a smaller --host-bytes or a "
                            "larger --page-tokens",
                            with_commas(host.capacity_bytes), counted(page_count, "page"), with_commas(page_bytes),
                            with_commas(kPageCountMax)));
  }
  return static_cast<std::uint32_t>(page_count);
}

Status check_page_count(std::uint64_t page_count, const ReplayConfig& config) {
  if (page_count > 0 && page_count <= kPageCountMax) return {};
  const std::string option = config.capacity_bytes != 0
                                 ? fmt::format("--capacity-bytes {}", with_commas(config.capacity_bytes))
                                 : fmt::format("--capacity-tokens {}", with_commas(config.capacity_tokens));
  if (page_count == 0) {
    return fail(ErrorCode::InvalidArgument,
                fmt::format("{} is less than one page of {}{}", option, counted(config.page_tokens, "token"),
                            config.capacity_bytes != 0 ? "" : "; use at least " + with_commas(config.page_tokens)));
  }
  return fail(ErrorCode::InvalidArgument,
              fmt::format("{} makes {} of {}; the most is {}: use a smaller {} or a larger --page-tokens", option,
                          counted(page_count, "page"), counted(config.page_tokens, "token"), with_commas(kPageCountMax),
                          option.substr(0, option.find(' '))));
}

Status check_settings(const Trace& trace, const ReplaySettings& settings) {
  if (settings.running_max == 0 || settings.running_max > kRunningMax) {
    return fail(ErrorCode::InvalidArgument, fmt::format("--running-max is {}: use 1 to {}",
                                                        with_commas(settings.running_max), with_commas(kRunningMax)));
  }
  if (settings.engine_count == 0 || settings.engine_count > kEnginesMax) {
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--engines is {}: use 1 to {}", with_commas(settings.engine_count), kEnginesMax));
  }
  constexpr std::size_t kKeySpacesMax = std::size_t{1} << 20U;
  if (trace.key_spaces.size() > kKeySpacesMax) {
    return fail(ErrorCode::InvalidArgument,
                fmt::format("the trace has {}; the most is {}", counted(trace.key_spaces.size(), "key space"),
                            with_commas(kKeySpacesMax)));
  }
  return {};
}

/// One full group.
Status size_plain(Setup& setup, const Trace& trace, const ReplayConfig& config, const ReplaySettings& settings) {
  QUIRE_TRY(check_page_tokens(trace, config.page_tokens));
  setup.unit_tokens = trace.unit_tokens;
  setup.page_units = config.page_tokens / trace.unit_tokens;
  setup.page_bytes = setup.layout.token_bytes() * setup.page_units;
  const std::uint64_t page_count = config.capacity_bytes != 0 ? config.capacity_bytes / setup.page_bytes
                                                              : config.capacity_tokens / config.page_tokens;
  QUIRE_TRY(check_page_count(page_count, config));
  QUIRE_TRY(check_settings(trace, settings));
  setup.page_count = static_cast<std::uint32_t>(page_count);
  setup.chunk_units = settings.running_max == 1 ? kLoneStepUnits : std::max(1U, kChunkTokens / trace.unit_tokens);
  QUIRE_TRY_ASSIGN(setup.host_page_count, host_pages_of(settings.host, setup.page_bytes));
  if (settings.has_named_tier() && setup.page_units < kNamedPageUnitsMin) {
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--page-tokens {} with --{}: a {} tier needs pages of {} or more{}: use --page-tokens {}",
                            with_commas(config.page_tokens), named_tier_of(settings), named_tier_of(settings),
                            counted(kNamedPageUnitsMin, trace.unit_tokens == 1 ? "token" : "unit"),
                            trace.unit_tokens == 1 ? "" : fmt::format(" of {} tokens", with_commas(trace.unit_tokens)),
                            std::uint64_t{kNamedPageUnitsMin} * trace.unit_tokens));
  }
  if (settings.bytes == BytesMode::Verify && setup.page_bytes < kVerifiedPageBytesMin) {
    const std::uint64_t unit_bytes = setup.layout.token_bytes();
    const std::uint64_t units = (kVerifiedPageBytesMin + unit_bytes - 1) / unit_bytes;
    return fail(
        ErrorCode::InvalidArgument,
        fmt::format("pages of {} have {} bytes, and verifying needs 4,096 or more: use --page-tokens {}{}",
                    counted(config.page_tokens, "token"), with_commas(setup.page_bytes), units * trace.unit_tokens,
                    settings.model.empty() ? ", or a --model, whose tokens are larger" : ""));
  }
  return {};
}

std::uint64_t history_pages(const ModelLayout& layout, const TierBudget& tier) {
  std::uint64_t pages = std::numeric_limits<std::uint64_t>::max();
  for (const GroupBudget& group : tier.groups) {
    if (keeps_everything(layout.groups()[group.group_index])) pages = std::min(pages, group.page_count);
  }
  return pages;
}

/// The fewest bytes that give the groups that keep everything so many pages.
Result<Budget> budget_for_pages(const ModelLayout& layout, BudgetRequest request, std::uint64_t page_count) {
  constexpr std::uint64_t kBytesMax = std::uint64_t{1} << 62U;
  const auto is_enough = [&](std::uint64_t bytes) {
    request.device_bytes = bytes;
    const Result<Budget> budget = solve_budget(layout, request);
    return budget && history_pages(layout, budget->tiers.front()) >= page_count;
  };
  std::uint64_t enough = std::max<std::uint64_t>(layout.token_bytes(), 1) * request.page.page_tokens * page_count;
  std::uint64_t too_few = 0;
  while (enough < kBytesMax && !is_enough(enough)) too_few = std::exchange(enough, 2 * enough);
  while (enough - too_few > 1) {
    const std::uint64_t middle = too_few + ((enough - too_few) / 2);
    (is_enough(middle) ? enough : too_few) = middle;
  }
  request.device_bytes = enough;
  return solve_budget(layout, request);
}

std::string kind_text(const CacheGroup& group) {
  const std::string name(to_string(group.kind));
  if (group.kind == GroupKind::Window) return fmt::format("{} {}", name, with_commas(group.window_tokens));
  if (group.kind == GroupKind::Compressed) return fmt::format("{} {}", name, with_commas(group.tokens_per_entry));
  return name;
}

std::uint64_t path_tokens(const Trace& trace, const TraceRequest& request) {
  return request.prompt_tokens + (std::uint64_t{request.output_units} * trace.unit_tokens);
}

/// Requests as long as those of the trace: as many of the short ones as of the long ones.
std::vector<ExpectedRequest> mix_of(const Trace& trace) {
  constexpr std::size_t kMixCount = 16;
  std::vector<std::uint64_t> lengths;
  lengths.reserve(trace.requests.size());
  for (const TraceRequest& request : trace.requests) lengths.push_back(path_tokens(trace, request));
  std::ranges::sort(lengths);
  std::vector<ExpectedRequest> mix;
  for (std::size_t i = 0; i < kMixCount; ++i) {
    const std::uint64_t length = lengths[((2 * i) + 1) * lengths.size() / (2 * kMixCount)];
    mix.push_back({.context_tokens = static_cast<std::uint32_t>(std::max<std::uint64_t>(length, 1))});
  }
  return mix;
}

/// Several groups, as the budget shares bytes out among them.
Status size_groups(Setup& setup, const Trace& trace, const ReplayConfig& config, const ReplaySettings& settings) {
  if (config.page_tokens == 0) {
    return fail(ErrorCode::InvalidArgument, "--page-tokens is 0: a page holds at least one token");
  }
  QUIRE_TRY(check_settings(trace, settings));
  setup.unit_tokens = 1;
  setup.page_units = config.page_tokens;
  setup.chunk_units = kChunkTokens;
  std::uint64_t longest = 1;
  for (const TraceRequest& request : trace.requests) longest = std::max(longest, path_tokens(trace, request));
  if (longest > std::numeric_limits<std::uint32_t>::max()) {
    return fail(ErrorCode::InvalidArgument, fmt::format("a request of the trace has {} tokens", with_commas(longest)));
  }
  setup.context_tokens_max = static_cast<std::uint32_t>(longest);
  const PageOptions page{.page_tokens = config.page_tokens};
  const BudgetRequest request{
      .page = page,
      .device_bytes = config.capacity_bytes,
      .host_bytes = settings.host.capacity_bytes,
      .context_tokens_max = setup.context_tokens_max,
      .sequence_count_max = settings.running_max,
      .in_flight_tokens = std::min(setup.chunk_units, setup.context_tokens_max),
      .mix = settings.mix == RequestMix::Trace ? mix_of(trace) : std::vector<ExpectedRequest>{}};
  const std::uint64_t page_count = config.capacity_tokens / config.page_tokens;
  if (config.capacity_bytes == 0) {
    QUIRE_TRY(check_page_count(page_count, config));
    if (page_count * config.page_tokens < longest) {
      const std::uint64_t least = (longest + config.page_tokens - 1) / config.page_tokens * config.page_tokens;
      return fail(ErrorCode::InvalidArgument,
                  fmt::format("--capacity-tokens {}: the longest request of the trace has {} tokens; use at least {}",
                              with_commas(config.capacity_tokens), with_commas(longest), with_commas(least)));
    }
  }
  QUIRE_TRY_ASSIGN(const Budget budget, config.capacity_bytes != 0
                                            ? solve_budget(setup.layout, request)
                                            : budget_for_pages(setup.layout, request, page_count));
  QUIRE_TRY(check_page_count(history_pages(setup.layout, budget.tiers.front()), config));
  setup.page_count = static_cast<std::uint32_t>(history_pages(setup.layout, budget.tiers.front()));
  QUIRE_TRY_ASSIGN(const StateSlots slots, StateSlots::create(setup.layout, page));
  setup.device_bytes = budget.slot_count * budget.slot_bytes;
  for (const CacheGroup& group : setup.layout.groups()) {
    setup.groups.push_back({.name = group.name, .kind = kind_text(group), .stats = {.slot_count = 0}});
  }
  for (const GroupBudget& group : budget.tiers.front().groups) {
    GroupOutcome& outcome = setup.groups[group.group_index];
    const bool is_history = keeps_everything(setup.layout.groups()[group.group_index]);
    outcome.page_bytes = group.page_bytes;
    if (is_history) setup.page_bytes += group.page_bytes;
    outcome.stats.page_count = is_history ? setup.page_count : static_cast<std::uint32_t>(group.page_count);
    setup.device_bytes += (std::uint64_t{outcome.stats.page_count} + 1) * group.page_bytes;
  }
  for (const StatePart& part : slots.parts()) {
    setup.groups[part.group_index].slot_bytes = part.geometry.page_bytes();
    setup.groups[part.group_index].stats.slot_count = budget.slot_count;
  }
  if (!settings.host.is_on()) return {};
  const TierBudget& host = budget.tiers[1];
  const std::uint64_t host_pages = std::min<std::uint64_t>(history_pages(setup.layout, host), kPageCountMax);
  setup.host_page_count = static_cast<std::uint32_t>(host_pages);
  setup.host_group_page_counts.resize(setup.layout.groups().size());
  for (const GroupBudget& group : host.groups) {
    const bool is_history = keeps_everything(setup.layout.groups()[group.group_index]);
    const std::uint64_t pages = is_history ? host_pages : std::min<std::uint64_t>(group.page_count, kPageCountMax);
    setup.host_group_page_counts[group.group_index] = static_cast<std::uint32_t>(pages);
    setup.host_bytes += pages * group.page_bytes;
  }
  if (settings.has_named_tier() && config.page_tokens < kNamedPageUnitsMin) {
    return fail(ErrorCode::InvalidArgument,
                fmt::format("--page-tokens {} with --{}: a {} tier needs pages of {} or more: use --page-tokens {}",
                            with_commas(config.page_tokens), named_tier_of(settings), named_tier_of(settings),
                            counted(kNamedPageUnitsMin, "token"), kNamedPageUnitsMin));
  }
  CacheConfig with_host{.layout = setup.layout, .page = page};
  with_host.device.page_count = setup.page_count;
  with_host.host.page_count = setup.host_page_count;
  with_host.host.group_page_counts = setup.host_group_page_counts;
  return with_host.validate();
}

}  // namespace

Result<std::uint32_t> usual_page_tokens(const Trace& trace, const std::string& model) {
  QUIRE_TRY_ASSIGN(const bool has_groups, has_several_groups(model));
  if (!has_groups) return trace.unit_tokens == 1 ? kUsualPageTokens : trace.unit_tokens;
  QUIRE_TRY_ASSIGN(const ModelLayout layout, preset(model));
  const std::uint32_t multiple = layout.page_multiple_tokens();
  return (kUsualPageTokens + multiple - 1) / multiple * multiple;
}

Result<bool> has_several_groups(const std::string& model) {
  if (model.empty()) return false;
  QUIRE_TRY_ASSIGN(const ModelLayout layout, preset(model));
  return !is_plain(layout);
}

Result<Setup> setup_of(const Trace& trace, const ReplayConfig& config, const ReplaySettings& settings) {
  QUIRE_TRY(make_policy(config.policy));
  QUIRE_TRY_ASSIGN(ModelLayout layout, layout_of(trace, settings));
  Setup setup{.layout = std::move(layout)};
  QUIRE_TRY(is_plain(setup.layout) ? size_plain(setup, trace, config, settings)
                                   : size_groups(setup, trace, config, settings));
  return setup;
}

}  // namespace quire
