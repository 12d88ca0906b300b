// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "arrays.h"
#include "bind.h"
#include "cache_calls.h"
#include "cache_values.h"
#include "casters.h"
#include "errors.h"
#include "quire/plan.h"
#include "step.h"
#include "structs.h"

namespace quire::python {
namespace {

constexpr const char* kInts = "numpy.typing.NDArray[numpy.int32]";
constexpr const char* kLongs = "numpy.typing.NDArray[numpy.int64]";
constexpr const char* kPages = "numpy.typing.NDArray[numpy.uint32]";

using StepPointer = std::shared_ptr<StepHandle>;

// Views of parts of a plan: which part, of which step.
struct PlanView {
  StepPointer step;
  const AttentionPlan& operator*() const { return step->plan(); }
};
struct GroupView {
  StepPointer step;
  std::size_t index = 0;
  const GroupPlan& operator*() const { return step->plan().groups[index]; }
};
struct LevelView {
  GroupView group;
  std::size_t index = 0;
  const CascadeLevel& operator*() const { return (*group).levels[index]; }
};
struct LayerWindowView {
  GroupView group;
  std::size_t index = 0;
  const LayerWindowPlan& operator*() const { return (*group).layer_windows[index]; }
};

const StepHandle& step_of(const PlanView& view) {
  return *view.step;
}
const StepHandle& step_of(const GroupView& view) {
  return *view.step;
}
const StepHandle& step_of(const LevelView& view) {
  return *view.group.step;
}
const StepHandle& step_of(const LayerWindowView& view) {
  return *view.group.step;
}

// Adds the parts of a view as properties.
template <typename View>
class ViewClass {
 public:
  ViewClass(nb::module_& module, const char* name, const char* text) : class_(module, name, text) {}

  template <typename T, typename Part>
  ViewClass& array(const char* name, std::span<const T> Part::* member, const char* text) {
    const char* type = sizeof(T) == sizeof(std::int64_t) ? kLongs : kInts;
    return add(
        name, [member](const View& view) { return array_of((*view).*member, step_of(view).owner()); }, text, type);
  }
  template <typename T, typename S, typename Part>
  ViewClass& rows(const char* name, std::span<const S> Part::* member, const char* text) {
    const char* type = sizeof(T) == sizeof(std::int64_t) ? kLongs : (std::is_signed_v<T> ? kInts : kPages);
    return add(
        name, [member](const View& view) { return rows_of<T>((*view).*member, step_of(view).owner()); }, text, type);
  }
  template <typename T, typename Part>
  ViewClass& number(const char* name, T Part::* member, const char* text = "") {
    class_.def_prop_ro(name, [member](const View& view) { return (*view).*member; }, text);
    return *this;
  }
  template <typename Get>
  ViewClass& add(const char* name, Get get, const char* text, const char* type) {
    class_.def_prop_ro(name, get, text, nb::sig(keep_text("def " + std::string(name) + "(self) -> " + type)));
    return *this;
  }
  nb::class_<View>& done() { return class_; }

 private:
  nb::class_<View> class_;
};

template <typename View, typename Parent>
nb::tuple views_of(const Parent& parent, std::size_t count) {
  nb::list list;
  for (std::size_t i = 0; i < count; ++i) list.append(nb::cast(View{parent, i}));
  return nb::tuple(list);
}

// Stays valid without the cache.
struct EntryView {
  AttentionPlanEntry entry;
  nb::object tokens;
  nb::object pages;
  nb::object append_slots;
};

nb::tuple entries_of(const PlanView& view) {
  nb::list list;
  for (const AttentionPlanEntry& entry : (*view).entries) {
    const std::span<const std::uint32_t> pages(reinterpret_cast<const std::uint32_t*>(entry.pages.data()),
                                               entry.pages.size());
    list.append(nb::cast(EntryView{entry, copy_of(entry.tokens), copy_of(pages), copy_of(entry.append_slots)}));
  }
  return nb::tuple(list);
}

struct FlashInferArrays {
  nb::object qo_indptr, kv_indptr, kv_indices, kv_last_page_len;
};
struct BlockTableArrays {
  nb::object block_table, slot_mapping, seq_lens, query_start_loc;
};

void bind_entries(nb::module_& module) {
  nb::class_<EntryView> entry(module, "AttentionPlanEntry",
                              "One sequence's part of a step, for the host. A copy: valid after the step too.");
  const auto number = [&](const char* name, auto member, const char* text) {
    entry.def_prop_ro(name, [member](const EntryView& self) { return self.entry.*member; }, text);
  };
  number("sequence", &AttentionPlanEntry::sequence, "");
  number("entry_index", &AttentionPlanEntry::entry_index,
         "its place in the call of plan_step, and in the results of finish_step");
  number("position", &AttentionPlanEntry::position, "of the first token to compute, in the sequence");
  number("token_count", &AttentionPlanEntry::token_count,
         "tokens to compute: known ones, then draft_count drafts or tree tokens");
  number("draft_count", &AttentionPlanEntry::draft_count, "of them");
  number("context_tokens", &AttentionPlanEntry::context_tokens, "tokens whose K and V are there once the step has run");
  number("last_page_tokens", &AttentionPlanEntry::last_page_tokens, "how many of them lie in the last page");
  number("state_slot", &AttentionPlanEntry::state_slot, "the sequence's own from admission to its end or preemption");
  number("checkpoint", &AttentionPlanEntry::checkpoint,
         "tokens at whose end a snapshot is taken behind this step; 0: none");
  const auto array = [&](const char* name, nb::object EntryView::* member, const char* type, const char* text) {
    entry.def_prop_ro(
        name, [member](const EntryView& self) { return self.*member; }, text,
        nb::sig(keep_text("def " + std::string(name) + "(self) -> " + type)));
  };
  array("tokens", &EntryView::tokens, kInts, "of the tokens to compute, those known to the cache");
  array("pages", &EntryView::pages, kPages, "all of the sequence's pages, in order");
  array("append_slots", &EntryView::append_slots, kLongs, "one per token, of the first group that keeps everything");
}

void bind_groups(nb::module_& module) {
  ViewClass<LevelView>(module, "CascadeLevel",
                       "One level of the cascade: slices of keys, each shared by all queries of its range.")
      .array("query_indptr", &CascadeLevel::query_indptr,
             "[slices + 1] slice i serves queries [indptr[i], indptr[i + 1])")
      .array("page_indptr", &CascadeLevel::page_indptr, "[slices + 1] it has indptr[i + 1] - indptr[i] pages")
      .array("rows", &CascadeLevel::rows, "[slices] Rows: the table's row that lists them")
      .array("first_columns", &CascadeLevel::first_columns, "[slices] Rows: from this column on")
      .array("last_page_tokens", &CascadeLevel::last_page_tokens, "[slices] keys in the last page; 0 for no pages")
      .array("window_offsets", &CascadeLevel::window_offsets,
             "[slices] token of the listed pages where recent keys begin")
      .array("sink_tokens", &CascadeLevel::sink_tokens, "[slices] keys before them, at the start of the first page")
      .array("first_keys", &CascadeLevel::first_keys, "[slices] number of the slice's first key");
  ViewClass<LayerWindowView>(module, "LayerWindowPlan",
                             "For layers that attend to their last `window_tokens` tokens only.")
      .number("window_tokens", &LayerWindowPlan::window_tokens)
      .array("page_indptr", &LayerWindowPlan::page_indptr, "[entries + 1] goes on where that of the last level ends")
      .array("rows", &LayerWindowPlan::rows, "[entries] Rows: the table's row that lists the pages")
      .array("first_columns", &LayerWindowPlan::first_columns, "[entries] Rows: from this column on")
      .array("first_keys", &LayerWindowPlan::first_keys, "[entries] number of the first listed key")
      .array("key_offsets", &LayerWindowPlan::key_offsets, "[entries] its token in the first listed page");
  ViewClass<GroupView>(module, "GroupPlan", "What one cache group's layers need; docs/attention_plans.md has examples.")
      .array("append_slots", &GroupPlan::append_slots, "[tokens] page * page_tokens + place in the page, or NO_SLOT")
      .add(
          "levels", [](const GroupView& view) { return views_of<LevelView>(view, (*view).levels.size()); },
          "PlanConfig.cascade_levels_max of them", "tuple[CascadeLevel, ...]")
      .add(
          "layer_windows",
          [](const GroupView& view) { return views_of<LayerWindowView>(view, (*view).layer_windows.size()); },
          "of full groups: PlanConfig.layer_windows, in order", "tuple[LayerWindowPlan, ...]")
      .rows<std::int32_t>("deltas", &GroupPlan::deltas, "[n][3] Rows: row, column, page: changes of the table")
      .array("page_indices", &GroupPlan::page_indices, "Csr: page ids; all page_indptr point into this one array")
      .add(
          "block_table",
          [](const GroupView& view) {
            const GroupPlan& group = *view;
            const std::size_t columns = view.step->plan().shape.columns;
            return array_of(group.block_table, view.step->owner(), group.block_table.empty() ? 0 : columns);
          },
          "[entries][columns] Block: page ids, NULL_PAGE behind the end", kInts)
      .rows<std::int64_t>("moves", &GroupPlan::moves, "[n][2] source and target slot, before anything else is written")
      .array("move_indptr", &GroupPlan::move_indptr, "[committed sequences + 1] whose moves are whose")
      .rows<std::uint32_t>("copies", &GroupPlan::copies,
                           "[n][3] source page, target page, token count: after the moves")
      .array("remote_slots", &GroupPlan::remote_slots, "[tokens] where the receiver puts the token, or NO_SLOT")
      .array("receivers", &GroupPlan::receivers, "[tokens] whose the token is, or -1; the same for all groups")
      .add(
          "sends",
          [](const GroupView& view) {
            nb::list list;
            for (const SendRun& run : (*view).sends) list.append(nb::cast(run));
            return nb::tuple(list);
          },
          "tokens computed earlier, to be sent", "tuple[SendRun, ...]")
      .number("tokens_per_entry", &GroupPlan::tokens_per_entry, "r of a compressed group")
      .number("window_tokens", &GroupPlan::window_tokens, "W of a window group with pages; 0 for others");
}

}  // namespace

const AttentionPlan& StepHandle::plan() const {
  if (state->is_closed()) raise(ErrorCode::InvalidArgument, "the cache is closed, and the plans of its steps with it");
  if (!is_live) {
    raise(ErrorCode::InvalidArgument, "step " + std::to_string(step.number) +
                                          " is over, and its plan with it: copy what is needed later before "
                                          "finish_step() or abort_step()");
  }
  return step.plan;
}

void bind_plan(nb::module_& module) {
  module.attr("NULL_PAGE") = kNullPage.value;
  module.attr("NO_SLOT") = kNoSlot;
  enum_class<StateCopyKind>(module, "StateCopyKind", "The first column of AttentionPlan.state_copies and state_saves.")
      .value("Reset", StateCopyKind::Reset, "slot `target` becomes what it is before anything is computed")
      .value("Restore", StateCopyKind::Restore, "slot `target` gets the state from the snapshot in page `source`")
      .value("Save", StateCopyKind::Save, "page `target` gets a snapshot of slot `source`")
      .value("Fork", StateCopyKind::Fork, "slot `target` becomes what slot `source` is, with all earlier versions");
  StructClass<PlanShape>(module, "PlanShape",
                         "The lengths that a plan's arrays are padded to: plans of one shape have their arrays at the "
                         "same offsets, so a captured graph can be replayed on them.")
      .field("entries", &PlanShape::entries)
      .field("tokens", &PlanShape::tokens)
      .field("columns", &PlanShape::columns, "of a block_table line")
      .with_constructor();
  StructClass<SlotRun>(module, "SlotRun", "Consecutive slots.")
      .field("first_slot", &SlotRun::first_slot)
      .field("token_count", &SlotRun::token_count)
      .with_constructor();
  StructClass<WindowRun>(module, "WindowRun",
                         "Consecutive slots of a window group in another cache, for tokens from `position` on.")
      .field("group", &WindowRun::group, "in ModelLayout.groups")
      .field("position", &WindowRun::position)
      .field("first_slot", &WindowRun::first_slot)
      .field("token_count", &WindowRun::token_count)
      .with_constructor();
  StructClass<TargetsCopy>(module, "ReceiveTargets",
                           "Where a receiving sequence has room for what groups hold that do not keep everything.")
      .field("windows", &TargetsCopy::windows, "of window groups: the tokens that are still needed, in whole pages")
      .field("state_slot", &TargetsCopy::state_slot, "where the state behind the last token goes; -1: there is none")
      .with_constructor();
  enum_class<SendTime>(module, "SendTime", "The last column of AttentionPlan.state_sends.")
      .value("BeforeStep", SendTime::BeforeStep, "behind the state_copies, before the tokens are computed")
      .value("AfterStep", SendTime::AfterStep, "once the tokens are computed");
  StructClass<SendRun>(module, "SendRun", "Tokens in the cache to be sent to another one before the step.")
      .value("local_slot", &SendRun::local_slot)
      .value("remote_slot", &SendRun::remote_slot)
      .value("token_count", &SendRun::token_count)
      .value("receiver", &SendRun::receiver)
      .without_constructor();
  bind_entries(module);
  bind_groups(module);

  ViewClass<PlanView>(module, "AttentionPlan",
                      "What a step asks of the engine. Arrays are read-only and lie in the cache: copy what is needed "
                      "after finish_step() or abort_step().")
      .number("shape", &AttentionPlan::shape)
      .number("page_tables", &AttentionPlan::page_tables)
      .number("entry_count", &AttentionPlan::entry_count)
      .number("token_count", &AttentionPlan::token_count)
      .array("query_positions", &AttentionPlan::query_positions, "[tokens] for RoPE, in groups that keep everything")
      .array("query_indptr", &AttentionPlan::query_indptr,
             "[entries + 1] entry e computes queries [indptr[e], indptr[e + 1])")
      .array("seq_lens", &AttentionPlan::seq_lens, "[entries] keys, this step's included")
      .array("stored_lens", &AttentionPlan::stored_lens, "[entries] keys before this step")
      .array("visible_tokens", &AttentionPlan::visible_tokens,
             "[entries] of the sequence's Window, the sink included; 0: none")
      .array("context_lens", &AttentionPlan::context_lens,
             "[entries] tokens once the step has run, whatever a window has skipped; empty with one group")
      .array("state_slots", &AttentionPlan::state_slots, "[entries] state slot, or row of the page table")
      .array("tree_indptr", &AttentionPlan::tree_indptr, "[entries + 1] tree tokens, the last keys of the entry")
      .rows<std::int32_t>("tree_nodes", &AttentionPlan::tree_nodes, "[tree tokens][3] begin, end, depth")
      .add(
          "groups", [](const PlanView& view) { return views_of<GroupView>(view.step, (*view).groups.size()); },
          "one for each group of the layout", "tuple[GroupPlan, ...]")
      .rows<std::int32_t>("state_copies", &AttentionPlan::state_copies, "[n][5] kind, group, source, target, position")
      .rows<std::int32_t>("state_saves", &AttentionPlan::state_saves, "[n][5] the same, when the tokens are computed")
      .rows<std::int32_t>("state_sends", &AttentionPlan::state_sends,
                          "[n][5] source slot, the receiver's slot, position, receiver, SendTime")
      .add(
          "staging",
          [](const PlanView& view) {
            const std::span<const std::byte> bytes = (*view).staging;
            return array_of(std::span(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
                            view.step->owner());
          },
          "all arrays, to be copied to the device in one piece", "numpy.typing.NDArray[numpy.uint8]")
      .add("entries", &entries_of, "in the order of the arrays, which a cascade chooses",
           "tuple[AttentionPlanEntry, ...]")
      .rows<std::uint32_t>("copies", &AttentionPlan::copies, "[n][3] of the first full or compressed group")
      .array("append_slots", &AttentionPlan::append_slots, "the same, without padding");

  StructClass<StepLoad>(module, "StepLoad", "A load that a step reads pages of, before they have arrived.")
      .value("id", &StepLoad::id)
      .value("pool_index", &StepLoad::pool_index, "as in its TransferPlan")
      .value("band_count", &StepLoad::band_count)
      .without_constructor();
  StructClass<GroupLayer>(module, "GroupLayer",
                          "A layer of a group, both by index: of the group in the layout, of the layer in the group.")
      .field("group_index", &GroupLayer::group_index)
      .field("layer_index", &GroupLayer::layer_index)
      .with_constructor();

  nb::class_<StepHandle>(module, "Step",
                         "One forward pass, planned and not finished. Dropping it in flight aborts it at the cache's "
                         "next call; as a context manager it is aborted at the end of a block that did not finish it.")
      .def_prop_ro("number", [](const StepHandle& self) { return self.step.number; })
      .def_prop_ro("plan", [](const StepPointer& self) { return PlanView{self}; })
      .def_prop_ro(
          "loads", [](const StepHandle& self) { return nb::tuple(nb::cast(self.loads)); },
          nb::sig("def loads(self) -> tuple[StepLoad, ...]"),
          "What has to arrive while the step is computed, of sequences with plan_while_loading: see "
          "Cache.wait_for_layer().")
      .def(
          "__enter__", [](const nb::object& self) { return self; }, nb::sig("def __enter__(self) -> Step"))
      .def(
          "__exit__",
          [](StepHandle& self, const nb::args&) {
            if (self.is_live && !self.state->is_closed()) abort_step(*self.state, self);
          },
          nb::sig("def __exit__(self, *exc_info: object) -> None"))
      .def("__repr__", [](const StepHandle& self) {
        return "Step(" + std::to_string(self.step.number) + (self.is_live ? ")" : ", over)");
      });

  nb::class_<FlashInferArrays>(module, "FlashInferView", "The arrays by the names of FlashInfer's paged wrappers.")
      .def_prop_ro(
          "qo_indptr", [](const FlashInferArrays& self) { return self.qo_indptr; },
          nb::sig("def qo_indptr(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def_prop_ro(
          "kv_indptr", [](const FlashInferArrays& self) { return self.kv_indptr; },
          nb::sig("def kv_indptr(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def_prop_ro(
          "kv_indices", [](const FlashInferArrays& self) { return self.kv_indices; },
          nb::sig("def kv_indices(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def_prop_ro(
          "kv_last_page_len", [](const FlashInferArrays& self) { return self.kv_last_page_len; },
          nb::sig("def kv_last_page_len(self) -> numpy.typing.NDArray[numpy.int32]"));
  module.def(
      "flashinfer_view",
      [](const PlanView& plan, std::uint32_t group_index, std::uint32_t level_index) {
        const FlashInferView view = take(flashinfer_view(*plan, group_index, level_index));
        const nb::object owner = plan.step->owner();
        return FlashInferArrays{array_of(view.qo_indptr, owner), array_of(view.kv_indptr, owner),
                                array_of(view.kv_indices, owner), array_of(view.kv_last_page_len, owner)};
      },
      nb::arg("plan"), nb::arg("group_index") = 0, nb::arg("level_index") = 0,
      "Raises unless the plan's page_tables are Csr, and for trees, windows and groups that such kernels cannot read.");
  nb::class_<BlockTableArrays>(module, "BlockTableView", "The arrays by the names of engines with block tables.")
      .def_prop_ro(
          "block_table", [](const BlockTableArrays& self) { return self.block_table; },
          nb::sig("def block_table(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def_prop_ro(
          "slot_mapping", [](const BlockTableArrays& self) { return self.slot_mapping; },
          nb::sig("def slot_mapping(self) -> numpy.typing.NDArray[numpy.int64]"))
      .def_prop_ro(
          "seq_lens", [](const BlockTableArrays& self) { return self.seq_lens; },
          nb::sig("def seq_lens(self) -> numpy.typing.NDArray[numpy.int32]"))
      .def_prop_ro(
          "query_start_loc", [](const BlockTableArrays& self) { return self.query_start_loc; },
          nb::sig("def query_start_loc(self) -> numpy.typing.NDArray[numpy.int32]"));
  module.def(
      "block_table_view",
      [](const PlanView& plan, std::uint32_t group_index) {
        const BlockTableView view = take(block_table_view(*plan, group_index));
        const nb::object owner = plan.step->owner();
        return BlockTableArrays{array_of(view.block_table, owner, view.columns), array_of(view.slot_mapping, owner),
                                array_of(view.seq_lens, owner), array_of(view.query_start_loc, owner)};
      },
      nb::arg("plan"), nb::arg("group_index") = 0, "Raises unless the plan's page_tables are Block.");
}

}  // namespace quire::python
