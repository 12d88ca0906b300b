// SPDX-License-Identifier: Apache-2.0
#include "tiers/tier_parts.h"

#include <algorithm>

#include "base/check.h"

namespace quire {

// Transfers

TransferPlan TierParts::plan_of(std::uint32_t transfer) {
  const Transfer& each = book[transfer];
  const TierPages& pages = homes[each.pool]->pages;
  const std::uint32_t bands = std::min<std::uint32_t>(config.host.layer_bands, pages.layer_count);
  return {.id = book.id(transfer),
          .kind = each.kind,
          .priority = each.priority,
          .band_count = each.kind == TransferKind::Load ? static_cast<std::uint16_t>(bands) : std::uint16_t{1},
          .pool_index = pages.mover_pool,
          .pages = book.pages(transfer)};
}

LowerPlan TierParts::lower_plan_of(std::uint32_t transfer) {
  const Transfer& each = book[transfer];
  LowerPlan plan{.id = book.id(transfer),
                 .kind = each.kind,
                 .key_space = each.key_space,
                 .pool = each.pool,
                 .named_in = each.named_in,
                 .pages = book.pages(transfer)};
  if (each.kind == TransferKind::StoreBelow) plan.timeout_ns = lowers[each.lower].settings.store_timeout_ns;
  if (each.search == Transfer::kNone) return plan;
  const Search& search = searches[each.search];
  plan.found_by = search.transfer;
  plan.timeout_ns = time_left(search);
  if (each.kind == TransferKind::LoadFromBelow) return plan;
  const PrefixTree::Key key = searches.key(each.search);
  plan.first_page = search.asked_from;
  plan.tokens = key.tokens.subspan(std::size_t{search.asked_from} * page_tokens);
  plan.extra_keys = key.extra_keys;
  if (search.direct != nullptr) {
    plan.columns = search.direct->columns;
    plan.source = search.direct->source;
    plan.target = search.direct->target;
    plan.anchored = searches.anchored(each.search, page_tokens);
  } else if (groups.empty()) {
    plan.parent = last_page(search.pin);  // the page before those that are asked for: the tier knows its name
    if (lowers[each.lower].tier->makes_room_by_use()) plan.before = list_before(each.search);
  } else {
    plan.held_pages = search.first_page;
    plan.anchored = searches.anchored(each.search, page_tokens);
  }
  return plan;
}

std::span<std::uint64_t> TierParts::anchored_of(std::uint32_t transfer) {
  const Transfer& each = book[transfer];
  return asks_for_path(each.kind) ? searches.anchored(each.search, page_tokens) : std::span<std::uint64_t>();
}

// The last page of each extent that memory has whole.
std::span<const NamedPage> TierParts::list_before(std::uint32_t search_index) {
  const Search& search = searches[search_index];
  const std::uint32_t step = lowers[search.lower].extent_pages;
  const std::span<NamedPage> before = searches.before(search_index).first(search.first_page / step);
  auto left = static_cast<std::uint32_t>(before.size());
  for (RunId run = search.pin.run(); left > 0; run = tree.parent(run)) {
    const std::span<const PageId> pages = tree.pages(run);
    const std::uint32_t begin = tree.end_page(run) - static_cast<std::uint32_t>(pages.size());
    const Tier tier = tree.is_on_host(run) ? Tier::Host : Tier::Device;
    for (; left > 0 && (left * step) - 1 >= begin; --left) {
      before[left - 1] = {.tier = tier, .page = pages[(left * step) - 1 - begin]};
    }
  }
  return before;
}

// A little less than is left: what the tier has by then is to be heard in time.
TimeNs TierParts::time_left(const Search& search) const {
  const TimeNs deadline = std::min(search.deadline, search.tier_deadline);
  if (deadline == INT64_MAX) return 0;
  const TimeNs left = std::max<TimeNs>(0, deadline - now);
  return std::max<TimeNs>(1, left - (left / 16));
}

NamedPage TierParts::last_page(const PrefixTree::Pin& path) const {
  const std::span<const PageId> pages = tree.pages(path.run());
  return {.tier = tree.is_on_host(path.run()) ? Tier::Host : Tier::Device,
          .page = pages.empty() ? PageId::none() : pages.back()};
}

void TierParts::hand_over() {
  if (!name_log.is_empty()) {
    for (Lower& lower : lowers) lower.tier->submit(name_log);
    name_log.clear();
  }
  for (std::size_t i = 0; i < book.queue().size();) {
    const std::uint32_t index = book.queue()[i];
    if (is_of_lower_tier(book[index].kind)) {
      lowers[book[index].lower].tier->submit(lower_plan_of(index));
      book.take(index);
      continue;
    }
    bool is_taken = false;
    if (mover != nullptr) {
      const Result<bool> taken = mover->try_submit(plan_of(index));
      QUIRE_CHECK(taken.has_value(), taken.error().message.c_str());
      is_taken = *taken;
    }
    if (is_taken) {
      book.take(index);
    } else {
      ++i;  // stays queued: the mover's queue for this direction is full, or an external mover takes it
    }
  }
}

void TierParts::call_off(std::uint32_t transfer) {
  if (!book.call_off(transfer)) return;
  if (is_of_lower_tier(book[transfer].kind)) {
    lowers[book[transfer].lower].tier->cancel(book.id(transfer));
  } else if (mover != nullptr) {
    mover->cancel(book.id(transfer));
  } else {
    book.tell_called_off(transfer);
  }
}

PageId TierParts::take_host_page(PageHome& home) {
  for (;;) {
    const PageId page = home.pages.try_take_host();
    if (!page.is_none() || !home.evict_host()) return page;
  }
}

void TierParts::leave_key_space(std::uint32_t index) {
  --key_spaces[index].user_count;
  if (!key_spaces[index].is_retired) return;
  counters.dropped_page_total += history.drop_all(key_spaces[index].root, ResidencyCause::Dropped);
  if (key_spaces[index].user_count == 0) release_key_space(index);
}

void TierParts::release_key_space(std::uint32_t index) {
  tree.remove_root(key_spaces[index].root);
  key_spaces.remove(index);
}

}  // namespace quire
