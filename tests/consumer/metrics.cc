// SPDX-License-Identifier: Apache-2.0
//
// The smallest user of the component metrics.
#include "quire/metrics.h"

int main() {
  const auto server = quire::MetricsServer::open({});
  return server.has_value() && (*server)->text().find("quire_info") != std::string::npos ? 0 : 1;
}
