// SPDX-License-Identifier: Apache-2.0
//
// StoreReader: the directories of a file store, to be looked at and never written: no lock is taken, no file is made.
// Somebody may have the store open meanwhile, so files may grow, get their footers or go away at any time.
//
// single-threaded
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quire/disk_store.h"
#include "quire/result.h"
#include "store/file_calls.h"
#include "store/system_directory.h"
#include "wire/segment.h"

namespace quire {

/// A file that is called like a segment.
struct SegmentFile {
  std::uint32_t directory_index = 0;
  std::string name;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;  ///< when the directory was listed
};

/// An open segment, read by a window that moves on.
class SegmentBytes {
 public:
  SegmentBytes(Descriptor file, std::uint64_t bytes, const FileCalls& calls)
      : calls_(&calls), file_(std::move(file)), file_bytes_(bytes) {}
  [[nodiscard]] std::uint64_t size() const { return file_bytes_; }
  /// All that lies at [offset, offset + bytes), valid until the next call. Io when some of it cannot be read or the
  /// file has become shorter; what lies around it, readable or not, does not matter.
  [[nodiscard]] Result<std::span<const std::byte>> at(std::uint64_t offset, std::uint64_t bytes);

 private:
  const FileCalls* calls_;
  Descriptor file_;
  std::uint64_t file_bytes_;
  std::uint64_t begin_ = 0;
  std::vector<std::byte> window_;
};

/// What a segment says is in it, payloads aside.
struct SegmentContents {
  DiskSegmentState state = DiskSegmentState::Sealed;
  std::string why;           ///< of Damaged, Newer and Foreign
  bool is_readable = false;  ///< it has a header of this store: `records` are what it has
  SegmentHeader header;
  std::uint64_t records_end = 0;      ///< where its footer begins, or would
  std::vector<RecordHeader> records;  ///< by ascending offset
  bool is_from_footer = false;        ///< else found by a scan
  std::vector<std::uint64_t> torn;    ///< offsets of what begins like a record and is none
};

class StoreReader {
 public:
  /// `calls` must outlive it and what it opens; files are read by them.
  [[nodiscard]] static Result<StoreReader> open(std::span<const std::string> directories, const FileCalls& calls);

  [[nodiscard]] const Manifest& manifest() const { return manifest_; }
  [[nodiscard]] const std::vector<DiskDirectoryReport>& directories() const { return reports_; }
  /// By directory, then by id.
  [[nodiscard]] const std::vector<SegmentFile>& segments() const { return segments_; }
  [[nodiscard]] bool is_in_use(std::uint32_t directory_index) const { return reports_[directory_index].is_in_use; }

  /// None when it has gone.
  [[nodiscard]] Result<std::optional<SegmentBytes>> open_segment(const SegmentFile& file) const;
  [[nodiscard]] Result<SegmentContents> read_contents(const SegmentFile& file, SegmentBytes& bytes) const;

 private:
  explicit StoreReader(const FileCalls& calls) : calls_(&calls) {}
  [[nodiscard]] Status add_directory(const std::string& path);

  const FileCalls* calls_;
  Manifest manifest_;
  std::vector<Descriptor> handles_;
  std::vector<DiskDirectoryReport> reports_;
  std::vector<SegmentFile> segments_;
};

}  // namespace quire
