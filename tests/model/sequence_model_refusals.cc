// SPDX-License-Identifier: Apache-2.0
//
// Calls that must fail, at any point of a run. Each must leave everything as it was: all that the cache shows, and
// every byte of the pool.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "base/hash.h"
#include "sequence_model.h"
#include "tests/cache/sequence_changes_fixture.h"

namespace quire::testing {

namespace {

bool is_busy(const TwinSequence& sequence) {
  return sequence.is_running() && (sequence.in_flight > 0 || sequence.is_undecided() || sequence.receiving > 0);
}

bool is_preempted(const TwinSequence& sequence) {
  return sequence.state == TwinSequence::State::Dropped || sequence.state == TwinSequence::State::Saved;
}

/// Too much by one, by a few, or by far.
std::uint32_t draw_beyond(Random& random, std::uint32_t limit) {
  const std::uint32_t choice = random.below(8);
  if (choice == 0) return std::numeric_limits<std::uint32_t>::max();
  return limit + 1 + (choice < 3 ? random.below(9) : 0);
}

}  // namespace

std::string SequenceModel::picture() {
  std::vector<const Sequence*> handles;
  for (const auto& each : twin_.sequences) {
    if (!each->is_ended) handles.push_back(&each->handle);
  }
  const std::uint64_t bytes = hash_bytes(cache_->device_memory(), cache_->geometry().pool_bytes(), 0);
  std::array<ResidencyRecord, 16> records;
  for (bool has_more = true; has_more;) {
    const std::span<ResidencyRecord> read = cache_->read_residency(residency_count_, records).value();
    has_more = !read.empty();
    if (has_more) residency_count_ = read.back().number + 1;
  }
  return dump(*cache_, handles) + "residency " + std::to_string(residency_count_) + "\nbytes " + std::to_string(bytes) +
         "\n";
}

std::string SequenceModel::picture_but_steps() {
  std::string text = picture();
  const std::size_t begin = text.find("\nsteps ") + 1;
  return text.erase(begin, text.find('\n', begin) + 1 - begin);
}

void SequenceModel::count(const char* name) {
  if (config_.counts != nullptr) ++(*config_.counts)[name];
}

template <typename Call>
std::string SequenceModel::refused(const char* name, ErrorCode code, const Call& call) {
  const std::string before = picture();
  const auto result = call();
  if (result.has_value()) return std::string(name) + " was not refused";
  if (result.error().code != code) return std::string(name) + " was refused otherwise: " + result.error().message;
  if (const std::string after = picture(); after != before) {
    return std::string(name) + " was refused (" + result.error().message + ") but changed something\n" + before +
           "is now\n" + after;
  }
  count(name);
  return "";
}

std::string SequenceModel::refuse(Random& random) {
  using Operation = std::string (SequenceModel::*)(Random&);
  constexpr std::array<Operation, 12> kOperations = {
      &SequenceModel::refuse_begin,  &SequenceModel::refuse_ended,    &SequenceModel::refuse_fork,
      &SequenceModel::refuse_rewind, &SequenceModel::refuse_window,   &SequenceModel::refuse_state,
      &SequenceModel::refuse_append, &SequenceModel::refuse_commit,   &SequenceModel::refuse_plan,
      &SequenceModel::refuse_finish, &SequenceModel::refuse_transfer, &SequenceModel::refuse_whole_cache};
  return (this->*kOperations[random.below(kOperations.size())])(random);
}

// ── sequences ───────────────────────────────────────────────────────────────────────────────────────────────────────

std::string SequenceModel::refuse_begin(Random& random) {
  const bool is_full = twin_.sequences.size() == kSequenceCountMax;
  std::vector<TokenId> tokens = draw_text(random);
  const auto begin = [&] { return cache_->begin(space_, {.tokens = tokens}); };
  switch (random.below(4)) {
    case 0:
      tokens.clear();
      return refused("begin without tokens", ErrorCode::InvalidArgument, begin);
    case 1:
      tokens.resize(kContextTokensMax + 1 + random.below(4));
      return refused("begin with too many tokens", ErrorCode::InvalidArgument, begin);
    case 2:
      tokens[random.below(static_cast<std::uint32_t>(tokens.size()))] = -1 - static_cast<TokenId>(random.below(3));
      return refused("begin with a negative token", ErrorCode::InvalidArgument, begin);
    default:
      if (!is_full) return "";
      return refused("begin of one too many", ErrorCode::Unavailable, begin);
  }
}

// A handle without a sequence, or whose sequence has ended.
std::string SequenceModel::refuse_ended(Random& random) {
  const Sequence never;
  const Sequence& gone = random.below(3) == 0 ? never : ended_;
  const SlotRun slots{.first_slot = 3, .token_count = 1};
  constexpr ErrorCode kBad = ErrorCode::InvalidArgument;
  switch (random.below(14)) {
    case 0:
      return refused("admit of an ended one", kBad, [&] { return cache_->admit(gone); });
    case 1:
      return refused("fork of an ended one", kBad, [&] { return cache_->fork(gone, 0); });
    case 2:
      return refused("rewind of an ended one", kBad, [&] { return cache_->rewind(gone, 0); });
    case 3:
      return refused("set_window of an ended one", kBad, [&] { return cache_->set_window(gone, {1, 0}); });
    case 4:
      return refused("commit_tree of an ended one", kBad, [&] { return cache_->commit_tree(gone, -1); });
    case 5:
      return refused("preempt of an ended one", kBad, [&] { return cache_->preempt(gone, Preempt::Drop); });
    case 6:
      return refused("resume of an ended one", kBad, [&] { return cache_->resume(gone); });
    case 7:
      return refused("prepare_receive of an ended one", kBad, [&] { return cache_->prepare_receive(gone, 1); });
    case 8:
      return refused("finish_receive of an ended one", kBad, [&] { return cache_->finish_receive(gone); });
    case 9:
      return refused("abort_receive of an ended one", kBad, [&] { return cache_->abort_receive(gone); });
    case 10:
      return refused("mark_send of an ended one", kBad, [&] { return cache_->mark_send(gone, 0, {&slots, 1}, 0); });
    case 11:
      return refused("append to an ended one", kBad, [&] {
        const TokenId token = 0;
        return cache_->append(gone, {.tokens = {&token, 1}});
      });
    case 12:
      return refused("end of an ended one", kBad, [&] { return cache_->end(ended_); });
    default:
      return refused("view of an ended one", kBad, [&] { return cache_->view(gone); });
  }
}

std::string SequenceModel::refuse_fork(Random& random) {
  TwinSequence* const sequence = draw(random, [](const TwinSequence&) { return true; });
  if (sequence == nullptr) return "";
  if (!sequence->is_running()) {
    return refused("fork of a waiting one", ErrorCode::InvalidArgument,
                   [&] { return cache_->fork(sequence->handle, 0); });
  }
  const std::uint32_t at = draw_beyond(random, is_busy(*sequence) ? sequence->computed : sequence->count());
  return refused(is_busy(*sequence) ? "fork beyond what is computed" : "fork beyond the end",
                 ErrorCode::InvalidArgument, [&] { return cache_->fork(sequence->handle, at); });
}

std::string SequenceModel::refuse_rewind(Random& random) {
  TwinSequence* const sequence = draw(random, [](const TwinSequence&) { return true; });
  if (sequence == nullptr) return "";
  const auto rewind = [&](std::uint32_t count) {
    return [=, this] { return cache_->rewind(sequence->handle, count); };
  };
  if (!sequence->is_running()) return refused("rewind of a waiting one", ErrorCode::InvalidArgument, rewind(0));
  if (is_busy(*sequence)) return refused("rewind of a busy one", ErrorCode::Unavailable, rewind(random.below(3)));
  return refused("rewind past the start", ErrorCode::InvalidArgument, rewind(draw_beyond(random, sequence->count())));
}

std::string SequenceModel::refuse_window(Random& random) {
  TwinSequence* const sequence = draw(random, [](const TwinSequence&) { return true; });
  if (sequence == nullptr) return "";
  const auto set = [&](const Window& window) {
    return [=, this] { return cache_->set_window(sequence->handle, window); };
  };
  const std::uint32_t tokens = 1 + random.below(16);
  const std::uint32_t choice = random.below(4);
  if (choice == 0) return refused("window of nothing", ErrorCode::InvalidArgument, set({0, random.below(2)}));
  if (choice == 1) {
    return refused("window that is all sink", ErrorCode::InvalidArgument,
                   set({tokens, draw_beyond(random, tokens) - 1}));
  }
  const auto usual = set({.visible_tokens = tokens, .sink_tokens = random.below(tokens)});
  if (sequence->window.visible_tokens > 0) return refused("second window", ErrorCode::InvalidArgument, usual);
  if (sequence->state == State::Saved) return refused("window of a saved one", ErrorCode::InvalidArgument, usual);
  if (is_busy(*sequence)) return refused("window of a busy one", ErrorCode::Unavailable, usual);
  if (sequence->is_marked) return refused("window of a sender", ErrorCode::InvalidArgument, usual);
  return "";
}

// What has not begun, has begun already, or is in the middle of something.
std::string SequenceModel::refuse_state(Random& random) {
  TwinSequence* const sequence = draw(random, [](const TwinSequence&) { return true; });
  if (sequence == nullptr) return "";
  const Sequence& handle = sequence->handle;
  const auto admit = [&] { return cache_->admit(handle); };
  const auto resume = [&] { return cache_->resume(handle); };
  const Preempt how = random.below(2) == 0 ? Preempt::Drop : Preempt::Save;
  const auto preempt = [&] { return cache_->preempt(handle, how); };
  const std::uint32_t choice = random.below(3);
  constexpr ErrorCode kBad = ErrorCode::InvalidArgument;
  if (choice == 0 && is_preempted(*sequence)) return refused("admit of a preempted one", kBad, admit);
  if (choice == 0 && sequence->is_running()) return refused("admit of an admitted one", kBad, admit);
  if (choice == 1 && !is_preempted(*sequence)) return refused("resume of one that was not preempted", kBad, resume);
  if (choice == 2 && is_busy(*sequence)) return refused("preempt of a busy one", ErrorCode::Unavailable, preempt);
  if (choice == 2 && !sequence->is_running()) return refused("preempt of a waiting one", kBad, preempt);
  return "";
}

std::string SequenceModel::refuse_append(Random& random) {
  TwinSequence* const sequence = draw(random, [](const TwinSequence&) { return true; });
  if (sequence == nullptr) return "";
  std::vector<TokenId> tokens = draw_tokens(random, random.below(3));
  const auto append = [&] { return cache_->append(sequence->handle, {.tokens = tokens}); };
  if (sequence->in_flight > 0) return refused("append in flight", ErrorCode::Unavailable, append);
  if (sequence->is_undecided()) return refused("append to an undecided one", ErrorCode::Unavailable, append);
  if (random.below(2) == 0) {
    tokens.assign(kContextTokensMax - sequence->count() + 1, 0);
    return refused("append of too many tokens", ErrorCode::InvalidArgument, append);
  }
  if (sequence->count() == kContextTokensMax) return "";
  tokens = {-1};
  return refused("append of a negative token", ErrorCode::InvalidArgument, append);
}

std::string SequenceModel::refuse_commit(Random& random) {
  TwinSequence* sequence = draw(random, [](const TwinSequence& each) { return each.tree_count() > 0; });
  if (sequence == nullptr) sequence = draw(random, [](const TwinSequence&) { return true; });
  if (sequence == nullptr) return "";
  const auto commit = [&](std::int32_t leaf) {
    return [=, this] { return cache_->commit_tree(sequence->handle, leaf); };
  };
  if (sequence->tree_count() == 0) return refused("commit without a tree", ErrorCode::InvalidArgument, commit(-1));
  if (sequence->in_flight > 0) return refused("commit of a tree in flight", ErrorCode::Unavailable, commit(-1));
  const std::int32_t leaf = random.below(2) == 0 ? static_cast<std::int32_t>(sequence->tree_count()) : -2;
  return refused("commit of a leaf that is none", ErrorCode::InvalidArgument, commit(leaf));
}

// ── steps ───────────────────────────────────────────────────────────────────────────────────────────────────────────

std::string SequenceModel::refuse_plan(Random& random) {
  TwinSequence* bad = draw(random, [](const TwinSequence&) { return true; });
  if (random.below(4) == 0) {
    TwinSequence* const sender =
        draw(random, [](const TwinSequence& each) { return each.is_quiet() && each.is_marked; });
    if (sender != nullptr) bad = sender;
  }
  if (bad == nullptr) return "";
  std::vector<StepEntry> entries = {{.sequence = &bad->handle}};
  const auto plan = [&] { return cache_->plan_step(entries); };
  constexpr ErrorCode kBad = ErrorCode::InvalidArgument;
  if (twin_.steps.size() == config_.steps_in_flight_max) {
    return refused("plan of one step too many", ErrorCode::Unavailable, plan);
  }
  if (!bad->is_running() || bad->receiving > 0) {
    // Good ones stand before it, as far as they are.
    std::vector<std::vector<std::int32_t>> parents(twin_.sequences.size());
    for (std::size_t i = 0; i < twin_.sequences.size(); ++i) {
      StepEntry entry;
      if (random.below(2) == 0 || !draw_entry(*twin_.sequences[i], random, entry, parents[i])) continue;
      entries.insert(entries.end() - 1, entry);
    }
    return refused(bad->receiving > 0 ? "plan of a receiving one" : "plan of a waiting one", kBad, plan);
  }
  StepEntry& entry = entries.front();
  if (bad->has_draft || (bad->tree_count() > 0 && bad->in_flight > 0)) {
    return refused("plan of an undecided one in flight", ErrorCode::Unavailable, plan);
  }
  if (bad->tree_count() > 0) {
    entry.draft_count = random.below(2);
    return refused("plan of an undecided one", kBad, plan);
  }
  if (bad->in_flight > 0) {
    entry.token_count = draw_beyond(random, kContextTokensMax);
    return refused("plan of more than steps in flight bring", kBad, plan);
  }
  return refuse_quiet_plan(*bad, random);
}

std::string SequenceModel::refuse_quiet_plan(const TwinSequence& sequence, Random& random) {
  StepEntry entry{.sequence = &sequence.handle};
  std::vector<std::int32_t> parents;
  PlanShape shape;
  std::vector<StepEntry> entries;
  const auto plan = [&] { return cache_->plan_step(entries, shape); };
  constexpr ErrorCode kBad = ErrorCode::InvalidArgument;
  const bool can_run = sequence.pending() > 0;
  const std::uint32_t choice = random.below(6);
  if (sequence.is_marked && choice < 3) {
    entries = {{.sequence = &sequence.handle, .draft_count = 1}};
    return refused("drafts of a sender", kBad, plan);
  }
  switch (choice) {
    case 0:
      if (!can_run || random.below(2) == 0) return refused("plan of nothing", kBad, plan);
      entries = {entry, entry};
      return refused("plan of a sequence twice", kBad, plan);
    case 1:
      entries = {{.sequence = &sequence.handle, .token_count = draw_beyond(random, sequence.pending())}};
      return refused("plan of more than is pending", kBad, plan);
    case 2:
      parents = {-1, random.below(2) == 0 ? 1 : -2};
      entries = {{.sequence = &sequence.handle, .tree_parents = parents}};
      return refused("plan of a tree with a wrong parent", kBad, plan);
    case 3:
      parents.assign(kTreeTokensMax + 1, -1);
      entries = {{.sequence = &sequence.handle, .tree_parents = parents}};
      return refused("plan of too large a tree", kBad, plan);
    case 4:
      entries = {{.sequence = &sequence.handle, .draft_count = draw_beyond(random, kContextTokensMax)}};
      return refused("drafts beyond the context", kBad, plan);
    default:
      if (!can_run) return "";
      entries = {entry};
      shape = {.entries = random.below(2) * (kSequenceCountMax + 1), .tokens = kStepTokensMax};
      return refused("plan of a shape that does not fit", kBad, plan);
  }
}

std::string SequenceModel::refuse_finish(Random& random) {
  constexpr ErrorCode kBad = ErrorCode::InvalidArgument;
  if (done_.number > 0 && random.below(3) == 0) {
    const std::vector<StepResult> results(1);
    const std::uint32_t choice = random.below(3);
    if (choice == 0) return refused("abort of a step that is over", kBad, [&] { return cache_->abort_step(done_); });
    if (choice == 1) return refused("copies of a step that is over", kBad, [&] { return cache_->apply_copies(done_); });
    return refused("finish of a step that is over", kBad, [&] { return cache_->finish_step(done_, results); });
  }
  if (twin_.steps.empty()) return "";
  const std::uint32_t place = random.below(static_cast<std::uint32_t>(twin_.steps.size()));
  const TwinStep& step = twin_.steps[place];
  std::vector<std::vector<TokenId>> tokens(step.parts.size());
  std::vector<StepResult> results(step.parts.size());
  const auto finish = [&] { return cache_->finish_step(step.step, results); };
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (step.parts[i].is_discarded) continue;
    draw_result(step.parts[i], random, tokens[i], results[i]);
    results[i].tokens = tokens[i];
  }
  if (place > 0) return refused("finish out of order", kBad, finish);
  if (random.below(4) == 0) {
    results.resize(results.size() + (random.below(2) == 0 ? 1 : -1));
    return refused("finish with another number of results", kBad, finish);
  }
  const auto spoilt = random.below(static_cast<std::uint32_t>(results.size()));
  const TwinPart& part = step.parts[spoilt];
  if (part.is_discarded || part.sequence->is_ended) return "";  // what is said of those does not count
  StepResult& result = results[spoilt];
  switch (random.below(4)) {
    case 0:
      tokens[spoilt] = {0};
      result = {.tokens = tokens[spoilt], .discard = true};
      return refused("tokens of what is discarded", kBad, finish);
    case 1:
      tokens[spoilt].resize(part.draft_count + 1);
      result = {.tokens = tokens[spoilt], .accepted_count = part.draft_count + 1};
      return refused("more drafts accepted than there are", kBad, finish);
    case 2:
      tokens[spoilt].assign(kContextTokensMax + 1, 0);
      result = {.tokens = tokens[spoilt]};
      return refused("result with too many tokens", kBad, finish);
    default:
      tokens[spoilt] = {-1};
      result = {.tokens = tokens[spoilt]};
      return refused("result with a negative token", kBad, finish);
  }
}

// ── transfers, and the rest ─────────────────────────────────────────────────────────────────────────────────────────

std::string SequenceModel::refuse_transfer(Random& random) {
  TwinSequence* sequence = draw(random, [](const TwinSequence&) { return true; });
  if (random.below(4) == 0) {
    const auto begins_in_a_copy = [](const TwinSequence& each) {
      return each.is_quiet() && each.tail_tokens > 0 && each.missing() > 0;
    };
    if (TwinSequence* const begun = draw(random, begins_in_a_copy)) sequence = begun;
  }
  if (sequence == nullptr) return "";
  const Sequence& handle = sequence->handle;
  std::vector<SlotRun> slots = {{.first_slot = 3, .token_count = 2}};
  std::uint32_t begin = random.below(kContextTokensMax - 1);
  std::int32_t receiver = 0;
  const auto mark = [&] { return cache_->mark_send(handle, begin, slots, receiver); };
  std::uint32_t count = 1;
  const auto receive = [&] { return cache_->prepare_receive(handle, count); };
  constexpr ErrorCode kBad = ErrorCode::InvalidArgument;
  const std::uint32_t choice = random.below(8);
  if (choice == 0 && sequence->receiving == 0) {
    return random.below(2) == 0
               ? refused("finish_receive of nothing", kBad, [&] { return cache_->finish_receive(handle); })
               : refused("abort_receive of nothing", kBad, [&] { return cache_->abort_receive(handle); });
  }
  if (!sequence->is_running()) {
    return random.below(2) == 0 ? refused("receive of a waiting one", kBad, receive)
                                : refused("send of a waiting one", kBad, mark);
  }
  if (is_busy(*sequence)) {
    return random.below(2) == 0 ? refused("receive of a busy one", ErrorCode::Unavailable, receive)
                                : refused("send of a busy one", ErrorCode::Unavailable, mark);
  }
  if (choice < 4) {
    count = random.below(2) == 0 ? 0 : draw_beyond(random, sequence->missing());
    if (sequence->tail_tokens > 0 && sequence->missing() > 0 && sequence->window.visible_tokens == 0) {
      count = 1;
      return refused("receive inside a page to be copied", ErrorCode::Unavailable, receive);
    }
    if (sequence->window.visible_tokens > 0 && sequence->count() > sequence->window.visible_tokens &&
        sequence->missing() > 0) {
      count = sequence->missing();
      return refused("receive beyond a window", ErrorCode::Unsupported, receive);
    }
    return refused("receive of what is not missing", kBad, receive);
  }
  if (sequence->window.visible_tokens > 0) return refused("send of a windowed one", kBad, mark);
  if (choice == 4) receiver = -1;
  if (choice == 5) slots[0].token_count = 0;
  if (choice == 6) slots[0].first_slot = -1;
  if (choice == 7) slots.push_back({.first_slot = 9, .token_count = kContextTokensMax - begin - 1});
  return refused("send to nowhere", kBad, mark);
}

std::string SequenceModel::refuse_whole_cache(Random& random) {
  constexpr ErrorCode kBad = ErrorCode::InvalidArgument;
  switch (random.below(5)) {
    case 0:
      if (twin_.sequences.empty()) return "";
      return refused("reset while sequences live", ErrorCode::Unavailable, [&] { return cache_->reset(); });
    case 1:
      if (twin_.steps.empty()) return "";
      return refused("resize in flight", ErrorCode::Unavailable,
                     [&] { return cache_->resize(config_.page_count + 1); });
    case 2:
      if (!twin_.steps.empty()) return "";
      return refused("resize to too few pages", kBad, [&] { return cache_->resize(0); });
    case 3:
      return refused("unkeep of nothing", kBad, [&] { return cache_->unkeep({.index = 1'000, .generation = 9}); });
    default:
      return refused("advance into the past", kBad, [&] { return cache_->advance(-1); });
  }
}

}  // namespace quire::testing
