// SPDX-License-Identifier: Apache-2.0
#include "cache_calls.h"
#include "casters.h"

#include <poll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "arrays.h"
#include "errors.h"
#include "prompt.h"

namespace quire::python {
namespace {

/// The C++ object of a Python one, if it is of that class.
template <typename T>
T* instance_of(nb::handle object) {
  return nb::isinstance<T>(object) ? nb::inst_ptr<T>(object) : nullptr;
}

// What callbacks are to be told, taken from the state under the lock.
struct Told {
  explicit Told(CacheState& state)
      : sequences(std::exchange(state.ready_sequences, {})),
        calls(std::exchange(state.told_calls, {})),
        answers(std::exchange(state.disk_answers, {})) {}
  std::vector<SequenceId> sequences;
  std::vector<ToldCall> calls;
  std::vector<DiskCall> answers;
};

// Once nothing of the cache is held any more.
void run_callbacks(CacheState& state, const Told& told) {
  std::optional<nb::python_error> first;
  const auto call = [&](const nb::object& callback, const nb::object& argument) {
    try {
      callback(argument);
    } catch (nb::python_error& error) {
      if (!first) first.emplace(std::move(error));
    }
  };
  if (!state.ready_callback.is_none()) {
    const nb::object callback = state.ready_callback;
    for (const SequenceId sequence : told.sequences) call(callback, nb::cast(sequence));
  }
  for (const ToldCall& each : told.calls) {
    call(*each.callback, std::visit([](const auto& argument) { return nb::cast(argument); }, each.argument));
  }
  for (const DiskCall& answer : told.answers) {
    if (!std::exchange(answer.request->is_answered, true)) call(answer.request->callback, nb::cast(answer.answer));
  }
  if (first) throw nb::python_error(std::move(*first));
}

// A function that notes what `callback` is to be told; none for None.
template <typename Argument>
std::function<void(Argument)> note_for(CacheState& state, nb::object callback, const char* takes) {
  if (callback.is_none()) return nullptr;
  if (PyCallable_Check(callback.ptr()) == 0) {
    raise(ErrorCode::InvalidArgument, std::string("callback is of type ") + nb::type_name(callback.type()).c_str() +
                                          ": give a function that takes a " + takes + ", or None for none");
  }
  const std::shared_ptr<nb::object> kept(new nb::object(std::move(callback)), [](nb::object* over) {
    const nb::gil_scoped_acquire acquire;
    delete over;
  });
  return [raw = &state, kept](Argument argument) { raw->told_calls.push_back({kept, argument}); };
}

// Makes a call of the cache's, and runs the callbacks that it asks for.
template <typename Call>
auto call_and_tell(CacheState& state, Call call) {
  std::optional<Told> told;
  auto result = [&] {
    const ByteAccess access(state);
    auto made = call(*access);
    told.emplace(state);
    return made;
  }();
  run_callbacks(state, *told);
  return take(std::move(result));
}

// Calls that wait would poll and apply for this rank alone, or go on at a time of its own.
void need_no_ranks(CacheState& state, const char* call) {
  if (!state.reports_to_ranks) return;
  raise(ErrorCode::Unsupported, std::string(call) +
                                    ": it would apply what this rank alone has heard, or go on when the "
                                    "others do not: report_to_ranks() and apply_ranks() until "
                                    "view(sequence).is_ready, or until flush() is True");
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Until there is something to read, or for so long. Without a descriptor only time goes by.
void wait_for(int descriptor, int milliseconds) {
  without_gil([&] {
    pollfd wanted{.fd = descriptor, .events = POLLIN, .revents = 0};
    return ::poll(&wanted, descriptor < 0 ? 0 : 1, milliseconds);
  });
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace

const Sequence& SequenceHandle::get() const {
  if (!sequence) raise(ErrorCode::InvalidArgument, "the sequence has ended: begin() another one");
  return sequence;
}

nb::handle PromptView::tokens_of(nb::handle source) {
  return nb::isinstance<PromptHandle>(source) ? nb::handle(nb::cast<PromptHandle&>(source).tokens) : source;
}

PromptView::PromptView(nb::handle source, std::vector<TokenId>& scratch, const char* what, std::span<TokenId> place)
    : tokens_(tokens_of(source), scratch, what, place) {
  if (nb::isinstance<PromptHandle>(source)) extra_keys_ = nb::cast<PromptHandle&>(source).extra_keys;
  prompt_ = {.tokens = tokens_.span(), .extra_keys = extra_keys_};
}

std::vector<std::uint32_t> page_ids(std::span<const PageId> pages) {
  std::vector<std::uint32_t> ids;
  ids.reserve(pages.size());
  for (const PageId page : pages) ids.push_back(page.value);
  return ids;
}

SequenceHandle sequence_of(const StatePointer& state, Sequence sequence) {
  return {state, std::move(sequence), nb::cast(state)};
}

// ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────

StatePointer open_cache(const Settings& settings) {
  OpenRequest request = make_request(settings);
  auto opened = without_gil([&] { return Cache::open(std::move(request.config)); });
  auto state =
      std::make_shared<CacheState>(take(std::move(opened)), std::move(request.kept), std::move(request.adopted));
  if (WithoutGil::is_ending)
    raise(ErrorCode::Unavailable, "the interpreter is ending: no cache can be opened any more");
  const Access access(*state);
  take(access->set_ready_callback(
      [raw = state.get()](SequenceId sequence) { raw->ready_sequences.push_back(sequence); }));
  close_at_exit(state);
  return state;
}

void apply(CacheState& state, const std::vector<Completion>& completions, std::optional<TimeNs> now) {
  std::optional<Told> told;
  {
    const ByteAccess access(state);
    const TimeNs told_now = now.value_or(state.now());
    const Status status = access->apply(completions, told_now);
    told.emplace(state);
    take(status);
    state.set_now(told_now);
  }
  run_callbacks(state, *told);
}

std::vector<Completion> poll(CacheState& state) {
  const ByteAccess access(state);
  const std::span<const Completion> completions = take(access->poll());
  return {completions.begin(), completions.end()};
}

nb::bytes report_to_ranks(CacheState& state, std::uint32_t rank_index, std::uint32_t rank_count,
                          std::optional<TimeNs> now, const std::vector<Completion>& moved) {
  const ByteAccess access(state);
  const std::span<const std::byte> report = take(access->report_to_ranks(
      {.rank_index = rank_index, .rank_count = rank_count, .now = now.value_or(state.now()), .moved = moved}));
  state.reports_to_ranks = true;
  if (now) state.set_now(*now);
  return nb::bytes(report.data(), report.size());
}

AgreementCopy apply_ranks(CacheState& state, const std::vector<nb::bytes>& reports) {
  std::optional<Told> told;
  AgreementCopy copy;
  {
    const ByteAccess access(state);
    std::vector<std::span<const std::byte>> spans;
    for (const nb::bytes& report : reports) {
      spans.emplace_back(reinterpret_cast<const std::byte*>(report.c_str()), report.size());
    }
    const Result<RankAgreement> agreed = access->apply_ranks(spans);
    told.emplace(state);
    take(agreed);
    copy = {.now = agreed->now, .completions = {agreed->completions.begin(), agreed->completions.end()}};
    // A time that all have agreed on was told before the reports were gathered: this rank's has gone on since.
    if (agreed->now > state.now()) state.set_now(agreed->now);
  }
  run_callbacks(state, *told);
  return copy;
}

// ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────────

SequenceHandle begin(const StatePointer& state, KeySpaceId key_space, nb::handle prompt,
                     const std::optional<SequenceOptions>& options) {
  const Access access(*state);
  const PromptView view(prompt, state->scratch, "tokens", access->prompt_buffer().value_or(std::span<TokenId>()));
  return sequence_of(state, take(access->begin(key_space, *view, options.value_or(SequenceOptions{}))));
}

Admission admit(CacheState& state, const SequenceHandle& sequence, nb::object callback) {
  auto note = note_for<SequenceId>(state, std::move(callback), "SequenceId");
  return call_and_tell(state, [&](Cache& cache) { return cache.admit(sequence.get(), std::move(note)); });
}

Admission resume(CacheState& state, const SequenceHandle& sequence, nb::object callback) {
  auto note = note_for<SequenceId>(state, std::move(callback), "SequenceId");
  return call_and_tell(state, [&](Cache& cache) { return cache.resume(sequence.get(), std::move(note)); });
}

void stop_loading(CacheState& state, const SequenceHandle& sequence) {
  call_and_tell(state, [&](Cache& cache) { return cache.stop_loading(sequence.get()); });
}

HeldPrefix hold_on_host(CacheState& state, KeySpaceId key_space, nb::handle prompt, const HoldOptions& options,
                        nb::object callback) {
  auto note = note_for<const HeldPrefix&>(state, std::move(callback), "HeldPrefix");
  return call_and_tell(state, [&](Cache& cache) {
    const PromptView view(prompt, state.scratch);
    return cache.hold_on_host(key_space, *view, options, std::move(note));
  });
}

ViewCopy view_of(CacheState& state, const SequenceHandle& sequence) {
  const Access access(state);
  const SequenceView view = take(access->view(sequence.get()));
  return {view, page_ids(view.pages())};
}

bool wait_until_ready(const StatePointer& state, const SequenceHandle& sequence, std::optional<double> timeout_s) {
  need_no_ranks(*state, "wait_until_ready");
  const auto begin = std::chrono::steady_clock::now();
  int descriptor = -1;
  {
    const Access access(*state);
    descriptor = access->event_fd();
  }
  if (view_of(*state, sequence).is_waiting) {
    raise(ErrorCode::InvalidArgument,
          "wait_until_ready: the sequence is waiting; admit it first, or resume it if it is preempted");
  }
  while (true) {
    if (const ViewCopy view = view_of(*state, sequence); view.is_ready || !view.is_loading) return true;
    if (descriptor >= 0)
      apply(*state, poll(*state), std::nullopt);  // else a mover of the engine's own is looked after elsewhere
    if (const ViewCopy view = view_of(*state, sequence); view.is_ready || !view.is_loading) return true;
    // In slices, so that a signal or a limit of the load's own is noticed.
    double left_s = 0.05;
    if (timeout_s) {
      left_s = std::min(left_s, *timeout_s - seconds_since(begin));
      if (left_s <= 0) return false;
    }
    wait_for(descriptor, static_cast<int>(left_s * 1e3) + 1);
  }
}

bool wait_until_flushed(const StatePointer& state, std::optional<double> timeout_s) {
  need_no_ranks(*state, "wait_until_flushed");
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    apply(*state, poll(*state), std::nullopt);
    int descriptor = -1;
    {
      const ByteAccess access(*state);
      descriptor = access->event_fd();
      if (take(without_gil([&] { return access->flush(); }))) return true;
    }
    apply(*state, poll(*state), std::nullopt);
    if (timeout_s && seconds_since(begin) > *timeout_s) return false;
    wait_for(descriptor, 20);
  }
}

Outcome plan_step(const StatePointer& state, const nb::sequence& entries, const std::optional<PlanShape>& shape) {
  // Python code runs while they are gathered, not while they are looked at.
  std::vector<nb::object> given;
  for (const nb::handle entry : entries) given.push_back(nb::borrow(entry));
  const ByteAccess access(*state);
  std::vector<StepEntry> list;
  list.reserve(given.size());
  for (const nb::object& one : given) {
    const std::string name = "entries[" + std::to_string(list.size()) + "]";
    StepEntry& entry = list.emplace_back();
    if (const SequenceHandle* sequence = instance_of<SequenceHandle>(one)) {
      entry.sequence = &sequence->get();
      continue;
    }
    const StepEntryHandle* handle = instance_of<StepEntryHandle>(one);
    if (handle == nullptr) {
      raise(ErrorCode::InvalidArgument,
            name + " is of type " + nb::type_name(one.type()).c_str() + ": give a Sequence or a StepEntry");
    }
    const SequenceHandle* sequence = instance_of<SequenceHandle>(handle->sequence);
    if (sequence == nullptr) {
      raise(ErrorCode::InvalidArgument, name + ".sequence is not set: give the Sequence of begin()");
    }
    entry = {.sequence = &sequence->get(),
             .token_count = handle->token_count,
             .draft_count = handle->draft_count,
             .tree_parents = handle->tree_parents};
  }
  PlanOutcome outcome = take(access->plan_step(list, shape.value_or(PlanShape{})));
  if (!outcome.step) return {nullptr, outcome.shortage};
  return {std::make_shared<StepHandle>(std::move(*outcome.step), state), {}};
}

TransferOutcome wait_for_layer(const StatePointer& state, const StepHandle& step, GroupLayer layer,
                               std::optional<double> timeout_s) {
  const auto begin = std::chrono::steady_clock::now();
  {
    const Access access(*state);  // raises for a cache that is closed
    static_cast<void>(step_of(step));
  }
  const std::shared_ptr<HeldCache> held = state->lease();
  while (true) {
    // In slices, so that a signal is noticed.
    double left_s = 0.05;
    if (timeout_s) left_s = std::clamp(*timeout_s - seconds_since(begin), 0.0, left_s);
    const TransferOutcome outcome = take(
        without_gil([&] { return held->cache->wait_for_layer(step.step, layer, static_cast<TimeNs>(left_s * 1e9)); }));
    if (outcome != TransferOutcome::TimedOut) return outcome;
    if (timeout_s && seconds_since(begin) >= *timeout_s) return outcome;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

const Step& step_of(const StepHandle& handle) {
  static_cast<void>(handle.plan());
  return handle.step;
}

void finish_step(CacheState& state, StepHandle& step, const nb::sequence& results) {
  std::vector<StepResult> list;
  std::vector<Tokens> tokens;  // keep what the results point to
  const std::size_t count = nb::len(results);
  std::vector<std::vector<TokenId>> scratch(count);
  list.reserve(count);
  tokens.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    const nb::object given = results[i];
    StepResultHandle* handle = instance_of<StepResultHandle>(given);
    if (given.is_none()) {
      list.push_back({});
    } else if (handle != nullptr) {
      tokens.emplace_back(handle->tokens, scratch[i]);
      list.push_back(
          {.tokens = tokens.back().span(), .accepted_count = handle->accepted_count, .discard = handle->discard});
    } else if (integer_of(given)) {
      tokens.emplace_back(nb::make_tuple(given), scratch[i], "results");
      list.push_back({.tokens = tokens.back().span()});
    } else {
      tokens.emplace_back(given, scratch[i], "results");
      list.push_back({.tokens = tokens.back().span()});
    }
  }
  const ByteAccess access(state);
  take(access->finish_step(step_of(step), list));
  step.is_live = false;
}

void abort_step(CacheState& state, StepHandle& step) {
  const ByteAccess access(state);
  take(without_gil([&, &planned = step_of(step)] { return access->abort_step(planned); }));
  step.is_live = false;
}

}  // namespace quire::python
