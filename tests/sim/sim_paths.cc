// SPDX-License-Identifier: Apache-2.0
#include "sim_paths.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/hash.h"
#include "cache/cache_for_tests.h"

namespace quire::testing {

SimPaths::SimPaths(const Cache& cache, const SimSetup& setup)
    : cache_(cache),
      setup_(setup),
      host_keys_(std::size_t{setup.host_page_count} + 1),
      device_keys_(std::size_t{setup.device_page_count_max} + 1) {
  run_ends_.resize(std::size_t{setup.device_page_count_max} + setup.host_page_count + setup.key_space_count_max + 1);
  knows_run_.resize(run_ends_.size());
}

SimPaths::PathKey SimPaths::next_key(PathKey before, std::span<const TokenId> page) {
  for (const TokenId token : page) before = mix64(before ^ (static_cast<std::uint64_t>(token) * 0x9E37ULL));
  return before;
}

std::vector<SimPaths::PathKey> SimPaths::keys_of(KeySpaceId space, std::span<const TokenId> tokens) const {
  std::vector<PathKey> keys;
  PathKey key = root_key(space);
  for (std::size_t at = 0; at + setup_.page_tokens <= tokens.size(); at += setup_.page_tokens) {
    key = next_key(key, tokens.subspan(at, setup_.page_tokens));
    keys.push_back(key);
  }
  return keys;
}

std::optional<Tier> SimPaths::tier_of(PathKey key) const {
  const auto found = pages_.find(key);
  return found == pages_.end() ? std::nullopt : std::optional(found->second.tier);
}

SimPaths::PathKey SimPaths::first_on_host(PathKey key) const {
  while (tier_of(pages_.at(key).before) == Tier::Host) key = pages_.at(key).before;
  return key;
}

std::uint32_t SimPaths::lost_capacity() const {
  return *setup_.lost_page_count_max;
}

void SimPaths::observe(TimeNs now) {
  records_.clear();
  for (std::array<ResidencyRecord, 64> out;;) {
    const auto read = cache_.read_residency(next_record_, out).value();
    if (read.empty()) break;
    if (read.front().number != next_record_) throw SimFailure("residency records are missing");
    records_.insert(records_.end(), read.begin(), read.end());
    next_record_ = read.back().number + 1;
  }
  if (records_.empty()) return;

  ++look_;
  std::ranges::fill(host_keys_, 0);
  std::ranges::fill(device_keys_, 0);
  const Status visited = cache_.visit_runs([this](const RunView& run) {
    if (run.parent.is_none()) {
      run_ends_[run.run.value] = root_key(run.key_space);
      return;
    }
    PathKey key = run_ends_[run.parent.value];
    for (std::uint32_t i = 0; i < run.pages.size(); ++i) {
      const PathKey before = key;
      key = next_key(key, run.tokens.subspan(std::size_t{i} * setup_.page_tokens, setup_.page_tokens));
      Page& page = pages_[key];
      if (page.seen == look_) throw SimFailure("a path is in the tree twice");
      page = {.tier = run.tier,
              .run = run.run,
              .page = run.pages[i],
              .before = before,
              .position = run.first_page + i,
              .seen = look_};
      (run.tier == Tier::Host ? host_keys_ : device_keys_)[run.pages[i].value] = key;
    }
    run_ends_[run.run.value] = key;
  });
  if (!visited) throw SimFailure(visited.error().message);

  // What is gone. Of several pages lost by one call, nobody knows which went first.
  std::vector<Loss*> lost;
  for (auto it = pages_.begin(); it != pages_.end();) {
    const Page& page = it->second;
    if (page.seen == look_) {
      ++it;
      continue;
    }
    Loss loss{.time = now};
    bool is_dropped = false;
    const auto concerns = [&](const ResidencyRecord& record) {
      const bool is_gain = record.cause <= ResidencyCause::Stored;
      return !is_gain && !record.run.is_none() && page.position >= record.first_page &&
             page.position < record.first_page + record.page_count;
    };
    const auto note = [&](const ResidencyRecord& record) {
      const bool is_bad = record.cause == ResidencyCause::Failed;
      is_dropped = is_dropped || record.cause == ResidencyCause::Dropped || record.cause == ResidencyCause::Reset;
      if (record.cause != ResidencyCause::Evicted && !is_bad) return;
      (record.tier == Tier::Host ? loss.may_be_host : loss.may_be_device) = true;
      (is_bad ? loss.may_be_bad : loss.may_be_good) = true;
    };
    // Runs that were split off since have names that were not seen before, as a rule: what one call gives up may be
    // given again by it. So the name decides whether a page was dropped or evicted, and more than one tier may be
    // named.
    for (const ResidencyRecord& record : records_) {
      if (concerns(record) && (record.run == page.run || !knows_run_[record.run.value])) note(record);
    }
    const bool is_known = is_dropped || loss.may_be_device || loss.may_be_host;
    for (const ResidencyRecord& record : records_) {
      if (concerns(record) && (!is_known || (!is_dropped && record.cause == ResidencyCause::Evicted))) note(record);
    }
    // Where the page's own run was dropped, pages of other runs were evicted, whatever their names.
    const auto has_own = [&](ResidencyCause cause) {
      return std::ranges::any_of(records_, [&](const ResidencyRecord& record) {
        return concerns(record) && record.run == page.run && record.cause == cause;
      });
    };
    const bool is_only_dropped = has_own(ResidencyCause::Dropped) && !has_own(ResidencyCause::Evicted);
    const bool is_evicted = !is_only_dropped && (loss.may_be_device || loss.may_be_host);
    if (!is_evicted && !is_dropped) throw SimFailure("a page is gone, and no record tells of it");
    if (is_evicted) {
      Loss& noted = losses_[it->first];
      noted = loss;
      lost.push_back(&noted);
    }
    it = pages_.erase(it);
  }
  // What comes from disk may be given up again by the call that has brought it; and what a step has computed, where a
  // sequence waits for room to load.
  std::uint64_t lost_count = lost.size();
  const std::uint64_t told = CacheForTests::given_up_page_total(cache_);
  if (told > lost_count_ + lost_count) {
    if (setup_.has_disk || cache_.stats()->loading_sequence_count > 0) {
      lost_count = told - lost_count_;
      unseen_times_.insert(now);
      const auto is_bad = [](const ResidencyRecord& record) { return record.cause == ResidencyCause::Failed; };
      has_unseen_bad_ = has_unseen_bad_ || std::ranges::any_of(records_, is_bad);
    }
  }
  for (Loss* each : lost) {
    each->before_least = lost_count_;
    each->before_most = lost_count_ + lost_count - 1;
  }
  lost_count_ += lost_count;
  knows_run_.assign(run_ends_.size(), false);
  for (const auto& [key, page] : pages_) knows_run_[page.run.value] = true;
}

void SimPaths::check_transfer(const TransferPlan& plan) {
  const bool is_load = plan.kind == TransferKind::Load;
  std::uint32_t last = UINT32_MAX;
  for (const PageTransfer& page : plan.pages) {
    const PathKey key = is_load ? host_keys_[page.host_page.value] : device_keys_[page.device_page.value];
    if (key == 0) {  // it has left the tree since
      last = UINT32_MAX;
      continue;
    }
    const std::uint32_t position = pages_.at(key).position;
    if (is_load && last != UINT32_MAX && position != last + 1) throw SimFailure("a load's pages are out of order");
    last = position;
    if (tags_.try_emplace(key, page.name_tag).first->second != page.name_tag) {
      throw SimFailure("a path has two name tags");
    }
    if (tagged_.try_emplace(page.name_tag, key).first->second != key) throw SimFailure("two paths have one name tag");
  }
}

// Requests

SimPaths::Found SimPaths::find(const Request& request) const {
  Found found;
  if (request.is_retired || !request.options->use_cache) return found;
  const std::size_t tokens_max =
      std::min<std::size_t>(request.tokens.size(), request.options->match_tokens_max.value_or(UINT32_MAX));
  for (const PathKey key : keys_of(request.space, request.tokens.first(tokens_max))) {
    const std::optional<Tier> tier = tier_of(key);
    if (!tier) break;
    if (*tier == Tier::Host) {
      ++found.host_pages;
    } else if (found.host_pages > 0) {
      throw SimFailure("a device page hangs below a host page");
    } else {
      ++found.device_pages;
    }
  }
  return found;
}

SimPaths::Starts SimPaths::shared_starts(PathKey parent, std::uint32_t position, std::span<const TokenId> rest) const {
  Starts starts;
  std::vector<PathKey> ends(run_ends_.size());
  const Status visited = cache_.visit_runs([&](const RunView& run) {
    if (run.parent.is_none()) {
      ends[run.run.value] = root_key(run.key_space);
      return;
    }
    PathKey key = ends[run.parent.value];
    for (std::uint32_t i = 0; i < run.pages.size(); ++i) {
      const auto page = run.tokens.subspan(std::size_t{i} * setup_.page_tokens, setup_.page_tokens);
      if (key == parent && run.first_page + i == position) {
        ++starts.page_count;
        std::uint32_t same = 0;
        while (same < page.size() && same < rest.size() && page[same] == rest[same]) ++same;
        if (run.tier == Tier::Device) starts.tokens.push_back(same);
      }
      key = next_key(key, page);
    }
    ends[run.run.value] = key;
  });
  if (!visited) throw SimFailure(visited.error().message);
  return starts;
}

std::vector<Miss> SimPaths::why(const Request& request, std::uint32_t found, TimeNs now, std::uint64_t losses) const {
  const SequenceOptions& options = *request.options;
  const std::uint32_t page_tokens = setup_.page_tokens;
  const bool may_match = options.use_cache && !request.is_retired;
  std::vector<Miss> any;
  const auto add = [&](MissReason reason) { any.push_back({.reason = reason}); };
  const std::vector<PathKey> keys = keys_of(request.space, request.tokens);

  // A part of a page that goes on where the match ends: some are looked at, the best of them counts.
  const std::uint32_t least = setup_.partial_reuse_min_tokens.value_or(std::max(1U, (page_tokens + 1) / 2));
  bool may_be_part = false;
  bool must_be_part = false;
  const std::size_t asked =
      may_match ? std::min<std::size_t>(request.tokens.size(), options.match_tokens_max.value_or(UINT32_MAX)) : 0;
  if (asked > std::size_t{found} * page_tokens) {
    const PathKey parent = found == 0 ? root_key(request.space) : keys[found - 1];
    const Starts starts =
        shared_starts(parent, found, request.tokens.first(asked).subspan(std::size_t{found} * page_tokens));
    may_be_part = std::ranges::any_of(starts.tokens, [&](std::uint32_t same) { return same > 0 && same < least; });
    must_be_part = may_be_part && starts.page_count == 1;  // of several, not all are looked at
  }

  if (found >= request.tokens.size() / page_tokens) {
    add(MissReason::None);
    if (may_be_part) add(MissReason::PartialPage);
    return any;
  }
  const std::uint32_t tokens_max = options.use_cache ? options.match_tokens_max.value_or(UINT32_MAX) : 0;
  if (found >= tokens_max / page_tokens) {
    add(MissReason::NotAsked);
    return any;
  }
  const auto loss = losses_.find(keys[found]);
  const std::uint64_t capacity = lost_capacity();
  for (const TimeNs time : unseen_times_) {
    any.push_back({MissReason::Evicted, Tier::Host, now - time});
    any.push_back({MissReason::Evicted, Tier::Device, now - time});  // it had gone on to the device
  }
  if (has_unseen_bad_) add(MissReason::LoadFailed);
  if (capacity > 0 && loss != losses_.end()) {
    const Loss& lost = loss->second;
    const bool may_be_known = lost_count_ - lost.before_most <= capacity;
    const bool must_be_known = lost_count_ + losses - lost.before_least <= capacity;
    if (may_be_known) {
      if (lost.may_be_bad) add(MissReason::LoadFailed);
      if (lost.may_be_good) {
        if (lost.may_be_device) any.push_back({MissReason::Evicted, Tier::Device, now - lost.time});
        if (lost.may_be_host) any.push_back({MissReason::Evicted, Tier::Host, now - lost.time});
      }
    }
    if (must_be_known) return any;
  }
  if (may_be_part) add(MissReason::PartialPage);
  if (must_be_part && losses == 0) return any;
  if (found == 0) {
    bool differs = false;
    const Status visited = cache_.visit_runs([&](const RunView& run) {
      if (run.first_page > 0 || run.pages.empty() || run.key_space == request.space) return;
      if (retired_.contains(run.key_space)) return;
      differs = differs || std::ranges::equal(run.tokens.first(page_tokens), request.tokens.first(page_tokens));
    });
    if (!visited) throw SimFailure(visited.error().message);
    if (differs) add(MissReason::KeySpaceDiffers);
    if (differs && losses == 0) return any;
  }
  if (capacity > 0 && lost_count_ <= capacity) add(MissReason::NeverSeen);
  if (capacity == 0 || lost_count_ + losses > capacity) add(MissReason::Unknown);
  return any;
}

}  // namespace quire::testing
