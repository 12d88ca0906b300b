// SPDX-License-Identifier: Apache-2.0
//
// A mover with a small device, plans in the words of tests, and a gate at which workers can be held, so that no test
// has to wait for time to pass. The same memory can be an accelerator's: what is promised of both is tested on both.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "quire/mover.h"
#include "store/host_store_peer.h"
#include "testing/fake_device.h"
#include "testing/mover_gate.h"
#include "testing/test_device.h"
#include "testing/test_pool.h"
#include "transfer/mover_peer.h"

namespace quire {

inline constexpr TimeNs kLongNs = TimeNs{200} * 1'000'000'000;  // less than the tests' own limit

class MoverTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kHostPages = 16;
  static constexpr std::uint32_t kDevicePages = 32;

  MoverTest() { config_.host_region.huge_pages = false; }
  // Whatever has failed: workers must not wait for ever while the mover is destroyed.
  ~MoverTest() override { close(); }

  /// From the next open() on, the device's memory is an accelerator's, to which pages go this way.
  void use_accelerator(SwapPath path, std::uint64_t seed = 1) {
    seed_ = seed;
    config_.staging_bytes = 4096;
    config_.load_paths = SwapPaths{.few = path, .many = path};
    config_.store_paths = config_.load_paths;
    renew_accelerator();
  }
  [[nodiscard]] bool has_accelerator() const { return accelerator_ != nullptr; }
  [[nodiscard]] virtual std::unique_ptr<testing::FakeDevice> make_accelerator(const testing::FakeDeviceConfig& config) {
    return std::make_unique<testing::FakeDevice>(config);
  }
  /// One that knows nothing of what the last one had.
  void renew_accelerator() {
    accelerator_ = make_accelerator({.seed = ++seed_});
    config_.accelerator = accelerator_.get();
  }
  void adopt(testing::TestDevice& device) {
    if (has_accelerator()) accelerator_->adopt({device.memory(), device.geometry().pool_bytes()});
  }
  void adopt(testing::TestPool& pool) {
    for (std::size_t i = 0; i < pool.part_count(); ++i) adopt(pool.part(i));
  }
  void close() {
    gate_.open();
    if (has_accelerator()) accelerator_->hold(false);
    mover_.reset();
    if (has_accelerator()) {
      EXPECT_EQ(accelerator_->leak_count(), 0U);
    }
  }

  void open(const testing::TestDeviceShape& shape = {.layers = 4, .layer_bytes = 96, .pages = kDevicePages}) {
    close();
    if (has_accelerator()) renew_accelerator();
    device_ = std::make_unique<testing::TestDevice>(shape);
    adopt(*device_);
    config_.device_geometry = &device_->geometry();
    config_.device_memory = device_->memory();
    config_.host_page_count = kHostPages;
    mover_ = MoverPeer::open(config_, {.before_piece = [this](const PieceStart& piece) { return gate_.pass(piece); }})
                 .value();
  }

  static TransferId id(std::uint32_t index) { return {.index = index, .generation = 1}; }
  static PageTransfer page(std::uint32_t device_page, std::uint32_t host_page, std::uint32_t generation = 1) {
    return {.device_page = PageId{device_page},
            .host_page = PageId{host_page},
            .host_generation = generation,
            .name_tag = 1000 + host_page};
  }
  /// Pages first… of the device with pages 1… of the host.
  static std::vector<PageTransfer> pages(std::uint32_t first_device_page, std::uint32_t count,
                                         std::uint32_t generation = 1) {
    std::vector<PageTransfer> made;
    made.reserve(count);
    for (std::uint32_t i = 0; i < count; ++i) made.push_back(page(first_device_page + i, i + 1, generation));
    return made;
  }

  Result<bool> try_submit(std::uint32_t index, TransferKind kind, const std::vector<PageTransfer>& pages,
                          std::uint16_t band_count = 1, TransferPriority priority = TransferPriority::Waiting) {
    return mover_->try_submit(
        {.id = id(index), .kind = kind, .priority = priority, .band_count = band_count, .pages = pages});
  }
  void submit(std::uint32_t index, TransferKind kind, const std::vector<PageTransfer>& pages,
              std::uint16_t band_count = 1, TransferPriority priority = TransferPriority::Waiting) {
    const auto submitted = try_submit(index, kind, pages, band_count, priority);
    ASSERT_TRUE(submitted.has_value()) << submitted.error().message;
    ASSERT_TRUE(*submitted) << "no room";
  }
  /// The end of a transfer with one band, whatever it is.
  TransferOutcome wait_for(std::uint32_t index, std::uint32_t band = 0) {
    const auto outcome = mover_->wait(id(index), band, kLongNs);
    EXPECT_TRUE(outcome.has_value()) << outcome.error().message;
    return outcome.value_or(TransferOutcome::TimedOut);
  }
  /// Waits by the event for one completion.
  Completion next_completion() {
    Completion completion;
    std::span<Completion> polled;
    do {
      ::pollfd event{.fd = mover_->event_fd(), .events = POLLIN};
      EXPECT_EQ(::poll(&event, 1, 200'000), 1) << "no completion came";
      polled = mover_->poll(std::span(&completion, 1));
    } while (polled.empty());
    return completion;
  }
  bool is_event_readable() {
    ::pollfd event{.fd = mover_->event_fd(), .events = POLLIN};
    return ::poll(&event, 1, 0) == 1;
  }
  /// Fills device pages first… with contents first_content… and stores them to host pages 1….
  void store(std::uint32_t first_device_page, std::uint32_t count, std::uint64_t first_content,
             std::uint32_t generation = 1) {
    for (std::uint32_t i = 0; i < count; ++i) device_->fill(PageId{first_device_page + i}, first_content + i);
    submit(900'000, TransferKind::Store, pages(first_device_page, count, generation));
    const Completion completion = next_completion();
    ASSERT_EQ(completion.outcome, TransferOutcome::Ok);
    ASSERT_EQ(completion.good_pages, count);
  }
  template <typename T>
  static void expect_error(const Result<T>& result, ErrorCode code, const std::string& text) {
    ASSERT_FALSE(result.has_value()) << "not refused: " << text;
    EXPECT_EQ(result.error().code, code);
    EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
  }
  /// Until so many callers are in wait() or pause().
  void wait_for_blocked(std::uint32_t count) {
    while (MoverPeer::blocked_count(*mover_) < count) std::this_thread::yield();
  }

  testing::MoverGate gate_;                           // outlives the mover
  std::unique_ptr<testing::FakeDevice> accelerator_;  // and so does this
  std::uint64_t seed_ = 0;
  MoverConfig config_;
  std::unique_ptr<testing::TestDevice> device_;
  std::unique_ptr<Mover> mover_;
};

/// Where device memory lies, and which way it is reached.
struct MoverPlace {
  const char* name = nullptr;
  std::optional<SwapPath> path;  // unset: the processor copies

  friend void PrintTo(const MoverPlace& place, std::ostream* out) { *out << place.name; }
};

inline constexpr std::array<MoverPlace, 4> kMoverPlaces{MoverPlace{.name = "Processor"},
                                                        {.name = "Whole", .path = SwapPath::Whole},
                                                        {.name = "Staged", .path = SwapPath::Staged},
                                                        {.name = "Direct", .path = SwapPath::Direct}};

inline std::string name_of_place(const ::testing::TestParamInfo<MoverPlace>& place) {
  return place.param.name;
}

/// A fixture in every one of these places, or in some.
template <typename Fixture>
class InPlaces : public Fixture, public ::testing::WithParamInterface<MoverPlace> {
 protected:
  InPlaces() {
    if (GetParam().path) this->use_accelerator(*GetParam().path);
  }
};

}  // namespace quire
