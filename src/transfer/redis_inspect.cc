// SPDX-License-Identifier: Apache-2.0
#include "quire/redis_inspect.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "transfer/extent_value.h"
#include "wire/extent.h"

namespace quire {

namespace {

constexpr std::uint64_t kBatchBytes = std::uint64_t{8} << 20U;  // of values that are read at once
constexpr std::uint64_t kValueBytesMax = std::uint64_t{1} << 30U;
constexpr TimeNs kBatchTimeoutNs = 30'000'000'000;
constexpr int kPollMs = 100;

class Inspection {
 public:
  Inspection(const RedisInspectOptions& options, RemoteStore* store) : options_(options), store_(store) {}

  /// False: nothing more is wanted.
  bool add(const RedisScanPage& page) {
    std::vector<const RedisScanPage::Key*> keys;
    for (const RedisScanPage::Key& key : page.keys) {
      const auto parts = parse_extent_key(key.key, options_.key_prefix);
      if (!parts) {
        add_foreign(key.key, "no cache writes such a key");
      } else if (count(*parts, key.value_bytes); key.value_bytes > kValueBytesMax) {
        add_fault(key.key, "it is larger than any extent");
      } else {
        keys.push_back(&key);
      }
    }
    for (const std::string& key : page.foreign_keys) add_foreign(key, "it is no string");
    if (options_.verify) {
      for (std::span<const RedisScanPage::Key* const> left = keys; !left.empty() && is_wanted();) left = check(left);
      if (options_.repair && is_wanted()) drop_bad();
    }
    bad_keys_.clear();
    return is_wanted();
  }

  RedisInspectReport take_report(const RedisScanReport& scan) {
    report_.node_count = scan.node_count;
    report_.is_complete = scan.is_complete && is_wanted_;
    for (auto& [key, part] : parts_) report_.parts.push_back(std::move(part));
    std::ranges::sort(report_.parts, [](const RedisPart& a, const RedisPart& b) {
      return std::tie(b.bytes, a.key_space, a.layout) < std::tie(a.bytes, b.key_space, b.layout);
    });
    if (others_.value_count > 0) report_.parts.push_back(others_);
    return std::move(report_);
  }

  [[nodiscard]] const Status& status() const { return status_; }

 private:
  bool is_wanted() {
    const RedisInspectProgress progress{
        .value_count = report_.value_count, .read_bytes = read_bytes_, .fault_count = report_.fault_count};
    is_wanted_ = is_wanted_ && status_ && (!options_.on_progress || options_.on_progress(progress));
    return is_wanted_;
  }

  void count(const ExtentKeyText& key, std::uint64_t bytes) {
    ++report_.value_count;
    report_.page_count += key.page_count;
    report_.bytes += bytes;
    const auto id = std::pair(std::string(key.key_space), key.layout);
    auto part = parts_.find(id);
    if (part == parts_.end() && parts_.size() + 1 < RedisInspectReport::kPartsMax) {
      part = parts_.try_emplace(id, RedisPart{.key_space = id.first, .layout = key.layout}).first;
    }
    RedisPart& sum = part == parts_.end() ? others_ : part->second;
    ++sum.value_count;
    sum.page_count += key.page_count;
    sum.bytes += bytes;
  }

  void add_fault(const std::string& key, std::string why) {
    ++report_.fault_count;
    bad_keys_.push_back({.key = key, .index = report_.faults.size()});
    if (report_.faults.size() < RedisInspectReport::kFaultsMax) {
      report_.faults.push_back({.key = key, .why = std::move(why)});
    }
  }

  void add_foreign(const std::string& key, const char* why) {
    ++report_.foreign_count;
    add_fault(key, why);
  }

  /// Reads as many of the values as may be read at once, and gives the others.
  std::span<const RedisScanPage::Key* const> check(std::span<const RedisScanPage::Key* const> keys) {
    std::uint64_t bytes = 0;
    std::size_t count = 0;
    while (count < keys.size() && (count == 0 || bytes + keys[count]->value_bytes <= kBatchBytes)) {
      bytes += keys[count++]->value_bytes;
    }
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    std::vector<std::span<std::byte>> targets(count);
    std::vector<RemoteObject> objects(count);
    std::span<std::byte> free = buffer_;
    for (std::size_t i = 0; i < count; ++i) {
      targets[i] = free.first(keys[i]->value_bytes);
      free = free.subspan(keys[i]->value_bytes);
      objects[i] = {.key = keys[i]->key, .target = std::span(targets).subspan(i, 1)};
    }
    if (!carry_out(RemoteOperation::Get, objects)) return {};
    for (std::size_t i = 0; i < count; ++i) judge(*keys[i], objects[i].outcome, targets[i]);
    return keys.subspan(count);
  }

  void judge(const RedisScanPage::Key& key, RemoteOutcome outcome, std::span<const std::byte> value) {
    switch (outcome) {
      case RemoteOutcome::Ok: {
        ++report_.checked_count;
        read_bytes_ += value.size();
        const auto parts = parse_extent_key(key.key, options_.key_prefix);
        std::string why = extent_fault(*parts, value);
        if (!why.empty()) add_fault(key.key, std::move(why));
        return;
      }
      case RemoteOutcome::Absent:
      case RemoteOutcome::Corrupt:  // another one was written since its length was asked for
        ++report_.gone_count;
        return;
      case RemoteOutcome::NotTried:
      case RemoteOutcome::Late:
      case RemoteOutcome::Failed:
        status_ = fail(ErrorCode::Unavailable, "a value could not be read: " + store_->status().last_error);
        return;
    }
  }

  void drop_bad() {
    if (bad_keys_.empty()) return;
    std::vector<RemoteObject> objects(bad_keys_.size());
    for (std::size_t i = 0; i < objects.size(); ++i) objects[i].key = bad_keys_[i].key;
    if (!carry_out(RemoteOperation::Drop, objects)) return;
    for (std::size_t i = 0; i < objects.size(); ++i) {
      if (objects[i].outcome != RemoteOutcome::Ok) continue;
      ++report_.dropped_count;
      if (bad_keys_[i].index < report_.faults.size()) report_.faults[bad_keys_[i].index].is_dropped = true;
    }
  }

  /// False: the store has failed, or nobody wants more.
  bool carry_out(RemoteOperation operation, std::span<RemoteObject> objects) {
    const RemoteBatch batch{.id = ++batch_id_,
                            .operation = operation,
                            .priority = RemotePriority::Background,
                            .timeout_ns = kBatchTimeoutNs,
                            .objects = objects};
    if (!store_->try_submit(batch)) {
      status_ = fail(ErrorCode::Unavailable, "reading values: the store takes no more work");
      return false;
    }
    // The memory is the store's until it has answered, whoever has lost interest.
    std::array<RemoteAnswer, 1> answers;
    while (store_->poll(answers).empty()) {
      pollfd event{.fd = store_->event_fd(), .events = POLLIN, .revents = 0};
      ::poll(&event, 1, kPollMs);
      if (!is_wanted()) store_->cancel(batch.id);
    }
    return is_wanted();
  }

  struct BadKey {
    std::string key;
    std::size_t index = 0;  // among the faults, if it is listed
  };

  const RedisInspectOptions& options_;
  RemoteStore* store_;
  RedisInspectReport report_;
  std::map<std::pair<std::string, std::uint64_t>, RedisPart> parts_;
  RedisPart others_{.key_space = "others"};
  std::vector<BadKey> bad_keys_;  // of the page
  std::vector<std::byte> buffer_;
  std::uint64_t read_bytes_ = 0;
  std::uint64_t batch_id_ = 0;
  bool is_wanted_ = true;
  Status status_;
};

}  // namespace

Result<RedisInspectReport> inspect_redis_store(const RedisConfig& config, const RedisInspectOptions& options) {
  if (options.key_prefix.size() > kExtentPrefixBytesMax) {
    return fail(ErrorCode::InvalidArgument, "the prefix of keys is longer than any can be");
  }
  // Whoever only looks needs no right to write, and whoever looks at one tier none to look at others.
  RedisConfig own = config;
  own.key_prefix = options.key_prefix + ":";
  own.is_read_only = !(options.verify && options.repair);
  std::unique_ptr<RemoteStore> store;
  if (options.verify) {
    QUIRE_TRY_ASSIGN(store, open_redis_store(own));
  }
  Inspection inspection(options, store.get());
  std::array<char, kRemoteKeyBytesMax> room;
  const std::string prefix(write_key_space_prefix(options.key_prefix, PageName{}, room));
  QUIRE_TRY_ASSIGN(const RedisScanReport scan,
                   scan_redis_store(own, prefix, [&](const RedisScanPage& page) { return inspection.add(page); }));
  QUIRE_TRY(inspection.status());
  return inspection.take_report(scan);
}

}  // namespace quire
