// SPDX-License-Identifier: Apache-2.0
#include "testing/policy_twins.h"

#include <algorithm>
#include <map>
#include <ranges>
#include <vector>

#include "base/check.h"

namespace quire::testing {

namespace {

using Runs = std::vector<std::uint32_t>;

void insert_behind(Runs& runs, std::uint32_t anchor, std::uint32_t run) {
  const auto found = std::ranges::find(runs, anchor);
  if (found != runs.end()) runs.insert(found + 1, run);
}

struct Data {
  std::uint32_t page_count = 0;
  std::uint32_t use_count = 0;
  bool is_idle = false;
  bool has_children = false;
  int list = 0;
  Retention retention;
};

/// What all twins know of runs.
class Twin : public Policy {
 public:
  Status reserve(const PolicyLimits& limits) override {
    limits_ = limits;
    return {};
  }
  void on_seal(RunId run, const PageChange& added) override {
    const bool is_new = !data_.contains(run.value);
    data_[run.value].page_count += added.page_count;
    sealed(run.value, added, is_new);
  }
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override {
    data_[prefix.value] = data_.at(suffix.value);
    data_[prefix.value].page_count = prefix_pages;
    data_[prefix.value].has_children = true;
    data_[suffix.value].page_count -= prefix_pages;
    for (auto& [key, runs] : lists_) insert_behind(runs, suffix.value, prefix.value);
  }
  void on_use(RunId run, const Retention& retention) override {
    ++data_.at(run.value).use_count;
    used(run.value, retention);
  }
  void on_trim(RunId run, const PageChange& lost) override {
    data_.at(run.value).page_count -= lost.page_count;
    trimmed(run.value, lost);
  }
  void on_remove(RunId run, const PageChange& lost) override {
    on_trim(run, lost);
    take_out(run.value);
    data_.erase(run.value);
  }
  void on_branch(RunId run) override { data_.at(run.value).has_children = true; }
  void on_leaf(RunId run) override { data_.at(run.value).has_children = false; }
  void on_advance(TimeNs now) override { now_ = now; }
  [[nodiscard]] std::uint32_t idle_run_count() const override {
    return static_cast<std::uint32_t>(
        std::ranges::count_if(data_, [](const auto& entry) { return entry.second.is_idle; }));
  }

 protected:
  virtual void sealed(std::uint32_t /*run*/, const PageChange& /*added*/, bool /*is_new*/) {}
  virtual void used(std::uint32_t /*run*/, const Retention& /*retention*/) {}
  virtual void trimmed(std::uint32_t /*run*/, const PageChange& /*lost*/) {}

  void take_out(std::uint32_t run) {
    for (auto& [key, runs] : lists_) std::erase(runs, run);
  }
  [[nodiscard]] std::uint64_t pages_in(int list) const {
    std::uint64_t sum = 0;
    for (const auto& [run, data] : data_) sum += data.list == list ? data.page_count : 0;
    return sum;
  }

  PolicyLimits limits_;
  TimeNs now_ = 0;
  std::map<std::uint32_t, Data> data_;
  std::map<std::int64_t, Runs> lists_;
};

/// Lists of idle runs, least recently idle first; the first run of the lowest list that is not empty is the victim.
class RecencyTwin : public Twin {
 public:
  void on_pin(RunId run) override {
    data_.at(run.value).is_idle = false;
    take_out(run.value);
  }
  void on_idle(RunId run) override {
    data_.at(run.value).is_idle = true;
    lists_[list_of(data_.at(run.value))].push_back(run.value);
    became_idle();
  }
  std::optional<RunId> next_victim() override {
    for (const auto& [key, runs] : lists_) {
      if (!runs.empty()) return RunId{runs.front()};
    }
    return std::nullopt;
  }

 protected:
  [[nodiscard]] virtual std::int64_t list_of(const Data& /*data*/) const { return 0; }
  virtual void became_idle() {}
};

class LruTwin final : public RecencyTwin {};

class LfuTwin final : public RecencyTwin {
  [[nodiscard]] std::int64_t list_of(const Data& data) const override { return data.use_count; }
};

class SlruTwin final : public RecencyTwin {
  [[nodiscard]] std::int64_t list_of(const Data& data) const override { return data.list; }
  void used(std::uint32_t run, const Retention& /*retention*/) override { data_.at(run).list = 1; }
  void became_idle() override {
    while (pages_in(1) > std::uint64_t{limits_.page_count_max} * 4 / 5 && !lists_[1].empty()) {
      const std::uint32_t oldest = lists_[1].front();
      lists_[1].erase(lists_[1].begin());
      lists_[0].push_back(oldest);
      data_.at(oldest).list = 0;
    }
  }
};

class PriorityTwin final : public RecencyTwin {
 public:
  void on_advance(TimeNs now) override {
    // One after the other: the earliest, and of equals the least recently idle.
    for (;;) {
      std::optional<std::uint32_t> next;
      for (const std::uint32_t run : idle_order_) {
        const TimeNs at = data_.at(run).retention.expires_at;
        if (at > now_ && at <= now && (!next || at < data_.at(*next).retention.expires_at)) next = run;
      }
      if (!next) break;
      take_out(*next);
      std::erase(idle_order_, *next);
      lists_[kExpired].push_back(*next);
    }
    now_ = now;
  }
  void on_pin(RunId run) override {
    RecencyTwin::on_pin(run);
    std::erase(idle_order_, run.value);
  }
  void on_idle(RunId run) override {
    RecencyTwin::on_idle(run);
    idle_order_.push_back(run.value);
  }
  bool on_retain(RunId run, const Retention& retention) override { return want(run.value, retention, false); }
  void on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) override {
    RecencyTwin::on_split(suffix, prefix, prefix_pages);
    insert_behind(idle_order_, suffix.value, prefix.value);
  }
  void on_remove(RunId run, const PageChange& lost) override {
    RecencyTwin::on_remove(run, lost);
    std::erase(idle_order_, run.value);
  }

 private:
  static constexpr std::int64_t kExpired = -1'000;

  [[nodiscard]] std::int64_t list_of(const Data& data) const override {
    return data.retention.expires_at <= now_ ? kExpired : data.retention.priority;
  }
  void sealed(std::uint32_t run, const PageChange& added, bool is_new) override { want(run, added.retention, is_new); }
  void used(std::uint32_t run, const Retention& retention) override { want(run, retention, false); }
  bool want(std::uint32_t run, const Retention& retention, bool is_new) {
    Retention& now = data_.at(run).retention;
    const Retention before = now;
    if (is_new || now.expires_at <= now_) {
      now = retention;
    } else {
      now = {.priority = std::max(now.priority, retention.priority),
             .expires_at = std::max(now.expires_at, retention.expires_at)};
    }
    return now.priority != before.priority || now.expires_at != before.expires_at;
  }

  Runs idle_order_;
};

class ArcTwin final : public RecencyTwin {
 public:
  std::optional<RunId> next_victim() override {
    const int first = pages_in(0) > 0 && pages_in(0) >= target_ ? 0 : 1;
    for (const int list : {first, 1 - first}) {
      if (!lists_[list].empty()) return RunId{lists_[list].front()};
    }
    return std::nullopt;
  }

 private:
  [[nodiscard]] std::int64_t list_of(const Data& data) const override { return data.list; }
  void sealed(std::uint32_t run, const PageChange& added, bool is_new) override {
    for (std::size_t i = 0; i < added.fingerprints.size(); ++i) {
      const std::uint64_t once = ghosts_[0].size();
      const std::uint64_t again = ghosts_[1].size();
      const bool was_once = std::erase(ghosts_[0], added.fingerprints[i]) > 0;
      const bool was_again = !was_once && std::erase(ghosts_[1], added.fingerprints[i]) > 0;
      if (was_once) target_ = std::min<std::uint64_t>(limits_.page_count_max, target_ + std::max(1UL, again / once));
      if (was_again) target_ -= std::min(target_, std::max(1UL, once / again));
      if (is_new && i == 0 && (was_once || was_again)) data_.at(run).list = 1;
    }
    forget();
  }
  void used(std::uint32_t run, const Retention& /*retention*/) override { data_.at(run).list = 1; }
  void trimmed(std::uint32_t run, const PageChange& lost) override {
    std::vector<PageFingerprint>& ghosts = ghosts_[data_.at(run).list];
    for (const PageFingerprint fingerprint : std::views::reverse(lost.fingerprints)) {
      std::erase(ghosts, fingerprint);
      ghosts.push_back(fingerprint);
    }
    forget();
  }
  void forget() {
    for (auto& ghosts : ghosts_) {
      while (ghosts.size() > limits_.page_count_max) ghosts.erase(ghosts.begin());
    }
    while (!ghosts_[0].empty() && pages_in(0) + ghosts_[0].size() > limits_.page_count_max) {
      ghosts_[0].erase(ghosts_[0].begin());
    }
    while (!ghosts_[1].empty() && pages_in(0) + pages_in(1) + ghosts_[0].size() + ghosts_[1].size() >
                                      2 * std::uint64_t{limits_.page_count_max}) {
      ghosts_[1].erase(ghosts_[1].begin());
    }
  }

  std::uint64_t target_ = 0;
  std::array<std::vector<PageFingerprint>, 2> ghosts_;
};

/// Queues in the order of arrival. Queue q is the lists 2q, those that were passed over and are free again, and 2q + 1.
class QueueTwin : public Twin {
 public:
  void on_pin(RunId run) override { data_.at(run.value).is_idle = false; }
  void on_idle(RunId run) override {
    data_.at(run.value).is_idle = true;
    free_if_passed_over(run.value);
  }
  void on_leaf(RunId run) override {
    Twin::on_leaf(run);
    free_if_passed_over(run.value);
  }

 protected:
  void to_back(std::uint32_t run, int queue) {
    take_out(run);
    data_.at(run).list = queue;
    lists_[(2 * queue) + 1].push_back(run);
  }
  [[nodiscard]] bool is_blocked(std::uint32_t run) const {
    return !data_.at(run).is_idle || data_.at(run).has_children;
  }
  std::optional<std::uint32_t> front(int queue) {
    for (const int list : {2 * queue, (2 * queue) + 1}) {
      if (!lists_[list].empty()) return lists_[list].front();
    }
    return std::nullopt;
  }

 private:
  void free_if_passed_over(std::uint32_t run) {
    const bool is_listed =
        std::ranges::any_of(lists_, [&](const auto& list) { return std::ranges::count(list.second, run) > 0; });
    if (!is_listed && !is_blocked(run)) lists_[std::int64_t{2} * data_.at(run).list].push_back(run);
  }
};

class FifoTwin final : public QueueTwin {
 public:
  std::optional<RunId> next_victim() override {
    for (std::optional<std::uint32_t> run = front(0); run; run = front(0)) {
      if (!is_blocked(*run)) return RunId{*run};
      take_out(*run);
    }
    return std::nullopt;
  }

 private:
  void sealed(std::uint32_t run, const PageChange& /*added*/, bool /*is_new*/) override { to_back(run, 0); }
};

class S3FifoTwin final : public QueueTwin {
 public:
  std::optional<RunId> next_victim() override {
    for (;;) {
      const bool is_small = front(0) && (pages_in(0) >= small_max() || !front(1));
      const std::optional<std::uint32_t> run = front(is_small ? 0 : 1);
      if (!run) return std::nullopt;
      Data& data = data_.at(*run);
      if (is_small && (data.use_count >= 2 || data.has_children)) {
        data.use_count = 0;
        to_back(*run, 1);
      } else if (is_blocked(*run)) {
        take_out(*run);
      } else if (!is_small && data.use_count > 0) {
        --data.use_count;
        to_back(*run, 1);
      } else {
        return RunId{*run};
      }
    }
  }

 private:
  [[nodiscard]] std::uint64_t small_max() const { return std::max(1U, limits_.page_count_max / 10); }
  void sealed(std::uint32_t run, const PageChange& added, bool is_new) override {
    for (std::size_t i = 0; i < added.fingerprints.size(); ++i) {
      const bool was_ghost = std::erase(ghosts_, added.fingerprints[i]) > 0;
      if (is_new && i == 0) to_back(run, was_ghost ? 1 : 0);
    }
  }
  void used(std::uint32_t run, const Retention& /*retention*/) override {
    data_.at(run).use_count = std::min(data_.at(run).use_count, 3U);
  }
  void trimmed(std::uint32_t run, const PageChange& lost) override {
    if (data_.at(run).list != 0) return;
    for (const PageFingerprint fingerprint : std::views::reverse(lost.fingerprints)) {
      std::erase(ghosts_, fingerprint);
      ghosts_.push_back(fingerprint);
    }
    while (ghosts_.size() > limits_.page_count_max - small_max()) ghosts_.erase(ghosts_.begin());
  }

  std::vector<PageFingerprint> ghosts_;
};

}  // namespace

std::unique_ptr<Policy> make_policy_twin(std::string_view name) {
  if (name == "lru") return std::make_unique<LruTwin>();
  if (name == "fifo") return std::make_unique<FifoTwin>();
  if (name == "lfu") return std::make_unique<LfuTwin>();
  if (name == "slru") return std::make_unique<SlruTwin>();
  if (name == "s3fifo") return std::make_unique<S3FifoTwin>();
  if (name == "arc") return std::make_unique<ArcTwin>();
  if (name == "priority") return std::make_unique<PriorityTwin>();
  QUIRE_CHECK(false, "a policy without a twin");
  return nullptr;
}

Status ComparedPolicies::reserve(const PolicyLimits& limits) {
  QUIRE_TRY(twin_->reserve(limits));
  return real_->reserve(limits);
}

void ComparedPolicies::on_seal(RunId run, const PageChange& added) {
  real_->on_seal(run, added);
  twin_->on_seal(run, added);
}

void ComparedPolicies::on_split(RunId suffix, RunId prefix, std::uint32_t prefix_pages) {
  real_->on_split(suffix, prefix, prefix_pages);
  twin_->on_split(suffix, prefix, prefix_pages);
  if (idle_.contains(suffix.value)) idle_.insert(prefix.value);
  parents_.insert(prefix.value);
}

void ComparedPolicies::on_use(RunId run, const Retention& retention) {
  if (idle_.contains(run.value)) difference_ = "an idle run is used";
  real_->on_use(run, retention);
  twin_->on_use(run, retention);
}

bool ComparedPolicies::on_retain(RunId run, const Retention& retention) {
  const bool real = real_->on_retain(run, retention);
  if (real != twin_->on_retain(run, retention)) difference_ = "one was changed by a wish, the other was not";
  return real;
}

void ComparedPolicies::on_pin(RunId run) {
  real_->on_pin(run);
  twin_->on_pin(run);
  idle_.erase(run.value);
}

void ComparedPolicies::on_idle(RunId run) {
  real_->on_idle(run);
  twin_->on_idle(run);
  idle_.insert(run.value);
}

void ComparedPolicies::on_branch(RunId run) {
  if (!parents_.insert(run.value).second) difference_ = "a run that has children has its first child";
  real_->on_branch(run);
  twin_->on_branch(run);
}

void ComparedPolicies::on_leaf(RunId run) {
  if (parents_.erase(run.value) == 0) difference_ = "a run without children loses its last";
  real_->on_leaf(run);
  twin_->on_leaf(run);
}

void ComparedPolicies::on_trim(RunId run, const PageChange& lost) {
  real_->on_trim(run, lost);
  twin_->on_trim(run, lost);
}

void ComparedPolicies::on_remove(RunId run, const PageChange& lost) {
  if (parents_.contains(run.value)) difference_ = "a run with children is removed";
  real_->on_remove(run, lost);
  twin_->on_remove(run, lost);
  idle_.erase(run.value);
}

void ComparedPolicies::on_advance(TimeNs now) {
  real_->on_advance(now);
  twin_->on_advance(now);
}

std::optional<RunId> ComparedPolicies::next_victim() {
  const std::optional<RunId> real = real_->next_victim();
  const std::optional<RunId> twin = twin_->next_victim();
  const auto text = [](std::optional<RunId> run) { return run ? std::to_string(run->value) : "nothing"; };
  if (!difference_.empty()) return real;
  if (real != twin) {
    difference_ = "the victim is " + text(real) + ", the twin says " + text(twin);
  } else if (real != real_->next_victim()) {
    difference_ = "the victim is another when asked again";
  } else if (real.has_value() == idle_.empty()) {
    difference_ = std::to_string(idle_.size()) + " runs are idle, and the victim is " + text(real);
  } else if (real && !idle_.contains(real->value)) {
    difference_ = "the victim " + text(real) + " is not idle";
  } else if (real && names_leaves_ && parents_.contains(real->value)) {
    difference_ = "the victim " + text(real) + " has children";
  } else if (real_->idle_run_count() != idle_.size() || twin_->idle_run_count() != idle_.size()) {
    difference_ = "idle runs are counted wrong";
  }
  return real;
}

}  // namespace quire::testing
