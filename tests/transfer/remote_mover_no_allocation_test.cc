// SPDX-License-Identifier: Apache-2.0
//
// After open() a remote mover allocates nothing for plans, whether what they ask for is there or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>

#include "tests/cache/allocation_counter.h"
#include "tests/transfer/remote_mover_fixture.h"

namespace quire {
namespace {

/// Does at once what it is told, in memory that it has from the beginning.
class PromptStore final : public RemoteStore {
 public:
  [[nodiscard]] Status register_memory(std::span<std::byte> /*memory*/) override { return {}; }
  void unregister_memory(std::span<std::byte> /*memory*/) override {}
  [[nodiscard]] bool try_submit(const RemoteBatch& batch) override {
    if (answer_count_ == answers_.size()) return false;
    for (RemoteObject& object : batch.objects) object.outcome = run(batch.operation, object);
    answers_[answer_count_++] = {.id = batch.id, .busy_ns = 1};
    return true;
  }
  void cancel(std::uint64_t /*id*/) override {}
  [[nodiscard]] std::span<RemoteAnswer> poll(std::span<RemoteAnswer> out) override {
    if (answer_count_ == 0) return {};
    out[0] = answers_[--answer_count_];
    return out.first(1);
  }
  [[nodiscard]] int event_fd() const override { return -1; }
  [[nodiscard]] RemoteStatus status() const override { return {.node_count = 1}; }

 private:
  struct Value {
    std::array<char, kRemoteKeyBytesMax> key{};
    std::size_t key_bytes = 0;
    std::array<std::byte, 4096> bytes{};
  };

  [[nodiscard]] RemoteOutcome run(RemoteOperation operation, const RemoteObject& object) {
    const auto is_it = [&](const Value& value) {
      return value.key_bytes > 0 && object.key == std::string_view(value.key.data(), value.key_bytes);
    };
    auto value = std::ranges::find_if(values_, is_it);
    if (operation == RemoteOperation::DropBelow) {
      for (Value& each : values_) each.key_bytes = 0;
      return RemoteOutcome::Ok;
    }
    if (operation == RemoteOperation::Put) {
      Value& put = values_[next_++ % values_.size()];
      std::ranges::copy(object.key, put.key.begin());
      put.key_bytes = object.key.size();
      std::size_t offset = 0;
      for (const std::span<const std::byte> piece : object.source) {
        std::ranges::copy(piece, put.bytes.begin() + static_cast<std::ptrdiff_t>(offset));
        offset += piece.size();
      }
      return RemoteOutcome::Ok;
    }
    if (value == values_.end()) return RemoteOutcome::Absent;
    if (operation == RemoteOperation::Drop) value->key_bytes = 0;
    std::size_t offset = 0;
    for (const std::span<std::byte> piece : object.target) {
      std::memcpy(piece.data(), value->bytes.data() + offset, piece.size());
      offset += piece.size();
    }
    return RemoteOutcome::Ok;
  }

  std::array<Value, 16> values_;
  std::size_t next_ = 0;
  std::array<RemoteAnswer, 16> answers_;
  std::size_t answer_count_ = 0;
};

TEST(RemoteMoverNoAllocation, PlansDoNotAllocate) {
  TimeNs now_ns = 1;
  const auto store = std::make_unique<PromptStore>();
  RemoteEngine engine(*store, {}, &now_ns);
  engine.completions.reserve(kRemoteTransfers);
  std::vector<RemotePrompt> prompts;
  for (std::uint32_t i = 0; i < 8; ++i) prompts.push_back(remote_prompt(i, 16));
  std::uint64_t good_pages = 0;
  std::uint64_t found_pages = 0;
  const auto run = [&](std::uint32_t round_count) {
    for (std::uint32_t round = 0; round < round_count; ++round) {
      now_ns += 300'000'000;
      const RemotePrompt& prompt = prompts[round % prompts.size()];
      engine.name_on_host(prompt, 0);
      (void)engine.submit_find(1, prompt, {.has_anchored = true});
      while (engine.mover->run()) {
      }
      engine.hear();
      const std::uint32_t found = engine.completions.back().good_pages;
      found_pages += found;
      engine.completions.clear();
      if (found > 0) (void)engine.submit_load(2, 1, 0, found, 100);
      (void)engine.submit_store(3, 0, 16);
      (void)engine.submit_store(4, 0, 3, 1);
      if (round % 13 == 0) (void)engine.submit_drop(5, 0);
      (void)engine.submit_direct_again(round % 2 == 0 ? TransferKind::PutBelow : TransferKind::GetFromBelow, 6);
      (void)engine.submit_flush(7);
      engine.mover->cancel({2, round});
      while (engine.mover->run()) {
      }
      engine.hear();
      for (const Completion& completion : engine.completions) good_pages += completion.good_pages;
      engine.completions.clear();
    }
  };
  engine.put_on_host(prompts[0], 0);
  (void)engine.submit_direct(TransferKind::PutBelow, 6, prompts[1], 2);
  while (engine.mover->run()) {
  }
  engine.hear();
  engine.completions.clear();
  run(100);
  const std::uint64_t before = allocation_count;
  run(500);
  EXPECT_EQ(allocation_count, before);
  EXPECT_GT(found_pages, 0U);
  EXPECT_GT(good_pages, 0U);
}

TEST(RemoteMoverNoAllocation, AMoverThatOnlyReadsRemembersADroppedKeySpaceOnce) {
  TimeNs now_ns = 1;
  const auto store = std::make_unique<PromptStore>();
  RemoteEngine engine(*store, {.is_read_only = true}, &now_ns);
  engine.completions.reserve(kRemoteTransfers);
  const auto drop = [&](std::uint32_t round_count) {
    for (std::uint32_t round = 0; round < round_count; ++round) {
      (void)engine.submit_drop(5, round % 5 == 4 ? kAllKeySpaces : round % 5);
      while (engine.mover->run()) {
      }
      engine.hear();
      ASSERT_EQ(engine.completions.size(), 1U);
      engine.completions.clear();
    }
  };
  drop(5);
  const std::uint64_t before = allocation_count;
  drop(500);
  EXPECT_EQ(allocation_count, before);
}

}  // namespace
}  // namespace quire
