// SPDX-License-Identifier: Apache-2.0
//
// Mutant: a rule of the library that a test switches off, to see that the simulation notices.
//
// immutable
#pragma once

#include <cstdint>

namespace quire {

enum class Mutant : std::uint8_t {
  None,
  // Pages that are used again too early.
  NoFence,          ///< while a transfer reads them
  NoAnchoredFence,  ///< the same, of windows and snapshots
  ShortFence,       ///< one step before the last that may use them
  // Names of pages on disk, which are computed late.
  LateAnchoredNames,  ///< what other groups write is handed over with everything else
  NoHostCopies,       ///< at times a copy on the host does not get the name of what it is a copy of
  NoDeviceCopies,     ///< the same on the device
  KeySpacesFirst,     ///< a key space has its index before its turn
  PlansAfterTheLog,   ///< a plan is answered when the whole log has been followed
  NamesWithoutKeys,   ///< extra keys are no part of a name
  // What is verified.
  TrustsChecksums,  ///< of a record on disk, as the next two
  TrustsNames,
  TrustsLayouts,
  TrustsHostPages,  ///< whose bytes are written to disk
  AnyGeneration,    ///< completions of transfers that are over count
  // Several ranks on disk.
  OneRankArrives,     ///< of ranks that hold the same bytes, one gets those from disk
  FirstShardAnswers,  ///< a plan is over when one shard has answered
  // What is on disk in the next life.
  FlushWithoutSync,
  ForgetsDrops,
  // What is found.
  ShortWindows,          ///< a window may lack its first page
  AnchoredPagesStay,     ///< pages of other groups, when the page goes that they hang on
  UnorderedLoads,        ///< what arrives is used, whether what comes before it is there or not
  KeysWithoutLookahead,  ///< a page is found by its own tokens, though its rows depend on those behind them
  StaleChunks,           ///< a page that has left the device is still found by its own tokens
  // Steps whose pages are still arriving.
  TrustsLoads,        ///< a step counts, whether its loads have brought good pages or not
  OtherPathsOfLoads,  ///< rows take a load's pages from its beginning, wherever its path begins in theirs
  FinishBeforeLoads,  ///< a step may finish before its loads have ended
};

}  // namespace quire
