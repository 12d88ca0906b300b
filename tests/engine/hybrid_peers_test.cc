// SPDX-License-Identifier: Apache-2.0
//
// Prefill in one hybrid engine, decode in another, over random mixes of layers: whatever was computed where, aborted on
// the way or found in a cache, every logit of both is the oracle's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hybrid_rig.h"
#include "hybrid_schedule.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire::testing {
namespace {

#define PEERS_TRY(call) \
  if (std::string problem = (call); !problem.empty()) return problem

constexpr std::uint64_t kSeedCount = kIsSanitized ? 60 : 240;
constexpr std::uint32_t kRequests = 8;

class Peers {
 public:
  Peers(const HybridSetup& sender, const HybridSetup& receiver, ScheduleCounts& counts)
      : counts_(counts), sender_(sender, counts), receiver_(receiver, counts) {
    sender_.set_receiver(receiver_.cache());
  }

  /// One request: a prompt, most of it computed by the sender, and some tokens that the receiver decodes.
  std::string serve(Random& random) {
    const std::uint32_t context = receiver_.setup().context_tokens_max;
    std::vector<TokenId> prompt = draw_prompt(random, context - 8);
    HybridLive* decoding = nullptr;
    HybridLive* prefill = nullptr;
    // Where a hit ends inside a page, a step has to copy it before anything is received.
    const std::uint32_t whole_pages = random.below(context) / receiver_.setup().page_tokens;
    PEERS_TRY(start(receiver_, prompt, {.match_tokens_max = whole_pages * receiver_.setup().page_tokens}, decoding));
    PEERS_TRY(start(sender_, prompt, {.use_cache = random.below(4) > 0}, prefill));
    if (random.below(3) == 0) PEERS_TRY(compute(receiver_, *decoding, random.below(pending(receiver_, *decoding))));
    if (random.below(3) == 0) PEERS_TRY(compute(sender_, *prefill, random.below(pending(sender_, *prefill))));
    PEERS_TRY(transfer(*prefill, *decoding, random));
    // What did not come is computed.
    PEERS_TRY(compute(receiver_, *decoding, pending(receiver_, *decoding)));
    for (std::uint32_t i = random.below(7); i > 0 && decoding->tokens.size() < context; --i) {
      if (pending(receiver_, *decoding) == 0) PEERS_TRY(receiver_.append(*decoding, {draw_token(random)}));
      PEERS_TRY(step(receiver_, *decoding, 0));
    }
    PEERS_TRY(sender_.end(*prefill));
    PEERS_TRY(receiver_.end(*decoding));
    PEERS_TRY(sender_.check());
    return receiver_.check();
  }

  std::string drain() {
    PEERS_TRY(sender_.check_empty());
    return receiver_.check_empty();
  }
  [[nodiscard]] std::string compare() const {
    for (const HybridRig* rig : {&sender_, &receiver_}) {
      if (const auto mismatch = rig->compare()) {
        return std::string(rig == &sender_ ? "sender: " : "receiver: ") + mismatch->text;
      }
    }
    return "";
  }

 private:
  [[nodiscard]] static std::uint32_t pending(HybridRig& rig, const HybridLive& live) {
    return rig.cache().view(live.handle).value().pending_tokens;
  }
  [[nodiscard]] TokenId draw_token(Random& random) const {
    return static_cast<TokenId>(random.below(sender_.weights().shape.vocabulary));
  }
  // Some begin as others do.
  std::vector<TokenId> draw_prompt(Random& random, std::uint32_t tokens_max) {
    std::vector<TokenId> prompt;
    if (!prompts_.empty() && random.below(4) > 0) {
      prompt = prompts_[random.below(static_cast<std::uint32_t>(prompts_.size()))];
      prompt.resize(1 + random.below(static_cast<std::uint32_t>(prompt.size())));
    }
    const std::uint32_t length = std::min(tokens_max, 2 + random.below(tokens_max));
    while (prompt.size() < length) prompt.push_back(draw_token(random));
    prompts_.push_back(prompt);
    return prompt;
  }

  std::string start(HybridRig& rig, const std::vector<TokenId>& prompt, const SequenceOptions& options,
                    HybridLive*& live) {
    PEERS_TRY(rig.begin(prompt, options, live));
    return admit(rig, *live);
  }
  std::string admit(HybridRig& rig, HybridLive& live) {
    for (int i = 0; i < 9 && !live.is_admitted; ++i) {
      PEERS_TRY(rig.admit(live));
      PEERS_TRY(rig.collect());
    }
    return live.is_admitted ? rig.check() : "a lone sequence is not admitted";
  }
  // A lone sequence has room, once what is to leave for the host has left: a page at a time, and some fail. A second
  // step in flight may be too much.
  std::string plan(HybridRig& rig, HybridLive& live, std::uint32_t token_count) {
    std::vector<HybridAsk> asks{{.live = &live, .token_count = token_count}};
    bool planned = false;
    std::uint32_t fitting = 0;
    for (int attempts = 0; attempts < 100 && !planned; ++attempts) {
      PEERS_TRY(rig.collect());
      PEERS_TRY(rig.plan(asks, {}, planned, fitting));
    }
    return planned || !rig.flights().empty() ? "" : "a lone sequence is short of pages";
  }
  std::string finish(HybridRig& rig) {
    return rig.finish([](const HybridRig::FlightEntry&, const HybridLive&) { return HybridAnswer{}; });
  }
  std::string step(HybridRig& rig, HybridLive& live, std::uint32_t token_count) {
    PEERS_TRY(plan(rig, live, token_count));
    PEERS_TRY(finish(rig));
    return rig.check();
  }
  std::string compute(HybridRig& rig, HybridLive& live, std::uint32_t count) {
    const std::uint32_t step_tokens = rig.setup().step_tokens_max;
    for (const std::size_t end = live.texts.size() + count; count > 0 && live.texts.size() < end;) {
      const std::uint32_t left = pending(rig, live);
      if (left == 0) break;
      const auto wanted = static_cast<std::uint32_t>(end - live.texts.size());
      PEERS_TRY(step(rig, live, std::min({left, wanted, step_tokens})));
      if (left == 1) break;  // the last token may have run again
    }
    return "";
  }

  std::string transfer(HybridLive& prefill, HybridLive& decoding, Random& random) {
    const auto missing = static_cast<std::uint32_t>(decoding.tokens.size() - decoding.texts.size());
    if (missing == 0) return "";
    const std::uint32_t count = random.below(2) == 0 ? missing : 1 + random.below(missing);
    const auto end = static_cast<std::uint32_t>(decoding.texts.size()) + count;
    std::optional<HybridReceive> receive;
    PEERS_TRY(receiver_.prepare_receive(decoding, count, receive));
    PEERS_TRY(receiver_.check());
    if (!receive) return "";
    bool is_marked = false;
    PEERS_TRY(sender_.mark_send(prefill, *receive, is_marked));
    PEERS_TRY(sender_.check());
    const bool is_refused = !is_marked;
    bool is_listed = is_refused;
    bool is_given_up = false;
    while (!is_given_up && (!is_listed || (is_marked && prefill.texts.size() < end))) {
      is_given_up = random.below(40) == 0;
      // A state would count the last token twice.
      if (pending(sender_, prefill) == 0 && sender_.flights().empty()) {
        PEERS_TRY(sender_.append(prefill, {draw_token(random)}));
      }
      PEERS_TRY(send(prefill, random, is_listed));
      PEERS_TRY(sender_.check());
    }
    if (is_refused || is_given_up || random.below(6) == 0) {
      if (is_marked) PEERS_TRY(take_back(prefill));
      PEERS_TRY(receiver_.abort_receive(decoding));
    } else {
      PEERS_TRY(receiver_.finish_receive(decoding, count));
    }
    return receiver_.check();
  }
  std::string take_back(HybridLive& prefill) {
    const Status status = sender_.cache().mark_send(prefill.handle, 0, {}, 0);
    return status ? "" : "mark_send: " + status.error().message;
  }
  // One step, or two that are in flight together; or something that sets the sender back.
  std::string send(HybridLive& prefill, Random& random, bool& is_listed) {
    if (random.below(16) == 0) {
      PEERS_TRY(sender_.preempt(prefill, Preempt::Drop));
      return admit(sender_, prefill);
    }
    const std::uint32_t step_count = 1 + random.below(std::min(2U, sender_.setup().steps_in_flight_max));
    for (std::uint32_t i = 0; i < step_count; ++i) {
      const std::uint32_t left = pending(sender_, prefill);
      if (left == 0) break;
      const std::uint32_t tokens = 1 + random.below(std::min(left, sender_.setup().step_tokens_max));
      PEERS_TRY(plan(sender_, prefill, tokens));
    }
    if (random.below(10) == 0) {
      // Of two that are planned the first takes the second with it.
      PEERS_TRY(sender_.abort(0, random.below(2) == 0));
    } else {
      is_listed = true;
    }
    while (!sender_.flights().empty()) PEERS_TRY(finish(sender_));
    return "";
  }

  ScheduleCounts& counts_;
  HybridRig sender_;
  HybridRig receiver_;
  std::vector<std::vector<TokenId>> prompts_;
};

class HybridPeersTest : public ::testing::TestWithParam<HybridTier> {
 protected:
  static std::string run_seed(std::uint64_t seed, ScheduleCounts& counts) {
    Random random(seed);
    HybridSetup setup = draw_hybrid_setup(random, GetParam());
    setup.accelerator_path.reset();
    HybridSetup other = setup;
    other.page_tables = PageTables::Rows;
    other.adopts_memory = random.below(2) == 0;
    other.byte_layout = random.below(2) == 0 ? ByteLayout::PageFirst : ByteLayout::LayerFirst;
    Peers peers(setup, other, counts);
    std::string problem;
    for (std::uint32_t i = 0; i < kRequests && problem.empty(); ++i) problem = peers.serve(random);
    if (std::string wrong = peers.compare(); !wrong.empty()) problem = wrong;  // perhaps why the rest went wrong
    if (problem.empty()) problem = peers.drain();
    if (problem.empty()) return "";
    return "\nQUIRE_SEED=" + std::to_string(seed) + " bin/hybrid_peers_test --gtest_filter='*/" +
           std::string(to_string(GetParam())) + "'\n" + problem + "\n" + to_string(setup) + "\n";
  }
};

TEST_P(HybridPeersTest, EveryLogitIsTheOraclesWhicheverSideHasComputedWhat) {
  ScheduleCounts counts;
  if (const char* const seed = std::getenv("QUIRE_SEED")) {
    counts.log = &std::cout;
    EXPECT_EQ(run_seed(std::strtoull(seed, nullptr, 10), counts), "");
    return;
  }
  const char* const seeds = std::getenv("QUIRE_SEEDS");
  const std::uint64_t seed_count = seeds != nullptr ? std::strtoull(seeds, nullptr, 10) : kSeedCount;
  for (std::uint64_t seed = 1; seed <= seed_count; ++seed) ASSERT_EQ(run_seed(seed, counts), "");
  for (const auto& [name, count] : counts.by_name) std::cout << "  " << name << ": " << count << "\n";
  for (const char* const name : {"tokens received", "receive aborted", "states sent", "runs sent", "send refused",
                                 "state lost by an aborted receive", "logits compared"}) {
    EXPECT_GT(counts.by_name[name], 10U) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, HybridPeersTest, ::testing::Values(HybridTier::Device, HybridTier::Host),
                         [](const auto& tier) { return std::string(to_string(tier.param)); });

}  // namespace
}  // namespace quire::testing
