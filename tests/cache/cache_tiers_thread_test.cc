// SPDX-License-Identifier: Apache-2.0
//
// Every public call of a cache whose own mover works beside it, in random order and with every byte verified: with a
// host tier, and with a disk tier in a directory of the system's besides, which caches that follow each other share.
// Handles are dropped by another thread, a third one watches the event, and the cache changes its owner. Runs under the
// thread sanitizer. QUIRE_SEED asks for one seed; what the mover's threads do meanwhile is not repeated.
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>

#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "testing/temp_directory.h"
#include "thread_helpers.h"
#include "tiers_fixture.h"

namespace quire {
namespace {

constexpr std::uint32_t kTokensMax = 56;
constexpr std::uint32_t kSequencesMax = 10;

class CacheTiersThread : public SequenceChangesTest {
 protected:
  struct Actor {
    Live live;
    std::vector<std::int32_t> parents;  // of undecided tree tokens
    std::vector<TokenId> values;
  };
  struct Part {
    Actor* actor = nullptr;  // none when it has ended
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> parents;
    std::vector<TokenId> values;
    bool brings_token = false;
  };
  struct Flight {
    Step step;
    std::vector<Part> parts;
  };

  void SetUp() override {}

  void open_random() {
    CacheConfig config = changes_config(18 + draw(10));
    config.sequence_count_max = kSequencesMax;
    config.context_tokens_max = 72;
    config.tree_tokens_max = 8;
    config.host = {.page_count = 6 + draw(40)};
    config.host.write_policy = static_cast<WritePolicy>(draw(3));
    config.host.transfer_pages_max = 1 + draw(5);
    config.host.transfer_count_max = 4 + draw(20);
    config.host.load_timeout_ns = draw(2) == 0 ? 0 : 40;
    config.host.checksums = draw(4) > 0;
    if (directory_) {
      config.page.page_tokens = 16;
      config.device.page_count = 8 + draw(10);  // small: much comes from disk
      config.host.page_count = 3 + draw(10);
      config.disk.directories = {directory_->path() + "/one"};
      if (draw(2) == 0) config.disk.directories.push_back(directory_->path() + "/other");
      config.disk.capacity_bytes = config.disk.directories.size() * (std::uint64_t{4096} * (40 + draw(200)));
      config.disk.write_policy = static_cast<WritePolicy>(draw(3));
      config.disk.queue_depth = 1 + draw(8);
      config.disk.zstd_level = draw(4) == 0 ? 1 : 0;
      if (draw(4) == 0) config.disk.write_bytes_per_day = std::uint64_t{24} << 20U;
    }
    open(std::move(config));
    ASSERT_TRUE(cache_->set_ready_callback([this](SequenceId) {
      ++ready_count_;
      EXPECT_TRUE(cache_->stats().has_value());
    }));
    dropper_ = std::make_unique<Dropper>();
    watcher_ = std::make_unique<Watcher>(*cache_);
  }
  /// In the order in which an engine would rather not do it: with everything under way.
  void close() {
    watcher_.reset();
    flights_.clear();
    for (const auto& actor : actors_) {
      if (draw(2) == 0) dropper_->drop(std::move(actor->live.sequence));
    }
    engine_.reset();
    cache_.reset();
    directs_.clear();  // some were never answered
    actors_.clear();   // handles outlive the cache
    dropper_.reset();
    now_ = 0;
    is_paused_ = false;
  }

  [[nodiscard]] std::uint32_t draw(std::uint32_t bound) { return random_.below(bound); }
  [[nodiscard]] std::vector<TokenId> draw_tokens(std::uint32_t parts_max) {
    std::vector<TokenId> tokens;
    std::uint32_t family = draw(5);
    const std::uint32_t part_count = 1 + draw(parts_max);
    for (std::uint32_t k = 0; k < part_count; ++k) {
      const auto part = token_range(static_cast<TokenId>(10 * family), draw(8) == 0 ? 3 + draw(6) : 8);
      tokens.insert(tokens.end(), part.begin(), part.end());
      family = draw(6) == 0 ? draw(5) : family + 1;  // few ways to go on: prompts come again
    }
    return tokens;
  }
  /// A sequence, or none.
  [[nodiscard]] Actor* pick() { return actors_.empty() ? nullptr : actors_[draw(actor_count())].get(); }
  [[nodiscard]] std::uint32_t actor_count() const { return static_cast<std::uint32_t>(actors_.size()); }
  [[nodiscard]] SequenceView view_of(const Actor& actor) const { return cache_->view(actor.live.sequence).value(); }

  void begin() {
    if (actors_.size() == kSequencesMax) return;
    const SequenceOptions options{.use_cache = draw(8) > 0,
                                  .publish = draw(6) == 0 ? Publish::None : Publish::All,
                                  .expected_tokens = draw(4) == 0 ? kTokensMax : 0,
                                  .prefetch = static_cast<Prefetch>(draw(4)),
                                  .load_timeout_ns = 20,
                                  .tier_max = static_cast<Tier>(std::min(2U, draw(8)))};
    auto actor = std::make_unique<Actor>();
    actor->live.tokens = draw_tokens(4);
    ASSERT_TRUE(cache_->lookup(space_, {.tokens = actor->live.tokens}, options));
    Result<Sequence> sequence = cache_->begin(space_, {.tokens = actor->live.tokens}, options);
    if (!sequence) return;  // a handle that was dropped has not been heard of yet
    actor->live.sequence = std::move(*sequence);
    if (draw(2) == 0) (void)cache_->admit(actor->live.sequence);
    actors_.push_back(std::move(actor));
  }
  void end_one(std::uint32_t index) {
    Actor& actor = *actors_[index];
    for (Flight& flight : flights_) {
      for (Part& part : flight.parts) {
        if (part.actor == &actor) part.actor = nullptr;
      }
    }
    switch (draw(3)) {
      case 0:
        dropper_->drop(std::move(actor.live.sequence));
        break;
      case 1:
        ASSERT_TRUE(cache_->end(actor.live.sequence, static_cast<Publish>(draw(3))));
        break;
      default:
        ASSERT_TRUE(cache_->end(actor.live.sequence));
    }
    actors_.erase(actors_.begin() + index);
  }

  // Steps. A step's work is done when it is finished, long after it was planned.
  void plan_some() {
    if (flights_.size() == 4) return;
    Flight flight;
    std::vector<StepEntry> entries;
    const std::uint32_t first = actors_.empty() ? 0 : draw(actor_count());
    for (std::uint32_t i = 0; i < actor_count() && entries.size() < 3; ++i) {
      Actor& actor = *actors_[(first + i) % actor_count()];
      const SequenceView view = view_of(actor);
      const bool is_ready = !view.is_waiting && !view.is_loading && !view.is_receiving && !view.is_planned;
      if (!is_ready || view.tree_tokens > 0 || view.pending_tokens == 0) continue;
      Part& part = flight.parts.emplace_back(Part{.actor = &actor, .tokens = actor.live.tokens});
      StepEntry entry{&actor.live.sequence};
      const bool runs_again = view.computed_tokens == view.token_count;
      if (draw(4) == 0 && !runs_again && view.token_count < kTokensMax) {
        part.parents = {-1, -1, 1, draw(2) == 0 ? 0 : 2};
        for (TokenId value = 0; value < 4; ++value) part.values.push_back(50 + value);
      } else if (draw(4) == 0) {
        entry.token_count = 1 + draw(view.pending_tokens);
      }
      entries.push_back(entry);
    }
    if (entries.empty()) return;
    for (std::size_t i = 0; i < entries.size(); ++i) entries[i].tree_parents = flight.parts[i].parents;
    Result<PlanOutcome> outcome = cache_->plan_step(entries);
    if (outcome && !outcome->step && outcome->shortage.entries_that_fit > 0) {
      flight.parts.resize(outcome->shortage.entries_that_fit);
      outcome = cache_->plan_step({entries.data(), flight.parts.size()});
    }
    if (!outcome || !outcome->step) return;  // refused, as one that is marked for sending with drafts
    flight.step = *outcome->step;
    ASSERT_TRUE(cache_->apply_copies(flight.step));
    for (std::uint32_t i = 0; i < flight.parts.size(); ++i) {
      const AttentionPlanEntry& entry = flight.step.plan.entries[place_of(flight.step, i)];
      Part& part = flight.parts[i];
      part.brings_token = entry.context_tokens == part.tokens.size() && part.tokens.size() < kTokensMax;
    }
    flights_.push_back(std::move(flight));
  }
  void finish_oldest() {
    if (flights_.empty()) return;
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    if (draw(10) == 0) {
      ASSERT_TRUE(cache_->abort_step(flight.step));
      return;
    }
    std::vector<TokenId> sampled(flight.parts.size());
    std::vector<StepResult> results(flight.parts.size());
    for (std::uint32_t i = 0; i < flight.parts.size(); ++i) {
      const Part& part = flight.parts[i];
      if (part.parents.empty()) {
        compute(flight.step, i, part.tokens);
      } else {
        const Live live{.tokens = part.tokens};
        compute_tree(flight.step, i, live, part.parents, part.values);
      }
      ASSERT_FALSE(HasFatalFailure());
      results[i].discard = draw(10) == 0;
      if (results[i].discard) continue;
      results[i].tokens = part.values;
      if (part.actor == nullptr) continue;
      Actor& actor = *part.actor;
      if (!part.parents.empty()) {
        actor.parents = part.parents;
        actor.values = part.values;
      } else if (part.brings_token && draw(2) == 0) {
        sampled[i] = static_cast<TokenId>(draw(30));
        results[i].tokens = {&sampled[i], 1};
        actor.live.tokens.push_back(sampled[i]);
      }
    }
    const Status status = cache_->finish_step(flight.step, results);
    ASSERT_TRUE(status.has_value()) << status.error().message;
  }
  void commit(Actor& actor) {
    if (view_of(actor).tree_tokens == 0 || view_of(actor).is_planned) return;
    const auto leaf = static_cast<std::int32_t>(draw(5)) - 1;
    ASSERT_TRUE(cache_->commit_tree(actor.live.sequence, leaf));
    std::vector<TokenId> path;
    for (std::int32_t node = leaf; node >= 0; node = actor.parents[node]) path.insert(path.begin(), actor.values[node]);
    actor.live.tokens.insert(actor.live.tokens.end(), path.begin(), path.end());
  }

  void change(Actor& actor) {
    const Sequence& sequence = actor.live.sequence;
    std::vector<TokenId>& tokens = actor.live.tokens;
    switch (draw(9)) {
      case 0: {
        const auto count = 1 + draw(static_cast<std::uint32_t>(tokens.size()));
        if (count < tokens.size() && cache_->rewind(sequence, count)) tokens.resize(tokens.size() - count);
        return;
      }
      case 1: {
        const std::vector<TokenId> added = draw_tokens(1);
        if (tokens.size() + added.size() > kTokensMax || !cache_->append(sequence, {.tokens = added})) return;
        tokens.insert(tokens.end(), added.begin(), added.end());
        return;
      }
      case 2: {
        if (actors_.size() == kSequencesMax) return;
        const std::uint32_t at = 1 + draw(static_cast<std::uint32_t>(tokens.size()));
        Result<Sequence> fork = cache_->fork(sequence, at);
        if (!fork) return;
        auto other = std::make_unique<Actor>();
        other->live = {std::move(*fork), {tokens.begin(), tokens.begin() + at}};
        actors_.push_back(std::move(other));
        return;
      }
      case 3:
        (void)cache_->preempt(sequence, Preempt::Save);
        return;
      case 4:
        (void)cache_->preempt(sequence, Preempt::Drop);
        return;
      case 5:
        (void)cache_->resume(sequence);
        return;
      case 6:
        (void)cache_->stop_loading(sequence);
        return;
      case 7:
        if (draw(4) == 0) (void)cache_->set_window(sequence, {.visible_tokens = 16, .sink_tokens = 4});
        return;
      default:
        receive(actor);
    }
  }
  void receive(Actor& actor) {
    const SequenceView view = view_of(actor);
    if (view.pending_tokens == 0 || view.computed_tokens == view.token_count) return;
    const Sequence& sequence = actor.live.sequence;
    const Result<std::span<const SlotRun>> slots = cache_->prepare_receive(sequence, 1 + draw(view.pending_tokens));
    if (!slots) return;
    if (draw(4) == 0) {
      ASSERT_TRUE(cache_->abort_receive(sequence));
      return;
    }
    std::uint32_t position = view.computed_tokens;
    for (const SlotRun& run : *slots) {
      for (std::int64_t i = 0; i < run.token_count; ++i)
        write(run.first_slot + i, value(actor.live.tokens, position++));
    }
    ASSERT_TRUE(cache_->finish_receive(sequence));
    const SlotRun target{.first_slot = 400, .token_count = 8};
    if (draw(4) == 0) (void)cache_->mark_send(sequence, 0, {&target, 1}, 1);
  }

  // Transfers.
  void apply_what_ended() {
    const Result<std::span<const Completion>> ended = cache_->poll();
    ASSERT_TRUE(ended.has_value());
    now_ += draw(8);
    ASSERT_TRUE(cache_->apply(*ended, now_));
  }
  /// Until nothing moves, woken by the event alone.
  void drain_by_event() {
    while (cache_->stats()->transfers_in_flight > 0) {
      const Result<std::span<const Completion>> ended = cache_->poll();
      ASSERT_TRUE(ended.has_value());
      if (ended->empty()) {
        pollfd event{.fd = cache_->event_fd(), .events = POLLIN, .revents = 0};
        ASSERT_EQ(::poll(&event, 1, /*milliseconds=*/30'000), 1) << "nothing was reported";
        continue;
      }
      ASSERT_TRUE(cache_->apply(*ended, now_));
    }
  }

  // The disk tier.
  struct Direct {
    std::vector<TokenId> tokens;
    std::vector<std::byte> bytes;
  };
  [[nodiscard]] std::vector<std::byte> bytes_of(std::span<const TokenId> tokens) const {
    std::vector<std::byte> bytes(tokens.size() * kTestTokenBytes);
    for (std::uint32_t i = 0; i < tokens.size(); ++i) {
      const std::uint64_t token_bytes = value(tokens, i);
      std::memcpy(bytes.data() + (std::size_t{i} * kTestTokenBytes), &token_bytes, sizeof(token_bytes));
    }
    return bytes;
  }
  void call_disk() {
    if (directs_.size() > 8) return;
    auto made = std::make_unique<Direct>();
    Direct& direct = *made;
    direct.tokens = draw_tokens(6);
    direct.tokens.resize(direct.tokens.size() / 16 * 16);
    if (direct.tokens.empty()) return;
    const auto answer = [this, &direct](const DiskAnswer& told) {
      ASSERT_LE(told.token_count, direct.tokens.size());
      const std::vector<std::byte> good = bytes_of(std::span(direct.tokens).first(told.token_count));
      const bool is_good = direct.bytes.empty() || std::equal(good.begin(), good.end(), direct.bytes.begin());
      EXPECT_TRUE(is_good) << "wrong bytes from disk";
      direct_hit_tokens_ += told.token_count;
      std::erase_if(directs_, [&](const auto& each) { return each.get() == &direct; });
    };
    const Prompt prompt{.tokens = direct.tokens};
    Status status;
    switch (draw(3)) {
      case 0:
        status = cache_->lookup_on_disk(space_, prompt, answer);
        break;
      case 1:
        direct.bytes = bytes_of(direct.tokens);
        status = cache_->put_on_disk(space_, prompt, direct.bytes, answer);
        break;
      default:
        direct.bytes.resize(direct.tokens.size() * kTestTokenBytes);
        status = cache_->get_from_disk(space_, prompt, direct.bytes, answer);
    }
    if (status) directs_.push_back(std::move(made));
  }
  void use_disk() {
    if (!directory_) return;
    switch (draw(8)) {
      case 0:
      case 1: {
        const Result<bool> flushed = cache_->flush();
        ASSERT_TRUE(flushed.has_value()) << flushed.error().message;
        return;
      }
      case 2:
        ASSERT_TRUE(cache_->disk_status()->last_error.empty()) << cache_->disk_status()->last_error;
        return;
      default:
        call_disk();
    }
  }

  // Standing still.
  void end_all() {
    while (!flights_.empty()) finish_oldest();
    while (!actors_.empty()) end_one(actor_count() - 1);
    dropper_->finish();
  }
  void reset() {
    end_all();
    ASSERT_TRUE(cache_->reset());
    if (draw(2) == 0) return;  // with what was moving still on its way
    drain_by_event();
    EXPECT_EQ(stats().free_pages, stats().page_count);
    EXPECT_EQ(stats().host_free_pages, stats().host_page_count);
  }
  void sleep() {
    while (!flights_.empty()) finish_oldest();
    for (std::uint32_t i = actor_count(); i-- > 0;) {
      Actor& actor = *actors_[i];
      if (view_of(actor).tree_tokens > 0) commit(actor);
      if (view_of(actor).is_waiting) continue;
      if (!cache_->preempt(actor.live.sequence, static_cast<Preempt>(draw(2)))) end_one(i);
    }
    dropper_->finish();
    drain_by_event();
    const auto how = static_cast<Sleep>(draw(2));
    for (int i = 0; i < 100; ++i) {
      const Result<bool> is_asleep = cache_->sleep(how);
      if (!is_asleep) break;  // one is saved, or could not be
      if (*is_asleep) {
        EXPECT_EQ(stats().free_pages, stats().page_count);
        begin();
        expect_invariants();
        break;
      }
      drain_by_event();
    }
    ASSERT_TRUE(cache_->wake());
  }
  void resize() {
    while (!flights_.empty()) finish_oldest();
    ASSERT_TRUE(cache_->pause_transfers().has_value());
    drain_by_event();
    ASSERT_TRUE(cache_->pause_transfers().value());
    (void)cache_->resize(18 + draw(30));
    ASSERT_TRUE(cache_->resume_transfers());
    is_paused_ = false;
  }
  void change_space() {
    switch (draw(16)) {
      case 0:
        ASSERT_TRUE(cache_->drop(space_));
        space_ = cache_->key_space({.model = "test"}).value();
        return;
      case 1:
        ASSERT_TRUE(cache_->reclaim(draw(8)));
        return;
      case 2:
      case 3:
      case 4:
        if (is_paused_) {
          ASSERT_TRUE(cache_->resume_transfers());
        } else {
          ASSERT_TRUE(cache_->pause_transfers().has_value());
        }
        is_paused_ = !is_paused_;
        return;
      case 5:
      case 6:
        if (const Result<Kept> kept = cache_->keep(space_, {.tokens = draw_tokens(2)}, 30); kept && draw(2) == 0) {
          ASSERT_TRUE(cache_->unkeep(kept->id));
        }
        return;
      default:
        ASSERT_TRUE(cache_->reclaim(draw(4)));
    }
  }
  void observe() {
    expect_invariants();
    ASSERT_TRUE(cache_->visit_runs([](const RunView&) {}));
    std::array<ResidencyRecord, 8> records;
    ASSERT_TRUE(cache_->read_residency(0, records));
    ASSERT_TRUE(cache_->host_region());
    std::array<TransferPlan, 1> plans;
    EXPECT_FALSE(cache_->take_transfers(plans).has_value());
    std::array<TransferId, 1> ids;
    EXPECT_FALSE(cache_->take_cancellations(ids).has_value());
    EXPECT_FALSE(cache_->match(space_, {}).has_value());
    EXPECT_FALSE(cache_->offer(space_, {}).has_value());
    EXPECT_FALSE(cache_->take_released({}).has_value());
    ASSERT_TRUE(cache_->advance(++now_));
  }

  void do_one() {
    const std::uint32_t kind = draw(100);
    if (kind < 12) {
      begin();
    } else if (kind < 30) {
      plan_some();
    } else if (kind < 46) {
      finish_oldest();
    } else if (kind < 58) {
      if (draw(2) == 0) {
        apply_what_ended();
      } else {
        drain_by_event();
      }
    } else if (kind < 72) {
      if (Actor* const actor = pick()) change(*actor);
    } else if (kind < 76) {
      if (Actor* const actor = pick()) commit(*actor);
    } else if (kind < 84) {
      if (Actor* const actor = pick()) {
        (void)(draw(2) == 0 ? cache_->admit(actor->live.sequence) : cache_->resume(actor->live.sequence));
      }
    } else if (kind < 85) {
      use_disk();
    } else if (kind < 92) {
      if (!actors_.empty()) end_one(draw(actor_count()));
    } else if (kind < 96) {
      change_space();
    } else if (kind < 98) {
      observe();
      use_disk();
    } else {
      switch (draw(16)) {
        case 0:
          reset();
          return;
        case 1:
          sleep();
          return;
        case 2:
          resize();
          return;
        default:
          drain_by_event();
      }
    }
  }
  void run_calls(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      do_one();
      if (HasFailure()) return;
    }
  }

  /// One cache after the other; those with a disk tier begin with what others have left there, mostly.
  void run_seeds(std::uint64_t seed_count, bool has_disk) {
    const char* const only_seed = std::getenv("QUIRE_SEED");
    const std::uint64_t first = only_seed != nullptr ? std::strtoull(only_seed, nullptr, 10) : 1;
    const std::uint64_t count = only_seed != nullptr ? 1 : seed_count;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
      SCOPED_TRACE("QUIRE_SEED=" + std::to_string(seed) + " bin/cache_tiers_thread_test");
      random_ = testing::Random(seed);
      if (has_disk && (!directory_ || seed % 4 == 1)) directory_ = std::make_unique<testing::TempDirectory>();
      open_random();
      run_calls(1'500);
      if (HasFailure()) break;
      std::thread([this] {  // the cache changes hands
        cache_->set_owner_thread();
        run_calls(1'500);
      })
          .join();
      cache_->set_owner_thread();
      if (HasFailure()) break;
      run_calls(500);
      if (HasFailure()) break;
      expect_invariants();
      host_hit_tokens_ += stats().host_hit_tokens;
      disk_hit_tokens_ += stats().disk_hit_tokens;
      close();
    }
    if (HasFailure()) {
      watcher_.reset();
      return;
    }
    if (only_seed != nullptr) return;
    EXPECT_GT(host_hit_tokens_, 0U);
    EXPECT_GT(ready_count_, 0U);
  }

  testing::Random random_{0};
  std::vector<std::unique_ptr<Actor>> actors_;
  std::deque<Flight> flights_;
  std::unique_ptr<Dropper> dropper_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<testing::TempDirectory> directory_;  // null without a disk tier
  std::vector<std::unique_ptr<Direct>> directs_;
  TimeNs now_ = 0;
  bool is_paused_ = false;
  std::uint64_t ready_count_ = 0;
  std::uint64_t direct_hit_tokens_ = 0;
  std::uint64_t host_hit_tokens_ = 0;
  std::uint64_t disk_hit_tokens_ = 0;
};

TEST_F(CacheTiersThread, EveryCallGoesOnWhileBytesMove) {
  run_seeds(testing::kIsSanitized ? 16 : 400, /*has_disk=*/false);
}

TEST_F(CacheTiersThread, EveryCallGoesOnWhileFilesAreReadAndWritten) {
  run_seeds(testing::kIsSanitized ? 8 : 24, /*has_disk=*/true);
  if (HasFailure()) return;
  EXPECT_GT(disk_hit_tokens_, 0U);
  EXPECT_GT(direct_hit_tokens_, 0U);
}

}  // namespace
}  // namespace quire
