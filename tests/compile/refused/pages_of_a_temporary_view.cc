// SPDX-License-Identifier: Apache-2.0
//
// A member of a temporary view would be gone before the loop; what the call gives is not.
// error: (SequenceView::\*|reference to non-static member function)
#include "quire/cache.h"

std::uint64_t sum(const quire::Cache& cache, const quire::Sequence& sequence) {
  std::uint64_t pages = 0;
#ifdef RIGHT
  for (const quire::PageId page : cache.view(sequence)->pages()) pages += page.value;
#else
  for (const quire::PageId page : cache.view(sequence)->pages) pages += page.value;
#endif
  return pages;
}
