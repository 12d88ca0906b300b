// SPDX-License-Identifier: Apache-2.0
#include "remote/redis_tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

#include "base/system_error.h"

namespace quire {
namespace {

// The first of OpenSSL's errors says what went wrong, the others where.
std::string openssl_error() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "no reason was given";
  if (ERR_SYSTEM_ERROR(code)) return errno_text(ERR_GET_REASON(code));
  const char* const reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "error " + std::to_string(code) + " of OpenSSL";
}

tl::unexpected<Error> wrong_file(const std::string& member, const std::string& path) {
  return fail(ErrorCode::InvalidArgument, "RedisConfig::" + member + " is '" + path + "', which cannot be used: " +
                                              openssl_error() + ": name a file in PEM form that this process can read");
}

// No key of a file is asked for on a terminal.
int no_passphrase(char* /*buffer*/, int /*bytes*/, int /*is_writing*/, void* /*data*/) {
  return 0;
}

bool is_address(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> address{};
  return inet_pton(AF_INET, name.c_str(), address.data()) == 1 ||
         inet_pton(AF_INET6, name.c_str(), address.data()) == 1;
}

}  // namespace

Result<std::unique_ptr<TlsContext>> TlsContext::load(const RedisConfig& config) {
  ERR_clear_error();
  SSL_CTX* const context = SSL_CTX_new(TLS_client_method());
  if (context == nullptr) return fail(ErrorCode::Unsupported, "TLS cannot be used: " + openssl_error());
  std::unique_ptr<TlsContext> owner(new TlsContext(context));
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 1);
  SSL_CTX_set_default_passwd_cb(context, no_passphrase);
  if (config.ca_file.empty() ? SSL_CTX_set_default_verify_paths(context) != 1
                             : SSL_CTX_load_verify_file(context, config.ca_file.c_str()) != 1) {
    return wrong_file("ca_file", config.ca_file);
  }
  if (config.certificate_file.empty() != config.key_file.empty()) {
    return fail(
        ErrorCode::InvalidArgument,
        "one of RedisConfig::certificate_file and RedisConfig::key_file is set: a certificate needs the key that "
        "belongs to it");
  }
  if (config.certificate_file.empty()) return owner;
  if (SSL_CTX_use_certificate_chain_file(context, config.certificate_file.c_str()) != 1) {
    return wrong_file("certificate_file", config.certificate_file);
  }
  // Which also compares it with the certificate.
  if (SSL_CTX_use_PrivateKey_file(context, config.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return wrong_file("key_file", config.key_file);
  }
  return owner;
}

TlsContext::~TlsContext() {
  SSL_CTX_free(context_);
}

Result<std::unique_ptr<TlsStream>> TlsStream::make(const TlsContext& context, int socket,
                                                   const std::string& server_name) {
  ERR_clear_error();
  SSL* const stream = SSL_new(context.context_);
  if (stream == nullptr) return fail(ErrorCode::Unavailable, "no TLS stream: " + openssl_error());
  std::unique_ptr<TlsStream> owner(new TlsStream(stream));
  bool is_set = SSL_set_fd(stream, socket) == 1;
  if (is_address(server_name)) {
    is_set = is_set && X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(stream), server_name.c_str()) == 1;
  } else {
    is_set = is_set && SSL_set1_host(stream, server_name.c_str()) == 1 &&
             SSL_set_tlsext_host_name(stream, server_name.c_str()) == 1;
  }
  if (!is_set) return fail(ErrorCode::Unavailable, "no TLS stream: " + openssl_error());
  SSL_set_connect_state(stream);
  return owner;
}

TlsStream::~TlsStream() {
  SSL_free(stream_);
  ERR_clear_error();
}

IoCount TlsStream::ended(int result) {
  const int saved_errno = errno;
  switch (SSL_get_error(stream_, result)) {
    case SSL_ERROR_WANT_READ:
      return {.state = IoCount::State::WaitsToRead};
    case SSL_ERROR_WANT_WRITE:
      return {.state = IoCount::State::WaitsToWrite};
    case SSL_ERROR_ZERO_RETURN:
      return {.state = IoCount::State::Closed, .why = "the server closed the connection"};
    case SSL_ERROR_SYSCALL:
      ERR_clear_error();
      return {.state = IoCount::State::Closed,
              .why = saved_errno == 0 ? "the server closed the connection" : errno_text(saved_errno)};
    default:
      break;
  }
  if (const long verified = SSL_get_verify_result(stream_); verified != X509_V_OK) {
    ERR_clear_error();
    return {.state = IoCount::State::Closed,
            .why = std::string("its certificate is refused: ") + X509_verify_cert_error_string(verified)};
  }
  return {.state = IoCount::State::Closed, .why = "TLS: " + openssl_error()};
}

IoCount TlsStream::shake_hands() {
  errno = 0;
  ERR_clear_error();
  const int result = SSL_do_handshake(stream_);
  return result == 1 ? IoCount{} : ended(result);
}

IoCount TlsStream::read(void* target, std::size_t bytes) {
  errno = 0;
  ERR_clear_error();
  const int count = SSL_read(stream_, target, static_cast<int>(std::min<std::size_t>(bytes, INT_MAX)));
  return count > 0 ? IoCount{.bytes = static_cast<std::size_t>(count)} : ended(count);
}

IoCount TlsStream::write(const void* source, std::size_t bytes) {
  errno = 0;
  ERR_clear_error();
  const int count = SSL_write(stream_, source, static_cast<int>(std::min<std::size_t>(bytes, INT_MAX)));
  return count > 0 ? IoCount{.bytes = static_cast<std::size_t>(count)} : ended(count);
}

bool TlsStream::has_pending() const {
  return SSL_has_pending(stream_) == 1;
}

}  // namespace quire
