// SPDX-License-Identifier: Apache-2.0
//
// MemoryTier: a lower tier that keeps pages in plain memory, by name. Nothing happens before the test says so, and then
// in an order that the test's numbers draw: questions and loads in any order, stores and drops one after the other, as
// a store's worker would do them. Faults are drawn as well: questions that fail or promise a page too much, loads that
// end early or bring bytes that have changed, stores that fail, answers that are given twice. What it does not do is
// answer with the page of another name: no tier may.
//
// single-threaded, unlike other implementations
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/host_pages.h"
#include "testing/seeded_run.h"
#include "transfer/lower_tier.h"
#include "transfer/page_names.h"

namespace quire::testing {

class MemoryTier final : public LowerTier {
 public:
  struct Config {
    PageNames::Config names;
    NameLog::Config log;
    std::vector<HostPages*> hosts;     ///< by pool; null: nothing is kept of it
    std::uint64_t page_bytes = 0;      ///< that writing a page costs
    std::uint32_t page_count_max = 0;  ///< of each pool: the page that came first goes first
    std::uint32_t extent_pages = 1;    ///< of the history
  };
  /// How many of a hundred go wrong.
  struct Faults {
    std::uint32_t failed_questions = 0;
    std::uint32_t promised_pages = 0;
    std::uint32_t failed_loads = 0;
    std::uint32_t changed_bytes = 0;
    std::uint32_t failed_stores = 0;
    std::uint32_t cancelled_stores = 0;  ///< as by a drop
    std::uint32_t repeated_answers = 0;
  };

  explicit MemoryTier(const Config& config);

  /// Does what one plan says, if there is any.
  bool run_one(Random& random);
  /// Nothing can be had or written from here on.
  void fail() { has_failed_ = true; }

  void submit(const NameLog& log) override;
  void submit(const LowerPlan& plan) override;
  void cancel(TransferId id) override;
  [[nodiscard]] std::span<Completion> poll(std::span<Completion> out) override;
  [[nodiscard]] bool keeps(std::uint32_t pool) const override;
  [[nodiscard]] bool is_failed(std::uint32_t /*pool*/) const override { return has_failed_; }
  [[nodiscard]] std::string last_error() const override {
    return has_failed_ ? "the memory tier was made to fail" : "";
  }
  [[nodiscard]] std::uint32_t extent_pages() const override { return config_.extent_pages; }
  [[nodiscard]] std::uint64_t written_bytes(std::uint32_t /*pool*/) const override { return config_.page_bytes; }

  [[nodiscard]] std::size_t page_count(std::uint32_t pool = 0) const { return pools_[pool].size() * extent_of(pool); }

  Faults faults;
  // How long it says that things took, which is what the cache measures.
  TimeNs question_ns = 1;
  double ns_per_byte = 1;
  std::uint32_t load_pages_max = UINT32_MAX;  ///< of one load: the rest is late
  // What it did so far.
  std::uint64_t question_count = 0;
  std::uint64_t stored_page_count = 0;
  std::uint64_t loaded_page_count = 0;
  std::uint64_t flush_count = 0;
  std::vector<std::size_t> load_page_counts;  ///< of each load of the history
  std::vector<TimeNs> find_timeouts;
  std::vector<TimeNs> load_timeouts;
  std::vector<TimeNs> store_timeouts;

 private:
  struct Task {
    LowerPlan plan;
    std::vector<PageNames::Record> names;  // of its pages, as they were when it came
    bool is_cancelled = false;
  };
  struct KeptPage {
    std::vector<std::byte> bytes;
    std::optional<std::uint64_t> checksum;
  };
  struct Kept {
    PageName key_space;
    std::vector<KeptPage> pages;  // of one extent
    std::uint64_t age = 0;
  };

  [[nodiscard]] bool draws(Random& random, std::uint32_t of_hundred) const { return random.below(100) < of_hundred; }
  [[nodiscard]] Completion find(const Task& task, Random& random);
  [[nodiscard]] Completion load(const Task& task, Random& random);
  [[nodiscard]] Completion store(const Task& task, Random& random);
  [[nodiscard]] std::vector<PageNames::Record> path_of(const LowerPlan& plan) const;
  [[nodiscard]] std::uint32_t extent_of(std::uint32_t pool) const { return pool == 0 ? config_.extent_pages : 1; }
  [[nodiscard]] std::size_t last_of_extent(const std::vector<PageNames::Record>& path, std::size_t place) const {
    return place + config_.extent_pages - 1 - (path[place].page_index % config_.extent_pages);
  }
  [[nodiscard]] const KeptPage* kept_page(const LowerPlan& plan, std::size_t place) const;
  void check_extent(std::span<const PageNames::Record> names) const;
  [[nodiscard]] static bool drops(const Task& task, const PageName& key_space);
  [[nodiscard]] bool is_dropping(const PageName& key_space) const;

  Config config_;
  NameLog log_;
  PageNames names_;
  std::vector<Task> reads_;
  std::vector<Task> writes_;
  std::map<std::uint32_t, std::vector<PageNames::Record>> found_;  // by the question's index: the pages of its path
  std::vector<std::map<PageName, Kept>> pools_;
  std::vector<Completion> completions_;
  std::uint64_t last_age_ = 0;
  bool has_failed_ = false;
};

}  // namespace quire::testing
