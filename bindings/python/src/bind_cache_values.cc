// SPDX-License-Identifier: Apache-2.0
#include "bind.h"

#include <cstring>
#include <span>
#include <vector>

#include "cache_values.h"
#include "casters.h"
#include "errors.h"
#include "quire/cache.h"
#include "structs.h"

namespace quire::python {

void bind_cache_values(nb::module_& module) {
  StructClass<SequenceOptions>(module, "SequenceOptions", "How a sequence uses the cache and what it leaves there.")
      .field("match_tokens_max", &SequenceOptions::match_tokens_max,
             "Reuse no more than this many tokens of what is cached (all, when unset): prompt log-probabilities need "
             "the rest computed.")
      .field("use_cache", &SequenceOptions::use_cache, "false: match nothing")
      .field("publish", &SequenceOptions::publish)
      .field("expected_tokens", &SequenceOptions::expected_tokens,
             "Prompt and output together, as far as can be told. admit() then waits until the pages for it are there, "
             "besides those that other running sequences still expect. 0: unknown, and nothing is held back for it.")
      .field(
          "priority", &SequenceOptions::priority,
          "For policies that heed them, such as \"priority\": what this sequence uses or adds is worth more than what "
          "lower priorities do, and for no longer than ttl_ns after it was last used or added (for ever, when unset).")
      .field("ttl_ns", &SequenceOptions::ttl_ns)
      .field("prefetch", &SequenceOptions::prefetch)
      .field("load_timeout_ns", &SequenceOptions::load_timeout_ns, "for Prefetch.Timeout, from admit() on")
      .field(
          "plan_while_loading", &SequenceOptions::plan_while_loading,
          "Steps may be planned as soon as all pages that the host has of the prompt are on their way to the device, "
          "before they have arrived. The engine then waits layer by layer for the loads that a step lists "
          "(Step.loads).")
      .field("tier_max", &SequenceOptions::tier_max, "the lowest tier to take pages from")
      .field("allow_inexact_replay", &SequenceOptions::allow_inexact_replay,
             "Groups may be rebuilt by a replay that does not give the same bytes (GroupReplay.is_exact). What follows "
             "one is not cached.")
      .with_constructor();

  enum_class<Preempt>(module, "Preempt", "What becomes of a preempted sequence's pages.")
      .value("Drop", Preempt::Drop,
             "they go; what is cached of them may be found again by resume(), the rest is computed again")
      .value("Save", Preempt::Save,
             "Copies go to the host tier, and the device's when all have arrived; resume() brings them back. When one "
             "does not arrive, the sequence runs on.");

  enum_class<Sleep>(module, "Sleep", "What is left of a cache that sleeps.")
      .value("KeepHost", Sleep::KeepHost, "what the host has room for")
      .value("DropAll", Sleep::DropAll, "nothing in memory, and the host's is given back too; what is on disk stays");

  StructClass<Lookup>(module, "Lookup", "How much of a prompt begin() and admit() would find now.")
      .value("matched_tokens", &Lookup::matched_tokens, "on the device, partial_tokens included")
      .value("replay_tokens", &Lookup::replay_tokens,
             "of them, to be computed again for groups that have to be rebuilt")
      .value("partial_tokens", &Lookup::partial_tokens, "of them, at the start of a page, to be copied")
      .value("host_tokens", &Lookup::host_tokens, "that follow the whole pages on the device, on the host")
      .without_constructor();

  StructClass<Admission>(module, "Admission", "What admit() found.")
      .value("matched_tokens", &Admission::matched_tokens, "that are cached, partial_tokens included")
      .value("replay_tokens", &Admission::replay_tokens,
             "The last of them that are computed all the same, for groups that have to be rebuilt: the history is not "
             "written again. What needs no computing is matched_tokens - replay_tokens.")
      .value("partial_tokens", &Admission::partial_tokens,
             "Of them, those to be copied by the first step. When pages are short, plan_step gives the copy up "
             "instead, and the tokens are pending again.")
      .value("loading_tokens", &Admission::loading_tokens,
             "On their way from the host, besides: the sequence is loading, and view() tells when it is not. They need "
             "no computing if they arrive.")
      .value("is_ready", &Admission::is_ready,
             "Steps can be planned at once: with plan_while_loading, also while tokens are loading. Else the sequence "
             "is loading, or looks for more of its tokens on disk.")
      .value("miss", &Admission::miss, "why the rest has to be computed; of a loading sequence as far as can be told")
      .without_constructor();

  StructClass<Window>(
      module, "Window",
      "A sequence that sees its first `sink_tokens` tokens and the most recent ones, `visible_tokens` in all. A "
      "group's window_tokens do not count the sink: such a group sees window_tokens + sink_tokens.")
      .field("visible_tokens", &Window::visible_tokens, "sink and most recent ones together")
      .field("sink_tokens", &Window::sink_tokens)
      .with_constructor();

  StructClass<ViewCopy>(module, "SequenceView", "What is known of a sequence, as of the call of view().")
      .value("is_waiting", &ViewCopy::is_waiting, "begun or preempted, not admitted")
      .value("is_ready", &ViewCopy::is_ready, "steps can be planned, as far as this sequence goes")
      .value("is_planned", &ViewCopy::is_planned, "part of a step in flight")
      .value("is_loading", &ViewCopy::is_loading, "admitted, and pages are on their way from the host")
      .value("is_receiving", &ViewCopy::is_receiving, "between prepare_receive and finish_receive")
      .value("token_count", &ViewCopy::token_count, "known tokens: the prompt, and what was added since")
      .value("computed_tokens", &ViewCopy::computed_tokens,
             "for all groups; undecided tree tokens not counted, nor replay_tokens")
      .value("host_tokens", &ViewCopy::host_tokens, "that its admission found on the host, and had loaded")
      .value("disk_tokens", &ViewCopy::disk_tokens, "that its admission found on disk, and had read and loaded")
      .value("remote_tokens", &ViewCopy::remote_tokens, "the same of the remote tier")
      .value("pending_tokens", &ViewCopy::pending_tokens,
             "To be computed, and in no step in flight. 1 when all is computed but nobody has asked for what comes "
             "next, as after a prompt that was cached whole: its last token then runs again, writing nothing.")
      .value("tree_tokens", &ViewCopy::tree_tokens, "computed and undecided")
      .value("steps_in_flight", &ViewCopy::steps_in_flight)
      .value("window", &ViewCopy::window, "visible_tokens 0: none")
      .value("state_slot", &ViewCopy::state_slot, "of an admitted one; see AttentionPlanEntry")
      .value("next_checkpoint", &ViewCopy::next_checkpoint,
             "tokens behind which a snapshot is taken next: steps end there; 0: nowhere")
      .value("replay_tokens", &ViewCopy::replay_tokens,
             "of the pending ones: groups that keep everything have them, others do not")
      .value("miss", &ViewCopy::miss, "as of its admission, or of the end of its load")
      .value("pages", &ViewCopy::page_ids, "of the first group that keeps everything, in order")
      .without_constructor();

  StructClass<Shortage>(module, "Shortage",
                        "Why plan_step planned nothing: evicting everything evictable would not give enough pages. Of "
                        "several groups that are short, the first.")
      .value("group_index", &Shortage::group_index, "in ModelLayout.groups")
      .value("pages_needed", &Shortage::pages_needed)
      .value("pages_available", &Shortage::pages_available)
      .value("pages_returning", &Shortage::pages_returning,
             "given back, and free once the steps in flight are finished")
      .value("pages_leaving", &Shortage::pages_leaving,
             "on their way to the host: so many at most are available once that is done")
      .value("entries_that_fit", &Shortage::entries_that_fit,
             "so many leading entries could be planned without the rest")
      .value("fitting_tokens", &Shortage::fitting_tokens,
             "Behind these, the next entry could be planned with so many tokens, as its token_count and without drafts "
             "or a tree. 0: with none.")
      .value("is_of_history", &Shortage::is_of_history,
             "the group keeps everything: others that do are short of the same pages")
      .without_constructor();

  StructClass<RemoteTierStatus>(module, "RemoteTierStatus", "The remote tier. Totals count since open().")
      .value("is_usable", &RemoteTierStatus::is_usable,
             "False: every question fails at once, until a server can be reached.")
      .value("node_count", &RemoteTierStatus::node_count)
      .value("failed_nodes", &RemoteTierStatus::failed_nodes, "left alone for a while")
      .value("waiting_bytes", &RemoteTierStatus::waiting_bytes, "of values that are not on their way yet")
      .value("last_error", &RemoteTierStatus::last_error, "empty: none so far; never has a password")
      .value("extent_pages", &RemoteTierStatus::extent_pages, "of the history, in one value")
      .value("question_ns", &RemoteTierStatus::question_ns, "how long answers take, as measured of late; 0: not yet")
      .value("load_bytes_per_ns", &RemoteTierStatus::load_bytes_per_ns)
      .value("asked_names", &RemoteTierStatus::asked_names)
      .value("spared_names", &RemoteTierStatus::spared_names, "not asked for: they were absent a moment ago")
      .value("got_values", &RemoteTierStatus::got_values, "that came and were right")
      .value("got_bytes", &RemoteTierStatus::got_bytes)
      .value("put_values", &RemoteTierStatus::put_values)
      .value("put_bytes", &RemoteTierStatus::put_bytes)
      .value("kept_values", &RemoteTierStatus::kept_values, "not put, because the servers have them")
      .value("absent_values", &RemoteTierStatus::absent_values, "gone when they were to be read")
      .value("corrupt_values", &RemoteTierStatus::corrupt_values,
             "came damaged: they are put anew, or dropped when they come so again")
      .value("foreign_values", &RemoteTierStatus::foreign_values,
             "came as somebody else's under the name of a page, and the same")
      .value("late_objects", &RemoteTierStatus::late_objects)
      .value("failed_objects", &RemoteTierStatus::failed_objects)
      .value("failed_drops", &RemoteTierStatus::failed_drops, "of key spaces; each is tried again");

  StructClass<DiskStatus>(module, "DiskStatus", "The disk tier, as its store sees it. Totals count since open().")
      .value("capacity_bytes", &DiskStatus::capacity_bytes)
      .value("used_bytes", &DiskStatus::used_bytes, "of files")
      .value("live_bytes", &DiskStatus::live_bytes, "of records that can be found")
      .value("page_count", &DiskStatus::page_count)
      .value("segment_count", &DiskStatus::segment_count)
      .value("written_bytes", &DiskStatus::written_bytes)
      .value("carried_bytes", &DiskStatus::carried_bytes, "part of it, to make room")
      .value("read_bytes", &DiskStatus::read_bytes)
      .value("evicted_page_total", &DiskStatus::evicted_page_total)
      .value("corrupt_page_total", &DiskStatus::corrupt_page_total, "dropped, when opening and since")
      .value("torn_page_total", &DiskStatus::torn_page_total, "were being written when the last process ended")
      .value("other_layout_pages", &DiskStatus::other_layout_pages,
             "of another model or page size: never read, and first to go")
      .value("ignored_file_count", &DiskStatus::ignored_file_count, "segments of no store, or of another: left alone")
      .value("directory_count", &DiskStatus::directory_count)
      .value("failed_directory_count", &DiskStatus::failed_directory_count)
      .value("failed_segment_count", &DiskStatus::failed_segment_count)
      .value("uses_io_uring", &DiskStatus::uses_io_uring)
      .value("is_direct", &DiskStatus::is_direct, "O_DIRECT")
      .value("has_registered_buffers", &DiskStatus::has_registered_buffers)
      .value("refusals", &DiskStatus::refusals, "what was asked of the system and refused, and why")
      .value("last_error", &DiskStatus::last_error, "empty: none so far")
      .without_constructor();

  StructClass<DiskAnswer>(module, "DiskAnswer", "What came of a direct call to the disk tier.")
      .value("outcome", &DiskAnswer::outcome)
      .value("token_count", &DiskAnswer::token_count,
             "Leading tokens of the prompt that were found, written or read; 0: none. Where several groups have a say, "
             "up to where all of them can go on with what was.")
      .value("replay_tokens", &DiskAnswer::replay_tokens,
             "the last of them, to be computed once more for groups that lack what they need and declare a replay")
      .value("rebuilt_groups", &DiskAnswer::rebuilt_groups, "those groups, by index in the layout")
      .without_constructor();

  StructClass<DirectPart>(module, "DirectPart", "Where one group's pages lie among the bytes of a direct call.")
      .value("group_index", &DirectPart::group_index)
      .value("sink_pages", &DirectPart::sink_pages, "of the path's pages the first so many,")
      .value("first_page", &DirectPart::first_page, "and from this one on,")
      .value("end_page", &DirectPart::end_page, "up to the one before this")
      .value("page_bytes", &DirectPart::page_bytes)
      .value("offset", &DirectPart::offset, "of the first of them")
      .value("stride_bytes", &DirectPart::stride_bytes, "from one to the next: groups of the history lie side by side")
      .without_constructor()
      .def_prop_ro("page_count", &DirectPart::page_count)
      .def("offset_of", &DirectPart::offset_of, nb::arg("page"),
           "Where the group's part of a page of the path begins; None when it has none.");

  StructClass<DirectBytes>(module, "DirectBytes", "What put_on_disk() and get_from_disk() move of a prompt.")
      .value("token_count", &DirectBytes::token_count,
             "leading tokens of the prompt: whole pages, up to a multiple of every group's boundary")
      .value("byte_count", &DirectBytes::byte_count, "of all shards")
      .value("shard_count", &DirectBytes::shard_count,
             "ranks that follow one another and hold the same heads are a shard")
      .value("parts", &DirectBytes::parts, "of one shard, in the layout's order; groups that are not on disk have none")
      .without_constructor();

  StructClass<Kept>(module, "Kept", "A prefix that keep() holds.")
      .value("id", &Kept::id)
      .value("token_count", &Kept::token_count,
             "The cached part of what was asked for, in whole pages; where several groups have a say, up to where all "
             "of them can go on, replays included.")
      .without_constructor();

  StructClass<HeldPrefix>(module, "HeldPrefix", "What hold_on_host() has of a prefix by now.")
      .value("id", &HeldPrefix::id)
      .value("token_count", &HeldPrefix::token_count, "in memory, in whole pages: where a request can go on")
      .value("is_arriving", &HeldPrefix::is_arriving, "more may come from lower tiers")
      .value("miss", &HeldPrefix::miss, "why the rest did not come, once nothing more will")
      .without_constructor();

  StructClass<GroupPagesValue>(module, "GroupPages",
                               "Pages of a window or snapshot group that go with consecutive pages of a path.")
      .field("group_index", &GroupPagesValue::group_index)
      .field("first_page", &GroupPagesValue::first_page, "The path's page that the first of them goes with.")
      .field("page_ids", &GroupPagesValue::page_ids)
      .with_constructor();
  StructClass<GroupPage>(module, "GroupPage", "A page of one group.")
      .value("group_index", &GroupPage::group_index)
      .made(
          "page", [](const GroupPage& self) { return self.page.value; },
          [](GroupPage& self, std::uint32_t page) { self.page = PageId{page}; }, "", "int")
      .without_constructor();

  StructClass<OfferOutcome>(module, "OfferOutcome", "What became of offered pages.")
      .value("prefix_pages", &OfferOutcome::prefix_pages,
             "How many pages of the path before first_page are cached; if fewer than first_page, nothing was adopted.")
      .value("duplicate_pages", &OfferOutcome::duplicate_pages,
             "the first of page_ids: cached under other ids, these stay the engine's")
      .value("adopted_pages", &OfferOutcome::adopted_pages,
             "the rest: quire may read them until it reports them as released")
      .value("adopted_group_pages", &OfferOutcome::adopted_group_pages, "the same of `groups`,")
      .value("group_duplicates", &OfferOutcome::group_duplicates,
             "but for these, which stay the engine's: the path has others there")
      .without_constructor();

  StructClass<HostRegionStatus>(module, "HostRegionStatus", "What the host region lies in.")
      .value("has_huge_pages", &HostRegionStatus::has_huge_pages)
      .value("has_reserved_huge_pages", &HostRegionStatus::has_reserved_huge_pages,
             "of those that the system has set apart (hugetlbfs), not transparent ones")
      .value("numa_node", &HostRegionStatus::numa_node,
             "that was asked for, by the configuration or for the accelerator")
      .value("is_on_numa_node", &HostRegionStatus::is_on_numa_node, "on that one, as long as it has memory")
      .value("has_bound_threads", &HostRegionStatus::has_bound_threads,
             "the mover's threads run on its processors only")
      .value("is_locked", &HostRegionStatus::is_locked)
      .value("refusals", &HostRegionStatus::refusals, "what was asked for and refused, and why; empty when nothing was")
      .without_constructor();

  StructClass<Completion>(module, "Completion",
                          "A mover's report: from here on it neither reads nor writes the transfer's pages.")
      .field("id", &Completion::id)
      .field("kind", &Completion::kind)
      .field("tier", &Completion::tier)
      .field("outcome", &Completion::outcome)
      .field("fault", &Completion::fault)
      .field("rank", &Completion::rank)
      .field("good_pages", &Completion::good_pages)
      .field("moved_bytes", &Completion::moved_bytes)
      .field("busy_ns", &Completion::busy_ns)
      .with_constructor();

  StructClass<AgreementCopy>(module, "RankAgreement", "What ranks with a cache each have agreed on.")
      .value("now", &AgreementCopy::now, "the cache's time")
      .value("completions", &AgreementCopy::completions, "that were applied")
      .without_constructor();

  StructClass<PageTransfer>(module, "PageTransfer", "One page's way.")
      .made(
          "device_page", [](const PageTransfer& self) { return self.device_page.value; },
          [](PageTransfer& self, std::uint32_t page) { self.device_page = PageId{page}; }, "", "int")
      .made(
          "host_page", [](const PageTransfer& self) { return self.host_page.value; },
          [](PageTransfer& self, std::uint32_t page) { self.host_page = PageId{page}; }, "", "int")
      .value("host_generation", &PageTransfer::host_generation, "grows each time the host page is handed out")
      .value("place", &PageTransfer::place, "the planner's own")
      .value("name_tag", &PageTransfer::name_tag, "a hash of the page's tokens and all before them")
      .without_constructor()
      .def(
          "__init__",
          [](PageTransfer* self, std::uint32_t device_page, std::uint32_t host_page, std::uint32_t host_generation,
             std::uint32_t place, std::uint64_t name_tag) {
            new (self) PageTransfer{PageId{device_page}, PageId{host_page}, host_generation, place, name_tag};
          },
          nb::kw_only(), nb::arg("device_page"), nb::arg("host_page"), nb::arg("host_generation") = 0,
          nb::arg("place") = 0, nb::arg("name_tag") = 0);
  StructClass<TransferCopy>(module, "TransferPlan",
                            "What a mover is to move: of a cache with an external one, or an engine's own.")
      .value("id", &TransferCopy::id)
      .value("kind", &TransferCopy::kind)
      .value("priority", &TransferCopy::priority)
      .value("band_count", &TransferCopy::band_count)
      .value("pool_index", &TransferCopy::pool_index)
      .value("pages", &TransferCopy::pages, "of a load in the order of the path")
      .without_constructor()
      .def(
          "__init__",
          [](TransferCopy* self, TransferId id, TransferKind kind, std::vector<PageTransfer> pages,
             TransferPriority priority, std::uint16_t band_count, std::uint16_t pool_index) {
            new (self) TransferCopy{id, kind, priority, band_count, pool_index, std::move(pages)};
          },
          nb::kw_only(), nb::arg("id"), nb::arg("kind"), nb::arg("pages"),
          nb::arg("priority") = TransferPriority::Waiting, nb::arg("band_count") = 1, nb::arg("pool_index") = 0,
          nb::sig("def __init__(self, *, id: TransferId, kind: TransferKind, pages: "
                  "collections.abc.Sequence[PageTransfer], priority: TransferPriority = ..., band_count: int = 1, "
                  "pool_index: int = 0) -> None"));
  module.def("encoded_bytes", &encoded_bytes, nb::arg("page_count"),
             "How many bytes encode() writes for a plan of so many pages.");
  module.def(
      "encode",
      [](const TransferCopy& plan) {
        std::vector<std::byte> out(encoded_bytes(plan.pages.size()));
        const std::span<std::byte> used = take(encode({.id = plan.id,
                                                       .kind = plan.kind,
                                                       .priority = plan.priority,
                                                       .band_count = plan.band_count,
                                                       .pool_index = plan.pool_index,
                                                       .pages = plan.pages},
                                                      out));
        return nb::bytes(used.data(), used.size());
      },
      nb::arg("plan"), "A plan as bytes, which mean the same in any process of the same build, in C++ too.");
  module.def(
      "decode",
      [](const nb::bytes& bytes) {
        std::vector<std::uint64_t> aligned((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
        if (bytes.size() > 0) std::memcpy(aligned.data(), bytes.data(), bytes.size());
        const TransferPlan plan = take(decode(std::as_bytes(std::span(aligned)).first(bytes.size())));
        return TransferCopy{plan.id,         plan.kind,       plan.priority,
                            plan.band_count, plan.pool_index, {plan.pages.begin(), plan.pages.end()}};
      },
      nb::arg("bytes"), "Reads what encode() wrote.");

  StructClass<RunCopy>(module, "RunView", "A run of the prefix tree, as of the call of visit_runs().")
      .made(
          "run", [](const RunCopy& self) { return self.run.value; }, "", "int")
      .made(
          "parent",
          [](const RunCopy& self) {
            return self.parent.is_none() ? std::optional<std::uint32_t>() : std::optional(self.parent.value);
          },
          "None for the root of a key space", "int | None")
      .value("key_space", &RunCopy::key_space)
      .value("tier", &RunCopy::tier, "where its pages are")
      .value("depth", &RunCopy::depth, "runs above it")
      .value("first_page", &RunCopy::first_page, "position in the path from the root, in pages")
      .value("pin_count", &RunCopy::pin_count, "pins that end here, plus one for each child that is pinned")
      .value("own_pin_count", &RunCopy::own_pin_count)
      .value("soft_pin_count", &RunCopy::soft_pin_count)
      .value("child_count", &RunCopy::child_count)
      .made(
          "tokens", [](const RunCopy& self) { return self.token_array; }, "", "numpy.typing.NDArray[numpy.int32]")
      .made(
          "pages", [](const RunCopy& self) { return self.page_array; }, "", "numpy.typing.NDArray[numpy.uint32]")
      .without_constructor();
  StructClass<ResidencyRecord>(module, "ResidencyRecord", "Pages of a path came to or left a tier.")
      .value("number", &ResidencyRecord::number, "counts from 0 without gaps; a reader that sees a gap was too slow")
      .made(
          "run",
          [](const ResidencyRecord& self) {
            return self.run.is_none() ? std::optional<std::uint32_t>() : std::optional(self.run.value);
          },
          [](ResidencyRecord& self, std::optional<std::uint32_t> run) { self.run = run ? RunId{*run} : RunId::none(); },
          "the run that held them at that moment; None for the host's copy of a device page", "int | None")
      .value("first_page", &ResidencyRecord::first_page, "position in the path from the root, in pages")
      .value("page_count", &ResidencyRecord::page_count)
      .value("group", &ResidencyRecord::group)
      .value("tier", &ResidencyRecord::tier, "Device or Host: what lower tiers have is known by name only")
      .value("cause", &ResidencyRecord::cause)
      .without_constructor();
}

}  // namespace quire::python
