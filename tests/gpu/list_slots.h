// SPDX-License-Identifier: Apache-2.0
//
// The slots of all keys that the entries of a plan have, from its page lists or block tables: what an attention kernel
// does with them, without the attention. For plans of one level, without windows.
//
// thread-safe
#pragma once

#include <cstdint>

#include "quire/device.h"
#include "quire/result.h"

namespace quire::testing {

struct ListSlotsParams {
  std::uint32_t entries = 0;
  std::uint32_t keys_max = 0;  ///< of one entry
  std::uint32_t page_tokens = 0;
  const std::int32_t* seq_lens = nullptr;      ///< [entries]
  const std::int32_t* page_indptr = nullptr;   ///< of page_indices, or null for a block table
  const std::int32_t* page_indices = nullptr;  ///< … which this is then
  std::uint32_t columns = 0;                   ///< of a block table
  std::int64_t* slots = nullptr;               ///< [entries][keys_max], kNoSlot behind an entry's last key
};

[[nodiscard]] constexpr std::int64_t slot_of_key(const ListSlotsParams& params, std::uint32_t entry,
                                                 std::uint32_t key) {
  if (static_cast<std::int32_t>(key) >= params.seq_lens[entry]) return -1;
  const std::uint32_t first =
      params.page_indptr != nullptr ? static_cast<std::uint32_t>(params.page_indptr[entry]) : entry * params.columns;
  const std::int64_t page = params.page_indices[first + (key / params.page_tokens)];
  return (page * params.page_tokens) + (key % params.page_tokens);
}

[[nodiscard]] Status launch_list_slots(const ListSlotsParams& params, DeviceStream stream);
void list_slots_on_host(const ListSlotsParams& params);

}  // namespace quire::testing
