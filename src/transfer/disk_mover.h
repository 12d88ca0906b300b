// SPDX-License-Identifier: Apache-2.0
//
// DiskMover: the way between host pages and the file store. It decides nothing: DiskPlans in, Completions out. Three
// lanes, each a thread: one computes names and looks them up, one reads, one writes. Names never wait for the disk, and
// reads not for writes.
//
//     names   follows the NameLog, answers Find, gives the pages of other plans their names
//     read    LoadFromDisk, GetFromDisk
//     write   StoreToDisk, PutOnDisk, DropOnDisk, FlushDisk, in the order they came
//
// Groups that do not keep everything have stores of their own, each with its own capacity and so its own retention.
// What they keep of a path lies there under the name of the history's page that it hangs on.
//
// What a plan points to (tokens, pages) is the caller's and stays as it is until the plan's completion has been polled.
// In between, the pages it names must not get another name, nor its key space another index.
//
// thread-safe; without threads, run() is what they would do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "quire/result.h"
#include "quire/transfer.h"
#include "quire/types.h"
#include "store/file_store.h"
#include "store/host_pages.h"
#include "transfer/page_names.h"

namespace quire {

struct DiskPlan {
  TransferId id;
  TransferKind kind = TransferKind::FindOnDisk;
  std::uint32_t key_space = 0;  ///< of FindOnDisk and DropOnDisk: index in the log
  /// Of LoadFromDisk and StoreToDisk: 0 for the history, i + 1 for side store i. There PageTransfer::place says what a
  /// page is called: in a load, which page of the path it hangs on; in a store, the id of that page in `named_in`.
  std::uint32_t store_index = 0;
  Tier named_in = Tier::Device;

  // FindOnDisk: so many leading pages are there, says Completion::good_pages. PutOnDisk, GetFromDisk: the same of those
  // that were written or read; they begin at the root.
  NamedPage parent;                      ///< the page before the first one
  std::uint32_t first_page = 0;          ///< its place in the path
  std::span<const TokenId> tokens;       ///< whole pages, from the first one on
  std::span<const ExtraKey> extra_keys;  ///< those that overlap them
  std::uint32_t held_pages = 0;          ///< FindOnDisk: so many of them need not be there, and do not count
  /// FindOnDisk: for each page of `tokens` that is held or found a bit for each side store that has it too. Empty:
  /// nobody asks.
  std::span<std::uint64_t> on_sides;

  std::span<const std::byte> source;  ///< of PutOnDisk: the pages' bytes
  std::span<std::byte> target;        ///< of GetFromDisk

  // LoadFromDisk: pages that a FindOnDisk has found, whose id is still in use.
  std::uint32_t found_by = 0;     ///< index of its TransferId
  std::uint32_t first_found = 0;  ///< which of its pages is the first

  // LoadFromDisk, StoreToDisk.
  std::span<const PageTransfer> pages;  ///< host pages; device pages do not matter
};

class DiskMover {
 public:
  enum class Lane : std::uint8_t { Names, Read, Write };

  struct Config {
    PageNames::Config names;
    NameLog::Config log;
    FileStoreConfig store;
    std::vector<FileStoreConfig> side_stores;  ///< without directories: the group has nothing on disk
    std::uint32_t transfer_count_max = 0;      ///< indices of TransferIds lie below it
    std::uint32_t transfer_pages_max = 0;      ///< pages of one plan, but for FindOnDisk
    std::uint32_t path_pages_max = 0;          ///< pages of a FindOnDisk
    bool has_threads = true;
    int event_fd = -1;                  ///< written when there is something to poll; -1: none
    std::function<TimeNs()> unix_time;  ///< when records are written, for people; null: 0
  };

  /// `files` and `host` must outlive it, and so must `side_hosts`, of which there is one for each side store that has
  /// directories.
  [[nodiscard]] static Result<std::unique_ptr<DiskMover>> open(const Config& config, FileSystem& files, HostPages& host,
                                                               std::span<HostPages* const> side_hosts = {});
  /// Drops what is queued, waits for what runs, and closes the store.
  ~DiskMover();
  DiskMover(const DiskMover&) = delete;
  DiskMover& operator=(const DiskMover&) = delete;

  /// Follows the log, which is empty afterwards, before any plan that is submitted later.
  void submit(NameLog& log);
  void submit(const DiskPlan& plan);
  /// Ends a plan early, if nobody has begun with it.
  void cancel(TransferId id);
  [[nodiscard]] std::span<Completion> poll(std::span<Completion> out);
  /// Without threads: does one thing that is queued in a lane; false when nothing is.
  bool run(Lane lane);

  /// No directory of a store works any more: whatever is asked of it fails or finds nothing.
  [[nodiscard]] bool is_failed(std::uint32_t store_index = 0) const;
  /// As DiskPlan::store_index counts; of a store that is not there, nothing.
  [[nodiscard]] FileStoreStats store_stats(std::uint32_t store_index = 0) const;
  [[nodiscard]] FileStore& store(std::uint32_t store_index = 0);

 private:
  struct Impl;
  explicit DiskMover(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
