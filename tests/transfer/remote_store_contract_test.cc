// SPDX-License-Identifier: Apache-2.0
//
// The contract over the store in memory and over the example of the documents, and what else that example does.
#include "tests/transfer/remote_store_contract.h"

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>

#include "examples/shared_directory_store.h"
#include "testing/sim_remote_store.h"
#include "testing/temp_directory.h"

namespace quire {
namespace {

class SimScene final : public ContractScene {
 public:
  RemoteStore& store() override { return *store_; }
  void close() override { store_.reset(); }
  void run() override { (void)server_.run_one(); }
  void pass_time() override { server_.set_now(now_ns_ += 1'000'000'000); }

 private:
  testing::SimRemoteServer server_{1};
  std::unique_ptr<testing::SimRemoteStore> store_ = std::make_unique<testing::SimRemoteStore>(server_);
  TimeNs now_ns_ = 0;
};

class SharedDirectoryScene final : public ContractScene {
 public:
  RemoteStore& store() override { return *store_; }
  void close() override { store_.reset(); }

 private:
  testing::TempDirectory directory_;
  std::unique_ptr<SharedDirectoryStore> store_ = SharedDirectoryStore::open(directory_.path() + "/shared").value();
};

INSTANTIATE_TEST_SUITE_P(Stores, RemoteStoreContract,
                         ::testing::Values(ContractStore{"InMemory", [] { return std::make_unique<SimScene>(); }},
                                           ContractStore{"SharedDirectory",
                                                         [] { return std::make_unique<SharedDirectoryScene>(); }}),
                         [](const auto& store) { return store.param.name; });

TEST(SharedDirectoryStore, TwoOfThemSeeTheSameValues) {
  const testing::TempDirectory directory;
  const auto here = SharedDirectoryStore::open(directory.path());
  const auto there = SharedDirectoryStore::open(directory.path());
  ASSERT_TRUE(here.has_value() && there.has_value());
  const auto end = [](RemoteStore& store, RemoteOperation operation, RemoteObject object) {
    EXPECT_TRUE(store.try_submit({.id = 1, .operation = operation, .objects = {&object, 1}}));
    for (std::array<RemoteAnswer, 1> room; store.poll(room).empty();) std::this_thread::yield();
    return object.outcome;
  };
  std::array<std::byte, 1000> value;
  value.fill(std::byte{7});
  const std::array<std::span<const std::byte>, 1> source = {value};
  EXPECT_EQ(end(**here, RemoteOperation::Put, {.key = "a:1", .source = source}), RemoteOutcome::Ok);
  std::array<std::byte, 1000> got{};
  const std::array<std::span<std::byte>, 1> target = {got};
  EXPECT_EQ(end(**there, RemoteOperation::Get, {.key = "a:1", .target = target}), RemoteOutcome::Ok);
  EXPECT_EQ(got, value);
}

TEST(SharedDirectoryStore, APlaceWhereNoDirectoryCanBeIsRefused) {
  const auto store = SharedDirectoryStore::open("/proc/no/such/place");
  ASSERT_FALSE(store.has_value());
  EXPECT_NE(store.error().message.find("/proc/no/such/place"), std::string::npos);
}

}  // namespace
}  // namespace quire
