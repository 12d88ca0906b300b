// SPDX-License-Identifier: Apache-2.0
#include "demo.h"

#include <algorithm>
#include <cinttypes>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "engine.h"
#include "model.h"
#include "quire/cache.h"
#include "scheduler.h"

namespace tiny_engine {
namespace {

using quire::Result;
using quire::Status;
using quire::TokenId;

constexpr std::uint32_t kPageTokens = 8;
constexpr std::uint32_t kPageCount = 72;
constexpr std::uint32_t kContextTokens = 192;
constexpr std::uint32_t kSequenceCount = 24;
constexpr std::uint32_t kChatCount = 8;
constexpr std::uint32_t kTurnCount = 3;
// What the engine may be off by, as a part of a token's largest logit.
constexpr double kLogitTolerance = 1e-4;
constexpr double kRoundingMax = 1e-12;

std::vector<TokenId> make_text(std::uint64_t seed, std::size_t count) {
  std::vector<TokenId> text(count);
  for (std::size_t i = 0; i < count; ++i) text[i] = static_cast<TokenId>(scramble((seed << 20U) + i) % 48);
  return text;
}

std::vector<TokenId> join(std::vector<TokenId> left, const std::vector<TokenId>& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

struct Totals {
  std::size_t request_count = 0;
  std::size_t token_count = 0;
  std::size_t equal_count = 0;
  std::size_t beam_count = 0;
  std::size_t equal_beams = 0;
  double difference = 0.0;
  SchedulerCounts counts;
};

class Demo {
 public:
  [[nodiscard]] static Result<Demo> create() {
    auto weights = std::make_unique<Weights>(make_weights({}, 2024));
    QUIRE_TRY_ASSIGN(quire::ModelLayout layout,
                     quire::ModelLayout::create("tiny", {cache_group(weights->shape, /*keys_rotated=*/false)}));
    quire::CacheConfig config{.layout = std::move(layout),
                              .page = {.page_tokens = kPageTokens},
                              .device = {.page_count = kPageCount},
                              .sequence_count_max = kSequenceCount,
                              .context_tokens_max = kContextTokens,
                              .step_tokens_max = 256,
                              .tree_tokens_max = 32};
    config.plan.cascade_levels_max = 3;
    QUIRE_TRY_ASSIGN(std::unique_ptr<quire::Cache> cache, quire::Cache::open(std::move(config)));
    QUIRE_TRY_ASSIGN(const quire::KeySpaceId space, cache->key_space({.model = "tiny"}));
    auto engine =
        std::make_unique<Engine>(*weights, PoolMemory{.geometry = cache->geometry(), .bytes = cache->device_memory()},
                                 EngineOptions{.sequence_count_max = kSequenceCount,
                                               .row_columns = kContextTokens / kPageTokens,
                                               .keys_rotated = false,
                                               .applies_copies = false});
    return Demo(std::move(weights), std::move(cache), std::move(engine), space);
  }

  /// Runs one batch of requests and compares what comes out; gives the outputs' tokens by request, first sample each.
  [[nodiscard]] Result<std::vector<std::vector<TokenId>>> run(std::vector<Request> requests) {
    Scheduler scheduler(*cache_, *engine_, space_, {.chunk_tokens_max = 48, .running_max = 12, .steps_in_flight = 2});
    totals_.request_count += requests.size();
    std::vector<std::vector<TokenId>> texts(requests.size());
    for (Request& request : requests) scheduler.add(std::move(request));
    QUIRE_TRY(scheduler.run());
    for (const Output& output : scheduler.outputs()) {
      const Request& request = scheduler.requests()[output.request_index];
      const Verdict verdict = check_output(*weights_, request, output);
      totals_.token_count += verdict.token_count;
      totals_.equal_count += verdict.equal_count;
      totals_.difference = std::max(totals_.difference, verdict.difference);
      if (output.sample_index == 0) texts[output.request_index] = output.tokens;
      if (request.beam_width == 0) continue;
      ++totals_.beam_count;
      if (oracle_beams(*weights_, request)[output.sample_index] == output.tokens) ++totals_.equal_beams;
    }
    add(scheduler.counts());
    return texts;
  }

  [[nodiscard]] const Totals& totals() const { return totals_; }

 private:
  Demo(std::unique_ptr<Weights> weights, std::unique_ptr<quire::Cache> cache, std::unique_ptr<Engine> engine,
       quire::KeySpaceId space)
      : weights_(std::move(weights)), cache_(std::move(cache)), engine_(std::move(engine)), space_(space) {}

  void add(const SchedulerCounts& counts) {
    totals_.counts.step_count += counts.step_count;
    totals_.counts.prompt_tokens += counts.prompt_tokens;
    totals_.counts.found_tokens += counts.found_tokens;
    totals_.counts.new_tokens += counts.new_tokens;
    totals_.counts.copied_pages += counts.copied_pages;
    totals_.counts.moved_tokens += counts.moved_tokens;
    totals_.counts.fork_count += counts.fork_count;
    totals_.counts.preempt_count += counts.preempt_count;
    totals_.counts.drafted_tokens += counts.drafted_tokens;
    totals_.counts.accepted_tokens += counts.accepted_tokens;
  }

  // On the heap: the engine refers to the weights.
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<quire::Cache> cache_;
  std::unique_ptr<Engine> engine_;
  quire::KeySpaceId space_;
  Totals totals_;
};

/// Chats with one system prompt over several turns, each decoded in its own way, and a few requests besides.
Status run_workload(Demo& demo) {
  const std::vector<TokenId> system = make_text(1, 40);
  std::vector<std::vector<TokenId>> chats(kChatCount, system);
  for (std::uint32_t turn = 0; turn < kTurnCount; ++turn) {
    std::vector<Request> requests;
    for (std::uint32_t chat = 0; chat < kChatCount; ++chat) {
      Request request{.prompt = join(chats[chat], make_text((100 * turn) + chat + 2, 9 + chat)), .new_tokens_max = 16};
      if (chat % 4 == 1) request.speculation = Speculation::Chain;
      if (chat % 4 == 2) request.speculation = Speculation::Tree;
      if (chat % 4 == 3) {
        request.temperature = 0.8;
        request.seed = chat;
      }
      requests.push_back(std::move(request));
    }
    QUIRE_TRY_ASSIGN(chats, demo.run(std::move(requests)));
  }
  const std::vector<TokenId> question = join(system, make_text(900, 13));
  std::vector<Request> others;
  others.push_back({.prompt = question, .new_tokens_max = 24, .temperature = 1.0, .seed = 7, .sample_count = 4});
  others.push_back({.prompt = question, .new_tokens_max = 12, .beam_width = 3});
  others.push_back({.prompt = join(question, make_text(901, 30)),
                    .new_tokens_max = 80,
                    .window = {.visible_tokens = 32, .sink_tokens = 4}});
  QUIRE_TRY(demo.run(std::move(others)));
  return {};
}

int print_summary(const Totals& totals, std::FILE* out) {
  const SchedulerCounts& counts = totals.counts;
  const std::uint64_t computed = counts.prompt_tokens - counts.found_tokens;
  const double saved = 100.0 * static_cast<double>(counts.found_tokens) / static_cast<double>(counts.prompt_tokens);
  std::fprintf(out, "tiny engine: a transformer with random weights, two steps in flight, %u pages of %u tokens\n",
               kPageCount, kPageTokens);
  std::fprintf(out, "  requests                        %zu (chats, samples, beams, a window), %" PRIu64 " steps\n",
               totals.request_count, counts.step_count);
  std::fprintf(out, "  tokens equal to the oracle      %zu of %zu\n", totals.equal_count, totals.token_count);
  std::fprintf(out, "  beams equal to the oracle       %zu of %zu\n", totals.equal_beams, totals.beam_count);
  // Last digits are the processor's business.
  if (totals.difference < kRoundingMax) {
    std::fprintf(out, "  largest logit difference        below %.0e of the largest logit\n", kRoundingMax);
  } else {
    std::fprintf(out, "  largest logit difference        %.1e of the largest logit\n", totals.difference);
  }
  std::fprintf(out, "  prefill computed                %" PRIu64 " of %" PRIu64 " tokens, %.1f %% saved\n", computed,
               counts.prompt_tokens, saved);
  std::fprintf(out, "  drafts accepted                 %" PRIu64 " of %" PRIu64 ", %" PRIu64 " tokens moved together\n",
               counts.accepted_tokens, counts.drafted_tokens, counts.moved_tokens);
  std::fprintf(out, "  forks, pages copied, preempted  %" PRIu64 ", %" PRIu64 ", %" PRIu64 "\n", counts.fork_count,
               counts.copied_pages, counts.preempt_count);
  const bool is_right = totals.equal_count == totals.token_count && totals.equal_beams == totals.beam_count &&
                        totals.difference <= kLogitTolerance;
  if (!is_right) std::fprintf(out, "tiny engine: the cache served something else than the oracle computed\n");
  return is_right ? 0 : 1;
}

}  // namespace

int run_tiny_engine(std::FILE* out) {
  Result<Demo> demo = Demo::create();
  if (!demo) {
    std::fprintf(out, "tiny engine: %s\n", demo.error().message.c_str());
    return 1;
  }
  if (const Status status = run_workload(*demo); !status) {
    std::fprintf(out, "tiny engine: %s\n", status.error().message.c_str());
    return 1;
  }
  return print_summary(demo->totals(), out);
}

}  // namespace tiny_engine
