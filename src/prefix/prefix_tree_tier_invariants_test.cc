// SPDX-License-Identifier: Apache-2.0
//
// What check_invariants() notices of a tree with a host tier: for every rule, a tree in which that one is broken.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "prefix/prefix_tree.h"
#include "testing/prefix_tree_peer.h"
#include "testing/test_tree.h"

namespace quire {
namespace {

using Peer = PrefixTreePeer;
using testing::Forgotten;
using testing::TestTree;
using testing::Tokens;

// Pages of one token:
//
//   root ─┬─ stem 1 2 ─┬─ stays 3 4: on the device, the 3 with a copy, for the 4 one is wanted
//         │            ├─ left 5 6: copied, evict() takes it next
//         │            └─ host 7 8, on the host
//         ├─ upper 10 11 ─ lower 12 13: leaving, the 11 and the 12 are on their way
//         └─ pinned 20 21, on the host, and somebody holds it
class PrefixTreeTierInvariants : public ::testing::Test {
 protected:
  PrefixTreeTierInvariants() {
    put_on_host({20, 21});
    pin_.emplace(tree_->pin_all(tree_.match({20, 21})));
    pinned_ = pin_->value.run();
    put_on_host({1, 2, 7, 8});
    stem_ = host_run({1, 2});
    host_ = host_run({1, 2, 7, 8});
    bring_back({1, 2});

    tree_.add({1, 2, 5, 6});
    left_ = tree_->start_leaving(2);
    for (const PageId page : tree_->pages(left_)) copy(page);
    tree_->end_leaving();

    tree_.add({1, 2, 3, 4});
    tree_.add({10, 11, 12, 13});
    stays_ = tree_.match({1, 2, 3, 4}).run;
    {
      const PrefixTree::Pin held = tree_.pin({1, 2, 3, 4});  // not that
      lower_ = tree_->start_leaving(2);
      upper_ = tree_->start_leaving(2);
    }
    tree_->start_copy(page_of(upper_, 1), next_host_page());
    tree_->start_copy(page_of(lower_, 0), next_host_page());
    copy(page_of(stays_, 0));
    tree_->want_copy(page_of(stays_, 1));
    EXPECT_EQ(tree_.broken_rule(), "");
    EXPECT_EQ(tree_->parent(lower_), upper_);
    EXPECT_EQ(tree_->parent(left_), stem_);
    EXPECT_EQ(tree_->parent(stays_), stem_);
  }

  [[nodiscard]] PrefixTree& tree() { return *tree_; }
  [[nodiscard]] quire::Run& run(RunId id) { return Peer::run(tree(), id); }
  [[nodiscard]] PageId page_of(RunId id, std::uint32_t page) { return tree_->pages(id)[page]; }
  [[nodiscard]] PrefixTree::HostCopy& copy_of(RunId id, std::uint32_t page) {
    return Peer::copy(tree(), page_of(id, page));
  }

  void expect_broken(const std::string& rule) const {
    const std::string found = tree_.broken_rule();
    EXPECT_EQ(found.substr(0, found.find(" (run")), "prefix tree: " + rule) << found;
  }
  /// As if the policies knew it so; what is told of other rules stays right.
  void hide_from_the_device(RunId id) {
    Peer::idle_pages(tree()) -= run(id).page_count;
    Peer::policy(tree()).on_pin(id);
    Peer::last_resident_child(tree(), tree_->parent(id)) = kNoRun;
  }

 private:
  [[nodiscard]] PageId next_host_page() { return PageId{++host_page_}; }
  void copy(PageId device_page) {
    tree_->start_copy(device_page, next_host_page());
    tree_->end_copy(device_page, /*goes_first=*/false);
  }
  void put_on_host(const Tokens& tokens) {
    tree_.add(tokens);
    const RunId run = tree_.match(tokens).run;
    for (const PageId page : tree_->pages(run)) copy(page);
    // In two steps, which makes two runs of a longer one.
    for (std::size_t left = tokens.size(); left > 0; left -= 2) tree_.evict(2);
  }
  [[nodiscard]] RunId host_run(const Tokens& tokens) { return tree_.match(tokens).host_run; }
  void bring_back(const Tokens& tokens) {
    const PrefixTree::Pin held = tree_->pin_all(tree_.match(tokens));
    const std::array<PageId, 2> pages = {PageId{50}, PageId{51}};
    tree_->promote(held.run(), pages);
  }

 protected:
  TestTree tree_{{.page_tokens = 1, .page_count_max = 100, .host_page_count_max = 100}};
  std::optional<Forgotten<PrefixTree::Pin>> pin_;
  std::uint32_t host_page_ = 0;
  RunId stem_;
  RunId stays_;
  RunId left_;
  RunId host_;
  RunId upper_;
  RunId lower_;
  RunId pinned_;
};

// Holds

TEST_F(PrefixTreeTierInvariants, NameAHeldRunWhoseParentIsNotHeldForIt) {
  Peer::host_holds(tree(), host_) = 1;
  expect_broken("a held run's parent is not held for it");
}

TEST_F(PrefixTreeTierInvariants, NameACopyThatIsKeptForARunThatIsNotHeld) {
  copy_of(stays_, 0).is_kept = true;
  expect_broken("a copy is kept for a run that is not held");
}

TEST_F(PrefixTreeTierInvariants, NameAWrongCountOfHeldHostPages) {
  ++Peer::host_held_pages(tree());
  expect_broken("the count of held host pages is wrong");
}

// Paths

TEST_F(PrefixTreeTierInvariants, NameADeviceRunBelowAHostRun) {
  hide_from_the_device(stem_);
  run(stem_).is_on_host = true;
  expect_broken("a device run hangs below a host run");
}

TEST_F(PrefixTreeTierInvariants, NameAChildOnTheDeviceBehindOneThatIsNot) {
  ASSERT_EQ(run(stem_).first_child, stays_.value);
  const RunId second{run(stays_).next_sibling};
  const RunId last{run(stem_).last_child};
  run(stem_).first_child = second.value;
  run(second).previous_sibling = kNoRun;
  run(last).next_sibling = stays_.value;
  run(stays_).previous_sibling = last.value;
  run(stays_).next_sibling = kNoRun;
  run(stem_).last_child = stays_.value;
  expect_broken("a child on the device stands behind one that is not");
}

TEST_F(PrefixTreeTierInvariants, NameAWrongLastChildOnTheDevice) {
  Peer::last_resident_child(tree(), stem_) = kNoRun;
  expect_broken("a run's last child on the device is not the last");
}

// Leaving

TEST_F(PrefixTreeTierInvariants, NameARunThatStaysBelowOneThatLeaves) {
  hide_from_the_device(stem_);
  run(stem_).leaving = Leaving::Copying;
  Peer::leaving_order(tree()).push_back(stem_.value, 0);
  for (const std::uint32_t page : {0, 1}) {
    if (copy_of(stem_, page).state == PrefixTree::Copy::Ready) {
      Peer::page_lists(tree()).remove(page_of(stem_, page).value);
    }
    copy_of(stem_, page).is_held = true;
  }
  expect_broken("a run stays whose parent leaves");
}

TEST_F(PrefixTreeTierInvariants, NameARunThatHasLeftBeforeItsChild) {
  run(upper_).leaving = Leaving::Left;
  expect_broken("a run has left before its child");
}

TEST_F(PrefixTreeTierInvariants, NameALeavingRunThatIsInNoOrder) {
  Peer::leaving_order(tree()).remove(left_.value);
  expect_broken("the order of leaving runs is wrong");
}

TEST_F(PrefixTreeTierInvariants, NameARunThatStaysInTheOrderOfThoseThatLeave) {
  Peer::leaving_order(tree()).push_back(stays_.value, 0);
  expect_broken("the order of leaving runs is wrong");
}

TEST_F(PrefixTreeTierInvariants, NameALeavingRunThatIsGone) {
  Peer::leaving_order(tree()).push_back(tree_.root().value, 0);
  expect_broken("a leaving run is gone");
}

TEST_F(PrefixTreeTierInvariants, NameALeavingRunThatIsPinned) {
  ++run(upper_).pins;
  ++run(tree_.root()).pins;
  expect_broken("a run leaves that cannot");
}

TEST_F(PrefixTreeTierInvariants, NameALeavingRunThatIsSoftlyPinned) {
  ++run(upper_).soft_pins;
  ++run(tree_.root()).soft_pins;
  expect_broken("a run leaves that cannot");
}

TEST_F(PrefixTreeTierInvariants, NameAHostRunThatLeaves) {
  run(pinned_).leaving = Leaving::Copying;
  Peer::leaving_order(tree()).push_back(pinned_.value, 0);
  expect_broken("a run leaves that cannot");
}

// The host

TEST_F(PrefixTreeTierInvariants, NameAHostRunThatIsSoftlyPinned) {
  ++run(pinned_).soft_pins;
  ++run(tree_.root()).soft_pins;
  expect_broken("a host run is softly pinned");
}

TEST_F(PrefixTreeTierInvariants, NameAHostPageThatIsARunsAndACopy) {
  copy_of(stays_, 0).host_page = page_of(host_, 1);
  expect_broken("a host page is held twice");
}

TEST_F(PrefixTreeTierInvariants, NameAHostPageThatIsTheCopyOfTwo) {
  copy_of(stays_, 0).host_page = copy_of(left_, 0).host_page;
  expect_broken("a host page is held twice");
}

TEST_F(PrefixTreeTierInvariants, NameAHostPageThatIsOnItsWayTwice) {
  copy_of(upper_, 1).host_page = copy_of(lower_, 0).host_page;
  expect_broken("a host page is held twice");
}

TEST_F(PrefixTreeTierInvariants, NameAnIdleHostRunThePolicyDoesNotKnow) {
  Peer::host_policy(tree()).on_pin(host_);
  expect_broken("the host policy's order is not the idle host runs");
}

// Copies

TEST_F(PrefixTreeTierInvariants, NameACopyThatIsHeldForARunThatStays) {
  copy_of(stays_, 1).is_held = true;
  expect_broken("a copy is held for a run that stays");
}

TEST_F(PrefixTreeTierInvariants, NameACopyThatIsNotHeldForARunThatLeaves) {
  copy_of(lower_, 0).is_held = false;
  expect_broken("a copy is held for a run that stays");
}

TEST_F(PrefixTreeTierInvariants, NameACopyThatIsInNoList) {
  Peer::page_lists(tree()).remove(page_of(stays_, 0).value);
  expect_broken("a page is in the wrong list of copies");
}

TEST_F(PrefixTreeTierInvariants, NameAWantedCopyThatIsInNoList) {
  Peer::page_lists(tree()).remove(page_of(stays_, 1).value);
  expect_broken("a page is in the wrong list of copies");
}

TEST_F(PrefixTreeTierInvariants, NameACopyOfALeavingRunInAList) {
  Peer::page_lists(tree()).push_back(page_of(left_, 0).value);
  expect_broken("a page is in the wrong list of copies");
}

TEST_F(PrefixTreeTierInvariants, NameAPageInAListThatLeftTheTree) {
  Peer::page_lists(tree()).push_back(99);
  expect_broken("a page that left the tree is in a list of copies");
}

// Counts

TEST_F(PrefixTreeTierInvariants, NameAWrongCountOfIdleHostPages) {
  ++Peer::host_idle_pages(tree());
  expect_broken("the count of idle host pages is wrong");
}

TEST_F(PrefixTreeTierInvariants, NameAWrongCountOfPinnedHostPages) {
  ++Peer::host_pinned_pages(tree());
  expect_broken("the count of pinned host pages is wrong");
}

TEST_F(PrefixTreeTierInvariants, NameAWrongCountOfLeavingPages) {
  ++Peer::leaving_pages(tree());
  expect_broken("the count of leaving pages is wrong");
}

TEST_F(PrefixTreeTierInvariants, NameAWrongCountOfPagesThatHaveLeft) {
  ++Peer::left_pages(tree());
  expect_broken("the count of pages that have left is wrong");
}

TEST_F(PrefixTreeTierInvariants, NameAWrongCountOfCopies) {
  ++Peer::ready_copies(tree());
  expect_broken("the count of copies is wrong");
}

TEST_F(PrefixTreeTierInvariants, NameAWrongCountOfWantedCopies) {
  ++Peer::wanted_copies(tree());
  expect_broken("the count of wanted copies is wrong");
}

TEST_F(PrefixTreeTierInvariants, NameAWrongCountOfCopiesOnTheirWay) {
  ++Peer::storing_copies(tree());
  expect_broken("the count of copies on their way is wrong");
}

}  // namespace
}  // namespace quire
