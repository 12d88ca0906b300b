// SPDX-License-Identifier: Apache-2.0
//
// Host pages of a Mover count from 1, records of a SwapEngine from 0. error: (could not convert|no viable conversion)
#include <array>

#include "quire/swap.h"

quire::SwapOrder order_of(const std::array<quire::PageId, 2>& device_pages,
                          [[maybe_unused]] const std::array<quire::PageId, 2>& host_pages,
                          [[maybe_unused]] const std::array<quire::RecordId, 2>& records) {
#ifdef RIGHT
  return {.device_pages = device_pages, .records = records};
#else
  return {.device_pages = device_pages, .records = host_pages};
#endif
}
