// SPDX-License-Identifier: Apache-2.0
#include "metrics/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <prometheus/client_metric.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <prometheus/metric_type.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX has more in it
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <limits>
#include <utility>

#include "base/blocked_signals.h"
#include "base/system_error.h"

namespace quire {
namespace {

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

/// `address` is one in numbers.
SocketAddress socket_address(const std::string& address, std::uint16_t port) {
  SocketAddress made;
  auto* const ipv4 = reinterpret_cast<sockaddr_in*>(&made.storage);
  auto* const ipv6 = reinterpret_cast<sockaddr_in6*>(&made.storage);
  if (inet_pton(AF_INET, address.c_str(), &ipv4->sin_addr) == 1) {
    ipv4->sin_family = AF_INET;
    ipv4->sin_port = htons(port);
    made.bytes = sizeof(*ipv4);
    made.text = address + ":" + std::to_string(port);
  } else {
    (void)inet_pton(AF_INET6, address.c_str(), &ipv6->sin6_addr);
    ipv6->sin6_family = AF_INET6;
    ipv6->sin6_port = htons(port);
    made.bytes = sizeof(*ipv6);
    made.text = "[" + address + "]:" + std::to_string(port);
  }
  return made;
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

class Collector : public prometheus::Collectable {
 public:
  explicit Collector(std::function<std::vector<MetricFamily>()> collect) : collect_(std::move(collect)) {}

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    for (const MetricFamily& family : collect_()) families.push_back(converted(family));
    return families;
  }

 private:
  std::function<std::vector<MetricFamily>()> collect_;
};

class HttpListener final : public MetricsListener {
 public:
  // Two threads answer; a client that says nothing has one of them for five seconds.
  HttpListener(const std::string& address, std::function<std::vector<MetricFamily>()> collect)
      : collector_(std::make_shared<Collector>(std::move(collect))),
        exposer_({"listening_ports", address, "num_threads", "2", "request_timeout_ms", "5000"}) {
    exposer_.RegisterCollectable(collector_);
  }

  [[nodiscard]] std::uint16_t port() const override {
    return static_cast<std::uint16_t>(exposer_.GetListeningPorts().front());
  }

 private:
  std::shared_ptr<Collector> collector_;  // shared with the server's threads, by a weak pointer of theirs
  prometheus::Exposer exposer_;
};

}  // namespace

Result<std::unique_ptr<MetricsListener>> listen_for_scrapes(const std::string& address, std::uint16_t port,
                                                            std::function<std::vector<MetricFamily>()> collect) {
  const SocketAddress parsed = socket_address(address, port);
  const KeptSigpipe kept;
  const BlockedSignals blocked;
  // The one place where something that throws is called: it does when it cannot listen.
  try {
    return std::make_unique<HttpListener>(parsed.text, std::move(collect));
  } catch (const std::exception&) {
    return tl::unexpected<Error>(why_not(parsed));
  }
}

}  // namespace quire
