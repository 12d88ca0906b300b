// SPDX-License-Identifier: Apache-2.0
//
// PageNames: what the pages of the device and of the host are called, for the tiers below, where pages are found by
// name. It follows the cache by a log: the cache appends an entry when a page comes into the tree and when one is
// copied between tiers, and whoever computes names reads the entries in the same order. So a page's name is known
// without a word from the engine's thread but its tokens, and the name of the page before it is always there first.
//
// A page whose entry found no room in the log has no name, and none of those behind it have: they cannot go to disk.
// That costs hits, never a wrong page.
//
// NameLog, PageNames: single-threaded
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/lazy_array.h"
#include "quire/key_space.h"
#include "quire/result.h"
#include "quire/types.h"
#include "wire/page_name.h"

namespace quire {

/// A page of a tier, or the root of its key space.
struct NamedPage {
  Tier tier = Tier::Device;
  PageId page;  ///< none: the root
};

class NameLog {
 public:
  enum class Kind : std::uint8_t {
    Page,         ///< a page has come into the tree: computed, on the device, or from a lower tier, on the host
    Unnamed,      ///< the same, of one whose tokens found no room; or a device page is not to have a name any more
    UnnamedHost,  ///< a host page is not
    HostCopy,     ///< a host page is a copy of a device page, or is about to become one
    DeviceCopy,   ///< the other way
    DeviceMove,   ///< a device page has got another id
  };
  struct Entry {
    Kind kind = Kind::Page;
    PageId page;                        ///< what gets a name
    PageId source;                      ///< the page before it, none: the root; of a copy: what it is a copy of
    Tier tier = Tier::Device;           ///< of Kind::Page: the page's own
    Tier source_tier = Tier::Device;    ///< of Kind::Page: of the page before it
    std::uint32_t key_space = 0;        ///< of Kind::Page
    std::uint32_t page_index = 0;       ///< of Kind::Page: how many pages lie before it
    std::uint32_t extra_key_count = 0;  ///< of Kind::Page
  };
  struct Config {
    std::uint32_t page_tokens = 0;
    std::uint32_t entry_count_max = 0;
    std::uint32_t page_count_max = 0;  ///< pages with tokens
    std::uint32_t extra_key_count_max = 0;
  };

  NameLog() = default;
  [[nodiscard]] static Result<NameLog> create(const Config& config);

  struct Page {
    PageId page;
    PageId parent;  ///< none: the root
    Tier tier = Tier::Device;
    Tier parent_tier = Tier::Device;
    std::uint32_t key_space = 0;
    std::uint32_t page_index = 0;
    std::span<const TokenId> tokens;       ///< the page's own
    std::span<const ExtraKey> extra_keys;  ///< those that overlap it
  };
  void add_page(const Page& page);
  void add_copy(Kind kind, PageId page, PageId source);
  /// The page has no name from here on, and what is copied from it gets none.
  void add_unnamed(Tier tier, PageId page);
  void add_key_space(std::uint32_t index, const KeySpace& key_space);
  /// Device page ids lie below this from now on, if it is more than before.
  void set_device_page_count(std::uint32_t page_count) { device_page_count_ = page_count; }

  [[nodiscard]] bool is_empty() const {
    return entry_count_ == 0 && key_spaces_.empty() && !has_lost_entries_ && device_page_count_ == 0;
  }
  /// How many entries there are: what is asked now is answered when all of them have been followed, and no others.
  [[nodiscard]] std::uint32_t entry_count() const { return entry_count_; }
  [[nodiscard]] std::uint64_t unnamed_page_total() const { return unnamed_page_total_; }
  /// Goes on with all that another log has.
  void append(const NameLog& other);
  void clear();

 private:
  friend class PageNames;
  [[nodiscard]] bool add_entry(const Entry& entry);

  Config config_;
  LazyArray<Entry> entries_;
  LazyArray<TokenId> tokens_;
  LazyArray<ExtraKey> extra_keys_;
  std::uint32_t entry_count_ = 0;
  std::uint32_t page_count_ = 0;
  std::uint32_t extra_key_count_ = 0;
  // Entries were lost: from here on it is not known which names are still right, so that none are.
  bool has_lost_entries_ = false;
  std::uint64_t unnamed_page_total_ = 0;
  struct NewKeySpace {
    std::uint32_t index = 0;
    std::uint32_t before_entry = 0;  // its place among the entries
    KeySpace key_space;
  };
  std::uint32_t device_page_count_ = 0;  // 0: as before
  std::vector<NewKeySpace> key_spaces_;  // rare, so that they may allocate; never lost
  // How far it has been followed.
  std::uint32_t followed_entry_count_ = 0;
  std::uint32_t followed_page_count_ = 0;
  std::uint32_t followed_extra_key_count_ = 0;
  std::size_t followed_key_space_count_ = 0;
};

class PageNames {
 public:
  struct Config {
    std::uint32_t page_tokens = 0;
    std::uint32_t device_page_count = 0;  ///< ids lie below it
    std::uint32_t host_page_count = 0;
    std::uint32_t key_space_count_max = 0;
  };
  /// What is known of a page; a name that is none: nothing.
  struct Record {
    PageName name;
    PageName parent;
    PageName key_space;  ///< its name: indices are used again
    std::uint32_t page_index = 0;
  };
  struct Space {
    PageName name;
    PageName root;
  };

  PageNames() = default;
  [[nodiscard]] static Result<PageNames> create(const Config& config);
  /// Follows the first `entry_count` entries, as far as they have not been followed. `on_key_space(const KeySpace&)`
  /// hears of those that are new.
  void follow(NameLog& log, std::uint32_t entry_count, const std::function<void(const KeySpace&)>& on_key_space);
  /// Follows the rest of them, and empties the log.
  void finish(NameLog& log, const std::function<void(const KeySpace&)>& on_key_space);

  [[nodiscard]] const Record& of(Tier tier, PageId page) const {
    return tier == Tier::Host ? host_[page.value] : device_[page.value];
  }
  /// The name that the first page behind this one has as its parent.
  [[nodiscard]] const PageName& parent_name(const NamedPage& page, std::uint32_t key_space) const {
    return page.page.is_none() ? spaces_[key_space].root : of(page.tier, page.page).name;
  }
  [[nodiscard]] const Space& space(std::uint32_t key_space) const { return spaces_[key_space]; }
  /// A host page that comes from below. It is the load's alone until the log has been followed to its end: an entry for
  /// it that was lost could not take the name away again.
  void set_host(PageId page, const Record& record) { host_[page.value] = record; }

 private:
  void follow(const NameLog::Entry& entry, const TokenId* tokens, const ExtraKey* extra_keys);
  void add_space(const NameLog::NewKeySpace& added);
  void forget_pages();

  Config config_;
  LazyArray<Record> device_;
  LazyArray<Record> host_;
  std::vector<Space> spaces_;
};

}  // namespace quire
