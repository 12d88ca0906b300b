// SPDX-License-Identifier: Apache-2.0
//
// What the model does to sequences.
#include "sequence_model.h"

#include <algorithm>
#include <array>
#include <utility>

namespace quire::testing {

SequenceModel::SequenceModel(const ModelConfig& config)
    : config_(config), twin_({config.page_tokens, config.window_rewind_tokens, config.dedup}) {
  CacheConfig settings = test_config(config.page_tokens, config.page_count);
  settings.context_tokens_max = kContextTokensMax;
  settings.sequence_count_max = kSequenceCountMax;
  settings.step_tokens_max = kStepTokensMax;
  settings.steps_in_flight_max = config.steps_in_flight_max;
  settings.tree_tokens_max = kTreeTokensMax;
  settings.host = host_for_saving(kSavedPageCount);
  settings.window_rewind_tokens = config.window_rewind_tokens;
  settings.partial_reuse_min_tokens = config.copies_partial_hits ? 1 : config.page_tokens;
  settings.dedup = config.dedup;
  settings.plan.page_tables = PageTables::Csr;
  cache_ = open_cache(std::move(settings));
  space_ = cache_->key_space({}).value();
}

std::string SequenceModel::apply(const Op& op) {
  Random random((std::uint64_t{op.draws[0]} << 40U) ^ (std::uint64_t{op.draws[1]} << 20U) ^ op.draws[2] ^
                (std::uint64_t{op.draws[3]} << 8U));
  using Operation = std::string (SequenceModel::*)(Random&);
  constexpr std::array<Operation, 36> kOperations = {
      &SequenceModel::plan,    &SequenceModel::begin,  &SequenceModel::admit,   &SequenceModel::plan,
      &SequenceModel::finish,  &SequenceModel::fork,   &SequenceModel::rewind,  &SequenceModel::plan,
      &SequenceModel::finish,  &SequenceModel::append, &SequenceModel::commit,  &SequenceModel::plan,
      &SequenceModel::abort,   &SequenceModel::end,    &SequenceModel::window,  &SequenceModel::plan,
      &SequenceModel::preempt, &SequenceModel::resume, &SequenceModel::receive, &SequenceModel::finish,
      &SequenceModel::arrive,  &SequenceModel::begin,  &SequenceModel::admit,   &SequenceModel::finish,
      &SequenceModel::plan,    &SequenceModel::finish, &SequenceModel::append,  &SequenceModel::commit,
      &SequenceModel::resume,  &SequenceModel::keep,   &SequenceModel::reclaim, &SequenceModel::mark_send,
      &SequenceModel::refuse,  &SequenceModel::refuse, &SequenceModel::refuse,  &SequenceModel::refuse};
  std::string difference = (this->*kOperations[op.kind % kOperations.size()])(random);
  if (difference.empty()) difference = compare();
  if (difference.empty() && ++applied_ % kWindDownEvery == 0) difference = wind_down(random);
  return difference;
}

std::string SequenceModel::begin(Random& random) {
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

std::string SequenceModel::admit(Random& random) {
  TwinSequence* const sequence = draw(random, [](const TwinSequence& each) { return each.state == State::Waiting; });
  if (sequence == nullptr) return "";
  const Result<Admission> admission = cache_->admit(sequence->handle);
  return admitted(*sequence, admission);
}

std::string SequenceModel::admitted(TwinSequence& sequence, const Result<Admission>& admission) {
  if (!admission) return admission.error().message;
  if (admission->partial_tokens > 0 && !config_.copies_partial_hits) return "a partial hit was not to be copied";
  twin_.admit(sequence, admission->partial_tokens);
  if (admission->matched_tokens != sequence.computed) return "another number of tokens was found";
  if (admission->partial_tokens > 0 && !has_page_with_tail(sequence, kNullPage)) return "a partial hit on nothing";
  return "";
}

std::string SequenceModel::fork(Random& random) {
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

std::string SequenceModel::add(Result<Sequence> handle, std::unique_ptr<TwinSequence> added) {
  const bool is_full = twin_.sequences.size() == kSequenceCountMax;
  if (is_full) return handle ? "one sequence too many" : "";
  if (!handle) return handle.error().message;
  remember(added->tokens);
  added->handle = std::move(*handle);
  twin_.sequences.push_back(std::move(added));
  return "";
}

std::string SequenceModel::rewind(Random& random) {
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

std::string SequenceModel::window(Random& random) {
  if (random.below(2) == 0) return "";
  TwinSequence* const sequence = draw(random, [](const TwinSequence& each) {
    const bool is_waiting = each.state == State::Waiting || each.state == State::Dropped;
    return each.window.visible_tokens == 0 && !each.is_marked && (each.is_quiet() || is_waiting);
  });
  if (sequence == nullptr) return "";
  const std::uint32_t visible_tokens = 1 + random.below(16);
  const Window window{.visible_tokens = visible_tokens, .sink_tokens = random.below(visible_tokens)};
  const Status status = cache_->set_window(sequence->handle, window);
  if (!status) return status.error().message;
  twin_.set_window(*sequence, window);
  return "";
}

std::string SequenceModel::append(Random& random) {
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

std::string SequenceModel::commit(Random& random) {
  TwinSequence* const sequence =
      draw(random, [](const TwinSequence& each) { return each.tree_count() > 0 && each.in_flight == 0; });
  if (sequence == nullptr) return "";
  const std::int32_t leaf = static_cast<std::int32_t>(random.below(sequence->tree_count() + 1)) - 1;
  const Status status = cache_->commit_tree(sequence->handle, leaf);
  if (!status) return status.error().message;
  twin_.commit(*sequence, leaf);
  return "";
}

std::string SequenceModel::preempt(Random& random) {
  TwinSequence* const sequence = draw_quiet(random);
  if (sequence == nullptr) return "";
  if (random.below(2) == 0) {
    const bool saw_more = sequence->window.visible_tokens > 0 && sequence->full > sequence->window.visible_tokens;
    const bool is_done = cache_->preempt(sequence->handle, Preempt::Drop).has_value();
    if (is_done == saw_more) return "preempt is wrong about what can be computed again";
    if (is_done) twin_.drop_pages(*sequence);
    return "";
  }
  // Coming back, one that finds nothing may evict a page and put its own in that place: more than the twin can see.
  if (!sequence->use_cache && config_.page_count < kManyPages) return "";
  const bool fits = SequenceTwin::pages_to_save(*sequence) + saved_pages() <= kSavedPageCount;
  const bool is_done = cache_->preempt(sequence->handle, Preempt::Save).has_value();
  drain(*cache_);
  if (is_done != fits) return "preempt is wrong about saved pages";
  if (is_done) twin_.save(*sequence);
  return "";
}

std::string SequenceModel::resume(Random& random) {
  TwinSequence* const sequence =
      draw(random, [](const TwinSequence& each) { return each.state == State::Dropped || each.state == State::Saved; });
  if (sequence == nullptr) return "";
  const Stats before = cache_->stats().value();
  const Result<Admission> admission = cache_->resume(sequence->handle);
  drain(*cache_);
  if (sequence->state == State::Dropped) return admitted(*sequence, admission);
  const auto [cached, needed] = twin_.restorable(*sequence);
  const std::uint32_t available = available_pages(before);
  if (!admission) return needed + cached > available ? "" : admission.error().message;
  if (needed > available) return "saved pages came back without room";
  if (admission->matched_tokens + admission->loading_tokens != sequence->computed)
    return "another number of tokens came back";
  twin_.restore(*sequence, cache_->view(sequence->handle)->pages());
  return "";
}

std::string SequenceModel::receive(Random& random) {
  TwinSequence* const sequence = draw(
      random, [](const TwinSequence& each) { return each.is_quiet() && each.missing() > 0 && each.tail_tokens == 0; });
  if (sequence == nullptr) return "";
  const std::uint32_t token_count = 1 + random.below(sequence->missing());
  const std::uint32_t end = sequence->computed + token_count;
  if (sequence->window.visible_tokens > 0 && end > sequence->window.visible_tokens) return "";
  const std::uint32_t needed = twin_.pages_for(end) - sequence->row_count();
  // A part that was discarded may still run, and write where the received tokens would go.
  const bool is_written = std::ranges::any_of(twin_.steps, [](const TwinStep& each) {
    return std::ranges::any_of(each.parts, [](const TwinPart& part) { return part.is_discarded; });
  });
  const bool fits = !is_written && needed <= available_pages(cache_->stats().value());
  const Result<std::span<const SlotRun>> slots = cache_->prepare_receive(sequence->handle, token_count);
  if (slots.has_value() != fits) return "prepare_receive is wrong about pages";
  if (!slots) return "";
  twin_.receive(*sequence, token_count, cache_->view(sequence->handle)->pages());
  std::uint32_t position = sequence->computed;
  for (const SlotRun& run : *slots) {
    for (std::int64_t i = 0; i < run.token_count; ++i) {
      write(run.first_slot + i, value(sequence->tokens, position++));
    }
  }
  return position == end ? "" : "the slots to receive at are not as many as the tokens";
}

std::string SequenceModel::arrive(Random& random) {
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

std::string SequenceModel::mark_send(Random& random) {
  TwinSequence* const sequence = draw_quiet(random);
  if (sequence == nullptr || sequence->window.visible_tokens > 0) return "";
  const std::uint32_t begin = random.below(kContextTokensMax);
  const SlotRun slots{.first_slot = 3, .token_count = 1 + random.below(kContextTokensMax - begin)};
  sequence->is_marked = true;
  sequence->send_end = begin + static_cast<std::uint32_t>(slots.token_count);
  if (begin < sequence->computed) sequence->has_run = false;  // a step has to list what is there already
  const Status status = cache_->mark_send(sequence->handle, begin, {&slots, 1}, 0);
  return status ? "" : status.error().message;
}

std::string SequenceModel::end(Random& random) {
  TwinSequence* const sequence = draw(random, [](const TwinSequence&) { return true; });
  if (sequence == nullptr) return "";
  return end(*sequence, random.below(2) == 0);
}

std::string SequenceModel::end(TwinSequence& sequence, bool drops_handle) {
  if (drops_handle) {
    sequence.handle = {};
    if (!cache_->advance(0)) return "the clock cannot stand still";
  } else {
    const Status status = cache_->end(sequence.handle);
    if (!status) return status.error().message;
    ended_ = std::move(sequence.handle);
  }
  twin_.end(sequence);
  return "";
}

std::string SequenceModel::keep(Random& random) {
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

std::string SequenceModel::reclaim(Random& random) {
  if (random.below(4) != 0) return "";
  return cache_->reclaim(random.below(6)) ? "" : "reclaim failed";
}

std::vector<TokenId> SequenceModel::draw_tokens(Random& random, std::uint32_t count) {
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(random.below(2));
  return tokens;
}

std::vector<TokenId> SequenceModel::draw_text(Random& random) {
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

void SequenceModel::remember(const std::vector<TokenId>& text) {
  if (history_.size() < 12) {
    history_.push_back(text);
  } else {
    history_[next_memory_++ % history_.size()] = text;
  }
}

}  // namespace quire::testing
