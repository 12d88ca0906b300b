// SPDX-License-Identifier: Apache-2.0
//
// OpenSSL calls these functions deprecated in favour of EVP_Digest…, which allocates at every hash and takes a quarter
// longer for the bytes of a small page.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/sha256.h"

#include <openssl/sha.h>

#include "base/check.h"

namespace quire {

std::array<std::byte, 32> sha256(std::span<const std::byte> bytes) {
  SHA256_CTX context;
  std::array<std::byte, 32> hash;
  const bool is_done = SHA256_Init(&context) == 1 && SHA256_Update(&context, bytes.data(), bytes.size()) == 1 &&
                       SHA256_Final(reinterpret_cast<unsigned char*>(hash.data()), &context) == 1;
  QUIRE_CHECK(is_done, "OpenSSL could not hash");
  return hash;
}

}  // namespace quire
