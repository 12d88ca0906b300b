// SPDX-License-Identifier: Apache-2.0
#include "bind.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "casters.h"
#include "errors.h"
#include "quire/layout.h"
#include "quire/state_slots.h"
#include "structs.h"

namespace quire::python {
namespace {

// In C++ a place that there is not stops the program.
void check_index(const char* what, std::uint64_t index, std::uint64_t count) {
  if (index < count) return;
  raise(ErrorCode::InvalidArgument,
        std::string(what) + " is " + std::to_string(index) + ", and there are " + std::to_string(count));
}

// What rows of pages and of slots have in common.
template <typename Row>
void check_row(const PageGeometry& page, const Row& row) {
  check_index("layer_index", row.layer_index, page.layer_count());
  check_index("component_index", row.component_index, page.components().size());
  check_index("head_index", row.head_index, page.heads_on_rank(row.component_index, 0).count);
}

}  // namespace

void bind_geometry(nb::module_& module) {
  StructClass<HeadRange>(module, "HeadRange", "Which of a component's heads one rank stores.")
      .value("first", &HeadRange::first)
      .value("count", &HeadRange::count)
      .without_constructor();

  StructClass<ComponentStrides>(
      module, "ComponentStrides",
      "Where a component lies in one layer of one page: token t, head h begins at offset + t * token + h * head. All "
      "in bytes; a row is head_bytes long. In a record, `token` is the length of the record.")
      .value("offset", &ComponentStrides::offset)
      .value("token", &ComponentStrides::token)
      .value("head", &ComponentStrides::head)
      .value("head_bytes", &ComponentStrides::head_bytes)
      .without_constructor();

  StructClass<PoolOptions>(module, "PoolOptions", "How many pages a pool has, and how they lie in it.")
      .field("page_count", &PoolOptions::page_count)
      .field("byte_layout", &PoolOptions::byte_layout)
      .field("page_stride_bytes", &PoolOptions::page_stride_bytes,
             "PageFirst: from one page to the next, where something else lies between them; 0: nothing does.")
      .with_constructor();

  StructClass<RowLocation>(
      module, "RowLocation",
      "One row of a pool. Layers and components count from 0 in the group, heads from 0 on the rank.")
      .property(
          "page", "int", [](const RowLocation& self) { return self.page.value; },
          [](RowLocation& self, std::uint32_t page) { self.page = PageId{page}; })
      .field("layer_index", &RowLocation::layer_index)
      .field("component_index", &RowLocation::component_index)
      .field("token_index", &RowLocation::token_index,
             "entry of the page; where entries stand for several tokens, these count as one")
      .field("head_index", &RowLocation::head_index)
      .with_constructor();

  StructClass<PoolStrides>(module, "PoolStrides", "A pool as plain numbers of bytes, for kernels.")
      .value("page", &PoolStrides::page)
      .value("layer", &PoolStrides::layer)
      .value("component_count", &PoolStrides::component_count)
      .value("components", &PoolStrides::components, "the first component_count of them")
      .without_constructor()
      .def(
          "offset_of",
          [](const PoolStrides& self, const RowLocation& row) {
            check_index("component_index", row.component_index, self.component_count);
            return self.offset_of(row);
          },
          nb::arg("row"), "First byte of a row; the location must lie in the pool.");

  nb::class_<PageGeometry>(module, "PageGeometry", "The size and the inside of one group's pages on one rank.")
      .def_static(
          "create",
          [](CacheGroup group, const PageOptions& options) {
            return take(PageGeometry::create(std::move(group), options));
          },
          nb::arg("group"), nb::arg("options") = PageOptions{})
      .def_static(
          "create_slot",
          [](CacheGroup group, const PageOptions& options) {
            return take(PageGeometry::create_slot(std::move(group), options));
          },
          nb::arg("group"), nb::arg("options") = PageOptions{},
          "The group's part of a state slot, as if it were a page: slot_entries for each of slot_history + 1 versions.")
      .def_prop_ro(
          "group", [](const PageGeometry& self) { return CacheGroup(self.group()); }, "A copy.")
      .def_prop_ro(
          "options", [](const PageGeometry& self) { return PageOptions(self.options()); }, "A copy.")
      .def_prop_ro("layer_count", &PageGeometry::layer_count)
      .def_prop_ro("page_bytes", &PageGeometry::page_bytes, "One page, all layers.")
      .def_prop_ro("layer_bytes", &PageGeometry::layer_bytes, "One page, one layer.")
      .def_prop_ro("entry_count", &PageGeometry::entry_count, "Of one page and layer.")
      .def_prop_ro("entry_bytes", &PageGeometry::entry_bytes, "One entry, all layers, without padding.")
      .def_prop_ro("token_bytes", &PageGeometry::token_bytes, "One token, all layers, with its share of the padding.")
      .def_prop_ro("alignment", &PageGeometry::alignment, "What a pool of such pages must be aligned to.")
      .def("page_count_within", &PageGeometry::page_count_within, nb::arg("bytes"), "Whole pages in so many bytes.")
      .def_prop_ro(
          "components",
          [](const PageGeometry& self) {
            return to_python(std::vector<ComponentStrides>(self.components().begin(), self.components().end()));
          },
          "One per component, in the group's order.", nb::sig("def components(self) -> tuple[ComponentStrides, ...]"))
      .def(
          "heads_on_rank",
          [](const PageGeometry& self, std::uint32_t component_index, std::uint32_t rank_index) {
            check_index("component_index", component_index, self.components().size());
            check_index("rank_index", rank_index, self.options().rank_count);
            return self.heads_on_rank(component_index, rank_index);
          },
          nb::arg("component_index"), nb::arg("rank_index"),
          "The heads of a component on one rank: consecutive ranks store consecutive heads.")
      .def(
          "initial_bytes", [](const PageGeometry& self) { return to_bytes(self.initial_bytes()); },
          "A page before anything is written, layer after layer; padding is zero.");

  nb::class_<PoolGeometry>(module, "PoolGeometry", "Where every row of a pool lies; page 0 is the null page.")
      .def_static(
          "create",
          [](const PageGeometry& page, const PoolOptions& options) {
            return take(PoolGeometry::create(page, options));
          },
          nb::arg("page"), nb::arg("options"))
      .def_prop_ro("page", &PoolGeometry::page)
      .def_prop_ro("byte_layout", &PoolGeometry::byte_layout)
      .def_prop_ro("page_count", &PoolGeometry::page_count)
      .def_prop_ro("pool_bytes", &PoolGeometry::pool_bytes, "From the first page's first byte to the last one's last.")
      .def_prop_ro("strides", &PoolGeometry::strides)
      .def_prop_ro(
          "page_stride", [](const PoolGeometry& self) { return self.strides().page; }, "In bytes.")
      .def_prop_ro(
          "layer_stride", [](const PoolGeometry& self) { return self.strides().layer; }, "In bytes.")
      .def(
          "offset_of",
          [](const PoolGeometry& self, const RowLocation& row) {
            check_index("page", row.page.value, self.page_count());
            check_index("token_index", row.token_index, self.page().entry_count());
            check_row(self.page(), row);
            return self.offset_of(row);
          },
          nb::arg("row"), "First byte of a row; its length is page.components[component_index].head_bytes.");

  nb::class_<StatePart>(module, "StatePart", "One group's part of a slot.")
      .def_ro("group_index", &StatePart::group_index, "in ModelLayout.groups")
      .def_ro("offset", &StatePart::offset, "in the slot")
      .def_ro("geometry", &StatePart::geometry,
              "The part as if it were a page: the entries of version 0, then those of version 1, …");
  StructClass<StateRow>(module, "StateRow",
                        "One row of a slot. Layers and components count from 0 in the group, heads from 0 on the rank.")
      .field("part_index", &StateRow::part_index)
      .field("version_index", &StateRow::version_index, "after n tokens: n modulo the group's slot_history + 1")
      .field("layer_index", &StateRow::layer_index)
      .field("component_index", &StateRow::component_index)
      .field("entry_index", &StateRow::entry_index)
      .field("head_index", &StateRow::head_index)
      .with_constructor();
  module.def(
      "ring_entry",
      [](const CacheGroup& group, std::uint32_t position) {
        if (group.slot_entries <= group.sink_tokens) {
          raise(ErrorCode::InvalidArgument, "ring_entry: group '" + group.name + "' has " +
                                                std::to_string(group.slot_entries) + " slot_entries and " +
                                                std::to_string(group.sink_tokens) + " sink_tokens: it is no ring");
        }
        return ring_entry(group, position);
      },
      nb::arg("group"), nb::arg("position"),
      "Where in a slot the row of a token lies, of groups that have one for each of the last tokens: the sink's first, "
      "the others modulo the room that is left. A chunk longer than that writes only its last rows.");
}

void bind_state_slots(nb::module_& module) {
  nb::class_<StateSlots>(module, "StateSlots", "What a state slot is made of.")
      .def_prop_ro("slot_bytes", &StateSlots::slot_bytes)
      .def_static(
          "create",
          [](const ModelLayout& layout, const PageOptions& options) {
            return take(StateSlots::create(layout, options));
          },
          nb::arg("layout"), nb::arg("options") = PageOptions{},
          "A layout without rings and snapshots has slots of 0 bytes.")
      .def_prop_ro(
          "parts",
          [](const StateSlots& self) {
            return to_python(std::vector<StatePart>(self.parts().begin(), self.parts().end()));
          },
          "", nb::sig("def parts(self) -> tuple[StatePart, ...]"))
      .def_prop_ro("alignment", &StateSlots::alignment, "What the first slot must be aligned to.")
      .def(
          "offset_of",
          [](const StateSlots& self, const StateRow& row) {
            check_index("part_index", row.part_index, self.parts().size());
            const PageGeometry& part = self.parts()[row.part_index].geometry;
            check_index("version_index", row.version_index, std::uint64_t{part.group().slot_history} + 1);
            check_index("entry_index", row.entry_index, part.group().slot_entries);
            check_row(part, row);
            return self.offset_of(row);
          },
          nb::arg("row"), "First byte of a row in its slot; its length is the component's head_bytes.")
      .def(
          "pool_of",
          [](const StateSlots& self, std::uint32_t part_index, std::uint32_t slot_count) {
            check_index("part_index", part_index, self.parts().size());
            return take(self.pool_of(part_index, slot_count));
          },
          nb::arg("part_index"), nb::arg("slot_count"),
          "A part of so many slots, one after the other, as a pool: its first byte is the first slot's, plus the "
          "part's offset.")
      .def(
          "initial_bytes", [](const StateSlots& self) { return to_bytes(self.initial_bytes()); },
          "A slot of a sequence that has computed nothing.");
}

}  // namespace quire::python
