// SPDX-License-Identifier: Apache-2.0
//
// Searches: looks for paths of sequences in lower tiers. A question asks a tier for the pages that follow those in
// memory and, in a hybrid model, for windows and states. Pages of the history that the tier has are read into host
// pages and come into the tree in the order of the path; then windows and states are read that the hit needs. Sequences
// that miss the same page at the same time wait for the same search.
//
// single-threaded
#pragma once

#include <cstdint>
#include <optional>

#include "tiers/lower_stores.h"
#include "tiers/paths.h"
#include "tiers/tier_parts.h"

namespace quire {

class Arrivals;

class Searches {
 public:
  Searches(TierParts& parts, Paths& paths, LowerStores& stores) : parts_(parts), paths_(paths), stores_(stores) {}
  [[nodiscard]] Status open(Arrivals* arrivals);

  /// The search for what follows a sequence's match in a lower tier, started now or joined. Nothing: no search or no
  /// transfer is free, transfers are paused, or a drop waits to be started.
  [[nodiscard]] std::optional<std::uint32_t> look_for(std::uint32_t sequence, const PrefixTree::Match& match,
                                                      std::uint16_t lower);
  /// Starts a direct call of the engine, which only lower tier 0 is asked for. Returns the search, or nothing as above.
  [[nodiscard]] std::optional<std::uint32_t> add_direct(TransferKind kind, std::uint32_t key_space,
                                                        const PrefixTree::Key& key, Search::DirectCall call);
  void remove(std::uint32_t search);

  /// The tier has answered: chooses what to read, and starts loads of it.
  void finish_question(std::uint32_t transfer);
  /// A load has ended, of the history or of an anchored group.
  void finish_load(std::uint32_t transfer);
  /// Starts more loads for searches that found more than there were transfers for.
  void read_more();
  /// Abandons searches that take longer than those who wait for them do, or than the tier may.
  void expire();
  /// Abandons searches that nobody waits for.
  void cancel_unneeded();
  void abandon_all(MissReason miss);
  /// Abandons searches whose pinned path fulfils a condition.
  template <typename Condition>
  void abandon_through(Condition&& condition) {
    for (std::uint32_t i = 0; i < parts_.searches.end(); ++i) {
      if (parts_.searches[i].is_live() && condition(parts_.searches[i].pin)) abandon(i, MissReason::LoadFailed);
    }
  }

 private:
  [[nodiscard]] std::optional<std::uint32_t> add(TransferKind kind, std::uint32_t key_space, std::uint16_t lower,
                                                 const PrefixTree::Key& key);
  [[nodiscard]] Hit find_hit(const Search& search, const TierPath& path, const Paths::LowerPages& lower) const;
  void choose_pages(std::uint32_t search);
  [[nodiscard]] bool is_worth_reading(const Search& search);
  [[nodiscard]] bool may_read() const;
  [[nodiscard]] bool waits_for_transfers(const Search& search) const;
  [[nodiscard]] std::uint32_t next_load_pages(const Search& search) const;
  void start_loads(std::uint32_t search);
  [[nodiscard]] std::optional<std::uint32_t> add_load(std::uint32_t search, PageHome& home);
  void finish_loads(std::uint32_t search);
  void finish_history_load(std::uint32_t transfer);
  void start_anchored_loads(std::uint32_t search);
  [[nodiscard]] bool has_room_for_anchored(const Search& search, const TierPath& path) const;
  [[nodiscard]] bool load_anchored(std::uint32_t search, const TierPath& path);
  void finish_anchored_load(std::uint32_t transfer);
  void finish_ended(std::uint32_t search);
  void note_brought(std::uint32_t search, const Hit& before, const TierPath& path);
  void end_load(std::uint32_t transfer);
  void try_end(std::uint32_t search);
  void end(std::uint32_t search);
  /// What those who wait for an abandoned search do.
  enum class Then : std::uint8_t { GoOn, AskNext };
  void abandon(std::uint32_t search, MissReason miss, Then then = Then::GoOn);
  void set_deadlines(std::uint32_t search);
  [[nodiscard]] bool reads_below(const AnchoredGroup& group, const Search& search) const;

  TierParts& parts_;
  Paths& paths_;
  LowerStores& stores_;
  Arrivals* arrivals_ = nullptr;
  std::vector<PageId> pages_;  // scratch
};

}  // namespace quire
