// SPDX-License-Identifier: Apache-2.0
//
// Chunks: what ChunkIndex and the calls of a Cache return and take. Handles are int, and None where there is none.
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "cache_calls.h"
#include "casters.h"
#include "errors.h"
#include "prompt.h"
#include "quire/chunk_index.h"
#include "structs.h"

namespace quire::python {
namespace {

/// Chunk: tokens and extra keys, as a Prompt has them.
struct ChunkHandle : PromptHandle {};

/// ChunkMatch, with pages of its own.
struct MatchCopy : ChunkMatch {
  std::vector<ChunkPage> page_list;

  MatchCopy() = default;
  explicit MatchCopy(const ChunkMatch& match) : ChunkMatch(match), page_list(match.pages.begin(), match.pages.end()) {
    pages = page_list;
  }
  MatchCopy(const MatchCopy& other) : MatchCopy(static_cast<const ChunkMatch&>(other)) {}
  MatchCopy& operator=(const MatchCopy&) = delete;
};

struct PinnedCopy {
  MatchCopy match;
  std::shared_ptr<ChunkPin> pin;
};

/// Chunks that can be passed on, from a sequence of Chunk, Prompt or tokens.
class ChunkViews {
 public:
  explicit ChunkViews(const nb::sequence& sources) {
    for (nb::handle source : sources) {
      const std::string what = "chunks[" + std::to_string(views_.size()) + "]";
      const Prompt& prompt = *views_.emplace_back(source, scratch_.emplace_back(), what.c_str());
      chunks_.push_back({.tokens = prompt.tokens, .extra_keys = prompt.extra_keys});
      token_count_ += prompt.tokens.size();
    }
  }
  [[nodiscard]] std::span<const Chunk> chunks() const { return chunks_; }
  /// Room for all pages that there can be.
  [[nodiscard]] std::vector<ChunkPage> room(std::uint32_t page_tokens) const {
    return std::vector<ChunkPage>(token_count_ / page_tokens);
  }

 private:
  std::deque<std::vector<TokenId>> scratch_;
  std::deque<PromptView> views_;
  std::vector<Chunk> chunks_;
  std::size_t token_count_ = 0;
};

std::optional<std::uint64_t> number_of(PageHandle handle) {
  return handle.is_none() ? std::nullopt : std::optional(handle.value);
}
PageHandle handle_of(std::optional<std::uint64_t> number) {
  return number ? PageHandle{*number} : PageHandle::none();
}

constexpr const char* kChunks = "collections.abc.Sequence[Chunk | Prompt | object]";

void bind_values(nb::module_& module) {
  enum_class<ChunkStatus>(module, "ChunkStatus", "What a page that a chunk names is worth here.")
      .value("Exact", ChunkStatus::Exact,
             "found, computed behind exactly the tokens that stand before it here: K and V are right")
      .value("Partial", ChunkStatus::Partial,
             "its tokens are found; K and V were computed behind others, and are similar at best")
      .value("NotMatchExact", ChunkStatus::NotMatchExact,
             "not found, and no Partial page before it: computing it gives exact K and V")
      .value("NotMatchPartial", ChunkStatus::NotMatchPartial,
             "not found, behind a Partial page: what is computed here is approximate");

  nb::class_<ChunkHandle, PromptHandle>(
      module, "Chunk",
      "Tokens that may stand anywhere in a prompt. Positions of extra keys count from its first token.")
      .def(
          "__init__",
          [](ChunkHandle* self, nb::object tokens, std::vector<ExtraKey> extra_keys) {
            new (self) ChunkHandle{{std::move(tokens), std::move(extra_keys)}};
          },
          nb::arg("tokens"), nb::arg("extra_keys") = std::vector<ExtraKey>{})
      .def("__repr__", [](const nb::object& self) {
        return "Chunk(tokens=" + nb::cast<std::string>(nb::repr(self.attr("tokens"))) +
               ", extra_keys=" + nb::cast<std::string>(nb::repr(self.attr("extra_keys"))) + ")";
      });

  StructClass<ChunkPage>(module, "ChunkPage", "A whole page of a chunk, and what was found of it.")
      .value("status", &ChunkPage::status)
      .made(
          "handle", [](const ChunkPage& self) { return number_of(self.handle); },
          [](ChunkPage& self, std::optional<std::uint64_t> handle) { self.handle = handle_of(handle); },
          "None, where nothing was found; of a cache, the device page", "int | None")
      .without_constructor();

  StructClass<MatchCopy>(module, "ChunkMatch",
                         "What was found of some chunks. Not a prefix match: Partial pages are no cache hits.")
      .made(
          "pages", [](const MatchCopy& self) { return to_python(self.page_list); },
          "all whole pages of all chunks, in order", "tuple[ChunkPage, ...]")
      .value("exact_pages", &ChunkMatch::exact_pages)
      .value("partial_pages", &ChunkMatch::partial_pages)
      .value("dropped_tokens", &ChunkMatch::dropped_tokens, "of the chunks' tails, which fill no page")
      .value("recompute_tokens", &ChunkMatch::recompute_tokens,
             "of the Partial pages' tokens, so many are to be computed again")
      .value("scratch_pages", &ChunkMatch::scratch_pages, "that these fill, rounded up")
      .without_constructor()
      .def(
          "status", [](const MatchCopy& self, std::size_t page_index) { return self.status(page_index); },
          nb::arg("page_index"), "Of the page with this number in the text; those beyond the chunks too.");

  StructClass<ChunkInsertion>(module, "ChunkInsertion", "What became of pages that are to be found.")
      .value("inserted_pages", &ChunkInsertion::inserted_pages)
      .value("known_pages", &ChunkInsertion::known_pages,
             "there already behind the same tokens; they keep their handles")
      .value("replaced_pages", &ChunkInsertion::replaced_pages, "least recently used ones that made room")
      .without_constructor();

  nb::class_<ChunkPin>(module, "ChunkPin",
                       "Keeps the pages of a match on the device until it is dropped, or the end of its block.")
      .def("reset", &ChunkPin::reset, "Lets the pages go at the cache's next call.")
      .def("__bool__", [](const ChunkPin& self) { return static_cast<bool>(self); })
      .def(
          "__enter__", [](const nb::object& self) { return self; }, nb::sig("def __enter__(self) -> ChunkPin"))
      .def(
          "__exit__", [](ChunkPin& self, const nb::args&) { self.reset(); },
          nb::sig("def __exit__(self, *exc_info: object) -> None"));
  nb::class_<PinnedCopy>(module, "PinnedChunks", "A match whose pages stay where their handles say.")
      .def_ro("match", &PinnedCopy::match, nb::rv_policy::copy, nb::sig("def match(self) -> ChunkMatch"))
      .def_prop_ro(
          "pin", [](const PinnedCopy& self) { return self.pin; },
          "while it lives, the pages of the match are where their handles say; false if none was found");
}

void bind_index(nb::module_& module) {
  StructClass<ChunkIndexConfig>(module, "ChunkIndexConfig", "What a ChunkIndex is made of.")
      .field("page_tokens", &ChunkIndexConfig::page_tokens, "as in the Cache")
      .field("page_count_max", &ChunkIndexConfig::page_count_max)
      .field("recompute_ratio", &ChunkIndexConfig::recompute_ratio,
             "How much of the Partial pages an engine computes again, from 0 to 1, to a millionth.")
      .field("hash_seed", &ChunkIndexConfig::hash_seed,
             "Places pages in hash tables. A secret one keeps strangers from choosing what collides.")
      .with_constructor();

  nb::class_<ChunkIndex>(
      module, "ChunkIndex",
      "Finds pages by their own tokens, wherever they stood, for engines that keep their pages elsewhere than in a "
      "Cache: Cache.add_chunks() has one that is kept true. Handles are any int from 0 to 2**64 - 2.")
      .def_static(
          "create",
          [](const ChunkIndexConfig& config) { return std::shared_ptr<ChunkIndex>(take(ChunkIndex::create(config))); },
          nb::arg("config"))
      .def(
          "insert",
          [](ChunkIndex& self, KeySpaceId key_space, nb::handle prefix,
             const std::vector<std::optional<std::uint64_t>>& numbers) {
            std::vector<TokenId> scratch;
            const PromptView view(prefix, scratch, "prefix");
            std::vector<PageHandle> handles;
            handles.reserve(numbers.size());
            for (const std::optional<std::uint64_t> number : numbers) handles.push_back(handle_of(number));
            return take(self.insert(key_space, {.tokens = (*view).tokens, .extra_keys = (*view).extra_keys}, handles));
          },
          nb::arg("key_space"), nb::arg("prefix"), nb::arg("handles"),
          nb::sig("def insert(self, key_space: KeySpaceId, prefix: Chunk | Prompt | object, handles: "
                  "collections.abc.Sequence[int | None]) -> ChunkInsertion"),
          "The pages of a text, from its first token on, can be found: handles[i] has page i, or is None for a page "
          "that only stands before others. K and V must be exact.")
      .def(
          "lookup",
          [](const ChunkIndex& self, KeySpaceId key_space, const nb::sequence& chunks) {
            const ChunkViews views(chunks);
            std::vector<ChunkPage> room = views.room(self.config().page_tokens);
            return MatchCopy(take(self.lookup(key_space, views.chunks(), room)));
          },
          nb::arg("key_space"), nb::arg("chunks"),
          nb::sig(
              keep_text("def lookup(self, key_space: KeySpaceId, chunks: " + std::string(kChunks) + ") -> ChunkMatch")),
          "What is known of the text that the chunks make, one behind the other. Changes nothing, not even recency.")
      .def(
          "touch", [](ChunkIndex& self, std::uint64_t handle) { return self.touch({handle}); }, nb::arg("handle"),
          "The page was used: others are replaced before it. False if it is not there.")
      .def(
          "erase", [](ChunkIndex& self, std::uint64_t handle) { return self.erase({handle}); }, nb::arg("handle"),
          "The engine has given the page up: it is not found again. False if it was not there.")
      .def("drop", &ChunkIndex::drop, nb::arg("key_space"), "Forgets all pages of a key space, and says how many.")
      .def("clear", &ChunkIndex::clear)
      .def_prop_ro("page_count", &ChunkIndex::page_count)
      .def_prop_ro(
          "config", [](const ChunkIndex& self) { return ChunkIndexConfig(self.config()); }, "A copy.")
      .def(
          "visit_pages",
          [](const ChunkIndex& self) {
            std::vector<std::pair<std::uint64_t, KeySpaceId>> pages;
            self.visit_pages([&](PageHandle handle, KeySpaceId space) { pages.emplace_back(handle.value, space); });
            return pages;
          },
          "Every page with its key space, the least recently used one first.")
      .def(
          "check_invariants", [](const ChunkIndex& self) { take(self.check_invariants()); },
          "Raises the first rule that does not hold, if any.");
}

}  // namespace

void bind_chunks(nb::module_& module) {
  bind_values(module);
  bind_index(module);
}

void bind_cache_chunks(nb::class_<CacheState>& cache) {
  cache
      .def(
          "add_chunks",
          [](CacheState& self, KeySpaceId key_space, nb::handle prompt) {
            const Access access(self);
            const PromptView view(prompt, self.scratch);
            return take(access->add_chunks(key_space, *view));
          },
          nb::arg("key_space"), nb::arg("prompt"),
          "What the device has cached of a prompt can be found by its own tokens from now on.")
      .def(
          "lookup_chunks",
          [](CacheState& self, KeySpaceId key_space, const nb::sequence& chunks) {
            const ChunkViews views(chunks);
            const Access access(self);
            std::vector<ChunkPage> room = views.room(access->config().page.page_tokens);
            return MatchCopy(take(access->lookup_chunks(key_space, views.chunks(), room)));
          },
          nb::arg("key_space"), nb::arg("chunks"),
          nb::sig(keep_text("def lookup_chunks(self, key_space: KeySpaceId, chunks: " + std::string(kChunks) +
                            ") -> ChunkMatch")),
          "What is found of the text that the chunks make. Good until the next call that changes the cache.")
      .def(
          "pin_chunks",
          [](CacheState& self, KeySpaceId key_space, const nb::sequence& chunks) {
            const ChunkViews views(chunks);
            const Access access(self);
            std::vector<ChunkPage> room = views.room(access->config().page.page_tokens);
            PinnedChunks pinned = take(access->pin_chunks(key_space, views.chunks(), room));
            return PinnedCopy{MatchCopy(pinned.match), std::make_shared<ChunkPin>(std::move(pinned.pin))};
          },
          nb::arg("key_space"), nb::arg("chunks"),
          nb::sig(keep_text("def pin_chunks(self, key_space: KeySpaceId, chunks: " + std::string(kChunks) +
                            ") -> PinnedChunks")),
          "The same, and the pages that are found stay on the device until the pin is dropped.");
}

}  // namespace quire::python
