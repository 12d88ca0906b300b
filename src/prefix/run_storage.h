// SPDX-License-Identifier: Apache-2.0
//
// RunStorage: where the tokens and page ids of runs lie. Each run has one block, in which its tokens are contiguous:
//
//     | owner, next free | tokens: capacity x page_tokens | page ids: capacity |        capacity in pages, by size
//     class
//
// Blocks of one size class share slabs. A run holds at most run_pages_max pages (about 2,048 tokens), so moving one
// costs about a microsecond. Memory is bounded: a block is never more than about twice what its run needs, and when
// free blocks add up, the live blocks of a sparse slab move to others of their class and the slab serves another
// class. So an allocation for pages within the bound given to create() cannot fail, however the tree was used.
//
// A block of run r may move whenever any run's storage changes: pointers live until the next non-const call.
//
// single-threaded
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/lazy_array.h"
#include "prefix/run.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

class RunStorage {
 public:
  static constexpr std::size_t kUnitBytes = 8;
  static constexpr std::uint32_t kRunTokensMax = 2048;
  static constexpr std::uint32_t kPageTokensMax = 1U << 20U;

  /// Storage for runs that hold at most `page_count_max` pages together. `runs` are the runs whose block and
  /// size_class this keeps up to date.
  [[nodiscard]] static Result<RunStorage> create(std::uint32_t page_tokens, std::uint32_t page_count_max,
                                                 LazyArray<Run>& runs);
  [[nodiscard]] Status grow(std::uint32_t page_count_max);

  /// `run` has no block; gives it one for `page_count` pages, contents undefined.
  void allocate(std::uint32_t run, std::uint32_t page_count);
  void release(std::uint32_t run);
  /// Makes room for `page_count` pages; the run's own pages (runs[run].page_count) are kept.
  void reserve(std::uint32_t run, std::uint32_t page_count);
  /// Gives memory back after runs[run].page_count has become smaller, if it is worth moving.
  void shrink(std::uint32_t run);
  /// `prefix`, which has no block, gets the first `page_count` pages of `suffix`, which keeps the rest. Both runs' page
  /// counts follow.
  void split(std::uint32_t suffix, std::uint32_t prefix, std::uint32_t page_count);

  [[nodiscard]] TokenId* tokens(const Run& run) { return tokens_at(run.block); }
  [[nodiscard]] PageId* pages(const Run& run) { return pages_at(run.block, run.size_class); }
  [[nodiscard]] const TokenId* tokens(const Run& run) const { return tokens_at(run.block); }
  [[nodiscard]] const PageId* pages(const Run& run) const { return pages_at(run.block, run.size_class); }

  /// Asks for what release() and a read of the page ids will touch.
  void prefetch(const Run& run) const {
    __builtin_prefetch(&header(run.block), 1);
    __builtin_prefetch(pages(run));
  }

  [[nodiscard]] std::uint32_t run_pages_max() const { return run_pages_max_; }
  [[nodiscard]] std::uint32_t slab_count() const { return used_slab_count_; }
  [[nodiscard]] std::uint32_t slab_count_max() const { return static_cast<std::uint32_t>(slabs_.size()); }
  [[nodiscard]] std::uint64_t moved_block_count() const { return moved_block_count_; }
  [[nodiscard]] std::size_t slab_bytes() const { return slab_units_ * kUnitBytes; }
  /// Names what is inconsistent, if anything.
  [[nodiscard]] Status check_invariants() const;

 private:
  friend struct PrefixTreePeer;  // tests corrupt what check_invariants() must notice

  static constexpr std::uint32_t kNone = UINT32_MAX;
  static constexpr std::size_t kHeaderBytes = 8;

  struct BlockHeader {
    std::uint32_t owner;      // run, or kNone when the block is free
    std::uint32_t next_free;  // block, in units
  };
  struct SizeClass {
    std::uint32_t capacity_pages;
    std::uint32_t block_units;
    std::uint32_t blocks_per_slab;
    std::uint32_t first_partial;  // slabs of this class with a free block
    std::uint32_t slab_count;
    std::uint32_t live_count;
  };
  struct Slab {
    std::uint32_t previous_partial;
    std::uint32_t next_partial;  // of a free slab: the next free one
    std::uint32_t first_free;    // block given back, in units
    std::uint32_t live_count;
    std::uint32_t touched_count;  // blocks at the front that have ever been used; the rest is untouched memory
    std::uint8_t size_class;
    bool is_used;
  };

  [[nodiscard]] BlockHeader& header(std::uint32_t block) const {
    return *reinterpret_cast<BlockHeader*>(memory_.data() + (block * kUnitBytes));
  }
  [[nodiscard]] TokenId* tokens_at(std::uint32_t block) const {
    return reinterpret_cast<TokenId*>(memory_.data() + (block * kUnitBytes) + kHeaderBytes);
  }
  [[nodiscard]] PageId* pages_at(std::uint32_t block, std::uint8_t size_class) const {
    return reinterpret_cast<PageId*>(tokens_at(block) + page_id_offsets_[size_class]);
  }
  [[nodiscard]] std::uint8_t class_for(std::uint32_t page_count) const { return class_of_pages_[page_count]; }

  void make_classes();
  [[nodiscard]] std::uint32_t slabs_needed(std::uint32_t page_count_max) const;
  [[nodiscard]] std::uint32_t take_block(std::uint8_t size_class, std::uint32_t owner);
  void give_back_block(std::uint32_t block);
  void move_to_class(std::uint32_t run, std::uint8_t size_class);
  void copy_pages(const Run& source, std::uint32_t target_block, std::uint8_t target_class, std::uint32_t page_count);
  void add_slab(std::uint8_t size_class);
  [[nodiscard]] bool should_empty_a_slab() const;
  void empty_a_slab();
  void link_partial(std::uint32_t slab);
  void unlink_partial(std::uint32_t slab);

  std::uint32_t page_tokens_ = 0;
  std::uint32_t run_pages_max_ = 0;
  std::uint32_t slab_units_ = 0;
  std::vector<SizeClass> classes_;
  std::vector<std::uint32_t> page_id_offsets_;  // by class, in tokens from the block's first token
  std::vector<std::uint8_t> class_of_pages_;

  LazyArray<Run>* runs_ = nullptr;
  LazyMemory memory_;
  LazyArray<Slab> slabs_;
  std::uint32_t fresh_slab_ = 0;  // slabs from here on have never been used
  std::uint32_t first_free_slab_ = kNone;
  std::uint32_t used_slab_count_ = 0;
  std::uint64_t used_units_ = 0;  // of live blocks
  std::uint64_t moved_block_count_ = 0;
};

}  // namespace quire
