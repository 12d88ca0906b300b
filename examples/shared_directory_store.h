// SPDX-License-Identifier: Apache-2.0
//
// SharedDirectoryStore: values as files in a directory that many machines have mounted, as an example of how a
// RemoteStore is written. docs/remote.md explains it; a test holds it to what remote_store.h promises.
//
// A value is written beside its place and renamed, so that nobody sees half of one. Asking for a value makes its file
// newer: who makes room deletes the oldest files. One thread answers questions, and one moves values, so that no
// question waits behind one. A deadline is looked at between two objects: a file system that hangs is waited for.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "quire/remote_store.h"
#include "quire/result.h"

// [class]
class SharedDirectoryStore final : public quire::RemoteStore {
 public:
  /// The directory is made if it is not there.
  static quire::Result<std::unique_ptr<SharedDirectoryStore>> open(const std::string& directory);
  ~SharedDirectoryStore() override;

  // Files need no memory of their own; a store over RDMA would pin these ranges here.
  quire::Status register_memory(std::span<std::byte> /*memory*/) override { return {}; }
  void unregister_memory(std::span<std::byte> /*memory*/) override {}

  bool try_submit(const quire::RemoteBatch& batch) override;
  void cancel(std::uint64_t id) override;
  std::span<quire::RemoteAnswer> poll(std::span<quire::RemoteAnswer> out) override;
  int event_fd() const override { return event_fd_; }
  quire::RemoteStatus status() const override;
  // [class]

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kBatchCountMax = 64;  // with those whose answers nobody has fetched
  static constexpr std::size_t kLaneCount = 2;       // questions, and values

  struct Job {
    quire::RemoteBatch batch;
    Clock::time_point start;
    Clock::time_point deadline;
    Clock::time_point first_byte = {};
    std::uint64_t moved_bytes = 0;
    bool is_cancelled = false;
  };
  struct Lane {
    std::deque<std::unique_ptr<Job>> jobs;  // those that somebody waits for first
    std::unique_ptr<Job> running;
    std::condition_variable has_work;
    std::thread thread;
  };

  SharedDirectoryStore(std::string directory, int event_fd);
  void work(Lane& lane);
  bool is_over(const Job& job) const;
  void run(Job& job);
  void finish(const Job& job);
  quire::RemoteOutcome run(Job& job, const quire::RemoteObject& object);
  quire::RemoteOutcome find(const std::string& path);
  quire::RemoteOutcome get(Job& job, const quire::RemoteObject& object, const std::string& path);
  quire::RemoteOutcome put(Job& job, const quire::RemoteObject& object, const std::string& path);
  quire::RemoteOutcome drop_below(std::string_view prefix);
  quire::RemoteOutcome failed(const std::string& what, int error_number);
  std::string path_below(std::string_view key) const;

  std::string directory_;
  int event_fd_;
  std::string new_files_;        // what the names of new files begin with
  std::uint64_t last_file_ = 0;  // of the lane of values

  mutable std::mutex mutex_;  // guards what follows; of a job that runs, only is_cancelled
  std::array<Lane, kLaneCount> lanes_;
  std::vector<quire::RemoteAnswer> answers_;
  std::size_t batch_count_ = 0;
  std::string last_error_;
  bool is_stopping_ = false;
};
