// SPDX-License-Identifier: Apache-2.0
//
// What every remote store promises, of the store for Redis: a server of its own for each test.
#include <memory>

#include "quire/redis_store.h"
#include "tests/remote/open_store.h"
#include "tests/remote/redis_server.h"
#include "tests/transfer/remote_store_contract.h"

namespace quire::testing {
namespace {

class RedisScene final : public ContractScene {
 public:
  RemoteStore& store() override { return *store_; }
  void close() override { store_.reset(); }

 private:
  RedisServer server_;
  std::unique_ptr<RemoteStore> store_ = open_store({.urls = {server_.unix_url()}, .key_prefix = ""});
};

INSTANTIATE_TEST_SUITE_P(Redis, RemoteStoreContract,
                         ::testing::Values(ContractStore{"Redis", [] { return std::make_unique<RedisScene>(); }}),
                         [](const auto& store) { return store.param.name; });

}  // namespace
}  // namespace quire::testing
