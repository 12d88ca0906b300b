// SPDX-License-Identifier: Apache-2.0
//
// The reader lane: as many reads in flight as the queue holds, and the checksums of those that are done computed
// meanwhile, in the pass that copies them to where they are wanted.
#include <span>

#include "base/check.h"
#include "base/mutants.h"
#include "store/file_store_impl.h"

namespace quire {

void FileStore::Impl::read(std::span<FileRead> pages) {
  for (const FileRead& page : pages) {
    QUIRE_CHECK(page.bytes.size() == config.layout.page_bytes, "a page is read as a whole");
  }
  const MutexLock lane(reader_mutex_);
  std::size_t next = 0;
  const auto start_more = [&]() QUIRE_REQUIRES(reader_mutex_) {
    while (next < pages.size() && reader_.in_flight_count < config.queue_depth && !reader_.free.empty()) {
      start_read(pages[next++]);
    }
  };
  while (next < pages.size() || reader_.in_flight_count > 0) {
    start_more();
    if (reader_.in_flight_count == 0) continue;
    const std::span<IoResult> results = reader_.queue->wait(reader_.results);
    reader_.in_flight_count -= static_cast<std::uint32_t>(results.size());
    // The queue must not run dry while those that are done are looked at: the next ones go to the spare buffers.
    start_more();
    for (const IoResult& result : results) {
      finish_read(static_cast<std::uint32_t>(result.tag), result.status);
      start_more();
    }
  }
  copier.settle();
}

void FileStore::Impl::start_read(FileRead& page) {
  const std::uint32_t buffer = reader_.free.back();
  Flight& flight = reader_.flights[buffer];
  {
    const MutexLock lock(index_mutex_);
    const std::uint32_t entry = index_.find(page.name);
    if (entry == FileIndex::kNone) {
      page.outcome = FileOutcome::Absent;
      return;
    }
    const IndexedPage& indexed_page = index_.page(entry);
    flight.segment = segments_[indexed_page.place.segment].get();
    // From here on its file stays open, even when it is removed meanwhile.
    ++flight.segment->reader_count;
    flight.header.offset = indexed_page.place.block * kSegmentBlockBytes;
    flight.header.stored_bytes = indexed_page.stored_bytes;
    flight.read = &page;
    flight.phase = Flight::Phase::Read;
  }
  reader_.free.pop_back();
  reader_.submit(buffer, IoKind::Read, record_bytes(flight.header.stored_bytes));
}

void FileStore::Impl::finish_read(std::uint32_t buffer, const Status& status) {
  const Flight& flight = reader_.flights[buffer];
  FileRead& page = *flight.read;
  const std::uint64_t bytes = record_bytes(flight.header.stored_bytes);
  if (status) {
    page.outcome = verify_into(flight, reader_.buffer(buffer).first(bytes), page);
  } else {
    page.outcome = FileOutcome::Failed;
    note_error(status.error());
  }
  {
    const MutexLock lock(index_mutex_);
    stats_.read_bytes += bytes;
    const PagePlace place{.segment = flight.segment->slot,
                          .block = static_cast<std::uint32_t>(flight.header.offset / kSegmentBlockBytes)};
    const std::uint32_t entry = index_.find(page.name);
    if (page.outcome == FileOutcome::Ok) {
      if (entry != FileIndex::kNone) index_.touch(entry);
    } else if (entry != FileIndex::kNone && index_.page(entry).place == place) {
      // Nobody else shall find it, and whoever has the page can write it again. A record that was carried over
      // meanwhile has been verified by that.
      bury(entry);
      if (page.outcome == FileOutcome::Corrupt) ++stats_.corrupt_records;
    }
  }
  unpin(*flight.segment);
  reader_.free.push_back(buffer);
}

FileOutcome FileStore::Impl::verify_into(const Flight& flight, std::span<const std::byte> record, FileRead& page) {
  const Result<RecordHeader> header =
      decode_record_header(record, {.salt = flight.segment->header.salt,
                                    .offset = flight.header.offset,
                                    .segment_bytes = flight.header.offset + record.size()});
  if (!header || header->kind != RecordKind::Page || (!is_mutated(Mutant::TrustsNames) && header->name != page.name) ||
      (!is_mutated(Mutant::TrustsLayouts) && header->layout != config.layout.hash) ||
      header->payload_bytes != page.bytes.size() || header->stored_bytes != flight.header.stored_bytes) {
    return FileOutcome::Corrupt;
  }
  const std::span<const std::byte> payload = record.subspan(kRecordHeaderBytes, header->stored_bytes);
  ChecksumPart sum;
  if (header->compression == Compression::Zstd) {
    if (!reader_.compressor.decompress(payload, page.bytes)) return FileOutcome::Corrupt;
    sum = copier.sum({.source = page.bytes.data(), .bytes = page.bytes.size()});
  } else {
    if (payload.size() != page.bytes.size()) return FileOutcome::Corrupt;
    sum = copier.copy_summed(
        {.target = page.bytes.data(), .source = payload.data(), .bytes = payload.size(), .next_use = NextUse::Later});
  }
  const std::uint64_t checksum = sum.finish(header->payload_bytes);
  if (!is_mutated(Mutant::TrustsChecksums) && checksum != header->checksum) return FileOutcome::Corrupt;
  page.checksum = checksum;
  return FileOutcome::Ok;
}

}  // namespace quire
