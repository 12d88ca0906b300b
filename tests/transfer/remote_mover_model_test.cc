// SPDX-License-Identifier: Apache-2.0
//
// Random plans of several engines on one server that does everything it may: it is late, fails, loses values and gives
// wrong ones, is away for a while and comes back empty. The twin knows what every page of every prompt holds, which
// plans are out, when they were sent, and what the server has dropped. Never a wrong byte; for each plan one
// completion, and in time; a drop is over at once, hides its key space until the server has made it, and a flush that
// ends well says that it has.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "testing/sanitized.h"
#include "testing/seeded_run.h"
#include "tests/transfer/remote_mover_fixture.h"
#include "wire/extent.h"

namespace quire {
namespace {

using testing::Op;
using testing::Random;
using testing::SimRemoteServer;

constexpr std::uint32_t kPromptPages = 30;
constexpr std::uint32_t kPromptCount = 6;
constexpr std::uint32_t kKeySpaces = 2;
constexpr std::uint32_t kExtentPages = 4;
constexpr std::uint32_t kPlaces = 3;  // prompts that lie on the host at once
// Which indices plans have.
constexpr std::uint32_t kFinds = 4;
constexpr std::uint32_t kFirstLoad = 4;
constexpr std::uint32_t kFirstStore = 8;
constexpr std::uint32_t kFirstDirect = 12;
constexpr std::uint32_t kDrop = 14;
constexpr std::uint32_t kFlush = 15;

class RemoteMoverModel {
 public:
  RemoteMoverModel(Random& random, bool has_faults, RemoteMoverStats& totals)
      : server_(random.next()), has_faults_(has_faults), totals_(totals) {
    server_.set_now(now_);
    for (std::uint32_t i = 0; i < kPromptCount; ++i) {
      // Each goes on with another page of the first.
      RemotePrompt prompt = remote_prompt(0, kPromptPages);
      const RemotePrompt own = remote_prompt(i, kPromptPages);
      std::copy(own.begin() + std::ptrdiff_t{5} * i * kRemotePageTokens, own.end(),
                prompt.begin() + std::ptrdiff_t{5} * i * kRemotePageTokens);
      prompts_.push_back(prompt);
    }
    // Two of one layout, and one that must never see what they put.
    const std::array<std::uint32_t, 3> first_pages = {1, 30, 7};
    for (std::uint32_t i = 0; i < 3; ++i) {
      Engine& engine = engines_.emplace_back();
      engine.store = std::make_unique<testing::SimRemoteStore>(server_);
      engine.engine = std::make_unique<RemoteEngine>(
          *engine.store, RemoteEngineConfig{.layout = i == 2 ? 2U : 1U, .first_page = first_pages[i]}, &now_);
    }
  }

  ~RemoteMoverModel() {
    for (const Engine& engine : engines_) {
      const RemoteMoverStats stats = engine.engine->mover->stats();
      for (const auto field : kCounted) totals_.*field += stats.*field;
    }
  }
  RemoteMoverModel(const RemoteMoverModel&) = delete;
  RemoteMoverModel& operator=(const RemoteMoverModel&) = delete;

  /// What must have happened for a run to have tried anything.
  static constexpr std::array kCounted = {
      &RemoteMoverStats::spared_names,   &RemoteMoverStats::got_values,     &RemoteMoverStats::put_values,
      &RemoteMoverStats::kept_values,    &RemoteMoverStats::skipped_pages,  &RemoteMoverStats::absent_values,
      &RemoteMoverStats::corrupt_values, &RemoteMoverStats::foreign_values, &RemoteMoverStats::late_objects,
      &RemoteMoverStats::failed_objects, &RemoteMoverStats::failed_drops};

  std::string apply(const Op& op) {
    Engine& engine = engines_[op.draws[0] % engines_.size()];
    const std::uint32_t a = op.draws[1];
    const std::uint32_t b = op.draws[2];
    const std::uint32_t c = op.draws[3];
    switch (op.kind % 32) {
      case 0:
      case 1:
        send_find(engine, a, b, c);
        break;
      case 2:
      case 3:
      case 4:
        send_load(engine, a, b, c);
        break;
      case 5:
      case 6:
      case 7:
        send_store(engine, a, b, c);
        break;
      case 8:
        move_in(engine, a, b, c);
        break;
      case 9:
        send_direct(engine, a, b, c);
        break;
      case 10:
        if (a % 32 == 0) send_drop(engine, b);
        if (a % 8 == 1) send_flush(engine);
        break;
      case 11:
        cancel(engine, a);
        break;
      case 12:
        return advance(b % 8 == 0 ? TimeNs{c} * 100 : TimeNs{c % 1'000'000});
      case 13:
        change_server(a, b, c);
        break;
      case 14:
        if (a % 4 == 0) return check_find(engine, b, c);
        break;
      case 15:
        if (a % 16 == 0) return drain();
        break;
      default:
        if (op.kind % 2 == 0) (void)engine.engine->mover->run();
        if (op.kind % 2 == 1) (void)server_.run_one();
    }
    return hear();
  }

 private:
  struct Plan {
    TransferId id;
    TransferKind kind = TransferKind::FindBelow;
    TimeNs sent_ns = 0;
    std::uint32_t prompt = 0;
    std::uint32_t key_space = 0;
    std::uint32_t pool = 0;
    std::uint32_t first = 0;  // page of the prompt
    std::uint32_t count = 0;
    std::uint32_t place = 0;
    std::uint32_t found_by = UINT32_MAX;
    std::uint32_t held = 0;                        // of a find
    std::uint32_t found_pages = 0;                 // of a find that has ended: behind those that are held
    std::map<std::uint32_t, std::uint64_t> drops;  // before it, as the engine's
  };
  struct Lying {
    std::uint32_t prompt = 0;
    std::uint32_t key_space = 0;
    bool is_there = false;
  };
  struct Engine {
    std::unique_ptr<testing::SimRemoteStore> store;
    std::unique_ptr<RemoteEngine> engine;
    std::map<std::uint32_t, Plan> out;    // by index
    std::map<std::uint32_t, Plan> found;  // finds that have ended
    std::array<Lying, kPlaces> lying;
    std::map<std::uint32_t, std::uint64_t> drops;  // by key space: how many batches had ended when it was last dropped
  };

  static std::uint32_t place_of(std::uint32_t lying) { return lying * kPromptPages; }
  static std::uint32_t load_place(std::uint32_t index) { return 100 + ((index - kFirstLoad) * 16); }
  [[nodiscard]] static bool is_used(const Engine& engine, std::uint32_t find) {
    return std::ranges::any_of(engine.out, [&](const auto& plan) { return plan.second.found_by == find; });
  }
  [[nodiscard]] RemotePrompt part_of(std::uint32_t prompt, std::uint32_t page_count) const {
    const RemotePrompt& whole = prompts_[prompt];
    return {whole.begin(), whole.begin() + std::ptrdiff_t{page_count} * kRemotePageTokens};
  }

  void send_find(Engine& engine, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint32_t index = a % kFinds;
    if (engine.out.contains(index) || is_used(engine, index)) return;
    engine.found.erase(index);
    Plan plan{.prompt = b % kPromptCount, .key_space = (b >> 8U) % kKeySpaces};
    RemoteEngine::Asked asked{.key_space = plan.key_space, .has_anchored = (c & 1U) != 0};
    const std::uint32_t lying = (c >> 1U) % kPlaces;
    if ((c & 16U) != 0 && engine.lying[lying].is_there) {
      plan.prompt = engine.lying[lying].prompt;
      asked.key_space = plan.key_space = engine.lying[lying].key_space;
      asked.first_page = plan.first = (c >> 5U) % kPromptPages;
      asked.parent_place = place_of(lying);
      asked.tells_before = (c & 2U) != 0;
    }
    plan.count = (c >> 10U) % (kPromptPages - plan.first + 1);
    if (plan.count == 0) return;
    asked.held_pages = plan.held = (c >> 16U) % 6 % plan.count;
    send(engine, plan, engine.engine->submit_find(index, part_of(plan.prompt, plan.first + plan.count), asked),
         TransferKind::FindBelow);
  }

  void send_load(Engine& engine, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint32_t index = kFirstLoad + (a % 4);
    const std::uint32_t find = b % kFinds;
    if (engine.out.contains(index) || !engine.found.contains(find)) return;
    const Plan& found = engine.found[find];
    if (found.found_pages == 0) return;
    Plan plan = found;
    plan.found_by = find;
    plan.pool = (b >> 4U) % 4 == 0 ? 1 : 0;
    const std::uint32_t skipped = c % found.found_pages;
    const std::uint32_t begin = found.held + skipped;
    plan.count = 1 + ((c >> 8U) % std::min(16U, found.found_pages - skipped));
    plan.first = found.first + begin;
    plan.place = load_place(index);
    send(engine, plan, engine.engine->submit_load(index, find, begin, plan.count, plan.place, plan.pool),
         TransferKind::LoadFromBelow);
  }

  void send_store(Engine& engine, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint32_t index = kFirstStore + (a % 4);
    const std::uint32_t lying = b % kPlaces;
    if (engine.out.contains(index) || !engine.lying[lying].is_there) return;
    Plan plan{.pool = (b >> 4U) % 4 == 0 ? 1U : 0U, .first = c % kPromptPages, .place = lying};
    if ((c & 256U) != 0) plan.first -= plan.first % kExtentPages;
    plan.count = 1 + ((c >> 9U) % std::min(16U, kPromptPages - plan.first));
    send(engine, plan, engine.engine->submit_store(index, place_of(lying) + plan.first, plan.count, plan.pool),
         TransferKind::StoreBelow);
  }

  void move_in(Engine& engine, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint32_t lying = a % kPlaces;
    const bool is_read = std::ranges::any_of(engine.out, [&](const auto& plan) {
      return plan.second.kind == TransferKind::StoreBelow && plan.second.place == lying;
    });
    if (is_read) return;
    engine.lying[lying] = {.prompt = b % kPromptCount, .key_space = c % kKeySpaces, .is_there = true};
    engine.engine->put_on_host(prompts_[b % kPromptCount], place_of(lying), c % kKeySpaces);
  }

  void send_direct(Engine& engine, std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    const std::uint32_t index = kFirstDirect + (a % 2);
    if (engine.out.contains(index)) return;
    Plan plan{.prompt = b % kPromptCount, .count = 3 + (c % (kPromptPages - 2))};
    const TransferKind kind = (a & 8U) != 0 ? TransferKind::GetFromBelow : TransferKind::PutBelow;
    send(engine, plan, engine.engine->submit_direct(kind, index, part_of(plan.prompt, plan.count), 2), kind);
  }

  void send_drop(Engine& engine, std::uint32_t b) {
    if (engine.out.contains(kDrop)) return;
    const std::uint32_t key_space = b % 8 == 0 ? kAllKeySpaces : b % kKeySpaces;
    send(engine, {}, engine.engine->submit_drop(kDrop, key_space), TransferKind::DropBelow);
    engine.drops[key_space] = server_.counts().batches;
  }
  /// Whether what was dropped then has not been dropped by the server since.
  [[nodiscard]] static bool is_open(const Engine& engine, std::uint32_t key_space, std::uint64_t since) {
    std::array<char, kRemoteKeyBytesMax> room;
    const auto dropped_at = [&](const PageName& name) {
      return engine.store->dropped_at(write_key_space_prefix("quire", name, room));
    };
    const bool is_all = key_space == kAllKeySpaces;
    return dropped_at({}) <= since && (is_all || dropped_at(name_of(key_space)) <= since);
  }
  /// Whether nothing may come of a plan, which was sent behind a drop that the server has not made yet.
  [[nodiscard]] static bool is_hidden(const Engine& engine, const Plan& plan) {
    return std::ranges::any_of(plan.drops, [&](const auto& drop) {
      const auto& [key_space, since] = drop;
      return (key_space == plan.key_space || key_space == kAllKeySpaces) && is_open(engine, key_space, since);
    });
  }
  [[nodiscard]] static PageName name_of(std::uint32_t key_space) {
    return key_space_name(KeySpace{.model = "m" + std::to_string(key_space)});
  }
  void send_flush(Engine& engine) {
    if (engine.out.contains(kFlush)) return;
    send(engine, {}, engine.engine->submit_flush(kFlush), TransferKind::FlushBelow);
  }
  void send(Engine& engine, Plan plan, TransferId id, TransferKind kind) {
    plan.id = id;
    plan.kind = kind;
    plan.sent_ns = now_;
    plan.drops = engine.drops;
    engine.out[id.index] = plan;
  }
  static void cancel(Engine& engine, std::uint32_t a) {
    if (engine.out.empty()) return;
    engine.engine->mover->cancel(std::next(engine.out.begin(), a % engine.out.size())->second.id);
  }

  void change_server(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
    if (!has_faults_) return;
    Random random((std::uint64_t{b} << 32U) | c);
    const auto some = [&] { return random.below(3) == 0 ? random.below(200) : 0; };
    switch (a % 8) {
      case 0:
        server_.set_faults({.refused_batches = some(),
                            .late = some(),
                            .failed = some(),
                            .lost_puts = some(),
                            .gone = some(),
                            .promised = some(),
                            .flipped_bits = some(),
                            .foreign = some(),
                            .other_lengths = some()});
        break;
      case 1:
        server_.set_faults({});
        server_.set_node(SimRemoteServer::Node::Up);
        break;
      case 2:
        server_.set_node(static_cast<SimRemoteServer::Node>(b % 3));
        break;
      case 3:
        server_.set_value_count_max(
            1 + (b % 40), c % 2 == 0 ? SimRemoteServer::Eviction::LeastUsed : SimRemoteServer::Eviction::Random);
        break;
      case 4:
        if (b % 4 == 0) server_.restart_empty();
        break;
      case 5:
        server_.set_batch_count_max(b % 5);
        break;
      default: {  // a stranger
        const std::vector<std::string> keys = server_.keys();
        if (keys.empty()) return;
        const std::string& key = keys[b % keys.size()];
        std::vector<std::byte> value = server_.value(c % 4 == 0 ? keys[c % keys.size()] : key);
        if (c % 4 == 1 && !value.empty()) value[c % value.size()] ^= std::byte{16};
        if (c % 4 == 2) value.resize(c % (value.size() + 9));
        server_.put_value(key, std::move(value));
      }
    }
  }

  std::string advance(TimeNs by_ns) {
    run_movers();  // whose threads would not have slept meanwhile
    now_ += by_ns;
    server_.set_now(now_);
    run_movers();
    if (std::string fault = hear(); !fault.empty()) return fault;
    for (const Engine& engine : engines_) {
      for (const auto& [index, plan] : engine.out) {
        const TimeNs age_ns = now_ - plan.sent_ns;
        if (plan.kind == TransferKind::FindBelow && age_ns > 100'000'000) return "a question is late";
        if (plan.kind == TransferKind::LoadFromBelow && age_ns > 500'000'000) return "a load is late";
        if (plan.kind == TransferKind::DropBelow) return "a drop is waited for";
      }
    }
    return "";
  }
  void run_movers() {
    for (const Engine& engine : engines_) {
      while (engine.engine->mover->run()) {
      }
    }
  }
  void settle() {
    do {
      run_movers();
    } while (server_.run_one());
    run_movers();
  }

  // Every plan ends, whatever the server does, when time goes on.
  std::string drain() {
    for (int i = 0; i < 200; ++i) {
      if (std::string fault = advance(1'000'000'000); !fault.empty()) return fault;
      if (i % 2 == 0) settle();
      if (std::string fault = hear(); !fault.empty()) return fault;
      if (std::ranges::all_of(engines_, [](const Engine& engine) { return engine.out.empty(); })) break;
    }
    for (const Engine& engine : engines_) {
      if (!engine.out.empty()) return "a plan has no completion";
      if (!engine.engine->history.is_at_rest() || !engine.engine->window.is_at_rest()) return "a page is still in use";
    }
    return "";
  }

  // Without faults a question finds all that is there from the beginning on, and nothing else.
  std::string check_find(Engine& engine, std::uint32_t b, std::uint32_t c) {
    if (has_faults_) return "";
    if (std::string fault = drain(); !fault.empty()) return fault;
    for (int i = 0; i < 3; ++i) {  // drops that are made twice, and then what was absent a moment ago
      (void)advance(2'000'000'000);
      settle();
    }
    const std::uint32_t prompt = b % kPromptCount;
    const std::uint32_t key_space = c % kKeySpaces;
    const PageName space = name_of(key_space);
    std::vector<PageName> names(kPromptPages);
    name_pages({.parent = root_name(space, kRemotePageTokens),
                .page_tokens = kRemotePageTokens,
                .first_position = 0,
                .tokens = prompts_[prompt],
                .extra_keys = {}},
               names);
    const std::vector<std::string> keys = server_.keys();
    const std::set<std::string> there(keys.begin(), keys.end());
    std::uint32_t wanted = 0;
    std::array<char, kRemoteKeyBytesMax> room;
    const std::uint64_t layout = &engine == &engines_[2] ? 2 : 1;
    while (wanted + kExtentPages <= kPromptPages &&
           there.contains(std::string(write_extent_key({.prefix = "quire",
                                                        .key_space = space,
                                                        .layout = layout,
                                                        .page_count = kExtentPages,
                                                        .name = names[wanted + kExtentPages - 1]},
                                                       room)))) {
      wanted += kExtentPages;
    }
    // A hole that is not at one of the places that are asked for is seen by the load only.
    const TransferId id = engine.engine->submit_find(0, prompts_[prompt], {.key_space = key_space});
    engine.found.erase(0);
    settle();
    const auto completion = engine.engine->heard(id);
    if (!completion) return "a question is not answered";
    if (completion->good_pages < wanted) return "a question does not find what is there";
    if (completion->good_pages > wanted && !has_hole(there, names, space, layout, wanted)) {
      return "a question finds what is not there";
    }
    return "";
  }
  [[nodiscard]] static bool has_hole(const std::set<std::string>& there, const std::vector<PageName>& names,
                                     const PageName& space, std::uint64_t layout, std::uint32_t from) {
    std::array<char, kRemoteKeyBytesMax> room;
    for (std::uint32_t page = from; page + kExtentPages <= kPromptPages; page += kExtentPages) {
      const ExtentKey key{.prefix = "quire",
                          .key_space = space,
                          .layout = layout,
                          .page_count = kExtentPages,
                          .name = names[page + kExtentPages - 1]};
      if (there.contains(std::string(write_extent_key(key, room)))) return true;
    }
    return false;
  }

  std::string hear() {
    for (Engine& engine : engines_) {
      engine.engine->hear();
      for (const Completion& completion : engine.engine->completions) {
        const auto plan = engine.out.find(completion.id.index);
        if (plan == engine.out.end() || plan->second.id != completion.id) return "a completion of no plan";
        if (completion.kind != plan->second.kind) return "a completion of another kind";
        if (std::string fault = check(engine, plan->second, completion); !fault.empty()) return fault;
        engine.out.erase(plan);
      }
      engine.engine->completions.clear();
    }
    return "";
  }

  std::string check(Engine& engine, Plan plan, const Completion& completion) {
    const RemoteEngine& each = *engine.engine;
    const bool reads = plan.kind == TransferKind::FindBelow || plan.kind == TransferKind::LoadFromBelow ||
                       plan.kind == TransferKind::GetFromBelow;
    if (reads && completion.good_pages > 0 && is_hidden(engine, plan)) return "something is found that was dropped";
    switch (plan.kind) {
      case TransferKind::FindBelow: {
        if (completion.good_pages > plan.count - plan.held) return "a question finds more than was asked for";
        if (completion.good_pages > 0 && (plan.first + plan.held + completion.good_pages) % kExtentPages != 0) {
          return "a question finds a part of an extent";
        }
        plan.found_pages = completion.good_pages;
        engine.found[plan.id.index] = plan;
        return "";
      }
      case TransferKind::LoadFromBelow:
        for (std::uint32_t i = 0; i < plan.count; ++i) {
          const RemoteHost& host = plan.pool == 0 ? each.history : each.window;
          const auto bytes = host.bytes_of(each.host_page(plan.place, i));
          if (i >= completion.good_pages) {
            // One that is cancelled before its turn has not touched them.
            const bool may_have = completion.outcome == TransferOutcome::Cancelled;
            if (bytes && !may_have) return "a page that did not come has data";
          } else if (!bytes ||
                     *bytes != each.bytes_of(prompts_[plan.prompt], plan.first + i, plan.pool, plan.key_space)) {
            return "a page came with wrong bytes";
          }
        }
        return (completion.outcome == TransferOutcome::Ok) == (completion.good_pages == plan.count)
                   ? ""
                   : "a load ends well without its pages";
      case TransferKind::GetFromBelow: {
        const std::vector<std::byte> wanted = each.direct_bytes(part_of(plan.prompt, plan.count), 2);
        const std::vector<std::byte>& bytes = each.bytes(plan.id.index);
        const auto same = [&](std::size_t begin, std::size_t length) {
          return std::equal(bytes.begin() + static_cast<std::ptrdiff_t>(begin),
                            bytes.begin() + static_cast<std::ptrdiff_t>(begin + length),
                            wanted.begin() + static_cast<std::ptrdiff_t>(begin));
        };
        if (!same(0, completion.good_pages * kRemotePageBytes[0])) return "a direct call reads wrong bytes";
        for (std::uint32_t i = 0; i < 2; ++i) {
          const bool is_there = each.anchored(plan.id.index)[plan.count - 2 + i] != 0;
          const std::size_t begin = (plan.count * kRemotePageBytes[0]) + (i * kRemotePageBytes[1]);
          if (is_there && !same(begin, kRemotePageBytes[1])) return "a direct call reads wrong bytes of a group";
        }
        return "";
      }
      case TransferKind::DropBelow:
        return completion.outcome == TransferOutcome::Ok ? "" : "a drop fails";
      case TransferKind::FlushBelow:
        if (completion.outcome != TransferOutcome::Ok) return plan.drops.empty() ? "a flush fails without a drop" : "";
        for (const auto& [key_space, since] : plan.drops) {
          if (is_open(engine, key_space, since)) return "a flush ends well before a drop";
        }
        return "";
      case TransferKind::StoreBelow:
        return completion.good_pages <= plan.count ? "" : "a store has more pages than it was given";
      default:
        return "";
    }
  }

  SimRemoteServer server_;
  bool has_faults_;
  RemoteMoverStats& totals_;
  TimeNs now_ = 1'000;
  std::vector<RemotePrompt> prompts_;
  std::vector<Engine> engines_;
};

TEST(RemoteMoverModel, RandomPlansOnAServerThatDoesEverythingItMay) {
  RemoteMoverStats totals;
  EXPECT_EQ(testing::run_seeds({.test = "bin/remote_mover_model_test --gtest_filter='*EverythingItMay'",
                                .seed_count = testing::kIsSanitized ? 5U : 40U,
                                .step_count = 10'000},
                               [&](Random& random) { return RemoteMoverModel(random, true, totals); }),
            "");
  if (testing::kIsSanitized) return;  // too few to see everything
  EXPECT_GT(totals.got_values, 500U);
  for (const auto field : RemoteMoverModel::kCounted) EXPECT_GT(totals.*field, 0U);
}

TEST(RemoteMoverModel, RandomPlansOnAServerWithoutFaults) {
  RemoteMoverStats totals;
  EXPECT_EQ(testing::run_seeds({.test = "bin/remote_mover_model_test --gtest_filter='*WithoutFaults'",
                                .seed_count = testing::kIsSanitized ? 3U : 15U,
                                .step_count = 10'000},
                               [&](Random& random) { return RemoteMoverModel(random, false, totals); }),
            "");
  EXPECT_GT(totals.got_values, 200U);
  EXPECT_EQ(totals.corrupt_values + totals.foreign_values + totals.failed_objects, 0U);
}

}  // namespace
}  // namespace quire
