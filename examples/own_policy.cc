// SPDX-License-Identifier: Apache-2.0
//
// A policy of one's own. SecondChance evicts what has been idle for longest, but a run that was used again since its
// last turn is sent to the back of the queue once. Documents that are read once pass through; what people come back to
// stays. The program serves the same requests under LRU and under this, and prints how much each found.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "quire/quire.h"

namespace {

// [docs]
class SecondChance final : public quire::Policy {
 public:
  // The only place where memory may be asked for. Run ids are small numbers, so a vector is all it takes.
  quire::Status reserve(const quire::PolicyLimits& limits) override {
    links_.resize(std::max(links_.size(), std::size_t{limits.run_count_max} + 1));
    return {};
  }

  void on_use(quire::RunId run, const quire::Retention& /*retention*/) override { link(run).was_used = true; }
  void on_idle(quire::RunId run) override { insert_after(links_[kHead].previous, place(run)); }
  void on_pin(quire::RunId run) override { take_out(place(run)); }
  void on_remove(quire::RunId run, const quire::PageChange& /*lost*/) override {
    if (link(run).is_idle) take_out(place(run));
    link(run) = {};
  }
  // The new run holds the first pages of the old one. Behind it in the queue, it goes after it.
  void on_split(quire::RunId suffix, quire::RunId prefix, std::uint32_t /*prefix_pages*/) override {
    link(prefix).was_used = link(suffix).was_used;
    if (link(suffix).is_idle) insert_after(place(suffix), place(prefix));
  }

  std::optional<quire::RunId> next_victim() override {
    if (idle_count_ == 0) return std::nullopt;
    // Each turn of this loop undoes one on_use, so on average it costs nothing.
    while (links_[links_[kHead].next].was_used) {
      const std::uint32_t spared = links_[kHead].next;
      links_[spared].was_used = false;
      take_out(spared);
      insert_after(links_[kHead].previous, spared);
    }
    return quire::RunId{links_[kHead].next - 1};
  }
  [[nodiscard]] std::uint32_t idle_run_count() const override { return idle_count_; }

 private:
  struct Link {
    std::uint32_t previous = kHead;
    std::uint32_t next = kHead;
    bool is_idle = false;
    bool was_used = false;
  };
  static constexpr std::uint32_t kHead = 0;  // the queue is a ring through this place; run r is at r + 1

  static std::uint32_t place(quire::RunId run) { return run.value + 1; }
  Link& link(quire::RunId run) { return links_[place(run)]; }
  void insert_after(std::uint32_t previous, std::uint32_t at) {
    const std::uint32_t next = links_[previous].next;
    links_[at] = {.previous = previous, .next = next, .is_idle = true, .was_used = links_[at].was_used};
    links_[previous].next = at;
    links_[next].previous = at;
    ++idle_count_;
  }
  void take_out(std::uint32_t at) {
    links_[links_[at].previous].next = links_[at].next;
    links_[links_[at].next].previous = links_[at].previous;
    links_[at].is_idle = false;
    --idle_count_;
  }

  std::vector<Link> links_;
  std::uint32_t idle_count_ = 0;
};
// [docs]

// Four people ask twice each, and again after fourteen documents that nobody reads a second time.
std::vector<quire::TokenId> prompt(int number) {
  std::vector<quire::TokenId> tokens(512);
  const bool is_document = number % 22 >= 8;
  std::iota(tokens.begin(), tokens.end(), (is_document ? 100 + number : number % 22 % 4) * 1'000);
  return tokens;
}

double serve(std::unique_ptr<quire::Policy> policy) {
  quire::CacheConfig config{.layout = *quire::preset("llama-3-8b"), .device = {.page_count = 16 * 512 / 16}};
  config.device.memory = quire::DeviceMemory::None;
  config.custom_policy = std::move(policy);  // without one: config.policy = "lru"
  const auto cache = *quire::Cache::open(std::move(config));
  const quire::KeySpaceId space = *cache->key_space({.model = "llama-3-8b"});
  for (int i = 0; i < 660; ++i) {
    const std::vector<quire::TokenId> tokens = prompt(i);
    quire::Sequence sequence = *cache->begin(space, {tokens});
    if (!cache->admit(sequence)) return -1;
    const quire::StepEntry entry{&sequence};
    const quire::PlanOutcome outcome = *cache->plan_step({&entry, 1});
    const quire::StepResult result{};
    if (!outcome.step || !cache->finish_step(*outcome.step, {&result, 1}) || !cache->end(sequence)) return -1;
  }
  const quire::Stats stats = *cache->stats();
  return static_cast<double>(stats.hit_tokens) / static_cast<double>(stats.prompt_tokens);
}

}  // namespace

int main() {
  std::printf("lru            %.2f of the prompt tokens found\n", serve(*quire::make_policy("lru")));
  std::printf("second chance  %.2f\n", serve(std::make_unique<SecondChance>()));
  return 0;
}
