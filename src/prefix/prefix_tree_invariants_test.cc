// SPDX-License-Identifier: Apache-2.0
//
// What check_invariants() notices: for every rule, a tree in which that one is broken.
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "testing/prefix_tree_peer.h"
#include "testing/test_tree.h"

namespace quire {

namespace {

using Peer = PrefixTreePeer;
using testing::extra_key;
using testing::Forgotten;
using testing::TestTree;

// Pages of one token:
//
//   root ─ stem 1 2 ─┬─ idle 3 4, with an extra key over the 4
//                    ├─ soft 5 6
//                    └─ pinned 7 8
class PrefixTreeInvariants : public ::testing::Test {
 protected:
  PrefixTreeInvariants() {
    tree_.add(tree_.root(), {.tokens = {1, 2, 3, 4}, .extra_keys = {extra_key(3, 4, 1)}});
    tree_.add({1, 2, 5, 6});
    pin_.emplace(tree_.insert({1, 2, 7, 8}));
    soft_pin_.emplace(tree_.soft_pin({1, 2, 5, 6}));
    stem_ = tree_.match({1, 2}).run;
    idle_ = tree_.match({1, 2, 3}).run;
    soft_ = tree_.match({1, 2, 5, 6}).run;
    pinned_ = pin_->value.run();
    EXPECT_EQ(tree_.broken_rule(), "");
  }

  [[nodiscard]] PrefixTree& tree() { return *tree_; }
  [[nodiscard]] quire::Run& run(RunId id) { return Peer::run(tree(), id); }

  void expect_broken(const std::string& rule) const {
    const std::string found = tree_.broken_rule();
    EXPECT_EQ(found.substr(0, found.find(" (run")), rule) << found;
  }

  TestTree tree_{{.page_tokens = 1, .page_count_max = 100}};
  std::optional<Forgotten<PrefixTree::Pin>> pin_;
  std::optional<Forgotten<PrefixTree::SoftPin>> soft_pin_;
  RunId stem_;
  RunId idle_;
  RunId soft_;
  RunId pinned_;
};

// Links

TEST_F(PrefixTreeInvariants, NameAChildOfSomeoneElse) {
  run(pinned_).parent = tree_.root().value;
  expect_broken("prefix tree: a child does not name its parent");
}

TEST_F(PrefixTreeInvariants, NameAChildThatIsGone) {
  run(idle_).is_live = false;
  expect_broken("prefix tree: a child does not name its parent");
}

TEST_F(PrefixTreeInvariants, NameSiblingsThatAreLinkedOneWay) {
  run(idle_).previous_sibling = kNoRun;
  expect_broken("prefix tree: siblings are not linked both ways");
}

TEST_F(PrefixTreeInvariants, NameARunWhoseLastChildIsAnother) {
  run(stem_).last_child = run(stem_).first_child;
  expect_broken("prefix tree: a run's last child is not the last");
}

TEST_F(PrefixTreeInvariants, NameARunThatItsParentDoesNotList) {
  ASSERT_EQ(run(stem_).first_child, pinned_.value);
  run(stem_).first_child = run(pinned_).next_sibling;
  run(RunId{run(stem_).first_child}).previous_sibling = kNoRun;
  expect_broken("prefix tree: a run is not among its parent's children");
}

TEST_F(PrefixTreeInvariants, NameARunThatDoesNotStartWhereItsParentEnds) {
  run(idle_).first_page = 3;
  expect_broken("prefix tree: a run does not start where its parent ends");
}

TEST_F(PrefixTreeInvariants, NameARunOfAnotherKeySpace) {
  run(idle_).root = idle_.value;
  expect_broken("prefix tree: a run is in another key space than its parent");
}

TEST_F(PrefixTreeInvariants, NameARootWithPages) {
  run(tree_.root()).page_count = 1;
  expect_broken("prefix tree: a root has pages");
}

TEST_F(PrefixTreeInvariants, NameARunWithoutPages) {
  run(idle_).page_count = 0;
  expect_broken("prefix tree: a run's page count is out of range");
}

TEST_F(PrefixTreeInvariants, NameARunThatIsTooLong) {
  run(idle_).page_count = tree_->storage().run_pages_max() + 1;
  expect_broken("prefix tree: a run's page count is out of range");
}

// Pins

TEST_F(PrefixTreeInvariants, NameAParentThatIsNotPinnedForItsChild) {
  run(stem_).pins = 0;
  expect_broken("prefix tree: a pinned run's parent is not pinned for it");
}

TEST_F(PrefixTreeInvariants, NameAParentThatIsNotSoftlyPinnedForItsChild) {
  run(stem_).soft_pins = 0;
  expect_broken("prefix tree: a softly pinned run's parent is not softly pinned for it");
}

TEST_F(PrefixTreeInvariants, NameAPinnedRunInTheSoftOrder) {
  Peer::soft_order(tree()).push_back(pinned_.value);
  expect_broken("prefix tree: a pinned run is in the soft pins' order");
}

TEST_F(PrefixTreeInvariants, NameASoftlyPinnedRunThatIsNotInTheSoftOrder) {
  Peer::soft_order(tree()).remove(soft_.value);
  expect_broken("prefix tree: a softly pinned run is missing from their order");
}

TEST_F(PrefixTreeInvariants, NameAnIdleRunInTheSoftOrder) {
  Peer::soft_order(tree()).push_back(idle_.value);
  expect_broken("prefix tree: a run without soft pins is in their order");
}

TEST_F(PrefixTreeInvariants, NameARootInTheSoftOrder) {
  Peer::soft_order(tree()).push_back(tree_.root().value);
  expect_broken("prefix tree: the soft pins' order has runs that are not softly pinned");
}

TEST_F(PrefixTreeInvariants, NameAnIdleRunThePolicyDoesNotKnow) {
  Peer::policy(tree()).on_pin(idle_);
  expect_broken("prefix tree: the policy's order is not the idle runs");
}

// The child table

TEST_F(PrefixTreeInvariants, NameARunWithAWrongHash) {
  ++run(idle_).key_hash;
  expect_broken("prefix tree: a run's hash is not that of its first page");
}

TEST_F(PrefixTreeInvariants, NameARunThatIsNotInTheChildTable) {
  Peer::remove_from_bucket(tree(), idle_);
  expect_broken("prefix tree: a run is not in the child table exactly once");
}

TEST_F(PrefixTreeInvariants, NameTwoSiblingsWithTheSameFirstPage) {
  Peer::set_first_token(tree(), soft_, 7);
  expect_broken("prefix tree: two siblings have the same first page");
}

// Contents

TEST_F(PrefixTreeInvariants, NameAnExtraKeyOutsideItsRun) {
  Peer::first_extra_key(tree(), idle_) = extra_key(4, 5, 1);
  expect_broken("prefix tree: an extra key lies outside its run or out of order");
}

TEST_F(PrefixTreeInvariants, NameAnExtraKeyThatBelongsToNoRun) {
  Peer::lose_extra_key(tree());
  expect_broken("prefix tree: an extra key belongs to no run");
}

TEST_F(PrefixTreeInvariants, NameAPageThatIsInTheTreeTwice) {
  Peer::set_page(tree(), soft_, 1, PageId{0});
  expect_broken("prefix tree: a page is in the tree twice");
}

// Counts

TEST_F(PrefixTreeInvariants, NameAWrongCountOfRuns) {
  ++Peer::run_count(tree());
  expect_broken("prefix tree: the count of runs is wrong");
}

TEST_F(PrefixTreeInvariants, NameAWrongCountOfRoots) {
  ++Peer::root_count(tree());
  expect_broken("prefix tree: the count of roots is wrong");
}

TEST_F(PrefixTreeInvariants, NameAWrongCountOfPinnedPages) {
  ++Peer::pinned_pages(tree());
  expect_broken("prefix tree: the count of pinned pages is wrong");
}

TEST_F(PrefixTreeInvariants, NameAWrongCountOfSoftlyPinnedPages) {
  ++Peer::soft_pages(tree());
  expect_broken("prefix tree: the count of softly pinned pages is wrong");
}

TEST_F(PrefixTreeInvariants, NameAWrongCountOfIdlePages) {
  ++Peer::idle_pages(tree());
  expect_broken("prefix tree: the count of idle pages is wrong");
}

TEST_F(PrefixTreeInvariants, NameALiveRunInTheFreeList) {
  Peer::first_free_run(tree()) = idle_.value;
  expect_broken("prefix tree: a live run is in the free list");
}

TEST_F(PrefixTreeInvariants, NameARunThatIsNeitherLiveNorFree) {
  ++Peer::fresh_run(tree());
  expect_broken("prefix tree: a run is neither live nor free");
}

TEST_F(PrefixTreeInvariants, NameAFreeListThatGoesInACircle) {
  tree_.evict(2);
  ASSERT_EQ(Peer::first_free_run(tree()), idle_.value);
  run(idle_).parent = idle_.value;
  expect_broken("prefix tree: a run is neither live nor free");
}

// Storage

TEST_F(PrefixTreeInvariants, NameABlockWhoseOwnerHasAnother) {
  Peer::set_block_owner(tree(), idle_, soft_.value);
  expect_broken("run storage: a block's owner does not point back to it");
}

TEST_F(PrefixTreeInvariants, NameABlockThatIsTooSmall) {
  Peer::block_capacity(tree(), idle_) = 1;
  expect_broken("run storage: a run has more pages than its block");
}

TEST_F(PrefixTreeInvariants, NameAWrongCountOfBlocksInASlab) {
  ++Peer::live_in_slab(tree(), idle_);
  expect_broken("run storage: a slab's count of live blocks is wrong");
}

TEST_F(PrefixTreeInvariants, NameAWrongCountOfBlocksInAClass) {
  ++Peer::live_in_class(tree(), idle_);
  expect_broken("run storage: a size class's count of live blocks is wrong");
}

TEST_F(PrefixTreeInvariants, NameAWrongCountOfUsedSlabs) {
  ++Peer::used_slabs(tree());
  expect_broken("run storage: the count of used slabs is wrong");
}

TEST_F(PrefixTreeInvariants, NameAWrongCountOfUsedBytes) {
  ++Peer::used_units(tree());
  expect_broken("run storage: the count of used bytes is wrong");
}

}  // namespace
}  // namespace quire
