// SPDX-License-Identifier: Apache-2.0
//
// Many threads on one mover with two pools: submitting, cancelling, waiting, polling, pausing, all at once. Runs under
// the thread sanitizer. What is promised however they interleave: every accepted transfer has exactly one completion,
// and bytes that are reported as good are right. On an accelerator, streams wait for bands meanwhile.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/mover.h"
#include "testing/fake_device.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/test_pool.h"

namespace quire {
namespace {

using testing::Random;

constexpr std::uint32_t kPlanners = 3;
constexpr std::uint32_t kPagesEach = 6;
constexpr std::uint32_t kRounds = testing::kIsSanitized ? 300 : 2000;
constexpr TimeNs kLongNs = TimeNs{200} * 1'000'000'000;

// Each planner has host and device pages of its own in every pool, as different parts of a tree have. It fills device
// pages of one pool, stores them, loads what it has stored into others, and compares.
class Planner {
 public:
  Planner(std::uint32_t number, Mover& mover, std::span<testing::TestPool> pools)
      : number_(number), mover_(mover), pools_(pools), random_(number + 1) {}

  void run(std::uint32_t round_count) {
    for (std::uint32_t round = 0; round < round_count; ++round) {
      if (store()) load();
    }
  }

  [[nodiscard]] std::uint32_t accepted_count() const { return accepted_count_; }
  [[nodiscard]] std::uint32_t loaded_count() const { return loaded_count_; }
  std::atomic<std::uint32_t> last_index = 0;  // what others may try to cancel

 private:
  // Pages [0, kPagesEach) of the planner are sources, those behind them targets.
  [[nodiscard]] PageId source(std::uint32_t i) const { return PageId{(number_ * 2 * kPagesEach) + i}; }
  [[nodiscard]] PageId target(std::uint32_t i) const { return PageId{(number_ * 2 * kPagesEach) + kPagesEach + i}; }
  [[nodiscard]] std::vector<PageTransfer> pages(bool is_load) const {
    std::vector<PageTransfer> made;
    made.reserve(kPagesEach);
    for (std::uint32_t i = 0; i < kPagesEach; ++i) {
      made.push_back({.device_page = is_load ? target(i) : source(i),
                      .host_page = PageId{1 + (number_ * kPagesEach) + i},
                      .host_generation = generation_,
                      .name_tag = content_ + i});
    }
    return made;
  }

  TransferOutcome move(TransferKind kind, std::uint16_t band_count) {
    const TransferId id{.index = (++count_ * kPlanners) + number_, .generation = number_};
    const std::vector<PageTransfer> moved = pages(kind == TransferKind::Load);
    while (true) {
      const auto submitted = mover_.try_submit({.id = id,
                                                .kind = kind,
                                                .priority = static_cast<TransferPriority>(random_.below(2)),
                                                .band_count = band_count,
                                                .pool_index = pool_index_,
                                                .pages = moved});
      EXPECT_TRUE(submitted.has_value()) << submitted.error().message;
      if (submitted.value_or(true)) break;
      std::this_thread::yield();
    }
    ++accepted_count_;
    last_index = id.index;
    if (random_.below(16) == 0) (void)mover_.cancel(id);
    for (std::uint32_t band = 0; band < band_count; ++band) {
      const auto outcome = mover_.wait(id, band, kLongNs);
      if (!outcome) {
        // On a busy machine a thousand others may have ended before this thread came to ask.
        EXPECT_NE(outcome.error().message.find("is forgotten"), std::string::npos) << outcome.error().message;
        return TransferOutcome::TimedOut;
      }
      if (*outcome != TransferOutcome::Ok || band + 1 == band_count) return *outcome;
    }
    return TransferOutcome::Ok;
  }

  // Whether it is known what became of it.
  bool store() {
    ++generation_;
    content_ = random_.next();
    pool_index_ = static_cast<std::uint16_t>(random_.below(static_cast<std::uint32_t>(pools_.size())));
    for (std::uint32_t i = 0; i < kPagesEach; ++i) pools_[pool_index_].fill(source(i), content_ + i);
    const TransferOutcome outcome = move(TransferKind::Store, 1);
    is_stored_ = outcome == TransferOutcome::Ok;
    return outcome != TransferOutcome::TimedOut;
  }

  void load() {
    const TransferOutcome outcome = move(TransferKind::Load, static_cast<std::uint16_t>(1 + random_.below(3)));
    if (outcome == TransferOutcome::Failed) {
      EXPECT_FALSE(is_stored_) << "a page that was stored is not there";
    }
    if (outcome != TransferOutcome::Ok) return;
    EXPECT_TRUE(is_stored_) << "a page that was not stored is there";
    ++loaded_count_;
    for (std::uint32_t i = 0; i < kPagesEach; ++i) {
      EXPECT_TRUE(pools_[pool_index_].holds(target(i), content_ + i)) << "wrong bytes";
    }
  }

  std::uint32_t number_;
  Mover& mover_;
  std::span<testing::TestPool> pools_;
  Random random_;
  std::uint16_t pool_index_ = 0;
  std::uint32_t count_ = 0;
  std::uint32_t generation_ = 0;
  std::uint64_t content_ = 0;
  bool is_stored_ = false;
  std::uint32_t accepted_count_ = 0;
  std::uint32_t loaded_count_ = 0;
};

// With a path: on an accelerator.
class MoverThreads : public ::testing::TestWithParam<std::optional<SwapPath>> {
 protected:
  static constexpr std::uint32_t kPages = kPlanners * 2 * kPagesEach;

  MoverThreads() {
    if (!GetParam()) return;
    accelerator_ = std::make_unique<testing::FakeDevice>();
    for (const testing::TestPool& pool : pools_) {
      for (const DevicePages& part : pool.device()) accelerator_->adopt({part.memory, part.geometry->pool_bytes()});
    }
  }
  void TearDown() override {
    if (accelerator_ != nullptr) {
      EXPECT_EQ(accelerator_->leak_count(), 0U);
    }
  }

  // One of a single part, and one whose first two layers and last one are apart.
  std::array<testing::TestPool, 2> pools_{
      testing::TestPool({{.layers = 3, .layer_bytes = 72, .pages = kPages}}),
      testing::TestPool({{.layers = 2, .layer_bytes = 40, .pages = kPages, .byte_layout = ByteLayout::LayerFirst},
                         {.layers = 1, .layer_bytes = 133, .pages = kPages}})};

  [[nodiscard]] std::unique_ptr<Mover> open(std::uint32_t threads, std::uint32_t queue_depth_max) {
    const std::optional<SwapPaths> paths =
        GetParam() ? std::optional(SwapPaths{.few = *GetParam(), .many = *GetParam()}) : std::nullopt;
    return Mover::open(
               {.pools = {pools_[0].for_mover(kPlanners * kPagesEach), pools_[1].for_mover(kPlanners * kPagesEach)},
                .host_region = {.huge_pages = false},
                .load_thread_count = threads,
                .store_thread_count = threads,
                .queue_depth_max = queue_depth_max,
                .transfer_pages_max = kPagesEach,
                .accelerator = accelerator_.get(),
                .staging_bytes = 4096,
                .load_paths = paths,
                .store_paths = paths})
        .value();
  }

  std::unique_ptr<testing::FakeDevice> accelerator_;
};

INSTANTIATE_TEST_SUITE_P(Mover, MoverThreads,
                         ::testing::Values(std::nullopt, SwapPath::Whole, SwapPath::Staged, SwapPath::Direct),
                         [](const ::testing::TestParamInfo<std::optional<SwapPath>>& path) {
                           if (!path.param) return std::string("Processor");
                           return "Path" + std::to_string(static_cast<int>(*path.param));
                         });

TEST_P(MoverThreads, EveryTransferEndsOnceAndGoodBytesAreRight) {
  for (const auto& [threads, depth] : {std::pair{1U, 1U}, std::pair{2U, 4U}}) {
    const std::unique_ptr<Mover> mover = open(threads, depth);
    std::vector<std::unique_ptr<Planner>> planners;
    planners.reserve(kPlanners);
    for (std::uint32_t i = 0; i < kPlanners; ++i) planners.push_back(std::make_unique<Planner>(i, *mover, pools_));
    std::atomic<bool> is_over = false;
    std::atomic<std::uint32_t> completion_count = 0;

    // One polls, one meddles: it pauses, resumes, cancels what is not its own, and waits for what may not exist.
    std::thread poller([&] {
      std::array<Completion, 7> out;
      while (true) {
        const bool was_over = is_over;
        const auto polled = mover->poll(out);
        completion_count += static_cast<std::uint32_t>(polled.size());
        if (polled.empty() && was_over) return;
        if (polled.empty()) std::this_thread::yield();
      }
    });
    const bool has_accelerator = accelerator_ != nullptr;
    const DeviceStream stream =
        has_accelerator ? accelerator_->create_stream(StreamPriority::Low).value() : DeviceStream{};
    std::thread meddler([&] {
      Random random(99);
      while (!is_over) {
        const std::uint32_t which = random.below(kPlanners);
        const TransferId id{.index = planners[which]->last_index, .generation = which};
        switch (random.below(7)) {
          case 0:
            mover->pause();
            mover->resume();
            break;
          case 1:
            (void)mover->cancel(id);
            break;
          case 2:
            (void)mover->wait(id, random.below(4), random.below(2) == 0 ? 0 : 50'000);
            break;
          case 3:
            EXPECT_EQ(mover->host_region().refusals, "");
            break;
          case 4:
            EXPECT_FALSE(mover->wait({.index = 1, .generation = 12345}, 0, 0).has_value());
            break;
          case 5:
            (void)mover->wait_on(stream, id, random.below(4), random.below(2) == 0 ? 0 : 50'000);
            break;
          default:
            std::this_thread::yield();
        }
      }
      if (has_accelerator) accelerator_->destroy_stream(stream);
    });
    std::vector<std::thread> threads_of_planners;
    threads_of_planners.reserve(kPlanners);
    for (const auto& planner : planners) threads_of_planners.emplace_back([&] { planner->run(kRounds); });
    for (std::thread& thread : threads_of_planners) thread.join();
    is_over = true;
    meddler.join();
    poller.join();

    std::uint32_t accepted_count = 0;
    std::uint32_t loaded_count = 0;
    for (const auto& planner : planners) {
      accepted_count += planner->accepted_count();
      loaded_count += planner->loaded_count();
    }
    EXPECT_EQ(completion_count, accepted_count);
    EXPECT_GT(accepted_count, kPlanners * kRounds);
    EXPECT_GT(loaded_count, kRounds / 4) << "hardly anything got through";
  }
}

// Every transfer has device pages of its own. Host pages they share, against the rules: that is no race either.
TEST_P(MoverThreads, DestructionDuringTrafficEndsIt) {
  constexpr std::uint32_t kPagesMoved = 3;
  constexpr std::uint32_t kTransfers = kPages / kPagesMoved;
  for (std::uint64_t seed = 1; seed <= (testing::kIsSanitized ? 60 : 300); ++seed) {
    Random random(seed);
    std::unique_ptr<Mover> mover = open(1 + random.below(2), 8);
    const std::uint32_t count = 1 + random.below(kTransfers);
    for (std::uint32_t i = 0; i < count; ++i) {
      std::array<PageTransfer, kPagesMoved> pages;
      for (std::uint32_t j = 0; j < kPagesMoved; ++j) {
        const std::uint32_t number = (i * kPagesMoved) + j;
        pages[j] = {.device_page = PageId{number}, .host_page = PageId{1 + (number % (2 * kPagesMoved))}};
      }
      (void)mover->try_submit({.id = {.index = i},
                               .kind = i % 2 == 0 ? TransferKind::Store : TransferKind::Load,
                               .band_count = static_cast<std::uint16_t>(1 + random.below(3)),
                               .pool_index = static_cast<std::uint16_t>(random.below(2)),
                               .pages = pages});
    }
    if (random.below(2) == 0) (void)mover->wait({.index = random.below(count)}, 0, TimeNs{random.below(3)} * 10'000);
    if (random.below(4) == 0) mover->pause();
    mover.reset();
  }
}

}  // namespace
}  // namespace quire
