// SPDX-License-Identifier: Apache-2.0
#include "sim_files.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "wire/segment.h"

namespace quire::testing {

SimFiles::SimFiles(const SimSetup& setup, std::vector<std::string> paths, Random& random, SimCounts& counts)
    : setup_(setup),
      paths_(std::move(paths)),
      random_(random),
      counts_(counts),
      disk_(std::make_unique<SimDisk>(random.next())) {}

// Faults

void SimFiles::set_failures(bool is_on) {
  disk_->set_failures(SimOperation::Read, is_on ? setup_.disk_read_failures : 0);
  disk_->set_failures(SimOperation::Write, is_on ? setup_.disk_write_failures : 0);
  disk_->set_failures(SimOperation::SyncFile, is_on ? setup_.disk_sync_failures : 0);
  disk_->set_failures(SimOperation::SyncDirectory, is_on ? setup_.disk_sync_failures / 4 : 0);
  is_failing_ = is_on;
  const bool has_any = setup_.disk_read_failures + setup_.disk_write_failures + setup_.disk_sync_failures > 0;
  has_failed_ = has_failed_ || (is_on && has_any);
}

void SimFiles::draw_fault() {
  if (!is_failing_) set_failures(true);
  if (random_.below(1000) < setup_.disk_flip_chance) flip_a_bit();
  if (random_.below(1000) < setup_.disk_forge_chance) forge_a_record();
  if (random_.below(1000) < setup_.disk_full_chance) {
    is_full_ = !is_full_;
    has_failed_ = true;
    counts_.add(SimEvent::DiskFull);
    disk_->set_capacity(is_full_ ? setup_.disk_capacity_bytes / setup_.disk_directory_count / (1 + random_.below(8))
                                 : UINT64_MAX);
  }
  if (random_.below(10'000) < setup_.disk_break_chance) {
    counts_.add(SimEvent::DiskBroken);
    has_failed_ = true;
    durable_.clear();
    disk_->set_broken(draw_path());
  }
  if (random_.below(10'000) < setup_.crash_chance) arm_crash(40);
}

void SimFiles::arm_crash(std::uint32_t operations_max) {
  counts_.add(SimEvent::CrashArmed);
  disk_->crash_after(random_.below(operations_max));
  has_failed_ = true;
}

// Of the operations that opening makes, one fails; or the process ends after some of them.
void SimFiles::draw_opening_fault() {
  may_lose_unsealed_ = false;
  if (random_.below(100) >= setup_.opening_chance) return;
  has_failed_ = true;
  if (random_.below(4) == 0) {
    counts_.add(SimEvent::OpeningCutOff);
    disk_->crash_after(random_.below(30));
    return;
  }
  counts_.add(SimEvent::OpeningFault);
  constexpr std::array kOperations = {SimOperation::Read,          SimOperation::Read,   SimOperation::Read,
                                      SimOperation::SyncDirectory, SimOperation::Open,   SimOperation::SyncFile,
                                      SimOperation::Write,         SimOperation::Remove, SimOperation::Length,
                                      SimOperation::OpenDirectory, SimOperation::List};
  const SimOperation operation = kOperations[random_.below(kOperations.size())];
  may_lose_unsealed_ = operation == SimOperation::Write || operation == SimOperation::SyncFile;
  disk_->fail_once(operation, random_.below(operation == SimOperation::Read ? 20 : 4));
}

bool SimFiles::draw_segment(Place& place) {
  place.path = draw_path();
  std::vector<std::string> names = disk_->file_names(place.path);
  std::erase_if(names, [](const std::string& name) { return !segment_id_of(name); });
  if (names.empty()) return false;
  place.name = names[random_.below(static_cast<std::uint32_t>(names.size()))];
  return true;
}

void SimFiles::flip_a_bit() {
  Place place;
  if (!draw_segment(place)) return;
  const std::vector<std::byte> bytes = disk_->file_bytes(place.path, place.name);
  if (bytes.empty()) return;  // the process ended when it was made
  // Where there is something to lose.
  for (int attempt = 0; attempt < 8; ++attempt) {
    auto at = random_.below(static_cast<std::uint32_t>(bytes.size()));
    if (random_.below(2) == 0) {  // where the bytes of a page would be
      at = static_cast<std::uint32_t>((at / kSegmentBlockBytes * kSegmentBlockBytes) + kRecordHeaderBytes +
                                      random_.below(16 * 8));
    }
    if (at >= bytes.size() || bytes[at] == std::byte{0}) continue;
    counts_.add(SimEvent::DiskFlipped);
    is_damaged_ = true;
    durable_.clear();
    disk_->flip_bit(place.path, place.name, (std::uint64_t{at} * 8) + random_.below(8));
    return;
  }
}

void SimFiles::overwrite(const Place& place, std::uint64_t offset, std::span<const std::byte> old_bytes,
                         std::span<const std::byte> new_bytes) {
  for (std::size_t i = 0; i < new_bytes.size(); ++i) {
    const auto difference = std::to_integer<unsigned>(old_bytes[i] ^ new_bytes[i]);
    for (unsigned bit = 0; bit < 8; ++bit) {
      if ((difference >> bit & 1U) != 0) disk_->flip_bit(place.path, place.name, ((offset + i) * 8) + bit);
    }
  }
}

// A page's record becomes another page's, or one of another layout, with checksums that fit: only the name and the
// layout tell.
void SimFiles::forge_a_record() {
  Place place;
  if (!draw_segment(place)) return;
  const std::vector<std::byte> bytes = disk_->file_bytes(place.path, place.name);
  if (bytes.size() < kSegmentBlockBytes) return;
  const Result<SegmentHeader> segment = decode_segment_header(std::span(bytes).first(kSegmentBlockBytes));
  if (!segment) return;
  std::vector<RecordHeader> pages;
  for (std::uint64_t offset = kSegmentBlockBytes; offset + kSegmentBlockBytes <= bytes.size();
       offset += kSegmentBlockBytes) {
    const Result<RecordHeader> record =
        decode_record_header(std::span(bytes).subspan(offset, kSegmentBlockBytes),
                             {.salt = segment->salt, .offset = offset, .segment_bytes = bytes.size()});
    if (record && record->kind == RecordKind::Page) pages.push_back(*record);
  }
  if (pages.size() < 2) return;
  const RecordHeader target = pages[random_.below(static_cast<std::uint32_t>(pages.size()))];
  const RecordHeader source = pages[random_.below(static_cast<std::uint32_t>(pages.size()))];
  if (target.stored_bytes != source.stored_bytes || target.name == source.name) return;
  const bool is_other_layout = random_.below(2) == 0 && target.compression == Compression::None;
  RecordHeader header = is_other_layout ? target : source;
  header.offset = target.offset;
  if (is_other_layout) {
    header.layout = mix64(header.layout);  // whoever does so twice must not end where he began
    header.checksum = source.checksum;
    if (source.compression != Compression::None) return;
  }
  std::vector<std::byte> forged(kRecordHeaderBytes + source.stored_bytes);
  encode_record_header(header, segment->salt, std::span(forged).first(kRecordHeaderBytes));
  std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(source.offset + kRecordHeaderBytes), source.stored_bytes,
              forged.begin() + kRecordHeaderBytes);
  counts_.add(is_other_layout ? SimEvent::DiskForgedLayout : SimEvent::DiskForgedName);
  is_damaged_ = true;
  durable_.clear();
  overwrite(place, target.offset, std::span(bytes).subspan(target.offset, forged.size()), forged);
}

// Lives

void SimFiles::end_life() {
  const bool is_power_lost = random_.below(2) == 0;
  counts_.add(is_power_lost ? SimEvent::Crashed : SimEvent::Killed);
  next_ = is_power_lost ? disk_->crash(random_.next()) : disk_->kill(random_.next());
}

void SimFiles::enter_next_life() {
  disk_ = std::move(next_);
  has_failed_ = false;
  is_failing_ = false;
  is_full_ = false;
  disk_->set_capacity(UINT64_MAX);
  // Another disk in the place of one that is broken, with what was on it: how it comes that it works again is not the
  // store's business.
  for (const std::string& path : paths_) disk_->set_broken(path, false);
}

// What must be there

SimFiles::Durable& SimFiles::durable(std::size_t store_index) {
  if (store_index >= durable_.size()) durable_.resize(store_index + 1);
  return durable_[store_index];
}

void SimFiles::note_durable(std::span<const PageName> names, FileStore& store, std::size_t store_index) {
  Durable& durable = this->durable(store_index);
  durable.seen = store.stats();
  if (is_damaged_) return;  // some of them may not be what they were
  counts_.add(SimEvent::DurableNoted, names.size());
  for (const PageName& name : names) {
    const bool is_known = std::ranges::find(durable.names, name) != durable.names.end();
    if (store.find({&name, 1}) == 1 && !is_known) durable.names.push_back(name);
  }
}

void SimFiles::look_after(FileStore& store, std::size_t store_index) {
  Durable& durable = this->durable(store_index);
  if (durable.names.empty()) return;
  const FileStoreStats stats = store.stats();
  // What went with its segment may have been written again at once, and is not synced.
  const bool has_made_room = stats.evicted_records != durable.seen.evicted_records;
  const bool has_failed = stats.failed_segments != durable.seen.failed_segments ||
                          stats.failed_directories != durable.seen.failed_directories;
  durable.seen = stats;
  if (has_made_room || has_failed) durable.names.clear();
  std::erase_if(durable.names, [&](const PageName& name) { return store.find({&name, 1}) == 0; });
}

void SimFiles::check_durable(FileStore& store, std::size_t store_index) {
  Durable& durable = this->durable(store_index);
  durable.seen = store.stats();
  if (durable.seen.failed_directories > 0) durable.names.clear();  // it took its pages with it
  // Records without a footer are written again when a store is opened, and go where that fails.
  if (may_lose_unsealed_) durable.names.clear();
  for (const PageName& name : durable.names) {
    if (store.find({&name, 1}) == 0) throw SimFailure("a page that was flushed is not there after the process ended");
  }
  counts_.add(SimEvent::DurableFound, durable.names.size());
}

}  // namespace quire::testing
