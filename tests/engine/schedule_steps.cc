// SPDX-License-Identifier: Apache-2.0
//
// What random schedules do to steps: plan, run, finish and abort them.
#include <algorithm>
#include <numeric>
#include <utility>

#include "schedule_model.h"

namespace quire::testing {

namespace {

void log_plan(const AttentionPlan& plan, std::ostream& log) {
  const GroupPlan& group = plan.groups[0];
  const auto list = [&log](const char* name, const auto& numbers) {
    log << "    " << name;
    for (const auto number : numbers) log << ' ' << number;
    log << '\n';
  };
  list("query_positions", plan.query_positions);
  list("seq_lens", plan.seq_lens);
  list("stored_lens", plan.stored_lens);
  list("visible_tokens", plan.visible_tokens);
  list("tree_indptr", plan.tree_indptr);
  list("window_offsets of the last level", group.levels.back().window_offsets);
  for (const TreeNode& node : plan.tree_nodes) {
    log << "    tree node [" << node.begin << ", " << node.end << ") at depth " << node.depth << '\n';
  }
  for (const AttentionPlanEntry& entry : plan.entries) {
    log << "    sequence in slot " << entry.state_slot << ": position " << entry.position << ", tokens "
        << entry.token_count << ", drafts " << entry.draft_count << ", pages";
    for (const PageId page : entry.pages) log << ' ' << page.value;
    log << ", slots";
    for (const std::int64_t slot : entry.append_slots) log << ' ' << slot;
    log << '\n';
  }
  for (const TokenMove& move : group.moves)
    log << "    move " << move.source_slot << " to " << move.target_slot << '\n';
  for (const PageCopy& copy : group.copies) {
    log << "    copy " << copy.token_count << " tokens of page " << copy.source.value << " to " << copy.target.value
        << '\n';
  }
}

}  // namespace

std::string ScheduleModel::plan(Random& random) {
  if (flights_.size() == setup_.steps_in_flight_max) return finish(random);
  std::vector<Live*> lives;
  for (const auto& live : lives_) {
    if (live->is_admitted && !live->is_receiving && draw_chance(random, 70)) lives.push_back(live.get());
  }
  for (std::size_t i = lives.size(); i > 1; --i) {
    std::swap(lives[i - 1], lives[random.below(static_cast<std::uint32_t>(i))]);
  }

  std::vector<StepEntry> entries;
  std::vector<Live*> chosen;
  std::deque<std::vector<std::int32_t>> parents;  // what tree entries point to
  std::uint32_t tokens_left = setup_.step_tokens_max;
  for (Live* live : lives) {
    const SequenceView view = cache_->view(live->handle).value();
    const bool is_busy = is_in_flight(*live);
    if (is_busy && is_undecided(*live)) continue;
    // A step that computes the last known token brings the next one.
    const bool brings = is_busy && view.pending_tokens == 0;
    const std::uint32_t missing = view.pending_tokens + (brings ? 1 : 0);
    const auto planned = static_cast<std::uint32_t>(planned_texts(*live).size());
    const bool runs_again = !is_busy && planned == live->tokens.size() && missing == 1;
    const auto tree_before = static_cast<std::uint32_t>(live->tree.size());
    const std::uint32_t used =
        std::max(planned + missing, static_cast<std::uint32_t>(live->tokens.size())) + tree_before;
    if (used > setup_.context_tokens_max) continue;
    // One place is left for a token that the step brings.
    const std::uint32_t room =
        std::min(setup_.context_tokens_max - used, tokens_left > missing ? tokens_left - missing : 0U);
    StepEntry entry{.sequence = &live->handle};
    const bool may_draft = !runs_again && room > 1 && find_sending(*live) == nullptr &&
                           (missing + tree_before > 0 || draw_chance(random, 30));
    if (tree_before > 0 || (may_draft && draw_chance(random, 20))) {
      const std::uint32_t most = std::min({setup_.tree_tokens_max - tree_before, room > 1 ? room - 1 : 0U, 7U});
      if (most == 0 || (tree_before > 0 && draw_chance(random, 50))) continue;
      std::vector<std::int32_t>& tree = parents.emplace_back();
      for (std::uint32_t i = 1 + random.below(most); i > 0; --i) {
        const auto before = static_cast<std::uint32_t>(tree_before + tree.size());
        tree.push_back(static_cast<std::int32_t>(random.below(before + 1)) - 1);
      }
      entry.tree_parents = tree;
      entry.token_count = brings ? 1 : 0;
      if (tree_before > 0) counts_.add("tree grown by a later round");
    } else if (may_draft && draw_chance(random, 20)) {
      entry.draft_count = 1 + random.below(std::min(room - 1, 4U));
      entry.token_count = brings ? 1 : 0;
    } else {
      if (missing == 0 || tokens_left == 0) continue;
      const std::uint32_t most = std::min(missing, tokens_left);
      entry.token_count = draw_chance(random, 50) ? most : 1 + random.below(most);
    }
    const std::uint32_t drafts =
        entry.tree_parents.empty() ? entry.draft_count : static_cast<std::uint32_t>(entry.tree_parents.size());
    const std::uint32_t queries = (drafts > 0 ? missing : entry.token_count) + drafts;
    if (queries > tokens_left) continue;
    tokens_left -= queries;
    entries.push_back(entry);
    chosen.push_back(live);
  }
  if (entries.empty()) return flights_.empty() ? "" : finish(random);
  PlanShape shape;
  if (draw_chance(random, 25)) {
    const std::uint32_t used = setup_.step_tokens_max - tokens_left;
    shape.entries = static_cast<std::uint32_t>(entries.size()) +
                    random.below(setup_.sequence_count_max - static_cast<std::uint32_t>(entries.size()) + 1);
    shape.tokens = used + random.below(tokens_left + 1);
    shape.columns = (setup_.context_tokens_max + setup_.page_tokens - 1) / setup_.page_tokens;
  }
  return plan_entries(entries, chosen, shape, random);
}

std::string ScheduleModel::plan_entries(std::vector<StepEntry>& entries, std::vector<Live*>& lives,
                                        const PlanShape& shape, Random& random) {
  Result<PlanOutcome> outcome = cache_->plan_step(entries, shape);
  if (!outcome) return "plan_step: " + outcome.error().message;
  if (!outcome->step) {
    counts_.add("short plan");
    const Shortage& shortage = outcome->shortage;
    if (shortage.pages_needed <= shortage.pages_available) return "short, though there are enough pages";
    if (shortage.entries_that_fit >= entries.size()) return "short, though all entries fit";
    if (shortage.entries_that_fit == 0) return make_room(random);
    entries.resize(shortage.entries_that_fit);
    lives.resize(shortage.entries_that_fit);
    outcome = cache_->plan_step(entries);
    if (!outcome) return "plan_step of entries that fit: " + outcome.error().message;
    if (!outcome->step) return "entries that fit do not fit";
  }
  return record_flight(*outcome->step, entries, lives, random);
}

// Nothing fits. With steps in flight their end may help; otherwise somebody has to go.
std::string ScheduleModel::make_room(Random& random) {
  if (!flights_.empty()) return finish(random);
  if (draw_chance(random, 60)) return preempt(random);
  return end(random);
}

std::string ScheduleModel::record_flight(const Step& step, std::span<const StepEntry> entries,
                                         std::span<Live* const> lives, Random& random) {
  Result<tiny_engine::DevicePlan> plan = tiny_engine::DevicePlan::upload(step.plan);
  if (!plan) return "upload: " + plan.error().message;
  Flight flight{.step = step, .plan = *std::move(plan)};
  flight.entries.resize(entries.size());
  // What the plan is about may have been made smaller by giving up copies.
  for (const AttentionPlanEntry& planned : step.plan.entries) {
    flight.plan_order.push_back(planned.entry_index);
    Live& live = *lives[planned.entry_index];
    const std::string problem =
        describe_entry(planned, entries[planned.entry_index], live, flight.entries[planned.entry_index], random);
    if (!problem.empty()) return problem;
  }
  counts_.add("step");
  if (counts_.log != nullptr) log_plan(step.plan, *counts_.log);
  counts_.add("entries", entries.size());
  counts_.add("copies", step.plan.copies.size());
  counts_.add("moves", step.plan.groups[0].moves.size());
  for (const SendRun& run : step.plan.groups[0].sends) {
    counts_.add("tokens sent after their step", static_cast<std::uint64_t>(run.token_count));
  }
  for (const std::int64_t slot : step.plan.groups[0].remote_slots) {
    if (slot != kNoSlot) counts_.add("tokens sent by their step");
  }
  for (const LayerWindowPlan& window : step.plan.groups[0].layer_windows) {
    for (std::size_t i = 0; i < step.plan.entry_count; ++i) {
      if (window.first_keys[i] > 0) counts_.add("list trimmed for layers");
      if (step.plan.tree_indptr[i] < step.plan.tree_indptr[i + 1]) counts_.add("tree in layers with a window");
      if (step.plan.seq_lens[i] > 0 && step.plan.visible_tokens[i] > 0) counts_.add("window and window of layers");
    }
  }
  std::uint32_t shared_levels = 0;
  for (const CascadeLevel& level : step.plan.groups[0].levels.first(step.plan.groups[0].levels.size() - 1)) {
    const auto indptr = level.page_indptr;
    shared_levels += indptr.empty() || indptr.back() == indptr.front() ? 0 : 1;
  }
  if (shared_levels >= 2) counts_.add("steps with three and more levels");
  flights_.push_back(std::move(flight));
  return "";
}

std::string ScheduleModel::describe_entry(const AttentionPlanEntry& planned, const StepEntry& asked, Live& live,
                                          FlightEntry& entry, Random& random) {
  const SequenceView view = cache_->view(live.handle).value();
  if (view.computed_tokens < live.texts.size() && live.may_lose_copy) {
    live.texts.resize(view.computed_tokens);
    counts_.add("copy given up");
  }
  live.may_lose_copy = false;
  live.is_new_fork = false;
  const std::vector<std::int32_t> texts = planned_texts(live);
  entry.number = live.number;
  entry.position = planned.position;
  entry.draft_count = planned.draft_count;
  entry.known_count = planned.token_count - planned.draft_count;
  entry.is_tree = !asked.tree_parents.empty();
  entry.brings = draw_token(random);
  if (planned.sequence != live.handle.id()) return "the plan has another sequence";
  const auto tree_before = static_cast<std::uint32_t>(live.tree.size());
  entry.runs_again = entry.draft_count == 0 && planned.position + 1 == texts.size() && planned.token_count == 1 &&
                     live.tokens.size() == texts.size() && !is_in_flight(live);
  if (!entry.runs_again && planned.position != texts.size() + tree_before) return "the plan begins at another position";

  // The step before brings the token that this one begins with.
  std::vector<TokenId> known = live.tokens;
  for (Flight& flight : flights_) {
    for (FlightEntry& earlier : flight.entries) {
      const bool is_last = earlier.position + earlier.known_count == known.size();
      if (earlier.number != live.number || earlier.is_void || !is_last) continue;
      if (entry.position + entry.known_count <= known.size()) continue;
      earlier.must_bring = true;
      known.push_back(earlier.brings);
    }
  }
  std::int32_t previous = entry.position == 0 ? OracleTexts::kBegin : OracleTexts::kBegin - 1;
  if (entry.position > 0 && entry.position - 1 < texts.size()) previous = texts[entry.position - 1];
  const Window& window = live.window;
  for (std::uint32_t i = 0; i < entry.known_count; ++i) {
    if (entry.position + i >= known.size()) return "the plan computes a token that nobody knows";
    entry.queries.push_back(known[entry.position + i]);
    previous = texts_.intern(previous, entry.queries.back(), window.visible_tokens, window.sink_tokens);
    entry.texts.push_back(previous);
  }
  if (entry.is_tree && tree_before > 0) previous = texts.empty() ? OracleTexts::kBegin : texts.back();
  const std::int32_t root = previous;
  if (entry.draft_count > 0 && root == OracleTexts::kBegin) counts_.add("drafts behind nothing");
  for (std::uint32_t i = 0; i < entry.draft_count; ++i) {
    TreeToken token{.token = draw_token(random)};
    if (entry.is_tree) {
      token.parent = asked.tree_parents[i];
      previous = token.parent < 0 ? root : live.tree[static_cast<std::size_t>(token.parent)].text;
    }
    previous = texts_.intern(previous, token.token, window.visible_tokens, window.sink_tokens);
    token.text = previous;
    if (entry.is_tree) live.tree.push_back(token);
    entry.queries.push_back(token.token);
    entry.texts.push_back(token.text);
  }
  return "";
}

std::string ScheduleModel::run(Random& /*random*/) {
  for (Flight& flight : flights_) {
    if (!flight.has_run) return run_flight(flight);
  }
  return "";
}

std::string ScheduleModel::run_up_to(std::size_t flight_index) {
  for (std::size_t i = 0; i <= flight_index; ++i) {
    if (flights_[i].has_run) continue;
    if (std::string problem = run_flight(flights_[i]); !problem.empty()) return problem;
  }
  return "";
}

std::string ScheduleModel::prepare(Flight& flight) {
  if (std::exchange(flight.is_prepared, true)) return "";
  if (!engine_copies()) {
    const Status status = cache_->apply_copies(flight.step);
    if (!status) return "apply_copies: " + status.error().message;
  }
  const std::string problem = engine_->prepare(flight.plan);
  return problem.empty() ? "" : "engine: " + problem;
}

std::string ScheduleModel::run_flight(Flight& flight) {
  flight.has_run = true;
  if (std::string problem = prepare(flight); !problem.empty()) return problem;
  std::vector<TokenId> tokens;
  std::vector<std::uint64_t> sums;
  const auto slots = flight.plan.read(flight.plan.state_slots);
  for (std::size_t i = 0; i < flight.plan_order.size(); ++i) {
    const FlightEntry& entry = flight.entries[flight.plan_order[i]];
    tokens.insert(tokens.end(), entry.queries.begin(), entry.queries.end());
    sums.push_back(std::accumulate(entry.queries.begin(), entry.queries.end(), entry.number));
    // A state begins with its sequence's first step, not when the sequence does: the slot may still be in use then.
    if (states_.try_emplace(entry.number, entry.number).second) {
      if (slots[i] < 0) return "a sequence has no state slot";
      engine_->state(static_cast<std::uint32_t>(slots[i])) = entry.number;
    }
  }
  std::vector<double> logits;
  if (std::string problem = engine_->forward(flight.plan, tokens, logits); !problem.empty())
    return "engine: " + problem;
  std::vector<std::uint64_t> states;
  if (std::string problem = engine_->fold_states(flight.plan, sums, states); !problem.empty()) return problem;

  std::size_t query = 0;
  for (std::size_t i = 0; i < flight.plan_order.size(); ++i) {
    const FlightEntry& entry = flight.entries[flight.plan_order[i]];
    std::uint64_t& state = states_.at(entry.number);
    if (states[i] != state) return "a state slot holds another sequence's state";
    state = tiny_engine::scramble(state ^ sums[i]);
    for (const std::int32_t text : entry.texts) {
      const auto row = std::span(logits).subspan(query++ * weights_.shape.vocabulary, weights_.shape.vocabulary);
      if (!entry.is_void) texts_.note(text, row, call_count_);
    }
  }
  return "";
}

std::string ScheduleModel::finish(Random& random) {
  if (flights_.empty()) return "";
  if (std::string problem = run_up_to(0); !problem.empty()) return problem;
  Flight& flight = flights_.front();
  std::vector<StepResult> results(flight.entries.size());
  std::deque<std::vector<TokenId>> values;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const FlightEntry& entry = flight.entries[i];
    Live* live = find(entry.number);
    if (live == nullptr || entry.is_void) continue;
    if (draw_chance(random, 5)) {
      results[i].discard = true;
      continue;
    }
    std::vector<TokenId>& tokens = values.emplace_back();
    const std::size_t drafts_begin = entry.known_count;
    if (entry.is_tree) {
      tokens.assign(entry.queries.begin() + static_cast<std::ptrdiff_t>(drafts_begin), entry.queries.end());
    } else if (entry.must_bring) {
      tokens.push_back(entry.brings);
    } else {
      const std::uint32_t end =
          std::max<std::uint32_t>(entry.position + entry.known_count, static_cast<std::uint32_t>(live->texts.size()));
      results[i].accepted_count = random.below(entry.draft_count + 1);
      tokens.assign(entry.queries.begin() + static_cast<std::ptrdiff_t>(drafts_begin),
                    entry.queries.begin() + static_cast<std::ptrdiff_t>(drafts_begin + results[i].accepted_count));
      const bool reaches_end = end == live->tokens.size();
      const auto room = static_cast<std::uint32_t>(setup_.context_tokens_max - live->tokens.size() - tokens.size());
      std::uint32_t more = draw_chance(random, 75) ? 1 : random.below(4);
      more = std::min(more, room);
      while (reaches_end && more-- > 0) tokens.push_back(draw_token(random));
    }
    results[i].tokens = tokens;
  }
  const Status status = cache_->finish_step(flight.step, results);
  if (!status) return "finish_step: " + status.error().message;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const FlightEntry& entry = flight.entries[i];
    Live* live = find(entry.number);
    if (live == nullptr || entry.is_void) continue;
    if (results[i].discard) {
      counts_.add("discard");
      make_void(entry.number, 0);
    } else {
      apply_result(entry, *live, results[i]);
    }
  }
  flights_.pop_front();
  counts_.add("finish");
  if (!flights_.empty()) counts_.add("finish with steps in flight");
  return "";
}

void ScheduleModel::apply_result(const FlightEntry& entry, Live& live, const StepResult& result) {
  if (!entry.runs_again) {
    live.texts.insert(live.texts.end(), entry.texts.begin(), entry.texts.begin() + entry.known_count);
  }
  if (entry.is_tree) return;
  if (Transfer* transfer = find_sending(live); transfer != nullptr && live.texts.size() >= transfer->end) {
    transfer->is_sent = true;
    transfer->source = 0;
    counts_.add("all sent");
  }
  const auto drafts = entry.texts.begin() + entry.known_count;
  live.texts.insert(live.texts.end(), drafts, drafts + result.accepted_count);
  live.tokens.insert(live.tokens.end(), result.tokens.begin(), result.tokens.end());
  if (entry.draft_count > 0) counts_.add("drafts accepted", result.accepted_count);
}

std::string ScheduleModel::abort(Random& random) {
  if (flights_.empty()) return "";
  const std::size_t index = random.below(static_cast<std::uint32_t>(flights_.size()));
  if (index > 0) {
    if (std::string problem = run_up_to(index - 1); !problem.empty()) return problem;
  }
  // The device may have got as far as the step's own work, or not; what a plan asks for before it is always done.
  const bool runs = draw_chance(random, 40);
  Flight& flight = flights_[index];
  if (std::string problem = runs && !flight.has_run ? run_flight(flight) : prepare(flight); !problem.empty()) {
    return problem;
  }
  const Status status = cache_->abort_step(flight.step);
  if (!status) return "abort_step: " + status.error().message;
  counts_.add("abort");
  if (index + 1 < flights_.size()) counts_.add("abort before later steps");
  for (const FlightEntry& entry : flight.entries) {
    if (!entry.is_void) make_void(entry.number, index);
  }
  flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(index));
  return "";
}

// What the sequence has in flights from `first_flight` on did not happen.
void ScheduleModel::make_void(std::uint64_t number, std::size_t first_flight) {
  Live* live = find(number);
  for (std::size_t i = first_flight; i < flights_.size(); ++i) {
    for (FlightEntry& entry : flights_[i].entries) {
      if (entry.number != number || entry.is_void) continue;
      entry.is_void = true;
      if (live != nullptr && entry.is_tree) live->tree.resize(live->tree.size() - entry.draft_count);
    }
  }
  if (live != nullptr) live->may_lose_copy = true;  // which a step that did not happen has not made
  // The step before it, if one is in flight, may bring as many tokens as it likes again.
  FlightEntry* last = nullptr;
  for (std::size_t i = 0; i < first_flight; ++i) {
    for (FlightEntry& entry : flights_[i].entries) {
      if (entry.number == number && !entry.is_void) last = &entry;
    }
  }
  if (last != nullptr) last->must_bring = false;
}

}  // namespace quire::testing
