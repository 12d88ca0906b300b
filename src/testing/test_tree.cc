// SPDX-License-Identifier: Apache-2.0
#include "testing/test_tree.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "base/check.h"

namespace quire::testing {
namespace {

template <typename Range>
std::string list_text(const Range& items) {
  std::string text;
  for (const auto& item : items) {
    if (!text.empty()) text += ' ';
    if constexpr (requires { item.value; }) {
      text += std::to_string(item.value);
    } else {
      text += std::to_string(item);
    }
  }
  return text;
}

std::string id_text(RunId run) {
  return run.is_none() ? "-" : std::to_string(run.value);
}

void append(Pages& target, std::span<const PageId> pages) {
  for (const PageId page : pages) target.push_back(page.value);
}

}  // namespace

ExtraKey extra_key(std::uint32_t begin, std::uint32_t end, std::uint8_t content) {
  ExtraKey key{.begin = begin, .end = end};
  key.item.fill(content);
  return key;
}

Tokens token_range(TokenId begin, TokenId end) {
  Tokens tokens;
  for (TokenId token = begin; token < end; ++token) tokens.push_back(token);
  return tokens;
}

TestTree::TestTree(const PrefixTreeConfig& config, std::unique_ptr<Policy> policy) : policy_(std::move(policy)) {
  if (policy_ == nullptr) policy_ = *make_policy("lru");
  if (config.host_page_count_max > 0) host_policy_ = *make_policy("lru");
  Result<std::unique_ptr<PrefixTree>> tree = PrefixTree::create(config, *policy_, &log_, host_policy_.get());
  QUIRE_CHECK(tree.has_value(), tree.error().message.c_str());
  tree_ = *std::move(tree);
  root_ = tree_->add_root();
}

PrefixTree::Match TestTree::match(const Tokens& tokens) const {
  return match(root_, {.tokens = tokens, .extra_keys = {}});
}

PrefixTree::Match TestTree::match(RunId root, const Prompt& prompt) const {
  return tree_->match(root, prompt.key());
}

Pages TestTree::pages_of(const Tokens& tokens) const {
  return pages_of(root_, {.tokens = tokens, .extra_keys = {}});
}

Pages TestTree::pages_of(RunId root, const Prompt& prompt) const {
  const PrefixTree::Match found = match(root, prompt);
  std::vector<PageId> pages(found.page_count);
  tree_->copy_pages(found, 0, pages);
  Pages numbers;
  append(numbers, pages);
  return numbers;
}

PrefixTree::Pin TestTree::pin(const Tokens& tokens) {
  return pin(root_, {.tokens = tokens, .extra_keys = {}});
}

PrefixTree::Pin TestTree::pin(RunId root, const Prompt& prompt) {
  PrefixTree::Pin pin = tree_->pin(match(root, prompt));
  check();
  return pin;
}

PrefixTree::SoftPin TestTree::soft_pin(const Tokens& tokens) {
  PrefixTree::SoftPin pin = tree_->soft_pin(match(tokens));
  check();
  return pin;
}

PrefixTree::Pin TestTree::insert(const Tokens& tokens) {
  return insert(root_, {.tokens = tokens, .extra_keys = {}});
}

PrefixTree::Pin TestTree::insert(RunId root, const Prompt& prompt) {
  PrefixTree::Pin inserted = pin(root, prompt);
  const std::uint32_t first_new_page = next_page_;
  const Extension extension = extend(inserted, prompt, first_new_page);
  QUIRE_CHECK(extension.duplicate_count == 0, "what the tree did not match, it does not have");
  next_page_ = first_new_page + static_cast<std::uint32_t>(extension.pages.size());
  return inserted;
}

void TestTree::add(const Tokens& tokens) {
  insert(tokens).reset();
  check();
}

void TestTree::add(RunId root, const Prompt& prompt) {
  insert(root, prompt).reset();
  check();
}

TestTree::Extension TestTree::extend(PrefixTree::Pin& pin, const Prompt& prompt, std::uint32_t first_new_page) {
  const std::size_t whole_page_count = prompt.tokens.size() / tree_->page_tokens();
  const std::uint32_t end_page = tree_->end_page(pin.run());
  QUIRE_CHECK(whole_page_count >= end_page, "the prompt is shorter than the pinned path");
  std::vector<PageId> pages;
  for (std::size_t i = end_page; i < whole_page_count; ++i) {
    pages.push_back(PageId{first_new_page + static_cast<std::uint32_t>(i - end_page)});
  }
  std::vector<PageId> duplicates(pages.size());
  Extension extension{.duplicate_count = tree_->insert(pin, prompt.key(), pages, duplicates)};
  append(extension.pages, pages);
  append(extension.duplicates, std::span(duplicates).first(extension.duplicate_count));
  check();
  return extension;
}

Pages TestTree::evict(std::uint32_t page_count) {
  Pages evicted;
  const std::uint32_t count = tree_->evict(page_count, [&](std::span<const PageId> pages) { append(evicted, pages); });
  QUIRE_CHECK(count == evicted.size(), "evict() returns what it gave up");
  check();
  return evicted;
}

Pages TestTree::evict_all(RunId root) {
  Pages evicted;
  const std::uint32_t count =
      tree_->evict_all(root, ResidencyCause::Dropped, [&](std::span<const PageId> pages) { append(evicted, pages); });
  QUIRE_CHECK(count == evicted.size(), "evict_all() returns what it gave up");
  check();
  return evicted;
}

std::vector<Pages> TestTree::evict_in_runs(std::uint32_t page_count) {
  std::vector<Pages> evicted;
  tree_->evict(page_count, [&](std::span<const PageId> pages) { append(evicted.emplace_back(), pages); });
  check();
  return evicted;
}

std::string TestTree::dump() const {
  std::string text = "idle " + std::to_string(tree_->evictable_pages() - tree_->soft_pinned_pages()) + " soft " +
                     std::to_string(tree_->soft_pinned_pages()) + " pinned " + std::to_string(tree_->pinned_pages()) +
                     " runs " + std::to_string(tree_->run_count()) + "\n";
  tree_->for_each_run(root_, [&](const RunView& run) {
    text += std::string(run.depth, ' ') + "run " + id_text(run.run) + " parent " + id_text(run.parent) + " at " +
            std::to_string(run.first_page) + " pins " + std::to_string(run.pin_count) + " soft " +
            std::to_string(run.soft_pin_count) + " children " + std::to_string(run.child_count) + " tokens [" +
            list_text(run.tokens) + "] pages [" + list_text(run.pages) + "]\n";
  });
  return text;
}

std::string TestTree::shape(RunId root) const {
  // Sorted by whole paths, which puts children below their parents and in the order of their first tokens.
  std::vector<std::pair<Tokens, std::string>> lines;
  std::vector<Tokens> path;
  tree_->for_each_run(root, [&](const RunView& run) {
    if (run.depth == 0) {
      path.assign(1, {});
      return;
    }
    path.resize(run.depth);
    Tokens tokens = path.back();
    tokens.insert(tokens.end(), run.tokens.begin(), run.tokens.end());
    path.push_back(tokens);
    lines.emplace_back(std::move(tokens), std::string(std::size_t{2} * (run.depth - 1), ' ') + list_text(run.tokens) +
                                              ": " + list_text(run.pages) + "\n");
  });
  std::ranges::sort(lines, {}, &std::pair<Tokens, std::string>::first);
  std::string text;
  for (const auto& [tokens, line] : lines) text += line;
  return text;
}

std::vector<std::string> TestTree::log() const {
  std::array<ResidencyRecord, 1024> buffer;
  std::vector<std::string> lines;
  for (const ResidencyRecord& record : log_.read(0, buffer)) {
    lines.push_back(std::string(to_string(record.cause)) + " " + std::to_string(record.run.value) + " " +
                    std::to_string(record.first_page) + " " + std::to_string(record.page_count));
  }
  return lines;
}

std::string TestTree::broken_rule() const {
  const Status status = tree_->check_invariants();
  return status.has_value() ? "" : status.error().message;
}

void TestTree::check() const {
  const Status status = tree_->check_invariants();
  QUIRE_CHECK(status.has_value(), status.error().message.c_str());
}

}  // namespace quire::testing
