// SPDX-License-Identifier: Apache-2.0
#include "quire/config.h"

#include "layout/text.h"

namespace quire {

namespace {

Status require_positive(std::uint64_t value, const char* name, const char* why) {
  if (value > 0) return {};
  return fail(ErrorCode::InvalidArgument, std::string(name) + " is 0: " + why);
}

Status require_at_most(std::uint64_t value, std::uint64_t limit, const char* name) {
  if (value <= limit) return {};
  return fail(ErrorCode::InvalidArgument,
              std::string(name) + " is " + with_separators(value) + "; the most is " + with_separators(limit));
}

}  // namespace

Status CacheConfig::validate() const {
  QUIRE_TRY(require_positive(page.page_tokens, "page_tokens", "a page holds at least one token; 16 is usual"));
  if (device.page_count == 0 && device.capacity_bytes == 0) {
    return fail(ErrorCode::InvalidArgument,
                "the device pool has no size: set device.page_count or device.capacity_bytes");
  }
  if (device.page_count != 0 && device.capacity_bytes != 0) {
    return fail(ErrorCode::InvalidArgument,
                "device.page_count and device.capacity_bytes are both set: give one of them");
  }
  QUIRE_TRY(require_positive(sequence_count_max, "sequence_count_max", "no request could begin"));
  QUIRE_TRY(require_positive(step_tokens_max, "step_tokens_max", "no step could compute anything"));
  QUIRE_TRY(require_positive(steps_in_flight_max, "steps_in_flight_max", "no step could be planned"));
  QUIRE_TRY(
      require_positive(plan.cascade_levels_max, "plan.cascade_levels_max", "every plan has one level; 1 is usual"));
  QUIRE_TRY(require_positive(key_space_count_max, "key_space_count_max", "every request belongs to one"));
  // These are set aside as a whole when the cache opens, so a slip of the hand would take gigabytes.
  QUIRE_TRY(require_at_most(sequence_count_max, 1U << 20U, "sequence_count_max"));
  QUIRE_TRY(require_at_most(step_tokens_max, 1U << 24U, "step_tokens_max"));
  QUIRE_TRY(require_at_most(key_space_count_max, 1U << 20U, "key_space_count_max"));
  QUIRE_TRY(require_at_most(steps_in_flight_max, 64, "steps_in_flight_max"));
  QUIRE_TRY(require_at_most(tree_tokens_max, 1U << 16U, "tree_tokens_max"));
  QUIRE_TRY(require_at_most(plan.cascade_levels_max, 64, "plan.cascade_levels_max"));
  QUIRE_TRY(require_at_most(keep_count_max, 1U << 20U, "keep_count_max"));
  QUIRE_TRY(require_at_most(residency_record_count_max, 1U << 20U, "residency_record_count_max"));
  if (layout.groups().size() != 1) {
    return fail(ErrorCode::Unsupported, "layout '" + layout.name() + "' has " + std::to_string(layout.groups().size()) +
                                            " cache groups; a cache holds one group so far");
  }
  if (plan.page_tables == PageTables::Block && plan.cascade_levels_max > 1) {
    return fail(ErrorCode::InvalidArgument, "plan.cascade_levels_max is " + std::to_string(plan.cascade_levels_max) +
                                                ", but block tables have one level: use Rows or Csr, or 1");
  }
  if (saved_page_count > 0 && (device.memory != DeviceMemory::Host || device.pool != DevicePool::Owned)) {
    return fail(ErrorCode::InvalidArgument, "saved_page_count is " + with_separators(saved_page_count) +
                                                ", but quire saves only pages of its own memory: use "
                                                "DeviceMemory::Host, or 0");
  }
  QUIRE_TRY(require_at_most(plan.layer_windows.size(), 8, "the number of plan.layer_windows"));
  for (const std::uint32_t window_tokens : plan.layer_windows) {
    QUIRE_TRY(require_positive(window_tokens, "a window of plan.layer_windows", "its layers would see nothing"));
  }
  if (plan.page_tables == PageTables::Block && !plan.layer_windows.empty()) {
    return fail(ErrorCode::Unsupported,
                "plan.layer_windows needs page_tables Rows or Csr: block tables have no trimmed lists");
  }
  if (partial_reuse_min_tokens == 0U) {
    return fail(ErrorCode::InvalidArgument,
                "partial_reuse_min_tokens is 0: copying nothing saves nothing; use 1 to copy whatever matches, or "
                "page_tokens to never copy");
  }
  const bool is_adopted = device.memory == DeviceMemory::Adopted;
  if (is_adopted && device.adopted_memory == nullptr) {
    return fail(ErrorCode::InvalidArgument, "device.memory is Adopted, but device.adopted_memory is null");
  }
  if (!is_adopted && device.adopted_memory != nullptr) {
    return fail(ErrorCode::InvalidArgument, "device.adopted_memory is set, but device.memory is not Adopted");
  }
  if (device.pool == DevicePool::External && is_adopted) {
    return fail(ErrorCode::InvalidArgument,
                "an external device pool's memory is the engine's own; adopted_memory is for an owned pool");
  }
  if (device.pool == DevicePool::External && device.page_count == 0) {
    return fail(ErrorCode::InvalidArgument,
                "an external device pool needs device.page_count: the engine's page ids lie below it");
  }
  if (!custom_policy) QUIRE_TRY(make_policy(policy));
  return {};
}

}  // namespace quire
