// SPDX-License-Identifier: Apache-2.0
//
// From the shape of a model to bytes. A ModelLayout is a list of cache groups (cache_group.h). PageGeometry says how
// many bytes a page of a group has on one tensor-parallel rank; PoolGeometry says where in a pool each of them lies:
//
//     page-first   page 0: [layer 0: [k][v]][layer 1: [k][v]]…   page 1: …    a page moves in one copy
//     layer-first  layer 0: [page 0: [k][v]][page 1: [k][v]]…    layer 1: …   as in engines' own tensors
//
// All types here are immutable once made. The factories check sizes once; what they return cannot overflow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/cache_group.h"
#include "quire/result.h"
#include "quire/types.h"

namespace quire {

/// Order of tokens and heads inside the area of a component. Records keep their heads together.
enum class HeadOrder : std::uint8_t {
  Nhd,  ///< [token][head][dim]
  Hnd,  ///< [head][token][dim]
};

struct PageOptions {
  std::uint32_t page_tokens = 16;  ///< any number from 1
  std::uint32_t rank_count = 1;    ///< tensor-parallel ranks
  HeadOrder head_order = HeadOrder::Nhd;
};

/// Which of a component's heads one rank stores.
struct HeadRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  friend bool operator==(HeadRange, HeadRange) = default;
};

/// Where a component lies in one layer of one page: token t, head h begins at offset + t * token + h * head.
/// All in bytes; a row is head_bytes long. In a record, `token` is the length of the record.
struct ComponentStrides {
  std::uint64_t offset = 0;
  std::uint64_t token = 0;
  std::uint64_t head = 0;
  std::uint64_t head_bytes = 0;
};

/// The size and the inside of one group's pages, or of its part of the state slots, on one rank; every rank has the
/// same. A page of a full or window group has an entry for each token; one of a compressed group for each
/// tokens_per_entry tokens; one that keeps a snapshot has the entries of that. immutable.
class PageGeometry {
 public:
  /// Fails on empty or unnamed parts, on numbers that contradict each other, on heads that cannot be split over the
  /// ranks, on pages that hold no whole number of entries, on groups without pages, and on pages of 2^64 bytes or more.
  [[nodiscard]] static Result<PageGeometry> create(CacheGroup group, const PageOptions& options);
  /// The group's part of a state slot, as if it were a page: slot_entries for each of slot_history + 1 versions. Fails
  /// as create() does, and on groups that keep nothing there.
  [[nodiscard]] static Result<PageGeometry> create_slot(CacheGroup group, const PageOptions& options);

  [[nodiscard]] const CacheGroup& group() const { return group_; }
  [[nodiscard]] const PageOptions& options() const { return options_; }
  [[nodiscard]] std::uint32_t layer_count() const { return static_cast<std::uint32_t>(group_.layers.size()); }
  /// One page, all layers.
  [[nodiscard]] std::uint64_t page_bytes() const { return layer_bytes_ * group_.layers.size(); }
  /// One page, one layer.
  [[nodiscard]] std::uint64_t layer_bytes() const { return layer_bytes_; }
  /// Of one page and layer.
  [[nodiscard]] std::uint32_t entry_count() const { return entry_count_; }
  /// One entry, all layers, without padding.
  [[nodiscard]] std::uint64_t entry_bytes() const { return entry_bytes_; }
  /// One token, all layers, with its share of the padding, rounded down; of snapshots it means nothing.
  [[nodiscard]] std::uint64_t token_bytes() const { return page_bytes() / options_.page_tokens; }
  /// What a pool of such pages must be aligned to: the largest alignment of a component.
  [[nodiscard]] std::uint32_t alignment() const { return alignment_; }
  /// Whole pages in so many bytes.
  [[nodiscard]] std::uint64_t page_count_within(std::uint64_t bytes) const { return bytes / page_bytes(); }

  /// One per component, in the group's order.
  [[nodiscard]] std::span<const ComponentStrides> components() const { return components_; }
  /// The heads of a component on one rank: consecutive ranks store consecutive heads.
  [[nodiscard]] HeadRange heads_on_rank(std::uint32_t component_index, std::uint32_t rank_index) const;
  /// A page before anything is written, layer after layer; padding is zero.
  [[nodiscard]] std::vector<std::byte> initial_bytes() const;

 private:
  struct Entries;
  PageGeometry() = default;
  static Result<PageGeometry> create(CacheGroup group, const PageOptions& options, const Entries& entries);

  CacheGroup group_;
  PageOptions options_;
  std::uint32_t entry_count_ = 0;
  std::uint64_t entry_bytes_ = 0;
  std::uint32_t alignment_ = 1;
  std::uint64_t layer_bytes_ = 0;
  std::vector<ComponentStrides> components_;
};

enum class ByteLayout : std::uint8_t { PageFirst, LayerFirst };

struct PoolOptions {
  std::uint64_t page_count = 0;
  ByteLayout byte_layout = ByteLayout::PageFirst;
  /// PageFirst: from one page to the next, where something else lies between them; 0: nothing does.
  std::uint64_t page_stride_bytes = 0;
};

/// One row of a pool. Layers and components count from 0 in the group, heads from 0 on the rank.
struct RowLocation {
  PageId page = {};
  std::uint32_t layer_index = 0;
  std::uint32_t component_index = 0;
  std::uint32_t token_index = 0;  ///< entry of the page; where entries stand for several tokens, these count as one
  std::uint32_t head_index = 0;
};

/// A pool as plain numbers of bytes, to be copied into kernel parameters. Where layers have base pointers of
/// their own (an engine's tensors), leave the layer term out.
struct PoolStrides {
  std::uint64_t page = 0;
  std::uint64_t layer = 0;
  std::uint32_t component_count = 0;
  std::array<ComponentStrides, kComponentsMax> components{};

  /// First byte of a row; the location must lie in the pool.
  [[nodiscard]] constexpr std::uint64_t offset_of(const RowLocation& row) const {
    const ComponentStrides& component = components[row.component_index];
    return row.page.value * page + row.layer_index * layer + component.offset + row.token_index * component.token +
           row.head_index * component.head;
  }
};

/// Where every row of a pool lies. immutable. All offsets are below pool_bytes().
class PoolGeometry {
 public:
  /// Fails on no pages, on more pages than PageId can name, on a stride that is less than a page, and on pools of 2^64
  /// bytes or more.
  [[nodiscard]] static Result<PoolGeometry> create(PageGeometry page, const PoolOptions& options);

  [[nodiscard]] const PageGeometry& page() const { return page_; }
  [[nodiscard]] ByteLayout byte_layout() const { return byte_layout_; }
  [[nodiscard]] std::uint32_t page_count() const { return page_count_; }
  /// From the first page's first byte to the last one's last.
  [[nodiscard]] std::uint64_t pool_bytes() const {
    if (byte_layout_ == ByteLayout::LayerFirst) return page_count_ * page_.page_bytes();
    return ((page_count_ - 1) * strides_.page) + page_.page_bytes();
  }
  [[nodiscard]] const PoolStrides& strides() const { return strides_; }
  /// As PoolStrides::offset_of, and a location outside the pool stops the program. The row's length is
  /// page().components()[component_index].head_bytes.
  [[nodiscard]] std::uint64_t offset_of(const RowLocation& row) const;

 private:
  explicit PoolGeometry(PageGeometry page) : page_(std::move(page)) {}

  PageGeometry page_;
  ByteLayout byte_layout_ = ByteLayout::PageFirst;
  std::uint32_t page_count_ = 0;
  PoolStrides strides_;
};

/// A model with one kind of attention layer that stores K and V: MHA, GQA or MQA.
struct SimpleShape {
  std::string name = "model";
  std::uint32_t layers = 0;
  std::uint32_t kv_heads = 0;
  std::uint32_t head_dim = 0;
  ElementType element = ElementType::Bf16;
  bool keys_rotated = true;
};

/// What a model stores: its cache groups. immutable.
class ModelLayout {
 public:
  /// Any groups. Fails on what PageGeometry refuses, on no groups, on two groups of one name, on multiples of 2^32
  /// tokens or more, and on compressed entries that overlap with tokens whose rows nobody keeps.
  [[nodiscard]] static Result<ModelLayout> create(std::string name, std::vector<CacheGroup> groups);
  /// One full group of K and V in every layer.
  [[nodiscard]] static Result<ModelLayout> simple(const SimpleShape& shape);
  /// One layer of so many opaque bytes per token, for bookkeeping that never looks inside a page.
  [[nodiscard]] static Result<ModelLayout> opaque(std::uint32_t token_bytes);

  /// The same with room in state slots for so many drafts in a step: a state keeps as many earlier versions, rings and
  /// tails have as many rows more than they need. Groups in pages, and those that have the room, stay as they are.
  [[nodiscard]] Result<ModelLayout> with_drafts(std::uint32_t draft_count) const;

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::span<const CacheGroup> groups() const { return groups_; }
  /// Layers that some group stores something for.
  [[nodiscard]] std::uint32_t layer_count() const { return layer_count_; }
  /// What one more token of a long context takes: its entries in full groups and its share of those in compressed ones,
  /// rounded up, before any split over ranks and without padding. Windows and snapshots do not grow with the context.
  [[nodiscard]] std::uint64_t token_bytes() const { return token_bytes_; }
  /// Pages have a multiple of so many tokens, so that they hold whole entries of all compressed groups.
  [[nodiscard]] std::uint32_t page_multiple_tokens() const { return page_multiple_tokens_; }
  /// Positions at which a sequence can begin with what others left behind are multiples of this: 1, unless groups are
  /// compressed or have snapshots at multiples only. 0: nowhere, because of a group that is not is_reusable().
  [[nodiscard]] std::uint32_t hit_multiple_tokens() const { return hit_multiple_tokens_; }
  /// A small table of the groups, with the sizes on one rank, what each must hold to resume, and where hits can end.
  /// Lines end with '\n'.
  [[nodiscard]] Result<std::string> describe(const PageOptions& options = {}) const;

 private:
  ModelLayout() = default;

  std::string name_;
  std::vector<CacheGroup> groups_;
  std::uint32_t layer_count_ = 0;
  std::uint64_t token_bytes_ = 0;
  std::uint32_t page_multiple_tokens_ = 1;
  std::uint32_t hit_multiple_tokens_ = 1;
};

/// The layout of a known public model; an unknown name is an error that lists preset_names().
[[nodiscard]] Result<ModelLayout> preset(std::string_view name);
/// The names preset() knows.
[[nodiscard]] std::vector<std::string_view> preset_names();

}  // namespace quire
