// SPDX-License-Identifier: Apache-2.0
#include "bind.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <nanobind/operators.h>

#include "casters.h"
#include "errors.h"
#include "quire/budget.h"
#include "quire/cache_group.h"
#include "quire/layout.h"
#include "structs.h"

namespace quire::python {
namespace {

std::vector<CacheGroup> groups_of(const ModelLayout& layout) {
  return {layout.groups().begin(), layout.groups().end()};
}

}  // namespace

void bind_layout(nb::module_& module) {
  enum_class<ElementType>(module, "ElementType",
                          "What a component is made of. Bytes is opaque: records whose inside only the kernels know.")
      .value("Bf16", ElementType::Bf16)
      .value("Fp16", ElementType::Fp16)
      .value("Fp32", ElementType::Fp32)
      .value("Fp8", ElementType::Fp8)
      .value("Int8", ElementType::Int8)
      .value("Bytes", ElementType::Bytes)
      .value("Int32", ElementType::Int32);

  enum_class<Sharding>(module, "Sharding", "What tensor-parallel ranks do with a component's heads.")
      .value("Heads", Sharding::Heads,
             "each rank stores its share of the heads; with more ranks than heads, one head on several ranks")
      .value("Replicated", Sharding::Replicated, "each rank stores all of it");

  enum_class<Placement>(module, "Placement", "How the entries of a component lie in a layer's part of a page.")
      .value("Area", Placement::Area, "[k k k k][v v v v]: each component on its own, for all entries")
      .value("Interleaved", Placement::Interleaved,
             "[k v][k v][k v][k v]: with its interleaved neighbours, entry by entry: a record");

  enum_class<GroupKind>(
      module, "GroupKind",
      "Which tokens a group keeps, and so what it must hold to go on at a position b: the resume rule.")
      .value("Full", GroupKind::Full, "every token; needs [0, b)")
      .value("Window", GroupKind::Window, "the last W tokens and the first `sink`; needs [b - W + 1, b) and the sink")
      .value("Compressed", GroupKind::Compressed,
             "an entry for every r tokens; needs the entries of [0, b), b a multiple of r")
      .value("Snapshot", GroupKind::Snapshot, "a state of fixed size; needs one that was taken at b");

  enum_class<WindowForm>(module, "WindowForm", "Where the tokens of a window lie.")
      .value("Paged", WindowForm::Paged, "in pages that other sequences can find, with holes behind the window")
      .value("Ring", WindowForm::Ring,
             "in the sequence's state slot, position modulo its size; reused by snapshots of it, in order of position");

  enum_class<RetentionRule>(
      module, "RetentionRule",
      "At which positions a group keeps what the resume rule asks for, once a sequence has moved on.")
      .value("Dense", RetentionRule::Dense,
             "at all of them: full and compressed groups always, paged windows while there is room")
      .value("Every", RetentionRule::Every,
             "at multiples of interval_tokens, where prompts end, and where one parts from what is cached")
      .value("Last", RetentionRule::Last, "where a sequence ended; of a window also where prompts end and part")
      .value("None_", RetentionRule::None, "nowhere: each sequence's own, or rebuilt by a replay");

  enum_class<HeadOrder>(module, "HeadOrder", "Order of tokens and heads inside the area of a component.")
      .value("Nhd", HeadOrder::Nhd, "[token][head][dim]")
      .value("Hnd", HeadOrder::Hnd, "[head][token][dim]");

  enum_class<ByteLayout>(module, "ByteLayout",
                         "What lies together in a pool: all layers of a page, or all pages of a layer.")
      .value("PageFirst", ByteLayout::PageFirst, "[page][layer]")
      .value("LayerFirst", ByteLayout::LayerFirst, "[layer][page]");

  StructClass<GroupRetention>(module, "GroupRetention",
                              "At which positions a group keeps what it needs to go on there.")
      .field("rule", &GroupRetention::rule)
      .field("interval_tokens", &GroupRetention::interval_tokens, "of RetentionRule.Every")
      .with_constructor();

  StructClass<GroupReplay>(
      module, "GroupReplay",
      "A group that does not hold what the resume rule asks for is rebuilt by computing the tokens before b again.")
      .field("tokens", &GroupReplay::tokens, "0: it cannot be")
      .field("is_exact", &GroupReplay::is_exact,
             "gives the same bytes as having been there all along; states are rebuilt along with it")
      .with_constructor();

  StructClass<Component>(module, "Component",
                         "One part of what a token stores in one layer: `heads` rows of `dim` elements.")
      .field("name", &Component::name, "unique in its group: \"k\", \"v\", \"latent\"")
      .field("element", &Component::element)
      .field("sharding", &Component::sharding)
      .field("heads", &Component::heads, "of the whole model, before any split over ranks")
      .field("dim", &Component::dim, "elements of one row")
      .field("placement", &Component::placement)
      .field(
          "alignment", &Component::alignment,
          "Of its first byte in every entry, a power of two up to kAlignmentMax. Entries and layers are padded for it.")
      .field("record_offset", &Component::record_offset,
             "Interleaved: where in the record it begins, in bytes. Nothing: behind the one before it.")
      .property(
          "initial", "bytes", [](const Component& self) { return nb::bytes(self.initial.data(), self.initial.size()); },
          [](Component& self, const nb::bytes& pattern) {
            const auto* first = static_cast<const std::byte*>(pattern.data());
            self.initial.assign(first, first + pattern.size());
          },
          "What its rows are made of before anything is written, repeated; a row is a multiple of it. Empty: zeros.")
      .with_constructor();

  StructClass<CacheGroup>(module, "CacheGroup",
                          "Layers whose pages move together under one retention rule. A layer may belong to several "
                          "groups. Fields that a kind does not mention stay as they are.")
      .field("name", &CacheGroup::name, "unique in its layout")
      .field("kind", &CacheGroup::kind)
      .field("layers", &CacheGroup::layers, "the model's layer numbers, ascending")
      .field("components", &CacheGroup::components, "1 to kComponentsMax, in the order they lie in a page")
      .field("keys_rotated", &CacheGroup::keys_rotated,
             "K is stored after RoPE, for the position it was computed at. Where positions are renumbered, which is "
             "what a sink and Cache.set_window do, it must be stored unrotated.")
      .field("layer_multiple_bytes", &CacheGroup::layer_multiple_bytes,
             "A layer's part of a page is padded to a multiple of so many bytes, a multiple of every component's "
             "alignment.")
      .field("lookahead_tokens", &CacheGroup::lookahead_tokens,
             "What a token stores depends on so many tokens behind it, as in draft layers: a page is good only if "
             "these agree too. Its row is written once they are known, in the step that computes it or before the next "
             "one; a page is cached when all its rows can have been. With a host tier, rows whose tokens a call has "
             "made known are written before the next call, which may begin to copy them. A fork or a rewind leaves the "
             "last so many tokens to be computed again.")
      .field("retention", &CacheGroup::retention)
      .field("replay", &CacheGroup::replay)
      .field("window_tokens", &CacheGroup::window_tokens)
      .field("sink_tokens", &CacheGroup::sink_tokens)
      .field("window_form", &CacheGroup::window_form)
      .field("tokens_per_entry", &CacheGroup::tokens_per_entry)
      .field("overlap_tokens", &CacheGroup::overlap_tokens)
      .field("slot_entries", &CacheGroup::slot_entries)
      .field("slot_history", &CacheGroup::slot_history,
             "Snapshot: how many earlier versions of those entries a slot keeps, to rewind without computing. The "
             "version after n tokens is number n modulo slot_history + 1. A step writes those after each of its last "
             "slot_history + 1 tokens.")
      .field("snapshot_entries", &CacheGroup::snapshot_entries,
             "Snapshot: entries that one takes along, those of the last tokens. 0: none is needed, the slot starts "
             "from its initial bytes; then the group has no pages.")
      .field("boundary_tokens", &CacheGroup::boundary_tokens,
             "Snapshot: positions at which one is of use are multiples of this.")
      .with_constructor();

  StructClass<PageOptions>(module, "PageOptions", "How many tokens a page has, and how they lie in it.")
      .field("page_tokens", &PageOptions::page_tokens, "any number from 1")
      .field("rank_count", &PageOptions::rank_count, "tensor-parallel ranks")
      .field("head_order", &PageOptions::head_order)
      .with_constructor();

  StructClass<SimpleShape>(module, "SimpleShape",
                           "A model with one kind of attention layer that stores K and V: MHA, GQA or MQA.")
      .field("name", &SimpleShape::name)
      .field("layers", &SimpleShape::layers)
      .field("kv_heads", &SimpleShape::kv_heads)
      .field("head_dim", &SimpleShape::head_dim)
      .field("element", &SimpleShape::element)
      .field("keys_rotated", &SimpleShape::keys_rotated)
      .with_constructor();

  StructClass<ExpectedRequest>(
      module, "ExpectedRequest",
      "One kind of request in the mix: so many tokens, prompt and answer, and how often it occurs beside the others.")
      .field("context_tokens", &ExpectedRequest::context_tokens)
      .field("weight", &ExpectedRequest::weight)
      .with_constructor();

  StructClass<BudgetRequest>(module, "BudgetRequest", "What solve_budget() is to share out, and among which requests.")
      .field("page", &BudgetRequest::page, "with several ranks, all bytes are those of one of them")
      .field("device_bytes", &BudgetRequest::device_bytes)
      .field("host_bytes", &BudgetRequest::host_bytes, "0: no such tier")
      .field("disk_bytes", &BudgetRequest::disk_bytes, "0: no such tier")
      .field("context_tokens_max", &BudgetRequest::context_tokens_max)
      .field("sequence_count_max", &BudgetRequest::sequence_count_max,
             "sequences that run at once: each has a state slot")
      .field("in_flight_tokens", &BudgetRequest::in_flight_tokens,
             "of one sequence, in steps that are planned and not finished")
      .field("step_tokens", &BudgetRequest::step_tokens,
             "Tokens of the largest step, which one sequence may have alone or many share: windows have pages for them "
             "once, beside those of the mix. 0: no step has more than the in_flight_tokens of its sequences.")
      .field("rewind_tokens", &BudgetRequest::rewind_tokens, "that one sequence may take back")
      .field("snapshot_interval_tokens", &BudgetRequest::snapshot_interval_tokens,
             "Instead of the intervals of groups with RetentionRule.Every; 0 leaves them.")
      .field("mix", &BudgetRequest::mix, "empty: every request has context_tokens_max")
      .with_constructor();

  StructClass<GroupBudget>(module, "GroupBudget", "One group's pages in one tier.")
      .value("group_index", &GroupBudget::group_index, "in ModelLayout.groups")
      .value("page_bytes", &GroupBudget::page_bytes, "on one rank")
      .value("request_pages", &GroupBudget::request_pages, "that one request of context_tokens_max needs here")
      .value("page_count", &GroupBudget::page_count, "without the device's null page")
      .value("capacity_tokens", &GroupBudget::capacity_tokens, "of the mix that these pages hold")
      .without_constructor();

  StructClass<TierBudget>(module, "TierBudget", "What the bytes of one tier become.")
      .value("tier", &TierBudget::tier)
      .value("bytes", &TierBudget::bytes)
      .value("used_bytes", &TierBudget::used_bytes, "pages, null pages, state slots")
      .value("groups", &TierBudget::groups, "those that have pages")
      .value("limiting_index", &TierBudget::limiting_index,
             "in `groups`: the one that runs out first, and whose next page did not fit")
      .value("capacity_tokens", &TierBudget::capacity_tokens)
      .value("request_count", &TierBudget::request_count, "requests of the mix that fit at once, as far as pages go")
      .without_constructor();

  StructClass<Budget>(module, "Budget", "Pages of each group and tier, and state slots.")
      .value("slot_bytes", &Budget::slot_bytes)
      .value("slot_count", &Budget::slot_count, "0 where sequences have no state")
      .value("tiers", &Budget::tiers, "the device, then those below it that have bytes")
      .without_constructor();

  nb::class_<ModelLayout>(module, "ModelLayout", "What a model stores: its cache groups. Immutable.")
      .def_static(
          "create",
          [](std::string name, std::vector<CacheGroup> groups) {
            return take(ModelLayout::create(std::move(name), std::move(groups)));
          },
          nb::arg("name"), nb::arg("groups"), "Any groups.")
      .def_static(
          "simple", [](const SimpleShape& shape) { return take(ModelLayout::simple(shape)); }, nb::arg("shape"),
          "One full group of K and V in every layer.")
      .def_static(
          "opaque", [](std::uint32_t token_bytes) { return take(ModelLayout::opaque(token_bytes)); },
          nb::arg("token_bytes"), "One layer of so many opaque bytes per token.")
      .def(
          "with_drafts",
          [](const ModelLayout& self, std::uint32_t draft_count) { return take(self.with_drafts(draft_count)); },
          nb::arg("draft_count"),
          "The same with room in state slots for so many drafts in a step: a state keeps as many earlier versions, "
          "rings and tails have as many rows more than they need.")
      .def_prop_ro("name", &ModelLayout::name)
      .def_prop_ro(
          "groups", [](const ModelLayout& self) { return to_python(groups_of(self)); }, "Copies.",
          nb::sig("def groups(self) -> tuple[CacheGroup, ...]"))
      .def_prop_ro("layer_count", &ModelLayout::layer_count, "Layers that some group stores something for.")
      .def_prop_ro("token_bytes", &ModelLayout::token_bytes, "What one more token of a long context takes.")
      .def_prop_ro("page_multiple_tokens", &ModelLayout::page_multiple_tokens)
      .def_prop_ro("hit_multiple_tokens", &ModelLayout::hit_multiple_tokens)
      .def(
          "describe", [](const ModelLayout& self, const PageOptions& options) { return take(self.describe(options)); },
          nb::arg("options") = PageOptions{}, "A small table of the groups, for people.")
      .def(
          "__eq__",
          [](const ModelLayout& self, const ModelLayout& other) {
            return self.name() == other.name() && groups_of(self) == groups_of(other);
          },
          nb::is_operator(), nb::sig(kEqual))
      .def("__hash__", [](const ModelLayout& self) { return std::hash<std::string>{}(self.name()); })
      .def(
          "__copy__", [](nb::object self) { return self; }, nb::sig("def __copy__(self) -> ModelLayout"))
      .def(
          "__deepcopy__", [](nb::object self, nb::handle) { return self; },
          nb::sig("def __deepcopy__(self, memo: object, /) -> ModelLayout"))
      .def(
          "__getstate__",
          [](const ModelLayout& self) { return nb::make_tuple(self.name(), to_python(groups_of(self))); },
          nb::sig("def __getstate__(self) -> tuple[str, tuple[CacheGroup, ...]]"))
      .def(
          "__setstate__",
          [](ModelLayout& self, const std::pair<std::string, std::vector<CacheGroup>>& state) {
            new (&self) ModelLayout(take(ModelLayout::create(state.first, state.second)));
          },
          nb::sig("def __setstate__(self, arg: tuple[str, tuple[CacheGroup, ...]], /) -> None"))
      .def("__repr__", [](const ModelLayout& self) {
        return "ModelLayout(" + self.name() + ", " + std::to_string(self.groups().size()) + " groups, " +
               std::to_string(self.token_bytes()) + " bytes per token)";
      });

  module.def(
      "preset", [](std::string_view name) { return take(preset(name)); }, nb::arg("name"),
      "The layout of a known public model; an unknown name is an error that lists preset_names().");
  module.def("preset_names", [] { return preset_names(); }, "The names preset() knows.");
  module.def(
      "layer_range", [](std::uint32_t first, std::uint32_t count) { return layer_range(first, count); },
      nb::arg("first"), nb::arg("count"), "[first, first + 1, … first + count - 1], for CacheGroup.layers.");
  module.def("element_bytes", &element_bytes, nb::arg("element"), "Size of one element.");
  module.def(
      "fp32_pattern", [](float value) { return to_bytes(fp32_pattern(value)); }, nb::arg("value"),
      "Component.initial of rows in which every element has this value.");
  module.def(
      "bf16_pattern", [](float value) { return to_bytes(bf16_pattern(value)); }, nb::arg("value"),
      "The same for bf16, rounded to nearest even.");
  module.def(
      "int32_pattern", [](std::int32_t value) { return to_bytes(int32_pattern(value)); }, nb::arg("value"),
      "The same for int32.");
  module.def("has_slot", &has_slot, nb::arg("group"), "Sequences keep something of this group in their state slots.");
  module.def("has_pages", &has_pages, nb::arg("group"),
             "The group has pages: all but snapshots and rings that are never kept.");
  module.def("boundary_multiple", &boundary_multiple, nb::arg("group"),
             "Positions at which a sequence can resume are multiples of this, as far as the group is concerned.");
  module.def("is_reusable", &is_reusable, nb::arg("group"),
             "A sequence can begin with what another one left behind, as far as the group is concerned.");
  module.def(
      "lookback_tokens",
      [](const CacheGroup& group, std::uint64_t position) {
        if (group.kind == GroupKind::Compressed && group.tokens_per_entry == 0) {
          raise(ErrorCode::InvalidArgument, "lookback_tokens: group '" + group.name + "' has tokens_per_entry 0");
        }
        return lookback_tokens(group, position);
      },
      nb::arg("group"), nb::arg("position"),
      "How many tokens before `position` it needs the rows or the state of, besides what full and compressed groups "
      "hold of everything before.");
  module.def(
      "pages_of_request",
      [](const CacheGroup& group, const BudgetRequest& request, std::uint64_t context_tokens) {
        if (request.page.page_tokens == 0) {
          raise(ErrorCode::InvalidArgument, "pages_of_request: page_tokens is 0: use 1 or more, 16 is usual");
        }
        const bool has_interval = group.retention.interval_tokens > 0 || request.snapshot_interval_tokens > 0;
        if (has_slot(group) && group.retention.rule == RetentionRule::Every && !has_interval) {
          raise(ErrorCode::InvalidArgument, "pages_of_request: group '" + group.name + "' has interval_tokens 0");
        }
        return pages_of_request(group, request, context_tokens);
      },
      nb::arg("group"), nb::arg("request"), nb::arg("context_tokens"),
      "Pages of the group that one request of so many tokens needs on the device.");
  module.def(
      "solve_budget",
      [](const ModelLayout& layout, const BudgetRequest& request) { return take(solve_budget(layout, request)); },
      nb::arg("layout"), nb::arg("request"), "From bytes to pages of each group and tier.");
  module.def(
      "describe_budget", [](const Budget& budget, const ModelLayout& layout) { return describe(budget, layout); },
      nb::arg("budget"), nb::arg("layout"), "A small table for each tier, for people.");
}

}  // namespace quire::python
