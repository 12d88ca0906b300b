// SPDX-License-Identifier: Apache-2.0
//
// Cache: external device pools. The engine hands out device pages itself, and shares them through offer() and match().
#include <algorithm>

#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

namespace {

void unhold_all(OfferedPages& offered, std::span<const PageId> pages) {
  for (const PageId page : pages) offered.unhold(page);
}

// Holds pages, all or none: those of a group, or of the history if `group` is null.
Status hold_all(OfferedPages& offered, std::span<const PageId> pages, const GroupRows* group) {
  for (std::size_t held = 0; held < pages.size(); ++held) {
    const PageId page = pages[held];
    const bool is_known = page.value < offered.page_count();
    if (is_known && offered.state(page) == OfferedPages::State::Engine) {
      offered.hold(page);
      continue;
    }
    unhold_all(offered, pages.first(held));
    const bool is_released = is_known && offered.state(page) == OfferedPages::State::Released;
    const std::string limit =
        group == nullptr ? "page_count" : "group_page_counts[" + std::to_string(group->memory.group_index) + "]";
    return invalid(group == nullptr ? "" : "group '" + group->group->name + "': ", "page ", plain(page.value),
                   !is_known     ? " is not below device." + limit + " = " + with_separators(offered.page_count())
                   : is_released ? " was given up, but take_released() has not named it yet"
                                 : " is offered twice: quire holds it already, or it stands twice in this offer");
  }
  return {};
}

}  // namespace

const GroupRows* Cache::Impl::find_anchored(std::uint32_t group_index) const {
  const auto group =
      std::ranges::find(groups, group_index, [](const GroupRows& each) { return each.memory.group_index; });
  return group != groups.end() ? &*group : nullptr;
}

Result<PageHome*> Cache::Impl::find_pool(std::optional<std::uint32_t> group_index, const char* call) const {
  const std::size_t group_count = config.layout.groups().size();
  const GroupRows* const group = group_index ? find_anchored(*group_index) : nullptr;
  if (group != nullptr && group->has_pages()) return group->tier;
  if (group == nullptr && group_index.value_or(0) < group_count) return &tiers->parts.history;
  return invalid(call, ": group_index is ", plain(*group_index),
                 group != nullptr ? ", and group '" + group->group->name + "' has no pages"
                                  : "; the layout has " + plain(group_count) + " groups");
}

// Offers

Status Cache::Impl::check_offered_groups(const Offer& offer) const {
  const std::size_t page_count = offer.prompt.tokens.size() / page_tokens;
  for (const GroupPages& piece : offer.groups) {
    QUIRE_TRY_ASSIGN(const PageHome* const home, find_pool(piece.group_index, "offer"));
    if (home->pool == 0) {
      return invalid("group '", config.layout.groups()[piece.group_index].name,
                     "' keeps everything: its pages are those of page_ids");
    }
    const GroupRows& group = groups[home->pool - 1U];
    const auto where = [&] { return "group '" + group.group->name + "': "; };
    const std::size_t end = piece.first_page + piece.page_ids.size();
    if (end > page_count) {
      return invalid(where(), "pages [", plain(piece.first_page), ", ", plain(end), ") were offered; the path has ",
                     page_count, " that are full");
    }
    const std::uint32_t boundary = group.is_window() ? 1 : boundary_multiple(*group.group);
    for (std::size_t page = piece.first_page; page < end; ++page) {
      if ((page + 1) * page_tokens % boundary == 0) continue;
      return invalid(where(), "a snapshot behind ", (page + 1) * page_tokens,
                     " tokens is of no use: it goes on at multiples of ", boundary);
    }
  }
  return {};
}

Status Cache::Impl::hold_offered(const Offer& offer) {
  QUIRE_TRY(hold_all(*history->offered, offer.page_ids, nullptr));
  for (std::size_t i = 0; i < offer.groups.size(); ++i) {
    const GroupRows* const group = find_anchored(offer.groups[i].group_index);
    const Status held = hold_all(*group->tier->pages.offered, offer.groups[i].page_ids, group);
    if (held) continue;
    unhold_offered(offer, i);
    return held;
  }
  return {};
}

// Gives the pages of the history, and of the first pieces of groups, back to the engine.
void Cache::Impl::unhold_offered(const Offer& offer, std::size_t group_piece_count) {
  unhold_all(*history->offered, offer.page_ids);
  for (const GroupPages& piece : offer.groups.first(group_piece_count)) {
    unhold_all(*find_anchored(piece.group_index)->tier->pages.offered, piece.page_ids);
  }
}

// Hangs offered pages of anchored groups on the path's pages. Where one hangs already, the offered page is a duplicate.
void Cache::Impl::attach_offered(const Offer& offer, const TierPath& path, OfferOutcome& outcome) {
  for (const GroupPages& piece : offer.groups) {
    const auto place = static_cast<std::size_t>(find_anchored(piece.group_index) - groups.data());
    const GroupRows& group = groups[place];
    // Pages that a sequence does not need to go on at the path's end are Worth::Passed.
    const WindowColumns needed =
        tiers->paths.needed_columns(place, {.tokens = path.size() * page_tokens}, /*token_count=*/UINT32_MAX);
    for (std::uint32_t i = 0; i < piece.page_ids.size(); ++i) {
      const PageId page = piece.page_ids[i];
      const std::uint32_t column = piece.first_page + i;
      if (group.pages().has(path.pages[column])) {
        group.tier->pages.offered->unhold(page);
        outcome.group_duplicates.push_back({.group_index = piece.group_index, .page = page});
        ++group.tier->pages.totals.duplicate_page_total;
        continue;
      }
      const bool is_passed = group.is_window() && column >= needed.sink_pages && column < needed.first;
      group.pages().attach(path.pages[column], page);
      group.pages().unpin(page, is_passed ? AnchoredPages::Worth::Passed : AnchoredPages::Worth::Kept);
      ++group.tier->pages.totals.sealed_page_total;
      ++outcome.adopted_group_pages;
    }
  }
}

Result<OfferOutcome> Cache::offer(KeySpaceId key_space, const Offer& offer) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::External, "offer"));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(offer.prompt));
  const std::size_t page_count = offer.prompt.tokens.size() / impl.page_tokens;
  const bool is_empty = offer.page_ids.empty() && offer.groups.empty();
  if (is_empty || offer.first_page + offer.page_ids.size() != page_count) {
    return invalid("the path's ", offer.prompt.tokens.size(), " tokens fill ", page_count, " pages; pages [",
                   plain(offer.first_page), ", ", plain(offer.first_page + offer.page_ids.size()),
                   ") were offered: offer at least one page, up to the last that is full");
  }
  QUIRE_TRY(impl.check_offered_groups(offer));
  PrefixTree& tree = *impl.tree;
  const PrefixTree::Key key{offer.prompt.tokens.first(page_count * impl.page_tokens), offer.prompt.extra_keys};
  QUIRE_TRY_ASSIGN(const PrefixTree::Match match, impl.match(space, offer.prompt, {}));
  QUIRE_TRY(impl.hold_offered(offer));
  if (match.page_count < offer.first_page) {
    impl.unhold_offered(offer, offer.groups.size());
    return OfferOutcome{.prefix_pages = match.page_count};
  }

  const std::size_t duplicates = match.page_count - offer.first_page;
  unhold_all(*impl.history->offered, offer.page_ids.first(duplicates));
  const std::span<PageId> pages = std::span(impl.page_scratch).first(offer.page_ids.size() - duplicates);
  std::ranges::copy(offer.page_ids.subspan(duplicates), pages.begin());
  PrefixTree::Pin pin = tree.pin(match);
  const std::uint32_t known = tree.insert(pin, key, pages, {pages}, {.cause = ResidencyCause::Offered});
  QUIRE_CHECK(known == 0, "a page appeared between match and insert");
  impl.key_spaces.touch(space);
  impl.counters.sealed_page_total += pages.size();
  impl.counters.duplicate_page_total += duplicates;
  OfferOutcome outcome{.prefix_pages = offer.first_page,
                       .duplicate_pages = static_cast<std::uint32_t>(duplicates),
                       .adopted_pages = static_cast<std::uint32_t>(pages.size())};
  if (!offer.groups.empty()) impl.attach_offered(offer, impl.tiers->paths.path_of(pin), outcome);
  return outcome;
}

// Matches

// Pins the pages of anchored groups that a sequence needs to go on behind a hit, and lists them.
std::span<const GroupPages> Cache::Impl::hold_matched(std::uint32_t index, const Hit& hit, const TierPath& path,
                                                      std::uint32_t token_count) {
  GroupPages* const row = matched_pages.data() + (index * 2 * groups.size());
  std::size_t piece_count = 0;
  for (std::size_t i = 0; hit.tokens > 0 && i < groups.size(); ++i) {
    GroupRows& group = groups[i];
    if (!group.has_pages() || hit.is_rebuilt(i)) continue;
    const auto hold = [&](std::uint32_t first, std::uint32_t last) {
      if (first == last) return;
      // A window has a row for each sequence, and a state the one page that it begins with.
      const std::span<PageId> held = group.is_window() ? group.row(index).subspan(first, last - first)
                                                       : std::span(&group.states[index].restore_page, 1);
      for (std::uint32_t column = first; column < last; ++column) {
        held[column - first] = group.pages().at(path.pages[column]);
        group.pages().pin_found(held[column - first]);
      }
      row[piece_count++] = {.group_index = group.memory.group_index, .first_page = first, .page_ids = held};
    };
    const WindowColumns needed = tiers->paths.needed_columns(i, hit, token_count);
    if (needed.sink_pages < needed.first) {
      hold(0, needed.sink_pages);
      hold(needed.first, needed.last);
    } else {
      hold(0, needed.last);
    }
  }
  return {row, piece_count};
}

// A state's page is released with the state.
void Cache::Impl::release_matched(std::uint32_t index) {
  GroupPages* const row = matched_pages.data() + (index * 2 * groups.size());
  for (GroupPages& piece : std::span(row, 2 * groups.size())) {
    const GroupRows* const group = piece.page_ids.empty() ? nullptr : find_anchored(piece.group_index);
    if (group != nullptr && group->is_window()) {
      for (const PageId page : piece.page_ids) group->pages().unpin(page, AnchoredPages::Worth::Kept);
    }
    piece = {};
  }
}

Result<ExternalMatch> Cache::match(KeySpaceId key_space, const Prompt& prompt) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::External, "match"));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(prompt));
  QUIRE_TRY_ASSIGN(const PrefixTree::Match found, impl.match(space, prompt, {}));
  const std::optional<std::uint32_t> index = impl.sequences.try_add();
  if (!index) {
    return unavailable("all ", impl.sequences.capacity(), " matches are held; drop one, or raise sequence_count_max");
  }
  Paths& paths = impl.tiers->paths;
  const auto token_count = static_cast<std::uint32_t>(prompt.tokens.size());
  const Hit hit = paths.find_hit(found, {.token_count = token_count, .allows_partial = false}, HitScope::Device);
  const PrefixTree::Match match = paths.cut(found, hit);
  SequenceSlot& slot = impl.sequences[*index];
  impl.sequences.set_state(*index, SequenceSlot::State::Holding);
  slot.key_space = space;
  slot.page_count = match.page_count;
  const std::span<PageId> row = impl.sequences.page_row(*index).first(match.page_count);
  impl.tree->copy_pages(match, 0, row);
  const std::span<const GroupPages> groups = impl.hold_matched(*index, hit, {.pages = row}, token_count);
  slot.pin = impl.tree->pin(match);
  impl.tiers->parts.use_key_space(space);
  impl.key_spaces.touch(space);
  ++impl.counters.begun_sequence_count;
  ++impl.counters.admitted_sequence_count;
  impl.counters.prompt_tokens += prompt.tokens.size();
  impl.counters.hit_tokens += hit.start();
  return ExternalMatch{.sequence = Sequence(impl.release_queue, {*index, slot.generation}),
                       .token_count = hit.tokens,
                       .replay_tokens = hit.replay_tokens,
                       .pages = row,
                       .groups = groups};
}

Result<std::span<PageId>> Cache::take_released(std::span<PageId> out, std::optional<std::uint32_t> group_index) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::External, "take_released"));
  QUIRE_TRY_ASSIGN(PageHome* const home, impl.find_pool(group_index, "take_released"));
  return home->pages.offered->take_released(out);
}

}  // namespace quire
