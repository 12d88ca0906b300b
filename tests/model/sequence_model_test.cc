// SPDX-License-Identifier: Apache-2.0
//
// Random calls that change sequences, with several steps in flight, on a Cache and on its twin. After every call each
// page must be where the twin has it, by id, and every byte must be right. Steps write nonsense as soon as they are
// planned and what is right when they finish: a page that is reused too early shows.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "generated_ops.h"
#include "quire/cache.h"
#include "sequence_twin.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "tests/cache/cache_fixture.h"

namespace quire::testing {
namespace {

constexpr std::uint32_t kContextTokensMax = 40;
constexpr std::uint32_t kSequenceCountMax = 7;
constexpr std::uint32_t kStepTokensMax = 64;
constexpr std::uint32_t kTreeTokensMax = 9;
constexpr std::uint32_t kSavedPageCount = 24;
constexpr std::uint32_t kWindDownEvery = 120;
constexpr std::uint32_t kManyPages = 400;  // no page need ever be evicted

struct ModelConfig {
  std::uint32_t page_tokens = 4;
  std::uint32_t page_count = kManyPages;
  std::uint32_t steps_in_flight_max = 3;
  std::uint32_t window_rewind_tokens = 0;
  bool copies_partial_hits = false;
};

class SequenceModel {
 public:
  explicit SequenceModel(const ModelConfig& config)
      : config_(config), twin_({config.page_tokens, config.window_rewind_tokens}) {
    CacheConfig settings = test_config(config.page_tokens, config.page_count);
    settings.context_tokens_max = kContextTokensMax;
    settings.sequence_count_max = kSequenceCountMax;
    settings.step_tokens_max = kStepTokensMax;
    settings.steps_in_flight_max = config.steps_in_flight_max;
    settings.tree_tokens_max = kTreeTokensMax;
    settings.saved_page_count = kSavedPageCount;
    settings.window_rewind_tokens = config.window_rewind_tokens;
    settings.partial_reuse_min_tokens = config.copies_partial_hits ? 1 : config.page_tokens;
    settings.plan.page_tables = PageTables::Csr;
    cache_ = open_cache(std::move(settings));
    space_ = cache_->key_space({}).value();
  }

  /// Empty, or what differs.
  std::string apply(const Op& op) {
    Random random((std::uint64_t{op.draws[0]} << 40U) ^ (std::uint64_t{op.draws[1]} << 20U) ^ op.draws[2] ^
                  (std::uint64_t{op.draws[3]} << 8U));
    using Operation = std::string (SequenceModel::*)(Random&);
    constexpr std::array<Operation, 32> kOperations = {
        &SequenceModel::plan,    &SequenceModel::begin,  &SequenceModel::admit,   &SequenceModel::plan,
        &SequenceModel::finish,  &SequenceModel::fork,   &SequenceModel::rewind,  &SequenceModel::plan,
        &SequenceModel::finish,  &SequenceModel::append, &SequenceModel::commit,  &SequenceModel::plan,
        &SequenceModel::abort,   &SequenceModel::end,    &SequenceModel::window,  &SequenceModel::plan,
        &SequenceModel::preempt, &SequenceModel::resume, &SequenceModel::receive, &SequenceModel::finish,
        &SequenceModel::arrive,  &SequenceModel::begin,  &SequenceModel::admit,   &SequenceModel::finish,
        &SequenceModel::plan,    &SequenceModel::finish, &SequenceModel::append,  &SequenceModel::commit,
        &SequenceModel::resume,  &SequenceModel::keep,   &SequenceModel::reclaim, &SequenceModel::mark_send};
    std::string difference = (this->*kOperations[op.kind % kOperations.size()])(random);
    if (difference.empty()) difference = compare();
    if (difference.empty() && ++applied_ % kWindDownEvery == 0) difference = wind_down(random);
    return difference;
  }

 private:
  using State = TwinSequence::State;

  // ── operations ────────────────────────────────────────────────────────────────────────────────────────────────

  std::string begin(Random& random) {
    auto added = std::make_unique<TwinSequence>();
    added->tokens = draw_text(random);
    SequenceOptions options;
    if (random.below(6) == 0) options.match_tokens_max = added->match_max = random.below(added->count() + 1);
    if (random.below(8) == 0) options.use_cache = added->use_cache = false;
    options.publish = std::array{Publish::All, Publish::All, Publish::Prompt, Publish::None}[random.below(4)];
    if (options.publish == Publish::Prompt) added->publish_max = added->count();
    if (options.publish == Publish::None) added->publish_max = 0;
    Result<Sequence> begun = cache_->begin(space_, {.tokens = added->tokens}, options);
    return add(std::move(begun), std::move(added));
  }

  std::string admit(Random& random) {
    TwinSequence* const sequence = draw(random, [](const TwinSequence& each) { return each.state == State::Waiting; });
    if (sequence == nullptr) return "";
    const Result<Admission> admission = cache_->admit(sequence->handle);
    return admitted(*sequence, admission);
  }

  std::string admitted(TwinSequence& sequence, const Result<Admission>& admission) {
    if (!admission) return admission.error().message;
    if (admission->partial_tokens > 0 && !config_.copies_partial_hits) return "a partial hit was not to be copied";
    twin_.admit(sequence, admission->partial_tokens);
    if (admission->matched_tokens != sequence.computed) return "another number of tokens was found";
    if (admission->partial_tokens > 0 && !has_page_with_tail(sequence, kNullPage)) return "a partial hit on nothing";
    return "";
  }

  std::string fork(Random& random) {
    TwinSequence* const source = draw(random, [](const TwinSequence& each) { return each.is_running(); });
    if (source == nullptr) return "";
    const bool is_busy = source->in_flight > 0 || source->is_undecided() || source->receiving > 0;
    const std::uint32_t at = random.below((is_busy ? source->computed : source->count()) + 1);
    Result<Sequence> fork = cache_->fork(source->handle, at);
    if (!twin_.holds(*source, std::min(at, source->computed))) {
      return fork ? "a fork of what the window has left" : "";
    }
    auto added = std::make_unique<TwinSequence>();
    twin_.fork(*source, *added, at);
    return add(std::move(fork), std::move(added));
  }

  std::string add(Result<Sequence> handle, std::unique_ptr<TwinSequence> added) {
    const bool is_full = twin_.sequences.size() == kSequenceCountMax;
    if (is_full) return handle ? "one sequence too many" : "";
    if (!handle) return handle.error().message;
    remember(added->tokens);
    added->handle = std::move(*handle);
    twin_.sequences.push_back(std::move(added));
    return "";
  }

  std::string rewind(Random& random) {
    TwinSequence* const sequence = draw_quiet(random);
    if (sequence == nullptr) return "";
    const std::uint32_t token_count = random.below(std::min(sequence->count() + 1, 1 + random.below(24)));
    const std::uint32_t end = sequence->count() - token_count;
    const bool is_held = end >= sequence->computed || twin_.holds(*sequence, end);
    const bool is_done = cache_->rewind(sequence->handle, token_count).has_value();
    if (is_done != is_held) return "rewind is wrong about what the window holds";
    if (is_done) twin_.rewind(*sequence, token_count);
    return "";
  }

  std::string window(Random& random) {
    if (random.below(2) == 0) return "";
    TwinSequence* const sequence = draw(random, [](const TwinSequence& each) {
      const bool is_waiting = each.state == State::Waiting || each.state == State::Dropped;
      return each.window.window_tokens == 0 && !each.is_marked && (each.is_quiet() || is_waiting);
    });
    if (sequence == nullptr) return "";
    const std::uint32_t window_tokens = 1 + random.below(16);
    const Window window{.window_tokens = window_tokens, .sink_tokens = random.below(window_tokens)};
    const Status status = cache_->set_window(sequence->handle, window);
    if (!status) return status.error().message;
    twin_.set_window(*sequence, window);
    return "";
  }

  std::string append(Random& random) {
    TwinSequence* const sequence =
        draw(random, [](const TwinSequence& each) { return each.in_flight == 0 && !each.is_undecided(); });
    if (sequence == nullptr) return "";
    const std::uint32_t room = kContextTokensMax - sequence->count();
    const std::vector<TokenId> tokens = draw_tokens(random, random.below(std::min(room, 14U) + 1));
    const Status status = cache_->append(sequence->handle, {.tokens = tokens});
    if (!status) return status.error().message;
    sequence->tokens.insert(sequence->tokens.end(), tokens.begin(), tokens.end());
    remember(sequence->tokens);
    return "";
  }

  std::string commit(Random& random) {
    TwinSequence* const sequence =
        draw(random, [](const TwinSequence& each) { return each.tree_count() > 0 && each.in_flight == 0; });
    if (sequence == nullptr) return "";
    const std::int32_t leaf = static_cast<std::int32_t>(random.below(sequence->tree_count() + 1)) - 1;
    const Status status = cache_->commit_tree(sequence->handle, leaf);
    if (!status) return status.error().message;
    twin_.commit(*sequence, leaf);
    return "";
  }

  std::string preempt(Random& random) {
    TwinSequence* const sequence = draw_quiet(random);
    if (sequence == nullptr) return "";
    if (random.below(2) == 0) {
      const bool saw_more = sequence->window.window_tokens > 0 && sequence->full > sequence->window.window_tokens;
      const bool is_done = cache_->preempt(sequence->handle, Preempt::Drop).has_value();
      if (is_done == saw_more) return "preempt is wrong about what can be computed again";
      if (is_done) twin_.drop_pages(*sequence);
      return "";
    }
    // Coming back, one that finds nothing may evict a page and put its own in that place: more than the twin can see.
    if (!sequence->use_cache && config_.page_count < kManyPages) return "";
    const bool fits = SequenceTwin::pages_to_save(*sequence) + saved_pages() <= kSavedPageCount;
    const bool is_done = cache_->preempt(sequence->handle, Preempt::Save).has_value();
    if (is_done != fits) return "preempt is wrong about saved pages";
    if (is_done) twin_.save(*sequence);
    return "";
  }

  std::string resume(Random& random) {
    TwinSequence* const sequence = draw(
        random, [](const TwinSequence& each) { return each.state == State::Dropped || each.state == State::Saved; });
    if (sequence == nullptr) return "";
    const Stats before = cache_->stats().value();
    const Result<Admission> admission = cache_->resume(sequence->handle);
    if (sequence->state == State::Dropped) return admitted(*sequence, admission);
    const auto [cached, needed] = twin_.restorable(*sequence);
    const std::uint32_t available = available_pages(before);
    if (!admission) return needed + cached > available ? "" : admission.error().message;
    if (needed > available) return "saved pages came back without room";
    if (admission->matched_tokens != sequence->computed) return "another number of tokens came back";
    twin_.restore(*sequence, cache_->view(sequence->handle)->pages);
    return "";
  }

  std::string receive(Random& random) {
    TwinSequence* const sequence = draw(random, [](const TwinSequence& each) {
      return each.is_quiet() && each.missing() > 0 && each.tail_tokens == 0;
    });
    if (sequence == nullptr) return "";
    const std::uint32_t token_count = 1 + random.below(sequence->missing());
    const std::uint32_t end = sequence->computed + token_count;
    if (sequence->window.window_tokens > 0 && end > sequence->window.window_tokens) return "";
    const std::uint32_t needed = twin_.pages_for(end) - sequence->row_count();
    // A part that was discarded may still run, and write where the received tokens would go.
    const bool is_written = std::ranges::any_of(twin_.steps, [](const TwinStep& each) {
      return std::ranges::any_of(each.parts, [](const TwinPart& part) { return part.is_discarded; });
    });
    const bool fits = !is_written && needed <= available_pages(cache_->stats().value());
    const Result<std::span<const SlotRun>> slots = cache_->prepare_receive(sequence->handle, token_count);
    if (slots.has_value() != fits) return "prepare_receive is wrong about pages";
    if (!slots) return "";
    twin_.receive(*sequence, token_count, cache_->view(sequence->handle)->pages);
    std::uint32_t position = sequence->computed;
    for (const SlotRun& run : *slots) {
      for (std::int64_t i = 0; i < run.token_count; ++i) {
        write(run.first_slot + i, value(sequence->tokens, position++));
      }
    }
    return position == end ? "" : "the slots to receive at are not as many as the tokens";
  }

  std::string arrive(Random& random) {
    TwinSequence* const sequence = draw(random, [](const TwinSequence& each) { return each.receiving > 0; });
    if (sequence == nullptr) return "";
    const bool is_done = random.below(3) != 0;
    const Status status = is_done ? cache_->finish_receive(sequence->handle) : cache_->abort_receive(sequence->handle);
    if (!status) return status.error().message;
    if (is_done) {
      twin_.finish_receive(*sequence);
    } else {
      twin_.abort_receive(*sequence);
    }
    return "";
  }

  std::string mark_send(Random& random) {
    TwinSequence* const sequence = draw_quiet(random);
    if (sequence == nullptr || sequence->window.window_tokens > 0) return "";
    const std::uint32_t begin = random.below(kContextTokensMax);
    const SlotRun slots{.first_slot = 3, .token_count = 1 + random.below(kContextTokensMax - begin)};
    sequence->is_marked = true;
    sequence->send_end = begin + static_cast<std::uint32_t>(slots.token_count);
    if (begin < sequence->computed) sequence->has_run = false;  // a step has to list what is there already
    const Status status = cache_->mark_send(sequence->handle, begin, {&slots, 1}, 0);
    return status ? "" : status.error().message;
  }

  std::string end(Random& random) {
    TwinSequence* const sequence = draw(random, [](const TwinSequence&) { return true; });
    if (sequence == nullptr) return "";
    return end(*sequence, random.below(2) == 0);
  }
  std::string end(TwinSequence& sequence, bool drops_handle) {
    if (drops_handle) {
      sequence.handle = {};
      if (!cache_->advance(0)) return "the clock cannot stand still";
    } else {
      const Status status = cache_->end(sequence.handle);
      if (!status) return status.error().message;
    }
    twin_.end(sequence);
    return "";
  }

  std::string keep(Random& random) {
    if (!keeps_.empty() && random.below(2) == 0) {
      if (!cache_->unkeep(keeps_.back().id)) return "a keep cannot end";
      keeps_.pop_back();
      return "";
    }
    if (keeps_.size() == 2) return "";
    TwinSequence text;
    text.tokens = draw_text(random);
    const std::uint32_t pages = twin_.matched(text, UINT32_MAX);
    const Result<Kept> kept = cache_->keep(space_, {.tokens = text.tokens});
    if (!kept) return "";  // beyond its budget, in a small pool
    if (kept->token_count != pages * config_.page_tokens) return "keep holds another number of tokens";
    text.tokens.resize(kept->token_count);
    keeps_.push_back({kept->id, text.tokens});
    return "";
  }

  std::string reclaim(Random& random) {
    if (random.below(4) != 0) return "";
    return cache_->reclaim(random.below(6)) ? "" : "reclaim failed";
  }

  // ── steps ─────────────────────────────────────────────────────────────────────────────────────────────────────

  /// One entry that may be planned, or none. `parents` must outlive it.
  bool draw_entry(TwinSequence& sequence, Random& random, StepEntry& entry, std::vector<std::int32_t>& parents) const {
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

  std::string plan(Random& random) {
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

  std::string plan(const std::vector<StepEntry>& entries, std::vector<TwinPart>& parts) {
    const Stats before = cache_->stats().value();
    const Result<PlanOutcome> outcome = cache_->plan_step(entries);
    if (!outcome) return outcome.error().message;
    std::uint32_t needed = 0;
    std::uint32_t fitting = 0;
    const std::uint32_t available = available_pages(before);
    for (const TwinPart& part : parts) {
      needed += part.new_pages;
      if (needed <= available) ++fitting;
    }
    if (!outcome->step) {
      const Shortage& shortage = outcome->shortage;
      if (needed <= available) return "a step that fits was not planned";
      if (shortage.pages_needed != needed || shortage.pages_available != available ||
          shortage.entries_that_fit != fitting ||
          shortage.pages_returning != (twin_.steps.empty() ? 0 : twin_.fenced.size())) {
        return "a shortage is not as the twin has it";
      }
      return "";
    }
    if (needed > available) {
      // Only without the tails that are cached: those are to be computed again.
      for (const auto& each : twin_.sequences) {
        const bool saw_all = each->window.window_tokens == 0 || each->computed <= each->window.window_tokens;
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

  std::string planned(const std::vector<StepEntry>& entries, std::vector<TwinPart>& parts, const Step& step) {
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
      twin_.plan_part(part, entries[i], cache_->view(part.sequence->handle)->pages);
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

  std::string finish(Random& random) {
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

  void draw_result(const TwinPart& part, Random& random, std::vector<TokenId>& tokens, StepResult& result) const {
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

  /// What is right goes where nonsense was.
  void compute(const TwinPart& part, const StepResult& result) {
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

  std::string abort(Random& random) {
    if (twin_.steps.empty()) return "";
    const std::uint32_t place = random.below(static_cast<std::uint32_t>(twin_.steps.size()));
    TwinStep aborted = std::move(twin_.steps[place]);
    const Status status = cache_->abort_step(aborted.step);
    if (!status) return status.error().message;
    twin_.steps.erase(twin_.steps.begin() + place);
    for (TwinPart& part : aborted.parts) {
      if (!part.is_discarded) twin_.discard(part, place);
    }
    twin_.end_step(aborted);
    return "";
  }

  /// Everything ends, in any order; then nothing may be left.
  std::string wind_down(Random& random) {
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
    return compare();
  }

  // ── the twin ──────────────────────────────────────────────────────────────────────────────────────────────────

  std::string compare() {
    const Status status = cache_->check_invariants();
    if (!status) return status.error().message;
    const Stats stats = cache_->stats().value();
    std::string difference = compare_tree(stats);
    if (difference.empty()) difference = compare_sequences();
    if (difference.empty()) difference = compare_counts(stats);
    if (difference.empty() && !twin_.has_moves) difference = compare_bytes();
    return difference;
  }

  /// The tree holds what the twin's does, less what was evicted, which nobody used.
  std::string compare_tree(const Stats& stats) {
    std::map<RunId, std::vector<TokenId>> paths;
    std::map<std::vector<TokenId>, PageId> held;
    (void)cache_->visit_runs([&](const RunView& run) {
      std::vector<TokenId> path = run.depth > 1 ? paths[run.parent] : std::vector<TokenId>{};
      for (std::size_t page = 0; page < run.pages.size(); ++page) {
        const auto tokens = run.tokens.subspan(page * config_.page_tokens, config_.page_tokens);
        path.insert(path.end(), tokens.begin(), tokens.end());
        held[path] = run.pages[page];
      }
      paths[run.run] = std::move(path);
    });
    const std::set<std::vector<TokenId>> pinned = pinned_names();
    std::uint64_t gone = 0;
    for (auto each = twin_.tree.begin(); each != twin_.tree.end();) {
      const auto found = held.find(each->first);
      if (found != held.end()) {
        if (found->second != each->second->id) return "the tree holds another page for a prefix";
        ++each;
        continue;
      }
      if (pinned.contains(each->first)) return "a page in use was evicted";
      each = twin_.tree.erase(each);
      ++gone;
    }
    if (held.size() != twin_.tree.size()) return "the tree holds a page that nobody gave it";
    if (stats.evicted_page_total + stats.dropped_page_total - gone_ != gone) return "evictions do not add up";
    gone_ += gone;
    if (stats.sealed_page_total != twin_.sealed_total || stats.duplicate_page_total != twin_.duplicate_total) {
      return "other pages were sealed, or others were duplicates";
    }
    // A tail in the tree pins its whole run, so then there may be more.
    const bool is_exact =
        std::ranges::none_of(twin_.sequences, [](const auto& each) { return each->has_cached_tail(); });
    if (is_exact ? stats.pinned_pages != pinned.size() : stats.pinned_pages < pinned.size()) {
      return "other pages are pinned: " + std::to_string(stats.pinned_pages) + ", not " + std::to_string(pinned.size());
    }
    return "";
  }

  [[nodiscard]] std::set<std::vector<TokenId>> pinned_names() const {
    std::set<std::vector<TokenId>> pinned;
    for (const auto& each : twin_.sequences) {
      for (std::uint32_t page = 0; each->is_running() && page < each->pinned(); ++page) {
        pinned.insert(twin_.name_of(*each, page));
      }
      if (each->tail_tokens == 0 || !each->tail || !each->tail->is_in_tree) continue;
      for (const auto& [name, page] : twin_.tree) {
        if (page == each->tail) pinned.insert(name);
      }
    }
    for (const Keep& keep : keeps_) {
      for (std::size_t end = config_.page_tokens; end <= keep.tokens.size(); end += config_.page_tokens) {
        pinned.insert({keep.tokens.begin(), keep.tokens.begin() + static_cast<std::ptrdiff_t>(end)});
      }
    }
    return pinned;
  }

  std::string compare_sequences() const {
    for (const auto& each : twin_.sequences) {
      if (each->is_ended) continue;
      const SequenceView view = cache_->view(each->handle).value();
      const std::string name = "sequence " + std::to_string(each->handle.id().index) + ": ";
      if (view.token_count != each->count()) return name + "token_count";
      if (view.computed_tokens != each->computed) {
        return name + "computed_tokens " + std::to_string(view.computed_tokens) + ", not " +
               std::to_string(each->computed);
      }
      if (view.pending_tokens != each->pending()) return name + "pending_tokens";
      if (view.tree_tokens != each->tree_count()) return name + "tree_tokens";
      if (view.steps_in_flight != each->in_flight || view.is_planned != (each->in_flight > 0)) return name + "steps";
      if (view.is_waiting == each->is_running()) return name + "is_waiting";
      if (view.is_receiving != (each->receiving > 0)) return name + "is_receiving";
      if (view.window.window_tokens != each->window.window_tokens) return name + "window";
      if (view.pages.size() != each->row.size()) {
        return name + std::to_string(view.pages.size()) + " pages, not " + std::to_string(each->row.size());
      }
      for (std::size_t page = 0; page < view.pages.size(); ++page) {
        const PageId wanted = each->row[page] ? each->row[page]->id : kNullPage;
        if (view.pages[page] != wanted) return name + "another page in column " + std::to_string(page);
      }
    }
    return "";
  }

  std::string compare_counts(const Stats& stats) const {
    std::set<PageRef> open;
    std::set<PageRef> owned;
    for (const auto& each : twin_.sequences) {
      for (std::uint32_t page = each->shared; page < each->row_count(); ++page) {
        if (!each->row[page]) continue;
        owned.insert(each->row[page]);
        if (page >= each->settled) open.insert(each->row[page]);
      }
      if (each->tail_tokens > 0 && !each->has_cached_tail()) owned.insert(each->tail);
    }
    std::set<PageId> ids;
    const std::size_t pages = owned.size() + twin_.fenced.size() + twin_.tree.size();
    for (const PageRef& page : owned) ids.insert(page->id);
    for (const auto& each : twin_.fenced) ids.insert(each.second->id);
    const auto unseen =
        std::ranges::count_if(twin_.fenced, [](const auto& each) { return each.second->id == kNullPage; });
    for (const auto& [name, page] : twin_.tree) ids.insert(page->id);
    ids.erase(kNullPage);
    if (ids.size() + static_cast<std::size_t>(unseen) != pages) return "a page is two things at once";
    const auto differ = [](const char* what, std::size_t real, std::size_t twin) {
      return real == twin ? ""
                          : std::string(what) + " pages: " + std::to_string(real) + ", not " + std::to_string(twin);
    };
    std::string difference = differ("open", stats.open_pages, open.size());
    if (difference.empty()) difference = differ("private", stats.private_pages, owned.size() - open.size());
    if (difference.empty()) difference = differ("sealed", stats.sealed_pages, twin_.tree.size());
    if (difference.empty()) difference = differ("fenced", stats.fenced_pages, twin_.fenced.size());
    if (difference.empty()) difference = differ("free", stats.free_pages, config_.page_count - pages);
    if (difference.empty()) difference = differ("saved", stats.saved_pages, saved_pages());
    if (difference.empty() && stats.sequence_count != twin_.sequences.size()) difference = "the count of sequences";
    return difference;
  }

  /// What is computed is there, and right; so is what is cached.
  std::string compare_bytes() const {
    for (const auto& each : twin_.sequences) {
      if (!each->is_running()) continue;
      const std::uint32_t tail_begin = each->computed - each->tail_tokens;
      std::uint64_t expected = mix64(0);
      for (std::uint32_t i = 0; i < each->computed; ++i) {
        expected = mix64(expected + static_cast<std::uint64_t>(each->tokens[i]));
        const PageRef page = i < tail_begin ? each->row[i / config_.page_tokens] : each->tail;
        if (page && read(page->id, i % config_.page_tokens) != expected) {
          return "wrong bytes of token " + std::to_string(i) + " of sequence " +
                 std::to_string(each->handle.id().index);
        }
      }
    }
    for (const auto& [name, page] : twin_.tree) {
      const auto end = static_cast<std::uint32_t>(name.size());
      for (std::uint32_t i = end - config_.page_tokens; i < end; ++i) {
        if (read(page->id, i % config_.page_tokens) != value(name, i)) return "wrong bytes in the tree";
      }
    }
    return "";
  }

  /// Whether `source` (any page, for the null page) is of the tree and begins with the sequence's tail.
  [[nodiscard]] bool has_page_with_tail(const TwinSequence& sequence, PageId source) const {
    const std::uint32_t begin = sequence.computed - sequence.tail_tokens;
    return std::ranges::any_of(twin_.tree, [&](const auto& each) {
      return each.first.size() == begin + config_.page_tokens && (source == kNullPage || each.second->id == source) &&
             std::equal(sequence.tokens.begin(), sequence.tokens.begin() + sequence.computed, each.first.begin());
    });
  }
  /// Steps that wait for moves only have free pages as good as any.
  [[nodiscard]] std::uint32_t available_pages(const Stats& stats) const {
    return stats.free_pages + stats.evictable_pages + (twin_.steps.empty() ? stats.fenced_pages : 0);
  }
  [[nodiscard]] std::uint32_t saved_pages() const {
    std::uint32_t count = 0;
    for (const auto& each : twin_.sequences) {
      count += static_cast<std::uint32_t>(std::ranges::count(each->saved, true));
    }
    return count;
  }

  // ── bytes ─────────────────────────────────────────────────────────────────────────────────────────────────────

  static std::uint64_t value(std::span<const TokenId> tokens, std::uint32_t position) {
    return ByteEngine::value_at(0, tokens, {}, position);
  }
  void write(std::int64_t slot, std::uint64_t bytes) const {
    std::memcpy(cache_->device_memory() + (slot * kTestTokenBytes), &bytes, sizeof(bytes));
  }
  [[nodiscard]] std::uint64_t read(PageId page, std::uint32_t place) const {
    std::uint64_t bytes = 0;
    const std::size_t slot = (std::size_t{page.value} * config_.page_tokens) + place;
    std::memcpy(&bytes, cache_->device_memory() + (slot * kTestTokenBytes), sizeof(bytes));
    return bytes;
  }

  // ── drawing ───────────────────────────────────────────────────────────────────────────────────────────────────

  static std::vector<TokenId> draw_tokens(Random& random, std::uint32_t count) {
    std::vector<TokenId> tokens(count);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(2));
    return tokens;
  }
  /// A prefix of an earlier text and something new.
  std::vector<TokenId> draw_text(Random& random) {
    std::vector<TokenId> text;
    if (!history_.empty() && random.below(4) != 0) {
      text = history_[random.below(static_cast<std::uint32_t>(history_.size()))];
      text.resize(random.below(static_cast<std::uint32_t>(text.size()) + 1));
    }
    const auto room = static_cast<std::uint32_t>(kContextTokensMax - text.size());
    const std::vector<TokenId> added = draw_tokens(random, random.below(std::min(room, 24U) + 1));
    text.insert(text.end(), added.begin(), added.end());
    if (text.empty()) text.push_back(0);
    return text;
  }
  void remember(const std::vector<TokenId>& text) {
    if (history_.size() < 12) {
      history_.push_back(text);
    } else {
      history_[next_memory_++ % history_.size()] = text;
    }
  }
  template <typename Predicate>
  TwinSequence* draw(Random& random, Predicate is_wanted) const {
    std::vector<TwinSequence*> wanted;
    for (const auto& each : twin_.sequences) {
      if (!each->is_ended && is_wanted(*each)) wanted.push_back(each.get());
    }
    return wanted.empty() ? nullptr : wanted[random.below(static_cast<std::uint32_t>(wanted.size()))];
  }
  TwinSequence* draw_quiet(Random& random) const {
    return draw(random, [](const TwinSequence& each) { return each.is_quiet(); });
  }

  struct Keep {
    KeepId id;
    std::vector<TokenId> tokens;
  };

  ModelConfig config_;
  SequenceTwin twin_;
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::vector<Keep> keeps_;
  std::vector<std::vector<TokenId>> history_;
  std::size_t next_memory_ = 0;
  std::uint64_t gone_ = 0;
  std::uint32_t applied_ = 0;
};

[[nodiscard]] ModelConfig draw_config(Random& random) {
  constexpr std::array<std::uint32_t, 5> kPageTokens = {1, 2, 3, 4, 16};
  return {.page_tokens = kPageTokens[random.below(5)],
          .steps_in_flight_max = 1 + random.below(4),
          .window_rewind_tokens = random.below(2) * random.below(6),
          .copies_partial_hits = random.below(2) == 0};
}

TEST(SequenceModel, WithPagesEnoughEveryPageIsWhereTheTwinHasIt) {
  EXPECT_EQ(run_seeds({.test = "bin/sequence_model_test "
                               "--gtest_filter=SequenceModel.WithPagesEnoughEveryPageIsWhereTheTwinHasIt",
                       .seed_count = kIsSanitized ? 30U : 400U,
                       .step_count = std::uint64_t{4} * kWindDownEvery},
                      [](Random& random) { return SequenceModel(draw_config(random)); }),
            "");
}

TEST(SequenceModel, WithFewPagesNothingInUseIsEvicted) {
  EXPECT_EQ(run_seeds({.test = "bin/sequence_model_test "
                               "--gtest_filter=SequenceModel.WithFewPagesNothingInUseIsEvicted",
                       .seed_count = kIsSanitized ? 30U : 400U,
                       .step_count = std::uint64_t{4} * kWindDownEvery},
                      [](Random& random) {
                        ModelConfig config = draw_config(random);
                        const std::uint32_t longest = (kContextTokensMax + config.page_tokens - 1) / config.page_tokens;
                        config.page_count = longest + random.below(longest);
                        return SequenceModel(config);
                      }),
            "");
}

TEST(SequenceModel, GeneratedCallsAgreeWithTheTwinAndShrink) {
  EXPECT_TRUE(check_generated([] { return SequenceModel({.page_tokens = 4, .copies_partial_hits = true}); }));
}

}  // namespace
}  // namespace quire::testing
