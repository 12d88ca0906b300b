// SPDX-License-Identifier: Apache-2.0
//
// Certificates for a test: somebody who signs, and what they have signed, as files.
#pragma once

#include <string>

namespace quire::testing {

struct TestCertificates {
  std::string ca_file;
  std::string certificate_file;
  std::string key_file;
};

/// In the directory, with names that begin with `name`. The certificate is for the host, a name or an address; the key
/// of whoever signs is a new one each time.
[[nodiscard]] TestCertificates make_certificates(const std::string& directory, const std::string& name,
                                                 const std::string& host);

}  // namespace quire::testing
