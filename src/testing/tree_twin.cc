// SPDX-License-Identifier: Apache-2.0
#include "testing/tree_twin.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <ranges>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace quire::testing {
namespace {

// How many siblings a partial match looks at.
constexpr std::size_t kPartialSiblingsMax = 4;

bool is_same_page(const TreeTwin::Page& a, const TreeTwin::Page& b) {
  return a.tokens == b.tokens && a.extra_keys == b.extra_keys;
}

const ExtraKey* key_at(const std::vector<ExtraKey>& keys, std::uint32_t position) {
  for (const ExtraKey& key : keys) {
    if (key.begin <= position && position < key.end) return &key;
  }
  return nullptr;
}

bool is_same_key(const ExtraKey* a, const ExtraKey* b) {
  return (a == nullptr) == (b == nullptr) && (a == nullptr || *a == *b);
}

}  // namespace

TreeTwin::Label TreeTwin::add_root() {
  runs_.emplace(next_label_, Run{});
  return next_label_++;
}

void TreeTwin::remove_root(Label root) {
  for (auto pin = soft_pins_.begin(); pin != soft_pins_.end();) {
    pin = pin->second == root ? soft_pins_.erase(pin) : std::next(pin);
  }
  runs_.erase(root);
}

TreeTwin::Match TreeTwin::match(Label root, const Prompt& prompt) const {
  Match match{.run = root};
  const auto pages_asked = static_cast<std::uint32_t>(prompt.tokens.size() / config_.page_tokens);
  while (match.pages.size() < pages_asked) {
    const Page page = page_of(prompt, static_cast<std::uint32_t>(match.pages.size()));
    const Run& end = run(match.run);
    if (match.pages_in_run < end.pages.size()) {
      if (!is_same_page(end.pages[match.pages_in_run], page)) break;
    } else {
      const std::optional<Label> child = child_with(match.run, page);
      if (!child) break;
      match.run = *child;
      match.pages_in_run = 0;
    }
    match.pages.push_back(run(match.run).pages[match.pages_in_run].id);
    ++match.pages_in_run;
  }

  const auto position = static_cast<std::uint32_t>(match.pages.size()) * config_.page_tokens;
  const auto consider = [&](Label label, std::uint32_t page) {
    const std::uint32_t tokens = common_tokens(run(label).pages[page], prompt, position);
    if (tokens <= match.partial_tokens) return;
    match.partial_run = label;
    match.partial_page = page;
    match.partial_tokens = tokens;
  };
  if (match.pages_in_run < run(match.run).pages.size()) {
    consider(match.run, match.pages_in_run);
  } else {
    std::vector<Label> siblings = children(match.run);
    siblings.resize(std::min(siblings.size(), kPartialSiblingsMax));
    for (const Label child : siblings) consider(child, 0);
  }
  return match;
}

TreeTwin::PinNumber TreeTwin::pin(const Match& match) {
  Label end = match.run;
  if (match.pages_in_run < run(end).pages.size()) end = split(end, match.pages_in_run);
  const PinNumber pin = pin_run(end);
  ++now_;
  for (std::optional<Label> label = end; label; label = run(*label).parent) runs_.at(*label).front_time = now_;
  return pin;
}

std::pair<TreeTwin::PinNumber, TreeTwin::PinNumber> TreeTwin::pin_with_partial(const Match& match) {
  Label end = match.partial_run.value();
  const PageId page = run(end).pages[match.partial_page].id;
  const PinNumber path = pin(match);
  // By its id: pin() may have split the run in front of it.
  const auto& pages = run(end).pages;
  const auto found = std::ranges::find(pages, page, [](const auto& held) { return held.id; });
  const auto page_count = static_cast<std::uint32_t>(found - pages.begin()) + 1;
  if (page_count < pages.size()) end = split(end, page_count);
  return {path, pin_run(end)};
}

TreeTwin::PinNumber TreeTwin::pin_run(Label run) {
  pins_.emplace(next_pin_, run);
  update_uses();
  return next_pin_++;
}

TreeTwin::PinNumber TreeTwin::pin_prefix(PinNumber pin, std::uint32_t page_count) {
  if (page_count == 0) {
    Label root = run_of_pin(pin);
    for (std::optional<Label> above = run(root).parent; above; above = run(root).parent) root = *above;
    return pin_run(root);
  }
  const Label end = run_on_path(pin, page_count - 1);
  const std::uint32_t pages_in_run = page_count - run(end).first_page;
  return pin_run(pages_in_run < run(end).pages.size() ? split(end, pages_in_run) : end);
}

TreeTwin::Label TreeTwin::run_on_path(PinNumber pin, std::uint32_t page) const {
  Label label = run_of_pin(pin);
  while (run(label).first_page > page) label = run(label).parent.value_or(label);
  return label;
}

void TreeTwin::unpin(PinNumber pin) {
  pins_.erase(pin);
  update_uses();
}

TreeTwin::PinNumber TreeTwin::soft_pin(const Match& match) {
  Label end = match.run;
  if (match.pages_in_run < run(end).pages.size()) end = split(end, match.pages_in_run);
  soft_pins_.emplace(next_pin_, end);
  update_uses();
  // The path is asked for anew, all of it.
  ++now_;
  for (std::optional<Label> label = end; label; label = run(*label).parent) {
    runs_.at(*label).idle_time = now_;
  }
  return next_pin_++;
}

void TreeTwin::drop_soft_pin(PinNumber pin) {
  soft_pins_.erase(pin);
  update_uses();
}

TreeTwin::Insertion TreeTwin::insert(PinNumber pin, const Prompt& prompt, std::vector<PageId> pages) {
  Label end = pins_.at(pin);
  std::uint32_t position = end_page(end);
  Insertion insertion;
  std::size_t i = 0;
  while (i < pages.size()) {
    const std::optional<Label> child = child_with(end, page_of(prompt, position));
    if (!child) break;
    std::uint32_t known = 0;
    while (known < run(*child).pages.size() && i < pages.size() &&
           is_same_page(run(*child).pages[known], page_of(prompt, position))) {
      insertion.duplicates.push_back(pages[i]);
      pages[i] = run(*child).pages[known].id;
      ++i;
      ++position;
      ++known;
    }
    const bool is_whole = known == run(*child).pages.size();
    end = is_whole ? *child : split(*child, known);
    pins_.at(pin) = end;
    if (!is_whole) break;
  }
  update_uses();
  // What the tree does not have: first at the end of the pin's own run, then in new ones.
  bool may_grow = !config_.whole_runs && run(end).parent && children(end).empty() && pin_count(end) == 1;
  for (; i < pages.size(); ++i, ++position) {
    if (!may_grow || run(end).pages.size() == config_.run_pages_max) {
      runs_.emplace(next_label_, Run{.parent = end, .first_page = position, .front_time = ++now_});
      end = next_label_++;
      may_grow = true;
    }
    Page& page = runs_.at(end).pages.emplace_back(page_of(prompt, position));
    page.id = pages[i];
  }
  pins_.at(pin) = end;
  update_uses();
  insertion.pages = std::move(pages);
  return insertion;
}

std::vector<std::vector<PageId>> TreeTwin::evict(std::uint32_t page_count) {
  std::vector<std::vector<PageId>> spans;
  std::size_t evicted = 0;
  while (evicted < page_count) {
    const std::optional<Label> victim = next_victim();
    if (!victim) break;
    std::vector<Page>& pages = runs_.at(*victim).pages;
    const std::size_t count = config_.whole_runs ? pages.size() : std::min(pages.size(), page_count - evicted);
    std::vector<PageId>& span = spans.emplace_back();
    for (std::size_t i = pages.size() - count; i < pages.size(); ++i) span.push_back(pages[i].id);
    pages.resize(pages.size() - count);
    if (pages.empty()) remove_run(*victim);
    evicted += count;
  }
  return spans;
}

std::vector<PageId> TreeTwin::evict_all(Label root) {
  std::vector<Label> idle;
  for (const auto& [label, each] : runs_) {
    if (each.parent && each.use != Use::Pinned && is_below(label, root)) idle.push_back(label);
  }
  std::ranges::sort(idle, std::greater{}, [&](Label label) { return run(label).first_page; });
  std::vector<PageId> evicted;
  for (const Label label : idle) {
    for (const Page& page : run(label).pages) evicted.push_back(page.id);
    remove_run(label);
  }
  return evicted;
}

std::uint32_t TreeTwin::page_count(Use use) const {
  std::size_t count = 0;
  for (const auto& [label, each] : runs_) count += each.use == use ? each.pages.size() : 0;
  return static_cast<std::uint32_t>(count);
}

std::uint32_t TreeTwin::page_count() const {
  return page_count(Use::Pinned) + page_count(Use::Idle) + page_count(Use::SoftlyPinned);
}

std::uint32_t TreeTwin::pin_count(Label label) const {
  std::set<Label> pinned_children;
  std::uint32_t count = 0;
  for (const auto& [number, end] : pins_) {
    if (end == label) ++count;
    for (std::optional<Label> at = end; at; at = run(*at).parent) {
      if (run(*at).parent == label) pinned_children.insert(*at);
    }
  }
  return count + static_cast<std::uint32_t>(pinned_children.size());
}

std::uint32_t TreeTwin::soft_pin_count(Label label) const {
  std::set<Label> pinned_children;
  std::uint32_t count = 0;
  for (const auto& [number, end] : soft_pins_) {
    if (end == label) ++count;
    for (std::optional<Label> at = end; at; at = run(*at).parent) {
      if (run(*at).parent == label) pinned_children.insert(*at);
    }
  }
  return count + static_cast<std::uint32_t>(pinned_children.size());
}

std::vector<TreeTwin::Label> TreeTwin::children(Label label) const {
  std::vector<Label> found;
  for (const auto& [other, each] : runs_) {
    if (each.parent == label) found.push_back(other);
  }
  std::ranges::sort(found, std::greater{}, [&](Label child) { return run(child).front_time; });
  return found;
}

std::uint32_t TreeTwin::end_page(Label label) const {
  return run(label).first_page + static_cast<std::uint32_t>(run(label).pages.size());
}

bool TreeTwin::is_empty(Label root) const {
  return children(root).empty() && pin_count(root) == 0;
}

Prompt TreeTwin::path(Label label) const {
  std::vector<const Run*> runs;
  for (std::optional<Label> at = label; at; at = run(*at).parent) runs.push_back(&run(*at));
  Prompt prompt;
  for (const Run* each : runs | std::views::reverse) {
    for (const Page& page : each->pages) {
      prompt.tokens.insert(prompt.tokens.end(), page.tokens.begin(), page.tokens.end());
      for (const ExtraKey& key : page.extra_keys) {
        if (prompt.extra_keys.empty() || prompt.extra_keys.back() != key) prompt.extra_keys.push_back(key);
      }
    }
  }
  return prompt;
}

TreeTwin::Page TreeTwin::page_of(const Prompt& prompt, std::uint32_t page) const {
  const std::uint32_t begin = page * config_.page_tokens;
  const std::uint32_t end = begin + config_.page_tokens;
  Page made;
  made.tokens.assign(prompt.tokens.begin() + begin, prompt.tokens.begin() + end);
  for (const ExtraKey& key : prompt.extra_keys) {
    if (key.begin < end && key.end > begin) made.extra_keys.push_back(key);
  }
  return made;
}

std::optional<TreeTwin::Label> TreeTwin::child_with(Label label, const Page& page) const {
  for (const auto& [other, each] : runs_) {
    if (each.parent == label && is_same_page(each.pages.front(), page)) return other;
  }
  return std::nullopt;
}

std::uint32_t TreeTwin::common_tokens(const Page& page, const Prompt& prompt, std::uint32_t position) const {
  std::uint32_t common = 0;
  while (common < config_.page_tokens && position + common < prompt.tokens.size() &&
         page.tokens[common] == prompt.tokens[position + common] &&
         is_same_key(key_at(page.extra_keys, position + common), key_at(prompt.extra_keys, position + common))) {
    ++common;
  }
  return common;
}

bool TreeTwin::is_below(Label label, Label ancestor) const {
  for (std::optional<Label> at = label; at; at = run(*at).parent) {
    if (*at == ancestor) return true;
  }
  return false;
}

std::optional<TreeTwin::Label> TreeTwin::next_victim() const {
  const auto order = [&](Label label) {
    const Run& each = run(label);
    return std::tuple(each.use == Use::SoftlyPinned, each.idle_time, UINT32_MAX - each.first_page);
  };
  std::optional<Label> victim;
  for (const auto& [label, each] : runs_) {
    if (!each.parent || each.use == Use::Pinned) continue;
    if (!victim || order(label) < order(*victim)) victim = label;
  }
  QUIRE_CHECK(!victim || children(*victim).empty(), "in this order, leaves go first by themselves");
  return victim;
}

TreeTwin::Label TreeTwin::split(Label label, std::uint32_t page_count) {
  Run& suffix = runs_.at(label);
  Run prefix = suffix;
  prefix.pages.resize(page_count);
  suffix.pages.erase(suffix.pages.begin(), suffix.pages.begin() + page_count);
  suffix.first_page += page_count;
  suffix.parent = next_label_;
  runs_.emplace(next_label_, std::move(prefix));
  return next_label_++;
}

void TreeTwin::remove_run(Label label) {
  for (auto pin = soft_pins_.begin(); pin != soft_pins_.end();) {
    pin = pin->second == label ? soft_pins_.erase(pin) : std::next(pin);
  }
  runs_.erase(label);
  update_uses();
}

void TreeTwin::update_uses() {
  std::map<Label, Use> uses;
  const auto mark = [&](const std::map<PinNumber, Label>& pins, Use use) {
    for (const auto& [number, end] : pins) {
      for (std::optional<Label> at = end; at; at = run(*at).parent) uses[*at] = use;
    }
  };
  mark(soft_pins_, Use::SoftlyPinned);
  mark(pins_, Use::Pinned);
  ++now_;
  for (auto& [label, each] : runs_) {
    const auto marked = uses.find(label);
    const Use use = marked == uses.end() ? Use::Idle : marked->second;
    if (use != each.use && use != Use::Pinned) each.idle_time = now_;
    each.use = use;
  }
}

}  // namespace quire::testing
