// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_session.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "remote/address_round.h"
#include "remote/monotonic_clock.h"
#include "remote/redis_cluster_check.h"
#include "remote/redis_refusal.h"

namespace quire {
namespace {

std::string user_text(const RedisLogin& login) {
  return login.user.empty() ? "the default user" : "the user '" + login.user + "'";
}

constexpr const char* kReadCommands =
    "ping, touch and get, scan and strlen for looking at what is there, cluster|slots and asking in a cluster";
constexpr const char* kWriteCommands =
    "ping, touch, get, set, unlink and scan, cluster|slots, cluster|nodes and asking in a cluster";

// Why an answer to a command that opening tries is not one to go on with.
Error refused(const RedisSession& session, const RedisLogin& login, const std::string& command,
              const std::string& error, const char* commands = kWriteCommands) {
  const std::string where = "the server at " + to_string(session.endpoint());
  switch (refusal_of(error)) {
    case RedisRefusal::NotLoggedIn:
      return {ErrorCode::InvalidArgument,
              where + " wants a password: put it into a file and name that in RedisConfig::password_file"};
    case RedisRefusal::NoPermission:
      return {ErrorCode::InvalidArgument, where + " does not allow " + command + " to " + user_text(login) + " (" +
                                              printable(error) + "): its ACL needs the commands " + commands +
                                              ", and the keys below the prefix"};
    case RedisRefusal::UnknownCommand:
      return {ErrorCode::Unsupported, where + " does not know " + command + " (" + printable(error) +
                                          "): Redis 4 or newer is needed, or Valkey"};
    case RedisRefusal::ReadOnly:
      return {ErrorCode::InvalidArgument, where + " is a replica, which takes no values: name the primary"};
    case RedisRefusal::Loading:
      return {ErrorCode::Unavailable, where + " is not ready yet (" + printable(error) + "): try again later"};
    case RedisRefusal::TooManyClients:
      return {ErrorCode::Unavailable, where + " " + kTooManyClientsText};
    case RedisRefusal::ProtectedMode:
      return {ErrorCode::Unavailable, where + " " + kProtectedModeText};
    default:
      return {ErrorCode::Unavailable, where + " refuses " + command + ": " + printable(error)};
  }
}

constexpr const char* kTimedOutHint = ": is it overloaded or stopped, or is there a firewall in between?";
constexpr const char* kTimedOutTlsHint =
    ": is it a server without TLS, overloaded or stopped, or is there a firewall in between?";

// False: it took too long.
bool try_wait_for(int descriptor, IoCount::State state, TimeNs deadline) {
  while (true) {
    const TimeNs left = deadline - monotonic_now();
    if (left <= 0) return false;
    pollfd poll_for{.fd = descriptor,
                    .events = static_cast<short>(state == IoCount::State::WaitsToRead ? POLLIN : POLLOUT),
                    .revents = 0};
    if (poll(&poll_for, 1, static_cast<int>((left / 1'000'000) + 1)) > 0) return true;
  }
}

bool is_about_certificate(const std::string& why) {
  return why.find("certificate") != std::string::npos;
}

// The error says nothing of whom it is about.
Result<std::unique_ptr<RedisConnection>> connect_to(const SocketAddress& address,
                                                    const RedisConnection::Options& options, TimeNs deadline) {
  QUIRE_TRY_ASSIGN(auto connection, RedisConnection::begin(address, options));
  while (true) {
    const IoCount count = connection->connect();
    if (count.state == IoCount::State::Moved) return connection;
    if (count.state == IoCount::State::Closed) {
      return fail(is_about_certificate(count.why) ? ErrorCode::InvalidArgument : ErrorCode::Unavailable, count.why);
    }
    if (!try_wait_for(connection->descriptor(), count.state, deadline)) {
      return fail(ErrorCode::TimedOut, "it cannot be reached in time");
    }
  }
}

// None of the addresses works. `code`: of what became of the first.
tl::unexpected<Error> unreached(const RedisEndpoint& endpoint, ErrorCode code, const std::string& failures) {
  const char* hint = ": is it running, and is the url right?";
  if (is_about_certificate(failures)) {
    hint = ": RedisConfig::ca_file names who signed it, RedisConfig::server_name whom it is for";
    code = ErrorCode::InvalidArgument;
  } else if (code == ErrorCode::TimedOut) {
    // A server without TLS waits for the rest of what it takes for a command.
    hint = endpoint.is_tls ? kTimedOutTlsHint : kTimedOutHint;
  }
  return fail(code, "no connection to the server at " + to_string(endpoint) + ": " + failures + hint);
}

// These say something about the server or the slot, and that the command itself is allowed.
bool is_allowed(const RespValue& answer) {
  if (answer.kind != RespKind::Error) return true;
  switch (refusal_of(answer.text)) {
    case RedisRefusal::Moved:
    case RedisRefusal::Ask:
    case RedisRefusal::ClusterDown:
    case RedisRefusal::TryAgain:
    case RedisRefusal::OutOfMemory:
    case RedisRefusal::WrongType:
      return true;
    default:
      return false;
  }
}

}  // namespace

tl::unexpected<Error> RedisSession::lost(const std::string& why) const {
  std::string message = "the connection to the server at " + to_string(endpoint_) + " was lost: " + why;
  if (!has_answered_ && !endpoint_.is_unix) {
    // A server that wants to know who asks may close the connection before its reason can be read.
    message += endpoint_.is_tls
                   ? ": is it a server with TLS, and does it know who signed RedisConfig::certificate_file, "
                     "if it wants a certificate?"
                   : ": does it want TLS, which is rediss://?";
  }
  return fail(ErrorCode::Unavailable, std::move(message));
}

Status RedisSession::wait_for(IoCount::State state, TimeNs deadline, const char* what) {
  if (try_wait_for(connection_->descriptor(), state, deadline)) return {};
  return late(what);
}

tl::unexpected<Error> RedisSession::late(const char* what) const {
  return fail(ErrorCode::TimedOut, "the server at " + to_string(endpoint_) + " " + what + kTimedOutHint);
}

Status RedisSession::log_in() {
  std::string text;
  if (!login_.append_login(text)) return {};
  QUIRE_TRY_ASSIGN(const RespValue answer, exchange(text));
  if (answer.kind != RespKind::Error) return {};
  switch (refusal_of(answer.text)) {
    case RedisRefusal::TooManyClients:
    case RedisRefusal::ProtectedMode:
    case RedisRefusal::Loading:
      return tl::unexpected<Error>(refused(*this, login_, "AUTH", answer.text));
    default:
      // What the server says may repeat what was sent to it, so nothing of it is told.
      return fail(ErrorCode::InvalidArgument, "the server at " + to_string(endpoint_) + " does not let " +
                                                  user_text(login_) +
                                                  " in: the user or the password is wrong, or it has none");
  }
}

TimeNs RedisSession::command_deadline() const {
  return std::min(monotonic_now() + login_.command_timeout_ns, limit_ns_);
}

Result<std::unique_ptr<RedisSession>> RedisSession::open(const RedisEndpoint& endpoint, const RedisLogin& login,
                                                         TimeNs limit_ns) {
  std::vector<SocketAddress> addresses;
  if (const auto address = address_in_numbers(endpoint)) {
    addresses.push_back(*address);
  } else {
    QUIRE_TRY_ASSIGN(addresses, login.look_up(endpoint));
  }
  AddressRound round;
  const TimeNs now = monotonic_now();
  round.begin(addresses, now, std::clamp<TimeNs>(limit_ns - now, 1, login.connect_timeout_ns));
  std::optional<ErrorCode> first_code;
  while (round.has_next()) {
    const SocketAddress& address = round.take_next(monotonic_now());
    auto connection = connect_to(address, login.options_for(endpoint), round.due_ns());
    if (connection.has_value()) {
      std::unique_ptr<RedisSession> session(
          new RedisSession(endpoint, round.with_taken_first(), *std::move(connection), login, limit_ns));
      QUIRE_TRY(session->log_in());
      return session;
    }
    round.failed(connection.error().message);
    if (!first_code) first_code = connection.error().code;
  }
  return unreached(endpoint, first_code.value_or(ErrorCode::Unavailable), round.failures(endpoint.host));
}

Status RedisSession::send(std::string_view commands) {
  const TimeNs deadline = command_deadline();
  while (!commands.empty()) {
    const std::array<iovec, 1> piece = {iovec{const_cast<char*>(commands.data()), commands.size()}};
    const IoCount count = connection_->write(piece);
    if (count.state == IoCount::State::Closed) return lost(count.why);
    commands.remove_prefix(count.bytes);
    if (count.state != IoCount::State::Moved) QUIRE_TRY(wait_for(count.state, deadline, "takes nothing"));
  }
  return {};
}

Result<RespValue> RedisSession::read_answer() {
  const TimeNs deadline = command_deadline();
  std::array<char, 16'384> buffer;
  while (true) {
    std::string_view rest = input_;
    const RespTaken taken = collector_.take(rest);
    input_.erase(0, input_.size() - rest.size());
    if (taken == RespTaken::Nonsense) {
      return fail(ErrorCode::Unsupported, "what listens at " + to_string(endpoint_) +
                                              " does not speak the protocol of Redis: is the port right, and does it "
                                              "want TLS, which is rediss://?");
    }
    if (taken == RespTaken::Taken) {
      has_answered_ = true;
      if (collector_.value().kind != RespKind::Push && collector_.value().kind != RespKind::Attribute) {
        return collector_.value();
      }
      // There may always be another, and then nothing is ever waited for.
      if (monotonic_now() < deadline) continue;
      return late("does not answer");
    }
    const std::array<iovec, 1> piece = {iovec{buffer.data(), buffer.size()}};
    const IoCount count = connection_->read(piece);
    if (count.state == IoCount::State::Closed) return lost(count.why);
    input_.append(buffer.data(), count.bytes);
    if (count.state != IoCount::State::Moved) QUIRE_TRY(wait_for(count.state, deadline, "does not answer"));
  }
}

Result<RespValue> RedisSession::call(std::span<const std::string_view> arguments) {
  std::string text;
  append_command(text, arguments);
  return exchange(text);
}

// A server that has no room says so and closes the connection: that can be read though nothing can be sent any more.
Result<RespValue> RedisSession::exchange(std::string_view commands) {
  const Status sent = send(commands);
  if (!sent.has_value() && sent.error().code != ErrorCode::Unavailable) return tl::unexpected<Error>(sent.error());
  Result<RespValue> answer = read_answer();
  if (!sent.has_value() && !answer.has_value()) return tl::unexpected<Error>(sent.error());
  return answer;
}

Status RedisSession::ping() {
  QUIRE_TRY_ASSIGN(const RespValue pong, call({"PING"}));
  if (pong.kind == RespKind::Error) return tl::unexpected<Error>(refused(*this, login_, "PING", pong.text));
  return {};
}

Result<RedisTopology> probe_redis(RedisSession& session, const RedisConfig& config, const RedisLogin& login) {
  const auto refuse = [&](const std::string& command, const RespValue& answer) {
    return refused(session, login, command, answer.text, config.is_read_only ? kReadCommands : kWriteCommands);
  };
  QUIRE_TRY_ASSIGN(const RespValue pong, session.call({"PING"}));
  if (pong.kind == RespKind::Error) return tl::unexpected<Error>(refuse("PING", pong));

  RedisTopology topology;
  if (config.cluster != RedisCluster::No) {
    QUIRE_TRY_ASSIGN(const RespValue slots, session.call({"CLUSTER", "SLOTS"}));
    if (slots.kind != RespKind::Error) {
      topology.is_cluster = true;
      QUIRE_TRY_ASSIGN(topology.map, parse_cluster_slots(slots, session.endpoint().host));
    } else if (refusal_of(slots.text) != RedisRefusal::NoCluster) {
      Error error = refuse("CLUSTER SLOTS", slots);
      if (config.cluster == RedisCluster::Auto) error.message += "; without a cluster, RedisConfig::cluster can say so";
      return tl::unexpected<Error>(std::move(error));
    } else if (config.cluster == RedisCluster::Yes || login.seeds.size() > 1) {
      return fail(ErrorCode::InvalidArgument, "the server at " + to_string(session.endpoint()) +
                                                  " is not part of a cluster: name it alone, or start it with "
                                                  "cluster-enabled yes");
    }
  }
  // A name that nobody has, for a millisecond.
  const std::string key = config.key_prefix + "quire-tries-what-it-may";
  const std::array<std::vector<std::string_view>, 4> tries = {{
      {"TOUCH", key},
      {"GET", key},
      {"SET", key, "", "PX", "1"},
      {"UNLINK", key},
  }};
  constexpr std::size_t kReadCount = 2;
  for (const auto& command : std::span(tries).first(config.is_read_only ? kReadCount : tries.size())) {
    QUIRE_TRY_ASSIGN(const RespValue answer, session.call(command));
    const bool is_late_replica =
        topology.is_cluster && answer.kind == RespKind::Error && refusal_of(answer.text) == RedisRefusal::ReadOnly;
    if (!is_allowed(answer) && !is_late_replica) {
      return tl::unexpected<Error>(refuse(std::string(command.front()), answer));
    }
  }
  if (topology.is_cluster && topology.map.missing_slots() > 0) {
    return fail(ErrorCode::Unavailable,
                "the cluster that " + to_string(session.endpoint()) + " belongs to has no node for " +
                    std::to_string(topology.map.missing_slots()) +
                    " of its 16384 slots: start the nodes that are missing, or give their slots to others (redis-cli "
                    "--cluster fix); with RedisConfig::requires_server = false a store opens all the same");
  }
  return topology;
}

Result<RedisTopology> probe_redis_seeds(const RedisConfig& config, const RedisLogin& login) {
  Error first;
  for (const RedisEndpoint& seed : login.seeds) {
    Result<RedisTopology> topology;
    auto session = RedisSession::open(seed, login);
    if (session.has_value()) {
      topology = probe_redis(**session, config, login);
      if (topology.has_value()) {
        topology->seed = seed;
        topology->seed_addresses = (*session)->addresses();
        if (topology->is_cluster) {
          if (Status checked = check_cluster_nodes(*topology, login); !checked.has_value()) {
            topology = tl::unexpected<Error>(std::move(checked).error());
          }
        }
      }
    } else {
      topology = tl::unexpected<Error>(std::move(session).error());
    }
    if (topology.has_value()) return topology;
    if (first.message.empty()) first = std::move(topology).error();
  }
  if (login.seeds.size() > 1) {
    first.message += "; none of the " + std::to_string(login.seeds.size() - 1) + " other nodes can be used either";
  }
  return tl::unexpected<Error>(std::move(first));
}

std::vector<RedisEndpoint> nodes_of(const RedisTopology& topology, const RedisLogin& login) {
  if (!topology.is_cluster) return login.seeds;
  std::vector<RedisEndpoint> nodes;
  nodes.reserve(topology.map.nodes.size());
  for (const ClusterMap::Node& node : topology.map.nodes) {
    nodes.push_back({.host = node.host, .port = node.port, .is_tls = login.seeds.front().is_tls});
  }
  return nodes;
}

}  // namespace quire
