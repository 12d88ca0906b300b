// SPDX-License-Identifier: Apache-2.0
//
// SimPaths: what the simulation knows of cached pages, by path. It looks at the tree after each call that has changed
// something, compares with what it saw before, and keeps a record of its own of every page that was lost: from which
// tier, when, and why. From that it says what a request must find, and why it misses the rest.
//
// Paths are told apart by tokens and key space alone: where the simulation follows paths, a token tells its extra key.
//
// single-threaded
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "quire/cache.h"
#include "sim_setup.h"

namespace quire::testing {

class SimPaths {
 public:
  SimPaths(const Cache& cache, const SimSetup& setup);

  using PathKey = std::uint64_t;
  [[nodiscard]] static PathKey root_key(KeySpaceId space) {
    return mix64((std::uint64_t{space.index} << 32U) + space.generation + 77);
  }
  [[nodiscard]] static PathKey next_key(PathKey before, std::span<const TokenId> page);
  /// The keys of a text's whole pages.
  [[nodiscard]] std::vector<PathKey> keys_of(KeySpaceId space, std::span<const TokenId> tokens) const;

  /// After every call: what has changed. `now` as the cache knows it.
  void observe(TimeNs now);

  /// The key space was dropped: others no longer look there.
  void retire(KeySpaceId space) { retired_.insert(space); }

  [[nodiscard]] bool is_cached(PathKey key) const { return pages_.contains(key); }
  [[nodiscard]] std::optional<Tier> tier_of(PathKey key) const;
  [[nodiscard]] PageId page_of(PathKey key) const { return pages_.at(key).page; }
  /// The path of a host page, 0 if it is no host run's.
  [[nodiscard]] PathKey key_of_host_page(PageId page) const { return host_keys_[page.value]; }
  /// The first host page on the path of a host page: the device has all before it.
  [[nodiscard]] PathKey first_on_host(PathKey key) const;
  /// A transfer was handed out: its pages follow each other on one path, and a path always has the same tag.
  void check_transfer(const TransferPlan& plan);
  [[nodiscard]] std::uint64_t lost_count() const { return lost_count_; }

  struct Request {
    KeySpaceId space;
    bool is_retired = false;
    std::span<const TokenId> tokens;
    const SequenceOptions* options = nullptr;
  };
  struct Found {
    std::uint32_t device_pages = 0;
    std::uint32_t host_pages = 0;  ///< that follow
  };
  [[nodiscard]] Found find(const Request& request) const;
  /// What may be said of a request that has found so many pages, loads aside. One, where it can be told exactly. Up to
  /// `losses` more pages may have been lost before it was said.
  [[nodiscard]] std::vector<Miss> why(const Request& request, std::uint32_t found, TimeNs now,
                                      std::uint64_t losses = 0) const;

 private:
  struct Page {
    Tier tier = Tier::Device;
    RunId run;
    PageId page;
    PathKey before = 0;          // on the path: a page, or the key space
    std::uint32_t position = 0;  // in the path, in pages
    std::uint64_t seen = 0;      // the look that found it last
  };
  struct Loss {
    TimeNs time = 0;
    bool may_be_device = false;
    bool may_be_host = false;
    bool may_be_bad = false;
    bool may_be_good = false;
    std::uint64_t before_least = 0;  // losses noted before it: at least …
    std::uint64_t before_most = 0;   // … and at most
  };

  /// How many tokens each device page below `parent` shares with the rest of a text, and how many pages there are below
  /// it in all.
  struct Starts {
    std::vector<std::uint32_t> tokens;
    std::uint32_t page_count = 0;
  };
  [[nodiscard]] Starts shared_starts(PathKey parent, std::uint32_t position, std::span<const TokenId> rest) const;
  [[nodiscard]] std::uint32_t lost_capacity() const;

  const Cache& cache_;
  const SimSetup& setup_;
  std::uint64_t next_record_ = 0;
  std::uint64_t look_ = 0;
  std::unordered_map<PathKey, Page> pages_;
  std::vector<PathKey> run_ends_;     // by run id, of the last look
  std::vector<bool> knows_run_;       // by run id, of the last look
  std::vector<PathKey> host_keys_;    // by host page
  std::vector<PathKey> device_keys_;  // by device page
  std::unordered_map<PathKey, std::uint64_t> tags_;
  std::unordered_map<std::uint64_t, PathKey> tagged_;
  std::unordered_map<PathKey, Loss> losses_;
  std::set<KeySpaceId> retired_;
  std::uint64_t lost_count_ = 0;
  std::set<TimeNs> unseen_times_;  // of losses of pages that came from disk and went in one call
  bool has_unseen_bad_ = false;    // some of them below a page that was bad
  std::vector<ResidencyRecord> records_;
};

}  // namespace quire::testing
