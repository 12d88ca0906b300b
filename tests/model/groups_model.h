// SPDX-License-Identifier: Apache-2.0
//
// A cache of random groups under a random stream of requests, from a seed. Every hit is compared with what trying all
// positions gives, every byte that a step reads with what should be there.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "quire/cache.h"
#include "tests/cache/groups_fixture.h"

namespace quire {

/// How often something happened, so that a test can say that it did.
struct GroupsCounts {
  std::uint64_t steps = 0;
  std::uint64_t hits = 0;
  std::uint64_t sure_hits = 0;     // where no part of a page would have been better
  std::uint64_t limited_hits = 0;  // shorter than the history because of a group
  std::uint64_t replays = 0;
  std::uint64_t partial_hits = 0;
  std::uint64_t forks = 0;
  std::uint64_t rewinds = 0;
  std::uint64_t refused_rewinds = 0;
  std::uint64_t rejected_drafts = 0;
  std::uint64_t aborts = 0;
  std::uint64_t discards = 0;        // of one entry
  std::uint64_t overlaps = 0;        // steps that were computed behind a later plan
  std::uint64_t unknown_tokens = 0;  // planned before a step in flight brought them
  std::uint64_t busy_forks = 0;      // of a sequence in a step in flight
  std::uint64_t keeps = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t shortages = 0;
  std::uint64_t side_evictions = 0;
  std::uint64_t snapshots = 0;
  std::uint64_t restores = 0;
  std::uint64_t cut_chunks = 0;
  std::uint64_t loads = 0;  // of pages of side groups, from the host
  std::uint64_t waits = 0;  // for the host

  GroupsCounts& operator+=(const GroupsCounts& other);
};

class GroupsModel {
 public:
  explicit GroupsModel(std::uint64_t seed);

  /// Empty, or what went wrong.
  [[nodiscard]] std::string run(std::uint32_t step_count);
  [[nodiscard]] const GroupsCounts& counts() const { return counts_; }
  [[nodiscard]] std::string describe() const;

 private:
  struct Request {
    Sequence sequence;
    std::vector<TokenId> tokens;  // those of finished steps
    bool is_running = false;
    bool is_loading = false;
    bool is_limited = false;  // by match_tokens_max
    std::uint32_t steps_in_flight = 0;
  };
  /// One entry of a step. The device computes it whatever becomes of its sequence meanwhile.
  struct Part {
    std::shared_ptr<Request> request;
    std::vector<TokenId> drafts;
    SequenceView view;            // when it was planned
    bool samples = false;         // it computes the last known token: one more follows
    bool is_discarded = false;    // it did not happen
    std::uint32_t accepted = 0;   // drafts
    std::vector<TokenId> brings;  // as soon as it is computed
  };
  struct Flight {
    Step step;
    bool is_computed = false;
    std::vector<Part> parts;  // by entry_index
  };

  [[nodiscard]] std::uint32_t below(std::uint32_t limit) { return static_cast<std::uint32_t>(random_() % limit); }
  [[nodiscard]] bool one_in(std::uint32_t n) { return below(n) == 0; }
  [[nodiscard]] CacheConfig draw_config();
  [[nodiscard]] std::vector<TokenId> draw_prompt();
  /// A transfer that somebody has taken.
  struct Moving {
    TransferPlan plan;
    std::vector<PageTransfer> pages;
  };

  void move_pages();
  void move_page(const TransferPlan& plan, const PageTransfer& page);
  [[nodiscard]] std::string act();
  [[nodiscard]] std::string begin();
  [[nodiscard]] std::string admit(Request& request, bool resumes);
  [[nodiscard]] std::string keep();
  [[nodiscard]] std::string plan();
  [[nodiscard]] std::string compute_next();
  [[nodiscard]] std::string compute(Flight& flight);
  [[nodiscard]] std::string finish();
  [[nodiscard]] std::string abort();
  [[nodiscard]] std::string fork();
  [[nodiscard]] std::string rewind();
  [[nodiscard]] std::string preempt();
  [[nodiscard]] std::string end(std::size_t index);
  [[nodiscard]] Request* any_request();
  [[nodiscard]] Request* quiet_request();
  /// Its tokens when the steps in flight before `end` are done.
  [[nodiscard]] std::vector<TokenId> tokens_before(const Request& request, const Flight* end) const;
  /// What a step that did not happen takes with it: parts of the request in flights from `place` on.
  void discard_later(Request& request, std::size_t place);

  std::mt19937_64 random_;
  std::unique_ptr<Cache> cache_;
  std::unique_ptr<GroupsEngine> engine_;
  KeySpaceId space_;
  std::vector<std::shared_ptr<Request>> requests_;
  std::vector<std::unique_ptr<Flight>> flights_;
  std::vector<std::vector<TokenId>> texts_;
  std::vector<KeepId> keeps_;
  std::vector<Moving> moving_;
  std::vector<Completion> completions_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::byte>> host_pages_;  // by group and page
  GroupsCounts counts_;
  std::string error_;  // of opening
  std::uint32_t draft_max_ = 0;
  std::uint32_t compute_one_in_ = 1;  // calls: how long steps that are planned wait
};

}  // namespace quire
