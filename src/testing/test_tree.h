// SPDX-License-Identifier: Apache-2.0
//
// TestTree: a prefix tree with its policy, its log and one key space, in the words unit tests need. Pages are
// numbered in the order they are first needed, from 0, so that a test can name them. Any call that would
// leave the tree inconsistent stops the program at once.
//
// single-threaded
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/residency_log.h"
#include "prefix/prefix_tree.h"
#include "quire/policy.h"
#include "quire/types.h"

namespace quire::testing {

using Tokens = std::vector<TokenId>;
/// Page ids as plain numbers, which tests can write down and compare.
using Pages = std::vector<std::uint32_t>;

/// A prompt that owns what a PrefixTree::Key points to.
struct Prompt {
  Tokens tokens;
  std::vector<ExtraKey> extra_keys;

  [[nodiscard]] PrefixTree::Key key() const { return {.tokens = tokens, .extra_keys = extra_keys}; }
};

/// An item whose hash is `content` in every byte.
[[nodiscard]] ExtraKey extra_key(std::uint32_t begin, std::uint32_t end, std::uint8_t content);

/// begin, begin + 1, …, end - 1.
[[nodiscard]] Tokens token_range(TokenId begin, TokenId end);

/// What most tests of the tree are about: pages of one token, of four, and runs that are evicted as a whole.
inline constexpr PrefixTreeConfig kOneToken{.page_tokens = 1, .page_count_max = 100};
inline constexpr PrefixTreeConfig kFourTokens{.page_tokens = 4, .page_count_max = 100};
inline constexpr PrefixTreeConfig kWholeRuns{.page_tokens = 1, .page_count_max = 100, .whole_runs = true};

class TestTree {
 public:
  /// With the policy lru if none is given, and for host runs.
  explicit TestTree(const PrefixTreeConfig& config, std::unique_ptr<Policy> policy = nullptr);
  TestTree(const TestTree&) = delete;  // The tree points to the log.
  TestTree& operator=(const TestTree&) = delete;

  [[nodiscard]] PrefixTree& operator*() { return *tree_; }
  [[nodiscard]] PrefixTree* operator->() { return tree_.get(); }
  [[nodiscard]] const PrefixTree& operator*() const { return *tree_; }
  [[nodiscard]] const PrefixTree* operator->() const { return tree_.get(); }
  [[nodiscard]] RunId root() const { return root_; }
  [[nodiscard]] Policy& policy() { return *policy_; }

  // Each of these comes in two forms: on the first key space with tokens alone, and on any with a prompt.

  [[nodiscard]] PrefixTree::Match match(const Tokens& tokens) const;
  [[nodiscard]] PrefixTree::Match match(RunId root, const Prompt& prompt) const;
  /// The pages of the match.
  [[nodiscard]] Pages pages_of(const Tokens& tokens) const;
  [[nodiscard]] Pages pages_of(RunId root, const Prompt& prompt) const;
  /// Matches and pins.
  [[nodiscard]] PrefixTree::Pin pin(const Tokens& tokens);
  [[nodiscard]] PrefixTree::Pin pin(RunId root, const Prompt& prompt);
  /// Matches and pins softly.
  [[nodiscard]] PrefixTree::SoftPin soft_pin(const Tokens& tokens);
  /// Matches, pins, and inserts the whole pages that were missing, with new page numbers.
  [[nodiscard]] PrefixTree::Pin insert(const Tokens& tokens);
  [[nodiscard]] PrefixTree::Pin insert(RunId root, const Prompt& prompt);
  /// insert() without keeping the pin.
  void add(const Tokens& tokens);
  void add(RunId root, const Prompt& prompt);

  struct Extension {
    std::uint32_t duplicate_count = 0;
    Pages pages;       ///< the tree's, in place of those that were given
    Pages duplicates;  ///< those of the given that the tree did not take
  };
  /// Continues the path of `pin` to the end of `prompt`, whole pages, with pages numbered from
  /// `first_new_page` on.
  Extension extend(PrefixTree::Pin& pin, const Prompt& prompt, std::uint32_t first_new_page);

  /// What the tree gave up, in order.
  Pages evict(std::uint32_t page_count);
  Pages evict_all(RunId root);
  /// The same, run by run.
  std::vector<Pages> evict_in_runs(std::uint32_t page_count);

  /// Every run with all that can be seen of it, in the tree's own order, and all counts.
  [[nodiscard]] std::string dump() const;
  /// The runs as "tokens:pages" lines, indented by depth, children by their first tokens.
  [[nodiscard]] std::string shape() const { return shape(root_); }
  [[nodiscard]] std::string shape(RunId root) const;
  /// Everything written to the log so far, as "cause run first_page page_count".
  [[nodiscard]] std::vector<std::string> log() const;
  /// "" or the rule that is broken.
  [[nodiscard]] std::string broken_rule() const;

 private:
  void check() const;

  std::unique_ptr<Policy> policy_;
  std::unique_ptr<Policy> host_policy_;  // null: no host tier
  ResidencyLog log_{1024};
  std::unique_ptr<PrefixTree> tree_;
  RunId root_;
  std::uint32_t next_page_ = 0;
};

}  // namespace quire::testing
