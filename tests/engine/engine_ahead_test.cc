// SPDX-License-Identifier: Apache-2.0
//
// The engine computes layer by layer while pages arrive band by band: a mover that the test drives brings a band when
// the engine asks for its first layer, and not before. Loads fail after their step was planned, steps are aborted, and
// sequences end or are preempted meanwhile; every logit that counts is the oracle's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quire/cache.h"
#include "seeded_text.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "tests/cache/group_pools.h"
#include "tools/tiny_engine/engine.h"
#include "tools/tiny_engine/oracle.h"

namespace quire::testing {
namespace {

using tiny_engine::Weights;

constexpr std::uint32_t kPageTokens = 4;
constexpr std::uint32_t kContextTokens = 48;
constexpr std::uint32_t kLayers = 4;
constexpr double kTolerance = 1e-9;

/// Moves pages of one group; of a load, the layers that it is told to.
class BandMover {
 public:
  BandMover(Cache& cache, Random& random) : cache_(cache), random_(random) {}

  /// Stores end at once. What loads are to fill holds nonsense until they bring it.
  void take() {
    std::array<TransferPlan, 32> plans;
    std::vector<Completion> ended;
    for (const TransferPlan& plan : cache_.take_transfers(plans).value()) {
      Load load{.id = plan.id, .pages = {plan.pages.begin(), plan.pages.end()}};
      const auto page_count = static_cast<std::uint32_t>(load.pages.size());
      load.good_pages = page_count;
      for (const PageTransfer& page : load.pages) {
        std::vector<std::byte>& host = host_page(page.host_page);
        visit_layers(page, 0, kLayers, [&](std::byte* device, std::uint64_t at, std::uint64_t count) {
          if (plan.kind == TransferKind::Load) {
            std::memset(device, 0x3D, count);
          } else {
            std::memcpy(host.data() + at, device, count);
          }
        });
      }
      if (plan.kind == TransferKind::Load) {
        if (random_.below(5) == 0) load.good_pages = random_.below(page_count);
        loads_.push_back(std::move(load));
      } else {
        ended.push_back({.id = plan.id, .kind = plan.kind, .good_pages = page_count});
      }
    }
    apply(ended);
    std::array<TransferId, 32> cancelled;
    (void)cache_.take_cancellations(cancelled).value();  // what was begun goes on
  }
  /// All layers up to this one have arrived, as far as the load is good.
  void bring(TransferId id, std::uint32_t layer) {
    const auto load = std::ranges::find(loads_, id, &Load::id);
    if (load == loads_.end()) return;
    const std::uint32_t band = cache_.band_of({0, layer});
    std::uint32_t end = load->layers;
    while (end < kLayers && cache_.band_of({0, end}) <= band) ++end;
    for (std::uint32_t i = 0; i < load->good_pages; ++i) {
      const std::vector<std::byte>& host = host_page(load->pages[i].host_page);
      visit_layers(load->pages[i], load->layers, end, [&](std::byte* device, std::uint64_t at, std::uint64_t count) {
        std::memcpy(device, host.data() + at, count);
      });
    }
    load->layers = end;
  }
  void end(TransferId id) {
    const auto load = std::ranges::find(loads_, id, &Load::id);
    if (load == loads_.end()) return;
    bring(id, kLayers - 1);
    const bool is_good = load->good_pages == load->pages.size();
    apply({{.id = id,
            .outcome = is_good ? TransferOutcome::Ok : TransferOutcome::Failed,
            .fault = is_good ? TransferFault::None : TransferFault::Checksum,
            .good_pages = load->good_pages}});
    loads_.erase(load);
  }
  void end_all() {
    for (take(); !loads_.empty(); take()) end(loads_.front().id);
  }
  void end_some() {
    take();
    if (!loads_.empty()) end(loads_[random_.below(static_cast<std::uint32_t>(loads_.size()))].id);
  }

 private:
  struct Load {
    TransferId id;
    std::vector<PageTransfer> pages;
    std::uint32_t layers = 0;      // that have arrived
    std::uint32_t good_pages = 0;  // that ever will
  };
  template <typename Visit>
  void visit_layers(const PageTransfer& page, std::uint32_t first, std::uint32_t end, Visit visit) const {
    const std::uint64_t layer_bytes = cache_.geometry().page().layer_bytes();
    constexpr std::array<std::uint32_t, 1> kGroup = {0};
    visit_page_bytes(cache_, kGroup, page.device_page, first * layer_bytes, end * layer_bytes, visit);
  }
  [[nodiscard]] std::vector<std::byte>& host_page(PageId page) {
    if (page.value >= host_pages_.size()) host_pages_.resize(page.value + 1);
    host_pages_[page.value].resize(cache_.geometry().page().page_bytes());
    return host_pages_[page.value];
  }
  void apply(const std::vector<Completion>& completions) {
    const Status status = cache_.apply(completions, 0);
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }

  Cache& cache_;
  Random& random_;
  std::vector<Load> loads_;
  std::vector<std::vector<std::byte>> host_pages_;
};

struct AheadCounts {
  std::uint32_t early_steps = 0;
  std::uint32_t lost_entries = 0;
  std::uint32_t aborts = 0;
  std::uint32_t preemptions = 0;
  std::uint32_t ends_in_flight = 0;
  std::uint32_t logits = 0;
};

class AheadRun {
 public:
  AheadRun(std::uint64_t seed, bool waits, AheadCounts& counts)
      : random_(seed),
        waits_(waits),
        counts_(counts),
        weights_(tiny_engine::make_weights(
            {.attention = seed % 2 == 0 ? tiny_engine::AttentionKind::Gqa : tiny_engine::AttentionKind::Mla,
             .layer_count = kLayers},
            7)) {
    CacheConfig config{
        .layout = ModelLayout::create("tiny", {tiny_engine::cache_group(weights_.shape, seed % 3 == 0)}).value(),
        .page = {.page_tokens = kPageTokens},
        .device = {.page_count = 30, .byte_layout = seed % 5 < 3 ? ByteLayout::PageFirst : ByteLayout::LayerFirst},
        .host = {.page_count = 96,
                 .write_policy = WritePolicy::WriteThrough,
                 .layer_bands = static_cast<std::uint16_t>(1 + random_.below(kLayers)),
                 .external_mover = true,
                 .transfer_pages_max = 2 + random_.below(15)},
        .sequence_count_max = 5,
        .context_tokens_max = kContextTokens,
        .step_tokens_max = 256,
        .steps_in_flight_max = 2};
    cache_ = Cache::open(std::move(config)).value();
    space_ = cache_->key_space({.model = "tiny"}).value();
    engine_ = std::make_unique<tiny_engine::Engine>(
        weights_, tiny_engine::PoolMemory{.geometry = cache_->geometry(), .bytes = cache_->device_memory()},
        tiny_engine::EngineOptions{.sequence_count_max = 5,
                                   .row_columns = kContextTokens / kPageTokens,
                                   .keys_rotated = seed % 3 == 0,
                                   .appends_first = seed % 4 == 0,
                                   .applies_copies = false});
    mover_ = std::make_unique<BandMover>(*cache_, random_);
    for (std::uint64_t i = 0; i < 3; ++i) documents_.push_back(seeded_text((seed * 10) + i, 24 + (4 * i)));
  }

  /// One random event. Empty, or what is wrong.
  [[nodiscard]] std::string step() {
    std::string problem;
    switch (random_.below(8)) {
      case 0:
      case 1:
        begin();
        break;
      case 2:
      case 3:
        problem = plan();
        break;
      case 4:
      case 5:
        problem = finish();
        break;
      case 6:
        mover_->end_some();
        follow();
        break;
      default:
        problem = disturb();
        break;
    }
    const Status rules = cache_->check_invariants();
    return problem.empty() && !rules ? rules.error().message : problem;
  }

 private:
  struct Live {
    std::uint64_t number = 0;
    Sequence handle;
    std::vector<TokenId> tokens;
    std::vector<std::vector<double>> oracle;
    std::uint32_t in_flight = 0;  // entries that count
  };
  struct Entry {
    std::uint64_t number = 0;
    std::uint32_t position = 0;
    std::uint32_t token_count = 0;
    std::vector<TokenId> tokens;
    bool is_void = false;
    std::string wrong;
  };
  struct Flight {
    Step step;
    tiny_engine::DevicePlan plan;
    std::vector<StepLoad> loads;
    std::vector<Entry> entries;  // as in the plan
    std::vector<std::uint32_t> order;
    bool is_prepared = false;
    bool has_run = false;
  };

  [[nodiscard]] Live* find(std::uint64_t number) {
    const auto at = std::ranges::find_if(lives_, [&](const auto& live) { return live->number == number; });
    return at == lives_.end() ? nullptr : at->get();
  }

  // Most texts have gone down to the host when they are asked for again.
  void begin() {
    if (lives_.size() == 5) return;
    if (flights_.empty() || random_.below(2) == 0) {
      EXPECT_TRUE(cache_->reclaim(30));
    }
    auto live = std::make_unique<Live>();
    live->number = ++last_number_;
    live->tokens = documents_[random_.below(3)];
    live->tokens.resize(live->tokens.size() - random_.below(9));
    live->tokens = join(live->tokens, seeded_text(live->number * 7919, 1 + random_.below(9)));
    live->oracle = tiny_engine::oracle_logits(weights_, tiny_engine::OracleText{.tokens = live->tokens});
    Result<Sequence> handle = cache_->begin(space_, {.tokens = live->tokens}, {.plan_while_loading = true});
    if (!handle) return;  // those that have ended are still in flight
    live->handle = std::move(*handle);
    if (!cache_->admit(live->handle)) return;
    lives_.push_back(std::move(live));
    if (random_.below(4) > 0) mover_->take();
  }

  std::string plan() {
    if (flights_.size() == 2) return finish();
    std::vector<StepEntry> entries;
    std::vector<Live*> lives;
    for (const auto& live : lives_) {
      const SequenceView view = cache_->view(live->handle).value();
      const bool is_ready = view.is_ready && !view.is_waiting && view.pending_tokens > 0 && random_.below(5) > 0;
      if (!is_ready) continue;
      entries.push_back({.sequence = &live->handle, .token_count = 1 + random_.below(view.pending_tokens)});
      lives.push_back(live.get());
    }
    if (entries.empty()) return "";
    Result<PlanOutcome> outcome = cache_->plan_step(entries);
    if (!outcome) return "plan_step: " + outcome.error().message;
    if (!outcome->step) return finish();
    Flight& flight = flights_.emplace_back();
    flight.step = *outcome->step;
    flight.plan = tiny_engine::DevicePlan::upload(flight.step.plan).value();
    flight.loads.assign(flight.step.loads.begin(), flight.step.loads.end());
    flight.entries.resize(entries.size());
    counts_.early_steps += flight.loads.empty() ? 0 : 1;
    for (const AttentionPlanEntry& planned : flight.step.plan.entries) {
      Live& live = *lives[planned.entry_index];
      Entry& entry = flight.entries[planned.entry_index];
      const auto first = live.tokens.begin() + planned.position;
      entry = {.number = live.number, .position = planned.position, .token_count = planned.token_count};
      entry.tokens.assign(first, first + planned.token_count);
      flight.order.push_back(planned.entry_index);
      ++live.in_flight;
    }
    return "";
  }

  std::string prepare(Flight& flight) {
    if (std::exchange(flight.is_prepared, true)) return "";
    if (const Status status = cache_->apply_copies(flight.step); !status) return status.error().message;
    return engine_->prepare(flight.plan);
  }

  std::string run(Flight& flight) {
    if (std::exchange(flight.has_run, true)) return "";
    if (std::string problem = prepare(flight); !problem.empty()) return problem;
    std::vector<TokenId> tokens;
    for (const std::uint32_t index : flight.order) tokens = join(tokens, flight.entries[index].tokens);
    const auto wait = [&](std::uint32_t layer) {
      for (const StepLoad& load : flight.loads) {
        if (waits_) mover_->bring(load.id, layer);
      }
      return std::string();
    };
    std::vector<double> logits;
    if (std::string problem = engine_->forward(flight.plan, tokens, logits, wait); !problem.empty()) return problem;
    std::size_t query = 0;
    for (const std::uint32_t index : flight.order) {
      Entry& entry = flight.entries[index];
      const Live* const live = find(entry.number);
      for (std::uint32_t i = 0; i < entry.token_count; ++i, ++query) {
        if (live == nullptr) continue;
        const std::vector<double>& expected = live->oracle[entry.position + i];
        for (std::size_t k = 0; k < expected.size(); ++k) {
          const double given = logits[(query * expected.size()) + k];
          if (std::abs(given - expected[k]) <= kTolerance) continue;
          entry.wrong = "sequence " + std::to_string(entry.number) + ", token " + std::to_string(entry.position + i);
        }
      }
    }
    return "";
  }

  std::string finish() {
    if (flights_.empty()) return "";
    if (std::string problem = run(flights_.front()); !problem.empty()) return problem;
    Flight& flight = flights_.front();
    for (const StepLoad& load : flight.loads) mover_->end(load.id);
    follow();
    for (const Entry& entry : flight.entries) {
      if (entry.is_void || find(entry.number) == nullptr) continue;
      counts_.logits += entry.token_count;
      if (!entry.wrong.empty()) return "wrong logits of " + entry.wrong;
    }
    const std::vector<StepResult> results(flight.entries.size());
    const Status status = cache_->finish_step(flight.step, results);
    if (!status) return "finish_step: " + status.error().message;
    for (const Entry& entry : flight.entries) {
      Live* const live = find(entry.number);
      if (live != nullptr && !entry.is_void) --live->in_flight;
    }
    flights_.pop_front();
    std::erase_if(lives_, [&](const auto& live) {
      return live->in_flight == 0 && cache_->view(live->handle)->computed_tokens == live->tokens.size();
    });
    mover_->take();
    return "";
  }

  // Entries that are lost do not count.
  void follow() {
    for (Flight& flight : flights_) {
      for (const std::uint32_t index : cache_->lost_entries(flight.step).value()) {
        if (flight.entries[index].is_void) continue;
        ++counts_.lost_entries;
        make_void(flight.entries[index].number, 0);
      }
    }
  }

  void make_void(std::uint64_t number, std::size_t first_flight) {
    Live* const live = find(number);
    for (std::size_t i = first_flight; i < flights_.size(); ++i) {
      for (Entry& entry : flights_[i].entries) {
        if (entry.number != number || std::exchange(entry.is_void, true)) continue;
        if (live != nullptr) --live->in_flight;
      }
    }
  }

  // A step is aborted, or a sequence ends or is preempted.
  std::string disturb() {
    if (!flights_.empty() && random_.below(2) == 0) {
      const std::size_t place = random_.below(static_cast<std::uint32_t>(flights_.size()));
      for (std::size_t i = 0; i <= place; ++i) {
        if (std::string problem = i < place ? run(flights_[i]) : prepare(flights_[i]); !problem.empty()) return problem;
      }
      if (const Status status = cache_->abort_step(flights_[place].step); !status) return status.error().message;
      ++counts_.aborts;
      for (const Entry& entry : std::vector<Entry>(flights_[place].entries)) make_void(entry.number, place);
      flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(place));
      return "";
    }
    if (lives_.empty()) return "";
    Live& live = *lives_[random_.below(static_cast<std::uint32_t>(lives_.size()))];
    if (live.in_flight == 0 && cache_->preempt(live.handle, Preempt::Drop)) {
      ++counts_.preemptions;
      if (cache_->resume(live.handle)) return "";
    }
    counts_.ends_in_flight += live.in_flight > 0 ? 1 : 0;
    std::erase_if(lives_, [&](const auto& each) { return each.get() == &live; });
    return "";
  }

  Random random_;
  bool waits_;
  AheadCounts& counts_;
  Weights weights_;
  std::unique_ptr<Cache> cache_;
  KeySpaceId space_;
  std::unique_ptr<tiny_engine::Engine> engine_;
  std::unique_ptr<BandMover> mover_;
  std::vector<std::vector<TokenId>> documents_;
  std::vector<std::unique_ptr<Live>> lives_;
  std::deque<Flight> flights_;
  std::uint64_t last_number_ = 0;
};

std::string run_seed(std::uint64_t seed, bool waits, AheadCounts& counts) {
  AheadRun run(seed, waits, counts);
  for (int event = 0; event < 80; ++event) {
    if (std::string problem = run.step(); !problem.empty()) {
      return "seed " + std::to_string(seed) + ", event " + std::to_string(event) + ": " + problem;
    }
  }
  return "";
}

TEST(EngineAhead, EveryLogitIsTheOraclesWhileBandsArriveBetweenLayers) {
  AheadCounts counts;
  for (std::uint64_t seed = 1; seed <= (kIsSanitized ? 20 : 120); ++seed) {
    ASSERT_EQ(run_seed(seed, /*waits=*/true, counts), "");
  }
  EXPECT_GT(counts.early_steps, 100U / (kIsSanitized ? 10 : 1));
  EXPECT_GT(counts.lost_entries, 0U);
  EXPECT_GT(counts.aborts, 0U);
  EXPECT_GT(counts.preemptions, 0U);
  EXPECT_GT(counts.ends_in_flight, 0U);
  EXPECT_GT(counts.logits, 1'000U / (kIsSanitized ? 10 : 1));
}

TEST(EngineAhead, AnEngineThatDoesNotWaitIsNoticed) {
  AheadCounts counts;
  std::string problem;
  for (std::uint64_t seed = 1; seed <= 20 && problem.empty(); ++seed) problem = run_seed(seed, /*waits=*/false, counts);
  EXPECT_NE(problem.find("wrong logits"), std::string::npos) << problem;
}

}  // namespace
}  // namespace quire::testing
