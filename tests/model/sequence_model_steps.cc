// SPDX-License-Identifier: Apache-2.0
//
// What the model does to steps.
#include "sequence_model.h"

#include <algorithm>
#include <utility>

namespace quire::testing {

bool SequenceModel::draw_entry(TwinSequence& sequence, Random& random, StepEntry& entry,
                               std::vector<std::int32_t>& parents) const {
  if (!sequence.is_running() || sequence.is_ended || sequence.receiving > 0 || sequence.has_draft) return false;
  if (sequence.tree_count() > 0 && sequence.in_flight > 0) return false;
  entry.sequence = &sequence.handle;
  const std::uint32_t brought = sequence.count() + sequence.in_flight;  // tokens, when all in flight are finished
  const std::uint32_t ahead = brought - std::min(brought, sequence.planned);
  const bool runs_again = sequence.missing() == 0 && sequence.pending() == 1;
  const bool grows_tree = sequence.tree_count() > 0;
  const std::uint32_t kind = grows_tree ? 2 : runs_again || sequence.is_marked ? 0 : random.below(4);
  if (kind == 1) entry.draft_count = 1 + random.below(6);
  if (kind == 2) {
    if (sequence.tree_count() == kTreeTokensMax) return false;
    const std::uint32_t room = std::min(5U, kTreeTokensMax - sequence.tree_count());
    for (std::uint32_t n = 1 + random.below(room); n > 0; --n) {
      const auto before = sequence.tree_count() + static_cast<std::uint32_t>(parents.size());
      parents.push_back(static_cast<std::int32_t>(random.below(before + 1)) - 1);
    }
    entry.tree_parents = parents;
  }
  if (kind == 0 || kind == 3) {
    if (sequence.in_flight == 0 ? sequence.pending() == 0 : ahead == 0) return false;
    const std::uint32_t most = sequence.in_flight == 0 ? sequence.pending() : ahead;
    entry.token_count = random.below(2) == 0 && sequence.missing() > 0 ? 0 : 1 + random.below(most);
  } else if (sequence.in_flight > 0 && sequence.missing() == 0 && ahead == 0) {
    return false;  // no step in flight will bring the token that stands before them
  }
  return true;
}

std::string SequenceModel::plan(Random& random) {
  if (twin_.steps.size() == config_.steps_in_flight_max) return "";
  std::vector<StepEntry> entries;
  std::vector<TwinPart> parts;
  std::vector<std::vector<std::int32_t>> parents(twin_.sequences.size());
  std::uint32_t token_count = 0;
  const bool is_alone = random.below(3) == 0;
  const std::uint32_t first = random.below(kSequenceCountMax);
  for (std::size_t i = 0; i < twin_.sequences.size(); ++i) {
    const std::size_t chosen = (first + i) % twin_.sequences.size();
    StepEntry entry;
    if (random.below(3) == 0 || !draw_entry(*twin_.sequences[chosen], random, entry, parents[chosen])) continue;
    const TwinPart part = twin_.make_part(*twin_.sequences[chosen], entry);
    const std::uint32_t queries = std::max(1U, part.token_count + part.draft_count);
    if (twin_.end_of(part) > kContextTokensMax || token_count + queries > kStepTokensMax) continue;
    token_count += queries;
    entries.push_back(entry);
    parts.push_back(part);
    if (is_alone) break;
  }
  if (entries.empty()) return "";
  return plan(entries, parts);
}

std::string SequenceModel::plan(const std::vector<StepEntry>& entries, std::vector<TwinPart>& parts) {
  const Stats before = cache_->stats().value();
  std::uint32_t needed = 0;
  std::uint32_t fitting = 0;
  const std::uint32_t available = available_pages(before);
  for (const TwinPart& part : parts) {
    needed += part.new_pages;
    if (needed <= available) ++fitting;
  }
  const std::string before_short = needed > available ? picture_but_steps() : "";
  const Result<PlanOutcome> outcome = cache_->plan_step(entries);
  if (!outcome) return outcome.error().message;
  if (!outcome->step) {
    const Shortage& shortage = outcome->shortage;
    if (needed <= available) return "a step that fits was not planned";
    if (shortage.pages_needed != needed || shortage.pages_available != available ||
        shortage.entries_that_fit != fitting ||
        shortage.pages_returning != (twin_.steps.empty() ? 0 : twin_.fenced.size())) {
      return "a shortage is not as the twin has it";
    }
    if (shortage.fitting_tokens != 0) {
      StepEntry entry = entries[fitting];
      entry.draft_count = 0;
      entry.tree_parents = {};
      std::uint32_t left = available;
      for (std::uint32_t i = 0; i < fitting; ++i) left -= parts[i].new_pages;
      const auto fits = [&](std::uint32_t token_count) {
        entry.token_count = token_count;
        return twin_.make_part(*parts[fitting].sequence, entry).new_pages <= left;
      };
      if (!fits(shortage.fitting_tokens)) return "tokens are said to fit that do not";
      // With a window more tokens may take fewer pages: then some number of tokens is told, not the greatest.
      const bool has_window = parts[fitting].sequence->window.visible_tokens != 0;
      const bool is_all = shortage.fitting_tokens == parts[fitting].token_count;
      if (!has_window && !is_all && fits(shortage.fitting_tokens + 1)) return "more tokens fit than are said to";
      count("fewer tokens fit");
    }
    count("plan without pages");
    return picture_but_steps() == before_short ? "" : "a plan that was short changed something";
  }
  if (needed > available) {
    // Only without the tails that are cached: those are to be computed again.
    for (const auto& each : twin_.sequences) {
      const bool saw_all = each->window.visible_tokens == 0 || each->computed <= each->window.visible_tokens;
      if (each->has_cached_tail() && !each->is_tail_planned && saw_all && !each->is_undecided()) {
        twin_.give_up_tail(*each);
      }
    }
    needed = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i] = twin_.make_part(*parts[i].sequence, entries[i]);
      needed += parts[i].new_pages;
    }
  }
  // Pages that wait for moves only are taken before others are evicted.
  for (std::uint32_t free_pages = before.free_pages;
       twin_.steps.empty() && free_pages < needed && !twin_.fenced.empty(); ++free_pages) {
    twin_.fenced.pop_front();
  }
  return planned(entries, parts, *outcome->step);
}

std::string SequenceModel::planned(const std::vector<StepEntry>& entries, std::vector<TwinPart>& parts,
                                   const Step& step) {
  twin_.step_number = step.number;
  std::size_t copy_count = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    TwinPart& part = parts[i];
    const AttentionPlanEntry& entry = step.plan.entries[i];
    if (part.copies) {
      if (copy_count == step.plan.copies.size()) return "a copy is missing";
      const PageCopy& copy = step.plan.copies[copy_count++];
      if (copy.token_count != part.sequence->tail_tokens) return "a copy of another length";
      const bool is_known = part.sequence->tail != nullptr;
      if (is_known ? copy.source != part.sequence->tail->id : !has_page_with_tail(*part.sequence, copy.source)) {
        return "a copy of another page";
      }
    }
    twin_.plan_part(part, entries[i], cache_->view(part.sequence->handle)->pages());
    const std::uint32_t queries = std::max(1U, part.token_count + part.draft_count);
    if (entry.position != part.position || entry.token_count != queries) return "an entry computes other tokens";
    part.slots.assign(entry.append_slots.begin(), entry.append_slots.end());
  }
  if (copy_count != step.plan.copies.size()) return "a copy too many";
  if (step.plan.groups[0].moves.empty() == twin_.has_moves) return "moves are missing, or there are too many";
  twin_.has_moves = false;
  twin_.steps.push_back({step, parts});
  if (!cache_->apply_copies(step)) return "copies cannot be applied";
  for (const TwinPart& part : parts) {
    for (const std::int64_t slot : part.slots) {
      if (slot != kNoSlot) write(slot, ~0ULL);
    }
  }
  return "";
}

std::string SequenceModel::finish(Random& random) {
  if (twin_.steps.empty()) return "";
  TwinStep finished = std::move(twin_.steps.front());
  const std::size_t count = finished.parts.size();
  std::vector<std::vector<TokenId>> tokens(count);
  std::vector<StepResult> results(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (finished.parts[i].is_discarded) continue;
    draw_result(finished.parts[i], random, tokens[i], results[i]);
    results[i].tokens = tokens[i];
    compute(finished.parts[i], results[i]);
  }
  const Status status = cache_->finish_step(finished.step, results);
  if (!status) return status.error().message;
  done_ = finished.step;
  twin_.steps.erase(twin_.steps.begin());
  for (std::size_t i = 0; i < count; ++i) {
    TwinPart& part = finished.parts[i];
    if (part.is_discarded) continue;
    if (results[i].discard) {
      twin_.discard(part, 0);
    } else if (!part.sequence->is_ended) {
      twin_.finish_part(part, results[i]);
      remember(part.sequence->tokens);
    } else if (part.draft_count == 0 && part.computed_end() <= part.sequence->count()) {
      twin_.finish_part(part, {});
    } else {
      --part.sequence->in_flight;
    }
  }
  twin_.end_step(finished);
  return "";
}

void SequenceModel::draw_result(const TwinPart& part, Random& random, std::vector<TokenId>& tokens,
                                StepResult& result) const {
  const TwinSequence& sequence = *part.sequence;
  const std::uint32_t end = part.computed_end();
  const bool is_unknown = end > sequence.count();
  const bool is_overtaken = part.is_tree && end < sequence.count();
  if (random.below(10) == 0 || ((is_unknown || is_overtaken) && !sequence.is_ended)) {
    result.discard = true;
    return;
  }
  if (part.is_tree) {
    tokens = draw_tokens(random, part.draft_count);
    return;
  }
  if (end != sequence.count()) return;
  const std::uint32_t room = kContextTokensMax - sequence.count();
  result.accepted_count = std::min(room, random.below(part.draft_count + 1));
  // A token in almost every step, so that steps planned ahead mostly find theirs.
  const std::uint32_t more = random.below(8) == 0 ? random.below(3) : 1;
  tokens = draw_tokens(random, std::min(room, result.accepted_count + more));
}

void SequenceModel::compute(const TwinPart& part, const StepResult& result) {
  const TwinSequence& sequence = *part.sequence;
  if (result.discard || part.runs_again()) return;
  std::vector<TokenId> text = sequence.tokens;
  if (!part.is_tree) text.insert(text.end(), result.tokens.begin(), result.tokens.end());
  const std::uint32_t linear = part.token_count + (part.is_tree ? 0 : result.accepted_count);
  for (std::uint32_t i = 0; i < linear; ++i) {
    if (part.slots[i] != kNoSlot && part.position + i < text.size()) {
      write(part.slots[i], value(text, part.position + i));
    }
  }
  if (!part.is_tree || sequence.is_ended) return;
  std::vector<TokenId> values = sequence.values;
  values.insert(values.end(), result.tokens.begin(), result.tokens.end());
  for (std::uint32_t i = 0; i < part.draft_count; ++i) {
    std::vector<TokenId> path;
    for (auto node = static_cast<std::int32_t>(part.tree_before + i); node >= 0; node = sequence.parents[node]) {
      path.insert(path.begin(), values[node]);
    }
    path.insert(path.begin(), sequence.tokens.begin(), sequence.tokens.begin() + part.computed_end());
    write(part.slots[part.token_count + i], value(path, static_cast<std::uint32_t>(path.size()) - 1));
  }
}

std::string SequenceModel::abort(Random& random) {
  if (twin_.steps.empty()) return "";
  const std::uint32_t place = random.below(static_cast<std::uint32_t>(twin_.steps.size()));
  TwinStep aborted = std::move(twin_.steps[place]);
  const Status status = cache_->abort_step(aborted.step);
  if (!status) return status.error().message;
  done_ = aborted.step;
  twin_.steps.erase(twin_.steps.begin() + place);
  for (TwinPart& part : aborted.parts) {
    if (!part.is_discarded) twin_.discard(part, place);
  }
  twin_.end_step(aborted);
  return "";
}

std::string SequenceModel::wind_down(Random& random) {
  std::string difference;
  const auto has_handles = [&] {
    return std::ranges::any_of(twin_.sequences, [](const auto& each) { return !each->is_ended; });
  };
  while (difference.empty() && (has_handles() || !twin_.steps.empty())) {
    const std::uint32_t choice = random.below(3);
    difference = choice == 0 ? end(random) : choice == 1 ? finish(random) : abort(random);
    if (difference.empty()) difference = compare();
  }
  if (!difference.empty()) return "winding down: " + difference;
  if (!twin_.sequences.empty()) return "a sequence outlived its steps";
  const Status status = cache_->reset();
  if (!status) return status.error().message;
  twin_.flush_moves();
  twin_.tree.clear();
  keeps_.clear();
  const Stats stats = cache_->stats().value();
  gone_ = stats.evicted_page_total + stats.dropped_page_total;
  if (stats.free_pages != config_.page_count) return "pages are left when nothing is";
  if (twin_.kept_total > 0) count("page kept without dedup");
  twin_.kept_total = 0;
  return compare();
}

}  // namespace quire::testing
