// SPDX-License-Identifier: Apache-2.0
#include "tests/remote/test_certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <cctype>
#include <cstdio>
#include <memory>

#include "base/check.h"

namespace quire::testing {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;

Key new_key() {
  return {EVP_EC_gen("P-256"), &EVP_PKEY_free};
}

void add_extension(X509* certificate, int what, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, what, value.c_str());
  QUIRE_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, "no extension");
  X509_EXTENSION_free(extension);
}

Certificate new_certificate(const std::string& subject, const std::string& issuer, EVP_PKEY* key, EVP_PKEY* signer,
                            bool is_ca, const std::string& host) {
  Certificate certificate(X509_new(), &X509_free);
  const auto set_name = [](X509_NAME* name, const std::string& text) {
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(text.c_str()), -1, -1,
                               0);
  };
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), is_ca ? 1 : 2);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key);
  set_name(X509_get_subject_name(certificate.get()), subject);
  set_name(X509_get_issuer_name(certificate.get()), issuer);
  add_extension(certificate.get(), NID_basic_constraints, is_ca ? "critical,CA:TRUE" : "CA:FALSE");
  if (!is_ca) {
    const bool is_address = std::isdigit(static_cast<unsigned char>(host[0])) != 0;
    add_extension(certificate.get(), NID_subject_alt_name, (is_address ? "IP:" : "DNS:") + host);
  }
  QUIRE_CHECK(X509_sign(certificate.get(), signer, EVP_sha256()) > 0, "no signature");
  return certificate;
}

template <typename Write>
std::string write_file(const std::string& path, Write write) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  QUIRE_CHECK(file != nullptr && write(file) == 1, "no file for a certificate");
  (void)std::fclose(file);
  return path;
}

}  // namespace

TestCertificates make_certificates(const std::string& directory, const std::string& name, const std::string& host) {
  const Key ca_key = new_key();
  const Key key = new_key();
  const std::string ca_name = "quire test signer " + name;
  const Certificate ca = new_certificate(ca_name, ca_name, ca_key.get(), ca_key.get(), true, "");
  const Certificate certificate = new_certificate("quire test server", ca_name, key.get(), ca_key.get(), false, host);
  const std::string path = directory + "/" + name;
  return {.ca_file = write_file(path + "-ca.pem", [&](std::FILE* f) { return PEM_write_X509(f, ca.get()); }),
          .certificate_file =
              write_file(path + "-certificate.pem", [&](std::FILE* f) { return PEM_write_X509(f, certificate.get()); }),
          .key_file = write_file(path + "-key.pem", [&](std::FILE* f) {
            return PEM_write_PrivateKey(f, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

}  // namespace quire::testing
