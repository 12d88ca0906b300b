// SPDX-License-Identifier: Apache-2.0
//
// What remote_store.h promises, as tests for any store. A program of tests has remote_store_contract.cc among its
// sources and INSTANTIATE_TEST_SUITE_P(…, RemoteStoreContract, …) with a ContractStore for each kind. docs/remote.md
// points here.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "quire/remote_store.h"

namespace quire {

/// An empty store, and whatever it needs.
class ContractScene {
 public:
  virtual ~ContractScene() = default;
  [[nodiscard]] virtual RemoteStore& store() = 0;
  /// Destroys it.
  virtual void close() = 0;
  /// Of a store that answers only when it is told to: answers a batch. Called while somebody waits.
  virtual void run() {}
  /// Of a store whose time is a number: a second passes.
  virtual void pass_time() {}
};

struct ContractStore {
  std::string name;
  std::function<std::unique_ptr<ContractScene>()> make;
  friend std::ostream& operator<<(std::ostream& out, const ContractStore& store) { return out << store.name; }
};

class RemoteStoreContract : public ::testing::TestWithParam<ContractStore> {
 protected:
  [[nodiscard]] RemoteStore& store() const { return scene_->store(); }
  std::unique_ptr<ContractScene> scene_ = GetParam().make();
};

}  // namespace quire
