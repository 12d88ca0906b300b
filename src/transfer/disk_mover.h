// SPDX-License-Identifier: Apache-2.0
//
// DiskMover: the lower tier of files. It decides nothing: LowerPlans in, Completions out. Three lanes, each a thread:
// one computes names and looks them up, one reads, one writes. Names never wait for the disk, and reads not for writes.
//
//     names   follows the NameLog, answers Find, gives the pages of other plans their names
//     read    LoadFromBelow, GetFromBelow
//     write   StoreBelow, PutBelow, DropBelow, FlushBelow, in the order they came
//
// Each pool has a file store of its own, with its own capacity and so its own retention.
//
// thread-safe; without threads, run() is what they would do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/result.h"
#include "quire/transfer.h"
#include "quire/types.h"
#include "store/file_store.h"
#include "store/host_pages.h"
#include "transfer/lower_tier.h"
#include "transfer/page_names.h"

namespace quire {

class DiskMover final : public LowerTier {
 public:
  enum class Lane : std::uint8_t { Names, Read, Write };

  struct Config {
    PageNames::Config names;
    NameLog::Config log;
    std::vector<FileStoreConfig> stores;   ///< one for each pool; without directories: nothing of it goes to disk
    std::uint32_t transfer_count_max = 0;  ///< indices of TransferIds lie below it
    std::uint32_t transfer_pages_max = 0;  ///< pages of one plan, but for FindBelow
    std::uint32_t path_pages_max = 0;      ///< pages of a FindBelow
    bool has_threads = true;
    int event_fd = -1;                  ///< written when there is something to poll; -1: none
    std::function<TimeNs()> unix_time;  ///< when records are written, for people; null: 0
  };

  /// `files` and `hosts` must outlive it. Of the latter there is one for each store that has directories.
  [[nodiscard]] static Result<std::unique_ptr<DiskMover>> open(const Config& config, FileSystem& files,
                                                               std::span<HostPages* const> hosts);
  /// Drops what is queued, waits for what runs, and closes the stores.
  ~DiskMover() override;
  DiskMover(const DiskMover&) = delete;
  DiskMover& operator=(const DiskMover&) = delete;

  void submit(const NameLog& log) override;
  void submit(const LowerPlan& plan) override;
  void cancel(TransferId id) override;
  [[nodiscard]] std::span<Completion> poll(std::span<Completion> out) override;
  [[nodiscard]] bool keeps(std::uint32_t pool) const override;
  /// No directory of the pool's store works any more.
  [[nodiscard]] bool is_failed(std::uint32_t pool) const override;
  [[nodiscard]] std::string last_error() const override;
  [[nodiscard]] std::uint64_t written_bytes(std::uint32_t pool) const override;

  /// Without threads: does one thing that is queued in a lane; false when nothing is.
  bool run(Lane lane);
  /// Of a store that is not there, nothing.
  [[nodiscard]] FileStoreStats store_stats(std::uint32_t pool = 0) const;
  [[nodiscard]] FileStore& store(std::uint32_t pool = 0);

 private:
  struct Impl;
  explicit DiskMover(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
