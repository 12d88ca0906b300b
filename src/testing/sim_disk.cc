// SPDX-License-Identifier: Apache-2.0
#include "testing/sim_disk.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"

namespace quire::testing {
namespace {

constexpr std::byte kRubbish{0xdb};
constexpr std::uint32_t kEighths = 8;

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

bool is_blocks(std::uint64_t bytes) {
  return bytes % kIoBlockBytes == 0;
}

tl::unexpected<Error> io_error(const std::string& what) {
  return fail(ErrorCode::Io, what + ": Input/output error (simulated)");
}

std::string range_text(const char* what, std::uint64_t bytes, std::uint64_t offset, const std::string& directory) {
  return std::string(what) + " " + std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of a file in " +
         directory;
}

}  // namespace

void SparseBytes::set_length(std::uint64_t bytes) {
  if (bytes < length_) {
    sectors_.erase(sectors_.lower_bound(rounded_up(bytes, kSectorBytes) / kSectorBytes), sectors_.end());
    const auto last = sectors_.find(bytes / kSectorBytes);
    if (last != sectors_.end()) {
      std::fill(last->second.begin() + static_cast<std::ptrdiff_t>(bytes % kSectorBytes), last->second.end(),
                std::byte{0});
    }
  }
  length_ = bytes;
}

void SparseBytes::write(std::uint64_t sector_index, std::span<const std::byte> sector) {
  QUIRE_CHECK(sector.size() == kSectorBytes, "a sector is written as a whole");
  std::copy(sector.begin(), sector.end(), sectors_[sector_index].begin());
  length_ = std::max(length_, (sector_index + 1) * kSectorBytes);
}

SparseBytes::Sector SparseBytes::read(std::uint64_t sector_index) const {
  const auto found = sectors_.find(sector_index);
  return found != sectors_.end() ? found->second : Sector{};
}

// ── A queue ────────────────────────────────────────────────────────────────────────────────────────────────────

class SimQueue final : public IoQueue {
 public:
  SimQueue(SimDisk& disk, const IoQueueConfig& config)
      : disk_(disk), depth_(config.depth), blocks_(config.depth * config.buffer_bytes / kIoBlockBytes) {
    disk_.queues_.push_back(this);
  }
  ~SimQueue() override {
    std::array<IoResult, 8> results;
    while (!in_flight_.empty()) (void)wait(results);
    std::erase(disk_.queues_, this);
  }
  SimQueue(const SimQueue&) = delete;
  SimQueue& operator=(const SimQueue&) = delete;

  std::span<std::byte> memory() override { return {blocks_.data()->data(), blocks_.size() * kIoBlockBytes}; }
  std::uint32_t depth() const override { return depth_; }

  void submit(const IoRequest& request) override {
    QUIRE_CHECK(in_flight_.size() < depth_, "more requests than the queue is deep");
    const std::span<std::byte> all = memory();
    QUIRE_CHECK(!request.buffer.empty() && request.buffer.data() >= all.data() &&
                    request.buffer.data() + request.buffer.size() <= all.data() + all.size(),
                "the buffer is not the queue's");
    QUIRE_CHECK(is_blocks(request.offset) && is_blocks(request.buffer.size()) &&
                    is_blocks(static_cast<std::uint64_t>(request.buffer.data() - all.data())),
                "a request that is not made of blocks");
    for (const InFlight& other : in_flight_) {
      QUIRE_CHECK(request.buffer.data() + request.buffer.size() <= other.request.buffer.data() ||
                      other.request.buffer.data() + other.request.buffer.size() <= request.buffer.data(),
                  "two requests in flight share a buffer");
    }
    in_flight_.push_back({.request = request, .node = disk_.node_of(request.file), .written = {}});
    if (request.kind == IoKind::Write) {
      in_flight_.back().written.assign(request.buffer.begin(), request.buffer.end());
    } else {
      std::fill(request.buffer.begin(), request.buffer.end(), kRubbish);
    }
  }

  std::span<IoResult> wait(std::span<IoResult> out) override {
    QUIRE_CHECK(!in_flight_.empty() && !out.empty(), "waiting for nothing");
    const std::size_t count_max = std::min(out.size(), in_flight_.size());
    const std::size_t count = 1 + disk_.random_.below(static_cast<std::uint32_t>(count_max));
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t picked = disk_.random_.below(static_cast<std::uint32_t>(in_flight_.size()));
      InFlight done = std::move(in_flight_[picked]);
      in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(picked));
      out[i] = {.tag = done.request.tag, .status = complete(done)};
    }
    return out.first(count);
  }

 private:
  friend class SimDisk;
  friend class SimDirectory;
  struct InFlight {
    IoRequest request;
    SimDisk::NodeId node = 0;
    std::vector<std::byte> written;  // as it was submitted
  };

  Status complete(InFlight& done) {
    const bool is_write = done.request.kind == IoKind::Write;
    const std::string& path = disk_.nodes_.at(done.node).directory;
    const SimDisk::Verdict verdict =
        disk_.begin(is_write ? SimOperation::Write : SimOperation::Read, &disk_.directories_.at(path));
    const std::span<std::byte> buffer = done.request.buffer;
    const std::string what = range_text(is_write ? "writing" : "reading", buffer.size(), done.request.offset, path);
    if (!is_write) return disk_.read_now(verdict, done.node, done.request.offset, buffer, what);
    QUIRE_CHECK(std::equal(buffer.begin(), buffer.end(), done.written.begin()),
                "a buffer was changed while its write was in flight");
    return disk_.change(verdict, {done.node, done.request.offset, std::move(done.written)}, what);
  }

  struct alignas(kIoBlockBytes) Block : std::array<std::byte, kIoBlockBytes> {};

  SimDisk& disk_;
  const std::uint32_t depth_;
  std::vector<Block> blocks_;
  std::vector<InFlight> in_flight_;
};

// ── A directory ────────────────────────────────────────────────────────────────────────────────────────────────

class SimDirectory final : public StoreDirectory {
 public:
  SimDirectory(SimDisk& disk, std::string path) : disk_(disk), path_(std::move(path)) {}
  ~SimDirectory() override {
    if (entry().reader_count > 1) {  // some files are those of other readers
      --entry().reader_count;
      return;
    }
    for (const auto& [id, node] : disk_.nodes_) {
      QUIRE_CHECK(node.directory != path_ || node.opened_count == 0, "a directory goes before its files are closed");
    }
    entry().is_locked = false;
    entry().reader_count = 0;
  }
  SimDirectory(const SimDirectory&) = delete;
  SimDirectory& operator=(const SimDirectory&) = delete;

  const std::string& path() const override { return path_; }

  Result<std::vector<std::string>> list() override {
    if (begin(SimOperation::List) != SimDisk::Verdict::Go) return io_error("listing " + path_);
    return disk_.file_names(path_);
  }

  Result<FileId> create(const std::string& name, std::uint64_t bytes) override {
    QUIRE_CHECK(is_blocks(bytes), "a length that is not made of blocks");
    const std::string what = "making " + path_ + "/" + name;
    const SimDisk::Verdict verdict = begin(SimOperation::Create);
    if (verdict == SimDisk::Verdict::Dead || verdict == SimDisk::Verdict::Fail) return io_error(what);
    if (entry().now.contains(name)) return fail(ErrorCode::Io, what + ": File exists");
    QUIRE_TRY(disk_.room_for(bytes, path_, what));
    const SimDisk::NodeId node = disk_.next_node_++;
    disk_.nodes_[node].directory = path_;
    // Both, also when they are cut off: the name may survive with any length.
    const Status made = disk_.change_name(verdict, path_, {.name = name, .node = node}, what);
    const Status sized = disk_.change(verdict, {node, bytes, {}}, what);
    QUIRE_TRY(made);
    QUIRE_TRY(sized);
    return disk_.open_node(node);
  }

  Result<FileId> open(const std::string& name) override {
    const std::string what = "opening " + path_ + "/" + name;
    if (begin(SimOperation::Open) != SimDisk::Verdict::Go) return io_error(what);
    const auto found = entry().now.find(name);
    if (found == entry().now.end()) return fail(ErrorCode::Io, what + ": No such file or directory");
    return disk_.open_node(found->second);
  }

  void close(FileId file) override {
    const SimDisk::NodeId node = disk_.node_of(file);
    for (const SimQueue* queue : disk_.queues_) {
      for (const auto& in_flight : queue->in_flight_) {
        QUIRE_CHECK(in_flight.request.file != file, "a file is closed before its requests are done");
      }
    }
    --disk_.nodes_.at(node).opened_count;
    disk_.open_files_.erase(file.value);
    disk_.collect();
  }

  Result<std::uint64_t> length(FileId file) override {
    const SimDisk::NodeId node = disk_.node_of(file);
    if (begin(SimOperation::Length) != SimDisk::Verdict::Go) return io_error("the length of a file in " + path_);
    return disk_.nodes_.at(node).now.length();
  }

  Status set_length(FileId file, std::uint64_t bytes) override {
    QUIRE_CHECK(is_blocks(bytes), "a length that is not made of blocks");
    const SimDisk::NodeId node = disk_.node_of(file);
    return disk_.change(begin(SimOperation::SetLength), {node, bytes, {}}, "the length of a file in " + path_);
  }

  Status read(FileId file, std::uint64_t offset, std::span<std::byte> out) override {
    QUIRE_CHECK(is_blocks(offset) && is_blocks(out.size()), "a read that is not made of blocks");
    const SimDisk::NodeId node = disk_.node_of(file);
    return disk_.read_now(begin(SimOperation::Read), node, offset, out,
                          range_text("reading", out.size(), offset, path_));
  }

  Status write(FileId file, std::uint64_t offset, std::span<const std::byte> bytes) override {
    QUIRE_CHECK(!bytes.empty() && is_blocks(offset) && is_blocks(bytes.size()), "a write that is not made of blocks");
    const SimDisk::NodeId node = disk_.node_of(file);
    return disk_.change(begin(SimOperation::Write), {node, offset, {bytes.begin(), bytes.end()}},
                        range_text("writing", bytes.size(), offset, path_));
  }

  Status rename(const std::string& from, const std::string& to) override {
    const std::string what = "renaming " + path_ + "/" + from + " to " + to;
    const SimDisk::Verdict verdict = begin(SimOperation::Rename);
    if (verdict == SimDisk::Verdict::Dead) return io_error(what);
    const auto found = entry().now.find(from);
    if (found == entry().now.end()) return fail(ErrorCode::Io, what + ": No such file or directory");
    return disk_.change_name(verdict, path_, {.name = to, .node = found->second, .from = from}, what);
  }

  Status remove(const std::string& name) override {
    const std::string what = "removing " + path_ + "/" + name;
    const SimDisk::Verdict verdict = begin(SimOperation::Remove);
    if (verdict == SimDisk::Verdict::Dead) return io_error(what);
    if (verdict == SimDisk::Verdict::Go && !entry().now.contains(name)) return {};
    return disk_.change_name(verdict, path_, {.name = name}, what);
  }

  Status sync_file(FileId file, SyncPoint why) override {
    SimDisk::Node& node = disk_.nodes_.at(disk_.node_of(file));
    const SimDisk::Verdict verdict = begin(SimOperation::SyncFile);
    ++disk_.sync_counts_[static_cast<std::size_t>(why)];
    if (verdict == SimDisk::Verdict::Fail) disk_.sync_badly(node);
    if (verdict != SimDisk::Verdict::Go) return io_error("syncing a file in " + path_);
    if (disk_.is_sync_ignored_[static_cast<std::size_t>(why)]) return {};
    for (const SimDisk::Change& change : node.unsynced) SimDisk::apply(change, node.durable);
    node.unsynced.clear();
    return {};
  }

  Status sync_directory(SyncPoint why) override {
    const SimDisk::Verdict verdict = begin(SimOperation::SyncDirectory);
    ++disk_.sync_counts_[static_cast<std::size_t>(why)];
    const bool is_failing = verdict == SimDisk::Verdict::Fail;
    if (!is_failing && verdict != SimDisk::Verdict::Go) return io_error("syncing " + path_);
    if (!is_failing && disk_.is_sync_ignored_[static_cast<std::size_t>(why)]) return {};
    SimDisk::Directory& directory = entry();
    for (const SimDisk::NameChange& change : directory.unsynced) {
      if (!is_failing || disk_.random_.below(2) == 0) SimDisk::apply(change, directory.durable);
    }
    directory.unsynced.clear();
    disk_.collect();
    if (is_failing) return io_error("syncing " + path_);
    return {};
  }

  Result<std::uint64_t> free_bytes() override {
    if (begin(SimOperation::FreeBytes) != SimDisk::Verdict::Go) return io_error("the free space of " + path_);
    const std::uint64_t used = disk_.used_bytes(path_);
    const std::uint64_t capacity = disk_.capacity_bytes_.value_or(std::uint64_t{1} << 50U);
    return capacity > used ? capacity - used : 0;
  }

 private:
  [[nodiscard]] SimDisk::Directory& entry() { return disk_.directories_.at(path_); }
  [[nodiscard]] SimDisk::Verdict begin(SimOperation operation) { return disk_.begin(operation, &entry()); }

  SimDisk& disk_;
  const std::string path_;
};

// ── The disk ───────────────────────────────────────────────────────────────────────────────────────────────────

SimDisk::SimDisk(std::uint64_t seed) : random_(seed) {}

SimDisk::~SimDisk() {
  QUIRE_CHECK(queues_.empty() && open_files_.empty(), "a disk goes before its queues and files");
}

Result<std::unique_ptr<StoreDirectory>> SimDisk::open_directory(const std::string& path) {
  return open_directory(path, /*is_to_read=*/false);
}

Result<std::unique_ptr<StoreDirectory>> SimDisk::open_directory_to_read(const std::string& path) {
  return open_directory(path, /*is_to_read=*/true);
}

Result<std::unique_ptr<StoreDirectory>> SimDisk::open_directory(const std::string& path, bool is_to_read) {
  const auto known = directories_.find(path);
  const Verdict verdict = begin(SimOperation::OpenDirectory, known != directories_.end() ? &known->second : nullptr);
  if (verdict != Verdict::Go) return io_error("opening " + path);
  if (is_to_read && known == directories_.end()) return io_error("opening " + path);
  Directory& directory = directories_[path];
  if (directory.is_locked || directory.foreign_pid != 0 || (!is_to_read && directory.reader_count > 0)) {
    return fail(ErrorCode::Unavailable, "locking " + path + ": process " + std::to_string(directory.foreign_pid) +
                                            (directory.foreign_pid == 0 ? " (this one)" : "") + " has it");
  }
  directory.is_locked = !is_to_read;
  directory.reader_count += is_to_read ? 1 : 0;
  return std::make_unique<SimDirectory>(*this, path);
}

Result<std::unique_ptr<IoQueue>> SimDisk::make_queue(const IoQueueConfig& config) {
  QUIRE_CHECK(config.depth != 0 && config.buffer_bytes != 0 && is_blocks(config.buffer_bytes),
              "a queue without buffers, or with buffers that are not made of blocks");
  if (begin(SimOperation::MakeQueue, nullptr) != Verdict::Go) return io_error("making a queue");
  return std::make_unique<SimQueue>(*this, config);
}

IoMode SimDisk::mode() const {
  return {.engine = IoMode::Engine::Simulated};
}

namespace {

bool changes_something(SimOperation operation) {
  switch (operation) {
    case SimOperation::Create:
    case SimOperation::SetLength:
    case SimOperation::Write:
    case SimOperation::Rename:
    case SimOperation::Remove:
    case SimOperation::SyncFile:
    case SimOperation::SyncDirectory:
      return true;
    default:
      return false;
  }
}

}  // namespace

SimDisk::Verdict SimDisk::begin(SimOperation operation, const Directory* directory) {
  if (is_dead_) return Verdict::Dead;
  QUIRE_CHECK(directory == nullptr || directory->reader_count == 0 || !changes_something(operation),
              "a directory that is only read is changed");
  ++operation_count_;
  ++operation_counts_[static_cast<std::size_t>(operation)];
  if (operations_left_) {
    if (*operations_left_ == 0) {
      die();
      return Verdict::CutOff;
    }
    --*operations_left_;
  }
  if (directory != nullptr && directory->is_broken) return Verdict::Fail;
  bool is_failing = false;
  for (auto failure = failures_.begin(); failure != failures_.end();) {
    if (failure->operation != operation) {
      ++failure;
    } else if (failure->successes != 0) {
      --failure->successes;
      ++failure;
    } else {
      is_failing = true;
      failure = failures_.erase(failure);
    }
  }
  const std::uint32_t per_thousand = failures_per_thousand_[static_cast<std::size_t>(operation)];
  if (per_thousand != 0 && random_.below(1000) < per_thousand) is_failing = true;
  return is_failing ? Verdict::Fail : Verdict::Go;
}

void SimDisk::crash_after(std::uint64_t operations) {
  operations_left_ = operations;
}

void SimDisk::fail_once(SimOperation operation, std::uint64_t successes) {
  failures_.push_back({.operation = operation, .successes = successes});
}

void SimDisk::set_failures(SimOperation operation, std::uint32_t per_thousand) {
  failures_per_thousand_[static_cast<std::size_t>(operation)] = per_thousand;
}

void SimDisk::set_broken(const std::string& path, bool is_broken) {
  directories_[path].is_broken = is_broken;
}

void SimDisk::set_lock_owner(const std::string& path, std::uint64_t pid) {
  directories_[path].foreign_pid = pid;
}

void SimDisk::ignore_syncs(SyncPoint why, bool is_ignored) {
  is_sync_ignored_[static_cast<std::size_t>(why)] = is_ignored;
}

std::uint64_t SimDisk::operation_count(SimOperation operation) const {
  return operation_counts_[static_cast<std::size_t>(operation)];
}

std::uint64_t SimDisk::sync_count(SyncPoint why) const {
  return sync_counts_[static_cast<std::size_t>(why)];
}

// ── What is there ──────────────────────────────────────────────────────────────────────────────────────────────

FileId SimDisk::open_node(NodeId node) {
  ++nodes_.at(node).opened_count;
  const FileId file{next_file_++};
  open_files_.emplace(file.value, node);
  return file;
}

SimDisk::NodeId SimDisk::node_of(FileId file) const {
  const auto found = open_files_.find(file.value);
  QUIRE_CHECK(found != open_files_.end(), "the file is not open");
  return found->second;
}

const SimDisk::Node& SimDisk::named(const std::string& path, const std::string& name) const {
  const auto directory = directories_.find(path);
  QUIRE_CHECK(directory != directories_.end(), "there is no such directory");
  const auto found = directory->second.now.find(name);
  QUIRE_CHECK(found != directory->second.now.end(), "there is no such file");
  return nodes_.at(found->second);
}

std::uint64_t SimDisk::used_bytes(const std::string& directory) const {
  std::set<NodeId> used;
  for (const auto& [name, node] : directories_.at(directory).now) used.insert(node);
  for (const auto& [file, node] : open_files_) {
    if (nodes_.at(node).directory == directory) used.insert(node);
  }
  std::uint64_t bytes = 0;
  for (const NodeId node : used) bytes += nodes_.at(node).now.length();
  return bytes;
}

Status SimDisk::room_for(std::uint64_t bytes, const std::string& directory, const std::string& what) const {
  if (!capacity_bytes_ || used_bytes(directory) + bytes <= *capacity_bytes_) return {};
  return fail(ErrorCode::Unavailable, what + ": No space left on device (simulated)");
}

Status SimDisk::change(Verdict verdict, Change change, const std::string& what) {
  Node& node = nodes_.at(change.node);
  if (verdict == Verdict::Go) {
    const std::uint64_t length = change.offset_or_length + change.bytes.size();
    if (length > node.now.length()) QUIRE_TRY(room_for(length - node.now.length(), node.directory, what));
    apply(change, node.now);
    node.unsynced.push_back(std::move(change));
    return {};
  }
  if (verdict == Verdict::Fail) {
    for (Change& part : apply_some(change, node.now, random_, random_.below(kEighths + 1))) {
      node.unsynced.push_back(std::move(part));
    }
  }
  if (verdict == Verdict::CutOff) cut_off_.push_back(std::move(change));
  return io_error(what);
}

Status SimDisk::change_name(Verdict verdict, const std::string& path, NameChange change, const std::string& what) {
  if (verdict == Verdict::CutOff) {
    cut_off_names_.emplace_back(path, std::move(change));
    return io_error(what);
  }
  if (verdict != Verdict::Go) return io_error(what);
  Directory& directory = directories_.at(path);
  apply(change, directory.now);
  directory.unsynced.push_back(std::move(change));
  return {};
}

Status SimDisk::read_now(Verdict verdict, NodeId node, std::uint64_t offset, std::span<std::byte> out,
                         const std::string& what) {
  if (verdict == Verdict::CutOff || verdict == Verdict::Dead) return io_error(what);
  const SparseBytes& bytes = nodes_.at(node).now;
  const std::uint64_t there =
      bytes.length() > offset ? std::min<std::uint64_t>(bytes.length() - offset, out.size()) : 0;
  std::uint64_t read = there;
  if (verdict == Verdict::Fail) {
    read = there / kEighths * random_.below(kEighths + 1) / kSectorBytes * kSectorBytes;
    std::fill(out.begin(), out.end(), kRubbish);
  }
  for (std::uint64_t i = 0; i < read; i += kSectorBytes) {
    const SparseBytes::Sector sector = bytes.read((offset + i) / kSectorBytes);
    std::copy_n(sector.begin(), std::min(kSectorBytes, read - i), out.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (verdict == Verdict::Fail && random_.below(2) == 0) return io_error(what);
  if (read == out.size() && verdict == Verdict::Go) return {};
  return fail(ErrorCode::Io, what + ": only " + std::to_string(read) + " came");
}

// As on Linux: the data counts as written from here on, whether it was or not, and what is read shows it until memory
// is short, or no longer.
void SimDisk::sync_badly(Node& node) {
  for (const Change& change : node.unsynced) (void)apply_some(change, node.durable, random_, kEighths / 2);
  for (const Change& change : node.unsynced) {
    for (std::uint64_t i = 0; i < change.bytes.size(); i += kSectorBytes) {
      const std::uint64_t sector_index = (change.offset_or_length + i) / kSectorBytes;
      if (sector_index * kSectorBytes >= node.now.length() || random_.below(2) == 0) continue;
      node.now.write(sector_index, node.durable.read(sector_index));
    }
  }
  node.unsynced.clear();
}

void SimDisk::collect() {
  std::set<NodeId> kept;
  for (const auto& [path, directory] : directories_) {
    for (const auto& [name, node] : directory.now) kept.insert(node);
    for (const auto& [name, node] : directory.durable) kept.insert(node);
    for (const NameChange& change : directory.unsynced) {
      if (change.node) kept.insert(*change.node);
    }
  }
  for (const auto& [path, change] : cut_off_names_) {
    if (change.node) kept.insert(*change.node);
  }
  for (const Change& change : cut_off_) kept.insert(change.node);
  std::erase_if(nodes_,
                [&](const auto& entry) { return entry.second.opened_count == 0 && !kept.contains(entry.first); });
}

void SimDisk::apply(const Change& change, SparseBytes& bytes) {
  if (change.bytes.empty()) return bytes.set_length(change.offset_or_length);
  for (std::uint64_t i = 0; i < change.bytes.size(); i += kSectorBytes) {
    bytes.write((change.offset_or_length + i) / kSectorBytes, std::span(change.bytes).subspan(i, kSectorBytes));
  }
}

void SimDisk::apply(const NameChange& change, std::map<std::string, NodeId>& names) {
  if (!change.node) {
    names.erase(change.name);
    return;
  }
  names[change.name] = *change.node;
  const auto from = names.find(change.from);
  if (from != names.end() && from->second == *change.node && change.from != change.name) names.erase(from);
}

std::vector<SimDisk::Change> SimDisk::apply_some(const Change& change, SparseBytes& bytes, Random& random,
                                                 std::uint32_t eighths) {
  const auto is_kept = [&] { return random.below(kEighths) < eighths; };
  std::vector<Change> applied;
  if (change.bytes.empty()) {
    const std::uint64_t from = std::min(bytes.length(), change.offset_or_length);
    const std::uint64_t to = std::max(bytes.length(), change.offset_or_length);
    if (is_kept()) {
      applied.push_back(change);
    } else if (from != to && is_kept()) {
      applied.push_back({change.node, from + (random.next() % (to - from)), {}});
    }
  } else if (random.below(2) == 0) {
    if (is_kept()) applied.push_back(change);
  } else {
    for (std::uint64_t i = 0; i < change.bytes.size(); i += kSectorBytes) {
      const auto sector = change.bytes.begin() + static_cast<std::ptrdiff_t>(i);
      if (!is_kept()) continue;
      applied.push_back({change.node, change.offset_or_length + i, {sector, sector + kSectorBytes}});
    }
  }
  for (const Change& part : applied) apply(part, bytes);
  return applied;
}

// ── The end of the process ─────────────────────────────────────────────────────────────────────────────────────

void SimDisk::die() {
  if (is_dead_) return;
  is_dead_ = true;
  for (const SimQueue* queue : queues_) {
    for (const SimQueue::InFlight& in_flight : queue->in_flight_) {
      if (in_flight.request.kind != IoKind::Write) continue;
      cut_off_.push_back({in_flight.node, in_flight.request.offset, in_flight.written});
    }
  }
}

// Everything that was written, and a part of what was being written.
std::unique_ptr<SimDisk> SimDisk::remains(Random& random) const {
  auto disk = std::make_unique<SimDisk>(random.next());
  disk->nodes_ = nodes_;
  disk->directories_ = directories_;
  disk->next_node_ = next_node_;
  disk->capacity_bytes_ = capacity_bytes_;
  disk->open_files_max_ = open_files_max_;
  for (auto& [id, node] : disk->nodes_) node.opened_count = 0;
  for (auto& [path, directory] : disk->directories_) {
    directory.is_locked = false;
    directory.reader_count = 0;
  }
  for (const Change& change : cut_off_) {
    Node& node = disk->nodes_.at(change.node);
    for (Change& part : apply_some(change, node.now, random, random.below(kEighths + 1))) {
      node.unsynced.push_back(std::move(part));
    }
  }
  for (const auto& [path, change] : cut_off_names_) {
    if (random.below(2) == 0) continue;
    Directory& directory = disk->directories_.at(path);
    apply(change, directory.now);
    directory.unsynced.push_back(change);
  }
  return disk;
}

std::unique_ptr<SimDisk> SimDisk::kill(std::uint64_t seed) {
  die();
  Random random(seed);
  auto disk = remains(random);
  disk->collect();
  return disk;
}

std::unique_ptr<SimDisk> SimDisk::crash(std::uint64_t seed) {
  die();
  Random random(seed);
  auto disk = remains(random);
  // How much is left is drawn for each file and directory: everything and nothing are as likely as a mixture.
  constexpr std::array<std::uint32_t, 5> kKept{0, 1, kEighths / 2, kEighths - 1, kEighths};
  for (auto& [id, node] : disk->nodes_) {
    const std::uint32_t eighths = kKept[random.below(kKept.size())];
    for (const Change& change : node.unsynced) (void)apply_some(change, node.durable, random, eighths);
    node.unsynced.clear();
    node.now = node.durable;
  }
  for (auto& [path, directory] : disk->directories_) {
    const std::uint32_t eighths = kKept[random.below(kKept.size())];
    for (const NameChange& change : directory.unsynced) {
      if (random.below(kEighths) < eighths) apply(change, directory.durable);
    }
    directory.unsynced.clear();
    directory.now = directory.durable;
  }
  disk->collect();
  return disk;
}

// ── What a stranger does ───────────────────────────────────────────────────────────────────────────────────────

void SimDisk::put_file(const std::string& path, const std::string& name, std::span<const std::byte> bytes) {
  const NodeId id = next_node_++;
  Node& node = nodes_[id];
  node.directory = path;
  for (std::uint64_t i = 0; i < bytes.size(); i += kSectorBytes) {
    SparseBytes::Sector sector{};
    std::copy_n(bytes.begin() + static_cast<std::ptrdiff_t>(i), std::min(kSectorBytes, bytes.size() - i),
                sector.begin());
    node.now.write(i / kSectorBytes, sector);
  }
  node.now.set_length(bytes.size());
  node.durable = node.now;
  Directory& directory = directories_[path];
  directory.now[name] = id;
  directory.durable[name] = id;
}

std::vector<std::byte> SimDisk::file_bytes(const std::string& path, const std::string& name) const {
  const SparseBytes& bytes = named(path, name).now;
  std::vector<std::byte> out;
  for (std::uint64_t i = 0; i < bytes.length(); i += kSectorBytes) {
    const SparseBytes::Sector sector = bytes.read(i / kSectorBytes);
    out.insert(out.end(), sector.begin(), sector.end());
  }
  out.resize(bytes.length());
  return out;
}

std::vector<std::string> SimDisk::file_names(const std::string& path) const {
  std::vector<std::string> names;
  const auto found = directories_.find(path);
  if (found == directories_.end()) return names;
  for (const auto& [name, node] : found->second.now) names.push_back(name);
  return names;
}

void SimDisk::remove_file(const std::string& path, const std::string& name) {
  (void)named(path, name);
  directories_.at(path).now.erase(name);
  directories_.at(path).durable.erase(name);
  collect();
}

void SimDisk::flip_bit(const std::string& path, const std::string& name, std::uint64_t bit_index) {
  QUIRE_CHECK(bit_index / 8 < named(path, name).now.length(), "the file is shorter");
  Node& node = nodes_.at(directories_.at(path).now.at(name));
  const std::uint64_t sector_index = bit_index / 8 / kSectorBytes;
  for (SparseBytes* bytes : {&node.now, &node.durable}) {
    const std::uint64_t length = bytes->length();
    if (bit_index / 8 >= length) continue;
    SparseBytes::Sector sector = bytes->read(sector_index);
    sector[bit_index / 8 % kSectorBytes] ^= std::byte{1} << static_cast<int>(bit_index % 8);
    bytes->write(sector_index, sector);
    bytes->set_length(length);
  }
}

}  // namespace quire::testing
