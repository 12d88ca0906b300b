// SPDX-License-Identifier: Apache-2.0
//
// Whether everything in a store can be read, and the repair of what cannot. A repair does what the next process that
// opens the store would do with a segment that it has to scan: what is good gets a new footer, the rest is in none and
// so is gone. It goes in the same order, too, so that a crash meanwhile leaves a segment that has to be scanned.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "quire/disk_store.h"
#include "store/record_payload.h"
#include "store/store_reader.h"
#include "store/system_files.h"
#include "store/verify_disk_store_with.h"

namespace quire {
namespace {

constexpr std::uint64_t kProgressBytes = std::uint64_t{8} << 20U;

/// What was found out about one segment.
struct Verdict {
  std::vector<DiskFault> faults;
  SegmentContents contents;
  std::vector<RecordHeader> good;
  std::vector<RecordHeader> to_mend;  ///< of these, those whose place does not have the header that the footer has
  std::uint64_t unfinished_count = 0;
  bool is_unreadable = false;  ///< the file system says no
};

std::string name_in(const RecordHeader& record) {
  if (record.kind == RecordKind::DropAll) return {};
  return to_hex(record.kind == RecordKind::Page || record.kind == RecordKind::DropPage ? record.name
                                                                                       : record.key_space);
}

class Verification {
 public:
  Verification(const StoreReader& reader, const VerifyOptions& options) : reader_(reader), options_(options) {
    report_.directories = reader.directories();
    for (const SegmentFile& file : reader.segments()) progress_.all_bytes += file.bytes;
  }

  /// With the directories, when there is something to repair.
  void run(std::span<const std::unique_ptr<StoreDirectory>> locked);
  VerifyReport take_report() { return std::move(report_); }

 private:
  Verdict judge(const SegmentFile& file, SegmentBytes& bytes);
  void judge_record(const SegmentFile& file, const RecordHeader& record, SegmentBytes& bytes, Verdict& verdict);
  void repair(const SegmentFile& file, Verdict& verdict, StoreDirectory& directory);
  bool show_progress(std::uint64_t begin_bytes, const SegmentBytes& bytes);

  const StoreReader& reader_;
  const VerifyOptions& options_;
  VerifyReport report_;
  VerifyProgress progress_;
  std::uint64_t shown_bytes_ = 0;
  std::uint64_t segment_begin_ = 0;  // progress at the segment's begin
  PageCompressor compressor_;
  std::vector<std::byte> scratch_;
};

void Verification::run(std::span<const std::unique_ptr<StoreDirectory>> locked) {
  for (const SegmentFile& file : reader_.segments()) {
    segment_begin_ = progress_.done_bytes;
    Verdict verdict;
    bool is_gone = false;
    // What somebody seals or reclaims meanwhile looks wrong, once.
    const bool is_in_use = locked.empty() && reader_.is_in_use(file.directory_index);
    for (int attempt = 0; attempt < (is_in_use ? 2 : 1); ++attempt) {
      verdict = {};
      Result<std::optional<SegmentBytes>> bytes = reader_.open_segment(file);
      is_gone = bytes && !*bytes;
      if (is_gone) break;
      if (bytes) {
        verdict = judge(file, **bytes);
      } else {
        verdict.is_unreadable = true;
        verdict.faults.push_back(
            {.directory_index = file.directory_index, .file = file.name, .why = bytes.error().message});
      }
      if (verdict.faults.empty() || !report_.is_complete) break;
    }
    progress_.done_bytes = segment_begin_ + file.bytes;
    if (is_gone) continue;
    if (!report_.is_complete) return;
    if (!locked.empty()) repair(file, verdict, *locked[file.directory_index]);
    ++report_.segment_count;
    report_.file_bytes += file.bytes;
    report_.record_count += verdict.good.size();
    report_.unfinished_count += verdict.unfinished_count;
    for (const RecordHeader& record : verdict.good) {
      if (record.kind != RecordKind::Page) continue;
      ++report_.page_count;
      report_.compressed_pages += record.compression != Compression::None ? 1 : 0;
    }
    progress_.fault_count += verdict.faults.size();
    std::ranges::move(verdict.faults, std::back_inserter(report_.faults));
  }
  if (options_.on_progress) (void)options_.on_progress(progress_);
}

bool Verification::show_progress(std::uint64_t done_bytes, const SegmentBytes& bytes) {
  progress_.done_bytes = segment_begin_ + std::min(done_bytes, bytes.size());
  if (!options_.on_progress || progress_.done_bytes < shown_bytes_ + kProgressBytes) return true;
  shown_bytes_ = progress_.done_bytes;
  report_.is_complete = options_.on_progress(progress_);
  return report_.is_complete;
}

Verdict Verification::judge(const SegmentFile& file, SegmentBytes& bytes) {
  Verdict verdict;
  const auto add = [&](std::optional<std::uint64_t> offset, std::string why) {
    verdict.faults.push_back(
        {.directory_index = file.directory_index, .file = file.name, .offset = offset, .why = std::move(why)});
  };
  Result<SegmentContents> contents = reader_.read_contents(file, bytes);
  if (!contents) {
    verdict.is_unreadable = true;
    add(std::nullopt, contents.error().message);
    return verdict;
  }
  verdict.contents = *std::move(contents);
  switch (verdict.contents.state) {
    case DiskSegmentState::Damaged:
    case DiskSegmentState::Newer:
      add(std::nullopt, verdict.contents.why);
      break;
    case DiskSegmentState::Sealed:
    case DiskSegmentState::Open:
    case DiskSegmentState::Empty:
    case DiskSegmentState::Foreign:
      break;
  }
  // Records without a footer that are not whole: those of a process that has the store are on their way.
  const bool may_be_unfinished =
      verdict.contents.state == DiskSegmentState::Open && !options_.repair && reader_.is_in_use(file.directory_index);
  for (const std::uint64_t offset : verdict.contents.torn) add(offset, "it begins like a record and is none");
  for (const RecordHeader& record : verdict.contents.records) {
    if (!show_progress(record.offset, bytes)) return verdict;
    judge_record(file, record, bytes, verdict);
  }
  std::ranges::sort(verdict.faults, {},
                    [](const DiskFault& fault) { return std::pair(fault.offset.value_or(0), fault.why); });
  if (may_be_unfinished) {
    verdict.unfinished_count = verdict.faults.size();
    verdict.faults.clear();
  }
  return verdict;
}

void Verification::judge_record(const SegmentFile& file, const RecordHeader& record, SegmentBytes& bytes,
                                Verdict& verdict) {
  const auto add = [&](std::string why) {
    verdict.faults.push_back({.directory_index = file.directory_index,
                              .file = file.name,
                              .offset = record.offset,
                              .name = name_in(record),
                              .why = std::move(why)});
  };
  const bool has_payload = record.kind == RecordKind::Page || record.kind == RecordKind::KeySpace;
  const Result<std::span<const std::byte>> stored = bytes.at(record.offset, kRecordHeaderBytes + record.stored_bytes);
  if (!stored) {
    add("it cannot be read: " + stored.error().message);
    // The footer has all there is to a tombstone. Without it, what was dropped would be back.
    if (has_payload || !verdict.contents.is_from_footer) return;
    verdict.to_mend.push_back(record);
    verdict.good.push_back(record);
    return;
  }
  if (has_payload) {
    const std::span<const std::byte> payload = stored->subspan(kRecordHeaderBytes);
    const std::string_view fault = payload_fault(record, payload, compressor_, scratch_);
    if (!fault.empty()) return add(std::string(fault));
    if (record.kind == RecordKind::KeySpace) {
      if (const Result<KeySpaceText> text = decode_key_space_text(payload); !text) return add(text.error().message);
    }
  }
  if (verdict.contents.is_from_footer) {
    const Result<RecordHeader> in_place = decode_record_header(
        *stored,
        {.salt = verdict.contents.header.salt, .offset = record.offset, .segment_bytes = verdict.contents.records_end});
    if (!in_place || *in_place != record) {
      add("its header is not what the footer has: " +
          (in_place ? std::string("another record lies there") : in_place.error().message));
      verdict.to_mend.push_back(record);
    }
  }
  verdict.good.push_back(record);
}

// Drops what is bad. What cannot be repaired says so itself.
void Verification::repair(const SegmentFile& file, Verdict& verdict, StoreDirectory& directory) {
  if (verdict.faults.empty()) return;
  const SegmentContents& contents = verdict.contents;
  const auto say = [&](DiskRepair repair) {
    for (DiskFault& fault : verdict.faults) {
      const bool is_mended = !fault.offset || std::ranges::find(verdict.to_mend, *fault.offset,
                                                                &RecordHeader::offset) != verdict.to_mend.end();
      fault.repair = repair == DiskRepair::Dropped && is_mended ? DiskRepair::Mended : repair;
    }
  };
  const auto leave = [&](const Error& error) {
    say(DiskRepair::Left);
    verdict.faults.back().why += "; repairing it failed: " + error.message;
  };
  if (verdict.is_unreadable || contents.state == DiskSegmentState::Newer) return say(DiskRepair::Left);
  if (!contents.is_readable || verdict.good.empty()) {
    Status removed = directory.remove(file.name);
    if (removed) removed = directory.sync_directory(SyncPoint::RemoveDirectory);
    return removed ? say(DiskRepair::Removed) : leave(removed.error());
  }
  const Result<FileId> opened = directory.open(file.name);
  if (!opened) return leave(opened.error());
  // What has no footer may be in the system's memory only, and count as written there (file_store_recover.cc).
  const auto write_again = [&](std::uint64_t offset, std::uint64_t bytes) -> Status {
    std::vector<std::byte> again(bytes);
    QUIRE_TRY(directory.read(*opened, offset, again));
    return directory.write(*opened, offset, again);
  };
  const auto write = [&]() -> Status {
    if (!contents.is_from_footer) {
      QUIRE_TRY(write_again(0, kSegmentBlockBytes));
      for (const RecordHeader& record : verdict.good) {
        QUIRE_TRY(write_again(record.offset, record_bytes(record.stored_bytes)));
      }
    }
    for (const RecordHeader& record : verdict.to_mend) {
      std::vector<std::byte> block(kSegmentBlockBytes);
      // A tombstone is alone in its block, which may be one that cannot be read.
      if (record.stored_bytes > 0) QUIRE_TRY(directory.read(*opened, record.offset, block));
      encode_record_header(record, contents.header.salt, std::span(block).first(kRecordHeaderBytes));
      QUIRE_TRY(directory.write(*opened, record.offset, block));
    }
    // A footer that stands may be used from here on only if the records do.
    const RecordHeader& last = verdict.good.back();
    const std::uint64_t end = last.offset + record_bytes(last.stored_bytes);
    std::vector<std::byte> footer(footer_bytes(verdict.good.size()));
    encode_footer(verdict.good, contents.header, end, footer);
    QUIRE_TRY(directory.sync_file(*opened, SyncPoint::SegmentSeal));
    QUIRE_TRY(directory.write(*opened, end, footer));
    QUIRE_TRY(directory.set_length(*opened, end + footer.size()));
    return directory.sync_file(*opened, SyncPoint::SegmentSeal);
  };
  const Status written = write();
  directory.close(*opened);
  return written ? say(DiskRepair::Dropped) : leave(written.error());
}

}  // namespace

std::string_view to_string(DiskRepair repair) {
  switch (repair) {
    case DiskRepair::NotAsked:
      return "";
    case DiskRepair::Dropped:
      return "dropped";
    case DiskRepair::Mended:
      return "mended";
    case DiskRepair::Removed:
      return "removed";
    case DiskRepair::Left:
      return "left";
  }
  return "";
}

bool VerifyReport::is_clean() const {
  return std::ranges::all_of(faults, [](const DiskFault& fault) {
    return fault.repair != DiskRepair::NotAsked && fault.repair != DiskRepair::Left;
  });
}

Result<VerifyReport> verify_disk_store(std::span<const std::string> directories, const VerifyOptions& options) {
  return verify_disk_store_with(FileCalls::real(), directories, options);
}

Result<VerifyReport> verify_disk_store_with(const FileCalls& calls, std::span<const std::string> directories,
                                            const VerifyOptions& options) {
  // Looked at before it is locked: to lock a directory makes it, or a file in it.
  QUIRE_TRY_ASSIGN(StoreReader reader, StoreReader::open(directories, calls));
  SystemFiles files(calls);
  std::vector<std::unique_ptr<StoreDirectory>> locked;
  if (options.repair) {
    for (const std::string& path : directories) {
      QUIRE_TRY_ASSIGN(locked.emplace_back(), files.open_directory(path));
    }
    // Once more, now that nobody writes.
    QUIRE_TRY_ASSIGN(reader, StoreReader::open(directories, calls));
  }
  Verification verification(reader, options);
  verification.run(locked);
  VerifyReport report = verification.take_report();
  for (DiskDirectoryReport& directory : report.directories) {
    if (!options.repair) break;
    directory.is_in_use = false;  // by this call only
    directory.process.reset();
  }
  return report;
}

}  // namespace quire
