// SPDX-License-Identifier: Apache-2.0
//
// What a RemoteMover is made of. Each plan has a flight, by its index, and so has each of a few batches in the
// background that belong to no plan; some of these are kept for drops. A flight has one batch at the store at a time,
// and the memory of it:
//
//     objects, keys, tags   one for each object of the batch
//     pages                 one for each page that is moved
//     pieces, headers       of values
//
// All of it is address space from open() on, used as far as plans need it.
//
//     remote_mover.cc        the thread, batches, drops
//     remote_mover_find.cc   questions
//     remote_mover_move.cc   loads, stores, direct calls
//
// worker-only, but for the queue and the stats
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/lazy_array.h"
#include "base/mutex.h"
#include "transfer/absent_names.h"
#include "transfer/lower_queue.h"
#include "transfer/remote_mover.h"
#include "wire/extent.h"

namespace quire {

struct RemoteMover::Impl {
  /// Names in one question: an answer of thousands would keep a load waiting.
  static constexpr std::uint32_t kQuestionNamesMax = 512;
  static constexpr std::uint32_t kBackgroundFlights = 8;
  static constexpr std::uint32_t kTouchFlightsMax = kBackgroundFlights / 2;  // of one path
  static constexpr std::uint32_t kDropFlights = 2;                           // behind those: drops at the store at once
  /// How long a name counts as absent: others may put it meanwhile.
  static constexpr TimeNs kAbsentNs = 1'000'000'000;
  /// How long a name counts as absent because its value came wrong: a connection that is at fault is known to be by
  /// then, or idle, which shows it.
  static constexpr TimeNs kBadNs = 5'000'000'000;
  /// A put that was given up may still happen for so long: when a connection is cleared, a machine goes on.
  static constexpr TimeNs kLostPutNs = 60'000'000'000;
  static constexpr TimeNs kDropPauseMinNs = 1'000'000'000;
  static constexpr TimeNs kDropPauseMaxNs = 60'000'000'000;
  using Counter = std::uint64_t RemoteMoverStats::*;

  /// What the batch at the store is for.
  enum class Step : std::uint8_t {
    Probe,     ///< of a find: extents 1, 2, 4, … of the path, and the last
    Window,    ///< of a find: those in between
    Anchored,  ///< of a find: pages of other groups
    Get,
    Ask,  ///< which values are to be put
    Put,
    Touch,    ///< in the background: a path counts as used
    Discard,  ///< in the background: a value that came wrong twice
    Drop,     ///< in the background: a key space that was dropped, or everything
  };
  /// What became of a page.
  enum class PageEnd : std::uint8_t {
    Open,  ///< not tried
    Good,
    Absent,
    Lost,        ///< late, failed
    Bad,         ///< Flight::fault says how
    NotWritten,  ///< done, without having been written
    Hidden,      ///< not written, because its key space is being dropped: it may be written later
  };

  struct PageRow {
    std::span<std::byte> memory;        // of a get
    std::span<const std::byte> source;  // of a direct put
    std::uint64_t checksum;
    PageEnd end;
  };
  /// An extent, or a part of one: pages [first, first + count) of the flight's.
  struct Item {
    std::uint32_t first;
    std::uint32_t count;
    std::uint32_t front;  // so many pages of the extent lie before them
  };
  struct Flight {
    enum class State : std::uint8_t { Idle, Waiting, AtStore };
    State state = State::Idle;
    Step step = Step::Probe;
    std::uint32_t index = 0;
    LowerPlan plan;
    Completion completion;
    TimeNs start_ns = 0;
    RemoteBatch batch;
    TimeNs deadline_ns = 0;  // of the batch

    // Of a find. Extent j of those asked for ends with page first_end + j * extent_pages of the path.
    std::uint32_t named_pages = 0;  // of the path; stays until the index is used again
    std::uint32_t first_end = 0;
    std::uint32_t extent_count = 0;
    std::uint32_t found_extents = 0;
    std::uint32_t window_end = 0;
    std::uint32_t path_pages = 0;  // held and found
    std::uint64_t next_anchored = 0;
    bool has_failed = false;  // the store has not answered everything

    // Of what moves pages.
    std::uint32_t pool = 0;
    std::uint32_t page_count = 0;  // of the batch
    std::uint32_t item_count = 0;
    TransferFault fault = TransferFault::None;  // of the first bad page
    PageNames::Record shared;                   // of a direct call: of all pages of its path
    std::size_t next_columns = 0;               // of a direct call
    std::uint32_t next_column = 0;
    std::uint64_t offset = 0;  // of the columns' bytes in the caller's memory

    // What order things began in: see Impl::last_number.
    std::uint64_t write_number = 0;  // of a store or a direct put that is not over; 0: it is none
    std::uint64_t number = 0;        // of a flush, or of a try to drop
    PageName dropped;                // by Step::Drop, a key space; by Step::Discard, a page
  };
  struct Request {
    Step step = Step::Probe;
    RemoteOperation operation = RemoteOperation::Find;
    RemotePriority priority = RemotePriority::Waiting;
    bool is_path = false;
    std::uint32_t object_count = 0;
    TimeNs timeout_ns = 0;
  };
  /// What a key names, besides what is the same for all.
  struct Value {
    std::uint32_t pool = 0;
    PageName key_space;
    PageName name;  // of the last page
  };
  /// A drop from its plan on until it has succeeded, while its key space is hidden. Nothing of that is put by writes
  /// which begin meanwhile, so that each try has to wait for those writes only that began before the plan. Tries of one
  /// drop follow each other. One of everything does for others what their own would do.
  struct OpenDrop {
    PageName key_space;               // none: all
    std::uint64_t first_number = 0;   // of its plan: it waits for writes before it
    std::uint64_t asked_number = 0;   // of the last plan that wants the same: only a try behind it ends the drop
    std::uint64_t repeat_number = 0;  // it succeeded then, and is repeated because of puts that were given up; 0: no
    std::uint64_t done_number = 0;    // of the last try that succeeded
    std::uint64_t failed_number = 0;  // of the last of its own that failed
    TimeNs next_ns = 0;               // when it is to be tried
    TimeNs pause_ns = 0;              // made after the last one that failed
    std::optional<std::uint32_t> flight;  // that tries it now
  };

  Impl(Config the_config, RemoteStore& the_store, std::span<HostPages* const> the_hosts);
  ~Impl();

  // remote_mover.cc
  [[nodiscard]] Status prepare();
  [[nodiscard]] Status start();
  void stop();
  void work();
  void wait_for_work();
  void note_status();
  bool run();
  void begin(const LowerPlan& plan);
  void complete(Flight& flight);
  RemoteObject& set_object(Flight& flight, std::uint32_t object, const Value& value);
  void submit(Flight& flight, const Request& request);
  [[nodiscard]] bool submit_waiting();
  [[nodiscard]] bool take_answer();
  void finish_batch(Flight& flight);
  [[nodiscard]] bool cancel_some();
  [[nodiscard]] Flight* idle_background();
  void discard(std::uint32_t pool, const PageName& name, const RemoteObject& object);
  void end_discard(const Flight& flight);
  [[nodiscard]] std::uint64_t oldest_write() const;
  void open_drop(const PageName& key_space);
  [[nodiscard]] Flight* idle_drop();
  [[nodiscard]] OpenDrop* next_drop();
  [[nodiscard]] bool try_drop();
  void end_drop(const Flight& flight);
  void end_drop_well(const Flight& flight);
  void hurry_drops();
  [[nodiscard]] bool try_end_flush();
  void set_failure(Flight& flight, TransferFault fault);
  void count(Counter counter, std::uint64_t number = 1);

  // remote_mover_find.cc
  void begin_find(Flight& flight);
  void end_probe(Flight& flight);
  void ask_window(Flight& flight);
  void end_window(Flight& flight);
  void end_path(Flight& flight);
  void touch_before(const Flight& flight);
  void touch_path(const Flight& flight);
  template <typename NameOf>
  void touch(const PageName& key_space, std::uint32_t extent_count, NameOf name_of);
  void ask_anchored(Flight& flight);
  void end_anchored(Flight& flight);
  void end_find(Flight& flight);
  void ask_names(Flight& flight, Step step, std::uint32_t object_count);
  [[nodiscard]] const PageName& extent_name(const Flight& flight, std::uint32_t extent);
  void set_extent(Flight& flight, std::uint32_t object, std::uint32_t extent);
  void note_absent(const Flight& flight);
  [[nodiscard]] bool is_spared(std::uint32_t pool, const PageName& name, TimeNs at_ns);

  // remote_mover_move.cc
  void begin_load(Flight& flight);
  void end_load(Flight& flight);
  void begin_store(Flight& flight);
  void end_store(Flight& flight);
  void begin_direct(Flight& flight);
  void next_direct(Flight& flight);
  [[nodiscard]] bool has_direct_pages(Flight& flight);
  void end_direct_batch(Flight& flight);
  void end_moves(Flight& flight);
  void group(Flight& flight);
  [[nodiscard]] const PageName* extent_of(const Flight& flight, const Item& item);
  void end_pages(Flight& flight, const Item& item, PageEnd end);
  void skip(Flight& flight, const Item& item, PageEnd end);
  void get(Flight& flight);
  void end_get(Flight& flight);
  void refuse(const Flight& flight, const Item& item, const RemoteObject& object);
  [[nodiscard]] bool verify(Flight& flight, const Item& item, std::span<const std::byte> heads);
  void ask(Flight& flight);
  void end_ask(Flight& flight);
  [[nodiscard]] bool add_put(Flight& flight, std::uint32_t item, std::uint32_t object);
  void end_put(Flight& flight);
  [[nodiscard]] TransferFault begin_source(Flight& flight, std::uint32_t page, HostPages::Record& record);
  void end_source(const Flight& flight, std::uint32_t page);

  // Rows.
  [[nodiscard]] std::span<RemoteObject> objects_of(const Flight& flight) { return row(objects, flight, object_max); }
  [[nodiscard]] std::span<std::uint32_t> tags_of(const Flight& flight) { return row(tags, flight, object_max); }
  [[nodiscard]] std::span<PageRow> pages_of(const Flight& flight) {
    return row(pages, flight, config.transfer_pages_max);
  }
  [[nodiscard]] std::span<Item> items_of(const Flight& flight) { return row(items, flight, config.transfer_pages_max); }
  [[nodiscard]] std::span<std::span<std::byte>> targets_of(const Flight& flight) {
    return row(targets, flight, piece_max);
  }
  [[nodiscard]] std::span<std::span<const std::byte>> sources_of(const Flight& flight) {
    return row(sources, flight, piece_max);
  }
  [[nodiscard]] std::span<std::byte> headers_of(const Flight& flight) { return row(headers, flight, header_bytes_max); }
  [[nodiscard]] std::span<std::byte> discards_of(const Flight& flight) { return row(discards, flight, discard_bytes); }
  template <typename T>
  [[nodiscard]] static std::span<T> row(LazyArray<T>& array, const Flight& flight, std::size_t length) {
    return {array.data() + (flight.index * length), length};
  }

  [[nodiscard]] std::uint32_t extent_pages(std::uint32_t pool) const { return config.pools[pool].extent_pages; }
  [[nodiscard]] std::uint64_t page_bytes(std::uint32_t pool) const { return config.pools[pool].layout.page_bytes; }
  [[nodiscard]] TimeNs now() const { return config.clock(); }

  Config config;
  RemoteStore& store;
  std::vector<HostPages*> hosts;        // by pool
  std::vector<std::uint32_t> anchored;  // the pools but the history's that are kept
  std::unique_ptr<LowerQueue> queue;
  int work_fd = -1;
  std::vector<std::span<std::byte>> registered;  // with the store: headers and discards
  std::thread thread;
  std::atomic<bool> is_stopping = false;
  std::atomic<bool> is_usable = true;  // as the store said last

  std::size_t object_max = 0;
  std::size_t piece_max = 0;
  std::size_t header_bytes_max = 0;
  std::size_t discard_bytes = 0;
  std::vector<Flight> flights;  // of plans, by index; behind them those in the background, and then those of drops
  LazyArray<RemoteObject> objects;
  LazyArray<std::array<char, kRemoteKeyBytesMax>> keys;
  LazyArray<std::uint32_t> tags;
  LazyArray<PageRow> pages;
  LazyArray<Item> items;
  LazyArray<std::span<std::byte>> targets;
  LazyArray<std::span<const std::byte>> sources;
  LazyArray<std::byte> headers;
  LazyArray<std::byte> discards;  // where pages go that come with others and are not wanted
  std::vector<RecordHeader> decoded;

  std::vector<std::uint32_t> waiting;  // flights that the store had no room for, in their order
  std::vector<std::uint32_t> flushes;  // flights of those that are not over, in their order
  std::vector<TransferId> cancelled;
  std::vector<OpenDrop> open_drops;   // one for each key space at most; of a mover that only reads they are never over
  std::uint64_t last_number = 0;      // writes, flushes, drops and their tries are numbered as they begin
  std::optional<TimeNs> lost_put_ns;  // when the last put was given up
  AbsentNames absent;
  AbsentNames bad;  // their values came wrong
  std::uint64_t last_batch = 0;

  mutable Mutex stats_mutex;  // guards what follows
  RemoteMoverStats stats QUIRE_GUARDED_BY(stats_mutex);
};

}  // namespace quire
