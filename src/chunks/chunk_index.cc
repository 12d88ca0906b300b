// SPDX-License-Identifier: Apache-2.0
//
// A page has two names. Its *content* is a hash of its key space, its tokens and the extra keys that overlap it, with
// positions counted from the page. Its *name* is a hash of the name of the page before it and of its content, so equal
// names mean equal tokens from the first one on. Names outlive entries: a page is Exact although the ones before it
// were replaced.
//
//     names_     name    → entry                     Exact
//     contents_  content → entry, and by links the others with the same content, most recently used first    Partial
//     handles_   handle  → entry
//     order_     all entries, least recently used first
#include "quire/chunk_index.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "base/index_lists.h"
#include "base/lazy_array.h"
#include "base/sha256.h"
#include "chunks/entry_table.h"

namespace quire {
namespace {

constexpr std::uint32_t kNone = EntryTable::kNone;
constexpr std::uint32_t kPageCountLimit = 1U << 30U;
constexpr std::uint64_t kRatioUnits = 1'000'000;

using Name = std::array<std::byte, 32>;

// What is hashed begins with a byte that says what it is, so that no content has the bytes of a name.
constexpr std::byte kContentMark{'c'};
constexpr std::byte kNameMark{'n'};
constexpr std::size_t kExtraKeyBytes = 48;

struct Entry {
  Name name;
  Name content;
  PageHandle handle;
  KeySpaceId key_space;
  std::uint32_t newer;  // of the same content, the next more and the next less recently used
  std::uint32_t older;
};
// NOLINTNEXTLINE(bugprone-sizeof-expression): the size is what memory costs
static_assert(sizeof(Entry) == 88, "docs/chunk_reuse.md says what a page costs");

template <typename T>
std::byte* put(std::byte* target, const T& value) {
  std::memcpy(target, &value, sizeof(value));
  return target + sizeof(value);
}

std::uint64_t ceil_divide(std::uint64_t number, std::uint64_t by) {
  return (number / by) + (number % by == 0 ? 0 : 1);
}

// The ratio is counted in millionths: 35 * 0.2 in floating point is more than 7, and would be rounded up to 8.
std::uint64_t recompute_tokens_of(std::uint64_t tokens, std::uint64_t ratio_units) {
  return (tokens / kRatioUnits * ratio_units) + ceil_divide(tokens % kRatioUnits * ratio_units, kRatioUnits);
}

Status check_key_space(KeySpaceId key_space) {
  if (key_space != KeySpaceId{}) return {};
  return fail(ErrorCode::InvalidArgument, "the key space is none: take one from Cache::key_space()");
}

Status check_chunk(const Chunk& chunk, std::uint32_t page_tokens, const std::string& what) {
  if (chunk.tokens.size() < page_tokens) {
    return fail(ErrorCode::InvalidArgument, what + " has " + std::to_string(chunk.tokens.size()) +
                                                " tokens: a page has " + std::to_string(page_tokens) +
                                                ", and only whole pages are indexed");
  }
  for (std::size_t i = 0; i < chunk.tokens.size(); ++i) {
    if (chunk.tokens[i] >= 0) continue;
    return fail(ErrorCode::InvalidArgument, what + ": token " + std::to_string(i) + " is " +
                                                std::to_string(chunk.tokens[i]) + ": tokens are never negative");
  }
  std::uint32_t end = 0;
  for (std::size_t i = 0; i < chunk.extra_keys.size(); ++i) {
    const ExtraKey& key = chunk.extra_keys[i];
    if (key.begin >= end && key.begin < key.end && key.end <= chunk.tokens.size()) {
      end = key.end;
      continue;
    }
    return fail(ErrorCode::InvalidArgument, what + ": extra key " + std::to_string(i) + " is at [" +
                                                std::to_string(key.begin) + ", " + std::to_string(key.end) +
                                                "): keys go by position, do not overlap and lie within the " +
                                                std::to_string(chunk.tokens.size()) + " tokens");
  }
  return {};
}

}  // namespace

struct ChunkIndex::Impl {
  ChunkIndexConfig config;
  std::uint64_t ratio_units = 0;
  std::uint64_t seed = 0;
  LazyArray<std::byte> form;  // of one content, while it is hashed
  LazyArray<Entry> entries;
  EntryTable names;
  EntryTable contents;
  EntryTable handles;
  IndexLists order;
  LazyArray<std::uint32_t> free_entries;  // those that came back; a stack
  std::uint32_t free_count = 0;
  std::uint32_t used_count = 0;  // entries from here on were never used

  // ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────

  /// Calls visit(content) for each whole page of a chunk, in order.
  template <typename Visit>
  void for_each_content(KeySpaceId key_space, const Chunk& chunk, Visit visit) {
    const std::size_t page_tokens = config.page_tokens;
    std::size_t first_key = 0;
    for (std::size_t begin = 0; begin + page_tokens <= chunk.tokens.size(); begin += page_tokens) {
      const std::span<const ExtraKey> keys = chunk.extra_keys;
      while (first_key < keys.size() && keys[first_key].end <= begin) ++first_key;
      std::byte* at = put(put(put(form.data(), kContentMark), key_space.index), key_space.generation);
      std::memcpy(at, chunk.tokens.data() + begin, page_tokens * sizeof(TokenId));
      at += page_tokens * sizeof(TokenId);
      // How many keys there are follows from the length: each takes the same.
      for (std::size_t i = first_key; i < keys.size() && keys[i].begin < begin + page_tokens; ++i) {
        // Before the page, where its item began earlier: another part of the same image is another content.
        at = put(at, static_cast<std::int64_t>(keys[i].begin) - static_cast<std::int64_t>(begin));
        at = put(at, static_cast<std::int64_t>(keys[i].end) - static_cast<std::int64_t>(begin));
        at = put(at, keys[i].item);
      }
      visit(sha256({form.data(), static_cast<std::size_t>(at - form.data())}));
    }
  }

  [[nodiscard]] Name name_of(const Name& parent, const Name& content) {
    std::array<std::byte, 1 + (2 * sizeof(Name))> bytes;
    put(put(put(bytes.data(), kNameMark), parent), content);
    return sha256(bytes);
  }

  // ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────

  [[nodiscard]] std::uint64_t hash_of(const Name& name) const {
    std::uint64_t word = 0;
    std::memcpy(&word, name.data(), sizeof(word));
    return mix64(word ^ seed);
  }
  [[nodiscard]] std::uint64_t hash_of(PageHandle handle) const { return mix64(handle.value ^ seed); }

  [[nodiscard]] std::uint32_t name_slot(const Name& name) const {
    return names.find(hash_of(name), [&](std::uint32_t entry) { return entries[entry].name == name; });
  }
  [[nodiscard]] std::uint32_t content_slot(const Name& content) const {
    return contents.find(hash_of(content), [&](std::uint32_t entry) { return entries[entry].content == content; });
  }
  [[nodiscard]] std::uint32_t handle_slot(PageHandle handle) const {
    return handles.find(hash_of(handle), [&](std::uint32_t entry) { return entries[entry].handle == handle; });
  }
  [[nodiscard]] static std::uint32_t entry_in(const EntryTable& table, std::uint32_t slot) {
    return slot == kNone ? kNone : table.entry(slot);
  }

  void link_content(std::uint32_t entry) {
    Entry& at = entries[entry];
    at.newer = kNone;
    at.older = kNone;
    const std::uint32_t slot = content_slot(at.content);
    if (slot == kNone) {
      contents.insert(hash_of(at.content), entry);
      return;
    }
    at.older = contents.entry(slot);
    entries[at.older].newer = entry;
    contents.set_entry(slot, entry);
  }

  void unlink_content(std::uint32_t entry) {
    const Entry& at = entries[entry];
    if (at.older != kNone) entries[at.older].newer = at.newer;
    if (at.newer != kNone) {
      entries[at.newer].older = at.older;
      return;
    }
    const std::uint32_t slot = content_slot(at.content);
    if (at.older != kNone) {
      contents.set_entry(slot, at.older);
    } else {
      contents.erase(slot, [this](std::uint32_t other) { return hash_of(entries[other].content); });
    }
  }

  void touch(std::uint32_t entry) {
    order.remove(entry);
    order.push_back(entry);
    if (entries[entry].newer == kNone) return;
    unlink_content(entry);
    link_content(entry);
  }

  void add(const Entry& page) {
    const std::uint32_t entry = free_count > 0 ? free_entries[--free_count] : used_count++;
    entries[entry] = page;
    names.insert(hash_of(page.name), entry);
    handles.insert(hash_of(page.handle), entry);
    link_content(entry);
    order.push_back(entry);
  }

  void remove(std::uint32_t entry) {
    const Entry& at = entries[entry];
    order.remove(entry);
    unlink_content(entry);
    names.erase(name_slot(at.name), [this](std::uint32_t other) { return hash_of(entries[other].name); });
    handles.erase(handle_slot(at.handle), [this](std::uint32_t other) { return hash_of(entries[other].handle); });
    free_entries[free_count++] = entry;
  }

  // ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────

  /// The rule that an entry breaks, or null.
  [[nodiscard]] const char* broken_rule(std::uint32_t entry) const {
    const Entry& at = entries[entry];
    if (entry_in(names, name_slot(at.name)) != entry) return "an entry is not found by its name";
    if (entry_in(handles, handle_slot(at.handle)) != entry) return "an entry is not found by its handle";
    if (at.handle.is_none()) return "an entry has no handle";
    const bool is_first = entry_in(contents, content_slot(at.content)) == entry;
    if (is_first != (at.newer == kNone)) return "the first of a content is not the one that is found";
    if (at.newer != kNone && entries[at.newer].older != entry) return "neighbours of a content disagree";
    if (at.older != kNone && entries[at.older].newer != entry) return "neighbours of a content disagree";
    if (at.older != kNone && entries[at.older].content != at.content) return "a list has two contents";
    return nullptr;
  }
};

Result<std::unique_ptr<ChunkIndex>> ChunkIndex::create(const ChunkIndexConfig& config) {
  if (config.page_tokens == 0) {
    return fail(ErrorCode::InvalidArgument, "page_tokens is 0: use that of the cache, 16 is usual");
  }
  if (config.page_count_max == 0 || config.page_count_max > kPageCountLimit) {
    return fail(ErrorCode::InvalidArgument, "page_count_max is " + std::to_string(config.page_count_max) +
                                                ": use a number from 1 to " + std::to_string(kPageCountLimit));
  }
  if (!(config.recompute_ratio >= 0 && config.recompute_ratio <= 1)) {  // so that NaN is refused too
    return fail(ErrorCode::InvalidArgument,
                "recompute_ratio is " + std::to_string(config.recompute_ratio) + ": use a number from 0 to 1");
  }
  auto impl = std::make_unique<Impl>();
  impl->config = config;
  impl->ratio_units = static_cast<std::uint64_t>(std::llround(config.recompute_ratio * kRatioUnits));
  impl->seed = mix64(config.hash_seed);
  // Extra keys do not overlap, so that a page has at most one for each token.
  const std::uint64_t form_bytes = sizeof(kContentMark) + sizeof(KeySpaceId) +
                                   (std::uint64_t{config.page_tokens} * (sizeof(TokenId) + kExtraKeyBytes));
  QUIRE_TRY_ASSIGN(impl->form, LazyArray<std::byte>::create(form_bytes));
  QUIRE_TRY_ASSIGN(impl->entries, LazyArray<Entry>::create(config.page_count_max));
  QUIRE_TRY_ASSIGN(impl->free_entries, LazyArray<std::uint32_t>::create(config.page_count_max));
  QUIRE_TRY_ASSIGN(impl->names, EntryTable::create(config.page_count_max));
  QUIRE_TRY_ASSIGN(impl->contents, EntryTable::create(config.page_count_max));
  QUIRE_TRY_ASSIGN(impl->handles, EntryTable::create(config.page_count_max));
  QUIRE_TRY(impl->order.reserve(config.page_count_max));
  return std::unique_ptr<ChunkIndex>(new ChunkIndex(std::move(impl)));
}

ChunkIndex::ChunkIndex(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChunkIndex::~ChunkIndex() = default;

Result<ChunkInsertion> ChunkIndex::insert(KeySpaceId key_space, const Chunk& prefix,
                                          std::span<const PageHandle> handles) {
  QUIRE_TRY(check_key_space(key_space));
  QUIRE_TRY(check_chunk(prefix, impl_->config.page_tokens, "the prefix"));
  const std::size_t page_count = prefix.tokens.size() / impl_->config.page_tokens;
  if (handles.size() != page_count) {
    return fail(ErrorCode::InvalidArgument, std::to_string(handles.size()) + " handles for " +
                                                std::to_string(page_count) +
                                                " whole pages: give one for each, none() where there is none");
  }

  ChunkInsertion done;
  Name name{};  // of the page before; that of the first page's is all zeros
  const PageHandle* handle = handles.data();
  impl_->for_each_content(key_space, prefix, [&](const Name& content) {
    name = impl_->name_of(name, content);
    const PageHandle given = *handle++;
    if (given.is_none()) return;
    const std::uint32_t known = Impl::entry_in(impl_->names, impl_->name_slot(name));
    // The engine knows best what its handle holds: what the index says of it otherwise is out of date.
    const std::uint32_t former = Impl::entry_in(impl_->handles, impl_->handle_slot(given));
    if (former != kNone && former != known) impl_->remove(former);
    if (known != kNone) {
      impl_->touch(known);
      ++done.known_pages;
      return;
    }
    if (impl_->order.size() == impl_->config.page_count_max) {
      impl_->remove(impl_->order.front());
      ++done.replaced_pages;
    }
    impl_->add(
        {.name = name, .content = content, .handle = given, .key_space = key_space, .newer = kNone, .older = kNone});
    ++done.inserted_pages;
  });
  return done;
}

Result<ChunkMatch> ChunkIndex::lookup(KeySpaceId key_space, std::span<const Chunk> chunks,
                                      std::span<ChunkPage> out) const {
  QUIRE_TRY(check_key_space(key_space));
  if (chunks.empty()) return fail(ErrorCode::InvalidArgument, "there are no chunks to look for");
  std::size_t page_count = 0;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    QUIRE_TRY(check_chunk(chunks[i], impl_->config.page_tokens, "chunk " + std::to_string(i)));
    page_count += chunks[i].tokens.size() / impl_->config.page_tokens;
  }
  if (out.size() < page_count) {
    return fail(ErrorCode::InvalidArgument, "the chunks have " + std::to_string(page_count) +
                                                " whole pages, and there is room for " + std::to_string(out.size()));
  }

  ChunkMatch match{.pages = out.first(page_count)};
  ChunkPage* page = out.data();
  Name name{};
  for (const Chunk& chunk : chunks) {
    impl_->for_each_content(key_space, chunk, [&](const Name& content) {
      std::uint32_t entry = kNone;
      ChunkStatus status = ChunkStatus::Exact;
      // Behind a tail the text is not made of whole pages, as that of every page in the index is.
      if (match.dropped_tokens == 0) {
        name = impl_->name_of(name, content);
        entry = Impl::entry_in(impl_->names, impl_->name_slot(name));
      }
      if (entry == kNone) {
        entry = Impl::entry_in(impl_->contents, impl_->content_slot(content));
        status = ChunkStatus::Partial;
      }
      if (entry == kNone) {
        status = match.partial_pages > 0 ? ChunkStatus::NotMatchPartial : ChunkStatus::NotMatchExact;
      } else {
        ++(status == ChunkStatus::Exact ? match.exact_pages : match.partial_pages);
      }
      *page++ = {.status = status, .handle = entry == kNone ? PageHandle::none() : impl_->entries[entry].handle};
    });
    match.dropped_tokens += chunk.tokens.size() % impl_->config.page_tokens;
  }
  match.recompute_tokens =
      recompute_tokens_of(std::uint64_t{match.partial_pages} * impl_->config.page_tokens, impl_->ratio_units);
  match.scratch_pages = ceil_divide(match.recompute_tokens, impl_->config.page_tokens);
  return match;
}

bool ChunkIndex::touch(PageHandle handle) {
  const std::uint32_t slot = impl_->handle_slot(handle);
  if (slot == kNone) return false;
  impl_->touch(impl_->handles.entry(slot));
  return true;
}

bool ChunkIndex::erase(PageHandle handle) {
  const std::uint32_t slot = impl_->handle_slot(handle);
  if (slot == kNone) return false;
  impl_->remove(impl_->handles.entry(slot));
  return true;
}

std::uint32_t ChunkIndex::drop(KeySpaceId key_space) {
  std::uint32_t dropped = 0;
  for (std::uint32_t entry = impl_->order.front(); entry != kNone;) {
    const std::uint32_t next = impl_->order.next(entry);
    if (impl_->entries[entry].key_space == key_space) {
      impl_->remove(entry);
      ++dropped;
    }
    entry = next;
  }
  return dropped;
}

void ChunkIndex::clear() {
  while (impl_->order.size() > 0) impl_->remove(impl_->order.front());
}

std::uint32_t ChunkIndex::page_count() const {
  return impl_->order.size();
}

const ChunkIndexConfig& ChunkIndex::config() const {
  return impl_->config;
}

void ChunkIndex::visit_pages(const std::function<void(PageHandle, KeySpaceId)>& visit) const {
  for (std::uint32_t entry = impl_->order.front(); entry != kNone; entry = impl_->order.next(entry)) {
    visit(impl_->entries[entry].handle, impl_->entries[entry].key_space);
  }
}

Status ChunkIndex::check_invariants() const {
  const auto broken = [](const std::string& rule) { return fail(ErrorCode::Corrupt, "chunk index: " + rule); };
  std::uint32_t count = 0;
  std::uint32_t content_count = 0;
  for (std::uint32_t entry = impl_->order.front(); entry != kNone; entry = impl_->order.next(entry)) {
    if (const char* rule = impl_->broken_rule(entry)) return broken(rule);
    ++count;
    if (impl_->entries[entry].newer == kNone) ++content_count;
  }
  if (count != impl_->order.size() || count > impl_->config.page_count_max) return broken("the order is too long");
  if (impl_->names.size() != count || impl_->handles.size() != count) return broken("a table has more than the order");
  if (impl_->contents.size() != content_count) return broken("a content has no page");
  if (impl_->used_count - impl_->free_count != count) return broken("an entry is neither used nor free");

  // In each list of a content, those that were used later stand first: walking all from the oldest on, each comes
  // directly before its older neighbour, which must have been met.
  std::uint32_t met = 0;
  LazyArray<std::uint32_t> place;
  QUIRE_TRY_ASSIGN(place, LazyArray<std::uint32_t>::create(impl_->config.page_count_max));
  for (std::uint32_t entry = impl_->order.front(); entry != kNone; entry = impl_->order.next(entry)) {
    place[entry] = ++met;
    const std::uint32_t older = impl_->entries[entry].older;
    if (older != kNone && place[older] == 0) return broken("a content's list is not in the order of use");
  }
  return {};
}

}  // namespace quire
