// SPDX-License-Identifier: Apache-2.0
#include "sweep_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "amounts.h"
#include "host_tier.h"
#include "table.h"

namespace quire {

namespace {

template <typename T>
void add_once(std::vector<T>& list, const T& value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

/// The three lists that a sweep's configurations are made of, each in the order asked for.
struct Axes {
  explicit Axes(const SweepRequest& request) : capacities(request.bound_capacities) {
    if (request.settings.running_max > 1) bound_name = "Belady, one at a time";
    for (const ReplayConfig& config : request.configs) {
      add_once(policies, config.policy);
      add_once(page_sizes, config.page_tokens);
      add_once(capacities, config.capacity_tokens);
    }
  }
  std::vector<std::string> policies;
  std::vector<std::uint32_t> page_sizes;
  std::vector<std::uint64_t> capacities;
  std::string bound_name = "Belady bound (offline)";  // a bound for requests that run one after the other
};

const ReplayOutcome* find_replay(const SweepOutcome& outcome, const ReplayConfig& config) {
  const auto found = std::ranges::find_if(outcome.replays, [&](const ReplayOutcome& replay) {
    return replay.config.policy == config.policy && replay.config.page_tokens == config.page_tokens &&
           replay.config.capacity_tokens == config.capacity_tokens;
  });
  return found == outcome.replays.end() ? nullptr : &*found;
}

const BoundOutcome* find_bound(const SweepOutcome& outcome, std::uint64_t capacity_tokens) {
  const auto found = std::ranges::find(outcome.bounds, capacity_tokens, &BoundOutcome::capacity_tokens);
  return found == outcome.bounds.end() ? nullptr : &*found;
}

std::vector<std::string> capacity_names(std::span<const std::uint64_t> capacities) {
  constexpr std::uint64_t kShortFrom = 100'000;
  std::vector<std::string> names;
  bool has_twins = false;
  for (const std::uint64_t capacity : capacities) {
    // Small ones are written in full unless their short form is exact.
    const std::string text = amount_text(capacity);
    const bool is_short = capacity >= kShortFrom || parse_amount(text) == capacity;
    names.push_back(is_short ? text : with_commas(capacity));
    has_twins = has_twins || std::ranges::count(names, names.back()) > 1;
  }
  if (!has_twins) return names;
  names.clear();
  for (const std::uint64_t capacity : capacities) names.push_back(with_commas(capacity));
  return names;
}

std::string page_size_title(const SweepOutcome& outcome, std::uint32_t page_tokens) {
  const auto found = std::ranges::find_if(
      outcome.replays, [&](const ReplayOutcome& replay) { return replay.config.page_tokens == page_tokens; });
  if (found == outcome.replays.end()) return fmt::format("pages of {}", counted(page_tokens, "token"));
  return fmt::format("pages of {} ({})", counted(page_tokens, "token"), bytes_text(found->page_bytes));
}

Cell rate_cell(const ReplayOutcome* replay) {
  if (replay == nullptr) return {"-"};
  if (replay->corruption) return {"damaged", Ink::Red};
  return {rate_text(replay->hit_rate())};
}

/// The hit rates of one page size, one line per policy, with the best of each column marked.
void add_rates(Table& table, const SweepOutcome& outcome, const Axes& axes, std::uint32_t page_tokens) {
  std::vector<std::vector<Cell>> lines(axes.policies.size());
  for (std::size_t i = 0; i < lines.size(); ++i) lines[i].push_back({axes.policies[i]});
  for (const std::uint64_t capacity : axes.capacities) {
    std::vector<std::optional<std::uint64_t>> hits;
    for (const std::string& policy : axes.policies) {
      const ReplayOutcome* const replay =
          find_replay(outcome, {.policy = policy, .page_tokens = page_tokens, .capacity_tokens = capacity});
      const bool is_whole = replay != nullptr && !replay->corruption;
      hits.push_back(is_whole ? std::optional(replay->hit_tokens) : std::nullopt);
      lines[hits.size() - 1].push_back(rate_cell(replay));
    }
    const auto [worst, best] = std::ranges::minmax(hits);
    for (std::size_t i = 0; i < hits.size(); ++i) {
      if (hits[i] == best && worst != best) lines[i].back().ink = Ink::Green;
    }
  }
  for (std::vector<Cell>& line : lines) table.add(std::move(line));
}

Table rates_table(const SweepOutcome& outcome, const Axes& axes) {
  Table table;
  std::vector<Cell> names = {{"capacity, tokens", Ink::Bold}};
  for (const std::string& name : capacity_names(axes.capacities)) names.push_back({name, Ink::Bold});
  table.add(std::move(names));
  // About the same for all page sizes.
  if (!outcome.replays.empty()) {
    const ReplayOutcome& any = outcome.replays.front();
    std::vector<Cell> bytes = {{"  bytes", Ink::Dim}};
    for (const std::uint64_t capacity : axes.capacities) {
      const auto with_groups = std::ranges::find_if(outcome.replays, [&](const ReplayOutcome& replay) {
        return !replay.groups.empty() && replay.config.capacity_tokens == capacity;
      });
      const ReplayPool pool{.page_count = static_cast<std::uint32_t>(capacity / any.config.page_tokens),
                            .page_bytes = any.page_bytes};
      std::string text = bytes_text(with_groups != outcome.replays.end() ? with_groups->device_bytes : pool.bytes());
      std::erase(text, ' ');
      bytes.push_back({std::move(text), Ink::Dim});
    }
    table.add(std::move(bytes));
  }
  for (const std::uint32_t page_tokens : axes.page_sizes) {
    if (axes.page_sizes.size() > 1) table.add({{page_size_title(outcome, page_tokens), Ink::Bold}});
    add_rates(table, outcome, axes, page_tokens);
  }
  std::vector<Cell> bounds = {{axes.bound_name, Ink::Dim}};
  for (const std::uint64_t capacity : axes.capacities) {
    const BoundOutcome* const bound = find_bound(outcome, capacity);
    bounds.push_back({bound != nullptr ? rate_text(bound->hit_rate()) : "-", Ink::Dim});
  }
  table.add(std::move(bounds));
  return table;
}

/// One capacity: more than the rate of each policy.
Table single_table(const SweepOutcome& outcome, const Axes& axes) {
  Table table;
  std::vector<Cell> names;
  for (const char* name : {"", "hit rate", "hit tokens", "copied", "requests hit", "pages cached", "evicted"}) {
    names.push_back({name, Ink::Bold});
  }
  table.add(std::move(names));
  const std::uint64_t capacity = axes.capacities.front();
  for (const std::uint32_t page_tokens : axes.page_sizes) {
    if (axes.page_sizes.size() > 1) table.add({{page_size_title(outcome, page_tokens), Ink::Bold}});
    std::uint64_t best = 0;
    std::uint64_t worst = UINT64_MAX;
    for (const ReplayOutcome& replay : outcome.replays) {
      if (replay.config.page_tokens != page_tokens || replay.corruption) continue;
      best = std::max(best, replay.hit_tokens);
      worst = std::min(worst, replay.hit_tokens);
    }
    for (const std::string& policy : axes.policies) {
      const ReplayOutcome* const replay =
          find_replay(outcome, {.policy = policy, .page_tokens = page_tokens, .capacity_tokens = capacity});
      if (replay == nullptr || replay->corruption) {
        table.add({{policy}, rate_cell(replay)});
        continue;
      }
      const Ink ink = replay->hit_tokens == best && best != worst ? Ink::Green : Ink::Plain;
      table.add({{policy},
                 {rate_text(replay->hit_rate()), ink},
                 {with_commas(replay->hit_tokens)},
                 {with_commas(replay->partial_hit_tokens)},
                 {with_commas(replay->hit_request_count)},
                 {with_commas(replay->sealed_pages)},
                 {with_commas(replay->evicted_pages)}});
    }
  }
  if (const BoundOutcome* const bound = find_bound(outcome, capacity)) {
    table.add({{axes.bound_name, Ink::Dim},
               {rate_text(bound->hit_rate()), Ink::Dim},
               {with_commas(bound->hit_tokens), Ink::Dim}});
  }
  return table;
}

/// "lru, pages of 16 tokens, capacity 100,000 tokens"
std::string name_of(const ReplayConfig& config) {
  return fmt::format("{}, pages of {}, capacity {}", config.policy, counted(config.page_tokens, "token"),
                     counted(config.capacity_tokens, "token"));
}

std::string rate_text_of(std::uint64_t tokens, std::uint64_t prompt_tokens) {
  return rate_text(prompt_tokens == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(prompt_tokens));
}

/// The reasons that any of the replays has, in their order.
std::vector<std::size_t> reasons_in(const SweepOutcome& outcome) {
  std::vector<std::size_t> reasons;
  for (std::size_t i = 0; i < kMissReasonCount; ++i) {
    const bool is_there = std::ranges::any_of(outcome.replays, [i](const ReplayOutcome& replay) {
      return replay.host && replay.host->misses[i].token_count > 0;
    });
    if (is_there) reasons.push_back(i);
  }
  return reasons;
}

std::uint64_t device_hit_tokens(const ReplayOutcome& replay) {
  return replay.hit_tokens - replay.host->hit_tokens - (replay.disk ? replay.disk->hit_tokens : 0) -
         (replay.remote ? replay.remote->hit_tokens : 0);
}

EngineOutcome sum_of_engines(const ReplayOutcome& replay) {
  EngineOutcome sum;
  for (const EngineOutcome& engine : replay.engines) sum += engine;
  return sum;
}

std::string_view reason_name(std::size_t index) {
  return to_string(static_cast<MissReason>(index));
}

std::string or_dash(std::uint64_t number) {
  return number == 0 ? "-" : with_commas(number);
}

void add_group_sizes(Table& table, const ReplayOutcome& replay) {
  for (const GroupOutcome& group : replay.groups) {
    const std::uint64_t pages = group.page_bytes == 0 ? 0 : std::uint64_t{group.stats.page_count} + 1;
    table.add({{group.name},
               {group.kind},
               {or_dash(group.page_bytes)},
               {or_dash(group.stats.page_count)},
               {or_dash(group.slot_bytes)},
               {or_dash(group.stats.slot_count)},
               {bytes_text((pages * group.page_bytes) + (group.stats.slot_count * group.slot_bytes))}});
  }
}

void add_group_counts(Table& table, const ReplayOutcome& replay) {
  for (const GroupOutcome& group : replay.groups) {
    const GroupStats& stats = group.stats;
    if (group.page_bytes == 0) {
      table.add({{group.name}, {"-"}});
      continue;
    }
    table.add({{group.name},
               {with_commas(stats.page_count - stats.free_pages)},
               {with_commas(stats.sealed_page_total)},
               {with_commas(stats.evicted_page_total)},
               {with_commas(stats.dropped_page_total)},
               {with_commas(stats.skipped_snapshot_total)},
               {with_commas(stats.restored_snapshot_total)},
               {with_commas(group.limited.request_count)},
               {with_commas(group.limited.token_count)}});
  }
}

/// One column per capacity: the pages that each group got, those it evicted, and the requests that it limited. Lines
/// without a number are left out.
Table group_matrix(std::span<const ReplayOutcome* const> replays, const Axes& axes, std::uint32_t page_tokens) {
  Table table;
  std::vector<Cell> names = {{"capacity, tokens", Ink::Bold}};
  for (const std::string& name : capacity_names(axes.capacities)) names.push_back({name, Ink::Bold});
  table.add(std::move(names));
  if (axes.page_sizes.size() > 1) table.add({{fmt::format("pages of {}", counted(page_tokens, "token")), Ink::Bold}});
  const auto add_part = [&](const char* what, const auto& number_of) {
    bool has_title = false;
    for (std::size_t i = 0; i < replays.front()->groups.size(); ++i) {
      const GroupOutcome& any = replays.front()->groups[i];
      std::vector<Cell> line = {{fmt::format("  {}, {}", any.name, any.kind)}};
      std::uint64_t sum = 0;
      for (const std::uint64_t capacity : axes.capacities) {
        const auto replay = std::ranges::find_if(replays, [&](const ReplayOutcome* each) {
          return each->config.capacity_tokens == capacity && each->config.page_tokens == page_tokens;
        });
        const std::uint64_t number = replay == replays.end() ? 0 : number_of((*replay)->groups[i]);
        line.push_back({replay == replays.end() ? "-" : with_commas(number)});
        sum += number;
      }
      if (sum == 0) continue;
      if (!std::exchange(has_title, true)) table.add({{what, Ink::Dim}});
      table.add(std::move(line));
    }
  };
  add_part("pages", [](const GroupOutcome& group) { return std::uint64_t{group.stats.page_count}; });
  add_part("evicted", [](const GroupOutcome& group) { return group.stats.evicted_page_total; });
  add_part("snapshots skipped", [](const GroupOutcome& group) { return group.stats.skipped_snapshot_total; });
  add_part("requests limited", [](const GroupOutcome& group) { return group.limited.request_count; });
  return table;
}

/// Requests that need more pages than the pool has do so under every policy.
std::string over_pool_notes(const SweepOutcome& outcome, const Axes& axes) {
  const std::vector<std::string> names = capacity_names(axes.capacities);
  std::string text;
  for (const std::uint32_t page_tokens : axes.page_sizes) {
    for (std::size_t i = 0; i < axes.capacities.size(); ++i) {
      const auto replay = std::ranges::find_if(outcome.replays, [&](const ReplayOutcome& each) {
        return each.config.page_tokens == page_tokens && each.config.capacity_tokens == axes.capacities[i];
      });
      if (replay == outcome.replays.end() || replay->over_pool_count == 0) continue;
      const bool is_longer = replay->over_pool_lines.size() < replay->over_pool_count;
      text += fmt::format("  {} tokens{}: {} (line{} {}{})\n", names[i],
                          axes.page_sizes.size() > 1 ? fmt::format(", pages of {}", page_tokens) : "",
                          counted(replay->over_pool_count, "request"), replay->over_pool_count == 1 ? "" : "s",
                          fmt::join(replay->over_pool_lines, ", "), is_longer ? ", …" : "");
    }
  }
  return text.empty() ? text
                      : "Not run, and counted as misses, because they need more pages than the pool has:\n" + text;
}

}  // namespace

std::string rate_text(double rate) {
  const std::string text = fmt::format("{:.4f}", rate);
  return text.starts_with("0.") ? text.substr(1) : text;
}

std::string trace_facts_text(const Trace& trace, const TraceFacts& facts) {
  const auto line = [](std::string_view what, const std::string& amount, std::string_view note) {
    return fmt::format("  {:<16}{:>14}{}{}\n", what, amount, note.empty() ? "" : "  ", note);
  };
  const double reusable = facts.prompt_tokens() == 0 ? 0
                                                     : static_cast<double>(facts.reusable_tokens()) /
                                                           static_cast<double>(facts.prompt_tokens());
  std::string text;
  const std::string spaces =
      trace.key_spaces.size() > 1 ? fmt::format("of {}", counted(trace.key_spaces.size(), "tenant")) : "";
  text += line("requests", with_commas(trace.requests.size()), spaces);
  const std::string units =
      trace.unit_tokens > 1 ? fmt::format("told apart in units of {}", counted(trace.unit_tokens, "token")) : "";
  text += line("prompt tokens", with_commas(facts.prompt_tokens()), units);
  text += line("distinct tokens", with_commas(facts.distinct_tokens()), "what a cache holds that never evicts");
  text += line("reusable tokens", with_commas(facts.reusable_tokens()),
               fmt::format("{} of the prompts: no cache finds more", rate_text(reusable)));
  return text;
}

std::string sweep_table(const SweepRequest& request, const SweepOutcome& outcome, const TextPlace& place) {
  const Axes axes(request);
  return (axes.capacities.size() == 1 ? single_table(outcome, axes) : rates_table(outcome, axes)).text(place);
}

std::string key_space_table(const Trace& trace, const SweepOutcome& outcome, std::uint64_t capacity_tokens,
                            const TextPlace& place) {
  constexpr std::size_t kLinesMax = 20;
  constexpr std::size_t kNameColumnsMax = 40;
  std::vector<const ReplayOutcome*> replays;
  for (const ReplayOutcome& replay : outcome.replays) {
    if (replay.config.capacity_tokens == capacity_tokens && !replay.corruption) replays.push_back(&replay);
  }
  if (replays.empty()) return "";

  const std::size_t count = trace.key_spaces.size();
  const std::size_t shown = count <= kLinesMax ? count : kLinesMax - 1;
  Table table;
  std::vector<Cell> header = {{"tenant", Ink::Bold}, {"prompt tokens", Ink::Bold}};
  for (const ReplayOutcome* replay : replays) header.push_back({replay->config.policy, Ink::Bold});
  table.add(std::move(header));
  for (std::size_t line = 0; line < std::min(count, shown + 1); ++line) {
    // The last line adds up what has none of its own.
    const std::size_t end = line < shown ? line + 1 : count;
    std::vector<Cell> cells = {
        {line < shown ? cut_to(trace.key_spaces[line], kNameColumnsMax) : fmt::format("{} others", count - shown)}, {}};
    for (const ReplayOutcome* replay : replays) {
      KeySpaceOutcome sum;
      for (std::size_t i = line; i < end; ++i) {
        sum.prompt_tokens += replay->key_spaces[i].prompt_tokens;
        sum.hit_tokens += replay->key_spaces[i].hit_tokens;
      }
      cells[1].text = with_commas(sum.prompt_tokens);
      cells.push_back({rate_text(
          sum.prompt_tokens == 0 ? 0 : static_cast<double>(sum.hit_tokens) / static_cast<double>(sum.prompt_tokens))});
    }
    table.add(std::move(cells));
  }
  return table.text(place);
}

std::string group_text(const SweepRequest& request, const SweepOutcome& outcome, const TextPlace& place) {
  const Axes axes(request);
  std::vector<const ReplayOutcome*> shown;
  for (const ReplayOutcome& replay : outcome.replays) {
    if (!replay.groups.empty() && !replay.corruption) shown.push_back(&replay);
  }
  if (shown.empty()) return "";
  const std::string about_limits =
      "A request is limited by a group when its hit ended earlier than what is cached of its prompt, because that "
      "group\n"
      "could not go on there.\n";
  if (axes.capacities.size() > 1) {
    const std::string& policy = axes.policies.front();
    std::erase_if(shown, [&](const ReplayOutcome* replay) { return replay->config.policy != policy; });
    if (shown.empty()) return "";
    std::string text;
    for (const std::uint32_t page_tokens : axes.page_sizes) {
      text += group_matrix(shown, axes, page_tokens).text(place) + "\n";
    }
    return fmt::format("Groups, with {}; --json has everything:\n\n{}{}", policy, text, about_limits);
  }
  Table sizes;
  std::vector<Cell> header;
  for (const char* const name : {"group", "kind", "page bytes", "pages", "slot bytes", "slots", "bytes"}) {
    header.push_back({name, Ink::Bold});
  }
  sizes.add(std::exchange(header, {}));
  sizes.align_left(1);
  Table counts;
  for (const char* const name :
       {"group", "in use", "cached", "evicted", "dropped", "skipped", "restored", "limited", "computed"}) {
    header.push_back({name, Ink::Bold});
  }
  counts.add(std::move(header));
  for (const ReplayOutcome* const replay : shown) {
    const std::string size_name = fmt::format("pages of {}", counted(replay->config.page_tokens, "token"));
    if (replay->config.policy == axes.policies.front()) {
      if (axes.page_sizes.size() > 1) sizes.add({{size_name, Ink::Bold}});
      add_group_sizes(sizes, *replay);
    }
    if (shown.size() > 1) counts.add({{name_of(replay->config), Ink::Bold}});
    add_group_counts(counts, *replay);
  }
  return fmt::format(
      "Groups, their pages and their parts of the state slots:\n\n{}\n"
      "Pages in use at the end, and what became of all of them; snapshots that found no page and that requests began\n"
      "with; requests that a group limited, and what they computed of their prompts:\n\n{}\n{}",
      sizes.text(place), counts.text(place), about_limits);
}

std::string tier_text(const SweepRequest& request, const SweepOutcome& outcome, const TextPlace& place) {
  const HostTierSettings& host = request.settings.host;
  if (!host.is_on() || outcome.replays.empty()) return "";
  const Axes axes(request);
  const std::vector<std::string> names = capacity_names(axes.capacities);
  const std::vector<std::size_t> reasons = reasons_in(outcome);
  const DiskTierSettings& disk = request.settings.disk;
  Table hits;
  std::vector<Cell> tiers = {
      {"hit tokens", Ink::Bold}, {"capacity", Ink::Bold}, {"device", Ink::Bold}, {"host", Ink::Bold}};
  const RemoteTierSettings& remote = request.settings.remote;
  if (disk.is_on()) tiers.push_back({"disk", Ink::Bold});
  if (remote.is_on()) tiers.push_back({"remote", Ink::Bold});
  for (const char* const name : {"stored", "loaded"}) tiers.push_back({name, Ink::Bold});
  if (disk.is_on()) {
    for (const char* const name : {"written", "read"}) tiers.push_back({name, Ink::Bold});
  }
  if (remote.is_on()) {
    for (const char* const name : {"put", "got"}) tiers.push_back({name, Ink::Bold});
  }
  hits.add(std::move(tiers));
  Table misses;
  std::vector<Cell> header = {{"computed tokens", Ink::Bold}, {"capacity", Ink::Bold}};
  for (const std::size_t reason : reasons) header.push_back({std::string(reason_name(reason)), Ink::Bold});
  misses.add(std::move(header));
  for (const std::uint32_t page_tokens : axes.page_sizes) {
    if (axes.page_sizes.size() > 1) {
      hits.add({{page_size_title(outcome, page_tokens), Ink::Bold}});
      misses.add({{page_size_title(outcome, page_tokens), Ink::Bold}});
    }
    for (const std::string& policy : axes.policies) {
      for (std::size_t i = 0; i < axes.capacities.size(); ++i) {
        const ReplayOutcome* const replay =
            find_replay(outcome, {.policy = policy, .page_tokens = page_tokens, .capacity_tokens = axes.capacities[i]});
        if (replay == nullptr || replay->corruption) {
          hits.add({{policy}, {names[i]}, rate_cell(replay)});
          continue;
        }
        std::vector<Cell> line = {
            {policy}, {names[i]}, {with_commas(device_hit_tokens(*replay))}, {with_commas(replay->host->hit_tokens)}};
        if (replay->disk) line.push_back({with_commas(replay->disk->hit_tokens)});
        if (replay->remote) line.push_back({with_commas(replay->remote->hit_tokens)});
        line.push_back({bytes_text(replay->host->stored_bytes)});
        line.push_back({bytes_text(replay->host->loaded_bytes)});
        if (replay->disk) {
          line.push_back({bytes_text(replay->disk->written_bytes)});
          line.push_back({bytes_text(replay->disk->read_bytes)});
        }
        if (replay->remote) {
          line.push_back({bytes_text(replay->remote->put_bytes)});
          line.push_back({bytes_text(replay->remote->got_bytes)});
        }
        hits.add(std::move(line));
        std::vector<Cell> cells = {{policy}, {names[i]}};
        for (const std::size_t reason : reasons) {
          cells.push_back({with_commas(replay->host->misses[reason].token_count)});
        }
        misses.add(std::move(cells));
      }
    }
  }
  std::string text = fmt::format("Host tier of {}: {}, {}. ", bytes_text(host.capacity_bytes),
                                 write_policy_name(host.write_policy), host.policy);
  if (disk.is_on()) {
    text += fmt::format(
        "Disk tier of {}: {}{}.\n", bytes_text(disk.capacity_bytes), write_policy_name(disk.write_policy),
        disk.write_bytes_per_day == 0 ? "" : fmt::format(", at most {} a day", bytes_text(disk.write_bytes_per_day)));
  }
  if (remote.is_on()) {
    text += fmt::format(
        "Remote tier: {}{}.\nThe bound is for one of any size.\n\n{}", write_policy_name(remote.write_policy),
        remote.write_bytes_per_day == 0 ? ""
                                        : fmt::format(", at most {} a day", bytes_text(remote.write_bytes_per_day)),
        hits.text(place));
  } else {
    text += fmt::format("The bound is for {} tiers together.\n\n{}", disk.is_on() ? "all" : "both", hits.text(place));
  }
  if (!reasons.empty())
    text += "\nWhy the rest was computed, by what each request missed first:\n\n" + misses.text(place);
  return text;
}

std::string tier_text(const ReplayOutcome& replay, const TextPlace& place) {
  if (!replay.host || replay.corruption) return "";
  const HostTierOutcome& host = *replay.host;
  Table tiers;
  std::vector<Cell> names;
  for (const char* name : {"tier", "pages", "hit tokens", "hit rate", "moved there"})
    names.push_back({name, Ink::Bold});
  tiers.add(std::move(names));
  const auto add_tier = [&](std::string_view name, std::uint64_t pages, std::uint64_t hit_tokens, std::uint64_t bytes) {
    tiers.add({{std::string(name)},
               {with_commas(pages)},
               {with_commas(hit_tokens)},
               {rate_text_of(hit_tokens, replay.prompt_tokens)},
               {bytes_text(bytes)}});
  };
  add_tier(to_string(Tier::Device), replay.page_count, device_hit_tokens(replay), host.loaded_bytes);
  add_tier(
      to_string(Tier::Host), host.page_count, host.hit_tokens,
      host.stored_bytes + (replay.disk ? replay.disk->read_bytes : 0) + (replay.remote ? replay.remote->got_bytes : 0));
  if (replay.disk) {
    add_tier(to_string(Tier::Disk), replay.disk->capacity_bytes / replay.page_bytes, replay.disk->hit_tokens,
             replay.disk->written_bytes);
  }
  if (replay.remote) {
    add_tier(to_string(Tier::Remote), replay.remote->put_values * replay.remote->extent_pages,
             replay.remote->hit_tokens, replay.remote->put_bytes);
  }
  Table misses;
  misses.add({{"reason", Ink::Bold}, {"requests", Ink::Bold}, {"computed tokens", Ink::Bold}, {"share", Ink::Bold}});
  for (std::size_t i = 0; i < kMissReasonCount; ++i) {
    const MissOutcome& miss = host.misses[i];
    if (miss.token_count == 0) continue;
    misses.add({{std::string(reason_name(i))},
                {with_commas(miss.request_count)},
                {with_commas(miss.token_count)},
                {rate_text_of(miss.token_count, replay.prompt_tokens)}});
  }
  return fmt::format("{}\n{}", tiers.text(place), misses.text(place));
}

std::string engine_text(const SweepOutcome& outcome, const TextPlace& place) {
  std::vector<const ReplayOutcome*> shown;
  for (const ReplayOutcome& replay : outcome.replays) {
    if (!replay.engines.empty() && !replay.corruption) shown.push_back(&replay);
  }
  if (shown.empty()) return "";
  Table table;
  if (shown.size() > 1) {
    std::vector<Cell> header;
    for (const char* const name : {"hit rates", "all", "lowest", "highest"}) header.push_back({name, Ink::Bold});
    if (shown.front()->remote) header.push_back({"all, private", Ink::Bold});
    table.add(std::move(header));
    for (const ReplayOutcome* const replay : shown) {
      const auto [lowest, highest] = std::ranges::minmax(replay->engines, {}, &EngineOutcome::hit_rate);
      std::vector<Cell> line = {{name_of(replay->config)},
                                {rate_text(replay->hit_rate())},
                                {rate_text(lowest.hit_rate())},
                                {rate_text(highest.hit_rate())}};
      if (replay->remote) line.push_back({rate_text(sum_of_engines(*replay).private_hit_rate())});
      table.add(std::move(line));
    }
    return fmt::format("Engines, all of each replay together and those that found least and most{}:\n\n{}",
                       shown.front()->remote ? ", and all with private tiers only" : "", table.text(place));
  }
  constexpr std::size_t kLinesMax = 20;
  const ReplayOutcome& replay = *shown.front();
  std::vector<Cell> names;
  for (const char* const name : {"engine", "requests", "hit rate"}) names.push_back({name, Ink::Bold});
  if (replay.remote) names.push_back({"private", Ink::Bold});
  for (const char* const name : {"hit tokens", "device"}) names.push_back({name, Ink::Bold});
  if (replay.host) names.push_back({"host", Ink::Bold});
  if (replay.disk) names.push_back({"disk", Ink::Bold});
  if (replay.remote) names.push_back({"remote", Ink::Bold});
  table.add(std::move(names));
  const auto add_line = [&](std::string name, const EngineOutcome& engine) {
    std::vector<Cell> line = {{std::move(name)}, {with_commas(engine.request_count)}, {rate_text(engine.hit_rate())}};
    if (replay.remote) line.push_back({rate_text(engine.private_hit_rate())});
    line.push_back({with_commas(engine.hit_tokens)});
    line.push_back({with_commas(engine.device_hit_tokens())});
    if (replay.host) line.push_back({with_commas(engine.host_hit_tokens)});
    if (replay.disk) line.push_back({with_commas(engine.disk_hit_tokens)});
    if (replay.remote) line.push_back({with_commas(engine.remote_hit_tokens)});
    table.add(std::move(line));
  };
  const std::size_t count = replay.engines.size();
  const std::size_t line_count = count <= kLinesMax ? count : kLinesMax - 1;
  EngineOutcome others;
  for (std::size_t i = 0; i < count; ++i) {
    if (i < line_count) add_line(with_commas(i), replay.engines[i]);
    if (i >= line_count) others += replay.engines[i];
  }
  if (line_count < count) add_line(fmt::format("{} others", with_commas(count - line_count)), others);
  add_line("all", sum_of_engines(replay));
  return fmt::format("Engines; {}:\n\n{}",
                     replay.remote ? "private is the hit rate of the same requests without the remote tier"
                                   : "the bound is for one cache as large as all of them",
                     table.text(place));
}

std::string sweep_notes(const Trace& trace, const TraceFacts& facts, const SweepRequest& request,
                        const SweepOutcome& outcome) {
  std::string text = over_pool_notes(outcome, Axes(request));
  bool is_warm = false;
  for (const ReplayOutcome& replay : outcome.replays) {
    if (!replay.disk || replay.disk->found_pages == 0) continue;
    is_warm = true;
    text += fmt::format("The disk tier of {} had {} of an earlier process; the bound does not know of them.\n",
                        name_of(replay.config), counted(replay.disk->found_pages, "page"));
  }
  if (trace.bad_line_count > 0) {
    text +=
        fmt::format("Left out {}; the first: {}\n", counted(trace.bad_line_count, "bad line"), trace.first_bad_line);
  }
  std::uint64_t verified_bytes = 0;
  std::uint64_t shared_tokens = 0;
  bool is_damaged = false;
  for (const ReplayOutcome& replay : outcome.replays) {
    verified_bytes += replay.verified_bytes;
    shared_tokens += replay.shared_hit_tokens;
    is_damaged = is_damaged || replay.corruption;
  }
  if (request.settings.bytes == BytesMode::Verify && !is_damaged && !outcome.replays.empty()) {
    text += fmt::format("Verified {}{} in the pages that requests found: all as written.\n",
                        counted(verified_bytes, "byte"),
                        verified_bytes < 1'024 ? "" : fmt::format(" ({})", bytes_text(verified_bytes)));
  }
  if (trace.key_spaces.size() > 1 && !is_warm) {  // what others sent to the earlier process, nobody knows
    text += fmt::format("Of {} that only other tenants had sent before, {} were found.\n",
                        counted(facts.separated_tokens(trace), "prompt token"), with_commas(shared_tokens));
  }
  return text;
}

std::string sweep_faults(const SweepOutcome& outcome) {
  std::string text;
  std::size_t damaged_count = 0;
  for (const ReplayOutcome& replay : outcome.replays) {
    if (replay.corruption && ++damaged_count == 1) {
      const Corruption& found = *replay.corruption;
      const std::string_view what = found.is_slot ? "state slot" : "page";
      text += fmt::format(
          "{} {}{} is damaged: its byte {} is not what was written\n"
          "  the {} belongs to {}\n"
          "  it was found by line {}, with {}\n",
          what, with_commas(found.page), found.group.empty() ? "" : fmt::format(" of group '{}'", found.group),
          with_commas(found.offset), what, found.prefix, with_commas(found.line), name_of(replay.config));
    }
    if (replay.disk && !replay.disk->last_error.empty()) {
      text += fmt::format("{} ({})\n  {}\n",
                          replay.disk->has_failed ? "the disk tier failed, and the replay went on without it"
                                                  : "some pages could not be written to disk, or read from it",
                          name_of(replay.config), replay.disk->last_error);
    }
    if (replay.remote && replay.remote->bad_values > 0) {
      text += fmt::format("{} of the remote tier {} not what was written, and not used ({})\n",
                          counted(replay.remote->bad_values, "value"), replay.remote->bad_values == 1 ? "was" : "were",
                          name_of(replay.config));
    }
    if (replay.remote && replay.remote->failed_objects + replay.remote->late_objects > 0) {
      text += fmt::format("the remote tier failed or was late {}, and the replay went on without ({})\n  {}\n",
                          counted(replay.remote->failed_objects + replay.remote->late_objects, "time"),
                          name_of(replay.config), replay.remote->last_error);
    }
    if (replay.shared_hit_tokens > 0) {
      text += fmt::format("{} found that the request's key space never had ({})\n",
                          counted(replay.shared_hit_tokens, "token"), name_of(replay.config));
    }
  }
  if (damaged_count > 1) text += fmt::format("  {} more found the like\n", counted(damaged_count - 1, "replay"));
  return text;
}

}  // namespace quire
