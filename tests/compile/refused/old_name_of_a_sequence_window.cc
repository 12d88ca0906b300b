// SPDX-License-Identifier: Apache-2.0
//
// The window of a sequence counts its sink, that of a group does not: the two have names of their own.
// error: (no non-static data member named|does not refer to any field)
#include "quire/cache.h"

#ifdef RIGHT
quire::Window window{.visible_tokens = 8, .sink_tokens = 2};
#else
quire::Window window{.window_tokens = 8, .sink_tokens = 2};
#endif
