// SPDX-License-Identifier: Apache-2.0
//
// NameLog and PageNames: alone, and beside a twin that knows every page's whole path and computes each name from its
// tokens anew.
#include "transfer/page_names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using Kind = NameLog::Kind;

constexpr std::uint32_t kPageTokens = 4;
constexpr NameLog::Config kRoomy{
    .page_tokens = kPageTokens, .entry_count_max = 10'000, .page_count_max = 10'000, .extra_key_count_max = 10'000};
constexpr std::array<TokenId, kPageTokens> kFirst = {1, 2, 3, 4};
constexpr std::array<TokenId, kPageTokens> kSecond = {5, 6, 7, 8};

PageNames make_names() {
  return PageNames::create(
             {.page_tokens = kPageTokens, .device_page_count = 9, .host_page_count = 9, .key_space_count_max = 3})
      .value();
}

KeySpace space_called(const std::string& model) {
  return {.model = model};
}

void ignore(const KeySpace& /*key_space*/) {}

/// From nothing but the tokens from the root on.
PageName name_of(const KeySpace& key_space, std::span<const TokenId> tokens,
                 std::span<const ExtraKey> extra_keys = {}) {
  std::vector<PageName> names(tokens.size() / kPageTokens);
  name_pages({.parent = root_name(key_space_name(key_space), kPageTokens),
              .page_tokens = kPageTokens,
              .first_position = 0,
              .tokens = tokens,
              .extra_keys = extra_keys},
             names);
  return names.back();
}

class PageNamesTest : public ::testing::Test {
 protected:
  explicit PageNamesTest(const NameLog::Config& config = kRoomy) : log_(NameLog::create(config).value()) {
    log_.add_key_space(0, space_called("a"));
  }

  void add_first(std::uint32_t page, std::span<const TokenId> tokens = kFirst, std::uint32_t key_space = 0) {
    log_.add_page({.page = PageId{page}, .key_space = key_space, .tokens = tokens});
  }
  void add_second(std::uint32_t page, std::uint32_t parent) {
    log_.add_page({.page = PageId{page}, .parent = PageId{parent}, .page_index = 1, .tokens = kSecond});
  }
  const PageName& device(std::uint32_t page) const { return names_.of(Tier::Device, PageId{page}).name; }
  const PageName& host(std::uint32_t page) const { return names_.of(Tier::Host, PageId{page}).name; }

  NameLog log_;
  PageNames names_ = make_names();
};

TEST_F(PageNamesTest, APageIsCalledByAllThatLiesBeforeIt) {
  add_first(1);
  add_second(2, 1);
  names_.finish(log_, ignore);
  const std::array<TokenId, 8> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(device(1), name_of(space_called("a"), kFirst));
  EXPECT_EQ(device(2), name_of(space_called("a"), tokens));
  const PageNames::Record& record = names_.of(Tier::Device, PageId{2});
  EXPECT_EQ(record.parent, device(1));
  EXPECT_EQ(record.key_space, key_space_name(space_called("a")));
  EXPECT_EQ(record.page_index, 1U);
  EXPECT_EQ(names_.parent_name({.tier = Tier::Device, .page = PageId::none()}, 0),
            root_name(key_space_name(space_called("a")), kPageTokens));
  EXPECT_TRUE(log_.is_empty());
}

TEST_F(PageNamesTest, ACopyHasTheNameThatItsSourceHadThen) {
  add_first(1);
  log_.add_copy(Kind::HostCopy, PageId{3}, PageId{1});
  add_first(1, kSecond);
  log_.add_copy(Kind::DeviceCopy, PageId{2}, PageId{3});
  names_.finish(log_, ignore);
  EXPECT_EQ(host(3), name_of(space_called("a"), kFirst));
  EXPECT_EQ(device(2), name_of(space_called("a"), kFirst));
  EXPECT_EQ(device(1), name_of(space_called("a"), kSecond));
}

TEST_F(PageNamesTest, WhatIsUnnamedGivesNoNameOn) {
  add_first(1);
  log_.add_copy(Kind::HostCopy, PageId{3}, PageId{1});
  log_.add_unnamed(Tier::Device, PageId{1});
  add_second(2, 1);
  log_.add_copy(Kind::HostCopy, PageId{4}, PageId{1});
  log_.add_unnamed(Tier::Host, PageId{3});
  log_.add_copy(Kind::DeviceCopy, PageId{5}, PageId{3});
  names_.finish(log_, ignore);
  for (const std::uint32_t page : {1U, 2U, 5U}) EXPECT_TRUE(device(page).is_none()) << page;
  for (const std::uint32_t page : {3U, 4U}) EXPECT_TRUE(host(page).is_none()) << page;
}

TEST_F(PageNamesTest, SomebodyWhoAsksInBetweenIsToldWhatWasTrueThen) {
  add_first(1);
  log_.add_copy(Kind::HostCopy, PageId{3}, PageId{1});
  const std::uint32_t asked_after = log_.entry_count();
  add_first(2, kSecond);
  log_.add_copy(Kind::HostCopy, PageId{3}, PageId{2});  // the host page is another path's
  names_.follow(log_, asked_after, ignore);
  EXPECT_EQ(host(3), name_of(space_called("a"), kFirst));
  EXPECT_TRUE(device(2).is_none());
  names_.follow(log_, asked_after, ignore);  // asked twice, it goes no further
  EXPECT_EQ(host(3), name_of(space_called("a"), kFirst));
  names_.finish(log_, ignore);
  EXPECT_EQ(host(3), name_of(space_called("a"), kSecond));
}

TEST_F(PageNamesTest, AKeySpaceHasItsIndexFromItsTurnOn) {
  add_first(1);
  log_.add_key_space(0, space_called("b"));
  add_first(2);
  std::vector<std::string> heard;
  names_.finish(log_, [&](const KeySpace& key_space) { heard.push_back(key_space.model); });
  EXPECT_EQ(device(1), name_of(space_called("a"), kFirst));
  EXPECT_EQ(device(2), name_of(space_called("b"), kFirst));
  EXPECT_EQ(heard, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(names_.space(0).name, key_space_name(space_called("b")));
}

TEST_F(PageNamesTest, ALogThatIsTakenOverGoesBehindWhatIsThere) {
  NameLog all = NameLog::create(kRoomy).value();
  add_first(1);
  log_.add_copy(Kind::HostCopy, PageId{3}, PageId{1});
  all.append(log_);
  log_.clear();
  EXPECT_TRUE(log_.is_empty());
  EXPECT_EQ(all.entry_count(), 2U);
  log_.add_key_space(0, space_called("b"));
  add_first(1, kSecond);
  all.append(log_);
  log_.clear();
  names_.finish(all, ignore);
  EXPECT_EQ(host(3), name_of(space_called("a"), kFirst));
  EXPECT_EQ(device(1), name_of(space_called("b"), kSecond));
}

TEST_F(PageNamesTest, DevicePagesMayBecomeMore) {
  log_.set_device_page_count(100);
  EXPECT_FALSE(log_.is_empty());
  add_first(99);
  names_.finish(log_, ignore);
  EXPECT_EQ(device(99), name_of(space_called("a"), kFirst));
}

TEST_F(PageNamesTest, ExtraKeysBelongToThePagesTheyOverlap) {
  const std::vector<ExtraKey> keys = {{.begin = 1, .end = 6, .item = {7}}};  // to the middle of the second page
  log_.add_page({.page = PageId{1}, .tokens = kFirst, .extra_keys = keys});
  log_.add_page({.page = PageId{2}, .parent = PageId{1}, .page_index = 1, .tokens = kSecond, .extra_keys = keys});
  add_first(3);
  names_.finish(log_, ignore);
  const std::array<TokenId, 8> tokens = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(device(1), name_of(space_called("a"), kFirst, keys));
  EXPECT_EQ(device(2), name_of(space_called("a"), tokens, keys));
  EXPECT_EQ(device(3), name_of(space_called("a"), kFirst)) << "its entry has none";
}

class SmallNameLog : public PageNamesTest {
 protected:
  SmallNameLog()
      : PageNamesTest(
            {.page_tokens = kPageTokens, .entry_count_max = 4, .page_count_max = 2, .extra_key_count_max = 1}) {}
};

TEST_F(SmallNameLog, APageWhoseTokensFindNoRoomHasNoName) {
  add_first(1);
  add_first(2, kSecond);
  add_first(3, kSecond);
  log_.add_copy(Kind::HostCopy, PageId{3}, PageId{1});
  EXPECT_EQ(log_.unnamed_page_total(), 1U);
  names_.finish(log_, ignore);
  EXPECT_FALSE(device(1).is_none());
  EXPECT_TRUE(device(3).is_none());
  EXPECT_EQ(host(3), device(1)) << "others are not concerned";
}

TEST_F(SmallNameLog, APageWhoseExtraKeysFindNoRoomHasNoName) {
  const std::vector<ExtraKey> keys = {{.begin = 0, .end = 1, .item = {1}}, {.begin = 1, .end = 2, .item = {2}}};
  log_.add_page({.page = PageId{1}, .tokens = kFirst, .extra_keys = keys});
  log_.add_page({.page = PageId{2}, .tokens = kFirst, .extra_keys = std::span(keys).first(1)});
  names_.finish(log_, ignore);
  EXPECT_TRUE(device(1).is_none());
  EXPECT_EQ(device(2), name_of(space_called("a"), kFirst, std::span(keys).first(1)));
}

TEST_F(SmallNameLog, AfterALossNothingHasANameButWhatComesFromARoot) {
  add_first(1);
  names_.finish(log_, ignore);
  for (std::uint32_t i = 0; i < 5; ++i) log_.add_copy(Kind::HostCopy, PageId{1 + i}, PageId{1});
  log_.add_key_space(1, space_called("b"));  // is not lost
  names_.finish(log_, ignore);
  EXPECT_TRUE(device(1).is_none()) << "the entry that was lost may have been its";
  for (std::uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(host(1 + i).is_none());
  add_second(2, 1);
  add_first(3, kFirst, 1);
  names_.finish(log_, ignore);
  EXPECT_TRUE(device(2).is_none());
  EXPECT_EQ(device(3), name_of(space_called("b"), kFirst));
}

TEST_F(SmallNameLog, WhoAskedBeforeALossIsToldWhatWasTrueThen) {
  add_first(1);
  const std::uint32_t asked_after = log_.entry_count();
  for (std::uint32_t i = 0; i < 5; ++i) log_.add_copy(Kind::HostCopy, PageId{1 + i}, PageId{1});
  names_.follow(log_, asked_after, ignore);
  EXPECT_EQ(device(1), name_of(space_called("a"), kFirst));
  names_.finish(log_, ignore);
  EXPECT_TRUE(device(1).is_none());
}

TEST_F(SmallNameLog, ALogThatIsTakenOverWithoutRoomIsALoss) {
  NameLog all = NameLog::create(kRoomy).value();
  NameLog small = NameLog::create({.page_tokens = kPageTokens, .entry_count_max = 1, .page_count_max = 1}).value();
  small.add_page({.page = PageId{1}, .tokens = kFirst});
  add_first(2);
  small.append(log_);
  log_.clear();  // one more than it takes
  EXPECT_TRUE(log_.is_empty());
  names_.finish(small, ignore);
  EXPECT_TRUE(device(1).is_none());
  EXPECT_TRUE(device(2).is_none());
  EXPECT_EQ(names_.space(0).name, key_space_name(space_called("a")));
  // One that has lost something itself passes that on.
  for (std::uint32_t i = 0; i < 5; ++i) log_.add_copy(Kind::HostCopy, PageId{1}, PageId{1});
  all.add_page({.page = PageId{3}, .tokens = kFirst});
  all.append(log_);
  log_.clear();
  names_.finish(all, ignore);
  EXPECT_TRUE(device(3).is_none());
}

// ── beside a twin ──

/// The engine's thread with its log, the log that the mover has, and the lane of names, as in a DiskMover; and the
/// twin, which knows the path of every page at the time of every plan. Where logs are small, a page may have no name
/// instead, and never another one.
class NamesModel {
 public:
  NamesModel(const NameLog::Config& config, std::uint64_t& named_count)
      : named_count_(named_count),
        may_lose_(config.entry_count_max < kRoomy.entry_count_max),
        engine_(NameLog::create(config).value()),
        shared_(NameLog::create(config).value()),
        work_(NameLog::create(config).value()) {
    now_.device.assign(9, kNoPath);
    now_.host.assign(9, kNoPath);
    for (std::uint32_t index = 0; index < kSpaceCount; ++index) add_key_space(index, index);
    submit();
  }

  std::string apply(const testing::Op& op) {
    const auto& draws = op.draws;
    const std::uint32_t device = draw_page(draws[0], now_.device.size());
    const std::uint32_t host = draw_page(draws[1], now_.host.size());
    switch (op.kind % 18) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
      case 5:
        add_page(device, draw_page(draws[1], now_.device.size()), draws[2], draws[3]);
        return "";
      case 6:
      case 7:
      case 8:
        if (is_busy(host)) return "";
        engine_.add_copy(Kind::HostCopy, PageId{host}, PageId{device});
        now_.host[host] = now_.device[device];
        return "";
      case 9:
      case 10:
        if (is_busy(host)) return "";
        engine_.add_copy(Kind::DeviceCopy, PageId{device}, PageId{host});
        now_.device[device] = now_.host[host];
        return "";
      case 11:
        engine_.add_unnamed(Tier::Device, PageId{device});
        now_.device[device] = kNoPath;
        return "";
      case 12:
        if (is_busy(host)) return "";
        engine_.add_unnamed(Tier::Host, PageId{host});
        now_.host[host] = kNoPath;
        return "";
      case 13:
        add_key_space(draws[0] % kSpaceCount, draws[1] % 4);
        return "";
      case 14:
        if (draws[0] % 8 == 0 && now_.device.size() < 20) {
          now_.device.push_back(kNoPath);
          engine_.set_device_page_count(static_cast<std::uint32_t>(now_.device.size()));
        }
        submit();
        return "";
      case 15:
        submit();
        plans_.push_back({.after_entry_count = shared_.entry_count(), .state = now_});
        return "";
      case 16:
        add_load(host, draws[2]);
        return "";
      default:
        return run_lane();
    }
  }

 private:
  static constexpr std::size_t kNoPath = SIZE_MAX;
  static constexpr std::uint32_t kSpaceCount = 3;
  /// One page of a path, with the name of all of it.
  struct Path {
    std::size_t parent = kNoPath;
    std::uint32_t key_space = 0;
    std::uint64_t made = 0;       // the key space, counted
    std::vector<TokenId> tokens;  // from the root on
    std::vector<ExtraKey> extra_keys;
    PageNames::Record record;
  };
  struct State {
    std::vector<std::size_t> device;  // paths
    std::vector<std::size_t> host;
  };
  struct Plan {
    std::uint32_t after_entry_count = 0;
    State state;
    std::uint32_t host_page = 0;  // of a load
    std::size_t path = kNoPath;
  };
  struct Space {
    KeySpace key_space;
    std::uint64_t made = 0;
  };

  static std::uint32_t draw_page(std::uint32_t draw, std::size_t count) {
    return 1 + (draw % static_cast<std::uint32_t>(count - 1));  // 0 is none
  }

  // A load has the page until the lane has heard of it.
  [[nodiscard]] bool is_busy(std::uint32_t host) const {
    return std::ranges::any_of(plans_, [&](const Plan& plan) { return plan.host_page == host; });
  }

  void add_key_space(std::uint32_t index, std::uint32_t number) {
    spaces_[index] = {.key_space = space_called("model " + std::to_string(number)), .made = ++made_};
    engine_.add_key_space(index, spaces_[index].key_space);
    made_spaces_.push_back(spaces_[index].key_space.model);
  }

  // Behind a page of a key space that is still there, behind one without a name, or at the root.
  void add_page(std::uint32_t page, std::uint32_t parent, std::uint32_t shape, std::uint32_t content) {
    const std::size_t before = now_.device[parent];
    const bool is_first = shape % 4 == 0 || page == parent;
    const bool is_known = !is_first && before != kNoPath;
    if (is_known && spaces_[paths_[before].key_space].made != paths_[before].made) return;
    if (is_known && paths_[before].tokens.size() >= std::size_t{6} * kPageTokens) return;
    Path path;
    if (is_known) path = paths_[before];
    path.parent = is_known ? before : kNoPath;
    if (!is_known) path.key_space = (shape / 4) % kSpaceCount;
    path.made = spaces_[path.key_space].made;
    const auto begin = static_cast<std::uint32_t>(path.tokens.size());
    for (std::uint32_t i = 0; i < kPageTokens; ++i) path.tokens.push_back(static_cast<TokenId>(content >> i & 1U));
    add_extra_keys(path.extra_keys, begin, content / 16);
    std::vector<ExtraKey> own = path.extra_keys;
    std::erase_if(own, [&](const ExtraKey& key) { return key.end <= begin; });
    engine_.add_page({.page = PageId{page},
                      .parent = is_first ? PageId::none() : PageId{parent},
                      .key_space = path.key_space,
                      .page_index = begin / kPageTokens,
                      .tokens = std::span(path.tokens).last(kPageTokens),
                      .extra_keys = own});
    if (!is_first && !is_known) {
      now_.device[page] = kNoPath;
      return;
    }
    const KeySpace& key_space = spaces_[path.key_space].key_space;
    path.record = {.name = name_of(key_space, path.tokens, path.extra_keys),
                   .parent = is_known ? paths_[before].record.name : root_name(key_space_name(key_space), kPageTokens),
                   .key_space = key_space_name(key_space),
                   .page_index = begin / kPageTokens};
    paths_.push_back(std::move(path));
    now_.device[page] = paths_.size() - 1;
  }

  // None, one inside the page, or one that reaches into the next page, if nothing reaches into this one so far.
  static void add_extra_keys(std::vector<ExtraKey>& keys, std::uint32_t begin, std::uint32_t draw) {
    const std::uint32_t first = std::max(begin, keys.empty() ? 0 : keys.back().end) + 1;
    if (draw % 3 != 0 || first >= begin + kPageTokens) return;
    const std::uint32_t end = draw % 2 == 0 ? begin + kPageTokens + 2 : first + 1;
    keys.push_back({.begin = first, .end = end, .item = {static_cast<std::uint8_t>(draw % 5)}});
  }

  void submit() {
    shared_.append(engine_);
    engine_.clear();
    submitted_ = now_;
    submitted_space_count_ = made_spaces_.size();
  }

  // Pages that were found come from below, with the names they were found by.
  void add_load(std::uint32_t host, std::uint32_t draw) {
    if (is_busy(host) || paths_.empty()) return;
    submit();
    const std::size_t path = draw % paths_.size();
    plans_.push_back({.after_entry_count = shared_.entry_count(), .state = now_, .host_page = host, .path = path});
    now_.host[host] = path;
    submitted_ = now_;
  }

  std::string run_lane() {
    std::swap(shared_, work_);
    const auto listen = [this](const KeySpace& key_space) { heard_spaces_.push_back(key_space.model); };
    std::string difference;
    for (const Plan& plan : plans_) {
      names_.follow(work_, plan.after_entry_count, listen);
      if (difference.empty()) difference = compare(plan.state);
      if (plan.path != kNoPath) names_.set_host(PageId{plan.host_page}, paths_[plan.path].record);
    }
    plans_.clear();
    names_.finish(work_, listen);
    if (!difference.empty()) return "as a plan has it: " + difference;
    if (!work_.is_empty()) return "a log that was followed is not empty";
    const auto known = std::span(made_spaces_).first(submitted_space_count_);
    if (!std::ranges::equal(heard_spaces_, known)) return "not all key spaces were heard of, in their order";
    return compare(submitted_);
  }

  std::string compare(const State& state) {
    for (const Tier tier : {Tier::Device, Tier::Host}) {
      const std::vector<std::size_t>& pages = tier == Tier::Host ? state.host : state.device;
      for (std::uint32_t page = 1; page < pages.size(); ++page) {
        const PageNames::Record& record = names_.of(tier, PageId{page});
        const PageNames::Record wanted = pages[page] == kNoPath ? PageNames::Record{} : paths_[pages[page]].record;
        if (record.name.is_none() && (may_lose_ || wanted.name.is_none())) continue;
        ++named_count_;
        const bool is_same = record.name == wanted.name && record.parent == wanted.parent &&
                             record.key_space == wanted.key_space && record.page_index == wanted.page_index;
        if (is_same) continue;
        return std::string(tier == Tier::Host ? "host" : "device") + " page " + std::to_string(page) + " is called " +
               to_hex(record.name).substr(0, 8) + ", not " + to_hex(wanted.name).substr(0, 8);
      }
    }
    return "";
  }

  std::uint64_t& named_count_;
  bool may_lose_;
  NameLog engine_;
  NameLog shared_;
  NameLog work_;
  PageNames names_ = make_names();
  std::vector<Path> paths_;
  State now_;        // as the engine knows it
  State submitted_;  // as the lane of names will
  std::vector<Plan> plans_;
  std::array<Space, kSpaceCount> spaces_;
  std::uint64_t made_ = 0;
  std::vector<std::string> made_spaces_;
  std::size_t submitted_space_count_ = 0;
  std::vector<std::string> heard_spaces_;
};

TEST(PageNamesTwin, EveryPageHasTheNameOfItsPathAtTheTimeOfThePlan) {
  std::uint64_t named_count = 0;
  const auto make_model = [&](testing::Random&) { return NamesModel(kRoomy, named_count); };
  EXPECT_EQ(
      testing::run_seeds(
          {.test = "bin/page_names_test --gtest_filter=PageNamesTwin.Every*", .seed_count = 40, .step_count = 2'000},
          make_model),
      "");
  EXPECT_GT(named_count, 10'000U);
}

TEST(PageNamesTwin, WhereALogOverflowsNoNameIsWrong) {
  std::uint64_t named_count = 0;
  const auto make_model = [&](testing::Random& random) {
    return NamesModel({.page_tokens = kPageTokens,
                       .entry_count_max = 4 + random.below(40),
                       .page_count_max = 1 + random.below(12),
                       .extra_key_count_max = random.below(6)},
                      named_count);
  };
  EXPECT_EQ(
      testing::run_seeds(
          {.test = "bin/page_names_test --gtest_filter=PageNamesTwin.Where*", .seed_count = 80, .step_count = 2'000},
          make_model),
      "");
  EXPECT_GT(named_count, 10'000U) << "some names have to be left";
}

}  // namespace
}  // namespace quire
