// SPDX-License-Identifier: Apache-2.0
//
// The lower tier of a shared store: what is found, fetched, written and refused.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/transfer/remote_mover_fixture.h"
#include "transfer/ranked_tier.h"
#include "wire/extent.h"

namespace quire {
namespace {

using testing::SimRemoteServer;

TEST_F(RemoteMoverTest, WhatIsStoredIsFoundAndLoaded) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 13);
  const Completion stored = store_prompt(engine, prompt);
  EXPECT_EQ(stored.outcome, TransferOutcome::Ok);
  EXPECT_EQ(stored.good_pages, 13U);
  EXPECT_EQ(stored.moved_bytes, 3 * extent_bytes(4, kRemotePageBytes[0]));
  EXPECT_EQ(store_.keys().size(), 3U);  // the last page makes no extent
  EXPECT_EQ(engine.mover->stats().skipped_pages, 1U);
  const Completion found = find(engine, prompt);
  EXPECT_EQ(found.outcome, TransferOutcome::Ok);
  EXPECT_EQ(found.good_pages, 12U);
  const Completion loaded = load(engine, 0, 12);
  EXPECT_EQ(loaded.outcome, TransferOutcome::Ok);
  EXPECT_EQ(loaded.good_pages, 12U);
  EXPECT_EQ(loaded.moved_bytes, 12 * kRemotePageBytes[0]);
  EXPECT_EQ(loaded_fault(engine, prompt, 0, 12), "");
  EXPECT_TRUE(engine.history.is_at_rest());
}

TEST_F(RemoteMoverTest, AnotherProcessFindsWhatOneHasPutUnderOtherPageIds) {
  RemoteEngine& writer = open();
  RemoteEngine& reader = open({.first_page = 37});
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(writer, prompt);
  EXPECT_EQ(find(reader, prompt).good_pages, 8U);
  EXPECT_EQ(load(reader, 0, 8).good_pages, 8U);
  EXPECT_EQ(loaded_fault(reader, prompt, 0, 8), "");
  // And what it goes on with has the right names.
  RemotePrompt longer = prompt;
  const RemotePrompt rest = remote_prompt(2, 4);
  longer.insert(longer.end(), rest.begin(), rest.end());
  reader.put_on_host(longer, 50);
  EXPECT_EQ(end_of(reader, reader.submit_store(3, 50, 12)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(reader.mover->stats().kept_values, 2U);
  EXPECT_EQ(reader.mover->stats().put_values, 1U);
  forget_absent();
  EXPECT_EQ(find(writer, longer).good_pages, 12U);
}

TEST_F(RemoteMoverTest, AnotherLayoutOrSizeOfExtentsOrPrefixIsNeverRead) {
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(open(), prompt);
  for (const RemoteEngineConfig& config : {RemoteEngineConfig{.layout = 2}, RemoteEngineConfig{.extent_pages = 8},
                                           RemoteEngineConfig{.key_prefix = "other"}}) {
    RemoteEngine& other = open(config);
    EXPECT_EQ(find(other, prompt).good_pages, 0U);
    const Completion stored = store_prompt(other, prompt);
    EXPECT_EQ(stored.outcome, TransferOutcome::Ok);
    EXPECT_EQ(other.mover->stats().kept_values, 0U);
    EXPECT_EQ(other.mover->stats().corrupt_values, 0U);
  }
}

TEST_F(RemoteMoverTest, KeysOfAKeySpaceBeginAlikeAndSayWhatTheyAreOf) {
  RemoteEngine& engine = open();
  store_prompt(engine, remote_prompt(1, 4));
  const PageName key_space = key_space_name(KeySpace{.model = "m0"});
  std::array<char, kRemoteKeyBytesMax> room;
  const std::string prefix(write_key_space_prefix("quire", key_space, room));
  ASSERT_EQ(store_.keys().size(), 1U);
  EXPECT_TRUE(store_.keys()[0].starts_with(prefix + "0000000000000001:4:")) << store_.keys()[0];
}

TEST_F(RemoteMoverTest, AHitEndsAtAnExtentsEdge) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(engine, prompt);
  for (std::uint32_t pages = 0; pages <= 12; ++pages) {
    const RemotePrompt part(prompt.begin(), prompt.begin() + std::ptrdiff_t{pages} * kRemotePageTokens);
    EXPECT_EQ(find(engine, part).good_pages, pages / 4 * 4) << pages;
  }
}

// Memory has the beginning, up to anywhere in an extent.
TEST_F(RemoteMoverTest, APathThatBeginsInsideAnExtentIsFoundAndLoadedFromThere) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(engine, prompt);
  for (std::uint32_t first = 1; first <= 11; ++first) {
    SCOPED_TRACE(first);
    EXPECT_EQ(find(engine, prompt, {.first_page = first}).good_pages, 12 - first);
    const Completion loaded = load(engine, 0, 12 - first);
    EXPECT_EQ(loaded.good_pages, 12 - first);
    EXPECT_EQ(loaded_fault(engine, prompt, first, 12 - first), "");
  }
}

TEST_F(RemoteMoverTest, PagesThatMemoryHoldsAreNotCountedAndNeedNotBeThere) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(engine, prompt);
  for (std::uint32_t held = 0; held <= 12; ++held) {
    SCOPED_TRACE(held);
    const Completion found = find(engine, prompt, {.held_pages = held});
    EXPECT_EQ(found.good_pages, 12 - held);
    if (held == 12) break;
    EXPECT_EQ(load(engine, held, 12 - held).good_pages, 12 - held);
    EXPECT_EQ(loaded_fault(engine, prompt, held, 12 - held), "");
  }
  store_.drop_value(store_.keys()[0]);
  EXPECT_EQ(find(engine, prompt, {.held_pages = 12}).outcome, TransferOutcome::Ok);
}

TEST_F(RemoteMoverTest, LoadsMayEndAndGoOnInsideAnExtent) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(engine, prompt);
  (void)find(engine, prompt);
  for (const std::uint32_t cut : {1U, 3U, 6U, 11U}) {
    EXPECT_EQ(load(engine, 0, cut).good_pages, cut);
    EXPECT_EQ(loaded_fault(engine, prompt, 0, cut), "");
    EXPECT_EQ(load(engine, cut, 12 - cut).good_pages, 12 - cut);
    EXPECT_EQ(loaded_fault(engine, prompt, cut, 12 - cut), "");
  }
}

TEST_F(RemoteMoverTest, ALongPathIsDecidedInOneRoundTripAndCountsAsUsed) {
  RemoteEngine& engine = open({.extent_pages = 1});
  const RemotePrompt prompt = remote_prompt(1, 200);
  store_prompt(engine, prompt);
  const std::uint64_t asked = engine.mover->stats().asked_names;
  EXPECT_EQ(find(engine, prompt).good_pages, 200U);
  EXPECT_EQ(engine.mover->stats().asked_names - asked, 9U);  // 1, 2, 4, …, 128, and 200
  // The end is what goes first now.
  const RemotePrompt beginning(prompt.begin(), prompt.begin() + 150 * kRemotePageTokens);
  store_.set_value_count_max(150);
  EXPECT_EQ(find(engine, beginning).good_pages, 150U);
  EXPECT_EQ(load(engine, 0, 16).good_pages, 16U);
}

// As TierAccess::ReadOnly says: pages that turn out to be bad are not found again by this cache.
TEST_F(RemoteMoverTest, ABadValueIsNotFoundAgainByAMoverThatOnlyReads) {
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(open(), prompt);
  damage_values();
  RemoteEngine& reader = open({.is_read_only = true});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(find(reader, prompt).good_pages, 12U) << "it may only have come wrong";
    EXPECT_EQ(load(reader, 0, 12).good_pages, 3U);
    EXPECT_EQ(find(reader, prompt).good_pages, 0U);
    forget_bad();
  }
  const std::uint64_t got = store_.counts().got;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(find(reader, prompt).good_pages, 0U);
    set_now(now_ + 3'600'000'000'000);
  }
  EXPECT_EQ(store_.counts().got, got);
  EXPECT_EQ(store_.keys().size(), 3U);
}

// The drop of a bad value has failed, and the store still has it.
TEST_F(RemoteMoverTest, ABadValueIsWrittenAnewThoughItIsStillThere) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(engine, prompt);
  damage_values();
  EXPECT_EQ(find(engine, prompt).good_pages, 12U);
  const TransferId id = engine.submit_load(2, 1, 0, 12, 100);
  const auto run_mover = [&] {
    while (engine.mover->run()) {
    }
  };
  run_mover();
  while (!engine.heard(id).has_value()) {
    ASSERT_TRUE(store_.run_one());
    run_mover();
  }
  store_.set_node(SimRemoteServer::Node::Failing);
  settle();
  store_.set_node(SimRemoteServer::Node::Up);
  ASSERT_FALSE(store_.keys().empty());  // a drop that fails may have happened all the same
  EXPECT_EQ(find(engine, prompt).good_pages, 0U);
  store_prompt(engine, prompt);
  EXPECT_EQ(engine.mover->stats().kept_values, 0U);
  EXPECT_EQ(find(engine, prompt).good_pages, 12U);
  EXPECT_EQ(load(engine, 0, 12).good_pages, 12U);
}

TEST_F(RemoteMoverTest, AQuestionThatIsCancelledAsksNothingMore) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 400);
  store_prompt(engine, RemotePrompt(prompt.begin(), prompt.begin() + 200 * kRemotePageTokens));
  const TransferId id = engine.submit_find(1, prompt, {});
  while (engine.mover->run()) {
  }
  ASSERT_TRUE(store_.run_one());  // the first names are answered, and nobody has heard it yet
  engine.mover->cancel(id);
  while (engine.mover->run()) {
  }
  EXPECT_TRUE(engine.heard(id).has_value());
  EXPECT_EQ(store_.batch_count(), 0U);
}

// Engines that have the beginning in memory ask for what follows it only.
TEST_F(RemoteMoverTest, TheBeginningOfAPathCountsAsUsedThoughMemoryHasIt) {
  for (const bool tells_before : {true, false}) {
    RemoteEngine& engine = open();
    store_.restart_empty();
    const RemotePrompt prompt = remote_prompt(1, 16);
    store_prompt(engine, prompt);
    store_prompt(engine, remote_prompt(2, 16), 20);
    EXPECT_EQ(find(engine, prompt, {.first_page = 9, .tells_before = tells_before}).good_pages, 7U);
    store_.set_value_count_max(4);
    EXPECT_EQ(find(engine, prompt).good_pages, tells_before ? 16U : 0U);
    store_.set_value_count_max(SIZE_MAX);
  }
}

// Caches with windows or states name the whole path, and say how much of it they hold.
TEST_F(RemoteMoverTest, TheHeldPartOfAPathCountsAsUsedThoughNothingIsFoundBehindIt) {
  for (const std::uint32_t held_pages : {16U, 3U, 0U}) {
    RemoteEngine& engine = open();
    store_.restart_empty();
    const RemotePrompt prompt = remote_prompt(1, 16);
    store_prompt(engine, prompt);
    store_prompt(engine, remote_prompt(2, 16), 20);
    const RemotePrompt held(prompt.begin(), prompt.begin() + std::ptrdiff_t{held_pages} * kRemotePageTokens);
    if (held_pages > 0) {
      EXPECT_EQ(find(engine, held, {.held_pages = held_pages}).good_pages, 0U);
    }
    store_.set_value_count_max(4);
    EXPECT_EQ(find(engine, prompt).good_pages, held_pages == 16 ? 16U : 0U);
    store_.set_value_count_max(SIZE_MAX);
  }
}

TEST_F(RemoteMoverTest, WhereAPathEndsIsAskedForInBetween) {
  for (const std::uint32_t length : {1U, 2U, 3U, 5U, 8U, 9U, 100U, 700U, 1'300U}) {
    SCOPED_TRACE(length);
    RemoteEngine& engine = open({.extent_pages = 1});
    const RemotePrompt prompt = remote_prompt(length, 1'500);
    const RemotePrompt part(prompt.begin(), prompt.begin() + std::ptrdiff_t{length} * kRemotePageTokens);
    for (std::uint32_t first = 0; first < length; first += 16) {
      // The host has no room for all of it: names follow the path.
      const RemotePrompt begin(part.begin(),
                               part.begin() + std::ptrdiff_t{std::min(length, first + 16)} * kRemotePageTokens);
      if (first == 0) engine.put_on_host(begin, 0);
      if (first > 0) break;
      (void)end_of(engine, engine.submit_store(0, 0, std::min(length, 16U)));
    }
    // The rest as a stranger would put it: only its presence is asked for.
    std::vector<PageName> names(length);
    const PageName key_space = key_space_name(KeySpace{.model = "m0"});
    name_pages({.parent = root_name(key_space, kRemotePageTokens),
                .page_tokens = kRemotePageTokens,
                .first_position = 0,
                .tokens = part,
                .extra_keys = {}},
               names);
    std::array<char, kRemoteKeyBytesMax> room;
    for (const PageName& name : names) {
      store_.put_value(
          std::string(write_extent_key(
              {.prefix = "quire", .key_space = key_space, .layout = 1, .page_count = 1, .name = name}, room)),
          {});
    }
    EXPECT_EQ(find(engine, prompt).good_pages, length);
    engines_.clear();
    store_.restart_empty();
  }
}

TEST_F(RemoteMoverTest, WhatWasAbsentAMomentAgoIsNotAskedForAgain) {
  RemoteEngine& reader = open();
  RemoteEngine& writer = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  EXPECT_EQ(find(reader, prompt).outcome, TransferOutcome::Empty);
  const std::uint64_t asked = reader.mover->stats().asked_names;
  store_prompt(writer, prompt);
  EXPECT_EQ(find(reader, prompt).outcome, TransferOutcome::Empty);
  EXPECT_EQ(reader.mover->stats().asked_names, asked);
  EXPECT_EQ(reader.mover->stats().spared_names, 1U);
  set_now(now_ + 1'100'000'000);
  EXPECT_EQ(find(reader, prompt).good_pages, 8U);
}

TEST_F(RemoteMoverTest, PagesOfAGroupAreFoundByTheHistorysNames) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(engine, prompt);
  EXPECT_EQ(end_of(engine, engine.submit_store(0, 5, 3, 1)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(find(engine, prompt, {.has_anchored = true}).good_pages, 8U);
  EXPECT_EQ(engine.anchored(1), (std::vector<std::uint64_t>{0, 0, 0, 0, 0, 1, 1, 1}));
  const Completion loaded = load(engine, 5, 3, 1);
  EXPECT_EQ(loaded.good_pages, 3U);
  for (std::uint32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(engine.window.bytes_of(engine.host_page(100, i)), engine.bytes_of(prompt, 5 + i, 1));
  }
  // Of a path that ends earlier, no more is said.
  const RemotePrompt part(prompt.begin(), prompt.begin() + std::ptrdiff_t{6} * kRemotePageTokens);
  EXPECT_EQ(find(engine, part, {.has_anchored = true}).good_pages, 4U);
  EXPECT_EQ(engine.anchored(1), (std::vector<std::uint64_t>{0, 0, 0, 0, 0, 0}));
}

TEST_F(RemoteMoverTest, AValueThatIsNotRightEndsTheLoadAndIsPutAnew) {
  const RemotePrompt prompt = remote_prompt(1, 12);
  const RemotePrompt stranger = remote_prompt(2, 12);
  RemoteEngine& writer = open();
  store_prompt(writer, stranger);
  const std::vector<std::byte> foreign = store_.value(store_.keys()[0]);
  const auto flip = [](std::size_t byte) {
    return [byte](std::vector<std::byte> value) {
      value[byte] ^= std::byte{1};
      return value;
    };
  };
  struct Case {
    std::string what;
    std::function<std::vector<std::byte>(std::vector<std::byte>)> change;
    std::uint32_t good_pages = 4;  // of the extent that is changed none, or more
    bool is_foreign = false;
  };
  const std::uint64_t headers = extent_headers_bytes(4);
  const std::vector<Case> cases = {
      {.what = "first header", .change = flip(20)},
      {.what = "last header", .change = flip(headers - 3)},
      {.what = "first page", .change = flip(headers)},
      {.what = "third page", .change = flip(headers + (2 * kRemotePageBytes[0]) + 9), .good_pages = 6},
      {.what = "last byte", .change = flip(headers + (4 * kRemotePageBytes[0]) - 1), .good_pages = 7},
      {.what = "shorter",
       .change =
           [](std::vector<std::byte> value) {
             value.pop_back();
             return value;
           }},
      {.what = "longer",
       .change =
           [](std::vector<std::byte> value) {
             value.emplace_back();
             return value;
           }},
      {.what = "empty", .change = [](const std::vector<std::byte>&) { return std::vector<std::byte>{}; }},
      {.what = "foreign", .change = [&](const std::vector<std::byte>&) { return foreign; }, .is_foreign = true},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.what);
    RemoteEngine& engine = open();
    store_.restart_empty();
    store_prompt(engine, prompt);
    // The second extent's key.
    const RemotePrompt part(prompt.begin(), prompt.begin() + std::ptrdiff_t{8} * kRemotePageTokens);
    std::vector<PageName> names(8);
    const PageName key_space = key_space_name(KeySpace{.model = "m0"});
    name_pages({.parent = root_name(key_space, kRemotePageTokens),
                .page_tokens = kRemotePageTokens,
                .first_position = 0,
                .tokens = part,
                .extra_keys = {}},
               names);
    std::array<char, kRemoteKeyBytesMax> room;
    const std::string key(write_extent_key(
        {.prefix = "quire", .key_space = key_space, .layout = 1, .page_count = 4, .name = names[7]}, room));
    ASSERT_FALSE(store_.value(key).empty());
    EXPECT_EQ(find(engine, prompt).good_pages, 12U);
    store_.put_value(key, each.change(store_.value(key)));
    const Completion loaded = load(engine, 0, 12);
    EXPECT_EQ(loaded.outcome, TransferOutcome::Failed);
    EXPECT_EQ(loaded.fault, TransferFault::Checksum);
    EXPECT_EQ(loaded.good_pages, each.good_pages);
    EXPECT_EQ(loaded_fault(engine, prompt, 0, each.good_pages), "");
    EXPECT_FALSE(engine.history.bytes_of(engine.host_page(100, each.good_pages)).has_value());
    EXPECT_EQ(engine.mover->stats().corrupt_values, each.is_foreign ? 0U : 1U);
    EXPECT_EQ(engine.mover->stats().foreign_values, each.is_foreign ? 1U : 0U);
    EXPECT_EQ(std::ranges::count(store_.keys(), key), 1) << "it may only have come wrong";
    EXPECT_TRUE(engine.history.is_at_rest());
    EXPECT_EQ(find(engine, prompt).good_pages, 4U);
    // Whoever has the pages puts them again, however late.
    if (each.is_foreign) forget_bad();
    const std::uint64_t put = store_.counts().put;
    EXPECT_EQ(end_of(engine, engine.submit_store(0, 0, 12)).outcome, TransferOutcome::Ok);
    EXPECT_EQ(store_.counts().put, put + 1);
    EXPECT_EQ(find(engine, prompt).good_pages, 12U);
    EXPECT_EQ(load(engine, 0, 12).good_pages, 12U);
    engines_.pop_back();
  }
}

TEST_F(RemoteMoverTest, AValueThatComesWrongAgainIsDropped) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 4);
  store_prompt(engine, prompt);
  const std::string key = store_.keys()[0];
  const std::vector<std::byte> good = store_.value(key);
  const auto comes_wrong = [&] {
    EXPECT_EQ(find(engine, prompt).good_pages, 4U);
    damage_values();
    EXPECT_LT(load(engine, 0, 4).good_pages, 4U);
  };
  const auto is_there = [&] { return store_.keys().size() == 1; };
  comes_wrong();
  // Others that have found it before prove nothing: they have the same connection.
  EXPECT_LT(load(engine, 0, 4).good_pages, 4U);
  EXPECT_EQ(find(engine, prompt).good_pages, 0U);
  EXPECT_TRUE(is_there());
  forget_bad();
  // One that came right since counts for more than one that came wrong before.
  store_.put_value(key, good);
  EXPECT_EQ(find(engine, prompt).good_pages, 4U);
  EXPECT_EQ(load(engine, 0, 4).good_pages, 4U);
  comes_wrong();
  EXPECT_TRUE(is_there());
  forget_bad();
  // But not when it is another part of the value that came right.
  EXPECT_EQ(find(engine, prompt).good_pages, 4U);
  EXPECT_EQ(load(engine, 0, 3).good_pages, 3U);
  store_.put_value(key, good);
  comes_wrong();
  EXPECT_FALSE(is_there());
  EXPECT_EQ(find(engine, prompt).good_pages, 0U);
  forget_bad();
  EXPECT_EQ(find(engine, prompt).outcome, TransferOutcome::Empty);
  EXPECT_EQ(engine.mover->stats().corrupt_values, 4U);
}

// The same bytes, sealed by somebody who knows the format.
TEST_F(RemoteMoverTest, AValueOfAnotherLayoutOrPlaceUnderTheRightKeyIsForeign) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 4);
  store_prompt(engine, prompt);
  const std::string key = store_.keys()[0];
  const std::vector<std::byte> good = store_.value(key);
  using Change = std::function<void(std::vector<RecordHeader>&)>;
  const std::vector<Change> changes = {
      [](auto& pages) {
        for (RecordHeader& page : pages) page.layout = 2;
      },
      [](auto& pages) {
        for (RecordHeader& page : pages) page.key_space.bytes[0] ^= std::byte{1};
      },
      [](auto& pages) {
        for (RecordHeader& page : pages) page.page_index += 4;
      },
      [](auto& pages) { pages[0].parent.bytes[0] ^= std::byte{1}; },
      [](auto& pages) { pages[3].name.bytes[0] ^= std::byte{1}; },
  };
  std::uint64_t foreign_count = 0;
  for (const Change& change : changes) {
    std::vector<RecordHeader> pages(4);
    ASSERT_TRUE(decode_extent(good, pages));
    change(pages);
    std::vector<std::byte> value = good;
    encode_extent(pages, std::span(value).first(extent_headers_bytes(4)));
    store_.put_value(key, good);
    forget_bad();
    EXPECT_EQ(find(engine, prompt).good_pages, 4U);
    store_.put_value(key, value);
    const Completion loaded = load(engine, 0, 4);
    EXPECT_EQ(loaded.good_pages, 0U);
    EXPECT_EQ(loaded.fault, TransferFault::Checksum);
    EXPECT_EQ(engine.mover->stats().foreign_values, ++foreign_count);
  }
}

TEST_F(RemoteMoverTest, AValueThatIsGoneEndsTheLoad) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(engine, prompt);
  EXPECT_EQ(find(engine, prompt).good_pages, 12U);
  store_.restart_empty();
  const Completion loaded = load(engine, 0, 12);
  EXPECT_EQ(loaded.outcome, TransferOutcome::Failed);
  EXPECT_EQ(loaded.fault, TransferFault::Io);
  EXPECT_EQ(loaded.good_pages, 0U);
  EXPECT_EQ(engine.mover->stats().absent_values, 1U);  // those behind it were not tried
  EXPECT_EQ(find(engine, prompt).outcome, TransferOutcome::Empty);
}

TEST_F(RemoteMoverTest, NothingWaitsLongerThanItsTimeout) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(engine, prompt);
  store_.set_node(SimRemoteServer::Node::Stopped);
  const TransferId question = engine.submit_find(1, prompt, {});
  settle();
  EXPECT_FALSE(engine.heard(question).has_value());
  set_now(now_ + 99'999'999);
  settle();
  EXPECT_FALSE(engine.heard(question).has_value());
  set_now(now_ + 1);
  const Completion found = end_of(engine, question);
  EXPECT_EQ(found.outcome, TransferOutcome::TimedOut);
  EXPECT_EQ(found.fault, TransferFault::None);
  EXPECT_EQ(found.good_pages, 0U);

  store_.set_node(SimRemoteServer::Node::Up);
  EXPECT_EQ(find(engine, prompt).good_pages, 12U);
  store_.set_node(SimRemoteServer::Node::Stopped);
  const TransferId load_id = engine.submit_load(2, 1, 0, 12, 100);
  settle();
  set_now(now_ + 500'000'000);
  const Completion loaded = end_of(engine, load_id);
  EXPECT_EQ(loaded.outcome, TransferOutcome::TimedOut);
  EXPECT_EQ(loaded.fault, TransferFault::None);
  EXPECT_TRUE(engine.history.is_at_rest());
  EXPECT_GT(engine.mover->stats().late_objects, 0U);
}

TEST_F(RemoteMoverTest, ALoadThatAsksTheStoreForNothingIsNotLate) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(engine, prompt);
  (void)find(engine, prompt);
  EXPECT_EQ(load(engine, 0, 8).good_pages, 8U);
  set_now(now_ + 1'000'000'000);
  // Nobody has named the extent that the last two pages are in.
  (void)find(engine, {prompt.begin(), prompt.begin() + std::ptrdiff_t{6} * kRemotePageTokens});
  const Completion loaded = load(engine, 4, 2);
  EXPECT_EQ(loaded.outcome, TransferOutcome::Failed);
  EXPECT_EQ(loaded.fault, TransferFault::Io);
}

TEST_F(RemoteMoverTest, AStoreThatIsFullKeepsAPlanNoLongerThanItsTimeout) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 4);
  store_prompt(engine, prompt);
  store_.set_batch_count_max(0);
  const TransferId late = engine.submit_find(1, prompt, {});
  settle();
  EXPECT_FALSE(engine.heard(late).has_value());
  set_now(now_ + 100'000'000);
  EXPECT_EQ(end_of(engine, late).outcome, TransferOutcome::TimedOut);
  const TransferId in_time = engine.submit_find(1, prompt, {});
  settle();
  store_.set_batch_count_max(1);
  EXPECT_EQ(end_of(engine, in_time).good_pages, 4U);
}

// One node that is away for a minute costs the pages of that minute, and not the tier.
TEST_F(RemoteMoverTest, AStoreThatIsAwayFailsWhatIsAskedOfItAndIsUsedAgain) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_.set_node(SimRemoteServer::Node::Failing);
  const Completion stored = store_prompt(engine, prompt);
  EXPECT_EQ(stored.outcome, TransferOutcome::Failed);
  EXPECT_EQ(stored.fault, TransferFault::Io);
  EXPECT_EQ(stored.good_pages, 0U);
  EXPECT_EQ(find(engine, prompt).outcome, TransferOutcome::Failed);
  EXPECT_FALSE(engine.mover->is_failed(0));
  EXPECT_FALSE(engine.mover->last_error().empty());
  store_.set_node(SimRemoteServer::Node::Up);
  EXPECT_EQ(end_of(engine, engine.submit_store(0, 0, 8)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(find(engine, prompt).good_pages, 8U);
  EXPECT_TRUE(engine.history.is_at_rest());
}

TEST_F(RemoteMoverTest, APutThatIsRefusedFailsItsPagesAndThoseBehindThem) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 16);
  engine.put_on_host(prompt, 0);
  const TransferId id = engine.submit_store(0, 0, 16);
  // Its question is answered, its puts are not.
  while (engine.mover->run()) {
  }
  ASSERT_TRUE(store_.run_one());
  store_.set_node(SimRemoteServer::Node::Failing);
  const Completion stored = end_of(engine, id);
  EXPECT_EQ(stored.outcome, TransferOutcome::Failed);
  EXPECT_EQ(stored.fault, TransferFault::Io);
  EXPECT_EQ(stored.good_pages, 0U);
  EXPECT_EQ(stored.moved_bytes, 0U);
  EXPECT_TRUE(engine.history.is_at_rest());
}

TEST_F(RemoteMoverTest, AHostPageThatIsNotWhatItShouldBeIsNotWritten) {
  for (const bool is_spoilt : {true, false}) {
    RemoteEngine& engine = open();
    store_.restart_empty();
    engine.put_on_host(remote_prompt(1, 12), 0);
    if (is_spoilt) engine.history.spoil(engine.host_page(0, 6));
    if (!is_spoilt) {
      // The page was handed out again.
      std::span<std::byte> bytes;
      const PageTransfer page{.host_page = engine.host_page(0, 6), .host_generation = 9};
      ASSERT_EQ(engine.history.begin_write(page, bytes), TransferFault::None);
      engine.history.end_write(page, std::nullopt);
    }
    const Completion stored = end_of(engine, engine.submit_store(0, 0, 12));
    EXPECT_EQ(stored.outcome, TransferOutcome::Failed);
    EXPECT_EQ(stored.fault, is_spoilt ? TransferFault::Checksum : TransferFault::Generation);
    EXPECT_EQ(stored.good_pages, 6U);
    EXPECT_EQ(store_.keys().size(), 1U);
    EXPECT_TRUE(engine.history.is_at_rest());
  }
}

TEST_F(RemoteMoverTest, AHostPageThatCannotBeWrittenEndsTheLoadInFrontOfIt) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(engine, prompt);
  (void)find(engine, prompt);
  engine.history.refuse(engine.host_page(100, 6));
  const Completion loaded = load(engine, 0, 12);
  EXPECT_EQ(loaded.outcome, TransferOutcome::Failed);
  EXPECT_EQ(loaded.fault, TransferFault::Generation);
  EXPECT_EQ(loaded.good_pages, 6U);
  EXPECT_EQ(loaded_fault(engine, prompt, 0, 6), "");
  EXPECT_TRUE(engine.history.is_at_rest());
}

TEST_F(RemoteMoverTest, OnlyWholeExtentsAreWrittenAndTheRestIsDone) {
  RemoteEngine& engine = open();
  engine.put_on_host(remote_prompt(1, 12), 0);
  const Completion stored = end_of(engine, engine.submit_store(0, 2, 9));  // pages 2 to 10
  EXPECT_EQ(stored.outcome, TransferOutcome::Ok);
  EXPECT_EQ(stored.good_pages, 9U);
  EXPECT_EQ(store_.keys().size(), 1U);
  EXPECT_EQ(engine.mover->stats().skipped_pages, 5U);
  // Pages without a name.
  EXPECT_EQ(end_of(engine, engine.submit_store(0, 60, 4)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(store_.keys().size(), 1U);
}

TEST_F(RemoteMoverTest, WhatIsThereIsNotPutAgain) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(engine, prompt);
  const Completion again = store_prompt(engine, prompt);
  EXPECT_EQ(again.outcome, TransferOutcome::Ok);
  EXPECT_EQ(again.moved_bytes, 0U);
  EXPECT_EQ(store_.counts().put, 2U);
  EXPECT_EQ(engine.mover->stats().kept_values, 2U);
}

TEST_F(RemoteMoverTest, CancellingEndsAQuestionOrALoadThatIsAtTheStore) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  store_prompt(engine, prompt);
  (void)find(engine, prompt);
  store_.set_node(SimRemoteServer::Node::Stopped);
  const TransferId load_id = engine.submit_load(2, 1, 0, 8, 100);
  const TransferId find_id = engine.submit_find(3, prompt, {});
  settle();
  engine.mover->cancel(load_id);
  engine.mover->cancel(find_id);
  engine.mover->cancel({.index = 4, .generation = 9});  // there is none
  settle();
  const auto loaded = engine.heard(load_id);
  const auto found = engine.heard(find_id);
  ASSERT_TRUE(loaded.has_value() && found.has_value());
  EXPECT_EQ(loaded->outcome, TransferOutcome::Cancelled);
  EXPECT_EQ(loaded->good_pages, 0U);
  EXPECT_EQ(found->outcome, TransferOutcome::Cancelled);
  EXPECT_TRUE(engine.history.is_at_rest());
  // Before its turn, too.
  const TransferId early = engine.submit_load(2, 1, 0, 8, 100);
  engine.mover->cancel(early);
  EXPECT_EQ(end_of(engine, early).outcome, TransferOutcome::Cancelled);
}

TEST_F(RemoteMoverTest, DirectCallsMoveWholeExtentsAndPagesOfGroups) {
  RemoteEngine& engine = open();
  for (const std::uint32_t page_count : {3U, 4U, 10U, 40U, 41U}) {  // more than one transfer's
    SCOPED_TRACE(page_count);
    store_.restart_empty();
    forget_absent();
    const RemotePrompt prompt = remote_prompt(page_count, page_count);
    const std::uint32_t whole = page_count / 4 * 4;
    const Completion put = end_of(engine, engine.submit_direct(TransferKind::PutBelow, 5, prompt, 2));
    EXPECT_EQ(put.outcome, TransferOutcome::Ok);
    EXPECT_EQ(put.good_pages, whole);
    const Completion got = end_of(engine, engine.submit_direct(TransferKind::GetFromBelow, 5, prompt, 2));
    EXPECT_EQ(got.outcome, TransferOutcome::Ok);
    EXPECT_EQ(got.good_pages, whole);
    const std::vector<std::byte> wanted = engine.direct_bytes(prompt, 2);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(whole * kRemotePageBytes[0]),
                           engine.bytes(5).begin()));
    const auto columns_there = static_cast<std::size_t>(std::ranges::count(engine.anchored(5), 1U));
    EXPECT_EQ(columns_there, std::min<std::size_t>(2, whole - std::min(whole, page_count - 2)));
    if (whole == page_count) {
      EXPECT_EQ(engine.bytes(5), wanted);
    }
  }
}

TEST_F(RemoteMoverTest, ADirectReadSaysWhatIsDamagedOrAway) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 8);
  (void)end_of(engine, engine.submit_direct(TransferKind::PutBelow, 5, prompt, 1));
  for (const std::string& key : store_.keys()) {
    std::vector<std::byte> value = store_.value(key);
    value.back() ^= std::byte{1};
    store_.put_value(key, value);
  }
  const Completion damaged = end_of(engine, engine.submit_direct(TransferKind::GetFromBelow, 5, prompt, 1));
  EXPECT_EQ(damaged.outcome, TransferOutcome::Failed);
  EXPECT_EQ(damaged.fault, TransferFault::Checksum);
  EXPECT_EQ(damaged.good_pages, 3U);
  store_.restart_empty();
  const Completion absent = end_of(engine, engine.submit_direct(TransferKind::GetFromBelow, 5, prompt, 1));
  EXPECT_EQ(absent.outcome, TransferOutcome::Ok);
  EXPECT_EQ(absent.good_pages, 0U);
  store_.set_node(SimRemoteServer::Node::Failing);
  for (const TransferKind kind : {TransferKind::GetFromBelow, TransferKind::PutBelow}) {
    const Completion away = end_of(engine, engine.submit_direct(kind, 5, prompt, 1));
    EXPECT_EQ(away.outcome, TransferOutcome::Failed);
    EXPECT_EQ(away.fault, TransferFault::Io);
  }
}

TEST_F(RemoteMoverTest, APageCountsWhenTheMoversOfAllShardsFindIt) {
  // Two shards of ranks: the same names, other bytes.
  RemoteEngine& first = open({.layout = 1});
  RemoteEngine& second = open({.layout = 2});
  const std::array<LowerTier*, 2> shards = {first.mover.get(), second.mover.get()};
  auto ranked = RankedTier::open({.transfer_count_max = kRemoteTransfers, .path_pages_max = kRemotePathPages}, shards);
  ASSERT_TRUE(ranked.has_value());
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(first, prompt);
  const RemotePrompt part(prompt.begin(), prompt.begin() + std::ptrdiff_t{8} * kRemotePageTokens);
  store_prompt(second, part);
  LowerPlan plan{.id = {7, 1}, .kind = TransferKind::FindBelow};
  plan.tokens = prompt;
  (*ranked)->submit(plan);
  settle();
  std::array<Completion, 4> room;
  const std::span<Completion> heard = (*ranked)->poll(room);
  ASSERT_EQ(heard.size(), 1U);
  EXPECT_EQ(heard[0].good_pages, 8U);
  EXPECT_EQ(heard[0].outcome, TransferOutcome::Ok);
}

TEST_F(RemoteMoverTest, ClosingEndsWhatIsAtTheStore) {
  RemoteEngine& engine = open();
  const RemotePrompt prompt = remote_prompt(1, 12);
  store_prompt(engine, prompt);
  (void)find(engine, prompt);
  store_.set_node(SimRemoteServer::Node::Stopped);
  (void)engine.submit_load(2, 1, 0, 12, 100);
  (void)engine.submit_find(3, prompt, {});
  (void)engine.submit_store(4, 0, 12);
  (void)engine.submit_direct(TransferKind::PutBelow, 5, prompt, 1);
  (void)engine.submit_drop(6, 0);
  settle();
  EXPECT_GT(store_.batch_count(), 0U);
  engine.mover.reset();
  EXPECT_EQ(store_.batch_count(), 0U);
  EXPECT_TRUE(engine.history.is_at_rest());
  engines_.clear();
}

// A store that knows its memory, and may have room for a part of it only.
class RegisteringStore final : public RemoteStore {
 public:
  RegisteringStore(RemoteStore& store, std::size_t room) : store_(store), room_(room) {}
  [[nodiscard]] Status register_memory(std::span<std::byte> memory) override {
    if (registered.size() == room_) return fail(ErrorCode::Unavailable, "no room for more memory");
    registered.push_back(memory.data());
    return {};
  }
  void unregister_memory(std::span<std::byte> memory) override {
    EXPECT_EQ(std::erase(registered, memory.data()), 1U) << "it was never registered";
  }
  [[nodiscard]] bool try_submit(const RemoteBatch& batch) override { return store_.try_submit(batch); }
  void cancel(std::uint64_t id) override { store_.cancel(id); }
  [[nodiscard]] std::span<RemoteAnswer> poll(std::span<RemoteAnswer> out) override { return store_.poll(out); }
  [[nodiscard]] int event_fd() const override { return store_.event_fd(); }
  [[nodiscard]] RemoteStatus status() const override { return store_.status(); }

  std::vector<std::byte*> registered;

 private:
  RemoteStore& store_;
  std::size_t room_;
};

TEST_F(RemoteMoverTest, MemoryThatTheStoreHasNotTakenIsNotTakenFromIt) {
  RemoteHost host(0);
  const std::array<HostPages*, 1> hosts = {&host};
  for (const std::size_t room : {0U, 1U, 2U}) {
    testing::SimRemoteStore store(store_);
    RegisteringStore registering(store, room);
    const auto mover = RemoteMover::open({.names = {.page_tokens = kRemotePageTokens,
                                                    .device_page_count = 1,
                                                    .host_page_count = 1,
                                                    .key_space_count_max = 1},
                                          .log = RemoteEngine::log_config(),
                                          .pools = {{.layout = {.page_bytes = 64, .hash = 1}, .extent_pages = 4}},
                                          .transfer_count_max = 1,
                                          .transfer_pages_max = 4,
                                          .path_pages_max = 8,
                                          .has_threads = false,
                                          .clock = {},
                                          .unix_time = {}},
                                         registering, hosts);
    EXPECT_EQ(mover.has_value(), room == 2);
    EXPECT_EQ(registering.registered.size(), mover ? 2U : 0U);
  }
}

TEST_F(RemoteMoverTest, SettingsThatCannotWorkAreRefused) {
  RemoteHost host(0);
  const std::array<HostPages*, 2> hosts = {&host, &host};
  const auto error_of = [&](auto change) {
    RemoteMover::Config config{.names = {.page_tokens = kRemotePageTokens,
                                         .device_page_count = 1,
                                         .host_page_count = 1,
                                         .key_space_count_max = 1},
                               .log = RemoteEngine::log_config(),
                               .pools = {{.layout = {.page_bytes = 64, .hash = 1}, .extent_pages = 4},
                                         {.layout = {.page_bytes = 64, .hash = 2}}},
                               .transfer_count_max = 1,
                               .transfer_pages_max = 4,
                               .path_pages_max = 8,
                               .has_threads = false,
                               .clock = {},
                               .unix_time = {}};
    change(config);
    testing::SimRemoteStore store(store_);
    const auto mover = RemoteMover::open(config, store, hosts);
    return mover.has_value() ? "" : mover.error().message;
  };
  EXPECT_EQ(error_of([](auto&) {}), "");
  EXPECT_NE(error_of([](auto& config) { config.key_prefix = ""; }).find("key prefix"), std::string::npos);
  EXPECT_NE(error_of([](auto& config) { config.key_prefix = "a b"; }).find("key prefix"), std::string::npos);
  EXPECT_NE(error_of([](auto& config) { config.key_prefix.assign(129, 'a'); }).find("128"), std::string::npos);
  EXPECT_NE(error_of([](auto& config) { config.pools[0].extent_pages = 5; }).find("extents of 5"), std::string::npos);
  EXPECT_NE(error_of([](auto& config) { config.pools[0].extent_pages = 0; }).find("extents of 0"), std::string::npos);
  EXPECT_NE(error_of([](auto& config) { config.pools[1].layout.hash = 1; }).find("same layout"), std::string::npos);
}

}  // namespace
}  // namespace quire
