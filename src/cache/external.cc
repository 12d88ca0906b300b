// SPDX-License-Identifier: Apache-2.0
//
// Cache: engines that hand out device pages themselves and share them by offer and match.
#include <algorithm>

#include "cache/cache_impl.h"
#include "layout/text.h"
#include "quire/cache.h"

namespace quire {

Result<OfferOutcome> Cache::offer(KeySpaceId key_space, const Offer& offer) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::External, "offer"));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(offer.prompt));
  const std::size_t page_count = offer.prompt.tokens.size() / impl.page_tokens;
  if (offer.page_ids.empty() || offer.first_page + offer.page_ids.size() != page_count) {
    return fail(ErrorCode::InvalidArgument, "the path's " + with_separators(offer.prompt.tokens.size()) +
                                                " tokens fill " + with_separators(page_count) + " pages; pages [" +
                                                std::to_string(offer.first_page) + ", " +
                                                std::to_string(offer.first_page + offer.page_ids.size()) +
                                                ") were offered: offer at least one page, up to the last that is full");
  }
  PrefixTree& tree = *impl.tree;
  const PrefixTree::Key key{offer.prompt.tokens.first(page_count * impl.page_tokens), offer.prompt.extra_keys};
  QUIRE_TRY_ASSIGN(const PrefixTree::Match match, impl.match(space, offer.prompt, {}));

  // Marks each page as held, and takes the marks back where one cannot be.
  std::size_t held = 0;
  for (; held < offer.page_ids.size(); ++held) {
    const PageId page = offer.page_ids[held];
    if (page.value >= impl.offered.page_count() || impl.offered.state(page) != OfferedPages::State::Engine) break;
    impl.offered.hold(page);
  }
  const std::size_t duplicates = match.page_count > offer.first_page ? match.page_count - offer.first_page : 0;
  const bool adopts = held == offer.page_ids.size() && match.page_count >= offer.first_page;
  for (std::size_t i = 0; i < (adopts ? duplicates : held); ++i) impl.offered.unhold(offer.page_ids[i]);
  if (held < offer.page_ids.size()) {
    const PageId page = offer.page_ids[held];
    const bool is_known = page.value < impl.offered.page_count();
    const bool is_released = is_known && impl.offered.state(page) == OfferedPages::State::Released;
    return fail(ErrorCode::InvalidArgument,
                "page " + std::to_string(page.value) +
                    (!is_known     ? " is not below device.page_count = " + with_separators(impl.offered.page_count())
                     : is_released ? " was given up, but take_released() has not named it yet"
                                   : " is offered twice: quire holds it already, or it stands twice in this offer"));
  }
  if (!adopts) return OfferOutcome{.prefix_pages = match.page_count};

  const std::span<PageId> pages = std::span(impl.page_scratch).first(offer.page_ids.size() - duplicates);
  std::ranges::copy(offer.page_ids.subspan(duplicates), pages.begin());
  PrefixTree::Pin pin = tree.pin(match);
  const std::uint32_t known = tree.insert(pin, key, pages, {pages}, {.cause = ResidencyCause::Offered});
  QUIRE_CHECK(known == 0, "a page appeared between match and insert");
  impl.key_spaces.touch(space);
  impl.counters.sealed_page_total += pages.size();
  impl.counters.duplicate_page_total += duplicates;
  return OfferOutcome{.prefix_pages = offer.first_page,
                      .duplicate_pages = static_cast<std::uint32_t>(duplicates),
                      .adopted_pages = static_cast<std::uint32_t>(pages.size())};
}

Result<ExternalMatch> Cache::match(KeySpaceId key_space, const Prompt& prompt) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::External, "match"));
  QUIRE_TRY_ASSIGN(const std::uint32_t space, impl.find_key_space(key_space));
  QUIRE_TRY(impl.check_prompt(prompt));
  QUIRE_TRY_ASSIGN(const PrefixTree::Match match, impl.match(space, prompt, {}));
  const std::optional<std::uint32_t> index = impl.sequences.try_add();
  if (!index) {
    return fail(ErrorCode::Unavailable, "all " + with_separators(impl.sequences.capacity()) +
                                            " matches are held; drop one, or raise sequence_count_max");
  }
  SequenceSlot& slot = impl.sequences[*index];
  impl.sequences.set_state(*index, SequenceSlot::State::Holding);
  slot.key_space = space;
  slot.page_count = match.page_count;
  impl.tree->copy_pages(match, 0, impl.sequences.page_row(*index));
  slot.pin = impl.tree->pin(match);
  ++impl.key_spaces[space].user_count;
  impl.key_spaces.touch(space);
  ++impl.counters.begun_sequence_count;
  ++impl.counters.admitted_sequence_count;
  impl.counters.prompt_tokens += prompt.tokens.size();
  impl.counters.hit_tokens += impl.tokens_in(match);
  return ExternalMatch{.sequence = Sequence(impl.release_queue, {*index, slot.generation}),
                       .token_count = impl.tokens_in(match),
                       .pages = impl.sequences.page_row(*index).first(match.page_count)};
}

Result<std::span<PageId>> Cache::take_released(std::span<PageId> out) {
  Impl& impl = *impl_;
  QUIRE_TRY(impl.enter());
  QUIRE_TRY(impl.require(DevicePool::External, "take_released"));
  return impl.offered.take_released(out);
}

}  // namespace quire
