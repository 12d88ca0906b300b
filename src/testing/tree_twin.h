// SPDX-License-Identifier: Apache-2.0
//
// TreeTwin: what a prefix tree under the policy lru promises, in the plainest form: runs in a map, pages in
// vectors, and everything that can be derived (who is pinned, who goes next) derived anew from the pins
// whenever it is asked for. Model tests compare the real tree with it after every operation.
//
// A run has a label that is never used again. Time is a counter of events: a run's idle_time is that of the
// event that made it idle, and all runs one event made idle lie on one path, so victims are ordered by
// (softly pinned, idle_time, deepest first). A run's front_time is when it last came to stand before its
// siblings.
//
// single-threaded
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "quire/types.h"
#include "testing/test_tree.h"

namespace quire::testing {

struct TreeTwinConfig {
  std::uint32_t page_tokens = 1;
  std::uint32_t run_pages_max = 1;
  bool whole_runs = false;
};

class TreeTwin {
 public:
  using Label = std::uint32_t;
  using PinNumber = std::uint32_t;

  struct Page {
    Tokens tokens;
    std::vector<ExtraKey> extra_keys;  ///< those that overlap it
    PageId id;
  };

  enum class Use : std::uint8_t { Pinned, Idle, SoftlyPinned };

  struct Run {
    std::optional<Label> parent;  ///< none for a root
    std::uint32_t first_page = 0;
    std::vector<Page> pages;
    Use use = Use::Pinned;
    std::uint64_t idle_time = 0;
    std::uint64_t front_time = 0;
  };

  struct Match {
    Label run = 0;
    std::uint32_t pages_in_run = 0;
    std::vector<PageId> pages;
    std::optional<Label> partial_run;
    std::uint32_t partial_page = 0;
    std::uint32_t partial_tokens = 0;
  };

  struct Insertion {
    std::vector<PageId> pages;
    std::vector<PageId> duplicates;
  };

  explicit TreeTwin(const TreeTwinConfig& config) : config_(config) {}

  [[nodiscard]] Label add_root();
  void remove_root(Label root);

  [[nodiscard]] Match match(Label root, const Prompt& prompt) const;
  [[nodiscard]] PinNumber pin(const Match& match);
  /// The pins of the path and of the page in which the match ends.
  [[nodiscard]] std::pair<PinNumber, PinNumber> pin_with_partial(const Match& match);
  [[nodiscard]] PinNumber pin_run(Label run);
  [[nodiscard]] PinNumber pin_prefix(PinNumber pin, std::uint32_t page_count);
  [[nodiscard]] PinNumber pin_page(PinNumber pin, std::uint32_t page) { return pin_run(run_on_path(pin, page)); }
  void unpin(PinNumber pin);
  [[nodiscard]] PinNumber soft_pin(const Match& match);
  void drop_soft_pin(PinNumber pin);
  [[nodiscard]] Insertion insert(PinNumber pin, const Prompt& prompt, std::vector<PageId> pages);
  /// What is given up, run by run.
  [[nodiscard]] std::vector<std::vector<PageId>> evict(std::uint32_t page_count);
  [[nodiscard]] std::vector<PageId> evict_all(Label root);

  [[nodiscard]] const std::map<Label, Run>& runs() const { return runs_; }
  [[nodiscard]] const Run& run(Label label) const { return runs_.at(label); }
  [[nodiscard]] Label run_of_pin(PinNumber pin) const { return pins_.at(pin); }
  [[nodiscard]] std::uint32_t page_count(Use use) const;
  [[nodiscard]] std::uint32_t page_count() const;
  /// Pins that end here and pinned children, as RunView counts them.
  [[nodiscard]] std::uint32_t pin_count(Label run) const;
  [[nodiscard]] std::uint32_t soft_pin_count(Label run) const;
  /// Most recently in front first.
  [[nodiscard]] std::vector<Label> children(Label run) const;
  [[nodiscard]] std::uint32_t end_page(Label run) const;
  [[nodiscard]] bool is_empty(Label root) const;
  /// The prompt that leads to the end of `run`.
  [[nodiscard]] Prompt path(Label run) const;

 private:
  [[nodiscard]] Page page_of(const Prompt& prompt, std::uint32_t page) const;
  [[nodiscard]] std::optional<Label> child_with(Label run, const Page& page) const;
  [[nodiscard]] std::uint32_t common_tokens(const Page& page, const Prompt& prompt, std::uint32_t position) const;
  [[nodiscard]] bool is_below(Label run, Label ancestor) const;
  [[nodiscard]] std::optional<Label> next_victim() const;
  [[nodiscard]] Label run_on_path(PinNumber pin, std::uint32_t page) const;
  [[nodiscard]] Label split(Label run, std::uint32_t page_count);
  void remove_run(Label run);
  /// Compares every run's use with what the pins say now; what became idle did so at a new time.
  void update_uses();

  TreeTwinConfig config_;
  std::map<Label, Run> runs_;
  std::map<PinNumber, Label> pins_;
  std::map<PinNumber, Label> soft_pins_;
  Label next_label_ = 0;
  PinNumber next_pin_ = 0;
  std::uint64_t now_ = 0;
};

}  // namespace quire::testing
