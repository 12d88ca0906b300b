// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bind.h"
#include "cache_state.h"
#include "cache_values.h"
#include "casters.h"
#include "errors.h"
#include "prompt.h"
#include "quire/cache.h"
#include "sequence.h"
#include "settings.h"
#include "step.h"
#include "structs.h"

namespace quire::python {

const Sequence& SequenceHandle::get() const {
  if (!sequence) raise(ErrorCode::InvalidArgument, "the sequence has ended: begin() another one");
  return sequence;
}

nb::handle PromptView::tokens_of(nb::handle source) {
  return nb::isinstance<PromptHandle>(source) ? nb::handle(nb::cast<PromptHandle&>(source).tokens) : source;
}

PromptView::PromptView(nb::handle source, std::vector<TokenId>& scratch, const char* what)
    : tokens_(tokens_of(source), scratch, what) {
  if (nb::isinstance<PromptHandle>(source)) extra_keys_ = nb::cast<PromptHandle&>(source).extra_keys;
  prompt_ = {.tokens = tokens_.span(), .extra_keys = extra_keys_};
}

namespace {

using StatePointer = std::shared_ptr<CacheState>;
using Access = CacheState::Access;

/// The C++ object of a Python one, if it is of that class.
template <typename T>
T* instance_of(nb::handle object) {
  return nb::isinstance<T>(object) ? nb::inst_ptr<T>(object) : nullptr;
}

/// So much is taken in one call, whatever is asked for.
constexpr std::uint32_t kTakenMax = 65'536;

/// Runs a call that moves bytes or may take long, while other Python threads go on.
template <typename Call>
auto without_gil(Call call) {
  const WithoutGil without;
  return call();
}

std::vector<std::uint32_t> page_ids(std::span<const PageId> pages) {
  std::vector<std::uint32_t> ids;
  ids.reserve(pages.size());
  for (const PageId page : pages) ids.push_back(page.value);
  return ids;
}

// ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────

StatePointer open_cache(const Settings& settings) {
  OpenRequest request = make_request(settings);
  auto opened = without_gil([&] { return Cache::open(std::move(request.config)); });
  auto state =
      std::make_shared<CacheState>(take(std::move(opened)), std::move(request.kept), std::move(request.adopted));
  const Access access(*state);
  take(access->set_ready_callback(
      [raw = state.get()](SequenceId sequence) { raw->ready_sequences.push_back(sequence); }));
  close_at_exit(state);
  return state;
}

// Torch lets go of a storage's memory when it is resized; then a tensor says so by another address.
void check_adopted(const CacheState& state) {
  for (const Adopted& adopted : state.adopted) {
    if (!nb::hasattr(adopted.source, "data_ptr")) continue;
    const auto address = nb::cast<std::uintptr_t>(adopted.source.attr("data_ptr")());
    if (address == reinterpret_cast<std::uintptr_t>(adopted.data)) continue;
    raise(ErrorCode::InvalidArgument,
          "a tensor that the cache has adopted was freed or moved (its data_ptr() has changed): keep its storage as it "
          "is "
          "until the cache is closed; close this cache now, what is on the device is lost");
  }
}

// What callbacks are to be told, once nothing of the cache is held any more.
void run_callbacks(CacheState& state, std::vector<SequenceId> sequences, std::vector<DiskCall> answers) {
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
    for (const SequenceId sequence : sequences) call(callback, nb::cast(sequence));
  }
  for (const DiskCall& answer : answers) call(answer.request->callback, nb::cast(answer.answer));
  if (first) throw nb::python_error(std::move(*first));
}

// Without `now`, time has gone on since the cache was last told it: read under the lock, so that it never goes back.
void apply(CacheState& state, const std::vector<Completion>& completions, std::optional<TimeNs> now) {
  std::vector<SequenceId> sequences;
  std::vector<DiskCall> answers;
  {
    const Access access(state);
    const TimeNs told = now.value_or(state.now());
    const Status status = access->apply(completions, told);
    sequences = std::exchange(state.ready_sequences, {});
    answers = std::exchange(state.disk_answers, {});
    take(status);
    state.set_now(told);
  }
  run_callbacks(state, std::move(sequences), std::move(answers));
}

std::vector<Completion> poll(CacheState& state) {
  check_adopted(state);
  const Access access(state);
  const std::span<const Completion> completions = take(access->poll());
  return {completions.begin(), completions.end()};
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// ── sequences ────────────────────────────────────────────────────────────────────────────────────────────────────────

SequenceHandle begin(const StatePointer& state, KeySpaceId key_space, nb::handle prompt,
                     const std::optional<SequenceOptions>& options) {
  const Access access(*state);
  const PromptView view(prompt, state->scratch);
  return {state, take(access->begin(key_space, *view, options.value_or(SequenceOptions{})))};
}

ViewCopy view_of(CacheState& state, const SequenceHandle& sequence) {
  const Access access(state);
  const SequenceView view = take(access->view(sequence.get()));
  ViewCopy copy{view, page_ids(view.pages)};
  copy.pages = {};
  return copy;
}

// Until the sequence's load has ended. False when that takes longer than it was given.
bool wait_until_ready(const StatePointer& state, const SequenceHandle& sequence, std::optional<double> timeout_s) {
  const auto begin = std::chrono::steady_clock::now();
  int descriptor = -1;
  {
    const Access access(*state);
    descriptor = access->event_fd();
  }
  while (true) {
    if (!view_of(*state, sequence).is_loading) return true;
    if (descriptor >= 0)
      apply(*state, poll(*state), std::nullopt);  // else a mover of the engine's own is looked after elsewhere
    if (!view_of(*state, sequence).is_loading) return true;
    // In slices, so that a signal or a limit of the load's own is noticed.
    double left_s = 0.05;
    if (timeout_s) {
      left_s = std::min(left_s, *timeout_s - seconds_since(begin));
      if (left_s <= 0) return false;
    }
    without_gil([&] {
      pollfd wanted{.fd = descriptor, .events = POLLIN, .revents = 0};
      return ::poll(&wanted, descriptor < 0 ? 0 : 1, static_cast<int>(left_s * 1e3) + 1);
    });
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

struct Outcome {
  std::shared_ptr<StepHandle> step;  // null: see shortage
  Shortage shortage;
};

Outcome plan_step(const StatePointer& state, const nb::sequence& entries, const std::optional<PlanShape>& shape) {
  check_adopted(*state);
  std::vector<StepEntry> list;
  for (const nb::handle given : entries) {
    StepEntry& entry = list.emplace_back();
    if (nb::isinstance<SequenceHandle>(given)) {
      entry.sequence = &nb::cast<SequenceHandle&>(given).get();
      continue;
    }
    StepEntryHandle* handle = instance_of<StepEntryHandle>(given);
    if (handle == nullptr) {
      raise(ErrorCode::InvalidArgument, "entries[" + std::to_string(list.size() - 1) + "] is of type " +
                                            nb::cast<std::string>(given.type().attr("__name__")) +
                                            ": give a Sequence or a StepEntry");
    }
    SequenceHandle* sequence = instance_of<SequenceHandle>(handle->sequence);
    if (sequence == nullptr) {
      raise(ErrorCode::InvalidArgument,
            "entries[" + std::to_string(list.size() - 1) + "].sequence is not set: give the Sequence of begin()");
    }
    entry = {.sequence = &sequence->get(),
             .token_count = handle->token_count,
             .draft_count = handle->draft_count,
             .tree_parents = handle->tree_parents};
  }
  const Access access(*state);
  PlanOutcome outcome = take(access->plan_step(list, shape.value_or(PlanShape{})));
  if (!outcome.step) return {nullptr, outcome.shortage};
  return {std::make_shared<StepHandle>(std::move(*outcome.step), state), {}};
}

// A step may only be given to the cache that planned it, and once.
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
  const Access access(state);
  take(access->finish_step(step_of(step), list));
  step.is_live = false;
}

// ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────

/// What an array of the pool's memory owns: the cache, and a count, so that the memory is not moved below it.
struct PoolLease {
  std::shared_ptr<HeldCache> cache;
  StatePointer state;
  PoolLease(std::shared_ptr<HeldCache> of, StatePointer counted) : cache(std::move(of)), state(std::move(counted)) {
    ++state->pool_arrays;
  }
  PoolLease(const PoolLease&) = delete;
  PoolLease& operator=(const PoolLease&) = delete;
  ~PoolLease() { --state->pool_arrays; }
};

nb::object lease_pool(const StatePointer& state) {
  return nb::capsule(new PoolLease(state->lease(), state),
                     [](void* lease) noexcept { delete static_cast<PoolLease*>(lease); });
}

std::pair<int, int> place_of(const CacheConfig& config) {
  if (config.device.accelerator == nullptr) return {nb::device::cpu::value, 0};
  return {nb::device::cuda::value, static_cast<int>(config.device.accelerator->index())};
}

void need_group(const Cache& cache, std::uint32_t group_index) {
  const std::size_t count = cache.config().layout.groups().size();
  if (group_index >= count) {
    raise(ErrorCode::InvalidArgument, "group_index is " + std::to_string(group_index) + ", and the layout has " +
                                          std::to_string(count) + " groups");
  }
  if (!has_pages(cache.config().layout.groups()[group_index])) {
    raise(ErrorCode::InvalidArgument, "group " + std::to_string(group_index) + " has no pages: see state_memory()");
  }
}

nb::object memory_of(const StatePointer& state, std::byte* memory, std::uint64_t bytes, const CacheConfig& config) {
  if (memory == nullptr) return nb::none();
  const auto [type, index] = place_of(config);
  return nb::cast(nb::ndarray<nb::array_api>(memory, {static_cast<std::size_t>(bytes)}, lease_pool(state), {},
                                             nb::dtype<std::uint8_t>(), type, index));
}

nb::dlpack::dtype dtype_of(ElementType element) {
  using Code = nb::dlpack::dtype_code;
  switch (element) {
    case ElementType::Bf16:
      return {static_cast<std::uint8_t>(Code::Bfloat), 16, 1};
    case ElementType::Fp16:
      return {static_cast<std::uint8_t>(Code::Float), 16, 1};
    case ElementType::Fp32:
      return {static_cast<std::uint8_t>(Code::Float), 32, 1};
    case ElementType::Int8:
      return {static_cast<std::uint8_t>(Code::Int), 8, 1};
    case ElementType::Int32:
      return {static_cast<std::uint8_t>(Code::Int), 32, 1};
    case ElementType::Fp8:  // few frameworks take it from others
    case ElementType::Bytes:
      break;
  }
  return {static_cast<std::uint8_t>(Code::UInt), 8, 1};
}

std::uint32_t component_index(const CacheGroup& group, nb::handle component) {
  if (PyLong_Check(component.ptr())) {
    std::uint32_t index = 0;
    if (nb::try_cast(component, index) && index < group.components.size()) return index;
  } else if (std::string name; nb::try_cast(component, name)) {
    for (std::uint32_t i = 0; i < group.components.size(); ++i) {
      if (group.components[i].name == name) return i;
    }
  }
  std::string message =
      "group " + group.name + " has no component " + nb::cast<std::string>(nb::repr(component)) + "; it has";
  for (const Component& known : group.components) message += " " + known.name;
  raise(ErrorCode::InvalidArgument, message);
}

nb::object component_memory(const StatePointer& state, std::uint32_t group_index, nb::handle component) {
  const Access access(*state);
  need_group(*access, group_index);
  std::byte* memory = access->device_memory(group_index);
  if (memory == nullptr) return nb::none();
  const PoolGeometry& pool = access->geometry(group_index);
  const CacheGroup& group = pool.page().group();
  const std::uint32_t index = component_index(group, component);
  const ElementType element = group.components[index].element;
  const std::uint64_t bytes = element_bytes(element);
  const ComponentStrides& strides = pool.page().components()[index];
  const std::array<std::uint64_t, 4> in_bytes = {pool.strides().page, pool.strides().layer, strides.token,
                                                 strides.head};
  std::array<std::int64_t, 5> elements{};
  for (std::size_t i = 0; i < in_bytes.size(); ++i) {
    if (in_bytes[i] % bytes != 0 || strides.offset % bytes != 0) {
      raise(ErrorCode::Unsupported, "component " + group.components[index].name +
                                        " does not lie at whole elements in its records: use device_memory()");
    }
    elements[i] = static_cast<std::int64_t>(in_bytes[i] / bytes);
  }
  elements[4] = 1;
  const std::array<std::size_t, 5> shape = {pool.page_count(), pool.page().layer_count(), pool.page().entry_count(),
                                            pool.page().heads_on_rank(index, 0).count, strides.head_bytes / bytes};
  const auto [type, device] = place_of(access->config());
  return nb::cast(nb::ndarray<nb::array_api>(memory + strides.offset, shape.size(), shape.data(), lease_pool(state),
                                             elements.data(), dtype_of(element), type, device));
}

void need_no_pool_arrays(const CacheState& state, const char* call) {
  const std::int64_t count = state.pool_arrays;
  if (count == 0) return;
  raise(ErrorCode::Unavailable, std::to_string(count) + " arrays of the cache's memory are alive, and " + call +
                                    "() would take it from below them: drop them first");
}

// ── the disk tier ────────────────────────────────────────────────────────────────────────────────────────────────────

std::shared_ptr<DiskRequest> disk_request(nb::object callback, nb::object memory) {
  return {new DiskRequest{std::move(callback), std::move(memory)}, [](DiskRequest* request) {
            const nb::gil_scoped_acquire acquire;
            delete request;
          }};
}

auto answer_to(CacheState& state, const std::shared_ptr<DiskRequest>& request) {
  return [raw = &state, request](const DiskAnswer& answer) { raw->disk_answers.push_back({request, answer}); };
}

template <typename Array>
Array import_bytes(nb::handle source, const char* what) {
  Array array;
  if (!nb::try_cast(source, array, false) || !array.is_valid() ||
      (array.device_type() != nb::device::cpu::value && array.device_type() != nb::device::cuda_host::value)) {
    raise(ErrorCode::InvalidArgument,
          std::string(what) + " is no array of the processor's memory that can be used here");
  }
  std::int64_t expected = 1;
  for (std::size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) != 1 && array.stride(i) != expected) {
      raise(ErrorCode::InvalidArgument, std::string(what) + " is not contiguous");
    }
    expected *= static_cast<std::int64_t>(array.shape(i));
  }
  return array;
}

// ── the classes ──────────────────────────────────────────────────────────────────────────────────────────────────────

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const CacheState* state = nb::inst_ptr<CacheState>(self);
  Py_VISIT(state->ready_callback.ptr());
  return 0;
}

int clear(PyObject* self) {
  nb::inst_ptr<CacheState>(self)->ready_callback = nb::none();
  return 0;
}

PyType_Slot cache_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

void bind_sequences(nb::module_& module) {
  nb::class_<PromptHandle>(module, "Prompt", "Tokens to look for or to cache, with what they depend on besides.")
      .def(
          "__init__",
          [](PromptHandle* self, nb::object tokens, std::vector<ExtraKey> extra_keys) {
            new (self) PromptHandle{std::move(tokens), std::move(extra_keys)};
          },
          nb::arg("tokens"), nb::arg("extra_keys") = std::vector<ExtraKey>{})
      .def_ro("tokens", &PromptHandle::tokens)
      .def_ro("extra_keys", &PromptHandle::extra_keys);

  nb::class_<SequenceHandle>(module, "Sequence", nb::is_weak_referenceable(),
                             "A live sequence. Dropping it ends it at the cache's next call; as a context manager it "
                             "ends at the end of the block.")
      .def_prop_ro(
          "id", [](const SequenceHandle& self) { return self.sequence.id(); }, "Of an ended sequence too.")
      .def_prop_ro(
          "cache", [](const SequenceHandle& self) { return self.state; }, nb::sig("def cache(self) -> Cache"))
      .def_prop_ro("has_ended", [](const SequenceHandle& self) { return !self.sequence; })
      .def(
          "ready", [](const nb::object& self) { return nb::module_::import_("quire._ready").attr("ready")(self); },
          nb::sig("def ready(self) -> collections.abc.Awaitable[SequenceView]"),
          "To be awaited: until its load has ended. Other tasks of the event loop run meanwhile.")
      .def(
          "__enter__", [](const nb::object& self) { return self; }, nb::sig("def __enter__(self) -> Sequence"))
      .def(
          "__exit__",
          [](SequenceHandle& self, const nb::args&) {
            if (!self.sequence || self.state->is_closed()) return;
            const Access access(*self.state);
            take(access->end(self.sequence));
          },
          nb::sig("def __exit__(self, *exc_info: object) -> None"))
      .def("__repr__", [](const SequenceHandle& self) {
        return "Sequence(" + std::to_string(self.sequence.id().index) + (self.sequence ? ")" : ", ended)");
      });

  StructClass<StepEntryHandle>(module, "StepEntry", "One sequence's part of a step to be planned.")
      .field("sequence", &StepEntryHandle::sequence)
      .field("token_count", &StepEntryHandle::token_count, "At most the sequence's pending tokens; 0: all of them.")
      .field("draft_count", &StepEntryHandle::draft_count,
             "Tokens to compute behind all pending ones, to be accepted or not.")
      .field("tree_parents", &StepEntryHandle::tree_parents,
             "For each token of a tree its parent among the sequence's tree tokens, or -1 for the last known token.")
      .with_constructor();
  StructClass<StepResultHandle>(module, "StepResult", "What a step brought for one of its entries.")
      .field("tokens", &StepResultHandle::tokens,
             "New tokens of the sequence; the first accepted_count are drafts of this step.")
      .field("accepted_count", &StepResultHandle::accepted_count)
      .field("discard", &StepResultHandle::discard, "The entry did not happen.")
      .with_constructor();
  nb::class_<Outcome>(module, "PlanOutcome", "A step, or what is short.")
      .def_prop_ro(
          "step", [](const Outcome& self) { return self.step; }, "None: see shortage.",
          nb::sig("def step(self) -> Step | None"))
      .def_ro("shortage", &Outcome::shortage);
  nb::class_<ExternalMatchHandle>(module, "ExternalMatch", "The longest cached prefix of an external pool.")
      .def_ro("sequence", &ExternalMatchHandle::sequence, "while it lives, the pages are not released")
      .def_ro("token_count", &ExternalMatchHandle::token_count)
      .def_ro("pages", &ExternalMatchHandle::pages);
  nb::class_<StateSlots>(module, "StateSlots", "What a state slot is made of.")
      .def_prop_ro("slot_bytes", &StateSlots::slot_bytes);
}

void bind_life(nb::class_<CacheState>& cache) {
  cache
      .def_static("open", &open_cache, nb::arg("config"), nb::sig("def open(config: CacheConfig) -> Cache"),
                  "Refuses a configuration that cannot work, with the arithmetic.")
      .def("close", &CacheState::close,
           "Calls are refused from here on, and files are closed. Arrays of its memory stay readable: with some alive, "
           "the cache goes with the last of them.")
      .def_prop_ro("is_closed", &CacheState::is_closed)
      .def(
          "__enter__", [](const nb::object& self) { return self; }, nb::sig("def __enter__(self) -> Cache"))
      .def(
          "__exit__", [](CacheState& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exc_info: object) -> None"))
      .def(
          "key_space",
          [](CacheState& self, const KeySpace& key_space) {
            const Access access(self);
            return take(access->key_space(key_space));
          },
          nb::arg("key_space"), "The id of a key space, the same for equal ones.")
      .def(
          "lookup",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, const std::optional<SequenceOptions>& options) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            return take(access->lookup(key_space, *view, options.value_or(SequenceOptions{})));
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("options") = nb::none(),
          "How much of a prompt begin() and admit() with these options would find now. Changes nothing.");
}

void bind_steps(nb::class_<CacheState>& cache) {
  cache
      .def("begin", &begin, nb::arg("key_space"), nb::arg("prompt"), nb::arg("options") = nb::none(),
           "A waiting sequence. `prompt` is a Prompt, or its tokens: any contiguous int32 or int64 array, or a list.")
      .def(
          "admit",
          [](CacheState& self, const SequenceHandle& sequence) {
            const Access access(self);
            return take(access->admit(sequence.get()));
          },
          nb::arg("sequence"), "Matches anew and pins: from here on the matched pages stay. Loads start.")
      .def("wait_until_ready", &wait_until_ready, nb::arg("sequence"), nb::arg("timeout_s") = nb::none(),
           "Polls and applies until the sequence's load has ended; False when that takes longer than timeout_s. Other "
           "threads run meanwhile. Sequence.ready() is the same for asyncio.")
      .def("plan_step", &plan_step, nb::arg("entries"), nb::arg("shape") = nb::none(),
           nb::sig(
               "def plan_step(self, entries: collections.abc.Sequence[Sequence | StepEntry], shape: PlanShape | None "
               "= None) -> PlanOutcome"),
           "All entries or none; at most steps_in_flight_max steps at once.")
      .def(
          "apply_copies",
          [](CacheState& self, const StepHandle& step) {
            const Access access(self);
            take(without_gil([&, &planned = step_of(step)] { return access->apply_copies(planned); }));
          },
          nb::arg("step"), "Applies the plan's moves and copies in memory of the processor's, once.")
      .def(
          "apply_saves",
          [](CacheState& self, const StepHandle& step) {
            const Access access(self);
            take(without_gil([&, &planned = step_of(step)] { return access->apply_saves(planned); }));
          },
          nb::arg("step"), "The same for state_saves, once the step's tokens are computed.")
      .def("finish_step", &finish_step, nb::arg("step"), nb::arg("results"),
           nb::sig("def finish_step(self, step: Step, results: collections.abc.Sequence[StepResult | int | object]) -> "
                   "None"),
           "The device work of the oldest step in flight is complete. One result per entry: a StepResult, a token, "
           "tokens, or None for no new token.")
      .def(
          "abort_step",
          [](CacheState& self, StepHandle& step) {
            const Access access(self);
            take(without_gil([&, &planned = step_of(step)] { return access->abort_step(planned); }));
            step.is_live = false;
          },
          nb::arg("step"), "The step did not happen, nor did what later steps in flight compute of its sequences.")
      .def(
          "append",
          [](CacheState& self, const SequenceHandle& sequence, nb::handle added) {
            const Access access(self);
            const PromptView view(added, self.scratch, "added");
            take(access->append(sequence.get(), *view));
          },
          nb::arg("sequence"), nb::arg("added"), "New tokens of a sequence that is not in a step.")
      .def(
          "end",
          [](CacheState& self, SequenceHandle& sequence, std::optional<Publish> publish) {
            static_cast<void>(sequence.get());
            const Access access(self);
            take(access->end(sequence.sequence, publish));
          },
          nb::arg("sequence"), nb::arg("publish") = nb::none(), "What is full stays cached, the rest is freed.")
      .def("view", &view_of, nb::arg("sequence"), "What is known of a sequence now.");
}

void bind_changes(nb::class_<CacheState>& cache) {
  cache
      .def(
          "fork",
          [](const StatePointer& self, const SequenceHandle& sequence, std::uint32_t at) {
            const Access access(*self);
            return SequenceHandle{self, take(access->fork(sequence.get(), at))};
          },
          nb::arg("sequence"), nb::arg("at"), "A second sequence with the first `at` tokens of this one.")
      .def(
          "rewind",
          [](CacheState& self, const SequenceHandle& sequence, std::uint32_t token_count) {
            const Access access(self);
            take(access->rewind(sequence.get(), token_count));
          },
          nb::arg("sequence"), nb::arg("token_count"), "Takes back the last `token_count` known tokens.")
      .def(
          "set_window",
          [](CacheState& self, const SequenceHandle& sequence, const Window& window) {
            const Access access(self);
            take(access->set_window(sequence.get(), window));
          },
          nb::arg("sequence"), nb::arg("window"),
          "From the next token on, the sequence sees its first sink_tokens and its last tokens only.")
      .def(
          "commit_tree",
          [](CacheState& self, const SequenceHandle& sequence, std::int32_t leaf) {
            const Access access(self);
            take(access->commit_tree(sequence.get(), leaf));
          },
          nb::arg("sequence"), nb::arg("leaf"), "Keeps the path down to token `leaf`, or none of the tree for -1.")
      .def(
          "preempt",
          [](CacheState& self, const SequenceHandle& sequence, Preempt how) {
            const Access access(self);
            take(access->preempt(sequence.get(), how));
          },
          nb::arg("sequence"), nb::arg("how"), "The sequence waits without device pages of its own.")
      .def(
          "resume",
          [](CacheState& self, const SequenceHandle& sequence) {
            const Access access(self);
            return take(access->resume(sequence.get()));
          },
          nb::arg("sequence"), "What admit() is to a begun sequence.")
      .def(
          "prepare_receive",
          [](CacheState& self, const SequenceHandle& sequence, std::uint32_t token_count) {
            const Access access(self);
            const std::span<const SlotRun> runs = take(access->prepare_receive(sequence.get(), token_count));
            return std::vector<SlotRun>(runs.begin(), runs.end());
          },
          nb::arg("sequence"), nb::arg("token_count"),
          "Another cache computes the next pending tokens: reserves their pages and says at which slots they go.")
      .def(
          "finish_receive",
          [](CacheState& self, const SequenceHandle& sequence) {
            const Access access(self);
            take(access->finish_receive(sequence.get()));
          },
          nb::arg("sequence"), "Everything has arrived.")
      .def(
          "abort_receive",
          [](CacheState& self, const SequenceHandle& sequence) {
            const Access access(self);
            take(access->abort_receive(sequence.get()));
          },
          nb::arg("sequence"), "Nothing of it counts. The other side has stopped writing.")
      .def(
          "mark_send",
          [](CacheState& self, const SequenceHandle& sequence, std::uint32_t begin, const std::vector<SlotRun>& slots,
             std::int32_t receiver) {
            const Access access(self);
            take(access->mark_send(sequence.get(), begin, slots, receiver));
          },
          nb::arg("sequence"), nb::arg("begin"), nb::arg("slots"), nb::arg("receiver"),
          "Tokens from position `begin` on are for another cache.");
}

void bind_contents(nb::class_<CacheState>& cache) {
  cache
      .def(
          "keep",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, std::optional<TimeNs> ttl_ns) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            return take(access->keep(key_space, *view, ttl_ns));
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("ttl_ns") = nb::none(),
          "Keeps the cached part of a prefix from eviction until unkeep(), or for ttl_ns.")
      .def(
          "unkeep",
          [](CacheState& self, KeepId keep) {
            const Access access(self);
            take(access->unkeep(keep));
          },
          nb::arg("keep"), "Lets go of what keep() holds.")
      .def(
          "advance",
          [](CacheState& self, TimeNs now) {
            const Access access(self);
            take(access->advance(now));
            self.set_now(now);
          },
          nb::arg("now"), "Time goes on, in nanoseconds since an origin of the caller's choice.")
      .def(
          "drop",
          [](CacheState& self, KeySpaceId key_space) {
            const Access access(self);
            return take(access->drop(key_space));
          },
          nb::arg("key_space"), "Forgets a key space. Gives the number of pages freed at once.")
      .def(
          "reset",
          [](CacheState& self) {
            const Access access(self);
            take(without_gil([&] { return access->reset(); }));
          },
          "Gives up everything cached. Refused while sequences live.")
      .def(
          "reclaim",
          [](CacheState& self, std::uint32_t page_count) {
            const Access access(self);
            return take(access->reclaim(page_count));
          },
          nb::arg("page_count"), "Gives up so many idle pages, or all there are. Returns how many.")
      .def(
          "resize",
          [](CacheState& self, std::uint32_t page_count) {
            const Access access(self);
            need_no_pool_arrays(self, "resize");
            take(without_gil([&] { return access->resize(page_count); }));
          },
          nb::arg("page_count"), "More or fewer device pages, between steps. Refused while arrays of them are alive.")
      .def(
          "sleep",
          [](CacheState& self, Sleep how) {
            const Access access(self);
            need_no_pool_arrays(self, "sleep");
            return take(without_gil([&] { return access->sleep(how); }));
          },
          nb::arg("how"),
          "Gives the device's memory up until wake(). True when it is done; else call it again after "
          "apply(). Refused while arrays of it are alive.")
      .def(
          "wake",
          [](CacheState& self) {
            const Access access(self);
            take(without_gil([&] { return access->wake(); }));
          },
          "The device's memory is there again; that of quire's own is filled with zeros.");
}

void bind_tiers(nb::class_<CacheState>& cache) {
  cache.def("poll", &poll, "What has ended since the last call: apply() it. Hands on what is to be moved.")
      .def(
          "apply", &apply, nb::arg("completions"), nb::arg("now") = nb::none(),
          "Draws the conclusions: loaded pages become usable. `now` is the caller's time in nanoseconds, as for "
          "advance(); None: time has gone on since it was last told. Runs the callbacks; the first of their exceptions "
          "is raised when all have run.")
      .def("now", &CacheState::now,
           "The time as apply() or advance() were last told it, in nanoseconds, gone on since; from 0 when the cache "
           "was "
           "opened. What to give apply() where the caller has no clock of its own.")
      .def(
          "event_fd",
          [](CacheState& self) {
            const Access access(self);
            return access->event_fd();
          },
          "Readable when poll() has something; -1 with an external mover or without a host tier.")
      .def(
          "set_ready_callback",
          [](CacheState& self, nb::object callback) { self.ready_callback = std::move(callback); },
          nb::arg("callback").none(), "Called by apply() with the SequenceId of each sequence whose load has ended.")
      .def(
          "take_transfers",
          [](CacheState& self, std::uint32_t count_max) {
            const Access access(self);
            std::vector<TransferPlan> plans(std::min(count_max, kTakenMax));
            std::vector<TransferCopy> copies;
            for (const TransferPlan& plan : take(access->take_transfers(plans))) {
              copies.push_back({plan.id, plan.kind, plan.priority, plan.band_count, plan.pool_index,
                                std::vector<PageTransfer>(plan.pages.begin(), plan.pages.end())});
            }
            return copies;
          },
          nb::arg("count_max") = 64, "With an external mover: what is to be moved now.")
      .def(
          "take_cancellations",
          [](CacheState& self, std::uint32_t count_max) {
            const Access access(self);
            std::vector<TransferId> ids(std::min(count_max, kTakenMax));
            const std::span<TransferId> taken = take(access->take_cancellations(ids));
            return std::vector<TransferId>(taken.begin(), taken.end());
          },
          nb::arg("count_max") = 64, "With an external mover: transfers that nobody needs any more.")
      .def(
          "host_region",
          [](CacheState& self) {
            const Access access(self);
            return take(access->host_region());
          },
          "What the memory of the host tier lies in.")
      .def(
          "stop_loading",
          [](CacheState& self, const SequenceHandle& sequence) {
            const Access access(self);
            take(access->stop_loading(sequence.get()));
          },
          nb::arg("sequence"), "The sequence waits no longer: what has not arrived is computed.")
      .def(
          "pause_transfers",
          [](CacheState& self) {
            const Access access(self);
            return take(access->pause_transfers());
          },
          "No transfer starts until resume_transfers(). True when none is in flight.")
      .def(
          "resume_transfers",
          [](CacheState& self) {
            const Access access(self);
            take(access->resume_transfers());
          },
          "Transfers start again.");
}

void bind_disk(nb::class_<CacheState>& cache) {
  cache
      .def(
          "lookup_on_disk",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, nb::object callback) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            take(access->lookup_on_disk(key_space, *view,
                                        answer_to(self, disk_request(std::move(callback), nb::none()))));
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("callback"),
          "How many leading tokens of a prompt are on disk; apply() calls callback(DiskAnswer).")
      .def(
          "put_on_disk",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, nb::object bytes, nb::object callback) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            const auto array = import_bytes<nb::ndarray<nb::ro>>(bytes, "bytes");
            const std::span memory(static_cast<const std::byte*>(array.data()), array.nbytes());
            take(access->put_on_disk(key_space, *view, memory,
                                     answer_to(self, disk_request(std::move(callback), nb::cast(array)))));
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("bytes"), nb::arg("callback"),
          "Writes the whole pages of a prompt that are not on disk; `bytes` is left alone until the callback.")
      .def(
          "get_from_disk",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, nb::object bytes, nb::object callback) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            const auto array = import_bytes<nb::ndarray<>>(bytes, "bytes");
            const std::span memory(static_cast<std::byte*>(array.data()), array.nbytes());
            take(access->get_from_disk(key_space, *view, memory,
                                       answer_to(self, disk_request(std::move(callback), nb::cast(array)))));
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("bytes"), nb::arg("callback"),
          "Reads those that are on disk into `bytes`, as far as there is no gap.")
      .def(
          "flush",
          [](CacheState& self) {
            const Access access(self);
            return take(without_gil([&] { return access->flush(); }));
          },
          "Has all that is cached written to disk and synced. True when that is done; else call it again after "
          "apply().")
      .def(
          "wait_until_flushed",
          [](const StatePointer& self, std::optional<double> timeout_s) {
            const auto begin = std::chrono::steady_clock::now();
            int descriptor = -1;
            while (true) {
              apply(*self, poll(*self), std::nullopt);
              {
                const Access access(*self);
                descriptor = access->event_fd();
                if (take(without_gil([&] { return access->flush(); }))) return true;
              }
              apply(*self, poll(*self), std::nullopt);
              if (timeout_s && seconds_since(begin) > *timeout_s) return false;
              without_gil([&] {
                pollfd wanted{.fd = descriptor, .events = POLLIN, .revents = 0};
                return ::poll(&wanted, descriptor < 0 ? 0 : 1, 20);
              });
              if (PyErr_CheckSignals() != 0) throw nb::python_error();
            }
          },
          nb::arg("timeout_s") = nb::none(),
          "flush(), poll() and apply() until it is done; False when that takes longer.")
      .def(
          "disk_status",
          [](CacheState& self, std::optional<std::uint32_t> group_index) {
            const Access access(self);
            return take(access->disk_status(group_index));
          },
          nb::arg("group_index") = nb::none(), "The disk tier, as its store sees it.");
}

void bind_external(nb::class_<CacheState>& cache) {
  cache
      .def(
          "offer",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, const std::vector<std::uint32_t>& ids,
             std::uint32_t first_page) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            std::vector<PageId> pages;
            pages.reserve(ids.size());
            for (const std::uint32_t id : ids) pages.push_back(PageId{id});
            return take(access->offer(key_space, {.prompt = *view, .first_page = first_page, .page_ids = pages}));
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("page_ids"), nb::arg("first_page") = 0,
          "External pools: lets others find pages that the engine has filled. All or nothing.")
      .def(
          "match",
          [](const StatePointer& self, KeySpaceId key_space, nb::handle prompt) {
            const Access access(*self);
            const PromptView view(prompt, self->scratch);
            ExternalMatch match = take(access->match(key_space, *view));
            std::vector<std::uint32_t> pages = page_ids(match.pages);
            auto sequence = std::make_shared<SequenceHandle>(SequenceHandle{self, std::move(match.sequence)});
            return ExternalMatchHandle{std::move(sequence), match.token_count, std::move(pages)};
          },
          nb::arg("key_space"), nb::arg("prompt"),
          "The longest cached prefix in whole pages, held until its sequence ends.")
      .def(
          "take_released",
          [](CacheState& self, std::uint32_t count_max) {
            const Access access(self);
            std::vector<PageId> pages(std::min(count_max, kTakenMax));
            return page_ids(take(access->take_released(pages)));
          },
          nb::arg("count_max") = 4096, "Pages that quire no longer reads, oldest first.");
}

void bind_observers(nb::class_<CacheState>& cache) {
  cache
      .def(
          "stats",
          [](CacheState& self) {
            const Access access(self);
            return take(access->stats());
          },
          "What the cache holds now, and what it has done since open().")
      .def(
          "group_stats",
          [](CacheState& self, std::uint32_t group_index) {
            const Access access(self);
            return take(access->group_stats(group_index));
          },
          nb::arg("group_index"), "What one group of the layout holds.")
      .def(
          "visit_runs",
          [](CacheState& self) {
            struct Visited {
              RunView run;
              std::vector<TokenId> tokens;
              std::vector<std::uint32_t> pages;
            };
            std::vector<Visited> visited;
            {
              const Access access(self);
              take(access->visit_runs([&](const RunView& run) {
                visited.push_back({run, {run.tokens.begin(), run.tokens.end()}, page_ids(run.pages)});
              }));
            }
            std::vector<RunCopy> runs;
            for (const Visited& one : visited) {
              RunCopy& copy = runs.emplace_back(RunCopy{one.run, copy_of(std::span<const TokenId>(one.tokens)),
                                                        copy_of(std::span<const std::uint32_t>(one.pages))});
              copy.tokens = {};
              copy.pages = {};
            }
            return runs;
          },
          "Every run of the tree, parents first, key space by key space.")
      .def(
          "visit_group_pages",
          [](CacheState& self, std::uint32_t group_index) {
            const Access access(self);
            std::vector<std::pair<std::uint32_t, std::uint32_t>> pages;
            take(access->visit_group_pages(group_index, [&](PageId page, PageId page_of_group) {
              pages.emplace_back(page.value, page_of_group.value);
            }));
            return pages;
          },
          nb::arg("group_index"), "(page, page of the group) where a window or snapshot group has something.")
      .def(
          "read_residency",
          [](CacheState& self, std::uint64_t first, std::uint32_t count_max) {
            const Access access(self);
            std::vector<ResidencyRecord> records(std::min(count_max, access->config().residency_record_count_max));
            const std::span<ResidencyRecord> read = take(access->read_residency(first, records));
            return std::vector<ResidencyRecord>(read.begin(), read.end());
          },
          nb::arg("first") = 0, nb::arg("count_max") = 4096, "Residency records from number `first` on, oldest first.")
      .def(
          "check_invariants",
          [](CacheState& self) {
            const Access access(self);
            take(without_gil([&] { return access->check_invariants(); }));
          },
          "Raises the first rule that does not hold, if any.")
      .def_prop_ro(
          "layout",
          [](CacheState& self) {
            const Access access(self);
            return access->config().layout;
          },
          nb::sig("def layout(self) -> ModelLayout"), "What the model stores.")
      .def_prop_ro(
          "context_tokens_max",
          [](CacheState& self) {
            const Access access(self);
            return access->config().context_tokens_max;
          },
          "Tokens of one sequence, as filled in by open().")
      .def(
          "geometry",
          [](CacheState& self, std::uint32_t group_index) {
            const Access access(self);
            need_group(*access, group_index);
            return access->geometry(group_index);
          },
          nb::arg("group_index") = 0, "Where every row of a group's pool lies.")
      .def(
          "device_memory",
          [](const StatePointer& self, std::uint32_t group_index) {
            const Access access(*self);
            need_group(*access, group_index);
            return memory_of(self, access->device_memory(group_index), access->geometry(group_index).pool_bytes(),
                             access->config());
          },
          nb::arg("group_index") = 0,
          "The pool's bytes, writable and without a copy, for torch.from_dlpack() and its like, and for "
          "numpy.asarray() "
          "where the processor reaches them. None where quire has no memory.")
      .def("component_memory", &component_memory, nb::arg("group_index") = 0, nb::arg("component") = 0,
           nb::sig("def component_memory(self, group_index: int = 0, component: int | str = 0) -> object"),
           "The same for one component, such as \"k\": [page][layer][entry][head][dim] in its element type. fp8 and "
           "opaque components are uint8.")
      .def(
          "state_slots",
          [](CacheState& self) {
            const Access access(self);
            return access->state_slots();
          },
          "What a state slot is made of.")
      .def(
          "state_memory",
          [](const StatePointer& self) {
            const Access access(*self);
            const CacheConfig& config = access->config();
            const std::uint64_t slots =
                config.device.state_slot_count == 0 ? config.sequence_count_max : config.device.state_slot_count;
            return memory_of(self, access->state_memory(), slots * access->state_slots().slot_bytes(), config);
          },
          "The state slots' bytes, as device_memory(); None where the layout has no state.")
      .def("__repr__", [](CacheState& self) -> std::string {
        if (self.is_closed()) return "Cache(closed)";
        const Access access(self);
        const Stats stats = take(access->stats());
        return "Cache(" + access->config().layout.name() + ", " + std::to_string(stats.page_count) + " pages, " +
               std::to_string(stats.free_pages) + " free, " + std::to_string(stats.sequence_count) + " sequences)";
      });
}

}  // namespace

void bind_cache(nb::module_& module) {
  bind_cache_values(module);
  bind_sequences(module);
  nb::class_<CacheState> cache(
      module, "Cache", nb::type_slots(cache_slots), nb::is_weak_referenceable(),
      "Finds the longest cached prefix of each request, hands out pages for the rest, and keeps "
      "what was computed for whoever comes next. Any thread may call it, one at a time.");
  bind_life(cache);
  bind_steps(cache);
  bind_changes(cache);
  bind_contents(cache);
  bind_tiers(cache);
  bind_disk(cache);
  bind_external(cache);
  bind_observers(cache);
  module.def("policy_names", [] { return policy_names(); }, "The policies that CacheConfig.policy may name.");
}

}  // namespace quire::python
