// SPDX-License-Identifier: Apache-2.0
#include "prefix/prefix_tree.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/hash.h"
#include "prefix/common_tokens.h"

namespace quire {

namespace {

// How many siblings a partial-page match looks at.
constexpr std::uint32_t kPartialSiblingsMax = 4;

// One bucket for every two pages: a tree whose every page is a run of its own has chains of two.
std::size_t bucket_count_for(std::uint32_t run_count_max) {
  return std::bit_ceil(std::max<std::size_t>(16, run_count_max / 2));
}

}  // namespace

Result<std::unique_ptr<PrefixTree>> PrefixTree::create(const PrefixTreeConfig& config, Policy& policy,
                                                       ResidencyLog* log, Policy* host_policy, LostPages* lost) {
  QUIRE_CHECK((host_policy != nullptr) == (config.host_page_count_max > 0), "a host tier needs a policy of its own");
  std::unique_ptr<PrefixTree> tree(new PrefixTree(config, policy, log, host_policy, lost));
  tree->config_.page_count_max = 0;
  QUIRE_TRY_ASSIGN(tree->storage_, RunStorage::create(config.page_tokens, 0, tree->runs_));
  tree->given_up_.resize(tree->storage_.run_pages_max());
  tree->wants_fingerprints_ = policy.wants_fingerprints() || host_policy != nullptr || lost != nullptr;
  if (tree->wants_fingerprints_) tree->told_fingerprints_.resize(tree->storage_.run_pages_max());
  QUIRE_TRY(tree->grow(config.page_count_max));
  return tree;
}

Status PrefixTree::find_runs() {
  QUIRE_CHECK(run_count_ == 0, "runs are to be found in a tree that has some already");
  config_.finds_runs = true;
  QUIRE_TRY(page_runs_.grow(std::size_t{config_.page_count_max} + 1));
  return host_places_.grow(std::size_t{config_.host_page_count_max} + 1);
}

Status PrefixTree::grow(std::uint32_t page_count_max) {
  if (page_count_max <= config_.page_count_max && fresh_run_ > 0) {
    return policy_.reserve(
        {.run_count_max = static_cast<std::uint32_t>(runs_.size()), .page_count_max = page_count_max});
  }
  const std::uint64_t all_pages_max = std::uint64_t{page_count_max} + config_.host_page_count_max;
  const std::uint64_t run_count_max = all_pages_max + config_.root_count_max;
  constexpr std::uint64_t kRunCountLimit = 1U << 31U;
  if (run_count_max > kRunCountLimit) {
    return fail(ErrorCode::InvalidArgument, std::to_string(all_pages_max) + " pages: one prefix tree holds at most " +
                                                std::to_string(kRunCountLimit - config_.root_count_max) +
                                                "; use more tokens per page");
  }
  const auto run_count = static_cast<std::uint32_t>(run_count_max);
  QUIRE_TRY(runs_.grow(run_count));
  runs_.prefer_huge_pages();
  QUIRE_TRY(storage_.grow(static_cast<std::uint32_t>(all_pages_max)));
  QUIRE_TRY(extra_keys_.reserve(all_pages_max * config_.page_tokens));
  QUIRE_TRY(soft_.reserve(run_count));
  QUIRE_TRY(policy_.reserve({.run_count_max = run_count, .page_count_max = page_count_max}));
  if (wants_fingerprints_) QUIRE_TRY(fingerprints_.grow(std::size_t{page_count_max} + 1));  // ids may count from 1
  if (config_.finds_runs) QUIRE_TRY(page_runs_.grow(std::size_t{page_count_max} + 1));
  if (config_.finds_runs) QUIRE_TRY(host_places_.grow(std::size_t{config_.host_page_count_max} + 1));
  if (has_host()) {
    QUIRE_TRY(tiers_.grow(run_count));
    QUIRE_TRY(leaving_.reserve(run_count, 2));
    QUIRE_TRY(copies_.grow(std::size_t{page_count_max} + 1));
    QUIRE_TRY(page_lists_.reserve(page_count_max + 1, kPageListCount));
    QUIRE_TRY(host_policy_->reserve({.run_count_max = run_count, .page_count_max = config_.host_page_count_max}));
    QUIRE_TRY(freed_host_.grow(config_.host_page_count_max));
    QUIRE_TRY(host_fingerprints_.grow(std::size_t{config_.host_page_count_max} + 1));
  }
  const std::size_t bucket_count = bucket_count_for(run_count);
  if (bucket_count > buckets_.size()) {
    QUIRE_TRY_ASSIGN(buckets_, LazyArray<std::uint32_t>::create(bucket_count));
    buckets_.prefer_huge_pages();
    bucket_mask_ = static_cast<std::uint32_t>(bucket_count - 1);
    for (std::uint32_t run = 0; run < fresh_run_; ++run) {
      if (runs_[run].is_live && !is_root(run)) add_to_bucket(run);
    }
  }
  config_.page_count_max = std::max(config_.page_count_max, page_count_max);
  return {};
}

RunId PrefixTree::add_root() {
  QUIRE_CHECK(root_count_ < config_.root_count_max, "more key spaces than the tree was made for");
  const std::uint32_t root = new_run(kNoRun);
  runs_[root].root = root;
  runs_[root].key_hash = ++root_total_;
  ++root_count_;
  return RunId{root};
}

void PrefixTree::remove_root(RunId root) {
  QUIRE_CHECK(runs_[root.value].is_live && is_root(root.value) && is_empty(root),
              "removing a key space that is in use or gone");
  ++version_;
  Run& run = runs_[root.value];
  run.is_live = false;
  ++run.generation;
  run.parent = first_free_run_;
  first_free_run_ = root.value;
  --root_count_;
}

// Lookup

PrefixTree::Match PrefixTree::match(RunId root, const Key& key) const {
  const std::size_t pages_asked = key.tokens.size() / config_.page_tokens;
  Match match{.run = root, .version = version_};
  while (match.page_count < pages_asked) {
    const std::uint32_t child = find_child(match.run.value, key, match.page_count);
    if (child == kNoRun) break;
    if (runs_[child].is_on_host) {
      match_on_host(key, child, static_cast<std::uint32_t>(pages_asked), match);
      break;
    }
    match.run = RunId{child};
    match.pages_in_run =
        matching_pages(child, key, match.page_count, static_cast<std::uint32_t>(pages_asked - match.page_count));
    match.page_count += match.pages_in_run;
    if (match.pages_in_run < runs_[child].page_count) break;
  }
  find_partial(key, match);
  return match;
}

// Goes on from a match's end with what the host holds.
void PrefixTree::match_on_host(const Key& key, std::uint32_t child, std::uint32_t pages_asked, Match& match) const {
  for (std::uint32_t end = match.page_count; child != kNoRun;) {
    match.host_run = RunId{child};
    match.host_pages_in_run = matching_pages(child, key, end, pages_asked - end);
    match.host_page_count += match.host_pages_in_run;
    end += match.host_pages_in_run;
    if (match.host_pages_in_run < runs_[child].page_count || end == pages_asked) return;
    child = find_child(child, key, end);
  }
}

// The child whose first page is the key's page `first_page`.
std::uint32_t PrefixTree::find_child(std::uint32_t parent, const Key& key, std::uint32_t first_page) const {
  const std::uint32_t only = runs_[parent].first_child;
  if (only == kNoRun) return kNoRun;
  if (runs_[only].next_sibling == kNoRun) {
    return matching_pages(only, key, first_page, 1) == 1 ? only : kNoRun;  // no need to hash
  }
  const TokenRange range = page_range(first_page, 1);
  const std::uint64_t extra = ExtraKeyLists::fold(config_.hash_seed, key.extra_keys, range);
  const std::uint32_t hash = key_hash(parent, key.tokens.data() + range.begin, extra);
  for (std::uint32_t run = buckets_[hash & bucket_mask_] - 1; run != kNoRun; run = runs_[run].bucket_next) {
    if (runs_[run].key_hash == hash && runs_[run].parent == parent && matching_pages(run, key, first_page, 1) == 1) {
      return run;
    }
  }
  return kNoRun;
}

// How many leading pages of `run` are the key's pages from `first_page` on.
std::uint32_t PrefixTree::matching_pages(std::uint32_t run, const Key& key, std::uint32_t first_page,
                                         std::uint32_t page_count_max) const {
  const Run& compared = runs_[run];
  const std::uint32_t page_count = std::min(compared.page_count, page_count_max);
  const TokenRange range = page_range(first_page, page_count);
  std::size_t tokens = common_tokens(storage_.tokens(compared), key.tokens.data() + range.begin,
                                     std::size_t{page_count} * config_.page_tokens);
  if (compared.extra_keys != kNoExtraKey || !key.extra_keys.empty()) [[unlikely]] {
    const std::uint32_t agree = extra_keys_.first_difference(compared.extra_keys, key.extra_keys, range);
    tokens = std::min<std::size_t>(tokens, agree - range.begin);
  }
  return static_cast<std::uint32_t>(tokens / config_.page_tokens);
}

// Looks for a page that begins with the tokens after the match: the run's own next page if the match ends inside it,
// else the first pages of a few children, most recently used first.
void PrefixTree::find_partial(const Key& key, Match& match) const {
  const std::uint32_t position = match.page_count * config_.page_tokens;
  if (position == key.tokens.size()) return;
  const auto consider = [&](std::uint32_t run, std::uint32_t page) {
    const std::uint32_t tokens = common_tokens_in_page(run, page, key, position);
    if (tokens <= match.partial_tokens) return;
    match.partial_run = RunId{run};
    match.partial_page = page;
    match.partial_tokens = tokens;
  };
  const Run& end = runs_[match.run.value];
  if (match.pages_in_run < end.page_count) {
    consider(match.run.value, match.pages_in_run);
    return;
  }
  std::uint32_t child = end.first_child;
  for (std::uint32_t i = 0; i < kPartialSiblingsMax && child != kNoRun; ++i, child = runs_[child].next_sibling) {
    if (runs_[child].is_on_host) break;  // parts of pages are copied on the device only
    consider(child, 0);
  }
}

std::uint32_t PrefixTree::common_tokens_in_page(std::uint32_t run, std::uint32_t page, const Key& key,
                                                std::uint32_t position) const {
  const Run& compared = runs_[run];
  const std::size_t count = std::min<std::size_t>(config_.page_tokens, key.tokens.size() - position);
  const TokenId* const tokens = storage_.tokens(compared) + (std::size_t{page} * config_.page_tokens);
  auto common = static_cast<std::uint32_t>(common_tokens(tokens, key.tokens.data() + position, count));
  if (compared.extra_keys != kNoExtraKey || !key.extra_keys.empty()) [[unlikely]] {
    const TokenRange range{position, position + common};
    common = extra_keys_.first_difference(compared.extra_keys, key.extra_keys, range) - position;
  }
  return common;
}

void PrefixTree::copy_pages(const Match& match, std::uint32_t first_page, std::span<PageId> out) const {
  QUIRE_CHECK(match.version == version_, "the tree has changed since this match");
  QUIRE_CHECK(first_page + out.size() >= match.page_count, "no room for the match's pages");
  std::uint32_t run = match.run.value;
  std::uint32_t pages_in_run = match.pages_in_run;
  std::uint32_t end = match.page_count;
  while (end > first_page) {
    const std::uint32_t begin = std::max(first_page, end - pages_in_run);
    const PageId* const pages = storage_.pages(runs_[run]) + (begin - runs_[run].first_page);
    std::memcpy(out.data() + (begin - first_page), pages, (end - begin) * sizeof(PageId));
    end = begin;
    run = runs_[run].parent;
    pages_in_run = runs_[run].page_count;
  }
}

PageId PrefixTree::partial_page(const Match& match) const {
  QUIRE_CHECK(match.version == version_, "the tree has changed since this match");
  return storage_.pages(runs_[match.partial_run.value])[match.partial_page];
}

PrefixTree::Match PrefixTree::cut(const Match& match, std::uint32_t tokens) const {
  const std::uint32_t page_count = tokens / config_.page_tokens;
  Match cut = match;
  cut.host_run = {};
  cut.host_pages_in_run = 0;
  cut.host_page_count = 0;
  cut.partial_tokens = tokens % config_.page_tokens;
  if (page_count >= match.page_count) return cut;
  // The page that is cut in two is one of the match's own.
  std::uint32_t run = match.run.value;
  while (runs_[run].first_page > page_count) run = runs_[run].parent;
  cut.partial_run = RunId{run};
  cut.partial_page = page_count - runs_[run].first_page;
  if (runs_[run].first_page == page_count) run = runs_[run].parent;
  cut.run = RunId{run};
  cut.pages_in_run = page_count - runs_[run].first_page;
  cut.page_count = page_count;
  return cut;
}

PrefixTree::Match PrefixTree::cut_pages(const Match& match, std::uint32_t page_count) const {
  if (page_count <= match.page_count) return cut(match, page_count * config_.page_tokens);
  Match cut = match;
  cut.partial_tokens = 0;
  cut.host_page_count = std::min(match.host_page_count, page_count - match.page_count);
  if (cut.host_page_count == 0) return cut;
  std::uint32_t run = match.host_run.value;
  while (runs_[run].first_page >= match.page_count + cut.host_page_count) run = runs_[run].parent;
  cut.host_run = RunId{run};
  cut.host_pages_in_run = match.page_count + cut.host_page_count - runs_[run].first_page;
  return cut;
}

void PrefixTree::copy_host_pages(const Match& match, std::span<PageId> out) const {
  QUIRE_CHECK(match.version == version_ && out.size() == match.host_page_count, "pages of another match");
  std::uint32_t run = match.host_run.value;
  for (std::uint32_t end = match.page_count + match.host_page_count; end > match.page_count; run = runs_[run].parent) {
    const std::uint32_t begin = std::max(match.page_count, runs_[run].first_page);
    std::memcpy(out.data() + (begin - match.page_count), storage_.pages(runs_[run]) + (begin - runs_[run].first_page),
                (end - begin) * sizeof(PageId));
    end = begin;
  }
}

void PrefixTree::copy_path(RunId end_run, std::uint32_t first_page, std::span<PageId> out) const {
  std::uint32_t end = end_page(end_run);
  QUIRE_CHECK(first_page + out.size() == end, "a path of another length");
  for (std::uint32_t run = end_run.value; end > first_page; run = runs_[run].parent) {
    const std::uint32_t begin = std::max(first_page, runs_[run].first_page);
    const PageId* const pages = storage_.pages(runs_[run]) + (begin - runs_[run].first_page);
    std::memcpy(out.data() + (begin - first_page), pages, (end - begin) * sizeof(PageId));
    end = begin;
  }
}

std::uint32_t PrefixTree::idle_pages(const Match& match) const {
  QUIRE_CHECK(match.version == version_, "the tree has changed since this match");
  std::uint32_t pages = 0;
  std::uint32_t pages_in_run = match.pages_in_run;
  // What is above a pinned run is pinned too.
  for (std::uint32_t run = match.run.value; !is_root(run) && runs_[run].pins == 0; run = runs_[run].parent) {
    pages += std::exchange(pages_in_run, runs_[runs_[run].parent].page_count);
  }
  return pages;
}

// Growth

std::uint32_t PrefixTree::insert(Pin& pin, const Key& key, std::span<PageId> pages, std::span<PageId> duplicates,
                                 const Sealing& sealing) {
  QUIRE_CHECK(pin.tree_ == this, "inserting behind an empty pin");
  QUIRE_CHECK(duplicates.size() >= pages.size(), "no room for duplicates");
  std::uint32_t end = pin.run_.value;
  std::uint32_t end_page = this->end_page(pin.run_);
  QUIRE_CHECK((end_page + pages.size()) * config_.page_tokens <= key.tokens.size(), "more pages than tokens");
  ++version_;

  // What the tree has already.
  std::uint32_t known = 0;
  while (known < pages.size()) {
    const std::uint32_t child = find_child(end, key, end_page);
    if (child == kNoRun || runs_[child].is_on_host) break;
    const std::uint32_t count = matching_pages(child, key, end_page, static_cast<std::uint32_t>(pages.size()) - known);
    std::memcpy(duplicates.data() + known, pages.data() + known, count * sizeof(PageId));
    std::memcpy(pages.data() + known, storage_.pages(runs_[child]), count * sizeof(PageId));
    known += count;
    end_page += count;
    const bool is_whole = count == runs_[child].page_count;
    end = is_whole ? child : split(child, count);
    if (!is_whole) break;
  }
  if (known > 0) move_pin(pin, end);

  // What is added is worth something only with what is before it.
  for (std::uint32_t run = end; !is_root(run) && policy_.on_retain(RunId{run}, sealing.retention);) {
    run = runs_[run].parent;
  }

  std::span<const PageId> rest = pages.subspan(known);
  QUIRE_CHECK(page_count() + rest.size() <= config_.page_count_max, "more pages than the tree was made for");
  // What the host has: the sequence's pages become the device's copy.
  while (has_host() && !rest.empty()) {
    std::uint32_t child = find_child(end, key, end_page);
    if (child == kNoRun) break;
    const std::uint32_t count = matching_pages(child, key, end_page, static_cast<std::uint32_t>(rest.size()));
    const bool is_whole = count == runs_[child].page_count;
    if (!is_whole) child = split(child, count);
    end = child;
    move_pin(pin, end);
    promote(RunId{end}, rest.first(count), sealing);
    rest = rest.subspan(count);
    end_page += count;
    if (!is_whole) break;
  }

  // What it adopts: first at the end of the pin's own run, then in new ones.
  while (!rest.empty()) {
    const bool may_grow = !config_.whole_runs && !is_root(end) && runs_[end].first_child == kNoRun &&
                          runs_[end].pins == 1 && runs_[end].page_count < storage_.run_pages_max() &&
                          (!has_host() || tiers_[end].holds == 0) && agrees_behind(end, key);
    if (!may_grow) {
      end = new_run(end);
      pin.run_ = RunId{end};
    }
    const std::size_t count = std::min<std::size_t>(rest.size(), storage_.run_pages_max() - runs_[end].page_count);
    fill(end, key, rest.first(count), sealing);
    rest = rest.subspan(count);
  }
  return known;
}

// The new pin comes before the old one goes, so that nothing on the path becomes idle in between.
void PrefixTree::move_pin(Pin& pin, std::uint32_t run) {
  add_pin(run);
  remove_pin(pin.run_);
  pin.run_ = RunId{run};
}

// Whether an item that crosses the run's end is the key's too. Where it is not, because the sequence was cut inside it,
// the item must not cover what the run would grow by.
bool PrefixTree::agrees_behind(std::uint32_t run, const Key& key) const {
  if (runs_[run].extra_keys == kNoExtraKey) [[likely]]
    return true;
  const std::uint32_t end = end_page(RunId{run}) * config_.page_tokens;
  const ExtraKey* crossing = nullptr;
  extra_keys_.for_each(runs_[run].extra_keys,
                       [&](const ExtraKey& each) { crossing = each.end > end ? &each : crossing; });
  return crossing == nullptr || std::ranges::find(key.extra_keys, *crossing) != key.extra_keys.end();
}

// A run without pages, pinned once. The pin it carries is its parent's: the caller's pin moves from there, and the
// parent's count stays the same, now for a pinned child. It enters the child table with its first pages.
std::uint32_t PrefixTree::new_run(std::uint32_t parent) {
  std::uint32_t run = first_free_run_;
  if (run != kNoRun) {
    first_free_run_ = runs_[run].parent;
  } else {
    run = fresh_run_++;
  }
  const std::uint32_t generation = runs_[run].generation;
  runs_[run] = {.parent = parent,
                .first_child = kNoRun,
                .last_child = kNoRun,
                .next_sibling = kNoRun,
                .previous_sibling = kNoRun,
                .bucket_next = kNoRun,
                .key_hash = 0,
                .first_page = parent == kNoRun ? 0 : end_page(RunId{parent}),
                .page_count = 0,
                .block = 0,
                .extra_keys = kNoExtraKey,
                .pins = parent == kNoRun ? 0U : 1U,
                .soft_pins = 0,
                .generation = generation,
                .root = parent == kNoRun ? run : runs_[parent].root,
                .size_class = 0,
                .is_live = true,
                .is_on_host = false,
                .leaving = Leaving::No};
  if (has_host()) tiers_[run] = {.last_resident_child = kNoRun, .load = 0, .use_count = 0, .holds = 0};
  return run;
}

// Appends pages to a pinned run that is new or grows in place.
void PrefixTree::fill(std::uint32_t run, const Key& key, std::span<const PageId> pages, const Sealing& sealing) {
  const auto added = static_cast<std::uint32_t>(pages.size());
  const bool is_new = runs_[run].page_count == 0;
  if (is_new) {
    storage_.allocate(run, added);
  } else {
    storage_.reserve(run, runs_[run].page_count + added);
  }
  Run& filled = runs_[run];
  const TokenRange range = page_range(filled.first_page + filled.page_count, added);
  const std::span<const PageFingerprint> fingerprints = make_fingerprints(run, key, pages);
  std::memcpy(storage_.tokens(filled) + (std::size_t{filled.page_count} * config_.page_tokens),
              key.tokens.data() + range.begin, (range.end - range.begin) * sizeof(TokenId));
  std::memcpy(storage_.pages(filled) + filled.page_count, pages.data(), pages.size_bytes());
  note_run(run, pages);
  if (!key.extra_keys.empty()) [[unlikely]]
    extra_keys_.append(filled.extra_keys, key.extra_keys, range);
  filled.page_count += added;
  (filled.is_on_host ? host_pinned_pages_ : pinned_pages_) += added;
  if (is_new) {
    ++run_count_;
    filled.key_hash = key_hash_of(run);
    add_to_bucket(run);
    link_new(run);
  }
  policy_of(run).on_seal(RunId{run}, {.page_count = added,
                                      .pages_left = filled.page_count,
                                      .fingerprints = fingerprints,
                                      .retention = sealing.retention});
  record(run, range.begin / config_.page_tokens, added, sealing.cause, filled.is_on_host ? Tier::Host : Tier::Device);
}

// A policy hears of a run's first child, if that is a run of its own.
void PrefixTree::link_new(std::uint32_t run) {
  const std::uint32_t parent = runs_[run].parent;
  const bool is_on_host = runs_[run].is_on_host;
  const bool is_first_child = (is_on_host ? runs_[parent].first_child : last_resident(parent)) == kNoRun;
  if (is_on_host) {
    link_absent(parent, run);
  } else {
    link_child(parent, run);
  }
  const bool shares_policy = !is_root(parent) && runs_[parent].is_on_host == is_on_host;
  if (is_first_child && shares_policy) policy_of(parent).on_branch(RunId{parent});
}

// Each page's fingerprint is a hash of its tokens and extra keys, seeded with that of the page before it; the first
// page of a path has its root's number for that.
std::span<const PageFingerprint> PrefixTree::make_fingerprints(std::uint32_t run, const Key& key,
                                                               std::span<const PageId> pages) {
  if (!wants_fingerprints_) return {};
  const auto fingerprints_by_page = [this](std::uint32_t of) -> LazyArray<PageFingerprint>& {
    return runs_[of].is_on_host ? host_fingerprints_ : fingerprints_;
  };
  const std::uint32_t before = runs_[run].page_count > 0 ? run : runs_[run].parent;
  PageFingerprint fingerprint =
      is_root(before) ? root_fingerprint(before)
                      : fingerprints_by_page(before)[storage_.pages(runs_[before])[runs_[before].page_count - 1].value];
  LazyArray<PageFingerprint>& own = fingerprints_by_page(run);
  const std::uint32_t first_page = end_page(RunId{run});
  for (std::size_t i = 0; i < pages.size(); ++i) {
    fingerprint = next_fingerprint(fingerprint, key, first_page + static_cast<std::uint32_t>(i));
    QUIRE_CHECK(pages[i].value < own.size(), "a page id beyond the pool");
    own[pages[i].value] = fingerprint;
    told_fingerprints_[i] = fingerprint;
  }
  return std::span(told_fingerprints_).first(pages.size());
}

PageFingerprint PrefixTree::root_fingerprint(std::uint32_t root) const {
  return mix64(runs_[root].key_hash ^ config_.hash_seed);
}

PageFingerprint PrefixTree::next_fingerprint(PageFingerprint before, const Key& key, std::uint32_t page) const {
  const TokenRange range = page_range(page, 1);
  return hash_bytes(key.tokens.data() + range.begin, std::size_t{config_.page_tokens} * sizeof(TokenId),
                    key.extra_keys.empty() ? before : ExtraKeyLists::fold(before, key.extra_keys, range));
}

PageFingerprint PrefixTree::fingerprint_before(const Match& match) const {
  if (match.host_page_count > 0) {
    return host_fingerprints_[storage_.pages(runs_[match.host_run.value])[match.host_pages_in_run - 1].value];
  }
  if (match.page_count == 0) return root_fingerprint(match.run.value);
  return fingerprints_[storage_.pages(runs_[match.run.value])[match.pages_in_run - 1].value];
}

PageFingerprint PrefixTree::fingerprint_of(const Pin& pin) const {
  const Run& run = runs_[pin.run_.value];
  if (is_root(pin.run_.value)) return root_fingerprint(pin.run_.value);
  return fingerprint(storage_.pages(run)[run.page_count - 1], run.is_on_host ? Tier::Host : Tier::Device);
}

std::span<const PageFingerprint> PrefixTree::fingerprints_of(std::span<const PageId> pages) {
  if (!wants_fingerprints_) return {};
  for (std::size_t i = 0; i < pages.size(); ++i) told_fingerprints_[i] = fingerprints_[pages[i].value];
  return std::span(told_fingerprints_).first(pages.size());
}

// Gives the first `page_count` pages of `run` to a new run before it, and returns that one. `run` keeps its identity,
// its children and its pins for the rest: a pin on it covers the new run as one of a pinned child.
std::uint32_t PrefixTree::split(std::uint32_t run, std::uint32_t page_count) {
  ++version_;
  const std::uint32_t prefix = new_run(runs_[run].parent);
  storage_.split(run, prefix, page_count);
  remove_from_bucket(run);

  Run& front = runs_[prefix];
  Run& back = runs_[run];
  front.first_page = back.first_page;
  front.pins = back.pins > 0 ? 1 : 0;
  front.soft_pins = back.soft_pins > 0 ? 1 : 0;
  front.key_hash = back.key_hash;
  front.is_on_host = back.is_on_host;
  front.leaving = back.leaving;
  if (has_host()) {
    tiers_[prefix] = {.last_resident_child = is_resident(run) ? run : kNoRun,
                      .load = tiers_[run].load,
                      .use_count = tiers_[run].use_count,
                      .holds = tiers_[run].holds > 0 ? 1U : 0U};
    RunTier& parent = tiers_[back.parent];
    if (parent.last_resident_child == run) parent.last_resident_child = prefix;
  }
  // The prefix takes the run's place among its siblings; the run becomes its only child.
  link_before(run) = prefix;
  link_behind(run) = prefix;
  front.next_sibling = back.next_sibling;
  front.previous_sibling = back.previous_sibling;
  front.first_child = run;
  front.last_child = run;
  back.parent = prefix;
  back.next_sibling = kNoRun;
  back.previous_sibling = kNoRun;
  back.first_page += page_count;
  if (back.extra_keys != kNoExtraKey) [[unlikely]] {
    extra_keys_.split(back.extra_keys, front.extra_keys, back.first_page * config_.page_tokens);
  }
  add_to_bucket(prefix);
  back.key_hash = key_hash_of(run);
  add_to_bucket(run);
  ++run_count_;
  note_run(prefix, pages(RunId{prefix}));

  if (back.leaving != Leaving::No) {
    leaving_.insert_after(run, prefix);  // its end goes first
    return prefix;
  }
  if (back.soft_pins > 0 && soft_.contains(run)) soft_.insert_after(run, prefix);
  policy_of(run).on_split(RunId{run}, RunId{prefix}, page_count);
  return prefix;
}

void PrefixTree::remove_run(std::uint32_t run, const PageChange& lost) {
  QUIRE_CHECK(runs_[run].pins == 0 && runs_[run].first_child == kNoRun, "removing a run that is in use");
  end_host_holds(run);
  if (runs_[run].soft_pins > 0) {
    soft_.remove(run);
    // The soft pins that end here end now; their handles see it by the generation.
    runs_[run].soft_pins = 0;
    drop_soft(runs_[run].parent);
  }
  const bool is_known = runs_[run].leaving == Leaving::No;  // to its policy
  if (is_known) policy_of(run).on_remove(RunId{run}, lost);
  remove_from_bucket(run);
  unlink_child(run);
  const std::uint32_t parent = runs_[run].parent;
  if (is_known && !is_root(parent)) tell_leaf(parent, run);
  storage_.release(run);
  Run& removed = runs_[run];
  if (removed.extra_keys != kNoExtraKey) extra_keys_.trim(removed.extra_keys, 0);
  removed.is_live = false;
  ++removed.generation;
  removed.parent = first_free_run_;
  first_free_run_ = run;
  --run_count_;
}

// Tells the parent's policy when the last child that it hears of has gone.
void PrefixTree::tell_leaf(std::uint32_t parent, std::uint32_t gone) {
  if (runs_[parent].is_on_host != runs_[gone].is_on_host) return;
  const std::uint32_t left = runs_[parent].is_on_host ? runs_[parent].first_child : last_resident(parent);
  if (left == kNoRun && runs_[parent].leaving == Leaving::No) policy_of(parent).on_leaf(RunId{parent});
}

void PrefixTree::link_child(std::uint32_t parent, std::uint32_t child) {
  if (has_host() && tiers_[parent].last_resident_child == kNoRun) tiers_[parent].last_resident_child = child;
  const std::uint32_t first = runs_[parent].first_child;
  runs_[child].previous_sibling = kNoRun;
  runs_[child].next_sibling = first;
  (first != kNoRun ? runs_[first].previous_sibling : runs_[parent].last_child) = child;
  runs_[parent].first_child = child;
}

// What names a child from both sides: its siblings, or the parent at the ends.
std::uint32_t& PrefixTree::link_before(std::uint32_t child) {
  const Run& run = runs_[child];
  return run.previous_sibling != kNoRun ? runs_[run.previous_sibling].next_sibling : runs_[run.parent].first_child;
}

std::uint32_t& PrefixTree::link_behind(std::uint32_t child) {
  const Run& run = runs_[child];
  return run.next_sibling != kNoRun ? runs_[run.next_sibling].previous_sibling : runs_[run.parent].last_child;
}

// Directly behind those that policies hear of.
void PrefixTree::link_absent(std::uint32_t parent, std::uint32_t child) {
  const std::uint32_t before = tiers_[parent].last_resident_child;
  const std::uint32_t behind = before != kNoRun ? runs_[before].next_sibling : runs_[parent].first_child;
  runs_[child].previous_sibling = before;
  runs_[child].next_sibling = behind;
  (before != kNoRun ? runs_[before].next_sibling : runs_[parent].first_child) = child;
  (behind != kNoRun ? runs_[behind].previous_sibling : runs_[parent].last_child) = child;
}

void PrefixTree::unlink_child(std::uint32_t child) {
  if (has_host()) {
    RunTier& parent = tiers_[runs_[child].parent];
    if (parent.last_resident_child == child) parent.last_resident_child = runs_[child].previous_sibling;
  }
  link_before(child) = runs_[child].next_sibling;
  link_behind(child) = runs_[child].previous_sibling;
}

void PrefixTree::move_to_front(std::uint32_t child) {
  if (runs_[child].previous_sibling == kNoRun) return;
  descent_.victim = kNoRun;  // the way down may lead elsewhere now
  const std::uint32_t parent = runs_[child].parent;
  unlink_child(child);
  if (is_resident(child)) {
    link_child(parent, child);
  } else {
    link_absent(parent, child);
  }
}

std::uint32_t PrefixTree::key_hash(std::uint32_t parent, const TokenId* tokens, std::uint64_t extra) const {
  const std::uint64_t hash =
      hash_bytes(tokens, std::size_t{config_.page_tokens} * sizeof(TokenId), extra + (parent * 0x9E3779B97F4A7C15ULL));
  return static_cast<std::uint32_t>(hash >> 32U);
}

std::uint32_t PrefixTree::key_hash_of(std::uint32_t run) const {
  const TokenRange range = page_range(runs_[run].first_page, 1);
  const std::uint64_t extra = extra_keys_.fold(config_.hash_seed, runs_[run].extra_keys, range);
  return key_hash(runs_[run].parent, storage_.tokens(runs_[run]), extra);
}

void PrefixTree::add_to_bucket(std::uint32_t run) {
  std::uint32_t& bucket = buckets_[runs_[run].key_hash & bucket_mask_];
  runs_[run].bucket_next = bucket - 1;
  bucket = run + 1;
}

void PrefixTree::remove_from_bucket(std::uint32_t run) {
  std::uint32_t& bucket = buckets_[runs_[run].key_hash & bucket_mask_];
  if (bucket == run + 1) {
    bucket = runs_[run].bucket_next + 1;
    return;
  }
  std::uint32_t before = bucket - 1;
  while (runs_[before].bucket_next != run) {
    before = runs_[before].bucket_next;
    QUIRE_CHECK(before != kNoRun, "a run is missing from the child table");
  }
  runs_[before].bucket_next = runs_[run].bucket_next;
}

// Observers

RunView PrefixTree::view(RunId id) const {
  const Run& run = runs_[id.value];
  std::uint32_t child_count = 0;
  std::uint32_t pinned_children = 0;
  for (std::uint32_t child = run.first_child; child != kNoRun; child = runs_[child].next_sibling) {
    ++child_count;
    pinned_children += runs_[child].pins > 0 ? 1 : 0;
  }
  RunView view{.run = id,
               .parent = RunId{run.parent},
               .tier = run.is_on_host ? Tier::Host : Tier::Device,
               .first_page = run.first_page,
               .pin_count = run.pins,
               .own_pin_count = run.pins - pinned_children,
               .soft_pin_count = run.soft_pins,
               .child_count = child_count};
  if (run.page_count > 0) {
    view.tokens = {storage_.tokens(run), std::size_t{run.page_count} * config_.page_tokens};
    view.pages = {storage_.pages(run), run.page_count};
  }
  return view;
}

std::uint32_t PrefixTree::deepest_first(std::uint32_t run) const {
  while (runs_[run].first_child != kNoRun) run = runs_[run].first_child;
  return run;
}

std::uint32_t PrefixTree::least_recent_leaf(std::uint32_t run) const {
  while (last_resident(run) != kNoRun) run = last_resident(run);
  return run;
}

std::uint32_t PrefixTree::next_in_postorder(std::uint32_t run) const {
  const std::uint32_t sibling = runs_[run].next_sibling;
  return sibling != kNoRun ? deepest_first(sibling) : runs_[run].parent;
}

std::uint32_t PrefixTree::next_in_preorder(std::uint32_t root, std::uint32_t run, std::uint32_t& depth) const {
  if (runs_[run].first_child != kNoRun) {
    ++depth;
    return runs_[run].first_child;
  }
  while (run != root) {
    if (runs_[run].next_sibling != kNoRun) return runs_[run].next_sibling;
    run = runs_[run].parent;
    --depth;
  }
  return kNoRun;
}

}  // namespace quire
