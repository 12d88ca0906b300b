// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind.h"
#include "cache_calls.h"
#include "casters.h"
#include "errors.h"
#include "quire/metrics.h"
#include "structs.h"

namespace quire::python {
namespace {

struct ServerHandle {
  std::unique_ptr<MetricsServer> server;

  MetricsServer& get() const {
    if (server == nullptr) raise(ErrorCode::InvalidArgument, "the metrics server was closed: open() another one");
    return *server;
  }
  void close() {
    if (server == nullptr) return;
    std::unique_ptr<MetricsServer> ending = std::move(server);
    const WithoutGil without;  // it waits for answers that are being sent
    ending.reset();
  }
  explicit ServerHandle(std::unique_ptr<MetricsServer> opened) : server(std::move(opened)) {}
  ServerHandle(ServerHandle&&) = default;
  ServerHandle& operator=(ServerHandle&&) = delete;
  ~ServerHandle() { close(); }
};

}  // namespace

void bind_metrics(nb::module_& module) {
  StructClass<MetricsConfig>(module, "MetricsConfig", "What a MetricsServer is made of.")
      .field(
          "port", &MetricsConfig::port,
          "Where to listen; 0: on a free port, which `port` tells. None: nowhere, and no thread starts; text() is for "
          "engines that have a server of their own. Listening needs a package that was built with prometheus-cpp.")
      .field("address", &MetricsConfig::address,
             "In numbers. Whoever can reach it can read everything: there is neither encryption nor a password.")
      .field("start_time_seconds", &MetricsConfig::start_time_seconds,
             "When the engine started, in seconds since 1970. None: it is not shown.")
      .with_constructor();
  enum_class<TimedCall>(module, "TimedCall", "Calls of a Cache whose time is worth watching.")
      .value("Lookup", TimedCall::Lookup)
      .value("Begin", TimedCall::Begin)
      .value("Admit", TimedCall::Admit)
      .value("PlanStep", TimedCall::PlanStep)
      .value("FinishStep", TimedCall::FinishStep)
      .value("Append", TimedCall::Append)
      .value("Offer", TimedCall::Offer)
      .value("Match", TimedCall::Match)
      .value("Apply", TimedCall::Apply);
  nb::class_<ServerHandle>(module, "MetricsServer",
                           "What a Cache holds and does, in the text format of Prometheus. The engine hands over "
                           "snapshots at its own pace. Any thread may call it.")
      .def_static(
          "open",
          [](const MetricsConfig& config) {
            Result<std::unique_ptr<MetricsServer>> opened = [&] {
              const WithoutGil without;
              return MetricsServer::open(config);
            }();
            return ServerHandle(take(std::move(opened)));
          },
          nb::arg("config"), nb::sig("def open(config: MetricsConfig) -> MetricsServer"))
      .def("close", &ServerHandle::close, "Stops listening. Waits for answers that are being sent.")
      .def(
          "__enter__", [](const nb::object& self) { return self; }, nb::sig("def __enter__(self) -> MetricsServer"))
      .def(
          "__exit__", [](ServerHandle& self, const nb::args&) { self.close(); },
          nb::sig("def __exit__(self, *exc_info: object) -> None"))
      .def(
          "describe",
          [](const ServerHandle& self, CacheState& cache) {
            const Access access(cache);
            self.get().describe(*access);
          },
          nb::arg("cache"), "What does not change: sizes, policies, the endurance budget. Once.")
      .def(
          "update", [](const ServerHandle& self, const Stats& stats) { self.get().update(stats); }, nb::arg("stats"),
          "The newest snapshot replaces the one before: Cache.stats(), Cache.disk_status() or Cache.remote_status().")
      .def(
          "update", [](const ServerHandle& self, const DiskStatus& status) { self.get().update(status); },
          nb::arg("status"))
      .def(
          "update", [](const ServerHandle& self, const RemoteTierStatus& status) { self.get().update(status); },
          nb::arg("status"))
      .def(
          "observe",
          [](const ServerHandle& self, TimedCall call, TimeNs duration_ns) { self.get().observe(call, duration_ns); },
          nb::arg("call"), nb::arg("duration_ns"), "How long a call of the cache took.")
      .def(
          "observe",
          [](const ServerHandle& self, TransferKind kind, TimeNs duration_ns, Tier tier) {
            self.get().observe(kind, duration_ns, tier);
          },
          nb::arg("kind"), nb::arg("duration_ns"), nb::arg("tier") = Tier::Disk,
          "How long a transfer took; `tier`: which one, if it is of a tier below the host.")
      .def(
          "observe",
          [](const ServerHandle& self, const std::vector<Completion>& completions) { self.get().observe(completions); },
          nb::arg("completions"), "What poll() gave, of a cache or of a mover: transfers by how long they took.")
      .def(
          "observe",
          [](const ServerHandle& self, const Admission& admission, std::uint32_t prompt_tokens) {
            self.get().observe(admission, prompt_tokens);
          },
          nb::arg("admission"), nb::arg("prompt_tokens"),
          "What admit() or resume() found of so many tokens; and how long ago the rest was lost.")
      .def(
          "observe_ready", [](const ServerHandle& self, TimeNs waited_ns) { self.get().observe_ready(waited_ns); },
          nb::arg("waited_ns"), "From begin() until the sequence can be planned.")
      .def(
          "text", [](const ServerHandle& self) { return self.get().text(); },
          "What a scrape gets now, in Prometheus' text format, but for the server's counts of scrapes.")
      .def_prop_ro("port", [](const ServerHandle& self) { return self.get().port(); }, "0: it does not listen.");
}

}  // namespace quire::python
