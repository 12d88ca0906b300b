// SPDX-License-Identifier: Apache-2.0
//
// TraceFacts: what can be said of a trace without running a cache: how much of it can be reused at all, after how long,
// and how much of that fits into a given capacity at best. All of it is computed on the tree of all requests, whose
// segments are always used whole, so that cost goes with the number of requests rather than with tokens.
//
// immutable
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "trace.h"

namespace quire {

/// The best that any choice of victims can do, found with knowledge of the future: what is needed again last goes
/// first, what is needed later than everything cached is not cached at all, and of equals the deepest goes. A prompt
/// needs what it covers; an output does not, since it is written anew whether it is cached or not, and so what comes
/// again as output before any prompt needs it is not worth a place until then. Counted in key units, whatever the page
/// size: a cache with larger pages can do no better. A bound, not a policy, and one for requests that run one after the
/// other: of several in flight, one may take room later than its place in the trace says.
struct BeladyBound {
  /// Whole units, even those that are only begun, but no more than can be reused at all.
  std::uint64_t hit_tokens = 0;
  std::vector<std::uint32_t> hit_units;  ///< of each request
};

/// Reused tokens whose last use lay at least `distance_tokens` distinct tokens back, and less than that of the next
/// bin. The first bin begins at 0, the others at powers of two, from the size of a key unit on.
struct ReuseBin {
  std::uint64_t distance_tokens = 0;
  std::uint64_t token_count = 0;
};

class TraceFacts {
 public:
  [[nodiscard]] static TraceFacts of(const Trace& trace);

  [[nodiscard]] std::uint64_t prompt_tokens() const { return prompt_tokens_; }
  /// Tokens of all distinct paths: what a cache must hold never to evict anything.
  [[nodiscard]] std::uint64_t distinct_tokens() const { return distinct_tokens_; }
  /// For each request, the units of its prompt that earlier requests of its key space have had: no cache can find more.
  [[nodiscard]] std::span<const std::uint32_t> reusable_units() const { return reusable_units_; }
  /// Prompt tokens that some other key space had had before, and the request's own had not: what requests would find if
  /// key spaces did not keep them apart.
  [[nodiscard]] std::uint64_t separated_tokens(const Trace& trace) const;
  /// The tokens of reusable_units().
  [[nodiscard]] std::uint64_t reusable_tokens() const { return reusable_tokens_; }
  /// How far back the last use of reused tokens lies, where a request uses its last unit first and its first unit last.
  /// What is reused at a distance below the capacity is a hit of LRU.
  [[nodiscard]] std::span<const ReuseBin> reuse_distances() const { return reuse_distances_; }

  [[nodiscard]] BeladyBound belady(std::uint64_t capacity_units) const;

 private:
  /// Consecutive units that every request has all of, as prompt or as output, or none of. Parents come before children.
  struct Segment {
    std::uint32_t first_unit = 0;  // position in the path
    std::uint32_t unit_count = 0;
  };
  struct Touch {
    std::uint32_t segment = 0;
    std::uint32_t next_use = 0;  // the next request that needs the segment, or kNever
  };
  struct Request {
    std::uint64_t first_touch = 0;   // in touches_: the output's segments, then the prompt's, each from tail to head
    std::uint64_t prompt_touch = 0;  // the first one of the prompt
    std::uint32_t prompt_units = 0;
    std::uint64_t prompt_tokens = 0;  // for prompts whose last unit is only begun
  };

  void find_touches(const Trace& trace);
  void find_next_uses();
  void find_reuse();

  [[nodiscard]] std::span<const Touch> touches_of(std::size_t request) const;
  [[nodiscard]] std::span<const Touch> prompt_touches_of(std::size_t request) const;
  [[nodiscard]] std::uint64_t tokens_of(std::size_t request, std::uint32_t units) const;

  std::uint32_t unit_tokens_ = 1;
  std::vector<Segment> segments_;
  std::vector<Touch> touches_;
  std::vector<Request> requests_;

  std::uint64_t prompt_tokens_ = 0;
  std::uint64_t distinct_tokens_ = 0;
  std::vector<std::uint32_t> reusable_units_;
  std::uint64_t reusable_tokens_ = 0;
  std::vector<ReuseBin> reuse_distances_;
};

}  // namespace quire
