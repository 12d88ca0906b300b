// SPDX-License-Identifier: Apache-2.0
//
// Random calls on a mover beside a map from host pages to what they hold. It is paused between the calls, so that a
// seed gives the same run every time: a step submits, cancels, damages, forgets, or lets everything that is queued
// finish. It has one to three pools of one to three parts; each has the same page ids, and a map of its own. Their
// memory is the processor's, or an accelerator's, where a step lets everything finish in an order that the seed draws.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mover_fixture.h"
#include "testing/fake_device.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/test_pool.h"

namespace quire {
namespace {

using testing::Random;

constexpr std::uint32_t kHostPages = 12;
constexpr std::uint32_t kSources = 6;   // device pages [0, kSources) are written by the test
constexpr std::uint32_t kTargets = 10;  // those behind them by loads

class TwinModel {
 public:
  TwinModel(Random& random, bool has_accelerator) : pools_(1 + random.below(3)), has_checksums_(random.below(4) != 0) {
    MoverConfig config{.host_region = {.huge_pages = false},
                       .checksums = has_checksums_,
                       .queue_depth_max = 4,
                       .transfer_pages_max = 4};
    for (Pool& pool : pools_) {
      std::vector<testing::TestDeviceShape> parts(1 + random.below(3));
      for (testing::TestDeviceShape& part : parts) {
        part = {.layers = 1 + random.below(4),
                .layer_bytes = 1 + random.below(80),
                .pages = kSources + kTargets,
                .byte_layout = random.below(2) == 0 ? ByteLayout::PageFirst : ByteLayout::LayerFirst};
      }
      pool.device = std::make_unique<testing::TestPool>(parts);
      config.pools.push_back(pool.device->for_mover(kHostPages));
    }
    const bool has_plain_config = pools_.size() == 1 && pools_[0].device->part_count() == 1;
    if (has_plain_config) {
      config.pools.clear();
      config.device_geometry = pools_[0].device->device()[0].geometry;
      config.device_memory = pools_[0].device->device()[0].memory;
      config.host_page_count = kHostPages;
    }
    if (has_accelerator) add_accelerator(random, config);
    mover_ = Mover::open(config).value();
    mover_->pause();
    renew_sources();
  }

  std::string apply(const testing::Op& op) {
    switch (op.kind % 8) {
      case 0:
      case 1:
        return submit_store(op);
      case 2:
      case 3:
        return submit_load(op);
      case 4:
        return cancel(op.draws[0]);
      case 5:
        return damage(pool_index_of(op), op.draws[0], op.draws[1]);
      case 6:
        return op.draws[0] % 8 == 0 ? forget() : "";
      default:
        return finish_all();
    }
  }

 private:
  struct HostPage {
    std::uint32_t generation = 0;
    std::uint64_t name_tag = 0;
    std::uint64_t content = 0;
    bool has_data = false;
    bool is_damaged = false;
  };
  struct Pool {
    std::unique_ptr<testing::TestPool> device;
    std::map<std::uint32_t, HostPage> handed_out;
    std::map<std::uint32_t, HostPage> held;
    std::array<std::uint64_t, kSources> source_contents{};
  };
  struct Queued {
    TransferPlan plan;
    std::vector<PageTransfer> pages;
    std::vector<std::uint64_t> contents;  // of a store's pages
  };

  void add_accelerator(Random& random, MoverConfig& config) {
    accelerator_ = std::make_unique<testing::FakeDevice>(testing::FakeDeviceConfig{.seed = random.next()});
    for (const Pool& pool : pools_) {
      for (const DevicePages& part : pool.device->device()) {
        accelerator_->adopt({part.memory, part.geometry->pool_bytes()});
      }
    }
    const auto draw_paths = [&] {
      return SwapPaths{.few = static_cast<SwapPath>(random.below(3)),
                       .few_pages_max = random.below(4),
                       .many = static_cast<SwapPath>(random.below(3))};
    };
    config.accelerator = accelerator_.get();
    config.staging_bytes = 1 + random.below(4096);
    config.load_paths = draw_paths();
    config.store_paths = draw_paths();
  }

  [[nodiscard]] std::uint16_t pool_index_of(const testing::Op& op) const {
    return static_cast<std::uint16_t>(op.kind / 8 % pools_.size());
  }
  [[nodiscard]] Pool& pool_of(const Queued& queued) { return pools_[queued.plan.pool_index]; }

  std::string submit_store(const testing::Op& op) {
    Queued queued;
    queued.plan.pool_index = pool_index_of(op);
    Pool& pool = pool_of(queued);
    const std::uint32_t count = op.draws[0] % 5;
    for (std::uint32_t i = 0; i < count; ++i) {
      // Pages that no queued transfer uses: the planner's part of the contract.
      const PageId host_page = unused_host_page(op.draws[1] + (i * 7), queued);
      if (host_page.is_none()) break;
      const std::uint32_t source = (op.draws[2] + i) % kSources;
      HostPage& page = pool.handed_out[host_page.value];
      ++page.generation;
      queued.pages.push_back({.device_page = PageId{source},
                              .host_page = host_page,
                              .host_generation = page.generation,
                              .name_tag = mix64(op.draws[3] + i)});
      queued.contents.push_back(pool.source_contents[source]);
    }
    return submit(std::move(queued), TransferKind::Store, op);
  }

  std::string submit_load(const testing::Op& op) {
    Queued queued;
    queued.plan.pool_index = pool_index_of(op);
    Pool& pool = pool_of(queued);
    const std::uint32_t count = op.draws[0] % 5;
    for (std::uint32_t i = 0; i < count; ++i) {
      const PageId target = unused_target(op.draws[1] + (i * 3), queued);
      const PageId host_page = unused_host_page(op.draws[2] + (i * 5), queued);
      if (target.is_none() || host_page.is_none()) break;
      const HostPage& held = pool.held[host_page.value];
      const bool is_wrong = (op.draws[3] >> i) % 16 == 0;
      queued.pages.push_back({.device_page = target,
                              .host_page = host_page,
                              .host_generation = held.generation + (is_wrong && op.draws[0] % 2 == 0 ? 1U : 0U),
                              .name_tag = held.name_tag + (is_wrong && op.draws[0] % 2 == 1 ? 1U : 0U)});
    }
    return submit(std::move(queued), TransferKind::Load, op);
  }

  std::string submit(Queued queued, TransferKind kind, const testing::Op& op) {
    queued.plan = {.id = {.index = ++last_index_, .generation = 3},
                   .kind = kind,
                   .priority = static_cast<TransferPriority>(op.draws[1] % 2),
                   .band_count = static_cast<std::uint16_t>(1 + (op.draws[2] % pool_of(queued).device->layer_count())),
                   .pool_index = queued.plan.pool_index};
    queued.plan.pages = queued.pages;
    if (const std::string difference = expect_refused(queued.plan, op.draws[3]); !difference.empty()) return difference;
    const bool is_full =
        std::ranges::count_if(queued_, [&](const Queued& other) { return other.plan.kind == kind; }) == 4;
    const auto submitted = mover_->try_submit(queued.plan);
    if (!submitted) return "refused: " + submitted.error().message;
    if (*submitted == is_full) return is_full ? "a full queue took it" : "no room";
    if (is_full) return "";
    if (queued.pages.empty()) return expect_completion({.id = queued.plan.id, .outcome = TransferOutcome::Empty});
    queued_.push_back(std::move(queued));
    queued_.back().plan.pages = queued_.back().pages;
    return "";
  }

  // The same plan for a pool that is not there changes nothing: what follows would notice.
  std::string expect_refused(TransferPlan plan, std::uint32_t draw) {
    if (draw % 4 != 0) return "";
    plan.pool_index = static_cast<std::uint16_t>(pools_.size() + (draw / 4 % 3));
    const auto submitted = mover_->try_submit(plan);
    return submitted.has_value() ? "took a plan for a pool that is not there" : "";
  }

  std::string cancel(std::uint32_t draw) {
    if (queued_.empty()) {
      return mover_->cancel({.index = last_index_, .generation = 3}) ? "cancelled what is over" : "";
    }
    const std::size_t at = draw % queued_.size();
    const TransferId id = queued_[at].plan.id;
    if (!mover_->cancel(id)) return "could not cancel";
    queued_.erase(queued_.begin() + static_cast<std::ptrdiff_t>(at));
    return expect_completion({.id = id, .outcome = TransferOutcome::Cancelled});
  }

  std::string damage(std::uint16_t pool_index, std::uint32_t draw, std::uint32_t bit) {
    Pool& pool = pools_[pool_index];
    const std::uint32_t host_page = 1 + (draw % kHostPages);
    HostPage& page = pool.held[host_page];
    if (!has_checksums_ || !page.has_data || page.is_damaged) return "";
    HostStorePeer::flip_bit(MoverPeer::host_store(*mover_, pool_index), PageId{host_page},
                            bit % (pool.device->page_bytes() * 8));
    page.is_damaged = true;
    return "";
  }

  std::string forget() {
    const Status status = mover_->forget_host_pages();
    if (status.has_value() != queued_.empty()) return "forgetting";
    if (status.has_value()) {
      for (Pool& pool : pools_) {
        for (auto& [number, page] : pool.held) page.has_data = false;
      }
    }
    return "";
  }

  // Runs both queues dry. No page is in two of the transfers, so the order between the directions does not matter.
  std::string finish_all() {
    std::map<std::uint32_t, Completion> wanted;
    for (const Queued& queued : queued_) {
      wanted[queued.plan.id.index] = queued.plan.kind == TransferKind::Store ? stored(queued) : loaded(queued);
    }
    mover_->resume();
    for (const Queued& queued : queued_) {
      const auto outcome = mover_->wait(queued.plan.id, queued.plan.band_count - 1U, kLongNs);
      if (!outcome) return "waiting: " + outcome.error().message;
      if (*outcome != wanted[queued.plan.id.index].outcome) return "wait says " + std::string(to_string(*outcome));
    }
    mover_->pause();
    std::array<Completion, 16> out;
    const auto polled = mover_->poll(out);
    if (polled.size() != queued_.size()) return "number of completions";
    for (const Completion& completion : polled) {
      if (const std::string difference = compare(completion, wanted[completion.id.index]); !difference.empty()) {
        return difference;
      }
    }
    for (const Queued& queued : queued_) {
      if (queued.plan.kind == TransferKind::Store) continue;
      Pool& pool = pool_of(queued);
      for (std::uint32_t i = 0; i < wanted[queued.plan.id.index].good_pages; ++i) {
        if (!pool.device->holds(queued.pages[i].device_page, pool.held[queued.pages[i].host_page.value].content)) {
          return "wrong bytes";
        }
      }
    }
    queued_.clear();
    renew_sources();
    return "";
  }

  // Nothing reads them meanwhile.
  void renew_sources() {
    for (Pool& pool : pools_) {
      for (std::uint32_t i = 0; i < kSources; ++i) {
        pool.device->fill(PageId{i}, pool.source_contents[i] = ++last_content_);
      }
    }
  }

  Completion stored(const Queued& queued) {
    for (std::size_t i = 0; i < queued.pages.size(); ++i) {
      const PageTransfer& page = queued.pages[i];
      pool_of(queued).held[page.host_page.value] = {.generation = page.host_generation,
                                                    .name_tag = page.name_tag,
                                                    .content = queued.contents[i],
                                                    .has_data = true};
    }
    return {.id = queued.plan.id, .good_pages = static_cast<std::uint32_t>(queued.pages.size())};
  }

  // The first page that is wrong before its last band ends the way there; checksums are looked at behind that.
  Completion loaded(const Queued& queued) {
    Completion completion{.id = queued.plan.id};
    const auto fail_at = [&](std::uint32_t page, TransferFault fault) {
      completion.outcome = TransferOutcome::Failed;
      completion.fault = fault;
      completion.good_pages = page;
    };
    completion.good_pages = static_cast<std::uint32_t>(queued.pages.size());
    for (std::uint32_t i = 0; i < queued.pages.size(); ++i) {
      const PageTransfer& page = queued.pages[i];
      const HostPage& held = pool_of(queued).held[page.host_page.value];
      if (!held.has_data || held.generation != page.host_generation) {
        fail_at(i, TransferFault::Generation);
      } else if (held.name_tag != page.name_tag) {
        fail_at(i, TransferFault::NameTag);
      } else if (held.is_damaged) {
        fail_at(i, TransferFault::Checksum);
      } else {
        continue;
      }
      break;
    }
    return completion;
  }

  std::string expect_completion(const Completion& wanted) {
    std::array<Completion, 2> out;
    const auto polled = mover_->poll(out);
    if (polled.size() != 1) return "number of completions";
    return compare(polled[0], wanted);
  }

  static std::string compare(const Completion& is, const Completion& wanted) {
    const auto text = [](const Completion& completion) {
      return std::to_string(completion.id.index) + ": " + std::string(to_string(completion.outcome)) + ", " +
             std::string(to_string(completion.fault)) + ", " + std::to_string(completion.good_pages) + " pages";
    };
    return text(is) == text(wanted) ? "" : "got " + text(is) + "; wanted " + text(wanted);
  }

  [[nodiscard]] PageId unused_host_page(std::uint32_t draw, const Queued& mine) const {
    return unused(draw, 1, kHostPages, &PageTransfer::host_page, mine);
  }
  [[nodiscard]] PageId unused_target(std::uint32_t draw, const Queued& mine) const {
    return unused(draw, kSources, kTargets, &PageTransfer::device_page, mine);
  }
  [[nodiscard]] PageId unused(std::uint32_t draw, std::uint32_t first, std::uint32_t count,
                              PageId PageTransfer::* member, const Queued& mine) const {
    for (std::uint32_t i = 0; i < count; ++i) {
      const PageId page{first + ((draw + i) % count)};
      const auto is_it = [&](const PageTransfer& other) { return other.*member == page; };
      const auto uses_it = [&](const Queued& other) {
        return other.plan.pool_index == mine.plan.pool_index && std::ranges::any_of(other.pages, is_it);
      };
      const bool is_used = uses_it(mine) || std::ranges::any_of(queued_, uses_it);
      if (!is_used) return page;
    }
    return PageId::none();
  }

  std::vector<Pool> pools_;
  bool has_checksums_;
  std::uint64_t last_content_ = 0;
  std::uint32_t last_index_ = 0;
  std::deque<Queued> queued_;
  std::unique_ptr<testing::FakeDevice> accelerator_;
  std::unique_ptr<Mover> mover_;
};

TEST(MoverTwin, BehavesAsThePlainestForm) {
  EXPECT_EQ(testing::run_seeds(
                {.test = "bin/mover_random_test", .seed_count = testing::kIsSanitized ? 10U : 60U, .step_count = 600},
                [](Random& random) { return TwinModel(random, false); }),
            "");
}

TEST(MoverTwin, BehavesAsThePlainestFormOnAnAccelerator) {
  EXPECT_EQ(testing::run_seeds(
                {.test = "bin/mover_random_test", .seed_count = testing::kIsSanitized ? 10U : 60U, .step_count = 600},
                [](Random& random) { return TwinModel(random, true); }),
            "");
}

}  // namespace
}  // namespace quire
