// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bind.h"
#include "cache_calls.h"
#include "cache_values.h"
#include "casters.h"
#include "errors.h"
#include "pool_memory.h"
#include "prompt.h"
#include "quire/cache.h"

namespace quire::python {
namespace {

/// So much is taken in one call, whatever is asked for.
constexpr std::uint32_t kTakenMax = 65'536;

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  const CacheState* state = nb::inst_ptr<CacheState>(self);
  Py_VISIT(state->ready_callback.ptr());
  return 0;
}

int clear(PyObject* self) {
  if (!nb::inst_ready(self)) return 0;
  nb::inst_ptr<CacheState>(self)->ready_callback = nb::none();
  return 0;
}

PyType_Slot cache_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

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
          "How much of a prompt begin() and admit() with these options would find now. Changes nothing.")
      .def(
          "page_names",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            const std::vector<PageName> names = take(without_gil([&] { return access->page_names(key_space, *view); }));
            nb::list list;
            for (const PageName& name : names) list.append(nb::bytes(name.bytes.data(), name.bytes.size()));
            return list;
          },
          nb::arg("key_space"), nb::arg("prompt"),
          nb::sig("def page_names(self, key_space: KeySpaceId, prompt: object) -> list[bytes]"),
          "What the whole pages of a prompt are called outside the process: 32 bytes each, as their records on disk "
          "have them, with or without a disk tier. Hashes all tokens on the calling thread.");
}

void bind_steps(nb::class_<CacheState>& cache) {
  cache
      .def("begin", &begin, nb::arg("key_space"), nb::arg("prompt"), nb::arg("options") = nb::none(),
           "A waiting sequence. `prompt` is a Prompt, or its tokens: any contiguous int32 or int64 array, or a list.")
      .def(
          "admit", &admit, nb::arg("sequence"), nb::arg("callback") = nb::none(),
          nb::sig("def admit(self, sequence: Sequence, callback: collections.abc.Callable[[SequenceId], object] | None "
                  "= None) -> Admission"),
          "Matches anew and pins: from here on the matched pages stay. Loads start. callback(SequenceId) comes once "
          "when steps can be planned: before admit() returns if that is at once, else from apply(), or stop_loading(). "
          "A sequence that ends before takes it along.")
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
            const ByteAccess access(self);
            take(without_gil([&, &planned = step_of(step)] { return access->apply_copies(planned); }));
          },
          nb::arg("step"), "Applies the plan's moves and copies in memory of the processor's, once.")
      .def(
          "apply_saves",
          [](CacheState& self, const StepHandle& step) {
            const ByteAccess access(self);
            take(without_gil([&, &planned = step_of(step)] { return access->apply_saves(planned); }));
          },
          nb::arg("step"), "The same for state_saves, once the step's tokens are computed.")
      .def("wait_for_layer", &wait_for_layer, nb::arg("step"), nb::arg("layer"), nb::arg("timeout_s") = nb::none(),
           "Waits until a layer of all pages that the step has to wait for is on the device (Step.loads). Failed or "
           "Cancelled: finish_step() takes the entries back. TimedOut after timeout_s; 0 asks and does not wait. Any "
           "thread may wait, and other threads may call the cache meanwhile. State is filled by the plan's copies, "
           "before the first layer: wait for the last layer of snapshot groups before those are applied.")
      .def(
          "wait_on",
          [](const StatePointer& self, std::uint64_t stream, const StepHandle& step, GroupLayer layer) {
            {
              const Access access(*self);
              static_cast<void>(step_of(step));
            }
            const std::shared_ptr<HeldCache> held = self->lease();
            const DeviceStream given{reinterpret_cast<void*>(stream)};
            take(without_gil([&] { return held->cache->wait_on(given, step.step, layer); }));
          },
          nb::arg("stream"), nb::arg("step"), nb::arg("layer"),
          "The same on an accelerator: what is put on the stream from now on runs when the layer is there. `stream` is "
          "the number of a CUDA stream, such as torch.cuda.Stream.cuda_stream.")
      .def(
          "band_of",
          [](CacheState& self, GroupLayer layer) {
            const Access access(self);
            return access->band_of(layer);
          },
          nb::arg("layer"),
          "The band of its pool's loads that a layer belongs to (HostConfig.layer_bands); 0 for a layer that is not "
          "there.")
      .def(
          "lost_entries",
          [](CacheState& self, const StepHandle& step) {
            const Access access(self);
            const std::span<const std::uint32_t> lost = take(access->lost_entries(step_of(step)));
            return std::vector<std::uint32_t>(lost.begin(), lost.end());
          },
          nb::arg("step"),
          "Entries of a step in flight whose pages did not arrive, as far as apply() has heard of it. Their sampled "
          "tokens are not to be used: finish_step() takes these entries back.")
      .def("finish_step", &finish_step, nb::arg("step"), nb::arg("results"),
           nb::sig("def finish_step(self, step: Step, results: collections.abc.Sequence[StepResult | int | object]) -> "
                   "None"),
           "The device work of the oldest step in flight is complete. One result per entry: a StepResult, a token, "
           "tokens, or None for no new token.")
      .def("abort_step", &abort_step, nb::arg("step"),
           "The step did not happen, nor did what later steps in flight compute of its sequences.")
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
            return sequence_of(self, take(access->fork(sequence.get(), at)));
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
            const ByteAccess access(self);
            take(access->preempt(sequence.get(), how));
          },
          nb::arg("sequence"), nb::arg("how"), "The sequence waits without device pages of its own.")
      .def("resume", &resume, nb::arg("sequence"), nb::arg("callback") = nb::none(),
           nb::sig("def resume(self, sequence: Sequence, callback: collections.abc.Callable[[SequenceId], object] | "
                   "None = None) -> Admission"),
           "What admit() is to a begun sequence, callback included.")
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
          "receive_targets",
          [](CacheState& self, const SequenceHandle& sequence) {
            const Access access(self);
            const ReceiveTargets targets = take(access->receive_targets(sequence.get()));
            return TargetsCopy{{targets.windows.begin(), targets.windows.end()}, targets.state_slot};
          },
          nb::arg("sequence"), "What a receiving sequence has reserved of windows, and its state slot.")
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
             std::int32_t receiver, const std::optional<TargetsCopy>& targets) {
            const Access access(self);
            const TargetsCopy given = targets.value_or(TargetsCopy{});
            take(access->mark_send(sequence.get(), begin, slots, receiver,
                                   {.windows = given.windows, .state_slot = given.state_slot}));
          },
          nb::arg("sequence"), nb::arg("begin"), nb::arg("slots"), nb::arg("receiver"), nb::arg("targets") = nb::none(),
          "Tokens from position `begin` on are for another cache, which has told its slots and its receive_targets().");
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
          "hold_on_host",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, std::optional<TimeNs> ttl_ns,
             std::optional<TimeNs> timeout_ns, Tier tier_max, nb::object callback) {
            return hold_on_host(self, key_space, prompt,
                                {.ttl_ns = ttl_ns, .timeout_ns = timeout_ns, .tier_max = tier_max},
                                std::move(callback));
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("ttl_ns") = nb::none(), nb::arg("timeout_ns") = nb::none(),
          nb::arg("tier_max") = Tier::Remote, nb::arg("callback") = nb::none(),
          nb::sig(
              "def hold_on_host(self, key_space: KeySpaceId, prompt: object, ttl_ns: int | None = None, timeout_ns: "
              "int | None = None, tier_max: Tier = ..., callback: "
              "collections.abc.Callable[[HeldPrefix], object] | None = None) -> HeldPrefix"),
          "Brings what lower tiers have of a prefix to the host and holds it there, so that a later admit() loads it "
          "from memory. callback(HeldPrefix) comes once when nothing more will come: before the call returns, or from "
          "apply().")
      .def(
          "held_prefix",
          [](CacheState& self, HoldId hold) {
            const Access access(self);
            return take(access->held_prefix(hold));
          },
          nb::arg("hold"), "What hold_on_host() has of a prefix by now.")
      .def(
          "release_hold",
          [](CacheState& self, HoldId hold) {
            const Access access(self);
            take(access->release_hold(hold));
          },
          nb::arg("hold"), "Lets go of what hold_on_host() holds, and calls off what is on its way.")
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
            const ByteAccess access(self);
            take(without_gil([&] { return access->reset(); }));
          },
          "Gives up everything cached, on disk also what earlier processes have left there. Refused while sequences "
          "live.")
      .def(
          "reclaim",
          [](CacheState& self, std::uint32_t page_count, std::optional<std::uint32_t> group_index) {
            const Access access(self);
            return take(access->reclaim(page_count, group_index));
          },
          nb::arg("page_count"), nb::arg("group_index") = nb::none(),
          "Gives up so many idle pages, or all there are, of the history or of a window or snapshot group. Returns how "
          "many.")
      .def(
          "resize",
          [](CacheState& self, std::uint32_t page_count) {
            const ByteAccess access(self);
            need_no_pool_arrays(self, "resize");
            take(without_gil([&] { return access->resize(page_count); }));
          },
          nb::arg("page_count"),
          "More or fewer device pages, between steps; idle pages move to where there is room. Refused while arrays of "
          "them "
          "are alive.")
      .def(
          "sleep",
          [](CacheState& self, Sleep how) {
            const ByteAccess access(self);
            need_no_pool_arrays(self, "sleep");
            return take(without_gil([&] { return access->sleep(how); }));
          },
          nb::arg("how"),
          "Gives the device's memory up until wake(). True when it is done; else call it again after "
          "apply(). Refused while arrays of it are alive.")
      .def(
          "wake",
          [](CacheState& self) {
            const ByteAccess access(self);
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
      .def("report_to_ranks", &report_to_ranks, nb::arg("rank_index"), nb::arg("rank_count"),
           nb::arg("now") = nb::none(), nb::arg("moved") = std::vector<Completion>(),
           "For a cache of each rank, instead of poll(): what this rank, which is number rank_index of rank_count, has "
           "heard of and has not told yet, as bytes for the other ranks. `moved`: what an external mover has ended. "
           "`now` as for apply(). From the first call on, poll(), apply(), advance() and all that waits are refused.")
      .def("apply_ranks", &apply_ranks, nb::arg("reports"),
           "Takes what report_to_ranks() has given on all ranks, this one's included, in any order, and applies what "
           "all have told by now, which is returned. The time is the latest of any rank. Runs the callbacks, as "
           "apply() does. An error has changed nothing: after InvalidArgument give the right reports of this round, "
           "after Corrupt begin anew with new caches on all ranks.")
      .def("now", &CacheState::now,
           "The time as apply(), advance() or report_to_ranks() were last told it, in nanoseconds, gone on since; from "
           "0 when the cache was opened. What to give apply() where the caller has no clock of its own.")
      .def(
          "event_fd",
          [](CacheState& self) {
            const Access access(self);
            return access->event_fd();
          },
          "Readable when poll() has something; -1 without a host tier, or with an external mover and no tier below "
          "the host.")
      .def(
          "set_ready_callback",
          [](CacheState& self, nb::object callback) {
            if (!callback.is_none() && PyCallable_Check(callback.ptr()) == 0) {
              raise(ErrorCode::InvalidArgument, std::string("callback is of type ") +
                                                    nb::type_name(callback.type()).c_str() +
                                                    ": give a function, or None for none");
            }
            const Access access(self);
            self.ready_callback = std::move(callback);
          },
          nb::arg("callback").none(),
          nb::sig("def set_ready_callback(self, callback: collections.abc.Callable[[SequenceId], object] | None) -> "
                  "None"),
          "Called by apply() with the SequenceId of each sequence whose load has ended.")
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
      .def("stop_loading", &stop_loading, nb::arg("sequence"),
           "The sequence waits no longer: what has not arrived is computed.")
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

void bind_external(nb::class_<CacheState>& cache) {
  cache
      .def(
          "offer",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt, const std::vector<std::uint32_t>& ids,
             std::uint32_t first_page, const std::vector<GroupPagesValue>& groups) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            const auto pages_of = [](const std::vector<std::uint32_t>& numbers) {
              std::vector<PageId> pages;
              pages.reserve(numbers.size());
              for (const std::uint32_t number : numbers) pages.push_back(PageId{number});
              return pages;
            };
            const std::vector<PageId> pages = pages_of(ids);
            std::vector<std::vector<PageId>> pages_of_groups;
            std::vector<GroupPages> pieces;
            pages_of_groups.reserve(groups.size());
            for (const GroupPagesValue& each : groups) {
              pages_of_groups.push_back(pages_of(each.page_ids));
              pieces.push_back(
                  {.group_index = each.group_index, .first_page = each.first_page, .page_ids = pages_of_groups.back()});
            }
            return take(access->offer(
                key_space, {.prompt = *view, .first_page = first_page, .page_ids = pages, .groups = pieces}));
          },
          nb::arg("key_space"), nb::arg("prompt"), nb::arg("page_ids"), nb::arg("first_page") = 0,
          nb::arg("groups") = std::vector<GroupPagesValue>(),
          nb::sig("def offer(self, key_space: KeySpaceId, prompt: object, page_ids: collections.abc.Sequence[int], "
                  "first_page: int = 0, groups: collections.abc.Sequence[GroupPages] = ...) -> OfferOutcome"),
          "External pools: lets others find pages that the engine has filled, of the history and of other groups. All "
          "or nothing.")
      .def(
          "match",
          [](const StatePointer& self, KeySpaceId key_space, nb::handle prompt) {
            const Access access(*self);
            const PromptView view(prompt, self->scratch);
            ExternalMatch match = take(access->match(key_space, *view));
            std::vector<std::uint32_t> pages = page_ids(match.pages);
            std::vector<GroupPagesValue> groups;
            for (const GroupPages& each : match.groups) {
              groups.push_back({each.group_index, each.first_page, page_ids(each.page_ids)});
            }
            return ExternalMatchHandle{nb::cast(sequence_of(self, std::move(match.sequence))), match.token_count,
                                       match.replay_tokens, std::move(pages), std::move(groups)};
          },
          nb::arg("key_space"), nb::arg("prompt"),
          "The longest cached prefix in whole pages that all groups can go on from, held until its sequence ends.")
      .def(
          "take_released",
          [](CacheState& self, std::uint32_t count_max, std::optional<std::uint32_t> group_index) {
            const Access access(self);
            std::vector<PageId> pages(std::min(count_max, kTakenMax));
            return page_ids(take(access->take_released(pages, group_index)));
          },
          nb::arg("count_max") = 4096, nb::arg("group_index") = nb::none(),
          "Pages that quire no longer reads, oldest first: the history's, or those of a window or snapshot group.");
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
            need_group(*access, group_index);
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
            const ByteAccess access(*self);
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
            const ByteAccess access(*self);
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
  nb::class_<CacheState> cache(
      module, "Cache", nb::type_slots(cache_slots), nb::is_weak_referenceable(),
      "Finds the longest cached prefix of each request, hands out pages for the rest, and keeps "
      "what was computed for whoever comes next. Any thread may call it, one at a time.");
  bind_life(cache);
  bind_steps(cache);
  bind_changes(cache);
  bind_contents(cache);
  bind_tiers(cache);
  bind_cache_disk(cache);
  bind_cache_chunks(cache);
  bind_external(cache);
  bind_observers(cache);
  module.def("policy_names", [] { return policy_names(); }, "The policies that CacheConfig.policy may name.");
}

}  // namespace quire::python
