// SPDX-License-Identifier: Apache-2.0
//
// Recording: scripted calls on one or two caches, kept as what a device sees of them: plans, tokens and the logits that
// must come out. It can be replayed on fresh engines as often as a test likes, with one number of one plan changed,
// without the caches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oracle_texts.h"
#include "quire/cache.h"
#include "tools/tiny_engine/device_plan.h"
#include "tools/tiny_engine/engine.h"
#include "tools/tiny_engine/model.h"

namespace quire::testing {

struct RecordingShape {
  tiny_engine::AttentionKind attention = tiny_engine::AttentionKind::Gqa;
  bool keys_rotated = false;
  std::uint32_t page_tokens = 4;
  PageTables page_tables = PageTables::Rows;
  std::uint32_t cascade_levels_max = 1;
  std::uint32_t cache_count = 1;
  std::uint32_t layer_window = 0;  ///< of every second layer; 0: none
};

/// One number of one recorded plan, and what it becomes.
struct Mutation {
  std::size_t step_index = 0;
  tiny_engine::StagedNumbers numbers;
  std::uint64_t index = 0;
  std::int64_t value = 0;
};

class Recording {
 public:
  /// A sequence, by its number in this recording.
  using LiveId = std::size_t;
  struct Ask {
    LiveId live = 0;
    std::uint32_t token_count = 0;           ///< 0: all pending ones
    std::vector<TokenId> drafts = {};        // NOLINT(readability-redundant-member-init)
    std::uint32_t accepted_count = 0;        ///< of a chain
    std::vector<std::int32_t> parents = {};  // NOLINT(readability-redundant-member-init)
    std::vector<TokenId> next = {};          // NOLINT(readability-redundant-member-init)
  };

  explicit Recording(const RecordingShape& shape);

  // The script. What fails stops the test.
  LiveId begin(std::vector<TokenId> tokens, std::size_t cache_index = 0);
  LiveId fork(LiveId live, std::uint32_t at);
  void rewind(LiveId live, std::uint32_t count);
  void append(LiveId live, std::vector<TokenId> tokens);
  void set_window(LiveId live, const Window& window);
  void commit_tree(LiveId live, std::int32_t leaf);
  void step(const std::vector<Ask>& asks);
  /// The next `count` pending tokens of `target` are computed by the cache of `source`, which has the same tokens.
  void prepare_transfer(LiveId source, LiveId target, std::uint32_t count);
  void finish_transfer(LiveId target);
  /// What follows only shows what went wrong before: it is not changed.
  void begin_probes() { probes_begin_ = steps_.size(); }

  /// Numbers of the recorded plans that mean something: not padding, not of a slice without pages.
  [[nodiscard]] std::vector<Mutation> places() const;
  /// Replays everything, on engines that append before attention and on such that append after it. Empty, or the first
  /// thing that is wrong. The first call of all is this one.
  [[nodiscard]] std::string replay();
  /// Replays from the changed step on. What is wrong on one kind of engine is enough.
  [[nodiscard]] std::string replay(const Mutation& mutation) const;

 private:
  struct Live {
    std::size_t cache_index = 0;
    Sequence handle;
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> texts;
    Window window;
    struct TreeToken {
      TokenId token = 0;
      std::int32_t parent = -1;
      std::int32_t text = 0;
    };
    std::vector<TreeToken> tree;
    bool has_state = false;
  };
  struct RecordedStep {
    std::size_t cache_index = 0;
    tiny_engine::DevicePlan plan;
    std::uint32_t entry_count = 0;
    std::vector<TokenId> tokens;
    std::vector<std::int32_t> texts;
    std::vector<std::uint64_t> numbers;      // per entry: whose it is
    std::vector<std::uint32_t> new_slots;    // state slots of sequences that begin with this step …
    std::vector<std::uint64_t> new_numbers;  // … and whose they are
  };
  /// Everything a device has.
  struct World {
    std::vector<std::vector<std::byte>> pools;
    std::vector<tiny_engine::Engine> engines;
    std::vector<std::uint64_t> states;  // by sequence number: what the device's must be
  };

  [[nodiscard]] World make_world(bool appends_first) const;
  [[nodiscard]] World copy_world(const World& world) const;
  void connect(World& world) const;
  [[nodiscard]] bool is_used(const RecordedStep& step, const tiny_engine::StagedNumbers& numbers,
                             std::uint64_t index) const;
  [[nodiscard]] std::string replay_step(World& world, const RecordedStep& step,
                                        const tiny_engine::DevicePlan& plan) const;
  [[nodiscard]] Cache& cache_of(const Live& live) { return *caches_[live.cache_index]; }

  RecordingShape shape_;
  tiny_engine::Weights weights_;
  std::vector<std::vector<std::byte>> memories_;  // of the caches, never looked into
  std::vector<std::unique_ptr<Cache>> caches_;
  std::vector<KeySpaceId> spaces_;
  std::deque<Live> lives_;
  OracleTexts texts_;
  std::vector<RecordedStep> steps_;
  std::optional<std::size_t> probes_begin_;
  std::vector<std::vector<double>> expected_;  // by text
  std::array<std::vector<World>, 2> before_;   // for both kinds of engines, the world before each step
};

}  // namespace quire::testing
