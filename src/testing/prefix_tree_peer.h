// SPDX-License-Identifier: Apache-2.0
//
// PrefixTreePeer: lets tests break a prefix tree, to see that check_invariants() notices.
//
// single-threaded
#pragma once

#include <cstdint>
#include <utility>

#include "base/index_lists.h"
#include "prefix/extra_key_lists.h"
#include "prefix/prefix_tree.h"
#include "prefix/run_storage.h"

namespace quire {

/// Reaches what only the tree itself may change.
struct PrefixTreePeer {
  static Run& run(PrefixTree& tree, RunId run) { return tree.runs_[run.value]; }
  static IndexLists& soft_order(PrefixTree& tree) { return tree.soft_; }
  static std::uint32_t& first_free_run(PrefixTree& tree) { return tree.first_free_run_; }
  static std::uint32_t& fresh_run(PrefixTree& tree) { return tree.fresh_run_; }
  static std::uint32_t& run_count(PrefixTree& tree) { return tree.run_count_; }
  static std::uint32_t& root_count(PrefixTree& tree) { return tree.root_count_; }
  static std::uint32_t& idle_pages(PrefixTree& tree) { return tree.idle_pages_; }
  static std::uint32_t& soft_pages(PrefixTree& tree) { return tree.soft_pages_; }
  static std::uint32_t& pinned_pages(PrefixTree& tree) { return tree.pinned_pages_; }
  static Policy& policy(PrefixTree& tree) { return tree.policy_; }

  static void remove_from_bucket(PrefixTree& tree, RunId run) { tree.remove_from_bucket(run.value); }
  static void add_to_bucket(PrefixTree& tree, RunId run) { tree.add_to_bucket(run.value); }
  static void set_page(PrefixTree& tree, RunId run, std::uint32_t page, PageId id) {
    tree.storage_.pages(tree.runs_[run.value])[page] = id;
  }
  /// With the hash that goes with it.
  static void set_first_token(PrefixTree& tree, RunId run, TokenId token) {
    tree.remove_from_bucket(run.value);
    tree.storage_.tokens(tree.runs_[run.value])[0] = token;
    tree.runs_[run.value].key_hash = tree.key_hash_of(run.value);
    tree.add_to_bucket(run.value);
  }
  static ExtraKey& first_extra_key(PrefixTree& tree, RunId run) {
    return tree.extra_keys_.nodes_[tree.runs_[run.value].extra_keys].key;
  }
  static void lose_extra_key(PrefixTree& tree) { static_cast<void>(tree.extra_keys_.take({.begin = 0, .end = 1})); }

  static void set_block_owner(PrefixTree& tree, RunId run, std::uint32_t owner) {
    tree.storage_.header(tree.runs_[run.value].block).owner = owner;
  }
  static std::uint32_t& block_capacity(PrefixTree& tree, RunId run) {
    return tree.storage_.classes_[tree.runs_[run.value].size_class].capacity_pages;
  }
  static std::uint32_t& live_in_slab(PrefixTree& tree, RunId run) {
    return tree.storage_.slabs_[tree.runs_[run.value].block / tree.storage_.slab_units_].live_count;
  }
  static std::uint32_t& live_in_class(PrefixTree& tree, RunId run) {
    return tree.storage_.classes_[tree.runs_[run.value].size_class].live_count;
  }
  static std::uint32_t& used_slabs(PrefixTree& tree) { return tree.storage_.used_slab_count_; }
  static std::uint64_t& used_units(PrefixTree& tree) { return tree.storage_.used_units_; }

  // The host tier's.
  static std::uint32_t& last_resident_child(PrefixTree& tree, RunId run) {
    return tree.tiers_[run.value].last_resident_child;
  }
  static PrefixTree::HostCopy& copy(PrefixTree& tree, PageId device_page) { return tree.copies_[device_page.value]; }
  static IndexLists& page_lists(PrefixTree& tree) { return tree.page_lists_; }
  static IndexLists& leaving_order(PrefixTree& tree) { return tree.leaving_; }
  static Policy& host_policy(PrefixTree& tree) { return *tree.host_policy_; }
  static std::uint32_t& host_idle_pages(PrefixTree& tree) { return tree.host_idle_pages_; }
  static std::uint32_t& host_pinned_pages(PrefixTree& tree) { return tree.host_pinned_pages_; }
  static std::uint32_t& host_held_pages(PrefixTree& tree) { return tree.host_held_pages_; }
  static std::uint32_t& host_holds(PrefixTree& tree, RunId run) { return tree.tiers_[run.value].holds; }
  static std::uint32_t& leaving_pages(PrefixTree& tree) { return tree.leaving_pages_; }
  static std::uint32_t& left_pages(PrefixTree& tree) { return tree.left_pages_; }
  static std::uint32_t& ready_copies(PrefixTree& tree) { return tree.ready_copy_count_; }
  static std::uint32_t& wanted_copies(PrefixTree& tree) { return tree.wanted_count_; }
  static std::uint32_t& storing_copies(PrefixTree& tree) { return tree.storing_count_; }
};

namespace testing {

/// A handle that is not given back: it would trip over a broken tree.
template <typename Handle>
union Forgotten {
  explicit Forgotten(Handle handle) : value(std::move(handle)) {}
  ~Forgotten() {}
  Handle value;
};

}  // namespace testing
}  // namespace quire
