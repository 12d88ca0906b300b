// SPDX-License-Identifier: Apache-2.0
#include "tests/store/crash_run.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "store/file_store.h"
#include "testing/file_pages.h"
#include "testing/seeded_run.h"
#include "testing/sim_disk.h"

namespace quire::testing {
namespace {

constexpr std::uint32_t kKeySpaces = 3;
constexpr std::uint32_t kChains = 9;
constexpr std::uint32_t kChainPages = 8;

class Crashes {
 public:
  explicit Crashes(const CrashRun& run)
      : run_(run), random_(run.seed), disk_(std::make_unique<SimDisk>(random_.next())) {
    config_.directories = run.failures_per_thousand == 0 && random_.below(4) == 0 ? std::vector<std::string>{"a", "b"}
                                                                                  : std::vector<std::string>{"a"};
    config_.layout = {.page_bytes = random_.below(2) == 0 ? 3000U : 5000U, .hash = 7};
    config_.segment_bytes = 40'960 + (4096 * random_.below(4));
    config_.capacity_bytes = config_.directories.size() * config_.segment_bytes * (5 + random_.below(4));
    config_.queue_depth = 1 + random_.below(4);
    config_.random_seed = random_.next();
    chains_ = 2 + random_.below(kChains - 1);
  }

  CrashOutcome run() {
    const std::uint32_t lives = 1 + random_.below(4);
    for (std::uint32_t life = 0; life < lives && outcome_.violation.empty(); ++life) live();
    return std::move(outcome_);
  }

 private:
  void live() {
    prepare(*disk_);
    disk_->crash_after(random_.below(random_.below(3) == 0 ? 60 : 400));
    config_.random_seed = random_.next();
    open();
    while (!disk_->is_dead() && outcome_.violation.empty()) step();
    if (!outcome_.violation.empty()) return;
    store_.reset();
    ++outcome_.crash_count;

    // What would be there if only the process had ended, and what is there when the power fails behind it: both agree
    // about the operation that was cut off.
    const std::uint64_t kill_seed = random_.next();
    const std::unique_ptr<SimDisk> killed = disk_->kill(kill_seed);
    std::unique_ptr<SimDisk> crashed = disk_->kill(kill_seed)->crash(random_.next());
    prepare(*killed);
    prepare(*crashed);
    const bool goes_on_killed = random_.below(3) == 0;
    const std::set<TestPage> unlost = look(*killed, "after a kill: ");
    const std::set<TestPage> left = look(*crashed, "after a crash: ");
    for (const TestPage page : promised_) {
      if (!unlost.contains(page) || has_reclaimed_) continue;
      ++outcome_.promised_count;
      if (!left.contains(page)) violate("a flushed page is lost", page);
    }
    // Found is not promised: only the next flush() makes it so.
    const std::set<TestPage>& there = goes_on_killed ? unlost : left;
    std::erase_if(promised_, [&there](TestPage page) { return !there.contains(page); });
    dropped_unflushed_.clear();
    // Another one from the same dead disk: nothing that looking at it did is there.
    disk_ = goes_on_killed ? disk_->kill(kill_seed) : std::move(crashed);
  }

  void prepare(SimDisk& disk) const {
    if (run_.ignored) disk.ignore_syncs(*run_.ignored);
  }

  // Syncs of directories are left out: the process that saw one fail gives the directory up, but no later one can know
  // of it, and no sync makes up for it.
  void set_failures(std::uint32_t per_thousand) {
    for (const SimOperation operation :
         {SimOperation::Create, SimOperation::Open, SimOperation::SetLength, SimOperation::Read, SimOperation::Write,
          SimOperation::Remove, SimOperation::SyncFile}) {
      disk_->set_failures(operation, per_thousand);
    }
  }

  void open() {
    set_failures(run_.failures_per_thousand);
    auto opened = FileStore::open(config_, *disk_);
    if (!opened && !disk_->is_dead() && run_.failures_per_thousand > 0) {
      set_failures(0);
      opened = FileStore::open(config_, *disk_);
      set_failures(run_.failures_per_thousand);
    }
    if (opened) {
      store_ = std::move(*opened);
    } else if (!disk_->is_dead()) {
      outcome_.violation = "the store does not open: " + opened.error().message;
    }
  }

  // Opens what remains and reads everything in it.
  std::set<TestPage> look(SimDisk& disk, const std::string& when) {
    std::set<TestPage> found;
    auto opened = FileStore::open(config_, disk);
    if (!opened) {
      outcome_.violation = when + "the store does not open: " + opened.error().message;
      return found;
    }
    FileStore& store = **opened;
    store.check_invariants();
    // A segment that was cut off when its sync failed may be whole again after a crash, and the oldest one makes room.
    has_reclaimed_ = run_.failures_per_thousand > 0 && store.stats().reclaimed_segments > 0;
    for (std::uint32_t chain = 0; chain < chains_; ++chain) {
      for (std::uint32_t index = 0; index < kChainPages; ++index) {
        const TestPage page{chain, index};
        const bool is_found = has_page(store, page);
        if (is_found) {
          found.insert(page);
          if (const std::string wrong = read_one(store, page, config_); !wrong.empty()) {
            violate(std::string(when).append("what is found is not right: ").append(wrong), page);
          }
        }
        if (!dropped_.contains(page)) continue;
        ++outcome_.dropped_count;
        if (is_found) violate(when + "a dropped page is back", page);
      }
    }
    return found;
  }

  void step() {
    // With nothing left to write to nothing more would happen.
    if (store_->stats().failed_directories == config_.directories.size()) reopen();
    if (disk_->is_dead() || !outcome_.violation.empty()) return;
    switch (const std::uint32_t kind = random_.below(20); kind) {
      case 0:
      case 1:
      case 2:
        flush();
        break;
      case 3:
        if (random_.below(8) == 0) {
          drop_all();
        } else {
          drop_key_space(random_.below(kKeySpaces));
        }
        break;
      case 4:
        drop_page({random_.below(chains_), random_.below(kChainPages)});
        break;
      case 5:
        if (random_.below(4) == 0) reopen();
        break;
      case 6:
      case 7:
      case 8:
        read_chain(random_.below(chains_), 1 + random_.below(kChainPages));
        break;
      default:
        write(random_.below(chains_), random_.below(kChainPages), 1 + random_.below(5));
    }
    if (disk_->is_dead()) return;
    store_->check_invariants();
    // What was evicted is no longer promised, even if it is written again.
    std::erase_if(promised_, [this](TestPage page) { return !has_page(*store_, page); });
  }

  static std::uint32_t key_space_of(TestPage page) { return page.chain % kKeySpaces; }

  void write(std::uint32_t chain, std::uint32_t first, std::uint32_t count) {
    std::vector<FileWrite> writes;
    std::vector<std::vector<std::byte>> bytes;
    for (std::uint32_t index = first; index < std::min(first + count, kChainPages); ++index) {
      const TestPage page{chain, index};
      bytes.push_back(bytes_of(page, config_.layout.page_bytes));
      writes.push_back({.name = name_of(page), .parent = parent_of(page), .page_index = index});
      dropped_.erase(page);
      dropped_unflushed_.erase(page);
    }
    for (std::size_t i = 0; i < writes.size(); ++i) writes[i].bytes = bytes[i];
    const std::uint64_t carried_before = store_->stats().carried_bytes;
    const std::uint64_t reclaimed_before = store_->stats().reclaimed_segments;
    store_->write(test_key_space(key_space_of({chain, 0})), writes, 1);
    outcome_.carried_bytes += store_->stats().carried_bytes - carried_before;
    const std::uint64_t reclaimed = store_->stats().reclaimed_segments - reclaimed_before;
    outcome_.reclaimed_count += reclaimed;
    // One of them may have been evicted to make room for another, and have been written anew.
    for (std::uint32_t index = first; index < kChainPages && reclaimed > 0; ++index) promised_.erase({chain, index});
    for (const FileWrite& page : writes) {
      if (page.outcome == FileOutcome::Ok || disk_->is_dead() || run_.failures_per_thousand > 0) continue;
      outcome_.violation = "a page was not written, though nothing failed: " + store_->stats().last_error;
    }
  }

  void read_chain(std::uint32_t chain, std::uint32_t count) {
    for (std::uint32_t index = 0; index < count; ++index) {
      const TestPage page{chain, index};
      const std::string answer = read_one(*store_, page, config_);
      if (answer.empty() || answer == "absent" || disk_->is_dead()) continue;
      if (answer != "failed" || run_.failures_per_thousand == 0) violate("what is read is not right: " + answer, page);
    }
  }

  void flush() {
    if (!store_->flush()) {
      if (!disk_->is_dead() && run_.failures_per_thousand == 0) {
        outcome_.violation = "flush() failed, though nothing else did";
      }
      return;
    }
    promise();
  }

  void promise() {
    for (std::uint32_t chain = 0; chain < chains_; ++chain) {
      for (std::uint32_t index = 0; index < kChainPages; ++index) {
        if (has_page(*store_, {chain, index})) promised_.insert({chain, index});
      }
    }
    dropped_.merge(dropped_unflushed_);
  }

  void drop_page(TestPage page) {
    if (!has_page(*store_, page)) return;
    promised_.erase(page);
    dropped_unflushed_.insert(page);
    store_->drop_page(name_of(page), 1);
  }

  void drop_key_space(std::uint32_t key_space) {
    for (std::uint32_t chain = key_space; chain < chains_; chain += kKeySpaces) {
      for (std::uint32_t index = 0; index < kChainPages; ++index) {
        promised_.erase({chain, index});
        dropped_unflushed_.insert({chain, index});
      }
    }
    (void)store_->drop(key_space_name(test_key_space(key_space)), 1);
  }

  void drop_all() {
    for (std::uint32_t chain = 0; chain < chains_; ++chain) {
      for (std::uint32_t index = 0; index < kChainPages; ++index) dropped_unflushed_.insert({chain, index});
    }
    promised_.clear();
    (void)store_->drop_all(1);
  }

  void reopen() {
    std::set<TestPage> there;
    for (std::uint32_t chain = 0; chain < chains_; ++chain) {
      for (std::uint32_t index = 0; index < kChainPages; ++index) {
        if (has_page(*store_, {chain, index})) there.insert({chain, index});
      }
    }
    const bool is_closed = store_->close().has_value();
    if (disk_->is_dead() && !is_closed) return;
    if (is_closed) {
      promised_.merge(there);
      dropped_.merge(dropped_unflushed_);
    }
    dropped_unflushed_.clear();
    if (disk_->is_dead()) return;
    store_.reset();
    open();
  }

  void violate(const std::string& what, TestPage page) {
    if (!outcome_.violation.empty()) return;
    outcome_.violation = what + ": chain " + std::to_string(page.chain) + " page " + std::to_string(page.index);
  }

  CrashRun run_;
  Random random_;
  std::unique_ptr<SimDisk> disk_;
  FileStoreConfig config_;
  std::uint32_t chains_ = 0;
  std::unique_ptr<FileStore> store_;
  bool has_reclaimed_ = false;  // the store that was looked at last, when it was opened
  std::set<TestPage> promised_;
  std::set<TestPage> dropped_;  // and flushed
  std::set<TestPage> dropped_unflushed_;
  CrashOutcome outcome_;
};

}  // namespace

CrashOutcome run_crashes(const CrashRun& run) {
  return Crashes(run).run();
}

}  // namespace quire::testing
