// SPDX-License-Identifier: Apache-2.0
#include "trace_facts.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>

namespace quire {

namespace {

constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

/// The tree of all paths, cut into segments wherever paths part and wherever a prompt or a path ends. Cutting leaves
/// the old number to the tail, whose children are found by it. single-threaded.
class SegmentTree {
 public:
  struct Node {
    const TokenId* units = nullptr;  // in the trace
    std::uint32_t first_unit = 0;
    std::uint32_t unit_count = 0;
    std::uint32_t parent = kNever;
  };

  explicit SegmentTree(std::size_t key_space_count) : nodes_(key_space_count) {}

  /// Extends the path that ends with `node`; returns the node that ends the extended one.
  std::uint32_t insert(std::uint32_t node, std::span<const TokenId> units) {
    while (!units.empty()) {
      const auto [child, is_new] =
          children_.try_emplace(key_of(node, units[0]), static_cast<std::uint32_t>(nodes_.size()));
      if (is_new) {
        nodes_.push_back({.units = units.data(),
                          .first_unit = nodes_[node].first_unit + nodes_[node].unit_count,
                          .unit_count = static_cast<std::uint32_t>(units.size()),
                          .parent = node});
        return child->second;
      }
      node = child->second;
      const std::span known(nodes_[node].units, nodes_[node].unit_count);
      const auto difference = std::mismatch(known.begin(), known.end(), units.begin(), units.end()).first;
      const auto common = static_cast<std::uint32_t>(difference - known.begin());
      if (common < known.size()) node = cut(node, common);
      units = units.subspan(common);
    }
    return node;
  }

  /// The last node of a path that was inserted below `node`, and has been cut since.
  [[nodiscard]] std::uint32_t end_of(std::uint32_t node, std::span<const TokenId> units) const {
    while (!units.empty()) {
      node = children_.find(key_of(node, units[0]))->second;
      units = units.subspan(nodes_[node].unit_count);
    }
    return node;
  }

  /// The first ones are the roots of the key spaces, which have no units.
  [[nodiscard]] const std::vector<Node>& nodes() const { return nodes_; }

 private:
  static std::uint64_t key_of(std::uint32_t node, TokenId unit) {
    return (std::uint64_t{node} << 32U) | static_cast<std::uint32_t>(unit);
  }

  /// Returns the head, a new node.
  std::uint32_t cut(std::uint32_t tail, std::uint32_t unit_count) {
    const auto head = static_cast<std::uint32_t>(nodes_.size());
    Node node = nodes_[tail];
    node.unit_count = unit_count;
    nodes_.push_back(node);
    children_[key_of(node.parent, node.units[0])] = head;
    nodes_[tail].units += unit_count;
    nodes_[tail].first_unit += unit_count;
    nodes_[tail].unit_count -= unit_count;
    nodes_[tail].parent = head;
    children_.emplace(key_of(head, nodes_[tail].units[0]), tail);
    return head;
  }

  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, std::uint32_t> children_;  // by parent and first unit
};

/// Units by the time of their last use, for the number of units used since some time: a Fenwick tree. single-threaded.
class RecentUnits {
 public:
  explicit RecentUnits(std::size_t time_count) : sums_(time_count + 1) {}

  void add(std::size_t time, std::uint32_t units) {
    total_ += units;
    for (std::size_t i = time + 1; i < sums_.size(); i += i & -i) sums_[i] += units;
  }
  void remove(std::size_t time, std::uint32_t units) {
    total_ -= units;
    for (std::size_t i = time + 1; i < sums_.size(); i += i & -i) sums_[i] -= units;
  }
  /// Those last used after `time`.
  [[nodiscard]] std::uint64_t after(std::size_t time) const {
    std::uint64_t until = 0;
    for (std::size_t i = time + 1; i > 0; i -= i & -i) until += sums_[i];
    return total_ - until;
  }

 private:
  std::vector<std::uint64_t> sums_;
  std::uint64_t total_ = 0;
};

/// Counts reused tokens by distance.
class ReuseBins {
 public:
  explicit ReuseBins(std::uint32_t unit_tokens)
      : unit_tokens_(unit_tokens), first_width_(static_cast<int>(std::bit_width(unit_tokens))) {}

  /// Units at distances that begin with `distance_units` and rise by one from each to the next.
  void add(std::uint64_t distance_units, std::uint64_t unit_count) {
    const std::uint64_t end = distance_units + unit_count;
    while (distance_units < end) {
      const std::size_t bin = bin_of(distance_units * unit_tokens_);
      const std::uint64_t bin_end = (begin_of(bin + 1) + unit_tokens_ - 1) / unit_tokens_;
      const std::uint64_t next = std::min(end, bin_end);
      if (bin >= tokens_.size()) tokens_.resize(bin + 1);
      tokens_[bin] += (next - distance_units) * unit_tokens_;
      distance_units = next;
    }
  }
  /// Takes back tokens that the unit at this distance does not have.
  void subtract(std::uint64_t distance_units, std::uint64_t tokens) {
    tokens_[bin_of(distance_units * unit_tokens_)] -= tokens;
  }

  [[nodiscard]] std::vector<ReuseBin> bins() const {
    std::vector<ReuseBin> bins;
    bins.reserve(tokens_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      bins.push_back({.distance_tokens = begin_of(i), .token_count = tokens_[i]});
    }
    return bins;
  }

 private:
  [[nodiscard]] std::size_t bin_of(std::uint64_t distance_tokens) const {
    const auto width = static_cast<int>(std::bit_width(distance_tokens));
    return width < first_width_ ? 0 : static_cast<std::size_t>(width - first_width_) + 1;
  }
  [[nodiscard]] std::uint64_t begin_of(std::size_t bin) const {
    return bin == 0 ? 0 : std::uint64_t{1} << (static_cast<std::size_t>(first_width_) + bin - 2);
  }

  std::uint64_t unit_tokens_;
  int first_width_;  // of the distances in the second bin
  std::vector<std::uint64_t> tokens_;
};

}  // namespace

TraceFacts TraceFacts::of(const Trace& trace) {
  TraceFacts facts;
  facts.unit_tokens_ = trace.unit_tokens;
  facts.find_touches(trace);
  facts.find_next_uses();
  facts.find_reuse();
  return facts;
}

void TraceFacts::find_touches(const Trace& trace) {
  SegmentTree tree(trace.key_spaces.size());
  for (const TraceRequest& request : trace.requests) {
    const std::uint32_t prompt_end = tree.insert(request.key_space, trace.prompt(request));
    tree.insert(prompt_end, trace.path(request).subspan(request.prompt_units));
  }

  // Parents are cut off their children after these have got their numbers, so numbers are given anew: those that
  // begin earlier in their path come first. Roots have no units and stay out.
  const std::vector<SegmentTree::Node>& nodes = tree.nodes();
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].unit_count > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(nodes[a].first_unit, a) < std::pair(nodes[b].first_unit, b);
  });
  std::vector<std::uint32_t> segment_of(nodes.size());
  std::uint64_t unit_count = 0;
  for (const std::uint32_t node : order) {
    segment_of[node] = static_cast<std::uint32_t>(segments_.size());
    segments_.push_back({.first_unit = nodes[node].first_unit, .unit_count = nodes[node].unit_count});
    unit_count += nodes[node].unit_count;
  }
  distinct_tokens_ = unit_count * unit_tokens_;

  requests_.reserve(trace.requests.size());
  for (const TraceRequest& request : trace.requests) {
    const std::uint32_t prompt_end = tree.end_of(request.key_space, trace.prompt(request));
    const std::uint32_t path_end = tree.end_of(prompt_end, trace.path(request).subspan(request.prompt_units));
    Request& touched = requests_.emplace_back(Request{
        .first_touch = touches_.size(), .prompt_units = request.prompt_units, .prompt_tokens = request.prompt_tokens});
    for (std::uint32_t node = path_end; nodes[node].parent != kNever; node = nodes[node].parent) {
      if (node == prompt_end) touched.prompt_touch = touches_.size();
      touches_.push_back({.segment = segment_of[node]});
    }
    prompt_tokens_ += request.prompt_tokens;
  }
}

void TraceFacts::find_next_uses() {
  std::vector<std::uint32_t> next_use(segments_.size(), kNever);
  std::size_t end = touches_.size();
  for (std::size_t i = requests_.size(); i-- > 0;) {
    for (std::size_t t = requests_[i].first_touch; t < end; ++t) {
      Touch& touch = touches_[t];
      touch.next_use = next_use[touch.segment];
      next_use[touch.segment] = t < requests_[i].prompt_touch ? kNever : static_cast<std::uint32_t>(i);
    }
    end = requests_[i].first_touch;
  }
}

void TraceFacts::find_reuse() {
  constexpr std::size_t kUnused = std::numeric_limits<std::size_t>::max();
  std::vector<std::size_t> last_touch(segments_.size(), kUnused);
  RecentUnits recent(touches_.size());
  ReuseBins bins(unit_tokens_);
  reusable_units_.reserve(requests_.size());

  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const Request& request = requests_[i];
    // A request looks before it touches anything. Its heads are more recent than its tails, in each segment too.
    std::uint32_t reusable_units = 0;
    for (const Touch& touch : prompt_touches_of(i)) {
      const Segment& segment = segments_[touch.segment];
      if (last_touch[touch.segment] == kUnused) continue;
      const std::uint64_t distance = recent.after(last_touch[touch.segment]);
      bins.add(distance, segment.unit_count);
      const std::uint32_t segment_end = segment.first_unit + segment.unit_count;
      reusable_units = std::max(reusable_units, segment_end);
      if (segment_end == request.prompt_units) {
        const std::uint64_t missing_tokens = std::uint64_t{segment_end} * unit_tokens_ - request.prompt_tokens;
        bins.subtract(distance + segment.unit_count - 1, missing_tokens);
      }
    }
    reusable_units_.push_back(reusable_units);
    reusable_tokens_ += tokens_of(i, reusable_units);

    std::size_t time = request.first_touch;
    for (const Touch& touch : touches_of(i)) {
      const std::uint32_t units = segments_[touch.segment].unit_count;
      std::size_t& last = last_touch[touch.segment];
      if (last != kUnused) recent.remove(last, units);
      recent.add(time, units);
      last = time++;
    }
  }
  reuse_distances_ = bins.bins();
}

std::uint64_t TraceFacts::separated_tokens(const Trace& trace) const {
  if (trace.key_spaces.size() < 2) return 0;
  Trace joined = trace;
  for (TraceRequest& request : joined.requests) request.key_space = 0;
  return of(joined).reusable_tokens() - reusable_tokens();
}

BeladyBound TraceFacts::belady(std::uint64_t capacity_units) const {
  BeladyBound bound;
  bound.hit_units.reserve(requests_.size());
  // Of each segment, how many units are cached, always the first ones, and who needs them next.
  std::vector<std::uint32_t> cached_units(segments_.size());
  std::vector<std::uint32_t> next_use(segments_.size());
  std::uint64_t total_units = 0;
  // The next use, then the segment: of those that one request needs, the deepest has the highest number. What was
  // touched again since it was put here, or is gone, is passed over when it comes up.
  std::priority_queue<std::uint64_t> victims;

  for (std::size_t i = 0; i < requests_.size(); ++i) {
    std::uint32_t hit_units = requests_[i].prompt_units;
    for (const Touch& touch : prompt_touches_of(i)) {
      const Segment& segment = segments_[touch.segment];
      const std::uint32_t cached = cached_units[touch.segment];
      if (cached < segment.unit_count) hit_units = segment.first_unit + cached;
    }
    bound.hit_units.push_back(hit_units);
    bound.hit_tokens += std::uint64_t{hit_units} * unit_tokens_;

    for (const Touch& touch : touches_of(i)) {
      std::uint32_t& cached = cached_units[touch.segment];
      total_units -= cached;
      // Nobody needs it: gone at once, or it would only go through the queue.
      cached = touch.next_use == kNever ? 0 : segments_[touch.segment].unit_count;
      total_units += cached;
      next_use[touch.segment] = touch.next_use;
      if (cached > 0) victims.push((std::uint64_t{touch.next_use} << 32U) | touch.segment);
    }
    while (total_units > capacity_units) {
      const auto segment = static_cast<std::uint32_t>(victims.top());
      const bool is_current = next_use[segment] == victims.top() >> 32U;
      const std::uint64_t excess_units = total_units - capacity_units;
      if (is_current && cached_units[segment] > excess_units) {
        cached_units[segment] -= static_cast<std::uint32_t>(excess_units);
        total_units = capacity_units;
        break;
      }
      if (is_current) {
        total_units -= cached_units[segment];
        cached_units[segment] = 0;
      }
      victims.pop();
    }
  }
  // Nobody finds more units, but units that are only begun have fewer tokens, and others may choose to miss those.
  bound.hit_tokens = std::min(bound.hit_tokens, reusable_tokens_);
  return bound;
}

std::span<const TraceFacts::Touch> TraceFacts::touches_of(std::size_t request) const {
  const std::size_t end = request + 1 < requests_.size() ? requests_[request + 1].first_touch : touches_.size();
  return std::span(touches_).first(end).subspan(requests_[request].first_touch);
}

std::span<const TraceFacts::Touch> TraceFacts::prompt_touches_of(std::size_t request) const {
  return touches_of(request).subspan(requests_[request].prompt_touch - requests_[request].first_touch);
}

std::uint64_t TraceFacts::tokens_of(std::size_t request, std::uint32_t units) const {
  return std::min(std::uint64_t{units} * unit_tokens_, requests_[request].prompt_tokens);
}

}  // namespace quire
