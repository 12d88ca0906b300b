// SPDX-License-Identifier: Apache-2.0
#include "tests/transfer/remote_store_contract.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <map>
#include <span>
#include <thread>
#include <vector>

#include "testing/seeded_run.h"

namespace quire {
namespace {

using Bytes = std::vector<std::byte>;

Bytes some_bytes(std::size_t count, std::uint64_t seed) {
  testing::Random random(seed);
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

/// A batch with all that it points to.
class OwnBatch {
 public:
  OwnBatch(std::uint64_t id, RemoteOperation operation) {
    batch.id = id;
    batch.operation = operation;
  }
  OwnBatch(const OwnBatch&) = delete;
  OwnBatch& operator=(const OwnBatch&) = delete;

  OwnBatch& add(const std::string& key) {
    keys_.push_back(key);
    objects.push_back({.key = keys_.back()});
    batch.objects = objects;
    return *this;
  }
  /// The value comes from, or goes to, pieces of these lengths.
  OwnBatch& add(const std::string& key, const Bytes& bytes, const std::vector<std::size_t>& lengths = {}) {
    Value& value = values_.emplace_back(Value{.bytes = bytes, .sources = {}, .targets = {}});
    std::size_t offset = 0;
    for (const std::size_t length : lengths) {
      value.sources.push_back(std::span(value.bytes).subspan(offset, length));
      value.targets.push_back(std::span(value.bytes).subspan(offset, length));
      offset += length;
    }
    value.sources.push_back(std::span(value.bytes).subspan(offset));
    value.targets.push_back(std::span(value.bytes).subspan(offset));
    add(key);
    if (batch.operation == RemoteOperation::Put) objects.back().source = value.sources;
    if (batch.operation == RemoteOperation::Get) objects.back().target = value.targets;
    return *this;
  }
  [[nodiscard]] Bytes& bytes(std::size_t object) { return values_[object].bytes; }
  [[nodiscard]] std::vector<RemoteOutcome> outcomes() const {
    std::vector<RemoteOutcome> outcomes;
    for (const RemoteObject& object : objects) outcomes.push_back(object.outcome);
    return outcomes;
  }

  RemoteBatch batch;
  std::vector<RemoteObject> objects;

 private:
  struct Value {
    Bytes bytes;
    std::vector<std::span<const std::byte>> sources;
    std::vector<std::span<std::byte>> targets;
  };
  std::deque<std::string> keys_;
  std::deque<Value> values_;
};

using Outcomes = std::vector<RemoteOutcome>;
constexpr RemoteOutcome kOk = RemoteOutcome::Ok;
constexpr RemoteOutcome kAbsent = RemoteOutcome::Absent;

/// Answers as they come, until a batch has one. Each other one is counted.
class Answers {
 public:
  explicit Answers(ContractScene& scene) : scene_(scene) {}

  RemoteAnswer of(std::uint64_t id) {
    while (!heard_.contains(id)) {
      scene_.run();
      std::array<RemoteAnswer, 3> room;
      for (const RemoteAnswer& answer : scene_.store().poll(room)) {
        EXPECT_FALSE(heard_.contains(answer.id)) << "batch " << answer.id << " is answered twice";
        heard_[answer.id] = answer;
      }
      std::this_thread::yield();
    }
    return heard_[id];
  }
  [[nodiscard]] std::size_t count() const { return heard_.size(); }

 private:
  ContractScene& scene_;
  std::map<std::uint64_t, RemoteAnswer> heard_;
};

Outcomes run(ContractScene& scene, OwnBatch& batch) {
  EXPECT_TRUE(scene.store().try_submit(batch.batch));
  EXPECT_EQ(Answers(scene).of(batch.batch.id).id, batch.batch.id);
  return batch.outcomes();
}

void put(ContractScene& scene, const std::string& key, const Bytes& bytes) {
  OwnBatch batch(99, RemoteOperation::Put);
  EXPECT_EQ(run(scene, batch.add(key, bytes)), Outcomes{kOk}) << key;
}

TEST_P(RemoteStoreContract, WhatWasPutIsGotPieceByPiece) {
  const Bytes value = some_bytes(10'000, 1);
  OwnBatch puts(1, RemoteOperation::Put);
  EXPECT_EQ(run(*scene_, puts.add("a:1", value, {1, 0, 4096, 17})), Outcomes{kOk});
  for (const std::vector<std::size_t>& lengths :
       {std::vector<std::size_t>{}, std::vector<std::size_t>{5000}, std::vector<std::size_t>(1500, 3)}) {
    OwnBatch gets(2, RemoteOperation::Get);
    EXPECT_EQ(run(*scene_, gets.add("a:1", Bytes(10'000), lengths)), Outcomes{kOk});
    EXPECT_EQ(gets.bytes(0), value);
  }
}

TEST_P(RemoteStoreContract, AnAnswerSaysWhatWasMovedAndHowLongItTook) {
  OwnBatch puts(1, RemoteOperation::Put);
  puts.add("a:1", some_bytes(500, 1)).add("a:2", some_bytes(700, 2));
  ASSERT_TRUE(store().try_submit(puts.batch));
  const RemoteAnswer answer = Answers(*scene_).of(1);
  EXPECT_EQ(answer.moved_bytes, 1200U);
  EXPECT_GT(answer.busy_ns, 0);
  EXPECT_GE(answer.busy_ns, answer.first_byte_ns);
}

TEST_P(RemoteStoreContract, EachObjectHasItsOwnOutcome) {
  const Bytes value = some_bytes(300, 1);
  put(*scene_, "a:1", value);
  put(*scene_, "a:3", value);
  OwnBatch finds(1, RemoteOperation::Find);
  EXPECT_EQ(run(*scene_, finds.add("a:1").add("a:2").add("a:3")), (Outcomes{kOk, kAbsent, kOk}));
  OwnBatch gets(2, RemoteOperation::Get);
  gets.add("a:2", Bytes(300)).add("a:1", Bytes(299)).add("a:3", Bytes(300)).add("a:1", Bytes(301));
  EXPECT_EQ(run(*scene_, gets), (Outcomes{kAbsent, RemoteOutcome::Corrupt, kOk, RemoteOutcome::Corrupt}));
  EXPECT_EQ(gets.bytes(2), value);
  OwnBatch drops(3, RemoteOperation::Drop);
  EXPECT_EQ(run(*scene_, drops.add("a:2").add("a:1")), (Outcomes{kOk, kOk}));
  OwnBatch again(4, RemoteOperation::Find);
  EXPECT_EQ(run(*scene_, again.add("a:1").add("a:3")), (Outcomes{kAbsent, kOk}));
}

TEST_P(RemoteStoreContract, AValueMayBeEmptyOrLarge) {
  put(*scene_, "a:empty", {});
  OwnBatch empty(1, RemoteOperation::Get);
  EXPECT_EQ(run(*scene_, empty.add("a:empty", {})), Outcomes{kOk});
  const Bytes large = some_bytes(3'000'001, 1);
  put(*scene_, "a:large", large);
  OwnBatch gets(2, RemoteOperation::Get);
  EXPECT_EQ(run(*scene_, gets.add("a:large", Bytes(large.size()), {1'000'000})), Outcomes{kOk});
  EXPECT_EQ(gets.bytes(0), large);
}

TEST_P(RemoteStoreContract, OfAPathTheObjectsUpToTheFirstThatIsNotOkAreRight) {
  const Bytes value = some_bytes(100, 1);
  for (const char* const key : {"a:1", "a:2", "a:4"}) put(*scene_, key, value);
  OwnBatch gets(1, RemoteOperation::Get);
  gets.add("a:1", Bytes(100)).add("a:2", Bytes(100)).add("a:3", Bytes(100)).add("a:4", Bytes(100));
  gets.batch.is_path = true;
  const Outcomes outcomes = run(*scene_, gets);
  EXPECT_EQ(outcomes[0], kOk);
  EXPECT_EQ(outcomes[1], kOk);
  EXPECT_EQ(outcomes[2], kAbsent);
  EXPECT_EQ(gets.bytes(1), value);
  // The last may have been tried.
  EXPECT_TRUE(outcomes[3] == RemoteOutcome::NotTried || (outcomes[3] == kOk && gets.bytes(3) == value));
}

TEST_P(RemoteStoreContract, PuttingAValueAgainChangesNothing) {
  const Bytes value = some_bytes(100, 1);
  put(*scene_, "a:1", value);
  put(*scene_, "a:1", value);
  OwnBatch gets(1, RemoteOperation::Get);
  EXPECT_EQ(run(*scene_, gets.add("a:1", Bytes(100))), Outcomes{kOk});
  EXPECT_EQ(gets.bytes(0), value);
}

TEST_P(RemoteStoreContract, WhatIsBelowAPrefixGoesAndNothingElse) {
  const std::vector<std::string> below = {"q:1:ab:x", "q:1:ab:y:z", "q:1:ab:", "q:1:ab:" + std::string(100, 'k')};
  const std::vector<std::string> others = {"q:1:a", "q:1:abc:x", "q:1:b:x", "q:2:ab:x", "r", "q:1:ab"};
  for (const std::string& key : below) put(*scene_, key, some_bytes(10, 1));
  for (const std::string& key : others) put(*scene_, key, some_bytes(10, 1));
  OwnBatch drops(1, RemoteOperation::DropBelow);
  EXPECT_EQ(run(*scene_, drops.add("q:1:ab:").add("nothing:")), (Outcomes{kOk, kOk}));
  const auto expect_all = [&](const std::vector<std::string>& keys, RemoteOutcome wanted) {
    OwnBatch finds(2, RemoteOperation::Find);
    for (const std::string& key : keys) finds.add(key);
    EXPECT_EQ(run(*scene_, finds), Outcomes(keys.size(), wanted));
  };
  expect_all(below, kAbsent);
  expect_all(others, kOk);
  // A prefix may end anywhere.
  OwnBatch more(3, RemoteOperation::DropBelow);
  EXPECT_EQ(run(*scene_, more.add("q:1:a")), Outcomes{kOk});
  expect_all({"q:1:a", "q:1:abc:x", "q:1:ab"}, kAbsent);
  expect_all({"q:1:b:x", "q:2:ab:x", "r"}, kOk);
}

TEST_P(RemoteStoreContract, KeysAreAnyPrintableText) {
  std::vector<std::string> keys = {"/", "//", "/a/b", ".",    "..",    "../x", "%",   "%2F",  "~", "~/",
                                   "*", "?*", "[a]",  "{a}b", "a{b}c", "\\",   "\"'", "$(x)", ":", "::"};
  for (const std::size_t length : {63U, 64U, 65U, 128U, 129U}) keys.emplace_back(length, 'k');
  keys.emplace_back(kRemoteKeyBytesMax, '%');
  keys.push_back(std::string(kRemoteKeyBytesMax - 1, 'k') + ":");
  std::uint64_t seed = 0;
  for (const std::string& key : keys) put(*scene_, key, some_bytes(40, ++seed));
  seed = 0;
  for (const std::string& key : keys) {
    OwnBatch gets(1, RemoteOperation::Get);
    EXPECT_EQ(run(*scene_, gets.add(key, Bytes(40))), Outcomes{kOk}) << key;
    EXPECT_EQ(gets.bytes(0), some_bytes(40, ++seed)) << key;
  }
  // Prefixes are text, and no patterns.
  OwnBatch drops(2, RemoteOperation::DropBelow);
  EXPECT_EQ(run(*scene_, drops.add("[a]").add("*").add("{a")), (Outcomes{kOk, kOk, kOk}));
  OwnBatch finds(3, RemoteOperation::Find);
  finds.add("[a]").add("*").add("{a}b").add("?*").add("a{b}c").add("/").add(std::string(64, 'k'));
  EXPECT_EQ(run(*scene_, finds), (Outcomes{kAbsent, kAbsent, kAbsent, kOk, kOk, kOk, kOk}));
}

TEST_P(RemoteStoreContract, ABatchWhoseTimeIsOverIsAnsweredLate) {
  put(*scene_, "a:1", some_bytes(100, 1));
  for (const RemoteOperation operation : {RemoteOperation::Find, RemoteOperation::Get, RemoteOperation::Put,
                                          RemoteOperation::Drop, RemoteOperation::DropBelow}) {
    OwnBatch batch(1, operation);
    batch.add("a:1", Bytes(100)).add("a:2", Bytes(100));
    batch.batch.timeout_ns = 1;
    ASSERT_TRUE(store().try_submit(batch.batch));
    scene_->pass_time();
    (void)Answers(*scene_).of(1);
    EXPECT_EQ(batch.outcomes(), Outcomes(2, RemoteOutcome::Late)) << static_cast<int>(operation);
  }
}

TEST_P(RemoteStoreContract, ACancelledBatchIsAnsweredOnceAndItsMemoryIsLeftAlone) {
  const Bytes value = some_bytes(100'000, 1);
  put(*scene_, "a:1", value);
  Answers answers(*scene_);
  std::deque<OwnBatch> batches;
  for (std::uint64_t id = 1; id <= 20; ++id) {
    OwnBatch& batch = batches.emplace_back(id, id % 2 == 0 ? RemoteOperation::Get : RemoteOperation::Put);
    for (int i = 0; i < 5; ++i) batch.add("a:1", id % 2 == 0 ? Bytes(value.size()) : value);
    ASSERT_TRUE(store().try_submit(batch.batch));
    store().cancel(id);
    store().cancel(id + 1'000);  // there is none
    (void)answers.of(id);
    store().cancel(id);  // it is over
    for (const RemoteOutcome outcome : batch.outcomes()) {
      EXPECT_TRUE(outcome == kOk || outcome == RemoteOutcome::Late) << to_string(outcome);
    }
    for (int i = 0; i < 5; ++i) std::ranges::fill(batch.bytes(i), std::byte{0xee});
  }
  put(*scene_, "a:2", value);
  for (OwnBatch& batch : batches) {
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(std::ranges::count(batch.bytes(i), std::byte{0xee}), static_cast<std::ptrdiff_t>(value.size()));
    }
  }
  OwnBatch gets(100, RemoteOperation::Get);
  EXPECT_EQ(run(*scene_, gets.add("a:1", Bytes(value.size()))), Outcomes{kOk});
  EXPECT_EQ(gets.bytes(0), value);
}

TEST_P(RemoteStoreContract, AStoreWithoutRoomTakesNothing) {
  constexpr std::uint64_t kManyBatches = 100'000;
  std::deque<OwnBatch> batches;
  std::uint64_t taken = 0;
  for (; taken < kManyBatches; ++taken) {
    OwnBatch& batch = batches.emplace_back(taken + 1, RemoteOperation::Find);
    if (!store().try_submit(batch.add("a:1").batch)) break;
  }
  ASSERT_LT(taken, kManyBatches) << "it takes everything";
  ASSERT_GT(taken, 1U);
  Answers answers(*scene_);
  for (std::uint64_t id = 1; id <= taken; ++id) (void)answers.of(id);
  EXPECT_EQ(answers.count(), taken);
  EXPECT_EQ(batches.back().outcomes(), Outcomes{RemoteOutcome::NotTried});
  OwnBatch again(taken + 1, RemoteOperation::Find);
  EXPECT_EQ(run(*scene_, again.add("a:1")), Outcomes{kAbsent});
}

TEST_P(RemoteStoreContract, TheEventIsThereWhileThereIsSomethingToPoll) {
  if (store().event_fd() < 0) GTEST_SKIP() << "it has none";
  const auto is_readable = [&](int timeout_ms) {
    pollfd fd{.fd = store().event_fd(), .events = POLLIN, .revents = 0};
    return ::poll(&fd, 1, timeout_ms) == 1;
  };
  EXPECT_FALSE(is_readable(0));
  std::deque<OwnBatch> batches;
  for (std::uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(store().try_submit(batches.emplace_back(id, RemoteOperation::Find).add("a:1").batch));
  }
  for (int i = 0; i < 3; ++i) scene_->run();
  std::array<RemoteAnswer, 1> room;
  for (int heard = 0; heard < 3;) {
    ASSERT_TRUE(is_readable(60'000));
    heard += static_cast<int>(store().poll(room).size());
  }
  EXPECT_FALSE(is_readable(0));
}

TEST_P(RemoteStoreContract, BatchesOfSeveralThreadsAreAllAnswered) {
  constexpr std::uint64_t kThreads = 3;
  constexpr std::uint64_t kBatches = 40;
  std::array<std::deque<OwnBatch>, kThreads> batches;
  std::vector<std::thread> threads;
  for (std::uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::uint64_t i = 0; i < kBatches; ++i) {
        const std::uint64_t id = (thread * kBatches) + i + 1;
        OwnBatch& batch = batches[thread].emplace_back(id, RemoteOperation::Put);
        batch.add("t:" + std::to_string(id), some_bytes(200, id));
        while (!store().try_submit(batch.batch)) std::this_thread::yield();
        if (i % 7 == 0) store().cancel(id);
      }
    });
  }
  Answers answers(*scene_);
  for (std::uint64_t id = 1; id <= kThreads * kBatches; ++id) (void)answers.of(id);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answers.count(), kThreads * kBatches);
  for (const auto& of_thread : batches) {
    for (const OwnBatch& batch : of_thread) {
      const bool is_cancelled = (batch.batch.id - 1) % kBatches % 7 == 0;
      if (!is_cancelled) {
        EXPECT_EQ(batch.outcomes(), Outcomes{kOk});
      }
    }
  }
}

// The memory of its batches is free afterwards; the address sanitizer looks.
TEST_P(RemoteStoreContract, DestroyingItEndsWhatIsInFlight) {
  {
    std::deque<OwnBatch> batches;
    for (std::uint64_t id = 1; id <= 10; ++id) {
      OwnBatch& batch = batches.emplace_back(id, RemoteOperation::Put);
      ASSERT_TRUE(store().try_submit(batch.add("a:1", some_bytes(100'000, 1)).batch));
    }
    scene_->close();
  }
  std::this_thread::yield();
}

TEST_P(RemoteStoreContract, MemoryIsRegisteredAndGivenBack) {
  Bytes memory(8192);
  EXPECT_TRUE(store().register_memory(memory).has_value());
  store().unregister_memory(memory);
  EXPECT_GT(store().status().node_count, 0U);
  EXPECT_TRUE(store().status().is_usable);
}

}  // namespace
}  // namespace quire
