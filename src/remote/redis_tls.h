// SPDX-License-Identifier: Apache-2.0
//
// TLS by OpenSSL: what a store trusts and shows, and one connection's stream over a socket that does not block. The
// server's certificate is always checked, with the name or the address that it was asked under.
//
// TlsContext: immutable; TlsStream: single-threaded. SIGPIPE has to be blocked, since OpenSSL writes as it likes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "quire/redis_store.h"
#include "quire/result.h"

struct ssl_ctx_st;
struct ssl_st;

namespace quire {

class TlsContext {
 public:
  /// Reads the files that the configuration names.
  [[nodiscard]] static Result<std::unique_ptr<TlsContext>> load(const RedisConfig& config);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsStream;
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  ssl_ctx_st* context_;
};

/// What became of a call that does not block. `bytes` is 0 only for the others.
struct IoCount {
  enum class State : std::uint8_t { Moved, WaitsToRead, WaitsToWrite, Closed };
  State state = State::Moved;
  std::size_t bytes = 0;
  std::string why = {};  ///< of Closed
};

class TlsStream {
 public:
  /// The socket stays the caller's.
  [[nodiscard]] static Result<std::unique_ptr<TlsStream>> make(const TlsContext& context, int socket,
                                                               const std::string& server_name);
  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  /// Until it has Moved, there is nothing to read or write.
  [[nodiscard]] IoCount shake_hands();
  [[nodiscard]] IoCount read(void* target, std::size_t bytes);
  /// After WaitsToWrite, the next call has to begin with the same bytes.
  [[nodiscard]] IoCount write(const void* source, std::size_t bytes);
  /// Bytes that were taken off the socket and not read yet: waiting for the socket would be in vain.
  [[nodiscard]] bool has_pending() const;

 private:
  explicit TlsStream(ssl_st* stream) : stream_(stream) {}
  [[nodiscard]] IoCount ended(int result);

  ssl_st* stream_;
};

}  // namespace quire
