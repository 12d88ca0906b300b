// SPDX-License-Identifier: Apache-2.0
#include "quire/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <prometheus/client_metric.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>
#include <prometheus/text_serializer.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX has more in it
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <limits>
#include <utility>
#include <vector>

#include "base/blocked_signals.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/system_error.h"
#include "metrics/families.h"

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

prometheus::ClientMetric converted(const Metric& metric, const MetricFamily& family) {
  prometheus::ClientMetric out;
  for (const MetricLabel& label : metric.labels) out.label.push_back({std::string(label.name), label.value});
  switch (family.type) {
    case MetricType::Counter:
      out.counter.value = metric.value;
      break;
    case MetricType::Gauge:
      out.gauge.value = metric.value;
      break;
    case MetricType::Histogram:
      out.histogram.sample_count = metric.histogram.count;
      out.histogram.sample_sum = metric.histogram.sum;
      std::uint64_t cumulative = 0;
      for (std::size_t i = 0; i <= family.bounds.size(); ++i) {
        cumulative += metric.histogram.counts[i];
        const double bound = i < family.bounds.size() ? family.bounds[i] : std::numeric_limits<double>::infinity();
        out.histogram.bucket.push_back({cumulative, bound});
      }
      break;
  }
  return out;
}

prometheus::MetricFamily converted(const MetricFamily& family) {
  prometheus::MetricFamily out;
  out.name = family.name;
  out.help = family.help;
  switch (family.type) {
    case MetricType::Counter:
      out.type = prometheus::MetricType::Counter;
      break;
    case MetricType::Gauge:
      out.type = prometheus::MetricType::Gauge;
      break;
    case MetricType::Histogram:
      out.type = prometheus::MetricType::Histogram;
      break;
  }
  for (const Metric& metric : family.metrics) out.metric.push_back(converted(metric, family));
  return out;
}

// The HTTP server ignores SIGPIPE for the whole process when it starts. What signals do is the engine's to say, and
// the server's threads take none.
class KeptSigpipe {
 public:
  KeptSigpipe() { sigaction(SIGPIPE, nullptr, &before_); }
  ~KeptSigpipe() { sigaction(SIGPIPE, &before_, nullptr); }
  KeptSigpipe(const KeptSigpipe&) = delete;
  KeptSigpipe& operator=(const KeptSigpipe&) = delete;

 private:
  struct sigaction before_{};
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  std::string text;  ///< with the port, as the server wants it
};

Result<SocketAddress> parse_address(const std::string& address, std::uint16_t port) {
  SocketAddress parsed;
  auto* const ipv4 = reinterpret_cast<sockaddr_in*>(&parsed.storage);
  auto* const ipv6 = reinterpret_cast<sockaddr_in6*>(&parsed.storage);
  if (inet_pton(AF_INET, address.c_str(), &ipv4->sin_addr) == 1) {
    ipv4->sin_family = AF_INET;
    ipv4->sin_port = htons(port);
    parsed.bytes = sizeof(*ipv4);
    parsed.text = address + ":" + std::to_string(port);
  } else if (inet_pton(AF_INET6, address.c_str(), &ipv6->sin6_addr) == 1) {
    ipv6->sin6_family = AF_INET6;
    ipv6->sin6_port = htons(port);
    parsed.bytes = sizeof(*ipv6);
    parsed.text = "[" + address + "]:" + std::to_string(port);
  } else {
    return fail(ErrorCode::InvalidArgument,
                "address \"" + address + "\" is not one: write it in numbers, such as 127.0.0.1 or ::1");
  }
  return parsed;
}

// The server does not say why it could not listen, so the same is tried again without it.
Error why_not(const SocketAddress& address) {
  int error = 0;
  const int file = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (file < 0 || bind(file, reinterpret_cast<const sockaddr*>(&address.storage), address.bytes) != 0 ||
      listen(file, 1) != 0) {
    error = errno;
  }
  if (file >= 0) close(file);
  const std::string reason = error == 0 ? "the HTTP server could not start" : errno_text(error);
  return {ErrorCode::Unavailable,
          "cannot listen on " + address.text + ": " + reason + ": choose another address or port, 0 for a free one"};
}

}  // namespace

// The snapshot, between the engine's thread and the server's.
class MetricsServer::State : public prometheus::Collectable {
 public:
  explicit State(std::optional<double> start_time_seconds) { snapshot_.start_time_seconds = start_time_seconds; }

  template <typename Change>
  void change(Change change) {
    const MutexLock lock(mutex_);
    change(snapshot_);
  }

  /// Only the copy is made under the mutex: the engine never waits for texts to be put together.
  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    const MetricsSnapshot snapshot = copy();
    std::vector<prometheus::MetricFamily> families;
    for (const MetricFamily& family : families_of(snapshot)) families.push_back(converted(family));
    return families;
  }

 private:
  [[nodiscard]] MetricsSnapshot copy() const {
    const MutexLock lock(mutex_);
    return snapshot_;
  }

  mutable Mutex mutex_;  // guards what follows
  MetricsSnapshot snapshot_ QUIRE_GUARDED_BY(mutex_);
};

class MetricsServer::Listener {
 public:
  // Two threads answer; a client that says nothing has one of them for five seconds.
  explicit Listener(const std::string& address)
      : exposer_({"listening_ports", address, "num_threads", "2", "request_timeout_ms", "5000"}) {}

  [[nodiscard]] prometheus::Exposer& exposer() { return exposer_; }

 private:
  prometheus::Exposer exposer_;
};

MetricsServer::MetricsServer(std::shared_ptr<State> state) : state_(std::move(state)) {}

// The listener goes first, and its threads with it.
MetricsServer::~MetricsServer() {
  listener_.reset();
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::open(const MetricsConfig& config) {
  std::unique_ptr<MetricsServer> server(new MetricsServer(std::make_shared<State>(config.start_time_seconds)));
  QUIRE_TRY_ASSIGN(const SocketAddress address, parse_address(config.address, config.port.value_or(0)));
  if (!config.port) return server;
  const KeptSigpipe kept;
  const BlockedSignals blocked;
  // The one place where something that throws is called: it does when it cannot listen.
  try {
    server->listener_ = std::make_unique<Listener>(address.text);
    server->listener_->exposer().RegisterCollectable(server->state_);
  } catch (const std::exception&) {
    return tl::unexpected<Error>(why_not(address));
  }
  return server;
}

void MetricsServer::describe(const Cache& cache) {
  const CacheConfig& config = cache.config();
  CacheFacts facts{.page_bytes = cache.geometry().page().page_bytes(),
                   .page_tokens = config.page.page_tokens,
                   .policy = config.policy,
                   .host_policy = config.host.is_on() ? config.host.policy : "",
                   .disk_write_bytes_per_day = config.disk.is_on() ? config.disk.write_bytes_per_day : 0};
  state_->change([&](MetricsSnapshot& snapshot) { snapshot.facts = std::move(facts); });
}

void MetricsServer::update(const Stats& stats) {
  state_->change([&](MetricsSnapshot& snapshot) { snapshot.stats = stats; });
}

void MetricsServer::update(const DiskStatus& status) {
  state_->change([&](MetricsSnapshot& snapshot) { snapshot.disk = status; });
}

void MetricsServer::observe(TimedCall call, TimeNs duration_ns) {
  state_->change([&](MetricsSnapshot& snapshot) {
    of(snapshot.call_seconds, call).observe(bounds::kCallSeconds, seconds_of(duration_ns));
  });
}

void MetricsServer::observe(TransferKind kind, TimeNs duration_ns) {
  state_->change([&](MetricsSnapshot& snapshot) {
    of(snapshot.transfer_seconds, kind).observe(bounds::kTransferSeconds, seconds_of(duration_ns));
  });
}

void MetricsServer::observe(std::span<const Completion> completions) {
  for (const Completion& completion : completions) {
    if (completion.busy_ns > 0) observe(completion.kind, completion.busy_ns);
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
  return prometheus::TextSerializer().Serialize(state_->Collect());
}

std::uint16_t MetricsServer::port() const {
  return listener_ == nullptr ? 0 : static_cast<std::uint16_t>(listener_->exposer().GetListeningPorts().front());
}

}  // namespace quire
