// SPDX-License-Identifier: Apache-2.0
#include "quire/config.h"

#include <algorithm>
#include <array>
#include <utility>

#include "layout/text.h"
#include "prefix/hit_rule.h"
#include "store/file_store.h"
#include "wire/extent.h"

namespace quire {

namespace {

// Tiers below the host compute and compare a name for each page: for smaller pages that would cost more than it saves.
constexpr std::uint32_t kLowerPageTokensMin = 16;

Status require_positive(std::uint64_t value, const char* name, const char* why) {
  if (value > 0) return {};
  return invalid(name, " is 0: ", why);
}

Status require_at_most(std::uint64_t value, std::uint64_t limit, const char* name) {
  if (value <= limit) return {};
  return invalid(name, " is ", value, "; the most is ", limit);
}

Status check_write_policy(WritePolicy policy, const char* name) {
  if (policy <= WritePolicy::Selective) return {};
  return invalid(name, " is ", plain(static_cast<int>(policy)), ": use WriteBack, WriteThrough or Selective");
}

Status check_host(const CacheConfig& config) {
  const HostConfig& host = config.host;
  if (host.page_count > 0 && host.capacity_bytes > 0) {
    return invalid("host.page_count and host.capacity_bytes are both set: give one of them");
  }
  if (config.device.pool == DevicePool::External) {
    return unsupported("a host tier needs an owned device pool: pages of an external one are the engine's to move");
  }
  if (!host.external_mover && config.device.memory == DeviceMemory::None) {
    return invalid(
        "host.external_mover is off, but device.memory is None: there are no bytes to move; set it, or use "
        "DeviceMemory::Host, Adopted or Accelerator");
  }
  if (const auto policy = make_policy(host.policy); !policy) return invalid("host.policy: ", policy.error().message);
  QUIRE_TRY(check_write_policy(host.write_policy, "host.write_policy"));
  QUIRE_TRY(require_positive(host.write_hits_min, "host.write_hits_min", "use WritePolicy::WriteThrough for that"));
  QUIRE_TRY(require_positive(host.layer_bands, "host.layer_bands", "a load has at least one band"));
  QUIRE_TRY(require_positive(host.rank_count, "host.rank_count", "nobody would report on a transfer"));
  QUIRE_TRY(require_at_most(host.rank_count, 64, "host.rank_count"));
  QUIRE_TRY(require_positive(host.transfer_count_max, "host.transfer_count_max", "nothing could be moved"));
  QUIRE_TRY(require_at_most(host.transfer_count_max, 1U << 16U, "host.transfer_count_max"));
  QUIRE_TRY(require_positive(host.transfer_pages_max, "host.transfer_pages_max", "nothing could be moved"));
  QUIRE_TRY(require_at_most(host.transfer_pages_max, 1U << 16U, "host.transfer_pages_max"));
  QUIRE_TRY(require_at_most(host.hold_count_max, 1U << 16U, "host.hold_count_max"));
  if (host.rank_count > 1 && !host.external_mover) {
    return invalid("host.rank_count is ", plain(host.rank_count),
                   ", but the cache's own mover moves one rank: set external_mover");
  }
  if (!host.rank_movers.empty() && !host.external_mover) {
    return invalid(
        "host.rank_movers is set, but host.external_mover is off: the cache moves pages itself; leave rank_movers "
        "out, or set external_mover");
  }
  if (!host.rank_movers.empty() && host.rank_movers.size() != host.rank_count) {
    return invalid("host.rank_movers has ", plain(host.rank_movers.size()), " movers; host.rank_count is ",
                   plain(host.rank_count), ": give one for each rank");
  }
  for (std::size_t i = 0; i < host.rank_movers.size(); ++i) {
    if (host.rank_movers[i] == nullptr) return invalid("host.rank_movers[", plain(i), "] is null");
  }
  if (host.layer_bands > config.layout.layer_count()) {
    return invalid("host.layer_bands is ", plain(host.layer_bands), "; the model has ",
                   plain(config.layout.layer_count()), " layers, and a band has one at least");
  }
  if (host.compute_ns_per_token < 0 || host.load_timeout_ns < 0) {
    return invalid("host.compute_ns_per_token and host.load_timeout_ns are times from 0 on");
  }
  return {};
}

// What tiers below the host have in common. `tier` is how the fields of the configuration begin: "disk".
template <typename TierConfig>
Status check_lower(const CacheConfig& config, const TierConfig& lower, const std::string& tier,
                   const std::string& is_set) {
  if (!config.host.is_on()) {
    return invalid(is_set,
                   " is set, but there is no host tier, through which all pages go: set host.page_count or "
                   "host.capacity_bytes");
  }
  if (config.page.page_tokens < kLowerPageTokensMin) {
    return invalid("page_tokens is ", plain(config.page.page_tokens), ": a ", tier, " tier needs pages of ",
                   plain(kLowerPageTokensMin), " tokens or more");
  }
  if (config.host.rank_count > 1 && config.page.rank_count != config.host.rank_count) {
    return invalid("host.rank_count is ", plain(config.host.rank_count), ", but page.rank_count is ",
                   plain(config.page.rank_count), ": by the latter a ", tier,
                   " tier knows which heads the pages of each rank hold; set both to the same");
  }
  if (lower.rank_index && config.host.rank_count > 1) {
    return invalid(tier, ".rank_index is ", plain(*lower.rank_index),
                   ", but the cache drives all of host.rank_count = ", plain(config.host.rank_count),
                   " ranks: leave it out");
  }
  if (lower.rank_index && *lower.rank_index >= config.page.rank_count) {
    return invalid(tier, ".rank_index is ", plain(*lower.rank_index), ", but page.rank_count is ",
                   plain(config.page.rank_count), ": ranks count from 0");
  }
  QUIRE_TRY(check_write_policy(lower.write_policy, (tier + ".write_policy").c_str()));
  if (lower.access > TierAccess::WriteOnly) {
    return invalid(tier, ".access is ", plain(static_cast<int>(lower.access)),
                   ": use ReadAndWrite, ReadOnly or WriteOnly");
  }
  return require_positive(lower.write_hits_min, (tier + ".write_hits_min").c_str(),
                          "use WritePolicy::WriteThrough for that");
}

Status check_disk(const CacheConfig& config) {
  const DiskConfig& disk = config.disk;
  QUIRE_TRY(check_lower(config, disk, "disk", "disk.directories"));
  if (disk.access != TierAccess::ReadOnly) {
    QUIRE_TRY(require_positive(disk.capacity_bytes, "disk.capacity_bytes", "say how much of the disks may be used"));
  }
  return {};
}

// One entry for each group of the layout, or none.
Status check_group_count(const CacheConfig& config, std::size_t count, const std::string& field) {
  const std::size_t group_count = config.layout.groups().size();
  if (count == 0 || count == group_count) return {};
  return invalid(field, " has ", plain(count), " entries; layout '", config.layout.name(), "' has ", plain(group_count),
                 " groups: give one for each");
}

Status check_remote(const CacheConfig& config) {
  const RemoteConfig& remote = config.remote;
  if (!remote.urls.empty() && remote.store != nullptr) {
    return invalid("remote.urls and remote.store are both set: give the servers, or a store of your own");
  }
  const bool has_urls = !remote.urls.empty();
  QUIRE_TRY(check_lower(config, remote, "remote", has_urls ? "remote.urls" : "remote.store"));
  const std::array of_servers = {std::pair{"user", &remote.user},
                                 std::pair{"password", &remote.password},
                                 std::pair{"password_file", &remote.password_file},
                                 std::pair{"ca_file", &remote.ca_file},
                                 std::pair{"certificate_file", &remote.certificate_file},
                                 std::pair{"key_file", &remote.key_file},
                                 std::pair{"server_name", &remote.server_name}};
  for (const auto& [name, value] : of_servers) {
    if (has_urls || value->empty()) continue;
    return invalid("remote.", name, " is set, but it is for servers that remote.urls names: leave it out");
  }
  if (!has_urls && remote.max_age_s > 0) {
    return invalid("remote.max_age_s is set, but how long remote.store keeps values is its own business: leave it out");
  }
  if (!remote.password.empty() && !remote.password_file.empty()) {
    return invalid("remote.password and remote.password_file are both set: give one of them");
  }
  if (remote.certificate_file.empty() != remote.key_file.empty()) {
    return invalid("remote.certificate_file and remote.key_file belong together: give both or none");
  }
  const auto is_bad = [](char c) { return c <= ' ' || c > '~'; };
  const auto bad = std::ranges::find_if(remote.key_prefix, is_bad);
  if (bad != remote.key_prefix.end()) {
    return invalid("remote.key_prefix has a space, or a character that cannot be printed, at position ",
                   plain(bad - remote.key_prefix.begin()), ": keys have none");
  }
  if (remote.key_prefix.find_first_of("{}") != std::string::npos) {
    return invalid("remote.key_prefix is '", remote.key_prefix,
                   "': a cluster places keys by what stands between braces, so that one node would have all of them; "
                   "leave { and } out");
  }
  if (remote.key_prefix.empty() || remote.key_prefix.size() > kExtentPrefixBytesMax) {
    return invalid("remote.key_prefix has ", plain(remote.key_prefix.size()), " characters: use 1 to ",
                   plain(kExtentPrefixBytesMax));
  }
  QUIRE_TRY(
      require_positive(remote.extent_bytes, "remote.extent_bytes", "a value has one page at least; 2 MiB is usual"));
  const std::array times = {std::pair{"find_timeout_ns", remote.find_timeout_ns},
                            std::pair{"load_timeout_ns", remote.load_timeout_ns},
                            std::pair{"store_timeout_ns", remote.store_timeout_ns}};
  for (const auto& [name, time] : times) {
    if (time > 0) continue;
    return invalid("remote.", name, " is ", plain(time), ": a machine that hangs has to be given up some time");
  }
  return {};
}

// What a tier below the host keeps of single groups. `tier` is how the fields of the configuration begin.
Status check_lower_groups(const CacheConfig& config, std::span<const GroupRetention> retentions,
                          const std::string& tier) {
  const std::span<const CacheGroup> groups = config.layout.groups();
  QUIRE_TRY(check_group_count(config, retentions.size(), tier + ".group_retention"));
  for (std::size_t i = 0; i < retentions.size(); ++i) {
    const CacheGroup& group = groups[i];
    const bool is_anchored = group.kind == GroupKind::Window || group.kind == GroupKind::Snapshot;
    const GroupRetention& retention = retentions[i];
    const std::string field = tier + ".group_retention[" + std::to_string(i) + "]";
    if (!is_anchored && retention != GroupRetention{}) {
      return invalid(field, " is not Dense, but group '", group.name,
                     "' is history, which every request needs from the first token on");
    }
    if (retention.rule == RetentionRule::Last || retention.rule > RetentionRule::None) {
      return invalid(field, ": use Dense, Every or None");
    }
    if ((retention.rule == RetentionRule::Every) != (retention.interval_tokens > 0) ||
        retention.interval_tokens % config.page.page_tokens != 0) {
      return invalid(field, " has interval_tokens ", plain(retention.interval_tokens),
                     ": RetentionRule::Every needs a multiple of page_tokens = ", plain(config.page.page_tokens),
                     ", and other rules none");
    }
    const bool is_needed = has_pages(group) && group.replay.tokens == 0;
    if (retention.rule == RetentionRule::None && is_needed) {
      return invalid(field, " is None, but group '", group.name,
                     "' declares no replay: after a restart nothing would ever be found");
    }
  }
  return {};
}

// What DiskConfig says about single groups.
Status check_disk_groups(const CacheConfig& config) {
  QUIRE_TRY(check_group_count(config, config.disk.group_retention.size(), "disk.group_retention"));
  QUIRE_TRY(check_group_count(config, config.disk.group_capacity_bytes.size(), "disk.group_capacity_bytes"));
  for (const CacheGroup& group : config.layout.groups()) {
    const bool is_anchored = group.kind == GroupKind::Window || group.kind == GroupKind::Snapshot;
    if (is_anchored && (group.name.find('/') != std::string::npos || group.name.size() > 200)) {
      return invalid("group '", group.name,
                     "' cannot have a directory of its name: leave out '/', and all beyond 200 characters");
    }
  }
  return check_lower_groups(config, config.disk.group_retention, "disk");
}

// What depends on the groups of the layout; the checks after is_plain refuse what only one full group can have so far.
Status check_groups(const CacheConfig& config) {
  const std::span<const CacheGroup> groups = config.layout.groups();
  const std::string where = "layout '" + config.layout.name() + "'";
  const bool is_plain = groups.size() == 1 && groups.front().kind == GroupKind::Full;
  for (const CacheGroup& group : groups) {
    if (group.lookahead_tokens == 0) continue;
    if (config.device.pool == DevicePool::External) {
      return unsupported(where, ": group '", group.name, "' has lookahead_tokens ", plain(group.lookahead_tokens),
                         ", which needs an owned device pool");
    }
  }
  const auto is_anchored = [](const CacheGroup& group) {
    return group.kind == GroupKind::Window || group.kind == GroupKind::Snapshot;
  };
  if (std::ranges::count_if(groups, is_anchored) > static_cast<std::ptrdiff_t>(kHitGroupsMax)) {
    return unsupported(where, " has more than ", plain(kHitGroupsMax),
                       " window and snapshot groups: put layers of one kind into one group");
  }
  for (const CacheGroup& group : groups) {
    if (group.sink_tokens == 0 || group.replay.tokens == 0) continue;
    return unsupported(
        where, ": group '", group.name,
        "' has a sink, which a replay of later tokens does not compute again: leave the sink or the replay out");
  }
  for (const CacheGroup& group : groups) {
    if (group.kind != GroupKind::Compressed || group.replay.tokens == 0) continue;
    return unsupported(where, ": group '", group.name,
                       "' keeps its entries for ever and is never rebuilt: declare the replay for the group that keeps "
                       "the rows which are not part of an entry yet");
  }
  const std::vector<std::uint32_t>& counts = config.device.group_page_counts;
  if (!counts.empty() && counts.size() != groups.size()) {
    return invalid("device.group_page_counts has ", plain(counts.size()), " numbers; ", where, " has ",
                   plain(groups.size()), " groups: give one for each");
  }
  if (!counts.empty() && config.device.capacity_bytes != 0) {
    return invalid("device.group_page_counts and device.capacity_bytes are both set: give page_count with the first");
  }
  const std::vector<std::byte*>& adopted = config.device.adopted_group_memory;
  const auto& tensors = config.device.adopted_tensors;
  const bool is_adopted = config.device.memory == DeviceMemory::Adopted && (!is_plain || !adopted.empty());
  if (!tensors.empty()) {
    if (tensors.size() != groups.size()) {
      return invalid("device.adopted_tensors has ", plain(tensors.size()), " lists; ", where, " has ",
                     plain(groups.size()), " groups: give one for each, empty where a group has no pages");
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (has_pages(groups[i]) != tensors[i].empty()) continue;
      return invalid("device.adopted_tensors[", plain(i), "] ",
                     tensors[i].empty() ? "is empty, but group '" : "has tensors, but group '", groups[i].name,
                     tensors[i].empty() ? "' has pages" : "' has no pages");
    }
  } else if (is_adopted) {
    if (adopted.size() != groups.size()) {
      return invalid("device.adopted_group_memory has ", plain(adopted.size()), " pointers; ", where, " has ",
                     plain(groups.size()), " groups: give one for each, null where a group has no pages");
    }
    for (std::size_t i = 0; i < groups.size(); ++i) {
      if (!has_pages(groups[i]) || adopted[i] != nullptr) continue;
      return invalid("device.adopted_group_memory[", plain(i), "] is null, but group '", groups[i].name, "' has pages");
    }
  }
  const bool needs_state_memory = (!tensors.empty() || is_adopted) && std::ranges::any_of(groups, has_slot);
  if (needs_state_memory && config.device.adopted_state_memory == nullptr) {
    return invalid("device.adopted_state_memory is null, but ", where, " has state");
  }
  const auto has_ids = [&](const CacheGroup& group) { return is_anchored(group) && has_pages(group); };
  if (config.device.pool == DevicePool::External && counts.empty() && std::ranges::any_of(groups, has_ids)) {
    return invalid(where,
                   ": an external device pool needs device.group_page_counts: the engine's page ids of each group lie "
                   "below its number");
  }
  if (is_plain) return {};
  if (config.disk.is_on()) QUIRE_TRY(check_disk_groups(config));
  if (config.remote.is_on()) QUIRE_TRY(check_lower_groups(config, config.remote.group_retention, "remote"));
  if (config.host.capacity_bytes > 0 && !config.host.group_page_counts.empty()) {
    return invalid("host.group_page_counts and host.capacity_bytes are both set: give page_count with the first");
  }
  const std::size_t host_counts = config.host.group_page_counts.size();
  if (host_counts != 0 && host_counts != groups.size()) {
    return invalid("host.group_page_counts has ", plain(host_counts), " numbers; ", where, " has ",
                   plain(groups.size()), " groups: give one for each");
  }
  const bool has_full = std::ranges::any_of(groups, [](const auto& each) { return each.kind == GroupKind::Full; });
  if (!config.plan.layer_windows.empty() && !has_full) {
    return unsupported(
        where,
        " has no full group, whose pages plan.layer_windows would list: declare layers with windows as window groups");
  }
  return {};
}

Status check_chunks(const CacheConfig& config) {
  const ChunkConfig& chunks = config.chunks;
  QUIRE_TRY(require_at_most(chunks.page_count_max, 1U << 30U, "chunks.page_count_max"));
  if (!(chunks.recompute_ratio >= 0 && chunks.recompute_ratio <= 1)) {  // so that NaN is refused too
    return invalid("chunks.recompute_ratio is ", std::to_string(chunks.recompute_ratio), ": use a number from 0 to 1");
  }
  QUIRE_TRY(require_positive(chunks.pin_count_max, "chunks.pin_count_max", "no match could be used"));
  QUIRE_TRY(require_at_most(chunks.pin_count_max, 1U << 20U, "chunks.pin_count_max"));
  for (const CacheGroup& group : config.layout.groups()) {
    if (group.kind != GroupKind::Full && group.kind != GroupKind::Compressed) {
      return unsupported("chunks: group '", group.name,
                         "' does not keep everything: its windows or states cannot be put together from pages that "
                         "were computed elsewhere; set chunks.page_count_max to 0");
    }
    if (group.lookahead_tokens > 0) {
      return unsupported("chunks: rows of group '", group.name, "' depend on ", plain(group.lookahead_tokens),
                         " tokens behind them, so that a page is not known by its own tokens; set "
                         "chunks.page_count_max to 0");
    }
  }
  return {};
}

}  // namespace

Status CacheConfig::validate() const {
  QUIRE_TRY(require_positive(page.page_tokens, "page_tokens", "a page holds at least one token; 16 is usual"));
  if (device.page_count == 0 && device.capacity_bytes == 0) {
    return invalid("the device pool has no size: set device.page_count or device.capacity_bytes");
  }
  if (device.page_count != 0 && device.capacity_bytes != 0) {
    return invalid("device.page_count and device.capacity_bytes are both set: give one of them");
  }
  QUIRE_TRY(require_positive(sequence_count_max, "sequence_count_max", "no request could begin"));
  QUIRE_TRY(require_positive(step_tokens_max, "step_tokens_max", "no step could compute anything"));
  QUIRE_TRY(require_positive(steps_in_flight_max, "steps_in_flight_max", "no step could be planned"));
  QUIRE_TRY(
      require_positive(plan.cascade_levels_max, "plan.cascade_levels_max", "every plan has one level; 1 is usual"));
  QUIRE_TRY(require_positive(key_space_count_max, "key_space_count_max", "every request belongs to one"));
  // open() reserves room for all of these, so a slip of the hand would take gigabytes.
  QUIRE_TRY(require_at_most(sequence_count_max, 1U << 20U, "sequence_count_max"));
  QUIRE_TRY(require_at_most(step_tokens_max, 1U << 24U, "step_tokens_max"));
  QUIRE_TRY(require_at_most(key_space_count_max, 1U << 20U, "key_space_count_max"));
  QUIRE_TRY(require_at_most(steps_in_flight_max, 64, "steps_in_flight_max"));
  for (std::size_t i = 0; i < expected_requests.size(); ++i) {
    const ExpectedRequest& expected = expected_requests[i];
    const std::string name = "expected_requests[" + plain(i) + "]";
    if (expected.context_tokens == 0) return invalid(name, ".context_tokens is 0: a request has a token at least");
    if (expected.weight == 0) return invalid(name, ".weight is 0: leave it out");
    if (context_tokens_max != 0 && expected.context_tokens > context_tokens_max) {
      return invalid(name, ".context_tokens is ", expected.context_tokens, ", but no request has more than ",
                     context_tokens_max, " tokens: lower it, or raise context_tokens_max");
    }
  }
  QUIRE_TRY(require_at_most(tree_tokens_max, 1U << 16U, "tree_tokens_max"));
  QUIRE_TRY(require_at_most(plan.cascade_levels_max, 64, "plan.cascade_levels_max"));
  QUIRE_TRY(require_at_most(keep_count_max, 1U << 20U, "keep_count_max"));
  QUIRE_TRY(require_at_most(residency_record_count_max, 1U << 20U, "residency_record_count_max"));
  QUIRE_TRY(check_groups(*this));
  if (plan.page_tables == PageTables::Block && plan.cascade_levels_max > 1) {
    return invalid("plan.cascade_levels_max is ", plain(plan.cascade_levels_max),
                   ", but block tables have one level: use Rows or Csr, or 1");
  }
  QUIRE_TRY(require_at_most(plan.layer_windows.size(), 8, "the number of plan.layer_windows"));
  for (const std::uint32_t window_tokens : plan.layer_windows) {
    QUIRE_TRY(require_positive(window_tokens, "a window of plan.layer_windows", "its layers would see nothing"));
  }
  if (plan.page_tables == PageTables::Block && !plan.layer_windows.empty()) {
    return unsupported("plan.layer_windows needs page_tables Rows or Csr: block tables have no trimmed lists");
  }
  if (partial_reuse_min_tokens == 0U) {
    return invalid(
        "partial_reuse_min_tokens is 0: copying nothing saves nothing; use 1 to copy whatever matches, or page_tokens "
        "to never copy");
  }
  const bool is_adopted = device.memory == DeviceMemory::Adopted;
  if (device.memory == DeviceMemory::Accelerator && device.accelerator == nullptr) {
    return invalid("device.memory is Accelerator, but device.accelerator is null: open_cuda_device() makes one");
  }
  if (device.memory == DeviceMemory::Host && device.accelerator != nullptr) {
    return invalid(
        "device.accelerator is set, but device.memory is Host: use Accelerator, or Adopted for tensors that lie on it");
  }
  if (!device.adopted_tensors.empty()) {
    if (!is_adopted || device.accelerator == nullptr) {
      return invalid(
          "device.adopted_tensors needs device.memory Adopted, and device.accelerator, which moves their pages");
    }
    if (device.adopted_memory != nullptr || !device.adopted_group_memory.empty()) {
      return invalid("device.adopted_tensors is set, and adopted_memory or adopted_group_memory too: give either");
    }
  }
  if (is_adopted && device.adopted_memory == nullptr && device.adopted_group_memory.empty() &&
      device.adopted_tensors.empty()) {
    return invalid("device.memory is Adopted, but device.adopted_memory is null");
  }
  if (!is_adopted && device.adopted_memory != nullptr) {
    return invalid("device.adopted_memory is set, but device.memory is not Adopted");
  }
  if (device.pool == DevicePool::External && is_adopted) {
    return invalid("an external device pool's memory is the engine's own; adopted_memory is for an owned pool");
  }
  if (device.pool == DevicePool::External && device.page_count == 0) {
    return invalid("an external device pool needs device.page_count: the engine's page ids lie below it");
  }
  if (!custom_policy) QUIRE_TRY(make_policy(policy));
  if (host.is_on()) QUIRE_TRY(check_host(*this));
  if (disk.is_on()) QUIRE_TRY(check_disk(*this));
  if (remote.is_on()) QUIRE_TRY(check_remote(*this));
  if (chunks.is_on()) QUIRE_TRY(check_chunks(*this));
  return {};
}

std::uint64_t DiskConfig::capacity_bytes_min(std::uint64_t page_bytes) const {
  return std::max<std::size_t>(directories.size(), 1) * FileStoreConfig::directory_bytes_min(page_bytes);
}

}  // namespace quire
