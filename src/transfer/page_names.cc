// SPDX-License-Identifier: Apache-2.0
#include "transfer/page_names.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/mutants.h"

namespace quire {

Result<NameLog> NameLog::create(const Config& config) {
  NameLog log;
  log.config_ = config;
  QUIRE_TRY_ASSIGN(log.entries_, LazyArray<Entry>::create(config.entry_count_max));
  QUIRE_TRY_ASSIGN(log.tokens_, LazyArray<TokenId>::create(std::size_t{config.page_count_max} * config.page_tokens));
  QUIRE_TRY_ASSIGN(log.extra_keys_, LazyArray<ExtraKey>::create(config.extra_key_count_max));
  return log;
}

bool NameLog::add_entry(const Entry& entry) {
  if (entry_count_ == config_.entry_count_max || has_lost_entries_) {
    has_lost_entries_ = true;
    return false;
  }
  entries_[entry_count_++] = entry;
  return true;
}

void NameLog::add_page(const Page& page) {
  QUIRE_DCHECK(page.tokens.size() == config_.page_tokens, "a page of another size");
  const auto extra_key_count = static_cast<std::uint32_t>(page.extra_keys.size());
  const bool has_room =
      page_count_ < config_.page_count_max && extra_key_count <= config_.extra_key_count_max - extra_key_count_;
  const Kind without_room = page.tier == Tier::Host ? Kind::UnnamedHost : Kind::Unnamed;
  const bool is_added = add_entry({.kind = has_room ? Kind::Page : without_room,
                                   .page = page.page,
                                   .source = page.parent,
                                   .tier = page.tier,
                                   .source_tier = page.parent_tier,
                                   .key_space = page.key_space,
                                   .page_index = page.page_index,
                                   .extra_key_count = has_room ? extra_key_count : 0});
  if (!is_added || !has_room) {
    ++unnamed_page_total_;
    return;
  }
  std::memcpy(&tokens_[std::size_t{page_count_++} * config_.page_tokens], page.tokens.data(), page.tokens.size_bytes());
  for (const ExtraKey& key : page.extra_keys) extra_keys_[extra_key_count_++] = key;
}

void NameLog::add_copy(Kind kind, PageId page, PageId source) {
  (void)add_entry({.kind = kind, .page = page, .source = source});
}

void NameLog::add_unnamed(Tier tier, PageId page) {
  (void)add_entry({.kind = tier == Tier::Host ? Kind::UnnamedHost : Kind::Unnamed, .page = page});
}

void NameLog::add_key_space(std::uint32_t index, const KeySpace& key_space) {
  key_spaces_.push_back({.index = index, .before_entry = entry_count_, .key_space = key_space});
}

void NameLog::clear() {
  entry_count_ = 0;
  page_count_ = 0;
  extra_key_count_ = 0;
  has_lost_entries_ = false;
  device_page_count_ = 0;
  key_spaces_.clear();
  followed_entry_count_ = 0;
  followed_page_count_ = 0;
  followed_extra_key_count_ = 0;
  followed_key_space_count_ = 0;
}

void NameLog::append(const NameLog& other) {
  const bool has_room = !has_lost_entries_ && !other.has_lost_entries_ &&
                        other.entry_count_ <= config_.entry_count_max - entry_count_ &&
                        other.page_count_ <= config_.page_count_max - page_count_ &&
                        other.extra_key_count_ <= config_.extra_key_count_max - extra_key_count_;
  device_page_count_ = std::max(device_page_count_, other.device_page_count_);
  for (const NewKeySpace& added : other.key_spaces_) {
    key_spaces_.push_back(added);
    key_spaces_.back().before_entry = entry_count_ + (has_room ? added.before_entry : 0);
  }
  if (has_room) {
    std::copy_n(other.entries_.data(), other.entry_count_, entries_.data() + entry_count_);
    std::copy_n(other.tokens_.data(), std::size_t{other.page_count_} * config_.page_tokens,
                tokens_.data() + (std::size_t{page_count_} * config_.page_tokens));
    std::copy_n(other.extra_keys_.data(), other.extra_key_count_, extra_keys_.data() + extra_key_count_);
    entry_count_ += other.entry_count_;
    page_count_ += other.page_count_;
    extra_key_count_ += other.extra_key_count_;
  } else {
    has_lost_entries_ = true;
  }
}

Result<PageNames> PageNames::create(const Config& config) {
  PageNames names;
  names.config_ = config;
  QUIRE_TRY_ASSIGN(names.device_, LazyArray<Record>::create(config.device_page_count));
  QUIRE_TRY_ASSIGN(names.host_, LazyArray<Record>::create(config.host_page_count));
  names.spaces_.resize(config.key_space_count_max);
  return names;
}

void PageNames::follow(NameLog& log, std::uint32_t entry_count,
                       const std::function<void(const KeySpace&)>& on_key_space) {
  const Status grown = device_.grow(log.device_page_count_);
  QUIRE_CHECK(grown.has_value(), "no room for the names of so many device pages");
  const auto add_spaces = [&] {
    while (log.followed_key_space_count_ < log.key_spaces_.size()) {
      const NameLog::NewKeySpace& added = log.key_spaces_[log.followed_key_space_count_];
      if (!is_mutated(Mutant::KeySpacesFirst) && added.before_entry > log.followed_entry_count_) break;
      ++log.followed_key_space_count_;
      add_space(added);
      on_key_space(added.key_space);
    }
  };
  while (log.followed_entry_count_ < std::min(entry_count, log.entry_count_)) {
    add_spaces();
    const NameLog::Entry& entry = log.entries_[log.followed_entry_count_++];
    follow(entry, log.tokens_.data() + (std::size_t{log.followed_page_count_} * config_.page_tokens),
           log.extra_keys_.data() + log.followed_extra_key_count_);
    if (entry.kind == NameLog::Kind::Page) ++log.followed_page_count_;
    log.followed_extra_key_count_ += entry.extra_key_count;
  }
  // What is asked behind the last entry may rely on those that were lost.
  if (log.has_lost_entries_ && log.followed_entry_count_ == log.entry_count_) {
    forget_pages();
    log.has_lost_entries_ = false;
  }
  add_spaces();
}

void PageNames::finish(NameLog& log, const std::function<void(const KeySpace&)>& on_key_space) {
  follow(log, UINT32_MAX, on_key_space);
  log.clear();
}

void PageNames::follow(const NameLog::Entry& entry, const TokenId* tokens, const ExtraKey* extra_keys) {
  switch (entry.kind) {
    case NameLog::Kind::Page: {
      const PageName parent = parent_name({entry.source_tier, entry.source}, entry.key_space);
      Record& record = entry.tier == Tier::Host ? host_[entry.page.value] : device_[entry.page.value];
      record = {
          .name = {}, .parent = parent, .key_space = spaces_[entry.key_space].name, .page_index = entry.page_index};
      if (parent.is_none()) return;
      name_pages({.parent = parent,
                  .page_tokens = config_.page_tokens,
                  .first_position = entry.page_index * config_.page_tokens,
                  .tokens = {tokens, config_.page_tokens},
                  .extra_keys = {extra_keys, entry.extra_key_count}},
                 {&record.name, 1});
      return;
    }
    case NameLog::Kind::Unnamed:
      device_[entry.page.value] = {};
      return;
    case NameLog::Kind::UnnamedHost:
      host_[entry.page.value] = {};
      return;
    case NameLog::Kind::HostCopy:
      // Not always: nothing would go to disk.
      if (is_mutated(Mutant::NoHostCopies) && entry.page.value % 8 == entry.source.value % 8) return;
      host_[entry.page.value] = device_[entry.source.value];
      return;
    case NameLog::Kind::DeviceCopy:
      if (is_mutated(Mutant::NoDeviceCopies) && entry.page.value % 8 == entry.source.value % 8) return;
      device_[entry.page.value] = host_[entry.source.value];
      return;
    case NameLog::Kind::DeviceMove:
      device_[entry.page.value] = device_[entry.source.value];
      return;
  }
}

void PageNames::add_space(const NameLog::NewKeySpace& added) {
  Space& space = spaces_[added.index];
  space.name = key_space_name(added.key_space);
  space.root = root_name(space.name, config_.page_tokens);
}

void PageNames::forget_pages() {
  std::fill_n(device_.data(), device_.size(), Record{});
  std::fill_n(host_.data(), host_.size(), Record{});
}

}  // namespace quire
