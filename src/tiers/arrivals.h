// SPDX-License-Identifier: Apache-2.0
//
// Arrivals: what admitted sequences wait for. Arrivals has pages that memory lacks looked for in lower tiers, and has
// pages on the host loaded: the history first, because windows and states hang on its pages, then what the hit rule
// asks for of each anchored group. A plain model has the history only. Then the sequence runs with what has come. Pages
// that do not come, or not in time, are computed.
//
// single-threaded
#pragma once

#include <cstdint>
#include <optional>

#include "quire/result.h"
#include "tiers/host_stores.h"
#include "tiers/loads.h"
#include "tiers/paths.h"
#include "tiers/searches.h"
#include "tiers/tier_parts.h"

namespace quire {

/// An admitted sequence that cannot run yet.
struct WaitingAdmission {
  Hit on_device;  // what the sequence would run with now
  Hit in_memory;  // what it would run with once all loads from the host have come
  Miss miss;      // why the rest is computed, as far as that is known
};

class Arrivals {
 public:
  Arrivals(TierParts& parts, Paths& paths, HostStores& stores, Loads& loads, Searches& searches)
      : parts_(parts), paths_(paths), stores_(stores), loads_(loads), searches_(searches) {}
  void open() {
    parts_.arrivals.resize(parts_.sequences.capacity());
    prefetches_.reserve(parts_.sequences.capacity());
  }

  /// Starts what an admitted sequence waits for. Nothing: the caller runs the sequence at once; slot.pin may hold its
  /// path. An error leaves the sequence waiting for admit(), though idle pages may have been copied or evicted.
  [[nodiscard]] Result<std::optional<WaitingAdmission>> start(std::uint32_t sequence);
  /// Lets a sequence run ahead that may, if all pages that it waits for are on their way. False: it waits on.
  bool try_run_ahead(std::uint32_t sequence);
  /// The same for all sequences.
  void run_ahead();
  /// After begin(), before admit(): starts a search and loads in the background, with pages that are free or idle.
  void prefetch(std::uint32_t sequence, const PrefixTree::Match& match);
  /// The sequence waits no longer, and runs with what there is.
  void stop(std::uint32_t sequence, MissReason reason);
  /// After completions, and when time has passed: sequences that need not wait any longer run.
  void wake_sequences();
  /// Device pages may have come back: sequences that wait for room start their loads, as far as there is some.
  void start_waiting_loads();
  /// Sequences that wait for room let go of their paths, so that those that run can have these pages. True: some did.
  [[nodiscard]] bool let_go();
  /// Sequences that waited for their turn look, as far as there is room.
  void start_waiting_searches();
  /// Calls off loads and searches that nobody waits for.
  void cancel_unneeded();

  // For Searches.

  /// A search has ended: sequences that waited for it ask the next lower tier, load, or run.
  void finish_search(std::uint32_t search, const Search& ended);
  /// Makes sequences that wait for a search stop looking, with this reason. `asks_next`: they may ask another lower
  /// tier.
  void abandon_search(std::uint32_t search, MissReason miss, bool asks_next);
  /// Of what memory can serve now of a search's path, the search has just brought so many tokens.
  void note_brought(std::uint32_t search, std::uint32_t token_count);
  /// How long a search for a sequence may take, for the sequence.
  [[nodiscard]] TimeNs search_deadline(std::uint32_t sequence) const;
  [[nodiscard]] bool is_search_awaited(std::uint32_t search) const;

 private:
  /// What of a match is to be loaded from the host.
  struct Choice {
    bool loads = false;
    MissReason miss = MissReason::None;  // why not
    std::uint32_t new_pages = 0;         // of the history, in no load so far
    Hit hit;                             // once the pages have come
    PrefixTree::Match match;             // of a hybrid model: cut at the hit
  };
  enum class Progress : std::uint8_t {
    Waits,    // something is under way that the sequence waits for
    Arrived,  // there is nothing to wait for: go on
    Stuck     // no load can be started, and nothing under way will change that
  };

  [[nodiscard]] Choice choose(std::uint32_t sequence, const Found& found);
  [[nodiscard]] bool is_faster_to_compute(const SequenceSlot& slot, const Found& found, const Choice& choice);
  [[nodiscard]] Status check_room(std::uint32_t sequence, const Choice& choice) const;
  void set_deadline(std::uint32_t sequence);
  /// Whether a lower tier is to be asked. Sets Arrival::lower to the one that is to be asked first.
  [[nodiscard]] bool may_look(std::uint32_t sequence, const Found& found);
  [[nodiscard]] std::optional<std::uint16_t> choose_lower(std::uint32_t sequence, const Found& found);
  [[nodiscard]] bool is_slower_than_computing(std::uint16_t lower, const SequenceSlot& slot, const Found& found);
  [[nodiscard]] std::uint32_t missing_tokens(const SequenceSlot& slot, const Found& found) const;
  [[nodiscard]] bool has_unasked(const Arrival& arrival) const;
  void set_look_deadline(std::uint32_t sequence, const Found& found);
  [[nodiscard]] bool start_looking(std::uint32_t sequence, const Found& found);
  void stop_looking(std::uint32_t sequence, MissReason miss);
  [[nodiscard]] std::uint32_t next_waiting_for_turn(std::uint64_t turn) const;
  void start_loading(std::uint32_t sequence, const Choice& choice);
  [[nodiscard]] Progress advance(std::uint32_t sequence);
  [[nodiscard]] Progress advance_history(std::uint32_t sequence);
  [[nodiscard]] Progress wait_for_room(std::uint32_t sequence);
  void load_anchored_first(std::uint32_t sequence);
  [[nodiscard]] bool is_on_its_way(std::uint32_t load) const;
  void note_idle_wake(std::uint32_t sequence);
  [[nodiscard]] Progress find_again(std::uint32_t sequence);
  [[nodiscard]] Progress advance_anchored(std::uint32_t sequence);
  [[nodiscard]] Progress ask_anchored(std::uint32_t sequence);
  [[nodiscard]] bool is_complete(std::uint32_t sequence);
  void hold_on_device(std::uint32_t sequence, bool is_held);
  void load_anchored(std::uint32_t sequence, TransferPriority priority);
  /// A sequence that has begun, for which more is to be loaded.
  struct Prefetched {
    enum class After : std::uint8_t {
      Search,   // of lower tiers: the host has what it finds
      Room,     // pages that leave have been copied
      History,  // has arrived, so that windows and states can follow
    };
    SequenceId sequence;
    After after = After::History;
    std::uint32_t search = 0;
    PageFingerprint missing = 0;  // of the search: another one may have its place by now
  };
  [[nodiscard]] bool is_awaited(const Prefetched& prefetched, const PrefixTree::Match& match) const;
  void expire_looking();
  void look_further();
  enum class MakeRoom : std::uint8_t { No, Yes };
  void prefetch_from_host(std::uint32_t sequence, const Found& found, MakeRoom makes_room);
  void prefetch_later(const Prefetched& prefetched);
  void prefetch_further();
  [[nodiscard]] bool tree_loads(const PrefixTree::Match& match) const;
  void run(std::uint32_t sequence, MissReason reason);

  TierParts& parts_;
  Paths& paths_;
  HostStores& stores_;
  Loads& loads_;
  Searches& searches_;
  std::uint64_t last_turn_ = 0;
  std::uint64_t seen_room_ = 0;  // device pages that could be had when start_waiting_loads() was last called
  std::vector<Prefetched> prefetches_;
};

}  // namespace quire
