// SPDX-License-Identifier: Apache-2.0
#include "workload.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace quire {

namespace {

using Tokens = std::vector<TokenId>;

constexpr std::uint32_t kVocabulary = 32'000;
constexpr std::uint64_t kSecondMs = 1'000;
constexpr std::uint64_t kMinuteMs = 60 * kSecondMs;
constexpr TimeNs kMillisecondNs = 1'000'000;

constexpr std::array<const char*, 4> kTenants = {"acme", "borealis", "cobalt", "dune"};
constexpr std::uint32_t kPayingTenant = 3;

constexpr std::int8_t kBatchPriority = -2;
constexpr std::int8_t kUsualPriority = 0;
constexpr std::int8_t kPayingPriority = 1;
constexpr std::int8_t kAgentPriority = 2;

/// splitmix64. The standard's distributions differ from library to library, so numbers are drawn without them. The
/// order in which arguments are evaluated differs too, so an expression draws once. single-threaded.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(seed) {}

  /// From `low` to `high`, both included.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) { return low + next() % (high - low + 1); }
  std::uint64_t seconds(std::uint64_t low, std::uint64_t high) { return between(low * kSecondMs, high * kSecondMs); }
  bool one_in(std::uint64_t count) { return next() % count == 0; }

  Tokens text(std::uint64_t count_min, std::uint64_t count_max) {
    Tokens tokens(between(count_min, count_max));
    for (TokenId& token : tokens) token = static_cast<TokenId>(next() % kVocabulary);
    return tokens;
  }

 private:
  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31U);
  }

  std::uint64_t state_;
};

void append(Tokens& text, const Tokens& tail) {
  text.insert(text.end(), tail.begin(), tail.end());
}

struct Client {
  std::uint32_t tenant = 0;
  std::int8_t priority = kUsualPriority;
};

/// Writes one kind of traffic after the other, each with the times of its requests; trace() puts them in order.
/// single-threaded.
class Workload {
 public:
  explicit Workload(std::uint64_t seed) : draw_(seed) {
    // Written once, and used by all tenants.
    assistant_prompt_ = draw_.text(400, 400);
    agent_prompt_ = draw_.text(500, 500);
    for (int tool = 0; tool < 8; ++tool) append(agent_prompt_, draw_.text(60, 140));
    for (Tokens& document : documents_) document = draw_.text(2'000, 5'000);
  }

  /// People who ask, read the answer, and ask again; some of them come back much later.
  void add_chats(std::uint32_t chat_count) {
    for (std::uint32_t i = 0; i < chat_count; ++i) {
      const auto tenant = static_cast<std::uint32_t>(draw_.between(0, kTenants.size() - 1));
      const Client client{.tenant = tenant, .priority = tenant == kPayingTenant ? kPayingPriority : kUsualPriority};
      Tokens text = assistant_prompt_;
      std::uint64_t time_ms = arrival_ms();
      for (std::uint64_t turns = draw_.between(1, 9); turns > 0; --turns) {
        append(text, draw_.text(15, 110));
        ask(client, time_ms, text, draw_.text(40, 220));
        time_ms += draw_.one_in(8) ? draw_.seconds(400, 1'200) : draw_.seconds(30, 300);
      }
    }
  }

  /// Agents call tools and read results in many short turns. Now and then one sends out others, which know all it
  /// knows, work side by side and report in a few words.
  void add_agents(std::uint32_t agent_count) {
    for (std::uint32_t i = 0; i < agent_count; ++i) {
      const Client client{.tenant = i % static_cast<std::uint32_t>(kTenants.size()), .priority = kAgentPriority};
      Tokens text = agent_prompt_;
      append(text, draw_.text(60, 300));
      std::uint64_t time_ms = arrival_ms();
      for (std::uint64_t turns = draw_.between(8, 20); turns > 0; --turns) {
        call_tool(client, time_ms, text);
        if (draw_.one_in(12)) time_ms = send_out_agents(client, time_ms, text);
      }
      ask(client, time_ms, text, draw_.text(150, 400));
    }
  }

  /// A document is the talk of the day: within seconds, many users of a tenant ask about it, and fewer in the minutes
  /// after. Each is talked about by two tenants.
  void add_crowds(std::uint32_t crowd_count) {
    for (std::uint32_t i = 0; i < crowd_count; ++i) {
      const Client client{.tenant = i % static_cast<std::uint32_t>(kTenants.size())};
      const Tokens& document = documents_[i / 2 % documents_.size()];
      const std::uint64_t start_ms = arrival_ms();
      for (std::uint64_t users = draw_.between(8, 20); users > 0; --users) {
        Tokens text = assistant_prompt_;
        append(text, document);
        append(text, draw_.text(10, 60));
        const std::uint64_t delay_ms = draw_.one_in(5) ? draw_.seconds(60, 480) : draw_.seconds(0, 12);
        ask(client, start_ms + delay_ms, text, draw_.text(40, 160));
      }
    }
  }

  /// Jobs that read long texts one after the other, each once. What they leave in a cache is of no use.
  void add_batches(std::uint32_t batch_count) {
    for (std::uint32_t i = 0; i < batch_count; ++i) {
      const Client client{.tenant = static_cast<std::uint32_t>(draw_.between(0, kTenants.size() - 1)),
                          .priority = kBatchPriority};
      const Tokens instruction = draw_.text(80, 120);
      std::uint64_t time_ms = arrival_ms();
      for (std::uint64_t texts = draw_.between(15, 30); texts > 0; --texts) {
        Tokens text = instruction;
        append(text, draw_.text(600, 2'000));
        ask(client, time_ms, text, draw_.text(20, 60));
        time_ms += draw_.seconds(1, 4);
      }
    }
  }

  /// Requests that have nothing to do with any other.
  void add_one_offs(std::uint32_t request_count) {
    for (std::uint32_t i = 0; i < request_count; ++i) {
      const Client client{.tenant = static_cast<std::uint32_t>(draw_.between(0, kTenants.size() - 1))};
      const std::uint64_t time_ms = arrival_ms();
      Tokens text = draw_.text(20, 400);
      ask(client, time_ms, text, draw_.text(10, 100));
    }
  }

  [[nodiscard]] Trace trace() && {
    std::vector<std::pair<std::uint64_t, std::size_t>> order;  // time and number: those of one time stay as drawn
    order.reserve(drafts_.size());
    for (const Draft& draft : drafts_) order.emplace_back(draft.time_ms, order.size());
    std::sort(order.begin(), order.end());
    Trace trace{.name = "demo", .unit_tokens = 1, .key_spaces = {kTenants.begin(), kTenants.end()}};
    for (const auto& [time_ms, number] : order) {
      const Draft& draft = drafts_[number];
      trace.requests.push_back({.line = trace.requests.size() + 1,
                                .timestamp_ns = static_cast<TimeNs>(time_ms) * kMillisecondNs,
                                .key_space = draft.client.tenant,
                                .priority = draft.client.priority,
                                .first_unit = trace.units.size(),
                                .prompt_units = static_cast<std::uint32_t>(draft.prompt.size()),
                                .output_units = static_cast<std::uint32_t>(draft.output.size()),
                                .prompt_tokens = draft.prompt.size()});
      append(trace.units, draft.prompt);
      append(trace.units, draft.output);
    }
    return trace;
  }

 private:
  struct Draft {
    std::uint64_t time_ms = 0;
    Client client;
    Tokens prompt;
    Tokens output;
  };

  /// Appends the answer to the text: the next question comes behind it.
  void ask(const Client& client, std::uint64_t time_ms, Tokens& text, Tokens answer) {
    drafts_.push_back({.time_ms = time_ms, .client = client, .prompt = text, .output = std::move(answer)});
    append(text, drafts_.back().output);
  }
  void call_tool(const Client& client, std::uint64_t& time_ms, Tokens& text) {
    ask(client, time_ms, text, draw_.text(15, 60));
    append(text, draw_.one_in(6) ? draw_.text(300, 700) : draw_.text(20, 160));
    time_ms += draw_.seconds(1, 6);
  }

  /// Returns when the last of them is done.
  std::uint64_t send_out_agents(const Client& client, std::uint64_t time_ms, Tokens& text) {
    const Tokens shared = text;
    std::uint64_t end_ms = time_ms;
    for (std::uint64_t agents = draw_.between(3, 5); agents > 0; --agents) {
      Tokens own = shared;
      append(own, draw_.text(30, 90));
      std::uint64_t own_ms = time_ms + draw_.between(0, 400);
      for (std::uint64_t turns = draw_.between(2, 4); turns > 0; --turns) call_tool(client, own_ms, own);
      const Tokens report = draw_.text(40, 120);
      ask(client, own_ms, own, report);
      append(text, report);
      end_ms = std::max(end_ms, own_ms + kSecondMs);
    }
    return end_ms;
  }

  /// Half of everything begins in three rush hours of three minutes, the rest evenly over half an hour but for a break,
  /// in which nothing begins.
  std::uint64_t arrival_ms() {
    if (draw_.one_in(2)) {
      const std::uint64_t rush_ms = std::array{3U, 13U, 24U}[draw_.between(0, 2)] * kMinuteMs;
      return rush_ms + draw_.seconds(0, 180);
    }
    const std::uint64_t time_ms = draw_.seconds(0, std::uint64_t{27} * 60);
    return time_ms < 18 * kMinuteMs ? time_ms : time_ms + 3 * kMinuteMs;
  }

  Draw draw_;
  Tokens assistant_prompt_;
  Tokens agent_prompt_;
  std::array<Tokens, 3> documents_;
  std::vector<Draft> drafts_;
};

}  // namespace

Trace demo_workload(std::uint64_t seed) {
  Workload workload(seed);
  workload.add_chats(350);
  workload.add_agents(6);
  workload.add_crowds(6);
  workload.add_batches(3);
  workload.add_one_offs(350);
  return std::move(workload).trace();
}

}  // namespace quire
