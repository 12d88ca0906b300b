// SPDX-License-Identifier: Apache-2.0
#include "bind.h"

#include <cstring>
#include <string>

#include <nanobind/operators.h>

#include "casters.h"
#include "errors.h"
#include "quire/cache.h"
#include "quire/key_space.h"
#include "quire/plan.h"
#include "quire/transfer.h"
#include "quire/types.h"
#include "structs.h"

namespace quire::python {
namespace {

/// Ids that are an index and a generation.
template <typename Id>
void bind_id(nb::module_& module, const char* name, const char* text) {
  StructClass<Id>(module, name, text)
      .value("index", &Id::index)
      .value("generation", &Id::generation)
      .without_constructor();
}

}  // namespace

void bind_types(nb::module_& module) {
  enum_class<Tier>(module, "Tier", "A kind of place where pages live.")
      .value("Device", Tier::Device)
      .value("Host", Tier::Host)
      .value("Disk", Tier::Disk)
      .value("Remote", Tier::Remote);

  enum_class<Publish>(module, "Publish", "Which of a sequence's pages other sequences may find.")
      .value("All", Publish::All)
      .value("Prompt", Publish::Prompt)
      .value("None_", Publish::None);

  enum_class<Prefetch>(
      module, "Prefetch",
      "When pages on the host are brought to the device for a sequence, and whether it waits for them.")
      .value("Off", Prefetch::Off, "from admit() on; the sequence can be planned once they have arrived")
      .value("BestEffort", Prefetch::BestEffort, "from begin() on; admit() takes what has arrived by then")
      .value("Wait", Prefetch::Wait, "from begin() on; the sequence can be planned once they have arrived")
      .value("Timeout", Prefetch::Timeout, "the same, but not for longer than load_timeout_ns");

  enum_class<MissReason>(module, "MissReason", "Why a request has to compute tokens.")
      .value("None_", MissReason::None, "all whole pages of the prompt were found")
      .value("NeverSeen", MissReason::NeverSeen, "nobody has computed them")
      .value("Evicted", MissReason::Evicted, "they were cached once")
      .value("LoadFailed", MissReason::LoadFailed,
             "they are, or were, on the host or below and did not arrive, or a tier did not answer")
      .value("LoadTimedOut", MissReason::LoadTimedOut, "the same, not in time")
      .value("LoadCancelled", MissReason::LoadCancelled, "the same, and somebody called it off")
      .value("RecomputeCheaper", MissReason::RecomputeCheaper, "they are on the host; computing them takes less time")
      .value("KeySpaceDiffers", MissReason::KeySpaceDiffers, "another key space has them")
      .value("PartialPage", MissReason::PartialPage,
             "a page that begins with them is cached, too little of it to be worth a copy")
      .value("NotAsked", MissReason::NotAsked, "the sequence's options exclude them")
      .value("NotHeld", MissReason::NotHeld,
             "they are cached, but a group lacks what it needs to go on there: Miss.group")
      .value("Unknown", MissReason::Unknown, "lost longer ago than is remembered, or never seen");

  bind_id<KeySpaceId>(module, "KeySpaceId", "An interned KeySpace; the id of a dropped one is recognised.");
  bind_id<SequenceId>(module, "SequenceId",
                      "Names a sequence in records and plans; the Sequence handle is what keeps it alive.");
  bind_id<KeepId>(module, "KeepId", "Names a prefix held by keep().");
  bind_id<HoldId>(module, "HoldId", "Names a prefix held by hold_on_host().");
  StructClass<TransferId>(module, "TransferId", "Names a transfer; the id of one that is over is recognised.")
      .value("index", &TransferId::index)
      .value("generation", &TransferId::generation)
      .without_constructor()
      .def(
          "__init__",
          [](TransferId* self, std::uint32_t index, std::uint32_t generation) {
            new (self) TransferId{index, generation};
          },
          nb::kw_only(), nb::arg("index"), nb::arg("generation") = 0,
          "For an engine that makes plans of its own; those of a cache have ids.");

  StructClass<Miss>(module, "Miss", "What became of the first whole page of a prompt that was not found.")
      .value("reason", &Miss::reason)
      .value("tier", &Miss::tier, "of MissReason.Evicted: the last that held it")
      .value("age_ns", &Miss::age_ns, "of MissReason.Evicted: how long ago it was lost")
      .value("group", &Miss::group, "of MissReason.NotHeld: in ModelLayout.groups")
      .without_constructor();

  StructClass<ExtraKey>(
      module, "ExtraKey",
      "What a token range depends on besides its tokens, such as the hash of an image whose placeholder tokens stand "
      "at [begin, end). It belongs to every page it overlaps: one with end <= the page's first position is outside.")
      .field("begin", &ExtraKey::begin, "position of its first token in the prompt")
      .field("end", &ExtraKey::end, "one past its last token")
      .property(
          "item", "bytes", [](const ExtraKey& self) { return nb::bytes(self.item.data(), self.item.size()); },
          [](ExtraKey& self, const nb::bytes& item) {
            if (item.size() > self.item.size()) {
              raise(ErrorCode::InvalidArgument,
                    "ExtraKey.item has " + std::to_string(item.size()) + " bytes: give a hash of at most 32");
            }
            // Shorter ones are filled up with zeros: two that differ must not become equal by that.
            const auto* bytes = static_cast<const char*>(item.data());
            if (item.size() > 0 && item.size() < self.item.size() && bytes[item.size() - 1] == 0) {
              raise(ErrorCode::InvalidArgument,
                    "ExtraKey.item has " + std::to_string(item.size()) +
                        " bytes and ends with a zero, as shorter ones do when they are filled up: give all 32");
            }
            self.item = {};
            std::memcpy(self.item.data(), item.data(), item.size());
          },
          "the item's content hash, at most 32 bytes, compared exactly")
      .with_constructor();

  StructClass<KeySpace>(
      module, "KeySpace",
      "Everything besides tokens that KV depends on. Requests share pages only if all fields are equal.")
      .field("model", &KeySpace::model,
             "which weights: a name that all machines give them, no path; a remote tier needs it")
      .field("revision", &KeySpace::revision, "which version of them; another one when weights change in place")
      .field("adapter", &KeySpace::adapter, "LoRA or other adapter; empty for none")
      .field("element", &KeySpace::element,
             "how KV is stored: \"bf16\", \"fp8-e4m3\", …; also its scales, where they come at run time")
      .field("rope", &KeySpace::rope, "form and scaling of the positions, where it varies")
      .field("salt", &KeySpace::salt,
             "keeps tenants apart that must not share, or learn that others sent the same prompt")
      .with_constructor()
      .def(
          "canonical_form",
          [](const KeySpace& self) {
            const std::string form = self.canonical_form();
            return nb::bytes(form.data(), form.size());
          },
          "One string per identity: each field behind its length, as eight little-endian bytes.");
}

}  // namespace quire::python
