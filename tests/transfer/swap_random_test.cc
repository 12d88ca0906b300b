// SPDX-License-Identifier: Apache-2.0
//
// Random calls of both directions, many on their way at once, on streams that they share or do not, beside a twin that
// copies bytes when a call is started. The engine's own work is around them on streams of its own: before a call, what
// it must wait for (`after`) writes its sources and reads its targets; behind its bands' fences, targets are read and
// sources overwritten. The device runs all of it in an order that the seed draws, so a dependency that is missing
// anywhere gives wrong bytes or a wrong checksum for some seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/swap.h"
#include "swap_fixture.h"
#include "testing/sanitized.h"
#include "testing/seeded_run.h"

namespace quire {
namespace {

using testing::Op;
using testing::Random;
using testing::SwapForm;
using testing::SwapRig;
using testing::SwapShape;

constexpr std::uint32_t kSwapPages = 12;
constexpr std::uint32_t kSwapRecords = 14;
constexpr std::size_t kSwapStreams = 4;
constexpr std::size_t kComputeStreams = 2;
constexpr std::uint64_t kContentCount = 8;

SwapShape draw_shape(Random& random) {
  static constexpr std::uint32_t kSizes[] = {1, 3, 4, 16, 33, 48, 300};
  return {.form = static_cast<SwapForm>(random.below(3)),
          .layers = 1 + random.below(4),
          .component_bytes = kSizes[random.below(std::size(kSizes))],
          .device_pages = kSwapPages,
          .records = kSwapRecords,
          .first_byte = random.below(2) * (1 + random.below(4)),
          .stride_unit = 1U << random.below(5),
          .ring_pages = 1 + random.below(3),
          .slot_pages = 1 + random.below(3)};
}

class SwapModel {
 public:
  explicit SwapModel(Random& random) : rig_(draw_shape(random), {.seed = random.next()}) {
    SwapConfig config = rig_.config();
    config.checksums = has_checksums_ = random.below(4) != 0;
    config.calls_in_flight_max = calls_max_ = 1 + random.below(4);
    config.call_pages_max = call_pages_max_ = 1 + random.below(6);
    rig_.open(config);
    for (DeviceStream& stream : streams_) stream = rig_.add_stream();
    for (DeviceStream& stream : compute_) stream = rig_.add_stream();
    contents_ = rig_.device().allocate(kContentCount * rig_.record_bytes()).value();
    testing::fill_swap_bytes({contents_, kContentCount * rig_.record_bytes()}, 7);
    page_reads_ = rig_.device().allocate(kSwapPages * rig_.record_bytes()).value();
    record_reads_ = rig_.device().allocate(kSwapRecords * rig_.record_bytes()).value();
  }
  ~SwapModel() {
    rig_.close();
    rig_.device().drain();
    for (const DeviceEvent event : events_) rig_.device().destroy_event(event);
    for (std::byte* const memory : {contents_, page_reads_, record_reads_}) rig_.device().release(memory);
    EXPECT_EQ(rig_.device().leak_count(), 1 + kSwapStreams + kComputeStreams) << "only the rig's own is left";
  }
  SwapModel(const SwapModel&) = delete;
  SwapModel& operator=(const SwapModel&) = delete;

  std::string apply(const Op& op) {
    std::string difference;
    switch (op.kind % 10) {
      case 0:
      case 1:
      case 2:
        difference = start(TransferKind::Load, op);
        break;
      case 3:
      case 4:
      case 5:
        difference = start(TransferKind::Store, op);
        break;
      case 6:
      case 7:
        difference = try_finish(op);
        break;
      case 8:
        difference = ask_for_band(op);
        break;
      default:
        difference = op.draws[0] % 4 == 0 ? finish_all() : start_next_band(op);
        break;
    }
    return difference.empty() ? let_go_of_lingering() : difference;
  }

 private:
  struct Page {
    std::uint32_t device_page = 0;
    std::uint32_t host_page = 0;
    std::uint64_t checksum = 0;
    std::vector<std::byte> target_before;
  };
  struct Call {
    TransferKind kind = TransferKind::Load;
    SwapTicket ticket;
    std::uint32_t band_count = 1;
    std::uint32_t bands_started = 1;
    std::uint32_t good_pages = 0;
    bool is_computed_with = false;
    bool reads_before = false;
    bool reads_behind = false;
    std::vector<Page> pages;
    std::vector<std::byte> moved;  // all records, one behind the other
    DeviceEvent compute_is_done;   // without a handle: there is nothing behind it
  };

  [[nodiscard]] std::uint32_t in_flight(TransferKind kind) const {
    return static_cast<std::uint32_t>(std::ranges::count(calls_, kind, &Call::kind));
  }
  [[nodiscard]] DeviceEvent take_event() {
    if (free_events_.empty()) {
      events_.push_back(rig_.device().create_event().value());
      return events_.back();
    }
    const DeviceEvent event = free_events_.back();
    free_events_.pop_back();
    return event;
  }
  [[nodiscard]] std::byte* content(std::uint32_t draw) const {
    return contents_ + ((draw % kContentCount) * rig_.record_bytes());
  }
  // Copies a page, in the order of its record, to or from consecutive bytes, on a stream.
  void copy_page(std::uint32_t page, std::byte* bytes, bool is_to_page, DeviceStream stream) {
    rig_.for_each_piece(page, 0, rig_.record_bytes(), [&](auto place, auto at, auto length) {
      std::byte* const on_device = rig_.pages() + place;
      EXPECT_TRUE(rig_.device()
                      .copy(is_to_page ? on_device : bytes + at, is_to_page ? bytes + at : on_device, length, stream)
                      .has_value());
    });
  }
  void copy_record(std::uint32_t record, std::byte* bytes, bool is_to_record, DeviceStream stream) {
    std::byte* const on_host = rig_.record(record);
    EXPECT_TRUE(rig_.device()
                    .copy(is_to_record ? on_host : bytes, is_to_record ? bytes : on_host, rig_.record_bytes(), stream)
                    .has_value());
  }
  [[nodiscard]] std::vector<std::byte> twin_of_page(std::uint32_t page) {
    std::vector<std::byte> bytes(rig_.record_bytes());
    rig_.for_each_piece(page, 0, rig_.record_bytes(), [&](auto place, auto at, auto length) {
      std::memcpy(bytes.data() + at, rig_.twin_pages() + place, length);
    });
    return bytes;
  }
  [[nodiscard]] std::vector<std::byte> twin_of_record(std::uint32_t record) {
    return {rig_.twin_record(record), rig_.twin_record(record) + rig_.record_bytes()};
  }
  void set_twin_source(TransferKind kind, const Page& page, const std::byte* bytes) {
    if (kind == TransferKind::Load) {
      std::memcpy(rig_.twin_record(page.host_page), bytes, rig_.record_bytes());
      return;
    }
    rig_.for_each_piece(page.device_page, 0, rig_.record_bytes(), [&](auto place, auto at, auto length) {
      std::memcpy(rig_.twin_pages() + place, bytes + at, length);
    });
  }
  void write_source(TransferKind kind, const Page& page, std::byte* bytes, DeviceStream stream) {
    if (kind == TransferKind::Load) copy_record(page.host_page, bytes, true, stream);
    if (kind == TransferKind::Store) copy_page(page.device_page, bytes, true, stream);
    set_twin_source(kind, page, bytes);
  }

  std::string start(TransferKind kind, const Op& op) {
    Call call{.kind = kind};
    const std::uint32_t count = op.draws[0] % (call_pages_max_ + 1);
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto device_page = free_of(device_is_used_, op.draws[1] + (i * 5));
      const auto host_page = free_of(host_is_used_, op.draws[2] + (i * 3));
      if (!device_page || !host_page) break;
      call.pages.push_back({.device_page = *device_page, .host_page = *host_page});
      device_is_used_[*device_page] = host_is_used_[*host_page] = true;
    }
    Random random(op.draws[3]);
    const bool is_full = in_flight(kind) == calls_max_;
    if (is_full && random.below(4) != 0) {
      release(call);
      return try_finish(op);
    }
    const DeviceStream before = compute_[random.below(kComputeStreams)];
    DeviceEvent after;
    if (!is_full && random.below(2) == 0) after = do_before(call, random, before);
    return submit(std::move(call), random, after, is_full);
  }

  // What the engine has still to do with pages that it gives to a call.
  DeviceEvent do_before(Call& call, Random& random, DeviceStream stream) {
    call.reads_before = random.below(2) == 0;
    for (Page& page : call.pages) {
      const bool is_load = call.kind == TransferKind::Load;
      if (random.below(4) != 0) write_source(call.kind, page, content(random.below(kContentCount)), stream);
      if (!call.reads_before) continue;
      page.target_before = is_load ? twin_of_page(page.device_page) : twin_of_record(page.host_page);
      if (is_load) copy_page(page.device_page, read_of(call.kind, page), false, stream);
      if (!is_load) copy_record(page.host_page, read_of(call.kind, page), false, stream);
    }
    const DeviceEvent event = take_event();
    EXPECT_TRUE(rig_.device().record(event, stream).has_value());
    free_events_.push_back(event);  // the call has heard of it when it is recorded again
    return event;
  }
  [[nodiscard]] std::byte* read_of(TransferKind kind, const Page& page) const {
    return kind == TransferKind::Load ? page_reads_ + (page.device_page * rig_.record_bytes())
                                      : record_reads_ + (page.host_page * rig_.record_bytes());
  }

  std::string submit(Call call, Random& random, DeviceEvent after, bool is_full) {
    const auto draw_stream = [&](bool may_be_none) {
      const std::uint32_t draw = random.below(kSwapStreams + 1);
      return may_be_none && draw == kSwapStreams ? DeviceStream{} : streams_[draw % kSwapStreams];
    };
    std::vector<PageId> device_pages;
    std::vector<RecordId> records;
    std::vector<std::uint64_t> expected;
    for (Page& page : call.pages) {
      device_pages.push_back(PageId{page.device_page});
      records.push_back(RecordId{page.host_page});
    }
    if (is_full) {
      const SwapOrder refused{
          .kind = call.kind, .device_pages = device_pages, .records = records, .streams = {.copies = streams_[0]}};
      const auto ticket = rig_.engine().try_start(refused);
      release(call);
      if (!ticket) return ticket.error().message;
      return ticket->has_value() ? "there was room for another call" : "";
    }
    for (Page& page : call.pages) {
      rig_.twin_swap(call.kind, page.device_page, page.host_page);
      page.checksum = rig_.twin_checksum(page.host_page);
      const std::vector<std::byte> bytes = twin_of_record(page.host_page);
      call.moved.insert(call.moved.end(), bytes.begin(), bytes.end());
      expected.push_back(page.checksum);
    }
    call.good_pages = static_cast<std::uint32_t>(call.pages.size());
    const bool expects = call.kind == TransferKind::Load && has_checksums_ && random.below(3) != 0;
    if (expects && !expected.empty() && random.below(3) == 0) {
      call.good_pages = random.below(call.good_pages);
      expected[call.good_pages] ^= std::uint64_t{1} << random.below(64);
    }
    call.band_count = 1 + random.below(rig_.shape().layers);
    const bool band_by_band = random.below(2) == 0;
    call.bands_started = band_by_band ? 1 : call.band_count;
    const auto ticket = rig_.engine().try_start(
        {.kind = call.kind,
         .device_pages = device_pages,
         .records = records,
         .expected = expects ? expected : std::vector<std::uint64_t>{},
         .band_count = call.band_count,
         .band_by_band = band_by_band,
         .streams = {.copies = draw_stream(false), .kernels = draw_stream(true), .more_kernels = draw_stream(true)},
         .after = after,
         .path = static_cast<SwapPath>(random.below(3))});
    if (!ticket) return "starting: " + ticket.error().message;
    if (!ticket->has_value()) return "there was no room for a call";
    call.ticket = **ticket;
    call.is_computed_with = random.below(2) == 0;
    if (call.is_computed_with && call.bands_started == call.band_count) do_behind(call, random);
    calls_.push_back(std::move(call));
    return "";
  }

  // Of any call, whatever has been put on streams since its last band.
  std::string start_next_band(const Op& op) {
    if (calls_.empty()) return "";
    return start_next_band(calls_[op.draws[1] % calls_.size()], op.draws[2]);
  }
  std::string start_next_band(Call& call, std::uint32_t seed) {
    const auto has_started = rig_.engine().start_next_band(call.ticket);
    if (!has_started) return "starting a band: " + has_started.error().message;
    if (*has_started != (call.bands_started < call.band_count)) return "another number of bands is on the streams";
    if (!*has_started) return "";
    ++call.bands_started;
    Random random(seed);
    if (call.is_computed_with && call.bands_started == call.band_count) do_behind(call, random);
    return "";
  }

  // What the engine does with pages as soon as bands have arrived.
  void do_behind(Call& call, Random& random) {
    const DeviceStream stream = compute_[random.below(kComputeStreams)];
    call.reads_behind = random.below(2) == 0;
    for (std::uint32_t band = 0; band < call.band_count; ++band) {
      const bool is_last = band + 1 == call.band_count;
      if (!is_last && random.below(2) == 0) continue;
      EXPECT_TRUE(rig_.engine().wait_on(stream, call.ticket, band).has_value());
      if (!call.reads_behind) continue;
      // All that has arrived by now; what has not is read again behind the last band.
      const std::uint64_t end = band_end(call, band);
      for (const Page& page : call.pages) read_target(call.kind, page, end, stream);
    }
    if (random.below(2) == 0) {
      for (const Page& page : call.pages) {
        write_source(call.kind, page, content(random.below(kContentCount)), stream);
      }
    }
    call.compute_is_done = take_event();
    EXPECT_TRUE(rig_.device().record(call.compute_is_done, stream).has_value());
  }
  void read_target(TransferKind kind, const Page& page, std::uint64_t end, DeviceStream stream) {
    // Beside what was read before the call.
    std::byte* const target = kind == TransferKind::Load ? record_reads_ + (page.host_page * rig_.record_bytes())
                                                         : page_reads_ + (page.device_page * rig_.record_bytes());
    if (kind == TransferKind::Store) {
      EXPECT_TRUE(rig_.device().copy(target, rig_.record(page.host_page), end, stream).has_value());
      return;
    }
    rig_.for_each_piece(page.device_page, 0, end, [&](auto place, auto at, auto length) {
      EXPECT_TRUE(rig_.device().copy(target + at, rig_.pages() + place, length, stream).has_value());
    });
  }
  [[nodiscard]] std::uint64_t band_end(const Call& call, std::uint32_t band) const {
    return rig_.page().layer_bytes() * (std::uint64_t{rig_.shape().layers} * (band + 1) / call.band_count);
  }

  std::string ask_for_band(const Op& op) {
    if (calls_.empty()) return "";
    const Call& call = calls_[op.draws[0] % calls_.size()];
    const std::uint32_t band = op.draws[1] % call.band_count;
    const auto has_arrived = rig_.engine().has_arrived(call.ticket, band);
    if (!has_arrived) return "asking for a band: " + has_arrived.error().message;
    if (!*has_arrived) return "";
    if (band >= call.bands_started) return "a band has arrived that is not on the streams";
    for (std::size_t i = 0; i < call.pages.size(); ++i) {
      if (!has_target(call, i, band_end(call, band))) return "a band has arrived without its bytes";
    }
    return "";
  }
  [[nodiscard]] bool has_target(const Call& call, std::size_t index, std::uint64_t end) {
    const std::byte* const moved = call.moved.data() + (index * rig_.record_bytes());
    const Page& page = call.pages[index];
    if (call.kind == TransferKind::Store) return std::memcmp(rig_.record(page.host_page), moved, end) == 0;
    bool is_same = true;
    rig_.for_each_piece(page.device_page, 0, end, [&](auto place, auto at, auto length) {
      is_same = is_same && std::memcmp(rig_.pages() + place, moved + at, length) == 0;
    });
    return is_same;
  }

  std::string try_finish(const Op& op) {
    if (calls_.empty()) return "";
    const std::size_t index = op.draws[0] % calls_.size();
    if (calls_[index].bands_started < calls_[index].band_count) return start_next_band(calls_[index], op.draws[1]);
    const auto is_done = rig_.engine().is_done(calls_[index].ticket);
    if (!is_done) return "asking: " + is_done.error().message;
    return *is_done ? finish(index) : "";
  }

  std::string finish(std::size_t index) {
    Call call = std::move(calls_[index]);
    calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(index));
    const auto report = rig_.engine().finish(call.ticket);
    if (!report) return "finishing: " + report.error().message;
    if (report->page_count != call.pages.size()) return "the report has another number of pages";
    if (report->good_pages != call.good_pages) {
      return "good_pages is " + std::to_string(report->good_pages) + ", not " + std::to_string(call.good_pages);
    }
    if (report->checksums.size() != (has_checksums_ ? call.pages.size() : 0)) return "checksums are missing";
    for (std::size_t i = 0; i < call.pages.size(); ++i) {
      if (has_checksums_ && report->checksums[i] != call.pages[i].checksum) return "a checksum is wrong";
      if (!has_target(call, i, rig_.record_bytes())) return "page " + std::to_string(i) + " has not arrived";
      if (call.reads_before && std::memcmp(read_of(call.kind, call.pages[i]), call.pages[i].target_before.data(),
                                           rig_.record_bytes()) != 0) {
        return "page " + std::to_string(i) + " was overwritten before `after` had happened";
      }
    }
    lingering_.push_back(std::move(call));
    return "";
  }

  // Pages are free when what the engine does with them is over as well.
  std::string let_go_of_lingering() {
    for (std::size_t i = lingering_.size(); i-- > 0;) {
      Call& call = lingering_[i];
      if (call.compute_is_done.handle != nullptr) {
        if (!rig_.device().has_happened(call.compute_is_done).value()) continue;
        free_events_.push_back(call.compute_is_done);
      }
      for (std::size_t p = 0; call.reads_behind && p < call.pages.size(); ++p) {
        const Page& page = call.pages[p];
        const std::byte* const read = call.kind == TransferKind::Load
                                          ? record_reads_ + (page.host_page * rig_.record_bytes())
                                          : page_reads_ + (page.device_page * rig_.record_bytes());
        if (std::memcmp(read, call.moved.data() + (p * rig_.record_bytes()), rig_.record_bytes()) != 0) {
          return "page " + std::to_string(p) + " was not there behind its fence";
        }
      }
      release(call);
      lingering_.erase(lingering_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return "";
  }

  std::string finish_all() {
    while (!calls_.empty() || !lingering_.empty()) {
      const auto draw = static_cast<std::uint32_t>(calls_.size());
      if (std::string difference = try_finish({.draws = {draw, draw}}); !difference.empty()) return difference;
      if (std::string difference = let_go_of_lingering(); !difference.empty()) return difference;
    }
    return rig_.difference();
  }

  template <typename Used>
  [[nodiscard]] static std::optional<std::uint32_t> free_of(const Used& used, std::uint32_t draw) {
    for (std::uint32_t i = 0; i < used.size(); ++i) {
      const auto index = static_cast<std::uint32_t>((draw + i) % used.size());
      if (!used[index]) return index;
    }
    return std::nullopt;
  }
  void release(const Call& call) {
    for (const Page& page : call.pages) device_is_used_[page.device_page] = host_is_used_[page.host_page] = false;
  }

  SwapRig rig_;
  bool has_checksums_ = true;
  std::uint32_t calls_max_ = 1;
  std::uint32_t call_pages_max_ = 1;
  std::array<DeviceStream, kSwapStreams> streams_{};
  std::array<DeviceStream, kComputeStreams> compute_{};
  std::vector<DeviceEvent> events_;
  std::vector<DeviceEvent> free_events_;
  std::byte* contents_ = nullptr;
  std::byte* page_reads_ = nullptr;
  std::byte* record_reads_ = nullptr;
  std::array<bool, kSwapPages> device_is_used_{};
  std::array<bool, kSwapRecords> host_is_used_{};
  std::vector<Call> calls_;
  std::vector<Call> lingering_;  // finished, but for what the engine does with their pages
};

TEST(SwapRandom, EveryOrderThatStreamsAllowGivesTheSameBytes) {
  EXPECT_EQ(testing::run_seeds({.test = "bin/swap_random_test --gtest_filter=SwapRandom.*",
                                .seed_count = testing::kIsSanitized ? 300 : 5000,
                                .step_count = 150},
                               [](Random& random) { return SwapModel(random); }),
            "");
}

}  // namespace
}  // namespace quire
