// SPDX-License-Identifier: Apache-2.0
//
// A RemoteMover with its thread, on a store that answers from another one: plans, cancelling and closing at any time.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "testing/seeded_run.h"
#include "tests/remote/comes_true.h"
#include "tests/transfer/remote_mover_fixture.h"

namespace quire {
namespace {

using testing::Random;
using testing::SimRemoteServer;
using testing::SimRemoteStore;

/// Answers all batches, one by one.
class ServerThread {
 public:
  explicit ServerThread(SimRemoteServer& server)
      : thread_([this, &server] {
          while (!is_stopping_) {
            if (!server.run_one()) std::this_thread::yield();
          }
        }) {}
  ~ServerThread() {
    is_stopping_ = true;
    thread_.join();
  }
  ServerThread(const ServerThread&) = delete;
  ServerThread& operator=(const ServerThread&) = delete;

 private:
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

class RemoteMoverThreadTest : public ::testing::Test {
 protected:
  RemoteMoverThreadTest() : event_fd_(::eventfd(0, EFD_CLOEXEC)) {}
  ~RemoteMoverThreadTest() override { ::close(event_fd_); }

  /// Waits for one plan, without looking again before there is something.
  Completion end_of(RemoteEngine& engine, TransferId id) const {
    for (;;) {
      if (const auto completion = engine.heard(id)) return *completion;
      pollfd fd{.fd = event_fd_, .events = POLLIN, .revents = 0};
      EXPECT_EQ(::poll(&fd, 1, 60'000), 1);
      std::uint64_t marks = 0;
      EXPECT_EQ(::read(event_fd_, &marks, sizeof(marks)), static_cast<ssize_t>(sizeof(marks)));
    }
  }

  int event_fd_;
  SimRemoteServer server_{1};
};

// An idle engine shows it too, and hears of it again when the store is back.
TEST_F(RemoteMoverThreadTest, AStoreThatCannotBeUsedIsKnownToBeSoThoughNobodyAsks) {
  SimRemoteStore store(server_);
  server_.set_node(SimRemoteServer::Node::Failing);
  const RemoteEngine engine(store, {.has_threads = true, .event_fd = event_fd_});
  EXPECT_FALSE(engine.mover->is_usable());
  for (const bool is_up : {true, false}) {
    server_.set_node(is_up ? SimRemoteServer::Node::Up : SimRemoteServer::Node::Failing);
    EXPECT_TRUE(testing::comes_true([&] { return engine.mover->is_usable() == is_up; }));
  }
}

TEST_F(RemoteMoverThreadTest, PlansOfTwoEnginesGoThroughTheirThreads) {
  ServerThread answers(server_);
  SimRemoteStore first(server_);
  SimRemoteStore second(server_);
  RemoteEngine writer(first, {.has_threads = true, .event_fd = event_fd_});
  RemoteEngine reader(second, {.first_page = 20, .has_threads = true, .event_fd = event_fd_});
  for (std::uint32_t i = 0; i < 30; ++i) {
    const RemotePrompt prompt = remote_prompt(i, 12);
    writer.put_on_host(prompt, 0);
    ASSERT_EQ(end_of(writer, writer.submit_store(0, 0, 12)).outcome, TransferOutcome::Ok);
    ASSERT_EQ(end_of(reader, reader.submit_find(1, prompt, {})).good_pages, 12U);
    ASSERT_EQ(end_of(reader, reader.submit_load(2, 1, 0, 12, 100)).good_pages, 12U);
    for (std::uint32_t page = 0; page < 12; ++page) {
      ASSERT_EQ(reader.history.bytes_of(reader.host_page(100, page)), reader.bytes_of(prompt, page));
    }
  }
  EXPECT_EQ(end_of(writer, writer.submit_drop(3, kAllKeySpaces)).outcome, TransferOutcome::Ok);
  EXPECT_EQ(end_of(writer, writer.submit_flush(4)).outcome, TransferOutcome::Ok);
  EXPECT_TRUE(server_.keys().empty());
}

TEST_F(RemoteMoverThreadTest, ManyPlansAtOnceAndCancelledOnesAllEnd) {
  server_.set_faults({.refused_batches = 100, .failed = 20, .gone = 20, .flipped_bits = 20});
  ServerThread answers(server_);
  SimRemoteStore store(server_);
  RemoteEngine engine(store, {.has_threads = true, .event_fd = event_fd_});
  const RemotePrompt prompt = remote_prompt(1, 16);
  engine.put_on_host(prompt, 0);
  (void)end_of(engine, engine.submit_store(0, 0, 16));
  Random random(1);
  for (int round = 0; round < 60; ++round) {
    std::vector<TransferId> ids;
    const TransferId found = engine.submit_find(1, prompt, {});
    const std::uint32_t good_pages = end_of(engine, found).good_pages;
    for (std::uint32_t i = 0; i < 4; ++i) ids.push_back(engine.submit_store(8 + i, 4 * i, 4));
    for (std::uint32_t i = 0; i < good_pages / 4; ++i) {
      ids.push_back(engine.submit_load(2 + i, 1, 4 * i, 4, 100 + (10 * i)));
    }
    ids.push_back(engine.submit_find(13, prompt, {}));
    for (const TransferId id : ids) {
      if (random.below(3) == 0) engine.mover->cancel(id);
    }
    for (const TransferId id : ids) {
      const Completion completion = end_of(engine, id);
      const bool is_load = completion.kind == TransferKind::LoadFromBelow;
      for (std::uint32_t page = 0; is_load && page < completion.good_pages; ++page) {
        const std::uint32_t part = id.index - 2;
        ASSERT_EQ(engine.history.bytes_of(engine.host_page(100 + (10 * part), page)),
                  engine.bytes_of(prompt, (4 * part) + page));
      }
    }
  }
  EXPECT_TRUE(engine.history.is_at_rest());
}

// At the store, in the queue, and while nothing is answered any more.
TEST_F(RemoteMoverThreadTest, ClosingAtAnyTimeLeavesNothingInUse) {
  const RemotePrompt prompt = remote_prompt(1, 16);
  Random random(2);
  for (int round = 0; round < 40; ++round) {
    server_.set_node(SimRemoteServer::Node::Up);
    ServerThread answers(server_);
    SimRemoteStore store(server_);
    RemoteEngine engine(store, {.has_threads = true, .event_fd = event_fd_});
    engine.put_on_host(prompt, 0);
    (void)end_of(engine, engine.submit_store(0, 0, 16));
    (void)end_of(engine, engine.submit_find(1, prompt, {}));
    if (round % 2 == 0) server_.set_node(SimRemoteServer::Node::Stopped);
    (void)engine.submit_load(2, 1, 0, 16, 100);
    (void)engine.submit_find(3, prompt, {});
    (void)engine.submit_store(4, 0, 16);
    (void)engine.submit_flush(5);
    for (std::uint32_t i = random.below(2'000); i > 0; --i) std::this_thread::yield();
    engine.mover.reset();
    EXPECT_TRUE(engine.history.is_at_rest());
  }
}

}  // namespace
}  // namespace quire
