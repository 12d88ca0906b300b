// SPDX-License-Identifier: Apache-2.0
#include "metrics/listener.h"

namespace quire {

Result<std::unique_ptr<MetricsListener>> listen_for_scrapes(const std::string& /*address*/, std::uint16_t /*port*/,
                                                            std::function<std::vector<MetricFamily>()> /*collect*/) {
  return fail(ErrorCode::Unsupported,
              "this quire was built without prometheus-cpp, which listens for scrapes: leave the port unset, and have "
              "a server of your own send text()");
}

}  // namespace quire
