// SPDX-License-Identifier: Apache-2.0
//
// For tests of the remote tier: caches that share a server in memory, whose answers come when the test says so, or at
// once.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "disk_fixture.h"
#include "groups_disk_fixture.h"
#include "quire/remote_store.h"
#include "testing/sim_remote_store.h"

namespace quire {

using testing::SimRemoteServer;
using testing::SimRemoteStore;

/// A store whose server answers at once, or when it is let go.
class PromptStore final : public RemoteStore {
 public:
  explicit PromptStore(SimRemoteServer& server) : server_(server), store_(server) {}
  [[nodiscard]] Status register_memory(std::span<std::byte> memory) override { return store_.register_memory(memory); }
  void unregister_memory(std::span<std::byte> memory) override { store_.unregister_memory(memory); }
  [[nodiscard]] bool try_submit(const RemoteBatch& batch) override {
    if (!store_.try_submit(batch)) return false;
    if (!is_held_) run();
    return true;
  }
  void hold() { is_held_ = true; }
  void let_go() {
    is_held_ = false;
    run();
  }
  void cancel(std::uint64_t id) override { store_.cancel(id); }
  [[nodiscard]] std::span<RemoteAnswer> poll(std::span<RemoteAnswer> out) override { return store_.poll(out); }
  [[nodiscard]] int event_fd() const override { return store_.event_fd(); }
  [[nodiscard]] RemoteStatus status() const override { return store_.status(); }

 private:
  void run() {
    while (server_.run_one()) {
    }
  }

  SimRemoteServer& server_;
  SimRemoteStore store_;
  std::atomic<bool> is_held_ = false;
};

/// Every step of every tier is the test's.
class RemoteTest : public DiskTest {
 protected:
  ~RemoteTest() override { close(); }  // before its store goes

  [[nodiscard]] CacheConfig remote_config(std::uint32_t page_count = 32, std::uint32_t host_page_count = 64) {
    CacheConfig config = tiers_config(page_count, host_page_count, WritePolicy::WriteThrough);
    config.page.page_tokens = kPageTokens;
    config.host.transfer_pages_max = 4;  // and so an extent has four pages
    config.remote.store = &store_;
    return config;
  }
  /// Another cache, of another process perhaps, on the same server.
  void open_remote(CacheConfig config) { open_disk(std::move(config)); }
  [[nodiscard]] RemoteMover& remote() { return CacheForTests::remote(*cache_); }
  void set_time(TimeNs now) {
    now_ = now;
    server_.set_now(now);
    apply({});
  }
  /// False: there was nothing to do.
  bool run_remote() {
    bool has_run = false;
    while (remote().run() || server_.run_one()) has_run = true;
    std::array<Completion, 64> completions;
    const std::span<Completion> heard = remote().poll(completions);
    apply({heard.begin(), heard.end()});
    return has_run || !heard.empty();
  }
  void settle_remote() {
    do {
      settle();
      if (!cache_->config().disk.directories.empty()) settle_all();
    } while (run_remote());
  }
  /// Gives the tokens that need not be computed.
  std::uint32_t serve_remote(const std::vector<TokenId>& tokens, const SequenceOptions& options = {}) {
    Live live = admitted(tokens, options);
    settle_remote();
    EXPECT_FALSE(view(live).is_loading);
    view_ = view(live);
    finish(live);
    settle_remote();
    return view_.computed_tokens;
  }

  SimRemoteServer server_{1};
  SimRemoteStore store_{server_};
  SequenceView view_;  // of the last request, as it was admitted
};

/// Layouts of several groups, with threads and a server that answers at once.
class RemoteGroupsTest : public CacheGroupsDiskTest {
 protected:
  ~RemoteGroupsTest() override { close(); }

  [[nodiscard]] CacheConfig remote_config(std::vector<CacheGroup> groups, std::uint32_t page_count = 64) {
    CacheConfig config = disk_config(std::move(groups), page_count);
    config.disk = {};
    config.host.transfer_pages_max = 4;
    config.remote.store = &store_;
    return config;
  }

  SimRemoteServer server_{1};
  PromptStore store_{server_};
};

}  // namespace quire
