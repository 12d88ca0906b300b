// SPDX-License-Identifier: Apache-2.0
#include "quire/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "metrics/families.h"
#include "metrics/listener.h"
#include "metrics/text.h"

namespace quire {
namespace {

double seconds_of(TimeNs duration_ns) {
  return static_cast<double>(std::max<TimeNs>(duration_ns, 0)) / 1e9;
}

template <std::size_t kCount, typename Enum>
Histogram& of(std::array<Histogram, kCount>& histograms, Enum which) {
  const auto index = static_cast<std::size_t>(which);
  QUIRE_CHECK(index < kCount, "what was observed has no histogram");
  return histograms[index];
}

Status check_address(const std::string& address) {
  std::array<std::byte, sizeof(in6_addr)> parsed{};
  if (inet_pton(AF_INET, address.c_str(), parsed.data()) == 1) return {};
  if (inet_pton(AF_INET6, address.c_str(), parsed.data()) == 1) return {};
  return fail(ErrorCode::InvalidArgument,
              "address \"" + address + "\" is not one: write it in numbers, such as 127.0.0.1 or ::1");
}

}  // namespace

// The snapshot, between the engine's thread and the listener's.
class MetricsServer::State {
 public:
  explicit State(std::optional<double> start_time_seconds) { snapshot_.start_time_seconds = start_time_seconds; }

  template <typename Change>
  void change(Change change) {
    const MutexLock lock(mutex_);
    change(snapshot_);
  }

  /// Only the copy is made under the mutex: the engine never waits for texts to be put together.
  [[nodiscard]] std::vector<MetricFamily> families() const { return families_of(copy()); }

 private:
  [[nodiscard]] MetricsSnapshot copy() const {
    const MutexLock lock(mutex_);
    return snapshot_;
  }

  mutable Mutex mutex_;  // guards what follows
  MetricsSnapshot snapshot_ QUIRE_GUARDED_BY(mutex_);
};

MetricsServer::MetricsServer(std::shared_ptr<State> state) : state_(std::move(state)) {}

// The listener goes first, and its threads with it.
MetricsServer::~MetricsServer() {
  listener_.reset();
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::open(const MetricsConfig& config) {
  QUIRE_TRY(check_address(config.address));
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::make_shared<State>(config.start_time_seconds)));
  if (!config.port) return server;
  QUIRE_TRY_ASSIGN(server->listener_, listen_for_scrapes(config.address, *config.port,
                                                         [state = server->state_] { return state->families(); }));
  return server;
}

void MetricsServer::describe(const Cache& cache) {
  const CacheConfig& config = cache.config();
  CacheFacts facts{.page_bytes = cache.geometry().page().page_bytes(),
                   .page_tokens = config.page.page_tokens,
                   .policy = config.policy,
                   .host_policy = config.host.is_on() ? config.host.policy : "",
                   .disk_write_bytes_per_day = config.disk.is_on() ? config.disk.write_bytes_per_day : 0,
                   .remote_write_bytes_per_day = config.remote.is_on() ? config.remote.write_bytes_per_day : 0};
  state_->change([&](MetricsSnapshot& snapshot) { snapshot.facts = std::move(facts); });
}

void MetricsServer::update(const Stats& stats) {
  state_->change([&](MetricsSnapshot& snapshot) { snapshot.stats = stats; });
}

void MetricsServer::update(const DiskStatus& status) {
  state_->change([&](MetricsSnapshot& snapshot) { snapshot.disk = status; });
}

void MetricsServer::update(const RemoteTierStatus& status) {
  state_->change([&](MetricsSnapshot& snapshot) { snapshot.remote = status; });
}

void MetricsServer::observe(TimedCall call, TimeNs duration_ns) {
  state_->change([&](MetricsSnapshot& snapshot) {
    of(snapshot.call_seconds, call).observe(bounds::kCallSeconds, seconds_of(duration_ns));
  });
}

void MetricsServer::observe(TransferKind kind, TimeNs duration_ns, Tier tier) {
  state_->change([&](MetricsSnapshot& snapshot) {
    const bool is_remote = is_of_lower_tier(kind) && tier == Tier::Remote;
    of(is_remote ? snapshot.remote_transfer_seconds : snapshot.transfer_seconds, kind)
        .observe(bounds::kTransferSeconds, seconds_of(duration_ns));
  });
}

void MetricsServer::observe(std::span<const Completion> completions) {
  for (const Completion& completion : completions) {
    if (completion.busy_ns > 0) observe(completion.kind, completion.busy_ns, completion.tier);
  }
}

void MetricsServer::observe_ready(TimeNs waited_ns) {
  state_->change(
      [&](MetricsSnapshot& snapshot) { snapshot.ready_seconds.observe(bounds::kReadySeconds, seconds_of(waited_ns)); });
}

void MetricsServer::observe(const Admission& admission, std::uint32_t prompt_tokens) {
  const double matched = static_cast<double>(admission.matched_tokens) + admission.loading_tokens;
  state_->change([&](MetricsSnapshot& snapshot) {
    snapshot.prompt_tokens.observe(bounds::kTokens, prompt_tokens);
    snapshot.matched_tokens.observe(bounds::kTokens, matched);
    if (prompt_tokens > 0) snapshot.matched_ratio.observe(bounds::kRatio, std::min(matched / prompt_tokens, 1.0));
    if (admission.miss.reason != MissReason::Evicted) return;
    of(snapshot.miss_age_seconds, admission.miss.tier).observe(bounds::kAgeSeconds, seconds_of(admission.miss.age_ns));
  });
}

std::string MetricsServer::text() const {
  return text_of(state_->families());
}

std::uint16_t MetricsServer::port() const {
  return listener_ == nullptr ? 0 : listener_->port();
}

}  // namespace quire
