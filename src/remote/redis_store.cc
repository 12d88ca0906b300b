// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_store.h"

#include <charconv>
#include <system_error>
#include <thread>
#include <utility>

#include "base/blocked_signals.h"
#include "base/system_error.h"
#include "remote/monotonic_clock.h"
#include "remote/redis_login.h"
#include "remote/redis_mailbox.h"
#include "remote/redis_refusal.h"
#include "remote/redis_session.h"
#include "remote/redis_worker.h"
#include "remote/resp.h"

namespace quire {
namespace {

class RedisStore final : public RemoteStore {
 public:
  RedisStore(std::unique_ptr<RedisLogin> login, std::unique_ptr<RedisMailbox> mailbox,
             std::unique_ptr<RedisWorker> worker)
      : login_(std::move(login)), mailbox_(std::move(mailbox)), worker_(std::move(worker)) {}

  // Sockets take any memory.
  [[nodiscard]] Status register_memory(std::span<std::byte> /*memory*/) override { return {}; }
  void unregister_memory(std::span<std::byte> /*memory*/) override {}

  [[nodiscard]] bool try_submit(const RemoteBatch& batch) override {
    return mailbox_->try_submit(batch, monotonic_now());
  }
  void cancel(std::uint64_t id) override { mailbox_->cancel(id); }
  [[nodiscard]] std::span<RemoteAnswer> poll(std::span<RemoteAnswer> out) override { return mailbox_->poll(out); }
  [[nodiscard]] int event_fd() const override { return mailbox_->answers_event(); }
  [[nodiscard]] RemoteStatus status() const override { return mailbox_->status(); }

 private:
  // The worker goes first, since it uses the others.
  std::unique_ptr<RedisLogin> login_;
  std::unique_ptr<RedisMailbox> mailbox_;
  std::unique_ptr<RedisWorker> worker_;
};

// On a thread that takes no signals: writing to a connection that is gone would end the process otherwise, as OpenSSL
// cannot be told not to.
template <typename Body>
auto without_signals(Body body) {
  decltype(body()) result;
  const BlockedSignals blocked;
  try {
    std::thread([&] { result = body(); }).join();
  } catch (const std::system_error& error) {
    result = fail(errno_code(error.code().value()), "starting a thread for a remote store: " + error.code().message());
  }
  return result;
}

Result<std::uint64_t> read_length(const RespValue& answer, const RedisEndpoint& endpoint) {
  if (answer.kind == RespKind::Integer && answer.number >= 0) return static_cast<std::uint64_t>(answer.number);
  return fail(ErrorCode::Unavailable,
              "the server at " + to_string(endpoint) + " refuses STRLEN: " + printable(answer.text));
}

struct Scan {
  std::string pattern;
  const std::function<bool(const RedisScanPage&)>& on_page;
  RedisScanReport report = {};
};

// The lengths of the keys of one page, which are asked for together.
Status add_lengths(RedisSession& session, const std::vector<RespValue>& keys, RedisScanPage& page, Scan& scan) {
  std::string commands;
  for (const RespValue& key : keys) append_command(commands, {"STRLEN", key.text});
  QUIRE_TRY(session.send(commands));
  for (const RespValue& key : keys) {
    QUIRE_TRY_ASSIGN(const RespValue answer, session.read_answer());
    if (answer.kind == RespKind::Error) {
      const RedisRefusal refusal = refusal_of(answer.text);
      if (refusal == RedisRefusal::WrongType) {
        ++scan.report.foreign_count;
        page.foreign_keys.push_back(key.text);
        continue;
      }
      // It went to another node meanwhile, where it is seen, or was.
      if (refusal == RedisRefusal::Moved || refusal == RedisRefusal::Ask || refusal == RedisRefusal::TryAgain) continue;
    }
    QUIRE_TRY_ASSIGN(const std::uint64_t value_bytes, read_length(answer, session.endpoint()));
    page.keys.push_back({.key = key.text, .value_bytes = value_bytes});
    ++scan.report.key_count;
    scan.report.value_bytes += value_bytes;
  }
  return {};
}

Status scan_node(RedisSession& session, Scan& scan) {
  for (std::string cursor = "0"; scan.report.is_complete;) {
    QUIRE_TRY_ASSIGN(const RespValue answer, session.call({"SCAN", cursor, "MATCH", scan.pattern, "COUNT", "1000"}));
    if (answer.kind != RespKind::Array || answer.parts.size() != 2 || answer.parts[1].kind != RespKind::Array) {
      return fail(ErrorCode::Unavailable,
                  "the server at " + to_string(session.endpoint()) + " refuses SCAN: " + printable(answer.text));
    }
    RedisScanPage page{.node = to_string(session.endpoint())};
    QUIRE_TRY(add_lengths(session, answer.parts[1].parts, page, scan));
    const bool is_empty = page.keys.empty() && page.foreign_keys.empty();
    if (!is_empty && scan.on_page && !scan.on_page(page)) scan.report.is_complete = false;
    cursor = answer.parts[0].text;
    if (cursor == "0") return {};
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<RemoteStore>> open_redis_store(const RedisConfig& config) {
  QUIRE_TRY_ASSIGN(RedisLogin login, make_redis_login(config));
  return open_redis_store(config, std::move(login));
}

Result<std::unique_ptr<RemoteStore>> open_redis_store(const RedisConfig& config, RedisLogin made) {
  auto login = std::make_unique<RedisLogin>(std::move(made));
  const auto topology = without_signals([&] { return probe_redis_seeds(config, *login); });
  if (!topology.has_value() && config.requires_server) return tl::unexpected<Error>(topology.error());
  QUIRE_TRY_ASSIGN(auto mailbox, RedisMailbox::make(config.batch_count_max, config.object_count_max));
  QUIRE_TRY_ASSIGN(auto worker, RedisWorker::start(config, *login, *mailbox, topology));
  return std::make_unique<RedisStore>(std::move(login), std::move(mailbox), std::move(worker));
}

Result<RedisScanReport> scan_redis_store(const RedisConfig& config, std::string_view key_prefix,
                                         const std::function<bool(const RedisScanPage&)>& on_page) {
  QUIRE_TRY_ASSIGN(const RedisLogin login, make_redis_login(config));
  return scan_redis_store(config, login, key_prefix, on_page);
}

Result<RedisScanReport> scan_redis_store(const RedisConfig& config, const RedisLogin& login,
                                         std::string_view key_prefix,
                                         const std::function<bool(const RedisScanPage&)>& on_page) {
  Scan scan{.pattern = redis_pattern(key_prefix), .on_page = on_page};
  RedisConfig reading = config;
  reading.is_read_only = true;
  const Status status = without_signals([&]() -> Status {
    QUIRE_TRY_ASSIGN(const RedisTopology topology, probe_redis_seeds(reading, login));
    for (const RedisEndpoint& node : nodes_of(topology, login)) {
      QUIRE_TRY_ASSIGN(const auto session, RedisSession::open(node, login));
      QUIRE_TRY(scan_node(*session, scan));
      ++scan.report.node_count;
      if (!scan.report.is_complete) break;
    }
    return {};
  });
  QUIRE_TRY(status);
  return scan.report;
}

}  // namespace quire
