// SPDX-License-Identifier: Apache-2.0
//
// SimFiles: the disk tier's files, and what befalls them: operations that fail, bits that turn over, records that a
// stranger has put in the place of others, full disks, directories that break, and the end of the process. It knows
// what must still be there afterwards: pages that the store had before a flush that succeeded, and has had since.
//
// single-threaded
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim_setup.h"
#include "store/file_store.h"
#include "testing/sim_disk.h"
#include "transfer/disk_mover.h"
#include "wire/page_name.h"

namespace quire::testing {

inline constexpr std::array kDiskLanes = {DiskMover::Lane::Names, DiskMover::Lane::Read, DiskMover::Lane::Write};
inline constexpr TimeNs kHourNs = TimeNs{3'600} * 1'000'000'000;

class SimFiles {
 public:
  /// `paths`: all directories, of all stores.
  SimFiles(const SimSetup& setup, std::vector<std::string> paths, Random& random, SimCounts& counts);

  [[nodiscard]] SimDisk& disk() { return *disk_; }
  /// Whether anything that was asked for may have failed by now.
  [[nodiscard]] bool may_fail() const { return has_failed_; }
  [[nodiscard]] bool is_damaged() const { return is_damaged_; }

  /// One of the faults that the seed has drawn, perhaps.
  void draw_fault();
  /// The process ends in the middle of one of the next operations.
  void arm_crash(std::uint32_t operations_max);

  /// Something that happens while the store is opened, perhaps.
  void draw_opening_fault();
  /// The process ends. What it leaves is the disk from enter_next_life() on; the old one is there until then.
  void end_life();
  void enter_next_life();

  // What must be there, of each store.
  /// They were there before a flush began that has succeeded.
  void note_durable(std::span<const PageName> names, FileStore& store, std::size_t store_index = 0);
  /// After a lane has run: what is not there any more need not be there later.
  void look_after(FileStore& store, std::size_t store_index = 0);
  /// After a restart.
  void check_durable(FileStore& store, std::size_t store_index = 0);

 private:
  struct Place {
    std::string path;
    std::string name;
  };
  [[nodiscard]] bool draw_segment(Place& place);
  void flip_a_bit();
  void forge_a_record();
  void overwrite(const Place& place, std::uint64_t offset, std::span<const std::byte> old_bytes,
                 std::span<const std::byte> new_bytes);
  void set_failures(bool is_on);
  [[nodiscard]] std::string draw_path() { return paths_[random_.below(static_cast<std::uint32_t>(paths_.size()))]; }
  struct Durable {
    std::vector<PageName> names;
    FileStoreStats seen;
  };
  [[nodiscard]] Durable& durable(std::size_t store_index);

  const SimSetup& setup_;
  std::vector<std::string> paths_;
  Random& random_;
  SimCounts& counts_;
  std::unique_ptr<SimDisk> disk_;
  std::unique_ptr<SimDisk> next_;
  bool has_failed_ = false;
  bool is_failing_ = false;         // as the seed asks for
  bool is_damaged_ = false;         // somebody has changed files, in this life or an earlier one
  bool may_lose_unsealed_ = false;  // by the fault that was drawn for the last opening
  bool is_full_ = false;
  std::vector<Durable> durable_;  // by store
};

}  // namespace quire::testing
